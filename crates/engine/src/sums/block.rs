//! The format of the files `sums-PV`: blocks of sums, each in two copies.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `HCSB` |
//! | 4..8 | CRC32C of the bytes from 8 on |
//! | 8..12 | version: 1 |
//! | 12..16 | zero |
//! | 16..24 | the first 8 bytes of the physical volume's UUID |
//! | 24..32 | number of the block |
//! | 32..40 | sequence number, from 1 on |
//! | 40..64 | zero |
//! | 64..4096 | 1008 sums of 4 bytes each |
//!
//! Numbers are little-endian. Block `b` has the sums of the units from 1008 `b` on. A unit is 4 KiB
//! of the physical volume; unit 0 begins where the extents begin. The sum is the CRC-32/MEF of the
//! unit's content. The sum 0 means that the sum is not known, and a computed sum of 0 is stored as
//! `0xFFFFFFFF`.
//!
//! The copies of block `b` lie at the bytes 8192 `b` and 8192 `b` + 4096. A copy with an even
//! sequence number is at the first place, one with an odd number at the second. The valid copy with
//! the larger sequence number counts. The next write goes over the other copy, so a crash that
//! tears a write leaves the copy before it. Two copies of zeros are a block of unknown sums.

use crate::codec::{Reader, Writer, crc32c, outer_sum};
use crate::units::BLOCK;
use uuid::Uuid;

/// The size of a copy of a block, in bytes.
pub(super) const COPY: usize = 4096;
/// The size of both copies of a block, in bytes.
pub(super) const BOTH: u64 = 2 * COPY as u64;
/// Number of sums in a block.
pub(super) const SUMS: usize = (COPY - HEAD) / 4;

const HEAD: usize = 64;
const MAGIC: [u8; 4] = *b"HCSB";
const VERSION: u32 = 1;

/// The sum of a unit whose content was never summed.
pub(crate) const UNKNOWN: u32 = 0;

/// Returns the sum of a unit with this content.
pub(crate) fn sum_of(unit: &[u8]) -> u32 {
    debug_assert_eq!(unit.len() as u64, BLOCK);
    stored(outer_sum(unit))
}

/// Returns the sum of a unit whose content has this CRC-32/MEF.
pub(crate) fn stored(crc: u32) -> u32 {
    if crc == UNKNOWN { u32::MAX } else { crc }
}

/// The identity of a block: it is valid only in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    owner: [u8; 8],
    number: u64,
}

impl Identity {
    pub(super) fn new(pv: &Uuid, number: u64) -> Identity {
        let mut owner = [0; 8];
        owner.copy_from_slice(&pv.as_bytes()[..8]);
        Identity { owner, number }
    }

    pub(super) fn encode(&self, sequence: u64, sums: impl Iterator<Item = u32>) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(COPY));
        w.bytes(&MAGIC).u32(0).u32(VERSION).u32(0);
        w.bytes(&self.owner).u64(self.number).u64(sequence).bytes(&[0; 24]);
        sums.for_each(|sum| _ = w.u32(sum));
        let mut bytes = w.0;
        let crc = crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the valid copy with the larger sequence number.
    pub(super) fn decode(&self, copies: &[u8]) -> Copies {
        let valid = copies.chunks_exact(COPY).zip(0u64..).filter_map(|(copy, parity)| {
            let (sequence, sums) = self.decode_copy(copy)?;
            (sequence % 2 == parity && sequence < u64::MAX / 2).then_some((sequence, sums))
        });
        match valid.max_by_key(|(sequence, _)| *sequence) {
            Some((sequence, sums)) => Copies::Valid { sequence, sums },
            None if copies.iter().all(|byte| *byte == 0) => Copies::Empty,
            None => Copies::Damaged,
        }
    }

    fn decode_copy(&self, copy: &[u8]) -> Option<(u64, Vec<u32>)> {
        let mut r = Reader::new(copy);
        if r.array()? != MAGIC || r.u32()? != crc32c(copy.get(8..)?) || r.u32()? != VERSION || r.u32()? != 0 {
            return None;
        }
        let is_own = r.array()? == self.owner && r.u64::<u64>()? == self.number;
        let sequence = r.u64()?;
        let is_valid = is_own && r.array()? == [0; 24];
        let sums = (0..SUMS).map(|_| r.u32()).collect::<Option<Vec<u32>>>()?;
        is_valid.then_some((sequence, sums))
    }
}

/// The content of both copies of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Copies {
    Valid {
        sequence: u64,
        sums: Vec<u32>,
    },
    /// The block was never written.
    Empty,
    /// No copy is valid.
    Damaged,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity::new(&Uuid::from_bytes(std::array::from_fn(|n| n as u8 + 1)), 0x0102)
    }

    fn sums() -> Vec<u32> {
        (0..SUMS as u32).map(|n| n.wrapping_mul(0x0101_0101)).collect()
    }

    #[test]
    fn golden_block() {
        assert_eq!(SUMS, 1008);
        let block = identity().encode(0x0304, sums().into_iter());
        assert_eq!(block.len(), COPY);
        assert_eq!(block[..4], *b"HCSB");
        assert_eq!(block[4..8], 0x2ca7_4306u32.to_le_bytes());
        assert_eq!(block[8..16], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(block[24..40], [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[40..72], [[0; 28].as_slice(), &[1, 1, 1, 1]].concat());
        assert_eq!(sum_of(&[0; 4096]), 2692529545);
        assert_eq!((stored(0), stored(7)), (u32::MAX, 7));
    }

    #[test]
    fn the_larger_sequence_number_counts() {
        let of = |sequence, first| identity().encode(sequence, [first].into_iter().chain(vec![0; SUMS - 1]));
        let first = |copies: &[u8]| match identity().decode(copies) {
            Copies::Valid { sequence, sums } => (sequence, sums[0]),
            other => panic!("{other:?}"),
        };
        assert_eq!(first(&[of(2, 20), of(1, 10)].concat()), (2, 20));
        assert_eq!(first(&[of(2, 20), of(3, 30)].concat()), (3, 30));
        assert_eq!(first(&[vec![0; COPY], of(1, 10)].concat()), (1, 10));
        // A copy in the place of the other one was written to the wrong place.
        assert_eq!(first(&[of(2, 20), of(4, 40)].concat()), (2, 20));
        assert_eq!(identity().decode(&[0; 2 * COPY]), Copies::Empty);
        assert_eq!(identity().decode(&[]), Copies::Empty);
    }

    #[test]
    fn a_damaged_copy_and_a_copy_of_another_block_do_not_count() {
        let (older, newer) =
            (identity().encode(2, sums().into_iter()), identity().encode(3, sums().into_iter()));
        for at in (0..COPY).step_by(37).chain(0..64) {
            let mut damaged = newer.clone();
            damaged[at] ^= 0x10;
            let found = identity().decode(&[older.clone(), damaged.clone()].concat());
            assert!(matches!(found, Copies::Valid { sequence: 2, .. }), "byte {at}");
            assert_eq!(identity().decode(&[vec![0; COPY], damaged].concat()), Copies::Damaged, "byte {at}");
        }
        let both = [older, newer].concat();
        assert_eq!(Identity { number: 7, ..identity() }.decode(&both), Copies::Damaged);
        assert_eq!(Identity { owner: [7; 8], ..identity() }.decode(&both), Copies::Damaged);
    }
}
