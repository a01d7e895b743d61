//! Physical volumes stop accepting writes, or stop answering, and recover, at random, with crashes
//! and power losses in between. While one physical volume accepts writes, the pool continues, and
//! nothing acknowledged is lost.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test may panic, and say where it was

use bytes::Bytes;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{
    Health, Method, NewVolume, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec,
};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_sim::{CrashPoint, Failing, PowerLoss, SimDir};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZE: u64 = MIB;
const CHUNK: u64 = 16 * KIB;
const VOLUMES: [&str; 3] = ["plain", "copied", "kept"];
const PVS: [&str; 3] = ["pv-0", "pv-1", "pv-2"];
const SECOND: u64 = 1_000_000_000;

struct Site {
    dir: SimDir,
    clock: Arc<ManualClock>,
    world: World,
    rng: SplitMix,
    pool: Option<Arc<Pool>>,
    volumes: BTreeMap<&'static str, Vec<u8>>,
    snapshots: BTreeMap<(&'static str, String), Vec<u8>>,
    /// The content of `kept` at some LSNs.
    moments: Vec<(Lsn, Vec<u8>)>,
    next: u32,
    failing: BTreeSet<&'static str>,
    away: Option<&'static str>,
    /// Number of verifications during which the pool worked without some physical volume.
    went_on: u32,
}

fn options(rng: &SplitMix) -> PoolOptions {
    PoolOptions {
        destage_threads: 1 + rng.next() as usize % 2,
        shortage_waits: 0,
        batch_bytes: [64 * KIB, 4 * MIB][rng.next() as usize % 2],
        destage_start_percent: 20,
        ..PoolOptions::default()
    }
}

impl Site {
    fn new(seed: u64) -> Site {
        let (dir, clock) = (SimDir::new(seed), Arc::new(ManualClock::new(SECOND)));
        let rng = SplitMix::new(seed);
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(seed)) };
        let config = PoolConfig {
            extent_size: 256 * KIB,
            journal_size: 2 * MIB,
            segment_size: 256 * KIB,
            atomic_unit: 512,
        };
        let engine_dir = Arc::new(dir.clone());
        // Each physical volume has room for everything.
        let pvs = PVS.map(|path| PvSpec { path: path.into(), size: Some(33 * MIB), force: false });
        Pool::create(engine_dir.clone(), &world, &config, Placement::Anywhere, &pvs).unwrap();
        let pool = Pool::open(engine_dir, world.clone(), options(&rng)).unwrap();
        for name in VOLUMES {
            let (name, size) = (name.into(), SIZE);
            let new = NewVolume { name, size, chunk_size: CHUNK, block_size: 512, read_only: false };
            pool.create_volume(&new).unwrap();
        }
        pool.set_method("copied", Method::Copy).unwrap();
        pool.set_cdp("kept", Some(CdpSettings::default())).unwrap();
        let volumes = VOLUMES.iter().map(|name| (*name, vec![0; SIZE as usize])).collect();
        Site {
            dir,
            clock,
            world,
            rng,
            pool: Some(pool),
            volumes,
            snapshots: BTreeMap::new(),
            moments: Vec::new(),
            next: 0,
            failing: BTreeSet::new(),
            away: None,
            went_on: 0,
        }
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.next() % n
    }

    fn pool(&self) -> &Arc<Pool> {
        self.pool.as_ref().unwrap()
    }

    /// Returns the result of an operation that succeeded. A refusal is allowed only because of a
    /// failure or a lack of space. The pool must never be poisoned.
    fn taken<T>(&self, result: Result<T>) -> Option<T> {
        if self.dir.crashed() {
            return None;
        }
        let health = self.pool().health();
        assert!(!matches!(health, Health::Poisoned(_)), "{health:?}");
        let passes = |e: &Error| {
            e.is_shortage()
                || e.kind() == ErrorKind::NoSpace
                || e.kind() == ErrorKind::Io && self.away.is_some()
        };
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                assert!(passes(&error), "{error:?}, away: {:?}", self.away);
                None
            }
        }
    }

    /// Makes a physical volume fail soon, repairs all, or makes one stop answering for a while.
    fn disturb(&mut self) {
        let pv = PVS[self.below(3) as usize];
        match self.below(6) {
            0 => {
                self.dir.clear_faults();
                (self.away, self.failing) = (None, BTreeSet::new());
            }
            1 => {
                let away = self.away.take();
                away.into_iter().for_each(|pv| self.dir.set_away(pv, false));
            }
            // The pool may need to read from a physical volume that failed.
            2 if self.away.is_none() && self.failing.is_empty() && self.failed() == 0 => {
                self.dir.set_away(pv, true);
                self.away = Some(pv);
            }
            _ if self.away.is_none() && self.failing.len() + self.failed() < 2 => {
                let how = [Failing::Writes, Failing::Syncs][self.below(2) as usize];
                self.say(|| format!("{pv}: {how:?}"));
                self.dir.fail_writes(pv, how, self.below(24));
                self.failing.insert(pv);
            }
            _ => {}
        }
    }

    /// Returns the number of physical volumes that the pool no longer writes to, although they
    /// might accept writes.
    fn failed(&self) -> usize {
        let pvs = self.pool().pvs();
        pvs.iter().filter(|pv| pv.failure.is_some() && !self.failing.contains(&*pv.path)).count()
    }

    /// Reopens the pool. An interrupted write has happened wholly or not at all.
    fn settle(&mut self, name: &'static str, offset: u64, new: &[u8]) {
        self.reopen();
        let mut found = vec![0; new.len()];
        self.pool().open_volume(name, false).unwrap().read(offset, &mut found).unwrap();
        let held = &mut self.volumes.get_mut(name).unwrap()[offset as usize..][..new.len()];
        assert!(found == new || found == *held, "a torn write");
        held.copy_from_slice(&found);
        self.verify();
    }

    fn write(&mut self) {
        let name = VOLUMES[self.below(3) as usize];
        let len = [512, 4 * KIB, 16 * KIB, 60 * KIB][self.below(4) as usize];
        let offset = self.below((SIZE - len) / 512) * 512;
        let volume = self.pool().open_volume(name, false).unwrap();
        let discard = self.below(8) == 0;
        let byte = self.rng.next() as u8;
        let of = |n: u64| if discard { 0 } else { byte.wrapping_add((n / 512) as u8) };
        let data: Vec<u8> = (0..len).map(of).collect();
        let result = if discard {
            volume.discard(offset, len, true)
        } else {
            let mut op = [WriteOp::new(offset, Bytes::from(data.clone()))];
            volume.write(&mut op, true);
            op.map(|op| op.result).into_iter().collect()
        };
        drop(volume);
        self.say(|| format!("{name} {offset}+{len} {byte} {discard} {result:?}"));
        if self.dir.crashed() {
            self.settle(name, offset, &data);
        } else if self.taken(result).is_some() {
            self.volumes.get_mut(name).unwrap()[offset as usize..][..len as usize].copy_from_slice(&data);
            if name == "kept" && self.below(10) == 0 {
                self.moments.push((self.pool().stats().sequenced_lsn, self.volumes[name].clone()));
            }
        }
    }

    fn snapshot(&mut self) {
        let name = VOLUMES[self.below(3) as usize];
        if self.snapshots.len() < 8 {
            let snapshot = format!("s{}", self.next);
            self.next += 1;
            let done = self.pool().create_snapshots(&[(name, &snapshot)]);
            if self.taken(done).is_some() {
                self.snapshots.insert((name, snapshot), self.volumes[name].clone());
            }
            return;
        }
        let at = self.below(self.snapshots.len() as u64) as usize;
        let (volume, name) = self.snapshots.keys().nth(at).cloned().unwrap();
        let done = self.pool().delete_snapshots(volume, &[&name]);
        if self.taken(done).is_some() {
            self.snapshots.remove(&(volume, name));
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if std::env::var_os("FAILED_PV_TRACE").is_some() {
            println!("{}", what());
        }
    }

    fn step(&mut self) {
        self.clock.advance(self.below(SECOND / 20));
        match self.below(40) {
            0 => self.disturb(),
            1 => self.snapshot(),
            2 | 3 => drop(self.taken(self.pool().drain())),
            4..10 => drop(self.taken(self.pool().maintain())),
            10 => self.verify(),
            11 if self.below(4) == 0 => {
                self.reopen();
                self.verify();
            }
            12 if self.below(4) == 0 => {
                let point = CrashPoint::Op(self.dir.counts().ops + 1 + self.below(60));
                self.dir.crash_at(Some(point));
            }
            _ => self.write(),
        }
        if self.dir.crashed() {
            self.reopen();
            self.verify();
        }
    }

    fn verify(&mut self) {
        if self.away.is_some() || self.dir.crashed() {
            return;
        }
        let mut all = vec![0; SIZE as usize];
        for (name, content) in &self.volumes {
            self.pool().open_volume(name, false).unwrap().read(0, &mut all).unwrap();
            let wrong = all.iter().zip(content).position(|(a, b)| a != b);
            let Some(at) = wrong else { continue };
            panic!("{name} at {at}: {} and not {}, {:?}", all[at], content[at], self.pool().health());
        }
        // A snapshot is skipped if it is unknown whether it was taken.
        for ((volume, name), content) in &self.snapshots {
            let Ok(snapshot) = self.pool().open_snapshot(volume, name) else { continue };
            snapshot.read(0, &mut all).unwrap();
            assert!(all == *content, "{volume}@{name}");
        }
        for (lsn, content) in self.moments.iter().rev().step_by(3).take(2) {
            match self.pool().open_moment("kept", &Moment::Lsn(*lsn)) {
                // The records that a moment needs are carried out first, and that may have to wait.
                Err(error) => assert!(error.is_shortage() || self.dir.crashed(), "LSN {lsn}: {error:?}"),
                Ok(view) => match view.read(0, &mut all) {
                    Ok(()) => assert!(all == *content, "the moment of LSN {lsn}"),
                    Err(error) => assert!(self.dir.crashed(), "LSN {lsn}: {error:?}"),
                },
            }
        }
        self.went_on += u32::from(self.pool().pvs().iter().any(|pv| pv.failure.is_some()));
    }

    /// Kills the process or loses power, and opens the pool again while some physical volumes still
    /// fail.
    fn reopen(&mut self) {
        self.pool = None;
        let power = self.below(2) == 1;
        self.say(|| format!("reopen, power lost: {power}, away: {:?}", self.away));
        match power {
            false => self.dir.kill(),
            true => self.dir.lose_power(PowerLoss::ALL[self.below(PowerLoss::ALL.len() as u64) as usize]),
        }
        if let Some(pv) = self.away.take() {
            self.dir.set_away(pv, false);
        }
        self.dir.crash_at(None);
        let options = options(&self.rng);
        self.pool = Some(Pool::open(Arc::new(self.dir.clone()), self.world.clone(), options).unwrap());
        let pool = self.pool().clone();
        // An interrupted deletion may have happened, or not.
        self.snapshots.retain(|(volume, name), _| pool.open_snapshot(volume, name).is_ok());
    }

    /// Repairs everything. Everything must be carried out, and nothing may be left behind.
    fn finish(&mut self) {
        self.dir.clear_faults();
        (self.away, self.failing) = (None, BTreeSet::new());
        self.reopen();
        self.clock.advance(3 * SECOND);
        while self.pool().maintain().unwrap() == Progress::Worked {}
        self.pool().drain().unwrap();
        self.verify();
        assert_eq!(self.pool().info().reserved, 0, "promises that nothing stands behind");
        self.pool().close().unwrap();
        self.pool = None;
        self.dir.kill();
        let report = check(Arc::new(self.dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

#[test]
fn the_pool_goes_on_without_physical_volumes_that_fail() {
    let seeds = std::env::var("FAILED_PV_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(15);
    let from = std::env::var("FAILED_PV_FROM").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut went_on = 0;
    for seed in from..from + seeds {
        println!("seed {seed}");
        let mut site = Site::new(seed);
        for _ in 0..1500 {
            site.step();
        }
        site.finish();
        went_on += site.went_on;
    }
    assert!(u64::from(went_on) > seeds, "physical volumes failed and the pool went on: {went_on} times");
}
