//! Takes back what was allocated and freed since the last commit. Background work that met a
//! shortage leaves no trace in memory, and can be repeated.

use super::{Allocator, Bits, DATA_START, Extent, ExtentId, clear, set};
use crate::error::Result;
use crate::space::reservations::SpaceChange;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// A change since the last commit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// A free extent was given a slot size.
    Opened(ExtentId),
    /// A slot was taken: (extent, index).
    Took(ExtentId, u32),
    /// A slot was freed: (extent, index).
    Freed(ExtentId, u32),
    /// A lent slot became used: (extent, index).
    Owned(ExtentId, u32),
}

impl Allocator {
    /// Returns whether nothing has changed since the last commit.
    pub(crate) fn is_clean(&self) -> bool {
        self.undo.is_empty() && self.bad.is_clean()
    }

    /// Takes back everything since the last commit. Returns the change that was counted in the
    /// pool's space at once, for extents that are closed again. Changes of slots are dropped here,
    /// as they were not counted yet.
    pub(crate) fn roll_back(&mut self) -> Result<SpaceChange> {
        let mut change = SpaceChange::default();
        let mut emptied = BTreeSet::new();
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            match step {
                Step::Opened(id) => self.close_extent(id, &mut change)?,
                Step::Took(id, index) => {
                    self.put_back(id, index)?;
                    emptied.insert(id);
                }
                Step::Owned(id, index) => {
                    let (extent, mut bits) = self.with_bits(id)?;
                    clear(&mut bits.live, index);
                    extent.live -= 1;
                    extent.bits = Some(bits);
                }
                Step::Freed(id, index) => {
                    let (extent, mut bits) = self.with_bits(id)?;
                    set(&mut bits.live, index);
                    extent.live += 1;
                    extent.bits = Some(bits);
                }
            }
        }
        // An extent that was open and empty before is so again.
        for id in emptied {
            let (slot_log2, busy) = self.extent(id).map(|extent| (extent.slot_log2, extent.busy))?;
            let kind = self.area(id.0).slots(slot_log2);
            if slot_log2 > 0 && busy == 0 && !(self.gives(id.0) && self.kept.keeps(kind, id)) {
                self.close_extent(id, &mut change)?;
            }
        }
        self.dirty.clear();
        self.freed.clear();
        self.bad.roll_back();
        self.change = SpaceChange::default();
        Ok(change)
    }

    /// Returns the extent with its bitmaps, as they are in memory. A full extent may have lost them
    /// in a commit that failed.
    fn with_bits(&mut self, id: ExtentId) -> Result<(&mut Extent, Box<Bits>)> {
        let extent_size = self.extent_size;
        let extent = self.extent(id)?;
        let slots = extent_size >> extent.slot_log2;
        if extent.bits.is_none() && u64::from(extent.live) == slots {
            let mut all = vec![u64::MAX; (slots as usize).div_ceil(64)];
            if let Some(last) = all.last_mut().filter(|_| slots % 64 > 0) {
                *last = (1 << (slots % 64)) - 1;
            }
            let extent = self.extent(id)?;
            return Ok((extent, Box::new(Bits { live: all.clone(), busy: all, begun: None })));
        }
        self.loaded(id)
    }

    fn put_back(&mut self, id: ExtentId, index: u32) -> Result<()> {
        let (extent, mut bits) = self.with_bits(id)?;
        clear(&mut bits.live, index);
        clear(&mut bits.busy, index);
        extent.live -= 1;
        extent.busy -= 1;
        extent.bits = Some(bits);
        let slot_log2 = extent.slot_log2;
        let area = self.area(id.0);
        // While the physical volume drains, none of these slots is given out.
        self.areas.index(area).open.insert(slot_log2, id);
        Ok(())
    }

    pub(super) fn close_extent(&mut self, id: ExtentId, change: &mut SpaceChange) -> Result<()> {
        let (slot_log2, area) = (self.extent(id)?.slot_log2, self.area(id.0));
        *self.extent(id)? = Extent::default();
        self.areas.index(area).open.remove(slot_log2, id);
        self.kept.forget(area.slots(slot_log2), id);
        if !self.gives(id.0) {
            // Its space counts nowhere.
            if let Some(state) = self.pvs.get(&id.0) {
                state.pv.used_extents.fetch_sub(1, Ordering::Relaxed);
            }
            return Ok(());
        }
        self.areas.index(area).free.insert(id);
        if let Some(state) = self.pvs.get_mut(&id.0) {
            state.free += 1;
            state.pv.used_extents.fetch_sub(1, Ordering::Relaxed);
            let room = state.file_system.and_then(|below| self.rooms.by_file_system.get_mut(&below));
            if let Some(room) = room {
                *room += self.extent_size;
            }
            if state.pv.failure().is_none() {
                let at = DATA_START + u64::from(id.1) * self.extent_size;
                let _ = state.pv.disk.punch(at, self.extent_size);
            }
        }
        let change = change.of(area);
        change.free_extents += 1;
        change.free_slots[slot_log2 as usize] -= i64::from(self.slots_per_extent(slot_log2));
        Ok(())
    }
}
