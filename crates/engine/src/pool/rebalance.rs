//! Rebalancing: its control and its progress.

use super::Pool;
use crate::catalog::RebalanceRecord;
use crate::error::{Result, conflict};
use crate::info::rebalance::RebalanceInfo;

impl Pool {
    /// Begins to move data, in the background, to the physical volumes on which Share places it
    /// now: at most `bytes_per_second` (0: no limit). A pass that is under way begins anew. It
    /// continues after a restart. Returns [`crate::ErrorKind::Conflict`] if neither the pool nor a
    /// volume has that placement.
    pub fn rebalance(&self, bytes_per_second: u64) -> Result<RebalanceInfo> {
        if !self.core.names.read().shares() {
            return Err(conflict(
                "rebalance the pool: neither its placement nor that of a volume is share, and only share says where data belongs; see `hindcast pool set --placement`",
            ));
        }
        // The record that has set the placement may wait in the journal.
        self.destager.destage_to(self.core.journal.last().lsn)?;
        {
            let state = &mut *self.destager.state.lock();
            self.core.check_usable()?;
            state.rebalancing.begin(Some(bytes_per_second));
            self.destager.commit_alone(state)?;
        }
        self.core.wake();
        Ok(self.rebalancing())
    }

    /// Ends the pass where it is. Data that was moved stays at its new place. Returns the progress
    /// as it was.
    pub fn stop_rebalance(&self) -> Result<RebalanceInfo> {
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        let before = self.info_of(&state.rebalancing.record);
        state.rebalancing.record.running = false;
        self.destager.commit_alone(state)?;
        Ok(before)
    }

    /// Returns the progress of the pass that is under way, or of the last one.
    pub fn rebalancing(&self) -> RebalanceInfo {
        let record = self.destager.state.lock().rebalancing.record;
        self.info_of(&record)
    }

    fn info_of(&self, record: &RebalanceRecord) -> RebalanceInfo {
        RebalanceInfo {
            running: record.running,
            round: record.round + 1,
            rate: record.rate,
            seen_bytes: record.seen,
            used_bytes: self.core.totals().used,
            moved_bytes: record.moved,
            passed_over: record.passed_over,
        }
    }
}
