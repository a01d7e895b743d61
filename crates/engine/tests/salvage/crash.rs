//! Salvage of a batch that was cut short.

use crate::fixture::*;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir};
use hindcast_engine::pool::Pool;
use hindcast_engine::testing::{Act, FaultyDir, KIB, MIB, Op, world};
use std::sync::{Arc, Mutex};

type Copies = Arc<Mutex<Option<Vec<MemDir>>>>;

/// Returns a directory that is copied at each sync, as a crash would leave it. It is also copied at
/// each write: a part of the batch is in place, too.
fn crashing(files: &MemDir) -> (Arc<dyn Dir>, Copies) {
    let (all, copies) = (files.clone(), Copies::default());
    let to = copies.clone();
    let dir = FaultyDir::new(files.clone(), move |op: &Op<'_>| {
        if let (false, Act::Sync(_) | Act::Write(_), Some(copies)) =
            (op.name.is_empty(), &op.act, &mut *to.lock().unwrap())
        {
            copies.push(all.copy());
        }
        None
    });
    (dir, copies)
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
    let (crashing, copies) = crashing(&dir);
    let pool = Pool::open(crashing, world(4), options()).unwrap();
    let mut f = Fixture { dir, pool, shown, rng };
    for n in 0..6 {
        f.write("a", n * 128 * KIB + 512, 3 * KIB);
    }
    f.snap("a", "s");
    f.write("a", 4 * KIB, 64 * KIB);
    *copies.lock().unwrap() = Some(Vec::new());
    f.pool.drain().unwrap();
    let copies = copies.lock().unwrap().take().unwrap();
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
    let (crashing, copies) = crashing(&dir);
    let pool = Pool::open(crashing, world(4), options()).unwrap();
    let mut f = Fixture { dir, pool, shown, rng };
    for n in 0..4 {
        f.write("two", n * 400 * KIB, 8 * KIB);
        f.write("one", n * 400 * KIB, 8 * KIB);
    }
    *copies.lock().unwrap() = Some(Vec::new());
    f.pool.drain().unwrap();
    let copies = copies.lock().unwrap().take().unwrap();
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
