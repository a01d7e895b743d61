//! The progress of the scrubs of the catalog and of data in place, in memory.

use super::scrub::data::DataScrubRecord;
use super::{Catalog, ScrubRecord};
use crate::error::{ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The least time between two pieces, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// The progress of the scrub. All threads share it.
#[derive(Default)]
pub(crate) struct Scrub(pub(crate) Mutex<ScrubState>);

#[derive(Default)]
pub(crate) struct ScrubState {
    pub(crate) record: ScrubRecord,
    /// The progress as the catalog has it.
    stored: ScrubRecord,
    pub(crate) suspects: BTreeSet<u64>,
    /// The time at which the last piece was read.
    last: Option<u64>,
}

impl Scrub {
    pub(crate) fn load(catalog: &Catalog) -> Result<Scrub> {
        // Without the row a pass begins anew: nothing else depends on it.
        let record = match catalog.scrub_record() {
            Err(error) if error.kind() == ErrorKind::Corrupt => ScrubRecord::default(),
            record => record?,
        };
        Ok(Scrub(Mutex::new(ScrubState { record, stored: record, ..ScrubState::default() })))
    }

    /// Returns the progress that the catalog should store, if it does not have it.
    pub(crate) fn to_store(&self) -> Option<ScrubRecord> {
        let mut state = self.0.lock();
        let mut record = state.record;
        if record.next > 0 {
            // Suspects are judged at the end of the pass only.
            record.next = state.suspects.first().map_or(record.next, |first| record.next.min(*first).max(1));
        }
        let changed = record != state.stored;
        state.stored = record;
        changed.then_some(record)
    }

    /// Returns the progress of the scrub.
    pub(crate) fn record(&self) -> ScrubRecord {
        self.0.lock().record
    }
}

impl ScrubState {
    /// Returns the next block to read, if one is due.
    pub(crate) fn due(&mut self, now: u64, interval: u64) -> Option<u64> {
        let since = |then: u64| now.checked_sub(then);
        if self.last.and_then(since).is_some_and(|passed| passed < PAUSE) {
            return None;
        }
        let rests =
            self.record.finished > 0 && since(self.record.finished).is_some_and(|passed| passed < interval);
        if self.record.next == 0 && rests {
            return None;
        }
        self.last = Some(now);
        Some(self.record.next)
    }
}

/// The progress of the scrub. All threads share it.
#[derive(Default)]
pub(crate) struct DataScrub(pub(crate) Mutex<DataScrubState>);

#[derive(Default)]
pub(crate) struct DataScrubState {
    pub(crate) record: DataScrubRecord,
    /// The progress as the catalog has it.
    pub(crate) stored: DataScrubRecord,
    /// Time of the monotonic clock of the last commit that the scrub made, in nanoseconds.
    pub(crate) committed: u64,
    /// Time of the monotonic clock before which no step is due.
    pub(crate) not_before: u64,
}

impl DataScrub {
    pub(crate) fn load(catalog: &Catalog) -> Result<DataScrub> {
        // Without the row a pass begins anew: nothing else depends on it.
        let record = match catalog.data_scrub() {
            Err(error) if error.kind() == ErrorKind::Corrupt => DataScrubRecord::default(),
            record => record?,
        };
        Ok(DataScrub(Mutex::new(DataScrubState { record, stored: record, ..DataScrubState::default() })))
    }

    /// Returns the progress that the catalog should store, if it does not have it.
    pub(crate) fn to_store(&self) -> Option<DataScrubRecord> {
        let mut state = self.0.lock();
        let changed = state.record != state.stored;
        state.stored = state.record;
        changed.then_some(state.record)
    }

    pub(crate) fn record(&self) -> DataScrubRecord {
        self.0.lock().record
    }

    /// Changes the progress.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut DataScrubRecord) -> T) -> T {
        change(&mut self.0.lock().record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEEK: u64 = 7 * 86_400 * 1_000_000_000;

    #[test]
    fn a_pass_a_week_with_pauses() {
        let mut state = ScrubState::default();
        let start = 1_000_000_000_000_000_000;
        assert_eq!(state.due(start, WEEK), Some(0), "never scrubbed");
        state.record.next = 256;
        assert_eq!(state.due(start + PAUSE - 1, WEEK), None);
        assert_eq!(state.due(start + PAUSE, WEEK), Some(256));
        assert_eq!(state.due(start, WEEK), Some(256), "the clock was put back");
        state.record = ScrubRecord { next: 0, finished: start, passes: 1 };
        assert_eq!(state.due(start + WEEK - 1, WEEK), None);
        assert_eq!(state.due(start - PAUSE, WEEK), Some(0), "the clock was put back");
        assert_eq!(state.due(start + WEEK, WEEK), Some(0));
    }

    #[test]
    fn the_catalog_knows_of_nothing_behind_a_suspect() {
        let scrub = Scrub::default();
        assert_eq!(scrub.to_store(), None);
        scrub.0.lock().record.next = 512;
        assert_eq!(scrub.to_store().unwrap().next, 512);
        assert_eq!(scrub.to_store(), None);
        scrub.0.lock().suspects.insert(300);
        scrub.0.lock().record.next = 768;
        assert_eq!(scrub.to_store().unwrap().next, 300);
    }
}
