//! What repairs have done.

/// Damaged bytes that were repaired, by where their content was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repaired {
    /// In the history of the volume.
    pub history: u64,
    /// In a file of the journal that was not used again yet.
    pub journal: u64,
    /// In the page cache, while the medium had it wrong.
    pub cache: u64,
    /// In another copy of a mirror.
    pub copies: u64,
}

impl Repaired {
    /// Returns the bytes of all sources.
    pub fn total(&self) -> u64 {
        self.history + self.journal + self.cache + self.copies
    }
}
