//! The admin API over HTTP: routes, credentials, and the tasks that serve connections.

mod access;
mod audit;
mod auditing;
mod backups;
mod by_body;
mod caller;
mod cdp;
mod clients;
mod clock;
mod connection;
mod cookie;
mod error;
mod features;
mod flatten;
mod framing;
#[cfg(test)]
mod framing_hyper;
mod groups;
mod guard;
mod guests;
mod notices;
mod origin;
mod patience;
mod policy;
mod probe;
mod relocation;
mod roles;
mod routes;
mod schedules;
mod scrub;
mod serve;
mod sessions;
mod shared;
mod snapshots;
mod targets;
mod tokens;
mod transfer;
mod trash;
mod users;

pub(crate) use serve::{ApiServer, addresses, serve};
pub(crate) use shared::{MAX_TRANSFERS, NETWORK_THREADS};
