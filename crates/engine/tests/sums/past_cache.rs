//! Overwrites past the page cache (decision 90): which batches take that way, and what they leave.

use super::*;
use hindcast_engine::disk::{FileDir, Layer, LayeredDir, LowerDisk};
use hindcast_engine::pool::{Placement, PoolConfig};
use hindcast_engine::testing::{new_volume, world};
use hindcast_engine::world::{Rng, SplitMix};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SIZE: u64 = 16 * MIB;

/// Counts runs that are written together with others.
#[derive(Default)]
struct Together(AtomicU64);

/// Returns whether the system allows writes in flight.
fn is_possible(path: &Path) -> bool {
    let disk = FileDir::new(path).open_for_flight("probe", OpenMode::CreateNew, Duration::ZERO).unwrap();
    disk.write_scattered(&[(&[1; BLOCK as usize], 0)]).unwrap();
    disk.scatters()
}

impl Layer for Together {
    fn write_scattered(&self, disk: &LowerDisk, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        if pieces.len() > 1 {
            self.0.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        }
        disk.write_scattered(pieces)
    }
}

/// Opens the pool in `path`; its destage never waits for more.
fn open(path: &Path, together: &Arc<Together>) -> Arc<Pool> {
    let dir = LayeredDir::over(Arc::new(FileDir::new(path)), together.clone());
    let options = PoolOptions { destage_start_percent: 0, direct_min: None, ..PoolOptions::default() };
    Pool::open(Arc::new(dir), world(1), options).unwrap()
}

/// Writes up to two blocks at 3,000 places, and the same to `content`.
fn scatter(volume: &Volume, content: &mut [u8], rng: &SplitMix) {
    for n in 0..3000u32 {
        // A few requests begin or end inside a block, which destage then reads.
        let (offset, len) = match n % 50 {
            0 => (rng.next() % (SIZE / SECTOR - 16) * SECTOR, 1 + rng.next() % 16),
            _ => (rng.next() % (SIZE / BLOCK - 2) * BLOCK, 8),
        };
        let (len, byte) = (len * SECTOR, n as u8);
        write(volume, offset, byte, len);
        content[offset as usize..][..len as usize].fill(byte);
    }
}

#[test]
fn what_is_not_read_passes_the_cache_and_is_what_was_written() {
    let tmp = tempfile::tempdir().unwrap();
    if !is_possible(tmp.path()) {
        println!("SKIPPED: no writes in flight on this system, or on this file system");
        return;
    }
    let together = Arc::new(Together::default());
    let config =
        PoolConfig { extent_size: MIB, journal_size: 64 * MIB, segment_size: 4 * MIB, atomic_unit: 4096 };
    let dir: Arc<dyn Dir> = Arc::new(FileDir::new(tmp.path()));
    Pool::create(dir.clone(), &world(1), &config, Placement::Anywhere, &[pv("pv", 64 * MIB)]).unwrap();
    let mut pool = open(tmp.path(), &together);
    pool.upgrade(&["sums".to_owned()]).unwrap();
    pool.create_volume(&new_volume("v", SIZE, CHUNK)).unwrap();
    let mut volume = pool.open_volume("v", false).unwrap();
    let mut content = vec![1; SIZE as usize];
    (0..16).for_each(|n| write(&volume, n * MIB, 1, MIB));
    idle(&pool);
    assert_eq!(together.0.load(Ordering::Relaxed), 0, "new slots do not take that way");
    let rng = SplitMix::new(7);
    let mut read = vec![0; SIZE as usize];
    // The batches of the last two rounds come after reads.
    for (round, reads) in [(0, false), (1, false), (2, true), (3, true)] {
        let before = together.0.load(Ordering::Relaxed);
        scatter(&volume, &mut content, &rng);
        if reads {
            volume.read(0, &mut read).unwrap();
            assert!(read == content, "round {round}: staged content differs");
        }
        idle(&pool);
        let now = together.0.load(Ordering::Relaxed);
        assert_eq!(now > before + 300, !reads, "round {round}: {} runs together", now - before);
    }
    for _ in 0..2 {
        volume.read(0, &mut read).unwrap();
        assert!(read == content);
        pool.close().unwrap();
        drop((volume, pool));
        assert_clean(dir.clone());
        pool = open(tmp.path(), &together);
        volume = pool.open_volume("v", false).unwrap();
    }
}
