//! The number of bytes that the clients of a volume write between flushes. A flush behind
//! references syncs a physical volume in addition to the journal. So short writes do not go by
//! reference where a flush is near.

use std::sync::atomic::{AtomicU64, Ordering};

/// The moving mean of the bytes between flushes. Races between writers make it only less exact.
pub(crate) struct FlushPace {
    /// Bytes since the last flush.
    since: AtomicU64,
    /// The mean of the bytes between flushes, or [`u64::MAX`] before the first flush.
    mean: AtomicU64,
}

impl Default for FlushPace {
    fn default() -> Self {
        FlushPace { since: AtomicU64::new(0), mean: AtomicU64::new(u64::MAX) }
    }
}

impl FlushPace {
    pub(crate) fn wrote(&self, bytes: u64) {
        self.since.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes a flush. A flush since which nothing was written does not change the mean.
    pub(crate) fn flushed(&self) {
        let since = self.since.swap(0, Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let mean = self.mean.load(Ordering::Relaxed);
        let next = if mean == u64::MAX { since } else { mean - mean / 4 + since / 4 };
        self.mean.store(next, Ordering::Relaxed);
    }

    /// Returns the number of bytes between two flushes: the mean, or the bytes since the last flush
    /// if these are more.
    pub(crate) fn per_flush(&self) -> u64 {
        // If a client has stopped flushing, its earlier flushes do not matter.
        self.mean.load(Ordering::Relaxed).max(self.since.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_client() {
        let pace = FlushPace::default();
        assert_eq!(pace.per_flush(), u64::MAX);
        pace.flushed();
        assert_eq!(pace.per_flush(), u64::MAX, "nothing was written");
        for _ in 0..40 {
            pace.wrote(4096);
            pace.flushed();
        }
        assert!((3000..=4096).contains(&pace.per_flush()));
        pace.wrote(8 << 20);
        assert_eq!(pace.per_flush(), 8 << 20, "it flushes no more");
    }
}
