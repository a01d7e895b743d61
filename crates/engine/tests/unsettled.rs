//! Moments that are opened before destage has come to them: they are there at once, and show what
//! they show afterwards.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Point, Retention};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::Pool;
use hindcast_engine::testing::{KIB, MIB, Site, content, content_of, flip, idle, read, write};
use hindcast_engine::world::{Clock, Rng, SplitMix};
use hindcast_engine::{ErrorKind, Volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const SIZE: u64 = 256 * KIB;

/// A pool with a volume `v` that keeps its history, and what `v` held after every record.
struct Fixture {
    site: Site,
    rng: SplitMix,
    now: Vec<u8>,
    moments: BTreeMap<Lsn, Vec<u8>>,
    held: Vec<(Lsn, Arc<Volume>)>,
    /// Points that were found before everything was carried out.
    found: Vec<(Moment, Point)>,
    /// The number of moments that were opened and not settled.
    waited: u64,
}

impl Fixture {
    fn new(seed: u64, chunk_size: u64, settings: CdpSettings) -> Fixture {
        // Small segments make small batches.
        let site = Site::builder(48).seed(seed).time(seed + 1).journal(8 * MIB, 256 * KIB).build();
        let site = site.having("v", SIZE, chunk_size).having("other", SIZE, 4 * KIB);
        let (rng, now) = (SplitMix::new(seed), vec![0; SIZE as usize]);
        let mut f = Fixture {
            site,
            rng,
            now,
            moments: BTreeMap::new(),
            held: Vec::new(),
            found: Vec::new(),
            waited: 0,
        };
        f.change(20);
        f.moments.clear();
        f.pool().set_cdp("v", Some(settings)).unwrap();
        f.pool().drain().unwrap();
        f.note();
        f
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.site.pool
    }

    fn below(&self, most: u64) -> u64 {
        self.rng.next() % most
    }

    fn note(&mut self) {
        self.moments.insert(self.site.lsn(), self.now.clone());
    }

    /// Makes random changes: many of few places, some of any place.
    fn change(&mut self, count: u64) {
        let volume = self.site.open("v");
        for _ in 0..count {
            self.site.clock.advance(self.below(3) * 5);
            let hot = self.below(2) == 0;
            let start = if hot { 8 * KIB + self.below(8) * 512 } else { self.below(SIZE / 512) * 512 };
            let most = if hot { 8 } else { 60 };
            let len = ((1 + self.below(most)) * 512).min(SIZE - start);
            let part = start as usize..(start + len) as usize;
            match self.below(10) {
                0 => volume.discard(start, len, false).unwrap(),
                1 => volume.write_zeroes(start, len, false, false).unwrap(),
                _ => {
                    let byte = self.rng.next() as u8;
                    let mut data = self.now[part.clone()].to_vec();
                    data.iter_mut().step_by(1 + self.below(9) as usize).for_each(|b| *b ^= byte | 1);
                    self.now[part.clone()].copy_from_slice(&data);
                    let mut ops = [WriteOp::new(start, Bytes::from(data))];
                    volume.write(&mut ops, false);
                    ops[0].result.clone().unwrap();
                    self.note();
                    continue;
                }
            }
            self.now[part].fill(0);
            self.note();
        }
    }

    fn settled(&self) -> Lsn {
        self.pool().stats().settled_lsn
    }

    /// Returns the number of times that records had to be carried out first.
    fn waits(&self) -> u64 {
        self.pool().stats().history_waits
    }

    fn pick(&self) -> Lsn {
        // The smaller of two numbers makes newer moments more frequent.
        let n = self.below(self.moments.len() as u64).min(self.below(self.moments.len() as u64));
        *self.moments.keys().rev().nth(n as usize).unwrap()
    }

    /// Opens a moment. Nothing is carried out for that.
    fn open(&self, moment: &Moment) -> Arc<Volume> {
        let before = (self.settled(), self.waits());
        let view = self.pool().open_moment("v", moment).unwrap();
        assert_eq!((self.settled(), self.waits()), before, "{moment:?} was carried out first");
        if let Moment::Lsn(lsn) = moment {
            assert!(self.pool().stats().synced_lsn >= *lsn, "a crash may take {moment:?} away");
        }
        view
    }

    fn check(&self, view: &Volume, lsn: Lsn) {
        let wanted = &self.moments[&lsn];
        let whole = self.below(3) == 0;
        for _ in 0..if whole { 1 } else { 5 } {
            let start = if whole { 0 } else { self.below(SIZE / 512) * 512 };
            let len = if whole { SIZE } else { ((1 + self.below(40)) * 512).min(SIZE - start) };
            let mut data = vec![0xEE; len as usize];
            view.read(start, &mut data).unwrap();
            let wrong = data.iter().zip(&wanted[start as usize..]).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "LSN {lsn}, {start}+{len}, settled up to {}", self.settled());
        }
        let mut at = 0;
        for run in view.block_status(0, SIZE, usize::MAX).unwrap() {
            let part = &wanted[at as usize..(at + run.length) as usize];
            assert!(!run.zero || part.iter().all(|b| *b == 0), "LSN {lsn}: {at}+{} is no zeros", run.length);
            at += run.length;
        }
        assert_eq!(at, SIZE);
    }

    fn check_held(&self) {
        self.held.iter().for_each(|(lsn, view)| self.check(view, *lsn));
    }

    /// Opens moments by number and by time, and keeps some of them open.
    fn open_some(&mut self) {
        for _ in 0..3 {
            let now = self.site.clock.now();
            let moment = match self.below(2) {
                0 => Moment::Lsn(self.pick()),
                // The fixture's times begin at about 1.
                _ => Moment::PoolTime(now - self.below(now.min(400))),
            };
            let before = (self.settled(), self.waits());
            let Ok(point) = self.pool().resolve("v", &moment) else {
                assert!(matches!(moment, Moment::PoolTime(_)), "{moment:?}");
                continue;
            };
            assert_eq!((self.settled(), self.waits()), before, "{moment:?} was carried out first");
            let view = self.open(&moment);
            self.waited += u64::from(point.lsn > self.settled());
            self.found.push((moment, point));
            if !self.moments.contains_key(&point.lsn) {
                // The point is that of an anchor before or after a record.
                continue;
            }
            self.check(&view, point.lsn);
            if self.held.len() < 6 {
                self.held.push((point.lsn, view));
            }
        }
        if self.below(6) == 0 {
            let n = self.below(self.held.len().max(1) as u64) as usize;
            self.held.drain(..n);
        }
    }

    /// Checks that every point that was found before everything was carried out is found
    /// afterwards.
    fn check_found(&mut self) {
        self.pool().drain().unwrap();
        for (moment, point) in std::mem::take(&mut self.found) {
            assert_eq!(self.pool().resolve("v", &moment).unwrap(), point, "{moment:?}");
        }
        self.check_held();
        let all: Vec<Lsn> = self.moments.keys().copied().collect();
        for lsn in all.into_iter().rev().step_by(7).take(10) {
            self.check(&self.open(&Moment::Lsn(lsn)), lsn);
        }
    }
}

const ENCODINGS: [Encoding; 3] = [Encoding::Parity, Encoding::Undo, Encoding::Redo];
const COMPRESSIONS: [Compression; 4] =
    [Compression::None, Compression::ZeroRun, Compression::Lz4, Compression::Zstd];

#[test]
fn a_moment_shows_the_same_before_while_and_after_it_is_carried_out() {
    let mut waited = 0;
    for seed in 0..24 {
        let encoding = ENCODINGS[seed as usize % 3];
        let compression = COMPRESSIONS[seed as usize / 3 % 4];
        let anchors = if seed % 2 == 0 { AnchorPolicy::Every(40) } else { AnchorPolicy::Never };
        let settings = CdpSettings { encoding, compression, anchors, ..CdpSettings::default() };
        let mut f = Fixture::new(seed, [4 * KIB, 16 * KIB, 64 * KIB, 512][seed as usize % 4], settings);
        for round in 0..30 {
            f.change(1 + f.below(30));
            if f.below(8) == 0 {
                f.pool().create_snapshots(&[("v", &format!("s{round}"))]).unwrap();
                f.note();
            }
            if f.below(8) == 0 {
                f.pool().mark("v", &format!("m{round}")).unwrap();
                f.note();
            }
            if f.below(4) == 0 {
                // Other volumes use LSNs, too.
                write(&f.site.open("other"), 0, round, 4096);
            }
            f.open_some();
            f.check_held();
            if f.below(2) == 0 {
                f.pool().destage_step().unwrap();
                f.check_held();
            }
            if f.below(12) == 0 {
                f.check_found();
            }
        }
        f.check_found();
        waited += f.waited;
    }
    assert!(waited > 1000, "{waited} of some 2000 were not settled");
}

#[test]
fn a_moment_is_there_at_once_after_a_kill() {
    let mut f = Fixture::new(5, 4 * KIB, CdpSettings::default());
    f.change(200);
    let lsns: Vec<Lsn> = f.moments.keys().copied().collect();
    f.site = f.site.reopen();
    let before = f.settled();
    assert!(before < lsns[150], "{before}");
    for lsn in lsns {
        f.check(&f.open(&Moment::Lsn(lsn)), lsn);
    }
}

/// A moment that is open does not expire, and neither does what it is made from.
#[test]
fn retention_waits_for_a_moment_that_is_not_settled() {
    for (seed, encoding) in (40..).zip(ENCODINGS) {
        let retention = Retention { time: Some(100), bytes: Some(20 * KIB) };
        let anchors = AnchorPolicy::Every(20);
        let settings = CdpSettings { encoding, anchors, retention, ..CdpSettings::default() };
        let mut f = Fixture::new(seed, 4 * KIB, settings);
        for _ in 0..10 {
            f.change(60);
            let lsn = f.pick();
            if let Ok(view) = f.pool().open_moment("v", &Moment::Lsn(lsn)) {
                f.held.push((lsn, view));
            }
            f.site.clock.advance(1000);
            if f.held.len() > 3 {
                f.held.remove(0);
            }
            f.pool().destage_step().unwrap();
            f.check_held();
            f.change(40);
            idle(f.pool());
            f.check_held();
        }
        assert!(!f.held.is_empty());
        f.held.clear();
        idle(f.pool());
        let oldest = *f.moments.keys().next().unwrap();
        let gone = f.pool().open_moment("v", &Moment::Lsn(oldest)).map(drop).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
}

/// A change that the records of the journal do not state is carried out before a moment opens.
#[test]
fn a_change_of_the_volume_itself_is_carried_out_first() {
    let change: [fn(&Arc<Pool>); 4] = [
        |pool| pool.resize_volume("v", SIZE / 2, true).map(drop).unwrap(),
        |pool| {
            pool.set_cdp("v", Some(CdpSettings { encoding: Encoding::Undo, ..CdpSettings::default() }))
                .map(drop)
                .unwrap()
        },
        |pool| {
            pool.set_cdp("v", None).unwrap();
            pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
        },
        |pool| {
            pool.create_snapshots(&[("v", "s")]).unwrap();
            pool.roll_back("v", "s", "undo", true).map(drop).unwrap();
        },
    ];
    for (n, change) in change.into_iter().enumerate() {
        let mut f = Fixture::new(60 + n as u64, 4 * KIB, CdpSettings::default());
        f.change(50);
        let (lsn, before) = (f.site.lsn(), f.settled());
        change(f.pool());
        let changed = f.site.lsn();
        assert!(f.settled() < lsn, "it waits");
        f.site.put(0, 7, 512);
        let last = f.site.lsn();
        let view = f.pool().open_moment("v", &Moment::Lsn(last)).unwrap();
        assert!(f.settled() >= changed && before < changed, "{n}");
        let size = if n == 0 { SIZE / 2 } else { SIZE } as usize;
        f.now[..512].fill(7);
        assert!(content(&view) == f.now[..size], "{n}");
        f.check(&f.pool().open_moment("v", &Moment::Lsn(lsn)).unwrap(), lsn);
    }
}

/// Damage in the journal is an error of the read.
#[test]
fn damaged_data_of_the_journal_is_never_shown() {
    let f = Fixture::new(70, 4 * KIB, CdpSettings::default());
    let lsn = f.site.put(16 * KIB, 0xA7, 4096);
    f.site.put(16 * KIB, 0xA8, 4096);
    let places = |byte: u8| {
        let names = (0..8).map(|n| format!("journal-{n:05}"));
        let place = |name: String| {
            let bytes = content_of(&f.site.dir, &name);
            Some((name, bytes.windows(4096).position(|w| w.iter().all(|b| *b == byte))? as u64))
        };
        names.filter_map(place).next().unwrap()
    };
    let (name, at) = places(0xA7);
    flip(&f.site.dir, &name, at + 100, 1);
    let view = f.open(&Moment::Lsn(lsn));
    let mut data = vec![0; 512];
    let error = view.read(16 * KIB, &mut data).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(read(&f.open(&Moment::Lsn(lsn.next())), 16 * KIB, 512), [0xA8; 512], "the next one is whole");
}

/// Clients write, destage carries out, segments of the journal are used again and again, and a
/// reader opens what has just been written.
#[test]
fn moments_are_right_while_everything_goes_on() {
    const BLOCKS: u64 = 64;
    for encoding in ENCODINGS {
        let site = Site::builder(48).journal(2 * MIB, 256 * KIB).build().having("v", BLOCKS * 4096, 8 * KIB);
        let settings = CdpSettings { encoding, anchors: AnchorPolicy::Never, ..CdpSettings::default() };
        site.pool.set_cdp("v", Some(settings)).unwrap();
        site.pool.drain().unwrap();
        let (begin, before) = (site.lsn(), site.pool.stats().history_waits);
        // (LSN, block, byte) of each write.
        let log: Mutex<Vec<(Lsn, u64, u8)>> = Mutex::default();
        let done = AtomicBool::new(false);
        let pool = &site.pool;
        let (opened, waited) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (volume, rng) = (site.open("v"), SplitMix::new(1));
                for n in 0..6000u64 {
                    let (block, byte) = (rng.next() % BLOCKS, (n % 255) as u8 + 1);
                    let mut ops = [WriteOp::new(block * 4096, Bytes::from(vec![byte; 4096]))];
                    volume.write(&mut ops, false);
                    ops[0].result.clone().unwrap();
                    log.lock().unwrap().push((pool.stats().sequenced_lsn, block, byte));
                }
                done.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    pool.destage_step().unwrap();
                }
            });
            let (mut opened, mut waited, rng) = (0, 0, SplitMix::new(2));
            while !done.load(Ordering::Acquire) {
                let Some((last, ..)) = log.lock().unwrap().last().copied() else { continue };
                let lsn = Lsn(last.0 - (rng.next() % 50).min(last.since(begin)));
                let view = pool.open_moment("v", &Moment::Lsn(lsn)).unwrap();
                waited += u64::from(lsn > pool.stats().settled_lsn);
                for _ in 0..1 + rng.next() % 5 {
                    let block = rng.next() % BLOCKS;
                    let mut data = vec![0; 4096];
                    view.read(block * 4096, &mut data).unwrap();
                    let log = log.lock().unwrap();
                    let known = log.partition_point(|(of, ..)| *of <= lsn);
                    let wanted = log[..known].iter().rev().find(|(_, of, _)| *of == block);
                    let byte = wanted.map_or(0, |(.., byte)| *byte);
                    let found = data[0];
                    assert!(data.iter().all(|b| *b == byte), "LSN {lsn}, block {block}: {found}, not {byte}");
                }
                opened += 1;
            }
            (opened, waited)
        });
        assert!(opened > 20 && waited > 0, "{opened} moments, of which {waited} were not settled");
        assert_eq!(pool.stats().history_waits, before, "nothing was carried out first");
    }
}
