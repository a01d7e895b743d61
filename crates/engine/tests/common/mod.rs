//! Parts that tests of the engine share: a pool in memory, and simple requests.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // included by several, each needing a part of it

pub mod differences;

use bytes::Bytes;
use hindcast_engine::Volume;
use hindcast_engine::check::{CheckOptions, Finding, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_engine::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec};
use hindcast_engine::world::{ManualClock, SplitMix, World};
use std::sync::Arc;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A pool in memory, with one physical volume.
pub struct Site {
    pub dir: Arc<MemDir>,
    pub clock: Arc<ManualClock>,
    pub pool: Arc<Pool>,
    world: World,
}

impl Site {
    /// Makes a pool with room for `mib` MiB, extents of 64 KiB and slots of at least 4 KiB.
    pub fn new(mib: u64) -> Site {
        Site::seeded(mib, 1)
    }

    /// Makes a pool like [`Site::new`], with identities that depend on `seed`.
    pub fn seeded(mib: u64, seed: u64) -> Site {
        let config = PoolConfig {
            extent_size: 64 * KIB,
            journal_size: 8 * MIB,
            segment_size: 512 * KIB,
            atomic_unit: 4096,
        };
        Site::with(mib, seed, &config, Placement::Anywhere)
    }

    pub fn with(mib: u64, seed: u64, config: &PoolConfig, placement: Placement) -> Site {
        let (dir, clock) = (Arc::new(MemDir::new()), Arc::new(ManualClock::new(seed)));
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(seed)) };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some((mib + 1) * MIB), force: false };
        Pool::create(dir.clone(), &world, config, placement, &[pv]).unwrap();
        let pool = Pool::open(dir.clone(), world.clone(), PoolOptions::default()).unwrap();
        Site { dir, clock, pool, world }
    }

    /// Opens the pool again as after a kill: nothing is closed. The offline check finds nothing.
    pub fn reopen(self) -> Site {
        self.reopen_with(PoolOptions::default())
    }

    pub fn reopen_with(self, options: PoolOptions) -> Site {
        let (site, found) = self.reopen_checked(options);
        assert!(found.is_empty(), "{found:?}");
        site
    }

    /// Opens the pool again as after a kill, and also returns what the offline check finds.
    pub fn reopen_checked(self, options: PoolOptions) -> (Site, Vec<Finding>) {
        let Site { dir, clock, pool, world } = self;
        assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
        drop(pool);
        let report = check(dir.clone(), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        let pool = Pool::open(dir.clone(), world.clone(), options).unwrap();
        (Site { dir, clock, pool, world }, report.findings)
    }

    pub fn volume(&self, name: &str, size: u64, chunk_size: u64) -> Arc<Volume> {
        let new = NewVolume { name: name.into(), size, chunk_size, block_size: 512, read_only: false };
        self.pool.create_volume(&new).unwrap();
        self.pool.open_volume(name, false).unwrap()
    }

    pub fn snap(&self, volume: &str, name: &str) {
        self.pool.create_snapshots(&[(volume, name)]).unwrap();
    }

    pub fn idle(&self) {
        idle(&self.pool);
    }
}

/// Runs background work until nothing is left.
pub fn idle(pool: &Pool) {
    // Slots that the first pass retires become free in the next.
    for _ in 0..3 {
        while pool.maintain().unwrap() == Progress::Worked {}
    }
}

/// Writes `len` times `byte`.
pub fn write(volume: &Volume, offset: u64, byte: u8, len: u64) {
    let mut ops = [WriteOp::new(offset, Bytes::from(vec![byte; len as usize]))];
    volume.write(&mut ops, false);
    let [op] = ops;
    op.result.unwrap();
}

/// Returns the content of a file.
pub fn content_of(dir: &MemDir, name: &str) -> Vec<u8> {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; disk.len().unwrap() as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Inverts a byte of a file.
pub fn flip(dir: &MemDir, name: &str, at: u64) {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let mut byte = [0];
    disk.read_at(&mut byte, at).unwrap();
    disk.write_at(&[!byte[0]], at).unwrap();
}

/// Returns the content of a volume.
pub fn content(volume: &Volume) -> Vec<u8> {
    let mut all = vec![0; volume.info().size as usize];
    volume.read(0, &mut all).unwrap();
    all
}
