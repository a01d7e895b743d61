//! The access rules for NBD: the operations of the admin API.

use crate::app::App;
use crate::iscsi::NbdRule;
use hindcast_api as api;
use hindcast_engine::Result;

impl App {
    /// Returns the NBD rules for all volumes, and then those of each volume that has some.
    pub(crate) fn all_nbd_access(&self) -> Result<Vec<api::NbdAccess>> {
        let mut all = vec![self.nbd_access(None)?];
        for volume in self.pool.volumes() {
            // The volume may have been deleted in between.
            let Ok(access) = self.nbd_access(Some(&volume.name)) else { continue };
            if !access.rules.is_empty() {
                all.push(access);
            }
        }
        Ok(all)
    }

    /// Returns the NBD rules of a volume, or for `None` those for all volumes.
    pub(crate) fn nbd_access(&self, volume: Option<&str>) -> Result<api::NbdAccess> {
        let rules = self.iscsi.nbd_rules_of(volume)?;
        let ruled = !rules.is_empty() || !self.iscsi.nbd_rules_of(None)?.is_empty();
        let unmatched = |open: bool| match open && !ruled {
            true => api::Unmatched::Open,
            false => api::Unmatched::Refused,
        };
        let unverified = rules.iter().any(|rule| rule.common_name.is_some()) && !self.nbd.verifies_clients();
        let warning = "the server verifies no certificates of NBD clients (--nbd-tls-ca), so no client matches a rule with a certificate";
        Ok(api::NbdAccess {
            volume: volume.map(str::to_owned),
            rules: rules.iter().map(shown).collect(),
            unmatched: unmatched(self.nbd.is_open()),
            unmatched_on_loopback: unmatched(true),
            warnings: unverified.then(|| warning.to_owned()).into_iter().collect(),
        })
    }

    /// Adds an NBD rule to a volume, or for `None` to those for all volumes. Connections that the
    /// rules now refuse end.
    pub(crate) fn add_nbd_rule(&self, volume: Option<&str>, new: &api::AddNbdRule) -> Result<api::NbdAccess> {
        self.iscsi.add_nbd_rule(volume, new)?;
        tracing::info!(event = "access.changed", volume, rule = ?new, "NBD access rule added");
        self.nbd.enforce();
        self.nbd_access(volume)
    }

    /// Removes the NBD rule `number`, counted from 1. Connections that no rule allows any more end.
    pub(crate) fn remove_nbd_rule(&self, volume: Option<&str>, number: usize) -> Result<()> {
        self.iscsi.remove_nbd_rule(volume, number)?;
        tracing::info!(event = "access.changed", volume, number, "NBD access rule removed");
        self.nbd.enforce();
        Ok(())
    }
}

fn shown(rule: &NbdRule) -> api::NbdRule {
    api::NbdRule {
        addresses: rule.addresses.iter().map(ToString::to_string).collect(),
        certificate: rule.certificate(),
        access: rule.access,
    }
}
