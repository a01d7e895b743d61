//! Which clients may use a volume over NBD ([`NbdRules`]), and the operations on the access rules
//! that decide it. The rules are kept with those for iSCSI.

use super::exports::Exports;
use super::nbd_rules::{NbdAccess, NbdRule, decide};
use super::registry::Scope;
use super::target::IscsiTarget;
use hindcast_api as api;
use hindcast_engine::pool::VolumeInfo;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::nbd::Client;
use std::sync::Arc;

/// Decides which volumes NBD serves, and to which clients, by the current settings.
#[derive(Clone)]
pub(crate) struct NbdRules(Arc<Exports>);

impl NbdRules {
    /// Returns a function that decides which volumes NBD serves at all, by the settings of one
    /// instant.
    pub(crate) fn all(&self) -> impl Fn(&VolumeInfo) -> bool + use<> {
        let registry = self.0.store.get();
        move |volume| {
            let refused = registry.volumes.get(&volume.uuid).is_some_and(|settings| !settings.nbd);
            // A copy that is being created does not have its own setting yet.
            !refused && !registry.making.contains_key(&volume.name)
        }
    }

    /// Returns whether NBD serves a volume.
    pub(crate) fn serves(&self, volume: &VolumeInfo) -> bool {
        self.all()(volume)
    }

    /// Returns whether a rule lets any client in.
    pub(crate) fn let_any_in(&self) -> bool {
        let registry = self.0.store.get();
        let lets_in = |rules: &[NbdRule]| rules.iter().any(|rule| rule.access != api::Access::Denied);
        lets_in(&registry.all.nbd_rules) || registry.volumes.values().any(|of| lets_in(&of.guard.nbd_rules))
    }

    /// Returns a function that decides about a client, by the settings of one instant. `open`
    /// decides about volumes without any rule. Without a client, no rule counts.
    pub(crate) fn for_client(
        &self,
        client: Option<Arc<Client>>,
        open: bool,
    ) -> impl Fn(&VolumeInfo) -> NbdAccess + use<> {
        let (registry, served) = (self.0.store.get(), self.all());
        move |volume| {
            if !served(volume) {
                return NbdAccess::Excluded;
            }
            let Some(client) = &client else { return NbdAccess::ReadWrite };
            let own = registry.volumes.get(&volume.uuid).map_or(&[][..], |s| &s.guard.nbd_rules);
            decide(own, &registry.all.nbd_rules, open, client)
        }
    }
}

impl IscsiTarget {
    /// Returns the rules that decide which volumes NBD serves, and to which clients.
    pub(crate) fn nbd_rules(&self) -> NbdRules {
        NbdRules(self.exports.clone())
    }

    fn nbd_scope(&self, volume: Option<&str>) -> Result<Scope> {
        volume.map_or(Ok(Scope::All), |name| Ok(Scope::Volume(self.exports.pool.volume(name)?.uuid)))
    }

    /// Returns the NBD rules of a volume, or for `None` those for all volumes.
    pub(crate) fn nbd_rules_of(&self, volume: Option<&str>) -> Result<Vec<NbdRule>> {
        let scope = self.nbd_scope(volume)?;
        Ok(self.exports.store.get().settings(&scope).guard.nbd_rules)
    }

    /// Adds an NBD rule at the position `new.at`, counted from 1, or at the end. Existing
    /// connections stay.
    pub(crate) fn add_nbd_rule(&self, volume: Option<&str>, new: &api::AddNbdRule) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.nbd_scope(volume)?;
        let rule = NbdRule::parse(&new.addresses, new.certificate.as_deref(), new.access)
            .map_err(|why| Error::new(ErrorKind::Invalid, format!("add a rule: {why}")))?;
        self.exports.store.update(|registry| registry.add_nbd_rule(&scope, rule, new.at))
    }

    /// Removes the NBD rule `number`, counted from 1. Existing connections stay.
    pub(crate) fn remove_nbd_rule(&self, volume: Option<&str>, number: usize) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        let scope = self.nbd_scope(volume)?;
        self.exports.store.update(|registry| registry.remove_nbd_rule(&scope, number)).map(drop)
    }
}
