//! The timeline of a volume: how much changed when, and the moments that have a name or a purpose.
//!
//! Times are nanoseconds since the Unix epoch, by the wall clock, unless a field says otherwise.

use super::history::{Anchor, Mark, Span};
use crate::clock::ClockChange;
use crate::ids::{BranchId, Stamp};

/// The largest number of buckets of a timeline.
pub const MAX_BUCKETS: usize = 2000;
/// The largest number of regions of a timeline.
pub const MAX_REGIONS: usize = 64;
/// The largest number of items of a lane. A lane with more has only counts.
pub const MAX_ITEMS: usize = 500;

/// The window of a timeline, and how finely it is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimelineQuery {
    /// Start of the window. `None`: the first moment that can be shown.
    pub from: Option<u64>,
    /// End of the window. `None`: now.
    pub to: Option<u64>,
    /// The largest number of buckets.
    pub buckets: usize,
    /// Number of parts of the volume for which the bytes are counted apart. 0: they are not.
    pub regions: usize,
}

/// The window of a timeline, divided into buckets of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Start of the first bucket.
    pub from: u64,
    /// Length of a bucket in nanoseconds.
    pub length: u64,
    /// Number of buckets.
    pub count: usize,
}

/// Lengths of buckets in seconds, above the lengths that are a power of ten times 1, 2 or 5.
const LENGTHS: [u64; 21] = [
    10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000,
    864_000, 1_728_000, 4_320_000, 8_640_000,
];
const SECOND: u64 = 1_000_000_000;

impl Window {
    /// Returns a window that contains `from..to`. Its buckets have a round length and begin at
    /// multiples of the length. There are at most `buckets` of them, and one more where the window
    /// is not aligned.
    pub fn round(from: u64, to: u64, buckets: usize) -> Window {
        let span = to.saturating_sub(from).max(1);
        let least = span.div_ceil(buckets.max(1) as u64);
        let length = round_length(least);
        let from = from / length * length;
        Window { from, length, count: (to.saturating_sub(from).div_ceil(length)).max(1) as usize }
    }

    /// Returns a window of `count` buckets that begins at `from` and contains `to`.
    pub(crate) fn even(from: u64, to: u64, count: usize) -> Window {
        let length = (to.saturating_sub(from) / count.max(1) as u64).saturating_add(1);
        Window { from, length, count }
    }

    /// Returns the end of the last bucket.
    pub fn end(&self) -> u64 {
        self.start_of(self.count)
    }

    /// Returns the start of a bucket.
    pub fn start_of(&self, bucket: usize) -> u64 {
        self.from.saturating_add(self.length.saturating_mul(bucket as u64))
    }

    /// Returns the bucket that a time lies in.
    pub fn bucket(&self, time: u64) -> Option<usize> {
        let bucket = (time.checked_sub(self.from)? / self.length) as usize;
        (bucket < self.count).then_some(bucket)
    }
}

/// Returns the smallest round length that is at least `least` nanoseconds.
fn round_length(least: u64) -> u64 {
    let mut power = 1;
    while power < 10 * SECOND {
        for digit in [1, 2, 5] {
            if digit * power >= least {
                return digit * power;
            }
        }
        power *= 10;
    }
    let lengths = LENGTHS.map(|seconds| seconds * SECOND);
    let longest = lengths[LENGTHS.len() - 1];
    let found = lengths.into_iter().find(|length| *length >= least);
    found.or(least.checked_next_multiple_of(longest)).unwrap_or(least)
}

/// The amount that was written in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Number of records. A write to several chunks has one for each.
    pub records: u64,
    /// Bytes that the host wrote.
    pub written: u64,
    /// Bytes of log.
    pub stored: u64,
    /// Bytes of `written` that the log does not have yet. `stored` has nothing of them.
    pub waiting: u64,
}

/// The bytes that were written by part of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regions {
    /// Number of regions.
    pub count: usize,
    /// Length of a region in bytes.
    pub length: u64,
    /// Bytes, by bucket and then by region.
    pub written: Vec<u64>,
}

/// Moments of one kind in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane<T> {
    /// Number of the moments.
    pub count: usize,
    /// The moments, oldest first. Empty if there are more than [`MAX_ITEMS`].
    pub items: Vec<T>,
    /// The number of moments in each bucket, if `items` is empty because there are too many.
    pub counts: Vec<u32>,
    /// There are older moments that were not looked up.
    pub partial: bool,
}

impl<T> Lane<T> {
    /// Makes a lane of the items that lie in a window.
    pub fn of(items: impl IntoIterator<Item = T>, window: &Window, time: impl Fn(&T) -> u64) -> Lane<T> {
        let mut items: Vec<T> =
            items.into_iter().filter(|item| window.bucket(time(item)).is_some()).collect();
        items.sort_by_key(|item| time(item));
        let (count, mut counts) = (items.len(), Vec::new());
        if count > MAX_ITEMS {
            counts = vec![0; window.count];
            let buckets = items.iter().filter_map(|item| window.bucket(time(item)));
            buckets.for_each(|bucket| counts[bucket] += 1);
            items = Vec::new();
        }
        Lane { count, items, counts, partial: false }
    }
}

/// A rollback of a volume: it moved to another branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rollback {
    /// The moment of the rollback. If no history was recorded then, this is the moment at which
    /// recording began again.
    pub at: Stamp,
    /// The time of the snapshot, the mark or the last write that the volume kept. For a write it is
    /// an estimate. `None`: it is not known any more.
    pub to: Option<u64>,
}

/// The timeline of a volume in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// The time now.
    pub now: u64,
    /// The window.
    pub window: Window,
    /// The amount that was written in each bucket.
    pub amounts: Vec<Amount>,
    /// The amounts by part of the volume, if they were asked for.
    pub regions: Option<Regions>,
    /// Some amounts are spread evenly over more time than they took. Another query after this one
    /// returns better ones.
    pub coarse: bool,
    /// The first moment that can be shown. `None`: there is no history.
    pub begins: Option<Stamp>,
    /// Spans of continuous history that reach into the window, oldest first.
    pub spans: Vec<Span>,
    /// The rollbacks, oldest first.
    pub rollbacks: Vec<Rollback>,
    /// Sizes of the volume in bytes, oldest first: each from its moment on. Those that held only
    /// before or behind the window are left out, and so are all but the last [`MAX_ITEMS`].
    pub sizes: Vec<(Stamp, u64)>,
    /// Marks.
    pub marks: Lane<Mark>,
    /// Anchors.
    pub anchors: Lane<Anchor>,
    /// Consistency points by FLUSH.
    pub flushes: Lane<Stamp>,
    /// The branches that depend on a moment in the window, and an estimate of the moment's time.
    pub dependents: Vec<(BranchId, Stamp)>,
    /// The changes of the clock since the history begins, oldest first.
    pub clock: Vec<ClockChange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_round_buckets() {
        let cases = [(1, 1, 1), (7, 1, 10), (SECOND, 3, 500_000_000), (60 * SECOND, 60, SECOND)];
        for (span, buckets, length) in cases {
            assert_eq!(Window::round(0, span, buckets).length, length, "{span} in {buckets}");
        }
        for (seconds, length) in [(11, 20), (3601, 7200), (8_640_001, 17_280_000)] {
            assert_eq!(Window::round(0, seconds * SECOND, 1).length, length * SECOND);
        }
        let window = Window::round(1_003, 2_001, 100);
        assert_eq!((window.from, window.length, window.count), (1_000, 10, 101));
        assert_eq!((window.bucket(999), window.bucket(1_000)), (None, Some(0)));
        assert_eq!((window.bucket(2_009), window.bucket(2_010)), (Some(100), None));
        assert_eq!(Window::round(5, 5, 10).count, 1);
        assert!(Window::round(0, u64::MAX, 2000).count <= 2001);
        assert_eq!(Window::round(0, u64::MAX, 1).count, 1);
    }

    #[test]
    fn a_lane_with_many_items_has_counts() {
        let window = Window { from: 100, length: 10, count: 3 };
        let lane = Lane::of([131, 129, 99, 100], &window, |time| *time);
        assert_eq!((lane.count, lane.items, lane.counts), (2, vec![100, 129], vec![]));
        let lane = Lane::of((0..MAX_ITEMS as u64 + 1).map(|n| 100 + n % 20), &window, |time| *time);
        assert_eq!((lane.count, lane.items.len()), (501, 0));
        assert_eq!(lane.counts, [251, 250, 0]);
    }
}
