//! New slots in rows of RAID-5s that nothing uses (decision 86).
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::pool::{LayoutShape, LayoutSpec, Placement, PvInfo};
use hindcast_engine::testing::{KIB, MIB, Site, pv, try_write, write};

const CHUNK: u64 = 16 * KIB;

/// Returns a RAID-5 of three disks.
fn raid5(name: &str, mib: u64) -> LayoutSpec {
    let shape = LayoutShape::Raid5 { columns: 3, unit: LayoutShape::DEFAULT_UNIT };
    let members = ["a", "b", "c"].map(|disk| pv(&format!("{name}-{disk}"), mib * MIB)).into();
    LayoutSpec { name: name.into(), shape, reserve: 0, members }
}

fn pv_of(site: &Site, path: &str) -> PvInfo {
    site.pool.pvs().into_iter().find(|pv| pv.path == path).unwrap()
}

/// Snapshots that come and go leave holes everywhere. Whole rows do not take the extents that a
/// volume with larger chunks needs.
#[test]
fn rows_leave_extents_for_chunks_of_another_size() {
    let site = Site::new(4).moved_to(&raid5("r", 34));
    let v = site.volume("v", 16 * MIB, CHUNK);
    write(&v, 0, 1, 16 * MIB);
    site.idle();
    for round in 0..24 {
        site.snap("v", &format!("s{round}"));
        for chunk in (0..16 * MIB / CHUNK).filter(|chunk| chunk % 4 == round % 4) {
            write(&v, chunk * CHUNK, 2, CHUNK);
        }
        site.idle();
        site.pool.delete_snapshots("v", &[&format!("s{round}")]).unwrap();
        site.idle();
    }
    let before = pv_of(&site, "raid5:r");
    let free = before.size - before.used;
    assert!(free > before.size / 4, "{before:?}");
    let w = site.volume("w", free, 64 * KIB);
    for at in (0..free / 2).step_by(MIB as usize) {
        try_write(&w, at, 3, MIB).unwrap();
    }
    site.idle();
}

/// A placement that uses several RAID-5s in turn fills the row that it has begun on each of them.
#[test]
fn begun_rows_are_filled_on_each_physical_volume() {
    let site = Site::builder(4).extents(MIB).placement(Placement::Share).build();
    site.pool.add_layout(&raid5("r", 18)).unwrap();
    site.pool.add_layout(&raid5("s", 18)).unwrap();
    let plain = site.pool.pvs()[0].path.clone();
    site.pool.drain_pv(&plain, true).unwrap();
    site.idle();
    site.pool.remove_pv(&plain).unwrap();
    let v = site.volume("v", 64 * MIB, CHUNK);
    // Each MiB of the volume has a place of its own.
    for mib in 0..64 {
        write(&v, mib * MIB, 1, CHUNK);
        site.idle();
    }
    let used = ["raid5:r", "raid5:s"].map(|path| pv_of(&site, path).used / MIB);
    assert_eq!(used, [1, 1], "64 slots of an extent are enough for both");
}
