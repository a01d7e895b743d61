//! Requests and responses about flattening. Flattening makes a volume independent of its origin.

use crate::client::{Client, ClientError, segment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to flatten a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Flatten {
    /// Limit of the copy rate in bytes per second. 0: no limit.
    #[serde(default)]
    pub rate: u64,
}

/// The origin of a volume, and the progress of its flattening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Flattening {
    /// The origin of the volume's content. Absent if the volume depends on no other content.
    pub origin: Option<VolumeOrigin>,
    /// Progress of the flattening. Absent if none is running.
    pub running: Option<FlattenProgress>,
}

/// The origin of a volume's content. Reads of chunks that the volume has not stored itself come
/// from its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum VolumeOrigin {
    /// An image outside of the pool.
    Image {
        /// Path of the file or block device.
        path: String,
        /// Length of the image in bytes.
        length: u64,
        /// Why the image can't be used now. Absent if it can be used.
        unavailable: Option<String>,
    },
    /// A snapshot of a volume.
    Snapshot {
        /// Name of the snapshot's volume. Empty if that volume was deleted.
        volume: String,
        /// Name of the snapshot. The snapshot may have been deleted; its content is kept while a
        /// volume depends on it.
        snapshot: String,
    },
    /// A moment of a volume's history, from which this volume was recovered.
    Moment {
        /// Name of the volume whose history it is. Empty if that volume was deleted.
        volume: String,
        /// LSN of the moment.
        lsn: u64,
        /// Time of the moment. Absent if damage has made it unknown.
        time: Option<Timestamp>,
    },
}

/// Progress of a flattening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlattenProgress {
    /// Offset in the volume that the flattening has reached, in bytes.
    pub position: u64,
    /// Number of bytes copied so far.
    pub copied: u64,
    /// Why the flattening can't continue now. The server retries automatically. Absent if it
    /// continues.
    pub stalled: Option<String>,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str) -> String {
    format!("/volumes/{}/flatten", segment(volume))
}

/// Requests about flattening.
impl Client {
    /// Returns the origin of a volume, and the progress of its flattening.
    pub fn flattening(&self, volume: &str) -> Result<Flattening> {
        self.get(&route(volume))
    }

    /// Starts the flattening of a volume, or changes its rate.
    pub fn flatten(&self, volume: &str, how: &Flatten) -> Result<Flattening> {
        self.send(hyper::Method::POST, &route(volume), how)
    }

    /// Stops a flattening. What was copied stays copied.
    pub fn stop_flattening(&self, volume: &str) -> Result<()> {
        self.delete(&route(volume))
    }
}
