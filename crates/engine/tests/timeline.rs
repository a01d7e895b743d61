//! Timelines: how much changed when and where, without carrying anything out.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Moment, Timeline, TimelineQuery};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::testing::{KIB, MIB, Site, kind, write};
use hindcast_engine::world::Clock;

const SECOND: u64 = 1_000_000_000;
const ALL: TimelineQuery = TimelineQuery { from: None, to: None, buckets: 100, regions: 0 };

/// Makes a pool with a volume `v` that has a history. The time is a multiple of 100 s.
fn site(mib: u64) -> Site {
    let site = Site::new(mib);
    site.clock.advance(1_000 * SECOND - site.clock.now() % (100 * SECOND));
    let site = site.having("v", 4 * MIB, 16 * KIB);
    let settings =
        CdpSettings { encoding: Encoding::Parity, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    site
}

fn timeline(site: &Site, query: &TimelineQuery) -> Timeline {
    site.pool.timeline("v", query).unwrap()
}

/// Returns the answer that is exact.
fn settled(site: &Site, query: &TimelineQuery) -> Timeline {
    for _ in 0..100 {
        let found = timeline(site, query);
        if !found.coarse {
            return found;
        }
    }
    panic!("it stays coarse");
}

/// Returns the (bucket, records, bytes written) of all buckets that have any.
fn used(found: &Timeline) -> Vec<(usize, u64, u64)> {
    let amounts = found.amounts.iter().enumerate().filter(|(_, amount)| amount.records > 0);
    amounts.map(|(n, amount)| (n, amount.records, amount.written)).collect()
}

#[test]
fn writes_are_seen_at_once_and_nothing_is_carried_out() {
    let site = site(32);
    let start = site.clock.now();
    timeline(&site, &ALL); // begins the history
    let before = (site.pool.stats().settled_lsn, site.pool.stats().history_waits);
    for n in 0..5 {
        site.clock.advance(10 * SECOND);
        site.put(n * 64 * KIB, n as u8 + 1, 20 * KIB); // two chunks
    }
    let window =
        TimelineQuery { from: Some(start), to: Some(start + 100 * SECOND), buckets: 100, regions: 0 };
    let found = timeline(&site, &window);
    assert_eq!((found.window.from, found.window.length, found.window.count), (start, SECOND, 100));
    let expected: Vec<_> = (1..=5).map(|n| (n * 10, 2, 20 * KIB)).collect();
    assert_eq!(used(&found), expected);
    assert!(found.amounts.iter().all(|amount| amount.waiting == amount.written && amount.stored == 0));
    assert_eq!((site.pool.stats().settled_lsn, site.pool.stats().history_waits), before);
    // The same picture when the log has them.
    site.pool.drain().unwrap();
    let found = timeline(&site, &window);
    assert_eq!(used(&found), expected);
    assert!(found.amounts.iter().all(|amount| amount.waiting == 0));
    assert!(found.amounts[10].stored > 0 && !found.coarse);
    // And with both.
    site.clock.advance(10 * SECOND);
    site.put(0, 99, 512);
    let found = timeline(&site, &window);
    assert_eq!(used(&found).last(), Some(&(60, 1, 512)));
    assert_eq!(used(&found).len(), 6);
    let half = TimelineQuery { from: Some(start + 25 * SECOND), to: Some(start + 45 * SECOND), ..window };
    assert_eq!(used(&timeline(&site, &half)).len(), 2, "only the window counts");
    assert!(timeline(&site, &ALL).now >= start + 60 * SECOND);
}

#[test]
fn full_segments_are_exact_after_some_queries() {
    let site = site(256);
    let start = site.clock.now();
    // A full segment has at most 65,536 records; these are several.
    let v = site.open("v");
    for second in 0..40u64 {
        site.clock.advance(SECOND);
        for n in 0..1000u64 {
            write(&v, n * 1024, (second + n) as u8, 512);
        }
        site.pool.drain().unwrap();
    }
    let segments = site.pool.cdp("v").unwrap().segments;
    let window = TimelineQuery { from: Some(start), to: Some(start + 50 * SECOND), buckets: 50, regions: 4 };
    let found = settled(&site, &window);
    let expected: Vec<_> = (1..=40).map(|n| (n, 1000, 512_000)).collect();
    assert_eq!(used(&found), expected, "{segments} segments");
    let regions = found.regions.unwrap();
    assert_eq!((regions.count, regions.length), (4, MIB));
    assert_eq!(regions.written[4..8], [512_000, 0, 0, 0]);
    assert_eq!(regions.written.iter().sum::<u64>(), 40 * 512_000);
    // However it is cut, no record is lost.
    for buckets in [1, 3, 7, 2000] {
        let found = settled(&site, &TimelineQuery { buckets, regions: 0, ..window });
        let sum: u64 = found.amounts.iter().map(|amount| amount.records).sum();
        assert_eq!(sum, 40_000, "{buckets} buckets");
    }
}

#[test]
fn moments_with_a_name_lie_in_the_window() {
    let site = site(32);
    let start = site.clock.now();
    let at = |seconds: u64| start + seconds * SECOND;
    site.clock.advance(10 * SECOND);
    site.put(0, 1, 4096);
    site.open("v").flush().unwrap();
    site.pool.mark("v", "first").unwrap();
    site.clock.advance(10 * SECOND);
    site.put(0, 2, 4096);
    site.snap("v", "seen");
    site.clock.advance(10 * SECOND);
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Mark("first".into()), false).unwrap();
    site.clock.advance(10 * SECOND);
    site.put(0, 3, 4096);
    site.pool.mark("v", "last").unwrap();
    let window = TimelineQuery { from: Some(at(5)), to: Some(at(100)), buckets: 95, regions: 0 };
    let found = timeline(&site, &window);
    let marks: Vec<_> =
        found.marks.items.iter().map(|m| (m.name.as_str(), (m.time - start) / SECOND)).collect();
    assert_eq!(marks, [("first", 10), ("last", 40)]);
    let rollbacks: Vec<u64> = found.rollbacks.iter().map(|r| (r.time - start) / SECOND).collect();
    assert_eq!(rollbacks, [30]);
    assert_eq!(found.spans.len(), 2);
    assert_eq!(found.begins.map(|begins| begins.time / SECOND), Some(start / SECOND));
    assert_eq!(found.flushes.items.len(), 1);
    assert!(found.anchors.items.iter().any(|anchor| anchor.snapshot.as_deref() == Some("seen")));
    let narrow = TimelineQuery { from: Some(at(35)), to: Some(at(50)), ..window };
    let found = timeline(&site, &narrow);
    assert_eq!(
        (found.marks.count, found.rollbacks.len(), found.flushes.count, found.spans.len()),
        (1, 0, 0, 1)
    );
    // A lane with very many items has counts.
    for n in 0..600 {
        site.pool.mark("v", &format!("m{n}")).unwrap();
    }
    let found = timeline(&site, &window);
    assert_eq!((found.marks.count, found.marks.items.len()), (602, 0));
    assert_eq!(found.marks.counts.iter().sum::<u32>(), 602);
}

#[test]
fn a_volume_without_a_history_has_an_empty_timeline() {
    let site = Site::new(32).having("v", MIB, 16 * KIB);
    site.clock.advance(600 * SECOND);
    site.put(0, 1, 4096);
    let found = timeline(&site, &ALL);
    assert_eq!((found.begins, found.spans.len(), used(&found).len()), (None, 0, 0));
    assert!(found.window.end() >= found.now);
    for query in [
        TimelineQuery { buckets: 0, ..ALL },
        TimelineQuery { buckets: 2001, ..ALL },
        TimelineQuery { regions: 65, ..ALL },
        TimelineQuery { from: Some(5), to: Some(5), ..ALL },
    ] {
        assert_eq!(kind(site.pool.timeline("v", &query)), ErrorKind::Invalid, "{query:?}");
    }
    assert_eq!(kind(site.pool.timeline("w", &ALL)), ErrorKind::NotFound);
    // The last times that there are break nothing.
    timeline(&site, &TimelineQuery { from: Some(u64::MAX - 1), to: Some(u64::MAX), ..ALL });
    timeline(&site, &TimelineQuery { from: Some(0), to: Some(u64::MAX), buckets: 2000, regions: 64 });
}

#[test]
fn a_clock_that_is_set_loses_nothing() {
    let site = site(32);
    let start = site.clock.now();
    site.put(0, 1, 4096);
    site.clock.advance(50 * SECOND);
    site.put(0, 2, 4096);
    site.clock.set(start + 10 * SECOND);
    site.clock.advance(10 * SECOND);
    site.put(0, 3, 4096);
    site.pool.drain().unwrap();
    let window =
        TimelineQuery { from: Some(start), to: Some(start + 100 * SECOND), buckets: 100, regions: 0 };
    let found = settled(&site, &window);
    assert_eq!(found.amounts.iter().map(|amount| amount.records).sum::<u64>(), 3);
    assert_eq!(found.clock.len(), 1);
    assert!(found.amounts[20].records == 1, "{:?}", used(&found));
    // A window that is not asked for has all of it.
    let history = site.pool.history("v", 7).unwrap();
    assert_eq!(history.buckets.iter().map(|bucket| bucket.records).sum::<u64>(), 3);
    assert_eq!(settled(&site, &ALL).amounts.iter().map(|amount| amount.records).sum::<u64>(), 3);
}
