//! The pool's volumes as exports of the NBD target, and the target's life.

use crate::http::convert;
use hindcast_api::Size;
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind as EngineKind, Result};
use hindcast_target::nbd::{Listen, NbdConfig, NbdServer, NbdStats};
use hindcast_target::{ExportEntry, Exports};
use std::sync::Arc;
use std::time::Duration;

/// A deleted volume's clients get this long to be gone; the answer to the deletion waits for it.
const DISCONNECT_WAIT: Duration = Duration::from_secs(5);

/// Every volume under its own name, and every snapshot under its address, `VOLUME@NAME`; the empty name is the only
/// volume where there is exactly one.
struct PoolExports(Arc<Pool>);

impl Exports for PoolExports {
    fn list(&self) -> Vec<ExportEntry> {
        let mut snapshots = self.0.all_snapshots().into_iter().peekable();
        let mut entries = Vec::new();
        // Both are in the order of volumes' names.
        for v in self.0.volumes() {
            while snapshots.next_if(|s| s.volume < v.name).is_some() {}
            let access = if v.read_only { ", read-only" } else { "" };
            let theirs = std::iter::from_fn(|| snapshots.next_if(|s| s.volume == v.name));
            entries
                .push(ExportEntry { description: format!("{}{access}", Size(v.size)), name: v.name.clone() });
            entries.extend(theirs.map(|s| ExportEntry {
                description: format!("{}, snapshot of {}", Size(s.size), convert::time(s.created)),
                name: format!("{}@{}", s.volume, s.name),
            }));
        }
        entries
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let name = self.canonical(name);
        if name.is_empty() {
            return Err(Error::new(
                EngineKind::NotFound,
                "open the default export: there is not exactly one volume",
            ));
        }
        // No volume has an @ in its name.
        if let Some((volume, snapshot)) = name.split_once('@') {
            return Ok(self.0.open_snapshot(volume, snapshot)?);
        }
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
    pub(crate) fn start(config: &NbdConfig, pool: Arc<Pool>) -> Result<Self> {
        Ok(NbdTarget(NbdServer::start(config.clone(), Arc::new(PoolExports(pool)))?))
    }

    /// Addresses as bound.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let text = |listen| match listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(path) => format!("unix:{}", path.display()),
        };
        self.0.addresses().into_iter().map(text).collect()
    }

    /// Totals since the start.
    pub(crate) fn stats(&self) -> NbdStats {
        self.0.stats()
    }

    /// Ends the connections of an export that is gone, or shows something else now: their devices would only answer with
    /// errors.
    pub(crate) fn disconnect(&self, export: &str) {
        let (connections, all) = self.0.disconnect(export, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(export, connections, all, "NBD connections ended");
        }
    }

    /// Stops accepting, lets requests in flight end until `deadline` has passed, and closes what is left.
    pub(crate) fn stop(&self, deadline: Duration) {
        let broken = self.0.shutdown(deadline);
        if broken > 0 {
            tracing::warn!(connections = broken, "NBD connections were still busy at the deadline");
        }
    }
}
