//! Disks and directories over others. A layer changes some operations and forwards the rest.

use super::{Backing, Dir, Disk, DiskLayout, OpenMode, Settled, SyncPurpose};
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A disk below a layer, and the name by which it was opened.
pub struct LowerDisk {
    name: String,
    disk: Arc<dyn Disk>,
}

impl LowerDisk {
    /// Returns the name by which the disk was opened, or an empty one for a disk without directory.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Deref for LowerDisk {
    type Target = dyn Disk;

    fn deref(&self) -> &Self::Target {
        &*self.disk
    }
}

/// The operations of a [`LayeredDir`] or a [`LayeredDisk`] that replace forwarding. Each method
/// stands for the one of [`Dir`] or [`Disk`] with its name, and forwards by default.
#[allow(missing_docs)] // Dir and Disk have them
pub trait Layer: Send + Sync + 'static {
    /// Opens a disk, locked or not; `open` opens the one below.
    fn open(
        &self,
        _name: &str,
        _mode: OpenMode,
        open: &dyn Fn() -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Arc<dyn Disk>> {
        open()
    }
    /// Notes that a disk is closed.
    fn closed(&self, _disk: &LowerDisk) {}
    fn lock(&self, dir: &dyn Dir, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        dir.lock(name)
    }
    fn lock_existing(&self, dir: &dyn Dir, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        dir.lock_existing(name)
    }
    fn remove(&self, dir: &dyn Dir, name: &str) -> io::Result<()> {
        dir.remove(name)
    }
    fn rename(&self, dir: &dyn Dir, from: &str, to: &str) -> io::Result<()> {
        dir.rename(from, to)
    }
    fn list(&self, dir: &dyn Dir) -> io::Result<Vec<String>> {
        dir.list()
    }
    fn sync_names(&self, dir: &dyn Dir, purpose: SyncPurpose) -> io::Result<()> {
        dir.sync(purpose)
    }

    fn read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_at(buf, offset)
    }
    fn try_read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        disk.try_read_at(buf, offset)
    }
    fn read_direct(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_direct(buf, offset)
    }
    fn drop_cached(&self, disk: &LowerDisk, offset: u64, len: u64) {
        disk.drop_cached(offset, len);
    }
    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        disk.write_at(buf, offset)
    }
    fn write_vectored_at(&self, disk: &LowerDisk, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        disk.write_vectored_at(bufs, offset)
    }
    fn write_direct(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        disk.write_direct(buf, offset)
    }
    /// Writes pieces one by one, by the layer's own `write_at`: it is the only method that does not
    /// forward by default.
    fn write_scattered(&self, disk: &LowerDisk, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        pieces.iter().try_for_each(|(bytes, offset)| self.write_at(disk, bytes, *offset))
    }
    fn sync(&self, disk: &LowerDisk, purpose: SyncPurpose) -> io::Result<()> {
        disk.sync(purpose)
    }
    fn set_len(&self, disk: &LowerDisk, len: u64) -> io::Result<()> {
        disk.set_len(len)
    }
    fn allocate(&self, disk: &LowerDisk, offset: u64, len: u64) -> io::Result<()> {
        disk.allocate(offset, len)
    }
    fn punch(&self, disk: &LowerDisk, offset: u64, len: u64) -> io::Result<()> {
        disk.punch(offset, len)
    }
    fn zero(&self, disk: &LowerDisk, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        disk.zero(offset, len, unmap)
    }
    fn run_at(&self, disk: &LowerDisk, offset: u64) -> io::Result<(u64, bool)> {
        disk.run_at(offset)
    }
    fn backing_available(&self, disk: &LowerDisk) -> io::Result<Option<Backing>> {
        disk.backing_available()
    }
    fn overwrites_elsewhere(&self, disk: &LowerDisk) -> io::Result<bool> {
        disk.overwrites_elsewhere()
    }
    fn answers(&self, disk: &LowerDisk) -> io::Result<()> {
        disk.answers()
    }
}

/// A directory over another one, with a layer between them that all its disks share.
pub struct LayeredDir<L> {
    below: Arc<dyn Dir>,
    layer: Arc<L>,
}

/// A disk over another one, with a layer between them.
pub struct LayeredDisk<L: Layer> {
    below: LowerDisk,
    layer: Arc<L>,
}

impl<L: Layer> LayeredDir<L> {
    /// Makes a directory over `below`.
    pub fn over(below: Arc<dyn Dir>, layer: Arc<L>) -> LayeredDir<L> {
        LayeredDir { below, layer }
    }

    /// Returns the layer.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    fn opened(
        &self,
        name: &str,
        mode: OpenMode,
        open: impl Fn() -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Arc<dyn Disk>> {
        let disk = self.layer.open(name, mode, &open)?;
        let below = LowerDisk { name: name.to_owned(), disk };
        Ok(Arc::new(LayeredDisk { below, layer: self.layer.clone() }))
    }
}

impl<L: Layer> LayeredDisk<L> {
    /// Makes a disk over `disk`.
    pub fn over(disk: Arc<dyn Disk>, layer: Arc<L>) -> LayeredDisk<L> {
        LayeredDisk { below: LowerDisk { name: String::new(), disk }, layer }
    }
}

impl<L: Layer> Drop for LayeredDisk<L> {
    fn drop(&mut self) {
        self.layer.closed(&self.below);
    }
}

#[deny(clippy::missing_trait_methods)] // a method that is not forwarded would do what its default does
impl<L: Layer> Dir for LayeredDir<L> {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.opened(name, mode, || self.below.open(name, mode))
    }
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.opened(name, mode, || self.below.open_locked(name, mode))
    }
    fn open_for_flight(&self, name: &str, mode: OpenMode, wait: Duration) -> io::Result<Arc<dyn Disk>> {
        self.opened(name, mode, || self.below.open_for_flight(name, mode, wait))
    }
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.layer.lock(&*self.below, name)
    }
    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.layer.lock_existing(&*self.below, name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.layer.remove(&*self.below, name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.layer.rename(&*self.below, from, to)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.layer.list(&*self.below)
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.layer.sync_names(&*self.below, purpose)
    }
}

#[deny(clippy::missing_trait_methods)] // a method that is not forwarded would do what its default does
impl<L: Layer> Disk for LayeredDisk<L> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.layer.read_at(&self.below, buf, offset)
    }
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.layer.try_read_at(&self.below, buf, offset)
    }
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.layer.read_direct(&self.below, buf, offset)
    }
    fn drop_cached(&self, offset: u64, len: u64) {
        self.layer.drop_cached(&self.below, offset, len);
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.layer.write_at(&self.below, buf, offset)
    }
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.layer.write_vectored_at(&self.below, bufs, offset)
    }
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.layer.write_direct(&self.below, buf, offset)
    }
    fn write_scattered(&self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        self.layer.write_scattered(&self.below, pieces)
    }
    fn scatters(&self) -> bool {
        self.below.scatters()
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.layer.sync(&self.below, purpose)
    }
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.layer.set_len(&self.below, len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.layer.allocate(&self.below, offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.layer.punch(&self.below, offset, len)
    }
    fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        self.layer.zero(&self.below, offset, len, unmap)
    }
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        self.layer.run_at(&self.below, offset)
    }
    fn modified(&self) -> io::Result<Option<u64>> {
        self.below.modified()
    }
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        self.layer.backing_available(&self.below)
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.below.will_need(offset, len);
    }
    fn advise_random(&self) {
        self.below.advise_random();
    }
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        self.layer.overwrites_elsewhere(&self.below)
    }
    fn answers(&self) -> io::Result<()> {
        self.layer.answers(&self.below)
    }
    fn is_block_device(&self) -> bool {
        self.below.is_block_device()
    }
    fn physical_block(&self) -> io::Result<Option<u64>> {
        self.below.physical_block()
    }
    fn settle(&self, buf: &mut [u8], offset: u64, is_right: &dyn Fn(&[u8]) -> bool) -> io::Result<Settled> {
        self.below.settle(buf, offset, is_right)
    }
    fn agrees(&self, content: &[u8], offset: u64) -> io::Result<bool> {
        self.below.agrees(content, offset)
    }
    fn as_layout(&self) -> Option<DiskLayout<'_>> {
        self.below.as_layout()
    }
}
