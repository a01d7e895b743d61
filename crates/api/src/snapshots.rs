//! Requests and responses about snapshots, clones and rollback.

use crate::client::{Client, ClientError, segment};
use crate::{Inherited, Method, Volume};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Name of the volume to which the snapshot belongs.
    pub volume: String,
    /// Name of the snapshot, unique among the volume's snapshots. `VOLUME@NAME` is its address and
    /// the name of its exports.
    pub name: String,
    /// UUID of the snapshot. It stays the same when the snapshot is renamed.
    pub uuid: String,
    /// Size of the volume when the snapshot was taken, in bytes.
    pub size: u64,
    /// Time at which the snapshot was taken.
    pub created: Timestamp,
    /// Labels of the snapshot: keys and values that users and programs have set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of the clone that the exports of this snapshot show, if the snapshot was made writable.
    /// Rollbacks, differences, streams and new clones still use the content that the snapshot
    /// froze. Absent if the snapshot is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<String>,
    /// Access settings that a new writable clone copied from the volume. Only the response to the
    /// request that created the clone has this field. Absent if there was nothing to copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Inherited>,
    /// Time at which the server deletes the snapshot automatically, unless the snapshot is
    /// protected or in use then. Absent if the snapshot does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Whether the snapshot is protected from deletion: by request, by a schedule, and to free
    /// space.
    pub protected: bool,
    /// Address of the newest existing snapshot that precedes this one in its history. Absent if
    /// there is none.
    pub parent: Option<String>,
    /// Address of the moment from which this was recovered, or to which it was rolled back, if that
    /// lies between `parent` and this. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_moment: Option<String>,
    /// Names of the volumes whose content depends on this snapshot: its clones, and its own volume
    /// after a rollback to it.
    pub clones: Vec<String>,
    /// Number of open handles. Connections to the snapshot's exports hold them.
    pub handles: u64,
    /// Bytes that only this snapshot uses, as of the last destage. Deletion of the snapshot frees
    /// them. Absent directly after the snapshot was taken.
    pub unique: Option<u64>,
    /// Bytes that this snapshot shares with other snapshots or with the volume's current content,
    /// as of the last destage. Absent directly after the snapshot was taken.
    pub shared: Option<u64>,
}

impl Snapshot {
    /// Returns the address of the snapshot, `VOLUME@NAME`.
    pub fn address(&self) -> String {
        format!("{}@{}", self.volume, self.name)
    }
}

/// Snapshots to take, all at one instant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshots {
    /// Volumes, and the names of their snapshots: 1 to 200 entries, each volume once.
    pub snapshots: Vec<NewSnapshot>,
    /// Past moment that the snapshots keep: a time, a time before now, the name of a mark or
    /// snapshot, or an LSN. The volumes need a history of that moment. Absent: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Labels for all of these snapshots.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Do not run the hooks: commands that the server is configured to run before and after a
    /// snapshot.
    #[serde(default)]
    pub no_hooks: bool,
}

/// A snapshot to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    /// Absent: the time, in the form `20261122T031415Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Changes to a snapshot. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSnapshot {
    /// New name: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels to set. A label whose value is null is removed. Other labels stay unchanged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Whether the snapshot is protected from deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// true: the snapshot's exports show a writable clone. false: they show the content that the
    /// snapshot froze, and the clone stays as a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<bool>,
    /// Name of the clone for `writable`: an existing clone of the snapshot, or a new volume.
    /// Absent: a new volume with the name `VOLUME.SNAPSHOT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone: Option<String>,
    /// Change `writable` while NBD clients use the snapshot's exports. The server disconnects these
    /// clients. While iSCSI initiators are logged in, the server refuses the change even with
    /// `force`.
    #[serde(default)]
    pub force: bool,
}

/// Snapshots of one volume to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSnapshots {
    /// Names of the snapshots. The server deletes all of them or none.
    pub names: Vec<String>,
    /// Delete snapshots even if a target has them as a LUN. The target loses the LUN.
    #[serde(default)]
    pub force: bool,
}

/// Request to roll a volume back to a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// Name of the snapshot that keeps the volume's content from before the rollback. Absent:
    /// `before-rollback-` and the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Seconds after which the server deletes that snapshot automatically. Absent: the snapshot
    /// stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_keep_seconds: Option<u64>,
    /// Roll back even while clients use the volume. The server disconnects NBD clients and sends a
    /// unit attention to iSCSI initiators.
    #[serde(default)]
    pub force: bool,
}

/// Result of a rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// The volume after the rollback.
    pub volume: Volume,
    /// Snapshot of the volume's content from before the rollback. A rollback to this snapshot
    /// undoes the rollback.
    pub undo: Snapshot,
}

/// A clone to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateClone {
    /// Name of the new volume: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// How the clone preserves content that its own snapshots need. Absent: the method of the
    /// snapshot's volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
}

/// Splits an address, `VOLUME@SNAPSHOT`, into its two parts. Returns `None` if a part is missing.
pub fn split_address(address: &str) -> Option<(&str, &str)> {
    address.split_once('@').filter(|(volume, snapshot)| !volume.is_empty() && !snapshot.is_empty())
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str, snapshot: &str) -> String {
    format!("/volumes/{}/snapshots/{}", segment(volume), segment(snapshot))
}

/// Requests about snapshots, clones and rollback.
impl Client {
    /// Returns the snapshots of one volume, or of all volumes. They are sorted by volume, and those
    /// of one volume from the oldest to the newest.
    pub fn snapshots(&self, volume: Option<&str>) -> Result<Vec<Snapshot>> {
        match volume {
            Some(volume) => self.get(&format!("/volumes/{}/snapshots", segment(volume))),
            None => self.get("/snapshots"),
        }
    }

    /// Returns one snapshot.
    pub fn snapshot(&self, volume: &str, snapshot: &str) -> Result<Snapshot> {
        self.get(&route(volume, snapshot))
    }

    /// Takes snapshots, all at one instant.
    pub fn create_snapshots(&self, new: &CreateSnapshots) -> Result<Vec<Snapshot>> {
        self.send(hyper::Method::POST, "/snapshots", new)
    }

    /// Changes a snapshot.
    pub fn patch_snapshot(&self, volume: &str, snapshot: &str, patch: &PatchSnapshot) -> Result<Snapshot> {
        self.send(hyper::Method::PATCH, &route(volume, snapshot), patch)
    }

    /// Deletes snapshots of a volume, all or none.
    pub fn delete_snapshots(&self, volume: &str, which: &DeleteSnapshots) -> Result<()> {
        let path = format!("/volumes/{}/snapshots/delete", segment(volume));
        self.order(hyper::Method::POST, &path, which)
    }

    /// Rolls a volume back to a snapshot.
    pub fn roll_back(&self, volume: &str, snapshot: &str, how: &RollBack) -> Result<RolledBack> {
        self.send(hyper::Method::POST, &format!("{}/rollback", route(volume, snapshot)), how)
    }

    /// Creates a writable volume from a snapshot.
    pub fn create_clone(&self, volume: &str, snapshot: &str, new: &CreateClone) -> Result<Volume> {
        self.send(hyper::Method::POST, &format!("{}/clones", route(volume, snapshot)), new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_two_parts() {
        assert_eq!(split_address("db@a"), Some(("db", "a")));
        for bad in ["db", "@a", "db@", "@", ""] {
            assert_eq!(split_address(bad), None, "{bad}");
        }
    }
}
