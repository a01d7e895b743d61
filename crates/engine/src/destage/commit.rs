//! Commits of background work.
//!
//! A commit carries the positions, the allocator's changes, and all else that waits for one. After
//! it, slots and journal segments that it frees wait for their last reader.

use super::state::{Ahead, BackgroundState};
use crate::area::SlotKind;
use crate::catalog::{PassPosition, Positions, Txn};
use crate::core::Core;
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::{BranchId, Lsn};
use crate::journal::{Cursor, FIRST_RECORD};
use crate::shortage::Task;
use crate::space::allocator::CommittedChange;
use crate::space::reservations::BackingRoom;
use crate::sums::{Flushed, UNKNOWN, unit_at};
use crate::units::BLOCK;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl Core {
    /// Returns whether so much of the journal is in use that destage can't wait.
    pub(crate) fn is_pressed(&self) -> bool {
        let (used, capacity) = self.journal.usage();
        used >= capacity / 100 * self.options.destage_start_percent as u64
    }

    /// Returns whether half as much of the journal is in use as when destage can't wait.
    pub(crate) fn is_filling(&self) -> bool {
        let (used, capacity) = self.journal.usage();
        used >= capacity / 200 * u64::from(self.options.destage_start_percent)
    }

    /// Notes that the records sequenced by now hold all promises of catalog pages made by now.
    fn mark_promised_pages(&self) {
        let sequencing = self.journal.sequence();
        self.catalog_room.mark(sequencing.last_lsn());
    }

    /// Adds changes to the number of slots that snapshots keep: (branch, change).
    fn count_kept(&self, changes: impl IntoIterator<Item = (BranchId, i64)>) {
        let names = self.names.read();
        for (id, change) in changes {
            if let Some(branch) = names.branches.get(&id) {
                let kept = branch.kept.load(Ordering::Relaxed);
                branch.kept.store(kept.saturating_add_signed(change), Ordering::Relaxed);
            }
        }
    }

    /// Measures the free space of the catalog's file system, for the sizes of later commits and for
    /// the ballast. `None` if the host can't tell; the last measurement then remains valid.
    fn measure_catalog(&self) -> Option<Option<crate::disk::Backing>> {
        let data = self.catalog.backing_available().ok()?;
        if let Some(data) = &data {
            self.catalog.restore_ballast(data.available);
        }
        let (ballast, missing) = self.catalog.ballast();
        let available = data.map_or(u64::MAX, |data| data.available);
        self.catalog_room.measured(available, ballast, missing);
        Some(data)
    }

    /// Adds one journal file. The catalog counts the file before it is used. False when there are
    /// enough files.
    pub(crate) fn add_journal_file(&self, prewrite: bool) -> Result<bool> {
        self.journal.add_file(prewrite, |files| {
            let mut txn = match self.catalog.begin() {
                // Nothing was changed: a later call makes the file.
                Err(error) if error.is_shortage() => return Err(error),
                begun => begun.map_err(|e| self.fault.poison(&e))?,
            };
            let counted = txn.change_journal(|row| row.files = row.files.max(files));
            counted.and_then(|()| txn.commit()).map_err(|e| self.fault.poison(&e))
        })
    }

    /// Returns whether staging's memory is at its bound.
    pub(crate) fn staging_full(&self, last_lsn: Lsn) -> bool {
        last_lsn.since(self.positions.destaged()) > MAX_STAGED_RECORDS
    }
}

impl Destager {
    /// Commits the positions, if they have moved.
    pub(crate) fn checkpoint_now(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        self.checkpoint(state)
    }

    pub(crate) fn checkpoint(&self, state: &mut BackgroundState) -> Result<()> {
        let now =
            (state.destaged, self.core.journal.synced(), self.core.journal.start_after(state.destaged).0);
        let then = &state.committed;
        let same = now == (then.destaged_lsn, then.synced_lsn, then.journal_seq);
        let waiting = self.core.flushes.oldest_waiting().is_some() || self.core.clock.wants_commit();
        if same && !waiting && !self.core.damage.is_changed() {
            return Ok(());
        }
        self.commit_alone(state)
    }

    /// Commits the positions and every change that waits for a commit.
    pub(crate) fn commit_alone(&self, state: &mut BackgroundState) -> Result<()> {
        self.core.fault.check()?;
        let flushed = self.core.sums.flush().map_err(|e| self.failed(state, Task::Upkeep, e))?;
        let txn = self.core.catalog.begin().map_err(|e| self.failed(state, Task::Upkeep, e))?;
        self.commit(state, txn, flushed, state.current_positions(), &[])
    }

    /// Enables features whose bits are all that the catalog has of them. They are durable when this
    /// returns, and only then does the pool have them (F1).
    pub(crate) fn enable_bare(&self, features: u64) -> Result<()> {
        let state = &mut *self.state.lock();
        self.core.fault.check()?;
        let flushed = self.core.sums.flush().map_err(|e| self.failed(state, Task::Upkeep, e))?;
        let mut txn = self.core.catalog.begin().map_err(|e| self.failed(state, Task::Upkeep, e))?;
        txn.change_superblock(|superblock| superblock.features |= features)
            .map_err(|e| self.core.fault.poison(&e))?;
        self.commit(state, txn, flushed, state.current_positions(), &[])?;
        self.core.features.fetch_or(features, Ordering::Release);
        Ok(())
    }

    /// Commits work that is no record of the journal: the positions stay as they are. Work that has
    /// set many sums makes them durable before this, where a shortage of space can be waited for.
    pub(crate) fn commit_aside(
        &self,
        state: &mut BackgroundState,
        txn: Txn<'_>,
        released: &[(SlotKind, u64)],
    ) -> Result<()> {
        let flushed = self.core.sums.flush().map_err(|e| self.core.fault.poison(&e))?;
        self.commit(state, txn, flushed, state.current_positions(), released)
    }

    /// Commits `txn` with the allocator's changes and the positions (preserved, destaged). Then
    /// releases what that commit frees. `released` are reservations (kind, slots)
    /// whose records are now preserved. Data that the commit makes known, or whose journal it
    /// releases, had its sums set before `flushed` was made (S1, S2).
    pub(crate) fn commit(
        &self,
        state: &mut BackgroundState,
        mut txn: Txn<'_>,
        _: Flushed,
        (preserved, destaged): (Lsn, Lsn),
        released: &[(SlotKind, u64)],
    ) -> Result<()> {
        // An earlier holder of the allocator may have panicked with half of a plan in it.
        self.core.fault.check()?;
        self.core.mark_promised_pages();
        let (journal_seq, journal_incarnation) = self.core.journal.start_after(destaged);
        // The flush points are stored before the positions are read: what is durable is at least
        // what the flush points cover.
        let flushes = self.core.flushes.store(&mut txn).map_err(|e| self.core.fault.poison(&e))?;
        let (now, interval) = (self.core.world.clock.now(), self.core.options.stamp_interval);
        let stamps =
            self.core.stamping.store(&mut txn, now, interval).map_err(|e| self.core.fault.poison(&e))?;
        self.core.damage.store(&mut txn).map_err(|e| self.core.fault.poison(&e))?;
        let positions = Positions {
            preserved_lsn: preserved,
            destaged_lsn: destaged,
            synced_lsn: self.core.journal.synced(),
            journal_seq,
            journal_incarnation,
            time: self.core.journal.last().time,
            ..state.committed
        };
        let (clock, stretches) = self.core.clock.to_store();
        let kept = txn.kept_change();
        let scrub = (self.core.scrub.to_store(), self.core.data_scrub.to_store());
        state
            .allocator
            .persist(&mut txn)
            .and_then(|()| txn.put_positions(&positions))
            .and_then(|()| txn.put_clock(&clock, stretches.as_deref()))
            .and_then(|()| scrub.0.map_or(Ok(()), |record| txn.put_scrub(&record)))
            .and_then(|()| scrub.1.map_or(Ok(()), |record| txn.put_data_scrub(&record)))
            .and_then(|()| state.rebalancing.store(&mut txn))
            .and_then(|()| {
                let start = Self::scan_start(state, destaged, journal_seq);
                txn.change_journal(|row| (row.destaged_lsn, row.start) = (destaged, start))
            })
            .and_then(|()| txn.commit())
            .map_err(|e| self.core.fault.poison(&e))?;
        self.core.flushes.stored(flushes);
        self.core.clock.stored(&clock, stretches.as_deref());
        self.core.stamping.stored(stamps);
        self.core.count_kept(kept);
        state.committed = positions;
        state.lent.clear();
        state.destaged = state.destaged.max(destaged);
        let changed = state.allocator.committed();
        self.core.space.settle(&changed.space, released);
        self.core.catalog_room.settle(preserved);
        self.core.measure_catalog();
        if self.core.space.settle_log(preserved) {
            // Records mostly take less than the space that was promised to them.
            self.measure_backing(state);
        }
        self.retire(state, changed);
        for file in self.core.journal.release_below(positions.journal_seq) {
            state.retired_files.push(file);
        }
        self.core.positions.committed(preserved, destaged);
        // Retired slots may still be in the map cache and in staging. Nothing is polled before the
        // caller has published and unstaged, and thereby turned away every new reader.
        Ok(())
    }

    /// Retires the slots that a commit has freed, or that it made bad.
    fn retire(&self, state: &mut BackgroundState, changed: CommittedChange) {
        self.core.repairs.bad_bytes.store(state.allocator.bad_bytes(), Ordering::Relaxed);
        changed.freed.into_iter().for_each(|slot| state.retired_slots.push(slot));
        changed.bad.into_iter().for_each(|slot| state.retired_bad.push(slot));
    }

    /// Returns whether freed space is on its way back, and only readers or steps of freeing delay
    /// its reuse.
    pub(crate) fn is_returning(&self, state: &BackgroundState) -> bool {
        let names = self.core.names.read();
        let pinned = |id: &BranchId| names.branches.get(id).is_some_and(|b| b.cdp.oldest_pin().is_some());
        !state.retired_slots.is_empty() || state.orphan_branches.keys().any(|id| !pinned(id))
    }

    /// Reuses the slots and segments that no reader can hold any more, and measures the backing
    /// space. True when something was reused.
    pub(crate) fn poll_retired(&self, state: &mut BackgroundState) -> Result<bool> {
        let files = state.retired_files.poll(&self.core.readers);
        let mut any = !files.is_empty();
        for file in files {
            self.core.journal.recycle(file);
        }
        for (slot, slot_log2) in state.retired_bad.poll(&self.core.readers) {
            // Nobody reads this slot any more.
            self.core.damage.written(slot.pv(), slot.offset()..slot.offset() + (1 << slot_log2), &[]);
        }
        let slots = state.retired_slots.poll(&self.core.readers);
        any |= !slots.is_empty();
        if !slots.is_empty() {
            let change = state.allocator.reuse(&slots).map_err(|e| self.core.fault.poison(&e))?;
            self.forget_emptied(state);
            for (slot, slot_log2) in &slots {
                // No reader is left for this slot.
                let range = slot.offset()..slot.offset() + (1 << slot_log2);
                self.core.damage.written(slot.pv(), range, &[]);
            }
            self.core.space.settle(&change, &[]);
            self.core
                .positions
                .returned
                .fetch_add(change.bytes(self.core.config.extent_size), Ordering::Relaxed);
            // Moves that failed for want of space may succeed now.
            state.evacuated = false;
        }
        self.measure_backing(state);
        Ok(any)
    }

    /// Forgets the sums of extents of RAID-5s that have become empty. A sum that stays costs time:
    /// the RAID-5 looks for the content in vain.
    pub(crate) fn forget_emptied(&self, state: &mut BackgroundState) {
        let emptied = state.allocator.take_emptied();
        if emptied.is_empty() || !self.core.sums.is_on() {
            return;
        }
        let unknown = vec![UNKNOWN; (self.core.config.extent_size / BLOCK) as usize];
        for (pv, from) in emptied {
            let _ = self.core.sums.set(&pv, unit_at(from), &unknown);
        }
    }

    /// Measures the free space of the file systems under sparse physical volumes and histories. If
    /// the host can't tell, the last measurement remains valid.
    pub(crate) fn measure_backing(&self, state: &mut BackgroundState) {
        // The catalog grows there, and the journal's files that do not exist yet take space from
        // the same file system.
        let margin = self.core.options.backing_margin;
        let kept = margin + self.core.journal.uncreated_bytes();
        let Some(mut data) = self.core.measure_catalog() else { return };
        // Records that were made ahead have their space and, until their commit, the promise of it:
        // they would count twice.
        let ahead = state.ahead.as_ref().map_or(0, Ahead::recorded_bytes);
        if let Some(data) = &mut data {
            data.available += ahead;
        }
        let full = data.is_some_and(|data| data.available < margin / CATALOG_PARTS);
        let (backing, taken_back) = match state.allocator.backing(kept, data, ahead) {
            Ok((_, taken_back)) if full => (BackingRoom::default(), taken_back),
            Err(_) if full => (BackingRoom::default(), BTreeMap::new()),
            Ok(measured) => measured,
            Err(_) => return,
        };
        self.core.space.set_backing(backing, &taken_back);
        // Moves that failed for want of space may succeed now.
        state.evacuated &= taken_back.values().all(|extents| *extents == 0);
    }

    /// Returns the place in the segment `seq` at which a scan may begin when everything up to
    /// `destaged` is in place.
    fn scan_start(state: &BackgroundState, destaged: Lsn, seq: u64) -> Cursor {
        let ends = state.ends.filter(|end| end.lsn == destaged.next());
        let known = ends.or((destaged == state.destaged).then_some(state.cursor));
        let (at, lsn) = match known {
            Some(c) if c.seq == seq && c.at > FIRST_RECORD => (c.at, c.lsn),
            Some(c) if c.seq <= seq => (FIRST_RECORD, destaged.next()),
            // The place is not known: the scan looks for it.
            _ => (0, destaged.next()),
        };
        Cursor { seq, at, lsn }
    }

    /// Starts or stops draining `pv`: while it drains, none of its slots is given out. With
    /// `force`, it starts even if the promises then exceed the room of the other physical volumes.
    /// False when that was refused.
    pub(crate) fn apply_draining(
        &self,
        state: &mut BackgroundState,
        pv: u32,
        draining: bool,
        force: bool,
    ) -> bool {
        if state.allocator.is_draining(pv) == draining {
            return true;
        }
        if draining && self.recall(state, |_, of| of == pv).is_err() {
            return force;
        }
        let (extents, change) = state.allocator.contribution(pv);
        let (area, extents) = (state.allocator.area(pv), i64::from(extents));
        let fits = if state.allocator.has_failed(pv) {
            // The space of a failed physical volume is not counted any more.
            true
        } else if draining {
            self.core.space.change_capacity((area, -extents), &change, force)
        } else {
            self.core.space.change_capacity((area, extents), &change.negated(), true)
        };
        if fits {
            state.allocator.set_draining(pv, draining);
            self.measure_backing(state);
            state.evacuate_from = PassPosition::default();
            state.evacuated = false;
        }
        fits
    }
}

/// Number of sequenced records that may wait for destage. It bounds the memory of staging.
pub(crate) const MAX_STAGED_RECORDS: u64 = 512 << 10;

/// Nothing new is promised while the free space of the catalog's file system is below one part in
/// this number of [`crate::settings::PoolOptions::backing_margin`]. Every commit must fit.
pub(crate) const CATALOG_PARTS: u64 = 4;
