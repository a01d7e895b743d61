//! Repair: damaged data comes back from the volume's history, or from the journal, byte for byte,
//! and the place where it was damaged is not used again.

use super::*;
use hindcast_engine::cdp::Moment;
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::testing::{Act, FaultyDir, Op};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Closes the pool in order, which puts everything in place, and changes its files.
fn reopen(site: Site, v: Arc<Volume>, change: impl FnOnce(&dyn Dir)) -> (Site, Arc<Volume>) {
    site.idle();
    drop(v);
    let site = site.reopen_after(|dir| change(&*dir));
    let v = site.open("v");
    (site, v)
}

fn assert_closes_clean(site: Site) {
    let dir = site.dir.clone();
    site.pool.close().unwrap();
    drop(site);
    assert_clean(dir);
}

fn assert_sound(site: &Site) {
    assert_eq!(site.pool.damaged(), (0, 0));
    assert!(!site.pool.health().has(code::DATA_DAMAGED));
}

#[test]
fn a_read_gets_what_the_journal_still_has() {
    let site = repairing();
    let v = site.open("v");
    put(&v, 0..64, 1);
    site.idle();
    put(&v, 0..32, 2);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    let places = [medium.place(5, 2), medium.place(7, 2), medium.place(40, 1)];
    places.iter().for_each(|place| medium.flip(*place + 99));
    expect(&v, 0..32, 2, &[]);
    expect(&v, 32..64, 1, &[]);
    site.idle();
    assert_sound(&site);
    assert_eq!(site.pool.stats().repaired.journal, 3 * BLOCK);
    assert_eq!(site.pool.stats().bad_bytes, 2 * CHUNK, "blocks 5 and 7 are in two chunks, 40 in another")
}

#[test]
fn with_parity_a_history_repairs_what_is_now_and_what_was_then() {
    for damaged in ["now", "then"] {
        let site = repairing();
        let v = site.open("v");
        record(&site, Encoding::Parity);
        put(&v, 0..64, 1);
        site.snap("v", "s");
        put(&v, 0..64, 2);
        write(&v, 9 * BLOCK + SECTOR, 77, SECTOR);
        site.idle();
        let medium = Medium::of(&site.dir, "pv-0.img");
        let mut expected = unique(9, 2);
        expected[SECTOR as usize..2 * SECTOR as usize].fill(77);
        let place = match damaged {
            "now" => medium.find(&expected)[0],
            _ => medium.place(9, 1),
        };
        let (site, v) = reopen(site, v, |dir| {
            medium.flip(place);
            medium.flip(place + BLOCK - 1);
            forget_journal(dir);
        });
        let mut buf = vec![0; BLOCK as usize];
        v.read(9 * BLOCK, &mut buf).unwrap();
        assert!(buf == expected, "{damaged}");
        expect(&site.snapshot("v", "s"), 0..64, 1, &[]);
        site.idle();
        assert_sound(&site);
        assert_eq!(site.pool.stats().repaired.history, BLOCK, "{damaged}");
        // The repair is durable, and the damaged place stays alone.
        let (site, v) = reopen(site, v, |_| ());
        v.read(9 * BLOCK, &mut buf).unwrap();
        assert!(buf == expected, "{damaged}");
        assert_eq!(site.pool.stats().bad_bytes, CHUNK);
        for generation in 10..30 {
            put(&v, 0..64, generation);
            site.idle();
        }
        let mut rotten = if damaged == "now" { expected.clone() } else { unique(9, 1) };
        (rotten[0], rotten[BLOCK as usize - 1]) = (rotten[0] ^ 4, rotten[BLOCK as usize - 1] ^ 4);
        assert_eq!(medium.find(&rotten), [place], "nothing was written there");
        drop(v);
        assert_closes_clean(site);
    }
}

/// Undo leads backward only, and redo forward only.
#[test]
fn an_encoding_that_does_not_lead_there_repairs_nothing() {
    for (encoding, now, then) in [(Encoding::Undo, false, true), (Encoding::Redo, true, false)] {
        for (generation, repairs) in [(2, now), (1, then)] {
            let site = repairing();
            let v = site.open("v");
            put(&v, 0..16, 1);
            record(&site, encoding);
            site.snap("v", "s");
            put(&v, 0..16, 2);
            site.idle();
            let medium = Medium::of(&site.dir, "pv-0.img");
            let place = medium.place(3, generation);
            let (site, v) = reopen(site, v, |dir| {
                medium.flip(place);
                forget_journal(dir);
            });
            let lost: &[u64] = if repairs { &[] } else { &[3] };
            match generation {
                2 => expect(&v, 0..16, 2, lost),
                _ => expect(&site.snapshot("v", "s"), 0..16, 1, lost),
            }
            assert_eq!(site.pool.stats().repaired.history, if repairs { BLOCK } else { 0 });
        }
    }
}

#[test]
fn a_scrub_repairs_what_nobody_reads() {
    let site = repairing();
    let v = site.open("v");
    put(&v, 0..64, 1);
    record(&site, Encoding::Parity);
    site.snap("v", "s");
    put(&v, 0..32, 2);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    let places = [medium.place(5, 2), medium.place(10, 1)];
    // No record leads to this block: it was written before, and never again.
    let lost = medium.place(50, 1);
    let (site, v) = reopen(site, v, |dir| {
        places.iter().chain([&lost]).for_each(|place| medium.flip(*place));
        forget_journal(dir);
    });
    let found = scrub::scrub(&site.pool);
    let expected = (2 * BLOCK, BLOCK, 96 * BLOCK - 3 * BLOCK);
    assert_eq!((found.repaired, found.damaged, found.verified), expected, "{found:?}");
    expect(&v, 0..32, 2, &[]);
    expect(&v, 32..64, 1, &[50]);
    assert_eq!(scrub::scrub(&site.pool).repaired, 0);
}

/// A damaged place is free again when its physical volume is drained.
#[test]
fn a_drained_physical_volume_has_no_bad_places() {
    let site = repairing();
    let v = site.open("v");
    put(&v, 0..64, 1);
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    medium.flip(medium.place(5, 1));
    expect(&v, 0..64, 1, &[]);
    assert_eq!(site.pool.stats().bad_bytes, CHUNK);
    site.pool.add_pv(&pv("pv-1", 16 * MIB)).unwrap();
    site.pool.drain_pv("pv-0.img", true).unwrap();
    site.idle();
    assert_eq!(site.pool.stats().bad_bytes, 0);
    site.pool.remove_pv("pv-0.img").unwrap();
    expect(&v, 0..64, 1, &[]);
    drop(v);
    assert_closes_clean(site);
}

/// Without space for a new place, the damaged place is written again, and synced before the read
/// returns: a repair that a power loss takes back was none.
#[test]
fn a_full_pool_repairs_in_place() {
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = syncs.clone();
    let count = move |op: &Op<'_>| {
        let is_sync = op.name == "pv-0.img" && matches!(op.act, Act::Sync(SyncPurpose::Apply));
        counted.fetch_add(is_sync.into(), SeqCst);
        None
    };
    let site = Site::builder(16).options(alone()).over(|dir| FaultyDir::new(dir, count));
    enable(&site.pool);
    let v = site.volume("v", MIB, CHUNK);
    put(&v, 0..16, 1);
    record(&site, Encoding::Parity);
    put(&v, 0..16, 2);
    let full = site.volume("full", 64 * MIB, CHUNK);
    for block in 0.. {
        let mut op = [WriteOp::new(block * CHUNK, Bytes::from(vec![1; CHUNK as usize]))];
        full.write(&mut op, false);
        if op[0].result.is_err() {
            break;
        }
    }
    site.idle();
    let medium = Medium::of(&site.dir, "pv-0.img");
    let place = medium.place(3, 2);
    medium.flip(place);
    let before = syncs.load(SeqCst);
    expect(&v, 0..16, 2, &[]);
    assert_eq!(syncs.load(SeqCst), before + 1);
    assert_eq!(medium.place(3, 2), place);
    assert_eq!(site.pool.stats().bad_bytes, 0);
    site.idle();
    assert_sound(&site);
}

/// The write of a part of a block finds that the block is damaged. The repair comes first, so the
/// rest of the block is not lost.
#[test]
fn a_write_to_a_part_of_a_damaged_block_waits_for_the_repair() {
    for (threads, history, kill) in [(1, true, false), (4, true, false), (1, false, false), (1, true, true)] {
        let options = PoolOptions { destage_threads: threads, ..PoolOptions::default() };
        let site = Site::builder(16).options(options).build();
        enable(&site.pool);
        let site = site.having("v", MIB, CHUNK);
        let v = site.open("v");
        put(&v, 0..16, 1);
        if history {
            record(&site, Encoding::Parity);
        }
        put(&v, 0..16, 2);
        site.idle();
        let medium = Medium::of(&site.dir, "pv-0.img");
        let place = medium.place(3, 2);
        let (mut site, mut v) = reopen(site, v, |dir| {
            medium.flip(place + 2 * SECTOR);
            if history {
                forget_journal(dir);
            }
        });
        let before = site.pool.stats().sequenced_lsn;
        write(&v, 3 * BLOCK, 5, SECTOR);
        if kill {
            drop(v);
            site = site.reopen_after(|_| ());
            v = site.open("v");
        }
        write(&v, 2 * BLOCK, 6, BLOCK);
        site.idle();
        let mut expected = unique(3, 2);
        expected[..SECTOR as usize].fill(5);
        let mut buf = vec![0; BLOCK as usize];
        v.read(3 * BLOCK, &mut buf).unwrap();
        assert!(buf == expected, "{threads} {history} {kill}");
        expect(&v, 4..16, 2, &[]);
        assert_sound(&site);
        assert_eq!(site.pool.stats().repaired.total(), BLOCK);
        if history {
            // The history has no gap.
            let then = site.pool.open_moment("v", &Moment::Lsn(before)).unwrap();
            then.read(3 * BLOCK, &mut buf).unwrap();
            assert!(buf == unique(3, 2));
        }
        drop(v);
        assert_closes_clean(site);
    }
}
