//! What is allocated and what reads as zeros (NBD `base:allocation`, SCSI GET LBA STATUS).

use super::Volume;
use crate::device::StatusRun;
use crate::error::Result;
use crate::journal::record::{BLOCK, SECTOR};
use crate::map::page::{CHUNKS, MapPage, Slot};
use crate::staging::Source;
use std::ops::Range;
use std::sync::Arc;

/// Chunks looked at by one call; the answer may be shorter than the question.
const MAX_CHUNKS: u64 = 1 << 20;

/// Bytes of a large chunk that are resolved at a time.
const STRIDE: u64 = 1 << 20;

const DATA: (bool, bool) = (true, false);
const HOLE: (bool, bool) = (false, true);

/// Merges neighbouring runs of one kind.
struct Runs {
    runs: Vec<StatusRun>,
    max: usize,
}

impl Runs {
    /// Appends; false when the list is full.
    fn push(&mut self, length: u64, (allocated, zero): (bool, bool)) -> bool {
        let full = self.runs.len() == self.max;
        match self.runs.last_mut() {
            Some(run) if run.allocated == allocated && run.zero == zero => run.length += length,
            _ if full => return false,
            _ => self.runs.push(StatusRun { length, allocated, zero }),
        }
        true
    }
}

impl Volume {
    pub(super) fn status_runs(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<StatusRun>> {
        self.check_range(offset, len)?;
        let _reading = self.pool.readers.enter();
        let branch = &self.state.branch;
        let mut runs = Runs { runs: Vec::new(), max: max_runs.max(1) };
        let chunks = branch.chunks(offset, len);
        let last = chunks.end.min(chunks.start + MAX_CHUNKS);
        let end = (offset + len).min(last << branch.chunk_log2);
        // Asked once, before any page: what was acknowledged before is staged, or in every page looked at from here on.
        if self.state.branch.staging.is_empty() {
            self.mapped_runs(chunks.start..last, offset, end, &mut runs)?;
        } else {
            let mut chunk = chunks.start;
            while chunk < last && self.staged_runs(chunk, offset, end, &mut runs)? {
                chunk += 1;
            }
        }
        Ok(runs.runs)
    }

    /// The runs of chunks of which nothing is staged.
    fn mapped_runs(&self, chunks: Range<u64>, offset: u64, end: u64, runs: &mut Runs) -> Result<()> {
        let branch = &self.state.branch;
        let mut page: Option<(u64, Arc<MapPage>)> = None;
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let (number, index) = MapPage::locate(chunk);
            if page.as_ref().is_none_or(|(held, _)| *held != number) {
                let key = (branch.id, number);
                page = self.pool.map.cached(key).map(|page| (number, page));
                if page.is_none() {
                    // Pages that do not exist are skipped at one look.
                    let found =
                        self.pool.catalog.page_numbers(branch.id, number, (chunks.end - 1) / CHUNKS, 1)?;
                    let next = found.first().map_or(chunks.end, |n| (n * CHUNKS).clamp(chunk, chunks.end));
                    if next > chunk {
                        if !runs.push(self.bytes_between(chunk, next, offset, end), HOLE) {
                            break;
                        }
                        chunk = next;
                        continue;
                    }
                    page = Some((number, self.pool.map.load(key)?));
                }
            }
            let slot = page.as_ref().and_then(|(_, p)| p.get(index)).map(|e| e.slot);
            let kind = if slot.is_some_and(|s| s != Slot::HOLE) { DATA } else { HOLE };
            if !runs.push(self.bytes_between(chunk, chunk + 1, offset, end), kind) {
                break;
            }
            chunk += 1;
        }
        Ok(())
    }

    /// Bytes of the chunks `from..to` that lie in `offset..end`.
    fn bytes_between(&self, from: u64, to: u64, offset: u64, end: u64) -> u64 {
        let log2 = self.state.branch.chunk_log2;
        let start = (from << log2).max(offset);
        to.checked_shl(log2 as u32).unwrap_or(u64::MAX).min(end).saturating_sub(start)
    }

    /// The runs of one chunk of which something may be staged; false when the list is full.
    fn staged_runs(&self, chunk: u64, offset: u64, end: u64, runs: &mut Runs) -> Result<bool> {
        let log2 = self.state.branch.chunk_log2;
        let mut start = (chunk << log2).max(offset);
        let stop = ((chunk + 1) << log2).min(end);
        while start < stop {
            let next = ((start / STRIDE + 1) * STRIDE).min(stop);
            if !self.staged_part(chunk, start..next, runs)? {
                return Ok(false);
            }
            start = next;
        }
        Ok(true)
    }

    /// The runs of a part of a chunk. Staging is asked before the map, as by a read.
    fn staged_part(&self, chunk: u64, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
        let branch = &self.state.branch;
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let sources: Vec<_> = blocks.clone().map(|b| branch.staging.resolve(b)).collect();
        let (number, index) = MapPage::locate(chunk);
        let page = self.pool.map.load((branch.id, number))?;
        let mapped = page.get(index).is_some_and(|e| e.slot != Slot::HOLE);
        let kind = |source: &Source| match source {
            Source::Below if mapped => DATA,
            Source::Below => HOLE,
            Source::Journal(_) => DATA,
            // A discard counts from its acknowledgement; that the slot goes later is nobody's business. Of a part of a
            // chunk it may turn out then that the space stays.
            Source::Zeros(keeps_space) => (*keeps_space, true),
        };
        for (block, sources) in blocks.zip(&sources) {
            let start = bytes.start.max(block * BLOCK);
            let end = bytes.end.min((block + 1) * BLOCK);
            let sectors = &sources[(start % BLOCK / SECTOR) as usize..][..((end - start) / SECTOR) as usize];
            for run in sectors.chunk_by(|a, b| kind(a) == kind(b)) {
                if !runs.push(run.len() as u64 * SECTOR, kind(&run[0])) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
