//! Volumes over images outside of the pool, and flattening.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::device::{BlockDevice, StatusRun};
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_engine::pool::{Health, NewVolume, Origin, Placement, Pool, PoolOptions, Progress};
use hindcast_engine::testing::{KIB, MIB, Site, SiteBuilder, check, new_volume, read, try_write, write};
use hindcast_engine::{Difference, ErrorKind, Volume};
use std::sync::Arc;

const CHUNK: u64 = 4 * KIB;
/// The length of the image, a multiple neither of the chunk size nor of a sector.
const LENGTH: u64 = 300 * KIB + 700;

/// Returns a byte of the image. It is 0 only in a hole.
fn of_image(at: u64) -> u8 {
    let hole = (40 * KIB..80 * KIB).contains(&at) || at >= LENGTH;
    if hole { 0 } else { (at % 251) as u8 + 1 }
}

fn builder(mib: u64) -> SiteBuilder {
    Site::builder(mib)
        .extents(256 * KIB)
        .journal(4 * MIB, 512 * KIB)
        .placement(Placement::Contiguous)
        .options(PoolOptions { destage_threads: 1, ..PoolOptions::default() })
}

/// Makes a pool with room for `mib` MiB, and an image beside it.
fn site(mib: u64) -> Site {
    let site = builder(mib).build();
    let content: Vec<u8> = (0..LENGTH).map(of_image).collect();
    site.dir.open("image", OpenMode::CreateNew).unwrap().write_at(&content, 0).unwrap();
    site
}

fn over(site: &Site, name: &str, size: u64) -> Arc<Volume> {
    site.pool.create_volume_over(&new_volume(name, size, CHUNK), "image").unwrap();
    site.open(name)
}

fn idle(site: &Site) {
    for _ in 0..4 {
        site.idle();
        site.clock.advance(2_000_000_000);
    }
}

/// Closes the pool, and opens it again as `between` left it.
fn reopen(site: Site, between: impl FnOnce(&MemDir)) -> Site {
    let Site { dir, seen, clock, world, options, pool } = site;
    pool.close().unwrap();
    assert_eq!(Arc::strong_count(&pool), 1, "handles keep the pool alive");
    drop(pool);
    between(&dir);
    let pool = Pool::open(seen.clone(), world.clone(), options.clone()).unwrap();
    Site { dir, seen, clock, world, options, pool }
}

fn findings(site: Site) -> Vec<&'static str> {
    site.pool.close().unwrap();
    check(site.kill()).findings.iter().map(|f| f.code).collect()
}

/// Checks that the content is that of the image, except for these ranges of one byte each.
fn assert_content(volume: &Volume, changed: &[(u64, u64, u8)]) {
    let size = volume.info().size;
    let mut expected: Vec<u8> = (0..size).map(of_image).collect();
    for (at, len, byte) in changed {
        expected[*at as usize..(at + len) as usize].fill(*byte);
    }
    let found = read(volume, 0, size);
    let wrong = found.iter().zip(&expected).position(|(f, e)| f != e);
    assert_eq!(wrong.map(|at| (at, found[at], expected[at])), None);
}

#[test]
fn an_image_is_served_at_once_and_never_changed() {
    let f = site(8);
    let v = over(&f, "v", 0);
    assert_eq!(v.info().size, 301 * KIB, "whole blocks");
    assert_content(&v, &[]);
    assert_eq!(f.pool.volume("v").unwrap().allocated, 0);
    let expected = Origin::Image { path: "image".into(), length: LENGTH, unavailable: None };
    assert_eq!(f.pool.origin("v").unwrap(), Some(expected));
    write(&v, 512, 9, 1024);
    write(&v, 300 * KIB, 8, 512);
    v.discard(100 * KIB, 10 * KIB, false).unwrap();
    v.write_zeroes(201 * KIB, 512, false, false).unwrap();
    f.pool.create_snapshots(&[("v", "s")]).unwrap();
    write(&v, 0, 7, 512);
    let changed = [(512, 1024, 9), (300 * KIB, 512, 8), (100 * KIB, 10 * KIB, 0), (201 * KIB, 512, 0)];
    let now = [&changed[..], &[(0, 512, 7)]].concat();
    for _ in 0..2 {
        assert_content(&v, &now);
        assert_content(&f.pool.open_snapshot("v", "s").unwrap(), &changed);
        idle(&f);
    }
    f.pool.clone_volume("v", "s", "c").unwrap();
    let c = f.pool.open_volume("c", false).unwrap();
    write(&c, 90 * KIB, 6, 512);
    f.pool.roll_back("v", "s", "undo", true).unwrap();
    idle(&f);
    assert_content(&c, &[&changed[..], &[(90 * KIB, 512, 6)]].concat());
    assert_content(&f.pool.open_volume("v", false).unwrap(), &changed);
    let mut image = vec![0; LENGTH as usize];
    f.dir.open("image", OpenMode::ReadOnly).unwrap().read_at(&mut image, 0).unwrap();
    assert!(image.iter().zip(0..).all(|(b, at)| *b == of_image(at)));
    drop((v, c));
    assert!(findings(f).is_empty());
}

#[test]
fn a_volume_may_be_longer_or_shorter_than_its_image() {
    let f = site(8);
    let long = over(&f, "long", MIB);
    assert_content(&long, &[]);
    let short = over(&f, "short", 90 * KIB);
    assert_content(&short, &[]);
    f.pool.resize_volume("short", 200 * KIB, false).unwrap();
    assert!(read(&short, 90 * KIB, 110 * KIB).iter().all(|b| *b == 0), "what was never shown stays so");
    f.pool.resize_volume("long", 90 * KIB + 512, true).unwrap();
    f.pool.resize_volume("long", 400 * KIB, false).unwrap();
    for _ in 0..2 {
        assert_content(&long, &[(90 * KIB + 512, 310 * KIB - 512, 0)]);
        idle(&f);
    }
    assert_eq!(
        f.pool.create_volume_over(&new_volume("x", 0, CHUNK), "none").unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

/// A chunk that is longer than a record is copied before a part of it is written. Only that copy
/// needs the image.
#[test]
fn chunks_longer_than_a_record() {
    let f = site(8);
    assert_eq!(f.pool.max_record_bytes(), 128 * KIB);
    let new = NewVolume { chunk_size: 256 * KIB, ..new_volume("v", MIB, CHUNK) };
    f.pool.create_volume_over(&new, "image").unwrap();
    let v = f.pool.open_volume("v", false).unwrap();
    write(&v, 512, 9, 1024);
    // The writes cover a whole chunk, in several records; a part of a chunk of which the image has
    // nothing; and a part of a chunk behind the image.
    write(&v, 256 * KIB, 8, 256 * KIB);
    v.discard(300 * KIB, 10 * KIB, false).unwrap();
    v.write_zeroes(600 * KIB, 512, false, false).unwrap();
    write(&v, 900 * KIB, 7, 512);
    let changed = [(512, 1024, 9), (256 * KIB, 256 * KIB, 8), (300 * KIB, 10 * KIB, 0), (900 * KIB, 512, 7)];
    assert_content(&v, &changed);
    drop(v);
    let f = reopen(f, |dir| dir.remove("image").unwrap());
    let v = f.pool.open_volume("v", false).unwrap();
    for _ in 0..2 {
        assert_content(&v, &changed);
        idle(&f);
    }
    assert_eq!(f.pool.health(), Health::Healthy);
    drop(v);
    assert_eq!(findings(f), ["image"], "it is missing, and that is all");
}

/// The copy serves older snapshots too, like a copy by flattening, and is freed with the last of
/// them.
#[test]
fn a_copied_long_chunk_goes_with_its_snapshots() {
    let f = site(8);
    let new = NewVolume { chunk_size: 256 * KIB, ..new_volume("v", 0, CHUNK) };
    f.pool.create_volume_over(&new, "image").unwrap();
    let v = f.pool.open_volume("v", false).unwrap();
    for name in ["a", "b"] {
        f.pool.create_snapshots(&[("v", name)]).unwrap();
    }
    write(&v, 512, 9, 1024);
    idle(&f);
    let allocated = || f.pool.volume("v").unwrap().allocated;
    assert_eq!(allocated(), 512 * KIB, "what both snapshots show, and what was written");
    f.dir.rename("image", "elsewhere").unwrap();
    let mut shown = vec![0; 4096];
    f.pool.open_snapshot("v", "b").unwrap().read(0, &mut shown).unwrap();
    assert!(shown.iter().zip(0..).all(|(byte, at)| *byte == of_image(at)));
    f.pool.delete_snapshots("v", &["a"]).unwrap();
    idle(&f);
    assert_eq!(allocated(), 512 * KIB, "the other one shows it");
    f.pool.delete_snapshots("v", &["b"]).unwrap();
    idle(&f);
    assert_eq!((allocated(), f.pool.info().used), (256 * KIB, 256 * KIB));
    assert_eq!(read(&v, 0, 2 * KIB)[512..1536], [9; 1024]);
}

/// The write is refused, and nothing else is.
#[test]
fn a_long_chunk_that_can_not_be_copied() {
    let f = site(1);
    f.pool.create_volume(&new_volume("hog", MIB, CHUNK)).unwrap();
    let hog = f.pool.open_volume("hog", false).unwrap();
    write(&hog, 0, 1, MIB - 64 * KIB);
    let new = NewVolume { chunk_size: 256 * KIB, ..new_volume("v", 0, CHUNK) };
    f.pool.create_volume_over(&new, "image").unwrap();
    let v = f.pool.open_volume("v", false).unwrap();
    assert_eq!(try_write(&v, 0, 2, 512), Err(ErrorKind::NoSpace));
    assert_content(&v, &[]);
    drop((v, hog));
    let f = reopen(f, |dir| dir.rename("image", "elsewhere").unwrap());
    let v = f.pool.open_volume("v", false).unwrap();
    assert_eq!(try_write(&v, 0, 2, 512), Err(ErrorKind::Unavailable));
    drop(v);
    let f = reopen(f, |dir| dir.rename("elsewhere", "image").unwrap());
    let (v, hog) = (f.pool.open_volume("v", false).unwrap(), f.pool.open_volume("hog", false).unwrap());
    assert_eq!(try_write(&v, 0, 2, 512), Err(ErrorKind::NoSpace));
    // Pending records give room back before a write is refused.
    hog.discard(0, MIB, false).unwrap();
    write(&v, 0, 2, 512);
    write(&hog, 0, 3, 4096);
    assert_content(&v, &[(0, 512, 2)]);
    drop((v, hog));
    assert!(findings(f).is_empty());
}

#[test]
fn a_missing_or_changed_image_fails_what_needs_it_and_nothing_else() {
    let f = site(8);
    let v = over(&f, "v", 0);
    f.pool.create_volume(&new_volume("other", MIB, CHUNK)).unwrap();
    write(&v, 512, 9, 512);
    drop(v);
    // Acknowledged content is in the journal only.
    let f = reopen(f, |dir| dir.rename("image", "elsewhere").unwrap());
    let (v, other) = (f.pool.open_volume("v", false).unwrap(), f.pool.open_volume("other", false).unwrap());
    idle(&f);
    assert_eq!(f.pool.health(), Health::Healthy);
    let refused = |v: &Volume, at| v.read(at, &mut [0; 512]).unwrap_err().kind();
    assert_eq!(refused(&v, 100 * KIB), ErrorKind::Unavailable);
    assert_eq!(try_write(&v, 100 * KIB, 1, 512), Err(ErrorKind::Unavailable), "a part of a chunk");
    assert_eq!(try_write(&v, 120 * KIB, 1, CHUNK), Ok(()), "a whole one");
    assert_eq!(
        read(&v, 0, 2 * KIB)[..1024],
        [vec![1; 0], (0..512).map(of_image).collect(), vec![9; 512]].concat()
    );
    write(&other, 0, 3, 4096);
    f.pool.flatten_volume("v", 0).unwrap();
    idle(&f);
    assert!(f.pool.flattening("v").unwrap().unwrap().stalled.is_some());
    assert!(matches!(f.pool.origin("v").unwrap(), Some(Origin::Image { unavailable: Some(_), .. })));
    // The image is not what it was.
    f.dir.open("image", OpenMode::CreateNew).unwrap().write_at(&[5; 1000], 0).unwrap();
    assert_eq!(refused(&v, 100 * KIB), ErrorKind::Unavailable);
    drop((v, other));
    let f = reopen(f, |dir| dir.rename("elsewhere", "image").unwrap());
    let v = f.pool.open_volume("v", false).unwrap();
    assert_content(&v, &[(512, 512, 9), (120 * KIB, CHUNK, 1)]);
    idle(&f);
    assert_eq!(f.pool.flattening("v").unwrap(), None, "it has gone on by itself");
    assert_eq!(f.pool.origin("v").unwrap(), None);
    drop(v);
    let f = reopen(f, |dir| dir.remove("image").unwrap());
    let v = f.pool.open_volume("v", false).unwrap();
    assert_content(&v, &[(512, 512, 9), (120 * KIB, CHUNK, 1)]);
    drop(v);
    assert!(findings(f).is_empty());
}

#[test]
fn check_tells_that_an_image_is_missing() {
    let f = site(8);
    drop(over(&f, "v", 0));
    idle(&f);
    let f = reopen(f, |dir| dir.remove("image").unwrap());
    assert_eq!(findings(f), ["image"]);
}

#[test]
fn snapshots_are_made_complete_too_and_zeros_take_no_space() {
    let f = site(8);
    let v = over(&f, "v", 0);
    f.pool.create_snapshots(&[("v", "s")]).unwrap();
    write(&v, 8 * KIB, 9, 3 * CHUNK);
    f.pool.create_snapshots(&[("v", "t")]).unwrap();
    write(&v, 8 * KIB, 8, CHUNK);
    idle(&f);
    f.pool.flatten_volume("v", 0).unwrap();
    idle(&f);
    assert_eq!(f.pool.flattening("v").unwrap(), None);
    let chunks_of_image = LENGTH.div_ceil(CHUNK) - 40 * KIB / CHUNK;
    assert_eq!(f.pool.volume("v").unwrap().allocated, (chunks_of_image + 4) * CHUNK);
    drop(v);
    let f = reopen(f, |dir| dir.remove("image").unwrap());
    let open = |name| f.pool.open_snapshot("v", name).unwrap();
    assert_content(&open("s"), &[]);
    assert_content(&open("t"), &[(8 * KIB, 3 * CHUNK, 9)]);
    assert_content(&f.pool.open_volume("v", true).unwrap(), &[(8 * KIB, CHUNK, 8), (12 * KIB, 2 * CHUNK, 9)]);
    assert_eq!(f.pool.flatten_volume("v", 0).unwrap_err().kind(), ErrorKind::Conflict);
    f.pool.delete_snapshots("v", &["s", "t"]).unwrap();
    idle(&f);
    assert_eq!(f.pool.volume("v").unwrap().allocated, chunks_of_image * CHUNK);
    assert!(findings(f).is_empty());
}

#[test]
fn a_clone_lets_go_of_the_snapshot_that_it_was_made_of() {
    let f = site(8);
    let a = over(&f, "a", 0);
    write(&a, 4 * KIB, 5, 8 * KIB);
    f.pool.create_snapshots(&[("a", "s")]).unwrap();
    f.pool.clone_volume("a", "s", "c").unwrap();
    let from = Origin::Snapshot { volume: "a".into(), snapshot: "s".into() };
    assert_eq!(f.pool.origin("c").unwrap(), Some(from));
    let c = f.pool.open_volume("c", false).unwrap();
    c.discard(200 * KIB, 20 * KIB, false).unwrap();
    f.pool.flatten_volume("c", 0).unwrap();
    idle(&f);
    assert_eq!(f.pool.origin("c").unwrap(), None);
    assert!(!f.pool.snapshot("a", "s").unwrap().pinned);
    f.pool.delete_volume("a", true).unwrap();
    drop(a);
    idle(&f);
    assert_eq!(f.pool.info().used, f.pool.volume("c").unwrap().allocated, "of the rest nothing is left");
    drop(c);
    let f = reopen(f, |dir| dir.remove("image").unwrap());
    let c = f.pool.open_volume("c", false).unwrap();
    assert_content(&c, &[(4 * KIB, 8 * KIB, 5), (200 * KIB, 20 * KIB, 0)]);
    write(&c, 210 * KIB, 4, 512);
    idle(&f);
    assert_content(&c, &[(4 * KIB, 8 * KIB, 5), (200 * KIB, 20 * KIB, 0), (210 * KIB, 512, 4)]);
    drop(c);
    assert!(findings(f).is_empty());
}

#[test]
fn a_rate_is_kept_and_stopping_keeps_what_is_copied() {
    let f = site(8);
    let v = over(&f, "v", 0);
    f.pool.flatten_volume("v", 16 * KIB).unwrap();
    let mut seconds = 0;
    while f.pool.flattening("v").unwrap().unwrap().copied_bytes < 64 * KIB {
        while f.pool.maintain().unwrap() == Progress::Worked {}
        f.clock.advance(100_000_000);
        seconds += 1;
        assert!(seconds < 1000, "it does not go on");
    }
    assert!(seconds >= 30, "64 KiB at 16 KiB a second took {seconds} tenths of a second");
    let info = f.pool.flattening("v").unwrap().unwrap();
    assert_eq!(info.stalled, None);
    drop(v);
    let f = reopen(f, |_| ());
    assert_eq!(f.pool.flattening("v").unwrap(), Some(info), "a restart loses nothing");
    f.pool.stop_flatten("v").unwrap();
    assert_eq!(f.pool.stop_flatten("v").unwrap_err().kind(), ErrorKind::NotFound);
    idle(&f);
    let kept = f.pool.volume("v").unwrap().allocated;
    assert!((64 * KIB..=96 * KIB).contains(&kept), "{kept} bytes: a step may have come before the end");
    assert!(f.pool.origin("v").unwrap().is_some());
    assert_content(&f.pool.open_volume("v", false).unwrap(), &[]);
    assert!(findings(f).is_empty());
}

#[test]
fn a_full_pool_stops_it_until_there_is_space() {
    let f = site(1);
    f.pool.create_volume(&new_volume("hog", MIB, CHUNK)).unwrap();
    let hog = f.pool.open_volume("hog", false).unwrap();
    write(&hog, 0, 1, 768 * KIB);
    let v = over(&f, "v", 0);
    f.pool.flatten_volume("v", 0).unwrap();
    idle(&f);
    let stalled = f.pool.flattening("v").unwrap().unwrap().stalled;
    assert_eq!(stalled.as_deref(), Some("copy a chunk of the origin: the pool is full"));
    assert!(f.pool.health().has("completion-stalled"), "{:?}", f.pool.health());
    assert_content(&v, &[]);
    hog.discard(0, MIB, false).unwrap();
    idle(&f);
    assert_eq!(f.pool.flattening("v").unwrap(), None);
    assert!(!f.pool.health().has("completion-stalled"), "{:?}", f.pool.health());
    assert_content(&v, &[]);
    drop((v, hog));
    assert!(findings(f).is_empty());
}

#[test]
fn differences_and_status_know_images() {
    let f = site(8);
    let (a, b, none) =
        (over(&f, "a", 0), over(&f, "b", 0), f.pool.create_volume(&new_volume("none", MIB, CHUNK)));
    assert!(none.is_ok());
    f.pool.create_snapshots(&[("a", "s"), ("none", "s")]).unwrap();
    write(&b, 16 * KIB, 1, CHUNK);
    let differ = |of: &str, with: &Arc<Volume>| -> Vec<(u64, u64)> {
        let from = f.pool.open_snapshot(of, "s").unwrap();
        let difference = Difference::new(from, with.clone()).unwrap();
        difference.ranges().map(|r| r.unwrap()).map(|r| (r.start, r.end)).collect()
    };
    assert_eq!(differ("a", &a), []);
    assert_eq!(differ("a", &b), [(16 * KIB, 20 * KIB)], "the same image");
    assert_eq!(differ("none", &a), [(0, 301 * KIB)]);
    assert_eq!(differ("none", &b), [(0, 301 * KIB)]);
    f.pool.flatten_volume("b", 0).unwrap();
    idle(&f);
    assert_eq!(differ("a", &b).first(), Some(&(0, 301 * KIB)), "nothing in common any more");
    let runs = a.block_status(0, a.info().size, 10).unwrap();
    let data = |length| StatusRun { length, allocated: true, zero: false };
    assert_eq!(runs.iter().map(|r| r.length).sum::<u64>(), a.info().size);
    assert_eq!(runs[0], data(runs[0].length));
}

#[test]
fn a_deep_chain_becomes_short_by_itself() {
    let mut f = site(16);
    f.options.flatten_depth = 5;
    let f = reopen(f, |_| ());
    let v = over(&f, "v", 0);
    write(&v, 0, 1, 512);
    f.pool.create_snapshots(&[("v", "s0")]).unwrap();
    drop(v);
    for n in 0..20u64 {
        f.pool.roll_back("v", &format!("s{n}"), &format!("u{n}"), true).unwrap();
        let v = f.pool.open_volume("v", false).unwrap();
        write(&v, n * 8 * KIB, n as u8 + 1, 512);
        f.pool.create_snapshots(&[("v", &format!("s{}", n + 1))]).unwrap();
        idle(&f);
    }
    let bases = f.pool.branch_bases();
    let depth =
        std::iter::successors(Some(f.pool.volume("v").unwrap().branch), |b| bases.get(b).map(|b| b.0));
    assert!(depth.count() <= 7, "{bases:?}");
    let changed: Vec<(u64, u64, u8)> = (0..20).map(|n| (n * 8 * KIB, 512, n as u8 + 1)).collect();
    assert_content(&f.pool.open_volume("v", false).unwrap(), &changed);
    assert_content(&f.pool.open_snapshot("v", "s4").unwrap(), &changed[..4]);
    assert!(findings(f).is_empty());
}
