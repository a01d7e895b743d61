//! The stored form of a schedule ([`Plan`]), and the checks of its values.

use hindcast_api::Retention;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use uuid::Uuid;

/// The maximum number of snapshots that the engine takes or deletes in one operation.
pub(crate) const MAX_AT_ONCE: usize = 200;

/// The permitted interval between the snapshots of one schedule, in seconds: 10 seconds to 31 days.
const EVERY: std::ops::RangeInclusive<u64> = 10..=31 * 24 * 3600;
/// The longest name or prefix of a schedule, in bytes. A snapshot's name must hold a prefix and a
/// time.
const MAX_NAME: usize = 64;
pub(crate) const MAX_SCHEDULES: usize = 1000;
/// The maximum number of volumes of one schedule. One operation takes the snapshots of all of them.
pub(crate) const MAX_VOLUMES: usize = MAX_AT_ONCE;
/// A schedule, as the file of schedules stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The prefix of its snapshots' names. It is unique among all schedules.
    pub(crate) prefix: String,
    pub(crate) volumes: Vec<Uuid>,
    pub(crate) every: u64,
    pub(crate) keep: Retention,
    pub(crate) paused: bool,
    /// When the schedule was created or last resumed. Runs that were due before are not missed
    /// runs.
    pub(crate) since: Timestamp,
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
}
