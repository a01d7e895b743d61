//! Tests with pools that an older build wrote. In such a pool the catalog neither counts journal
//! files nor knows a byte to begin at.

use super::LEAST_REFERRED;
use super::segment::FIRST_RECORD;
use crate::device::BlockDevice;
use crate::disk::{Dir, OpenMode};
use crate::pool::Pool;
use crate::settings::PoolOptions;
use crate::testing::Site;
use std::sync::Arc;

const BLOCK: u64 = 4096;

/// A killed pool: ten blocks are in place, and two durable blocks lie behind them in the journal's
/// first file. `row` changes the catalog's row.
fn killed(row: impl FnOnce(&Pool)) -> Site {
    let site = Site::builder(63).journal(8 << 20, 1 << 20).build().having("v", 1 << 20, 4096);
    for n in 0..10 {
        site.put(n * BLOCK, n as u8 + 1, BLOCK);
    }
    site.pool.drain().unwrap();
    site.put(10 * BLOCK, 11, BLOCK);
    site.put(11 * BLOCK, 12, BLOCK);
    row(&site.pool);
    site
}

fn forget(pool: &Pool) {
    let mut txn = pool.core.catalog.begin().unwrap();
    txn.forget_journal().unwrap();
    txn.commit().unwrap();
}

/// Moves the positions on without the row, as an older build does.
fn leave_behind(pool: &Pool) {
    let mut txn = pool.core.catalog.begin().unwrap();
    txn.change_journal(|row| row.destaged_lsn = row.destaged_lsn.prev()).unwrap();
    txn.commit().unwrap();
}

fn reopened(site: Site) -> crate::error::Result<(Vec<u8>, Arc<Pool>)> {
    let Site { dir, world, pool, .. } = site;
    drop(pool);
    let pool = Pool::open(dir, world, PoolOptions::default())?;
    let mut all = vec![0; 12 * BLOCK as usize];
    pool.open_volume("v", true)?.read(0, &mut all)?;
    Ok((all, pool))
}

#[test]
fn the_scan_finds_the_first_needed_record_by_itself() {
    for row in [forget, leave_behind] {
        // In the header of the segment, in the first record, and in the last one that is in place.
        for at in [20, FIRST_RECORD + 9, 10 * (BLOCK + 4096)] {
            let site = killed(row);
            let disk = site.dir.open("journal-00000", OpenMode::Existing).unwrap();
            let mut byte = [0];
            disk.read_at(&mut byte, at).unwrap();
            disk.write_at(&[byte[0] ^ 1], at).unwrap();
            let (all, _pool) = reopened(site).unwrap_or_else(|e| panic!("byte {at}: {e}"));
            let firsts: Vec<u8> = all.chunks(BLOCK as usize).map(|c| c[0]).collect();
            assert_eq!(firsts, (1..=12).collect::<Vec<u8>>(), "byte {at}");
        }
    }
}

#[test]
fn a_gap_or_a_short_file_in_use_is_damage_and_an_unused_rest_is_completed() {
    let gap = killed(forget);
    gap.dir.open("journal-00002", OpenMode::Create).unwrap().set_len(1 << 20).unwrap();
    assert!(reopened(gap).err().unwrap().to_string().contains("journal-00001 is missing"));

    let short = killed(forget);
    short.dir.open("journal-00000", OpenMode::Existing).unwrap().set_len(90_000).unwrap();
    assert!(reopened(short).err().unwrap().to_string().contains("was truncated"));

    // What a creation leaves that failed for want of space.
    let rest = killed(forget);
    rest.dir.open("journal-00001", OpenMode::Create).unwrap().set_len(4096).unwrap();
    let dir = rest.dir.clone();
    let (all, pool) = reopened(rest).unwrap();
    assert_eq!(all[11 * BLOCK as usize], 12);
    assert_eq!(dir.open("journal-00001", OpenMode::Existing).unwrap().len().unwrap(), 1 << 20);
    assert_eq!(pool.core.catalog.journal().unwrap().unwrap().files, 2, "from now on they are counted");
}

/// An opening after a crash syncs each run, so many short runs count as more than their bytes.
#[test]
fn short_runs_count_as_longer_ones_until_they_are_synced() {
    let site = Site::new(16).having("v", 1 << 20, 4096);
    let journal = &site.pool.core.journal;
    let pv = || site.pool.core.pvs.held(0).unwrap();
    for _ in 0..3 {
        journal.note_referred(pv(), 4096);
    }
    assert_eq!(journal.unsynced_referred(), 3 * LEAST_REFERRED);
    journal.note_referred(pv(), 1 << 20);
    assert_eq!(journal.unsynced_referred(), 3 * LEAST_REFERRED + (1 << 20));
    // Durable when it is answered.
    site.put(0, 1, 4096);
    assert_eq!(journal.unsynced_referred(), 0);
}
