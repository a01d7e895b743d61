//! Totals of space.

/// Totals in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
    /// Bytes that would be available if the file systems below the pool had room for everything.
    pub(crate) own: u64,
    pub(crate) reserved: u64,
}

impl Totals {
    /// Counts lent bytes as available. A writer may have taken some since they were counted.
    pub(crate) fn with_lent(self, bytes: u64) -> Totals {
        let lent = bytes.min(self.used);
        Totals { used: self.used - lent, available: self.available + lent, own: self.own + lent, ..self }
    }

    pub(super) fn plus(self, other: Totals) -> Totals {
        Totals {
            capacity: self.capacity + other.capacity,
            used: self.used + other.used,
            available: self.available + other.available,
            own: self.own + other.own,
            reserved: self.reserved + other.reserved,
        }
    }
}
