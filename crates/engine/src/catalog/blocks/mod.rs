//! The catalog's blocks with their sums. A block that is read verifies, or its number is reported.
//!
//! A block and its sum are written before the same sync, in no order. That is enough, because the
//! store never overwrites a page that a durable commit needs. A crash leaves a block and a sum that
//! disagree only where nothing reads, until the block is written anew. Each sum of a torn block of
//! sums is an old or a new one. The exception is the store's header, which has copies of its own in
//! the head: see [`layout`].

mod layout;
mod sums;
mod tombstone;

pub(super) use layout::{BLOCK, Head, decode_head, offset_of};
pub(super) use tombstone::{met, named};

use crate::disk::{Disk, SyncPurpose};
use layout::{HEAD, blocks_in, encode_head, file_len, sum};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sums::Sums;

/// The largest number of damaged blocks that are remembered by number.
const MAX_DAMAGED: usize = 1024;

/// A catalog's file as the store reads and writes it, with verified blocks.
pub(super) struct SummedBlocks {
    disk: Arc<dyn Disk>,
    /// The number of blocks of the store. The head is the first block.
    len: AtomicU64,
    sums: Mutex<Sums>,
    /// The store's header as it was written last. The lock is held while blocks change.
    writing: Mutex<[u8; HEAD]>,
    /// The blocks that were read and did not verify.
    damaged: Mutex<BTreeSet<u64>>,
    /// A damaged block was read, so the store may have a tombstone in its cache.
    mistrusted: AtomicBool,
}

impl SummedBlocks {
    /// Makes the blocks of a file that is empty, or whose head holds `header`.
    pub(super) fn new(disk: Arc<dyn Disk>, header: Option<Box<[u8; HEAD]>>) -> io::Result<SummedBlocks> {
        let len = blocks_in(disk.len()?);
        Ok(SummedBlocks {
            disk,
            len: AtomicU64::new(len),
            sums: Mutex::new(Sums::new()),
            writing: Mutex::new(header.map_or([0; HEAD], |header| *header)),
            damaged: Mutex::default(),
            mistrusted: AtomicBool::new(false),
        })
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the blocks that were read and did not verify, and have not been written since.
    pub(super) fn damaged(&self) -> Vec<u64> {
        self.damaged.lock().iter().copied().collect()
    }

    /// Reads for the store. In place of a page with a damaged block the store gets a tombstone, and
    /// the block is noted for the thread ([`met`]).
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        if end > self.len() * BLOCK as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if end <= BLOCK as u64 {
            return self.read_head(offset as usize, out);
        }
        let first = whole_blocks(offset, out.len())?;
        let fetched = self.fetch(first, out).is_ok();
        for (block, content) in (first..).zip(out.chunks_exact_mut(BLOCK)) {
            let sound = (fetched || self.fetch(block, content).is_ok()) && self.is_sound(block, content);
            if !sound {
                self.note_damaged(block);
                tombstone::note(block);
                tombstone::fill(out, block);
                return Ok(());
            }
        }
        Ok(())
    }

    fn read_head(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        let mut block = [0; BLOCK];
        let writing = self.writing.lock();
        self.disk.read_at(&mut block, 0)?;
        drop(writing);
        let Head::Header(header) = decode_head(&block) else {
            self.note_damaged(0);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "block 0 of the catalog does not verify"));
        };
        for (at, byte) in (offset..).zip(out) {
            *byte = header.get(at).copied().unwrap_or(0);
        }
        Ok(())
    }

    /// Reads blocks without verifying them.
    fn fetch(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        runs(first, out.len())
            .try_for_each(|(block, range)| self.disk.read_at(&mut out[range], offset_of(block)))
    }

    fn is_sound(&self, block: u64, content: &[u8]) -> bool {
        let known = self.sums.lock().get(&*self.disk, block);
        known.is_ok_and(|known| known == sum(block, content))
    }

    pub(super) fn note_damaged(&self, block: u64) {
        self.mistrusted.store(true, Ordering::Release);
        let mut damaged = self.damaged.lock();
        if damaged.len() < MAX_DAMAGED {
            damaged.insert(block);
        }
    }

    /// Returns whether a block was written since the file was opened.
    pub(super) fn was_written(&self, block: u64) -> bool {
        self.sums.lock().was_written(block)
    }

    /// Returns whether a block verifies. A block that was never written does.
    pub(super) fn verify(&self, block: u64) -> bool {
        // A block that is being written is checked again after the write.
        self.looks_sound(block) || {
            let _writing = self.writing.lock();
            block >= self.len() || self.looks_sound(block)
        }
    }

    fn looks_sound(&self, block: u64) -> bool {
        let mut content = [0; BLOCK];
        if block == 0 {
            let read = self.disk.read_at(&mut content, 0);
            return read.is_ok() && matches!(decode_head(&content), Head::Header(_));
        }
        let Ok(known) = self.sums.lock().get(&*self.disk, block) else { return false };
        let read = self.fetch(block, &mut content);
        let never = known == 0 && content.iter().all(|byte| *byte == 0);
        read.is_ok() && (never || known == sum(block, &content))
    }

    /// Turns a block that does not verify into one that was never written. The caller ensures that
    /// nothing needs the block.
    pub(super) fn forget(&self, block: u64) -> io::Result<()> {
        let _writing = self.writing.lock();
        if block > 0 && block < self.len() && !self.looks_sound(block) {
            self.disk.write_at(&[0; BLOCK], offset_of(block))?;
            self.sums.lock().set(&*self.disk, block, 0)?;
            self.damaged.lock().remove(&block);
        }
        Ok(())
    }

    /// Writes for the store: its header, or whole blocks.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut header = self.writing.lock();
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        if end > self.len() * BLOCK as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let in_head = end <= BLOCK as u64;
        let first = if in_head { 0 } else { whole_blocks(offset, data.len())? };
        if self.mistrusted.load(Ordering::Acquire) {
            if tombstone::is_copied(data) {
                let why = "the page depends on a damaged one";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            let written = first..first + data.len().div_ceil(BLOCK) as u64;
            self.damaged.lock().retain(|block| !written.contains(block));
        }
        if in_head {
            let part = header.get_mut(offset as usize..end as usize);
            part.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(data);
            return self.disk.write_at(&encode_head(&header), 0);
        }
        let mut sums = self.sums.lock();
        for (block, content) in (first..).zip(data.chunks_exact(BLOCK)) {
            sums.set(&*self.disk, block, sum(block, content))?;
        }
        drop(sums);
        runs(first, data.len())
            .try_for_each(|(block, range)| self.disk.write_at(&data[range], offset_of(block)))
    }

    /// Makes blocks and sums durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.flush()?;
        self.disk.sync(SyncPurpose::Catalog)
    }

    /// Writes the sums that have changed.
    pub(super) fn flush(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        self.sums.lock().flush(&*self.disk)
    }

    pub(super) fn set_len(&self, bytes: u64) -> io::Result<()> {
        if !bytes.is_multiple_of(BLOCK as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let _writing = self.writing.lock();
        let (old, new) = (self.len(), bytes / BLOCK as u64);
        // Blocks behind the shorter length were never written, or are removed.
        let stays = old.min(new);
        if stays > 0 {
            self.sums.lock().cut(&*self.disk, stays)?;
        }
        self.damaged.lock().retain(|block| *block < stays);
        self.disk.set_len(file_len(new))?;
        self.len.store(new, Ordering::Release);
        Ok(())
    }
}

/// Returns the first block of a range of whole blocks behind the head.
fn whole_blocks(offset: u64, len: usize) -> io::Result<u64> {
    let whole = offset > 0 && offset.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK);
    if whole { Ok(offset / BLOCK as u64) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Cuts `len` bytes from block `first` on into pieces that are contiguous in the file: (block,
/// range of the bytes).
fn runs(first: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let block = first + (done / BLOCK) as u64;
        let in_group = (layout::GROUP as usize - layout::place(block).1) * BLOCK;
        let end = (done + in_group).min(len);
        let range = done..end;
        done = end;
        (!range.is_empty()).then_some((block, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, MemDir, OpenMode};
    use crate::world::{Rng, SplitMix};
    use std::collections::BTreeMap;

    /// Blocks have the content that was written last, across groups, lengths and openings, with
    /// sums of two groups in memory.
    #[test]
    fn agree_with_a_model() {
        let dir = MemDir::new();
        let open = |mode| {
            let disk = dir.open("a", mode).unwrap();
            let mut head = [0; BLOCK];
            let header = match disk.read_at(&mut head, 0).map(|()| decode_head(&head)) {
                Ok(Head::Header(header)) => Some(header),
                _ => None,
            };
            let blocks = SummedBlocks::new(disk, header).unwrap();
            blocks.sums.lock().keep(2);
            blocks
        };
        let mut blocks = open(OpenMode::CreateNew);
        let rng = SplitMix::new(3);
        let below = |n: u64| rng.next() % n;
        let mut len = 5000;
        blocks.set_len(len * BLOCK as u64).unwrap();
        let mut model: BTreeMap<u64, u8> = BTreeMap::new();
        for step in 0..3000 {
            let first = 1 + below(len - 20);
            let count = 1 + below(16);
            let size = count as usize * BLOCK;
            match below(10) {
                0 if below(10) == 0 => {
                    len = 2000 + below(4000);
                    blocks.set_len(len * BLOCK as u64).unwrap();
                    model.retain(|block, _| *block < len);
                }
                1 if below(10) == 0 => {
                    blocks.write(0, &[step as u8; 320]).unwrap();
                    blocks.sync().unwrap();
                    blocks = open(OpenMode::Existing);
                    let mut header = [0; 400];
                    blocks.read(0, &mut header).unwrap();
                    assert_eq!((header[319], header[320]), (step as u8, 0));
                    assert_eq!(blocks.len(), len);
                }
                0..6 => {
                    blocks.write(first * BLOCK as u64, &vec![step as u8; size]).unwrap();
                    model.extend((first..first + count).map(|block| (block, step as u8)));
                }
                _ => {
                    let mut out = vec![0; size];
                    let before = met();
                    blocks.read(first * BLOCK as u64, &mut out).unwrap();
                    let unwritten = (first..first + count).find(|block| !model.contains_key(block));
                    match unwritten {
                        Some(block) => assert_eq!(met(), (before.0 + 1, block)),
                        None => {
                            assert_eq!(met(), before);
                            for (block, content) in (first..).zip(out.chunks(BLOCK)) {
                                assert!(content.iter().all(|byte| *byte == model[&block]), "block {block}");
                            }
                        }
                    }
                }
            }
            assert!(blocks.sums.lock().groups() <= 2);
        }
        assert!((0..len).all(|block| blocks.verify(block)));
        assert!(blocks.read((len - 1) * BLOCK as u64, &mut [0; 2 * BLOCK]).is_err(), "past the end");
        assert!(blocks.write(BLOCK as u64, &[0; 100]).is_err(), "a part of a block");
        assert!(blocks.write(len * BLOCK as u64, &[0; BLOCK]).is_err(), "past the end");
    }

    #[test]
    fn a_tombstone_that_is_merged_into_a_page_is_not_written() {
        let blocks = SummedBlocks::new(MemDir::new().open("a", OpenMode::CreateNew).unwrap(), None).unwrap();
        blocks.set_len(100 * BLOCK as u64).unwrap();
        let mut page = [0; 2 * BLOCK];
        blocks.read(7 * BLOCK as u64, &mut page).unwrap();
        assert_eq!(blocks.damaged(), [7]);
        let mut merged = [3; BLOCK];
        merged[100..132].copy_from_slice(&page[8..40]);
        assert!(blocks.write(9 * BLOCK as u64, &merged).is_err());
        blocks.write(7 * BLOCK as u64, &[3; 2 * BLOCK]).unwrap();
        blocks.read(7 * BLOCK as u64, &mut page).unwrap();
        assert_eq!((page, blocks.damaged()), ([3; 2 * BLOCK], vec![]));
    }
}
