//! The lives of a run's process. A life begins with creation, or with a recovery that is compared
//! with the oracle. It ends with a clean close, a kill, a power loss, or a panic.

use crate::disk::CrashPoint;
use crate::fate::PowerLoss;
use crate::generate::FAILING;
use crate::heard;
use crate::oracle::{
    Effect, FoundSnapshot, FoundState, FoundVolume, Manner, PolicyModel, Promise, View, VolId,
};
use crate::perform::{Answer, VERIFIED_RANGES};
use crate::run::{Outcome, Run, read_ranges};
use crate::survive;
use crate::trash::take_out_all;
use crate::workload::{Crash, Op, Plan};
use bytes::Bytes;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Health, Pool, PoolOptions, Progress, PvSpec};
use std::collections::BTreeSet;

/// If this many chunks are emptied while snapshots see them, the catalog can need more than a
/// quarter of its margin for them.
const MUCH: u64 = 8192;

impl Run {
    /// Makes room in the journal before a request needs it, like the threads of a server.
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

    /// Creates and opens the pool. A crash during the creation must leave a state in which a pool
    /// can be created again, or opened.
    pub fn create(&mut self) -> Outcome<()> {
        let pvs = self.plan.pvs.clone();
        let mut specs: Vec<PvSpec> =
            pvs.into_iter().map(|(size, device)| self.new_pv(size, device)).collect();
        self.pvs = specs.iter().map(|spec| spec.path.clone()).collect();
        let mut cut_short = false;
        loop {
            let there = Pool::exists(&self.dir).map_err(|e| format!("look for a pool: {e:?}"))?;
            let result = survive(|| {
                if there {
                    Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone()).map(drop)
                } else {
                    let plan = &self.plan;
                    // An upgrade enables them, so that crashes meet it.
                    let features = Some(&[][..]);
                    let (dir, world) = (self.dyn_dir(), self.world());
                    Pool::create_with_features(dir, &world, &plan.config, plan.placement, &specs, features)
                }
            });
            match result {
                Ok(()) => break,
                Err(_) if self.dir.crashed() || self.dir.panicked() => {
                    self.end_process();
                    cut_short = true;
                    // A label that a power loss tore is not empty, so the next creation needs
                    // force.
                    specs.iter_mut().for_each(|spec| spec.force = true);
                }
                Err(e) if cut_short => {
                    return Err(format!("a creation that was cut short (there: {there}): {e:?}"));
                }
                Err(e) => return Err(format!("create the pool: {e:?}")),
            }
        }
        if self.dir.crashed() {
            self.end_process();
        }
        self.open(Promise::Acknowledged)?;
        if self.plan.references || self.plan.sums {
            self.enable_features()?;
        }
        self.dedicate_one()?;
        self.move_to_layout()
    }

    /// Opens the pool and compares everything with the oracle. The run survives crashes and a
    /// failed sync on the way.
    pub(crate) fn open(&mut self, mut promise: Promise) -> Outcome<()> {
        // Errors that the engine logged in an earlier life say nothing about this one.
        heard::take_poisonings();
        self.faults = false;
        self.failing = false;
        self.dir.clear_faults();
        if self.wild && self.rand.percent(10) {
            // The offline check must find nothing after a crash either.
            self.inspect()?;
        }
        let mut salvaged = if self.wild { self.salvaged()? } else { None };
        for attempt in 0.. {
            self.check_stored_features()?;
            let failing = self.disturb_recovery(attempt);
            let opened = survive(|| Pool::open(self.dyn_dir(), self.world(), self.plan.options.clone()));
            let failed = failing.is_some() && !self.dir.sync_failure_pending();
            // An opening writes slots of references again that the one before has begun to write.
            // If that is not synced, it writes them once more.
            let excused =
                failing == Some(SyncPurpose::JournalOpen) && (self.plan.references || self.plan.sums);
            let panicked = self.dir.panicked();
            match opened {
                Ok(pool)
                    if failed
                        && !excused
                        && !self.dir.crashed()
                        && pool.pvs().iter().all(|pv| pv.failure.is_none()) =>
                {
                    return Err("opened in spite of a failed sync".into());
                }
                // The store of the catalog may have caught a panic in a read. Such a pool refuses
                // the first change, so it is opened again.
                Ok(pool) if !self.dir.crashed() && !panicked => {
                    // The pool may have opened without a physical volume whose sync failed.
                    self.failing = failed;
                    self.pool = Some(pool);
                    self.date_coming()?;
                    break;
                }
                Err(e) if !failed && !panicked && !self.dir.crashed() => {
                    return Err(format!("open the pool: {e:?}"));
                }
                // The pool is dropped before `end_process` ends the process.
                Ok(pool) => drop(pool),
                Err(_) => {}
            }
            // Another crash may lose more of what was not synced.
            salvaged = None;
            if failed {
                self.planned = Some(self.any_power_loss());
            }
            if self.end_process() == Promise::Durable {
                promise = Promise::Durable;
            }
        }
        self.dir.clear_faults();
        self.dir.crash_at(None);
        self.dir.panic_at(None);
        self.planned = None;
        self.faults = false;
        if let Some(salvaged) = salvaged {
            self.compare_salvaged(&salvaged)?;
        }
        let first_lost = self.compare(promise)?;
        self.forget_lost_moments(first_lost.map(Lsn))?;
        self.note_moments()
    }

    /// In a random run, draws new options for the recovery to come, and now and then plans another
    /// crash or a sync that fails. Returns whether a sync is planned to fail.
    fn disturb_recovery(&mut self, attempt: u32) -> Option<SyncPurpose> {
        if !self.wild {
            return None;
        }
        self.dir.clear_faults();
        let flatten_depth = self.plan.options.flatten_depth;
        self.plan.options = PoolOptions { flatten_depth, ..Plan::options(&mut self.rand) };
        if attempt < 4 && self.rand.percent(25) {
            let point = CrashPoint::Op(self.dir.counts().ops + self.rand.between(1, 60));
            let how = Crash::random(&mut self.rand);
            self.plan_crash(point, how);
        }
        // A sync that fails on another member than the weak one would leave too few.
        if attempt >= 2 || self.plan.layout.is_some() || !self.rand.percent(3) {
            return None;
        }
        let purpose = self.rand.pick(&FAILING);
        self.dir.fail_next_sync(purpose);
        Some(purpose)
    }

    fn any_power_loss(&mut self) -> Crash {
        Crash::Power(self.rand.pick(&PowerLoss::ALL))
    }

    /// Compares what was recovered with the model. Returns the LSN of the first acknowledged record
    /// that may be lost.
    pub(crate) fn compare(&mut self, promise: Promise) -> Outcome<Option<u64>> {
        let pool = self.pool()?;
        let mut found = FoundState::default();
        let stats = pool.stats();
        // A volume in the trash can't be read.
        let trashed = take_out_all(&pool)?;
        for info in pool.volumes() {
            let Some(id) = self.ids.get(&info.uuid).copied().or(self.unborn) else {
                return Err(format!("volume {} is none that was ever created", info.name));
            };
            self.ids.insert(info.uuid, id);
            let mut volume = FoundVolume::new(
                id,
                info.name.clone(),
                info.size,
                info.chunk_size,
                info.block_size,
                info.read_only,
            );
            let policy =
                PolicyModel { percent: info.policy.reserve_percent, auto_delete: info.policy.auto_delete };
            let manner = Manner {
                method: Some(info.method),
                order: Some(info.order),
                cdp: Some(info.cdp),
                placement: Some(info.placement),
                direct_min: Some(info.direct_min),
            };
            volume = volume.with(policy, self.found_import(&info.name)?, manner);
            volume.labels = info.labels;
            volume.trashed = trashed.contains(&info.uuid);
            for (offset, data) in self.read_everything(id, &info.name, info.size)? {
                volume.add(offset, &data);
            }
            found.volumes.push(volume);
            self.find_snapshots(id, &info.name, &mut found)?;
        }
        self.unborn = None;
        self.unborn_snapshots.clear();
        let (lost, first_lost) = self.oracle.recover(&found, promise, stats.sequenced_lsn.0)?;
        for vol in found.volumes.iter().filter(|volume| volume.trashed).map(|volume| volume.id) {
            let taken_out = [Effect::Trash(vol, false)];
            self.oracle.attempt(&taken_out);
            self.settle_with_oracle(&Answer::Done, &taken_out, true)?;
        }
        self.say(|| format!("recovered to LSN {}; {lost} acknowledged records are lost", stats.written_lsn));
        self.summary.lost += lost as u64;
        // Materialized content may exist without the write that it was materialized for.
        self.filled |= self.oracle.state().lines.any_over_image();
        self.compare_pvs()?;
        self.check_features()?;
        self.check_positions()?;
        Ok(first_lost)
    }

    fn find_snapshots(&mut self, vol: VolId, volume: &str, found: &mut FoundState) -> Outcome<()> {
        let snapshots = self.pool()?.snapshots(volume).map_err(|e| format!("list snapshots: {e:?}"))?;
        for info in snapshots {
            let named = |(v, n, _): &&(VolId, String, u32)| *v == vol && *n == info.name;
            let unborn = self.unborn_snapshots.iter().find(named).map(|(_, _, id)| *id);
            let Some(id) = self.snapshot_ids.get(&info.uuid).copied().or(unborn) else {
                return Err(format!("snapshot {volume}@{} is none that was ever taken", info.name));
            };
            self.snapshot_ids.insert(info.uuid, id);
            let Some(origin) = self.snapshot_ids.get(&info.content).copied() else {
                return Err(format!(
                    "the content of {volume}@{} is that of no snapshot ever taken",
                    info.name
                ));
            };
            let mut snapshot = FoundSnapshot::new(id, vol, info.name.clone(), info.size).with(
                origin,
                info.protected,
                info.labels.clone(),
            );
            let of = (volume, &info.name[..], info.size);
            for (offset, data) in self.read_snapshot_ranges(vol, of, VERIFIED_RANGES)? {
                snapshot.add(offset, &data);
            }
            found.snapshots.push(snapshot);
        }
        Ok(())
    }

    fn compare_pvs(&mut self) -> Outcome<()> {
        let there: BTreeSet<String> = self.pool()?.pvs().into_iter().map(|pv| pv.path).collect();
        let missing = self.pvs.difference(&there).find(|path| !self.doubtful_pvs.contains(*path));
        let extra = there.difference(&self.pvs).find(|path| !self.doubtful_pvs.contains(*path));
        if let Some(path) = missing.or(extra) {
            return Err(format!("physical volume {path}: should be in {:?}, are {there:?}", self.pvs));
        }
        self.pvs = there;
        self.doubtful_pvs.clear();
        Ok(())
    }

    /// Ends the process in the planned way. Returns the promise that holds afterwards.
    pub(crate) fn end_process(&mut self) -> Promise {
        self.note_features();
        self.drop_handles();
        self.pool = None;
        self.summary.crashes += 1;
        let how = self.planned.take().unwrap_or(Crash::Kill);
        self.note_process_end();
        self.say(|| format!("crash: {how:?} after {:?}", self.dir.counts()));
        match how {
            Crash::Kill | Crash::Panic => {
                self.dir.kill();
                self.lose_member();
                Promise::Acknowledged
            }
            Crash::Power(loss) => {
                self.dir.lose_power(loss);
                self.lose_member();
                self.boot();
                Promise::Durable
            }
        }
    }

    /// Crashes between two operations.
    pub(crate) fn crash(&mut self, how: Crash) -> Outcome<()> {
        self.planned = Some(how);
        let promise = self.end_process();
        self.open(promise)
    }

    /// Closes the pool, which makes everything durable. Returns false if a crash or a fault
    /// prevented the close.
    pub(crate) fn close(&mut self) -> Outcome<bool> {
        self.note_features();
        self.drop_handles();
        let Some(pool) = self.pool.take() else {
            return Ok(false);
        };
        self.note_process_end();
        let closed = survive(|| pool.close());
        self.summary.records += pool.stats().journal_records;
        drop(pool);
        if self.dir.crashed() || self.faults {
            return Ok(false);
        }
        // Disks are repaired while the pool is closed.
        self.dir.clear_faults();
        if self.failing && closed.is_err() {
            return Ok(false);
        }
        closed.map_err(|e| format!("close: {e:?}"))?;
        self.oracle.all_durable();
        Ok(true)
    }

    /// Closes the pool, loses power if `loss` is given, and opens the pool again. After a clean
    /// close there is nothing to lose.
    pub(crate) fn reopen(&mut self, loss: Option<PowerLoss>) -> Outcome<()> {
        if self.close()? {
            if let Some(loss) = loss {
                self.dir.lose_power(loss);
                self.boot();
            }
            return self.open(Promise::Acknowledged);
        }
        self.reopen_unclean()
    }

    pub(crate) fn reopen_unclean(&mut self) -> Outcome<()> {
        // After a panic the page cache is correct.
        if self.faults && !(self.dir.panicked() && self.rand.percent(50)) {
            // After a failed sync the page cache proves nothing.
            self.planned = Some(self.any_power_loss());
        }
        let promise = self.end_process();
        self.open(promise)
    }

    /// Returns how many chunks an operation may empty, at most all.
    pub(crate) fn empties(&self, op: &Op) -> u64 {
        let (vol, bytes) = match op {
            Op::Discard { vol, len, .. } | Op::Zeroes { vol, len, unmap: true, .. } => (vol, *len),
            Op::Resize { vol, .. } => (vol, u64::MAX),
            _ => return 0,
        };
        let used = self.pool.as_ref().map_or(0, |pool| pool.info().used);
        self.oracle.state().volumes.get(vol).map_or(0, |v| used.min(bytes) / v.chunk_size)
    }

    /// Returns whether so many chunks were emptied that the catalog needed more space than is kept
    /// for it. DURABILITY.md states what to expect: the work waits, or the pool is poisoned if a
    /// commit had begun. Nothing is lost, and the pool continues when there is space. If it
    /// happened, this function removes the limit of the space.
    pub(crate) fn ran_full(&mut self) -> bool {
        if self.plan.backing.is_none() || self.emptied < MUCH {
            return false;
        }
        let catalogs = |why: &str| why.contains("catalog") || why.contains("update ");
        let (full, waits) = match self.pool.as_ref().map(|pool| pool.health()) {
            Some(Health::Poisoned(why)) => (why.contains("no storage space") && catalogs(&why), false),
            Some(Health::Warning(warnings)) => {
                (false, warnings.iter().any(|w| w.code == "host-full-waiting" && catalogs(&w.text)))
            }
            _ => (false, false),
        };
        if !full && !waits {
            return false;
        }
        self.say(|| "the catalog found its file system full".into());
        self.summary.ran_full += 1;
        self.dir.set_backing(None);
        self.plan.backing = None;
        self.faults |= full;
        true
    }

    /// Ends the life of a pool after a planned panic of a disk. A panic while the pool holds state
    /// in memory must have poisoned the pool. A panic during a read of the catalog stops the
    /// commits of the catalog.
    pub(crate) fn leave_panicked(&mut self) -> Outcome<()> {
        if self.pool.is_none() {
            let promise = self.end_process();
            return self.open(promise);
        }
        // A read may write again what a member of a layout could not read.
        if !self.poisoned() && self.members().iter().any(|member| self.dir.panicked_in(member)) {
            let promise = self.end_process();
            return self.open(promise);
        }
        if !self.poisoned() {
            if !self.dir.panicked_in("catalog.redb") {
                return Err("the pool has survived it".into());
            }
            // The store has caught the panic in a read. The state of the pool in memory is
            // complete, but it can't be committed any more.
            let drained = self.pool()?.drain();
            self.say(|| format!("  after a panic in the store: {drained:?}"));
            if self.dir.crashed() {
                let promise = self.end_process();
                return self.open(promise);
            }
            if !self.poisoned() {
                return self.reopen_unclean();
            }
        }
        self.leave_poisoned()
    }

    /// Checks I7 and leaves the pool: a poisoned pool refuses writes, serves reads, and only a
    /// recovery ends this state.
    pub(crate) fn leave_poisoned(&mut self) -> Outcome<()> {
        self.say(|| "the pool is poisoned".into());
        if heard::take_poisonings() == 0 {
            return Err("the pool is poisoned, and the engine did not say so".into());
        }
        self.dir.clear_faults();
        // A planned crash would only hide how a poisoned pool reads.
        self.dir.crash_at(None);
        let ids: Vec<VolId> = self.oracle.state().volumes.keys().copied().collect();
        for vol in ids {
            if self.oracle.doubtful_volume(vol) {
                continue;
            }
            let before = self.pool()?.stats().sequenced_lsn;
            let Some(handle) = self.handle(vol)? else { continue };
            let block = handle.info().block_size as usize;
            let mut writes = [WriteOp::new(0, Bytes::from(vec![1; block]))];
            handle.write(&mut writes, false);
            if writes[0].result.is_ok() || handle.flush().is_ok() {
                return Err("a poisoned pool accepts writes".into());
            }
            if self.pool()?.stats().sequenced_lsn != before {
                return Err("a poisoned pool sequences records".into());
            }
            let mut ranges = self.oracle.interesting(vol, handle.info().size);
            ranges.truncate(4);
            for (offset, data) in read_ranges(&handle, "a poisoned pool", ranges, self.lost())? {
                self.oracle.check_read(View::Volume(vol), offset, &data)?;
            }
        }
        self.read_poisoned_snapshots()?;
        self.reopen_unclean()
    }

    /// Checks the closed pool offline. The check must find nothing.
    pub(crate) fn inspect(&self) -> Outcome<()> {
        let options = CheckOptions { repair: false, ..CheckOptions::default() };
        let report = match check(self.dyn_dir(), &options, &mut |_, _| {}) {
            Err(_) if self.dir.crashed() => return Ok(()),
            result => result.map_err(|e| format!("check: {e:?}"))?,
        };
        match report.findings.first() {
            None => Ok(()),
            Some(first) => Err(format!("check finds {} things, the first: {first:?}", report.findings.len())),
        }
    }

    /// Closes the pool, checks it offline, and opens it again. The check must find nothing.
    pub(crate) fn check_offline(&mut self) -> Outcome<()> {
        if !self.close()? {
            return self.reopen_unclean();
        }
        self.dir.crash_at(None);
        self.inspect()?;
        self.open(Promise::Acknowledged)
    }
}
