//! A transport in memory that plays a client from a script, and the replies as that client sees
//! them.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // included by several, each needing a part of it

use hindcast_target::nbd::Transport;
use hindcast_target::nbd::codec::{REQUEST_LEN, ReplyHeader, Request, chunk};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

/// Gives `input` in its pieces, then the end of the stream; collects what is sent.
#[derive(Clone)]
pub struct Script {
    input: Arc<Mutex<VecDeque<Vec<u8>>>>,
    pub output: Arc<Mutex<Vec<u8>>>,
}

impl Script {
    pub fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Script {
        let input = pieces.into_iter().filter(|p| !p.is_empty()).collect();
        Script { input: Arc::new(Mutex::new(input)), output: Arc::default() }
    }
}

impl Transport for Script {
    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        assert!(!buf.is_empty(), "an empty receive would look like the end");
        let mut input = self.input.lock();
        let Some(piece) = input.front_mut() else {
            return Ok(0);
        };
        let n = piece.len().min(buf.len());
        buf[..n].copy_from_slice(&piece[..n]);
        piece.drain(..n);
        if piece.is_empty() {
            input.pop_front();
        }
        Ok(n)
    }

    fn send(&self, bufs: &[IoSlice<'_>], _wait: bool) -> io::Result<usize> {
        let mut output = self.output.lock();
        bufs.iter().for_each(|b| output.extend_from_slice(b));
        Ok(bufs.iter().map(|b| b.len()).sum())
    }

    fn set_timeouts(&self, _receive: Duration, _send: Duration) -> io::Result<()> {
        Ok(())
    }

    fn close(&self) {}

    fn abort(&self) {
        self.input.lock().clear();
    }
}

/// One option as a client sends it.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The data of INFO and GO.
pub fn go_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|w| data.extend_from_slice(&w.to_be_bytes()));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// Client flags and the options that lead into the transmission phase.
pub fn handshake(export: &str, structured: bool) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    if structured {
        bytes.extend(option(8, &[]));
        bytes.extend(option(10, &meta_data(export, &["base:allocation"])));
    }
    bytes.extend(option(7, &go_data(export, &[])));
    bytes
}

/// A request and a WRITE's payload.
pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Request { flags, kind, cookie, offset, length }.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Everything that answered one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0 or an error number.
    pub error: u32,
    /// READ: the data, holes filled in, put together by offset.
    pub data: BTreeMap<u64, Vec<u8>>,
    /// READ: bytes that came as holes.
    pub hole_bytes: u64,
    /// BLOCK_STATUS: extents.
    pub extents: Vec<(u32, u32)>,
    pub content_chunks: usize,
    pub message: String,
    /// The offset of the error, if the reply names it.
    pub error_at: Option<u64>,
    pub done: bool,
}

impl Answer {
    /// READ: the data of a request at `offset`; panics on gaps and overlaps.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, piece) in &self.data {
            assert_eq!(*at, offset + bytes.len() as u64, "a gap or an overlap");
            bytes.extend_from_slice(piece);
        }
        assert_eq!(bytes.len(), length);
        bytes
    }
}

/// Takes the next reply message off `bytes` and adds it to `answers`; false if it is not complete.
/// `reads` tells the offset and length of READs that get simple replies. Panics on anything a
/// client would disconnect for.
pub fn take_reply(
    bytes: &mut &[u8],
    reads: &BTreeMap<u64, (u64, u32)>,
    answers: &mut BTreeMap<u64, Answer>,
) -> bool {
    let Some((header, head)) = ReplyHeader::decode(bytes).expect("a reply's magic number") else {
        return false;
    };
    let cookie = match header {
        ReplyHeader::Simple { cookie, .. } | ReplyHeader::Chunk { cookie, .. } => cookie,
    };
    let len = match header {
        ReplyHeader::Simple { error: 0, .. } => reads.get(&cookie).map_or(0, |r| r.1),
        ReplyHeader::Simple { .. } => 0,
        ReplyHeader::Chunk { length, .. } => length,
    };
    let Some(payload) = bytes[head..].get(..len as usize) else {
        return false;
    };
    let answer = answers.entry(cookie).or_default();
    assert!(!answer.done, "request {cookie} was answered twice");
    match header {
        ReplyHeader::Simple { error, .. } => {
            answer.error = error;
            answer.done = true;
            if let (0, Some((offset, _))) = (error, reads.get(&cookie)) {
                answer.data.insert(*offset, payload.to_vec());
                answer.content_chunks = 1;
            }
        }
        ReplyHeader::Chunk { flags, kind, .. } => {
            take_chunk(answer, kind, payload);
            assert_eq!(flags & !chunk::DONE, 0);
            answer.done = flags & chunk::DONE != 0;
        }
    }
    *bytes = &bytes[head + len as usize..];
    true
}

fn take_chunk(answer: &mut Answer, kind: u16, payload: &[u8]) {
    let u32_at = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().unwrap());
    match kind {
        chunk::NONE => assert!(payload.is_empty()),
        chunk::OFFSET_DATA => {
            assert!(payload.len() > 8);
            answer.data.insert(u64_at(0), payload[8..].to_vec());
            answer.content_chunks += 1;
        }
        chunk::OFFSET_HOLE => {
            assert_eq!(payload.len(), 12);
            assert!(u32_at(8) > 0);
            answer.data.insert(u64_at(0), vec![0; u32_at(8) as usize]);
            answer.hole_bytes += u64::from(u32_at(8));
            answer.content_chunks += 1;
        }
        chunk::BLOCK_STATUS => {
            assert!(payload.len() > 4 && payload.len() % 8 == 4);
            for at in (4..payload.len()).step_by(8) {
                assert!(u32_at(at) > 0);
                answer.extents.push((u32_at(at), u32_at(at + 4)));
            }
        }
        chunk::ERROR => {
            answer.error = u32_at(0);
            assert_ne!(answer.error, 0);
            let len = u16::from_be_bytes([payload[4], payload[5]]) as usize;
            assert_eq!(payload.len(), 6 + len);
            answer.message = String::from_utf8(payload[6..].to_vec()).unwrap();
        }
        chunk::ERROR_OFFSET => {
            answer.error = u32_at(0);
            let len = u16::from_be_bytes([payload[4], payload[5]]) as usize;
            assert_eq!(payload.len(), 14 + len);
            answer.message = String::from_utf8(payload[6..6 + len].to_vec()).unwrap();
            answer.error_at = Some(u64_at(6 + len));
        }
        other => panic!("chunk type {other}"),
    }
}

/// The requests in a client's bytes that a server can see: headers that are followed by their
/// payload. Stops at a wrong magic number, after DISC, and at a WRITE longer than `max_payload`.
pub fn requests_in(mut bytes: &[u8], max_payload: u32) -> Vec<Request> {
    let mut requests = Vec::new();
    while let Some(req) = bytes.first_chunk::<REQUEST_LEN>().and_then(Request::decode) {
        let payload = if req.kind == 1 { req.length } else { 0 };
        if req.length > max_payload && req.kind == 1 {
            break;
        }
        let Some(rest) = bytes.get(REQUEST_LEN + payload as usize..) else {
            break;
        };
        bytes = rest;
        requests.push(req);
        if req.kind == 2 && req.flags & !1 == 0 {
            break;
        }
    }
    requests
}
