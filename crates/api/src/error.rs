//! The body of every error response of the API.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a client can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The named object or route does not exist.
    NotFound,
    /// The name or state conflicts with what exists.
    Conflict,
    /// The request can never succeed as written.
    Invalid,
    /// The request reaches past the end of the volume.
    OutOfRange,
    /// The volume or the pool accepts no writes by configuration.
    ReadOnly,
    /// The pool cannot promise the space.
    NoSpace,
    /// A disk returned an error.
    Io,
    /// Stored bytes do not verify.
    Corrupt,
    /// A part of the past can't be reconstructed, because of damage.
    Lost,
    /// The pool stopped trusting itself; the server must be restarted to recover.
    Poisoned,
    /// Something else holds what is needed; retry later.
    Busy,
    /// Not available in this configuration or version.
    Unsupported,
    /// The image that a volume rests on is missing, or is not what it was.
    Unavailable,
    /// The bearer token is missing or wrong.
    Unauthorized,
    /// The configuration does not allow this client to do it.
    Forbidden,
    /// A defect of the server, or a kind that this client does not know.
    #[serde(other)]
    Internal,
}

impl ErrorKind {
    /// The HTTP status that carries an error of this kind.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::Invalid | ErrorKind::OutOfRange => 400,
            ErrorKind::Unauthorized => 401,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Conflict | ErrorKind::ReadOnly | ErrorKind::Busy | ErrorKind::Unavailable => 409,
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Lost | ErrorKind::Internal => 500,
            ErrorKind::Unsupported => 501,
            ErrorKind::Poisoned => 503,
            ErrorKind::NoSpace => 507,
        }
    }
}

/// Body of every response whose status is 400 or above.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What a program acts on.
    pub kind: ErrorKind,
    /// What a person reads.
    pub message: String,
}

impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ErrorBody {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_snake_case_and_unknown_ones_are_internal() {
        let text = serde_json::to_string(&ErrorKind::NoSpace).unwrap();
        assert_eq!(text, "\"no_space\"");
        let future: ErrorBody = serde_json::from_str(r#"{"kind":"on_fire","message":"x"}"#).unwrap();
        assert_eq!(future.kind, ErrorKind::Internal);
    }
}
