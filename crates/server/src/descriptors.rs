//! File descriptors: the pool's are set aside, and clients share what is left.
//!
//! A client that opens connections must not take the descriptors that the pool needs to carry out
//! what it has promised. So the limits of connections are clipped to what the process may have open
//! beyond the pool's own files.

use crate::config::Config;
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::disk::allow_many_files;
use hindcast_engine::pool::Pool;

/// Segments of histories that a batch writes to at once, and its directories.
const BATCH: u64 = 64;
/// Listeners, the log, saved files, hooks, certificates, and images below volumes.
const SERVER: u64 = 64;
/// A server that could not serve so many clients does not start.
const LEAST_CLIENTS: u64 = 32;
/// Connections of the admin API, if there are enough descriptors.
const API: usize = 128;

/// Connections that may be open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) nbd: usize,
    pub(crate) iscsi: usize,
    pub(crate) api: usize,
}

/// Limits of connections that leave the open pool its descriptors.
pub(crate) fn connections(config: &Config, pool: &Pool) -> Result<Connections, ErrorBody> {
    let shape = pool.info().config;
    let journal = shape.journal_size / shape.segment_size;
    let pool = journal + pool.pvs().len() as u64 + config.options.open_files as u64 + BATCH;
    let wanted =
        Connections { nbd: config.nbd.max_connections, iscsi: config.iscsi.max_connections, api: API };
    let limit = allow_many_files();
    let granted = share(limit, pool + SERVER, wanted)
        .map_err(|message| ErrorBody { kind: ErrorKind::NoSpace, message })?;
    if granted != wanted {
        tracing::warn!(
            limit,
            nbd = granted.nbd,
            iscsi = granted.iscsi,
            api = granted.api,
            "the limit of open files is low: fewer connections are served than configured (raise LimitNOFILE)"
        );
    }
    Ok(granted)
}

/// Shares what a limit leaves beyond `reserve`.
fn share(limit: u64, reserve: u64, wanted: Connections) -> Result<Connections, String> {
    let left = limit.saturating_sub(reserve);
    if left < LEAST_CLIENTS {
        return Err(format!(
            "start with a limit of {limit} open files: the pool needs {reserve} and clients {LEAST_CLIENTS}; \
             raise the limit (LimitNOFILE, ulimit -n) to {} or more",
            reserve + LEAST_CLIENTS
        ));
    }
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    // The API is how an operator sees what is wrong.
    let api = wanted.api.min(left / 4);
    let rest = left - api;
    let nbd = wanted.nbd.min(rest.saturating_sub(wanted.iscsi).max(rest / 2));
    let iscsi = wanted.iscsi.min(rest - nbd);
    Ok(Connections { nbd, iscsi, api })
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
        assert_eq!(clipped, Connections { nbd: 286, iscsi: 286, api: 128 });
        let few = Connections { iscsi: 10, ..WANTED };
        assert_eq!(share(1024, 324, few), Ok(Connections { nbd: 562, iscsi: 10, api: 128 }));
        for limit in 0..3000 {
            match share(limit, 324, WANTED) {
                Ok(c) => {
                    assert!(c.nbd > 0 && c.iscsi > 0 && c.api > 0);
                    assert!((c.nbd + c.iscsi + c.api) as u64 + 324 <= limit, "{limit}: {c:?}");
                }
                Err(message) => assert!(limit < 356 && message.contains("356 or more"), "{message}"),
            }
        }
    }
}
