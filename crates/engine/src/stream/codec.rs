//! The bytes of a stream: header, records, trailer.

use crate::branch::namespace::{check_name, check_size};
use crate::codec::{Reader, Writer, crc32c};
use crate::error::{Result, corrupt};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use uuid::Uuid;

pub(super) const MAGIC: [u8; 8] = *b"HINDSTRM";
const VERSION: u16 = 1;
/// Number of bytes of magic, version and length of the body.
const PREFIX: usize = 14;
/// Number of bytes of a header's body at most: names are short.
const MAX_BODY: usize = 4096;
/// Number of bytes of a record's header.
pub(super) const RECORD: usize = 32;
/// Number of bytes of a record's data at most.
pub(super) const MAX_DATA: u64 = 1 << 20;

const _: () = assert!(PREFIX == MAGIC.len() + 2 + 4 && RECORD == 4 + 4 + 8 + 8 + 4 + 4);

/// A snapshot, as a stream names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The identity of the snapshot's content. It is equal in all pools to which streams have
    /// carried the content.
    pub content: Uuid,
    /// The snapshot's name.
    pub name: String,
    /// Creation time, nanoseconds since the Unix epoch.
    pub created: u64,
}

/// The header of a stream, before its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamHeader {
    /// The volume's name in the pool that made the stream.
    pub volume: String,
    /// The size of the snapshot in bytes.
    pub size: u64,
    /// Logical block size in bytes: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// Chunk size in bytes.
    pub chunk_size: u64,
    /// The byte of the volume where this stream begins. What comes before was transferred earlier.
    pub start: u64,
    /// The snapshot that the stream produces.
    pub to: StreamState,
    /// The snapshot that the stream builds upon; `None`: nothing but zeros.
    pub from: Option<StreamState>,
}

impl StreamHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        body.string(&self.volume).u64(self.size).u32(self.block_size).u64(self.chunk_size).u64(self.start);
        put_state(&mut body, &self.to);
        body.u8(self.from.is_some() as u8);
        if let Some(from) = &self.from {
            put_state(&mut body, from);
        }
        let mut w = Writer::default();
        w.bytes(&MAGIC).u16(VERSION).u32(body.0.len() as u32).bytes(&body.0);
        let crc = crc32c(&w.0);
        w.u32(crc);
        w.0
    }

    fn decode(body: &[u8]) -> Option<StreamHeader> {
        let mut r = Reader::new(body);
        let header = StreamHeader {
            volume: r.string()?,
            size: r.u64()?,
            block_size: r.u32()?,
            chunk_size: r.u64()?,
            start: r.u64()?,
            to: take_state(&mut r)?,
            from: match r.u8()? {
                0 => None,
                1 => Some(take_state(&mut r)?),
                _ => return None,
            },
        };
        let block = header.block_size as u64;
        let makes_sense = matches!(block, 512 | 4096)
            && check_size(header.size, header.block_size).is_ok()
            && header.chunk_size.is_power_of_two()
            && (512..=1 << 30).contains(&header.chunk_size)
            && header.start <= header.size
            && header.start.is_multiple_of(block)
            && check_name(&header.volume).is_ok()
            && [Some(&header.to), header.from.as_ref()]
                .into_iter()
                .flatten()
                .all(|s| check_name(&s.name).is_ok());
        r.end(header).filter(|_| makes_sense)
    }
}

fn put_state(w: &mut Writer, state: &StreamState) {
    w.uuid(&state.content).string(&state.name).u64(state.created);
}

fn take_state(r: &mut Reader<'_>) -> Option<StreamState> {
    let state = StreamState { content: r.uuid()?, name: r.string()?, created: r.u64()? };
    Some(state).filter(|s| !s.content.is_nil())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// Data: `length` bytes follow the header.
    Data,
    /// Zeros: `length` bytes of the volume are zeros.
    Zeros,
    /// The end of the stream: `length` bytes came before, with the sum `crc`.
    End,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) kind: ItemKind,
    /// CRC32C of the data; 0 for zeros.
    pub(super) crc: u32,
    /// Byte offset in the volume.
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl RecordHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            ItemKind::Data => 1,
            ItemKind::Zeros => 2,
            ItemKind::End => 3,
        };
        let mut w = Writer::default();
        w.u32(kind).u32(self.crc).u64(self.offset).u64(self.length).u32(0);
        let crc = crc32c(&w.0);
        w.u32(crc);
        w.0
    }

    fn decode(bytes: &[u8]) -> Option<RecordHeader> {
        let (fields, sum) = bytes.split_at_checked(RECORD - 4)?;
        let mut r = Reader::new(fields);
        let kind = match r.u32()? {
            1 => ItemKind::Data,
            2 => ItemKind::Zeros,
            3 => ItemKind::End,
            _ => return None,
        };
        let header = RecordHeader { kind, crc: r.u32()?, offset: r.u64()?, length: r.u64()? };
        (r.u32()? == 0 && sum == crc32c(fields).to_le_bytes()).then_some(header)
    }
}

/// The sum and the length of a stream so far.
pub(super) struct Total {
    digest: Digest,
    pub(super) bytes: u64,
}

impl Total {
    pub(super) fn new() -> Total {
        Total { digest: Digest::new(CrcAlgorithm::Crc32Iscsi), bytes: 0 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Returns the trailer, for a volume of `size` bytes.
    pub(super) fn trailer(&self, size: u64) -> RecordHeader {
        RecordHeader {
            kind: ItemKind::End,
            crc: self.digest.finalize() as u32,
            offset: size,
            length: self.bytes,
        }
    }
}

/// A verified part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamItem {
    Header(StreamHeader),
    Data { offset: u64, data: Bytes },
    Zeros { offset: u64, length: u64 },
    End,
}

/// Decodes a stream that is pushed in pieces of any size. It holds at most one record beyond a
/// piece.
pub(crate) struct Decoder {
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that are consumed.
    used: usize,
    total: Total,
    header: Option<StreamHeader>,
    /// The byte of the volume at or behind which the next record must begin.
    at: u64,
    ended: bool,
}

impl Decoder {
    pub(crate) fn new() -> Decoder {
        Decoder { buffer: Vec::new(), used: 0, total: Total::new(), header: None, at: 0, ended: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.used);
        self.used = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether all bytes that were pushed are consumed.
    pub(super) fn is_empty(&self) -> bool {
        self.used == self.buffer.len()
    }

    /// Returns whether the trailer was decoded. The stream is then whole.
    pub(crate) fn is_complete(&self) -> bool {
        self.ended
    }

    /// Returns the next part; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<StreamItem>> {
        let rest = &self.buffer[self.used..];
        if self.ended && !rest.is_empty() {
            return Err(corrupt("read the stream: data follows its end"));
        }
        if rest.is_empty() {
            return Ok(None);
        }
        match self.header.as_ref().map(|h| (h.size, h.block_size as u64)) {
            None => self.take_header(),
            Some((size, block)) => self.take_record(size, block),
        }
    }

    fn take_header(&mut self) -> Result<Option<StreamItem>> {
        let rest = &self.buffer[self.used..];
        let known = rest.len().min(MAGIC.len());
        if rest[..known] != MAGIC[..known] {
            return Err(corrupt("read the stream: it is not a stream of hindcast export"));
        }
        let mut r = Reader::new(rest);
        let (Some(_), Some(version), Some(len)) = (r.take(MAGIC.len()), r.u16(), r.u32()) else {
            return Ok(None);
        };
        if version != VERSION {
            return Err(crate::error::Error::new(
                crate::error::ErrorKind::Unsupported,
                format!(
                    "read the stream: its format is version {version}, and this build reads version {VERSION}"
                ),
            ));
        }
        let len = len as usize;
        if len > MAX_BODY {
            return Err(corrupt("read the stream: its header is too long"));
        }
        let Some(body) = r.take(len) else { return Ok(None) };
        let Some(crc) = r.u32() else { return Ok(None) };
        if crc32c(&rest[..PREFIX + len]) != crc {
            return Err(corrupt("verify the stream: its header is damaged"));
        }
        let header =
            StreamHeader::decode(body).ok_or_else(|| corrupt("read the stream: its header is invalid"))?;
        self.total.add(&rest[..PREFIX + len + 4]);
        self.used += PREFIX + len + 4;
        self.at = header.start;
        self.header = Some(header.clone());
        Ok(Some(StreamItem::Header(header)))
    }

    fn take_record(&mut self, size: u64, block: u64) -> Result<Option<StreamItem>> {
        let rest = &self.buffer[self.used..];
        let Some((head, rest)) = rest.split_at_checked(RECORD) else { return Ok(None) };
        let damaged = |at: u64| corrupt(format!("verify the stream: the record after byte {at} is damaged"));
        let record = RecordHeader::decode(head).ok_or_else(|| damaged(self.at))?;
        if record.kind == ItemKind::End {
            if record != self.total.trailer(size) {
                return Err(corrupt("verify the stream: its total checksum is wrong"));
            }
            self.used += RECORD;
            self.ended = true;
            return Ok(Some(StreamItem::End));
        }
        let end = record.offset.checked_add(record.length).filter(|end| *end <= size);
        let aligned = record.offset.is_multiple_of(block) && record.length.is_multiple_of(block);
        let (Some(end), true, true) = (end, aligned && record.length > 0, record.offset >= self.at) else {
            return Err(corrupt(format!("read the stream: a record after byte {} is invalid", self.at)));
        };
        let item = if record.kind == ItemKind::Zeros {
            StreamItem::Zeros { offset: record.offset, length: record.length }
        } else {
            if record.length > MAX_DATA {
                return Err(corrupt("read the stream: a record is too long"));
            }
            let Some(data) = rest.get(..record.length as usize) else { return Ok(None) };
            if crc32c(data) != record.crc {
                return Err(damaged(self.at));
            }
            StreamItem::Data { offset: record.offset, data: Bytes::copy_from_slice(data) }
        };
        let used = RECORD + if record.kind == ItemKind::Data { record.length as usize } else { 0 };
        self.total.add(&self.buffer[self.used..self.used + used]);
        self.used += used;
        self.at = end;
        Ok(Some(item))
    }
}

/// Makes a stream with right sums, whose header body and records come from `data`. So the fuzzer
/// gets past the sums.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzzed(data: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    let (len, data) = data.split_first().map_or((0, data), |(len, rest)| (*len as usize, rest));
    let (body, records) = data.split_at(len.min(data.len()));
    w.bytes(&MAGIC).u16(VERSION).u32(body.len() as u32).bytes(body);
    let crc = crc32c(&w.0);
    w.u32(crc);
    let size = StreamHeader::decode(body).map_or(0, |header| header.size);
    let mut r = Reader::new(records);
    while let (Some(kind), Some(offset), Some(length)) = (r.u8(), r.u16(), r.u16()) {
        let kind = [ItemKind::Data, ItemKind::Zeros, ItemKind::End][kind as usize % 3];
        if kind == ItemKind::End && length != 0 {
            // This is a right trailer for what came before.
            let mut total = Total::new();
            total.add(&w.0);
            w.bytes(&total.trailer(size).encode());
            continue;
        }
        let data = if kind == ItemKind::Data { r.take(length as usize).unwrap_or_default() } else { &[] };
        let crc = if kind == ItemKind::Data { crc32c(data) } else { 0 };
        w.bytes(&RecordHeader { kind, crc, offset: offset as u64 * 512, length: length as u64 }.encode());
        w.bytes(data);
    }
    w.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> StreamHeader {
        let state = |byte, name: &str| StreamState {
            content: Uuid::from_bytes([byte; 16]),
            name: name.into(),
            created: 7,
        };
        StreamHeader {
            volume: "db".into(),
            size: 1 << 20,
            block_size: 512,
            chunk_size: 4096,
            start: 512,
            to: state(1, "tuesday"),
            from: Some(state(2, "monday")),
        }
    }

    /// A stream with a header, data, zeros and the end.
    fn sample() -> Vec<u8> {
        let data = [0xAB; 512];
        let mut bytes = header().encode();
        bytes.extend(
            RecordHeader { kind: ItemKind::Data, crc: crc32c(&data), offset: 512, length: 512 }.encode(),
        );
        bytes.extend(data);
        bytes.extend(RecordHeader { kind: ItemKind::Zeros, crc: 0, offset: 4096, length: 8192 }.encode());
        let mut total = Total::new();
        total.add(&bytes);
        bytes.extend(total.trailer(1 << 20).encode());
        bytes
    }

    fn decode(bytes: &[u8], piece: usize) -> Result<Vec<StreamItem>> {
        let mut decoder = Decoder::new();
        let mut items = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(item) = decoder.next()? {
                items.push(item);
            }
        }
        assert_eq!(decoder.is_complete(), items.last() == Some(&StreamItem::End));
        Ok(items)
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = sample();
        let data: Vec<u8> = bytes.splice(bytes.len() - 64 - 512..bytes.len() - 64, []).collect();
        assert_eq!(data, [0xAB; 512]);
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let golden = "48494e445354524d0100620000000200646200001000000000000002000000100000000000000002000000000000010101010101010101010101010101010700747565736461790700000000000000010202020202020202020202020202020206006d6f6e646179070000000000000038f9edb9010000002fe4fdb20002000000000000000200000000000000000000af38ee0f02000000000000000010000000000000002000000000000000000000c93fccbf03000000e0f3cedd0000100000000000b402000000000000000000006fd96319";
        assert_eq!(hex.concat(), golden);
    }

    #[test]
    fn pieces_of_any_size_say_the_same() {
        let expected = [
            StreamItem::Header(header()),
            StreamItem::Data { offset: 512, data: Bytes::from(vec![0xAB; 512]) },
            StreamItem::Zeros { offset: 4096, length: 8192 },
            StreamItem::End,
        ];
        let bytes = sample();
        for piece in [1, 7, 100, bytes.len()] {
            assert_eq!(decode(&bytes, piece).unwrap(), expected);
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = sample();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let ended = decode(&bad, 64).is_ok_and(|items| items.last() == Some(&StreamItem::End));
            assert!(!ended, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_ne!(decode(&bytes[..cut], 64).unwrap().last(), Some(&StreamItem::End), "cut at {cut}");
        }
        let mut long = bytes;
        long.push(0);
        assert!(decode(&long, 64).is_err(), "something follows the end");
    }

    #[test]
    fn records_that_make_no_sense_are_refused() {
        let record = |kind, offset, length| RecordHeader { kind, crc: 0, offset, length }.encode();
        for bad in [
            record(ItemKind::Zeros, 0, 512),
            record(ItemKind::Zeros, 600, 512),
            record(ItemKind::Zeros, 512, 0),
            record(ItemKind::Zeros, 1 << 20, 512),
            record(ItemKind::Zeros, u64::MAX - 511, 512),
            record(ItemKind::Data, 512, MAX_DATA + 512),
            record(ItemKind::End, 1 << 20, 0),
        ] {
            let mut bytes = header().encode();
            bytes.extend(bad);
            assert!(decode(&bytes, 64).is_err());
        }
        let mut backwards = header().encode();
        backwards.extend(record(ItemKind::Zeros, 8192, 512));
        backwards.extend(record(ItemKind::Zeros, 4096, 512));
        assert!(decode(&backwards, 64).is_err());
        let strange = |change: fn(&mut StreamHeader)| {
            let mut header = header();
            change(&mut header);
            decode(&header.encode(), 64).is_err()
        };
        assert!(strange(|h| h.block_size = 1024));
        assert!(strange(|h| h.size = 0));
        assert!(strange(|h| h.start = 100));
        assert!(strange(|h| h.chunk_size = 1000));
        assert!(strange(|h| h.volume = "../x".into()));
        assert!(strange(|h| h.to.content = Uuid::nil()));
    }
}
