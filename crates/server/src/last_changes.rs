//! When each volume was last written to, as far as the server has seen it: its counters are looked
//! at once a second.

use hindcast_engine::pool::VolumeStats;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// Number of deleted volumes that are remembered. A volume that comes back from the trash keeps its
/// time, and what was written to it before is no change.
const DELETED: usize = 1024;

/// The last changes of volumes.
#[derive(Default)]
pub(crate) struct LastChanges(Mutex<HashMap<Uuid, Seen>>);

struct Seen {
    /// Number of requests that changed the volume since the pool was opened.
    requests: u64,
    /// Time of the first look that saw this number. `None`: there were none.
    at: Option<Timestamp>,
}

impl LastChanges {
    /// Looks at the counters of all volumes.
    pub(crate) fn look(&self, all: &[(Uuid, VolumeStats)], now: Timestamp) {
        let mut seen = self.0.lock();
        for (id, stats) in all {
            let requests = stats.writes + stats.discards;
            let known = seen.entry(*id).or_insert(Seen { requests: 0, at: None });
            if known.requests != requests {
                *known = Seen { requests, at: Some(now) };
            }
        }
        if seen.len() > all.len() + DELETED {
            let exists: HashSet<&Uuid> = all.iter().map(|(id, _)| id).collect();
            seen.retain(|id, _| exists.contains(id));
        }
    }

    /// Returns the time of a volume's last change since the server started.
    pub(crate) fn of(&self, volume: Uuid) -> Option<Timestamp> {
        self.0.lock().get(&volume)?.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_is_when_a_counter_moved() {
        let changes = LastChanges::default();
        let [db, log] = [1, 2].map(Uuid::from_u128);
        let stats =
            |writes, discards, reads| VolumeStats { writes, discards, reads, ..VolumeStats::default() };
        let at = |second| Timestamp::from_second(second).unwrap();
        changes.look(&[(db, stats(0, 0, 0)), (log, stats(3, 0, 0))], at(1));
        assert_eq!((changes.of(db), changes.of(log)), (None, Some(at(1))), "at the start");
        changes.look(&[(db, stats(0, 1, 5))], at(2));
        assert_eq!((changes.of(db), changes.of(log)), (Some(at(2)), Some(at(1))), "log is in the trash");
        changes.look(&[(db, stats(0, 1, 9)), (log, stats(3, 0, 0))], at(3));
        assert_eq!((changes.of(db), changes.of(log)), (Some(at(2)), Some(at(1))), "reads change nothing");
        // The memory is bounded.
        for n in 0..2 * DELETED as u128 {
            changes.look(&[(db, stats(0, 1, 0)), (Uuid::from_u128(n + 10), stats(1, 0, 0))], at(4));
        }
        assert!(changes.0.lock().len() <= DELETED + 2 && changes.of(db) == Some(at(2)));
    }
}
