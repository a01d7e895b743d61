//! The daemon: one pool, its NBD and iSCSI targets, its admin API, and the threads that do the
//! pool's background work.
//!
//! The engine is synchronous. An asynchronous runtime exists here for the admin API and for signals
//! only. It calls the engine from threads that may block.
#![forbid(unsafe_code)]

mod backups;
mod config;
mod cost;
mod daemon;
mod descriptors;
mod durable;
mod files;
pub mod freeze;
mod health;
mod host_paths;
mod http;
mod iscsi;
mod listen;
mod logging;
mod maintenance;
mod metrics;
mod moments;
mod nbd;
mod notify;
mod passthrough;
mod priority;
mod recovery;
mod reidentify;
mod schedule;
mod settings;
mod snapshots;
mod storage;
#[cfg(test)]
mod testing;
mod world;
mod writable;

pub use backups::DIRECTORY as BACKUPS;
pub use daemon::serve;
pub use files::{DamagedFile, check_files};
pub use http::error_body;
pub use reidentify::{Identified, Identity, Reidentified, reidentify, survey_identities};
pub use settings::{Moved, Settings};
pub use storage::{Salvaging, salvage};
