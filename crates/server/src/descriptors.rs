//! File descriptors: the server reserves those that the pool needs, and clients share the rest.
//!
//! A client that opens connections must not take the descriptors that the pool needs to keep its
//! promises. So the server lowers the limits of connections until they fit into the descriptors
//! beyond the pool's own.

use crate::config::Config;
use crate::convert::error_body;
use crate::{data_directory, iscsi};
use hindcast_api::{ErrorBody, ErrorKind, Limits};
use hindcast_engine::disk::allow_many_files;
use hindcast_engine::pool::Pool;
use hindcast_target::admission::descriptors;
use hindcast_target::iscsi::IscsiConfig;
use hindcast_target::nbd::NbdConfig;

/// Number of descriptors for the segments of histories that a batch writes at once, for their
/// directories, and for its writes in flight.
const BATCH: u64 = 72;
/// Number of descriptors for a physical volume: one for the page cache, and one past it.
const OF_PV: u64 = 2;
/// Number of descriptors for listeners, the log, saved files, hooks, certificates, and images below
/// volumes.
const SERVER: u64 = 64;
/// Minimum number of descriptors for clients. The server does not start with fewer.
const LEAST_CLIENTS: u64 = 80;
/// Number of connections of the admin API, if there are enough descriptors.
const API: usize = 128;

/// Maximum numbers of connections that are served at once. Pending and closing connections do not
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) nbd: usize,
    pub(crate) iscsi: usize,
    pub(crate) api: usize,
}

impl Connections {
    /// Returns the configurations of the targets with these limits. The limits of one address
    /// shrink in proportion.
    pub(crate) fn clip(&self, config: &Config) -> (NbdConfig, IscsiConfig) {
        let scaled = |part: usize, now: usize, before: usize| (part * now).div_ceil(before.max(1));
        let (mut nbd, mut iscsi) = (config.nbd.clone(), config.iscsi.clone());
        nbd.max_connections_per_address =
            scaled(nbd.max_connections_per_address, self.nbd, nbd.max_connections);
        nbd.max_connections = self.nbd;
        iscsi.max_connections_per_address =
            scaled(iscsi.max_connections_per_address, self.iscsi, iscsi.max_connections);
        iscsi.max_connections = self.iscsi;
        // A session has a connection.
        let sessions = iscsi.max_sessions.min(self.iscsi);
        iscsi.max_sessions_per_address = scaled(iscsi.max_sessions_per_address, sessions, iscsi.max_sessions);
        iscsi.max_sessions = sessions;
        (nbd, iscsi)
    }
}

/// Returns limits of connections that leave the open pool its descriptors.
pub(crate) fn connections(config: &Config, pool: &Pool) -> Result<(Connections, Limits), ErrorBody> {
    let shape = pool.info().config;
    let journal = shape.journal_size / shape.segment_size;
    // A file behind a LUN, and an image below a volume, is open while it is used.
    let settings = data_directory::settings_of(pool, &config.data);
    let (_, files) = iscsi::names_and_files(&settings, &[]).map_err(error_body)?;
    let others = files.len() as u64 + pool.volumes().iter().filter(|v| v.image.is_some()).count() as u64;
    let engine =
        journal + pool.pvs().len() as u64 * OF_PV + config.options.open_files as u64 + others + BATCH;
    let wanted =
        Connections { nbd: config.nbd.max_connections, iscsi: config.iscsi.max_connections, api: API };
    let (limit, reserve) = (allow_many_files(), engine + SERVER);
    let granted =
        share(limit, reserve, wanted).map_err(|message| ErrorBody { kind: ErrorKind::NoSpace, message })?;
    let Connections { nbd, iscsi, api } = granted;
    match granted == wanted {
        true => tracing::info!(
            open_files = limit,
            reserve,
            nbd,
            iscsi,
            api,
            "limits of open files and connections"
        ),
        false => tracing::warn!(
            open_files = limit,
            reserve,
            nbd,
            iscsi,
            api,
            "the limit of open files is too low: the server accepts fewer connections than configured; raise LimitNOFILE"
        ),
    }
    let told = |n: usize| n as u64;
    let limits =
        Limits { open_files: limit, reserved: reserve, nbd: told(nbd), iscsi: told(iscsi), api: told(api) };
    Ok((granted, limits))
}

/// Divides the descriptors of `limit` beyond `reserve` among the kinds of connections.
fn share(limit: u64, reserve: u64, wanted: Connections) -> Result<Connections, String> {
    let left = limit.saturating_sub(reserve);
    if left < LEAST_CLIENTS {
        return Err(format!(
            "start with a limit of {limit} open files: the pool needs {reserve} and clients need {LEAST_CLIENTS}; \
             raise the limit (LimitNOFILE, ulimit -n) to {} or more",
            reserve + LEAST_CLIENTS
        ));
    }
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    // The API is how an operator sees what is wrong.
    let api = within(wanted.api, left / 4);
    let rest = left - descriptors(api);
    let nbd = within(wanted.nbd, rest.saturating_sub(descriptors(wanted.iscsi)).max(rest / 2));
    let iscsi = within(wanted.iscsi, rest - descriptors(nbd));
    Ok(Connections { nbd, iscsi, api })
}

/// Returns the largest number of connections, up to `wanted`, for which `left` descriptors are
/// enough.
fn within(wanted: usize, left: usize) -> usize {
    let mut granted = wanted.min(left);
    while granted > 1 && descriptors(granted) > left {
        granted -= (descriptors(granted) - left).div_ceil(2).min(granted - 1);
    }
    granted
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Connections = Connections { nbd: 1024, iscsi: 1024, api: 128 };

    #[test]
    fn the_pool_comes_first() {
        assert_eq!(share(524_288, 700, WANTED), Ok(WANTED));
        assert_eq!(share(u64::MAX, 700, WANTED), Ok(WANTED));
        let clipped = share(1024, 324, WANTED).unwrap();
        assert_eq!(clipped, Connections { nbd: 175, iscsi: 176, api: 117 });
        let few = Connections { iscsi: 10, ..WANTED };
        assert_eq!(share(1024, 324, few), Ok(Connections { nbd: 339, iscsi: 10, api: 117 }));
        for limit in 0..6000 {
            match share(limit, 324, WANTED) {
                Ok(c) => {
                    assert!(c.nbd > 0 && c.iscsi > 0 && c.api > 0);
                    let needed: usize = [c.nbd, c.iscsi, c.api].into_iter().map(descriptors).sum();
                    assert!(needed as u64 + 324 <= limit, "{limit}: {c:?}");
                }
                Err(message) => assert!(limit < 404 && message.contains("404 or more"), "{message}"),
            }
        }
    }
}
