//! What a hostile reader found in repairs: content that only seems to be proved, and content that
//! the pool still has and loses.

use super::hostile::{lose_a_part, read_range};
use super::*;
use hindcast_engine::cdp::Moment;
use hindcast_engine::testing::{Act, FaultyDir, Op};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const EIO: i32 = 5;

/// The newer copy of a block of sums rots. The older sums must not make old content right.
#[test]
fn rot_in_the_newer_copy_of_a_block_of_sums_brings_no_old_content_back() {
    for copy in [0, 1u64] {
        let site = repairing();
        let v = site.open("v");
        put(&v, 0..16, 1);
        site.idle();
        put(&v, 0..16, 2);
        site.idle();
        drop(v);
        let site = site.reopen_after(|d| {
            let name = d.list().unwrap().into_iter().find(|n| n.starts_with("sums-")).unwrap();
            let file = d.open(&name, OpenMode::Existing).unwrap();
            let mut byte = [0];
            file.read_at(&mut byte, copy * 4096 + 2000).unwrap();
            file.write_at(&[byte[0] ^ 1], copy * 4096 + 2000).unwrap();
        });
        let v = site.open("v");
        for block in 0..16 {
            // An error is allowed: the sums that are left do not match.
            let old = read_range(&v, block * BLOCK, BLOCK).is_ok_and(|data| data != unique(block, 2));
            assert!(!old, "copy {copy}: block {block}");
        }
    }
}

/// A chunk is moved by a repair while another unit of it, that is lost in part, is covered by a
/// staged record of an earlier life. A snapshot sees the lost unit.
#[test]
fn a_filler_below_staged_records_stays_damage() {
    let site = builder(16).options(PoolOptions { destage_threads: 1, ..unrepaired() }).build();
    enable(&site.pool);
    let site = site.having("v", MIB, CHUNK);
    lose_a_part(&site);
    site.snap("v", "s");
    let v = site.open("v");
    assert!(read_range(&site.snapshot("v", "s"), 5 * BLOCK + SECTOR, SECTOR).is_err());
    put(&v, 5..6, 2);
    v.flush().unwrap();
    drop(v);
    Medium::of(&site.dir, "pv-0.img").flip(Medium::of(&site.dir, "pv-0.img").place(6, 1) + 77);
    let site = site.reopen_with(alone());
    let v = site.open("v");
    expect(&v, 6..7, 1, &[]);
    site.idle();
    let s = site.snapshot("v", "s");
    let r = read_range(&s, 5 * BLOCK + SECTOR, SECTOR);
    assert!(r.is_err(), "a filler is served: all zeros: {}", r.unwrap().iter().all(|b| *b == 0));
}

/// A copy of rot beside what is lost: its sum is that of the filler.
#[test]
fn the_sum_of_a_filler_proves_nothing() {
    let site = builder(16).options(PoolOptions { destage_threads: 1, ..unrepaired() }).build();
    enable(&site.pool);
    let site = site.having("v", MIB, CHUNK);
    let v = site.open("v");
    put(&v, 0..16, 1);
    // The block is written as a whole: a header, and zeros.
    let mut first = vec![0; BLOCK as usize];
    first[..SECTOR as usize].fill(9);
    let mut op = [WriteOp::new(5 * BLOCK, Bytes::from(first))];
    v.write(&mut op, false);
    site.idle();
    // Then its body.
    write(&v, 5 * BLOCK + SECTOR, 33, BLOCK - SECTOR);
    site.idle();
    let mut now = vec![33; BLOCK as usize];
    now[..SECTOR as usize].fill(9);
    let medium = Medium::of(&site.dir, "pv-0.img");
    let place = medium.find(&now)[0];
    medium.flip(place + 2000);
    // The header is written again.
    write(&v, 5 * BLOCK, 9, SECTOR);
    site.idle();
    assert_eq!(site.pool.damaged(), (BLOCK - SECTOR, 1));
    // The rest rots, and the chunk is moved.
    medium.flip(place + 100);
    site.pool.add_pv(&pv("pv-1", 16 * MIB)).unwrap();
    site.pool.drain_pv("pv-0.img", true).unwrap();
    site.idle();
    assert!(read_range(&v, 5 * BLOCK, BLOCK).is_err());
    drop(v);
    let site = site.reopen_with(alone());
    let v = site.open("v");
    let r = read_range(&v, 5 * BLOCK, BLOCK);
    assert!(r.as_ref().map_or(true, |d| *d == now), "old content: body is {}", r.unwrap()[1000]);
}

/// Like the test of repair.rs, but the batch is carried out by a request, not by maintenance.
#[test]
fn a_request_that_carries_out_a_batch_repairs_first() {
    for by in ["remove_pv", "moment", "full"] {
        let site = match by {
            "full" => {
                let site = Site::builder(64).journal(2 * MIB, 256 * KIB).options(alone()).build();
                enable(&site.pool);
                site.having("v", 16 * MIB, CHUNK)
            }
            _ => repairing(),
        };
        let v = site.open("v");
        if by == "moment" {
            record(&site, Encoding::Parity);
        }
        put(&v, 0..16, 1);
        site.idle();
        let medium = Medium::of(&site.dir, "pv-0.img");
        medium.flip(medium.place(3, 1) + 2 * SECTOR);
        write(&v, 3 * BLOCK, 5, SECTOR);
        match by {
            "remove_pv" => drop(site.pool.remove_pv("pv-0.img").unwrap_err()),
            "moment" => {
                // Settled by the request.
                put(&v, 40..41, 1);
                let _ = site.pool.open_moment("v", &Moment::Lsn(site.lsn())).unwrap();
                site.pool.drain().unwrap();
            }
            _ => {
                // The server's maintenance is busy elsewhere: writers help.
                let before = site.pool.stats().destaged_lsn;
                for block in 100..1000 {
                    put(&v, block..block + 1, 1);
                    if site.pool.stats().destaged_lsn > before {
                        break;
                    }
                }
            }
        }
        site.idle();
        let mut expected = unique(3, 1);
        expected[..SECTOR as usize].fill(5);
        assert!(read_range(&v, 3 * BLOCK, BLOCK).is_ok_and(|data| data == expected), "{by}");
    }
}

/// A scrub finds damage of a version below a map page that does not verify.
#[test]
fn a_map_page_that_does_not_verify_stops_no_writes() {
    let site = repairing();
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.snap("v", "s");
    put(&v, 0..16, 2);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    let place = medium.place(3, 1);
    drop(v);
    let site = site.reopen_after(|d| {
        use hindcast_engine::check::inject::{Injury, injure};
        assert!(injure(&*d, Injury::BadMapPage, 0).unwrap());
        medium.flip(place);
    });
    site.pool.scrub(0, false).unwrap();
    for _ in 0..100 {
        site.pool.scrub_step().unwrap();
    }
    assert!(!site.pool.data_scrub().running);
    let w = site.volume("w", MIB, CHUNK);
    write(&w, 0, 1, BLOCK);
}

/// A whole block of the medium (8 sectors) can't be read. A batch writes one sector of it.
#[test]
fn an_unreadable_block_below_a_part_is_repaired() {
    for sectors in [1, 8u64] {
        let bad: Arc<Mutex<Option<std::ops::Range<u64>>>> = Arc::default();
        let b = bad.clone();
        let fail = move |op: &Op<'_>| {
            let mut bad = b.lock().unwrap();
            match &op.act {
                Act::Read(r)
                    if op.name == "pv-0.img"
                        && bad.as_ref().is_some_and(|at| r.start < at.end && at.start < r.end) =>
                {
                    return Some(io::Error::from_raw_os_error(EIO));
                }
                Act::Write(r)
                    if op.name == "pv-0.img" && bad.as_ref().is_some_and(|at| r.contains(&at.start)) =>
                {
                    *bad = None
                }
                _ => {}
            }
            None
        };
        let site = Site::builder(16).options(alone()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..16, 1);
        site.idle();
        let place = Medium::of(&site.dir, "pv-0.img").place(5, 1);
        *bad.lock().unwrap() = Some(place + BLOCK - sectors * SECTOR..place + BLOCK);
        write(&v, 5 * BLOCK, 9, SECTOR);
        site.idle();
        let mut expected = unique(5, 1);
        expected[..SECTOR as usize].fill(9);
        let r = read_range(&v, 5 * BLOCK, BLOCK);
        if sectors == 8 {
            assert!(r.as_ref().is_ok_and(|d| *d == expected), "{sectors} sectors: {:?}", r.map(|_| "other"));
        }
    }
}

/// A clone writes a part of a block that is damaged in its base.
#[test]
fn a_clone_writes_a_part_of_a_damaged_block_of_its_base() {
    let site = repairing();
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.snap("v", "s");
    site.pool.clone_volume("v", "s", "c").unwrap();
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    medium.flip(medium.place(3, 1) + 2 * SECTOR);
    let c = site.open("c");
    write(&c, 3 * BLOCK, 5, SECTOR);
    site.idle();
    expect(&v, 0..16, 1, &[]);
    let mut expected = unique(3, 1);
    expected[..SECTOR as usize].fill(5);
    let r = read_range(&c, 3 * BLOCK, BLOCK);
    assert!(r.as_ref().is_ok_and(|d| *d == expected), "{:?}", r.map(|_| "other"));
}

/// A batch is recorded over damage; then the damage is repaired; then more is recorded.
#[test]
fn a_history_knows_what_was_repaired() {
    for reopens in [true, false] {
        let site = repairing();
        let v = site.open("v");
        record(&site, Encoding::Parity);
        put(&v, 0..16, 2);
        site.idle();
        let medium = Medium::of(&site.dir, "pv-0.img");
        medium.flip(medium.place(3, 2) + 2 * SECTOR);
        drop(v);
        // No sums of chunks are known.
        let mut site = site.reopen_after(|_| ());
        let mut v = site.open("v");
        put(&v, 2..3, 3);
        site.pool.drain().unwrap();
        site.idle();
        expect(&v, 3..4, 2, &[]);
        if reopens {
            drop(v);
            site = site.reopen_after(|_| ());
            v = site.open("v");
        }
        put(&v, 1..2, 4);
        site.idle();
        let then = site.lsn();
        put(&v, 1..2, 5);
        site.idle();
        let moment = site.pool.open_moment("v", &Moment::Lsn(then)).unwrap();
        let r = read_range(&moment, BLOCK, BLOCK);
        assert!(r.as_ref().is_ok_and(|d| *d == unique(1, 4)), "reopens {reopens}: {:?}", r.map(|_| "other"));
    }
}

/// A gap that a commit has is retracted in memory only.
#[test]
fn a_gap_that_was_committed_before_it_was_retracted_goes() {
    let armed = Arc::new(AtomicBool::new(false));
    let a = armed.clone();
    let fail = move |op: &Op<'_>| {
        let hit =
            a.load(SeqCst) && op.name == "pv-0.img" && matches!(&op.act, Act::Write(r) if r.start >= MIB);
        hit.then(|| io::Error::from_raw_os_error(28))
    };
    let site = Site::builder(16).options(alone()).over(|dir| FaultyDir::new(dir, fail));
    enable(&site.pool);
    let v = site.volume("v", MIB, CHUNK);
    record(&site, Encoding::Redo);
    put(&v, 0..16, 2);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    medium.flip(medium.place(3, 2) + 2 * SECTOR);
    drop(v);
    let site = site.reopen_after(|_| ());
    let v = site.open("v");
    // A part of the damaged block, and a chunk that gets a new slot.
    write(&v, 3 * BLOCK, 5, SECTOR);
    put(&v, 100..101, 2);
    let then = site.lsn();
    armed.store(true, SeqCst);
    for _ in 0..20 {
        let _ = site.pool.maintain();
        site.clock.advance(1_000_000);
    }
    armed.store(false, SeqCst);
    site.clock.advance(10_000_000_000);
    site.idle();
    put(&v, 3..4, 7);
    site.idle();
    let mut expected = unique(3, 2);
    expected[..SECTOR as usize].fill(5);
    let show =
        |site: &Site| read_range(&site.pool.open_moment("v", &Moment::Lsn(then)).unwrap(), 3 * BLOCK, BLOCK);
    let before = show(&site);
    assert!(before.as_ref().is_ok_and(|d| *d == expected), "{:?}", before.map(|_| "other"));
    drop(v);
    let site = site.reopen_after(|_| ());
    let after = show(&site);
    assert!(after.as_ref().is_ok_and(|d| *d == expected), "after reopening: {:?}", after.map(|_| "other"));
    expected.clear();
}

/// A disk that does not answer: the reads that one read of a client makes.
#[test]
fn a_repair_that_is_not_possible_costs_few_reads() {
    for mode in ["away", "hopeless"] {
        let (armed, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (a, c) = (armed.clone(), count.clone());
        let fail = move |op: &Op<'_>| {
            let is_read = op.name == "pv-0.img" && matches!(&op.act, Act::Read(_));
            if is_read {
                c.fetch_add(1, SeqCst);
            }
            (is_read && a.load(SeqCst)).then(|| io::Error::from_raw_os_error(EIO))
        };
        let site = Site::builder(16).options(alone()).over(|dir| FaultyDir::new(dir, fail));
        enable(&site.pool);
        let v = site.volume("v", MIB, CHUNK);
        put(&v, 0..64, 1);
        site.idle();
        if mode == "away" {
            armed.store(true, SeqCst);
        } else {
            let medium = Medium::of(&site.dir, "pv-0.img");
            medium.flip(medium.place(0, 1));
            drop(v);
            let site = site.reopen_after(|d| forget_journal(&*d));
            let v = site.open("v");
            let mut buf = vec![0; 64 * BLOCK as usize];
            v.read(0, &mut buf).unwrap_err();
            for _ in 0..3 {
                count.store(0, SeqCst);
                v.read(0, &mut buf).unwrap_err();
                assert!(count.load(SeqCst) < 10, "{mode}: {} reads", count.load(SeqCst));
            }
            continue;
        }
        let mut buf = vec![0; 64 * BLOCK as usize];
        for _ in 0..3 {
            count.store(0, SeqCst);
            v.read(0, &mut buf).unwrap_err();
            assert!(count.load(SeqCst) < 10, "{mode}: {} reads", count.load(SeqCst));
        }
    }
}

/// Two reads of a sector that can't be read. The slower one fails after the other has repaired it.
#[test]
fn a_read_that_fails_behind_a_repair_is_repeated() {
    let bad: Arc<Mutex<Option<u64>>> = Arc::default();
    let second: Arc<Mutex<Option<Arc<Volume>>>> = Arc::default();
    let (b, s) = (bad.clone(), second.clone());
    let fail = move |op: &Op<'_>| {
        let at = (*b.lock().unwrap())?;
        let hit = op.name == "pv-0.img" && matches!(&op.act, Act::Read(r) if r.contains(&at));
        if !hit {
            return None;
        }
        let other = s.lock().unwrap().take();
        if let Some(v) = other {
            std::thread::spawn(move || {
                let mut buf = vec![0; BLOCK as usize];
                v.read(5 * BLOCK, &mut buf).unwrap();
                assert!(buf == unique(5, 1));
            })
            .join()
            .unwrap();
        }
        Some(io::Error::from_raw_os_error(EIO))
    };
    let site = Site::builder(16).options(alone()).over(|dir| FaultyDir::new(dir, fail));
    enable(&site.pool);
    let v = site.volume("v", MIB, CHUNK);
    put(&v, 0..16, 1);
    site.idle();
    *bad.lock().unwrap() = Some(Medium::of(&site.dir, "pv-0.img").place(5, 1) + 100);
    *second.lock().unwrap() = Some(v.clone());
    let r = read_range(&v, 5 * BLOCK, BLOCK);
    assert!(r.is_ok_and(|data| data == unique(5, 1)));
}

/// Compare and write over damage that can be repaired.
#[test]
fn compare_and_write_repairs() {
    let site = repairing();
    let v = site.open("v");
    put(&v, 0..16, 1);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    medium.flip(medium.place(3, 1) + 2 * SECTOR);
    let r = v.compare_and_write(3 * BLOCK, &unique(3, 1), Bytes::from(unique(3, 2)), false);
    assert_eq!(r.unwrap(), Ok(()));
    expect(&v, 3..4, 2, &[]);
}
