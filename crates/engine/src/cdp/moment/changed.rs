//! What the log says was written between two moments: for differences.

use crate::branch::Branch;
use crate::catalog::SegmentRecord;
use crate::cdp::log::record::{ENTRIES, IndexEntry};
use crate::error::{Error, ErrorKind, Result};
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::Arc;

/// Entries of indexes that one step looks at, over all segments, give or take a block of each.
const ENTRIES_PER_STEP: usize = 16 << 10;

/// What was written to a branch after one moment and up to another.
pub(crate) struct Recorded {
    branch: Arc<Branch>,
    lsns: RangeInclusive<u64>,
}

/// A look at the indexes, chunk after chunk in each segment.
struct Step<'a> {
    lsns: &'a RangeInclusive<u64>,
    chunk_size: u64,
    found: Vec<Range<u64>>,
    /// The first chunk that the answer does not cover.
    end: u64,
    /// Entries of a segment after which it ends, with the chunk that is looked at.
    most: usize,
    looked: usize,
    chunk: u64,
    /// Entries of that chunk.
    of_chunk: usize,
    /// There were more than are looked at: it counts as a whole, and the segment is looked at from
    /// here on.
    go_on: Option<u64>,
}

impl Recorded {
    /// Of two moments in any order; `u64::MAX` is now, whenever that is. [`ErrorKind::Unsupported`]
    /// where not everything was recorded, or is not known any more.
    pub(crate) fn between(branch: &Arc<Branch>, one: u64, other: u64) -> Result<Recorded> {
        let lsns = one.min(other).saturating_add(1)..=one.max(other);
        let recorded = Recorded { branch: branch.clone(), lsns };
        recorded.check()?;
        Ok(recorded)
    }

    /// What was written after an anchor and up to a moment that is kept. Who asks has to see to it
    /// that the anchor is there still: with it are all of these records.
    pub(super) fn since_anchor(branch: &Arc<Branch>, anchor: u64, lsn: u64) -> Recorded {
        Recorded { branch: branch.clone(), lsns: anchor.saturating_add(1)..=lsn }
    }

    fn check(&self) -> Result<()> {
        if self.lsns.is_empty() {
            return Ok(());
        }
        let from = *self.lsns.start() - 1;
        let log = self.branch.cdp.log.read();
        let why = if log.floor() > from {
            format!("of what was written after LSN {from} the history begins at LSN {} only", log.floor())
        } else if log.recording_since(*self.lsns.end()).is_none_or(|since| since > from) {
            format!("CDP was off at LSN {from}, or later")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, format!("compare a moment with another state: {why}")))
    }

    /// The parts of `bytes` (and perhaps others) that were written to, in any order, also more than
    /// once. Shortens `bytes` to what the answer covers: a bounded piece of work.
    pub(crate) fn touched(&self, bytes: &mut Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut found = self.records(bytes)?;
        found.extend(self.emptied());
        // What expired meanwhile may be missing.
        self.check()?;
        Ok(found)
    }

    /// The ranges that became zeros without a record.
    pub(super) fn emptied(&self) -> Vec<Range<u64>> {
        if self.lsns.is_empty() {
            return Vec::new();
        }
        let log = self.branch.cdp.log.read();
        log.events.range(self.lsns.clone()).filter_map(|(_, event)| event.emptied()).collect()
    }

    /// As [`Recorded::touched`], of records alone.
    pub(super) fn records(&self, bytes: &mut Range<u64>) -> Result<Vec<Range<u64>>> {
        if self.lsns.is_empty() {
            return Ok(Vec::new());
        }
        let chunk_size = self.branch.chunk_size();
        let chunks = bytes.start / chunk_size..bytes.end.div_ceil(chunk_size);
        let touches = |r: &SegmentRecord| {
            r.lsns.0 <= *self.lsns.end()
                && r.lsns.1 >= *self.lsns.start()
                && r.chunks.0 < chunks.end
                && r.chunks.1 >= chunks.start
        };
        let mut step = Step::new(&self.lsns, chunk_size, chunks.end);
        let mut sealed: Vec<_> = {
            let log = self.branch.cdp.log.read();
            let sealed: Vec<_> = log.sealed.values().filter(|s| touches(&s.record)).cloned().collect();
            step.most = (ENTRIES_PER_STEP / (sealed.len() + 1)).max(ENTRIES);
            if let Some(open) = log.open.as_ref().filter(|open| touches(&open.record)) {
                step.look(chunks.start, |from, take| open.visit(from, take))?;
            }
            sealed
        };
        // What lies behind the end of the step is not looked at.
        sealed.sort_unstable_by_key(|segment| segment.record.chunks.0);
        for segment in &sealed {
            if segment.record.chunks.0 >= step.end {
                break;
            }
            step.look(chunks.start, |from, take| segment.visit(from, take))?;
        }
        bytes.end = bytes.end.min(step.end.saturating_mul(chunk_size));
        Ok(step.found)
    }
}

impl<'a> Step<'a> {
    fn new(lsns: &'a RangeInclusive<u64>, chunk_size: u64, end: u64) -> Self {
        let found = Vec::new();
        Step { lsns, chunk_size, found, end, most: 0, looked: 0, chunk: 0, of_chunk: 0, go_on: None }
    }

    /// Looks at one segment from a chunk on.
    fn look(
        &mut self,
        first: u64,
        visit: impl Fn(u64, &mut dyn FnMut(&IndexEntry) -> ControlFlow<()>) -> Result<()>,
    ) -> Result<()> {
        (self.looked, self.of_chunk, self.go_on) = (0, 0, Some(first));
        while let Some(from) = self.go_on.take() {
            visit(from, &mut |entry| self.take(entry))?;
        }
        Ok(())
    }

    fn take(&mut self, entry: &IndexEntry) -> ControlFlow<()> {
        if entry.chunk != self.chunk {
            self.of_chunk = 0;
            if entry.chunk < self.end && self.looked >= self.most {
                self.end = entry.chunk;
            }
        }
        if entry.chunk >= self.end {
            return ControlFlow::Break(());
        }
        self.chunk = entry.chunk;
        (self.looked, self.of_chunk) = (self.looked + 1, self.of_chunk + 1);
        let start = entry.chunk.saturating_mul(self.chunk_size);
        if self.of_chunk > self.most {
            self.found.push(start..start.saturating_add(self.chunk_size));
            self.go_on = Some(entry.chunk.saturating_add(1));
            return ControlFlow::Break(());
        }
        if self.lsns.contains(&entry.lsn) {
            let bytes = entry.bytes();
            self.found.push(start.saturating_add(bytes.start as u64)..start.saturating_add(bytes.end as u64));
        }
        ControlFlow::Continue(())
    }
}
