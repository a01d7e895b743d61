//! Fixtures that tests of the server share: a pool on disk, and volumes in it.

use crate::world;
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_engine::pool::{NewVolume, Placement, Pool, PoolConfig, PoolOptions, PvSpec, VolumeInfo};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Makes a pool of 64 MiB in a directory that is removed with the first value.
pub(crate) fn pool() -> (tempfile::TempDir, Arc<Pool>) {
    let place = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(FileDir::new(place.path()));
    let config = PoolConfig { journal_size: 16 * MIB, segment_size: 4 * MIB, ..PoolConfig::default() };
    let pv = PvSpec { path: "pv-0.img".into(), size: Some(64 * MIB), force: false };
    Pool::create(dir.clone(), &world::real(), &config, Placement::Anywhere, &[pv]).unwrap();
    (place, Pool::open(dir, world::real(), PoolOptions::default()).unwrap())
}

/// Makes a volume of 1 MiB.
pub(crate) fn create(pool: &Pool, name: &str) -> VolumeInfo {
    let new =
        NewVolume { name: name.into(), size: MIB, chunk_size: 16 << 10, block_size: 512, read_only: false };
    pool.create_volume(&new).unwrap()
}
