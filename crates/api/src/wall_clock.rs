//! When a schedule runs by the clock on the wall: a time of day, days of the week, a window of the
//! day, and the time zone of all three.

use crate::named::named;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

named! {
    /// A day of the week.
    pub enum Weekday {
        /// Monday.
        Monday = "mon",
        /// Tuesday.
        Tuesday = "tue",
        /// Wednesday.
        Wednesday = "wed",
        /// Thursday.
        Thursday = "thu",
        /// Friday.
        Friday = "fri",
        /// Saturday.
        Saturday = "sat",
        /// Sunday.
        Sunday = "sun",
    }
}

/// A time of day in whole minutes, `HH:MM`, from `00:00` to `23:59`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// Returns the minutes since midnight.
    pub fn minutes(self) -> u16 {
        self.0
    }
}

/// A part of each day, `HH:MM-HH:MM`. The beginning belongs to it, the end does not. The end may be
/// `24:00`. If the end is before the beginning, the window goes over midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    from: u16,
    to: u16,
}

impl Window {
    /// Returns the beginning, in minutes since midnight.
    pub fn from(self) -> u16 {
        self.from
    }

    /// Returns the end, in minutes since midnight, up to 24 hours. The end does not belong to the
    /// window.
    pub fn to(self) -> u16 {
        self.to
    }
}

/// Parses `H:MM` or `HH:MM`, up to `24:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        (lengths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()))
            .then(|| part.parse::<u16>().ok())
            .flatten()
    };
    let (hour, minute) = (digits(hour, 1..=2)?, digits(minute, 2..=2)?);
    Some(hour * 60 + minute).filter(|all| minute < 60 && *all <= DAY)
}

fn written(minutes: u16) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

impl FromStr for TimeOfDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = minutes(text.trim()).filter(|all| *all < DAY);
        parsed.map(TimeOfDay).ok_or_else(|| format!("{text:?} is not a time of day: write for example 02:30"))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&written(self.0))
    }
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = |why: &str| format!("{text:?} is not a part of a day: {why}");
        let ends = text.split_once('-').map(|(from, to)| (minutes(from.trim()), minutes(to.trim())));
        match ends {
            Some((Some(from), Some(to))) if from < DAY && to > 0 => match from == to {
                true => Err(fail("it is empty, because it ends when it begins")),
                false => Ok(Window { from, to }),
            },
            Some((Some(from), Some(0))) if from < DAY => Err(fail("write 24:00 for an end at midnight")),
            _ => Err(fail("write for example 08:00-18:00, or 22:00-06:00")),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}-{}", written(self.from), written(self.to)))
    }
}

/// Conversions from and to JSON strings.
macro_rules! by_text {
    ($($type:ident),+) => {
        $(
            impl TryFrom<String> for $type {
                type Error = String;

                fn try_from(text: String) -> Result<Self, String> {
                    text.parse()
                }
            }

            impl From<$type> for String {
                fn from(value: $type) -> String {
                    value.to_string()
                }
            }
        )+
    };
}
by_text!(TimeOfDay, Window);

/// Restriction of a schedule to times by the clock on the wall of a time zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WallClock {
    /// Time zone by its IANA name, such as `Europe/Berlin`. Absent: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tz: Option<String>,
    /// Time of day at which the schedule runs. The interval must then be a multiple of one day.
    /// Absent: the schedule runs at the multiples of its interval since midnight. A day on which
    /// clocks skip this time has the run at the end of the gap. If clocks show it twice, the
    /// schedule runs the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "02:30")]
    pub at: Option<TimeOfDay>,
    /// Days of the week on which the schedule runs. Empty: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<Weekday>,
    /// Part of the day in which the schedule runs. The interval must then be less than a day. The
    /// hours of a window after midnight belong to the day on which the window begins. Absent: the
    /// whole day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "08:00-18:00")]
    pub between: Option<Window>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_read_and_written() {
        for (text, written) in [("02:30", "02:30"), ("2:30", "02:30"), ("0:00", "00:00"), ("23:59", "23:59")]
        {
            assert_eq!(text.parse::<TimeOfDay>().unwrap().to_string(), written);
        }
        for bad in ["", "24:00", "2", "2:3", "02:60", "-1:00", "+2:30", "02:30:00", "2.30", "002:30"] {
            assert!(bad.parse::<TimeOfDay>().unwrap_err().contains("02:30"), "{bad}");
        }
    }

    #[test]
    fn windows_are_read_and_written() {
        for text in ["08:00-18:00", "18:00-24:00", "22:00-06:00", "00:00-24:00"] {
            assert_eq!(text.parse::<Window>().unwrap().to_string(), text);
            let json = format!("{text:?}");
            assert_eq!(serde_json::to_string(&serde_json::from_str::<Window>(&json).unwrap()).unwrap(), json);
        }
        for bad in ["", "08:00", "08:00-08:00", "24:00-08:00", "08:00-00:00", "8-18", "08:00-25:00"] {
            assert!(bad.parse::<Window>().is_err(), "{bad}");
        }
        assert!("08:00-00:00".parse::<Window>().unwrap_err().contains("24:00"));
    }
}
