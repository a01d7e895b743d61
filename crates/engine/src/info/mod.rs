//! Answers of the pool to queries: plain data, no behaviour. Sizes are bytes unless a name says
//! otherwise.

pub(crate) mod feature;
pub(crate) mod history;
pub(crate) mod layout;
pub(crate) mod pv;
pub(crate) mod rebalance;
pub(crate) mod recompression;
mod repaired;
pub(crate) mod timeline;

use crate::disk::SyncPurpose;
use crate::health::Health;
use crate::ids::{BranchId, Epoch, Lsn};
use crate::settings::{CachePolicy, DirectMin, Method, Order, Placement, PoolConfig, SnapshotPolicy};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

pub(crate) use repaired::Repaired;

/// The state of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name.
    pub name: String,
    /// Stable identity.
    pub uuid: Uuid,
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Creation time, nanoseconds since the Unix epoch.
    pub created: u64,
    /// The branch to which the volume writes.
    pub branch: BranchId,
    /// The method by which the volume preserves what its snapshots need.
    pub method: Method,
    /// Whether snapshots share what is preserved.
    pub order: Order,
    /// The number of the dedicated physical volume that the volume is on.
    pub dedicated_pv: Option<u32>,
    /// The placement of the volume's new slots; `None`: that of the pool.
    pub placement: Option<Placement>,
    /// The least size of the volume's writes by reference.
    pub direct_min: DirectMin,
    /// The policy for the space of the volume's snapshots.
    pub policy: SnapshotPolicy,
    /// The path of the image that the volume rests on, directly or through snapshots.
    pub image: Option<String>,
    /// The volume is being filled from a stream, and takes no other writes.
    pub importing: bool,
    /// Labels that users and programs have set.
    pub labels: BTreeMap<String, String>,
    /// The settings of the volume's CDP, if it is on.
    pub cdp: Option<crate::settings::CdpSettings>,
    /// Bytes of slots that the volume owns (staged writes not included).
    pub allocated: u64,
    /// Number of open handles (exports, connections).
    pub handles: u64,
    /// Counters since the pool was opened.
    pub stats: VolumeStats,
    /// Cost of preserving for its snapshots, since the pool was opened.
    pub preserved: PreserveStats,
}

/// The state of a volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashInfo {
    /// The volume. Its name may be that of another volume by now.
    pub volume: VolumeInfo,
    /// Number of visible snapshots.
    pub snapshots: u64,
    /// Bytes of slots that come back when the volume is purged, if nothing rests on its snapshots.
    pub space: u64,
    /// Bytes of the history's files that come back when the volume is purged, if nothing rests on
    /// its moments.
    pub history: u64,
    /// The pool time at which the volume was moved to the trash, in nanoseconds. It names this stay
    /// in the trash.
    pub since: u64,
    /// The time at which the volume was moved to the trash, as the clock is now: nanoseconds since
    /// the Unix epoch.
    pub trashed: u64,
    /// Nanoseconds that the volume has been in the trash. It does not grow while expiry is
    /// suspended because the clock is in doubt.
    pub age: u64,
}

/// The state of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Name of the volume to which the snapshot belongs.
    pub volume: String,
    /// Name, unique among the volume's snapshots.
    pub name: String,
    /// Stable identity.
    pub uuid: Uuid,
    /// Size of the volume when the snapshot was taken, in bytes.
    pub size: u64,
    /// Creation time, nanoseconds since the Unix epoch.
    pub created: u64,
    /// The branch and the epoch that the snapshot froze.
    pub of: (BranchId, Epoch),
    /// Branches (of clones and rolled-back volumes) rest on the snapshot, or a history has it as an
    /// anchor. It can be deleted from sight, and its content stays until they are gone.
    pub pinned: bool,
    /// Number of open handles.
    pub handles: u64,
    /// The snapshot must not be deleted.
    pub protected: bool,
    /// The time at which the snapshot expires, as the clock is now: nanoseconds since the Unix
    /// epoch.
    pub expires: Option<u64>,
    /// Labels that users and programs have set.
    pub labels: BTreeMap<String, String>,
    /// The identity of the snapshot's content. It is the snapshot's own UUID, or that of the
    /// snapshot that a stream carried here.
    pub content: Uuid,
}

/// The space of a volume and of its snapshots, in bytes of slots. Content in the bases of a clone
/// does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Bytes of the volume as it is now.
    pub current: u64,
    /// Bytes kept for snapshots only (including hidden ones that something rests on).
    pub snapshots: u64,
    /// Bytes that the snapshots are expected to take.
    pub reserve: u64,
    /// The space of each visible snapshot, oldest first.
    pub of: Vec<SnapshotSpace>,
}

/// The space of a snapshot, in bytes of slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSpace {
    /// Name.
    pub name: String,
    /// Bytes that this snapshot alone sees. They come back when only it is deleted (and nothing
    /// rests on it).
    pub unique: u64,
    /// Bytes that this snapshot sees, and that other snapshots or the present volume see too.
    pub shared: u64,
}

/// Counters of one volume since the pool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Number of read requests.
    pub reads: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of write requests (zeroing included).
    pub writes: u64,
    /// Number of bytes written.
    pub write_bytes: u64,
    /// Number of flush requests.
    pub flushes: u64,
    /// Number of discard requests.
    pub discards: u64,
    /// Number of bytes discarded.
    pub discard_bytes: u64,
    /// Number of read bytes that came from the journal.
    pub staged_read_bytes: u64,
    /// Number of requests that failed.
    pub errors: u64,
}

/// The cost of preserving, since the pool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PreserveStats {
    /// Pre-image copies: number of chunks whose old content was copied to a place of its own
    /// (copy-on-write, and the copies of the independent order).
    pub copies: u64,
    /// Number of bytes of pre-image copies.
    pub copied_bytes: u64,
    /// Redirects: number of chunks whose new content was given another place (redirect-on-write).
    pub redirects: u64,
    /// Number of bytes written to these other places.
    pub redirected_bytes: u64,
    /// Fill reads: number of parts of chunks that were read to complete a chunk which was written
    /// to in part, at a new place. First writes to a clone have them too.
    pub fill_reads: u64,
    /// Number of bytes of fill reads.
    pub fill_bytes: u64,
    /// Number of bytes that clients wrote to chunks that had to be preserved for that. Content that
    /// was written twice before it was moved to its place counts once.
    pub host_bytes: u64,
}

impl PreserveStats {
    /// Returns the space efficiency (Xiao et al. 2006): bytes that clients wrote, divided by the
    /// bytes that were therefore written to snapshot space. 1 means that nothing was wasted. Less
    /// means that chunks were written to in part. `None` before anything was preserved.
    pub fn space_efficiency(&self) -> Option<f64> {
        let written = self.copied_bytes + self.redirected_bytes;
        (written > 0).then(|| self.host_bytes as f64 / written as f64)
    }
}

/// Requests since the pool was opened, by the part of a volume that they touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRegions {
    /// Bytes of a region, a power of two. A volume has at most 256 regions.
    pub region_size: u64,
    /// The regions in order. The end of the volume may cut the last one.
    pub regions: Vec<RegionCounts>,
}

/// Requests that touched a region. A request counts once in every region that it touches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes, zeroing included.
    pub writes: u64,
}

/// The metadata of the whole pool that has the places of chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexSize {
    /// Number of pages of current maps, of up to 256 chunks each.
    pub map_pages: u64,
    /// Number of contents that are kept for snapshots.
    pub versions: u64,
    /// Bytes of the catalog's file, which has these and everything else.
    pub catalog_bytes: u64,
}

/// The metadata of one volume and its snapshots, as of the last destage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeIndex {
    /// Number of chunks in current maps that take space.
    pub chunks: u64,
    /// Number of contents kept for snapshots that take space.
    pub versions: u64,
    /// Bytes of the entries of both, without the overhead of the store.
    pub bytes: u64,
}

/// All counters of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Counters of requests.
    pub requests: VolumeStats,
    /// Cost of preserving.
    pub preserved: PreserveStats,
    /// Size of the volume's metadata.
    pub index: VolumeIndex,
    /// Requests by region of the volume.
    pub regions: VolumeRegions,
}

/// The state of the pool. Numbers of bytes are those of all physical volumes.
#[derive(Debug, Clone)]
pub struct PoolInfo {
    /// Identity.
    pub uuid: Uuid,
    /// Fixed configuration.
    pub config: PoolConfig,
    /// Placement policy.
    pub placement: Placement,
    /// Bytes of all extents that may take data.
    pub capacity: u64,
    /// Bytes of used slots.
    pub used: u64,
    /// Bytes that can still be promised to new writes.
    pub available: u64,
    /// Bytes that could still be promised if the file systems below the pool had room for
    /// everything.
    pub own_available: u64,
    /// Bytes reserved for writes that are in the journal and not yet in place.
    pub reserved: u64,
    /// Bytes of the data directory's file system that are reserved for the history records of
    /// writes in the journal, and for closing open segments.
    pub reserved_history: u64,
    /// Bytes that the data directory's file system has available, if that is known. Histories and
    /// the catalog grow there.
    pub data_available: Option<u64>,
    /// Sum of the sizes of all volumes.
    pub provisioned: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// The features that the pool has: formats that not every build knows.
    pub features: Vec<&'static str>,
    /// Health.
    pub health: Health,
}

/// Counters of the pool since it was opened, and its positions.
#[derive(Debug, Clone, Default)]
pub struct PoolStats {
    /// The last LSN that was assigned.
    pub sequenced_lsn: Lsn,
    /// The LSN up to which all records are written.
    pub written_lsn: Lsn,
    /// The LSN up to which all records are durable.
    pub synced_lsn: Lsn,
    /// The LSN up to which all records are preserved in the catalog.
    pub preserved_lsn: Lsn,
    /// The LSN up to which all records are in place.
    pub destaged_lsn: Lsn,
    /// Number of stretches of the journal that wait for destage and can't share a commit.
    pub journal_turns: u64,
    /// Bytes of the journal that are used.
    pub journal_used: u64,
    /// Bytes of the journal that can be used.
    pub journal_capacity: u64,
    /// Number of group writes to the journal.
    pub journal_groups: u64,
    /// Number of records written to the journal.
    pub journal_records: u64,
    /// Number of bytes written to the journal, headers included.
    pub journal_bytes: u64,
    /// Number of times that a writer had to wait for room in the journal.
    pub backpressure_waits: u64,
    /// Number of staged pieces (blocks and parts of blocks) in memory.
    pub staged_pieces: u64,
    /// Number of destage batches that are done.
    pub destage_batches: u64,
    /// Everything up to this LSN is in place and can be found. It runs ahead of `destaged_lsn`,
    /// which the catalog has.
    pub settled_lsn: Lsn,
    /// Number of times that a request carried out records itself, because it needed what a history
    /// records of them.
    pub history_waits: u64,
    /// Number of bytes written to physical volumes.
    pub destage_bytes: u64,
    /// Bytes of slots that were newly allocated.
    pub allocated_bytes: u64,
    /// Number of bytes that were written by reference: straight to their slots.
    pub direct_bytes: u64,
    /// Bytes of writes that histories recorded without a copy of what was replaced, since the pool
    /// was opened.
    pub kept_bytes: u64,
    /// Damaged bytes that were repaired since the pool was opened.
    pub repaired: Repaired,
    /// Bytes of slots whose medium had content wrong. Nothing is placed there again.
    pub bad_bytes: u64,
    /// Number of blocks of sums of which no copy was valid when they were loaded.
    pub damaged_sum_blocks: u64,
    /// Bytes of references that are not in place yet.
    pub referred_bytes: u64,
    /// Bytes of slots that are lent to writers and not taken.
    pub lent_bytes: u64,
    /// Replacement policy of the map cache.
    pub map_cache_policy: CachePolicy,
    /// Bytes that the map cache may hold.
    pub map_cache_size: u64,
    /// Number of map-cache hits.
    pub map_hits: u64,
    /// Number of map-cache misses.
    pub map_misses: u64,
    /// Number of map-cache evictions.
    pub map_evictions: u64,
    /// Bytes in the map cache.
    pub map_cache_used: u64,
    /// Cost of preserving.
    pub preserving: PreserveStats,
    /// Number of snapshots that policies deleted.
    pub snapshots_auto_deleted: u64,
    /// Bytes by which harder compression in the background has reduced histories.
    pub history_compacted: u64,
    /// Number of segments that histories share.
    pub shared_segments: u64,
    /// Bytes of the segments that histories share.
    pub shared_segment_bytes: u64,
    /// Number of runs in shared segments. A run is what one batch recorded of one branch.
    pub history_runs: u64,
    /// Number of runs that were sorted into segments of their own branches, since the pool was
    /// opened.
    pub history_runs_sorted: u64,
    /// Number of catalog commits.
    pub catalog_commits: u64,
    /// The verification of the catalog in the background.
    pub catalog_scrub: CatalogScrub,
    /// Completed syncs by purpose, in the order of [`SyncPurpose::ALL`].
    pub syncs: [u64; SyncPurpose::ALL.len()],
}

/// Progress of the catalog's scrub in the background, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CatalogScrub {
    /// Number of blocks of the catalog; 0 if they have no sums.
    pub blocks: u64,
    /// The next block of the present pass; 0 between passes.
    pub next: u64,
    /// The time at which the last whole pass ended, in nanoseconds since the Unix epoch. It is 0 if
    /// there was none.
    pub finished: u64,
    /// Number of whole passes so far.
    pub passes: u64,
    /// Number of blocks that were read and do not verify.
    pub damaged: u64,
}

/// The known damage of a volume or a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamageInfo {
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot, or `None` for the volume itself.
    pub snapshot: Option<String>,
    /// Ranges that can't be read: (byte offset, length).
    pub ranges: Vec<(u64, u64)>,
}

/// Progress of the scrub of data in place. The numbers of bytes are those of the current pass, or
/// of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataScrubInfo {
    /// A pass is under way.
    pub running: bool,
    /// The pass waits until it is resumed.
    pub paused: bool,
    /// The pass gives sums to what has none.
    pub adopts: bool,
    /// Bytes of slots in use.
    pub total: u64,
    /// Bytes that match their sums.
    pub verified: u64,
    /// Bytes without a sum.
    pub unknown: u64,
    /// Bytes that had no sum and got one.
    pub adopted: u64,
    /// Bytes that do not match their sums.
    pub damaged: u64,
    /// Bytes that can't be read.
    pub unreadable: u64,
    /// Bytes that were wrong or unreadable, and were repaired.
    pub repaired: u64,
    /// Bytes per second at most; 0: no limit.
    pub rate: u64,
    /// The time at which the pass began, in nanoseconds since the Unix epoch; 0: never.
    pub started: u64,
    /// The time at which the last whole pass ended; 0: never.
    pub finished: u64,
    /// Number of whole passes so far.
    pub passes: u64,
}

impl DataScrubInfo {
    /// Returns the number of bytes that the pass has looked at.
    pub fn done(&self) -> u64 {
        self.verified + self.unknown + self.adopted + self.damaged + self.unreadable + self.repaired
    }
}

/// The layout of a volume's own chunks on physical volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// Number of chunks that have a slot.
    pub chunks: u64,
    /// Number of runs of chunks that lie one after another: a read of the whole volume seeks this
    /// often.
    pub runs: u64,
}

/// Progress of a volume's relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelocationInfo {
    /// Number of the pass, from 1. Chunks that could not be moved in one pass are tried again in
    /// the next.
    pub pass: u32,
    /// Byte of the volume that this pass has reached.
    pub position: u64,
    /// Number of bytes moved so far, in all passes.
    pub moved_bytes: u64,
}

/// The origin of what a volume shows where it has nothing of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An image outside of the pool.
    Image {
        /// Path of the file or block device.
        path: String,
        /// Length of the image in bytes.
        length: u64,
        /// Why the image can't be used now.
        unavailable: Option<String>,
    },
    /// The snapshot from which the volume was cloned. It may be deleted, and so may its volume.
    Snapshot {
        /// The volume's name; empty when it was deleted.
        volume: String,
        /// The snapshot's name.
        snapshot: String,
    },
    /// The moment of a history from which the volume was recovered.
    Moment {
        /// Name of the volume whose history it is; empty if it was deleted.
        volume: String,
        /// LSN of the moment.
        lsn: Lsn,
        /// Time of the moment in nanoseconds since the Unix epoch; `None` if damage has made it
        /// unknown.
        time: Option<u64>,
    },
}

/// Progress of a volume's flattening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlattenInfo {
    /// Byte of the volume that flattening has reached.
    pub position: u64,
    /// Number of bytes copied so far.
    pub copied_bytes: u64,
    /// Why flattening can't continue for now. It is repeated by itself.
    pub stalled: Option<String>,
}

/// The result of one call of [`crate::pool::Pool::maintain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A step was taken: call again.
    Worked,
    /// There is nothing to do now.
    Idle,
}

/// The losses of an opening with [`crate::settings::PoolOptions::accept_journal_loss`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLoss {
    /// The damages, each with its file.
    pub damages: Vec<String>,
    /// Everything up to this LSN was recovered.
    pub recovered_lsn: Lsn,
    /// Everything up to this LSN is known to have been durable.
    pub durable_lsn: Lsn,
    /// The largest LSN that is known to have been assigned.
    pub last_lsn: Lsn,
    /// The writes behind the damage that were still found in the journal and are given up, by
    /// volume.
    pub volumes: Vec<VolumeLoss>,
    /// Number of control operations (snapshots, new volumes, …) behind the damage that were still
    /// found in the journal and are given up.
    pub operations: u64,
}

/// Writes of one volume that are given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLoss {
    /// The volume's name, or the number of a branch that has no volume.
    pub volume: String,
    /// Number of records.
    pub records: u64,
    /// Number of bytes that the records wrote.
    pub bytes: u64,
    /// First and last LSN of the records.
    pub lsns: (Lsn, Lsn),
}

impl fmt::Display for JournalLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal was recovered up to LSN {}; ", self.recovered_lsn)?;
        if self.durable_lsn > self.recovered_lsn {
            write!(
                f,
                "LSN {} to {} are lost, and writes acknowledged later may be lost",
                self.recovered_lsn.next(),
                self.durable_lsn
            )?;
        } else {
            write!(f, "writes acknowledged later may be lost")?;
        }
        for loss in &self.volumes {
            let VolumeLoss { volume, records, bytes, lsns: (first, last) } = loss;
            write!(
                f,
                "; {records} writes of {bytes} bytes to {volume} (LSN {first} to {last}) are discarded"
            )?;
        }
        if self.operations > 0 {
            write!(f, "; {} control operations are discarded", self.operations)?;
        }
        write!(f, "; because: {}", self.damages.join("; "))
    }
}

/// The catalog that a salvage uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CatalogSource {
    /// The pool's own catalog.
    #[default]
    Own,
    /// A catalog that was made, in memory, from a backup of the metadata.
    Backup {
        /// The file, or the physical volume, that holds the backup.
        path: String,
        /// Number of the backup: a later backup of the pool has a larger one.
        sequence: u64,
        /// The time at which the backup was made, in nanoseconds since the Unix epoch.
        time: u64,
        /// The backup was made at an orderly stop, and nothing shows that the pool was opened since
        /// then: it equals the catalog.
        exact: bool,
    },
}

/// A part of the pool that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SalvageFinding {
    /// The kind, for programs: `catalog`, `catalog-row`, `backup`, `pv`, `pv-label`, `pv-age`,
    /// `journal`, `journal-end`, `history`, `damage-unknown` or `unlocked`.
    pub code: &'static str,
    /// The object that the finding is about: `pv 1 (/dev/vdb)`, `volumes`.
    pub object: String,
    /// The error, for people.
    pub detail: String,
}

/// A volume or a snapshot that is known by name only: nothing of it can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostDevice {
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot; `None` for the volume itself.
    pub snapshot: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// The reason, for people.
    pub why: String,
}

/// The result of an opening for salvage.
#[derive(Debug, Default)]
pub struct Salvage {
    /// The catalog that the salvage uses.
    pub source: CatalogSource,
    /// The parts that are not as they must be.
    pub findings: Vec<SalvageFinding>,
    /// Reasons for which any read may return wrong data. If the list is empty, everything that is
    /// read is right.
    pub doubts: Vec<String>,
    /// Volumes and snapshots that are known by name only.
    pub lost: Vec<LostDevice>,
    /// Physical volumes that are not whole: (bytes from the start that can be read, why not more),
    /// by number.
    pub(crate) limits: BTreeMap<u32, (u64, Arc<str>)>,
    /// Why no moment of any history is shown, if none is.
    pub(crate) histories: Option<String>,
}

impl Salvage {
    /// Returns whether the opening has met no loss and no doubt. Lost ranges of volumes are found
    /// by [`crate::pool::Pool::losses`] only.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.doubts.is_empty() && self.lost.is_empty()
    }

    pub(crate) fn find(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.findings.push(SalvageFinding { code, object: object.into(), detail: detail.into() });
    }

    /// Notes that no moment of any history can be shown any more. The first reason is kept.
    pub(crate) fn distrust_histories(&mut self, why: impl Into<String>) {
        self.histories.get_or_insert_with(|| why.into());
    }
}
