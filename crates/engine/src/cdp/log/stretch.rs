//! Stretches of the journal for which a branch was promised room for groups in its log.

use super::record::{BLOCK_LEN, ENTRIES};
use crate::ids::Lsn;
use crate::journal::place::JournalPosition;

/// Returns the bytes of the index of this number of records.
pub(crate) fn index_room(records: u64) -> u64 {
    records.div_ceil(ENTRIES as u64) * BLOCK_LEN as u64
}

/// The stretch of the journal for which a branch was promised [`STRETCH_ROOM`].
#[derive(Debug, Default)]
pub(crate) struct JournalSpan {
    segment: u64,
    part: u64,
    after: Lsn,
}

impl JournalSpan {
    /// Returns the room that has to be promised for a record at `place`, besides the record's own
    /// room, when batches have `batch` bytes.
    pub(crate) fn extend(&mut self, place: &JournalPosition, batch: u64) -> u64 {
        let part = place.at / batch.max(1);
        if (self.segment, self.part) == (place.segment, part) && place.cut <= self.after {
            return 0;
        }
        *self = JournalSpan { segment: place.segment, part, after: place.after };
        STRETCH_ROOM
    }
}

/// Bytes that a group can take besides its records and their entries. They are the rest of two
/// blocks, and what the two segments take that the group may lie in: their heads, the rest of the
/// first one's last group, and the rests of their closing indexes.
pub(crate) const GROUP_ROOM: u64 = 8 * BLOCK_LEN as u64;

/// The room for a stretch of the journal as long as a batch. Such a stretch can be cut into two
/// batches.
pub(crate) const STRETCH_ROOM: u64 = 2 * GROUP_ROOM;
