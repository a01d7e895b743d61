//! Flush points that wait for a commit, and the newest one of each volume.

use crate::catalog::{Catalog, Txn};
use crate::error::Result;
use crate::ids::{Lsn, Stamp, VolumeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The flush points of all volumes that are in memory, by volume.
#[derive(Default)]
pub(crate) struct Flushes(pub(crate) Mutex<BTreeMap<VolumeId, Of>>);

/// The flush points of one volume.
#[derive(Default)]
pub(crate) struct Of {
    /// The newest flush point.
    last: Stamp,
    /// A flush has succeeded since the pool was opened.
    begun: bool,
    pub(crate) waiting: Vec<Stamp>,
    /// The key of the volume's oldest row in the catalog.
    pub(crate) oldest: Option<Lsn>,
}

impl Flushes {
    /// Loads the flush points that the catalog knows.
    pub(crate) fn load(catalog: &Catalog) -> Result<Flushes> {
        let of = |oldest, last| Of { last, oldest: Some(oldest), ..Of::default() };
        let rows = catalog.flushed_volumes()?.into_iter();
        let all = rows.map(|(volume, oldest, last)| (volume, of(oldest, last))).collect();
        Ok(Flushes(Mutex::new(all)))
    }

    /// Notes a flush that succeeded. It began at the time of `point`, with everything up to the LSN
    /// of `point` sequenced. The volume's own writes were sequenced up to `written`. The flush is a
    /// new point if the volume has anything that the last point does not cover. A volume without a
    /// flush since the pool was opened gets a new point as well.
    pub(crate) fn add(&self, volume: VolumeId, written: Lsn, point: Stamp) {
        let mut all = self.0.lock();
        let of = all.entry(volume).or_default();
        if point.lsn > of.last.lsn && (written > of.last.lsn || !of.begun) {
            // Clocks go back, and of two flushes side by side the later one may be noted first.
            of.last = Stamp { time: point.time.max(of.last.time), ..point };
            of.waiting.push(of.last);
        }
        of.begun = true;
    }

    /// Returns the time of the oldest point that no commit has stored.
    pub(crate) fn oldest_waiting(&self) -> Option<u64> {
        let all = self.0.lock();
        all.values().filter_map(|of| of.waiting.first()).map(|point| point.time).min()
    }

    /// Puts the waiting points into a transaction. The caller passes what is returned to
    /// [`Flushes::stored`], which drops them.
    pub(crate) fn store(&self, txn: &mut Txn<'_>) -> Result<Vec<(VolumeId, Lsn)>> {
        let all: Vec<(VolumeId, Vec<Stamp>)> = {
            let all = self.0.lock();
            let waiting = all.iter().filter(|(_, of)| !of.waiting.is_empty());
            waiting.map(|(volume, of)| (*volume, of.waiting.clone())).collect()
        };
        let mut stored = Vec::new();
        for (volume, waiting) in all {
            txn.put_flushes(volume, &waiting)?;
            stored.extend(waiting.last().map(|last| (volume, last.lsn)));
        }
        Ok(stored)
    }

    /// Notes that the commit succeeded: the points of these volumes up to these LSNs are in the
    /// catalog.
    pub(crate) fn stored(&self, upto: Vec<(VolumeId, Lsn)>) {
        let mut all = self.0.lock();
        for (volume, last) in upto {
            if let Some(of) = all.get_mut(&volume) {
                of.waiting.retain(|point| point.lsn > last);
                // The oldest stored point may also be a newer one. The next check of it finds out.
                of.oldest.get_or_insert(Lsn::ZERO);
            }
        }
    }

    pub(crate) fn waiting(&self, volume: VolumeId) -> Vec<Stamp> {
        self.0.lock().get(&volume).map(|of| of.waiting.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_in_order_and_only_of_volumes_that_write() {
        let flushes = Flushes(Mutex::default());
        flushes.add(VolumeId(1), Lsn(10), Stamp::new(Lsn(10), 1000));
        flushes.add(VolumeId(1), Lsn(12), Stamp::new(Lsn(14), 950)); // the clock went back
        flushes.add(VolumeId(1), Lsn(11), Stamp::new(Lsn(12), 960)); // noted late
        flushes.add(VolumeId(1), Lsn(14), Stamp::new(Lsn(20), 2000)); // nothing new of this volume
        flushes.add(VolumeId(1), Lsn(21), Stamp::new(Lsn(21), 2100));
        assert_eq!(
            flushes.waiting(VolumeId(1)),
            [Stamp::new(Lsn(10), 1000), Stamp::new(Lsn(14), 1000), Stamp::new(Lsn(21), 2100)]
        );
        flushes.stored(vec![(VolumeId(1), Lsn(14))]);
        assert_eq!(flushes.waiting(VolumeId(1)), [Stamp::new(Lsn(21), 2100)]);
        // The first flush of a life counts, whatever was written before.
        flushes.add(VolumeId(2), Lsn::ZERO, Stamp::new(Lsn(21), 2100));
        flushes.add(VolumeId(2), Lsn::ZERO, Stamp::new(Lsn(30), 2200));
        assert_eq!(flushes.waiting(VolumeId(2)), [Stamp::new(Lsn(21), 2100)]);
    }
}
