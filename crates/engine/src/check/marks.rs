//! The marks of used slots, in bitmaps and in maps, and the marks that a repair makes from both.

use super::{CheckReport, Marks, Tables};
use crate::catalog::page::Entry;
use crate::catalog::{BITMAP_WORDS, BitmapPage, BranchRecord, Catalog, ExtentRecord};
use crate::error::Result;
use crate::ids::Slot;
use crate::space::label::DATA_START;
use std::collections::{BTreeMap, BTreeSet};

/// The used slots of one extent.
pub(super) struct SlotUse {
    pub(super) slot_log2: u8,
    /// Number of used slots in the extent's row.
    pub(super) counted: u32,
    /// Whether the catalog has a valid row of the extent.
    pub(super) has_row: bool,
    /// Slots that the bitmap marks, as bits.
    pub(super) marked: Vec<u64>,
    /// Slots that a map or a version points to, as bits.
    pub(super) seen: Vec<u64>,
    /// Slots that an entry overlaps without fitting this extent's slots, as bits.
    pub(super) overlapped: Vec<u64>,
    /// Slots that references in the journal name, as bits. They are free in the catalog, and a
    /// repair leaves them free: the opening gives them to their references.
    pub(super) referred: Vec<u64>,
    /// Pages of the bitmap that do not verify. Their marks are unknown.
    pub(super) unknown: BTreeSet<u32>,
    /// Whether the bitmap has pages behind the extent's end.
    pub(super) too_long: bool,
    /// Set while the size of the extent's slots is unknown: the first word of its bitmap, or 0.
    /// Until an entry shows the size, the extent counts as one slot.
    pub(super) shapeless: Option<u64>,
}

/// Returns the number of marks.
pub(super) fn count(words: &[u64]) -> u32 {
    words.iter().map(|w| w.count_ones()).sum()
}

/// Marks all bits of `range`, as far as `words` reach.
fn fill(words: &mut [u64], range: std::ops::Range<u64>) {
    for bit in range.start..range.end.min(words.len() as u64 * 64) {
        words[bit as usize / 64] |= 1 << (bit % 64);
    }
}

impl SlotUse {
    fn new(slot_log2: u8, counted: u32, has_row: bool, slots: u64) -> SlotUse {
        let words = vec![0; (slots as usize).div_ceil(64)];
        SlotUse {
            slot_log2,
            counted,
            has_row,
            marked: words.clone(),
            seen: words.clone(),
            overlapped: words.clone(),
            referred: words,
            unknown: BTreeSet::new(),
            too_long: false,
            shapeless: None,
        }
    }

    /// Makes an extent of which only the first word of its bitmap is known.
    fn shapeless(extent_size: u64, word: u64) -> SlotUse {
        let mut usage = SlotUse::new(extent_size.trailing_zeros() as u8, 1, false, 1);
        (usage.marked, usage.too_long, usage.shapeless) = (vec![1], true, Some(word));
        usage
    }

    /// Gives a shapeless extent the slot size of the first entry in it.
    pub(super) fn shape(&mut self, slot_log2: u8, slots: u64) {
        if let Some(word) = self.shapeless.take() {
            let mut usage = SlotUse::new(slot_log2, 0, false, slots);
            if let Some(first) = usage.marked.first_mut().filter(|_| slots <= 64) {
                *first = word & u64::MAX >> (64 - slots);
            }
            // Any slot may be in use if a part of the bitmap is unknown, or if an entry overlaps
            // the extent without fitting its slots.
            if word == 0 || slots > 64 || count(&self.overlapped) > 0 {
                let pages = usage.marked.len().div_ceil(BITMAP_WORDS) as u32;
                usage.unknown.extend(0..pages);
            }
            usage.counted = count(&usage.marked);
            *self = SlotUse { too_long: true, ..usage };
        }
    }

    /// Returns whether the marks are known, and agree with the maps.
    pub(super) fn is_exact(&self) -> bool {
        self.has_row
            && self.unknown.is_empty()
            && self.marked == self.seen
            && count(&self.marked) == self.counted
    }

    /// Returns the number of slots that are marked and that nothing points to.
    pub(super) fn leaked(&self) -> u32 {
        self.marked.iter().zip(&self.seen).map(|(marked, seen)| (marked & !seen).count_ones()).sum()
    }

    /// Returns the marks that a repair leaves, for an extent of `slots` slots.
    pub(super) fn mended(&self, report: &CheckReport, slots: u64) -> Vec<u64> {
        let Some(doubt) = &report.doubt else { return self.seen.clone() };
        let known = self.marked.iter().zip(&self.seen).zip(&self.overlapped).map(|((m, s), o)| m | s | o);
        let known: Vec<u64> = known.collect();
        let mut words = known.clone();
        if doubt.maps {
            let page = BITMAP_WORDS as u64 * 64;
            let of = |n: &u32| u64::from(*n) * page..((u64::from(*n) + 1) * page).min(slots);
            self.unknown.iter().for_each(|n| fill(&mut words, of(n)));
            self.free_referred(&mut words, &known);
            if count(&words) < self.counted {
                // Marks are lost, and it is unknown which.
                fill(&mut words, 0..slots);
                self.free_referred(&mut words, &known);
            }
        }
        words
    }

    /// Clears the marks of slots that references name, except for slots that are known to be used.
    fn free_referred(&self, words: &mut [u64], known: &[u64]) {
        for ((word, known), referred) in words.iter_mut().zip(known).zip(&self.referred) {
            *word &= known | !referred;
        }
    }

    /// Returns whether anything in the catalog uses a slot.
    pub(super) fn has_owner(&self, index: u64) -> bool {
        let bit = |words: &Vec<u64>| {
            words.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 1)
        };
        bit(&self.marked) || bit(&self.seen) || bit(&self.overlapped)
    }

    /// Notes that a reference names a slot.
    pub(super) fn refer(&mut self, index: u64) {
        fill(&mut self.referred, index..index + 1);
    }

    /// Marks all slots but those that references name.
    fn reserve(&mut self, extent_size: u64) {
        let slots = extent_size >> self.slot_log2;
        let known: Vec<u64> = self.seen.iter().zip(&self.overlapped).map(|(s, o)| s | o).collect();
        let mut marked = std::mem::take(&mut self.marked);
        fill(&mut marked, 0..slots);
        self.free_referred(&mut marked, &known);
        self.marked = marked;
    }

    /// Makes an extent that nothing in the catalog names. A reference names slots of this size in
    /// it.
    pub(super) fn only_referred(slot_log2: u8, extent_size: u64) -> SlotUse {
        SlotUse::new(slot_log2, 0, false, extent_size >> slot_log2)
    }
}

/// Reads the rows and bitmaps of all extents.
pub(super) fn load(catalog: &Catalog, tables: &Tables, report: &mut CheckReport) -> Result<Marks> {
    let extent_size = tables.superblock.extent_size;
    let is_there =
        |(pv, extent): (u32, u32)| tables.pvs.get(&pv).is_some_and(|record| extent < record.extents);
    let mut marks = Marks::new();
    // Bitmaps of extents without a valid row.
    let mut unowned: BTreeMap<(u32, u32), BTreeMap<u32, Option<BitmapPage>>> = BTreeMap::new();
    catalog.visit_extents(&mut |(pv, extent), record| {
        report.extents += 1;
        let object = format!("pv {pv} extent {extent}");
        let record = match record {
            Ok(record) => record,
            Err(error) if is_there((pv, extent)) => {
                unowned.entry((pv, extent)).or_default();
                return report.find_repairable("extent", object, error.to_string());
            }
            Err(error) => return report.find("extent", object, error.to_string()),
        };
        let slots = extent_size.checked_shr(record.slot_log2.into()).unwrap_or(0);
        if !is_there((pv, extent)) || record.slot_log2 < 9 || slots == 0 {
            let detail = "it is on no physical volume, or its slot size is invalid";
            return report.find("extent", object, detail);
        }
        marks.insert((pv, extent), SlotUse::new(record.slot_log2, record.used, true, slots));
    })?;
    catalog.visit_bitmaps(&mut |(pv, extent, page), bitmap| {
        let object = || format!("pv {pv} extent {extent} bitmap {page}");
        if let Some(usage) = marks.get_mut(&(pv, extent)) {
            return take_bitmap(usage, page, bitmap, object, report);
        }
        if is_there((pv, extent)) {
            report.find_repairable("bitmap", object(), "its extent is not in use");
            unowned.entry((pv, extent)).or_default().insert(page, bitmap);
        } else {
            report.find("bitmap", object(), "its extent is on no physical volume");
        }
    })?;
    for (id, pages) in unowned {
        marks.insert(id, without_row(extent_size, &pages));
    }
    Ok(marks)
}

fn take_bitmap(
    usage: &mut SlotUse,
    page: u32,
    bitmap: Option<BitmapPage>,
    object: impl Fn() -> String,
    report: &mut CheckReport,
) {
    let start = page as usize * BITMAP_WORDS;
    let Some(bitmap) = bitmap else {
        usage.unknown.insert(page);
        return report.find_repairable("bitmap", object(), "its checksum is wrong");
    };
    match usage.marked.get_mut(start..start + bitmap.0.len()) {
        Some(words) => words.copy_from_slice(&bitmap.0),
        None => {
            usage.too_long = true;
            report.find_repairable("bitmap", object(), "it is longer than the extent");
        }
    }
}

/// Makes an extent of which only the bitmap is left. The length of the bitmap shows the size of the
/// slots, if there are more than 64.
fn without_row(extent_size: u64, pages: &BTreeMap<u32, Option<BitmapPage>>) -> SlotUse {
    let last = pages.last_key_value();
    let words =
        last.and_then(|(n, page)| Some(*n as u64 * BITMAP_WORDS as u64 + page.as_ref()?.0.len() as u64));
    let slots = words.map(|words| words * 64).filter(|slots| slots.is_power_of_two() && *slots > 64);
    let slot_log2 =
        slots.map(|slots| (extent_size / slots).max(1).trailing_zeros() as u8).filter(|log2| *log2 >= 9);
    let (Some(slots), Some(slot_log2)) = (slots, slot_log2) else {
        let word = pages.get(&0).and_then(|page| page.as_ref()?.0.first().copied());
        return SlotUse::shapeless(extent_size, word.unwrap_or(0));
    };
    let mut usage = SlotUse::new(slot_log2, 0, false, slots);
    for (n, page) in pages {
        let start = *n as usize * BITMAP_WORDS;
        match page {
            Some(page) => {
                let words = usage.marked.iter_mut().skip(start).zip(&page.0);
                words.for_each(|(word, found)| *word = *found);
            }
            None => drop(usage.unknown.insert(*n)),
        }
    }
    usage.counted = count(&usage.marked);
    usage
}

/// An error of an entry: (code, detail, whether a repair can mend it).
pub(super) type Wrong = (&'static str, String, bool);

/// Verifies one entry and notes its slot as seen.
pub(super) fn check_entry(
    entry: &Entry,
    branch: &BranchRecord,
    tables: &Tables,
    marks: &mut Marks,
) -> std::result::Result<(), Wrong> {
    let slot_log2 = branch.chunk_log2.max(tables.superblock.atomic_unit.trailing_zeros() as u8);
    check_slot(entry.slot, slot_log2, tables, marks)
}

/// Verifies that a slot can be in use, and notes it as seen.
pub(super) fn check_slot(
    slot: Slot,
    slot_log2: u8,
    tables: &Tables,
    marks: &mut Marks,
) -> std::result::Result<(), Wrong> {
    let extent_size = tables.superblock.extent_size;
    let (pv, offset) = (slot.pv(), slot.offset());
    let place = format!("byte {offset} of pv {pv}");
    let Some(inside) = offset.checked_sub(DATA_START).filter(|o| o % (1u64 << slot_log2) == 0) else {
        overlap((pv, offset), 1 << slot_log2, extent_size, marks);
        let detail = format!("{place} is not the start of a slot of 2^{slot_log2} bytes");
        return Err(("slot-address", detail, false));
    };
    let extent = (inside / extent_size) as u32;
    let index = (inside % extent_size) >> slot_log2;
    let usage = match marks.entry((pv, extent)) {
        std::collections::btree_map::Entry::Occupied(usage) => usage.into_mut(),
        std::collections::btree_map::Entry::Vacant(vacant) => {
            let is_there = tables.pvs.get(&pv).is_some_and(|record| extent < record.extents);
            if is_there {
                // Later entries in this extent are compared with the slots of its first entry.
                let slots = extent_size >> slot_log2;
                let usage = vacant.insert(SlotUse::new(slot_log2, 0, false, slots));
                fill(&mut usage.seen, index..index + 1);
            }
            return Err(("slot-extent", format!("{place} is in an extent that is not in use"), is_there));
        }
    };
    usage.shape(slot_log2, extent_size >> slot_log2);
    if usage.slot_log2 != slot_log2 {
        let detail = format!("{place} is in an extent of slots of 2^{} bytes", usage.slot_log2);
        overlap((pv, offset), 1 << slot_log2, extent_size, marks);
        return Err(("slot-size", detail, false));
    }
    let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
    if usage.seen[word] & bit != 0 {
        return Err(("slot-shared", format!("{place} also belongs to another chunk"), false));
    }
    usage.seen[word] |= bit;
    if usage.marked[word] & bit == 0 {
        return Err(("slot-free", format!("{place} is marked free"), true));
    }
    Ok(())
}

/// Notes every slot that `len` bytes at `offset` of `pv` touch: nothing may be written there.
fn overlap((pv, offset): (u32, u64), len: u64, extent_size: u64, marks: &mut Marks) {
    let start = offset.saturating_sub(DATA_START);
    let end = (offset + len).saturating_sub(DATA_START);
    for extent in start / extent_size..end.div_ceil(extent_size) {
        let first = extent * extent_size;
        if let Some(usage) = u32::try_from(extent).ok().and_then(|extent| marks.get_mut(&(pv, extent))) {
            let within = start.max(first) - first..end.min(first + extent_size) - first;
            let slot = 1u64 << usage.slot_log2;
            fill(&mut usage.overlapped, within.start / slot..within.end.div_ceil(slot));
        }
    }
}

/// Compares the marks with the slots that were seen, and the counts with the marks.
pub(super) fn check_leaks(marks: &Marks, report: &mut CheckReport) {
    for ((pv, extent), usage) in marks {
        let object = format!("pv {pv} extent {extent}");
        let marked = count(&usage.marked);
        if usage.has_row && marked != usage.counted {
            let detail = format!("{} slots are counted, but {marked} are marked", usage.counted);
            report.find_repairable("extent-count", &object, detail);
        }
        let leaked = usage.leaked();
        if leaked > 0 {
            let detail = format!("{leaked} slots are marked used, but nothing points to them");
            if report.doubt.is_some() {
                report.find("leaked-slot", object, format!("{detail} (damaged parts may do)"));
            } else {
                report.find_repairable("leaked-slot", object, detail);
            }
        }
    }
}

/// Reserves every extent if the maps are in doubt, and more slots are counted than marks are left.
/// The places of some used slots are unknown then, so no extent can be proved free. Slots that
/// references name are free.
pub(super) fn check_missing(marks: &mut Marks, tables: &Tables, report: &mut CheckReport) {
    let extent_size = tables.superblock.extent_size;
    let mut missing: BTreeMap<u8, i64> = BTreeMap::new();
    for branch in tables.branches.values() {
        let slot_log2 = branch.chunk_log2.max(tables.superblock.atomic_unit.trailing_zeros() as u8);
        *missing.entry(slot_log2).or_default() += branch.slots as i64;
    }
    for usage in marks.values() {
        let left = count(&usage.mended(report, extent_size >> usage.slot_log2));
        // A guess may mark more slots than are in use. These marks must not balance marks that are
        // lost in another extent.
        let left = if usage.has_row { left.min(usage.counted) } else { left };
        *missing.entry(usage.slot_log2).or_default() -= i64::from(left);
    }
    let missing: i64 = missing.values().filter(|slots| **slots > 0).sum();
    if missing == 0 {
        return;
    }
    let detail = format!(
        "the places of {missing} slots in use are unknown: no extent can be proved free, and a repair reserves them all"
    );
    report.push("marks-lost", "pool".into(), detail, true);
    for (pv, record) in &tables.pvs {
        for extent in 0..record.extents {
            let usage = marks.entry((*pv, extent)).or_insert_with(|| SlotUse::shapeless(extent_size, 0));
            if !usage.has_row {
                usage.reserve(extent_size);
            }
        }
    }
}

/// Stores the marks and counts that a repair leaves.
pub(super) fn mend(
    txn: &mut crate::catalog::Txn<'_>,
    marks: &Marks,
    extent_size: u64,
    report: &CheckReport,
) -> Result<()> {
    for ((pv, extent), usage) in marks {
        let words = usage.mended(report, extent_size >> usage.slot_log2);
        let used = count(&words);
        let is_right = usage.has_row && usage.unknown.is_empty() && !usage.too_long && used == usage.counted;
        if is_right && words == usage.marked {
            continue;
        }
        let pages = words.len().div_ceil(BITMAP_WORDS) as u32;
        txn.cut_bitmap(*pv, *extent, pages)?;
        txn.put_extent(*pv, *extent, &ExtentRecord { slot_log2: usage.slot_log2, used }, &words)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reference shows only the size of the slots, not which of them are in use.
    #[test]
    fn an_extent_that_a_reference_shapes_stays_reserved() {
        let mut report = CheckReport::default();
        report.find("map-page", "branch 1 page 0", "it does not verify");
        let mended = |word, slot_log2, slots| {
            let mut usage = SlotUse::shapeless(64 << 10, word);
            usage.shape(slot_log2, slots);
            usage.refer(3);
            usage.mended(&report, slots)
        };
        assert_eq!(mended(0, 12, 16), [0xFFF7], "the bitmap is lost");
        assert_eq!(mended(0b110, 12, 16), [0b110], "the bitmap is known");
        assert_eq!(mended(0b110, 9, 128), [!0b1000, !0], "only a part of the bitmap is known");
    }
}
