//! Backups are whole, rotate, lie on physical volumes too, and restore a closed pool's catalog.

use super::*;
use crate::check::{CheckOptions, check};
use crate::device::{BlockDevice, WriteOp};
use crate::disk::MemDir;
use crate::error::ErrorKind;
use crate::settings::{PoolOptions, PvSpec};
use crate::testing::{Site, world};
use bytes::Bytes;

/// A pool with two physical volumes, and a volume with a snapshot.
fn pool() -> (Arc<MemDir>, Arc<Pool>) {
    let pvs = [("pv-0.img", 2 << 20), ("pv-1.img", 2 << 20)];
    let site = Site::builder(0).journal(4 << 20, 1 << 20).pvs(&pvs).build().having("a", 1 << 20, 4096);
    let Site { dir, pool, .. } = site;
    write(&pool, 1);
    pool.drain().unwrap();
    pool.create_snapshots(&[("a", "s")]).unwrap();
    write(&pool, 2);
    (dir, pool)
}

fn open_pool(dir: &Arc<MemDir>) -> Arc<Pool> {
    Pool::open(dir.clone(), world(1), PoolOptions::default()).unwrap()
}

fn write(pool: &Arc<Pool>, byte: u8) {
    let mut ops = [WriteOp::new(0, Bytes::from(vec![byte; 64 << 10]))];
    pool.open_volume("a", false).unwrap().write(&mut ops, true);
    assert!(ops[0].result.is_ok());
}

fn shows(pool: &Arc<Pool>) -> (u8, u8) {
    let (mut now, mut then) = ([0; 512], [0; 512]);
    pool.open_volume("a", false).unwrap().read(4096, &mut now).unwrap();
    pool.open_snapshot("a", "s").unwrap().read(4096, &mut then).unwrap();
    (now[0], then[0])
}

fn backups(dir: &MemDir) -> Vec<String> {
    dir.list().unwrap().into_iter().filter(|name| sequence_of(name).is_some()).collect()
}

#[test]
fn a_closed_pools_catalog_comes_back_from_each_copy() {
    for from in ["metadata-0000000002.backup", "pv-0.img", "pv-1.img"] {
        let (dir, pool) = pool();
        let open = pool.backup_metadata(&*dir, 3).unwrap();
        assert_eq!((open.sequence, open.closed, open.pvs), (1, false, 2));
        pool.close().unwrap();
        let closed = pool.backup_metadata(&*dir, 3).unwrap();
        assert!(closed.closed && closed.sequence == 2 && closed.rows > 5, "{closed:?}");
        drop(pool);
        let catalog = dir.open(crate::catalog::FILE, OpenMode::Existing).unwrap();
        catalog.write_at(&vec![0x5A; catalog.len().unwrap() as usize], 0).unwrap();
        assert!(Pool::open(dir.clone(), world(1), PoolOptions::default()).is_err());

        let found = find(&*dir, from).unwrap();
        assert_eq!((found.info.sequence, found.info.rows), (2, closed.rows), "{from}");
        let restored = restore(&*dir, &found).unwrap();
        assert_eq!(restored.kept.as_deref(), Some("catalog.redb.old-1"));
        assert!(check(dir.clone(), &CheckOptions::default(), &mut |_, _| {}).unwrap().findings.is_empty());
        let pool = open_pool(&dir);
        assert_eq!(shows(&pool), (2, 1));
        write(&pool, 3);
        pool.drain().unwrap();
        assert_eq!(shows(&pool), (3, 1));
    }
}

#[test]
fn a_backup_of_an_open_pool_is_not_restored() {
    let (dir, pool) = pool();
    pool.backup_metadata(&*dir, 3).unwrap();
    let found = find(&*dir, "pv-0.img").unwrap();
    assert_eq!(restore(&*dir, &found).unwrap_err().kind(), ErrorKind::Busy);
    drop(pool);
    assert_eq!(restore(&*dir, &found).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(shows(&open_pool(&dir)), (2, 1), "nothing was touched");
}

#[test]
fn a_backup_from_before_the_last_opening_is_not_restored() {
    let (dir, pool) = pool();
    pool.close().unwrap();
    pool.backup_metadata(&*dir, 3).unwrap();
    drop(pool);
    let pool = open_pool(&dir);
    write(&pool, 3);
    drop(pool);
    let found = find(&*dir, "pv-0.img").unwrap();
    assert!(found.info.closed);
    let refused = restore(&*dir, &found).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(shows(&open_pool(&dir)), (3, 1), "nothing was touched");
}

#[test]
fn old_files_go_and_a_torn_copy_leaves_the_one_before() {
    let (dir, pool) = pool();
    for n in 1..=5 {
        assert_eq!(pool.backup_metadata(&*dir, 3).unwrap().sequence, n);
    }
    let kept = backups(&dir);
    assert_eq!(kept, [3, 4, 5].map(places::file_name));
    // The sequence continues when the files are gone: physical volumes have it.
    kept.iter().for_each(|name| dir.remove(name).unwrap());
    assert_eq!(pool.backup_metadata(&*dir, 1).unwrap().sequence, 6);
    let disk = dir.open("pv-1.img", OpenMode::Existing).unwrap();
    let newest = find(&*dir, "pv-1.img").unwrap();
    assert_eq!(newest.info.sequence, 6);
    let mut byte = [0];
    let at = newest.at + HEADER_LEN as u64 + 10;
    disk.read_at(&mut byte, at).unwrap();
    disk.write_at(&[byte[0] ^ 1], at).unwrap();
    assert_eq!(find(&*dir, "pv-1.img").unwrap().info.sequence, 5);
    disk.write_at(&[0; 1], crate::space::label::SLOTS_START + places::SLOT_LEN + 8).unwrap();
    disk.write_at(&[0; 1], crate::space::label::SLOTS_START + 8).unwrap();
    assert!(find(&*dir, "pv-1.img").is_err_and(|e| e.kind() == ErrorKind::Corrupt));
    let other = find(&*dir, "pv-0.img").unwrap();
    assert_eq!(other.info.sequence, 6, "the other physical volume has it");
}

#[test]
fn a_physical_volume_that_leaves_takes_no_backup_along() {
    let (dir, pool) = pool();
    pool.backup_metadata(&*dir, 3).unwrap();
    pool.drain_pv("pv-1.img", true).unwrap();
    for _ in 0..50 {
        pool.maintain().unwrap();
    }
    pool.remove_pv("pv-1.img").unwrap();
    assert!(find(&*dir, "pv-1.img").is_err());
    // The physical volume is blank again: it can be added without force.
    pool.add_pv(&PvSpec { path: "pv-1.img".into(), size: None, force: false }).unwrap();
}

/// A backup restores what was in place. What was only in a journal that is lost, too, is named.
#[test]
fn a_data_directory_that_is_lost_comes_back_as_far_as_it_was_in_place() {
    for drained in [true, false] {
        let (dir, pool) = pool();
        if drained {
            pool.drain().unwrap();
        }
        pool.close().unwrap();
        pool.backup_metadata(&*dir, 3).unwrap();
        drop(pool);
        let pv = |name: &str| name.starts_with("pv-");
        dir.list().unwrap().iter().filter(|name| !pv(name)).for_each(|name| dir.remove(name).unwrap());
        restore(&*dir, &find(&*dir, "pv-1.img").unwrap()).unwrap();
        let refused = Pool::open(dir.clone(), world(1), PoolOptions::default());
        let pool = match refused {
            Ok(pool) if drained => pool,
            Ok(_) => panic!("acknowledged writes are gone, and nobody says so"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                let options = PoolOptions { accept_journal_loss: true, ..PoolOptions::default() };
                Pool::open(dir.clone(), world(1), options).unwrap()
            }
        };
        if drained {
            assert_eq!(shows(&pool), (2, 1));
        }
        write(&pool, 3);
        pool.drain().unwrap();
        drop(pool);
        assert!(check(dir.clone(), &CheckOptions::default(), &mut |_, _| {}).unwrap().findings.is_empty());
    }
}

/// The stamps of physical volumes reveal what the journal does not: the pool was opened since then.
#[test]
fn an_opening_without_a_write_makes_a_backup_an_older_one() {
    let (dir, pool) = pool();
    pool.close().unwrap();
    pool.backup_metadata(&*dir, 3).unwrap();
    drop(pool);
    drop(open_pool(&dir));
    let found = find(&*dir, "pv-0.img").unwrap();
    assert!(found.info.closed);
    if restore(&*dir, &found).is_ok() {
        let refused = Pool::open(dir.clone(), world(1), PoolOptions::default()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().contains("older"), "{refused}");
    }
}

/// A sync that fails makes the system forget what else was dirty, and the error of a backup is
/// reported to no write. If data of a batch were among it, the batch's own sync would succeed
/// without them.
#[test]
fn physical_volumes_get_their_copy_between_batches() {
    let (dir, pool) = pool();
    let slots = |dir: &MemDir| {
        let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
        places::headers_on(&*disk, pool.info().uuid).len()
    };
    let amid_a_batch = pool.destager.state.lock();
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| pool.backup_metadata(&*dir, 3).unwrap());
        while backups(&dir).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(slots(&dir), 0);
        drop(amid_a_batch);
        assert_eq!(backup.join().unwrap().pvs, 2);
    });
    assert_eq!(slots(&dir), 1);
}
