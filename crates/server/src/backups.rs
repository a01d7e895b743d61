//! Backups of the pool's metadata ([`Backups`]). The server makes a backup at an interval, at each
//! clean stop, and on request.

use crate::periodic::Worker;
use hindcast_engine::backup::{BackupInfo, find};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, Result};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Name of the directory of backups, in the data directory.
pub const DIRECTORY: &str = "metadata";
/// Age of the newest backup at which the server warns.
const OLD: SignedDuration = SignedDuration::from_hours(48);
/// Interval between checks whether a backup is due, and between attempts after a failure.
const LOOK: Duration = Duration::from_secs(600);

/// The state of the server's backups.
pub(crate) struct Backups {
    directory: PathBuf,
    keep: usize,
    /// Interval between backups. `None`: the server makes backups only on request and at a stop.
    interval: Option<Duration>,
    newest: Mutex<Newest>,
    started: Timestamp,
}

/// A directory for a backup.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Path by which the directory is opened.
    pub(crate) way: &'a Path,
    /// Path of the directory in messages.
    pub(crate) shown: &'a Path,
}

#[derive(Default)]
struct Newest {
    made: Option<Timestamp>,
    /// Why the last attempt failed. `None`: it succeeded.
    failure: Option<String>,
}

impl Backups {
    /// Makes a value, and finds the newest backup in the data directory.
    pub(crate) fn open(data: &Path, keep: usize, interval: Option<Duration>) -> Backups {
        let directory = data.join(DIRECTORY);
        let made = newest_in(&directory);
        let newest = Mutex::new(Newest { made, failure: None });
        Backups { directory, keep, interval, newest, started: Timestamp::now() }
    }

    /// Makes a backup in `place`. `None`: in the data directory.
    pub(crate) fn make(&self, pool: &Pool, place: Option<Place<'_>>) -> Result<BackupInfo> {
        let place = place.unwrap_or(Place { way: &self.directory, shown: &self.directory });
        let made = FileDir::create(place.way)
            .map_err(|e| Error::io(format!("create {}", place.shown.display()), e))
            .and_then(|dir| pool.backup_metadata(&dir, self.keep));
        let mut newest = self.newest.lock();
        match &made {
            Ok(info) => {
                *newest = Newest { made: Some(Timestamp::now()), failure: None };
                tracing::info!(
                    bytes = info.bytes,
                    pvs = info.pvs,
                    sequence = info.sequence,
                    "the metadata was backed up"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "the metadata could not be backed up");
                newest.failure = Some(error.to_string());
            }
        }
        made
    }

    /// Returns whether a backup is due.
    fn is_due(&self, now: Timestamp) -> bool {
        let Some(interval) = self.interval else { return false };
        let made = self.newest.lock().made;
        // After a clock that was set back the age is unknown.
        made.is_none_or(|made| made > now || now.duration_since(made).unsigned_abs() >= interval)
    }

    /// Returns a description of the problem if the newest backup is too old.
    pub(crate) fn problem(&self, now: Timestamp) -> Option<String> {
        let newest = self.newest.lock();
        let since = newest.made.unwrap_or(self.started);
        let age = now.duration_since(since);
        if age < OLD {
            return None;
        }
        let age = match newest.made {
            Some(_) => format!("the newest backup of the metadata is {} hours old", age.as_hours()),
            None => "there is no backup of the metadata".to_owned(),
        };
        Some(match &newest.failure {
            Some(why) => format!("{age}; the last attempt failed: {why}"),
            None => age,
        })
    }
}

/// Returns the time of the newest backup in a directory.
fn newest_in(directory: &Path) -> Option<Timestamp> {
    let dir = FileDir::new(directory);
    let names = dir.list().ok()?;
    let made = names.iter().filter_map(|name| Some(find(&dir, name).ok()?.info.time)).max()?;
    Timestamp::from_nanosecond(made.into()).ok()
}

/// Starts the thread that makes a backup when one is due.
pub(crate) fn start(pool: Arc<Pool>, backups: Arc<Backups>) -> io::Result<Worker> {
    Worker::start("backups", LOOK, move || {
        if backups.is_due(Timestamp::now()) {
            // A failure is kept for the health, and the next look tries again.
            let _ = backups.make(&pool, None);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_is_measured_from_the_newest_or_from_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let backups = Backups::open(dir.path(), 3, Some(Duration::from_secs(86_400)));
        let now = Timestamp::now();
        let hours = |n| now + SignedDuration::from_hours(n);
        assert!(backups.is_due(now) && backups.problem(hours(47)).is_none());
        assert_eq!(backups.problem(hours(49)).as_deref(), Some("there is no backup of the metadata"));
        backups.newest.lock().made = Some(now);
        assert!(!backups.is_due(hours(23)) && backups.is_due(hours(25)) && backups.is_due(hours(-1)));
        backups.newest.lock().failure = Some("full".into());
        let problem = backups.problem(hours(50)).unwrap();
        assert_eq!(
            problem,
            "the newest backup of the metadata is 50 hours old; the last attempt failed: full"
        );
        assert!(!Backups::open(dir.path(), 3, None).is_due(now));
    }
}
