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
    /// The volume that it is of.
    pub volume: String,
    /// Name, unique among the volume's snapshots. `VOLUME@NAME` is its address, and the name of its
    /// exports.
    pub name: String,
    /// Identity; survives renaming.
    pub uuid: String,
    /// Size of the volume at that instant, bytes.
    pub size: u64,
    /// The instant.
    pub created: Timestamp,
    /// What was noted about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of the clone that stands behind its address, where it was made writable: exports show
    /// that. Rollback, differences, streams and clones are of what the snapshot froze.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<String>,
    /// What the clone took over of the volume's access, where it was made for this and there was
    /// something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Inherited>,
    /// When it is deleted by itself, unless it is protected or in use then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Neither deleted by request, nor by a schedule, nor to make room.
    pub protected: bool,
    /// Address of the snapshot that comes before it in its line of history, if there is one in
    /// sight.
    pub parent: Option<String>,
    /// Names of the volumes whose content begins with it: clones, and its own volume after it was
    /// rolled back.
    pub clones: Vec<String>,
    /// Open handles: exports of it that clients use.
    pub handles: u64,
    /// Bytes that it holds alone: what its deletion gives back. As of the last destage; absent
    /// right after it was taken.
    pub unique: Option<u64>,
    /// Bytes that it shares with other snapshots, or with the volume as it is now.
    pub shared: Option<u64>,
}

impl Snapshot {
    /// `VOLUME@NAME`.
    pub fn address(&self) -> String {
        format!("{}@{}", self.volume, self.name)
    }
}

/// Snapshots to take, all at one instant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshots {
    /// Of which volumes, and under which names: 1 to 200, each volume once.
    pub snapshots: Vec<NewSnapshot>,
    /// What to note about all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Leave out the commands that the server's configuration runs before and after.
    #[serde(default)]
    pub no_hooks: bool,
}

/// A snapshot to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// The volume.
    pub volume: String,
    /// 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric; absent: the time, like
    /// `20261122T031415Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Changes to a snapshot. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSnapshot {
    /// New name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels to set; one that is null is removed, others stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Protect it from deletion, or no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Have its exports show a clone that can be written to, or again what it froze; the clone
    /// stays then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<bool>,
    /// Name of that clone: a clone of the snapshot, or a new one; absent: a new one,
    /// `VOLUME.SNAPSHOT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone: Option<String>,
    /// Also while NBD clients use its export: they are disconnected. While initiators are logged in
    /// it is refused.
    #[serde(default)]
    pub force: bool,
}

/// Snapshots of one volume to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSnapshots {
    /// Their names; all of them are deleted or none.
    pub names: Vec<String>,
    /// Also those that a target has as a LUN, which it loses.
    #[serde(default)]
    pub force: bool,
}

/// How to take a volume back to a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// Name of the snapshot that keeps what the volume is now; absent: `before-rollback-` and the
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Seconds after which that snapshot is deleted by itself; absent: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_keep_seconds: Option<u64>,
    /// Also while clients use the volume: NBD clients are disconnected, iSCSI initiators get a unit
    /// attention.
    #[serde(default)]
    pub force: bool,
}

/// What a rollback did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// The volume as it is now.
    pub volume: Volume,
    /// What it was before: rolling back to this undoes the rollback.
    pub undo: Snapshot,
}

/// A clone to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateClone {
    /// Name of the new volume.
    pub name: String,
    /// How the clone preserves what its own snapshots need; absent: as the snapshot's volume does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
}

/// Splits an address, `VOLUME@SNAPSHOT`.
pub fn split_address(address: &str) -> Option<(&str, &str)> {
    address.split_once('@').filter(|(volume, snapshot)| !volume.is_empty() && !snapshot.is_empty())
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str, snapshot: &str) -> String {
    format!("/volumes/{}/snapshots/{}", segment(volume), segment(snapshot))
}

/// Snapshots, clones and rollback.
impl Client {
    /// The snapshots of one volume, or of all: by volume, and of each oldest first.
    pub fn snapshots(&self, volume: Option<&str>) -> Result<Vec<Snapshot>> {
        match volume {
            Some(volume) => self.get(&format!("/volumes/{}/snapshots", segment(volume))),
            None => self.get("/snapshots"),
        }
    }

    /// One snapshot.
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

    /// Takes a volume back to a snapshot.
    pub fn roll_back(&self, volume: &str, snapshot: &str, how: &RollBack) -> Result<RolledBack> {
        self.send(hyper::Method::POST, &format!("{}/rollback", route(volume, snapshot)), how)
    }

    /// Makes a writable volume of a snapshot.
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
