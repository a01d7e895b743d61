//! The server's clock: whether its time is trusted, and the LSNs at which it was set.

use crate::client::{Client, ClientError};
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClockChange {
    /// LSN of the last record before the change. `lsn:` and this number is the moment just before
    /// the clock was set.
    pub lsn: u64,
    /// Time that the clock would have shown without the change.
    pub before: Timestamp,
    /// Time that the clock showed after the change.
    pub after: Timestamp,
}

/// State of the server's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Clock {
    /// Time of the clock now.
    pub now: Timestamp,
    /// Seconds by which the clock is ahead of its expected time. A negative number means that the
    /// clock is behind. Present only while the clock has jumped and the operator has not confirmed
    /// its time.
    pub jumped_seconds: Option<f64>,
    /// Whether expiry by time is suspended.
    pub suspended: bool,
    /// Seconds by which the newest time of a history or snapshot is ahead of the clock.
    pub ahead_seconds: f64,
    /// Changes of the clock, oldest first, as far back as any history reaches.
    pub changes: Vec<ClockChange>,
}

impl Client {
    /// Returns the state of the server's clock.
    pub fn clock(&self) -> Result<Clock, ClientError> {
        self.get("/pool/clock")
    }

    /// Confirms that the time of the server's clock is right. Expiry by time continues.
    pub fn confirm_clock(&self) -> Result<Clock, ClientError> {
        self.send(Method::POST, "/pool/clock/confirmation", &())
    }
}
