//! A pool in memory with one volume, for tests that use the engine's internals.

use crate::device::{BlockDevice, WriteOp};
use crate::disk::MemDir;
use crate::pool::Pool;
use crate::settings::{NewVolume, Placement, PoolConfig, PoolOptions, PvSpec};
use crate::world::{ManualClock, SplitMix, World};
use bytes::Bytes;
use std::sync::Arc;

/// A pool in memory. Its volume is `v`.
pub(crate) struct Inside {
    pub(crate) dir: Arc<MemDir>,
    pub(crate) world: World,
    pub(crate) pool: Arc<Pool>,
}

pub(crate) fn world() -> World {
    World { clock: Arc::new(ManualClock::new(1)), rng: Arc::new(SplitMix::new(1)) }
}

/// Returns the volume `v`, with small chunks and sectors.
pub(crate) fn new_volume(size: u64) -> NewVolume {
    NewVolume { name: "v".into(), size, chunk_size: 4096, block_size: 512, read_only: false }
}

impl Inside {
    /// Makes an empty pool with `bytes` bytes in one physical volume.
    pub(crate) fn empty(bytes: u64) -> Inside {
        let (dir, world) = (Arc::new(MemDir::new()), world());
        let config = PoolConfig {
            extent_size: 64 << 10,
            journal_size: 8 << 20,
            segment_size: 1 << 20,
            ..PoolConfig::default()
        };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some(bytes), force: false };
        Pool::create(dir.clone(), &world, &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(dir.clone(), world.clone(), PoolOptions::default()).unwrap();
        Inside { dir, world, pool }
    }

    /// Makes a pool with a volume of `size` bytes.
    pub(crate) fn new(size: u64) -> Inside {
        let inside = Inside::empty(64 << 20);
        inside.pool.create_volume(&new_volume(size)).unwrap();
        inside
    }

    /// Opens the pool again, as after a kill.
    pub(crate) fn reopen(self) -> Inside {
        let Inside { dir, world, pool } = self;
        assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
        drop(pool);
        let pool = Pool::open(dir.clone(), world.clone(), PoolOptions::default()).unwrap();
        Inside { dir, world, pool }
    }

    /// Fills a range of the volume, durably, and returns the LSN.
    pub(crate) fn write(&self, offset: u64, byte: u8, len: usize) -> u64 {
        let volume = self.pool.open_volume("v", false).unwrap();
        let mut op = [WriteOp::new(offset, Bytes::from(vec![byte; len]))];
        volume.write(&mut op, true);
        op[0].result.as_ref().unwrap();
        self.pool.stats().sequenced_lsn
    }
}
