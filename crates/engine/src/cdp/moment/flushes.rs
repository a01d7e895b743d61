//! Flush points: moments at which everything that a volume had acknowledged was durable. A volume
//! can be taken back to the last flush point before a moment.
//!
//! Flush points wait in memory until a commit stores them. A crash loses those that wait. Going
//! back to the last flush before a moment then leads to an older flush. Everything that a flush
//! covers is durable before the flush becomes a point, so no LSN of a stored point is ever given to
//! another record.

use crate::core::Core;
use crate::error::Result;
use crate::ids::{Lsn, Stamp, VolumeId};

/// The number of rows that one step forgets.
pub(crate) const ROWS_PER_STEP: usize = 4096;

impl Core {
    /// Returns the last flush point of a volume that `reaches` accepts. `reaches` accepts all
    /// points up to one of them.
    pub(crate) fn last_flush(
        &self,
        volume: VolumeId,
        reaches: impl Fn(&Stamp) -> bool,
    ) -> Result<Option<Stamp>> {
        // Memory is searched first, because a point leaves it only after it has come into the
        // catalog.
        let waiting = self.flushes.waiting(volume).into_iter().take_while(&reaches).last();
        match waiting {
            Some(point) => Ok(Some(point)),
            None => self.catalog.last_flush(volume, reaches),
        }
    }

    /// Returns the newest flush points of a volume that its kept history has up to a pool time,
    /// oldest first, at most `most` of them.
    pub(crate) fn newest_flushes(&self, volume: VolumeId, to: u64, most: usize) -> Result<Vec<Stamp>> {
        // Memory is read first, because a point leaves it only after it has come into the catalog.
        let waiting = self.flushes.waiting(volume);
        let last = match to {
            u64::MAX => Lsn::MAX,
            _ => match self.catalog.last_flush(volume, |point| point.time <= to)? {
                Some(point) => point.lsn,
                None => Lsn::ZERO,
            },
        };
        let mut all = self.catalog.newest_flushes(volume, last, most)?;
        let last = all.last().map_or(Lsn::ZERO, |point| point.lsn);
        all.extend(waiting.into_iter().filter(|point| point.lsn > last && point.time <= to));
        let begins = self.begins(volume);
        all.retain(|point| point.lsn >= begins);
        Ok(all.split_off(all.len().saturating_sub(most)))
    }
}
