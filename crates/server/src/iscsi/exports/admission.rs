//! Access decisions: what an initiator may do with which logical unit.
//!
//! Rules attach to data. An initiator that logs in to a target needs that target's permission. For
//! each logical unit it also needs the permission of the volume behind it, if rules or CHAP
//! accounts were set for the volume's own target. So a second target never admits an initiator that
//! the first one refuses, in whatever order rules, accounts and mappings were made.

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

/// A target, as access to it is decided.
pub(crate) struct Gate {
    /// Who comes in.
    door: TargetSettings,
    /// Guards that volumes have of their own, by the LUNs that show them, where they are not the
    /// door's.
    behind: Vec<(u16, Guard)>,
    /// Without its only logical unit it is not there.
    single: bool,
}

impl Gate {
    pub(crate) fn door(&self) -> &TargetSettings {
        &self.door
    }
}

/// What the device server is told of a permit.
fn access(permit: Permit) -> Access {
    let luns = match permit.luns {
        LunMask::All => None,
        LunMask::Only(luns) => Some(luns.into_iter().collect()),
    };
    Access { read_only: permit.read_only, luns, limits: BTreeMap::new() }
}

/// The accounts of a target: its own, or those for all.
pub(crate) fn accounts<'a>(own: &'a Guard, all: &'a Guard) -> Option<&'a Chap> {
    own.chap.as_ref().or(all.chap.as_ref())
}

/// What an initiator has to prove. No secret is used in both directions, wherever it is set.
pub(super) fn policy(registry: &Registry, own: &Guard) -> AuthPolicy {
    let may_prove = |secret: &_| !registry.proves_an_initiator(secret);
    accounts(own, &registry.all).map_or(AuthPolicy::None, |chap| chap.policy(may_prove))
}

impl Exports {
    /// How access is decided by a target that shows `luns`; `volume`: whose own target it is, or
    /// that of its past.
    pub(crate) fn gate(
        &self,
        registry: &Registry,
        scope: &Scope,
        volume: Option<&VolumeInfo>,
        luns: &BTreeMap<u16, Uuid>,
    ) -> Gate {
        // A created target that has the name of the volume's own stands in its place. What is set
        // by that name is set there, and holds for the volume's past too.
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

    /// The volumes whose data LUNs show, as far as anything is set for volumes.
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

    /// How access is decided by the target that an initiator or client asks for.
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

    /// How access is decided by a target that sessions use. `None` if no initiator can log in by it
    /// any more.
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

    /// What an initiator may do by a target, once it has proven what it had to.
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

    /// What a volume's own guard takes from an initiator that came in by another target, having
    /// proven `account` there.
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
            // The volume is LUN 0 of its own target.
            Some(permit) if !permit.luns.contains(0) => Some(Limit::Hidden),
            Some(permit) => permit.read_only.then_some(Limit::ReadOnly),
        }
    }

    /// What an initiator may do. If it still has to prove its identity, the best access that it
    /// could get counts: it is reported as full access.
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

    /// Whether discovery tells an initiator of a target: it may log in, with the account that it
    /// proved where the target asks for that, too.
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

/// Whose data a volume's own target shows, or one of its past.
fn shown(shows: Option<Shown>, volume: &VolumeInfo) -> BTreeMap<u16, Uuid> {
    let owner = match shows {
        Some(Shown::Clone(clone)) => clone,
        Some(Shown::Snapshot(_) | Shown::Moment(_)) | None => volume.uuid,
    };
    BTreeMap::from([(0, owner)])
}
