//! Finds the moments that users name.

use super::Pool;
use crate::branch::pinned::PinnedMoment;
use crate::branch::{Base, Branch, View, VolumeState};
use crate::catalog::LineRecord;
use crate::cdp::moment::history::anchors_of;
use crate::cdp::moment::{By, moment_uuid, yet_to_come};
use crate::error::{Result, not_found};
use crate::ids::{BranchId, Epoch, Lsn, Stamp, VolumeId};
use crate::info::Origin;
use crate::info::history::{Moment, Point};
use crate::volume::Volume;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Pool {
    /// Finds a moment of a volume's past: see [`Moment`]. Returns [`crate::ErrorKind::Invalid`] for
    /// a moment in the future, and [`crate::ErrorKind::NotFound`] for one that was not recorded, or
    /// has expired.
    pub fn resolve(&self, volume: &str, moment: &Moment) -> Result<Point> {
        self.core.check_histories()?;
        let id = self.core.names.read().volume(volume)?.id;
        let by = self.wanted(volume, id, moment)?;
        let unsettled = self.core.last_unsettled(id, by)?;
        if unsettled.is_none() {
            // Everything that was sequenced by then is carried out first, since that records it.
            match by {
                By::Lsn(lsn) => self.destager.record_until(lsn)?,
                By::Time(time) => self.destager.record_until_time(time)?,
            }
        }
        let (branch, found) = self.look_up(volume, id, by)?;
        let found = unsettled.flatten().map_or(found, |last| last.max(found));
        let lsn = if let By::Lsn(lsn) = by { lsn } else { found.lsn };
        // No crash takes back a moment that was named, so its number never means another one.
        self.core.journal.sync_to(lsn)?;
        let log = branch.cdp.log.read();
        if lsn < log.floor() {
            return Err(not_found(format!(
                "go back to LSN {lsn} of volume {volume}: its history begins at LSN {} now",
                log.floor()
            )));
        }
        if log.recording_since(lsn).is_none() {
            return Err(not_found(format!(
                "go back to LSN {lsn} of volume {volume}: it had no history then"
            )));
        }
        Ok(Point { lsn, time: self.core.clock.wall(found.time), branch: branch.id, size: log.size_at(lsn) })
    }

    fn wanted(&self, volume: &str, id: VolumeId, moment: &Moment) -> Result<By> {
        let by = match moment {
            Moment::Lsn(lsn) | Moment::FlushUpTo(lsn) => By::Lsn(*lsn),
            Moment::PoolTime(time) | Moment::FlushBeforePoolTime(time) => By::Time(*time),
            Moment::Time(wall) | Moment::FlushBefore(wall) => {
                let time = self.core.pool_time(*wall);
                By::Time(time.ok_or_else(|| yet_to_come(format_args!(" of volume {volume}")))?)
            }
            Moment::Mark(name) => {
                let lsn = self.core.names.read().marks.get(id, name).map(|at| at.lsn);
                By::Lsn(lsn.ok_or_else(|| {
                    not_found(format!("find the mark {name:?} of volume {volume}: it does not exist"))
                })?)
            }
        };
        let future = match by {
            By::Lsn(lsn) => lsn > self.core.journal.last().lsn,
            By::Time(time) => time > self.core.now(),
        };
        if future {
            return Err(yet_to_come(format_args!(" of volume {volume}")));
        }
        match moment {
            Moment::FlushBefore(_) | Moment::FlushUpTo(_) | Moment::FlushBeforePoolTime(_) => {
                let flush = self.core.last_flush(id, |point| by.reaches(*point))?;
                Ok(By::Lsn(flush.map(|point| point.lsn).ok_or_else(|| {
                    not_found(format!(
                        "find a flush of volume {volume} at or before that moment: none is known"
                    ))
                })?))
            }
            _ => Ok(by),
        }
    }

    /// Returns the moment with a time of the wall clock converted to pool time. Other moments stay
    /// as they are.
    pub(super) fn by_pool_time(&self, moment: &Moment) -> Result<Moment> {
        let find = |wall| self.core.pool_time(wall).ok_or_else(|| yet_to_come(format_args!("")));
        Ok(match moment {
            Moment::Time(wall) => Moment::PoolTime(find(*wall)?),
            Moment::FlushBefore(wall) => Moment::FlushBeforePoolTime(find(*wall)?),
            moment => moment.clone(),
        })
    }

    /// Returns whether a volume has a mark of this name.
    pub fn has_mark(&self, volume: &str, name: &str) -> Result<bool> {
        let names = self.core.names.read();
        Ok(names.marks.get(names.volume(volume)?.id, name).is_some())
    }

    /// Returns the names of a volume's snapshots and marks.
    pub fn past_names(&self, volume: &str) -> Result<Vec<String>> {
        let names = self.core.names.read();
        let id = names.volume(volume)?.id;
        let marks = names.marks.of(id).map(|(mark, _)| mark.to_string());
        let snapshots = names.snapshots_of(id).into_iter().map(|s| s.state.name.read().clone());
        Ok(snapshots.chain(marks).collect())
    }

    /// Returns the moment of a snapshot, as LSN. Returns [`crate::ErrorKind::NotFound`] if the
    /// volume's history does not have it: CDP was off when the snapshot was taken, or that part of
    /// the history has expired.
    pub fn moment_of_snapshot(&self, volume: &str, snapshot: &str) -> Result<Lsn> {
        let (id, frozen) = {
            let names = self.core.names.read();
            let volume = names.volume(volume)?;
            (volume.id, names.snapshot(volume, snapshot)?.clone())
        };
        let branch = &frozen.state.line.branch;
        let anchor = || branch.cdp.log.read().anchor(frozen.id);
        let mut found = anchor();
        if found.is_none() {
            // The snapshot's record may not be carried out yet.
            self.destager.record_until(self.core.journal.last().lsn)?;
            found = anchor();
        }
        let lsn = found.ok_or_else(|| {
            not_found(format!(
                "go back to the moment of snapshot {volume}@{snapshot}: the volume's history does not have it"
            ))
        })?;
        // The snapshot of a rollback keeps what was before it. From the rollback's place in the
        // order on, the volume has another content.
        let lines = self.core.lines.read();
        let line = lines.get(&id).and_then(|of_volume| of_volume.get(&lsn));
        let left = matches!(line, Some(LineRecord::Branch { branch: to, .. }) if *to != branch.id);
        Ok(if left { lsn.prev() } else { lsn })
    }

    /// Returns the branch that a volume wrote to at a moment, and the last record there by then.
    fn look_up(&self, volume: &str, id: VolumeId, by: By) -> Result<(Arc<Branch>, Stamp)> {
        let line = {
            let lines = self.core.lines.read();
            let of_volume = lines.get(&id).into_iter().flatten();
            let spans = of_volume.filter_map(|(lsn, line)| match line {
                LineRecord::Branch { branch, time } => Some((*branch, Stamp::new(*lsn, *time))),
                LineRecord::Mark { .. } => None,
            });
            spans.filter(|(_, stamp)| by.reaches(*stamp)).max_by_key(|(_, stamp)| stamp.lsn)
        };
        let unknown = || not_found(format!("go back in volume {volume}: it had no history then"));
        let (branch, began) = line.ok_or_else(unknown)?;
        let branch = self.core.names.read().branches.get(&branch).cloned().ok_or_else(unknown)?;
        let last = branch.last_recorded(by)?.map_or(began, |recorded| recorded.max(began));
        Ok((branch, last))
    }

    /// Describes, for users, a moment that something rests on.
    pub(crate) fn moment_origin(&self, at: &PinnedMoment) -> Origin {
        let (branch, lsn) = at.place();
        let began = {
            let lines = self.core.lines.read();
            let all = lines.iter().flat_map(|(volume, lines)| lines.iter().map(move |line| (*volume, line)));
            let of_branch = all.filter_map(|(volume, (from, line))| match line {
                LineRecord::Branch { branch: of, time } if *of == branch && *from <= lsn => {
                    Some((Stamp::new(*from, *time), volume))
                }
                _ => None,
            });
            of_branch.max()
        };
        let name = |id| Some(self.core.names.read().volume_by_id(id)?.name.read().clone());
        let volume = began.and_then(|(_, volume)| name(volume)).unwrap_or_default();
        let recorded = at.branch.last_recorded(By::Lsn(lsn));
        let time = recorded.ok().map(|found| found.max(began.map(|(from, _)| from)));
        Origin::Moment { volume, lsn, time: time.flatten().map(|stamp| self.core.clock.wall(stamp.time)) }
    }

    /// Returns the newest visible snapshot of a branch's history at or before an LSN, as far as the
    /// history is carried out: (name of its volume, its own name).
    pub fn newest_snapshot_at(&self, branch: BranchId, lsn: Lsn) -> Option<(String, String)> {
        let branch = self.core.names.read().branches.get(&branch)?.clone();
        let mut anchors = anchors_of(&branch.cdp.log.read());
        anchors.retain(|(at, _)| at.lsn <= lsn);
        anchors.sort_by_key(|(at, _)| std::cmp::Reverse(at.lsn));
        let names = self.core.names.read();
        anchors.iter().find_map(|(_, id)| {
            let snapshot = names.snapshots.get(id).filter(|snapshot| names.is_in_sight(snapshot))?;
            let volume = names.volume_by_id(snapshot.volume).filter(|volume| volume.trashed == 0)?;
            Some((volume.name.read().clone(), snapshot.state.name.read().clone()))
        })
    }

    /// Returns the branches that rest on a moment: those of volumes that were recovered, or taken
    /// back. Each comes with the LSN and with the name of the volume whose history it is, if that
    /// volume still exists.
    pub fn moment_bases(&self) -> BTreeMap<BranchId, (Option<String>, Lsn)> {
        let owners: BTreeMap<BranchId, VolumeId> = {
            let lines = self.core.lines.read();
            let all =
                lines.iter().flat_map(|(volume, lines)| lines.values().map(move |line| (line, *volume)));
            let of_branch = all.filter_map(|(line, volume)| match line {
                LineRecord::Branch { branch, .. } => Some((*branch, volume)),
                LineRecord::Mark { .. } => None,
            });
            of_branch.collect()
        };
        let names = self.core.names.read();
        let base = |(id, branch): (&BranchId, &Arc<Branch>)| {
            let Some(Base::View(line)) = branch.base() else { return None };
            let (of, lsn) = line.at?.place();
            let volume = owners.get(&of).and_then(|volume| names.volume_by_id(*volume));
            Some((*id, (volume.map(|v| v.name.read().clone()), lsn)))
        };
        names.branches.iter().filter_map(base).collect()
    }

    /// Opens a volume as it was at a moment, read-only. While the handle is held, nothing of that
    /// moment expires.
    pub fn open_moment(self: &Arc<Self>, volume: &str, moment: &Moment) -> Result<Arc<Volume>> {
        let (state, line, point) = self.hold_as(volume, moment, false)?;
        let of = (moment_uuid(&state.uuid, point.lsn), state.block_size, point.time);
        let view = VolumeState::frozen(state.id, of, line, format!("{volume}@lsn-{}", point.lsn), point.size);
        Ok(Arc::new(Volume::new(self.destager.clone(), Arc::new(view), true, false)))
    }

    /// Finds a moment and keeps it from expiring. Everything up to it is carried out.
    pub(crate) fn hold(&self, volume: &str, moment: &Moment) -> Result<(Arc<VolumeState>, View, Point)> {
        self.hold_as(volume, moment, true)
    }

    /// Finds a moment and keeps it from expiring. With `settle` everything up to it is carried out.
    /// Otherwise it may be read from what waits in the journal.
    fn hold_as(
        &self,
        volume: &str,
        moment: &Moment,
        settle: bool,
    ) -> Result<(Arc<VolumeState>, View, Point)> {
        let state = self.core.names.read().volume(volume)?.clone();
        let point = self.resolve(volume, moment)?;
        let branch = self.core.names.read().branches.get(&point.branch).cloned();
        let branch = branch.ok_or_else(|| not_found("go back to a moment: it has just expired"))?;
        let unsettled = if settle { None } else { self.core.pin_unsettled(&branch, point.lsn) };
        let at = match unsettled {
            Some(at) => at,
            None => {
                self.destager.record_until(point.lsn)?;
                PinnedMoment::new(&branch, point.lsn)
            }
        };
        if !at.kept || branch.cdp.log.read().floor() > point.lsn {
            return Err(not_found("go back to a moment: it has just expired"));
        }
        Ok((state, View { branch, epoch: Epoch::NONE, at: Some(at) }, point))
    }
}
