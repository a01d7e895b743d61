//! The CDP log on disk: records, the index behind them, and the head of a segment. All numbers are
//! little-endian. FORMAT.md has the tables.
//!
//! A record is a 64-byte header and its payload, padded to 8 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `HCDR` |
//! | 4..8 | CRC32C of bytes 8..64 and the payload, XOR the salt of the segment |
//! | 8..16 | LSN |
//! | 16..24 | time, nanoseconds since the Unix epoch |
//! | 24..32 | chunk |
//! | 32..36 | epoch |
//! | 36..40 | first sector of the chunk that it is about |
//! | 40..44 | number of sectors |
//! | 44..48 | CRC32C of the whole chunk before the record |
//! | 48..52 | CRC32C of the whole chunk after the record |
//! | 52..56 | bytes of payload |
//! | 56 | encoding |
//! | 57 | compression |
//! | 58 | where the content before the record is ([`Replaced`]) |
//! | 59..64 | zeros |
//!
//! The index repeats everything but the payload, sorted by (chunk, LSN). It shows what is lost with
//! a damaged record, and a damaged index can be rebuilt from the records.

use crate::codec::{Reader, Writer, align_up, crc32c};
use crate::ids::{BranchId, Chunk, Epoch, Lsn, Stamp};
use crate::settings::{Compression, Encoding};
use crate::units::SECTOR;
use uuid::Uuid;

/// The size of a record's header in bytes.
pub(crate) const HEADER_LEN: usize = 64;
/// Records start at multiples of this number of bytes.
pub(crate) const ALIGN: u64 = 8;
/// The size of a block of the index in bytes.
pub(crate) const BLOCK_LEN: usize = 4096;
/// The size of an entry of the index in bytes.
const ENTRY_LEN: usize = 56;
const BLOCK_HEAD: usize = 16;
/// The number of entries of a full block.
pub(crate) const ENTRIES: usize = (BLOCK_LEN - BLOCK_HEAD) / ENTRY_LEN;
/// The size of a segment's head in bytes.
pub(crate) const SEGMENT_HEAD: u64 = 64;
/// The largest number of sectors of one record: 16 MiB.
const MAX_SECTORS: u32 = 32 << 10;

const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"HCDR");
const INDEX_MAGIC: u32 = u32::from_le_bytes(*b"HCDI");
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"HCDS");
const VERSION: u8 = 1;

const _: () = assert!(HEADER_LEN as u64 % ALIGN == 0 && BLOCK_LEN as u64 % ALIGN == 0);
const _: () = assert!(ENTRIES == 72);

/// The place of the content that a record replaced.
///
/// Only a record with a payload has sums of the chunk. The other records are about whole chunks,
/// and their sums are 0, but for the sum of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Replaced {
    /// The payload leads to it.
    #[default]
    Payload = 0,
    /// The newest anchor before the record shows it. The record has no payload, and leads in no
    /// direction: the chunk did not change between the anchor and the record.
    Anchor = 1,
    /// It was zeros. The record has no payload, and leads backward.
    Zeros = 2,
}

impl Replaced {
    fn decode(byte: u8) -> Option<Replaced> {
        [Replaced::Payload, Replaced::Anchor, Replaced::Zeros]
            .into_iter()
            .find(|before| *before as u8 == byte)
    }
}

/// An entry of the index: everything that a record's header contains, and the record's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) chunk: Chunk,
    pub(crate) lsn: Lsn,
    pub(crate) time: u64,
    /// The byte in the segment at which the record starts.
    pub(crate) at: u32,
    /// The stored size of the payload, in bytes.
    pub(crate) stored: u32,
    pub(crate) first_sector: u32,
    pub(crate) sectors: u32,
    /// CRC32C of the whole chunk before the record.
    pub(crate) before: u32,
    pub(crate) after: u32,
    pub(crate) encoding: Encoding,
    pub(crate) compression: Compression,
    pub(crate) replaced: Replaced,
}

impl IndexEntry {
    /// Returns the LSN and the time of the record.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { lsn: self.lsn, time: self.time }
    }

    /// Returns the part of the chunk that the record changes, in bytes.
    pub(crate) fn bytes(&self) -> std::ops::Range<usize> {
        let start = self.first_sector as usize * SECTOR as usize;
        start..start + self.raw_len()
    }

    /// Returns the size of the uncompressed payload, in bytes.
    pub(crate) fn raw_len(&self) -> usize {
        self.sectors as usize * SECTOR as usize
    }

    /// Returns whether the record leads from the content before it to the content after it, or in
    /// the other direction.
    pub(crate) fn leads(&self, forward: bool) -> bool {
        match self.replaced {
            Replaced::Payload if forward => self.encoding.leads_forward(),
            Replaced::Payload => self.encoding.leads_backward(),
            Replaced::Anchor => false,
            Replaced::Zeros => !forward,
        }
    }

    /// Returns the sum of the chunk after the record (`forward`), or before it, if it is known.
    pub(crate) fn sum(&self, forward: bool) -> Option<u32> {
        match self.replaced {
            Replaced::Payload => Some(if forward { self.after } else { self.before }),
            Replaced::Zeros if !forward => Some(self.before),
            Replaced::Anchor | Replaced::Zeros => None,
        }
    }

    /// Returns the bytes of replaced content that the record needs in slots.
    pub(crate) fn kept(&self) -> u64 {
        if self.replaced == Replaced::Anchor { self.raw_len() as u64 } else { 0 }
    }

    /// Returns the bytes that the record takes in a segment.
    pub(crate) fn space(&self) -> u64 {
        align_up(HEADER_LEN as u64 + self.stored as u64, ALIGN)
    }

    fn makes_sense(&self) -> bool {
        (1..=MAX_SECTORS).contains(&self.sectors)
            && self.first_sector.checked_add(self.sectors).is_some_and(|end| end <= 2 << 20)
            && self.stored as usize <= self.raw_len()
            && (self.replaced == Replaced::Payload || self.stored == 0)
    }

    fn put(&self, w: &mut Writer) {
        w.u64(self.chunk).u64(self.lsn).u64(self.time).u32(self.at).u32(self.stored);
        w.u32(self.first_sector).u32(self.sectors).u32(self.before).u32(self.after);
        w.u8(self.encoding as u8).u8(self.compression as u8).u8(self.replaced as u8).bytes(&[0; 5]);
    }

    fn take(r: &mut Reader<'_>) -> Option<IndexEntry> {
        let entry = IndexEntry {
            chunk: r.u64()?,
            lsn: r.u64()?,
            time: r.u64()?,
            at: r.u32()?,
            stored: r.u32()?,
            first_sector: r.u32()?,
            sectors: r.u32()?,
            before: r.u32()?,
            after: r.u32()?,
            encoding: Encoding::decode(r.u8()?)?,
            compression: Compression::decode(r.u8()?)?,
            replaced: Replaced::decode(r.u8()?)?,
        };
        (r.array()? == [0u8; 5] && entry.makes_sense()).then_some(entry)
    }
}

/// Appends a record. `payload` appends the payload and returns its compression. The function sets
/// the stored size and the compression in `entry`.
pub(crate) fn put_record(
    entry: &mut IndexEntry,
    epoch: Epoch,
    salt: u32,
    out: &mut Vec<u8>,
    payload: impl FnOnce(&mut Vec<u8>) -> Compression,
) {
    let start = out.len();
    out.resize(start + HEADER_LEN, 0);
    entry.compression = payload(out);
    entry.stored = (out.len() - start - HEADER_LEN) as u32;
    let mut w = Writer(Vec::with_capacity(HEADER_LEN));
    w.u32(RECORD_MAGIC).u32(0).u64(entry.lsn).u64(entry.time).u64(entry.chunk).u32(epoch.0);
    w.u32(entry.first_sector).u32(entry.sectors).u32(entry.before).u32(entry.after);
    w.u32(entry.stored).u8(entry.encoding as u8).u8(entry.compression as u8);
    w.u8(entry.replaced as u8).bytes(&[0; 5]);
    out[start..start + HEADER_LEN].copy_from_slice(&w.0);
    let crc = crc32c(&out[start + 8..]) ^ salt;
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + entry.space() as usize, 0);
}

/// A decoded record: its index entry, its epoch, and its payload.
pub(crate) struct Decoded<'a> {
    pub(crate) entry: IndexEntry,
    pub(crate) epoch: Epoch,
    pub(crate) payload: &'a [u8],
}

/// Decodes the record at the start of `bytes`, which lies at byte `at` of the segment. Returns
/// `None` unless every field makes sense and the sum verifies.
pub(crate) fn decode_record(bytes: &[u8], at: u32, salt: u32) -> Option<Decoded<'_>> {
    let mut r = Reader::new(bytes);
    if r.u32()? != RECORD_MAGIC {
        return None;
    }
    let sum = r.u32()?;
    let (lsn, time, chunk, epoch) = (r.u64()?, r.u64()?, r.u64()?, Epoch(r.u32()?));
    let (first_sector, sectors, before, after, stored) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let (encoding, compression) = (Encoding::decode(r.u8()?)?, Compression::decode(r.u8()?)?);
    let replaced = Replaced::decode(r.u8()?)?;
    let padding: [u8; 5] = r.array()?;
    let entry = IndexEntry {
        chunk,
        lsn,
        time,
        at,
        stored,
        first_sector,
        sectors,
        before,
        after,
        encoding,
        compression,
        replaced,
    };
    if padding != [0; 5] || !entry.makes_sense() {
        return None;
    }
    let payload = r.take(stored as usize)?;
    let summed = bytes.get(8..HEADER_LEN + stored as usize)?;
    (crc32c(summed) ^ salt == sum).then_some(Decoded { entry, epoch, payload })
}

/// The kind of item that begins at a place of a segment. A reader uses it to step from one item to
/// the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A record, with the length that its header states. The record is verified when it is decoded.
    Record(u64),
    /// A block of an index.
    Block,
}

/// Returns what begins here, by its first bytes.
pub(crate) fn thing_at(bytes: &[u8]) -> Option<Thing> {
    let mut r = Reader::new(bytes.get(..HEADER_LEN)?);
    match r.u32()? {
        RECORD_MAGIC => {
            r.take(48)?;
            Some(Thing::Record(align_up(HEADER_LEN as u64 + r.u32()? as u64, ALIGN)))
        }
        INDEX_MAGIC => Some(Thing::Block),
        _ => None,
    }
}

/// Appends an index of `entries`, which are sorted by (chunk, LSN), in whole blocks.
///
/// A block consists of: magic `HCDI` (4), CRC32C of what follows XOR the salt (4), number of
/// entries (2), zeros (6), entries, zeros.
pub(crate) fn put_index(entries: &[IndexEntry], salt: u32, out: &mut Vec<u8>) {
    for of_block in entries.chunks(ENTRIES) {
        let start = out.len();
        let mut w = Writer(std::mem::take(out));
        w.u32(INDEX_MAGIC).u32(0).u16(of_block.len() as u16).bytes(&[0; 6]);
        of_block.iter().for_each(|entry| entry.put(&mut w));
        *out = w.0;
        out.resize(start + BLOCK_LEN, 0);
        let crc = crc32c(&out[start + 8..]) ^ salt;
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Appends an index as [`put_index`] does, without the zeros at its end.
pub(crate) fn put_packed_index(entries: &[IndexEntry], salt: u32, out: &mut Vec<u8>) {
    put_index(entries, salt, out);
    if let Some(last) = entries.chunks(ENTRIES).last() {
        out.truncate(out.len() - BLOCK_LEN + packed_len(last.len()));
    }
}

/// Returns the bytes of a block of an index with this number of entries, without the zeros at its
/// end.
pub(crate) fn packed_len(entries: usize) -> usize {
    BLOCK_HEAD + entries.min(ENTRIES) * ENTRY_LEN
}

/// Decodes a block of an index.
pub(crate) fn decode_block(bytes: &[u8], salt: u32) -> Option<Vec<IndexEntry>> {
    let mut r = Reader::new(bytes.get(..BLOCK_LEN)?);
    if r.u32()? != INDEX_MAGIC || r.u32()? != crc32c(&bytes[8..BLOCK_LEN]) ^ salt {
        return None;
    }
    let count = r.u16()? as usize;
    if count > ENTRIES || r.array()? != [0u8; 6] {
        return None;
    }
    let entries: Vec<IndexEntry> = (0..count).map(|_| IndexEntry::take(&mut r)).collect::<Option<_>>()?;
    let sorted = entries.is_sorted_by(|a, b| (a.chunk, a.lsn) < (b.chunk, b.lsn));
    let padding = r.take(BLOCK_LEN - BLOCK_HEAD - count * ENTRY_LEN)?;
    (sorted && padding.iter().all(|b| *b == 0)).then_some(entries)
}

/// The head of a segment's file: the pool and the branch that it belongs to, and its place in the
/// log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) pool: Uuid,
    /// The branch, or [`SHARED`] for a segment with runs of any branches.
    pub(crate) branch: BranchId,
    /// The segment's number among the branch's segments.
    pub(crate) seq: u64,
    /// The edition of the segment. It differs each time the segment is written anew.
    pub(crate) edition: u32,
}

impl SegmentHead {
    /// Encodes the head: magic `HCDS` (4), CRC32C of what follows (4), version (1), zeros (3),
    /// edition (4), branch (8), number (8), pool (16), zeros (16).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(SEGMENT_MAGIC).u32(0).u8(VERSION).bytes(&[0; 3]).u32(self.edition);
        w.u64(self.branch.0).u64(self.seq).uuid(&self.pool).bytes(&[0; 16]);
        let crc = crc32c(&w.0[8..]);
        w.0[4..8].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(w.0.len() as u64, SEGMENT_HEAD);
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<SegmentHead> {
        let bytes = bytes.get(..SEGMENT_HEAD as usize)?;
        let mut r = Reader::new(bytes);
        let fits = r.u32()? == SEGMENT_MAGIC && r.u32()? == crc32c(&bytes[8..]) && r.u8()? == VERSION;
        let padding: [u8; 3] = r.array()?;
        let (edition, branch, seq, pool) = (r.u32()?, r.u64()?, r.u64()?, r.uuid()?);
        let rest: [u8; 16] = r.array()?;
        (fits && padding == [0; 3] && rest == [0; 16]).then_some(SegmentHead {
            pool,
            branch: BranchId(branch),
            seq,
            edition,
        })
    }

    /// Returns the salt. It is mixed into all sums of the segment, so that no client's data, not
    /// even a stored log, passes for a part of the segment.
    pub(crate) fn salt(&self) -> u32 {
        crc32c(&self.encode())
    }

    /// Returns the salt for the run of a branch in a shared segment. It is mixed into all sums of
    /// the run, so that no other branch's run passes for it.
    pub(crate) fn run_salt(&self, branch: BranchId) -> u32 {
        self.salt() ^ crc32c(&branch.0.to_le_bytes())
    }

    pub(crate) fn file_name(&self) -> String {
        format!("{FILE_PREFIX}{:x}-{:x}-{:x}", self.branch.0, self.seq, self.edition)
    }

    /// Returns whether `name` can be the name of a segment's file. Users' files may begin like one.
    pub(crate) fn names(name: &str) -> bool {
        let digits = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let mut parts = name.strip_prefix(FILE_PREFIX).into_iter().flat_map(|rest| rest.split('-'));
        let three = [parts.next(), parts.next(), parts.next()];
        parts.next().is_none() && three.iter().all(|part| part.is_some_and(digits))
    }
}

/// The id in place of a branch that marks a shared segment. No branch has this id.
pub(crate) const SHARED: BranchId = BranchId(0);

/// The prefix of the names of segments.
pub(crate) const FILE_PREFIX: &str = "cdp-";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    pub(super) fn entry(chunk: u64, lsn: u64) -> IndexEntry {
        IndexEntry {
            chunk: Chunk(chunk),
            lsn: Lsn(lsn),
            time: 0x1122_3344_5566_7788,
            at: 64,
            stored: 5,
            first_sector: 3,
            sectors: 2,
            before: 0xAABB_CCDD,
            after: 0x0102_0304,
            encoding: Encoding::Undo,
            compression: Compression::Lz4,
            replaced: Replaced::Payload,
        }
    }

    /// Returns an entry as it is before its payload is known.
    fn plain(chunk: u64, lsn: u64) -> IndexEntry {
        IndexEntry { stored: 0, compression: Compression::None, ..entry(chunk, lsn) }
    }

    fn hello(out: &mut Vec<u8>) -> Compression {
        out.extend_from_slice(b"hello");
        Compression::Lz4
    }

    fn head() -> SegmentHead {
        SegmentHead { pool: Uuid::from_bytes([7; 16]), branch: BranchId(2), seq: 9, edition: 1 }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Pools of older builds contain files with such names.
    #[test]
    fn names_of_segments() {
        let name = SegmentHead { pool: Uuid::nil(), branch: BranchId(0xabc), seq: 7, edition: 0 }.file_name();
        assert!(SegmentHead::names(&name), "{name}");
        for other in [
            "cdp-data.img",
            "cdp-",
            "cdp-1-2",
            "cdp-1-2-",
            "cdp-1-2-3-4",
            "cdp-1-2-3.img",
            "acdp-1-2-3",
            "cdp-1-2-A",
        ] {
            assert!(!SegmentHead::names(other), "{other}");
        }
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        put_record(&mut plain(0x0A, 0x0B), Epoch(6), 0x5EED, &mut out, hello);
        assert_eq!(hex(&out), GOLDEN_RECORD);
        let mut out = Vec::new();
        put_index(&[entry(0x0A, 0x0B), entry(0x0A, 0x0C)], 0x5EED, &mut out);
        assert_eq!(out.len(), BLOCK_LEN);
        assert_eq!(hex(&out[..BLOCK_HEAD + 2 * ENTRY_LEN]), GOLDEN_INDEX);
        let mut out = Vec::new();
        let mut bare = IndexEntry { before: 0, after: 0, replaced: Replaced::Anchor, ..plain(0x0A, 0x0B) };
        put_record(&mut bare, Epoch(6), 0x5EED, &mut out, |_| Compression::None);
        assert_eq!(hex(&out), GOLDEN_BARE);
        assert_eq!(decode_record(&out, 64, 0x5EED).map(|decoded| decoded.entry), Some(bare));
        assert_eq!(hex(&head().encode()), GOLDEN_HEAD);
        assert_eq!(head().file_name(), "cdp-2-9-1");
    }

    const GOLDEN_RECORD: &str = "48434452cc746e810b0000000000000088776655443322110a00000000000000060000000300000002000000ddccbbaa0403020105000000020200000000000068656c6c6f000000";
    const GOLDEN_BARE: &str = "48434452732a53540b0000000000000088776655443322110a000000000000000600000003000000020000000000000000000000000000000200010000000000";
    const GOLDEN_INDEX: &str = "484344499e9fb8b202000000000000000a000000000000000b00000000000000887766554433221140000000050000000300000002000000ddccbbaa0403020102020000000000000a000000000000000c00000000000000887766554433221140000000050000000300000002000000ddccbbaa040302010202000000000000";
    const GOLDEN_HEAD: &str = "48434453d208e9730100000001000000020000000000000009000000000000000707070707070707070707070707070700000000000000000000000000000000";

    #[test]
    fn round_trips_and_every_flipped_bit_is_noticed() {
        let mut out = Vec::new();
        put_record(&mut plain(1, 2), Epoch(6), 77, &mut out, hello);
        let decoded = decode_record(&out, 64, 77).unwrap();
        assert_eq!((decoded.entry, decoded.epoch, decoded.payload), (entry(1, 2), Epoch(6), &b"hello"[..]));
        assert_eq!(thing_at(&out), Some(Thing::Record(out.len() as u64)));
        assert!(decode_record(&out, 64, 78).is_none(), "of another segment");
        for bit in 0..(HEADER_LEN + 5) * 8 {
            out[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_record(&out, 64, 77).is_none(), "bit {bit}");
            out[bit / 8] ^= 1 << (bit % 8);
        }
        let head = head();
        assert_eq!(SegmentHead::decode(&head.encode()), Some(head));
        let mut bytes = head.encode();
        bytes[20] ^= 1;
        assert_eq!(SegmentHead::decode(&bytes), None);
    }

    /// A record without a payload leads only to what is known without one.
    #[test]
    fn directions_and_sums_of_records_without_a_payload() {
        let of = |replaced| IndexEntry { stored: 0, replaced, encoding: Encoding::Parity, ..plain(1, 2) };
        let (anchor, zeros) = (of(Replaced::Anchor), of(Replaced::Zeros));
        assert_eq!((anchor.leads(true), anchor.leads(false)), (false, false));
        assert_eq!((zeros.leads(true), zeros.leads(false)), (false, true));
        assert_eq!((anchor.sum(true), anchor.sum(false)), (None, None));
        assert_eq!((zeros.sum(true), zeros.sum(false)), (None, Some(zeros.before)));
        assert_eq!((anchor.kept(), zeros.kept()), (2 * SECTOR, 0));
        assert!(!IndexEntry { stored: 5, ..anchor }.makes_sense());
    }

    #[test]
    fn indexes_come_back() {
        let entries: Vec<IndexEntry> = (0..200).map(|n| entry(n / 3, 1 + n)).collect();
        let mut out = Vec::new();
        put_index(&entries, 5, &mut out);
        assert_eq!(out.len(), 3 * BLOCK_LEN);
        assert_eq!(thing_at(&out), Some(Thing::Block));
        let blocks = out.chunks(BLOCK_LEN).map(|b| decode_block(b, 5).unwrap());
        assert_eq!(blocks.flatten().collect::<Vec<_>>(), entries);
        let rng = SplitMix::new(1);
        for _ in 0..1000 {
            let bit = rng.next() as usize % (BLOCK_LEN * 8);
            out[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_block(&out, 5), None);
            out[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(decode_block(&out, 6), None);
        let unsorted = [entry(2, 1), entry(1, 1)];
        let mut out = Vec::new();
        put_index(&unsorted, 5, &mut out);
        assert_eq!(decode_block(&out, 5), None);
    }
}
