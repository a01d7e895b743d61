//! The superblock of ext2, ext3 and ext4 and the descriptors of its groups (Linux,
//! Documentation/filesystems/ext4). All numbers are little endian.

use super::damaged;
use crate::disk::Section;
use crate::failure::{Failure, Result};

/// Offset and length of the superblock, in bytes.
const OFFSET: u64 = 1024;
const LENGTH: usize = 1024;
/// Offsets of its compatible and incompatible features, and of those that forbid writes.
const COMPATIBLE: usize = 0x5c;
const INCOMPATIBLE: usize = 0x60;
const READ_ONLY: usize = 0x64;

/// Compatible feature: two groups have copies of the superblock, which it names.
const SPARSE_SUPER_2: u32 = 0x200;
/// Feature that forbids writes: copies of the superblock are in few groups.
const SPARSE_SUPER: u32 = 0x1;
/// Incompatible features that matter for reading.
const FILE_TYPES: u32 = 0x2;
const NEEDS_RECOVERY: u32 = 0x4;
const META_GROUPS: u32 = 0x10;
const IS_64_BIT: u32 = 0x80;
/// All incompatible features with which files can be read: those above, extents, protection from
/// mounts by two machines, flexible groups, large attributes, the seed of checksums, large
/// directories, and, refused by inode, inline data and encryption; names that match in any case.
const KNOWN: u32 = FILE_TYPES
    | NEEDS_RECOVERY
    | META_GROUPS
    | IS_64_BIT
    | 0x40
    | 0x100
    | 0x200
    | 0x400
    | 0x2000
    | 0x4000
    | 0x8000
    | 0x1_0000
    | 0x2_0000;

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// A superblock.
pub(super) struct Superblock {
    bytes: [u8; LENGTH],
    /// Size of a block, in bytes.
    pub(super) block_size: usize,
    /// Number of blocks of the file system.
    pub(super) blocks: u64,
    /// Size of an inode, in bytes.
    pub(super) inode_size: u64,
}

impl Superblock {
    /// Reads the superblock of a section.
    pub(super) fn read(section: &Section) -> Result<Superblock> {
        let bytes: [u8; LENGTH] =
            section.bytes_at(OFFSET)?.ok_or_else(|| damaged("the partition is too small"))?;
        let unknown = le32(&bytes, INCOMPATIBLE) & !KNOWN;
        if unknown != 0 {
            let text =
                format!("open the file system: it has features that are not known here ({unknown:#x})");
            return Err(Failure::unsupported(text));
        }
        let shift = le32(&bytes, 0x18);
        if shift > 6 {
            return Err(damaged("the size of its blocks is impossible"));
        }
        let inode_size = if le32(&bytes, 0x4c) == 0 { 128 } else { u64::from(le16(&bytes, 0x58)) };
        let wide = le32(&bytes, INCOMPATIBLE) & IS_64_BIT != 0;
        let high = if wide { u64::from(le32(&bytes, 0x150)) << 32 } else { 0 };
        let blocks = high | u64::from(le32(&bytes, 4));
        let found = Superblock { bytes, block_size: 1024 << shift, blocks, inode_size };
        if inode_size < 128 || inode_size > found.block_size as u64 || !inode_size.is_power_of_two() {
            return Err(damaged("the size of its inodes is impossible"));
        }
        if found.inodes_per_group() == 0 || found.blocks_per_group() == 0 || found.descriptor_size() < 32 {
            return Err(damaged("its groups are impossible"));
        }
        Ok(found)
    }

    fn has(&self, offset: usize, feature: u32) -> bool {
        le32(&self.bytes, offset) & feature != 0
    }

    /// Returns whether the journal has something that is not in place.
    pub(super) fn needs_recovery(&self) -> bool {
        self.has(INCOMPATIBLE, NEEDS_RECOVERY)
    }

    /// Returns whether entries of directories have the kinds of their files.
    pub(super) fn has_file_types(&self) -> bool {
        self.has(INCOMPATIBLE, FILE_TYPES)
    }

    /// Returns the label as it is stored, without the zeros at its end.
    pub(super) fn label(&self) -> &[u8] {
        let label = &self.bytes[0x78..0x88];
        &label[..label.iter().position(|b| *b == 0).unwrap_or(label.len())]
    }

    /// Returns the inode of the journal, or `None` if the journal is on another disk.
    pub(super) fn journal(&self) -> Option<u32> {
        Some(le32(&self.bytes, 0xe0)).filter(|inode| *inode != 0)
    }

    fn inodes_per_group(&self) -> u32 {
        le32(&self.bytes, 0x28)
    }

    fn blocks_per_group(&self) -> u32 {
        le32(&self.bytes, 0x20)
    }

    fn first_block(&self) -> u64 {
        u64::from(le32(&self.bytes, 0x14))
    }

    fn descriptor_size(&self) -> u64 {
        if self.has(INCOMPATIBLE, IS_64_BIT) { u64::from(le16(&self.bytes, 0xfe)) } else { 32 }
    }

    /// Returns the offset of an inode in the section, in bytes.
    pub(super) fn place_of_inode(&self, section: &Section, inode: u32) -> Result<u64> {
        let index = inode.checked_sub(1).filter(|_| inode <= le32(&self.bytes, 0));
        let index = index.ok_or_else(|| damaged("a number of an inode is impossible"))?;
        let (group, within) = (index / self.inodes_per_group(), index % self.inodes_per_group());
        let size = self.descriptor_size();
        let descriptor: [u8; 32] = at(section, self.place_of_descriptor(group)?)?;
        let high = match size >= 64 {
            true => {
                u64::from(u32::from_le_bytes(at(section, self.place_of_descriptor(group)? + 0x28)?)) << 32
            }
            false => 0,
        };
        let table = high | u64::from(le32(&descriptor, 8));
        let start = table.checked_mul(self.block_size as u64);
        let place = start.and_then(|start| start.checked_add(u64::from(within) * self.inode_size));
        place.ok_or_else(|| damaged("its inodes are not on the disk"))
    }

    /// Returns the offset of a group's descriptor in the section, in bytes.
    fn place_of_descriptor(&self, group: u32) -> Result<u64> {
        let size = self.block_size as u64;
        let in_block = size / self.descriptor_size();
        let block = u64::from(group) / in_block;
        let within = u64::from(group) % in_block * self.descriptor_size();
        let is_meta = self.has(INCOMPATIBLE, META_GROUPS) && block >= u64::from(le32(&self.bytes, 0x104));
        let block = match is_meta {
            false => u64::from(size == 1024) + 1 + block,
            // The first group of those whose descriptors the block has.
            true => {
                let first = block * in_block;
                let start = self.first_block() + first * u64::from(self.blocks_per_group());
                // With blocks of 1 KiB the superblock is the second block, also if the first group
                // begins with the first one.
                let shifted = u64::from(block == 0 && size == 1024 && self.first_block() == 0);
                start + u64::from(self.has_superblock(first)) + shifted
            }
        };
        match block.checked_mul(size).and_then(|at| at.checked_add(within)) {
            Some(at) if block < self.blocks => Ok(at),
            _ => Err(damaged("its groups are not on the disk")),
        }
    }

    /// Returns whether a group begins with a copy of the superblock.
    fn has_superblock(&self, group: u64) -> bool {
        let is_power = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        if group == 0 {
            true
        } else if self.has(COMPATIBLE, SPARSE_SUPER_2) {
            [0x24c, 0x250].iter().any(|at| u64::from(le32(&self.bytes, *at)) == group)
        } else {
            !self.has(READ_ONLY, SPARSE_SUPER) || group == 1 || [3, 5, 7].into_iter().any(is_power)
        }
    }
}

fn at<const N: usize>(section: &Section, offset: u64) -> Result<[u8; N]> {
    section.bytes_at(offset)?.ok_or_else(|| damaged("its groups are not on the disk"))
}
