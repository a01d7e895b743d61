//! A position in the journal, as the reservations of histories count it.

/// A place in the journal: where stretches end is where batches do, and at every so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalPosition {
    /// The segment,
    pub(crate) segment: u64,
    /// and the byte in it.
    pub(crate) at: u64,
    /// LSN of the record before.
    pub(crate) after: u64,
    /// LSN of the last record before that may be carried out alone, or is carried out already.
    pub(crate) cut: u64,
}
