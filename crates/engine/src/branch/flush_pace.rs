//! How much a volume's clients write between flushes. A flush behind references syncs a physical
//! volume beside the journal, so that short references are not worth it where a flush is near.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes between flushes, as a moving mean. Races between writers only blur it.
pub(crate) struct FlushPace {
    /// Bytes since the last flush.
    since: AtomicU64,
    /// The mean of the bytes between flushes. [`u64::MAX`] before the first flush.
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

    /// Notes a flush. A flush behind which nothing was written tells nothing.
    pub(crate) fn flushed(&self) {
        let since = self.since.swap(0, Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let mean = self.mean.load(Ordering::Relaxed);
        let next = if mean == u64::MAX { since } else { mean - mean / 4 + since / 4 };
        self.mean.store(next, Ordering::Relaxed);
    }

    /// Returns the number of bytes that are written between two flushes.
    pub(crate) fn per_flush(&self) -> u64 {
        // A client that flushes no more is not bound to its past.
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
