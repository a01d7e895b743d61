//! The server's side of a reader: requests, and the answers to its reads of the disk.

use crate::failure::{Failure, FailureKind};
use crate::wire::{self, Kind, Request};
use serde::de::DeserializeOwned;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Time for which the server waits for a reader, which may compute for
/// [`SECONDS`](crate::sandbox::SECONDS).
const PATIENCE: Duration = Duration::from_secs(60);

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
        socket.set_read_timeout(Some(PATIENCE))?;
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
        let request = serde_json::to_vec(request).map_err(|e| broken(&e.to_string()))?;
        wire::send(&mut self.socket, Kind::Request, &request).map_err(lost)?;
        loop {
            let message = wire::receive(&mut self.socket).map_err(lost)?;
            let (kind, content) = message.ok_or_else(|| lost(io::ErrorKind::UnexpectedEof.into()))?;
            match kind {
                Kind::Read => self.serve_read(&content).map_err(lost)?,
                Kind::Piece => take(content).map_err(|e| broken(&format!("pass content on: {e}")))?,
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

    /// Answers a read of the disk. A range that is not on the disk ends the reader.
    fn serve_read(&mut self, content: &[u8]) -> io::Result<()> {
        let size = self.device.size();
        let is_inside = |(offset, length): &(u64, usize)| {
            offset.checked_add(*length as u64).is_some_and(|end| end <= size)
        };
        let read = wire::parse_read(content).filter(is_inside);
        let (offset, length) = read.ok_or_else(|| io::Error::other("a read outside the disk"))?;
        let mut bytes = vec![0; length];
        match self.device.read(offset, &mut bytes) {
            Ok(()) => wire::send(&mut self.socket, Kind::Bytes, &bytes),
            Err(why) => wire::send(&mut self.socket, Kind::ReadFailed, why.as_bytes()),
        }
    }
}
