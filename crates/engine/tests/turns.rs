//! Work that waits in the journal is bounded, and shares commits.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::Volume;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{PoolOptions, Progress};
use hindcast_engine::testing::{KIB, MIB, Site, content, write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Makes `count` volumes, each with content of its own.
fn volumes(f: &Site, count: u8) -> Vec<Arc<Volume>> {
    (0..count).map(|n| f.volume(&format!("v{n}"), 256 * KIB, 4 * KIB)).collect()
}

/// A round of snapshots of many volumes, with a write to each in between, is one batch.
#[test]
fn a_round_of_snapshots_shares_a_commit() {
    const VOLUMES: u8 = 50;
    const ROUNDS: u8 = 4;
    let f = Site::new(64);
    let all = volumes(&f, VOLUMES);
    f.idle();
    let before = f.pool.stats().catalog_commits;
    for round in 0..ROUNDS {
        for (n, volume) in all.iter().enumerate() {
            write(volume, u64::from(round) * 8 * KIB, round * VOLUMES + n as u8, 12 * KIB);
            f.snap(&format!("v{n}"), &format!("s{round}"));
        }
    }
    let waiting = f.pool.stats().journal_turns;
    assert!((1..=u64::from(ROUNDS) + 1).contains(&waiting), "{waiting} turns");
    f.pool.drain().unwrap();
    let stats = f.pool.stats();
    let commits = stats.catalog_commits - before;
    assert!(commits <= 3 * u64::from(ROUNDS), "{commits} commits for {ROUNDS} rounds");
    assert_eq!(stats.journal_turns, 0);
    drop(all);
    // Each snapshot shows the writes before it, also after a restart.
    let check = |f: &Site| {
        for n in 0..VOLUMES {
            for round in 0..ROUNDS {
                let snapshot = f.pool.open_snapshot(&format!("v{n}"), &format!("s{round}")).unwrap();
                let got = content(&snapshot);
                for (at, byte) in got.iter().enumerate().step_by(KIB as usize) {
                    let by = (at as u64 / (8 * KIB)).min(u64::from(round));
                    let written = (at as u64) < by * 8 * KIB + 12 * KIB;
                    let wanted = if written { by as u8 * VOLUMES + n } else { 0 };
                    assert_eq!(*byte, wanted, "v{n}@s{round} at {at}");
                }
            }
        }
    };
    check(&f);
    check(&f.reopen());
}

/// While several volumes write, turns that can't grow any more don't wait until the journal is as
/// full as for data alone. The last turn waits, so that writes coalesce.
#[test]
fn old_turns_are_carried_out_when_the_journal_begins_to_fill() {
    let f = Site::builder(64).journal(8 * MIB, MIB).build();
    let (v, w) = (f.volume("v", 8 * MIB, 4 * KIB), f.volume("w", MIB, 4 * KIB));
    f.idle();
    let turns = || f.pool.stats().journal_turns;
    // Something new is written before each step, so the pool is never quiet.
    let step = |at: u64| {
        write(&w, at, 1, KIB);
        f.pool.maintain().unwrap()
    };
    for n in 0..4 {
        write(&v, 0, n, 4 * KIB);
        f.snap("v", &format!("s{n}"));
    }
    write(&v, 0, 9, 4 * KIB);
    let before = turns();
    assert!(before > 2, "{before} turns");
    (0..10).for_each(|n| _ = step(n * KIB));
    assert_eq!(turns(), before, "the journal is nearly empty");
    (0..12).for_each(|n| write(&v, MIB + n * 256 * KIB, 7, 256 * KIB));
    assert!(!f.pool.is_pressed());
    (0..20).for_each(|n| _ = step(n * KIB));
    assert_eq!(turns(), 1);
    assert!(f.pool.stats().journal_used > 3 * MIB, "the last turn waits");
}

/// Many deleted snapshots with little content are dissolved at a time.
#[test]
fn deleted_snapshots_share_commits() {
    const SNAPSHOTS: u64 = 200;
    let f = Site::new(64);
    let v = f.volume("v", 256 * KIB, 4 * KIB);
    for n in 0..SNAPSHOTS {
        write(&v, n % 64 * 4 * KIB, n as u8, 4 * KIB);
        f.snap("v", &format!("s{n}"));
    }
    f.idle();
    let before = f.pool.stats();
    let doomed: Vec<String> = (0..SNAPSHOTS).filter(|n| n % 50 > 0).map(|n| format!("s{n}")).collect();
    for doomed in doomed.chunks(100) {
        let doomed: Vec<&str> = doomed.iter().map(String::as_str).collect();
        f.pool.delete_snapshots("v", &doomed).unwrap();
    }
    f.idle();
    let commits = f.pool.stats().catalog_commits - before.catalog_commits;
    assert!(commits < 20, "{commits} commits");
    drop(v);
    let check = |f: &Site| {
        for n in (0..SNAPSHOTS).step_by(50) {
            let got = content(&f.pool.open_snapshot("v", &format!("s{n}")).unwrap());
            for chunk in 0..64 {
                let last = (0..=n).rev().find(|write| write % 64 == chunk);
                let wanted = last.map_or(0, |write| write as u8);
                assert_eq!(got[(chunk * 4 * KIB) as usize], wanted, "s{n}, chunk {chunk}");
            }
        }
    };
    check(&f);
    // The check of the reopening finds no slot that leaked, or that is used twice.
    let f = f.reopen();
    assert_eq!(f.pool.snapshots("v").unwrap().len(), 4);
    check(&f);
}

/// Control records of all kinds that only set something share one commit. Their effects are as in
/// their order.
#[test]
fn what_shares_a_commit_happens_in_order() {
    let f = Site::new(16);
    let v = f.volume("v", 256 * KIB, 4 * KIB);
    write(&v, 0, 1, 64 * KIB);
    f.idle();
    let before = f.pool.stats().catalog_commits;
    write(&v, 0, 2, 16 * KIB);
    for n in 0..40 {
        f.snap("v", &format!("s{n}"));
    }
    f.pool.rename_snapshot("v", "s0", "kept").unwrap();
    f.pool.protect_snapshot("v", "kept", true).unwrap();
    let doomed: Vec<String> = (1..40).map(|n| format!("s{n}")).collect();
    let doomed: Vec<&str> = doomed.iter().map(String::as_str).collect();
    f.pool.delete_snapshots("v", &doomed).unwrap();
    f.pool.rename_volume("v", "w").unwrap();
    f.pool.set_read_only("w", true).unwrap();
    f.pool.drain().unwrap();
    assert!(f.pool.stats().catalog_commits - before <= 3);
    f.idle();
    drop(v);
    let f = f.reopen();
    let names: Vec<String> = f.pool.snapshots("w").unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["kept"]);
    let kept = f.pool.snapshot("w", "kept").unwrap();
    assert!(kept.protected);
    assert!(f.pool.volume("w").unwrap().read_only);
    let got = content(&f.pool.open_snapshot("w", "kept").unwrap());
    assert_eq!((got[0], got[20 << 10], got[64 << 10]), (2, 1, 0));
}

/// There is no destage in the background: an operation that adds a turn helps when too many wait.
#[test]
fn turns_that_wait_are_bounded() {
    let f = Site::new(64);
    let v = f.volume("v", MIB, 4 * KIB);
    for n in 0..600u64 {
        write(&v, n % 256 * 4 * KIB, n as u8, 4 * KIB);
        f.snap("v", &format!("s{n}"));
        assert!(f.pool.stats().journal_turns <= 97);
    }
    let stats = f.pool.stats();
    assert!(stats.journal_turns > 80 && stats.backpressure_waits > 0, "{stats:?}");
    for n in [0, 1, 255, 256, 599u64] {
        let snapshot = f.pool.open_snapshot("v", &format!("s{n}")).unwrap();
        let mut got = [0; 512];
        snapshot.read(n % 256 * 4 * KIB, &mut got).unwrap();
        assert_eq!(got[0], n as u8);
    }
}

/// A trickle of writes does not keep destage lazy for ever.
#[test]
fn destage_begins_when_many_turns_wait() {
    let f = Site::new(64);
    let v = f.volume("v", MIB, 4 * KIB);
    f.idle();
    for n in 0..200u64 {
        write(&v, n % 256 * 4 * KIB, n as u8, 4 * KIB);
        f.snap("v", &format!("s{n}"));
        // There was a write since the last step: the pool is never quiet.
        while f.pool.stats().journal_turns >= 32 {
            assert_eq!(f.pool.maintain().unwrap(), Progress::Worked);
        }
    }
    assert!(f.pool.stats().destage_batches > 100);
}

/// Long discards of a volume with a history: each is sequenced behind an anchor, and is a row of
/// its own.
#[test]
fn long_discards_with_a_history_are_all_in_it() {
    let f = Site::new(64);
    let v = f.volume("v", 32 * MIB, 16 * KIB);
    f.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    f.idle();
    let mut shown = vec![0u8; 16];
    let mut moments = Vec::new();
    for round in 0..3u8 {
        for part in 0..16u64 {
            if !(part + u64::from(round)).is_multiple_of(3) {
                write(&v, part * 2 * MIB + 4 * KIB, 1 + round * 16 + part as u8, 8 * KIB);
                shown[part as usize] = 1 + round * 16 + part as u8;
                moments.push((f.pool.stats().sequenced_lsn, shown.clone()));
            }
        }
        for part in 0..16u64 {
            v.discard(part * 2 * MIB, 2 * MIB, false).unwrap();
            shown[part as usize] = 0;
            moments.push((f.pool.stats().sequenced_lsn, shown.clone()));
        }
    }
    drop(v);
    let check = |f: &Site| {
        for (lsn, shown) in &moments {
            let at = f.pool.open_moment("v", &Moment::Lsn(*lsn)).unwrap();
            for (part, byte) in shown.iter().enumerate() {
                let mut got = [0; 512];
                at.read(part as u64 * 2 * MIB + 4 * KIB, &mut got).unwrap();
                assert_eq!(got[0], *byte, "LSN {lsn}, part {part}");
            }
        }
    };
    check(&f);
    check(&f.reopen());
}

/// Block status of a volume with much staged content takes time with what is staged, not with the
/// volume's size.
#[test]
fn status_of_staged_discards_is_quick() {
    let f = Site::new(64);
    let v = f.volume("v", 64 << 40, 16 * KIB);
    for n in 0..200u64 {
        v.discard(n << 31, 1 << 31, false).unwrap();
    }
    write(&v, 5 << 30, 1, 64 * KIB);
    let begun = Instant::now();
    let runs = v.block_status(0, 4 << 30, 100).unwrap();
    assert_eq!(runs.iter().map(|run| run.length).sum::<u64>(), 4 << 30);
    assert!(runs.iter().all(|run| run.zero && !run.allocated));
    let runs = v.block_status(4 << 30, 4 << 30, 100).unwrap();
    let told: Vec<_> = runs.iter().map(|run| (run.length, run.zero)).collect();
    assert_eq!(told, [(1 << 30, true), (64 * KIB, false), ((3 << 30) - 64 * KIB, true)]);
    // It took 47 s before, and takes some milliseconds now.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// Many deletions in one commit would need more room of the catalog's file system than it has.
#[test]
fn a_commit_carries_out_a_bounded_number_of_rows() {
    let f = Site::new(64);
    let v = f.volume("v", MIB, 4 * KIB);
    for n in 0..6000 {
        f.snap("v", &format!("s{n}"));
    }
    drop(v);
    f.idle();
    let before = f.pool.stats().catalog_commits;
    let names: Vec<String> = (0..6000).map(|n| format!("s{n}")).collect();
    for names in names.chunks(100) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        f.pool.delete_snapshots("v", &names).unwrap();
    }
    f.pool.drain().unwrap();
    let commits = f.pool.stats().catalog_commits - before;
    assert!((2..=8).contains(&commits), "{commits} commits");
}

/// A setting with which no pool could work is not applied literally.
#[test]
fn one_turn_may_always_wait() {
    let f = Site::new(16).reopen_with(PoolOptions { max_turns: 0, lazy_turns: 0, ..PoolOptions::default() });
    let v = f.volume("v", MIB, 4 * KIB);
    for n in 0..20u8 {
        write(&v, 0, n, 4 * KIB);
        f.snap("v", &format!("s{n}"));
    }
    drop(v);
    f.reopen();
}
