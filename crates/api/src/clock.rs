//! The server's clock: whether it is trusted, and the LSNs at which it was set.

use crate::client::{Client, ClientError};
use hyper::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where the clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClockChange {
    /// Number of the last record before it: `lsn:` and this is the moment just before the clock was
    /// set.
    pub lsn: u64,
    /// What the clock would have said.
    pub before: Timestamp,
    /// What it said.
    pub after: Timestamp,
}

/// How the server's clock stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Clock {
    /// What it says.
    pub now: Timestamp,
    /// Seconds by which it is ahead of what it should say (negative: behind), while that is a jump
    /// that the operator has not confirmed.
    pub jumped_seconds: Option<f64>,
    /// Nothing is forgotten by time now.
    pub suspended: bool,
    /// Seconds by which the newest time of a history or snapshot lies ahead of the clock.
    pub ahead_seconds: f64,
    /// Where it was set, oldest first, as far back as any history goes.
    pub changes: Vec<ClockChange>,
}

impl Client {
    /// How the server's clock stands.
    pub fn clock(&self) -> Result<Clock, ClientError> {
        self.get("/pool/clock")
    }

    /// Confirms that the clock is right as it is.
    pub fn confirm_clock(&self) -> Result<Clock, ClientError> {
        self.send(Method::POST, "/pool/clock/confirmation", &())
    }
}
