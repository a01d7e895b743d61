//! The origin of volumes and snapshots: which content depends on which, in the terms of the API.

use crate::{clones, convert};
use hindcast_api as api;
use hindcast_engine::ids::{BranchId, Epoch, Lsn};
use hindcast_engine::pool::{Pool, SnapshotInfo, VolumeInfo};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Dependencies between branches, for one response. Each part is computed when the response first
/// needs it. Most responses about one volume need no part, and the cost of each grows with the
/// number of volumes.
pub(crate) struct Lineage<'a> {
    /// The pool. Snapshots are requested from it one by one: there can be very many, and most
    /// responses need few.
    pool: &'a Pool,
    /// Bases of branches.
    bases: OnceCell<BTreeMap<BranchId, (BranchId, Epoch)>>,
    /// For each branch whose base is a moment: the volume whose history it is, if that volume
    /// exists, and the LSN.
    moments: OnceCell<BTreeMap<BranchId, (Option<String>, Lsn)>>,
    /// Names of volumes, by their bases.
    clones: OnceCell<BTreeMap<(BranchId, Epoch), Vec<String>>>,
    /// Names of volumes by UUID, in the form that labels have.
    names: OnceCell<BTreeMap<String, String>>,
}

impl Lineage<'_> {
    pub(crate) fn new(pool: &Pool) -> Lineage<'_> {
        Lineage {
            pool,
            bases: OnceCell::new(),
            moments: OnceCell::new(),
            clones: OnceCell::new(),
            names: OnceCell::new(),
        }
    }

    /// Makes a value for the response about a volume that was just created, and not from another
    /// one. Such a volume has no base, so no branches are read.
    pub(crate) fn of_new(pool: &Pool) -> Lineage<'_> {
        Lineage { bases: OnceCell::from(BTreeMap::new()), ..Lineage::new(pool) }
    }

    fn base(&self, branch: BranchId) -> Option<(BranchId, Epoch)> {
        self.bases.get_or_init(|| self.pool.branch_bases()).get(&branch).copied()
    }

    /// Returns what precedes `epoch` of a branch: the address of the newest visible snapshot, and
    /// that of the newest moment behind it on which a branch rests.
    fn before(&self, branch: BranchId, epoch: Epoch) -> (Option<String>, Option<String>) {
        let (mut branch, mut end, mut moment) = (branch, epoch, None);
        loop {
            if let Some(found) = self.newest(branch, Epoch::NONE..end) {
                return (Some(found), moment);
            }
            let Some(base) = self.base(branch) else { return (None, moment) };
            moment = moment.or_else(|| self.moment(branch).flatten());
            // The base of a moment is the anchor from which it is read. Snapshots may lie between.
            let at = self.moments().get(&branch).map(|(_, lsn)| *lsn);
            if let Some((volume, name)) = at.and_then(|at| self.pool.newest_snapshot_at(base.0, at)) {
                return (Some(format!("{volume}@{name}")), moment);
            }
            (branch, end) = (base.0, base.1.next());
        }
    }

    fn moments(&self) -> &BTreeMap<BranchId, (Option<String>, Lsn)> {
        self.moments.get_or_init(|| self.pool.moment_bases())
    }

    /// Returns the address of the moment on which a branch rests. The inner `None`: the volume
    /// whose history that is does not exist any more.
    fn moment(&self, branch: BranchId) -> Option<Option<String>> {
        let (volume, lsn) = self.moments().get(&branch)?;
        Some(volume.as_ref().map(|volume| format!("{volume}@lsn:{lsn}")))
    }

    /// Returns the address of the snapshot or moment at which a volume's current branch begins.
    fn origin(&self, branch: BranchId) -> Option<String> {
        // Who rests on a moment rests on its branch.
        let (base, epoch) = self.base(branch)?;
        if let Some(moment) = self.moment(branch) {
            return moment;
        }
        self.newest(base, epoch..epoch.next())
    }

    fn newest(&self, branch: BranchId, epochs: Range<Epoch>) -> Option<String> {
        self.pool.newest_snapshot(branch, epochs).map(|(volume, snapshot)| format!("{volume}@{snapshot}"))
    }

    /// Returns the names of the volumes that depend on a snapshot, sorted.
    pub(crate) fn clones(&self, info: &SnapshotInfo) -> Vec<String> {
        if !info.pinned {
            return Vec::new();
        }
        let all = self.clones.get_or_init(|| {
            let bases = self.bases.get_or_init(|| self.pool.branch_bases());
            let mut clones: BTreeMap<_, Vec<String>> = BTreeMap::new();
            let volumes = if bases.is_empty() { Vec::new() } else { self.pool.volumes() };
            for volume in volumes {
                if let Some(of) = bases.get(&volume.branch) {
                    clones.entry(*of).or_default().push(volume.name);
                }
            }
            clones
        });
        all.get(&info.of).cloned().unwrap_or_default()
    }

    /// Returns the name of the clone at a snapshot's address, if there is one.
    fn writable(&self, info: &SnapshotInfo) -> Option<String> {
        let id = info.labels.get(clones::CLONE)?;
        if let Some(clone) = clones::clone_by_default_name(self.pool, info) {
            return Some(clone.name);
        }
        let all = || self.pool.volumes().into_iter().map(|v| (v.uuid.to_string(), v.name)).collect();
        self.names.get_or_init(all).get(id).cloned()
    }

    pub(crate) fn snapshot(&self, info: &SnapshotInfo) -> api::Snapshot {
        let (parent, after_moment) = self.before(info.of.0, info.of.1);
        api::Snapshot {
            volume: info.volume.clone(),
            name: info.name.clone(),
            uuid: info.uuid.to_string(),
            size: info.size,
            created: convert::time(info.created),
            labels: clones::labels(info),
            writable: self.writable(info),
            inherited: None,
            expires: info.expires.map(convert::time),
            protected: info.protected,
            parent,
            after_moment,
            clones: self.clones(info),
            handles: info.handles,
            unique: None,
            shared: None,
        }
    }

    pub(crate) fn volume(&self, info: &VolumeInfo) -> api::Volume {
        let (parent, after_moment) = self.before(info.branch, Epoch::MAX);
        let origin = self.origin(info.branch).or_else(|| info.image.clone());
        let on = info.dedicated_pv.and_then(|pv| self.pool.pv_path(pv));
        let own = |placement| convert::volume_placement(placement, self.pool.extent_size());
        let placement = info.placement.map(own);
        api::Volume { origin, parent, after_moment, on, placement, ..convert::volume(info) }
    }
}

#[cfg(test)]
mod tests;
