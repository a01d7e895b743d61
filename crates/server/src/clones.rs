//! Clones that stand behind the addresses of writable snapshots
//! ([`crate::writable_snapshots`]): how a snapshot's labels name its clone, and how the clone is
//! found.

use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
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
    pool.volumes().into_iter().find(|volume| volume.uuid.to_string() == *id)
}

/// The clone that stands behind a snapshot's address, if it has its default name. It is found at
/// once, however many volumes there are.
pub(crate) fn clone_by_default_name(pool: &Pool, snapshot: &SnapshotInfo) -> Option<VolumeInfo> {
    let id = snapshot.labels.get(CLONE)?;
    let found = pool.volume(&default_name(&snapshot.volume, &snapshot.name)).ok()?;
    (found.uuid.to_string() == *id).then_some(found)
}

/// What a clone that was made to stand behind a snapshot's address is called.
pub(crate) fn default_name(volume: &str, snapshot: &str) -> String {
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
    let id = volume.uuid.to_string();
    let in_front = |s: &SnapshotInfo| s.labels.get(CLONE) == Some(&id);
    let snapshots = pool.all_snapshots().into_iter().filter(in_front);
    snapshots.map(|s| format!("{}@{}", s.volume, s.name)).collect()
}
