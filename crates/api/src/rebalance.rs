//! Requests and responses about rebalancing. Rebalancing moves data to the physical volumes on
//! which the placement `share` places it now.

use crate::client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to rebalance the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rebalance {
    /// Limit of the rate in bytes per second. 0: no limit.
    #[serde(default)]
    pub rate: u64,
}

/// Progress of the rebalancing that is under way, or of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebalancing {
    /// Whether a rebalancing is under way.
    pub running: bool,
    /// Number of the current round, from 1. Data whose place was full is tried again in the next
    /// round.
    pub round: u32,
    /// Limit of the rate in bytes per second. 0: no limit.
    pub rate: u64,
    /// Bytes of data that the current round has checked.
    pub checked: u64,
    /// Bytes in use in the pool.
    pub used: u64,
    /// Bytes moved in all rounds.
    pub moved: u64,
    /// Whether data was left where it is in this round, because its place was full.
    pub passed_over: bool,
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

const ROUTE: &str = "/pool/rebalance";

/// Requests about rebalancing.
impl Client {
    /// Returns the progress of the rebalancing that is under way, or of the last one.
    pub fn rebalancing(&self) -> Result<Rebalancing> {
        self.get(ROUTE)
    }

    /// Begins to rebalance the pool. A rebalancing that is under way begins anew.
    pub fn rebalance(&self, how: &Rebalance) -> Result<Rebalancing> {
        self.send(hyper::Method::POST, ROUTE, how)
    }

    /// Stops the rebalancing. Data that was moved stays at its new place.
    pub fn stop_rebalance(&self) -> Result<()> {
        self.delete(ROUTE)
    }
}
