//! Where a moment may show anything, found without reconstructing it: for block status.
//!
//! What is told is never less than what there is. A chunk at a moment is the chunk at the anchor before, with the records
//! between the two applied ([`super::rebuild`]). So where nothing is recorded between them it is what the anchor's epoch has
//! of it, by the map; where something is, it counts as data, whatever that was. What an event emptied in between (a long
//! discard, a smaller size) and no record touched is zeros: records may have come before or after, so one is enough to
//! decide against zeros.
//!
//! The oldest moments of a history have no anchor before them any more; they are found backward, from anchors behind them, or
//! from what is in place. A chunk that was not recorded since then is what one of those has of it. Nothing is lost without a
//! version or a record: what changes a chunk is recorded, or it comes behind an anchor, for which a version keeps what was
//! there (long discards, smaller sizes, all that comes after CDP was switched off). So a chunk with nothing in place, without a
//! version and without a record since shows what lies below the branch. Of the three the log is asked last: what leaves its
//! place is a version or a record before that.
//!
//! What of a history can't be read counts as data: who reads it gets the error, not zeros. A chunk with a gap (content that
//! could not be read when it was replaced) has records where that is.

use super::moment::At;
use super::recorded::Recorded;
use crate::error::{ErrorKind, Result};
use crate::map::Held;
use crate::map::page::{CHUNKS, Entry, MapPage, Slot};
use crate::pool::Pool;
use crate::pool::line::{Branch, HEAD, Line};
use crate::staging::union;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// What a moment of a branch has somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Perhaps something.
    Data,
    /// Zeros.
    Zeros,
    /// Nothing itself: what lies below the branch shows.
    Below,
}

/// Ranges end to end.
#[derive(Default)]
struct Parts(Vec<(Range<u64>, Shown)>);

impl Parts {
    fn push(&mut self, range: Range<u64>, shown: Shown) {
        match self.0.last_mut() {
            Some((last, kind)) if *kind == shown => last.end = range.end,
            _ => self.0.push((range, shown)),
        }
    }

    /// The same with other ranges, in order and apart from one another, over them.
    fn under(self, over: &[Range<u64>], shown: Shown) -> Parts {
        let mut over = over.iter().peekable();
        let mut found = Parts::default();
        for (part, kind) in self.0 {
            let mut at = part.start;
            while at < part.end {
                while over.next_if(|range| range.end <= at).is_some() {}
                let (end, kind) = match over.peek() {
                    Some(range) if range.start <= at => (range.end.min(part.end), shown),
                    Some(range) => (range.start.min(part.end), kind),
                    None => (part.end, kind),
                };
                found.push(at..end, kind);
                at = end;
            }
        }
        found
    }

    fn in_bytes(self, chunk_size: u64, bytes: &Range<u64>) -> Vec<(Range<u64>, Shown)> {
        let clamp = |chunk: u64| chunk.saturating_mul(chunk_size).clamp(bytes.start, bytes.end);
        let parts = self.0.into_iter().map(|(part, shown)| (clamp(part.start)..clamp(part.end), shown));
        parts.filter(|(part, _)| !part.is_empty()).collect()
    }
}

impl Pool {
    /// What a moment has in `bytes`, end to end from their start on, chunk by chunk; perhaps not to their end, but at least in
    /// one chunk.
    pub(crate) fn shown_at(&self, at: &At, bytes: Range<u64>) -> Result<Vec<(Range<u64>, Shown)>> {
        match self.look_at(at, &bytes) {
            Err(error) if error.kind() == ErrorKind::Lost => Ok(vec![(bytes, Shown::Data)]),
            found => found,
        }
    }

    fn look_at(&self, at: &At, bytes: &Range<u64>) -> Result<Vec<(Range<u64>, Shown)>> {
        self.check_histories()?;
        let (branch, lsn) = (at.branch(), at.place().1);
        loop {
            let Some(anchor) = branch.cdp.log.read().anchor_before(lsn) else {
                return Ok(vec![(bytes.clone(), Shown::Data)]);
            };
            let found = match anchor {
                Some((from, epoch)) => self.shown_since(branch, (from, epoch), lsn, bytes),
                None => self.shown_until(branch, lsn, bytes),
            };
            // One that expired meanwhile may have been dissolved, and its records with it.
            let there = |(from, _)| branch.cdp.log.read().events.contains_key(&from);
            if anchor.is_none_or(there) {
                return found;
            }
        }
    }

    /// From the anchor before.
    fn shown_since(
        &self,
        branch: &Arc<Branch>,
        (from, epoch): (u64, u32),
        lsn: u64,
        bytes: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, Shown)>> {
        let mut bytes = bytes.clone();
        let recorded = Recorded::since_anchor(branch, from, lsn);
        let records = recorded.records(&mut bytes)?;
        let (size, chunks) = (branch.chunk_size(), branch.chunks(bytes.start, bytes.end - bytes.start));
        let line = Line { branch: branch.clone(), epoch, at: None };
        // Whole chunks only.
        let emptied =
            recorded.emptied().into_iter().map(|range| range.start.div_ceil(size)..range.end / size);
        let emptied = union(emptied.filter(|range| range.start < range.end).collect());
        let placed = self.placed_in(&line, chunks)?;
        let parts = placed.under(&emptied, Shown::Zeros).under(&touched(branch, &records), Shown::Data);
        Ok(parts.in_bytes(size, &bytes))
    }

    /// From what is behind the moment: there is no anchor before it.
    fn shown_until(
        &self,
        branch: &Arc<Branch>,
        lsn: u64,
        bytes: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, Shown)>> {
        let (mut bytes, size) = (bytes.clone(), branch.chunk_size());
        let chunks = branch.chunks(bytes.start, bytes.end - bytes.start);
        let placed = self.ever_placed_in(branch, chunks)?;
        let records = Recorded::since_anchor(branch, lsn, u64::MAX).records(&mut bytes)?;
        let parts = placed.under(&touched(branch, &records), Shown::Data);
        Ok(parts.in_bytes(size, &bytes))
    }

    /// What the map of a line has.
    fn placed_in(&self, line: &Line, chunks: Range<u64>) -> Result<Parts> {
        let mut parts = Parts::default();
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let number = chunk / CHUNKS;
            let mut end = (chunks.end - 1) / CHUNKS + 1;
            let held = self.map.held(line, number, &mut end)?;
            let next =
                if held == Held::Page { number + 1 } else { end }.saturating_mul(CHUNKS).min(chunks.end);
            match held {
                Held::Nothing => parts.push(chunk..next, Shown::Below),
                Held::Hole(_) => parts.push(chunk..next, Shown::Zeros),
                Held::Page => {
                    let page = self.map.load(line, number)?;
                    for chunk in chunk..next {
                        let shown = match page.get(MapPage::locate(chunk).1) {
                            None => Shown::Below,
                            Some(Entry { slot: Slot::HOLE, .. }) => Shown::Zeros,
                            Some(_) => Shown::Data,
                        };
                        parts.push(chunk..chunk + 1, shown);
                    }
                }
            }
            chunk = next;
        }
        Ok(parts)
    }

    /// What a branch has in place, or any version of. A hole may have come at any time, so it says nothing.
    fn ever_placed_in(&self, branch: &Arc<Branch>, chunks: Range<u64>) -> Result<Parts> {
        let head = Line { branch: branch.clone(), epoch: HEAD, at: None };
        let mut parts = Parts::default();
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let (number, last) = (chunk / CHUNKS, (chunks.end - 1) / CHUNKS);
            // In this order: what leaves its place becomes a version.
            let placed = self.catalog.next_mapped(branch.id, number, last)?;
            let kept = self.catalog.next_version(branch.id, number * CHUNKS)?.map(|chunk| chunk / CHUNKS);
            let next =
                placed.into_iter().chain(kept).min().map_or(chunks.end, |page| page.saturating_mul(CHUNKS));
            if next > chunk {
                let next = next.min(chunks.end);
                parts.push(chunk..next, Shown::Below);
                chunk = next;
                continue;
            }
            let end = (number + 1).saturating_mul(CHUNKS).min(chunks.end);
            let page = self.map.load(&head, number)?;
            let kept = self.catalog.versions_in(branch.id, chunk..end)?;
            let kept: BTreeSet<u64> = kept.iter().map(|version| version.key.1).collect();
            for chunk in chunk..end {
                let placed = page.get(MapPage::locate(chunk).1).is_some_and(|entry| entry.slot != Slot::HOLE);
                let shown = if placed || kept.contains(&chunk) { Shown::Data } else { Shown::Below };
                parts.push(chunk..chunk + 1, shown);
            }
            chunk = end;
        }
        Ok(parts)
    }
}

/// The chunks that ranges of bytes lie in.
fn touched(branch: &Branch, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    union(ranges.iter().map(|range| branch.chunks(range.start, range.end - range.start)).collect())
}
