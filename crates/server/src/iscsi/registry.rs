//! The registry ([`Registry`]): the state of targets that volumes do not have. It holds created
//! targets, access rules, CHAP accounts, and exported files.
//!
//! One durable file stores the registry ([`super::store::Store`]). A change is made to a copy of
//! the registry. It applies when the file has the copy.

use super::credentials::{Account, Chap, Secret};
use super::nbd_rules::NbdRule;
use crate::passthrough::FileSpec;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::Rule;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The highest LUN, 16383: the limit of flat space addressing (SAM-5 4.7.3).
pub(crate) const MAX_LUN: u16 = 0x3fff;
/// The maximum number of access rules of one target. A login evaluates them in order.
const MAX_RULES: usize = 1024;

/// The maximum number of CHAP accounts of one target. A login searches them for the user name.
const MAX_ACCOUNTS: usize = 1024;

/// The access rules and CHAP accounts of a target, or those that apply to all targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// The access rules for iSCSI.
    pub(crate) rules: Vec<Rule>,
    pub(crate) chap: Option<Chap>,
    /// The access rules for NBD. They have no effect for a created target.
    pub(crate) nbd_rules: Vec<NbdRule>,
}

/// The settings of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetSettings {
    pub(crate) enabled: bool,
    pub(crate) alias: Option<String>,
    pub(crate) guard: Guard,
    /// Whether NBD serves the volume, too. It has no effect for a created target. Default: true.
    pub(crate) nbd: bool,
}

impl Default for TargetSettings {
    fn default() -> Self {
        TargetSettings { enabled: true, alias: None, guard: Guard::default(), nbd: true }
    }
}

impl TargetSettings {
    /// Returns the settings that a copy of the volume begins with: all but the alias. Returns
    /// `None` if they are the defaults.
    pub(crate) fn for_copy(&self) -> Option<TargetSettings> {
        let copied = TargetSettings { alias: None, ..self.clone() };
        (copied != TargetSettings::default()).then_some(copied)
    }
}

/// A created target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) settings: TargetSettings,
    /// The UUID of a volume, a snapshot or one of [`Registry::files`], by LUN.
    pub(crate) luns: BTreeMap<u16, Uuid>,
}

/// The state that the file of targets stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registry {
    /// The access rules and CHAP accounts that apply to all targets.
    pub(crate) all: Guard,
    /// The created targets, by name.
    pub(crate) named: BTreeMap<String, Named>,
    /// The settings of volumes' own targets, by the volume's UUID, where they differ from the
    /// default.
    pub(crate) volumes: BTreeMap<Uuid, TargetSettings>,
    /// The files and block devices that created targets export, by UUID.
    pub(crate) files: BTreeMap<Uuid, FileSpec>,
    /// The volumes that are being created as copies, by name, with the settings that they will
    /// have. No client reaches a volume before it has these settings.
    pub(crate) making: BTreeMap<String, TargetSettings>,
}

/// The target, or all targets, to which settings apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All targets.
    All,
    /// A created target, by name.
    Named(String),
    /// A volume's own target, by the volume's UUID.
    Volume(Uuid),
}

/// Inserts a rule at the position `at`, counted from 1, or at the end.
fn insert_rule<R>(rules: &mut Vec<R>, rule: R, at: Option<usize>) -> Result<()> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    if rules.len() >= MAX_RULES {
        return invalid(format!("add a rule: the limit of {MAX_RULES} rules is reached"));
    }
    let last = rules.len() + 1;
    match at.unwrap_or(last) {
        place if (1..=last).contains(&place) => rules.insert(place - 1, rule),
        place => return invalid(format!("add a rule at position {place}: the position must be 1 to {last}")),
    }
    Ok(())
}

/// Removes the rule `number`, counted from 1, and returns it.
fn take_rule<R>(rules: &mut Vec<R>, number: usize) -> Result<R> {
    match number.checked_sub(1).filter(|i| *i < rules.len()) {
        Some(index) => Ok(rules.remove(index)),
        None => Err(not_found(format!("remove rule {number}: the number of rules is {}", rules.len()))),
    }
}

fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message)
}

impl Registry {
    fn named_mut(&mut self, name: &str) -> Result<&mut Named> {
        self.named.get_mut(name).ok_or_else(|| not_found(format!("find target {name}: it does not exist")))
    }

    /// Returns the settings of a target. They are the defaults if the target has none.
    pub(crate) fn settings(&self, scope: &Scope) -> TargetSettings {
        match scope {
            Scope::All => TargetSettings { guard: self.all.clone(), ..TargetSettings::default() },
            Scope::Named(name) => self.named.get(name).map(|t| t.settings.clone()).unwrap_or_default(),
            Scope::Volume(uuid) => self.volumes.get(uuid).cloned().unwrap_or_default(),
        }
    }

    /// Changes the settings of a target by `change`. Drops the settings of a volume's own target
    /// when they equal the defaults.
    pub(crate) fn change<T>(
        &mut self,
        scope: &Scope,
        change: impl FnOnce(&mut TargetSettings) -> Result<T>,
    ) -> Result<T> {
        let mut settings = self.settings(scope);
        let result = change(&mut settings)?;
        match scope {
            Scope::All => self.all = settings.guard,
            Scope::Named(name) => self.named_mut(name)?.settings = settings,
            Scope::Volume(uuid) if settings == TargetSettings::default() => {
                self.volumes.remove(uuid);
            }
            Scope::Volume(uuid) => {
                self.volumes.insert(*uuid, settings);
            }
        }
        Ok(result)
    }

    /// Adds an access rule at the position `at`, counted from 1. `None` adds it at the end.
    pub(crate) fn add_rule(&mut self, scope: &Scope, rule: Rule, at: Option<usize>) -> Result<()> {
        self.change(scope, |settings| insert_rule(&mut settings.guard.rules, rule, at))
    }

    /// Adds an access rule for NBD at the position `at`, counted from 1. `None` adds it at the end.
    pub(crate) fn add_nbd_rule(&mut self, scope: &Scope, rule: NbdRule, at: Option<usize>) -> Result<()> {
        self.change(scope, |settings| insert_rule(&mut settings.guard.nbd_rules, rule, at))
    }

    /// Adds a CHAP account, or replaces the account with the same user name. `mutual` sets or
    /// removes the target's own account, and `None` leaves it unchanged. Fails if a secret would
    /// serve both directions.
    pub(crate) fn set_account(
        &mut self,
        scope: &Scope,
        account: Account,
        mutual: Option<Option<Account>>,
    ) -> Result<()> {
        let (user, secret) = (account.user.clone(), account.secret.clone());
        let own = mutual.clone().flatten();
        self.change(scope, |settings| {
            let chap = settings.guard.chap.get_or_insert_default();
            match chap.accounts.iter().position(|known| known.user == account.user) {
                Some(at) => chap.accounts[at] = account,
                None if chap.accounts.len() >= MAX_ACCOUNTS => {
                    let text = format!("set CHAP: the limit of {MAX_ACCOUNTS} accounts is reached");
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                None => chap.accounts.push(account),
            }
            if let Some(mutual) = mutual {
                chap.mutual = mutual;
            }
            Ok(())
        })?;
        let clash = if self.proves_a_target(&secret) {
            format!("the secret of {user} is also the secret of a target")
        } else if own.is_some_and(|own| self.proves_an_initiator(&own.secret)) {
            "the secret of the target is also the secret of an initiator".to_owned()
        } else {
            return Ok(());
        };
        let text = format!(
            "set CHAP: {clash}; no secret may serve both directions, at any target, because an attacker could have one side \
             answer the challenge of the other; choose another secret"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Removes a CHAP account. Fails if it is the only account of the target.
    pub(crate) fn remove_account(&mut self, scope: &Scope, user: &str) -> Result<()> {
        self.change(scope, |settings| {
            let none = || not_found(format!("remove CHAP account {user}: it does not exist"));
            let chap = settings.guard.chap.as_mut().ok_or_else(none)?;
            let at = chap.accounts.iter().position(|a| a.user == user).ok_or_else(none)?;
            if chap.accounts.len() == 1 {
                let text = format!(
                    "remove CHAP account {user}: it is the only account, and without it initiators would not have to authenticate; \
                     to allow that, switch CHAP off"
                );
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            chap.accounts.remove(at);
            Ok(())
        })
    }

    fn guards(&self) -> impl Iterator<Item = &Guard> {
        let named = self.named.values().map(|t| &t.settings.guard);
        let volumes = self.volumes.values().chain(self.making.values()).map(|s| &s.guard);
        std::iter::once(&self.all).chain(named).chain(volumes)
    }

    fn chaps(&self) -> impl Iterator<Item = &Chap> {
        self.guards().filter_map(|guard| guard.chap.as_ref())
    }

    /// Returns whether any target authenticates with this secret in mutual CHAP. No initiator may
    /// use such a secret. Otherwise an attacker could impersonate the initiator, because the target
    /// would answer the challenge for the attacker (RFC 7143 9.2.1).
    pub(crate) fn proves_a_target(&self, secret: &Secret) -> bool {
        self.chaps().filter_map(|chap| chap.mutual.as_ref()).any(|mutual| mutual.secret == *secret)
    }

    /// Returns whether any secret serves both directions. Older builds accepted such a secret, but
    /// no target authenticates with it.
    pub(crate) fn shares_secrets(&self) -> bool {
        let mut mutual = self.chaps().filter_map(|chap| chap.mutual.as_ref());
        mutual.any(|mutual| self.proves_an_initiator(&mutual.secret))
    }

    /// Returns whether an initiator authenticates with this secret at any target.
    pub(crate) fn proves_an_initiator(&self, secret: &Secret) -> bool {
        self.chaps().flat_map(|chap| &chap.accounts).any(|account| account.secret == *secret)
    }

    /// Removes the access rule `number`, counted from 1, and returns it.
    pub(crate) fn remove_rule(&mut self, scope: &Scope, number: usize) -> Result<Rule> {
        self.change(scope, |settings| take_rule(&mut settings.guard.rules, number))
    }

    /// Removes the NBD rule `number`, counted from 1, and returns it.
    pub(crate) fn remove_nbd_rule(&mut self, scope: &Scope, number: usize) -> Result<NbdRule> {
        self.change(scope, |settings| take_rule(&mut settings.guard.nbd_rules, number))
    }

    /// Maps a volume, snapshot or file at the LUN `lun`, or at the lowest free LUN for `None`.
    /// Returns the LUN.
    pub(crate) fn add_lun(&mut self, name: &str, lun: Option<u16>, backing: Uuid) -> Result<u16> {
        let luns = &mut self.named_mut(name)?.luns;
        if let Some((lun, _)) = luns.iter().find(|(_, uuid)| **uuid == backing) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("add a LUN to {name}: it is already LUN {lun} there"),
            ));
        }
        let lun = match lun {
            Some(lun) => lun,
            None => (0..=MAX_LUN).find(|lun| !luns.contains_key(lun)).unwrap_or(MAX_LUN),
        };
        if lun > MAX_LUN {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("add LUN {lun}: a LUN must be 0 to {MAX_LUN}"),
            ));
        }
        if luns.contains_key(&lun) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("add LUN {lun} to {name}: the number is taken"),
            ));
        }
        luns.insert(lun, backing);
        Ok(lun)
    }

    /// Removes the mapping of `lun`. When no other LUN maps the same file, the registry forgets the
    /// file, and this function returns its UUID.
    pub(crate) fn remove_lun(&mut self, name: &str, lun: u16) -> Result<Option<Uuid>> {
        let luns = &mut self.named_mut(name)?.luns;
        if luns.remove(&lun).is_none() {
            return Err(not_found(format!("remove LUN {lun} from {name}: it does not exist")));
        }
        Ok(self.forget_files().pop())
    }

    /// Removes a created target. The registry forgets the files that no other LUN maps, and this
    /// function returns their UUIDs.
    pub(crate) fn remove_target(&mut self, name: &str) -> Result<Vec<Uuid>> {
        self.named_mut(name)?;
        self.named.remove(name);
        Ok(self.forget_files())
    }

    fn forget_files(&mut self) -> Vec<Uuid> {
        let used: BTreeSet<Uuid> = self.named.values().flat_map(|t| t.luns.values()).copied().collect();
        let (kept, gone) =
            std::mem::take(&mut self.files).into_iter().partition(|(uuid, _)| used.contains(uuid));
        self.files = kept;
        gone.into_keys().collect()
    }

    /// Returns the created targets and LUNs that map a volume, snapshot or file.
    pub(crate) fn mappings(&self, backing: &Uuid) -> Vec<(&str, u16)> {
        self.named
            .iter()
            .flat_map(|(name, target)| target.luns.iter().map(move |(lun, uuid)| (name.as_str(), *lun, uuid)))
            .filter(|(_, _, uuid)| *uuid == backing)
            .map(|(name, lun, _)| (name, lun))
            .collect()
    }

    /// Replaces the UUIDs of volumes and snapshots. `identities` maps old UUIDs to new ones.
    /// Exported files get UUIDs from `draw`, and lose a serial number that the operator chose. The
    /// original file keeps that serial number.
    pub(crate) fn renew(&mut self, identities: &BTreeMap<Uuid, Uuid>, draw: &mut dyn FnMut() -> Uuid) {
        let mut all = identities.clone();
        all.extend(self.files.keys().map(|id| (*id, draw())));
        let new = |id: Uuid| all.get(&id).copied().unwrap_or(id);
        self.named.values_mut().flat_map(|t| t.luns.values_mut()).for_each(|id| *id = new(*id));
        self.volumes = std::mem::take(&mut self.volumes).into_iter().map(|(id, s)| (new(id), s)).collect();
        let files = std::mem::take(&mut self.files).into_values();
        let files = files.map(|file| FileSpec { uuid: new(file.uuid), serial: None, ..file });
        self.files = files.map(|file| (file.uuid, file)).collect();
    }

    /// Removes the mappings of volumes and snapshots that no longer exist, and the settings of
    /// volumes' own targets. `exists` returns whether a UUID still exists.
    pub(crate) fn forget_volumes(&mut self, exists: impl Fn(&Uuid) -> bool) {
        self.unmap(&exists);
        self.volumes.retain(|uuid, _| exists(uuid));
    }

    /// Removes the mappings of volumes and snapshots for which `stays` is false.
    pub(crate) fn unmap(&mut self, stays: impl Fn(&Uuid) -> bool) {
        let files = &self.files;
        for (name, target) in &mut self.named {
            target.luns.retain(|lun, uuid| {
                let keep = files.contains_key(uuid) || stays(uuid);
                if !keep {
                    tracing::info!(
                        target = name,
                        lun,
                        "the volume of a LUN no longer exists; the LUN is removed"
                    );
                }
                keep
            });
        }
    }
}

#[cfg(test)]
mod tests;
