//! A directory in which resources run short, for tests.

use super::layer::{Layer, LayeredDir, LowerDisk};
use super::{Dir, Disk, OpenMode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Descriptors, of which there are few.
pub(crate) struct Descriptors {
    open: AtomicUsize,
    /// The number of disks that may be open at once.
    limit: AtomicUsize,
    /// The largest number of disks that were open at once.
    most: AtomicUsize,
}

/// A directory that passes every call to another one, as long as there are descriptors.
pub(crate) type ScarceDir = LayeredDir<Descriptors>;

impl ScarceDir {
    pub(crate) fn new(below: Arc<dyn Dir>, limit: usize) -> ScarceDir {
        let [open, limit, most] = [0, limit, 0].map(AtomicUsize::new);
        LayeredDir::over(below, Arc::new(Descriptors { open, limit, most }))
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.layer().limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn open_now(&self) -> usize {
        self.layer().open.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> usize {
        self.layer().most.load(Ordering::Relaxed)
    }
}

impl Layer for Descriptors {
    fn open(
        &self,
        _name: &str,
        _mode: OpenMode,
        open: &dyn Fn() -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Arc<dyn Disk>> {
        let count = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        let opened = if count > self.limit.load(Ordering::Relaxed) {
            Err(io::Error::from_raw_os_error(24))
        } else {
            self.most.fetch_max(count, Ordering::Relaxed);
            open()
        };
        if opened.is_err() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        opened
    }
    fn closed(&self, _disk: &LowerDisk) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
