//! Flush points: moments at which all that a volume had acknowledged was durable, for going back to the last of them.
//!
//! They wait in memory until some commit takes them along. A crash loses those that wait: going back to the last flush
//! before a moment then leads to an older one. What a flush covers has to be durable before it is one, so no LSN of a point
//! that is kept is ever given to something else.

use crate::catalog::{Catalog, FlushPoint, Txn};
use crate::error::Result;
use crate::pool::{Maintenance, Pool};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Rows that one step forgets.
const ROWS_PER_STEP: usize = 4096;
/// Points that are told.
const TOLD: usize = 4096;

/// The flush points of all volumes, as far as they are in memory.
#[derive(Default)]
pub(crate) struct Flushes(Mutex<BTreeMap<u64, Of>>);

/// Of one volume.
#[derive(Default)]
struct Of {
    /// The newest.
    last: FlushPoint,
    /// A flush has succeeded since the pool was opened.
    begun: bool,
    waiting: Vec<FlushPoint>,
    /// The key of the oldest row of the catalog.
    oldest: Option<u64>,
}

impl Flushes {
    /// As the catalog knows them.
    pub(crate) fn load(catalog: &Catalog) -> Result<Flushes> {
        let of = |oldest, last| Of { last, oldest: Some(oldest), ..Of::default() };
        let rows = catalog.flushed_volumes()?.into_iter();
        let all = rows.map(|(volume, oldest, last)| (volume, of(oldest, last))).collect();
        Ok(Flushes(Mutex::new(all)))
    }

    /// A flush has succeeded that began at the time and with everything up to the LSN of `point` sequenced, the volume's own
    /// writes up to `written`. It is a new point if there is anything of the volume that the last one does not cover, as far as
    /// this life knows.
    pub(crate) fn add(&self, volume: u64, written: u64, point: FlushPoint) {
        let mut all = self.0.lock();
        let of = all.entry(volume).or_default();
        if point.0 > of.last.0 && (written > of.last.0 || !of.begun) {
            // Clocks go back, and of two flushes side by side the later one may be noted first.
            of.last = (point.0, point.1.max(of.last.1));
            of.waiting.push(of.last);
        }
        of.begun = true;
    }

    /// The time of the oldest that no commit has taken along.
    pub(crate) fn oldest_waiting(&self) -> Option<u64> {
        let all = self.0.lock();
        all.values().filter_map(|of| of.waiting.first()).map(|(_, time)| *time).min()
    }

    /// Puts those that wait into a transaction; with what is returned [`Flushes::stored`] lets go of them.
    pub(crate) fn store(&self, txn: &mut Txn<'_>) -> Result<Vec<(u64, u64)>> {
        let all: Vec<(u64, Vec<FlushPoint>)> = {
            let all = self.0.lock();
            let waiting = all.iter().filter(|(_, of)| !of.waiting.is_empty());
            waiting.map(|(volume, of)| (*volume, of.waiting.clone())).collect()
        };
        let mut stored = Vec::new();
        for (volume, waiting) in all {
            txn.put_flushes(volume, &waiting)?;
            stored.extend(waiting.last().map(|(last, _)| (volume, *last)));
        }
        Ok(stored)
    }

    /// The commit succeeded: these volumes' points up to these LSNs are in the catalog.
    pub(crate) fn stored(&self, upto: Vec<(u64, u64)>) {
        let mut all = self.0.lock();
        for (volume, last) in upto {
            if let Some(of) = all.get_mut(&volume) {
                of.waiting.retain(|(lsn, _)| *lsn > last);
                // Or a newer one: the next look at it will tell.
                of.oldest.get_or_insert(0);
            }
        }
    }

    fn waiting(&self, volume: u64) -> Vec<FlushPoint> {
        self.0.lock().get(&volume).map(|of| of.waiting.clone()).unwrap_or_default()
    }
}

impl Pool {
    /// The last flush point of a volume that `reaches`: all up to some point do.
    pub(super) fn last_flush(
        &self,
        volume: u64,
        reaches: impl Fn(&FlushPoint) -> bool,
    ) -> Result<Option<FlushPoint>> {
        // In memory first: a point leaves it only after it has come into the catalog.
        let waiting = self.flushes.waiting(volume).into_iter().take_while(&reaches).last();
        match waiting {
            Some(point) => Ok(Some(point)),
            None => self.catalog.last_flush(volume, reaches),
        }
    }

    /// The newest flush points of a volume that lie in what is kept of its history, oldest first.
    pub(super) fn newest_flushes(&self, volume: u64) -> Result<Vec<FlushPoint>> {
        let waiting = self.flushes.waiting(volume);
        let mut all = self.catalog.newest_flushes(volume, TOLD)?;
        let last = all.last().map_or(0, |(lsn, _)| *lsn);
        all.extend(waiting.into_iter().filter(|(lsn, _)| *lsn > last));
        let begins = self.begins(volume);
        all.retain(|(lsn, _)| *lsn >= begins);
        Ok(all.split_off(all.len().saturating_sub(TOLD)))
    }

    /// The first LSN that a volume can go back to; none: the largest of all.
    fn begins(&self, volume: u64) -> u64 {
        let stretches = self.stretches(volume);
        let begins = stretches.iter().filter_map(|s| s.branch.cdp.log.read().begins());
        begins.map(|(lsn, _)| lsn).min().unwrap_or(u64::MAX)
    }

    /// Takes a step of forgetting flush points of moments that are gone. False when there are none.
    pub(super) fn forget_flushes(&self, m: &mut Maintenance) -> Result<bool> {
        let volumes: Vec<(u64, u64)> = {
            let all = self.flushes.0.lock();
            all.iter().filter_map(|(volume, of)| Some((*volume, of.oldest?))).collect()
        };
        for (volume, oldest) in volumes {
            // What is not carried out yet may begin a history.
            let begins = self.begins(volume).min(m.destaged + 1);
            if oldest >= begins {
                continue;
            }
            let (gone, next) = self.catalog.flushes_before(volume, begins, ROWS_PER_STEP)?;
            if !gone.is_empty() {
                let mut txn = self.catalog.begin()?;
                gone.iter().try_for_each(|key| txn.remove_flushes(volume, *key))?;
                self.commit_aside(m, txn, &[])?;
            }
            let exists = self.names.read().volume_by_id(volume).is_some();
            let mut all = self.flushes.0.lock();
            if let Some(of) = all.get_mut(&volume) {
                // The commit may have stored some.
                of.oldest = if gone.is_empty() { next } else { Some(0) };
                if of.oldest.is_none() && of.waiting.is_empty() && !exists {
                    all.remove(&volume);
                }
            }
            if !gone.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_in_order_and_only_of_volumes_that_write() {
        let flushes = Flushes(Mutex::default());
        flushes.add(1, 10, (10, 1000));
        flushes.add(1, 12, (14, 950)); // the clock went back
        flushes.add(1, 11, (12, 960)); // noted late
        flushes.add(1, 14, (20, 2000)); // nothing new of this volume
        flushes.add(1, 21, (21, 2100));
        assert_eq!(flushes.waiting(1), [(10, 1000), (14, 1000), (21, 2100)]);
        flushes.stored(vec![(1, 14)]);
        assert_eq!(flushes.waiting(1), [(21, 2100)]);
        // The first flush of a life counts, whoever wrote before.
        flushes.add(2, 0, (21, 2100));
        flushes.add(2, 0, (30, 2200));
        assert_eq!(flushes.waiting(2), [(21, 2100)]);
    }
}
