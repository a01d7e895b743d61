//! References in volumes with a history: what they replace stays in its slots, and every moment
//! shows what was written up to it (decision 66).

use super::*;
use hindcast_engine::cdp::{AnchorPolicy, Compression, Encoding, Moment, Retention};
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::ids::Lsn;
use hindcast_engine::testing::{content_of, flip};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The bytes of references after which an anchor is taken.
const DISTANCE: u64 = 256 * KIB;
const SIZE: u64 = 2 * MIB;
const CHUNK: u64 = 16 * KIB;

/// A volume `v` with a history, and its content after every record, chunk by chunk.
struct History {
    site: Site,
    now: Vec<u8>,
    moments: BTreeMap<Lsn, Vec<u8>>,
}

fn options() -> PoolOptions {
    PoolOptions { keep_distance: Some(DISTANCE), destage_threads: 1, ..PoolOptions::default() }
}

fn settings(encoding: Encoding) -> CdpSettings {
    // The interval is never reached, so all anchors are those of references.
    CdpSettings { encoding, anchors: AnchorPolicy::Interval(u64::MAX), ..CdpSettings::default() }
}

impl History {
    fn new(settings: CdpSettings) -> History {
        History::with(settings, options())
    }

    fn with(settings: CdpSettings, options: PoolOptions) -> History {
        History::of(Site::builder(64).options(options).build(), settings)
    }

    fn of(site: Site, settings: CdpSettings) -> History {
        enable(&site.pool);
        drop(volume(&site, "v", SIZE, CHUNK));
        site.pool.set_cdp("v", Some(settings)).unwrap();
        History { site, now: vec![0; (SIZE / CHUNK) as usize], moments: BTreeMap::new() }
    }

    fn volume(&self) -> Arc<Volume> {
        self.site.open("v")
    }

    fn put(&mut self, chunk: u64, count: u64, byte: u8) {
        let v = self.volume();
        // Destage may have had no time to lend slots.
        self.site.pool.destage_step().unwrap();
        refer(&self.site.pool, &v, chunk * CHUNK, byte, count * CHUNK);
        self.note(chunk, count, byte);
    }

    fn note(&mut self, chunk: u64, count: u64, byte: u8) {
        self.now[chunk as usize..(chunk + count) as usize].fill(byte);
        self.moments.insert(self.site.lsn(), self.now.clone());
    }

    fn discard(&mut self, chunk: u64, count: u64) {
        self.volume().discard(chunk * CHUNK, count * CHUNK, false).unwrap();
        self.note(chunk, count, 0);
    }

    /// Writes the whole volume `rounds` times, each time with other content.
    fn rewrite(&mut self, rounds: std::ops::Range<u8>) {
        for round in rounds {
            for chunk in (0..SIZE / CHUNK).step_by(4) {
                self.put(chunk, 4, 1 + round * 32 + (chunk / 4) as u8);
            }
        }
    }

    fn verify(&self) {
        let pool = &self.site.pool;
        let begins = pool.cdp("v").unwrap().from.unwrap().lsn;
        for (lsn, expected) in self.moments.range(begins..) {
            let moment = pool.open_moment("v", &Moment::Lsn(*lsn)).unwrap();
            let found = read(&moment, 0, SIZE);
            for (chunk, byte) in (0..).zip(expected) {
                let part = &found[chunk * CHUNK as usize..(chunk + 1) * CHUNK as usize];
                assert!(part.iter().all(|b| b == byte), "LSN {lsn}: chunk {chunk}: {} not {byte}", part[0]);
            }
        }
    }

    fn kept(&self) -> u64 {
        self.site.pool.cdp("v").unwrap().kept
    }

    /// Checks that the history needs about as many bytes as its limit, once it has been full.
    /// Returns whether it has been.
    fn keeps_about(&self, limit: u64, was_full: bool) -> bool {
        let info = self.site.pool.cdp("v").unwrap();
        let held = info.kept + info.stored;
        assert!(held <= limit * 7 / 4, "{held} bytes are held: {info:?}");
        assert!(!was_full || held >= limit / 2, "only {held} bytes are held: {info:?}");
        was_full || held >= limit * 3 / 4
    }

    fn reopen(self) -> History {
        let History { site, now, moments } = self;
        History { site: site.reopen_with(options()), now, moments }
    }
}

/// Nothing is copied: the log has headers only, and all moments are there.
#[test]
fn what_references_replace_is_kept() {
    for encoding in [Encoding::Parity, Encoding::Undo] {
        let mut h = History::new(settings(encoding));
        h.rewrite(0..3);
        h.verify();
        h.site.idle();
        let info = h.site.pool.cdp("v").unwrap();
        // The first round found chunks without slots, but for the first.
        assert!(info.kept >= 2 * SIZE, "{info:?}");
        assert!(info.payload == 0 && info.stored < SIZE, "{info:?}");
        assert!(info.anchors >= 3 * SIZE / DISTANCE, "{info:?}");
        h.verify();
        let h = h.reopen();
        h.verify();
        let dir = h.site.dir.clone();
        h.site.pool.close().unwrap();
        drop(h);
        assert_clean(dir);
    }
}

/// A chunk is written again before the next anchor, in part or as a whole. Those records have
/// payloads.
#[test]
fn parts_and_repeated_writes_have_payloads() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        let mut h = History::new(settings(encoding));
        for round in 0..4u8 {
            h.put(0, 4, 10 + round);
            h.put(2, 8, 20 + round);
            h.put(2, 8, 40 + round);
            h.site.idle();
            let v = h.volume();
            // Inline, over what a reference of the same batch wrote.
            h.put(16, 4, 60 + round);
            write(&v, 17 * CHUNK, 70 + round, CHUNK);
            h.note(17, 1, 70 + round);
            h.put(64, 8, 80 + round);
            h.discard(66, 3);
            h.put(65, 4, 90 + round);
            h.verify();
        }
        h.site.idle();
        h.verify();
        assert_eq!(h.kept() > 0, encoding != Encoding::Redo);
        h.reopen().verify();
    }
}

/// A snapshot whose place in the history has expired keeps content too, but leads to no moment.
#[test]
fn only_anchors_of_the_history_keep_for_it() {
    let retention = Retention { time: None, bytes: Some(2 * MIB) };
    let compression = Compression::None;
    let mut h = History::new(CdpSettings { compression, retention, ..settings(Encoding::Parity) });
    h.site.snap("v", "s");
    h.site.idle();
    let v = h.volume();
    for n in 0..6 * MIB / (8 * KIB) {
        write(&v, (64 + n % 64) * CHUNK, n as u8, 8 * KIB);
        h.site.pool.destage_step().unwrap();
    }
    h.site.idle();
    assert_eq!(h.site.pool.cdp("v").unwrap().anchors, 0);
    h.moments.clear();
    let (before, content) = (h.site.lsn(), read(&v, 0, SIZE));
    h.put(0, 4, 2);
    h.site.idle();
    assert_eq!(h.kept(), 0);
    assert!(read(&h.site.moment("v", before), 0, SIZE) == content);
}

/// Histories without anchors copy what is replaced.
#[test]
fn nothing_is_kept_without_anchors() {
    let mut h = History::new(CdpSettings { anchors: AnchorPolicy::Never, ..settings(Encoding::Parity) });
    h.rewrite(0..2);
    h.site.idle();
    assert!(h.kept() <= DISTANCE, "only behind the anchor with which the history begins");
    h.verify();
}

/// A pool that keeps nothing writes volumes with a history through the journal.
#[test]
fn a_history_uses_the_journal_if_nothing_is_kept() {
    let site = Site::builder(64).options(PoolOptions { keep_distance: None, ..options() }).build();
    enable(&site.pool);
    let v = volume(&site, "v", 4 * MIB, 16 * KIB);
    refer(&site.pool, &v, 0, 1, MIB);
    site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
    inline(&site.pool, &v, 0, 2, MIB);
    site.idle();
    assert_bytes(&v, 0, 2, MIB);
    site.pool.set_cdp("v", None).unwrap();
    refer(&site.pool, &v, 0, 3, MIB);
}

/// What is kept counts for the limit in bytes, and expires with its moments.
#[test]
fn what_is_kept_expires() {
    let retention = Retention { time: None, bytes: Some(3 * MIB) };
    let mut h = History::new(CdpSettings { retention, ..settings(Encoding::Parity) });
    h.rewrite(0..6);
    h.site.idle();
    let info = h.site.pool.cdp("v").unwrap();
    assert!(info.kept + info.stored <= 4 * MIB && info.kept > MIB, "{info:?}");
    let used = h.site.pool.info().used;
    assert!(used <= SIZE + 6 * MIB, "{used} bytes are in use");
    assert!(h.moments.range(info.from.unwrap().lsn..).count() > 16);
    h.verify();
    let h = h.reopen();
    h.verify();
    h.site.pool.delete_volume("v", true).unwrap();
    h.site.idle();
    assert_eq!(h.site.pool.info().used, 0);
}

/// A history with a limit keeps about as much as the limit, whatever mixes with references. Between
/// an anchor and the last record that needs it, no history can begin.
#[test]
fn a_limit_in_bytes_is_kept_beside_small_writes() {
    let limit = 2 * MIB;
    for anchors in [AnchorPolicy::Model, AnchorPolicy::Interval(u64::MAX), AnchorPolicy::Never] {
        let retention = Retention { time: None, bytes: Some(limit) };
        let compression = Compression::None;
        let mut h = History::with(
            CdpSettings { anchors, compression, retention, ..settings(Encoding::Parity) },
            PoolOptions { keep_distance: Some(2 * DISTANCE), ..options() },
        );
        let mut was_full = false;
        for round in 0..60u64 {
            let v = h.volume();
            for n in 0..32 + round % 24 {
                let chunk = 64 + (7 * n + round) % 64;
                write(&v, chunk * CHUNK, (round + 3 * n) as u8 | 1, CHUNK / 2);
            }
            h.put(4 * (round % 16), 4, 1 + round as u8);
            h.moments.clear();
            h.site.idle();
            was_full = h.keeps_about(limit, was_full);
        }
        assert!(was_full);
    }
}

/// Records without payloads are tiny. So a segment into which many runs are sorted is closed by
/// what its records need in slots.
#[test]
fn a_limit_in_bytes_is_kept_where_histories_share_segments() {
    let limit = 4 * MIB;
    let shared = PoolOptions { own_histories: 0, waiting_runs: 24, recompress_history: false, ..options() };
    let site = Site::builder(64).journal(32 * MIB, 8 * MIB).options(shared).build();
    let retention = Retention { time: None, bytes: Some(limit) };
    let mut h = History::of(site, CdpSettings { retention, ..settings(Encoding::Parity) });
    let mut was_full = false;
    for round in 0..60u64 {
        (0..3).for_each(|n| h.put(4 * ((3 * round + n) % 32), 4, 1 + round as u8));
        while h.site.pool.stats().destaged_lsn < h.site.lsn() {
            h.site.pool.destage_step().unwrap();
        }
        if round % 20 == 19 {
            h.site.idle();
        }
        (0..20).for_each(|_| _ = h.site.pool.maintain().unwrap());
        was_full = h.keeps_about(limit, was_full);
    }
    assert!(was_full);
    let begins = h.site.pool.cdp("v").unwrap().from.unwrap().lsn;
    h.moments.retain(|lsn, _| *lsn >= begins);
    h.verify();
}

/// A limit in time is kept, too, where nothing is written any more, also after a restart.
#[test]
fn a_limit_in_time_is_kept_by_an_idle_volume() {
    let second = 1_000_000_000;
    let retention = Retention { time: Some(80 * second), bytes: None };
    let mut h = History::new(CdpSettings { retention, ..settings(Encoding::Parity) });
    h.put(0, 4, 1);
    h.site.idle();
    assert!(h.kept() > 0);
    let h = h.reopen();
    for _ in 0..20 {
        h.site.clock.advance(10 * second);
        h.site.idle();
    }
    assert_eq!(h.kept(), 0);
}

/// A volume goes back to moments between records without payloads, and to the state before that.
#[test]
fn a_volume_goes_back_to_a_moment_of_references() {
    let mut h = History::new(settings(Encoding::Parity));
    h.rewrite(0..2);
    let (lsn, then) = h.moments.iter().nth(20).map(|(lsn, then)| (*lsn, then.clone())).unwrap();
    h.site.pool.recover_volume("v", &Moment::Lsn(lsn), "back").unwrap();
    h.rewrite(2..4);
    h.site.idle();
    let back = h.site.open("back");
    for (chunk, byte) in (0..).zip(&then) {
        assert_bytes(&back, chunk * CHUNK, *byte, CHUNK);
    }
    h.verify();
}

/// A moment is opened and read before its references are destaged, and stays right while destage
/// writes parts over their slots, and after that.
#[test]
fn a_moment_of_references_opens_before_they_are_destaged() {
    let mut h = History::new(settings(Encoding::Parity));
    h.rewrite(0..1);
    h.site.idle();
    let waits = h.site.pool.stats().history_waits;
    let v = h.volume();
    let referred = |h: &History, chunk: u64, count: u64, byte| {
        refer(&h.site.pool, &v, chunk * CHUNK, byte, count * CHUNK);
    };
    referred(&h, 0, 8, 201);
    h.note(0, 8, 201);
    referred(&h, 4, 8, 202);
    h.note(4, 8, 202);
    let lsn = h.site.lsn();
    let held = h.site.moment("v", lsn);
    // Parts of these chunks, in the same batch.
    write(&v, 4 * CHUNK + 4 * KIB, 203, KIB);
    write(&v, 9 * CHUNK, 204, 4 * KIB);
    let expected = h.now.clone();
    let check = |held: &Volume| {
        for (chunk, byte) in (0..).zip(&expected) {
            assert_bytes(held, chunk * CHUNK, *byte, CHUNK);
        }
    };
    assert!(h.site.pool.stats().settled_lsn < lsn);
    check(&held);
    h.verify();
    assert_eq!(h.site.pool.stats().history_waits, waits, "nothing waited for destage");
    while h.site.pool.stats().destaged_lsn < h.site.lsn() {
        h.site.pool.destage_step().unwrap();
        check(&held);
    }
    check(&held);
    h.verify();
}

/// While a batch is moved to its place, moments of before are read from the anchor with which the
/// batch begins. No other way leads to a chunk if the records on both sides of the moment have no
/// payload.
#[test]
fn moments_between_anchors_are_read_while_a_batch_is_applied() {
    type Hook = Box<dyn FnOnce() + Send>;
    let hook: Arc<Mutex<Option<Hook>>> = Arc::default();
    let taken = hook.clone();
    let site = Site::builder(64).options(options()).over(move |files| {
        FaultyDir::new(files, move |op: &Op<'_>| {
            let is_apply = op.act == Act::Sync(SyncPurpose::Apply);
            let hook = is_apply.then(|| taken.lock().unwrap().take()).flatten();
            hook.into_iter().for_each(|hook| hook());
            None
        })
    });
    let every = AnchorPolicy::Interval(1_000_000_000);
    let mut h = History::of(site, CdpSettings { anchors: every, ..settings(Encoding::Parity) });
    h.put(0, 4, 1);
    h.site.idle();
    let held = h.site.moment("v", h.site.lsn());
    // Nothing but the anchor comes before what the batch writes to the volume.
    h.site.clock.advance(2_000_000_000);
    h.site.pool.maintain().unwrap();
    let v = h.volume();
    [0, 32].into_iter().for_each(|chunk| refer(&h.site.pool, &v, chunk * CHUNK, 3, 4 * CHUNK));
    write(&v, 33 * CHUNK, 4, 512);
    let (found, seen) = std::sync::mpsc::channel();
    *hook.lock().unwrap() = Some(Box::new(move || {
        let read = std::thread::spawn(move || try_read(&held, 0, CHUNK));
        found.send(read.join().unwrap()).unwrap();
    }));
    h.site.idle();
    let found = seen.try_recv().expect("a batch was applied").unwrap();
    assert!(found.iter().all(|byte| *byte == 1));
}

/// A block of a reference's slot is damaged before its batch is recorded. Moments show what was
/// written, or an error, and never zeros.
#[test]
fn what_is_lost_before_it_is_recorded_is_never_shown_as_zeros() {
    for encoding in [Encoding::Parity, Encoding::Undo, Encoding::Redo] {
        let mut h = History::new(settings(encoding));
        h.put(0, 8, 1);
        h.put(0, 8, 2);
        h.put(0, 8, 7);
        let v = h.volume();
        write(&v, 5 * CHUNK, 8, 512);
        h.note(0, 0, 0);
        // All slots of the last reference.
        let image = content_of(&h.site.dir, "pv-0.img");
        let blocks = image.chunks(4096).enumerate().filter(|(_, block)| block.iter().all(|b| *b == 7));
        let places: Vec<u64> = blocks.map(|(n, _)| n as u64 * 4096).collect();
        assert_eq!(places.len() as u64, 8 * CHUNK / 4096);
        places.iter().for_each(|at| flip(&h.site.dir, "pv-0.img", at + 100, 1));
        h.site.idle();
        h.put(0, 4, 9);
        h.site.idle();
        let mut lost = 0;
        for (lsn, expected) in &h.moments {
            let moment = h.site.moment("v", *lsn);
            for chunk in (0..8).filter(|chunk| *chunk != 5) {
                match try_read(&moment, chunk * CHUNK, CHUNK) {
                    Ok(found) => assert!(
                        found.iter().all(|b| *b == expected[chunk as usize]),
                        "{encoding:?} {lsn} {chunk}"
                    ),
                    Err(kind) => {
                        assert!(
                            matches!(kind, ErrorKind::Lost | ErrorKind::Io | ErrorKind::Corrupt),
                            "{kind:?}"
                        );
                        lost += 1;
                    }
                }
            }
        }
        assert!(lost > 0, "{encoding:?}");
    }
}
