//! Labels, protection, and the space that snapshots may take.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::MemDir;
use hindcast_engine::pool::{
    Health, Method, Pool, PoolOptions, Progress, SnapshotPolicy, SnapshotSpace, Undo,
};
use hindcast_engine::testing::{KIB, MIB, Site, check, content, kind, new_volume, try_write, world, write};
use hindcast_engine::world::{Clock, Rng, SplitMix};
use std::sync::Arc;

fn open(dir: &Arc<MemDir>) -> Arc<Pool> {
    Pool::open(dir.clone(), world(1), PoolOptions::default()).unwrap()
}

/// Makes a pool with the volume `v` of 1 MiB.
fn create() -> (Arc<MemDir>, Arc<Pool>) {
    let site = Site::builder(7).journal(4 * MIB, 512 * KIB).build().having("v", MIB, 4 * KIB);
    (site.dir, site.pool)
}

#[test]
fn labels_and_protection_outlive_a_restart() {
    let (dir, pool) = create();
    pool.create_snapshots(&[("v", "s")]).unwrap();
    pool.label_snapshot("v", "s", &[("why", Some("upgrade")), ("by", Some("ann"))]).unwrap();
    pool.label_snapshot("v", "s", &[("by", None), ("why", Some("")), ("x", None)]).unwrap();
    let info = pool.protect_snapshot("v", "s", true).unwrap();
    assert!(info.protected && info.labels.into_iter().eq([("why".to_owned(), String::new())]));
    drop(pool);
    for from in ["the journal", "the catalog"] {
        let pool = open(&dir);
        let info = pool.snapshot("v", "s").unwrap();
        assert!(info.protected && info.labels.into_iter().eq([("why".to_owned(), String::new())]), "{from}");
        pool.drain().unwrap();
    }
}

#[test]
fn labels_have_limits() {
    let (_dir, pool) = create();
    pool.create_snapshots(&[("v", "s")]).unwrap();
    let long = "x".repeat(256);
    assert_eq!(kind(pool.label_snapshot("v", "s", &[("", Some("x"))])), ErrorKind::Invalid);
    assert_eq!(kind(pool.label_snapshot("v", "s", &[(&long[..64], Some("x"))])), ErrorKind::Invalid);
    assert_eq!(kind(pool.label_snapshot("v", "s", &[("x", Some(&long))])), ErrorKind::Invalid);
    let keys: Vec<String> = (0..17).map(|i| format!("{i}")).collect();
    let many: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("x"))).collect();
    assert_eq!(kind(pool.label_snapshot("v", "s", &many)), ErrorKind::Invalid);
    assert_eq!(pool.label_snapshot("v", "s", &many[..16]).unwrap().labels.len(), 16);
    assert_eq!(kind(pool.label_snapshot("v", "none", &[])), ErrorKind::NotFound);
}

#[test]
fn a_protected_snapshot_is_not_deleted() {
    let (_dir, pool) = create();
    pool.create_snapshots(&[("v", "s")]).unwrap();
    pool.create_snapshots(&[("v", "t")]).unwrap();
    pool.protect_snapshot("v", "s", true).unwrap();
    assert_eq!(kind(pool.delete_snapshots("v", &["t", "s"])), ErrorKind::Conflict);
    assert_eq!(pool.snapshots("v").unwrap().len(), 2, "all or nothing");
    assert_eq!(kind(pool.delete_volume("v", true)), ErrorKind::Conflict, "not even with its volume");
    pool.protect_snapshot("v", "s", false).unwrap();
    pool.delete_snapshots("v", &["t", "s"]).unwrap();
    pool.delete_volume("v", false).unwrap();
}

#[test]
fn a_policy_outlives_a_restart() {
    let (dir, pool) = create();
    assert_eq!(pool.volume("v").unwrap().policy, SnapshotPolicy { reserve_percent: 10, auto_delete: false });
    let policy = SnapshotPolicy { reserve_percent: 50, auto_delete: true };
    assert_eq!(pool.set_snapshot_policy("v", policy).unwrap().policy, policy);
    drop(pool);
    let pool = open(&dir);
    assert_eq!(pool.volume("v").unwrap().policy, policy, "from the journal");
    pool.drain().unwrap();
    drop(pool);
    let pool = open(&dir);
    assert_eq!(pool.volume("v").unwrap().policy, policy, "from the catalog");
    pool.create_snapshots(&[("v", "s")]).unwrap();
    pool.roll_back("v", "s", "undo", false).unwrap();
    assert_eq!(pool.volume("v").unwrap().policy, policy, "rolled back");
    drop(pool);
    assert_eq!(open(&dir).volume("v").unwrap().policy, policy);
}

fn put(
    pool: &Arc<Pool>,
    volume: &str,
    offset: u64,
    byte: u8,
    len: u64,
) -> std::result::Result<(), ErrorKind> {
    try_write(&pool.open_volume(volume, false).unwrap(), offset, byte, len)
}

/// Runs background work. Destage is lazy, and one deletion by policy follows another, so the work
/// is over when several checks found nothing.
fn idle(pool: &Pool) {
    let mut looks = 0;
    while looks < 4 {
        looks = if pool.maintain().unwrap() == Progress::Worked { 0 } else { looks + 1 };
    }
}

fn names(pool: &Pool, volume: &str) -> Vec<String> {
    pool.snapshots(volume).unwrap().into_iter().map(|s| s.name).collect()
}

/// Returns (name, unique, shared) of each snapshot, in chunks of 4 KiB.
fn space(pool: &Pool, volume: &str) -> Vec<(String, u64, u64)> {
    let usage = pool.space_usage(volume).unwrap();
    let of = |s: SnapshotSpace| (s.name, s.unique / (4 * KIB), s.shared / (4 * KIB));
    usage.of.into_iter().map(of).collect()
}

fn snap(pool: &Pool, name: &str) {
    pool.create_snapshots(&[("v", name)]).unwrap();
}

#[test]
fn space_is_told_apart() {
    for method in [Method::Redirect, Method::Copy] {
        let (dir, pool) = create();
        pool.set_method("v", method).unwrap();
        put(&pool, "v", 0, 1, 64 * KIB).unwrap();
        snap(&pool, "a");
        put(&pool, "v", 0, 2, 8 * KIB).unwrap();
        snap(&pool, "b");
        snap(&pool, "c");
        put(&pool, "v", 4 * KIB, 3, 8 * KIB).unwrap();
        idle(&pool);
        let owned = |list: &[(&str, u64, u64)]| -> Vec<(String, u64, u64)> {
            list.iter().map(|(name, unique, shared)| ((*name).to_owned(), *unique, *shared)).collect()
        };
        assert_eq!(space(&pool, "v"), owned(&[("a", 2, 14), ("b", 0, 16), ("c", 0, 16)]));
        let usage = pool.space_usage("v").unwrap();
        assert_eq!((usage.current, usage.snapshots, usage.reserve), (64 * KIB, 16 * KIB, MIB / 10));
        assert_eq!(pool.volume("v").unwrap().allocated, usage.current + usage.snapshots);
        pool.delete_snapshots("v", &["b"]).unwrap();
        idle(&pool);
        assert_eq!(space(&pool, "v"), owned(&[("a", 2, 14), ("c", 1, 15)]), "one of them is seen by a too");
        pool.roll_back("v", "a", "undo", false).unwrap();
        put(&pool, "v", 0, 4, 4 * KIB).unwrap();
        idle(&pool);
        assert_eq!(space(&pool, "v"), owned(&[("a", 2, 14), ("c", 1, 15), ("undo", 2, 14)]));
        let usage = pool.space_usage("v").unwrap();
        assert_eq!((usage.current, usage.snapshots), (4 * KIB, 80 * KIB));
        drop(pool);
        let report = check(dir.clone());
        assert!(report.is_clean(), "{:?}", report.findings);
        assert_eq!(open(&dir).space_usage("v").unwrap(), usage);
    }
}

/// A deletion gives back the space that is reported as unique.
#[test]
fn a_deletion_gives_back_what_was_unique() {
    for seed in 0..12 {
        let rng = SplitMix::new(seed);
        let (_dir, pool) = create();
        if seed % 2 == 0 {
            pool.set_method("v", Method::Copy).unwrap();
        }
        for step in 0..30u8 {
            for _ in 0..rng.next() % 6 {
                let offset = rng.next() % 64 * 4 * KIB;
                if rng.next() % 4 == 0 {
                    pool.open_volume("v", false).unwrap().discard(offset, 16 * KIB, false).unwrap();
                } else {
                    put(&pool, "v", offset, step, 12 * KIB).unwrap();
                }
            }
            match rng.next() % 5 {
                0 if !names(&pool, "v").is_empty() => {
                    let to = names(&pool, "v")[0].clone();
                    pool.roll_back("v", &to, &format!("u{step}"), false).unwrap();
                }
                _ => snap(&pool, &format!("s{step}")),
            }
        }
        idle(&pool);
        while let Some((name, unique, _)) = {
            let all = space(&pool, "v");
            let free = |(name, ..): &&(String, u64, u64)| !pool.snapshot("v", name).unwrap().pinned;
            let free: Vec<_> = all.iter().filter(free).cloned().collect();
            (!free.is_empty()).then(|| free[rng.next() as usize % free.len()].clone())
        } {
            let before = pool.info().used;
            pool.delete_snapshots("v", &[&name]).unwrap();
            idle(&pool);
            assert_eq!(before - pool.info().used, unique * 4 * KIB, "seed {seed}, {name}");
        }
    }
}

#[test]
fn more_than_the_reserve_is_a_warning() {
    let (_dir, pool) = create();
    put(&pool, "v", 0, 1, MIB / 2).unwrap();
    snap(&pool, "a");
    put(&pool, "v", 0, 2, 100 * KIB).unwrap();
    idle(&pool);
    assert_eq!((pool.health(), pool.over_reserve().len()), (Health::Healthy, 0));
    put(&pool, "v", 100 * KIB, 2, 4 * KIB).unwrap();
    idle(&pool);
    assert_eq!(pool.over_reserve(), [("v".to_owned(), 104 * KIB, MIB / 10)]);
    assert!(matches!(pool.health(), Health::Warning(texts) if texts[0].code == "reserve-exceeded"));
    assert_eq!(names(&pool, "v"), ["a"], "a warning only");
}

#[test]
fn the_oldest_that_can_go_is_deleted_by_policy() {
    let (_dir, pool) = create();
    put(&pool, "v", 0, 1, MIB / 2).unwrap();
    for (name, byte) in [("a", 2), ("b", 3), ("c", 4), ("d", 5), ("e", 6)] {
        snap(&pool, name);
        put(&pool, "v", 0, byte, 80 * KIB).unwrap();
    }
    pool.protect_snapshot("v", "a", true).unwrap();
    pool.clone_volume("v", "b", "clone").unwrap();
    idle(&pool);
    assert_eq!(names(&pool, "v").len(), 5, "off by default");
    // 400 KiB are taken, and 250 KiB are allowed. Two snapshots have to be deleted, except those
    // that must stay or can't be deleted.
    let policy = SnapshotPolicy { reserve_percent: 25, auto_delete: true };
    pool.set_snapshot_policy("v", policy).unwrap();
    idle(&pool);
    assert_eq!(names(&pool, "v"), ["a", "b", "e"]);
    assert_eq!(pool.stats().snapshots_auto_deleted, 2);
    assert_eq!(pool.over_reserve(), []);
}

#[test]
fn a_full_pool_keeps_its_snapshots_and_policy_makes_room() {
    let (_dir, pool) = create();
    pool.create_volume(&new_volume("w", 7 * MIB, 4 * KIB)).unwrap();
    put(&pool, "v", 0, 1, MIB).unwrap();
    snap(&pool, "a");
    put(&pool, "v", 0, 2, MIB).unwrap();
    idle(&pool);
    let mut refused = 0;
    for at in 0..7 * 16 {
        refused += u32::from(put(&pool, "w", at * 64 * KIB, 3, 64 * KIB).is_err());
    }
    idle(&pool);
    assert!(refused > 0, "the pool is full");
    let mut content = vec![0; MIB as usize];
    pool.open_snapshot("v", "a").unwrap().read(0, &mut content).unwrap();
    assert!(content.iter().all(|b| *b == 1));
    pool.set_snapshot_policy("v", SnapshotPolicy { reserve_percent: 200, auto_delete: true }).unwrap();
    idle(&pool);
    assert!(names(&pool, "v").is_empty(), "within its reserve, but space is low");
    put(&pool, "w", 6 * MIB, 3, 512 * KIB).unwrap();
}

/// The snapshot of a rollback expires in time: by pool time, and not while something keeps it.
#[test]
fn what_a_rollback_kept_has_an_age() {
    const HOUR: u64 = 3_600_000_000_000;
    let site = Site::new(16);
    let v = site.volume("v", MIB, 4 * KIB);
    write(&v, 0, 1, MIB);
    site.snap("v", "clean");
    drop(v);
    let names = |site: &Site| names(&site.pool, "v");
    let reset = |site: &Site, night: u64| {
        let v = site.pool.open_volume("v", false).unwrap();
        write(&v, 0, night as u8 + 2, MIB);
        drop(v);
        let name = format!("night{night}");
        let undo = Undo { name: &name, keep: Some(3 * 24 * HOUR) };
        let made = site.pool.roll_back("v", "clean", undo, false).unwrap();
        // Records of one instant have times that grow, by a nanosecond each.
        let left = made.expires.unwrap() - site.clock.now();
        assert!((3 * 24 * HOUR..3 * 24 * HOUR + 1_000).contains(&left), "{left}");
    };
    for night in 0..20 {
        reset(&site, night);
        site.clock.advance(24 * HOUR + 1_000);
        site.idle();
        assert!(names(&site).len() <= 4 && site.pool.info().used <= 5 * MIB, "{:?}", names(&site));
    }
    assert_eq!(names(&site), ["clean", "night18", "night19"]);
    // Without an age the snapshot stays. Across a restart the age remains valid.
    site.pool.roll_back("v", "clean", "kept", false).unwrap();
    let site = site.reopen();
    site.pool.protect_snapshot("v", "night18", true).unwrap();
    let used = site.pool.open_snapshot("v", "night19").unwrap();
    site.clock.advance(10 * 24 * HOUR);
    site.idle();
    assert_eq!(names(&site), ["clean", "night18", "night19", "kept"], "protected, in use, without an age");
    drop(used);
    site.pool.rename_snapshot("v", "night18", "eighteen").unwrap();
    site.idle();
    assert_eq!(names(&site), ["clean", "eighteen", "kept"]);
    site.pool.protect_snapshot("v", "eighteen", false).unwrap();
    site.idle();
    assert_eq!(names(&site), ["clean", "kept"]);
    // A clock that is set far ahead makes no snapshot expire.
    reset(&site, 21);
    site.clock.set(site.clock.now() + 365 * 24 * HOUR);
    site.idle();
    assert_eq!(names(&site), ["clean", "kept", "night21"]);
}

#[test]
fn what_a_recovery_in_place_kept_has_an_age() {
    let site = Site::new(16);
    let v = site.volume("v", MIB, 4 * KIB);
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    write(&v, 0, 1, MIB);
    let then = site.pool.stats().sequenced_lsn;
    write(&v, 0, 2, MIB);
    drop(v);
    let undo = Undo { name: "undo", keep: Some(1_000_000) };
    site.pool.roll_back_to(&[("v", undo)], &Moment::Lsn(then), false).unwrap();
    site.idle();
    assert_eq!(names(&site.pool, "v"), ["undo"]);
    site.clock.advance(2_000_000);
    site.idle();
    assert!(names(&site.pool, "v").is_empty());
    let v = site.pool.open_volume("v", true).unwrap();
    assert!(content(&v).iter().all(|b| *b == 1));
}
