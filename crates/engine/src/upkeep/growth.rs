//! Physical volumes that become larger: layouts whose members have more space than the content
//! uses, and disks that were enlarged.

use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::disk::layout::Growing;
use crate::disk::{Cause, DiskLayout};
use crate::error::{Error, Result};
use crate::space::label::{DATA_START, extents_on, most_bytes};
use crate::space::pv::Pv;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Destager {
    /// Takes one step of growing of a layout, or of taking over what the members had that are given
    /// up. Returns whether it did something.
    pub(super) fn grow_step(
        &self,
        state: &mut BackgroundState,
        pv: &Pv,
        layout: DiskLayout<'_>,
        given_up: &[usize],
    ) -> Result<bool> {
        if pv.leaving.load(Ordering::Acquire) || pv.failure().is_some() {
            return Ok(false);
        }
        let failed = |e| Error::io(format!("grow {}", pv.path), e);
        match layout.grow(given_up).map_err(failed)? {
            // A crash may have come between the record of the layout and the catalog.
            Growing::Not => self.grow_pv(state, pv),
            Growing::Waits => Ok(false),
            Growing::Extended => self.grow_pv(state, pv).map(|_| true),
            Growing::Moves(begun, range) => self.move_step(state, pv, begun, range).map(|()| true),
        }
    }

    /// Copies what is in use next of a range of the content to where it moves. `begun` is the
    /// number of rebuilds and moves until now.
    fn move_step(&self, state: &mut BackgroundState, pv: &Pv, begun: u64, range: Range<u64>) -> Result<()> {
        let at = state.rebuilds.position(pv.id, begun, range.start).max(range.start);
        let next = self.next_in_use(state, pv, at..range.end);
        if next.is_empty() {
            // The catalog knows what no member could read before the place counts.
            if self.core.damage.is_changed() {
                self.checkpoint(state)?;
            }
            let Some(layout) = pv.disk.as_layout() else { return Ok(()) };
            layout.finish_move(begun).map_err(|e| Error::io(format!("grow {}", pv.path), e))?;
            state.rebuilds.forget(pv.id);
            return Ok(());
        }
        self.copy_on_layout(state, pv, begun, next)
    }

    /// Gives out the space by which the disk of a physical volume has become larger. Returns
    /// whether there is some. No record of the journal is needed: the growth changes nothing that
    /// another record does, and those that wait may wait for this space.
    pub(crate) fn grow_pv(&self, state: &mut BackgroundState, pv: &Pv) -> Result<bool> {
        let _cause = Cause::Open.begin();
        let core = &self.core;
        let size = pv.disk.len().map_err(|e| Error::io(format!("measure {}", pv.path), e))?;
        let extent_size = core.config.extent_size;
        let extents = extents_on(size.min(most_bytes(extent_size)), extent_size, &pv.path)?;
        let is_more = |known: u32| known < extents;
        if !core.names.read().pvs.get(&pv.id).is_some_and(|record| is_more(record.extents)) {
            return Ok(false);
        }
        // A physical volume whose addition is not carried out has its size from that.
        let Some(record) = core.catalog.pv(pv.id)?.filter(|record| is_more(record.extents)) else {
            return Ok(false);
        };
        let more = extents - record.extents;
        let mut txn = core.catalog.begin()?;
        txn.put_pv(pv.id, &crate::catalog::PvRecord { extents, ..record })?;
        txn.rebalance_if_shared()?;
        self.commit_aside(state, txn, &[])?;
        if let Some(record) = core.names.write().pvs.get_mut(&pv.id) {
            record.extents = extents;
        }
        self.take_growth_in(state, pv.id, more);
        let (path, bytes) = (&pv.path, u64::from(more) * extent_size);
        tracing::info!(event = "pv.grown", path, bytes, "a physical volume has more space");
        Ok(true)
    }

    /// Returns the first bytes of a range of a physical volume that are in use: of the label, or of
    /// one extent. The result is empty if there are none.
    pub(super) fn next_in_use(&self, state: &BackgroundState, pv: &Pv, range: Range<u64>) -> Range<u64> {
        if range.start < DATA_START {
            return range.start..range.end.min(DATA_START);
        }
        let extent_size = self.core.config.extent_size;
        let first = u32::try_from((range.start - DATA_START) / extent_size).unwrap_or(u32::MAX);
        let Some(extent) = state.allocator.next_held_extent(pv.id, first) else { return 0..0 };
        let start = DATA_START + u64::from(extent) * extent_size;
        let found = start.max(range.start)..(start + extent_size).min(range.end);
        if found.is_empty() { 0..0 } else { found }
    }
}
