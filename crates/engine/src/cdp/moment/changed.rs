//! The changes that the log recorded between two moments. Differences use them.

use crate::branch::Branch;
use crate::catalog::SegmentRecord;
use crate::cdp::log::record::{ENTRIES, IndexEntry};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Chunk, Lsn};
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::Arc;

/// The number of index entries that one step reads, over all segments. It may be exceeded by a
/// block of each segment.
const ENTRIES_PER_STEP: usize = 16 << 10;

/// The changes of a branch after one moment and up to another.
pub(crate) struct Recorded {
    branch: Arc<Branch>,
    lsns: RangeInclusive<Lsn>,
}

/// One search of the indexes, chunk after chunk in each segment.
struct Step<'a> {
    lsns: &'a RangeInclusive<Lsn>,
    chunk_log2: u8,
    found: Vec<Range<u64>>,
    /// The first chunk that the answer does not cover.
    end: Chunk,
    /// The number of entries of a segment after which the step ends. It ends behind the chunk that
    /// it has begun.
    most: usize,
    looked: usize,
    chunk: Chunk,
    /// The number of entries of the current chunk that were read.
    of_chunk: usize,
    /// The chunk from which the search of the segment continues. The chunk before it had more
    /// entries than a step reads, and counts as changed as a whole.
    go_on: Option<Chunk>,
}

impl Recorded {
    /// The changes between two moments, in any order. [`Lsn::MAX`] stands for the present at each
    /// look. Fails with [`ErrorKind::Unsupported`] if not everything was recorded, or is not known
    /// any more.
    pub(crate) fn between(branch: &Arc<Branch>, one: Lsn, other: Lsn) -> Result<Recorded> {
        let lsns = one.min(other).next()..=one.max(other);
        let recorded = Recorded { branch: branch.clone(), lsns };
        recorded.check()?;
        Ok(recorded)
    }

    /// The changes after an anchor and up to a moment that is kept. The caller ensures that the
    /// anchor still exists: as long as it exists, all of these records exist too.
    pub(super) fn since_anchor(branch: &Arc<Branch>, anchor: Lsn, lsn: Lsn) -> Recorded {
        Recorded { branch: branch.clone(), lsns: anchor.next()..=lsn }
    }

    fn check(&self) -> Result<()> {
        if self.lsns.is_empty() {
            return Ok(());
        }
        let from = self.lsns.start().prev();
        let log = self.branch.cdp.log.read();
        let why = if log.floor() > from {
            format!("the history begins at LSN {}, later than LSN {from}", log.floor())
        } else if log.recording_since(*self.lsns.end()).is_none_or(|since| since > from) {
            format!("CDP was off at LSN {from}, or later")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, format!("compare a moment with another state: {why}")))
    }

    /// Returns the parts of `bytes` that were written to, and perhaps others. They are in any
    /// order, and a part may occur more than once. Shortens `bytes` to what the answer covers, so
    /// that the work is bounded.
    pub(crate) fn touched(&self, bytes: &mut Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut found = self.records(bytes)?;
        found.extend(self.emptied());
        // Records that expired meanwhile may be missing.
        self.check()?;
        Ok(found)
    }

    /// Returns the ranges that became zeros without a record.
    pub(super) fn emptied(&self) -> Vec<Range<u64>> {
        if self.lsns.is_empty() {
            return Vec::new();
        }
        let log = self.branch.cdp.log.read();
        log.events.range(self.lsns.clone()).filter_map(|(_, event)| event.emptied()).collect()
    }

    /// Returns the parts that records changed, as [`Recorded::touched`] does, without events.
    pub(super) fn records(&self, bytes: &mut Range<u64>) -> Result<Vec<Range<u64>>> {
        if self.lsns.is_empty() {
            return Ok(Vec::new());
        }
        let chunk_log2 = self.branch.chunk_log2;
        let chunks = self.branch.chunks(bytes.start, bytes.end - bytes.start);
        let touches = |r: &SegmentRecord| {
            r.lsns.0 <= *self.lsns.end()
                && r.lsns.1 >= *self.lsns.start()
                && r.chunks.0 < chunks.end
                && r.chunks.1 >= chunks.start
        };
        let mut step = Step::new(&self.lsns, chunk_log2, chunks.end);
        let mut sealed: Vec<_> = {
            let log = self.branch.cdp.log.read();
            let sealed: Vec<_> = log.sealed.values().filter(|s| touches(&s.record)).cloned().collect();
            step.most = (ENTRIES_PER_STEP / (sealed.len() + 1)).max(ENTRIES);
            if let Some(open) = log.open.as_ref().filter(|open| touches(&open.record)) {
                step.look(chunks.start, |from, take| open.visit(from, take))?;
            }
            sealed
        };
        // Segments behind the end of the step are not read.
        sealed.sort_unstable_by_key(|segment| segment.record.chunks.0);
        for segment in &sealed {
            if segment.record.chunks.0 >= step.end {
                break;
            }
            step.look(chunks.start, |from, take| segment.visit(from, take))?;
        }
        bytes.end = bytes.end.min(step.end.start(chunk_log2));
        Ok(step.found)
    }
}

impl<'a> Step<'a> {
    fn new(lsns: &'a RangeInclusive<Lsn>, chunk_log2: u8, end: Chunk) -> Self {
        let found = Vec::new();
        Step {
            lsns,
            chunk_log2,
            found,
            end,
            most: 0,
            looked: 0,
            chunk: Chunk::FIRST,
            of_chunk: 0,
            go_on: None,
        }
    }

    /// Searches one segment from a chunk on.
    fn look(
        &mut self,
        first: Chunk,
        visit: impl Fn(Chunk, &mut dyn FnMut(&IndexEntry) -> ControlFlow<()>) -> Result<()>,
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
        let chunk = entry.chunk.bytes(self.chunk_log2);
        if self.of_chunk > self.most {
            self.found.push(chunk);
            self.go_on = Some(entry.chunk.next());
            return ControlFlow::Break(());
        }
        if self.lsns.contains(&entry.lsn) {
            let at = |inside: usize| chunk.start.saturating_add(inside as u64);
            self.found.push(at(entry.bytes().start)..at(entry.bytes().end));
        }
        ControlFlow::Continue(())
    }
}
