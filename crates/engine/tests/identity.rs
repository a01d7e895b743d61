//! Data directories and physical volumes that were copied, restored or used elsewhere. Parts that
//! do not belong together are refused, whichever side is the older one.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::check::CheckOptions;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, FileDir, MemDir, OpenMode};
use hindcast_engine::pool::{Health, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec, code};
use hindcast_engine::testing::*;
use hindcast_engine::world::{Clock, ManualClock, SplitMix, World};
use hindcast_engine::{ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn config() -> PoolConfig {
    PoolConfig { extent_size: 64 * KIB, journal_size: 4 * MIB, segment_size: 256 * KIB, atomic_unit: 4096 }
}

fn open_mem(dir: &MemDir, seed: u64) -> Result<Arc<Pool>> {
    Pool::open(Arc::new(dir.clone()), world(seed), PoolOptions::default())
}

/// Makes a closed pool in memory with a volume `v` that has only `byte`.
fn mem_pool(byte: u8) -> MemDir {
    let site = Site::builder(15).journal(4 * MIB, 256 * KIB).build().having("v", MIB, 4096);
    fill(&site.pool, "v", byte);
    site.pool.close().unwrap();
    (*site.kill()).clone()
}

fn create(pool: &Pool, name: &str) {
    pool.create_volume(&new_volume(name, MIB, 4096)).unwrap();
}

fn fill(pool: &Arc<Pool>, name: &str, byte: u8) {
    write(&pool.open_volume(name, false).unwrap(), 0, byte, MIB);
    pool.drain().unwrap();
}

/// Returns a copy of `older` with the physical volume of `dir`.
fn restore_directory(dir: &MemDir, older: &MemDir) -> MemDir {
    let restored = older.copy();
    restored.take_from(dir, "pv-0.img");
    restored
}

fn restore_pv(dir: &MemDir, older: &MemDir) -> MemDir {
    let restored = dir.copy();
    restored.take_from(older, "pv-0.img");
    restored
}

fn assert_refused(dir: &MemDir, what: &str) {
    let before = content_of(dir, "pv-0.img");
    let error = open_mem(dir, 3).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains(what), "{error}");
    let report = check(Arc::new(dir.clone()));
    let finding = report.findings.iter().find(|f| f.code == "pv-age").unwrap();
    assert!(finding.detail.contains(what), "{finding:?}");
    assert!(!report.is_clean());
    // The second attempt: nothing has changed by the first refusal.
    assert!(open_mem(dir, 3).is_err());
    assert!(content_of(dir, "pv-0.img") == before);
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Makes a pool on the file system whose physical volume lies outside its data directory.
fn file_pool(root: &Path) -> (PathBuf, Arc<Pool>) {
    let (one, pv) = (root.join("one"), root.join("pv.img"));
    let dir: Arc<dyn Dir> = Arc::new(FileDir::create(&one).unwrap());
    let spec = PvSpec { path: pv.to_str().unwrap().into(), size: Some(16 * MIB), force: false };
    Pool::create(dir, &world(1), &config(), Placement::Anywhere, &[spec]).unwrap();
    let pool = open_file(&one).unwrap();
    create(&pool, "v");
    fill(&pool, "v", 1);
    (one, pool)
}

fn open_file(path: &Path) -> Result<Arc<Pool>> {
    Pool::open(Arc::new(FileDir::new(path)), world(1), PoolOptions::default())
}

#[test]
fn a_copied_directory_does_not_open_beside_the_original() {
    let tmp = tempfile::tempdir().unwrap();
    let (one, pool) = file_pool(tmp.path());
    let two = tmp.path().join("two");
    copy_directory(&one, &two);
    let error = open_file(&two).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    // Another name of the same physical volume does not help either.
    let copy: Arc<dyn Dir> = Arc::new(FileDir::new(&two));
    assert_eq!(
        Pool::open_read_only(copy.clone(), world(1), PoolOptions::default()).map(drop).unwrap_err().kind(),
        ErrorKind::Busy
    );
    let report = check(copy);
    assert!(!report.is_clean());
    pool.close().unwrap();
    drop(pool);
    // The copy is older than the state that the close left.
    assert_eq!(open_file(&two).map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    // A copy of the closed pool is of the same time, and opens. From then on the original is the
    // older one.
    std::fs::remove_dir_all(&two).unwrap();
    copy_directory(&one, &two);
    drop(open_file(&two).unwrap());
    let error = open_file(&one).map(drop).unwrap_err();
    assert!(error.to_string().contains("this data directory is older"), "{error}");
}

#[test]
fn a_removed_lock_file_lets_nobody_in() {
    let tmp = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(FileDir::create(tmp.path()).unwrap());
    let spec = PvSpec { path: "pv-0.img".into(), size: Some(16 * MIB), force: false };
    Pool::create(dir.clone(), &world(1), &config(), Placement::Anywhere, &[spec]).unwrap();
    let _pool = open_file(tmp.path()).unwrap();
    std::fs::remove_file(tmp.path().join("pool.lock")).unwrap();
    assert_eq!(open_file(tmp.path()).map(drop).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(
        hindcast_engine::check::check(dir, &CheckOptions::default(), &mut |_, _| {})
            .map(drop)
            .unwrap_err()
            .kind(),
        ErrorKind::Busy
    );
}

#[test]
fn a_restored_directory_is_refused() {
    let dir = mem_pool(1);
    let older = dir.copy();
    // The pool stays in use: `v` is deleted, and another volume takes its space.
    let pool = open_mem(&dir, 4).unwrap();
    pool.delete_volume("v", true).unwrap();
    idle(&pool);
    create(&pool, "x");
    fill(&pool, "x", 7);
    pool.close().unwrap();
    drop(pool);
    assert_refused(
        &restore_directory(&dir, &older),
        "this data directory is older than its physical volumes",
    );
    drop(open_mem(&dir, 5).unwrap());
}

#[test]
fn a_restored_physical_volume_is_refused() {
    let dir = mem_pool(1);
    let older = dir.copy();
    let pool = open_mem(&dir, 4).unwrap();
    fill(&pool, "v", 2);
    pool.close().unwrap();
    drop(pool);
    assert_refused(&restore_pv(&dir, &older), "is older than this data directory");
}

#[test]
fn what_was_restored_within_one_run_is_refused() {
    let dir = mem_pool(1);
    let clock = Arc::new(ManualClock::new(1 << 40));
    let world = World { clock: clock.clone(), rng: Arc::new(SplitMix::new(9)) };
    let pool = Pool::open(Arc::new(dir.clone()), world, PoolOptions::default()).unwrap();
    fill(&pool, "v", 2);
    let older = dir.copy();
    // One commit issues the stamp, a step writes it, and the next commit notes it.
    for byte in 3..6 {
        clock.advance(61_000_000_000);
        assert!(clock.now() > 0);
        fill(&pool, "v", byte);
        while pool.maintain().unwrap() == Progress::Worked {}
    }
    drop(pool);
    assert_refused(&restore_directory(&dir, &older), "within one run");
    assert_refused(&restore_pv(&dir, &older), "within one run");
    drop(open_mem(&dir, 5).unwrap());
}

#[test]
fn copies_that_went_on_apart_do_not_mix() {
    let one = mem_pool(1);
    let two = one.copy();
    for (dir, seed) in [(&one, 10), (&two, 11)] {
        let pool = open_mem(dir, seed).unwrap();
        fill(&pool, "v", seed as u8);
        pool.close().unwrap();
    }
    assert_refused(&restore_directory(&one, &two), "were used apart");
    assert_refused(&restore_directory(&two, &one), "were used apart");
}

#[test]
fn opened_by_force_everything_stays_as_it_is() {
    let dir = mem_pool(1);
    let older = dir.copy();
    let pool = open_mem(&dir, 4).unwrap();
    create(&pool, "x");
    fill(&pool, "x", 7);
    drop(pool);
    let stale = restore_directory(&dir, &older);
    let before: Vec<_> = stale.list().unwrap().into_iter().map(|n| (content_of(&stale, &n), n)).collect();
    let options = PoolOptions::default();
    let pool = Pool::open_read_only(Arc::new(stale.clone()), world(5), options).unwrap();
    match pool.health() {
        Health::Poisoned(why) => {
            assert!(why.contains("read-only") && why.contains("older than its physical volumes"), "{why}");
        }
        health => panic!("{health:?}"),
    }
    assert_eq!(pool.volumes().len(), 1, "what the older directory knows");
    let v = pool.open_volume("v", false).unwrap();
    assert!(content(&v).iter().all(|b| *b == 1));
    let mut ops = [hindcast_engine::device::WriteOp::new(0, vec![9; 4096].into())];
    v.write(&mut ops, false);
    assert!(ops[0].result.is_err() && v.flush().is_err());
    assert!(pool.maintain().is_err() && pool.delete_volume("v", true).is_err());
    assert_eq!(pool.backup_metadata(&stale, 3).unwrap_err().kind(), ErrorKind::ReadOnly);
    drop((v, pool));
    let after: Vec<_> = stale.list().unwrap().into_iter().map(|n| (content_of(&stale, &n), n)).collect();
    assert!(before == after);
}

/// Records that wait in the journal, and a batch that was cut short, are recovered in memory.
#[test]
fn opened_by_force_the_journal_counts() {
    let dir = mem_pool(1);
    let pool = open_mem(&dir, 4).unwrap();
    write(&pool.open_volume("v", false).unwrap(), 4096, 5, 4096);
    drop(pool);
    let before = content_of(&dir, "pv-0.img");
    let pool = Pool::open_read_only(Arc::new(dir.clone()), world(5), PoolOptions::default()).unwrap();
    let seen = content(&pool.open_volume("v", true).unwrap());
    assert!(seen[..4096].iter().all(|b| *b == 1) && seen[4096..8192].iter().all(|b| *b == 5));
    drop(pool);
    assert!(content_of(&dir, "pv-0.img") == before);
    let pool = open_mem(&dir, 6).unwrap();
    let seen = content(&pool.open_volume("v", true).unwrap());
    assert!(seen[4096..8192].iter().all(|b| *b == 5));
}

#[test]
fn a_damaged_stamp_is_reported_and_replaced() {
    let dir = mem_pool(1);
    let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    for place in [4096, 8192] {
        disk.write_at(&[0xEE; 100], place + 20).unwrap();
    }
    let report = check(Arc::new(dir.clone()));
    assert_eq!(report.findings.iter().map(|f| f.code).collect::<Vec<_>>(), ["pv-age"]);
    let pool = open_mem(&dir, 4).unwrap();
    assert!(pool.health().has(code::PV_STAMP), "{:?}", pool.health());
    fill(&pool, "v", 2);
    pool.close().unwrap();
    drop(pool);
    let pool = open_mem(&dir, 5).unwrap();
    assert_eq!(pool.health(), Health::Healthy);
    drop(pool);
    // A physical volume without any stamp that the catalog knows is of an older time.
    disk.write_at(&[0; 8192], 4096).unwrap();
    assert_refused(&dir, "is older than this data directory");
}

#[test]
fn a_physical_volume_that_leaves_is_blank() {
    let dir = mem_pool(1);
    let pool = open_mem(&dir, 4).unwrap();
    let spec = PvSpec { path: "pv-1.img".into(), size: Some(4 * MIB), force: false };
    for _ in 0..2 {
        pool.add_pv(&spec).unwrap();
        assert!(content_of(&dir, "pv-1.img")[4096..8192].starts_with(b"HINDSTMP"));
        pool.remove_pv("pv-1.img").unwrap();
        assert!(content_of(&dir, "pv-1.img").iter().all(|b| *b == 0));
    }
    // A physical volume that is in use is reported as such.
    let again = PvSpec { path: "pv-0.img".into(), size: None, force: true };
    assert_eq!(pool.add_pv(&again).unwrap_err().kind(), ErrorKind::Conflict);
    let clean = check_after(pool, &dir);
    assert!(clean.is_clean(), "{:?}", clean.findings);
}

fn check_after(pool: Arc<Pool>, dir: &MemDir) -> hindcast_engine::check::CheckReport {
    pool.close().unwrap();
    drop(pool);
    check(Arc::new(dir.clone()))
}

#[test]
fn many_physical_volumes_are_stamped_side_by_side() {
    let dir = mem_pool(1);
    let pool = open_mem(&dir, 4).unwrap();
    for n in 1..40 {
        pool.add_pv(&PvSpec { path: format!("pv-{n}.img"), size: Some(2 * MIB), force: false }).unwrap();
    }
    pool.close().unwrap();
    drop(pool);
    let older = dir.copy();
    drop(open_mem(&dir, 5).unwrap());
    for n in 0..40 {
        let mixed = older.copy();
        mixed.take_from(&dir, &format!("pv-{n}.img"));
        assert_eq!(open_mem(&mixed, 6).map(drop).unwrap_err().kind(), ErrorKind::Conflict, "pv {n}");
    }
}

/// A disk that writes more as a whole than the pool's atomic unit is not added. If a pool was moved
/// to such a disk, it is reported.
#[test]
fn blocks_of_the_disk_are_not_larger_than_the_atomic_unit() {
    let dir = MemDir::new();
    let config = PoolConfig { atomic_unit: 512, ..config() };
    let pv = |n| PvSpec { path: format!("pv-{n}.img"), size: Some(16 * MIB), force: false };
    let create = |unit| {
        let config = PoolConfig { atomic_unit: unit, ..config };
        Pool::create(Arc::new(dir.clone()), &world(1), &config, Placement::Anywhere, &[pv(0)])
    };
    dir.set_physical_block(4096);
    let refused = create(512).unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("4096"), "{refused}");
    dir.set_physical_block(512);
    create(512).unwrap();
    let pool = open_mem(&dir, 2).unwrap();
    assert_eq!(pool.health(), Health::Healthy);
    dir.set_physical_block(4096);
    assert_eq!(pool.add_pv(&pv(1)).unwrap_err().kind(), ErrorKind::Invalid);
    drop(pool);
    let pool = open_mem(&dir, 3).unwrap();
    assert!(pool.health().has(code::BLOCKS_LARGE), "{:?}", pool.health());
}

/// The last stamp is that of the close: even a copy from within the stamp interval is detected.
#[test]
fn what_was_copied_right_before_a_close_is_older_than_what_is_left() {
    let dir = mem_pool(1);
    let pool = open_mem(&dir, 3).unwrap();
    let copied = dir.copy();
    fill(&pool, "v", 2);
    pool.close().unwrap();
    drop(pool);
    let refused = open_mem(&restore_directory(&dir, &copied), 4).map(drop).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("older"), "{refused}");
    let refused = open_mem(&restore_pv(&dir, &copied), 4).map(drop).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("older"), "{refused}");
    open_mem(&dir, 5).unwrap();
}
