//! The workload of a run: pools, options and operations that are drawn from a seed.
//!
//! Every seed has its own weights: how likely each kind of operation is, how large requests are,
//! and how often the run crashes. Runs that do a few things often find more than runs that do
//! everything a little.

use crate::fate::PowerLoss;
use crate::layouts::Shape;
use crate::oracle::{SnapId, VolId, VolumeModel};
use crate::rand::Rand;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::ids::Epoch;
use hindcast_engine::pool::{
    CachePolicy, DirectMin, Method, Order, Placement, PoolConfig, PoolOptions, SnapAware,
};
use std::time::Duration;

/// The way in which a run ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process dies.
    Kill,
    /// The machine loses power.
    Power(PowerLoss),
    /// A disk operation panics, and the process continues. The pool is poisoned. After a panic in a
    /// read of the catalog it may instead be unable to commit.
    Panic,
}

impl Crash {
    /// Draws a crash: 30 % kills, 10 % panics, and power losses of all kinds.
    pub fn random(rand: &mut Rand) -> Self {
        match rand.below(100) {
            0..30 => Crash::Kill,
            30..40 => Crash::Panic,
            _ => Crash::Power(rand.pick(&PowerLoss::ALL)),
        }
    }
}

/// A change of the machine's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockMove {
    /// This many nanoseconds pass.
    Pass(u64),
    /// The wall clock is set forward or back by this many nanoseconds.
    Set(i64),
    /// The wall clock is set to the true time.
    Right,
    /// The operator confirms the wall clock as it is.
    Confirm,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A batch of writes.
    Write {
        /// Volume.
        vol: VolId,
        /// (byte offset, length in bytes) of each write.
        parts: Vec<(u64, u64)>,
        /// Whether the batch must be durable when the call returns.
        fua: bool,
    },
    /// A read that is compared with the model.
    Read {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the run first tries a read that does not wait.
        try_first: bool,
    },
    /// A flush of a volume.
    Flush(VolId),
    /// A discard.
    Discard {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the discard must be durable when the call returns.
        fua: bool,
    },
    /// A write of zeroes.
    Zeroes {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the pool may free the space.
        unmap: bool,
        /// Whether the zeroes must be durable when the call returns.
        fua: bool,
    },
    /// A query of block status that is compared with the model.
    Status {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Maximum number of runs in the answer.
        max_runs: usize,
    },
    /// Requests that must be refused because they are misaligned or past the end.
    Misuse(VolId),
    /// Creates a volume.
    Create(VolumeModel),
    /// Changes the size of a volume.
    Resize {
        /// Volume.
        vol: VolId,
        /// New size in bytes.
        size: u64,
        /// Whether the volume may become smaller.
        force: bool,
    },
    /// Renames a volume.
    Rename(VolId, String),
    /// Makes a volume read-only or writable.
    ReadOnly(VolId, bool),
    /// Moves a volume to the trash and takes it out again.
    Trash {
        /// Volume.
        vol: VolId,
        /// Whether to do it even if handles are open.
        force: bool,
    },
    /// Sets a label of a volume, or removes it (`None`).
    LabelVolume(VolId, String, Option<String>),
    /// Deletes a volume.
    Delete {
        /// Volume.
        vol: VolId,
        /// Whether to delete it even if it has snapshots or open handles.
        force: bool,
    },
    /// Closes the handle of a volume.
    Release(VolId),
    /// Takes snapshots of volumes at one instant.
    Snapshot(Vec<(VolId, String)>),
    /// Deletes snapshots of one volume.
    DeleteSnapshots(Vec<SnapId>),
    /// Renames a snapshot.
    RenameSnapshot(SnapId, String),
    /// Creates a clone of a snapshot.
    Clone(SnapId, String),
    /// Rolls the volume of a snapshot back to it.
    RollBack {
        /// The snapshot.
        snap: SnapId,
        /// Name of the snapshot that keeps the state before.
        undo: String,
        /// Whether to do it even if handles are open.
        force: bool,
    },
    /// Changes the method by which a volume preserves.
    Method(VolId, Method),
    /// Sets whether snapshots of a volume share preserved content.
    Order(VolId, Order),
    /// Begins to move chunks of a volume back into their order.
    Relocate(VolId),
    /// Creates a volume over a new image of this many bytes. If the model's size is 0, the volume
    /// has the size of the image.
    CreateOver(VolumeModel, u64),
    /// Begins or stops to flatten a volume.
    Flatten(VolId, bool),
    /// Closes the pool, opens it once without any image, and opens it again with the images.
    LoseImages,
    /// A read of a snapshot that is compared with the model.
    ReadSnapshot {
        /// Snapshot.
        snap: SnapId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the run first tries a read that does not wait.
        try_first: bool,
    },
    /// A query of block status of a snapshot that is compared with the model.
    StatusSnapshot {
        /// Snapshot.
        snap: SnapId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Maximum number of runs in the answer.
        max_runs: usize,
    },
    /// Requests to a snapshot that must be refused.
    MisuseSnapshot(SnapId),
    /// Closes the handles of all snapshots.
    ReleaseSnapshots,
    /// Switches CDP on, changes its settings, or switches it off (`None`).
    Cdp(VolId, Option<CdpSettings>),
    /// Changes the clocks of the machine.
    Clock(ClockMove),
    /// Reads a moment of a volume and compares it with the model. The number selects one of the
    /// moments that are known.
    ReadMoment(VolId, u64),
    /// Creates a volume from a moment: (volume, number of the moment, name of the new volume).
    Recover(VolId, u64, String),
    /// Keeps a moment as a snapshot: (volume, number of the moment, name of the snapshot).
    KeepMoment(VolId, u64, String),
    /// Rolls volumes back to a moment, all at once.
    RollBackTo {
        /// (volume, name of the snapshot that keeps the state before) of each.
        vols: Vec<(VolId, String)>,
        /// Number of the moment among those of the first volume.
        pick: u64,
        /// Whether to do it even if handles are open.
        force: bool,
    },
    /// Sets a label of a snapshot, or removes it (`None`).
    Label(SnapId, String, Option<String>),
    /// Forbids or allows the deletion of a snapshot.
    Protect(SnapId, bool),
    /// Sets the space that a volume's snapshots may take, in per cent, and whether the pool deletes
    /// the oldest ones when they take more.
    Policy(VolId, u8, bool),
    /// Exports a snapshot as a stream: all of it, or its difference from another snapshot of its
    /// volume.
    Export {
        /// The snapshot.
        snap: SnapId,
        /// The snapshot that the stream builds upon. `None` means that the stream has the whole
        /// content.
        from: Option<SnapId>,
        /// The byte of the snapshot at which the stream begins.
        start: u64,
    },
    /// Begins or continues an import.
    Import {
        /// Number of the stream among those that the run keeps, oldest first.
        stream: u64,
        /// Name of the volume.
        name: String,
    },
    /// This many records of the stream arrive.
    Feed(u64),
    /// The next record of a replaced import arrives, or its end. The number selects the import,
    /// oldest first.
    FeedStale(u64),
    /// Makes the position of the import durable.
    KeepImport,
    /// Ends the import. If the whole stream has arrived, this creates a snapshot.
    EndImport,
    /// The stream breaks off.
    BreakImport,
    /// Cancels the import into a volume.
    CancelImport(VolId),
    /// Adds a physical volume.
    AddPv {
        /// Size in bytes.
        size: u64,
        /// Whether it is a block device.
        device: bool,
    },
    /// Starts or stops to drain a physical volume. The number selects it in the list.
    DrainPv(u64, bool),
    /// Removes a physical volume, if it is empty. The number selects it in the list.
    RemovePv(u64),
    /// Changes the placement.
    Placement(Placement),
    /// Sets the placement of a volume. `None`: that of the pool.
    VolumePlacement(VolId, Option<Placement>),
    /// Sets the least size of a volume's writes by reference.
    DirectMin(VolId, DirectMin),
    /// Sets the weight of a physical volume. The number selects it in the list.
    Weight(u64, u32),
    /// Begins to rebalance the pool, or stops that.
    Rebalance(bool),
    /// Upgrades the pool, with a feature that pools do not have at first.
    EnableFeature,
    /// This many background steps.
    Maintain(u64),
    /// Background steps until nothing is left to do.
    Settle,
    /// Carries out the whole journal.
    Drain,
    /// Closes the pool, loses power after that if given, and opens the pool.
    Reopen(Option<PowerLoss>),
    /// Closes the pool, checks it offline, and opens it.
    Check,
    /// Closes the pool, damages its catalog (drawn from this number), repairs it, and opens it.
    /// Some numbers remove the catalog instead and restore it from a backup.
    Injure(u64),
    /// Reads everything.
    Verify,
    /// Writes until the pool is full.
    Fill(VolId),
    /// Crashes now, between two operations.
    Crash(Crash),
    /// Plans a crash after this many disk operations.
    CrashIn(u64, Crash),
    /// Some sectors of one physical volume become unreadable.
    BadReads,
    /// A bit flips in a block of the first physical volume that holds data. The number tells how
    /// many blocks with content come before it at least. If volume 1 is recorded, nothing may be
    /// lost by that.
    Rot(u64),
    /// The next sync of this purpose fails.
    FailSync(SyncPurpose),
    /// Writes to one physical volume, or its syncs, fail soon. The number encodes three values:
    ///
    /// - Bit 0 is 1 if syncs fail, and 0 if writes fail.
    /// - Bits 1 and up select the physical volume, modulo the number of physical volumes.
    /// - Bits 16 and up, modulo 16, are the number of changes until the failure.
    FailPv(u64),
    /// Ends the faults of disks, except unreadable sectors.
    ClearFaults,
}

impl Op {
    /// Returns the volumes that the operation needs.
    pub fn volumes(&self) -> Vec<VolId> {
        match self {
            Op::Write { vol, .. }
            | Op::Read { vol, .. }
            | Op::Discard { vol, .. }
            | Op::Zeroes { vol, .. }
            | Op::Status { vol, .. }
            | Op::Resize { vol, .. }
            | Op::Cdp(vol, _)
            | Op::ReadMoment(vol, _)
            | Op::Recover(vol, ..)
            | Op::KeepMoment(vol, ..)
            | Op::Delete { vol, .. }
            | Op::Trash { vol, .. }
            | Op::LabelVolume(vol, ..)
            | Op::Flush(vol)
            | Op::Misuse(vol)
            | Op::Rename(vol, _)
            | Op::ReadOnly(vol, _)
            | Op::Release(vol)
            | Op::Method(vol, _)
            | Op::Relocate(vol)
            | Op::Order(vol, _)
            | Op::VolumePlacement(vol, _)
            | Op::DirectMin(vol, _)
            | Op::Flatten(vol, _)
            | Op::Policy(vol, ..)
            | Op::CancelImport(vol)
            | Op::Fill(vol) => vec![*vol],
            Op::Snapshot(wanted) | Op::RollBackTo { vols: wanted, .. } => {
                wanted.iter().map(|w| w.0).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the snapshots that the operation needs.
    pub fn snapshots(&self) -> Vec<SnapId> {
        match self {
            Op::DeleteSnapshots(snaps) => snaps.clone(),
            Op::Export { snap, from, .. } => from.iter().chain([snap]).copied().collect(),
            Op::RenameSnapshot(snap, _)
            | Op::Label(snap, ..)
            | Op::Protect(snap, _)
            | Op::Clone(snap, _)
            | Op::RollBack { snap, .. }
            | Op::ReadSnapshot { snap, .. }
            | Op::StatusSnapshot { snap, .. }
            | Op::MisuseSnapshot(snap) => vec![*snap],
            _ => Vec::new(),
        }
    }

    /// Returns how many numbers of volumes and of snapshots the operation assigns.
    pub fn creates(&self) -> (VolId, SnapId) {
        match self {
            Op::Create(_) | Op::CreateOver(..) | Op::Clone(..) | Op::Import { .. } => (1, 0),
            Op::Snapshot(wanted) | Op::RollBackTo { vols: wanted, .. } => (0, wanted.len() as SnapId),
            Op::Recover(..) => (1, 0),
            Op::RollBack { .. } | Op::EndImport | Op::FeedStale(_) | Op::KeepMoment(..) => (0, 1),
            _ => (0, 0),
        }
    }

    /// Returns the end of the range that the operation touches, in bytes.
    pub fn end(&self) -> u64 {
        match self {
            Op::Write { parts, .. } => parts.iter().map(|(offset, len)| offset + len).max().unwrap_or(0),
            Op::Read { offset, len, .. }
            | Op::Discard { offset, len, .. }
            | Op::Zeroes { offset, len, .. }
            | Op::ReadSnapshot { offset, len, .. }
            | Op::StatusSnapshot { offset, len, .. }
            | Op::Status { offset, len, .. } => offset + len,
            _ => 0,
        }
    }
}

/// The pool of a run and its options.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Configuration of the pool, fixed at its creation.
    pub config: PoolConfig,
    /// Options of each opening.
    pub options: PoolOptions,
    /// Placement at the creation.
    pub placement: Placement,
    /// Physical volumes at the creation: (size in bytes, whether it is a block device).
    pub pvs: Vec<(u64, bool)>,
    /// Bytes that the file system below can hold. `None` means that it never gets full.
    pub backing: Option<u64>,
    /// Whether the pool has the feature `references` from the start.
    pub references: bool,
    /// Whether the pool has the feature `sums` from the start.
    pub sums: bool,
    /// The layout that the pool is on.
    pub layout: Option<Shape>,
    /// Whether a pool on a layout has a spare disk, which steps in at once.
    pub spares: bool,
    /// Whether a pool on a layout grows by further disks.
    pub grows: bool,
    /// Whether a layout has a disk more, whose space is kept for what one of them has.
    pub reserve: bool,
    /// Whether disks make zeros, so that a RAID-5 gives space back.
    pub makes_zeros: bool,
    /// Whether the place of a slot may depend on the chunk that it is for.
    pub by_chunk: bool,
    /// Whether physical volumes that are added may be dedicated.
    pub dedicates: bool,
    /// Whether volumes get least sizes of writes by reference of their own.
    pub own_direct: bool,
}

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// The next scrub of the catalog begins as soon as a pass is done.
const SCRUB_INTERVAL: Duration = Duration::from_millis(1);
/// Each pass ends with a commit.
const DATA_SCRUB_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes that the pool leaves to its catalog. This is so little that without promises a history
/// would soon take it.
const BACKING_MARGIN: u64 = 4 * MIB;

/// Byte on a physical volume at which extents begin. The label is before it.
const PV_HEAD: u64 = MIB;

impl Plan {
    /// Draws a plan.
    pub fn random(rand: &mut Rand) -> Self {
        let extent_size = (64 * KIB) << rand.below(4);
        let segment_size = (256 * KIB) << rand.below(3);
        let config = PoolConfig {
            extent_size,
            journal_size: segment_size * rand.between(4, 8),
            segment_size,
            atomic_unit: rand.pick(&[512, 4096]),
        };
        let pvs = (0..rand.between(1, 3)).map(|_| Self::pv(rand, extent_size)).collect();
        // What a pool always needs: the margin of the catalog, the journal, whose files are not
        // created yet, room for the copy of its tail, and some more.
        let needed = BACKING_MARGIN + config.journal_size + config.segment_size + MIB / 8;
        let backing = needed + rand.below(8 * MIB);
        let backing = rand.percent(15).then_some(backing);
        // Two runs of five flatten at the small depths 1 and 3, and two at 32. One never flattens
        // by itself. This is not drawn, so that old seeds repeat their runs.
        let flatten_depth = [1, 3, 32, 32, 0][(config.journal_size / segment_size - 4) as usize];
        let options = PoolOptions { flatten_depth, ..Self::options(rand) };
        Plan {
            config,
            options,
            placement: Self::placement(rand),
            pvs,
            backing,
            references: false,
            sums: false,
            layout: None,
            spares: false,
            grows: false,
            reserve: false,
            makes_zeros: false,
            by_chunk: false,
            dedicates: false,
            own_direct: false,
        }
    }

    /// Makes extents so large, and segments of the journal so small, that a chunk can be longer
    /// than a record.
    pub(crate) fn allow_large_chunks(&mut self) {
        let (extent, segment) = (512 * KIB, 256 * KIB);
        for (size, _) in &mut self.pvs {
            let room = (*size).saturating_sub(PV_HEAD) * (extent / self.config.extent_size);
            *size = PV_HEAD + room;
        }
        self.config.journal_size = self.config.journal_size / self.config.segment_size * segment;
        (self.config.extent_size, self.config.segment_size) = (extent, segment);
    }

    /// Returns the small plan that scripts use.
    pub fn small(atomic_unit: u32) -> Self {
        let config =
            PoolConfig { extent_size: 64 * KIB, journal_size: 4 << 18, segment_size: 256 * KIB, atomic_unit };
        let options = PoolOptions {
            map_cache_bytes: 16 << 10,
            map_cache_policy: CachePolicy::S3Fifo,
            // The cache holds one block of each shard.
            sum_cache_bytes: 1,
            catalog_cache_bytes: 256 << 10,
            destage_threads: 1,
            batch_bytes: 64 * KIB,
            destage_start_percent: 0,
            lazy_turns: 64,
            max_turns: 256,
            direct_min: None,
            direct_start_percent: 0,
            keep_distance: None,
            low_space_percent: 10,
            flatten_depth: 0,
            recompress_history: true,
            own_histories: 4,
            waiting_runs: 64,
            shared_segment_bytes: 256 << 20,
            renew_at_epoch: Epoch(u32::MAX - (1 << 24)),
            backing_margin: BACKING_MARGIN,
            catalog_scrub_interval: SCRUB_INTERVAL,
            data_scrub_interval: DATA_SCRUB_INTERVAL,
            data_scrub_rate: 0,
            rebuild_rate: 0,
            spare_after: Some(Duration::ZERO),
            requires_all: false,
            repairs: true,
            stamp_interval: 1_000_000,
            accept_journal_loss: false,
            // This is the minimum, so files are closed and opened again often.
            open_files: 8,
            // Nothing changes while a write waits.
            longest_delay: Duration::ZERO,
            shortage_waits: 0,
        };
        let pvs = vec![(PV_HEAD + 40 * 64 * KIB, false), (PV_HEAD + 20 * 64 * KIB, false)];
        let placement = Placement::Contiguous;
        Plan {
            config,
            options,
            placement,
            pvs,
            backing: None,
            references: false,
            sums: false,
            layout: None,
            spares: false,
            grows: false,
            reserve: false,
            makes_zeros: false,
            by_chunk: false,
            dedicates: false,
            own_direct: false,
        }
    }

    /// Draws the size in bytes and the kind (block device or not) of a physical volume.
    pub fn pv(rand: &mut Rand, extent_size: u64) -> (u64, bool) {
        let extents = rand.pick(&[2, 8, 20, 60, 100]) + rand.below(5);
        // Some sizes are not a whole number of extents.
        (PV_HEAD + extents * extent_size + rand.pick(&[0, 512, 4096, extent_size / 2]), rand.percent(25))
    }

    /// Draws options for one opening. Caches and batches are so small that every mechanism has to
    /// work.
    pub fn options(rand: &mut Rand) -> PoolOptions {
        let mut options = PoolOptions {
            map_cache_bytes: rand.pick(&[0, 4 << 10, 64 << 10, 1 << 20]),
            map_cache_policy: rand.pick(&[
                CachePolicy::RoundRobin,
                CachePolicy::Lru,
                CachePolicy::Lfu,
                CachePolicy::S3Fifo,
            ]),
            sum_cache_bytes: 1,
            catalog_cache_bytes: rand.pick(&[64 << 10, 1 << 20]),
            destage_threads: 1,
            batch_bytes: rand.pick(&[4 * KIB, 64 * KIB, 512 * KIB, 4 * MIB]),
            destage_start_percent: rand.pick(&[0, 0, 10, 50]),
            lazy_turns: 64,
            max_turns: 256,
            direct_min: None,
            direct_start_percent: 0,
            keep_distance: None,
            low_space_percent: 10,
            flatten_depth: 0,
            recompress_history: true,
            own_histories: 4,
            waiting_runs: 64,
            shared_segment_bytes: 256 << 20,
            renew_at_epoch: Epoch(u32::MAX - (1 << 24)),
            backing_margin: BACKING_MARGIN,
            catalog_scrub_interval: SCRUB_INTERVAL,
            data_scrub_interval: DATA_SCRUB_INTERVAL,
            data_scrub_rate: 0,
            rebuild_rate: 0,
            spare_after: Some(Duration::ZERO),
            requires_all: false,
            repairs: true,
            stamp_interval: 5_000_000,
            accept_journal_loss: false,
            // This is the minimum, so files are closed and opened again often.
            open_files: 8,
            // Nothing changes while a write waits.
            longest_delay: Duration::ZERO,
            shortage_waits: 0,
        };
        // These values follow from values above and are not drawn, so that old seeds repeat their
        // runs.
        (options.lazy_turns, options.max_turns) = match options.batch_bytes / KIB {
            4 => (2, 4),
            64 => (8, 12),
            _ => (64, 256),
        };
        // Each opening has its own idea of which writes are large.
        options.direct_min = match options.batch_bytes / KIB {
            4 => Some(4 * KIB),
            64 => Some(16 * KIB),
            512 => Some(64 * KIB),
            _ => None,
        };
        options.keep_distance = options.direct_min.map(|min| 4 * min);
        // In some openings, large writes go through the journal until there are many.
        options.direct_start_percent = if options.map_cache_bytes >> 10 == 64 { 10 } else { 0 };
        // In most openings there are more histories than segments of their own for them, and the
        // pool soon sorts shared segments.
        options.own_histories = match options.map_cache_bytes >> 10 {
            0 | 4 => 0,
            64 => 1,
            _ => 4,
        };
        options.waiting_runs = if options.catalog_cache_bytes >> 20 == 0 { 2 } else { 6 };
        options.shared_segment_bytes = options.batch_bytes / 2;
        options
    }

    /// Draws the sizes of the snap-aware placement.
    pub(crate) fn snap_aware(rand: &mut Rand) -> Placement {
        let (slice, gap) = (rand.pick(&[1, 2, 5, 16]), rand.pick(&[1, 3, 8]));
        Placement::SnapAware(SnapAware { slice, gap })
    }

    pub(crate) fn placement(rand: &mut Rand) -> Placement {
        rand.pick(&[Placement::Anywhere, Placement::Contiguous])
    }
}
