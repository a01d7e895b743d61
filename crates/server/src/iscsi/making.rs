//! Naming of volumes: a new one, one made of another, and one that is renamed. No volume takes a
//! name by which a target that was created is reached. A copy of data begins with the guard of the
//! data.

use super::exports::Exports;
use super::names;
use super::registry::{Registry, Scope, TargetSettings};
use super::target::IscsiTarget;
use hindcast_api as api;
use hindcast_engine::pool::{Pool, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// A volume to be made.
pub(crate) struct Making<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// The volume whose data it begins with.
    pub(crate) of: Option<&'a str>,
}

impl IscsiTarget {
    /// Makes volumes by `make`, with the guards of those that they are made of. Tells what each of
    /// them took over.
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
            // One that exists already is not hidden from its users by an attempt that fails.
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
            // If this fails, no initiator reaches the volume before the next start, which does it
            // again.
            exports.end_making()?;
        }
        Ok((result?, inherited))
    }

    /// Renames a volume, and with it its target: what is registered there follows.
    pub(crate) fn rename_volume(&self, name: &str, new: &str) -> Result<VolumeInfo> {
        let _one_at_a_time = self.changing.lock();
        let before = self.exports.pool.volume(name)?;
        check_name(&self.exports.store.get(), "rename the volume to", new)?;
        let after = self.exports.pool.rename_volume(name, new)?;
        self.exports.target_renamed(&before, &after);
        Ok(after)
    }

    /// Refuses a name by which a target that was created is reached.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<()> {
        check_name(&self.exports.store.get(), "make volume", name)
    }

    /// Has NBD serve a volume, or not. Connections that there are stay.
    pub(crate) fn set_nbd(&self, id: &Uuid, nbd: bool) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        self.exports.store.update(|registry| {
            registry.change(&Scope::Volume(*id), |settings| {
                settings.nbd = nbd;
                Ok(())
            })
        })
    }

    /// Which volumes NBD serves.
    pub(crate) fn nbd_rules(&self) -> NbdRules {
        NbdRules(self.exports.clone())
    }
}

/// Tells which volumes NBD serves, as that is set now.
#[derive(Clone)]
pub(crate) struct NbdRules(Arc<Exports>);

impl NbdRules {
    /// Of many volumes, at one instant.
    pub(crate) fn all(&self) -> impl Fn(&VolumeInfo) -> bool + use<> {
        let registry = self.0.store.get();
        move |volume| {
            let refused = registry.volumes.get(&volume.uuid).is_some_and(|settings| !settings.nbd);
            // One that is being made of another has not its own setting yet.
            !refused && !registry.making.contains_key(&volume.name)
        }
    }

    /// Of one.
    pub(crate) fn serves(&self, volume: &VolumeInfo) -> bool {
        self.all()(volume)
    }
}

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
        chap_users: accounts.map(|account| account.user.clone()).collect(),
        enabled: settings.enabled,
        nbd: settings.nbd,
    }
}
