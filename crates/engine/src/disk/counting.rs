//! A directory that counts syncs by purpose, for metrics.

use super::{Backing, Dir, Disk, OpenMode, SyncPurpose};
use std::io;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Counts = Arc<[AtomicU64; SyncPurpose::ALL.len()]>;

/// A directory that passes every call to `inner` and counts the syncs that succeeded.
pub(crate) struct CountingDir {
    inner: Arc<dyn Dir>,
    counts: Counts,
}

struct CountingDisk {
    inner: Arc<dyn Disk>,
    counts: Counts,
}

impl CountingDir {
    pub(crate) fn new(inner: Arc<dyn Dir>) -> Self {
        CountingDir { inner, counts: Arc::default() }
    }

    /// The number of successful syncs for `purpose`.
    pub(crate) fn syncs(&self, purpose: SyncPurpose) -> u64 {
        self.counts[purpose as usize].load(Ordering::Relaxed)
    }
}

fn count(counts: &Counts, purpose: SyncPurpose, synced: io::Result<()>) -> io::Result<()> {
    synced?;
    counts[purpose as usize].fetch_add(1, Ordering::Relaxed);
    Ok(())
}

impl Dir for CountingDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        let inner = self.inner.open(name, mode)?;
        Ok(Arc::new(CountingDisk { inner, counts: self.counts.clone() }))
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        let inner = self.inner.open_locked(name, mode)?;
        Ok(Arc::new(CountingDisk { inner, counts: self.counts.clone() }))
    }
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock(name)
    }
    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock_existing(name)
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
        count(&self.counts, purpose, self.inner.sync(purpose))
    }
}

impl Disk for CountingDisk {
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
        count(&self.counts, purpose, self.inner.sync(purpose))
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
    fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        self.inner.zero(offset, len, unmap)
    }
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        self.inner.run_at(offset)
    }
    fn modified(&self) -> io::Result<Option<u64>> {
        self.inner.modified()
    }
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        self.inner.backing_available()
    }
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_direct(buf, offset)
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        self.inner.overwrites_elsewhere()
    }
    fn answers(&self) -> io::Result<()> {
        self.inner.answers()
    }
    fn advise_random(&self) {
        self.inner.advise_random();
    }
    fn is_block_device(&self) -> bool {
        self.inner.is_block_device()
    }
    fn physical_block(&self) -> io::Result<Option<u64>> {
        self.inner.physical_block()
    }
}
