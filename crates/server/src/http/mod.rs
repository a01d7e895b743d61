//! The admin API over HTTP: routes, credentials, and the tasks that serve connections.

mod access;
mod backups;
mod cdp;
mod clients;
mod clock;
mod error;
mod events;
mod features;
mod flatten;
mod framing;
#[cfg(test)]
mod framing_hyper;
mod groups;
mod guests;
mod live;
mod notices;
mod patience;
mod probe;
mod relocation;
mod routes;
mod schedules;
mod scrub;
mod serve;
mod shared;
mod snapshots;
mod streams;
mod targets;
mod tasks;
mod timeline;
mod transfer;
mod trash;
mod views;

pub(crate) use serve::{ApiServer, addresses, serve};
pub(crate) use shared::{MAX_TRANSFERS, NETWORK_THREADS};
pub(crate) use streams::MAX_STREAMS;
