//! Relocation: putting redirected chunks back in their order.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::Volume;
use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::MemDir;
use hindcast_engine::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CHUNKS: u64 = 512;

struct Fixture {
    dir: Arc<MemDir>,
    clock: Arc<ManualClock>,
    pool: Arc<Pool>,
}

fn world(clock: &Arc<ManualClock>) -> World {
    World { clock: clock.clone(), rng: Arc::new(SplitMix::new(1)) }
}

impl Fixture {
    /// Makes a volume "v" of 2 MiB in chunks of 4 KiB, written in order, in a pool of `mib` MiB.
    fn new(mib: u64) -> (Fixture, Arc<Volume>) {
        let (dir, clock) = (Arc::new(MemDir::new()), Arc::new(ManualClock::new(1)));
        let config = PoolConfig {
            extent_size: 256 * KIB,
            journal_size: 4 * MIB,
            segment_size: 512 * KIB,
            atomic_unit: 4096,
        };
        let pv = PvSpec { path: "pv-0.img".into(), size: Some((mib + 1) * MIB), force: false };
        Pool::create(dir.clone(), &world(&clock), &config, Placement::Contiguous, &[pv]).unwrap();
        let pool = Pool::open(dir.clone(), world(&clock), PoolOptions::default()).unwrap();
        let new = NewVolume {
            name: "v".into(),
            size: CHUNKS * 4 * KIB,
            chunk_size: 4 * KIB,
            block_size: 512,
            read_only: false,
        };
        pool.create_volume(&new).unwrap();
        let v = pool.open_volume("v", false).unwrap();
        (0..CHUNKS).for_each(|chunk| write(&v, chunk, 1));
        pool.drain().unwrap();
        (Fixture { dir, clock, pool }, v)
    }

    fn runs(&self) -> u64 {
        let layout = self.pool.layout("v").unwrap();
        assert_eq!(layout.chunks, CHUNKS);
        layout.runs
    }

    fn idle(&self) {
        for _ in 0..3 {
            while self.pool.maintain().unwrap() == Progress::Worked {}
        }
    }

    fn check_after_close(self, v: Arc<Volume>) {
        drop(v);
        self.pool.close().unwrap();
        let Fixture { dir, clock, pool } = self;
        assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
        drop(pool);
        let report = check(dir.clone(), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        Pool::open(dir, world(&clock), PoolOptions::default()).unwrap();
    }
}

fn byte(chunk: u64, round: u8) -> u8 {
    (chunk % 120) as u8 * 2 + round
}

fn write(volume: &Volume, chunk: u64, round: u8) {
    let data = Bytes::from(vec![byte(chunk, round); 4096]);
    let mut ops = [WriteOp::new(chunk * 4 * KIB, data)];
    volume.write(&mut ops, false);
    let [op] = ops;
    op.result.unwrap();
}

fn assert_rounds(volume: &Volume, round: impl Fn(u64) -> u8) {
    for chunk in 0..CHUNKS {
        let mut buf = [0; 4096];
        volume.read(chunk * 4 * KIB, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == byte(chunk, round(chunk))), "chunk {chunk}: {}", buf[0]);
    }
}

/// Takes a snapshot and overwrites every chunk that `which` picks, in random order.
fn scatter(f: &Fixture, v: &Volume, snapshot: &str, which: impl Fn(u64) -> bool) {
    f.pool.create_snapshots(&[("v", snapshot)]).unwrap();
    let rng = SplitMix::new(5);
    let mut chunks: Vec<u64> = (0..CHUNKS).filter(|c| which(*c)).collect();
    for last in (1..chunks.len()).rev() {
        chunks.swap(last, (rng.next() % (last as u64 + 1)) as usize);
    }
    for some in chunks.chunks(8) {
        some.iter().for_each(|chunk| write(v, *chunk, 2));
        f.pool.drain().unwrap();
    }
}

#[test]
fn a_few_strays_go_home_and_the_versions_there_move_away() {
    let (f, v) = Fixture::new(16);
    let before = f.runs();
    assert!(before <= 8, "written in order: {before} runs");
    let which = |chunk: u64| chunk % 5 == 3;
    scatter(&f, &v, "s", which);
    assert!(f.runs() > 150, "scattered: {} runs", f.runs());
    f.pool.relocate_volume("v", 0).unwrap();
    assert_eq!(f.pool.relocation("v").unwrap().map(|r| r.pass), Some(1));
    f.idle();
    assert_eq!(f.pool.relocation("v").unwrap(), None, "it ends");
    assert!(f.runs() <= before, "{} runs were {before}", f.runs());
    let check_all = |v: &Volume| {
        assert_rounds(v, |chunk| 1 + u8::from(which(chunk)));
        assert_rounds(&f.pool.open_snapshot("v", "s").unwrap(), |_| 1);
    };
    check_all(&v);
    f.check_after_close(v);
}

#[test]
fn what_is_scattered_altogether_is_written_anew() {
    let (f, v) = Fixture::new(16);
    scatter(&f, &v, "s", |_| true);
    let scattered = f.runs();
    f.pool.relocate_volume("v", 0).unwrap();
    f.idle();
    // Free slots in a row are rare if many extents are half full. Then rows of at least 16 are
    // made.
    assert!(f.runs() <= 32 && scattered > 150, "{scattered} runs became {}", f.runs());
    assert_rounds(&v, |_| 2);
    assert_rounds(&f.pool.open_snapshot("v", "s").unwrap(), |_| 1);
    f.check_after_close(v);
}

#[test]
fn it_can_be_cut_short_after_any_step_and_goes_on() {
    let (f, v) = Fixture::new(16);
    scatter(&f, &v, "s", |chunk| chunk % 3 == 0);
    let Fixture { dir, clock, mut pool } = f;
    drop(v);
    for steps in 1.. {
        let before = pool.layout("v").unwrap().runs;
        pool.relocate_volume("v", 0).unwrap();
        for _ in 0..steps % 4 + 1 {
            pool.maintain().unwrap();
        }
        let done = pool.relocation("v").unwrap().is_none();
        // The pool is not closed: what was not committed is gone.
        drop(pool);
        pool = Pool::open(dir.clone(), world(&clock), PoolOptions::default()).unwrap();
        assert_eq!(pool.relocation("v").unwrap(), None, "a restart ends it");
        let v = pool.open_volume("v", false).unwrap();
        assert_rounds(&v, |chunk| 1 + u8::from(chunk % 3 == 0));
        assert_rounds(&pool.open_snapshot("v", "s").unwrap(), |_| 1);
        assert!(pool.layout("v").unwrap().runs <= before);
        if done && before <= 8 {
            break;
        }
        assert!(steps < 60, "no end: {before} runs");
    }
}

#[test]
fn it_is_throttled_and_can_be_stopped() {
    let (f, v) = Fixture::new(16);
    scatter(&f, &v, "s", |_| true);
    f.idle();
    f.pool.relocate_volume("v", MIB).unwrap();
    f.idle();
    let first = f.pool.relocation("v").unwrap().unwrap().moved_bytes;
    f.idle();
    assert_eq!(f.pool.relocation("v").unwrap().unwrap().moved_bytes, first, "no time has passed");
    assert!(first > 0 && f.runs() <= 512);
    f.clock.advance(2_000_000_000);
    f.idle();
    assert!(f.pool.relocation("v").unwrap().is_none_or(|r| r.moved_bytes >= first));
    f.pool.relocate_volume("v", 1).unwrap();
    f.pool.stop_relocation("v").unwrap();
    assert!(f.pool.stop_relocation("v").is_err());
    assert_rounds(&v, |_| 2);
    f.check_after_close(v);
}

#[test]
fn a_pool_without_room_is_left_as_it_is() {
    let (f, v) = Fixture::new(4);
    scatter(&f, &v, "s", |_| true);
    let before = f.runs();
    f.pool.relocate_volume("v", 0).unwrap();
    f.idle();
    assert_eq!(f.pool.relocation("v").unwrap(), None);
    assert!(f.runs() <= before);
    assert_rounds(&v, |_| 2);
    assert_rounds(&f.pool.open_snapshot("v", "s").unwrap(), |_| 1);
    f.check_after_close(v);
}
