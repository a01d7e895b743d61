//! The daemon: one pool, its NBD and iSCSI targets, its admin API, and the threads that do the
//! pool's background work.
//!
//! The engine is synchronous. An asynchronous runtime exists here for the admin API and for signals
//! only. It calls the engine from threads that may block.
#![forbid(unsafe_code)]

mod access;
mod activity;
mod anchor_tuner;
mod app;
mod atomic_file;
mod audit;
mod backups;
mod certificate;
mod changed;
mod clients;
mod clones;
mod config;
mod convert;
mod daemon;
mod data_directory;
mod descriptors;
mod events;
mod exports_running;
mod file_readers;
mod files;
pub mod freeze;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grouped;
mod groups;
mod health;
mod held_names;
mod host_paths;
mod http;
mod identity;
mod iscsi;
mod last_changes;
mod latency;
mod lineage;
mod listen;
mod live;
mod log_lines;
mod logging;
mod maintenance;
mod metrics;
mod moments;
mod nbd;
mod notices;
mod notify;
mod open_pool;
mod passthrough;
mod periodic;
mod progress;
mod realtime;
mod receivers;
mod recovery;
mod reidentify;
mod same;
mod schedule;
mod scheduler;
mod settings;
mod severities;
mod snapshots;
mod space_trend;
mod stream_places;
mod task_kinds;
mod tasks;
#[cfg(test)]
mod testing;
mod timeline;
mod traces;
mod trash;
mod view_requests;
mod views;
mod web;
mod world;
mod writable_snapshots;

pub use backups::DIRECTORY as BACKUPS;
pub use convert::error_body;
pub use daemon::serve;
pub use file_readers::READER_COMMAND;
pub use files::{DamagedFile, check_files};
pub use open_pool::salvage;
pub use open_pool::verify_data;
pub use reidentify::{Identified, Identity, Reidentified, reidentify, survey_identities};
pub use same::Same;
pub use settings::{Moved, Salvaging, Settings};
