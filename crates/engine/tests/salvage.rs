//! What is left of a pool that does not open: each byte that is read is what was written, each byte
//! that is not is named, and no part of the pool is written to.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;
#[macro_use]
#[path = "common/forward.rs"]
mod forward;

use bytes::Bytes;
use common::{KIB, MIB};
use hindcast_engine::cdp::{CdpSettings, Moment};
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, Disk, MemDir, OpenMode, SyncPurpose};
use hindcast_engine::pool::{
    CatalogSource, NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec, code,
};
use hindcast_engine::salvage::{Loss, SalvageOptions};
use hindcast_engine::world::{ManualClock, Rng, SplitMix, World};
use hindcast_engine::{ErrorKind, Result, Volume};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

const CATALOG: &str = "catalog.redb";
const BLOCK: u64 = 4096;

fn world(seed: u64) -> World {
    World { clock: Arc::new(ManualClock::new(seed)), rng: Arc::new(SplitMix::new(seed)) }
}

/// Small caches, so that reads meet the catalog.
fn options() -> PoolOptions {
    PoolOptions {
        catalog_cache_bytes: 0,
        map_cache_bytes: 4096,
        destage_threads: 1,
        ..PoolOptions::default()
    }
}

/// A pool, and what each of its devices shows.
struct Fixture {
    dir: MemDir,
    pool: Arc<Pool>,
    shown: BTreeMap<(String, Option<String>), Vec<u8>>,
    rng: SplitMix,
}

impl Fixture {
    /// With physical volumes of so many MiB.
    fn new(pvs: &[u64]) -> Fixture {
        let dir = MemDir::new();
        let config = PoolConfig {
            extent_size: 64 * KIB,
            journal_size: 4 * MIB,
            segment_size: 256 * KIB,
            atomic_unit: 4096,
        };
        let spec = |(n, mib): (usize, &u64)| PvSpec {
            path: format!("pv-{n}.img"),
            size: Some((mib + 1) * MIB),
            force: false,
        };
        let pvs: Vec<PvSpec> = pvs.iter().enumerate().map(spec).collect();
        Pool::create(Arc::new(dir.clone()), &world(1), &config, Placement::Anywhere, &pvs).unwrap();
        let pool = Pool::open(Arc::new(dir.clone()), world(2), options()).unwrap();
        Fixture { dir, pool, shown: BTreeMap::new(), rng: SplitMix::new(3) }
    }

    fn create(&mut self, name: &str, size: u64, chunk_size: u64) {
        let new = NewVolume { name: name.into(), size, chunk_size, block_size: 512, read_only: false };
        self.pool.create_volume(&new).unwrap();
        self.shown.insert((name.into(), None), vec![0; size as usize]);
    }

    fn write(&mut self, name: &str, offset: u64, len: u64) {
        // No block repeats, and none is zeros.
        let mut data: Vec<u8> = (0..len).map(|n| (n / 512 % 251) as u8 + 1).collect();
        data.chunks_mut(512).for_each(|sector| sector[..8].copy_from_slice(&self.rng.next().to_le_bytes()));
        let volume = self.pool.open_volume(name, false).unwrap();
        for (n, part) in data.chunks(64 << 10).enumerate() {
            let at = offset + n as u64 * (64 << 10);
            let mut ops = [WriteOp::new(at, Bytes::from(part.to_vec()))];
            volume.write(&mut ops, true);
            ops[0].result.as_ref().unwrap();
        }
        self.shown.get_mut(&(name.into(), None)).unwrap()[offset as usize..(offset + len) as usize]
            .copy_from_slice(&data);
    }

    fn discard(&mut self, name: &str, offset: u64, len: u64) {
        self.pool.open_volume(name, false).unwrap().discard(offset, len, true).unwrap();
        self.shown.get_mut(&(name.into(), None)).unwrap()[offset as usize..(offset + len) as usize].fill(0);
    }

    fn snap(&mut self, volume: &str, name: &str) {
        self.pool.create_snapshots(&[(volume, name)]).unwrap();
        let now = self.shown[&(volume.to_owned(), None)].clone();
        self.shown.insert((volume.into(), Some(name.into())), now);
    }

    fn clone_volume(&mut self, volume: &str, snapshot: &str, name: &str) {
        self.pool.clone_volume(volume, snapshot, name).unwrap();
        let then = self.shown[&(volume.to_owned(), Some(snapshot.to_owned()))].clone();
        self.shown.insert((name.into(), None), then);
    }

    /// Volumes, snapshots, a clone; some of it in place, and some of it in the journal only.
    fn mixed(pvs: &[u64]) -> Fixture {
        let mut f = Fixture::new(pvs);
        f.create("a", MIB, 16 * KIB);
        f.create("b", 2 * MIB, 4 * KIB);
        f.write("a", 0, 768 * KIB);
        f.write("b", 512 * KIB, MIB);
        f.snap("a", "s1");
        f.write("a", 64 * KIB, 200 * KIB);
        f.discard("a", 512 * KIB, 64 * KIB);
        f.snap("a", "s2");
        f.clone_volume("a", "s1", "c");
        f.write("c", 32 * KIB, 96 * KIB);
        f.discard("c", 256 * KIB, 128 * KIB);
        f.pool.drain().unwrap();
        f.write("a", 300 * KIB, 10 * KIB);
        f.write("b", 600 * KIB, 512);
        f.discard("b", 700 * KIB, 8 * KIB);
        f.snap("b", "s3");
        f.write("b", 1024 * KIB, 64 * KIB);
        f
    }

    /// The pool is let go of, as by a kill.
    fn kill(self) -> (MemDir, Model) {
        let Fixture { dir, pool, shown, .. } = self;
        assert_eq!(Arc::strong_count(&pool), 1);
        drop(pool);
        (dir, Model(shown))
    }

    /// An orderly stop, with the backup of one.
    fn stop(self) -> (MemDir, Model) {
        self.pool.close().unwrap();
        self.pool.backup_metadata(&self.dir, 9).unwrap();
        self.kill()
    }
}

fn salvage(dir: &MemDir) -> Result<Arc<Pool>> {
    salvage_with(dir, SalvageOptions::default())
}

fn salvage_with(dir: &MemDir, of: SalvageOptions) -> Result<Arc<Pool>> {
    Pool::open_salvage(Arc::new(dir.clone()), world(9), SalvageOptions { pool: options(), ..of })
}

/// What each device shows.
struct Model(BTreeMap<(String, Option<String>), Vec<u8>>);

/// What a look at all devices came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    lost: u64,
    read: u64,
    /// Devices that are named as lost as a whole.
    devices: usize,
}

fn open(pool: &Arc<Pool>, volume: &str, snapshot: Option<&str>) -> Result<Arc<Volume>> {
    match snapshot {
        Some(name) => pool.open_snapshot(volume, name),
        None => pool.open_volume(volume, true),
    }
}

fn losses(pool: &Pool, volume: &str, snapshot: Option<&str>) -> Vec<Loss> {
    let mut all = Vec::new();
    let counted = pool.losses(volume, snapshot, &mut |loss| all.push(loss)).unwrap();
    assert_eq!(counted.ranges, all.len() as u64);
    assert_eq!(counted.lost, all.iter().map(|loss| loss.length).sum::<u64>());
    assert!(counted.allocated + counted.lost <= counted.size && counted.readable() <= counted.size);
    assert!(all.is_sorted_by(|a, b| a.offset + a.length <= b.offset), "{all:?}");
    all
}

/// Reads all of a device. Every block that is read is right, and every one that is not is named;
/// and what is named can't be read.
fn look_at(pool: &Arc<Pool>, key: &(String, Option<String>), shown: &[u8], seen: &mut Seen) {
    let snapshot = key.1.as_deref();
    let volume = open(pool, &key.0, snapshot).unwrap();
    assert_eq!(volume.info().size, shown.len() as u64);
    let lost = losses(pool, &key.0, snapshot);
    let named = |at: u64| lost.iter().any(|loss| (loss.offset..loss.offset + loss.length).contains(&at));
    for at in (0..shown.len() as u64).step_by(BLOCK as usize) {
        let mut data = vec![0xEE; BLOCK as usize];
        let right = |at: u64, data: &[u8]| {
            assert!(
                data == &shown[at as usize..at as usize + data.len()],
                "{key:?} at {at}: {:?}",
                &data[..16]
            );
        };
        if volume.read(at, &mut data).is_ok() {
            assert!(!(at..at + BLOCK).any(named), "{key:?} at {at}: named as lost, and read");
            right(at, &data);
            seen.read += BLOCK;
            continue;
        }
        for at in (at..at + BLOCK).step_by(512) {
            let sector = &mut data[..512];
            match volume.read(at, sector) {
                Ok(()) => {
                    assert!(!named(at), "{key:?} at {at}: named as lost, and read");
                    right(at, sector);
                    seen.read += 512;
                }
                Err(error) => {
                    assert!(named(at), "{key:?} at {at}: lost, and not named: {error}");
                    seen.lost += 512;
                }
            }
        }
    }
}

impl Model {
    /// Looks at all devices. One that is not there is named, or its row is.
    fn check(&self, pool: &Arc<Pool>) -> Seen {
        let found = pool.salvage().unwrap();
        let mut seen = Seen::default();
        for (key, shown) in &self.0 {
            if open(pool, &key.0, key.1.as_deref()).is_ok() {
                look_at(pool, key, shown, &mut seen);
                continue;
            }
            let by_name = found.lost.iter().any(|d| d.volume == key.0 && (d.snapshot == key.1));
            let by_row = found.findings.iter().any(|f| f.code == "catalog-row");
            assert!(by_name || by_row, "{key:?} is gone without a word: {found:?}");
            seen.devices += 1;
        }
        assert!(pool.health().has(code::POISONED));
        seen
    }

    fn bytes(&self) -> u64 {
        self.0.values().map(|shown| shown.len() as u64).sum()
    }
}

/// All files, byte by byte.
fn files(dir: &MemDir) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| {
        let disk = dir.open(&name, OpenMode::ReadOnly).unwrap();
        let mut all = vec![0; disk.len().unwrap() as usize];
        disk.read_at(&mut all, 0).unwrap();
        (name, all)
    };
    dir.list().unwrap().into_iter().map(read).collect()
}

fn flip(dir: &MemDir, name: &str, at: u64, bit: u64) {
    let disk = dir.open(name, OpenMode::Existing).unwrap();
    let mut byte = [0];
    disk.read_at(&mut byte, at).unwrap();
    disk.write_at(&[byte[0] ^ 1 << (bit % 8)], at).unwrap();
}

fn len(dir: &MemDir, name: &str) -> u64 {
    dir.open(name, OpenMode::ReadOnly).unwrap().len().unwrap()
}

fn codes(pool: &Pool) -> Vec<&'static str> {
    pool.salvage().unwrap().findings.iter().map(|f| f.code).collect()
}

#[test]
fn a_whole_pool_is_shown_as_a_whole_and_takes_nothing() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let before = files(&dir);
    let pool = salvage(&dir).unwrap();
    assert!(pool.salvage().unwrap().is_clean(), "{:?}", pool.salvage());
    assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
    let devices: Vec<_> = pool.devices();
    assert_eq!(devices.len(), model.0.len());
    let mut op = [WriteOp::new(0, Bytes::from(vec![1; 512]))];
    pool.open_volume("a", false).unwrap().write(&mut op, false);
    assert!(op[0].result.is_err());
    assert!(pool.create_snapshots(&[("a", "no")]).is_err());
    assert_eq!(pool.backup_metadata(&dir, 3).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(pool.maintain().is_err() && pool.drain().is_err());
    assert_eq!(
        salvage(&dir).map(drop).unwrap_err().kind(),
        ErrorKind::Busy,
        "another process could change it meanwhile"
    );
    drop(pool);
    assert!(files(&dir) == before);
    // It opens as before, too.
    drop(Pool::open(Arc::new(dir), world(4), options()).unwrap());
}

/// A volume that lies on the physical volume that is left is whole; of another one exactly what
/// lies on the lost one is named.
#[test]
fn a_physical_volume_that_is_missing_takes_only_what_lies_on_it() {
    let mut f = Fixture::new(&[2, 4]);
    f.create("whole", MIB, 16 * KIB);
    f.write("whole", 0, MIB);
    f.pool.drain().unwrap();
    f.create("split", 4 * MIB, 16 * KIB);
    f.write("split", 0, 3 * MIB);
    f.pool.drain().unwrap();
    f.write("split", 2 * MIB, 6 * KIB);
    let (dir, model) = f.kill();
    let there = dir.copy();
    there.remove("pv-1.img").unwrap();
    let before = files(&there);
    let pool = salvage(&there).unwrap();
    assert_eq!(codes(&pool), ["pv"]);
    assert!(pool.salvage().unwrap().doubts.is_empty());
    assert!(losses(&pool, "whole", None).is_empty());
    let lost = losses(&pool, "split", None);
    assert!(lost.iter().all(|l| l.reason.code() == "physical-volume"), "{lost:?}");
    assert!(lost[0].reason.to_string().contains("pv-1.img can't be used: it is missing"), "{lost:?}");
    assert!(
        !lost.iter().any(|l| l.offset <= 2 * MIB && l.offset + l.length > 2 * MIB),
        "it is in the journal"
    );
    let seen = model.check(&pool);
    assert!(seen.lost > MIB && seen.lost < 3 * MIB, "{seen:?}");
    assert_eq!(seen.read + seen.lost, model.bytes());
    drop(pool);
    assert!(files(&there) == before);

    // The same disk under another path.
    let moved = dir.copy();
    moved.rename("pv-1.img", "found").unwrap();
    assert!(model.check(&salvage(&moved).unwrap()).lost > 0);
    let of =
        SalvageOptions { moved: [("pv-1.img".into(), "found".into())].into(), ..SalvageOptions::default() };
    let pool = salvage_with(&moved, of).unwrap();
    assert!(pool.salvage().unwrap().is_clean());
    assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
    // The other way round: what is there is another one.
    let swapped = dir.copy();
    swapped.take_from(&dir, "pv-0.img");
    swapped.remove("pv-1.img").unwrap();
    swapped.rename("pv-0.img", "pv-1.img").unwrap();
    let pool = salvage(&swapped).unwrap();
    assert!(
        pool.salvage().unwrap().findings.iter().any(|f| f.detail.contains("another volume of this pool"))
    );
    assert!(model.check(&pool).lost > 3 * MIB);
}

#[test]
fn a_physical_volume_that_was_cut_short_or_has_lost_its_label_is_used_as_far_as_it_goes() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let cut = dir.copy();
    cut.open("pv-0.img", OpenMode::Existing).unwrap().set_len(MIB + 700 * KIB + 100).unwrap();
    let pool = salvage(&cut).unwrap();
    assert_eq!(codes(&pool), ["pv"]);
    let seen = model.check(&pool);
    assert!(seen.lost > 256 * KIB && seen.read > 3 * MIB, "{seen:?}");

    let unlabelled = dir.copy();
    unlabelled.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&[0; 4096], 0).unwrap();
    let pool = salvage(&unlabelled).unwrap();
    assert_eq!(codes(&pool), ["pv-label"], "its stamps prove whose it is");
    assert_eq!(model.check(&pool).lost, 0);
    drop(pool);
    unlabelled.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&[0; 3 * 4096], 0).unwrap();
    let pool = salvage(&unlabelled).unwrap();
    assert_eq!(codes(&pool), ["pv"]);
    let seen = model.check(&pool);
    assert!(seen.lost > MIB, "{seen:?}");
}

#[test]
fn a_damaged_journal_is_given_up_from_there_on_and_named() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.drain().unwrap();
    let then = f.shown[&("a".to_owned(), None)].clone();
    for n in 0..8 {
        f.write("a", n * 128 * KIB, 64 * KIB);
    }
    let (dir, model) = f.kill();
    let files_of: Vec<String> =
        dir.list().unwrap().into_iter().filter(|n| n.starts_with("journal-0")).collect();
    assert!(files_of.len() > 2, "{files_of:?}");
    let (mut lossy, mut whole) = (0, 0);
    for name in &files_of {
        for at in (0..len(&dir, name)).step_by(24_576) {
            let copy = dir.copy();
            let disk = copy.open(name, OpenMode::Existing).unwrap();
            disk.write_at(&[0x99; 4096], at).unwrap();
            let pool = salvage(&copy).unwrap();
            let found = pool.salvage().unwrap();
            let Some(loss) = pool.journal_loss() else {
                assert!(found.is_clean(), "{found:?}");
                let mut data = vec![0; MIB as usize];
                pool.open_volume("a", true).unwrap().read(0, &mut data).unwrap();
                // Of the last record nothing proves that it was durable.
                let last = 7 * 128 * 1024;
                assert!(data[..last] == model.0[&("a".to_owned(), None)][..last]);
                whole += 1;
                continue;
            };
            assert_eq!(codes(&pool), ["journal"]);
            assert!(loss.recovered_lsn < loss.durable_lsn.max(loss.last_lsn));
            // A prefix: some writes are there, and then none.
            let mut data = vec![0; MIB as usize];
            pool.open_volume("a", true).unwrap().read(0, &mut data).unwrap();
            let now = &model.0[&("a".to_owned(), None)];
            let newer: Vec<bool> = (0..8)
                .map(|n| {
                    let range = n * 128 * 1024..n * 128 * 1024 + 65536;
                    assert!(
                        data[range.clone()] == then[range.clone()]
                            || data[range.clone()] == now[range.clone()]
                    );
                    data[range.clone()] == now[range]
                })
                .collect();
            assert!(newer.is_sorted_by(|a, b| a >= b) && newer.contains(&false), "{newer:?}");
            lossy += 1;
        }
    }
    assert!(lossy > 5 && whole > 5, "{lossy} {whole}");
    // All of them gone.
    for name in files_of {
        dir.remove(&name).unwrap();
    }
    let pool = salvage(&dir).unwrap();
    assert!(pool.journal_loss().is_some());
    let mut data = vec![0; MIB as usize];
    pool.open_volume("a", true).unwrap().read(0, &mut data).unwrap();
    assert!(data == then);
}

#[test]
fn a_history_without_one_of_its_files_takes_nothing_of_what_volumes_are() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    f.pool.drain().unwrap();
    let mut moments = Vec::new();
    for n in 0..24 {
        f.write("a", n % 8 * 128 * KIB, 64 * KIB);
        moments.push((f.pool.stats().sequenced_lsn, f.shown[&("a".to_owned(), None)].clone()));
        f.pool.drain().unwrap();
    }
    let (dir, model) = f.kill();
    // (moments that are right, moments that can't be shown)
    let show = |pool: &Arc<Pool>| {
        let (mut right, mut refused) = (0, 0);
        for (lsn, then) in &moments {
            let mut data = vec![0; MIB as usize];
            let view = pool.open_moment("a", &Moment::Lsn(*lsn));
            match view.and_then(|view| view.read(0, &mut data)) {
                Ok(()) => {
                    assert!(data == *then, "LSN {lsn}");
                    right += 1;
                }
                Err(_) => refused += 1,
            }
        }
        (right, refused)
    };
    let pool = salvage(&dir).unwrap();
    assert!(pool.salvage().unwrap().is_clean());
    assert_eq!(show(&pool), (24, 0));
    drop(pool);
    let segments: Vec<String> = dir.list().unwrap().into_iter().filter(|n| n.starts_with("cdp-")).collect();
    assert!(!segments.is_empty(), "{:?}", dir.list());
    for name in &segments {
        for cut in [false, true] {
            let copy = dir.copy();
            match cut {
                true => copy.open(name, OpenMode::Existing).unwrap().set_len(5000).unwrap(),
                false => copy.remove(name).unwrap(),
            }
            let before = files(&copy);
            let pool = salvage(&copy).unwrap();
            assert_eq!(codes(&pool), ["history"], "{:?}", pool.salvage());
            assert_eq!(model.check(&pool).lost, 0);
            assert!(show(&pool).1 > 0);
            drop(pool);
            assert!(files(&copy) == before);
        }
    }
}

/// A bit of the catalog is flipped, once in each of so many parts of it. `(own, backup, refused,
/// lossy)`: what the salvages rested on, and how many had losses.
fn rot(dir: &MemDir, places: u64, check: &dyn Fn(&Arc<Pool>) -> Seen) -> [u32; 4] {
    let rng = SplitMix::new(7);
    let all = len(dir, CATALOG);
    let mut counts = [0; 4];
    for n in 0..places {
        let copy = dir.copy();
        flip(&copy, CATALOG, all * n / places + rng.next() % (all / places), n);
        let before = (n % 50 == 0).then(|| files(&copy));
        match salvage(&copy) {
            Err(error) => {
                assert!(error.to_string().contains("no backup of its metadata was found"), "{error}");
                counts[2] += 1;
            }
            Ok(pool) => {
                let seen = check(&pool);
                let own = pool.salvage().unwrap().source == CatalogSource::Own;
                counts[if own { 0 } else { 1 }] += 1;
                counts[3] += u32::from(seen.lost > 0 || seen.devices > 0);
            }
        }
        if let Some(before) = before {
            assert!(files(&copy) == before);
        }
    }
    counts
}

#[test]
fn rot_of_the_catalog_is_read_past_and_never_served() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let [own, backup, refused, lossy] = rot(&dir, 400, &|pool| {
        assert!(pool.salvage().unwrap().doubts.is_empty());
        model.check(pool)
    });
    assert_eq!(backup, 0);
    assert!(own > 300 && refused > 0 && lossy > 3, "{own} {refused} {lossy}");
}

#[test]
fn where_the_catalog_does_not_open_any_more_a_backup_stands_in() {
    let (dir, model) = Fixture::mixed(&[8]).stop();
    let [own, backup, refused, lossy] = rot(&dir, 200, &|pool| {
        let found = pool.salvage().unwrap();
        let seen = model.check(pool);
        if let CatalogSource::Backup { exact, .. } = found.source {
            assert!(exact && found.doubts.is_empty() && seen.lost == 0 && seen.devices == 0, "{found:?}");
            assert_eq!(codes(pool), ["catalog", "backup"]);
        }
        seen
    });
    assert_eq!(refused, 0);
    assert!(own > 100 && backup > 0 && lossy > 1, "{own} {backup} {lossy}");
}

/// Many bits at once: whole parts of the catalog are gone.
#[test]
fn much_rot_is_read_past_too() {
    let (dir, model) = Fixture::mixed(&[8]).kill();
    let blocks = len(&dir, CATALOG) / BLOCK;
    let rng = SplitMix::new(11);
    let (mut shown, mut lost) = (0, 0);
    for n in 0..150 {
        let copy = dir.copy();
        for _ in 0..1 + n % 6 {
            // Not the first ones: where nothing opens there is nothing to test.
            flip(&copy, CATALOG, (2 + rng.next() % (blocks - 2)) * BLOCK + rng.next() % BLOCK, n);
        }
        if let Ok(pool) = salvage(&copy) {
            let seen = model.check(&pool);
            shown += u32::from(seen.read > 0);
            lost += u32::from(seen.lost > 0);
        }
    }
    assert!(shown > 20 && lost > 3, "{shown} {lost}");
}

#[test]
fn a_catalog_that_is_gone_comes_from_a_backup_and_doubt_is_told() {
    // Of an orderly stop: all of it is exact.
    let (dir, model) = Fixture::mixed(&[8]).stop();
    let gone = dir.copy();
    gone.remove(CATALOG).unwrap();
    let before = files(&gone);
    let pool = salvage(&gone).unwrap();
    let source = &pool.salvage().unwrap().source;
    assert!(matches!(source, CatalogSource::Backup { exact: true, sequence: 1, .. }), "{source:?}");
    assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
    drop(pool);
    assert!(files(&gone) == before);
    // The copy on the physical volume does, too.
    gone.remove("metadata-0000000001.backup").unwrap();
    let pool = salvage(&gone).unwrap();
    assert!(
        matches!(&pool.salvage().unwrap().source, CatalogSource::Backup { path, .. } if path == "pv-0.img")
    );
    assert_eq!(model.check(&pool).lost, 0);
    drop(pool);

    // The pool was opened since: the same backup is of an earlier time.
    let later = dir.copy();
    let pool = Pool::open(Arc::new(later.clone()), world(5), options()).unwrap();
    common::write(&pool.open_volume("a", false).unwrap(), 0, 7, 64 * KIB);
    pool.drain().unwrap();
    pool.close().unwrap();
    drop(pool);
    later.remove(CATALOG).unwrap();
    let pool = salvage(&later).unwrap();
    let found = pool.salvage().unwrap();
    assert!(matches!(found.source, CatalogSource::Backup { exact: false, .. }));
    assert!(found.doubts[0].contains("another volume's data"), "{found:?}");
    assert!(found.findings.iter().any(|f| f.code == "pv-age"), "{found:?}");
    drop(pool);

    // Made while the pool was open.
    let f = Fixture::mixed(&[8]);
    f.pool.backup_metadata(&f.dir, 3).unwrap();
    let (dir, _) = f.kill();
    dir.remove(CATALOG).unwrap();
    let pool = salvage(&dir).unwrap();
    let found = pool.salvage().unwrap();
    assert!(found.doubts[0].contains("made while the pool was open"), "{found:?}");
    assert!(pool.open_volume("a", true).is_ok());
    let told = format!("{:?}", pool.health());
    assert!(told.contains("with a catalog of an earlier time"), "{told}");
    drop(pool);

    // None at all, and one that is named.
    let (dir, model) = Fixture::mixed(&[8]).stop();
    let named = dir.copy();
    named.rename("metadata-0000000001.backup", "elsewhere").unwrap();
    let of = SalvageOptions { from: Some("elsewhere".into()), ..SalvageOptions::default() };
    let pool = salvage_with(&named, of).unwrap();
    assert_eq!(model.check(&pool).lost, 0);
    drop(pool);
    dir.remove(CATALOG).unwrap();
    dir.remove("metadata-0000000001.backup").unwrap();
    dir.open("pv-0.img", OpenMode::Existing).unwrap().write_at(&vec![0; 960 << 10], 64 << 10).unwrap();
    let error = salvage(&dir).map(drop).unwrap_err();
    assert!(error.to_string().contains("no backup"), "{error}");
}

/// A directory that is copied at each sync, as a crash would leave it.
#[derive(Clone)]
struct Crashing {
    inner: MemDir,
    copies: Arc<Mutex<Option<Vec<MemDir>>>>,
}

struct CrashingDisk {
    inner: Arc<dyn Disk>,
    dir: Crashing,
}

impl Dir for Crashing {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(CrashingDisk { inner: self.inner.open(name, mode)?, dir: self.clone() }))
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(CrashingDisk { inner: self.inner.open_locked(name, mode)?, dir: self.clone() }))
    }
    forward!(inner: lock remove rename list sync);
}

impl Disk for CrashingDisk {
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        if let Some(copies) = &mut *self.dir.copies.lock().unwrap() {
            copies.push(self.dir.inner.copy());
        }
        self.inner.sync(purpose)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        // In place, too: a part of a batch is there.
        if let Some(copies) = &mut *self.dir.copies.lock().unwrap() {
            copies.push(self.dir.inner.copy());
        }
        self.inner.write_at(buf, offset)
    }
    forward!(inner: read_at try_read_at write_vectored_at len set_len allocate punch backing_available advise_random is_block_device);
}

/// Wherever a batch was cut short, the journal answers for what may be in place in part: nothing is
/// lost, moments included.
#[test]
fn a_batch_that_was_interrupted_is_shown_as_it_was_acknowledged() {
    let mut f = Fixture::new(&[8]);
    f.create("a", MIB, 16 * KIB);
    f.write("a", 0, MIB);
    f.pool.set_cdp("a", Some(CdpSettings::default())).unwrap();
    f.pool.drain().unwrap();
    let (lsn, then) = (f.pool.stats().sequenced_lsn, f.shown[&("a".to_owned(), None)].clone());
    let Fixture { dir, pool, shown, rng } = f;
    drop(pool);
    let crashing = Crashing { inner: dir.clone(), copies: Arc::default() };
    let pool = Pool::open(Arc::new(crashing.clone()), world(4), options()).unwrap();
    let mut f = Fixture { dir, pool, shown, rng };
    for n in 0..6 {
        f.write("a", n * 128 * KIB + 512, 3 * KIB);
    }
    f.snap("a", "s");
    f.write("a", 4 * KIB, 64 * KIB);
    *crashing.copies.lock().unwrap() = Some(Vec::new());
    f.pool.drain().unwrap();
    let copies = crashing.copies.lock().unwrap().take().unwrap();
    let (_, model) = f.kill();
    assert!(copies.len() > 10, "{}", copies.len());
    for copy in copies {
        let pool = salvage(&copy).unwrap();
        assert!(pool.salvage().unwrap().is_clean(), "{:?}", pool.salvage());
        assert_eq!(model.check(&pool), Seen { read: model.bytes(), ..Seen::default() });
        let mut data = vec![0; MIB as usize];
        pool.open_moment("a", &Moment::Lsn(lsn)).unwrap().read(0, &mut data).unwrap();
        assert!(data == then);
    }
}

#[test]
fn parts_of_different_times_are_shown_and_doubted() {
    let (older, _) = Fixture::mixed(&[8]).stop();
    let dir = older.copy();
    let pool = Pool::open(Arc::new(dir.clone()), world(5), options()).unwrap();
    pool.drain().unwrap();
    pool.close().unwrap();
    drop(pool);
    let stale = older.copy();
    stale.take_from(&dir, "pv-0.img");
    assert!(Pool::open(Arc::new(stale.clone()), world(6), options()).is_err());
    let pool = salvage(&stale).unwrap();
    assert!(
        pool.salvage().unwrap().doubts[0].contains("this data directory is older"),
        "{:?}",
        pool.salvage()
    );
    assert!(pool.open_volume("a", true).is_ok());
}
