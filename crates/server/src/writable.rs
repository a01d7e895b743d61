//! Writable snapshots: behind the address of one stands a clone of it, which is what clients reach by that address. The snapshot
//! keeps what it froze: rollback, differences, streams and other clones are of that.
//!
//! Which clone it is, the snapshot's labels tell, so it survives renaming of everything and restarts. A clone that was deleted
//! since stands behind nothing: the address shows the snapshot again.

use crate::http::App;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::world::uuid_text;
use hindcast_engine::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// Labels whose keys begin like this are the server's own.
const OWN: &str = "hindcast.";
/// The label that has the identity of the clone.
const CLONE: &str = "hindcast.clone";

/// The clone that stands behind a snapshot's address.
pub(crate) fn clone_behind(pool: &Pool, snapshot: &SnapshotInfo) -> Option<VolumeInfo> {
    let id = snapshot.labels.get(CLONE)?;
    pool.volumes().into_iter().find(|volume| uuid_text(&volume.uuid) == *id)
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
            "label the snapshot: {key} is the server's own; choose a key that does not begin with {OWN}"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    })
}

impl App {
    /// Puts a clone behind a snapshot's address: `clone`, or else `VOLUME.SNAPSHOT`, which is made if it is not there.
    /// [`ErrorKind::Busy`] while clients read the snapshot, unless `force`: NBD clients are disconnected then, and initiators that
    /// are logged in go on to read what it froze.
    pub(crate) fn make_writable(
        &self,
        volume: &str,
        snapshot: &str,
        clone: Option<&str>,
        force: bool,
    ) -> Result<SnapshotInfo> {
        let _one_at_a_time = self.changing_writable.lock();
        let found = self.pool.snapshot(volume, snapshot)?;
        let conflict = |why: String| {
            Error::new(ErrorKind::Conflict, format!("make {volume}@{snapshot} writable: {why}"))
        };
        if let Some(behind) = clone_behind(&self.pool, &found) {
            return match clone {
                Some(other) if other != behind.name => {
                    Err(conflict(format!("{} stands behind it", behind.name)))
                }
                _ => Ok(found),
            };
        }
        check_idle(volume, snapshot, found.handles, force)?;
        let name = clone.map_or_else(|| format!("{volume}.{snapshot}"), str::to_owned);
        let (behind, is_new) = match self.pool.volume(&name) {
            // Its own volume rests on it, too, once it was rolled back to it.
            Ok(known)
                if known.name != volume && self.pool.branch_bases().get(&known.branch) == Some(&found.of) =>
            {
                (known, false)
            }
            Ok(_) => return Err(conflict(format!("the volume {name} is no clone of it; name another one"))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (self.pool.clone_volume(volume, snapshot, &name)?, true)
            }
            Err(error) => return Err(error),
        };
        let id = uuid_text(&behind.uuid);
        let labelled =
            self.pool.label_snapshot(volume, snapshot, &[(CLONE, Some(&id))]).inspect_err(|_| {
                // Nobody was told of it.
                if is_new && let Err(error) = self.pool.delete_volume(&name, false) {
                    tracing::warn!(clone = name, %error, "a clone too many");
                }
            })?;
        self.nbd.disconnect(&format!("{volume}@{snapshot}"));
        tracing::info!(volume, snapshot, clone = name, "snapshot made writable");
        Ok(labelled)
    }

    /// Has a snapshot's address show what it froze again. The clone stays, as a volume.
    pub(crate) fn make_read_only(&self, volume: &str, snapshot: &str, force: bool) -> Result<SnapshotInfo> {
        let _one_at_a_time = self.changing_writable.lock();
        let found = self.pool.snapshot(volume, snapshot)?;
        if !found.labels.contains_key(CLONE) {
            return Ok(found);
        }
        if let Some(behind) = clone_behind(&self.pool, &found) {
            let initiators = u64::from(self.iscsi.in_use(&behind.uuid));
            check_idle(volume, snapshot, behind.handles.max(initiators), force)?;
        }
        let changed = self.pool.label_snapshot(volume, snapshot, &[(CLONE, None)])?;
        self.nbd.disconnect(&format!("{volume}@{snapshot}"));
        tracing::info!(volume, snapshot, "snapshot made read-only");
        Ok(changed)
    }
}

fn check_idle(volume: &str, snapshot: &str, handles: u64, force: bool) -> Result<()> {
    if handles == 0 || force {
        return Ok(());
    }
    let text =
        format!("change what {volume}@{snapshot} shows: {handles} clients use it; force to cut them off");
    Err(Error::new(ErrorKind::Busy, text))
}
