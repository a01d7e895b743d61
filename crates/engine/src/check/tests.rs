//! Every kind of damage is found and named; what is repairable is repaired.

use super::*;
use crate::area::Area;
use crate::catalog::PageKey;
use crate::catalog::page::{Entry, Slot};
use crate::catalog::{ExtentRecord, Txn};
use crate::device::{BlockDevice, WriteOp};
use crate::disk::{MemDir, OpenMode};
use crate::ids::Epoch;
use crate::pool::Pool;
use crate::settings::PoolOptions;
use crate::space::label::Label;
use crate::testing::{Act, FaultyDir, Op, Site, new_volume, world};
use bytes::Bytes;
use uuid::Uuid;

const CHUNK: u64 = 4096;

/// A pool with one volume whose first ten chunks are in place.
fn pool() -> Arc<MemDir> {
    let site = Site::builder(1).journal(4 << 20, 1 << 20).build();
    let volume = site.volume("a", 4 << 20, CHUNK);
    volume.write(&mut [WriteOp::new(0, Bytes::from(vec![1; 10 * CHUNK as usize]))], false);
    site.pool.drain().unwrap();
    volume.write(&mut [WriteOp::new(0, Bytes::from(vec![2; 512]))], true);
    site.pool.close().unwrap();
    drop(volume);
    site.kill()
}

fn run(dir: &Arc<MemDir>, repair: bool) -> CheckReport {
    check(dir.clone(), &CheckOptions { repair, ..CheckOptions::default() }, &mut |_, _| {}).unwrap()
}

fn codes(report: &CheckReport) -> Vec<&'static str> {
    report.findings.iter().map(|f| f.code).collect()
}

fn damage(dir: &Arc<MemDir>, change: impl FnOnce(&Catalog, &mut Txn<'_>)) {
    let catalog = Catalog::open(&**dir, 1 << 20).unwrap();
    let mut txn = catalog.begin().unwrap();
    change(&catalog, &mut txn);
    txn.commit().unwrap();
}

#[test]
fn a_sound_pool_is_clean() {
    let report = run(&pool(), false);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.pvs, report.volumes, report.chunks, report.slots), (1, 1, 10, 10));
    assert_eq!((report.map_pages, report.extents, report.journal_records), (1, 1, 1));
}

#[test]
fn a_check_that_repairs_nothing_writes_nothing() {
    let dir = pool();
    let content = || {
        dir.list().unwrap().into_iter().map(|name| {
            let disk = dir.open(&name, OpenMode::ReadOnly).unwrap();
            let mut bytes = vec![0; disk.len().unwrap() as usize];
            disk.read_at(&mut bytes, 0).unwrap();
            (name, bytes)
        })
    };
    let before: Vec<_> = content().collect();
    assert!(run(&dir, false).is_clean());
    for ((name, was), (_, is)) in before.into_iter().zip(content()) {
        assert!(was == is, "{name} changed");
    }
}

#[test]
fn leaks_and_counts_are_found_and_repaired() {
    let dir = pool();
    damage(&dir, |catalog, txn| {
        let mut words = catalog.bitmap(0, 0, 1).unwrap();
        words[0] |= 1 << 15;
        txn.put_extent(0, 0, &ExtentRecord { slot_log2: 12, used: 12 }, &words).unwrap();
        let (id, branch) = catalog.branches().unwrap().swap_remove(0);
        txn.put_branch(id, &BranchRecord { slots: 3, ..branch }).unwrap();
    });
    let report = run(&dir, false);
    assert_eq!(codes(&report), ["slot-count", "extent-count", "leaked-slot"]);
    assert!(!report.is_clean());
    let repaired = run(&dir, true);
    assert!(repaired.is_clean() && repaired.findings.len() == 3);
    assert!(run(&dir, false).findings.is_empty());
    Pool::open(dir, world(1), PoolOptions::default()).unwrap();
}

/// The row of an extent without used slots is removed. So a row that counts none is damaged, and
/// its slots must not be given out.
#[test]
fn an_extent_that_counts_no_slots_keeps_the_pool_closed_until_a_repair() {
    let dir = pool();
    damage(&dir, |catalog, txn| {
        let words = catalog.bitmap(0, 0, 1).unwrap();
        txn.put_raw_extent((0, 0), &ExtentRecord { slot_log2: 12, used: 0 }, &words).unwrap();
    });
    let closed = Pool::open(dir.clone(), world(1), PoolOptions::default()).map(drop).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Corrupt, "{closed}");
    assert_eq!(codes(&run(&dir, true)), ["extent-count"]);
    Pool::open(dir, world(1), PoolOptions::default()).unwrap();
}

/// Fills all free space of the pool with another volume's data, and returns the chunks of `a` that
/// show it.
fn overwritten(dir: &Arc<MemDir>) -> Vec<u64> {
    let pool = Pool::open(dir.clone(), world(1), PoolOptions::default()).unwrap();
    pool.create_volume(&new_volume("b", 4 << 20, CHUNK)).unwrap();
    let volume = pool.open_volume("b", false).unwrap();
    for n in 0..64 {
        volume.write(&mut [WriteOp::new(n * (32 << 10), Bytes::from(vec![9; 32 << 10]))], false);
        // A damaged part may stop it: what was written by then counts.
        let _ = pool.drain();
    }
    drop((volume, pool));
    let pool = Pool::open(dir.clone(), world(1), PoolOptions::default()).unwrap();
    let volume = pool.open_volume("a", false).unwrap();
    let shows = |chunk: &u64| {
        let mut buf = [0; CHUNK as usize];
        volume.read(chunk * CHUNK, &mut buf).is_ok_and(|()| buf[512..].iter().any(|b| *b != 1))
    };
    (0..10).filter(shows).collect()
}

/// This test guards against a former bug: a repair made counts agree with lost marks, and the pool
/// gave used slots to the next writer.
#[test]
fn a_repair_gives_no_slot_away() {
    use inject::{Injury, injure};
    for injury in Injury::MENDED {
        let dir = pool();
        assert!(injure(&*dir, injury, 7).unwrap(), "{injury:?}");
        assert!(!run(&dir, false).is_clean(), "{injury:?} is found");
        let first = run(&dir, true);
        assert!(first.is_clean(), "{injury:?}: {first:?}");
        assert!(run(&dir, false).findings.is_empty(), "{injury:?}");
        assert_eq!(overwritten(&dir), [0; 0], "{injury:?}");
    }
}

/// Several kinds of damage at once: a repair in doubt keeps leaks, and the next repair, without
/// doubt, removes them.
#[test]
fn a_repair_that_doubts_only_adds_marks() {
    use inject::{Injury, injure};
    for (fatal, other) in Injury::FATAL.into_iter().flat_map(|f| Injury::MENDED.map(|m| (f, m))) {
        let dir = pool();
        assert!(injure(&*dir, other, 3).unwrap() && injure(&*dir, fatal, 3).unwrap());
        let report = run(&dir, true);
        assert!(!report.is_clean() && report.doubt.is_some(), "{fatal:?} {other:?}: {report:?}");
        let again = run(&dir, true);
        assert!(!again.is_clean() && again.doubt.is_some(), "{fatal:?} {other:?}: {again:?}");
        let marked = marks_of(&dir);
        assert!(marked >= 10, "{fatal:?} {other:?}: {marked} of ten slots in use are marked");
        // A page that is gone reads as zeros, but its slots have no other volume's data.
        let shown = overwritten(&dir);
        let nothing_of_b = |chunk: &u64| shows_only(&dir, *chunk, 0);
        assert!(shown.iter().all(nothing_of_b), "{fatal:?} {other:?}: {shown:?}");
        let disk = dir.open("pv-0.img", OpenMode::ReadOnly).unwrap();
        let mut bytes = vec![0; 10 * CHUNK as usize];
        disk.read_at(&mut bytes, crate::space::label::DATA_START).unwrap();
        assert!(bytes.iter().all(|b| matches!(b, 1 | 2)), "{fatal:?} {other:?}: the slots were given away");
    }
}

/// One extent has more marks after a guess than it had slots in use. These marks do not stand for
/// the slots of another extent whose rows are lost.
#[test]
fn marks_that_are_guessed_do_not_hide_marks_that_are_lost() {
    use inject::{Injury, injure};
    let site = Site::builder(1).journal(4 << 20, 1 << 20).build();
    let volume = site.volume("a", 4 << 20, CHUNK);
    // Two extents of 16 slots, of which 4 stay in use.
    volume.write(&mut [WriteOp::new(0, Bytes::from(vec![1; 32 * CHUNK as usize]))], false);
    site.pool.drain().unwrap();
    volume.discard(4 * CHUNK, 12 * CHUNK, false).unwrap();
    volume.discard(20 * CHUNK, 12 * CHUNK, false).unwrap();
    drop(volume);
    site.idle();
    site.pool.close().unwrap();
    let dir = site.kill();
    assert_eq!(marks_of(&dir), 8);
    assert!(injure(&*dir, Injury::BadBitmap, 0).unwrap());
    assert!(injure(&*dir, Injury::LostExtentAndBitmap, 1).unwrap());
    assert!(injure(&*dir, Injury::BadMapPage, 0).unwrap());
    let report = run(&dir, true);
    assert!(codes(&report).contains(&"marks-lost"), "{report:?}");
    let catalog = Catalog::open(&*dir, 1 << 20).unwrap();
    let mut extents = 0;
    catalog.extents(&mut |_, _, _| extents += 1).unwrap();
    assert_eq!(extents, 16, "all extents of 64 KiB are reserved");
}

fn marks_of(dir: &Arc<MemDir>) -> u32 {
    let catalog = Catalog::open(&**dir, 1 << 20).unwrap();
    let mut bytes = 0;
    catalog.extents(&mut |_, _, record| bytes += (record.used as u64) << record.slot_log2).unwrap();
    (bytes / CHUNK) as u32
}

fn shows_only(dir: &Arc<MemDir>, chunk: u64, byte: u8) -> bool {
    let pool = Pool::open(dir.clone(), world(1), PoolOptions::default()).unwrap();
    let mut buf = [0; CHUNK as usize];
    pool.open_volume("a", false).unwrap().read(chunk * CHUNK, &mut buf).unwrap();
    buf[512..].iter().all(|b| *b == byte)
}

fn overwrite_label(dir: &Arc<MemDir>, from: u64) {
    let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    disk.write_at(&vec![7; (4096 - from) as usize], from).unwrap();
}

#[test]
fn a_label_is_written_again_where_it_is_proved_or_named() {
    let relabel = |dir: &Arc<MemDir>, paths: &[&str]| {
        let relabel = paths.iter().map(|p| p.to_string()).collect();
        check(dir.clone(), &CheckOptions { repair: true, relabel, ..CheckOptions::default() }, &mut |_, _| {})
            .unwrap()
    };
    // The rest of the label proves whose it is.
    let dir = pool();
    overwrite_label(&dir, 48);
    let found = run(&dir, false);
    assert!(codes(&found) == ["label"] && found.findings[0].repairable && found.doubt.is_none());
    assert!(Pool::open(dir.clone(), world(1), PoolOptions::default()).is_err());
    assert!(run(&dir, true).is_clean() && run(&dir, false).findings.is_empty());
    // Nothing of the label is left. The disk could be any disk.
    overwrite_label(&dir, 0);
    let found = run(&dir, true);
    assert!(
        codes(&found) == ["label"] && !found.is_clean() && found.findings[0].detail.contains("--relabel")
    );
    assert!(!relabel(&dir, &["pv-1.img"]).is_clean());
    assert!(relabel(&dir, &["pv-0.img"]).is_clean() && run(&dir, false).findings.is_empty());
    // Stamps that were overwritten with the label are written again with it.
    let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    disk.write_at(&[0; 16 << 10], 0).unwrap();
    assert!(relabel(&dir, &["pv-0.img"]).is_clean() && run(&dir, false).findings.is_empty());
    drop(Pool::open(dir.clone(), world(1), PoolOptions::default()).unwrap());
    // Another pool's label is never overwritten.
    let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    let foreign = Label {
        pool: Uuid::from_bytes([9; 16]),
        pv_uuid: Uuid::from_bytes([9; 16]),
        pv: 0,
        extents: 16,
        extent_size: 64 << 10,
    };
    foreign.write_alone(&*disk, "pv-0.img").unwrap();
    let refused = relabel(&dir, &["pv-0.img"]);
    assert!(codes(&refused) == ["pv"] && !refused.is_clean());
    // A disk that is too small for the label is not labelled either.
    overwrite_label(&dir, 0);
    disk.set_len(1 << 20).unwrap();
    assert_eq!(codes(&relabel(&dir, &["pv-0.img"])), ["pv"]);
}

/// Makes a directory read-only, as one on a file system that is mounted so.
fn read_only(dir: &MemDir) -> Arc<dyn Dir> {
    FaultyDir::new(dir.clone(), |op: &Op<'_>| match op.act {
        Act::Open(OpenMode::ReadOnly) | Act::LockExisting | Act::List | Act::Read(_) => None,
        _ => Some(std::io::ErrorKind::ReadOnlyFilesystem.into()),
    })
}

#[test]
fn a_pool_on_a_read_only_file_system_is_checked_and_not_repaired() {
    let dir = pool();
    let mounted = || read_only(&dir);
    let report = check(mounted(), &CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_clean() && report.unlocked.is_none(), "{report:?}");
    let held = dir.lock(crate::space::lock::LOCK_FILE).unwrap();
    let busy = check(mounted(), &CheckOptions::default(), &mut |_, _| {}).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    drop(held);
    let options = CheckOptions { repair: true, ..CheckOptions::default() };
    let refused = check(mounted(), &options, &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    dir.remove(crate::space::lock::LOCK_FILE).unwrap();
    let report = check(mounted(), &CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_clean() && report.unlocked.is_some_and(|why| why.starts_with("lock the pool")));
}

#[test]
fn rows_of_a_map_that_are_gone_are_noticed_by_what_was_counted() {
    let dir = pool();
    assert!(inject::injure(&*dir, inject::Injury::LostMapPage, 0).unwrap());
    let report = run(&dir, true);
    assert_eq!(codes(&report), ["map-lost", "leaked-slot"]);
    assert!(report.findings.iter().all(|f| !f.repairable && !f.repaired));
    assert!(report.doubt.unwrap().why.starts_with("map-lost, branch"));
    assert_eq!(marks_of(&dir), 10);
}

#[test]
fn entries_that_lie_are_found_and_left_alone() {
    let dir = pool();
    damage(&dir, |catalog, txn| {
        let (branch, _) = catalog.branches().unwrap()[0];
        let mut page = catalog.page(PageKey::new(branch, 0)).unwrap().unwrap();
        let first = page.get(0).unwrap();
        page.set(1, first);
        page.set(2, Entry { slot: Slot::new(0, first.slot.offset() + 512), ..first });
        page.set(3, Entry { slot: Slot::new(7, first.slot.offset()), ..first });
        page.set(4, Entry { born: Epoch(9), ..page.get(4).unwrap() });
        page.set(5, Entry { slot: Slot::new(0, first.slot.offset() + 15 * CHUNK), ..first });
        txn.put_pages([(PageKey::new(branch, 0), &page)].into_iter()).unwrap();
        txn.put_pages([(PageKey::new(branch, 9), &page), (PageKey::new(BranchId(99), 0), &page)].into_iter())
            .unwrap();
    });
    let report = run(&dir, true);
    let found: BTreeSet<_> = codes(&report).into_iter().collect();
    for code in [
        "slot-shared",
        "slot-address",
        "slot-extent",
        "born",
        "slot-free",
        "beyond-end",
        "map-branch",
        "leaked-slot",
    ] {
        assert!(found.contains(code), "{code} in {found:?}");
    }
    assert!(!report.is_clean());
}

#[test]
fn a_branch_on_a_pv_that_is_not_dedicated_is_found() {
    for pv in [0, 7] {
        let dir = pool();
        damage(&dir, |catalog, txn| {
            let (id, mut branch) = catalog.branches().unwrap().remove(0);
            branch.area = Area::Only(pv);
            txn.put_branch(id, &branch).unwrap();
        });
        assert!(codes(&run(&dir, false)).contains(&"branch-area"), "{pv}");
    }
}

#[test]
fn a_damaged_page_is_named_never_served_and_keeps_its_space() {
    let dir = pool();
    let mut branch = BranchId(0);
    damage(&dir, |catalog, txn| {
        branch = catalog.branches().unwrap()[0].0;
        let mut bytes =
            catalog.page(PageKey::new(branch, 0)).unwrap().unwrap().encode(PageKey::new(branch, 0));
        bytes[50] ^= 1;
        txn.put_raw_page(PageKey::new(branch, 0), &bytes).unwrap();
    });
    let report = run(&dir, true);
    assert_eq!(codes(&report), ["map-page", "leaked-slot"]);
    assert!(report.findings.iter().all(|f| !f.repairable && !f.repaired));
    let pool = Pool::open(dir, world(1), PoolOptions::default()).unwrap();
    let volume = pool.open_volume("a", false).unwrap();
    let error = volume.read(CHUNK, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&format!("map page 0 of branch {branch}")), "{error}");
    assert!(matches!(pool.health(), crate::health::Health::Warning(w) if w[0].text.contains("map page 0")));
    volume.read(2 << 20, &mut [0; 512]).expect("an undamaged part is served");
    assert_eq!(pool.drain().unwrap_err().kind(), ErrorKind::Poisoned, "it must not be overwritten");
}

#[test]
fn damaged_journals_labels_and_catalogs_are_found() {
    let dir = pool();
    let disk = dir.open("pv-0.img", OpenMode::Existing).unwrap();
    disk.write_at(&[9; 64], 20).unwrap();
    let journal = dir.list().unwrap().into_iter().find(|n| n.starts_with("journal-00000")).unwrap();
    let segment = dir.open(&journal, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; segment.len().unwrap() as usize];
    segment.read_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(512).rposition(|w| w.iter().all(|b| *b == 2)).unwrap();
    segment.write_at(&[3], at as u64).unwrap();
    assert_eq!(codes(&run(&dir, false)), ["label", "journal"]);
    let refused = Pool::open(dir.clone(), world(1), PoolOptions::default()).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    let catalog = dir.open(crate::catalog::FILE, OpenMode::Existing).unwrap();
    catalog.write_at(&vec![0x5A; catalog.len().unwrap() as usize], 0).unwrap();
    let report = check(dir, &CheckOptions::default(), &mut |_, _| {});
    assert!(report.map_or_else(
        |e| e.kind() == ErrorKind::Corrupt || e.kind() == ErrorKind::Io,
        |r| codes(&r) == ["catalog"]
    ));
}
