//! Moments as people write them: a wall clock in a time zone, a day of the week, "5m ago". What
//! they mean is settled here, and the server gets one of its own forms.

use crate::failure::Failure;
use hindcast_api::Moment;
use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// A moment as it was written. It is valid, and means something definite once the zone is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum When {
    /// A form that the server understands.
    Plain(Moment),
    /// A time of day on a day, by the wall clock of a zone.
    Wall(Day, Time),
}

/// The day of a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Day {
    /// The latest day on which that time is past.
    Latest,
    Today,
    Yesterday,
    /// The latest such day on which that time is past.
    Last(Weekday),
    On(Date),
}

/// Where and when a command is run.
#[derive(Debug, Clone)]
pub(crate) struct Here {
    pub(crate) zone: TimeZone,
    /// Whether the operator named the zone. Otherwise it is this machine's.
    pub(crate) is_named: bool,
    pub(crate) now: Timestamp,
    /// Tables show times in full, in UTC.
    pub(crate) precise: bool,
}

impl When {
    /// Returns whether it is the name of a snapshot or mark.
    pub(crate) fn is_name(&self) -> bool {
        matches!(self, When::Plain(Moment::Name(_)))
    }

    /// Parses a moment. The error names the forms that a person may use.
    pub(crate) fn parse(text: &str) -> Result<When, String> {
        let text = text.trim();
        let lower = text.to_ascii_lowercase();
        if lower == "now" {
            return Ok(When::Plain(Moment::Ago(SignedDuration::ZERO)));
        }
        if let Some(length) = lower.strip_suffix("ago") {
            let length: String = length.split_whitespace().collect();
            return format!("-{length}").parse().map(When::Plain).map_err(|_| wrong(text));
        }
        if let Ok(moment) = text.parse::<Moment>() {
            return Ok(When::Plain(moment));
        }
        let (day, time) = match lower.split_once([' ', 't']) {
            Some((day, time)) if day.starts_with(|c: char| c.is_ascii_digit()) => (day, time),
            _ => lower.split_once(' ').unwrap_or(("", &lower)),
        };
        let time = clock(time.trim()).ok_or_else(|| wrong(text))?;
        let day = match day {
            "" => Day::Latest,
            "today" => Day::Today,
            "yesterday" => Day::Yesterday,
            name => match WEEKDAYS.iter().find(|(full, _)| name.len() >= 3 && full.starts_with(name)) {
                Some((_, weekday)) => Day::Last(*weekday),
                None => Day::On(name.parse().map_err(|_| wrong(text))?),
            },
        };
        Ok(When::Wall(day, time))
    }

    /// Returns the form in which the server gets the moment.
    pub(crate) fn moment(&self, here: &Here) -> Result<Moment, Failure> {
        match self {
            When::Plain(moment) => Ok(moment.clone()),
            When::Wall(day, time) => here.timestamp(*day, *time).map(Moment::Time).map_err(Failure::usage),
        }
    }
}

fn wrong(text: &str) -> String {
    format!(
        "{text:?} is not a moment: write a time (10:41, \"yesterday 10:41\", \"2026-11-21 10:41:30\", \
         2026-11-21T10:41:30Z), a time before now (-90s, \"5m ago\"), now, lsn:NUMBER, or the name of a snapshot or mark"
    )
}

/// Parses `10:41`, `10:41:30` and `10:41:30.5`.
fn clock(text: &str) -> Option<Time> {
    let fits = text.len() >= 4 && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b':' | b'.'));
    let padded = if text.find(':') == Some(1) { format!("0{text}") } else { text.to_owned() };
    padded.parse().ok().filter(|_| fits && text.contains(':'))
}

impl Here {
    /// Returns this machine's zone, or the one of `name`, and the present time.
    pub(crate) fn new(name: Option<&str>) -> Result<Here, Failure> {
        let zone = match name {
            Some(name) => TimeZone::get(name).map_err(|_| {
                Failure::usage(format!(
                    "--tz {name}: this machine knows no such time zone; write one like Europe/Berlin or UTC"
                ))
            })?,
            None => TimeZone::system(),
        };
        Ok(Here { zone, is_named: name.is_some(), now: Timestamp::now(), precise: false })
    }

    /// Returns the IANA name of the zone. It is UTC if this machine knows no zone of its own.
    pub(crate) fn zone_name(&self) -> Result<String, Failure> {
        match self.zone.iana_name() {
            _ if self.zone.is_unknown() => Ok("UTC".to_owned()),
            Some(name) => Ok(name.to_owned()),
            None => Err(Failure::usage(
                "this machine's time zone has no name; give --tz, such as --tz Europe/Berlin",
            )),
        }
    }

    fn timestamp(&self, day: Day, time: Time) -> Result<Timestamp, String> {
        let today = self.zone.to_datetime(self.now).date();
        let back = |days: i64| {
            today.checked_sub(jiff::Span::new().days(days)).map_err(|_| "the time is out of range".to_owned())
        };
        // A time of day that does not exist on a day is no candidate for that day.
        let latest = |days: &mut dyn Iterator<Item = i64>| {
            for days in days {
                match self.at(back(days)?.to_datetime(time)) {
                    Ok(found) if found <= self.now => return Ok(found),
                    Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
            Err("the time is out of range".to_owned())
        };
        match day {
            Day::Latest => latest(&mut (0..3)),
            Day::Last(weekday) => {
                let since = i64::from(today.weekday().since(jiff::civil::Weekday::Monday))
                    - i64::from(weekday.since(jiff::civil::Weekday::Monday));
                let first = since.rem_euclid(7);
                latest(&mut (0..2).map(|week| first + 7 * week))
            }
            Day::Today => self.at(today.to_datetime(time)),
            Day::Yesterday => self.at(back(1)?.to_datetime(time)),
            Day::On(date) => self.at(date.to_datetime(time)),
        }
    }

    /// Returns the time that a wall clock shows. Twice a year a wall clock shows an hour twice, or
    /// never.
    fn at(&self, wall: DateTime) -> Result<Timestamp, String> {
        let ambiguous = self.zone.to_ambiguous_timestamp(wall);
        let with = |offset: Offset| offset.to_timestamp(wall).map_err(|_| format!("{wall} is out of range"));
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { offset } => with(offset),
            AmbiguousOffset::Gap { .. } => {
                Err(format!("the clock was put forward over {}: that time never was", written(wall)))
            }
            AmbiguousOffset::Fold { before, after } => Err(format!(
                "the clock showed {} twice: write {} or {}",
                written(wall),
                with(before)?,
                with(after)?
            )),
        }
    }

    /// Returns a time for tables: to the second, or with `--precise` as it is, in UTC.
    pub(crate) fn clock(&self, time: Timestamp) -> String {
        match self.precise {
            true => time.to_string(),
            false => time.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        }
    }

    /// Returns the day of a time.
    pub(crate) fn day(&self, time: Timestamp) -> String {
        time.to_zoned(self.zone.clone()).strftime("%Y-%m-%d").to_string()
    }

    /// Returns a time for a line of its own: as in tables, with its offset from UTC.
    pub(crate) fn stamp(&self, time: Timestamp) -> String {
        match self.precise {
            true => time.to_string(),
            false => {
                let offset = time.to_zoned(self.zone.clone()).offset();
                let offset = if offset == Offset::UTC { "UTC".into() } else { offset_text(offset) };
                format!("{} {offset}", self.clock(time))
            }
        }
    }

    /// Returns the offset of times in tables from UTC: `+01:00`, or `UTC`.
    pub(crate) fn offset(&self) -> String {
        let offset = self.now.to_zoned(self.zone.clone()).offset();
        if self.precise || offset == Offset::UTC { "UTC".into() } else { offset_text(offset) }
    }

    /// Returns a time for people, as `22 Nov 10:41:30.000 CET = 09:41:30Z, 3 h 12 min ago`.
    pub(crate) fn said(&self, time: Timestamp) -> String {
        let local = time.to_zoned(self.zone.clone());
        let year = if local.year() == self.now.to_zoned(self.zone.clone()).year() { "" } else { " %Y" };
        let local_text = local.strftime(&format!("%-d %b{year} %H:%M:%S.%3f %Z")).to_string();
        let utc = match local.offset() == Offset::UTC {
            true => String::new(),
            false => format!(" = {}", time.strftime("%H:%M:%SZ")),
        };
        format!("{local_text}{utc}, {}", ago(self.now.duration_since(time)))
    }
}

/// Returns an offset from UTC as `+01:00`.
fn offset_text(offset: Offset) -> String {
    let seconds = offset.seconds();
    let (sign, seconds) = if seconds < 0 { ('-', -seconds) } else { ('+', seconds) };
    format!("{sign}{:02}:{:02}", seconds / 3600, seconds / 60 % 60)
}

fn written(wall: DateTime) -> String {
    wall.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns a length of time in its two largest units.
fn ago(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s ago"),
        (0, 0, _) => format!("{minutes} min {} s ago", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min ago"),
        _ => format!("{days} d {hours} h ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(zone: &str, now: &str) -> Here {
        Here { zone: TimeZone::get(zone).unwrap(), is_named: true, now: now.parse().unwrap(), precise: false }
    }

    /// Wednesday, 25 November 2026, 10:00 in Berlin.
    fn berlin() -> Here {
        here("Europe/Berlin", "2026-11-25T09:00:00Z")
    }

    fn meant(text: &str, here: &Here) -> String {
        When::parse(text).unwrap_or_else(|e| panic!("{e}")).moment(here).unwrap().to_string()
    }

    #[test]
    fn people_have_wall_clocks() {
        for (text, expected) in [
            ("9:41", "2026-11-25T08:41:00Z"),
            ("09:41:30.5", "2026-11-25T08:41:30.5Z"),
            ("10:41", "2026-11-24T09:41:00Z"),
            ("today 10:41", "2026-11-25T09:41:00Z"),
            ("Yesterday 10:41", "2026-11-24T09:41:00Z"),
            ("wed 9:00", "2026-11-25T08:00:00Z"),
            ("wed 10:41", "2026-11-18T09:41:00Z"),
            ("Monday 10:41", "2026-11-23T09:41:00Z"),
            ("thu 10:41", "2026-11-19T09:41:00Z"),
            ("2026-11-22 10:41", "2026-11-22T09:41:00Z"),
            ("2026-07-22 10:41:30", "2026-07-22T08:41:30Z"),
            ("2026-07-22T10:41:30", "2026-07-22T08:41:30Z"),
            ("2026-07-22T10:41:30Z", "2026-07-22T10:41:30Z"),
            ("2026-07-22 10:41:30+05:00", "2026-07-22T05:41:30Z"),
        ] {
            assert_eq!(meant(text, &berlin()), expected, "{text}");
        }
    }

    #[test]
    fn other_forms_stay() {
        for (text, expected) in [
            ("now", "-0s"),
            ("5m ago", "-300s"),
            ("1.5 h ago", "-5400s"),
            ("-5m", "-300s"),
            ("lsn:7", "lsn:7"),
            ("before-upgrade", "before-upgrade"),
            ("monday", "monday"),
            ("2026-11-22", "2026-11-22"),
        ] {
            assert_eq!(meant(text, &berlin()), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for bad in
            ["", "25:00", "10:61", "someday 10:41", "mo 10:41", "2026-13-01 10:41", "x ago", "10:41 CET"]
        {
            let error = When::parse(bad).unwrap_err();
            assert!(error.contains("yesterday 10:41") && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn an_hour_that_is_twice_or_never_is_asked_for() {
        let here = here("Europe/Berlin", "2026-12-01T00:00:00Z");
        let refused = |text| When::parse(text).unwrap().moment(&here).unwrap_err().to_string();
        let twice = refused("2026-10-25 02:30");
        assert!(twice.contains("2026-10-25T00:30:00Z or 2026-10-25T01:30:00Z"), "{twice}");
        assert!(refused("2026-03-29 02:30").contains("never was"));
    }

    #[test]
    fn tables_have_local_times() {
        let time: Timestamp = "2026-11-25T05:48:30.25Z".parse().unwrap();
        let (here, utc) = (berlin(), here("UTC", "2026-11-25T09:00:00Z"));
        assert_eq!((&here.clock(time)[..], &here.offset()[..]), ("2026-11-25 06:48:30", "+01:00"));
        assert_eq!((&utc.clock(time)[..], &utc.offset()[..]), ("2026-11-25 05:48:30", "UTC"));
        let precise = Here { precise: true, ..here };
        assert_eq!((&precise.clock(time)[..], &precise.offset()[..]), ("2026-11-25T05:48:30.25Z", "UTC"));
        assert_eq!(precise.stamp(time), "2026-11-25T05:48:30.25Z");
        assert_eq!(berlin().stamp(time), "2026-11-25 06:48:30 +01:00");
        // In summer, although it is winter now.
        let summer: Timestamp = "2026-07-25T05:48:30Z".parse().unwrap();
        assert_eq!(berlin().stamp(summer), "2026-07-25 07:48:30 +02:00");
        assert_eq!(offset_text(Offset::from_seconds(-12_600).unwrap()), "-03:30");
    }

    #[test]
    fn a_time_is_said_for_people() {
        let said = |time: &str| berlin().said(time.parse().unwrap());
        assert_eq!(said("2026-11-25T05:48:30.25Z"), "25 Nov 06:48:30.250 CET = 05:48:30Z, 3 h 11 min ago");
        assert_eq!(said("2025-11-25T05:48:30Z"), "25 Nov 2025 06:48:30.000 CET = 05:48:30Z, 365 d 3 h ago");
        let utc = here("UTC", "2026-11-25T09:00:00Z");
        assert_eq!(
            utc.said("2026-11-25T08:58:58Z".parse().unwrap()),
            "25 Nov 08:58:58.000 UTC, 1 min 2 s ago"
        );
    }
}
