//! Volumes with a placement of their own, and the weights of physical volumes.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::Volume;
use hindcast_engine::pool::{FULL_WEIGHT, MAX_WEIGHT, Placement, Pool, PoolOptions, SnapAware};
use hindcast_engine::testing::{KIB, MIB, Site, assert_bytes, kind, pv, write};
use std::sync::Arc;

const CHUNK: u64 = 16 * KIB;
const SIZE: u64 = 16 * MIB;
const PVS: [(&str, u64); 3] = [("a", 65 * MIB), ("b", 65 * MIB), ("c", 65 * MIB)];

fn byte(chunk: u64) -> u8 {
    1 + (chunk % 250) as u8
}

/// Writes each chunk of a volume, and puts it in place.
fn fill(site: &Site, v: &Volume) {
    (0..SIZE / CHUNK).for_each(|chunk| write(v, chunk * CHUNK, byte(chunk), CHUNK));
    site.pool.drain().unwrap();
}

fn assert_filled(v: &Volume) {
    (0..SIZE / CHUNK).for_each(|chunk| assert_bytes(v, chunk * CHUNK, byte(chunk), CHUNK));
}

/// The bytes in use on each physical volume.
fn used(pool: &Pool) -> Vec<u64> {
    pool.pvs().iter().map(|pv| pv.used).collect()
}

/// The bytes that `act` adds on each physical volume.
fn added(site: &Site, act: impl FnOnce()) -> Vec<u64> {
    let before = used(&site.pool);
    act();
    site.pool.drain().unwrap();
    used(&site.pool).iter().zip(before).map(|(now, before)| now - before).collect()
}

fn is_spread(bytes: &[u64]) -> bool {
    let least = bytes.iter().sum::<u64>() / 6;
    bytes.iter().all(|one| *one >= least)
}

#[test]
fn a_volume_is_placed_by_its_own_policy_through_rollbacks_clones_and_openings() {
    let site = Site::builder(1).pvs(&PVS).build();
    let plain = site.volume("plain", SIZE, CHUNK);
    let bytes = added(&site, || fill(&site, &plain));
    assert!(bytes[1] + bytes[2] == 0, "anywhere: {bytes:?}");

    let v = site.volume("v", SIZE, CHUNK);
    assert_eq!(site.pool.volume("v").unwrap().placement, None);
    assert!(!site.pool.info().features.contains(&"own-placements"));
    let info = site.pool.set_volume_placement("v", Some(Placement::Share)).unwrap();
    assert_eq!(info.placement, Some(Placement::Share));
    assert!(site.pool.info().features.contains(&"own-placements"));
    let bytes = added(&site, || fill(&site, &v));
    assert!(is_spread(&bytes), "share: {bytes:?}");

    site.snap("v", "s");
    site.pool.clone_volume("v", "s", "c").unwrap();
    drop((v, plain));
    site.pool.roll_back("v", "s", "u", false).unwrap();
    let site = site.reopen();
    for name in ["v", "c"] {
        assert_eq!(site.pool.volume(name).unwrap().placement, Some(Placement::Share), "{name}");
        let v = site.open(name);
        assert_filled(&v);
        let bytes = added(&site, || fill(&site, &v));
        assert!(is_spread(&bytes), "{name}: {bytes:?}");
    }
    assert_eq!(site.pool.volume("plain").unwrap().placement, None);

    site.pool.set_volume_placement("c", None).unwrap();
    let site = site.reopen();
    assert_eq!(site.pool.volume("c").unwrap().placement, None);
    let sizes = SnapAware { slice: 0, gap: 1 };
    let refused = site.pool.set_volume_placement("c", Some(Placement::SnapAware(sizes)));
    assert_eq!(kind(refused), ErrorKind::Invalid);
    assert_eq!(kind(site.pool.set_volume_placement("none", None)), ErrorKind::NotFound);
}

#[test]
fn a_rebalancing_moves_only_what_share_places() {
    let site = Site::builder(1).pvs(&PVS).build();
    let (v, w) = (site.volume("v", SIZE, CHUNK), site.volume("w", SIZE, CHUNK));
    fill(&site, &v);
    fill(&site, &w);
    assert_eq!(kind(site.pool.rebalance(0)), ErrorKind::Conflict);
    site.pool.set_volume_placement("v", Some(Placement::Share)).unwrap();
    assert!(!site.pool.rebalancing().running, "what is in place stays there");
    site.pool.rebalance(0).unwrap();
    site.idle();
    let moved = site.pool.rebalancing().moved_bytes;
    assert!((SIZE / 2..=SIZE).contains(&moved), "{moved}");
    let bytes = used(&site.pool);
    assert!(bytes[0] >= SIZE, "the other volume stays: {bytes:?}");

    // One that is added gets its share of the one volume.
    site.pool.add_pv(&pv("d", 65 * MIB)).unwrap();
    assert!(site.pool.rebalancing().running, "it begins by itself");
    site.idle();
    assert!(used(&site.pool)[3] > 0);
    [&v, &w].iter().for_each(|v| assert_filled(v));
    drop((v, w));
    let site = site.reopen();
    ["v", "w"].iter().for_each(|name| assert_filled(&site.open(name)));
}

#[test]
fn a_volume_with_its_own_placement_writes_by_reference_in_a_pool_that_shares() {
    let options = PoolOptions::default();
    let site = Site::builder(1).pvs(&PVS).placement(Placement::Share).options(options).build();
    let (v, w) = (site.volume("v", SIZE, CHUNK), site.volume("w", SIZE, CHUNK));
    site.pool.set_volume_placement("v", Some(Placement::Anywhere)).unwrap();
    let stream = |v: &Arc<Volume>| {
        let before = site.pool.stats().direct_bytes;
        for at in (0..SIZE).step_by(MIB as usize) {
            write(v, at, 7, MIB);
            site.pool.maintain().unwrap();
        }
        site.pool.drain().unwrap();
        site.pool.stats().direct_bytes - before
    };
    assert_eq!(stream(&w), 0, "a lent slot lies somewhere before its chunk is known");
    assert_eq!(site.pool.stats().lent_bytes, 0);
    assert!(stream(&v) > 0);
    assert_bytes(&v, 0, 7, SIZE);

    // The pool's placement changes: slots that nobody may use any more are taken back.
    site.pool.set_volume_placement("v", None).unwrap();
    site.pool.set_placement(Placement::Anywhere).unwrap();
    assert!(stream(&w) > 0);
    site.pool.set_placement(Placement::Share).unwrap();
    site.idle();
    assert_eq!(site.pool.stats().lent_bytes, 0);
    assert_eq!(stream(&w), 0);
}

#[test]
fn a_weight_changes_the_share_of_a_disk() {
    let site = Site::builder(1).pvs(&PVS).placement(Placement::Share).build();
    let v = site.volume("v", 2 * SIZE, CHUNK);
    (0..2 * SIZE / CHUNK).for_each(|chunk| write(&v, chunk * CHUNK, byte(chunk), CHUNK));
    site.pool.drain().unwrap();
    let before = used(&site.pool);
    for (refused, why) in [(0, ErrorKind::Invalid), (MAX_WEIGHT + 1, ErrorKind::Invalid)] {
        assert_eq!(kind(site.pool.set_weight("b", refused)), why);
    }
    assert_eq!(kind(site.pool.set_weight("z", 50)), ErrorKind::NotFound);
    assert_eq!(site.pool.set_weight("b", 25).unwrap().weight, 25);
    site.idle();
    let after = used(&site.pool);
    assert!(after[1] * 2 < before[1], "{before:?} {after:?}");
    drop(v);
    let site = site.reopen();
    assert_eq!(site.pool.pvs().iter().map(|pv| pv.weight).collect::<Vec<_>>(), [100, 25, 100]);
    site.pool.rebalance(0).unwrap();
    site.idle();
    assert_eq!(site.pool.rebalancing().moved_bytes, 0, "the opening has the weight");

    // A weight says how much, not where: it is the same placement when it is back.
    site.pool.set_weight("b", FULL_WEIGHT).unwrap();
    site.idle();
    assert_eq!(used(&site.pool), before);
    let v = site.open("v");
    (0..2 * SIZE / CHUNK).for_each(|chunk| assert_bytes(&v, chunk * CHUNK, byte(chunk), CHUNK));
}
