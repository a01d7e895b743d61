//! The pool's reaction to failing disks (I7): errors reach the client, a failed sync or a lost
//! write poisons the pool, and nothing unverified is served.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "common/heard.rs"]
mod heard;

use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Backing, Dir, Layer, LayeredDir, LowerDisk, MemDir, OpenMode, SyncPurpose};
use hindcast_engine::pool::{Health, Placement, Pool, PoolConfig, PoolOptions, Progress, PvSpec, code};
use hindcast_engine::testing::{
    self, Act, FaultyDir, KIB, MIB, Op, Site, check, read, try_read, try_write, world, write,
};
use hindcast_engine::world::{SplitMix, World};
use hindcast_engine::{ErrorKind, Volume};
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failing {
    Reads(&'static str),
    Writes(&'static str),
    /// The file system below has no room for these files, and reports so when asked.
    Room(&'static str),
    /// The file system reports no room, but gives what it keeps back.
    Margin(&'static str),
    /// Every file system has only the space that it keeps back. `pv-1` is on a file system of its
    /// own.
    Margins,
    /// There is no room for physical volumes, except for `pv-1`, whose file system has this number
    /// of bytes.
    RoomBut(u64),
    Syncs(SyncPurpose),
    /// One write to the log of a history fails: the one after this number of writes.
    LogWrite(u64),
}

/// A directory in memory whose disks fail on demand, until the test heals them.
#[derive(Clone, Default)]
struct Faults {
    files: MemDir,
    failing: Arc<Mutex<Option<Failing>>>,
    /// Number of bytes written to the journal's segments.
    journaled: Arc<AtomicU64>,
    /// Number of writes to the log of a history, since the last failure began.
    logged: Arc<AtomicU64>,
}

impl Faults {
    /// Returns the directory as a pool sees it.
    fn dir(&self) -> Arc<dyn Dir> {
        let (room, faults) =
            (LayeredDir::over(Arc::new(self.files.clone()), Arc::new(self.clone())), self.clone());
        FaultyDir::new(room, move |op: &Op<'_>| faults.of(op))
    }

    fn fail(&self, what: Failing) {
        self.logged.store(0, Ordering::Relaxed);
        *self.failing.lock().unwrap() = Some(what);
    }

    fn heal(&self) {
        *self.failing.lock().unwrap() = None;
    }

    fn of(&self, op: &Op<'_>) -> Option<io::Error> {
        let failing = *self.failing.lock().unwrap();
        let fails = match &op.act {
            Act::Read(_) => matches!(failing, Some(Failing::Reads(prefix)) if op.name.starts_with(prefix)),
            Act::Sync(purpose) => failing == Some(Failing::Syncs(*purpose)),
            Act::Allocate(_) if self.has_no_room(op.name) => return Some(io::ErrorKind::StorageFull.into()),
            Act::Write(range) => {
                let logs = op.name.starts_with("cdp-");
                let before = logs.then(|| self.logged.fetch_add(1, Ordering::Relaxed));
                let fails = match failing {
                    Some(Failing::Writes(prefix)) => op.name.starts_with(prefix),
                    Some(Failing::LogWrite(number)) => before == Some(number),
                    _ => false,
                };
                if !fails && op.name.starts_with("journal-0") {
                    self.journaled.fetch_add(range.end - range.start, Ordering::Relaxed);
                }
                fails
            }
            _ => false,
        };
        fails.then(|| io::Error::other("injected"))
    }

    fn has_no_room(&self, name: &str) -> bool {
        match *self.failing.lock().unwrap() {
            Some(Failing::Room(prefix)) => name.starts_with(prefix),
            Some(Failing::RoomBut(_)) => name.starts_with("pv-0"),
            _ => false,
        }
    }
}

impl Layer for Faults {
    fn backing_available(&self, disk: &LowerDisk) -> io::Result<Option<Backing>> {
        let failing = *self.failing.lock().unwrap();
        let backing = |file_system, available| Ok(Some(Backing { file_system, available }));
        match failing {
            _ if self.has_no_room(disk.name()) => backing(1, 0),
            Some(Failing::Margin(prefix)) if disk.name().starts_with(prefix) => backing(1, 0),
            Some(Failing::Margins) => {
                let file_system = if disk.name().starts_with("pv-1") { 2 } else { 1 };
                backing(file_system, PoolOptions::default().backing_margin)
            }
            Some(Failing::RoomBut(free)) if disk.name().starts_with("pv-1") => backing(2, free),
            _ => disk.backing_available(),
        }
    }
}

fn pv(path: &str) -> PvSpec {
    testing::pv(path, 4 * MIB)
}

/// All writes go through the journal, so that destage meets the faults.
fn through_the_journal() -> PoolOptions {
    PoolOptions { direct_min: None, ..PoolOptions::default() }
}

fn open(dir: &Faults) -> Arc<Pool> {
    open_with(dir, through_the_journal())
}

fn open_with(dir: &Faults, options: PoolOptions) -> Arc<Pool> {
    let rng = Arc::new(SplitMix::new(dir.journaled.load(Ordering::Relaxed) + 2));
    Pool::open(dir.dir(), World { rng, ..world(1) }, options).unwrap()
}

/// Makes a pool with a volume whose first 64 KiB hold ones, in place.
fn fixture() -> (Faults, Arc<Pool>, Arc<Volume>) {
    fixture_with(through_the_journal())
}

fn fixture_with(options: PoolOptions) -> (Faults, Arc<Pool>, Arc<Volume>) {
    let mut dir = Faults::default();
    let site = Site::builder(3).journal(4 * MIB, 512 * KIB).options(options).over(|files| {
        dir.files = files;
        dir.dir()
    });
    let (pool, volume) = (site.pool.clone(), site.volume("a", MIB, 4096));
    write(&volume, 0, 1, 64 * KIB);
    pool.drain().unwrap();
    (dir, pool, volume)
}

/// Checks that the pool is poisoned: writes and all other changes are refused, reads succeed, and
/// the pool reports it.
fn assert_poisoned(pool: &Arc<Pool>, volume: &Volume) {
    assert!(matches!(pool.health(), Health::Poisoned(_)), "{:?}", pool.health());
    assert_eq!(try_write(volume, 0, 9, 512), Err(ErrorKind::Poisoned));
    assert_eq!(volume.flush().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(volume.discard(0, 4096, false).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(pool.resize_volume("a", 2 * MIB, false).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(pool.add_pv(&pv("pv-9.img")).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(read(volume, 32 * KIB, 4096), vec![1; 4096]);
}

/// Opens the pool again with healthy disks: everything durable is there, and the pool is sound.
fn recovers(dir: &Faults, pool: Arc<Pool>, volume: Arc<Volume>) -> (Arc<Pool>, Arc<Volume>) {
    drop((pool, volume));
    dir.heal();
    let pool = open(dir);
    let volume = pool.open_volume("a", false).unwrap();
    assert_eq!(read(&volume, 32 * KIB, 4096), vec![1; 4096]);
    write(&volume, 0, 5, 512);
    volume.flush().unwrap();
    assert_eq!(read(&volume, 0, 512), vec![5; 512]);
    assert_eq!(pool.health(), Health::Healthy);
    (pool, volume)
}

#[test]
fn a_failed_journal_sync_poisons() {
    let (dir, pool, volume) = fixture();
    write(&volume, 0, 2, 4096);
    volume.flush().unwrap();
    write(&volume, 4096, 3, 4096);
    dir.fail(Failing::Syncs(SyncPurpose::Journal));
    assert_eq!(volume.flush().unwrap_err().kind(), ErrorKind::Poisoned);
    // To sync again and rely on it would be wrong: the kernel reports a lost write only once.
    dir.heal();
    assert_poisoned(&pool, &volume);
    // It was acknowledged and read before, and is still served, from the journal.
    assert_eq!(read(&volume, 4096, 4096), vec![3; 4096]);
    let (pool, volume) = recovers(&dir, pool, volume);
    assert_eq!(read(&volume, 512, 512), vec![2; 512], "flushed before the failure");
    pool.drain().unwrap();
    drop(volume);
    pool.close().unwrap();
    drop(pool);
    assert!(check(dir.dir()).is_clean());
}

/// The log tells the operator what happened, once. The simulator can query it.
#[test]
fn the_engine_says_what_an_operator_wants_to_know() {
    let heard = heard::Heard::default();
    heard.during(|| {
        let (dir, pool, volume) = fixture();
        assert_eq!((heard.count("INFO message=the pool is open"), heard.count("ERROR")), (1, 0));
        write(&volume, 0, 2, 4096);
        dir.fail(Failing::Syncs(SyncPurpose::Journal));
        volume.flush().unwrap_err();
        volume.flush().unwrap_err();
        assert_eq!(heard.count("ERROR message=the pool is poisoned"), 1, "once, with its reason");
        assert_eq!(heard.count("reason=sync "), 1);
        dir.heal();
        let (pool, volume) = recovers(&dir, pool, volume);
        assert_eq!(heard.count("INFO message=the journal was scanned"), 2);
        drop(volume);
        pool.close().unwrap();
        assert_eq!(heard.count("the pool is closed"), 1);
    });
}

#[test]
fn what_was_not_known_to_be_durable_is_written_again_at_open() {
    let (dir, pool, volume) = fixture();
    write(&volume, 0, 2, 64 * KIB);
    volume.flush().unwrap();
    // Its record has what the flush made durable.
    write(&volume, 4096, 3, 4096);
    dir.fail(Failing::Syncs(SyncPurpose::Journal));
    assert_eq!(volume.flush().unwrap_err().kind(), ErrorKind::Poisoned);
    dir.heal();
    drop((volume, pool));
    let before = dir.journaled.load(Ordering::Relaxed);
    let pool = open(&dir);
    let again = dir.journaled.load(Ordering::Relaxed) - before;
    assert!((4096..16 * KIB).contains(&again), "{again}: the second record and nothing else");
    let volume = pool.open_volume("a", false).unwrap();
    assert_eq!(read(&volume, 4096, 4096), vec![3; 4096]);
}

#[test]
fn a_failed_write_of_the_journal_poisons_and_is_not_acknowledged() {
    let (dir, pool, volume) = fixture();
    dir.fail(Failing::Writes("journal"));
    assert_eq!(try_write(&volume, 0, 2, 4096), Err(ErrorKind::Poisoned));
    dir.heal();
    assert_poisoned(&pool, &volume);
    assert_eq!(read(&volume, 0, 4096), vec![1; 4096]);
    recovers(&dir, pool, volume);
}

#[test]
fn whatever_fails_in_a_destage_poisons_and_loses_nothing() {
    for failing in [
        Failing::Writes("pv-0.img"),
        Failing::Writes("catalog"),
        Failing::Reads("journal"),
        Failing::Syncs(SyncPurpose::Preserve),
        Failing::Syncs(SyncPurpose::Apply),
        Failing::Syncs(SyncPurpose::Catalog),
    ] {
        let (dir, pool, volume) = fixture();
        // One chunk is in place, and one gets a slot.
        write(&volume, 0, 2, 4096);
        write(&volume, 128 * KIB, 3, 4096);
        volume.flush().unwrap();
        dir.fail(failing);
        assert!(pool.drain().is_err(), "{failing:?}");
        dir.heal();
        assert_poisoned(&pool, &volume);
        assert_eq!(read(&volume, 0, 4096), vec![2; 4096], "{failing:?}");
        assert_eq!(read(&volume, 128 * KIB, 4096), vec![3; 4096], "{failing:?}");
        let (pool, volume) = recovers(&dir, pool, volume);
        pool.drain().unwrap();
        assert_eq!(read(&volume, 512, 3584), vec![2; 3584], "{failing:?}");
        assert_eq!(read(&volume, 128 * KIB, 4096), vec![3; 4096], "{failing:?}");
    }
}

#[test]
fn a_failed_read_fails_that_read_only() {
    let (dir, pool, volume) = fixture();
    write(&volume, 4096, 2, 4096);
    dir.fail(Failing::Reads("pv-0.img"));
    assert_eq!(try_read(&volume, 0, 4096), Err(ErrorKind::Io));
    assert_eq!(read(&volume, 4096, 4096), vec![2; 4096], "staged: not on that disk");
    assert_eq!(read(&volume, 512 * KIB, 4096), vec![0; 4096], "nowhere");
    write(&volume, 0, 4, 4096);
    dir.heal();
    assert_eq!(read(&volume, 0, 4096), vec![4; 4096]);
    assert!(pool.health().has(code::PV_READ_ERRORS));
}

#[test]
fn a_directory_that_cannot_be_synced_ends_trust_in_the_journals_names() {
    let (dir, pool, volume) = fixture();
    dir.fail(Failing::Syncs(SyncPurpose::Dir));
    assert_eq!(pool.add_pv(&pv("pv-1.img")).unwrap_err().kind(), ErrorKind::Poisoned);
    dir.heal();
    assert_poisoned(&pool, &volume);
    let (pool, _volume) = recovers(&dir, pool, volume);
    assert_eq!(pool.pvs().len(), 1);
    // The physical volume can be added now, whatever the failed attempt left of it.
    pool.add_pv(&pv("pv-1.img")).unwrap();
}

/// A label counts only with the record that follows it.
#[test]
fn a_label_that_cannot_be_synced_is_written_another_time() {
    let (dir, pool, volume) = fixture();
    dir.fail(Failing::Syncs(SyncPurpose::Label));
    assert_eq!(pool.add_pv(&pv("pv-1.img")).unwrap_err().kind(), ErrorKind::Io);
    dir.heal();
    assert_eq!((pool.health(), pool.pvs().len()), (Health::Healthy, 1));
    write(&volume, 0, 2, 4096);
    pool.add_pv(&pv("pv-1.img")).unwrap();
    assert_eq!(pool.pvs().len(), 2);
}

/// However often a creation is cut short, the labels of earlier attempts are the pool's own.
#[test]
fn a_creation_is_repeated_without_force() {
    let dir = Faults::default();
    let world = world(5);
    let config = PoolConfig { journal_size: 4 * MIB, segment_size: 512 * KIB, ..PoolConfig::default() };
    let spec = PvSpec { size: Some(16 * MIB), ..pv("pv-0.img") };
    let create =
        || Pool::create(dir.dir(), &world, &config, Placement::Anywhere, std::slice::from_ref(&spec));
    for purpose in [SyncPurpose::Label, SyncPurpose::Catalog, SyncPurpose::Dir, SyncPurpose::Label] {
        dir.fail(Failing::Syncs(purpose));
        assert_eq!(create().unwrap_err().kind(), ErrorKind::Io, "{purpose:?}");
        assert!(!Pool::exists(&*dir.dir()).unwrap());
    }
    dir.heal();
    create().unwrap();
    open(&dir);
}

#[test]
fn damaged_staged_data_is_an_error_and_never_data() {
    let (dir, pool, volume) = fixture();
    write(&volume, 0, 0xAB, 4096);
    write(&volume, 8192, 0xCD, 8192);
    let flipped = flip_in_journal(&dir, &[0xAB; 512]);
    assert_eq!(flipped, 1);
    assert_eq!(try_read(&volume, 0, 512), Err(ErrorKind::Corrupt), "also a part of the piece that is whole");
    assert_eq!(try_read(&volume, 0, 16 * KIB), Err(ErrorKind::Corrupt));
    assert_eq!(read(&volume, 8192, 8192), vec![0xCD; 8192]);
    assert_eq!(read(&volume, 4096, 4096), vec![1; 4096]);
    // It is not moved to its place either.
    volume.flush().unwrap();
    assert!(pool.drain().is_err());
    assert!(matches!(pool.health(), Health::Poisoned(_)));
    assert_eq!(try_read(&volume, 0, 4096), Err(ErrorKind::Corrupt));
}

/// Flips a bit in the last sector of the first run of `pattern` in each journal file. Returns the
/// number of files with such a run.
fn flip_in_journal(dir: &Faults, pattern: &[u8]) -> usize {
    let names = dir.files.list().unwrap().into_iter().filter(|n| n.starts_with("journal"));
    names
        .filter(|name| {
            let disk = dir.files.open(name, OpenMode::Existing).unwrap();
            let mut content = vec![0; disk.len().unwrap() as usize];
            disk.read_at(&mut content, 0).unwrap();
            let Some(at) = content.windows(pattern.len()).position(|w| w == pattern) else { return false };
            let at = at + 4095;
            assert_eq!(content[at], pattern[0]);
            disk.write_at(&[content[at] ^ 4], at as u64).unwrap();
            true
        })
        .count()
}

/// Syncs of the data directory for other purposes also make the journal's names durable.
#[test]
fn a_failed_directory_sync_poisons_whatever_it_was_for() {
    let (dir, pool, volume) = fixture();
    pool.set_cdp("a", Some(CdpSettings { encoding: Encoding::Undo, ..CdpSettings::default() })).unwrap();
    // The content has no zeros and few different bytes: old history is worth compressing.
    for round in 0..20u8 {
        write(&volume, 0, round + 1, 31 * KIB);
    }
    pool.drain().unwrap();
    assert!(pool.cdp("a").unwrap().segments > 1);
    dir.fail(Failing::Syncs(SyncPurpose::Dir));
    while pool.maintain().is_ok_and(|progress| progress == Progress::Worked) {}
    dir.heal();
    assert_poisoned(&pool, &volume);
    recovers(&dir, pool, volume);
}

/// Makes a pool like [`fixture`], with a second physical volume, and nothing waiting.
fn fixture_of_two() -> (Faults, Arc<Pool>, Arc<Volume>) {
    let (dir, pool, volume) = fixture();
    pool.add_pv(&pv("pv-1.img")).unwrap();
    pool.drain().unwrap();
    (dir, pool, volume)
}

/// Returns the used bytes of each physical volume.
fn used(pool: &Pool) -> Vec<u64> {
    pool.pvs().iter().map(|pv| pv.used).collect()
}

/// Space on a full file system is not used, only out of reach: other physical volumes serve, and it
/// comes back by itself.
#[test]
fn a_full_file_system_below_and_room_again() {
    let (dir, pool, volume) = fixture_of_two();
    let whole = pool.info();
    dir.fail(Failing::Room("pv-0"));
    assert_eq!(try_write(&volume, 64 * KIB, 2, 512 * KIB), Ok(()));
    pool.drain().unwrap();
    let info = pool.info();
    assert_eq!(info.used, whole.used + 512 * KIB);
    let first = pool.pvs()[0].used;
    assert!(info.available < whole.available - 3 * MIB, "{} of {}", info.available, whole.available);
    // A physical volume that is half out of reach can be set aside and taken back.
    for draining in [true, false] {
        pool.drain_pv("pv-0.img", draining).unwrap();
        pool.drain().unwrap();
    }
    assert_eq!((pool.info().capacity, pool.info().used), (info.capacity, info.used));
    assert_eq!(try_write(&volume, 0, 3, 64 * KIB), Ok(()));

    dir.heal();
    while pool.maintain().unwrap() != Progress::Idle {}
    let again = pool.info();
    assert_eq!((again.capacity, again.used), (info.capacity, info.used));
    assert_eq!(again.available, whole.available - 512 * KIB);
    assert!(pool.pvs()[0].used <= first);
    assert_eq!(read(&volume, 64 * KIB, 512 * KIB), vec![2; 512 << 10]);
    assert_eq!(read(&volume, 0, 64 * KIB), vec![3; 64 << 10]);
}

/// Each file system counts for itself: a full one does not affect the use of another.
#[test]
fn file_systems_below_count_each_for_itself() {
    let (dir, pool, volume) = fixture_of_two();
    dir.fail(Failing::RoomBut(64 * MIB + 2 * MIB + 32 * KIB));
    while pool.maintain().unwrap() != Progress::Idle {}
    assert!((MIB..=2 * MIB).contains(&pool.info().available), "{} bytes", pool.info().available);
    assert_eq!(try_write(&volume, 64 * KIB, 2, 512 * KIB), Ok(()));
    pool.drain().unwrap();
    assert_eq!(used(&pool)[1], 512 * KIB);
    // The content on the full one can move to the other.
    pool.drain_pv("pv-0.img", true).unwrap();
    while pool.maintain().unwrap() != Progress::Idle {}
    assert_eq!(used(&pool)[0], 0);
    assert_eq!(read(&volume, 32 * KIB, 64 * KIB), [[1; 32 << 10], [2; 32 << 10]].concat());
}

/// The space that the catalog will need of a file system is left to it while there are extents
/// elsewhere. But promises are kept.
#[test]
fn margins_are_used_last() {
    let (dir, pool, volume) = fixture_of_two();
    let first = used(&pool)[0];
    dir.fail(Failing::Margin("pv-0"));
    assert_eq!(try_write(&volume, 64 * KIB, 2, 512 * KIB), Ok(()));
    pool.drain().unwrap();
    assert_eq!(used(&pool), [first, 512 * KIB]);
    dir.heal();
    // One promise was made before the file system was full, and the other before draining began.
    assert_eq!(try_write(&volume, 640 * KIB, 3, 256 * KIB), Ok(()));
    pool.drain_pv("pv-1.img", true).unwrap();
    dir.fail(Failing::Margin("pv-0"));
    pool.drain().unwrap();
    assert!(used(&pool)[0] >= first + 256 * KIB, "{:?}", used(&pool));
    assert_eq!(read(&volume, 640 * KIB, 256 * KIB), vec![3; 256 << 10]);
}

/// Among the margins, that of the catalog's and logs' file system is used last of all.
#[test]
fn the_catalogs_margin_is_used_last_of_all() {
    let (dir, pool, volume) = fixture_of_two();
    let first = used(&pool)[0];
    assert_eq!(try_write(&volume, 64 * KIB, 2, 512 * KIB), Ok(()));
    // This was promised while there was room.
    dir.fail(Failing::Margins);
    pool.drain().unwrap();
    assert_eq!(used(&pool), [first, 512 * KIB]);
    assert_eq!(read(&volume, 64 * KIB, 512 * KIB), vec![2; 512 << 10]);
}

/// A record has what was durable when it was written. What was durable and is missing is damage,
/// and not the end of the log.
#[test]
fn the_word_of_a_later_record_counts() {
    let (dir, pool, volume) = fixture();
    write(&volume, 0, 0xAB, 4096);
    volume.flush().unwrap();
    write(&volume, 4096, 0xCD, 4096);
    drop((volume, pool));
    assert_eq!(flip_in_journal(&dir, &[0xAB; 512]), 1);
    let opened = Pool::open(dir.dir(), world(1), PoolOptions::default());
    assert_eq!(opened.map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// LSNs of lost records are used up: they are never mistaken for others.
#[test]
fn lsns_of_lost_records_do_not_come_again() {
    let (dir, pool, volume) = fixture();
    volume.flush().unwrap();
    write(&volume, 0, 0xAB, 4096);
    let first = pool.stats().sequenced_lsn;
    write(&volume, 4096, 0xCD, 4096);
    drop((volume, pool));
    assert_eq!(flip_in_journal(&dir, &[0xAB; 512]), 1);
    let pool = open(&dir);
    let volume = pool.open_volume("a", false).unwrap();
    assert_eq!(read(&volume, 0, 8192), vec![1; 8192], "both are lost");
    write(&volume, 0, 3, 4096);
    assert!(pool.stats().sequenced_lsn > first.next(), "{} after {first}", pool.stats().sequenced_lsn);
}

/// A history does not make content from what a disk has changed by itself.
#[test]
fn damage_between_two_records_is_lost_and_never_shown() {
    let (dir, pool, volume) = fixture_with(PoolOptions { repairs: false, ..PoolOptions::default() });
    pool.set_cdp("a", Some(CdpSettings { encoding: Encoding::Undo, ..CdpSettings::default() })).unwrap();
    write(&volume, 0, 2, 4096);
    pool.drain().unwrap();
    let lsn = pool.stats().sequenced_lsn;
    let disk = dir.files.open("pv-0.img", OpenMode::Existing).unwrap();
    let mut content = vec![0; disk.len().unwrap() as usize];
    disk.read_at(&mut content, 0).unwrap();
    let at = content.windows(4096).position(|w| w == [2; 4096]).unwrap() as u64;
    disk.write_at(&[9], at + 2000).unwrap();
    write(&volume, 0, 3, 512);
    pool.drain().unwrap();
    let past = pool.open_moment("a", &Moment::Lsn(lsn)).unwrap();
    assert_eq!(try_read(&past, 0, 4096), Err(ErrorKind::Lost));
    assert_eq!(read(&past, 4096, 4096), vec![1; 4096]);
}

/// A log with a hole must not count as whole, whichever of its writes fails. Writes of a batch that
/// is recorded beside the batch before it are waited for before that batch is even in place.
#[test]
fn a_write_of_a_history_that_fails_leaves_no_hole_in_it() {
    let (mut failed, mut made_again) = (0, 0);
    for number in 0.. {
        let (dir, pool, volume) = history_fixture();
        let mut moments = vec![(pool.stats().sequenced_lsn, 1)];
        for byte in 2..=4 {
            (0..256).for_each(|n| write(&volume, n * 64 * KIB, byte, 64 * KIB));
            moments.push((pool.stats().sequenced_lsn, byte));
        }
        volume.flush().unwrap();
        dir.fail(Failing::LogWrite(number));
        let drained = pool.drain();
        let reached = dir.logged.load(Ordering::Relaxed) > number;
        if drained.is_err() {
            failed += 1;
            assert!(matches!(pool.health(), Health::Poisoned(_)));
        } else if reached {
            made_again += 1;
        }
        drop((pool, volume));
        dir.heal();
        let pool = open(&dir);
        pool.drain().unwrap();
        for &(lsn, byte) in &moments {
            let moment = pool.open_moment("a", &Moment::Lsn(lsn)).unwrap();
            for at in (0..16 * MIB).step_by(MIB as usize) {
                let found = try_read(&moment, at, MIB);
                assert_eq!(
                    found.map(|f| f == vec![byte; f.len()]),
                    Ok(true),
                    "{number}: LSN {lsn}, byte {at}"
                );
            }
        }
        if !reached {
            break;
        }
    }
    assert!(failed > 0 && made_again > 0, "{failed} poisoned, {made_again} thrown away and made again");
}

/// Makes a pool with a volume whose 16 MiB hold ones, in place, and whose history begins there. Its
/// batches have several pieces of the log, and it is always pressed to destage.
fn history_fixture() -> (Faults, Arc<Pool>, Arc<Volume>) {
    let dir = Faults::default();
    let config = PoolConfig { journal_size: 64 * MIB, segment_size: 8 * MIB, ..PoolConfig::default() };
    let spec = PvSpec { size: Some(64 * MIB), ..pv("pv-0.img") };
    Pool::create(dir.dir(), &world(1), &config, Placement::Anywhere, &[spec]).unwrap();
    let pool = open_with(&dir, PoolOptions { destage_start_percent: 0, ..PoolOptions::default() });
    let volume = testing::volume(&pool, "a", 16 * MIB, 16 * KIB);
    (0..256).for_each(|n| write(&volume, n * 64 * KIB, 1, 64 * KIB));
    pool.drain().unwrap();
    let keep = CdpSettings {
        encoding: Encoding::Undo,
        compression: Compression::None,
        anchors: AnchorPolicy::Never,
        ..CdpSettings::default()
    };
    pool.set_cdp("a", Some(keep)).unwrap();
    (dir, pool, volume)
}
