//! The result of a lookup: a target ([`Found`]), and the part of a volume's past that it shows.

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
    /// The volume, if this is its own target or shows its past. `None` for a created target.
    pub(crate) volume: Option<VolumeInfo>,
    /// The past that the target shows. `None` for every other target. A target that shows the past
    /// exists only while a session uses it.
    pub(super) shows: Option<Shown>,
}

/// The part of a volume's past that a target shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Snapshot(Uuid),
    /// The UUID of the clone behind a writable snapshot.
    Clone(Uuid),
    /// The LSN of a moment.
    Moment(Lsn),
}

/// The target that a name requests, as far as the name alone identifies it.
pub(super) enum Asked {
    Target(Found),
    /// A part of a volume's past, requested by the name of a target or by an address. Resolving
    /// `moment` is expensive, because the pool first destages every write before it.
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
            // The access rules of a volume's own target apply to its past, too.
            Asked::Past { volume, .. } => Scope::Volume(volume.uuid),
        }
    }

    /// Returns the name of the target. Returns `None` for an address, which has no name before a
    /// lookup.
    pub(super) fn into_name(self) -> Option<String> {
        match self {
            Asked::Target(found) => Some(found.name),
            Asked::Past { target, .. } => target,
        }
    }
}

impl Found {
    /// Returns the UUID of the volume, file, snapshot or moment behind each LUN.
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
