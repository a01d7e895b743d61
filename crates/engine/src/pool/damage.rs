//! The damage of a pool, as users see it.

use super::Pool;
use crate::error::Result;
use std::sync::atomic::Ordering;

impl Pool {
    /// Returns the ranges of a volume that can't be read any more, as (byte offset, length). What
    /// is staged over them does not count. Reads the volume's map if the pool has any damage.
    pub fn damaged_ranges(&self, volume: &str) -> Result<Vec<(u64, u64)>> {
        let state = self.core.names.read().volume(volume)?.clone();
        let size = state.size.load(Ordering::Acquire);
        self.core.damaged_ranges(&state.line, 0..size, usize::MAX)
    }

    /// Returns the number of bytes, and of places, of the pool that can't be read any more.
    pub fn damaged(&self) -> (u64, u64) {
        self.core.damage.totals()
    }
}
