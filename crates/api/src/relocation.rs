//! Requests and responses about relocation. Relocation moves the chunks of a volume into order.

use crate::client::{Client, ClientError, segment};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to relocate a volume's chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Relocate {
    /// Limit of the rate in bytes per second. 0: no limit.
    #[serde(default)]
    pub rate: u64,
}

/// Layout of a volume's own chunks, and the progress of a relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Relocation {
    /// Number of chunks that the volume itself stores.
    pub chunks: u64,
    /// Number of runs of chunks that are contiguous on a physical volume. A read of the whole
    /// volume seeks once for each run.
    pub runs: u64,
    /// Progress of the relocation. Absent if none is running.
    pub running: Option<Relocating>,
}

/// Progress of a relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Relocating {
    /// Number of the current pass, from 1. Chunks that could not be moved in one pass are tried
    /// again in the next one.
    pub pass: u32,
    /// Offset in the volume that the current pass has reached, in bytes.
    pub position: u64,
    /// Number of bytes moved in all passes.
    pub moved: u64,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str) -> String {
    format!("/volumes/{}/relocation", segment(volume))
}

/// Requests about relocation.
impl Client {
    /// Returns the layout of a volume's chunks, and the progress of its relocation.
    pub fn relocation(&self, volume: &str) -> Result<Relocation> {
        self.get(&route(volume))
    }

    /// Starts the relocation of a volume's chunks, or changes its rate.
    pub fn relocate(&self, volume: &str, how: &Relocate) -> Result<Relocation> {
        self.send(hyper::Method::POST, &route(volume), how)
    }

    /// Stops a relocation. Chunks that were moved stay at their new places.
    pub fn stop_relocation(&self, volume: &str) -> Result<()> {
        self.delete(&route(volume))
    }
}
