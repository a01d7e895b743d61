//! Background work, one step at a time (I2), and the destager's own state.

use super::shortage::Task;
use super::space::Backing;
use super::{Allocator, FreedSlot, Pool, Progress};
use crate::catalog::VersionKey;
use crate::catalog::{Positions, Txn};
use crate::destage::{Ahead, Fill, Relocation};
use crate::error::{Error, Result};
use crate::grace::Retired;
use crate::journal::{Cursor, FIRST_RECORD, Room, SegmentFile};
use crate::map::page::PageKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sequenced records that may wait for their destage: bounds the memory of staging.
const MAX_STAGED_RECORDS: u64 = 512 << 10;
/// Nothing new is promised while the catalog's file system has less than one part in so many of
/// [`super::PoolOptions::backing_margin`]: every commit must fit.
const CATALOG_PARTS: u64 = 4;
/// Nanoseconds that a flush point waits for a commit to take it along, before one is made for it.
const FLUSHES_WAIT: u64 = 1_000_000_000;
/// For each nanosecond of looking at what policies ask for so many go by until the next look.
const POLICIES_REST: u64 = 19;
/// Freeing is owed in parts of a step: so many make one.
const STEP: u32 = 16;
/// Steps of freeing that a writer which helps to destage takes at most with one batch.
const STEPS_OF_HELP: u32 = 16;

/// A place in a pass over everything that has slots: first the current maps, then the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvacuateFrom {
    Map(PageKey),
    Versions(VersionKey),
}

impl Default for EvacuateFrom {
    fn default() -> Self {
        EvacuateFrom::Map((0, 0))
    }
}

/// What only one thread at a time may touch: the allocator and how far the log has been carried out.
pub(crate) struct Maintenance {
    pub(crate) allocator: Allocator,
    /// The next record to destage.
    pub(crate) cursor: Cursor,
    /// Where the part of the journal ends that is being carried out.
    pub(crate) ends: Option<Cursor>,
    /// What was collected from there in advance.
    pub(crate) ahead: Option<Ahead>,
    /// Slots promised to background work since the last commit: (log2 of the slot size, slots).
    pub(crate) lent: Vec<(u8, u64)>,
    /// As of the last commit.
    pub(crate) committed: Positions,
    /// Everything up to here is in place, durably, though the catalog may not say so yet.
    pub(crate) destaged: u64,
    /// Branches without a writer, of which something may be left to free, and the map page where that goes on.
    pub(crate) dead: BTreeMap<u64, u64>,
    /// Snapshots that were deleted and wait for what rests on them, or are being dissolved.
    pub(crate) deleted: BTreeSet<u64>,
    /// Deleted volumes that have a history, which goes when nothing rests on it.
    pub(crate) ended: BTreeSet<u64>,
    /// By their LSNs: branches with an anchor behind which recording is to begin.
    pub(crate) begun: BTreeMap<u64, u64>,
    /// Branches whose history has expired, and that something rests on.
    pub(crate) held_up: BTreeSet<u64>,
    /// Marks may have expired.
    pub(crate) marks_expire: bool,
    /// Parts of steps of freeing that are owed for batches that were destaged: see
    /// [`Pool::owe_freeing`].
    owed: u32,
    /// Moving data off draining PVs and freeing take turns.
    moves_next: bool,
    /// Where moving data off draining PVs goes on.
    pub(crate) evacuate_from: EvacuateFrom,
    /// A pass over all maps found nothing (more) that could be moved.
    pub(crate) evacuated: bool,
    /// Moving goes on after this time, by the monotonic clock: a physical volume did not answer.
    pub(crate) evacuate_after: u64,
    /// Branches whose chunks are being brought home.
    pub(crate) relocating: BTreeMap<u64, Relocation>,
    /// Branches that are being made complete.
    pub(crate) filling: BTreeMap<u64, Fill>,
    /// By branch, the last segment of its history that was to be compressed harder.
    pub(crate) compacted: BTreeMap<u64, u64>,
    /// When that may go on, by the monotonic clock.
    pub(crate) compact_from: u64,
    /// The last step sorted runs: something else has its turn.
    sorted: bool,
    /// The last volume whose retention was enforced.
    pub(crate) forgot_of: u64,
    retired_slots: Retired<FreedSlot>,
    retired_files: Retired<Arc<SegmentFile>>,
    /// What was written, and how often work was called for, at the last idle step.
    seen: (u64, u64),
}

impl Maintenance {
    pub(crate) fn new(allocator: Allocator, cursor: Cursor, committed: Positions) -> Self {
        Maintenance {
            allocator,
            cursor,
            ends: None,
            ahead: None,
            lent: Vec::new(),
            destaged: committed.destaged_lsn,
            committed,
            dead: BTreeMap::new(),
            deleted: BTreeSet::new(),
            ended: BTreeSet::new(),
            begun: BTreeMap::new(),
            held_up: BTreeSet::new(),
            marks_expire: true,
            owed: 0,
            moves_next: false,
            evacuate_from: EvacuateFrom::default(),
            evacuated: false,
            evacuate_after: 0,
            relocating: BTreeMap::new(),
            filling: BTreeMap::new(),
            compacted: BTreeMap::new(),
            compact_from: 0,
            sorted: false,
            forgot_of: 0,
            retired_slots: Retired::default(),
            retired_files: Retired::default(),
            seen: (0, 0),
        }
    }

    /// Is a batch preserved that is not in place?
    pub(crate) fn is_half_done(&self) -> bool {
        self.committed.preserved_lsn > self.destaged
    }

    /// (preserved, destaged) of a commit that carries out no record.
    pub(crate) fn aside(&self) -> (u64, u64) {
        (self.committed.preserved_lsn.max(self.destaged), self.destaged)
    }
}

impl Pool {
    /// Takes the most urgent background step. [`Progress::Idle`]: call again when [`Pool::wait_for_work`] returns.
    pub fn maintain(&self) -> Result<Progress> {
        let _alarm = self.fault.alarm("background work was under way");
        let progress = self.step()?;
        if progress == Progress::Idle && self.compact_history()? {
            return Ok(Progress::Worked);
        }
        if progress == Progress::Idle {
            self.scrub_catalog()?;
        }
        Ok(progress)
    }

    fn step(&self) -> Result<Progress> {
        self.look_at_clock();
        if self.look_at_policies()? {
            return Ok(Progress::Worked);
        }
        let m = &mut *self.maintenance.lock();
        self.check_usable()?;
        self.write_stamps(m)?;
        self.poll_retired(m)?;
        // What waits for the end of a shortage keeps nothing else from going on: that may be what
        // ends it.
        let may_tidy = self.shortages.may_try(Task::Upkeep, self.world.clock.monotonic());
        if may_tidy && passing(self.pay_freeing(m, true), false)? {
            return Ok(Progress::Worked);
        }
        // Runs come with each batch, and are sorted as fast.
        let may_sort = self.shortages.may_try(Task::Sort, self.world.clock.monotonic());
        let turn = may_sort && !std::mem::take(&mut m.sorted);
        if turn && passing(self.sort_runs(m, false), false)? {
            m.sorted = true;
            return Ok(Progress::Worked);
        }
        if self.wants_destage(m) && self.retry_destage(m)? {
            self.owe_freeing(m);
            return Ok(Progress::Worked);
        }
        if may_tidy && passing(self.upkeep(m), false)? {
            return Ok(Progress::Worked);
        }
        let idle = self.options.recompress_history;
        if may_sort && (idle || !turn) && passing(self.sort_runs(m, idle), false)? {
            return Ok(Progress::Worked);
        }
        m.seen = (self.journal.written(), self.work.kicks.load(Ordering::Relaxed));
        // Segments are written in advance, when nothing else is to be done, so that appending never allocates.
        if self.add_journal_file(true).unwrap_or(false) {
            return Ok(Progress::Worked);
        }
        Ok(Progress::Idle)
    }

    /// Freeing keeps pace with destaging: each batch owes a part of a step, or several steps, the
    /// more the less space there is.
    fn owe_freeing(&self, m: &mut Maintenance) {
        let totals = self.space.totals();
        let percent = totals.available.saturating_mul(100) / totals.capacity.max(1);
        m.owed += match percent {
            50.. => 1,
            25.. => STEP / 4,
            10.. => STEP * 4,
            _ => STEP * 16,
        };
    }

    /// Takes a step of freeing, or with `moves` also of moving data off draining PVs, if one is
    /// owed. False when none is, or when there is nothing to free.
    fn pay_freeing(&self, m: &mut Maintenance, moves: bool) -> Result<bool> {
        if m.owed < STEP {
            return Ok(false);
        }
        m.owed -= STEP;
        let worked = if moves { self.free_or_move(m)? } else { self.free(m)? };
        if !worked {
            m.owed = 0;
        }
        Ok(worked)
    }

    fn free_or_move(&self, m: &mut Maintenance) -> Result<bool> {
        m.moves_next = !m.moves_next;
        if m.moves_next && self.evacuate(m)? {
            return Ok(true);
        }
        Ok(self.free(m)? || self.evacuate(m)?)
    }

    /// Takes a step of freeing what nothing needs any more. False when there is nothing that can be
    /// freed now.
    pub(super) fn free(&self, m: &mut Maintenance) -> Result<bool> {
        Ok(self.forget_history(m)? || self.reclaim(m)?)
    }

    /// One control operation that a policy asks for. With very many volumes looking at all of them
    /// is not for each step: it takes a twentieth of the time.
    fn look_at_policies(&self) -> Result<bool> {
        let began = self.world.clock.monotonic();
        if began < self.work.policies_after.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let worked = passing(self.policies(), false)?;
        if !worked {
            let now = self.world.clock.monotonic();
            let rest = POLICIES_REST.saturating_mul(now.saturating_sub(began));
            self.work.policies_after.store(now.saturating_add(rest), Ordering::Relaxed);
        }
        Ok(worked)
    }

    /// One control operation that a policy asks for. False when none does.
    fn policies(&self) -> Result<bool> {
        Ok(self.enforce_snapshot_policies()?
            || self.renew_branch()?
            || self.flatten_deepest()?
            || self.flatten_over_expired()?
            || self.anchor_by_time()?
            || self.forget_mark()?
            || self.expire_undo()?)
    }

    /// One step of what keeps the pool tidy. False when there is nothing to be done.
    fn upkeep(&self, m: &mut Maintenance) -> Result<bool> {
        let done = self.tidy(m);
        let unsaved = self.flushes_wait(m) || self.clock.wants_commit() || self.damage.is_changed();
        // What waits for the end of a shortage keeps nothing from being recorded.
        let idle = done.as_ref().map_or_else(Error::is_shortage, |worked| !worked);
        let records = idle && (m.committed.destaged_lsn < m.destaged || unsaved);
        if records {
            self.checkpoint(m)?;
        }
        let worked = done? || records;
        self.shortages.over(Task::Upkeep);
        Ok(worked)
    }

    /// One step of freeing, moving and completing. False when there is nothing to be done.
    fn tidy(&self, m: &mut Maintenance) -> Result<bool> {
        Ok(self.free_or_move(m)? || self.relocate(m)? || self.fill_branches(m)?)
    }

    /// Destage is lazy, so that writes coalesce: it begins when a share of the journal (or of the bound on staged
    /// records) is in use, or when nothing was written since the last idle step. A step that somebody called for says
    /// nothing about that: snapshots taken under load would start it.
    fn wants_destage(&self, m: &Maintenance) -> bool {
        let written = self.journal.written();
        if written < m.cursor.lsn {
            return false;
        }
        // What is recorded ahead does not wait: it holds threads and buffers.
        let recorded = m.ahead.as_ref().is_some_and(Ahead::is_recorded);
        // What waits for the end of a shortage asks for it by itself.
        let waits = self.shortages.cause(Task::Destage).is_some() || m.is_half_done();
        waits
            || self.is_quiet(m)
            || recorded
            || self.is_pressed()
            || self.journal.turns() >= self.options.lazy_turns
            || written - m.cursor.lsn > MAX_STAGED_RECORDS / 2
    }

    /// Have flush points waited long enough for a commit to take them along?
    fn flushes_wait(&self, m: &Maintenance) -> bool {
        let wait = self.catalog.time_per_commit(FLUSHES_WAIT);
        let waited = |since| self.is_quiet(m) || self.clock.now().saturating_sub(since) >= wait;
        self.flushes.oldest_waiting().is_some_and(waited)
    }

    /// Was nothing written since the last idle step?
    fn is_quiet(&self, m: &Maintenance) -> bool {
        m.seen == (self.journal.written(), self.work.kicks.load(Ordering::Relaxed))
    }

    /// Is so much of the journal in use that destage can't wait?
    pub fn is_pressed(&self) -> bool {
        let (used, capacity) = self.journal.usage();
        used >= capacity / 100 * self.options.destage_start_percent as u64
    }

    /// One destage batch, if there is anything to destage.
    pub fn destage_step(&self) -> Result<Progress> {
        let m = &mut *self.maintenance.lock();
        self.check_usable()?;
        self.poll_retired(m)?;
        Ok(if self.destage(m)? { Progress::Worked } else { Progress::Idle })
    }

    /// Carries out everything that is sequenced now, and records it.
    pub fn drain(&self) -> Result<()> {
        let last = self.journal.last().0;
        self.destage_to(last)?;
        self.checkpoint_now()
    }

    /// Destages until the record with `lsn` is carried out.
    pub(crate) fn destage_to(&self, lsn: u64) -> Result<()> {
        while self.destage_once(lsn)? {}
        Ok(())
    }

    /// Destages one batch, unless the record with `lsn` is carried out. False when that is so, or there is nothing to destage.
    pub(crate) fn destage_once(&self, lsn: u64) -> Result<bool> {
        let m = &mut *self.maintenance.lock();
        self.check_usable()?;
        self.poll_retired(m)?;
        Ok(m.destaged < lsn && self.destage(m)?)
    }

    /// Commits the positions, if they have moved.
    pub(crate) fn checkpoint_now(&self) -> Result<()> {
        let m = &mut *self.maintenance.lock();
        self.checkpoint(m)
    }

    pub(crate) fn checkpoint(&self, m: &mut Maintenance) -> Result<()> {
        let now = (m.destaged, self.journal.synced(), self.journal.start_after(m.destaged).0);
        let then = &m.committed;
        let same = now == (then.destaged_lsn, then.synced_lsn, then.journal_seq);
        let waiting = self.flushes.oldest_waiting().is_some() || self.clock.wants_commit();
        if same && !waiting && !self.damage.is_changed() {
            return Ok(());
        }
        self.commit_alone(m)
    }

    /// Commits the positions, and what waits for a commit.
    pub(super) fn commit_alone(&self, m: &mut Maintenance) -> Result<()> {
        self.fault.check()?;
        let txn = self.catalog.begin().map_err(|e| self.failed(m, Task::Upkeep, e))?;
        self.commit_aside(m, txn, &[])
    }

    /// Commits work that has no place in the journal: the positions are what they are.
    pub(crate) fn commit_aside(
        &self,
        m: &mut Maintenance,
        txn: Txn<'_>,
        released: &[(u8, u64)],
    ) -> Result<()> {
        let (preserved, destaged) = m.aside();
        self.commit(m, txn, preserved, destaged, released)
    }

    /// Commits `txn` with the allocator's changes and the positions; then lets go of what that commit frees.
    /// `released` are reservations (log2 of the slot size, slots) whose records are now preserved.
    pub(crate) fn commit(
        &self,
        m: &mut Maintenance,
        mut txn: Txn<'_>,
        preserved: u64,
        destaged: u64,
        released: &[(u8, u64)],
    ) -> Result<()> {
        // Whoever had the allocator before may have panicked with half of a plan in it.
        self.fault.check()?;
        self.mark_promised_pages();
        let (journal_seq, journal_incarnation) = self.journal.start_after(destaged);
        // Before it is said what is durable, which is at least what they cover.
        let flushes = self.flushes.store(&mut txn).map_err(|e| self.fault.poison(&e))?;
        let (now, interval) = (self.world.clock.now(), self.options.stamp_interval);
        let stamps = self.stamping.store(&mut txn, now, interval).map_err(|e| self.fault.poison(&e))?;
        self.damage.store(&mut txn).map_err(|e| self.fault.poison(&e))?;
        let positions = Positions {
            preserved_lsn: preserved,
            destaged_lsn: destaged,
            synced_lsn: self.journal.synced(),
            journal_seq,
            journal_incarnation,
            time: self.journal.last().1,
            ..m.committed
        };
        let (clock, stretches) = self.clock.to_store();
        let kept = txn.kept_change();
        let scrub = self.scrub.to_store();
        m.allocator
            .persist(&mut txn)
            .and_then(|()| txn.put_positions(&positions))
            .and_then(|()| txn.put_clock(&clock, stretches.as_deref()))
            .and_then(|()| scrub.map_or(Ok(()), |record| txn.put_scrub(&record)))
            .and_then(|()| {
                let start = Self::scan_start(m, destaged, journal_seq);
                txn.change_journal(|row| (row.destaged_lsn, row.start) = (destaged, start))
            })
            .and_then(|()| txn.commit())
            .map_err(|e| self.fault.poison(&e))?;
        self.flushes.stored(flushes);
        self.clock.stored(&clock, stretches.as_deref());
        self.stamping.stored(stamps);
        self.count_kept(kept);
        m.committed = positions;
        m.lent.clear();
        m.destaged = m.destaged.max(destaged);
        let (freed, change) = m.allocator.committed();
        self.space.settle(&change, released);
        self.catalog_room.settle(preserved);
        self.measure_catalog();
        if self.space.settle_log(preserved) {
            // Records are mostly smaller than what was promised to them.
            self.measure_backing(m);
        }
        for slot in freed {
            m.retired_slots.push(slot);
        }
        for file in self.journal.release_below(positions.journal_seq) {
            m.retired_files.push(file);
        }
        self.positions.preserved.store(preserved, Ordering::Relaxed);
        self.positions.destaged.store(destaged, Ordering::Relaxed);
        // What was retired here may still be in the map cache and in staging: nothing is polled before the caller has
        // published and unstaged, and so turned away every new reader.
        Ok(())
    }

    /// What is sequenced by now was promised all pages of the catalog that are promised by now.
    fn mark_promised_pages(&self) {
        let sequencing = self.journal.sequence();
        self.catalog_room.mark(sequencing.last_lsn());
    }

    /// Slots that snapshots keep, by branch, have changed by so many.
    fn count_kept(&self, changes: impl IntoIterator<Item = (u64, i64)>) {
        let names = self.names.read();
        for (id, change) in changes {
            if let Some(branch) = names.branches.get(&id) {
                let kept = branch.kept.load(Ordering::Relaxed);
                branch.kept.store(kept.saturating_add_signed(change), Ordering::Relaxed);
            }
        }
    }

    /// Is space on its way that was freed, and that readers or steps of freeing still keep from
    /// being given out?
    pub(super) fn is_returning(&self, m: &Maintenance) -> bool {
        let names = self.names.read();
        let pinned = |id: &u64| names.branches.get(id).is_some_and(|b| b.cdp.oldest_pin().is_some());
        !m.retired_slots.is_empty() || m.dead.keys().any(|id| !pinned(id))
    }

    /// Reuses what no reader can hold any more, and measures the backing space.
    /// True when there was anything.
    pub(crate) fn poll_retired(&self, m: &mut Maintenance) -> Result<bool> {
        let files = m.retired_files.poll(&self.readers);
        let mut any = !files.is_empty();
        for file in files {
            self.journal.recycle(file);
        }
        let slots = m.retired_slots.poll(&self.readers);
        any |= !slots.is_empty();
        if !slots.is_empty() {
            let change = m.allocator.reuse(&slots).map_err(|e| self.fault.poison(&e))?;
            for (slot, slot_log2) in &slots {
                // Nobody reads there any more.
                let range = slot.offset()..slot.offset() + (1 << slot_log2);
                self.damage.written(slot.pv(), range, &[]);
            }
            self.space.settle(&change, &[]);
            self.positions.returned.fetch_add(change.bytes(self.config.extent_size), Ordering::Relaxed);
            // What could not be moved for want of space may move now.
            m.evacuated = false;
        }
        self.measure_backing(m);
        Ok(any)
    }

    /// Asks the catalog's file system what it can still provide, for the sizes of commits to come
    /// and for the ballast. `None` where the host can't tell, and the last answer stands.
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

    /// Asks the file systems under sparse physical volumes and histories what they can still provide. Where the host can't tell,
    /// the last answer stands.
    pub(crate) fn measure_backing(&self, m: &mut Maintenance) {
        // The catalog grows there, and the journal's files that do not exist yet take space from the same file system.
        let margin = self.options.backing_margin;
        let kept = margin + self.journal.uncreated_bytes();
        let Some(mut data) = self.measure_catalog() else { return };
        // What is recorded ahead has its space, and the promise of it until its commit: it would count twice.
        let ahead = m.ahead.as_ref().map_or(0, Ahead::recorded_bytes);
        if let Some(data) = &mut data {
            data.available += ahead;
        }
        let full = data.is_some_and(|data| data.available < margin / CATALOG_PARTS);
        let (backing, taken_back) = match m.allocator.backing(kept, data, ahead) {
            Ok((_, taken_back)) if full => (Backing::NONE, taken_back),
            Err(_) if full => (Backing::NONE, 0),
            Ok(measured) => measured,
            Err(_) => return,
        };
        self.space.set_backing(backing, taken_back);
        // What could not be moved for want of space may move now.
        m.evacuated &= taken_back == 0;
    }

    /// Makes one more journal file, which the catalog counts before it is used. False when there
    /// are enough.
    fn add_journal_file(&self, prewrite: bool) -> Result<bool> {
        self.journal.add_file(prewrite, |files| {
            let mut txn = match self.catalog.begin() {
                // Nothing was changed: the file is made once more, later.
                Err(error) if error.is_shortage() => return Err(error),
                begun => begun.map_err(|e| self.fault.poison(&e))?,
            };
            let counted = txn.change_journal(|row| row.files = row.files.max(files));
            counted.and_then(|()| txn.commit()).map_err(|e| self.fault.poison(&e))
        })
    }

    /// Where a scan may begin when everything up to `destaged` is in place, in the segment `seq`.
    fn scan_start(m: &Maintenance, destaged: u64, seq: u64) -> Cursor {
        let ends = m.ends.filter(|end| end.lsn == destaged + 1);
        let known = ends.or((destaged == m.destaged).then_some(m.cursor));
        let (at, lsn) = match known {
            Some(c) if c.seq == seq && c.at > FIRST_RECORD => (c.at, c.lsn),
            Some(c) if c.seq <= seq => (FIRST_RECORD, destaged + 1),
            // Not known: the scan looks for it.
            _ => (0, destaged + 1),
        };
        Cursor { seq, at, lsn }
    }

    /// Room for a record, after [`Room`] said that there is none: makes a file, or destages, or waits for the thread
    /// that does. The writer's own help is the backpressure.
    pub(crate) fn make_room(&self, room: Room) -> Result<()> {
        self.check_usable()?;
        match room {
            Room::Ready => Ok(()),
            Room::NeedsFile => self.add_journal_file(false).map(|_| ()),
            Room::Full if self.help_destage()? => Ok(()),
            Room::Full if self.shortages.cause(Task::Destage).is_some() => self.wait_out_shortage(),
            Room::Turns if self.help_destage()? => Ok(()),
            // Turns don't count then.
            Room::Turns if self.shortages.cause(Task::Destage).is_some() => Ok(()),
            Room::Full => {
                self.journal.wait_for_room();
                Ok(())
            }
            Room::Turns => {
                self.journal.wait_for_turns(self.options.max_turns);
                Ok(())
            }
        }
    }

    /// Destages one batch, unless somebody else is at it. False when that brought nothing.
    fn help_destage(&self) -> Result<bool> {
        self.journal.counters.waits.fetch_add(1, Ordering::Relaxed);
        self.kick();
        let Some(mut m) = self.maintenance.try_lock() else { return Ok(false) };
        let m = &mut *m;
        self.poll_retired(m)?;
        let progress = self.retry_destage(m)?;
        if progress {
            self.owe_freeing(m);
            let mut steps = 0;
            while steps < STEPS_OF_HELP && passing(self.pay_freeing(m, false), false)? {
                steps += 1;
            }
        } else {
            passing(self.checkpoint(m), ())?;
        }
        Ok(self.poll_retired(m)? || progress)
    }

    /// Do so many turns wait that nothing may add to them? Not while destage waits for the end of a
    /// shortage: a deletion may be what ends that.
    pub(crate) fn too_many_turns(&self, waiting: usize) -> bool {
        waiting >= self.options.max_turns && self.shortages.cause(Task::Destage).is_none()
    }

    /// Would a control record have to help to carry out what waits?
    pub fn must_help(&self) -> bool {
        self.is_pressed() || self.too_many_turns(self.journal.turns())
    }

    /// Carries turns out until a snapshot need not wait for them, for somebody who must not be kept
    /// waiting while it is taken.
    pub fn make_way(&self) -> Result<()> {
        while self.too_many_turns(2 * self.journal.turns()) {
            self.make_room(Room::Turns)?;
        }
        Ok(())
    }

    /// Is staging's memory at its bound?
    pub(crate) fn staging_full(&self, last_lsn: u64) -> bool {
        last_lsn.saturating_sub(self.positions.destaged.load(Ordering::Relaxed)) > MAX_STAGED_RECORDS
    }

    /// Starts or stops giving out slots of `pv`; with `force` even if promises then rest on the other PVs alone.
    pub(crate) fn apply_draining(&self, m: &mut Maintenance, pv: u32, draining: bool, force: bool) -> bool {
        if m.allocator.is_draining(pv) == draining {
            return true;
        }
        let (extents, change) = m.allocator.contribution(pv);
        let fits = if m.allocator.has_failed(pv) {
            // What it had counts no more.
            true
        } else if draining {
            self.space.change_capacity(-(extents as i64), &change, force)
        } else {
            self.space.change_capacity(extents as i64, &change.negated(), true)
        };
        if fits {
            m.allocator.set_draining(pv, draining);
            self.measure_backing(m);
            m.evacuate_from = EvacuateFrom::default();
            m.evacuated = false;
        }
        fits
    }
}

/// The outcome of background work, where one that failed for a shortage is tried again by itself:
/// `waits` then.
pub(super) fn passing<T>(done: Result<T>, waits: T) -> Result<T> {
    match done {
        Err(error) if error.is_shortage() => Ok(waits),
        done => done,
    }
}
