//! Destage moves what is staged to its place: *preserve, then apply*.
//!
//! A batch is a range of the journal below `synced_lsn`. No batch has data of a branch from both
//! sides of a snapshot. Control records that only set something are carried out by the batch's
//! preserve phase, in their order. Other control records are carried out alone, and so are runs of
//! long discards. Batches are strictly one after another. Parallelism is inside a batch.
//!
//! 1. **Preserve**: chunks without a slot get one and are written there whole. The physical volumes
//!    are synced. One catalog commit carries the map, the allocator and `preserved_lsn`.
//! 2. **Apply**: chunks that have a slot are overwritten in place. That happens beside the preserve
//!    phase if nothing else needs the slot's old content, and after it otherwise. The physical
//!    volumes are synced. The next commit carries `destaged_lsn`, and frees the journal's segments.
//!
//! After a crash between the two, the apply phase is repeated from the journal
//! ([`crate::destage::Destager::finish_interrupted_batch`]). Nothing is preserved twice. A shortage
//! between the two, or the failure of a physical volume there, also leads to a repeated apply
//! (`again.rs`).

mod again;
mod apply;
pub(crate) mod batch;
mod collect;
pub(crate) mod commit;
pub(crate) mod control;
pub(crate) mod discard;
mod gather;
pub(crate) mod lend;
mod overlay;
pub(crate) mod plan;
pub(crate) mod rebuilds;
pub(crate) mod record;
mod refer;
pub(crate) mod setback;
pub(crate) mod stamps;
pub(crate) mod state;
mod sums;

use crate::branch::Branch;
use crate::catalog::PageKey;
use crate::catalog::Txn;
use crate::catalog::page::MapPage;
use crate::cdp::write::append::StagedSegments;
use crate::cdp::write::committing::Committing;
use crate::control::OperationChange;
use crate::core::Core;
use crate::disk::SyncPurpose;
use crate::error::{Result, both};
use crate::fault::{AlarmedMutex, died};
use crate::ids::{Epoch, Lsn};
use crate::journal::Cursor;
use crate::shortage::Task;
use batch::{Batch, Collected, Placed, joined};
use plan::Plan;
use record::{LoggedBatch, Recorder};
use state::BackgroundState;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Destager {
    /// Carries out the next part of the journal. False when there is none. A failure poisons the
    /// pool: the journal keeps its records, and the next opening continues from there. A shortage
    /// and the failure of a physical volume do not: they leave everything as the last commit has
    /// it.
    pub(crate) fn destage(&self, state: &mut BackgroundState) -> Result<bool> {
        let position = |state: &BackgroundState| state.current_positions();
        let before = position(state);
        let error = match self.try_destage(state) {
            Ok(worked) => {
                self.core.shortages.over(Task::Destage);
                return Ok(worked);
            }
            Err(error) => error,
        };
        // A batch that is preserved can be applied again. Other effects that follow a commit can't
        // be taken back.
        if position(state) != before && !state.is_half_done() {
            return Err(self.core.fault.poison(&error));
        }
        let error = self.failed(state, Task::Destage, error);
        if error.is_taken_back() { Ok(true) } else { Err(error) }
    }

    fn try_destage(&self, state: &mut BackgroundState) -> Result<bool> {
        debug_assert!(state.allocator.is_clean(), "changes from before that no commit has");
        if self.core.stamping.check().is_err() {
            self.write_stamps(state)?;
        }
        if state.is_half_done() {
            self.apply_again(state)?;
            return Ok(true);
        }
        if self.core.journal.written() < state.cursor.lsn {
            return Ok(false);
        }
        let mut cursor = state.cursor;
        let before = self.core.positions.settled_time.load(Ordering::Relaxed);
        let began = self.core.world.clock.monotonic();
        let collected = self.next_collected(state, &mut cursor)?;
        let (bytes, referred) = match &collected {
            Collected::Records(batch) => (batch.bytes, batch.referred),
            _ => (0, 0),
        };
        state.ends = Some(cursor);
        let time = match collected {
            Collected::Nothing => {
                state.cursor = cursor;
                return Ok(false);
            }
            Collected::Records(batch) => {
                let time = before.max(batch.last.time);
                self.destage_batch(state, batch, cursor)?;
                time
            }
            Collected::Control(at, operation, reserved) => {
                self.carry_out(state, at, &operation, &reserved)?;
                at.time
            }
            Collected::Run(run) => {
                self.carry_out_run(state, &run)?;
                run.last.time
            }
        };
        state.cursor = cursor;
        // References are a few bytes of the journal and move no data: they tell nothing of the
        // disks.
        if bytes >= referred {
            self.core.pace.took(bytes, self.core.world.clock.monotonic().saturating_sub(began));
        }
        self.note_settled(state, time);
        // Writers may have used up what was lent, while this lock was held.
        self.lend(state)?;
        Ok(true)
    }

    /// Publishes how far the journal is destaged; `time` is that of the last record.
    fn note_settled(&self, state: &mut BackgroundState, time: u64) {
        self.core.journal.turns_passed(state.destaged);
        self.core.positions.settled_time.store(time, Ordering::Release);
        self.core.positions.settled.store(state.destaged.0, Ordering::Release);
        self.core.positions.unsettled.settled(state.destaged);
        for branch in state.landed.drain(..) {
            branch.staging.waiting.settled(state.destaged);
        }
        self.core.positions.batches.fetch_add(1, Ordering::Relaxed);
    }

    fn destage_batch(&self, state: &mut BackgroundState, mut batch: Batch, next: Cursor) -> Result<()> {
        self.core.pace.compare(self.core.pvs.take_read_bytes(), batch.bytes);
        let mut plan = self.plan(state, &batch, false)?;
        plan.recorded = std::mem::take(&mut batch.recorded);
        let nothing_to_apply = plan.at_once.is_empty() && plan.after.is_empty();
        let positions = |state: &BackgroundState| {
            (batch.last.lsn, if nothing_to_apply { batch.last.lsn } else { state.destaged })
        };
        let overlaps = !plan.after.is_empty();
        let collect = (overlaps && self.core.is_pressed()).then_some(|| self.core.collect_whole(next));
        let look_ahead = |known| overlaps.then(|| self.core.look_ahead(next, known, &batch)).flatten();
        state.ahead = self.place(state, &batch, plan, positions, collect, look_ahead)?;
        state.destaged = batch.last.lsn;
        self.core.in_place(&batch);
        state.landed.extend(batch.branches);
        Ok(())
    }

    /// Moves a batch to its place. `positions` returns (preserved, destaged) for the commit.
    /// `meanwhile` runs beside the work up to the commit, which waits for disks. `then` gets the
    /// result of `meanwhile`, and runs beside the writes after the commit.
    fn place<M: Send, T>(
        &self,
        state: &mut BackgroundState,
        batch: &Batch,
        mut plan: Plan,
        positions: impl Fn(&BackgroundState) -> (Lsn, Lsn),
        meanwhile: Option<impl FnOnce() -> Option<M> + Send>,
        then: impl FnOnce(Option<M>) -> T,
    ) -> Result<T> {
        // The catalog must know that this part of the journal was durable before slots are
        // overwritten. Otherwise, the overwritten content could not be told from what a damaged
        // journal lost.
        if !(Lsn(1)..=state.committed.synced_lsn).contains(&batch.last.lsn) {
            plan.wait();
        }
        let at_once = std::mem::take(&mut plan.at_once);
        let after = std::mem::take(&mut plan.after);
        let unrepeated = plan.unrepeated;
        let doubt = |placed: &[Placed]| if unrepeated { self.core.doubt(placed) } else { Ok(Vec::new()) };
        let mut doubted = doubt(&at_once)?;
        // This is the apply phase: the journal keeps the batch until the next commit.
        let (known, (applied, preserved)) = self.core.with_helper(meanwhile, || {
            self.core.beside(&at_once, SyncPurpose::Apply, || self.preserve(state, batch, plan, positions))
        });
        both(preserved, applied)?;
        // Copies of these units have their sums by now.
        doubted.extend(doubt(&after)?);
        let (applied, done) = self.core.beside(&after, SyncPurpose::Apply, || then(known));
        applied.and_then(|()| self.core.end_doubt(&doubted)).map(|()| done)
    }

    /// Carries out the preserve phase. New slots are complete and durable before the commit that
    /// points to them.
    fn preserve(
        &self,
        state: &mut BackgroundState,
        batch: &Batch,
        mut plan: Plan,
        positions: impl Fn(&BackgroundState) -> (Lsn, Lsn),
    ) -> Result<()> {
        let begun = std::mem::take(&mut plan.recorded);
        let changes =
            batch.controls.iter().map(|(at, control)| OperationChange::of(&self.core, *at, control));
        let changes: Vec<_> = changes.collect::<Result<_>>()?;
        let (written, prepared) = self
            .core
            .beside(&plan.fresh, SyncPurpose::Preserve, || self.core.prepare(batch, &plan, &changes, begun));
        let (recorded, txn) = both(prepared, written)?;
        let positions = positions(state);
        self.let_repair_first(state, batch)?;
        let flushed = self.core.sums.flush()?;
        // This comes before the commit, which ends the promises of the records.
        let (features, bare) = (recorded.features(), recorded.bare);
        let recorded = recorded.segments;
        self.core.space.adjust_log(recorded.iter().map(StagedSegments::closing_room).sum());
        let released: Vec<_> = batch.released().into_iter().chain(plan.reserved).collect();
        let committing: Vec<_> = recorded.iter().map(|a| Committing::begin(a.branch())).collect();
        self.commit(state, txn, flushed, positions, &released)?;
        self.core.features.fetch_or(features, Ordering::Release);
        self.core.positions.recorded_bare.fetch_add(bare, Ordering::Relaxed);
        for (branch, slots) in batch.branches.iter().zip(&plan.slots) {
            branch
                .slots
                .store(branch.slots.load(Ordering::Relaxed).saturating_add_signed(*slots), Ordering::Relaxed);
        }
        for (branch, done) in batch.branches.iter().zip(&plan.done) {
            branch.preserved.add(done);
            self.core.positions.preserving.add(done);
        }
        for (branch, epoch) in batch.branches.iter().zip(&batch.epochs) {
            self.core.forget_views(branch, *epoch, &plan.pages);
        }
        for appended in recorded {
            // This comes before the map: what is found in place from here on is known to be part of
            // the log.
            let applying = self.applying(state, batch, appended.branch());
            appended.publish(&self.core.shared, applying);
        }
        drop(committing);
        self.core.publish(plan.pages);
        for branch in batch.branches.iter().filter(|b| plan.copied.contains(&b.id)) {
            branch.generation.supersede(|| self.core.map.forget_frozen(branch.id));
        }
        // This comes behind the data: what an anchor has is recorded up to it.
        self.changes_done(state, changes)
    }
}

/// Carries out the journal's records and all background work.
pub(crate) struct Destager {
    pub(crate) core: Arc<Core>,
    pub(crate) state: AlarmedMutex<BackgroundState>,
    /// Repairs what a batch wants to be repaired before it is carried out. It is in a layer above
    /// this one. The caller holds no lock.
    pub(crate) repair: fn(&Destager),
}

impl Core {
    /// Notes that a batch is in place, so that readers look for it nowhere else.
    fn in_place(&self, batch: &Batch) {
        self.unstage(batch);
        // An opening for salvage counts none.
        let left = |referred: u64| Some(referred.saturating_sub(batch.referred));
        let _ = self.positions.referred.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        for branch in &batch.branches {
            if branch.cdp.log.read().applying.is_some() {
                branch.cdp.change(|log| log.applying = None);
            }
        }
    }

    /// Runs `work`, and `helper` beside it if destage may borrow a thread. The result of `helper`
    /// is optional.
    fn with_helper<M: Send, T>(
        &self,
        helper: Option<impl FnOnce() -> Option<M> + Send>,
        work: impl FnOnce() -> T,
    ) -> (Option<M>, T) {
        let Some(helper) = helper.filter(|_| self.options.destage_threads > 1) else { return (None, work()) };
        std::thread::scope(|scope| {
            let helper = std::thread::Builder::new().spawn_scoped(scope, helper);
            let done = work();
            let died = |panic: Box<dyn Any + Send>| _ = self.fault.poison(&died("collect a batch", &*panic));
            (helper.ok().and_then(|helper| helper.join().map_err(died).ok().flatten()), done)
        })
    }

    /// Records the batch's changes in histories, and prepares the transaction of its commit.
    fn prepare(
        &self,
        batch: &Batch,
        plan: &Plan,
        changes: &[OperationChange<'_>],
        begun: Vec<Recorder>,
    ) -> Result<(LoggedBatch, Txn<'_>)> {
        let recorded = self.log_batch(batch, &plan.versions, begun)?;
        let mut txn = self.catalog.begin()?;
        txn.put_pages(plan.pages.iter().map(|(key, page)| (*key, page)))?;
        txn.put_versions(plan.versions.iter())?;
        recorded.segments.iter().try_for_each(|appended| appended.store(&mut txn))?;
        let needed = recorded.features();
        if needed & !self.features.load(Ordering::Acquire) != 0 {
            txn.change_superblock(|superblock| superblock.features |= needed)?;
        }
        for (branch, slots) in batch.branches.iter().zip(&plan.slots) {
            if *slots != 0 {
                txn.add_slots(branch.id, *slots)?;
            }
        }
        changes.iter().try_for_each(|change| change.store(&mut txn))?;
        Ok((recorded, txn))
    }

    /// Writes `placed` durably and runs `other`. Both run at the same time if destage may borrow
    /// threads.
    fn beside<T>(
        &self,
        placed: &[Placed],
        purpose: SyncPurpose,
        other: impl FnOnce() -> T,
    ) -> (Result<()>, T) {
        let write = || self.write_placed(placed, purpose);
        if self.options.destage_threads <= 1 || placed.is_empty() {
            // Neither may rely on the order, so the order alternates.
            if self.positions.batches.load(Ordering::Relaxed).is_multiple_of(2) {
                return (write(), other());
            }
            let other = other();
            return (write(), other);
        }
        std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, write) {
            Ok(writer) => {
                let other = other();
                (joined(writer), other)
            }
            // No more threads can be started.
            Err(_) => (write(), other()),
        })
    }

    /// Drops cached pages of snapshots that were taken after `epoch`. They see what this batch
    /// wrote in `epoch`, and their pages were made without it.
    fn forget_views(&self, branch: &Branch, epoch: Epoch, pages: &[(PageKey, MapPage)]) {
        let numbers = pages.iter().filter(|(key, _)| key.branch == branch.id).map(|(key, _)| key.page);
        self.map.forget_views(branch.id, epoch, numbers);
    }

    pub(crate) fn publish(&self, pages: Vec<(PageKey, MapPage)>) {
        for (key, page) in pages {
            self.map.publish(key, page);
        }
    }

    /// Removes a batch that is in place from staging.
    fn unstage(&self, batch: &Batch) {
        for (index, branch) in batch.branches.iter().enumerate() {
            let touched = batch.blocks.iter().filter(|b| b.branch as usize == index);
            branch.staging.remove(touched.flat_map(|b| b.first..b.end), batch.last.lsn);
            branch.staging.shrink();
        }
    }
}

impl Destager {
    /// Destages until the record with `lsn` is carried out.
    pub(crate) fn destage_to(&self, lsn: Lsn) -> Result<()> {
        while self.destage_once(lsn)? {}
        Ok(())
    }

    /// Destages one batch, unless the record with `lsn` is already carried out. False when it is,
    /// or when there is nothing to destage.
    pub(crate) fn destage_once(&self, lsn: Lsn) -> Result<bool> {
        (self.repair)(self);
        let state = &mut *self.state.lock();
        self.core.check_usable()?;
        self.poll_retired(state)?;
        Ok(state.destaged < lsn && self.destage(state)?)
    }
}
