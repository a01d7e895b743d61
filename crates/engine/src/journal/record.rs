//! The journal's record: an 80-byte header, then its data.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `HCJR` |
//! | 4..8 | CRC32C of bytes 8..80, XOR the salt of the segment (so that no client data, not even a stored journal, passes for a record) |
//! | 8..16 | incarnation of the pool that wrote it |
//! | 16..24 | LSN |
//! | 24..32 | LSN known to be durable when it was written |
//! | 32..40 | time, nanoseconds since the Unix epoch |
//! | 40..48 | branch (0 for control records) |
//! | 48..56 | byte offset in the volume |
//! | 56..64 | length in bytes of the range it speaks of |
//! | 64..68 | epoch |
//! | 68..72 | bytes of data that follow |
//! | 72..76 | CRC32C of the list of sums of the data's pieces: CRC-32/MEF, in version 1 CRC32C |
//! | 76 | kind |
//! | 77 | format version: 3 for references, 2 for all other records; 1 is read, too |
//! | 78..80 | slots reserved for it (I6) |
//!
//! The data is summed in pieces that end at multiples of 4 KiB of the *volume*. So staging can keep
//! one sum per block. A staged read of one block is verified without reading the rest of a large
//! record.

use crate::codec::{crc32c, outer_sum};
use crate::ids::{BranchId, Epoch, Lsn, Stamp};
pub(crate) use crate::units::{BLOCK, SECTOR};

/// The size of a header in bytes.
pub(crate) const HEADER_LEN: usize = 80;
/// Records start at multiples of this number of bytes.
pub(crate) const RECORD_ALIGN: u64 = 8;
/// The largest data of one record, in bytes. A larger write becomes several records.
pub(crate) const MAX_DATA: u64 = 128 << 10;
/// The longest range of one record that allocates zeros, in bytes. It bounds the slots of a record
/// below 2^16.
pub(crate) const MAX_ZERO: u64 = 16 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"HCJR");
/// The format version in which all records but references are written.
pub(crate) const VERSION: u8 = 2;
/// The format version of references. A build that does not know it takes a reference for the end of
/// the log. So a pool has references only if its feature word says so.
pub(crate) const REFERENCE_VERSION: u8 = 3;
/// The format version whose data is summed with CRC32C. That sum does not detect that data with a
/// CRC32C of its own was replaced by other such data.
const CRC32C_VERSION: u8 = 1;
const MAX_PIECES: usize = (MAX_DATA / BLOCK) as usize + 1;

const _: () = assert!(MAX_ZERO / SECTOR < u16::MAX as u64);
const _: () = assert!(HEADER_LEN as u64 % RECORD_ALIGN == 0);

/// The effect of a record on its branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// New data for `offset..offset+length`.
    Write = 1,
    /// The range reads as zeros and its space is free.
    Discard = 2,
    /// The range reads as zeros and keeps or gets space.
    Zero = 3,
    /// The data is an encoded [`crate::control::Control`].
    Control = 4,
    /// New data for `offset..offset+length`, which lies in slots. The record's data is an encoded
    /// [`Reference`](super::reference::Reference).
    Reference = 5,
}

impl Kind {
    /// Returns the format version in which records of this kind are written.
    pub(crate) fn version(self) -> u8 {
        if self == Kind::Reference { REFERENCE_VERSION } else { VERSION }
    }
}

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) incarnation: u64,
    pub(crate) lsn: Lsn,
    pub(crate) synced_lsn: Lsn,
    pub(crate) time: u64,
    pub(crate) branch: BranchId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) epoch: Epoch,
    pub(crate) data_len: u32,
    pub(crate) data_crc: u32,
    pub(crate) kind: Kind,
    pub(crate) slots: u16,
    /// The format version. It determines how the data is summed.
    pub(crate) version: u8,
}

impl Header {
    /// Returns the LSN and the time of the record.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { lsn: self.lsn, time: self.time }
    }

    /// Appends the encoded header to `out`.
    pub(crate) fn encode(&self, salt: u32, out: &mut Vec<u8>) {
        let mut b = [0u8; HEADER_LEN];
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[8..16].copy_from_slice(&self.incarnation.to_le_bytes());
        b[16..24].copy_from_slice(&self.lsn.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.synced_lsn.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.time.to_le_bytes());
        b[40..48].copy_from_slice(&self.branch.0.to_le_bytes());
        b[48..56].copy_from_slice(&self.offset.to_le_bytes());
        b[56..64].copy_from_slice(&self.length.to_le_bytes());
        b[64..68].copy_from_slice(&self.epoch.0.to_le_bytes());
        b[68..72].copy_from_slice(&self.data_len.to_le_bytes());
        b[72..76].copy_from_slice(&self.data_crc.to_le_bytes());
        b[76] = self.kind as u8;
        b[77] = self.version;
        b[78..80].copy_from_slice(&self.slots.to_le_bytes());
        let crc = crc32c(&b[8..]) ^ salt;
        b[4..8].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&b);
    }

    /// Returns the salt with which the sum of the header in `bytes` verifies, or `None` when
    /// `bytes` hold no header.
    pub(crate) fn salt(bytes: &[u8]) -> Option<u32> {
        let b: &[u8; HEADER_LEN] = bytes.get(..HEADER_LEN)?.try_into().ok()?;
        let sum = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        (b[..4] == MAGIC.to_le_bytes()).then(|| crc32c(&b[8..]) ^ sum)
    }

    /// Decodes a header. Returns `None` unless every field makes sense and the sum verifies.
    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Header> {
        let b: &[u8; HEADER_LEN] = bytes.get(..HEADER_LEN)?.try_into().ok()?;
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| (u32_at(i) as u64) | ((u32_at(i + 4) as u64) << 32);
        if u32_at(0) != MAGIC
            || u32_at(4) != crc32c(&b[8..]) ^ salt
            || !matches!(b[77], CRC32C_VERSION | VERSION | REFERENCE_VERSION)
        {
            return None;
        }
        let kind = match b[76] {
            1 => Kind::Write,
            2 => Kind::Discard,
            3 => Kind::Zero,
            4 => Kind::Control,
            5 => Kind::Reference,
            _ => return None,
        };
        let header = Header {
            incarnation: u64_at(8),
            lsn: Lsn(u64_at(16)),
            synced_lsn: Lsn(u64_at(24)),
            time: u64_at(32),
            branch: BranchId(u64_at(40)),
            offset: u64_at(48),
            length: u64_at(56),
            epoch: Epoch(u32_at(64)),
            data_len: u32_at(68),
            data_crc: u32_at(72),
            kind,
            slots: u16::from_le_bytes([b[78], b[79]]),
            version: b[77],
        };
        header.is_sane().then_some(header)
    }

    fn is_sane(&self) -> bool {
        let range_ok = self.offset.checked_add(self.length).is_some_and(|end| end <= 1 << 62);
        let sectors = self.offset % SECTOR == 0 && self.length % SECTOR == 0 && self.length > 0;
        let of_reference = self.version == REFERENCE_VERSION;
        range_ok
            && of_reference == (self.kind == Kind::Reference)
            && self.data_len as u64 <= MAX_DATA
            && match self.kind {
                Kind::Write => sectors && self.length == self.data_len as u64,
                Kind::Discard => sectors && self.data_len == 0,
                Kind::Zero => sectors && self.data_len == 0 && self.length <= MAX_ZERO,
                Kind::Control => self.offset == 0 && self.length == self.data_len as u64,
                // [`Reference::decode`](super::reference::Reference::decode) checks the data.
                Kind::Reference => self.offset % BLOCK == 0 && self.length % BLOCK == 0 && self.length > 0,
            }
    }

    /// Returns whether `data` is what the record was written with.
    pub(crate) fn verifies(&self, data: &[u8]) -> bool {
        data.len() == self.data_len as usize && verifies(self.version, self.offset, data, self.data_crc)
    }

    /// Returns the bytes that the record takes in a segment, data and alignment included.
    pub(crate) fn space(&self) -> u64 {
        space(self.data_len as u64)
    }
}

/// Returns whether `data` is that of a record of a format version, at byte `offset` of a volume,
/// whose header has the sum `sum`.
pub(crate) fn verifies(version: u8, offset: u64, data: &[u8], sum: u32) -> bool {
    let by = if version == CRC32C_VERSION { crc32c } else { outer_sum };
    PieceCrcs::by(by, offset, data).total() == sum
}

/// Returns the bytes that a record with `data_len` bytes of data takes in a segment.
pub(crate) fn space(data_len: u64) -> u64 {
    crate::codec::align_up(HEADER_LEN as u64 + data_len, RECORD_ALIGN)
}

/// The checksums of a record's data, one per piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceCrcs {
    count: usize,
    crcs: [u32; MAX_PIECES],
}

impl PieceCrcs {
    /// Sums `data` (at most [`MAX_DATA`] bytes) that belongs at byte `offset` of a volume.
    pub(crate) fn of(offset: u64, data: &[u8]) -> Self {
        Self::by(outer_sum, offset, data)
    }

    fn by(sum: fn(&[u8]) -> u32, offset: u64, data: &[u8]) -> Self {
        let mut sums = PieceCrcs { count: 0, crcs: [0; MAX_PIECES] };
        for (start, len) in cuts(offset, data.len() as u64) {
            sums.crcs[sums.count] = sum(&data[start as usize..(start + len) as usize]);
            sums.count += 1;
        }
        sums
    }

    /// The sum of all pieces, as the header carries it.
    pub(crate) fn total(&self) -> u32 {
        let mut list = [0u8; MAX_PIECES * 4];
        for (i, crc) in self.as_slice().iter().enumerate() {
            list[i * 4..i * 4 + 4].copy_from_slice(&crc.to_le_bytes());
        }
        crc32c(&list[..self.count * 4])
    }

    /// The sums of the pieces, in order.
    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.crcs[..self.count]
    }
}

/// Cuts `offset..offset + len` at multiples of [`BLOCK`]: (start relative to `offset`, length).
pub(crate) fn cuts(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let start = at;
        at = (at + BLOCK - (offset + at) % BLOCK).min(len);
        Some((start, at - start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            incarnation: 3,
            lsn: Lsn(77),
            synced_lsn: Lsn(70),
            time: 1_000_000_007,
            branch: BranchId(5),
            offset: 4096 * 9 + 512,
            length: 1024,
            epoch: Epoch(2),
            data_len: 1024,
            data_crc: 0xDEAD_BEEF,
            kind: Kind::Write,
            slots: 1,
            version: VERSION,
        }
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        sample().encode(0x1234_5678, &mut out);
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "48434a52",
                "00534ddc",
                "0300000000000000",
                "4d00000000000000",
                "4600000000000000",
                "07ca9a3b00000000",
                "0500000000000000",
                "0092000000000000",
                "0004000000000000",
                "02000000",
                "00040000",
                "efbeadde",
                "01",
                "02",
                "0100"
            )
        );
        assert_eq!(Header::decode(&out, 0x1234_5678), Some(sample()));
    }

    #[test]
    fn sums_see_what_has_sums_of_its_own() {
        let own = |fill: u8| {
            let mut data = vec![fill; 4092];
            data.extend(crc32c(&data).to_le_bytes());
            data
        };
        assert_eq!(crc32c(&own(1)), crc32c(&own(2)), "why version 1 was not enough");
        let (old, new) = (own(1), own(2));
        let header = Header { offset: 0, length: 4096, data_len: 4096, version: VERSION, ..sample() };
        let header = Header { data_crc: PieceCrcs::of(0, &new).total(), ..header };
        assert!(header.verifies(&new) && !header.verifies(&old) && !header.verifies(&new[..4095]));
        // As it was.
        let header = Header { data_crc: PieceCrcs::by(crc32c, 0, &new).total(), version: 1, ..header };
        assert!(header.verifies(&new));
        assert_eq!(outer_sum(b"123456789"), 0xd2c2_2f51, "CRC-32/MEF's check value");
    }

    #[test]
    fn any_flipped_bit_and_any_other_salt_is_refused() {
        let mut out = Vec::new();
        sample().encode(9, &mut out);
        assert_eq!(Header::decode(&out, 8), None);
        assert_eq!(Header::decode(&out[..79], 9), None);
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad, 9), None, "bit {bit}");
        }
    }

    #[test]
    fn pieces_end_at_block_boundaries_of_the_volume() {
        let data = vec![7u8; 10_000];
        let cut: Vec<u64> = cuts(4096 - 512, 10_000).map(|(_, len)| len).collect();
        assert_eq!(cut, [512, 4096, 4096, 1296]);
        assert_eq!(PieceCrcs::of(4096 - 512, &data).as_slice().len(), 4);
        assert_eq!(PieceCrcs::of(512, &vec![1u8; MAX_DATA as usize]).as_slice().len(), MAX_PIECES);
        assert_ne!(PieceCrcs::of(0, &data).total(), PieceCrcs::of(512, &data).total());
    }
}
