//! Repair without guessing: counts, and space that no map uses. One transaction.

use super::maps::Used;
use super::{CheckReport, Tables};
use crate::catalog::{BranchRecord, Catalog, ExtentRecord};
use crate::error::Result;

/// Mends what is marked repairable in `report`.
pub(super) fn repair(
    catalog: &Catalog,
    tables: &Tables,
    used: &Used,
    report: &mut CheckReport,
) -> Result<()> {
    if !report.findings.iter().any(|f| f.repairable) {
        return Ok(());
    }
    let mut txn = catalog.begin()?;
    for ((pv, extent), usage) in &used.marks {
        // With an unreadable map page nobody can say which marks are leaks: they stay.
        let keep = |(marked, seen): (&u64, &u64)| if used.unreadable { *marked } else { marked & seen };
        let words: Vec<u64> = usage.marked.iter().zip(&usage.seen).map(keep).collect();
        let count = words.iter().map(|w| w.count_ones()).sum();
        if words != usage.marked || count != usage.counted {
            let record = ExtentRecord { slot_log2: usage.slot_log2, used: count };
            txn.put_extent(*pv, *extent, &record, &words)?;
        }
    }
    if !used.unreadable {
        for (id, branch) in &tables.branches {
            let slots = used.slots.get(id).copied().unwrap_or(0);
            if slots != branch.slots {
                txn.put_branch(*id, &BranchRecord { slots, ..branch.clone() })?;
            }
        }
        for (key, (_, found)) in used.wrong_usage(catalog)? {
            txn.put_usage(key, found)?;
        }
    }
    txn.commit()?;
    for finding in report.findings.iter_mut().filter(|f| f.repairable) {
        finding.repaired = true;
    }
    Ok(())
}
