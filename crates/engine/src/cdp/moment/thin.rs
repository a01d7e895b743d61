//! Block status of a moment: where a moment may show content, found without reconstructing it.
//!
//! The answer never reports less content than there is. A chunk at a moment is the chunk at the
//! anchor before it, with the records between the two applied
//! ([`crate::cdp::moment::reconstruct`]):
//!
//! - If no record of the chunk lies between the two, the map has what the anchor's epoch has of it.
//! - If a record lies between the two, the chunk counts as data, whatever the record holds.
//! - If an event emptied the chunk between the two (a long discard, a smaller size) and no record
//!   touched it, the chunk reads as zeros. Records may have come before or after the event, so one
//!   record is enough to decide against zeros.
//!
//! The oldest moments of a history have no anchor before them any more. They are found backward,
//! from anchors behind them, or from the content in place. A chunk that was not recorded since the
//! moment is as one of those has it. No content is lost without a version or a record. A change of
//! a chunk is recorded, or it comes behind an anchor, for which a version keeps what was there
//! (long discards, smaller sizes, everything that comes after CDP was switched off). So a chunk
//! with nothing in place, without a version and without a record since the moment shows what lies
//! below the branch.
//!
//! Content that leaves its place is in a version or a record. The catalog knows both as soon as it
//! knows that the content left. The log in memory knows it a little later, and a batch leaves
//! staging after that. So the map is asked first, then staging, then the log: content that the map
//! has lost is found in one of the two. What is staged counts as data, whatever it is.
//!
//! A part of a history that can't be read, or has expired, counts as data: a reader of it gets the
//! error, not zeros. A chunk with a gap (content that could not be read when it was replaced) has
//! records where the gap is.

use super::changed::Recorded;
use crate::branch::pinned::PinnedMoment;
use crate::branch::{Branch, HEAD, View};
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::ids::{Chunk, Epoch, Lsn};
use crate::map::Held;
use crate::staging::union;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The number of staged ranges that one look finds. It bounds the memory of the look.
const STAGED_PER_LOOK: usize = 4096;

/// The kind of content that a moment of a branch shows in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The moment may have content there.
    Data,
    /// The moment shows zeros there.
    Zeros,
    /// The branch itself has nothing there: what lies below the branch shows.
    Below,
}

/// Ranges of bytes or chunks that follow one another, and what each shows.
struct Parts<T>(Vec<(Range<T>, Shown)>);

impl<T: Copy + Ord> Parts<T> {
    fn push(&mut self, range: Range<T>, shown: Shown) {
        match self.0.last_mut() {
            Some((last, kind)) if *kind == shown => last.end = range.end,
            _ => self.0.push((range, shown)),
        }
    }

    /// Returns the ranges with the ranges `over` laid over them. `over` is in order, and its ranges
    /// do not touch.
    fn under(self, over: &[Range<T>], shown: Shown) -> Parts<T> {
        let mut over = over.iter().peekable();
        let mut found = Parts(Vec::new());
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
}

impl Parts<Chunk> {
    fn in_bytes(self, chunk_log2: u8, bytes: &Range<u64>) -> Vec<(Range<u64>, Shown)> {
        let clamp = |chunk: Chunk| chunk.start(chunk_log2).clamp(bytes.start, bytes.end);
        let parts = self.0.into_iter().map(|(part, shown)| (clamp(part.start)..clamp(part.end), shown));
        parts.filter(|(part, _)| !part.is_empty()).collect()
    }
}

impl Core {
    /// Returns what a moment shows in `bytes`, in ranges that follow one another from the start of
    /// `bytes`, chunk by chunk. They may end before the end of `bytes`, but cover at least one
    /// chunk.
    pub(crate) fn shown_at(&self, at: &PinnedMoment, bytes: Range<u64>) -> Result<Vec<(Range<u64>, Shown)>> {
        let _reading = self.readers.enter();
        let (lsn, unsettled) = self.settled_before(at);
        match self.look_at(at.branch(), lsn, &bytes) {
            // A read of it may still succeed (another way leads there), or fails in a way of its
            // own.
            Err(error) if error.kind() != ErrorKind::Poisoned => Ok(vec![(bytes, Shown::Data)]),
            found => match unsettled {
                // Unsettled records count as if they were recorded.
                Some(unsettled) => {
                    let touched: Vec<_> = unsettled.touched(bytes).collect();
                    Ok(Parts(found?).under(&touched, Shown::Data).0)
                }
                None => found,
            },
        }
    }

    /// Returns what a settled moment shows.
    fn look_at(
        &self,
        branch: &Arc<Branch>,
        lsn: Lsn,
        bytes: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, Shown)>> {
        self.check_histories()?;
        loop {
            let Some(anchor) = branch.cdp.log.read().anchor_before(lsn) else {
                return Ok(vec![(bytes.clone(), Shown::Data)]);
            };
            let found = match anchor {
                Some((from, epoch)) => self.shown_since(branch, (from, epoch), lsn, bytes),
                None => self.shown_until(branch, lsn, bytes),
            };
            let log = branch.cdp.log.read();
            // The moment was held too late, so some of the records since then may be gone.
            if log.floor() > lsn || log.recording_since(lsn).is_none() {
                return Ok(vec![(bytes.clone(), Shown::Data)]);
            }
            // An anchor that expired meanwhile may have been dissolved, and its records with it.
            if anchor.is_none_or(|(from, _)| log.events.contains_key(&from)) {
                return found;
            }
        }
    }

    /// Finds what the moment shows from the anchor before it.
    fn shown_since(
        &self,
        branch: &Arc<Branch>,
        (from, epoch): (Lsn, Epoch),
        lsn: Lsn,
        bytes: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, Shown)>> {
        let mut bytes = bytes.clone();
        let recorded = Recorded::since_anchor(branch, from, lsn);
        let records = recorded.records(&mut bytes)?;
        let chunks = branch.chunks(bytes.start, bytes.end - bytes.start);
        let line = View { branch: branch.clone(), epoch, at: None };
        let emptied = recorded.emptied().into_iter().map(|range| branch.whole_chunks(&range));
        let emptied = union(emptied.filter(|range| range.start < range.end).collect());
        let placed = self.placed_in(&line, chunks)?;
        let parts = placed.under(&emptied, Shown::Zeros).under(&touched(branch, &records), Shown::Data);
        Ok(parts.in_bytes(branch.chunk_log2, &bytes))
    }

    /// Finds what the moment shows from what lies behind it, because there is no anchor before it.
    fn shown_until(
        &self,
        branch: &Arc<Branch>,
        lsn: Lsn,
        bytes: &Range<u64>,
    ) -> Result<Vec<(Range<u64>, Shown)>> {
        let mut bytes = bytes.clone();
        let chunks = branch.chunks(bytes.start, bytes.end - bytes.start);
        let placed = self.ever_placed_in(branch, chunks)?;
        let mut changed = staged(branch, &mut bytes);
        changed.extend(Recorded::since_anchor(branch, lsn, Lsn::MAX).records(&mut bytes)?);
        let parts = placed.under(&touched(branch, &changed), Shown::Data);
        Ok(parts.in_bytes(branch.chunk_log2, &bytes))
    }

    /// Returns what the map of a line has.
    fn placed_in(&self, line: &View, chunks: Range<Chunk>) -> Result<Parts<Chunk>> {
        let mut parts = Parts(Vec::new());
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let number = chunk.page();
            let mut end = chunks.end.prev().page() + 1;
            let held = self.map.held(line, number, &mut end)?;
            let next = if held == Held::Page { number + 1 } else { end };
            let next = Chunk::first_of(next).min(chunks.end);
            match held {
                Held::Nothing => parts.push(chunk..next, Shown::Below),
                Held::Hole(_) => parts.push(chunk..next, Shown::Zeros),
                Held::Page => {
                    let page = self.map.load(line, number)?;
                    for chunk in Chunk::each(chunk..next) {
                        let shown = match page.get(MapPage::locate(chunk).1) {
                            None => Shown::Below,
                            Some(Entry { slot: Slot::HOLE, .. }) => Shown::Zeros,
                            Some(_) => Shown::Data,
                        };
                        parts.push(chunk..chunk.next(), shown);
                    }
                }
            }
            chunk = next;
        }
        Ok(parts)
    }

    /// Returns what a branch has in place, or has a version of. A hole may have come at any time,
    /// so it proves nothing.
    fn ever_placed_in(&self, branch: &Arc<Branch>, chunks: Range<Chunk>) -> Result<Parts<Chunk>> {
        let head = View::head(branch);
        let mut parts = Parts(Vec::new());
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let (number, last) = (chunk.page(), chunks.end.prev().page());
            // The map is read before the versions, because an entry that leaves the map becomes a
            // version.
            let placed = self.catalog.next_mapped(branch.id, number, last)?;
            let kept = self.catalog.next_version(branch.id, Chunk::first_of(number))?.map(Chunk::page);
            let next = placed.into_iter().chain(kept).min().map_or(chunks.end, Chunk::first_of);
            if next > chunk {
                let next = next.min(chunks.end);
                parts.push(chunk..next, Shown::Below);
                chunk = next;
                continue;
            }
            let end = Chunk::first_of(number + 1).min(chunks.end);
            let page = self.map.load(&head, number)?;
            let kept = self.catalog.versions_in(branch.id, chunk..end)?;
            let kept: BTreeSet<Chunk> = kept.iter().map(|version| version.key.chunk).collect();
            for chunk in Chunk::each(chunk..end) {
                let placed = page.get(MapPage::locate(chunk).1).is_some_and(|entry| entry.slot != Slot::HOLE);
                let shown = if placed || kept.contains(&chunk) { Shown::Data } else { Shown::Below };
                parts.push(chunk..chunk.next(), shown);
            }
            chunk = end;
        }
        Ok(parts)
    }
}

/// Returns what is staged of a branch. Shortens `bytes` to what the answer covers, at least one
/// chunk.
fn staged(branch: &Branch, bytes: &mut Range<u64>) -> Vec<Range<u64>> {
    if branch.staging.is_empty() {
        return Vec::new();
    }
    let (mut found, end) = branch.staging.touched(bytes.clone(), Epoch::NONE..=HEAD, STAGED_PER_LOOK);
    if end < bytes.end {
        // Something is staged there too, so what chunk that is in is known.
        found.push(end..end + 1);
        bytes.end = end.next_multiple_of(branch.chunk_size()).min(bytes.end);
    }
    found
}

/// Returns the chunks that ranges of bytes lie in.
fn touched(branch: &Branch, ranges: &[Range<u64>]) -> Vec<Range<Chunk>> {
    union(ranges.iter().map(|range| branch.chunks(range.start, range.end - range.start)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Event;
    use crate::device::BlockDevice;
    use crate::settings::{AnchorPolicy, CdpSettings};
    use crate::staging;
    use crate::testing::Site;

    /// Makes a volume whose first chunk was written before a moment that has no anchor before it.
    fn without_an_anchor() -> (Site, Arc<PinnedMoment>) {
        let site = Site::new(63).having("v", 16 << 20, 4096);
        let settings = CdpSettings { anchors: AnchorPolicy::Never, ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
        let lsn = site.put(0, 1, 4096);
        site.pool.drain().unwrap();
        let branch = site.pool.core.names.read().volume("v").unwrap().line.branch.clone();
        branch.cdp.change(|log| {
            let is_anchor =
                |(at, event): (&Lsn, &Event)| matches!(event, Event::Anchor { .. }).then_some(*at);
            let anchors: Vec<Lsn> = log.events.iter().filter_map(is_anchor).collect();
            assert!(!anchors.is_empty());
            anchors.into_iter().for_each(|at| log.remove_event(at));
        });
        (site, PinnedMoment::new(&branch, lsn))
    }

    /// The log in memory follows the catalog. In between a discarded chunk is in neither, but it is
    /// still staged.
    #[test]
    fn what_a_batch_takes_away_is_data_all_the_time() {
        let (Site { pool, .. }, at) = without_an_anchor();
        let look = || pool.core.shown_at(&at, 0..3 * 4096).unwrap();
        let shown = [(0..4096, Shown::Data), (4096..3 * 4096, Shown::Below)];
        assert_eq!(look(), shown, "in place");
        let v = pool.open_volume("v", false).unwrap();
        v.discard(0, 4096, true).unwrap();
        assert_eq!(look(), shown, "staged");
        pool.drain().unwrap();
        assert_eq!(look(), shown, "recorded");
        // This is the state between a commit and the publication of its segments.
        let branch = at.branch();
        let mut open = None;
        branch.cdp.change(|log| open = log.open.take());
        assert!(open.is_some() && branch.staging.is_empty());
        assert_eq!(look(), [(0..3 * 4096, Shown::Below)], "it is nowhere else");
        let lsn = pool.stats().sequenced_lsn;
        branch
            .staging
            .insert_range(Epoch(1), staging::Range { start: 0, end: 4096, lsn, keeps_space: false });
        assert_eq!(look(), shown, "committed");
        branch.cdp.change(|log| log.open = open);
        assert_eq!(look(), shown, "published");
    }

    /// When much is staged, the answer is shortened, chunk by chunk.
    #[test]
    fn looks_at_what_is_staged_are_bounded() {
        let (site, at) = without_an_anchor();
        let branch = at.branch();
        let chunks = 3 * STAGED_PER_LOOK as u64;
        for n in 0..chunks {
            let start = n * 8192 + 512;
            let range = staging::Range { start, end: start + 512, lsn: Lsn(1000 + n), keeps_space: false };
            branch.staging.insert_range(Epoch(1), range);
        }
        let (mut start, end, mut looks) = (0, chunks * 8192, 0);
        while start < end {
            for (part, shown) in site.pool.core.shown_at(&at, start..end).unwrap() {
                assert_eq!(part, start..start + 4096);
                assert_eq!(shown == Shown::Data, start % 8192 == 0);
                start = part.end;
            }
            looks += 1;
        }
        assert!((2..=4).contains(&looks), "{looks} looks");
    }

    /// A moment that was opened while it expired.
    #[test]
    fn what_has_expired_is_data() {
        let (site, at) = without_an_anchor();
        let bytes = 8192..16384;
        assert_eq!(site.pool.core.shown_at(&at, bytes.clone()).unwrap(), [(bytes.clone(), Shown::Below)]);
        let lsn = at.place().1.next();
        at.branch().cdp.change(|log| log.put_event(Event::FLOOR_AT, Event::Floor { lsn, time: 1 }));
        assert_eq!(site.pool.core.shown_at(&at, bytes.clone()).unwrap(), [(bytes, Shown::Data)]);
    }
}
