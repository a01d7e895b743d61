//! iSCSI's own reasons to end a command with CHECK CONDITION (RFC 7143, 11.4.7.2).

use crate::scsi::{Asc, Sense, SenseKey};

const fn aborted(asc: u8, ascq: u8) -> Sense {
    Sense::new(SenseKey::AbortedCommand, Asc(asc, ascq))
}

/// Unsolicited data that was not agreed on.
pub(super) const UNEXPECTED_DATA: Sense = aborted(0x0c, 0x0c);
/// Less unsolicited data than the initiator said.
pub(super) const NOT_ENOUGH_DATA: Sense = aborted(0x0c, 0x0d);
/// A digest was wrong, or a data PDU is missing or out of order.
pub(super) const CRC_ERROR: Sense = aborted(0x47, 0x05);
/// A part of a block came.
pub(super) const PARTIAL_BLOCK: Sense = Sense::new(SenseKey::IllegalRequest, Asc(0x0e, 0x03));
