//! Operations on snapshots and clones, carried out on the pool and on the oracle.

use crate::oracle::{Effect, Manner, SnapId, SnapshotModel, View, VolId, check_content};
use crate::perform::{Answer, check_runs};
use crate::run::{Outcome, Run, read_ranges};
use bytes::Bytes;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::pool::{Method, Order, SnapshotInfo};
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

/// Maximum number of handles of deleted snapshots that a run keeps.
const MAX_GONE: usize = 4;
/// Number of bases under one another above which the pool may refuse another one.
const DEEP: usize = 250;

impl Run {
    pub(crate) fn snapshot_model(&self, snap: SnapId) -> Outcome<&SnapshotModel> {
        self.oracle.state().snapshots.get(&snap).ok_or_else(|| format!("snapshot {snap} is gone"))
    }

    /// Returns (name of the volume, name of the snapshot).
    pub(crate) fn address(&self, snap: SnapId) -> Outcome<(String, String)> {
        let snapshot = self.snapshot_model(snap)?;
        Ok((self.volume_name(snapshot.volume)?, snapshot.name.clone()))
    }

    pub(crate) fn drop_handles(&mut self) {
        self.handles.clear();
        self.snapshot_handles.clear();
        self.gone.clear();
        self.held.clear();
        self.arriving = None;
        self.stale.clear();
    }

    /// Notes a snapshot that the pool has made, and checks its description.
    pub(crate) fn made(&mut self, info: &SnapshotInfo, id: SnapId) -> Outcome<()> {
        self.summary.snapshots += 1;
        self.snapshot_ids.insert(info.uuid, id);
        let (volume, name) = self.address(id)?;
        let size = self.snapshot_model(id)?.size;
        let pinned = info.pinned && !self.kept_history;
        if (&info.volume, &info.name, info.size, pinned) != (&volume, &name, size, false) {
            return Err(format!("{volume}@{name} of {size} bytes is told as {info:?}"));
        }
        Ok(())
    }

    pub(crate) fn create_snapshots(&mut self, wanted: &[(VolId, String)]) -> Outcome<()> {
        let first = self.next_snapshot;
        self.next_snapshot += wanted.len() as SnapId;
        let state = self.oracle.state();
        let taken = wanted.iter().any(|(vol, name)| state.has_snapshot(*vol, name));
        let twice = wanted.iter().enumerate().any(|(n, (vol, _))| wanted[..n].iter().any(|w| w.0 == *vol));
        let new: Vec<(SnapId, VolId, String)> =
            (first..).zip(wanted).map(|(id, (vol, name))| (id, *vol, name.clone())).collect();
        let names = wanted.iter().map(|(vol, name)| Ok((self.volume_name(*vol)?, name.clone())));
        let names: Vec<(String, String)> = names.collect::<Outcome<_>>()?;
        let refusals: &[ErrorKind] =
            if taken || twice { &[ErrorKind::Conflict, ErrorKind::Invalid] } else { &[] };
        let mut infos = Vec::new();
        let answer = self.control(Effect::CreateSnapshots(new.clone()), refusals, |pool| {
            let names: Vec<(&str, &str)> = names.iter().map(|(v, s)| (&v[..], &s[..])).collect();
            infos = pool.create_snapshots(&names)?;
            Ok(())
        })?;
        match answer {
            Answer::Done if taken || twice || infos.len() != new.len() => {
                Err("snapshots that can't be".into())
            }
            Answer::Done => infos.iter().zip(&new).try_for_each(|(info, (id, ..))| self.made(info, *id)),
            Answer::Refused(_) => Ok(()),
            Answer::Unknown => {
                self.unborn_snapshots = new.into_iter().map(|(id, vol, name)| (vol, name, id)).collect();
                Ok(())
            }
        }
    }

    /// Prepares for the deletion of snapshots. Their open handles stay, and must show the same
    /// content afterwards.
    pub(crate) fn part_with(&mut self, gone: impl Fn(SnapId, &SnapshotModel) -> bool) {
        let models = &self.oracle.state().snapshots;
        let parting: Vec<(SnapId, SnapshotModel)> = self
            .snapshot_handles
            .keys()
            .filter_map(|id| Some((*id, models.get(id)?)))
            .filter(|(id, model)| gone(*id, model))
            .map(|(id, model)| (id, model.clone()))
            .collect();
        for (id, model) in parting {
            if let Some(handle) = self.snapshot_handles.remove(&id)
                && self.gone.len() < MAX_GONE
            {
                self.gone.push((handle, model));
            }
        }
    }

    pub(crate) fn delete_snapshots(&mut self, snaps: &[SnapId]) -> Outcome<()> {
        let addresses: Vec<(String, String)> =
            snaps.iter().map(|snap| self.address(*snap)).collect::<Outcome<_>>()?;
        let Some((volume, _)) = addresses.first() else { return Ok(()) };
        self.part_with(|id, _| snaps.contains(&id));
        let models = &self.oracle.state().snapshots;
        let protected = snaps.iter().any(|snap| models.get(snap).is_some_and(|s| s.protected));
        let refusals: &[ErrorKind] = if protected { &[ErrorKind::Conflict] } else { &[] };
        let answer = self.control(Effect::DeleteSnapshots(snaps.to_vec()), refusals, |pool| {
            let names: Vec<&str> = addresses.iter().map(|(_, name)| &name[..]).collect();
            pool.delete_snapshots(volume, &names)
        })?;
        if let Answer::Done = answer {
            if protected {
                return Err("a protected snapshot was deleted".into());
            }
            for (volume, name) in &addresses {
                if self.pool()?.snapshot(volume, name).is_ok() {
                    return Err(format!("{volume}@{name} was deleted and is still to be seen"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn rename_snapshot(&mut self, snap: SnapId, name: &str) -> Outcome<()> {
        let (volume, old) = self.address(snap)?;
        let taken = self.oracle.state().has_snapshot(self.snapshot_model(snap)?.volume, name);
        let refusals: &[ErrorKind] = if taken { &[ErrorKind::Conflict] } else { &[] };
        let effect = Effect::RenameSnapshot(snap, name.into());
        let answer =
            self.control(effect, refusals, |pool| pool.rename_snapshot(&volume, &old, name).map(drop))?;
        match answer {
            Answer::Done if taken => Err("two snapshots with one name".into()),
            _ => Ok(()),
        }
    }

    fn is_deep(&self, snap: SnapId) -> Outcome<bool> {
        Ok(self.oracle.state().lines.depth(self.snapshot_model(snap)?.of.0) > DEEP)
    }

    pub(crate) fn clone_volume(&mut self, snap: SnapId, name: &str) -> Outcome<()> {
        let vol = self.next_vol;
        self.next_vol += 1;
        let (volume, snapshot) = self.address(snap)?;
        let taken = self.oracle.state().volumes.values().any(|v| v.name == name);
        let refusals: &[ErrorKind] = if taken || self.is_deep(snap)? { &[ErrorKind::Conflict] } else { &[] };
        let mut made = None;
        let answer = self.control(Effect::Clone(vol, snap, name.into()), refusals, |pool| {
            made = Some(pool.clone_volume(&volume, &snapshot, name)?);
            Ok(())
        })?;
        match (answer, made) {
            (Answer::Done, Some(info)) if !taken => {
                self.summary.clones += 1;
                self.ids.insert(info.uuid, vol);
                let told = self.pool()?.snapshot(&volume, &snapshot).is_ok_and(|s| s.pinned);
                if info.allocated != 0 || !told {
                    return Err(format!("a new clone, its origin pinned: {told}, is told as {info:?}"));
                }
                Ok(())
            }
            (Answer::Done, _) => Err("two volumes with one name".into()),
            (Answer::Unknown, _) => {
                self.unborn = Some(vol);
                Ok(())
            }
            (Answer::Refused(_), _) => Ok(()),
        }
    }

    pub(crate) fn roll_back(&mut self, snap: SnapId, undo: &str, force: bool) -> Outcome<()> {
        let undo_id = self.next_snapshot;
        self.next_snapshot += 1;
        let vol = self.snapshot_model(snap)?.volume;
        let (volume, snapshot) = self.address(snap)?;
        let open = self.in_use(vol);
        let taken = self.oracle.state().has_snapshot(vol, undo);
        let busy = open && !force;
        let refusals: &[ErrorKind] = match (busy, taken || self.is_deep(snap)?) {
            (true, _) => &[ErrorKind::Busy],
            (_, true) => &[ErrorKind::Conflict],
            _ => &[],
        };
        self.may_anchor(vol);
        let mut made = None;
        let effect = Effect::RollBack(vol, snap, undo_id, undo.into());
        let answer = self.control(effect, refusals, |pool| {
            made = Some(pool.roll_back(&volume, &snapshot, undo, force)?);
            Ok(())
        })?;
        match (answer, made) {
            (Answer::Done, Some(info)) if !busy && !taken => {
                self.summary.clones += 1;
                self.made(&info, undo_id)?;
                let handle = self.handles.remove(&vol);
                handle.map_or(Ok(()), |handle| self.check_cut_off(&handle))
            }
            (Answer::Done, _) => Err("a rollback that should have been refused".into()),
            (Answer::Unknown, _) => {
                self.unborn_snapshots = vec![(vol, undo.into(), undo_id)];
                self.handles.remove(&vol);
                Ok(())
            }
            (Answer::Refused(_), _) => Ok(()),
        }
    }

    /// Checks that a handle stopped working at a rollback. Data never changes under a client that
    /// does not know of the rollback.
    pub(crate) fn check_cut_off(&self, handle: &Volume) -> Outcome<()> {
        let block = handle.info().block_size as usize;
        let mut writes = [WriteOp::new(0, Bytes::from(vec![1; block]))];
        handle.write(&mut writes, false);
        let [write] = writes;
        let mut buf = vec![0; block];
        let answers = [
            write.result,
            handle.read(0, &mut buf),
            handle.discard(0, block as u64, false),
            handle.try_read(0, &mut buf).map(drop),
            handle.block_status(0, block as u64, 1).map(drop),
        ];
        // A read-only volume refuses writes because it is read-only.
        let cut_off = |answer: &Result<(), hindcast_engine::Error>| {
            answer.as_ref().is_err_and(|e| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ReadOnly))
        };
        if answers.iter().all(cut_off) || self.dir.crashed() {
            return Ok(());
        }
        Err(format!("a handle of what was rolled back answers {answers:?}"))
    }

    pub(crate) fn set_method(&mut self, vol: VolId, method: Method) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let said = Manner { method: Some(method), ..Manner::default() };
        self.control(Effect::Manner(vol, said), &[], |pool| pool.set_method(&name, method).map(drop))
            .map(drop)
    }

    pub(crate) fn set_order(&mut self, vol: VolId, order: Order) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        self.independent |= order == Order::Independent;
        let said = Manner { order: Some(order), ..Manner::default() };
        self.control(Effect::Manner(vol, said), &[], |pool| pool.set_order(&name, order).map(drop)).map(drop)
    }

    /// Relocates a volume. No content that a volume or snapshot shows changes, and no space is
    /// lost.
    pub(crate) fn relocate(&mut self, vol: VolId) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let result = self.pool()?.relocate_volume(&name, 0);
        self.sort(result, &[]).map(drop)
    }

    /// Returns a handle of a snapshot, or `None` if it can't be opened because of a planned fault
    /// or a crash.
    fn snapshot_handle(&mut self, snap: SnapId) -> Outcome<Option<Arc<Volume>>> {
        if let Some(handle) = self.snapshot_handles.get(&snap) {
            return Ok(Some(handle.clone()));
        }
        let (volume, name) = self.address(snap)?;
        match self.pool()?.open_snapshot(&volume, &name) {
            Ok(handle) => {
                self.snapshot_handles.insert(snap, handle.clone());
                Ok(Some(handle))
            }
            Err(_) if self.faults || self.dir.crashed() => Ok(None),
            Err(e) => Err(format!("open {volume}@{name}: {e:?}")),
        }
    }

    pub(crate) fn read_snapshot(
        &mut self,
        snap: SnapId,
        offset: u64,
        len: u64,
        try_first: bool,
    ) -> Outcome<()> {
        let Some(handle) = self.snapshot_handle(snap)? else {
            return Ok(());
        };
        let mut data = vec![0xEE; len as usize];
        let ready = if try_first { handle.try_read(offset, &mut data) } else { Ok(false) };
        let result = match ready {
            Ok(false) => handle.read(offset, &mut data),
            other => other.map(drop),
        };
        match self.sort(result, &[])? {
            Answer::Done => self.oracle.check_read(View::Snapshot(snap), offset, &data),
            Answer::Refused(_) => self.may_be_unreadable(View::Snapshot(snap), offset, len),
            Answer::Unknown => Ok(()),
        }
    }

    pub(crate) fn status_snapshot(
        &mut self,
        snap: SnapId,
        offset: u64,
        len: u64,
        max_runs: usize,
    ) -> Outcome<()> {
        let Some(handle) = self.snapshot_handle(snap)? else {
            return Ok(());
        };
        let runs = match handle.block_status(offset, len, max_runs) {
            Ok(runs) => runs,
            Err(e) => return self.sort(Err(e), &[]).map(drop),
        };
        let snapshot = self.snapshot_model(snap)?;
        check_runs(&runs, (offset, len), max_runs, Some(&snapshot.content), snapshot.chunk_size)
    }

    /// Checks that requests that write to a snapshot are refused, and reads past its end.
    pub(crate) fn misuse_snapshot(&mut self, snap: SnapId) -> Outcome<()> {
        let Some(handle) = self.snapshot_handle(snap)? else {
            return Ok(());
        };
        let (size, block) = (self.snapshot_model(snap)?.size, u64::from(handle.info().block_size));
        let mut writes = [WriteOp::new(0, Bytes::from(vec![7; block as usize]))];
        handle.write(&mut writes, false);
        let [write] = writes;
        let answers = [
            (write.result, ErrorKind::ReadOnly),
            (handle.discard(0, block, false), ErrorKind::ReadOnly),
            (handle.write_zeroes(0, block, true, false), ErrorKind::ReadOnly),
            (handle.read(size, &mut vec![0; block as usize]), ErrorKind::OutOfRange),
        ];
        for (answer, expected) in answers {
            let kind = answer.err().map(|e| e.kind());
            if kind != Some(expected) && !self.dir.crashed() && !self.faults {
                return Err(format!("a misused snapshot answers {kind:?} instead of {expected:?}"));
            }
        }
        if !handle.info().read_only {
            return Err("a snapshot that is not read-only".into());
        }
        self.oracle.acknowledge(&[], self.pool()?.stats().sequenced_lsn.0)
    }

    /// Checks that handles of snapshots still work after the deletion of the snapshots.
    pub(crate) fn verify_gone(&mut self) -> Outcome<()> {
        for (handle, model) in &self.gone {
            let what = format!("deleted snapshot {} of volume {}", model.name, model.volume);
            let mut ranges = self.oracle.interesting(model.volume, model.size);
            ranges.truncate(20);
            for (offset, data) in read_ranges(handle, &what, ranges, self.lost())? {
                check_content(&what, &model.content, offset, &data, |_, _| false)?;
            }
        }
        Ok(())
    }

    /// Checks that a poisoned pool serves reads of snapshots, too.
    pub(crate) fn read_poisoned_snapshots(&mut self) -> Outcome<()> {
        let snapshots: Vec<(SnapId, VolId)> =
            self.oracle.state().snapshots.iter().map(|(id, s)| (*id, s.volume)).take(4).collect();
        for (snap, vol) in snapshots {
            // A volume in the trash has no address.
            let in_trash = self.oracle.state().volumes.get(&vol).is_some_and(|volume| volume.trashed);
            if in_trash || self.oracle.doubtful_snapshots(vol) {
                continue;
            }
            let size = self.snapshot_model(snap)?.size;
            let (volume, name) = self.address(snap)?;
            let handle = self.pool()?.open_snapshot(&volume, &name);
            let handle = handle.map_err(|e| format!("open {volume}@{name} of a poisoned pool: {e:?}"))?;
            let mut ranges = self.oracle.interesting(vol, size);
            ranges.truncate(4);
            for (offset, data) in read_ranges(&handle, &name, ranges, self.lost())? {
                self.oracle.check_read(View::Snapshot(snap), offset, &data)?;
            }
        }
        Ok(())
    }

    /// Checks the space in use. When nothing is pending, no line owns more than what volumes and
    /// snapshots show of it.
    pub(crate) fn check_space(&mut self) -> Outcome<()> {
        let pending = self.faults
            || self.failing
            || self.dir.crashed()
            || self.poisoned()
            || self.oracle.doubtful_space();
        // Hidden anchors keep space that the model does not know of.
        if pending || !self.gone.is_empty() || self.kept_history {
            return Ok(());
        }
        let pool = self.pool()?;
        let stats = pool.stats();
        if stats.destaged_lsn < stats.sequenced_lsn {
            return Ok(());
        }
        let (info, unit) = (pool.info(), self.plan.config.atomic_unit);
        let state = self.oracle.state();
        let most = state.lines.total_bytes(unit, !self.independent, self.filled);
        // Extents of a physical volume that is being drained do not count as used.
        if info.used > most + stats.bad_bytes {
            return Err(format!("{} bytes are used, {most} at most are needed", info.used));
        }
        for (vol, volume) in &state.volumes {
            let allocated = pool.volume(&volume.name).map_err(|e| format!("volume {vol}: {e:?}"))?.allocated;
            let most = state.lines.bytes(volume.line, unit, !self.independent, self.filled);
            if allocated > most {
                return Err(format!(
                    "volume {vol} ({}): {allocated} bytes are allocated, {most} at most are needed",
                    volume.name
                ));
            }
        }
        Ok(())
    }
}
