//! Dedicated physical volumes: only volumes that were made for one use it, and use nothing else.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::disk::MemDir;
use hindcast_engine::pool::{
    LayoutShape, LayoutSpec, Placement, PoolOptions, SnapAware, SnapshotPolicy, code,
};
use hindcast_engine::testing::{
    Act, FaultyDir, KIB, MIB, Op, Site, assert_bytes, kind, new_volume, pv, try_write, write,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes a pool with 4 MiB for all, and the dedicated physical volume `d` of 4 MiB with the volume
/// `v`. The volume `w` is on no dedicated one.
fn site() -> Site {
    with(Site::new(4))
}

fn with(site: Site) -> Site {
    site.pool.add_dedicated_pv(&pv("d", 5 * MIB)).unwrap();
    site.pool.create_volume_on(&new_volume("v", 8 * MIB, 16 * KIB), "d").unwrap();
    site.having("w", 8 * MIB, 16 * KIB)
}

/// Bytes of extents in use: (on all that are not dedicated, on `d`).
fn used(site: &Site) -> (u64, u64) {
    let pvs = site.pool.pvs();
    let of =
        |dedicated: bool| pvs.iter().filter(|pv| pv.dedicated.is_some() == dedicated).map(|pv| pv.used).sum();
    (of(false), of(true))
}

/// Writes to a volume until the pool refuses. Returns how many MiB went in.
fn fill(site: &Site, volume: &str, byte: u8) -> u64 {
    let volume = site.open(volume);
    let mut step = 0;
    while step < 128 {
        match try_write(&volume, step * 64 * KIB, byte, 64 * KIB) {
            Ok(()) => step += 1,
            Err(ErrorKind::NoSpace) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    step * 64 * KIB
}

#[test]
fn a_volume_is_where_it_was_made_for() {
    let snap_aware = Placement::SnapAware(SnapAware { slice: 4, gap: 2 });
    for placement in [Placement::Anywhere, Placement::Contiguous, Placement::Share, snap_aware] {
        let site = with(Site::builder(4).placement(placement).build());
        assert_eq!(site.pool.volume("v").unwrap().dedicated_pv, Some(1));
        assert_eq!(site.pool.volume("w").unwrap().dedicated_pv, None);
        write(&site.open("v"), 0, 1, MIB);
        site.idle();
        // Extents for the next large writes may be open, too.
        let (common, dedicated) = used(&site);
        assert!(common == 0 && (MIB..2 * MIB).contains(&dedicated), "{placement:?}: {common} {dedicated}");
        write(&site.open("w"), 0, 2, MIB);
        site.idle();
        let (common, now) = used(&site);
        assert!((MIB..2 * MIB).contains(&common) && now == dedicated, "{placement:?}: {common} {now}");
        // What snapshots, clones, rollbacks and kept moments need is there, too.
        site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
        site.pool.create_snapshots(&[("v", "s")]).unwrap();
        write(&site.open("v"), 0, 3, 512 * KIB);
        site.pool.clone_volume("v", "s", "c").unwrap();
        write(&site.open("c"), 0, 4, 256 * KIB);
        site.pool.roll_back("v", "s", "u", false).unwrap();
        write(&site.open("v"), 0, 5, 256 * KIB);
        site.idle();
        let (still, dedicated) = used(&site);
        assert!(still == common && dedicated >= 2 * MIB, "{placement:?}: {still} {dedicated}");
        for volume in ["v", "c"] {
            assert_eq!(site.pool.volume(volume).unwrap().dedicated_pv, Some(1), "{volume}");
        }
        let site = site.reopen();
        assert_eq!(site.pool.volume("c").unwrap().dedicated_pv, Some(1));
        assert_bytes(&site.open("v"), 0, 5, 256 * KIB);
        assert_bytes(&site.open("v"), 512 * KIB, 1, 512 * KIB);
        assert_bytes(&site.open("c"), 0, 4, 256 * KIB);
        assert_bytes(&site.open("w"), 0, 2, MIB);
    }
}

#[test]
fn recovered_volumes_and_kept_moments_are_there_too() {
    let site = site();
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    write(&site.open("v"), 0, 1, 256 * KIB);
    let moment = site.pool.stats().sequenced_lsn;
    write(&site.open("v"), 0, 2, 256 * KIB);
    site.idle();
    site.pool.recover_volume("v", &Moment::Lsn(moment), "r").unwrap();
    write(&site.open("r"), MIB, 3, 256 * KIB);
    site.idle();
    assert_eq!(site.pool.volume("r").unwrap().dedicated_pv, Some(1));
    assert_eq!(used(&site).0, 0);
    let site = site.reopen();
    assert_bytes(&site.open("r"), 0, 1, 256 * KIB);
    assert_bytes(&site.open("r"), MIB, 3, 256 * KIB);
}

#[test]
fn what_is_promised_in_one_place_is_not_taken_in_another() {
    for first in ["v", "w"] {
        let second = if first == "v" { "w" } else { "v" };
        let site = site();
        let wrote = fill(&site, first, 1);
        assert!((3 * MIB..=4 * MIB).contains(&wrote), "{first}: {wrote}");
        let low = site.pool.health();
        assert!(low.has(code::SPACE_LOW));
        // The promises of what waits in the journal are kept over a crash.
        let site = site.reopen();
        let wrote_then = fill(&site, second, 2);
        assert!((3 * MIB..=4 * MIB).contains(&wrote_then), "{second}: {wrote_then}");
        site.idle();
        let site = site.reopen();
        assert_bytes(&site.open(first), 0, 1, wrote);
        assert_bytes(&site.open(second), 0, 2, wrote_then);
        // Room for one makes no room for the other.
        site.pool.delete_volume(second, false).unwrap();
        site.idle();
        assert_eq!(try_write(&site.open(first), 5 * MIB, 1, MIB), Err(ErrorKind::NoSpace));
    }
}

#[test]
fn snapshots_are_deleted_only_where_that_helps() {
    let site = site();
    for volume in ["v", "w"] {
        write(&site.open(volume), 0, 1, MIB);
        site.pool.create_snapshots(&[(volume, "s")]).unwrap();
        write(&site.open(volume), 0, 2, MIB);
        let policy = SnapshotPolicy { reserve_percent: 90, auto_delete: true };
        site.pool.set_snapshot_policy(volume, policy).unwrap();
    }
    site.idle();
    let volume = site.open("v");
    for n in 1..4 {
        write(&volume, n * MIB, 3, MIB);
        site.idle();
    }
    let left = |volume: &str| site.pool.snapshots(volume).unwrap().len();
    assert_eq!((left("v"), left("w")), (0, 1));
}

#[test]
fn a_dedicated_physical_volume_leaves_when_nothing_is_on_it() {
    let site = site();
    write(&site.open("v"), 0, 1, MIB);
    site.pool.create_snapshots(&[("v", "s")]).unwrap();
    let refused = |what: Result<(), hindcast_engine::Error>, part: &str| {
        let error = what.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(site.pool.drain_pv("d", true), "these volumes are on it: v");
    refused(site.pool.remove_pv("d"), "these volumes are on it: v");
    site.pool.delete_volume("v", true).unwrap();
    site.idle();
    site.pool.remove_pv("d").unwrap();
    refused(site.pool.create_volume_on(&new_volume("x", MIB, 4096), "pv-0.img").map(drop), "not dedicated");
    let missing = site.pool.create_volume_on(&new_volume("x", MIB, 4096), "d");
    assert_eq!(kind(missing), ErrorKind::NotFound);
    assert_eq!(used(&site.reopen()), (0, 0));
}

#[test]
fn a_pool_of_dedicated_physical_volumes_only() {
    let site = Site::new(4);
    let members = vec![pv("a", 10 * MIB), pv("b", 10 * MIB)];
    let shape = LayoutShape::Mirror { copies: 2 };
    let spec = LayoutSpec { name: "m".into(), shape, reserve: 0, members };
    site.pool.add_dedicated_layout(&spec).unwrap();
    site.pool.remove_pv("pv-0.img").unwrap();
    // A layout is found by its name.
    site.pool.create_volume_on(&new_volume("v", 4 * MIB, 16 * KIB), "m").unwrap();
    write(&site.open("v"), 0, 1, MIB);
    site.pool.create_volume(&new_volume("w", 4 * MIB, 16 * KIB)).unwrap();
    assert_eq!(try_write(&site.open("w"), 0, 1, 4096), Err(ErrorKind::NoSpace));
    let site = site.reopen();
    site.idle();
    assert_bytes(&site.open("v"), 0, 1, MIB);
    site.pool.add_pv(&pv("p", 3 * MIB)).unwrap();
    write(&site.open("w"), 0, 1, 4096);
}

#[test]
fn large_writes_go_there_by_reference() {
    let options = PoolOptions::default();
    let site = Site::builder(64).extents(MIB).options(options).build();
    site.pool.add_dedicated_pv(&pv("d", 65 * MIB)).unwrap();
    site.pool.create_volume_on(&new_volume("v", 32 * MIB, 64 * KIB), "d").unwrap();
    let volume = site.open("v");
    for n in 0..24 {
        write(&volume, n * MIB, 1, MIB);
        site.pool.maintain().unwrap();
    }
    assert!(site.pool.stats().direct_bytes > 0, "{:?}", site.pool.stats());
    drop(volume);
    let site = site.reopen();
    site.idle();
    let (common, dedicated) = used(&site);
    assert!(common == 0 && dedicated >= 24 * MIB, "{common} {dedicated}");
    assert_bytes(&site.open("v"), 0, 1, 24 * MIB);
}

/// What such a volume writes must not keep the journal from being carried out.
#[test]
fn when_it_fails_the_others_take_what_comes() {
    let broken = Arc::new(AtomicBool::new(false));
    let fails = broken.clone();
    let site = Site::builder(8).over(|memory: MemDir| {
        FaultyDir::new(memory, move |op: &Op<'_>| {
            let fails = op.name == "d" && matches!(op.act, Act::Write(_)) && fails.load(Ordering::Relaxed);
            fails.then(|| std::io::Error::from_raw_os_error(5))
        })
    });
    let site = with(site);
    write(&site.open("v"), 0, 1, MIB);
    site.idle();
    write(&site.open("v"), 512 * KIB, 2, MIB);
    write(&site.open("w"), 0, 3, MIB);
    for volume in ["v", "w"] {
        let policy = SnapshotPolicy { reserve_percent: 90, auto_delete: true };
        site.pool.set_snapshot_policy(volume, policy).unwrap();
        site.pool.create_snapshots(&[(volume, "s")]).unwrap();
    }
    broken.store(true, Ordering::Relaxed);
    site.idle();
    assert!(site.pool.health().has(code::PV_FAILED));
    assert!(used(&site).0 >= 2 * MIB, "{:?}", used(&site));
    assert_bytes(&site.open("v"), 0, 1, 512 * KIB);
    assert_bytes(&site.open("v"), 512 * KIB, 2, MIB);
    assert_bytes(&site.open("w"), 0, 3, MIB);
    // Nothing new is promised there, and no snapshot is deleted for it.
    assert_eq!(try_write(&site.open("v"), 4 * MIB, 4, 64 * KIB), Err(ErrorKind::NoSpace));
    write(&site.open("w"), MIB, 3, MIB);
    site.idle();
    assert!(["v", "w"].iter().all(|volume| site.pool.snapshots(volume).unwrap().len() == 1));
    broken.store(false, Ordering::Relaxed);
    let site = site.reopen();
    write(&site.open("v"), 4 * MIB, 4, 64 * KIB);
    site.idle();
    assert_bytes(&site.open("v"), 512 * KIB, 2, MIB);
}
