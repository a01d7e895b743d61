//! Crashes, shortages and failures at the worst moments: good data is never condemned, and damage
//! never gets a good sum.

use super::*;
use hindcast_engine::cdp::Retention;
use hindcast_engine::testing::{Act, FaultyDir, Op, content_of};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

pub(super) fn options() -> PoolOptions {
    PoolOptions { destage_threads: 1, ..unrepaired() }
}

pub(super) fn read_range(v: &Volume, at: u64, len: u64) -> Result<Vec<u8>, String> {
    let mut buf = vec![0xEE; len as usize];
    v.read(at, &mut buf).map(|()| buf).map_err(|e| e.to_string())
}

/// Fails writes to the sums after the first write to the physical volume that follows arming.
pub(super) fn killer() -> (Arc<AtomicBool>, impl Fn(&Op<'_>) -> Option<io::Error> + Send + Sync + 'static) {
    let armed = Arc::new(AtomicBool::new(false));
    let (a, hit) = (armed.clone(), AtomicBool::new(false));
    (armed, move |op: &Op<'_>| {
        if !a.load(SeqCst) {
            return None;
        }
        match &op.act {
            Act::Write(r) if op.name == "pv-0.img" && r.start >= MIB => hit.store(true, SeqCst),
            Act::Write(_) if op.name.starts_with("sums-") && hit.load(SeqCst) => {
                return Some(io::Error::from_raw_os_error(EIO));
            }
            _ => {}
        }
        None
    })
}

/// Kills the pool while it zeroes a part of a block, after the data and before the sums. Then reads
/// the rest of the block.
fn zero_part(shrink: bool, read_first: bool) {
    let (armed, fail) = killer();
    let site = builder(64).options(options()).over(|dir| FaultyDir::new(dir, fail));
    enable(&site.pool);
    let v = site.volume("v", 20 * MIB, 4096);
    put(&v, 0..16, 1);
    site.idle();
    let cut = 5 * BLOCK + SECTOR;
    if shrink {
        site.pool.resize_volume("v", cut, true).unwrap();
    } else {
        v.discard(cut, 19 * MIB, true).unwrap();
    }
    armed.store(true, SeqCst);
    let stopped = site.pool.drain();
    assert!(stopped.is_err());
    armed.store(false, SeqCst);
    drop(v);
    let site = site.reopen();
    let v = site.open("v");
    if read_first {
        let r = read_range(&v, 5 * BLOCK, SECTOR);
        assert!(r.unwrap() == unique(5, 1)[..SECTOR as usize]);
    }
    site.idle();
    let r = read_range(&v, 5 * BLOCK, SECTOR);
    assert!(r.unwrap() == unique(5, 1)[..SECTOR as usize]);
}

#[test]
fn a_kill_while_the_edge_of_a_shrink_or_of_a_discard_is_written() {
    for (shrink, read_first) in [(true, false), (true, true), (false, false), (false, true)] {
        zero_part(shrink, read_first);
    }
}

/// A batch is half done, and a later record hides the one that made it so.
#[test]
fn a_later_write_hides_the_record_of_a_batch_that_is_half_done() {
    let armed = Arc::new(AtomicBool::new(false));
    let writes = AtomicU32::new(0);
    let a = armed.clone();
    let fail = move |op: &Op<'_>| {
        let hit = a.load(SeqCst)
            && matches!(&op.act, Act::Write(r) if op.name == "pv-0.img" && r.start >= MIB)
            && writes.fetch_add(1, SeqCst) > 0;
        hit.then(|| io::Error::from_raw_os_error(ENOSPC))
    };
    let site = builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
    enable(&site.pool);
    let v = site.volume("v", MIB, 64 * KIB);
    put(&v, 0..16, 1);
    site.idle();
    write(&v, SECTOR, 7, SECTOR);
    put(&v, 1..8, 2);
    armed.store(true, SeqCst);
    site.pool.drain().unwrap_err();
    // The client writes the same sector again.
    write(&v, SECTOR, 8, SECTOR);
    let r = read_range(&v, 5 * SECTOR, SECTOR);
    armed.store(false, SeqCst);
    site.pool.drain().unwrap();
    site.idle();
    let after = read_range(&v, 5 * SECTOR, SECTOR);
    assert!(r.unwrap() == unique(0, 1)[5 * 512..6 * 512]);
    assert!(after.unwrap() == unique(0, 1)[5 * 512..6 * 512]);
}

/// A block of a reference rots before it is destaged, and the same batch writes a part of it.
#[test]
fn rot_in_a_reference_below_a_part_of_the_same_batch() {
    let (site, v) = referred();
    write(&v, MIB + 9 * BLOCK + SECTOR, 9, SECTOR);
    let medium = Medium::of(&site.dir, "pv-0.img");
    let block = MIB / BLOCK;
    medium.flip(medium.place(block + 9, 7) + 5 * SECTOR);
    site.idle();
    let r = read_range(&v, MIB + 9 * BLOCK + 5 * SECTOR, SECTOR);
    assert!(r.is_err(), "rotten data has a good sum");
}

/// A moment is read while a later write over a rotten block is staged.
#[test]
fn a_moment_before_staged_writes_over_rot() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        let site = site();
        let v = site.open("v");
        put(&v, 0..8, 1);
        site.idle();
        record(&site, encoding);
        put(&v, 100..101, 1);
        site.idle();
        let lsn = site.lsn();
        let medium = Medium::of(&site.dir, "pv-0.img");
        medium.flip(medium.place(2, 1));
        put(&v, 2..3, 2);
        let moment = site.moment("v", lsn);
        let r = read_range(&moment, 2 * BLOCK, BLOCK);
        assert!(!matches!(r, Ok(d) if d != unique(2, 1)), "a moment shows rotten data");
    }
}

/// A prefetch after a kill in the middle of an overwrite.
#[test]
fn a_prefetch_after_a_kill_in_the_middle_of_an_overwrite() {
    let (armed, fail) = killer();
    let site = builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail)).having("v", MIB, CHUNK);
    enable(&site.pool);
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    put(&v, 0..16, 2);
    v.flush().unwrap();
    drop(v);
    let site = site.reopen();
    armed.store(true, SeqCst);
    site.pool.drain().unwrap_err();
    armed.store(false, SeqCst);
    let site = site.reopen();
    let v = site.open("v");
    v.cache(0, 16 * BLOCK).unwrap();
    assert_eq!(site.pool.damaged(), (0, 0));
    site.idle();
    expect(&v, 0..16, 2, &[]);
}

/// A staged discard of one sector hides the mismatch of the block.
#[test]
fn a_staged_discard_beside_rot() {
    let site = site();
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    write(&v, SECTOR, 7, SECTOR);
    site.pool.destage_step().unwrap();
    v.discard(9 * BLOCK + 3 * SECTOR, SECTOR, false).unwrap();
    let medium = Medium::of(&site.dir, "pv-0.img");
    medium.flip(medium.place(9, 1) + 5 * SECTOR);
    let r = read_range(&v, 9 * BLOCK + 5 * SECTOR, SECTOR);
    assert!(r.is_err(), "rotten data is served");
}

/// The data directory is full; a pool that was upgraded gets overwrites.
#[test]
fn overwrites_in_an_upgraded_pool_whose_data_directory_is_full() {
    let armed = Arc::new(AtomicBool::new(false));
    let a = armed.clone();
    let fail = move |op: &Op<'_>| {
        let hit = a.load(SeqCst) && op.name.starts_with("sums-") && matches!(op.act, Act::Allocate(_));
        hit.then(|| io::Error::from_raw_os_error(ENOSPC))
    };
    let site = builder(16)
        .journal(2 * MIB, 256 * KIB)
        .options(options())
        .over(|dir| FaultyDir::new(dir, fail))
        .having("v", MIB, CHUNK)
        .having("w", MIB, CHUNK);
    let v = site.open("v");
    put(&v, 0..64, 1);
    put(&site.open("w"), 0..64, 1);
    site.idle();
    enable(&site.pool);
    armed.store(true, SeqCst);
    let mut done = 0;
    loop {
        let mut op = [WriteOp::new(done % 64 * BLOCK, Bytes::from(unique(done % 64, 2)))];
        v.write(&mut op, false);
        if let Err(e) = &op[0].result {
            panic!("overwrites are refused: {e}");
        }
        let _ = site.pool.maintain();
        done += 1;
        if done > 4000 {
            return;
        }
    }
}

/// A pool is restored to a copy from before the upgrade; the files of sums stay.
#[test]
fn sums_of_before_the_pool_was_restored_do_not_count() {
    let site = builder(16).build().having("v", MIB, CHUNK);
    put(&site.open("v"), 0..16, 1);
    site.idle();
    let site = site.reopen_after(|_| ());
    let dir = site.dir.clone();
    let copy = |names: &[String]| -> Vec<(String, Vec<u8>)> {
        names.iter().map(|n| (n.clone(), content_of(&dir, n))).collect()
    };
    let mut saved = Vec::new();
    let site = site.reopen_after(|d| saved = copy(&d.list().unwrap()));
    enable(&site.pool);
    put(&site.open("v"), 0..16, 2);
    site.idle();
    let site = site.reopen_after(|d| {
        for name in d.list().unwrap() {
            if !name.starts_with("sums-") {
                d.remove(&name).unwrap();
            }
        }
        for (name, content) in &saved {
            d.open(name, OpenMode::CreateNew).unwrap().write_at(content, 0).unwrap();
        }
    });
    expect(&site.open("v"), 0..16, 1, &[]);
    put(&site.open("v"), 0..4, 3);
    site.idle();
    enable(&site.pool);
    let v = site.open("v");
    let bad: Vec<u64> = (0..16).filter(|b| read_range(&v, b * BLOCK, BLOCK).is_err()).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// The older anchors are forgotten, so the moment is read from current content.
#[test]
fn a_moment_that_is_read_from_current_content_with_rot() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        let site = builder(16).options(options()).build();
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..8, 1);
        site.idle();
        let retention = Retention { time: Some(1_000), bytes: None };
        let settings =
            CdpSettings { encoding, anchors: AnchorPolicy::Never, retention, ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
        for n in 0..6 {
            put(&v, 64..250, 10 + n);
            site.idle();
            site.clock.advance(400_000_000_000);
            site.idle();
        }
        put(&v, 120..121, 1);
        site.idle();
        let lsn = site.lsn();
        let medium = Medium::of(&site.dir, "pv-0.img");
        medium.flip(medium.place(2, 1));
        put(&v, 2..3, 2);
        let moment = site.moment("v", lsn);
        let r = read_range(&moment, 2 * BLOCK, BLOCK);
        assert!(!matches!(r, Ok(d) if d != unique(2, 1)), "a moment shows rotten data");
    }
}

/// Ends the readers, also when the writer panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn next(n: u64) -> u64 {
    n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407)
}

/// Readers of one sector never see an alarm while other sectors of its block are written.
#[test]
fn readers_beside_writers_of_parts_of_blocks() {
    let site = builder(16)
        .journal(2 * MIB, 256 * KIB)
        .options(PoolOptions { destage_threads: 4, ..unrepaired() })
        .build();
    enable(&site.pool);
    let v = site.volume("v", MIB, CHUNK);
    write(&v, 0, 1, MIB);
    site.idle();
    let stop = AtomicBool::new(false);
    let (v, site, stop) = (&v, &site, &stop);
    std::thread::scope(|s| {
        for t in 0..2u64 {
            s.spawn(move || {
                let mut n = t;
                while !stop.load(SeqCst) {
                    n = next(n);
                    let r = read_range(v, (n >> 33) % 256 * BLOCK + 7 * SECTOR, SECTOR).unwrap();
                    assert!(r.iter().all(|x| *x == 1));
                }
            });
        }
        s.spawn(move || {
            let _end = End(stop);
            let (began, mut n, mut snapshots) = (Instant::now(), 5u64, 0);
            while began.elapsed() < Duration::from_secs(3) {
                for _ in 0..100 {
                    n = next(n);
                    write(v, (n >> 33) % 256 * BLOCK + (n >> 50) % 7 * SECTOR, (n >> 40) as u8, SECTOR);
                }
                site.idle();
                if n % 7 == 0 {
                    if snapshots > 0 {
                        site.pool.delete_snapshots("v", &[&format!("s{}", snapshots - 1)]).unwrap();
                    }
                    site.snap("v", &format!("s{snapshots}"));
                    snapshots += 1;
                }
            }
        });
    });
    assert_eq!(site.pool.damaged(), (0, 0));
}

#[test]
fn a_newer_copy_of_sums_that_can_not_be_read() {
    for place in [0, 4096u64] {
        let armed = Arc::new(AtomicBool::new(false));
        let a = armed.clone();
        let fail = move |op: &Op<'_>| {
            let hit = a.load(SeqCst)
                && op.name.starts_with("sums-")
                && matches!(&op.act, Act::Read(r) if r.start % 8192 == place);
            hit.then(|| io::Error::from_raw_os_error(EIO))
        };
        let site = builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..16, 1);
        site.idle();
        put(&v, 0..16, 2);
        site.idle();
        drop(v);
        armed.store(true, SeqCst);
        let site = site.reopen();
        let v = site.open("v");
        expect(&v, 0..16, 2, &[]);
        assert!(site.pool.stats().damaged_sum_blocks > 0);
        // The sums that are written now are newer than the copy that comes back.
        put(&v, 0..16, 3);
        site.idle();
        armed.store(false, SeqCst);
        drop(v);
        expect(&site.reopen().open("v"), 0..16, 3, &[]);
    }
}

/// The edge of a shrink zeroes a rotten block as a whole. The copy for a snapshot is damage.
#[test]
fn a_copy_of_rot_below_the_edge_of_a_shrink() {
    for threads in [1, 4] {
        let site = site_with(threads, CHUNK);
        let v = site.open("v");
        put(&v, 0..16, 1);
        site.idle();
        site.pool.set_method("v", Method::Copy).unwrap();
        site.snap("v", "s");
        site.idle();
        let medium = Medium::of(&site.dir, "pv-0.img");
        medium.flip(medium.place(6, 1) + 99);
        site.pool.resize_volume("v", 5 * BLOCK + SECTOR, true).unwrap();
        site.idle();
        let s = site.snapshot("v", "s");
        expect(&s, 0..16, 1, &[6]);
        // All other blocks of the copy have sums.
        drop((v, s));
        let site = site.reopen_after(|_| medium.flip(medium.place(7, 1)));
        expect(&site.snapshot("v", "s"), 0..16, 1, &[6, 7]);
    }
}

/// The same edge below a history.
#[test]
fn a_moment_of_rot_below_the_edge_of_a_shrink() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        let site = site();
        let v = site.open("v");
        put(&v, 0..16, 1);
        site.idle();
        record(&site, encoding);
        put(&v, 100..101, 1);
        site.idle();
        let lsn = site.lsn();
        let medium = Medium::of(&site.dir, "pv-0.img");
        medium.flip(medium.place(6, 1) + 99);
        site.pool.resize_volume("v", 5 * BLOCK + SECTOR, true).unwrap();
        site.idle();
        let r = read_range(&site.moment("v", lsn), 6 * BLOCK, BLOCK);
        assert!(!matches!(r, Ok(d) if d != unique(6, 1)), "{encoding:?}");
    }
}

/// Makes all of block 5 damage, except for its first sector, which has byte 9. Returns the place of
/// the block.
pub(super) fn lose_a_part(site: &Site) -> u64 {
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    let place = medium.place(5, 1);
    medium.flip(place + 2000);
    write(&v, 5 * BLOCK, 9, SECTOR);
    site.idle();
    assert_eq!(site.pool.damaged(), (BLOCK - SECTOR, 1));
    place
}

/// A block that is lost in part rots in the rest. Its copies are damage as a whole.
#[test]
fn copies_of_rot_beside_what_is_lost() {
    type Work = fn(&Site) -> Arc<Volume>;
    let works: [Work; 3] = [
        |site| {
            site.pool.add_pv(&pv("pv-1", 16 * MIB)).unwrap();
            site.pool.drain_pv("pv-0.img", true).unwrap();
            site.open("v")
        },
        |site| {
            site.pool.set_method("v", Method::Copy).unwrap();
            site.snap("v", "s");
            put(&site.open("v"), 5..6, 2);
            site.snapshot("v", "s")
        },
        |site| {
            site.snap("v", "s");
            put(&site.open("v"), 6..7, 2);
            site.open("v")
        },
    ];
    for (index, work) in works.into_iter().enumerate() {
        let site = site();
        let place = lose_a_part(&site);
        Medium::of(&site.dir, "pv-0.img").flip(place + 100);
        let shown = work(&site);
        (0..5).for_each(|_| site.idle());
        assert!(read_range(&shown, 5 * BLOCK, SECTOR).is_err(), "work {index}");
        expect(&shown, 0..5, 1, &[]);
    }
}

/// Neither copy of a block of sums can be read for a while, in a data directory with space or
/// without. The old sums do not come back.
#[test]
fn sums_that_can_not_be_read_for_a_while() {
    for (rounds, full) in (2..6).flat_map(|rounds| [(rounds, false), (rounds, true)]) {
        let armed = Arc::new(AtomicBool::new(false));
        let a = armed.clone();
        let fail = move |op: &Op<'_>| {
            let of_sums = a.load(SeqCst) && op.name.starts_with("sums-");
            let error = match op.act {
                Act::Read(_) => EIO,
                Act::Allocate(_) if full => ENOSPC,
                _ => return None,
            };
            of_sums.then(|| io::Error::from_raw_os_error(error))
        };
        let site = builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        for round in 1..=rounds {
            put(&v, 0..16, round);
            site.idle();
        }
        drop(v);
        armed.store(true, SeqCst);
        let site = site.reopen();
        let v = site.open("v");
        expect(&v, 0..16, rounds, &[]);
        put(&v, 0..16, 100);
        site.idle();
        armed.store(false, SeqCst);
        drop(v);
        let site = site.reopen();
        expect(&site.open("v"), 0..16, 100, &[]);
    }
}

/// A batch is half done when the process dies, and the journal then loses the batch. Nothing tells
/// which blocks have the content of the batch, so none of them is called damaged.
#[test]
fn a_journal_that_loses_a_batch_that_is_half_done() {
    let (armed, fail) = killer();
    let mut site =
        builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail)).having("v", MIB, CHUNK);
    enable(&site.pool);
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    put(&v, 0..16, 2);
    v.flush().unwrap();
    armed.store(true, SeqCst);
    site.pool.drain().unwrap_err();
    armed.store(false, SeqCst);
    drop(v);
    site.options.accept_journal_loss = true;
    let dir = site.dir.clone();
    let site = site.reopen_after(|_| {
        let lost = unique(0, 2);
        for name in dir.list().unwrap().into_iter().filter(|name| name.starts_with("journal-")) {
            let content = content_of(&dir, &name);
            if let Some(at) = content.windows(lost.len()).position(|window| window == lost) {
                flip(&dir, &name, at as u64, 1);
            }
        }
    });
    let loss = site.pool.journal_loss().unwrap();
    assert!(loss.volumes[0].records >= 15, "{loss:?}");
    let v = site.open("v");
    let content = |block: u64| read_range(&v, block * BLOCK, BLOCK).unwrap();
    let generation = |block: u64| [1, 2].into_iter().find(|n| content(block) == unique(block, *n)).unwrap();
    let found: Vec<u64> = (0..16).map(generation).collect();
    assert!(found.contains(&2), "the batch was not half done: {found:?}");
    assert_eq!(site.pool.damaged(), (0, 0));
    assert_eq!(scrub::scrub(&site.pool).unknown, 16 * BLOCK);
    put(&v, 0..16, 3);
    site.idle();
    expect(&v, 0..16, 3, &[]);
}

/// The edge of a discard is zeroed in place, behind a commit. A shortage of space in that write is
/// waited for.
#[test]
fn a_shortage_while_the_edge_of_a_shrink_or_of_a_discard_is_written() {
    for shrink in [true, false] {
        let armed = Arc::new(AtomicBool::new(false));
        let a = armed.clone();
        let fail = move |op: &Op<'_>| {
            let hit = matches!(&op.act, Act::Write(r) if op.name == "pv-0.img" && r.start >= MIB);
            (hit && a.swap(false, SeqCst)).then(|| io::Error::from_raw_os_error(ENOSPC))
        };
        let site = builder(64).options(options()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", 20 * MIB, 4096);
        put(&v, 0..16, 1);
        site.idle();
        let cut = 5 * BLOCK + SECTOR;
        if shrink {
            site.pool.resize_volume("v", cut, true).unwrap();
        } else {
            v.discard(cut, 19 * MIB, true).unwrap();
        }
        armed.store(true, SeqCst);
        let _ = site.pool.drain();
        assert!(!armed.load(SeqCst), "no write failed");
        site.idle();
        let first = read_range(&v, 5 * BLOCK, SECTOR).unwrap();
        assert!(first == unique(5, 1)[..SECTOR as usize]);
        assert_eq!(site.pool.damaged(), (0, 0));
        expect(&v, 0..5, 1, &[]);
    }
}
