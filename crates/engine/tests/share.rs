//! The placement by Share: pools of several physical volumes, and rebalancing.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::Volume;
use hindcast_engine::pool::{Placement, Pool, Progress, PvInfo, SnapAware};
use hindcast_engine::testing::{
    KIB, MIB, Site, assert_bytes, assert_clean, idle, kind, pv, try_write, write,
};
use hindcast_engine::world::{Rng, SplitMix};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHUNK: u64 = 16 * KIB;
const CHUNKS: u64 = 48 * MIB / CHUNK;

/// Makes a pool of four physical volumes of 80 MiB, with a volume of 48 MiB that is written.
fn site() -> (Site, Arc<Volume>) {
    let pvs = [("a", 17 * MIB), ("b", 9 * MIB), ("c", 33 * MIB), ("d", 25 * MIB)];
    let site = Site::builder(1).pvs(&pvs).placement(Placement::Share).build();
    let v = site.volume("v", CHUNKS * CHUNK, CHUNK);
    for chunk in 0..CHUNKS {
        write(&v, chunk * CHUNK, byte(chunk), CHUNK);
    }
    site.pool.drain().unwrap();
    (site, v)
}

fn byte(chunk: u64) -> u8 {
    1 + (chunk % 250) as u8
}

fn assert_content(v: &Volume) {
    for chunk in 0..CHUNKS {
        assert_bytes(v, chunk * CHUNK, byte(chunk), CHUNK);
    }
}

/// What each physical volume has in use, divided by its part of what all have.
fn fills(pool: &Pool) -> Vec<f64> {
    let pvs: Vec<PvInfo> = pool.pvs().into_iter().filter(|pv| !pv.draining).collect();
    let (size, used): (u64, u64) = pvs.iter().fold((0, 0), |sum, pv| (sum.0 + pv.size, sum.1 + pv.used));
    pvs.iter().map(|pv| pv.used as f64 / used as f64 / (pv.size as f64 / size as f64)).collect()
}

fn assert_even(pool: &Pool) {
    let fills = fills(pool);
    assert!(fills.iter().all(|fill| (0.7..1.3).contains(fill)), "{fills:?}");
}

#[test]
fn each_disk_gets_its_share_and_the_placement_stays() {
    let (site, v) = site();
    assert_even(&site.pool);
    assert_content(&v);
    drop(v);
    let site = site.reopen();
    let info = site.pool.info();
    assert_eq!(info.placement, Placement::Share);
    assert!(info.features.contains(&"placements"), "{:?}", info.features);
    assert_eq!(site.pool.stats().lent_bytes, 0, "no slot is lent before its chunk is known");

    // What is written again goes to the same places, so nothing is to be moved.
    site.snap("v", "s");
    let v = site.open("v");
    for chunk in (0..CHUNKS).step_by(3) {
        write(&v, chunk * CHUNK, byte(chunk), CHUNK);
    }
    site.pool.drain().unwrap();
    site.pool.rebalance(0).unwrap();
    site.idle();
    let done = site.pool.rebalancing();
    assert_eq!((done.running, done.moved_bytes, done.passed_over), (false, 0, false));
    assert_content(&v);

    site.pool.set_placement(Placement::Contiguous).unwrap();
    assert_eq!(kind(site.pool.rebalance(0)), ErrorKind::Conflict);
    drop(v);
    assert_eq!(site.reopen().pool.info().placement, Placement::Contiguous);
}

#[test]
fn a_disk_that_is_added_gets_its_share_and_no_more_is_moved() {
    let (site, v) = site();
    site.snap("v", "s");
    for chunk in (0..CHUNKS).step_by(3) {
        write(&v, chunk * CHUNK, 255, CHUNK);
    }
    site.pool.drain().unwrap();
    let used = site.pool.info().used;
    site.pool.add_pv(&pv("e", 21 * MIB)).unwrap();
    assert!(site.pool.rebalancing().running, "it begins by itself");
    site.idle();
    let done = site.pool.rebalancing();
    assert_eq!((done.running, done.passed_over), (false, false));
    assert_even(&site.pool);
    let least = used as f64 * 20.0 / 100.0;
    let ratio = done.moved_bytes as f64 / least;
    assert!((0.7..1.3).contains(&ratio), "moved {ratio:.3} of the least possible");
    assert_content(&site.snapshot("v", "s"));
    for chunk in 0..CHUNKS {
        assert_bytes(&v, chunk * CHUNK, if chunk % 3 == 0 { 255 } else { byte(chunk) }, CHUNK);
    }

    // Removed again, its data goes back to where it was, and nothing else moves.
    site.pool.drain_pv("e", true).unwrap();
    site.idle();
    site.pool.remove_pv("e").unwrap();
    site.idle();
    let done = site.pool.rebalancing();
    assert_eq!((done.running, done.moved_bytes), (false, 0));
    assert_even(&site.pool);
    drop(v);
    let site = site.reopen();
    assert_content(&site.snapshot("v", "s"));
}

#[test]
fn data_of_another_placement_is_moved_and_a_kill_interrupts_nothing() {
    let pvs = [("a", 65 * MIB), ("b", 33 * MIB), ("c", 33 * MIB)];
    let site = Site::builder(1).pvs(&pvs).build();
    let v = site.volume("v", CHUNKS * CHUNK, CHUNK);
    for chunk in 0..CHUNKS {
        write(&v, chunk * CHUNK, byte(chunk), CHUNK);
    }
    site.pool.drain().unwrap();
    assert!(fills(&site.pool)[0] > 1.5, "{:?}", fills(&site.pool));
    site.pool.set_placement(Placement::Share).unwrap();
    assert!(!site.pool.rebalancing().running);
    site.pool.rebalance(0).unwrap();
    while site.pool.rebalancing().moved_bytes < 8 * MIB {
        assert_eq!(site.pool.maintain().unwrap(), Progress::Worked);
    }
    assert!(site.pool.rebalancing().running);
    drop(v);
    let site = site.reopen();
    let after = site.pool.rebalancing();
    assert!(after.running && after.moved_bytes > 0, "{after:?}");
    site.pool.stop_rebalance().unwrap();
    let site = site.reopen();
    assert!(!site.pool.rebalancing().running);
    site.pool.rebalance(0).unwrap();
    site.idle();
    assert!(!site.pool.rebalancing().running);
    assert_even(&site.pool);
    assert_content(&site.open("v"));
}

/// A task with a rate goes on when its pause is over, not when the next look is due.
#[test]
fn a_pause_is_as_long_as_the_rate_demands() {
    let (site, _v) = site();
    site.pool.add_pv(&pv("e", 21 * MIB)).unwrap();
    site.pool.rebalance(64 * MIB).unwrap();
    idle(&site.pool);
    assert!(site.pool.rebalancing().running);
    site.pool.wait_for_work(Duration::ZERO);
    let began = Instant::now();
    site.pool.wait_for_work(Duration::from_secs(60));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn a_rate_makes_pauses() {
    let (site, v) = site();
    site.pool.add_pv(&pv("e", 21 * MIB)).unwrap();
    site.pool.rebalance(MIB).unwrap();
    idle(&site.pool);
    let first = site.pool.rebalancing();
    assert!(first.running && first.moved_bytes <= 5 * MIB, "{first:?}");
    site.clock.advance(10_000_000_000);
    idle(&site.pool);
    let second = site.pool.rebalancing();
    assert!(second.moved_bytes > first.moved_bytes && second.moved_bytes <= 10 * MIB, "{second:?}");
    assert_content(&v);
}

/// P1: whatever is promised can be allocated, under every policy. Volumes with two sizes of slots
/// and snapshots fill small physical volumes, again and again.
#[test]
fn promises_hold_on_full_pools() {
    let snap_aware = Placement::SnapAware(SnapAware { slice: 3, gap: 2 });
    for placement in [Placement::Anywhere, Placement::Contiguous, Placement::Share, snap_aware] {
        for seed in 0..6 {
            let rng = SplitMix::new(seed);
            let below = |n: u64| rng.next() % n;
            let sizes: Vec<u64> = (0..3).map(|_| MIB + (2 + below(10)) * 64 * KIB).collect();
            let pvs = [("a", sizes[0]), ("b", sizes[1]), ("c", sizes[2])];
            let site = Site::builder(1).pvs(&pvs).placement(placement).build();
            let volumes = [site.volume("v", 4 * MIB, 4 * KIB), site.volume("w", 4 * MIB, 16 * KIB)];
            let mut content: BTreeMap<(usize, u64), u8> = BTreeMap::new();
            let mut refused = 0;
            for round in 0..300 {
                let which = below(2) as usize;
                let (chunk, byte) = (below(256), 1 + below(255) as u8);
                match try_write(&volumes[which], chunk * 16 * KIB, byte, 16 * KIB) {
                    Ok(()) => drop(content.insert((which, chunk), byte)),
                    Err(error) => {
                        assert_eq!(error, ErrorKind::NoSpace);
                        refused += 1;
                    }
                }
                match below(20) {
                    0 => site.pool.drain().unwrap(),
                    1 => idle(&site.pool),
                    2 => drop(site.pool.create_snapshots(&[("v", &format!("s{round}"))])),
                    3 => {
                        let last = site.pool.snapshots("v").unwrap().into_iter().next();
                        if let Some(last) = last {
                            site.pool.delete_snapshots("v", &[&last.name]).unwrap();
                        }
                    }
                    _ => {}
                }
            }
            assert!(refused > 0, "the pool was never full");
            site.pool.drain().unwrap();
            for ((which, chunk), byte) in content {
                assert_bytes(&volumes[which], chunk * 16 * KIB, byte, 16 * KIB);
            }
            drop(volumes);
            site.pool.close().unwrap();
            assert_clean(site.kill());
        }
    }
}
