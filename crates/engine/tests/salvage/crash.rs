//! Salvage of a batch that was cut short.

use crate::common::{KIB, MIB};
use crate::fixture::*;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, Disk, MemDir, OpenMode, SyncPurpose};
use hindcast_engine::pool::Pool;
use std::io;
use std::sync::{Arc, Mutex};

/// A directory that is copied at each sync, as a crash would leave it.
#[derive(Clone)]
struct Crashing {
    inner: MemDir,
    copies: Arc<Mutex<Option<Vec<MemDir>>>>,
}

struct CrashingDisk {
    inner: Arc<dyn Disk>,
    dir: Crashing,
}

impl Dir for Crashing {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(CrashingDisk { inner: self.inner.open(name, mode)?, dir: self.clone() }))
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(CrashingDisk { inner: self.inner.open_locked(name, mode)?, dir: self.clone() }))
    }
    forward!(inner: lock remove rename list sync);
}

impl Disk for CrashingDisk {
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        if let Some(copies) = &mut *self.dir.copies.lock().unwrap() {
            copies.push(self.dir.inner.copy());
        }
        self.inner.sync(purpose)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        // A part of the batch is in place, too.
        if let Some(copies) = &mut *self.dir.copies.lock().unwrap() {
            copies.push(self.dir.inner.copy());
        }
        self.inner.write_at(buf, offset)
    }
    forward!(inner: read_at try_read_at write_vectored_at len set_len allocate punch backing_available advise_random is_block_device);
}

/// Wherever a batch was cut short, reads find in the journal what may be in place in part. Nothing
/// is lost, moments included.
#[test]
fn a_batch_that_was_interrupted_is_shown_as_it_was_acknowledged() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    f.pool.drain().unwrap();
    let (lsn, then) = (f.pool.stats().sequenced_lsn, f.shown[&("a".to_owned(), None)].clone());
    let Fixture { dir, pool, shown, rng } = f;
    drop(pool);
    let crashing = Crashing { inner: dir.clone(), copies: Arc::default() };
    let pool = Pool::open(Arc::new(crashing.clone()), world(4), options()).unwrap();
    let mut f = Fixture { dir, pool, shown, rng };
    for n in 0..6 {
        f.write("a", n * 128 * KIB + 512, 3 * KIB);
    }
    f.snap("a", "s");
    f.write("a", 4 * KIB, 64 * KIB);
    *crashing.copies.lock().unwrap() = Some(Vec::new());
    f.pool.drain().unwrap();
    let copies = crashing.copies.lock().unwrap().take().unwrap();
    let (_, model) = f.kill();
    assert!(copies.len() > 10, "{}", copies.len());
    for copy in copies {
        let pool = salvage(&copy).unwrap();
        assert!(pool.salvage().unwrap().is_clean(), "{:?}", pool.salvage());
        assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
        let mut data = vec![0; MIB as usize];
        pool.open_moment("a", &Moment::Lsn(lsn)).unwrap().read(0, &mut data).unwrap();
        assert!(data == then);
    }
}

/// The batch can't be completed, because a physical volume that it writes to is missing. Nothing of
/// the volume on the other one is lost, and reads find the batch in the journal.
#[test]
fn a_batch_that_can_not_be_completed_stays_half_done() {
    let mut f = Fixture::new(&[2, 2]);
    for name in ["one", "two"] {
        // Each volume takes the whole of a physical volume.
        f.create(name, 2 * MIB, 16 * KIB);
        f.write(name, 0, 2 * MIB);
        f.pool.drain().unwrap();
    }
    let Fixture { dir, pool, shown, rng } = f;
    drop(pool);
    let crashing = Crashing { inner: dir.clone(), copies: Arc::default() };
    let pool = Pool::open(Arc::new(crashing.clone()), world(4), options()).unwrap();
    let mut f = Fixture { dir, pool, shown, rng };
    for n in 0..4 {
        f.write("two", n * 400 * KIB, 8 * KIB);
        f.write("one", n * 400 * KIB, 8 * KIB);
    }
    *crashing.copies.lock().unwrap() = Some(Vec::new());
    f.pool.drain().unwrap();
    let copies = crashing.copies.lock().unwrap().take().unwrap();
    let (_, model) = f.kill();
    let mut interrupted = 0;
    for copy in copies {
        for (missing, left) in [("pv-1.img", "one"), ("pv-0.img", "two")] {
            let copy = copy.copy();
            copy.remove(missing).unwrap();
            let pool = salvage(&copy).unwrap();
            let seen = model.check(&pool);
            assert!(seen.lost > MIB, "{seen:?}");
            assert!(losses(&pool, left, None).is_empty(), "{:?}", losses(&pool, left, None));
            let stats = pool.stats();
            interrupted += u32::from(stats.preserved_lsn > stats.destaged_lsn);
        }
    }
    assert!(interrupted > 2, "{interrupted}");
}
