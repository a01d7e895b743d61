//! Tests of what a power loss may take and what it must leave. Each test covers one property.

use super::*;
use std::io::IoSlice;

const SYNC: SyncPurpose = SyncPurpose::Apply;

/// Creates a directory with one durable file "a" that holds 64 KiB of ones.
fn with_file(seed: u64, tear: fn(&str) -> TearModel) -> SimDir {
    let dir = SimDir::new(seed);
    dir.set_tear_model(tear);
    let disk = dir.open("a", OpenMode::CreateNew).unwrap();
    disk.write_at(&[1; 65536], 0).unwrap();
    disk.sync(SYNC).unwrap();
    dir.sync(SYNC).unwrap();
    dir
}

fn plain(seed: u64) -> SimDir {
    with_file(seed, |_| TearModel::SECTORS)
}

fn open(dir: &SimDir, name: &str) -> Arc<dyn Disk> {
    dir.open(name, OpenMode::Existing).unwrap()
}

fn content(dir: &SimDir, name: &str) -> Vec<u8> {
    let disk = open(dir, name);
    let mut all = vec![0; disk.len().unwrap() as usize];
    disk.read_at(&mut all, 0).unwrap();
    all
}

#[test]
fn what_was_synced_stays_and_the_rest_goes() {
    let dir = plain(1);
    let disk = open(&dir, "a");
    disk.write_at(&[2; 4096], 0).unwrap();
    disk.sync(SYNC).unwrap();
    disk.write_at(&[3; 4096], 4096).unwrap();
    disk.write_at(&[4; 10], 70_000).unwrap();
    disk.set_len(80_000).unwrap();
    dir.open("b", OpenMode::CreateNew).unwrap().sync(SYNC).unwrap();
    assert_eq!(content(&dir, "a").len(), 80_000, "reads see the latest");
    dir.lose_power(PowerLoss::LoseAll);
    let all = content(&dir, "a");
    assert_eq!(all.len(), 65536);
    assert!(all[..4096].iter().all(|b| *b == 2) && all[4096..].iter().all(|b| *b == 1));
    assert_eq!(dir.list().unwrap(), ["a"], "a synced file whose name was not");
}

#[test]
fn keeping_all_keeps_all() {
    let dir = plain(1);
    let disk = open(&dir, "a");
    disk.set_len(5000).unwrap();
    disk.set_len(9000).unwrap();
    disk.write_vectored_at(&mut [IoSlice::new(&[7; 2]), IoSlice::new(&[8; 2])], 10_000).unwrap();
    disk.allocate(0, 20_000).unwrap();
    let before = content(&dir, "a");
    dir.lose_power(PowerLoss::KeepAll);
    assert_eq!(content(&dir, "a"), before);
    assert_eq!(
        (before.len(), &before[4998..5002], &before[10_000..10_004]),
        (20_000, &[1, 1, 0, 0][..], &[7, 7, 8, 8][..])
    );
}

#[test]
fn a_cut_that_is_synced_is_durable() {
    let dir = plain(1);
    let disk = open(&dir, "a");
    disk.set_len(5000).unwrap();
    disk.set_len(65536).unwrap();
    disk.sync(SYNC).unwrap();
    let before = content(&dir, "a");
    dir.lose_power(PowerLoss::LoseAll);
    assert_eq!(content(&dir, "a"), before);
    assert!(before[5000..].iter().all(|b| *b == 0));
}

#[test]
fn writes_are_lost_independently() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let dir = plain(seed);
        let disk = open(&dir, "a");
        disk.write_at(&[2; 512], 0).unwrap();
        disk.write_at(&[3; 512], 512).unwrap();
        dir.lose_power(PowerLoss::Subset);
        let all = content(&dir, "a");
        seen.insert((all[0], all[512]));
    }
    assert_eq!(seen, BTreeSet::from([(1, 1), (1, 3), (2, 1), (2, 3)]));
}

#[test]
fn a_prefix_and_a_suffix_span_disks() {
    let mut lengths = BTreeSet::new();
    for seed in 0..200 {
        for how in [PowerLoss::Prefix, PowerLoss::Suffix] {
            let dir = plain(seed);
            dir.open("b", OpenMode::CreateNew).unwrap().set_len(65536).unwrap();
            open(&dir, "b").sync(SYNC).unwrap();
            dir.sync(SYNC).unwrap();
            for step in 0..8 {
                let disk = open(&dir, if step % 2 == 0 { "a" } else { "b" });
                disk.write_at(&[9; 512], step * 512).unwrap();
            }
            dir.lose_power(how);
            let kept: Vec<bool> = (0..8)
                .map(|step| content(&dir, if step % 2 == 0 { "a" } else { "b" })[step * 512] == 9)
                .collect();
            let changes = kept.windows(2).filter(|w| w[0] != w[1]).count();
            assert!(changes <= 1, "{how:?} {kept:?}");
            if changes == 1 {
                assert_eq!(kept[0], how == PowerLoss::Prefix, "{kept:?}");
            }
            lengths.insert(kept.iter().filter(|k| **k).count());
        }
    }
    assert_eq!(lengths.len(), 9);
}

#[test]
fn tears_respect_the_atomic_unit() {
    for (model, unit) in [(TearModel::SECTORS, 512), (TearModel::BLOCKS, 4096)] {
        let mut torn = false;
        for seed in 0..200 {
            let dir = if unit == 512 {
                with_file(seed, |_| TearModel::SECTORS)
            } else {
                with_file(seed, |_| TearModel::BLOCKS)
            };
            assert_eq!(model.atomic, unit as u64);
            open(&dir, "a").write_at(&[2; 16384], 8192).unwrap();
            dir.lose_power(PowerLoss::Tears);
            let all = content(&dir, "a");
            assert!(all[..8192].iter().chain(&all[24576..]).all(|b| *b == 1));
            for part in all[8192..24576].chunks(unit) {
                assert!(part.iter().all(|b| *b == part[0]) && [1, 2].contains(&part[0]));
            }
            torn |= all[8192..24576].contains(&1) && all[8192..24576].contains(&2);
        }
        assert!(torn);
    }
}

#[test]
fn garbage_stays_in_blocks_that_were_cut() {
    let mut hit = BTreeSet::new();
    for seed in 0..300 {
        let dir = with_file(seed, |_| TearModel { garbage: 4096, ..TearModel::BLOCKS });
        // The write covers block 2 wholly, and blocks 1 and 3 in part.
        open(&dir, "a").write_at(&[2; 8192], 4096 + 2048).unwrap();
        dir.lose_power(PowerLoss::Tears);
        let all = content(&dir, "a");
        assert_eq!(all.len(), 65536);
        for (block, bytes) in all.chunks(4096).enumerate() {
            if bytes.iter().any(|b| ![1, 2].contains(b)) {
                hit.insert(block);
            } else if block == 2 {
                assert!(bytes.iter().all(|b| *b == bytes[0]), "covered, so atomic");
            }
        }
    }
    assert_eq!(hit, BTreeSet::from([1, 3]));
}

#[test]
fn a_kill_keeps_everything_until_the_power_goes() {
    let dir = plain(1);
    let disk = open(&dir, "a");
    let lock = dir.lock("lock").unwrap();
    assert_eq!(dir.lock("lock").err().unwrap().kind(), io::ErrorKind::WouldBlock);
    disk.write_at(&[2; 512], 0).unwrap();
    dir.kill();
    assert!(disk.write_at(&[3; 512], 0).is_err() && disk.len().is_err(), "handles are void");
    let again = dir.lock("lock").unwrap();
    drop(lock);
    assert!(dir.lock("lock").is_err(), "an old lock frees nothing");
    drop(again);
    assert_eq!(content(&dir, "a")[0], 2);
    dir.lose_power(PowerLoss::LoseAll);
    assert_eq!(content(&dir, "a")[0], 1);
    assert_eq!(dir.list().unwrap(), ["a"]);
}

#[test]
fn a_planned_crash_cuts_one_operation_and_fails_the_rest() {
    let mut done = BTreeSet::new();
    for seed in 0..50 {
        let dir = plain(seed);
        let disk = open(&dir, "a");
        dir.crash_at(Some(CrashPoint::Op(dir.counts().ops + 2)));
        disk.write_at(&[2; 512], 0).unwrap();
        assert!(!dir.crashed());
        assert!(disk.write_at(&[3; 2000], 512).is_err());
        assert!(dir.crashed());
        assert!(disk.sync(SYNC).is_err() && disk.read_at(&mut [0], 0).is_err() && dir.list().is_err());
        assert!(dir.open("b", OpenMode::Create).is_err());
        dir.kill();
        let all = content(&dir, "a");
        assert_eq!(all[0], 2);
        let count = all.iter().filter(|b| **b == 3).count();
        assert!(all[512..512 + count].iter().all(|b| *b == 3), "the beginning of it");
        done.insert(if count == 0 {
            0
        } else if count == 2000 {
            2
        } else {
            1
        });
    }
    assert_eq!(done.len(), 3);
}

#[test]
fn a_crash_in_a_sync_leaves_it_open_what_was_synced() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let dir = plain(seed);
        let disk = open(&dir, "a");
        disk.write_at(&[2; 512], 0).unwrap();
        dir.crash_at(Some(CrashPoint::Sync(dir.counts().syncs + 1)));
        disk.write_at(&[3; 512], 512).unwrap();
        assert!(disk.sync(SYNC).is_err());
        dir.lose_power(PowerLoss::LoseAll);
        let all = content(&dir, "a");
        seen.insert((all[0], all[512]));
    }
    assert_eq!(seen, BTreeSet::from([(1, 1), (2, 3)]));
}

#[test]
fn dropped_and_failed_syncs() {
    let dir = plain(1);
    dir.drop_syncs(SyncPurpose::Journal);
    open(&dir, "a").write_at(&[2; 512], 0).unwrap();
    open(&dir, "a").sync(SyncPurpose::Journal).unwrap();
    dir.lose_power(PowerLoss::LoseAll);
    assert_eq!(content(&dir, "a")[0], 1);

    dir.fail_next_sync(SYNC);
    open(&dir, "a").write_at(&[2; 512], 0).unwrap();
    open(&dir, "a").sync(SyncPurpose::Preserve).unwrap();
    open(&dir, "a").write_at(&[3; 512], 0).unwrap();
    assert!(open(&dir, "a").sync(SYNC).is_err());
    assert!(dir.sync_failed());
    open(&dir, "a").sync(SYNC).unwrap();
    assert_eq!(content(&dir, "a")[0], 3);
    dir.lose_power(PowerLoss::LoseAll);
    assert!(!dir.sync_failed());
    assert_eq!(content(&dir, "a")[0], 2, "a sync after a failed one proves nothing");
}

#[test]
fn removed_names_come_back_unless_synced() {
    let dir = plain(1);
    dir.remove("a").unwrap();
    assert!(dir.open("a", OpenMode::Existing).is_err());
    dir.lose_power(PowerLoss::LoseAll);
    assert_eq!(content(&dir, "a").len(), 65536);
    dir.remove("a").unwrap();
    dir.sync(SyncPurpose::Dir).unwrap();
    dir.lose_power(PowerLoss::LoseAll);
    assert!(dir.list().unwrap().is_empty());
    dir.open("/elsewhere/pv", OpenMode::CreateNew).unwrap();
    dir.lose_power(PowerLoss::LoseAll);
    open(&dir, "/elsewhere/pv");
}

#[test]
fn faults_by_range_and_by_bit() {
    let dir = plain(1);
    let disk = open(&dir, "a");
    dir.fail_reads("a", 4096..8192);
    assert!(disk.read_at(&mut [0; 512], 4096 - 512).is_ok());
    assert!(disk.read_at(&mut [0; 513], 4096 - 512).is_err());
    assert!(disk.read_at(&mut [0; 512], 8192).is_ok());
    dir.clear_faults();
    assert!(disk.read_at(&mut [0; 513], 4096 - 512).is_ok());
    assert!(dir.flip_bit("a", 77, 3) && !dir.flip_bit("a", 1 << 20, 3));
    dir.lose_power(PowerLoss::LoseAll);
    assert_eq!(content(&dir, "a")[76..79], [1, 9, 1]);
}

#[test]
fn backing_space_is_bounded() {
    let dir = SimDir::new(1);
    dir.set_backing(Some(16384));
    let disk = dir.open("a", OpenMode::CreateNew).unwrap();
    disk.set_len(1 << 30).unwrap();
    disk.allocate(0, 8192).unwrap();
    disk.write_at(&[1; 8192], 100).unwrap();
    assert_eq!(disk.backing_available().unwrap().map(|b| b.available), Some(4096));
    assert_eq!(disk.allocate(65536, 8192).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.write_at(&[1; 8192], 65536).unwrap_err().kind(), io::ErrorKind::StorageFull);
    dir.remove("a").unwrap();
    let disk = dir.open("b", OpenMode::CreateNew).unwrap();
    assert_eq!(disk.backing_available().unwrap().map(|b| b.available), Some(16384));
    dir.add_block_device("/dev/sim0", 1 << 20);
    let device = open(&dir, "/dev/sim0");
    assert!(
        device.is_block_device()
            && device.set_len(5).is_err()
            && device.write_at(&[0; 2], (1 << 20) - 1).is_err()
    );
    device.write_at(&[0; 65536], 0).unwrap();
    assert_eq!((device.len().unwrap(), device.backing_available().unwrap()), (1 << 20, None));
}

#[test]
fn waiting_is_random_and_never_wrong() {
    let dir = plain(5);
    let disk = open(&dir, "a");
    let ready = (0..100).filter(|_| {
        let mut buf = [0; 512];
        let ready = disk.try_read_at(&mut buf, 512).unwrap();
        assert_eq!(ready, buf == [1; 512]);
        ready
    });
    assert!((20..80).contains(&ready.count()));
    assert!((0..20).all(|_| !disk.try_read_at(&mut [0; 2], 65535).unwrap()));
}

#[test]
fn a_seed_repeats_itself() {
    let run = |seed| {
        let dir = with_file(seed, |_| TearModel::EMULATED);
        let disk = open(&dir, "a");
        for step in 0..50 {
            disk.write_at(&[step as u8; 1000], step * 1111).unwrap();
            disk.punch(step * 500, 4000).unwrap();
        }
        dir.lose_power(PowerLoss::Tears);
        content(&dir, "a")
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
