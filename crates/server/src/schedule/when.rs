//! When a schedule is due, and which of its snapshots have served their time: functions of times alone, all of them UTC.

use hindcast_api::Retention;
use jiff::{Timestamp, tz::TimeZone};
use std::collections::BTreeSet;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// 1970-01-01 was a Thursday; weeks begin on Monday.
const MONDAY: i64 = 3 * DAY;

/// The number of the hour, day, … that a time is in.
type Period = fn(Timestamp) -> i64;

/// The first instant after `after` that is a multiple of `every` seconds since 1970.
pub(super) fn next(after: Timestamp, every: u64) -> Timestamp {
    let every = i64::try_from(every).unwrap_or(i64::MAX).max(1);
    let slot = after.as_second().div_euclid(every);
    let seconds = slot.saturating_add(1).saturating_mul(every);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// When the next run is due, after the one at `last`. However many were missed: one. A `last` that has yet to come (the
/// clock was put back) counts as now.
pub(super) fn due(last: Timestamp, every: u64, now: Timestamp) -> Timestamp {
    next(last.min(now), every)
}

/// Which of the snapshots taken at `times`, in any order, are kept no more.
pub(super) fn expired(times: &[Timestamp], keep: &Retention) -> Vec<usize> {
    if *keep == Retention::default() {
        return Vec::new();
    }
    let mut newest_first: Vec<usize> = (0..times.len()).collect();
    newest_first.sort_by_key(|i| std::cmp::Reverse((times[*i], *i)));
    let mut kept = BTreeSet::new();
    kept.extend(newest_first.iter().take(keep.last as usize));
    let kinds: [(u32, Period); 4] =
        [(keep.hourly, hour), (keep.daily, day), (keep.weekly, week), (keep.monthly, month)];
    for (count, period) in kinds {
        let mut periods = BTreeSet::new();
        for i in &newest_first {
            if periods.len() >= count as usize {
                break;
            }
            if periods.insert(period(times[*i])) {
                kept.insert(*i);
            }
        }
    }
    newest_first.into_iter().rev().filter(|i| !kept.contains(i)).collect()
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
        assert!(due(last, 3600, now) <= now);
        assert_eq!(due(now, 3600, now), at("2026-11-22T10:00:00Z"), "the next is in order again");
        // A clock that was put back does not stop snapshots until it has caught up.
        assert_eq!(due(at("2030-01-01T00:00:00Z"), 3600, now), at("2026-11-22T10:00:00Z"));
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

    proptest! {
        /// Once a minute for long, with deletion after each: never more than was asked for, the newest always there, and
        /// what retention decided once is not missed later.
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
