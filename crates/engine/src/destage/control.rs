//! Carries out control records. Each reaches the catalog at its place in the order.

use super::batch::DiscardRange;
use super::history::HistoryChange;
use super::state::{BackgroundState, FlattenJob};
use crate::branch::Branch;
use crate::catalog::{
    BaseRecord, BranchRecord, Control, Event, FillRecord, PvRecord, SnapshotRecord, Superblock, Txn,
    VolumeRecord,
};
use crate::core::Core;
use crate::destage::Destager;
use crate::disk::OpenMode;
use crate::error::{Result, corrupt};
use crate::settings::Method;
use crate::space::label::wipe;
use crate::space::pv::Pv;
use std::sync::Arc;

/// A record that shares its commit with others: what it changes in the catalog, and in histories.
pub(crate) struct Operation<'a> {
    lsn: u64,
    /// The parts of the control record; empty for a long discard.
    parts: &'a [Control],
    history: HistoryChange,
}

impl Operation<'_> {
    pub(super) fn of_event(lsn: u64, branch: Arc<Branch>, event: Event) -> Self {
        Operation { lsn, parts: &[], history: HistoryChange::of(branch, event) }
    }
}

impl Core {
    /// Works out what the control records of a batch change, given the state before its commit.
    pub(super) fn operations<'a>(&self, controls: &'a [((u64, u64), Control)]) -> Result<Vec<Operation<'a>>> {
        controls.iter().map(|(at, control)| self.operation(*at, control)).collect()
    }

    pub(super) fn operation<'a>(
        &self,
        (lsn, time): (u64, u64),
        control: &'a Control,
    ) -> Result<Operation<'a>> {
        let mut history = HistoryChange::default();
        control.parts().iter().try_for_each(|part| self.note_history(&mut history, part, time))?;
        Ok(Operation { lsn, parts: control.parts(), history })
    }

    /// Makes operations part of a transaction, in their order.
    pub(super) fn write_operations(&self, txn: &mut Txn<'_>, operations: &[Operation<'_>]) -> Result<()> {
        operations.iter().try_for_each(|Operation { lsn, parts, history }| {
            parts.iter().try_for_each(|part| self.write_control(txn, part))?;
            history.store(txn, *lsn)
        })
    }

    fn write_control(&self, txn: &mut Txn<'_>, operation: &Control) -> Result<()> {
        match operation {
            Control::CreateVolume { id, chunk_log2, volume } => {
                let branch = BranchRecord::new(*chunk_log2, None, Method::default());
                self.write_new_volume(txn, *id, volume, &branch)
            }
            Control::ResizeVolume { id, size } => self.put_volume(txn, *id, |v| v.size = *size),
            Control::RenameVolume { id, name } => self.put_volume(txn, *id, |v| v.name.clone_from(name)),
            Control::SetReadOnly { id, read_only } => self.put_volume(txn, *id, |v| v.read_only = *read_only),
            Control::DeleteVolume { id } => {
                if let Some(volume) = txn.volume(*id)? {
                    txn.remove_volume(*id)?;
                    self.put_branch(txn, volume.branch, |b| b.dead = true)?;
                }
                let of_volume = self.catalog.snapshots()?.into_iter().filter(|(_, s)| s.volume == *id);
                of_volume
                    .map(|(id, _)| id)
                    .try_for_each(|id| self.put_snapshot(txn, id, |s| s.deleted = true))
            }
            Control::AddPv { pv, uuid, path, extents } => {
                let record = PvRecord { uuid: *uuid, path: path.clone(), extents: *extents, draining: false };
                txn.put_pv(*pv, &record)?;
                self.put_superblock(txn, |s| s.next_pv = s.next_pv.max(pv + 1))
            }
            Control::SetDraining { pv, draining } => match self.catalog.pv(*pv)? {
                Some(record) => txn.put_pv(*pv, &PvRecord { draining: *draining, ..record }),
                None => Ok(()),
            },
            Control::RemovePv { pv } => txn.remove_pv(*pv),
            Control::SetPlacement(placement) => self.put_superblock(txn, |s| s.placement = *placement),
            Control::CreateSnapshots { snapshots } => self.write_snapshots(txn, snapshots),
            Control::DeleteSnapshots { ids } => {
                ids.iter().try_for_each(|id| self.put_snapshot(txn, *id, |s| s.deleted = true))
            }
            Control::RenameSnapshot { id, name } => self.put_snapshot(txn, *id, |s| s.name.clone_from(name)),
            Control::CloneVolume { id, chunk_log2, base, at, method, volume } => {
                let branch = BranchRecord::new(*chunk_log2, Some(BaseRecord::Frozen(*base)), *method);
                let branch = BranchRecord { base_at: *at, ..branch };
                self.write_new_volume(txn, *id, volume, &branch)
            }
            Control::CreateOver { id, chunk_log2, image, volume } => {
                let base = Some(BaseRecord::Image(image.clone()));
                let branch = BranchRecord::new(*chunk_log2, base, Method::default());
                self.write_new_volume(txn, *id, volume, &branch)
            }
            Control::SetFill { branches, rate } => {
                let fill = rate.map(|rate| FillRecord { rate, ..FillRecord::default() });
                branches.iter().try_for_each(|id| self.write_fill(txn, *id, fill))
            }
            Control::RollBack { .. } => self.write_roll_back(txn, operation),
            Control::SetOrder { id, order } => match txn.volume(*id)? {
                Some(volume) => self.put_branch(txn, volume.branch, |b| b.order = *order),
                None => Ok(()),
            },
            Control::SetMethod { id, method } => match txn.volume(*id)? {
                Some(volume) => self.put_branch(txn, volume.branch, |b| b.method = *method),
                None => Ok(()),
            },
            Control::SetLabels { id, protected, labels } => self.put_snapshot(txn, *id, |s| {
                s.protected = *protected;
                s.labels.clone_from(labels);
            }),
            Control::SetPolicy { id, policy } => self.put_volume(txn, *id, |v| v.policy = *policy),
            Control::SetImport { id, import } => self.put_volume(txn, *id, |v| v.import = *import),
            // Written part by part.
            Control::Group { .. } => Ok(()),
            // These are stored with the volume's history.
            Control::SetCdp { .. } | Control::Mark { .. } | Control::Unmark { .. } => Ok(()),
        }
    }

    fn write_new_volume(
        &self,
        txn: &mut Txn<'_>,
        id: u64,
        volume: &VolumeRecord,
        branch: &BranchRecord,
    ) -> Result<()> {
        txn.put_branch(volume.branch, branch)?;
        txn.put_volume(id, volume)?;
        self.put_superblock(txn, |s| s.next_id = s.next_id.max(id + 1).max(volume.branch + 1))
    }

    /// Stores how far a fill is. Without a base there is nothing to store.
    fn write_fill(&self, txn: &mut Txn<'_>, id: u64, fill: Option<FillRecord>) -> Result<()> {
        match txn.branch(id)? {
            Some(branch) if branch.base.is_some() => txn.put_branch(id, &BranchRecord { fill, ..branch }),
            _ => Ok(()),
        }
    }

    fn write_snapshots(&self, txn: &mut Txn<'_>, snapshots: &[(u64, SnapshotRecord)]) -> Result<()> {
        for (id, snapshot) in snapshots {
            txn.put_snapshot(*id, snapshot)?;
            self.put_branch(txn, snapshot.of.branch, |b| b.epoch = snapshot.of.epoch + 1)?;
            if snapshot.origin != [0; 16] {
                self.put_volume(txn, snapshot.volume, |v| v.import = None)?;
            }
        }
        let last = snapshots.iter().map(|(id, _)| *id).max().unwrap_or(0);
        self.put_superblock(txn, |s| s.next_id = s.next_id.max(last + 1))
    }

    fn write_roll_back(&self, txn: &mut Txn<'_>, operation: &Control) -> Result<()> {
        let Control::RollBack { id, branch, base, at, size, undo_id, undo } = operation else {
            return Ok(());
        };
        let Some(volume) = txn.volume(*id)? else { return Ok(()) };
        let Some(was) = txn.branch(volume.branch)? else {
            return Err(corrupt(format!("roll back volume {}: its branch is missing", volume.name)));
        };
        txn.put_snapshot(*undo_id, undo)?;
        self.put_branch(txn, volume.branch, |b| {
            b.epoch = undo.of.epoch + 1;
            b.dead = true;
        })?;
        let new = BranchRecord::new(was.chunk_log2, Some(BaseRecord::Frozen(*base)), was.method);
        txn.put_branch(*branch, &BranchRecord { order: was.order, base_at: *at, ..new })?;
        txn.put_volume(*id, &VolumeRecord { branch: *branch, size: *size, import: None, ..volume })?;
        self.put_superblock(txn, |s| s.next_id = s.next_id.max(branch + 1).max(undo_id + 1))
    }

    fn put_snapshot(
        &self,
        txn: &mut Txn<'_>,
        id: u64,
        change: impl FnOnce(&mut SnapshotRecord),
    ) -> Result<()> {
        match txn.snapshot(id)? {
            Some(mut snapshot) => {
                change(&mut snapshot);
                txn.put_snapshot(id, &snapshot)
            }
            None => Ok(()),
        }
    }

    pub(super) fn put_superblock(
        &self,
        txn: &mut Txn<'_>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let mut superblock = txn.superblock()?;
        change(&mut superblock);
        txn.put_superblock(&superblock)
    }

    fn put_volume(&self, txn: &mut Txn<'_>, id: u64, change: impl FnOnce(&mut VolumeRecord)) -> Result<()> {
        match txn.volume(id)? {
            Some(mut volume) => {
                change(&mut volume);
                txn.put_volume(id, &volume)
            }
            // An earlier operation of this commit has deleted it.
            None => Ok(()),
        }
    }

    pub(crate) fn put_branch(
        &self,
        txn: &mut Txn<'_>,
        id: u64,
        change: impl FnOnce(&mut BranchRecord),
    ) -> Result<()> {
        let Some(mut record) = txn.branch(id)? else {
            return Err(corrupt(format!("update branch {id}: the catalog does not have it")));
        };
        change(&mut record);
        txn.put_branch(id, &record)
    }

    /// Adds `slots` to the count of a branch.
    pub(crate) fn put_branch_slots(&self, txn: &mut Txn<'_>, branch: &Branch, slots: i64) -> Result<()> {
        self.put_branch(txn, branch.id, |b| b.slots = b.slots.saturating_add_signed(slots))
    }
}

impl Destager {
    /// Carries out what follows from committed operations.
    pub(super) fn operations_done(
        &self,
        state: &mut BackgroundState,
        operations: Vec<Operation<'_>>,
    ) -> Result<()> {
        operations.into_iter().try_for_each(|Operation { lsn, parts, history }| {
            self.core.remember(history, lsn);
            let done = parts.iter().try_for_each(|part| self.after_control(state, part, lsn));
            // What follows from a commit can't be taken back.
            done.map_err(|e| self.core.fault.poison(&e))
        })
    }

    /// Commits `operation` and its position as one. Long work (the tail of a shrunk volume) is done
    /// before that, in steps that can be repeated.
    pub(super) fn carry_out(
        &self,
        state: &mut BackgroundState,
        (lsn, time): (u64, u64),
        operation: &Control,
        reserved: &[(u8, u64)],
    ) -> Result<()> {
        let mut left = Vec::new();
        let mut history = HistoryChange::default();
        for part in operation.parts() {
            match part {
                Control::ResizeVolume { id, size } => self.discard_tail(state, *id, *size)?,
                // The physical volume is opened before the catalog has it. A physical volume that
                // can't be opened now could not be opened later either.
                Control::AddPv { pv, .. } => drop(self.core.open_added(*pv)?),
                Control::DeleteVolume { id } => left.extend(self.core.catalog.volume(*id)?.map(|v| v.branch)),
                Control::RollBack { undo, .. } => left.push(undo.of.branch),
                _ => {}
            }
            self.core.note_history(&mut history, part, time)?;
        }
        let mut txn = self.core.catalog.begin()?;
        operation.parts().iter().try_for_each(|part| self.core.write_control(&mut txn, part))?;
        history.store(&mut txn, lsn)?;
        self.commit(state, txn, lsn, lsn, reserved)?;
        self.core.remember(history, lsn);
        state.orphan_branches.extend(left.into_iter().map(|branch| (branch, 0)));
        operation.parts().iter().try_for_each(|part| self.after_control(state, part, lsn))
    }

    /// Enters a physical volume in the catalog, and adds its space to what can be promised.
    pub(crate) fn commit_pv(&self, state: &mut BackgroundState, add: &Control) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        self.core.write_control(&mut txn, add)?;
        self.commit_aside(state, txn, &[])?;
        self.after_control(state, add, 0)
    }

    /// Adds the space of a physical volume, unless that was done ahead of its turn.
    fn take_pv_in(&self, state: &mut BackgroundState, pv: u32, extents: u32) -> Result<()> {
        if state.allocator.pv_ids().contains(&pv) {
            return Ok(());
        }
        let change = state.allocator.add_pv(self.core.open_added(pv)?, false);
        self.core.space.change_capacity(extents.into(), &change, true);
        self.measure_backing(state);
        state.evacuated = false;
        // The physical volume may have failed when it was opened.
        self.leave_failed(state);
        Ok(())
    }

    fn after_control(&self, state: &mut BackgroundState, operation: &Control, lsn: u64) -> Result<()> {
        match operation {
            Control::RollBack { undo_id, undo, .. } => {
                // A snapshot out of sight is deleted when nothing rests on it, unless it belongs to
                // a history.
                if undo.deleted && !self.core.anchors().contains(undo_id) {
                    state.deleted.insert(*undo_id);
                }
            }
            Control::ResizeVolume { id, .. } => {
                // The discarded tail leaves staging only now that the map is without it.
                if let Some(volume) = self.core.catalog.volume(*id)?
                    && let Some(branch) = self.core.names.read().branches.get(&volume.branch)
                {
                    branch.staging.remove(std::iter::empty(), lsn);
                }
            }
            Control::DeleteVolume { id } => {
                self.note_deleted(state)?;
                state.deleted_with_history.insert(*id);
            }
            Control::DeleteSnapshots { ids } => {
                // An anchor is only hidden: its history keeps it.
                let kept = |id: &&u64| !self.core.is_anchor(**id);
                state.deleted.extend(ids.iter().filter(kept));
            }
            Control::AddPv { pv, extents, .. } => self.take_pv_in(state, *pv, *extents)?,
            Control::SetDraining { pv, .. } => {
                // A later operation counts already: nothing new may be placed on a physical volume
                // that is about to be removed.
                let stays = self.core.names.read().pvs.get(pv).is_some_and(|record| !record.draining);
                self.apply_draining(state, *pv, !stays, true);
            }
            Control::RemovePv { pv } => {
                self.apply_draining(state, *pv, true, true);
                state.allocator.remove_pv(*pv);
                self.core.stamping.forget(*pv);
                if let Some(pv) = self.core.pvs.take(*pv) {
                    let _ = pv.wiped.set(wipe(&*pv.disk, &pv.path));
                }
            }
            Control::SetPlacement(placement) => state.allocator.set_placement(*placement),
            Control::SetFill { branches, .. } => self.note_fills(state, branches)?,
            Control::CreateSnapshots { snapshots } => {
                let hidden = snapshots.iter().find(|(_, s)| s.deleted).map(|(_, s)| s.of.branch);
                state.unconfirmed_anchors.extend(hidden.map(|branch| (lsn, branch)));
            }
            Control::Group { .. }
            | Control::CreateOver { .. }
            | Control::CreateVolume { .. }
            | Control::RenameVolume { .. }
            | Control::SetReadOnly { .. }
            | Control::RenameSnapshot { .. }
            | Control::CloneVolume { .. }
            | Control::SetMethod { .. }
            | Control::SetOrder { .. }
            | Control::SetLabels { .. }
            | Control::SetPolicy { .. }
            | Control::SetImport { .. }
            | Control::SetCdp { .. }
            | Control::Mark { .. }
            | Control::Unmark { .. } => {}
        }
        Ok(())
    }

    fn discard_tail(&self, state: &mut BackgroundState, volume: u64, size: u64) -> Result<()> {
        let Some(record) = self.core.catalog.volume(volume)? else {
            return Ok(());
        };
        if size >= record.size {
            return Ok(());
        }
        let branch = self.core.names.read().branches.get(&record.branch).cloned();
        let Some(branch) = branch else {
            return Err(corrupt(format!("resize volume {}: its branch is missing", record.name)));
        };
        // The range reaches to the end of the last chunk. What lies behind the old end was never
        // visible, and must never be.
        let end = record.size.next_multiple_of(1 << branch.chunk_log2);
        // The operation's place in the order is behind all records of this epoch that were
        // sequenced before it.
        let Some(epoch) = self.core.catalog.branch(branch.id)?.map(|b| b.epoch) else { return Ok(()) };
        self.discard_in_steps(state, &DiscardRange { branch, epoch, bytes: size..end })
    }
}

impl Destager {
    /// Notes every snapshot that the catalog calls deleted.
    pub(super) fn note_deleted(&self, state: &mut BackgroundState) -> Result<()> {
        let snapshots = self.core.catalog.snapshots()?;
        let anchors = self.core.anchors();
        let gone = snapshots.into_iter().filter(|(id, s)| s.deleted && !anchors.contains(id));
        state.deleted.extend(gone.map(|(id, _)| id));
        Ok(())
    }
}

impl Destager {
    /// Notes what the catalog has of the fills of these branches.
    pub(super) fn note_fills(&self, state: &mut BackgroundState, branches: &[u64]) -> Result<()> {
        for id in branches {
            match self.core.catalog.branch(*id)?.and_then(|b| b.fill) {
                Some(record) => drop(state.filling.insert(*id, FlattenJob::of(record))),
                None => drop(state.filling.remove(id)),
            }
        }
        Ok(())
    }
}

impl Core {
    /// Opens a PV that a sequenced operation has added.
    pub(crate) fn open_added(&self, id: u32) -> Result<Arc<Pv>> {
        if let Some(pv) = self.pvs.held(id) {
            return Ok(pv);
        }
        let record = self.names.read().pvs.get(&id).cloned();
        let record = record.ok_or_else(|| crate::error::corrupt(format!("open PV {id}: it is unknown")))?;
        let pv = crate::space::pv::open_known(
            &*self.dir,
            self.uuid,
            self.config.extent_size,
            id,
            &record,
            OpenMode::Existing,
        )?;
        self.pvs.insert(pv.clone());
        Ok(pv)
    }
}
