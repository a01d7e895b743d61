//! Where the snap-aware placement puts content, as the map and the versions tell.

use super::Pool;
use crate::catalog::page::{Entry, Slot};
use crate::catalog::{PageKey, VersionKey};
use crate::ids::{BranchId, Chunk, Epoch};
use crate::settings::{Method, Placement, SnapAware};
use crate::space::label::DATA_START;
use crate::space::placement::snap_aware::Region;
use crate::testing::{KIB, MIB, Site, assert_bytes, write};
use crate::volume::Volume;
use crate::world::{Rng, SplitMix};
use std::collections::BTreeMap;

const EXTENT: u64 = 64 * KIB;
const SLOTS: u32 = 16;
const CHUNK: u64 = 4 * KIB;
const CHUNKS: u64 = 4 * MIB / CHUNK;
/// A slice of 1 MiB, and a gap for 4 snapshots of 12 per cent.
const SIZES: SnapAware = SnapAware { slice: 16, gap: 8 };

fn site(method: Method) -> Site {
    site_of(method, Placement::SnapAware(SIZES), None)
}

/// Makes a pool with a placement, and a volume that may have one of its own.
fn site_of(method: Method, of_pool: Placement, own: Option<Placement>) -> Site {
    let pvs = [("a", 13 * MIB), ("b", 13 * MIB)];
    let site = Site::builder(1).pvs(&pvs).placement(of_pool).build();
    let site = site.having("v", CHUNKS * CHUNK, CHUNK);
    if own.is_some() {
        site.pool.set_volume_placement("v", own).unwrap();
    }
    site.pool.set_method("v", method).unwrap();
    site
}

/// Writes chunks in a random order, and destages some of them at a time.
fn write_some(site: &Site, v: &Volume, seed: u64, round: u64, which: impl Fn(u64) -> bool) {
    let rng = SplitMix::new(seed);
    let mut chunks: Vec<u64> = (0..CHUNKS).filter(|chunk| which(*chunk)).collect();
    for last in (1..chunks.len()).rev() {
        chunks.swap(last, (rng.next() % (last as u64 + 1)) as usize);
    }
    for some in chunks.chunks(50) {
        some.iter().for_each(|chunk| write(v, chunk * CHUNK, byte(*chunk, round), CHUNK));
        site.pool.drain().unwrap();
    }
}

fn byte(chunk: u64, round: u64) -> u8 {
    1 + ((chunk * 7 + round * 31) % 250) as u8
}

fn place(slot: Slot) -> ((u32, u32), u32) {
    let at = slot.offset() - DATA_START;
    ((slot.pv(), (at / EXTENT) as u32), (at % EXTENT / CHUNK) as u32)
}

fn region(slot: Slot) -> Region {
    SIZES.region_of(place(slot).0)
}

fn current(pool: &Pool) -> BTreeMap<Chunk, Slot> {
    let mut found = BTreeMap::new();
    let from = PageKey::new(BranchId(0), 0);
    let next = pool.core.catalog.visit_pages(from, usize::MAX, &mut |key, page| {
        let placed = |(at, entry): (usize, Entry)| (Chunk::in_page(key.page, at), entry.slot);
        found.extend(page?.iter().map(placed));
        Ok(())
    });
    assert_eq!(next.unwrap(), None);
    found
}

fn versions(pool: &Pool) -> Vec<(Chunk, Slot)> {
    let mut found = Vec::new();
    let from = VersionKey::new(BranchId(0), Chunk::FIRST, Epoch::NONE);
    let next = pool.core.catalog.visit_versions(from, usize::MAX, &mut |_, version| {
        let version = version?;
        found.push((version.key.chunk, version.entry.slot));
        Ok(())
    });
    assert_eq!(next.unwrap(), None);
    found
}

/// The parts of chunks at their home, and of versions in the region of the chunk's current content.
fn nearness(pool: &Pool) -> (f64, f64) {
    let (current, versions) = (current(pool), versions(pool));
    let at_home =
        |(chunk, slot): &(&Chunk, &Slot)| SIZES.home(region(**slot), **chunk, SLOTS) == place(**slot);
    let near = |(chunk, slot): &&(Chunk, Slot)| region(current[chunk]) == region(*slot);
    let home = current.iter().filter(at_home).count() as f64 / current.len() as f64;
    (home, versions.iter().filter(near).count() as f64 / versions.len().max(1) as f64)
}

#[test]
fn chunks_are_at_home_and_versions_near_them() {
    let snap_aware = Placement::SnapAware(SIZES);
    for (method, home, of_pool, own) in [
        (Method::Copy, 1.0, snap_aware, None),
        (Method::Redirect, 0.6, snap_aware, None),
        (Method::Redirect, 0.6, Placement::Anywhere, Some(snap_aware)),
    ] {
        let mut site = site_of(method, of_pool, own);
        let mut rounds = vec![0; CHUNKS as usize];
        write_some(&site, &site.open("v"), 1, 0, |_| true);
        assert_eq!(nearness(&site.pool).0, 1.0, "{method:?}");
        for round in 1..=4 {
            site.snap("v", &format!("s{round}"));
            // A tenth of the volume: the gaps have room for all of it.
            let which = |chunk: u64| chunk * 37 / 4 % 10 == round;
            write_some(&site, &site.open("v"), round, round, which);
            (0..CHUNKS).filter(|chunk| which(*chunk)).for_each(|chunk| rounds[chunk as usize] = round);
            // Nothing of where the regions are is in memory after this.
            site = site.reopen();
            let (at_home, near) = nearness(&site.pool);
            assert!(near >= 0.99 && at_home >= home, "{method:?} {round}: {at_home:.3} {near:.3}");
        }
        assert!(versions(&site.pool).len() > 300);
        let v = site.open("v");
        for chunk in 0..CHUNKS {
            assert_bytes(&v, chunk * CHUNK, byte(chunk, rounds[chunk as usize]), CHUNK);
        }
    }
}

/// What was written under another placement, and what a snapshot kept away from its home.
#[test]
fn a_relocation_brings_chunks_home() {
    let mut site = site_of(Method::Redirect, Placement::Anywhere, None);
    write_some(&site, &site.open("v"), 1, 0, |_| true);
    assert!(nearness(&site.pool).0 < 0.1, "in the order of the writes");
    site.pool.set_volume_placement("v", Some(Placement::SnapAware(SIZES))).unwrap();
    let steps = |site: &Site, count: usize| (0..count).for_each(|_| _ = site.pool.maintain().unwrap());
    site.pool.relocate_volume("v", 0).unwrap();
    // It goes on after a restart, when it is begun again.
    steps(&site, 2);
    site = site.reopen();
    site.pool.relocate_volume("v", 0).unwrap();
    site.idle();
    assert_eq!(site.pool.relocation("v").unwrap(), None, "it ends");
    assert_eq!(nearness(&site.pool).0, 1.0);
    site.snap("v", "s");
    let is_new = |chunk: u64| chunk % 10 == 3;
    write_some(&site, &site.open("v"), 2, 1, is_new);
    assert!(nearness(&site.pool).0 < 0.91, "what a snapshot needs is at home");
    site.pool.relocate_volume("v", 0).unwrap();
    site.idle();
    let (home, near) = nearness(&site.pool);
    assert!(home == 1.0 && near >= 0.99, "{home:.3} {near:.3}");
    let site = site.reopen();
    for chunk in 0..CHUNKS {
        assert_bytes(&site.open("v"), chunk * CHUNK, byte(chunk, is_new(chunk).into()), CHUNK);
        assert_bytes(&site.snapshot("v", "s"), chunk * CHUNK, byte(chunk, 0), CHUNK);
    }
}

/// Gaps that are full give way to what is near, and then to anything.
#[test]
fn what_finds_no_room_in_its_gap_lies_elsewhere() {
    let site = site(Method::Copy);
    let v = site.open("v");
    write_some(&site, &v, 1, 0, |_| true);
    for round in 1..=3 {
        site.snap("v", &format!("s{round}"));
        write_some(&site, &v, round, round, |_| true);
    }
    let (home, near) = nearness(&site.pool);
    assert!(home == 1.0 && near < 0.5, "{home:.3} {near:.3}");
    assert_eq!(versions(&site.pool).len() as u64, 3 * CHUNKS);
    for chunk in 0..CHUNKS {
        assert_bytes(&site.snapshot("v", "s1"), chunk * CHUNK, byte(chunk, 0), CHUNK);
    }
}

/// A volume takes the extents that it writes to, and no more.
#[test]
fn a_region_is_opened_one_extent_at_a_time() {
    let site = site(Method::Redirect);
    let v = site.open("v");
    for extent in [0, 5, 20, 63] {
        write(&v, extent * EXTENT, 1, CHUNK);
    }
    site.pool.drain().unwrap();
    let used: u64 = site.pool.pvs().iter().map(|pv| pv.used).sum();
    assert_eq!(used, 4 * EXTENT);
    let regions: Vec<Region> = current(&site.pool).values().map(|slot| region(*slot)).collect();
    assert_eq!(regions[0], regions[1]);
    assert_ne!(regions[1], regions[2]);
}
