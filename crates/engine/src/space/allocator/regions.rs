//! The regions of the slices of branches, for the snap-aware placement.
//!
//! No table says where they are: content of a slice lies in its region. So the region of a slice is
//! looked up where its chunks lie, when the slice is written first after the pool is opened. What
//! is found is a wish, like all of placement. Nothing depends on it.

use super::{Allocator, AreaState, FreeIndex};
use crate::area::Area;
use crate::catalog::PageKey;
use crate::catalog::page::{MapPage, Slot};
use crate::error::Result;
use crate::ids::{BranchId, Chunk};
use crate::settings::SnapAware;
use crate::space::placement::SlotRequest;
use crate::space::placement::snap_aware::Region;
use std::collections::BTreeMap;

/// The largest number of regions in memory. A region takes about 50 bytes.
const MOST_KNOWN: usize = 1 << 18;
/// The largest number of map pages that are read to find a region.
const MOST_PAGES: usize = 4;

/// The regions that are known.
#[derive(Default)]
pub(super) struct SliceRegions {
    /// By branch and number of the slice. `None`: there was no region left.
    known: BTreeMap<(BranchId, u64), Option<Region>>,
}

/// How some chunks of a slice lie.
#[derive(Default)]
struct Votes {
    /// By (physical volume, first extent) of a region: votes for it, and the chunks at home there.
    by_region: BTreeMap<(u32, u32), (u64, u64)>,
    /// Number of the chunks.
    chunks: u64,
}

impl SliceRegions {
    /// Forgets all regions: the physical volumes, or the sizes of regions, have changed.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    fn note(&mut self, slice: (BranchId, u64), region: Option<Region>) {
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(slice, region);
    }

    /// Forgets the regions of a branch.
    pub(super) fn forget(&mut self, branch: BranchId) {
        self.known.retain(|(of, _), _| *of != branch);
    }
}

impl Allocator {
    /// Returns the region of the slice that the chunk of a request is in. Chooses one in the area
    /// if the slice has none.
    pub(super) fn region(&mut self, of: SnapAware, area: Area, request: &SlotRequest) -> Option<Region> {
        let (slice, per_extent) = self.slice_of(of, request);
        let known = self.regions.known.get(&slice).copied();
        let serves = |region: &Region| self.gives(region.pv) && self.area(region.pv) == area;
        if let Some(known) = known.filter(|region| region.as_ref().is_none_or(serves)) {
            return known;
        }
        // A page that can't be read is reported elsewhere.
        let found = self.region_in_use(of, area, slice, per_extent).unwrap_or(None);
        let region = found.map(|(region, _)| region).or_else(|| self.unused_region(of, area, slice));
        self.regions.note(slice, region);
        region
    }

    /// Returns the branch and the number of the slice that the chunk of a request is in, and the
    /// number of slots of an extent.
    fn slice_of(&self, of: SnapAware, request: &SlotRequest) -> ((BranchId, u64), u32) {
        let per_extent = self.slots_per_extent(request.kind.log2);
        let (branch, chunk) = request.owner;
        ((branch, chunk.0 / of.slice_chunks(per_extent)), per_extent)
    }

    /// Looks up the region of a chunk's slice anew, before its chunks are moved home. A slice that
    /// was written under another placement, or with other sizes, has few chunks at home. It gets an
    /// unused region, if there is one.
    pub(super) fn find_region_anew(&mut self, of: SnapAware, area: Area, request: &SlotRequest) {
        let (slice, per_extent) = self.slice_of(of, request);
        let found = self.region_in_use(of, area, slice, per_extent).unwrap_or(None);
        let region = match found {
            Some((region, true)) => Some(region),
            _ => self.unused_region(of, area, slice).or(found.map(|(region, _)| region)),
        };
        self.regions.note(slice, region);
    }

    /// Returns the region of the area in which most of some chunks of a slice lie, and whether half
    /// of them are at home there.
    fn region_in_use(
        &self,
        of: SnapAware,
        area: Area,
        (branch, slice): (BranchId, u64),
        per_extent: u32,
    ) -> Result<Option<(Region, bool)>> {
        let count = of.slice_chunks(per_extent);
        let first = Chunk(slice.saturating_mul(count));
        let last = Chunk(first.0.saturating_add(count - 1));
        let mut votes = Votes::default();
        for number in self.catalog.page_numbers(branch, first.page(), last.page(), MOST_PAGES)? {
            let Some(page) = self.catalog.page(PageKey::new(branch, number))? else { continue };
            self.vote(of, &page, (number, first..=last), per_extent, &mut votes);
        }
        let most = votes.by_region.into_iter().max_by_key(|(_, (votes, _))| *votes);
        let found =
            most.map(|((pv, first), (_, at_home))| (Region { pv, first }, at_home * 2 >= votes.chunks));
        Ok(found.filter(|(region, _)| self.gives(region.pv) && self.area(region.pv) == area))
    }

    /// Counts the chunks of a page in each region. A chunk at its home counts more than one that
    /// may have found no room in its own region.
    fn vote(
        &self,
        of: SnapAware,
        page: &MapPage,
        (number, chunks): (u64, std::ops::RangeInclusive<Chunk>),
        per_extent: u32,
        votes: &mut Votes,
    ) {
        let slot_log2 = (self.extent_size / u64::from(per_extent.max(1))).trailing_zeros() as u8;
        for (at, entry) in page.iter().filter(|(_, entry)| entry.slot != Slot::HOLE) {
            let chunk = Chunk::in_page(number, at);
            let Ok(place) = self.locate(entry.slot, slot_log2) else { continue };
            if chunks.contains(&chunk) {
                let region = of.region_of(place.0);
                let at_home = of.home(region, chunk, per_extent) == place;
                let (all, of_home) = votes.by_region.entry((region.pv, region.first)).or_default();
                (*all, *of_home) = (*all + if at_home { 4 } else { 1 }, *of_home + u64::from(at_home));
                votes.chunks += 1;
            }
        }
    }

    /// Returns an unused region for a slice: the one behind the region of the slice before, else
    /// the next one on any physical volume, else the one with the most unused extents.
    fn unused_region(
        &mut self,
        of: SnapAware,
        area: Area,
        (branch, slice): (BranchId, u64),
    ) -> Option<Region> {
        let before = slice.checked_sub(1).and_then(|before| self.regions.known.get(&(branch, before)));
        let behind = before.copied().flatten().and_then(|before| of.region_behind(before));
        let AreaState { index, region, .. } = self.areas.of(area);
        if let Some(behind) = behind.filter(|region| is_unused(index, of, *region)) {
            return Some(behind);
        }
        let found = next_unused(index, of, *region).or_else(|| next_unused(index, of, None));
        *region = found;
        found.or_else(|| emptiest(index, of))
    }
}

fn is_unused(index: &FreeIndex, of: SnapAware, region: Region) -> bool {
    unused_extents(index, of, region) == of.region_extents()
}

fn unused_extents(index: &FreeIndex, of: SnapAware, region: Region) -> u32 {
    let extents = of.extents_of(region);
    index.free.range((region.pv, extents.start)..(region.pv, extents.end)).count() as u32
}

/// Returns the first region from `from` on in which nothing lies.
fn next_unused(index: &FreeIndex, of: SnapAware, from: Option<Region>) -> Option<Region> {
    let mut at = from.map_or((0, 0), |region| (region.pv, region.first));
    loop {
        let region = of.region_of(*index.free.range(at..).next()?);
        if is_unused(index, of, region) {
            return Some(region);
        }
        at = (region.pv, of.extents_of(region).end);
    }
}

/// Returns the region with the most unused extents.
fn emptiest(index: &FreeIndex, of: SnapAware) -> Option<Region> {
    let (mut best, mut at) = (None, (0, 0));
    while let Some(free) = index.free.range(at..).next() {
        let region = of.region_of(*free);
        let unused = unused_extents(index, of, region);
        if best.is_none_or(|(most, _)| unused > most) {
            best = Some((unused, region));
        }
        at = (region.pv, of.extents_of(region).end);
    }
    best.map(|(_, region)| region)
}
