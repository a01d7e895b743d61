//! The choice of the physical volumes that give out slots. A physical volume gives out none while
//! its data is moved off it, or after a write to it has failed.

use super::{Allocator, Extent, PvState};
use crate::area::Area;
use crate::space::reservations::{Space, SpaceChange};
use std::sync::atomic::Ordering;

impl PvState {
    /// Returns whether slots of this physical volume are given out.
    pub(super) fn gives(&self) -> bool {
        !self.draining && !self.failed
    }
}

impl Allocator {
    /// Returns what a physical volume contributes to the free space: (number of its extents, change
    /// when it is removed).
    pub(crate) fn contribution(&self, pv: u32) -> (u32, SpaceChange) {
        let mut all = SpaceChange::default();
        let Some(state) = self.pvs.get(&pv) else {
            return (0, all);
        };
        let change = all.of(state.area);
        change.aside = -(state.aside.len() as i64);
        change.free_extents = state.aside.len() as i64;
        for extent in &state.extents {
            if extent.slot_log2 == 0 {
                change.free_extents -= 1;
            } else {
                let slots = (self.extent_size >> extent.slot_log2) as i64;
                change.free_slots[extent.slot_log2 as usize] -= slots - extent.busy as i64;
            }
        }
        (state.extents.len() as u32, all)
    }

    /// Adds free extents to a physical volume. Returns the change of capacity, which the caller
    /// passes on.
    pub(crate) fn grow_pv(&mut self, pv: u32, more: u32) -> SpaceChange {
        let mut change = SpaceChange::default();
        let Some(state) = self.pvs.get_mut(&pv) else { return change };
        let first = state.extents.len() as u32;
        state.extents.resize_with((first + more) as usize, Extent::default);
        if state.gives() {
            self.areas.index(state.area).free.extend((first..first + more).map(|extent| (pv, extent)));
            state.free += u64::from(more);
            change.of(state.area).free_extents = more.into();
        }
        self.pvs_changed();
        change
    }

    /// Starts or stops draining a physical volume. While it drains, none of its slots is given out.
    pub(crate) fn set_draining(&mut self, pv: u32, draining: bool) {
        self.change_state(pv, |state| {
            state.draining = draining;
            state.pv.leaving.store(draining, Ordering::Release);
        });
    }

    fn change_state(&mut self, pv: u32, change: impl FnOnce(&mut PvState)) {
        let extent_size = self.extent_size;
        let Some(state) = self.pvs.get_mut(&pv) else {
            return;
        };
        let gave = state.gives();
        change(state);
        let gives = state.gives();
        if gave == gives {
            return;
        }
        state.aside.clear();
        let unused = state.extents.iter().filter(|e| e.slot_log2 == 0).count() as u64;
        state.free = if gives { unused } else { 0 };
        let index = self.areas.index(state.area);
        for (number, extent) in state.extents.iter().enumerate() {
            let id = (pv, number as u32);
            if extent.slot_log2 == 0 {
                if gives {
                    index.free.insert(id)
                } else {
                    index.free.remove(&id)
                };
            } else {
                let has_room = (extent.busy as u64) < extent_size >> extent.slot_log2;
                match gives && has_room {
                    true => index.open.insert(extent.slot_log2, id),
                    false => index.open.remove(extent.slot_log2, id),
                }
            }
        }
        self.pvs_changed();
    }

    /// Returns whether slots of the physical volume are given out.
    pub(crate) fn gives(&self, pv: u32) -> bool {
        self.pvs.get(&pv).is_some_and(PvState::gives)
    }

    /// Stops giving out slots of physical volumes that have failed, and removes their space from
    /// `space`. False when there are no new ones. There must be no uncommitted changes.
    pub(crate) fn leave_failed(&mut self, space: &Space) -> bool {
        let failed = |state: &&PvState| !state.failed && state.pv.failure().is_some();
        let failed: Vec<u32> = self.pvs.values().filter(failed).map(|state| state.pv.id).collect();
        for pv in &failed {
            if self.gives(*pv) {
                let (extents, change) = self.contribution(*pv);
                space.change_capacity((self.area(*pv), -i64::from(extents)), &change, true);
            }
            // What its branches were promised is kept in the common area (Z2).
            space.redirect(self.area(*pv));
            self.change_state(*pv, |state| state.failed = true);
        }
        !failed.is_empty()
    }

    /// Returns whether the physical volume has failed, so that its slots are not given out.
    pub(crate) fn has_failed(&self, pv: u32) -> bool {
        self.pvs.get(&pv).is_some_and(|state| state.failed)
    }

    /// Returns whether there is a place for what the journal has for physical volumes that give out
    /// no slots any more: all still do, or one of the common area does.
    pub(crate) fn has_refuge(&self) -> bool {
        let mut pvs = self.pvs.values();
        let has_common = pvs.clone().any(|state| state.area == Area::Common && state.gives());
        has_common || pvs.all(|state| !state.failed)
    }

    /// Returns the numbers of all physical volumes, draining ones too.
    pub(crate) fn pv_ids(&self) -> Vec<u32> {
        self.pvs.keys().copied().collect()
    }

    /// Returns whether data is moved off the physical volume.
    pub(crate) fn is_draining(&self, pv: u32) -> bool {
        self.pvs.get(&pv).is_some_and(|s| s.draining)
    }

    /// Number of extents of a physical volume that are used or wait for readers.
    pub(crate) fn used_extents(&self, pv: u32) -> u64 {
        self.pvs.get(&pv).map_or(0, |s| s.pv.used_extents.load(Ordering::Relaxed))
    }

    /// Returns the first extent from `from` on that holds anything, or that a slot is lent in.
    pub(crate) fn next_held_extent(&self, pv: u32, from: u32) -> Option<u32> {
        let extents = &self.pvs.get(&pv)?.extents;
        let held = extents.iter().enumerate().skip(from as usize).find(|(_, extent)| extent.slot_log2 != 0);
        held.and_then(|(number, _)| u32::try_from(number).ok())
    }

    /// Returns the number of extents from `from` on that hold anything, or that a slot is lent in.
    pub(crate) fn held_extents(&self, pv: u32, from: u32) -> u64 {
        let extents = self.pvs.get(&pv).and_then(|state| state.extents.get(from as usize..));
        extents.map_or(0, |extents| extents.iter().filter(|extent| extent.slot_log2 != 0).count() as u64)
    }

    /// Number of bytes of used slots on a physical volume that a drain has to move.
    pub(crate) fn movable_bytes(&self, pv: u32) -> u64 {
        let bytes = |e: &Extent| (e.live as u64) << e.slot_log2;
        let used: u64 = self.pvs.get(&pv).map_or(0, |s| s.extents.iter().map(bytes).sum());
        used.saturating_sub(self.bad_bytes_of(pv))
    }

    /// Removes an empty physical volume.
    pub(crate) fn remove_pv(&mut self, pv: u32) {
        let area = self.areas.of(self.area(pv));
        self.pvs.remove(&pv);
        area.index.free.retain(|id| id.0 != pv);
        area.last.retain(|_, id| id.0 != pv);
        area.index.last_on.retain(|(_, of), _| *of != pv);
        self.pvs_changed();
    }
}
