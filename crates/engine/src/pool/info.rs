//! What the pool is asked for and what it tells: plain data, no behaviour. Sizes are bytes unless a name says else.

use super::Health;
use crate::disk::SyncPurpose;
use std::collections::BTreeMap;
use std::time::Duration;

/// Fixed when a pool is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Unit of allocation on physical volumes: a power of two, 64 KiB to 1 GiB.
    pub extent_size: u64,
    /// Bytes of journal, in segments; at least four segments.
    pub journal_size: u64,
    /// Bytes of one journal segment: a power of two, 256 KiB to 256 MiB.
    pub segment_size: u64,
    /// What every physical volume writes atomically (512 or 4096): slots overwritten in place never share one.
    pub atomic_unit: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig { extent_size: 4 << 20, journal_size: 1 << 30, segment_size: 32 << 20, atomic_unit: 4096 }
    }
}

/// Chosen each time a pool is opened.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Bound of the map-page cache, shared by all volumes.
    pub map_cache_bytes: usize,
    /// Its replacement.
    pub map_cache_policy: CachePolicy,
    /// Bound of the catalog's page cache.
    pub catalog_cache_bytes: usize,
    /// Threads that apply a batch (1: all on the caller's thread, as the simulator wants it).
    pub destage_threads: usize,
    /// Journal bytes in one destage batch; at most an eighth of the journal.
    pub batch_bytes: u64,
    /// Destage starts when this share of the journal is in use, in per cent (0: at once).
    pub destage_start_percent: u8,
    /// Destage starts when so many stretches of the journal wait that can't share a commit, however
    /// few bytes they are: whoever needs the journal to be carried out, and a writer that finds it
    /// full, waits for them all.
    pub lazy_turns: usize,
    /// So many of them may wait, and one more; what would add to them (snapshots, marks, long
    /// discards) waits for the first ones to go.
    pub max_turns: usize,
    /// Warn when less than this share of the capacity is free, in per cent.
    pub low_space_percent: u8,
    /// Volumes that rest on more levels than this are made independent of them in the background (0: never).
    pub flatten_depth: u32,
    /// When nothing else is to be done old history is compressed harder, and what histories have in
    /// shared segments is sorted apart though it is little.
    pub recompress_history: bool,
    /// Branches of a batch that are recorded in segments of their own, at most: those with the most
    /// to record. The others share segments.
    pub own_histories: usize,
    /// So many runs of a branch may wait in shared segments before they are brought to segments of
    /// its own, and twice as many wait at most; fewer where there are very many branches.
    pub waiting_runs: usize,
    /// Bytes of shared segments from which on the oldest of them is emptied.
    pub shared_segment_bytes: u64,
    /// A volume whose branch has come to this epoch goes on with a new branch, without its clients
    /// noticing.
    pub renew_at_epoch: u32,
    /// Files of histories that are kept open; a history may have any number of them. Those that a
    /// batch is writing to come on top.
    pub open_files: usize,
    /// How often, at intervals of 5 ms, a writer that finds the journal full looks for room while
    /// background work waits for the end of a shortage. Then its write is refused.
    pub shortage_waits: u32,
    /// Bytes of the data directory's file system that neither physical volumes nor histories take: the catalog grows there.
    pub backing_margin: u64,
    /// So often all of the catalog is read and verified in the background (zero: never).
    pub catalog_scrub_interval: Duration,
    /// Physical volumes get a new stamp with the first commit after so many nanoseconds: what was
    /// copied, or restored, within a shorter time of one run is not told from what is there.
    pub stamp_interval: u64,
    /// Damage of the journal that would keep the pool from opening is accepted:
    /// [`super::Pool::journal_loss`] tells what was lost.
    pub accept_journal_loss: bool,
}

impl PoolOptions {
    /// Bytes of the catalog's ballast, which comes on top of the margin.
    pub(crate) fn ballast(&self) -> u64 {
        self.backing_margin / 4
    }

    /// What a batch carries is let go of as a whole: writers shall not have to wait for it.
    pub(crate) fn fit(&mut self, config: &PoolConfig) {
        self.batch_bytes = self.batch_bytes.min(config.journal_size / 8);
        // With none allowed nothing could begin.
        self.max_turns = self.max_turns.max(1);
    }
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            map_cache_bytes: 64 << 20,
            map_cache_policy: CachePolicy::S3Fifo,
            catalog_cache_bytes: 64 << 20,
            destage_threads: 2,
            batch_bytes: 128 << 20,
            destage_start_percent: 60,
            lazy_turns: 64,
            max_turns: 256,
            low_space_percent: 10,
            flatten_depth: 32,
            recompress_history: true,
            own_histories: 4,
            waiting_runs: 64,
            shared_segment_bytes: 256 << 20,
            renew_at_epoch: u32::MAX - (1 << 24),
            open_files: 256,
            shortage_waits: 1000,
            backing_margin: 64 << 20,
            catalog_scrub_interval: Duration::from_secs(7 * 86_400),
            stamp_interval: 60_000_000_000,
            accept_journal_loss: false,
        }
    }
}

/// Replacement policies of the map-page cache (ESnapII compares the first three).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CachePolicy {
    /// Round-robin: the oldest inserted goes first.
    RoundRobin,
    /// Least recently used.
    Lru,
    /// Least frequently used, ties by age.
    Lfu,
    /// S3-FIFO (Yang et al., SOSP 2023): small, main and ghost queues.
    #[default]
    S3Fifo,
}

/// Where new slots go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The first free place.
    Anywhere,
    /// Next to the chunk's neighbour where possible.
    Contiguous,
}

/// How a chunk that a snapshot needs is preserved when it is written to (Xiao et al. 2006).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// Redirect-on-write: the old place is kept, the new content gets a new one.
    #[default]
    Redirect,
    /// Copy-on-write: the old content is copied to a new place, and overwritten where it was.
    Copy,
}

/// How much space a volume's snapshots may take, and what happens beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Of the volume's size, in per cent (more than 100 is possible): what its snapshots are expected to take. Taking more
    /// is a warning, never an error.
    pub reserve_percent: u8,
    /// Delete the oldest snapshot that is not protected, one after another, while they take more than the reserve or the
    /// pool is low on space.
    pub auto_delete: bool,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        SnapshotPolicy { reserve_percent: 10, auto_delete: false }
    }
}

/// What a write preserves when several snapshots see what is there (V:Drive calls the orders horizontal and vertical).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// One version serves all of them: a write costs the same however many snapshots there are.
    #[default]
    Dependent,
    /// Each gets a copy of its own, as long as there is space to spare: for comparison. What is discarded is shared.
    Independent,
}

/// A physical volume to create or take in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PvSpec {
    /// File name inside the data directory, or an absolute path of a file or block device.
    pub path: String,
    /// Size of a file to create; `None`: the existing size of the file or device.
    pub size: Option<u64>,
    /// Overwrite a label of another pool.
    pub force: bool,
}

/// A volume to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// A multiple of `block_size`, up to 64 TiB.
    pub size: u64,
    /// A power of two, 512 B to the extent size, at least `block_size`.
    pub chunk_size: u64,
    /// 512 or 4096.
    pub block_size: u32,
    /// Refuse writes.
    pub read_only: bool,
}

/// The default chunk size: random load moves little, maps stay small (Xiao 2006 found the same).
pub const DEFAULT_CHUNK_SIZE: u64 = 16 << 10;
/// The largest volume.
pub const MAX_VOLUME_SIZE: u64 = 64 << 40;

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
    pub cdp: Option<crate::cdp::CdpSettings>,
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
    /// Branches (clones, rolled-back volumes) rest on it, or a history that has it as an anchor: it can be deleted from
    /// sight, and stays until they go.
    pub pinned: bool,
    /// Open handles.
    pub handles: u64,
    /// It may not be deleted.
    pub protected: bool,
    /// When it is deleted by itself, as the clock is now: nanoseconds since the Unix epoch.
    pub expires: Option<u64>,
    /// What people and programs noted about it.
    pub labels: BTreeMap<String, String>,
    /// The identity of its content: its own UUID, or that of the snapshot that a stream brought here.
    pub content: [u8; 16],
}

/// The space of a volume and of its snapshots, in bytes of slots. What lies in the bases of a clone is theirs.
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
    /// Pre-image copies: chunks whose old content was copied to a place of its own (copy-on-write, and the copies of the
    /// independent order).
    pub copies: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Redirects: chunks whose new content was given another place (redirect-on-write).
    pub redirects: u64,
    /// Bytes written there.
    pub redirected_bytes: u64,
    /// Fill reads: parts of chunks that were read to complete a chunk which was written to in part, at a new place. First
    /// writes to a clone have them too.
    pub fill_reads: u64,
    /// Bytes of them.
    pub fill_bytes: u64,
    /// Bytes that clients wrote into chunks that had to be preserved for it; what was written twice before it was moved to
    /// its place counts once.
    pub host_bytes: u64,
}

impl PreserveStats {
    /// Space efficiency (Xiao et al. 2006): bytes that clients wrote over bytes that were written to snapshot space because
    /// of it. 1: nothing was wasted; less: chunks were written to in part. `None` before anything was preserved.
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
    /// Bytes of the data directory's file system reserved for the histories of such writes, and to close what is open of them.
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

/// What one call of [`super::Pool::maintain`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something; call again.
    Worked,
    /// Nothing is left to do now.
    Idle,
}
