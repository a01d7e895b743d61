//! How much one commit takes along: the larger the catalog, the dearer a commit.

use super::Catalog;

/// Bytes of the catalog for each row that one step may change, and for each
/// [`Catalog::time_per_commit`].
const BYTES_PER_ROW: u64 = 1 << 20;
const BYTES_PER_TIME: u64 = 4 << 30;

impl Catalog {
    /// Rows that a step of background work changes with one commit, `least` in a small catalog.
    /// Each commit writes the store's own account of free pages, a byte for some 5 KiB of catalog:
    /// steps grow with that, so that it is no more than what they change.
    pub(crate) fn rows_per_commit(&self, least: usize) -> usize {
        let bytes = self.store.below().bytes().unwrap_or(0);
        usize::try_from(bytes / BYTES_PER_ROW).unwrap_or(usize::MAX).clamp(least, 8 * least)
    }

    /// Nanoseconds that changes without a batch may wait for a commit of their own: `least` in a
    /// small catalog.
    pub(crate) fn time_per_commit(&self, least: u64) -> u64 {
        let bytes = self.store.below().bytes().unwrap_or(0);
        least.saturating_mul((bytes / BYTES_PER_TIME).clamp(1, 10))
    }
}
