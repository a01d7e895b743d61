//! Clones at the addresses of writable snapshots ([`crate::writable_snapshots`]): how a snapshot's
//! labels name its clone, and how the server finds the clone.

use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prefix of the keys of labels that are reserved for the server.
const OWN: &str = "hindcast.";
/// Key of the label with the UUID of the clone.
pub(crate) const CLONE: &str = "hindcast.clone";

/// Returns the clone at a snapshot's address, if there is one.
pub(crate) fn clone_behind(pool: &Pool, snapshot: &SnapshotInfo) -> Option<VolumeInfo> {
    let id = snapshot.labels.get(CLONE)?;
    if let Some(clone) = clone_by_default_name(pool, snapshot) {
        return Some(clone);
    }
    pool.volumes().into_iter().find(|volume| volume.uuid.to_string() == *id)
}

/// Returns the clone at a snapshot's address, if the clone has its default name. The time for that
/// does not depend on the number of volumes.
pub(crate) fn clone_by_default_name(pool: &Pool, snapshot: &SnapshotInfo) -> Option<VolumeInfo> {
    let id = snapshot.labels.get(CLONE)?;
    let found = pool.volume(&default_name(&snapshot.volume, &snapshot.name)).ok()?;
    (found.uuid.to_string() == *id).then_some(found)
}

/// Returns the default name of a clone that is created for a snapshot's address.
pub(crate) fn default_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}.{snapshot}")
}

/// Opens the clone at a snapshot's address for a client, if there is one. With `read_only` it
/// refuses writes even if the clone accepts them.
pub(crate) fn open_behind(
    pool: &Arc<Pool>,
    snapshot: &SnapshotInfo,
    read_only: bool,
) -> Result<Option<Arc<Volume>>> {
    let Some(clone) = clone_behind(pool, snapshot) else { return Ok(None) };
    let opened = pool.open_volume(&clone.name, clone.read_only || read_only)?;
    if opened.info().uuid != clone.uuid {
        // It was renamed in between, and another volume has its name: nothing may be written to
        // that.
        let text =
            format!("open {}@{}: its clone is being renamed; try again", snapshot.volume, snapshot.name);
        return Err(Error::new(ErrorKind::Busy, text));
    }
    Ok(Some(opened))
}

/// Returns the labels of a snapshot that users and programs have set.
pub(crate) fn labels(snapshot: &SnapshotInfo) -> BTreeMap<String, String> {
    let theirs = |(key, _): &(&String, &String)| !key.starts_with(OWN);
    snapshot.labels.iter().filter(theirs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Refuses labels whose keys are reserved for the server.
pub(crate) fn check_labels<'a>(mut keys: impl Iterator<Item = &'a String>) -> Result<()> {
    keys.find(|key| key.starts_with(OWN)).map_or(Ok(()), |key| {
        let text = format!(
            "label the snapshot: keys that begin with {OWN} are reserved for the server; choose another key than {key}"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    })
}

/// Returns the addresses of the snapshots at which clients see a volume.
pub(crate) fn addresses(pool: &Pool, volume: &VolumeInfo) -> Vec<String> {
    let id = volume.uuid.to_string();
    let in_front = |s: &SnapshotInfo| s.labels.get(CLONE) == Some(&id);
    let snapshots = pool.all_snapshots().into_iter().filter(in_front);
    snapshots.map(|s| format!("{}@{}", s.volume, s.name)).collect()
}
