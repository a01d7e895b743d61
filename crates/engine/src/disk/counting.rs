//! The directory of an open pool: it counts syncs by purpose, for metrics, over mirrors, over disks
//! that can be traced.

use super::layer::{Layer, LayeredDir, LowerDisk};
use super::layout::{LayoutOptions, with_layouts};
use super::{Dir, SyncPurpose, Tracer, TracingDir};
use crate::world::World;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of syncs that succeeded, by purpose, and the tracer of the disks below.
pub(crate) struct SyncCounts {
    counts: [AtomicU64; SyncPurpose::ALL.len()],
    tracer: Arc<Tracer>,
}

/// The directory of an open pool. It counts the syncs that succeeded.
pub(crate) type CountingDir = LayeredDir<SyncCounts>;

impl SyncCounts {
    fn count(&self, purpose: SyncPurpose, synced: io::Result<()>) -> io::Result<()> {
        synced?;
        self.counts[purpose as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Layer for SyncCounts {
    fn sync_names(&self, dir: &dyn Dir, purpose: SyncPurpose) -> io::Result<()> {
        self.count(purpose, dir.sync(purpose))
    }
    fn write_scattered(&self, disk: &LowerDisk, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        disk.write_scattered(pieces)
    }
    fn sync(&self, disk: &LowerDisk, purpose: SyncPurpose) -> io::Result<()> {
        self.count(purpose, disk.sync(purpose))
    }
}

impl CountingDir {
    /// Makes the directory over `below`. With `parallel` false, no threads are used.
    pub(crate) fn new(below: Arc<dyn Dir>, world: &World, options: LayoutOptions) -> CountingDir {
        let tracer = Arc::new(Tracer::new(world.clock.clone()));
        let traced = Arc::new(TracingDir::over(below, tracer.clone()));
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        LayeredDir::over(with_layouts(traced, options), Arc::new(SyncCounts { counts, tracer }))
    }

    /// Returns the tracer of the disks of the directory.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.layer().tracer
    }

    /// Returns the number of successful syncs for `purpose`.
    pub(crate) fn syncs(&self, purpose: SyncPurpose) -> u64 {
        self.layer().counts[purpose as usize].load(Ordering::Relaxed)
    }
}
