//! Moments that destage has not come to yet: the records that make the moment from one that is
//! settled.

use super::Branch;
use super::pinned::PinnedMoment;
use crate::ids::Lsn;
use crate::staging::{StagedRecord, union};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// log2 of the least number of bytes that an index looks up at once.
const CELL_LOG2: u8 = 16;
/// Records that touch more cells than this are not in the index of cells.
const LONG: u64 = 32;
/// The number of records that all moments which are open and not settled hold, at some 80 bytes
/// each.
pub(crate) const MAX_HELD: usize = 1 << 20;

/// The records of a branch between a settled moment and a later one. The data is in the journal.
/// While it is needed, the journal keeps it: it frees only what is settled, and what has no reader.
pub(crate) struct Unsettled {
    /// The records, by LSN.
    records: Vec<StagedRecord>,
    /// The records that touch few cells: (cell, index in `records`), sorted.
    cells: Vec<(u64, u32)>,
    /// The indexes of all other records.
    long: Vec<u32>,
    cell_log2: u8,
    /// The bytes of all chunks to which the records write data, sorted and disjoint. Zeros make no
    /// data of what was none, and what was data before them may be called data after them.
    touched: Vec<Range<u64>>,
    /// The data that was read last, and the LSN of its record. A record may have data of many
    /// chunks, which are often read one after another.
    pub(crate) read_last: Mutex<Option<(Lsn, Arc<[u8]>)>>,
    /// The moment that was settled when this was made. Moments after it don't expire either, and
    /// each of them may be what reads begin with.
    _from: Arc<PinnedMoment>,
}

impl Unsettled {
    /// `records` are all records of the branch after the settled moment `from` and up to another
    /// one, by LSN.
    pub(crate) fn new(branch: &Branch, from: Arc<PinnedMoment>, records: Vec<StagedRecord>) -> Self {
        let cell_log2 = branch.chunk_log2.max(CELL_LOG2);
        let (mut cells, mut long) = (Vec::with_capacity(records.len()), Vec::new());
        let mut touched = Vec::with_capacity(records.len());
        for (index, record) in (0u32..).zip(&records) {
            let end = record.offset + record.length;
            let (first, last) = (record.offset >> cell_log2, (end - 1) >> cell_log2);
            if last - first < LONG {
                cells.extend((first..=last).map(|cell| (cell, index)));
            } else {
                long.push(index);
            }
            if !record.zeros {
                let chunks = branch.chunks(record.offset, record.length);
                touched.push(chunks.start << branch.chunk_log2..chunks.end << branch.chunk_log2);
            }
        }
        cells.sort_unstable();
        let (touched, read_last) = (union(touched), Mutex::default());
        Unsettled { records, cells, long, cell_log2, touched, read_last, _from: from }
    }

    /// The number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the records after `lsn` that touch `bytes`, newest first. The bytes must lie in one
    /// chunk.
    pub(crate) fn newest_first(&self, bytes: Range<u64>, lsn: Lsn) -> impl Iterator<Item = &StagedRecord> {
        let cell = bytes.start >> self.cell_log2;
        let start = self.cells.partition_point(|(of, _)| *of < cell);
        let end = self.cells.partition_point(|(of, _)| *of <= cell);
        let mut short = self.cells[start..end].iter().rev().map(|(_, index)| *index).peekable();
        let mut long = self.long.iter().rev().copied().peekable();
        let indexes = std::iter::from_fn(move || match (short.peek(), long.peek()) {
            (Some(one), Some(other)) if one < other => long.next(),
            (Some(_), _) => short.next(),
            (None, _) => long.next(),
        });
        indexes
            .map(|index| &self.records[index as usize])
            .take_while(move |record| record.stamp.lsn > lsn)
            .filter(move |r| r.offset < bytes.end && r.offset + r.length > bytes.start)
    }

    /// Returns the chunks in `bytes` to which records write data, in bytes, sorted and disjoint.
    pub(crate) fn touched(&self, bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.touched.partition_point(|range| range.end <= bytes.start);
        let within = self.touched[first..].iter().take_while(move |range| range.start < bytes.end);
        within.map(move |range| range.start.max(bytes.start)..range.end.min(bytes.end))
    }
}

/// The moments that are open and that were not settled when they were opened.
#[derive(Default)]
pub(crate) struct UnsettledMoments(Mutex<Vec<Weak<PinnedMoment>>>);

impl UnsettledMoments {
    /// Returns whether there is room for so many more records.
    pub(crate) fn has_room(&self, records: usize) -> bool {
        let held = |at: &Weak<PinnedMoment>| Some(at.upgrade()?.unsettled()?.len());
        self.0.lock().iter().filter_map(held).sum::<usize>() + records <= MAX_HELD
    }

    pub(crate) fn add(&self, at: &Arc<PinnedMoment>) {
        self.0.lock().push(Arc::downgrade(at));
    }

    /// Notes that everything up to `lsn` is settled: the moments up to there need no records any
    /// more.
    pub(crate) fn settled(&self, lsn: Lsn) {
        let mut settled = Vec::new();
        self.0.lock().retain(|at| {
            let Some(at) = at.upgrade() else { return false };
            let waits = at.lsn > lsn;
            settled.extend((!waits).then_some(at));
            waits
        });
        // Outside the lock: the last one that holds a moment releases all that it has pinned.
        settled.iter().for_each(|at| at.settle());
    }
}
