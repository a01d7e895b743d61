//! Histories of many volumes: a batch records them in one file with one sync, and they are sorted
//! apart in the background.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use common::{KIB, Site, idle, write};
use hindcast_engine::cdp::{AnchorPolicy, CdpSettings, Compression, Encoding, Moment, Retention};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::disk::{Dir, MemDir, OpenMode, SyncPurpose};
use hindcast_engine::pool::PoolOptions;
use hindcast_engine::{ErrorKind, Volume};
use std::sync::Arc;

const SIZE: u64 = 64 * KIB;
const CHUNK: u64 = 4 * KIB;

/// Runs are sorted when there are so many; histories never have segments of their own at once.
fn options(waiting_runs: usize) -> PoolOptions {
    PoolOptions { own_histories: 0, waiting_runs, recompress_history: false, ..PoolOptions::default() }
}

/// Without anchors in between: moments are found by records alone.
fn settings(encoding: Encoding) -> CdpSettings {
    let (anchors, compression) = (AnchorPolicy::Never, Compression::None);
    CdpSettings { encoding, compression, anchors, ..CdpSettings::default() }
}

/// A pool whose volumes `v0`, `v1`, ... have histories, of all encodings in turn, and what each of
/// them was: (LSN, what its first chunk is filled with).
struct Many {
    site: Site,
    volumes: usize,
    moments: Vec<Vec<(u64, u8)>>,
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

    /// A batch that writes to all of them, two chunks each.
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

    fn at(&self, n: usize, lsn: u64) -> Result<Vec<u8>, hindcast_engine::Error> {
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
    // As after a kill; the check reads all runs.
    let mut many = many.reopen(options(64));
    assert_eq!(many.site.pool.stats().history_runs, 3 * 20);
    many.verify(many.all());
    // What was committed of a file stays as it is: another one is begun.
    many.batch(180);
    assert_eq!(many.site.pool.stats().shared_segments, 2);
    many.verify(many.all());
}

/// The others in a batch do not cost the ones with the most to record what they had before.
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
    // Behind what is sorted there are runs again, and they go to the same files.
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

/// Segments of its own, runs, segments of its own, runs: LSNs are in order, also once they are sorted.
#[test]
fn a_history_goes_back_and_forth() {
    let own = || PoolOptions { own_histories: 4, ..options(3) };
    let mut many = Many::new(3, own());
    many.batch(1);
    many = many.reopen(options(3));
    many.batch(30);
    many.batch(60);
    many = many.reopen(own());
    // Little to record: they go on as runs, since there are some.
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
    // And with a volume, whatever is kept.
    many = Many::new(2, options(64));
    many.batch(1);
    many.site.pool.delete_volume("v0", true).unwrap();
    many.site.pool.drain().unwrap();
    idle(&many.site.pool);
    assert_eq!(many.site.pool.stats().history_runs, 1);
    many.verify(1..2);
}

fn content_of(dir: &MemDir, name: &str) -> Vec<u8> {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; disk.len().unwrap() as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn flip(dir: &MemDir, name: &str, at: usize) {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let byte = content_of(dir, name)[at];
    disk.write_at(&[!byte], at as u64).unwrap();
}

/// A damaged record, or index, costs the history that it is of no more than it did in a segment of
/// its own, and no other history anything; sorting leaves it where it is.
#[test]
fn damage_of_a_shared_segment_stays_with_its_history() {
    for magic in [b"HCDR", b"HCDI"] {
        let mut many = Many::new(6, options(2));
        many.batch(1);
        many.batch(60);
        let name = many.files(true).remove(0);
        let bytes = content_of(&many.site.dir, &name);
        let places: Vec<usize> =
            (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(magic)).collect();
        // One record of the first chunk of `v1` (undo), or the index of a run.
        let at = places[if magic == b"HCDR" { 2 } else { 1 }];
        flip(&many.site.dir, &name, at + 20);
        let (site, found) = many.site.reopen_checked(options(2));
        let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [if magic == b"HCDR" { "cdp-record" } else { "cdp-index" }]);
        many = Many { site, ..many };
        many.verify([0, 2, 3, 4, 5].into_iter());
        let lost = |many: &Many| {
            let moments = many.moments[1].iter().chain([&(0, 0)]);
            let lost =
                moments.filter(|(lsn, _)| many.at(1, *lsn).is_err_and(|e| e.kind() == ErrorKind::Lost));
            lost.count()
        };
        let before = lost(&many);
        // With an index alone nothing is lost.
        assert!(magic == b"HCDR" || before == 0, "{before} moments are lost");
        many.batch(90);
        idle(&many.site.pool);
        assert_eq!(lost(&many), before);
        let waiting = many.site.pool.stats().history_runs;
        assert!(waiting <= 1, "{waiting} runs are left");
        many.verify([0, 2, 3, 4, 5].into_iter());
        let (lsn, byte) = *many.moments[1].last().unwrap();
        assert!(many.at(1, lsn).unwrap().iter().all(|b| *b == byte));
    }
}
