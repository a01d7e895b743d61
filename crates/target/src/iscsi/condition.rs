//! Sense data that iSCSI itself defines for CHECK CONDITION (RFC 7143, 11.4.7.2).

use crate::scsi::{Asc, Sense, SenseKey};

const fn aborted(asc: u8, ascq: u8) -> Sense {
    Sense::new(SenseKey::AbortedCommand, Asc(asc, ascq))
}

/// The initiator sent unsolicited data that the negotiated parameters do not permit.
pub(super) const UNEXPECTED_DATA: Sense = aborted(0x0c, 0x0c);
/// The initiator ended a burst before it had sent all data that the R2T requested.
pub(super) const NOT_ENOUGH_DATA: Sense = aborted(0x0c, 0x0d);
/// A digest was wrong, or a data PDU is missing or out of order.
pub(super) const CRC_ERROR: Sense = aborted(0x47, 0x05);
/// The initiator sent a part of a block.
pub(super) const PARTIAL_BLOCK: Sense = Sense::new(SenseKey::IllegalRequest, Asc(0x0e, 0x03));
