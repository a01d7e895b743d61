//! Requests and responses about traces of disk accesses.

use crate::client::{Client, ClientError};
use crate::named::named;
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to begin a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginTrace {
    /// Path of the file on the server's machine. It must not exist. Absent: a new file in the
    /// directory `traces` of the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size in bytes of the file at which the trace ends. Absent: 256 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// Number of seconds after which the trace ends. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

named! {
    /// Why a trace ended.
    pub enum TraceReason {
        /// An operator stopped it.
        Stopped = "stopped",
        /// The file has its largest size.
        Size = "size",
        /// Its time has passed.
        Time = "time",
        /// The file system has too little space left.
        Full = "full",
        /// The server stopped.
        Shutdown = "shutdown",
        /// The file could not be written.
        Failed = "failed",
    }
}

/// The trace that is under way, or the last one since the server started. If there was none, the
/// optional fields are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// Whether a trace is under way.
    pub running: bool,
    /// Path of the file on the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Time at which it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Time at which it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TraceReason>,
    /// The error after which it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of accesses in the file.
    pub accesses: u64,
    /// Number of accesses that are missing in the file, because they came too fast.
    pub lost: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Bytes of the file at which the trace ends.
    pub max_size: u64,
    /// Number of seconds after which the trace ends. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

impl Client {
    /// Begins a trace.
    pub fn begin_trace(&self, how: &BeginTrace) -> Result<Trace, ClientError> {
        self.send(Method::POST, "/pool/trace", how)
    }

    /// Returns the trace that is under way, or the last one.
    pub fn trace(&self) -> Result<Trace, ClientError> {
        self.get("/pool/trace")
    }

    /// Ends the trace that is under way.
    pub fn end_trace(&self) -> Result<Trace, ClientError> {
        self.get_by(Method::DELETE, "/pool/trace")
    }
}
