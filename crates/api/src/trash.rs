//! Requests and responses about deleted volumes, which are in the trash for a while.

use crate::client::{Client, ClientError, segment};
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A deleted volume that can be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrashedVolume {
    /// UUID of the volume. It stays the same when the volume is restored.
    pub uuid: String,
    /// Name that the volume had. Another volume may have that name now.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that come back when the volume is purged, if no clone depends on it.
    pub space: u64,
    /// Bytes of its history's files that come back when the volume is purged.
    #[serde(default)]
    pub history_bytes: u64,
    /// Number of its snapshots.
    pub snapshots: u64,
    /// Whether the volume has a history.
    pub history: bool,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Time at which the volume was deleted.
    pub deleted: Timestamp,
    /// Time at which the server purges the volume. Earlier if the pool is low on space, or volumes
    /// lack room for their histories. Absent if the server does not purge it by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<Timestamp>,
}

/// The result of the deletion of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedVolume {
    /// The volume in the trash. Absent if it was deleted for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash: Option<TrashedVolume>,
}

/// How to restore a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreVolume {
    /// Name for the volume. Absent: the name that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// How to delete a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeleteVolume {
    /// Delete it although clients use it or a target has it as a LUN. With `now`, also delete its
    /// snapshots and its history.
    pub force: bool,
    /// Delete it for good, and not to the trash.
    pub now: bool,
}

impl Client {
    /// Deletes a volume.
    pub fn delete_volume(&self, name: &str, how: DeleteVolume) -> Result<DeletedVolume, ClientError> {
        let DeleteVolume { force, now } = how;
        self.get_by(Method::DELETE, &format!("/volumes/{}?force={force}&now={now}", segment(name)))
    }

    /// Returns the volumes in the trash, oldest first.
    pub fn trash(&self) -> Result<Vec<TrashedVolume>, ClientError> {
        self.get("/trash")
    }

    /// Takes a volume out of the trash. `id` is its UUID, or its name if only one volume in the
    /// trash has it.
    pub fn restore_volume(&self, id: &str, how: &RestoreVolume) -> Result<crate::Volume, ClientError> {
        self.send(Method::POST, &format!("/trash/{}/restore", segment(id)), how)
    }

    /// Deletes a volume in the trash for good. `id` is as in [`Client::restore_volume`].
    pub fn purge_volume(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/trash/{}", segment(id)))
    }
}
