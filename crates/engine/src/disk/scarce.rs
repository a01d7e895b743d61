//! A directory in which resources run short, for tests.

use super::{Backing, Dir, Disk, OpenMode, SyncPurpose};
use std::io;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Passes everything on to `inner`, as long as there are descriptors.
pub(crate) struct ScarceDir {
    inner: Arc<dyn Dir>,
    open: Arc<AtomicUsize>,
    /// Disks that may be open at once.
    limit: AtomicUsize,
    /// The most that were.
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
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.inner.sync(purpose)
    }
}

impl Disk for ScarceDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.inner.try_read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(buf, offset)
    }
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.write_vectored_at(bufs, offset)
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.inner.sync(purpose)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.punch(offset, len)
    }
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        self.inner.backing_available()
    }
    fn advise_random(&self) {
        self.inner.advise_random();
    }
    fn is_block_device(&self) -> bool {
        self.inner.is_block_device()
    }
}
