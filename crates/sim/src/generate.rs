//! The generator of operations ([`Generator`]). It draws one operation after another from a seed.
//! Each fits the state that the operations before it left.

mod direct;
mod pvs;

use crate::clock::FOR_EVER;
use crate::fate::PowerLoss;
use crate::oracle::{SnapId, SnapshotModel, State, VolId, VolumeModel};
use crate::rand::Rand;
use crate::workload::{ClockMove, Crash, KIB, MIB, Op};
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Retention};
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::pool::{Method, Order};

/// Purposes of syncs that fail in random runs. One purpose stands for everything that histories
/// write: see [`crate::SimDir::fail_next_sync`].
pub(crate) const FAILING: [SyncPurpose; 9] = {
    let [a, b, c, d, e, f, g, h, i, ..] = SyncPurpose::ALL;
    [a, b, c, d, e, f, g, h, i]
};

/// Kinds of operations and their usual weights.
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

/// Weights of the operations on snapshots. They come after the others, so that a seed without
/// snapshots draws as it did before these operations existed.
const SNAPSHOT_KINDS: [(Kind, u64); 15] = [
    (Kind::Snapshot, 7),
    (Kind::DeleteSnapshots, 4),
    (Kind::RenameSnapshot, 1),
    (Kind::Clone, 3),
    (Kind::RollBack, 2),
    (Kind::Method, 2),
    (Kind::ReadSnapshot, 6),
    (Kind::ReleaseSnapshots, 1),
    (Kind::Relocate, 2),
    (Kind::Order, 1),
    (Kind::Note, 2),
    (Kind::Policy, 2),
    (Kind::Export, 3),
    (Kind::Import, 3),
    (Kind::Feed, 6),
];

/// Weights of the operations on images outside the pool.
const IMAGE_KINDS: [(Kind, u64); 3] = [(Kind::CreateOver, 3), (Kind::Flatten, 4), (Kind::LoseImages, 1)];

/// Weights of the operations on histories.
const HISTORY_KINDS: [(Kind, u64); 5] =
    [(Kind::Cdp, 4), (Kind::ReadMoment, 8), (Kind::Recover, 1), (Kind::RollBackTo, 1), (Kind::Clock, 3)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cdp,
    Clock,
    ReadMoment,
    Recover,
    RollBackTo,
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
    Snapshot,
    DeleteSnapshots,
    RenameSnapshot,
    Clone,
    RollBack,
    Method,
    ReadSnapshot,
    ReleaseSnapshots,
    Relocate,
    Order,
    CreateOver,
    Flatten,
    LoseImages,
    Note,
    Policy,
    Export,
    Import,
    Feed,
}

/// The streams and imports of a run.
pub(crate) struct Transfers {
    /// Each stream: (first snapshot with the content that it builds upon, first snapshot with the
    /// content that it brings).
    pub(crate) streams: Vec<(Option<SnapId>, SnapId)>,
    /// Whether all records of the current import have arrived. `None` means that there is no
    /// current import.
    pub(crate) arriving: Option<bool>,
    /// Number of replaced imports whose senders may still send.
    pub(crate) stale: u64,
}

/// The subject of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// No snapshots, images or histories. Old seeds repeat their runs with it.
    Plain,
    /// All kinds of operations.
    Everything,
    /// All kinds of operations, with hundreds of snapshots.
    Crowd,
    /// All kinds of operations, with chunks that are longer than a journal record.
    Large,
}

/// Maximum number of snapshots in a run about a crowd.
const CROWD: u64 = 600;
/// Maximum number of snapshots that one operation may delete.
const AT_ONCE: u64 = 200;

/// Draws operations.
pub struct Generator {
    rand: Rand,
    weights: Vec<(Kind, u64)>,
    max_volumes: u64,
    /// Maximum size in bytes of most requests.
    request: u64,
    huge: bool,
    crash_spread: u64,
    extent_size: u64,
    /// Whether most chunks are as large as possible.
    large: bool,
    /// Whether most writes are of whole chunks, so that they go by reference.
    whole_chunks: bool,
    max_snapshots: u64,
    /// Whether the place of a slot may depend on the chunk that it is for.
    by_chunk: bool,
    /// Whether volumes get least sizes of writes by reference of their own.
    own_direct: bool,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d.1", "e-2", "F_3"];
const MAX_VOLUME: u64 = 64 << 40;

impl Generator {
    /// Creates a generator and draws its weights from `rand`.
    pub fn new(mut rand: Rand, extent_size: u64, theme: Theme) -> Self {
        let weigh = |rand: &mut Rand, weight| weight * rand.pick(&[0, 1, 1, 1, 4]);
        let mut weights: Vec<(Kind, u64)> = KINDS.iter().map(|(k, w)| (*k, weigh(&mut rand, *w))).collect();
        // Nothing else matters without writes.
        weights[0].1 = weights[0].1.max(10);
        let mut generator = Generator {
            weights,
            max_volumes: rand.between(1, 4),
            request: rand.pick(&[4 * KIB, 16 * KIB, 64 * KIB, 600 * KIB]),
            huge: rand.percent(25),
            crash_spread: rand.pick(&[5, 30, 200]),
            extent_size,
            large: theme == Theme::Large,
            whole_chunks: false,
            max_snapshots: 0,
            by_chunk: false,
            own_direct: false,
            rand,
        };
        if theme != Theme::Plain {
            let rand = &mut generator.rand;
            generator.max_snapshots = rand.pick(&[3, 10, 10, 40, 200]);
            generator.weights.extend(SNAPSHOT_KINDS.map(|(k, w)| (k, weigh(rand, w))));
            generator.weights.extend(IMAGE_KINDS.map(|(k, w)| (k, weigh(rand, w))));
            generator.weights.extend(HISTORY_KINDS.map(|(k, w)| (k, weigh(rand, w))));
        }
        if theme == Theme::Crowd {
            generator.gather();
        }
        generator
    }

    /// Draws most writes so that they can go by reference. Half of these runs have no histories,
    /// because a volume with a history has no references.
    pub(crate) fn with_references(mut self) -> Self {
        self.whole_chunks = true;
        if self.rand.percent(50) {
            self.weights.retain(|(kind, _)| *kind != Kind::Cdp);
        }
        self
    }

    /// Sets the weights so that many snapshots are taken, and few of them are lost except by
    /// deletion.
    fn gather(&mut self) {
        self.max_snapshots = CROWD;
        for (kind, weight) in &mut self.weights {
            match kind {
                Kind::Snapshot => *weight = 60,
                Kind::DeleteSnapshots | Kind::Delete | Kind::Reopen | Kind::Check | Kind::Verify => {
                    *weight = 1
                }
                Kind::Crash => *weight = (*weight).min(2),
                Kind::Policy => *weight = 0,
                _ => {}
            }
        }
    }

    /// Returns the next operation in this state.
    pub(crate) fn next(&mut self, state: &State, transfers: &Transfers) -> Op {
        if state.volumes.is_empty() {
            return self.create(state);
        }
        loop {
            // A transfer takes many steps, so about one draw in three continues a transfer that has
            // begun.
            let goes_on = transfers.arriving.is_some() && self.rand.percent(35);
            let kind = if goes_on { Kind::Feed } else { self.kind() };
            if let Some(op) = self.draw(kind, state, transfers) {
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

    fn draw(&mut self, kind: Kind, state: &State, transfers: &Transfers) -> Option<Op> {
        let ids: Vec<VolId> = state.volumes.keys().copied().collect();
        let vol = self.rand.pick(&ids);
        let volume = state.volumes.get(&vol)?;
        let op = match kind {
            Kind::Write if volume.refuses_writes() && self.rand.percent(90) => return None,
            Kind::Write if self.whole_chunks && self.rand.percent(60) => {
                let (offset, len) = self.whole_chunks_of(volume);
                Op::Write { vol, parts: vec![(offset, len)], fua: self.rand.percent(5) }
            }
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
            Kind::CreateOver | Kind::Flatten | Kind::LoseImages => self.of_image(kind, vol, state)?,
            Kind::Cdp | Kind::Clock | Kind::ReadMoment | Kind::Recover | Kind::RollBackTo => {
                self.of_history(kind, vol, state)?
            }
            Kind::Resize => self.resize(vol, volume),
            Kind::Shape if self.own_direct && self.rand.percent(70) => self.direct_min(vol),
            Kind::Shape => self.shape(vol),
            Kind::Delete if self.rand.percent(40) => Op::Release(vol),
            Kind::Delete => Op::Delete { vol, force: self.rand.percent(50) },
            Kind::Pv => self.pv(vol),
            Kind::Reopen if self.rand.percent(50) => Op::Reopen(None),
            Kind::Reopen => Op::Reopen(Some(self.rand.pick(&PowerLoss::ALL))),
            Kind::Check if self.rand.percent(50) => Op::Check,
            Kind::Check => Op::Injure(self.rand.bits()),
            Kind::Verify => Op::Verify,
            Kind::Fill => Op::Fill(vol),
            Kind::Fault => match self.rand.below(4) {
                0 if self.whole_chunks && self.rand.percent(30) => Op::FailSync(SyncPurpose::Direct),
                0 => Op::FailSync(self.rand.pick(&FAILING)),
                1 | 2 => Op::BadReads,
                // A copy makes these draws, so that old seeds nearly repeat their runs.
                _ if self.rand.clone().percent(60) => Op::FailPv(self.rand.clone().bits()),
                _ => Op::ClearFaults,
            },
            of_snapshots => return self.draw_of_snapshots(of_snapshots, vol, state, transfers),
        };
        Some(op)
    }

    fn draw_of_snapshots(
        &mut self,
        kind: Kind,
        vol: VolId,
        state: &State,
        transfers: &Transfers,
    ) -> Option<Op> {
        let op = match kind {
            Kind::Method => Op::Method(vol, self.rand.pick(&[Method::Redirect, Method::Copy])),
            Kind::Snapshot if state.snapshots.len() as u64 >= self.max_snapshots => return None,
            Kind::Snapshot => self.snapshot(state),
            Kind::Relocate => Op::Relocate(vol),
            Kind::Policy => Op::Policy(vol, self.rand.pick(&[0, 1, 10, 100]), self.rand.percent(40)),
            Kind::Import => self.import(state, transfers)?,
            Kind::Feed => self.feed(vol, state, transfers)?,
            Kind::Order => Op::Order(vol, self.rand.pick(&[Order::Independent, Order::Dependent])),
            Kind::ReleaseSnapshots => Op::ReleaseSnapshots,
            Kind::DeleteSnapshots => self.delete_snapshots(state)?,
            of_one => {
                let ids: Vec<SnapId> = state.snapshots.keys().copied().collect();
                let snap = *ids.get(self.rand.below(ids.len() as u64) as usize)?;
                self.of_snapshot(of_one, snap, state)?
            }
        };
        Some(op)
    }

    fn of_history(&mut self, kind: Kind, vol: VolId, state: &State) -> Option<Op> {
        let pick = self.rand.bits();
        Some(match kind {
            Kind::Cdp => Op::Cdp(vol, self.cdp_settings()),
            Kind::Clock => Op::Clock(ClockMove::random(&mut self.rand)),
            // A copy makes this draw, so that old seeds nearly repeat their runs.
            Kind::Recover if self.rand.clone().percent(40) => {
                Op::KeepMoment(vol, pick, self.snapshot_name(state, vol))
            }
            Kind::Recover if state.volumes.len() as u64 >= self.max_volumes + 3 => return None,
            Kind::Recover => Op::Recover(vol, pick, self.volume_name(state)),
            Kind::RollBackTo => {
                let mut vols = vec![(vol, self.snapshot_name(state, vol))];
                let others = state.volumes.keys().filter(|other| **other != vol && self.rand.percent(40));
                for other in others.copied().collect::<Vec<_>>() {
                    vols.push((other, self.snapshot_name(state, other)));
                }
                Op::RollBackTo { vols, pick, force: self.rand.percent(70) }
            }
            _ => Op::ReadMoment(vol, pick),
        })
    }

    fn cdp_settings(&mut self) -> Option<CdpSettings> {
        let rand = &mut self.rand;
        if rand.percent(15) {
            return None;
        }
        let encoding = rand.pick(&[Encoding::Parity, Encoding::Parity, Encoding::Undo, Encoding::Redo]);
        let all = [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd];
        let compression = rand.pick(&all);
        let anchors = match rand.below(4) {
            0 => AnchorPolicy::Never,
            1 => AnchorPolicy::Interval(rand.between(1, 20_000_000)),
            _ => AnchorPolicy::Every(rand.between(1, 30)),
        };
        let time = rand.percent(20).then(|| rand.between(1, 60_000_000));
        // A retention that no run reaches expires in no run, whatever the clock says.
        let time = time.map(|time| if time.is_multiple_of(3) { FOR_EVER } else { time });
        let bytes = rand.percent(20).then(|| rand.between(1, 2 << 20));
        let retention = Retention { time, bytes };
        let max_distance = rand.percent(10).then(|| rand.between(1, 60));
        Some(CdpSettings { encoding, compression, anchors, max_distance, retention })
    }

    /// Draws a snapshot, or snapshots of several volumes at one instant.
    fn snapshot(&mut self, state: &State) -> Op {
        let mut ids: Vec<VolId> = state.volumes.keys().copied().collect();
        let count = if self.rand.percent(60) { 1 } else { self.rand.between(1, ids.len() as u64) };
        let mut wanted = Vec::new();
        for _ in 0..count {
            let vol = ids.swap_remove(self.rand.below(ids.len() as u64) as usize);
            wanted.push((vol, self.snapshot_name(state, vol)));
        }
        if self.rand.percent(2) {
            wanted.push(wanted[0].clone());
        }
        Op::Snapshot(wanted)
    }

    /// Draws a name of a snapshot. It is usually free.
    fn snapshot_name(&mut self, state: &State, vol: VolId) -> String {
        let many = 2 * self.max_snapshots.max(1);
        let names = (0..4).map(|_| format!("s{}", self.rand.below(many)));
        let names: Vec<String> = names.collect();
        let free = names.iter().find(|n| !state.has_snapshot(vol, n));
        free.unwrap_or(&names[0]).clone()
    }

    /// Draws a deletion of one, some or all snapshots of a volume.
    fn delete_snapshots(&mut self, state: &State) -> Option<Op> {
        let with: Vec<VolId> = state.snapshots.values().map(|s| s.volume).collect();
        let vol = *with.get(self.rand.below(with.len() as u64) as usize)?;
        let mut snaps: Vec<SnapId> = state.snapshots_of(vol).map(|(id, _)| id).collect();
        let count = match self.rand.below(10) {
            0 => snaps.len() as u64,
            1..=3 => self.rand.between(1, snaps.len() as u64),
            _ => 1,
        };
        // The pool refuses to delete more snapshots in one operation.
        let picked =
            (0..count.min(AT_ONCE)).map(|_| snaps.swap_remove(self.rand.below(snaps.len() as u64) as usize));
        Some(Op::DeleteSnapshots(picked.collect()))
    }

    fn of_snapshot(&mut self, kind: Kind, snap: SnapId, state: &State) -> Option<Op> {
        let snapshot = state.snapshots.get(&snap)?;
        let op = match kind {
            Kind::RenameSnapshot => Op::RenameSnapshot(snap, self.snapshot_name(state, snapshot.volume)),
            Kind::Clone if state.volumes.len() as u64 >= self.max_volumes + 3 => return None,
            Kind::Clone => Op::Clone(snap, self.volume_name(state)),
            Kind::RollBack => {
                let undo = self.snapshot_name(state, snapshot.volume);
                Op::RollBack { snap, undo, force: self.rand.percent(70) }
            }
            Kind::Note => self.note(snap, snapshot),
            Kind::Export => self.export(snap, snapshot, state),
            _ => self.read_snapshot(snap, snapshot),
        };
        Some(op)
    }

    fn read_snapshot(&mut self, snap: SnapId, snapshot: &SnapshotModel) -> Op {
        let shape =
            VolumeModel::new(String::new(), snapshot.size, snapshot.chunk_size, snapshot.block_size, true);
        match self.rand.below(10) {
            0 => Op::MisuseSnapshot(snap),
            1..=3 => {
                let (offset, len) = self.long_range(&shape);
                Op::StatusSnapshot { snap, offset, len, max_runs: self.rand.pick(&[1, 2, 8, 1000]) }
            }
            _ => {
                let (offset, len) = self.range(&shape);
                Op::ReadSnapshot { snap, offset, len, try_first: self.rand.percent(50) }
            }
        }
    }

    fn note(&mut self, snap: SnapId, snapshot: &SnapshotModel) -> Op {
        let rand = &mut self.rand;
        if rand.percent(50) {
            return Op::Protect(snap, !snapshot.protected && rand.percent(60));
        }
        let value = match rand.below(10) {
            0 => "v".repeat(256),
            _ => format!("v{}", rand.below(1000)),
        };
        Op::Label(snap, format!("k{}", rand.below(20)), rand.percent(80).then_some(value))
    }

    /// Draws an export. It usually begins at byte 0. It may also begin at the position of an
    /// unfinished import.
    fn export(&mut self, snap: SnapId, snapshot: &SnapshotModel, state: &State) -> Op {
        let others: Vec<SnapId> =
            state.snapshots_of(snapshot.volume).map(|(id, _)| id).filter(|id| *id < snap).collect();
        let from = (!others.is_empty() && self.rand.percent(65)).then(|| self.rand.pick(&others));
        let waiting = state.volumes.values().filter_map(|v| v.import).find(|i| i.to == snapshot.origin);
        let start = match waiting {
            Some(import) if self.rand.percent(50) => import.position,
            _ if self.rand.percent(5) => u64::from(snapshot.block_size) * self.rand.below(200),
            _ => 0,
        };
        Op::Export { snap, from, start: start.min(snapshot.size) }
    }

    /// Draws an import. It usually goes into a volume that waits for the stream or that the stream
    /// fits.
    fn import(&mut self, state: &State, transfers: &Transfers) -> Option<Op> {
        let stream = self.rand.below(transfers.streams.len() as u64);
        let (from, to) = *transfers.streams.get(stream as usize)?;
        let waits = |v: &VolumeModel| v.import.is_some_and(|i| (i.from, i.to) == (from, to));
        let has = |vol: VolId, content: Option<SnapId>| {
            state.snapshots_of(vol).any(|(_, s)| Some(s.origin) == content)
        };
        let fits = |vol: VolId| has(vol, from) && !has(vol, Some(to));
        let fitting: Vec<&String> = match self.rand.below(10) {
            0 => state.volumes.values().map(|v| &v.name).collect(),
            1..=5 => state.volumes.values().filter(|v| waits(v)).map(|v| &v.name).collect(),
            _ => state.volumes.iter().filter(|(id, _)| fits(**id)).map(|(_, v)| &v.name).collect(),
        };
        let name = match fitting.get(self.rand.below(fitting.len().max(1) as u64) as usize) {
            Some(name) => (*name).clone(),
            None if state.volumes.len() as u64 >= self.max_volumes + 3 => return None,
            None => self.volume_name(state),
        };
        Some(Op::Import { stream, name })
    }

    /// Draws an event of an import that is under way.
    fn feed(&mut self, vol: VolId, state: &State, transfers: &Transfers) -> Option<Op> {
        if transfers.stale > 0 && self.rand.percent(20) {
            return Some(Op::FeedStale(self.rand.below(transfers.stale)));
        }
        let Some(complete) = transfers.arriving else {
            let unfinished = state.volumes.get(&vol)?.import;
            return unfinished.filter(|_| self.rand.percent(20)).map(|_| Op::CancelImport(vol));
        };
        if self.rand.percent(8) {
            return self.import(state, transfers);
        }
        Some(match self.rand.below(20) {
            0 => Op::BreakImport,
            1 => Op::CancelImport(vol),
            2..=4 => Op::KeepImport,
            5 => Op::EndImport,
            6..=15 if complete => Op::EndImport,
            6..=12 => Op::Feed(1000),
            _ => Op::Feed(self.rand.between(1, 8)),
        })
    }

    fn create(&mut self, state: &State) -> Op {
        let rand = &mut self.rand;
        let block_size: u32 = rand.pick(&[512, 512, 4096]);
        let most = self.extent_size.min(64 * KIB);
        let mut chunk_size = 512 << rand.below(8);
        while chunk_size < u64::from(block_size) || chunk_size > most {
            chunk_size = 512 << rand.below(8);
        }
        if self.large && rand.percent(75) {
            chunk_size = self.extent_size >> rand.below(2);
        }
        if self.whole_chunks && chunk_size < 4096 && rand.percent(75) {
            chunk_size = 4096 << rand.below(4);
        }
        let name = self.volume_name(state);
        let size = self.size(block_size);
        Op::Create(VolumeModel::new(name, size, chunk_size, block_size, self.rand.percent(5)))
    }

    fn of_image(&mut self, kind: Kind, vol: VolId, state: &State) -> Option<Op> {
        match kind {
            Kind::CreateOver if state.volumes.len() as u64 > self.max_volumes => None,
            Kind::CreateOver => self.create_over(state),
            Kind::Flatten => Some(Op::Flatten(vol, self.rand.percent(85))),
            _ => Some(Op::LoseImages),
        }
    }

    fn create_over(&mut self, state: &State) -> Option<Op> {
        let Op::Create(mut model) = self.create(state) else { return None };
        let len = self.rand.between(1, 500 * KIB);
        model.size = match self.rand.below(3) {
            0 => model.size.min(MIB),
            _ => 0,
        };
        Some(Op::CreateOver(model, len))
    }

    /// Draws a name of a volume. It is usually free.
    fn volume_name(&mut self, state: &State) -> String {
        let taken = |name: &str| state.volumes.values().any(|v| v.name == name);
        let rand = &mut self.rand;
        (0..4).map(|_| rand.pick(&NAMES)).find(|n| !taken(n)).unwrap_or(NAMES[0]).into()
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

    fn shape(&mut self, vol: VolId) -> Op {
        if self.rand.percent(50) {
            return Op::Rename(vol, self.rand.pick(&NAMES).into());
        }
        // A copy makes these draws, so that old seeds nearly repeat their runs.
        let mut rand = self.rand.clone();
        if !rand.percent(30) {
            return Op::ReadOnly(vol, self.rand.percent(30));
        }
        match rand.below(3) {
            0 => Op::LabelVolume(vol, rand.pick(&NAMES).into(), None),
            1 => Op::LabelVolume(vol, rand.pick(&NAMES).into(), Some(rand.pick(&NAMES).into())),
            _ => Op::Trash { vol, force: rand.percent(70) },
        }
    }

    fn resize(&mut self, vol: VolId, volume: &VolumeModel) -> Op {
        let block = u64::from(volume.block_size);
        let size = match self.rand.below(4) {
            0 => self.size(volume.block_size),
            // Close to the present size, so that chunks are cut.
            1 => volume.size.saturating_sub(block * self.rand.below(100)).max(block),
            2 => (volume.size / 2).next_multiple_of(block).max(block),
            _ => volume.size.saturating_add(block * self.rand.below(1000)).min(MAX_VOLUME),
        };
        Op::Resize { vol, size, force: self.rand.percent(80) }
    }

    /// Draws a byte offset. Like a client, it usually chooses one of a few places of the volume.
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

    /// Returns a range of whole chunks, mostly of several.
    fn whole_chunks_of(&mut self, volume: &VolumeModel) -> (u64, u64) {
        let chunk = volume.chunk_size;
        let offset = self.place(volume) / chunk * chunk;
        let offset = if offset + chunk > volume.size { 0 } else { offset };
        let most = ((256 * KIB) / chunk).max(2);
        let len = chunk * self.rand.between(1, most);
        (offset, len.min((volume.size - offset) / chunk * chunk).max(volume.block_size.into()))
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
