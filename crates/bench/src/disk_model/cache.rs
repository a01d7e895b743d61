//! The cache of a drive: segments with sectors that the drive has read.
//!
//! After a read, the head reads on into the segment of the read, until the next access that needs
//! the head, or until the read-ahead has its length. When all segments are in use, the one that was
//! used longest ago makes room.

use std::collections::VecDeque;

/// Sectors `from..to` that the drive has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    from: u64,
    to: u64,
}

/// The segment that the head reads into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FillingSegment {
    /// First sector of the segment, unless the sectors behind it have taken its room.
    pub(super) from: u64,
    /// A sector that the head reads ahead. It has read the sectors before it.
    pub(super) next: u64,
    /// Time in milliseconds at which the head was at the end of the sector before `next`.
    pub(super) since: f64,
    /// Sector at which the read-ahead ends.
    pub(super) limit: u64,
}

/// All segments of a drive. Lengths are in sectors.
#[derive(Debug)]
pub(super) struct SegmentCache {
    /// Number of segments. 0: the drive has no cache and does not read ahead.
    most: usize,
    length: u64,
    read_ahead: u64,
    /// Segments that no head reads into. The one that was used last is at the end.
    kept: VecDeque<Segment>,
    filling: Option<FillingSegment>,
}

impl SegmentCache {
    pub(super) fn new(most: usize, length: u64, read_ahead: u64) -> SegmentCache {
        SegmentCache {
            most,
            length,
            read_ahead: read_ahead.min(length),
            kept: VecDeque::new(),
            filling: None,
        }
    }

    /// Returns the segment that the head reads into.
    pub(super) fn filling(&self) -> Option<FillingSegment> {
        self.filling
    }

    /// Returns the number of sectors of a segment.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Lets the read-ahead go on, because a host took the sectors before `taken`. The head was at
    /// the end of the sector before `next` at the time `since`. The drive has `end` sectors.
    pub(super) fn extend(&mut self, taken: u64, next: u64, since: f64, end: u64) {
        if let Some(filling) = &mut self.filling {
            let limit = taken.saturating_add(self.read_ahead).min(end).max(filling.limit);
            *filling = FillingSegment { next, since, limit, ..*filling };
        }
    }

    /// Returns whether a segment that no head reads into has all of the sectors. That segment
    /// counts as used.
    pub(super) fn serves(&mut self, from: u64, to: u64) -> bool {
        let found = self.kept.iter().position(|segment| segment.from <= from && to <= segment.to);
        let used = found.and_then(|at| self.kept.remove(at));
        self.kept.extend(used);
        used.is_some()
    }

    /// Makes the segment of a read the one that the head reads into. The segment has the sectors
    /// from `from` on, as far as there is room. The head was at the end of the sector before `next`
    /// at the time `since`. The drive has `end` sectors.
    pub(super) fn fill(&mut self, from: u64, next: u64, since: f64, end: u64) {
        if self.most > 0 {
            let from = from.max(next.saturating_sub(self.length));
            let limit = next.saturating_add(self.read_ahead).min(end);
            self.filling = Some(FillingSegment { from, next, since, limit });
        }
    }

    /// Ends the read-ahead. The head has come to the sector `reached`.
    pub(super) fn stop(&mut self, reached: u64) {
        let Some(filled) = self.filling.take() else { return };
        let from = filled.from.max(reached.saturating_sub(self.length));
        self.kept.push_back(Segment { from, to: reached });
        // The next read needs a segment too.
        while self.kept.len() >= self.most {
            self.kept.pop_front();
        }
    }

    /// Forgets the segments that have one of the sectors, because a host writes them. The caller
    /// has ended the read-ahead.
    pub(super) fn forget(&mut self, from: u64, to: u64) {
        self.kept.retain(|segment| segment.to <= from || to <= segment.from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(most: usize) -> SegmentCache {
        SegmentCache::new(most, 100, 40)
    }

    #[test]
    fn a_segment_keeps_the_end_of_a_long_read() {
        let mut cache = cache(2);
        cache.fill(1000, 1500, 7.0, 10_000);
        let filling = FillingSegment { from: 1400, next: 1500, since: 7.0, limit: 1540 };
        assert_eq!(cache.filling(), Some(filling));
        assert!(!cache.serves(1400, 1410), "the head still reads into this segment");
        cache.stop(1520);
        assert!(cache.filling().is_none());
        assert!(cache.serves(1420, 1520) && !cache.serves(1419, 1500) && !cache.serves(1500, 1521));
    }

    #[test]
    fn the_read_ahead_ends_with_the_drive() {
        let mut cache = cache(2);
        cache.fill(9900, 9980, 0.0, 10_000);
        assert_eq!(cache.filling().map(|filling| filling.limit), Some(10_000));
    }

    #[test]
    fn the_segment_used_longest_ago_makes_room() {
        let mut cache = cache(3);
        for from in [1000, 2000] {
            cache.fill(from, from + 10, 0.0, 10_000);
            cache.stop(from + 10);
        }
        assert!(cache.serves(1000, 1010));
        cache.fill(3000, 3010, 0.0, 10_000);
        cache.stop(3010);
        assert!(cache.serves(1000, 1010) && cache.serves(3000, 3010) && !cache.serves(2000, 2010));
    }

    #[test]
    fn written_sectors_are_forgotten() {
        let mut cache = cache(3);
        cache.fill(1000, 1010, 0.0, 10_000);
        cache.stop(1010);
        cache.forget(1010, 1020);
        assert!(cache.serves(1000, 1010));
        cache.forget(1009, 1010);
        assert!(!cache.serves(1000, 1001));
    }

    #[test]
    fn a_drive_without_segments_keeps_nothing() {
        let mut cache = cache(0);
        cache.fill(1000, 1010, 0.0, 10_000);
        cache.stop(1010);
        assert!(cache.filling().is_none() && !cache.serves(1000, 1001));
    }
}
