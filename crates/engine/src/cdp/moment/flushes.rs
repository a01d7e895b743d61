//! Flush points: moments at which all that a volume had acknowledged was durable, for going back to
//! the last of them.
//!
//! They wait in memory until some commit takes them along. A crash loses those that wait: going
//! back to the last flush before a moment then leads to an older one. What a flush covers has to be
//! durable before it is one, so no LSN of a point that is kept is ever given to something else.

use crate::catalog::FlushPoint;
use crate::core::Core;
use crate::error::Result;

/// Rows that one step forgets.
pub(crate) const ROWS_PER_STEP: usize = 4096;
/// Points that are told.
const TOLD: usize = 4096;

impl Core {
    /// The last flush point of a volume that `reaches`: all up to some point do.
    pub(crate) fn last_flush(
        &self,
        volume: u64,
        reaches: impl Fn(&FlushPoint) -> bool,
    ) -> Result<Option<FlushPoint>> {
        // In memory first: a point leaves it only after it has come into the catalog.
        let waiting = self.flushes.waiting(volume).into_iter().take_while(&reaches).last();
        match waiting {
            Some(point) => Ok(Some(point)),
            None => self.catalog.last_flush(volume, reaches),
        }
    }

    /// The newest flush points of a volume that lie in what is kept of its history, oldest first.
    pub(crate) fn newest_flushes(&self, volume: u64) -> Result<Vec<FlushPoint>> {
        let waiting = self.flushes.waiting(volume);
        let mut all = self.catalog.newest_flushes(volume, TOLD)?;
        let last = all.last().map_or(0, |(lsn, _)| *lsn);
        all.extend(waiting.into_iter().filter(|(lsn, _)| *lsn > last));
        let begins = self.begins(volume);
        all.retain(|(lsn, _)| *lsn >= begins);
        Ok(all.split_off(all.len().saturating_sub(TOLD)))
    }
}
