//! The admin API over HTTP: routes, credentials, and the tasks that serve connections.

mod access;
mod answers;
mod audit;
mod auditing;
mod backups;
mod by_body;
mod caller;
mod cdp;
mod clients;
mod clock;
mod connection;
mod console;
mod cookie;
mod error;
mod events;
mod features;
mod flatten;
mod framing;
#[cfg(test)]
mod framing_hyper;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod groups;
mod guard;
mod guests;
mod live;
mod notices;
mod origin;
mod pacing;
mod patience;
mod policy;
mod probe;
mod relocation;
mod roles;
mod room;
mod routes;
mod schedules;
mod scrub;
mod serve;
mod sessions;
mod shared;
mod snapshots;
mod streams;
mod targets;
mod tasks;
mod timeline;
mod tokens;
mod transfer;
mod trash;
mod users;
mod views;
mod withhold;
mod written;

pub(crate) use serve::{ApiServer, addresses, serve};
pub(crate) use shared::{MAX_TRANSFERS, NETWORK_THREADS};
