//! Counters of volumes: the cost of snapshots, the index, and the regions of requests.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{IndexSize, Method, Order, PreserveStats, RegionCounts};
use hindcast_engine::testing::{KIB, MIB, Site, write};

const CHUNK: u64 = 16 * KIB;

fn preserved(site: &Site, volume: &str) -> PreserveStats {
    site.pool.volume_statistics(volume).unwrap().preserved
}

/// Makes a volume `v` of four chunks, filled, with a snapshot.
fn filled(method: Method) -> Site {
    let site = Site::new(16);
    let v = site.volume("v", 4 * CHUNK, CHUNK);
    site.pool.set_method("v", method).unwrap();
    write(&v, 0, 1, 4 * CHUNK);
    site.pool.drain().unwrap();
    assert_eq!(preserved(&site, "v"), PreserveStats::default(), "nothing was to be preserved");
    site.snap("v", "s");
    site
}

#[test]
fn a_redirect_counts_what_it_fills_and_what_it_wastes() {
    let site = filled(Method::Redirect);
    let v = site.pool.open_volume("v", false).unwrap();
    // This is the paper's example: 2 KiB over the border of two chunks of 16 KiB waste 30 KiB.
    write(&v, CHUNK - KIB, 2, 2 * KIB);
    site.pool.drain().unwrap();
    let expected = PreserveStats {
        redirects: 2,
        redirected_bytes: 2 * CHUNK,
        fill_reads: 2,
        fill_bytes: 30 * KIB,
        host_bytes: 2 * KIB,
        ..PreserveStats::default()
    };
    assert_eq!(preserved(&site, "v"), expected);
    assert_eq!(expected.space_efficiency(), Some(2.0 / 32.0));
    // A second write finds the chunks in places of their own. A whole chunk has nothing to fill.
    write(&v, CHUNK - KIB, 3, 2 * KIB);
    write(&v, 2 * CHUNK, 3, CHUNK);
    site.pool.drain().unwrap();
    let now = preserved(&site, "v");
    assert_eq!((now.redirects, now.fill_reads, now.host_bytes), (3, 2, 2 * KIB + CHUNK));
    assert_eq!(site.pool.stats().preserving, now, "the pool has no other volume");
}

#[test]
fn a_copy_counts_once_for_each_chunk_and_snapshot() {
    let site = filled(Method::Copy);
    let v = site.pool.open_volume("v", false).unwrap();
    write(&v, 0, 2, 4 * KIB);
    write(&v, 8 * KIB, 2, 4 * KIB);
    write(&v, 8 * KIB, 3, 4 * KIB);
    site.pool.drain().unwrap();
    write(&v, 0, 4, 4 * KIB);
    site.pool.drain().unwrap();
    let expected = PreserveStats {
        copies: 1,
        copied_bytes: CHUNK,
        // Content that was written twice before it was moved to its place counts once. Later writes
        // cost nothing.
        host_bytes: 8 * KIB,
        ..PreserveStats::default()
    };
    assert_eq!(preserved(&site, "v"), expected);
    assert_eq!(expected.space_efficiency(), Some(0.5));
}

#[test]
fn the_independent_order_copies_for_each_snapshot() {
    for (order, copies) in [(Order::Dependent, 0), (Order::Independent, 2)] {
        let site = filled(Method::Redirect);
        let v = site.pool.open_volume("v", false).unwrap();
        site.pool.set_order("v", order).unwrap();
        site.snap("v", "t");
        site.snap("v", "u");
        write(&v, 0, 2, CHUNK);
        site.pool.drain().unwrap();
        let now = preserved(&site, "v");
        assert_eq!((now.redirects, now.copies), (1, copies), "{order:?}");
        assert_eq!(now.space_efficiency(), Some(1.0 / (1 + copies) as f64));
    }
}

#[test]
fn a_clone_fills_from_its_base_and_preserves_nothing() {
    let site = filled(Method::Redirect);
    site.pool.clone_volume("v", "s", "c").unwrap();
    let c = site.pool.open_volume("c", false).unwrap();
    write(&c, 4 * KIB, 2, 4 * KIB);
    site.pool.drain().unwrap();
    let expected = PreserveStats { fill_reads: 2, fill_bytes: 12 * KIB, ..PreserveStats::default() };
    assert_eq!((preserved(&site, "c"), preserved(&site, "v")), (expected, PreserveStats::default()));
    assert_eq!(expected.space_efficiency(), None);
}

#[test]
fn a_rollback_keeps_the_counts_and_a_restart_begins_anew() {
    let site = filled(Method::Redirect);
    let v = site.pool.open_volume("v", false).unwrap();
    write(&v, 0, 2, CHUNK);
    v.read(0, &mut [0; 512]).unwrap();
    site.pool.drain().unwrap();
    let before = site.pool.volume_statistics("v").unwrap();
    assert_eq!((before.preserved.redirects, before.requests.writes), (1, 2));
    drop(v);
    site.pool.roll_back("v", "s", "undo", false).unwrap();
    let after = site.pool.volume_statistics("v").unwrap();
    assert_eq!((after.preserved, after.requests), (before.preserved, before.requests));
    assert_eq!(after.regions, before.regions);
    assert_eq!(after.index, before.index, "the line that the volume left has its snapshots");
    let v = site.pool.open_volume("v", false).unwrap();
    write(&v, 0, 3, CHUNK);
    site.pool.drain().unwrap();
    site.snap("v", "t");
    write(&v, 0, 4, CHUNK);
    site.pool.drain().unwrap();
    drop(v);
    assert_eq!(preserved(&site, "v").redirects, 2, "counting goes on");
    let site = site.reopen();
    assert_eq!(preserved(&site, "v"), PreserveStats::default());
}

#[test]
fn the_index_grows_with_chunks_and_versions() {
    let site = filled(Method::Redirect);
    let size = |site: &Site| site.pool.index_size().unwrap();
    let IndexSize { map_pages, versions, catalog_bytes } = size(&site);
    assert_eq!((map_pages, versions), (1, 0));
    assert!(catalog_bytes > 4096);
    let index = site.pool.volume_statistics("v").unwrap().index;
    assert_eq!((index.chunks, index.versions, index.bytes), (4, 0, 4 * 12));
    let v = site.pool.open_volume("v", false).unwrap();
    write(&v, CHUNK, 2, 2 * CHUNK);
    site.pool.drain().unwrap();
    assert_eq!(size(&site).versions, 2);
    let index = site.pool.volume_statistics("v").unwrap().index;
    assert_eq!((index.chunks, index.versions, index.bytes), (4, 2, 4 * 12 + 2 * 57));
    site.pool.delete_snapshots("v", &["s"]).unwrap();
    site.idle();
    assert_eq!((size(&site).map_pages, size(&site).versions), (1, 0));
}

#[test]
fn requests_count_where_they_go_and_refused_ones_nowhere() {
    let site = Site::new(16);
    let v = site.volume("v", 3 * MIB, CHUNK);
    write(&v, 0, 1, 512);
    write(&v, 2 * MIB, 1, 512);
    v.write_zeroes(0, 3 * MIB, true, false).unwrap();
    v.discard(0, MIB, false).unwrap();
    v.read(MIB - 512, &mut [0; 1024]).unwrap();
    assert!(v.try_read(MIB, &mut [0; 512]).unwrap() || v.read(MIB, &mut [0; 512]).is_ok());
    assert!(v.read(3 * MIB, &mut [0; 512]).is_err());
    assert!(v.write_zeroes(u64::MAX - 511, 512, true, false).is_err());
    let mut ops = [hindcast_engine::device::WriteOp::new(u64::MAX - 511, vec![0; 512].into())];
    v.write(&mut ops, false);
    assert!(ops[0].result.is_err());
    let regions = site.pool.volume_statistics("v").unwrap().regions;
    assert_eq!(regions.region_size, MIB);
    let counts = [(1, 2), (2, 1), (0, 2)].map(|(reads, writes)| RegionCounts { reads, writes });
    assert_eq!(regions.regions, counts);
    // Reads of a snapshot do not count for the volume.
    site.snap("v", "s");
    site.pool.open_snapshot("v", "s").unwrap().read(0, &mut [0; 512]).unwrap();
    assert_eq!(site.pool.volume_statistics("v").unwrap().regions.regions, counts);
    // A larger volume gets larger regions when one is needed.
    site.pool.resize_volume("v", 1 << 30, false).unwrap();
    v.read((1 << 30) - 512, &mut [0; 512]).unwrap();
    let regions = site.pool.volume_statistics("v").unwrap().regions;
    assert_eq!((regions.region_size, regions.regions.len()), (4 * MIB, 256));
    assert_eq!(regions.regions[0], RegionCounts { reads: 3, writes: 5 });
}
