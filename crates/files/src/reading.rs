//! The server's side of a reader: requests, and the answers to its reads of the disk.

use crate::failure::{Failure, FailureKind};
use crate::wire::{self, Kind, Request};
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time in which a reader has to answer, or to deliver the next piece of content. The time that it
/// waits for the disk counts.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the disk that a request may read.
const READS: u64 = 1 << 30;
/// Bytes of the disk that it may read for each byte of content, which may lie scattered.
const READS_PER_BYTE: u64 = 32;

/// A disk that a reader reads.
pub trait Device {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Reads a range within the disk.
    ///
    /// # Errors
    ///
    /// The text for people, if the disk can't be read there.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), String>;
}

/// A connection to a reader, and the disk that it reads. After a failure of the kind
/// [`FailureKind::Reader`] it is of no more use.
pub struct Reading<D> {
    socket: UnixStream,
    device: D,
}

impl<D: Device> Reading<D> {
    /// Begins with a reader that serves the other end of a socket.
    ///
    /// # Errors
    ///
    /// An error if the reader is gone.
    pub fn begin(mut socket: UnixStream, device: D) -> io::Result<Self> {
        socket.set_write_timeout(Some(PATIENCE))?;
        wire::send(&mut socket, Kind::Disk, &device.size().to_le_bytes())?;
        Ok(Reading { socket, device })
    }

    /// Sends a request, answers the reads of the disk, and returns the answer. Content of a file
    /// goes to `take`; if that returns an error, the reader is of no more use.
    ///
    /// # Errors
    ///
    /// The failure of the request, or one of the kind [`FailureKind::Reader`] if the reader broke
    /// off, sent nonsense or took too long.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
    ) -> Result<T, Failure> {
        let broken = |what: &str| Failure::new(FailureKind::Reader, format!("read files: {what}"));
        let lost = |e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => broken("the reader took too long"),
            _ => broken("the reader broke off: the file system is damaged, or needs more than it may use"),
        };
        let wanted = match request {
            Request::Read { length, .. } => *length,
            _ => 0,
        };
        let request = serde_json::to_vec(request).map_err(|e| broken(&e.to_string()))?;
        wire::send(&mut self.socket, Kind::Request, &request).map_err(lost)?;
        let (mut until, mut delivered) = (Instant::now() + PATIENCE, 0);
        let mut reads = READS.saturating_add(wanted.saturating_mul(READS_PER_BYTE));
        loop {
            let message = wire::receive(&mut Patient { socket: &self.socket, until }).map_err(lost)?;
            let (kind, content) = message.ok_or_else(|| lost(io::ErrorKind::UnexpectedEof.into()))?;
            match kind {
                Kind::Read => {
                    let (offset, length) = self.range(&content).map_err(lost)?;
                    let left = reads.checked_sub(length as u64);
                    reads = left.ok_or_else(|| broken("the file system has no end"))?;
                    self.serve_read(offset, length).map_err(lost)?;
                }
                Kind::Piece => {
                    delivered += content.len() as u64;
                    if delivered > wanted {
                        return Err(broken("the reader sent more than it was asked for"));
                    }
                    take(content).map_err(|e| broken(&format!("pass content on: {e}")))?;
                    until = Instant::now() + PATIENCE;
                }
                Kind::Answer => {
                    return serde_json::from_slice(&content)
                        .map_err(|_| broken("the reader's answer is malformed"));
                }
                Kind::Failed => {
                    let failure: Result<Failure, _> = serde_json::from_slice(&content);
                    return Err(failure.unwrap_or_else(|_| broken("the reader's answer is malformed")));
                }
                Kind::Disk | Kind::Request | Kind::Bytes | Kind::ReadFailed => {
                    return Err(broken("the reader sent an unexpected message"));
                }
            }
        }
    }

    /// Returns the range that a reader wants to read. One that is not on the disk ends the reader.
    fn range(&self, content: &[u8]) -> io::Result<(u64, usize)> {
        let size = self.device.size();
        let is_inside = |(offset, length): &(u64, usize)| {
            offset.checked_add(*length as u64).is_some_and(|end| end <= size)
        };
        let read = wire::parse_read(content).filter(is_inside);
        read.ok_or_else(|| io::Error::other("a read outside the disk"))
    }

    /// Answers a read of the disk.
    fn serve_read(&mut self, offset: u64, length: usize) -> io::Result<()> {
        let mut bytes = vec![0; length];
        match self.device.read(offset, &mut bytes) {
            Ok(()) => wire::send(&mut self.socket, Kind::Bytes, &bytes),
            Err(why) => wire::send(&mut self.socket, Kind::ReadFailed, why.as_bytes()),
        }
    }
}

/// A socket that is read until a time.
struct Patient<'s> {
    socket: &'s UnixStream,
    until: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut socket = self.socket;
        socket.read(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Place, read_content, send};
    use std::thread;

    struct Empty;

    impl Device for Empty {
        fn size(&self) -> u64 {
            1 << 20
        }

        fn read(&self, _: u64, out: &mut [u8]) -> Result<(), String> {
            out.fill(0);
            Ok(())
        }
    }

    /// Asks a reader that does what `plays` says after the request has come.
    fn ask(request: Request, plays: impl FnOnce(&mut UnixStream) + Send + 'static) -> Result<(), Failure> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = thread::spawn(move || {
            for _ in 0..2 {
                wire::receive(&mut theirs).unwrap();
            }
            plays(&mut theirs);
        });
        let outcome = Reading::begin(ours, Empty).unwrap().ask::<()>(&request, &mut |_| Ok(()));
        reader.join().unwrap();
        outcome
    }

    fn list() -> Request {
        Request::Partitions
    }

    fn read(length: u64) -> Request {
        Request::Read { place: Place { partition: None, path: "/x".into() }, offset: 0, length }
    }

    #[test]
    fn nothing_that_a_reader_sends_is_trusted() {
        let sent = |request: Request, kind: Kind, content: &'static [u8]| {
            ask(request, move |socket| drop(send(socket, kind, content)))
        };
        assert_eq!(sent(list(), Kind::Answer, b"null"), Ok(()));
        for (request, kind, content) in [
            (list(), Kind::Answer, &b"{"[..]),
            (list(), Kind::Failed, b"[]"),
            (list(), Kind::Piece, b"content that nobody wants"),
            (read(3), Kind::Piece, b"more than three"),
            (list(), Kind::Bytes, b""),
            (list(), Kind::Read, b"short"),
        ] {
            let failure = sent(request, kind, content).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Reader, "{kind:?}: {failure}");
        }
        for (offset, length) in [(1 << 20, 1), ((1 << 20) - 1, 2), (u64::MAX, 1)] {
            let outcome =
                ask(list(), move |socket| drop(send(socket, Kind::Read, &read_content(offset, length))));
            assert_eq!(outcome.unwrap_err().kind, FailureKind::Reader);
        }
        assert_eq!(ask(list(), |_| ()).unwrap_err().kind, FailureKind::Reader, "it ends");
    }

    /// A file system whose structures form a circle.
    #[test]
    fn reads_without_end_are_ended() {
        let failure = ask(list(), |socket| {
            while send(socket, Kind::Read, &read_content(0, 1 << 20)).is_ok() {
                if !matches!(wire::receive(socket), Ok(Some(_))) {
                    break;
                }
            }
        });
        assert!(failure.unwrap_err().message.contains("no end"));
    }
}
