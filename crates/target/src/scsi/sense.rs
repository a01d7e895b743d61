//! Sense data: the reason why a command did not end with GOOD (SPC-4 4.5), in the fixed and the
//! descriptor format.

use hindcast_engine::{Error, ErrorKind};

/// The sense keys in use (SPC-4 table 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// There is no error to report.
    NoSense = 0x0,
    /// The logical unit is not ready for use.
    NotReady = 0x2,
    /// The medium, or the data on it, is damaged.
    MediumError = 0x3,
    /// The server has a fault outside the medium.
    HardwareError = 0x4,
    /// The request can never succeed in this form.
    IllegalRequest = 0x5,
    /// The device server reports an event to the initiator.
    UnitAttention = 0x6,
    /// Writing is not allowed, or the pool has no space for it.
    DataProtect = 0x7,
    /// An EXTENDED COPY was aborted before its end.
    CopyAborted = 0xa,
    /// The device server aborted the command. The initiator may send it again.
    AbortedCommand = 0xb,
    /// A comparison found different data.
    Miscompare = 0xe,
}

/// An additional sense code and its qualifier (SPC-4 annex F.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Asc(pub u8, pub u8);

/// The additional sense codes in use.
#[allow(missing_docs)] // the names are the standard's own
impl Asc {
    pub const NONE: Asc = Asc(0x00, 0x00);
    pub const ACCESS_STATE_TRANSITION: Asc = Asc(0x04, 0x0a);
    pub const TARGET_PORT_IN_STANDBY: Asc = Asc(0x04, 0x0b);
    pub const TARGET_PORT_UNAVAILABLE: Asc = Asc(0x04, 0x0c);
    pub const UNREACHABLE_COPY_TARGET: Asc = Asc(0x08, 0x04);
    pub const SANITIZE_IN_PROGRESS: Asc = Asc(0x04, 0x1b);
    pub const NOT_READY_MANUAL_INTERVENTION: Asc = Asc(0x04, 0x03);
    pub const INITIALIZING_COMMAND_REQUIRED: Asc = Asc(0x04, 0x02);
    pub const WRITE_ERROR: Asc = Asc(0x0c, 0x00);
    pub const THIRD_PARTY_DEVICE_FAILURE: Asc = Asc(0x0d, 0x01);
    pub const COPY_TARGET_NOT_REACHABLE: Asc = Asc(0x0d, 0x02);
    pub const UNRECOVERED_READ_ERROR: Asc = Asc(0x11, 0x00);
    pub const PARAMETER_LIST_LENGTH_ERROR: Asc = Asc(0x1a, 0x00);
    pub const MISCOMPARE_DURING_VERIFY: Asc = Asc(0x1d, 0x00);
    pub const INVALID_COMMAND_OPERATION_CODE: Asc = Asc(0x20, 0x00);
    pub const LBA_OUT_OF_RANGE: Asc = Asc(0x21, 0x00);
    pub const INVALID_FIELD_IN_CDB: Asc = Asc(0x24, 0x00);
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Asc = Asc(0x25, 0x00);
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Asc = Asc(0x26, 0x00);
    pub const PARAMETER_NOT_SUPPORTED: Asc = Asc(0x26, 0x01);
    pub const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: Asc = Asc(0x26, 0x04);
    pub const TOO_MANY_TARGET_DESCRIPTORS: Asc = Asc(0x26, 0x06);
    pub const UNSUPPORTED_TARGET_DESCRIPTOR: Asc = Asc(0x26, 0x07);
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Asc = Asc(0x26, 0x08);
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR: Asc = Asc(0x26, 0x09);
    pub const INLINE_DATA_LENGTH_EXCEEDED: Asc = Asc(0x26, 0x0b);
    pub const WRITE_PROTECTED: Asc = Asc(0x27, 0x00);
    pub const SOFTWARE_WRITE_PROTECTED: Asc = Asc(0x27, 0x02);
    pub const SPACE_ALLOCATION_FAILED: Asc = Asc(0x27, 0x07);
    pub const POWER_ON_OR_RESET: Asc = Asc(0x29, 0x00);
    pub const BUS_DEVICE_RESET: Asc = Asc(0x29, 0x03);
    pub const NEXUS_LOSS: Asc = Asc(0x29, 0x07);
    pub const MODE_PARAMETERS_CHANGED: Asc = Asc(0x2a, 0x01);
    pub const RESERVATIONS_PREEMPTED: Asc = Asc(0x2a, 0x03);
    pub const RESERVATIONS_RELEASED: Asc = Asc(0x2a, 0x04);
    pub const REGISTRATIONS_PREEMPTED: Asc = Asc(0x2a, 0x05);
    pub const ASYMMETRIC_ACCESS_STATE_CHANGED: Asc = Asc(0x2a, 0x06);
    pub const CAPACITY_DATA_CHANGED: Asc = Asc(0x2a, 0x09);
    pub const COMMANDS_CLEARED: Asc = Asc(0x2f, 0x00);
    pub const SANITIZE_FAILED: Asc = Asc(0x31, 0x03);
    pub const THIN_PROVISIONING_THRESHOLD: Asc = Asc(0x38, 0x07);
    pub const SAVING_PARAMETERS_NOT_SUPPORTED: Asc = Asc(0x39, 0x00);
    pub const INQUIRY_DATA_CHANGED: Asc = Asc(0x3f, 0x03);
    pub const REPORTED_LUNS_DATA_CHANGED: Asc = Asc(0x3f, 0x0e);
    pub const INTERNAL_TARGET_FAILURE: Asc = Asc(0x44, 0x00);
    pub const MEDIUM_REMOVAL_PREVENTED: Asc = Asc(0x53, 0x02);
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Asc = Asc(0x55, 0x04);
}

/// Sense data of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sense {
    /// The sense key.
    pub key: SenseKey,
    /// The additional sense code and its qualifier.
    pub asc: Asc,
    /// INFORMATION: an LBA, or the offset of a miscompare.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION.
    pub command_specific: Option<u64>,
    /// SENSE KEY SPECIFIC with its SKSV bit: a field pointer or a progress indication.
    pub key_specific: Option<[u8; 3]>,
    /// D_SENSE: whether the initiator selected the descriptor format.
    pub descriptor_format: bool,
}

impl Sense {
    /// Returns sense data without further fields.
    pub const fn new(key: SenseKey, asc: Asc) -> Sense {
        Sense {
            key,
            asc,
            information: None,
            command_specific: None,
            key_specific: None,
            descriptor_format: false,
        }
    }

    /// Returns ILLEGAL REQUEST with an additional sense code.
    pub const fn illegal(asc: Asc) -> Sense {
        Sense::new(SenseKey::IllegalRequest, asc)
    }

    /// Returns INVALID FIELD IN CDB with a field pointer to a byte of the CDB (SPC-4 4.5.2.4.2).
    pub fn cdb_field(byte: usize) -> Sense {
        Sense::illegal(Asc::INVALID_FIELD_IN_CDB).pointing(byte, None, true)
    }

    /// Returns INVALID FIELD IN CDB with a field pointer to the highest bit of a field in a byte.
    pub fn cdb_bit(byte: usize, bit: u8) -> Sense {
        Sense::illegal(Asc::INVALID_FIELD_IN_CDB).pointing(byte, Some(bit), true)
    }

    /// Returns INVALID FIELD IN PARAMETER LIST with a field pointer to a byte of the list.
    pub fn parameter_field(byte: usize) -> Sense {
        Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).pointing(byte, None, false)
    }

    /// Adds a field pointer.
    fn pointing(mut self, byte: usize, bit: Option<u8>, cdb: bool) -> Sense {
        let byte = u16::try_from(byte).unwrap_or(u16::MAX).to_be_bytes();
        let bit = bit.map_or(0, |bit| 0x08 | (bit & 7));
        self.key_specific = Some([0x80 | if cdb { 0x40 } else { 0 } | bit, byte[0], byte[1]]);
        self
    }

    /// Adds the INFORMATION field.
    pub fn with_information(mut self, information: u64) -> Sense {
        self.information = Some(information);
        self
    }

    /// Adds a progress indication: the numerator of a fraction of 65536 (SPC-4 4.5.2.4.4).
    pub fn with_progress(mut self, progress: u16) -> Sense {
        let [high, low] = progress.to_be_bytes();
        self.key_specific = Some([0x80, high, low]);
        self
    }

    /// Returns the sense data in its wire format. Numbers are big-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.descriptor_format { self.descriptors() } else { self.fixed() }
    }

    /// Returns the fixed format (SPC-4 4.5.3).
    fn fixed(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        if let Some(Ok(information)) = self.information.map(u32::try_from) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = 10;
        if let Some(Ok(specific)) = self.command_specific.map(u32::try_from) {
            bytes[8..12].copy_from_slice(&specific.to_be_bytes());
        }
        bytes[12] = self.asc.0;
        bytes[13] = self.asc.1;
        if let Some(specific) = self.key_specific {
            bytes[15..18].copy_from_slice(&specific);
        }
        bytes
    }

    /// Returns the descriptor format (SPC-4 4.5.2).
    fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key as u8, self.asc.0, self.asc.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0]);
            bytes.extend(information.to_be_bytes());
        }
        if let Some(specific) = self.command_specific {
            bytes.extend([0x01, 0x0a, 0, 0]);
            bytes.extend(specific.to_be_bytes());
        }
        if let Some(specific) = self.key_specific {
            bytes.extend([0x02, 0x06, 0, 0]);
            bytes.extend(specific);
            bytes.push(0);
        }
        bytes[7] = u8::try_from(bytes.len() - 8).unwrap_or(u8::MAX);
        bytes
    }
}

/// The direction of the transfer during which the device failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum During {
    Read,
    Write,
}

/// Returns the sense data for a failed read. INFORMATION is the LBA of the first block that can't
/// be read, if the error names it (SBC-3 4.18.1).
pub(crate) fn of_read(error: &Error, block_size: u64) -> Sense {
    let sense = of_error(error, During::Read);
    match error.byte() {
        Some(byte) => sense.with_information(byte / block_size),
        None => sense,
    }
}

/// Returns the sense data for an error of the device.
pub(crate) fn of_error(error: &Error, during: During) -> Sense {
    use SenseKey::*;
    let (key, asc) = match (error.kind(), during) {
        (ErrorKind::OutOfRange, _) => (IllegalRequest, Asc::LBA_OUT_OF_RANGE),
        (ErrorKind::Invalid | ErrorKind::Unsupported, _) => (IllegalRequest, Asc::INVALID_FIELD_IN_CDB),
        (ErrorKind::ReadOnly, _) => (DataProtect, Asc::WRITE_PROTECTED),
        (ErrorKind::NoSpace, _) => (DataProtect, Asc::SPACE_ALLOCATION_FAILED),
        (ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Lost, During::Read) => {
            (MediumError, Asc::UNRECOVERED_READ_ERROR)
        }
        (ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Lost, During::Write) => {
            (MediumError, Asc::WRITE_ERROR)
        }
        (ErrorKind::Poisoned, _) => (HardwareError, Asc::INTERNAL_TARGET_FAILURE),
        (ErrorKind::NotFound | ErrorKind::Unavailable, _) => (NotReady, Asc::NOT_READY_MANUAL_INTERVENTION),
        (ErrorKind::Conflict | ErrorKind::Busy, _) => (AbortedCommand, Asc::NONE),
    };
    Sense::new(key, asc)
}
