//! The registry ([`Registry`]): what is known of targets beyond the volumes themselves. These are
//! targets that were created, access rules, CHAP accounts, and files that are exported.
//!
//! One durable file keeps it ([`super::store::Store`]). Every change is made to a copy, and counts
//! only when the copy is written.

use super::credentials::{Account, Chap, Secret};
use crate::passthrough::FileSpec;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::Rule;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The highest logical unit number: what flat space addressing can say (SAM-5 4.7.3).
pub(crate) const MAX_LUN: u16 = 0x3fff;
/// Rules of one target; more are a mistake, and each is asked at a login.
const MAX_RULES: usize = 1024;

/// CHAP accounts of one target: all that may be the one are compared at a login.
const MAX_ACCOUNTS: usize = 1024;

/// What applies to a target, or to all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) rules: Vec<Rule>,
    pub(crate) chap: Option<Chap>,
}

/// What can be set at any target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetSettings {
    pub(crate) enabled: bool,
    pub(crate) alias: Option<String>,
    pub(crate) guard: Guard,
    /// Of a volume: NBD serves it, too.
    pub(crate) nbd: bool,
}

impl Default for TargetSettings {
    fn default() -> Self {
        TargetSettings { enabled: true, alias: None, guard: Guard::default(), nbd: true }
    }
}

impl TargetSettings {
    /// What a copy of the data begins with; `None` where there is nothing to take over.
    pub(crate) fn for_copy(&self) -> Option<TargetSettings> {
        let copied = TargetSettings { alias: None, ..self.clone() };
        (copied != TargetSettings::default()).then_some(copied)
    }
}

/// A target that was created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) settings: TargetSettings,
    /// A volume, or one of [`Registry::files`], by number.
    pub(crate) luns: BTreeMap<u16, Uuid>,
}

/// Everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registry {
    /// What applies to all targets.
    pub(crate) all: Guard,
    /// Targets that were created, by name.
    pub(crate) named: BTreeMap<String, Named>,
    /// Settings of the targets that volumes have by default, where they differ from the default.
    pub(crate) volumes: BTreeMap<Uuid, TargetSettings>,
    /// Files and block devices that logical units stand for.
    pub(crate) files: BTreeMap<Uuid, FileSpec>,
    /// Volumes that are being made of others, by name, and the settings that they will have. No
    /// client reaches them before they have these settings.
    pub(crate) making: BTreeMap<String, TargetSettings>,
}

/// A target, as rules and CHAP are set for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All targets.
    All,
    /// One that was created.
    Named(String),
    /// The one that a volume has by default.
    Volume(Uuid),
}

fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message)
}

impl Registry {
    fn named_mut(&mut self, name: &str) -> Result<&mut Named> {
        self.named.get_mut(name).ok_or_else(|| not_found(format!("find target {name}: it does not exist")))
    }

    /// What can be set at a target.
    pub(crate) fn settings(&self, scope: &Scope) -> TargetSettings {
        match scope {
            Scope::All => TargetSettings { guard: self.all.clone(), ..TargetSettings::default() },
            Scope::Named(name) => self.named.get(name).map(|t| t.settings.clone()).unwrap_or_default(),
            Scope::Volume(uuid) => self.volumes.get(uuid).cloned().unwrap_or_default(),
        }
    }

    /// Changes what can be set at a target.
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

    /// Adds a rule at a place counted from 1, or at the end.
    pub(crate) fn add_rule(&mut self, scope: &Scope, rule: Rule, at: Option<usize>) -> Result<()> {
        self.change(scope, |settings| {
            let rules = &mut settings.guard.rules;
            if rules.len() >= MAX_RULES {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("add a rule: the limit of {MAX_RULES} rules is reached"),
                ));
            }
            let last = rules.len() + 1;
            match at.unwrap_or(last) {
                place if (1..=last).contains(&place) => rules.insert(place - 1, rule),
                place => {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        format!("add a rule at position {place}: the position must be 1 to {last}"),
                    ));
                }
            }
            Ok(())
        })
    }

    /// Adds a CHAP account, or replaces the one of the same name; `mutual`: what the target proves
    /// itself with from now on, where that is said.
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

    /// Removes one of several CHAP accounts.
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

    /// Whether a target proves itself with this secret, wherever that is set. An initiator that
    /// proves itself with the secret, too, could be impersonated: the attacker would have that
    /// target answer the challenge (RFC 7143 9.2.1).
    pub(crate) fn proves_a_target(&self, secret: &Secret) -> bool {
        self.chaps().filter_map(|chap| chap.mutual.as_ref()).any(|mutual| mutual.secret == *secret)
    }

    /// Whether there is such a secret. No target proves itself with one, but older builds let it be
    /// set.
    pub(crate) fn shares_secrets(&self) -> bool {
        let mut mutual = self.chaps().filter_map(|chap| chap.mutual.as_ref());
        mutual.any(|mutual| self.proves_an_initiator(&mutual.secret))
    }

    /// Whether an initiator proves itself with this secret anywhere.
    pub(crate) fn proves_an_initiator(&self, secret: &Secret) -> bool {
        self.chaps().flat_map(|chap| &chap.accounts).any(|account| account.secret == *secret)
    }

    /// Removes the rule at a place, counted from 1.
    pub(crate) fn remove_rule(&mut self, scope: &Scope, number: usize) -> Result<Rule> {
        self.change(scope, |settings| {
            let rules = &mut settings.guard.rules;
            match number.checked_sub(1).filter(|i| *i < rules.len()) {
                Some(index) => Ok(rules.remove(index)),
                None => {
                    Err(not_found(format!("remove rule {number}: the number of rules is {}", rules.len())))
                }
            }
        })
    }

    /// Maps a backing at a number, or at the lowest that is free. Tells the number.
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

    /// Removes a mapping; a file that nothing maps any more is forgotten, and told.
    pub(crate) fn remove_lun(&mut self, name: &str, lun: u16) -> Result<Option<Uuid>> {
        let luns = &mut self.named_mut(name)?.luns;
        if luns.remove(&lun).is_none() {
            return Err(not_found(format!("remove LUN {lun} from {name}: it does not exist")));
        }
        Ok(self.forget_files().pop())
    }

    /// Removes a target; files that nothing maps any more are forgotten, and told.
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

    /// Where a backing is mapped explicitly.
    pub(crate) fn mappings(&self, backing: &Uuid) -> Vec<(&str, u16)> {
        self.named
            .iter()
            .flat_map(|(name, target)| target.luns.iter().map(move |(lun, uuid)| (name.as_str(), *lun, uuid)))
            .filter(|(_, _, uuid)| *uuid == backing)
            .map(|(name, lun, _)| (name, lun))
            .collect()
    }

    /// Gives volumes and snapshots other identities, the new ones by the old ones; and exported
    /// files those that `draw` tells: a serial number that was chosen stays with the original.
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

    /// Forgets volumes that are gone: their mappings and the settings of their own targets.
    pub(crate) fn forget_volumes(&mut self, exists: impl Fn(&Uuid) -> bool) {
        let files = &self.files;
        for (name, target) in &mut self.named {
            target.luns.retain(|lun, uuid| {
                let keep = files.contains_key(uuid) || exists(uuid);
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
        self.volumes.retain(|uuid, _| exists(uuid));
    }
}

#[cfg(test)]
mod tests;
