//! Moments of a volume's history in the form that people write: after the `@` of an address, and in
//! every request that takes a moment.

use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::str::FromStr;

/// A moment of a volume's history, as a user wrote it. The server finds the moment when a request
/// uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// The state after the last write at or before a time: `2026-11-21T10:00:00.5Z`. An offset from
    /// UTC may replace the `Z`.
    Time(Timestamp),
    /// A time before the request, by the server's clock: `-90s`, `-1.5h`.
    Ago(SignedDuration),
    /// The state just after the write with this LSN: `lsn:4711`.
    Lsn(u64),
    /// The name of a snapshot or mark of the volume.
    Name(String),
}

/// Why a text is not a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseMomentError(String);

impl fmt::Display for ParseMomentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a moment: write a time like 2026-11-21T10:00:00.5Z, a time before now like -90s, lsn:NUMBER, \
             or the name of a snapshot or mark",
            self.0
        )
    }
}

impl std::error::Error for ParseMomentError {}

/// Units of `-90s` and similar moments, in nanoseconds.
const UNITS: [(&str, i128); 6] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("w", 604_800_000_000_000),
];

/// A colon or a leading minus distinguishes moments from names, which have neither. iSCSI names
/// have no capitals, so the letters of a time may be lower case.
impl FromStr for Moment {
    type Err = ParseMomentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseMomentError(text.to_owned());
        if let Some(ago) = text.strip_prefix('-') {
            return duration(ago).map(Moment::Ago).ok_or_else(wrong);
        }
        if let Some(number) = text.strip_prefix("lsn:") {
            let plain = number.bytes().all(|b| b.is_ascii_digit());
            return number.parse().ok().filter(|_| plain).map(Moment::Lsn).ok_or_else(wrong);
        }
        if text.contains(':') {
            return text.to_ascii_uppercase().parse().map(Moment::Time).map_err(|_| wrong());
        }
        match is_name(text) {
            true => Ok(Moment::Name(text.to_owned())),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Time(at) => at.fmt(f),
            Moment::Ago(ago) => write!(f, "-{}", seconds(ago.as_nanos())),
            Moment::Lsn(lsn) => write!(f, "lsn:{lsn}"),
            Moment::Name(name) => f.write_str(name),
        }
    }
}

/// Splits `uuid:UUID`, which stands for the volume's name of now, and `uuid:UUID@MOMENT`. Returns
/// the UUID, and what follows it: nothing, or the text from the `@` on. Returns `None` for other
/// texts.
pub fn split_uuid(text: &str) -> Option<(&str, &str)> {
    let uuid = text.strip_prefix("uuid:")?;
    let (uuid, rest) = uuid.split_at(uuid.find('@').unwrap_or(uuid.len()));
    let is_mark = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, b): (usize, u8)| if is_mark(at) { b == b'-' } else { b.is_ascii_hexdigit() };
    (uuid.len() == 36 && uuid.bytes().enumerate().all(fits)).then_some((uuid, rest))
}

fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    first && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Parses a number, whole or with a fraction, and a unit.
fn duration(text: &str) -> Option<SignedDuration> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(split);
    let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Twelve digits are finer than a nanosecond of a week, and keep the arithmetic inside 128 bits.
    let digits = |part: &str| (1..=12).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let scale = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let nanos =
        whole.parse::<i128>().ok()?.checked_mul(unit)? + fraction.parse::<i128>().ok()? * unit / scale;
    let seconds = i64::try_from(nanos / 1_000_000_000).ok()?;
    Some(SignedDuration::new(seconds, i32::try_from(nanos % 1_000_000_000).ok()?))
}

/// Returns seconds with as many decimals as the number needs.
fn seconds(nanos: i128) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    match rest {
        0 => format!("{whole}s"),
        rest => format!("{whole}.{}s", format!("{rest:09}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_stands_for_a_volume() {
        let uuid = "6f1c2ab3-0000-4000-8000-00000000abCD";
        assert_eq!(split_uuid(&format!("uuid:{uuid}")), Some((uuid, "")));
        assert_eq!(split_uuid(&format!("uuid:{uuid}@lsn:7")), Some((uuid, "@lsn:7")));
        for bad in
            ["db", "uuid:", "uuid:db", uuid, &format!("uuid:{uuid}0"), &format!("uuid:{}g", &uuid[1..])]
        {
            assert_eq!(split_uuid(bad), None, "{bad}");
        }
        assert_eq!(split_uuid(&format!("uuid:{}", uuid.replace('-', "0"))), None);
    }

    fn parse(text: &str) -> Moment {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    fn ago(text: &str) -> i128 {
        match parse(text) {
            Moment::Ago(ago) => ago.as_nanos(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn times_are_rfc_3339() {
        let half_past = Moment::Time("2026-11-21T10:00:00.5Z".parse().unwrap());
        for text in [
            "2026-11-21T10:00:00.5Z",
            "2026-11-21t10:00:00.5z",
            "2026-11-21 10:00:00.500000000Z",
            "2026-11-21T11:30:00.5+01:30",
            "2026-11-21T05:00:00.5-05:00",
        ] {
            assert_eq!(parse(text), half_past, "{text}");
        }
        assert_eq!(parse("2026-11-21T10:00:00.123456789Z").to_string(), "2026-11-21T10:00:00.123456789Z");
    }

    #[test]
    fn so_long_ago_has_a_unit() {
        for (text, nanos) in [
            ("-90s", 90_000_000_000),
            ("-1.5h", 5_400_000_000_000),
            ("-250ms", 250_000_000),
            ("-0.000000001s", 1),
            ("-2m", 120_000_000_000),
            ("-7d", 604_800_000_000_000),
            ("-1w", 604_800_000_000_000),
        ] {
            assert_eq!(ago(text), nanos, "{text}");
        }
    }

    #[test]
    fn numbers_and_names() {
        assert_eq!(parse("lsn:18446744073709551615"), Moment::Lsn(u64::MAX));
        // What snapshots are called by themselves is a name, not a time; so is anything without a
        // colon.
        for name in ["before-drop", "20261122T031415Z", "2026-11-22", "lsn", "9", "v1.2_x"] {
            assert_eq!(parse(name), Moment::Name(name.into()));
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for bad in [
            "",
            "-",
            "-s",
            "-90",
            "-90x",
            "-.5s",
            "-1.s",
            "-1.2.3s",
            "--1s",
            "-1e3s",
            "-9999999999999s",
            "lsn:",
            "lsn:-1",
            "lsn:+1",
            "lsn:18446744073709551616",
            "10:00",
            "2026-11-21T10:00:00",
            "2026-13-21T10:00:00Z",
            "a:b",
            ".x",
            "a b",
            "a@b",
            "é",
        ] {
            let error = bad.parse::<Moment>().unwrap_err().to_string();
            assert!(error.contains("-90s"), "{bad}: {error}");
        }
    }

    #[test]
    fn what_is_printed_is_read_again() {
        for text in ["2026-11-21T10:00:00.5Z", "-90s", "-0.25s", "lsn:7", "before-drop"] {
            assert_eq!(parse(text).to_string(), text);
            assert_eq!(parse(&parse(text).to_string()), parse(text));
        }
        assert_eq!(parse("-1.5h").to_string(), "-5400s");
    }
}
