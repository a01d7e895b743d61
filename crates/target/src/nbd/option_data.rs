//! The data of options: a decoder, and the error replies to options.

use hindcast_engine::{Error, ErrorKind};

/// Maximum length of a string in the NBD protocol, in bytes.
pub const MAX_STRING: usize = 4096;

/// Option reply types.
#[allow(missing_docs)]
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) | 1;
    pub const ERR_POLICY: u32 = (1 << 31) | 2;
    pub const ERR_INVALID: u32 = (1 << 31) | 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) | 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) | 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) | 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) | 8;
    pub const ERR_TOO_BIG: u32 = (1 << 31) | 9;
}

/// An option that the server answers with an error reply.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionError {
    /// An error type of [`rep`].
    pub reply: u32,
    /// Text for the user of the client.
    pub message: String,
}

impl OptionError {
    pub(super) fn new(reply: u32, message: impl Into<String>) -> OptionError {
        OptionError { reply, message: message.into() }
    }

    pub(super) fn open(error: &Error) -> OptionError {
        let reply = match error.kind() {
            ErrorKind::Busy | ErrorKind::Conflict | ErrorKind::ReadOnly => rep::ERR_POLICY,
            _ => rep::ERR_UNKNOWN,
        };
        OptionError::new(reply, error.to_string())
    }
}

/// Decodes the data of an option from front to back.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Reader<'a> {
        Reader { rest: data }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], OptionError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(OptionError::new(rep::ERR_INVALID, "the option's data is too short"));
        };
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn u16(&mut self) -> Result<u16, OptionError> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, OptionError> {
        self.take(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Decodes a string that follows its 32-bit length.
    pub(super) fn string(&mut self) -> Result<&'a str, OptionError> {
        let len = self.u32()? as usize;
        let bytes = self.take(len)?;
        string(bytes)
    }

    pub(super) fn end(&self) -> Result<(), OptionError> {
        match self.rest {
            [] => Ok(()),
            _ => Err(OptionError::new(rep::ERR_INVALID, "the option's data is too long")),
        }
    }
}

/// Checks a string against the rules of the protocol: UTF-8 without NUL, at most [`MAX_STRING`]
/// bytes.
pub(super) fn string(bytes: &[u8]) -> Result<&str, OptionError> {
    if bytes.len() > MAX_STRING {
        return Err(OptionError::new(rep::ERR_TOO_BIG, "a string is longer than 4096 bytes"));
    }
    match std::str::from_utf8(bytes) {
        Ok(s) if !s.contains('\0') => Ok(s),
        _ => Err(OptionError::new(rep::ERR_INVALID, "a string is not UTF-8 without NUL")),
    }
}
