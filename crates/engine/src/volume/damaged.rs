//! The ranges of a volume that can't be read any more.

use super::Volume;
use crate::branch::View;
use crate::catalog::page::{CHUNKS, MapPage, Slot};
use crate::core::Core;
use crate::error::Result;
use crate::ids::Chunk;
use std::ops::Range;
use std::sync::Arc;

impl Core {
    /// Returns the damaged ranges of a line in `bytes`, as (byte offset, length), in order. There
    /// may be more than `most` if many lie in one map page. What is staged over them does not
    /// count.
    pub(crate) fn damaged_ranges(
        &self,
        line: &View,
        bytes: Range<u64>,
        most: usize,
    ) -> Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        if !self.damage.any() || bytes.is_empty() {
            return Ok(found);
        }
        let _reading = self.readers.enter();
        let levels: Vec<View> = line.levels().collect();
        let per_page = CHUNKS * line.branch.chunk_size();
        let (mut from, last) = (bytes.start / per_page, (bytes.end - 1) / per_page);
        while from <= last && found.len() < most {
            // Levels that have content in this page or later.
            let mut next = None;
            for level in &levels {
                let page = self.map.next_page(level, from, last)?;
                next = next.into_iter().chain(page).min();
            }
            let Some(number) = next else { break };
            self.damaged_in_page(&levels, number, &bytes, &mut found)?;
            from = number + 1;
        }
        Ok(found)
    }

    /// Adds the damaged ranges of one map page to `found`. `levels` are a line and its bases.
    fn damaged_in_page(
        &self,
        levels: &[View],
        number: u64,
        bytes: &Range<u64>,
        found: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let pages: Vec<Arc<MapPage>> =
            levels.iter().map(|level| self.map.load(level, number)).collect::<Result<_>>()?;
        let (log2, size) = (levels[0].branch.chunk_log2, levels[0].branch.chunk_size());
        for at in 0..CHUNKS as usize {
            let Some(entry) = pages.iter().find_map(|page| page.get(at)).filter(|e| e.slot != Slot::HOLE)
            else {
                continue;
            };
            let (start, slot) = (Chunk::in_page(number, at).start(log2), entry.slot.offset());
            for part in self.damage.overlaps(entry.slot.pv(), slot..slot + size) {
                let part =
                    (start + part.start - slot).max(bytes.start)..(start + part.end - slot).min(bytes.end);
                if part.start >= part.end {
                    continue;
                }
                match found.last_mut() {
                    Some((first, len)) if *first + *len == part.start => *len += part.end - part.start,
                    _ => found.push((part.start, part.end - part.start)),
                }
            }
        }
        Ok(())
    }
}

impl Volume {
    /// Tells which parts of a range are damaged, as runs: (length, damaged).
    pub(super) fn damaged_runs(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<(u64, bool)>> {
        self.check_range(offset, len)?;
        let found = self.core.damaged_ranges(&self.state.line, offset..offset + len, max_runs)?;
        let (mut runs, mut at) = (Vec::new(), offset);
        for (start, length) in found {
            runs.extend((start > at).then_some((start - at, false)));
            runs.push((length, true));
            at = start + length;
        }
        runs.extend((at < offset + len).then_some((offset + len - at, false)));
        runs.truncate(max_runs);
        Ok(runs)
    }
}
