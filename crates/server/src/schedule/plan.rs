//! The stored form of a schedule ([`Plan`]), and the checks of its values.

use super::when::Timing;
use hindcast_api::{Retention, WallClock};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use uuid::Uuid;

/// The maximum number of snapshots that the engine takes or deletes in one operation.
pub(crate) const MAX_AT_ONCE: usize = 200;

/// The permitted interval between the snapshots of one schedule, in seconds: 10 seconds to 31 days.
const EVERY: std::ops::RangeInclusive<u64> = 10..=31 * 24 * 3600;
/// The longest name or prefix of a schedule, in bytes. A snapshot's name must hold a prefix and a
/// time.
const MAX_NAME: usize = 64;
pub(crate) const MAX_SCHEDULES: usize = 1000;
/// The maximum number of volumes of one schedule, those of its groups included. One operation takes
/// the snapshots of all of them.
pub(crate) const MAX_VOLUMES: usize = MAX_AT_ONCE;
/// Seconds of a day.
const DAY: u64 = 24 * 3600;

/// A schedule, as the file of schedules stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The prefix of its snapshots' names. It is unique among all schedules.
    pub(crate) prefix: String,
    pub(crate) volumes: Vec<Uuid>,
    /// The names of groups. Each run looks up their volumes.
    pub(crate) groups: Vec<String>,
    pub(crate) every: u64,
    /// Times by the clock on the wall, in the form that [`settle`] returns.
    pub(crate) wall: Option<WallClock>,
    pub(crate) keep: Retention,
    pub(crate) paused: bool,
    /// When the schedule was created or last resumed, or got more volumes, or other times by the
    /// clock on the wall.
    /// Runs that were due before are not missed runs.
    pub(crate) since: Timestamp,
}

impl Plan {
    /// Returns when the schedule runs. Fails if the database of time zones does not have its zone.
    pub(crate) fn timing(&self) -> Result<Timing> {
        timing(self.every, self.wall.as_ref())
    }
}

fn timing(every: u64, wall: Option<&WallClock>) -> Result<Timing> {
    let wall = wall.map(|wall| Ok((wall, zone(wall.tz.as_deref().unwrap_or("UTC"))?))).transpose()?;
    Ok(Timing::new(every, wall))
}

/// Finds a time zone by its IANA name in the database of this machine.
fn zone(name: &str) -> Result<TimeZone> {
    match TimeZone::get(name) {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ if jiff::tz::db().is_definitively_empty() => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "use the time zone {name}: the server finds no database of time zones; install tzdata \
                 (/usr/share/zoneinfo) on its machine, then restart the server"
            ),
        )),
        _ => Err(invalid(format!(
            "use the time zone {name}: the server's machine knows no such time zone; write one like Europe/Berlin or UTC"
        ))),
    }
}

/// Checks the times of a schedule, and returns the form in which a plan stores them: the zone has
/// its IANA name, and the days are in order. The result is `None` if `wall` restricts nothing.
pub(crate) fn settle(every: u64, wall: Option<&WallClock>) -> Result<Option<WallClock>> {
    check_every(every)?;
    let Some(wall) = wall.filter(|w| w.at.is_some() || !w.on.is_empty() || w.between.is_some()) else {
        return Ok(None);
    };
    let zone = zone(wall.tz.as_deref().unwrap_or("UTC"))?;
    let mut wall = WallClock { tz: zone.iana_name().map(str::to_owned), ..wall.clone() };
    wall.on.sort_by_key(|day| *day as u8);
    wall.on.dedup();
    check_wall(every, &wall)?;
    if !Timing::new(every, Some((&wall, zone))).runs() {
        return Err(invalid(format!(
            "run a schedule every {every} seconds: no multiple of that, counted from midnight, lies in the window; \
             choose a shorter interval or a longer window"
        )));
    }
    Ok(Some(wall))
}

/// Checks that the interval and the times by the clock on the wall belong together.
pub(crate) fn check_wall(every: u64, wall: &WallClock) -> Result<()> {
    let days = (every % DAY == 0).then_some(every / DAY);
    let why = match days {
        None if wall.at.is_some() => "with a time of day, the interval must be a number of days, such as 1d",
        None if every > DAY => "an interval of more than a day must be a number of days",
        Some(_) if wall.between.is_some() => {
            "with a window, the interval must be less than a day; give a time of day instead of the window"
        }
        Some(1) | None => return Ok(()),
        Some(days) if days % 7 == 0 && wall.on.len() == 1 => return Ok(()),
        Some(days) if days % 7 == 0 => "an interval of weeks needs the one day of the week on which it runs",
        Some(_) if wall.on.is_empty() => return Ok(()),
        Some(_) => {
            "with days of the week, the interval must be less than a day, one day, or a number of weeks"
        }
    };
    Err(invalid(format!("run a schedule every {every} seconds: {why}")))
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && name.len() <= MAX_NAME && name.bytes().all(ok) {
        return Ok(());
    }
    Err(invalid(format!(
        "use {name:?} for a schedule: a name or prefix must have 1 to {MAX_NAME} letters, digits, dots, underscores and hyphens, and start with a letter or digit"
    )))
}

pub(crate) fn check_every(every: u64) -> Result<()> {
    if EVERY.contains(&every) {
        return Ok(());
    }
    Err(invalid(format!("take snapshots every {every} seconds: the interval must be 10 seconds to 31 days")))
}

/// Returns whether the schedule with this prefix took the snapshot. The snapshot's name is then the
/// prefix, a hyphen and a time. A snapshot that was renamed belongs to no schedule.
pub(crate) fn is_of(prefix: &str, snapshot: &str) -> bool {
    let time = snapshot.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    time.is_some_and(|time| {
        let pattern = |(i, b): (usize, u8)| match i {
            8 => b == b'T',
            15 => b == b'Z',
            _ => b.is_ascii_digit(),
        };
        time.len() == 16 && time.bytes().enumerate().all(pattern)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_told_by_their_names() {
        assert!(is_of("auto", "auto-20261122T031400Z"));
        assert!(is_of("a-b", "a-b-20261122T031400Z"));
        for other in [
            "auto-20261122T031400",
            "auto20261122T031400Z",
            "aut-20261122T031400Z",
            "auto-2026112xT031400Z",
            "auto-",
        ] {
            assert!(!is_of("auto", other), "{other}");
        }
        assert!(!is_of("a", "a-b-20261122T031400Z"), "of another schedule");
    }

    #[test]
    fn names_and_intervals_are_checked() {
        for name in ["a", "Hourly_1.x-y"] {
            check_name(name).unwrap();
        }
        for name in ["", "-a", "a b", "a@b", &"x".repeat(65)] {
            assert_eq!(check_name(name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        assert!(check_every(9).is_err() && check_every(10).is_ok() && check_every(u64::MAX).is_err());
    }
    fn wall(tz: &str, at: &str, on: &str, between: &str) -> WallClock {
        WallClock {
            tz: Some(tz.to_owned()).filter(|name| !name.is_empty()),
            at: (!at.is_empty()).then(|| at.parse().unwrap()),
            on: on.split(',').filter(|day| !day.is_empty()).map(|day| day.parse().unwrap()).collect(),
            between: (!between.is_empty()).then(|| between.parse().unwrap()),
        }
    }

    #[test]
    fn times_that_do_not_belong_together_are_refused() {
        let week = 7 * DAY;
        for (every, wall, why) in [
            (3600, wall("", "02:30", "", ""), "a number of days"),
            (DAY + 3600, wall("", "", "mon", ""), "more than a day must be a number of days"),
            (DAY, wall("", "02:30", "", "08:00-18:00"), "less than a day"),
            (DAY, wall("", "", "", "08:00-18:00"), "less than a day"),
            (week, wall("", "02:30", "", ""), "the one day of the week"),
            (2 * week, wall("", "02:30", "mon,tue", ""), "the one day of the week"),
            (2 * DAY, wall("", "02:30", "mon", ""), "a number of weeks"),
            (6 * 3600, wall("", "", "", "07:00-08:00"), "no multiple"),
            (DAY, wall("Europe/Nowhere", "02:30", "", ""), "no such time zone"),
            (DAY, wall("Etc/Unknown", "02:30", "", ""), "no such time zone"),
        ] {
            let error = settle(every, Some(&wall)).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn times_are_stored_in_one_form() {
        let stored = settle(DAY, Some(&wall("europe/berlin", "2:30", "wed,mon,wed", ""))).unwrap();
        assert_eq!(stored, Some(wall("Europe/Berlin", "02:30", "mon,wed", "")));
        let stored = settle(7 * DAY, Some(&wall("", "02:30", "sun", ""))).unwrap();
        assert_eq!(stored, Some(wall("UTC", "02:30", "sun", "")));
        assert_eq!(settle(60, Some(&wall("Europe/Berlin", "", "", ""))).unwrap(), None);
        assert!(settle(2 * DAY, Some(&wall("", "02:30", "", ""))).unwrap().is_some());
        assert!(settle(900, Some(&wall("", "", "", "22:00-06:00"))).unwrap().is_some());
    }
}
