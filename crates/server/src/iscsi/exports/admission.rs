//! Access decisions: what an initiator may do with each logical unit.
//!
//! Access rules attach to data. An initiator that logs in to a target needs the permission of that
//! target. For each logical unit it also needs the permission of the volume behind it, if the
//! volume's own target has rules or CHAP accounts. So a second target never admits an initiator to
//! a volume whose own target refuses it. The order in which the operator sets rules, accounts and
//! mappings does not matter.

use super::found::{Asked, Shown};
use super::units::Exports;
use crate::clones::clone_behind;
use crate::iscsi::credentials::{Account, Chap};
use crate::iscsi::names;
use crate::iscsi::registry::{Guard, Registry, Scope, TargetSettings};
use crate::moments::{self, Past};
use hindcast_engine::pool::VolumeInfo;
use hindcast_target::iscsi::access::{LunMask, Party, Permit, conceivable, decide};
use hindcast_target::iscsi::{AuthPolicy, Initiator, Proof};
use hindcast_target::scsi::{Access, Limit, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// The settings that decide the access to a target.
pub(crate) struct Gate {
    /// The settings of the target that the initiator logs in to.
    door: TargetSettings,
    /// The guards of volumes behind the target, by LUN. A guard without rules and accounts, and the
    /// guard that `door` already has, are left out.
    behind: Vec<(u16, Guard)>,
    /// The target has only LUN 0. It refuses an initiator that may not see that LUN.
    single: bool,
}

impl Gate {
    pub(crate) fn door(&self) -> &TargetSettings {
        &self.door
    }
}

/// Converts a permit to the access type of the device server.
fn access(permit: Permit) -> Access {
    let luns = match permit.luns {
        LunMask::All => None,
        LunMask::Only(luns) => Some(luns.into_iter().collect()),
    };
    Access { read_only: permit.read_only, luns, limits: BTreeMap::new() }
}

/// Returns the CHAP accounts of a target, or those that apply to all targets if it has none.
pub(crate) fn accounts<'a>(own: &'a Guard, all: &'a Guard) -> Option<&'a Chap> {
    own.chap.as_ref().or(all.chap.as_ref())
}

/// Returns how an initiator must authenticate. The server does not use a secret for mutual CHAP if
/// any initiator, at any target, authenticates with it.
pub(super) fn policy(registry: &Registry, own: &Guard) -> AuthPolicy {
    let may_prove = |secret: &_| !registry.proves_an_initiator(secret);
    accounts(own, &registry.all).map_or(AuthPolicy::None, |chap| chap.policy(may_prove))
}

impl Exports {
    /// Returns the settings that decide the access to a target with the mappings `luns`. `volume`
    /// is set for a volume's own target, and for a target that shows the volume's past.
    pub(crate) fn gate(
        &self,
        registry: &Registry,
        scope: &Scope,
        volume: Option<&VolumeInfo>,
        luns: &BTreeMap<u16, Uuid>,
    ) -> Gate {
        // A created target with the name of the volume's own target replaces it. The settings of
        // the created target then apply to the volume's past, too.
        let shadow = volume.and_then(|v| registry.named.get(&names::of_volume(v)));
        let door = shadow.map_or_else(|| registry.settings(scope), |named| named.settings.clone());
        let own = volume.filter(|_| shadow.is_none()).map(|v| v.uuid);
        let mut owners = self.owners(registry, luns);
        owners.extend(volume.filter(|_| shadow.is_some()).map(|v| (0, v.uuid)));
        let guard = |(lun, owner): (u16, Uuid)| {
            let guard = &registry.volumes.get(&owner).filter(|_| own != Some(owner))?.guard;
            (!guard.rules.is_empty() || guard.chap.is_some()).then(|| (lun, guard.clone()))
        };
        let behind = owners.into_iter().filter_map(guard).collect();
        Gate { door, behind, single: volume.is_some() }
    }

    /// Returns the volume or file behind each LUN. The result is empty if no volume has settings of
    /// its own.
    fn owners(&self, registry: &Registry, luns: &BTreeMap<u16, Uuid>) -> Vec<(u16, Uuid)> {
        if registry.volumes.is_empty() {
            return Vec::new();
        }
        let known = |id: &Uuid| registry.volumes.contains_key(id) || registry.files.contains_key(id);
        let mut owners: Vec<(u16, Uuid)> = luns.iter().map(|(lun, id)| (*lun, *id)).collect();
        if luns.values().all(known) {
            return owners;
        }
        let volumes: BTreeMap<Uuid, String> =
            self.pool.volumes().into_iter().map(|v| (v.uuid, v.name)).collect();
        if luns.values().all(|id| known(id) || volumes.contains_key(id)) {
            return owners;
        }
        let snapshots: BTreeMap<Uuid, String> =
            self.pool.all_snapshots().into_iter().map(|s| (s.uuid, s.volume)).collect();
        for (_, id) in owners.iter_mut().filter(|(_, id)| !known(id)) {
            let of = snapshots.get(id);
            if let Some((owner, _)) = volumes.iter().find(|(_, name)| Some(*name) == of) {
                *id = *owner;
            }
        }
        owners
    }

    /// Returns the settings that decide the access to the target that an initiator or client
    /// requests.
    pub(super) fn gate_of(&self, registry: &Registry, asked: &Asked) -> Gate {
        match asked {
            Asked::Target(found) => {
                let luns = match (found.shows, &found.volume) {
                    (None, None) => found.luns(registry),
                    (shows, Some(volume)) => shown(shows, volume),
                    _ => BTreeMap::new(),
                };
                self.gate(registry, &found.scope, found.volume.as_ref(), &luns)
            }
            Asked::Past { volume, moment, .. } => {
                let clone = match moments::find(&self.pool, &volume.name, moment) {
                    Ok(Past::Snapshot(snapshot)) => clone_behind(&self.pool, &snapshot),
                    _ => None,
                };
                let luns = shown(clone.map(|clone| Shown::Clone(clone.uuid)), volume);
                self.gate(registry, &asked.scope(), Some(volume), &luns)
            }
        }
    }

    /// Returns the settings that decide the access to a target with sessions. Returns `None` if no
    /// initiator can log in to it any more.
    pub(crate) fn live_gate(&self, registry: &Registry, target: &Arc<Target>) -> Option<Gate> {
        let (scope, shows) = {
            let live = self.live.lock();
            let found = live.targets.values().find(|t| Arc::ptr_eq(&t.target, target))?;
            (found.scope.clone(), found.shows)
        };
        match &scope {
            Scope::Volume(id) => {
                let volume = self.pool.volumes().into_iter().find(|v| v.uuid == *id)?;
                Some(self.gate(registry, &scope, Some(&volume), &shown(shows, &volume)))
            }
            Scope::Named(name) => Some(self.gate(registry, &scope, None, &registry.named.get(name)?.luns)),
            Scope::All => None,
        }
    }

    /// Returns the access of an initiator that has authenticated where the target requires it.
    /// Returns `None` if the target refuses the initiator.
    pub(crate) fn admit(&self, registry: &Registry, gate: &Gate, who: &Party<'_>) -> Option<Access> {
        if !gate.door.enabled {
            return None;
        }
        let all = &registry.all;
        let permit = decide(&gate.door.guard.rules, &all.rules, self.otherwise, who)?;
        let mut access = access(permit);
        let account = who.user.and_then(|user| accounts(&gate.door.guard, all)?.account(user));
        for (lun, guard) in &gate.behind {
            if let Some(limit) = self.limit(registry, guard, who, account) {
                let known = access.limits.entry(*lun).or_insert(limit);
                *known = (*known).max(limit);
            }
        }
        let gone = gate.single && access.limits.get(&0) == Some(&Limit::Hidden);
        (!gone).then_some(access)
    }

    /// Returns how a volume's own guard limits an initiator that logged in through another target
    /// with `account`. Returns `None` if the guard does not limit the initiator.
    fn limit(
        &self,
        registry: &Registry,
        guard: &Guard,
        who: &Party<'_>,
        account: Option<&Account>,
    ) -> Option<Limit> {
        let account =
            account.filter(|a| accounts(guard, &registry.all).is_some_and(|c| c.accounts.contains(a)));
        if guard.chap.is_some() && account.is_none() {
            return Some(Limit::Hidden);
        }
        if guard.rules.is_empty() {
            return None;
        }
        let who = Party { user: account.map(|a| a.user.as_str()), ..*who };
        match decide(&guard.rules, &registry.all.rules, self.otherwise, &who) {
            None => Some(Limit::Hidden),
            // A volume is LUN 0 of its own target.
            Some(permit) if !permit.luns.contains(0) => Some(Limit::Hidden),
            Some(permit) => permit.read_only.then_some(Limit::ReadOnly),
        }
    }

    /// Returns the access of an initiator. An initiator that has not authenticated yet gets full
    /// access here, if the rules could admit it with an account of the target or without one.
    pub(super) fn admit_initiator(
        &self,
        registry: &Registry,
        gate: &Gate,
        initiator: &Initiator<'_>,
    ) -> Option<Access> {
        let (name, address) = (initiator.name, initiator.peer.ip());
        match initiator.proof {
            Proof::Given(user) => self.admit(registry, gate, &Party { name, address, user }),
            Proof::Pending => self.could_enter(registry, &gate.door, name, address).then(Access::default),
        }
    }

    fn could_enter(
        &self,
        registry: &Registry,
        door: &TargetSettings,
        name: &str,
        address: std::net::IpAddr,
    ) -> bool {
        let chap = accounts(&door.guard, &registry.all);
        let may_prove = |user: &str| chap.is_some_and(|chap| chap.account(user).is_some());
        let who = Party { name, address, user: None };
        door.enabled && conceivable(&door.guard.rules, &registry.all.rules, self.otherwise, &who, &may_prove)
    }

    /// Returns whether discovery lists a target for an initiator. If the target has CHAP accounts
    /// of its own, or the initiator has not authenticated yet, it counts as able to prove any of
    /// the accounts.
    pub(super) fn is_shown(
        &self,
        registry: &Registry,
        door: &TargetSettings,
        initiator: &Initiator<'_>,
    ) -> bool {
        let (name, address) = (initiator.name, initiator.peer.ip());
        match initiator.proof {
            Proof::Given(user) if door.guard.chap.is_none() => {
                let who = Party { name, address, user };
                let rules = (&door.guard.rules, &registry.all.rules);
                door.enabled && decide(rules.0, rules.1, self.otherwise, &who).is_some()
            }
            _ => self.could_enter(registry, door, name, address),
        }
    }
}

/// Returns the mapping that decides access to a volume's own target, or to a target that shows its
/// past. LUN 0 maps to the clone behind a writable snapshot, and otherwise to the volume.
fn shown(shows: Option<Shown>, volume: &VolumeInfo) -> BTreeMap<u16, Uuid> {
    let owner = match shows {
        Some(Shown::Clone(clone)) => clone,
        Some(Shown::Snapshot(_) | Shown::Moment(_)) | None => volume.uuid,
    };
    BTreeMap::from([(0, owner)])
}
