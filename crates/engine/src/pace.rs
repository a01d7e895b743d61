//! The pace of destage: the time that one turn takes on the pool's disks.
//!
//! A writer that finds the journal full waits for all turns before it (`journal/turns.rs`). The
//! same number of turns takes 50 ms on one disk and 2 s on another. So the time that the waiting
//! turns take bounds their number.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds that the waiting turns may take together.
const PATIENCE: u64 = 150_000_000;
/// The number of turns that may wait in any case, however long each takes.
const LEAST: usize = 8;
/// The largest data of a turn, in bytes, for which the turn's time is measured. The time of a turn
/// with more data shows the cost of its data instead.
const LITTLE: u64 = 4 << 20;

/// The measured time of turns. Writers read its only number without a lock.
#[derive(Default)]
pub(crate) struct Pace {
    /// The time of a turn in nanoseconds, averaged over the last ones; 0: not measured.
    turn: AtomicU64,
}

impl Pace {
    /// Notes that a turn with `bytes` bytes of data took `nanoseconds`.
    pub(crate) fn took(&self, bytes: u64, nanoseconds: u64) {
        if bytes > LITTLE {
            return;
        }
        let known = self.turn.load(Ordering::Relaxed);
        let next = if known == 0 { nanoseconds } else { known - known / 8 + nanoseconds / 8 };
        self.turn.store(next, Ordering::Relaxed);
    }

    /// Returns the number of turns that may wait. `most` is the number that the configuration
    /// allows.
    pub(crate) fn turns(&self, most: usize) -> usize {
        match self.turn.load(Ordering::Relaxed) {
            0 => most,
            turn => most.min(LEAST.max(usize::try_from(PATIENCE / turn).unwrap_or(most))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_turns_wait_where_each_takes_longer() {
        let pace = Pace::default();
        assert_eq!(pace.turns(96), 96);
        pace.took(4096, 1_000_000);
        assert_eq!(pace.turns(96), 96);
        (0..100).for_each(|_| pace.took(4096, 15_000_000));
        assert!((9..=11).contains(&pace.turns(96)), "{}", pace.turns(96));
        (0..100).for_each(|_| pace.took(4096, 1_000_000_000));
        assert_eq!((pace.turns(96), pace.turns(1)), (LEAST, 1));
        // How long data takes is another question.
        let pace = Pace::default();
        pace.took(LITTLE + 1, 1_000_000_000);
        assert_eq!(pace.turns(96), 96);
    }
}
