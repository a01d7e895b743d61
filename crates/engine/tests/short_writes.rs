//! Writes to physical volumes that meet a shortage which passes, although extents are reserved.
//! Copy-on-write file systems, and thinly provisioned devices, can run full nevertheless.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::{Health, Pool, PoolOptions, PvSpec};
use hindcast_engine::testing::{Act, FaultyDir, KIB, MIB, Op, Site, content, idle, new_volume, write};
use hindcast_engine::world::World;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A pool whose directory refuses a number of the next writes to physical volumes.
struct Short {
    dir: Arc<dyn Dir>,
    world: World,
    refused: Arc<AtomicU32>,
}

impl Short {
    fn new() -> Short {
        let refused = Arc::new(AtomicU32::new(0));
        let left = refused.clone();
        let site = Site::builder(0).pvs(&[("pv-0", 5 * MIB), ("pv-1", 5 * MIB)]).over(|files| {
            FaultyDir::new(files, move |op: &Op<'_>| {
                let less = |left: u32| left.checked_sub(1);
                let refused = matches!(op.act, Act::Write(_))
                    && op.name.starts_with("pv")
                    && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
                refused.then(|| io::ErrorKind::StorageFull.into())
            })
        });
        Short { dir: site.seen, world: site.world, refused }
    }

    fn open(&self, threads: usize, waits: u32) -> Arc<Pool> {
        let options = PoolOptions {
            destage_threads: threads,
            shortage_waits: waits,
            direct_min: None,
            ..PoolOptions::default()
        };
        Pool::open(self.dir.clone(), self.world.clone(), options).unwrap()
    }

    fn volume(&self, pool: &Arc<Pool>) {
        pool.create_volume(&new_volume("v", MIB, 16 * KIB)).unwrap();
    }

    fn refuse(&self, writes: u32) {
        self.refused.store(writes, Ordering::Relaxed);
    }
}

/// The shortage meets any phase of a batch: new slots, and places that are overwritten.
#[test]
fn a_batch_goes_on_when_the_shortage_has_passed() {
    for threads in [1, 4] {
        let site = Short::new();
        let pool = site.open(threads, 100);
        site.volume(&pool);
        let v = pool.open_volume("v", false).unwrap();
        for round in 1..20u8 {
            write(&v, 0, round, MIB / 2);
            write(&v, u64::from(round) * 16 * KIB, round + 100, 4 * KIB);
            if round % 3 == 0 {
                pool.create_snapshots(&[("v", &format!("s{round}"))]).unwrap();
            }
            if round > 6 {
                let old = format!("s{}", (round - 4) / 3 * 3);
                let _ = pool.delete_snapshots("v", &[&old]);
            }
            let expected = content(&v);
            site.refuse(u32::from(round % 4));
            while pool.stats().destaged_lsn < pool.stats().sequenced_lsn {
                let _ = pool.drain().map_err(|e| assert!(e.is_shortage(), "round {round}: {e}"));
            }
            assert!(content(&v) == expected, "round {round}");
            assert!(!matches!(pool.health(), Health::Poisoned(_)), "round {round}: {:?}", pool.health());
        }
        site.refuse(0);
        idle(&pool);
        assert!(!pool.health().has("host-full-waiting"), "{:?}", pool.health());
    }
}

/// A lasting shortage loses nothing, even if a batch is half done.
#[test]
fn one_that_does_not_pass_is_waited_for() {
    for killed in [false, true] {
        let site = Short::new();
        let pool = site.open(1, 2);
        site.volume(&pool);
        let v = pool.open_volume("v", false).unwrap();
        write(&v, 0, 1, MIB);
        pool.drain().unwrap();
        write(&v, 0, 2, 64 * KIB);
        v.flush().unwrap();
        site.refuse(u32::MAX);
        for _ in 0..10 {
            assert!(pool.drain().unwrap_err().is_shortage());
        }
        assert!(pool.health().has("host-full-waiting"), "{:?}", pool.health());
        assert!(content(&v)[..64 * KIB as usize].iter().all(|b| *b == 2), "it is shown meanwhile");
        site.refuse(0);
        let (pool, v) = if killed {
            drop((v, pool));
            let pool = site.open(1, 2);
            let v = pool.open_volume("v", false).unwrap();
            (pool, v)
        } else {
            (pool, v)
        };
        pool.drain().unwrap();
        let all = content(&v);
        let (new, old) = all.split_at(64 * KIB as usize);
        assert!(new.iter().all(|b| *b == 2) && old.iter().all(|b| *b == 1));
    }
}

/// An accepted operation is carried out as a whole, and leaves nothing half done.
#[test]
fn a_physical_volume_leaves_through_a_shortage() {
    let site = Short::new();
    let pool = site.open(1, 100);
    site.volume(&pool);
    let v = pool.open_volume("v", false).unwrap();
    write(&v, 0, 1, MIB);
    pool.drain().unwrap();
    pool.drain_pv("pv-1", true).unwrap();
    idle(&pool);
    write(&v, 0, 2, MIB);
    pool.create_snapshots(&[("v", "s")]).unwrap();
    site.refuse(3);
    while let Err(error) = pool.remove_pv("pv-1") {
        assert!(error.is_shortage(), "{error}");
        if pool.pvs().len() == 1 {
            // It was removed, and the shortage came while the removal was carried out.
            break;
        }
    }
    let spec = PvSpec { path: "pv-1".into(), size: None, force: false };
    site.refuse(3);
    let added = loop {
        match pool.add_pv(&spec) {
            Err(error) => assert!(error.is_shortage(), "its label is gone: {error}"),
            Ok(added) => break added,
        }
    };
    assert_eq!((added.path.as_str(), pool.pvs().len()), ("pv-1", 2));
    assert!(content(&v).iter().all(|b| *b == 2));
}

/// A writer does not wait for ever, wherever in a segment of the journal it finds no room.
#[test]
fn a_full_journal_refuses_while_the_shortage_lasts_and_takes_writes_after_it() {
    for (threads, len) in [(1, 128 * KIB), (4, 128 * KIB), (1, 4 * KIB), (1, 512)] {
        let site = Short::new();
        let pool = site.open(threads, 3);
        site.volume(&pool);
        let v = pool.open_volume("v", false).unwrap();
        site.refuse(u32::MAX);
        let mut taken = 0;
        let refused = loop {
            let data = bytes::Bytes::from(vec![taken as u8; len as usize]);
            let mut ops = [WriteOp::new(taken * len % MIB, data)];
            v.write(&mut ops, false);
            match ops.into_iter().next().unwrap().result {
                Ok(()) => taken += 1,
                Err(error) => break error,
            }
            assert!(taken * len < 32 * MIB, "more than the journal has room for");
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(pool.health().has("host-full-waiting"), "{:?}", pool.health());
        site.refuse(0);
        while pool.stats().destaged_lsn < pool.stats().sequenced_lsn {
            let _ = pool.drain().map_err(|e| assert!(e.is_shortage(), "{e}"));
        }
        write(&v, 0, 7, len);
        assert!(content(&v)[..len as usize].iter().all(|b| *b == 7));
    }
}
