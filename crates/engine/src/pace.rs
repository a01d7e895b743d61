//! The pace of destage: how long turns and batches take on these disks.
//!
//! A writer that finds the journal full waits for the batch that is being carried out, and for all
//! turns before it (`journal/turns.rs`). The same number of turns, or of bytes, takes 50 ms on one
//! disk and 2 s on another. So both are bounded by the time that they take.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds that the turns which wait may take together.
const TURNS: u64 = 150_000_000;
/// Turns that may wait however long each takes.
const LEAST: usize = 8;
/// Milliseconds that one batch may take.
const BATCH: u64 = 200;
/// Bytes of the journal up to which the time of a turn says what it costs beside its data.
const LITTLE: u64 = 4 << 20;

/// Measures turns and batches. Writers read the numbers without a lock.
#[derive(Default)]
pub(crate) struct Pace {
    /// Nanoseconds of a turn with little data, averaged over the last ones; 0: not measured.
    turn: AtomicU64,
    /// The rate at which the journal is carried out, over the last batches.
    rate: Rate,
}

/// Bytes in a millisecond, averaged over the last measurements; 0: not measured.
#[derive(Default)]
pub(crate) struct Rate(AtomicU64);

impl Rate {
    /// So many bytes took so many nanoseconds.
    pub(crate) fn took(&self, bytes: u64, nanoseconds: u64) {
        if let Some(rate) = bytes.saturating_mul(1_000_000).checked_div(nanoseconds) {
            let known = self.0.load(Ordering::Relaxed);
            let next = if known == 0 { rate } else { known - known / 4 + rate / 4 };
            self.0.store(next, Ordering::Relaxed);
        }
    }

    /// The nanoseconds that so many bytes take; 0: not measured.
    pub(crate) fn time(&self, bytes: u64) -> u64 {
        let rate = self.0.load(Ordering::Relaxed);
        let time = (u128::from(bytes) * 1_000_000).checked_div(u128::from(rate)).unwrap_or(0);
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

impl Pace {
    /// So many bytes of the journal were carried out in so many nanoseconds.
    pub(crate) fn took(&self, bytes: u64, nanoseconds: u64) {
        if bytes <= LITTLE {
            let known = self.turn.load(Ordering::Relaxed);
            let next = if known == 0 { nanoseconds } else { known - known / 8 + nanoseconds / 8 };
            self.turn.store(next, Ordering::Relaxed);
        } else {
            self.rate.took(bytes, nanoseconds);
        }
    }

    /// Turns that may wait, where `most` may by configuration.
    pub(crate) fn turns(&self, most: usize) -> usize {
        match self.turn.load(Ordering::Relaxed) {
            0 => most,
            turn => most.min(LEAST.max(usize::try_from(TURNS / turn).unwrap_or(most))),
        }
    }

    /// Bytes of the journal that one batch may have, between these bounds.
    pub(crate) fn batch(&self, least: u64, most: u64) -> u64 {
        let wanted = match self.rate.0.load(Ordering::Relaxed) {
            0 => most,
            rate => rate.saturating_mul(BATCH),
        };
        wanted.clamp(least.min(most), most)
    }

    /// The nanoseconds in which so many bytes of the journal are carried out; 0: not measured.
    pub(crate) fn time(&self, bytes: u64) -> u64 {
        self.rate.time(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

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

    #[test]
    fn a_batch_is_smaller_where_the_disks_are_slow() {
        let pace = Pace::default();
        assert_eq!((pace.batch(32 * MIB, 128 * MIB), pace.time(MIB)), (128 * MIB, 0));
        pace.took(32 * MIB, 30_000_000);
        assert!((936_000..939_000).contains(&pace.time(MIB)), "{}", pace.time(MIB));
        assert_eq!(pace.batch(32 * MIB, 128 * MIB), 128 * MIB);
        (0..50).for_each(|_| pace.took(128 * MIB, 500_000_000));
        assert_eq!(pace.batch(32 * MIB, 128 * MIB) / MIB, 51);
        (0..50).for_each(|_| pace.took(32 * MIB, 1_000_000_000));
        assert_eq!(pace.batch(32 * MIB, 128 * MIB), 32 * MIB);
        // A clock that stands still measures nothing, and what is configured is never exceeded.
        pace.took(32 * MIB, 0);
        assert_eq!((pace.batch(32 * MIB, 128 * MIB), pace.batch(32 * MIB, MIB)), (32 * MIB, MIB));
    }
}
