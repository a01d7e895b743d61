//! The settings of a pool and its volumes: plain data, no behaviour.
//!
//! Sizes are bytes and times are nanoseconds unless a name says otherwise.

use crate::error::{Result, invalid};
use crate::ids::Epoch;
use std::time::Duration;

/// The settings that are fixed when a pool is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Unit of allocation on physical volumes: a power of two, 64 KiB to 1 GiB.
    pub extent_size: u64,
    /// Bytes of the journal, in segments. There are at least four segments.
    pub journal_size: u64,
    /// Bytes of one journal segment: a power of two, 256 KiB to 256 MiB.
    pub segment_size: u64,
    /// Number of bytes that every physical volume writes atomically (512 or 4096). Slots that are
    /// overwritten in place never share such a unit.
    pub atomic_unit: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig { extent_size: 4 << 20, journal_size: 1 << 30, segment_size: 32 << 20, atomic_unit: 4096 }
    }
}

/// The settings that are chosen each time a pool is opened.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Bound of the map-page cache, shared by all volumes.
    pub map_cache_bytes: usize,
    /// Replacement policy of the map-page cache.
    pub map_cache_policy: CachePolicy,
    /// Bound of the cache of sums, shared by all physical volumes. 64 MiB hold the sums of 60 GiB.
    pub sum_cache_bytes: usize,
    /// Bound of the catalog's page cache.
    pub catalog_cache_bytes: usize,
    /// Number of threads that apply a batch (1: everything runs on the caller's thread, as the
    /// simulator needs it).
    pub destage_threads: usize,
    /// Journal bytes in one destage batch; at most an eighth of the journal.
    pub batch_bytes: u64,
    /// Destage starts when this share of the journal is in use, in per cent (0: at once).
    pub destage_start_percent: u8,
    /// Destage starts when this number of turns waits, however few bytes they are. (A turn is a
    /// stretch of the journal that can't share a commit.) An operation that needs the journal to be
    /// carried out waits for all turns, and so does a writer that finds the journal full. Fewer
    /// wait if turns take long: see `pace.rs`.
    pub lazy_turns: usize,
    /// At most this number of turns waits, and one more. An operation that would add another turn
    /// (snapshots, marks, long discards) waits until the first ones are done. Fewer may wait if
    /// turns take long.
    pub max_turns: usize,
    /// Writes of at least this number of bytes of whole chunks go to their slots at once, if the
    /// pool has the feature `references` (`None`: never). Where a flush is near, only longer writes
    /// do. A volume may have a size of its own: [`DirectMin`].
    pub direct_min: Option<u64>,
    /// Large writes go by reference from when this share of the journal is in use, in per cent,
    /// until clients make no large writes for a second. Before that they go through the journal: a
    /// burst that fits there is faster, and is written twice (0: always by reference).
    /// At most `destage_start_percent`.
    pub direct_start_percent: u8,
    /// A history takes an anchor after this number of bytes of writes by reference. What the next
    /// such writes replace then stays in its slots, and is not copied to the log. Histories without
    /// anchors, or with records that only lead forward, copy it. `None`: volumes with a history
    /// write through the journal.
    pub keep_distance: Option<u64>,
    /// Warn when less than this share of the capacity is free, in per cent.
    pub low_space_percent: u8,
    /// Volumes that rest on more levels than this are flattened in the background (0: never).
    pub flatten_depth: u32,
    /// When there is nothing else to do, old history is compressed harder, and even a few runs of a
    /// history in shared segments are sorted.
    pub recompress_history: bool,
    /// Number of branches of a batch that are recorded in segments of their own, at most. They are
    /// those with the most to record. The others share segments.
    pub own_histories: usize,
    /// Number of runs of a branch that may wait in shared segments before they are sorted into
    /// segments of its own. At most twice as many wait. Fewer wait if there are very many branches.
    pub waiting_runs: usize,
    /// Bytes of shared segments above which the oldest of them is emptied.
    pub shared_segment_bytes: u64,
    /// A volume whose branch has reached this epoch gets a new branch. Its clients do not notice.
    pub renew_at_epoch: Epoch,
    /// Number of files of histories that are kept open; a history may have any number of files.
    /// Files to which a batch writes are kept open in addition.
    pub open_files: usize,
    /// The longest time that a write waits because its volume filled the journal faster than
    /// destage empties it, while others write, too. Zero: no write waits before the journal is
    /// full. Default: 1 s. See `throttle.rs`.
    pub longest_delay: Duration,
    /// Number of times, at intervals of 5 ms, that a writer that finds the journal full checks for
    /// room while background work waits for the end of a shortage. After that, its write is
    /// refused.
    pub shortage_waits: u32,
    /// Bytes of the data directory's file system that neither physical volumes nor histories take.
    /// The catalog grows there.
    pub backing_margin: u64,
    /// Interval at which the whole catalog is read and verified in the background (zero: never).
    pub catalog_scrub_interval: Duration,
    /// Interval from the end of one scrub of the data in place to the beginning of the next (zero:
    /// never by itself).
    pub data_scrub_interval: Duration,
    /// Bytes per second that a scrub that begins by itself reads at most; 0: no limit.
    pub data_scrub_rate: u64,
    /// Bytes per second that a rebuild of a member of a layout copies at most, unless the rebuild
    /// was begun with a rate of its own; 0: no limit.
    pub rebuild_rate: u64,
    /// Time from when a member of a layout goes out, or from the opening of the pool, until it is
    /// rebuilt onto a spare disk (`None`: never by itself).
    pub spare_after: Option<Duration>,
    /// A missing member of a layout refuses the opening, also if the others have everything.
    pub requires_all: bool,
    /// Damaged data is repaired where the pool has its content elsewhere.
    pub repairs: bool,
    /// Physical volumes get a new stamp with the first commit after this number of nanoseconds. A
    /// copy or a restored backup from within a shorter time of one run can't be told from the
    /// original.
    pub stamp_interval: u64,
    /// Accepts damage of the journal that would keep the pool from opening.
    /// [`crate::pool::Pool::journal_loss`] reports what was lost.
    pub accept_journal_loss: bool,
}

impl PoolOptions {
    /// Returns the bytes of the catalog's ballast, which is in addition to the margin.
    pub(crate) fn ballast(&self) -> u64 {
        self.backing_margin / 4
    }

    /// Limits the options to what the pool's configuration allows. The journal space of a batch is
    /// released as a whole, and writers should not have to wait for it.
    pub(crate) fn fit(&mut self, config: &PoolConfig) {
        self.batch_bytes = self.batch_bytes.min(config.journal_size / 8);
        // Without a single turn, no operation could begin.
        self.max_turns = self.max_turns.max(1);
        // Once destage has begun, it may keep the journal emptier than a higher share.
        self.direct_start_percent = self.direct_start_percent.min(self.destage_start_percent);
    }
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            map_cache_bytes: 64 << 20,
            map_cache_policy: CachePolicy::S3Fifo,
            sum_cache_bytes: 64 << 20,
            catalog_cache_bytes: 64 << 20,
            destage_threads: 2,
            batch_bytes: 128 << 20,
            destage_start_percent: 60,
            lazy_turns: 32,
            max_turns: 96,
            direct_min: Some(64 << 10),
            direct_start_percent: 0,
            keep_distance: Some(64 << 20),
            low_space_percent: 10,
            flatten_depth: 32,
            recompress_history: true,
            own_histories: 4,
            waiting_runs: 64,
            shared_segment_bytes: 256 << 20,
            renew_at_epoch: Epoch(u32::MAX - (1 << 24)),
            open_files: 256,
            longest_delay: Duration::from_secs(1),
            shortage_waits: 1000,
            backing_margin: 64 << 20,
            catalog_scrub_interval: Duration::from_secs(7 * 86_400),
            data_scrub_interval: Duration::from_secs(30 * 86_400),
            data_scrub_rate: 50 << 20,
            rebuild_rate: 0,
            spare_after: Some(Duration::from_secs(600)),
            requires_all: false,
            repairs: true,
            stamp_interval: 60_000_000_000,
            accept_journal_loss: false,
        }
    }
}

/// Replacement policies of the map-page cache (ESnapII compares the first three).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CachePolicy {
    /// Round-robin: the oldest inserted page is evicted first.
    RoundRobin,
    /// Least recently used.
    Lru,
    /// Least frequently used, ties by age.
    Lfu,
    /// S3-FIFO (Yang et al., SOSP 2023): small, main and ghost queues.
    #[default]
    S3Fifo,
}

/// The sizes in bytes that may be the least of a write by reference.
pub const DIRECT_SIZES: std::ops::RangeInclusive<u64> = 4 << 10..=16 << 20;

/// The least size of a volume's writes by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DirectMin {
    /// That of the pool: [`PoolOptions::direct_min`].
    #[default]
    OfPool,
    /// The volume writes nothing by reference.
    Never,
    /// A number of bytes, one of [`DIRECT_SIZES`].
    Bytes(u64),
}

impl DirectMin {
    /// The code of [`DirectMin::Never`]. It is larger than any write.
    const NEVER: u64 = u64::MAX;

    /// Returns the value as a number, which is part of the format.
    pub(crate) fn code(self) -> u64 {
        match self {
            DirectMin::OfPool => 0,
            DirectMin::Never => Self::NEVER,
            DirectMin::Bytes(bytes) => bytes,
        }
    }

    /// Returns the value that has this code, or `None` if none has it.
    pub(crate) fn from_code(code: u64) -> Option<DirectMin> {
        match code {
            0 => Some(DirectMin::OfPool),
            Self::NEVER => Some(DirectMin::Never),
            bytes => DIRECT_SIZES.contains(&bytes).then_some(DirectMin::Bytes(bytes)),
        }
    }

    /// Refuses sizes that no volume can have.
    pub(crate) fn check(self) -> Result<()> {
        if Self::from_code(self.code()) == Some(self) {
            return Ok(());
        }
        Err(invalid("set the least size of a write by reference: it is from 4 KiB to 16 MiB"))
    }
}

/// The place of new slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The first free place.
    Anywhere,
    /// Next to the chunk's neighbour where possible.
    Contiguous,
    /// Spread over all physical volumes by their sizes: an extent's worth of a volume goes to the
    /// physical volume that a hash function names.
    Share,
    /// Near what it belongs to: what snapshots need lies in a gap behind each slice of a volume.
    SnapAware(SnapAware),
}

/// The sizes of the snap-aware placement, in extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SnapAware {
    /// Number of extents of a slice of a volume.
    pub slice: u32,
    /// Number of extents behind a slice, for what snapshots need of it.
    pub gap: u32,
}

impl SnapAware {
    /// Returns the sizes in extents of `extent_size` bytes. A slice has `slice` bytes, and behind
    /// it there is room for `snapshots` snapshots that each keep `percent` per cent of a slice.
    /// Parts of extents count as whole ones. Returns [`crate::ErrorKind::Invalid`] if a number is
    /// 0, or if a region has more than 1,048,576 extents.
    pub fn of(extent_size: u64, slice: u64, snapshots: u32, percent: u32) -> Result<SnapAware> {
        let kept = u128::from(slice) * u128::from(snapshots) * u128::from(percent) / 100;
        let extents = |bytes: u128| {
            let count = bytes.div_ceil(u128::from(extent_size.max(1)));
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let sizes = SnapAware { slice: extents(slice.into()), gap: extents(kept) };
        sizes.check().map(|()| sizes)
    }

    /// Returns whether these are sizes that a pool can have.
    pub(crate) fn is_valid(self) -> bool {
        let region = self.slice.checked_add(self.gap);
        self.slice > 0 && self.gap > 0 && region.is_some_and(|region| region <= MAX_REGION)
    }

    /// Refuses sizes that no pool can have.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        Err(invalid(format!(
            "place snap-aware: a slice and its gap have at least one extent each, and not more than {MAX_REGION} together"
        )))
    }
}

impl Placement {
    /// Returns whether the place of a slot depends on the chunk that it is for.
    pub(crate) fn is_by_chunk(self) -> bool {
        matches!(self, Placement::Share | Placement::SnapAware(_))
    }

    /// Refuses sizes that no pool can have.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Placement::SnapAware(sizes) => sizes.check(),
            _ => Ok(()),
        }
    }
}

/// The weight, in per cent, of a physical volume whose whole size counts for the placement `share`.
pub const FULL_WEIGHT: u32 = 100;

/// The largest weight of a physical volume, in per cent of its size.
pub const MAX_WEIGHT: u32 = 1000;

/// The largest number of extents of a slice and its gap.
const MAX_REGION: u32 = 1 << 20;

/// The method by which a chunk that a snapshot needs is preserved when it is written (Xiao et al.
/// 2006).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// Redirect-on-write: the old place is kept, and the new content gets a new place.
    #[default]
    Redirect,
    /// Copy-on-write: the old content is copied to a new place, and overwritten in its old place.
    Copy,
}

/// The space that a volume's snapshots may take, and the action beyond that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Space that the snapshots are expected to take, in per cent of the volume's size (more than
    /// 100 is possible). Taking more is a warning, never an error.
    pub reserve_percent: u8,
    /// Delete the oldest snapshot that is not protected, one after another, while the snapshots
    /// take more than the reserve or the pool is low on space.
    pub auto_delete: bool,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        SnapshotPolicy { reserve_percent: 10, auto_delete: false }
    }
}

/// The way in which a write preserves old content that several snapshots see (V:Drive calls the
/// orders horizontal and vertical).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// One version serves all snapshots: the cost of a write does not depend on their number.
    #[default]
    Dependent,
    /// Each snapshot gets a copy of its own, as long as there is space to spare: for comparison.
    /// Discarded content is shared.
    Independent,
}

/// A physical volume that is to be created or added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PvSpec {
    /// File name inside the data directory, or an absolute path of a file or block device.
    pub path: String,
    /// Size of a file to create; `None`: the existing size of the file or device.
    pub size: Option<u64>,
    /// Overwrite the label of another pool.
    pub force: bool,
}

/// A mirror that is to be made of disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutSpec {
    /// Name: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// How the disks hold the content.
    pub shape: LayoutShape,
    /// Number of disks whose content has space on the others, whichever they are: 0 for none.
    pub reserve: usize,
    /// The disks. They may have different sizes.
    pub members: Vec<PvSpec>,
}

/// How a physical volume is to grow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrowSpec {
    /// Disks that a mirror or RAID-5 gets. Without any, it uses all of those that it has.
    pub disks: Vec<PvSpec>,
    /// Bytes that the file of a plain physical volume gets.
    pub size: Option<u64>,
    /// Largest number of bytes per second that are copied: 0 means no limit, `None` what the
    /// pool's options say.
    pub rate: Option<u64>,
}

/// How several disks hold the content of a physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutShape {
    /// Each byte is on several disks.
    Mirror {
        /// Number of copies of each byte: 2 to 4.
        copies: usize,
    },
    /// RAID-5: rows of units, of which one is the parity of the others.
    Raid5 {
        /// Number of units of a row, with the parity: 3 to 16.
        columns: usize,
        /// Bytes of a unit: a power of two from 4 KiB to 1 MiB.
        unit: u64,
    },
}

impl LayoutShape {
    /// The unit of a row, in bytes, where nothing else is said.
    pub const DEFAULT_UNIT: u64 = 64 << 10;
}

/// A volume that is to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// Name: 1 to 128 characters of `[A-Za-z0-9._-]`, the first one alphanumeric.
    pub name: String,
    /// Size in bytes: a multiple of `block_size`, up to 64 TiB.
    pub size: u64,
    /// Chunk size in bytes: a power of two, 512 B to the extent size, at least `block_size`.
    pub chunk_size: u64,
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: u32,
    /// Whether the volume refuses writes.
    pub read_only: bool,
}

/// The default chunk size. With it, random load moves little and maps stay small (Xiao 2006 found
/// the same).
pub const DEFAULT_CHUNK_SIZE: u64 = 16 << 10;

/// The largest size of a volume, in bytes.
pub const MAX_VOLUME_SIZE: u64 = 64 << 40;

/// A discard of more bytes than this is not recorded in a history. It is sequenced right behind an
/// anchor.
pub(crate) const LONG_DISCARD: u64 = 1 << 20;

/// The policy for the insertion of anchors. A moment is reconstructed from the nearest anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnchorPolicy {
    /// Never, except when CDP begins or its encoding changes: the paper's native TRAP.
    Never,
    /// After this number of chunk writes. A write to several chunks counts for each, since it is
    /// recorded for each.
    Every(u64),
    /// After this number of nanoseconds in which there were writes.
    Interval(u64),
    /// After the number of writes that the cost model computes: see
    /// [`crate::pool::Pool::set_anchor_distance`].
    #[default]
    Model,
}

/// The length of the history that is kept. Without a limit it is kept until the volume is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Least length of the history in nanoseconds, if `bytes` allows it.
    pub time: Option<u64>,
    /// Most bytes of CDP log, up to a segment more or less.
    pub bytes: Option<u64>,
}

/// The part of each limit of a [`Retention`] that expires at once. Segments end, and histories that
/// need anchors to begin at get them, at least that often.
const LIMIT_PARTS: u64 = 8;
/// The least number of bytes, and of nanoseconds, that expire at once.
const MIN_STEP: u64 = 256 << 10;
const MIN_STEP_TIME: u64 = 1_000_000_000;

impl Retention {
    /// Returns the bytes that expire at once, if there is a limit in bytes.
    pub(crate) fn step_bytes(&self) -> Option<u64> {
        self.bytes.map(|most| (most / LIMIT_PARTS).max(MIN_STEP))
    }

    /// Returns the nanoseconds that expire at once, if there is a limit in time.
    pub(crate) fn step_time(&self) -> Option<u64> {
        self.time.map(|most| (most / LIMIT_PARTS).max(MIN_STEP_TIME))
    }
}

/// The CDP settings of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CdpSettings {
    /// The content of a record.
    pub encoding: Encoding,
    /// The compression of payloads.
    pub compression: Compression,
    /// The policy for the insertion of anchors.
    pub anchors: AnchorPolicy,
    /// Most chunk writes between two anchors, whatever `anchors` requires: the paper's M_max.
    pub max_distance: Option<u64>,
    /// The length of the history that is kept.
    pub retention: Retention,
}

impl Default for CdpSettings {
    /// Returns parity with zero runs left out, anchors by the model, kept for ever.
    fn default() -> Self {
        CdpSettings {
            encoding: Encoding::Parity,
            compression: Compression::ZeroRun,
            anchors: AnchorPolicy::Model,
            max_distance: None,
            retention: Retention::default(),
        }
    }
}

impl CdpSettings {
    /// Returns whether the history may keep what references replace in its slots: its records lead
    /// backward, it may take anchors of its own, and its limit leaves room for several steps.
    pub(crate) fn keeps_slots(&self) -> bool {
        let has_room = self.retention.bytes.is_none_or(|most| most >= LIMIT_PARTS * MIN_STEP);
        self.encoding != Encoding::Redo && self.anchors != AnchorPolicy::Never && has_room
    }

    pub(crate) fn check(&self) -> Result<()> {
        let zero = matches!(self.anchors, AnchorPolicy::Every(0) | AnchorPolicy::Interval(0))
            || self.max_distance == Some(0)
            || self.retention.time == Some(0)
            || self.retention.bytes == Some(0);
        if zero {
            return Err(invalid("set up CDP: distances and limits must be more than zero"));
        }
        Ok(())
    }
}

/// The content of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Old XOR new, the parity of TRAP: leads forward and backward.
    #[default]
    Parity = 1,
    /// The old content: leads backward only.
    Undo = 2,
    /// The new content: leads forward only.
    Redo = 3,
}

/// The compression of a payload. A payload that would not become smaller is stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// No compression.
    None = 0,
    /// Runs of zeros are left out. That is quick, and nearly the best where little of a block
    /// changes.
    #[default]
    ZeroRun = 1,
    /// LZ4.
    Lz4 = 2,
    /// Zstandard.
    Zstd = 3,
}

pub(crate) fn check_config(config: &PoolConfig) -> Result<()> {
    let within = |v: u64, low: u64, high: u64| v.is_power_of_two() && (low..=high).contains(&v);
    if !within(config.extent_size, 64 << 10, 1 << 30) {
        return Err(invalid("create a pool: the extent size must be a power of two from 64 KiB to 1 GiB"));
    }
    if !within(config.segment_size, 256 << 10, 256 << 20) {
        return Err(invalid(
            "create a pool: the segment size must be a power of two from 256 KiB to 256 MiB",
        ));
    }
    let segments = config.journal_size / config.segment_size;
    if !(4..=65_536).contains(&segments) || config.journal_size % config.segment_size != 0 {
        return Err(invalid(format!(
            "create a pool: the journal must have 4 to 65536 whole segments of {} bytes",
            config.segment_size
        )));
    }
    if !matches!(config.atomic_unit, 512 | 4096) {
        return Err(invalid("create a pool: the atomic unit must be 512 or 4096"));
    }
    Ok(())
}
