//! The consequences of a failure of background work.
//!
//! A shortage, or the failure of one of several physical volumes, takes back everything since the
//! last commit. The work is done again later, or elsewhere. Any other failure poisons the pool.

use super::state::BackgroundState;
use crate::area::SlotKind;
use crate::destage::Destager;
use crate::error::{Error, ErrorKind, Result};
use crate::shortage::{Task, passing};

impl Destager {
    /// Handles an error of background work, and returns the error for the caller. A shortage, or
    /// the failure of a physical volume that is not the last one, takes back everything since the
    /// last commit, and the task can be repeated. Any other error poisons the pool.
    pub(crate) fn failed(&self, state: &mut BackgroundState, task: Task, error: Error) -> Error {
        if !(error.is_shortage() || error.is_pv_failure()) || self.core.fault.check().is_err() {
            return self.core.fault.poison(&error);
        }
        if let Err(broken) = self.take_back(state) {
            return self.core.fault.poison(&broken);
        }
        tracing::debug!(?task, %error, "background work was undone up to the last commit");
        self.leave_failed(state);
        if error.kind() == ErrorKind::NoSpace {
            // What is lent and not taken may be what the work lacks.
            let _ = self.recall_all(state);
        }
        if error.is_taken_back() {
            return error;
        }
        if !error.is_pv_failure() {
            self.core.shortages.met(task, &error, self.core.world.clock.monotonic());
            return error;
        }
        if !state.allocator.has_refuge() {
            return self.core.fault.poison(&error);
        }
        error.taken_back()
    }

    /// Stops placing content on physical volumes that have failed.
    pub(crate) fn leave_failed(&self, state: &mut BackgroundState) {
        let has_failed = |pv: u32| self.core.pvs.held(pv).is_some_and(|pv| pv.failure().is_some());
        if state.allocator.pv_ids().into_iter().any(|pv| has_failed(pv) && state.allocator.gives(pv)) {
            // An error here has poisoned the pool.
            let _ = self.recall(state, |_, pv| has_failed(pv));
        }
        if state.allocator.leave_failed(&self.core.space) {
            self.measure_backing(state);
        }
    }

    /// Takes back what was allocated, freed and promised since the last commit.
    pub(crate) fn take_back(&self, state: &mut BackgroundState) -> Result<()> {
        let closed = state.allocator.roll_back()?;
        let lent = std::mem::take(&mut state.lent);
        self.core.space.settle(&closed, &lent);
        // Slots that were given back may be filled in part.
        let used = |pv, at| state.allocator.is_used(pv, at).unwrap_or((true, u64::MAX));
        self.core.damage.retain(used, |_| true);
        // A branch's sums are those after the batch, if its records were made before something else
        // ran short.
        for branch in self.core.names.read().branches.values() {
            branch.cdp.log.write().sums.clear();
        }
        Ok(())
    }

    /// Promises slots to background work until its next commit. False when there is no room for
    /// them.
    pub(crate) fn borrow(&self, state: &mut BackgroundState, kind: SlotKind, slots: u64) -> bool {
        let lent = self.core.space.try_reserve(kind, slots);
        if lent {
            state.lent.push((kind, slots));
        }
        lent
    }

    /// Takes back the last promise that was made to background work.
    pub(crate) fn return_last(&self, state: &mut BackgroundState) {
        if let Some(lent) = state.lent.pop() {
            self.core.space.settle(&crate::space::reservations::SpaceChange::default(), &[lent]);
        }
    }

    /// Carries out a part of the journal, unless the last attempt failed for a shortage just now.
    /// False when nothing was carried out.
    pub(crate) fn retry_destage(&self, state: &mut BackgroundState) -> Result<bool> {
        if !self.core.shortages.may_try(Task::Destage, self.core.world.clock.monotonic()) {
            return Ok(false);
        }
        passing(self.destage(state), false)
    }
}
