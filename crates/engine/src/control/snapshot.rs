//! Operations on snapshots, and on how volumes preserve what their snapshots need.

use super::{FollowUp, HistoryChange, Operation};
use crate::branch::namespace::{Namespace, until};
use crate::catalog::{
    Labels, SnapshotRecord, Txn, decode_labels, decode_method, decode_order, encode_labels, encode_method,
    encode_order,
};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::Result;
use crate::ids::{Lsn, SnapshotId, Stamp, VolumeId};
use crate::settings::{Method, Order, SnapshotPolicy};
use std::sync::atomic::Ordering;

/// Freezes the current epochs of branches, all at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreateSnapshots {
    /// The snapshots, with their ids.
    pub(crate) snapshots: Vec<(SnapshotId, SnapshotRecord)>,
}

impl Operation for CreateSnapshots {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u16(self.snapshots.len() as u16);
        for (id, snapshot) in &self.snapshots {
            w.u64(*id).value(snapshot);
        }
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let count = r.u16()?;
        let read = (0..count).map(|_| Some((r.u64()?, r.value()?)));
        Some(CreateSnapshots { snapshots: read.collect::<Option<_>>()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn rows(&self) -> usize {
        // Each with its branch.
        2 * self.snapshots.len()
    }

    fn apply(&self, names: &mut Namespace, lsn: Lsn, time: u64) -> Result<()> {
        let at = Stamp::new(lsn, time);
        self.snapshots.iter().try_for_each(|(id, record)| create(names, *id, record, at))
    }

    fn history(&self, core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        change.events.extend(self.snapshots.iter().filter_map(|(id, s)| core.anchor_event(*id, s, time)));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        for (id, snapshot) in &self.snapshots {
            txn.put_snapshot(*id, snapshot)?;
            txn.change_branch(snapshot.of.branch, |b| b.epoch = snapshot.of.epoch.next())?;
            if !snapshot.origin.is_nil() {
                txn.change_volume(snapshot.volume, |v| v.import = None)?;
            }
        }
        let last = self.snapshots.iter().map(|(id, _)| *id).max().unwrap_or_default();
        txn.change_superblock(|s| s.next_id = s.next_id.max(last.0 + 1))
    }

    fn after(&self, _core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        let hidden = self.snapshots.iter().find(|(_, s)| s.deleted).map(|(_, s)| s.of.branch);
        follow_ups.extend(hidden.map(|branch| FollowUp::ConfirmAnchor { branch }));
        Ok(())
    }
}

fn create(names: &mut Namespace, id: SnapshotId, record: &SnapshotRecord, at: Stamp) -> Result<()> {
    names.load_snapshot(id, record)?;
    let branch = &names.snapshots[&id].state.line.branch;
    branch.set_epoch(record.of.epoch.next());
    branch.cdp.anchored(at.time);
    if record.deleted || branch.cdp.is_on() {
        branch.cdp.waiting.push_anchor(at, id);
    }
    if !record.origin.is_nil() {
        // The stream has arrived.
        names.on_volume(record.volume, |v| v.set_import(None));
    }
    Ok(())
}

/// Deletes snapshots. An anchor is only hidden: its history keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeleteSnapshots {
    pub(crate) ids: Vec<SnapshotId>,
}

impl Operation for DeleteSnapshots {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u16(self.ids.len() as u16);
        self.ids.iter().for_each(|id| _ = w.u64(*id));
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let count = r.u16()?;
        Some(DeleteSnapshots { ids: (0..count).map(|_| r.u64()).collect::<Option<_>>()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn rows(&self) -> usize {
        self.ids.len()
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        self.ids.iter().for_each(|id| names.hide_snapshot(*id));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.ids.iter().try_for_each(|id| txn.change_snapshot(*id, |s| s.deleted = true))
    }

    fn after(&self, core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        let deleted = self.ids.iter().copied().filter(|id| !core.is_anchor(*id)).collect();
        follow_ups.push(FollowUp::DeleteSnapshots(deleted));
        Ok(())
    }
}

/// Gives a snapshot another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenameSnapshot {
    pub(crate) id: SnapshotId,
    pub(crate) name: String,
}

impl Operation for RenameSnapshot {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).string(&self.name);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(RenameSnapshot { id: r.u64()?, name: r.string()? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.rename_snapshot(self.id, &self.name);
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_snapshot(self.id, |s| s.name.clone_from(&self.name))
    }
}

/// Sets the labels of a snapshot, and whether it is protected from deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetLabels {
    pub(crate) id: SnapshotId,
    pub(crate) protected: bool,
    pub(crate) labels: Labels,
}

impl Operation for SetLabels {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u8(self.protected as u8);
        encode_labels(w, &self.labels);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetLabels { id: r.u64()?, protected: r.u8()? != 0, labels: decode_labels(r)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        let Some(snapshot) = names.snapshots.get(&self.id) else { return Ok(()) };
        snapshot.protected.store(self.protected, Ordering::Release);
        self.labels.clone_into(&mut snapshot.labels.write());
        match until(&self.labels).filter(|_| names.is_in_sight(snapshot)) {
            Some(until) => drop(names.expiring.insert(self.id, until)),
            None => drop(names.expiring.remove(&self.id)),
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_snapshot(self.id, |s| {
            s.protected = self.protected;
            s.labels.clone_from(&self.labels);
        })
    }
}

/// Sets how much space a volume's snapshots may take, and what happens beyond that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetPolicy {
    pub(crate) id: VolumeId,
    pub(crate) policy: SnapshotPolicy,
}

impl Operation for SetPolicy {
    fn put(&self, w: &mut Writer) {
        let SnapshotPolicy { reserve_percent, auto_delete } = self.policy;
        w.u8(Self::KIND).u64(self.id).u8(reserve_percent).u8(auto_delete as u8);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (id, reserve_percent, auto_delete) = (r.u64()?, r.u8()?, r.u8()? != 0);
        Some(SetPolicy { id, policy: SnapshotPolicy { reserve_percent, auto_delete } })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| *v.policy.write() = self.policy);
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        txn.change_volume(self.id, |v| v.policy = self.policy)
    }
}

/// Sets how a volume preserves what its snapshots need, from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetMethod {
    pub(crate) id: VolumeId,
    pub(crate) method: Method,
}

impl Operation for SetMethod {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u8(encode_method(self.method));
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetMethod { id: r.u64()?, method: decode_method(r.u8()?)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| v.line.branch.set_method(self.method));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        match txn.volume(self.id)? {
            Some(volume) => txn.change_branch(volume.branch, |b| b.method = self.method),
            None => Ok(()),
        }
    }
}

/// Sets whether a volume's snapshots share what is preserved, from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetOrder {
    pub(crate) id: VolumeId,
    pub(crate) order: Order,
}

impl Operation for SetOrder {
    fn put(&self, w: &mut Writer) {
        w.u8(Self::KIND).u64(self.id).u8(encode_order(self.order));
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(SetOrder { id: r.u64()?, order: decode_order(r.u8()?)? })
    }

    fn shares_commit(&self) -> bool {
        true
    }

    fn apply(&self, names: &mut Namespace, _lsn: Lsn, _time: u64) -> Result<()> {
        names.on_volume(self.id, |v| v.line.branch.set_order(self.order));
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        match txn.volume(self.id)? {
            Some(volume) => txn.change_branch(volume.branch, |b| b.order = self.order),
            None => Ok(()),
        }
    }
}
