//! Snap-aware placement: what snapshots need lies near what has replaced it, or near what it was
//! copied from (Shah 2006, section 2.3).
//!
//! A branch is cut into slices of equal size. Physical volumes are cut into regions of equal size:
//! the extents of a slice, and behind them a gap. A slice that is written first gets an unused
//! region. Each chunk has its home there, in the order of the volume. Content that can't be at its
//! home, because a snapshot needs what is there, goes to the gap. So does content that is copied
//! for a snapshot.
//!
//! - P3: a gap is a wish, not a reserve. Other content goes to a gap when nothing else is free.
//!
//! All regions of a physical volume have one size and begin at multiples of it. So everything that
//! lies in a region tells where the region is, and no table has to.

use super::{Ask, Choice, Class, ExtentId, FreeView, SlotPlace, is_open};
use crate::ids::Chunk;
use crate::settings::SnapAware;
use std::ops::Range;

/// Number of extents that are looked at, in each direction, for one that is in a gap, or in none.
const PROBES: usize = 16;

/// The extents of a slice and of its gap, in a row on one physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) pv: u32,
    /// The number of the first extent.
    pub(crate) first: u32,
}

impl SnapAware {
    /// Number of extents of a region.
    pub(crate) fn region_extents(self) -> u32 {
        self.slice.saturating_add(self.gap).max(1)
    }

    /// Returns the region that an extent is in.
    pub(crate) fn region_of(self, (pv, extent): ExtentId) -> Region {
        Region { pv, first: extent - extent % self.region_extents() }
    }

    /// Returns the region behind another one.
    pub(crate) fn region_behind(self, Region { pv, first }: Region) -> Option<Region> {
        Some(Region { pv, first: first.checked_add(self.region_extents())? })
    }

    /// Returns the extents of a region, by their numbers.
    pub(crate) fn extents_of(self, region: Region) -> Range<u32> {
        region.first..region.first.saturating_add(self.region_extents())
    }

    /// Returns the extents of the gap of a region.
    fn gap_of(self, region: Region) -> Range<u32> {
        region.first.saturating_add(self.slice)..self.extents_of(region).end
    }

    fn is_in_gap(self, extent: ExtentId) -> bool {
        self.gap_of(self.region_of(extent)).contains(&extent.1)
    }

    /// Number of chunks of a slice.
    pub(crate) fn slice_chunks(self, slots_per_extent: u32) -> u64 {
        (u64::from(self.slice) * u64::from(slots_per_extent)).max(1)
    }

    /// Returns the place of a chunk in the region of its slice.
    pub(crate) fn home(self, region: Region, chunk: Chunk, slots_per_extent: u32) -> SlotPlace {
        let at = chunk.0 % self.slice_chunks(slots_per_extent);
        let per_extent = u64::from(slots_per_extent.max(1));
        ((region.pv, region.first.saturating_add((at / per_extent) as u32)), (at % per_extent) as u32)
    }
}

/// Chooses an extent in or near the region of the slice. The caller has tried the chunk's home, if
/// it is in an open extent.
pub(super) fn choose_in_region(view: &dyn FreeView, ask: &Ask<'_>, of: SnapAware) -> Option<Choice> {
    let region = ask.region?;
    let (home, index) = of.home(region, ask.owner.1, ask.slots_per_extent);
    let may_open = ask.spare || view.next_open(ask.slot_log2, (0, 0)).is_none();
    if ask.class == Class::Current && may_open && view.next_free(home) == Some(home) {
        return Some(Choice::Free(home, index));
    }
    let origin = ask.origin.filter(|_| ask.class == Class::Preserved).map(|(extent, _)| extent);
    let near = origin.filter(|extent| extent.0 == region.pv).unwrap_or(home).1;
    let open = Search { view, size: Some(ask.slot_log2), pv: region.pv, near };
    let free = Search { size: None, ..open };
    let if_free = |found: Option<ExtentId>| found.filter(|_| may_open).map(|extent| Choice::Free(extent, 0));
    let (all, gap) = (of.extents_of(region), of.gap_of(region));
    open.nearest(gap.clone(), |_| true)
        .map(Choice::open)
        .or_else(|| if_free(free.nearest(gap.clone(), |_| true)))
        .or_else(|| open.nearest(all.start..gap.start, |_| true).map(Choice::open))
        // The region is full: gaps of others that are begun, then what is in no gap.
        .or_else(|| open.nearest(0..u32::MAX, |extent| of.is_in_gap(extent)).map(Choice::open))
        .or_else(|| if_free(free.nearest(0..u32::MAX, |extent| !of.is_in_gap(extent))))
        .or_else(|| open.nearest(0..u32::MAX, |_| true).map(Choice::open))
        .or_else(|| if_free(free.nearest(0..u32::MAX, |_| true)))
        .filter(|choice| match choice {
            Choice::Open(extent, _) => is_open(view, ask, *extent),
            Choice::Free(..) => true,
        })
}

/// A search for the extent nearest to another one.
#[derive(Clone, Copy)]
struct Search<'a> {
    view: &'a dyn FreeView,
    /// log2 of the slot size, for open extents. `None` stands for unused extents.
    size: Option<u8>,
    pv: u32,
    near: u32,
}

impl Search<'_> {
    /// Returns the nearest extent in a range of numbers that suits.
    fn nearest(self, range: Range<u32>, suits: impl Fn(ExtentId) -> bool) -> Option<ExtentId> {
        let (mut up, mut down) = (self.near.max(range.start), self.near.min(range.end));
        let mut above = None;
        for _ in 0..PROBES {
            let Some(found) = self.at_or_after(up).filter(|extent| range.contains(&extent.1)) else { break };
            if suits(found) {
                above = Some(found);
                break;
            }
            let Some(next) = found.1.checked_add(1) else { break };
            up = next;
        }
        let mut below = None;
        for _ in 0..PROBES {
            let Some(found) = self.before(down).filter(|extent| range.contains(&extent.1)) else { break };
            if suits(found) {
                below = Some(found);
                break;
            }
            down = found.1;
        }
        let distance = |extent: &ExtentId| extent.1.abs_diff(self.near);
        [above, below].into_iter().flatten().min_by_key(distance)
    }

    fn at_or_after(self, from: u32) -> Option<ExtentId> {
        let found = match self.size {
            Some(slot_log2) => self.view.next_open(slot_log2, (self.pv, from)),
            None => self.view.next_free((self.pv, from)),
        };
        found.filter(|extent| extent.0 == self.pv)
    }

    fn before(self, end: u32) -> Option<ExtentId> {
        let found = match self.size {
            Some(slot_log2) => self.view.prev_open(slot_log2, (self.pv, end)),
            None => self.view.prev_free((self.pv, end)),
        };
        found.filter(|extent| extent.0 == self.pv)
    }
}
