//! The bottom seam: files and block devices as the engine sees them. Faults are injected here and nowhere else.

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

mod file;
mod memory;

pub use file::FileDir;
pub use memory::MemDir;

/// Why a sync is issued. Shown in metrics; the simulator drops syncs by purpose to prove that each one is needed.
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
    /// The catalog's own commits.
    Catalog,
    /// Labels of physical volumes.
    Label,
    /// Names in the data directory.
    Dir,
}

impl SyncPurpose {
    /// All purposes, in declaration order.
    pub const ALL: [SyncPurpose; 7] = [
        SyncPurpose::Journal,
        SyncPurpose::JournalOpen,
        SyncPurpose::Preserve,
        SyncPurpose::Apply,
        SyncPurpose::Catalog,
        SyncPurpose::Label,
        SyncPurpose::Dir,
    ];

    /// The name used in metrics and by `sim --drop-sync`.
    pub fn name(self) -> &'static str {
        match self {
            SyncPurpose::Journal => "journal",
            SyncPurpose::JournalOpen => "journal-open",
            SyncPurpose::Preserve => "preserve",
            SyncPurpose::Apply => "apply",
            SyncPurpose::Catalog => "catalog",
            SyncPurpose::Label => "label",
            SyncPurpose::Dir => "dir",
        }
    }
}

/// A file or block device: an array of bytes. Reads see writes at once; only a completed `sync` makes them durable.
pub trait Disk: Send + Sync {
    /// Fills `buf` from `offset`; past the end it fails with `UnexpectedEof`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Like `read_at`, but `Ok(false)` instead of waiting for the device. `Ok(true)`: `buf` is filled.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Writes all of `buf` at `offset`, growing a file as needed.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all slices, one after another, at `offset`. The number of slices is not limited.
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Makes every completed write, and the length, durable. After an error nothing is known about any write since
    /// the last successful sync: the caller must not retry and believe (I7).
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()>;

    /// Current length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Cuts or extends (with zeros) a file. Not for block devices.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves backing space, keeping content; does nothing where that has no meaning. `StorageFull` when there is
    /// none.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives backing space back; the range's content is undefined afterwards. A hint that may do nothing.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Bytes that the backing store could still allocate for this file; `None` when it is fully backed (a block
    /// device).
    fn backing_available(&self) -> io::Result<Option<u64>>;

    /// Tells that access will be random (no read-ahead, small page-cache folios).
    fn advise_random(&self);

    /// A block device that can't change its length.
    fn is_block_device(&self) -> bool;
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

/// A directory of disks. Names are relative to it; an absolute path names a disk elsewhere (a block device).
pub trait Dir: Send + Sync {
    /// Opens a disk.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>>;

    /// Opens (creating it) and locks `name` exclusively, for as long as the returned value lives. `WouldBlock` when
    /// another process holds it.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>>;

    /// Removes a name. Durable after `sync`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// All names of plain files in this directory, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes created and removed names durable.
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()>;
}
