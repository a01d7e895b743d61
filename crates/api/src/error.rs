//! The body of every error response of the API.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Kind of an error. It decides what a client can do about the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The named object or route does not exist.
    NotFound,
    /// The request conflicts with the name or the state of an existing object.
    Conflict,
    /// The request can never succeed as written.
    Invalid,
    /// The request reaches past the end of the volume.
    OutOfRange,
    /// The configuration of the volume or the pool forbids writes.
    ReadOnly,
    /// The pool does not have the space that the request needs.
    NoSpace,
    /// A disk returned an error.
    Io,
    /// Stored bytes do not match their checksum.
    Corrupt,
    /// A part of a history can't be reconstructed, because records are damaged.
    Lost,
    /// The pool refuses writes after a failed write or sync. A restart of the server recovers it.
    Poisoned,
    /// Another request or process holds what this request needs. A later attempt can succeed.
    Busy,
    /// The request is not available in this configuration or version.
    Unsupported,
    /// The image that a volume depends on is missing or has changed.
    Unavailable,
    /// The bearer token is missing or wrong.
    Unauthorized,
    /// The configuration forbids this request for this client.
    Forbidden,
    /// A defect of the server, or a kind that this client does not know.
    #[serde(other)]
    Internal,
}

impl ErrorKind {
    /// Returns the HTTP status of a response with an error of this kind.
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
    /// Kind of the error, for programs.
    pub kind: ErrorKind,
    /// Text of the error, for people.
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
