//! Expiry: a history that is too old or too large loses its beginning, and the history of a deleted
//! volume is dropped.
//!
//! The removal is committed first; then the files lose their names. Anchors that nothing needs any
//! more are snapshots like others. A snapshot that users can still see stays, and the rest is
//! dissolved.

use crate::branch::{Branch, VolumeState};
use crate::catalog::{Event, LineRecord, SegmentRecord};
use crate::cdp::log::Listed;
use crate::cdp::log::segment::LogFile;
use crate::cdp::moment::flushes::ROWS_PER_STEP;
use crate::cdp::moment::spans::RecordedSpan;
use crate::core::Core;
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::error::Result;
use crate::ids::{BranchId, Lsn, SnapshotId, Stamp, VolumeId};
use crate::settings::{CdpSettings, Encoding, Retention};
use crate::shortage::Task;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of histories whose beginnings expire with one commit.
const RAISES: usize = 64;
/// Retention removes at least this part of what a history keeps at once. Runs are short, and a
/// commit for each run would be expensive.
const SPARED: u64 = 64;

/// The requirements of a volume's retention.
struct Due {
    /// The recorded stretches of the volume, oldest first.
    stretches: Vec<RecordedSpan>,
    /// The pool time before which history may expire.
    cutoff: Option<u64>,
    /// Time for which history is kept, in nanoseconds; 0 means that no history expires by time.
    time: u64,
    /// Number of bytes by which the history exceeds its limit.
    excess: u64,
    /// The limit in bytes; 0 means no limit.
    most: u64,
}

/// A new beginning for a branch's history: what it recorded before an LSN is removed.
struct Raise {
    branch: Arc<Branch>,
    floor: Stamp,
    segments: Vec<Listed>,
    events: Vec<Lsn>,
    anchors: Vec<SnapshotId>,
}

impl Due {
    /// Returns the stretches that are expired as a whole.
    fn expired(&self) -> impl Iterator<Item = (&RecordedSpan, Lsn)> {
        let is_old = |time: u64| self.cutoff.is_some_and(|cutoff| time <= cutoff);
        // An excess of bytes never removes the newest stretch, which only loses its beginning.
        let in_the_way = self.excess > 0 && self.stretches.len() > 1;
        self.stretches.iter().enumerate().filter_map(move |(n, stretch)| {
            let Stamp { lsn, time } = stretch.until?;
            (is_old(time) || stretch.outlived || in_the_way && n == 0).then_some((stretch, lsn))
        })
    }

    /// Returns the new beginning of the first stretch that can lose a part. Later steps handle
    /// other stretches.
    fn raises(&self) -> Option<Raise> {
        // Expired stretches that something rests on stay for a while. Their bytes do not make
        // younger stretches expire.
        let held: u64 = self.expired().map(|(s, _)| s.branch.cdp.log.read().held()).sum();
        self.stretches.iter().enumerate().find_map(|(n, stretch)| {
            let excess = if n == 0 { self.excess } else { self.excess.saturating_sub(held) };
            // More than the excess is removed, so that not each batch needs a commit.
            let excess = (excess > 0).then(|| excess.max(self.most / SPARED));
            let floor = stretch.branch.cdp.new_floor(self, excess)?;
            stretch.branch.cdp.may_forget(floor.lsn).then(|| Raise::new(&stretch.branch, floor))
        })
    }
}

impl Raise {
    fn new(branch: &Arc<Branch>, floor: Stamp) -> Raise {
        let log = branch.cdp.log.read();
        let gone = |s: &Listed| s.record.lsns.1 <= floor.lsn;
        let segments = log.all_segments().into_iter().filter(gone).collect();
        let events = log.events_before(floor.lsn);
        let anchors = events.iter().filter_map(|at| log.anchor_at(*at)).collect();
        Raise { branch: branch.clone(), floor, segments, events, anchors }
    }

    fn floor(&self) -> Event {
        Event::Floor { lsn: self.floor.lsn, time: self.floor.time }
    }
}

impl Destager {
    /// Takes a step of expiry. False when nothing has expired.
    pub(crate) fn forget_history(&self, state: &mut BackgroundState) -> Result<bool> {
        let forgot = self.forget_begun(state).and_then(|forgot| {
            Ok(forgot
                || self.end_histories(state)?
                || self.enforce_retention(state)?
                || self.forget_flushes(state)?)
        });
        forgot.map_err(|e| self.failed(state, Task::Upkeep, e))
    }

    /// Removes an anchor behind which recording was to begin and, because of a crash, did not.
    fn forget_begun(&self, state: &mut BackgroundState) -> Result<bool> {
        // The records that follow the anchor were sequenced with it, so they come next.
        let (destaged, names) = (state.destaged, self.core.names.read());
        let of = |lsn: Lsn, id: &BranchId| {
            names.branches.get(id).filter(|b| b.cdp.log.read().begun() == Some(lsn)).cloned()
        };
        state.unconfirmed_anchors.retain(|lsn, id| *lsn >= destaged || of(*lsn, id).is_some());
        let begun = state
            .unconfirmed_anchors
            .range(..destaged)
            .next()
            .and_then(|(lsn, id)| Some((*lsn, of(*lsn, id)?)));
        drop(names);
        let Some((lsn, branch)) = begun else { return Ok(false) };
        let anchors = branch.cdp.log.read().anchor_at(lsn).into_iter().collect();
        let mut txn = self.core.catalog.begin()?;
        txn.remove_cdp_event(branch.id, lsn)?;
        self.commit_aside(state, txn, &[])?;
        state.unconfirmed_anchors.remove(&lsn);
        branch.cdp.change(|log| log.remove_event(lsn));
        // Recording may have been tried more than once.
        state.unconfirmed_anchors.extend(branch.cdp.log.read().begun().map(|older| (older, branch.id)));
        self.let_go(state, &branch, anchors)?;
        Ok(true)
    }

    /// Drops the part of a deleted volume's history that nothing rests on. A volume that was rolled
    /// back rests on itself, so its history is dropped piece by piece.
    fn end_histories(&self, state: &mut BackgroundState) -> Result<bool> {
        let ended: Vec<VolumeId> = state.deleted_with_history.iter().copied().collect();
        for volume in ended {
            let stretches = self.core.stretches(volume);
            if let Some(free) = stretches.iter().find(|s| s.branch.cdp.may_forget(Lsn::MAX)) {
                self.forget_branch(state, &free.branch)?;
                return Ok(true);
            }
            if stretches.is_empty() {
                let lines =
                    self.core.lines.read().get(&volume).into_iter().flatten().map(|(lsn, _)| *lsn).collect();
                self.drop_lines(state, volume, lines)?;
                state.deleted_with_history.remove(&volume);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes lines of a volume, and its marks, with these LSNs.
    fn drop_lines(&self, state: &mut BackgroundState, volume: VolumeId, lsns: Vec<Lsn>) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        lsns.iter().try_for_each(|lsn| txn.remove_cdp_line(volume, *lsn))?;
        self.commit_aside(state, txn, &[])?;
        let mut lines = self.core.lines.write();
        if let Some(of_volume) = lines.get_mut(&volume) {
            of_volume.retain(|lsn, _| !lsns.contains(lsn));
            if of_volume.is_empty() {
                lines.remove(&volume);
            }
        }
        Ok(())
    }

    /// Moves the beginnings of histories as their retention requires, of up to [`RAISES`] with one
    /// commit.
    fn enforce_retention(&self, background: &mut BackgroundState) -> Result<bool> {
        background.pinned_expired.clear();
        let mut raises = Vec::new();
        let mut volumes = self.core.with_history();
        // The volumes behind the last one come first. So each volume has its turn when more expires
        // than the steps can remove.
        volumes.sort_unstable_by_key(|state| (state.id <= background.forgot_of, state.id));
        for state in volumes {
            let empty = self.core.empty_lines(state.id);
            let due = self.core.due(state.id);
            let alone = !empty.is_empty() || due.expired().next().is_some();
            if !raises.is_empty() && (alone || raises.len() >= RAISES) {
                break;
            }
            background.forgot_of = state.id;
            if !empty.is_empty() {
                self.drop_lines(background, state.id, empty)?;
                return Ok(true);
            }
            if let Some((stretch, _)) = due.expired().find(|(s, until)| s.branch.cdp.may_forget(*until)) {
                self.forget_branch(background, &stretch.branch)?;
                return Ok(true);
            }
            background.pinned_expired.extend(due.expired().map(|(stretch, _)| stretch.branch.id));
            // A stretch that something rests on stays, and loses no more than its beginning.
            raises.extend(due.raises());
        }
        if raises.is_empty() { Ok(false) } else { self.raise_floors(background, raises).map(|()| true) }
    }

    /// Removes everything that a branch has recorded.
    fn forget_branch(&self, state: &mut BackgroundState, branch: &Arc<Branch>) -> Result<()> {
        let (segments, events, anchors) = {
            let log = branch.cdp.log.read();
            let events: Vec<Lsn> = log.events.keys().copied().collect();
            (log.all_segments(), events, log.anchors().collect::<Vec<SnapshotId>>())
        };
        let mut txn = self.core.catalog.begin()?;
        segments.iter().try_for_each(|listed| listed.remove(&mut txn, branch.id))?;
        events.iter().try_for_each(|lsn| txn.remove_cdp_event(branch.id, *lsn))?;
        self.core.damage.forget_gaps(branch.id, Lsn::MAX);
        self.commit_aside(state, txn, &[])?;
        self.core.space.adjust_log(-(branch.cdp.log.read().closing_room() as i64));
        let mut gone = Default::default();
        branch.cdp.change(|log| gone = log.clear());
        self.core.shared.let_go(&gone.0);
        gone.1.iter().for_each(LogFile::remove_unused);
        state.marks_expire = true;
        self.let_go(state, branch, anchors)
    }

    /// Removes the beginnings of histories.
    fn raise_floors(&self, state: &mut BackgroundState, raises: Vec<Raise>) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        for raise in &raises {
            let branch = raise.branch.id;
            raise.segments.iter().try_for_each(|listed| listed.remove(&mut txn, branch))?;
            raise.events.iter().try_for_each(|at| txn.remove_cdp_event(branch, *at))?;
            txn.put_cdp_event(branch, Event::FLOOR_AT, &raise.floor())?;
        }
        raises.iter().for_each(|raise| self.core.damage.forget_gaps(raise.branch.id, raise.floor.lsn));
        self.commit_aside(state, txn, &[])?;
        state.marks_expire = true;
        tracing::debug!(branches = raises.len(), "the oldest parts of histories have expired");
        for raise in &raises {
            let Raise { branch, segments, events, .. } = raise;
            let (mut gone, mut open, mut closing) = (Vec::new(), None, 0);
            branch.cdp.change(|log| {
                for listed in segments {
                    if log.is_open(listed.seq) {
                        closing = log.closing_room();
                        open = log.open.take();
                    }
                    gone.extend(log.remove_sealed(listed.seq));
                }
                events.iter().for_each(|at| log.remove_event(*at));
                log.put_event(Event::FLOOR_AT, raise.floor());
            });
            self.core.shared.let_go(&gone);
            self.core.space.adjust_log(-(closing as i64));
            open.iter().for_each(|open| open.file.remove_unused());
        }
        raises.into_iter().try_for_each(|raise| self.let_go(state, &raise.branch, raise.anchors))
    }

    /// Marks, after the commit, anchors out of sight to be dissolved.
    fn let_go(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        anchors: Vec<SnapshotId>,
    ) -> Result<()> {
        for id in anchors {
            // A deletion that is only sequenced may still be lost. It counts when it is carried
            // out.
            if self.core.catalog.snapshot(id)?.is_some_and(|s| s.deleted) {
                state.deleted.insert(id);
            }
        }
        // The branch is read from the catalog, as carried out. A deletion that is only sequenced
        // may still be lost, and writes to the volume come before it.
        if self.core.catalog.branch(branch.id)?.is_some_and(|b| b.dead) {
            // The branch may have been trimmed before. What its anchors kept has to be checked
            // again.
            state.orphan_branches.entry(branch.id).or_insert(0);
        }
        Ok(())
    }
}

impl Core {
    /// Returns the oldest lines of a volume whose branches have nothing any more. Younger ones
    /// stay: without them, their moments would seem to belong to the line before.
    fn empty_lines(&self, volume: VolumeId) -> Vec<Lsn> {
        let lines = self.lines.read();
        let names = self.names.read();
        let is_empty =
            |id: &BranchId| names.branches.get(id).is_none_or(|b| b.cdp.log.read().events.is_empty());
        let branches = lines.get(&volume).into_iter().flatten().filter_map(|(lsn, line)| match line {
            LineRecord::Branch { branch, .. } => Some((lsn, branch)),
            LineRecord::Mark { .. } => None,
        });
        branches.take_while(|(_, id)| is_empty(id)).map(|(lsn, _)| *lsn).collect()
    }

    /// Works out what a volume's retention requires.
    fn due(&self, volume: VolumeId) -> Due {
        let stretches = self.stretches(volume);
        // If CDP is off now, the newest settings count.
        let settings = stretches.iter().rev().find_map(|s| s.branch.cdp.log.read().last_settings());
        let Retention { time, bytes } = settings.map(|s| s.retention).unwrap_or_default();
        // Ages are pool time. While the clock is in doubt, nothing is old.
        let time = time.filter(|_| !self.clock.is_suspended());
        let cutoff = time.map(|time| self.now().saturating_sub(time));
        let held = || stretches.iter().map(|s| s.branch.cdp.log.read().held()).sum::<u64>();
        let excess = bytes.map_or(0, |most| held().saturating_sub(most));
        Due { stretches, cutoff, time: time.unwrap_or(0), excess, most: bytes.unwrap_or(0) }
    }

    /// Returns the volumes that have, or had, a history.
    fn with_history(&self) -> Vec<Arc<VolumeState>> {
        let lines = self.lines.read();
        let names = self.names.read();
        names.by_name.values().filter(|v| lines.contains_key(&v.id)).cloned().collect()
    }
}

/// Returns the stamp of an event that is an anchor.
fn anchor((at, event): (&Lsn, &Event)) -> Option<Stamp> {
    match event {
        Event::Anchor { time, .. } => Some(Stamp::new(*at, *time)),
        _ => None,
    }
}

impl crate::cdp::log::BranchCdp {
    /// Returns whether expiry needs a new anchor. History begins only at anchors, if the encoding
    /// is `redo`, or if records since the last anchor need it. So the last anchor may not lie too
    /// far back: half of a limit with `redo`, and a step of the retention otherwise. With a new
    /// anchor there, what is older can be removed when the limit is reached.
    pub(crate) fn needs_anchor_to_forget(&self, now: u64) -> bool {
        let log = self.log.read();
        let Some(CdpSettings { encoding, retention, .. }) = log.settings else { return false };
        let last = log.events.iter().rev().find_map(anchor).unwrap_or_default();
        // An anchor may be sequenced and not carried out yet.
        if self.anchored.load(Ordering::Relaxed) > last.time {
            return false;
        }
        let (longest, most) = if encoding == Encoding::Redo {
            // A new anchor right behind the last one lets nothing expire.
            if self.writes.load(Ordering::Relaxed) == 0 {
                return false;
            }
            (retention.time.map(|time| time / 2), retention.bytes.map(|bytes| bytes / 2))
        } else if log.segment_records().any(|r| r.kept > 0 && r.lsns.1 > last.lsn) {
            (retention.step_time(), retention.step_bytes())
        } else {
            return false;
        };
        longest.is_some_and(|longest| now.saturating_sub(last.time) > longest)
            || most.is_some_and(|most| log.held_behind(last.lsn) > most)
    }

    /// Returns where history should begin. By age, that is the newest anchor before the cutoff, or
    /// the end of a segment if records lead backward from there. With an excess of
    /// bytes, it is the first such place behind the excess.
    fn new_floor(&self, due: &Due, excess: Option<u64>) -> Option<Stamp> {
        let log = self.log.read();
        let (floor, pinned) = (log.floor(), self.oldest_pin().unwrap_or(Lsn::MAX));
        if pinned <= floor {
            return None;
        }
        let next_anchor =
            |at: Lsn| log.events.range(at.next()..).find_map(anchor).map_or(Lsn::MAX, |anchor| anchor.lsn);
        // Between the place and the next anchor, no record needs an anchor before the place.
        let needs_older = |at: Lsn| {
            let until = next_anchor(at);
            let within = |r: &SegmentRecord| r.kept > 0 && r.lsns.1 > at && r.lsns.0 < until;
            log.segment_records().any(within)
        };
        let backward =
            |at: Lsn| log.settings_at(at).is_some_and(|s| s.encoding != Encoding::Redo) && !needs_older(at);
        // The last segment, if it is open, has no final end yet.
        let behind = log.is_open_behind();
        let closed = || log.in_order().map(|(_, record)| record).filter(|r| r.sealed || behind);
        let ends = || {
            let ends = closed().map(SegmentRecord::last);
            ends.filter(|end| end.lsn > floor && end.lsn <= pinned && backward(end.lsn))
        };
        let by_time = due.cutoff.and_then(|cutoff| {
            // Times grow with LSNs.
            let anchors = log.events.range(floor.next()..=pinned).filter_map(anchor);
            let anchor = anchors.take_while(|anchor| anchor.time <= cutoff).last();
            ends().filter(|end| end.time <= cutoff).max().max(anchor)
        });
        // A single run that expires is not worth a commit.
        let worth = |floor: &Stamp| {
            let of_age = |from: Stamp| due.cutoff.map_or(0, |cutoff| cutoff.saturating_sub(from.time));
            log.begins().is_none_or(|begins| of_age(begins) >= due.time / SPARED)
                || closed().any(|record| record.start == 0 && record.lsns.1 <= floor.lsn)
        };
        let by_time = by_time.filter(worth);
        let first_end = excess.and_then(|excess| {
            let mut bytes = 0;
            let free = closed().take_while(|record| record.lsns.1 <= pinned);
            let free = free.take_while(|record| {
                let before = bytes;
                bytes += record.held();
                before < excess
            });
            free.last().map(|record| record.lsns.1)
        });
        let by_size = first_end.and_then(|end| {
            let anchor = log.events.range(end.max(floor.next())..=pinned).find_map(anchor);
            ends().filter(|stamp| stamp.lsn >= end).chain(anchor).min()
        });
        by_time.max(by_size)
    }
}

impl Destager {
    /// Takes a step of removing flush points of expired moments. False when there are none.
    pub(super) fn forget_flushes(&self, state: &mut BackgroundState) -> Result<bool> {
        let volumes: Vec<(VolumeId, Lsn)> = {
            let all = self.core.flushes.0.lock();
            all.iter().filter_map(|(volume, of)| Some((*volume, of.oldest?))).collect()
        };
        for (volume, oldest) in volumes {
            // A record that is not carried out yet may begin a history.
            let begins = self.core.begins(volume).min(state.destaged.next());
            if oldest >= begins {
                continue;
            }
            let (gone, next) = self.core.catalog.flushes_before(volume, begins, ROWS_PER_STEP)?;
            if !gone.is_empty() {
                let mut txn = self.core.catalog.begin()?;
                gone.iter().try_for_each(|key| txn.remove_flushes(volume, *key))?;
                self.commit_aside(state, txn, &[])?;
            }
            let exists = self.core.names.read().volume_by_id(volume).is_some();
            let mut all = self.core.flushes.0.lock();
            if let Some(of) = all.get_mut(&volume) {
                // The commit may have stored some flush points.
                of.oldest = if gone.is_empty() { next } else { Some(Lsn::ZERO) };
                if of.oldest.is_none() && of.waiting.is_empty() && !exists {
                    all.remove(&volume);
                }
            }
            if !gone.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
