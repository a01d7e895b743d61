//! Disjoint ranges of bytes with an LSN each. Where ranges would overlap, the larger LSN wins.

use crate::ids::Lsn;
use std::collections::BTreeMap;

/// A discarded or zeroed range `start..end` of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) lsn: Lsn,
    /// The range was zeroed, not discarded: its chunks keep or get slots.
    pub(crate) keeps_space: bool,
}

/// Disjoint ranges, by their start.
#[derive(Debug, Default)]
pub(crate) struct RangeMap {
    ranges: BTreeMap<u64, Range>,
    /// The bytes that contain all ranges there ever were. Most look-ups need only this.
    reach: std::ops::Range<u64>,
}

impl RangeMap {
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether a range could overlap `start..end`.
    pub(crate) fn reaches(&self, start: u64, end: u64) -> bool {
        self.reach.start < end && start < self.reach.end
    }

    /// Returns the ranges that overlap `start..end`, in order.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &Range> {
        let first = match self.ranges.range(..=start).next_back() {
            Some((key, range)) if range.end > start => *key,
            _ => start,
        };
        self.ranges.range(first..end.max(first)).map(|(_, range)| range)
    }

    /// Adds `new`, except where a range with a larger LSN is already known.
    pub(crate) fn insert(&mut self, new: Range) {
        self.reach = match self.reach.is_empty() {
            true => new.start..new.end,
            false => self.reach.start.min(new.start)..self.reach.end.max(new.end),
        };
        let old: Vec<Range> = self.overlapping(new.start, new.end).copied().collect();
        let mut at = new.start;
        for range in old {
            if range.lsn > new.lsn {
                if at < range.start {
                    self.ranges.insert(at, Range { start: at, end: range.start, ..new });
                }
                at = range.end;
                continue;
            }
            self.ranges.remove(&range.start);
            if range.start < new.start {
                self.ranges.insert(range.start, Range { end: new.start, ..range });
            }
            if range.end > new.end {
                self.ranges.insert(new.end, Range { start: new.end, ..range });
            }
        }
        if at < new.end {
            self.ranges.insert(at, Range { start: at, ..new });
        }
    }

    /// Removes the ranges with an LSN up to `lsn`.
    pub(crate) fn remove_up_to(&mut self, lsn: Lsn) {
        self.ranges.retain(|_, range| range.lsn > lsn);
    }
}

/// Sorts ranges and joins those that touch.
pub(crate) fn union<T: Copy + Ord>(mut ranges: Vec<std::ops::Range<T>>) -> Vec<std::ops::Range<T>> {
    ranges.sort_unstable_by_key(|r| r.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    #[test]
    fn agrees_with_a_plain_array() {
        for seed in 0..200 {
            let rng = SplitMix::new(seed);
            let mut map = RangeMap::default();
            let mut plain = [0u64; 64];
            let mut lsns: Vec<u64> = (1..30).collect();
            for i in (1..lsns.len()).rev() {
                lsns.swap(i, rng.next() as usize % (i + 1));
            }
            for lsn in lsns {
                let start = rng.next() % 64;
                let end = start + 1 + rng.next() % (64 - start);
                map.insert(Range { start, end, lsn: Lsn(lsn), keeps_space: false });
                for slot in &mut plain[start as usize..end as usize] {
                    *slot = (*slot).max(lsn);
                }
                let mut got = [0u64; 64];
                let mut last = 0;
                for range in map.overlapping(0, 64) {
                    assert!(range.start >= last && range.start < range.end, "disjoint and in order");
                    last = range.end;
                    got[range.start as usize..range.end as usize].fill(range.lsn.0);
                }
                assert_eq!(got, plain, "seed {seed}");
                assert!(map.overlapping(10, 20).all(|r| r.start < 20 && r.end > 10));
            }
            map.remove_up_to(Lsn(15));
            assert!(map.overlapping(0, 64).all(|r| r.lsn > Lsn(15)));
        }
    }
}
