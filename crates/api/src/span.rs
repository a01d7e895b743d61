//! Lengths of time as people write them.

use serde::de::{self, Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest time: 1000 years, in seconds.
const LONGEST: u64 = 1000 * 366 * 24 * 3600;

/// A length of time in whole seconds, written as `90s`, `30m`, `12h`, `7d` or `4w`. A bare number
/// is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time: write for example 90s, 30m, 12h, 7d or 4w");
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = match unit {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 24 * 3600,
            "w" => 7 * 24 * 3600,
            _ => return Err(wrong()),
        };
        let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
        let seconds = seconds.filter(|seconds| *seconds <= LONGEST).ok_or_else(wrong)?;
        Ok(TimeSpan(Duration::from_secs(seconds)))
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    /// Reads an integer of seconds, or a string in the form of the command line.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TimeSpan;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time: seconds, or a string like \"24h\"")
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<TimeSpan, E> {
                v.to_string().parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<TimeSpan, E> {
                v.to_string().parse().map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<TimeSpan, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_told_apart() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604_800), ("0", 0)]
        {
            assert_eq!(text.parse::<TimeSpan>().unwrap().0.as_secs(), seconds);
        }
        for bad in ["", "x", "-5", "5y", "1.5h", "99999999999999999999", "9999999999w", "5 h"] {
            assert!(bad.parse::<TimeSpan>().is_err(), "{bad}");
        }
        let read = |json: &str| serde_json::from_str::<TimeSpan>(json).ok().map(|span| span.0.as_secs());
        assert_eq!(
            (read("60"), read("\"1h\""), read("-1"), read("null")),
            (Some(60), Some(3600), None, None)
        );
    }
}
