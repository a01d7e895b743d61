//! Many writes to a file at a time, with `io_uring` of Linux.
//!
//! A write past the page cache takes as long as the disk takes for it. A disk is fast only with
//! many writes at a time. A thread for each of them costs more than the writes themselves. With
//! `io_uring` one thread has them all in flight.
//!
//! This crate is the only one with `unsafe` code, two lines of it: the kernel reads memory after
//! the call that names it has returned. [`Ring::write_all`] borrows that memory, and returns when
//! the kernel has finished with it.

#![allow(unsafe_code)]

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most bytes of one write: a system call takes less than 2 GiB.
const MAX_WRITE: usize = 1 << 30;

/// A part of a file to write: the bytes, and the byte of the file where they go.
pub type Piece<'a> = (&'a [u8], u64);

/// A queue of the kernel for the writes of one thread. It stays on the thread that made it, because
/// the kernel takes requests of that thread only.
pub struct Ring {
    ring: IoUring,
    depth: usize,
    _stays: PhantomData<*const ()>,
}

impl Ring {
    /// Makes a queue for at most `depth` writes at a time, from 1 to 4096. It fails where the
    /// kernel has no `io_uring`, or does not let this process use it.
    pub fn new(depth: u32) -> io::Result<Ring> {
        let lean = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(depth);
        // Kernels before 6.1 do not know these options.
        let ring = lean.or_else(|_| IoUring::new(depth))?;
        let mut ring = Ring { ring, depth: depth as usize, _stays: PhantomData };
        ring.probe()?;
        Ok(ring)
    }

    /// Tries an operation that does nothing. A process may be allowed to make a queue, and not to
    /// use it.
    fn probe(&mut self) -> io::Result<()> {
        // SAFETY: The operation names no memory.
        let pushed = unsafe { self.ring.submission().push(&opcode::Nop::new().build()) };
        pushed.map_err(io::Error::other)?;
        while self.ring.completion().next().is_none() {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes all pieces, in any order. When it returns, no write is under way. After an error some
    /// of the pieces may be written, whole or in part.
    pub fn write_all(&mut self, file: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<()> {
        // What is left of each piece.
        let mut left = pieces.to_vec();
        let mut waiting: Vec<usize> =
            (0..left.len()).rev().filter(|index| !left[*index].0.is_empty()).collect();
        let mut in_flight = 0;
        let mut failed = None;
        loop {
            while in_flight < self.depth && failed.is_none() {
                let Some(index) = waiting.pop() else { break };
                let entry = write(file, left[index], index);
                // SAFETY: `pieces` borrows the memory for as long as this call lasts. The call
                // lasts until `in_flight` is 0: the kernel has answered every write by then, and
                // reads the memory of none. Nothing between here and there panics or returns.
                let pushed = unsafe { self.ring.submission().push(&entry) };
                if pushed.is_err() {
                    waiting.push(index);
                    break;
                }
                in_flight += 1;
            }
            if in_flight == 0 {
                return failed.map_or(Ok(()), Err);
            }
            self.wait();
            for answer in self.ring.completion() {
                in_flight -= 1;
                let index = answer.user_data() as usize;
                let Some(piece) = left.get_mut(index) else { continue };
                match written(answer.result(), piece) {
                    Ok(true) => {}
                    Ok(false) => waiting.push(index),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
    }

    /// Hands the pushed writes to the kernel, and waits until at least one is answered.
    fn wait(&self) {
        while let Err(error) = self.ring.submit_and_wait(1) {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INTR) => {}
                // The kernel is short of memory, or wants its answers to be taken first.
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => return std::thread::yield_now(),
                // Nobody knows what the kernel still reads, so the memory can't be given back.
                _ => std::process::abort(),
            }
        }
    }
}

fn write(file: BorrowedFd<'_>, (bytes, at): Piece<'_>, index: usize) -> squeue::Entry {
    let len = bytes.len().min(MAX_WRITE) as u32;
    opcode::Write::new(Fd(file.as_raw_fd()), bytes.as_ptr(), len).offset(at).build().user_data(index as u64)
}

/// Takes what was written from the beginning of a piece. Returns whether the piece is done.
fn written(result: i32, piece: &mut Piece<'_>) -> io::Result<bool> {
    let Ok(count) = usize::try_from(result) else {
        return match Errno::from_raw_os_error(-result) {
            Errno::INTR | Errno::AGAIN => Ok(false),
            error => Err(error.into()),
        };
    };
    if count == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let count = count.min(piece.0.len());
    *piece = (&piece.0[count..], piece.1 + count as u64);
    Ok(piece.0.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    /// Makes a ring, or says that the test is skipped.
    fn ring(depth: u32) -> Option<Ring> {
        Ring::new(depth).inspect_err(|error| eprintln!("SKIPPED: no io_uring here: {error}")).ok()
    }

    #[test]
    fn all_pieces_are_where_they_belong() {
        let Some(mut ring) = ring(4) else { return };
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = File::options().write(true).open(path.path()).unwrap();
        let contents: Vec<Vec<u8>> = (0..100).map(|n| vec![n as u8 + 1; n * 37 % 5000]).collect();
        // From the end to the beginning, with gaps of a byte.
        let mut at = 0;
        let mut pieces = Vec::new();
        for content in &contents {
            pieces.push((&content[..], at));
            at += content.len() as u64 + 1;
        }
        pieces.reverse();
        // More than once: nothing of a call is left to the next one.
        for _ in 0..3 {
            ring.write_all(file.as_fd(), &pieces).unwrap();
        }
        ring.write_all(file.as_fd(), &[]).unwrap();
        let mut found = Vec::new();
        File::open(path.path()).unwrap().read_to_end(&mut found).unwrap();
        let mut expected = Vec::new();
        for content in &contents {
            expected.extend_from_slice(content);
            expected.push(0);
        }
        expected.pop();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_first_error_is_returned_and_the_ring_goes_on() {
        let Some(mut ring) = ring(8) else { return };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let pieces: Vec<Piece<'_>> = (0..50).map(|n| (&[7u8; 4096][..], n * 4096)).collect();
        let error = ring.write_all(full.as_fd(), &pieces).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let null = File::options().write(true).open("/dev/null").unwrap();
        ring.write_all(null.as_fd(), &pieces).unwrap();
        let unwritable = File::open("/dev/null").unwrap();
        assert!(ring.write_all(unwritable.as_fd(), &pieces).is_err());
    }

    #[test]
    fn what_is_not_written_is_written_again() {
        let bytes = [1, 2, 3];
        let mut piece: Piece<'_> = (&bytes, 10);
        assert!(!written(-(Errno::INTR.raw_os_error()), &mut piece).unwrap());
        assert!(!written(2, &mut piece).unwrap());
        assert_eq!(piece, (&bytes[2..], 12));
        assert_eq!(written(0, &mut piece).unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert!(written(1, &mut piece).unwrap());
        assert!(written(-(Errno::IO.raw_os_error()), &mut piece).is_err());
    }
}
