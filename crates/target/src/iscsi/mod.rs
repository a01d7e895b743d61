//! The iSCSI target (RFC 7143). It implements error recovery level 0 completely, CHAP, digests, and
//! several connections in a session.
//!
//! ```text
//! server ── accepts ──> login (keys, CHAP) ──> session: one thread per connection ──> scsi::Nexus
//! ```
//!
//! A connection's thread blocks on its socket. It serves everything that one receive brought before
//! it receives again:
//!
//! - Reads that need no disk go straight into the buffer of responses.
//! - All writes whose data came along become one call of the device. Their payloads point into the
//!   receive buffer.
//! - One send answers all of them.
//!
//! A few worker threads do what may block. Those requests are answered out of order.

pub mod access;
mod active;
mod attend;
mod auth;
pub mod chap;
mod command;
mod condition;
mod config;
mod conn;
mod discovery;
mod exchange;
mod inline;
mod login;
mod manage;
mod news;
mod params;
pub mod pdu;
mod record;
mod refusal;
mod refusals;
mod registry;
mod reply;
mod serve;
mod server;
mod serving;
mod session;
mod stats;
mod targets;
pub mod text;
mod transfer;
mod window;
mod work;

pub use crate::net::{Transport, WorkerPool};
pub use chap::Secret;
pub use config::{DigestPolicy, IscsiConfig, Portal};
pub use server::{IscsiServer, serve_transport};
pub use stats::{ConnectionInfo, IscsiStats, IscsiTraffic, SessionClient, SessionInfo};
pub use targets::{AuthPolicy, ChapUser, Denied, Grant, Initiator, Proof, TargetEntry, Targets};
