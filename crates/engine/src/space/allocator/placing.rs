//! The allocation of slots where the placement policy wants them.

use super::{Allocator, FreeIndex, Margins, PvState};
use crate::area::{Area, SlotKind};
use crate::catalog::page::Slot;
use crate::error::{Result, no_space};
use crate::ids::{BranchId, Chunk};
use crate::settings::Placement;
use crate::space::placement::share::{ShareMap, Weight};
use crate::space::placement::snap_aware::Region;
use crate::space::placement::{
    Ask, Choice, Class, ExtentId, FreeView, Policy, SlotPlace, SlotRequest, choose, item_of,
};
use crate::space::reservations::Space;

impl FreeView for FreeIndex {
    fn next_open(&self, slot_log2: u8, from: ExtentId) -> Option<ExtentId> {
        self.open.get(&slot_log2)?.range(from..).next().copied()
    }
    fn next_free(&self, from: ExtentId) -> Option<ExtentId> {
        let mut from = from;
        loop {
            let found = *self.free.range(from..).next()?;
            if !self.shunned.contains(&found.0) {
                return Some(found);
            }
            from = (found.0.checked_add(1)?, 0);
        }
    }
    fn prev_open(&self, slot_log2: u8, end: ExtentId) -> Option<ExtentId> {
        self.open.get(&slot_log2)?.range(..end).next_back().copied()
    }
    fn prev_free(&self, end: ExtentId) -> Option<ExtentId> {
        let mut end = end;
        loop {
            let found = *self.free.range(..end).next_back()?;
            if !self.shunned.contains(&found.0) {
                return Some(found);
            }
            end = (found.0, 0);
        }
    }
    fn last_on(&self, slot_log2: u8, pv: u32) -> Option<ExtentId> {
        self.last_on.get(&(slot_log2, pv)).copied()
    }
}

/// The pool's placement as the policy of an area. It depends on the area's physical volumes.
#[derive(Default)]
pub(super) struct AreaPolicy(Option<Policy>);

impl AreaPolicy {
    /// Notes that the physical volumes have changed. To make the policy takes a while, so the next
    /// allocation does it once for many changes.
    pub(super) fn is_outdated(&mut self) {
        self.0 = None;
    }
}

impl Allocator {
    pub(crate) fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
        self.pvs_changed();
    }

    /// Notes that physical volumes came, left, or began or ceased to give out slots.
    pub(super) fn pvs_changed(&mut self) {
        for area in self.areas.0.values_mut() {
            area.policy.is_outdated();
            area.region = None;
        }
        self.regions.clear();
    }

    /// Makes the policy of an area for the physical volumes as they are now, if there is none.
    fn refresh_policy(&mut self, area: Area) {
        if self.areas.of(area).policy.0.is_some() {
            return;
        }
        let weight = |(pv, state): (&u32, &PvState)| Weight {
            pv: *pv,
            capacity: state.extents.len() as u64,
            gives: state.gives(),
        };
        let policy = match self.placement {
            Placement::Anywhere => Policy::Anywhere,
            Placement::Contiguous => Policy::Contiguous,
            Placement::Share => {
                let of_area = self.pvs.iter().filter(|(_, state)| state.area == area);
                Policy::Share(ShareMap::new(&of_area.map(weight).collect::<Vec<_>>()))
            }
            Placement::SnapAware(of) => Policy::SnapAware(of),
        };
        self.areas.of(area).policy.0 = Some(policy);
    }

    /// Returns the physical volume on which Share places a chunk, for slots of this kind. `None`
    /// under every other policy.
    pub(crate) fn share_of(&mut self, owner: (BranchId, Chunk), kind: SlotKind) -> Option<u32> {
        self.refresh_policy(kind.area);
        let per_extent = self.slots_per_extent(kind.log2);
        match &self.areas.of(kind.area).policy.0 {
            Some(Policy::Share(map)) => map.place(item_of(owner, per_extent)),
            _ => None,
        }
    }

    /// Returns whether the place of a slot depends on the chunk that it is for.
    pub(crate) fn places_by_chunk(&self) -> bool {
        matches!(self.placement, Placement::Share | Placement::SnapAware(_))
    }

    /// Returns whether slots are placed by Share.
    pub(crate) fn shares(&self) -> bool {
        self.placement == Placement::Share
    }

    /// Allocates a slot for the content that `request` describes. With a reservation, this never
    /// fails for want of space.
    pub(crate) fn allocate(&mut self, space: &Space, request: &SlotRequest) -> Result<Slot> {
        let slot_log2 = request.kind.log2;
        let kind = self.serving(request.kind.area).slots(slot_log2);
        let place = |slot: Option<Slot>| -> Result<Option<SlotPlace>> {
            // What lies in another area is no neighbour.
            let slot = slot.filter(|slot| self.area(slot.pv()) == kind.area);
            slot.map(|slot| self.locate(slot, slot_log2)).transpose()
        };
        let (origin, neighbour) = (place(request.origin)?, place(request.neighbour)?);
        self.refresh_policy(kind.area);
        let (region, home) = self.region_and_home(kind, request)?;
        if let Some(home) = home {
            return Ok(home);
        }
        let (mut spare, mut margins) = (true, Margins::Kept);
        loop {
            let per_extent = self.slots_per_extent(slot_log2);
            let area = self.areas.of(kind.area);
            let ask = Ask {
                policy: area.policy.0.as_ref().unwrap_or(&Policy::Anywhere),
                slot_log2,
                slots_per_extent: per_extent,
                class: request.class,
                owner: request.owner,
                origin,
                neighbour,
                region,
                last: area.last.get(&slot_log2).copied(),
                spare,
            };
            let Some(choice) = choose(&area.index, &ask) else {
                match margins.next() {
                    Some(next) if !area.index.shunned.is_empty() => margins = next,
                    _ => {
                        let refused = self.refused.clone();
                        return Err(refused.unwrap_or_else(|| no_space("allocate a slot")));
                    }
                }
                area.index.shunned.clear();
                continue;
            };
            let (id, from) = match choice {
                Choice::Open(id, from) => (id, from),
                Choice::Free(id, _) if !self.has_room(space, id.0, margins) => continue,
                Choice::Free(id, from) => {
                    // Opening one extent more than needed must not take what was promised to other
                    // writes.
                    let needed = self.areas.index(kind.area).next_open(slot_log2, (0, 0)).is_none();
                    if !space.open_extent(kind, self.below(id), needed) {
                        spare = false;
                        continue;
                    }
                    if !self.open_extent(space, id, slot_log2)? {
                        continue;
                    }
                    (id, from)
                }
            };
            let shares = self.shares();
            let area = self.areas.of(kind.area);
            area.last.insert(slot_log2, id);
            if shares {
                area.index.last_on.insert((slot_log2, id.0), id);
            }
            return self.take_slot(id, slot_log2, from);
        }
    }

    /// Returns the region in which a slot is best, under the snap-aware placement. Takes the slot
    /// that is the home of current content, if it is free.
    fn region_and_home(
        &mut self,
        kind: SlotKind,
        request: &SlotRequest,
    ) -> Result<(Option<Region>, Option<Slot>)> {
        let Placement::SnapAware(of) = self.placement else { return Ok((None, None)) };
        let region = self.region(of, kind.area, request);
        let Some(at) = region.filter(|_| request.class == Class::Current) else { return Ok((region, None)) };
        let (id, index) = of.home(at, request.owner.1, self.slots_per_extent(kind.log2));
        let home = self.slot_at(id, index, kind.log2);
        let is_taken = self.take_at(home, kind)?;
        Ok((region, is_taken.then_some(home)))
    }
}
