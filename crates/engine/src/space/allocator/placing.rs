//! The allocation of slots where the placement policy wants them.

use super::rows::WithRows;
use super::{Allocator, FreeIndex, MAX_SEARCHED, Margins, PvState};
use crate::area::{Area, SlotKind};
use crate::branch::Branch;
use crate::catalog::page::Slot;
use crate::error::{Result, no_space};
use crate::ids::{BranchId, Chunk};
use crate::settings::{Placement, SnapAware};
use crate::space::placement::share::{ShareMap, Weight};
use crate::space::placement::snap_aware::Region;
use crate::space::placement::{
    Ask, Choice, Class, ExtentId, FreeView, Policy, SlotPlace, SlotRequest, choose, item_of,
};
use crate::space::reservations::Space;
use std::sync::atomic::Ordering;

impl FreeView for FreeIndex {
    fn next_open(&self, slot_log2: u8, from: ExtentId) -> Option<ExtentId> {
        self.open.of(slot_log2)?.range(from..).next().copied()
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
        self.open.of(slot_log2)?.range(..end).next_back().copied()
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

/// The map of Share for an area. It depends on the area's physical volumes.
#[derive(Default)]
pub(super) struct AreaShare(Option<ShareMap>);

impl AreaShare {
    /// Notes that the physical volumes have changed. To make the map takes a while, so the next
    /// allocation by Share does it once for many changes.
    pub(super) fn is_outdated(&mut self) {
        self.0 = None;
    }

    fn policy(&self, placement: Placement) -> Policy<'_> {
        match (placement, &self.0) {
            (Placement::Share, Some(map)) => Policy::Share(map),
            (Placement::Anywhere | Placement::Share, _) => Policy::Anywhere,
            (Placement::Contiguous, _) => Policy::Contiguous,
            (Placement::SnapAware(of), _) => Policy::SnapAware(of),
        }
    }
}

/// The result of opening the extent that was chosen.
enum Opening {
    Done,
    /// There is no room below the physical volume: its other extents are passed over now.
    NoRoom,
    /// It is promised to others.
    Promised,
}

/// Chooses anew among the extents of the same physical volume that have an unused row. `None`:
/// there is none, or rows do not count there.
fn in_row(
    index: &FreeIndex,
    ask: &Ask<'_>,
    choice: Choice,
    has_rows: impl Fn(u32) -> bool,
) -> Option<Choice> {
    let (Choice::Open((pv, _), _) | Choice::Free((pv, _), _)) = choice;
    let view = WithRows { all: index, open: &index.open, pv };
    if has_rows(pv) { choose(&view, ask) } else { None }
}

impl Allocator {
    pub(crate) fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
        self.pvs_changed();
    }

    /// Notes that physical volumes came, left, or began or ceased to give out slots.
    pub(super) fn pvs_changed(&mut self) {
        for area in self.areas.0.values_mut() {
            area.share.is_outdated();
            area.region = None;
        }
        self.regions.clear();
    }

    /// Sets the part of a physical volume's size that counts for Share, in per cent.
    pub(crate) fn set_weight(&mut self, pv: u32, weight: u32) {
        if let Some(state) = self.pvs.get(&pv) {
            state.pv.weight.store(weight, Ordering::Relaxed);
        }
        self.pvs_changed();
    }

    /// Forgets where slices of a branch lie: its placement has changed.
    pub(crate) fn forget_regions(&mut self, branch: BranchId) {
        self.regions.forget(branch);
    }

    /// Makes the map of an area for the physical volumes as they are now, if there is none.
    fn refresh_share(&mut self, area: Area) {
        if self.areas.of(area).share.0.is_some() {
            return;
        }
        let weight = |(pv, state): (&u32, &PvState)| Weight {
            pv: *pv,
            capacity: state.extents.len() as u64 * u64::from(state.pv.weight.load(Ordering::Relaxed)),
            gives: state.gives(),
        };
        let of_area = self.pvs.iter().filter(|(_, state)| state.area == area);
        let map = ShareMap::new(&of_area.map(weight).collect::<Vec<_>>());
        self.areas.of(area).share.0 = Some(map);
    }

    /// Returns the placement of a branch's slots.
    fn placement_of(&self, own: Option<Placement>) -> Placement {
        own.unwrap_or(self.placement)
    }

    /// Returns the physical volume on which Share places a chunk of a branch. `None` under every
    /// other placement.
    pub(crate) fn share_of(&mut self, branch: &Branch, chunk: Chunk) -> Option<u32> {
        if !self.shares(branch) {
            return None;
        }
        let kind = branch.kind();
        self.refresh_share(kind.area);
        let per_extent = self.slots_per_extent(kind.log2);
        let map = self.areas.of(kind.area).share.0.as_ref()?;
        map.place(item_of((branch.id, chunk), per_extent))
    }

    /// Returns whether slots of branches without a placement of their own depend on the chunk that
    /// they are for.
    pub(crate) fn places_by_chunk(&self) -> bool {
        self.placement.is_by_chunk()
    }

    /// Returns whether slots of the branch are placed by Share.
    pub(crate) fn shares(&self, branch: &Branch) -> bool {
        self.placement_of(branch.placement()) == Placement::Share
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
        let placement = self.placement_of(request.placement);
        if placement == Placement::Share {
            self.refresh_share(kind.area);
        }
        let (region, home) = self.region_and_home(placement, kind, request)?;
        if let Some(home) = home {
            return Ok(home);
        }
        let (mut spare, mut margins) = (true, Margins::Kept);
        // Number of extents in which a row is looked for.
        let mut searches = if self.areas.index(kind.area).open.has_rows() { MAX_SEARCHED } else { 0 };
        let per_extent = self.slots_per_extent(slot_log2);
        loop {
            let area = self.areas.of(kind.area);
            let ask = Ask {
                policy: area.share.policy(placement),
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
                margins = self.widen(kind.area, margins)?;
                continue;
            };
            let has_rows = |pv: u32| self.pvs.get(&pv).is_some_and(|state| state.row.is_some());
            let in_row = (searches > 0).then(|| in_row(&area.index, &ask, choice, has_rows)).flatten();
            // One more extent than holes demand is opened only if many are left.
            let is_extra = matches!(choice, Choice::Open(..)) && in_row.is_some();
            let choice = in_row.unwrap_or(choice);
            let (id, from) = match choice {
                Choice::Open(id, from) => (id, from),
                Choice::Free(id, from) => match self.open_chosen(space, kind, id, (margins, is_extra))? {
                    Opening::Done => (id, from),
                    Opening::NoRoom => continue,
                    Opening::Promised => {
                        (spare, searches) = (spare && in_row.is_some(), 0);
                        continue;
                    }
                },
            };
            let slot = match in_row {
                Some(_) => {
                    searches -= 1;
                    self.take_in_row(id, slot_log2, from)?
                }
                None => Some(self.take_slot(id, slot_log2, from)?),
            };
            if let Some(slot) = slot {
                self.note_last(kind, id, placement);
                return Ok(slot);
            }
        }
    }

    /// Returns the margins to try next, if some physical volumes are shunned for the present ones.
    /// They are not shunned any more. Fails if there are no further margins.
    fn widen(&mut self, area: Area, margins: Margins) -> Result<Margins> {
        let shunned = &mut self.areas.index(area).shunned;
        match margins.next().filter(|_| !shunned.is_empty()) {
            Some(next) => {
                shunned.clear();
                Ok(next)
            }
            None => Err(self.refused.clone().unwrap_or_else(|| no_space("allocate a slot"))),
        }
    }

    /// Opens the unused extent that was chosen. If others have a free slot, this one must not be
    /// promised to other writes. `is_extra` means that it is opened only for its rows.
    fn open_chosen(
        &mut self,
        space: &Space,
        kind: SlotKind,
        id: ExtentId,
        (margins, is_extra): (Margins, bool),
    ) -> Result<Opening> {
        if !self.has_room(space, id.0, margins) {
            return Ok(Opening::NoRoom);
        }
        // Volumes with chunks of other sizes may soon need the unused extents.
        if is_extra && !space.is_ample(kind.area, 1) {
            return Ok(Opening::Promised);
        }
        let needed = self.areas.index(kind.area).next_open(kind.log2, (0, 0)).is_none();
        if !space.open_extent(kind, self.below(id), needed) {
            return Ok(Opening::Promised);
        }
        Ok(if self.open_extent(space, id, kind.log2)? { Opening::Done } else { Opening::NoRoom })
    }

    /// Notes the extent of an allocation.
    fn note_last(&mut self, kind: SlotKind, id: ExtentId, placement: Placement) {
        let area = self.areas.of(kind.area);
        area.last.insert(kind.log2, id);
        if placement == Placement::Share {
            area.index.last_on.insert((kind.log2, id.0), id);
        }
    }

    /// Returns the sizes of a branch's slices and gaps. `None`: it has another placement.
    pub(crate) fn snap_aware(&self, branch: &Branch) -> Option<SnapAware> {
        match self.placement_of(branch.placement()) {
            Placement::SnapAware(of) => Some(of),
            _ => None,
        }
    }

    /// Returns the number of chunks of a slice of a branch.
    pub(crate) fn slice_chunks(&self, of: SnapAware, branch: &Branch) -> u64 {
        of.slice_chunks(self.slots_per_extent(branch.slot_log2))
    }

    /// Prepares moves of a slice's chunks to their homes. `chunk` is one of them.
    pub(crate) fn begin_homing(&mut self, of: SnapAware, branch: &Branch, chunk: Chunk) {
        let request = SlotRequest::new(Class::Current, branch, chunk);
        self.find_region_anew(of, self.serving(request.kind.area), &request);
    }

    /// Returns the slot that is the home of a chunk. `None`: its slice has no region.
    pub(crate) fn home_of(&mut self, of: SnapAware, branch: &Branch, chunk: Chunk) -> Option<Slot> {
        let request = SlotRequest::new(Class::Current, branch, chunk);
        let kind = self.serving(request.kind.area).slots(request.kind.log2);
        let region = self.region(of, kind.area, &request)?;
        Some(self.home_in(of, region, chunk, kind.log2))
    }

    fn home_in(&self, of: SnapAware, region: Region, chunk: Chunk, slot_log2: u8) -> Slot {
        let (id, index) = of.home(region, chunk, self.slots_per_extent(slot_log2));
        self.slot_at(id, index, slot_log2)
    }

    /// Takes the slot that is the home of a chunk, if it is free. An unused extent is opened for
    /// it, unless a promise or a margin needs that extent.
    pub(crate) fn take_home(&mut self, space: &Space, home: Slot, kind: SlotKind) -> Result<bool> {
        let kind = self.serving(kind.area).slots(kind.log2);
        if self.take_at(home, kind)? {
            return Ok(true);
        }
        let Ok((id, index)) = self.locate(home, kind.log2) else { return Ok(false) };
        let opens = self.area(id.0) == kind.area
            && self.areas.index(kind.area).next_free(id) == Some(id)
            && self.has_room(space, id.0, Margins::Kept)
            && space.open_extent(kind, self.below(id), false)
            && self.open_extent(space, id, kind.log2)?;
        if opens {
            self.take_index(id, kind.log2, index)?;
        }
        Ok(opens)
    }

    /// Returns the region in which a slot is best, under the snap-aware placement. Takes the slot
    /// that is the home of current content, if it is free.
    fn region_and_home(
        &mut self,
        placement: Placement,
        kind: SlotKind,
        request: &SlotRequest,
    ) -> Result<(Option<Region>, Option<Slot>)> {
        let Placement::SnapAware(of) = placement else { return Ok((None, None)) };
        let region = self.region(of, kind.area, request);
        let Some(at) = region.filter(|_| request.class == Class::Current) else { return Ok((region, None)) };
        let home = self.home_in(of, at, request.owner.1, kind.log2);
        let is_taken = self.take_at(home, kind)?;
        Ok((region, is_taken.then_some(home)))
    }
}
