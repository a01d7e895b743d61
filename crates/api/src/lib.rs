//! Hindcast's admin API: the request and response types that server and clients share, and a
//! blocking client.
//!
//! Sizes are integers in bytes. Times are RFC 3339 in UTC. Every error response has an
//! [`ErrorBody`]. The server publishes the same types as an OpenAPI document at
//! `/api/v1/openapi.json`.
#![forbid(unsafe_code)]

mod access;
mod answered;
mod audit;
mod backups;
mod cdp;
mod client;
mod clients;
mod clock;
mod endpoint;
mod error;
mod events;
mod features;
mod files;
mod flatten;
mod groups;
mod identity;
mod layouts;
mod live;
mod moment;
mod named;
mod notices;
mod percent;
mod placement;
mod rebalance;
mod relocation;
mod schedules;
mod scrub;
mod size;
mod snapshots;
mod span;
mod stats;
mod targets;
mod tasks;
mod timeline;
mod traces;
mod transfer;
mod trash;
mod trust;
mod types;
mod views;
mod wall_clock;

pub use access::*;
pub use audit::*;
pub use backups::*;
pub use cdp::*;
pub use client::{Client, ClientError};
pub use clients::*;
pub use clock::*;
pub use endpoint::Endpoint;
pub use error::{ErrorBody, ErrorKind};
pub use events::*;
pub use features::*;
pub use files::*;
pub use flatten::*;
pub use groups::*;
pub use identity::*;
pub use layouts::*;
pub use live::*;
pub use moment::{Moment, ParseMomentError, split_uuid};
pub use notices::*;
pub use percent::percent_encoded;
pub use placement::*;
pub use rebalance::*;
pub use relocation::*;
pub use schedules::*;
pub use scrub::*;
pub use size::{ParseSizeError, Size};
pub use snapshots::*;
pub use span::TimeSpan;
pub use stats::*;
pub use targets::*;
pub use tasks::*;
pub use timeline::*;
pub use traces::*;
pub use transfer::*;
pub use trash::*;
pub use trust::{Fingerprint, Trust, fingerprint_of};
pub use types::*;
pub use views::*;
pub use wall_clock::*;

/// Prefix of every versioned route.
pub const API_V1: &str = "/api/v1";
