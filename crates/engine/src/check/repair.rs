//! Repairs marks and counts without guessing, in one transaction.
//!
//! Where the maps could be read, they decide. Where anything is in doubt, marks are added and none
//! is removed, and counts of branches stay as they are.

use super::maps::Used;
use super::{CheckReport, Tables, marks};
use crate::catalog::{BranchRecord, Catalog};
use crate::error::Result;

/// Mends the findings that `report` calls repairable.
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
    marks::mend(&mut txn, &used.marks, tables.superblock.extent_size, report)?;
    if report.maps_are_whole() {
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
