//! Looking back: what of a volume's past can be gone back to, when a range of it changed, and records to measure with.

use super::log::LogState;
use super::record::Entry;
use super::retain::Stretch;
use super::{Anchor, Bucket, Change, History, Mark, Span};
use super::{CdpSample, segment::SegmentFile};
use crate::catalog::{Event, LineRecord, SegmentRecord};
use crate::error::{Result, invalid};
use crate::journal::record::SECTOR;
use crate::pool::Pool;
use crate::pool::line::Branch;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;

/// Buckets of a history: each takes memory.
const MAX_BUCKETS: usize = 10_000;

impl Pool {
    /// What of a volume's past can be gone back to, with its changes over time in so many buckets.
    pub fn history(&self, volume: &str, buckets: usize) -> Result<History> {
        if buckets > MAX_BUCKETS {
            return Err(invalid(format!("list a history: at most {MAX_BUCKETS} buckets")));
        }
        let state = self.names.read().volume(volume)?.clone();
        self.record_until(self.journal.last().0)?;
        let mut history = History { marks: self.marks(state.id), ..History::default() };
        self.look_at_clock();
        history.flushes = self.newest_flushes(state.id)?;
        let stretches = self.stretches(state.id);
        for Stretch { branch, until, .. } in &stretches {
            let anchors = {
                let log = branch.cdp.log.read();
                history.spans.extend(log.spans(branch.id, *until));
                anchors_of(&log)
            };
            // Names come before logs: whoever holds them may look at a log.
            history.anchors.extend(self.named(anchors));
        }
        history.anchors.sort_by_key(|anchor| anchor.lsn);
        history.buckets = self.buckets(&history.spans, &stretches, buckets);
        if let Some(first) = history.spans.iter().map(|span| span.from.1).min() {
            history.clock = self.clock.changes(first);
        }
        self.by_the_wall(&mut history);
        Ok(history)
    }

    /// Turns pool times into what the wall clock said.
    fn by_the_wall(&self, history: &mut History) {
        let History { spans, anchors, marks, flushes, buckets, clock: _ } = history;
        let of_spans = spans.iter_mut().flat_map(|span| [Some(&mut span.from), span.to.as_mut()]).flatten();
        let times = of_spans.chain(flushes).map(|(_, time)| time);
        let times = times.chain(anchors.iter_mut().map(|anchor| &mut anchor.time));
        let times = times.chain(marks.iter_mut().map(|mark| &mut mark.time));
        let times = times.chain(buckets.iter_mut().map(|bucket| &mut bucket.from));
        times.for_each(|time| *time = self.clock.wall(*time));
    }

    /// When a range of bytes changed, with LSNs in a range: the oldest `limit` changes, oldest first.
    pub fn changes(
        &self,
        volume: &str,
        bytes: Range<u64>,
        lsns: RangeInclusive<u64>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let id = self.names.read().volume(volume)?.id;
        self.record_until((*lsns.end()).min(self.journal.last().0))?;
        let mut found = self.recorded(id, &bytes, &lsns, limit)?;
        found.iter_mut().for_each(|change| change.time = self.clock.wall(change.time));
        Ok(found)
    }

    /// The distinct chunks that were written between the last two anchors, or if none were, in all that is kept; of so many
    /// writes at most, the oldest. For the cost model, which asks again and again: what is not destaged yet does not count,
    /// and is not destaged for it.
    pub fn recorded_chunks(&self, volume: &str, limit: usize) -> Result<BTreeSet<u64>> {
        let state = self.names.read().volume(volume)?.clone();
        let mut anchors = BTreeSet::new();
        for stretch in self.stretches(state.id) {
            anchors.extend(anchors_of(&stretch.branch.cdp.log.read()).iter().map(|(lsn, ..)| *lsn));
        }
        let mut newest = anchors.iter().rev();
        let between = match (newest.next(), newest.next()) {
            (Some(last), Some(before)) => before.saturating_add(1)..=*last,
            _ => 0..=u64::MAX,
        };
        let everything = 0..u64::MAX;
        let mut changes = self.recorded(state.id, &everything, &between, limit)?;
        if changes.is_empty() {
            changes = self.recorded(state.id, &everything, &(0..=u64::MAX), limit)?;
        }
        let chunk_size = state.line.branch.chunk_size();
        Ok(changes.iter().map(|change| change.offset / chunk_size).collect())
    }

    /// As [`Pool::changes`], of what is recorded by now.
    fn recorded(
        &self,
        volume: u64,
        bytes: &Range<u64>,
        lsns: &RangeInclusive<u64>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let mut found = Vec::new();
        for stretch in self.stretches(volume) {
            stretch.branch.changes(bytes, lsns, limit, &mut found)?;
        }
        found.sort_by_key(|change: &Change| (change.lsn, change.offset));
        found.truncate(limit);
        Ok(found)
    }

    /// Records of a volume as they are stored, spread over the newest part of its log: at most `limit`.
    pub fn cdp_samples(&self, volume: &str, limit: usize) -> Result<Vec<CdpSample>> {
        let state = self.names.read().volume(volume)?.clone();
        let newest = {
            let log = state.line.branch.cdp.log.read();
            let open = log.open.as_ref().filter(|open| !open.entries.is_empty());
            match open {
                Some(open) => Some((open.file.clone(), open.entries.values().copied().collect())),
                None => match log.sealed.values().next_back().cloned() {
                    Some(sealed) => {
                        drop(log);
                        Some((sealed.file.clone(), sealed.all_entries()?))
                    }
                    None => None,
                },
            }
        };
        let Some((file, entries)): Option<(SegmentFile, Vec<Entry>)> = newest else {
            return Ok(Vec::new());
        };
        let stride = entries.len().div_ceil(limit.max(1)).max(1);
        let file = file.open()?;
        entries.iter().step_by(stride).take(limit).map(|entry| CdpSample::read(&file, entry)).collect()
    }

    /// What is sequenced is recorded when it is carried out, and carried out when it is written.
    pub(crate) fn record_until(&self, lsn: u64) -> Result<()> {
        if self.positions.settled.load(Ordering::Acquire) >= lsn {
            return Ok(());
        }
        self.journal.write_out(lsn.min(self.journal.last().0))?;
        self.destage_to(lsn)
    }

    /// The same for what is not later than a time, batch by batch: where a client goes on writing, that is less than all.
    pub(super) fn record_until_time(&self, time: u64) -> Result<()> {
        let last = self.journal.last().0;
        let is_recorded = || {
            // Times grow with LSNs.
            time < self.positions.settled_time.load(Ordering::Acquire)
                || last <= self.positions.settled.load(Ordering::Acquire)
        };
        while !is_recorded() {
            self.journal.write_out(last)?;
            if !self.destage_once(last)? {
                break;
            }
        }
        Ok(())
    }

    fn marks(&self, volume: u64) -> Vec<Mark> {
        let lines = self.lines.read();
        let of_volume = lines.get(&volume).into_iter().flatten();
        let marks = of_volume.filter_map(|(lsn, line)| match line {
            LineRecord::Mark { name, time } => Some(Mark { name: name.clone(), lsn: *lsn, time: *time }),
            LineRecord::Branch { .. } => None,
        });
        marks.collect()
    }

    /// Anchors with the names of the snapshots that they are.
    fn named(&self, anchors: Vec<(u64, u64, u64)>) -> Vec<Anchor> {
        let names = self.names.read();
        let name = |id: &u64| {
            let snapshot = names.snapshots.get(id).filter(|s| names.is_in_sight(s))?;
            Some(snapshot.state.name.read().clone())
        };
        let named = |(lsn, time, id)| Anchor { lsn, time, snapshot: name(&id) };
        anchors.into_iter().map(named).collect()
    }

    /// Changes over time, from the first moment to the last write. Of segments that are full only the sums are known
    /// without reading: they are spread evenly over the segment's time.
    fn buckets(&self, spans: &[Span], stretches: &[Stretch], count: usize) -> Vec<Bucket> {
        let last = self.journal.last().1;
        let Some(first) = spans.iter().map(|span| span.from.1).min().filter(|_| count > 0) else {
            return Vec::new();
        };
        let length = (last.saturating_sub(first) / count as u64).saturating_add(1);
        let from = |n: usize| first.saturating_add(length.saturating_mul(n as u64));
        let mut buckets: Vec<Bucket> =
            (0..count).map(|n| Bucket { from: from(n), ..Bucket::default() }).collect();
        let at = |time: u64| ((time.saturating_sub(first) / length) as usize).min(count - 1);
        for stretch in stretches {
            let log = stretch.branch.cdp.log.read();
            for segment in log.sealed.values() {
                let record = &segment.record;
                spread(&mut buckets[at(record.times.0)..=at(record.times.1)], record);
            }
            for entry in log.open.iter().flat_map(|open| open.entries.values()) {
                let bucket = &mut buckets[at(entry.time)];
                bucket.records += 1;
                bucket.written += u64::from(entry.sectors) * SECTOR;
                bucket.stored += entry.space();
            }
        }
        buckets
    }
}

/// The anchors of a log: (LSN, time, snapshot).
fn anchors_of(log: &LogState) -> Vec<(u64, u64, u64)> {
    let anchors = log.events.iter().filter_map(|(lsn, event)| match event {
        // Moments before the floor are gone, though what lies behind it may still need their anchor.
        Event::Anchor { snapshot, time, .. } if *lsn >= log.floor() => Some((*lsn, *time, *snapshot)),
        _ => None,
    });
    anchors.collect()
}

/// Adds a segment to the buckets that it lies in; nothing is lost by rounding.
fn spread(buckets: &mut [Bucket], record: &SegmentRecord) {
    let count = buckets.len() as u64;
    for (n, bucket) in buckets.iter_mut().enumerate() {
        let share = |sum: u64| {
            let until = |n: u64| (u128::from(sum) * u128::from(n) / u128::from(count)) as u64;
            until(n as u64 + 1) - until(n as u64)
        };
        bucket.records += share(record.records);
        bucket.written += share(record.written);
        bucket.stored += share(record.bytes());
    }
}

impl LogState {
    /// The stretches in which a branch was recorded; the last one goes on unless the branch ended.
    fn spans(&self, branch: u64, end: Option<(u64, u64)>) -> Vec<Span> {
        let floor = match self.events.get(&0) {
            Some(Event::Floor { lsn, time }) => (*lsn, *time),
            _ => (0, 0),
        };
        let mut spans: Vec<Span> = Vec::new();
        for (lsn, event) in &self.events {
            match event {
                Event::On { begins: true, time, .. } => {
                    spans.push(Span { branch, from: (*lsn, *time).max(floor), to: None });
                }
                Event::Off { time } => {
                    if let Some(span) = spans.last_mut() {
                        span.to = Some((*lsn, *time));
                    }
                }
                _ => {}
            }
        }
        if let Some(span) = spans.last_mut().filter(|span| span.to.is_none()) {
            span.to = end;
        }
        // What ended before the floor is gone.
        spans.retain(|span| span.to.is_none_or(|to| to > span.from));
        spans
    }
}

impl Branch {
    /// Adds changes, at least the oldest `limit` of this branch if there are so many. A batch that fills several segments has
    /// its oldest LSNs in each of them.
    fn changes(
        &self,
        bytes: &Range<u64>,
        lsns: &RangeInclusive<u64>,
        limit: usize,
        found: &mut Vec<Change>,
    ) -> Result<()> {
        let chunk_size = self.chunk_size();
        let chunks = bytes.start / chunk_size..=bytes.end.saturating_sub(1) / chunk_size;
        let touches = |r: &SegmentRecord| {
            r.lsns.0 <= *lsns.end()
                && r.lsns.1 >= *lsns.start()
                && r.chunks.0 <= *chunks.end()
                && r.chunks.1 >= *chunks.start()
        };
        let change = |e: &Entry| {
            let start = e.chunk.saturating_mul(chunk_size).saturating_add(e.bytes().start as u64);
            let end = start.saturating_add(e.bytes().len() as u64);
            clipped(start..end, bytes).map(|(offset, length)| Change {
                lsn: e.lsn,
                time: e.time,
                offset,
                length,
            })
        };
        let wanted = |e: &&Entry| lsns.contains(&e.lsn) && chunks.contains(&e.chunk);
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
        // Of a segment that begins before the floor, records may be there still.
        let kept = |change: &Change| change.lsn > floor;
        let (mut count, mut newest) = (0, 0);
        for segment in sealed {
            if count >= limit && segment.record.lsns.0 > newest {
                // What is here, and in all that follow, is newer than what was found.
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

/// The part of a range that lies in another, as offset and length.
fn clipped(range: Range<u64>, within: &Range<u64>) -> Option<(u64, u64)> {
    let (start, end) = (range.start.max(within.start), range.end.min(within.end));
    (start < end).then(|| (start, end - start))
}
