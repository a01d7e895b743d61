//! The end of a command: an [`Outcome`], or inside the device server a [`Reply`].

use super::sense::Sense;
use bytes::Bytes;

/// The status code of a command (SAM-5 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the standard's own
pub enum Status {
    Good = 0x00,
    CheckCondition = 0x02,
    ConditionMet = 0x04,
    Busy = 0x08,
    ReservationConflict = 0x18,
    TaskSetFull = 0x28,
    TaskAborted = 0x40,
}

/// The end of a command. The transport computes residual counts, because only the transport knows
/// the length that the initiator expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The status byte.
    pub status: Status,
    /// The sense data. It is present with [`Status::CheckCondition`].
    pub sense: Option<Sense>,
    /// The data for the initiator. It is never longer than [`super::Task::data_in_len`].
    pub data_in: Bytes,
}

impl Outcome {
    /// Returns GOOD without data.
    pub const fn good() -> Outcome {
        Outcome::status(Status::Good)
    }

    /// Returns a status without data or sense data.
    pub const fn status(status: Status) -> Outcome {
        Outcome { status, sense: None, data_in: Bytes::new() }
    }

    /// Returns GOOD with data for the initiator.
    pub fn data(data: impl Into<Bytes>) -> Outcome {
        Outcome { status: Status::Good, sense: None, data_in: data.into() }
    }

    /// Returns CHECK CONDITION with sense data.
    pub fn check(sense: Sense) -> Outcome {
        Outcome { status: Status::CheckCondition, sense: Some(sense), data_in: Bytes::new() }
    }
}

/// The end of a command that does not end with GOOD.
#[derive(Debug)]
pub(crate) enum Ending {
    Check(Sense),
    Status(Status),
}

impl From<Sense> for Ending {
    fn from(sense: Sense) -> Ending {
        Ending::Check(sense)
    }
}

/// The result of a command's function: the data for the initiator before it is truncated, or
/// another end.
pub(crate) type Reply = std::result::Result<Vec<u8>, Ending>;
