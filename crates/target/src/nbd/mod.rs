//! The NBD target: fixed newstyle negotiation, simple and structured replies, TLS.
//!
//! One thread at a time receives from a connection. It blocks on the socket. [`server`] accepts the
//! connection, `handshake` and [`options`] negotiate, and `session` serves the transmission phase.
//! `serving` is the state of a session, and `attend` does the work that may wait for a disk. The
//! thread serves all requests that one receive brought before it receives again:
//!
//! - READs that need no disk write their data directly into the reply buffer.
//! - WRITEs become at most two calls of the device: one without FUA, and one with FUA. Their
//!   payloads point into the receive buffer.
//! - One send carries all replies, unless they are longer than the limit of one send.
//!
//! Worker threads carry out requests that may take long. Their replies may be sent out of order.

mod attend;
mod client;
pub mod codec;
mod conn;
mod exec;
mod handshake;
pub mod meta_context;
mod option_data;
pub mod options;
mod registry;
pub mod server;
mod serving;
mod session;
mod stats;
mod tls;

pub use crate::net::{Listen, Transport, WorkerPool};
pub use client::Client;
pub use codec::Command;
pub use registry::Opened;
pub use server::{NbdConfig, NbdServer, TlsRequired, serve_transport};
pub use stats::{ConnectionInfo, NbdStats, Traffic};
pub use tls::TlsConfig;
