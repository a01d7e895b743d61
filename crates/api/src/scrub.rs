//! Requests and responses about the scrub of the data in place, and about damage.

use crate::client::{Client, ClientError};
use crate::types::DamagedRange;
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to begin a scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginScrub {
    /// Maximum bytes per second. 0 means no limit.
    #[serde(default)]
    pub rate: u64,
    /// Give sums to data that has none. The data is taken for right as it is.
    #[serde(default)]
    pub adopt: bool,
}

/// Request to pause a scrub, or to resume it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchScrub {
    /// Whether the scrub pauses.
    pub paused: bool,
}

/// Progress of the scrub of the data in place. The numbers of bytes are those of the current pass,
/// or of the last one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// Whether a pass is under way.
    pub running: bool,
    /// Whether the pass is paused.
    pub paused: bool,
    /// Whether the pass gives sums to data that has none.
    pub adopts: bool,
    /// Bytes of data in place.
    pub total: u64,
    /// Bytes that match their sums.
    pub verified: u64,
    /// Bytes that have no sum.
    pub unknown: u64,
    /// Bytes that had no sum and got one.
    pub adopted: u64,
    /// Bytes that do not match their sums.
    pub damaged: u64,
    /// Bytes that can't be read.
    pub unreadable: u64,
    /// Bytes that were wrong or unreadable, and were repaired.
    pub repaired: u64,
    /// Maximum bytes per second. 0 means no limit.
    pub rate: u64,
    /// Time at which the pass began. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Time at which the last whole pass ended. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// Number of whole passes so far.
    pub passes: u64,
}

/// The known damage of a volume or a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot. Absent for the volume itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Ranges that can't be read until they are written again.
    pub ranges: Vec<DamagedRange>,
}

impl Client {
    /// Returns the progress of the scrub.
    pub fn scrub(&self) -> Result<Scrub, ClientError> {
        self.get("/pool/scrub")
    }

    /// Begins a scrub. A scrub that is under way begins anew.
    pub fn begin_scrub(&self, how: &BeginScrub) -> Result<Scrub, ClientError> {
        self.send(Method::POST, "/pool/scrub", how)
    }

    /// Pauses the scrub, or resumes it.
    pub fn patch_scrub(&self, patch: &PatchScrub) -> Result<Scrub, ClientError> {
        self.send(Method::PATCH, "/pool/scrub", patch)
    }

    /// Stops the scrub.
    pub fn stop_scrub(&self) -> Result<(), ClientError> {
        self.delete("/pool/scrub")
    }

    /// Returns the known damage of all volumes and snapshots.
    pub fn damage(&self) -> Result<Vec<Damage>, ClientError> {
        self.get("/pool/damage")
    }
}
