//! A position in the journal, as the reservations of histories count it.

use crate::ids::Lsn;

/// A place in the journal. The stretches that reservations of histories count end where destage
/// batches end, and after a fixed number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalPosition {
    /// The number of the segment.
    pub(crate) segment: u64,
    /// The position in the segment, in bytes.
    pub(crate) at: u64,
    /// The LSN of the record before this place.
    pub(crate) after: Lsn,
    /// The LSN of the last record before this place that may be carried out alone, or is carried
    /// out already.
    pub(crate) cut: Lsn,
}
