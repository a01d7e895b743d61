//! A journal segment: one file of fixed size, a header block, then records.
//!
//! A file is used again and again. Its header states which part of the log it holds now: `seq`
//! counts segments of the log, and `prev_lsn` is the last LSN of the segment before. A segment
//! holds records of one incarnation only.

use super::record::Header;
use crate::codec::{Reader, Writer, crc32c};
use crate::disk::Disk;
use crate::ids::Lsn;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use uuid::Uuid;

/// The position of the first record, in bytes. The header has a block of its own, which is never
/// rewritten together with a record.
pub(crate) const FIRST_RECORD: u64 = 4096;

const MAGIC: &[u8; 4] = b"HCJS";
const VERSION: u32 = 1;
const ENCODED_LEN: usize = 68;
const _: () = assert!((ENCODED_LEN as u64) < FIRST_RECORD);

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) pool: Uuid,
    /// The number of this segment in the log, from 1.
    pub(crate) seq: u64,
    pub(crate) incarnation: u64,
    /// The LSN of the segment's first record.
    pub(crate) first_lsn: Lsn,
    /// The LSN of the record before the segment's first one.
    pub(crate) prev_lsn: Lsn,
}

impl SegmentHeader {
    /// Encodes the header block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(0).u32(VERSION).uuid(&self.pool).u64(self.seq);
        w.u64(self.incarnation).u64(self.first_lsn).u64(self.prev_lsn).u64(0u64);
        debug_assert_eq!(w.0.len(), ENCODED_LEN);
        let crc = crc32c(&w.0[8..]);
        w.0[4..8].copy_from_slice(&crc.to_le_bytes());
        w.0.resize(FIRST_RECORD as usize, 0);
        w.0
    }

    /// Decodes a header block. Returns `None` when the block holds no header, is damaged, or has
    /// another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SegmentHeader> {
        let bytes = bytes.get(..ENCODED_LEN)?;
        let mut r = Reader::new(bytes);
        let magic = r.array::<4>()?;
        let crc = r.u32()?;
        if &magic != MAGIC || crc != crc32c(&bytes[8..]) || r.u32()? != VERSION {
            return None;
        }
        Some(SegmentHeader {
            pool: r.uuid()?,
            seq: r.u64()?,
            incarnation: r.u64()?,
            first_lsn: r.u64()?,
            prev_lsn: r.u64()?,
        })
    }

    /// The salt of this segment. The sums of the segment's record headers are mixed with it.
    pub(crate) fn salt(&self) -> u32 {
        Self::salt_of(&self.pool, self.seq)
    }

    /// The salt of the segment with number `seq`.
    pub(crate) fn salt_of(pool: &Uuid, seq: u64) -> u32 {
        let mut key = [0u8; 24];
        key[..16].copy_from_slice(pool.as_bytes());
        key[16..].copy_from_slice(&seq.to_le_bytes());
        crc32c(&key)
    }
}

/// A segment's file. `index` is its number among the journal's files, fixed for its life.
pub(crate) struct SegmentFile {
    pub(crate) index: u32,
    pub(crate) disk: Arc<dyn Disk>,
    /// The number of the segment that the file holds now, or 0 if it holds none. For diagnostics.
    pub(crate) seq: AtomicU64,
}

/// The file name of segment file `index`.
pub(crate) fn file_name(index: u32) -> String {
    format!("journal-{index:05}")
}

/// Returns the index in a file name.
pub(crate) fn file_index(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("journal-")?;
    (digits.len() == 5).then(|| digits.parse().ok()).flatten()
}

/// A reader of one record after another from a segment. It reads through a window, so that small
/// records cost no system call each.
pub(crate) struct SegmentReader<'a> {
    disk: &'a dyn Disk,
    salt: u32,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
}

/// A record found in a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundRecord {
    pub(crate) header: Header,
    /// The position of the record's data in the segment, in bytes.
    pub(crate) data_at: u64,
    /// The position after the record, in bytes.
    pub(crate) next: u64,
}

const WINDOW: usize = 512 << 10;

impl<'a> SegmentReader<'a> {
    /// A reader of the bytes below `end` of the segment.
    pub(crate) fn new(disk: &'a dyn Disk, salt: u32, end: u64) -> Self {
        SegmentReader { disk, salt, end, window: Vec::new(), window_at: 0 }
    }

    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    /// The end of the readable range: no byte at or after it is read.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns `len` bytes at `at`, or fewer at the end. Unreadable bytes behind these are no
    /// obstacle.
    pub(crate) fn bytes(&mut self, at: u64, len: usize) -> std::io::Result<&[u8]> {
        let len = len.min(self.end.saturating_sub(at) as usize);
        let inside = at >= self.window_at && at + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            let want = WINDOW.max(len).min((self.end - at.min(self.end)) as usize);
            self.window.resize(want, 0);
            self.window_at = at;
            if self.disk.read_at(&mut self.window, at).is_err() {
                self.window.resize(len, 0);
                if let Err(error) = self.disk.read_at(&mut self.window, at) {
                    self.window.clear();
                    return Err(error);
                }
            }
        }
        let start = (at - self.window_at) as usize;
        Ok(&self.window[start..start + len])
    }

    /// Returns the record whose header stands at `at`, if its header and its data verify.
    pub(crate) fn record(&mut self, at: u64) -> std::io::Result<Option<FoundRecord>> {
        let salt = self.salt;
        let Some(header) = Header::decode(self.bytes(at, super::record::HEADER_LEN)?, salt) else {
            return Ok(None);
        };
        let data_at = at + super::record::HEADER_LEN as u64;
        if !header.verifies(self.bytes(data_at, header.data_len as usize)?) {
            return Ok(None);
        }
        Ok(Some(FoundRecord { header, data_at, next: at + header.space() }))
    }

    /// Returns the record that must follow `at`. The record lies at `at`, or at the next block
    /// boundary if a synced group was padded. An unreadable place does not matter if the record
    /// lies at the other one.
    pub(crate) fn next_record(
        &mut self,
        at: u64,
        accept: impl Fn(&Header) -> bool,
    ) -> std::io::Result<Option<FoundRecord>> {
        let wanted = |found: Option<FoundRecord>| found.filter(|f| accept(&f.header));
        let here = self.record(at).map(wanted);
        let padded = crate::codec::align_up(at, crate::units::BLOCK);
        if matches!(here, Ok(Some(_))) || padded == at {
            return here;
        }
        match self.record(padded).map(wanted)? {
            None => here,
            found => Ok(found),
        }
    }
}

/// A segment that is part of the log now.
#[derive(Clone)]
pub(crate) struct ChainSegment {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) header: SegmentHeader,
    /// The last LSN that has a place in the segment. It is `header.prev_lsn` while the segment is
    /// empty.
    pub(crate) last_lsn: Lsn,
    /// The end of the last record, in bytes of the segment.
    pub(crate) end: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip_and_damage() {
        let header = SegmentHeader {
            pool: Uuid::from_bytes([9; 16]),
            seq: 5,
            incarnation: 2,
            first_lsn: Lsn(100),
            prev_lsn: Lsn(99),
        };
        let block = header.encode();
        assert_eq!(block.len() as u64, FIRST_RECORD);
        assert_eq!(SegmentHeader::decode(&block), Some(header));
        let hex: String = block[..12].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "48434a531cb0fc4901000000");
        for bit in 0..ENCODED_LEN * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bad), None, "bit {bit}");
        }
        assert_ne!(header.salt(), SegmentHeader { seq: 6, ..header }.salt());
    }

    #[test]
    fn names() {
        assert_eq!(file_index(&file_name(12)), Some(12));
        assert_eq!(file_index("journal-12"), None);
        assert_eq!(file_index("pv-0.img"), None);
    }
}
