//! Tests of the built program from outside: every command, and the server as a process.
//!
//! They are one crate, so that they are linked once.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

mod audit;
mod check;
mod commands;
mod contexts;
mod daemon;
mod events;
mod faults;
mod files;
mod groups;
mod guards;
mod identity;
mod iscsi;
mod layouts;
mod limits;
mod listing;
mod moments;
mod over_tls;
mod pages;
mod protection;
mod reidentify;
mod restore;
mod scopes;
mod server;
mod stats;
mod targets;
mod tasks;
mod tls;
mod trace;
mod transport;
mod trash;
mod views;
