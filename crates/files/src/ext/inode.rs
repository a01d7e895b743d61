//! Inodes: what they say of a file, and where its content is.

use super::damaged;
use super::superblock::{Superblock, le16, le32};
use crate::disk::Section;
use crate::failure::{Failure, Result};
use hindcast_api::FileKind;
use jiff::Timestamp;

/// Flags of inodes.
const ENCRYPTED: u32 = 0x800;
const HAS_EXTENTS: u32 = 0x8_0000;
const INLINE: u32 = 0x1000_0000;
/// Magic number of a node of extents.
const EXTENTS_MAGIC: u16 = 0xf30a;
/// Deepest tree of extents.
const MAX_DEPTH: u16 = 5;
/// Longest extent. Beyond it, an extent is one of this much less that was never written.
const LONGEST: u32 = 0x8000;
/// Numbers of blocks in an inode that are the data's own.
const DIRECT: u64 = 12;
/// Length of the target of a link that the inode itself has.
const SHORT_LINK: u64 = 60;

/// An inode.
pub(super) struct Inode {
    pub(super) number: u32,
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Size of the content, in bytes.
    pub(super) size: u64,
    pub(super) modified: Option<Timestamp>,
    flags: u32,
    /// The root of the tree of extents, the numbers of blocks, or the target of a short link.
    root: [u8; 60],
}

/// Where the blocks from a given one of a file are.
enum Run {
    /// From this block of the file system on.
    At(u64, u64),
    /// Nowhere: they are zeros.
    Zeros(u64),
}

impl Inode {
    pub(super) fn read(section: &Section, superblock: &Superblock, number: u32) -> Result<Inode> {
        let place = superblock.place_of_inode(section, number)?;
        let mut bytes = vec![0; usize::try_from(superblock.inode_size).unwrap_or(128)];
        section.read_at(place, &mut bytes)?;
        let mode = u32::from(le16(&bytes, 0));
        if le16(&bytes, 0x1a) == 0 {
            return Err(damaged("an inode is in no use"));
        }
        let kind = match mode >> 12 {
            0o10 => FileKind::File,
            0o04 => FileKind::Directory,
            0o12 => FileKind::Symlink,
            0o01 | 0o02 | 0o06 | 0o14 => FileKind::Other,
            _ => return Err(damaged("an inode is in no use")),
        };
        let wide =
            |low: usize, high: usize| u32::from(le16(&bytes, low)) | u32::from(le16(&bytes, high)) << 16;
        let mut root = [0; 60];
        root.copy_from_slice(&bytes[0x28..0x64]);
        Ok(Inode {
            number,
            kind,
            mode: mode & 0o7777,
            uid: wide(2, 0x78),
            gid: wide(0x18, 0x7a),
            size: u64::from(le32(&bytes, 0x6c)) << 32 | u64::from(le32(&bytes, 4)),
            modified: modified(&bytes),
            flags: le32(&bytes, 0x20),
            root,
        })
    }

    /// Returns whether the content can't be read, and why.
    fn check(&self) -> Result<()> {
        // The flag for compression is only a wish: what compresses has an incompatible feature.
        for (flag, what) in [(ENCRYPTED, "encrypted by the file system"), (INLINE, "in its inode")] {
            if self.flags & flag != 0 {
                return Err(Failure::unsupported(format!("the content is {what}, which can't be read here")));
            }
        }
        Ok(())
    }

    /// Returns the target of a symbolic link.
    pub(super) fn target(&self, section: &Section, superblock: &Superblock) -> Result<Vec<u8>> {
        self.check()?;
        if self.size < SHORT_LINK && self.flags & HAS_EXTENTS == 0 {
            return Ok(self.root[..usize::try_from(self.size).unwrap_or(0)].to_vec());
        }
        if self.size > superblock.block_size as u64 {
            return Err(damaged("the target of a link is too long"));
        }
        let mut target = vec![0; usize::try_from(self.size).unwrap_or(0)];
        self.read_at(section, superblock, 0, &mut target)?;
        Ok(target)
    }

    /// Reads the content in a range. Returns how many bytes there are, fewer at the end only.
    pub(super) fn read_at(
        &self,
        section: &Section,
        superblock: &Superblock,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize> {
        self.check()?;
        let left = self.size.saturating_sub(offset).min(out.len() as u64);
        let length = usize::try_from(left).unwrap_or(0);
        let block_size = superblock.block_size as u64;
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let (block, within) = (at / block_size, at % block_size);
            let run = self.run(section, superblock, block)?;
            let (Run::At(_, blocks) | Run::Zeros(blocks)) = run;
            let bytes = blocks.max(1).saturating_mul(block_size) - within;
            let count = usize::try_from(bytes).unwrap_or(usize::MAX).min(length - done);
            let piece = &mut out[done..done + count];
            match run {
                Run::Zeros(_) => piece.fill(0),
                Run::At(start, _) => {
                    let place = start.checked_mul(block_size).and_then(|start| start.checked_add(within));
                    section.read_at(place.ok_or_else(|| damaged("a file is not on the disk"))?, piece)?;
                }
            }
            done += count;
        }
        Ok(length)
    }

    /// Returns the blocks of the file system that have the content, in order. A hole fails.
    pub(super) fn blocks(
        &self,
        section: &Section,
        superblock: &Superblock,
        limit: usize,
    ) -> Result<Vec<u64>> {
        let count = usize::try_from(self.size / superblock.block_size as u64).unwrap_or(usize::MAX);
        if count == 0 || count > limit {
            return Err(damaged("the length of its journal is impossible"));
        }
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            match self.run(section, superblock, blocks.len() as u64)? {
                Run::Zeros(_) => return Err(damaged("its journal has a hole")),
                Run::At(start, length) => blocks.extend((start..).take(usize::try_from(length).unwrap_or(1))),
            }
        }
        blocks.truncate(count);
        Ok(blocks)
    }

    /// Returns where a block of the content is, and how many after it follow.
    fn run(&self, section: &Section, superblock: &Superblock, block: u64) -> Result<Run> {
        let found = match self.flags & HAS_EXTENTS != 0 {
            true => in_extents(section, superblock, &self.root, block, None)?,
            false => in_map(section, superblock, &self.root, block)?,
        };
        if let Run::At(start, length) = found
            && start.checked_add(length).is_none_or(|end| start == 0 || end > superblock.blocks)
        {
            return Err(damaged("a file is not on the disk"));
        }
        Ok(found)
    }
}

/// Returns the time of the last change of the content. Inodes of more than 128 bytes have its
/// nanoseconds, and two more bits of its seconds.
fn modified(bytes: &[u8]) -> Option<Timestamp> {
    let seconds = i64::from(le32(bytes, 0x10).cast_signed());
    let has_extra = bytes.len() > 128 && usize::from(le16(bytes, 0x80)) + 128 >= 0x8c;
    let extra = if has_extra { le32(bytes, 0x88) } else { 0 };
    let nanoseconds = i32::try_from(extra >> 2).ok().filter(|n| *n < 1_000_000_000).unwrap_or(0);
    Timestamp::new(seconds + (i64::from(extra & 3) << 32), nanoseconds).ok()
}

fn node(section: &Section, superblock: &Superblock, block: u64) -> Result<Vec<u8>> {
    if block == 0 || block >= superblock.blocks {
        return Err(damaged("a file is not on the disk"));
    }
    let mut bytes = vec![0; superblock.block_size];
    section.read_at(block * superblock.block_size as u64, &mut bytes)?;
    Ok(bytes)
}

/// Finds a block in a tree of extents. `above` is the depth of the node above, and the end of what
/// this node can have.
fn in_extents(
    section: &Section,
    superblock: &Superblock,
    bytes: &[u8],
    block: u64,
    above: Option<(u16, u64)>,
) -> Result<Run> {
    let (count, depth) = (usize::from(le16(bytes, 2)), le16(bytes, 6));
    let fits = above.map_or(depth <= MAX_DEPTH, |(above, _)| depth + 1 == above);
    if le16(bytes, 0) != EXTENTS_MAGIC || !fits || 12 + count * 12 > bytes.len() {
        return Err(damaged("the extents of a file are damaged"));
    }
    let mut end = above.map_or(u64::MAX, |(_, end)| end);
    let entries = bytes[12..12 + count * 12].chunks_exact(12);
    // The last entry that begins at the block or before it.
    let mut found = None;
    for entry in entries {
        let first = u64::from(le32(entry, 0));
        if first > block {
            end = end.min(first);
            break;
        }
        found = Some((first, entry));
    }
    let hole = Run::Zeros(end.saturating_sub(block).max(1));
    let Some((first, entry)) = found else { return Ok(hole) };
    if depth > 0 {
        let below = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
        return in_extents(
            section,
            superblock,
            &node(section, superblock, below)?,
            block,
            Some((depth, end)),
        );
    }
    let length = u32::from(le16(entry, 4));
    let (length, is_written) = if length > LONGEST { (length - LONGEST, false) } else { (length, true) };
    let start = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
    let into = block - first;
    Ok(match u64::from(length).checked_sub(into).filter(|left| *left > 0) {
        None => hole,
        Some(left) if is_written => Run::At(start + into, left),
        Some(left) => Run::Zeros(left),
    })
}

/// Finds a block by the numbers in an inode, and those in the blocks that these name.
fn in_map(section: &Section, superblock: &Superblock, root: &[u8], block: u64) -> Result<Run> {
    let in_block = superblock.block_size as u64 / 4;
    let at = |bytes: &[u8], index: u64| u64::from(le32(bytes, usize::try_from(index * 4).unwrap_or(0)));
    let (mut index, mut level, mut covered) = (block, 0, 1);
    let mut number = if block < DIRECT {
        at(root, block)
    } else {
        index -= DIRECT;
        covered = in_block;
        while index >= covered {
            index -= covered;
            covered = covered.saturating_mul(in_block);
            level += 1;
            if level > 2 {
                return Err(damaged("a file is too long"));
            }
        }
        level += 1;
        at(root, DIRECT + level - 1)
    };
    while level > 0 {
        if number == 0 {
            return Ok(Run::Zeros(covered - index));
        }
        covered /= in_block;
        number = at(&node(section, superblock, number)?, index / covered);
        index %= covered;
        level -= 1;
    }
    Ok(if number == 0 { Run::Zeros(1) } else { Run::At(number, 1) })
}
