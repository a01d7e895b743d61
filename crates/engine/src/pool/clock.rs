//! What the pool does with its clock: looking at it, telling how it stands, confirming it.

use super::health::{Warning, code};
use super::{ClockInfo, Pool};
use crate::clock::JUMP;
use crate::error::Result;
use std::sync::atomic::Ordering;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

impl Pool {
    /// Compares the clocks, so that a jump is known before anything rests on a time.
    pub(crate) fn look_at_clock(&self) {
        let (lsn, time) = self.journal.last();
        self.clock.compare(lsn, time);
        if self.clock.wants_pruning() {
            // What is sequenced and not carried out may begin a history.
            let settled = self.positions.settled_time.load(Ordering::Acquire);
            self.clock.prune(self.oldest_history().unwrap_or(u64::MAX).min(settled));
        }
    }

    /// At open: makes durable where the clock was set, so that it is known whatever is written
    /// next.
    pub(super) fn store_clock(&self) -> Result<()> {
        if self.clock.wants_commit() { self.checkpoint_now() } else { Ok(()) }
    }

    /// The pool time of a time on the wall; none: it is yet to come.
    pub(crate) fn pool_time(&self, wall: u64) -> Option<u64> {
        self.look_at_clock();
        self.clock.at(wall, self.now())
    }

    /// The pool's own time so many nanoseconds ago, whatever happened to the wall clock since.
    pub fn ago(&self, nanoseconds: u64) -> u64 {
        self.now().saturating_sub(nanoseconds)
    }

    /// The pool time at which the oldest history begins.
    fn oldest_history(&self) -> Option<u64> {
        let volumes: Vec<u64> = self.lines.read().keys().copied().collect();
        let stretches = volumes.into_iter().filter_map(|id| self.stretches(id).into_iter().next());
        stretches.filter_map(|s| s.branch.cdp.log.read().begins().map(|(_, time)| time)).min()
    }

    /// Whether nothing may be forgotten by time now: the wall clock was set by much and nobody
    /// confirmed it, or the machine has just booted after a long time off.
    pub fn is_forgetting_suspended(&self) -> bool {
        self.look_at_clock();
        self.clock.is_suspended()
    }

    /// How the wall clock stands.
    pub fn clock(&self) -> ClockInfo {
        self.look_at_clock();
        let now = self.world.clock.now();
        let histories = self.oldest_history();
        let of_histories = histories.map_or(0, |oldest| self.clock.latest(oldest));
        let of_snapshots = {
            let names = self.names.read();
            let in_sight = names.snapshots.values().filter(|s| names.is_in_sight(s));
            in_sight.map(|s| s.state.created).max().unwrap_or(0)
        };
        ClockInfo {
            now,
            jumped: self.clock.jumped(),
            suspended: self.clock.is_suspended(),
            ahead: of_histories.max(of_snapshots).saturating_sub(now),
            changes: histories.map(|oldest| self.clock.changes(oldest)).unwrap_or_default(),
        }
    }

    /// The wall clock is right as it is: forgetting by time goes on. Durable when this returns.
    pub fn confirm_clock(&self) -> Result<()> {
        self.check_usable()?;
        self.look_at_clock();
        self.clock.confirm();
        self.checkpoint_now()
    }

    pub(super) fn warn_of_clock(&self, warnings: &mut Vec<Warning>) {
        let clock = self.clock();
        if let Some(by) = clock.jumped {
            let (by, way) = (by.unsigned_abs() / SECOND, if by < 0 { "behind" } else { "ahead of" });
            let text = format!(
                "the clock is {by} s {way} what it should say: nothing is forgotten by time until it agrees \
                 again, or is confirmed (hindcast pool clock --confirm)"
            );
            warnings.push(Warning::new(code::CLOCK_JUMPED, text));
        }
        if clock.ahead > JUMP {
            let text = format!(
                "the newest time of a history or snapshot lies {} s ahead of the clock",
                clock.ahead / SECOND
            );
            warnings.push(Warning::new(code::TIMES_AHEAD, text));
        }
    }
}
