//! Direct I/O: reads and writes past the page cache, in whole blocks of aligned memory.

use super::FileDisk;
use super::open::{LockedFile, again};
use crate::disk::aligned::{BLOCK, is_aligned};
use crate::disk::{Disk, write_in_folios};
use hindcast_ring::{Piece, Ring};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The largest part, in bytes, of a direct write from memory that has to be copied first. Each part
/// takes one call.
const MAX_DIRECT: usize = 1 << 20;

/// The most writes of one thread in flight.
const MAX_IN_FLIGHT: u32 = 64;

/// The largest part, in bytes, of a direct read. Each part takes one call.
const MAX_READ: usize = 256 << 10;

thread_local! {
    /// A buffer of the thread, in which a part begins at a block.
    static ALIGNED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };

    /// Writes of the thread that are in flight together.
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

impl FileDisk {
    /// Returns the file opened for direct I/O, or `None` if it can't be opened so.
    fn direct_file(&self) -> Option<Arc<File>> {
        let mut direct = self.direct.lock();
        if direct.is_none() {
            *direct = again(&self.file, false, true, OFlags::DIRECT).ok().map(Arc::new);
        }
        direct.clone()
    }

    /// Reads whole blocks past the page cache, or through it where that is not possible.
    pub(super) fn read_past_cache(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        for (part, at) in buf.chunks_mut(MAX_READ).zip((offset..).step_by(MAX_READ)) {
            if !self.read_directly(part, at)? {
                self.file.read_exact_at(part, at)?;
            }
        }
        Ok(())
    }

    /// Reads whole blocks, at most [`MAX_READ`] bytes, past the page cache. Returns false if that
    /// is not possible here.
    pub(super) fn read_directly(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        let Ok(file) = again(&self.file, true, false, OFlags::DIRECT) else { return Ok(false) };
        ALIGNED.with_borrow_mut(|memory| {
            memory.resize(memory.len().max(buf.len() + BLOCK), 0);
            let skip = memory.as_ptr().align_offset(BLOCK);
            let Some(aligned) = memory.get_mut(skip..skip + buf.len()) else { return Ok(false) };
            match file.read_exact_at(aligned, at) {
                Ok(()) => {
                    buf.copy_from_slice(aligned);
                    Ok(true)
                }
                // Larger blocks than this, or a disk that is shorter.
                Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(false),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
                Err(e) => Err(e),
            }
        })
    }

    /// Writes pieces past the page cache, many at a time. What is no whole block goes to the page
    /// cache, and so does everything where this is not possible.
    pub(super) fn write_pieces(&self, pieces: &[Piece<'_>]) -> io::Result<()> {
        let cached =
            |(bytes, at): &Piece<'_>| write_in_folios(bytes, *at, &|part, at| self.write_at(part, at));
        let is_whole =
            |(bytes, at): &Piece<'_>| bytes.len().is_multiple_of(BLOCK) && at.is_multiple_of(BLOCK as u64);
        let file = self.locked.as_ref().filter(|_| self.scatters.load(Ordering::Relaxed));
        let Some(file) = file else { return pieces.iter().try_for_each(cached) };
        let whole = pieces.iter().copied().filter(is_whole);
        let parts = whole.flat_map(|(bytes, at)| bytes.chunks(MAX_DIRECT).zip((at..).step_by(MAX_DIRECT)));
        let parts: Vec<Piece<'_>> = parts.collect();
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest
                .iter()
                .take_while(|(part, _)| {
                    bytes += part.len();
                    bytes <= MAX_DIRECT
                })
                .count();
            let (now, later) = rest.split_at(count);
            match write_in_flight(file, now)? {
                Flight::Done => rest = later,
                Flight::NotNow => break,
                Flight::Never => {
                    self.scatters.store(false, Ordering::Relaxed);
                    break;
                }
            }
        }
        rest.iter().try_for_each(cached)?;
        pieces.iter().filter(|piece| !is_whole(piece)).try_for_each(cached)
    }

    /// Writes whole blocks directly. Returns false if that is not possible here.
    pub(super) fn write_directly(&self, buf: &[u8], offset: u64) -> io::Result<bool> {
        let Some(file) = self.direct_file() else { return Ok(false) };
        let write = |aligned: &[u8], at| match file.write_all_at(aligned, at) {
            Ok(()) => Ok(true),
            // Larger blocks than those.
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(false),
            Err(e) => Err(e),
        };
        if is_aligned(buf) {
            return write(buf, offset);
        }
        ALIGNED.with_borrow_mut(|memory| {
            memory.resize(MAX_DIRECT + BLOCK, 0);
            let skip = memory.as_ptr().align_offset(BLOCK);
            for (n, part) in buf.chunks(MAX_DIRECT).enumerate() {
                let Some(aligned) = memory.get_mut(skip..skip + part.len()) else { return Ok(false) };
                aligned.copy_from_slice(part);
                if !write(aligned, offset + (n * MAX_DIRECT) as u64)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

/// What became of writes in flight.
enum Flight {
    Done,
    /// The system is short of something. Some pieces may be written.
    NotNow,
    /// The system does not allow it here. Some pieces may be written.
    Never,
}

/// Writes pieces of whole blocks, at most [`MAX_DIRECT`] bytes together, with all of them in
/// flight.
fn write_in_flight(file: &LockedFile, pieces: &[Piece<'_>]) -> io::Result<Flight> {
    ALIGNED.with_borrow_mut(|memory| {
        memory.resize(MAX_DIRECT + BLOCK, 0);
        let skip = memory.as_ptr().align_offset(BLOCK);
        let Some(mut free) = memory.get_mut(skip..skip + MAX_DIRECT) else { return Ok(Flight::NotNow) };
        let mut aligned: Vec<Piece<'_>> = Vec::with_capacity(pieces.len());
        for (bytes, at) in pieces {
            if is_aligned(bytes) {
                aligned.push((bytes, *at));
                continue;
            }
            let (copy, later) = free.split_at_mut(bytes.len());
            copy.copy_from_slice(bytes);
            aligned.push((copy, *at));
            free = later;
        }
        RING.with_borrow_mut(|ring| {
            let ring = match ring {
                Some(ring) => ring,
                None => match Ring::new(MAX_IN_FLIGHT) {
                    Ok(new) => ring.insert(new),
                    Err(e) if is_shortage(&e) => return Ok(Flight::NotNow),
                    Err(_) => return Ok(Flight::Never),
                },
            };
            match ring.write_all(file.as_fd(), &aligned) {
                Ok(()) => Ok(Flight::Done),
                // Larger blocks than those.
                Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(Flight::Never),
                Err(e) => Err(e),
            }
        })
    })
}

/// Returns whether an error is a shortage of descriptors or of memory.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    error.raw_os_error().is_some_and(|code| shortages.iter().any(|errno| errno.raw_os_error() == code))
}
