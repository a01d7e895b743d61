//! Volumes with a least size of writes by reference of their own.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::device::BlockDevice as _;
use hindcast_engine::pool::{DIRECT_SIZES, DirectMin, PoolOptions};
use hindcast_engine::testing::{KIB, MIB, Site, assert_bytes, assert_clean, kind, write};
use hindcast_engine::{ErrorKind, Volume};

const SIZE: u64 = 4 * MIB;

/// Writes a volume in pieces of `len` bytes, and returns whether any of them went by reference.
fn refers(site: &Site, volume: &Volume, len: u64) -> bool {
    let before = site.pool.stats().direct_bytes;
    for at in (0..SIZE).step_by(len as usize) {
        write(volume, at, 7, len);
        // Slots are lent by background steps.
        site.pool.maintain().unwrap();
    }
    site.pool.drain().unwrap();
    assert_bytes(volume, 0, 7, SIZE);
    site.pool.stats().direct_bytes > before
}

fn own(site: &Site, volume: &str) -> DirectMin {
    site.pool.volume(volume).unwrap().direct_min
}

#[test]
fn small_writes_of_one_volume_go_by_reference_and_large_ones_of_another_do_not() {
    let site = Site::builder(64).options(PoolOptions::default()).build();
    let [plain, small, never] = ["plain", "small", "never"].map(|name| site.volume(name, SIZE, 4 * KIB));
    assert!(!site.pool.info().features.contains(&"own-direct"));
    assert_eq!(
        site.pool.set_volume_direct_min("plain", DirectMin::OfPool).unwrap().direct_min,
        DirectMin::OfPool
    );
    assert!(!site.pool.info().features.contains(&"own-direct"), "nothing was set");

    let four = DirectMin::Bytes(4 * KIB);
    assert_eq!(site.pool.set_volume_direct_min("small", four).unwrap().direct_min, four);
    site.pool.set_volume_direct_min("never", DirectMin::Never).unwrap();
    assert!(site.pool.info().features.contains(&"own-direct"));
    assert!(refers(&site, &small, 4 * KIB));
    assert!(!refers(&site, &plain, 4 * KIB));
    assert!(refers(&site, &plain, MIB));
    assert!(!refers(&site, &never, MIB));

    site.pool.set_volume_direct_min("small", DirectMin::Bytes(128 * KIB)).unwrap();
    assert!(!refers(&site, &small, 64 * KIB));
    site.pool.set_volume_direct_min("never", DirectMin::OfPool).unwrap();
    assert!(refers(&site, &never, MIB));
}

#[test]
fn a_volume_goes_by_reference_where_the_pool_does_not() {
    let options = || PoolOptions { direct_min: None, ..PoolOptions::default() };
    let site = Site::builder(64).options(options()).build();
    let (plain, wants) = (site.volume("plain", SIZE, 16 * KIB), site.volume("wants", SIZE, 16 * KIB));
    site.pool.set_volume_direct_min("wants", DirectMin::Bytes(64 * KIB)).unwrap();
    assert!(!refers(&site, &plain, MIB));
    assert!(refers(&site, &wants, 64 * KIB));
    drop((plain, wants));
    let site = site.reopen_with(options());
    assert!(refers(&site, &site.open("wants"), 64 * KIB), "after an opening");
}

#[test]
fn rollbacks_keep_the_size_and_clones_inherit_it() {
    let site = Site::new(64).having("v", SIZE, 4 * KIB);
    let size = DirectMin::Bytes(8 * KIB);
    site.pool.set_volume_direct_min("v", size).unwrap();
    site.snap("v", "s");
    site.pool.roll_back("v", "s", "undo", true).unwrap();
    site.pool.clone_volume("v", "s", "c").unwrap();
    site.pool.rename_volume("v", "w").unwrap();
    site.pool.set_volume_direct_min("c", DirectMin::Never).unwrap();
    // Once from the journal, and once from the catalog.
    let site = site.reopen();
    assert_eq!((own(&site, "w"), own(&site, "c")), (size, DirectMin::Never));
    site.pool.drain().unwrap();
    let site = site.reopen();
    assert_eq!((own(&site, "w"), own(&site, "c")), (size, DirectMin::Never));
    site.pool.set_volume_direct_min("w", DirectMin::OfPool).unwrap();
    site.pool.clone_volume("w", "s", "d").unwrap();
    assert_eq!((own(&site, "w"), own(&site, "d")), (DirectMin::OfPool, DirectMin::OfPool));
    let files = site.kill();
    assert_clean(files);
}

#[test]
fn sizes_out_of_range_are_refused() {
    let site = Site::new(64).having("v", SIZE, 4 * KIB);
    for bytes in [0, 1, DIRECT_SIZES.start() - 1, DIRECT_SIZES.end() + 1, u64::MAX] {
        let set = site.pool.set_volume_direct_min("v", DirectMin::Bytes(bytes));
        assert_eq!(kind(set), ErrorKind::Invalid, "{bytes}");
    }
    assert_eq!(kind(site.pool.set_volume_direct_min("w", DirectMin::Never)), ErrorKind::NotFound);
    assert_eq!(own(&site, "v"), DirectMin::OfPool);
}

/// Random writes of one chunk each leave holes of one chunk. A pool in which nothing else is free
/// goes on writing by reference.
#[test]
fn short_holes_are_lent_to_short_writes() {
    let site = Site::builder(64).options(PoolOptions::default()).build();
    let (v, rest) = (site.volume("v", SIZE, 4 * KIB), site.volume("rest", 64 * MIB, 4 * KIB));
    site.pool.set_volume_direct_min("rest", DirectMin::Never).unwrap();
    write(&v, 0, 1, SIZE);
    let mut filled = 0;
    while site.pool.info().available > 2 * MIB {
        write(&rest, filled, 2, MIB);
        filled += MIB;
        site.pool.drain().unwrap();
    }
    for at in (0..filled).step_by(8 << 10) {
        rest.discard(at, 4 * KIB, false).unwrap();
    }
    site.idle();
    assert!(!refers(&site, &v, 4 * KIB), "no write of one chunk goes by reference yet");
    site.pool.set_volume_direct_min("v", DirectMin::Bytes(4 * KIB)).unwrap();
    assert!(refers(&site, &v, 4 * KIB));
    let before = site.pool.stats().direct_bytes;
    assert!(refers(&site, &v, 4 * KIB), "and what these writes replaced is lent again");
    assert!(site.pool.stats().direct_bytes - before > SIZE / 2);
    for at in (0..filled).step_by(8 << 10) {
        assert_bytes(&rest, at, 0, 4 * KIB);
        assert_bytes(&rest, at + 4 * KIB, 2, 4 * KIB);
    }
    drop((v, rest));
    assert_clean(site.kill());
}
