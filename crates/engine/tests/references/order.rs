//! The order of the operations behind a reference: D1 and D5 of decision 63. The simulator has one
//! thread, so it can't notice that they are broken.

use super::*;

/// An operation, and the name of its file.
type Noted = (String, Act);
/// The operations that are of interest here, in order.
type Seen = Arc<Mutex<Vec<Noted>>>;

/// Makes a pool that notes the writes to its physical volume and to its journal, and the commits of
/// its catalog.
fn observed() -> (Site, Seen) {
    let options = PoolOptions { batch_bytes: 256 * KIB, destage_threads: 1, ..PoolOptions::default() };
    let seen = Seen::default();
    let site = Site::builder(64).journal(8 * MIB, 256 * KIB).options(options).over(|files| {
        let seen = seen.clone();
        FaultyDir::new(files, move |op: &Op<'_>| {
            let is_write = matches!(op.act, Act::Write(_));
            let is_data = is_write && (op.name == "pv-0.img" || op.name.starts_with("journal-"));
            if is_data || op.act == Act::Sync(SyncPurpose::Catalog) {
                seen.lock().unwrap().push((op.name.to_owned(), op.act.clone()));
            }
            None
        })
    });
    enable(&site.pool);
    (site, seen)
}

/// Returns what was seen since the last call.
fn take(seen: &Seen) -> Vec<Noted> {
    std::mem::take(&mut *seen.lock().unwrap())
}

/// The range of a write to the physical volume.
fn slot_of((name, act): &Noted) -> Option<Range<u64>> {
    match act {
        Act::Write(range) if name == "pv-0.img" => Some(range.clone()),
        _ => None,
    }
}

/// The data of a reference is in its slots before the record enters the journal (D1). Otherwise, a
/// kill between the two would leave a record without its data. The records of other writers behind
/// it would be cut off with it, although they were acknowledged.
#[test]
fn data_is_written_before_its_record() {
    let (site, seen) = observed();
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    for (byte, len) in [(1, 64 * KIB), (2, 128 * KIB), (3, MIB)] {
        take(&seen);
        refer(&site.pool, &v, MIB, byte, len);
        let acts = take(&seen);
        let record = acts.iter().position(|(name, _)| name.starts_with("journal-"));
        let before = &acts[..record.expect("the reference has a record")];
        let written: u64 = before.iter().filter_map(slot_of).map(|slot| slot.end - slot.start).sum();
        assert_eq!(written, len, "{acts:?}");
    }
}

/// Writes a part over a reference. Returns the operations of the batch that brings both to their
/// place, and a function that recognizes the write of the part. `earlier` batches are carried out
/// before. A commit before this batch says that the batch is durable in the journal.
fn batch_with_a_part(earlier: u8) -> (Vec<Noted>, impl Fn(&Noted) -> bool) {
    let (site, seen) = observed();
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    for n in 0..earlier {
        inline(&site.pool, &v, 3 * MIB, n, 4 * KIB);
        idle(&site.pool);
    }
    // A batch of its own. Its commit tells how much of the journal is durable.
    for chunk in 0..32 {
        inline(&site.pool, &v, 2 * MIB + chunk * 16 * KIB, 1, 16 * KIB);
    }
    take(&seen);
    refer(&site.pool, &v, MIB, 2, 64 * KIB);
    let slots: Vec<Range<u64>> = take(&seen).iter().filter_map(slot_of).collect();
    assert_eq!(slots.iter().map(|slot| slot.end - slot.start).sum::<u64>(), 64 * KIB);
    inline(&site.pool, &v, MIB + 8 * KIB, 3, 4 * KIB);
    v.flush().unwrap();
    let is_part = move |seen: &Noted| {
        let Some(range) = slot_of(seen) else { return false };
        slots.iter().any(|slot| range.start < slot.end && slot.start < range.end)
    };
    for batch in 0..9 {
        take(&seen);
        site.pool.destage_step().unwrap();
        let acts = take(&seen);
        if acts.iter().any(&is_part) {
            assert!(batch > 0, "no earlier batch was committed");
            assert_bytes(&v, MIB + 8 * KIB, 3, 4 * KIB);
            return (acts, is_part);
        }
    }
    panic!("the part is not written");
}

/// A part that a batch writes over a reference is written after the commit that gives the slot to
/// the chunk (D5), although the batch is known to be durable. A write that need not wait for the
/// commit comes first in every second batch only. So the test looks at two batches in a row.
#[test]
fn parts_over_a_reference_wait_for_the_commit() {
    for earlier in [0, 1] {
        let (acts, is_part) = batch_with_a_part(earlier);
        let is_commit = |(_, act): &Noted| *act == Act::Sync(SyncPurpose::Catalog);
        let first = acts.iter().find(|act| is_part(act) || is_commit(act));
        assert!(first.is_some_and(is_commit), "{earlier}: {acts:?}");
    }
}
