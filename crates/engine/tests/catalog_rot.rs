//! Rot of the catalog under a whole pool. It is reported, never served, and never allocated over,
//! and the scrub in the background finds it.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::check::{CheckOptions, check};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_engine::pool::{NewVolume, Pool, PoolOptions, Progress, code};
use hindcast_engine::testing::{self, KIB, MIB, Site, new_volume, try_write, world, write};
use hindcast_engine::world::{Rng, SplitMix};
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

const CATALOG: &str = "catalog.redb";
const SIZE: u64 = MIB;

fn options() -> PoolOptions {
    PoolOptions { catalog_cache_bytes: 0, map_cache_bytes: 4096, ..PoolOptions::default() }
}

/// Fills the volume, and returns how many parts were refused.
fn fill(volume: &Volume, byte: u8) -> u32 {
    let parts = (0..SIZE).step_by(64 << 10);
    parts.filter(|offset| try_write(volume, *offset, byte, 64 << 10).is_err()).count() as u32
}

/// A pool with the volumes `v` and `w`, of which `v` is full of ones and in place.
fn pool() -> MemDir {
    let site = Site::builder(4).journal(2 * MIB, 256 * KIB).options(options()).build();
    for name in ["v", "w"] {
        site.pool.create_volume(&NewVolume { block_size: 4096, ..new_volume(name, SIZE, 4096) }).unwrap();
    }
    assert_eq!(fill(&site.open("v"), 1), 0);
    site.pool.drain().unwrap();
    site.pool.close().unwrap();
    (*site.kill()).clone()
}

fn flip(dir: &MemDir, at: u64, bit: u8) {
    let disk = dir.open(CATALOG, OpenMode::Existing).unwrap();
    // The file may have become shorter.
    let at = at % disk.len().unwrap();
    testing::flip(dir, CATALOG, at, 1 << (bit % 8));
}

/// Reads chunk by chunk, and returns how many can't be read. Every other chunk must be `byte`.
fn unread(pool: &Arc<Pool>, name: &str, byte: u8) -> u32 {
    let Ok(volume) = pool.open_volume(name, true) else { return 1 };
    let mut unread = 0;
    for offset in (0..SIZE).step_by(4096) {
        let mut data = vec![0xEE; 4096];
        match volume.read(offset, &mut data) {
            Ok(()) => assert!(data.iter().all(|b| *b == byte), "{name} at {offset}: {}", data[0]),
            Err(_) => unread += 1,
        }
    }
    unread
}

/// Writes to another volume as much as there is space for. Returns how many chunks of `v` can't be
/// read. Every other chunk of `v` must be as it was.
fn write_beside(pool: &Arc<Pool>) -> u32 {
    if let Ok(w) = pool.open_volume("w", false) {
        fill(&w, 2);
    }
    let _ = pool.drain();
    unread(pool, "v", 1)
}

#[test]
fn rot_at_rest_is_never_served_or_allocated_over() {
    let dir = pool();
    let len = dir.open(CATALOG, OpenMode::ReadOnly).unwrap().len().unwrap();
    let rng = SplitMix::new(5);
    let (mut refused, mut reported) = (0, 0);
    for n in 0..400 {
        let copy = dir.copy();
        flip(&copy, len * n / 400 + rng.next() % (len / 400), n as u8);
        match Pool::open(Arc::new(copy), world(1), options()) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
                refused += 1;
            }
            Ok(pool) => {
                if write_beside(&pool) > 0 {
                    assert!(pool.health().has(code::CATALOG_DAMAGED) || pool.health().has(code::POISONED));
                    reported += 1;
                }
            }
        }
    }
    assert!(refused > 0 && refused < 200, "{refused} refused, {reported} reported");
}

#[test]
fn rot_in_use_is_never_served_or_allocated_over() {
    let dir = pool();
    let len = dir.open(CATALOG, OpenMode::ReadOnly).unwrap().len().unwrap();
    let rng = SplitMix::new(6);
    let mut reported = 0;
    for n in 0..100 {
        let copy = dir.copy();
        let pool = Pool::open(Arc::new(copy.clone()), world(1), options()).unwrap();
        for m in 0..10 {
            flip(&copy, len * n / 100 + rng.next() % (len / 100), m);
            reported += u32::from(unread(&pool, "v", 1) > 0);
        }
        write_beside(&pool);
    }
    assert!(reported > 5, "{reported} reported");
}

const SECOND: u64 = 1_000_000_000;

/// Takes background steps until none is left, half a second apart.
fn idle(site: &Site, steps: u32) {
    for _ in 0..steps {
        while site.pool.maintain().unwrap() == Progress::Worked {}
        site.clock.advance(SECOND / 2);
    }
}

#[test]
fn a_scrub_finds_rot_once_a_week() {
    let site = Site::new(96);
    let volume = site.volume("v", 8 * MIB, 4096);
    // The versions for snapshots make the catalog large enough for several pieces.
    for n in 0..8 {
        (0..8).for_each(|part| write(&volume, part * MIB, n, MIB));
        site.pool.drain().unwrap();
        site.snap("v", &format!("s{n}"));
    }
    site.pool.drain().unwrap();
    drop(volume);
    let scrub = |site: &Site| site.pool.stats().catalog_scrub;
    assert!(scrub(&site).blocks > 300, "{:?}", scrub(&site));
    idle(&site, 60);
    assert_eq!((scrub(&site).passes, scrub(&site).next, scrub(&site).damaged), (1, 0, 0));
    idle(&site, 60);
    assert_eq!(scrub(&site).passes, 1, "not before a week has passed");
    site.clock.advance(7 * 86_400 * SECOND);
    idle(&site, 1);
    assert!(scrub(&site).next > 0, "a piece at a time");
    // A commit of another kind also stores the position.
    let next = scrub(&site).next;
    site.volume("w", MIB, 4096);
    site.pool.drain().unwrap();
    let site = site.reopen();
    assert_eq!((scrub(&site).next, scrub(&site).passes), (next, 1));
    idle(&site, 60);
    assert_eq!((scrub(&site).passes, scrub(&site).damaged), (2, 0));
    assert!(!site.pool.health().has(code::CATALOG_DAMAGED));

    // Every block but the first ones rots: some of the rot is in used blocks.
    let len = site.dir.open(CATALOG, OpenMode::ReadOnly).unwrap().len().unwrap();
    for at in (2 * 4096..len).step_by(4096) {
        flip(&site.dir, at + 100, 0);
    }
    site.clock.advance(7 * 86_400 * SECOND);
    idle(&site, 60);
    assert_eq!(scrub(&site).passes, 3);
    assert!(scrub(&site).damaged > 0);
    assert!(site.pool.health().has(code::CATALOG_DAMAGED), "{:?}", site.pool.health());
}

#[test]
fn a_check_names_bad_blocks_and_goes_on() {
    let dir = pool();
    let whole = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(whole.is_clean(), "{whole:?}");
    let len = dir.open(CATALOG, OpenMode::ReadOnly).unwrap().len().unwrap();
    let mut named = 0;
    for block in 2..len / 4096 {
        flip(&dir, block * 4096 + 9, 4);
        let report = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
        let found = report.findings.iter().find(|f| f.code == "catalog-block");
        if let Some(found) = found {
            assert_eq!(found.object, format!("block {} of the catalog", block - 1));
            named += 1;
        }
        flip(&dir, block * 4096 + 9, 4);
    }
    assert!(named >= 3, "{named} blocks named");
    let whole = check(Arc::new(dir.clone()), &CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(whole.is_clean(), "{whole:?}");
}
