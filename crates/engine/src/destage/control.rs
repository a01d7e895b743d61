//! Carries out control records. Each reaches the catalog at its place in the order. What an
//! operation does is in [`crate::control`]; destage makes its commit, and does what follows.

use super::state::{BackgroundState, FlattenJob};
use crate::area::SlotKind;
use crate::control::{Control, FollowUp, OperationChange, Preparation};
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::{Lsn, Stamp};

impl Destager {
    /// Carries out what follows from committed changes.
    pub(super) fn changes_done(
        &self,
        state: &mut BackgroundState,
        changes: Vec<OperationChange<'_>>,
    ) -> Result<()> {
        changes.into_iter().try_for_each(|change| {
            // What follows from a commit can't be taken back.
            self.change_done(state, change).map_err(|e| self.core.fault.poison(&e))
        })
    }

    fn change_done(&self, state: &mut BackgroundState, change: OperationChange<'_>) -> Result<()> {
        let lsn = change.lsn();
        change.publish(&self.core)?.into_iter().try_for_each(|next| self.follow_up(state, next, lsn))
    }

    /// Commits `operation` and its position as one. Long work (the tail of a shrunk volume) is done
    /// before that, in steps that can be repeated.
    pub(super) fn carry_out(
        &self,
        state: &mut BackgroundState,
        at: Stamp,
        operation: &Control,
        reserved: &[(SlotKind, u64)],
    ) -> Result<()> {
        let mut preparation = Preparation::default();
        operation.prepare(&self.core, &mut preparation)?;
        preparation.discards.iter().try_for_each(|range| self.discard_in_steps(state, range))?;
        let change = OperationChange::of(&self.core, at, operation)?;
        let flushed = self.core.sums.flush()?;
        let mut txn = self.core.catalog.begin()?;
        change.store(&mut txn)?;
        self.commit(state, txn, flushed, (at.lsn, at.lsn), reserved)?;
        let orphans = preparation.orphan_branches.into_iter().map(|branch| (branch, 0));
        state.orphan_branches.extend(orphans);
        self.change_done(state, change)
    }

    /// Enters a physical volume in the catalog, and adds its space to what can be promised.
    pub(crate) fn commit_pv(&self, state: &mut BackgroundState, add: &Control) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        add.store(&mut txn)?;
        self.commit_aside(state, txn, &[])?;
        let mut follow_ups = Vec::new();
        add.after(&self.core, Lsn::ZERO, &mut follow_ups)?;
        follow_ups.into_iter().try_for_each(|next| self.follow_up(state, next, Lsn::ZERO))
    }

    /// Does what follows from the operation with this LSN, which is committed.
    fn follow_up(&self, state: &mut BackgroundState, next: FollowUp, lsn: Lsn) -> Result<()> {
        match next {
            FollowUp::DeleteSnapshots(ids) => state.deleted.extend(ids),
            FollowUp::DropHistory { volume } => drop(state.deleted_with_history.insert(volume)),
            FollowUp::ConfirmAnchor { branch } => drop(state.unconfirmed_anchors.insert(lsn, branch)),
            FollowUp::AddPv { pv, extents } => self.take_pv_in(state, pv, extents)?,
            FollowUp::SetDraining { pv, draining } => {
                self.apply_draining(state, pv, draining, true);
                if !draining {
                    self.pvs_changed(state);
                }
            }
            FollowUp::RemovePv { pv } => {
                self.apply_draining(state, pv, true, true);
                state.allocator.remove_pv(pv);
                self.core.close_removed(pv);
                self.pvs_changed(state);
            }
            FollowUp::SetPlacement(placement) => state.allocator.set_placement(placement),
            FollowUp::SetWeight { pv, weight } => {
                state.allocator.set_weight(pv, weight);
                self.pvs_changed(state);
            }
            FollowUp::ForgetRegions { branch } => state.allocator.forget_regions(branch),
            FollowUp::SetFill(branches) => {
                for (id, record) in branches {
                    match record {
                        Some(record) => drop(state.filling.insert(id, FlattenJob::of(record))),
                        None => drop(state.filling.remove(&id)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins to move data to the places that Share gives it now. The operation's commit has that,
    /// too.
    fn pvs_changed(&self, state: &mut BackgroundState) {
        if self.core.names.read().shares() {
            state.rebalancing.begin(None);
        }
    }

    /// Adds the space of a physical volume, unless that was done ahead of its turn.
    fn take_pv_in(&self, state: &mut BackgroundState, pv: u32, extents: u32) -> Result<()> {
        if state.allocator.pv_ids().contains(&pv) {
            return Ok(());
        }
        let change = state.allocator.add_pv(self.core.open_added(pv)?, extents, false);
        self.core.space.change_capacity((state.allocator.area(pv), extents.into()), &change, true);
        self.measure_backing(state);
        state.evacuated = false;
        self.pvs_changed(state);
        // The physical volume may have failed when it was opened.
        self.leave_failed(state);
        Ok(())
    }

    /// Gives out extents that a physical volume has gained.
    pub(crate) fn take_growth_in(&self, state: &mut BackgroundState, pv: u32, more: u32) {
        let change = state.allocator.grow_pv(pv, more);
        let total = if state.allocator.gives(pv) { more.into() } else { 0 };
        self.core.space.change_capacity((state.allocator.area(pv), total), &change, true);
        self.measure_backing(state);
        state.evacuated = false;
        self.pvs_changed(state);
    }
}
