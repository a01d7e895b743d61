//! Rows of RAID-5s, and open extents with rows that nothing uses.
//!
//! A write of a whole row reads nothing, and has no blocks in the parity log. So new slots that
//! destage allocates come from rows that nothing uses, as long as there are any (decision 86). In
//! each extent, a row that is begun is filled before the next one.

use super::{Allocator, first_zero, get};
use crate::catalog::page::Slot;
use crate::error::Result;
use crate::space::label::DATA_START;
use crate::space::placement::{ExtentId, FreeView};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Extents with a free slot, by slot size.
#[derive(Default)]
pub(super) struct OpenExtents {
    all: BTreeMap<u8, BTreeSet<ExtentId>>,
    /// Those of them that may have a row that nothing uses. `None`: the area has no RAID-5.
    with_rows: Option<BTreeMap<u8, BTreeSet<ExtentId>>>,
}

impl OpenExtents {
    pub(super) fn of(&self, slot_log2: u8) -> Option<&BTreeSet<ExtentId>> {
        self.all.get(&slot_log2)
    }

    /// Notes that a RAID-5 is in the area.
    pub(super) fn list_rows(&mut self) {
        let all = &self.all;
        self.with_rows.get_or_insert_with(|| all.clone());
    }

    /// Returns whether rows count in the area.
    pub(super) fn has_rows(&self) -> bool {
        self.with_rows.is_some()
    }

    /// Adds an extent, in which a row may be unused.
    pub(super) fn insert(&mut self, slot_log2: u8, id: ExtentId) {
        self.insert_without_row(slot_log2, id);
        if let Some(with_rows) = &mut self.with_rows {
            with_rows.entry(slot_log2).or_default().insert(id);
        }
    }

    /// Adds an extent whose freed slot made no row unused. If its rows were all in use, they still
    /// are.
    pub(super) fn insert_without_row(&mut self, slot_log2: u8, id: ExtentId) {
        self.all.entry(slot_log2).or_default().insert(id);
    }

    /// Notes that something is used in each row of an extent.
    pub(super) fn has_no_row(&mut self, slot_log2: u8, id: ExtentId) {
        if let Some(open) = self.with_rows.as_mut().and_then(|open| open.get_mut(&slot_log2)) {
            open.remove(&id);
        }
    }

    pub(super) fn remove(&mut self, slot_log2: u8, id: ExtentId) {
        self.has_no_row(slot_log2, id);
        self.all.entry(slot_log2).or_default().remove(&id);
    }
}

/// The free extents of one RAID-5, and those of its open extents that may have an unused row. A row
/// is only a wish. The view of all extents decides about the physical volume, and about the extent
/// if this view has none, or only one that is promised to others.
pub(super) struct WithRows<'a, V> {
    pub(super) all: &'a V,
    pub(super) open: &'a OpenExtents,
    pub(super) pv: u32,
}

impl<V: FreeView> FreeView for WithRows<'_, V> {
    fn next_open(&self, slot_log2: u8, from: ExtentId) -> Option<ExtentId> {
        let from = from.max((self.pv, 0));
        let found = self.open.with_rows.as_ref()?.get(&slot_log2)?.range(from..).next();
        found.copied().filter(|found| found.0 == self.pv)
    }
    fn next_free(&self, from: ExtentId) -> Option<ExtentId> {
        self.all.next_free(from.max((self.pv, 0))).filter(|found| found.0 == self.pv)
    }
    fn prev_open(&self, slot_log2: u8, end: ExtentId) -> Option<ExtentId> {
        let end = end.min((self.pv + 1, 0));
        let found = self.open.with_rows.as_ref()?.get(&slot_log2)?.range(..end).next_back();
        found.copied().filter(|found| found.0 == self.pv)
    }
    fn prev_free(&self, end: ExtentId) -> Option<ExtentId> {
        self.all.prev_free(end.min((self.pv + 1, 0))).filter(|found| found.0 == self.pv)
    }
    fn last_on(&self, slot_log2: u8, pv: u32) -> Option<ExtentId> {
        self.all.last_on(slot_log2, pv)
    }
}

/// The rows of an extent, in slots. A row that goes on in another extent counts as far as it lies
/// in this one.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotRows {
    /// The first byte of the extent.
    start: u64,
    /// Bytes of content of a row.
    row: u64,
    slot_log2: u8,
    /// Number of slots of the extent.
    slots: u32,
}

impl SlotRows {
    /// Returns the slots that begin in the row of a slot.
    fn around(self, index: u32) -> Range<u32> {
        let number = (self.start + (u64::from(index) << self.slot_log2)) / self.row;
        let first_from = |byte: u64| byte.saturating_sub(self.start).div_ceil(1 << self.slot_log2) as u32;
        first_from(number * self.row)..first_from((number + 1) * self.row).min(self.slots)
    }

    /// Returns the row of a slot, if nothing in it is used.
    pub(super) fn unused_around(self, busy: &[u64], index: u32) -> Option<Range<u32>> {
        Some(self.around(index)).filter(|row| is_unused(busy, row.clone()))
    }

    /// Returns the first unused row that begins at or after a slot, else the first one of all.
    fn next_unused(self, busy: &[u64], from: u32) -> Option<Range<u32>> {
        let search = |mut at: u32, end: u32| {
            while at < end {
                let row = self.around(at);
                if row.start >= at && is_unused(busy, row.clone()) {
                    return Some(row);
                }
                at = row.end.max(at + 1);
            }
            None
        };
        search(from, self.slots).or_else(|| search(0, from.min(self.slots)))
    }

    /// Returns the slot to be taken, with what is left of its row: the one at `after`, if all from
    /// there to the end of the row is free; else one of the row that is being filled; else the
    /// first one of a row that nothing uses.
    fn choose(self, busy: &[u64], after: u32, filling: Option<Range<u32>>) -> Option<(u32, Range<u32>)> {
        let rest = (0 < after && after < self.slots).then(|| after..self.around(after).end);
        let wanted = rest.filter(|rest| is_unused(busy, rest.clone())).map(|rest| (after, rest));
        let begun = || {
            let row = filling?;
            Some((first_zero(busy, row.start, row.end)?, row))
        };
        let next = || self.next_unused(busy, after).map(|row| (row.start, row));
        wanted.or_else(begun).or_else(next)
    }
}

fn is_unused(busy: &[u64], mut slots: Range<u32>) -> bool {
    !slots.any(|slot| get(busy, slot))
}

impl Allocator {
    /// Returns the rows of an extent. `None`: it is on no RAID-5, or a slot is as large as a row.
    pub(super) fn rows_of(&self, id: ExtentId, slot_log2: u8) -> Option<SlotRows> {
        let row = self.pvs.get(&id.0)?.row.filter(|row| *row >> slot_log2 > 1)?;
        let start = DATA_START + u64::from(id.1) * self.extent_size;
        Some(SlotRows { start, row, slot_log2, slots: self.slots_per_extent(slot_log2) })
    }

    /// Takes a slot of an open extent where it makes whole rows. `None`: something is used in each
    /// row, which is noted. Where no rows count, any slot is taken.
    pub(super) fn take_in_row(&mut self, id: ExtentId, slot_log2: u8, after: u32) -> Result<Option<Slot>> {
        let Some(rows) = self.rows_of(id, slot_log2) else {
            return self.take_slot(id, slot_log2, after).map(Some);
        };
        let is_dirty = self.dirty.contains(&id);
        let area = self.area(id.0);
        let (extent, mut bits) = self.loaded(id)?;
        let chosen = rows.choose(&bits.busy, after, bits.begun.clone());
        let Some((index, row)) = chosen else {
            // The search itself keeps nothing in memory.
            let is_needed = is_dirty || extent.busy != extent.live;
            extent.bits = is_needed.then_some(bits);
            self.areas.index(area).open.has_no_row(slot_log2, id);
            return Ok(None);
        };
        bits.begun = (index + 1..row.end).any(|slot| !get(&bits.busy, slot)).then_some(row);
        extent.bits = Some(bits);
        self.take_index(id, slot_log2, index).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An extent of 32 slots of 16 KiB, in rows of 192 KiB. It begins with the last third of a row.
    fn rows() -> SlotRows {
        SlotRows { start: 128 << 10, row: 192 << 10, slot_log2: 14, slots: 32 }
    }

    fn busy(slots: &[u32]) -> Vec<u64> {
        vec![slots.iter().map(|slot| 1 << slot).sum()]
    }

    #[test]
    fn rows_are_cut_at_the_ends_of_an_extent() {
        let all: Vec<_> = [0, 3, 4, 15, 16, 27, 28, 31].iter().map(|slot| rows().around(*slot)).collect();
        assert_eq!(all, [0..4, 0..4, 4..16, 4..16, 16..28, 16..28, 28..32, 28..32]);
        // A slot that begins in one row and ends in the next one belongs to the first.
        let large = SlotRows { start: 0, row: 192 << 10, slot_log2: 17, slots: 8 };
        let all: Vec<_> = (0..8).map(|slot| large.around(slot)).collect();
        assert_eq!(all, [0..2, 0..2, 2..3, 3..5, 3..5, 5..6, 6..8, 6..8]);
    }

    #[test]
    fn a_row_is_filled_before_the_next_one_is_begun() {
        let choose = |used: &[u32], after, filling| rows().choose(&busy(used), after, filling);
        assert_eq!(choose(&[], 0, None), Some((0, 0..4)));
        assert_eq!(choose(&[0, 1], 2, None), Some((2, 2..4)), "behind the neighbour");
        assert_eq!(choose(&[0, 1], 0, Some(0..4)), Some((2, 0..4)), "the row that is begun");
        assert_eq!(choose(&[0, 1], 0, None), Some((4, 4..16)), "the first row that nothing uses");
        assert_eq!(choose(&[0, 1, 4, 6], 5, None), Some((16, 16..28)), "no hole of a row in use");
        assert_eq!(choose(&[0, 1, 15, 16], 16, None), Some((28, 28..32)));
        assert_eq!(choose(&[4, 15, 16, 28], 29, None), Some((29, 29..32)));
        assert_eq!(choose(&[0, 15], 16, Some(0..4)), Some((16, 16..28)), "the row behind the neighbour's");
        assert_eq!(choose(&[4, 15, 16, 28, 31], 29, None), Some((0, 0..4)), "from the beginning again");
        assert_eq!(choose(&[3, 4, 16, 28], 28, None), None);
        assert_eq!(choose(&[3], 32, None), Some((4, 4..16)));
    }

    #[test]
    fn extents_without_a_row_are_seen_only_as_open() {
        struct Nothing;
        impl FreeView for Nothing {
            fn next_open(&self, _: u8, _: ExtentId) -> Option<ExtentId> {
                None
            }
            fn next_free(&self, _: ExtentId) -> Option<ExtentId> {
                None
            }
            fn prev_open(&self, _: u8, _: ExtentId) -> Option<ExtentId> {
                None
            }
            fn prev_free(&self, _: ExtentId) -> Option<ExtentId> {
                None
            }
            fn last_on(&self, _: u8, _: u32) -> Option<ExtentId> {
                None
            }
        }
        let mut open = OpenExtents::default();
        open.insert(14, (1, 5));
        open.list_rows();
        open.insert(14, (1, 7));
        open.has_no_row(14, (1, 5));
        open.insert_without_row(14, (1, 5));
        let seen = |open: &OpenExtents, pv| WithRows { all: &Nothing, open, pv }.next_open(14, (0, 0));
        assert_eq!((seen(&open, 0), seen(&open, 1), seen(&open, 2)), (None, Some((1, 7)), None));
        let on_it = WithRows { all: &Nothing, open: &open, pv: 1 };
        assert_eq!((on_it.prev_open(14, (1, 7)), on_it.prev_open(14, (1, 8))), (None, Some((1, 7))));
        assert_eq!(on_it.prev_open(14, (3, 0)), Some((1, 7)));
        assert!(open.of(14).is_some_and(|all| all.contains(&(1, 5))));
        open.remove(14, (1, 7));
        assert_eq!(seen(&open, 1), None);
    }
}
