//! Looks up targets by iSCSI name, by the short names that people type, and by the address of a
//! snapshot or moment.

use super::found::{Asked, Found, Shown};
use super::live::LiveTarget;
use super::units::Exports;
use crate::iscsi::names::{self, SnapshotPart};
use crate::iscsi::registry::Scope;
use crate::moments::{self, Past};
use hindcast_engine::pool::{SnapshotInfo, VolumeInfo};
use hindcast_engine::{Error, ErrorKind, Result};

impl Exports {
    /// Finds a target by an iSCSI name, a short name, a volume's name, or an address.
    pub(crate) fn find(&self, text: &str) -> Result<Found> {
        match self.ask(text)? {
            Asked::Target(found) => Ok(found),
            Asked::Past { target, volume, moment } => self.find_past(target, volume, &moment),
        }
    }

    /// Finds a target by name, without a search in the history of a volume.
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
        // A volume's name can have characters that an iSCSI name can't have.
        if let Ok(volume) = self.made_volume(names::volume_part(text))
            && !registry.named.contains_key(&names::of_volume(&volume))
        {
            return Ok(Asked::Target(Found::of_volume(volume)));
        }
        let name = name?;
        Err(Error::new(ErrorKind::NotFound, format!("find target {name}: it does not exist")))
    }

    /// Finds a volume. A volume that is still being created as a copy is not found, because it does
    /// not have its access rules yet.
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
            // Only a volume name with characters that an iSCSI name can't have leads to a target
            // name with a second colon.
            let changed = part.contains(':') && part != target;
            let all = if changed { self.pool.volumes() } else { Vec::new() };
            let found = all.into_iter().find(|v| names::of_volume(v) == target)?;
            self.made_volume(&found.name).ok()
        })
    }

    /// Finds a snapshot or moment. A target that a session uses keeps showing the same snapshot or
    /// moment.
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
        // The target has the name by which the initiator logs in.
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

    /// Returns all targets, sorted by name. A target that shows the past is listed only while it is
    /// open.
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

    /// Returns the targets that exist without a session, sorted by name: created targets and the
    /// own targets of volumes.
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
