//! Snapshots, clones and rollback: control operations like others, sequenced among the writes.

use super::Pool;
use super::expiry::Undo;
use crate::branch::namespace::{
    Namespace, Snapshot, check_deletable, check_depth, check_name, frozen_now, until,
};
use crate::branch::{Base, Branch, VolumeState};
use crate::catalog::{Frozen, Labels, SnapshotRecord, VolumeRecord};
use crate::clock::PoolClock;
use crate::control::{
    CloneVolume, Control, CreateSnapshots, DeleteSnapshots, RenameSnapshot, RollBack, SetLabels, SetMethod,
    SetOrder,
};
use crate::error::{Error, ErrorKind, Result, conflict, invalid};
use crate::ids::{BranchId, Epoch, SnapshotId, VolumeId};
use crate::info::{SnapshotInfo, VolumeInfo};
use crate::settings::{Method, Order};
use crate::world::{Rng, uuid};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

/// Number of snapshots that one operation creates or deletes: it has to fit a journal record.
const MAX_SNAPSHOTS_AT_ONCE: usize = 200;

impl Pool {
    /// Takes snapshots of volumes, all at one instant of the order of writes: (volume, name of the
    /// snapshot). They are durable when this returns. Clients do not wait.
    pub fn create_snapshots(&self, wanted: &[(&str, &str)]) -> Result<Vec<SnapshotInfo>> {
        if wanted.is_empty() || wanted.len() > MAX_SNAPSHOTS_AT_ONCE {
            return Err(invalid(format!(
                "create snapshots: their number must be 1 to {MAX_SNAPSHOTS_AT_ONCE} at once"
            )));
        }
        let uuids: Vec<_> = wanted.iter().map(|_| uuid(&*self.core.world.rng)).collect();
        let created = self.core.world.clock.now();
        self.destager.submit(|names| {
            let mut snapshots: Vec<(SnapshotId, SnapshotRecord)> = Vec::new();
            for ((volume, name), uuid) in wanted.iter().zip(&uuids) {
                let state = names.volume(volume)?;
                if snapshots.iter().any(|(_, s)| s.volume == state.id) {
                    return Err(invalid(format!("create snapshots: {volume} is named twice")));
                }
                let id = SnapshotId(names.next_id + snapshots.len() as u64);
                snapshots.push((id, record(names, state, name, *uuid, created)?));
            }
            Ok(CreateSnapshots { snapshots }.into())
        })?;
        wanted.iter().map(|(volume, name)| self.snapshot(volume, name)).collect()
    }

    /// Returns the snapshots of a volume, oldest first.
    pub fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotInfo>> {
        let names = self.core.names.read();
        let state = names.volume(volume)?;
        Ok(names.snapshots_of(state.id).into_iter().map(|s| info(&self.core.clock, &names, s)).collect())
    }

    /// Returns the snapshots of a volume that were created within a range of times of the wall
    /// clock, in no order. The others are not looked at closely, so a console may ask often.
    pub fn snapshots_within(&self, volume: &str, times: Range<u64>) -> Result<Vec<SnapshotInfo>> {
        let names = self.core.names.read();
        let found = names.snapshots_by_name(names.volume(volume)?.id);
        let found = found.filter(|snapshot| times.contains(&snapshot.state.created));
        Ok(found.map(|snapshot| info(&self.core.clock, &names, snapshot)).collect())
    }

    /// Returns the names of a volume's `most` newest snapshots, oldest first.
    pub fn snapshot_names(&self, volume: &str, most: usize) -> Result<Vec<String>> {
        let names = self.core.names.read();
        let all = names.snapshots_of(names.volume(volume)?.id);
        let newest = &all[all.len().saturating_sub(most)..];
        Ok(newest.iter().map(|s| s.state.name.read().clone()).collect())
    }

    /// Returns the snapshots of all volumes, by volume name, and for each volume oldest first.
    pub fn all_snapshots(&self) -> Vec<SnapshotInfo> {
        let names = self.core.names.read();
        let of = |volume: &Arc<VolumeState>| names.snapshots_of(volume.id);
        names.by_name.values().flat_map(of).map(|s| info(&self.core.clock, &names, s)).collect()
    }

    /// Returns the time at which the newest visible snapshot of each volume was created. Volumes
    /// without snapshots are left out.
    pub fn newest_snapshot_times(&self) -> BTreeMap<Uuid, u64> {
        let names = self.core.names.read();
        let newest = |volume: &Arc<VolumeState>| {
            let on_branch = names.newest_in(volume.line.branch.id, Epoch::NONE..Epoch::MAX);
            // A volume that was taken back has its snapshots on other branches.
            let of_volume = on_branch.filter(|snapshot| snapshot.volume == volume.id);
            let newest = of_volume.or_else(|| names.snapshots_by_name(volume.id).max_by_key(|s| s.id))?;
            Some((volume.uuid, newest.state.created))
        };
        names.by_name.values().filter_map(newest).collect()
    }

    /// Returns the number of visible snapshots of each volume, by its name.
    pub fn snapshot_counts(&self) -> BTreeMap<String, u64> {
        let names = self.core.names.read();
        names.by_name.iter().map(|(name, volume)| (name.clone(), names.count_snapshots(volume.id))).collect()
    }

    /// Returns the newest visible snapshot that froze one of these epochs of a branch: (name of its
    /// volume, its own name).
    pub fn newest_snapshot(&self, branch: BranchId, epochs: Range<Epoch>) -> Option<(String, String)> {
        let names = self.core.names.read();
        let found = names.newest_in(branch, epochs)?;
        let volume = names.volume_by_id(found.volume)?.name.read().clone();
        Some((volume, found.state.name.read().clone()))
    }

    /// Returns, for each branch that rests on a frozen state, that state as (branch, epoch). Such
    /// branches are those of clones, and of volumes that were rolled back.
    pub fn branch_bases(&self) -> BTreeMap<BranchId, (BranchId, Epoch)> {
        let names = self.core.names.read();
        let base = |(id, branch): (&BranchId, &Arc<Branch>)| {
            let Some(Base::View(line)) = branch.base() else { return None };
            Some((*id, (line.branch.id, line.epoch)))
        };
        names.branches.iter().filter_map(base).collect()
    }

    /// Returns one snapshot.
    pub fn snapshot(&self, volume: &str, name: &str) -> Result<SnapshotInfo> {
        let names = self.core.names.read();
        Ok(info(&self.core.clock, &names, names.snapshot(names.volume(volume)?, name)?))
    }

    /// Returns whether a snapshot or a mark of a volume has this name.
    pub fn is_taken(&self, volume: &str, name: &str) -> Result<bool> {
        let names = self.core.names.read();
        Ok(names.past(names.volume(volume)?, name).is_some())
    }

    /// Deletes snapshots of a volume. They are invisible at once. The space that only they need
    /// comes back in the background, once no handle and no clone rests on them. Returns
    /// [`ErrorKind::Conflict`] if one of them is protected.
    pub fn delete_snapshots(&self, volume: &str, wanted: &[&str]) -> Result<()> {
        if wanted.is_empty() || wanted.len() > MAX_SNAPSHOTS_AT_ONCE {
            return Err(invalid(format!(
                "delete snapshots: their number must be 1 to {MAX_SNAPSHOTS_AT_ONCE} at once"
            )));
        }
        self.destager.submit(|names| {
            let state = names.volume(volume)?;
            let ids = wanted.iter().map(|name| {
                let snapshot = names.snapshot(state, name)?;
                check_deletable(snapshot)?;
                Ok(snapshot.id)
            });
            Ok(DeleteSnapshots { ids: ids.collect::<Result<_>>()? }.into())
        })?;
        Ok(())
    }

    /// Gives a snapshot another name.
    pub fn rename_snapshot(&self, volume: &str, name: &str, new_name: &str) -> Result<SnapshotInfo> {
        self.change_snapshot(volume, name, |names, state, snapshot| {
            check_free(names, state, new_name)?;
            Ok(RenameSnapshot { id: snapshot.id, name: new_name.to_owned() }.into())
        })
    }

    /// Carries out an operation on a snapshot, and returns what the snapshot is after it. The
    /// operation may have allowed a policy to delete the snapshot: the answer is the same then.
    fn change_snapshot(
        &self,
        volume: &str,
        name: &str,
        operation: impl Fn(&Namespace, &VolumeState, &Snapshot) -> Result<Control>,
    ) -> Result<SnapshotInfo> {
        let changed = Mutex::new(None);
        self.destager.submit(|names| {
            let state = names.volume(volume)?;
            let snapshot = names.snapshot(state, name)?;
            *changed.lock() = Some(snapshot.clone());
            operation(names, state, snapshot)
        })?;
        match changed.into_inner() {
            Some(snapshot) => Ok(info(&self.core.clock, &self.core.names.read(), &snapshot)),
            None => self.snapshot(volume, name),
        }
    }

    /// Sets a label of a snapshot, or with `None` removes it. Keys have 1 to 63 bytes and values up
    /// to 255. A snapshot has at most 16 labels.
    pub fn label_snapshot(
        &self,
        volume: &str,
        name: &str,
        changes: &[(&str, Option<&str>)],
    ) -> Result<SnapshotInfo> {
        self.change_snapshot(volume, name, |_, _, snapshot| {
            let mut labels = snapshot.labels.read().clone();
            for (key, value) in changes {
                match value {
                    Some(value) => drop(labels.insert((*key).to_owned(), (*value).to_owned())),
                    None => drop(labels.remove(*key)),
                }
            }
            check_labels(&labels, 16)?;
            let protected = snapshot.protected.load(Ordering::Acquire);
            Ok(SetLabels { id: snapshot.id, protected, labels }.into())
        })
    }

    /// Forbids (or allows) the deletion of a snapshot, by the operator as well as by any policy.
    pub fn protect_snapshot(&self, volume: &str, name: &str, protected: bool) -> Result<SnapshotInfo> {
        self.change_snapshot(volume, name, |_, _, snapshot| {
            let labels = snapshot.labels.read().clone();
            Ok(SetLabels { id: snapshot.id, protected, labels }.into())
        })
    }

    /// Makes a writable volume from a snapshot. It takes no space until it is written to.
    pub fn clone_volume(&self, volume: &str, snapshot: &str, new_name: &str) -> Result<VolumeInfo> {
        check_name(new_name)?;
        let identity = uuid(&*self.core.world.rng);
        let created = self.core.world.clock.now();
        self.destager.submit(|names| {
            if names.by_name.contains_key(new_name) {
                return Err(conflict(format!("create volume {new_name}: the name is taken")));
            }
            let parent = names.volume(volume)?;
            let origin = &names.snapshot(parent, snapshot)?.state;
            check_depth(&origin.line)?;
            let branch = &origin.line.branch;
            let of = (origin.size.load(Ordering::Acquire), origin.block_size);
            let record = VolumeRecord::new(identity, new_name, of, BranchId(names.next_id + 1));
            let clone = VolumeRecord { created, direct_min: parent.direct_min(), ..record };
            Ok(CloneVolume {
                id: VolumeId(names.next_id),
                chunk_log2: branch.chunk_log2,
                base: origin.line.frozen(),
                at: None,
                method: branch.method(),
                volume: clone,
                area: branch.area,
            }
            .into())
        })?;
        self.volume(new_name)
    }

    /// Takes a volume back to one of its snapshots. Newer snapshots stay, and the volume's present
    /// state is kept as the snapshot `undo`. Open handles are refused from then on
    /// ([`ErrorKind::Busy`] if there are any, unless `force`): data never changes under a client
    /// that does not know.
    pub fn roll_back<'u>(
        &self,
        volume: &str,
        snapshot: &str,
        undo: impl Into<Undo<'u>>,
        force: bool,
    ) -> Result<SnapshotInfo> {
        let undo = undo.into();
        let labels = self.undo_labels(&undo);
        let identity = uuid(&*self.core.world.rng);
        let created = self.core.world.clock.now();
        self.destager.submit_with(|names| {
            let state = names.volume(volume)?;
            let target = &names.snapshot(state, snapshot)?.state;
            let handles = state.handles.load(Ordering::Acquire);
            if handles > 0 && !force {
                let text =
                    format!("roll back volume {volume}: {handles} clients use it; --force disconnects them");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            check_depth(&target.line)?;
            let roll_back = RollBack {
                id: state.id,
                branch: BranchId(names.next_id + 1),
                base: target.line.frozen(),
                at: None,
                size: target.size.load(Ordering::Acquire),
                undo_id: SnapshotId(names.next_id),
                undo: SnapshotRecord {
                    labels: labels.clone(),
                    ..record(names, state, undo.name, identity, created)?
                },
                area: state.line.branch.area,
            };
            let anchor = names.anchor_after(&roll_back, &*self.core.world.rng);
            Ok(([roll_back.into()].into_iter().chain(anchor).collect(), None))
        })?;
        self.snapshot(volume, undo.name)
    }

    /// Returns the volumes that have used more than half of their epochs, with the number used.
    pub(crate) fn low_on_epochs(&self) -> Vec<(String, u32)> {
        let names = self.core.names.read();
        let used = names.by_name.iter().map(|(name, state)| (name.clone(), state.line.branch.epoch().0));
        used.filter(|(_, epoch)| *epoch > self.core.options.renew_at_epoch.0 / 2).collect()
    }

    /// Sets whether a volume's snapshots share what is preserved, from now on.
    pub fn set_order(&self, volume: &str, order: Order) -> Result<VolumeInfo> {
        self.destager.submit(|names| Ok(SetOrder { id: names.volume(volume)?.id, order }.into()))?;
        self.volume(volume)
    }

    /// Sets how a volume preserves what its snapshots need, from now on.
    pub fn set_method(&self, volume: &str, method: Method) -> Result<VolumeInfo> {
        self.destager.submit(|names| Ok(SetMethod { id: names.volume(volume)?.id, method }.into()))?;
        self.volume(volume)
    }
}

pub(crate) fn info(clock: &PoolClock, names: &Namespace, snapshot: &Arc<Snapshot>) -> SnapshotInfo {
    let state = &snapshot.state;
    let of = state.line.frozen();
    SnapshotInfo {
        volume: names.volume_by_id(snapshot.volume).map(|v| v.name.read().clone()).unwrap_or_default(),
        name: state.name.read().clone(),
        uuid: state.uuid,
        size: state.size.load(Ordering::Relaxed),
        created: state.created,
        of: (of.branch, of.epoch),
        pinned: names.is_pinned(snapshot),
        handles: state.handles.load(Ordering::Relaxed),
        protected: snapshot.protected.load(Ordering::Relaxed),
        labels: snapshot.labels.read().clone(),
        expires: until(&snapshot.labels.read()).map(|until| clock.wall(until)),
        content: snapshot.content(),
    }
}

impl Namespace {
    /// Returns what a name means in a volume's past: `snapshot` or `mark`. They share addresses, so
    /// a name is never both.
    pub(crate) fn past(&self, volume: &VolumeState, name: &str) -> Option<&'static str> {
        if self.snapshot(volume, name).is_ok() {
            return Some("snapshot");
        }
        self.marks.get(volume.id, name).map(|_| "mark")
    }

    /// Returns the operation that takes an anchor: a snapshot that is never visible, kept for the
    /// history.
    pub(crate) fn anchor(&self, volume: &VolumeState, rng: &dyn Rng) -> Result<Control> {
        let record = frozen_now(volume, ANCHOR, uuid(rng), 0)?;
        Ok(anchor(SnapshotId(self.next_id), record))
    }

    /// Returns the operation that follows a rollback of a volume with CDP: the first anchor of the
    /// new branch.
    pub(crate) fn anchor_after(&self, roll_back: &RollBack, rng: &dyn Rng) -> Option<Control> {
        let RollBack { id, branch, size, undo, .. } = roll_back;
        if !self.volume_by_id(*id)?.line.branch.cdp.is_on() {
            return None;
        }
        let (of, name) = (Frozen { branch: *branch, epoch: Epoch::FIRST }, ANCHOR.to_owned());
        let record = SnapshotRecord { uuid: uuid(rng), name, of, size: *size, created: 0, ..undo.clone() };
        Some(anchor(SnapshotId(branch.0 + 1), record))
    }
}

pub(crate) fn anchor(id: SnapshotId, record: SnapshotRecord) -> Control {
    CreateSnapshots { snapshots: vec![(id, SnapshotRecord { deleted: true, ..record })] }.into()
}

/// The name of anchors. It collides with no snapshot's name.
const ANCHOR: &str = "anchor";

/// Returns the record of a snapshot of `volume` as it is now.
pub(crate) fn record(
    names: &Namespace,
    volume: &VolumeState,
    name: &str,
    uuid: Uuid,
    created: u64,
) -> Result<SnapshotRecord> {
    check_free(names, volume, name)?;
    frozen_now(volume, name, uuid, created)
}

/// Fails if there are more than `most` labels, or if one of them is too long.
pub(super) fn check_labels(labels: &Labels, most: usize) -> Result<()> {
    let fits = |(key, value): (&String, &String)| (1..=63).contains(&key.len()) && value.len() <= 255;
    if labels.len() <= most && labels.iter().all(fits) {
        return Ok(());
    }
    Err(invalid(format!(
        "set labels: there may be up to {most} labels, with keys of 1 to 63 and values of up to 255 bytes"
    )))
}

pub(super) fn check_free(names: &Namespace, volume: &VolumeState, name: &str) -> Result<()> {
    check_name(name)?;
    match names.past(volume, name) {
        Some(what) => {
            let volume = volume.name.read();
            Err(conflict(format!("name the snapshot {name}: {volume} has a {what} of that name")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MIB, Site};

    /// A policy may delete a snapshot as soon as it is unprotected. Here the operation itself does.
    #[test]
    fn a_change_that_ends_a_snapshot_is_answered() {
        let site = Site::new(16).having("v", MIB, 4096);
        site.pool.create_snapshots(&[("v", "s")]).unwrap();
        let end =
            |_: &Namespace, _: &VolumeState, s: &Snapshot| Ok(DeleteSnapshots { ids: vec![s.id] }.into());
        let answer = site.pool.change_snapshot("v", "s", end).unwrap();
        assert_eq!((&*answer.volume, &*answer.name), ("v", "s"));
        assert_eq!(site.pool.snapshot("v", "s").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
