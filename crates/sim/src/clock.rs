//! The clocks of the machine, and how the pool follows them: time that passes, a wall clock that is
//! set in both directions, and boots.
//!
//! Retention by time is drawn in one of two ways. It is so short that any moment may have expired,
//! or longer than any run takes. In the second case no moment may be gone, whatever the wall clock
//! said.

use crate::oracle::VolId;
use crate::rand::Rand;
use crate::run::{Outcome, Run};
use crate::survive;
use crate::workload::{ClockMove, Op};
use hindcast_engine::cdp::{Moment, Retention};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::code;
use hindcast_engine::world::Clock;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;
const YEAR: u64 = 365 * DAY;

/// Retention in nanoseconds that no run reaches. Each boot may add three days to ages: see
/// DURABILITY.md.
pub(crate) const FOR_EVER: u64 = 4 * YEAR;
/// When this much true time has passed in a run, in nanoseconds, [`ClockMove::Pass`] adds no more.
const LONGEST_RUN: u64 = YEAR;
/// The pool notices only larger steps of the wall clock than this, in nanoseconds: docs/CDP.md.
const STEP: u64 = SECOND / 20;
/// Nanoseconds by which pool time may run ahead of the clock while records are sequenced.
const EXACT: u64 = SECOND / 1000;

/// The state of the machine's clocks.
#[derive(Default)]
pub(crate) struct Clocks {
    /// Nanoseconds by which the wall clock is ahead of the true time.
    wrong: i64,
    /// True time that passed with the machine on or off, in nanoseconds.
    elapsed: u64,
    /// A number that changes whenever the clock is set, and when a process ends. A process that
    /// ends may not have stored where the clock was set.
    era: u64,
    /// The pool time before the pool counted a time without power, because the clock was put
    /// right. The next commit stores what was counted. If the process ends first, pool times after
    /// this one may occur again.
    bridged: Option<u64>,
    /// Nanoseconds by which the wall clock was ahead of pool time, when that last changed by more
    /// than [`STEP`].
    ahead: i64,
}

/// The time at which the pool was at an LSN.
#[derive(Clone, Copy)]
pub(crate) struct When {
    pool_time: u64,
    wall: u64,
    era: u64,
    /// Whether the pool knows the wall clock's time exactly. Small steps of the clock can make the
    /// two differ.
    exact: bool,
}

impl ClockMove {
    /// Draws a change of the clocks.
    pub(crate) fn random(rand: &mut Rand) -> ClockMove {
        let far = |rand: &mut Rand| match rand.below(4) {
            0 => rand.between(1, 60),
            1 => rand.between(1, 2 * HOUR / SECOND),
            2 => rand.between(1, 5 * DAY / SECOND),
            _ => rand.between(1, YEAR / SECOND),
        };
        match rand.below(10) {
            0..4 => {
                // The steps are whole seconds, because the pool does not notice a step of less than
                // a twentieth of a second.
                let by = (far(rand) * SECOND).cast_signed();
                ClockMove::Set(if rand.percent(50) { by } else { -by })
            }
            4..7 => ClockMove::Right,
            7 => ClockMove::Confirm,
            8 => ClockMove::Pass(rand.between(1, 10 * SECOND)),
            _ => ClockMove::Pass(rand.between(1, 2 * HOUR)),
        }
    }
}

/// Returns whether moments may be gone under a retention.
pub(crate) fn expires(retention: &Retention) -> bool {
    retention.bytes.is_some() || retention.time.is_some_and(|time| time < FOR_EVER)
}

impl Run {
    /// Lets true time pass.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.clock.advance(ns);
        self.clocks.elapsed += ns;
    }

    /// Boots the machine, after some time without power.
    pub(crate) fn boot(&mut self) {
        let off = match self.rand.below(10) {
            _ if !self.wild => SECOND,
            0 => self.rand.between(1, 10 * DAY),
            _ => self.rand.between(1, 600 * SECOND),
        };
        self.clock.boot_after(off);
        self.clocks.elapsed += off;
        // Pool time continues from the last record. Later times may occur again.
        self.past.values_mut().for_each(|past| past.times.clear());
        self.clocks.bridged = None;
        if self.wild && self.rand.percent(20) {
            // The clock of the machine has no battery, or a wrong year.
            let years = self.rand.between(1, 20);
            self.set_wrong(-(years * YEAR).cast_signed());
        }
    }

    fn set_wrong(&mut self, wrong: i64) {
        let right = self.clock.now().saturating_add_signed(-self.clocks.wrong);
        self.clock.set(right.saturating_add_signed(wrong));
        (self.clocks.wrong, self.clocks.era) = (wrong, self.clocks.era + 1);
    }

    /// Notes that the process of the pool ended.
    pub(crate) fn note_process_end(&mut self) {
        self.clocks.era += 1;
        if let Some(last) = self.clocks.bridged.take() {
            self.past.values_mut().for_each(|past| past.times.retain(|_, when| when.pool_time <= last));
        }
    }

    /// Carries out a change of the clocks, and checks what the pool reports.
    pub(crate) fn move_clock(&mut self, change: ClockMove) -> Outcome<()> {
        match change {
            ClockMove::Pass(ns) if self.clocks.elapsed < LONGEST_RUN => self.pass(ns),
            ClockMove::Pass(_) => {}
            ClockMove::Set(by) => {
                let year = YEAR.cast_signed();
                self.set_wrong((self.clocks.wrong + by).clamp(-20 * year, year));
            }
            ClockMove::Right => self.set_wrong(0),
            ClockMove::Confirm => return self.confirm_clock(),
        }
        // The pool would check the clock in its next background step. `Pool::clock` makes it check
        // the clock here, before anything is sequenced.
        let pool = self.pool()?;
        let before = pool.ago(0);
        let info = pool.clock();
        let went_on = pool.ago(0) != before;
        if went_on && info.jumped.is_some() {
            return Err(format!("time went on by itself, from {before}: {info:?}"));
        }
        if info.jumped.is_some() != pool.health().has(code::CLOCK_JUMPED) && !self.poisoned() {
            return Err(format!("the clock is {info:?}, and health says {:?}", pool.health()));
        }
        if went_on {
            self.clocks.bridged = Some(before);
        }
        Ok(())
    }

    fn confirm_clock(&mut self) -> Outcome<()> {
        let pool = self.pool()?;
        match survive(|| pool.confirm_clock()) {
            Ok(()) if pool.is_forgetting_suspended() => Err("a confirmed clock is in doubt".into()),
            Ok(()) => Ok(()),
            Err(_) if self.dir.crashed() || self.faults => Ok(()),
            Err(e) => Err(format!("confirm the clock: {e:?}")),
        }
    }

    /// Makes the pool trust the clock. From here on it forgets what has expired by time.
    pub(crate) fn trust_clock(&mut self) -> Outcome<()> {
        let heals = self.rand.percent(50);
        self.step(&Op::Clock(if heals { ClockMove::Right } else { ClockMove::Confirm }))?;
        // The clock is confirmed also if the machine has just booted. After that the pool does not
        // wait for a time service.
        self.step(&Op::Clock(ClockMove::Confirm))
    }

    /// Returns the present time of the pool and of the wall clock.
    pub(crate) fn when(&mut self) -> Outcome<When> {
        let (pool_time, wall) = (self.pool()?.ago(0), self.clock.now());
        let ahead = wall.wrapping_sub(pool_time).cast_signed();
        if ahead.abs_diff(self.clocks.ahead) > STEP {
            self.clocks.ahead = ahead;
        }
        let exact = ahead.abs_diff(self.clocks.ahead) < EXACT;
        Ok(When { pool_time, wall, era: self.clocks.era, exact })
    }

    /// Returns the ways to name a moment that was noted. Its LSN always works, and its pool time
    /// until the next boot. Its wall clock time works while the clock is not set and the process
    /// does not end.
    pub(crate) fn names_of(&self, vol: VolId, lsn: Lsn) -> Vec<Moment> {
        let mut names = vec![Moment::Lsn(lsn)];
        if let Some(when) = self.past.get(&vol).and_then(|past| past.times.get(&lsn)).copied() {
            names.push(Moment::PoolTime(when.pool_time));
            if when.era == self.clocks.era && when.exact {
                names.push(Moment::Time(when.wall));
            }
        }
        names
    }
}
