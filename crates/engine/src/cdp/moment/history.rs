//! The view of a volume's history: the moments that it can be taken back to, the times at which a
//! range changed, and records to measure with.

use crate::branch::Branch;
use crate::catalog::{Event, SegmentRecord};
use crate::cdp::log::LogState;
use crate::cdp::log::record::IndexEntry;
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Lsn, SnapshotId, Stamp};
use crate::info::history::{Change, Span};
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;

/// The largest number of buckets of a history. Each bucket takes memory.
pub(crate) const MAX_BUCKETS: usize = 10_000;

impl Destager {
    /// Records everything up to `lsn`: it is written to the journal, and then carried out.
    pub(crate) fn record_until(&self, lsn: Lsn) -> Result<()> {
        if self.core.positions.settled() >= lsn {
            return Ok(());
        }
        self.core.positions.history_waits.fetch_add(1, Ordering::Relaxed);
        self.core.journal.write_out(lsn.min(self.core.journal.last().lsn))?;
        self.destage_to(lsn)
    }

    /// Records everything that is not later than `time`, batch by batch. While a client goes on
    /// writing, that is less than everything.
    pub(crate) fn record_until_time(&self, time: u64) -> Result<()> {
        let last = self.core.journal.last().lsn;
        let is_recorded = || {
            // Times grow with LSNs.
            time < self.core.positions.settled_time.load(Ordering::Acquire)
                || last <= self.core.positions.settled()
        };
        if !is_recorded() {
            self.core.positions.history_waits.fetch_add(1, Ordering::Relaxed);
        }
        while !is_recorded() {
            self.core.journal.write_out(last)?;
            if !self.destage_once(last)? {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the anchors of a log as (stamp, snapshot).
pub(crate) fn anchors_of(log: &LogState) -> Vec<(Stamp, SnapshotId)> {
    let anchors = log.events.iter().filter_map(|(lsn, event)| match event {
        // Moments before the floor are gone, though what lies behind it may still need their
        // anchor.
        Event::Anchor { snapshot, time, .. } if *lsn >= log.floor() => {
            Some((Stamp::new(*lsn, *time), *snapshot))
        }
        _ => None,
    });
    anchors.collect()
}

impl LogState {
    /// Returns about when a record had an LSN, from the ends of segments and the events.
    pub(crate) fn estimate_time(&self, lsn: Lsn) -> Option<u64> {
        let ends = self.sealed.values().flat_map(|s| [s.record.first(), s.record.last()]);
        let open = self.open.iter().filter(|open| open.record.records > 0);
        let ends = ends.chain(open.flat_map(|open| [open.record.first(), open.record.last()]));
        let known: Vec<Stamp> =
            ends.chain(self.events.iter().map(|(lsn, event)| Stamp::new(*lsn, event.time()))).collect();
        let before = known.iter().filter(|at| at.lsn <= lsn).max_by_key(|at| at.lsn);
        let after = known.iter().filter(|at| at.lsn >= lsn).min_by_key(|at| at.lsn);
        match (before, after) {
            (Some(one), Some(other)) if one.lsn < other.lsn => {
                let part = u128::from(lsn.0 - one.lsn.0) * u128::from(other.time.saturating_sub(one.time));
                Some(one.time + (part / u128::from(other.lsn.0 - one.lsn.0)) as u64)
            }
            (one, other) => one.or(other).map(|at| at.time),
        }
    }

    /// Returns the stretches in which a branch was recorded. The last one continues unless the
    /// branch ended.
    pub(crate) fn spans(&self, branch: BranchId, end: Option<Stamp>) -> Vec<Span> {
        let floor = self.floor_stamp().unwrap_or_default();
        let mut spans: Vec<Span> = Vec::new();
        for (lsn, event) in &self.events {
            match event {
                Event::On { begins: true, time, .. } => {
                    spans.push(Span { branch, from: Stamp::new(*lsn, *time).max(floor), to: None });
                }
                Event::Off { time } => {
                    if let Some(span) = spans.last_mut() {
                        span.to = Some(Stamp::new(*lsn, *time));
                    }
                }
                _ => {}
            }
        }
        if let Some(span) = spans.last_mut().filter(|span| span.to.is_none()) {
            span.to = end;
        }
        // Spans that ended before the floor no longer exist.
        spans.retain(|span| span.to.is_none_or(|to| to > span.from));
        spans
    }
}

impl Branch {
    /// Adds changes to `found`: at least the oldest `limit` of this branch, if there are that many.
    /// A batch that fills several segments has its oldest LSNs in each of them.
    pub(crate) fn changes(
        &self,
        bytes: &Range<u64>,
        lsns: &RangeInclusive<Lsn>,
        limit: usize,
        found: &mut Vec<Change>,
    ) -> Result<()> {
        let chunk_log2 = self.chunk_log2;
        let last = Chunk::of(bytes.end.saturating_sub(1), chunk_log2);
        let chunks = Chunk::of(bytes.start, chunk_log2)..=last;
        let touches = |r: &SegmentRecord| {
            r.lsns.0 <= *lsns.end()
                && r.lsns.1 >= *lsns.start()
                && r.chunks.0 <= *chunks.end()
                && r.chunks.1 >= *chunks.start()
        };
        let change = |e: &IndexEntry| {
            let start = e.chunk.start(chunk_log2).saturating_add(e.bytes().start as u64);
            let end = start.saturating_add(e.bytes().len() as u64);
            clipped(start..end, bytes).map(|(offset, length)| Change {
                lsn: e.lsn,
                time: e.time,
                offset,
                length,
            })
        };
        let wanted = |e: &&IndexEntry| lsns.contains(&e.lsn) && chunks.contains(&e.chunk);
        let (floor, sealed, open, emptied) = {
            let log = self.cdp.log.read();
            let mut sealed: Vec<_> = log.sealed.values().filter(|s| touches(&s.record)).cloned().collect();
            sealed.sort_by_key(|segment| segment.record.lsns.0);
            let open = log.open.as_ref().filter(|open| touches(&open.record));
            let open = open.map(|open| {
                open.check().map(|()| {
                    open.entries.values().filter(wanted).filter_map(change).collect::<Vec<Change>>()
                })
            });
            let emptied =
                log.events.iter().filter(|(lsn, _)| lsns.contains(lsn)).filter_map(|(lsn, event)| {
                    let (offset, length) = clipped(event.emptied()?, bytes)?;
                    Some(Change { lsn: *lsn, time: event.time(), offset, length })
                });
            (log.floor(), sealed, open.transpose()?, emptied.collect::<Vec<Change>>())
        };
        // A segment that begins before the floor may still have records from before the floor.
        let kept = |change: &Change| change.lsn > floor;
        let (mut count, mut newest) = (0, Lsn::ZERO);
        for segment in sealed {
            if count >= limit && segment.record.lsns.0 > newest {
                // The changes in this segment, and in all that follow, are newer than those that
                // were found.
                break;
            }
            let all = segment.all_entries()?;
            for change in all.iter().filter(wanted).filter_map(change).filter(kept) {
                newest = change.lsn.max(newest);
                count += 1;
                found.push(change);
            }
        }
        found.extend(open.into_iter().flatten().filter(kept));
        found.extend(emptied.into_iter().filter(kept));
        Ok(())
    }
}

/// Returns the part of a range that lies in another, as offset and length.
fn clipped(range: Range<u64>, within: &Range<u64>) -> Option<(u64, u64)> {
    let (start, end) = (range.start.max(within.start), range.end.min(within.end));
    (start < end).then(|| (start, end - start))
}
