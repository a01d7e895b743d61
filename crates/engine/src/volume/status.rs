//! What is allocated and what reads as zeros (NBD `base:allocation`, SCSI GET LBA STATUS).

use super::Volume;
use crate::device::StatusRun;
use crate::error::Result;
use crate::journal::record::{BLOCK, SECTOR};
use crate::map::page::{CHUNKS, MapPage, Slot};
use crate::pool::line::{HEAD, Line};
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
        let mut runs = Runs { runs: Vec::new(), max: max_runs.max(1) };
        let chunks = self.branch().chunks(offset, len);
        let last = chunks.end.min(chunks.start + MAX_CHUNKS);
        let end = (offset + len).min(last << self.branch().chunk_log2);
        self.line_runs(&self.state.line, offset..end, &mut runs)?;
        Ok(runs.runs)
    }

    /// The runs of a range of a line; false when the list is full.
    fn line_runs(&self, line: &Line, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
        let branch = &line.branch;
        // Asked once, before any page: what was acknowledged before is staged, or in every page looked at from here on.
        if branch.staging.is_empty() {
            return self.mapped_runs(line, bytes, runs);
        }
        let mut start = bytes.start;
        while start < bytes.end {
            let chunk_end = ((start >> branch.chunk_log2) + 1) << branch.chunk_log2;
            let next = ((start / STRIDE + 1) * STRIDE).min(chunk_end).min(bytes.end);
            if !self.staged_part(line, start..next, runs)? {
                return Ok(false);
            }
            start = next;
        }
        Ok(true)
    }

    /// The runs of a range of which nothing is staged.
    fn mapped_runs(&self, line: &Line, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
        let branch = &line.branch;
        let chunks = branch.chunks(bytes.start, bytes.end - bytes.start);
        let clamp = |chunk: u64| {
            chunk.checked_shl(branch.chunk_log2.into()).unwrap_or(u64::MAX).clamp(bytes.start, bytes.end)
        };
        let mut page: Option<(u64, Arc<MapPage>)> = None;
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let (number, index) = MapPage::locate(chunk);
            if page.as_ref().is_none_or(|(held, _)| *held != number) {
                page = self.pool.map.cached(line, number).map(|page| (number, page));
                if page.is_none() {
                    // Pages that do not exist are skipped at one look.
                    let next = self.next_page(line, number, (chunks.end - 1) / CHUNKS)?;
                    let next = next.map_or(chunks.end, |n| (n * CHUNKS).clamp(chunk, chunks.end));
                    if next > chunk {
                        if !self.absent_runs(line, clamp(chunk)..clamp(next), runs)? {
                            return Ok(false);
                        }
                        chunk = next;
                        continue;
                    }
                    page = Some((number, self.pool.map.load(line, number)?));
                }
            }
            let range = clamp(chunk)..clamp(chunk + 1);
            let pushed = match page.as_ref().and_then(|(_, p)| p.get(index)) {
                Some(entry) => {
                    runs.push(range.end - range.start, if entry.slot == Slot::HOLE { HOLE } else { DATA })
                }
                None => self.absent_runs(line, range, runs)?,
            };
            if !pushed {
                return Ok(false);
            }
            chunk += 1;
        }
        Ok(true)
    }

    /// The first page in `first..=last` in which `line` may have entries of its own.
    pub(super) fn next_page(&self, line: &Line, first: u64, last: u64) -> Result<Option<u64>> {
        let current = self.pool.catalog.next_page(line.branch.id, first, last)?;
        if line.epoch == HEAD {
            return Ok(current);
        }
        let version = self.pool.catalog.next_version(line.branch.id, first * CHUNKS)?;
        let version = version.map(|chunk| chunk / CHUNKS).filter(|page| *page <= last);
        Ok(current.into_iter().chain(version).min())
    }

    /// The runs of a range of which the line itself has nothing.
    fn absent_runs(&self, line: &Line, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
        match &line.branch.base {
            Some(base) => self.line_runs(base, bytes, runs),
            None => Ok(runs.push(bytes.end - bytes.start, HOLE)),
        }
    }

    /// The runs of a part of a chunk of which something may be staged. Staging is asked before the map, as by a read.
    fn staged_part(&self, line: &Line, bytes: Range<u64>, runs: &mut Runs) -> Result<bool> {
        let branch = &line.branch;
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let sources: Vec<_> = blocks.clone().map(|b| branch.staging.resolve(b, line.epoch)).collect();
        let (number, index) = MapPage::locate(bytes.start >> branch.chunk_log2);
        let entry = self.pool.map.load(line, number)?.get(index);
        let mapped = entry.is_some_and(|e| e.slot != Slot::HOLE);
        let kind = |source: &Source| match source {
            Source::Below if mapped => DATA,
            Source::Below => HOLE,
            Source::Journal(_) => DATA,
            // A discard counts from its acknowledgement; that the slot goes later is nobody's business. Of a part of a
            // chunk it may turn out then that the space stays.
            Source::Zeros(keeps_space) => (*keeps_space, true),
        };
        for (block, sources) in blocks.zip(&sources) {
            let mut at = bytes.start.max(block * BLOCK);
            let end = bytes.end.min((block + 1) * BLOCK);
            let sectors = &sources[(at % BLOCK / SECTOR) as usize..][..((end - at) / SECTOR) as usize];
            for run in
                sectors.chunk_by(|a, b| kind(a) == kind(b) && (*a == Source::Below) == (*b == Source::Below))
            {
                let next = at + run.len() as u64 * SECTOR;
                let pushed = match run[0] {
                    Source::Below if entry.is_none() => self.absent_runs(line, at..next, runs)?,
                    _ => runs.push(next - at, kind(&run[0])),
                };
                if !pushed {
                    return Ok(false);
                }
                at = next;
            }
        }
        Ok(true)
    }
}
