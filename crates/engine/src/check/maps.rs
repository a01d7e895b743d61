//! Maps against allocation: the core of the check.

use super::{CheckReport, Marks, Tables, versions};
use crate::catalog::{BITMAP_WORDS, BranchRecord, CURRENT, Catalog, UsageKey};
use crate::error::Result;
use crate::map::page::{CHUNKS, Entry, MapPage, PageKey, Slot};
use crate::pool::label::DATA_START;
use std::collections::BTreeMap;

/// Map pages read by one look at the catalog.
const PAGES_PER_LOOK: usize = 1024;

/// The slots of one extent in use.
pub(super) struct SlotUse {
    pub(super) slot_log2: u8,
    /// What the extent's record counts.
    pub(super) counted: u32,
    /// Marked in the bitmap.
    pub(super) marked: Vec<u64>,
    /// Pointed to by a map or a version.
    pub(super) seen: Vec<u64>,
}

/// What the maps were found to use, for the repair.
pub(super) struct Used {
    pub(super) marks: Marks,
    /// Slots of each branch.
    pub(super) slots: BTreeMap<u64, u64>,
    /// By birth and last epoch.
    pub(super) usage: BTreeMap<UsageKey, u64>,
    /// A map page could not be read: marks without a map may be its chunks'.
    pub(super) unreadable: bool,
}

pub(super) fn check_maps(
    catalog: &Catalog,
    tables: &Tables,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Used> {
    let mut used = Used {
        marks: load_marks(catalog, tables, report)?,
        slots: BTreeMap::new(),
        usage: BTreeMap::new(),
        unreadable: false,
    };
    let total = catalog.page_count()?;
    let ends = ends(tables);
    let mut from = Some((0, 0));
    while let Some(at) = from {
        progress(report.map_pages, total);
        from = catalog.visit_pages(at, PAGES_PER_LOOK, &mut |key, page| {
            report.map_pages += 1;
            match page {
                Ok(page) => check_page(key, &page, tables, &ends, &mut used, report),
                Err(error) => {
                    used.unreadable = true;
                    report.find("map-page", format!("branch {} page {}", key.0, key.1), error.to_string());
                }
            }
            Ok(())
        })?;
    }
    progress(total, total);
    versions::check_holes(catalog, tables, report)?;
    versions::check_versions(catalog, tables, &mut used, report)?;
    for (id, branch) in &tables.branches {
        let found = used.slots.get(id).copied().unwrap_or(0);
        if found != branch.slots && !used.unreadable {
            let detail = format!("{} slots are counted, its map and its versions have {found}", branch.slots);
            report.find_repairable("slot-count", format!("branch {id}"), detail);
        }
    }
    if !used.unreadable {
        for (key, (counted, found)) in used.wrong_usage(catalog)? {
            let object = format!("branch {} epochs {} to {}", key.0, key.2, key.1);
            report.find_repairable(
                "usage",
                object,
                format!("{counted} slots are counted, {found} are there"),
            );
        }
    }
    check_leaks(&used, report);
    Ok(used)
}

/// The chunk behind the end of every branch that a volume writes to.
fn ends(tables: &Tables) -> BTreeMap<u64, u64> {
    let end = |branch: &BranchRecord, size: u64| size.div_ceil(1 << branch.chunk_log2.min(62));
    let known = tables
        .volumes
        .iter()
        .filter_map(|(_, v)| Some((v.branch, end(tables.branches.get(&v.branch)?, v.size))));
    known.collect()
}

fn load_marks(catalog: &Catalog, tables: &Tables, report: &mut CheckReport) -> Result<Marks> {
    let extent_size = tables.superblock.extent_size;
    let mut marks = Marks::new();
    let mut found = Vec::new();
    catalog.extents(&mut |pv, extent, record| found.push(((pv, extent), record)))?;
    for ((pv, extent), record) in found {
        report.extents += 1;
        let object = format!("pv {pv} extent {extent}");
        let slots = extent_size.checked_shr(record.slot_log2.into()).unwrap_or(0);
        if tables.pvs.get(&pv).is_none_or(|p| extent >= p.extents) || record.slot_log2 < 9 || slots == 0 {
            report.find(
                "extent",
                object,
                "it is not on any physical volume, or its slot size makes no sense",
            );
            continue;
        }
        let words = (slots as usize).div_ceil(64);
        let usage = SlotUse {
            slot_log2: record.slot_log2,
            counted: record.used,
            marked: vec![0; words],
            seen: vec![0; words],
        };
        marks.insert((pv, extent), usage);
    }
    catalog.visit_bitmaps(&mut |(pv, extent, page), bitmap| {
        let object = format!("pv {pv} extent {extent} bitmap {page}");
        let Some(usage) = marks.get_mut(&(pv, extent)) else {
            return report.find("bitmap", object, "its extent is not in use");
        };
        let Some(bitmap) = bitmap else {
            return report.find("bitmap", object, "its checksum is wrong");
        };
        let start = page as usize * BITMAP_WORDS;
        match usage.marked.get_mut(start..start + bitmap.0.len()) {
            Some(words) => words.copy_from_slice(&bitmap.0),
            None => report.find("bitmap", object, "it is longer than the extent"),
        }
    })?;
    Ok(marks)
}

fn check_page(
    key: PageKey,
    page: &MapPage,
    tables: &Tables,
    ends: &BTreeMap<u64, u64>,
    used: &mut Used,
    report: &mut CheckReport,
) {
    let Some(branch) = tables.branches.get(&key.0) else {
        return report.find(
            "map-branch",
            format!("branch {} page {}", key.0, key.1),
            "there is no such branch",
        );
    };
    for (index, entry) in page.iter() {
        report.chunks += 1;
        let chunk = key.1 * CHUNKS + index as u64;
        let object = || format!("branch {} chunk {chunk}", key.0);
        if entry.born == 0 || entry.born > branch.epoch {
            report.find(
                "born",
                object(),
                format!("born in epoch {}, the branch is at {}", entry.born, branch.epoch),
            );
        }
        // Over a base a shrunk volume says of its tail that it is a hole: it must stay one when the volume grows again.
        let says_nothing = entry.slot == Slot::HOLE;
        if !says_nothing && ends.get(&key.0).is_some_and(|end| chunk >= *end) {
            report.find("beyond-end", object(), "it lies behind the end of its volume");
        }
        used.see((key.0, CURRENT), &entry, branch, tables, report, object);
    }
}

impl Used {
    /// Counts that are not what was found: (counted, found).
    pub(super) fn wrong_usage(&self, catalog: &Catalog) -> Result<BTreeMap<UsageKey, (u64, u64)>> {
        let found = self.usage.iter().map(|(key, found)| (*key, (0, *found)));
        let mut both: BTreeMap<UsageKey, (u64, u64)> = found.collect();
        catalog.visit_usage((0, 0, 0)..=(u64::MAX, u32::MAX, u32::MAX), &mut |key, counted| {
            both.entry(key).or_insert((0, 0)).0 = counted;
        })?;
        both.retain(|_, (counted, found)| counted != found);
        Ok(both)
    }

    /// Verifies the slot of an entry, which its branch needs up to the epoch `last`, and counts it.
    pub(super) fn see(
        &mut self,
        (id, last): (u64, u32),
        entry: &Entry,
        branch: &BranchRecord,
        tables: &Tables,
        report: &mut CheckReport,
        object: impl Fn() -> String,
    ) {
        if entry.slot == Slot::HOLE {
            return;
        }
        *self.slots.entry(id).or_insert(0) += 1;
        *self.usage.entry((id, last, entry.born)).or_insert(0) += 1;
        report.slots += 1;
        if let Err((code, detail)) = check_entry(entry, branch, tables, &mut self.marks) {
            report.find(code, object(), detail);
        }
    }
}

/// Verifies one entry and notes its slot as seen.
fn check_entry(
    entry: &Entry,
    branch: &BranchRecord,
    tables: &Tables,
    marks: &mut Marks,
) -> std::result::Result<(), (&'static str, String)> {
    let slot_log2 = branch.chunk_log2.max(tables.superblock.atomic_unit.trailing_zeros() as u8);
    let (pv, offset) = (entry.slot.pv(), entry.slot.offset());
    let place = format!("byte {offset} of pv {pv}");
    let Some(inside) = offset.checked_sub(DATA_START).filter(|o| o % (1u64 << slot_log2) == 0) else {
        return Err(("slot-address", format!("{place} is not the start of a slot of 2^{slot_log2} bytes")));
    };
    let extent = (inside / tables.superblock.extent_size) as u32;
    let index = ((inside % tables.superblock.extent_size) >> slot_log2) as usize;
    let Some(usage) = marks.get_mut(&(pv, extent)) else {
        return Err(("slot-extent", format!("{place} lies in an extent that is not in use")));
    };
    if usage.slot_log2 != slot_log2 {
        return Err((
            "slot-size",
            format!("{place} lies in an extent of slots of 2^{} bytes", usage.slot_log2),
        ));
    }
    let (word, bit) = (index / 64, 1u64 << (index % 64));
    if usage.seen[word] & bit != 0 {
        return Err(("slot-shared", format!("{place} belongs to another chunk too")));
    }
    usage.seen[word] |= bit;
    if usage.marked[word] & bit == 0 {
        return Err(("slot-free", format!("{place} is marked free")));
    }
    Ok(())
}

fn check_leaks(used: &Used, report: &mut CheckReport) {
    for ((pv, extent), usage) in &used.marks {
        let object = format!("pv {pv} extent {extent}");
        let count = |words: &[u64]| words.iter().map(|w| w.count_ones()).sum::<u32>();
        let marked = count(&usage.marked);
        if marked != usage.counted {
            let detail = format!("{} slots are counted, {marked} are marked", usage.counted);
            report.find_repairable("extent-count", &object, detail);
        }
        let leaked: u32 = usage.marked.iter().zip(&usage.seen).map(|(m, s)| (m & !s).count_ones()).sum();
        if leaked > 0 {
            let detail = format!("{leaked} slots are marked used, but nothing points to them");
            if used.unreadable {
                report.find("leaked-slot", object, format!("{detail} (a damaged map page may)"));
            } else {
                report.find_repairable("leaked-slot", object, detail);
            }
        }
    }
}
