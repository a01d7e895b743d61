//! A directory that counts syncs by purpose, for metrics.

use super::layer::{Layer, LayeredDir, LowerDisk};
use super::{Dir, SyncPurpose};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of syncs that succeeded, by purpose.
#[derive(Default)]
pub(crate) struct SyncCounts([AtomicU64; SyncPurpose::ALL.len()]);

/// A directory that counts the syncs that succeeded.
pub(crate) type CountingDir = LayeredDir<SyncCounts>;

impl SyncCounts {
    fn count(&self, purpose: SyncPurpose, synced: io::Result<()>) -> io::Result<()> {
        synced?;
        self.0[purpose as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Layer for SyncCounts {
    fn sync_names(&self, dir: &dyn Dir, purpose: SyncPurpose) -> io::Result<()> {
        self.count(purpose, dir.sync(purpose))
    }
    fn sync(&self, disk: &LowerDisk, purpose: SyncPurpose) -> io::Result<()> {
        self.count(purpose, disk.sync(purpose))
    }
}

impl CountingDir {
    pub(crate) fn new(below: Arc<dyn Dir>) -> CountingDir {
        LayeredDir::over(below, Arc::default())
    }

    /// Returns the number of successful syncs for `purpose`.
    pub(crate) fn syncs(&self, purpose: SyncPurpose) -> u64 {
        self.layer().0[purpose as usize].load(Ordering::Relaxed)
    }
}
