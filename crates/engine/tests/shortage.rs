//! Pools that run out of space: space that waits to be freed comes back in time, and policies
//! delete snapshots only where that helps.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Retention};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Backing, Layer, LayeredDir, LowerDisk};
use hindcast_engine::pool::{Pool, PoolOptions, Progress, PvSpec, SnapshotPolicy};
use hindcast_engine::testing::{KIB, MIB, Site, idle, try_write, write};
use hindcast_engine::{ErrorKind, Volume};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A file system with a set number of available bytes.
struct Host(AtomicU64);

impl Layer for Host {
    fn backing_available(&self, _disk: &LowerDisk) -> io::Result<Option<Backing>> {
        Ok(Some(Backing { file_system: 1, available: self.0.load(Ordering::Relaxed) }))
    }
}

fn policy(pool: &Pool, volume: &str) {
    let policy = SnapshotPolicy { reserve_percent: 200, auto_delete: true };
    pool.set_snapshot_policy(volume, policy).unwrap();
}

fn count(pool: &Pool) -> usize {
    pool.snapshots("v").unwrap().len()
}

/// Makes snapshots of `v` that each need 64 KiB alone, and a policy that may delete them.
fn some_snapshots(site: &Site, count: u8) -> Arc<Volume> {
    let v = site.volume("v", MIB, 4 * KIB);
    policy(&site.pool, "v");
    for n in 0..=count {
        write(&v, 0, n, 64 * KIB);
        if n < count {
            site.snap("v", &format!("s{n}"));
        }
    }
    site.idle();
    v
}

#[test]
fn a_full_host_file_system_is_a_warning_and_no_reason_to_delete() {
    let host = Arc::new(Host(AtomicU64::new(1 << 50)));
    let site = Site::builder(63)
        .journal(4 * MIB, 512 * KIB)
        .over(|files| Arc::new(LayeredDir::over(Arc::new(files), host.clone())));
    let pool = site.having("v", 4 * MIB, 4 * KIB).pool;
    policy(&pool, "v");
    let v = pool.open_volume("v", false).unwrap();
    for n in 0..10u8 {
        write(&v, 0, n, 256 * KIB);
        pool.create_snapshots(&[("v", &format!("s{n}"))]).unwrap();
    }
    write(&v, 0, 99, 256 * KIB);
    idle(&pool);
    for available in [0, MIB, 70 * MIB] {
        // Another program fills the file system for a while: below the margin, or down to a few
        // extents.
        host.0.store(available, Ordering::Relaxed);
        for _ in 0..100 {
            pool.maintain().unwrap();
        }
        assert_eq!(count(&pool), 10, "{available}");
        if available < MIB * 64 {
            assert!(pool.health().has("host-full") && !pool.health().has("space-low"), "{:?}", pool.health());
            // A writer that finds no room does not change that either. Longer writes may find slots
            // that were lent before.
            assert_eq!(try_write(&v, 3 * MIB, 1, 32 * KIB).unwrap_err(), ErrorKind::NoSpace);
            assert_eq!(count(&pool), 10, "{available}");
        }
    }
    host.0.store(1 << 50, Ordering::Relaxed);
    idle(&pool);
    assert!(!pool.health().has("host-full"));
    write(&v, 3 * MIB, 1, 64 * KIB);
}

#[test]
fn policies_delete_one_after_another_and_not_all_at_once() {
    let site = Site::new(8);
    let _v = some_snapshots(&site, 8);
    let w = site.volume("w", 8 * MIB, 4 * KIB);
    // Space is low, by as much as a few of the snapshots can give back.
    let low = site.pool.info().capacity / 10;
    let most = site.pool.info().available - low + 200 * KIB;
    write(&w, 0, 1, most - most % (64 * KIB));
    let mut left = count(&site.pool);
    assert_eq!(left, 8);
    for second in 0..6 {
        site.idle();
        let now = count(&site.pool);
        assert!(now + 1 >= left, "second {second}: {left} snapshots before, {now} after");
        left = now;
        site.clock.advance(1_000_000_000);
    }
    assert!((2..=5).contains(&left), "{left}: as many as were needed");
    assert!(!site.pool.health().has("space-low"));
}

#[test]
fn a_deletion_that_gives_nothing_back_is_the_last() {
    let site = Site::new(8);
    let _v = some_snapshots(&site, 6);
    let pv = PvSpec { path: "pv-1.img".into(), size: Some(4 * MIB), force: false };
    site.pool.add_pv(&pv).unwrap();
    site.idle();
    // The content of the snapshots lies on a physical volume that takes no data any more, and the
    // other one is full.
    site.pool.drain_pv("pv-0.img", true).unwrap();
    let w = site.volume("w", 8 * MIB, 4 * KIB);
    let left = site.pool.info().available;
    write(&w, 0, 1, left - left % (64 * KIB));
    for _ in 0..20 {
        site.idle();
        site.clock.advance(10_000_000_000);
    }
    assert_eq!(count(&site.pool), 5, "one was tried");
}

/// There is no background work in between: the writers themselves apply the policies.
#[test]
fn a_write_without_space_asks_the_policies_before_it_is_refused() {
    let site = Site::new(8);
    let v = some_snapshots(&site, 16);
    let w = site.volume("w", 8 * MIB, 4 * KIB);
    let mut written = 0;
    while count(&site.pool) > 0 {
        write(&w, written, 7, 64 * KIB);
        written += 64 * KIB;
        assert!(written <= 8 * MIB);
    }
    // The policy deletes as many snapshots as were needed, the oldest first. Without snapshots the
    // pool is full.
    let (mut refused, mut content) = (false, vec![0; MIB as usize]);
    for at in (written..8 * MIB).step_by(64 << 10) {
        refused |= try_write(&w, at, 7, 64 * KIB).is_err();
    }
    assert!(refused);
    v.read(0, &mut content).unwrap();
    assert!(content[..64 << 10].iter().all(|b| *b == 16));
    // A protected snapshot stays.
    let site = Site::new(8);
    let _v = some_snapshots(&site, 3);
    site.pool.protect_snapshot("v", "s1", true).unwrap();
    let w = site.volume("w", 16 * MIB, 4 * KIB);
    while try_write(&w, 0, 7, 64 * KIB).is_ok() && site.pool.info().available > 0 {
        for at in (0..16 * MIB).step_by(64 << 10) {
            let _ = try_write(&w, at, 7, 64 * KIB);
        }
    }
    let left: Vec<String> = site.pool.snapshots("v").unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(left, ["s1"]);
}

/// Many small deletions are pending: a write helps until it has its space.
#[test]
fn a_write_frees_as_much_as_it_needs() {
    let site = Site::new(8);
    let v = site.volume("v", MIB, 4 * KIB);
    let names: Vec<String> = (0..400).map(|n| format!("s{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        write(&v, 0, n as u8, 4 * KIB);
        site.snap("v", name);
    }
    write(&v, 0, 0, 4 * KIB);
    site.idle();
    let w = site.volume("w", 16 * MIB, 4 * KIB);
    let left = site.pool.info().available;
    write(&w, 0, 1, left - left % (4 * KIB));
    site.pool.drain().unwrap();
    assert_eq!(try_write(&w, 8 * MIB, 1, MIB).unwrap_err(), ErrorKind::NoSpace);
    for some in names.chunks(100) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        site.pool.delete_snapshots("v", &some).unwrap();
    }
    // There is no background work in between.
    write(&w, 8 * MIB, 1, MIB + 256 * KIB);
}

/// The destager always has something to do, and deleted content is still freed.
#[test]
fn freeing_keeps_pace_with_destaging() {
    let site = Site::new(48).reopen_with(PoolOptions { destage_start_percent: 0, ..PoolOptions::default() });
    let v = site.volume("v", 8 * MIB, 64 * KIB);
    let mut most = 0;
    for round in 0..200u64 {
        for at in 0..8 {
            write(&v, at * MIB, round as u8, MIB);
            site.pool.maintain().unwrap();
        }
        site.snap("v", &format!("s{round}"));
        if round > 0 {
            site.pool.delete_snapshots("v", &[&format!("s{}", round - 1)]).unwrap();
        }
        most = most.max(site.pool.info().used);
    }
    // This covers the volume, a snapshot, and space on its way.
    assert!(most < 40 * MIB, "{} MiB were in use at most", most / MIB);
}

/// Writers never stop, and their history's anchors come and go: nearly the whole pool waits to be
/// freed.
#[test]
fn saturating_writers_are_not_refused_while_space_is_on_its_way() {
    let site = Site::new(48);
    let v = site.volume("v", 8 * MIB, 64 * KIB);
    let retention = Retention { time: None, bytes: Some(4 * MIB) };
    let settings = CdpSettings { anchors: AnchorPolicy::Every(64), retention, ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let background = {
        let (pool, over) = (site.pool.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if pool.maintain().unwrap() == Progress::Idle {
                    std::thread::yield_now();
                }
            }
        })
    };
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let v = v.clone();
            std::thread::spawn(move || {
                for n in 0..1500u64 {
                    let at = (n * 7 + writer * 31) % 128 * 64 * KIB;
                    try_write(&v, at, n as u8, 64 * KIB)?;
                }
                Ok(())
            })
        })
        .collect();
    let results: Vec<Result<(), ErrorKind>> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    over.store(true, Ordering::Relaxed);
    background.join().unwrap();
    for result in results {
        result.unwrap();
    }
}
