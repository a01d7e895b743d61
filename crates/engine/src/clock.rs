//! Pool time, and what the wall clock showed at each pool time.
//!
//! Records, flush points and histories carry *pool time*: nanoseconds that grow with the monotonic
//! clock and with the order of records, whatever happens to the wall clock. Ages are differences of
//! pool times. While the wall clock is not set, pool time is the wall clock's time.
//!
//! Where the wall clock was set, a new [`ClockStretch`] of pool time begins. The stretch notes how
//! far the wall clock is ahead of pool time from there on. So a time on the wall is a pool time in
//! some stretch, or in several where the clock was set back. Of several the newest one counts.
//!
//! A clock that is set by more than [`JUMP`] suspends expiry by time until the clock agrees again,
//! or the operator confirms it.

use crate::ids::{Lsn, Stamp};
use crate::world::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uuid::Uuid;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
/// Nanoseconds by which the wall clock may be set without a warning, because time services do that.
pub(crate) const JUMP: u64 = 60 * SECOND;
/// Nanoseconds by which the wall clock may be set without the beginning of a new stretch.
const STEP: u64 = SECOND / 20;
/// Nanoseconds between two comparisons with the wall clock while records are stamped.
const COMPARE_EVERY: u64 = SECOND / 100;
/// Nanoseconds that reading both clocks may take. A reading that takes longer is not one instant.
const READING: u64 = SECOND / 1000;
/// Nanoseconds that a machine may plausibly have been off.
const LONGEST_GAP: u64 = 72 * HOUR;
/// Nanoseconds after a boot in which nothing expires because of the time that the machine was off.
/// A time service may correct the clock in this time.
const SETTLING: u64 = 600 * SECOND;
/// Nanoseconds after which the clocks are stored though no other change is to be stored.
const STORE_EVERY: u64 = 6 * HOUR;
/// The largest number of stretches that are kept.
const MOST_STRETCHES: usize = 256;

/// The pool's clock. Its lock is a leaf. The lock is taken to compare the clocks, and not to stamp
/// a record.
pub(crate) struct PoolClock {
    clock: Arc<dyn Clock>,
    /// The difference between pool time and the monotonic clock's reading, modulo 2^64.
    base: AtomicU64,
    /// The monotonic reading at the last comparison with the wall clock.
    compared: AtomicU64,
    /// Expiry by time is suspended.
    suspended: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// The stretches, ordered by pool time. There is always at least one. The first stretch also
    /// holds for everything before it.
    stretches: Vec<ClockStretch>,
    /// Nanoseconds by which the trusted wall clock is ahead of pool time.
    agreed: i64,
    /// Nanoseconds by which the wall clock may be further ahead, once. They stand for a time that
    /// the machine was off, which only the wall clock knows.
    slack: u64,
    /// The monotonic reading before which nothing expires by time.
    settled_at: u64,
    /// The wall clock differs from its expected time by more than [`JUMP`].
    jumped: bool,
    /// The stretches, or the trusted offset, changed since they were stored.
    changed: bool,
    /// The monotonic reading at the last commit that stored the clocks.
    stored: u64,
    /// The monotonic reading when stretches without a history were last dropped.
    pruned: u64,
}

/// A place in the order of records where the wall clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockChange {
    /// The LSN of the last record before the change.
    pub lsn: Lsn,
    /// The time that the wall clock would have shown without the change, in nanoseconds since the
    /// Unix epoch.
    pub before: u64,
    /// The time that the wall clock showed after the change, in nanoseconds since the Unix epoch.
    pub after: u64,
}

/// The state of the wall clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockInfo {
    /// The time of the wall clock, in nanoseconds since the Unix epoch.
    pub now: u64,
    /// Nanoseconds by which the wall clock is ahead of its expected time, if that is a jump that
    /// the operator has not confirmed.
    pub jumped: Option<i64>,
    /// Expiry by time is suspended.
    pub suspended: bool,
    /// Nanoseconds by which the newest time of a history or snapshot lies ahead of the clock.
    pub ahead: u64,
    /// The changes of the wall clock, oldest first, as far back as any history goes.
    pub changes: Vec<ClockChange>,
}

/// Returns `a` minus `b`. A result that does not fit becomes the largest or the smallest number.
fn minus(a: u64, b: u64) -> i64 {
    let difference = i128::from(a) - i128::from(b);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

impl PoolClock {
    /// Continues where the stored clocks ended. `last` is the number and the time of the last
    /// record. `stored` is `None` if the pool is new, or of a build that stored no clocks.
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        stored: Option<ClockRecord>,
        stretches: Vec<ClockStretch>,
        last: Stamp,
    ) -> PoolClock {
        let (boot, monotonic) = (clock.boot(), clock.monotonic());
        let same_boot = stored.filter(|s| s.boot == boot && !boot.is_nil() && monotonic >= s.monotonic);
        let unknown = minus(clock.now(), last.time);
        let mut agreed = stored.map_or(0, |s| s.agreed);
        let (base, slack, settled_at) = match (&same_boot, &stored) {
            (Some(s), _) => {
                let now = s.time.saturating_add(monotonic - s.monotonic);
                // The last record is far ahead of the stored clock if the pool counted a time
                // without power, and was killed before a commit stored that. Pool time would stand
                // still until it reaches the record. So it goes on from the record.
                let now = if minus(last.time, now) > STEP.cast_signed() { last.time } else { now };
                (now.wrapping_sub(monotonic), s.slack, s.settled_at)
            }
            // How long the machine was off is not known but by the wall clock.
            (None, Some(s)) => (s.time.max(last.time).wrapping_sub(monotonic), LONGEST_GAP, 0),
            (None, None) if last.time > 0 && unknown > LONGEST_GAP.cast_signed() => {
                // A build that stored no clocks let idle pools rest for as long as they were idle.
                // That is no age.
                agreed = unknown;
                (last.time.wrapping_sub(monotonic), 0, 0)
            }
            (None, None) if last.time > 0 => (last.time.wrapping_sub(monotonic), LONGEST_GAP, 0),
            (None, None) => (clock.now().wrapping_sub(monotonic), 0, 0),
        };
        let first = ClockStretch { from: 0, lsn: Lsn::ZERO, offset: 0 };
        let pool = PoolClock {
            clock,
            base: AtomicU64::new(base),
            compared: AtomicU64::new(monotonic),
            suspended: AtomicBool::new(false),
            state: Mutex::new(State {
                stretches: if stretches.is_empty() { vec![first] } else { stretches },
                agreed,
                slack,
                settled_at,
                jumped: false,
                changed: stored.is_none(),
                stored: monotonic,
                pruned: monotonic,
            }),
        };
        pool.compare(last);
        pool
    }

    /// Returns the pool time now.
    pub(crate) fn now(&self) -> u64 {
        self.clock.monotonic().wrapping_add(self.base.load(Ordering::Relaxed))
    }

    /// Returns the pool time for a record that follows the one with this number and time. Compares
    /// the clocks if they were not compared lately, so that few records belong to the wrong
    /// stretch.
    pub(crate) fn next_time(&self, last: Stamp) -> u64 {
        let monotonic = self.clock.monotonic();
        if monotonic.wrapping_sub(self.compared.load(Ordering::Relaxed)) >= COMPARE_EVERY {
            self.compare(last);
        }
        monotonic.wrapping_add(self.base.load(Ordering::Relaxed)).max(last.time.saturating_add(1))
    }

    /// Returns the wall clock and the monotonic clock at one instant, or `None` if the thread was
    /// interrupted between the readings.
    fn read(&self) -> Option<(u64, u64)> {
        (0..3).find_map(|_| {
            let before = self.clock.monotonic();
            let wall = self.clock.now();
            let after = self.clock.monotonic();
            (after.saturating_sub(before) <= READING).then_some((wall, after))
        })
    }

    /// Compares the wall clock with pool time. What follows the record with this number and time
    /// belongs to the stretch that the wall clock is in now.
    pub(crate) fn compare(&self, last: Stamp) {
        let Some((wall, monotonic)) = self.read() else { return };
        self.compared.store(monotonic, Ordering::Relaxed);
        let state = &mut *self.state.lock();
        let mut now = monotonic.wrapping_add(self.base.load(Ordering::Relaxed));
        let ahead = minus(wall, now).saturating_sub(state.agreed);
        // The time that the machine was off counts as age.
        let gap = u64::try_from(ahead).unwrap_or(0);
        let was_off = gap > 0 && gap <= state.slack;
        if was_off {
            now = now.saturating_add(gap);
            self.base.fetch_add(gap, Ordering::Relaxed);
            if gap > JUMP {
                state.settled_at = monotonic.saturating_add(SETTLING);
            }
        }
        let offset = minus(wall, now);
        let jumped = !was_off && ahead.unsigned_abs() > JUMP;
        if jumped && !state.jumped {
            tracing::warn!(
                ahead,
                "the wall clock was set: expiry by time stops until the clock agrees with pool time or is confirmed"
            );
        }
        state.jumped = jumped;
        if !state.jumped {
            state.changed |= state.slack > 0;
            state.slack = 0;
            if offset.abs_diff(state.agreed) > STEP {
                state.agreed = offset;
                state.changed = true;
            }
        }
        if state.offset().abs_diff(offset) > STEP {
            tracing::info!(last.lsn = last.lsn.0, offset, "a stretch of pool time begins");
            state.begin(ClockStretch { from: now.max(last.time.saturating_add(1)), lsn: last.lsn, offset });
        }
        self.suspended.store(state.jumped || monotonic < state.settled_at, Ordering::Release);
    }

    /// Returns whether expiry by time is suspended.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }

    /// Returns how far the wall clock is ahead of its expected time, in nanoseconds, if that is a
    /// jump.
    pub(crate) fn jumped(&self) -> Option<i64> {
        let state = self.state.lock();
        state.jumped.then(|| state.offset().saturating_sub(state.agreed))
    }

    /// Confirms the wall clock: its present time is trusted.
    pub(crate) fn confirm(&self) {
        let state = &mut *self.state.lock();
        (state.agreed, state.slack, state.settled_at) = (state.offset(), 0, 0);
        (state.jumped, state.changed) = (false, true);
        self.suspended.store(false, Ordering::Release);
    }

    /// Returns the time that the wall clock showed at a pool time.
    pub(crate) fn wall(&self, time: u64) -> u64 {
        on_the_wall(&self.state.lock().stretches, time)
    }

    /// Returns what converts many pool times to times on the wall, as the clock is now.
    pub(crate) fn walls(&self) -> WallTimes {
        WallTimes(self.state.lock().stretches.clone())
    }

    /// Returns the pool time of a time on the wall, in the newest stretch that contains it. A time
    /// that no stretch contains is the end of the newest stretch that began by then. `None` means
    /// that the time is still to come. `now` is the pool time now, or of the last record if that is
    /// later.
    pub(crate) fn at(&self, wall: u64, now: u64) -> Option<u64> {
        let state = self.state.lock();
        // A stretch begins behind the last record, whose time may lie a little ahead of the clock.
        // The one that goes on ends now: the clock may be ahead of it by what makes no stretch.
        let until = self.clock.now();
        let newest = |span: &Span| span.last >= now && wall <= until && wall - span.ends() <= STEP;
        let tells = |span: &Span| {
            let begins = span.begins().saturating_sub(READING);
            begins <= wall && (wall <= span.ends() || newest(span))
        };
        if let Some(found) = state.spans(now).find(tells) {
            let time = wall.saturating_add_signed(found.offset.saturating_neg());
            return Some(time.clamp(found.from.saturating_sub(1), found.last));
        }
        if wall > now.saturating_add_signed(state.offset()) {
            return None;
        }
        let before = state.spans(now).find(|span| span.begins() <= wall);
        Some(before.map_or(0, |span| span.last))
    }

    /// Returns the changes of the wall clock after a pool time.
    pub(crate) fn changes(&self, after: u64) -> Vec<ClockChange> {
        let state = self.state.lock();
        let pairs = state.stretches.windows(2).filter(|pair| pair[1].from >= after);
        let change = |pair: &[ClockStretch]| ClockChange {
            lsn: pair[1].lsn,
            before: pair[1].from.saturating_add_signed(pair[0].offset),
            after: pair[1].from.saturating_add_signed(pair[1].offset),
        };
        pairs.map(change).collect()
    }

    /// Returns the latest time on the wall of all stretches that end after a pool time, except the
    /// current one.
    pub(crate) fn latest(&self, after: u64) -> u64 {
        let state = self.state.lock();
        let ended = state.spans(u64::MAX).skip(1).filter(|span| span.last >= after);
        ended.map(|span| span.ends()).max().unwrap_or(0)
    }

    /// Returns whether the clocks should be stored though no other change is to be stored.
    pub(crate) fn wants_commit(&self) -> bool {
        let monotonic = self.clock.monotonic();
        let state = self.state.lock();
        state.changed || monotonic.saturating_sub(state.stored) >= STORE_EVERY
    }

    /// Returns whether to look for stretches that no history reaches. It returns true once a
    /// minute, if there may be any.
    pub(crate) fn wants_pruning(&self) -> bool {
        let monotonic = self.clock.monotonic();
        let state = &mut *self.state.lock();
        let due = state.stretches.len() > 1 && monotonic.saturating_sub(state.pruned) >= JUMP;
        if due {
            state.pruned = monotonic;
        }
        due
    }

    /// Drops the stretches before the one that contains a pool time.
    pub(crate) fn prune(&self, oldest: u64) {
        let state = &mut *self.state.lock();
        let after = state.stretches.partition_point(|stretch| stretch.from <= oldest);
        if after > 1 {
            state.stretches.drain(..after - 1);
            state.changed = true;
        }
    }

    /// Returns what a commit stores: the clocks, and the stretches if they changed.
    pub(crate) fn to_store(&self) -> (ClockRecord, Option<Vec<ClockStretch>>) {
        let state = self.state.lock();
        let monotonic = self.clock.monotonic();
        let record = ClockRecord {
            time: monotonic.wrapping_add(self.base.load(Ordering::Relaxed)),
            monotonic,
            boot: self.clock.boot(),
            agreed: state.agreed,
            slack: state.slack,
            settled_at: state.settled_at,
        };
        (record, state.changed.then(|| state.stretches.clone()))
    }

    /// Notes that the commit that stores these succeeded.
    pub(crate) fn stored(&self, record: &ClockRecord, stretches: Option<&[ClockStretch]>) {
        let state = &mut *self.state.lock();
        state.stored = record.monotonic;
        // Something may have changed meanwhile.
        let same = (record.agreed, record.slack) == (state.agreed, state.slack);
        if same && stretches.is_some_and(|stored| stored == state.stretches) {
            state.changed = false;
        }
    }
}

/// A stretch of pool time with its end.
struct Span {
    from: u64,
    /// The last pool time that belongs to the stretch.
    last: u64,
    offset: i64,
}

impl Span {
    fn begins(&self) -> u64 {
        self.from.saturating_add_signed(self.offset)
    }

    fn ends(&self) -> u64 {
        self.last.saturating_add_signed(self.offset)
    }
}

impl State {
    /// Returns how far the wall clock was ahead of pool time at the last comparison, in
    /// nanoseconds.
    fn offset(&self) -> i64 {
        self.stretches.last().map_or(0, |stretch| stretch.offset)
    }

    /// Returns the stretches, newest first. The newest one ends at `now`.
    fn spans(&self, now: u64) -> impl Iterator<Item = Span> {
        let mut end = now;
        let count = self.stretches.len();
        self.stretches.iter().enumerate().rev().map(move |(n, stretch)| {
            let last = if n + 1 == count { end.max(stretch.from) } else { end.saturating_sub(1) };
            // Everything before the first one is in it.
            let from = if n == 0 { 0 } else { stretch.from };
            end = stretch.from;
            Span { from, last, offset: stretch.offset }
        })
    }

    fn begin(&mut self, stretch: ClockStretch) {
        self.changed = true;
        match self.stretches.last_mut() {
            // Nothing lies between: the clock was set twice.
            Some(last) if last.from >= stretch.from => *last = ClockStretch { from: last.from, ..stretch },
            _ => self.stretches.push(stretch),
        }
        if self.stretches.len() > MOST_STRETCHES {
            let length = |n: &usize| self.stretches[n + 1].from - self.stretches[*n].from;
            // The stretch before the shortest one takes over its pool times.
            if let Some(shortest) = (1..self.stretches.len() - 1).min_by_key(length) {
                self.stretches.remove(shortest);
            }
        }
    }
}

/// A reading of the clocks at one instant, as a commit stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockRecord {
    /// The pool time, in nanoseconds.
    pub(crate) time: u64,
    /// The reading of the monotonic clock at that instant, in nanoseconds.
    pub(crate) monotonic: u64,
    /// The boot that the monotonic clock counts from. Zeros mean that it is not known.
    pub(crate) boot: Uuid,
    /// Nanoseconds by which the trusted wall clock is ahead of pool time.
    pub(crate) agreed: i64,
    /// Nanoseconds by which the wall clock may be further ahead, once.
    pub(crate) slack: u64,
    /// The reading of this boot's monotonic clock before which nothing expires by time.
    pub(crate) settled_at: u64,
}

/// Converts pool times to times on the wall, without the clock's lock.
pub(crate) struct WallTimes(Vec<ClockStretch>);

impl WallTimes {
    /// Returns the time that the wall clock showed at a pool time.
    pub(crate) fn of(&self, time: u64) -> u64 {
        on_the_wall(&self.0, time)
    }
}

/// Returns the time that the wall clock showed at a pool time. There is at least one stretch.
fn on_the_wall(stretches: &[ClockStretch], time: u64) -> u64 {
    let after = stretches.partition_point(|stretch| stretch.from <= time);
    time.saturating_add_signed(stretches[after.saturating_sub(1)].offset)
}

/// A stretch of pool time in which the wall clock was not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockStretch {
    /// The pool time at which the stretch begins, in nanoseconds.
    pub(crate) from: u64,
    /// The LSN of the last record before the stretch.
    pub(crate) lsn: Lsn,
    /// Nanoseconds by which the wall clock is ahead of pool time in the stretch.
    pub(crate) offset: i64,
}

#[cfg(test)]
mod tests;
