//! Persistent reservations, and the target ports through which initiators made them. When a volume
//! is renamed, its registrations follow the name of its target. When a port is removed, its
//! registrations are dropped.

use super::units::{Exports, LU_KIND, LU_VERSION, lu_file_name};
use crate::atomic_file::DurableFile;
use crate::iscsi::names;
use crate::iscsi::registry::Registry;
use hindcast_engine::pool::VolumeInfo;
use hindcast_engine::{Error, Result};
use hindcast_target::scsi::{
    LogicalUnit, Registrant, TargetPort, rename_stored, retain_stored, stored_registrants,
};
use std::collections::HashSet;
use std::sync::Arc;
use uuid::Uuid;

impl Exports {
    fn live_unit(&self, id: &Uuid) -> Option<Arc<LogicalUnit>> {
        self.live.lock().units.get(id).map(|unit| unit.lu.clone())
    }

    fn lu_file(&self, id: &Uuid) -> DurableFile {
        DurableFile::new(self.dir.clone(), lu_file_name(id), LU_KIND, LU_VERSION)
    }

    /// Returns the registrants of a logical unit, without opening the logical unit.
    pub(crate) fn registrants(&self, id: &Uuid) -> Result<Vec<Registrant>> {
        match self.live_unit(id) {
            Some(lu) => Ok(lu.registrants()),
            None => {
                self.lu_file(id).read()?.map_or_else(|| Ok(Vec::new()), |state| stored_registrants(&state))
            }
        }
    }

    /// Moves the registrations of a renamed volume to the new name of its target. An error is only
    /// logged, because the rename of the volume is complete.
    pub(crate) fn target_renamed(&self, before: &VolumeInfo, after: &VolumeInfo) {
        let (old, new) = (names::of_volume(before), names::of_volume(after));
        let id = &after.uuid;
        let renamed = match self.live_unit(id) {
            Some(lu) => lu.rename_target(&old, &new),
            None => self.change_stored(id, |state| rename_stored(state, &old, &new)),
        };
        if let Err(error) = renamed {
            tracing::error!(
                volume = after.name,
                %error,
                "persistent reservations keep the old name of the target; see `hindcast target clear-reservations`"
            );
        }
    }

    fn change_stored(&self, id: &Uuid, change: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>>) -> Result<()> {
        let file = self.lu_file(id);
        let Some(state) = file.read()? else { return Ok(()) };
        change(&state)?.map_or(Ok(()), |changed| file.save(&changed))
    }

    /// Drops the registrations whose target port no longer exists: the target does not map the
    /// logical unit any more, or the portal group was removed. No initiator can use such a
    /// registration again.
    pub(crate) fn drop_orphans(&self, id: &Uuid) {
        if self.groups.is_empty() {
            return; // no initiator can log in now; that says nothing of later
        }
        let ports = self.ports(&self.store.get(), id);
        let dropped = match self.live_unit(id) {
            Some(lu) => lu.retain_ports(|port| ports.contains(port)),
            None => {
                let mut gone = 0;
                let changed = self.change_stored(id, |state| {
                    let lost = stored_registrants(state)?;
                    gone = lost.iter().filter(|r| !ports.contains(&r.port)).count();
                    retain_stored(state, |port| ports.contains(port))
                });
                changed.map(|()| gone)
            }
        };
        let unit = id.to_string();
        match dropped {
            Ok(0) => {}
            Ok(registrations) => tracing::warn!(
                unit,
                registrations,
                "persistent reservations were removed, because their target ports no longer exist"
            ),
            Err(error) => tracing::warn!(unit, %error, "persistent reservations could not be read"),
        }
    }

    /// Returns the names of the target ports through which initiators can reach a logical unit.
    fn ports(&self, registry: &Registry, id: &Uuid) -> HashSet<String> {
        let own = self.pool.volumes().into_iter().find(|v| v.uuid == *id);
        let own = own.map(|volume| names::of_volume(&volume));
        let targets = registry.mappings(id).into_iter().map(|(name, _)| name.to_owned()).chain(own);
        let port =
            |target: &str, portal_group| TargetPort { target: target.into(), portal_group, relative_id: 0 };
        targets.flat_map(|target| self.groups.iter().map(move |g| port(&target, *g).name())).collect()
    }

    /// Clears all registrations and reservations of a logical unit. Returns how many it cleared.
    pub(crate) fn clear_reservations(&self, id: &Uuid) -> Result<usize> {
        let lu = self.unit(id).map_err(|e| Error::with_source(e.kind(), "clear reservations", e))?;
        lu.clear_reservations()
    }
}
