//! Shortages of what a host provides: descriptors, and space for histories, for extents and for the
//! files of the journal. They begin and end at random. None of them poisons the pool or loses what
//! was acknowledged. When they have ended, everything acknowledged is carried out.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{
    Health, Method, NewVolume, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec,
};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use hindcast_engine::{ErrorKind, Volume};
use hindcast_sim::SimDir;
use std::collections::BTreeMap;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZE: u64 = 2 * MIB;
const CHUNK: u64 = 16 * KIB;
const VOLUMES: [&str; 3] = ["kept", "plain", "copied"];
const SECOND: u64 = 1_000_000_000;

/// A pool, and the content of its volumes, their snapshots and some moments.
struct Site {
    dir: SimDir,
    clock: Arc<ManualClock>,
    world: World,
    rng: SplitMix,
    pool: Option<Arc<Pool>>,
    volumes: BTreeMap<&'static str, Vec<u8>>,
    snapshots: BTreeMap<(&'static str, String), Vec<u8>>,
    moments: Vec<(&'static str, Lsn, Vec<u8>)>,
    next: u32,
    refused: u32,
}

fn options() -> PoolOptions {
    PoolOptions {
        backing_margin: 4 * MIB,
        destage_threads: 1,
        shortage_waits: 0,
        open_files: 8,
        destage_start_percent: 20,
        ..PoolOptions::default()
    }
}

impl Site {
    fn new(seed: u64) -> Site {
        let (dir, clock) = (SimDir::new(seed), Arc::new(ManualClock::new(SECOND)));
        dir.set_backing(Some(1 << 40));
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(seed)) };
        let config = PoolConfig {
            extent_size: 256 * KIB,
            journal_size: 2 * MIB,
            segment_size: 256 * KIB,
            atomic_unit: 4096,
        };
        let engine_dir = Arc::new(dir.clone());
        let pv = PvSpec { path: "pv-0".into(), size: Some(64 * MIB), force: false };
        Pool::create(engine_dir.clone(), &world, &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(engine_dir, world.clone(), options()).unwrap();
        for name in VOLUMES {
            let (name, size) = (name.into(), SIZE);
            let new = NewVolume { name, size, chunk_size: CHUNK, block_size: 512, read_only: false };
            pool.create_volume(&new).unwrap();
        }
        pool.set_method("copied", Method::Copy).unwrap();
        let settings = CdpSettings {
            encoding: Encoding::Parity,
            compression: Compression::None,
            anchors: AnchorPolicy::Every(200),
            max_distance: None,
            retention: Retention::default(),
        };
        pool.set_cdp("kept", Some(settings)).unwrap();
        pool.set_cdp("copied", Some(CdpSettings { encoding: Encoding::Undo, ..settings })).unwrap();
        let volumes = VOLUMES.iter().map(|name| (*name, vec![0; SIZE as usize])).collect();
        Site {
            dir,
            clock,
            world,
            rng: SplitMix::new(seed),
            pool: Some(pool),
            volumes,
            snapshots: BTreeMap::new(),
            moments: Vec::new(),
            next: 0,
            refused: 0,
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        self.pool.as_ref().unwrap()
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.next() % n
    }

    fn volume(&self, name: &str) -> Arc<Volume> {
        self.pool().open_volume(name, false).unwrap()
    }

    /// Returns the result of an operation that succeeded. A refusal is allowed only because of a
    /// shortage.
    fn taken<T>(&mut self, result: hindcast_engine::Result<T>) -> Option<T> {
        assert!(!matches!(self.pool().health(), Health::Poisoned(_)), "{:?}", self.pool().health());
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::NoSpace | ErrorKind::Busy), "{error:?}");
                self.refused += 1;
                None
            }
        }
    }

    fn begin_or_end_shortage(&mut self) {
        self.dir.set_full(&[]);
        self.dir.set_descriptors(None);
        match self.below(8) {
            0 => self.dir.set_descriptors(Some(self.below(3) as usize)),
            1 => self.dir.set_full(&["cdp-"]),
            2 => self.dir.set_full(&["pv-"]),
            3 => self.dir.set_full(&["journal-"]),
            4 => {
                self.dir.set_full(&["cdp-", "pv-", "journal-"]);
                self.dir.set_descriptors(Some(0));
            }
            _ => {}
        }
    }

    fn write(&mut self) {
        let name = VOLUMES[self.below(3) as usize];
        // The write has at most one record. If a longer write is refused when the journal is full,
        // its first records may be there.
        let len = [512, 4 * KIB, 16 * KIB, 60 * KIB][self.below(4) as usize];
        let offset = self.below((SIZE - len) / 512) * 512;
        let volume = self.volume(name);
        if self.below(6) == 0 {
            let done = volume.discard(offset, len, false);
            if self.taken(done).is_some() {
                self.volumes.get_mut(name).unwrap()[offset as usize..][..len as usize].fill(0);
            }
            return;
        }
        let byte = self.rng.next() as u8;
        let data: Vec<u8> = (0..len).map(|n| byte.wrapping_add((n / 512) as u8)).collect();
        let mut op = [WriteOp::new(offset, Bytes::from(data.clone()))];
        volume.write(&mut op, self.below(8) == 0);
        let [op] = op;
        if self.taken(op.result).is_some() {
            self.volumes.get_mut(name).unwrap()[offset as usize..][..len as usize].copy_from_slice(&data);
            if name != "plain" && self.below(20) == 0 {
                self.moments.push((name, self.pool().stats().sequenced_lsn, self.volumes[name].clone()));
            }
        }
    }

    fn step(&mut self) {
        self.clock.advance(self.below(SECOND / 20));
        match self.below(40) {
            0 => self.begin_or_end_shortage(),
            1 => {
                let name = VOLUMES[self.below(3) as usize];
                let snapshot = format!("s{}", self.next);
                self.next += 1;
                let done = self.pool().create_snapshots(&[(name, &snapshot)]);
                if self.taken(done).is_some() {
                    self.snapshots.insert((name, snapshot), self.volumes[name].clone());
                }
            }
            2 => {
                let at = self.below(self.snapshots.len().max(1) as u64) as usize;
                if let Some((volume, name)) = self.snapshots.keys().nth(at).cloned() {
                    let done = self.pool().delete_snapshots(volume, &[&name]);
                    if self.taken(done).is_some() {
                        self.snapshots.remove(&(volume, name));
                    }
                }
            }
            3 => {
                let done = self.pool().drain();
                self.taken(done);
            }
            4..8 => {
                let done = self.pool().maintain();
                self.taken(done);
            }
            8 => self.verify(self.volumes.keys().nth(self.below(3) as usize).unwrap()),
            _ => self.write(),
        }
    }

    /// Checks a volume. Reads need no space.
    fn verify(&self, name: &str) {
        let mut all = vec![0; SIZE as usize];
        self.volume(name).read(0, &mut all).unwrap();
        let wrong = all.iter().zip(&self.volumes[name]).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "what was acknowledged for {name} is there");
    }

    fn verify_all(&mut self) {
        VOLUMES.iter().for_each(|name| self.verify(name));
        let mut all = vec![0; SIZE as usize];
        for ((volume, name), content) in &self.snapshots {
            self.pool().open_snapshot(volume, name).unwrap().read(0, &mut all).unwrap();
            assert!(all == *content, "{volume}@{name}");
        }
        for (name, lsn, content) in &self.moments {
            let view = self.pool().open_moment(name, &Moment::Lsn(*lsn)).unwrap();
            view.read(0, &mut all).unwrap();
            assert!(all == *content, "the moment of LSN {lsn} of {name}");
        }
    }

    /// Ends all shortages. Everything must be carried out.
    fn recover(&mut self) {
        self.dir.set_full(&[]);
        self.dir.set_descriptors(None);
        self.clock.advance(3 * SECOND);
        for _ in 0..3 {
            while self.pool().maintain().unwrap() == Progress::Worked {}
        }
        self.pool().drain().unwrap();
        let stats = self.pool().stats();
        assert_eq!(stats.destaged_lsn, stats.sequenced_lsn);
        let health = self.pool().health();
        assert!(!health.has("host-full-waiting") && !health.has("resources-short"), "{health:?}");
        assert_eq!(self.pool().info().reserved, 0, "promises that nothing stands behind");
        self.verify_all();
    }

    /// Opens the pool again after a kill and an offline check.
    fn reopen(&mut self) {
        self.dir.set_descriptors(None);
        self.pool = None;
        self.dir.kill();
        let report = check(Arc::new(self.dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        self.dir.set_full(&[]);
        self.pool = Some(Pool::open(Arc::new(self.dir.clone()), self.world.clone(), options()).unwrap());
    }
}

#[test]
fn none_poisons_and_nothing_is_lost() {
    let mut refused = 0;
    for seed in 0..12 {
        let mut site = Site::new(seed);
        for _ in 0..6 {
            for _ in 0..120 {
                site.step();
            }
            if site.below(2) == 0 {
                site.reopen();
                site.verify_all();
            } else {
                site.recover();
            }
        }
        site.recover();
        site.reopen();
        site.verify_all();
        refused += site.refused;
    }
    assert!(refused > 100, "{refused} requests met a shortage");
}

/// The journal fills while nothing can be carried out. Then writes are refused. Everything
/// acknowledged is carried out later.
#[test]
fn the_journal_holds_what_waits() {
    for names in [&["cdp-"][..], &["pv-"]] {
        let mut site = Site::new(7);
        site.recover();
        site.dir.set_full(names);
        let before = site.refused;
        for n in 0.. {
            assert!(n < 2000, "nothing was refused");
            site.clock.advance(SECOND / 100);
            site.write();
            let done = site.pool().maintain();
            site.taken(done);
            if site.refused > before + 5 {
                break;
            }
        }
        let health = site.pool().health();
        assert!(health.has("host-full-waiting"), "{names:?}: {health:?}");
        assert!(format!("{health:?}").contains("no storage space"), "{health:?}");
        VOLUMES.iter().for_each(|name| site.verify(name));
        site.recover();
        site.write();
        site.recover();
    }
}
