//! One run ([`Run`]): a machine, a pool on it, an oracle beside it, and the operations on them,
//! step by step.

use crate::clock::Clocks;
use crate::disk::{CrashPoint, SimDir};
use crate::fate::TearModel;
use crate::generate::{Generator, Theme};
use crate::history::{Held, Past};
use crate::oracle::{Effect, Oracle, SECTOR, SnapId, SnapshotModel, View, VolId};
use crate::rand::Rand;
use crate::streams::{Arriving, Stream};
use crate::survive;
use crate::workload::{Crash, Op, Plan};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::Dir;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Health, Pool, Progress, PvSpec};
use hindcast_engine::world::{Clock, ManualClock, Rng, SplitMix, World};
use hindcast_engine::{ErrorKind, Volume};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// What a run says when something is wrong.
pub type Outcome<T> = Result<T, String>;

/// Reports each step to the caller, if the caller gave a function for that.
pub type Trace = Option<fn(&str)>;

/// Idle steps in a row that mean that there is nothing left to do: destage is lazy, and what was
/// freed can be used again only after all who read have been looked at twice.
const PATIENCE: u32 = 5;

/// What a run did, for the closing line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations.
    pub ops: u64,
    /// Crashes, planned and met.
    pub crashes: u64,
    /// Acknowledged records lost in power losses, which is allowed.
    pub lost: u64,
    /// Writes refused for want of space.
    pub refused: u64,
    /// Records sequenced.
    pub records: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// The most that there were at once in one run.
    pub most_snapshots: u64,
    /// Clones made, and rollbacks.
    pub clones: u64,
    /// Moments that were compared with other states.
    pub moments_compared: u64,
    /// Moments that were opened before they were carried out.
    pub moments_waiting: u64,
    /// Runs of histories that were sorted apart.
    pub runs_sorted: u64,
    /// Snapshots deleted by policy.
    pub auto_deleted: u64,
    /// Streams taken in.
    pub imports: u64,
    /// Times that the catalog found its file system full.
    pub ran_full: u64,
    /// Disk operations that change something.
    pub disk_ops: u64,
}

impl Summary {
    /// Adds another run's.
    pub fn add(&mut self, other: &Summary) {
        self.ops += other.ops;
        self.crashes += other.crashes;
        self.lost += other.lost;
        self.refused += other.refused;
        self.records += other.records;
        self.snapshots += other.snapshots;
        self.most_snapshots = self.most_snapshots.max(other.most_snapshots);
        self.clones += other.clones;
        self.moments_compared += other.moments_compared;
        self.moments_waiting += other.moments_waiting;
        self.runs_sorted += other.runs_sorted;
        self.auto_deleted += other.auto_deleted;
        self.ran_full += other.ran_full;
        self.imports += other.imports;
        self.disk_ops += other.disk_ops;
    }
}

/// A run: a machine, a pool on it, and the oracle that its answers are compared with.
pub struct Run {
    pub(crate) plan: Plan,
    pub(crate) dir: SimDir,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) clocks: Clocks,
    rng: Arc<dyn Rng>,
    pub(crate) rand: Rand,
    pub(crate) oracle: Oracle,
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) handles: BTreeMap<VolId, Arc<Volume>>,
    /// Handles of snapshots.
    pub(crate) snapshot_handles: BTreeMap<SnapId, Arc<Volume>>,
    /// Handles of snapshots that were deleted meanwhile, with what they show.
    pub(crate) gone: Vec<(Arc<Volume>, SnapshotModel)>,
    /// Numbers of volumes that are known to have been created.
    pub(crate) ids: BTreeMap<Uuid, VolId>,
    /// The volume whose creation has no answer yet.
    pub(crate) unborn: Option<VolId>,
    /// Numbers of snapshots, and those whose creation has no answer yet.
    pub(crate) snapshot_ids: BTreeMap<Uuid, SnapId>,
    pub(crate) unborn_snapshots: Vec<(VolId, String, SnapId)>,
    pub(crate) next_vol: VolId,
    pub(crate) next_snapshot: SnapId,
    pub(crate) next_stamp: u64,
    pub(crate) next_image: u64,
    /// So many records the pool may sequence of its own with the next request.
    pub(crate) brought: u64,
    /// Some volume has, or may have, more of its own than what was written to it.
    pub(crate) filled: bool,
    /// Physical volumes that must be there, and those that may.
    pub(crate) pvs: BTreeSet<String>,
    pub(crate) doubtful_pvs: BTreeSet<String>,
    /// Physical volumes that take data once the record with this LSN is carried out: one that was
    /// added, or is drained no more. The pool lists them as they will be from its acceptance on.
    pub(crate) coming_pvs: BTreeMap<String, Lsn>,
    pub(crate) next_pv: u64,
    /// Faults are planned or were met in this life of the pool: errors are no surprise.
    pub(crate) faults: bool,
    /// Physical volumes fail in this life of the pool: less space is no surprise, but nothing is
    /// lost and everything else goes on.
    pub(crate) failing: bool,
    /// Recovery draws its options, and further crashes, at random.
    pub(crate) wild: bool,
    /// Background work keeps ahead of requests, as a server's threads do; else a request that finds
    /// the journal full has to help itself.
    helpful: bool,
    /// Chunks that operations may have emptied since all was carried out.
    pub(crate) emptied: u64,
    pub(crate) planned: Option<Crash>,
    pub(crate) trace: Trace,
    pub(crate) summary: Summary,
    /// Some volume was told to give each snapshot a copy of its own.
    pub(crate) independent: bool,
    /// What lay in sectors that went bad: (sector of the volume, stamp). Reads of it, and of
    /// nothing else, may fail.
    pub(crate) lost: BTreeSet<(u64, u64)>,
    /// What is known of the past of volumes with CDP.
    pub(crate) past: BTreeMap<VolId, Past>,
    /// Moments that are held open.
    pub(crate) held: Vec<Held>,
    /// Some volume had CDP.
    pub(crate) kept_history: bool,
    /// Streams that were fetched, and the one that is being taken in.
    pub(crate) streams: Vec<Arc<Stream>>,
    pub(crate) arriving: Option<Arriving>,
    /// Imports that others began after, oldest first: what they still send may arrive at any time.
    pub(crate) stale: Vec<Arriving>,
    /// By volume, the number of the import that may fill it now.
    pub(crate) leases: BTreeMap<VolId, u64>,
}

/// The journal must cope with media that destroy the rest of a block in whose middle they are
/// interrupted. In place, parts of a block are overwritten: physical volumes are required not to.
fn tear_512(name: &str) -> TearModel {
    if name.starts_with("journal") { TearModel::EMULATED } else { TearModel::SECTORS }
}

fn tear_4096(name: &str) -> TearModel {
    if name.starts_with("pv") || name.starts_with('/') { TearModel::BLOCKS } else { tear_512(name) }
}

/// Journal that the records of a control operation take at most, in bytes.
const CONTROL_ROOM: u64 = 16 << 10;

impl Run {
    /// A machine without a pool.
    pub fn new(seed: u64, plan: Plan, wild: bool, trace: Trace) -> Self {
        let mut rand = Rand::new(seed);
        let dir = SimDir::new(rand.bits());
        dir.set_backing(plan.backing);
        dir.set_tear_model(if plan.config.atomic_unit == 4096 { tear_4096 } else { tear_512 });
        let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
        clock.boot_after(0);
        Run {
            plan,
            dir,
            clock,
            clocks: Clocks::default(),
            rng: Arc::new(SplitMix::new(rand.bits())),
            oracle: Oracle::default(),
            pool: None,
            handles: BTreeMap::new(),
            snapshot_handles: BTreeMap::new(),
            independent: false,
            lost: BTreeSet::new(),
            past: BTreeMap::new(),
            held: Vec::new(),
            kept_history: false,
            streams: Vec::new(),
            arriving: None,
            stale: Vec::new(),
            leases: BTreeMap::new(),
            gone: Vec::new(),
            ids: BTreeMap::new(),
            unborn: None,
            snapshot_ids: BTreeMap::new(),
            unborn_snapshots: Vec::new(),
            next_vol: 1,
            next_snapshot: 1,
            next_stamp: 1,
            next_image: 0,
            brought: 0,
            filled: false,
            pvs: BTreeSet::new(),
            doubtful_pvs: BTreeSet::new(),
            coming_pvs: BTreeMap::new(),
            next_pv: 1,
            faults: false,
            failing: false,
            wild,
            helpful: !wild || rand.percent(50),
            emptied: 0,
            planned: None,
            trace,
            summary: Summary::default(),
            rand,
        }
    }

    /// The machine's disks.
    pub fn dir(&self) -> &SimDir {
        &self.dir
    }

    /// What the run did so far.
    pub fn summary(&self) -> Summary {
        Summary { disk_ops: self.dir.counts().ops, ..self.summary }
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            trace(&what());
        }
    }

    /// Plans how the process ends, when it ends.
    pub fn plan_crash(&mut self, point: CrashPoint, how: Crash) {
        self.planned = Some(how);
        if how == Crash::Panic {
            self.faults = true;
            self.dir.panic_at(Some(point));
        } else {
            self.dir.crash_at(Some(point));
        }
    }

    pub(crate) fn world(&self) -> World {
        World { clock: self.clock.clone() as Arc<dyn Clock>, rng: self.rng.clone() }
    }

    pub(crate) fn dyn_dir(&self) -> Arc<dyn Dir> {
        Arc::new(self.dir.clone())
    }

    /// The next physical volume's description; a device is added to the machine.
    pub(crate) fn new_pv(&mut self, size: u64, device: bool) -> PvSpec {
        let number = self.next_pv;
        self.next_pv += 1;
        if device {
            let path = format!("/dev/sim{number}");
            self.dir.add_block_device(&path, size);
            PvSpec { path, size: None, force: false }
        } else {
            PvSpec { path: format!("pv-{number}"), size: Some(size), force: false }
        }
    }

    /// Performs one operation, and whatever follows from it.
    pub fn step(&mut self, op: &Op) -> Outcome<()> {
        self.summary.ops += 1;
        self.say(|| format!("{op:?}"));
        // Never not at all: what an operation sequences is later than all before it.
        self.pass(1 + self.rand.clone().below(1_000_000));
        self.emptied += self.empties(op);
        self.read_some_new_moment()?;
        if !self.dir.crashed() && !self.dir.panicked() {
            self.perform(op).map_err(|e| format!("{op:?}: {e}"))?;
        }
        if self.dir.crashed() {
            let promise = self.end_process();
            return self.open(promise).map_err(|e| format!("after a crash in {op:?}: {e}"));
        }
        if self.dir.panicked() {
            return self.leave_panicked().map_err(|e| format!("after a panic in {op:?}: {e}"));
        }
        self.check_positions()?;
        self.note_moments()?;
        self.say(|| self.space());
        if self.poisoned() {
            if !self.faults && !self.all_failed() && !self.ran_full() {
                return Err(format!("after {op:?}: the pool is poisoned without a fault"));
            }
            self.leave_poisoned()?;
        }
        Ok(())
    }

    /// Performs an operation of a script, unless a crash took what it is about.
    pub(crate) fn step_if_possible(&mut self, op: &Op) -> Outcome<()> {
        let state = self.oracle.state();
        let fits = |vol: &VolId| state.volumes.get(vol).is_some_and(|v| op.end() <= v.size);
        let there = |snap: &SnapId| state.snapshots.get(snap).is_some_and(|s| op.end() <= s.size);
        if op.volumes().iter().all(fits) && op.snapshots().iter().all(there) {
            return self.step(op);
        }
        // What comes later keeps its number.
        let (volumes, snapshots) = op.creates();
        self.next_vol += volumes;
        self.next_snapshot += snapshots;
        Ok(())
    }

    /// A run of `count` random operations, and a thorough end.
    pub fn random(&mut self, count: u64, theme: Theme) -> Outcome<()> {
        let mut generator = Generator::new(self.rand.fork(), self.plan.config.extent_size, theme);
        if self.rand.percent(20) {
            // What creating promises holds at once, too.
            let point = CrashPoint::Op(self.rand.between(1, 80));
            let how = Crash::random(&mut self.rand);
            self.plan_crash(point, how);
        }
        self.create()?;
        for _ in 0..count {
            // Before the operation is drawn: a policy may delete what it would be about.
            self.make_room(CONTROL_ROOM)?;
            let op = generator.next(self.oracle.state(), &self.transfers());
            self.step(&op)?;
            let snapshots = self.oracle.state().snapshots.len() as u64;
            self.summary.most_snapshots = self.summary.most_snapshots.max(snapshots);
        }
        if self.rand.percent(20) && self.rest()? {
            return self.damage();
        }
        // By draws that other draws do not see.
        if self.rand.clone().percent(8) {
            return self.harm_journal(&mut generator);
        }
        if self.rand.clone().percent(18) && self.rest()? {
            self.mix_ages()?;
        }
        self.finish()
    }

    /// Closes for good, if nothing comes between.
    fn rest(&mut self) -> Outcome<bool> {
        self.dir.crash_at(None);
        if self.faults || self.failing {
            self.step(&Op::Reopen(None))?;
        }
        self.close()
    }

    /// The end of every run: all of it must be there, and go away without a trace.
    pub fn finish(&mut self) -> Outcome<()> {
        self.dir.crash_at(None);
        for op in [Op::ClearFaults, Op::Reopen(None), Op::Verify, Op::Drain, Op::Verify, Op::Check] {
            self.step(&op)?;
        }
        if !self.oracle.state().snapshots.is_empty() {
            self.step(&Op::Settle)?;
            self.verify(usize::MAX)?;
            if !self.kept_history {
                self.verify_space()?;
            }
        }
        self.verify_moments(usize::MAX)?;
        let protected = self.oracle.state().snapshots.iter().filter(|(_, s)| s.protected).map(|(id, _)| *id);
        for snap in protected.collect::<Vec<SnapId>>() {
            self.step(&Op::Protect(snap, false))?;
        }
        if self.rand.percent(50) {
            self.expire_histories()?;
        }
        let ids: Vec<VolId> = self.oracle.state().volumes.keys().copied().collect();
        for vol in ids {
            self.step(&Op::Delete { vol, force: true })?;
        }
        self.step(&Op::Settle)?;
        self.verify_held()?;
        self.held.clear();
        for op in [Op::Drain, Op::Settle, Op::Check, Op::Settle] {
            self.step(&op)?;
        }
        let info = self.pool()?.info();
        if (info.used, info.reserved, info.reserved_history) != (0, 0, 0) {
            return Err(format!(
                "without volumes {} bytes are still used, {} reserved, and {} for histories",
                info.used, info.reserved, info.reserved_history
            ));
        }
        self.close().map(drop)
    }

    pub(crate) fn pool(&self) -> Outcome<Arc<Pool>> {
        self.pool.clone().ok_or_else(|| "the pool is not open".into())
    }

    /// Space in use, of the pool and of each physical volume, for the trace.
    fn space(&self) -> String {
        let Some(pool) = &self.pool else {
            return String::new();
        };
        let info = pool.info();
        let pvs: Vec<String> = pool
            .pvs()
            .iter()
            .map(|pv| {
                let draining = if pv.draining { " draining" } else { "" };
                let failed = if pv.failure.is_some() { " failed" } else { "" };
                format!("{} {}/{}{draining}{failed}", pv.path, pv.used, pv.size)
            })
            .collect();
        format!(
            "  used {} reserved {} available {}; {}",
            info.used,
            info.reserved,
            info.available,
            pvs.join(", ")
        )
    }

    /// Does no physical volume take anything any more?
    pub(crate) fn all_failed(&self) -> bool {
        let takes = |pool: &Arc<Pool>| {
            let carried_out = pool.stats().destaged_lsn;
            let is_there = |path| self.coming_pvs.get(path).is_none_or(|lsn| *lsn <= carried_out);
            pool.pvs().iter().any(|pv| !pv.draining && pv.failure.is_none() && is_there(&pv.path))
        };
        self.failing && self.pool.as_ref().is_none_or(|pool| !takes(pool))
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| matches!(pool.health(), Health::Poisoned(_)))
    }

    /// Positions never overtake one another, and what the pool calls durable is held against it.
    pub(crate) fn check_positions(&mut self) -> Outcome<()> {
        let stats = self.pool()?.stats();
        let ends = [
            stats.destaged_lsn,
            stats.preserved_lsn,
            stats.synced_lsn,
            stats.written_lsn,
            stats.sequenced_lsn,
        ];
        if !ends.is_sorted() {
            return Err(format!("positions overtake one another: {stats:?}"));
        }
        if !self.faults {
            self.oracle.durable(stats.synced_lsn.0);
        }
        Ok(())
    }

    /// All that was ever written, and a few places that were not.
    pub(crate) fn read_everything(
        &mut self,
        id: VolId,
        name: &str,
        size: u64,
    ) -> Outcome<Vec<(u64, Vec<u8>)>> {
        let pool = self.pool()?;
        let handle = pool.open_volume(name, true).map_err(|e| format!("open volume {name}: {e:?}"))?;
        let mut ranges = self.oracle.interesting(id, size);
        let block = u64::from(handle.info().block_size);
        for _ in 0..2 {
            ranges.push((self.rand.below(size / block) * block, block));
        }
        read_ranges(&handle, name, ranges, self.lost())
    }

    /// All of a snapshot that was ever written; of all snapshots together about `budget` ranges,
    /// chosen at random.
    pub(crate) fn read_snapshot_ranges(
        &mut self,
        owner: VolId,
        (volume, name, size): (&str, &str, u64),
        budget: usize,
    ) -> Outcome<Vec<(u64, Vec<u8>)>> {
        let mut ranges = self.oracle.interesting(owner, size);
        let all = ranges.len() * self.oracle.state().snapshots.len().max(1);
        if all > budget {
            let rand = &mut self.rand;
            ranges.retain(|_| rand.below(all as u64) < budget as u64);
        }
        let handle = self.pool()?.open_snapshot(volume, name);
        let handle = handle.map_err(|e| format!("open snapshot {volume}@{name}: {e:?}"))?;
        read_ranges(&handle, name, ranges, self.lost())
    }

    /// What went bad so far.
    pub(crate) fn lost(&self) -> Lost<'_> {
        Lost { sectors: &self.lost, by_chunk: self.kept_history }
    }

    /// Compares everything with the oracle; of snapshots so many ranges.
    pub(crate) fn verify(&mut self, budget: usize) -> Outcome<()> {
        let volumes: Vec<(VolId, String, u64)> =
            self.oracle.state().volumes.iter().map(|(id, v)| (*id, v.name.clone(), v.size)).collect();
        for (id, name, size) in volumes {
            for (offset, data) in self.read_everything(id, &name, size)? {
                self.oracle.check_read(View::Volume(id), offset, &data)?;
            }
        }
        let snapshots: Vec<(SnapId, SnapshotModel)> =
            self.oracle.state().snapshots.iter().map(|(id, s)| (*id, s.clone())).collect();
        for (id, snapshot) in snapshots {
            let volume = self.volume_name(snapshot.volume)?;
            let of = (&volume[..], &snapshot.name[..], snapshot.size);
            for (offset, data) in self.read_snapshot_ranges(snapshot.volume, of, budget)? {
                self.oracle.check_read(View::Snapshot(id), offset, &data)?;
            }
        }
        self.verify_gone()?;
        self.verify_held()?;
        self.verify_moments(20)?;
        self.verify_differences()
    }

    pub(crate) fn volume_name(&self, vol: VolId) -> Outcome<String> {
        let volume = self.oracle.state().volumes.get(&vol);
        volume.map(|v| v.name.clone()).ok_or_else(|| format!("volume {vol} is gone"))
    }

    /// A handle for requests; none when the volume can't be opened because of a planned fault.
    pub(crate) fn handle(&mut self, vol: VolId) -> Outcome<Option<Arc<Volume>>> {
        if let Some(handle) = self.handles.get(&vol) {
            return Ok(Some(handle.clone()));
        }
        let Some(volume) = self.oracle.state().volumes.get(&vol) else {
            return Err(format!("volume {vol} is gone"));
        };
        match self.pool()?.open_volume(&volume.name, false) {
            Ok(handle) => {
                self.handles.insert(vol, handle.clone());
                Ok(Some(handle))
            }
            Err(_) if self.faults || self.dir.crashed() => Ok(None),
            Err(e) => Err(format!("open volume {}: {e:?}", volume.name)),
        }
    }

    /// Background steps until nothing is left to do.
    pub(crate) fn settle(&mut self) -> Outcome<()> {
        let mut idle = 0;
        for step in 0.. {
            idle = if self.maintain_once()? == Progress::Idle { idle + 1 } else { 0 };
            if idle == PATIENCE {
                break;
            }
            if step == 100_000 {
                return Err("background work never ends".into());
            }
        }
        self.check_space()?;
        self.check_policies()
    }

    pub(crate) fn maintain_once(&mut self) -> Outcome<Progress> {
        let pool = self.pool()?;
        let before = pool.stats();
        let watch = self.watch_policies()?;
        let result = survive(|| pool.maintain());
        let after = pool.stats();
        let sorted = after.history_runs_sorted - before.history_runs_sorted;
        // By itself a pool does nothing but delete by policy, and flatten.
        self.filled |= after.sequenced_lsn != before.sequenced_lsn
            && after.snapshots_auto_deleted == before.snapshots_auto_deleted;
        if let Some(watch) = watch {
            self.note_deletion(&watch, result.is_err())?;
        }
        self.oracle.observe(pool.stats().sequenced_lsn.0);
        self.summary.runs_sorted += sorted;
        match result {
            Ok(progress) => {
                // What waits for space says nothing.
                self.ran_full();
                Ok(progress)
            }
            Err(_) if self.faults || self.dir.crashed() || self.all_failed() || self.ran_full() => {
                Ok(Progress::Idle)
            }
            Err(e) => Err(format!("a background step failed: {e:?}")),
        }
    }

    /// Like the threads of a server do: makes room in the journal before a request would have to.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Outcome<()> {
        if !self.helpful {
            return Ok(());
        }
        let need = bytes + bytes / 4 + 2 * self.plan.config.segment_size;
        for _ in 0..100 {
            let stats = self.pool()?.stats();
            let enough = stats.journal_used + need <= stats.journal_capacity;
            if enough || self.poisoned() || self.dir.crashed() || self.maintain_once()? == Progress::Idle {
                break;
            }
        }
        Ok(())
    }
}

/// What can't be read any more.
#[derive(Clone, Copy)]
pub(crate) struct Lost<'a> {
    sectors: &'a BTreeSet<(u64, u64)>,
    /// Something rests on moments. They are reconstructed by chunks, so one bad sector takes the
    /// others of its chunk along.
    by_chunk: bool,
}

impl Lost<'_> {
    /// Did anything go bad that some state of a volume had in this range?
    fn touches(&self, offset: u64, len: u64) -> bool {
        let range = (offset / SECTOR, 0)..((offset + len) / SECTOR, 0);
        if self.by_chunk { !self.sectors.is_empty() } else { self.sectors.range(range).next().is_some() }
    }
}

/// Reads ranges, without the blocks that went bad.
pub(crate) fn read_ranges(
    handle: &Volume,
    name: &str,
    ranges: Vec<(u64, u64)>,
    lost: Lost<'_>,
) -> Outcome<Vec<(u64, Vec<u8>)>> {
    let block = u64::from(handle.info().block_size);
    let mut read = Vec::new();
    for (offset, len) in ranges {
        let mut data = vec![0xEE; len as usize];
        match handle.read(offset, &mut data) {
            Ok(()) => read.push((offset, data)),
            Err(e) if !matches!(e.kind(), ErrorKind::Io | ErrorKind::Lost) || lost.sectors.is_empty() => {
                return Err(format!("read {len} bytes of {name} at {offset}: {e:?}"));
            }
            Err(_) if len > block => {
                let blocks = (offset..offset + len).step_by(block as usize).map(|at| (at, block)).collect();
                read.extend(read_ranges(handle, name, blocks, lost)?);
            }
            Err(_) if lost.touches(offset, len) => {}
            Err(e) => return Err(format!("read {len} bytes of {name} at {offset}: {e:?}")),
        }
    }
    Ok(read)
}

/// The records that a write becomes: one if it has at most `most` bytes, else cut at their
/// multiples in the volume.
pub(crate) fn write_effects(vol: VolId, offset: u64, len: u64, most: u64, stamp: u64) -> Vec<Effect> {
    cut(offset, len, most)
        .map(|(at, len)| Effect::Write { vol, sector: at / SECTOR, count: len / SECTOR, stamp })
        .collect()
}

/// The records that zeroing becomes: one, or, where space is kept, one for each 16 MiB.
pub(crate) fn zero_effects(vol: VolId, offset: u64, len: u64, unmap: bool) -> Vec<Effect> {
    let most = if unmap { u64::MAX } else { 16 << 20 };
    cut(offset, len, most)
        .map(|(at, len)| Effect::Zero { vol, sector: at / SECTOR, count: len / SECTOR, unmap })
        .collect()
}

pub(crate) fn cut(offset: u64, len: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let next = if len <= most { end } else { ((at / most + 1) * most).min(end) };
            let piece = (at, next - at);
            at = next;
            piece
        })
    })
}
