//! The NBD target of the daemon: the pool's volumes as exports, and the start and stop of the
//! server.

use crate::clones::{CLONE, clone_behind};
use crate::convert;
use crate::iscsi::{NbdAccess, NbdRules};
use crate::latency::Latencies;
use crate::moments::{self, Past};
use hindcast_api::{Moment, Protocol, Size};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::{Difference, Error, ErrorKind as EngineKind, Result, Volume};
use hindcast_target::nbd::{Client, ConnectionInfo, Listen, NbdConfig, NbdServer, NbdStats, Opened};
use hindcast_target::{Changes, ExportEntry, Exports, Repeated};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time that a deletion waits until the clients of the deleted volume are disconnected.
const DISCONNECT_WAIT: Duration = Duration::from_secs(5);

/// The exports of a pool. Each volume has its own name. Snapshots, which can be writable, are
/// listed as `VOLUME@NAME`. Any moment has the name `VOLUME@MOMENT`. The empty name is the only
/// volume if there is exactly one. A volume that NBD does not serve has no exports, also not of its
/// past. A clone that NBD does not serve is not exported at a snapshot's address. The same holds
/// for a client that the access rules of a volume refuse.
#[derive(Clone)]
pub(crate) struct PoolExports {
    pool: Arc<Pool>,
    latencies: Latencies,
    rules: NbdRules,
    /// Whether volumes without access rules are open also on listeners that other machines reach.
    open: bool,
    /// The client that sees the exports. `None` before a client is known: no rule counts.
    client: Option<Arc<Client>>,
}

/// Returns whether other machines reach a listener.
pub(crate) fn is_reachable(listener: &Listen) -> bool {
    match listener {
        Listen::Tcp(address) => !address.ip().to_canonical().is_loopback(),
        Listen::Unix(_) => false,
    }
}

impl Exports for PoolExports {
    fn seen_by(&self, client: &Arc<Client>) -> Option<Box<dyn Exports>> {
        Some(Box::new(self.view(client.clone())))
    }

    fn list(&self) -> Vec<ExportEntry> {
        let access = self.decide();
        let served = |volume: &VolumeInfo| access(volume) >= NbdAccess::ReadOnly;
        let mut snapshots = self.pool.all_snapshots().into_iter().peekable();
        let volumes = self.pool.volumes();
        let by_id: HashMap<String, &VolumeInfo> = volumes.iter().map(|v| (v.uuid.to_string(), v)).collect();
        let mut entries = Vec::new();
        // Both are in the order of volumes' names.
        for v in &volumes {
            while snapshots.next_if(|s| s.volume < v.name).is_some() {}
            if !served(v) {
                continue;
            }
            let theirs = std::iter::from_fn(|| snapshots.next_if(|s| s.volume == v.name));
            entries.push(ExportEntry { description: of_volume(v, access(v)), name: v.name.clone() });
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
        let access = self.access(&name).ok().filter(|access| *access >= NbdAccess::ReadOnly)?;
        match name.split_once('@') {
            None => self.pool.volume(&name).ok().map(|v| of_volume(&v, access)),
            Some((volume, snapshot)) => {
                let snapshot = self.pool.snapshot(volume, snapshot).ok()?;
                Some(of_snapshot(&snapshot, clone_behind(&self.pool, &snapshot).as_ref()))
            }
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let name = self.canonical(name);
        if name.is_empty() {
            // The only volume is there, but not for this client.
            if let Some(only) = self.only_volume(&|volume| self.rules.serves(volume)) {
                self.served(&only)?;
            }
            return Err(Error::new(
                EngineKind::NotFound,
                "open the default export: there must be exactly one volume; name the export",
            ));
        }
        let access = self.access(&name)?;
        self.check(&name, access)?;
        // No volume has an @ in its name.
        if let Some((volume, moment)) = name.split_once('@') {
            return Ok(moments::open(&self.pool, volume, moment, access == NbdAccess::ReadOnly)?);
        }
        let read_only = self.pool.volume(&name)?.read_only || access == NbdAccess::ReadOnly;
        let volume = self.pool.open_volume(&name, read_only)?;
        Ok(self.latencies.timed(Protocol::Nbd, volume.info().uuid, volume))
    }

    fn canonical(&self, name: &str) -> String {
        if name.is_empty() {
            let access = self.decide();
            let seen = |volume: &VolumeInfo| access(volume) >= NbdAccess::ReadOnly;
            return self.only_volume(&seen).unwrap_or_default();
        }
        name.to_owned()
    }

    fn snapshots(&self, name: &str, most: usize) -> Vec<String> {
        let name = self.canonical(name);
        let (volume, own) = name.split_once('@').map_or((name.as_str(), None), |(v, s)| (v, Some(s)));
        let served = self.served(volume).and_then(|_| self.pool.snapshot_names(volume, most));
        let mut names = served.unwrap_or_default();
        // Of itself a snapshot differs only where it can be written to.
        let own = own.and_then(|own| self.pool.snapshot(volume, own).ok());
        if let Some(own) = own.filter(|own| clone_behind(&self.pool, own).is_none()) {
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
        let (from, _) = moments::open_frozen(&self.pool, from_volume, from)?;
        self.served(volume)?;
        let to = match own {
            Some(own) => self.compared(volume, own)?,
            None => self.pool.open_weak(volume)?,
        };
        Ok(Arc::new(Compared(Difference::new(from, to)?)))
    }
}

fn of_volume(volume: &VolumeInfo, access: NbdAccess) -> String {
    let read_only = volume.read_only || access == NbdAccess::ReadOnly;
    format!("{}{}", Size(volume.size), if read_only { ", read-only" } else { "" })
}

/// Returns the description of a snapshot, with the clone at its address.
fn of_snapshot(snapshot: &SnapshotInfo, clone: Option<&VolumeInfo>) -> String {
    let size = clone.map_or(snapshot.size, |clone| clone.size);
    let written = clone.map_or_else(String::new, |clone| format!(", writable: {}", clone.name));
    format!("{}, snapshot of {}{written}", Size(size), convert::time(snapshot.created))
}

impl PoolExports {
    /// Makes the exports of a pool. With `open`, volumes without access rules are open also on
    /// listeners that other machines reach.
    pub(crate) fn new(pool: Arc<Pool>, rules: NbdRules, open: bool, latencies: Latencies) -> PoolExports {
        PoolExports { pool, rules, open, latencies, client: None }
    }

    /// Returns the exports as one client sees them.
    fn view(&self, client: Arc<Client>) -> PoolExports {
        PoolExports { client: Some(client), ..self.clone() }
    }

    /// Returns a function that decides about the client, by the settings of one instant.
    fn decide(&self) -> impl Fn(&VolumeInfo) -> NbdAccess + use<> {
        let reachable = self.client.as_ref().is_some_and(|client| is_reachable(&client.listener));
        self.rules.for_client(self.client.clone(), self.open || !reachable)
    }

    /// Returns the name of the only volume for which `seen` returns true, if there is exactly one.
    fn only_volume(&self, seen: &dyn Fn(&VolumeInfo) -> bool) -> Option<String> {
        let mut volumes = self.pool.volumes();
        volumes.retain(seen);
        match volumes.as_slice() {
            [only] => Some(only.name.clone()),
            _ => None,
        }
    }

    /// Returns the access of the client to an export. Past content needs the access to its volume,
    /// and to the clone at its address.
    fn access(&self, name: &str) -> Result<NbdAccess> {
        let decide = self.decide();
        let (volume, past) = name.split_once('@').map_or((name, None), |(v, past)| (v, Some(past)));
        let access = decide(&self.pool.volume(volume)?);
        let Some(past) = past.filter(|_| access >= NbdAccess::ReadOnly) else { return Ok(access) };
        let clone = match moments::find(&self.pool, volume, past)? {
            Past::Snapshot(snapshot) => clone_behind(&self.pool, &snapshot),
            Past::Moment(_) => None,
        };
        Ok(clone.map_or(access, |clone| access.min(decide(&clone))))
    }

    /// Fails if the access is none. A refused client is logged.
    fn check(&self, name: &str, access: NbdAccess) -> Result<()> {
        static REFUSED: Repeated = Repeated::events();
        match access {
            NbdAccess::ReadOnly | NbdAccess::ReadWrite => Ok(()),
            NbdAccess::Excluded => Err(Error::new(
                EngineKind::NotFound,
                format!("open {name}: NBD does not serve its volume; see `hindcast volume set --nbd`"),
            )),
            NbdAccess::Refused => {
                if let (Some(client), Some(turn)) = (&self.client, REFUSED.turn()) {
                    tracing::info!(
                        event = "client.refused",
                        export = name,
                        client = client.address.map(tracing::field::display),
                        certificate = client.common_names.first(),
                        suppressed = turn.suppressed(),
                        "no access rule allows an NBD client; see `hindcast access allow`"
                    );
                }
                // This kind becomes NBD_REP_ERR_POLICY.
                Err(Error::new(
                    EngineKind::Conflict,
                    format!("open {name}: no access rule allows this client"),
                ))
            }
        }
    }

    /// Returns a volume, if NBD serves it to the client.
    fn served(&self, name: &str) -> Result<VolumeInfo> {
        let volume = self.pool.volume(name)?;
        self.check(name, self.decide()(&volume))?;
        Ok(volume)
    }

    /// Returns whether a connection may go on with the export that it opened.
    fn keeps(&self, opened: &Opened<'_>) -> bool {
        match self.view(Arc::new(opened.client.clone())).access(opened.export) {
            Ok(NbdAccess::ReadWrite) => true,
            Ok(NbdAccess::ReadOnly) => opened.read_only,
            Ok(NbdAccess::Excluded | NbdAccess::Refused) | Err(_) => false,
        }
    }

    /// Opens the content that a client of `VOLUME@TEXT` sees. It refuses text that means other
    /// content at each use.
    fn compared(&self, volume: &str, text: &str) -> Result<Arc<Volume>> {
        match moments::find(&self.pool, volume, text)? {
            Past::Snapshot(snapshot) => match clone_behind(&self.pool, &snapshot) {
                Some(clone) => {
                    self.served(&clone.name)?;
                    self.pool.open_weak(&clone.name)
                }
                None => self.pool.open_snapshot(volume, &snapshot.name),
            },
            Past::Moment(_) if matches!(text.parse(), Ok(Moment::Ago(_))) => Err(Error::new(
                EngineKind::Unsupported,
                format!(
                    "compare {volume}@{text}: a time before now means another moment at each use; name a fixed moment"
                ),
            )),
            Past::Moment(moment) => self.pool.open_moment(volume, &moment),
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
pub(crate) struct NbdTarget {
    server: NbdServer,
    exports: PoolExports,
    /// Whether the server verifies certificates of clients.
    verifies: bool,
}

impl NbdTarget {
    /// Starts the server.
    pub(crate) fn start(config: &NbdConfig, exports: PoolExports) -> Result<Self> {
        let open = exports.open;
        let server = NbdServer::start(config.clone(), Arc::new(exports.clone()))?;
        for listener in server.addresses().into_iter().filter(is_reachable) {
            let Listen::Tcp(address) = listener else { continue };
            match open {
                true => tracing::warn!(
                    %address,
                    "every NBD client that reaches this address can use all volumes without access rules (--nbd-open)"
                ),
                false => tracing::info!(
                    %address,
                    "an NBD client at this address needs an access rule: hindcast access allow"
                ),
            }
        }
        let verifies = config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        Ok(NbdTarget { server, exports, verifies })
    }

    /// Returns whether volumes without access rules are open on listeners that other machines
    /// reach.
    pub(crate) fn is_open(&self) -> bool {
        self.exports.open
    }

    /// Returns the addresses that other machines reach.
    pub(crate) fn reachable(&self) -> Vec<String> {
        let reachable = self.server.addresses().into_iter().filter(is_reachable);
        reachable
            .filter_map(|l| if let Listen::Tcp(address) = l { Some(address.to_string()) } else { None })
            .collect()
    }

    /// Returns whether the server verifies certificates of clients.
    pub(crate) fn verifies_clients(&self) -> bool {
        self.verifies
    }

    /// Applies the current access rules to the existing connections. Before this returns, the
    /// connections that they no longer allow have ended.
    pub(crate) fn enforce(&self) {
        let lost = |opened: &Opened<'_>| !self.exports.keeps(opened);
        let (connections, all) = self.server.end_clients(&lost, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(
                event = "client.refused",
                connections,
                all,
                "NBD connections ended: no access rule allows them any more"
            );
        }
    }

    /// Gives the connections of a renamed volume, and of its past, their new names. The connections
    /// stay.
    pub(crate) fn volume_renamed(&self, old: &str, new: &str) {
        self.server.rename(&|export| match export.split_once('@') {
            None => (export == old).then(|| new.to_owned()),
            Some((volume, past)) => (volume == old).then(|| format!("{new}@{past}")),
        });
    }

    /// Gives the connections of a renamed snapshot its new name. The connections stay.
    pub(crate) fn snapshot_renamed(&self, volume: &str, old: &str, new: &str) {
        let old = format!("{volume}@{old}");
        self.server.rename(&|export| (export == old).then(|| format!("{volume}@{new}")));
    }

    /// Returns the bound addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let text = |listen| match listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(path) => format!("unix:{}", path.display()),
        };
        self.server.addresses().into_iter().map(text).collect()
    }

    /// Returns totals since the start.
    pub(crate) fn stats(&self) -> NbdStats {
        self.server.stats()
    }

    /// Returns the open connections.
    pub(crate) fn connections(&self) -> Vec<ConnectionInfo> {
        self.server.connections()
    }

    /// Ends one connection. Returns false if there is none with this number.
    pub(crate) fn end(&self, id: u64) -> bool {
        self.server.end(id, DISCONNECT_WAIT)
    }

    /// Ends the connections of an export that was deleted or whose content changed. Further
    /// requests on them would only fail.
    pub(crate) fn disconnect(&self, export: &str) {
        let (connections, all) = self.server.disconnect(export, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(event = "client.ended", export, connections, all, "NBD connections ended");
        }
    }

    /// Ends the connections of a volume, of its snapshots and of its moments.
    pub(crate) fn disconnect_volume(&self, volume: &str) {
        let of = |name: &str| name.split_once('@').map_or(name, |(of, _)| of) == volume;
        let (connections, all) = self.server.disconnect_all(&of, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(event = "client.ended", volume, connections, all, "NBD connections ended");
        }
    }

    /// Stops accepting connections. Requests in flight have until `deadline` to end. Then the
    /// server closes the remaining connections.
    pub(crate) fn stop(&self, deadline: Duration) {
        let broken = self.server.shutdown(deadline);
        if broken > 0 {
            tracing::warn!(connections = broken, "NBD connections were still busy at the deadline");
        }
    }
}

#[cfg(test)]
mod tests;
