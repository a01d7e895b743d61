//! Failures of commands ([`Failure`]), and the exit codes that scripts rely on.

use hindcast_api::{ClientError, ErrorBody, ErrorKind};
use std::fmt;
use std::io;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server, or the engine in this process, refused the request or failed.
    Refused(ErrorBody),
    /// No server answers.
    Unreachable(String),
    /// The command line is wrong in a way that the parser can't detect.
    Usage(String),
    /// The command ran, and its result counts as a failure. For example, findings remain.
    Failed(String),
    /// The output could not be written.
    Output(io::Error),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::Usage(message.into())
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the exit code, as `--help` documents it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Refused(body) => match body.kind {
                ErrorKind::Invalid | ErrorKind::OutOfRange => 2,
                ErrorKind::NotFound => 3,
                ErrorKind::Conflict | ErrorKind::Busy | ErrorKind::ReadOnly => 4,
                ErrorKind::NoSpace => 6,
                ErrorKind::Io
                | ErrorKind::Corrupt
                | ErrorKind::Lost
                | ErrorKind::Poisoned
                | ErrorKind::Unsupported
                | ErrorKind::Unavailable
                | ErrorKind::Unauthorized
                | ErrorKind::Forbidden
                | ErrorKind::Internal => 1,
            },
            Failure::Usage(_) => 2,
            Failure::Unreachable(_) => 5,
            Failure::Failed(_) | Failure::Output(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(body) => body.fmt(f),
            Failure::Unreachable(text) | Failure::Usage(text) | Failure::Failed(text) => f.write_str(text),
            Failure::Output(error) => write!(f, "write output: {error}"),
        }
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Failure::Refused(body)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Api(body) => Failure::Refused(body),
            ClientError::Unreachable(text) => Failure::Unreachable(format!(
                "{text} (is the server running? --socket or HINDCAST_SOCKET chooses it)"
            )),
            ClientError::NoAnswer(text) => {
                Failure::Unreachable(format!("{text} (--timeout sets how long to wait for an answer)"))
            }
            ClientError::Protocol(text) => Failure::Failed(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}
