//! The running target ([`IscsiTarget`]): its start and stop, and the changes of volumes that
//! initiators have to learn of.

use super::exports::{self, Exports};
use super::store::{self, Store};
use crate::periodic::Worker;
use hindcast_engine::pool::{Pool, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::{Otherwise, Party};
use hindcast_target::iscsi::{IscsiConfig, IscsiServer, IscsiStats};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Sessions that have to end get this long; the answer to the request that ends them waits for it.
const DISCONNECT_WAIT: Duration = Duration::from_secs(5);
/// Between looks at the length of exported files, and at the space that is left.
const LOOK: Duration = Duration::from_secs(5);

/// The running target; one that listens nowhere where `--iscsi none` was said.
pub(crate) struct IscsiTarget {
    pub(super) exports: Arc<Exports>,
    pub(super) server: IscsiServer,
    /// Where the pool is: what lies there is not exported as a file.
    pub(super) data: PathBuf,
    /// One change of targets at a time, also across the pool and the registry.
    pub(super) changing: Mutex<()>,
    /// Polls for changes that no event reports.
    _watch: Worker,
}

impl IscsiTarget {
    pub(crate) fn start(config: &IscsiConfig, pool: Arc<Pool>, data: &Path) -> Result<Self> {
        let dir = crate::data_directory::settings_of(&pool, data);
        let store = Store::open(store::file(&dir))?;
        let otherwise = Otherwise::of(config.portals.iter().map(|p| &p.listen));
        let mut groups: Vec<u16> = config.portals.iter().map(|p| p.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let exports = Exports::new(pool, dir, store, otherwise, groups);
        exports.begin()?;
        let server = IscsiServer::start(config.clone(), exports.clone())?;
        let watched = exports.clone();
        let watch = Worker::start("iscsi-watch", LOOK, move || watched.look_around())
            .map_err(|e| Error::io("start a thread", e))?;
        let data = std::fs::canonicalize(data).map_err(|e| Error::io("find the data directory", e))?;
        Ok(IscsiTarget { exports, server, data, changing: Mutex::new(()), _watch: watch })
    }

    /// Portals as bound: the address, and the portal group where it is not 1.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let text = |portal: hindcast_target::iscsi::Portal| match portal.group {
            1 => portal.listen.to_string(),
            group => format!("{}/{group}", portal.listen),
        };
        self.server.portals().into_iter().map(text).collect()
    }

    /// Totals since the start.
    pub(crate) fn stats(&self) -> IscsiStats {
        self.server.stats()
    }

    /// Whether an initiator is logged in to a snapshot's own target that shows this snapshot, or
    /// this clone of it.
    pub(crate) fn is_past_in_use(&self, shown: &Uuid) -> bool {
        self.exports.is_past_in_use(shown)
    }

    /// Changes a volume by `change`, and tells initiators what they should know.
    pub(crate) fn change_volume(
        &self,
        name: &str,
        change: impl FnOnce(&Arc<Pool>) -> Result<VolumeInfo>,
    ) -> Result<VolumeInfo> {
        let before = self.exports.pool.volume(name)?;
        let after = change(&self.exports.pool)?;
        let access = before.read_only != after.read_only;
        self.exports.volume_changed(&after.uuid, before.size != after.size, access);
        Ok(after)
    }

    /// Deletes a volume. Without `force` this is refused while the volume is mapped explicitly, or
    /// an initiator uses it.
    pub(crate) fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let id = self.exports.pool.volume(name)?.uuid;
        self.exports.set_going(&id, true);
        let deleted = self.delete_unless_used(name, &id, force);
        self.exports.set_going(&id, false);
        deleted
    }

    fn delete_unless_used(&self, name: &str, id: &Uuid, force: bool) -> Result<()> {
        if !force {
            self.check_unused(name, id)?;
        }
        let snapshots: Vec<Uuid> = self.exports.pool.snapshots(name)?.iter().map(|s| s.uuid).collect();
        self.exports.pool.delete_volume(name, force)?;
        self.forget(|uuid| uuid == id || snapshots.contains(uuid));
        for target in snapshots.iter().chain([id]).flat_map(|id| self.exports.forget_unit(id)) {
            self.disconnect(&target);
        }
        Ok(())
    }

    /// Why a volume can't be deleted without force.
    fn check_unused(&self, name: &str, id: &Uuid) -> Result<()> {
        let registry = self.exports.store.get();
        if let Some((target, lun)) = registry.mappings(id).first() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "delete volume {name}: it is LUN {lun} of {target}; remove the LUN first, or delete both with --force"
                ),
            ));
        }
        if self.exports.in_use(id) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("delete volume {name}: iSCSI initiators use it; --force ends their sessions"),
            ));
        }
        Ok(())
    }

    /// Forgets the LUNs of what is gone. That must not make its deletion fail, and is done at the
    /// next start otherwise.
    fn forget(&self, gone: impl Fn(&Uuid) -> bool) {
        let forgotten = self.exports.store.update(|registry| {
            registry.forget_volumes(|uuid| !gone(uuid));
            Ok(())
        });
        if let Err(error) = forgotten {
            tracing::warn!(%error, "the LUNs of a deleted volume or snapshot could not be removed; the next start removes them");
        }
    }

    /// Deletes snapshots of a volume. Without `force` this is refused if one of them is mapped
    /// explicitly. An initiator that has just found one by its name goes on to read it.
    pub(crate) fn delete_snapshots(&self, volume: &str, names: &[&str], force: bool) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let pool = &self.exports.pool;
        let found = names.iter().map(|name| Ok((*name, pool.snapshot(volume, name)?.uuid)));
        let found = found.collect::<Result<Vec<(&str, Uuid)>>>()?;
        let registry = self.exports.store.get();
        let mapped: Vec<Uuid> =
            found.iter().map(|(_, id)| *id).filter(|id| !registry.mappings(id).is_empty()).collect();
        if !force {
            for (name, id) in &found {
                if let Some((target, lun)) = registry.mappings(id).first() {
                    let text = format!(
                        "delete snapshot {volume}@{name}: it is LUN {lun} of {target}; remove the LUN first, or delete both with --force"
                    );
                    return Err(Error::new(ErrorKind::Conflict, text));
                }
            }
        }
        pool.delete_snapshots(volume, names)?;
        if !mapped.is_empty() {
            self.forget(|uuid| mapped.contains(uuid));
            mapped.iter().for_each(|id| drop(self.exports.forget_unit(id)));
        }
        Ok(())
    }

    /// Takes a volume back by `roll`. Without `force` it is refused while initiators use the
    /// volume; with it they find a logical unit that has been switched off and on, and what they
    /// had begun never reaches what it shows now.
    pub(crate) fn roll_back<T>(
        &self,
        names: &[&str],
        force: bool,
        roll: impl FnOnce(&Arc<Pool>) -> Result<T>,
    ) -> Result<T> {
        let _one_at_a_time = self.changing.lock();
        let pool = &self.exports.pool;
        let ids = names.iter().map(|name| Ok(pool.volume(name)?.uuid)).collect::<Result<Vec<Uuid>>>()?;
        ids.iter().for_each(|id| self.exports.set_going(id, true));
        let busy = names.iter().zip(&ids).find(|(_, id)| !force && self.exports.in_use(id));
        let rolled = match busy {
            Some((name, _)) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "roll back volume {name}: iSCSI initiators use it; log them out first, or use --force"
                ),
            )),
            None => roll(pool),
        };
        ids.iter().for_each(|id| self.exports.set_going(id, false));
        if rolled.is_ok() {
            for name in names {
                self.exports.volume_replaced(&pool.volume(name)?);
            }
        }
        rolled
    }

    /// Ends sessions with a target: their logical units would only answer with errors, or they have
    /// no business there.
    pub(super) fn disconnect(&self, target: &str) {
        let (connections, all) = self.server.disconnect(target, None, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(target, connections, all, "iSCSI connections ended");
        }
    }

    /// Applies the current rules and accounts to the existing sessions. An initiator that lost some
    /// access is disconnected, or learns of it, before this returns.
    pub(super) fn enforce(&self) {
        let registry = self.exports.store.get();
        let mut ended = Vec::new();
        for session in self.server.sessions() {
            let Some(nexus) = session.nexus.upgrade() else { continue };
            // The login of one that has no connection yet asks for itself.
            let Some(gate) = self.exports.live_gate(&registry, nexus.target()) else { continue };
            if session.connections.is_empty() {
                continue;
            }
            let user = session.user.as_deref();
            let chap = exports::accounts(&gate.door().guard, &registry.all);
            let is_known = user.is_none_or(|user| chap.is_none_or(|chap| chap.account(user).is_some()));
            // A session has one set of rights: what all its connections' addresses agree on, or
            // none.
            let mut granted = session.connections.iter().map(|connection| {
                let who = Party { name: &session.initiator, address: connection.peer.ip(), user };
                self.exports.admit(&registry, &gate, &who)
            });
            let first = granted.next().flatten().filter(|_| is_known);
            match first.filter(|first| granted.all(|access| access.as_ref() == Some(first))) {
                Some(access) if access == nexus.access() => {}
                Some(access) => nexus.set_access(access),
                None => {
                    let (initiator, target) = (&session.initiator, nexus.target().name());
                    tracing::info!(
                        target,
                        initiator,
                        tsih = session.tsih,
                        "no rule or account allows an iSCSI session any more"
                    );
                    ended.push(session.tsih);
                }
            }
        }
        if !ended.is_empty() {
            let (connections, all) = self.server.end_sessions(&ended, DISCONNECT_WAIT);
            tracing::info!(sessions = ended.len(), connections, all, "iSCSI sessions ended");
        }
    }

    /// Stops accepting, asks initiators to log out, lets requests in flight end until `deadline`
    /// has passed, and closes what is left.
    pub(crate) fn stop(&self, deadline: Duration) {
        let broken = self.server.shutdown(deadline);
        self.exports.retire();
        if broken > 0 {
            tracing::warn!(connections = broken, "iSCSI connections were still busy at the deadline");
        }
    }
}

#[cfg(test)]
mod tests;
