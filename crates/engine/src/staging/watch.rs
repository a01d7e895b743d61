//! Watches: a compare-and-write learns whether anything else was sequenced in its range between the
//! comparison and the write.

use super::Staging;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A range of bytes that is compared now. The watch ends when this is dropped.
pub(crate) struct Watch {
    staging: Arc<Staging>,
    spot: Arc<Spot>,
}

/// The part of a watch that staging holds.
pub(crate) struct Spot {
    range: Range<u64>,
    disturbed: AtomicBool,
}

impl Watch {
    /// Begins to watch. The caller holds the sequencing lock, so everything that is sequenced later
    /// is noticed.
    pub(crate) fn begin(staging: &Arc<Staging>, range: Range<u64>) -> Watch {
        let spot = Arc::new(Spot { range, disturbed: AtomicBool::new(false) });
        let mut watches = staging.watches.lock();
        watches.push(spot.clone());
        staging.watched.store(true, Ordering::Release);
        drop(watches);
        Watch { staging: staging.clone(), spot }
    }

    /// Returns whether anything was sequenced in the range since the watch began. The answer is
    /// certain under the sequencing lock.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.spot.disturbed.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.staging.watches.lock();
        watches.retain(|spot| !Arc::ptr_eq(spot, &self.spot));
        self.staging.watched.store(!watches.is_empty(), Ordering::Release);
    }
}

impl Staging {
    /// Notes that a record that changes these bytes is sequenced. The caller holds the sequencing
    /// lock.
    pub(crate) fn disturb(&self, start: u64, end: u64) {
        if !self.watched.load(Ordering::Acquire) {
            return;
        }
        for spot in self.watches.lock().iter() {
            if start < spot.range.end && spot.range.start < end {
                spot.disturbed.store(true, Ordering::Release);
            }
        }
    }
}
