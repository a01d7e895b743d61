//! The behaviour of a pool through its public interface, on an in-memory directory.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir};
use hindcast_engine::pool::{Health, NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec};
use hindcast_engine::testing::{self, KIB, MIB, Site, assert_bytes, try_write, world, write};
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

fn options() -> PoolOptions {
    PoolOptions { destage_threads: 2, ..PoolOptions::default() }
}

fn config() -> PoolConfig {
    PoolConfig { extent_size: 64 * KIB, journal_size: 4 * MIB, segment_size: 512 * KIB, atomic_unit: 4096 }
}

fn pv(path: &str, extents: u64) -> PvSpec {
    testing::pv(path, MIB + extents * 64 * KIB)
}

fn site(extents: u64) -> Site {
    let pv = ("pv-0.img", MIB + extents * 64 * KIB);
    Site::builder(0).time(1 << 60).journal(4 * MIB, 512 * KIB).pvs(&[pv]).options(options()).build()
}

#[test]
fn a_write_is_read_back_staged_destaged_and_reopened() {
    let f = site(64);
    let v = f.volume("a", 3 * MIB, 16 * KIB);
    assert_bytes(&v, 0, 0, 3 * MIB);
    write(&v, 5 * 512, 7, 40 * KIB);
    write(&v, 8 * KIB, 9, 512);
    let check = |v: &Volume| {
        assert_bytes(v, 0, 0, 5 * 512);
        assert_bytes(v, 5 * 512, 7, 8 * KIB - 5 * 512);
        assert_bytes(v, 8 * KIB, 9, 512);
        assert_bytes(v, 8 * KIB + 512, 7, 32 * KIB);
        assert_bytes(v, 40 * KIB + 5 * 512, 0, MIB);
    };
    check(&v);
    f.pool.drain().unwrap();
    assert_eq!(f.pool.stats().staged_pieces, 0);
    assert_eq!(f.pool.volume("a").unwrap().allocated, 3 * 16 * KIB);
    check(&v);
    write(&v, 8 * KIB, 10, 512);
    write(&v, 8 * KIB, 9, 512);
    drop(v);
    let f = f.reopen();
    let v = f.pool.open_volume("a", false).unwrap();
    check(&v);
    f.idle();
    check(&v);
    f.pool.close().unwrap();
    assert_eq!(try_write(&v, 0, 1, 512), Err(ErrorKind::Poisoned), "closed");
}

#[test]
fn discards_free_chunks_and_zero_parts() {
    let f = site(64);
    let v = f.volume("a", 2 * MIB, 16 * KIB);
    write(&v, 0, 1, MIB);
    f.pool.drain().unwrap();
    let before = f.pool.info();
    v.discard(8 * KIB, 64 * KIB, false).unwrap();
    let check = |v: &Volume| {
        assert_bytes(v, 0, 1, 8 * KIB);
        assert_bytes(v, 8 * KIB, 0, 64 * KIB);
        assert_bytes(v, 72 * KIB, 1, MIB - 72 * KIB);
    };
    check(&v);
    f.idle();
    check(&v);
    assert_eq!(f.pool.volume("a").unwrap().allocated, MIB - 48 * KIB);
    write(&v, 16 * KIB, 5, 512);
    f.idle();
    assert_bytes(&v, 16 * KIB + 512, 0, 512);
    v.write_zeroes(0, 2 * MIB, true, true).unwrap();
    f.idle();
    f.idle();
    assert_eq!(f.pool.volume("a").unwrap().allocated, 0);
    assert!(f.pool.info().available > before.available);
    assert_eq!(f.pool.info().used, 0);
}

#[test]
fn zeroing_that_keeps_space_allocates() {
    let f = site(64);
    let v = f.volume("a", 2 * MIB, 16 * KIB);
    v.write_zeroes(16 * KIB, 32 * KIB, false, false).unwrap();
    assert_eq!(f.pool.info().reserved, 32 * KIB);
    f.pool.drain().unwrap();
    assert_eq!(f.pool.volume("a").unwrap().allocated, 32 * KIB);
    assert_bytes(&v, 0, 0, 2 * MIB);
}

#[test]
fn status_tells_data_from_holes() {
    let f = site(64);
    let v = f.volume("a", 2 * MIB, 16 * KIB);
    write(&v, 64 * KIB, 1, 16 * KIB);
    let shape = |v: &Volume| -> Vec<(u64, bool, bool)> {
        let runs = v.block_status(0, 2 * MIB, 10).unwrap();
        runs.iter().map(|r| (r.length, r.allocated, r.zero)).collect()
    };
    let expected = vec![(64 * KIB, false, true), (16 * KIB, true, false), (2 * MIB - 80 * KIB, false, true)];
    assert_eq!(shape(&v), expected);
    f.pool.drain().unwrap();
    assert_eq!(shape(&v), expected);
    assert_eq!(v.block_status(70 * KIB, MIB, 1).unwrap()[0].length, 10 * KIB);
    v.discard(0, 2 * MIB, false).unwrap();
    assert_eq!(shape(&v), [(2 * MIB, false, true)], "a discard is seen at once");
    f.pool.drain().unwrap();
    assert_eq!(shape(&v), [(2 * MIB, false, true)]);
    v.write_zeroes(0, 16 * KIB, false, false).unwrap();
    assert_eq!(shape(&v)[0], (16 * KIB, true, true));
}

#[test]
fn a_watching_handle_is_no_user() {
    let f = site(64);
    drop(f.volume("a", MIB, 16 * KIB));
    let watching = f.pool.open_weak("a").unwrap();
    assert_eq!(f.pool.volume("a").unwrap().handles, 0);
    write(&watching, 0, 1, 16 * KIB);
    let using = f.pool.open_volume("a", false).unwrap();
    assert_eq!(f.pool.delete_volume("a", false).unwrap_err().kind(), ErrorKind::Busy);
    drop(using);
    f.pool.delete_volume("a", false).unwrap();
    assert!(try_write(&watching, 0, 1, 512).is_err(), "it is gone");
}

#[test]
fn a_write_that_fits_a_record_is_one() {
    let f = site(64);
    let v = f.volume("a", 2 * MIB, 16 * KIB);
    let records = || f.pool.stats().journal_records;
    let most = f.pool.max_record_bytes();
    for (offset, len, expected) in
        [(most - 512, 1024, 1), (512, most, 1), (most / 2, most, 1), (0, most + 512, 2), (512, 2 * most, 3)]
    {
        let before = records();
        write(&v, offset, 7, len);
        assert_eq!(records() - before, expected, "{offset}+{len}");
        assert_bytes(&v, offset, 7, len);
        f.pool.drain().unwrap();
        assert_bytes(&v, offset, 7, len);
    }
}

#[test]
fn a_full_pool_refuses_new_writes_and_loses_nothing() {
    let f = site(4);
    let v = f.volume("a", 2 * MIB, 16 * KIB);
    let mut written = 0;
    while try_write(&v, written * 16 * KIB, 1 + written as u8, 16 * KIB).is_ok() {
        written += 1;
    }
    assert_eq!(written, 16, "all of it can be used");
    assert_eq!(try_write(&v, MIB, 1, 512), Err(ErrorKind::NoSpace));
    try_write(&v, 512, 99, 512).expect("a chunk that has its slot can be overwritten");
    f.pool.drain().unwrap();
    assert_eq!(try_write(&v, MIB, 1, 512), Err(ErrorKind::NoSpace));
    write(&v, 1024, 99, 512);
    for n in 1..written {
        assert_bytes(&v, n * 16 * KIB, 1 + n as u8, 16 * KIB);
    }
    assert!(matches!(f.pool.health(), Health::Warning(_)));
    v.discard(16 * KIB, 16 * KIB, false).unwrap();
    try_write(&v, MIB, 42, 512).expect("freed space can be used at once");
    assert_eq!(try_write(&v, MIB + 64 * KIB, 1, 512), Err(ErrorKind::NoSpace));
    f.pool.add_pv(&pv("pv-1.img", 4)).unwrap();
    write(&v, MIB + 64 * KIB, 43, 512);
    drop(v);
    let f = f.reopen();
    let v = f.pool.open_volume("a", false).unwrap();
    assert_bytes(&v, MIB, 42, 512);
    assert_bytes(&v, MIB + 64 * KIB, 43, 512);
    f.idle();
    assert_bytes(&v, 512, 99, 1024);
}

#[test]
fn backpressure_destages_and_recycles_the_journal() {
    let f = site(256);
    let v = f.volume("a", 8 * MIB, 4 * KIB);
    for round in 0..12u64 {
        for n in 0..32 {
            write(&v, n * 256 * KIB % (8 * MIB), (round * 7 + n) as u8, 64 * KIB);
        }
    }
    for n in 0..32u64 {
        assert_bytes(&v, n * 256 * KIB, (77 + n) as u8, 64 * KIB);
    }
    let stats = f.pool.stats();
    assert!(stats.backpressure_waits > 0 && stats.destage_batches > 0);
    assert!(f.dir.list().unwrap().iter().filter(|n| n.starts_with("journal")).count() <= 8);
}

#[test]
fn volumes_are_created_resized_renamed_and_deleted() {
    let f = site(64);
    let v = f.volume("a", MIB, 64 * KIB);
    write(&v, MIB - 64 * KIB, 3, 64 * KIB);
    let kind = |r: hindcast_engine::Result<_>| {
        r.map(|_: hindcast_engine::pool::VolumeInfo| ()).map_err(|e| e.kind())
    };
    assert_eq!(kind(f.pool.resize_volume("a", 512 * KIB, false)), Err(ErrorKind::Conflict));
    assert_eq!(kind(f.pool.resize_volume("a", 100, true)), Err(ErrorKind::Invalid));
    f.pool.resize_volume("a", MIB - 32 * KIB, true).unwrap();
    assert_eq!(try_write(&v, MIB - 512, 1, 512), Err(ErrorKind::OutOfRange));
    f.pool.resize_volume("a", 3 * MIB, false).unwrap();
    assert_bytes(&v, MIB - 64 * KIB, 3, 32 * KIB);
    assert_bytes(&v, MIB - 32 * KIB, 0, 2 * MIB);
    f.idle();
    assert_bytes(&v, MIB - 64 * KIB, 3, 32 * KIB);
    assert_bytes(&v, MIB - 32 * KIB, 0, 2 * MIB);
    f.pool.rename_volume("a", "b").unwrap();
    assert_eq!(v.name(), "b");
    assert_eq!(kind(f.pool.rename_volume("a", "c")), Err(ErrorKind::NotFound));
    assert_eq!(kind(f.pool.volume("a")), Err(ErrorKind::NotFound));
    f.pool.set_read_only("b", true).unwrap();
    assert_eq!(try_write(&v, 0, 1, 512), Err(ErrorKind::ReadOnly));
    assert_eq!(f.pool.delete_volume("b", false).unwrap_err().kind(), ErrorKind::Busy);
    f.pool.delete_volume("b", true).unwrap();
    let mut buf = [0; 512];
    assert_eq!(v.read(0, &mut buf).unwrap_err().kind(), ErrorKind::NotFound);
    drop(v);
    f.idle();
    f.idle();
    assert_eq!(f.pool.info().used, 0);
    let f = f.reopen();
    assert!(f.pool.volumes().is_empty());
    let new =
        NewVolume { name: "x/y".into(), size: MIB, chunk_size: 4096, block_size: 512, read_only: false };
    assert_eq!(kind(f.pool.create_volume(&new)), Err(ErrorKind::Invalid));
    for (chunk_size, block_size) in [(3000, 512), (128 * KIB, 512), (512, 4096), (4096, 1024)] {
        let bad = NewVolume { name: "x".into(), chunk_size, block_size, ..new.clone() };
        assert_eq!(kind(f.pool.create_volume(&bad)), Err(ErrorKind::Invalid));
    }
}

#[test]
fn control_operations_survive_a_kill_before_their_destage() {
    let f = site(64);
    drop(f.volume("a", MIB, 4096));
    drop(f.volume("b", MIB, 512));
    f.pool.rename_volume("b", "c").unwrap();
    f.pool.resize_volume("a", 2 * MIB, false).unwrap();
    f.pool.delete_volume("a", false).unwrap();
    f.pool.add_pv(&pv("pv-1.img", 8)).unwrap();
    f.pool.set_placement(Placement::Contiguous).unwrap();
    drop(f.volume("a", MIB, 8192));
    let f = f.reopen();
    let names: Vec<_> = f.pool.volumes().into_iter().map(|v| (v.name, v.chunk_size)).collect();
    assert_eq!(names, [("a".to_string(), 8192), ("c".to_string(), 512)]);
    assert_eq!(f.pool.pvs().len(), 2);
    assert_eq!(f.pool.info().placement, Placement::Contiguous);
}

#[test]
fn physical_volumes_drain_and_leave() {
    let f = site(16);
    let v = f.volume("a", 2 * MIB, 16 * KIB);
    write(&v, 0, 1, 512 * KIB);
    f.idle();
    assert_eq!(f.pool.drain_pv("pv-0.img", true).unwrap_err().kind(), ErrorKind::NoSpace);
    f.pool.add_pv(&pv("pv-1.img", 16)).unwrap();
    assert_eq!(f.pool.remove_pv("pv-0.img").unwrap_err().kind(), ErrorKind::Conflict);
    f.pool.drain_pv("pv-0.img", true).unwrap();
    let stranded = f.pool.remove_pv("pv-1.img").unwrap_err();
    assert_eq!(stranded.kind(), ErrorKind::Conflict, "nothing else takes data");
    write(&v, 256 * KIB, 2, 512 * KIB);
    f.idle();
    f.idle();
    let used: Vec<_> = f.pool.pvs().iter().map(|p| (p.used, p.draining)).collect();
    assert_eq!(used[0], (0, true));
    f.pool.remove_pv("0").unwrap();
    assert_eq!(f.pool.add_pv(&pv("pv-1.img", 16)).unwrap_err().kind(), ErrorKind::Conflict, "already in use");
    let again = f.pool.add_pv(&pv("pv-0.img", 16)).unwrap();
    assert_eq!(again.id, 2, "numbers are never used twice");
    drop(v);
    let f = f.reopen();
    let v = f.pool.open_volume("a", false).unwrap();
    assert_bytes(&v, 0, 1, 256 * KIB);
    assert_bytes(&v, 256 * KIB, 2, 512 * KIB);
}

#[test]
fn a_drain_without_space_elsewhere_is_a_warning_until_there_is_some() {
    let f = site(64);
    let (v, other) = (f.volume("a", 2 * MIB, 16 * KIB), f.volume("b", 4 * MIB, 16 * KIB));
    write(&v, 0, 1, 2 * MIB);
    f.idle();
    f.pool.add_pv(&pv("pv-1.img", 64)).unwrap();
    f.pool.drain_pv("pv-0.img", true).unwrap();
    write(&other, 0, 2, 3 * MIB);
    f.idle();
    assert!(f.pool.health().has("drain-stalled"), "{:?}", f.pool.health());
    other.discard(0, 3 * MIB, false).unwrap();
    f.idle();
    f.idle();
    assert!(!f.pool.health().has("drain-stalled"), "{:?}", f.pool.health());
    assert_eq!(f.pool.pvs()[0].used, 0);
    assert_bytes(&v, 0, 1, 2 * MIB);
}

#[test]
fn one_process_at_a_time_and_no_second_pool() {
    let f = site(4);
    let kind = |r: hindcast_engine::Result<Arc<Pool>>| r.map(|_| ()).map_err(|e| e.kind());
    assert_eq!(kind(Pool::open(f.dir.clone(), f.world.clone(), options())), Err(ErrorKind::Busy));
    let Site { dir, seen, world, pool, .. } = f;
    drop(seen);
    drop(pool);
    let again = Pool::create(dir.clone(), &world, &config(), Placement::Anywhere, &[pv("x", 4)]);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict);
    dir.remove("pv-0.img").unwrap();
    assert_eq!(kind(Pool::open(dir, world, options())), Err(ErrorKind::NotFound));
}

/// A name of a file that the engine may remove from the data directory is refused for a disk.
#[test]
fn names_of_the_pools_own_files_are_refused() {
    let f = site(64);
    for name in
        ["catalog.redb", "catalog.redb.new", "journal-00000", "journal-mine", "cdp-disk.img", "pool.lock"]
    {
        assert_eq!(f.pool.add_pv(&pv(name, 4)).unwrap_err().kind(), ErrorKind::Conflict, "{name}");
    }
}

#[test]
fn a_pool_takes_each_disk_once() {
    let dir = Arc::new(MemDir::new());
    let twice = [pv("x", 4), pv("x", 4)];
    let error = Pool::create(dir.clone(), &world(1), &config(), Placement::Anywhere, &twice).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(!Pool::exists(&*dir).unwrap());
    Pool::create(dir.clone(), &world(1), &config(), Placement::Anywhere, &twice[..1])
        .expect("a creation that failed can be begun again");
    assert!(Pool::exists(&*dir).unwrap());
}

#[test]
fn many_writers_at_once() {
    let f = site(512);
    let v = f.volume("a", 16 * MIB, 16 * KIB);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let v = &v;
            scope.spawn(move || {
                for n in 0..400u64 {
                    let at = t * 4 * MIB + (n * 37 % 256) * 16 * KIB;
                    write(v, at, (n % 250) as u8 + 1, 12 * KIB);
                    assert_bytes(v, at, (n % 250) as u8 + 1, 12 * KIB);
                    if n % 50 == 0 {
                        v.flush().unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..300 {
                f.pool.maintain().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
    });
    let stats = f.pool.stats();
    assert!(stats.journal_groups <= stats.journal_records);
    f.pool.drain().unwrap();
    assert_eq!(f.pool.stats().staged_pieces, 0);
}
