//! Placement: the extent from which a new slot comes. It is a pure function of what is free and of
//! what is asked for. It has no state and no randomness, so policies can be compared and tested
//! without a pool.
//!
//! - P1: [`choose`] decides, and reserves nothing. Whatever is promised can be allocated under
//!   every policy (I6): a preference gives way before a promise does.
//! - P2: the same view and the same ask have the same answer.

pub(crate) mod share;
pub(crate) mod snap_aware;

use crate::area::SlotKind;
use crate::branch::Branch;
use crate::ids::{BranchId, Chunk, Slot};
use crate::settings::{Placement, SnapAware};
use share::ShareMap;
use snap_aware::{Region, choose_in_region};

/// An extent: (physical volume, number on it).
pub(crate) type ExtentId = (u32, u32);

/// A slot of an extent: (extent, index in it).
pub(crate) type SlotPlace = (ExtentId, u32);

/// The free extents as placement sees them.
pub(crate) trait FreeView {
    /// Returns the first extent at or after `from` that holds slots of this size and has a free
    /// one.
    fn next_open(&self, slot_log2: u8, from: ExtentId) -> Option<ExtentId>;
    /// Returns the first extent at or after `from` that is unused and may be opened.
    fn next_free(&self, from: ExtentId) -> Option<ExtentId>;
    /// Returns the last extent before `end` that holds slots of this size and has a free one.
    fn prev_open(&self, slot_log2: u8, end: ExtentId) -> Option<ExtentId>;
    /// Returns the last extent before `end` that is unused and may be opened.
    fn prev_free(&self, end: ExtentId) -> Option<ExtentId>;
    /// Returns the extent of the last allocation of this slot size on a physical volume. It may be
    /// full.
    fn last_on(&self, slot_log2: u8, pv: u32) -> Option<ExtentId>;
}

/// The wish for a place, with what it depends on.
#[derive(Clone, Copy)]
pub(crate) enum Policy<'a> {
    /// The extent of the last allocation, else the first one with room.
    Anywhere,
    /// Behind the chunk before.
    Contiguous,
    /// On the physical volume that Share names for the part of the branch.
    Share(&'a ShareMap),
    /// At the chunk's home in the region of its slice, or near it.
    SnapAware(SnapAware),
}

/// The use of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The slot holds what a chunk of a branch has now.
    Current,
    /// The slot holds what snapshots need, and the chunk has changed since.
    Preserved,
}

/// The content for which background work allocates a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotRequest {
    pub(crate) kind: SlotKind,
    pub(crate) class: Class,
    /// The chunk of which the slot holds content.
    pub(crate) owner: (BranchId, Chunk),
    /// The placement of the branch; `None`: that of the pool.
    pub(crate) placement: Option<Placement>,
    /// The slot whose content the new slot preserves or replaces.
    pub(crate) origin: Option<Slot>,
    /// The slot of the chunk before, behind which the new slot is best placed.
    pub(crate) neighbour: Option<Slot>,
}

impl SlotRequest {
    /// A request for content of a chunk that has no slot yet.
    pub(crate) fn new(class: Class, branch: &Branch, chunk: Chunk) -> SlotRequest {
        let (owner, placement) = ((branch.id, chunk), branch.placement());
        SlotRequest { kind: branch.kind(), class, owner, placement, origin: None, neighbour: None }
    }

    /// A request for content that comes from, or replaces that of, the slot `origin`.
    #[must_use]
    pub(crate) fn of_origin(self, origin: Option<Slot>) -> SlotRequest {
        SlotRequest { origin, ..self }
    }

    /// A request for a slot behind that of the chunk before.
    #[must_use]
    pub(crate) fn behind(self, neighbour: Option<Slot>) -> SlotRequest {
        SlotRequest { neighbour, ..self }
    }
}

/// What [`choose`] is asked.
pub(crate) struct Ask<'a> {
    pub(crate) policy: Policy<'a>,
    pub(crate) slot_log2: u8,
    pub(crate) slots_per_extent: u32,
    pub(crate) class: Class,
    /// The chunk of which the slot will hold content.
    pub(crate) owner: (BranchId, Chunk),
    /// The place whose content the new slot preserves or replaces.
    pub(crate) origin: Option<SlotPlace>,
    /// The place of the chunk before.
    pub(crate) neighbour: Option<SlotPlace>,
    /// The region of the slice that the chunk is in, under the snap-aware placement.
    pub(crate) region: Option<Region>,
    /// The extent of the last allocation of this slot size.
    pub(crate) last: Option<ExtentId>,
    /// There are free extents that no promise needs (I6), so one may be opened though another has
    /// room.
    pub(crate) spare: bool,
}

/// The extent from which a slot is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// An extent that has slots of this size. The number is the index from which on the slot is
    /// best taken.
    Open(ExtentId, u32),
    /// An extent that is unused, and the index from which on the slot is best taken.
    Free(ExtentId, u32),
}

/// Chooses the extent for a new slot. Returns `None` if there is neither a free slot of this size
/// nor a free extent.
pub(crate) fn choose(view: &dyn FreeView, ask: &Ask<'_>) -> Option<Choice> {
    let near = match ask.policy {
        Policy::Anywhere => ask.last.filter(|last| is_open(view, ask, *last)).map(Choice::open),
        Policy::Contiguous => behind_neighbour(view, ask),
        Policy::Share(map) => by_share(view, ask, map),
        Policy::SnapAware(of) => choose_in_region(view, ask, of),
    };
    near.or_else(|| view.next_open(ask.slot_log2, (0, 0)).map(Choice::open))
        .or_else(|| view.next_free((0, 0)).map(Choice::free))
}

impl Choice {
    /// Any slot of an open extent.
    fn open(extent: ExtentId) -> Choice {
        Choice::Open(extent, 0)
    }

    /// The first slot of an unused extent.
    fn free(extent: ExtentId) -> Choice {
        Choice::Free(extent, 0)
    }
}

fn is_open(view: &dyn FreeView, ask: &Ask<'_>, extent: ExtentId) -> bool {
    view.next_open(ask.slot_log2, extent) == Some(extent)
}

/// Chooses, in this order: the neighbour's own extent, the free one right behind it, then any later
/// one on the same physical volume.
fn behind_neighbour(view: &dyn FreeView, ask: &Ask<'_>) -> Option<Choice> {
    let (near, index) = ask.neighbour?;
    if is_open(view, ask, near) {
        return Some(Choice::Open(near, index + 1));
    }
    let same_pv = |extent: &ExtentId| extent.0 == near.0;
    let next = (near.0, near.1.saturating_add(1));
    let free_from = |extent| view.next_free(extent).filter(|_| ask.spare);
    let adjacent = free_from(next).filter(|extent| *extent == next);
    adjacent
        .or_else(|| free_from(near).filter(same_pv))
        .map(Choice::free)
        .or_else(|| view.next_open(ask.slot_log2, near).filter(same_pv).map(Choice::open))
}

/// Chooses by Share. An extent's worth of a branch goes to one physical volume, there to the extent
/// of the last allocation. Preserved content stays on the physical volume that it is on. Full
/// physical volumes are passed over.
fn by_share(view: &dyn FreeView, ask: &Ask<'_>, map: &ShareMap) -> Option<Choice> {
    let may_open = ask.spare || view.next_open(ask.slot_log2, (0, 0)).is_none();
    let on_pv = |pv: u32| {
        let is_there = |extent: &ExtentId| extent.0 == pv;
        let last = view.last_on(ask.slot_log2, pv).filter(|last| is_open(view, ask, *last));
        let open = last.or_else(|| view.next_open(ask.slot_log2, (pv, 0)).filter(is_there));
        let free = || view.next_free((pv, 0)).filter(|extent| may_open && is_there(extent));
        open.map(Choice::open).or_else(|| free().map(Choice::free))
    };
    let origin = ask.origin.filter(|_| ask.class == Class::Preserved).map(|((pv, _), _)| pv);
    let item = item_of(ask.owner, ask.slots_per_extent);
    origin
        .and_then(on_pv)
        .or_else(|| map.place(item).and_then(on_pv))
        .or_else(|| map.ranking(item).into_iter().find_map(on_pv))
}

/// Returns the item of Share that has a chunk: an extent's worth of a branch.
pub(crate) fn item_of((branch, chunk): (BranchId, Chunk), slots_per_extent: u32) -> u64 {
    share::item(branch, chunk.0 / u64::from(slots_per_extent.max(1)))
}

#[cfg(test)]
mod tests;
