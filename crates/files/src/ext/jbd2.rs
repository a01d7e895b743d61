//! The journal of ext3 and ext4 (Linux, fs/jbd2: `recovery.c`, `jbd2.h`).
//!
//! A file system that was not unmounted has its newest metadata in its journal only. That is so at
//! every moment of a volume whose guest runs. [`replay`] finds the blocks that the committed
//! transactions replace. Nothing is written: an [`Overlay`] shows them in their places.
//!
//! A journal with a checksum that does not match is refused, and so is one with features that this
//! module does not know. All numbers of the journal are big endian.

use super::inode::Inode;
use super::superblock::Superblock;
use crate::disk::{Overlay, Section};
use crate::failure::{Failure, Result};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::collections::HashMap;

/// First bytes of each block of the journal that is not a copy of a block.
const MAGIC: u32 = 0xc03b_3998;
/// Types of blocks.
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_V2: u32 = 4;
const REVOKE: u32 = 5;
/// Incompatible features.
const HAS_REVOKES: u32 = 0x1;
const HAS_64_BITS: u32 = 0x2;
const COMMITS_EARLY: u32 = 0x4;
const HAS_SUMS_V2: u32 = 0x8;
const HAS_SUMS_V3: u32 = 0x10;
const KNOWN: u32 = HAS_REVOKES | HAS_64_BITS | COMMITS_EARLY | HAS_SUMS_V2 | HAS_SUMS_V3;
/// Flags of tags.
const ESCAPED: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST: u32 = 8;
/// Largest number of blocks of a journal: 16 GiB in blocks of 4 KiB.
const MAX_BLOCKS: usize = 4 << 20;
/// Length of the head of a block, and of the sum at the end of descriptors and revocations.
const HEAD: usize = 12;
const TAIL: usize = 4;

fn damaged(what: &str) -> Failure {
    Failure::unsupported(format!("read the journal of the file system: {what}"))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

/// A journal, and where its blocks are.
struct Journal<'s> {
    section: &'s Section,
    block_size: usize,
    /// Blocks of the file system that have the journal, in its order.
    blocks: Vec<u64>,
    features: u32,
    uuid: [u8; 16],
    /// First and last-plus-one block of the log, which is circular.
    log: std::ops::Range<usize>,
}

/// A copy of a block in the journal.
struct Copy {
    /// Block of the file system.
    of: u64,
    /// Offset of the copy in the section, in bytes.
    at: u64,
    is_escaped: bool,
    transaction: u32,
}

/// Returns what the journal of a file system replaces.
pub(crate) fn replay(section: &Section, superblock: &Superblock) -> Result<Overlay> {
    let inode = superblock.journal().ok_or_else(|| damaged("it is on another disk"))?;
    let inode = Inode::read(section, superblock, inode)?;
    let blocks = inode.blocks(section, superblock, MAX_BLOCKS)?;
    let mut overlay = Overlay::new(superblock.block_size);
    let head = read(section, &blocks, 0, superblock.block_size)?;
    let (kind, start) = (be32(&head, 4), be32(&head, 28) as usize);
    if be32(&head, 0) != MAGIC || be32(&head, 12) as usize != superblock.block_size {
        return Err(damaged("its superblock is damaged"));
    }
    // Version 1 has no features.
    let features = if kind == SUPERBLOCK_V2 { be32(&head, 40) } else { 0 };
    if features & !KNOWN != 0 {
        return Err(damaged(&format!("it has features that are not known here ({:#x})", features & !KNOWN)));
    }
    let end = (be32(&head, 16) as usize).min(blocks.len());
    let first = be32(&head, 20) as usize;
    if start != 0 {
        if first == 0 || !(first..end).contains(&start) {
            return Err(damaged("its superblock is damaged"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&head[48..64]);
        let block_size = superblock.block_size;
        let journal = Journal { section, block_size, blocks, features, uuid, log: first..end };
        for copy in journal.committed(start, be32(&head, 24))? {
            overlay.replace(copy.of, copy.at, copy.is_escaped.then_some(MAGIC.to_be_bytes()));
        }
    }
    Ok(overlay)
}

fn read(section: &Section, blocks: &[u64], number: usize, block_size: usize) -> Result<Vec<u8>> {
    let block = blocks.get(number).ok_or_else(|| damaged("it is too short"))?;
    let mut bytes = vec![0; block_size];
    let at = block.checked_mul(block_size as u64).ok_or_else(|| damaged("it is not on the disk"))?;
    section.read_at(at, &mut bytes)?;
    Ok(bytes)
}

impl Journal<'_> {
    fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    fn has_sums(&self) -> bool {
        self.has(HAS_SUMS_V2 | HAS_SUMS_V3)
    }

    fn block(&self, number: usize) -> Result<Vec<u8>> {
        read(self.section, &self.blocks, number, self.block_size)
    }

    /// Returns the block after another one of the log.
    fn after(&self, number: usize) -> usize {
        if number + 1 >= self.log.end { self.log.start } else { number + 1 }
    }

    /// Returns the sum of parts in the form of jbd2, which begins with the journal's UUID.
    fn sum(&self, parts: &[&[u8]]) -> u32 {
        let mut digest = crc_fast::Digest::new(Crc32Iscsi);
        digest.update(&self.uuid);
        parts.iter().for_each(|part| digest.update(part));
        // jbd2 leaves out the inversion at the end.
        !(digest.finalize() as u32)
    }

    /// Checks the sum in a block, whose place counts as zeros.
    fn check(&self, block: &[u8], at: usize) -> Result<()> {
        if !self.has_sums() || self.sum(&[&block[..at], &[0; 4], &block[at + 4..]]) == be32(block, at) {
            return Ok(());
        }
        Err(damaged("a checksum does not match"))
    }

    /// Returns the copies of all committed transactions that no later revocation takes back, oldest
    /// first. A transaction without its commit block never happened: of its other blocks, some may
    /// be there and some not. So what is wrong with them counts at the commit block only.
    fn committed(&self, start: usize, first_transaction: u32) -> Result<Vec<Copy>> {
        let (mut next, mut transaction) = (start, first_transaction);
        let (mut copies, mut revoked): (Vec<Copy>, HashMap<u64, u32>) = Default::default();
        let mut open = Open::default();
        let mut left = self.log.len();
        while left > 0 {
            let block = self.block(next)?;
            if be32(&block, 0) != MAGIC || be32(&block, 8) != transaction {
                break;
            }
            (next, left) = (self.after(next), left - 1);
            match be32(&block, 4) {
                DESCRIPTOR => {
                    open.note(self.check(&block, self.block_size - TAIL));
                    for tag in open.note(self.tags(&block)).unwrap_or_default() {
                        open.copies.push((tag, next));
                        (next, left) = (self.after(next), left.saturating_sub(1));
                    }
                }
                REVOKE => {
                    open.note(self.check(&block, self.block_size - TAIL));
                    let named = open.note(self.revocations(&block));
                    open.revoked.extend(named.unwrap_or_default());
                }
                COMMIT => {
                    // With early commits the commit block may be there before its transaction.
                    let checked = self.check(&block, 16).and_then(|()| open.checked(self, transaction));
                    if checked.is_err() && self.has(COMMITS_EARLY) {
                        break;
                    }
                    checked?;
                    let Open { copies: found, revoked: taken_back, .. } = std::mem::take(&mut open);
                    for (tag, number) in found {
                        copies.push(self.copy(&tag, number, transaction)?);
                    }
                    // The newest revocation of a block is the last one.
                    revoked.extend(taken_back.into_iter().map(|block| (block, transaction)));
                    transaction = transaction.wrapping_add(1);
                }
                _ => break,
            }
        }
        // A revocation holds for copies of its own transaction and of older ones.
        let is_revoked = |copy: &Copy| {
            let by = revoked.get(&copy.of);
            by.is_some_and(|by| by.wrapping_sub(copy.transaction).cast_signed() >= 0)
        };
        copies.retain(|copy| !is_revoked(copy));
        Ok(copies)
    }

    /// Returns the tags of a descriptor: one for each copy that follows it.
    fn tags(&self, block: &[u8]) -> Result<Vec<Tag>> {
        let short = match (self.has(HAS_SUMS_V2), self.has(HAS_64_BITS)) {
            (false, false) => 8,
            (false, true) => 12,
            (true, false) => 10,
            (true, true) => 14,
        };
        let length = if self.has(HAS_SUMS_V3) { 16 } else { short };
        let end = self.block_size - if self.has_sums() { TAIL } else { 0 };
        let (mut at, mut tags) = (HEAD, Vec::new());
        loop {
            if at + length > end {
                return Err(damaged("a descriptor is cut"));
            }
            let tag = &block[at..at + length];
            let (flags, sum) = match self.has(HAS_SUMS_V3) {
                true => (be32(tag, 4), be32(tag, 12)),
                false => (be32(tag, 4) & 0xffff, be32(tag, 4) >> 16),
            };
            let high = if self.has(HAS_64_BITS) { u64::from(be32(tag, 8)) << 32 } else { 0 };
            tags.push(Tag { of: high | u64::from(be32(tag, 0)), flags, sum });
            at += length + if flags & SAME_UUID == 0 { 16 } else { 0 };
            if flags & LAST != 0 {
                return Ok(tags);
            }
        }
    }

    /// Returns the copy in a block of the journal, after a check of its sum.
    fn copy(&self, tag: &Tag, number: usize, transaction: u32) -> Result<Copy> {
        if self.has_sums() {
            let sum = self.sum(&[&transaction.to_be_bytes(), &self.block(number)?]);
            let found = if self.has(HAS_SUMS_V3) { sum } else { sum & 0xffff };
            if found != tag.sum {
                return Err(damaged("a checksum does not match"));
            }
        }
        let block = self.blocks.get(number).ok_or_else(|| damaged("it is too short"))?;
        let at = block * self.block_size as u64;
        Ok(Copy { of: tag.of, at, is_escaped: tag.flags & ESCAPED != 0, transaction })
    }

    /// Returns the blocks that a revocation names.
    fn revocations(&self, block: &[u8]) -> Result<Vec<u64>> {
        let end = be32(block, HEAD) as usize;
        let space = self.block_size - if self.has_sums() { TAIL } else { 0 };
        if !(HEAD + 4..=space).contains(&end) {
            return Err(damaged("a revocation is cut"));
        }
        let wide = self.has(HAS_64_BITS);
        let named = block[HEAD + 4..end].chunks_exact(if wide { 8 } else { 4 });
        Ok(named
            .map(|of| match wide {
                true => u64::from(be32(of, 0)) << 32 | u64::from(be32(of, 4)),
                false => u64::from(be32(of, 0)),
            })
            .collect())
    }
}

/// A transaction whose commit block was not seen yet.
#[derive(Default)]
struct Open {
    /// Its copies, and their blocks of the journal.
    copies: Vec<(Tag, usize)>,
    revoked: Vec<u64>,
    /// What is wrong with it.
    damage: Option<Failure>,
}

impl Open {
    /// Returns what is wrong with the transaction.
    fn checked(&mut self, journal: &Journal<'_>, transaction: u32) -> Result<()> {
        self.damage.take().map_or(Ok(()), Err)?;
        self.copies.iter().try_for_each(|(tag, number)| journal.copy(tag, *number, transaction).map(drop))
    }

    /// Keeps the first failure.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|failure| self.damage.get_or_insert(failure)).ok()
    }
}

/// What a descriptor says of a copy.
struct Tag {
    of: u64,
    flags: u32,
    sum: u32,
}
