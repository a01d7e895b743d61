//! The pool's clock as the operator sees it: checking it, reporting its state, confirming it.

use super::Pool;
use crate::clock::{ClockInfo, JUMP};
use crate::error::Result;
use crate::health::{Warning, code};

/// Number of nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

impl Pool {
    /// Makes durable, at open, where the clock was set, so that it is known whatever is written
    /// next.
    pub(super) fn store_clock(&self) -> Result<()> {
        if self.core.clock.wants_commit() { self.destager.checkpoint_now() } else { Ok(()) }
    }

    /// The pool time `nanoseconds` ago, whatever happened to the wall clock since then.
    pub fn ago(&self, nanoseconds: u64) -> u64 {
        self.core.now().saturating_sub(nanoseconds)
    }

    /// Returns the time that the wall clock showed at a pool time, in nanoseconds since the Unix
    /// epoch.
    pub fn wall_time(&self, time: u64) -> u64 {
        self.core.clock.wall(time)
    }

    /// Returns whether expiry by time is suspended: the wall clock was set by much and the operator
    /// has not confirmed it, or the machine has just booted after a long time off.
    pub fn is_forgetting_suspended(&self) -> bool {
        self.core.look_at_clock();
        self.core.clock.is_suspended()
    }

    /// Returns the state of the wall clock.
    pub fn clock(&self) -> ClockInfo {
        self.core.look_at_clock();
        let now = self.core.world.clock.now();
        let histories = self.core.oldest_history();
        let of_histories = histories.map_or(0, |oldest| self.core.clock.latest(oldest));
        let of_snapshots = {
            let names = self.core.names.read();
            let in_sight = names.snapshots.values().filter(|s| names.is_in_sight(s));
            in_sight.map(|s| s.state.created).max().unwrap_or(0)
        };
        ClockInfo {
            now,
            jumped: self.core.clock.jumped(),
            suspended: self.core.clock.is_suspended(),
            ahead: of_histories.max(of_snapshots).saturating_sub(now),
            changes: histories.map(|oldest| self.core.clock.changes(oldest)).unwrap_or_default(),
        }
    }

    /// Confirms that the wall clock is right: expiry by time continues. Durable when this returns.
    pub fn confirm_clock(&self) -> Result<()> {
        self.core.check_usable()?;
        self.core.look_at_clock();
        self.core.clock.confirm();
        self.destager.checkpoint_now()
    }

    pub(super) fn warn_of_clock(&self, warnings: &mut Vec<Warning>) {
        let clock = self.clock();
        if let Some(by) = clock.jumped {
            let (by, way) = (by.unsigned_abs() / SECOND, if by < 0 { "behind" } else { "ahead of" });
            let text = format!(
                "the clock is {by} s {way} the expected time: expiry by time stops until it agrees again, or until it is \
                 confirmed (hindcast pool clock --confirm)"
            );
            warnings.push(Warning::new(code::CLOCK_JUMPED, text));
        }
        if clock.ahead > JUMP {
            let text = format!(
                "the newest time of a history or snapshot is {} s ahead of the clock",
                clock.ahead / SECOND
            );
            warnings.push(Warning::new(code::TIMES_AHEAD, text));
        }
    }
}
