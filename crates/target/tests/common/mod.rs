//! An NBD client that talks to a running server.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // included by several, each needing a part of it

pub mod mem;
pub mod script;

use hindcast_target::nbd::options::info;
use hindcast_target::nbd::{Listen, NbdConfig, NbdServer};
use mem::{MemDevice, MemExports};
use script::{Answer, go_data, meta_data, option, request, take_reply};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

/// A server on a Unix socket with one export, `vol`.
pub struct Fixture {
    pub server: NbdServer,
    pub device: Arc<MemDevice>,
    pub path: PathBuf,
    pub dir: tempfile::TempDir,
}

pub fn start(device: MemDevice, change: impl FnOnce(&mut NbdConfig)) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let device = Arc::new(device);
    let mut config = NbdConfig { listen: vec![Listen::Unix(path.clone())], ..NbdConfig::default() };
    change(&mut config);
    let server = NbdServer::start(config, MemExports::one("vol", device.clone())).unwrap();
    Fixture { server, device, path, dir }
}

impl Fixture {
    /// A socket that has seen the greeting.
    pub fn connect(&self) -> Client<UnixStream> {
        Client::new(UnixStream::connect(&self.path).unwrap())
    }

    /// A client in the transmission phase.
    pub fn client(&self, structured: bool) -> Client<UnixStream> {
        let mut client = self.connect();
        client.negotiate("vol", structured);
        client
    }
}

/// Sets the time a test waits before it fails.
pub trait Patience {
    fn be_patient(&self);
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

impl Patience for UnixStream {
    fn be_patient(&self) {
        self.set_read_timeout(PATIENCE).unwrap();
    }
}

impl Patience for TcpStream {
    fn be_patient(&self) {
        self.set_read_timeout(PATIENCE).unwrap();
    }
}

/// Bytes that differ by seed and place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i.wrapping_mul(2654435761) >> 7) ^ seed.wrapping_mul(97) ^ (i >> 9)) as u8)
        .collect()
}

/// An option reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

pub struct Client<S> {
    pub stream: S,
    received: Vec<u8>,
    answers: BTreeMap<u64, Answer>,
    reads: BTreeMap<u64, (u64, u32)>,
    next: u64,
    simple: bool,
}

impl<S: Read + Write + Patience> Client<S> {
    pub fn new(stream: S) -> Client<S> {
        stream.be_patient();
        let mut client = Client::raw(stream);
        let mut greeting = [0; 18];
        client.stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        client
    }
}

impl<S: Read + Write> Client<S> {
    /// Without waiting for a greeting.
    pub fn raw(stream: S) -> Client<S> {
        Client {
            stream,
            received: Vec::new(),
            answers: BTreeMap::new(),
            reads: BTreeMap::new(),
            next: 1,
            simple: true,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn flags(&mut self, flags: u32) {
        self.send(&flags.to_be_bytes());
    }

    pub fn opt_reply(&mut self) -> OptReply {
        let mut head = [0; 20];
        self.stream.read_exact(&mut head).unwrap();
        let u32_at = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(head[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let mut data = vec![0; u32_at(16) as usize];
        self.stream.read_exact(&mut data).unwrap();
        OptReply { option: u32_at(8), kind: u32_at(12), data }
    }

    /// Sends an option and returns all its replies, the final one last.
    pub fn opt(&mut self, number: u32, data: &[u8]) -> Vec<OptReply> {
        self.send(&option(number, data));
        let mut replies = Vec::new();
        loop {
            let reply = self.opt_reply();
            assert_eq!(reply.option, number);
            let last = reply.kind == 1 || reply.kind >> 31 == 1;
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }

    /// Sends an option and returns the type of the final reply.
    pub fn opt_kind(&mut self, number: u32, data: &[u8]) -> u32 {
        self.opt(number, data).last().unwrap().kind
    }

    pub fn negotiate(&mut self, export: &str, structured: bool) {
        self.flags(3);
        self.negotiate_options(export, structured);
    }

    pub fn negotiate_options(&mut self, export: &str, structured: bool) {
        self.simple = !structured;
        if structured {
            assert_eq!(self.opt_kind(8, &[]), 1);
            assert_eq!(self.opt_kind(10, &meta_data(export, &["base:allocation"])), 1);
        }
        assert_eq!(self.opt_kind(7, &go_data(export, &[info::BLOCK_SIZE])), 1);
    }

    /// Makes a request's bytes, expecting its answer later.
    pub fn make(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> (u64, Vec<u8>) {
        let cookie = self.next;
        self.next += 1;
        if kind == READ && self.simple {
            self.reads.insert(cookie, (offset, length));
        }
        (cookie, request(kind, flags, cookie, offset, length, payload))
    }

    pub fn submit(&mut self, kind: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> u64 {
        let (cookie, bytes) = self.make(kind, flags, offset, length, payload);
        self.send(&bytes);
        cookie
    }

    /// Waits for the answer to one request.
    pub fn wait(&mut self, cookie: u64) -> Answer {
        loop {
            if self.answers.get(&cookie).is_some_and(|a| a.done) {
                return self.answers.remove(&cookie).unwrap();
            }
            let mut rest = &self.received[..];
            let complete = take_reply(&mut rest, &self.reads, &mut self.answers);
            if complete {
                let taken = self.received.len() - rest.len();
                self.received.drain(..taken);
                continue;
            }
            let mut buf = vec![0; 1 << 16];
            let n = self.stream.read(&mut buf).expect("an answer in time");
            assert!(n > 0, "the server hung up");
            self.received.extend_from_slice(&buf[..n]);
        }
    }

    /// Requests answered so far, waited for or not.
    pub fn answered(&self, cookie: u64) -> bool {
        self.answers.get(&cookie).is_some_and(|a| a.done)
    }

    pub fn call(&mut self, kind: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> Answer {
        let cookie = self.submit(kind, flags, offset, length, payload);
        self.wait(cookie)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let answer = self.call(READ, 0, offset, length, &[]);
        assert_eq!(answer.error, 0);
        answer.read(offset, length as usize)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.call(WRITE, 0, offset, data.len() as u32, data).error, 0);
    }

    /// The server has closed the connection and sent nothing more.
    pub fn assert_closed(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, [], "nothing more was expected"),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
        }
    }
}
