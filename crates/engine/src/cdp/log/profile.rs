//! Profiles of segments: how much was written when, and where. A timeline needs them where a
//! segment's own sums say too little.
//!
//! A profile is made from the index of its segment, when a timeline first needs it. It stays in
//! memory within bounds. So the catalog has no part of it, and a pool from before has them too.

use super::record::IndexEntry;
use super::segment::Sealed;
use crate::error::Result;
use crate::ids::{BranchId, Chunk};
use crate::units::SECTOR;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The number of slices of a sketch's time.
pub(crate) const SLICES: usize = 64;
/// The number of parts of a sketch's chunks.
const PARTS: usize = 32;
/// The number of sketches in memory. Each has 11 KiB.
pub(crate) const SKETCHES: usize = 2048;
/// The number of records of all ticks in memory. Each has 24 bytes.
const TICKS: usize = 1 << 20;

/// What a timeline needs of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Pool time.
    pub(crate) time: u64,
    pub(crate) chunk: Chunk,
    /// Bytes that the host wrote.
    pub(crate) written: u32,
    /// Bytes of log.
    pub(crate) stored: u32,
}

impl From<&IndexEntry> for Tick {
    fn from(entry: &IndexEntry) -> Tick {
        Tick {
            time: entry.time,
            chunk: entry.chunk,
            written: entry.sectors.saturating_mul(SECTOR as u32),
            stored: entry.space().try_into().unwrap_or(u32::MAX),
        }
    }
}

/// RecordSums of some records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RecordSums {
    pub(crate) records: u64,
    pub(crate) written: u64,
    pub(crate) stored: u64,
}

impl RecordSums {
    /// Returns the part `at / of` of the sums, rounded down.
    pub(crate) fn part(self, at: u64, of: u64) -> RecordSums {
        let part = |sum: u64| (u128::from(sum) * u128::from(at) / u128::from(of.max(1))) as u64;
        RecordSums { records: part(self.records), written: part(self.written), stored: part(self.stored) }
    }

    /// Returns the sums without those of `other`.
    pub(crate) fn without(self, other: RecordSums) -> RecordSums {
        RecordSums {
            records: self.records - other.records,
            written: self.written - other.written,
            stored: self.stored - other.stored,
        }
    }
}

/// The sums of a segment by slices of its time, and the bytes written by parts of its chunks too.
pub(crate) struct Sketch {
    slices: Vec<RecordSums>,
    /// The first and the last pool time of the records of each slice.
    spans: Vec<(u64, u64)>,
    /// Bytes written, by slice and then by part.
    parts: Vec<u32>,
    times: (u64, u64),
    /// The first chunk, and the number of chunks of a part.
    chunks: (Chunk, u64),
}

/// Records that lie near one another in time and place.
pub(crate) struct Cluster {
    /// The first and the last pool time.
    pub(crate) times: (u64, u64),
    /// The first and the last chunk.
    pub(crate) chunks: (Chunk, Chunk),
    pub(crate) sums: RecordSums,
}

impl Sketch {
    fn new(ticks: &[Tick], times: (u64, u64), chunks: (Chunk, Chunk)) -> Sketch {
        let length = (chunks.1.since(chunks.0) + 1).div_ceil(PARTS as u64).max(1);
        let mut sketch = Sketch {
            slices: vec![RecordSums::default(); SLICES],
            spans: vec![(u64::MAX, 0); SLICES],
            parts: vec![0; SLICES * PARTS],
            times,
            chunks: (chunks.0, length),
        };
        for tick in ticks {
            let slice = sketch.slice(tick.time);
            let span = &mut sketch.spans[slice];
            *span = (span.0.min(tick.time), span.1.max(tick.time));
            let sums = &mut sketch.slices[slice];
            sums.records += 1;
            sums.written += u64::from(tick.written);
            sums.stored += u64::from(tick.stored);
            let part = (tick.chunk.since(chunks.0) / length).min(PARTS as u64 - 1) as usize;
            let part = &mut sketch.parts[slice * PARTS + part];
            *part = part.saturating_add(tick.written);
        }
        sketch
    }

    /// Returns the length of a slice in nanoseconds.
    fn length(&self) -> u64 {
        ((self.times.1 - self.times.0) / SLICES as u64).saturating_add(1)
    }

    fn slice(&self, time: u64) -> usize {
        ((time.saturating_sub(self.times.0) / self.length()) as usize).min(SLICES - 1)
    }

    /// Returns the sums by slice, with the bytes written by part of the chunks.
    pub(crate) fn slices(&self) -> impl Iterator<Item = (Cluster, Vec<(Chunk, Chunk, u64)>)> {
        let (first, length) = self.chunks;
        let used = self.slices.iter().enumerate().filter(|(_, sums)| sums.records > 0);
        used.map(move |(n, sums)| {
            let part = |(part, written): (usize, &u32)| {
                let from = Chunk(first.0 + part as u64 * length);
                (from, Chunk(from.0 + length - 1), u64::from(*written))
            };
            let parts = self.parts[n * PARTS..(n + 1) * PARTS].iter().enumerate();
            let parts: Vec<_> = parts.filter(|(_, written)| **written > 0).map(part).collect();
            let last = Chunk(first.0 + PARTS as u64 * length - 1);
            (Cluster { times: self.spans[n], chunks: (first, last), sums: *sums }, parts)
        })
    }
}

/// The identity of a segment or run, with its edition.
type Key = (BranchId, u64, u32, u64);

/// The profiles in memory. Its locks are leaves.
#[derive(Default)]
pub(crate) struct Profiles {
    sketches: Mutex<Kept<Sketch>>,
    ticks: Mutex<Kept<[Tick]>>,
    /// Segments whose records can't be read.
    unreadable: Mutex<Kept<()>>,
}

/// Values in memory, and the order in which they came.
struct Kept<T: ?Sized> {
    values: BTreeMap<Key, Arc<T>>,
    order: VecDeque<(Key, usize)>,
    size: usize,
}

impl<T: ?Sized> Default for Kept<T> {
    fn default() -> Self {
        Kept { values: BTreeMap::new(), order: VecDeque::new(), size: 0 }
    }
}

impl<T: ?Sized> Kept<T> {
    /// Adds a value of a size. The oldest values go while all are larger than `most`.
    fn put(&mut self, key: Key, value: Arc<T>, size: usize, most: usize) {
        if self.values.insert(key, value).is_none() {
            self.order.push_back((key, size));
            self.size += size;
        }
        while self.size > most.max(size) {
            let Some((oldest, size)) = self.order.pop_front() else { break };
            self.values.remove(&oldest);
            self.size -= size;
        }
    }
}

impl Profiles {
    /// Returns the sketch of a segment, if it is in memory.
    pub(crate) fn sketch(&self, branch: BranchId, segment: &Sealed) -> Option<Arc<Sketch>> {
        self.sketches.lock().values.get(&key(branch, segment)).cloned()
    }

    /// Returns the records of a segment in the order of time, if they are in memory.
    pub(crate) fn ticks(&self, branch: BranchId, segment: &Sealed) -> Option<Arc<[Tick]>> {
        self.ticks.lock().values.get(&key(branch, segment)).cloned()
    }

    /// Returns whether an attempt to make a segment's profile failed.
    pub(crate) fn is_unreadable(&self, branch: BranchId, segment: &Sealed) -> bool {
        self.unreadable.lock().values.contains_key(&key(branch, segment))
    }

    /// Reads the index of a segment, and makes its profile. The sum of what is stored is that of
    /// the segment, with its indexes.
    pub(crate) fn make(&self, branch: BranchId, segment: &Sealed) -> Result<()> {
        let entries = segment.all_entries();
        if entries.is_err() {
            self.unreadable.lock().put(key(branch, segment), Arc::new(()), 1, SKETCHES);
        }
        let mut ticks: Vec<Tick> = entries?.iter().map(Tick::from).collect();
        ticks.sort_unstable_by_key(|tick| tick.time);
        let record = &segment.record;
        let stored = ticks.iter().map(|tick| u64::from(tick.stored)).sum::<u64>().max(1);
        for tick in &mut ticks {
            let part = u128::from(tick.stored) * u128::from(record.bytes()) / u128::from(stored);
            tick.stored = u32::try_from(part).unwrap_or(u32::MAX);
        }
        let sketch = Sketch::new(&ticks, record.times, record.chunks);
        let key = key(branch, segment);
        self.sketches.lock().put(key, Arc::new(sketch), 1, SKETCHES);
        let count = ticks.len();
        self.ticks.lock().put(key, ticks.into(), count, TICKS);
        Ok(())
    }
}

fn key(branch: BranchId, segment: &Sealed) -> Key {
    let record = &segment.record;
    (branch, segment.file.head.seq, record.edition, record.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sketch_loses_nothing() {
        let ticks: Vec<Tick> = (0..1000)
            .map(|n| Tick { time: 500 + n * n, chunk: Chunk(7 + n % 90), written: 512, stored: 100 })
            .collect();
        let sketch = Sketch::new(&ticks, (500, 500 + 999 * 999), (Chunk(7), Chunk(96)));
        let (mut sums, mut parts) = (RecordSums::default(), 0);
        let mut last = 0;
        for (cluster, of) in sketch.slices() {
            assert!(cluster.times.0 > last && cluster.times.1 >= cluster.times.0, "{:?}", cluster.times);
            last = cluster.times.1;
            sums.records += cluster.sums.records;
            sums.written += cluster.sums.written;
            sums.stored += cluster.sums.stored;
            parts += of.iter().map(|(_, _, written)| written).sum::<u64>();
            assert!(of.iter().all(|(from, to, _)| *from >= Chunk(7) && *to <= Chunk(7 + 96)));
        }
        assert_eq!(sums, RecordSums { records: 1000, written: 512_000, stored: 100_000 });
        assert_eq!(parts, 512_000);
        assert!(last <= 500 + 999 * 999);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut kept = Kept::<[u8]>::default();
        for n in 0..100 {
            kept.put((BranchId(1), n, 0, 0), vec![0; 10].into(), 10, 45);
            kept.put((BranchId(1), n, 0, 0), vec![0; 10].into(), 10, 45);
        }
        assert_eq!((kept.values.len(), kept.order.len(), kept.size), (4, 4, 40));
        kept.put((BranchId(2), 0, 0, 0), vec![0; 99].into(), 99, 45);
        assert_eq!((kept.values.len(), kept.size), (1, 99), "one is always kept");
    }
}
