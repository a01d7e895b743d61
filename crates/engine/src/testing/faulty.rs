//! Disks and directories whose operations fail on demand.

use crate::disk::{Dir, Disk, Layer, LayeredDir, LayeredDisk, LowerDisk, OpenMode, PROBED, SyncPurpose};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

/// An operation that may fail, before it reaches the disk or directory below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op<'a> {
    /// The name of the disk. It is empty for a directory as a whole, and for a disk without one.
    pub name: &'a str,
    /// The kind of operation.
    pub act: Act,
}

/// The kinds of operations, with ranges of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// [`Dir::open`] or [`Dir::open_locked`].
    Open(OpenMode),
    /// [`Dir::lock`].
    Lock,
    /// [`Dir::lock_existing`].
    LockExisting,
    /// [`Dir::remove`].
    Remove,
    /// [`Dir::rename`] of this name to another one.
    Rename,
    /// [`Dir::list`].
    List,
    /// A read of any kind, and [`Disk::answers`].
    Read(Range<u64>),
    /// A write of any kind.
    Write(Range<u64>),
    /// [`Disk::sync`] or [`Dir::sync`].
    Sync(SyncPurpose),
    /// [`Disk::set_len`].
    SetLen(u64),
    /// [`Disk::allocate`].
    Allocate(Range<u64>),
    /// [`Disk::punch`].
    Punch(Range<u64>),
    /// [`Disk::zero`].
    Zero(Range<u64>),
}

/// A function that sees each operation, and decides whether it fails.
pub trait Fail: Fn(&Op<'_>) -> Option<io::Error> + Send + Sync + 'static {}
impl<F: Fn(&Op<'_>) -> Option<io::Error> + Send + Sync + 'static> Fail for F {}

/// The layer of a [`FaultyDir`].
pub struct Faults<F> {
    fail: F,
}

/// A directory whose operations fail as a function decides. The others are forwarded.
pub type FaultyDir<F> = LayeredDir<Faults<F>>;

/// A disk whose operations fail as a function decides. The others are forwarded.
pub type FaultyDisk<F> = LayeredDisk<Faults<F>>;

impl<F: Fail> FaultyDir<F> {
    /// Makes a directory over `below`.
    pub fn new(below: impl Dir + 'static, fail: F) -> Arc<FaultyDir<F>> {
        Arc::new(LayeredDir::over(Arc::new(below), Arc::new(Faults { fail })))
    }
}

impl<F: Fail> FaultyDisk<F> {
    /// Makes a disk over `disk`.
    pub fn new(disk: Arc<dyn Disk>, fail: F) -> Arc<FaultyDisk<F>> {
        Arc::new(LayeredDisk::over(disk, Arc::new(Faults { fail })))
    }
}

fn bytes(offset: u64, len: usize) -> Range<u64> {
    offset..offset.saturating_add(len as u64)
}

impl<F: Fail> Faults<F> {
    fn check(&self, name: &str, act: Act) -> io::Result<()> {
        (self.fail)(&Op { name, act }).map_or(Ok(()), Err)
    }
}

impl<F: Fail> Layer for Faults<F> {
    fn open(
        &self,
        name: &str,
        mode: OpenMode,
        open: &dyn Fn() -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Arc<dyn Disk>> {
        self.check(name, Act::Open(mode))?;
        open()
    }
    fn lock(&self, dir: &dyn Dir, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.check(name, Act::Lock)?;
        dir.lock(name)
    }
    fn lock_existing(&self, dir: &dyn Dir, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.check(name, Act::LockExisting)?;
        dir.lock_existing(name)
    }
    fn remove(&self, dir: &dyn Dir, name: &str) -> io::Result<()> {
        self.check(name, Act::Remove)?;
        dir.remove(name)
    }
    fn rename(&self, dir: &dyn Dir, from: &str, to: &str) -> io::Result<()> {
        self.check(from, Act::Rename)?;
        dir.rename(from, to)
    }
    fn list(&self, dir: &dyn Dir) -> io::Result<Vec<String>> {
        self.check("", Act::List)?;
        dir.list()
    }
    fn sync_names(&self, dir: &dyn Dir, purpose: SyncPurpose) -> io::Result<()> {
        self.check("", Act::Sync(purpose))?;
        dir.sync(purpose)
    }
    fn read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(disk.name(), Act::Read(bytes(offset, buf.len())))?;
        disk.read_at(buf, offset)
    }
    fn try_read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.check(disk.name(), Act::Read(bytes(offset, buf.len())))?;
        disk.try_read_at(buf, offset)
    }
    fn read_direct(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(disk.name(), Act::Read(bytes(offset, buf.len())))?;
        disk.read_direct(buf, offset)
    }
    fn write_at(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(disk.name(), Act::Write(bytes(offset, buf.len())))?;
        disk.write_at(buf, offset)
    }
    fn write_vectored_at(&self, disk: &LowerDisk, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.check(disk.name(), Act::Write(bytes(offset, len)))?;
        disk.write_vectored_at(bufs, offset)
    }
    fn write_direct(&self, disk: &LowerDisk, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(disk.name(), Act::Write(bytes(offset, buf.len())))?;
        disk.write_direct(buf, offset)
    }
    fn sync(&self, disk: &LowerDisk, purpose: SyncPurpose) -> io::Result<()> {
        self.check(disk.name(), Act::Sync(purpose))?;
        disk.sync(purpose)
    }
    fn set_len(&self, disk: &LowerDisk, len: u64) -> io::Result<()> {
        self.check(disk.name(), Act::SetLen(len))?;
        disk.set_len(len)
    }
    fn allocate(&self, disk: &LowerDisk, offset: u64, len: u64) -> io::Result<()> {
        self.check(disk.name(), Act::Allocate(offset..offset.saturating_add(len)))?;
        disk.allocate(offset, len)
    }
    fn punch(&self, disk: &LowerDisk, offset: u64, len: u64) -> io::Result<()> {
        self.check(disk.name(), Act::Punch(offset..offset.saturating_add(len)))?;
        disk.punch(offset, len)
    }
    fn zero(&self, disk: &LowerDisk, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        self.check(disk.name(), Act::Zero(offset..offset.saturating_add(len)))?;
        disk.zero(offset, len, unmap)
    }
    fn answers(&self, disk: &LowerDisk) -> io::Result<()> {
        // As the operation is specified: a block at the beginning, or else one at the end.
        let len = disk.len()?;
        let mut block = vec![0; len.min(PROBED) as usize];
        self.read_at(disk, &mut block, 0)
            .or_else(|_| self.read_at(disk, &mut block, len.saturating_sub(PROBED)))
    }
}
