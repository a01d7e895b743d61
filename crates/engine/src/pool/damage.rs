//! The ranges of a volume that can't be read any more.

use super::Pool;
use crate::branch::View;
use crate::catalog::page::{CHUNKS, MapPage, Slot};
use crate::error::Result;
use crate::ids::Chunk;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Returns the ranges of a volume that can't be read any more, as (byte offset, length). What
    /// is staged over them does not count. Reads the volume's map if the pool has any damage.
    pub fn damaged_ranges(&self, volume: &str) -> Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        if !self.core.damage.any() {
            return Ok(found);
        }
        let state = self.core.names.read().volume(volume)?.clone();
        let _reading = self.core.readers.enter();
        let levels: Vec<View> = state.line.levels().collect();
        let (log2, size) = (state.line.branch.chunk_log2, state.line.branch.chunk_size());
        let pages = state.size.load(Ordering::Acquire).div_ceil(CHUNKS * size);
        for (depth, level) in levels.iter().enumerate() {
            let mut from = 0;
            while from < pages
                && let Some(number) = self.core.map.next_page(level, from, pages - 1)?
            {
                from = number + 1;
                let above = levels[..depth].iter().map(|upper| self.core.map.load(upper, number));
                let above: Vec<Arc<MapPage>> = above.collect::<Result<_>>()?;
                for (at, entry) in self.core.map.load(level, number)?.iter() {
                    if entry.slot == Slot::HOLE || above.iter().any(|page| page.get(at).is_some()) {
                        continue;
                    }
                    let start = entry.slot.offset();
                    let chunk = Chunk::in_page(number, at).start(log2);
                    let parts = self.core.damage.overlaps(entry.slot.pv(), start..start + size);
                    found.extend(parts.iter().map(|p| (chunk + p.start - start, p.end - p.start)));
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Returns the number of bytes, and of places, of the pool that can't be read any more.
    pub fn damaged(&self) -> (u64, u64) {
        self.core.damage.totals()
    }
}
