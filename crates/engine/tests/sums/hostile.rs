//! Crashes, shortages and failures at the worst moments: good data is never condemned, and damage
//! never gets a good sum.

use super::*;
use hindcast_engine::cdp::Retention;
use hindcast_engine::disk::{Layer, LayeredDir, LowerDisk};
use hindcast_engine::testing::{Act, FaultyDir, Op, content_of};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn options() -> PoolOptions {
    PoolOptions { destage_threads: 1, ..PoolOptions::default() }
}

fn read_range(v: &Volume, at: u64, len: u64) -> Result<Vec<u8>, String> {
    let mut buf = vec![0xEE; len as usize];
    v.read(at, &mut buf).map(|()| buf).map_err(|e| e.to_string())
}

/// Fails writes to the sums after the first write to the physical volume that follows arming.
fn killer() -> (Arc<AtomicBool>, impl Fn(&Op<'_>) -> Option<io::Error> + Send + Sync + 'static) {
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
    let site = Site::builder(64).options(options()).over(|dir| FaultyDir::new(dir, fail));
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
    let site = Site::builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
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
    let site = Site::new(64);
    site.pool.upgrade(&["sums".to_owned(), "references".to_owned()]).unwrap();
    let v = site.volume("v", 4 * MIB, CHUNK);
    let refer = |at: u64, generation: u64| {
        let data: Vec<u8> = (0..64).flat_map(|n| unique(at / BLOCK + n, generation)).collect();
        let mut op = [WriteOp::new(at, Bytes::from(data))];
        v.write(&mut op, false);
        op[0].result.as_ref().unwrap();
    };
    for round in 0..4 {
        refer(0, round);
        site.idle();
    }
    let before = site.pool.stats().direct_bytes;
    refer(MIB, 7);
    assert_eq!(site.pool.stats().direct_bytes - before, 64 * BLOCK);
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
        let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
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
    let site =
        Site::builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail)).having("v", MIB, CHUNK);
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
    let site = Site::builder(16)
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
    let site = Site::new(16).having("v", MIB, CHUNK);
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
        let site = Site::builder(16).options(options()).build();
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
    let site = Site::builder(16)
        .journal(2 * MIB, 256 * KIB)
        .options(PoolOptions { destage_threads: 4, ..PoolOptions::default() })
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
        let site = Site::builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
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
        let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
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
fn lose_a_part(site: &Site) -> u64 {
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

/// Neither copy of a block of sums can be read for a while.
#[test]
fn sums_that_can_not_be_read_for_a_while() {
    for rounds in 2..6 {
        let armed = Arc::new(AtomicBool::new(false));
        let a = armed.clone();
        let fail = move |op: &Op<'_>| {
            let hit = a.load(SeqCst) && op.name.starts_with("sums-") && matches!(&op.act, Act::Read(_));
            hit.then(|| io::Error::from_raw_os_error(EIO))
        };
        let site = Site::builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
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

/// A medium and a page cache that differ at one byte.
struct TwoFaced {
    at: Mutex<Option<u64>>,
    /// The page cache is wrong, and the medium is right.
    cache_is_wrong: bool,
    /// Writes to the place fail.
    refuses: bool,
}

impl TwoFaced {
    /// Makes a pool with blocks 0 to 16 of generation 1 on such a disk; block 5 differs.
    fn site(cache_is_wrong: bool, refuses: bool) -> (Site, Arc<Volume>) {
        let layer = Arc::new(TwoFaced { at: Mutex::default(), cache_is_wrong, refuses });
        let site = Site::builder(16).over(|files| Arc::new(LayeredDir::over(Arc::new(files), layer.clone())));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..16, 1);
        site.idle();
        *layer.at.lock().unwrap() = Some(Medium::of(&site.dir, "pv-0.img").place(5, 1) + 2000);
        (site, v)
    }

    fn within(&self, offset: u64, len: usize) -> Option<usize> {
        let at = self.at.lock().unwrap().filter(|at| (offset..offset + len as u64).contains(at))?;
        Some((at - offset) as usize)
    }
}

impl Layer for TwoFaced {
    fn read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_at(buf, offset)?;
        if let Some(at) = self.within(offset, buf.len()).filter(|_| self.cache_is_wrong) {
            buf[at] ^= 1;
        }
        Ok(())
    }

    fn read_direct(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_direct(buf, offset)?;
        if let Some(at) = self.within(offset, buf.len()).filter(|_| !self.cache_is_wrong) {
            buf[at] ^= 1;
        }
        Ok(())
    }

    fn drop_cached(&self, _: &LowerDisk, offset: u64, len: u64) {
        if self.cache_is_wrong && self.within(offset, len as usize).is_some() {
            *self.at.lock().unwrap() = None;
        }
    }

    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        match self.within(offset, buf.len()) {
            Some(_) if self.refuses => return Err(io::Error::from_raw_os_error(EIO)),
            Some(_) => *self.at.lock().unwrap() = None,
            None => {}
        }
        disk.write_at(buf, offset)
    }
}

/// What only the page cache has wrong is no damage: the medium is asked again.
#[test]
fn a_page_cache_that_is_wrong() {
    let (site, v) = TwoFaced::site(true, false);
    write(&v, 5 * BLOCK, 9, SECTOR);
    site.idle();
    assert_eq!(site.pool.damaged(), (0, 0));
    let mut expected = unique(5, 1);
    expected[..SECTOR as usize].fill(9);
    assert!(read_range(&v, 5 * BLOCK, BLOCK).unwrap() == expected);
    let (site, v) = TwoFaced::site(true, false);
    expect(&v, 0..16, 1, &[]);
    assert_eq!(site.pool.damaged(), (0, 0));
}

/// A repair that the disk refuses does not give the disk up.
#[test]
fn a_repair_that_is_refused() {
    let (site, v) = TwoFaced::site(false, true);
    let found = scrub::scrub(&site.pool);
    assert_eq!((found.repaired, found.damaged, found.verified), (0, BLOCK, 15 * BLOCK));
    put(&v, 100..101, 1);
    site.pool.drain().unwrap();
    assert!(site.pool.pvs().iter().all(|pv| pv.failure.is_none()));
    expect(&v, 0..16, 1, &[]);
}

/// Lost sectors are filled with zeros that have a sum. A mismatch that passes must not make the
/// zeros right.
#[test]
fn a_passing_mismatch_of_a_block_that_is_lost_in_part() {
    let site = site();
    let place = lose_a_part(&site);
    let (v, medium) = (site.open("v"), Medium::of(&site.dir, "pv-0.img"));
    let found = scrub::scrub(&site.pool);
    assert_eq!((found.damaged, found.verified), (BLOCK, 15 * BLOCK), "a filler is not verified");
    medium.flip(place + 100);
    assert!(read_range(&v, 5 * BLOCK, SECTOR).is_err());
    medium.flip(place + 100);
    scrub::scrub(&site.pool);
    assert!(read_range(&v, 5 * BLOCK + SECTOR, SECTOR).is_err(), "a filler is served");
}

/// A physical volume that does not answer keeps the scrub from no other.
#[test]
fn a_scrub_of_a_physical_volume_that_is_away() {
    let armed = Arc::new(AtomicBool::new(false));
    let a = armed.clone();
    let fail = move |op: &Op<'_>| {
        let hit = a.load(SeqCst) && op.name.starts_with("pv-0") && matches!(&op.act, Act::Read(_));
        hit.then(|| io::Error::from_raw_os_error(6))
    };
    let site = Site::builder(16).over(|dir| FaultyDir::new(dir, fail));
    enable(&site.pool);
    put(&site.volume("v", MIB, CHUNK), 0..16, 1);
    site.idle();
    armed.store(true, SeqCst);
    let found = scrub::scrub(&site.pool);
    assert_eq!((found.unreadable, found.verified), (16 * BLOCK, 0));
    armed.store(false, SeqCst);
    assert_eq!(scrub::scrub(&site.pool).verified, 16 * BLOCK);
}

/// A sector of a block can't be read, and the process dies right after it has written another
/// sector of the block. The lost sector must not have become zeros.
#[test]
fn a_kill_beside_a_sector_that_can_not_be_read() {
    for commits in [false, true] {
        let (armed, killer) = killer();
        let bad: Arc<Mutex<Option<u64>>> = Arc::default();
        let b = bad.clone();
        let fail = move |op: &Op<'_>| {
            let mut bad = b.lock().unwrap();
            match &op.act {
                Act::Read(r) if op.name == "pv-0.img" && bad.is_some_and(|at| r.contains(&at)) => {
                    return Some(io::Error::from_raw_os_error(EIO));
                }
                Act::Write(r) if op.name == "pv-0.img" => *bad = bad.filter(|at| !r.contains(at)),
                _ => {}
            }
            drop(bad);
            killer(op)
        };
        let site = Site::builder(16).options(options()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..16, 1);
        site.idle();
        *bad.lock().unwrap() = Some(Medium::of(&site.dir, "pv-0.img").place(5, 1) + 3 * SECTOR);
        write(&v, 5 * BLOCK, 9, SECTOR);
        armed.store(!commits, SeqCst);
        assert_eq!(site.pool.drain().is_ok(), commits);
        armed.store(false, SeqCst);
        drop(v);
        let site = site.reopen();
        let v = site.open("v");
        site.idle();
        assert!(read_range(&v, 5 * BLOCK, SECTOR).unwrap().iter().all(|b| *b == 9));
        assert!(read_range(&v, 5 * BLOCK + 3 * SECTOR, SECTOR).is_err(), "a lost sector is served");
        let rest = unique(5, 1)[4 * SECTOR as usize..].to_vec();
        assert!(read_range(&v, 5 * BLOCK + 4 * SECTOR, 4 * SECTOR).unwrap() == rest);
        // A write heals it.
        put(&v, 5..6, 2);
        site.idle();
        expect(&v, 5..6, 2, &[]);
    }
}
