//! Files with traces: a head, and blocks until the end of the file.
//!
//! | bytes of the head | field |
//! |---|---|
//! | 0..8 | magic `HCTRACE`, 0 |
//! | 8..12 | CRC32C of bytes 12..64 |
//! | 12..16 | format version |
//! | 16..32 | pool UUID |
//! | 32..40 | start, nanoseconds since the Unix epoch |
//! | 40..64 | 0 |
//!
//! | bytes of a block | field |
//! |---|---|
//! | 0..4 | CRC32C of the rest of the block |
//! | 4..6 | kind: 1 disks, 2 accesses, 3 end |
//! | 6..8 | 0 |
//! | 8..12 | length of the content in bytes |
//! | 12..16 | number of blocks before it |
//! | 16..24 | number of accesses that were lost so far |
//! | 24.. | content |
//!
//! - Disks: their number (u16), and for each its number in accesses (u16), the number of its
//!   physical volume (u32), its size in bytes (u64), its path, and the path of its physical volume.
//!   A string is its length (u16) and its bytes. A later block replaces earlier ones.
//! - Accesses: [`DiskAccess`]es one after another, in no order of time.
//! - End: the reason (u8), and the time in nanoseconds since the start (u64).
//!
//! A file without an end was cut off. Blocks of unknown kinds are passed over.

use super::access::{ACCESS_LEN, DiskAccess, RawAccess};
use super::tracer::TracePart;
use crate::codec::{Reader, Writer, crc32c};
use crate::error::{Error, ErrorKind, Result, corrupt, invalid};
use std::io::{self, Read};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCTRACE\0";
const VERSION: u32 = 1;
const HEAD_LEN: usize = 64;
const BLOCK_HEAD_LEN: usize = 24;
/// Largest content of a block, in bytes. A larger length is damage.
const MAX_CONTENT: u32 = 16 << 20;
/// Largest number of accesses in a block that is written.
const MAX_ACCESSES: usize = 4096;

const DISKS: u16 = 1;
const ACCESSES: u16 = 2;
const END: u16 = 3;

/// The head of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHead {
    /// The pool whose disks were traced.
    pub pool: Uuid,
    /// When the trace began: nanoseconds since the Unix epoch.
    pub started: u64,
}

/// A disk in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceDisk {
    /// Number of the disk in accesses.
    pub number: u16,
    /// Number of the physical volume that it is, or that has its content.
    pub pv: u32,
    /// Size in bytes.
    pub size: u64,
    /// Path of the disk.
    pub path: String,
    /// Path of the physical volume. It differs from the disk's for a member of a mirror.
    pub pv_path: String,
}

/// Why a trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceEnd {
    /// An operator stopped it.
    Stopped = 1,
    /// The file has its largest size.
    Size = 2,
    /// Its time has passed.
    Time = 3,
    /// The file system has too little space left.
    Full = 4,
    /// The server stopped.
    Shutdown = 5,
    /// The file could not be written.
    Failed = 6,
}

impl TraceEnd {
    const ALL: [TraceEnd; 6] = [
        TraceEnd::Stopped,
        TraceEnd::Size,
        TraceEnd::Time,
        TraceEnd::Full,
        TraceEnd::Shutdown,
        TraceEnd::Failed,
    ];
}

impl TraceHead {
    /// Returns the bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(0).u32(VERSION).uuid(&self.pool).u64(self.started);
        w.0.resize(HEAD_LEN, 0);
        let crc = crc32c(&w.0[12..]);
        w.0[8..12].copy_from_slice(&crc.to_le_bytes());
        w.0
    }

    fn decode(bytes: &[u8; HEAD_LEN]) -> Result<TraceHead> {
        let mut r = Reader::new(bytes);
        let magic = r.take(8);
        if magic != Some(MAGIC) {
            return Err(invalid("read the trace: the file is no trace of Hindcast"));
        }
        let mut fields = || Some((r.u32()?, r.u32()?, r.uuid()?, r.u64()?));
        match fields() {
            Some((crc, ..)) if crc != crc32c(&bytes[12..]) => {
                Err(corrupt("read the trace: its head does not verify"))
            }
            Some((_, VERSION, pool, started)) => Ok(TraceHead { pool, started }),
            Some((_, version, ..)) => {
                let text =
                    format!("read the trace: it has version {version}, and this build knows {VERSION}");
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            None => Err(corrupt("read the trace: its head is too short")),
        }
    }
}

/// Makes the blocks of a trace file.
#[derive(Debug, Default)]
pub struct TraceEncoder {
    blocks: u32,
    lost: u64,
}

impl TraceEncoder {
    /// Returns the number of accesses that were lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Appends a block with the disks of the trace.
    pub fn disks(&mut self, disks: &[TraceDisk], out: &mut Vec<u8>) {
        let count = disks.len().min(u16::MAX.into());
        let mut w = Writer::default();
        w.u16(count as u16);
        for disk in &disks[..count] {
            w.u16(disk.number).u32(disk.pv).u64(disk.size).string(&disk.path).string(&disk.pv_path);
        }
        self.block(DISKS, &w.0, out);
    }

    /// Appends blocks with the accesses of a part of the trace, and returns the number of accesses.
    /// The blocks take `room` bytes at most. Accesses beyond that are lost.
    pub fn accesses(&mut self, part: &TracePart, room: u64, out: &mut Vec<u8>) -> usize {
        self.lost += part.lost;
        let (mut written, mut room) = (0, usize::try_from(room).unwrap_or(usize::MAX));
        for accesses in part.pages.iter().flat_map(|page| page.chunks(MAX_ACCESSES)) {
            let fit = (room.saturating_sub(BLOCK_HEAD_LEN) / ACCESS_LEN).min(accesses.len());
            self.lost += (accesses.len() - fit) as u64;
            if fit > 0 {
                self.block(ACCESSES, accesses[..fit].as_flattened(), out);
                room -= BLOCK_HEAD_LEN + fit * ACCESS_LEN;
                written += fit;
            }
        }
        written
    }

    /// Appends the last block. `at` is the time in nanoseconds since the start.
    pub fn end(&mut self, end: TraceEnd, at: u64, out: &mut Vec<u8>) {
        let mut w = Writer::default();
        w.u8(end as u8).u64(at);
        self.block(END, &w.0, out);
    }

    fn block(&mut self, kind: u16, content: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let mut w = Writer(std::mem::take(out));
        w.u32(0).u16(kind).u16(0).u32(content.len() as u32).u32(self.blocks).u64(self.lost).bytes(content);
        *out = w.0;
        let crc = crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        self.blocks = self.blocks.wrapping_add(1);
    }
}

/// A piece of a trace file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracePiece {
    /// All disks of the trace, as far as the file has come.
    Disks(Vec<TraceDisk>),
    /// Accesses, in no order of time.
    Accesses(Vec<DiskAccess>),
    /// The end of the trace: why, and when, in nanoseconds since its start.
    End(TraceEnd, u64),
}

/// Reads a trace file, piece by piece.
pub struct TraceReader<R> {
    input: R,
    head: TraceHead,
    /// Byte of the file at which the next block begins.
    at: u64,
    blocks: u32,
    lost: u64,
    is_whole: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the head of a file. Returns [`ErrorKind::Invalid`] if the file is no trace,
    /// [`ErrorKind::Unsupported`] if its version is not known, and [`ErrorKind::Corrupt`] if its
    /// head is damaged or cut off.
    pub fn open(mut input: R) -> Result<TraceReader<R>> {
        let mut bytes = [0; HEAD_LEN];
        let len = read_up_to(&mut input, &mut bytes)?;
        if len < HEAD_LEN {
            return Err(match bytes[..len.min(MAGIC.len())] == MAGIC[..len.min(MAGIC.len())] && len > 0 {
                true => corrupt(format!("read the trace: the file ends after {len} bytes, within its head")),
                false => invalid("read the trace: the file is no trace of Hindcast"),
            });
        }
        let head = TraceHead::decode(&bytes)?;
        Ok(TraceReader { input, head, at: HEAD_LEN as u64, blocks: 0, lost: 0, is_whole: false })
    }

    /// Returns the head of the file.
    pub fn head(&self) -> TraceHead {
        self.head
    }

    /// Returns the number of accesses that were lost, as far as the file was read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns whether the end of the trace was read. A file that ends without it was cut off.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Reads the next piece. `None`: there is none, because the trace ends, or because the file is
    /// cut off. Returns [`ErrorKind::Corrupt`] if a block is damaged.
    pub fn next_piece(&mut self) -> Result<Option<TracePiece>> {
        while !self.is_whole {
            let Some((kind, content)) = self.next_block()? else { return Ok(None) };
            let at = self.at - content.len() as u64 - BLOCK_HEAD_LEN as u64;
            let damaged = || corrupt(format!("read the trace: the block at byte {at} is malformed"));
            let piece = match kind {
                DISKS => TracePiece::Disks(decode_disks(&content).ok_or_else(damaged)?),
                ACCESSES => TracePiece::Accesses(decode_accesses(&content).ok_or_else(damaged)?),
                END => {
                    let (end, at) = decode_end(&content).ok_or_else(damaged)?;
                    self.is_whole = true;
                    TracePiece::End(end, at)
                }
                _ => continue,
            };
            return Ok(Some(piece));
        }
        Ok(None)
    }

    /// Reads the next block: its kind and content. `None` if the file is cut off before its end.
    fn next_block(&mut self) -> Result<Option<(u16, Vec<u8>)>> {
        let at = self.at;
        let damaged = |what: &str| corrupt(format!("read the trace: the block at byte {at} {what}"));
        let mut head = [0; BLOCK_HEAD_LEN];
        // After a power loss a file may end in zeros.
        if read_up_to(&mut self.input, &mut head)? < BLOCK_HEAD_LEN || head == [0; BLOCK_HEAD_LEN] {
            return Ok(None);
        }
        let mut r = Reader::new(&head);
        let mut fields = || Some((r.u32()?, r.u16()?, r.u16()?, r.u32()?, r.u32()?, r.u64::<u64>()?));
        let Some((crc, kind, _, len, blocks, lost)) = fields() else { return Ok(None) };
        if len > MAX_CONTENT {
            return Err(damaged("does not verify"));
        }
        let mut block = vec![0; BLOCK_HEAD_LEN + len as usize];
        block[..BLOCK_HEAD_LEN].copy_from_slice(&head);
        if read_up_to(&mut self.input, &mut block[BLOCK_HEAD_LEN..])? < len as usize {
            return Ok(None);
        }
        if crc != crc32c(&block[4..]) {
            return Err(damaged("does not verify"));
        }
        if blocks != self.blocks {
            return Err(damaged("does not follow the one before it"));
        }
        self.blocks = self.blocks.wrapping_add(1);
        self.at += block.len() as u64;
        self.lost = lost;
        Ok(Some((kind, block.split_off(BLOCK_HEAD_LEN))))
    }
}

/// Fills `buf` as far as the input goes. Returns the number of bytes.
fn read_up_to(input: &mut impl Read, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match input.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read the trace", error)),
        }
    }
    Ok(done)
}

fn decode_disks(content: &[u8]) -> Option<Vec<TraceDisk>> {
    let mut r = Reader::new(content);
    let count = r.u16()?;
    let disk = |_| {
        let (number, pv, size) = (r.u16()?, r.u32()?, r.u64()?);
        Some(TraceDisk { number, pv, size, path: r.string()?, pv_path: r.string()? })
    };
    let disks = (0..count).map(disk).collect::<Option<Vec<_>>>()?;
    r.end(disks)
}

fn decode_accesses(content: &[u8]) -> Option<Vec<DiskAccess>> {
    let (accesses, rest) = content.as_chunks::<ACCESS_LEN>();
    rest.is_empty()
        .then(|| accesses.iter().filter_map(|access: &RawAccess| DiskAccess::decode(access)).collect())
}

fn decode_end(content: &[u8]) -> Option<(TraceEnd, u64)> {
    let mut r = Reader::new(content);
    let (reason, at) = (r.u8()?, r.u64()?);
    // A reason of a newer build is an end nevertheless.
    let end = TraceEnd::ALL.into_iter().find(|end| *end as u8 == reason).unwrap_or(TraceEnd::Stopped);
    r.end((end, at))
}
