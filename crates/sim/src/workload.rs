//! The workload of a run: pools, options and operations that are drawn from a seed.
//!
//! Every seed has a mood of its own: how likely each kind of operation is, how large requests are,
//! how often it crashes. Runs that do a few things often find more than runs that do everything a
//! little.

use crate::fate::PowerLoss;
use crate::oracle::{SnapId, VolId, VolumeModel};
use crate::rand::Rand;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::ids::Epoch;
use hindcast_engine::pool::{CachePolicy, Method, Order, Placement, PoolConfig, PoolOptions};
use std::time::Duration;

/// How a run ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process dies.
    Kill,
    /// The machine loses power.
    Power(PowerLoss),
    /// A disk operation panics. The process lives on, with a pool that is poisoned.
    Panic,
}

impl Crash {
    /// Any.
    pub fn random(rand: &mut Rand) -> Self {
        match rand.below(100) {
            0..30 => Crash::Kill,
            30..40 => Crash::Panic,
            _ => Crash::Power(rand.pick(&PowerLoss::ALL)),
        }
    }
}

/// What happens to the machine's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockMove {
    /// So many nanoseconds go by.
    Pass(u64),
    /// The wall clock is set by so many nanoseconds.
    Set(i64),
    /// The wall clock is put right.
    Right,
    /// The wall clock is confirmed as it is.
    Confirm,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A batch of writes, each (byte offset, length).
    Write {
        /// Volume.
        vol: VolId,
        /// (byte offset, length) of each.
        parts: Vec<(u64, u64)>,
        /// Durable when it returns.
        fua: bool,
    },
    /// A read, compared with the model.
    Read {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length.
        len: u64,
        /// Without waiting, first.
        try_first: bool,
    },
    /// FLUSH.
    Flush(VolId),
    /// Discard.
    Discard {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length.
        len: u64,
        /// Durable when it returns.
        fua: bool,
    },
    /// Write zeroes.
    Zeroes {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length.
        len: u64,
        /// Space may be freed.
        unmap: bool,
        /// Durable when it returns.
        fua: bool,
    },
    /// Block status, compared with the model.
    Status {
        /// Volume.
        vol: VolId,
        /// Byte offset.
        offset: u64,
        /// Length.
        len: u64,
        /// Limit of runs.
        max_runs: usize,
    },
    /// Requests that must be refused: misaligned, past the end.
    Misuse(VolId),
    /// A new volume.
    Create(VolumeModel),
    /// Another size.
    Resize {
        /// Volume.
        vol: VolId,
        /// New size in bytes.
        size: u64,
        /// Shrink, too.
        force: bool,
    },
    /// Another name.
    Rename(VolId, String),
    /// Another access.
    ReadOnly(VolId, bool),
    /// The end of a volume.
    Delete {
        /// Volume.
        vol: VolId,
        /// Even when handles are open.
        force: bool,
    },
    /// Closes a volume's handle.
    Release(VolId),
    /// Snapshots of volumes, at one instant.
    Snapshot(Vec<(VolId, String)>),
    /// Deletes snapshots of one volume.
    DeleteSnapshots(Vec<SnapId>),
    /// Another name for a snapshot.
    RenameSnapshot(SnapId, String),
    /// A volume made of a snapshot.
    Clone(SnapId, String),
    /// Takes a snapshot's volume back to it.
    RollBack {
        /// To what.
        snap: SnapId,
        /// The name under which the state before is kept.
        undo: String,
        /// Even when handles are open.
        force: bool,
    },
    /// Another way to preserve.
    Method(VolId, Method),
    /// Whether snapshots share what is preserved.
    Order(VolId, Order),
    /// Begin to bring chunks back into their order.
    Relocate(VolId),
    /// A new volume over an image of so many bytes; with a size of 0 it has the image's.
    CreateOver(VolumeModel, u64),
    /// Begin (or stop) to make a volume independent of what it rests on.
    Flatten(VolId, bool),
    /// The pool is opened without any image, once.
    LoseImages,
    /// A read of a snapshot, compared with the model.
    ReadSnapshot {
        /// Snapshot.
        snap: SnapId,
        /// Byte offset.
        offset: u64,
        /// Length.
        len: u64,
        /// Without waiting, first.
        try_first: bool,
    },
    /// Block status of a snapshot, compared with the model.
    StatusSnapshot {
        /// Snapshot.
        snap: SnapId,
        /// Byte offset.
        offset: u64,
        /// Length.
        len: u64,
        /// Limit of runs.
        max_runs: usize,
    },
    /// Requests to a snapshot that must be refused.
    MisuseSnapshot(SnapId),
    /// Closes the handles of all snapshots.
    ReleaseSnapshots,
    /// CDP on, done otherwise, or off.
    Cdp(VolId, Option<CdpSettings>),
    /// Something happens to the clock.
    Clock(ClockMove),
    /// A look at a moment (by position among those that are known), compared with the model.
    ReadMoment(VolId, u64),
    /// A volume of a moment.
    Recover(VolId, u64, String),
    /// Takes volumes back to a moment, all at once.
    RollBackTo {
        /// Each with the name under which its state before is kept.
        vols: Vec<(VolId, String)>,
        /// The moment, by position among those of the first.
        pick: u64,
        /// Even when handles are open.
        force: bool,
    },
    /// A label of a snapshot, or its end.
    Label(SnapId, String, Option<String>),
    /// Forbids (or allows) the deletion of a snapshot.
    Protect(SnapId, bool),
    /// What a volume's snapshots may take, in per cent, and whether the oldest go when they take
    /// more.
    Policy(VolId, u8, bool),
    /// Makes a stream of a snapshot: of all of it or of what differs from another of its volume,
    /// from a byte on.
    Export {
        /// Of what.
        snap: SnapId,
        /// Upon what.
        from: Option<SnapId>,
        /// First byte.
        start: u64,
    },
    /// Begins (or goes on) to take a stream in (by its number, oldest first), into a volume of that
    /// name.
    Import {
        /// Which.
        stream: u64,
        /// Where.
        name: String,
    },
    /// So many records of the stream arrive.
    Feed(u64),
    /// A record of an import that a later one has pushed aside arrives (which: its number, oldest
    /// first), or its end does.
    FeedStale(u64),
    /// The import's position is kept.
    KeepImport,
    /// The import ends: with a snapshot, if all has arrived.
    EndImport,
    /// The stream breaks off.
    BreakImport,
    /// An import is given up.
    CancelImport(VolId),
    /// Another physical volume.
    AddPv {
        /// Size in bytes.
        size: u64,
        /// A block device.
        device: bool,
    },
    /// Starts or stops moving data away from a physical volume (by position in the list).
    DrainPv(u64, bool),
    /// Removes a physical volume (by position in the list), if it is empty.
    RemovePv(u64),
    /// Another placement.
    Placement(Placement),
    /// So many background steps.
    Maintain(u64),
    /// Background steps until nothing is left to do.
    Settle,
    /// Everything in place.
    Drain,
    /// A close (and perhaps a power loss right after it) and an open.
    Reopen(Option<PowerLoss>),
    /// A close, an offline check, and an open.
    Check,
    /// A close, damage to the catalog (drawn from this number), a repair, and an open.
    Injure(u64),
    /// Reads everything.
    Verify,
    /// Writes until the pool is full.
    Fill(VolId),
    /// A crash now, between two operations.
    Crash(Crash),
    /// Plans a crash after so many disk operations.
    CrashIn(u64, Crash),
    /// Some reads of one physical volume fail from now on.
    BadReads,
    /// A sync fails, once.
    FailSync(SyncPurpose),
    /// Writes to one physical volume, or its syncs, fail from soon on: (number of the physical
    /// volume, syncs, after so many changes) in bits 1 to 15, 0, and 16 on.
    FailPv(u64),
    /// No more faults.
    ClearFaults,
}

impl Op {
    /// The volumes that it is about.
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
            | Op::Delete { vol, .. }
            | Op::Flush(vol)
            | Op::Misuse(vol)
            | Op::Rename(vol, _)
            | Op::ReadOnly(vol, _)
            | Op::Release(vol)
            | Op::Method(vol, _)
            | Op::Relocate(vol)
            | Op::Order(vol, _)
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

    /// The snapshots that it is about.
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

    /// How many numbers of volumes and of snapshots it gives out.
    pub fn creates(&self) -> (VolId, SnapId) {
        match self {
            Op::Create(_) | Op::CreateOver(..) | Op::Clone(..) | Op::Import { .. } => (1, 0),
            Op::Snapshot(wanted) | Op::RollBackTo { vols: wanted, .. } => (0, wanted.len() as SnapId),
            Op::Recover(..) => (1, 0),
            Op::RollBack { .. } | Op::EndImport | Op::FeedStale(_) => (0, 1),
            _ => (0, 0),
        }
    }

    /// The end of what it touches, in bytes.
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

/// What a run works with.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Fixed when the pool is created.
    pub config: PoolConfig,
    /// For each open.
    pub options: PoolOptions,
    /// First placement.
    pub placement: Placement,
    /// First physical volumes: (size in bytes, block device).
    pub pvs: Vec<(u64, bool)>,
    /// Bytes that the file system below can hold; none: more than enough.
    pub backing: Option<u64>,
}

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// The catalog is scrubbed again as soon as a pass is done.
const SCRUB_INTERVAL: Duration = Duration::from_millis(1);
/// What the pool leaves to its catalog: so little that without promises a history soon takes it.
const BACKING_MARGIN: u64 = 4 * MIB;

/// Where extents begin on a physical volume: a label takes the room before.
const PV_HEAD: u64 = MIB;

impl Plan {
    /// Any.
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
        // The pool leaves this much to its catalog, and the journal's files are not made yet.
        // What a pool always needs (the journal, and room for the copy of its tail), and some.
        let needed = BACKING_MARGIN + config.journal_size + config.segment_size + MIB / 8;
        let backing = needed + rand.below(8 * MIB);
        let backing = rand.percent(15).then_some(backing);
        // Half of all runs flatten by themselves. Not drawn, so that what older seeds do stays the
        // same.
        let flatten_depth = [1, 3, 32, 32, 0][(config.journal_size / segment_size - 4) as usize];
        let options = PoolOptions { flatten_depth, ..Self::options(rand) };
        Plan { config, options, placement: Self::placement(rand), pvs, backing }
    }

    /// Makes extents so large, and the journal's segments so small, that a chunk can be longer than
    /// a record.
    pub(crate) fn allow_large_chunks(&mut self) {
        let (extent, segment) = (512 * KIB, 256 * KIB);
        for (size, _) in &mut self.pvs {
            let room = (*size).saturating_sub(PV_HEAD) * (extent / self.config.extent_size);
            *size = PV_HEAD + room;
        }
        self.config.journal_size = self.config.journal_size / self.config.segment_size * segment;
        (self.config.extent_size, self.config.segment_size) = (extent, segment);
    }

    /// A small plan that scripts use.
    pub fn small(atomic_unit: u32) -> Self {
        let config =
            PoolConfig { extent_size: 64 * KIB, journal_size: 4 << 18, segment_size: 256 * KIB, atomic_unit };
        let options = PoolOptions {
            map_cache_bytes: 16 << 10,
            map_cache_policy: CachePolicy::S3Fifo,
            catalog_cache_bytes: 256 << 10,
            destage_threads: 1,
            batch_bytes: 64 * KIB,
            destage_start_percent: 0,
            lazy_turns: 64,
            max_turns: 256,
            low_space_percent: 10,
            flatten_depth: 0,
            recompress_history: true,
            own_histories: 4,
            waiting_runs: 64,
            shared_segment_bytes: 256 << 20,
            renew_at_epoch: Epoch(u32::MAX - (1 << 24)),
            backing_margin: BACKING_MARGIN,
            catalog_scrub_interval: SCRUB_INTERVAL,
            stamp_interval: 1_000_000,
            accept_journal_loss: false,
            // As few as there can be, so that files are closed and opened again.
            open_files: 8,
            // Nothing changes while a write waits.
            longest_delay: Duration::ZERO,
            shortage_waits: 0,
        };
        let pvs = vec![(PV_HEAD + 40 * 64 * KIB, false), (PV_HEAD + 20 * 64 * KIB, false)];
        Plan { config, options, placement: Placement::Contiguous, pvs, backing: None }
    }

    /// The size and kind of a physical volume.
    pub fn pv(rand: &mut Rand, extent_size: u64) -> (u64, bool) {
        let extents = rand.pick(&[2, 8, 20, 60, 100]) + rand.below(5);
        // Not every size is a whole number of extents.
        (PV_HEAD + extents * extent_size + rand.pick(&[0, 512, 4096, extent_size / 2]), rand.percent(25))
    }

    /// Options for one open: caches and batches so small that everything has to work.
    pub fn options(rand: &mut Rand) -> PoolOptions {
        let mut options = PoolOptions {
            map_cache_bytes: rand.pick(&[0, 4 << 10, 64 << 10, 1 << 20]),
            map_cache_policy: rand.pick(&[
                CachePolicy::RoundRobin,
                CachePolicy::Lru,
                CachePolicy::Lfu,
                CachePolicy::S3Fifo,
            ]),
            catalog_cache_bytes: rand.pick(&[64 << 10, 1 << 20]),
            destage_threads: 1,
            batch_bytes: rand.pick(&[4 * KIB, 64 * KIB, 512 * KIB, 4 * MIB]),
            destage_start_percent: rand.pick(&[0, 0, 10, 50]),
            lazy_turns: 64,
            max_turns: 256,
            low_space_percent: 10,
            flatten_depth: 0,
            recompress_history: true,
            own_histories: 4,
            waiting_runs: 64,
            shared_segment_bytes: 256 << 20,
            renew_at_epoch: Epoch(u32::MAX - (1 << 24)),
            backing_margin: BACKING_MARGIN,
            catalog_scrub_interval: SCRUB_INTERVAL,
            stamp_interval: 5_000_000,
            accept_journal_loss: false,
            // As few as there can be, so that files are closed and opened again.
            open_files: 8,
            // Nothing changes while a write waits.
            longest_delay: Duration::ZERO,
            shortage_waits: 0,
        };
        // Chosen by what was chosen already: seeds that are kept go on to mean what they meant.
        (options.lazy_turns, options.max_turns) = match options.batch_bytes / KIB {
            4 => (2, 4),
            64 => (8, 12),
            _ => (64, 256),
        };
        // Most openings have more histories than segments of their own for them, and sort soon.
        options.own_histories = match options.map_cache_bytes >> 10 {
            0 | 4 => 0,
            64 => 1,
            _ => 4,
        };
        options.waiting_runs = if options.catalog_cache_bytes >> 20 == 0 { 2 } else { 6 };
        options.shared_segment_bytes = options.batch_bytes / 2;
        options
    }

    pub(crate) fn placement(rand: &mut Rand) -> Placement {
        rand.pick(&[Placement::Anywhere, Placement::Contiguous])
    }
}
