//! Moments that destage has not come to yet: the records that make the moment from one that is
//! settled.

use super::Branch;
use super::pinned::PinnedMoment;
use crate::error::Result;
use crate::ids::Lsn;
use crate::staging::{StagedRecord, union};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// log2 of the least number of bytes that an index looks up at once.
const CELL_LOG2: u8 = 16;
/// Records that touch more cells than this are not in the index of cells.
const LONG: u64 = 32;
/// Bytes that the records of all open moments may take together.
const MAX_HELD: usize = 128 << 20;
/// Bytes of data that a moment keeps of the records that were read lately.
const READ_LATELY: usize = 1 << 20;

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
    /// The bytes of all chunks to which the records write data, sorted and disjoint. Records of
    /// zeros are left out: block status may report their range as data, but never data as zeros.
    touched: Vec<Range<u64>>,
    /// The data of records that were read lately, by their LSNs, oldest first. A record may have
    /// data of many chunks, which are often read one after another.
    lately: Mutex<Vec<(Lsn, Arc<[u8]>)>>,
    /// The moment that was settled when this was made. Moments after it don't expire either, and
    /// each of them may be what reads begin with.
    _from: Arc<PinnedMoment>,
    _room: Room,
}

impl Unsettled {
    /// `records` are all records of the branch after the settled moment `from` and up to another
    /// one, by LSN, for which there is `room`. Returns `None` if there is no room for their index.
    pub(crate) fn new(
        branch: &Branch,
        from: Arc<PinnedMoment>,
        records: Vec<StagedRecord>,
        mut room: Room,
    ) -> Option<Self> {
        let cell_log2 = branch.chunk_log2.max(CELL_LOG2);
        let cells_of = |record: &StagedRecord| {
            let end = record.offset + record.length;
            record.offset >> cell_log2..((end - 1) >> cell_log2) + 1
        };
        let is_long = |cells: &Range<u64>| cells.end - cells.start > LONG;
        let count =
            |record| Some(cells_of(record)).filter(|cells| !is_long(cells)).map_or(0, |c| c.end - c.start);
        let short = records.iter().map(count).sum::<u64>() as usize;
        let has_data = |record: &&StagedRecord| record.kind.has_data();
        let with_data = records.iter().filter(has_data).count();
        if !room.grow(short * size_of::<(u64, u32)>() + with_data * size_of::<Range<u64>>()) {
            return None;
        }
        let (mut cells, mut long) = (Vec::with_capacity(short), Vec::new());
        let mut touched = Vec::with_capacity(with_data);
        for (index, record) in (0u32..).zip(&records) {
            let of_record = cells_of(record);
            if is_long(&of_record) {
                long.push(index);
            } else {
                cells.extend(of_record.map(|cell| (cell, index)));
            }
            if has_data(&record) {
                let chunks = branch.chunks(record.offset, record.length);
                touched.push(chunks.start.start(branch.chunk_log2)..chunks.end.start(branch.chunk_log2));
            }
        }
        cells.sort_unstable();
        let (touched, lately) = (union(touched), Mutex::default());
        Some(Unsettled { records, cells, long, cell_log2, touched, lately, _from: from, _room: room })
    }

    /// Returns the data of a record. Calls `read` unless the data was read lately, and returns
    /// `None` if `read` does.
    pub(crate) fn data_of(
        &self,
        record: &StagedRecord,
        read: impl FnOnce() -> Result<Option<Arc<[u8]>>>,
    ) -> Result<Option<Arc<[u8]>>> {
        let lsn = record.stamp.lsn;
        if let Some((_, data)) = self.lately.lock().iter().find(|(of, _)| *of == lsn) {
            return Ok(Some(data.clone()));
        }
        let Some(data) = read()? else { return Ok(None) };
        let mut lately = self.lately.lock();
        lately.push((lsn, data.clone()));
        while lately.len() > 1 && lately.iter().map(|(_, data)| data.len()).sum::<usize>() > READ_LATELY {
            lately.remove(0);
        }
        Ok(Some(data))
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
pub(crate) struct UnsettledMoments {
    open: Mutex<Vec<Weak<PinnedMoment>>>,
    /// Bytes that are held or promised.
    held: Arc<AtomicUsize>,
}

/// Memory for the records of one moment. It counts until this is dropped.
pub(crate) struct Room {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Room {
    /// Takes so many bytes more. False if there is no room for them.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = |held: usize| held.checked_add(bytes).filter(|held| *held <= MAX_HELD);
        let grown = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.bytes += if grown { bytes } else { 0 };
        grown
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl UnsettledMoments {
    /// Returns room for nothing yet.
    pub(crate) fn room(&self) -> Room {
        Room { bytes: 0, held: self.held.clone() }
    }

    pub(crate) fn add(&self, at: &Arc<PinnedMoment>) {
        let mut open = self.open.lock();
        open.retain(|at| at.strong_count() > 0);
        open.push(Arc::downgrade(at));
    }

    /// Notes that everything up to `lsn` is settled: the moments up to there need no records any
    /// more.
    pub(crate) fn settled(&self, lsn: Lsn) {
        let mut held = Vec::new();
        self.open.lock().retain(|at| {
            let Some(at) = at.upgrade() else { return false };
            let waits = at.lsn > lsn;
            held.push(at);
            waits
        });
        // Outside the lock: the last one that holds a moment releases all that it has pinned.
        held.iter().filter(|at| at.lsn <= lsn).for_each(|at| at.settle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_all_moments_is_bounded() {
        let moments = UnsettledMoments::default();
        let (mut one, mut other) = (moments.room(), moments.room());
        assert!(one.grow(MAX_HELD - 10) && other.grow(10));
        assert!(!other.grow(1) && !one.grow(usize::MAX));
        drop(one);
        assert!(other.grow(MAX_HELD - 10) && !moments.room().grow(1));
    }
}
