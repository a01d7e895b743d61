//! How a command ends: an [`Outcome`], or inside of the device server a [`Reply`].

use super::sense::Sense;
use bytes::Bytes;

/// SAM-5 5.3.1.
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

/// How a command ended. Residual counts are the transport's: it alone knows what the initiator
/// expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The status byte.
    pub status: Status,
    /// Present with [`Status::CheckCondition`].
    pub sense: Option<Sense>,
    /// What to send to the initiator; never longer than [`super::Task::data_in_len`].
    pub data_in: Bytes,
}

impl Outcome {
    /// GOOD.
    pub const fn good() -> Outcome {
        Outcome::status(Status::Good)
    }

    /// A status without data or sense.
    pub const fn status(status: Status) -> Outcome {
        Outcome { status, sense: None, data_in: Bytes::new() }
    }

    /// GOOD with data for the initiator.
    pub fn data(data: impl Into<Bytes>) -> Outcome {
        Outcome { status: Status::Good, sense: None, data_in: data.into() }
    }

    /// CHECK CONDITION.
    pub fn check(sense: Sense) -> Outcome {
        Outcome { status: Status::CheckCondition, sense: Some(sense), data_in: Bytes::new() }
    }
}

/// How a command ends unless it is GOOD.
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

/// What a command's function returns: the data for the initiator, untruncated, or how else it ends.
pub(crate) type Reply = std::result::Result<Vec<u8>, Ending>;
