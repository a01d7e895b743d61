//! Tests of the store of sums.

use super::*;
use crate::catalog::PvRecord;
use crate::disk::MemDir;

fn pv(dir: &MemDir, id: u32) -> Arc<Pv> {
    let disk = dir.open(&format!("pv-{id}"), OpenMode::Create).unwrap();
    let uuid = Uuid::from_bytes([id as u8 + 1; 16]);
    Pv::new(id, &PvRecord::new(uuid, format!("pv-{id}"), 4), disk)
}

/// Sums whose cache holds one block in each shard.
fn sums(dir: &MemDir) -> UnitSums {
    UnitSums::new(Arc::new(dir.clone()), 1, true)
}

fn read(sums: &UnitSums, pv: &Pv, first: u64, count: usize) -> Vec<u32> {
    let mut out = vec![7; count];
    sums.get(pv, first, &mut out).unwrap();
    out
}

#[test]
fn file_names_are_those_of_one_physical_volume() {
    assert_eq!(file_name(0x1a), "sums-0000001a");
    assert_eq!(file_owner("sums-0000001a"), Some(0x1a));
    assert_eq!(["sums-1", "sums-0000001g", "sum-0000001a", "sums-0000001a.new"].map(file_owner), [None; 4]);
}

#[test]
fn sums_are_kept_across_blocks_and_openings() {
    let dir = MemDir::new();
    let (a, b) = (pv(&dir, 0), pv(&dir, 1));
    let store = sums(&dir);
    assert_eq!(read(&store, &a, 1000, 20), vec![UNKNOWN; 20]);
    assert!(!dir.list().unwrap().contains(&file_name(0)), "reading makes no file");
    let values: Vec<u32> = (1..=20).collect();
    store.set(&a, 1000, &values).unwrap();
    store.set(&b, 1000, &values[..1]).unwrap();
    // More blocks than the cache holds.
    (2..200).for_each(|block| store.set(&a, block * 1008 + 5, &[block as u32 + 1]).unwrap());
    assert_eq!(read(&store, &a, 1000, 20), values);
    store.flush().unwrap();
    assert!(store.dirty.lock().is_empty());
    store.set(&a, 1001, &[99]).unwrap();

    // What was not flushed is not on disk.
    let store = sums(&dir);
    assert_eq!(read(&store, &a, 1000, 20), values);
    assert_eq!(read(&store, &b, 999, 3), [UNKNOWN, 1, UNKNOWN]);
    (2..200).for_each(|block| assert_eq!(read(&store, &a, block * 1008 + 5, 1), [block as u32 + 1]));
    store.forget(1).unwrap();
    assert_eq!(read(&store, &b, 1000, 1), [UNKNOWN]);
    assert!(!dir.list().unwrap().contains(&file_name(1)));
}

#[test]
fn a_torn_write_leaves_the_copy_before_it() {
    let dir = MemDir::new();
    let a = pv(&dir, 0);
    let store = sums(&dir);
    for value in 1..=5 {
        store.set(&a, 0, &[value]).unwrap();
        store.flush().unwrap();
    }
    let file = dir.open(&file_name(0), OpenMode::Existing).unwrap();
    // The fifth copy has an odd sequence number, so it is at the second place.
    file.write_at(&[0xEE; 100], 4096 + 100).unwrap();
    let store = sums(&dir);
    assert_eq!((read(&store, &a, 0, 1), store.damaged_blocks()), (vec![4], 0));
    // The next write goes over the damaged copy.
    store.set(&a, 0, &[6]).unwrap();
    store.flush().unwrap();
    file.write_at(&[0xEE; 100], 100).unwrap();
    assert_eq!(read(&sums(&dir), &a, 0, 1), [6]);
    file.write_at(&[0xEE; 100], 4196).unwrap();
    let store = sums(&dir);
    assert_eq!((read(&store, &a, 0, 1), store.damaged_blocks()), (vec![UNKNOWN], 1));
}

#[test]
fn sums_of_another_physical_volume_with_the_same_number_do_not_count() {
    let dir = MemDir::new();
    let a = pv(&dir, 0);
    let store = sums(&dir);
    store.set(&a, 0, &[1]).unwrap();
    store.flush().unwrap();
    let record = PvRecord::new(Uuid::from_bytes([9; 16]), String::new(), 4);
    let other = Pv::new(0, &record, dir.open("pv-0", OpenMode::Existing).unwrap());
    let store = sums(&dir);
    assert_eq!((read(&store, &other, 0, 1), store.damaged_blocks()), (vec![UNKNOWN], 1));
}

#[test]
fn a_unit_is_condemned_only_while_nobody_writes_it() {
    let dir = MemDir::new();
    let a = pv(&dir, 0);
    let store = sums(&dir);
    let at = |unit: u64| DATA_START + unit * BLOCK;
    store.set(&a, 3, &[33]).unwrap();
    let judge = |unit, sum| {
        let mut condemned = false;
        let judged = store.judge(&a, at(unit), sum, || condemned = true).unwrap();
        assert_eq!(judged, condemned);
        judged
    };
    assert!(judge(3, 33));
    assert!(!judge(3, 34), "the sum is another one by now");
    let writing = store.writing(0, at(2)..at(3) + 1);
    assert!(!judge(3, 33));
    store.set(&a, 4, &[44]).unwrap();
    assert!(judge(4, 44), "the write ends before it");
    store.wait_written(0, &(at(4)..at(5)));
    store.wait_written(1, &(at(3)..at(4)));
    drop(writing);
    store.wait_written(0, &(at(3)..at(4)));
    assert!(judge(3, 33));
}
