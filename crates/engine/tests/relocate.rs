//! Relocation: putting redirected chunks back in their order.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::Volume;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Placement, Pool, PoolOptions};
use hindcast_engine::testing::{KIB, MIB, Site, write};
use hindcast_engine::world::{Rng, SplitMix};
use std::sync::Arc;

const CHUNKS: u64 = 512;

/// Makes a volume "v" of 2 MiB in chunks of 4 KiB, written in order, in a pool of `mib` MiB.
fn site(mib: u64) -> (Site, Arc<Volume>) {
    let builder = Site::builder(mib).extents(256 * KIB).journal(4 * MIB, 512 * KIB);
    let site = builder.placement(Placement::Contiguous).build();
    let v = site.volume("v", CHUNKS * 4 * KIB, 4 * KIB);
    (0..CHUNKS).for_each(|chunk| put(&v, chunk, 1));
    site.pool.drain().unwrap();
    (site, v)
}

fn runs(site: &Site) -> u64 {
    let layout = site.pool.layout("v").unwrap();
    assert_eq!(layout.chunks, CHUNKS);
    layout.runs
}

fn check_after_close(site: Site, v: Arc<Volume>) {
    drop(v);
    site.pool.close().unwrap();
    site.reopen();
}

fn byte(chunk: u64, round: u8) -> u8 {
    (chunk % 120) as u8 * 2 + round
}

fn put(volume: &Volume, chunk: u64, round: u8) {
    write(volume, chunk * 4 * KIB, byte(chunk, round), 4 * KIB);
}

fn assert_rounds(volume: &Volume, round: impl Fn(u64) -> u8) {
    for chunk in 0..CHUNKS {
        let mut buf = [0; 4096];
        volume.read(chunk * 4 * KIB, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == byte(chunk, round(chunk))), "chunk {chunk}: {}", buf[0]);
    }
}

/// Takes a snapshot and overwrites every chunk that `which` picks, in random order.
fn scatter(f: &Site, v: &Volume, snapshot: &str, which: impl Fn(u64) -> bool) {
    f.pool.create_snapshots(&[("v", snapshot)]).unwrap();
    let rng = SplitMix::new(5);
    let mut chunks: Vec<u64> = (0..CHUNKS).filter(|c| which(*c)).collect();
    for last in (1..chunks.len()).rev() {
        chunks.swap(last, (rng.next() % (last as u64 + 1)) as usize);
    }
    for some in chunks.chunks(8) {
        some.iter().for_each(|chunk| put(v, *chunk, 2));
        f.pool.drain().unwrap();
    }
}

#[test]
fn a_few_strays_go_home_and_the_versions_there_move_away() {
    let (f, v) = site(16);
    let before = runs(&f);
    assert!(before <= 8, "written in order: {before} runs");
    let which = |chunk: u64| chunk % 5 == 3;
    scatter(&f, &v, "s", which);
    assert!(runs(&f) > 150, "scattered: {} runs", runs(&f));
    f.pool.relocate_volume("v", 0).unwrap();
    assert_eq!(f.pool.relocation("v").unwrap().map(|r| r.pass), Some(1));
    f.idle();
    assert_eq!(f.pool.relocation("v").unwrap(), None, "it ends");
    assert!(runs(&f) <= before, "{} runs were {before}", runs(&f));
    let check_all = |v: &Volume| {
        assert_rounds(v, |chunk| 1 + u8::from(which(chunk)));
        assert_rounds(&f.pool.open_snapshot("v", "s").unwrap(), |_| 1);
    };
    check_all(&v);
    check_after_close(f, v);
}

#[test]
fn what_is_scattered_altogether_is_written_anew() {
    let (f, v) = site(16);
    scatter(&f, &v, "s", |_| true);
    let scattered = runs(&f);
    f.pool.relocate_volume("v", 0).unwrap();
    f.idle();
    // Free slots in a row are rare if many extents are half full. Then rows of at least 16 are
    // made.
    assert!(runs(&f) <= 32 && scattered > 150, "{scattered} runs became {}", runs(&f));
    assert_rounds(&v, |_| 2);
    assert_rounds(&f.pool.open_snapshot("v", "s").unwrap(), |_| 1);
    check_after_close(f, v);
}

#[test]
fn it_can_be_cut_short_after_any_step_and_goes_on() {
    let (f, v) = site(16);
    scatter(&f, &v, "s", |chunk| chunk % 3 == 0);
    let Site { dir, world, mut pool, .. } = f;
    drop(v);
    for steps in 1.. {
        let before = pool.layout("v").unwrap().runs;
        pool.relocate_volume("v", 0).unwrap();
        for _ in 0..steps % 4 + 1 {
            pool.maintain().unwrap();
        }
        let done = pool.relocation("v").unwrap().is_none();
        // The pool is not closed, so changes that were not committed are gone.
        drop(pool);
        pool = Pool::open(dir.clone(), world.clone(), PoolOptions::default()).unwrap();
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
    let (f, v) = site(16);
    scatter(&f, &v, "s", |_| true);
    f.idle();
    f.pool.relocate_volume("v", MIB).unwrap();
    f.idle();
    let first = f.pool.relocation("v").unwrap().unwrap().moved_bytes;
    f.idle();
    assert_eq!(f.pool.relocation("v").unwrap().unwrap().moved_bytes, first, "no time has passed");
    assert!(first > 0 && runs(&f) <= 512);
    f.clock.advance(2_000_000_000);
    f.idle();
    assert!(f.pool.relocation("v").unwrap().is_none_or(|r| r.moved_bytes >= first));
    f.pool.relocate_volume("v", 1).unwrap();
    f.pool.stop_relocation("v").unwrap();
    assert!(f.pool.stop_relocation("v").is_err());
    assert_rounds(&v, |_| 2);
    check_after_close(f, v);
}

#[test]
fn a_pool_without_room_is_left_as_it_is() {
    let (f, v) = site(4);
    scatter(&f, &v, "s", |_| true);
    let before = runs(&f);
    f.pool.relocate_volume("v", 0).unwrap();
    f.idle();
    assert_eq!(f.pool.relocation("v").unwrap(), None);
    assert!(runs(&f) <= before);
    assert_rounds(&v, |_| 2);
    assert_rounds(&f.pool.open_snapshot("v", "s").unwrap(), |_| 1);
    check_after_close(f, v);
}
