//! Labels, protection, and what snapshots may take.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::disk::MemDir;
use hindcast_engine::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec, SnapshotPolicy};
use hindcast_engine::world::{ManualClock, SplitMix, World};
use hindcast_engine::{ErrorKind, Result};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn world() -> World {
    World { clock: Arc::new(ManualClock::new(1)), rng: Arc::new(SplitMix::new(1)) }
}

fn open(dir: &Arc<MemDir>) -> Arc<Pool> {
    Pool::open(dir.clone(), world(), PoolOptions::default()).unwrap()
}

/// A pool with the volume `v` of 1 MiB.
fn create() -> (Arc<MemDir>, Arc<Pool>) {
    let dir = Arc::new(MemDir::new());
    let config = PoolConfig {
        extent_size: 64 * KIB,
        journal_size: 4 * MIB,
        segment_size: 512 * KIB,
        atomic_unit: 4096,
    };
    let pv = PvSpec { path: "pv-0.img".into(), size: Some(8 * MIB), force: false };
    Pool::create(dir.clone(), &world(), &config, Placement::Anywhere, &[pv]).unwrap();
    let pool = open(&dir);
    let new =
        NewVolume { name: "v".into(), size: MIB, chunk_size: 4 * KIB, block_size: 512, read_only: false };
    pool.create_volume(&new).unwrap();
    (dir, pool)
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
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
