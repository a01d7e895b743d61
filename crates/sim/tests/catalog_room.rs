//! A catalog on a file system that is nearly full. Everything acknowledged can be carried out, with
//! batches as small as necessary and with the ballast as a reserve. Deletions give space back.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::ErrorKind;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::pool::{Health, NewVolume, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec};
use hindcast_engine::world::{ManualClock, SplitMix, World};
use hindcast_sim::SimDir;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of the volume that one map page covers: 256 chunks of 512 B.
const PAGE: u64 = 256 * 512;

struct Site {
    dir: SimDir,
    world: World,
    clock: Arc<ManualClock>,
    pool: Arc<Pool>,
}

fn options() -> PoolOptions {
    PoolOptions {
        backing_margin: 8 * MIB,
        destage_threads: 1,
        shortage_waits: 0,
        destage_start_percent: 100,
        ..PoolOptions::default()
    }
}

impl Site {
    /// Creates a pool whose physical volume is a block device. Everything else is on the file
    /// system of the data directory.
    fn new() -> Site {
        let (dir, clock) = (SimDir::new(3), Arc::new(ManualClock::new(1_000_000_000)));
        dir.set_backing(Some(1 << 40));
        dir.add_block_device("/dev/sim0", 256 * MIB);
        let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(1)) };
        let config = PoolConfig {
            extent_size: 256 * KIB,
            journal_size: 16 * MIB,
            segment_size: MIB,
            atomic_unit: 512,
        };
        let pv = PvSpec { path: "/dev/sim0".into(), size: None, force: false };
        Pool::create(Arc::new(dir.clone()), &world, &config, Placement::Anywhere, &[pv]).unwrap();
        let pool = Pool::open(Arc::new(dir.clone()), world.clone(), options()).unwrap();
        let new = NewVolume {
            name: "v".into(),
            size: 4096 * PAGE,
            chunk_size: 512,
            block_size: 512,
            read_only: false,
        };
        pool.create_volume(&new).unwrap();
        let site = Site { dir, world, clock, pool };
        site.idle();
        site
    }

    fn idle(&self) {
        for _ in 0..4 {
            self.clock.advance(3_000_000_000);
            while self.pool.maintain().unwrap() == Progress::Worked {}
        }
    }

    /// Writes the first `len` bytes of the range that each of some map pages covers.
    fn write(&self, pages: std::ops::Range<u64>, byte: u8, len: u64) -> Result<(), ErrorKind> {
        let volume = self.pool.open_volume("v", false).unwrap();
        for page in pages {
            let mut op = [WriteOp::new(page * PAGE, Bytes::from(vec![byte; len as usize]))];
            volume.write(&mut op, false);
            let [op] = op;
            op.result.map_err(|e| e.kind())?;
        }
        Ok(())
    }

    fn shows(&self, pages: std::ops::Range<u64>, byte: u8) {
        let volume = self.pool.open_volume("v", false).unwrap();
        let mut block = vec![0; 512];
        for page in pages {
            volume.read(page * PAGE, &mut block).unwrap();
            assert!(block.iter().all(|b| *b == byte), "map page {page}");
        }
    }

    /// Limits the backing space to `bytes` more than what is in use.
    fn leave(&self, bytes: u64) {
        self.dir.set_backing(Some(self.dir.backing_used() + bytes));
    }

    fn healthy(&self) {
        assert!(!matches!(self.pool.health(), Health::Poisoned(_)), "{:?}", self.pool.health());
    }

    /// Opens the pool again after a kill and an offline check.
    fn reopen(self) -> Site {
        let Site { dir, world, clock, pool } = self;
        drop(pool);
        dir.kill();
        let report = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let pool = Pool::open(Arc::new(dir.clone()), world.clone(), options()).unwrap();
        Site { dir, world, clock, pool }
    }
}

/// The catalog has 512 full map pages. All of them were changed again when the file system became
/// nearly full.
#[test]
fn acknowledged_writes_are_carried_out_with_little_space() {
    for left in [2 * MIB, 256 * KIB, 0] {
        let site = Site::new();
        site.write(0..512, 1, PAGE).unwrap();
        site.pool.drain().unwrap();
        site.pool.create_snapshots(&[("v", "s")]).unwrap();
        site.pool.drain().unwrap();
        site.write(0..512, 2, 512).unwrap();
        site.leave(left);
        site.pool.drain().unwrap();
        site.healthy();
        let stats = site.pool.stats();
        assert_eq!(stats.destaged_lsn, stats.sequenced_lsn, "{left} bytes were left");
        site.shows(0..512, 2);
        // A deletion gives space back, however little there is.
        site.pool.delete_snapshots("v", &["s"]).unwrap();
        site.idle();
        site.healthy();
        let site = site.reopen();
        site.shows(0..512, 2);
    }
}

#[test]
fn the_ballast_is_told_of_and_comes_back() {
    let site = Site::new();
    site.write(0..64, 1, PAGE).unwrap();
    site.leave(0);
    site.pool.drain().unwrap();
    let health = site.pool.health();
    assert!(health.has("ballast-used"), "{health:?}");
    site.dir.set_backing(Some(1 << 40));
    site.idle();
    assert_eq!(site.pool.health(), Health::Healthy);
    site.shows(0..64, 1);
}

/// New map pages make the catalog grow permanently. A write without room for its page is refused
/// before it is acknowledged.
#[test]
fn no_more_is_promised_than_the_catalog_can_take() {
    let site = Site::new();
    site.write(0..64, 1, PAGE).unwrap();
    site.pool.drain().unwrap();
    site.leave(3 * MIB);
    site.idle();
    let mut taken = 64;
    while site.write(taken..taken + 1, 3, PAGE).is_ok() {
        taken += 1;
        assert!(taken < 1500, "nothing was refused");
    }
    assert_eq!(site.write(taken..taken + 1, 3, PAGE), Err(ErrorKind::NoSpace));
    site.healthy();
    site.pool.drain().unwrap();
    site.shows(64..taken, 3);
    // A chunk whose map page exists can be overwritten, however little space there is.
    site.write(0..64, 4, 512).unwrap();
    site.pool.drain().unwrap();
    site.shows(0..64, 4);
    let site = site.reopen();
    site.shows(64..taken, 3);
    site.pool.open_volume("v", false).unwrap().discard(0, 4096 * PAGE, false).unwrap();
    site.pool.drain().unwrap();
    site.healthy();
}
