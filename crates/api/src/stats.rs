//! Responses about statistics: the cost of preservation, the size of the metadata, and requests by
//! region of a volume.

use crate::VolumeStats;
use crate::client::{Client, ClientError, segment};
use crate::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// Replacement policy of the map cache.
    pub enum CachePolicy {
        /// The page that was inserted first is evicted first.
        RoundRobin = "round-robin",
        /// The least recently used page is evicted first.
        Lru = "lru",
        /// The least frequently used page is evicted first.
        Lfu = "lfu",
        /// S3-FIFO: a page that was used only once is evicted early.
        S3Fifo = "s3-fifo",
    }
}

/// Cost of preserving content for snapshots, since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Preservation {
    /// Number of chunks whose old content was copied to a new place. Method `cow` and order
    /// `independent` make such copies.
    pub copies: u64,
    /// Number of bytes copied for `copies`.
    pub copied_bytes: u64,
    /// Number of chunks whose new content got a new place (method `row`).
    pub redirects: u64,
    /// Number of bytes written for `redirects`.
    pub redirected_bytes: u64,
    /// Number of parts of chunks that were read to complete a chunk. A chunk that a client writes
    /// in part is completed when its content gets a new place.
    pub fill_reads: u64,
    /// Number of bytes read for `fill_reads`.
    pub fill_bytes: u64,
    /// Number of bytes that clients wrote to chunks whose old content had to be preserved.
    pub host_bytes: u64,
    /// `host_bytes` divided by the sum of `copied_bytes` and `redirected_bytes`. Absent if nothing
    /// was preserved yet.
    pub space_efficiency: Option<f64>,
}

/// Size of the pool's metadata.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolIndex {
    /// Number of pages of current maps. A page maps up to 256 chunks.
    pub map_pages: u64,
    /// Number of versions: chunk contents that are kept for snapshots.
    pub versions: u64,
    /// Size of the catalog's file in bytes. It contains the map pages, the versions and all other
    /// metadata.
    pub catalog_bytes: u64,
}

/// Size of the metadata of one volume and its snapshots, as of the last destage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeIndex {
    /// Number of chunks in current maps that take space.
    pub chunks: u64,
    /// Number of versions that take space. A version is chunk content that is kept for snapshots.
    pub versions: u64,
    /// Size of the entries of `chunks` and `versions` in bytes.
    pub bytes: u64,
}

/// Number of requests that touched a region of a volume. A request counts once in every region that
/// it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Region {
    /// Number of read requests.
    pub reads: u64,
    /// Number of write requests.
    pub writes: u64,
}

/// All counters of one volume, since the server started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeStatistics {
    /// Name of the volume.
    pub name: String,
    /// Counters of requests.
    pub requests: VolumeStats,
    /// Cost of preserving content for the volume's snapshots.
    pub preservation: Preservation,
    /// Size of the volume's metadata.
    pub index: VolumeIndex,
    /// Size of a region in bytes, a power of two.
    pub region_size: u64,
    /// At most 256 regions, in the order of offsets. The end of the volume may cut the last one.
    pub regions: Vec<Region>,
}

/// Requests about statistics.
impl Client {
    /// Returns all counters of one volume.
    pub fn volume_statistics(&self, name: &str) -> Result<VolumeStatistics, ClientError> {
        self.get(&format!("/volumes/{}/stats", segment(name)))
    }
}
