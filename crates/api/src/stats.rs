//! Responses about statistics: what preservation costs, how large the index is, and which regions
//! the requests touch.

use crate::VolumeStats;
use crate::client::{Client, ClientError, segment};
use crate::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// Replacement in the map cache.
    pub enum CachePolicy {
        /// The oldest page leaves first.
        RoundRobin = "round-robin",
        /// The page that was not used for longest leaves first.
        Lru = "lru",
        /// The page that was used least often leaves first.
        Lfu = "lfu",
        /// S3-FIFO: a page that was used only once leaves early.
        S3Fifo = "s3-fifo",
    }
}

/// What preserving for snapshots has cost since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Preservation {
    /// Chunks whose old content was copied to a place of its own (`cow`, and the copies of the
    /// independent order).
    pub copies: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Chunks whose new content was given another place (`row`).
    pub redirects: u64,
    /// Bytes written there.
    pub redirected_bytes: u64,
    /// Parts of chunks that were read to complete a chunk at a new place which was written to in
    /// part.
    pub fill_reads: u64,
    /// Bytes of them.
    pub fill_bytes: u64,
    /// Bytes that clients wrote into chunks that had to be preserved for it.
    pub host_bytes: u64,
    /// `host_bytes` over bytes written to snapshot space; absent before anything was preserved.
    pub space_efficiency: Option<f64>,
}

/// The metadata that tells where chunks are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolIndex {
    /// Pages of current maps, up to 256 chunks each.
    pub map_pages: u64,
    /// Contents kept for snapshots.
    pub versions: u64,
    /// Bytes of the catalog, which holds them and everything else.
    pub catalog_bytes: u64,
}

/// The metadata of one volume and its snapshots, as of the last destage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeIndex {
    /// Chunks in maps that hold space.
    pub chunks: u64,
    /// Contents kept for snapshots that hold space.
    pub versions: u64,
    /// Bytes of their entries.
    pub bytes: u64,
}

/// Requests that touched a part of a volume: each counts once in every region that it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Region {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Everything that is counted of one volume, since the server started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeStatistics {
    /// The volume.
    pub name: String,
    /// Requests.
    pub requests: VolumeStats,
    /// What preserving for its snapshots has cost.
    pub preservation: Preservation,
    /// Its metadata.
    pub index: VolumeIndex,
    /// Bytes of a region, a power of two.
    pub region_size: u64,
    /// In order, at most 256; the last one may be cut by the end of the volume.
    pub regions: Vec<Region>,
}

/// Statistics.
impl Client {
    /// Everything that is counted of one volume.
    pub fn volume_statistics(&self, name: &str) -> Result<VolumeStatistics, ClientError> {
        self.get(&format!("/volumes/{}/stats", segment(name)))
    }
}
