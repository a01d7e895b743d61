//! Computes when a schedule is due ([`Timing`]). All functions are pure.

use hindcast_api::WallClock;
use jiff::civil::{Date, date};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

const DAY: i64 = 24 * 3600;
/// Day 0 of the numbers of days. It was a Thursday.
const EPOCH: Date = date(1970, 1, 1);
/// The distance from the Monday before day 0 to day 0, in days.
const MONDAY: i64 = 3;
/// A run that is later than this is a missed run. A shorter delay comes from other work.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Number of days that are searched for the next run. The longest interval is 31 days.
const DAYS_SEARCHED: i64 = 40;
/// Number of changes of a zone's offset that are searched. A schedule runs at least once in 8 days,
/// and no zone changes its offset that often.
const CHANGES_SEARCHED: usize = 16;

/// When a schedule runs.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    /// The interval in seconds.
    every: i64,
    /// `None`: the schedule runs at multiples of the interval since 1970, UTC.
    wall: Option<Wall>,
}

/// The restrictions of a [`Timing`] by the clock on the wall. Times of day are seconds since
/// midnight, and days are numbers since [`EPOCH`].
#[derive(Debug, Clone)]
struct Wall {
    zone: TimeZone,
    at: i64,
    /// Whether the schedule runs on a day of the week. The first one is Monday.
    on: [bool; 7],
    /// The window. If its second time is less than the first, it goes over midnight.
    between: (i64, i64),
}

impl Timing {
    /// Makes the timing of a schedule that runs every `every` seconds. `zone` is the zone of
    /// `wall`. Both were checked ([`super::plan::settle`]).
    pub(crate) fn new(every: u64, wall: Option<(&WallClock, TimeZone)>) -> Timing {
        let wall = wall.map(|(wall, zone)| {
            let seconds = |minutes: u16| i64::from(minutes) * 60;
            let mut on = [wall.on.is_empty(); 7];
            wall.on.iter().for_each(|day| on[*day as usize] = true);
            Wall {
                zone,
                at: wall.at.map_or(0, |at| seconds(at.minutes())),
                on,
                between: wall.between.map_or((0, DAY), |w| (seconds(w.from()), seconds(w.to()))),
            }
        });
        Timing { every: i64::try_from(every).unwrap_or(i64::MAX).max(1), wall }
    }

    /// Returns the zone in which days begin.
    pub(crate) fn zone(&self) -> TimeZone {
        self.wall.as_ref().map_or(TimeZone::UTC, |wall| wall.zone.clone())
    }

    /// Returns the first time after `after` at which the schedule runs.
    pub(crate) fn next(&self, after: Timestamp) -> Timestamp {
        let found = match &self.wall {
            None => {
                let slot = after.as_second().div_euclid(self.every);
                Timestamp::from_second(slot.saturating_add(1).saturating_mul(self.every)).ok()
            }
            Some(wall) if self.every % DAY == 0 => wall.next_day(self.every / DAY, after),
            Some(wall) => wall.next_multiple(self.every, after),
        };
        found.unwrap_or(Timestamp::MAX)
    }

    /// Returns whether a missed run may be made up now. A run at a time of day may always be made
    /// up. An interval of less than a day stays within its days and its window.
    fn is_open(&self, now: Timestamp) -> bool {
        match &self.wall {
            Some(wall) if self.every % DAY != 0 => {
                let (day, second) = wall.clock(now);
                wall.open(day).into_iter().flatten().any(|(begin, end)| (begin..end).contains(&second))
            }
            _ => true,
        }
    }

    /// Returns whether the schedule ever runs.
    pub(crate) fn runs(&self) -> bool {
        let found = |wall: &Wall| wall.first_multiple(self.every, 0).is_some();
        self.every % DAY == 0 || self.wall.as_ref().is_none_or(found)
    }
}

impl Wall {
    /// Returns the day and the time of day that the clock on the wall shows.
    fn clock(&self, at: Timestamp) -> (i64, i64) {
        let shown = at.as_second() + i64::from(self.zone.to_offset(at).seconds());
        (shown.div_euclid(DAY), shown.rem_euclid(DAY))
    }

    fn is_on(&self, day: i64) -> bool {
        self.on[(day + MONDAY).rem_euclid(7) as usize]
    }

    /// Returns whether a schedule with an interval of `days` runs on this day. Weeks are counted
    /// from the Monday before 1970, and other intervals from 1970-01-01.
    fn is_due_on(&self, day: i64, days: i64) -> bool {
        match days {
            1 => self.is_on(day),
            days if days % 7 == 0 => self.is_on(day) && (day + MONDAY).div_euclid(7) % (days / 7) == 0,
            days => day % days == 0,
        }
    }

    /// Returns the first time after `after`, for an interval of whole days.
    fn next_day(&self, days: i64, after: Timestamp) -> Option<Timestamp> {
        let (today, _) = self.clock(after);
        // From yesterday on: clocks may skip the rest of a day.
        let all = (today - 1..today + DAYS_SEARCHED).filter(|day| self.is_due_on(*day, days));
        all.filter_map(|day| self.at_on(day)).find(|time| *time > after)
    }

    /// Returns the time of the run on a day. If clocks skip the time of day, it is the end of the
    /// gap. If they show it twice, it is the first time.
    fn at_on(&self, day: i64) -> Option<Timestamp> {
        let date = EPOCH.checked_add(SignedDuration::from_hours(day.checked_mul(24)?)).ok()?;
        let shown = date.to_datetime(jiff::civil::Time::midnight());
        let shown = shown.checked_add(SignedDuration::from_secs(self.at)).ok()?;
        match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(shown).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(shown).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // By the offset after the gap, the skipped time lies before the gap.
                let earlier = after.to_timestamp(shown).ok()?;
                Some(self.zone.following(earlier).next()?.timestamp())
            }
        }
    }

    /// Returns the first time after `after`, for an interval of `every` seconds, which is less than
    /// a day. While clocks show an hour for the second time, the schedule goes on. If clocks skip
    /// one of its times, it runs at the end of the gap.
    fn next_multiple(&self, every: i64, after: Timestamp) -> Option<Timestamp> {
        let mut begin = after.as_second();
        let mut shown = begin + i64::from(self.zone.to_offset(after).seconds()) + 1;
        for _ in 0..CHANGES_SEARCHED {
            let from = Timestamp::from_second(begin).ok()?;
            let offset = i64::from(self.zone.to_offset(from).seconds());
            let slot = self.first_multiple(every, shown)?;
            let change = self.zone.following(from).next().map(|change| change.timestamp());
            let Some(change) = change.filter(|change| change.as_second() <= slot - offset) else {
                return Timestamp::from_second(slot - offset).ok();
            };
            begin = change.as_second();
            shown = begin + i64::from(self.zone.to_offset(change).seconds());
            if slot < shown {
                return Some(change);
            }
        }
        None
    }

    /// Returns the first multiple of `every` since midnight that is open, not before `shown`. Both
    /// are what the clock on the wall shows, in seconds.
    fn first_multiple(&self, every: i64, shown: i64) -> Option<i64> {
        let today = shown.div_euclid(DAY);
        (today..=today + 8).find_map(|day| {
            let slot = |(begin, end): (i64, i64)| {
                let begin = begin.max(shown - day * DAY);
                let slot = (begin + every - 1).div_euclid(every) * every;
                (slot < end).then_some(day * DAY + slot)
            };
            self.open(day).into_iter().flatten().find_map(slot)
        })
    }

    /// Returns the times of a day at which the schedule may run, in order. The part of a window
    /// after midnight belongs to the day before.
    fn open(&self, day: i64) -> [Option<(i64, i64)>; 2] {
        let (from, to) = self.between;
        let part = |on: bool, begin, end| on.then_some((begin, end));
        match from < to {
            true => [part(self.is_on(day), from, to), None],
            false => [part(self.is_on(day - 1), 0, to), part(self.is_on(day), from, DAY)],
        }
    }
}

/// Returns the time of a schedule's next run. `kept` is the time that was computed before. `ran`
/// holds the times of earlier runs, in any order.
///
/// The schedule keeps the time `kept`, even if the clock is set, unless it is later than the next
/// regular time. Such a time means that the clock was set back, and then the next regular time
/// applies. Without `kept`, the latest time in `ran` decides. The function ignores a time in `ran`
/// that is later than `now`. With no other time, the schedule counts as never run. One run replaces
/// any number of missed runs. Outside of its days and its window, a schedule with an interval of
/// less than a day makes up no run.
pub(crate) fn due(
    kept: Option<Timestamp>,
    ran: impl Iterator<Item = Timestamp>,
    timing: &Timing,
    now: Timestamp,
) -> Timestamp {
    let upcoming = timing.next(now);
    let slot = match kept {
        Some(slot) => slot.min(upcoming),
        None => ran.filter(|time| *time <= now).max().map_or(upcoming, |last| timing.next(last)),
    };
    if now.duration_since(slot) > LATE && !timing.is_open(now) { upcoming } else { slot }
}

/// Returns the time of a schedule's next run, if it follows from `since` alone. `since` is the time
/// when the schedule was created or resumed. If `since` and `now` are in the same interval, earlier
/// runs have no effect. Otherwise the result is `None`.
pub(crate) fn first(since: Timestamp, timing: &Timing, now: Timestamp) -> Option<Timestamp> {
    (since <= now).then(|| timing.next(since)).filter(|slot| *slot > now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn plain(every: u64) -> Timing {
        Timing::new(every, None)
    }

    fn next(after: Timestamp, every: u64) -> Timestamp {
        plain(every).next(after)
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
        assert!(due(None, [last].into_iter(), &plain(3600), now) <= now);
        assert_eq!(due(None, [last, now].into_iter(), &plain(3600), now), ten, "the next is in order again");
    }

    #[test]
    fn times_ahead_of_the_clock_count_as_never() {
        let (now, ten) = (at("2026-11-22T09:30:00Z"), at("2026-11-22T10:00:00Z"));
        let ahead = at("2030-01-01T00:00:00Z");
        assert_eq!(due(None, [ahead].into_iter(), &plain(3600), now), ten);
        assert_eq!(due(None, [ahead].into_iter(), &plain(3600), ten), at("2026-11-22T11:00:00Z"));
        // The computed slot stays, so the schedule runs.
        assert_eq!(due(Some(ten), [ahead].into_iter(), &plain(3600), ten), ten);
        // A snapshot from before the clock was wrong still counts.
        assert!(due(None, [at("2026-11-22T08:00:00Z"), ahead].into_iter(), &plain(3600), now) <= now);
    }

    #[test]
    fn a_kept_slot_is_the_next_one_by_the_clock_as_it_is() {
        let (now, ten) = (at("2026-11-22T09:30:00Z"), at("2026-11-22T10:00:00Z"));
        let none = std::iter::empty;
        assert_eq!(due(Some(ten), none(), &plain(3600), now), ten);
        assert_eq!(
            due(Some(at("2030-01-01T00:00:00Z")), none(), &plain(3600), now),
            ten,
            "put back by years"
        );
        assert_eq!(
            due(Some(at("2026-11-22T11:00:00Z")), none(), &plain(3600), now),
            ten,
            "put back by 35 minutes"
        );
        assert!(
            due(Some(at("2020-01-01T00:00:00Z")), none(), &plain(3600), now) <= now,
            "put forward by years"
        );
    }

    /// Makes a timing from what an operator writes.
    fn timing(every: &str, at: &str, on: &str, between: &str, tz: &str) -> Timing {
        let (number, unit) = every.split_at(every.len() - 1);
        let unit = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)].into_iter().find(|u| u.0 == unit);
        let every = number.parse::<u64>().unwrap() * unit.unwrap().1;
        let wall = WallClock {
            tz: Some(tz.to_owned()),
            at: (!at.is_empty()).then(|| at.parse().unwrap()),
            on: on.split(',').filter(|day| !day.is_empty()).map(|day| day.parse().unwrap()).collect(),
            between: (!between.is_empty()).then(|| between.parse().unwrap()),
        };
        Timing::new(every, Some((&wall, TimeZone::get(tz).unwrap())))
    }

    /// Returns runs in a row after a time, each by the clock on the wall with its offset.
    fn runs(timing: &Timing, after: &str, count: usize) -> Vec<String> {
        let all = std::iter::successors(Some(timing.next(at(after))), |last| Some(timing.next(*last)));
        let shown = |t: Timestamp| t.to_zoned(timing.zone()).strftime("%a %m-%d %H:%M%:z").to_string();
        all.take(count).map(shown).collect()
    }

    #[test]
    fn runs_at_a_time_of_day() {
        let berlin = "Europe/Berlin";
        for (every, of_day, on, after, expected) in [
            ("1d", "02:30", "", "2026-11-22T01:29:59Z", ["Sun 11-22 02:30+01:00", "Mon 11-23 02:30+01:00"]),
            ("1d", "02:30", "", "2026-11-22T01:30:00Z", ["Mon 11-23 02:30+01:00", "Tue 11-24 02:30+01:00"]),
            // Clocks skip from 02:00 to 03:00: the run is at the first instant after the gap.
            ("1d", "02:30", "", "2026-03-28T12:00:00Z", ["Sun 03-29 03:00+02:00", "Mon 03-30 02:30+02:00"]),
            ("1d", "02:00", "", "2026-03-28T12:00:00Z", ["Sun 03-29 03:00+02:00", "Mon 03-30 02:00+02:00"]),
            ("1d", "03:00", "", "2026-03-28T12:00:00Z", ["Sun 03-29 03:00+02:00", "Mon 03-30 03:00+02:00"]),
            // Clocks show 02:30 twice: the run is at the first one only.
            ("1d", "02:30", "", "2026-10-24T12:00:00Z", ["Sun 10-25 02:30+02:00", "Mon 10-26 02:30+01:00"]),
            ("1d", "02:30", "", "2026-10-25T00:45:00Z", ["Mon 10-26 02:30+01:00", "Tue 10-27 02:30+01:00"]),
            (
                "1d",
                "02:30",
                "mon,wed",
                "2026-11-22T12:00:00Z",
                ["Mon 11-23 02:30+01:00", "Wed 11-25 02:30+01:00"],
            ),
            (
                "1d",
                "02:30",
                "sat",
                "2026-11-22T12:00:00Z",
                ["Sat 11-28 02:30+01:00", "Sat 12-05 02:30+01:00"],
            ),
            (
                "7d",
                "02:30",
                "sat",
                "2026-11-22T12:00:00Z",
                ["Sat 11-28 02:30+01:00", "Sat 12-05 02:30+01:00"],
            ),
            (
                "14d",
                "02:30",
                "mon",
                "2026-11-22T12:00:00Z",
                ["Mon 11-30 02:30+01:00", "Mon 12-14 02:30+01:00"],
            ),
            ("31d", "23:59", "", "2026-01-30T12:00:00Z", ["Sat 02-07 23:59+01:00", "Tue 03-10 23:59+01:00"]),
            // Ends of months, of a year, and of a February in a leap year.
            ("1d", "00:00", "", "2026-11-29T23:30:00Z", ["Tue 12-01 00:00+01:00", "Wed 12-02 00:00+01:00"]),
            ("1d", "23:30", "", "2026-12-31T22:00:00Z", ["Thu 12-31 23:30+01:00", "Fri 01-01 23:30+01:00"]),
            ("1d", "12:00", "", "2028-02-28T12:00:00Z", ["Tue 02-29 12:00+01:00", "Wed 03-01 12:00+01:00"]),
        ] {
            assert_eq!(
                runs(&timing(every, of_day, on, "", berlin), after, 2),
                expected,
                "{every} {of_day} {on}"
            );
        }
        // Samoa skipped a whole day, and Lord Howe Island skips half an hour.
        let samoa = timing("1d", "12:00", "", "", "Pacific/Apia");
        assert_eq!(
            runs(&samoa, "2011-12-29T21:00:00Z", 3),
            ["Thu 12-29 12:00-10:00", "Sat 12-31 00:00+14:00", "Sat 12-31 12:00+14:00"]
        );
        let howe = timing("1d", "02:15", "", "", "Australia/Lord_Howe");
        assert_eq!(runs(&howe, "2026-10-03T00:00:00Z", 1), ["Sun 10-04 02:30+11:00"]);
    }

    /// Checks three runs in a row: interval, days, window, the time before, and the runs.
    fn in_berlin(cases: &[(&str, &str, &str, &str, [&str; 3])]) {
        for (every, on, between, after, expected) in cases {
            let timing = timing(every, "", on, between, "Europe/Berlin");
            assert_eq!(runs(&timing, after, 3), expected, "{every} {on} {between}");
        }
    }

    #[test]
    fn runs_in_a_window() {
        in_berlin(&[
            (
                "1h",
                "",
                "08:00-10:00",
                "2026-11-22T12:00:00Z",
                ["Mon 11-23 08:00+01:00", "Mon 11-23 09:00+01:00", "Tue 11-24 08:00+01:00"],
            ),
            (
                "3h",
                "",
                "08:00-18:00",
                "2026-11-22T03:00:00Z",
                ["Sun 11-22 09:00+01:00", "Sun 11-22 12:00+01:00", "Sun 11-22 15:00+01:00"],
            ),
            (
                "7h",
                "",
                "00:00-24:00",
                "2026-11-22T03:00:00Z",
                ["Sun 11-22 07:00+01:00", "Sun 11-22 14:00+01:00", "Sun 11-22 21:00+01:00"],
            ),
            (
                "7h",
                "mon",
                "",
                "2026-11-22T23:00:01Z",
                ["Mon 11-23 07:00+01:00", "Mon 11-23 14:00+01:00", "Mon 11-23 21:00+01:00"],
            ),
            // The hours after midnight belong to the day on which the window begins.
            (
                "3h",
                "fri",
                "22:00-06:00",
                "2026-11-22T12:00:00Z",
                ["Sat 11-28 00:00+01:00", "Sat 11-28 03:00+01:00", "Sat 12-05 00:00+01:00"],
            ),
            (
                "1h",
                "fri",
                "23:00-01:00",
                "2026-11-27T21:59:59Z",
                ["Fri 11-27 23:00+01:00", "Sat 11-28 00:00+01:00", "Fri 12-04 23:00+01:00"],
            ),
            (
                "1h",
                "mon,wed",
                "08:00-09:00",
                "2026-11-29T12:00:00Z",
                ["Mon 11-30 08:00+01:00", "Wed 12-02 08:00+01:00", "Mon 12-07 08:00+01:00"],
            ),
        ]);
        let india = timing("1h", "", "", "00:00-24:00", "Asia/Kolkata");
        assert_eq!(runs(&india, "2026-11-22T03:14:15Z", 1), ["Sun 11-22 09:00+05:30"], "on the hour there");
    }

    #[test]
    fn short_intervals_go_on_while_clocks_change() {
        in_berlin(&[
            // In spring no time of the window 02:00-03:00 exists. It runs once, after the gap.
            (
                "15m",
                "",
                "02:00-03:00",
                "2026-03-28T01:30:00Z",
                ["Sat 03-28 02:45+01:00", "Sun 03-29 03:00+02:00", "Mon 03-30 02:00+02:00"],
            ),
            (
                "1h",
                "sun",
                "",
                "2026-03-29T00:00:00Z",
                ["Sun 03-29 03:00+02:00", "Sun 03-29 04:00+02:00", "Sun 03-29 05:00+02:00"],
            ),
            (
                "2h",
                "sun",
                "",
                "2026-03-29T00:00:00Z",
                ["Sun 03-29 03:00+02:00", "Sun 03-29 04:00+02:00", "Sun 03-29 06:00+02:00"],
            ),
            // In autumn the schedule goes on while clocks show an hour again.
            (
                "1h",
                "sun",
                "",
                "2026-10-24T23:59:00Z",
                ["Sun 10-25 02:00+02:00", "Sun 10-25 02:00+01:00", "Sun 10-25 03:00+01:00"],
            ),
            (
                "6h",
                "sun",
                "",
                "2026-10-24T21:00:00Z",
                ["Sun 10-25 00:00+02:00", "Sun 10-25 06:00+01:00", "Sun 10-25 12:00+01:00"],
            ),
        ]);
    }

    #[test]
    fn a_missed_run_at_a_time_of_day_is_made_up_at_once() {
        let night = timing("1d", "02:30", "mon", "", "Europe/Berlin");
        let (last, now) = (at("2026-11-16T01:30:00Z"), at("2026-11-25T09:00:00Z"));
        assert!(due(None, [last].into_iter(), &night, now) <= now, "a Wednesday");
        assert_eq!(due(None, [last, now].into_iter(), &night, now), at("2026-11-30T01:30:00Z"));
    }

    #[test]
    fn a_missed_run_of_a_window_waits_for_the_window() {
        let work = timing("1h", "", "mon,tue,wed,thu,fri", "08:00-18:00", "Europe/Berlin");
        let friday = at("2026-11-20T10:00:00Z");
        for (now, expected) in [
            ("2026-11-20T13:30:00Z", "2026-11-20T11:00:00Z"), // missed, and made up within the window
            ("2026-11-20T17:30:00Z", "2026-11-23T07:00:00Z"), // in the evening
            ("2026-11-21T11:30:00Z", "2026-11-23T07:00:00Z"), // on a Saturday
            ("2026-11-23T07:30:00Z", "2026-11-20T11:00:00Z"),
        ] {
            assert_eq!(due(None, [friday].into_iter(), &work, at(now)), at(expected), "{now}");
            assert_eq!(
                due(Some(at("2026-11-20T11:00:00Z")), std::iter::empty(), &work, at(now)),
                at(expected)
            );
        }
        // The last run of a window may begin a little after its end.
        let slot = at("2026-11-20T16:59:50Z");
        assert_eq!(due(Some(slot), std::iter::empty(), &work, at("2026-11-20T17:00:20Z")), slot);
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
            let slot = due(self.slot, self.ran.iter().copied(), &plain(every), now);
            self.slot = Some(slot);
            if slot <= now {
                self.slot = Some(next(now, every));
                self.ran.push(now);
                self.last_run = self.elapsed;
            }
        }
    }

    proptest! {
        /// A run is later than the time before it, whatever the zone does, and within 8 days.
        #[test]
        fn the_next_run_is_later_and_the_nearest(
            second in 1_600_000_000i64..2_000_000_000,
            minutes in 1u64..1440,
            window in prop::option::of((0u16..24, 1u16..=24)),
            days in 1u8..128,
            zone in prop::sample::select(vec!["Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata",
                "Africa/Casablanca", "America/St_Johns", "UTC"]),
        ) {
            let on = hindcast_api::Weekday::NAMES.iter().enumerate().filter(|(i, _)| days >> i & 1 == 1);
            let on: Vec<_> = on.map(|(_, name)| name.parse().unwrap()).collect();
            let between = window.filter(|(from, to)| from != to && *from < 24)
                .map(|(from, to)| format!("{from:02}:00-{to:02}:00").parse().unwrap());
            let wall = WallClock { tz: None, at: None, on, between };
            let timing = Timing::new(minutes * 60, Some((&wall, TimeZone::get(zone).unwrap())));
            prop_assume!(timing.runs());
            let after = Timestamp::from_second(second).unwrap();
            let next = timing.next(after);
            prop_assert!(next > after && next.duration_since(after) <= SignedDuration::from_hours(24 * 8 + 2));
            // No time between the two is nearer.
            let between = Timestamp::from_second((second + next.as_second()) / 2).unwrap();
            prop_assert_eq!(timing.next(between), if between < next { next } else { timing.next(next) });
        }

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
    }
}
