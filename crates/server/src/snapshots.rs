//! Operations on snapshots that requests and schedules share: creation, deletion and rollback.

use crate::app::App;
use crate::clones::{addresses, check_labels};
use crate::convert::time;
use crate::freeze::{FreezeError, Hooks, frozen};
use crate::{moments, realtime};
use hindcast_api::{CreateSnapshots, NewSnapshot, RollBack};
use hindcast_engine::pool::{SnapshotInfo, Undo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::sync::Arc;

/// Converts seconds of a request to nanoseconds.
pub(crate) fn nanoseconds(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

/// Returns a time in the form that names have: `20261122T031415Z`.
pub(crate) fn time_name(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string()
}

impl App {
    /// Creates snapshots at one instant, between the commands that are configured for the volumes.
    pub(crate) fn create_snapshots(&self, new: &CreateSnapshots) -> Result<Vec<SnapshotInfo>> {
        check_labels(new.labels.keys())?;
        let hooks = match new.no_hooks || new.at.is_some() {
            true => Vec::new(),
            false => new.snapshots.iter().filter_map(|s| self.hooks.get(&s.volume)).collect(),
        };
        // Commands take their time, and are no more urgent than others.
        let mut created = match hooks.is_empty() {
            _ if new.at.is_some() => self.keep_moment(new)?,
            true => self.create_now(&new.snapshots)?,
            false => realtime::lowered(|| {
                // Before guests are frozen.
                self.pool.make_way()?;
                self.create_within(&hooks, &new.snapshots)
            })?,
        };
        let labels: Vec<_> =
            new.labels.iter().map(|(key, value)| (key.as_str(), Some(value.as_str()))).collect();
        if !labels.is_empty() {
            for snapshot in &mut created {
                *snapshot = self.pool.label_snapshot(&snapshot.volume, &snapshot.name, &labels)?;
            }
        }
        Ok(created)
    }

    /// Creates snapshots between commands. The commands of the first volume are outermost.
    fn create_within(&self, hooks: &[&Hooks], new: &[NewSnapshot]) -> Result<Vec<SnapshotInfo>> {
        let Some((outer, inner)) = hooks.split_first() else {
            return self.create_now(new);
        };
        match frozen(outer, || self.create_within(inner, new)) {
            Ok(created) => Ok(created),
            Err(FreezeError::Work(error)) => Err(error),
            Err(FreezeError::Before(why)) => Err(Error::new(ErrorKind::Io, why)),
            Err(FreezeError::Late(created)) => {
                self.take_back(&created);
                let why = "create snapshots: the freeze timeout ended before they were taken";
                Err(Error::new(ErrorKind::Busy, why))
            }
            Err(FreezeError::After(created, why)) => {
                // The snapshots are good; what did not go well is told all the same.
                let names: Vec<String> = created.iter().map(|s| format!("{}@{}", s.volume, s.name)).collect();
                Err(Error::new(ErrorKind::Io, format!("{why}; {} was taken", names.join(" "))))
            }
        }
    }

    /// Keeps a past moment as snapshots. A mark is looked up in the first volume. Snapshots without
    /// a name get the time of the moment.
    fn keep_moment(&self, new: &CreateSnapshots) -> Result<Vec<SnapshotInfo>> {
        let (Some(first), Some(at)) = (new.snapshots.first(), &new.at) else {
            return Err(Error::new(ErrorKind::Invalid, "create snapshots: name at least one volume"));
        };
        let moment = moments::moment(&self.pool, &first.volume, at)?;
        let point = self.pool.resolve(&first.volume, &moment)?;
        let by_time = time_name(time(point.time));
        let named = new.snapshots.iter().map(|s| (s.volume.as_str(), s.name.as_deref().unwrap_or(&by_time)));
        let kept = realtime::lowered(|| self.pool.keep_moment(&named.collect::<Vec<_>>(), &moment))?;
        for snapshot in &kept {
            tracing::info!(
                event = "moment.kept",
                volume = snapshot.volume,
                name = snapshot.name,
                lsn = point.lsn.0,
                "moment kept"
            );
        }
        Ok(kept)
    }

    /// Deletes snapshots that were created but are not reported to the client.
    fn take_back(&self, created: &[SnapshotInfo]) {
        for snapshot in created {
            if let Err(error) = self.pool.delete_snapshots(&snapshot.volume, &[&snapshot.name]) {
                tracing::warn!(volume = snapshot.volume, name = snapshot.name, %error, "a late snapshot could not be deleted");
            }
        }
    }

    fn create_now(&self, new: &[NewSnapshot]) -> Result<Vec<SnapshotInfo>> {
        let now = Timestamp::now();
        // Finer where one of this second exists already.
        let taken = |name: &str| {
            let unnamed = new.iter().filter(|s| s.name.is_none());
            unnamed.into_iter().any(|s| self.pool.is_taken(&s.volume, name).unwrap_or(false))
        };
        let mut by_time = time_name(now);
        if taken(&by_time) {
            by_time = now.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S.%6fZ").to_string();
        }
        let name = |s: &NewSnapshot| s.name.clone().unwrap_or_else(|| by_time.clone());
        let named: Vec<(&str, String)> = new.iter().map(|s| (s.volume.as_str(), name(s))).collect();
        let wanted: Vec<(&str, &str)> = named.iter().map(|(volume, name)| (*volume, name.as_str())).collect();
        let create = || self.pool.create_snapshots(&wanted);
        // It may have to make room itself, which is work.
        let created = match self.pool.must_help() {
            true => realtime::lowered(create)?,
            false => {
                let _raised = realtime::raise();
                create()?
            }
        };
        for snapshot in &created {
            tracing::info!(
                event = "snapshot.created",
                volume = snapshot.volume,
                name = snapshot.name,
                "snapshot created"
            );
        }
        Ok(created)
    }

    /// Returns a snapshot. The error tells what else has the name.
    pub(crate) fn snapshot(&self, volume: &str, name: &str) -> Result<SnapshotInfo> {
        let found = self.pool.snapshot(volume, name);
        found.map_err(|error| moments::no_snapshot(&self.pool, volume, name, error))
    }

    /// Deletes snapshots of a volume, all or none.
    pub(crate) fn delete_snapshots(&self, volume: &str, names: &[&str], force: bool) -> Result<()> {
        self.iscsi.delete_snapshots(volume, names, force).map_err(|error| {
            let missing = names.iter().find(|name| self.pool.snapshot(volume, name).is_err());
            match missing {
                Some(name) => moments::no_snapshot(&self.pool, volume, name, error),
                None => error,
            }
        })?;
        tracing::info!(
            event = "snapshot.deleted",
            volume,
            count = names.len(),
            first = names.first(),
            "snapshots deleted"
        );
        Ok(())
    }

    /// Rolls a volume back to a snapshot. While clients use the volume, it fails, or with `force`
    /// notifies the clients.
    pub(crate) fn roll_back(
        &self,
        volume: &str,
        snapshot: &str,
        how: &RollBack,
    ) -> Result<(VolumeInfo, SnapshotInfo)> {
        let undo = how.undo.clone().unwrap_or_else(|| {
            let at = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S.%3fZ").to_string();
            format!("before-rollback-{at}")
        });
        let kept = Undo { name: &undo, keep: how.undo_keep_seconds.map(nanoseconds) };
        let roll =
            |pool: &Arc<hindcast_engine::pool::Pool>| pool.roll_back(volume, snapshot, kept, how.force);
        let undo = self.iscsi.roll_back(&[volume], how.force, roll)?;
        let info = self.pool.volume(volume)?;
        self.disconnect_nbd(&info);
        tracing::info!(
            event = "volume.rolled-back",
            volume,
            snapshot,
            undo = undo.name,
            force = how.force,
            "volume rolled back"
        );
        Ok((info, undo))
    }

    /// Disconnects the NBD clients of a volume whose content was replaced. Their devices then
    /// report errors, and new connections see the new content.
    pub(crate) fn disconnect_nbd(&self, volume: &VolumeInfo) {
        self.nbd.disconnect(&volume.name);
        addresses(&self.pool, volume).iter().for_each(|address| self.nbd.disconnect(address));
    }

    /// Sets whether NBD serves a volume. If it no longer does, the existing connections end.
    pub(crate) fn set_nbd(&self, volume: &VolumeInfo, nbd: bool) -> Result<()> {
        self.iscsi.set_nbd(&volume.uuid, nbd)?;
        if !nbd {
            self.nbd.disconnect_volume(&volume.name);
            addresses(&self.pool, volume).iter().for_each(|address| self.nbd.disconnect(address));
        }
        Ok(())
    }

    /// Refuses if the volume has a history, so that a user does not delete it by mistake.
    pub(crate) fn check_without_history(&self, volume: &str) -> Result<()> {
        let info = self.pool.cdp(volume)?;
        if info.settings.is_none() && info.from.is_none() {
            return Ok(());
        }
        // What waits for destage belongs to it.
        let past = self.pool.history(volume, 1)?;
        let (records, marks) = (past.buckets.iter().map(|b| b.records).sum::<u64>(), past.marks.len());
        if records == 0 && marks == 0 {
            return Ok(());
        }
        let message = format!(
            "delete volume {volume}: it has a history of {records} records and {marks} marks; delete that too with --force"
        );
        Err(Error::new(ErrorKind::Conflict, message))
    }
}

/// Returns the time at which a snapshot was taken.
pub(crate) fn taken(snapshot: &SnapshotInfo) -> Timestamp {
    time(snapshot.created)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_names_are_plain() {
        let at: Timestamp = "2026-11-22T03:14:15.999Z".parse().unwrap();
        assert_eq!(time_name(at), "20261122T031415Z");
    }
}
