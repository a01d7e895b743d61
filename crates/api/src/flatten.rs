//! Requests and responses about flattening: it makes a volume independent of what it rests on.

use crate::client::{Client, ClientError, segment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How to flatten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Flatten {
    /// Bytes a second at most; 0: as fast as it goes.
    #[serde(default)]
    pub rate: u64,
}

/// What a volume rests on, and how far it is on its way to being independent of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Flattening {
    /// What the volume shows where it has nothing of its own; absent when it rests on nothing else.
    pub origin: Option<VolumeOrigin>,
    /// The copying that goes on, if it does.
    pub running: Option<FlattenProgress>,
}

/// What a volume shows where it has nothing of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum VolumeOrigin {
    /// An image outside of the pool.
    Image {
        /// File or block device.
        path: String,
        /// Its length in bytes.
        length: u64,
        /// Why it can't be used now.
        unavailable: Option<String>,
    },
    /// A snapshot of another volume.
    Snapshot {
        /// The volume; empty when it was deleted.
        volume: String,
        /// The snapshot, which may be deleted from sight.
        snapshot: String,
    },
    /// A moment of a volume's history, to which it was recovered.
    Moment {
        /// The volume; empty when it was deleted.
        volume: String,
        /// Number of the moment's record.
        lsn: u64,
        /// Its time; absent where damage has made it unknown.
        time: Option<Timestamp>,
    },
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlattenProgress {
    /// Byte of the volume that it has come to.
    pub position: u64,
    /// Bytes copied so far.
    pub copied: u64,
    /// Why it does not go on for now; it tries again by itself.
    pub stalled: Option<String>,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str) -> String {
    format!("/volumes/{}/flatten", segment(volume))
}

/// Flattening.
impl Client {
    /// What a volume rests on, and how far its flattening is.
    pub fn flattening(&self, volume: &str) -> Result<Flattening> {
        self.get(&route(volume))
    }

    /// Begins to make a volume independent, or goes on at another rate.
    pub fn flatten(&self, volume: &str, how: &Flatten) -> Result<Flattening> {
        self.send(hyper::Method::POST, &route(volume), how)
    }

    /// Ends a flattening where it is.
    pub fn stop_flattening(&self, volume: &str) -> Result<()> {
        self.delete(&route(volume))
    }
}
