//! Physical volumes that take no more writes: the pool continues with the others, and nothing is
//! lost.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, Layer, LayeredDir, LowerDisk, MemDir, SyncPurpose};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{
    Health, Method, NewVolume, Placement, Pool, PoolOptions, Progress, PvSpec, code,
};
use hindcast_engine::testing::{
    Act, FaultyDir, KIB, MIB, Op, Site, assert_clean, new_volume, try_write, world, write,
};
use hindcast_engine::world::{ManualClock, SplitMix, World};
use hindcast_engine::{ErrorKind, Volume};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const CHUNK: u64 = 16 * KIB;

/// How a disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failing {
    Writes,
    /// Syncs for this purpose, or for any, fail.
    Syncs(Option<SyncPurpose>),
    /// Writes find no space, as on a device that is thinly provisioned.
    Full,
    /// There is no room for extents.
    NoRoom,
    /// No operation answers.
    Away,
    /// The disk's file system writes overwritten blocks to another place.
    Elsewhere,
}

/// A directory in memory whose disks fail on demand.
#[derive(Clone, Default)]
struct Faults {
    files: MemDir,
    failing: Arc<Mutex<BTreeMap<String, Failing>>>,
    opened: Arc<AtomicU64>,
    clock: Arc<ManualClock>,
}

impl Faults {
    /// Returns the directory as a pool sees it.
    fn dir(&self) -> Arc<dyn Dir> {
        let (elsewhere, faults) =
            (LayeredDir::over(Arc::new(self.files.clone()), Arc::new(self.clone())), self.clone());
        FaultyDir::new(elsewhere, move |op: &Op<'_>| faults.of(op))
    }

    fn fail(&self, name: &str, how: Failing) {
        self.failing.lock().unwrap().insert(name.into(), how);
    }

    fn heal(&self) {
        self.failing.lock().unwrap().clear();
    }

    fn of(&self, op: &Op<'_>) -> Option<io::Error> {
        let failing = *self.failing.lock().unwrap().get(op.name)?;
        match (failing, &op.act) {
            (Failing::Away, Act::Read(_) | Act::Write(_)) | (Failing::Writes, Act::Write(_)) => {}
            (Failing::Syncs(None), Act::Sync(_)) => {}
            (Failing::Syncs(Some(failing)), Act::Sync(purpose)) if failing == *purpose => {}
            (Failing::Full, Act::Write(_)) | (Failing::NoRoom, Act::Allocate(_)) => {
                return Some(io::ErrorKind::StorageFull.into());
            }
            _ => return None,
        }
        Some(io::Error::from_raw_os_error(5))
    }
}

impl Layer for Faults {
    fn overwrites_elsewhere(&self, disk: &LowerDisk) -> io::Result<bool> {
        Ok(self.failing.lock().unwrap().get(disk.name()) == Some(&Failing::Elsewhere))
    }
}

fn open(dir: &Faults) -> hindcast_engine::Result<Arc<Pool>> {
    let rng = Arc::new(SplitMix::new(dir.opened.fetch_add(1, Ordering::Relaxed)));
    let world = World { clock: dir.clock.clone(), rng };
    // Only batches move data here, so that the pool finds a failed disk in them.
    let options = PoolOptions { shortage_waits: 0, direct_min: None, ..PoolOptions::default() };
    Pool::open(dir.dir(), world, options)
}

/// Makes a pool of two physical volumes with a volume whose first 128 KiB hold ones, in place on
/// the first.
fn fixture(method: Method) -> (Faults, Arc<Pool>, Arc<Volume>) {
    let mut dir = Faults { clock: Arc::new(ManualClock::new(1)), ..Faults::default() };
    let pvs = [("pv-0", 4 * MIB), ("pv-1", 4 * MIB)];
    let builder = Site::builder(0).seed(99).journal(4 * MIB, 512 * KIB).atomic_unit(512).pvs(&pvs);
    let site = builder.placement(Placement::Contiguous).over(|files| {
        dir.files = files;
        dir.dir()
    });
    drop(site);
    let pool = open(&dir).unwrap();
    pool.create_volume(&new_volume("a", MIB, CHUNK)).unwrap();
    pool.set_method("a", method).unwrap();
    let volume = pool.open_volume("a", false).unwrap();
    write(&volume, 0, 1, 128 * KIB);
    pool.drain().unwrap();
    assert_eq!(used(&pool), [128 * KIB, 0]);
    (dir, pool, volume)
}

fn used(pool: &Pool) -> Vec<u64> {
    pool.pvs().iter().map(|pv| pv.used).collect()
}

fn byte(device: &dyn BlockDevice, offset: u64) -> u8 {
    let mut sector = [0; 512];
    device.read(offset, &mut sector).unwrap();
    assert!(sector.iter().all(|b| *b == sector[0]), "torn at {offset}");
    sector[0]
}

/// Writes a new chunk, a part of one that is in place, and the whole of another.
fn write_all_kinds(volume: &Volume) {
    write(volume, 256 * KIB, 2, CHUNK);
    write(volume, 512, 3, 512);
    write(volume, 32 * KIB, 4, CHUNK);
}

fn has_all_kinds(volume: &Volume) {
    let places = [0, 512, 1024, 16 * KIB, 32 * KIB, 47 * KIB, 48 * KIB, 256 * KIB, 271 * KIB];
    assert_eq!(places.map(|at| byte(volume, at)), [1, 3, 1, 1, 4, 4, 1, 2, 2]);
}

fn is_sound(dir: &Faults) {
    assert_clean(dir.dir());
}

const KINDS: [Failing; 4] = [
    Failing::Writes,
    Failing::Syncs(None),
    // The failure comes after the commit of a batch, or before it.
    Failing::Syncs(Some(SyncPurpose::Apply)),
    Failing::Syncs(Some(SyncPurpose::Preserve)),
];

#[test]
fn the_pool_goes_on_with_the_others() {
    for (method, how) in KINDS.into_iter().flat_map(|how| [(Method::Redirect, how), (Method::Copy, how)]) {
        for snapshot in [false, true] {
            let (dir, pool, volume) = fixture(method);
            if snapshot {
                pool.create_snapshots(&[("a", "s")]).unwrap();
            }
            write_all_kinds(&volume);
            dir.fail("pv-0", how);
            pool.drain().unwrap();
            if (method, how, snapshot) == (Method::Redirect, Failing::Syncs(Some(SyncPurpose::Apply)), true) {
                // Nothing is overwritten.
                assert_eq!(pool.health(), Health::Healthy);
                continue;
            }
            let what = format!("{method:?} {how:?} {snapshot}");
            assert!(pool.health().has(code::PV_FAILED), "{what}: {:?}", pool.health());
            assert!(pool.pvs()[0].failure.is_some() && pool.pvs()[1].failure.is_none(), "{what}");
            assert!(used(&pool)[1] > 0, "{what}: {:?}", used(&pool));
            has_all_kinds(&volume);
            // The content of the failed physical volume can be read, and moves when it is written
            // to.
            write(&volume, 64 * KIB, 5, 512);
            pool.drain().unwrap();
            assert_eq!([64 * KIB, 64 * KIB + 512].map(|at| byte(&*volume, at)), [5, 1], "{what}");
            if snapshot {
                let s = pool.open_snapshot("a", "s").unwrap();
                let places = [0, 512, 32 * KIB, 64 * KIB, 256 * KIB];
                assert_eq!(places.map(|at| byte(&*s, at)), [1, 1, 1, 1, 0], "{what}");
            }
            assert_eq!(pool.info().reserved, 0, "{what}");
            drop((pool, volume));
            is_sound(&dir);
            dir.heal();
            let pool = open(&dir).unwrap();
            assert_eq!(pool.health(), Health::Healthy, "{what}");
            has_all_kinds(&pool.open_volume("a", false).unwrap());
        }
    }
}

#[test]
fn the_last_one_stops_the_pool() {
    let (dir, pool, volume) = fixture(Method::Redirect);
    write_all_kinds(&volume);
    dir.fail("pv-0", Failing::Writes);
    dir.fail("pv-1", Failing::Writes);
    assert_eq!(pool.drain().unwrap_err().kind(), ErrorKind::Poisoned);
    assert!(matches!(pool.health(), Health::Poisoned(_)));
    has_all_kinds(&volume);
    drop((pool, volume));
    assert!(open(&dir).is_err(), "nothing takes a stamp");
    dir.heal();
    let pool = open(&dir).unwrap();
    pool.drain().unwrap();
    has_all_kinds(&pool.open_volume("a", false).unwrap());
}

/// A pool opens without a physical volume that takes no writes, even if a batch was interrupted
/// there.
#[test]
fn a_pool_opens_without_it() {
    for interrupted in [false, true] {
        let (dir, pool, volume) = fixture(Method::Copy);
        pool.create_snapshots(&[("a", "s")]).unwrap();
        write_all_kinds(&volume);
        if interrupted {
            // The batch is preserved, and not in place.
            dir.fail("pv-0", Failing::Syncs(Some(SyncPurpose::Apply)));
            dir.fail("pv-1", Failing::Full);
            assert!(pool.drain().is_err());
        }
        drop((pool, volume));
        dir.heal();
        dir.fail("pv-0", Failing::Writes);
        let pool = open(&dir).unwrap();
        assert!(pool.health().has(code::PV_FAILED), "{:?}", pool.health());
        let volume = pool.open_volume("a", false).unwrap();
        has_all_kinds(&volume);
        pool.drain().unwrap();
        has_all_kinds(&volume);
        write(&volume, 80 * KIB, 6, 512);
        pool.drain().unwrap();
        pool.close().unwrap();
        drop((pool, volume));
        is_sound(&dir);
        // The physical volume was not stamped meanwhile, and does not look like a restored one.
        dir.heal();
        let pool = open(&dir).unwrap();
        assert_eq!(pool.health(), Health::Healthy);
        let volume = pool.open_volume("a", false).unwrap();
        assert_eq!([80 * KIB, 80 * KIB + 512].map(|at| byte(&*volume, at)), [6, 1]);
    }
}

/// A pool opens even if a preserved batch finds no space for what it overwrites.
#[test]
fn a_pool_opens_with_a_batch_half_done() {
    for method in [Method::Redirect, Method::Copy] {
        let (dir, pool, volume) = fixture(method);
        let settings = Some(CdpSettings::default());
        pool.set_cdp("a", settings).unwrap();
        write(&volume, 96 * KIB, 9, 512);
        pool.create_snapshots(&[("a", "s")]).unwrap();
        write(&volume, 96 * KIB, 6, 512);
        pool.drain().unwrap();
        let before = pool.stats().sequenced_lsn;
        write_all_kinds(&volume);
        // The write is in the same epoch: it overwrites in place.
        write(&volume, 96 * KIB, 7, 512);
        let after = pool.stats().sequenced_lsn;
        dir.fail("pv-0", Failing::Syncs(Some(SyncPurpose::Apply)));
        dir.fail("pv-1", Failing::NoRoom);
        assert!(pool.drain().is_err());
        let is_half_done = |pool: &Pool| pool.stats().preserved_lsn > pool.stats().destaged_lsn;
        assert!(is_half_done(&pool), "{method:?}");
        drop((pool, volume));
        let mut opening = 0;
        let moment = |pool: &Arc<Pool>, lsn: Lsn, offset: u64| {
            byte(&*pool.open_moment("a", &Moment::Lsn(lsn)).unwrap(), offset)
        };
        let shows = |pool: &Arc<Pool>| {
            let volume = pool.open_volume("a", false).unwrap();
            has_all_kinds(&volume);
            assert_eq!(byte(&*volume, 96 * KIB), 7);
            assert_eq!(byte(&*pool.open_snapshot("a", "s").unwrap(), 96 * KIB), 9);
            assert_eq!([512, 96 * KIB].map(|at| moment(pool, before, at)), [1, 6]);
            // Content that is not in place is shown from the journal.
            assert_eq!([512, 96 * KIB].map(|at| moment(pool, after, at)), [3, 7]);
        };
        // The first physical volume takes no more writes, and the other one has no space.
        dir.fail("pv-0", Failing::Writes);
        let pool = loop {
            opening += 1;
            let pool = open(&dir).unwrap();
            assert!(is_half_done(&pool), "{method:?}, opening {opening}");
            shows(&pool);
            assert!(pool.drain().is_err());
            if opening == 2 {
                break pool;
            }
        };
        dir.failing.lock().unwrap().remove("pv-1");
        pool.drain().unwrap();
        assert!(!is_half_done(&pool));
        shows(&pool);
        pool.close().unwrap();
        drop(pool);
        is_sound(&dir);
    }
}

/// A physical volume without space for the stamp of an opening gets it later. Nothing is written to
/// any physical volume before that.
#[test]
fn a_stamp_without_space_is_waited_for() {
    let (dir, pool, volume) = fixture(Method::Redirect);
    write_all_kinds(&volume);
    drop((pool, volume));
    let older = dir.files.copy();
    dir.fail("pv-0", Failing::Full);
    let pool = open(&dir).unwrap();
    let volume = pool.open_volume("a", false).unwrap();
    has_all_kinds(&volume);
    write(&volume, 0, 1, 512);
    let error = pool.drain().unwrap_err();
    assert!(error.is_shortage() && error.to_string().contains("stamp"), "{error}");
    assert!(pool.health().has(code::HOST_FULL_WAITING), "{:?}", pool.health());
    assert_eq!(used(&pool), [128 * KIB, 0], "nothing is written");
    dir.heal();
    pool.drain().unwrap();
    has_all_kinds(&volume);
    assert_eq!(pool.health(), Health::Healthy);
    drop((pool, volume));
    // The pool can be distinguished from a copy of the data directory that was made before.
    for pv in ["pv-0", "pv-1"] {
        older.take_from(&dir.files, pv);
    }
    let error = Pool::open(Arc::new(older), world(77), PoolOptions::default()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

#[test]
fn it_is_drained_and_leaves() {
    let (dir, pool, volume) = fixture(Method::Redirect);
    write_all_kinds(&volume);
    dir.fail("pv-0", Failing::Writes);
    pool.drain().unwrap();
    pool.drain_pv("pv-0", true).unwrap();
    while pool.maintain().unwrap() == Progress::Worked {}
    assert_eq!(used(&pool)[0], 0);
    has_all_kinds(&volume);
    // Its label can't be wiped, but the physical volume has left the pool.
    assert!(pool.remove_pv("pv-0").is_err());
    assert_eq!(pool.pvs().len(), 1);
    assert_eq!(pool.health(), Health::Healthy);
    write(&volume, 0, 7, 512);
    drop((pool, volume));
    let pool = open(&dir).unwrap();
    pool.drain().unwrap();
    assert_eq!(byte(&*pool.open_volume("a", false).unwrap(), 0), 7);
}

/// If the others have no space, the data that has to move waits, and moves when there is space.
#[test]
fn what_finds_no_space_elsewhere_waits() {
    let (dir, pool, volume) = fixture(Method::Redirect);
    let new =
        NewVolume { name: "b".into(), size: 8 * MIB, chunk_size: CHUNK, block_size: 512, read_only: false };
    pool.create_volume(&new).unwrap();
    let b = pool.open_volume("b", false).unwrap();
    let mut end = 0;
    while try_write(&b, end, 8, 64 * KIB).is_ok() {
        pool.drain().unwrap();
        end += 64 * KIB;
    }
    write(&volume, 512, 3, 512);
    dir.fail("pv-0", Failing::Writes);
    let error = pool.drain().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert!(pool.health().has(code::HOST_FULL_WAITING) && pool.health().has(code::PV_FAILED));
    assert_eq!(byte(&*volume, 512), 3);
    pool.add_pv(&PvSpec { path: "pv-2".into(), size: Some(4 * MIB), force: false }).unwrap();
    pool.drain().unwrap();
    assert_eq!([0, 512].map(|at| byte(&*volume, at)), [1, 3]);
    assert!((0..end).step_by(64 << 10).all(|at| byte(&*b, at) == 8));
}

#[test]
fn a_file_system_that_keeps_no_space_for_overwriting_is_told() {
    let (dir, pool, volume) = fixture(Method::Redirect);
    drop((pool, volume));
    for file in ["pv-1", "journal-00000"] {
        dir.fail(file, Failing::Elsewhere);
        let pool = open(&dir).unwrap();
        let Health::Warning(warnings) = pool.health() else { panic!("{:?}", pool.health()) };
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert_eq!(warning.code, code::SPACE_NOT_RESERVED);
        assert!(warning.text.contains(file.split('-').next().unwrap()), "{}", warning.text);
        dir.heal();
    }
    assert_eq!(open(&dir).unwrap().health(), Health::Healthy);
}

/// The slots that were promised to a write are enough for the chunk that it moves, down to the last
/// slot.
#[test]
fn a_promise_is_enough_for_what_moves() {
    for (left, chunks) in [(1, 4..5), (4, 3..6)] {
        let (dir, pool, volume) = fixture(Method::Redirect);
        let new = NewVolume {
            name: "b".into(),
            size: 8 * MIB,
            chunk_size: CHUNK,
            block_size: 512,
            read_only: false,
        };
        pool.create_volume(&new).unwrap();
        let b = pool.open_volume("b", false).unwrap();
        dir.fail("pv-0", Failing::Writes);
        write(&volume, 512, 3, 512);
        pool.drain().unwrap();
        let mut end = 0;
        while pool.info().available > left * CHUNK {
            write(&b, end, 8, CHUNK);
            pool.drain().unwrap();
            end += CHUNK;
        }
        for chunk in chunks.clone() {
            write(&volume, chunk * CHUNK, 5, 512);
        }
        pool.drain().unwrap();
        assert!(chunks.into_iter().all(|chunk| byte(&*volume, chunk * CHUNK) == 5));
        assert_eq!(pool.info().reserved, 0);
    }
}

/// Data that has to leave a physical volume stays there while that does not answer, and moves when
/// it does. Meanwhile, other work is committed.
#[test]
fn draining_goes_on_when_the_disk_answers() {
    let (dir, pool, volume) = fixture(Method::Redirect);
    pool.drain_pv("pv-0", true).unwrap();
    pool.drain().unwrap();
    dir.fail("pv-0", Failing::Away);
    for _ in 0..50 {
        pool.maintain().unwrap();
    }
    assert!(pool.health().has(code::DRAIN_STALLED), "{:?}", pool.health());
    assert_eq!(used(&pool)[0], 128 * KIB);
    dir.heal();
    for _ in 0..500 {
        dir.clock.advance(100_000_000);
        pool.maintain().unwrap();
    }
    assert_eq!(used(&pool)[0], 0);
    assert!(!pool.health().has(code::DRAIN_STALLED) && !pool.health().has(code::DATA_DAMAGED));
    assert_eq!([0, 100 * KIB].map(|at| byte(&*volume, at)), [1, 1]);
}

/// A batch that is preserved, and finds no space for what it overwrites, is applied later.
#[test]
fn a_shortage_behind_the_commit_waits() {
    let (dir, pool, volume) = fixture(Method::Copy);
    pool.create_snapshots(&[("a", "s")]).unwrap();
    // The copy is placed on the other physical volume.
    pool.drain_pv("pv-0", true).unwrap();
    write(&volume, 512, 3, 512);
    dir.fail("pv-0", Failing::Full);
    let mut short = false;
    for _ in 0..3 {
        short |= pool.drain().is_err();
    }
    assert!(short, "nothing met the shortage");
    assert!(!matches!(pool.health(), Health::Poisoned(_)), "{:?}", pool.health());
    assert_eq!([0, 512].map(|at| byte(&*volume, at)), [1, 3]);
    assert_eq!(byte(&*pool.open_snapshot("a", "s").unwrap(), 512), 1);
    dir.heal();
    pool.drain().unwrap();
    assert_eq!([0, 512].map(|at| byte(&*volume, at)), [1, 3]);
    assert_eq!(byte(&*pool.open_snapshot("a", "s").unwrap(), 512), 1);
    assert_eq!(pool.health(), Health::Healthy);
    drop((pool, volume));
    is_sound(&dir);
}
