//! Writable snapshots. At the address of a writable snapshot, clients reach a clone of it. The
//! snapshot keeps the content that it froze: rollback, differences, streams and other clones still
//! use the snapshot.
//!
//! The snapshot's labels name the clone, so the link survives restarts, and renaming of the volume,
//! the snapshot and the clone. If the clone is deleted, the address shows the snapshot again.

use crate::app::App;
use crate::clones::{CLONE, clone_behind, default_name};
use crate::iscsi::Making;
use hindcast_api::Inherited;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use std::sync::Arc;
use uuid::Uuid;

impl App {
    /// Shows a clone at a snapshot's address. `clone` is the name of an existing clone of the
    /// snapshot, or of a new one. `None`: a new one with the name `VOLUME.SNAPSHOT`. Fails with
    /// [`ErrorKind::Busy`] while initiators are logged in to a target that shows the snapshot.
    /// Fails with it also while NBD clients use the snapshot, unless `force` disconnects them.
    /// Returns the access settings that a new clone copied from the volume.
    pub(crate) fn make_writable(
        &self,
        volume: &str,
        snapshot: &str,
        clone: Option<&str>,
        force: bool,
    ) -> Result<(SnapshotInfo, Option<Inherited>)> {
        let _one_at_a_time = self.changing_writable.lock();
        let found = self.pool.snapshot(volume, snapshot)?;
        if let Some(behind) = clone_behind(&self.pool, &found) {
            return match clone {
                Some(other) if other != behind.name => Err(conflict(
                    &found,
                    &format!("the clone {} is already exported at its address", behind.name),
                )),
                _ => Ok((found, None)),
            };
        }
        self.check_idle(&found, &found.uuid, found.handles, force)?;
        let (behind, is_new, inherited) = self.clone_for(&found, clone)?;
        let labelled = self.stand(&found, Some(&behind), &found.uuid).inspect_err(|_| {
            // The clone was not reported to the client.
            if is_new && let Err(error) = self.iscsi.delete_volume(&behind.name, false) {
                tracing::warn!(clone = behind.name, %error, "a clone that is not needed could not be deleted");
            }
        })?;
        tracing::info!(
            event = "snapshot.changed",
            volume,
            snapshot,
            clone = behind.name,
            "snapshot made writable"
        );
        Ok((labelled, inherited))
    }

    /// Shows the content that a snapshot froze at its address again. The clone stays as a volume.
    /// Fails with [`ErrorKind::Busy`] under the conditions of
    /// [`make_writable`](Self::make_writable).
    pub(crate) fn make_read_only(&self, volume: &str, snapshot: &str, force: bool) -> Result<SnapshotInfo> {
        let _one_at_a_time = self.changing_writable.lock();
        let found = self.pool.snapshot(volume, snapshot)?;
        let Some(behind) = clone_behind(&self.pool, &found) else { return Ok(found) };
        self.check_idle(&found, &behind.uuid, behind.handles, force)?;
        let changed = self.stand(&found, None, &behind.uuid)?;
        tracing::info!(event = "snapshot.changed", volume, snapshot, "snapshot made read-only");
        Ok(changed)
    }

    /// Returns the clone for a snapshot's address, whether it was created for that, and the access
    /// settings that it copied.
    fn clone_for(
        &self,
        snapshot: &SnapshotInfo,
        wanted: Option<&str>,
    ) -> Result<(VolumeInfo, bool, Option<Inherited>)> {
        let SnapshotInfo { volume, name, .. } = snapshot;
        let clone = wanted.map_or_else(|| default_name(volume, name), str::to_owned);
        match (self.pool.volume(&clone), wanted) {
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {
                let making = [Making { name: &clone, of: Some(volume) }];
                let make = |pool: &Arc<Pool>| pool.clone_volume(volume, name, &clone);
                let (made, mut inherited) = self.iscsi.make_volumes(&making, make)?;
                Ok((made, true, inherited.pop().flatten()))
            }
            (Err(error), _) => Err(error),
            (Ok(_), None) => {
                Err(conflict(snapshot, &format!("the volume {clone} exists; name another clone")))
            }
            // Its own volume rests on it, too, once it was rolled back to it.
            (Ok(known), Some(_))
                if known.name != *volume
                    && self.pool.branch_bases().get(&known.branch) == Some(&snapshot.of) =>
            {
                Ok((known, false, None))
            }
            (Ok(_), Some(_)) => {
                Err(conflict(snapshot, &format!("the volume {clone} is not a clone of the snapshot")))
            }
        }
    }

    /// Changes the content at a snapshot's address. It fails if an initiator has just logged in to
    /// `old`, the content that the address shows now. NBD clients that connect later find the new
    /// content.
    fn stand(
        &self,
        snapshot: &SnapshotInfo,
        behind: Option<&VolumeInfo>,
        old: &Uuid,
    ) -> Result<SnapshotInfo> {
        let SnapshotInfo { volume, name, .. } = snapshot;
        let label = |id: Option<&str>| self.pool.label_snapshot(volume, name, &[(CLONE, id)]);
        let id = behind.map(|behind| behind.uuid.to_string());
        let changed = label(id.as_deref())?;
        if self.iscsi.is_past_in_use(old) {
            label(snapshot.labels.get(CLONE).map(String::as_str))?;
            return Err(logged_in(snapshot));
        }
        self.nbd.disconnect(&format!("{volume}@{name}"));
        Ok(changed)
    }

    /// Refuses while clients use the snapshot, because no client's data may change unnoticed. An
    /// initiator would log in again automatically, and mistake one content for the other.
    fn check_idle(&self, snapshot: &SnapshotInfo, shown: &Uuid, handles: u64, force: bool) -> Result<()> {
        if self.iscsi.is_past_in_use(shown) {
            return Err(logged_in(snapshot));
        }
        if handles == 0 || force {
            return Ok(());
        }
        let SnapshotInfo { volume, name, .. } = snapshot;
        let text = format!(
            "change the access of {volume}@{name}: it is in use ({handles} handles); --force disconnects NBD clients"
        );
        Err(Error::new(ErrorKind::Busy, text))
    }
}

fn conflict(snapshot: &SnapshotInfo, why: &str) -> Error {
    let SnapshotInfo { volume, name, .. } = snapshot;
    Error::new(ErrorKind::Conflict, format!("make {volume}@{name} writable: {why}"))
}

fn logged_in(snapshot: &SnapshotInfo) -> Error {
    let SnapshotInfo { volume, name, .. } = snapshot;
    let text =
        format!("change the access of {volume}@{name}: initiators are logged in to it; log them out first");
    Error::new(ErrorKind::Busy, text)
}
