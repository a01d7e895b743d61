//! The pool's clock through jumps of the wall clock, restarts and boots.

use super::*;
use crate::ids::{Lsn, Stamp};
use crate::world::ManualClock;

const DAY: u64 = 24 * HOUR;
const YEAR: u64 = 365 * DAY;
const BEGIN: u64 = 50 * YEAR;

/// A pool's clock, through its restarts.
struct Site {
    manual: Arc<ManualClock>,
    clock: PoolClock,
    lsn: Lsn,
    last: u64,
}

impl Site {
    fn new() -> Site {
        let manual = Arc::new(ManualClock::new(BEGIN));
        manual.boot_after(0);
        let clock = PoolClock::new(manual.clone(), None, Vec::new(), Stamp::new(Lsn(0), 0));
        Site { manual, clock, lsn: Lsn(0), last: 0 }
    }

    /// A record.
    fn stamp(&mut self) -> u64 {
        self.last = self.clock.next_time(Stamp::new(self.lsn, self.last));
        self.lsn = self.lsn.next();
        self.last
    }

    fn compare(&self) {
        self.clock.compare(Stamp::new(self.lsn, self.last));
    }

    fn go(&self, ns: u64) {
        self.manual.advance(ns);
        self.compare();
    }

    fn set(&self, wall: u64) {
        self.manual.set(wall);
        self.compare();
    }

    fn wall(&self) -> u64 {
        self.manual.now()
    }

    /// The process ends after a commit, and another one begins.
    fn restart(self) -> Site {
        self.restart_after(|_| {})
    }

    /// The machine has no power for so long.
    fn boot_after(self, ns: u64) -> Site {
        self.restart_after(|manual| manual.boot_after(ns))
    }

    fn restart_after(self, meanwhile: impl FnOnce(&ManualClock)) -> Site {
        let (record, stretches) = self.clock.to_store();
        self.clock.stored(&record, stretches.as_deref());
        let stretches = self.clock.state.lock().stretches.clone();
        let Site { manual, lsn, last, .. } = self;
        meanwhile(&manual);
        let clock = PoolClock::new(manual.clone(), Some(record), stretches, Stamp::new(lsn, last));
        Site { manual, clock, lsn, last }
    }

    fn at(&self, wall: u64) -> Option<u64> {
        self.clock.at(wall, self.clock.now().max(self.last))
    }
}

#[test]
fn pool_time_is_the_wall_clock_while_nobody_sets_it() {
    let mut site = Site::new();
    assert_eq!(site.clock.now(), BEGIN);
    site.go(HOUR);
    assert_eq!(site.stamp(), BEGIN + HOUR);
    assert_eq!(site.stamp(), BEGIN + HOUR + 1, "the clock stands still, and times grow");
    assert_eq!((site.clock.wall(BEGIN + HOUR), site.at(BEGIN + 9)), (BEGIN + HOUR, Some(BEGIN + 9)));
    assert_eq!(site.at(BEGIN + HOUR + 2), None, "yet to come");
    assert!(!site.clock.is_suspended() && site.clock.changes(0).is_empty());
}

#[test]
fn a_stretch_that_begins_behind_records_of_the_same_instant_begins_at_that_instant() {
    let mut site = Site::new();
    site.go(HOUR);
    for _ in 0..100 {
        site.stamp();
    }
    let last = site.last;
    site.set(BEGIN + HOUR / 2);
    // The records' times lie 100 ns ahead of the clock.
    assert_eq!(site.at(BEGIN + HOUR / 2 + 50), Some(last), "not half an hour earlier");
    assert_eq!(site.at(BEGIN + HOUR / 2 - SECOND), Some(BEGIN + HOUR / 2 - SECOND));
}

#[test]
fn what_the_clock_says_now_is_no_time_of_an_older_stretch() {
    let mut site = Site::new();
    site.go(HOUR);
    site.set(BEGIN - HOUR);
    site.go(SECOND);
    let last = site.stamp();
    // Less than what makes a stretch; the time was said in the first one, too.
    let wall = site.wall() + STEP / 2;
    site.set(wall);
    assert_eq!((site.at(wall), site.at(wall - STEP / 4)), (Some(last), Some(last)));
    assert_eq!(site.at(wall - STEP), Some(last - STEP / 2));
}

#[test]
fn a_jump_ages_nothing_and_suspends_until_it_is_healed() {
    let mut site = Site::new();
    site.go(HOUR);
    for away in [YEAR, 90 * SECOND] {
        for ahead in [true, false] {
            site.go(SECOND);
            let (right, before) = (site.wall(), site.clock.now());
            site.set(if ahead { right + away } else { right - away });
            assert!(site.clock.is_suspended());
            assert_eq!(site.clock.jumped().map(i64::unsigned_abs), Some(away));
            assert_eq!(site.clock.now(), before);
            site.go(HOUR);
            assert!(site.stamp() >= before + HOUR && site.last <= before + HOUR + 1);
            assert_eq!(site.clock.wall(site.last), site.wall());
            site.set(right + HOUR);
            assert!(!site.clock.is_suspended() && site.clock.jumped().is_none());
        }
    }
    assert_eq!(site.clock.changes(0).len(), 8);
}

#[test]
fn a_jump_can_be_confirmed() {
    let site = Site::new();
    site.go(HOUR);
    site.set(BEGIN + YEAR);
    assert!(site.clock.is_suspended());
    site.clock.confirm();
    site.go(HOUR);
    assert!(!site.clock.is_suspended());
    let site = site.restart();
    assert!(!site.clock.is_suspended(), "also after a restart");
    site.set(BEGIN);
    assert!(site.clock.is_suspended(), "what was right before is not any more");
}

#[test]
fn small_steps_are_followed() {
    let mut site = Site::new();
    for n in 1..100 {
        site.go(HOUR);
        site.set(site.wall() + 30 * SECOND);
        assert!(!site.clock.is_suspended());
        site.stamp();
        assert_eq!(site.clock.wall(site.last), site.wall());
        assert_eq!(site.clock.now(), BEGIN + n * HOUR);
    }
}

#[test]
fn a_time_that_was_twice_is_the_newer_one() {
    let mut site = Site::new();
    site.go(100 * SECOND);
    let first = site.stamp();
    site.set(BEGIN + 20 * SECOND);
    site.go(100 * SECOND);
    let second = site.stamp();
    assert_eq!(site.clock.wall(second), BEGIN + 120 * SECOND);
    assert_eq!(site.at(BEGIN + 120 * SECOND), Some(second));
    assert_eq!(
        site.at(BEGIN + 100 * SECOND),
        Some(second - 20 * SECOND),
        "the first one is reached by its LSN"
    );
    assert_eq!(site.at(BEGIN + 10 * SECOND), Some(first - 90 * SECOND), "before the clock was put back");
    // The clock was ahead, and is right again: what was written then can be reached, what lies
    // between cannot be meant.
    site.set(BEGIN + YEAR);
    site.go(SECOND);
    let ahead = site.stamp();
    site.set(BEGIN + 200 * SECOND);
    site.go(SECOND);
    assert_eq!(site.at(BEGIN + YEAR + SECOND / 2), Some(ahead - SECOND / 2));
    assert_eq!(site.at(BEGIN + YEAR - SECOND), None);
    assert_eq!(site.at(BEGIN + 199 * SECOND), Some(second), "a gap belongs to what was before it");
    assert_eq!(site.at(0), Some(0));
}

#[test]
fn a_restart_goes_on_with_the_monotonic_clock() {
    let mut site = Site::new();
    site.go(HOUR);
    let before = site.stamp();
    site = site.restart();
    site.go(YEAR);
    assert_eq!(site.stamp(), before + YEAR, "however long: the machine was on");
    // The wall clock was set while no process ran.
    site = site.restart_after(|manual| manual.set(BEGIN));
    assert!(site.clock.is_suspended());
    assert_eq!(site.clock.now(), before + YEAR);
}

#[test]
fn a_plausible_gap_is_age_and_others_need_confirmation() {
    let mut site = Site::new();
    site.go(HOUR);
    let before = site.stamp();
    site = site.boot_after(DAY);
    assert_eq!(site.clock.now(), before + DAY);
    assert!(site.clock.jumped().is_none() && site.clock.changes(0).is_empty());
    assert!(site.clock.is_suspended(), "a time service may put the clock right yet");
    site.go(SETTLING);
    assert!(!site.clock.is_suspended());
    let before = site.stamp();
    site = site.boot_after(YEAR);
    assert_eq!(site.clock.now(), before, "nothing ages");
    site.go(SETTLING);
    assert!(site.clock.is_suspended());
    site.clock.confirm();
    assert!(!site.clock.is_suspended());
    assert_eq!(site.clock.now(), before + SETTLING);
    assert_eq!(site.clock.wall(site.clock.now()), site.wall());
}

/// A machine without a battery begins in 1970, until a time service has put it right.
#[test]
fn a_clock_that_begins_in_1970_heals() {
    let mut site = Site::new();
    site.go(HOUR);
    let before = site.stamp();
    let right = site.wall();
    site = site.restart_after(|manual| {
        manual.boot_after(0);
        manual.set(0);
    });
    site.go(5 * SECOND);
    assert!(site.clock.is_suspended());
    assert_eq!((site.clock.now(), site.clock.wall(site.clock.now())), (before + 5 * SECOND, 5 * SECOND));
    site.set(right + DAY);
    assert!(site.clock.jumped().is_none());
    assert_eq!(site.clock.now(), before + DAY, "how long it was off is known now");
    site.go(SETTLING);
    assert!(!site.clock.is_suspended());
}

/// The pool counts a time without power. The process is killed before a commit stores that.
#[test]
fn time_goes_on_from_the_last_record_though_the_clock_was_set_back() {
    let mut site = Site::new();
    site.go(HOUR);
    let right = site.wall();
    site = site.restart_after(|manual| {
        manual.boot_after(0);
        manual.set(0);
    });
    let (stored, stretches) = site.clock.to_store();
    site.go(5 * SECOND);
    site.set(right + DAY);
    let last = site.stamp();
    assert_eq!(last, right + DAY);
    site.set(right + HOUR);
    let Site { manual, lsn, .. } = site;
    manual.advance(SECOND);
    let stretches = stretches.unwrap_or_default();
    let clock = PoolClock::new(manual.clone(), Some(stored), stretches, Stamp::new(lsn, last));
    assert_eq!(clock.now(), last);
    manual.advance(SECOND);
    assert_eq!(clock.next_time(Stamp::new(lsn, last)), last + SECOND, "it does not stand still");
    assert!(clock.is_suspended());
    assert_eq!(clock.wall(clock.now()), manual.now());
}

/// Builds before this one stamped a record with the last one's time and a nanosecond while the
/// clock was behind that.
#[test]
fn a_pool_whose_last_record_lies_ahead_ages_from_now_on() {
    let manual = Arc::new(ManualClock::new(BEGIN));
    let clock = PoolClock::new(manual.clone(), None, Vec::new(), Stamp::new(Lsn(7), BEGIN + YEAR));
    assert_eq!(clock.now(), BEGIN + YEAR);
    assert!(clock.is_suspended());
    manual.advance(HOUR);
    assert_eq!((clock.now(), clock.wall(clock.now())), (BEGIN + YEAR + HOUR, BEGIN + HOUR));
    assert_eq!(clock.at(BEGIN + HOUR, clock.now()), Some(BEGIN + YEAR + HOUR));
    assert_eq!(clock.at(BEGIN - SECOND, clock.now()), Some(BEGIN - SECOND), "what was written before");
}

/// ... and did not store that it went on without records.
#[test]
fn a_pool_that_was_idle_under_an_older_build_ages_from_now_on() {
    let manual = Arc::new(ManualClock::new(BEGIN + YEAR));
    let clock = PoolClock::new(manual.clone(), None, Vec::new(), Stamp::new(Lsn(7), BEGIN));
    assert!(!clock.is_suspended());
    manual.advance(HOUR);
    clock.compare(Stamp::new(Lsn(7), BEGIN));
    assert_eq!((clock.now(), clock.wall(clock.now())), (BEGIN + HOUR, BEGIN + YEAR + HOUR));
    assert_eq!(clock.at(BEGIN - 1, clock.now()), Some(BEGIN - 1));
    // Less than what a machine may plausibly have been off counts.
    let clock =
        PoolClock::new(Arc::new(ManualClock::new(BEGIN + HOUR)), None, Vec::new(), Stamp::new(Lsn(7), BEGIN));
    assert_eq!(clock.now(), BEGIN + HOUR);
}

#[test]
fn stretches_are_bounded_and_dropped_with_what_they_tell_of() {
    let mut site = Site::new();
    for n in 0..3 * MOST_STRETCHES as u64 {
        site.go(SECOND * (1 + n % 7));
        site.set(if n % 2 == 0 { BEGIN + YEAR } else { BEGIN + 2 * YEAR });
        site.stamp();
    }
    assert_eq!(site.clock.state.lock().stretches.len(), MOST_STRETCHES);
    assert_eq!(site.clock.wall(site.last), site.wall());
    site.clock.prune(site.last);
    assert_eq!(site.clock.state.lock().stretches.len(), 1);
    assert_eq!(site.clock.wall(site.last), site.wall());
    site = site.restart();
    assert_eq!(site.clock.wall(site.last), site.wall());
}

#[test]
fn nothing_is_stored_that_is_stored_already() {
    let site = Site::new();
    assert!(site.clock.wants_commit());
    let store = |site: &Site| {
        let (record, stretches) = site.clock.to_store();
        site.clock.stored(&record, stretches.as_deref());
        stretches.is_some()
    };
    assert!(store(&site) && !site.clock.wants_commit() && !store(&site));
    site.go(STORE_EVERY);
    assert!(site.clock.wants_commit() && !store(&site) && !site.clock.wants_commit());
    site.set(BEGIN);
    assert!(site.clock.wants_commit() && store(&site) && !site.clock.wants_commit());
}

/// However the clock jumps, and the machine boots: time goes on as it really does, but for times
/// without power.
#[test]
fn ages_are_true_whatever_the_wall_clock_does() {
    let mut seed = 1u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut site = Site::new();
    let (mut elapsed, mut boots) = (0, 0);
    for _ in 0..20_000 {
        match next(10) {
            0 => site.set(BEGIN + next(2 * YEAR)),
            1 => {
                let gap = next(HOUR);
                site = site.boot_after(gap);
                boots += 1;
            }
            2 => site = site.restart(),
            3 => site.clock.confirm(),
            _ => {
                let ns = next(10 * SECOND);
                site.manual.advance(ns);
                elapsed += ns;
            }
        }
        let before = site.last;
        site.stamp();
        assert!(site.last > before);
        let age = site.clock.now() - BEGIN;
        // A clock that was set by less than a plausible gap before a boot passes for one; nothing
        // else adds to ages.
        assert!((elapsed..=elapsed + boots * (LONGEST_GAP + JUMP)).contains(&age), "{age} of {elapsed}");
    }
}
