//! The pool's volumes as exports of the NBD target, and the target's life.

use crate::config::Config;
use crate::listen::Address;
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind as EngineKind, Result};
use hindcast_target::nbd::{NbdAddress, NbdConfig, NbdServer, NbdTls};
use hindcast_target::{ExportEntry, Exports};
use std::sync::Arc;
use std::time::Duration;

/// Every volume under its own name; the empty name is the only volume where there is exactly one.
struct PoolExports(Arc<Pool>);

impl Exports for PoolExports {
    fn list(&self) -> Vec<ExportEntry> {
        self.0
            .volumes()
            .into_iter()
            .map(|v| ExportEntry {
                description: format!("{}{}", Size(v.size), if v.read_only { ", read-only" } else { "" }),
                name: v.name,
            })
            .collect()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let name = self.canonical(name);
        if name.is_empty() {
            return Err(Error::new(
                EngineKind::NotFound,
                "open the default export: there is not exactly one volume",
            ));
        }
        // `vol@moment` names the past of a volume, which nobody keeps yet; no volume has an @ in its name.
        let read_only = self.0.volume(&name)?.read_only;
        Ok(self.0.open_volume(&name, read_only)?)
    }

    fn canonical(&self, name: &str) -> String {
        if name.is_empty()
            && let [only] = self.0.volumes().as_slice()
        {
            return only.name.clone();
        }
        name.to_owned()
    }
}

/// The running target; one that listens nowhere where `--nbd none` was said.
pub(crate) struct NbdTarget(NbdServer);

impl NbdTarget {
    pub(crate) fn start(config: &Config, pool: Arc<Pool>) -> std::result::Result<Self, ErrorBody> {
        let listen = config.nbd.iter().map(|address| match address {
            Address::Tcp(address) => NbdAddress::Tcp(address.clone()),
            Address::Unix(path) => NbdAddress::Unix(path.clone()),
        });
        let tls = config.nbd_tls.as_ref().map(|files| NbdTls {
            cert: files.cert.clone(),
            key: files.key.clone(),
            ca: files.ca.clone(),
            required: files.required,
        });
        let nbd = NbdConfig {
            listen: listen.collect(),
            tls,
            max_connections: config.nbd_max_connections as usize,
        };
        let server = NbdServer::spawn(nbd, Arc::new(PoolExports(pool))).map_err(|e| ErrorBody {
            kind: if e.kind() == std::io::ErrorKind::AddrInUse {
                ErrorKind::Busy
            } else {
                ErrorKind::Io
            },
            message: format!("start the NBD target: {e}"),
        })?;
        Ok(NbdTarget(server))
    }

    /// Addresses as bound.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.0.addresses()
    }

    /// Open connections.
    pub(crate) fn connections(&self) -> u64 {
        self.0.connections()
    }

    /// Ends the connections of a volume that is gone.
    pub(crate) fn disconnect(&self, volume: &str) {
        self.0.disconnect(volume);
    }

    /// Stops accepting, lets requests in flight end until `deadline` has passed, and closes what is left.
    pub(crate) fn stop(&self, deadline: Duration) {
        self.0.shutdown(deadline);
    }
}
