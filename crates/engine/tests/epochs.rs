//! Epochs that run out: a volume gets a new branch, and its clients do not notice.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::Result;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Moment};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::ids::{BranchId, Epoch};
use hindcast_engine::pool::PoolOptions;
use hindcast_engine::testing::{KIB, MIB, Site, content, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes a pool in which a volume gets a new branch every few epochs.
fn site(renew_at_epoch: Epoch) -> Site {
    Site::new(64).reopen_with(PoolOptions { renew_at_epoch, ..PoolOptions::default() })
}

/// Opens the pool again. The offline check before that must find nothing. No handle may be left.
fn clean(site: Site) -> Site {
    site.pool.drain().unwrap();
    site.reopen()
}

#[test]
fn a_volume_goes_on_with_a_new_branch() {
    let site = site(Epoch(6));
    let v = site.volume("v", 4 * MIB, 16 * KIB);
    let mut expected = vec![0; 4 * MIB as usize];
    let mut frozen = Vec::new();
    let first = site.pool.volume("v").unwrap().branch;
    for n in 1..=20u8 {
        let at = u64::from(n) * 40 * KIB;
        write(&v, at, n, 24 * KIB);
        expected[at as usize..(at + 24 * KIB) as usize].fill(n);
        site.snap("v", &format!("s{n}"));
        frozen.push(expected.clone());
        // The handle is the same, before and after.
        site.idle();
        assert!(content(&v) == expected, "{n}");
    }
    assert!(
        site.pool.volume("v").unwrap().branch.0 > first.0 + 2,
        "it was given a new branch more than once"
    );
    assert_eq!(site.pool.volume("v").unwrap().handles, 1, "its client is known still");
    assert_eq!(site.pool.snapshots("v").unwrap().len(), 20, "no snapshot came into sight");
    for (n, frozen) in (1..).zip(&frozen) {
        let snapshot = site.pool.open_snapshot("v", &format!("s{n}")).unwrap();
        assert!(content(&snapshot) == *frozen, "s{n}");
    }
    // The new branch takes discards, flushes, a new size and a clone.
    v.discard(0, MIB, true).unwrap();
    expected[..MIB as usize].fill(0);
    v.flush().unwrap();
    site.pool.resize_volume("v", 3 * MIB, true).unwrap();
    expected.truncate(3 * MIB as usize);
    assert_eq!(v.info().size, 3 * MIB);
    site.pool.clone_volume("v", "s20", "c").unwrap();
    drop(v);
    let site = clean(site);
    assert!(content(&site.pool.open_volume("v", true).unwrap()) == expected);
    assert!(content(&site.pool.open_volume("c", true).unwrap()) == frozen[19]);
    // Hidden snapshots are removed when the visible ones are gone.
    site.pool.delete_volume("c", true).unwrap();
    site.pool.delete_volume("v", true).unwrap();
    site.idle();
    assert_eq!(site.pool.info().used, 0);
    clean(site);
}

#[test]
fn a_history_goes_on_over_new_branches() {
    let site = site(Epoch(8));
    let v = site.volume("v", MIB, 4 * KIB);
    let settings = CdpSettings { anchors: AnchorPolicy::Every(1), ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    let mut moments = Vec::new();
    for n in 1..=60u8 {
        site.clock.advance(1_000);
        write(&v, u64::from(n) % 16 * 4 * KIB, n, 4 * KIB);
        if n % 10 == 5 {
            // This discard is too long to be recorded: it is sequenced behind an anchor.
            v.discard(0, MIB, false).unwrap();
        }
        moments.push((site.pool.stats().sequenced_lsn, content(&v)));
        site.idle();
    }
    assert!(site.pool.volume("v").unwrap().branch > BranchId(8), "new branches");
    for (lsn, expected) in &moments {
        let view = site.pool.open_moment("v", &Moment::Lsn(*lsn)).unwrap();
        assert!(content(&view) == *expected, "LSN {lsn}");
    }
    drop(v);
    let site = clean(site);
    for (lsn, expected) in &moments {
        let view = site.pool.open_moment("v", &Moment::Lsn(*lsn)).unwrap();
        assert!(content(&view) == *expected, "LSN {lsn}, opened again");
    }
}

/// The volume's state before it got a new branch does not keep its space for ever.
#[test]
fn what_a_volume_was_goes_when_the_new_branch_is_complete() {
    let site = site(Epoch(4));
    let v = site.volume("v", 4 * MIB, 16 * KIB);
    for n in 1..=30u8 {
        write(&v, 0, n, 4 * MIB);
        site.snap("v", "s");
        site.pool.delete_snapshots("v", &["s"]).unwrap();
        site.clock.advance(10_000_000_000);
        site.idle();
    }
    assert!(site.pool.volume("v").unwrap().branch > BranchId(8), "new branches");
    write(&v, 0, 99, 4 * MIB);
    for _ in 0..10 {
        site.clock.advance(10_000_000_000);
        site.idle();
    }
    assert_eq!(site.pool.info().used, 4 * MIB);
}

/// Requests meet the change of branches at any place.
#[test]
fn requests_in_flight_follow() {
    let site = site(Epoch(4));
    let v = site.volume("v", 4 * MIB, 16 * KIB);
    let (over, enough) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..3u64)
        .map(|writer| {
            let (v, enough) = (v.clone(), enough.clone());
            std::thread::spawn(move || -> Result<()> {
                for n in (1..=40_000u64).take_while(|n| *n <= 400 || !enough.load(Ordering::Relaxed)) {
                    let at = writer * MIB + n % 64 * 16 * KIB;
                    let data = Bytes::from(vec![n as u8; 8192]);
                    let mut ops = [WriteOp::new(at, data.clone()), WriteOp::new(at + 8192, data)];
                    v.write(&mut ops, false);
                    ops.into_iter().try_for_each(|op| op.result)?;
                    let mut found = vec![0; 16384];
                    v.read(at, &mut found)?;
                    assert!(found.iter().all(|b| *b == n as u8), "writer {writer}, {n}: stale");
                    v.flush()?;
                }
                Ok(())
            })
        })
        .collect();
    let background = {
        let (pool, over) = (site.pool.clone(), over.clone());
        std::thread::spawn(move || {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                n += 1;
                pool.create_snapshots(&[("v", &format!("s{n}"))]).unwrap();
                pool.maintain().unwrap();
                enough.store(pool.volume("v").unwrap().branch > BranchId(10), Ordering::Relaxed);
                if n % 4 == 0 {
                    let old: Vec<String> = (n - 3..=n).map(|n| format!("s{n}")).collect();
                    let old: Vec<&str> = old.iter().map(String::as_str).collect();
                    pool.delete_snapshots("v", &old).unwrap();
                }
            }
        })
    };
    let results: Vec<Result<()>> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    over.store(true, Ordering::Relaxed);
    background.join().unwrap();
    results.into_iter().for_each(|result| result.unwrap());
    assert!(site.pool.volume("v").unwrap().branch > BranchId(10));
    site.idle();
    drop(v);
    clean(site);
}

#[test]
fn half_of_the_epochs_is_a_warning() {
    let site = site(Epoch(20));
    let _v = site.volume("v", MIB, 4 * KIB);
    for n in 0..9 {
        site.snap("v", &format!("s{n}"));
    }
    assert!(!site.pool.health().has("epochs-low"));
    site.snap("v", "s9");
    site.snap("v", "s10");
    assert!(site.pool.health().has("epochs-low"));
    for n in 11..25 {
        site.snap("v", &format!("s{n}"));
    }
    site.idle();
    assert!(!site.pool.health().has("epochs-low"), "a new branch has all of them");
}
