//! Extents and slots: which are used, which are free, and which wait for their last reader.
//!
//! The destager owns the allocator, so it needs no lock. Each extent has two bitmaps. `live` is
//! what the catalog has after the next commit. `busy` also has the slots that were freed but may
//! still be read, or whose freeing is not durable yet: they are not given out (I5). Bitmaps are
//! loaded when needed and dropped when an extent is full. An extent at rest takes 24 bytes of
//! memory.

mod backing;
mod bad;
mod giving;
mod lending;
mod placing;
mod regions;
mod rows;
mod undo;

use super::label::DATA_START;
use super::placement::snap_aware::Region;
use super::placement::{ExtentId, FreeView};
use super::pv::Pv;
use super::reservations::{Space, SpaceChange};
use crate::area::{Area, SlotKind};
use crate::catalog::page::Slot;
use crate::catalog::{Catalog, ExtentRecord, Txn};
use crate::error::{Error, ErrorKind, Result, corrupt};
use crate::settings::Placement;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Allocates and frees the slots of all physical volumes.
pub(crate) struct Allocator {
    extent_size: u64,
    placement: Placement,
    regions: regions::SliceRegions,
    catalog: Arc<Catalog>,
    pvs: BTreeMap<u32, PvState>,
    areas: Areas,
    rooms: Rooms,
    dirty: BTreeSet<ExtentId>,
    freed: Vec<FreedSlot>,
    change: SpaceChange,
    /// The error of the file system below when it had no room for an extent.
    refused: Option<Error>,
    /// The changes since the last commit.
    undo: Vec<undo::Step>,
    /// Extents that stay open though they are empty: see [`Allocator::keep_open`].
    kept: lending::KeptExtents,
    /// The last extent from which short runs were lent, by kind of its slots.
    scattered: BTreeMap<SlotKind, ExtentId>,
    bad: bad::BadSlots,
    /// Extents of RAID-5s that have become empty: see [`Allocator::take_emptied`].
    emptied: Vec<ExtentId>,
}

/// Number of open extents in which a run of slots is looked for.
const MAX_SEARCHED: usize = 64;

/// A slot that was freed: (slot, log2 of its size).
pub(crate) type FreedSlot = (Slot, u8);

/// What a commit has changed.
pub(crate) struct CommittedChange {
    /// The slots that were freed, which are to be retired.
    pub(crate) freed: Vec<FreedSlot>,
    /// The slots that became bad.
    pub(crate) bad: Vec<FreedSlot>,
    pub(crate) space: SpaceChange,
}

struct PvState {
    pv: Arc<Pv>,
    area: Area,
    draining: bool,
    /// A write to the physical volume has failed: nothing is given out there any more.
    failed: bool,
    /// Bytes of content of a row, if this is a RAID-5.
    row: Option<u64>,
    /// The file system from which the free extents take their space, as far as is known.
    file_system: Option<u64>,
    /// Number of the physical volume's extents in the free index.
    free: u64,
    /// Free extents for which the file system below has no room. They are not in the index until it
    /// has.
    aside: Vec<u32>,
    extents: Vec<Extent>,
}

#[derive(Default)]
struct Extent {
    /// log2 of the slot size; 0 when the extent is unused.
    slot_log2: u8,
    live: u32,
    busy: u32,
    bits: Option<Box<Bits>>,
}

struct Bits {
    live: Vec<u64>,
    busy: Vec<u64>,
    /// The row of a RAID-5 that is begun, and has a free slot.
    begun: Option<Range<u32>>,
}

/// The margins that file systems keep when extents are opened there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Margins {
    Kept,
    /// The margin is kept only where the catalog and logs are.
    OfLogsKept,
    /// The margins may be used: what was promised is kept.
    Used,
}

impl Margins {
    fn next(self) -> Option<Margins> {
        match self {
            Margins::Kept => Some(Margins::OfLogsKept),
            Margins::OfLogsKept => Some(Margins::Used),
            Margins::Used => None,
        }
    }
}

/// Bytes that file systems had for extents at the last measurement, less what was opened there
/// since.
#[derive(Default)]
struct Rooms {
    by_file_system: BTreeMap<u64, u64>,
    /// The file system from which logs take their space.
    of_logs: Option<u64>,
}

/// What is free, by area.
#[derive(Default)]
struct Areas(BTreeMap<Area, AreaState>);

/// What is free in an area, and how slots are placed there.
#[derive(Default)]
struct AreaState {
    index: FreeIndex,
    share: placing::AreaShare,
    /// The extent of the last allocation, per slot size.
    last: BTreeMap<u8, ExtentId>,
    /// The place at which the search for an unused region begins.
    region: Option<Region>,
}

impl Areas {
    fn of(&mut self, area: Area) -> &mut AreaState {
        self.0.entry(area).or_default()
    }

    fn index(&mut self, area: Area) -> &mut FreeIndex {
        &mut self.of(area).index
    }
}

#[derive(Default)]
struct FreeIndex {
    free: BTreeSet<ExtentId>,
    open: rows::OpenExtents,
    /// Physical volumes whose file systems have only their margin left. Promises count on other
    /// extents first, so these are used when there are no others: the margin is the catalog's.
    shunned: BTreeSet<u32>,
    /// The extent of the last allocation, by slot size and physical volume. Only Share needs it.
    last_on: BTreeMap<(u8, u32), ExtentId>,
}

impl Allocator {
    pub(crate) fn new(extent_size: u64, placement: Placement, catalog: Arc<Catalog>) -> Self {
        Allocator {
            extent_size,
            placement,
            regions: regions::SliceRegions::default(),
            catalog,
            pvs: BTreeMap::new(),
            areas: Areas::default(),
            rooms: Rooms::default(),
            dirty: BTreeSet::new(),
            freed: Vec::new(),
            change: SpaceChange::default(),
            refused: None,
            undo: Vec::new(),
            kept: lending::KeptExtents::default(),
            scattered: BTreeMap::new(),
            bad: bad::BadSlots::default(),
            emptied: Vec::new(),
        }
    }

    fn slots_per_extent(&self, slot_log2: u8) -> u32 {
        (self.extent_size >> slot_log2) as u32
    }

    /// Returns the area of a physical volume.
    pub(crate) fn area(&self, pv: u32) -> Area {
        self.pvs.get(&pv).map_or(Area::Common, |state| state.area)
    }

    /// Returns the file system from which an extent takes its space.
    fn below(&self, id: ExtentId) -> Option<u64> {
        self.pvs.get(&id.0).and_then(|state| state.file_system)
    }

    /// Returns the area from which slots of `area` are taken now. A dedicated physical volume that
    /// gives out none is replaced by the common area (Z2).
    pub(crate) fn serving(&self, area: Area) -> Area {
        area.dedicated().map_or(area, |pv| if self.gives(pv) { area } else { Area::Common })
    }

    /// Adds a physical volume with a number of extents, which are all free. Returns the change of
    /// capacity, which the caller passes on.
    pub(crate) fn add_pv(&mut self, pv: Arc<Pv>, number: u32, draining: bool) -> SpaceChange {
        let mut extents = Vec::new();
        extents.resize_with(number as usize, Extent::default);
        let mut change = SpaceChange::default();
        let area = Area::of(pv.id, pv.is_dedicated);
        pv.leaving.store(draining, Ordering::Release);
        if !draining {
            self.areas.index(area).free.extend((0..number).map(|e| (pv.id, e)));
            change.of(area).free_extents = number.into();
        }
        let free = if draining { 0 } else { u64::from(number) };
        let row = pv.row_len();
        if row.is_some() {
            self.areas.index(area).open.list_rows();
        }
        let state = PvState {
            pv,
            area,
            draining,
            failed: false,
            row,
            file_system: None,
            free,
            aside: Vec::new(),
            extents,
        };
        self.pvs.insert(state.pv.id, state);
        self.pvs_changed();
        change
    }

    /// Loads the catalog's extents and bad slots, once all physical volumes are added. Returns what
    /// the extents take from the capacity.
    pub(crate) fn load(&mut self) -> Result<SpaceChange> {
        self.bad = bad::BadSlots::of(self.catalog.bad_slots()?);
        let mut found = Vec::new();
        self.catalog.clone().extents(&mut |pv, extent, record| found.push(((pv, extent), record)))?;
        let mut change = SpaceChange::default();
        for (id, record) in found {
            let per_extent = self.extent_size.checked_shr(record.slot_log2 as u32).unwrap_or(0) as u32;
            let Some(state) = self.pvs.get_mut(&id.0) else {
                return Err(corrupt(format!("load extent {} of PV {}: the PV does not exist", id.1, id.0)));
            };
            let Some(extent) = state.extents.get_mut(id.1 as usize) else {
                return Err(corrupt(format!("load extent {} of PV {}: it is beyond its end", id.1, id.0)));
            };
            // The row of an extent without used slots is removed, so a row that counts none is
            // damaged.
            if !(1..=per_extent).contains(&record.used) || !(9..=30).contains(&record.slot_log2) {
                return Err(corrupt(format!("load extent {} of PV {}: its record is invalid", id.1, id.0)));
            }
            *extent =
                Extent { slot_log2: record.slot_log2, live: record.used, busy: record.used, bits: None };
            state.pv.used_extents.fetch_add(1, Ordering::Relaxed);
            if state.gives() {
                let index = self.areas.index(state.area);
                index.free.remove(&id);
                state.free -= 1;
                let change = change.of(state.area);
                change.free_extents -= 1;
                change.free_slots[record.slot_log2 as usize] += (per_extent - record.used) as i64;
                if record.used < per_extent {
                    index.open.insert(record.slot_log2, id);
                }
            }
        }
        Ok(change)
    }

    fn extent(&mut self, id: ExtentId) -> Result<&mut Extent> {
        let extent = self.pvs.get_mut(&id.0).and_then(|s| s.extents.get_mut(id.1 as usize));
        extent.ok_or_else(|| corrupt(format!("find extent {} of PV {}: it does not exist", id.1, id.0)))
    }

    /// Returns the extent, with its bitmaps loaded.
    fn loaded(&mut self, id: ExtentId) -> Result<(&mut Extent, Box<Bits>)> {
        let (extent_size, catalog) = (self.extent_size, self.catalog.clone());
        let extent = self.extent(id)?;
        if let Some(bits) = extent.bits.take() {
            return Ok((extent, bits));
        }
        let words = ((extent_size >> extent.slot_log2) as usize).div_ceil(64);
        let live = if extent.live > 0 { catalog.bitmap(id.0, id.1, words)? } else { vec![0; words] };
        let count: u32 = live.iter().map(|w| w.count_ones()).sum();
        if count != extent.live {
            return Err(corrupt(format!(
                "load the bitmap of extent {} of PV {}: {count} slots are marked, but {} are counted",
                id.1, id.0, extent.live
            )));
        }
        Ok((extent, Box::new(Bits { busy: live.clone(), live, begun: None })))
    }

    fn locate(&self, slot: Slot, slot_log2: u8) -> Result<(ExtentId, u32)> {
        let at = slot.offset().checked_sub(DATA_START);
        let at = at.ok_or_else(|| corrupt(format!("locate slot {:#x}: it is before the data", slot.0)))?;
        let index = (at % self.extent_size) >> slot_log2;
        let extent = u32::try_from(at / self.extent_size)
            .map_err(|_| corrupt(format!("locate slot {:#x}: it is past the last extent", slot.0)))?;
        Ok(((slot.pv(), extent), index as u32))
    }

    fn slot_at(&self, id: ExtentId, index: u32, slot_log2: u8) -> Slot {
        Slot::new(id.0, DATA_START + id.1 as u64 * self.extent_size + ((index as u64) << slot_log2))
    }

    /// Returns whether one more extent of this physical volume may be opened with these margins,
    /// and without what others are promised. If not, the physical volume is shunned.
    fn has_room(&mut self, space: &Space, pv: u32, margins: Margins) -> bool {
        let Some(state) = self.pvs.get(&pv) else { return true };
        let (Some(file_system), area) = (state.file_system, state.area) else { return true };
        let room = self.rooms.by_file_system.get(&file_system).copied().unwrap_or(0);
        let logs = if self.rooms.of_logs == Some(file_system) { space.logs() } else { 0 };
        let taken = logs.saturating_add(space.claimed(file_system, area));
        let has_room = match margins {
            Margins::Kept => room.saturating_sub(taken) >= self.extent_size,
            Margins::OfLogsKept => self.rooms.of_logs != Some(file_system),
            Margins::Used => true,
        };
        if !has_room {
            self.areas.index(area).shunned.insert(pv);
        }
        has_room
    }

    /// Gives a free extent a slot size. The caller has changed `space` before. False when the
    /// extent's backing store is full: all free extents of the physical volume are then set aside.
    fn open_extent(&mut self, space: &Space, id: ExtentId, slot_log2: u8) -> Result<bool> {
        let offset = DATA_START + id.1 as u64 * self.extent_size;
        let Some(state) = self.pvs.get_mut(&id.0) else {
            return Err(corrupt(format!("open an extent of PV {}: the PV does not exist", id.0)));
        };
        let (area, below) = (state.area, state.file_system);
        self.areas.index(area).free.remove(&id);
        state.free -= 1;
        if let Err(error) = state.pv.disk.allocate(offset, self.extent_size) {
            let error =
                state.pv.write_failed(format!("allocate extent {} of {}", id.1, state.pv.path), error);
            if error.kind() != ErrorKind::NoSpace {
                // The extent is as free as it was before.
                state.free += 1;
                self.areas.index(area).free.insert(id);
                space.close_extent(area.slots(slot_log2), below);
                return Err(error);
            }
            self.refused = Some(error);
            // The failed allocation may have taken some space: it is given back.
            let _ = state.pv.disk.punch(offset, self.extent_size);
            space.set_aside(area.slots(slot_log2), below, 1 + state.free);
            state.aside.push(id.1);
            state.free = 0;
            let free = &mut self.areas.index(area).free;
            let others: Vec<ExtentId> = free.range((id.0, 0)..=(id.0, u32::MAX)).copied().collect();
            state.aside.extend(others.iter().map(|(_, extent)| *extent));
            free.retain(|other| other.0 != id.0);
            return Ok(false);
        }
        let room = state.file_system.and_then(|below| self.rooms.by_file_system.get_mut(&below));
        if let Some(room) = room {
            *room = room.saturating_sub(self.extent_size);
        }
        state.pv.used_extents.fetch_add(1, Ordering::Relaxed);
        *self.extent(id)? = Extent { slot_log2, ..Extent::default() };
        self.areas.index(area).open.insert(slot_log2, id);
        self.undo.push(undo::Step::Opened(id));
        Ok(true)
    }

    fn take_slot(&mut self, id: ExtentId, slot_log2: u8, after: u32) -> Result<Slot> {
        let slots = self.slots_per_extent(slot_log2);
        let (extent, bits) = self.loaded(id)?;
        let index = first_zero(&bits.busy, after, slots).or_else(|| first_zero(&bits.busy, 0, slots));
        extent.bits = Some(bits);
        let Some(index) = index else {
            return Err(corrupt(format!("allocate in extent {} of PV {}: it is full", id.1, id.0)));
        };
        self.take_index(id, slot_log2, index)
    }

    /// Takes this slot, if it is free and of this kind, and its physical volume takes data. False
    /// otherwise.
    pub(crate) fn take_at(&mut self, slot: Slot, kind: SlotKind) -> Result<bool> {
        let slot_log2 = kind.log2;
        let Ok((id, index)) = self.locate(slot, slot_log2) else { return Ok(false) };
        let slots = self.slots_per_extent(slot_log2);
        let takes = |s: &PvState| {
            let extent = s.extents.get(id.1 as usize);
            let has_room = extent.is_some_and(|e| e.slot_log2 == slot_log2 && e.busy < slots);
            s.gives() && s.area == kind.area && has_room
        };
        if !self.pvs.get(&id.0).is_some_and(takes) {
            return Ok(false);
        }
        let (extent, bits) = self.loaded(id)?;
        let free = !get(&bits.busy, index);
        extent.bits = Some(bits);
        if free {
            self.take_index(id, slot_log2, index)?;
        }
        Ok(free)
    }

    /// Takes `count` slots in a row, and returns the first of them. They come from an open extent,
    /// or from a free one that neither a promise nor a margin needs. With `pv` they come from that
    /// physical volume of the area.
    pub(crate) fn take_run(
        &mut self,
        space: &Space,
        kind: SlotKind,
        count: u32,
        pv: Option<u32>,
    ) -> Result<Option<Slot>> {
        let slot_log2 = kind.log2;
        let slots = self.slots_per_extent(slot_log2);
        let (first, last) = (pv.unwrap_or(0), pv.unwrap_or(u32::MAX));
        let open = self.areas.index(kind.area).open.of(slot_log2).into_iter();
        let open = open.flat_map(|open| open.range((first, 0)..=(last, u32::MAX)).rev());
        let open: Vec<ExtentId> = open.take(MAX_SEARCHED).copied().collect();
        let mut found = None;
        for id in open {
            let (extent, bits) = self.loaded(id)?;
            found = zeros(&bits.busy, count, slots).map(|index| (id, index));
            extent.bits = Some(bits);
            if found.is_some() {
                break;
            }
        }
        while found.is_none()
            && count <= slots
            && let Some(id) = self.areas.index(kind.area).next_free((first, 0)).filter(|id| id.0 <= last)
        {
            if !self.has_room(space, id.0, Margins::Kept) {
                continue;
            }
            if !space.open_extent(kind, self.below(id), false) {
                break;
            }
            found = self.open_extent(space, id, slot_log2)?.then_some((id, 0));
        }
        let Some((id, first)) = found else { return Ok(None) };
        for index in first..first + count {
            self.take_index(id, slot_log2, index)?;
        }
        Ok(Some(self.slot_at(id, first, slot_log2)))
    }

    fn take_index(&mut self, id: ExtentId, slot_log2: u8, index: u32) -> Result<Slot> {
        let (slots, area) = (self.slots_per_extent(slot_log2), self.area(id.0));
        self.kept.forget(area.slots(slot_log2), id);
        let (extent, mut bits) = self.loaded(id)?;
        set(&mut bits.live, index);
        set(&mut bits.busy, index);
        extent.bits = Some(bits);
        extent.live += 1;
        extent.busy += 1;
        if extent.busy == slots {
            self.areas.index(area).open.remove(slot_log2, id);
        }
        self.change.of(area).free_slots[slot_log2 as usize] -= 1;
        self.dirty.insert(id);
        self.undo.push(undo::Step::Took(id, index));
        Ok(self.slot_at(id, index, slot_log2))
    }

    /// Frees a slot. The next commit removes it from the catalog. It is given out again only after
    /// [`Allocator::reuse`].
    pub(crate) fn free(&mut self, slot: Slot, slot_log2: u8) -> Result<()> {
        let (id, index) = self.locate(slot, slot_log2)?;
        let (extent, mut bits) = self.loaded(id)?;
        let owned = extent.slot_log2 == slot_log2 && get(&bits.live, index);
        if owned {
            clear(&mut bits.live, index);
            extent.live -= 1;
        }
        extent.bits = Some(bits);
        if !owned {
            return Err(corrupt(format!(
                "free slot {index} of extent {} of PV {}: it is not in use",
                id.1, id.0
            )));
        }
        self.dirty.insert(id);
        self.freed.push((slot, slot_log2));
        self.undo.push(undo::Step::Freed(id, index));
        Ok(())
    }

    /// Writes the changed extents to `txn`.
    pub(crate) fn persist(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        let extent_size = self.extent_size;
        for id in std::mem::take(&mut self.dirty) {
            let (extent, bits) = self.loaded(id)?;
            let record = ExtentRecord { slot_log2: extent.slot_log2, used: extent.live };
            txn.put_extent(id.0, id.1, &record, &bits.live)?;
            // The bitmap of a full extent is not needed until something in it is freed.
            let full = extent.live as u64 == extent_size >> record.slot_log2;
            extent.bits = (!full).then_some(bits);
        }
        self.bad.persist(txn)
    }

    /// Notes that the changes are committed.
    pub(crate) fn committed(&mut self) -> CommittedChange {
        self.undo.clear();
        CommittedChange {
            freed: std::mem::take(&mut self.freed),
            bad: self.bad.committed(),
            space: std::mem::take(&mut self.change),
        }
    }

    /// Gives back slots whose last reader is gone.
    pub(crate) fn reuse(&mut self, slots: &[FreedSlot]) -> Result<SpaceChange> {
        for (slot, slot_log2) in slots {
            let (id, index) = self.locate(*slot, *slot_log2)?;
            let per_extent = self.slots_per_extent(*slot_log2);
            let rows = self.rows_of(id, *slot_log2);
            let (extent, mut bits) = self.loaded(id)?;
            clear(&mut bits.busy, index);
            extent.busy -= 1;
            let has_row = rows.is_none_or(|rows| rows.unused_around(&bits.busy, index).is_some());
            let unused = extent.busy == 0;
            extent.bits = Some(bits);
            let empty =
                unused && !(self.gives(id.0) && self.kept.keeps(self.area(id.0).slots(*slot_log2), id));
            if empty {
                *self.extent(id)? = Extent::default();
            }
            let Some(state) = self.pvs.get_mut(&id.0) else {
                continue;
            };
            if empty {
                state.pv.used_extents.fetch_sub(1, Ordering::Relaxed);
            }
            if !state.gives() {
                continue;
            }
            let change = self.change.of(state.area);
            change.free_slots[*slot_log2 as usize] += 1;
            let index = self.areas.index(state.area);
            if empty {
                index.open.remove(*slot_log2, id);
                index.free.insert(id);
                state.free += 1;
                change.free_slots[*slot_log2 as usize] -= per_extent as i64;
                change.free_extents += 1;
                self.punch(id);
            } else if has_row {
                index.open.insert(*slot_log2, id);
            } else {
                index.open.insert_without_row(*slot_log2, id);
            }
        }
        Ok(std::mem::take(&mut self.change))
    }

    /// Gives the backing space of an empty extent back. This is a hint: a failure costs space, not
    /// data.
    fn punch(&mut self, id: ExtentId) {
        self.note_emptied(id);
        if let Some(state) = self.pvs.get(&id.0) {
            let _ = state.pv.disk.punch(DATA_START + id.1 as u64 * self.extent_size, self.extent_size);
        }
    }

    fn note_emptied(&mut self, id: ExtentId) {
        let is_raid5 = self.pvs.get(&id.0).is_some_and(|state| state.pv.is_raid5());
        self.emptied.extend(is_raid5.then_some(id));
    }

    /// Returns the extents of RAID-5s that have become empty: the physical volume, and the first
    /// byte. A RAID-5 computes parities from what the other blocks of a line have, and their sums
    /// must not tell of what was there.
    pub(crate) fn take_emptied(&mut self) -> Vec<(Arc<Pv>, u64)> {
        let emptied = std::mem::take(&mut self.emptied);
        let of = |(pv, extent): ExtentId| {
            let state = self.pvs.get(&pv)?;
            Some((state.pv.clone(), DATA_START + u64::from(extent) * self.extent_size))
        };
        emptied.into_iter().filter_map(of).collect()
    }

    /// Returns whether the byte lies in a slot that is used, or that a reader may still hold. Also
    /// returns where that slot, or the unused extent around the byte, ends.
    pub(crate) fn is_used(&mut self, pv: u32, byte: u64) -> Result<(bool, u64)> {
        let slot = Slot::new(pv, byte);
        let ((_, number), _) = self.locate(slot, 9)?;
        let extent = self.pvs.get(&pv).and_then(|state| state.extents.get(number as usize));
        let Some(slot_log2) = extent.filter(|e| e.busy > 0).map(|e| e.slot_log2) else {
            return Ok((false, DATA_START + (u64::from(number) + 1) * self.extent_size));
        };
        let (id, index) = self.locate(slot, slot_log2)?;
        let (extent, bits) = self.loaded(id)?;
        let used = get(&bits.busy, index);
        extent.bits = Some(bits);
        Ok((used, self.slot_at(id, index + 1, slot_log2).offset()))
    }
}

fn get(words: &[u64], bit: u32) -> bool {
    words.get(bit as usize / 64).is_some_and(|w| w >> (bit % 64) & 1 == 1)
}
fn set(words: &mut [u64], bit: u32) {
    words[bit as usize / 64] |= 1 << (bit % 64);
}
fn clear(words: &mut [u64], bit: u32) {
    words[bit as usize / 64] &= !(1 << (bit % 64));
}

/// Returns the first of `count` zero bits in a row, below `end`.
fn zeros(words: &[u64], count: u32, end: u32) -> Option<u32> {
    let mut from = 0;
    loop {
        let first = first_zero(words, from, end)?;
        let last = first.checked_add(count)?;
        if last > end {
            return None;
        }
        match (first..last).find(|bit| get(words, *bit)) {
            None => return Some(first),
            Some(taken) => from = taken + 1,
        }
    }
}

/// Returns the first zero bit at or after `from`, below `end`.
fn first_zero(words: &[u64], from: u32, end: u32) -> Option<u32> {
    let mut at = from;
    while at < end {
        let word = words.get(at as usize / 64)? | ((1u64 << (at % 64)) - 1);
        if word != u64::MAX {
            let bit = (at & !63) + word.trailing_ones();
            return (bit < end).then_some(bit);
        }
        at = (at & !63) + 64;
    }
    None
}
