//! The bottom seam: files and block devices as the engine sees them. Faults are injected here and
//! nowhere else.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

mod aligned;
mod counting;
mod file;
mod image;
mod lane;
mod layer;
pub(crate) mod layout;
mod memory;
mod open_files;
mod overlay;
mod place;
#[cfg(test)]
mod scarce;
mod trace;

pub(crate) use aligned::Aligned;
pub(crate) use counting::CountingDir;
pub use file::{FileDir, allow_many_files};
pub use image::{Image, PAGE as IMAGE_PAGE};
pub(crate) use lane::SerialWriter;
pub use layer::{Layer, LayeredDir, LayeredDisk, LowerDisk};
pub(crate) use layout::BlockSums;
pub use layout::{DiskLayout, Growth, Mirror, Raid5, RebuildProgress};
pub use memory::MemDir;
pub(crate) use open_files::{NamedFile, OpenFiles};
pub use overlay::OverlayDir;
pub use place::{Bound, Hold, Look, open_without_links};
#[cfg(test)]
pub(crate) use scarce::ScarceDir;
pub use trace::{
    ACCESS_LEN, AccessOp, Cause, DiskAccess, TraceDisk, TraceEncoder, TraceEnd, TraceHead, TracePart,
    TracePiece, TraceReader,
};
pub(crate) use trace::{Tracer, TracingDir};

/// Returns whether an error is that of a medium that can't return its data. Other errors (a
/// shortage, a closed disk) pass.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    /// The error numbers EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN and EREMOTEIO.
    const CODES: [i32; 6] = [5, 61, 74, 84, 117, 121];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// The purpose of a sync. It is shown in metrics. The simulator drops syncs by purpose to prove
/// that each one is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyncPurpose {
    /// Makes acknowledged writes durable (FLUSH, FUA, control operations, before a destage).
    Journal,
    /// Makes what the scan found durable at open, before anything acts on it.
    JournalOpen,
    /// Makes new slots durable, before the catalog commit that points to them.
    Preserve,
    /// Makes slots that were overwritten in place durable, before the commit that releases the
    /// journal.
    Apply,
    /// Makes CDP records durable, before the commit that makes them count.
    Cdp,
    /// Makes the catalog's own commits durable.
    Catalog,
    /// Makes labels of physical volumes durable.
    Label,
    /// Makes stamps of physical volumes durable. A stamp states how far the pool had come when it
    /// was written.
    Stamp,
    /// Makes names in the data directory durable.
    Dir,
    /// Makes CDP records of many branches in one segment durable, before the commit that makes them
    /// count.
    CdpShared,
    /// Makes CDP records durable that are moved from a shared segment to segments of their
    /// branches, before the commit that removes them from the shared segment.
    CdpSorted,
    /// Makes the data of references durable, before the journal's sync that covers the references
    /// counts.
    Direct,
    /// Makes the sums of data in place durable, before the commit that makes the data count.
    Sums,
    /// Makes what is known of a layout's members durable, before anything relies on it.
    Layout,
    /// Makes the parity log of a RAID-5 durable, before the lines that it names are written.
    Parity,
    /// Makes the list of what changed while a member of a layout is out durable, before a sync of
    /// the layout returns.
    Stale,
}

impl SyncPurpose {
    /// All purposes, in the order of their declaration.
    pub const ALL: [SyncPurpose; 16] = [
        SyncPurpose::Journal,
        SyncPurpose::JournalOpen,
        SyncPurpose::Preserve,
        SyncPurpose::Apply,
        SyncPurpose::Cdp,
        SyncPurpose::Catalog,
        SyncPurpose::Label,
        SyncPurpose::Stamp,
        SyncPurpose::Dir,
        SyncPurpose::CdpShared,
        SyncPurpose::CdpSorted,
        SyncPurpose::Direct,
        SyncPurpose::Sums,
        SyncPurpose::Layout,
        SyncPurpose::Parity,
        SyncPurpose::Stale,
    ];

    /// Returns the name that metrics and `sim --drop-sync` use.
    pub fn name(self) -> &'static str {
        match self {
            SyncPurpose::Journal => "journal",
            SyncPurpose::JournalOpen => "journal-open",
            SyncPurpose::Preserve => "preserve",
            SyncPurpose::Apply => "apply",
            SyncPurpose::Cdp => "cdp",
            SyncPurpose::Catalog => "catalog",
            SyncPurpose::Label => "label",
            SyncPurpose::Stamp => "stamp",
            SyncPurpose::Dir => "dir",
            SyncPurpose::CdpShared => "cdp-shared",
            SyncPurpose::CdpSorted => "cdp-sorted",
            SyncPurpose::Direct => "direct",
            SyncPurpose::Sums => "sums",
            SyncPurpose::Layout => "layout",
            SyncPurpose::Parity => "parity",
            SyncPurpose::Stale => "stale",
        }
    }
}

/// The space that the file system below a file can still provide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// The number of the file system. Files with one number take their space from one file system.
    pub file_system: u64,
    /// Bytes that the file system could still allocate.
    pub available: u64,
}

/// What [`Disk::settle`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// No copy is right.
    NoneRight,
    /// All copies are right.
    AllRight,
    /// Some copies were wrong, and are like the right one now.
    Mended,
}

/// Size in bytes of the largest single write of scattered content to the page cache. The kernel
/// makes folios as large as the writes that first fill them. Every later write to a part of a folio
/// goes through all its blocks.
const MAX_CACHED: usize = 16 << 10;

/// Cuts a write to the page cache into writes of at most [`MAX_CACHED`] bytes.
pub(crate) fn write_in_folios(
    bytes: &[u8],
    offset: u64,
    write: &dyn Fn(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    bytes.chunks(MAX_CACHED).zip((offset..).step_by(MAX_CACHED)).try_for_each(|(part, at)| write(part, at))
}

/// The number of bytes that are read to find out whether a disk answers.
pub(crate) const PROBED: u64 = 4096;

/// A file or block device: an array of bytes. A read sees a write at once. Only a completed `sync`
/// makes the write durable.
pub trait Disk: Send + Sync {
    /// Fills `buf` from `offset`. A read past the end fails with `UnexpectedEof`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Reads like `read_at`, but returns `Ok(false)` instead of waiting for the device. After
    /// `Ok(true)` `buf` is filled.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Reads like `read_at`, past the page cache where the file system allows that: the medium
    /// itself answers. `buf` and `offset` are whole blocks of 4 KiB.
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buf, offset)
    }

    /// Removes a range from the page cache, as far as it is unchanged there: the next read asks the
    /// medium. It is a hint, and may do nothing.
    fn drop_cached(&self, _offset: u64, _len: u64) {}

    /// Writes all of `buf` at `offset`. A file grows as needed.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all slices, one after another, at `offset`. The number of slices is not limited.
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`; both are whole blocks of 4 KiB. It is for data that will
    /// not be read soon, and passes the page cache by where the file system allows that. The write
    /// is as durable as one of `write_at`. The content of an [`Aligned`] is not copied.
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buf, offset)
    }

    /// Writes pieces that do not overlap: (bytes, offset). They go in any order, and many at a
    /// time. Pieces of whole blocks of 4 KiB pass the page cache by where that is possible. After
    /// an error some pieces may be written, whole or in part.
    fn write_scattered(&self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        pieces.iter().try_for_each(|(bytes, offset)| {
            write_in_folios(bytes, *offset, &|part, at| self.write_at(part, at))
        })
    }

    /// Returns whether [`Disk::write_scattered`] has many writes in flight here, as far as that is
    /// known. Otherwise it is no better than `write_at`.
    fn scatters(&self) -> bool {
        false
    }

    /// Makes every completed write, and the length, durable. After an error nothing is known about
    /// any write since the last successful sync, so the caller must not retry and believe (I7).
    /// From an error on all syncs fail: another caller that syncs at the same time, or later, must
    /// get an error too.
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()>;

    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Cuts a file, or extends it with zeros. Not for block devices.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves backing space and keeps the content. It does nothing where a reservation has no
    /// meaning. It fails with `StorageFull` when there is no space.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives backing space back. The range's content is undefined afterwards. It is a hint, and may
    /// do nothing.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes a range read as zeros without writing zeros. With `unmap` backing space is given back.
    /// Otherwise it is kept or reserved. `Ok(false)` means that the disk can't do this. Then
    /// nothing has changed that the caller does not overwrite with zeros.
    fn zero(&self, _offset: u64, _len: u64, _unmap: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns `(end, data)` for what lies at `offset` and after it. `data` is false for a hole,
    /// which reads as zeros, and `end` is where that changes. On a disk that does not report holes
    /// everything up to the end of the disk is data.
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        Ok((self.len()?.max(offset), true))
    }

    /// Returns the time of the last change of the content, in nanoseconds since the Unix epoch, or
    /// `None` if it is not known (a block device).
    fn modified(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Returns what the backing store could still allocate for this file, or `None` when the disk
    /// is fully backed (a block device).
    fn backing_available(&self) -> io::Result<Option<Backing>>;

    /// Announces that a range will be read soon. The range may be fetched meanwhile, and many
    /// ranges at a time.
    fn will_need(&self, _offset: u64, _len: u64) {}

    /// Announces that access will be random (no read-ahead, small page-cache folios).
    fn advise_random(&self);

    /// Returns whether the file system below writes overwritten data to a new place, so that
    /// overwriting needs space. What [`Disk::allocate`] reserves is not kept for overwriting then.
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Checks that the disk itself answers. Reads a block at its beginning, or else at its end,
    /// past the cache where that is possible.
    fn answers(&self) -> io::Result<()> {
        let len = self.len()?;
        let mut block = vec![0; len.min(PROBED) as usize];
        self.read_at(&mut block, 0).or_else(|_| self.read_at(&mut block, len.saturating_sub(PROBED)))
    }

    /// Returns whether the disk is a block device, whose length can't change.
    fn is_block_device(&self) -> bool;

    /// Returns the block, in bytes, that the device below writes as a whole, or `None` if it is not
    /// known. An interrupted write may damage all of the block.
    fn physical_block(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Looks for a copy of a block of 4 KiB for which `is_right` is true. Fills `buf` with it, and
    /// makes all copies like it. What follows from a parity is a copy, too. A disk without copies
    /// has none.
    fn settle(
        &self,
        _buf: &mut [u8],
        _offset: u64,
        _is_right: &dyn Fn(&[u8]) -> bool,
    ) -> io::Result<Settled> {
        Ok(Settled::NoneRight)
    }

    /// Returns whether all copies of a range are like `content` on their media, and what follows
    /// from parities, too.
    fn agrees(&self, _content: &[u8], _offset: u64) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns the layout that the disk is.
    fn as_layout(&self) -> Option<DiskLayout<'_>> {
        None
    }
}

/// The way in which [`Dir::open`] treats existing and missing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// The disk must exist.
    Existing,
    /// The disk must exist. It is opened for reading only.
    ReadOnly,
    /// The disk must not exist.
    CreateNew,
    /// The disk may exist. Otherwise it is created.
    Create,
}

/// A directory of disks. Names are relative to it. An absolute path names a disk elsewhere (a block
/// device).
pub trait Dir: Send + Sync {
    /// Opens a disk.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>>;

    /// Opens a disk and locks the disk itself, whatever its names are, for as long as the returned
    /// value lives. The lock is shared for [`OpenMode::ReadOnly`] and exclusive otherwise. The call
    /// fails with `WouldBlock` when another process, or another handle of this one, holds a lock
    /// that excludes this one. `name` still names the locked disk when this returns.
    ///
    /// Block devices have an owner through `O_EXCL` and are not locked in addition.
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>>;

    /// Opens a disk like [`Dir::open_locked`]. [`Disk::write_scattered`] may have writes in flight
    /// there. A killed process may have left such writes, and they keep its lock. The call waits
    /// for a lock at most `wait`.
    fn open_for_flight(&self, name: &str, mode: OpenMode, _wait: Duration) -> io::Result<Arc<dyn Disk>> {
        self.open_locked(name, mode)
    }

    /// Opens `name` (and creates it if needed) and locks it exclusively, for as long as the
    /// returned value lives. The call fails with `WouldBlock` when another process holds the lock.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>>;

    /// Locks `name` exclusively like `lock`, but writes nothing. It fails with `NotFound` if `name`
    /// does not exist.
    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.open(name, OpenMode::ReadOnly)?;
        self.lock(name)
    }

    /// Removes a name. The removal is durable after `sync`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file of this directory in one step, and replaces a file that has the new name. The
    /// change is durable after `sync`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Returns all names of plain files in this directory, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes created, renamed and removed names durable.
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()>;
}

/// Tests of what every kind of disk must do.
#[cfg(test)]
mod tests {
    use super::*;

    fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
        result.err().unwrap().kind()
    }

    pub(super) fn modes(dir: &dyn Dir) {
        assert_eq!(kind(dir.open("a", OpenMode::Existing)), io::ErrorKind::NotFound);
        assert_eq!(kind(dir.open("a", OpenMode::ReadOnly)), io::ErrorKind::NotFound);
        assert_eq!(kind(dir.remove("a")), io::ErrorKind::NotFound);
        assert!(dir.list().unwrap().is_empty());
        dir.open("b", OpenMode::CreateNew).unwrap().write_at(b"hello", 0).unwrap();
        dir.open("a", OpenMode::Create).unwrap();
        assert_eq!(kind(dir.open("b", OpenMode::CreateNew)), io::ErrorKind::AlreadyExists);
        assert_eq!(dir.list().unwrap(), ["a", "b"]);
        for mode in [OpenMode::Create, OpenMode::Existing, OpenMode::ReadOnly] {
            let disk = dir.open("b", mode).unwrap();
            let mut buf = [0; 5];
            disk.read_at(&mut buf, 0).unwrap();
            assert_eq!(&buf, b"hello");
            assert!(!disk.is_block_device());
            assert_eq!(disk.write_at(b"h", 0).is_ok(), mode != OpenMode::ReadOnly);
        }
        let open = dir.open("b", OpenMode::Existing).unwrap();
        dir.remove("b").unwrap();
        dir.sync(SyncPurpose::Dir).unwrap();
        assert_eq!(dir.list().unwrap(), ["a"]);
        assert_eq!(open.len().unwrap(), 5, "an open disk outlives its name");
    }

    pub(super) fn contents(dir: &dyn Dir) {
        let disk = dir.open("a", OpenMode::CreateNew).unwrap();
        let mut buf = vec![1; 10_000];
        assert_eq!(disk.len().unwrap(), 0);
        assert_eq!(kind(disk.read_at(&mut buf[..1], 0)), io::ErrorKind::UnexpectedEof);
        disk.write_at(&[7; 3000], 5000).unwrap();
        disk.write_vectored_at(
            &mut [IoSlice::new(&[8; 10]), IoSlice::new(&[]), IoSlice::new(&[9; 10])],
            7990,
        )
        .unwrap();
        disk.write_vectored_at(&mut [], 1 << 20).unwrap();
        assert_eq!(disk.len().unwrap(), 8010);
        disk.read_at(&mut buf[..8010], 0).unwrap();
        assert!(buf[..5000].iter().all(|b| *b == 0) && buf[5000..7990].iter().all(|b| *b == 7));
        assert!(buf[7990..8000].iter().all(|b| *b == 8) && buf[8000..8010].iter().all(|b| *b == 9));
        disk.sync(SyncPurpose::Apply).unwrap();

        disk.set_len(6000).unwrap();
        assert_eq!(kind(disk.read_at(&mut buf[..1001], 5000)), io::ErrorKind::UnexpectedEof);
        disk.set_len(9000).unwrap();
        disk.read_at(&mut buf[..9000], 0).unwrap();
        assert!(buf[5000..6000].iter().all(|b| *b == 7), "kept");
        assert!(buf[6000..9000].iter().all(|b| *b == 0), "cut off, then grown");

        disk.allocate(4096, 8192).unwrap();
        assert_eq!(disk.len().unwrap(), 12288, "allocating past the end moves it");
        disk.allocate(0, 4096).unwrap();
        assert_eq!(disk.len().unwrap(), 12288);
        disk.punch(4096, 4096).unwrap();
        disk.read_at(&mut buf[..100], 0).unwrap();
        assert_eq!(disk.len().unwrap(), 12288);
        assert!(buf[..100].iter().all(|b| *b == 0));
    }

    pub(super) fn locks(dir: &dyn Dir) {
        assert_eq!(kind(dir.lock_existing("lock")), io::ErrorKind::NotFound);
        let held = dir.lock("lock").unwrap();
        assert_eq!(kind(dir.lock("lock")), io::ErrorKind::WouldBlock);
        assert_eq!(kind(dir.lock_existing("lock")), io::ErrorKind::WouldBlock);
        drop(held);
        let held = dir.lock_existing("lock").unwrap();
        assert_eq!(kind(dir.lock("lock")), io::ErrorKind::WouldBlock);
        drop(held);
        let _again = dir.lock("lock").unwrap();
        assert_eq!(dir.list().unwrap(), ["lock"]);
    }

    pub(super) fn disk_locks(dir: &dyn Dir) {
        let open = |mode| dir.open_locked("a", mode);
        assert_eq!(kind(open(OpenMode::Existing)), io::ErrorKind::NotFound);
        let one = open(OpenMode::CreateNew).unwrap();
        assert_eq!(kind(open(OpenMode::Existing)), io::ErrorKind::WouldBlock);
        assert_eq!(kind(open(OpenMode::ReadOnly)), io::ErrorKind::WouldBlock);
        dir.open("a", OpenMode::ReadOnly).unwrap();
        dir.rename("a", "b").unwrap();
        assert_eq!(kind(dir.open_locked("b", OpenMode::Existing)), io::ErrorKind::WouldBlock, "by any name");
        open(OpenMode::CreateNew).unwrap();
        dir.rename("a", "b").unwrap();
        let other = dir.open_locked("b", OpenMode::Existing).unwrap();
        drop((one, other));
        let readers = [(); 2].map(|()| dir.open_locked("b", OpenMode::ReadOnly).unwrap());
        assert_eq!(kind(dir.open_locked("b", OpenMode::Existing)), io::ErrorKind::WouldBlock);
        drop(readers);
        dir.open_locked("b", OpenMode::Existing).unwrap().write_at(b"x", 0).unwrap();
    }
}
