//! Looking back: what `history`, `changes` and `cdp_samples` tell of things that were done.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use bytes::Bytes;
use common::{KIB, MIB, Site};
use hindcast_engine::ErrorKind;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Moment};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::pool::Pool;
use hindcast_engine::world::ManualClock;
use std::sync::Arc;

struct Fixture {
    clock: Arc<ManualClock>,
    pool: Arc<Pool>,
}

impl Fixture {
    fn new() -> Fixture {
        let site = Site::new(32);
        site.clock.advance(1_000_000_000);
        drop(site.volume("v", MIB, 16 * KIB));
        Fixture { clock: site.clock.clone(), pool: site.pool.clone() }
    }

    fn cdp(&self, encoding: Encoding) {
        let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
        self.pool.set_cdp("v", Some(settings)).unwrap();
    }

    /// Writes some bytes, and tells the LSN.
    fn write(&self, offset: u64, len: u64, byte: u8) -> u64 {
        let volume = self.pool.open_volume("v", false).unwrap();
        let mut op = [WriteOp::new(offset, Bytes::from(vec![byte; len as usize]))];
        volume.write(&mut op, true);
        op[0].result.as_ref().unwrap();
        self.pool.stats().sequenced_lsn
    }

    fn lsns(
        &self,
        bytes: std::ops::Range<u64>,
        lsns: std::ops::RangeInclusive<u64>,
        limit: usize,
    ) -> Vec<u64> {
        self.pool.changes("v", bytes, lsns, limit).unwrap().iter().map(|c| c.lsn).collect()
    }
}

#[test]
fn changes_tell_when_a_range_changed() {
    let f = Fixture::new();
    f.write(0, 4096, 9);
    f.cdp(Encoding::Parity);
    let a = f.write(0, 4096, 1);
    let b = f.write(12 * KIB, 8 * KIB, 2); // in two chunks
    let c = f.write(512 * KIB, 512, 3);
    assert_eq!(f.lsns(0..MIB, 0..=u64::MAX, 100), [a, b, b, c], "what was before CDP is not known");
    assert_eq!(f.lsns(0..512, 0..=u64::MAX, 100), [a]);
    assert_eq!(f.lsns(4096..12 * KIB, 0..=u64::MAX, 100), [] as [u64; 0]);
    assert_eq!(f.lsns(0..MIB, b..=b, 100), [b, b]);
    assert_eq!(f.lsns(0..MIB, 0..=u64::MAX, 2), [a, b]);
    let parts = f.pool.changes("v", 13 * KIB..17 * KIB, 0..=u64::MAX, 9).unwrap();
    let parts: Vec<(u64, u64)> = parts.iter().map(|c| (c.offset, c.length)).collect();
    assert_eq!(parts, [(13 * KIB, 3 * KIB), (16 * KIB, KIB)], "clipped to the range, a part for each chunk");
    assert!(f.pool.changes("w", 0..MIB, 0..=u64::MAX, 1).is_err());
}

#[test]
fn the_oldest_changes_are_told_though_a_batch_fills_several_segments() {
    let f = Fixture::new();
    f.cdp(Encoding::Redo);
    // From both ends: the log of the batch has chunk after chunk, and what was written first in its first and last segment.
    let chunks = (0..128).map(|n| if n % 2 == 0 { 63 - n / 2 % 32 } else { n / 2 % 32 });
    let mut lsns: Vec<u64> = chunks.map(|chunk| f.write(chunk * 16 * KIB, 16 * KIB, 7)).collect();
    f.pool.drain().unwrap();
    assert!(f.pool.cdp("v").unwrap().segments > 2);
    assert_eq!(f.lsns(0..MIB, 0..=u64::MAX, 5), lsns[..5]);
    lsns.push(f.write(0, 512, 8));
    assert_eq!(f.lsns(0..MIB, 0..=u64::MAX, 1000), lsns);
}

#[test]
fn a_history_has_spans_anchors_marks_and_sums() {
    let f = Fixture::new();
    assert!(f.pool.history("v", 10).unwrap().spans.is_empty());
    f.cdp(Encoding::Undo);
    for n in 0..10u8 {
        f.clock.advance(1_000_000_000);
        f.write(u64::from(n) * 16 * KIB, 4096, n);
    }
    let mark = f.pool.mark("v", "half").unwrap();
    f.pool.create_snapshots(&[("v", "seen")]).unwrap();
    for n in 0..5u8 {
        f.clock.advance(2_000_000_000);
        f.write(0, 4096, n);
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

    // A rollback ends a span and begins another; switching off ends the last.
    f.pool.roll_back_to(&[("v", "undo")], &Moment::Mark("half".into()), false).unwrap();
    let after = f.write(0, 512, 77);
    let history = f.pool.history("v", 1).unwrap();
    assert_eq!(history.spans.len(), 2, "{:?}", history.spans);
    assert!(history.spans[0].to.is_some() && history.spans[1].to.is_none());
    assert!(history.spans[0].branch != history.spans[1].branch);
    assert_eq!(f.lsns(0..512, 0..=u64::MAX, 100).last(), Some(&after));
    f.pool.set_cdp("v", None).unwrap();
    assert!(f.pool.history("v", 1).unwrap().spans[1].to.is_some());
}

#[test]
fn samples_are_records_as_stored() {
    let f = Fixture::new();
    assert!(f.pool.cdp_samples("v", 5).unwrap().is_empty());
    f.cdp(Encoding::Parity);
    f.write(0, 16 * KIB, 1);
    for n in 0..20 {
        f.write(n * 512, 512, 3);
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

/// One record says it of all of them: a crash leaves no group half way back.
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
    let undone =
        site.pool.roll_back_to(&[("a", "u"), ("b", "u"), ("c", "w")], &Moment::Lsn(then), false).unwrap();
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
    site.pool.recover_volumes(&[("a", "a-then"), ("b", "b-then")], &Moment::Lsn(now)).unwrap();
    let site = site.reopen();
    site.idle();
    assert_eq!(["a-then", "b-then", "a", "b", "c"].map(|name| first(&site, name)), [4, 1, 4, 1, 2]);
    let anchors = |name: &str| site.pool.history(name, 0).unwrap().anchors.len();
    assert!(["a", "b", "c"].iter().all(|name| anchors(name) >= 2), "each new branch begins with one");
}
