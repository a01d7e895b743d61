//! Outlines: what staging has of a range, stretch by stretch. They are for callers that need no
//! data.

use super::ranges::{Range, RangeMap};
use super::{Staging, overlapping};
use crate::ids::Epoch;
use crate::units::BLOCK;
use std::ops::Range as Bytes;

/// The staged state of a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// Nothing is staged: the map has the places.
    Below,
    /// The stretch reads as zeros, by a staged discard (`false`) or by zeroing that keeps space
    /// (`true`).
    Zeros(bool),
    /// Something was written in each block of the stretch. [`Staging::resolve`] returns the
    /// details.
    Written,
}

impl Staging {
    /// Returns the stretches of `bytes`, which follow one another, as `epoch` sees them. The time
    /// that the call takes grows with the number of blocks of `bytes`, or of all that is staged,
    /// whichever is smaller.
    pub(crate) fn outline(&self, bytes: Bytes<u64>, epoch: Epoch) -> Vec<(Bytes<u64>, Stretch)> {
        // Taken first and held, as by `resolve`: a removal takes pieces and ranges away as one.
        let ranges = self.ranges.read();
        let mut zeros = RangeMap::default();
        for range in overlapping(&ranges, ..=epoch, bytes.clone()) {
            let (start, end) = (range.start.max(bytes.start), range.end.min(bytes.end));
            zeros.insert(Range { start, end, ..*range });
        }
        let mut blocks = Vec::new();
        self.visit_blocks(bytes.start / BLOCK..bytes.end.div_ceil(BLOCK), |block, pieces| {
            if pieces.iter().any(|piece| piece.epoch <= epoch) {
                blocks.push(block);
            }
        });
        drop(ranges);
        blocks.sort_unstable();
        let mut stretches = Vec::new();
        let mut at = bytes.start;
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let written = (first * BLOCK).max(at)..((last + 1) * BLOCK).min(bytes.end);
            unwritten(&zeros, at..written.start, &mut stretches);
            at = written.end;
            stretches.push((written, Stretch::Written));
        }
        unwritten(&zeros, at..bytes.end, &mut stretches);
        stretches
    }
}

/// Appends the stretches of a range without pieces.
fn unwritten(zeros: &RangeMap, bytes: Bytes<u64>, stretches: &mut Vec<(Bytes<u64>, Stretch)>) {
    let mut at = bytes.start;
    for range in zeros.overlapping(bytes.start, bytes.end) {
        let (start, end) = (range.start.max(at), range.end.min(bytes.end));
        if at < start {
            stretches.push((at..start, Stretch::Below));
        }
        stretches.push((start..end, Stretch::Zeros(range.keeps_space)));
        at = end;
    }
    if at < bytes.end {
        stretches.push((at..bytes.end, Stretch::Below));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Lsn;
    use crate::staging::{SectorSource, StagedExtent};
    use crate::units::SECTOR;
    use crate::world::{Rng, SplitMix};

    /// Sector by sector an outline agrees with `resolve`.
    #[test]
    fn outlines_agree_with_resolve() {
        const BLOCKS: u64 = 24;
        for seed in 0..300 {
            let rng = SplitMix::new(seed);
            let staging = Staging::new();
            for lsn in (1..1 + rng.next() % 20).map(Lsn) {
                let epoch = Epoch(lsn.0 as u32 / 4);
                let sectors = BLOCKS * BLOCK / SECTOR;
                let start = rng.next() % sectors;
                let end = start + 1 + rng.next() % (sectors - start);
                if rng.next().is_multiple_of(2) {
                    let (start, end) = (start * SECTOR, end * SECTOR);
                    let keeps_space = rng.next().is_multiple_of(2);
                    staging.insert_range(epoch, Range { start, end, lsn, keeps_space });
                } else {
                    let piece = StagedExtent {
                        lsn,
                        epoch,
                        start: (start % 8) as u8,
                        count: 1,
                        ..StagedExtent::default()
                    };
                    staging.insert([(start / 8, piece)].into_iter());
                }
            }
            staging.remove(0..rng.next() % BLOCKS, Lsn(rng.next() % 8));
            let epoch = Epoch(rng.next() as u32 % 6);
            let (from, to) = (rng.next() % 8 * SECTOR, BLOCKS * BLOCK - rng.next() % 8 * SECTOR);
            let mut at = from;
            for (bytes, stretch) in staging.outline(from..to, epoch) {
                assert_eq!(bytes.start, at, "seed {seed}");
                assert!(bytes.start < bytes.end);
                at = bytes.end;
                for sector in bytes.start / SECTOR..bytes.end / SECTOR {
                    let block = sector * SECTOR / BLOCK;
                    let sources = staging.resolve(block, epoch);
                    match stretch {
                        Stretch::Below => assert_eq!(sources[sector as usize % 8], SectorSource::Below),
                        Stretch::Zeros(keeps) => {
                            assert_eq!(sources[sector as usize % 8], SectorSource::Zeros(keeps))
                        }
                        Stretch::Written => {
                            let entry = staging.shard(block).lock().contains_key(&block);
                            assert!(entry, "seed {seed}: nothing was written in block {block}");
                        }
                    }
                }
            }
            assert_eq!(at, to, "seed {seed}");
        }
    }
}
