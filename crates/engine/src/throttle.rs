//! The throttle: writers pay for what they put into a journal that fills up.
//!
//! Without a throttle the journal takes writes at full speed until it is full. From then on every
//! writer waits for whole batches, also one that writes little. With the throttle, a write of data
//! into a journal that is nearly full costs its branch the time in which destage carries out as
//! many bytes. The next write of the branch waits until the branch's earlier writes are paid for.
//! So a volume that writes much slows down to the speed of destage, the journal does not become
//! full, and a volume that writes little pays, and waits, little.
//!
//! The cost grows with the use of the journal, as in the transaction delay of OpenZFS: it is zero
//! where the throttle begins, the time of destage in the middle, and a multiple of it near the end.
//! So the use of the journal finds its own balance, however many volumes write.
//!
//! What is written and not yet durable is charged in the same way. Without that, a disk slower than
//! memory would get seconds of work into its queue, and each flush and each commit would wait for
//! all of it.
//!
//! A volume that is the only one to write pays nothing. The throttle would slow it down, and no
//! other volume would gain.

use crate::ids::BranchId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The largest multiple of the time of destage that a byte costs.
const MOST: u64 = 32;
/// Nanoseconds of debt below which no write waits.
const QUANTUM: u64 = 10_000_000;
/// The nanoseconds that it may take to make durable what is not, before writes are charged.
const SHORT_LAG: u64 = 100_000_000;

/// Nanoseconds after the last change from one writing branch to another in which a branch does not
/// count as the only one that writes. File systems commit every 5 s when little is written.
const ALONE: u64 = 10_000_000_000;

/// The use of the journal, in bytes. `capacity` is the part that records with data may use. A write
/// waits for room in any case when no more of it is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) used: u64,
    pub(crate) capacity: u64,
}

impl Fill {
    /// Returns how many bytes of the use are above the place where the throttle begins.
    /// `destage_start` is the share of the capacity, in per cent, at which destage begins. The
    /// throttle begins halfway between that and a full journal: destage returns room a batch at a
    /// time, and must not run out of work after it.
    pub(crate) fn above_start(self, destage_start: u8) -> u64 {
        let percent = u64::from(destage_start.min(100));
        self.used.saturating_sub(self.capacity / 200 * (percent + 100))
    }

    /// Returns what a record costs, in nanoseconds, that destage carries out in `time` nanoseconds.
    pub(crate) fn cost(self, time: u64, destage_start: u8) -> u64 {
        let above = self.above_start(destage_start);
        if above == 0 {
            return 0;
        }
        let left = self.capacity.saturating_sub(self.used).max(above / MOST).max(1);
        let cost = u128::from(time) * u128::from(above) / u128::from(left);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// The part of the journal that is sequenced and not durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lag {
    pub(crate) bytes: u64,
    /// The nanoseconds that it takes to make it durable; 0: not known.
    pub(crate) time: u64,
}

impl Lag {
    /// Returns whether so little is not durable that nothing is charged.
    pub(crate) fn is_short(self) -> bool {
        self.time <= SHORT_LAG
    }

    /// Returns the nanoseconds in which `bytes` of the journal become durable; 0: not known.
    pub(crate) fn time_of(self, bytes: u64) -> u64 {
        let time = u128::from(self.time) * u128::from(bytes) / u128::from(self.bytes.max(1));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Returns what `bytes` of the journal cost, in nanoseconds: the time that it takes to make
    /// them durable, where the lag is twice as long as the one that costs nothing.
    pub(crate) fn cost(self, bytes: u64) -> u64 {
        let above = self.time.saturating_sub(SHORT_LAG).min(SHORT_LAG * MOST);
        let cost = u128::from(self.time_of(bytes)) * u128::from(above) / u128::from(SHORT_LAG);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// Whether several branches write.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// The branch that wrote last; 0: none yet.
    last: AtomicU64,
    /// The monotonic time, in nanoseconds, at which another branch wrote than the one before; 0:
    /// never.
    changed: AtomicU64,
}

impl Neighbours {
    /// Notes that `branch` writes. The caller holds the sequencing lock.
    pub(crate) fn wrote(&self, branch: BranchId, now: impl FnOnce() -> u64) {
        let last = self.last.load(Ordering::Relaxed);
        if last != branch.0 {
            self.last.store(branch.0, Ordering::Relaxed);
            if last != 0 {
                self.changed.store(now().max(1), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether several branches have written lately.
    pub(crate) fn are_there(&self, now: impl FnOnce() -> u64) -> bool {
        let changed = self.changed.load(Ordering::Relaxed);
        changed != 0 && now().saturating_sub(changed) < ALONE
    }
}

/// The debt of the writes of one branch: the monotonic time, in nanoseconds, at which everything is
/// paid.
#[derive(Default)]
pub(crate) struct Debt(AtomicU64);

impl Debt {
    /// Adds a cost in nanoseconds. The debt never exceeds `most` nanoseconds.
    pub(crate) fn add(&self, now: u64, cost: u64, most: u64) {
        let paid = |until: u64| Some(until.max(now).saturating_add(cost).min(now.saturating_add(most)));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid);
    }

    /// Returns whether there may be a debt. That is quicker to know than its size.
    pub(crate) fn may_exist(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Returns whether so much is not paid that it is worth a wait. A short sleep takes longer than
    /// it should, and one for each small write would slow writers down more than destage does.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.0.load(Ordering::Relaxed) > now.saturating_add(QUANTUM)
    }

    /// Returns the time until everything is paid, if it is not.
    pub(crate) fn left(&self, now: u64) -> Option<Duration> {
        let until = self.0.load(Ordering::Relaxed);
        (until > now).then(|| Duration::from_nanos(until - now))
    }

    /// Forgets the debt, because the journal has room again.
    pub(crate) fn forgive(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    fn near(found: u64, expected: u64) -> bool {
        found.abs_diff(expected) <= expected / 100
    }

    #[test]
    fn a_byte_costs_more_the_fuller_the_journal_is() {
        let cost = |used| Fill { used: used * MIB, capacity: 1000 * MIB }.cost(10 * MS, 60);
        assert_eq!((cost(0), cost(800)), (0, 0));
        assert!(near(cost(850), 10 * MS / 3), "a third: {}", cost(850));
        assert!(near(cost(900), 10 * MS), "the time of destage itself: {}", cost(900));
        assert!(near(cost(950), 30 * MS), "three times it: {}", cost(950));
        assert!(near(cost(1000), 10 * MS * MOST), "bounded: {}", cost(1000));
        assert_eq!(Fill { used: 1, capacity: 0 }.cost(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn a_byte_costs_more_the_more_is_not_durable() {
        // A disk that writes 100 MiB in a second.
        let cost = |lag: u64| Lag { bytes: lag * MIB / 10, time: lag * MS }.cost(MIB);
        assert_eq!((cost(0), cost(100)), (0, 0));
        assert!(near(cost(150), 5 * MS) && near(cost(200), 10 * MS) && near(cost(400), 30 * MS));
        assert!(near(cost(100_000), 10 * MS * MOST), "bounded: {}", cost(100_000));
        assert_eq!(Lag { bytes: 1000 * MIB, time: 0 }.cost(MIB), 0, "not known");
        assert!(Lag { bytes: 1, time: 100 * MS }.is_short() && !Lag { bytes: 1, time: 101 * MS }.is_short());
    }

    #[test]
    fn a_branch_is_alone_when_no_other_has_written_for_a_while() {
        let neighbours = Neighbours::default();
        let wrote = |branch, now| neighbours.wrote(BranchId(branch), || now);
        (0..3).for_each(|now| wrote(7, now));
        let are_there = |now| neighbours.are_there(|| now);
        assert!(!are_there(3), "it is the only one");
        wrote(8, 3);
        wrote(7, 4);
        wrote(7, ALONE);
        assert!(are_there(4) && are_there(ALONE + 3));
        assert!(!are_there(ALONE + 4));
    }

    #[test]
    fn the_throttle_begins_behind_destage() {
        let above = |percent| Fill { used: 390, capacity: 400 }.above_start(percent);
        assert_eq!((above(0), above(60), above(100), above(255)), (190, 70, 0, 0));
    }

    #[test]
    fn a_debt_is_paid_by_time_alone() {
        let debt = Debt::default();
        assert_eq!((debt.may_exist(), debt.left(0)), (false, None));
        debt.add(100, 50, 1000);
        debt.add(120, 30, 1000);
        assert_eq!((debt.left(120), debt.left(180)), (Some(Duration::from_nanos(60)), None));
        let small = Debt::default();
        small.add(0, QUANTUM, u64::MAX);
        assert!(!small.is_due(0) && small.left(0).is_some());
        small.add(0, 1, u64::MAX);
        assert!(small.is_due(0) && !small.is_due(1));
        // What was paid does not count against later writes, and a debt is bounded.
        debt.add(500, u64::MAX, 1000);
        assert_eq!(debt.left(500), Some(Duration::from_nanos(1000)));
        debt.forgive();
        assert_eq!((debt.may_exist(), debt.left(500)), (false, None));
    }
}
