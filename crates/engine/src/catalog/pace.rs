//! The amount of work for each commit. The larger the catalog is, the more a commit costs.

use super::Catalog;

/// The bytes of the catalog for each row that one step may change. Below it are the bytes for each
/// [`Catalog::time_per_commit`].
const BYTES_PER_ROW: u64 = 1 << 20;
const BYTES_PER_TIME: u64 = 4 << 30;

impl Catalog {
    /// Returns the number of rows that a step of background work changes with one commit. It is
    /// `least` in a small catalog. Each commit writes the store's own account of free pages, a byte
    /// for some 5 KiB of catalog. Steps grow with that account, so that it is no larger than what
    /// they change.
    pub(crate) fn rows_per_commit(&self, least: usize) -> usize {
        let bytes = self.store.below().bytes().unwrap_or(0);
        usize::try_from(bytes / BYTES_PER_ROW).unwrap_or(usize::MAX).clamp(least, 8 * least)
    }

    /// Returns the nanoseconds that changes without a batch may wait for a commit of their own. It
    /// is `least` in a small catalog.
    pub(crate) fn time_per_commit(&self, least: u64) -> u64 {
        let bytes = self.store.below().bytes().unwrap_or(0);
        least.saturating_mul((bytes / BYTES_PER_TIME).clamp(1, 10))
    }
}
