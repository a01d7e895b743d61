//! The NBD target: fixed newstyle negotiation, simple and structured replies, TLS.
//!
//! A connection has one thread, which blocks on its socket. [`server`] accepts the connection,
//! `handshake` and [`options`] negotiate, and `session` serves it. The thread serves everything
//! that one receive brought before it receives again:
//!
//! - Reads that need no disk go straight into the reply buffer.
//! - All writes become one call of the device. Their payloads point into the receive buffer.
//! - One send answers all of them.
//!
//! A few worker threads do what may take long while other requests wait. Those requests are
//! answered out of order.

pub mod codec;
mod conn;
mod exec;
mod handshake;
pub mod meta_context;
mod option_data;
pub mod options;
mod registry;
pub mod server;
mod session;
mod stats;
mod tls;

pub use crate::net::{Listen, Transport, WorkerPool};
pub use codec::Command;
pub use server::{NbdConfig, NbdServer, TlsRequired, serve_transport};
pub use stats::{ConnectionInfo, NbdStats, Traffic};
pub use tls::TlsConfig;
