//! The running iSCSI target ([`IscsiTarget`]): its start and stop, and the changes of volumes that
//! it reports to initiators.

use super::exports::{self, Exports};
use super::names;
use super::store::{self, Store};
use crate::latency::Latencies;
use crate::periodic::Worker;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Pool, TrashInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::{Otherwise, Party};
use hindcast_target::iscsi::{IscsiConfig, IscsiServer, IscsiStats, SessionClient};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// The time that sessions get to end, 5 seconds. The response to the request that ends them waits
/// for it.
const DISCONNECT_WAIT: Duration = Duration::from_secs(5);
/// The time between two checks of the length of exported files and of the free space: 5 seconds.
const LOOK: Duration = Duration::from_secs(5);

/// The running iSCSI target. With `--iscsi none` it has no portals.
pub(crate) struct IscsiTarget {
    pub(super) exports: Arc<Exports>,
    pub(super) server: IscsiServer,
    /// The data directory. Targets do not export files in it.
    pub(super) data: PathBuf,
    /// Serializes the changes of targets that touch both the pool and the registry.
    pub(super) changing: Mutex<()>,
    /// LUNs of something that was deleted could not be removed yet.
    unaligned: AtomicBool,
    /// Polls for changes that no event reports.
    _watch: Worker,
}

impl IscsiTarget {
    pub(crate) fn start(
        config: &IscsiConfig,
        pool: Arc<Pool>,
        latencies: Latencies,
        data: &Path,
    ) -> Result<Self> {
        let dir = crate::data_directory::settings_of(&pool, data);
        let store = Store::open(store::file(&dir))?;
        let otherwise = Otherwise::of(config.portals.iter().map(|p| &p.listen));
        let mut groups: Vec<u16> = config.portals.iter().map(|p| p.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let exports = Exports::new((pool, latencies), dir, store, otherwise, groups);
        exports.begin()?;
        let server = IscsiServer::start(config.clone(), exports.clone())?;
        let watched = exports.clone();
        let watch = Worker::start("iscsi-watch", LOOK, move || watched.look_around())
            .map_err(|e| Error::io("start a thread", e))?;
        let data = std::fs::canonicalize(data).map_err(|e| Error::io("find the data directory", e))?;
        Ok(IscsiTarget {
            exports,
            server,
            data,
            changing: Mutex::new(()),
            unaligned: AtomicBool::new(false),
            _watch: watch,
        })
    }

    /// Returns the portals as bound: `ADDRESS`, or `ADDRESS/GROUP` if the portal group is not 1.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let text = |portal: hindcast_target::iscsi::Portal| match portal.group {
            1 => portal.listen.to_string(),
            group => format!("{}/{group}", portal.listen),
        };
        self.server.portals().into_iter().map(text).collect()
    }

    /// Returns the name of the target that shows a moment of a volume, or a snapshot of that name
    /// if there is no LSN.
    pub(crate) fn name_of_past(
        &self,
        volume: &VolumeInfo,
        snapshot: &str,
        lsn: Option<u64>,
    ) -> Option<String> {
        match lsn {
            Some(lsn) => Some(names::of_moment(volume, Lsn(lsn))),
            None => self
                .exports
                .pool
                .snapshot(&volume.name, snapshot)
                .ok()
                .map(|found| names::of_snapshot(&found)),
        }
    }

    /// Returns the totals since the start of the server.
    pub(crate) fn stats(&self) -> IscsiStats {
        self.server.stats()
    }

    /// Returns whether an initiator is logged in to a target that shows this snapshot, or this
    /// clone of it, as a part of a volume's past.
    pub(crate) fn is_past_in_use(&self, shown: &Uuid) -> bool {
        self.exports.is_past_in_use(shown)
    }

    /// Changes a volume by `change`, and reports a new size or read-only setting to initiators.
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

    /// Deletes a volume. Without `force` the deletion fails while a created target maps the volume,
    /// or an initiator uses it.
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

    /// Moves a volume to the trash. Without `force` this fails while a created target maps the
    /// volume, or an initiator uses it. With `force` it removes the LUNs of created targets. Rules
    /// and accounts of the volume's own target stay.
    pub(crate) fn trash_volume(&self, name: &str, force: bool) -> Result<TrashInfo> {
        let _one_at_a_time = self.changing.lock();
        let id = self.exports.pool.volume(name)?.uuid;
        self.exports.set_going(&id, true);
        let trashed = self.trash_unless_used(name, &id, force);
        self.exports.set_going(&id, false);
        trashed
    }

    fn trash_unless_used(&self, name: &str, id: &Uuid, force: bool) -> Result<TrashInfo> {
        if !force {
            self.check_unused(name, id)?;
        }
        let snapshots: Vec<Uuid> = self.exports.pool.snapshots(name)?.iter().map(|s| s.uuid).collect();
        let trashed = self.exports.pool.trash_volume(name, force)?;
        let is_away = |uuid: &Uuid| uuid == id || snapshots.contains(uuid);
        let unmapped = self.exports.store.update(|registry| {
            registry.unmap(|uuid| !is_away(uuid));
            Ok(())
        });
        if let Err(error) = unmapped {
            self.unaligned.store(true, Ordering::Relaxed);
            tracing::warn!(%error, "the LUNs of a volume in the trash could not be removed yet; they show nothing");
        }
        for target in snapshots.iter().chain([id]).flat_map(|id| self.exports.forget_unit(id)) {
            self.disconnect(&target);
        }
        Ok(trashed)
    }

    /// Deletes a volume in the trash for good, with its access rules.
    pub(crate) fn purge_volume(&self, id: Uuid, since: Option<u64>) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        self.exports.pool.purge_volume(id, since)?;
        self.forget(|uuid| *uuid == id);
        Ok(())
    }

    /// Fails if a created target maps the volume, or an initiator uses it.
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

    /// Removes the LUNs that could not be removed when what they showed was deleted.
    pub(crate) fn unmap_late(&self) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        self.align_late()
    }

    /// Does the work of [`IscsiTarget::unmap_late`]. The caller holds the lock of changes.
    pub(super) fn align_late(&self) -> Result<()> {
        if self.unaligned.load(Ordering::Relaxed) {
            self.exports.align()?;
            self.unaligned.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the LUNs of deleted volumes and snapshots. An error is only logged, because the
    /// deletion is complete. It is tried again later, and when the server starts.
    fn forget(&self, gone: impl Fn(&Uuid) -> bool) {
        let forgotten = self.exports.store.update(|registry| {
            registry.forget_volumes(|uuid| !gone(uuid));
            Ok(())
        });
        if let Err(error) = forgotten {
            self.unaligned.store(true, Ordering::Relaxed);
            tracing::warn!(%error, "the LUNs of a deleted volume or snapshot could not be removed yet; they show nothing");
        }
    }

    /// Deletes snapshots of a volume. Without `force` the deletion fails if a created target maps
    /// one of them. An initiator that has already found a snapshot by its name can still read it.
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

    /// Rolls volumes back by calling `roll`. Without `force` this fails while an initiator uses one
    /// of the volumes. With `force` initiators find a logical unit that was switched off and on.
    /// Commands that they began before never reach the new content.
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

    /// Ends all sessions with a target. Its logical units would only return errors, or its
    /// initiators may no longer use it.
    pub(super) fn disconnect(&self, target: &str) {
        let (connections, all) = self.server.disconnect(target, None, DISCONNECT_WAIT);
        if connections > 0 {
            tracing::info!(event = "client.ended", target, connections, all, "iSCSI connections ended");
        }
    }

    /// Returns who has a session with a target.
    pub(crate) fn clients(&self) -> Vec<SessionClient> {
        self.server.clients()
    }

    /// Ends one session. Returns false if there is none with this handle.
    pub(crate) fn end_session(&self, tsih: u16) -> bool {
        let found = self.server.sessions().iter().any(|session| session.tsih == tsih);
        self.server.end_sessions(&[tsih], DISCONNECT_WAIT);
        found
    }

    /// Applies the current rules and accounts to the existing sessions. Before this returns, an
    /// initiator that lost all access is disconnected, and every other one gets its new access.
    pub(super) fn enforce(&self) {
        let registry = self.exports.store.get();
        let mut ended = Vec::new();
        for session in self.server.sessions() {
            let Some(nexus) = session.nexus.upgrade() else { continue };
            // The login of a session without a connection checks the rules itself.
            let Some(gate) = self.exports.live_gate(&registry, nexus.target()) else { continue };
            if session.connections.is_empty() {
                continue;
            }
            let user = session.user.as_deref();
            let chap = exports::accounts(&gate.door().guard, &registry.all);
            let is_known = user.is_none_or(|user| chap.is_none_or(|chap| chap.account(user).is_some()));
            // A session has one set of rights. It ends if the addresses of its connections have
            // different rights.
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
            tracing::info!(
                event = "client.ended",
                sessions = ended.len(),
                connections,
                all,
                "iSCSI sessions ended"
            );
        }
    }

    /// Stops accepting connections, and asks initiators to log out. Requests in flight can end
    /// until `deadline` has passed. Then it closes all other connections.
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
