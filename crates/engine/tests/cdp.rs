//! Continuous data protection through the public interface, on an in-memory directory: every moment
//! shows what was done up to it.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, MemDir};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Pool, PoolOptions, Progress};
use hindcast_engine::testing::{KIB, MIB, Site, check, content_of, flip, idle};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use hindcast_engine::{ErrorKind, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;

const SIZE: u64 = 256 * KIB;

/// A pool with one volume `v`, and the content of `v` after every record.
struct Fixture {
    dir: Arc<MemDir>,
    clock: Arc<ManualClock>,
    rng: SplitMix,
    pool: Option<Arc<Pool>>,
    now: Vec<u8>,
    moments: BTreeMap<Lsn, Vec<u8>>,
}

impl Fixture {
    fn new(seed: u64, chunk_size: u64) -> Fixture {
        Fixture::on(Site::seeded(32, seed), seed, chunk_size)
    }

    fn on(site: Site, seed: u64, chunk_size: u64) -> Fixture {
        site.clock.advance(1000);
        drop(site.volume("v", SIZE, chunk_size));
        let Site { dir, clock, pool, .. } = site;
        let (rng, now) = (SplitMix::new(seed), vec![0; SIZE as usize]);
        Fixture { dir, clock, rng, pool: Some(pool), now, moments: BTreeMap::new() }
    }

    fn pool(&self) -> &Arc<Pool> {
        self.pool.as_ref().unwrap()
    }

    fn set(&mut self, settings: CdpSettings) {
        self.pool().set_cdp("v", Some(settings)).unwrap();
        self.note();
    }

    fn below(&self, most: u64) -> u64 {
        self.rng.next() % most
    }

    /// Notes the present content of the volume as that after the last record.
    fn note(&mut self) {
        self.moments.insert(self.pool().stats().sequenced_lsn, self.now.clone());
    }

    /// Makes some random writes and discards, each a record.
    fn change(&mut self, count: u64) {
        let volume = self.pool().open_volume("v", false).unwrap();
        for _ in 0..count {
            self.clock.advance(10);
            let start = self.below(SIZE / 512) * 512;
            let len = ((1 + self.below(40)) * 512).min(SIZE - start);
            let part = start as usize..(start + len) as usize;
            match self.below(10) {
                0 => {
                    volume.discard(start, len, false).unwrap();
                    self.now[part].fill(0);
                }
                1 => {
                    volume.write_zeroes(start, len, false, false).unwrap();
                    self.now[part].fill(0);
                }
                _ => {
                    let mut data = self.now[part.clone()].to_vec();
                    for _ in 0..1 + self.below(30) {
                        let at = self.below(len) as usize;
                        data[at] = self.rng.next() as u8;
                    }
                    self.write(&volume, start, data);
                }
            }
            self.note();
            if self.below(7) == 0 {
                self.pool().destage_step().unwrap();
            }
        }
    }

    fn write(&mut self, volume: &Volume, start: u64, data: Vec<u8>) {
        self.now[start as usize..start as usize + data.len()].copy_from_slice(&data);
        let mut ops = [WriteOp::new(start, Bytes::from(data))];
        volume.write(&mut ops, false);
        ops[0].result.clone().unwrap();
    }

    fn reopen(&mut self) {
        self.reopen_with(0);
    }

    /// Opens the pool again. `damaged` records are damaged, which the check has to find.
    fn reopen_with(&mut self, damaged: usize) {
        self.pool = None;
        let report = check(self.dir.clone());
        let found = report.findings.iter().filter(|f| f.code == "cdp-record").count();
        assert!(found == damaged && report.findings.len() == damaged, "{:?}", report.findings);
        let world = World { clock: self.clock.clone(), rng: Arc::new(SplitMix::new(self.rng.next())) };
        self.pool = Some(Pool::open(self.dir.clone(), world, PoolOptions::default()).unwrap());
    }

    fn idle(&self) {
        idle(self.pool());
    }

    fn read(&self, moment: &Moment) -> Result<Vec<u8>, hindcast_engine::Error> {
        read_all(&*self.pool().open_moment("v", moment)?)
    }

    /// Checks that every moment is as it was.
    fn verify(&self) {
        for (lsn, content) in &self.moments {
            let found = self.read(&Moment::Lsn(*lsn)).unwrap_or_else(|e| panic!("LSN {lsn}: {e}"));
            let wrong = found.iter().zip(content).position(|(a, b)| a != b);
            assert!(found.len() == content.len() && wrong.is_none(), "LSN {lsn}: wrong at byte {wrong:?}");
        }
    }
}

fn read_all(volume: &Volume) -> Result<Vec<u8>, hindcast_engine::Error> {
    let mut all = vec![0xEE; volume.info().size as usize];
    volume.read(0, &mut all)?;
    Ok(all)
}

const ENCODINGS: [Encoding; 3] = [Encoding::Parity, Encoding::Undo, Encoding::Redo];

#[test]
fn every_moment_of_every_encoding() {
    for (n, encoding) in ENCODINGS.into_iter().enumerate() {
        for compression in [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd] {
            let mut f = Fixture::new(n as u64, 4 * KIB << (n * 2));
            f.change(10);
            f.moments.clear();
            let anchors = AnchorPolicy::Every(25);
            f.set(CdpSettings { encoding, compression, anchors, ..CdpSettings::default() });
            f.change(60);
            f.verify();
            f.reopen();
            f.change(60);
            f.verify();
            f.pool().drain().unwrap();
            f.reopen();
            f.verify();
        }
    }
}

/// Old content is read in pieces. A piece may end in the middle of what is written to a chunk, with
/// or without a thread that reads ahead.
#[test]
fn a_chunk_is_written_to_more_often_than_a_piece_holds() {
    for encoding in ENCODINGS {
        for (chunks, often) in [(3, 20), (SIZE / (4 * KIB), 400)] {
            let site = Site::builder(32).seed(3).time(3).journal(64 * MIB, 4 * MIB).build();
            let mut f = Fixture::on(site, 3, 4 * KIB);
            f.set(CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() });
            f.pool().drain().unwrap();
            let volume = f.pool().open_volume("v", false).unwrap();
            for round in 0..2u8 {
                for chunk in 0..chunks {
                    f.write(&volume, chunk * 4 * KIB, vec![100 + round; 4 * KIB as usize]);
                    f.note();
                }
                for n in 0..often {
                    // The writes cover the whole chunk in turn with a part of it.
                    let (start, len) = [(0, 4 * KIB), (KIB, 2 * KIB), (512, 3 * KIB)][n as usize % 3];
                    f.write(&volume, 4 * KIB + start, vec![n as u8 ^ round; len as usize]);
                    f.note();
                }
                let step = || f.pool().destage_step().unwrap();
                assert_eq!((step(), step()), (Progress::Worked, Progress::Idle), "it is one batch");
            }
            drop(volume);
            f.verify();
            f.reopen();
            f.verify();
        }
    }
}

#[test]
fn the_encoding_changes_midway_and_snapshots_are_anchors() {
    let mut f = Fixture::new(7, 16 * KIB);
    for round in 0..12 {
        let encoding = ENCODINGS[round % 3];
        f.set(CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() });
        f.change(10);
        f.pool().create_snapshots(&[("v", &format!("s{round}"))]).unwrap();
        f.note();
        f.change(10);
        if round % 4 == 3 {
            f.pool().delete_snapshots("v", &["s0", &format!("s{round}")][usize::from(round > 3)..]).unwrap();
            f.note();
            f.idle();
        }
    }
    f.verify();
    f.reopen();
    f.idle();
    f.verify();
}

#[test]
fn off_and_on_again() {
    let mut f = Fixture::new(9, 4 * KIB);
    f.set(CdpSettings { encoding: Encoding::Undo, ..CdpSettings::default() });
    f.change(30);
    f.pool().set_cdp("v", None).unwrap();
    let before = std::mem::take(&mut f.moments);
    f.change(20);
    let between = std::mem::replace(&mut f.moments, before);
    for lsn in between.keys() {
        assert_eq!(f.read(&Moment::Lsn(*lsn)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    f.set(CdpSettings::default());
    f.change(30);
    f.verify();
    f.reopen();
    f.verify();
    assert_eq!(f.read(&Moment::Lsn(Lsn::MAX)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn times_and_marks_are_moments() {
    let mut f = Fixture::new(3, 4 * KIB);
    f.set(CdpSettings::default());
    let mut times = Vec::new();
    for _ in 0..40 {
        f.change(1);
        times.push((hindcast_engine::world::Clock::now(&*f.clock), f.now.clone()));
    }
    let mark = f.pool().mark("v", "here").unwrap();
    let marked = f.now.clone();
    assert_eq!(f.pool().mark("v", "here").unwrap_err().kind(), ErrorKind::Conflict);
    f.clock.advance(10);
    f.change(20);
    for reopened in [false, true] {
        for (time, content) in &times {
            assert!(f.read(&Moment::Time(*time)).unwrap() == *content, "at {time}");
            assert!(f.read(&Moment::Time(*time + 5)).unwrap() == *content, "after {time}");
        }
        assert!(f.read(&Moment::Mark("here".into())).unwrap() == marked);
        assert_eq!(f.pool().resolve("v", &Moment::Mark("here".into())).unwrap().lsn, mark.lsn);
        if !reopened {
            f.reopen();
        }
    }
    f.pool().unmark("v", "here").unwrap();
    assert_eq!(f.read(&Moment::Mark("here".into())).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(f.read(&Moment::Time(u64::MAX)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(f.read(&Moment::Time(1)).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn one_damaged_parity_record_loses_no_moment() {
    let mut f = Fixture::new(5, 4 * KIB);
    f.set(CdpSettings { anchors: AnchorPolicy::Every(40), ..CdpSettings::default() });
    f.change(100);
    f.pool().drain().unwrap();
    let mut damaged = 0;
    for (name, start) in records(&f.dir) {
        // The damage is anywhere in the payload, whose length is in the header.
        let stored = &content_of(&f.dir, &name)[start as usize + 52..][..4];
        let at = start + f.below(64 + u64::from(u32::from_le_bytes(stored.try_into().unwrap())));
        flip(&f.dir, &name, at, 0xFF);
        if f.below(4) == 0 {
            f.reopen_with(1);
        }
        f.verify();
        flip(&f.dir, &name, at, 0xFF);
        damaged += 1;
    }
    assert!(damaged > 100, "{damaged} records");
}

/// Returns where records of histories lie: (file, byte).
fn records(dir: &MemDir) -> Vec<(String, u64)> {
    let names = dir.list().unwrap().into_iter().filter(|n| n.starts_with("cdp-"));
    let of_file = |name: String| {
        let bytes = content_of(dir, &name);
        let is_start = |at: &usize| bytes[*at..].starts_with(b"HCDR");
        let starts: Vec<_> = (0..bytes.len()).step_by(8).filter(is_start).collect();
        starts.into_iter().map(move |at| (name.clone(), at as u64))
    };
    names.flat_map(of_file).collect()
}

/// `undo` leads from the anchor after a moment, `redo` from the anchor before it. So a damaged
/// record can cost the moments on its other side as far as the next anchor, and no more. The loss
/// is reported with the chunk.
#[test]
fn a_damaged_undo_or_redo_record_costs_no_moment_that_does_not_need_it() {
    for encoding in [Encoding::Undo, Encoding::Redo] {
        let mut f = Fixture::new(7, 4 * KIB);
        f.set(CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() });
        f.change(30);
        f.pool().create_snapshots(&[("v", "s")]).unwrap();
        f.note();
        let anchor = f.pool().stats().sequenced_lsn;
        f.change(30);
        f.pool().drain().unwrap();
        let mut lost = 0;
        for (name, start) in records(&f.dir).into_iter().step_by(5) {
            let record = content_of(&f.dir, &name);
            let field = |at: u64| {
                let at = (start + at) as usize;
                u64::from_le_bytes(record[at..at + 8].try_into().unwrap())
            };
            let (damaged, chunk) = (Lsn(field(8)), field(24));
            flip(&f.dir, &name, start + 16, 0xFF);
            for (lsn, content) in &f.moments {
                let needs_it = match encoding {
                    Encoding::Redo => damaged <= *lsn && !(damaged..=*lsn).contains(&anchor),
                    _ => *lsn < damaged && !(*lsn..damaged).contains(&anchor),
                };
                match f.read(&Moment::Lsn(*lsn)) {
                    Ok(found) => assert!(found == *content, "LSN {lsn} with {damaged} damaged"),
                    Err(e) => {
                        assert!(needs_it, "LSN {lsn} does not need {damaged}: {e}");
                        assert_eq!(e.kind(), ErrorKind::Lost);
                        assert!(e.to_string().contains(&format!("chunk {chunk} ")), "{e}");
                        lost += 1;
                    }
                }
            }
            flip(&f.dir, &name, start + 16, 0xFF);
        }
        assert!(lost > 10, "{lost} moments needed what was damaged");
        f.verify();
    }
}

#[test]
fn history_expires_by_time_and_size_but_not_under_who_looks() {
    for encoding in ENCODINGS {
        let mut f = Fixture::new(19, 4 * KIB);
        let retention = Retention { time: Some(1000), bytes: None };
        let settings = CdpSettings {
            encoding,
            compression: Compression::None,
            anchors: AnchorPolicy::Every(10),
            retention,
            ..CdpSettings::default()
        };
        f.set(settings);
        f.change(30);
        f.pool().create_snapshots(&[("v", "mine")]).unwrap();
        let mine = f.now.clone();
        let held = *f.moments.keys().nth(5).unwrap();
        let view = f.pool().open_moment("v", &Moment::Lsn(held)).unwrap();
        f.change(400);
        f.pool().drain().unwrap();
        f.idle();
        let from = f.pool().cdp("v").unwrap().from.unwrap().lsn;
        assert!(from <= held, "{from} {held}");
        assert!(read_all(&view).unwrap() == f.moments[&held]);
        drop(view);
        f.idle();
        let info = f.pool().cdp("v").unwrap();
        let from = info.from.unwrap().lsn;
        assert!(from > held && !info.short && info.window >= 1000, "{info:?}");
        let gone = f.moments.keys().copied().find(|lsn| *lsn < from).unwrap();
        assert_eq!(f.read(&Moment::Lsn(gone)).unwrap_err().kind(), ErrorKind::NotFound);
        f.moments.retain(|lsn, _| *lsn >= from);
        f.verify();
        f.reopen();
        f.verify();
        let retention = Retention { time: Some(1_000_000), bytes: Some(600 * KIB) };
        f.pool().set_cdp("v", Some(CdpSettings { retention, ..settings })).unwrap();
        f.change(400);
        f.pool().drain().unwrap();
        f.idle();
        let info = f.pool().cdp("v").unwrap();
        assert!(info.short && info.stored < 1200 * KIB, "{info:?}");
        let from = info.from.unwrap().lsn;
        f.moments.retain(|lsn, _| *lsn >= from);
        assert!(f.moments.len() > 10);
        f.verify();
        assert!(read_all(&f.pool().open_snapshot("v", "mine").unwrap()).unwrap() == mine, "a user's own");
        f.reopen();
        f.verify();
    }
}

#[test]
fn history_and_changes_are_told() {
    let mut f = Fixture::new(23, 4 * KIB);
    f.set(CdpSettings { anchors: AnchorPolicy::Every(10), ..CdpSettings::default() });
    f.change(50);
    f.pool().create_snapshots(&[("v", "s")]).unwrap();
    f.pool().mark("v", "m").unwrap();
    f.pool().open_volume("v", false).unwrap().flush().unwrap();
    let volume = f.pool().open_volume("v", false).unwrap();
    let mut ops = [WriteOp::new(8 * KIB, Bytes::from(vec![1; 8192]))];
    volume.write(&mut ops, false);
    drop(volume);
    let written = f.pool().stats().sequenced_lsn;
    f.pool().drain().unwrap();
    let history = f.pool().history("v", 10).unwrap();
    assert_eq!((history.spans.len(), history.marks.len(), history.flushes.len()), (1, 1, 1));
    assert!(history.anchors.len() >= 6 && history.anchors.iter().any(|a| a.snapshot.as_deref() == Some("s")));
    let info = f.pool().cdp("v").unwrap();
    assert_eq!(history.buckets.iter().map(|b| b.records).sum::<u64>(), info.records);
    let changes = f.pool().changes("v", 8 * KIB..9 * KIB, Lsn(0)..=written, 1000).unwrap();
    let last = changes.last().unwrap();
    assert_eq!((last.lsn, last.offset, last.length), (written, 8 * KIB, KIB));
    assert!(changes.is_sorted_by_key(|c| c.lsn) && changes.len() > 1);
    assert_eq!(
        f.pool().changes("v", 8 * KIB..9 * KIB, Lsn::ZERO..=written.prev(), 1000).unwrap().len(),
        changes.len() - 1
    );
    let flushed = f.pool().resolve("v", &Moment::FlushUpTo(written)).unwrap();
    assert!(flushed.lsn < written);
    let samples = f.pool().cdp_samples("v", 5).unwrap();
    assert_eq!(samples.len(), 5);
    for sample in samples {
        let raw = sample.decode().unwrap();
        assert!(raw.len() == sample.raw() && sample.stored() <= sample.raw());
    }
}

#[test]
fn old_history_is_compressed_harder() {
    for (compression, shrinks) in [(Compression::ZeroRun, true), (Compression::None, false)] {
        let mut f = Fixture::new(29, 4 * KIB);
        f.set(CdpSettings { encoding: Encoding::Undo, compression, ..CdpSettings::default() });
        // The content is similar to text: no zeros, and few different bytes.
        let volume = f.pool().open_volume("v", false).unwrap();
        for n in 0..400u64 {
            f.clock.advance(10);
            let at = (n % 32) as usize * 4096;
            let data: Vec<u8> = (0..4096u64).map(|i| b'a' + ((i / 8 + n) % 7) as u8).collect();
            f.now[at..at + 4096].copy_from_slice(&data);
            volume.write(&mut [WriteOp::new(at as u64, data.into())], false);
            f.note();
        }
        drop(volume);
        f.pool().drain().unwrap();
        let view = f.pool().open_moment("v", &Moment::Lsn(*f.moments.keys().next().unwrap())).unwrap();
        let before = f.pool().cdp("v").unwrap();
        let left = |f: &Fixture| f.pool().recompressing().map_or(0, |found| found.left_bytes);
        assert_eq!(left(&f) > 0, shrinks, "{before:?}");
        assert!(left(&f) <= before.stored + before.segments * 8 * KIB);
        f.idle();
        assert_eq!(f.pool().recompressing(), None);
        let after = f.pool().cdp("v").unwrap();
        assert_eq!(
            (after.records, after.written, after.segments),
            (before.records, before.written, before.segments)
        );
        let saved = f.pool().stats().history_compacted;
        assert_eq!(before.stored - after.stored, saved);
        assert_eq!(saved > before.stored / 2, shrinks, "{before:?} {after:?}");
        // An earlier reader continues, and every reader finds the same content.
        assert!(read_all(&view).unwrap() == f.moments.values().next().unwrap()[..]);
        drop(view);
        f.verify();
        f.reopen();
        f.verify();
        f.idle();
        assert_eq!(f.pool().stats().history_compacted, 0, "once is enough");
    }
}

#[test]
fn rollbacks_keep_what_they_leave() {
    let mut f = Fixture::new(11, 4 * KIB);
    f.set(CdpSettings { anchors: AnchorPolicy::Every(20), ..CdpSettings::default() });
    for round in 0..4 {
        f.change(30);
        let lsns: Vec<Lsn> = f.moments.keys().copied().collect();
        let to = lsns[f.below(lsns.len() as u64) as usize];
        let undo = format!("before-{round}");
        f.pool().roll_back_to(&[("v", &undo)], &Moment::Lsn(to), false).unwrap();
        f.now = f.moments[&to].clone();
        f.note();
        assert!(read_all(&f.pool().open_volume("v", true).unwrap()).unwrap() == f.now);
        f.verify();
    }
    f.change(10);
    f.reopen();
    f.idle();
    f.verify();
}

/// The volume is flattened, and then its origin expires too.
#[test]
fn history_expires_after_a_rollback_too() {
    let mut f = Fixture::new(23, 4 * KIB);
    let retention = Retention { time: None, bytes: Some(600 * KIB) };
    let (compression, anchors) = (Compression::None, AnchorPolicy::Every(10));
    f.set(CdpSettings { compression, anchors, retention, ..CdpSettings::default() });
    f.change(30);
    let to = *f.moments.keys().nth(20).unwrap();
    f.pool().roll_back_to(&[("v", "undo")], &Moment::Lsn(to), false).unwrap();
    f.now = f.moments[&to].clone();
    f.note();
    f.change(600);
    f.pool().drain().unwrap();
    f.idle();
    let stored = f.pool().cdp("v").unwrap().stored;
    assert!(stored < 1600 * KIB, "{stored}");
    f.reopen();
    f.idle();
    let all = f.moments.len();
    let is_kept = |lsn: Lsn| match f.read(&Moment::Lsn(lsn)) {
        Ok(content) => {
            assert!(content == f.moments[&lsn], "LSN {lsn} is wrong");
            true
        }
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => panic!("LSN {lsn}: {e}"),
    };
    let kept = f.moments.keys().filter(|lsn| is_kept(**lsn)).count();
    assert!(kept > 20 && kept < all - 100, "{kept} of {all}");
    assert!(!is_kept(to));
    assert_eq!(f.pool().origin("v").unwrap(), None);
    assert!(read_all(&f.pool().open_volume("v", true).unwrap()).unwrap() == f.now);
    assert!(is_kept(*f.moments.keys().next_back().unwrap()));
}

#[test]
fn a_recovered_volume_is_writable_and_stays() {
    let mut f = Fixture::new(13, 16 * KIB);
    f.set(CdpSettings { encoding: Encoding::Undo, ..CdpSettings::default() });
    f.change(50);
    let lsn = *f.moments.keys().nth(20).unwrap();
    f.pool().recover_volume("v", &Moment::Lsn(lsn), "then").unwrap();
    let mut model = f.moments[&lsn].clone();
    let then = f.pool().open_volume("then", false).unwrap();
    assert!(read_all(&then).unwrap() == model);
    let mut ops = [WriteOp::new(512, Bytes::from(vec![9; 1024]))];
    then.write(&mut ops, false);
    then.discard(32 * KIB, 16 * KIB, false).unwrap();
    model[512..1536].fill(9);
    model[32 << 10..48 << 10].fill(0);
    drop(then);
    f.change(30);
    f.reopen();
    f.idle();
    assert!(read_all(&f.pool().open_volume("then", true).unwrap()).unwrap() == model);
    f.pool().delete_volume("v", true).unwrap();
    f.idle();
    f.reopen();
    f.idle();
    assert!(read_all(&f.pool().open_volume("then", true).unwrap()).unwrap() == model);
}

#[test]
fn shrinking_and_long_discards_are_kept_by_anchors() {
    let mut f = Fixture::new(17, 4 * KIB);
    for encoding in ENCODINGS {
        f.set(CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() });
        f.change(20);
        for size in [SIZE / 2 + 512, 8 * MIB] {
            f.pool().resize_volume("v", size, true).unwrap();
        }
        f.now[SIZE as usize / 2 + 512..].fill(0);
        let grown = f.now.clone();
        let lsn = f.pool().stats().sequenced_lsn;
        let volume = f.pool().open_volume("v", false).unwrap();
        volume.discard(1024, 4 * MIB, false).unwrap();
        drop(volume);
        let view = f.pool().open_moment("v", &Moment::Lsn(lsn)).unwrap();
        assert_eq!(view.info().size, 8 * MIB);
        let mut all = vec![0xEE; SIZE as usize];
        view.read(0, &mut all).unwrap();
        assert!(all == grown);
        drop(view);
        f.now[1024..].fill(0);
        f.pool().resize_volume("v", SIZE, true).unwrap();
        f.note();
        f.change(20);
    }
    f.verify();
    f.reopen();
    f.idle();
    f.verify();
}
