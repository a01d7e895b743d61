//! Lent slots. Writers fill them before a record of the journal refers to them (decision 63).
//!
//! A lent slot is busy and not live, like a freed slot that a reader may still hold. The catalog
//! does not know of it, so a crash frees it. A lent slot leaves this state in one of three ways: it
//! becomes used, because a reference gave it to a chunk; it is freed, because a later write
//! replaced the reference or its branch is gone; or it is returned without use.
//!
//! Slots are lent only while the allocator has no uncommitted change. Otherwise a shortage could
//! undo the opening of an extent that has lent slots.

use super::{
    Allocator, ExtentId, FreeView as _, MAX_SEARCHED, Margins, PvState, first_zero, get, set, undo, zeros,
};
use crate::area::{Area, SlotKind};
use crate::catalog::page::Slot;
use crate::error::{Result, corrupt};
use crate::journal::reference::SlotRun;
use crate::space::reservations::{Space, SpaceChange};
use crate::staging::SLOTS_END;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

/// The largest number of open extents in which one call looks for short runs.
const MAX_SCATTERED: usize = 256;

/// Extents that stay open although they are empty. If the destager gave such an extent back to the
/// file system, and allocated it again for the next references, the file system would drop the
/// pages of the old content and allocate new ones. That costs more than to write the data.
#[derive(Default)]
pub(super) struct KeptExtents {
    /// The largest number of empty extents that stay open, by kind of their slots.
    most: BTreeMap<SlotKind, usize>,
    extents: BTreeMap<SlotKind, BTreeSet<ExtentId>>,
}

impl KeptExtents {
    /// Notes that an extent has become empty. Returns whether it stays open.
    pub(super) fn keeps(&mut self, kind: SlotKind, id: ExtentId) -> bool {
        let Some(most) = self.most.get(&kind) else { return false };
        let extents = self.extents.entry(kind).or_default();
        extents.len() < *most && extents.insert(id)
    }

    /// Notes that an extent is not empty any more.
    pub(super) fn forget(&mut self, kind: SlotKind, id: ExtentId) {
        if let Some(extents) = self.extents.get_mut(&kind) {
            extents.remove(&id);
        }
    }
}

impl Allocator {
    /// Lends a run of at most `most` and at least `least` slots. The slots come from free places in
    /// open extents, or from a free extent that neither a promise nor a margin needs. Returns
    /// `None` when there are none. `space` already has the change when this function returns.
    pub(crate) fn lend(
        &mut self,
        space: &Space,
        kind: SlotKind,
        (least, most): (u32, u32),
    ) -> Result<Option<SlotRun>> {
        let slot_log2 = kind.log2;
        debug_assert!(self.is_clean(), "a lent slot could lie in an extent whose opening is undone");
        let slots = self.slots_per_extent(slot_log2);
        let most = most.min(slots);
        // The order of preference is a large hole in an open extent, a free extent, a small hole.
        let large = (slots / 4).clamp(least, most);
        let found = match self.hole(kind, large, most)? {
            None => match self.fresh_extent(space, kind)? {
                None => self.hole(kind, least.min(slots), most)?,
                Some(id) => Some((id, 0, most)),
            },
            hole => hole,
        };
        let Some((id, index, count)) = found else { return Ok(None) };
        if !space.try_lend(kind, count.into()) {
            self.close_if_unused(space, id)?;
            return Ok(None);
        }
        self.set_busy(id, slot_log2, index..index + count)?;
        Ok(Some(SlotRun { first: self.slot_at(id, index, slot_log2), count }))
    }

    /// Finds a run of `least` to `most` free slots in an open extent: (extent, index, count).
    fn hole(&mut self, kind: SlotKind, least: u32, most: u32) -> Result<Option<(ExtentId, u32, u32)>> {
        let slots = self.slots_per_extent(kind.log2);
        let (extent_size, pvs) = (self.extent_size, &self.pvs);
        let lends = |id: &&ExtentId| is_addressable(**id, extent_size) && takes_references(pvs, id.0);
        let open = self.areas.index(kind.area).open.of(kind.log2).into_iter().flatten();
        let open: Vec<ExtentId> = open.filter(lends).take(MAX_SEARCHED).copied().collect();
        for id in open {
            let (extent, bits) = self.loaded(id)?;
            let hole = zeros(&bits.busy, least, slots);
            let end = |first| (first + least..slots.min(first + most)).find(|bit| get(&bits.busy, *bit));
            let found = hole.map(|first| (id, first, end(first).unwrap_or(slots.min(first + most)) - first));
            extent.bits = Some(bits);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Lends free places of open extents, in runs that may be short: at least `least` and together
    /// at most `count` slots. Each call goes on behind the extent at which the last one ended, and
    /// looks into some hundred extents. So it may lend fewer slots than there are. `space` already
    /// has the change when this function returns.
    pub(crate) fn lend_scattered(
        &mut self,
        space: &Space,
        kind: SlotKind,
        least: u32,
        count: u64,
    ) -> Result<Vec<SlotRun>> {
        debug_assert!(self.is_clean(), "a lent slot could lie in an extent whose opening is undone");
        let mut lent = Vec::new();
        let mut missing = count;
        for id in self.next_open(kind) {
            if missing < u64::from(least) {
                break;
            }
            self.scattered.insert(kind, id);
            let holes = self.holes(id, kind, least, missing)?;
            let slots: u32 = holes.iter().map(|hole| hole.end - hole.start).sum();
            if slots == 0 {
                continue;
            }
            if !space.try_lend(kind, slots.into()) {
                break;
            }
            missing -= u64::from(slots);
            for hole in holes {
                let first = self.slot_at(id, hole.start, kind.log2);
                lent.push(SlotRun { first, count: hole.end - hole.start });
                self.set_busy(id, kind.log2, hole)?;
            }
        }
        Ok(lent)
    }

    /// Returns the open extents in which the next short runs are looked for, in order.
    fn next_open(&mut self, kind: SlotKind) -> Vec<ExtentId> {
        let last = self.scattered.get(&kind).copied().unwrap_or_default();
        let (extent_size, pvs) = (self.extent_size, &self.pvs);
        let lends = |id: &&ExtentId| is_addressable(**id, extent_size) && takes_references(pvs, id.0);
        let Some(open) = self.areas.index(kind.area).open.of(kind.log2) else { return Vec::new() };
        let behind = (Bound::Excluded(last), Bound::Unbounded);
        let in_turn = open.range(behind).chain(open.range(..=last));
        in_turn.filter(lends).take(MAX_SCATTERED).copied().collect()
    }

    /// Returns the runs of at least `least` free slots of an open extent, as ranges of indexes:
    /// together at most `most` slots.
    fn holes(&mut self, id: ExtentId, kind: SlotKind, least: u32, most: u64) -> Result<Vec<Range<u32>>> {
        let slots = self.slots_per_extent(kind.log2);
        let (extent, bits) = self.loaded(id)?;
        let (mut holes, mut missing, mut from) = (Vec::new(), most, 0);
        while missing >= u64::from(least)
            && let Some(first) = first_zero(&bits.busy, from, slots)
        {
            let most = u32::try_from(missing).unwrap_or(u32::MAX);
            let end = slots.min(first.saturating_add(most));
            let end = (first..end).find(|bit| get(&bits.busy, *bit)).unwrap_or(end);
            if end - first >= least {
                missing -= u64::from(end - first);
                holes.push(first..end);
            }
            from = end;
        }
        extent.bits = Some(bits);
        Ok(holes)
    }

    /// Opens a free extent that no promise and no margin needs.
    fn fresh_extent(&mut self, space: &Space, kind: SlotKind) -> Result<Option<ExtentId>> {
        let mut from = (0, 0);
        while let Some(id) = self.areas.index(kind.area).next_free(from) {
            from = (id.0, id.1.saturating_add(1));
            if !is_addressable(id, self.extent_size) {
                continue;
            }
            if !takes_references(&self.pvs, id.0) || !self.has_room(space, id.0, Margins::Kept) {
                from = (id.0.saturating_add(1), 0);
                continue;
            }
            if !space.is_ample(kind.area, 1) || !space.open_extent(kind, self.below(id), false) {
                return Ok(None);
            }
            let opened = self.open_extent(space, id, kind.log2)?;
            // The opening is not part of a batch, so no batch may undo it.
            self.undo.retain(|step| !matches!(step, undo::Step::Opened(opened) if *opened == id));
            if opened {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Closes an open extent, if none of its slots is busy.
    fn close_if_unused(&mut self, space: &Space, id: ExtentId) -> Result<()> {
        let extent = self.extent(id)?;
        if extent.busy > 0 || extent.slot_log2 == 0 {
            return Ok(());
        }
        let mut change = SpaceChange::default();
        self.close_extent(id, &mut change)?;
        space.settle(&change, &[]);
        self.note_emptied(id);
        Ok(())
    }

    /// Sets the largest number of empty extents with slots of a kind that stay open. Closes those
    /// beyond it.
    pub(crate) fn keep_open(&mut self, space: &Space, kind: SlotKind, most: usize) -> Result<()> {
        self.kept.most.insert(kind, most);
        let extents = self.kept.extents.entry(kind).or_default();
        let beyond: Vec<ExtentId> = extents.iter().skip(most).copied().collect();
        for id in beyond {
            self.kept.forget(kind, id);
            self.close_if_unused(space, id)?;
        }
        Ok(())
    }

    /// Lets no further extent of these areas stay open when it becomes empty.
    pub(crate) fn keep_none(&mut self, of: &dyn Fn(Area) -> bool) {
        self.kept.most.retain(|kind, _| !of(kind.area));
    }

    /// Closes the empty extents with slots of a kind on the physical volumes for which `leaves` is
    /// true.
    pub(crate) fn close_kept(
        &mut self,
        space: &Space,
        kind: SlotKind,
        leaves: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let kept = self.kept.extents.get(&kind).into_iter().flatten();
        let leaving: Vec<ExtentId> = kept.filter(|id| leaves(id.0)).copied().collect();
        for id in leaving {
            self.kept.forget(kind, id);
            self.close_if_unused(space, id)?;
        }
        Ok(())
    }

    fn set_busy(&mut self, id: ExtentId, slot_log2: u8, indexes: Range<u32>) -> Result<()> {
        let area = self.area(id.0);
        self.kept.forget(area.slots(slot_log2), id);
        let slots = self.slots_per_extent(slot_log2);
        let (extent, mut bits) = self.loaded(id)?;
        extent.busy += indexes.end - indexes.start;
        indexes.for_each(|index| set(&mut bits.busy, index));
        extent.bits = Some(bits);
        if extent.busy == slots {
            self.areas.index(area).open.remove(slot_log2, id);
        }
        Ok(())
    }

    /// Marks a slot as lent, because a reference of the journal names it. Only the opening of a
    /// pool calls this. The slot must be free. It is damage if the catalog or another reference has
    /// the slot.
    pub(crate) fn take_lent(&mut self, slot: Slot, slot_log2: u8) -> Result<SpaceChange> {
        let damaged = |why: &str| corrupt(format!("take slot {:#x} of a reference: {why}", slot.0));
        let (id, index) = self.locate(slot, slot_log2)?;
        if slot != self.slot_at(id, index, slot_log2) {
            return Err(damaged("no slot of this size begins there"));
        }
        if self.slots_per_extent(slot_log2) == 0 {
            return Err(damaged("it is larger than an extent"));
        }
        let Some(state) = self.pvs.get_mut(&id.0) else { return Err(damaged("its PV does not exist")) };
        let (gives, area, per_extent) = (state.gives(), state.area, self.extent_size >> slot_log2);
        let Some(extent) = state.extents.get_mut(id.1 as usize) else {
            return Err(damaged("it is beyond the end of its PV"));
        };
        let mut change = SpaceChange::default();
        if extent.slot_log2 == 0 {
            extent.slot_log2 = slot_log2;
            state.pv.used_extents.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let index = self.areas.index(area);
            if index.free.remove(&id) {
                state.free -= 1;
                let change = change.of(area);
                change.free_extents -= 1;
                change.free_slots[slot_log2 as usize] += per_extent as i64;
                index.open.insert(slot_log2, id);
            }
        } else if extent.slot_log2 != slot_log2 {
            return Err(damaged("its extent has slots of another size"));
        }
        let (extent, bits) = self.loaded(id)?;
        let taken = get(&bits.busy, index);
        extent.bits = Some(bits);
        if taken {
            return Err(damaged("it is used by something else"));
        }
        self.set_busy(id, slot_log2, index..index + 1)?;
        change.of(area).free_slots[slot_log2 as usize] -= i64::from(gives);
        Ok(change)
    }

    /// Returns whether a slot of this size is marked as used (live).
    pub(crate) fn is_live(&mut self, slot: Slot, slot_log2: u8) -> Result<bool> {
        let (id, index) = self.locate(slot, slot_log2)?;
        if self.extent(id)?.slot_log2 != slot_log2 {
            return Ok(false);
        }
        let (extent, bits) = self.loaded(id)?;
        let live = get(&bits.live, index);
        extent.bits = Some(bits);
        Ok(live)
    }

    /// Makes a lent slot used. The next commit enters it in the catalog.
    pub(crate) fn own_lent(&mut self, slot: Slot, slot_log2: u8) -> Result<()> {
        let (id, index) = self.lent(slot, slot_log2)?;
        let (extent, mut bits) = self.loaded(id)?;
        set(&mut bits.live, index);
        extent.live += 1;
        extent.bits = Some(bits);
        self.dirty.insert(id);
        self.undo.push(undo::Step::Owned(id, index));
        Ok(())
    }

    /// Frees a lent slot that readers may still hold. The slot can be allocated again after the
    /// next commit and [`Allocator::reuse`].
    pub(crate) fn free_lent(&mut self, slot: Slot, slot_log2: u8) -> Result<()> {
        self.lent(slot, slot_log2)?;
        self.freed.push((slot, slot_log2));
        Ok(())
    }

    /// Returns the place of a slot: (extent, index). Returns an error if the slot is not lent.
    fn lent(&mut self, slot: Slot, slot_log2: u8) -> Result<(ExtentId, u32)> {
        let (id, index) = self.locate(slot, slot_log2)?;
        let (extent, bits) = self.loaded(id)?;
        let lent = extent.slot_log2 == slot_log2 && get(&bits.busy, index) && !get(&bits.live, index);
        extent.bits = Some(bits);
        if !lent {
            return Err(corrupt(format!(
                "take slot {index} of extent {} of PV {} over from a reference: it is not lent",
                id.1, id.0
            )));
        }
        Ok((id, index))
    }
}

/// Returns whether writers may take slots on a physical volume. A RAID-5 beside it in the area has
/// none for them.
fn takes_references(pvs: &BTreeMap<u32, PvState>, pv: u32) -> bool {
    pvs.get(&pv).is_some_and(|state| state.pv.takes_references())
}

/// Returns whether staging can address all slots of an extent.
fn is_addressable(id: ExtentId, extent_size: u64) -> bool {
    super::DATA_START + (u64::from(id.1) + 1) * extent_size <= SLOTS_END
}
