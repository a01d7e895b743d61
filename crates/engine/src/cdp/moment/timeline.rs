//! The amounts of a timeline: how much was written in each bucket of time, and where.
//!
//! A segment that lies in one bucket counts with its own sums. Another one counts by its profile
//! ([`Profile`](crate::cdp::log::profile)), if that is in memory. A query makes some profiles that
//! are not. A segment without one is spread evenly over its time, and the answer says that it is
//! coarse. So no query takes long, and the next one knows more. Records that wait for destage count
//! from memory: a timeline carries nothing out.

use super::spans::RecordedSpan;
use crate::catalog::SegmentRecord;
use crate::cdp::log::profile::{Cluster, Profiles, RecordSums, SKETCHES, SLICES, Sketch, Tick};
use crate::cdp::log::segment::Sealed;
use crate::clock::WallTimes;
use crate::ids::{BranchId, Chunk, Lsn};
use crate::info::timeline::{Amount, Regions, Window};
use crate::settings::LONG_DISCARD;
use crate::staging::{StagedKind, StagedRecord};
use std::sync::Arc;

/// The number of profiles that one query makes. Each takes some 10 ms.
pub(crate) const MADE: usize = 4;
/// The largest number of segments in a window whose records are counted one by one.
const EXACT: usize = 8;

/// Amounts by buckets of a window.
pub(crate) struct Amounts<'a> {
    window: Window,
    walls: &'a WallTimes,
    chunk_log2: u8,
    pub(crate) buckets: Vec<Amount>,
    pub(crate) regions: Option<Regions>,
    /// Some segments are spread evenly, although their profiles can be made.
    pub(crate) coarse: bool,
}

impl<'a> Amounts<'a> {
    /// Makes amounts of zero. `regions` parts of a volume of `size` bytes are counted apart.
    pub(crate) fn new(window: Window, walls: &'a WallTimes, size: u64, regions: usize) -> Amounts<'a> {
        let regions = (regions > 0).then(|| Regions {
            count: regions,
            length: size.div_ceil(regions as u64).max(1),
            written: vec![0; window.count * regions],
        });
        let buckets = vec![Amount::default(); window.count];
        Amounts { window, walls, chunk_log2: 0, buckets, regions, coarse: false }
    }

    /// Adds what the log of a branch has. Makes at most `left` profiles, and counts them down.
    /// Returns the last LSN that the log has: destage publishes a batch there before the batch is
    /// settled.
    pub(crate) fn add_log(&mut self, span: &RecordedSpan, profiles: &Profiles, left: &mut usize) -> Lsn {
        let branch = &span.branch;
        self.chunk_log2 = branch.chunk_log2;
        // Segments that need a profile. Those across buckets come apart from those in one of them.
        let (mut crossing, mut inside) = (Vec::new(), Vec::new());
        let last = {
            let log = branch.cdp.log.read();
            for segment in log.sealed.values() {
                match self.place(&segment.record) {
                    Place::Outside => {}
                    Place::OneBucket if self.regions.is_none() => self.add_evenly(&all(&segment.record)),
                    Place::OneBucket => inside.push(segment.clone()),
                    Place::Across => crossing.push(segment.clone()),
                }
            }
            let open = log.open.iter().flat_map(|open| open.entries.values());
            open.for_each(|entry| self.add_tick(&entry.into()));
            log.last_record()
        };
        let is_exact = crossing.len() <= EXACT;
        // More than what fits into memory does not become exact by further looks.
        let may_improve = crossing.len() + inside.len() <= SKETCHES;
        let was = self.coarse;
        // The newest part is looked at most.
        for segment in crossing.iter().rev().chain(inside.iter().rev()) {
            self.add_segment(branch.id, segment, is_exact, profiles, left);
        }
        self.coarse = was || self.coarse && may_improve;
        last
    }

    fn add_segment(
        &mut self,
        branch: BranchId,
        segment: &Arc<Sealed>,
        is_exact: bool,
        profiles: &Profiles,
        left: &mut usize,
    ) {
        let record = &segment.record;
        let slice = self.walls.of(record.times.1).abs_diff(self.walls.of(record.times.0)) / SLICES as u64;
        let wants_ticks = is_exact && slice > self.window.length;
        for _ in 0..2 {
            let ticks = profiles.ticks(branch, segment).filter(|_| wants_ticks);
            let sketch = profiles.sketch(branch, segment).filter(|_| !wants_ticks);
            match (ticks, sketch) {
                (Some(ticks), _) => return ticks.iter().for_each(|tick| self.add_tick(tick)),
                (_, Some(sketch)) => return self.add_sketch(&sketch),
                _ if profiles.is_unreadable(branch, segment) => break,
                _ if *left == 0 => {
                    self.coarse = true;
                    break;
                }
                _ => {
                    *left -= 1;
                    // A segment that can't be read has no better profile.
                    if profiles.make(branch, segment).is_err() {
                        break;
                    }
                }
            }
        }
        self.add_evenly(&all(record));
    }

    /// Adds a record that the log does not have yet.
    pub(crate) fn add_waiting(&mut self, record: &StagedRecord, chunk_log2: u8) {
        // A long discard has no records.
        if record.kind == StagedKind::Discarded && record.length > LONG_DISCARD {
            return;
        }
        let Some(bucket) = self.window.bucket(self.walls.of(record.stamp.time)) else { return };
        let end = record.offset + record.length;
        let last = Chunk::of(end.saturating_sub(1), chunk_log2);
        let amount = &mut self.buckets[bucket];
        amount.records += last.since(Chunk::of(record.offset, chunk_log2)) + 1;
        amount.written += record.length;
        amount.waiting += record.length;
        self.add_to_regions(bucket, (record.offset, end), record.length);
    }

    fn add_tick(&mut self, tick: &Tick) {
        let Some(bucket) = self.window.bucket(self.walls.of(tick.time)) else { return };
        let (written, stored) = (u64::from(tick.written), u64::from(tick.stored));
        self.add(bucket, RecordSums { records: 1, written, stored });
        let start = tick.chunk.start(self.chunk_log2);
        self.add_to_regions(bucket, (start, start + 1), written);
    }

    fn add_sketch(&mut self, sketch: &Sketch) {
        for (slice, parts) in sketch.slices() {
            let regions = self.regions.take();
            self.add_evenly(&slice);
            self.regions = regions;
            if self.regions.is_none() {
                continue;
            }
            for (from, to, written) in parts {
                let sums = RecordSums { written, ..RecordSums::default() };
                self.each_bucket(slice.times, sums, |amounts, bucket, sums| {
                    amounts.add_to_regions(bucket, amounts.bytes(from, to), sums.written);
                });
            }
        }
    }

    /// Adds sums, spread evenly over their time and their chunks.
    fn add_evenly(&mut self, cluster: &Cluster) {
        self.each_bucket(cluster.times, cluster.sums, |amounts, bucket, sums| {
            amounts.add(bucket, sums);
            amounts.add_to_regions(bucket, amounts.bytes(cluster.chunks.0, cluster.chunks.1), sums.written);
        });
    }

    fn add(&mut self, bucket: usize, sums: RecordSums) {
        let amount = &mut self.buckets[bucket];
        amount.records += sums.records;
        amount.written += sums.written;
        amount.stored += sums.stored;
    }

    fn bytes(&self, first: Chunk, last: Chunk) -> (u64, u64) {
        (first.start(self.chunk_log2), last.start(self.chunk_log2).saturating_add(1 << self.chunk_log2))
    }

    /// Passes each bucket of the window in which some of the sums lie, with those, to `add`. The
    /// sums are spread evenly over pool times. Rounding loses nothing.
    fn each_bucket(
        &mut self,
        times: (u64, u64),
        sums: RecordSums,
        mut add: impl FnMut(&mut Self, usize, RecordSums),
    ) {
        let (one, other) = (self.walls.of(times.0), self.walls.of(times.1));
        let (from, to) = (one.min(other), one.max(other).saturating_add(1));
        let window = self.window;
        if to <= window.from || from >= window.end() {
            return;
        }
        let first = window.bucket(from.max(window.from)).unwrap_or(0);
        let last = window.bucket(to - 1).unwrap_or(window.count - 1);
        let until = |time: u64| sums.part(time.clamp(from, to) - from, to - from);
        let mut done = until(window.start_of(first));
        for bucket in first..=last {
            let next = until(window.start_of(bucket + 1));
            add(self, bucket, next.without(done));
            done = next;
        }
    }

    /// Adds bytes to the regions that a range of the volume lies in, spread evenly.
    fn add_to_regions(&mut self, bucket: usize, (from, to): (u64, u64), written: u64) {
        let Some(Regions { count, length, written: all }) = &mut self.regions else { return };
        let region = |byte: u64| ((byte / *length) as usize).min(*count - 1);
        let (first, last) = (region(from), region(to.max(from + 1) - 1));
        let row = &mut all[bucket * *count..][first..=last];
        let parts = row.len() as u64;
        let until = |n: u64| (u128::from(written) * u128::from(n) / u128::from(parts)) as u64;
        for (n, sum) in row.iter_mut().enumerate() {
            *sum += until(n as u64 + 1) - until(n as u64);
        }
    }

    fn place(&self, record: &SegmentRecord) -> Place {
        let (one, other) = (self.walls.of(record.times.0), self.walls.of(record.times.1));
        if one.max(other) < self.window.from || one.min(other) >= self.window.end() {
            return Place::Outside;
        }
        match (self.window.bucket(one), self.window.bucket(other)) {
            (Some(one), Some(other)) if one == other => Place::OneBucket,
            _ => Place::Across,
        }
    }
}

/// Where a segment lies in a window.
enum Place {
    Outside,
    OneBucket,
    Across,
}

fn all(record: &SegmentRecord) -> Cluster {
    let sums = RecordSums { records: record.records, written: record.written, stored: record.bytes() };
    Cluster { times: record.times, chunks: record.chunks, sums }
}
