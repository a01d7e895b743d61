//! Counters of volumes since the pool was opened: requests, the regions that they touch, and the
//! cost of preserving.
//!
//! Counting takes no lock that requests share: every counter is an atomic of its own.

use crate::info::{PreserveStats, RegionCounts, VolumeRegions, VolumeStats};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The largest number of regions of one volume. The regions take 4 KiB of counters, whatever the
/// volume's size.
const MAX_REGIONS: usize = 256;
/// log2 of the smallest region's size in bytes.
const MIN_REGION_LOG2: u8 = 20;

/// The counters of a volume. They continue when the volume is rolled back. They have cache lines of
/// their own, so that counting does not take the lines that every request reads from other
/// processors.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct VolumeCounters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) discard_bytes: AtomicU64,
    pub(crate) staged_read_bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// The counters by region. They are made when something is counted first.
    regions: OnceLock<Box<Regions>>,
}

impl VolumeCounters {
    pub(crate) fn stats(&self) -> VolumeStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        VolumeStats {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            write_bytes: get(&self.write_bytes),
            flushes: get(&self.flushes),
            discards: get(&self.discards),
            discard_bytes: get(&self.discard_bytes),
            staged_read_bytes: get(&self.staged_read_bytes),
            errors: get(&self.errors),
        }
    }

    /// Counts a read of `len` bytes at `offset`, inside the volume, which has `size` bytes.
    pub(crate) fn read_at(&self, offset: u64, len: u64, size: u64) {
        self.regions(size).count(offset, len, |cell| &cell.reads);
    }

    /// Counts a write of `len` bytes at `offset`, inside the volume, which has `size` bytes.
    pub(crate) fn written_at(&self, offset: u64, len: u64, size: u64) {
        self.regions(size).count(offset, len, |cell| &cell.writes);
    }

    /// Returns the counts by region of a volume of `size` bytes.
    pub(crate) fn by_region(&self, size: u64) -> VolumeRegions {
        self.regions(size).counts(size)
    }

    fn regions(&self, size: u64) -> &Regions {
        self.regions.get_or_init(|| Box::new(Regions::new(size)))
    }
}

/// Counters of requests by the region that they touch. The size of a region is a power of two, and
/// as small as [`MAX_REGIONS`] allows. When a volume grows past the last region, neighbours are
/// folded into one.
struct Regions {
    log2: AtomicU8,
    cells: [Cell; MAX_REGIONS],
    folding: Mutex<()>,
}

#[derive(Default)]
struct Cell {
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Regions {
    fn new(size: u64) -> Self {
        let share = size.div_ceil(MAX_REGIONS as u64).max(1);
        let log2 = (share.next_power_of_two().trailing_zeros() as u8).max(MIN_REGION_LOG2);
        Regions {
            log2: AtomicU8::new(log2),
            cells: std::array::from_fn(|_| Cell::default()),
            folding: Mutex::new(()),
        }
    }

    /// Counts a request once in each region that it touches.
    #[inline]
    fn count(&self, offset: u64, len: u64, counter: impl Fn(&Cell) -> &AtomicU64) {
        let Some(last) = len.checked_sub(1).and_then(|rest| offset.checked_add(rest)) else { return };
        let mut log2 = self.log2.load(Ordering::Relaxed);
        if last >> log2 >= MAX_REGIONS as u64 {
            log2 = self.fold(last);
        }
        let touched = self.cells.iter().take((last >> log2) as usize + 1).skip((offset >> log2) as usize);
        for cell in touched {
            counter(cell).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes regions so large that byte `last` lies in one. A request that is counted during the
    /// fold may be counted in another region. No count is lost.
    #[cold]
    fn fold(&self, last: u64) -> u8 {
        let _one_at_a_time = self.folding.lock();
        let old = self.log2.load(Ordering::Relaxed);
        let mut new = old;
        while last >> new >= MAX_REGIONS as u64 {
            new += 1;
        }
        self.log2.store(new, Ordering::Relaxed);
        for (at, cell) in self.cells.iter().enumerate().filter(|_| new > old) {
            let into = &self.cells[at >> (new - old)];
            into.reads.fetch_add(cell.reads.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            into.writes.fetch_add(cell.writes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        new
    }

    fn counts(&self, size: u64) -> VolumeRegions {
        let region_size = 1 << self.log2.load(Ordering::Relaxed);
        let used = size.div_ceil(region_size).min(MAX_REGIONS as u64) as usize;
        let counts = self.cells.iter().take(used).map(|cell| RegionCounts {
            reads: cell.reads.load(Ordering::Relaxed),
            writes: cell.writes.load(Ordering::Relaxed),
        });
        VolumeRegions { region_size, regions: counts.collect() }
    }
}

/// The cost of preserving, of one volume, whatever branch it wrote to, or of the pool.
#[derive(Default)]
pub(crate) struct PreserveCounters {
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    redirects: AtomicU64,
    redirected_bytes: AtomicU64,
    fill_reads: AtomicU64,
    fill_bytes: AtomicU64,
    host_bytes: AtomicU64,
}

impl PreserveCounters {
    pub(crate) fn add(&self, done: &PreserveStats) {
        for (counter, by) in [
            (&self.copies, done.copies),
            (&self.copied_bytes, done.copied_bytes),
            (&self.redirects, done.redirects),
            (&self.redirected_bytes, done.redirected_bytes),
            (&self.fill_reads, done.fill_reads),
            (&self.fill_bytes, done.fill_bytes),
            (&self.host_bytes, done.host_bytes),
        ] {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> PreserveStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        PreserveStats {
            copies: get(&self.copies),
            copied_bytes: get(&self.copied_bytes),
            redirects: get(&self.redirects),
            redirected_bytes: get(&self.redirected_bytes),
            fill_reads: get(&self.fill_reads),
            fill_bytes: get(&self.fill_bytes),
            host_bytes: get(&self.host_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn sums(regions: &VolumeRegions) -> (u64, u64) {
        regions.regions.iter().fold((0, 0), |sum, r| (sum.0 + r.reads, sum.1 + r.writes))
    }

    #[test]
    fn regions_fit_the_size() {
        for (size, region, count) in [
            (512, M, 1),
            (256 * M, M, 256),
            (256 * M + 512, 2 * M, 129),
            (2 << 30, 8 * M, 256),
            (10 << 30, 64 * M, 160),
            (64 << 40, 256 << 30, 256),
        ] {
            let counts = VolumeCounters::default().by_region(size);
            assert_eq!((counts.region_size, counts.regions.len()), (region, count), "{size}");
        }
    }

    #[test]
    fn a_request_counts_in_each_region_that_it_touches() {
        let counters = VolumeCounters::default();
        counters.read_at(M - 512, 1024, 3 * M);
        counters.read_at(2 * M, M, 3 * M);
        counters.written_at(0, 3 * M, 3 * M);
        counters.written_at(M, 0, 3 * M);
        let counts = counters.by_region(3 * M).regions;
        assert_eq!(counts, [(1, 1), (1, 1), (1, 1)].map(|(reads, writes)| RegionCounts { reads, writes }));
    }

    #[test]
    fn a_volume_that_grows_folds_its_regions_and_loses_no_count() {
        let counters = VolumeCounters::default();
        for region in 0..256 {
            counters.read_at(region * M, 512, 256 * M);
        }
        counters.written_at(255 * M, 512, 256 * M);
        assert_eq!(counters.by_region(256 * M).region_size, M);
        counters.read_at(1023 * M, 512, 1024 * M);
        let counts = counters.by_region(1024 * M);
        assert_eq!((counts.region_size, counts.regions.len()), (4 * M, 256));
        assert_eq!(counts.regions[0].reads, 4);
        assert_eq!(counts.regions[63], RegionCounts { reads: 4, writes: 1 });
        assert_eq!(counts.regions[64].reads, 0);
        assert_eq!(counts.regions[255].reads, 1);
        assert_eq!(sums(&counts), (257, 1));
    }

    #[test]
    fn folding_under_counting_threads_loses_nothing() {
        let counters = VolumeCounters::default();
        counters.by_region(M);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let counters = &counters;
                scope.spawn(move || {
                    for n in 0..20_000u64 {
                        let offset = (n * 7919 + thread) % (1 << (20 + n / 500)) / 512 * 512;
                        counters.read_at(offset, 512, M);
                    }
                });
            }
        });
        let all = counters.by_region(64 << 40);
        let cells = counters.regions(M).cells.iter().map(|c| c.reads.load(Ordering::Relaxed));
        // A request at the border of two regions is one of each.
        assert_eq!(cells.sum::<u64>(), 80_000, "{}", all.region_size);
    }
}
