//! Compares the maps with the allocation: the core of the check.

use super::journal::{self, ReferredSlot};
use super::{CheckReport, Marks, Tables, marks, versions};
use crate::catalog::PageKey;
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::catalog::{BranchRecord, CURRENT, Catalog, UsageKey};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Epoch};
use std::collections::BTreeMap;

/// Number of map pages that one query of the catalog reads.
const PAGES_PER_LOOK: usize = 1024;

/// The slots that the maps use. The check finds them, and the repair needs them.
pub(super) struct Used {
    pub(super) marks: Marks,
    /// Number of slots of each branch.
    pub(super) slots: BTreeMap<BranchId, u64>,
    /// Number of slots by branch, last epoch and epoch of birth.
    pub(super) usage: BTreeMap<UsageKey, u64>,
}

pub(super) fn check_maps(
    catalog: &Catalog,
    tables: &Tables,
    referred: &[ReferredSlot],
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Used> {
    let mut used =
        Used { marks: marks::load(catalog, tables, report)?, slots: BTreeMap::new(), usage: BTreeMap::new() };
    let total = catalog.page_count()?;
    let ends = ends(tables);
    let mut from = Some(PageKey::default());
    while let Some(at) = from {
        progress(report.map_pages, total);
        from = catalog.visit_pages(at, PAGES_PER_LOOK, &mut |key, page| {
            report.map_pages += 1;
            match page {
                Ok(page) => check_page(key, &page, tables, &ends, &mut used, report),
                Err(error) => report.find(
                    "map-page",
                    format!("branch {} page {}", key.branch, key.page),
                    error.to_string(),
                ),
            }
            Ok(())
        })?;
    }
    progress(total, total);
    versions::check_holes(catalog, tables, report)?;
    versions::check_versions(catalog, tables, &mut used, report)?;
    check_bad_slots(catalog, tables, &mut used.marks, report)?;
    check_lost(catalog, tables, &used, report)?;
    if report.maps_are_whole() {
        check_counts(catalog, tables, &used, report)?;
    }
    marks::check_leaks(&used.marks, report);
    journal::check_slots(referred, &mut used.marks, tables, report);
    if !report.maps_are_whole() {
        marks::check_missing(&mut used.marks, tables, report);
    }
    Ok(used)
}

/// Verifies the bad slots, which are in use and belong to no chunk.
fn check_bad_slots(
    catalog: &Catalog,
    tables: &Tables,
    marks: &mut Marks,
    report: &mut CheckReport,
) -> Result<()> {
    for (slot, slot_log2) in catalog.bad_slots()? {
        if let Err((code, detail, repairable)) = marks::check_slot(slot, slot_log2, tables, marks) {
            report.push(code, format!("bad slot {:#x}", slot.0), detail, repairable);
        }
    }
    Ok(())
}

/// Reports map rows that may be lost, where more slots are counted than the map has. The absence of
/// a row has no checksum of its own. The count is merely wrong only if the marks agree with the
/// maps and the branch's two counts disagree.
fn check_lost(catalog: &Catalog, tables: &Tables, used: &Used, report: &mut CheckReport) -> Result<()> {
    if !report.maps_are_whole() {
        return Ok(());
    }
    let marks_agree = used.marks.values().all(|usage| usage.is_exact());
    // By branch: (slots that its usage counts, how many of them were not found).
    let mut counted: BTreeMap<BranchId, (u64, u64)> = BTreeMap::new();
    catalog.visit_usage(UsageKey::ALL, &mut |key, slots| {
        let found = used.usage.get(&key).copied().unwrap_or(0);
        let (all, missing) = counted.entry(key.branch).or_default();
        (*all, *missing) = (*all + slots, *missing + slots.saturating_sub(found));
    })?;
    for (id, branch) in &tables.branches {
        let found = used.slots.get(id).copied().unwrap_or(0);
        let (by_usage, missing) = counted.get(id).copied().unwrap_or((0, 0));
        let missing = missing.max(branch.slots.saturating_sub(found));
        if missing > 0 && (!marks_agree || by_usage == branch.slots) {
            let detail = format!(
                "{missing} more slots are counted than its map and its versions have, and the marks do not show which number is right: rows of its map may be lost"
            );
            report.find("map-lost", format!("branch {id}"), detail);
        }
    }
    Ok(())
}

/// Checks the counts of branches against maps that are whole.
fn check_counts(catalog: &Catalog, tables: &Tables, used: &Used, report: &mut CheckReport) -> Result<()> {
    for (id, branch) in &tables.branches {
        let found = used.slots.get(id).copied().unwrap_or(0);
        if found != branch.slots {
            let detail =
                format!("{} slots are counted, but its map and its versions have {found}", branch.slots);
            report.find_repairable("slot-count", format!("branch {id}"), detail);
        }
    }
    for (key, (counted, found)) in used.wrong_usage(catalog)? {
        let object = format!("branch {} epochs {} to {}", key.branch, key.born, key.last);
        report.find_repairable("usage", object, format!("{counted} slots are counted, but {found} exist"));
    }
    Ok(())
}

/// For every branch that a volume writes to, the chunk behind its end.
fn ends(tables: &Tables) -> BTreeMap<BranchId, Chunk> {
    let end = |branch: &BranchRecord, size: u64| Chunk(size.div_ceil(1 << branch.chunk_log2.min(62)));
    let known = tables
        .volumes
        .iter()
        .filter_map(|(_, v)| Some((v.branch, end(tables.branches.get(&v.branch)?, v.size))));
    known.collect()
}

fn check_page(
    key: PageKey,
    page: &MapPage,
    tables: &Tables,
    ends: &BTreeMap<BranchId, Chunk>,
    used: &mut Used,
    report: &mut CheckReport,
) {
    let Some(branch) = tables.branches.get(&key.branch) else {
        return report.find(
            "map-branch",
            format!("branch {} page {}", key.branch, key.page),
            "the branch does not exist",
        );
    };
    for (index, entry) in page.iter() {
        report.chunks += 1;
        let chunk = Chunk::in_page(key.page, index);
        let object = || format!("branch {} chunk {chunk}", key.branch);
        if entry.born == Epoch::NONE || entry.born > branch.epoch {
            report.find(
                "born",
                object(),
                format!("born in epoch {}, the branch is at {}", entry.born, branch.epoch),
            );
        }
        // Over a base, a shrunk volume has holes as entries of its tail: the tail must stay a hole
        // when the volume grows again.
        let says_nothing = entry.slot == Slot::HOLE;
        if !says_nothing && ends.get(&key.branch).is_some_and(|end| chunk >= *end) {
            report.find("beyond-end", object(), "it is past the end of its volume");
        }
        used.see((key.branch, CURRENT), &entry, branch, tables, report, object);
    }
}

impl Used {
    /// Returns the counts that differ from what was found: (counted, found).
    pub(super) fn wrong_usage(&self, catalog: &Catalog) -> Result<BTreeMap<UsageKey, (u64, u64)>> {
        let found = self.usage.iter().map(|(key, found)| (*key, (0, *found)));
        let mut both: BTreeMap<UsageKey, (u64, u64)> = found.collect();
        catalog.visit_usage(UsageKey::ALL, &mut |key, counted| {
            both.entry(key).or_insert((0, 0)).0 = counted;
        })?;
        both.retain(|_, (counted, found)| counted != found);
        Ok(both)
    }

    /// Verifies the slot of an entry that its branch needs up to the epoch `last`, and counts it.
    pub(super) fn see(
        &mut self,
        (id, last): (BranchId, Epoch),
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
        *self.usage.entry(UsageKey::new(id, last, entry.born)).or_insert(0) += 1;
        report.slots += 1;
        if let Err((code, detail, repairable)) = marks::check_entry(entry, branch, tables, &mut self.marks) {
            report.push(code, object(), detail, repairable);
        }
    }
}
