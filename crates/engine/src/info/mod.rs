//! What the pool is asked for and what it tells: plain data, no behaviour. Sizes are bytes unless a
//! name says else.

pub(crate) mod history;

use crate::disk::SyncPurpose;
use crate::health::Health;
use crate::settings::{CachePolicy, Method, Order, Placement, PoolConfig, SnapshotPolicy};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A volume as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name.
    pub name: String,
    /// Stable identity.
    pub uuid: [u8; 16],
    /// Size in bytes.
    pub size: u64,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Refuses writes.
    pub read_only: bool,
    /// Creation time, nanoseconds since the Unix epoch.
    pub created: u64,
    /// The branch it writes to.
    pub branch: u64,
    /// How it preserves what its snapshots need.
    pub method: Method,
    /// Whether snapshots share what is preserved.
    pub order: Order,
    /// How much space its snapshots may take.
    pub policy: SnapshotPolicy,
    /// The path of the image that it rests on, by way of snapshots perhaps.
    pub image: Option<String>,
    /// It is being filled from a stream, and takes no other writes.
    pub importing: bool,
    /// How its history is kept, if it is.
    pub cdp: Option<crate::settings::CdpSettings>,
    /// Bytes of slots it owns (staged writes not included).
    pub allocated: u64,
    /// Open handles (exports, connections).
    pub handles: u64,
    /// Counters since the pool was opened.
    pub stats: VolumeStats,
    /// What preserving for its snapshots has cost since.
    pub preserved: PreserveStats,
}

/// A snapshot as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The volume it belongs to.
    pub volume: String,
    /// Name, unique among the volume's snapshots.
    pub name: String,
    /// Stable identity.
    pub uuid: [u8; 16],
    /// Size of the volume at that instant, in bytes.
    pub size: u64,
    /// Creation time, nanoseconds since the Unix epoch.
    pub created: u64,
    /// The branch and the epoch that it froze.
    pub of: (u64, u32),
    /// Branches (clones, rolled-back volumes) rest on it, or a history that has it as an anchor: it
    /// can be deleted from sight, and stays until they go.
    pub pinned: bool,
    /// Open handles.
    pub handles: u64,
    /// It may not be deleted.
    pub protected: bool,
    /// When it is deleted by itself, as the clock is now: nanoseconds since the Unix epoch.
    pub expires: Option<u64>,
    /// What people and programs noted about it.
    pub labels: BTreeMap<String, String>,
    /// The identity of its content: its own UUID, or that of the snapshot that a stream brought
    /// here.
    pub content: [u8; 16],
}

/// The space of a volume and of its snapshots, in bytes of slots. What lies in the bases of a clone
/// is theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Of the volume as it is now.
    pub current: u64,
    /// Kept for snapshots only (hidden ones that something rests on included).
    pub snapshots: u64,
    /// What snapshots are expected to take.
    pub reserve: u64,
    /// Of each snapshot in sight, oldest first.
    pub of: Vec<SnapshotSpace>,
}

/// The space of a snapshot, in bytes of slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSpace {
    /// Name.
    pub name: String,
    /// Seen by it alone: comes back when only it is deleted (and nothing rests on it).
    pub unique: u64,
    /// Seen by it, and by other snapshots or the volume as it is now.
    pub shared: u64,
}

/// Counters of one volume since the pool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests (zeroing included).
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

/// What preserving has cost, since the pool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PreserveStats {
    /// Pre-image copies: chunks whose old content was copied to a place of its own (copy-on-write,
    /// and the copies of the independent order).
    pub copies: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Redirects: chunks whose new content was given another place (redirect-on-write).
    pub redirects: u64,
    /// Bytes written there.
    pub redirected_bytes: u64,
    /// Fill reads: parts of chunks that were read to complete a chunk which was written to in part,
    /// at a new place. First writes to a clone have them too.
    pub fill_reads: u64,
    /// Bytes of them.
    pub fill_bytes: u64,
    /// Bytes that clients wrote into chunks that had to be preserved for it; what was written twice
    /// before it was moved to its place counts once.
    pub host_bytes: u64,
}

impl PreserveStats {
    /// Space efficiency (Xiao et al. 2006): bytes that clients wrote over bytes that were written
    /// to snapshot space because of it. 1: nothing was wasted; less: chunks were written to in
    /// part. `None` before anything was preserved.
    pub fn space_efficiency(&self) -> Option<f64> {
        let written = self.copied_bytes + self.redirected_bytes;
        (written > 0).then(|| self.host_bytes as f64 / written as f64)
    }
}

/// Requests by the part of a volume that they touched, since the pool was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRegions {
    /// Bytes of a region, a power of two: at most 256 of them make up the volume.
    pub region_size: u64,
    /// In order; the last one may be cut by the end of the volume.
    pub regions: Vec<RegionCounts>,
}

/// Requests that touched a region: each counts once in every region that it touches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Reads.
    pub reads: u64,
    /// Writes, zeroing included.
    pub writes: u64,
}

/// The metadata that tells where chunks are, of the whole pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexSize {
    /// Pages of current maps: up to 256 chunks each.
    pub map_pages: u64,
    /// Contents kept for snapshots.
    pub versions: u64,
    /// Bytes of the catalog's file, which holds them and everything else.
    pub catalog_bytes: u64,
}

/// The metadata of one volume and its snapshots, as of the last destage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeIndex {
    /// Chunks in current maps that hold space.
    pub chunks: u64,
    /// Contents kept for snapshots that hold space.
    pub versions: u64,
    /// Bytes that their entries take, without what the store needs around them.
    pub bytes: u64,
}

/// Everything that is counted of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Requests.
    pub requests: VolumeStats,
    /// What preserving has cost.
    pub preserved: PreserveStats,
    /// Its metadata.
    pub index: VolumeIndex,
    /// Where the requests went.
    pub regions: VolumeRegions,
}

/// A physical volume as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PvInfo {
    /// Number inside the pool, never used twice.
    pub id: u32,
    /// Label identity.
    pub uuid: [u8; 16],
    /// Path as given.
    pub path: String,
    /// Usable bytes (whole extents).
    pub size: u64,
    /// Bytes of extents in use.
    pub used: u64,
    /// New slots go elsewhere and data is being moved away.
    pub draining: bool,
    /// Reads that failed since the pool was opened.
    pub read_errors: u64,
    /// The last of them; empty when there was none.
    pub last_read_error: String,
    /// What a write to it failed with: nothing is written there any more until the pool is opened
    /// again. It is still read.
    pub failure: Option<String>,
}

/// The pool as it stands.
#[derive(Debug, Clone)]
pub struct PoolInfo {
    /// Identity.
    pub uuid: [u8; 16],
    /// Fixed configuration.
    pub config: PoolConfig,
    /// Placement policy.
    pub placement: Placement,
    /// Bytes of all extents that may take data.
    pub capacity: u64,
    /// Bytes of slots in use.
    pub used: u64,
    /// Bytes that could still be promised to new writes.
    pub available: u64,
    /// As `available`, if the file systems below the pool had room for everything.
    pub own_available: u64,
    /// Bytes reserved for writes that are in the journal but not yet in place.
    pub reserved: u64,
    /// Bytes of the data directory's file system reserved for the histories of such writes, and to
    /// close what is open of them.
    pub reserved_history: u64,
    /// Bytes that the data directory's file system has available, where that is known: histories
    /// and the catalog grow there.
    pub data_available: Option<u64>,
    /// Sum of the sizes of all volumes.
    pub provisioned: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Health.
    pub health: Health,
}

/// Counters of the pool since it was opened, and its positions.
#[derive(Debug, Clone, Default)]
pub struct PoolStats {
    /// Last LSN given out.
    pub sequenced_lsn: u64,
    /// End of the contiguous written prefix.
    pub written_lsn: u64,
    /// End of the durable prefix.
    pub synced_lsn: u64,
    /// End of what is preserved in the catalog.
    pub preserved_lsn: u64,
    /// End of what is in place.
    pub destaged_lsn: u64,
    /// Stretches of the journal that wait to be carried out and can't share a commit.
    pub journal_turns: u64,
    /// Bytes of journal in use.
    pub journal_used: u64,
    /// Bytes of journal that can be used.
    pub journal_capacity: u64,
    /// Group writes to the journal.
    pub journal_groups: u64,
    /// Records written to the journal.
    pub journal_records: u64,
    /// Bytes written to the journal, headers included.
    pub journal_bytes: u64,
    /// Times that a writer had to wait for room in the journal.
    pub backpressure_waits: u64,
    /// Staged pieces (blocks and parts of blocks) in memory.
    pub staged_pieces: u64,
    /// Destage batches done.
    pub destage_batches: u64,
    /// Bytes written to physical volumes.
    pub destage_bytes: u64,
    /// Bytes of slots newly allocated.
    pub allocated_bytes: u64,
    /// The map cache's replacement.
    pub map_cache_policy: CachePolicy,
    /// Bytes that the map cache may hold.
    pub map_cache_size: u64,
    /// Map-cache hits.
    pub map_hits: u64,
    /// Map-cache misses.
    pub map_misses: u64,
    /// Map-cache evictions.
    pub map_evictions: u64,
    /// Bytes in the map cache.
    pub map_cache_used: u64,
    /// What preserving has cost.
    pub preserving: PreserveStats,
    /// Snapshots deleted by policy.
    pub snapshots_auto_deleted: u64,
    /// Bytes that histories have lost by being compressed harder in the background.
    pub history_compacted: u64,
    /// Segments that histories share.
    pub shared_segments: u64,
    /// Their bytes.
    pub shared_segment_bytes: u64,
    /// Runs in them: what one batch recorded of one branch.
    pub history_runs: u64,
    /// Runs that were brought to segments of their branches' own, since the pool was opened.
    pub history_runs_sorted: u64,
    /// Catalog commits.
    pub catalog_commits: u64,
    /// The verification of the catalog in the background.
    pub catalog_scrub: CatalogScrub,
    /// Completed syncs by purpose, in the order of [`SyncPurpose::ALL`].
    pub syncs: [u64; SyncPurpose::ALL.len()],
}

/// How far the verification of the catalog in the background has come. Its blocks are of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CatalogScrub {
    /// Blocks of the catalog; 0 when they have no sums.
    pub blocks: u64,
    /// The next block of the pass under way; 0 when none is.
    pub next: u64,
    /// When the last whole pass ended, in nanoseconds since the Unix epoch; 0 when there was none.
    pub finished: u64,
    /// Whole passes so far.
    pub passes: u64,
    /// Blocks that were read and do not verify.
    pub damaged: u64,
}

/// How a volume's own chunks lie on physical volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// Chunks that have a slot.
    pub chunks: u64,
    /// Runs of chunks that lie one after another: reading the whole volume jumps so often.
    pub runs: u64,
}

/// How far bringing a volume's chunks back into order is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelocationInfo {
    /// The first pass is 1; what could not be moved in one is tried again in the next.
    pub pass: u32,
    /// Byte of the volume that this pass has come to.
    pub position: u64,
    /// Bytes moved so far, in all passes.
    pub moved_bytes: u64,
}

/// What a volume shows where nothing of its own is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An image outside of the pool.
    Image {
        /// File or block device.
        path: String,
        /// Its length in bytes.
        length: u64,
        /// Why it can't be used now.
        unavailable: Option<String>,
    },
    /// The snapshot that it was cloned from; deleted ones, and those of deleted volumes, included.
    Snapshot {
        /// The volume's name; empty when it was deleted.
        volume: String,
        /// The snapshot's name.
        snapshot: String,
    },
    /// The moment of a history that it was recovered to.
    Moment {
        /// The name of the volume whose history it is; empty when it was deleted.
        volume: String,
        /// LSN.
        lsn: u64,
        /// Nanoseconds since the Unix epoch; `None` where damage has made it unknown.
        time: Option<u64>,
    },
}

/// How far making a volume independent of its origin is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlattenInfo {
    /// Byte of the volume that it has come to.
    pub position: u64,
    /// Bytes copied so far.
    pub copied_bytes: u64,
    /// Why it does not go on for now; it tries again by itself.
    pub stalled: Option<String>,
}

/// What one call of [`crate::pool::Pool::maintain`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something; call again.
    Worked,
    /// Nothing is left to do now.
    Idle,
}

/// What an opening with [`crate::settings::PoolOptions::accept_journal_loss`] gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLoss {
    /// What is damaged, each with its file.
    pub damages: Vec<String>,
    /// Everything up to this LSN was recovered.
    pub recovered_lsn: u64,
    /// Everything up to this LSN is known to have been durable.
    pub durable_lsn: u64,
    /// No larger LSN is known to have been given out.
    pub last_lsn: u64,
    /// By volume, the writes behind the damage that were still found in the journal and are given
    /// up.
    pub volumes: Vec<VolumeLoss>,
    /// Control operations (snapshots, new volumes, …) behind the damage that were still found and
    /// are given up.
    pub operations: u64,
}

/// Writes of one volume that are given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLoss {
    /// Its name, or the number of a branch that has no volume.
    pub volume: String,
    /// Records.
    pub records: u64,
    /// Bytes that they wrote.
    pub bytes: u64,
    /// Their LSNs.
    pub lsns: (u64, u64),
}

impl fmt::Display for JournalLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal was recovered up to LSN {}; ", self.recovered_lsn)?;
        if self.durable_lsn > self.recovered_lsn {
            write!(
                f,
                "LSN {} to {} are lost, and what was acknowledged later may be",
                self.recovered_lsn + 1,
                self.durable_lsn
            )?;
        } else {
            write!(f, "what was acknowledged later may be lost")?;
        }
        for loss in &self.volumes {
            let VolumeLoss { volume, records, bytes, lsns: (first, last) } = loss;
            write!(
                f,
                "; {records} writes of {bytes} bytes to {volume} (LSN {first} to {last}) are given up"
            )?;
        }
        if self.operations > 0 {
            write!(f, "; {} control operations are given up", self.operations)?;
        }
        write!(f, "; because: {}", self.damages.join("; "))
    }
}

/// The catalog that a salvage rests on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CatalogSource {
    /// The pool's own.
    #[default]
    Own,
    /// One that was made, in memory, out of a backup of the metadata.
    Backup {
        /// The file, or the physical volume, that the backup is in.
        path: String,
        /// A later backup of the pool has a larger one.
        sequence: u64,
        /// When it was made, in nanoseconds since the Unix epoch.
        time: u64,
        /// It was made at an orderly stop, and nothing shows that the pool was opened since: it is
        /// the catalog itself.
        exact: bool,
    },
}

/// Something of the pool that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SalvageFinding {
    /// What kind, for programs: `catalog`, `catalog-row`, `backup`, `pv`, `pv-label`, `pv-age`,
    /// `journal`, `history`, `damage-unknown` or `unlocked`.
    pub code: &'static str,
    /// What it is about: `pv 1 (/dev/vdb)`, `volumes`.
    pub object: String,
    /// What is wrong, for people.
    pub detail: String,
}

/// A volume or a snapshot that is known by name, and of which nothing can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostDevice {
    /// The volume.
    pub volume: String,
    /// Its snapshot; `None`: the volume itself.
    pub snapshot: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Why, for people.
    pub why: String,
}

/// What an opening for salvage found.
#[derive(Debug, Default)]
pub struct Salvage {
    /// The catalog that everything rests on.
    pub source: CatalogSource,
    /// What is not as it must be.
    pub findings: Vec<SalvageFinding>,
    /// Why what is read may be wrong, wherever it is read. Empty: what is read is right.
    pub doubts: Vec<String>,
    /// What is known by name only.
    pub lost: Vec<LostDevice>,
    /// Of physical volumes that are not whole: bytes from the start that can be read, and why not
    /// all of them.
    pub(crate) limits: BTreeMap<u32, (u64, Arc<str>)>,
    /// Why no moment of any history is shown.
    pub(crate) histories: Option<String>,
}

impl Salvage {
    /// Nothing is lost that the opening has met, and nothing is in doubt. Ranges of volumes are
    /// found by [`crate::pool::Pool::losses`] only.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.doubts.is_empty() && self.lost.is_empty()
    }

    pub(crate) fn find(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.findings.push(SalvageFinding { code, object: object.into(), detail: detail.into() });
    }

    /// No moment of any history can be shown any more; the first reason stays.
    pub(crate) fn distrust_histories(&mut self, why: impl Into<String>) {
        self.histories.get_or_insert_with(|| why.into());
    }
}
