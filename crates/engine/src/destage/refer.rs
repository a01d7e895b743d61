//! Destage of references. The slots that references name become slots of the chunks. Mostly no data
//! moves.

use super::batch::{Batch, Placed};
use super::overlay::{ChunkOverlay, Under};
use super::plan::{Outcome, SlotChange, Target};
use super::state::BackgroundState;
use crate::catalog::page::{Entry, Slot};
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::Epoch;
use crate::settings::Order;
use crate::space::placement::Class;
use std::sync::atomic::Ordering;

impl Destager {
    /// Frees the slots of references whose branches are gone. If the batch is applied again
    /// (`redo`), the slots are not lent any more, and this function does nothing.
    pub(super) fn free_unowned(&self, state: &mut BackgroundState, batch: &Batch, redo: bool) -> Result<()> {
        let mut slots = batch.unowned.iter().filter(|_| !redo);
        slots.try_for_each(|(slot, log2)| state.allocator.free_lent(*slot, *log2))
    }

    /// Frees the slots of references that later items of the same batch overwrite as a whole.
    /// Readers may still find these slots in staging, so they are retired like other freed slots.
    /// If the batch is applied again (`redo`), the slots are not lent any more, and this function
    /// does nothing.
    pub(super) fn free_overtaken(
        &self,
        state: &mut BackgroundState,
        overlay: &ChunkOverlay,
        slot_log2: u8,
        redo: bool,
    ) -> Result<()> {
        let mut overtaken = overlay.overtaken.iter().filter(|_| !redo);
        overtaken.try_for_each(|slot| state.allocator.free_lent(*slot, slot_log2))
    }

    /// Plans a chunk whose newest whole content is in the slot that a reference names. Parts that
    /// the batch writes over it are written after the commit that gives the slot to the chunk (D5).
    /// If snapshots see the old slot, it becomes a version for them (`kept_for` is the epoch of the
    /// newest of them). Otherwise the old slot is freed. If the physical volume of the reference
    /// has failed, the content is copied to a new slot.
    pub(super) fn take_over(
        &self,
        state: &mut BackgroundState,
        target: &Target<'_>,
        overlay: &ChunkOverlay,
        (slot, kept_for): (Slot, Option<Epoch>),
        out: &mut Outcome<'_>,
    ) -> Result<(SlotChange, i64)> {
        let (branch, epoch) = (target.branch, target.epoch);
        let size = 1u64 << branch.chunk_log2;
        let mut grown = 1;
        match (target.current, kept_for) {
            (Some(entry), Some(last)) => {
                let mut entry = entry;
                if branch.order() == Order::Independent {
                    let (born, copies) = self.copy_for_each(state, target, entry, last, out)?;
                    (entry.born, grown) = (born, grown + copies);
                }
                out.version(target, last, entry);
                if entry.slot != Slot::HOLE {
                    out.redirected_chunk(size, size);
                }
            }
            (Some(Entry { slot: old, .. }), None) if old != Slot::HOLE => {
                state.allocator.free(old, branch.slot_log2)?;
                grown -= 1;
            }
            _ => {}
        }
        if !state.allocator.has_failed(slot.pv()) {
            state.allocator.own_lent(slot, branch.slot_log2)?;
            // The pass that moves data off the physical volume may have missed this slot.
            state.evacuated &= !state.allocator.is_draining(slot.pv());
            let mixed = overlay.place(slot, size, Under::Kept, out.after);
            out.note_mixed_of(target, mixed, true);
            return Ok((SlotChange::Set(Entry { slot, born: epoch }), grown));
        }
        // Nothing is written to a physical volume that has failed, so the chunk gets another slot.
        let request = target.slot_request(Class::Current).of_origin(Some(slot));
        let new = state.allocator.allocate(&self.core.space, &request)?;
        out.take(branch.kind(), true);
        self.core.positions.allocated.fetch_add(size, Ordering::Relaxed);
        state.allocator.free_lent(slot, branch.slot_log2)?;
        if overlay.parts.is_empty() {
            out.fresh.push(Placed::copy(new, size, slot));
        } else {
            let mixed = overlay.place(new, size, Under::Slot(slot), out.fresh);
            out.note_mixed_of(target, mixed, true);
        }
        Ok((SlotChange::Set(Entry { slot: new, born: epoch }), grown))
    }
}
