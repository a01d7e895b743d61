//! A directory in which resources run short, for tests.

use super::{Dir, Disk, OpenMode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A directory that passes every call to `inner`, as long as there are descriptors.
pub(crate) struct ScarceDir {
    inner: Arc<dyn Dir>,
    open: Arc<AtomicUsize>,
    /// The number of disks that may be open at once.
    limit: AtomicUsize,
    /// The largest number of disks that were open at once.
    most: AtomicUsize,
}

struct ScarceDisk {
    inner: Arc<dyn Disk>,
    open: Arc<AtomicUsize>,
}

impl ScarceDir {
    pub(crate) fn new(inner: Arc<dyn Dir>, limit: usize) -> Self {
        let (limit, most) = (AtomicUsize::new(limit), AtomicUsize::new(0));
        ScarceDir { inner, open: Arc::default(), limit, most }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn open_now(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for ScarceDisk {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ScarceDir {
    fn counted(&self, open: impl FnOnce() -> io::Result<Arc<dyn Disk>>) -> io::Result<Arc<dyn Disk>> {
        let count = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        if count > self.limit.load(Ordering::Relaxed) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(24));
        }
        self.most.fetch_max(count, Ordering::Relaxed);
        match open() {
            // Counts itself out again when it is dropped.
            Ok(inner) => Ok(Arc::new(ScarceDisk { inner, open: self.open.clone() })),
            Err(error) => {
                self.open.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

impl Dir for ScarceDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.counted(|| self.inner.open(name, mode))
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.counted(|| self.inner.open_locked(name, mode))
    }
    forward!(inner: lock remove rename list sync);
}

impl Disk for ScarceDisk {
    forward!(inner: read_at try_read_at write_at write_vectored_at sync len set_len allocate punch backing_available advise_random is_block_device);
}
