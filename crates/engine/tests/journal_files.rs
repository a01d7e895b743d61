//! Damage of the journal's files: damage of what is not needed any more keeps no pool closed, and
//! damage of what is needed is detected.
#![allow(clippy::unwrap_used)] // a test may panic

use bytes::Bytes;
use hindcast_engine::check::{CheckOptions, CheckReport, check};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, Disk, MemDir, OpenMode};
use hindcast_engine::pool::{Health, Placement, Pool, PoolConfig, PoolOptions, code};
use hindcast_engine::testing::*;
use hindcast_engine::{Error, ErrorKind, Volume};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const SEGMENT: u64 = 256 * KIB;
const BLOCK: u64 = 4096;

/// The faults of the directory.
#[derive(Default)]
struct Faults {
    /// A range of a file that can't be read.
    unreadable: Option<(String, Range<u64>)>,
    /// Files with this text in their names get no space.
    no_room: Option<&'static str>,
}

/// A directory in memory with files that can't be read, or get no space, on demand.
#[derive(Clone, Default)]
struct Faulty {
    files: MemDir,
    faults: Arc<Mutex<Faults>>,
}

impl Faults {
    fn of(&mut self, op: &Op<'_>) -> Option<io::Error> {
        match (&op.act, &mut self.unreadable) {
            (Act::Read(read), Some((name, range)))
                if *name == op.name && range.start < read.end && read.start < range.end =>
            {
                return Some(io::Error::from_raw_os_error(5));
            }
            // Heals blocks that are written, from the first one that could not be read.
            (Act::Write(written), Some((name, range)))
                if *name == op.name && written.start <= range.start.next_multiple_of(BLOCK) =>
            {
                range.start = written.end.next_multiple_of(BLOCK).clamp(range.start, range.end);
            }
            (Act::Allocate(_), _) if self.no_room.is_some_and(|part| op.name.contains(part)) => {
                return Some(io::ErrorKind::StorageFull.into());
            }
            _ => {}
        }
        None
    }
}

impl Faulty {
    /// Returns the directory as a pool sees it.
    fn dir(&self) -> Arc<dyn Dir> {
        let faults = self.faults.clone();
        FaultyDir::new(self.files.clone(), move |op: &Op<'_>| faults.lock().unwrap().of(op))
    }

    /// Makes an independent copy of all files.
    fn copied(&self) -> Faulty {
        Faulty { files: self.files.copy(), ..Faulty::default() }
    }

    fn content(&self, name: &str) -> Vec<u8> {
        content_of(&self.files, name)
    }

    fn file(&self, name: &str) -> Arc<dyn Disk> {
        self.files.open(name, OpenMode::Existing).unwrap()
    }

    fn journal_files(&self) -> Vec<String> {
        self.files.list().unwrap().into_iter().filter(|n| n.starts_with("journal-0")).collect()
    }

    fn flip(&self, name: &str, at: u64) {
        flip(&self.files, name, at, 4);
    }

    fn open(&self) -> Result<Arc<Pool>, Error> {
        self.open_with(PoolOptions::default())
    }

    fn open_with(&self, options: PoolOptions) -> Result<Arc<Pool>, Error> {
        Pool::open(self.dir(), world(9), PoolOptions { destage_threads: 1, ..options })
    }

    fn check(&self, repair: bool) -> CheckReport {
        check(self.dir(), &CheckOptions { repair, ..CheckOptions::default() }, &mut |_, _| {}).unwrap()
    }
}

fn create(dir: &Faulty) -> (Arc<Pool>, Arc<Volume>) {
    let config = PoolConfig {
        extent_size: 64 * KIB,
        journal_size: 8 * SEGMENT,
        segment_size: SEGMENT,
        atomic_unit: 4096,
    };
    let pv = pv("pv-0.img", 16 * MIB);
    Pool::create(dir.dir(), &world(1), &config, Placement::Anywhere, &[pv]).unwrap();
    let pool = dir.open().unwrap();
    pool.create_volume(&new_volume("v", MIB, 4096)).unwrap();
    let volume = pool.open_volume("v", false).unwrap();
    (pool, volume)
}

fn write_fua(volume: &Volume, offset: u64, byte: u8, len: u64) {
    let mut ops = [WriteOp::new(offset, Bytes::from(vec![byte; len as usize]))];
    volume.write(&mut ops, true);
    let [op] = ops;
    op.result.unwrap();
}

/// Makes a pool after a kill. It has 20 writes in place, and behind them 8 durable ones that the
/// catalog does not know, in two segments, with a snapshot among them. It also has free files.
/// Block `n` of the volume holds `n + 1`.
fn killed() -> Faulty {
    let dir = Faulty::default();
    let (pool, volume) = create(&dir);
    while dir.journal_files().len() < 4 {
        pool.maintain().unwrap();
    }
    for n in 0..20 {
        write_fua(&volume, n * BLOCK, n as u8 + 1, BLOCK);
    }
    pool.drain().unwrap();
    for n in 20..24 {
        write_fua(&volume, n * BLOCK, n as u8 + 1, BLOCK);
    }
    // This write reaches the next segment.
    write_fua(&volume, 128 * KIB, 99, 128 * KIB);
    pool.create_snapshots(&[("v", "s")]).unwrap();
    for n in 24..28 {
        write_fua(&volume, n * BLOCK, n as u8 + 1, BLOCK);
    }
    drop((pool, volume));
    dir
}

/// Makes a pool after a clean stop, with writes that are only in the journal.
fn closed() -> Faulty {
    let dir = killed();
    let pool = dir.open().unwrap();
    pool.close().unwrap();
    drop(pool);
    dir
}

fn assert_content(pool: &Arc<Pool>, what: &str) {
    let mut all = vec![0; MIB as usize];
    pool.open_volume("v", true).unwrap().read(0, &mut all).unwrap();
    for n in 0..28 {
        assert_eq!(all[n * BLOCK as usize], n as u8 + 1, "{what}: block {n}");
    }
    assert_eq!(all[130 * KIB as usize], 99, "{what}");
    assert_eq!(pool.snapshots("v").unwrap().len(), 1, "{what}");
}

/// Checks that the content is that after some LSN: no block without all the blocks before it.
fn assert_prefix(pool: &Arc<Pool>, what: &str) {
    let mut all = vec![0; MIB as usize];
    pool.open_volume("v", true).unwrap().read(0, &mut all).unwrap();
    let there: Vec<bool> = (0..28).map(|n| all[n * BLOCK as usize] == n as u8 + 1).collect();
    assert!(there.is_sorted_by(|a, b| a >= b), "{what}: {there:?}");
    assert!(there[..20].iter().all(|b| *b), "{what}: what is in place is there: {there:?}");
}

/// Returns the number of bytes of the first journal file before the first record that is not in
/// place.
fn in_place(dir: &Faulty) -> u64 {
    let disk = dir.file("journal-00000");
    let mut bytes = vec![0; SEGMENT as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    // The first write that is not in place is a block of 21s behind a header.
    let at = bytes.windows(64).position(|w| w.iter().all(|b| *b == 21)).unwrap() as u64;
    at - 80
}

/// A flipped bit in a record that is in place, or in the header of its segment, once kept the pool
/// closed.
#[test]
fn damage_of_what_is_in_place_matters_to_nobody() {
    let good = killed();
    let end = in_place(&good);
    assert!(end > 20 * BLOCK);
    for at in (0..end).step_by(509).chain([4, 40, BLOCK + 5, end - 1]) {
        let dir = good.copied();
        dir.flip("journal-00000", at);
        let report = dir.check(false);
        assert!(report.is_clean(), "byte {at}: {:?}", report.findings);
        let pool = dir.open().unwrap_or_else(|e| panic!("byte {at}: {e}"));
        assert_content(&pool, &format!("byte {at}"));
    }
    // All of it is overwritten with zeros.
    good.file("journal-00000").write_at(&vec![0; (end / BLOCK * BLOCK) as usize], 0).unwrap();
    assert_content(&good.open().unwrap(), "zeros");
}

#[test]
fn damage_of_what_is_needed_is_named_and_refused() {
    let good = killed();
    let end = in_place(&good);
    for at in [end + 1, end + 100] {
        let dir = good.copied();
        dir.flip("journal-00000", at);
        let error = dir.open().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        for part in ["breaks after LSN", " of journal-00000", " are lost", "later records still exist"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!dir.check(true).is_clean());
        assert!(dir.open().is_err(), "check --repair does not paper over it");
    }
}

/// The header of a segment with needed records is derived from the records.
#[test]
fn a_damaged_header_of_a_segment_costs_nothing() {
    let good = killed();
    for name in good.journal_files() {
        for at in [0, 13, 30, 40, 50] {
            let dir = good.copied();
            dir.flip(&name, at);
            assert_content(&dir.open().unwrap(), &format!("{name} byte {at}"));
            // The pool also opens again and again.
            assert_content(&dir.open().unwrap(), &format!("{name} byte {at}, again"));
        }
        let dir = good.copied();
        dir.faults.lock().unwrap().unreadable = Some((name.clone(), 0..BLOCK));
        assert_content(&dir.open().unwrap(), &format!("{name}, unreadable header"));
    }
}

/// Every journal file is cut to several lengths or removed, after a kill and after a clean stop.
#[test]
fn a_file_that_was_cut_short_or_is_missing_is_noticed() {
    for (stop, good) in [("killed", killed()), ("closed", closed())] {
        let files = good.journal_files();
        assert!(files.len() >= 3, "{files:?}");
        for name in &files {
            for cut in
                [Some(0), Some(1), Some(BLOCK), Some(BLOCK + 100), Some(60_000), Some(SEGMENT - 1), None]
            {
                let what = format!("{stop}, {name} cut to {cut:?}");
                let dir = good.copied();
                match cut {
                    Some(len) => dir.file(name).set_len(len).unwrap(),
                    None => dir.files.remove(name).unwrap(),
                }
                for repair in [false, true] {
                    let report = dir.check(repair);
                    let found = report.findings.iter().find(|f| f.code == "journal");
                    assert!(found.is_some_and(|f| f.detail.contains(name)), "{what}: {:?}", report.findings);
                }
                let error = dir.open().err().unwrap_or_else(|| panic!("{what}: it opens"));
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}");
                assert!(error.to_string().contains(name), "{what}: {error}");
                accept(&dir, &what);
            }
        }
    }
}

/// Opens the pool with the loss accepted. A prefix is there, the loss is reported, and from then on
/// the pool is as any other.
fn accept(dir: &Faulty, what: &str) {
    let options = PoolOptions { accept_journal_loss: true, ..PoolOptions::default() };
    let pool = dir.open_with(options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let loss = pool.journal_loss().unwrap().clone();
    assert!(!loss.damages.is_empty() && loss.recovered_lsn <= loss.last_lsn, "{what}: {loss:?}");
    assert!(pool.health().has(code::JOURNAL_LOSS));
    assert_prefix(&pool, what);
    drop(pool);
    // This also holds without a single write behind it.
    let pool = dir.open().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(pool.journal_loss().is_none());
    assert_eq!(pool.health(), Health::Healthy);
    write_fua(&pool.open_volume("v", false).unwrap(), 512 * KIB, 7, BLOCK);
    drop(pool);
    assert!(dir.check(false).is_clean(), "{what}: {:?}", dir.check(false).findings);
    let pool = dir.open().unwrap();
    assert_prefix(&pool, what);
    let mut block = vec![0; BLOCK as usize];
    pool.open_volume("v", true).unwrap().read(512 * KIB, &mut block).unwrap();
    assert_eq!(block, vec![7; BLOCK as usize], "{what}");
    assert!(pool.stats().sequenced_lsn > loss.last_lsn, "{what}: no LSN is used twice");
}

#[test]
fn damage_in_the_middle_can_be_accepted() {
    let good = killed();
    let end = in_place(&good);
    for at in [end + 1, end + 100, end + 2 * BLOCK] {
        let dir = good.copied();
        dir.flip("journal-00000", at);
        accept(&dir, &format!("byte {at}"));
        let dir = good.copied();
        dir.flip("journal-00000", at);
        let options = PoolOptions { accept_journal_loss: true, ..PoolOptions::default() };
        let pool = dir.open_with(options).unwrap();
        let loss = pool.journal_loss().unwrap();
        assert_eq!(loss.volumes[0].volume, "v");
        assert!(loss.volumes[0].records >= 4 && loss.volumes[0].lsns.0 > loss.recovered_lsn, "{loss:?}");
        assert!(loss.to_string().contains("writes of"), "{loss}");
    }
}

/// Makes a pool after a kill whose last life wrote to one journal file alone. Returns that file
/// too.
fn killed_in_one_file() -> (Faulty, String) {
    let dir = closed();
    let before: Vec<Vec<u8>> = dir.journal_files().iter().map(|name| dir.content(name)).collect();
    let pool = dir.open().unwrap();
    pool.drain().unwrap();
    let volume = pool.open_volume("v", false).unwrap();
    for n in 0..3 {
        write_fua(&volume, 512 * KIB + n * BLOCK, 55, BLOCK);
    }
    drop((pool, volume));
    let names = dir.journal_files().into_iter();
    let mut changed = names.zip(before).filter(|(name, before)| dir.content(name) != *before);
    let (name, _) = changed.next().unwrap();
    assert!(changed.next().is_none());
    (dir, name)
}

/// A file that could not be read, with its header or behind it, is given up. No later opening needs
/// it, and nothing of it comes back. That holds whether it can be read again later or not, and
/// whether the pool was closed or not.
#[test]
fn what_was_given_up_is_not_asked_for_when_it_can_be_read_again() {
    let (good, name) = killed_in_one_file();
    for (from, reads_again, closes) in [0, BLOCK]
        .into_iter()
        .flat_map(|from| [true, false].map(|again| (from, again)))
        .flat_map(|(from, again)| [true, false].map(|closes| (from, again, closes)))
    {
        let what = format!("from {from}, reads again: {reads_again}, closes: {closes}");
        let dir = good.copied();
        dir.faults.lock().unwrap().unreadable = Some((name.clone(), from..20 * BLOCK));
        assert_eq!(dir.open().err().unwrap().kind(), ErrorKind::Corrupt, "{what}");
        let options = PoolOptions { accept_journal_loss: true, ..PoolOptions::default() };
        let pool = dir.open_with(options).unwrap();
        assert!(pool.journal_loss().is_some());
        if closes {
            pool.close().unwrap();
        }
        drop(pool);
        if reads_again {
            dir.faults.lock().unwrap().unreadable = None;
        }
        for life in 0..3 {
            let pool = dir.open().unwrap_or_else(|e| panic!("{what}, life {life}: {e}"));
            assert!(pool.journal_loss().is_none());
            assert_content(&pool, &what);
            let volume = pool.open_volume("v", false).unwrap();
            let mut blocks = vec![1; 3 * BLOCK as usize];
            volume.read(512 * KIB, &mut blocks).unwrap();
            // A new record in front of a block that can't be read would be in doubt again.
            let first = if life == 0 || !reads_again { 0 } else { 66 };
            assert!(blocks[BLOCK as usize..].iter().all(|b| *b == 0), "{what}, life {life}");
            assert_eq!(blocks[..BLOCK as usize], vec![first; BLOCK as usize], "{what}, life {life}");
            if reads_again {
                write_fua(&volume, 512 * KIB, 66, BLOCK);
            }
        }
    }
}

/// Acceptance is for damage: a whole pool opens as always.
#[test]
fn accepting_loses_nothing_where_nothing_is_damaged() {
    let dir = killed();
    let options = PoolOptions { accept_journal_loss: true, ..PoolOptions::default() };
    let pool = dir.open_with(options).unwrap();
    assert!(pool.journal_loss().is_none());
    assert_content(&pool, "accepted");
}

/// After a clean stop the catalog knows everything that was durable. An older copy of any file is
/// detected, or had nothing that is needed.
#[test]
fn a_file_replaced_by_an_older_copy_is_noticed_after_a_clean_stop() {
    let older = killed();
    let newer = older.copied();
    let pool = newer.open().unwrap();
    let volume = pool.open_volume("v", false).unwrap();
    for n in 28..60 {
        write_fua(&volume, 512 * KIB + n * BLOCK, 77, BLOCK);
    }
    pool.close().unwrap();
    drop((pool, volume));
    let mut refused = 0;
    for name in newer.journal_files() {
        let dir = newer.copied();
        if older.journal_files().contains(&name) {
            dir.files.take_from(&older.files, &name);
        }
        match dir.open() {
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt);
                refused += 1;
            }
            Ok(pool) => {
                assert_content(&pool, &name);
                let mut block = vec![0; BLOCK as usize];
                pool.open_volume("v", true).unwrap().read(512 * KIB + 59 * BLOCK, &mut block).unwrap();
                assert_eq!(block, vec![77; BLOCK as usize], "{name}");
            }
        }
    }
    assert!(refused >= 1);
}

/// Each block of each journal file is unreadable in turn: the pool opens with everything, or the
/// block is one that is needed.
#[test]
fn an_unreadable_block_that_nobody_needs_keeps_nothing_closed() {
    let good = killed();
    let needed_from = in_place(&good) / BLOCK;
    let mut refused = Vec::new();
    for (number, name) in good.journal_files().iter().enumerate() {
        for block in 0..SEGMENT / BLOCK {
            let dir = good.copied();
            dir.faults.lock().unwrap().unreadable = Some((name.clone(), block * BLOCK..(block + 1) * BLOCK));
            let clean = dir.check(false).is_clean();
            match dir.open() {
                Ok(pool) => {
                    assert!(clean, "{name} block {block}");
                    assert_content(&pool, &format!("{name} block {block}"));
                }
                Err(e) => {
                    assert!(!clean && e.to_string().contains(name), "{name} block {block}: {e}");
                    refused.push((number, block));
                }
            }
        }
    }
    // The needed blocks are four in the first file, and 128 KiB, the snapshot and four in the
    // second, each with what they extend into.
    assert!(
        refused.iter().all(|(file, block)| *file == 3 || *file == 0 && *block >= needed_from),
        "{refused:?}"
    );
    assert!((10..70).contains(&refused.len()), "{}: {refused:?}", refused.len());
}

/// A file that could not be made in full left a sparse one behind, which the next life mistook for
/// a free file.
#[test]
fn a_file_that_gets_no_space_leaves_nothing_behind() {
    let dir = Faulty::default();
    let (pool, volume) = create(&dir);
    let before = dir.files.list().unwrap();
    dir.faults.lock().unwrap().no_room = Some("journal-");
    let mut refused = None;
    for n in 0..200 {
        let mut ops = [WriteOp::new(n % 8 * 128 * KIB, Bytes::from(vec![1; 128 * KIB as usize]))];
        volume.write(&mut ops, false);
        if let Err(e) = &ops[0].result {
            refused = Some(e.kind());
            break;
        }
    }
    assert_eq!(refused, Some(ErrorKind::NoSpace));
    assert_eq!(pool.health(), Health::Healthy);
    assert_eq!(dir.files.list().unwrap(), before, "nothing is left");
    drop((pool, volume));
    // A kill in the middle leaves a file that is being made.
    dir.files.open("journal-00007.new", OpenMode::Create).unwrap().set_len(SEGMENT).unwrap();
    let pool = dir.open().unwrap();
    assert_eq!(dir.files.list().unwrap().iter().filter(|n| n.contains(".new")).count(), 0);
    drop(pool);
    assert!(dir.check(false).is_clean());
}

/// A restored backup can have sparse free files of the journal. They get their space back at open,
/// or are left out.
#[test]
fn free_files_without_space_are_left_out_until_there_is_some() {
    let dir = killed();
    dir.faults.lock().unwrap().no_room = Some("journal-");
    let pool = dir.open().unwrap();
    let volume = pool.open_volume("v", false).unwrap();
    let mut ops = [WriteOp::new(512 * KIB, Bytes::from(vec![1; 4096]))];
    volume.write(&mut ops, false);
    assert_eq!(
        ops[0].result.as_ref().unwrap_err().kind(),
        ErrorKind::NoSpace,
        "there is no file to write it to"
    );
    assert_eq!(pool.health(), Health::Healthy);
    dir.faults.lock().unwrap().no_room = None;
    write_fua(&volume, 512 * KIB, 5, BLOCK);
    drop((pool, volume));
    assert_content(&dir.open().unwrap(), "left out");
    assert!(dir.check(false).is_clean(), "{:?}", dir.check(false).findings);
}
