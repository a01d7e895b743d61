//! A volume that rests on a moment is as thin as the moment was. Status, differences and streams
//! are compared with what it reads as.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::single_range_in_vec_init)] // lists of ranges are what is compared

use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Encoding, Moment, Retention};
use hindcast_engine::device::{BlockDevice, StatusRun};
use hindcast_engine::disk::{Dir, OpenMode};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::Pool;
use hindcast_engine::testing::differences::{assert_covers, ranges};
use hindcast_engine::testing::{KIB, MIB, Site, content, write};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use hindcast_engine::{Difference, ErrorKind, Volume};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHUNK: u64 = 16 * KIB;
const TIB: u64 = 1 << 40;
/// Number of chunks of a map page.
const PAGE_CHUNKS: u64 = 256;

fn cdp(anchors: AnchorPolicy) -> CdpSettings {
    CdpSettings { anchors, ..CdpSettings::default() }
}

/// Makes a volume with a history from the beginning.
fn kept(site: &Site, name: &str, size: u64, anchors: AnchorPolicy) -> Arc<Volume> {
    let v = site.volume(name, size, CHUNK);
    site.pool.set_cdp(name, Some(cdp(anchors))).unwrap();
    v
}

/// Returns the ranges that status calls data, with `most` runs per request.
fn data(volume: &Volume, most: usize) -> Vec<Range<u64>> {
    let size = volume.info().size;
    let (mut at, mut found) = (0, Vec::<Range<u64>>::new());
    while at < size {
        let runs = volume.block_status(at, size - at, most).unwrap();
        assert!(!runs.is_empty() && runs.len() <= most);
        for StatusRun { length, allocated, zero } in runs {
            assert!(length > 0 && (allocated || zero));
            match found.last_mut() {
                Some(last) if !zero && last.end == at => last.end += length,
                _ if !zero => found.push(at..at + length),
                _ => {}
            }
            at += length;
        }
    }
    assert_eq!(at, size);
    found
}

/// Checks that every range called zeros reads as zeros, whatever the size of the requests.
fn assert_honest(volume: &Volume, what: &str) -> Vec<Range<u64>> {
    let (all, found) = (content(volume), data(volume, 1000));
    assert_eq!(found, data(volume, 1), "{what}");
    let named = |at: u64| found.iter().any(|range| range.contains(&at));
    for (n, sector) in all.chunks(512).enumerate() {
        let at = n as u64 * 512;
        assert!(sector.iter().all(|b| *b == 0) || named(at), "{what}: byte {at} is in none of {found:?}");
    }
    found
}

#[test]
fn a_volume_taken_back_is_as_thin_as_the_moment() {
    for size in [10 << 30, 64 * TIB] {
        let begun = Instant::now();
        let (a, b) = (Site::new(64), Site::seeded(32, 2));
        let v = kept(&a, "v", size, AnchorPolicy::Never);
        write(&v, 5 * MIB, 1, MIB);
        a.snap("v", "good");
        a.pool.mark("v", "m").unwrap();
        write(&v, size - MIB, 2, 512 * KIB);
        drop(v);
        let m = Moment::Mark("m".into());
        assert_eq!(data(&a.pool.open_moment("v", &m).unwrap(), 8), [5 * MIB..6 * MIB]);
        a.pool.recover_volume("v", &m, "r").unwrap();
        a.pool.roll_back_to(&[("v", "undo")], &m, false).unwrap();
        for name in ["v", "r"] {
            assert_eq!(data(&a.open(name), 8), [5 * MIB..6 * MIB], "{name}");
        }
        // The difference is found by records, from either side.
        let between = |from: &str, to: Arc<Volume>| {
            ranges(&Difference::new(a.pool.open_snapshot("v", from).unwrap(), to).unwrap())
        };
        assert_eq!(between("good", a.open("v")), []);
        assert_eq!(between("good", a.open("r")), []);
        assert_eq!(between("undo", a.open("v")), [size - MIB..size - MIB + 512 * KIB]);
        write(&a.pool.open_volume("v", false).unwrap(), 64 * MIB, 3, 4 * KIB);
        a.snap("v", "t");
        // Staged content makes status examine each chunk.
        a.pool.drain().unwrap();
        // Over a moment, a chunk is materialized as a whole.
        assert_eq!(between("good", a.open("v")), [64 * MIB..64 * MIB + CHUNK]);
        assert_eq!(data(&a.open("v"), 8), [5 * MIB..6 * MIB, 64 * MIB..64 * MIB + CHUNK]);
        let whole = a.export("v", "t", None, 0);
        assert!(whole.len() as u64 <= MIB + 64 * KIB, "{} bytes of {size}", whole.len());
        let since = a.export("v", "t", Some("good"), 0);
        assert!((since.len() as u64) < CHUNK + KIB, "{} bytes since", since.len());
        b.import(Some("w"), &whole).unwrap();
        b.pool.drain().unwrap();
        assert_eq!(b.pool.volume("w").unwrap().allocated, MIB + CHUNK);
        let mut found = vec![0; 2 * MIB as usize];
        b.open("w").read(4 * MIB, &mut found).unwrap();
        assert!(found.iter().enumerate().all(|(n, byte)| *byte == (n as u64 >= MIB) as u8));
        // Staged content is in place now, and so is the content with which the volume was filled.
        a.idle();
        assert_eq!(data(&a.open("v"), 8), [5 * MIB..6 * MIB, 64 * MIB..64 * MIB + CHUNK]);
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?} for {size}", begun.elapsed());
    }
}

/// Status reports as data neither what was discarded with one request, nor what was never written
/// beside written content.
#[test]
fn long_discards_and_later_writes_are_no_data_of_a_moment() {
    let site = Site::new(64);
    let v = kept(&site, "v", 1 << 30, AnchorPolicy::Never);
    write(&v, 16 * MIB, 1, MIB);
    let full = site.lsn();
    v.discard(16 * MIB + 512, 8 * MIB, false).unwrap();
    let emptied = site.lsn();
    write(&v, 17 * MIB, 2, 512);
    let last = site.lsn();
    site.idle();
    let found = |lsn| assert_honest_at(&site.moment("v", lsn));
    assert_eq!(found(full), [16 * MIB..17 * MIB]);
    assert_eq!(found(emptied), [16 * MIB..16 * MIB + CHUNK], "a part of the first chunk is left");
    assert_eq!(found(last), [16 * MIB..16 * MIB + CHUNK, 17 * MIB..17 * MIB + CHUNK]);
    // This part was cut off, and added again.
    site.pool.resize_volume("v", 16 * MIB, true).unwrap();
    site.pool.resize_volume("v", 1 << 30, false).unwrap();
    assert_eq!(found(site.lsn()), []);
    assert_eq!(found(full), [16 * MIB..17 * MIB]);
}

fn assert_honest_at(volume: &Volume) -> Vec<Range<u64>> {
    let (found, mut near) = (data(volume, 7), vec![0; 16 * MIB as usize]);
    volume.read(12 * MIB, &mut near).unwrap();
    let named = |at: u64| found.iter().any(|range| range.contains(&at));
    let wrong = near.iter().zip(12 * MIB..).find(|(byte, at)| **byte != 0 && !named(*at));
    assert_eq!(wrong, None, "{found:?}");
    found
}

/// Moments before the first remaining anchor are read from what is in place, from versions, and
/// from later records.
#[test]
fn moments_without_an_anchor_before_them() {
    let site = Site::new(64);
    let v = kept(&site, "v", 64 * MIB, AnchorPolicy::Never);
    write(&v, 0, 1, MIB);
    let mut lsns = Vec::new();
    // The writes fill more than a segment.
    for n in 0..400u64 {
        write(&v, 4 * MIB + n % 32 * CHUNK, (n % 250) as u8 + 1, CHUNK);
        // Content that is gone again is in records only.
        write(&v, 32 * MIB + n % 7 * CHUNK, 9, CHUNK);
        lsns.push(site.lsn());
        v.discard(32 * MIB + n % 7 * CHUNK, CHUNK, false).unwrap();
        site.clock.advance(1_000_000_000);
    }
    v.discard(0, 2 * MIB, false).unwrap();
    site.idle();
    let retention = Retention { time: Some(150_000_000_000), bytes: None };
    site.pool.set_cdp("v", Some(CdpSettings { retention, ..cdp(AnchorPolicy::Never) })).unwrap();
    for _ in 0..20 {
        site.clock.advance(1_000_000_000);
        site.idle();
    }
    let first = site.pool.history("v", 0).unwrap();
    assert!(
        lsns.contains(&first.spans[0].from.lsn) || first.spans[0].from.lsn > lsns[0],
        "{:?}",
        first.spans
    );
    let held = lsns.iter().filter(|lsn| **lsn >= first.spans[0].from.lsn).step_by(20);
    let mut looked = 0;
    for lsn in held {
        let view = site.moment("v", *lsn);
        let found = assert_honest(&view, &format!("LSN {lsn}"));
        let all: u64 = found.iter().map(|range| range.end - range.start).sum();
        assert!(all <= MIB + 32 * CHUNK + 7 * CHUNK, "{found:?}");
        looked += 1;
    }
    assert!(looked > 3 && first.anchors.iter().all(|anchor| anchor.lsn > lsns[399]), "{:?}", first.anchors);
}

/// Damages everything that was recorded, and opens the pool again.
fn without_records(site: Site) -> Arc<Pool> {
    site.pool.close().unwrap();
    for name in site.dir.list().unwrap().into_iter().filter(|name| name.starts_with("cdp-")) {
        let file = site.dir.open(&name, OpenMode::Existing).unwrap();
        let len = file.len().unwrap();
        file.write_at(&vec![0xEE; (len - 4096) as usize], 4096).unwrap();
    }
    let Site { dir, pool, .. } = site;
    drop(pool);
    let world = World { clock: Arc::new(ManualClock::new(1)), rng: Arc::new(SplitMix::new(1)) };
    Pool::open(dir, world, Default::default()).unwrap()
}

/// A history that can't be read must not count as zeros.
#[test]
fn what_is_lost_is_data() {
    let site = Site::new(64);
    let v = kept(&site, "v", 64 * MIB, AnchorPolicy::Never);
    write(&v, MIB, 1, MIB);
    let lsn = site.lsn();
    write(&v, 8 * MIB, 2, 4 * MIB);
    write(&v, 0, 2, 4 * MIB);
    drop(v);
    site.idle();
    site.pool.recover_volume("v", &Moment::Lsn(lsn), "r").unwrap();
    assert_eq!(data(&site.open("r"), 8), [MIB..2 * MIB]);
    let site = site.reopen();
    assert_eq!(data(&site.open("r"), 8), [MIB..2 * MIB]);
    let pool = without_records(site);
    let r = pool.open_volume("r", true).unwrap();
    let found = data(&r, 8);
    assert!(found.iter().any(|range| range.start <= MIB && range.end >= 2 * MIB), "{found:?}");
    let mut lost = vec![0; CHUNK as usize];
    assert!(r.read(MIB, &mut lost).is_err(), "it is lost");
}

/// If neither state is a moment, a history that can't be read is not needed. Between moments, only
/// the history has the answer.
#[test]
fn snapshots_are_compared_without_a_history_that_is_lost() {
    let site = Site::new(64);
    let v = kept(&site, "v", 64 * MIB, AnchorPolicy::Never);
    write(&v, MIB, 1, MIB);
    site.snap("v", "good");
    let first = site.lsn();
    // The writes fill more than a segment on either side.
    let many = |from| (0..500u64).for_each(|n| write(&v, from + n % 64 * CHUNK, n as u8, CHUNK));
    many(8 * MIB);
    let lsn = site.lsn();
    many(12 * MIB);
    drop(v);
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Lsn(lsn), false).unwrap();
    write(&site.pool.open_volume("v", false).unwrap(), 32 * MIB, 3, CHUNK);
    site.idle();
    let compare = |pool: &Arc<Pool>, from: &str| {
        let (from, to) = (pool.open_snapshot("v", from).unwrap(), pool.open_volume("v", true).unwrap());
        ranges(&Difference::new(from, to).unwrap())
    };
    let (later, before, after) = (32 * MIB..32 * MIB + CHUNK, 8 * MIB..9 * MIB, 12 * MIB..13 * MIB);
    assert_eq!(compare(&site.pool, "good"), [before.clone(), later.clone()]);
    assert_eq!(compare(&site.pool, "undo"), [after.clone(), later.clone()]);
    let pool = without_records(site);
    for (from, differs) in [("good", [before, later.clone()]), ("undo", [after, later])] {
        let found = compare(&pool, from);
        let named = |range: &Range<u64>| found.iter().any(|r| r.start <= range.start && r.end >= range.end);
        assert!(differs.iter().all(named), "{from}: {found:?}");
    }
    let (moment, undo) = (pool.open_moment("v", &Moment::Lsn(first)), pool.open_snapshot("v", "undo"));
    let difference = Difference::new(moment.unwrap(), undo.unwrap());
    let error = difference.and_then(|d| d.step(0, 64 * MIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// The status passes a long hole as a whole, both if the line has the hole and if it is older than
/// the hole.
#[test]
fn the_status_of_long_holes_reads_few_pages() {
    const MIDDLE: u64 = TIB / 2;
    let site = Site::new(64);
    let v = site.volume("v", TIB, CHUNK);
    write(&v, 16 * MIB, 1, CHUNK);
    site.snap("v", "full");
    site.pool.clone_volume("v", "full", "c").unwrap();
    let c = site.open("c");
    [&v, &c].iter().for_each(|volume| volume.discard(0, TIB, false).unwrap());
    site.snap("v", "empty");
    [&v, &c].iter().for_each(|volume| write(volume, MIDDLE, 2, CHUNK));
    site.pool.drain().unwrap();
    let snapshot = |name| site.pool.open_snapshot("v", name).unwrap();
    for (volume, found) in [
        (v.clone(), vec![MIDDLE..MIDDLE + CHUNK]),
        (c.clone(), vec![MIDDLE..MIDDLE + CHUNK]),
        (snapshot("empty"), vec![]),
        (snapshot("full"), vec![16 * MIB..16 * MIB + CHUNK]),
    ] {
        let before = site.pool.stats().map_misses;
        assert_eq!(data(&volume, 1), found);
        assert_eq!(data(&volume, 100), found);
        let read = site.pool.stats().map_misses - before;
        assert!(read < 1000, "{read} looks for pages that are not in the cache");
    }
}

/// A volume with a little of its own everywhere queries its base again and again.
#[test]
fn one_status_takes_so_many_looks() {
    let site = Site::new(64);
    let v = kept(&site, "v", 8 << 30, AnchorPolicy::Never);
    write(&v, 0, 1, CHUNK);
    let lsn = site.lsn();
    drop(v);
    site.pool.recover_volume("v", &Moment::Lsn(lsn), "r").unwrap();
    let (v, r) = (site.open("v"), site.pool.open_volume("r", false).unwrap());
    assert!(r.status_may_wait() && site.moment("v", lsn).status_may_wait() && !v.status_may_wait());
    // These chunks lie within one query.
    let close = (0..64).map(|n| (2 * n + 1) * CHUNK);
    // These chunks are as far apart as the first query of a gap extends.
    let window = PAGE_CHUNKS * CHUNK;
    let far = (1..(8 << 30) / window).map(|n| n * window);
    let wanted: Vec<u64> = close.chain(far).collect();
    for part in wanted.chunks(128) {
        part.iter().for_each(|at| write(&r, *at, 2, CHUNK));
        site.pool.drain().unwrap();
    }
    let runs = r.block_status(0, 8 << 30, 1 << 20).unwrap();
    let told: u64 = runs.iter().map(|run| run.length).sum();
    assert!((1020..1028).contains(&(told / window)), "{told} bytes");
    for _ in 0..2 {
        let found = data(&r, 1 << 20);
        let ranges: Vec<_> =
            std::iter::once(0..2 * CHUNK).chain(wanted[1..].iter().map(|at| *at..*at + CHUNK)).collect();
        assert_eq!(found, ranges);
        assert_eq!(found, data(&r, 1));
        site.idle();
    }
}

/// Snapshots are from before the history began, or from an expired part of it. Their moments are
/// unknown, so the content of both counts, but not the whole volume.
#[test]
fn without_the_moment_of_a_snapshot_both_contents_count() {
    let site = Site::new(64);
    let v = site.volume("v", 256 * MIB, CHUNK);
    write(&v, 0, 1, 64 * KIB);
    site.snap("v", "before");
    write(&v, MIB, 1, 64 * KIB);
    site.pool.set_cdp("v", Some(cdp(AnchorPolicy::Never))).unwrap();
    write(&v, 2 * MIB, 1, 64 * KIB);
    let lsn = site.lsn();
    write(&v, 3 * MIB, 1, 64 * KIB);
    drop(v);
    site.pool.roll_back_to(&[("v", "undo")], &Moment::Lsn(lsn), false).unwrap();
    let compare = |from: &str| {
        let (from, to) = (site.pool.open_snapshot("v", from).unwrap(), site.open("v"));
        assert_covers(&Difference::new(from.clone(), to.clone()).unwrap(), &from, &to)
    };
    for _ in 0..2 {
        let found = compare("before");
        let all: u64 = found.iter().map(|range| range.end - range.start).sum();
        assert!((128 * KIB..=256 * KIB).contains(&all), "{found:?}");
        assert_eq!(compare("undo"), [3 * MIB..3 * MIB + 64 * KIB]);
        site.idle();
    }
}

/// Content without a place is left out of a stream, and so is allocated content that is zeros.
#[test]
fn zeros_that_have_a_place_are_left_out() {
    let (a, b) = (Site::new(64), Site::seeded(64, 2));
    let v = a.volume("v", 512 * MIB, CHUNK);
    write(&v, 0, 0, 16 * MIB);
    write(&v, 20 * MIB, 7, 4 * KIB);
    a.snap("v", "one");
    a.idle();
    assert!(a.pool.volume("v").unwrap().allocated >= 16 * MIB);
    let whole = a.export("v", "one", None, 0);
    assert!((whole.len() as u64) < CHUNK + KIB, "{} bytes", whole.len());
    b.import(Some("w"), &whole).unwrap();
    b.idle();
    assert_eq!(b.pool.volume("w").unwrap().allocated, CHUNK);
    // A difference reports zeros, because the receiver may have other content there.
    write(&v, 20 * MIB, 0, 4 * KIB);
    write(&v, 24 * MIB, 0, MIB);
    a.snap("v", "two");
    a.idle();
    let since = a.export("v", "two", Some("one"), 0);
    assert!(since.len() < 1 << 10, "{} bytes", since.len());
    b.import(Some("w"), &since).unwrap();
    b.idle();
    assert_eq!(data(&b.open("w"), 8), []);
    b.pool.delete_snapshots("w", &["one"]).unwrap();
    b.idle();
    assert_eq!(b.pool.volume("w").unwrap().allocated, 0);
}

/// Runs of zeros shorter than a chunk would save no space.
#[test]
fn short_zeros_stay_in_their_record() {
    let (a, b) = (Site::new(64), Site::seeded(64, 2));
    let v = a.volume("v", MIB, 64 * KIB);
    for n in 0..128 {
        write(&v, n * 8 * KIB, 7, 4 * KIB);
    }
    a.snap("v", "one");
    // Staged content is known block by block.
    a.idle();
    let whole = a.export("v", "one", None, 0);
    // The stream has its header, a record and the end.
    assert!((MIB..MIB + 300).contains(&(whole.len() as u64)), "{} bytes", whole.len());
    b.import(Some("w"), &whole).unwrap();
    assert_eq!(content(&b.open("w")), content(&v));
}

/// An export that reads many allocated zeros reports progress in time.
#[test]
fn no_piece_takes_long() {
    let site = Site::new(64);
    let v = site.volume("v", 48 * MIB, CHUNK);
    write(&v, 0, 0, 48 * MIB);
    site.snap("v", "one");
    site.idle();
    let mut export = site.pool.export("v", "one", None, 0).unwrap();
    let (mut at, mut pieces) = (0, 0);
    while let Some(piece) = export.next_piece().unwrap() {
        assert!(
            !piece.is_empty() && export.position() - at <= 17 * MIB,
            "from {at} to {}",
            export.position()
        );
        (at, pieces) = (export.position(), pieces + 1);
    }
    assert!(at == 48 * MIB && (3..=5).contains(&pieces), "{pieces} pieces");
}

/// A volume of four map pages, one of which is never written to.
struct Random {
    site: Site,
    rng: SplitMix,
    name: &'static str,
    settings: CdpSettings,
    never: u64,
    moments: Vec<Lsn>,
}

impl Random {
    const CHUNK: u64 = 4 * KIB;
    const PAGE: u64 = PAGE_CHUNKS * Self::CHUNK;

    /// Makes a volume over a base with content in a page, or over none.
    fn new(seed: u64) -> Random {
        let (site, rng) = (Site::new(64), SplitMix::new(seed));
        let below = |n: u64| rng.next() % n;
        let (never, base_only) = (below(4), below(4));
        let mut name = "v";
        let v = site.volume("v", 4 * Self::PAGE, Self::CHUNK);
        if seed.is_multiple_of(2) && never != base_only {
            write(&v, base_only * Self::PAGE + below(200) * Self::CHUNK, 99, 3 * Self::CHUNK);
            site.snap("v", "s");
            site.pool.clone_volume("v", "s", "c").unwrap();
            name = "c";
        }
        drop(v);
        let anchors = [AnchorPolicy::Never, AnchorPolicy::Every(1), AnchorPolicy::Every(6)];
        let encoding = [Encoding::Parity, Encoding::Undo, Encoding::Redo][below(3) as usize];
        let settings = CdpSettings { encoding, ..cdp(anchors[below(3) as usize]) };
        if below(2) == 0 {
            site.snap(name, "plain");
        }
        site.pool.set_cdp(name, Some(settings)).unwrap();
        let moments = vec![site.lsn()];
        Random { site, rng, name, settings, never, moments }
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.next() % n
    }

    fn pick(&self) -> Lsn {
        self.moments[self.below(self.moments.len() as u64) as usize]
    }

    fn step(&mut self, step: u8) {
        let (pool, name) = (&self.site.pool, self.name);
        let v = pool.open_volume(name, false).unwrap();
        let (at, size) = (self.below(4), v.info().size);
        let (offset, len) = (at * Self::PAGE + self.below(2000) * 512, (1 + self.below(40)) * 512);
        let fits = at != self.never && offset + len <= size;
        match self.below(14) {
            0..5 if fits => write(&v, offset, step + 1, len),
            5 if fits => v.discard(offset, len, false).unwrap(),
            6 if fits => v.write_zeroes(offset, len, self.below(2) == 0, false).unwrap(),
            7 => {
                // What the discard leaves of the chunks at its ends is recorded.
                let odd = if (1..3).contains(&self.never) { self.below(2) * 512 } else { 0 };
                v.discard(odd, size - odd * 2, false).unwrap();
            }
            8 => self.site.snap(name, &format!("s{step}")),
            9 if step % 4 == 0 => {
                drop(v);
                let to = Moment::Lsn(self.pick());
                pool.roll_back_to(&[(name, &format!("u{step}"))], &to, false).unwrap();
            }
            10 if step % 5 == 0 => {
                let less = size - self.below(2 * PAGE_CHUNKS) * Self::CHUNK;
                pool.resize_volume(name, less, true).unwrap();
                pool.resize_volume(name, size, false).unwrap();
            }
            11 => drop(pool.destage_step().unwrap()),
            12 => self.site.idle(),
            _ => {}
        }
        self.site.clock.advance(1_000_000_000);
        self.moments.push(self.site.lsn());
    }

    /// Returns some moments, all snapshots, the volume, and one recovered volume.
    fn states(&self) -> Vec<(String, Arc<Volume>)> {
        let (pool, name) = (&self.site.pool, self.name);
        let lsns: Vec<Lsn> = (0..10).map(|_| self.pick()).collect();
        pool.recover_volume(name, &Moment::Lsn(lsns[0]), "r").unwrap();
        if self.below(3) == 0 {
            let retention = Retention { time: Some(self.below(40) * 1_000_000_000 + 1), bytes: None };
            pool.set_cdp(name, Some(CdpSettings { retention, ..self.settings })).unwrap();
            self.site.idle();
        }
        let view =
            |lsn| pool.open_moment(name, &Moment::Lsn(lsn)).map(|view| (format!("LSN {lsn}"), view)).ok();
        let mut states: Vec<(String, Arc<Volume>)> = lsns.into_iter().filter_map(view).collect();
        for snapshot in pool.snapshots(name).unwrap() {
            states.push((snapshot.name.clone(), pool.open_snapshot(name, &snapshot.name).unwrap()));
        }
        states.extend([name, "r"].map(|volume| (volume.to_owned(), self.site.open(volume))));
        states
    }

    fn check(&self, states: &[(String, Arc<Volume>)], seed: u64) {
        let untouched = self.never * Self::PAGE..(self.never + 1) * Self::PAGE;
        for (what, state) in states {
            let what = format!("seed {seed}, {what}");
            let found = assert_honest(state, &what);
            let apart = |range: &Range<u64>| range.end <= untouched.start || range.start >= untouched.end;
            assert!(found.iter().all(apart), "{what}: {found:?}, but {untouched:?} was never written to");
        }
    }
}

/// Random histories over a base or none are rolled back, flattened and expired. Statuses of all
/// states are compared with what they read as, and differences with both.
#[test]
fn random_histories_are_thin() {
    for seed in 0..16 {
        let mut random = Random::new(seed);
        (0..60).for_each(|step| random.step(step));
        let states = random.states();
        random.check(&states, seed);
        for (_, from) in states[..states.len() - 2].iter().step_by(2) {
            for (_, to) in &states {
                match Difference::new(from.clone(), to.clone()) {
                    Ok(difference) => drop(assert_covers(&difference, from, to)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Unsupported),
                }
            }
        }
        // The volumes are being flattened.
        random.site.pool.flatten_volume("r", 0).unwrap();
        random.site.pool.flatten_volume(random.name, 0).ok();
        random.site.idle();
        random.check(&states, seed);
    }
}
