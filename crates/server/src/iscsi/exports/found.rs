//! What a lookup finds: a target ([`Found`]), and what of a volume's past it shows.

use crate::clones::clone_behind;
use crate::iscsi::names;
use crate::iscsi::registry::{Registry, Scope};
use hindcast_engine::cdp::moment_uuid;
use hindcast_engine::ids::Lsn;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A target that exists.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) scope: Scope,
    /// The volume whose target it is by default.
    pub(crate) volume: Option<VolumeInfo>,
    /// Set if the target shows that volume's past. Such a target exists while a session uses it.
    pub(super) shows: Option<Shown>,
}

/// What of its volume's past a target shows, or what was made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Snapshot(Uuid),
    /// The clone behind a writable snapshot.
    Clone(Uuid),
    /// An LSN.
    Moment(Lsn),
}

/// The target that a name asks for, as far as the name alone tells it.
pub(super) enum Asked {
    Target(Found),
    /// A volume's past, by the name of a target or by an address. To find out which costs: all that
    /// was written by then has to be in its place.
    Past {
        target: Option<String>,
        volume: VolumeInfo,
        moment: String,
    },
}

impl Asked {
    pub(super) fn scope(&self) -> Scope {
        match self {
            Asked::Target(found) => found.scope.clone(),
            // An initiator that may see a volume may see its past: the rules of the volume's target
            // count here too.
            Asked::Past { volume, .. } => Scope::Volume(volume.uuid),
        }
    }

    /// The target's name, if it is known already.
    pub(super) fn into_name(self) -> Option<String> {
        match self {
            Asked::Target(found) => Some(found.name),
            Asked::Past { target, .. } => target,
        }
    }
}

impl Found {
    /// What is mapped where.
    pub(crate) fn luns(&self, registry: &Registry) -> BTreeMap<u16, Uuid> {
        match (self.shows, &self.volume, registry.named.get(&self.name)) {
            (Some(Shown::Snapshot(id) | Shown::Clone(id)), _, _) => BTreeMap::from([(0, id)]),
            (Some(Shown::Moment(lsn)), Some(volume), _) => {
                BTreeMap::from([(0, moment_uuid(&volume.uuid, lsn))])
            }
            (None, Some(volume), _) => BTreeMap::from([(0, volume.uuid)]),
            (_, None, named) => named.map(|t| t.luns.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn named(name: String) -> Found {
        Found { scope: Scope::Named(name.clone()), name, volume: None, shows: None }
    }

    pub(super) fn of_volume(volume: VolumeInfo) -> Found {
        let (name, scope) = (names::of_volume(&volume), Scope::Volume(volume.uuid));
        Found { name, scope, volume: Some(volume), shows: None }
    }

    pub(super) fn of_past(name: String, volume: VolumeInfo, shows: Shown) -> Found {
        let scope = Scope::Volume(volume.uuid);
        Found { name, scope, volume: Some(volume), shows: Some(shows) }
    }

    pub(super) fn of_snapshot(pool: &Pool, snapshot: &SnapshotInfo, volume: VolumeInfo) -> Found {
        let clone = clone_behind(pool, snapshot).map(|clone| Shown::Clone(clone.uuid));
        let shows = clone.unwrap_or(Shown::Snapshot(snapshot.uuid));
        Found::of_past(names::of_snapshot(snapshot), volume, shows)
    }
}
