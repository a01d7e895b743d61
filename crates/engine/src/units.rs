//! The units of addressing that every layer shares.

/// The unit of staging and of data checksums.
pub(crate) const BLOCK: u64 = 4096;

/// The unit of addressing inside a block.
pub(crate) const SECTOR: u64 = 512;
