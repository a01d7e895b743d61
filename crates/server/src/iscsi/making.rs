//! Creates and renames volumes. No volume takes a name whose own target would have the name of a
//! created target. A copy of a volume begins with the guard of that volume.

use super::names;
use super::registry::{Registry, Scope, TargetSettings};
use super::target::IscsiTarget;
use hindcast_api as api;
use hindcast_engine::pool::{Pool, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// A volume that a request creates.
pub(crate) struct Making<'a> {
    /// The name of the new volume.
    pub(crate) name: &'a str,
    /// The volume whose data the new volume begins with. `None` for a volume that is not a copy.
    pub(crate) of: Option<&'a str>,
}

impl IscsiTarget {
    /// Creates volumes by calling `make`. A copy gets the guard of its original before an initiator
    /// can reach it. Returns the result of `make` and, for each volume, the settings that it
    /// inherited.
    pub(crate) fn make_volumes<T>(
        &self,
        made: &[Making<'_>],
        make: impl FnOnce(&Arc<Pool>) -> Result<T>,
    ) -> Result<(T, Vec<Option<api::Inherited>>)> {
        let _one_at_a_time = self.changing.lock();
        let exports = &self.exports;
        let registry = exports.store.get();
        let mut inherited = Vec::new();
        let mut pending = BTreeMap::new();
        for making in made {
            check_name(&registry, "make volume", making.name)?;
            let source = making.of.map(|of| exports.pool.volume(of)).transpose()?;
            let settings =
                source.and_then(|source| registry.settings(&Scope::Volume(source.uuid)).for_copy());
            // A failed attempt to create a volume must not hide an existing one from its users.
            if let (Some(settings), true) = (&settings, exports.pool.volume(making.name).is_err()) {
                pending.insert(making.name.to_owned(), settings.clone());
            }
            inherited.push(settings.map(|settings| told(making.of.unwrap_or_default(), &settings)));
        }
        if !pending.is_empty() {
            exports.store.update(|registry| {
                registry.making.extend(pending.clone());
                Ok(())
            })?;
        }
        let result = make(&exports.pool);
        if !pending.is_empty() {
            // If this fails, no initiator reaches the volume before the next start. The next start
            // repeats this step.
            exports.end_making()?;
        }
        Ok((result?, inherited))
    }

    /// Renames a volume and its own target. Persistent reservations follow the new name of the
    /// target.
    pub(crate) fn rename_volume(&self, name: &str, new: &str) -> Result<VolumeInfo> {
        let _one_at_a_time = self.changing.lock();
        let before = self.exports.pool.volume(name)?;
        check_name(&self.exports.store.get(), "rename the volume to", new)?;
        let after = self.exports.pool.rename_volume(name, new)?;
        self.exports.target_renamed(&before, &after);
        Ok(after)
    }

    /// Fails if a volume with this name would have the name of a created target.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<()> {
        check_name(&self.exports.store.get(), "make volume", name)
    }

    /// Sets whether NBD serves a volume. Existing NBD connections stay.
    pub(crate) fn set_nbd(&self, id: &Uuid, nbd: bool) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        self.exports.store.update(|registry| {
            registry.change(&Scope::Volume(*id), |settings| {
                settings.nbd = nbd;
                Ok(())
            })
        })
    }

    /// Takes a volume out of the trash. Fails if it would have the name of a created target.
    pub(crate) fn restore_volume(&self, id: Uuid, name: Option<&str>) -> Result<VolumeInfo> {
        let _one_at_a_time = self.changing.lock();
        // A LUN that was to be removed must not show the volume again.
        self.align_late()?;
        let old = self.exports.pool.trash().into_iter().find(|info| info.volume.uuid == id);
        if let Some(name) = name.map(str::to_owned).or(old.map(|info| info.volume.name)) {
            check_name(&self.exports.store.get(), "restore volume", &name)?;
        }
        self.exports.pool.restore_volume(id, name)
    }
}

/// Fails if a volume of this name would have the name of a created target.
fn check_name(registry: &Registry, verb: &str, name: &str) -> Result<()> {
    match names::by_name_alone(name).filter(|target| registry.named.contains_key(target)) {
        None => Ok(()),
        Some(target) => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "{verb} {name}: the target {target}, which would be the volume's own, exists; choose another name, or delete the \
                 target"
            ),
        )),
    }
}

fn told(of: &str, settings: &TargetSettings) -> api::Inherited {
    let accounts = settings.guard.chap.iter().flat_map(|chap| &chap.accounts);
    api::Inherited {
        volume: of.to_owned(),
        rules: settings.guard.rules.len(),
        nbd_rules: settings.guard.nbd_rules.len(),
        chap_users: accounts.map(|account| account.user.clone()).collect(),
        enabled: settings.enabled,
        nbd: settings.nbd,
    }
}
