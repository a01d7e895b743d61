//! The records of a branch that wait for destage, in their order.
//!
//! The indexes of staging keep only the newest content. A moment of the last seconds also needs
//! what was overwritten since then, so a branch with a history keeps the places of all its records
//! until they are in place. The bound on the number of sequenced records that wait for destage
//! bounds the memory of this, at 48 bytes each.
//!
//! A list states from which LSN on it is complete. Whoever needs an earlier record has to wait
//! until destage has carried that record out.

use crate::ids::{Lsn, Stamp};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of records for which an empty list keeps memory.
const KEPT_EMPTY: usize = 1024;

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
    /// The sum of the data, as the record's header has it, by the header's version.
    pub(crate) sum: u32,
    pub(crate) version: u8,
    /// Number of the journal file that holds the record.
    pub(crate) file: u16,
    /// The range reads as zeros: the record has no data.
    pub(crate) zeros: bool,
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
    anchors: Mutex<VecDeque<Stamp>>,
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
            self.missing.fetch_max(record.stamp.lsn.0, Ordering::AcqRel);
            return;
        }
        self.records.lock().push_back(record);
    }

    /// Adds an anchor.
    pub(crate) fn push_anchor(&self, at: Stamp) {
        self.anchors.lock().push_back(at);
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

    /// Removes the records up to `lsn`, which are in place. The caller then notes that they are
    /// settled.
    pub(super) fn remove(&self, lsn: Lsn) {
        let mut records = self.records.lock();
        while let Some(record) = records.pop_front_if(|record| record.stamp.lsn <= lsn) {
            self.missing.fetch_max(record.stamp.lsn.0, Ordering::AcqRel);
        }
        if records.is_empty() && records.capacity() > KEPT_EMPTY {
            records.shrink_to(0);
        }
    }

    /// Removes the anchors up to `lsn`, which are settled.
    pub(crate) fn remove_anchors(&self, lsn: Lsn) {
        let mut anchors = self.anchors.lock();
        while let Some(at) = anchors.pop_front_if(|at| at.lsn <= lsn) {
            self.missing.fetch_max(at.lsn.0, Ordering::AcqRel);
        }
    }

    /// Returns the records after `from` and up to `to`, in order, or `None` if some of them are
    /// missing. Everything up to `to` must be written.
    pub(crate) fn between(&self, from: Lsn, to: Lsn) -> Option<Vec<StagedRecord>> {
        let records = self.records.lock();
        if self.missing.load(Ordering::Acquire) > from.0 {
            return None;
        }
        let first = records.partition_point(|record| record.stamp.lsn <= from);
        let end = records.partition_point(|record| record.stamp.lsn <= to);
        Some(records.range(first..end.max(first)).copied().collect())
    }

    /// Returns the last record or anchor after `from` that `reaches` accepts, or the outer `None`
    /// if some are missing. `reaches` accepts everything up to one of them.
    pub(crate) fn last(&self, from: Lsn, reaches: impl Fn(Stamp) -> bool) -> Option<Option<Stamp>> {
        let records = self.records.lock();
        let anchors = self.anchors.lock();
        if self.missing.load(Ordering::Acquire) > from.0 {
            return None;
        }
        let end = records.partition_point(|record| reaches(record.stamp));
        let record = end.checked_sub(1).and_then(|last| records.get(last)).map(|record| record.stamp);
        let anchor = anchors.iter().rev().find(|at| reaches(**at)).copied();
        Some(record.into_iter().chain(anchor).filter(|at| at.lsn > from).max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(lsn: u64) -> StagedRecord {
        let stamp = Stamp::new(Lsn(lsn), lsn * 10);
        StagedRecord { stamp, offset: 0, length: 512, at: 0, sum: 0, version: 2, file: 0, zeros: true }
    }

    fn lsns(waiting: &Waiting, from: u64, to: u64) -> Option<Vec<u64>> {
        Some(waiting.between(Lsn(from), Lsn(to))?.iter().map(|record| record.stamp.lsn.0).collect())
    }

    #[test]
    fn a_list_knows_from_where_on_it_is_complete() {
        let waiting = Waiting::default();
        waiting.push(record(3));
        waiting.keep(true);
        [5, 7, 9].into_iter().for_each(|lsn| waiting.push(record(lsn)));
        assert_eq!(lsns(&waiting, 2, 9), None, "the record before it was kept is missing");
        assert_eq!(lsns(&waiting, 3, 8), Some(vec![5, 7]));
        waiting.remove(Lsn(6));
        assert_eq!((lsns(&waiting, 4, 9), lsns(&waiting, 5, 9)), (None, Some(vec![7, 9])));
        assert_eq!(lsns(&waiting, 9, 8), Some(vec![]));
        waiting.keep(false);
        assert_eq!((lsns(&waiting, 8, 9), lsns(&waiting, 9, 20)), (None, Some(vec![])));
    }

    #[test]
    fn the_last_one_may_be_an_anchor() {
        let waiting = Waiting::default();
        waiting.keep(true);
        waiting.push(record(5));
        waiting.push_anchor(Stamp::new(Lsn(6), 60));
        waiting.push(record(8));
        let by = |time| waiting.last(Lsn(4), |at| at.time <= time).unwrap().map(|at| at.lsn.0);
        assert_eq!([by(49), by(50), by(60), by(79), by(80)], [None, Some(5), Some(6), Some(6), Some(8)]);
        assert_eq!(waiting.last(Lsn(6), |at| at.time <= 70), Some(None), "what is settled does not count");
        waiting.remove_anchors(Lsn(6));
        assert_eq!(waiting.last(Lsn(5), |_| true), None);
        assert!(!waiting.turned_after(Lsn(0)));
        waiting.turn(Lsn(9));
        assert!(waiting.turned_after(Lsn(8)) && !waiting.turned_after(Lsn(9)));
    }
}
