//! A backup of the metadata as bytes: a header block, and the rows of the catalog, compressed.
//!
//! | bytes of the header | field |
//! |---|---|
//! | 0..8 | magic `HINDMETA` |
//! | 8..12 | CRC32C of bytes 12..4096 |
//! | 12..16 | format version |
//! | 16..32 | pool UUID |
//! | 32..40 | sequence: a later backup of the pool has a larger one |
//! | 40..48 | time, nanoseconds since the Unix epoch |
//! | 48..56 | incarnation of the pool |
//! | 56..60 | 1: the pool had been closed: its incarnation has no later commit; else 0 |
//! | 60..64 | CRC32C of the body |
//! | 64..72 | bytes of the body, which follows the header |
//! | 72..80 | rows in the body |
//!
//! The body is one Zstandard frame. It holds, for each row, the table's name (length in two bytes),
//! the key and the value (length in four bytes each); and, behind the last one, a name of length 0.

use crate::catalog::Row;
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::Disk;
use crate::error::{Error, Result, corrupt};
use crate::space::label::HEADER_LEN;
use std::io::{self, Read, Write};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HINDMETA";
const VERSION: u32 = 1;
/// Number of bytes of one write of the body.
const PIECE: usize = 1 << 20;
/// The compression level: metadata compress well at the fastest level.
const LEVEL: i32 = 1;
/// Number of bytes that a table's name, a key or a value of the catalog has at most.
const MAX_FIELD: usize = 1 << 20;

/// The decoded header of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackupHeader {
    pub(super) pool: Uuid,
    pub(super) sequence: u64,
    pub(super) time: u64,
    pub(super) incarnation: u64,
    pub(super) closed: bool,
    pub(super) body_sum: u32,
    pub(super) body_len: u64,
    pub(super) rows: u64,
}

impl BackupHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(0).u32(VERSION).uuid(&self.pool).u64(self.sequence).u64(self.time);
        w.u64(self.incarnation).u32(self.closed.into()).u32(self.body_sum).u64(self.body_len).u64(self.rows);
        w.0.resize(HEADER_LEN, 0);
        let crc = crc32c(&w.0[12..]);
        w.0[8..12].copy_from_slice(&crc.to_le_bytes());
        w.0
    }

    /// Decodes a header. `None` unless it verifies and has a known version.
    pub(super) fn decode(block: &[u8]) -> Option<BackupHeader> {
        let block = block.get(..HEADER_LEN)?;
        let mut r = Reader::new(block);
        if r.array::<8>()? != *MAGIC || r.u32()? != crc32c(&block[12..]) || r.u32()? != VERSION {
            return None;
        }
        Some(BackupHeader {
            pool: r.uuid()?,
            sequence: r.u64()?,
            time: r.u64()?,
            incarnation: r.u64()?,
            closed: r.u32()? != 0,
            body_sum: r.u32()?,
            body_len: r.u64()?,
            rows: r.u64()?,
        })
    }
}

/// Writes a body to a disk, behind the place of its header.
pub(super) struct BodyWriter<'a> {
    sink: zstd::stream::write::Encoder<'static, Sink<'a>>,
    rows: u64,
}

/// The compressed bytes of the body, which go to the disk.
struct Sink<'a> {
    disk: &'a dyn Disk,
    at: u64,
    waiting: Vec<u8>,
    sum: crc_fast::Digest,
}

impl Sink<'_> {
    fn put(&mut self) -> io::Result<()> {
        self.sum.update(&self.waiting);
        self.disk.write_at(&self.waiting, self.at)?;
        self.at += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE {
            self.put()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(e: io::Error) -> Error {
    Error::io("write a backup of the metadata", e)
}

impl<'a> BodyWriter<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Result<Self> {
        let sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let sink = Sink { disk, at: HEADER_LEN as u64, waiting: Vec::with_capacity(2 * PIECE), sum };
        let sink = zstd::stream::write::Encoder::new(sink, LEVEL).map_err(failed)?;
        Ok(BodyWriter { sink, rows: 0 })
    }

    pub(super) fn put(&mut self, row: Row<'_>) -> Result<()> {
        let mut w = Writer::default();
        w.string(row.table).u32(row.key.len() as u32).bytes(row.key);
        w.u32(row.value.len() as u32).bytes(row.value);
        self.rows += 1;
        self.sink.write_all(&w.0).map_err(failed)
    }

    /// Ends the body. Returns its (sum, bytes, rows).
    pub(super) fn finish(mut self) -> Result<(u32, u64, u64)> {
        self.sink.write_all(&[0; 2]).map_err(failed)?;
        let mut sink = self.sink.finish().map_err(failed)?;
        sink.put().map_err(failed)?;
        Ok((sink.sum.finalize() as u32, sink.at - HEADER_LEN as u64, self.rows))
    }
}

/// A range of a disk's bytes, as a stream.
pub(super) struct Section<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) at: u64,
    pub(super) end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.end - self.at).min(buf.len() as u64) as usize;
        self.disk.read_at(&mut buf[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Returns the sum of the bytes of a section.
pub(super) fn sum(mut section: Section<'_>) -> io::Result<u32> {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut piece = vec![0; PIECE];
    loop {
        match section.read(&mut piece)? {
            0 => return Ok(digest.finalize() as u32),
            n => digest.update(&piece[..n]),
        }
    }
}

/// Visits the rows of a body whose sum was verified.
pub(super) fn visit_rows(
    body: Section<'_>,
    rows: u64,
    visit: &mut dyn FnMut(Row<'_>) -> Result<()>,
) -> Result<()> {
    let fail = |e: io::Error| corrupt(format!("read a backup of the metadata: {e}"));
    let decoder = zstd::stream::read::Decoder::new(body).map_err(fail)?;
    let mut input = io::BufReader::new(decoder);
    let (mut table, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = 0;
    loop {
        let mut len = [0; 2];
        input.read_exact(&mut len).map_err(fail)?;
        if len == [0; 2] {
            break;
        }
        fill(&mut input, &mut table, u16::from_le_bytes(len).into())?;
        for field in [&mut key, &mut value] {
            let mut len = [0; 4];
            input.read_exact(&mut len).map_err(fail)?;
            fill(&mut input, field, u32::from_le_bytes(len) as usize)?;
        }
        let table = std::str::from_utf8(&table)
            .map_err(|_| corrupt("read a backup of the metadata: the name of a table is not UTF-8"))?;
        visit(Row { table, key: &key, value: &value })?;
        found += 1;
    }
    match found == rows {
        true => Ok(()),
        false => {
            Err(corrupt(format!("read a backup of the metadata: it has {found} rows instead of {rows}")))
        }
    }
}

fn fill(input: &mut impl Read, field: &mut Vec<u8>, len: usize) -> Result<()> {
    if len > MAX_FIELD {
        return Err(corrupt(format!(
            "read a backup of the metadata: a field has the invalid length of {len} bytes"
        )));
    }
    field.resize(len, 0);
    input.read_exact(field).map_err(|e| corrupt(format!("read a backup of the metadata: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, MemDir, OpenMode};

    #[test]
    fn golden_bytes_and_damage() {
        let header = BackupHeader {
            pool: Uuid::from_bytes([1; 16]),
            sequence: 2,
            time: 3,
            incarnation: 4,
            closed: true,
            body_sum: 5,
            body_len: 6,
            rows: 7,
        };
        let block = header.encode();
        let hex: String = block[12..80].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "0100000001010101010101010101010101010101020000000000000003000000000000000400000000000000\
             010000000500000006000000000000000700000000000000"
        );
        assert_eq!(&block[..8], MAGIC);
        assert_eq!(BackupHeader::decode(&block), Some(header));
        for byte in 0..HEADER_LEN {
            let mut bad = block.clone();
            bad[byte] ^= 4;
            assert_eq!(BackupHeader::decode(&bad), None, "byte {byte}");
        }
        assert_eq!(BackupHeader::decode(&block[..100]), None);
    }

    /// The rows behind the compression must stay readable by every later version.
    #[test]
    fn golden_body() {
        let dir = MemDir::new();
        let disk = dir.open("b", OpenMode::CreateNew).unwrap();
        let mut body = BodyWriter::new(&*disk).unwrap();
        body.put(Row { table: "pvs", key: &[1, 2], value: b"xyz" }).unwrap();
        let (body_sum, len, rows) = body.finish().unwrap();
        assert_eq!((rows, disk.len().unwrap()), (1, HEADER_LEN as u64 + len));
        let end = HEADER_LEN as u64 + len;
        let section = || Section { disk: &*disk, at: HEADER_LEN as u64, end };
        assert_eq!(sum(section()).unwrap(), body_sum);
        let mut raw = Vec::new();
        zstd::stream::read::Decoder::new(section()).unwrap().read_to_end(&mut raw).unwrap();
        assert_eq!(raw, b"\x03\0pvs\x02\0\0\0\x01\x02\x03\0\0\0xyz\0\0");
        let mut seen = 0;
        visit_rows(section(), 1, &mut |row| {
            assert_eq!(row, Row { table: "pvs", key: &[1, 2], value: b"xyz" });
            seen += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 1);
        assert!(visit_rows(section(), 2, &mut |_| Ok(())).is_err());
        let cut = Section { disk: &*disk, at: HEADER_LEN as u64, end: end - 1 };
        assert!(visit_rows(cut, 1, &mut |_| Ok(())).is_err());
    }
}
