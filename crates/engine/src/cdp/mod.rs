//! Continuous data protection: a volume keeps every write between its snapshots, and can be read as
//! it was at any moment.
//!
//! While a batch is preserved, each of its records becomes one record of the branch's CDP log for
//! every chunk that it touches ([`log::record`], [`log::segment`]; Yang et al., "ST-CDP: Snapshots
//! in TRAP for Continuous Data Protection"). *Anchors* are snapshots, mostly hidden ones. Few
//! records lie between two anchors, so few have to be applied to reconstruct a chunk.

#[cfg(test)]
mod descriptors;
pub(crate) mod log;
pub mod model;
pub(crate) mod moment;
pub(crate) mod write;

pub use crate::cdp::moment::sample::CdpSample;
pub use crate::info::history::{Anchor, Bucket, CdpInfo, Change, History, Mark, Moment, Point, Span};
pub use crate::info::timeline::{
    Amount, Lane, MAX_BUCKETS, MAX_ITEMS, MAX_REGIONS, Regions, Rollback, Timeline, TimelineQuery, Window,
};
pub use crate::settings::{AnchorPolicy, CdpSettings, Compression, Encoding, Retention};
pub use moment::moment_uuid;
