//! The reader: answers requests about one disk, over a socket, until the server ends it.

use crate::disk::{Section, Source};
use crate::failure::{Failure, FailureKind, Result};
use crate::file_system::{Bounds, FileSystem, Part};
use crate::partitions;
use crate::sandbox;
use crate::wire::{self, Kind, Place, Request};
use hindcast_api::{FileKind, FileList, name_bytes};
use serde::Serialize;
use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// The connection to the server. The requests and the reads of the disk share it.
type Connection = Rc<RefCell<UnixStream>>;

/// Runs the program's reader: limits the process, and serves the socket that is its standard input.
///
/// # Errors
///
/// An error if the process can't be limited, or if the connection fails.
pub fn run() -> io::Result<()> {
    sandbox::close_descriptors()?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    sandbox::enter()?;
    // A panic is told to the server, and nobody reads the standard error.
    std::panic::set_hook(Box::new(|_| {}));
    serve(socket)
}

/// Serves a socket until the other side ends the connection.
///
/// # Errors
///
/// An error if the connection fails or a message is malformed.
pub fn serve(socket: UnixStream) -> io::Result<()> {
    let connection = Rc::new(RefCell::new(socket));
    let first = wire::receive(&mut *connection.borrow_mut())?;
    let Some((Kind::Disk, size)) = first else { return Err(unexpected()) };
    let size = u64::from_le_bytes(size.try_into().map_err(|_| unexpected())?);
    let disk = Section::whole(Box::new(OverSocket(connection.clone())), size);
    let mut opened = None;
    loop {
        let message = wire::receive(&mut *connection.borrow_mut())?;
        let request = match message {
            None => return Ok(()),
            Some((Kind::Request, content)) => serde_json::from_slice(&content).map_err(io::Error::other)?,
            Some(_) => return Err(unexpected()),
        };
        let work = AssertUnwindSafe(|| answer(&disk, &mut opened, &request, &connection));
        let outcome = catch_unwind(work).unwrap_or_else(|_| {
            let text = "read files: the file system is damaged in a way that the reader can't follow";
            Err(Failure::new(FailureKind::Reader, text))
        });
        let (kind, content) = match &outcome {
            Ok(answer) => (Kind::Answer, answer.clone()),
            Err(failure) => (Kind::Failed, json(failure).map_err(io::Error::other)?),
        };
        wire::send(&mut *connection.borrow_mut(), kind, &content)?;
        if outcome.is_err_and(|failure| failure.kind == FailureKind::Reader) {
            return Err(io::Error::other("the reader is in no known state"));
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the server sent an unexpected message")
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Failure::new(FailureKind::Reader, format!("write an answer: {e}")))
}

/// The disk behind the socket.
struct OverSocket(Connection);

impl Source for OverSocket {
    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let broken = |e: io::Error| Failure::new(FailureKind::Disk, format!("read the disk: {e}"));
        let mut connection = self.0.borrow_mut();
        wire::send(&mut *connection, Kind::Read, &wire::read_content(offset, length)).map_err(broken)?;
        match wire::receive(&mut *connection).map_err(broken)? {
            Some((Kind::Bytes, bytes)) if bytes.len() == length => Ok(bytes),
            Some((Kind::ReadFailed, why)) => {
                Err(Failure::new(FailureKind::Disk, String::from_utf8_lossy(&why).into_owned()))
            }
            _ => Err(broken(unexpected())),
        }
    }
}

/// The file system that the last request used, and its partition.
struct Opened {
    wanted: Option<u32>,
    number: u32,
    fs: Box<dyn FileSystem>,
}

/// Returns the file system of a partition. It stays open for the next request.
fn opened<'o>(disk: &Section, opened: &'o mut Option<Opened>, place: &Place) -> Result<&'o Opened> {
    let wanted = place.partition;
    if opened.as_ref().is_none_or(|opened| opened.wanted != wanted) {
        let (number, fs) = partitions::choose(disk, wanted)?;
        *opened = Some(Opened { wanted, number, fs });
    }
    opened.as_ref().ok_or_else(|| Failure::new(FailureKind::Reader, "nothing is open"))
}

/// Does what a request wants, and returns the answer as JSON.
fn answer(
    disk: &Section,
    open: &mut Option<Opened>,
    request: &Request,
    connection: &Connection,
) -> Result<Vec<u8>> {
    match request {
        Request::Partitions => json(&partitions::list(disk)?),
        Request::List { place, after, limit } => {
            let Opened { number, fs, .. } = opened(disk, open, place)?;
            let path = name_bytes(&place.path);
            let itself = fs.entry(&path)?;
            let bounds = Bounds { after: after.as_deref().map(name_bytes), limit: *limit };
            let (entries, has_more) = match itself.kind {
                FileKind::Directory => fs.list(&path, &bounds)?,
                _ => (Vec::new(), false),
            };
            let next = entries.last().filter(|_| has_more).map(|entry| entry.name.clone());
            json(&FileList { partition: *number, itself, entries, next })
        }
        Request::Describe { place } => {
            let fs = &opened(disk, open, place)?.fs;
            let entry = fs.entry(&name_bytes(&place.path))?;
            match entry.kind {
                FileKind::File => json(&entry),
                FileKind::Directory => Err(Failure::invalid(format!("{}: path is a directory", place.path))),
                _ => Err(Failure::invalid(format!("{}: only files have content", place.path))),
            }
        }
        Request::Read { place, offset, length } => {
            let fs = &opened(disk, open, place)?.fs;
            let mut take = |piece: &[u8]| {
                let sent = wire::send(&mut *connection.borrow_mut(), Kind::Piece, piece);
                sent.map_err(|e| Failure::new(FailureKind::Reader, format!("send content: {e}")))
            };
            let part = Part { offset: *offset, length: *length };
            fs.read(&name_bytes(&place.path), part, &mut take)?;
            json(&())
        }
    }
}
