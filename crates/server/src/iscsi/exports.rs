//! The volumes and files that the iSCSI server exports: which targets exist, which initiators may
//! log in, and the logical units behind the targets.

mod admission;
mod found;
mod live;
mod lookup;
mod registrations;
mod units;

pub(crate) use admission::accounts;
pub(crate) use found::Found;
pub(super) use live::MAX_SHOWN;
pub(crate) use units::{Exports, LU_KIND, LU_VERSION, Source, is_lu_file};

use super::names;
use super::registry::{Guard, Named, Registry, Scope, TargetSettings};
use crate::atomic_file::DurableFile;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::{AuthPolicy, Denied, Grant, Initiator, Proof, TargetEntry, Targets};
use hindcast_target::scsi::Target;
use std::collections::HashSet;
use std::sync::Arc;
use units::lu_file_name;
use uuid::Uuid;

impl Exports {
    /// Removes the LUNs and the rules of what does not exist any more. Returns the volumes that
    /// exist, in the trash or not.
    pub(crate) fn align(&self) -> Result<HashSet<Uuid>> {
        let in_use: HashSet<Uuid> = self.pool.volumes().iter().map(|v| v.uuid).collect();
        // A volume in the trash keeps its rules. No LUN shows it.
        let trash = self.pool.trash().into_iter().map(|info| info.volume.uuid);
        let volumes: HashSet<Uuid> = in_use.iter().copied().chain(trash).collect();
        let snapshots: HashSet<Uuid> = self.pool.all_snapshots().iter().map(|s| s.uuid).collect();
        self.store.update(|registry| {
            registry.unmap(|uuid| in_use.contains(uuid) || snapshots.contains(uuid));
            registry.forget_volumes(|uuid| volumes.contains(uuid) || snapshots.contains(uuid));
            Ok(())
        })?;
        Ok(volumes)
    }

    /// Aligns the stored state with the volumes that exist, and opens the logical units of all
    /// created targets. So the log reports a missing file when the server starts, and not when an
    /// initiator logs in.
    pub(crate) fn begin(&self) -> Result<()> {
        let volumes = self.align()?;
        self.end_making()?;
        let registry = self.store.get();
        self.warn_of_old_settings(&registry);
        let known: HashSet<String> = volumes.iter().chain(registry.files.keys()).map(lu_file_name).collect();
        let names = self.dir.list().map_err(|e| Error::io("list the data directory", e))?;
        for name in names.iter().filter(|name| is_lu_file(name)) {
            if !known.contains(name) {
                DurableFile::new(self.dir.clone(), name, LU_KIND, LU_VERSION).remove()?;
            }
        }
        for id in volumes.iter().chain(registry.files.keys()) {
            if names.contains(&lu_file_name(id)) {
                self.drop_orphans(id);
            }
        }
        if !self.groups.is_empty() {
            registry.named.keys().for_each(|name| self.realign(name));
        }
        Ok(())
    }

    /// Applies the stored settings to copies of volumes whose creation has ended. After a crash,
    /// the next start calls this. A name whose volume does not exist is dropped.
    pub(crate) fn end_making(&self) -> Result<()> {
        self.store.update(|registry| {
            for (name, settings) in std::mem::take(&mut registry.making) {
                if let Ok(volume) = self.pool.volume(&name) {
                    registry.volumes.entry(volume.uuid).or_insert(settings);
                }
            }
            Ok(())
        })
    }

    /// Logs a warning for each setting that earlier builds accepted and this build refuses.
    fn warn_of_old_settings(&self, registry: &Registry) {
        for volume in self.pool.volumes() {
            let target = names::of_volume(&volume);
            if registry.named.contains_key(&target) {
                tracing::warn!(
                    volume = volume.name,
                    target,
                    "another target has the name of the volume's own target, so initiators can't reach the volume's; rename the volume"
                );
            }
        }
        if registry.shares_secrets() {
            tracing::warn!(
                "a CHAP secret is used in both directions: the server does not use it for mutual CHAP; set another secret"
            );
        }
    }
}

impl Targets for Exports {
    fn list(&self, initiator: &Initiator<'_>) -> Vec<TargetEntry> {
        // A pool can have thousands of snapshots, so the list has only targets that exist without a
        // session.
        let registry = self.store.get();
        let default = TargetSettings::default();
        let visible = |found: &Found| {
            let settings = match &found.scope {
                Scope::Named(name) => registry.named.get(name).map(|t: &Named| &t.settings),
                Scope::Volume(id) => Some(registry.volumes.get(id).unwrap_or(&default)),
                Scope::All => None,
            };
            settings.is_some_and(|door| self.is_shown(&registry, door, initiator))
        };
        let entry = |found: Found| TargetEntry { name: found.name, portal_groups: Vec::new() };
        self.standing().into_iter().filter(visible).map(entry).collect()
    }

    fn discovery_auth(&self, _initiator: &Initiator<'_>) -> AuthPolicy {
        admission::policy(&self.store.get(), &Guard::default())
    }

    fn login(&self, target: &str, initiator: &Initiator<'_>) -> std::result::Result<Grant, Denied> {
        let asked = self.ask(target).map_err(|_| Denied::NotFound)?;
        let registry = self.store.get();
        let gate = self.gate_of(&registry, &asked);
        let Some(access) = self.admit_initiator(&registry, &gate, initiator) else {
            tracing::debug!(target, initiator = initiator.name, peer = %initiator.peer, "no rule allows the initiator");
            // An initiator that has authenticated knows the target. The server hides the existence
            // of the target from every other initiator that may not use it.
            return Err(match initiator.proof {
                Proof::Given(Some(_)) if gate.door().enabled => Denied::Forbidden,
                _ => Denied::NotFound,
            });
        };
        // The address of a snapshot or moment is not the name of a target.
        let name = asked.into_name().ok_or(Denied::NotFound)?;
        let auth = admission::policy(&registry, &gate.door().guard);
        Ok(Grant { name, access, auth, alias: gate.door().alias.clone() })
    }

    fn open(&self, grant: &Grant) -> std::result::Result<Arc<Target>, Denied> {
        let unavailable = |error: Error| {
            tracing::warn!(target = grant.name, %error, "a login was refused: the target is not available now");
            Denied::Unavailable
        };
        let found = self.find(&grant.name).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::Invalid => Denied::NotFound,
            _ => unavailable(error),
        })?;
        let live = &mut *self.live.lock();
        if !live.has_room(&found) {
            tracing::warn!(
                target = grant.name,
                "a login was refused: {MAX_SHOWN} snapshots and moments are open, which is the limit"
            );
            return Err(Denied::TooMany);
        }
        self.target_in(live, &found).map_err(unavailable)
    }
}
