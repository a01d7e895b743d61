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
use crate::disk::place::Place;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Number of attempts to get a lock that writes in flight of a killed process may have, after the
/// first one. Together they take a second.
const LOCK_ATTEMPTS: u32 = 100;
/// The time before each of these attempts.
const LOCK_STEP: Duration = Duration::from_millis(10);

impl FileDir {
    /// Opens a disk without a lock. A block device that may be written is claimed.
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
        let claims = block && mode != OpenMode::ReadOnly;
        if claims {
            // On a block device O_EXCL means: no other user (a mount, a RAID, another pool) has
            // claimed it.
            flags |= OFlags::EXCL;
        }
        let mut open = || options.custom_flags(flags.bits().cast_signed()).open(path);
        let file = if claims { when_free(open, Errno::BUSY)? } else { open()? };
        let kind = file.metadata()?.file_type();
        if kind.is_block_device() != block || !(block || kind.is_file()) {
            return Err(super::no_disk());
        }
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        if existing.is_none() {
            self.sync_elsewhere(path)?;
        }
        // The open file with the claim is the one for direct I/O.
        let (file, holder) = match claims && rustix::fs::fcntl_setfl(&file, OFlags::DIRECT).is_ok() {
            true => (again(&file, OFlags::empty())?, Some(file)),
            false => (file, None),
        };
        Ok(FileDisk {
            file,
            block,
            holder,
            scatters: AtomicBool::new(true),
            nowait: AtomicBool::new(true),
            direct: Mutex::new(None),
            syncs: Syncs::default(),
        })
    }

    /// Opens a disk and locks it, unless it is a block device.
    pub(super) fn open_and_lock(&self, path: &Path, mode: OpenMode) -> io::Result<FileDisk> {
        loop {
            // The caller that locks a file recognises it by its content.
            let place = Place::of(path, &[])?;
            let mut disk = self.open_file(&place, mode)?;
            if !disk.block {
                if mode != OpenMode::ReadOnly {
                    // A file system without direct I/O has no writes in flight.
                    disk.holder = again(&disk.file, OFlags::DIRECT).ok();
                }
                let locked = disk.holder.as_ref().unwrap_or(&disk.file);
                if !when_free(|| lock_file(locked, mode), Errno::WOULDBLOCK)? {
                    // Nothing would keep the next process away from writes in flight.
                    disk.holder = None;
                }
                if !place.is_named(path, &disk.file)? {
                    continue;
                }
            }
            return Ok(disk);
        }
    }
}

/// Opens an open file another time, by its descriptor: the name may have gone.
fn again(file: &File, flags: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Tries again for a while if `attempt` fails with `held`.
fn when_free<T>(mut attempt: impl FnMut() -> io::Result<T>, held: Errno) -> io::Result<T> {
    for _ in 0..LOCK_ATTEMPTS {
        match attempt() {
            Err(e) if e.raw_os_error() == Some(held.raw_os_error()) => std::thread::sleep(LOCK_STEP),
            done => return done,
        }
    }
    attempt()
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
