//! Control operations on histories: switching CDP on and off, anchors, marks, recovery and rollback
//! to a moment.

use super::snapshots::record as snapshot_record;
use super::{Pool, Undo};
use crate::branch::namespace::{Namespace, check_depth, check_name};
use crate::branch::{Branch, View, VolumeState};
use crate::catalog::{Frozen, SnapshotRecord, VolumeRecord};
use crate::control::{AddMark, CloneVolume, Control, Group, RemoveMark, RollBack, SetCdp};
use crate::error::{Error, ErrorKind, Result, conflict, invalid};
use crate::ids::{BranchId, Epoch, Lsn, SnapshotId, Stamp, VolumeId};
use crate::info::history::{CdpInfo, Mark, Moment, Point};
use crate::info::{SnapshotInfo, VolumeInfo};
use crate::settings::CdpSettings;
use crate::world::uuid;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of volumes that can be taken back together.
const MAX_GROUP: usize = 200;

impl Pool {
    /// Switches CDP of a volume on or off, or changes its settings, from this place in the order of
    /// writes on. The recorded history stays as long as its retention requires.
    pub fn set_cdp(&self, volume: &str, settings: Option<CdpSettings>) -> Result<VolumeInfo> {
        settings.iter().try_for_each(CdpSettings::check)?;
        let branch = self.core.names.read().volume(volume)?.line.branch.clone();
        // A writer over an image or a moment has decided whether old content must be materialized
        // as a whole, and sequences its write now.
        let _alone = branch.has_external_base.then(|| branch.materialize_lock.write());
        self.destager.submit_with(|names| {
            let state = names.volume(volume)?;
            if state.line.branch.id != branch.id {
                let text =
                    format!("set up CDP of volume {volume}: it was rolled back or replaced; try again");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            let now = state.line.branch.cdp.wanted();
            let mut controls = Vec::new();
            if now.map(|s| s.encoding) != settings.map(|s| s.encoding) {
                // Where the encoding changes, an anchor has the content by itself.
                controls.push(names.anchor(state, &*self.core.world.rng)?);
            }
            controls.push(SetCdp { id: state.id, settings }.into());
            Ok((controls, None))
        })?;
        self.volume(volume)
    }

    /// Sets the number of chunk writes between two anchors, for
    /// [`crate::cdp::AnchorPolicy::Model`]. It is forgotten when the pool is closed.
    pub fn set_anchor_distance(&self, volume: &str, writes: Option<u64>) -> Result<()> {
        let state = self.core.names.read().volume(volume)?.clone();
        state.line.branch.cdp.set_model(writes);
        Ok(())
    }

    /// Names the present moment of a volume.
    pub fn mark(&self, volume: &str, name: &str) -> Result<Mark> {
        self.mark_all(&[volume], name)
    }

    /// Names one present moment of several volumes, each of them once.
    pub fn mark_all(&self, volumes: &[&str], name: &str) -> Result<Mark> {
        check_name(name)?;
        let once: std::collections::BTreeSet<&&str> = volumes.iter().collect();
        if once.len() < volumes.len() || !(1..=MAX_GROUP).contains(&volumes.len()) {
            return Err(invalid(format!(
                "mark a moment: 1 to {MAX_GROUP} volumes can be marked at once, each of them once"
            )));
        }
        let mark = |names: &Namespace, volume: &str| -> Result<Control> {
            let state = names.volume(volume)?;
            if !state.line.branch.cdp.is_on() {
                return Err(conflict(format!(
                    "mark a moment of volume {volume}: CDP is off; begin a history first (volume set --cdp)"
                )));
            }
            if let Some(what) = names.past(state, name) {
                let text = format!("mark a moment of volume {volume}: it has a {what} {name} already");
                return Err(conflict(text));
            }
            Ok(AddMark { volume: state.id, name: name.to_owned() }.into())
        };
        let Stamp { lsn, time } = self.destager.submit_timed(|names| {
            let marks = volumes.iter().map(|volume| mark(names, volume)).collect::<Result<Vec<_>>>()?;
            Ok((vec![together(marks)], None))
        })?;
        Ok(Mark { name: name.to_owned(), lsn, time: self.core.clock.wall(time) })
    }

    /// Removes a mark; the moment stays.
    pub fn unmark(&self, volume: &str, name: &str) -> Result<()> {
        self.destager.submit(|names| {
            let state = names.volume(volume)?;
            let lsn = names.marks.get(state.id, name).map(|at| at.lsn);
            let lsn = lsn.ok_or_else(|| {
                crate::error::not_found(format!(
                    "find the mark {name:?} of volume {volume}: it does not exist"
                ))
            })?;
            Ok(RemoveMark { volume: state.id, lsn }.into())
        })?;
        Ok(())
    }

    /// Makes a writable volume from a moment of a volume's past. It can be used at once, and rests
    /// on that history until it is flattened.
    pub fn recover_volume(&self, volume: &str, moment: &Moment, new_name: &str) -> Result<VolumeInfo> {
        self.recover_volumes(&[(volume, new_name)], moment)?;
        self.volume(new_name)
    }

    /// Makes writable volumes from one moment of several volumes: (volume, name of the new one). A
    /// mark or a flush is looked up in the first volume. Returns the moment of each of them.
    pub fn recover_volumes(&self, wanted: &[(&str, &str)], moment: &Moment) -> Result<Vec<Point>> {
        let held = self.hold_all(wanted.iter().map(|(volume, _)| *volume), moment)?;
        wanted.iter().try_for_each(|(_, name)| check_name(name))?;
        let uuids: Vec<_> = wanted.iter().map(|_| uuid(&*self.core.world.rng)).collect();
        let created = self.core.world.clock.now();
        self.destager.submit_with(|names| {
            let mut controls = Vec::new();
            for (n, ((state, line, point), (parent, name))) in held.iter().zip(wanted).enumerate() {
                if names.by_name.contains_key(*name) || wanted[..n].iter().any(|(_, other)| other == name) {
                    return Err(conflict(format!("create volume {name}: the name is taken")));
                }
                check_depth(line)?;
                let id = names.next_id + 2 * n as u64;
                let of = (point.size, state.block_size);
                let record = VolumeRecord::new(uuids[n], name, of, BranchId(id + 1));
                let volume =
                    VolumeRecord { created, direct_min: names.volume(parent)?.direct_min(), ..record };
                let branch = &line.branch;
                let clone = CloneVolume {
                    id: VolumeId(id),
                    chunk_log2: branch.chunk_log2,
                    base: base_of(branch),
                    at: Some(point.lsn),
                    method: branch.method(),
                    volume,
                    area: branch.area,
                };
                controls.push(clone.into());
            }
            Ok((vec![together(controls)], None))
        })?;
        Ok(held.iter().map(|(.., point)| *point).collect())
    }

    /// Takes volumes back to one moment: (volume, name of the snapshot that keeps its present
    /// state). Open handles are refused from then on ([`ErrorKind::Busy`] if there are any, unless
    /// `force`).
    pub fn roll_back_to<'u, U: Into<Undo<'u>> + Copy>(
        &self,
        wanted: &[(&str, U)],
        moment: &Moment,
        force: bool,
    ) -> Result<Vec<SnapshotInfo>> {
        let wanted: Vec<(&str, Undo<'_>)> =
            wanted.iter().map(|(volume, undo)| (*volume, (*undo).into())).collect();
        let held = self.hold_all(wanted.iter().map(|(volume, _)| *volume), moment)?;
        self.destager.submit_with(|names| Ok((self.roll_backs(names, &wanted, &held, force)?, None)))?;
        wanted.iter().map(|(volume, undo)| self.snapshot(volume, undo.name)).collect()
    }

    /// Returns the operations that take volumes back to the held moments. The first operation does
    /// that; the others are the new branches' first anchors.
    fn roll_backs(
        &self,
        names: &Namespace,
        wanted: &[(&str, Undo<'_>)],
        held: &[(Arc<VolumeState>, View, Point)],
        force: bool,
    ) -> Result<Vec<Control>> {
        let created = self.core.world.clock.now();
        let (mut roll_backs, mut anchors) = (Vec::new(), Vec::new());
        for (n, ((was, line, point), (volume, undo))) in held.iter().zip(wanted).enumerate() {
            let state = names.volume(volume)?;
            if state.id != was.id {
                let text = format!("roll back volume {volume}: it was replaced meanwhile; try again");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            if wanted[..n].iter().any(|(other, _)| other == volume) {
                return Err(invalid(format!("roll back: {volume} is named twice")));
            }
            let handles = state.handles.load(Ordering::Acquire);
            if handles > 0 && !force {
                let text =
                    format!("roll back volume {volume}: {handles} clients use it; --force disconnects them");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            check_depth(line)?;
            let undo_id = names.next_id + 3 * n as u64;
            let roll_back = RollBack {
                id: state.id,
                branch: BranchId(undo_id + 1),
                base: base_of(&line.branch),
                at: Some(point.lsn),
                size: point.size,
                undo_id: SnapshotId(undo_id),
                undo: SnapshotRecord {
                    labels: self.undo_labels(undo),
                    ..snapshot_record(names, state, undo.name, uuid(&*self.core.world.rng), created)?
                },
                area: state.line.branch.area,
            };
            anchors.extend(names.anchor_after(&roll_back, &*self.core.world.rng));
            roll_backs.push(roll_back.into());
        }
        Ok([together(roll_backs)].into_iter().chain(anchors).collect())
    }

    /// Holds one moment of several volumes.
    pub(super) fn hold_all<'v>(
        &self,
        volumes: impl Iterator<Item = &'v str>,
        moment: &Moment,
    ) -> Result<Vec<(Arc<VolumeState>, View, Point)>> {
        let mut held: Vec<(Arc<VolumeState>, View, Point)> = Vec::new();
        // All volumes use one time, even if the clock is set meanwhile.
        let moment = self.by_pool_time(moment)?;
        for volume in volumes {
            // The moment of the first volume applies to all: there is one order of writes.
            let moment = match (held.first(), &moment) {
                (None, _) | (_, Moment::Lsn(_) | Moment::Time(_) | Moment::PoolTime(_)) => moment.clone(),
                (Some((.., first)), _) => Moment::Lsn(first.lsn),
            };
            held.push(self.hold(volume, &moment)?);
        }
        if held.is_empty() || held.len() > MAX_GROUP {
            return Err(invalid(format!("recover volumes: their number must be 1 to {MAX_GROUP} at once")));
        }
        Ok(held)
    }
}

/// Combines operations into one that a crash leaves as a whole, or not at all.
pub(super) fn together(mut parts: Vec<Control>) -> Control {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            Group { parts }.into()
        }
    }
}

/// The base of what rests on a moment of a branch: it rests on no snapshot of the branch, so the
/// epoch is 0.
pub(super) fn base_of(branch: &Branch) -> Frozen {
    Frozen { branch: branch.id, epoch: Epoch::NONE }
}

impl Pool {
    /// Returns the state of a volume's CDP.
    pub fn cdp(&self, volume: &str) -> Result<CdpInfo> {
        let state = self.core.names.read().volume(volume)?.clone();
        let cdp = &state.line.branch.cdp;
        let stretches = self.core.stretches(state.id);
        let mut info = CdpInfo {
            settings: cdp.wanted(),
            distance: cdp.distance(),
            from: None,
            records: 0,
            written: 0,
            payload: 0,
            stored: 0,
            kept: 0,
            segments: 0,
            anchors: 0,
            window: 0,
            newest: None,
            short: false,
        };
        for stretch in &stretches {
            let log = stretch.branch.cdp.log.read();
            info.from = info.from.or_else(|| log.begins());
            for record in log.segment_records() {
                info.records += record.records;
                info.written += record.written;
                info.payload += record.payload;
                info.stored += record.bytes();
                info.kept += record.kept;
                info.segments += 1;
                if record.records > 0 {
                    info.newest = info.newest.max(Some(record.times.1));
                }
            }
            info.anchors += log.anchors().count() as u64;
        }
        info.newest = info.newest.map(|time| self.core.clock.wall(time));
        info.window = info.from.map_or(0, |from| self.core.now().saturating_sub(from.time));
        info.from = info.from.map(|from| Stamp { time: self.core.clock.wall(from.time), ..from });
        let wanted = cdp.wanted().map(|s| s.retention).filter(|r| r.bytes.is_some()).and_then(|r| r.time);
        let began = stretches.first().map_or(Lsn::ZERO, |s| s.branch.cdp.log.read().floor());
        // If nothing has expired yet, history is as long as it can be.
        info.short = began > Lsn::ZERO && wanted.is_some_and(|time| info.window < time);
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::BlockDevice;
    use crate::settings::{AnchorPolicy, Encoding};
    use crate::testing::Site;

    const REDO: CdpSettings = CdpSettings {
        encoding: Encoding::Redo,
        compression: crate::settings::Compression::None,
        anchors: AnchorPolicy::Never,
        max_distance: None,
        retention: crate::settings::Retention { time: None, bytes: None },
    };

    /// With `redo`, everything rests on the anchor that follows a rollback: an anchor that a crash
    /// cut off is made up for.
    #[test]
    fn a_rollback_whose_anchor_is_lost() {
        let site = Site::new(63).having("v", 1 << 20, 4096);
        site.pool.set_cdp("v", Some(REDO)).unwrap();
        let then = site.put(0, 1, 512);
        site.put(0, 2, 512);
        site.pool.drain().unwrap();
        let held = site.pool.hold_all(["v"].into_iter(), &Moment::Lsn(then)).unwrap();
        site.pool
            .destager
            .submit_with(|names| {
                Ok((site.pool.roll_backs(names, &[("v", "undo".into())], &held, false)?[..1].to_vec(), None))
            })
            .unwrap();
        drop(held);

        let site = site.reopen();
        let moments: Vec<(u8, Lsn)> = (3..6).map(|byte| (byte, site.put(0, byte, 512))).collect();
        site.pool.drain().unwrap();
        for (byte, lsn) in moments {
            let past = site.pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
            let mut content = vec![0; 512];
            past.read(0, &mut content).unwrap();
            assert_eq!(content, [byte; 512], "LSN {lsn}");
        }
    }

    /// An anchor behind which recording was to begin, and did not: it is never visible, and is
    /// removed by itself.
    #[test]
    fn an_anchor_without_a_beginning() {
        let mut site = Site::new(63).having("v", 1 << 20, 4096);
        site.put(0, 1, 4096);
        for _ in 0..2 {
            let anchor = |names: &Namespace| names.anchor(names.volume("v")?, &*site.world.rng);
            site.pool.destager.submit_with(|names| Ok((vec![anchor(names)?], None))).unwrap();
            // The anchor is in the journal only, or in the catalog.
            site.pool.drain().unwrap();
            site = site.reopen();
        }
        let used = || {
            site.pool.drain().unwrap();
            while site.pool.maintain().unwrap() != crate::info::Progress::Idle {}
            site.pool.info().used
        };
        assert_eq!(site.put(0, 2, 4096), site.pool.stats().sequenced_lsn);
        assert_eq!(used(), 4096);
        assert!(site.pool.core.anchors().is_empty());
        site.pool.set_cdp("v", Some(REDO)).unwrap();
        site.pool.set_cdp("v", None).unwrap();
        site.pool.delete_volume("v", true).unwrap();
        assert_eq!(used(), 0);
    }
}
