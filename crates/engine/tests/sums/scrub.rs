//! The scrub: it finds all damage without a reader, and goes on after a kill.

use super::*;
use hindcast_engine::disk::{Layer, LayeredDir, LowerDisk};
use hindcast_engine::pool::DataScrubInfo;
use hindcast_engine::testing::{content_of, world};
use std::io;
use std::sync::Mutex;
use std::time::Duration;

/// Takes steps until the pass ends.
fn finish(pool: &Pool) -> DataScrubInfo {
    for _ in 0..10_000 {
        if !pool.data_scrub().running {
            return pool.data_scrub();
        }
        pool.scrub_step().unwrap();
    }
    panic!("the scrub does not end: {:?}", pool.data_scrub());
}

pub(super) fn scrub(pool: &Pool) -> DataScrubInfo {
    assert!(pool.scrub(0, false).unwrap().running);
    finish(pool)
}

#[test]
fn it_finds_damage_that_nobody_has_read_in_volumes_snapshots_and_clones() {
    let site = site();
    let v = site.open("v");
    put(&v, 0..64, 1);
    site.snap("v", "s");
    put(&v, 0..32, 2);
    site.pool.clone_volume("v", "s", "c").unwrap();
    let c = site.open("c");
    put(&c, 8..9, 3);
    site.idle();
    let found = scrub(&site.pool);
    let in_use = (64 + 32 + 4) * BLOCK;
    assert_eq!((found.total, found.verified, found.unknown), (in_use, in_use, 0), "{found:?}");
    assert_eq!((found.damaged, found.unreadable, found.passes), (0, 0, 1));
    let medium = Medium::of(&site.dir, "pv-0.img");
    drop((v, c));
    let site = site.reopen_after(|_| {
        // The volume's own, one of a version, and the clone's own.
        medium.flip(medium.place(3, 2));
        medium.flip(medium.place(5, 1));
        medium.flip(medium.place(8, 3));
    });
    let found = scrub(&site.pool);
    assert_eq!((found.verified, found.damaged), (in_use - 3 * BLOCK, 3 * BLOCK), "{found:?}");
    assert_eq!(found.passes, 2);
    assert_eq!(site.pool.damaged(), (3 * BLOCK, 3));
    expect(&site.open("v"), 0..32, 2, &[3]);
    expect(&site.snapshot("v", "s"), 0..64, 1, &[5]);
    assert_eq!(damage_in(&site.open("c"), 0, 64 * BLOCK), Some(5 * BLOCK));
    assert_eq!(site.pool.damaged_ranges("c").unwrap(), [(5 * BLOCK, BLOCK), (8 * BLOCK, BLOCK)]);
    // What is staged over damage heals it when it is in place.
    put(&site.open("v"), 3..4, 4);
    assert_eq!(scrub(&site.pool).damaged, 3 * BLOCK);
    site.idle();
    let found = scrub(&site.pool);
    assert_eq!((found.damaged, found.verified), (2 * BLOCK, in_use - 2 * BLOCK));
}

#[test]
fn a_closed_pool_is_verified_without_a_write() {
    let site = site();
    put(&site.open("v"), 0..64, 1);
    site.snap("v", "s");
    site.idle();
    put(&site.open("v"), 0..4, 2);
    let dir = site.kill();
    let before: Vec<_> = dir.list().unwrap().iter().map(|name| content_of(&dir, name)).collect();
    let verify = || {
        let mut last = (0, 0);
        let found = Pool::verify_data(dir.clone(), world(1), &mut |done, total| last = (done, total));
        let after: Vec<_> = dir.list().unwrap().iter().map(|name| content_of(&dir, name)).collect();
        (found.unwrap().unwrap(), last, before == after)
    };
    let (found, last, same) = verify();
    assert!(same && found.damage.is_empty(), "{found:?}");
    assert_eq!((found.scrub.verified, last), (64 * BLOCK, (64 * BLOCK, 64 * BLOCK)));
    Medium::of(&dir, "pv-0.img").flip(Medium::of(&dir, "pv-0.img").place(9, 1));
    let (found, ..) = verify();
    let owners: Vec<_> = found.damage.iter().map(|d| (d.snapshot.as_deref(), d.ranges.clone())).collect();
    assert_eq!(owners, [(None, vec![(9 * BLOCK, BLOCK)]), (Some("s"), vec![(9 * BLOCK, BLOCK)])]);
}

/// A scrub of an open pool gives way while the journal is nearly full. Of a closed pool, nobody
/// destages the journal meanwhile.
#[test]
fn a_closed_pool_with_a_full_journal_is_verified() {
    let site = site();
    put(&site.open("v"), 0..64, 1);
    site.idle();
    let is_full = || site.pool.stats().journal_used > site.pool.stats().journal_capacity / 100 * 82;
    (2..1000).take_while(|_| !is_full()).for_each(|generation| put(&site.open("v"), 0..4, generation));
    assert!(is_full(), "{:?}", site.pool.stats());
    let found = Pool::verify_data(site.kill(), world(1), &mut |_, _| ()).unwrap().unwrap();
    assert!(found.damage.is_empty(), "{found:?}");
    assert_eq!(found.scrub.verified, 64 * BLOCK);
}

/// The disk returned a wrong content for a while.
#[test]
fn damage_that_matches_its_sum_again_is_forgotten() {
    let site = site();
    put(&site.open("v"), 0..64, 1);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    let place = medium.place(7, 1);
    let site = site.reopen_after(|_| medium.flip(place));
    assert_eq!(scrub(&site.pool).damaged, BLOCK);
    assert_eq!(damage_in(&site.open("v"), 7 * BLOCK, BLOCK), Some(7 * BLOCK));
    let site = site.reopen_after(|_| medium.flip(place));
    assert_eq!(damage_in(&site.open("v"), 7 * BLOCK, BLOCK), Some(7 * BLOCK), "until the scrub has looked");
    assert_eq!(scrub(&site.pool).damaged, 0);
    expect(&site.open("v"), 0..64, 1, &[]);
    assert!(!site.pool.health().has(code::DATA_DAMAGED));
}

#[test]
fn it_goes_on_after_a_kill_pauses_and_stops() {
    let site = builder(64).build();
    enable(&site.pool);
    let v = site.volume("v", 32 * MIB, CHUNK);
    for at in (0..32 * MIB).step_by(MIB as usize) {
        write(&v, at, 7, MIB);
    }
    site.idle();
    let started = site.pool.scrub(20 << 20, false).unwrap();
    assert_eq!((started.running, started.rate, started.total), (true, 20 << 20, 32 * MIB));
    // A step reads 4 MiB.
    assert_eq!(site.pool.scrub_step().unwrap(), Duration::from_millis(200));
    site.clock.advance(150_000_000);
    assert_eq!(site.pool.scrub_step().unwrap(), Duration::from_millis(50), "it is not due yet");
    site.clock.advance(50_000_000);
    site.pool.scrub_step().unwrap();
    let seen = site.pool.data_scrub();
    assert_eq!(seen.verified, 8 * MIB);
    assert!(site.pool.pause_scrub(true).unwrap().paused);
    assert!(site.pool.scrub_step().unwrap() > Duration::from_secs(1));
    assert_eq!(site.pool.data_scrub().verified, 8 * MIB);
    drop(v);
    let site = site.reopen();
    let seen = site.pool.data_scrub();
    assert_eq!((seen.running, seen.paused, seen.verified), (true, true, 8 * MIB));
    site.pool.pause_scrub(false).unwrap();
    site.pool.scrub_step().unwrap();
    assert_eq!(site.pool.data_scrub().verified, 12 * MIB);
    let stopped = site.pool.stop_scrub().unwrap();
    assert_eq!((stopped.running, stopped.passes, stopped.finished), (false, 0, 0));
    let site = site.reopen();
    assert!(!site.pool.data_scrub().running);
    assert_eq!(site.pool.stop_scrub().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(site.pool.pause_scrub(true).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(scrub(&site.pool).verified, 32 * MIB);
}

#[test]
fn it_begins_by_itself_when_the_interval_has_passed() {
    let day = Duration::from_secs(86_400);
    let options = PoolOptions { data_scrub_interval: 30 * day, data_scrub_rate: 0, ..unrepaired() };
    let site = builder(16).options(options).build().having("v", MIB, CHUNK);
    put(&site.open("v"), 0..64, 1);
    site.idle();
    assert!(site.pool.scrub_step().unwrap() > Duration::from_secs(1), "no sums, no scrub");
    assert_eq!(site.pool.scrub(0, false).unwrap_err().kind(), ErrorKind::Unsupported);
    enable(&site.pool);
    let rests = |passes| {
        site.pool.scrub_step().unwrap();
        let scrub = site.pool.data_scrub();
        assert_eq!((scrub.running, scrub.passes), (false, passes));
        scrub.started
    };
    assert_eq!(rests(0), 0, "an interval after the pool got its sums");
    site.clock.advance(30 * day.as_nanos() as u64 - 1);
    assert_eq!(rests(0), 0);
    site.clock.advance(1);
    let first = finish_by_itself(&site.pool);
    assert_eq!((first.verified, first.unknown, first.passes), (0, MIB / 4, 1));
    site.clock.advance(29 * day.as_nanos() as u64);
    assert!(rests(1) > 0);
    site.clock.advance(day.as_nanos() as u64);
    assert_eq!(finish_by_itself(&site.pool).passes, 2);
}

fn finish_by_itself(pool: &Pool) -> DataScrubInfo {
    pool.scrub_step().unwrap();
    finish(pool)
}

#[test]
fn it_gives_sums_to_what_has_none_only_if_told_to() {
    let site = builder(16).build().having("v", MIB, CHUNK);
    put(&site.open("v"), 0..64, 1);
    site.idle();
    enable(&site.pool);
    assert_eq!(scrub(&site.pool).unknown, 64 * BLOCK);
    site.pool.scrub(0, true).unwrap();
    let adopted = finish(&site.pool);
    assert_eq!((adopted.adopted, adopted.unknown, adopted.verified), (64 * BLOCK, 0, 0));
    assert_eq!(scrub(&site.pool).verified, 64 * BLOCK);
    let medium = Medium::of(&site.dir, "pv-0.img");
    let site = site.reopen_after(|_| medium.flip(medium.place(9, 1)));
    expect(&site.open("v"), 0..64, 1, &[9]);
}

/// Below a page cache that is right, the medium has another content at one place.
#[derive(Default)]
struct BehindTheCache(Mutex<Option<u64>>);

impl Layer for BehindTheCache {
    fn read_direct(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_direct(buf, offset)?;
        let wrong = self.0.lock().unwrap().filter(|at| (offset..offset + buf.len() as u64).contains(at));
        if let Some(at) = wrong {
            buf[(at - offset) as usize] ^= 1;
        }
        Ok(())
    }

    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        let wrong = &mut *self.0.lock().unwrap();
        *wrong = wrong.filter(|at| !(offset..offset + buf.len() as u64).contains(at));
        disk.write_at(buf, offset)
    }
}

#[test]
fn what_only_the_page_cache_has_right_is_written_again() {
    let layer = Arc::new(BehindTheCache::default());
    let site = builder(16).over(|files| Arc::new(LayeredDir::over(Arc::new(files), layer.clone())));
    enable(&site.pool);
    let v = site.volume("v", MIB, CHUNK);
    put(&v, 0..64, 1);
    site.idle();
    *layer.0.lock().unwrap() = Some(Medium::of(&site.dir, "pv-0.img").place(20, 1) + 77);
    expect(&v, 0..64, 1, &[]);
    let found = scrub(&site.pool);
    assert_eq!((found.repaired, found.damaged, found.verified), (BLOCK, 0, 63 * BLOCK));
    assert!(layer.0.lock().unwrap().is_none());
    assert_eq!(scrub(&site.pool).repaired, 0);
    expect(&v, 0..64, 1, &[]);
}
