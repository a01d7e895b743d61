//! Timelines: how much changed when and where, without carrying anything out.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{Anchor, AnchorPolicy, CdpSettings, Encoding, Moment, Timeline, TimelineQuery};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::testing::{Act, FaultyDir, KIB, MIB, Site, kind, write};
use hindcast_engine::world::Clock;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const ALL: TimelineQuery = TimelineQuery { from: None, to: None, buckets: 100, regions: 0 };

/// Makes a pool with a volume `v` that has a history. The time is a multiple of 100 s.
fn site(mib: u64) -> Site {
    recorded(Site::new(mib))
}

fn recorded(site: Site) -> Site {
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

/// Once, however far destage is.
#[test]
fn a_snapshot_is_an_anchor_at_once() {
    let site = site(32);
    timeline(&site, &ALL); // begins the history
    site.put(0, 1, 4096);
    site.snap("v", "seen");
    let before = site.pool.stats().settled_lsn;
    let named =
        |found: Vec<Anchor>| found.into_iter().filter_map(|anchor| anchor.snapshot).collect::<Vec<_>>();
    let in_both = || {
        assert_eq!(named(site.pool.history("v", 1).unwrap().anchors), ["seen"]);
        assert_eq!(named(timeline(&site, &ALL).anchors.items), ["seen"]);
    };
    in_both();
    assert_eq!(site.pool.stats().settled_lsn, before, "nothing was carried out for it");
    site.pool.drain().unwrap();
    in_both();
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
    let seen = site.put(0, 2, 4096);
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
    let since = |time: u64| (time - start) / SECOND;
    let rollbacks: Vec<_> = found.rollbacks.iter().map(|r| (since(r.at.time), r.to.map(since))).collect();
    assert_eq!(rollbacks, [(30, Some(10))]);
    assert_eq!(found.spans.len(), 2);
    assert_eq!(found.begins.map(|begins| begins.time / SECOND), Some(start / SECOND));
    assert_eq!(found.flushes.items.len(), 1);
    assert!(found.anchors.items.iter().any(|anchor| anchor.snapshot.as_deref() == Some("seen")));
    let before = TimelineQuery { from: Some(at(5)), to: Some(at(25)), ..window };
    assert_eq!(timeline(&site, &before).rollbacks.len(), 1, "it took back what was written here");
    let earlier = TimelineQuery { from: Some(at(5)), to: Some(at(9)), ..window };
    assert_eq!(timeline(&site, &earlier).rollbacks, []);
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
    // Without a mark, the time is an estimate. That of a snapshot is known.
    site.pool.roll_back_to(&[("v", "undo-2")], &Moment::Lsn(seen), false).unwrap();
    site.pool.roll_back("v", "seen", "undo-3", false).unwrap();
    let to: Vec<_> = timeline(&site, &window).rollbacks.iter().map(|r| r.to.map(since)).collect();
    assert!(matches!(to[..], [Some(10), Some(10..=20), Some(20)]), "{to:?}");
}

/// Also behind a rollback, which brings back the size of its moment.
#[test]
fn sizes_hold_from_their_moment_on() {
    let site = site(32);
    let start = site.clock.now();
    let at = |seconds: u64| start + seconds * SECOND;
    for (mib, name) in [(6, "six"), (5, "five")] {
        site.clock.advance(10 * SECOND);
        site.pool.resize_volume("v", mib * MIB, true).unwrap();
        site.put(0, 1, 4096);
        site.pool.mark("v", name).unwrap();
    }
    site.clock.advance(10 * SECOND);
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Mark("six".into()), false).unwrap();
    let sizes = |from, to| {
        let window = TimelineQuery { from: Some(at(from)), to: Some(at(to)), buckets: 50, regions: 0 };
        let found = timeline(&site, &window).sizes.into_iter();
        found.map(|(stamp, size)| ((stamp.time - start) / SECOND, size / MIB)).collect::<Vec<_>>()
    };
    assert_eq!(sizes(0, 50), [(0, 4), (10, 6), (20, 5), (30, 6)]);
    assert_eq!(sizes(15, 25), [(10, 6), (20, 5)], "the first one still holds in the window");
    assert_eq!(sizes(40, 50), [(30, 6)]);
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

/// Destage publishes a batch in the log before it overwrites what is in place, and only then is the
/// batch settled. In between, its records are in the log and in the list of those that wait.
#[test]
fn a_batch_counts_once_while_it_is_applied() {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let site = Site::builder(32).over(move |dir| {
        FaultyDir::new(dir, move |op| {
            if op.name.starts_with("pv-") && op.act == Act::Sync(SyncPurpose::Apply) {
                held.pass();
            }
            None
        })
    });
    let site = recorded(site);
    let start = site.clock.now();
    site.put(0, 1, 16 * KIB);
    site.pool.drain().unwrap();
    site.clock.advance(10 * SECOND);
    let last = site.put(0, 2, 4096);
    let window =
        TimelineQuery { from: Some(start), to: Some(start + 100 * SECOND), buckets: 100, regions: 4 };
    let expected = [(0, 1, 16 * KIB), (10, 1, 4096)];
    assert_eq!(used(&timeline(&site, &window)), expected);
    gate.close();
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| site.pool.drain());
        assert!(gate.wait_for_one(), "destage overwrites in place");
        let found = timeline(&site, &window);
        let unsettled = site.pool.stats().settled_lsn < last;
        gate.open();
        drain.join().unwrap().unwrap();
        assert!(unsettled && found.amounts[10].stored > 0, "the log has it, and it is not settled");
        assert_eq!((used(&found), found.amounts[10].waiting), (expected.to_vec(), 0));
        assert_eq!(found.regions.unwrap().written.iter().sum::<u64>(), 20 * KIB);
    });
    assert_eq!(used(&timeline(&site, &window)), expected);
}

/// What threads wait at while it is closed.
#[derive(Default)]
struct Gate {
    /// Whether it is closed, and whether a thread waits.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 |= state.0;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, LONG, |state| state.0).unwrap());
    }

    fn wait_for_one(&self) -> bool {
        let state = self.state.lock().unwrap();
        self.changed.wait_timeout_while(state, LONG, |state| !state.1).unwrap().0.1
    }
}

/// A test that waits as long has failed.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn written_zeros_count_at_once_and_long_discards_never() {
    let site = Site::new(64);
    site.clock.advance(1_000 * SECOND - site.clock.now() % (100 * SECOND));
    let site = recorded(site);
    let start = site.clock.now();
    let v = site.open("v");
    timeline(&site, &ALL); // begins the history
    v.write_zeroes(0, 3 * MIB, false, true).unwrap();
    let window =
        TimelineQuery { from: Some(start), to: Some(start + 100 * SECOND), buckets: 100, regions: 0 };
    let found = timeline(&site, &window);
    assert_eq!((used(&found), found.amounts[0].waiting), (vec![(0, 3 * 64, 3 * MIB)], 3 * MIB));
    site.clock.advance(10 * SECOND);
    v.discard(0, 2 * MIB, true).unwrap();
    site.clock.advance(10 * SECOND);
    v.discard(0, MIB, true).unwrap();
    let expected = [(0, 3 * 64, 3 * MIB), (20, 64, MIB)];
    let found = timeline(&site, &window);
    assert_eq!(used(&found), expected);
    site.pool.drain().unwrap();
    assert_eq!(used(&timeline(&site, &window)), expected);
}

/// Segments in one bucket have profiles for their regions, and leave others exact.
#[test]
fn segments_in_one_bucket_leave_others_exact() {
    let site = site(256);
    let start = site.clock.now();
    let v = site.open("v");
    // These differ in all bytes, so that the log can't shrink them.
    let mut state = 1u64;
    let mut noise = |len: usize| {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        Bytes::from((0..len).map(|_| next()).collect::<Vec<u8>>())
    };
    for n in 0..160 {
        v.write(&mut [WriteOp::new(n % 32 * 64 * KIB, noise(64 << 10))], true);
        site.pool.drain().unwrap();
    }
    let inside = site.pool.cdp("v").unwrap().segments;
    assert!(inside > 12, "{inside} segments");
    // Pairs of records in a slice of a segment's time, not evenly spread.
    let mut expected = Vec::new();
    for n in 1..=40u64 {
        for (at, len) in [(n * 1000, 512), (n * 1000 + 100, 1024), (n * 1000 + 700, 4096)] {
            site.clock.advance(start + at * SECOND / 1000 - site.clock.now());
            v.write(&mut [WriteOp::new(3 * MIB + n * 4 * KIB, noise(len))], true);
            expected.push(((at / 20) as usize, 1, len as u64));
        }
        site.pool.drain().unwrap();
    }
    for n in 0..40 {
        v.write(&mut [WriteOp::new(n % 32 * 64 * KIB, noise(64 << 10))], true);
        site.pool.drain().unwrap();
    }
    let window =
        TimelineQuery { from: Some(start), to: Some(start + 40 * SECOND), buckets: 2000, regions: 4 };
    let found = settled(&site, &window);
    assert_eq!(found.window.length, SECOND / 50);
    let slow: Vec<_> = used(&found).into_iter().filter(|(_, records, _)| *records == 1).collect();
    assert_eq!(slow, expected[..slow.len()]);
    assert!(slow.len() > 100, "{}", slow.len());
    assert_eq!(
        found.regions.unwrap().written[..4],
        [found.amounts[0].written / 2, found.amounts[0].written / 2, 0, 0]
    );
}

#[test]
fn what_rests_on_a_moment_lies_in_the_window() {
    let site = site(32);
    let start = site.clock.now();
    site.clock.advance(10 * SECOND);
    let lsn = site.put(0, 1, 4096);
    site.clock.advance(10 * SECOND);
    site.put(0, 2, 4096);
    site.pool.recover_volume("v", &Moment::Lsn(lsn), "again").unwrap();
    site.snap("v", "early");
    site.clock.advance(30 * SECOND);
    site.snap("v", "late");
    let window = |from: u64, to: u64| TimelineQuery {
        from: Some(start + from * SECOND),
        to: Some(start + to * SECOND),
        buckets: 10,
        regions: 0,
    };
    let found = timeline(&site, &window(0, 30));
    let branch = site.pool.volume("again").unwrap().branch;
    assert_eq!(found.dependents.iter().map(|(id, at)| (*id, at.lsn)).collect::<Vec<_>>(), [(branch, lsn)]);
    assert!(timeline(&site, &window(40, 60)).dependents.is_empty());
    // A mark has its own time. That of the write at the same place would be an estimate.
    site.pool.mark("v", "m").unwrap();
    site.clock.advance(30 * SECOND);
    site.put(0, 3, 4096);
    site.pool.recover_volume("v", &Moment::Mark("m".into()), "marked").unwrap();
    let marked = site.pool.volume("marked").unwrap().branch;
    let found = timeline(&site, &window(0, 90)).dependents;
    let at = found.iter().find(|(id, _)| *id == marked).map(|(_, at)| (at.time - start) / SECOND);
    assert_eq!(at, Some(50));
    let within = |from: u64, to: u64| {
        let times = start + from * SECOND..start + to * SECOND;
        let found = site.pool.snapshots_within("v", times).unwrap();
        found.into_iter().map(|snapshot| snapshot.name).collect::<Vec<_>>()
    };
    assert_eq!((within(0, 30), within(40, 60)), (vec!["early".to_owned()], vec!["late".to_owned()]));
}
