//! Responses about what clients do now.

use crate::client::{Client, ClientError, segment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Requests of clients in a stretch of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rates {
    /// Reads per second.
    pub reads: f64,
    /// Writes per second.
    pub writes: f64,
    /// Flushes per second.
    pub flushes: f64,
    /// Bytes read per second.
    pub read_bytes: f64,
    /// Bytes written per second.
    pub write_bytes: f64,
    /// Number of NBD requests that were being carried out at the end of the stretch.
    pub in_flight: u64,
    /// Seconds within which half of the reads were answered. Absent if there were none.
    pub read_p50: Option<f64>,
    /// Seconds within which 99 % of the reads were answered.
    pub read_p99: Option<f64>,
    /// Seconds within which half of the writes were answered.
    pub write_p50: Option<f64>,
    /// Seconds within which 99 % of the writes were answered.
    pub write_p99: Option<f64>,
}

/// What clients did in the last second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Live {
    /// End of the second.
    pub time: Timestamp,
    /// Requests of all volumes.
    pub pool: Rates,
    /// Requests by name of the volume. Volumes without requests are left out.
    pub volumes: BTreeMap<String, Rates>,
}

/// Requests in one stretch of a volume's activity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivityPoint {
    /// End of the stretch.
    pub time: Timestamp,
    /// The requests.
    #[serde(flatten)]
    pub rates: Rates,
}

/// What clients did with a volume, or with all of them, lately.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// Length of a stretch in seconds: 1 or 10.
    pub interval_seconds: u64,
    /// The stretches, oldest first. Stretches without requests may be left out.
    pub points: Vec<ActivityPoint>,
}

impl Client {
    /// Returns what clients did in the last second.
    pub fn live(&self) -> Result<Live, ClientError> {
        self.get("/live")
    }

    /// Returns what clients did with a volume in the last five minutes, or with `hour` in the last
    /// hour.
    pub fn activity(&self, volume: &str, hour: bool) -> Result<Activity, ClientError> {
        let of = if hour { "1h" } else { "5m" };
        self.get(&format!("/volumes/{}/activity?of={of}", segment(volume)))
    }
}
