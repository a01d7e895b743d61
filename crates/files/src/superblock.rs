//! The parts of ext3 and ext4 that lead to the journal (Linux, Documentation/filesystems/ext4). All
//! numbers are little endian.

use crate::disk::{Overlay, Section};
use crate::failure::{Failure, Result};
use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// Offset and length of the superblock, in bytes.
const OFFSET: u64 = 1024;
const LENGTH: usize = 1024;
/// Offset of its checksum.
const SUM: usize = 1020;
/// Offset of its incompatible features, and the features that count here.
const INCOMPATIBLE: usize = 0x60;
const NEEDS_RECOVERY: u32 = 0x4;
const IS_64_BIT: u32 = 0x80;
/// Offset of its features that forbid writes, and the one for checksums of metadata.
const READ_ONLY: usize = 0x64;
const HAS_SUMS: u32 = 0x400;
/// Flag of an inode whose content is found by extents.
const HAS_EXTENTS: u32 = 0x8_0000;
const EXTENTS_MAGIC: u16 = 0xf30a;
/// Deepest tree of extents.
const MAX_DEPTH: u16 = 5;
/// Largest number of blocks of a journal. jbd2 itself ends at 2^32; 16 GiB of 4 KiB blocks do.
const MAX_JOURNAL: usize = 4 << 20;
/// Numbers of blocks in an inode that are the data's own.
const DIRECT: usize = 12;

/// A superblock.
pub(crate) struct Superblock {
    bytes: [u8; LENGTH],
    /// Size of a block, in bytes.
    pub(crate) block_size: usize,
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn damaged(what: &str) -> Failure {
    Failure::unsupported(format!("read the journal of the file system: {what}"))
}

impl Superblock {
    /// Reads the superblock of a section. Whoever opens the file system checks the rest of it.
    pub(crate) fn read(section: &Section) -> Result<Superblock> {
        let bytes: [u8; LENGTH] =
            section.bytes_at(OFFSET)?.ok_or_else(|| damaged("the partition is too small"))?;
        let shift = le32(&bytes, 0x18);
        if shift > 6 {
            return Err(damaged("the size of its blocks is impossible"));
        }
        Ok(Superblock { bytes, block_size: 1024 << shift })
    }

    /// Returns whether the journal has something that is not in place.
    pub(crate) fn needs_recovery(&self) -> bool {
        le32(&self.bytes, INCOMPATIBLE) & NEEDS_RECOVERY != 0
    }

    /// Shows the superblock in an overlay as that of a file system that was unmounted.
    pub(crate) fn settle(section: &Section, overlay: Overlay) -> Result<Section> {
        // As the journal left it.
        let replayed = section.under(overlay);
        let mut bytes = Superblock::read(&replayed)?.bytes;
        let features = le32(&bytes, INCOMPATIBLE) & !NEEDS_RECOVERY;
        bytes[INCOMPATIBLE..INCOMPATIBLE + 4].copy_from_slice(&features.to_le_bytes());
        if le32(&bytes, READ_ONLY) & HAS_SUMS != 0 {
            // The kernel leaves out the inversion at the end.
            let sum = !(crc_fast::checksum(Crc32Iscsi, &bytes[..SUM]) as u32);
            bytes[SUM..].copy_from_slice(&sum.to_le_bytes());
        }
        Ok(replayed.patched(OFFSET, bytes.to_vec()))
    }
}

/// Returns the blocks of the file system that have its journal, in order.
pub(crate) fn journal_blocks(section: &Section, superblock: &Superblock) -> Result<Vec<u64>> {
    let (bytes, size) = (&superblock.bytes, superblock.block_size as u64);
    let inode = u64::from(le32(bytes, 0xe0));
    let in_first_group = u64::from(le32(bytes, 0x28));
    if inode == 0 || inode > in_first_group {
        return Err(damaged("it is on another disk"));
    }
    let descriptor: [u8; 64] = at(section, (u64::from(le32(bytes, 0x14)) + 1) * size)?;
    let wide = le32(bytes, INCOMPATIBLE) & IS_64_BIT != 0 && le16(bytes, 0xfe) >= 64;
    let high = if wide { u64::from(le32(&descriptor, 0x28)) << 32 } else { 0 };
    let table = high | u64::from(le32(&descriptor, 8));
    let inode_size = if le32(bytes, 0x4c) == 0 { 128 } else { u64::from(le16(bytes, 0x58)) };
    let place = table.checked_mul(size).and_then(|start| start.checked_add((inode - 1) * inode_size));
    let inode: [u8; 128] = at(section, place.ok_or_else(|| damaged("it is not on the disk"))?)?;
    let length = u64::from(le32(&inode, 0x6c)) << 32 | u64::from(le32(&inode, 4));
    let length = usize::try_from(length / size).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_JOURNAL {
        return Err(damaged("its length is impossible"));
    }
    let mut blocks = vec![0; length];
    if le32(&inode, 0x20) & HAS_EXTENTS != 0 {
        extents(section, size, &inode[0x28..0x64], MAX_DEPTH, &mut blocks)?;
    } else {
        mapped(section, size, &inode[0x28..0x64], &mut blocks)?;
    }
    match blocks.contains(&0) {
        true => Err(damaged("it has a hole")),
        false => Ok(blocks),
    }
}

fn at<const N: usize>(section: &Section, offset: u64) -> Result<[u8; N]> {
    section.bytes_at(offset)?.ok_or_else(|| damaged("it is not on the disk"))
}

fn block(section: &Section, size: u64, number: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let at = number.checked_mul(size).ok_or_else(|| damaged("it is not on the disk"))?;
    section.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// Reads a node of a tree of extents, and all below it.
fn extents(section: &Section, size: u64, node: &[u8], most: u16, blocks: &mut [u64]) -> Result<()> {
    let (entries, depth) = (usize::from(le16(node, 2)), le16(node, 6));
    if le16(node, 0) != EXTENTS_MAGIC || depth > most || 12 + entries * 12 > node.len() {
        return Err(damaged("its extents are damaged"));
    }
    for entry in node[12..12 + entries * 12].chunks_exact(12) {
        if depth > 0 {
            let below = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
            extents(section, size, &block(section, size, below)?, depth - 1, blocks)?;
            continue;
        }
        let (from, length) = (le32(entry, 0) as usize, usize::from(le16(entry, 4)));
        let start = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
        for (place, number) in blocks.iter_mut().skip(from).take(length).zip(start..) {
            *place = number;
        }
    }
    Ok(())
}

/// Reads the numbers of blocks in an inode, and those in the blocks that these name.
fn mapped(section: &Section, size: u64, root: &[u8], blocks: &mut [u64]) -> Result<()> {
    for (place, entry) in blocks.iter_mut().zip(root.chunks_exact(4).take(DIRECT)) {
        *place = u64::from(le32(entry, 0));
    }
    let mut filled = DIRECT.min(blocks.len());
    for (level, entry) in root.chunks_exact(4).skip(DIRECT).enumerate() {
        if filled < blocks.len() {
            filled += indirect(section, size, u64::from(le32(entry, 0)), level, &mut blocks[filled..])?;
        }
    }
    Ok(())
}

/// Fills `blocks` from a block of numbers. At level 0 the numbers are those of the content. Returns
/// how many it filled.
fn indirect(section: &Section, size: u64, number: u64, level: usize, blocks: &mut [u64]) -> Result<usize> {
    let mut filled = 0;
    for entry in block(section, size, number)?.chunks_exact(4) {
        if filled >= blocks.len() {
            break;
        }
        let number = u64::from(le32(entry, 0));
        if level == 0 {
            blocks[filled] = number;
            filled += 1;
        } else {
            filled += indirect(section, size, number, level - 1, &mut blocks[filled..])?;
        }
    }
    Ok(filled)
}
