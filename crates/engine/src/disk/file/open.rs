//! Opening files and block devices, and locking them.
//!
//! A process that is killed may leave writes in flight ([`Disk::write_scattered`]). They reach the
//! disk a little later. The next process must not write before that, or the earlier write would
//! replace the later one. The kernel does not wait for these writes before a process ends, but each
//! of them holds the open file through which it goes. So they go through the open file that has the
//! lock, and the lock ends with the last of them.
//!
//! [`Disk::write_scattered`]: crate::disk::Disk::write_scattered

use super::{FileDir, FileDisk, Syncs};
use crate::disk::OpenMode;
use crate::disk::aligned::BLOCK;
use crate::disk::place::Place;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The time between two attempts to get a lock.
const LOCK_STEP: Duration = Duration::from_millis(10);

/// File systems that remove from the page cache what a write in flight has replaced, and whose
/// locks belong to open files, by their numbers in `statfs(2)`: ext4 and XFS. A block device does
/// not: after such a write, its page cache may have the old content.
const SUITABLE: [rustix::fs::FsWord; 2] = [0xef53, 0x5846_5342];

impl FileDir {
    /// Opens a disk without a lock. A block device that may be written is claimed by `O_EXCL`.
    pub(super) fn open_file(&self, place: &Place, mode: OpenMode) -> io::Result<FileDisk> {
        let path = &place.way;
        let existing = match if place.is_new { fs::symlink_metadata(path) } else { fs::metadata(path) } {
            Ok(meta) => Some(meta),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let block = existing.as_ref().is_some_and(|m| m.file_type().is_block_device());
        // Opening anything else may wait for ever (a FIFO), or do something (a tape).
        if existing.as_ref().is_some_and(|m| !block && !m.file_type().is_file()) {
            return Err(super::no_disk());
        }
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::ReadOnly).mode(0o600);
        match mode {
            OpenMode::Existing | OpenMode::ReadOnly => {}
            OpenMode::CreateNew => {
                options.create_new(true);
            }
            // Without O_EXCL's other meaning in the way: a block device is never created.
            OpenMode::Create if !block => {
                options.create(true).truncate(false);
            }
            OpenMode::Create => {}
        }
        // The file may have been replaced since it was checked. So an open must not wait for
        // another process.
        let mut flags = OFlags::NONBLOCK;
        if place.is_new {
            flags |= OFlags::NOFOLLOW;
        }
        if block && mode != OpenMode::ReadOnly {
            // On a block device O_EXCL means: no other user (a mount, a RAID, another pool) has
            // claimed it.
            flags |= OFlags::EXCL;
        }
        let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
        let kind = file.metadata()?.file_type();
        if kind.is_block_device() != block || !(block || kind.is_file()) {
            return Err(super::no_disk());
        }
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        if existing.is_none() {
            self.sync_elsewhere(path)?;
        }
        Ok(FileDisk {
            file,
            block,
            locked: None,
            scatters: AtomicBool::new(true),
            nowait: AtomicBool::new(true),
            direct: Mutex::new(None),
            syncs: Syncs::default(),
        })
    }

    /// Opens a disk and locks it, unless it is a block device. With `flies` the disk may have
    /// writes in flight, and the call waits for those of a killed process, at most this time.
    pub(super) fn open_and_lock(
        &self,
        path: &Path,
        mode: OpenMode,
        flies: Option<Duration>,
    ) -> io::Result<FileDisk> {
        loop {
            // The caller that locks a file recognises it by its content.
            let place = Place::of(path, &[])?;
            let mut disk = self.open_file(&place, mode)?;
            if disk.block {
                return Ok(disk);
            }
            let is_for_flight = flies.is_some() && mode != OpenMode::ReadOnly && suits(&disk.file);
            let direct = is_for_flight.then(|| again(&disk.file, true, true, OFlags::DIRECT).ok()).flatten();
            let to_lock = direct.as_ref().unwrap_or(&disk.file);
            let is_locked = when_free(|| lock_file(to_lock, mode), flies.unwrap_or_default())?;
            // Without a lock, nothing would keep the next process away from writes in flight.
            disk.locked = direct.filter(|_| is_locked).map(LockedFile);
            if place.is_named(path, &disk.file)? {
                return Ok(disk);
            }
        }
    }
}

/// Returns whether a file may have writes in flight. A folio of the page cache, which is never
/// smaller than a block or a page, must not have blocks of two writers.
fn suits(file: &File) -> bool {
    let found = rustix::fs::fstatfs(file);
    let block = BLOCK as u64;
    found.is_ok_and(|fs| SUITABLE.contains(&fs.f_type) && fs.f_bsize.cast_unsigned() <= block)
        && rustix::param::page_size() as u64 <= block
}

/// An open file for direct I/O that has the lock of its disk. Each write in flight holds it. So the
/// lock of a killed process ends when the last write is done.
pub(super) struct LockedFile(File);

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens an open file another time, by its descriptor: the name may have gone.
pub(super) fn again(file: &File, read: bool, write: bool, flags: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(read).write(write).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Tries again for `wait` if somebody else has the lock.
fn when_free<T>(mut attempt: impl FnMut() -> io::Result<T>, wait: Duration) -> io::Result<T> {
    let mut left = wait.as_millis() / LOCK_STEP.as_millis();
    loop {
        match attempt() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && left > 0 => std::thread::sleep(LOCK_STEP),
            done => return done,
        }
        left -= 1;
    }
}

/// Locks an open file. The lock belongs to the open file and ends with it, also when the process is
/// killed. A file system without locks is used without a lock: false.
fn lock_file(file: &File, mode: OpenMode) -> io::Result<bool> {
    let how = match mode {
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        _ => FlockOperation::NonBlockingLockExclusive,
    };
    match retry_on_intr(|| rustix::fs::flock(file, how)) {
        Ok(()) => Ok(true),
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
