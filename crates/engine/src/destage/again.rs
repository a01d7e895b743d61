//! Applying a preserved batch again that is not in place. That is needed after a crash, after a
//! shortage, and after the failure of a physical volume.
//!
//! The journal keeps the whole batch until a commit records that it is in place. So the batch's
//! slots are written once more. A chunk whose slot lies on a physical volume that takes no more
//! writes gets another slot. The chunk is written there whole, made durable, and then entered in
//! the map, as in the preserve phase.

use super::Collected;
use super::batch::Batch;
use super::state::BackgroundState;
use crate::destage::Destager;
use crate::disk::SyncPurpose;
use crate::error::Result;
use crate::ids::BranchId;
use crate::shortage::Task;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Destager {
    /// Applies, at open, a batch again that may have been half applied. The catalog already has its
    /// preserve phase. If a shortage prevents that, the pool is opened with the batch half done,
    /// and reads find its content in staging.
    pub(crate) fn finish_interrupted_batch(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        if state.is_half_done() {
            let (preserved, destaged) = (state.committed.preserved_lsn, state.destaged);
            tracing::info!(
                preserved = preserved.0,
                destaged = destaged.0,
                "a batch was interrupted: it is applied again"
            );
        }
        while let Err(error) = self.apply_again(state) {
            let error = self.failed(state, Task::Destage, error);
            // Each physical volume fails once.
            if error.is_taken_back() {
                continue;
            }
            if error.is_shortage() {
                self.show_half_done(state)?;
                break;
            }
            return Err(error);
        }
        self.core.positions.committed(state.committed.preserved_lsn, state.destaged);
        self.checkpoint(state)?;
        // Nothing is promised before the backing space is measured.
        self.measure_backing(state);
        Ok(())
    }

    /// Applies everything again that the catalog calls preserved and that is not in place.
    pub(super) fn apply_again(&self, state: &mut BackgroundState) -> Result<()> {
        let preserved = state.committed.preserved_lsn;
        let mut cursor = state.cursor;
        let mut time = None;
        while cursor.lsn <= preserved {
            match self.core.collect(&mut cursor, preserved, u64::MAX)? {
                Collected::Records(batch) => {
                    self.apply_batch_again(state, &batch)?;
                    self.core.in_place(&batch);
                    time = Some(batch.last.time);
                    state.landed.extend(batch.branches);
                }
                Collected::Nothing => break,
                // Other records are committed as preserved and in place at once.
                Collected::Control(..) => {}
                Collected::Run(run) => state.landed.extend(run.unstage()),
            }
            state.cursor = cursor;
        }
        state.destaged = state.destaged.max(preserved);
        if let Some(time) = time {
            self.note_settled(state, time);
        }
        Ok(())
    }

    /// Marks, in the logs of histories, the slots that may be half written. A moment is
    /// reconstructed from what is in place, so its readers must know.
    fn show_half_done(&self, state: &BackgroundState) -> Result<()> {
        let mut cursor = state.cursor;
        while cursor.lsn <= state.committed.preserved_lsn {
            match self.core.collect(&mut cursor, state.committed.preserved_lsn, u64::MAX)? {
                Collected::Records(batch) => {
                    self.core.doubt_batch(&batch)?;
                    for branch in &batch.branches {
                        let applying = Arc::new(self.applying(state, &batch, branch));
                        branch.cdp.change(|log| log.applying = Some(applying));
                    }
                }
                Collected::Nothing => break,
                Collected::Control(..) | Collected::Run(_) => {}
            }
        }
        Ok(())
    }

    fn apply_batch_again(&self, state: &mut BackgroundState, batch: &Batch) -> Result<()> {
        let plan = self.plan(state, batch, true)?;
        self.core.write_placed(&plan.at_once, SyncPurpose::Apply)?;
        if plan.pages.is_empty() {
            return Ok(());
        }
        self.core.write_placed(&plan.fresh, SyncPurpose::Preserve)?;
        let mut txn = self.core.catalog.begin()?;
        txn.put_pages(plan.pages.iter().map(|(key, page)| (*key, page)))?;
        self.commit_aside(state, txn, &plan.reserved)?;
        let branches: BTreeSet<BranchId> = plan.pages.iter().map(|(key, _)| key.branch).collect();
        self.core.publish(plan.pages);
        branches.into_iter().for_each(|branch| self.core.map.forget_frozen(branch));
        Ok(())
    }
}
