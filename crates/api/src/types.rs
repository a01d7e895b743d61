//! Requests and responses about the server, the pool and its volumes. They are plain data; the
//! field names are the JSON names.

use crate::named::named;
use crate::{CachePolicy, Cdp, Inherited, PatchCdp, PoolIndex, Preservation};
use crate::{PatchDirect, PatchPlacement, PvLayout, VolumePlacement};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

named! {
    /// Whether the pool works and accepts writes.
    pub enum HealthState {
        /// The server has found no problem.
        Healthy = "healthy",
        /// The pool works. An operator should read the problems.
        Warning = "warning",
        /// The pool refuses writes until the server is restarted.
        Poisoned = "poisoned",
    }
}

named! {
    /// How urgent a problem is. The codes have fixed severities.
    #[derive(PartialOrd, Ord)]
    pub enum Severity {
        /// Good to know. Nothing has to be done soon.
        Info = "info",
        /// An operator should act in the next days, or the problem becomes worse.
        Warning = "warning",
        /// An operator should act now: data, writes or backups are affected.
        Critical = "critical",
    }
}

/// State of the pool, and its problems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Summary of the pool's state.
    pub state: HealthState,
    /// Problems that the server has found. Empty if the pool is healthy.
    #[serde(default)]
    pub problems: Vec<Problem>,
}

/// A problem that the server has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Kind of the problem, for programs. docs/OPERATIONS.md lists the codes; a code never changes
    /// its meaning.
    pub code: String,
    /// One sentence for people, with the relevant names and numbers.
    pub message: String,
    /// What has the problem: the path of a physical volume or of a disk, a volume or a schedule.
    /// Without a value, it is the server or the pool as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// How urgent the problem is. Older servers do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Page and section of the documentation that say what to do: `docs/OPERATIONS.md#space-low`.
    /// Older servers do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// Time since which the subject has had this problem, at the earliest the start of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// State of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the server.
    pub version: String,
    /// Process ID of the server.
    pub pid: u32,
    /// Time at which the server started.
    pub started: Timestamp,
    /// Path of the data directory.
    pub data: String,
    /// Addresses on which the server listens.
    pub listeners: Listeners,
    /// Health of the pool.
    pub health: Health,
    /// Total bytes of the physical volumes that can store data.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes available for new writes.
    pub available: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Number of open NBD connections.
    pub nbd_connections: u64,
    /// Number of iSCSI sessions, including discovery sessions.
    pub iscsi_sessions: u64,
    /// Limits of open files and connections.
    #[serde(default)]
    pub limits: Limits,
    /// Certificate of the admin API. Absent: all of its listeners speak plain HTTP.
    #[serde(default)]
    pub certificate: Option<ApiCertificate>,
    /// How each volume is protected, by name. A caller with a scope sees the volumes in it.
    #[serde(default)]
    pub protection: Vec<Protection>,
}

/// How far a volume can be taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Protection {
    /// Name of the volume.
    pub volume: String,
    /// Time of the newest snapshot. Absent: the volume has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot: Option<Timestamp>,
    /// Number of seconds since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot_age: Option<u64>,
    /// Number of seconds that the history reaches back. Absent: the volume keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<u64>,
    /// Number of seconds that the history is to reach back. Absent: it has no target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_seconds: Option<u64>,
    /// Names of the volume's schedules whose last run failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing_schedules: Vec<String>,
}

/// The certificate of the admin API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiCertificate {
    /// SHA-256 of the certificate, as 64 hexadecimal digits.
    pub fingerprint: String,
    /// Whether no authority signed the certificate. Clients then check the fingerprint.
    pub self_signed: bool,
}

/// Limits of open files and connections. The server starts from the configured limits. It reduces
/// them if the process may not open enough files for them and for the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Number of files that the process may have open.
    pub open_files: u64,
    /// Number of open files, of `open_files`, that are reserved for the pool.
    pub reserved: u64,
    /// Number of NBD connections that the server accepts at a time.
    pub nbd: u64,
    /// Number of iSCSI connections that the server accepts at a time.
    pub iscsi: u64,
    /// Number of connections of the admin API that the server accepts at a time.
    pub api: u64,
}

/// Addresses on which the server listens, in the form `HOST:PORT` or `unix:PATH`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listeners {
    /// Addresses of the admin API.
    pub api: Vec<String>,
    /// URLs of the admin API over TCP, `https://HOST:PORT` or `http://HOST:PORT`.
    #[serde(default)]
    pub urls: Vec<String>,
    /// Addresses of the NBD target.
    pub nbd: Vec<String>,
    /// Addresses of the iSCSI target.
    pub iscsi: Vec<String>,
}

named! {
    /// Where new slots are placed on physical volumes.
    pub enum Placement {
        /// In the first free slot.
        Anywhere = "anywhere",
        /// Next to the volume's other data, where possible.
        Contiguous = "contiguous",
        /// Spread over all physical volumes, by their sizes. Each extent's worth of a volume goes
        /// to the physical volume that a hash function names.
        Share = "share",
        /// Near what it belongs to. Behind each slice of a volume there is a gap for what snapshots
        /// need of it.
        SnapAware = "snap-aware",
    }
}

named! {
    /// How a volume preserves content that its snapshots need, when a client overwrites it.
    pub enum Method {
        /// Copy-on-write: the old content is copied to a new place, and then overwritten in its old
        /// place. The volume's chunks stay in order.
        Cow = "cow",
        /// Redirect-on-write: the old content keeps its place, and the new content gets a new
        /// place. A write moves less data.
        Row = "row",
    }
}

named! {
    /// What a write preserves when several snapshots need the old content.
    pub enum Order {
        /// One copy serves all snapshots. The cost of a write does not depend on the number of
        /// snapshots.
        Dependent = "dependent",
        /// Each snapshot gets its own copy, as long as there is free space. This order is for
        /// comparison.
        Independent = "independent",
    }
}

/// The pool: its configuration, space and positions, and its counters since it was opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// UUID of the pool.
    pub uuid: String,
    /// Size of an extent in bytes. An extent is the unit of allocation on a physical volume.
    pub extent_size: u64,
    /// Number of bytes that the physical volumes write atomically, 512 or 4096.
    pub atomic_unit: u32,
    /// Where new slots are placed.
    pub placement: Placement,
    /// With the placement `snap-aware`: size of a slice of a volume in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_size: Option<u64>,
    /// With the placement `snap-aware`: size of the gap behind a slice in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_size: Option<u64>,
    /// Total bytes of the physical volumes that can store data.
    pub capacity: u64,
    /// How fast the pool fills up. Absent until the server has measured it for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filling: Option<Filling>,
    /// Bytes of slots in use.
    pub used: u64,
    /// Bytes available for new writes.
    pub available: u64,
    /// Bytes reserved for writes that are in the journal and not yet in place.
    pub reserved: u64,
    /// Sum of the sizes of all volumes in bytes.
    pub provisioned: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Names of the features that the pool has. A build that does not know one of them refuses the
    /// pool.
    #[serde(default)]
    pub features: Vec<String>,
    /// Health of the pool.
    pub health: Health,
    /// Space and positions of the journal.
    pub journal: Journal,
    /// Size and hit rate of the map cache.
    pub map_cache: MapCache,
    /// Size of the pool's metadata.
    pub index: PoolIndex,
    /// Cost of preserving content for snapshots.
    pub preservation: Preservation,
}

/// Space and positions of the journal. Positions are LSNs. They satisfy `destaged_lsn` <=
/// `synced_lsn` <= `written_lsn` <= `sequenced_lsn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Journal {
    /// Configured size in bytes.
    pub size: u64,
    /// Size of a segment in bytes.
    pub segment_size: u64,
    /// Bytes that can hold records.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Number of turns that wait for destage. A turn is a stretch of the journal that can't share a
    /// commit of the catalog with another one. Snapshots, marks and long discards begin a new turn.
    /// They wait when 96 turns wait, or as many as take 150 ms.
    #[serde(default)]
    pub turns: u64,
    /// Last LSN that was assigned.
    pub sequenced_lsn: u64,
    /// LSN up to which all records are written.
    pub written_lsn: u64,
    /// LSN up to which all records are durable.
    pub synced_lsn: u64,
    /// LSN up to which all records are in place.
    pub destaged_lsn: u64,
    /// Number of times that a writer waited for room in the journal.
    pub backpressure_waits: u64,
}

/// The cache of map pages, which all volumes share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MapCache {
    /// Replacement policy of the cache.
    pub policy: CachePolicy,
    /// Maximum size in bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Number of lookups that found their page in the cache.
    pub hits: u64,
    /// Number of lookups that read the catalog.
    pub misses: u64,
    /// Number of pages evicted.
    pub evictions: u64,
    /// Hits divided by lookups, from 0 to 1. Absent before the first lookup.
    pub hit_rate: Option<f64>,
}

/// How fast the space that volumes share fills up, by the last week. Dedicated physical volumes do
/// not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Filling {
    /// Bytes that a day takes. It is negative if space becomes free.
    pub bytes_per_day: i64,
    /// Seconds for which that was measured, at most a week.
    pub measured_seconds: u64,
    /// Time at which all available space is taken at this rate. Absent if that does not come within
    /// twenty years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_at: Option<Timestamp>,
}

/// Changes to the pool. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchPool {
    /// Where new slots are placed from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// With the placement `snap-aware`: size of a slice of a volume in bytes. Default: 64 MiB, or
    /// the size of an extent if that is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_size: Option<u64>,
    /// With the placement `snap-aware`: number of snapshots that the gap behind a slice has room
    /// for. Default: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u32>,
    /// With the placement `snap-aware`: part of a slice that one snapshot keeps, in per cent.
    /// Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_percent: Option<u32>,
}

/// A physical volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pv {
    /// Number of the physical volume in the pool. A number is never used twice.
    pub id: u32,
    /// UUID in the label of the physical volume.
    pub uuid: String,
    /// File name in the data directory, or absolute path of a file or block device.
    pub path: String,
    /// Usable bytes.
    pub size: u64,
    /// Bytes of extents in use.
    pub used: u64,
    /// Whether the pool moves data off the physical volume. New slots are then placed elsewhere.
    pub draining: bool,
    /// Whether only volumes use it that were created for it.
    #[serde(default)]
    pub dedicated: bool,
    /// Bytes that the volumes of a dedicated physical volume can still use. Absent: it is not
    /// dedicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// Part of its size that counts for the placement `share`, in per cent.
    #[serde(default = "whole")]
    pub weight: u32,
    /// Error of a write that failed. Until the server is restarted, the pool reads from the
    /// physical volume and does not write to it. Absent if no write failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The layout, if the content is on several disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<PvLayout>,
}

/// A physical volume to add to the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddPv {
    /// File name in the data directory, or absolute path of a file or block device.
    pub path: String,
    /// Size in bytes of a file to create. Absent: the file or device exists, and the pool uses all
    /// of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Overwrite the label of another pool.
    #[serde(default)]
    pub force: bool,
    /// Let only volumes use it that are created for it (`on`). A disk of a mirror or of a RAID-5 is
    /// not dedicated, but the whole may be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
}

/// Changes to a physical volume. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchPv {
    /// Start or stop moving data off the physical volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// Part of its size that counts for the placement `share`, in per cent, from 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Name of the volume and of its exports.
    pub name: String,
    /// UUID of the volume. It stays the same when the volume is renamed.
    pub uuid: String,
    /// Size in bytes.
    pub size: u64,
    /// Size of a chunk in bytes. A chunk is the volume's unit of mapping.
    pub chunk_size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Whether the volume refuses writes.
    pub read_only: bool,
    /// How the volume preserves content that its snapshots need.
    pub method: Method,
    /// Whether the volume's snapshots share preserved content.
    pub order: Order,
    /// Bytes that are used for the volume's snapshots only, as of the last destage. Absent in
    /// lists.
    pub snapshot_space: Option<u64>,
    /// Space that the volume's snapshots are expected to take, in percent of the volume's size. The
    /// server reports a warning when they take more.
    pub snapshot_reserve: u8,
    /// Whether the server deletes the oldest unprotected snapshots while the snapshots take more
    /// than `snapshot_reserve`, or while the pool is low on space.
    pub auto_delete: bool,
    /// Whether the volume is being imported from a stream. It accepts no other writes meanwhile.
    pub importing: bool,
    /// Path of the dedicated physical volume that holds the volume. Absent: the volume uses all
    /// that are not dedicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The placement that the volume has of its own. Absent: that of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<VolumePlacement>,
    /// The least size in bytes of a write that goes to its place at once, without a copy in the
    /// journal. 0: none does. Absent: that of the pool (`serve --direct-min`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_min: Option<u64>,
    /// Whether NBD serves the volume, its snapshots and its moments.
    #[serde(default = "served")]
    pub nbd: bool,
    /// Access settings that this volume copied from the volume from which it was created. Only the
    /// response to the request that created the volume has this field. Absent if there was nothing
    /// to copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Inherited>,
    /// Settings of the volume's history. Absent if CDP is off; the volume then has only its
    /// snapshots.
    #[serde(default)]
    pub cdp: Option<Cdp>,
    /// Address of the snapshot or moment on which the volume's content depends, if the volume is a
    /// clone, or was recovered or rolled back. For a volume over an image, the path of the image.
    /// Absent if the volume depends on no other content.
    pub origin: Option<String>,
    /// Address of the newest existing snapshot that precedes the volume's current content: a
    /// snapshot of the volume, or one in the history on which the volume depends. Absent if there
    /// is none.
    pub parent: Option<String>,
    /// Address of the moment from which this was recovered, or to which it was rolled back, if that
    /// lies between `parent` and this. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_moment: Option<String>,
    /// Time at which the volume was created.
    pub created: Timestamp,
    /// Bytes that the volume uses in the pool.
    pub allocated: u64,
    /// Number of open handles. Client connections hold them.
    pub handles: u64,
    /// Number of clients that use the volume, its snapshots or its moments. Only in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u64>,
    /// Number of its snapshots. Only in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u64>,
    /// Span of its history. Only in lists, and absent if there is no history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryWindow>,
    /// Time of its newest write, at most a second late. Only in lists, and absent if the server
    /// knows none: of a volume without a history, it knows those since it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<Timestamp>,
    /// Labels of the volume: keys and values that users and programs have set.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Ranges that can't be read until they are written again, as of the last destage. Absent if
    /// there are none, and in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedRange>,
    /// Counters of requests since the server started.
    pub stats: VolumeStats,
}

/// The span of a volume's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryWindow {
    /// Seconds from the oldest moment that can be recovered until now.
    pub held_seconds: u64,
    /// Seconds that the retention asks for. Absent if there is no limit by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_seconds: Option<u64>,
}

/// A range of a volume that can't be read until it is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Counters of a volume's requests since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeStats {
    /// Number of read requests.
    pub reads: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of write requests.
    pub writes: u64,
    /// Number of bytes written.
    pub write_bytes: u64,
    /// Number of flush requests.
    pub flushes: u64,
    /// Number of discard requests.
    pub discards: u64,
    /// Number of bytes discarded.
    pub discard_bytes: u64,
    /// Number of bytes that reads found in the journal.
    pub staged_read_bytes: u64,
    /// Number of requests that failed.
    pub errors: u64,
}

/// A volume to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Name of the volume: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// Size in bytes: a multiple of the block size, up to 64 TiB. With `origin`, 0 means the length
    /// of the image.
    pub size: u64,
    /// Absolute path of a raw image file or block device on the server's machine. The volume shows
    /// the content of the image until a client writes to it. The image must not change any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Size of a chunk in bytes: a power of two from 512 to the pool's extent size. Absent: the
    /// configured default of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_size: Option<u64>,
    /// Logical block size in bytes: 512 or 4096. Absent: 512, which every client and disk image
    /// supports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Refuse writes from the start.
    #[serde(default)]
    pub read_only: bool,
    /// How the volume preserves content that its snapshots need. Absent: `row`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Record the volume's history from the start. Absent: CDP is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdp: Option<PatchCdp>,
    /// Path, number or UUID of the dedicated physical volume that holds the volume, or the name of
    /// such a mirror or RAID-5. Absent: the volume uses all that are not dedicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The placement that the volume has of its own. Absent: that of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PatchPlacement>,
    /// The least size of a write that goes to its place at once, without a copy in the journal: 0
    /// for none, or 4,096 to 16,777,216 bytes. Absent: that of the pool (`serve --direct-min`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_min: Option<u64>,
}

/// Value of `Pv::weight` for servers that do not report it.
fn whole() -> u32 {
    100
}

/// Value of `Volume::nbd` for servers that do not report it. Such servers serve every volume over
/// NBD.
fn served() -> bool {
    true
}

/// Changes to a volume. Absent fields stay unchanged. The server applies the others in the order
/// read_only, method, order, placement, direct, snapshot_reserve and auto_delete, cdp, nbd, labels,
/// size, name. The first change that fails ends the request; the changes before it stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchVolume {
    /// Refuse or accept writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// How the volume preserves content that its snapshots need, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Whether the volume's snapshots share content that is preserved from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Where the volume's new slots are placed, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PatchPlacement>,
    /// The least size of a write that goes to its place at once, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<PatchDirect>,
    /// Space that the volume's snapshots are expected to take, in percent of the volume's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_reserve: Option<u8>,
    /// Delete the oldest unprotected snapshots while the snapshots take more than
    /// `snapshot_reserve`, or while the pool is low on space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete: Option<bool>,
    /// Changes to the settings of the volume's history, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdp: Option<PatchCdp>,
    /// true: NBD serves the volume, its snapshots and its moments. false: NBD does not serve them,
    /// and the server closes their NBD connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<bool>,
    /// Labels to set. A label whose value is null is removed. Other labels stay unchanged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// New size in bytes. A smaller size needs `force`, because the data after the new end is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// New name: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Allow a change that loses data.
    #[serde(default)]
    pub force: bool,
}
