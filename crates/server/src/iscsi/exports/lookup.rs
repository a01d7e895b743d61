//! Lookup of targets by name: iSCSI names, the short names that people type, and addresses of a
//! volume's past.

use super::{Exports, Live, LiveTarget, Registry, Scope, Uuid, names};
use crate::clones::clone_behind;
use crate::moments::{self, Past};
use hindcast_engine::cdp::moment_uuid;
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};
use names::SnapshotPart;
use std::collections::BTreeMap;

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
    Moment(u64),
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

    fn of_past(name: String, volume: VolumeInfo, shows: Shown) -> Found {
        let scope = Scope::Volume(volume.uuid);
        Found { name, scope, volume: Some(volume), shows: Some(shows) }
    }

    fn of_snapshot(pool: &Pool, snapshot: &SnapshotInfo, volume: VolumeInfo) -> Found {
        let clone = clone_behind(pool, snapshot).map(|clone| Shown::Clone(clone.uuid));
        let shows = clone.unwrap_or(Shown::Snapshot(snapshot.uuid));
        Found::of_past(names::of_snapshot(snapshot), volume, shows)
    }
}

impl Exports {
    /// The target that a name means: an iSCSI name, a short one, or a volume's.
    pub(crate) fn find(&self, text: &str) -> Result<Found> {
        match self.ask(text)? {
            Asked::Target(found) => Ok(found),
            Asked::Past { target, volume, moment } => self.find_past(target, volume, &moment),
        }
    }

    /// The target that a name means, as far as it can be told without a search in a history.
    pub(super) fn ask(&self, text: &str) -> Result<Asked> {
        if let Some((volume, moment)) = text.split_once('@') {
            let (volume, moment) = (self.made_volume(volume)?, moment.to_owned());
            return Ok(Asked::Past { target: None, volume, moment });
        }
        let registry = self.store.get();
        let name = names::target_name(text);
        if let Ok(name) = &name {
            if registry.named.contains_key(name) {
                return Ok(Asked::Target(Found::named(name.clone())));
            }
            if let Some(volume) = self.volume_called(name) {
                return Ok(Asked::Target(Found::of_volume(volume)));
            }
            if let Some((snapshot, volume)) = self.snapshot_called(name) {
                return Ok(Asked::Target(Found::of_snapshot(&self.pool, &snapshot, volume)));
            }
            if let Some((of, moment)) = names::moment_part(name)
                && let Some(volume) = self.volume_called(of)
            {
                let (target, moment) = (Some(name.clone()), moment.to_owned());
                return Ok(Asked::Past { target, volume, moment });
            }
        }
        // A volume's name as it is written, where an iSCSI name can't be written like that.
        if let Ok(volume) = self.made_volume(names::volume_part(text))
            && !registry.named.contains_key(&names::of_volume(&volume))
        {
            return Ok(Asked::Target(Found::of_volume(volume)));
        }
        let name = name?;
        Err(Error::new(ErrorKind::NotFound, format!("find target {name}: it does not exist")))
    }

    /// A volume. One that is still being made of another has not the rules yet that it will have,
    /// and is not there.
    fn made_volume(&self, name: &str) -> Result<VolumeInfo> {
        if self.store.get().making.contains_key(name) {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("find volume {name}: it is being created; try again"),
            ));
        }
        self.pool.volume(name)
    }

    fn volume_called(&self, target: &str) -> Option<VolumeInfo> {
        let part = names::volume_part(target);
        let direct = self.made_volume(part).ok().filter(|v| names::of_volume(v) == target);
        direct.or_else(|| {
            // Only names that were changed have a colon.
            let changed = part.contains(':') && part != target;
            let all = if changed { self.pool.volumes() } else { Vec::new() };
            let found = all.into_iter().find(|v| names::of_volume(v) == target)?;
            self.made_volume(&found.name).ok()
        })
    }

    /// Finds a snapshot or moment. What a target shows stays what it is for as long as a session
    /// uses the target.
    fn find_past(&self, target: Option<String>, volume: VolumeInfo, moment: &str) -> Result<Found> {
        let shown = target.as_ref().and_then(|name| self.live.lock().shown_by(name, &volume.uuid));
        if let (Some(name), Some(shows)) = (&target, shown) {
            return Ok(Found::of_past(name.clone(), volume, shows));
        }
        let found = match moments::find(&self.pool, &volume.name, moment)? {
            Past::Snapshot(snapshot) => Found::of_snapshot(&self.pool, &snapshot, volume),
            Past::Moment(moment) => {
                let lsn = self.pool.resolve(&volume.name, &moment)?.lsn;
                Found::of_past(names::of_moment(&volume, lsn), volume, Shown::Moment(lsn))
            }
        };
        // An initiator that logs in by a name finds a target of that name.
        Ok(Found { name: target.unwrap_or(found.name), ..found })
    }

    fn snapshot_called(&self, target: &str) -> Option<(SnapshotInfo, VolumeInfo)> {
        let snapshot = match names::snapshot_part(target)? {
            SnapshotPart::Named(volume, snapshot) => self.pool.snapshot(volume, snapshot).ok()?,
            SnapshotPart::Identified(id) => self.pool.all_snapshots().into_iter().find(|s| s.uuid == id)?,
        };
        let volume = self.pool.volume(&snapshot.volume).ok()?;
        (names::of_snapshot(&snapshot) == target).then_some((snapshot, volume))
    }

    /// All targets, by name. Targets that show the past exist as soon as an initiator asks for
    /// them, and are listed only while they are in use.
    pub(crate) fn all(&self) -> Vec<Found> {
        let mut all = self.standing();
        let shown: Vec<(String, Scope, Shown)> = {
            let live = self.live.lock();
            let shown = |(name, t): (&String, &LiveTarget)| Some((name.clone(), t.scope.clone(), t.shows?));
            live.targets.iter().filter_map(shown).collect()
        };
        if !shown.is_empty() {
            let volumes = self.pool.volumes();
            all.extend(shown.into_iter().filter_map(|(name, scope, shows)| {
                let volume = volumes.iter().find(|v| scope == Scope::Volume(v.uuid))?;
                Some(Found::of_past(name, volume.clone(), shows))
            }));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The targets that exist whether a session uses them or not, by name.
    pub(super) fn standing(&self) -> Vec<Found> {
        let registry = self.store.get();
        let named = registry.named.keys().cloned().map(Found::named);
        let made = self.pool.volumes().into_iter().filter(|v| !registry.making.contains_key(&v.name));
        let volumes = made.map(Found::of_volume);
        let mut all: Vec<Found> =
            named.chain(volumes.filter(|v| !registry.named.contains_key(&v.name))).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

impl Live {
    /// What a target of a volume shows, if a session uses it.
    fn shown_by(&self, target: &str, volume: &Uuid) -> Option<Shown> {
        let of_volume = |t: &&LiveTarget| t.scope == Scope::Volume(*volume) && t.is_in_use();
        self.targets.get(target).filter(of_volume).and_then(|t| t.shows)
    }
}
