//! Requests and responses about the server, the pool and its volumes. They are plain data; the
//! field names are the JSON names.

use crate::named::named;
use crate::{CachePolicy, Cdp, Inherited, PatchCdp, PoolIndex, Preservation};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// Whether the pool can be trusted.
    pub enum HealthState {
        /// All is well.
        Healthy = "healthy",
        /// The pool works, but an operator should look.
        Warning = "warning",
        /// Writes are refused until the server is restarted.
        Poisoned = "poisoned",
    }
}

/// State of the pool, with what to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Summary.
    pub state: HealthState,
    /// What is not well.
    #[serde(default)]
    pub problems: Vec<Problem>,
}

/// One thing that is not well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What kind of thing it is: a word that never changes its meaning, listed in
    /// docs/OPERATIONS.md.
    pub code: String,
    /// One sentence with the names and numbers that matter.
    pub message: String,
}

/// The server as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the server.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started.
    pub started: Timestamp,
    /// Its data directory.
    pub data: String,
    /// Where it listens.
    pub listeners: Listeners,
    /// Health of the pool.
    pub health: Health,
    /// Bytes that physical volumes offer.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that can still be promised to new writes.
    pub available: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Open NBD connections.
    pub nbd_connections: u64,
    /// iSCSI sessions, discovery sessions included.
    pub iscsi_sessions: u64,
    /// What may be open at once.
    #[serde(default)]
    pub limits: Limits,
}

/// What the server may have open at once: as configured, or what the limit of open files leaves
/// beside the pool's own files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Files that the process may have open.
    pub open_files: u64,
    /// Of them, those that are kept for the pool.
    pub reserved: u64,
    /// NBD connections.
    pub nbd: u64,
    /// iSCSI connections.
    pub iscsi: u64,
    /// Connections of the admin API.
    pub api: u64,
}

/// Addresses as they are bound: `HOST:PORT` or `unix:PATH`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listeners {
    /// Of this API.
    pub api: Vec<String>,
    /// Of the NBD target.
    pub nbd: Vec<String>,
    /// Of the iSCSI target.
    pub iscsi: Vec<String>,
}

named! {
    /// Where new slots go on physical volumes.
    pub enum Placement {
        /// In the first free slot.
        Anywhere = "anywhere",
        /// Beside the volume's other data, where possible.
        Contiguous = "contiguous",
    }
}

named! {
    /// How a volume preserves what its snapshots need when it is written to.
    pub enum Method {
        /// Copy-on-write: the old content is copied away, and overwritten where it was. Volumes
        /// stay in order.
        Cow = "cow",
        /// Redirect-on-write: the new content gets a new place. Writes move less.
        Row = "row",
    }
}

named! {
    /// What a write preserves when several snapshots see what is there.
    pub enum Order {
        /// One version serves all of them: a write costs the same however many snapshots there are.
        Dependent = "dependent",
        /// Each gets a copy of its own while there is space to spare: for comparison.
        Independent = "independent",
    }
}

/// The pool: configuration, space, positions and counters since it was opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Identity.
    pub uuid: String,
    /// Unit of allocation, bytes.
    pub extent_size: u64,
    /// Bytes that physical volumes write atomically.
    pub atomic_unit: u32,
    /// Where new slots go.
    pub placement: Placement,
    /// Bytes that physical volumes offer.
    pub capacity: u64,
    /// Bytes of extents in use.
    pub used: u64,
    /// Bytes that can still be promised to new writes.
    pub available: u64,
    /// Bytes reserved for writes that are in the journal but not yet in place.
    pub reserved: u64,
    /// Sum of the sizes of all volumes.
    pub provisioned: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Health.
    pub health: Health,
    /// The journal.
    pub journal: Journal,
    /// The map cache.
    pub map_cache: MapCache,
    /// The metadata that tells where chunks are.
    pub index: PoolIndex,
    /// What preserving for snapshots has cost.
    pub preservation: Preservation,
}

/// The journal: room and positions. Positions are LSNs, and grow from `destaged` to `sequenced`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Journal {
    /// Configured size, bytes.
    pub size: u64,
    /// Bytes of one segment.
    pub segment_size: u64,
    /// Bytes that can hold records.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Stretches that wait to be carried out and can't share a commit of the catalog. Snapshots,
    /// marks and long discards make them; from 256 on, these wait.
    #[serde(default)]
    pub turns: u64,
    /// Last position given out.
    pub sequenced_lsn: u64,
    /// End of the contiguous written prefix.
    pub written_lsn: u64,
    /// End of the durable prefix.
    pub synced_lsn: u64,
    /// End of what is in place.
    pub destaged_lsn: u64,
    /// Times that a writer had to wait for room.
    pub backpressure_waits: u64,
}

/// The cache of map pages, shared by all volumes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MapCache {
    /// Its replacement: the rate of hits below is that policy's.
    pub policy: CachePolicy,
    /// Bytes that it may hold.
    pub size: u64,
    /// Bytes held.
    pub used: u64,
    /// Look-ups answered.
    pub hits: u64,
    /// Look-ups that read the catalog.
    pub misses: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Hits per look-up, 0 to 1; absent before the first look-up.
    pub hit_rate: Option<f64>,
}

/// Changes to the pool. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchPool {
    /// Where new slots go from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// A physical volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pv {
    /// Number inside the pool, never used twice.
    pub id: u32,
    /// Identity on its label.
    pub uuid: String,
    /// File in the data directory, or absolute path.
    pub path: String,
    /// Usable bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Data is being moved away.
    pub draining: bool,
    /// What a write to it failed with: nothing is written there any more until the server is
    /// started again. It is still read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A physical volume to take into the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddPv {
    /// File name inside the data directory, or an absolute path of a file or block device.
    pub path: String,
    /// Size of a file to create, bytes; absent: the file or device exists and is used whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Overwrite the label of another pool.
    #[serde(default)]
    pub force: bool,
}

/// Changes to a physical volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchPv {
    /// Start (or stop) moving data away.
    pub draining: bool,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Name, also of its exports.
    pub name: String,
    /// Identity; survives renaming.
    pub uuid: String,
    /// Size in bytes.
    pub size: u64,
    /// Unit of mapping, bytes.
    pub chunk_size: u64,
    /// Logical block size, bytes.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// How it preserves what its snapshots need.
    pub method: Method,
    /// Whether its snapshots share what is preserved.
    pub order: Order,
    /// Bytes that are kept for its snapshots only. As of the last destage; absent in lists.
    pub snapshot_space: Option<u64>,
    /// What its snapshots are expected to take, in per cent of its size; taking more is a warning.
    pub snapshot_reserve: u8,
    /// The oldest unprotected snapshots are deleted while they take more than that, or the pool is
    /// low on space.
    pub auto_delete: bool,
    /// It is being filled from a stream, and takes no other writes.
    pub importing: bool,
    /// NBD serves it, its snapshots and its moments.
    #[serde(default = "served")]
    pub nbd: bool,
    /// What it took over of the volume that it was made of; told by the answer to its making only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Inherited>,
    /// How it keeps its history; absent: only its snapshots.
    #[serde(default)]
    pub cdp: Option<Cdp>,
    /// Address of the snapshot or moment that its content begins with, if it is a clone, or was
    /// recovered or rolled back; or the path of the image that it rests on. Absent when it rests on
    /// nothing (any more).
    pub origin: Option<String>,
    /// Address of the newest snapshot in sight that its content comes after, on its own line of
    /// history or before.
    pub parent: Option<String>,
    /// When it was created.
    pub created: Timestamp,
    /// Bytes that it occupies in the pool.
    pub allocated: u64,
    /// Open handles (client connections).
    pub handles: u64,
    /// What of it can't be read any more, until it is written again. As of the last destage; absent
    /// in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedRange>,
    /// Counters since the server started.
    pub stats: VolumeStats,
}

/// A range of a volume that can't be read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Counters of a volume since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeStats {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Discard requests.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Bytes of reads that came from the journal.
    pub staged_read_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// A volume to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// Bytes; a multiple of the block size, up to 64 TiB. 0 over an image: as long as that.
    pub size: u64,
    /// Absolute path, on the server's machine, of a raw image file or block device whose content
    /// the volume shows until it is written to. The image must not change from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Bytes; a power of two from 512 up to the pool's extent size. Default: as the server is
    /// configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_size: Option<u64>,
    /// 512 or 4096. Default: 512, which every client and disk image knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Refuse writes from the start.
    #[serde(default)]
    pub read_only: bool,
    /// How it preserves what its snapshots need. Default: `row`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Keep its history from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdp: Option<PatchCdp>,
}

/// What servers do that know no other way.
fn served() -> bool {
    true
}

/// Changes to a volume. Absent fields stay as they are; the others are applied in the order
/// read_only, method, order, policy of snapshots, history, NBD, size, name, and the first that
/// fails ends the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchVolume {
    /// Refuse (or accept) writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// How it preserves what its snapshots need, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Whether its snapshots share what is preserved from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// What its snapshots are expected to take, in per cent of its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_reserve: Option<u8>,
    /// Delete the oldest unprotected snapshots while they take more than that, or the pool is low
    /// on space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete: Option<bool>,
    /// How it keeps its history, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdp: Option<PatchCdp>,
    /// Serve it over NBD, with its snapshots and moments, or keep it out of that and end the
    /// connections there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<bool>,
    /// New size in bytes. Making a volume smaller needs `force`: what lies past the new end is
    /// lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// New name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Allow what loses data.
    #[serde(default)]
    pub force: bool,
}
