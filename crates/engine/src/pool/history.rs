//! The recorded past of a volume, and the moments to which it can be taken back.

use super::Pool;
use crate::catalog::LineRecord;
use crate::cdp::log::record::{IndexEntry, Replaced};
use crate::cdp::log::segment::LogFile;
use crate::cdp::moment::history::{MAX_BUCKETS, anchors_of, spread};
use crate::cdp::moment::sample::CdpSample;
use crate::cdp::moment::spans::RecordedSpan;
use crate::error::{Result, invalid};
use crate::ids::{Chunk, Lsn, SnapshotId, Stamp, VolumeId};
use crate::info::history::{Anchor, Bucket, Change, History, Mark, Span};
use crate::units::SECTOR;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

impl Pool {
    /// Returns the recorded past of a volume, with its changes over time in `buckets` buckets.
    pub fn history(&self, volume: &str, buckets: usize) -> Result<History> {
        if buckets > MAX_BUCKETS {
            return Err(invalid(format!("list a history: at most {MAX_BUCKETS} buckets")));
        }
        let state = self.core.names.read().volume(volume)?.clone();
        self.destager.record_until(self.core.journal.last().lsn)?;
        let mut history = History { marks: self.marks(state.id), ..History::default() };
        self.core.look_at_clock();
        history.flushes = self.core.newest_flushes(state.id)?;
        let stretches = self.core.stretches(state.id);
        for RecordedSpan { branch, until, .. } in &stretches {
            let anchors = {
                let log = branch.cdp.log.read();
                history.spans.extend(log.spans(branch.id, *until));
                anchors_of(&log)
            };
            // Names are locked before logs: a holder of the names may lock a log.
            history.anchors.extend(self.named(anchors));
        }
        history.anchors.sort_by_key(|anchor| anchor.lsn);
        history.buckets = self.buckets(&history.spans, &stretches, buckets);
        if let Some(first) = history.spans.iter().map(|span| span.from.time).min() {
            history.clock = self.core.clock.changes(first);
        }
        self.by_the_wall(&mut history);
        Ok(history)
    }

    /// Converts pool times to times of the wall clock.
    fn by_the_wall(&self, history: &mut History) {
        let History { spans, anchors, marks, flushes, buckets, clock: _ } = history;
        let of_spans = spans.iter_mut().flat_map(|span| [Some(&mut span.from), span.to.as_mut()]).flatten();
        let times = of_spans.chain(flushes).map(|stamp| &mut stamp.time);
        let times = times.chain(anchors.iter_mut().map(|anchor| &mut anchor.time));
        let times = times.chain(marks.iter_mut().map(|mark| &mut mark.time));
        let times = times.chain(buckets.iter_mut().map(|bucket| &mut bucket.from));
        times.for_each(|time| *time = self.core.clock.wall(*time));
    }

    /// Returns when a range of bytes changed, within a range of LSNs: the oldest `limit` changes,
    /// oldest first.
    pub fn changes(
        &self,
        volume: &str,
        bytes: Range<u64>,
        lsns: RangeInclusive<Lsn>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let id = self.core.names.read().volume(volume)?.id;
        self.destager.record_until((*lsns.end()).min(self.core.journal.last().lsn))?;
        let mut found = self.recorded(id, &bytes, &lsns, limit)?;
        found.iter_mut().for_each(|change| change.time = self.core.clock.wall(change.time));
        Ok(found)
    }

    /// Returns the distinct chunks that were written between the last two anchors, or, if there
    /// were none, in all recorded history. At most `limit` writes are read, the oldest first. The
    /// cost model calls this repeatedly, so writes that are not destaged yet do not count, and are
    /// not destaged for it.
    pub fn recorded_chunks(&self, volume: &str, limit: usize) -> Result<BTreeSet<Chunk>> {
        let state = self.core.names.read().volume(volume)?.clone();
        let mut anchors = BTreeSet::new();
        for stretch in self.core.stretches(state.id) {
            anchors.extend(anchors_of(&stretch.branch.cdp.log.read()).iter().map(|(stamp, _)| stamp.lsn));
        }
        let mut newest = anchors.iter().rev();
        let between = match (newest.next(), newest.next()) {
            (Some(last), Some(before)) => before.next()..=*last,
            _ => Lsn::ZERO..=Lsn::MAX,
        };
        let everything = 0..u64::MAX;
        let mut changes = self.recorded(state.id, &everything, &between, limit)?;
        if changes.is_empty() {
            changes = self.recorded(state.id, &everything, &(Lsn::ZERO..=Lsn::MAX), limit)?;
        }
        let chunk_log2 = state.line.branch.chunk_log2;
        Ok(changes.iter().map(|change| Chunk::of(change.offset, chunk_log2)).collect())
    }

    /// Returns the changes that [`Pool::changes`] returns, as far as they are recorded by now.
    fn recorded(
        &self,
        volume: VolumeId,
        bytes: &Range<u64>,
        lsns: &RangeInclusive<Lsn>,
        limit: usize,
    ) -> Result<Vec<Change>> {
        let mut found = Vec::new();
        for stretch in self.core.stretches(volume) {
            stretch.branch.changes(bytes, lsns, limit, &mut found)?;
        }
        found.sort_by_key(|change: &Change| (change.lsn, change.offset));
        found.truncate(limit);
        Ok(found)
    }

    /// Returns at most `limit` records of a volume as they are stored, spread over the newest part
    /// of its log.
    pub fn cdp_samples(&self, volume: &str, limit: usize) -> Result<Vec<CdpSample>> {
        let state = self.core.names.read().volume(volume)?.clone();
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
        let Some((file, mut entries)): Option<(LogFile, Vec<IndexEntry>)> = newest else {
            return Ok(Vec::new());
        };
        entries.retain(|entry| entry.replaced == Replaced::Payload);
        let stride = entries.len().div_ceil(limit.max(1)).max(1);
        let file = file.open()?;
        entries.iter().step_by(stride).take(limit).map(|entry| CdpSample::read(&file, entry)).collect()
    }

    fn marks(&self, volume: VolumeId) -> Vec<Mark> {
        let lines = self.core.lines.read();
        let of_volume = lines.get(&volume).into_iter().flatten();
        let marks = of_volume.filter_map(|(lsn, line)| match line {
            LineRecord::Mark { name, time } => Some(Mark { name: name.clone(), lsn: *lsn, time: *time }),
            LineRecord::Branch { .. } => None,
        });
        marks.collect()
    }

    /// Returns anchors with the names of their snapshots.
    fn named(&self, anchors: Vec<(Stamp, SnapshotId)>) -> Vec<Anchor> {
        let names = self.core.names.read();
        let name = |id: &SnapshotId| {
            let snapshot = names.snapshots.get(id).filter(|s| names.is_in_sight(s))?;
            Some(snapshot.state.name.read().clone())
        };
        let named = |(Stamp { lsn, time }, id)| Anchor { lsn, time, snapshot: name(&id) };
        anchors.into_iter().map(named).collect()
    }

    /// Returns the changes over time, from the first moment to the last write. For full segments
    /// only the sums are known without reading: they are spread evenly over the segment's time.
    fn buckets(&self, spans: &[Span], stretches: &[RecordedSpan], count: usize) -> Vec<Bucket> {
        let last = self.core.journal.last().time;
        let Some(first) = spans.iter().map(|span| span.from.time).min().filter(|_| count > 0) else {
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
