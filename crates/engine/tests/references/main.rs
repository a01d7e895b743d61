//! Large writes by reference: their places and content, also after a kill, a lost write, or a
//! failed disk.
#![allow(clippy::unwrap_used)] // a test may panic

mod damage;
mod history;
mod order;

use hindcast_engine::ErrorKind;
use hindcast_engine::Volume;
use hindcast_engine::cdp::CdpSettings;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, SyncPurpose};
use hindcast_engine::pool::{
    Health, Method, Order, Pool, PoolOptions, PreserveStats, PvSpec, SnapshotPolicy,
};
use hindcast_engine::testing::{
    Act, FaultyDir, KIB, MIB, Op, Site, assert_bytes, assert_clean, idle, read, try_read, write,
};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Makes a pool of `mib` MiB that has the feature `references`.
fn site(mib: u64) -> Site {
    let site = Site::new(mib);
    enable(&site.pool);
    site
}

/// Makes a pool of two physical volumes of `size` bytes each.
fn site_of_two(size: u64) -> Site {
    let site = Site::builder(0).pvs(&[("pv-0", size), ("pv-1", size)]).build();
    enable(&site.pool);
    site
}

fn enable(pool: &Pool) {
    pool.upgrade(&["references".to_owned()]).unwrap();
}

fn direct(pool: &Pool) -> u64 {
    pool.stats().direct_bytes
}

/// Makes a volume for which writes of at least 64 KiB go by reference.
fn volume(site: &Site, name: &str, size: u64, chunk: u64) -> Arc<Volume> {
    let v = site.volume(name, size, chunk);
    warm(&site.pool, &v);
    v
}

/// Writes zeros to the start of a volume until one such write goes by reference. Destages after
/// each write.
fn warm(pool: &Pool, v: &Volume) {
    for _ in 0..4 {
        let before = direct(pool);
        write(v, 0, 0, 64 * KIB);
        idle(pool);
        if direct(pool) > before {
            return;
        }
    }
    panic!("no write goes by reference: {:?}", pool.stats());
}

/// Writes `len` bytes with the value `byte`, and checks that they go by reference.
fn refer(pool: &Pool, v: &Volume, offset: u64, byte: u8, len: u64) {
    let before = direct(pool);
    write(v, offset, byte, len);
    assert_eq!(direct(pool) - before, len, "the write goes by reference");
}

/// Writes `len` bytes with the value `byte`, and checks that they go through the journal.
fn inline(pool: &Pool, v: &Volume, offset: u64, byte: u8, len: u64) {
    let before = direct(pool);
    write(v, offset, byte, len);
    assert_eq!(direct(pool), before, "the write goes inline");
}

/// A reference that replaces content of a snapshot counts as a redirect, like the same write
/// inline.
#[test]
fn references_count_as_redirects() {
    let site = site(64);
    let v = volume(&site, "v", MIB, 16 * KIB);
    refer(&site.pool, &v, 0, 1, 64 * KIB);
    site.pool.drain().unwrap();
    let preserved = || site.pool.volume_statistics("v").unwrap().preserved;
    assert_eq!(preserved(), PreserveStats::default(), "nothing was to be preserved");
    site.snap("v", "s");
    // The second half replaces chunks that were never written.
    refer(&site.pool, &v, 0, 2, 128 * KIB);
    site.pool.drain().unwrap();
    let once = PreserveStats {
        redirects: 4,
        redirected_bytes: 64 * KIB,
        host_bytes: 64 * KIB,
        ..PreserveStats::default()
    };
    assert_eq!(preserved(), once);
    // The snapshot's content has its own place by now.
    refer(&site.pool, &v, 0, 3, 128 * KIB);
    site.pool.drain().unwrap();
    assert_eq!(preserved(), once);
}

/// A burst goes through the journal. References begin when much of the journal is in use, and end
/// with a pause.
#[test]
fn a_burst_goes_through_the_journal() {
    let options = PoolOptions { direct_start_percent: 50, destage_threads: 1, ..PoolOptions::default() };
    let site = Site::builder(64).options(options).build();
    enable(&site.pool);
    let v = site.volume("v", 16 * MIB, 16 * KIB);
    let burst = |from: u64, count: u64| {
        (from..from + count).map(|n| {
            let before = direct(&site.pool);
            write(&v, n * 64 * KIB, n as u8, 64 * KIB);
            direct(&site.pool) > before
        })
    };
    // Half of the journal is 4 MiB.
    assert_eq!(burst(0, 60).filter(|is_direct| *is_direct).count(), 0);
    // The first of these writes lets slots be lent.
    let more: Vec<bool> = burst(60, 16).collect();
    site.pool.destage_step().unwrap();
    assert!(more.iter().all(|is_direct| !is_direct), "no slots are lent yet: {more:?}");
    assert_eq!(burst(76, 16).filter(|is_direct| *is_direct).count(), 16);
    // The journal is empty now, but the writes go on.
    idle(&site.pool);
    site.clock.advance(900_000_000);
    assert_eq!(burst(92, 16).filter(|is_direct| *is_direct).count(), 16);
    site.clock.advance(1_000_000_000);
    assert_eq!(burst(108, 16).filter(|is_direct| *is_direct).count(), 0);
    idle(&site.pool);
    for n in 0..124 {
        assert_bytes(&v, n * 64 * KIB, n as u8, 64 * KIB);
    }
}

#[test]
fn a_reference_is_read_while_it_is_staged_and_in_place() {
    for chunk in [4 * KIB, 16 * KIB, 64 * KIB] {
        let site = site(64);
        let v = volume(&site, "v", 4 * MIB, chunk);
        refer(&site.pool, &v, MIB, 1, MIB);
        assert_bytes(&v, MIB, 1, MIB);
        assert_eq!(site.pool.stats().referred_bytes, MIB);
        // These writes replace parts of the chunks: a sector, a block, and the end of one chunk
        // with the start of the next.
        inline(&site.pool, &v, MIB + 512, 2, 512);
        inline(&site.pool, &v, MIB + 8 * KIB, 3, 4 * KIB);
        inline(&site.pool, &v, MIB + 64 * KIB - 512, 4, KIB);
        let look = || {
            assert_bytes(&v, MIB, 1, 512);
            assert_bytes(&v, MIB + 512, 2, 512);
            assert_bytes(&v, MIB + KIB, 1, 7 * KIB);
            assert_bytes(&v, MIB + 8 * KIB, 3, 4 * KIB);
            assert_bytes(&v, MIB + 64 * KIB - 512, 4, KIB);
            assert_bytes(&v, MIB + 64 * KIB + 512, 1, MIB - 64 * KIB - 512);
            assert_bytes(&v, 2 * MIB, 0, MIB);
        };
        look();
        let journal = site.pool.stats().journal_bytes;
        assert!(journal < 600 * KIB, "a reference takes little of the journal: {journal}");
        idle(&site.pool);
        look();
        assert_eq!(site.pool.stats().referred_bytes, 0);
        site.pool.close().unwrap();
        drop(v);
        assert_clean(site.kill());
    }
}

#[test]
fn what_is_no_whole_chunk_goes_inline() {
    let site = site(64);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    let before = direct(&site.pool);
    write(&v, 4 * KIB, 1, MIB);
    assert_eq!(direct(&site.pool) - before, MIB - 128 * KIB, "the middle goes by reference");
    assert_bytes(&v, 0, 0, 4 * KIB);
    assert_bytes(&v, 4 * KIB, 1, MIB);
    assert_bytes(&v, MIB + 4 * KIB, 0, MIB);
    inline(&site.pool, &v, 4 * KIB, 2, 128 * KIB);
    inline(&site.pool, &v, 0, 3, 48 * KIB);
    idle(&site.pool);
    assert_bytes(&v, 0, 3, 48 * KIB);
    assert_bytes(&v, 48 * KIB, 2, 84 * KIB);
    assert_bytes(&v, 132 * KIB, 1, MIB - 128 * KIB);
}

#[test]
fn references_survive_a_kill_before_and_after_destage() {
    let mut site = site(64);
    let mut v = volume(&site, "v", 4 * MIB, 16 * KIB);
    for round in 1..6u8 {
        refer(&site.pool, &v, 0, round, MIB);
        refer(&site.pool, &v, 512 * KIB, round + 10, 512 * KIB);
        inline(&site.pool, &v, 100 * KIB, round + 20, 4 * KIB);
        if round % 2 == 0 {
            idle(&site.pool);
            refer(&site.pool, &v, 2 * MIB, round, 64 * KIB);
        }
        drop(v);
        site = site.reopen();
        v = site.open("v");
        let look = |v: &Volume| {
            assert_bytes(v, 0, round, 100 * KIB);
            assert_bytes(v, 100 * KIB, round + 20, 4 * KIB);
            assert_bytes(v, 104 * KIB, round, 408 * KIB);
            assert_bytes(v, 512 * KIB, round + 10, 512 * KIB);
            assert_bytes(v, MIB, 0, MIB);
            assert_bytes(v, 2 * MIB, round / 2 * 2, 64 * KIB);
        };
        look(&v);
        warm(&site.pool, &site.volume(&format!("w{round}"), MIB, 16 * KIB));
        look(&v);
        site.pool.drain().unwrap();
        look(&v);
    }
}

#[test]
fn overtaken_references_give_their_slots_back() {
    let site = site(16);
    let v = volume(&site, "v", 2 * MIB, 16 * KIB);
    let used = |site: &Site| site.pool.info().used;
    write(&v, 0, 1, 2 * MIB);
    idle(&site.pool);
    let before = used(&site);
    for byte in 0..40 {
        write(&v, u64::from(byte % 4) * 512 * KIB, byte, 512 * KIB);
        if byte % 8 == 0 {
            idle(&site.pool);
        }
    }
    v.discard(0, 256 * KIB, false).unwrap();
    refer(&site.pool, &v, 0, 77, 256 * KIB);
    idle(&site.pool);
    assert_bytes(&v, 0, 77, 256 * KIB);
    assert_bytes(&v, 256 * KIB, 36, 256 * KIB);
    assert_bytes(&v, 1536 * KIB, 39, 512 * KIB);
    assert_eq!(used(&site), before);
    assert!(site.pool.stats().lent_bytes > 0);
}

#[test]
fn snapshots_clones_and_rollbacks_see_their_own() {
    for independent in [false, true] {
        let mut site = site(64);
        let mut v = volume(&site, "v", MIB, 16 * KIB);
        if independent {
            site.pool.set_order("v", Order::Independent).unwrap();
        }
        for byte in 1..5u8 {
            refer(&site.pool, &v, 0, byte, MIB);
            inline(&site.pool, &v, 20 * KIB, byte + 100, 512);
            site.snap("v", &format!("s{byte}"));
            if byte == 2 {
                idle(&site.pool);
            }
        }
        refer(&site.pool, &v, 0, 9, 512 * KIB);
        site.pool.clone_volume("v", "s3", "c").unwrap();
        let c = site.open("c");
        refer(&site.pool, &c, 512 * KIB, 33, 64 * KIB);
        drop((v, c));
        for _ in 0..2 {
            for byte in 1..5u8 {
                let s = site.snapshot("v", &format!("s{byte}"));
                assert_bytes(&s, 0, byte, 20 * KIB);
                assert_bytes(&s, 20 * KIB, byte + 100, 512);
                assert_bytes(&s, 20 * KIB + 512, byte, MIB - 20 * KIB - 512);
            }
            let c = site.open("c");
            assert_bytes(&c, 64 * KIB, 3, 448 * KIB);
            assert_bytes(&c, 512 * KIB, 33, 64 * KIB);
            v = site.open("v");
            assert_bytes(&v, 0, 9, 512 * KIB);
            assert_bytes(&v, 512 * KIB, 4, 512 * KIB);
            drop((v, c));
            site = site.reopen();
            idle(&site.pool);
        }
        v = site.open("v");
        warm(&site.pool, &v);
        refer(&site.pool, &v, 0, 10, 512 * KIB);
        drop(v);
        site.pool.roll_back("v", "s2", "undo", true).unwrap();
        v = site.open("v");
        assert_bytes(&v, 64 * KIB, 2, 512 * KIB);
        idle(&site.pool);
        assert_bytes(&v, 64 * KIB, 2, 512 * KIB);
        drop(v);
        site.pool.delete_volume("c", true).unwrap();
        drop(site.reopen());
    }
}

#[test]
fn references_of_a_deleted_volume_are_freed() {
    let mut site = site(64);
    for round in 0..12 {
        let v = volume(&site, "v", 4 * MIB, 16 * KIB);
        for at in 0..3 {
            refer(&site.pool, &v, at * MIB, 1, 512 * KIB);
        }
        drop(v);
        site.pool.delete_volume("v", true).unwrap();
        if round % 2 == 1 {
            site = site.reopen();
        }
        idle(&site.pool);
        assert_eq!(site.pool.stats().referred_bytes, 0);
    }
    assert_eq!(site.pool.info().used, 0);
}

#[test]
fn method_copy_uses_the_journal() {
    let site = site(64);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    refer(&site.pool, &v, 0, 1, MIB);
    site.pool.set_method("v", Method::Copy).unwrap();
    inline(&site.pool, &v, 0, 5, MIB);
    idle(&site.pool);
    assert_bytes(&v, 0, 5, MIB);
}

#[test]
fn a_physical_volume_with_references_is_drained_and_removed() {
    let site = site_of_two(33 * MIB);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    for at in 0..4 {
        refer(&site.pool, &v, at * MIB, at as u8 + 1, MIB);
        site.pool.maintain().unwrap();
    }
    site.pool.drain_pv("0", true).unwrap();
    for at in 0..4 {
        write(&v, at * MIB, at as u8 + 11, 512 * KIB);
    }
    idle(&site.pool);
    site.pool.remove_pv("0").unwrap();
    idle(&site.pool);
    warm(&site.pool, &site.volume("w", MIB, 16 * KIB));
    // A physical volume with only lent slots can be removed, too.
    site.pool.add_pv(&PvSpec { path: "pv-2".into(), size: Some(33 * MIB), force: false }).unwrap();
    for at in 0..4 {
        assert_bytes(&v, at * MIB, at as u8 + 11, 512 * KIB);
        assert_bytes(&v, at * MIB + 512 * KIB, at as u8 + 1, 512 * KIB);
    }
    drop(v);
    drop(site.reopen());
}

#[test]
fn a_full_pool_takes_lent_slots_back() {
    let site = site(8);
    let v = site.volume("v", 16 * MIB, 16 * KIB);
    let mut written = 0;
    while written < 16 * MIB {
        let mut ops =
            [hindcast_engine::device::WriteOp::new(written, bytes::Bytes::from(vec![7; 64 * KIB as usize]))];
        v.write(&mut ops, false);
        if ops[0].result.is_err() {
            break;
        }
        written += 64 * KIB;
        site.pool.maintain().unwrap();
    }
    assert!(written >= 7 * MIB, "{written} bytes were written to a pool of 8 MiB");
    assert_bytes(&v, 0, 7, written);
    idle(&site.pool);
    assert_bytes(&v, 0, 7, written);
    drop(v);
    drop(site.reopen());
}

/// Lent slots come back when they are needed, so they are no reason to delete a snapshot.
#[test]
fn lent_slots_are_no_shortage() {
    let site = site(64);
    let v = volume(&site, "v", 64 * MIB, 16 * KIB);
    let policy = SnapshotPolicy { reserve_percent: 200, auto_delete: true };
    site.pool.set_snapshot_policy("v", policy).unwrap();
    refer(&site.pool, &v, 0, 1, 64 * KIB);
    site.pool.create_snapshots(&[("v", "kept")]).unwrap();
    refer(&site.pool, &v, 0, 2, 64 * KIB);
    idle(&site.pool);
    let warns =
        || matches!(site.pool.health(), Health::Warning(all) if all.iter().any(|w| w.code == "space-low"));
    let mut at = 64 * KIB;
    while site.pool.snapshot("v", "kept").is_ok() {
        let info = site.pool.info();
        assert_eq!(warns(), info.own_available < info.capacity / 100 * 10, "{info:?}");
        let step = if info.own_available > info.capacity / 8 { MIB } else { 64 * KIB };
        write(&v, at, 3, step);
        at += step;
        idle(&site.pool);
    }
    let info = site.pool.info();
    let before = info.own_available - 64 * KIB; // the deletion gave 64 KiB back
    let due = info.capacity / 100 * 10;
    assert!((due - 64 * KIB..due).contains(&before), "deleted with {before} bytes left, due below {due}");
}

#[test]
fn a_disk_that_fails_while_data_is_written_costs_nothing() {
    let broken = Arc::new(AtomicBool::new(false));
    let fails = broken.clone();
    let builder = Site::builder(0).pvs(&[("pv-0", 33 * MIB), ("pv-1", 33 * MIB)]);
    let site = builder.over(|files| {
        FaultyDir::new(files, move |op: &Op<'_>| {
            let fails = fails.load(Ordering::Relaxed) && op.name == "pv-0";
            (fails && matches!(op.act, Act::Write(_))).then(|| io::Error::from_raw_os_error(5))
        })
    });
    enable(&site.pool);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    refer(&site.pool, &v, 0, 1, MIB);
    broken.store(true, Ordering::Relaxed);
    for at in 0..4 {
        write(&v, at * MIB, 5, 64 * KIB);
        write(&v, at * MIB + 100 * KIB, 6, 512);
    }
    idle(&site.pool);
    for at in 0..4 {
        assert_bytes(&v, at * MIB, 5, 64 * KIB);
        assert_bytes(&v, at * MIB + 100 * KIB, 6, 512);
    }
    assert_bytes(&v, 64 * KIB, 1, 36 * KIB);
    assert_bytes(&v, 128 * KIB, 1, 896 * KIB);
}

/// The file system of one physical volume is read-only, or the system has no memory. Lending meets
/// that error first, because it opens extents.
#[test]
fn lending_that_fails_ends_nothing_else() {
    // Without memory destage also waits. Then only the journal takes writes.
    for (error, rounds) in [(30, 40), (12, 5), (5, 40)] {
        let broken = Arc::new(AtomicBool::new(false));
        let fails = broken.clone();
        let builder = Site::builder(0).pvs(&[("pv-0", 33 * MIB), ("pv-1", 33 * MIB)]);
        let site = builder.over(|files| {
            FaultyDir::new(files, move |op: &Op<'_>| {
                let fails = fails.load(Ordering::Relaxed) && op.name == "pv-0";
                (fails && matches!(op.act, Act::Allocate(_))).then(|| io::Error::from_raw_os_error(error))
            })
        });
        enable(&site.pool);
        let v = volume(&site, "v", 8 * MIB, 16 * KIB);
        broken.store(true, Ordering::Relaxed);
        for round in 0..rounds {
            write(&v, round % 8 * MIB, round as u8 + 1, MIB);
            let _ = site.pool.maintain();
        }
        let health = site.pool.info().health;
        assert!(!matches!(health, Health::Poisoned(_)), "errno {error}: {health:?}");
        broken.store(false, Ordering::Relaxed);
        idle(&site.pool);
        for at in 0..rounds.min(8) {
            assert_bytes(&v, at * MIB, (rounds.max(8) - 8 + at) as u8 + 1, MIB);
        }
    }
}

/// The last references of a burst leave no slot that keeps a physical volume in use.
#[test]
fn a_physical_volume_is_empty_after_a_burst() {
    let site = site_of_two(65 * MIB);
    let v = volume(&site, "v", 8 * MIB, 16 * KIB);
    for round in 0..6 {
        for at in 0..8 {
            write(&v, at * MIB, round, MIB);
        }
        idle(&site.pool);
    }
    v.discard(0, 8 * MIB, false).unwrap();
    idle(&site.pool);
    site.pool.drain_pv("0", true).unwrap();
    idle(&site.pool);
    site.pool.remove_pv("0").unwrap();
    site.clock.advance(1_200_000_000_000);
    idle(&site.pool);
    assert_eq!((site.pool.info().used, site.pool.stats().lent_bytes), (0, 0));
}
