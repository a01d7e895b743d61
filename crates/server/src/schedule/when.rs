//! Computes when a schedule is due, and which of its snapshots have expired. All functions are
//! pure. All times are UTC.

use hindcast_api::Retention;
use jiff::{Timestamp, tz::TimeZone};
use std::collections::BTreeSet;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// The offset of the weeks, in seconds. 1970-01-01 was a Thursday, and weeks begin on Monday.
const MONDAY: i64 = 3 * DAY;

/// Returns the number of the hour, day, week or month that contains a time.
type Period = fn(Timestamp) -> i64;

/// Returns the first time after `after` that is a multiple of `every` seconds since 1970.
pub(crate) fn next(after: Timestamp, every: u64) -> Timestamp {
    let every = i64::try_from(every).unwrap_or(i64::MAX).max(1);
    let slot = after.as_second().div_euclid(every);
    let seconds = slot.saturating_add(1).saturating_mul(every);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// Returns the time of a schedule's next run. `kept` is the time that was computed before. `ran`
/// holds the times of earlier runs, in any order. `every` is the interval in seconds.
///
/// The schedule keeps the time `kept`, even if the clock is set, unless it is later than the next
/// multiple of the interval. Such a time means that the clock was set back, and then the next
/// multiple applies. Without `kept`, the latest time in `ran` decides. The function ignores a time
/// in `ran` that is later than `now`. With no other time, the schedule counts as never run. One run
/// replaces any number of missed runs.
pub(crate) fn due(
    kept: Option<Timestamp>,
    ran: impl Iterator<Item = Timestamp>,
    every: u64,
    now: Timestamp,
) -> Timestamp {
    let upcoming = next(now, every);
    match kept {
        Some(slot) => slot.min(upcoming),
        None => ran.filter(|time| *time <= now).max().map_or(upcoming, |last| next(last, every)),
    }
}

/// Returns the time of a schedule's next run, if it follows from `since` alone. `since` is the time
/// when the schedule was created or resumed. If `since` and `now` are in the same interval, earlier
/// runs have no effect. Otherwise the result is `None`.
pub(crate) fn first(since: Timestamp, every: u64, now: Timestamp) -> Option<Timestamp> {
    (since <= now).then(|| next(since, every)).filter(|slot| *slot > now)
}

/// Returns the indexes of the snapshots that the retention does not keep. `times` are the times of
/// the snapshots, in the order in which they were taken.
///
/// The order decides which snapshot is newer, because the clock can be set between two snapshots.
/// So the newest snapshot always stays. A snapshot whose time is ahead of the clock expires as
/// newer ones are taken.
pub(crate) fn expired(times: &[Timestamp], keep: &Retention) -> Vec<usize> {
    if *keep == Retention::default() {
        return Vec::new();
    }
    let mut kept: BTreeSet<usize> = (0..times.len()).rev().take(keep.last as usize).collect();
    let kinds: [(u32, Period); 4] =
        [(keep.hourly, hour), (keep.daily, day), (keep.weekly, week), (keep.monthly, month)];
    for (count, period) in kinds {
        let mut periods = BTreeSet::new();
        for (i, time) in times.iter().enumerate().rev() {
            if periods.len() >= count as usize {
                break;
            }
            if periods.insert(period(*time)) {
                kept.insert(i);
            }
        }
    }
    (0..times.len()).filter(|i| !kept.contains(i)).collect()
}

/// Returns whether the retention depends on the times of snapshots, and not only on their order.
pub(crate) fn goes_by_time(keep: &Retention) -> bool {
    *keep != Retention { last: keep.last, ..Retention::default() }
}

fn hour(at: Timestamp) -> i64 {
    at.as_second().div_euclid(HOUR)
}

fn day(at: Timestamp) -> i64 {
    at.as_second().div_euclid(DAY)
}

fn week(at: Timestamp) -> i64 {
    (at.as_second() + MONDAY).div_euclid(7 * DAY)
}

fn month(at: Timestamp) -> i64 {
    let date = at.to_zoned(TimeZone::UTC).date();
    i64::from(date.year()) * 12 + i64::from(date.month())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn hourly_runs_are_on_the_hour() {
        assert_eq!(next(at("2026-11-22T03:14:15Z"), 3600), at("2026-11-22T04:00:00Z"));
        assert_eq!(next(at("2026-11-22T04:00:00Z"), 3600), at("2026-11-22T05:00:00Z"));
        assert_eq!(next(at("2026-11-22T04:00:00Z"), 86400), at("2026-11-23T00:00:00Z"));
    }

    #[test]
    fn after_a_long_night_there_is_one_run() {
        let (last, now) = (at("2026-11-22T03:00:00Z"), at("2026-11-22T09:30:00Z"));
        let ten = at("2026-11-22T10:00:00Z");
        assert!(due(None, [last].into_iter(), 3600, now) <= now);
        assert_eq!(due(None, [last, now].into_iter(), 3600, now), ten, "the next is in order again");
    }

    #[test]
    fn times_ahead_of_the_clock_count_as_never() {
        let (now, ten) = (at("2026-11-22T09:30:00Z"), at("2026-11-22T10:00:00Z"));
        let ahead = at("2030-01-01T00:00:00Z");
        assert_eq!(due(None, [ahead].into_iter(), 3600, now), ten);
        assert_eq!(due(None, [ahead].into_iter(), 3600, ten), at("2026-11-22T11:00:00Z"));
        // The computed slot stays, so the schedule runs.
        assert_eq!(due(Some(ten), [ahead].into_iter(), 3600, ten), ten);
        // A snapshot from before the clock was wrong still counts.
        assert!(due(None, [at("2026-11-22T08:00:00Z"), ahead].into_iter(), 3600, now) <= now);
    }

    #[test]
    fn a_kept_slot_is_the_next_one_by_the_clock_as_it_is() {
        let (now, ten) = (at("2026-11-22T09:30:00Z"), at("2026-11-22T10:00:00Z"));
        let none = std::iter::empty;
        assert_eq!(due(Some(ten), none(), 3600, now), ten);
        assert_eq!(due(Some(at("2030-01-01T00:00:00Z")), none(), 3600, now), ten, "put back by years");
        assert_eq!(due(Some(at("2026-11-22T11:00:00Z")), none(), 3600, now), ten, "put back by 35 minutes");
        assert!(due(Some(at("2020-01-01T00:00:00Z")), none(), 3600, now) <= now, "put forward by years");
    }

    fn left(times: &[&str], keep: &Retention) -> Vec<String> {
        let parsed: Vec<Timestamp> = times.iter().map(|t| at(t)).collect();
        let gone = expired(&parsed, keep);
        (0..times.len()).filter(|i| !gone.contains(i)).map(|i| times[i].to_owned()).collect()
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        let times = [
            "2026-09-30T23:59:59Z",
            "2026-10-31T10:00:00Z",
            "2026-11-15T23:00:00Z", // a Sunday
            "2026-11-16T00:00:00Z", // a Monday
            "2026-11-21T22:00:00Z",
            "2026-11-21T22:30:00Z",
            "2026-11-22T03:00:00Z",
        ];
        let keep = |last, hourly, daily, weekly, monthly| Retention { last, hourly, daily, weekly, monthly };
        assert_eq!(left(&times, &keep(0, 0, 0, 0, 0)), times, "nothing said: everything stays");
        assert_eq!(left(&times, &keep(2, 0, 0, 0, 0)), times[5..]);
        assert_eq!(left(&times, &keep(0, 2, 0, 0, 0)), times[5..]);
        assert_eq!(left(&times, &keep(0, 0, 3, 0, 0)), [times[3], times[5], times[6]]);
        assert_eq!(left(&times, &keep(0, 0, 0, 2, 0)), [times[2], times[6]]);
        assert_eq!(left(&times, &keep(0, 0, 0, 0, 9)), [times[0], times[1], times[6]]);
        assert_eq!(left(&times, &keep(1, 0, 0, 0, 2)), [times[1], times[6]]);
    }

    /// When the clock is right again, snapshots from the time when it was ahead do not replace new
    /// ones.
    #[test]
    fn snapshots_of_the_future_give_way() {
        let ahead = ["2036-01-01T00:00:00Z", "2036-01-01T01:00:00Z", "2036-01-02T00:00:00Z"];
        let right = ["2026-11-22T01:00:00Z", "2026-11-22T02:00:00Z", "2026-11-22T03:00:00Z"];
        let times: Vec<&str> = ahead.into_iter().chain(right).collect();
        let keep = |last, hourly| Retention { last, hourly, ..Retention::default() };
        assert_eq!(left(&times[..4], &keep(3, 0)), times[1..4], "the one just taken stays");
        assert_eq!(left(&times, &keep(3, 0)), right);
        assert_eq!(left(&times, &keep(0, 3)), right);
        assert_eq!(left(&times, &keep(0, 4)), times[2..]);
    }

    /// The state of a schedule while the server runs.
    struct Simulated {
        every: i64,
        /// The wall clock in seconds. `elapsed` is the real time in seconds.
        clock: i64,
        elapsed: i64,
        slot: Option<Timestamp>,
        ran: Vec<Timestamp>,
        last_run: i64,
    }

    impl Simulated {
        /// Checks whether a run is due, as the server does, and runs.
        fn look(&mut self, every: u64) {
            let now = Timestamp::from_second(self.clock).unwrap();
            let slot = due(self.slot, self.ran.iter().copied(), every, now);
            self.slot = Some(slot);
            if slot <= now {
                self.slot = Some(next(now, every));
                self.ran.push(now);
                self.last_run = self.elapsed;
            }
        }
    }

    proptest! {
        /// The clock jumps forward and back, by seconds to years, and the server restarts. If the
        /// clock then runs for one interval, there is a run. There are no more runs than slots and
        /// jumps.
        #[test]
        fn no_jump_of_the_clock_stops_a_schedule(
            every in 10i64..5000,
            jumps in prop::collection::vec((-40_000_000i64..40_000_000, 1i64..20_000, any::<bool>()), 1..20),
        ) {
            let begin = 1_790_000_000;
            let since = Timestamp::from_second(begin).unwrap();
            let mut it =
                Simulated { every, clock: begin, elapsed: 0, slot: None, ran: vec![since], last_run: 0 };
            for (jump, steady, restart) in jumps {
                it.clock += jump;
                if restart {
                    it.slot = None;
                }
                let (set, before) = (it.elapsed, it.ran.len());
                while it.elapsed < set + steady {
                    // The server checks at least every 5 seconds.
                    it.look(u64::try_from(every).unwrap());
                    let quiet = it.elapsed - it.last_run.max(set);
                    prop_assert!(quiet < it.every + 5, "no run for {quiet} s");
                    it.elapsed += 5;
                    it.clock += 5;
                }
                let runs = (it.ran.len() - before) as i64;
                prop_assert!(runs <= (it.elapsed - set) / every + 2, "{runs} runs");
            }
        }

        /// For any jumps of the clock, the newest snapshot stays. The number of snapshots never
        /// exceeds the retention.
        #[test]
        fn retention_keeps_the_newest_whatever_the_clock_said(
            jumps in prop::collection::vec(-40_000_000i64..40_000_000, 1..200),
            last in 0u32..5, hourly in 0u32..5, daily in 0u32..5, weekly in 0u32..3, monthly in 0u32..3,
        ) {
            let keep = Retention { last, hourly, daily, weekly, monthly };
            prop_assume!(keep != Retention::default());
            let (mut second, mut kept) = (1_790_000_000, Vec::new());
            for (n, jump) in jumps.into_iter().enumerate() {
                second += jump;
                kept.push((n, Timestamp::from_second(second).unwrap()));
                let times: Vec<Timestamp> = kept.iter().map(|(_, time)| *time).collect();
                let gone = expired(&times, &keep);
                kept = (0..kept.len()).filter(|i| !gone.contains(i)).map(|i| kept[i]).collect();
                prop_assert_eq!(kept.last().map(|(n, _)| *n), Some(n));
                prop_assert!(kept.len() as u64 <= u64::from(last + hourly + daily + weekly + monthly));
                let newest = kept.iter().rev().take(last as usize).map(|(n, _)| *n);
                prop_assert!(newest.zip(0..).all(|(of, back)| of + back == n), "the last ones stay");
            }
        }

        /// The test deletes expired snapshots after each new one. The number of snapshots never
        /// exceeds the retention, and the newest one stays. The result equals one deletion at the
        /// end.
        #[test]
        fn pruning_as_it_goes_keeps_what_pruning_at_the_end_keeps(
            steps in prop::collection::vec(1i64..50_000, 1..300),
            last in 0u32..5, hourly in 0u32..5, daily in 0u32..5, weekly in 0u32..3, monthly in 0u32..3,
        ) {
            let keep = Retention { last, hourly, daily, weekly, monthly };
            prop_assume!(keep != Retention::default());
            let mut second = 1_790_000_000;
            let (mut all, mut kept) = (Vec::new(), Vec::new());
            for step in steps {
                second += step;
                let now = Timestamp::from_second(second).unwrap();
                all.push(now);
                kept.push(now);
                let gone = expired(&kept, &keep);
                kept = (0..kept.len()).filter(|i| !gone.contains(i)).map(|i| kept[i]).collect();
                prop_assert_eq!(kept.last(), Some(&now));
                prop_assert!(kept.len() as u64 <= u64::from(last + hourly + daily + weekly + monthly));
            }
            let gone = expired(&all, &keep);
            let at_once: Vec<Timestamp> = (0..all.len()).filter(|i| !gone.contains(i)).map(|i| all[i]).collect();
            prop_assert_eq!(kept, at_once);
        }
    }
}
