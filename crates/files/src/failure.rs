//! Why a request about files failed.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No file, no directory or no partition is there.
    NotFound,
    /// The request can't succeed as written: a directory is read as a file.
    Invalid,
    /// The reader does not know how to read this, or it is damaged.
    Unsupported,
    /// A read of the disk failed.
    Disk,
    /// The reader used more time or memory than it may, or it broke a rule.
    Reader,
}

/// Why a request about files failed: a kind for programs, and a text for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of the failure.
    pub kind: FailureKind,
    /// Text of the failure.
    pub message: String,
}

/// The result of a request about files.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into() }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(FailureKind::NotFound, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Invalid, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Unsupported, message)
    }

    /// Returns the failure for an error of a parser that reads through [`io`]. An error of the disk
    /// carries a [`Failure`] as its source.
    pub(crate) fn of_io(error: &io::Error, or: impl FnOnce(String) -> Failure) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Failure>());
        inner.cloned().unwrap_or_else(|| or(error.to_string()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        io::Error::other(failure)
    }
}
