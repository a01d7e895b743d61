//! What can be gone back to, and what changed when.

use super::log::Located;
use super::{Anchor, Bucket, Change, History, Mark, Span};
use crate::catalog::{Event, LineRecord};
use crate::error::{Result, invalid};
use crate::pool::Pool;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

/// Buckets of a history.
const MAX_BUCKETS: usize = 10_000;

/// A record as it is stored: to measure with.
pub struct CdpSample {
    located: Located,
}

impl CdpSample {
    /// Bytes that the host wrote.
    pub fn raw(&self) -> u64 {
        self.located.entry.raw_len() as u64
    }

    /// Bytes of payload, compressed.
    pub fn stored(&self) -> u64 {
        self.located.entry.stored.into()
    }

    /// Reads, verifies and decompresses the payload.
    pub fn decode(&self) -> Result<Vec<u8>> {
        self.located.file.payload(&self.located.entry)
    }

    /// Takes `content`, as long as the payload, over the record.
    pub fn apply(&self, content: &mut [u8], payload: &[u8]) {
        if content.len() == payload.len() {
            self.located.entry.encoding.apply(content, payload);
        }
    }
}

impl Pool {
    /// What of a volume's past can be gone back to; change over time in so many buckets.
    pub fn history(&self, volume: &str, buckets: usize) -> Result<History> {
        if buckets > MAX_BUCKETS {
            return Err(invalid(format!("list a history: at most {MAX_BUCKETS} buckets")));
        }
        let state = self.names.read().volume(volume)?.clone();
        let mut history = History::default();
        let stretches = self.stretches(state.id);
        let mut seen = BTreeSet::new();
        let mut records = Vec::new();
        for stretch in &stretches {
            if !seen.insert(stretch.branch.id) {
                continue;
            }
            let log = stretch.branch.cdp.log.read();
            records.extend(log.segment_records().copied());
            let names = self.names.read();
            for (at, event) in &log.events {
                if let Event::Anchor { snapshot, time, .. } = event
                    && *at >= log.floor()
                {
                    let seen = names.snapshots.get(snapshot).filter(|s| names.is_in_sight(s));
                    let snapshot = seen.map(|s| s.state.name.read().clone());
                    history.anchors.push(Anchor { lsn: *at, time: *time, snapshot });
                }
            }
            let left = stretches.iter().rfind(|s| s.branch.id == stretch.branch.id);
            let end = left.and_then(|s| s.until).map(|time| (log.last_lsn(), time));
            history.spans.extend(log.spans(stretch.branch.id, end));
        }
        history.anchors.sort_by_key(|anchor| anchor.lsn);
        history.spans.sort_by_key(|span| span.from);
        for (lsn, line) in self.lines.read().get(&state.id).into_iter().flatten() {
            if let LineRecord::Mark { name, time } = line {
                history.marks.push(Mark { name: name.clone(), lsn: *lsn, time: *time });
            }
        }
        history.flushes = state.flushes.lock().iter().copied().collect();
        if let Some(from) = history.spans.first().map(|span| span.from.1) {
            let until = records.iter().map(|r| r.times.1).max().unwrap_or(from).max(from) + 1;
            history.buckets = spread(&records, from..until, buckets);
        }
        Ok(history)
    }

    /// When a byte range of a volume changed, LSNs inclusive: oldest first, at most `limit` of the oldest. Parts of one record
    /// in several chunks are told one by one.
    pub fn changes(
        &self,
        volume: &str,
        range: Range<u64>,
        lsns: RangeInclusive<u64>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let state = self.names.read().volume(volume)?.clone();
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for stretch in self.stretches(state.id) {
            let branch = &stretch.branch;
            if range.is_empty() || !seen.insert(branch.id) {
                continue;
            }
            let last = (range.end - 1) >> branch.chunk_log2;
            let mut chunk = range.start >> branch.chunk_log2;
            while let Some(next) = branch.cdp.next_chunk(chunk)?.filter(|next| *next <= last) {
                for located in branch.cdp.find(next, lsns.clone())? {
                    let bytes = located.entry.bytes();
                    let offset = (next << branch.chunk_log2) + bytes.start as u64;
                    let length = bytes.len() as u64;
                    if offset < range.end && offset + length > range.start {
                        let (lsn, time) = (located.entry.lsn, located.entry.time);
                        found.push(Change { lsn, time, offset, length });
                    }
                }
                chunk = next + 1;
            }
            let log = branch.cdp.log.read();
            for (lsn, event) in log.events.iter().filter(|(lsn, _)| lsns.contains(lsn)) {
                if let Some(bytes) = event.emptied().filter(|b| b.start < range.end && b.end > range.start) {
                    let (offset, length) = (bytes.start, bytes.end - bytes.start);
                    found.push(Change { lsn: *lsn, time: event.time(), offset, length });
                }
            }
        }
        found.sort_by_key(|change| (change.lsn, change.offset));
        found.truncate(limit);
        Ok(found)
    }

    /// Some of the newest records of a volume, as they are stored: what decoding and XOR cost can be measured with them.
    pub fn cdp_samples(&self, volume: &str, limit: usize) -> Result<Vec<CdpSample>> {
        let state = self.names.read().volume(volume)?.clone();
        let cdp = &state.line.branch.cdp;
        let (open, sealed) = {
            let log = cdp.log.read();
            let open = log.open.as_ref().map(|open| {
                let entries = open.entries.values().take(limit);
                entries.map(|e| Located { entry: *e, file: open.file.clone() }).collect::<Vec<_>>()
            });
            (open.unwrap_or_default(), log.sealed.values().next_back().cloned())
        };
        let mut samples = open;
        if let Some(sealed) = sealed.filter(|_| samples.len() < limit) {
            let entries = sealed.all_entries()?.into_iter().take(limit - samples.len());
            samples.extend(entries.map(|entry| Located { entry, file: sealed.file.clone() }));
        }
        Ok(samples.into_iter().map(|located| CdpSample { located }).collect())
    }
}

/// Spreads what segments hold over buckets of time, each evenly over the time that it spans.
fn spread(records: &[crate::catalog::SegmentRecord], times: Range<u64>, buckets: usize) -> Vec<Bucket> {
    let width = ((times.end - times.start) / (buckets as u64).max(1)).max(1);
    let mut all: Vec<Bucket> =
        (0..buckets as u64).map(|n| Bucket { from: times.start + n * width, ..Bucket::default() }).collect();
    let at = |time: u64| ((time.saturating_sub(times.start) / width) as usize).min(buckets.saturating_sub(1));
    for record in records {
        let (first, last) = (at(record.times.0), at(record.times.1));
        let share = (last - first + 1) as u64;
        for (n, bucket) in all.iter_mut().enumerate().take(last + 1).skip(first) {
            // The last one gets what can't be shared evenly.
            let part = |whole: u64| whole / share + if n == last { whole % share } else { 0 };
            bucket.records += part(record.records);
            bucket.written += part(record.written);
            bucket.stored += part(record.end);
        }
    }
    all
}

impl super::log::LogState {
    /// The last LSN that anything is known of.
    fn last_lsn(&self) -> u64 {
        let recorded = self.segment_records().map(|r| r.lsns.1);
        recorded.chain(self.events.keys().next_back().copied()).max().unwrap_or(0)
    }

    /// When recording was on; `end`: the volume has left the branch then.
    fn spans(&self, branch: u64, end: Option<(u64, u64)>) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for (at, event) in &self.events {
            match event {
                Event::On { begins: true, time, .. } => {
                    spans.push(Span { branch, from: (*at, *time), to: None });
                }
                Event::Off { time } => {
                    spans.iter_mut().rev().take(1).for_each(|span| span.to = Some((*at, *time)));
                }
                _ => {}
            }
        }
        if let Some(Event::Floor { lsn, time }) = self.events.get(&0) {
            spans.retain(|span| span.to.is_none_or(|(to, _)| to > *lsn));
            spans.iter_mut().for_each(|span| span.from = span.from.max((*lsn, *time)));
        }
        spans.iter_mut().for_each(|span| span.to = span.to.or(end));
        spans
    }
}
