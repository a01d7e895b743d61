//! Requests and responses about relocation: it brings a volume's chunks back into order.

use crate::client::{Client, ClientError, segment};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How to relocate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Relocate {
    /// Bytes a second at most; 0: as fast as it goes.
    #[serde(default)]
    pub rate: u64,
}

/// How a volume's own chunks lie, and how far a relocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Relocation {
    /// Chunks that the volume has of its own.
    pub chunks: u64,
    /// Runs of chunks that lie one after another: reading the whole volume jumps so often.
    pub runs: u64,
    /// The relocation that goes on, if one does.
    pub running: Option<Relocating>,
}

/// A relocation that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Relocating {
    /// From 1; what could not be moved in one pass is tried again in the next.
    pub pass: u32,
    /// Byte of the volume that the pass has come to.
    pub position: u64,
    /// Bytes moved in all passes.
    pub moved: u64,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

fn route(volume: &str) -> String {
    format!("/volumes/{}/relocation", segment(volume))
}

/// Relocation.
impl Client {
    /// How a volume's chunks lie, and how far its relocation is.
    pub fn relocation(&self, volume: &str) -> Result<Relocation> {
        self.get(&route(volume))
    }

    /// Begins to bring a volume's chunks back into order, or goes on at another rate.
    pub fn relocate(&self, volume: &str, how: &Relocate) -> Result<Relocation> {
        self.send(hyper::Method::POST, &route(volume), how)
    }

    /// Ends a relocation where it is.
    pub fn stop_relocation(&self, volume: &str) -> Result<()> {
        self.delete(&route(volume))
    }
}
