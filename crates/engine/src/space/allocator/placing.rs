//! The allocation of slots where the placement policy wants them.

use super::{Allocator, FreeIndex, Margins, PvState};
use crate::catalog::page::Slot;
use crate::error::{Result, no_space};
use crate::ids::{BranchId, Chunk};
use crate::settings::Placement;
use crate::space::placement::share::{ShareMap, Weight};
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

/// The placement of a pool, and the policy that it is for the physical volumes.
pub(super) struct PlacingPolicy {
    placement: Placement,
    policy: Policy,
    /// The physical volumes have changed since the policy was made. Making it takes a while, so the
    /// next allocation does it once for many changes.
    pub(super) is_outdated: bool,
}

impl PlacingPolicy {
    pub(super) fn of(placement: Placement) -> PlacingPolicy {
        let policy = match placement {
            Placement::Anywhere => Policy::Anywhere,
            Placement::Contiguous => Policy::Contiguous,
            Placement::Share => Policy::Share(ShareMap::default()),
            Placement::SnapAware(of) => Policy::SnapAware(of),
        };
        PlacingPolicy { placement, policy, is_outdated: true }
    }
}

impl Allocator {
    pub(crate) fn set_placement(&mut self, placement: Placement) {
        self.policy = PlacingPolicy::of(placement);
        self.regions.clear();
    }

    /// Notes that physical volumes came, left, or began or ceased to give out slots.
    pub(super) fn pvs_changed(&mut self) {
        self.policy.is_outdated = true;
    }

    /// Returns the policy for the physical volumes as they are now.
    fn refresh_policy(&mut self) {
        if !std::mem::take(&mut self.policy.is_outdated) {
            return;
        }
        self.regions.clear();
        if !self.shares() {
            return;
        }
        let weight = |(pv, state): (&u32, &PvState)| Weight {
            pv: *pv,
            capacity: state.extents.len() as u64,
            gives: state.gives(),
        };
        let weights: Vec<Weight> = self.pvs.iter().map(weight).collect();
        self.policy.policy = Policy::Share(ShareMap::new(&weights));
    }

    /// Returns the physical volume on which Share places a chunk, for slots of this size. `None`
    /// under every other policy.
    pub(crate) fn share_of(&mut self, owner: (BranchId, Chunk), slot_log2: u8) -> Option<u32> {
        self.refresh_policy();
        let per_extent = self.slots_per_extent(slot_log2);
        match &self.policy.policy {
            Policy::Share(map) => map.place(item_of(owner, per_extent)),
            _ => None,
        }
    }

    /// Returns whether the place of a slot depends on the chunk that it is for.
    pub(crate) fn places_by_chunk(&self) -> bool {
        matches!(self.policy.policy, Policy::Share(_) | Policy::SnapAware(_))
    }

    /// Returns whether slots are placed by Share.
    pub(crate) fn shares(&self) -> bool {
        self.policy.placement == Placement::Share
    }

    /// Allocates a slot for the content that `request` describes. With a reservation, this never
    /// fails for want of space.
    pub(crate) fn allocate(&mut self, space: &Space, request: &SlotRequest) -> Result<Slot> {
        let slot_log2 = request.slot_log2;
        let place = |slot: Option<Slot>| -> Result<Option<SlotPlace>> {
            slot.map(|slot| self.locate(slot, slot_log2)).transpose()
        };
        let (origin, neighbour) = (place(request.origin)?, place(request.neighbour)?);
        self.refresh_policy();
        let region = match self.policy.policy {
            Policy::SnapAware(of) => self.region(of, request).map(|region| (of, region)),
            _ => None,
        };
        if let Some((of, region)) = region.filter(|_| request.class == Class::Current) {
            let (id, index) = of.home(region, request.owner.1, self.slots_per_extent(slot_log2));
            let home = self.slot_at(id, index, slot_log2);
            if self.take_at(home, slot_log2)? {
                return Ok(home);
            }
        }
        let (mut spare, mut margins) = (true, Margins::Kept);
        loop {
            let ask = Ask {
                policy: &self.policy.policy,
                slot_log2,
                slots_per_extent: self.slots_per_extent(slot_log2),
                class: request.class,
                owner: request.owner,
                origin,
                neighbour,
                region: region.map(|(_, region)| region),
                last: self.last.get(&slot_log2).copied(),
                spare,
            };
            let Some(choice) = choose(&self.index, &ask) else {
                match margins.next() {
                    Some(next) if !self.index.shunned.is_empty() => margins = next,
                    _ => {
                        let refused = self.refused.clone();
                        return Err(refused.unwrap_or_else(|| no_space("allocate a slot")));
                    }
                }
                self.index.shunned.clear();
                continue;
            };
            let (id, from) = match choice {
                Choice::Open(id, from) => (id, from),
                Choice::Free(id, _) if !self.has_room(space, id.0, margins) => continue,
                Choice::Free(id, from) => {
                    // Opening one extent more than needed must not take what was promised to other
                    // writes.
                    let needed = self.index.next_open(slot_log2, (0, 0)).is_none();
                    if !space.open_extent(slot_log2, needed) {
                        spare = false;
                        continue;
                    }
                    if !self.open_extent(space, id, slot_log2)? {
                        continue;
                    }
                    (id, from)
                }
            };
            self.last.insert(slot_log2, id);
            if self.shares() {
                self.index.last_on.insert((slot_log2, id.0), id);
            }
            return self.take_slot(id, slot_log2, from);
        }
    }
}
