//! Computes which snapshots of a schedule have expired. All functions are pure.

use hindcast_api::Retention;
use jiff::{Timestamp, tz::TimeZone};
use std::collections::BTreeSet;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// The offset of the weeks, in days. 1970-01-01 was a Thursday, and weeks begin on Monday.
const MONDAY: i64 = 3;

/// Returns the number of the hour, day, week or month that contains a time.
type Period = fn(Timestamp, &TimeZone) -> i64;

/// Returns the indexes of the snapshots that the retention does not keep. `times` are the times of
/// the snapshots, in the order in which they were taken. Days, weeks and months are those of
/// `zone`.
///
/// The order decides which snapshot is newer, because the clock can be set between two snapshots.
/// So the newest snapshot always stays. A snapshot whose time is ahead of the clock expires as
/// newer ones are taken.
pub(crate) fn expired(times: &[Timestamp], keep: &Retention, zone: &TimeZone) -> Vec<usize> {
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
            if periods.insert(period(*time, zone)) {
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

fn hour(at: Timestamp, _: &TimeZone) -> i64 {
    at.as_second().div_euclid(HOUR)
}

fn day(at: Timestamp, zone: &TimeZone) -> i64 {
    (at.as_second() + i64::from(zone.to_offset(at).seconds())).div_euclid(DAY)
}

fn week(at: Timestamp, zone: &TimeZone) -> i64 {
    (day(at, zone) + MONDAY).div_euclid(7)
}

fn month(at: Timestamp, zone: &TimeZone) -> i64 {
    let date = zone.to_datetime(at).date();
    i64::from(date.year()) * 12 + i64::from(date.month())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn left(times: &[&str], keep: &Retention) -> Vec<String> {
        let parsed: Vec<Timestamp> = times.iter().map(|t| at(t)).collect();
        let gone = expired(&parsed, keep, &TimeZone::UTC);
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

    #[test]
    fn days_of_retention_are_those_of_the_zone() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        // Each at 01:30 in Berlin, before and after the change of clocks.
        let times = ["2026-03-28T00:30:00Z", "2026-03-29T00:30:00Z", "2026-03-29T23:30:00Z"].map(at);
        let keep = Retention { daily: 3, ..Retention::default() };
        assert_eq!(expired(&times, &keep, &berlin), [0usize; 0]);
        assert_eq!(expired(&times, &keep, &TimeZone::UTC), [1]);
    }

    proptest! {
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
                let gone = expired(&times, &keep, &TimeZone::UTC);
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
                let gone = expired(&kept, &keep, &TimeZone::UTC);
                kept = (0..kept.len()).filter(|i| !gone.contains(i)).map(|i| kept[i]).collect();
                prop_assert_eq!(kept.last(), Some(&now));
                prop_assert!(kept.len() as u64 <= u64::from(last + hourly + daily + weekly + monthly));
            }
            let gone = expired(&all, &keep, &TimeZone::UTC);
            let at_once: Vec<Timestamp> = (0..all.len()).filter(|i| !gone.contains(i)).map(|i| all[i]).collect();
            prop_assert_eq!(kept, at_once);
        }
    }
}
