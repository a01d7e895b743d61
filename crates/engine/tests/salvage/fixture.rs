//! Pools with content of all kinds, what their devices show, and the comparison of a salvage with
//! that.

use bytes::Bytes;
use hindcast_engine::device::{BlockDevice, WriteOp};
use hindcast_engine::disk::{Dir, MemDir, OpenMode};
use hindcast_engine::pool::{Pool, PoolOptions, code};
use hindcast_engine::salvage::{Loss, SalvageOptions};
use hindcast_engine::testing::{self, KIB, MIB, Site, content_of, new_volume, world};
use hindcast_engine::world::{Rng, SplitMix};
use hindcast_engine::{Result, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const CATALOG: &str = "catalog.redb";
pub(crate) const BLOCK: u64 = 4096;

/// Options with small caches, so that reads go to the catalog.
pub(crate) fn options() -> PoolOptions {
    PoolOptions {
        catalog_cache_bytes: 0,
        map_cache_bytes: 4096,
        destage_threads: 1,
        ..PoolOptions::default()
    }
}

/// A pool, and the content that each of its devices shows.
pub(crate) struct Fixture {
    pub(crate) dir: MemDir,
    pub(crate) pool: Arc<Pool>,
    pub(crate) shown: BTreeMap<(String, Option<String>), Vec<u8>>,
    pub(crate) rng: SplitMix,
}

impl Fixture {
    /// Makes a pool with physical volumes of these sizes in MiB.
    pub(crate) fn new(pvs: &[u64]) -> Fixture {
        let names: Vec<String> = (0..pvs.len()).map(|n| format!("pv-{n}.img")).collect();
        let pvs: Vec<(&str, u64)> = names.iter().zip(pvs).map(|(n, mib)| (&**n, (mib + 1) * MIB)).collect();
        let site = Site::builder(0).journal(4 * MIB, 256 * KIB).pvs(&pvs).options(options()).build();
        let (dir, pool) = ((*site.dir).clone(), site.pool);
        Fixture { dir, pool, shown: BTreeMap::new(), rng: SplitMix::new(3) }
    }

    pub(crate) fn create(&mut self, name: &str, size: u64, chunk_size: u64) {
        self.pool.create_volume(&new_volume(name, size, chunk_size)).unwrap();
        self.shown.insert((name.into(), None), vec![0; size as usize]);
    }

    pub(crate) fn write(&mut self, name: &str, offset: u64, len: u64) {
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

    pub(crate) fn discard(&mut self, name: &str, offset: u64, len: u64) {
        self.pool.open_volume(name, false).unwrap().discard(offset, len, true).unwrap();
        self.shown.get_mut(&(name.into(), None)).unwrap()[offset as usize..(offset + len) as usize].fill(0);
    }

    pub(crate) fn snap(&mut self, volume: &str, name: &str) {
        self.pool.create_snapshots(&[(volume, name)]).unwrap();
        let now = self.shown[&(volume.to_owned(), None)].clone();
        self.shown.insert((volume.into(), Some(name.into())), now);
    }

    pub(crate) fn clone_volume(&mut self, volume: &str, snapshot: &str, name: &str) {
        self.pool.clone_volume(volume, snapshot, name).unwrap();
        let then = self.shown[&(volume.to_owned(), Some(snapshot.to_owned()))].clone();
        self.shown.insert((name.into(), None), then);
    }

    /// Makes volumes, snapshots and a clone. Some content is in place, and some in the journal
    /// only.
    pub(crate) fn mixed(pvs: &[u64]) -> Fixture {
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

    /// Drops the pool, as a kill does.
    pub(crate) fn kill(self) -> (MemDir, Model) {
        let Fixture { dir, pool, shown, .. } = self;
        assert_eq!(Arc::strong_count(&pool), 1);
        drop(pool);
        (dir, Model(shown))
    }

    /// Stops the pool in an orderly way, with the backup of such a stop.
    pub(crate) fn stop(self) -> (MemDir, Model) {
        self.pool.close().unwrap();
        self.pool.backup_metadata(&self.dir, 9).unwrap();
        self.kill()
    }
}

pub(crate) fn salvage(dir: &MemDir) -> Result<Arc<Pool>> {
    salvage_with(dir, SalvageOptions::default())
}

pub(crate) fn salvage_with(dir: &MemDir, of: SalvageOptions) -> Result<Arc<Pool>> {
    Pool::open_salvage(Arc::new(dir.clone()), world(9), SalvageOptions { pool: options(), ..of })
}

/// The content of each device.
pub(crate) struct Model(pub(crate) BTreeMap<(String, Option<String>), Vec<u8>>);

/// The result of reading all devices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) lost: u64,
    pub(crate) read: u64,
    /// Number of devices that are named as lost as a whole.
    pub(crate) devices: usize,
}

pub(crate) fn open(pool: &Arc<Pool>, volume: &str, snapshot: Option<&str>) -> Result<Arc<Volume>> {
    match snapshot {
        Some(name) => pool.open_snapshot(volume, name),
        None => pool.open_volume(volume, true),
    }
}

pub(crate) fn losses(pool: &Pool, volume: &str, snapshot: Option<&str>) -> Vec<Loss> {
    let mut all = Vec::new();
    let counted = pool.losses(volume, snapshot, &mut |loss| all.push(loss)).unwrap();
    assert_eq!(counted.ranges, all.len() as u64);
    assert_eq!(counted.lost, all.iter().map(|loss| loss.length).sum::<u64>());
    assert!(counted.allocated + counted.lost <= counted.size && counted.readable() <= counted.size);
    assert!(all.is_sorted_by(|a, b| a.offset + a.length <= b.offset), "{all:?}");
    all
}

/// Reads a whole device. Every block that can be read is right, every other block is named, and a
/// named block can't be read.
pub(crate) fn look_at(pool: &Arc<Pool>, key: &(String, Option<String>), shown: &[u8], seen: &mut Seen) {
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
    /// Reads all devices. A device that is missing is named, or its row is.
    pub(crate) fn check(&self, pool: &Arc<Pool>) -> Seen {
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

    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|shown| shown.len() as u64).sum()
    }
}

/// Returns all files, byte by byte.
pub(crate) fn files(dir: &MemDir) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| (name.clone(), content_of(dir, &name));
    dir.list().unwrap().into_iter().map(read).collect()
}

pub(crate) fn flip(dir: &MemDir, name: &str, at: u64, bit: u64) {
    testing::flip(dir, name, at, 1 << (bit % 8));
}

pub(crate) fn len(dir: &MemDir, name: &str) -> u64 {
    dir.open(name, OpenMode::ReadOnly).unwrap().len().unwrap()
}

pub(crate) fn codes(pool: &Pool) -> Vec<&'static str> {
    pool.salvage().unwrap().findings.iter().map(|f| f.code).collect()
}
