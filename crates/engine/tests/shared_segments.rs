//! Histories of many volumes. A batch records them in one file with one sync, and they are sorted
//! in the background.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir, OpenMode, SyncPurpose};
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{PoolOptions, Progress};
use hindcast_engine::testing::{KIB, MIB, Site, content_of, flip, idle, write};
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

const SIZE: u64 = 64 * KIB;
const CHUNK: u64 = 4 * KIB;

/// Options with which `waiting_runs` runs are sorted, and no history has segments of its own at
/// once.
fn options(waiting_runs: usize) -> PoolOptions {
    PoolOptions { own_histories: 0, waiting_runs, recompress_history: false, ..PoolOptions::default() }
}

/// Settings without anchors in between: moments are reconstructed by records alone.
fn settings(encoding: Encoding) -> CdpSettings {
    let (anchors, compression) = (AnchorPolicy::Never, Compression::None);
    CdpSettings { encoding, compression, anchors, ..CdpSettings::default() }
}

/// A pool whose volumes `v0`, `v1`, ... have histories, of all encodings in turn, and the moments
/// of each: (LSN, byte that fills its first chunk).
struct Many {
    site: Site,
    volumes: usize,
    moments: Vec<Vec<(Lsn, u8)>>,
}

impl Many {
    fn new(volumes: usize, options: PoolOptions) -> Many {
        let site = Site::new(64).reopen_with(options);
        for n in 0..volumes {
            drop(site.volume(&format!("v{n}"), SIZE, CHUNK));
            let encoding = [Encoding::Parity, Encoding::Undo, Encoding::Redo][n % 3];
            site.pool.set_cdp(&format!("v{n}"), Some(settings(encoding))).unwrap();
        }
        site.pool.drain().unwrap();
        Many { site, volumes, moments: vec![Vec::new(); volumes] }
    }

    fn open(&self, n: usize) -> Arc<Volume> {
        self.site.pool.open_volume(&format!("v{n}"), false).unwrap()
    }

    /// Makes a batch that writes two chunks of each volume.
    fn batch(&mut self, byte: u8) {
        for n in 0..self.volumes {
            let byte = byte.wrapping_add(n as u8).max(1);
            let volume = self.open(n);
            write(&volume, 0, byte, CHUNK);
            write(&volume, 5 * CHUNK, byte, 512);
            self.moments[n].push((self.site.pool.stats().sequenced_lsn, byte));
        }
        self.site.pool.drain().unwrap();
    }

    fn at(&self, n: usize, lsn: Lsn) -> Result<Vec<u8>, hindcast_engine::Error> {
        let view = self.site.pool.open_moment(&format!("v{n}"), &Moment::Lsn(lsn))?;
        let mut content = vec![0; CHUNK as usize];
        view.read(0, &mut content)?;
        Ok(content)
    }

    fn verify(&self, volumes: impl Iterator<Item = usize>) {
        for n in volumes {
            for (lsn, byte) in &self.moments[n] {
                let content = self.at(n, *lsn).unwrap_or_else(|e| panic!("v{n} at LSN {lsn}: {e:?}"));
                assert!(content.iter().all(|b| b == byte), "v{n} at LSN {lsn}: {}", content[0]);
            }
        }
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.volumes
    }

    fn syncs(&self, purpose: SyncPurpose) -> u64 {
        let at = SyncPurpose::ALL.iter().position(|p| *p == purpose).unwrap();
        self.site.pool.stats().syncs[at]
    }

    fn reopen(self, options: PoolOptions) -> Many {
        Many { site: self.site.reopen_with(options), ..self }
    }

    fn files(&self, shared: bool) -> Vec<String> {
        let names = self.site.dir.list().unwrap().into_iter();
        names.filter(|n| n.starts_with("cdp-") && n.starts_with("cdp-0-") == shared).collect()
    }
}

#[test]
fn a_batch_of_many_histories_is_one_sync() {
    let mut many = Many::new(20, options(64));
    many.batch(1);
    let before = many.syncs(SyncPurpose::CdpShared);
    many.batch(60);
    assert_eq!(many.syncs(SyncPurpose::CdpShared) - before, 1);
    many.batch(120);
    let stats = many.site.pool.stats();
    assert_eq!((stats.history_runs, stats.shared_segments), (3 * 20, 1));
    assert!(many.files(false).is_empty());
    many.verify(many.all());
    // The pool is opened as after a kill; the check reads all runs.
    let mut many = many.reopen(options(64));
    assert_eq!(many.site.pool.stats().history_runs, 3 * 20);
    many.verify(many.all());
    // The committed part of a file stays as it is, and another file is begun.
    many.batch(180);
    assert_eq!(many.site.pool.stats().shared_segments, 2);
    many.verify(many.all());
}

/// The histories with the most to record keep their own segments, whatever else is in the batch.
#[test]
fn the_largest_of_a_batch_have_segments_of_their_own() {
    let mut many = Many::new(10, PoolOptions { own_histories: 2, ..options(64) });
    let large: Vec<_> = [3, 7].into_iter().map(|n| many.open(n)).collect();
    large.iter().for_each(|volume| write(volume, 8 * CHUNK, 9, 4 * CHUNK));
    drop(large);
    many.batch(1);
    let own = many.files(false);
    assert_eq!((own.len(), many.site.pool.stats().history_runs), (2, 8), "{own:?}");
    many.verify(many.all());
    let many = many.reopen(options(64));
    many.verify(many.all());
}

#[test]
fn runs_are_sorted_apart_when_there_are_many() {
    let mut many = Many::new(7, options(4));
    for byte in [1, 30, 60] {
        many.batch(byte);
    }
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs_sorted, 0, "three are not four");
    many.batch(90);
    idle(&many.site.pool);
    let stats = many.site.pool.stats();
    assert_eq!((stats.history_runs_sorted, stats.history_runs), (4 * 7, 0));
    assert!(many.files(true).is_empty() && many.files(false).len() == 7, "{:?}", many.files(false));
    many.verify(many.all());
    // Behind the sorted records there are runs again, and they are sorted into the same files.
    for byte in [120, 140, 160, 180, 200] {
        many.batch(byte);
    }
    many.verify(many.all());
    let many = many.reopen(options(4));
    many.verify(many.all());
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs, 0);
    assert_eq!(many.files(false).len(), 7);
    many.verify(many.all());
    many.reopen(options(4)).verify(0..7);
}

/// A history uses segments of its own, then runs, then both again. LSNs are in order, also once the
/// runs are sorted.
#[test]
fn a_history_goes_back_and_forth() {
    let own = || PoolOptions { own_histories: 4, ..options(3) };
    let mut many = Many::new(3, own());
    many.batch(1);
    many = many.reopen(options(3));
    many.batch(30);
    many.batch(60);
    many = many.reopen(own());
    // There is little to record: histories that have runs continue with runs.
    many.batch(90);
    assert_eq!(many.site.pool.stats().history_runs, 9);
    let volume = many.open(1);
    (0..8).for_each(|n| write(&volume, 0, 100 + n, SIZE));
    many.moments[1].push((many.site.pool.stats().sequenced_lsn, 107));
    drop(volume);
    many.batch(120);
    assert_eq!(many.site.pool.stats().history_runs, 9 + 2, "one had much to record");
    many.verify(many.all());
    many = many.reopen(options(3));
    many.verify(many.all());
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs, 0);
    many.verify(many.all());
    many.batch(150);
    many = many.reopen(own());
    many.verify(many.all());
}

/// A shared segment stays for as long as one of its histories needs it, and no longer.
#[test]
fn some_are_forgotten_while_others_stay() {
    let mut many = Many::new(6, options(64));
    for byte in [1, 30, 60] {
        many.batch(byte);
    }
    let retention = Retention { time: Some(1), bytes: None };
    let forget = |many: &Many, n: usize| {
        let name = format!("v{n}");
        let settings = settings([Encoding::Parity, Encoding::Undo, Encoding::Redo][n % 3]);
        many.site.pool.set_cdp(&name, Some(CdpSettings { retention, ..settings })).unwrap();
        many.site.pool.set_cdp(&name, None).unwrap();
        many.site.pool.drain().unwrap();
        many.site.clock.advance(1_000_000_000);
        idle(&many.site.pool);
    };
    for n in 0..5 {
        forget(&many, n);
        assert_eq!(many.site.pool.stats().history_runs, 3 * (5 - n as u64));
        assert_eq!(many.at(n, many.moments[n][0].0).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(many.files(true).len(), 1);
        many.verify(5..6);
    }
    many = many.reopen(options(64));
    many.verify(5..6);
    forget(&many, 5);
    assert!(many.files(true).is_empty() && many.files(false).is_empty());
    // A shared segment is also removed with a deleted volume, whatever the retention.
    many = Many::new(2, options(64));
    many.batch(1);
    many.site.pool.delete_volume("v0", true).unwrap();
    many.site.pool.drain().unwrap();
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs, 1);
    many.verify(1..2);
}

/// Records from a short time expire even if no record follows them. Many histories lose their
/// beginnings with one commit.
#[test]
fn quiet_histories_lose_their_beginnings() {
    const SECOND: u64 = 1_000_000_000;
    const KEPT: u64 = 6400 * SECOND;
    let mut many = Many::new(30, options(64));
    for n in 0..30 {
        let encoding = [Encoding::Parity, Encoding::Undo, Encoding::Redo][n % 3];
        let retention = Retention { time: Some(KEPT), bytes: None };
        let settings = CdpSettings { retention, anchors: AnchorPolicy::Every(4), ..settings(encoding) };
        many.site.pool.set_cdp(&format!("v{n}"), Some(settings)).unwrap();
    }
    for byte in 1..8 {
        many.batch(byte * 20);
        many.site.clock.advance(SECOND);
    }
    idle(&many.site.pool);
    many.verify(many.all());
    many.site.clock.advance(KEPT);
    idle(&many.site.pool);
    many.verify(many.all());
    let before = many.site.pool.stats().catalog_commits;
    many.site.clock.advance(KEPT / 64);
    idle(&many.site.pool);
    let commits = many.site.pool.stats().catalog_commits - before;
    assert!(commits < 30, "{commits} commits");
    for n in many.all() {
        assert_eq!(many.at(n, many.moments[n][0].0).unwrap_err().kind(), ErrorKind::NotFound, "v{n}");
        let (lsn, byte) = *many.moments[n].last().unwrap();
        assert!(many.at(n, lsn).unwrap().iter().all(|b| *b == byte), "v{n}");
    }
    drop(many.reopen(options(64)));
}

/// Steps that sort take turns with other steps, and all of them are taken when there is nothing
/// else to do.
#[test]
fn background_work_ends_when_all_is_sorted() {
    let mut many = Many::new(100, options(2));
    many.batch(1);
    many.batch(60);
    let mut worked = 0;
    while many.site.pool.maintain().unwrap() == Progress::Worked {
        worked += 1;
    }
    assert!(worked >= 4, "{worked} steps");
    assert_eq!(many.site.pool.stats().history_runs, 0);
}

/// Returns where items with this magic begin in a file.
fn places(dir: &MemDir, name: &str, magic: &[u8]) -> Vec<u64> {
    let bytes = content_of(dir, name);
    (0..bytes.len() as u64).step_by(8).filter(|at| bytes[*at as usize..].starts_with(magic)).collect()
}

impl Many {
    /// Opens the pool again, as after a kill. The offline check finds exactly these codes.
    fn reopen_damaged(self, options: PoolOptions, codes: &[&str]) -> Many {
        let (site, found) = self.site.reopen_checked(options);
        let found: Vec<_> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(found, codes);
        Many { site, ..self }
    }

    /// Returns the moments of a volume that are lost.
    fn lost(&self, n: usize) -> Vec<usize> {
        let lost = |(_, (lsn, _)): &(usize, &(Lsn, u8))| {
            self.at(n, *lsn).is_err_and(|error| error.kind() == ErrorKind::Lost)
        };
        self.moments[n].iter().enumerate().filter(lost).map(|(at, _)| at).collect()
    }

    /// Verifies all volumes but `v1`.
    fn verify_others(&self) {
        self.verify(self.all().filter(|n| *n != 1));
    }
}

/// A damaged record costs its history what it would cost in a segment of its own, and costs no
/// other history anything. Sorting leaves the run where it is, and continues with the others.
#[test]
fn a_damaged_record_stays_with_its_history() {
    let mut many = Many::new(6, options(1));
    many.batch(1);
    many.batch(60);
    let name = many.files(true).remove(0);
    // There are two records per run and six runs per batch. The damaged record is in the second
    // batch: it is that of the first chunk of `v1`, and keeps the old content.
    let place = places(&many.site.dir, &name, b"HCDR")[2 * 6 + 2];
    flip(&many.site.dir, &name, place + 20, 0xFF);
    many = many.reopen_damaged(options(1), &["cdp-record"]);
    many.verify_others();
    assert_eq!(many.lost(1), [0]);
    many.batch(90);
    idle(&many.site.pool);
    for byte in [120, 150] {
        many.batch(byte);
        idle(&many.site.pool);
        assert_eq!(many.lost(1), [0]);
        many.verify_others();
    }
    // This run is the only one that is not sorted, and nothing else waits for it.
    let stats = many.site.pool.stats();
    assert_eq!((stats.history_runs, stats.shared_segments), (1, 1));
    many = many.reopen_damaged(options(1), &["cdp-record"]);
    idle(&many.site.pool);
    assert_eq!((many.lost(1), many.site.pool.stats().history_runs), (vec![0], 1));
    many.verify_others();
    // The run is removed with its history.
    many.site.pool.delete_volume("v1", true).unwrap();
    many.site.pool.drain().unwrap();
    idle(&many.site.pool);
    assert!(many.files(true).is_empty());
}

/// A damaged index costs nothing: the records have the same information.
#[test]
fn a_damaged_index_of_a_run_costs_nothing() {
    let mut many = Many::new(6, options(2));
    many.batch(1);
    let name = many.files(true).remove(0);
    for place in places(&many.site.dir, &name, b"HCDI") {
        flip(&many.site.dir, &name, place + 20, 0xFF);
    }
    many = many.reopen_damaged(options(2), &["cdp-index"; 6]);
    many.verify(many.all());
    many.batch(60);
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs, 0);
    many.verify(many.all());
    many.reopen(options(2)).verify(0..6);
}

/// Runs behind a damaged open segment are sorted into another segment, because they would be lost
/// with the damaged one.
#[test]
fn a_damaged_segment_takes_no_runs_with_it() {
    let mut many = Many::new(3, PoolOptions { own_histories: 4, ..options(1) });
    many.batch(1);
    many.batch(30);
    // Records behind the anchor do not need what lies before it.
    many.site.snap("v1", "s");
    many = many.reopen(options(1));
    many.batch(60);
    many.batch(90);
    let mut own = many.files(false);
    own.sort();
    // The damage is in a record and in the index of its group.
    for magic in [b"HCDR", b"HCDI"] {
        let place = places(&many.site.dir, &own[1], magic)[0];
        flip(&many.site.dir, &own[1], place + 20, 0xFF);
    }
    many = many.reopen_damaged(options(1), &["cdp-index"]);
    for byte in [120, 150] {
        assert!(!many.lost(1).iter().any(|at| *at > 1), "{:?}", many.lost(1));
        idle(&many.site.pool);
        assert_eq!(many.site.pool.stats().history_runs, 0);
        many.verify_others();
        many.batch(byte);
    }
    many = many.reopen_damaged(PoolOptions { own_histories: 4, ..options(1) }, &["cdp-index"]);
    idle(&many.site.pool);
    many.batch(180);
    assert!(!many.lost(1).iter().any(|at| *at > 1), "{:?}", many.lost(1));
    many.verify_others();
}

/// A shared segment is cut short: its rest is found, the other part is lost, and nothing else is
/// lost.
#[test]
fn a_shared_segment_is_cut_short_or_gone() {
    for cut in [true, false] {
        let mut many = Many::new(3, options(64));
        many.batch(1);
        many.batch(60);
        let name = many.files(true).remove(0);
        if cut {
            let disk = many.site.dir.open(&name, OpenMode::Existing).unwrap();
            let second = places(&many.site.dir, &name, b"HCDR")[2 * 3];
            disk.set_len(second).unwrap();
        } else {
            many.site.dir.remove(&name).unwrap();
        }
        many = many.reopen_damaged(options(64), &["cdp-segment"]);
        // `undo` needs the record that replaced a moment. The content in place is there.
        assert!(many.lost(1).contains(&0));
        let now = many.moments[1].len() - 1;
        assert!(!many.lost(1).contains(&now), "{:?}", many.lost(1));
        many.batch(90);
        many.batch(120);
        idle(&many.site.pool);
        let (lsn, byte) = *many.moments[1].last().unwrap();
        assert!(many.at(1, lsn).unwrap().iter().all(|b| *b == byte));
        // `redo` leads forward only.
        many.verify_recent(0..2, 2);
    }
}

impl Many {
    /// Verifies the last moments of some volumes.
    fn verify_recent(&self, volumes: std::ops::Range<usize>, count: usize) {
        for n in volumes {
            let from = self.moments[n].len() - count;
            for (lsn, byte) in &self.moments[n][from..] {
                let content = self.at(n, *lsn).unwrap();
                assert!(content.iter().all(|b| b == byte), "v{n} at LSN {lsn}");
            }
        }
    }
}

/// With a limit in bytes, and runs and segments in any order, the newest history is kept, and most
/// of the allowed bytes are used.
#[test]
fn a_limit_in_bytes_keeps_what_is_newest() {
    const LIMIT: u64 = MIB;
    let mut many = Many::new(2, options(8));
    for n in 0..2 {
        // These encodings lead backward, so history can begin anywhere.
        let encoding = [Encoding::Parity, Encoding::Undo][n];
        let retention = Retention { time: None, bytes: Some(LIMIT) };
        let settings = CdpSettings { retention, ..settings(encoding) };
        many.site.pool.set_cdp(&format!("v{n}"), Some(settings)).unwrap();
    }
    let stored = |many: &Many| many.site.pool.cdp("v1").unwrap().stored;
    for n in 0..400u64 {
        many.batch((n % 251) as u8);
        // The segment that is appended to stays open, and runs come behind it.
        if n % 50 < 9 {
            idle(&many.site.pool);
            assert!(stored(&many) < LIMIT + 256 * KIB, "{} bytes after {n}", stored(&many));
        }
    }
    idle(&many.site.pool);
    let (runs, stored) = (many.site.pool.stats().history_runs_sorted, stored(&many));
    assert!(runs > 100, "{runs} runs");
    assert!(stored > LIMIT - 400 * KIB && stored <= LIMIT, "{stored} bytes");
    // A moment takes less than 6 KiB.
    many.verify_recent(0..2, ((LIMIT - 400 * KIB) / (6 * KIB)) as usize);
    many = many.reopen(options(8));
    many.verify_recent(0..2, 20);
}

/// If no history has many runs, and shared segments have too many bytes, the oldest one is emptied.
/// That is so even behind one that can't be emptied.
#[test]
fn shared_segments_are_bounded() {
    let small = || PoolOptions { shared_segment_bytes: 256 * KIB, ..options(1000) };
    let mut many = Many::new(10, small());
    many.batch(1);
    let name = many.files(true).remove(0);
    flip(&many.site.dir, &name, places(&many.site.dir, &name, b"HCDR")[4] + 20, 0xFF);
    many = many.reopen_damaged(small(), &["cdp-record"]);
    for n in 0..60 {
        many.batch(n);
        idle(&many.site.pool);
        let stats = many.site.pool.stats();
        // The segment that is appended to, and the damaged one, are in addition.
        assert!(stats.shared_segment_bytes < MIB + 128 * KIB, "{} bytes", stats.shared_segment_bytes);
    }
    let stats = many.site.pool.stats();
    assert!(stats.history_runs_sorted > 100, "{} runs", stats.history_runs_sorted);
    assert!(many.files(true).contains(&name));
    many.verify(many.all().filter(|n| *n != 2));
}

/// A history with too many waiting runs continues with segments of its own.
#[test]
fn runs_of_a_history_are_bounded() {
    let mut many = Many::new(3, options(4));
    for n in 0..12 {
        // There is no background work in between.
        many.batch(20 * n + 1);
    }
    assert_eq!(many.site.pool.stats().history_runs, 3 * 2 * 4);
    assert_eq!(many.files(false).len(), 3);
    many.verify(many.all());
    many = many.reopen(options(4));
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs, 0);
    many.verify(many.all());
}
