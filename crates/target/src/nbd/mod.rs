//! The NBD target: fixed newstyle negotiation, simple and structured replies, TLS.
//!
//! A connection is one thread that blocks on its socket ([`server`] accepts, `handshake` and [`options`] negotiate,
//! `session` serves). Everything that one receive brought is served before the next: reads that need no disk go straight
//! into the reply buffer, all writes become one call of the device with payloads that point into the receive buffer,
//! and one send answers. What may take long while others wait goes to a few worker threads and is answered out of
//! order.

pub mod codec;
mod conn;
mod exec;
mod handshake;
pub mod meta_context;
pub mod options;
mod registry;
pub mod server;
mod session;
mod stats;
mod tls;

pub use crate::net::{Listen, Pool, Transport};
pub use codec::Command;
pub use server::{NbdConfig, NbdServer, TlsRequired, serve_transport};
pub use stats::{ConnectionInfo, NbdStats, Traffic};
pub use tls::TlsConfig;
