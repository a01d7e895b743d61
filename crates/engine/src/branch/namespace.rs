//! The names of the pool: volumes, branches and physical volumes in memory, as of the last
//! sequenced record. The catalog follows, in LSN order.

use super::counters::{PreserveCounters, VolumeCounters};
use super::image::ExternalImage;
use super::marks::Marks;
use super::pinned::PinnedMoment;
use super::{Base, Branch, HEAD, View, VolumeState};
use crate::area::Area;
use crate::catalog::{
    BaseRecord, BranchRecord, Frozen, Labels, LineRecord, PvRecord, SnapshotRecord, Superblock, VolumeRecord,
};
use crate::disk::Dir;
use crate::error::{Result, conflict, corrupt, invalid, not_found};
use crate::ids::{BranchId, Epoch, Lsn, SnapshotId, VolumeId};
use crate::settings::{MAX_VOLUME_SIZE, Placement};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// A snapshot. Its state reads a line at an epoch.
pub(crate) struct Snapshot {
    pub(crate) id: SnapshotId,
    /// The id of the volume that the snapshot belongs to.
    pub(crate) volume: VolumeId,
    pub(crate) state: Arc<VolumeState>,
    /// The identity of the snapshot that a stream imported, or zeros.
    pub(crate) origin: Uuid,
    pub(crate) protected: AtomicBool,
    pub(crate) labels: RwLock<Labels>,
}

impl Snapshot {
    /// Returns the identity of the snapshot's content.
    pub(crate) fn content(&self) -> Uuid {
        if self.origin.is_nil() { self.state.uuid } else { self.origin }
    }
}

/// The names and ids of a pool, in memory. Control operations are applied to it under the
/// sequencing lock, in their order: see `crate::control`.
pub(crate) struct Namespace {
    atomic_unit: u32,
    /// The directory in which images are opened.
    dir: Arc<dyn Dir>,
    pub(crate) by_name: BTreeMap<String, Arc<VolumeState>>,
    by_id: HashMap<VolumeId, Arc<VolumeState>>,
    /// All branches that have rows in the catalog, or will have them, including dead ones. They are
    /// in order, so that background work takes the same branch first in every run.
    pub(crate) branches: BTreeMap<BranchId, Arc<Branch>>,
    /// Snapshots by id, including deleted ones that still have rows in the catalog.
    pub(crate) snapshots: BTreeMap<SnapshotId, Arc<Snapshot>>,
    /// The ids of visible snapshots, by (volume, name).
    snapshot_names: BTreeMap<(VolumeId, String), SnapshotId>,
    /// The ids of visible snapshots, by the state that they froze.
    in_sight: BTreeMap<Frozen, SnapshotId>,
    /// Visible snapshots that expire: the id, and the pool time at which the snapshot expires.
    pub(crate) expiring: BTreeMap<SnapshotId, u64>,
    /// The number of branches that rest on each frozen state.
    children: HashMap<Frozen, u32>,
    pub(crate) marks: Marks,
    /// The physical volumes that were added and not removed, by number.
    pub(crate) pvs: BTreeMap<u32, PvRecord>,
    pub(crate) placement: Placement,
    pub(crate) next_id: u64,
    pub(crate) next_pv: u32,
    /// The number of leases of imports that were given since the pool was opened.
    pub(crate) leases: u64,
}

impl Namespace {
    pub(crate) fn new(dir: Arc<dyn Dir>, superblock: &Superblock) -> Self {
        let Superblock { atomic_unit, placement, next_id, next_pv, .. } = *superblock;
        Namespace {
            atomic_unit,
            dir,
            by_name: BTreeMap::new(),
            by_id: HashMap::new(),
            branches: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            snapshot_names: BTreeMap::new(),
            in_sight: BTreeMap::new(),
            expiring: BTreeMap::new(),
            children: HashMap::new(),
            marks: Marks::default(),
            pvs: BTreeMap::new(),
            placement,
            next_id,
            next_pv,
            leases: 0,
        }
    }

    /// Loads a branch. Branches are loaded in the order of their ids, so a base comes before the
    /// branches that rest on it.
    pub(crate) fn load_branch(&mut self, id: BranchId, record: &BranchRecord) -> Result<Arc<Branch>> {
        self.add_branch(id, record, Arc::default())
    }

    /// Adds a branch, whose cost of preserving is added to `preserved`.
    pub(crate) fn add_branch(
        &mut self,
        id: BranchId,
        record: &BranchRecord,
        preserved: Arc<PreserveCounters>,
    ) -> Result<Arc<Branch>> {
        let base = match &record.base {
            None => None,
            Some(BaseRecord::Frozen(of)) => {
                let mut line = self.line(*of)?;
                if let Some(at) = record.base_at {
                    // Nothing of that moment expires as long as something rests on it.
                    line.at = Some(PinnedMoment::new(&line.branch, at));
                }
                *self.children.entry(*of).or_insert(0) += 1;
                Some(Base::View(line))
            }
            Some(BaseRecord::Image(image)) => {
                Some(Base::Image(Arc::new(ExternalImage::new(image.clone(), self.dir.clone()))))
            }
        };
        let branch = Arc::new(Branch::new(id, record, base, self.atomic_unit, preserved));
        self.branches.insert(id, branch.clone());
        Ok(branch)
    }

    /// Forgets a branch that has no content left.
    pub(crate) fn forget_branch(&mut self, id: BranchId) {
        if let Some(branch) = self.branches.remove(&id) {
            self.drop_base(&branch);
        }
    }

    /// Drops the base of a branch, which rests on nothing any more.
    pub(crate) fn drop_base(&mut self, branch: &Branch) {
        if let Some(Base::View(line)) = branch.drop_base()
            && let Some(count) = self.children.get_mut(&line.frozen())
        {
            *count -= 1;
            if *count == 0 {
                self.children.remove(&line.frozen());
            }
        }
    }

    /// Returns all volumes and snapshots, visible or not.
    pub(crate) fn states(&self) -> impl Iterator<Item = &Arc<VolumeState>> {
        self.by_id.values().chain(self.snapshots.values().map(|s| &s.state))
    }

    /// Returns the branches of a volume: the one that it writes to, and those of its snapshots,
    /// visible or not.
    pub(crate) fn branches_of(&self, volume: &VolumeState) -> BTreeMap<BranchId, Arc<Branch>> {
        let of_snapshots = self.snapshots.values().filter(|s| s.volume == volume.id);
        let branches = of_snapshots.map(|s| &s.state.line.branch).chain([&volume.line.branch]);
        branches.map(|branch| (branch.id, branch.clone())).collect()
    }

    /// Returns whether a branch has snapshots in the catalog, visible or not.
    pub(crate) fn is_named(&self, branch: BranchId) -> bool {
        self.snapshots.values().any(|s| s.state.line.branch.id == branch)
    }

    /// Returns whether any branch rests on a frozen state.
    pub(crate) fn has_children(&self, of: Frozen) -> bool {
        self.children.contains_key(&of)
    }

    /// Returns whether a clone rests on a snapshot, or a history has it as an anchor.
    pub(crate) fn is_pinned(&self, snapshot: &Snapshot) -> bool {
        let line = &snapshot.state.line;
        self.has_children(line.frozen()) || line.branch.cdp.log.read().is_anchor(snapshot.id)
    }

    fn line(&self, of: Frozen) -> Result<View> {
        let branch = self.branches.get(&of.branch).cloned();
        let branch = branch.ok_or_else(|| corrupt(format!("find branch {}: it is missing", of.branch)))?;
        Ok(View { branch, epoch: of.epoch, at: None })
    }

    pub(crate) fn load_volume(&mut self, id: VolumeId, record: VolumeRecord) -> Result<()> {
        self.add_volume(id, record, Arc::default(), Arc::default())
    }

    /// Adds a volume, or replaces the one with this id. Its name must be free, unless the volume is
    /// in the trash.
    pub(crate) fn add_volume(
        &mut self,
        id: VolumeId,
        record: VolumeRecord,
        counters: Arc<VolumeCounters>,
        handles: Arc<AtomicU64>,
    ) -> Result<()> {
        let line = self.line(Frozen { branch: record.branch, epoch: HEAD })?;
        let state = Arc::new(VolumeState {
            id,
            uuid: record.uuid,
            block_size: record.block_size,
            created: record.created,
            line,
            name: RwLock::new(record.name.clone()),
            size: AtomicU64::new(record.size),
            read_only: AtomicBool::new(record.read_only),
            deleted: AtomicBool::new(false),
            handles,
            successor: OnceLock::new(),
            policy: RwLock::new(record.policy),
            import: RwLock::new(record.import),
            trashed: record.trashed,
            labels: RwLock::new(record.labels),
            direct_min: AtomicU64::new(record.direct_min.code()),
            importing: AtomicBool::new(record.import.is_some()),
            lease: AtomicU64::new(0),
            counters,
        });
        if record.trashed == 0 && self.by_name.insert(record.name.clone(), state.clone()).is_some() {
            return Err(corrupt(format!("load volume {}: two volumes have that name", record.name)));
        }
        self.by_id.insert(id, state);
        Ok(())
    }

    pub(crate) fn load_snapshot(&mut self, id: SnapshotId, record: &SnapshotRecord) -> Result<()> {
        let line = self.line(record.of)?;
        line.branch.frozen.write().insert(record.of.epoch);
        let of = (record.uuid, record.block_size, record.created);
        let state = Arc::new(VolumeState::frozen(record.volume, of, line, record.name.clone(), record.size));
        if !record.deleted && self.snapshot_names.insert((record.volume, record.name.clone()), id).is_some() {
            return Err(corrupt(format!(
                "load snapshot {}: two snapshots of its volume have that name",
                record.name
            )));
        }
        if !record.deleted {
            self.in_sight.insert(record.of, id);
            self.expiring.extend(until(&record.labels).map(|until| (id, until)));
        }
        let snapshot = Snapshot {
            id,
            volume: record.volume,
            state,
            origin: record.origin,
            protected: AtomicBool::new(record.protected),
            labels: RwLock::new(record.labels.clone()),
        };
        self.snapshots.insert(id, Arc::new(snapshot));
        self.next_id = self.next_id.max(id.0 + 1);
        Ok(())
    }

    pub(crate) fn volume_by_id(&self, id: VolumeId) -> Option<&Arc<VolumeState>> {
        self.by_id.get(&id)
    }

    /// Returns the volume that writes to a branch. It may be in the trash.
    pub(crate) fn volume_of(&self, branch: BranchId) -> Option<&Arc<VolumeState>> {
        self.by_id.values().find(|volume| volume.line.branch.id == branch)
    }

    /// Returns the visible snapshots of a volume, oldest first.
    pub(crate) fn snapshots_of(&self, volume: VolumeId) -> Vec<&Arc<Snapshot>> {
        let mut found: Vec<_> = self.snapshots_by_name(volume).collect();
        found.sort_by_key(|s| s.id);
        found
    }

    /// Returns the visible snapshots of a volume, by name.
    pub(crate) fn snapshots_by_name(&self, volume: VolumeId) -> impl Iterator<Item = &Arc<Snapshot>> {
        let names =
            self.snapshot_names.range((volume, String::new())..(VolumeId(volume.0 + 1), String::new()));
        names.filter_map(|(_, id)| self.snapshots.get(id))
    }

    /// Returns the number of visible snapshots of a volume.
    pub(crate) fn count_snapshots(&self, volume: VolumeId) -> u64 {
        let next = VolumeId(volume.0 + 1);
        self.snapshot_names.range((volume, String::new())..(next, String::new())).count() as u64
    }

    pub(crate) fn snapshot(&self, volume: &VolumeState, name: &str) -> Result<&Arc<Snapshot>> {
        let id = self.snapshot_names.get(&(volume.id, name.to_owned()));
        id.and_then(|id| self.snapshots.get(id)).ok_or_else(|| {
            not_found(format!("find snapshot {}@{name}: it does not exist", volume.name.read()))
        })
    }

    /// Returns the newest visible snapshot that froze one of these epochs of a branch.
    pub(crate) fn newest_in(&self, branch: BranchId, epochs: ops::Range<Epoch>) -> Option<&Arc<Snapshot>> {
        let of = |epoch| Frozen { branch, epoch };
        if epochs.is_empty() {
            return None;
        }
        let found = self.in_sight.range(of(epochs.start)..of(epochs.end)).next_back();
        found.and_then(|(_, id)| self.snapshots.get(id))
    }

    pub(crate) fn is_in_sight(&self, snapshot: &Snapshot) -> bool {
        let key = (snapshot.volume, snapshot.state.name.read().clone());
        self.snapshot_names.get(&key) == Some(&snapshot.id)
    }

    /// Removes a snapshot from the visible ones.
    pub(crate) fn hide_snapshot(&mut self, id: SnapshotId) {
        if let Some(snapshot) = self.snapshots.get(&id) {
            let key = (snapshot.volume, snapshot.state.name.read().clone());
            if self.snapshot_names.get(&key) == Some(&id) {
                self.snapshot_names.remove(&key);
                self.in_sight.remove(&snapshot.state.line.frozen());
                self.expiring.remove(&id);
            }
        }
    }

    pub(crate) fn volume(&self, name: &str) -> Result<&Arc<VolumeState>> {
        self.by_name.get(name).ok_or_else(|| not_found(format!("find volume {name:?}: it does not exist")))
    }

    /// Runs `change` on a volume. Does nothing if an earlier operation deleted the volume.
    pub(crate) fn on_volume(&self, id: VolumeId, change: impl FnOnce(&VolumeState)) {
        if let Some(volume) = self.by_id.get(&id) {
            change(volume);
        }
    }

    /// Removes a volume, and its name unless it is in the trash.
    pub(crate) fn remove_volume(&mut self, volume: &VolumeState) {
        self.by_id.remove(&volume.id);
        if volume.trashed == 0 {
            self.by_name.remove(&*volume.name.read());
        }
    }

    /// Returns the volumes in the trash, in the order of their ids.
    pub(crate) fn trashed(&self) -> Vec<&Arc<VolumeState>> {
        let mut found: Vec<_> = self.by_id.values().filter(|volume| volume.trashed != 0).collect();
        found.sort_by_key(|volume| volume.id);
        found
    }

    /// Moves a volume to the trash at this pool time. Does nothing if an earlier operation deleted
    /// the volume.
    pub(crate) fn trash(&mut self, id: VolumeId, time: u64) -> Result<()> {
        let Some(old) = self.by_id.get(&id).cloned() else { return Ok(()) };
        self.remove_volume(&old);
        let record = VolumeRecord { trashed: time, ..old.record() };
        // Open handles belong to the old state. They are refused, as after a deletion.
        self.add_volume(id, record, old.counters.clone(), Arc::default())?;
        old.deleted.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes a volume out of the trash, with a name that is free. Does nothing if an earlier
    /// operation deleted the volume.
    pub(crate) fn restore(&mut self, id: VolumeId, name: &str) -> Result<()> {
        let Some(old) = self.by_id.get(&id).cloned() else { return Ok(()) };
        self.remove_volume(&old);
        let record = VolumeRecord { trashed: 0, name: name.to_owned(), ..old.record() };
        self.add_volume(id, record, old.counters.clone(), Arc::default())?;
        old.deleted.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives a snapshot another name, by which it is visible.
    pub(crate) fn rename_snapshot(&mut self, id: SnapshotId, name: &str) {
        if let Some(snapshot) = self.snapshots.get(&id).cloned() {
            self.hide_snapshot(id);
            name.clone_into(&mut snapshot.state.name.write());
            self.snapshot_names.insert((snapshot.volume, name.to_owned()), id);
            self.in_sight.insert(snapshot.state.line.frozen(), id);
            self.expiring.extend(until(&snapshot.labels.read()).map(|until| (id, until)));
        }
    }

    /// Returns the number of the physical volume that `wanted` names by path, UUID (as hex digits)
    /// or number, or, if it is a layout, by its name.
    pub(crate) fn find_pv(&self, wanted: &str) -> Result<u32> {
        let uuid = Uuid::try_parse(&wanted.replace('-', "")).ok();
        let is =
            |id: u32, pv: &PvRecord| pv.path == wanted || Some(pv.uuid) == uuid || id.to_string() == wanted;
        let is_named = |pv: &PvRecord| pv.path.strip_suffix(wanted).is_some_and(is_kind);
        let mut found = self.pvs.iter().filter(|(id, pv)| is(**id, pv) || is_named(pv));
        match (found.next(), found.next()) {
            (Some((id, _)), None) => Ok(*id),
            (Some(_), Some(_)) => Err(invalid(format!(
                "find physical volume {wanted:?}: this is the name of one and the number of another one; use its path"
            ))),
            (None, _) => Err(not_found(format!("find physical volume {wanted:?}: it does not exist"))),
        }
    }

    /// Returns the placement that a branch has of its own.
    pub(crate) fn placement_of(&self, branch: BranchId) -> Option<Placement> {
        self.branches.get(&branch).and_then(|branch| branch.placement())
    }

    /// Returns whether Share places slots of the pool, or of a branch that has a placement of its
    /// own.
    pub(crate) fn shares(&self) -> bool {
        let is_share = |placement| placement == Placement::Share;
        is_share(self.placement) || self.branches.values().any(|of| of.placement().is_some_and(is_share))
    }

    /// Returns the area of a dedicated physical volume: see [`Namespace::find_pv`].
    pub(crate) fn dedicated(&self, wanted: &str) -> Result<Area> {
        let pv = self.find_pv(wanted)?;
        match self.pvs.get(&pv) {
            Some(record) if !record.dedicated => Err(conflict(format!(
                "use {wanted} for one volume: it is not dedicated, so every volume uses it; see `hindcast pool add --dedicated`"
            ))),
            Some(record) if record.draining => {
                Err(conflict(format!("use {wanted} for a volume: it is being drained")))
            }
            _ => Ok(Area::Only(pv)),
        }
    }

    /// Refuses to remove a physical volume without which the branches that use it have none that
    /// takes data. `others` are those that take data.
    pub(crate) fn check_spared(&self, pv: u32, others: &BTreeSet<u32>) -> Result<()> {
        let area = |pv: &u32| self.pvs.get(pv).map(|record| Area::of(*pv, record.dedicated));
        let takes = |id: &u32| self.pvs.get(id).is_some_and(|record| !record.draining);
        let has_common = others.iter().any(|id| takes(id) && area(id) == Some(Area::Common));
        let is_common_used = self.branches.values().any(|branch| branch.area == Area::Common);
        let is_needed = area(&pv) == Some(Area::Common) && is_common_used && !has_common;
        if !is_needed && others.iter().any(takes) {
            return Ok(());
        }
        let path = self.pvs.get(&pv).map_or("", |pv| &pv.path);
        Err(conflict(format!(
            "remove {path}: no other physical volume takes data; add one, or stop draining one"
        )))
    }

    /// Refuses to take a dedicated physical volume away while anything is on it.
    pub(crate) fn check_vacant(&self, pv: u32) -> Result<()> {
        let is_there = |branch: &Arc<Branch>| branch.area == Area::Only(pv);
        let volumes = self.by_name.values().chain(self.trashed());
        let names: BTreeSet<String> =
            volumes.filter(|v| is_there(&v.line.branch)).map(|v| v.name.read().clone()).collect();
        let of_snapshots = self.snapshots.values().filter(|s| is_there(&s.state.line.branch)).count();
        if names.is_empty() && of_snapshots == 0 && !self.branches.values().any(is_there) {
            return Ok(());
        }
        let path = self.pvs.get(&pv).map_or("", |pv| &pv.path);
        let what = match (names.len(), of_snapshots) {
            (0, 0) => "what deleted volumes leave is still being freed; try again later".to_owned(),
            (0, snapshots) => format!("{snapshots} snapshots are on it; delete them first"),
            _ => {
                let some: Vec<&str> = names.iter().take(5).map(String::as_str).collect();
                let more = if names.len() > 5 { ", ..." } else { "" };
                format!(
                    "these volumes are on it: {}{more}; delete them first, from the trash too",
                    some.join(", ")
                )
            }
        };
        Err(conflict(format!("take {path} away, which is dedicated: {what}")))
    }
}

/// Returns whether this is how the path of a layout begins.
fn is_kind(text: &str) -> bool {
    matches!(text, "mirror:" | "raid5:")
}

/// Checks a name. Names are used in addresses (`vol@snap`), URLs, iSCSI names and export names.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= 128 && name.chars().all(ok) {
        return Ok(());
    }
    Err(invalid(format!(
        "use the name {name:?}: a name must have 1 to 128 letters, digits, dots, underscores and hyphens, and start with a letter or digit"
    )))
}

pub(crate) fn check_size(size: u64, block_size: u32) -> Result<()> {
    if size > 0 && size <= MAX_VOLUME_SIZE && size % block_size as u64 == 0 {
        return Ok(());
    }
    Err(invalid(format!(
        "use a size of {size} bytes: it must be a multiple of {block_size} from {block_size} to {MAX_VOLUME_SIZE}"
    )))
}

/// Returns the pool time at which a snapshot with these labels expires.
pub(crate) fn until(labels: &Labels) -> Option<u64> {
    labels.get(UNTIL)?.parse().ok()
}

/// The history of each volume: its line records, by LSN.
pub(crate) type Lines = BTreeMap<VolumeId, BTreeMap<Lsn, LineRecord>>;

/// The label with the pool time, in nanoseconds, at which a snapshot expires.
pub(crate) const UNTIL: &str = "hindcast.until";

/// The name of the hidden snapshot that keeps a volume's former state when the volume is given a
/// new branch. No user sees the name.
pub(crate) const RENEWED: &str = "renewed";

pub(crate) fn frozen_now(
    volume: &VolumeState,
    name: &str,
    uuid: Uuid,
    created: u64,
) -> Result<SnapshotRecord> {
    let branch = &volume.line.branch;
    let epoch = branch.epoch();
    if epoch.next() >= HEAD {
        return Err(invalid("create a snapshot: the volume has used all its epochs"));
    }
    Ok(SnapshotRecord {
        uuid,
        name: name.to_owned(),
        volume: volume.id,
        of: Frozen { branch: branch.id, epoch },
        size: volume.size.load(Ordering::Acquire),
        block_size: volume.block_size,
        created,
        deleted: false,
        origin: Uuid::nil(),
        protected: false,
        labels: BTreeMap::new(),
    })
}

pub(crate) fn check_depth(line: &View) -> Result<()> {
    if line.depth() >= MAX_DEPTH {
        return Err(conflict(format!(
            "depend on a snapshot: the limit of {MAX_DEPTH} nested bases is reached; flatten the volume first"
        )));
    }
    Ok(())
}

/// The largest number of bases under one another. A read walks them.
pub(crate) const MAX_DEPTH: usize = 256;

/// Fails if the snapshot is protected.
pub(crate) fn check_deletable(snapshot: &Snapshot) -> Result<()> {
    if snapshot.protected.load(Ordering::Acquire) {
        let name = snapshot.state.name.read();
        return Err(conflict(format!("delete snapshot {name}: it is protected; unprotect it first")));
    }
    Ok(())
}
