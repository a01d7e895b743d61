//! The layout of the store's blocks and their sums in the catalog's file, and the computation of a
//! sum.
//!
//! Block 0 of the file is the head: the store's own header, twice. Groups lie behind it. A group is
//! a block of 1,024 sums, and then the 1,024 blocks of the store that the sums are about. The
//! numbers are part of the format: see docs/FORMAT.md.

use crate::codec::{crc32c, outer_sum};

/// Bytes of a block. A page of the store is one or several blocks.
pub(in crate::catalog) const BLOCK: usize = 4096;
/// The number of sums in a block of sums, and of blocks in a group.
pub(super) const GROUP: u64 = (BLOCK / 4) as u64;
/// The first bytes of a catalog whose blocks have sums. A build without sums does not take such a
/// file for a catalog.
const MAGIC: [u8; 8] = *b"HCSUMS\x1a\n";
/// The version of the layout.
const VERSION: u32 = 1;
/// Bytes of one copy of the head. A device writes this many bytes at once.
const COPY: usize = 512;
/// The byte in a copy at which the store's header begins.
const INSIDE: usize = 16;
/// The byte in a copy at which the copy's own sum lies.
const SUM: usize = COPY - 4;
/// Bytes of the store's header that the head has room for. The store writes 320 bytes.
pub(super) const HEAD: usize = SUM - INSIDE;

/// Returns the sum of a block's content. The sum is never 0, because 0 means that the block was
/// never written. The sum depends on the number of the block, so that a block in the wrong place
/// does not verify.
///
/// The sum is CRC-32/MEF and not CRC32C. Values in the block end in their CRC32C, so a sound older
/// content of the block would have the same CRC32C as the newest one.
pub(super) fn sum(block: u64, content: &[u8]) -> u32 {
    let place = (block as u32).wrapping_mul(0x9E37_79B1) ^ (block >> 32) as u32;
    (outer_sum(content) ^ place).max(1)
}

/// Returns the group of a block (which is not the head), and the block's index in the group.
pub(super) fn place(block: u64) -> (u64, usize) {
    let index = block.saturating_sub(1);
    (index / GROUP, (index % GROUP) as usize)
}

/// Returns the byte in the file at which a block begins.
pub(in crate::catalog) fn offset_of(block: u64) -> u64 {
    let before = if block == 0 { 0 } else { block + place(block).0 + 1 };
    before * BLOCK as u64
}

/// Returns the byte in the file at which the sums of a group begin.
pub(super) fn sums_of(group: u64) -> u64 {
    (1 + group * (GROUP + 1)) * BLOCK as u64
}

/// Returns the length of the file for this number of blocks of the store.
pub(super) fn file_len(blocks: u64) -> u64 {
    (blocks + blocks.saturating_sub(1).div_ceil(GROUP)) * BLOCK as u64
}

/// Returns the number of blocks of the store in a file of this length.
pub(super) fn blocks_in(len: u64) -> u64 {
    let blocks = len / BLOCK as u64;
    blocks - blocks.saturating_sub(1).div_ceil(GROUP + 1)
}

/// Encodes both copies of the head.
pub(super) fn encode_head(header: &[u8; HEAD]) -> [u8; 2 * COPY] {
    let mut copies = [0; 2 * COPY];
    let (first, second) = copies.split_at_mut(COPY);
    first[..8].copy_from_slice(&MAGIC);
    first[8..12].copy_from_slice(&VERSION.to_le_bytes());
    first[INSIDE..SUM].copy_from_slice(header);
    let sum = crc32c(&first[..SUM]);
    first[SUM..].copy_from_slice(&sum.to_le_bytes());
    second.copy_from_slice(first);
    copies
}

/// The kind of a catalog's file, by its first block.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::catalog) enum Head {
    /// Blocks with sums. The value is the store's header of the first copy that verifies.
    Header(Box<[u8; HEAD]>),
    /// Blocks with sums, in the layout of a later build. The value is its version.
    Later(u32),
    /// The store's pages without sums, of a build that knew no sums.
    Plain,
    /// Neither copy of the head verifies.
    Damaged,
}

/// Decodes the head.
///
/// Both copies are written at once, and differ only after a crash cut the write short. Then each of
/// them is a state that the store can continue from, because the pages of both exist.
pub(in crate::catalog) fn decode_head(block: &[u8]) -> Head {
    let copies = || block.chunks_exact(COPY).take(2);
    for copy in copies() {
        let (body, sum) = copy.split_at(SUM);
        if body[..8] == MAGIC && crc32c(body).to_le_bytes() == sum {
            let mut version = [0; 4];
            version.copy_from_slice(&body[8..12]);
            let mut header = Box::new([0; HEAD]);
            header.copy_from_slice(&body[INSIDE..]);
            return match u32::from_le_bytes(version) {
                VERSION => Head::Header(header),
                later => Head::Later(later),
            };
        }
    }
    let of_store = block.starts_with(b"redb\x1a\x0a\xa9\x0d\x0a");
    if of_store { Head::Plain } else { Head::Damaged }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_numbers() {
        assert_eq!([0, 1, 2, 1024, 1025, 2049].map(|b| offset_of(b) / 4096), [0, 2, 3, 1025, 1027, 2052]);
        assert_eq!([0, 1, 2].map(|g| sums_of(g) / 4096), [1, 1026, 2051]);
        assert_eq!([1, 1024, 1025].map(place), [(0, 0), (0, 1023), (1, 0)]);
        assert_eq!([0, 1, 2, 1025, 1026].map(|n| file_len(n) / 4096), [0, 1, 3, 1026, 1028]);
        for blocks in (0..5000).chain([1 << 20, (1 << 20) + 1, 1 << 32]) {
            assert_eq!(blocks_in(file_len(blocks)), blocks);
        }
        assert_eq!(blocks_in(2 * 4096), 1, "sums of nothing");
    }

    #[test]
    fn golden_sums() {
        let content: Vec<u8> = (0..BLOCK).map(|n| (n % 251) as u8).collect();
        let sums = [sum(1, &content), sum(2, &content), sum(1 << 32, &content), sum(7, &[0; BLOCK])];
        assert_eq!(sums, [0x1c7c_7603, 0xbe25_fcd0, 0x824b_0fb3, 0xf3f8_ee5e]);
    }

    #[test]
    fn golden_head() {
        let mut header = [0; HEAD];
        header[..5].copy_from_slice(b"redb!");
        let copies = encode_head(&header);
        assert_eq!(copies[..24], *b"HCSUMS\x1a\n\x01\0\0\0\0\0\0\0redb!\0\0\0");
        assert_eq!(copies[508..512], [0x1d, 0xd8, 0x0c, 0x2f]);
        assert_eq!(copies[..512], copies[512..]);
        for bad in 0..copies.len() {
            let mut damaged = copies;
            damaged[bad] ^= 1;
            assert_eq!(decode_head(&damaged), Head::Header(Box::new(header)), "byte {bad}");
            damaged[(bad + 512) % 1024] ^= 1;
            assert_eq!(decode_head(&damaged), Head::Damaged, "byte {bad} of both");
        }
        assert_eq!(decode_head(b""), Head::Damaged);
        let mut plain = [0; BLOCK];
        plain[..9].copy_from_slice(b"redb\x1a\x0a\xa9\x0d\x0a");
        assert_eq!(decode_head(&plain), Head::Plain);
    }

    #[test]
    fn a_block_in_the_wrong_place_and_an_older_content_do_not_verify() {
        let value = |n: u8| {
            let mut content = vec![n; 400];
            let crc = crc32c(&content);
            content.extend(crc.to_le_bytes());
            content.resize(BLOCK, 0);
            content
        };
        assert_ne!(sum(5, &value(1)), sum(6, &value(1)));
        assert_eq!(crc32c(&value(1)), crc32c(&value(2)), "why it is not CRC32C");
        assert_ne!(sum(5, &value(1)), sum(5, &value(2)));
    }
}
