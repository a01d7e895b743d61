//! Times on the wall as pool times, and how far back any history goes.

use crate::core::Core;
use crate::ids::VolumeId;
use std::sync::atomic::Ordering;

impl Core {
    /// Compares the clocks, so that a jump of the wall clock is known before a decision uses a
    /// time.
    pub(crate) fn look_at_clock(&self) {
        self.clock.compare(self.journal.last());
        if self.clock.wants_pruning() {
            // A record that is sequenced and not yet carried out may begin a history.
            let settled = self.positions.settled_time.load(Ordering::Acquire);
            self.clock.prune(self.oldest_history().unwrap_or(u64::MAX).min(settled));
        }
    }

    /// Returns the pool time of a time on the wall, or `None` if the time is still to come.
    pub(crate) fn pool_time(&self, wall: u64) -> Option<u64> {
        self.look_at_clock();
        self.clock.at(wall, self.now())
    }

    /// Returns the pool time at which the oldest history begins.
    pub(crate) fn oldest_history(&self) -> Option<u64> {
        let volumes: Vec<VolumeId> = self.lines.read().keys().copied().collect();
        let stretches = volumes.into_iter().filter_map(|id| self.stretches(id).into_iter().next());
        stretches.filter_map(|s| s.branch.cdp.log.read().begins().map(|stamp| stamp.time)).min()
    }
}
