//! Writes that are not on the members yet. They are collected so that a batch of them costs one
//! entry of the parity log, and so that neighbours fill whole rows.

use super::rows::BLOCK;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A block's content.
pub(super) type BlockContent = Box<[u8; BLOCK]>;
/// Blocks of the content, by their numbers.
pub(super) type BlockMap = BTreeMap<u64, PendingBlock>;

/// A block that is written.
pub(super) struct PendingBlock {
    pub(super) content: BlockContent,
    /// Whether a part of it has content that nobody has written again.
    pub(super) is_patched: bool,
    /// The sum of what the block replaces, if it is known.
    pub(super) old_sum: Option<u32>,
}

/// Returns a block of zeros.
pub(super) fn zeros() -> BlockContent {
    Box::new([0; BLOCK])
}

/// Returns a copy of a block's bytes. Missing bytes are zeros.
pub(super) fn content_of(bytes: &[u8]) -> BlockContent {
    let mut content = zeros();
    content[..bytes.len()].copy_from_slice(bytes);
    content
}

#[derive(Default)]
struct Both {
    new: BlockMap,
    /// What is being written to the members. Younger blocks are in `new`.
    leaving: Arc<BlockMap>,
}

/// The writes that are not on the members yet.
#[derive(Default)]
pub(super) struct PendingBlocks {
    both: RwLock<Both>,
    /// False only if there are none. Reads then need no lock.
    is_any: AtomicBool,
}

impl PendingBlocks {
    /// Adds blocks. Returns the number of those that no flush has begun to write.
    pub(super) fn add(&self, blocks: Vec<(u64, PendingBlock)>) -> usize {
        let mut both = self.both.write();
        self.is_any.store(true, Ordering::Release);
        for (number, block) in blocks {
            match both.new.entry(number) {
                Entry::Vacant(place) => drop(place.insert(block)),
                // The members still have what the older block replaces.
                Entry::Occupied(mut older) => {
                    let old_sum = older.get().old_sum;
                    older.insert(PendingBlock { old_sum, ..block });
                }
            }
        }
        both.new.len()
    }

    /// Copies what is pending of the bytes from `at` on to `buf`. Returns the ranges of `buf` that
    /// the members have.
    pub(super) fn read(&self, buf: &mut [u8], at: u64) -> Vec<Range<usize>> {
        if buf.is_empty() {
            return Vec::new();
        }
        if !self.is_any.load(Ordering::Acquire) {
            return std::iter::once(0..buf.len()).collect();
        }
        let both = self.both.read();
        let mut missing: Vec<Range<usize>> = Vec::new();
        let mut from = 0;
        while from < buf.len() {
            let place = at + from as u64;
            let (block, within) = (place / BLOCK as u64, (place % BLOCK as u64) as usize);
            let to = buf.len().min(from + BLOCK - within);
            match both.new.get(&block).or_else(|| both.leaving.get(&block)) {
                Some(block) => buf[from..to].copy_from_slice(&block.content[within..within + to - from]),
                None => match missing.last_mut() {
                    Some(last) if last.end == from => last.end = to,
                    _ => missing.push(from..to),
                },
            }
            from = to;
        }
        missing
    }

    /// Begins to write what is pending. `None`: what left before has not arrived.
    pub(super) fn leave(&self) -> Option<Arc<BlockMap>> {
        let mut both = self.both.write();
        if !both.leaving.is_empty() {
            return None;
        }
        let new = std::mem::take(&mut both.new);
        both.leaving = Arc::new(new);
        Some(both.leaving.clone())
    }

    /// Notes that the members have what was leaving.
    pub(super) fn left(&self) {
        let both = &mut *self.both.write();
        both.leaving = Arc::default();
        self.is_any.store(!both.new.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> PendingBlock {
        PendingBlock { content: Box::new([byte; BLOCK]), is_patched: false, old_sum: Some(byte.into()) }
    }

    fn one(range: Range<usize>) -> Vec<Range<usize>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn the_youngest_is_read() {
        let pending = PendingBlocks::default();
        let mut buf = [9; 3 * BLOCK];
        assert_eq!(pending.read(&mut buf, 0), one(0..3 * BLOCK));
        assert_eq!(pending.read(&mut [], 0), []);
        assert_eq!(pending.add(vec![(1, block(1)), (5, block(0))]), 2);
        assert_eq!(pending.read(&mut buf, 0), [0..BLOCK, 2 * BLOCK..3 * BLOCK]);
        assert_eq!(pending.leave().unwrap().len(), 2);
        assert!(pending.leave().is_none());
        assert_eq!(pending.add(vec![(1, block(2))]), 1);
        assert_eq!(pending.read(&mut buf[..10], BLOCK as u64 + 100), []);
        assert_eq!((buf[0], buf[BLOCK]), (2, 1));
        // The younger block replaces the same content as the older one, which has not left yet.
        assert_eq!(pending.add(vec![(1, block(3))]), 1);
        pending.left();
        assert_eq!(pending.read(&mut buf, BLOCK as u64 - 10), [0..10, 10 + BLOCK..3 * BLOCK]);
        let left = pending.leave().unwrap();
        assert_eq!((left[&1].content[0], left[&1].old_sum), (3, Some(2)));
        pending.left();
        assert_eq!(pending.read(&mut buf[..1], BLOCK as u64), one(0..1));
        assert_eq!(content_of(&[7])[..2], [7, 0]);
    }
}
