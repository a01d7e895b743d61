//! The records of a branch that wait for destage, in their order.
//!
//! The indexes of staging keep only the newest content. A moment of the last seconds also needs
//! what was overwritten since then, so a branch with a history keeps the places of all its records
//! until they are settled. The bound on the number of sequenced records that wait for destage
//! bounds the memory of this: 48 bytes each, and up to four times that in a list that has shrunk.
//!
//! A record leaves its list only after destage has published its LSN as settled. So a list is
//! complete behind what is settled, except for the records from before the branch kept a history.

use crate::ids::{Lsn, SnapshotId, Stamp};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of records for which a list keeps memory.
const KEPT: usize = 64;
/// The number of records that are copied while writers wait.
const COPIED_AT_ONCE: usize = 4096;
/// The number of records that a visit copies while writers wait, which takes some microseconds. An
/// open timeline visits all records several times a second.
const VISITED_AT_ONCE: usize = 256;

/// What a staged record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StagedKind {
    /// Data, in the journal.
    Data,
    /// Data in slots. The journal has the reference that names them.
    Reference,
    /// No data: the range reads as zeros, because zeros were written.
    Zeros,
    /// No data: the range reads as zeros, because it was discarded.
    Discarded,
}

impl StagedKind {
    /// Returns whether a record of this kind has data.
    pub(crate) fn has_data(self) -> bool {
        matches!(self, StagedKind::Data | StagedKind::Reference)
    }
}

/// A record that changed content of a branch, and where its data is in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagedRecord {
    pub(crate) stamp: Stamp,
    /// First byte in the volume.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Position of the data in its journal file, in bytes.
    pub(crate) at: u32,
    /// Length of the data in the journal, in bytes.
    pub(crate) data_len: u32,
    /// The sum of the data, as the record's header has it, by the header's version.
    pub(crate) sum: u32,
    pub(crate) version: u8,
    /// Number of the journal file that holds the record.
    pub(crate) file: u16,
    pub(crate) kind: StagedKind,
}

/// The records and anchors of one branch that wait for destage. All threads share it.
#[derive(Default)]
pub(crate) struct Waiting {
    /// The branch keeps a history, so its records are kept here.
    kept: AtomicBool,
    /// Of the records and anchors up to this LSN some are missing here.
    missing: AtomicU64,
    /// The LSN of the last record, since the pool was opened, that changed how the branch is
    /// recorded, or the volume's size.
    turned: AtomicU64,
    records: Mutex<VecDeque<StagedRecord>>,
    /// Anchors are sequenced under other locks than data is staged, so they have a list of their
    /// own.
    anchors: Mutex<VecDeque<(Stamp, SnapshotId)>>,
}

impl Waiting {
    /// Begins or ends to keep records.
    pub(crate) fn keep(&self, kept: bool) {
        let mut records = self.records.lock();
        self.kept.store(kept, Ordering::Release);
        if !kept && let Some(last) = records.back() {
            self.missing.fetch_max(last.stamp.lsn.0, Ordering::AcqRel);
            records.clear();
        }
    }

    /// Adds a record. Records come in the order of LSNs.
    pub(crate) fn push(&self, record: StagedRecord) {
        if !self.kept.load(Ordering::Acquire) {
            return self.leave_out(record.stamp.lsn);
        }
        self.records.lock().push_back(record);
    }

    /// Notes that the record with this LSN changed content and is not kept here.
    pub(crate) fn leave_out(&self, lsn: Lsn) {
        self.missing.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// Adds an anchor.
    pub(crate) fn push_anchor(&self, at: Stamp, snapshot: SnapshotId) {
        self.anchors.lock().push_back((at, snapshot));
    }

    /// Returns the anchors that wait, in order. An anchor that no longer waits is in the log.
    pub(crate) fn anchors(&self) -> Vec<(Stamp, SnapshotId)> {
        self.anchors.lock().iter().copied().collect()
    }

    /// Notes a record that changed how the branch is recorded, or the volume's size.
    pub(crate) fn turn(&self, lsn: Lsn) {
        self.turned.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// Returns whether a record after `lsn` changed how the branch is recorded, or the volume's
    /// size.
    pub(crate) fn turned_after(&self, lsn: Lsn) -> bool {
        self.turned.load(Ordering::Acquire) > lsn.0
    }

    /// Removes the records and anchors up to `lsn`. The caller has published that they are settled.
    pub(crate) fn settled(&self, lsn: Lsn) {
        let mut records = self.records.lock();
        while let Some(record) = records.pop_front_if(|record| record.stamp.lsn <= lsn) {
            self.missing.fetch_max(record.stamp.lsn.0, Ordering::AcqRel);
        }
        if records.capacity() > KEPT && records.len() < records.capacity() / 4 {
            let keep = records.len() * 2;
            records.shrink_to(keep);
        }
        drop(records);
        let mut anchors = self.anchors.lock();
        while let Some((at, _)) = anchors.pop_front_if(|(at, _)| at.lsn <= lsn) {
            self.missing.fetch_max(at.lsn.0, Ordering::AcqRel);
        }
    }

    /// Returns the LSN that is settled, and the records after it and up to `to`, in order. Returns
    /// `None` if some of them are missing, or if `has_room` refuses that many. Everything up to
    /// `to` must be written.
    ///
    /// A long list is copied in parts, between which writers go on.
    pub(crate) fn unsettled(
        &self,
        settled: impl Fn() -> Lsn,
        to: Lsn,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Option<(Lsn, Vec<StagedRecord>)> {
        let (mut from, count) = {
            let records = self.records.lock();
            let from = self.complete_from(&settled)?;
            (from, part(&records, from, to).len())
        };
        if !has_room(count) {
            return None;
        }
        let mut found: Vec<StagedRecord> = Vec::with_capacity(count);
        loop {
            let records = self.records.lock();
            let mut copied = found.last().map_or(from, |record| record.stamp.lsn);
            if self.missing.load(Ordering::Acquire) > copied.0 {
                // What is missing is settled, and so is all that was copied.
                from = self.complete_from(&settled)?;
                copied = from;
                found.clear();
            }
            let left = part(&records, copied, to);
            found.extend(records.range(left.start..left.end.min(left.start + COPIED_AT_ONCE)));
            if left.len() <= COPIED_AT_ONCE {
                return Some((from, found));
            }
        }
    }

    /// Passes the records after `from` to `take`, in order. Returns false if some of them are
    /// missing. Writers go on between parts of a long list.
    pub(crate) fn visit(&self, from: Lsn, mut take: impl FnMut(&StagedRecord)) -> bool {
        let mut seen = from;
        // A copy is made, because writers wait for the lock.
        let mut copied: Vec<StagedRecord> = Vec::new();
        loop {
            copied.clear();
            let is_all = {
                let records = self.records.lock();
                if self.missing.load(Ordering::Acquire) > seen.0 {
                    return false;
                }
                let left = part(&records, seen, Lsn::MAX);
                copied.extend(records.range(left.start..left.end.min(left.start + VISITED_AT_ONCE)));
                left.len() <= VISITED_AT_ONCE
            };
            copied.iter().for_each(&mut take);
            if is_all {
                return true;
            }
            seen = copied.last().map_or(seen, |record| record.stamp.lsn);
        }
    }

    /// Returns the last record or anchor that is not settled and that `reaches` accepts, or the
    /// outer `None` if some are missing. `reaches` accepts everything up to one of them.
    pub(crate) fn last(
        &self,
        settled: impl Fn() -> Lsn,
        reaches: impl Fn(Stamp) -> bool,
    ) -> Option<Option<Stamp>> {
        let records = self.records.lock();
        let anchors = self.anchors.lock();
        let from = self.complete_from(settled)?;
        let end = records.partition_point(|record| reaches(record.stamp));
        let record = end.checked_sub(1).and_then(|last| records.get(last)).map(|record| record.stamp);
        let anchor = anchors.iter().rev().map(|(at, _)| *at).find(|at| reaches(*at));
        Some(record.into_iter().chain(anchor).filter(|at| at.lsn > from).max())
    }

    /// Returns what is settled, if the lists are complete from there on. The caller holds the lock
    /// of a list, so that no more is taken from that list than is settled.
    fn complete_from(&self, settled: impl Fn() -> Lsn) -> Option<Lsn> {
        let settled = settled();
        (self.missing.load(Ordering::Acquire) <= settled.0).then_some(settled)
    }
}

/// Returns the places of the records after `from` and up to `to`.
fn part(records: &VecDeque<StagedRecord>, from: Lsn, to: Lsn) -> Range<usize> {
    let first = records.partition_point(|record| record.stamp.lsn <= from);
    let end = records.partition_point(|record| record.stamp.lsn <= to);
    first..end.max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(lsn: u64) -> StagedRecord {
        let stamp = Stamp::new(Lsn(lsn), lsn * 10);
        let (offset, length, at, data_len, sum, version, file) = (0, 512, 0, 0, 0, 2, 0);
        StagedRecord { stamp, offset, length, at, data_len, sum, version, file, kind: StagedKind::Zeros }
    }

    fn lsns(waiting: &Waiting, settled: u64, to: u64) -> Option<Vec<u64>> {
        let (from, found) = waiting.unsettled(|| Lsn(settled), Lsn(to), |_| true)?;
        assert_eq!(from, Lsn(settled));
        Some(found.iter().map(|record| record.stamp.lsn.0).collect())
    }

    #[test]
    fn a_list_knows_from_where_on_it_is_complete() {
        let waiting = Waiting::default();
        waiting.push(record(3));
        waiting.keep(true);
        [5, 7, 9].into_iter().for_each(|lsn| waiting.push(record(lsn)));
        assert_eq!(lsns(&waiting, 2, 9), None, "the record before it was kept is missing");
        assert_eq!(lsns(&waiting, 3, 8), Some(vec![5, 7]));
        waiting.settled(Lsn(6));
        assert_eq!((lsns(&waiting, 4, 9), lsns(&waiting, 6, 9)), (None, Some(vec![7, 9])));
        assert_eq!(lsns(&waiting, 9, 8), Some(vec![]));
        assert_eq!(waiting.unsettled(|| Lsn(6), Lsn(9), |count| count < 2), None, "there is no room");
        waiting.keep(false);
        assert_eq!((lsns(&waiting, 8, 9), lsns(&waiting, 9, 20)), (None, Some(vec![])));
    }

    #[test]
    fn a_long_list_is_right_though_destage_goes_on_while_it_is_copied() {
        let waiting = Waiting::default();
        waiting.keep(true);
        let count = 5 * COPIED_AT_ONCE as u64;
        (1..=count).for_each(|lsn| waiting.push(record(lsn)));
        let settled = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            let _destage = scope.spawn(|| {
                for lsn in (1..=count).step_by(777) {
                    settled.store(lsn, Ordering::Release);
                    waiting.settled(Lsn(lsn));
                    std::thread::yield_now();
                }
            });
            loop {
                let from = || Lsn(settled.load(Ordering::Acquire));
                let (from, found) = waiting.unsettled(from, Lsn(count - 3), |_| true).unwrap();
                let lsns = found.iter().map(|record| record.stamp.lsn.0);
                assert!(lsns.eq(from.0 + 1..=count - 3), "from {from}");
                if from.0 > count - 1000 {
                    break;
                }
            }
        });
    }

    #[test]
    fn a_visit_sees_every_record_once() {
        let waiting = Waiting::default();
        waiting.keep(true);
        let count = 3 * VISITED_AT_ONCE as u64 + 5;
        (1..=count).for_each(|lsn| waiting.push(record(lsn)));
        let mut seen = Vec::new();
        let is_whole = waiting.visit(Lsn(7), |record| {
            assert!(waiting.records.try_lock().is_some(), "writers go on");
            seen.push(record.stamp.lsn.0);
        });
        assert!(is_whole);
        assert!(seen.into_iter().eq(8..=count));
        waiting.settled(Lsn(9));
        assert!(!waiting.visit(Lsn(8), |_| ()), "one is missing");
        assert!(waiting.visit(Lsn(9), |_| ()));
    }

    #[test]
    fn a_list_gives_its_memory_back() {
        let waiting = Waiting::default();
        waiting.keep(true);
        (1..=10_000).for_each(|lsn| waiting.push(record(lsn)));
        waiting.settled(Lsn(9_990));
        assert!(waiting.records.lock().capacity() <= KEPT);
        assert_eq!(lsns(&waiting, 9_990, 20_000).unwrap().len(), 10);
        waiting.settled(Lsn(10_000));
        assert!(waiting.records.lock().capacity() <= KEPT);
    }

    #[test]
    fn the_last_one_may_be_an_anchor() {
        let waiting = Waiting::default();
        waiting.keep(true);
        waiting.push(record(5));
        waiting.push_anchor(Stamp::new(Lsn(6), 60), SnapshotId(1));
        assert_eq!(waiting.anchors(), [(Stamp::new(Lsn(6), 60), SnapshotId(1))]);
        waiting.push(record(8));
        let by = |time| waiting.last(|| Lsn(4), |at| at.time <= time).unwrap().map(|at| at.lsn.0);
        assert_eq!([by(49), by(50), by(60), by(79), by(80)], [None, Some(5), Some(6), Some(6), Some(8)]);
        assert_eq!(waiting.last(|| Lsn(6), |at| at.time <= 70), Some(None), "what is settled does not count");
        waiting.settled(Lsn(6));
        assert!(waiting.anchors().is_empty());
        assert_eq!(waiting.last(|| Lsn(5), |_| true), None);
        assert!(!waiting.turned_after(Lsn(0)));
        waiting.turn(Lsn(9));
        assert!(waiting.turned_after(Lsn(8)) && !waiting.turned_after(Lsn(9)));
    }
}
