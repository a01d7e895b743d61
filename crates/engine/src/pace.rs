//! The pace of destage: how long turns and batches take on these disks.
//!
//! A writer that finds the journal full waits for the batch that is being carried out, and for all
//! turns before it (`journal/turns.rs`). The same number of turns, or of bytes, takes 50 ms on one
//! disk and 2 s on another. So both are bounded by the time that they take.
//!
//! With the throttle (`throttle.rs`), writers go on beside a batch. They take a part of the
//! processors, so a batch takes longer, and nobody waits for it as a rule. Then a batch may take
//! longer: a smaller one coalesces less, and carries fewer bytes out in the same time.
//!
//! Where hardly anything is read, destage is faster past the page cache (decision 90).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Nanoseconds that the turns which wait may take together.
const TURNS: u64 = 150_000_000;
/// Turns that may wait however long each takes.
const LEAST: usize = 8;
/// Milliseconds that one batch may take for which writers wait.
pub(crate) const BATCH_WAITED_FOR: u64 = 200;
/// Milliseconds that one batch may take beside which writers go on.
pub(crate) const BATCH_BESIDE_WRITERS: u64 = 1000;
/// Bytes of the journal up to which the time of a turn says what it costs beside its data.
const LITTLE: u64 = 4 << 20;

/// Reads are rare if there are fewer bytes of them than this part of the bytes of destage.
const RARE: u64 = 16;

/// Measures turns and batches. Writers read the numbers without a lock.
#[derive(Default)]
pub(crate) struct Pace {
    /// Nanoseconds of a turn with little data, averaged over the last ones; 0: not measured.
    turn: AtomicU64,
    /// The rate at which the journal is carried out, over the last batches.
    rate: Rate,
    /// Hardly anything was read in place between the last two batches.
    reads_are_rare: AtomicBool,
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

    /// Compares the bytes that were read in place since the last call with those that a batch
    /// writes.
    pub(crate) fn compare(&self, read: u64, written: u64) {
        self.reads_are_rare.store(read < written / RARE, Ordering::Relaxed);
    }

    /// Returns whether hardly anything is read in place.
    pub(crate) fn reads_are_rare(&self) -> bool {
        self.reads_are_rare.load(Ordering::Relaxed)
    }

    /// Turns that may wait, where `most` may by configuration.
    pub(crate) fn turns(&self, most: usize) -> usize {
        match self.turn.load(Ordering::Relaxed) {
            0 => most,
            turn => most.min(LEAST.max(usize::try_from(TURNS / turn).unwrap_or(most))),
        }
    }

    /// Returns how many bytes of the journal one batch may have that takes `time` milliseconds,
    /// between these bounds.
    pub(crate) fn batch(&self, time: u64, least: u64, most: u64) -> u64 {
        let wanted = match self.rate.0.load(Ordering::Relaxed) {
            0 => most,
            rate => rate.saturating_mul(time),
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
    fn what_is_read_stays_in_the_cache() {
        let pace = Pace::default();
        assert!(!pace.reads_are_rare(), "nothing is known");
        pace.compare(0, MIB);
        assert!(pace.reads_are_rare());
        pace.compare(MIB / 16, MIB);
        assert!(!pace.reads_are_rare());
        pace.compare(0, 0);
        assert!(!pace.reads_are_rare());
    }

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
        let batch = |pace: &Pace| pace.batch(BATCH_WAITED_FOR, 32 * MIB, 128 * MIB);
        assert_eq!((batch(&pace), pace.time(MIB)), (128 * MIB, 0));
        pace.took(32 * MIB, 30_000_000);
        assert!((936_000..939_000).contains(&pace.time(MIB)), "{}", pace.time(MIB));
        assert_eq!(batch(&pace), 128 * MIB);
        (0..50).for_each(|_| pace.took(128 * MIB, 500_000_000));
        assert_eq!(batch(&pace) / MIB, 51);
        assert_eq!(pace.batch(BATCH_BESIDE_WRITERS, 32 * MIB, 1024 * MIB) / MIB, 255);
        (0..50).for_each(|_| pace.took(32 * MIB, 1_000_000_000));
        assert_eq!(batch(&pace), 32 * MIB);
        // A clock that stands still measures nothing, and what is configured is never exceeded.
        pace.took(32 * MIB, 0);
        assert_eq!((batch(&pace), pace.batch(BATCH_WAITED_FOR, 32 * MIB, MIB)), (32 * MIB, MIB));
    }
}
