//! The bottom seam: files and block devices as the engine sees them. Faults are injected here and
//! nowhere else.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

mod aligned;
mod counting;
mod file;
mod image;
mod lane;
mod memory;
mod open_files;
mod overlay;
mod place;
#[cfg(test)]
mod scarce;

pub(crate) use aligned::Aligned;
pub(crate) use counting::CountingDir;
pub use file::{FileDir, allow_many_files};
pub use image::{Image, PAGE as IMAGE_PAGE};
pub(crate) use lane::SerialWriter;
pub use memory::MemDir;
pub(crate) use open_files::{NamedFile, OpenFiles};
pub use overlay::OverlayDir;
pub use place::{Bound, Hold, Look, open_without_links};
#[cfg(test)]
pub(crate) use scarce::ScarceDir;

/// Is an error that of a medium which can't give back what lies there? Others (a shortage, a closed
/// disk) pass.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    /// EIO, ENODATA, EBADMSG, EILSEQ, EUCLEAN, EREMOTEIO.
    const CODES: [i32; 6] = [5, 61, 74, 84, 117, 121];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// Why a sync is issued. Shown in metrics; the simulator drops syncs by purpose to prove that each
/// one is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyncPurpose {
    /// Make acknowledged writes durable (FLUSH, FUA, control operations, before a destage).
    Journal,
    /// At open: what the scan found becomes durable before anything acts on it.
    JournalOpen,
    /// New slots, before the catalog commit that points to them.
    Preserve,
    /// Slots overwritten in place, before the commit that lets go of the journal.
    Apply,
    /// CDP records, before the commit that makes them count.
    Cdp,
    /// The catalog's own commits.
    Catalog,
    /// Labels of physical volumes.
    Label,
    /// Stamps of physical volumes: how far the pool had come when it last said so.
    Stamp,
    /// Names in the data directory.
    Dir,
    /// CDP records of many branches in one segment, before the commit that makes them count.
    CdpShared,
    /// CDP records that are brought from there to segments of their branches, before the commit
    /// that takes them away there.
    CdpSorted,
}

impl SyncPurpose {
    /// All purposes, in declaration order.
    pub const ALL: [SyncPurpose; 11] = [
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
    ];

    /// The name used in metrics and by `sim --drop-sync`.
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
        }
    }
}

/// What the file system below a file can still provide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// Which file system it is: files with the same number take their space from one another.
    pub file_system: u64,
    /// Bytes that it could still allocate.
    pub available: u64,
}

/// Bytes that are read to see whether a disk answers.
pub(crate) const PROBED: u64 = 4096;

/// A file or block device: an array of bytes. Reads see writes at once; only a completed `sync`
/// makes them durable.
pub trait Disk: Send + Sync {
    /// Fills `buf` from `offset`; past the end it fails with `UnexpectedEof`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Like `read_at`, but `Ok(false)` instead of waiting for the device. `Ok(true)`: `buf` is
    /// filled.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Writes all of `buf` at `offset`, growing a file as needed.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all slices, one after another, at `offset`. The number of slices is not limited.
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`, both whole blocks of 4 KiB, for nobody who will read it
    /// soon: past the page cache, where that can be. It is as durable as what `write_at` writes.
    /// What is [`Aligned`] is not copied.
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buf, offset)
    }

    /// Makes every completed write, and the length, durable. After an error nothing is known about
    /// any write since the last successful sync: the caller must not retry and believe (I7).
    /// Somebody else who syncs at the same time, or later, must not be told less: from an error on
    /// all syncs fail.
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()>;

    /// Current length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Cuts or extends (with zeros) a file. Not for block devices.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves backing space, keeping content; does nothing where that has no meaning.
    /// `StorageFull` when there is none.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives backing space back; the range's content is undefined afterwards. A hint that may do
    /// nothing.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes a range read as zeros without writing them: with `unmap` by giving backing space back,
    /// else by keeping or reserving it. `Ok(false)`: it can't, and nothing has changed that the
    /// caller would not overwrite with zeros.
    fn zero(&self, _offset: u64, _len: u64, _unmap: bool) -> io::Result<bool> {
        Ok(false)
    }

    /// What lies at `offset` and after it: `(end, data)`, where `data` is false for a hole that
    /// reads as zeros, and `end` is where that changes. Where holes are not known everything up to
    /// the end of the disk is data.
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        Ok((self.len()?.max(offset), true))
    }

    /// When its content was changed last, in nanoseconds since the Unix epoch; `None` where that is
    /// not known (a block device).
    fn modified(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// What the backing store could still allocate for this file; `None` when it is fully backed (a
    /// block device).
    fn backing_available(&self) -> io::Result<Option<Backing>>;

    /// Tells that a range will be read soon: it may be fetched meanwhile, many at a time.
    fn will_need(&self, _offset: u64, _len: u64) {}

    /// Tells that access will be random (no read-ahead, small page-cache folios).
    fn advise_random(&self);

    /// Does the file system below write what is overwritten somewhere else, so that overwriting
    /// needs space? What [`Disk::allocate`] reserves is not kept for it then.
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Does the disk itself answer? Reads a block at its beginning, or else at its end, past what
    /// is cached, where that can be.
    fn answers(&self) -> io::Result<()> {
        let len = self.len()?;
        let mut block = vec![0; len.min(PROBED) as usize];
        self.read_at(&mut block, 0).or_else(|_| self.read_at(&mut block, len.saturating_sub(PROBED)))
    }

    /// A block device that can't change its length.
    fn is_block_device(&self) -> bool;

    /// The block, in bytes, that the device below writes as a whole: interrupted, it may take all
    /// of it along. `None` where that is not known.
    fn physical_block(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

/// How [`Dir::open`] treats existing and missing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist.
    Existing,
    /// Must exist; opened for reading only.
    ReadOnly,
    /// Must not exist.
    CreateNew,
    /// Either.
    Create,
}

/// A directory of disks. Names are relative to it; an absolute path names a disk elsewhere (a block
/// device).
pub trait Dir: Send + Sync {
    /// Opens a disk.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>>;

    /// Opens a disk and locks the disk itself, whatever its names are, for as long as the returned
    /// value lives: shared for [`OpenMode::ReadOnly`], exclusively otherwise. `WouldBlock` when
    /// another process, or another handle of this one, holds a lock that excludes this one. `name`
    /// still names the locked disk when this returns.
    ///
    /// Block devices have an owner through `O_EXCL` and are not locked in addition.
    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>>;

    /// Opens (creating it) and locks `name` exclusively, for as long as the returned value lives.
    /// `WouldBlock` when another process holds it.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>>;

    /// Locks `name` exclusively like `lock`, but writes nothing: `NotFound` when it is not there.
    fn lock_existing(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.open(name, OpenMode::ReadOnly)?;
        self.lock(name)
    }

    /// Removes a name. Durable after `sync`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file of this directory another name, replacing what had it, in one step. Durable
    /// after `sync`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// All names of plain files in this directory, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes created and removed names durable.
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()>;
}

/// What every kind of disk must do.
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
