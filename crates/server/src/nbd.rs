//! The NBD target of the daemon: the pool's volumes as exports, and the start and stop of the
//! server.

use crate::clones::{CLONE, clone_behind};
use crate::convert;
use crate::iscsi::NbdRules;
use crate::moments::{self, Past};
use hindcast_api::{Moment, Size};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::{Difference, Error, ErrorKind as EngineKind, Result, Volume};
use hindcast_target::nbd::{ConnectionInfo, Listen, NbdConfig, NbdServer, NbdStats};
use hindcast_target::{Changes, ExportEntry, Exports};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time that a deletion waits until the clients of the deleted volume are disconnected.
const DISCONNECT_WAIT: Duration = Duration::from_secs(5);

/// The exports of a pool. Each volume has its own name. Snapshots, which can be writable, are
/// listed as `VOLUME@NAME`. Any moment has the name `VOLUME@MOMENT`. The empty name is the only
/// volume if there is exactly one. A volume that NBD does not serve has no exports, also not of its
/// past. A clone that NBD does not serve is not exported at a snapshot's address.
struct PoolExports(Arc<Pool>, NbdRules);

impl Exports for PoolExports {
    fn list(&self) -> Vec<ExportEntry> {
        let served = self.1.all();
        let mut snapshots = self.0.all_snapshots().into_iter().peekable();
        let volumes = self.0.volumes();
        let by_id: HashMap<String, &VolumeInfo> = volumes.iter().map(|v| (v.uuid.to_string(), v)).collect();
        let mut entries = Vec::new();
        // Both are in the order of volumes' names.
        for v in &volumes {
            while snapshots.next_if(|s| s.volume < v.name).is_some() {}
            if !served(v) {
                continue;
            }
            let theirs = std::iter::from_fn(|| snapshots.next_if(|s| s.volume == v.name));
            entries.push(ExportEntry { description: of_volume(v), name: v.name.clone() });
            entries.extend(theirs.filter_map(|s| {
                let clone = s.labels.get(CLONE).and_then(|id| by_id.get(id)).copied();
                if clone.is_some_and(|clone| !served(clone)) {
                    return None;
                }
                let name = format!("{}@{}", s.volume, s.name);
                Some(ExportEntry { description: of_snapshot(&s, clone), name })
            }));
        }
        entries
    }

    /// Returns the description of one export without making the whole list. Tools that list exports
    /// ask for the description of each.
    fn describe(&self, name: &str) -> Option<String> {
        let name = self.canonical(name);
        match name.split_once('@') {
            None => self.0.volume(&name).ok().map(|v| of_volume(&v)),
            Some((volume, snapshot)) => {
                let snapshot = self.0.snapshot(volume, snapshot).ok()?;
                Some(of_snapshot(&snapshot, clone_behind(&self.0, &snapshot).as_ref()))
            }
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let name = self.canonical(name);
        if name.is_empty() {
            return Err(Error::new(
                EngineKind::NotFound,
                "open the default export: there must be exactly one volume; name the export",
            ));
        }
        // No volume has an @ in its name.
        if let Some((volume, moment)) = name.split_once('@') {
            self.served_past(volume, moment)?;
            return Ok(moments::open(&self.0, volume, moment)?);
        }
        let read_only = self.served(&name)?.read_only;
        Ok(self.0.open_volume(&name, read_only)?)
    }

    fn canonical(&self, name: &str) -> String {
        if name.is_empty() {
            let mut served = self.0.volumes();
            served.retain(self.1.all());
            if let [only] = served.as_slice() {
                return only.name.clone();
            }
        }
        name.to_owned()
    }

    fn snapshots(&self, name: &str, most: usize) -> Vec<String> {
        let name = self.canonical(name);
        let (volume, own) = name.split_once('@').map_or((name.as_str(), None), |(v, s)| (v, Some(s)));
        let served = self.served(volume).and_then(|_| self.0.snapshot_names(volume, most));
        let mut names = served.unwrap_or_default();
        // Of itself a snapshot differs only where it can be written to.
        let own = own.and_then(|own| self.0.snapshot(volume, own).ok());
        if let Some(own) = own.filter(|own| clone_behind(&self.0, own).is_none()) {
            names.retain(|name| *name != own.name);
        }
        names
    }

    /// `past` is the text after the `@` of a snapshot or moment of the same volume, or the address
    /// of a snapshot or moment of any volume. For example, a clone differs from its snapshot in
    /// what was written to the clone.
    fn changed_since(&self, name: &str, past: &str) -> Result<Arc<dyn Changes>> {
        let name = self.canonical(name);
        let (volume, own) = name.split_once('@').map_or((name.as_str(), None), |(v, s)| (v, Some(s)));
        let (from_volume, from) = past.split_once('@').unwrap_or((volume, past));
        self.served(from_volume)?;
        let (from, _) = moments::open_frozen(&self.0, from_volume, from)?;
        self.served(volume)?;
        let to = match own {
            Some(own) => self.compared(volume, own)?,
            None => self.0.open_weak(volume)?,
        };
        Ok(Arc::new(Compared(Difference::new(from, to)?)))
    }
}

fn of_volume(volume: &VolumeInfo) -> String {
    let access = if volume.read_only { ", read-only" } else { "" };
    format!("{}{access}", Size(volume.size))
}

/// Returns the description of a snapshot, with the clone at its address.
fn of_snapshot(snapshot: &SnapshotInfo, clone: Option<&VolumeInfo>) -> String {
    let size = clone.map_or(snapshot.size, |clone| clone.size);
    let written = clone.map_or_else(String::new, |clone| format!(", writable: {}", clone.name));
    format!("{}, snapshot of {}{written}", Size(size), convert::time(snapshot.created))
}

impl PoolExports {
    /// Returns a volume, if NBD serves it.
    fn served(&self, name: &str) -> Result<VolumeInfo> {
        let volume = self.0.volume(name)?;
        match self.1.serves(&volume) {
            true => Ok(volume),
            false => Err(Error::new(
                EngineKind::NotFound,
                format!("open volume {name}: NBD does not serve it; see `hindcast volume set {name} --nbd`"),
            )),
        }
    }

    /// Refuses past content if NBD does not serve its volume, or the clone at its address.
    fn served_past(&self, volume: &str, moment: &str) -> Result<()> {
        self.served(volume)?;
        match moments::find(&self.0, volume, moment)? {
            Past::Snapshot(snapshot) => match clone_behind(&self.0, &snapshot) {
                Some(clone) => self.served(&clone.name).map(drop),
                None => Ok(()),
            },
            Past::Moment(_) => Ok(()),
        }
    }

    /// Opens the content that a client of `VOLUME@TEXT` sees. It refuses text that means other
    /// content at each use.
    fn compared(&self, volume: &str, text: &str) -> Result<Arc<Volume>> {
        match moments::find(&self.0, volume, text)? {
            Past::Snapshot(snapshot) => match clone_behind(&self.0, &snapshot) {
                Some(clone) => {
                    self.served(&clone.name)?;
                    self.0.open_weak(&clone.name)
                }
                None => self.0.open_snapshot(volume, &snapshot.name),
            },
            Past::Moment(_) if matches!(text.parse(), Ok(Moment::Ago(_))) => Err(Error::new(
                EngineKind::Unsupported,
                format!(
                    "compare {volume}@{text}: a time before now means another moment at each use; name a fixed moment"
                ),
            )),
            Past::Moment(moment) => self.0.open_moment(volume, &moment),
        }
    }
}

struct Compared(Difference);

impl Changes for Compared {
    fn runs(&self, offset: u64, len: u64, max_runs: usize) -> Result<Vec<(u64, bool)>> {
        Ok(self.0.runs(offset, len, max_runs)?.into_iter().map(|run| (run.length, run.changed)).collect())
    }

    fn of(&self) -> Uuid {
        let [_, to] = self.0.of();
        to
    }
}

/// The running NBD target. With `--nbd none` it has no listeners.
pub(crate) struct NbdTarget(NbdServer);

impl NbdTarget {
    pub(crate) fn start(config: &NbdConfig, pool: Arc<Pool>, rules: NbdRules) -> Result<Self> {
        Ok(NbdTarget(NbdServer::start(config.clone(), Arc::new(PoolExports(pool, rules)))?))
    }

    /// Returns the bound addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let text = |listen| match listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(path) => format!("unix:{}", path.display()),
        };
        self.0.addresses().into_iter().map(text).collect()
    }

    /// Returns totals since the start.
    pub(crate) fn stats(&self) -> NbdStats {
        self.0.stats()
    }

    /// Returns the open connections.
    pub(crate) fn connections(&self) -> Vec<ConnectionInfo> {
        self.0.connections()
    }

    /// Ends one connection. Returns false if there is none with this number.
    pub(crate) fn end(&self, id: u64) -> bool {
        self.0.end(id, DISCONNECT_WAIT)
    }

    /// Ends the connections of an export that was deleted or whose content changed. Further
    /// requests on them would only fail.
    pub(crate) fn disconnect(&self, export: &str) {
        let (connections, all) = self.0.disconnect(export, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(export, connections, all, "NBD connections ended");
        }
    }

    /// Ends the connections of a volume, of its snapshots and of its moments.
    pub(crate) fn disconnect_volume(&self, volume: &str) {
        let of = |name: &str| name.split_once('@').map_or(name, |(of, _)| of) == volume;
        let (connections, all) = self.0.disconnect_all(&of, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(volume, connections, all, "NBD connections ended");
        }
    }

    /// Stops accepting connections. Requests in flight have until `deadline` to end. Then the
    /// server closes the remaining connections.
    pub(crate) fn stop(&self, deadline: Duration) {
        let broken = self.0.shutdown(deadline);
        if broken > 0 {
            tracing::warn!(connections = broken, "NBD connections were still busy at the deadline");
        }
    }
}
