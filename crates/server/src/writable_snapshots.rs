//! Writable snapshots. Behind the address of a writable snapshot stands a clone of it, and clients
//! reach the clone by that address. The snapshot keeps what it froze: rollback, differences,
//! streams and other clones still use the snapshot.
//!
//! The snapshot's labels name the clone, so the link survives restarts and renaming of everything.
//! If the clone was deleted since, the address shows the snapshot again.

use crate::http::App;
use crate::iscsi::Making;
use hindcast_api::Inherited;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::world::uuid_text;
use hindcast_engine::{Error, ErrorKind, Result, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels whose keys begin like this are the server's own.
const OWN: &str = "hindcast.";
/// The label that has the identity of the clone.
pub(crate) const CLONE: &str = "hindcast.clone";

/// The clone that stands behind a snapshot's address.
pub(crate) fn clone_behind(pool: &Pool, snapshot: &SnapshotInfo) -> Option<VolumeInfo> {
    let id = snapshot.labels.get(CLONE)?;
    if let Some(clone) = clone_by_default_name(pool, snapshot) {
        return Some(clone);
    }
    pool.volumes().into_iter().find(|volume| uuid_text(&volume.uuid) == *id)
}

/// The clone that stands behind a snapshot's address, if it has its default name. It is found at
/// once, however many volumes there are.
pub(crate) fn clone_by_default_name(pool: &Pool, snapshot: &SnapshotInfo) -> Option<VolumeInfo> {
    let id = snapshot.labels.get(CLONE)?;
    let found = pool.volume(&default_name(&snapshot.volume, &snapshot.name)).ok()?;
    (uuid_text(&found.uuid) == *id).then_some(found)
}

/// What a clone that was made to stand behind a snapshot's address is called.
fn default_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}.{snapshot}")
}

/// Opens it for a client, if there is one.
pub(crate) fn open_behind(pool: &Arc<Pool>, snapshot: &SnapshotInfo) -> Result<Option<Arc<Volume>>> {
    let Some(clone) = clone_behind(pool, snapshot) else { return Ok(None) };
    let opened = pool.open_volume(&clone.name, clone.read_only)?;
    if opened.info().uuid != clone.uuid {
        // It was renamed in between, and another volume has its name: nothing may be written to
        // that.
        let text =
            format!("open {}@{}: its clone is being renamed; try again", snapshot.volume, snapshot.name);
        return Err(Error::new(ErrorKind::Busy, text));
    }
    Ok(Some(opened))
}

/// The labels that people gave a snapshot.
pub(crate) fn labels(snapshot: &SnapshotInfo) -> BTreeMap<String, String> {
    let theirs = |(key, _): &(&String, &String)| !key.starts_with(OWN);
    snapshot.labels.iter().filter(theirs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Refuses labels that mean something to the server.
pub(crate) fn check_labels<'a>(mut keys: impl Iterator<Item = &'a String>) -> Result<()> {
    keys.find(|key| key.starts_with(OWN)).map_or(Ok(()), |key| {
        let text = format!(
            "label the snapshot: keys that begin with {OWN} are reserved for the server; choose another key than {key}"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    })
}

/// The addresses that a volume stands behind.
pub(crate) fn addresses(pool: &Pool, volume: &VolumeInfo) -> Vec<String> {
    let id = uuid_text(&volume.uuid);
    let in_front = |s: &SnapshotInfo| s.labels.get(CLONE) == Some(&id);
    let snapshots = pool.all_snapshots().into_iter().filter(in_front);
    snapshots.map(|s| format!("{}@{}", s.volume, s.name)).collect()
}

impl App {
    /// Puts a clone behind a snapshot's address. `clone` names it: an existing clone of the
    /// snapshot, or a new one. Without `clone` a new one is called `VOLUME.SNAPSHOT`. Fails with
    /// [`ErrorKind::Busy`] while initiators are logged in to a target that shows the snapshot, and
    /// while clients read it, unless `force` has NBD clients disconnected. Tells what a new clone
    /// took over of the volume's access.
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
        tracing::info!(volume, snapshot, clone = behind.name, "snapshot made writable");
        Ok((labelled, inherited))
    }

    /// Has a snapshot's address show what it froze again. The clone stays, as a volume. Refused
    /// like the other way.
    pub(crate) fn make_read_only(&self, volume: &str, snapshot: &str, force: bool) -> Result<SnapshotInfo> {
        let _one_at_a_time = self.changing_writable.lock();
        let found = self.pool.snapshot(volume, snapshot)?;
        let Some(behind) = clone_behind(&self.pool, &found) else { return Ok(found) };
        self.check_idle(&found, &behind.uuid, behind.handles, force)?;
        let changed = self.stand(&found, None, &behind.uuid)?;
        tracing::info!(volume, snapshot, "snapshot made read-only");
        Ok(changed)
    }

    /// The clone that comes behind a snapshot's address; whether it was made for that; and what it
    /// took over.
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

    /// Changes what a snapshot's address shows, unless an initiator has just come to `old`, what it
    /// shows now. NBD clients that come later find the new one.
    fn stand(
        &self,
        snapshot: &SnapshotInfo,
        behind: Option<&VolumeInfo>,
        old: &[u8; 16],
    ) -> Result<SnapshotInfo> {
        let SnapshotInfo { volume, name, .. } = snapshot;
        let label = |id: Option<&str>| self.pool.label_snapshot(volume, name, &[(CLONE, id)]);
        let id = behind.map(|behind| uuid_text(&behind.uuid));
        let changed = label(id.as_deref())?;
        if self.iscsi.is_past_in_use(old) {
            label(snapshot.labels.get(CLONE).map(String::as_str))?;
            return Err(logged_in(snapshot));
        }
        self.nbd.disconnect(&format!("{volume}@{name}"));
        Ok(changed)
    }

    /// Refuses while clients use the snapshot: no client's data may change unnoticed. An initiator
    /// would log in again by itself, and take one content for the other.
    fn check_idle(&self, snapshot: &SnapshotInfo, shown: &[u8; 16], handles: u64, force: bool) -> Result<()> {
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
