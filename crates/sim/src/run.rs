//! One run ([`Run`]): a machine, a pool on it, an oracle beside it, and the operations on them,
//! step by step.

use crate::clock::Clocks;
use crate::damage::Lost;
use crate::disk::{CrashPoint, SimDir};
use crate::fate::TearModel;
use crate::features::Upgraded;
use crate::generate::{Generator, Theme};
use crate::history::{Held, Past};
use crate::oracle::{Effect, Oracle, SECTOR, SnapId, SnapshotModel, View, VolId};
use crate::rand::Rand;
use crate::streams::{Arriving, Stream};
use crate::summary::Summary;
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

/// The result of a part of a run. The error describes what is wrong.
pub type Outcome<T> = Result<T, String>;

/// A function that gets a line for each step of a run, if the caller gave one.
pub type Trace = Option<fn(&str)>;

/// Number of consecutive idle steps that show that nothing is left to do. One idle step is not
/// enough: destage is lazy, and freed space can be used again only after the engine has checked all
/// readers twice.
const PATIENCE: u32 = 5;
/// Nanoseconds for which policies rest at the longest, and more.
const POLICIES_REST: u64 = 1_000_000_000;

/// A run: a machine, a pool on it, and the oracle that the answers of the pool are compared with.
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
    /// Handles of snapshots that were deleted since, with the content that they must show.
    pub(crate) gone: Vec<(Arc<Volume>, SnapshotModel)>,
    /// Numbers of volumes that are known to have been created.
    pub(crate) ids: BTreeMap<Uuid, VolId>,
    /// The volume whose creation has no answer yet.
    pub(crate) unborn: Option<VolId>,
    /// Numbers of snapshots. `unborn_snapshots` has the snapshots whose creation has no answer yet:
    /// (volume, name, number).
    pub(crate) snapshot_ids: BTreeMap<Uuid, SnapId>,
    pub(crate) unborn_snapshots: Vec<(VolId, String, SnapId)>,
    pub(crate) next_vol: VolId,
    pub(crate) next_snapshot: SnapId,
    pub(crate) next_stamp: u64,
    pub(crate) next_image: u64,
    /// What histories had recorded without a copy at the last step.
    kept_before: u64,
    /// The number of records that the pool may sequence by itself with the next request.
    pub(crate) brought: u64,
    /// Some volume owns, or may own, more content than what was written to it.
    pub(crate) filled: bool,
    /// Physical volumes that must be in the pool. Those in `doubtful_pvs` may be in it.
    pub(crate) pvs: BTreeSet<String>,
    pub(crate) doubtful_pvs: BTreeSet<String>,
    /// Physical volumes that take data once the record with this LSN is carried out. Such a volume
    /// was added, or its drain was stopped. The pool lists the later state as soon as it accepts
    /// the operation.
    pub(crate) coming_pvs: BTreeMap<String, Lsn>,
    pub(crate) next_pv: u64,
    /// Faults are planned or have happened in this life of the pool, so errors are allowed.
    pub(crate) faults: bool,
    /// Physical volumes fail in this life of the pool, so a lack of space is allowed. Nothing may
    /// be lost, and everything else must continue.
    pub(crate) failing: bool,
    /// The member that fails, in a pool on a layout.
    pub(crate) weak: usize,
    /// Whether something on its disk was made unreadable or wrong since it was made anew.
    pub(crate) weak_is_bad: bool,
    /// The files of the members, in a pool on a layout, as of the last look.
    pub(crate) member_files: Vec<&'static str>,
    /// Bytes of each member.
    pub(crate) member_size: u64,
    /// Recovery uses random options, and random crashes happen during it.
    pub(crate) wild: bool,
    /// Background work runs before requests need it, like the threads of a server. If this is
    /// false, a request that finds the journal full has to do the work itself.
    pub(crate) helpful: bool,
    /// The number of chunks that operations may have emptied since everything was last carried out.
    pub(crate) emptied: u64,
    pub(crate) planned: Option<Crash>,
    pub(crate) trace: Trace,
    pub(crate) summary: Summary,
    /// Some volume was configured to give each snapshot a copy of its own.
    pub(crate) independent: bool,
    /// The content of sectors that became unreadable: (sector of the volume, stamp). Only reads of
    /// this content may fail.
    pub(crate) lost: BTreeSet<(u64, u64)>,
    /// The known past of each volume with CDP.
    pub(crate) past: BTreeMap<VolId, Past>,
    /// Moments that are held open.
    pub(crate) held: Vec<Held>,
    /// Some volume had CDP.
    pub(crate) kept_history: bool,
    /// Streams that were exported. `arriving` is the import of one that is under way.
    pub(crate) streams: Vec<Arc<Stream>>,
    pub(crate) arriving: Option<Arriving>,
    /// Imports that a later one has replaced, oldest first. Their senders may still send records at
    /// any time.
    pub(crate) stale: Vec<Arriving>,
    /// The number of the import that may fill each volume now.
    pub(crate) leases: BTreeMap<VolId, u64>,
    /// What is known of the pool's features.
    pub(crate) upgraded: Upgraded,
}

/// Returns the tear model for an atomic unit of 512 bytes. The journal must cope with media that
/// destroy the rest of a block if a write to it is interrupted. Physical volumes are required not
/// to do so, because parts of their blocks are overwritten in place.
fn tear_512(name: &str) -> TearModel {
    if name.starts_with("journal") { TearModel::EMULATED } else { TearModel::SECTORS }
}

fn tear_4096(name: &str) -> TearModel {
    if name.starts_with("pv") || name.starts_with('/') { TearModel::BLOCKS } else { tear_512(name) }
}

/// Maximum size in bytes of the journal records of a control operation.
const CONTROL_ROOM: u64 = 16 << 10;

impl Run {
    /// Creates a run with a machine that has no pool yet.
    pub fn new(seed: u64, plan: Plan, wild: bool, trace: Trace) -> Self {
        let mut rand = Rand::new(seed);
        let dir = SimDir::new(rand.bits());
        dir.set_backing(plan.backing);
        dir.set_makes_zeros(plan.makes_zeros);
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
            upgraded: Upgraded::default(),
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
            weak: 0,
            weak_is_bad: false,
            member_files: Vec::new(),
            member_size: 0,
            wild,
            helpful: !wild || rand.percent(50),
            emptied: 0,
            planned: None,
            trace,
            kept_before: 0,
            summary: Summary::default(),
            rand,
        }
    }

    /// Returns the disks of the machine.
    pub fn dir(&self) -> &SimDir {
        &self.dir
    }

    /// Returns the counts so far.
    pub fn summary(&self) -> Summary {
        Summary { disk_ops: self.dir.counts().ops, ..self.summary }
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            trace(&what());
        }
    }

    /// Plans the point and the way in which the process ends.
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

    /// Describes a new physical volume with the next number. If it is a device, the device is added
    /// to the machine.
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

    /// Performs one operation, and what follows from it: a recovery, checks, and the end of a
    /// poisoned pool.
    pub fn step(&mut self, op: &Op) -> Outcome<()> {
        self.summary.ops += 1;
        self.say(|| format!("{op:?}"));
        // Some time always passes, so that what an operation sequences is later than everything
        // before it.
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
        self.note_kept();
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

    /// Performs an operation of a script, unless a crash has removed a volume or snapshot that it
    /// needs.
    pub(crate) fn step_if_possible(&mut self, op: &Op) -> Outcome<()> {
        let state = self.oracle.state();
        let fits = |vol: &VolId| state.volumes.get(vol).is_some_and(|v| op.end() <= v.size);
        let there = |snap: &SnapId| state.snapshots.get(snap).is_some_and(|s| op.end() <= s.size);
        if op.volumes().iter().all(fits) && op.snapshots().iter().all(there) {
            return self.step(op);
        }
        // Later operations keep the numbers of their volumes and snapshots.
        let (volumes, snapshots) = op.creates();
        self.next_vol += volumes;
        self.next_snapshot += snapshots;
        Ok(())
    }

    /// Performs `count` random operations, and ends the run thoroughly.
    pub fn random(&mut self, count: u64, theme: Theme) -> Outcome<()> {
        let mut generator = Generator::new(self.rand.fork(), self.plan.config.extent_size, theme);
        if self.plan.references {
            generator = generator.with_references();
        }
        if self.plan.by_chunk {
            generator.place_by_chunk();
        }
        if self.plan.own_direct {
            generator.refer_by_volume();
        }
        if self.rand.percent(20) && self.plan.layout.is_none() {
            // The promises of a creation hold at once, too.
            let point = CrashPoint::Op(self.rand.between(1, 80));
            let how = Crash::random(&mut self.rand);
            self.plan_crash(point, how);
        }
        self.create()?;
        for _ in 0..count {
            // This comes before the operation is drawn, because a policy may delete what the
            // operation needs.
            self.make_room(CONTROL_ROOM)?;
            let op = generator.next(self.oracle.state(), &self.transfers());
            self.step(&op)?;
            let snapshots = self.oracle.state().snapshots.len() as u64;
            self.summary.most_snapshots = self.summary.most_snapshots.max(snapshots);
        }
        if self.plan.layout.is_some() {
            return self.finish();
        }
        if self.rand.percent(20) && self.rest()? {
            return self.damage();
        }
        // These draws come from a copy, so that they do not change the other draws.
        // Accepting a loss of the journal drops the sums, and with them the knowledge of what is
        // rotten.
        if self.rand.clone().percent(8) && !self.dir.has_rotten() {
            return self.harm_journal(&mut generator);
        }
        if self.rand.clone().percent(18) && self.rest()? {
            self.mix_ages()?;
        }
        self.finish()
    }

    /// Closes the pool for the end of a run. Returns false if a crash or a fault prevented the
    /// close.
    fn rest(&mut self) -> Outcome<bool> {
        self.dir.crash_at(None);
        if self.faults || self.failing {
            self.step(&Op::Reopen(None))?;
        }
        self.close()
    }

    /// The end of every run that does not damage the pool: everything must be there, and a deletion
    /// of everything must leave no trace.
    pub fn finish(&mut self) -> Outcome<()> {
        self.dir.crash_at(None);
        for op in [Op::ClearFaults, Op::Reopen(None), Op::Verify, Op::Drain, Op::Verify, Op::Check] {
            self.step(&op)?;
        }
        self.scrub_all()?;
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
        let (info, bad) = (self.pool()?.info(), self.pool()?.stats().bad_bytes);
        // The space of a failed physical volume does not count.
        if info.used > bad || (info.reserved, info.reserved_history) != (0, 0) {
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

    /// Returns the space in use, of the pool and of each physical volume, for the trace.
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

    /// Returns whether no physical volume accepts data any more.
    pub(crate) fn all_failed(&self) -> bool {
        let takes = |pool: &Arc<Pool>| {
            let carried_out = pool.stats().destaged_lsn;
            let is_there = |path| self.coming_pvs.get(path).is_none_or(|lsn| *lsn <= carried_out);
            pool.pvs().iter().any(|pv| !pv.draining && pv.failure.is_none() && is_there(&pv.path))
        };
        // Data of references that a failed sync leaves undone is nowhere else.
        let lost_references = || (self.plan.references || self.plan.sums) && self.poisoned();
        self.failing && (self.pool.as_ref().is_none_or(|pool| !takes(pool)) || lost_references())
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| matches!(pool.health(), Health::Poisoned(_)))
    }

    /// Checks that the positions of the log are in order. Tells the oracle what the pool reports as
    /// durable.
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

    /// Reads all ranges of a volume that were ever written, and two random blocks.
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

    /// Reads the ranges of a snapshot that were ever written. If all snapshots together have more
    /// than about `budget` ranges, it reads a random part of them.
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

    /// Returns the content that became unreadable so far.
    pub(crate) fn lost(&self) -> Lost<'_> {
        Lost {
            sectors: &self.lost,
            by_chunk: self.kept_history,
            by_block: self.plan.references || self.plan.sums,
        }
    }

    /// Compares everything with the oracle. It reads about `budget` ranges of snapshots.
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

    /// Returns a handle for requests, or `None` if the volume can't be opened because of a planned
    /// fault or a crash.
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

    /// Performs background steps until nothing is left to do, and then checks the space and the
    /// policies.
    pub(crate) fn settle(&mut self) -> Outcome<()> {
        self.work_until_idle()?;
        let mut deleted = None;
        // Policies rest for a while after each look at them, and the steps of an idle pool take
        // less time than that. Each look may delete a snapshot.
        while deleted != Some(self.summary.auto_deleted) && self.check_policies().is_err() {
            deleted = Some(self.summary.auto_deleted);
            self.pass(POLICIES_REST);
            self.work_until_idle()?;
        }
        self.check_space()?;
        self.check_policies()
    }

    fn work_until_idle(&mut self) -> Outcome<()> {
        let mut idle = 0;
        for _ in 0..100_000 {
            idle = if self.maintain_once()? == Progress::Idle { idle + 1 } else { 0 };
            if idle == PATIENCE {
                return Ok(());
            }
        }
        Err("background work never ends".into())
    }

    /// Counts what histories recorded without a copy since the last step.
    fn note_kept(&mut self) {
        let kept = self.pool.as_ref().map_or(0, |pool| pool.stats().kept_bytes);
        self.summary.kept += kept.saturating_sub(self.kept_before);
        self.kept_before = kept;
    }

    pub(crate) fn maintain_once(&mut self) -> Outcome<Progress> {
        let pool = self.pool()?;
        let before = pool.stats();
        let watch = self.watch_policies()?;
        let result = survive(|| self.background_step(&pool));
        let after = pool.stats();
        let sorted = after.history_runs_sorted - before.history_runs_sorted;
        // The only records that a pool sequences by itself are those of deletions by policy and of
        // flattening.
        self.filled |= after.sequenced_lsn != before.sequenced_lsn
            && after.snapshots_auto_deleted == before.snapshots_auto_deleted;
        if let Some(watch) = watch {
            self.note_deletion(&watch, result.is_err())?;
        }
        self.oracle.observe(pool.stats().sequenced_lsn.0);
        self.summary.runs_sorted += sorted;
        match result {
            Ok(progress) => {
                // Work that waits for space returns no error.
                self.ran_full();
                Ok(progress)
            }
            Err(_) if self.faults || self.dir.crashed() || self.all_failed() || self.ran_full() => {
                Ok(Progress::Idle)
            }
            Err(e) => Err(format!("a background step failed: {e:?}")),
        }
    }
}

/// Reads ranges. The result lacks the blocks that became unreadable.
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
        match survive(|| handle.read(offset, &mut data)) {
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

/// Returns the records of a write. It is one record if the write has at most `most` bytes. A longer
/// write is cut at multiples of `most` in the volume.
pub(crate) fn write_effects(vol: VolId, offset: u64, len: u64, most: u64, stamp: u64) -> Vec<Effect> {
    cut(offset, len, most)
        .map(|(at, len)| Effect::Write { vol, sector: at / SECTOR, count: len / SECTOR, stamp })
        .collect()
}

/// Returns the records of zeroing. It is one record if space is freed (`unmap`). If space is kept,
/// a range of more than 16 MiB is cut at multiples of 16 MiB.
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
