//! The trash, and the labels of volumes (decision 68).

use super::Pool;
use super::snapshots::check_labels;
use crate::area::Area;
use crate::branch::namespace::{Namespace, check_deletable, check_name};
use crate::branch::{Base, VolumeState};
use crate::catalog::features::TRASH;
use crate::control::{DeleteVolume, LabelVolume, RestoreVolume, TrashVolume};
use crate::error::{Error, ErrorKind, Result, conflict, not_found};
use crate::ids::{BranchId, VolumeId};
use crate::info::{TrashInfo, VolumeInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

/// The largest number of labels of a volume.
const MOST_LABELS: usize = 64;

impl Pool {
    /// Moves a volume to the trash. It keeps its content, snapshots and history, and nothing of
    /// them expires there. Its name is free at once. Open handles are refused from then on.
    ///
    /// Returns [`ErrorKind::Busy`] if the volume is open and `force` is not set, and
    /// [`ErrorKind::Conflict`] if one of its snapshots is protected.
    pub fn trash_volume(&self, name: &str, force: bool) -> Result<TrashInfo> {
        self.core.names.read().volume(name)?;
        self.enable_trash()?;
        // 0 means that the volume is in use.
        let time = self.core.now().max(1);
        let id = parking_lot::Mutex::new(None);
        self.destager.submit(|names| {
            let volume = names.volume(name)?;
            names.snapshots_of(volume.id).iter().try_for_each(|snapshot| check_deletable(snapshot))?;
            check_unused(volume, name, force)?;
            *id.lock() = Some(volume.id);
            Ok(TrashVolume { id: volume.id, time }.into())
        })?;
        let id = id.into_inner();
        let trash = self.trash();
        let names = self.core.names.read();
        let volume = id.and_then(|id| names.volume_by_id(id));
        let found = volume.and_then(|volume| trash.into_iter().find(|t| t.volume.uuid == volume.uuid));
        found.ok_or_else(|| not_found(format!("find volume {name} in the trash: it was purged or restored")))
    }

    /// Returns whether the volume is on physical volumes whose own space is low. What only the file
    /// systems below lack, a purge may not give back.
    pub fn lacks_own_space(&self, of: &VolumeInfo) -> bool {
        let area = of.dedicated_pv.map_or(Area::Common, Area::Only);
        self.core.areas_without_space().contains(&area)
    }

    /// Returns the names of the snapshots of these volumes, in use or in the trash, in no order. A
    /// UUID without a volume has none.
    pub fn snapshot_names_of(&self, volumes: &BTreeSet<Uuid>) -> Vec<String> {
        let names = self.core.names.read();
        let all = names.by_name.values().chain(names.trashed());
        let wanted = all.filter(|volume| volumes.contains(&volume.uuid));
        let snapshots = wanted.flat_map(|volume| names.snapshots_by_name(volume.id));
        snapshots.map(|snapshot| snapshot.state.name.read().clone()).collect()
    }

    /// Returns the volumes in the trash, oldest first.
    pub fn trash(&self) -> Vec<TrashInfo> {
        let now = self.core.now();
        let found: Vec<(Arc<VolumeState>, u64, u64)> = {
            let names = self.core.names.read();
            let parts = |volume: &Arc<VolumeState>| {
                (volume.clone(), names.count_snapshots(volume.id), held(&names, volume))
            };
            names.trashed().into_iter().map(parts).collect()
        };
        let info = |(volume, snapshots, space): (Arc<VolumeState>, u64, u64)| TrashInfo {
            volume: volume.info(),
            snapshots,
            space,
            history: self.stored_history(volume.id),
            since: volume.trashed,
            trashed: self.core.clock.wall(volume.trashed),
            age: now.saturating_sub(volume.trashed),
        };
        let mut trash: Vec<TrashInfo> = found.into_iter().map(info).collect();
        trash.sort_by_key(|t| std::cmp::Reverse(t.age));
        trash
    }

    /// Returns the bytes of the files of a volume's history that a purge gives back. A branch on
    /// which other volumes rest keeps its history.
    fn stored_history(&self, volume: VolumeId) -> u64 {
        let stretches = self.core.stretches(volume);
        let own: BTreeMap<_, _> = stretches.iter().map(|s| (s.branch.id, &s.branch)).collect();
        let used_by_others: BTreeSet<BranchId> = {
            let names = self.core.names.read();
            let others = names.branches.iter().filter(|(id, _)| !own.contains_key(id));
            let rests_on = |base| match base {
                Base::View(view) => view.at.map(|at| at.place().0),
                _ => None,
            };
            others.filter_map(|(_, branch)| branch.base().and_then(rests_on)).collect()
        };
        let given_back = own.iter().filter(|(id, _)| !used_by_others.contains(id));
        given_back.map(|(_, branch)| branch.cdp.log.read().stored()).sum()
    }

    /// Takes a volume out of the trash, with its old name or with `name`. Returns
    /// [`ErrorKind::Conflict`] if that name is taken.
    pub fn restore_volume(&self, uuid: Uuid, name: Option<&str>) -> Result<VolumeInfo> {
        name.map_or(Ok(()), check_name)?;
        let given = parking_lot::Mutex::new(String::new());
        self.destager.submit(|names| {
            let volume = in_trash(names, uuid)?;
            let name = name.map_or_else(|| volume.name.read().clone(), str::to_owned);
            if names.by_name.contains_key(&name) {
                return Err(conflict(format!(
                    "restore volume {name}: another volume has that name; give this one a new name"
                )));
            }
            given.lock().clone_from(&name);
            Ok(RestoreVolume { id: volume.id, name }.into())
        })?;
        self.volume(&given.into_inner())
    }

    /// Deletes a volume in the trash for good. Its space comes back in the background. With
    /// `since`, returns [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if this is another stay
    /// in the trash ([`TrashInfo::since`]): the volume was restored and deleted again.
    pub fn purge_volume(&self, uuid: Uuid, since: Option<u64>) -> Result<()> {
        self.destager.submit(|names| {
            let volume = in_trash(names, uuid)?;
            if since.is_some_and(|since| since != volume.trashed) {
                return Err(conflict(format!("purge volume {uuid}: it was restored and deleted again")));
            }
            Ok(DeleteVolume { id: volume.id }.into())
        })?;
        Ok(())
    }

    /// Sets labels of a volume, or with `None` removes them. Keys have 1 to 63 bytes and values up
    /// to 255. A volume has at most 64 labels.
    pub fn label_volume(&self, name: &str, changes: &[(&str, Option<&str>)]) -> Result<VolumeInfo> {
        self.core.names.read().volume(name)?;
        self.enable_trash()?;
        self.destager.submit(|names| {
            let volume = names.volume(name)?;
            let mut labels = volume.labels.read().clone();
            for (key, value) in changes {
                match value {
                    Some(value) => drop(labels.insert((*key).to_owned(), (*value).to_owned())),
                    None => drop(labels.remove(*key)),
                }
            }
            check_labels(&labels, MOST_LABELS)?;
            Ok(LabelVolume { id: volume.id, labels }.into())
        })?;
        self.volume(name)
    }

    /// Enables the trash and the labels of volumes, unless the pool has them. Their first use does
    /// it, too. Older builds refuse the pool from then on. Destage may be held up by a shortage
    /// then, so this does not wait for it.
    pub fn enable_trash(&self) -> Result<()> {
        if self.core.has_feature(TRASH) {
            return Ok(());
        }
        self.destager.enable_bare(TRASH)
    }
}

/// Fails with [`ErrorKind::Busy`] if a volume is open, unless `force`.
pub(super) fn check_unused(volume: &VolumeState, name: &str, force: bool) -> Result<()> {
    let handles = volume.handles.load(Ordering::Acquire);
    if handles == 0 || force {
        return Ok(());
    }
    let text = format!("delete volume {name}: {handles} clients use it; --force disconnects them");
    Err(Error::new(ErrorKind::Busy, text))
}

fn in_trash(names: &Namespace, uuid: Uuid) -> Result<Arc<VolumeState>> {
    let found = names.trashed().into_iter().find(|volume| volume.uuid == uuid).cloned();
    found.ok_or_else(|| not_found(format!("find volume {uuid} in the trash: it is not there")))
}

/// Returns the bytes of slots of a volume and of its snapshots.
fn held(names: &Namespace, volume: &VolumeState) -> u64 {
    let branches = names.branches_of(volume);
    branches.values().map(|branch| branch.slots.load(Ordering::Relaxed) << branch.slot_log2).sum()
}
