//! Rollback: a volume continues from an earlier state.

use super::{FollowUp, HistoryChange, Operation, Preparation, put_area, put_at, take_at};
use crate::area::Area;
use crate::branch::namespace::Namespace;
use crate::catalog::{
    BaseRecord, BranchRecord, Event, Frozen, LineRecord, SnapshotRecord, Txn, VolumeRecord,
};
use crate::codec::{Reader, Writer};
use crate::core::Core;
use crate::error::{Result, corrupt};
use crate::ids::{BranchId, Epoch, Lsn, SnapshotId, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Continues a volume from a frozen state, on a new branch. The volume's former state is kept as a
/// snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RollBack {
    pub(crate) id: VolumeId,
    pub(crate) branch: BranchId,
    pub(crate) base: Frozen,
    /// The LSN of the record right after which the base branch is the base. Without one the base
    /// is as its epoch shows it.
    pub(crate) at: Option<Lsn>,
    pub(crate) size: u64,
    pub(crate) undo_id: SnapshotId,
    pub(crate) undo: SnapshotRecord,
    /// The area of the new branch.
    pub(crate) area: Area,
}

impl RollBack {
    pub(super) fn take_at_moment(r: &mut Reader<'_>) -> Option<Self> {
        let at = Some(take_at(r)?);
        Some(RollBack { at, ..Self::take(r)? })
    }
}

impl Operation for RollBack {
    fn put(&self, w: &mut Writer) {
        put_area(w, self.area);
        put_at(w, (Self::KIND, Self::KIND_AT_MOMENT), self.at);
        w.u64(self.id).u64(self.branch).u64(self.base.branch).u32(self.base.epoch.0).u64(self.size);
        w.u64(self.undo_id).value(&self.undo);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(RollBack {
            id: r.u64()?,
            branch: r.u64()?,
            base: Frozen { branch: r.u64()?, epoch: Epoch(r.u32()?) },
            at: None,
            size: r.u64()?,
            undo_id: r.u64()?,
            undo: r.value()?,
            area: Area::Common,
        })
    }

    fn apply(&self, names: &mut Namespace, lsn: Lsn, time: u64) -> Result<()> {
        self.continue_volume(names, time)?;
        names.on_volume(self.id, |v| v.line.branch.cdp.wrote(lsn));
        Ok(())
    }

    fn prepare(&self, _core: &Core, preparation: &mut Preparation) -> Result<()> {
        preparation.orphan_branches.push(self.undo.of.branch);
        Ok(())
    }

    fn history(&self, core: &Core, time: u64, change: &mut HistoryChange) -> Result<()> {
        let old = core.branch(self.undo.of.branch)?;
        let settings = old.cdp.log.read().settings;
        if let Some(settings) = settings {
            change.events.extend(core.anchor_event(self.undo_id, &self.undo, time));
            let began = Event::On { settings, begins: true, size: self.size, time };
            change.events.push((core.branch(self.branch)?, began));
            change.lines.push((self.id, LineRecord::Branch { branch: self.branch, time }));
            // An anchor follows, with the branch's own content.
        }
        Ok(())
    }

    fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let RollBack { id, branch, base, at, size, undo_id, undo, area } = self;
        let Some(volume) = txn.volume(*id)? else { return Ok(()) };
        let Some(was) = txn.branch(volume.branch)? else {
            return Err(corrupt(format!("roll back volume {}: its branch is missing", volume.name)));
        };
        txn.put_snapshot(*undo_id, undo)?;
        txn.change_branch(volume.branch, |b| {
            b.epoch = undo.of.epoch.next();
            b.dead = true;
        })?;
        let new = BranchRecord::new(was.chunk_log2, Some(BaseRecord::Frozen(*base)), was.method);
        let (order, placement) = (was.order, was.placement);
        txn.put_branch(*branch, &BranchRecord { order, placement, base_at: *at, area: *area, ..new })?;
        txn.put_volume(*id, &VolumeRecord { branch: *branch, size: *size, import: None, ..volume })?;
        txn.change_superblock(|s| s.next_id = s.next_id.max(branch.0 + 1).max(undo_id.0 + 1))
    }

    fn after(&self, core: &Core, _lsn: Lsn, follow_ups: &mut Vec<FollowUp>) -> Result<()> {
        // A snapshot out of sight is deleted when nothing rests on it, unless it belongs to a
        // history.
        if self.undo.deleted && !core.anchors().contains(&self.undo_id) {
            follow_ups.push(FollowUp::DeleteSnapshots(vec![self.undo_id]));
        }
        Ok(())
    }
}

impl RollBack {
    /// Replaces the volume by one on the new branch.
    fn continue_volume(&self, names: &mut Namespace, time: u64) -> Result<()> {
        let RollBack { id, branch, base, at, size, undo_id, undo, area } = self;
        let Some(old) = names.volume_by_id(*id).cloned() else { return Ok(()) };
        names.load_snapshot(*undo_id, undo)?;
        old.line.branch.set_epoch(undo.of.epoch.next());
        let was = &old.line.branch;
        let record = BranchRecord {
            order: was.order(),
            placement: was.placement(),
            base_at: *at,
            area: *area,
            ..BranchRecord::new(was.chunk_log2, Some(BaseRecord::Frozen(*base)), was.method())
        };
        let new = names.add_branch(*branch, &record, was.preserved.clone())?;
        new.cdp.want(was.cdp.wanted());
        new.cdp.set_model(was.cdp.model());
        new.cdp.anchored(time);
        names.next_id = names.next_id.max(branch.0 + 1);
        names.remove_volume(&old);
        let record = VolumeRecord { size: *size, branch: *branch, import: None, ..old.record() };
        // A new branch with the same content is no rollback for clients.
        let renewed = undo.deleted;
        let handles = if renewed { old.handles.clone() } else { Arc::default() };
        names.add_volume(*id, record, old.counters.clone(), handles)?;
        if let Some(new) = names.volume_by_id(*id).filter(|_| renewed) {
            let _ = old.successor.set(new.clone());
        }
        // Handles of what it was find it deleted: data never changes under a client without its
        // knowledge.
        old.deleted.store(true, Ordering::Release);
        Ok(())
    }
}
