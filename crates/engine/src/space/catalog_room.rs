//! The room that the catalog needs to carry out what was acknowledged (I6).
//!
//! The catalog grows by the map pages that records of the journal add. Each commit writes every
//! page that it changes to a new place, before the old place can be reused. So records are promised
//! room for the pages that they may add. A batch changes no more pages than a third of the free
//! space holds (at least one). The ballast ([`crate::catalog::Ballast`]) is the reserve behind
//! both.

use crate::branch::Branch;
use crate::error::{Error, no_space};
use crate::ids::{Chunk, Epoch, Lsn};
use crate::journal::record::Kind;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a new map page takes, with its share of inner pages.
const NEW_PAGE: u64 = 5 << 10;
/// Bytes that a record takes besides its map pages: for bitmaps, counts, and rows of histories.
const RECORD: u64 = 256;
/// Bytes that the rows of a version of a chunk take.
const VERSION: u64 = 192;
/// Bytes that a commit writes for each map page that it changes: the page, its versions, bitmaps,
/// and the inner pages above all of them.
const CHANGED_PAGE: u64 = 64 << 10;
/// Bytes that a commit writes for a version whose neighbours stay as they are.
const MOVED_VERSION: u64 = 10 << 10;

/// The space of the catalog's file system that is promised, and the space that is left. All values
/// are in bytes.
pub(crate) struct CatalogRoom {
    /// Bytes for commits, as of the last measurement.
    free: AtomicU64,
    /// Bytes that the file system has available, ballast not included.
    available: AtomicU64,
    /// Bytes that may be promised.
    limit: AtomicU64,
    /// Bytes promised to requests that are not sequenced yet.
    in_flight: AtomicU64,
    /// Bytes promised to all records since the pool was opened. This grows under the sequencing
    /// lock.
    sequenced: AtomicU64,
    /// Bytes that were promised to records that are carried out; a part of `sequenced`.
    settled: AtomicU64,
    /// Values of `sequenced` at some LSNs: (LSN, bytes).
    marks: Mutex<VecDeque<(Lsn, u64)>>,
}

impl Default for CatalogRoom {
    fn default() -> Self {
        CatalogRoom {
            free: AtomicU64::new(u64::MAX),
            available: AtomicU64::new(u64::MAX),
            limit: AtomicU64::new(u64::MAX),
            in_flight: AtomicU64::new(0),
            sequenced: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            marks: Mutex::default(),
        }
    }
}

/// Room that is promised to a request.
pub(crate) struct Promise<'a> {
    room: &'a CatalogRoom,
    left: u64,
}

impl CatalogRoom {
    /// Stores a measurement: the file system has `available` bytes for the catalog, and the ballast
    /// has `ballast` more. `missing` bytes of the ballast are still to be written.
    pub(crate) fn measured(&self, available: u64, ballast: u64, missing: u64) {
        self.available.store(available, Ordering::Relaxed);
        self.free.store(available.saturating_add(ballast), Ordering::Relaxed);
        // Half is kept for commits, which need it before replaced pages can be reused. The ballast
        // comes first.
        self.limit.store(available.saturating_sub(missing) / 2, Ordering::Relaxed);
    }

    /// Bytes that the file system has available, if that is known.
    pub(crate) fn available(&self) -> Option<u64> {
        Some(self.available.load(Ordering::Relaxed)).filter(|bytes| *bytes < u64::MAX)
    }

    /// Number of map pages that one commit may change, at most `most`.
    pub(crate) fn pages(&self, most: usize) -> usize {
        let third = self.free.load(Ordering::Relaxed) / 3;
        usize::try_from(third / CHANGED_PAGE).unwrap_or(usize::MAX).clamp(1, most)
    }

    /// Number of versions that one commit may move, at most `most`.
    pub(crate) fn versions(&self, most: usize) -> usize {
        let third = self.free.load(Ordering::Relaxed) / 3;
        usize::try_from(third / MOVED_VERSION).unwrap_or(usize::MAX).clamp(16, most)
    }

    /// Bytes that are promised, and not carried out.
    pub(crate) fn promised(&self) -> u64 {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        get(&self.in_flight) + get(&self.sequenced).saturating_sub(get(&self.settled))
    }

    /// Promises `bytes` bytes; `None` if that is not possible.
    pub(crate) fn promise(&self, bytes: u64) -> Option<Promise<'_>> {
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
        let promise = Promise { room: self, left: bytes };
        (bytes == 0 || self.promised() <= self.limit.load(Ordering::Relaxed)).then_some(promise)
    }

    /// Adds the promise of a record that is already in the journal.
    pub(crate) fn promised_before(&self, bytes: u64) {
        self.sequenced.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the records up to `lsn` hold all promises made by now. The caller holds the
    /// sequencing lock.
    pub(crate) fn mark(&self, lsn: Lsn) {
        let promised = self.sequenced.load(Ordering::Relaxed);
        let mut marks = self.marks.lock();
        if marks.back().is_none_or(|last| last.1 < promised) {
            marks.push_back((lsn, promised));
        }
    }

    /// Ends the promises of the records up to `lsn`, which are carried out.
    pub(crate) fn settle(&self, lsn: Lsn) {
        let mut marks = self.marks.lock();
        while let Some((_, promised)) = marks.pop_front_if(|(last, _)| *last <= lsn) {
            self.settled.store(promised, Ordering::Relaxed);
        }
    }
}

impl Promise<'_> {
    /// Moves `bytes` bytes of the promise to a record that is being sequenced. The caller holds the
    /// sequencing lock.
    pub(crate) fn take(&mut self, bytes: u64) {
        let taken = bytes.min(self.left);
        self.left -= taken;
        self.room.sequenced.fetch_add(taken, Ordering::Relaxed);
        self.room.in_flight.fetch_sub(taken, Ordering::Relaxed);
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.room.in_flight.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// Number of bytes by which a record makes the catalog grow at most.
pub(crate) fn growth(branch: &Branch, kind: Kind, offset: u64, length: u64) -> u64 {
    let chunks = branch.chunks(offset, length);
    // Only the ends of a discard may be parts of chunks, and need a page. What it frees makes room.
    let ends = if kind == Kind::Discard { 2 } else { u64::MAX };
    let pages = Chunk::pages(&chunks);
    // Snapshots keep the old content as versions.
    let has_snapshots = branch.epoch() > Epoch::FIRST && kind != Kind::Discard;
    let versions = if has_snapshots { chunks.end.since(chunks.start) } else { 0 };
    RECORD + (pages.end - pages.start).min(ends) * NEW_PAGE + versions * VERSION
}

/// The error of a write for which the catalog has no room.
pub(crate) fn no_pages() -> Error {
    no_space(
        "reserve space for the write in the catalog: the data directory's file system is full; free some space",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_end_when_their_records_are_carried_out() {
        let room = CatalogRoom::default();
        room.measured(30_000, 0, 10_000);
        let mut first = room.promise(4_000).unwrap();
        assert!(
            room.promise(7_000).is_none() && room.promised() == 4_000,
            "20,000 are left, half of it for commits"
        );
        first.take(3_000);
        drop(first);
        room.mark(Lsn(7));
        let mut second = room.promise(7_000).unwrap();
        second.take(7_000);
        room.settle(Lsn(6));
        assert_eq!(room.promised(), 10_000);
        assert!(room.promise(1).is_none() && room.promise(0).is_some());
        room.settle(Lsn(7));
        assert_eq!(room.promised(), 7_000, "what came after the mark stays");
        room.mark(Lsn(9));
        room.settle(Lsn(20));
        assert_eq!(room.promised(), 0);
    }

    #[test]
    fn batches_are_as_large_as_there_is_room() {
        let room = CatalogRoom::default();
        assert_eq!((room.pages(8192), room.versions(4096)), (8192, 4096));
        room.measured(40 << 20, 8 << 20, 0);
        assert_eq!(room.pages(8192), 256);
        room.measured(0, 0, 8 << 20);
        assert_eq!((room.pages(8192), room.versions(4096)), (1, 16));
    }
}
