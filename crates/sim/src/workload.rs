//! What a run does: pools, options and operations drawn from a seed.
//!
//! Every seed gets a mood of its own: how likely each kind of operation is, how large requests are, how often it
//! crashes. Runs that do a few things often find more than runs that do everything a little.

use crate::fate::PowerLoss;
use crate::oracle::{State, VolId, VolumeModel};
use crate::rand::Rand;
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::pool::{CachePolicy, Placement, PoolConfig, PoolOptions};

/// How a run ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process dies.
    Kill,
    /// The machine loses power.
    Power(PowerLoss),
}

impl Crash {
    /// Any.
    pub fn random(rand: &mut Rand) -> Self {
        if rand.percent(35) { Crash::Kill } else { Crash::Power(rand.pick(&PowerLoss::ALL)) }
    }
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
    /// No more faults.
    ClearFaults,
}

impl Op {
    /// The volume that it is about.
    pub fn volume(&self) -> Option<VolId> {
        match self {
            Op::Write { vol, .. }
            | Op::Read { vol, .. }
            | Op::Discard { vol, .. }
            | Op::Zeroes { vol, .. }
            | Op::Status { vol, .. }
            | Op::Resize { vol, .. }
            | Op::Delete { vol, .. }
            | Op::Flush(vol)
            | Op::Misuse(vol)
            | Op::Rename(vol, _)
            | Op::ReadOnly(vol, _)
            | Op::Release(vol)
            | Op::Fill(vol) => Some(*vol),
            _ => None,
        }
    }

    /// The end of what it touches, in bytes.
    pub fn end(&self) -> u64 {
        match self {
            Op::Write { parts, .. } => parts.iter().map(|(offset, len)| offset + len).max().unwrap_or(0),
            Op::Read { offset, len, .. }
            | Op::Discard { offset, len, .. }
            | Op::Zeroes { offset, len, .. }
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

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

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
        let backing = 64 * MIB + config.journal_size + rand.below(8 * MIB);
        let backing = rand.percent(15).then_some(backing);
        Plan { config, options: Self::options(rand), placement: Self::placement(rand), pvs, backing }
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
            low_space_percent: 10,
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
        PoolOptions {
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
            low_space_percent: 10,
        }
    }

    fn placement(rand: &mut Rand) -> Placement {
        rand.pick(&[Placement::Anywhere, Placement::Contiguous])
    }
}

/// Kinds of operations and their usual weight.
const KINDS: [(Kind, u64); 20] = [
    (Kind::Write, 30),
    (Kind::Read, 12),
    (Kind::Flush, 6),
    (Kind::Discard, 5),
    (Kind::Zeroes, 4),
    (Kind::Status, 3),
    (Kind::Maintain, 14),
    (Kind::Settle, 1),
    (Kind::Drain, 1),
    (Kind::Crash, 4),
    (Kind::Create, 3),
    (Kind::Resize, 3),
    (Kind::Shape, 2),
    (Kind::Delete, 2),
    (Kind::Pv, 3),
    (Kind::Reopen, 2),
    (Kind::Check, 1),
    (Kind::Verify, 1),
    (Kind::Fill, 1),
    (Kind::Fault, 1),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Flush,
    Discard,
    Zeroes,
    Status,
    Maintain,
    Settle,
    Drain,
    Crash,
    Create,
    Resize,
    Shape,
    Delete,
    Pv,
    Reopen,
    Check,
    Verify,
    Fill,
    Fault,
}

/// Draws operations.
pub struct Generator {
    rand: Rand,
    weights: Vec<(Kind, u64)>,
    max_volumes: u64,
    /// Requests have up to this many bytes, mostly.
    request: u64,
    huge: bool,
    crash_spread: u64,
    extent_size: u64,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d.1", "e-2", "F_3"];
const MAX_VOLUME: u64 = 64 << 40;

impl Generator {
    /// With a mood from `rand`.
    pub fn new(mut rand: Rand, extent_size: u64) -> Self {
        let weigh = |rand: &mut Rand, weight| weight * rand.pick(&[0, 1, 1, 1, 4]);
        let mut weights: Vec<(Kind, u64)> = KINDS.iter().map(|(k, w)| (*k, weigh(&mut rand, *w))).collect();
        // Without writes nothing else matters.
        weights[0].1 = weights[0].1.max(10);
        Generator {
            weights,
            max_volumes: rand.between(1, 4),
            request: rand.pick(&[4 * KIB, 16 * KIB, 64 * KIB, 600 * KIB]),
            huge: rand.percent(25),
            crash_spread: rand.pick(&[5, 30, 200]),
            extent_size,
            rand,
        }
    }

    /// The next operation in this state.
    pub fn next(&mut self, state: &State) -> Op {
        if state.volumes.is_empty() {
            return self.create(state);
        }
        loop {
            let kind = self.kind();
            if let Some(op) = self.draw(kind, state) {
                return op;
            }
        }
    }

    fn kind(&mut self) -> Kind {
        let total = self.weights.iter().map(|w| w.1).sum();
        let mut at = self.rand.below(total);
        for (kind, weight) in &self.weights {
            if at < *weight {
                return *kind;
            }
            at -= weight;
        }
        Kind::Write
    }

    fn draw(&mut self, kind: Kind, state: &State) -> Option<Op> {
        let ids: Vec<VolId> = state.volumes.keys().copied().collect();
        let vol = self.rand.pick(&ids);
        let volume = state.volumes.get(&vol)?;
        let op = match kind {
            Kind::Write if volume.read_only && self.rand.percent(90) => return None,
            Kind::Write => {
                let count = if self.rand.percent(80) { 1 } else { self.rand.between(2, 6) };
                let parts = (0..count).map(|_| self.range(volume)).collect();
                Op::Write { vol, parts, fua: self.rand.percent(15) }
            }
            Kind::Read => {
                let (offset, len) = self.range(volume);
                Op::Read { vol, offset, len, try_first: self.rand.percent(40) }
            }
            Kind::Flush => Op::Flush(vol),
            Kind::Discard => {
                let (offset, len) = self.long_range(volume);
                Op::Discard { vol, offset, len, fua: self.rand.percent(10) }
            }
            Kind::Zeroes => {
                let unmap = self.rand.percent(50);
                let (offset, len) = if unmap { self.long_range(volume) } else { self.range(volume) };
                Op::Zeroes { vol, offset, len, unmap, fua: self.rand.percent(10) }
            }
            Kind::Status if self.rand.percent(10) => Op::Misuse(vol),
            Kind::Status => {
                let (offset, len) = self.long_range(volume);
                Op::Status { vol, offset, len, max_runs: self.rand.pick(&[1, 2, 8, 1000]) }
            }
            Kind::Maintain => Op::Maintain(self.rand.between(1, 8)),
            Kind::Settle => Op::Settle,
            Kind::Drain => Op::Drain,
            Kind::Crash => Op::CrashIn(1 + self.rand.below(self.crash_spread), Crash::random(&mut self.rand)),
            Kind::Create if state.volumes.len() as u64 >= self.max_volumes => return None,
            Kind::Create => self.create(state),
            Kind::Resize => self.resize(vol, volume),
            Kind::Shape if self.rand.percent(50) => Op::Rename(vol, self.rand.pick(&NAMES).into()),
            Kind::Shape => Op::ReadOnly(vol, self.rand.percent(30)),
            Kind::Delete if self.rand.percent(40) => Op::Release(vol),
            Kind::Delete => Op::Delete { vol, force: self.rand.percent(50) },
            Kind::Pv => self.pv(),
            Kind::Reopen if self.rand.percent(50) => Op::Reopen(None),
            Kind::Reopen => Op::Reopen(Some(self.rand.pick(&PowerLoss::ALL))),
            Kind::Check => Op::Check,
            Kind::Verify => Op::Verify,
            Kind::Fill => Op::Fill(vol),
            Kind::Fault => match self.rand.below(4) {
                0 => Op::FailSync(self.rand.pick(&SyncPurpose::ALL)),
                1 | 2 => Op::BadReads,
                _ => Op::ClearFaults,
            },
        };
        Some(op)
    }

    fn create(&mut self, state: &State) -> Op {
        let rand = &mut self.rand;
        let block_size: u32 = rand.pick(&[512, 512, 4096]);
        let most = self.extent_size.min(64 * KIB);
        let mut chunk_size = 512 << rand.below(8);
        while chunk_size < u64::from(block_size) || chunk_size > most {
            chunk_size = 512 << rand.below(8);
        }
        let taken = |name: &str| state.volumes.values().any(|v| v.name == name);
        // Mostly a name that is free; now and then one that is not.
        let name = (0..4).map(|_| rand.pick(&NAMES)).find(|n| !taken(n)).unwrap_or(NAMES[0]);
        let size = self.size(block_size);
        Op::Create(VolumeModel::new(name.into(), size, chunk_size, block_size, self.rand.percent(5)))
    }

    fn size(&mut self, block_size: u32) -> u64 {
        let block = u64::from(block_size);
        let rand = &mut self.rand;
        let size = match rand.below(10) {
            0 => block,
            1 => rand.between(1, 64 * KIB),
            2 if self.huge => MAX_VOLUME,
            3 if self.huge => rand.between(1 << 30, MAX_VOLUME),
            _ => rand.between(64 * KIB, 3 * MIB),
        };
        size.next_multiple_of(block).min(MAX_VOLUME)
    }

    fn resize(&mut self, vol: VolId, volume: &VolumeModel) -> Op {
        let block = u64::from(volume.block_size);
        let size = match self.rand.below(4) {
            0 => self.size(volume.block_size),
            // Close by, so that chunks are cut.
            1 => volume.size.saturating_sub(block * self.rand.below(100)).max(block),
            2 => (volume.size / 2).next_multiple_of(block).max(block),
            _ => volume.size.saturating_add(block * self.rand.below(1000)).min(MAX_VOLUME),
        };
        Op::Resize { vol, size, force: self.rand.percent(80) }
    }

    fn pv(&mut self) -> Op {
        match self.rand.below(10) {
            0..=2 => {
                let (size, device) = Plan::pv(&mut self.rand, self.extent_size);
                Op::AddPv { size, device }
            }
            3..=5 => Op::DrainPv(self.rand.bits(), true),
            6 => Op::DrainPv(self.rand.bits(), false),
            7..=8 => Op::RemovePv(self.rand.bits()),
            _ => Op::Placement(Plan::placement(&mut self.rand)),
        }
    }

    /// Where clients like to go: a few places of each volume, over and over.
    fn place(&mut self, volume: &VolumeModel) -> u64 {
        let size = volume.size;
        let hot = 256 * KIB;
        let base = match self.rand.below(8) {
            0 => size.saturating_sub(hot),
            1 if size > MIB => size / 3,
            2 if !self.huge || size < 16 * MIB => self.rand.below(size),
            _ => 0,
        };
        (base + self.rand.below(hot)).min(size - 1)
    }

    fn range(&mut self, volume: &VolumeModel) -> (u64, u64) {
        let block = u64::from(volume.block_size);
        let unit = if self.rand.percent(40) { volume.chunk_size } else { block };
        let mut offset = self.place(volume) / unit * unit;
        if offset >= volume.size {
            offset = 0;
        }
        let len = match self.rand.below(6) {
            0 => block,
            1 | 2 => volume.chunk_size,
            3 => self.rand.between(1, volume.chunk_size * 3),
            _ => self.rand.between(1, self.request),
        };
        (offset, len.next_multiple_of(block).min(volume.size - offset))
    }

    fn long_range(&mut self, volume: &VolumeModel) -> (u64, u64) {
        let (offset, len) = self.range(volume);
        match self.rand.below(10) {
            0 => (0, volume.size),
            1 => (offset, volume.size - offset),
            2 => (offset, (len * 20).min(volume.size - offset)),
            _ => (offset, len),
        }
    }
}
