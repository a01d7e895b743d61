//! Answers about the past: what `history`, `changes` and `cdp_samples` report, and which moment a
//! flush, a snapshot or a name means.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Moment, Retention};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::ids::{Chunk, Lsn};
use hindcast_engine::pool::{Origin, Pool};
use hindcast_engine::testing::{KIB, MIB, Site, content, idle, write};
use hindcast_engine::world::Clock;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Makes a pool with a volume `v`.
fn site() -> Site {
    let site = Site::new(32);
    site.clock.advance(1_000_000_000);
    site.having("v", MIB, 16 * KIB)
}

fn cdp(site: &Site, encoding: Encoding) {
    let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
}

fn changes(site: &Site, bytes: Range<u64>, lsns: RangeInclusive<Lsn>, limit: usize) -> Vec<Lsn> {
    site.pool.changes("v", bytes, lsns, limit).unwrap().iter().map(|c| c.lsn).collect()
}

#[test]
fn changes_tell_when_a_range_changed() {
    let f = site();
    f.put(0, 9, 4096);
    cdp(&f, Encoding::Parity);
    let a = f.put(0, 1, 4096);
    let b = f.put(12 * KIB, 2, 8 * KIB); // in two chunks
    let c = f.put(512 * KIB, 3, 512);
    assert_eq!(
        changes(&f, 0..MIB, Lsn::ZERO..=Lsn::MAX, 100),
        [a, b, b, c],
        "what was before CDP is not known"
    );
    assert_eq!(changes(&f, 0..512, Lsn::ZERO..=Lsn::MAX, 100), [a]);
    assert_eq!(changes(&f, 4096..12 * KIB, Lsn::ZERO..=Lsn::MAX, 100), [] as [Lsn; 0]);
    assert_eq!(changes(&f, 0..MIB, b..=b, 100), [b, b]);
    assert_eq!(changes(&f, 0..MIB, Lsn::ZERO..=Lsn::MAX, 2), [a, b]);
    let parts = f.pool.changes("v", 13 * KIB..17 * KIB, Lsn::ZERO..=Lsn::MAX, 9).unwrap();
    let parts: Vec<(u64, u64)> = parts.iter().map(|c| (c.offset, c.length)).collect();
    assert_eq!(parts, [(13 * KIB, 3 * KIB), (16 * KIB, KIB)], "clipped to the range, a part for each chunk");
    assert!(f.pool.changes("w", 0..MIB, Lsn::ZERO..=Lsn::MAX, 1).is_err());
}

#[test]
fn the_oldest_changes_are_told_though_a_batch_fills_several_segments() {
    let f = site();
    cdp(&f, Encoding::Redo);
    // The chunks are written from both ends. The log of the batch is in the order of chunks, so its
    // first and last segment have the writes that came first.
    let chunks = (0..128).map(|n| if n % 2 == 0 { 63 - n / 2 % 32 } else { n / 2 % 32 });
    let mut lsns: Vec<Lsn> = chunks.map(|chunk| f.put(chunk * 16 * KIB, 7, 16 * KIB)).collect();
    f.pool.drain().unwrap();
    assert!(f.pool.cdp("v").unwrap().segments > 2);
    assert_eq!(changes(&f, 0..MIB, Lsn::ZERO..=Lsn::MAX, 5), lsns[..5]);
    lsns.push(f.put(0, 8, 512));
    assert_eq!(changes(&f, 0..MIB, Lsn::ZERO..=Lsn::MAX, 1000), lsns);
}

#[test]
fn a_history_has_spans_anchors_marks_and_sums() {
    let f = site();
    assert!(f.pool.history("v", 10).unwrap().spans.is_empty());
    cdp(&f, Encoding::Undo);
    for n in 0..10u8 {
        f.clock.advance(1_000_000_000);
        f.put(u64::from(n) * 16 * KIB, n, 4096);
    }
    let mark = f.pool.mark("v", "half").unwrap();
    f.pool.create_snapshots(&[("v", "seen")]).unwrap();
    for n in 0..5u8 {
        f.clock.advance(2_000_000_000);
        f.put(0, n, 4096);
    }
    let history = f.pool.history("v", 20).unwrap();
    assert_eq!(history.spans.len(), 1);
    assert_eq!(history.spans[0].to, None);
    assert_eq!(history.marks, [mark]);
    assert!(history.anchors.iter().any(|a| a.snapshot.as_deref() == Some("seen")), "{:?}", history.anchors);
    assert_eq!(history.buckets.len(), 20);
    let sum: u64 = history.buckets.iter().map(|b| b.written).sum();
    let info = f.pool.cdp("v").unwrap();
    assert_eq!((sum, info.written), (15 * 4096, 15 * 4096));
    assert_eq!(history.buckets.iter().map(|b| b.records).sum::<u64>(), 15);
    assert!(history.buckets.windows(2).all(|pair| pair[0].from < pair[1].from));

    // A rollback ends a span and begins another. Switching CDP off ends the last one.
    f.pool.roll_back_to(&[("v", "undo")], &Moment::Mark("half".into()), false).unwrap();
    let after = f.put(0, 77, 512);
    let history = f.pool.history("v", 1).unwrap();
    assert_eq!(history.spans.len(), 2, "{:?}", history.spans);
    assert!(history.spans[0].to.is_some() && history.spans[1].to.is_none());
    assert!(history.spans[0].branch != history.spans[1].branch);
    assert_eq!(changes(&f, 0..512, Lsn::ZERO..=Lsn::MAX, 100).last(), Some(&after));
    f.pool.set_cdp("v", None).unwrap();
    assert!(f.pool.history("v", 1).unwrap().spans[1].to.is_some());
}

#[test]
fn samples_are_records_as_stored() {
    let f = site();
    assert!(f.pool.cdp_samples("v", 5).unwrap().is_empty());
    cdp(&f, Encoding::Parity);
    f.put(0, 1, 16 * KIB);
    for n in 0..20 {
        f.put(n * 512, 3, 512);
    }
    f.pool.history("v", 0).unwrap();
    let samples = f.pool.cdp_samples("v", 8).unwrap();
    assert!(!samples.is_empty() && samples.len() <= 8, "{}", samples.len());
    for sample in &samples {
        let payload = sample.decode().unwrap();
        assert_eq!(payload.len(), sample.raw());
        let mut content = vec![if sample.raw() == 512 { 1 } else { 0 }; sample.raw()];
        sample.apply(&mut content, &payload);
        assert!(content.iter().all(|b| *b == if sample.raw() == 512 { 3 } else { 1 }), "{sample:?}");
    }
}

/// One record takes the whole group back: a crash leaves no group half way back.
#[test]
fn a_group_goes_back_together() {
    let site = Site::new(32);
    let fill = |site: &Site, name: &str, byte: u8| {
        let volume = site.pool.open_volume(name, false).unwrap();
        let mut op = [WriteOp::new(0, Bytes::from(vec![byte; 4096]))];
        volume.write(&mut op, true);
        op[0].result.as_ref().unwrap();
        site.pool.stats().sequenced_lsn
    };
    for name in ["a", "b", "c"] {
        drop(site.volume(name, MIB, 16 * KIB));
        site.pool.set_cdp(name, Some(CdpSettings::default())).unwrap();
        fill(&site, name, 1);
    }
    let then = fill(&site, "c", 2);
    for name in ["a", "b", "c"] {
        fill(&site, name, 3);
    }
    let records = |site: &Site| site.pool.stats().sequenced_lsn;
    let before = records(&site);
    let undone =
        site.pool.roll_back_to(&[("a", "u"), ("b", "u"), ("c", "w")], &Moment::Lsn(then), false).unwrap();
    assert_eq!(records(&site), Lsn(before.0 + 4), "one for all of them, and an anchor for each");
    assert_eq!(undone.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["u", "u", "w"]);
    let twice = site.pool.roll_back_to(&[("a", "v"), ("a", "w")], &Moment::Lsn(then), false);
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::Invalid);
    let now = fill(&site, "a", 4);
    let site = site.reopen();
    let first = |site: &Site, name: &str| {
        let mut byte = [0; 512];
        site.pool.open_volume(name, true).unwrap().read(0, &mut byte).unwrap();
        byte[0]
    };
    assert_eq!(["a", "b", "c"].map(|name| first(&site, name)), [4, 1, 2]);
    let before = records(&site);
    site.pool.recover_volumes(&[("a", "a-then"), ("b", "b-then")], &Moment::Lsn(now)).unwrap();
    assert_eq!(records(&site), before.next());
    let site = site.reopen();
    site.idle();
    assert_eq!(["a-then", "b-then", "a", "b", "c"].map(|name| first(&site, name)), [4, 1, 4, 1, 2]);
    let anchors = |name: &str| site.pool.history(name, 0).unwrap().anchors.len();
    assert!(["a", "b", "c"].iter().all(|name| anchors(name) >= 2), "each new branch begins with one");
}

/// Flushes of an idle volume, of a volume whose history ends before the flush is carried out, and
/// of volumes without writes.
#[test]
fn flush_points_are_kept_where_nothing_else_is_to_be_done() {
    let mut site = Site::new(32);
    let last = |site: &Site, volume: &str| {
        let now = site.pool.stats().sequenced_lsn;
        site.pool.resolve(volume, &Moment::FlushUpTo(now)).map(|point| point.lsn)
    };
    for name in ["a", "b"] {
        drop(site.volume(name, MIB, 16 * KIB));
        site.pool.set_cdp(name, Some(CdpSettings::default())).unwrap();
    }
    let a = site.pool.open_volume("a", false).unwrap();
    write(&a, 0, 1, 4096);
    site.idle();
    a.flush().unwrap();
    let flushed = site.pool.stats().sequenced_lsn;
    site.idle();
    drop(a);
    site = site.reopen();
    assert_eq!(last(&site, "a").unwrap(), flushed, "the idle pool has stored it");

    let (a, b) = (site.pool.open_volume("a", false).unwrap(), site.pool.open_volume("b", false).unwrap());
    b.flush().unwrap();
    let first_of_b = last(&site, "b").unwrap();
    for _ in 0..3 {
        write(&a, 0, 2, 4096);
        b.flush().unwrap();
    }
    assert_eq!(last(&site, "b").unwrap(), first_of_b, "it has written nothing");
    site.pool.create_snapshots(&[("a", "s")]).unwrap();
    let (view, moment) = (
        site.pool.open_snapshot("a", "s").unwrap(),
        site.pool.open_moment("a", &Moment::Lsn(flushed)).unwrap(),
    );
    write(&a, 0, 3, 4096);
    view.flush().unwrap();
    moment.flush().unwrap();
    assert_eq!(last(&site, "a").unwrap(), flushed);
    drop((a, b, view, moment));

    // The content after a rollback is new, and so is content that was written without a history.
    let flush = |site: &Site| {
        site.pool.open_volume("a", false).unwrap().flush().unwrap();
        last(site, "a").unwrap()
    };
    site.pool.roll_back("a", "s", "undo", true).unwrap();
    let back = flush(&site);
    assert_eq!((back, flush(&site)), (site.pool.stats().sequenced_lsn, back));
    site.pool.set_cdp("a", None).unwrap();
    write(&site.pool.open_volume("a", false).unwrap(), 0, 5, 4096);
    site.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    assert_eq!(flush(&site), site.pool.stats().sequenced_lsn);

    drop(site.volume("c", MIB, 16 * KIB));
    site.pool.set_cdp("c", Some(CdpSettings::default())).unwrap();
    let c = site.pool.open_volume("c", false).unwrap();
    write(&c, 0, 4, 4096);
    c.flush().unwrap();
    let flushed = site.pool.stats().sequenced_lsn;
    site.pool.set_cdp("c", None).unwrap();
    drop(c);
    site.pool.close().unwrap(); // stores it, and carries nothing out
    let site = site.reopen();
    site.idle();
    assert_eq!(last(&site, "c").unwrap(), flushed, "what begins a history may still be to come");
}

/// Returns the first byte of a volume at a moment.
fn first(pool: &Arc<Pool>, volume: &str, moment: &Moment) -> u8 {
    content(&pool.open_moment(volume, moment).unwrap())[0]
}

#[test]
fn the_last_flush_is_that_of_the_moment_asked_for() {
    let f = site();
    cdp(&f, Encoding::Parity);
    let volume = f.pool.open_volume("v", false).unwrap();
    let (mut flushed, mut lsns) = (Vec::new(), Vec::new());
    for byte in 1..4 {
        f.clock.advance(1000);
        lsns.push(f.put(0, byte, 512));
        f.clock.advance(1000);
        volume.flush().unwrap();
        f.clock.advance(1000);
        flushed.push(f.clock.now());
    }
    let unflushed = f.put(0, 99, 512);
    f.clock.advance(1000);
    drop(volume);
    for (n, byte) in (1..4).enumerate() {
        let before = Moment::FlushBefore(flushed[n]);
        assert_eq!(
            first(&f.pool, "v", &before),
            byte,
            "the flush is later than the write, and nothing came since"
        );
        assert_eq!(first(&f.pool, "v", &Moment::FlushUpTo(lsns[n])), byte);
    }
    assert_eq!(first(&f.pool, "v", &Moment::FlushBefore(f.clock.now())), 3);
    assert_eq!(first(&f.pool, "v", &Moment::FlushUpTo(unflushed)), 3);
    let kind = |moment| f.pool.resolve("v", &moment).unwrap_err().kind();
    assert_eq!(kind(Moment::FlushUpTo(lsns[0].prev())), ErrorKind::NotFound);
    assert_eq!(kind(Moment::FlushBefore(1)), ErrorKind::NotFound);
    assert_eq!(kind(Moment::FlushUpTo(unflushed.next())), ErrorKind::Invalid);
    assert_eq!(kind(Moment::FlushBefore(u64::MAX)), ErrorKind::Invalid);
}

#[test]
fn the_moment_of_a_snapshot_is_where_it_was_taken() {
    let site = Site::new(32);
    site.clock.advance(1_000_000_000);
    let (pool, volume) = (&site.pool, site.volume("v", MIB, 16 * KIB));
    let other = site.volume("w", MIB, 16 * KIB);
    let kind = |volume: &str, name: &str| pool.moment_of_snapshot(volume, name).unwrap_err().kind();
    site.snap("v", "unknown");
    let settings = CdpSettings { anchors: AnchorPolicy::Never, ..CdpSettings::default() };
    for name in ["v", "w"] {
        pool.set_cdp(name, Some(settings)).unwrap();
    }
    site.clock.advance(1000);
    // The clock stands still from here on. The writes are ahead of it, and of the time of the
    // snapshots.
    for byte in 1..6 {
        write(&volume, 0, byte, 512);
        write(&other, 0, 10 + byte, 512);
    }
    pool.create_snapshots(&[("v", "s"), ("w", "s")]).unwrap();
    write(&volume, 0, 77, 512);
    write(&other, 0, 78, 512);
    let created = pool.snapshot("v", "s").unwrap().created;
    assert_ne!(first(pool, "v", &Moment::Time(created)), 5, "its time is another moment");
    let lsn = pool.moment_of_snapshot("v", "s").unwrap();
    assert_eq!(pool.moment_of_snapshot("w", "s").unwrap(), lsn);
    assert_eq!((first(pool, "v", &Moment::Lsn(lsn)), first(pool, "w", &Moment::Lsn(lsn))), (5, 15));

    // The snapshot of a rollback keeps the state before it.
    drop((volume, other));
    pool.roll_back_to(&[("v", "undo"), ("w", "undo")], &Moment::Lsn(lsn), false).unwrap();
    pool.roll_back("v", "s", "again", false).unwrap();
    let of = |volume: &str, name: &str| {
        first(pool, volume, &Moment::Lsn(pool.moment_of_snapshot(volume, name).unwrap()))
    };
    assert_eq!((of("v", "undo"), of("w", "undo"), of("v", "again"), of("v", "s")), (77, 78, 5, 5));

    assert_eq!(kind("v", "unknown"), ErrorKind::NotFound);
    pool.set_cdp("v", None).unwrap();
    site.snap("v", "later");
    assert_eq!(kind("v", "later"), ErrorKind::NotFound);
    assert_eq!(kind("v", "none"), ErrorKind::NotFound);
    let site = site.reopen();
    assert_eq!(site.pool.moment_of_snapshot("v", "s").unwrap(), lsn);
}

#[test]
fn the_moment_of_an_imported_snapshot_is_when_it_arrived() {
    let (from, to) = (Site::seeded(32, 1), Site::seeded(32, 2));
    let volume = from.volume("v", MIB, 16 * KIB);
    let send = |snapshot: &str, base: Option<&str>| {
        let mut export = from.pool.export("v", snapshot, base, 0).unwrap();
        let mut import = to.pool.import(None);
        while let Some(piece) = export.next_piece().unwrap() {
            import.push(&piece).unwrap();
        }
        import.finish().unwrap()
    };
    write(&volume, 0, 1, 4096);
    from.snap("v", "one");
    send("one", None);
    to.clock.advance(1_000_000_000);
    to.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    write(&volume, 0, 2, 4096);
    from.snap("v", "two");
    let two = send("two", Some("one"));
    write(&to.pool.open_volume("v", false).unwrap(), 0, 3, 4096);
    assert!(two.created < 1_000_000_000, "the other server's time");
    let lsn = to.pool.moment_of_snapshot("v", "two").unwrap();
    assert_eq!(first(&to.pool, "v", &Moment::Lsn(lsn)), 2);
}

#[test]
fn a_name_is_a_mark_or_a_snapshot() {
    let f = site();
    cdp(&f, Encoding::Undo);
    let pool = &f.pool;
    pool.mark("v", "here").unwrap();
    pool.create_snapshots(&[("v", "s")]).unwrap();
    let refused =
        |result: hindcast_engine::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Conflict);
    refused(pool.create_snapshots(&[("v", "here")]).map(drop));
    refused(pool.rename_snapshot("v", "s", "here").map(drop));
    refused(pool.roll_back("v", "s", "here", false).map(drop));
    refused(pool.roll_back_to(&[("v", "here")], &Moment::Mark("here".into()), false).map(drop));
    refused(pool.mark("v", "s").map(drop));
    assert!(pool.is_taken("v", "here").unwrap() && pool.is_taken("v", "s").unwrap());
    assert!(!pool.is_taken("v", "t").unwrap());
    pool.rename_snapshot("v", "s", "t").unwrap();
    pool.mark("v", "s").unwrap();
    pool.unmark("v", "here").unwrap();
    pool.create_snapshots(&[("v", "here")]).unwrap();

    // Anchors never collide with marks, whatever the marks' names.
    pool.mark("v", "anchor").unwrap();
    let every = CdpSettings { anchors: AnchorPolicy::Every(2), ..CdpSettings::default() };
    pool.set_cdp("v", Some(every)).unwrap();
    for byte in 0..10 {
        f.put(0, byte, 512);
    }
    assert!(pool.history("v", 1).unwrap().anchors.len() > 4);
    pool.create_snapshots(&[("v", "mine")]).unwrap();
    pool.roll_back("v", "mine", "undo", false).unwrap();
}

#[test]
fn an_idle_history_without_a_limit_in_bytes_is_never_too_short() {
    const HOUR: u64 = 3_600_000_000_000;
    let f = site();
    let retention = Retention { time: Some(HOUR), bytes: None };
    let settings = CdpSettings { anchors: AnchorPolicy::Every(10), retention, ..CdpSettings::default() };
    f.pool.set_cdp("v", Some(settings)).unwrap();
    let begun = f.pool.cdp("v").unwrap().from;
    for n in 0..40u8 {
        f.clock.advance(HOUR / 240);
        f.put(0, n, 4096);
    }
    f.pool.drain().unwrap();
    f.clock.advance(HOUR * 11 / 12);
    idle(&f.pool);
    let info = f.pool.cdp("v").unwrap();
    assert!(info.from > begun, "the oldest part has expired: {info:?}");
    assert!(!info.short && info.window >= HOUR && info.window < 2 * HOUR, "{info:?}");
    // A retention beyond the recorded past is no reason for the warning about bytes; a limit in
    // bytes may be.
    let retention = Retention { time: Some(9 * HOUR), bytes: None };
    f.pool.set_cdp("v", Some(CdpSettings { retention, ..settings })).unwrap();
    assert!(!f.pool.cdp("v").unwrap().short);
    let retention = Retention { time: Some(9 * HOUR), bytes: Some(MIB) };
    f.pool.set_cdp("v", Some(CdpSettings { retention, ..settings })).unwrap();
    assert!(f.pool.cdp("v").unwrap().short);
}

#[test]
fn an_anchor_comes_after_so_many_writes_of_chunks() {
    let f = site();
    let settings = CdpSettings { anchors: AnchorPolicy::Every(80), ..CdpSettings::default() };
    f.pool.set_cdp("v", Some(settings)).unwrap();
    let anchors = || {
        f.pool.drain().unwrap();
        f.pool.cdp("v").unwrap().anchors
    };
    let begun = anchors();
    for n in 0..9 {
        f.put(0, n, 128 * KIB); // eight chunks
    }
    assert_eq!(anchors(), begun, "72 so far");
    f.put(0, 9, 128 * KIB);
    assert_eq!(anchors(), begun + 1);
    assert_eq!(f.pool.cdp("v").unwrap().records, 80, "what the model counts");
}

#[test]
fn anchors_come_with_the_models_distance_and_with_time() {
    let f = site();
    let anchors = || {
        f.pool.drain().unwrap();
        f.pool.cdp("v").unwrap().anchors
    };
    cdp(&f, Encoding::Parity);
    let model = CdpSettings { anchors: AnchorPolicy::Model, ..CdpSettings::default() };
    f.pool.set_cdp("v", Some(model)).unwrap();
    let begun = anchors();
    let ten = || {
        for n in 0..10 {
            f.put(0, n, 16 * KIB);
        }
    };
    ten();
    assert_eq!(anchors(), begun, "nothing is measured yet");
    f.pool.set_anchor_distance("v", Some(5)).unwrap();
    ten();
    assert_eq!(anchors(), begun + 2, "one at once, for there were more already, and one after five writes");
    f.pool.set_anchor_distance("v", None).unwrap();
    ten();
    assert_eq!(anchors(), begun + 2);

    let by_time = CdpSettings { anchors: AnchorPolicy::Interval(1000), ..CdpSettings::default() };
    f.pool.set_cdp("v", Some(by_time)).unwrap();
    let step = |nanos| {
        f.clock.advance(nanos);
        idle(&f.pool);
        f.pool.cdp("v").unwrap().anchors
    };
    step(1000); // for what was written before
    let begun = step(1000);
    assert_eq!(step(5000), begun, "nothing was written");
    f.put(0, 1, 16 * KIB);
    assert_eq!(step(10), begun + 1);
    f.put(0, 2, 16 * KIB);
    assert_eq!(step(900), begun + 1, "the last one is not long ago");
    assert_eq!(step(100), begun + 2);
}

#[test]
fn what_the_model_and_marks_want_to_know_destages_nothing() {
    let f = site();
    cdp(&f, Encoding::Parity);
    f.put(64 * KIB, 1, 40 * KIB); // in three chunks
    assert!(f.pool.recorded_chunks("v", 100).unwrap().is_empty(), "not destaged yet");
    f.pool.create_snapshots(&[("v", "one")]).unwrap();
    f.put(0, 2, 512);
    f.put(20 * KIB, 2, 512);
    f.pool.create_snapshots(&[("v", "two")]).unwrap();
    f.put(512 * KIB, 3, 512);
    f.pool.drain().unwrap();
    f.put(768 * KIB, 4, 512);
    let before = f.pool.stats().destaged_lsn;
    assert_eq!(
        Vec::from_iter(f.pool.recorded_chunks("v", 100).unwrap()),
        [0, 1].map(Chunk),
        "between two anchors"
    );
    assert_eq!(f.pool.recorded_chunks("v", 1).unwrap().len(), 1);
    let mark = f.pool.mark("v", "here").unwrap();
    assert!(f.pool.cdp_samples("v", 9).unwrap().len() > 1);
    assert_eq!(f.pool.stats().destaged_lsn, before);
    assert_eq!(f.pool.history("v", 0).unwrap().marks, std::slice::from_ref(&mark));
    assert_eq!(f.pool.resolve("v", &Moment::Mark("here".into())).unwrap().lsn, mark.lsn);

    // Reads through an unmetered handle count for no volume.
    let reads = || f.pool.volume("v").unwrap().stats;
    let then = reads();
    let device = f.pool.open_unmetered("v").unwrap();
    let mut found = [0; 512];
    device.read(20 * KIB, &mut found).unwrap();
    assert_eq!((found, reads()), ([2; 512], then));
    assert!(f.pool.volume_statistics("v").unwrap().regions.regions.iter().all(|r| r.reads == 0));
    let mut op = [WriteOp::new(0, Bytes::from(vec![1; 512]))];
    device.write(&mut op, false);
    assert!(op[0].result.is_err(), "it only reads");
}

#[test]
fn a_recovered_volume_tells_the_moment_that_it_rests_on() {
    let f = site();
    cdp(&f, Encoding::Undo);
    f.put(0, 1, 4096);
    f.clock.advance(5_000_000_000);
    let lsn = f.put(0, 2, 4096);
    f.clock.advance(5_000_000_000);
    f.put(0, 3, 4096);
    let asked = f.pool.resolve("v", &Moment::Lsn(lsn)).unwrap();
    let made = f.pool.recover_volumes(&[("v", "then")], &Moment::Time(asked.time + 1_000_000_000)).unwrap();
    assert_eq!(made, [asked]);
    let from = Origin::Moment { volume: "v".into(), lsn, time: Some(asked.time) };
    assert_eq!(f.pool.origin("then").unwrap(), Some(from));
    assert_eq!(f.pool.origin("v").unwrap(), None);
    let branch = f.pool.volume("then").unwrap().branch;
    assert_eq!(f.pool.moment_bases()[&branch], (Some("v".into()), lsn));
    f.pool.delete_volume("v", true).unwrap();
    idle(&f.pool);
    let from = Origin::Moment { volume: String::new(), lsn, time: Some(asked.time) };
    assert_eq!(f.pool.origin("then").unwrap(), Some(from));
    assert_eq!(f.pool.moment_bases()[&branch], (None, lsn));
    f.pool.flatten_volume("then", 0).unwrap();
    idle(&f.pool);
    assert_eq!(f.pool.origin("then").unwrap(), None, "it is complete");
    assert!(f.pool.moment_bases().is_empty());
}

#[test]
fn flush_points_outlive_a_restart_and_go_with_their_moments() {
    let site = Site::new(64);
    drop(site.volume("v", MIB, 16 * KIB));
    let retention = Retention { time: Some(10_000_000_000_000), bytes: None };
    let settings = CdpSettings { anchors: AnchorPolicy::Every(4), retention, ..CdpSettings::default() };
    site.pool.set_cdp("v", Some(settings)).unwrap();
    let flush = |site: &Site, byte: u8| {
        site.clock.advance(1_000_000_000);
        let v = site.pool.open_volume("v", false).unwrap();
        write(&v, 0, byte, 512);
        v.flush().unwrap();
        (site.pool.stats().sequenced_lsn, site.clock.now())
    };
    let mut points: Vec<(Lsn, u64)> = (0..3000u32).map(|n| flush(&site, n as u8)).collect();
    let lsns = |site: &Site| {
        let found = site.pool.history("v", 0).unwrap().flushes;
        found.into_iter().map(|point| point.lsn).collect::<Vec<Lsn>>()
    };
    let known = |points: &[(Lsn, u64)]| points.iter().map(|(lsn, _)| *lsn).collect::<Vec<Lsn>>();
    assert_eq!(lsns(&site), known(&points), "staged");
    site.pool.close().unwrap();
    let mut site = site.reopen();
    assert_eq!(lsns(&site), known(&points));
    // Each restart adds one flush, without a write before it.
    for byte in 0..3 {
        site.pool.open_volume("v", false).unwrap().flush().unwrap();
        points.push(flush(&site, byte));
        site.idle();
        site.pool.close().unwrap();
        site = site.reopen();
    }
    assert_eq!(lsns(&site), known(&points));
    for (n, (lsn, time)) in points.iter().enumerate().step_by(97) {
        let at = |moment| site.pool.resolve("v", &moment).unwrap().lsn;
        // A flush has a slightly later time than what it covers.
        assert_eq!((at(Moment::FlushUpTo(*lsn)), at(Moment::FlushBefore(*time + 1000))), (*lsn, *lsn));
        assert_eq!(at(Moment::FlushBefore(*time + 999_999_999)), *lsn, "flush {n}");
        if let Some((before, _)) = n.checked_sub(1).map(|n| points[n]) {
            assert_eq!(
                (at(Moment::FlushUpTo(lsn.prev())), at(Moment::FlushBefore(*time - 1))),
                (before, before)
            );
        }
    }
    let early = site.pool.resolve("v", &Moment::FlushUpTo(points[0].0.prev())).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::NotFound);
    // Flush points expire with their moments, and a deleted volume loses all of them.
    site.clock.advance(9_500_000_000_000);
    (0..3).for_each(|_| site.idle());
    let begins = site.pool.history("v", 0).unwrap().spans[0].from.lsn;
    points.retain(|(lsn, _)| *lsn >= begins);
    // Points of 500 s are kept. Points in the same segment, or within a 64th of the limit, are kept
    // with them.
    assert!((500..500 + 512 + 157).contains(&points.len()), "{}", points.len());
    assert_eq!(lsns(&site), known(&points));
    site.pool.delete_volume("v", true).unwrap();
    (0..3).for_each(|_| site.idle());
    drop(site.volume("v", MIB, 16 * KIB));
    assert_eq!(lsns(&site), [] as [Lsn; 0]);
}

/// Flush points are stored even while a client keeps writing so little that nothing is destaged.
#[test]
fn flush_points_are_stored_in_time() {
    let site = Site::new(32);
    site.clock.advance(1_000_000_000);
    let volume = site.volume("v", MIB, 16 * KIB);
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    idle(&site.pool);
    write(&volume, 0, 1, 512);
    volume.flush().unwrap();
    let flushed = site.pool.stats().sequenced_lsn;
    site.clock.advance(1_100_000_000);
    write(&volume, 0, 2, 512);
    site.pool.maintain().unwrap();
    drop(volume);
    let site = site.reopen();
    let last = site.pool.resolve("v", &Moment::FlushBefore(site.clock.now())).unwrap();
    assert_eq!(last.lsn, flushed);
}
