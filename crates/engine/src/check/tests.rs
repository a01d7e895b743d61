//! Every kind of damage is found and named; what is repairable is repaired.

use super::*;
use crate::catalog::{ExtentRecord, Txn};
use crate::device::{BlockDevice, WriteOp};
use crate::disk::MemDir;
use crate::map::page::{Entry, Slot};
use crate::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec};
use crate::testing::{new_volume, world};
use bytes::Bytes;

const CHUNK: u64 = 4096;

/// A pool with one volume whose first ten chunks are in place.
fn pool() -> Arc<MemDir> {
    let dir = Arc::new(MemDir::new());
    let config =
        PoolConfig { extent_size: 64 << 10, journal_size: 4 << 20, segment_size: 1 << 20, atomic_unit: 4096 };
    let pv = PvSpec { path: "pv-0.img".into(), size: Some(2 << 20), force: false };
    Pool::create(dir.clone(), &world(), &config, Placement::Anywhere, &[pv]).unwrap();
    let pool = Pool::open(dir.clone(), world(), PoolOptions::default()).unwrap();
    pool.create_volume(&NewVolume { name: "a".into(), ..new_volume(4 << 20) }).unwrap();
    let volume = pool.open_volume("a", false).unwrap();
    volume.write(&mut [WriteOp::new(0, Bytes::from(vec![1; 10 * CHUNK as usize]))], false);
    pool.drain().unwrap();
    volume.write(&mut [WriteOp::new(0, Bytes::from(vec![2; 512]))], true);
    pool.close().unwrap();
    dir
}

fn run(dir: &Arc<MemDir>, repair: bool) -> CheckReport {
    check(dir.clone(), &CheckOptions { repair }, &mut |_, _| {}).unwrap()
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
    Pool::open(dir, world(), PoolOptions::default()).unwrap();
}

#[test]
fn entries_that_lie_are_found_and_left_alone() {
    let dir = pool();
    damage(&dir, |catalog, txn| {
        let (branch, _) = catalog.branches().unwrap()[0];
        let mut page = catalog.page((branch, 0)).unwrap().unwrap();
        let first = page.get(0).unwrap();
        page.set(1, first);
        page.set(2, Entry { slot: Slot::new(0, first.slot.offset() + 512), ..first });
        page.set(3, Entry { slot: Slot::new(7, first.slot.offset()), ..first });
        page.set(4, Entry { born: 9, ..page.get(4).unwrap() });
        page.set(5, Entry { slot: Slot::new(0, first.slot.offset() + 15 * CHUNK), ..first });
        txn.put_pages([((branch, 0), &page)].into_iter()).unwrap();
        txn.put_pages([((branch, 9), &page), ((99, 0), &page)].into_iter()).unwrap();
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
fn a_damaged_page_is_named_never_served_and_keeps_its_space() {
    let dir = pool();
    let mut branch = 0;
    damage(&dir, |catalog, txn| {
        branch = catalog.branches().unwrap()[0].0;
        let mut bytes = catalog.page((branch, 0)).unwrap().unwrap().encode((branch, 0));
        bytes[50] ^= 1;
        txn.put_raw_page((branch, 0), &bytes).unwrap();
    });
    let report = run(&dir, true);
    assert_eq!(codes(&report), ["map-page", "leaked-slot"]);
    assert!(report.findings.iter().all(|f| !f.repairable && !f.repaired));
    let pool = Pool::open(dir, world(), PoolOptions::default()).unwrap();
    let volume = pool.open_volume("a", false).unwrap();
    let error = volume.read(CHUNK, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&format!("map page 0 of branch {branch}")), "{error}");
    assert!(matches!(pool.health(), crate::pool::Health::Warning(w) if w[0].text.contains("map page 0")));
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
    assert_eq!(codes(&run(&dir, false)), ["pv", "journal"]);
    let refused = Pool::open(dir.clone(), world(), PoolOptions::default()).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    let catalog = dir.open(crate::catalog::FILE, OpenMode::Existing).unwrap();
    catalog.write_at(&vec![0x5A; catalog.len().unwrap() as usize], 0).unwrap();
    let report = check(dir, &CheckOptions::default(), &mut |_, _| {});
    assert!(report.map_or_else(
        |e| e.kind() == ErrorKind::Corrupt || e.kind() == ErrorKind::Io,
        |r| codes(&r) == ["catalog"]
    ));
}
