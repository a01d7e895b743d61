//! Slots that an opening writes again, because nothing names them as durable.

use super::*;
use hindcast_engine::disk::{MemDir, OpenMode};
use hindcast_engine::pool::DirectMin;
use hindcast_engine::salvage::SalvageOptions;
use hindcast_engine::testing::world;
use std::ops::Range;

/// Number of chunks of 4 KiB that are written by reference. Their slots lie between others that are
/// in use.
const CHUNKS: u64 = 64;

/// Makes a pool in which single slots are referred to, between slots that are in use.
fn scattered() -> Site {
    let site = site(16);
    let rest = site.volume("rest", 64 * MIB, 4 * KIB);
    let mut filled = 0;
    while site.pool.info().available > MIB {
        write(&rest, filled, 1, 512 * KIB);
        filled += 512 * KIB;
        site.pool.drain().unwrap();
    }
    (0..filled).step_by(8 << 10).for_each(|at| rest.discard(at, 4 * KIB, false).unwrap());
    site.idle();
    let v = site.volume("v", MIB, 4 * KIB);
    site.pool.set_volume_direct_min("v", DirectMin::Bytes(4 * KIB)).unwrap();
    // Slots are lent when a write has wanted them, and fresh extents are used up first.
    for _ in 0..8 {
        (0..CHUNKS).for_each(|n| write(&v, n * 4 * KIB, 2, 4 * KIB));
        site.idle();
    }
    let before = direct(&site.pool);
    (0..CHUNKS).for_each(|n| write(&v, n * 4 * KIB, 3, 4 * KIB));
    assert_eq!(direct(&site.pool) - before, CHUNKS * 4 * KIB);
    site
}

fn assert_content(pool: &Arc<Pool>) {
    let (v, rest) = (pool.open_volume("v", true).unwrap(), pool.open_volume("rest", true).unwrap());
    assert_bytes(&v, 0, 3, CHUNKS * 4 * KIB);
    let mut filled = 0;
    while read(&rest, filled + 4 * KIB, 512)[0] != 0 {
        assert_bytes(&rest, filled, 0, 4 * KIB);
        assert_bytes(&rest, filled + 4 * KIB, 1, 4 * KIB);
        filled += 8 * KIB;
    }
    assert!(filled > 8 * MIB, "{filled}");
}

/// Opens the pool, and returns the bytes of the physical volume that were written, one range for
/// each write, until `stops` is true of one. That write fails, and all that follows.
fn open(dir: &MemDir, stops: bool) -> (Option<Arc<Pool>>, Vec<Range<u64>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (noted, dead) = (log.clone(), Arc::new(AtomicBool::new(false)));
    let seen = FaultyDir::new(dir.clone(), move |op: &Op<'_>| {
        let error = || Some(io::Error::from_raw_os_error(5));
        if dead.load(Ordering::Relaxed) {
            return error();
        }
        match &op.act {
            // What comes before is the label and the stamps.
            Act::Write(bytes) if op.name.starts_with("pv") && bytes.start >= MIB => {
                noted.lock().unwrap().push(bytes.clone());
                dead.store(stops, Ordering::Relaxed);
                if stops { error() } else { None }
            }
            _ => None,
        }
    });
    let pool = Pool::open(seen, world(7), PoolOptions::default());
    assert_eq!(pool.is_err(), stops, "{:?}", pool.err());
    let written = log.lock().unwrap().clone();
    (pool.ok(), written)
}

#[test]
fn slots_near_each_other_are_written_again_in_one_piece() {
    let dir = scattered().kill();
    let (pool, written) = open(&dir, false);
    // Each piece costs two syncs.
    assert!(!written.is_empty() && written.len() < CHUNKS as usize / 4, "{written:?}");
    assert_content(&pool.unwrap());
}

/// The power fails while an opening writes a piece again, and leaves garbage where it was writing:
/// also in the content of others, between the slots.
#[test]
fn a_piece_that_was_torn_is_restored_from_its_copy() {
    let dir = scattered().kill();
    let (_, written) = open(&dir, true);
    let torn = written.last().unwrap().clone();
    assert!(torn.end - torn.start > 8 * KIB, "there is something between the slots");
    let garbage = vec![0xAA; (torn.end - torn.start) as usize];
    dir.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&garbage, torn.start).unwrap();

    let salvaged = Pool::open_salvage(Arc::new((*dir).clone()), world(8), SalvageOptions::default()).unwrap();
    assert_content(&salvaged);
    drop(salvaged);
    let read_only = Pool::open_read_only(Arc::new((*dir).clone()), world(8), PoolOptions::default()).unwrap();
    assert_content(&read_only);
    drop(read_only);
    let (pool, _) = open(&dir, false);
    assert_content(&pool.unwrap());
}
