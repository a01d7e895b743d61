//! Checks snapshots and versions: each version belongs to a snapshot, none overlaps another, and
//! the index agrees.

use super::maps::Used;
use super::{CheckReport, Tables};
use crate::catalog::PageKey;
use crate::catalog::{Catalog, Frozen, HoleRecord, Version, VersionKey};
use crate::error::Result;
use crate::ids::{BranchId, Epoch};
use std::collections::BTreeSet;

/// Number of versions that one query of the catalog reads.
const VERSIONS_PER_LOOK: usize = 4096;

pub(super) fn check_snapshots(tables: &Tables, report: &mut CheckReport) {
    let mut names = BTreeSet::new();
    let mut frozen = BTreeSet::new();
    for (id, snapshot) in &tables.snapshots {
        let object = format!("snapshot {id} ({})", snapshot.name);
        report.snapshots += u64::from(!snapshot.deleted);
        if id.0 >= tables.superblock.next_id {
            report.find("id", &object, "its id was never assigned");
        }
        if !snapshot.deleted && !names.insert((snapshot.volume, &snapshot.name)) {
            report.find("snapshot-name", &object, "another snapshot of its volume has the name");
        }
        if !snapshot.deleted && !tables.volumes.iter().any(|(id, _)| *id == snapshot.volume) {
            report.find("snapshot-volume", &object, "its volume does not exist");
        }
        if !frozen.insert(snapshot.of) {
            report.find("snapshot-epoch", &object, "another snapshot froze the same epoch");
        }
        match tables.branches.get(&snapshot.of.branch) {
            Some(branch) if snapshot.of.epoch < branch.epoch => {}
            Some(_) => report.find("snapshot-epoch", &object, "its epoch is not over"),
            None => report.find("snapshot-branch", &object, "its branch does not exist"),
        }
    }
    for (id, branch) in &tables.branches {
        if let Some(base) = branch.frozen()
            && branch.base_at.is_none()
            && !frozen.contains(&base)
        {
            report.find("branch-base", format!("branch {id}"), "nothing preserves its base");
        }
        let pv = branch.area.dedicated();
        if pv.is_some_and(|pv| !tables.pvs.get(&pv).is_some_and(|pv| pv.dedicated)) {
            report.find(
                "branch-area",
                format!("branch {id}"),
                "its dedicated physical volume does not exist",
            );
        }
    }
}

/// Checks that holes do not overlap, that their branches exist, and that no page in a hole is
/// stored.
pub(super) fn check_holes(catalog: &Catalog, tables: &Tables, report: &mut CheckReport) -> Result<()> {
    let mut found: Vec<(PageKey, HoleRecord)> = Vec::new();
    catalog.visit_holes(&mut |key, hole| {
        let object = || format!("branch {} hole at page {}", key.branch, key.page);
        match hole {
            Ok(hole) => found.push((key, hole)),
            Err(error) => report.find("hole", object(), error.to_string()),
        }
        Ok(())
    })?;
    let mut before: Option<(BranchId, u64)> = None;
    for (PageKey { branch: id, page: first }, hole) in found {
        let object = || format!("branch {id} hole at page {first}");
        let Some(branch) = tables.branches.get(&id) else {
            report.find("hole-branch", object(), "the branch does not exist");
            continue;
        };
        if hole.born == Epoch::NONE || hole.born > branch.epoch {
            report.find(
                "born",
                object(),
                format!("born in epoch {}, the branch is at {}", hole.born, branch.epoch),
            );
        }
        if hole.end <= first || before.is_some_and(|(b, end)| b == id && end > first) {
            report.find("hole-overlap", object(), "it is empty, or overlaps the one before");
        } else if let Some(page) = catalog.page_numbers(id, first, hole.end - 1, 1)?.first() {
            report.find("hole-page", object(), format!("page {page} in it is stored"));
        }
        before = Some((id, hole.end));
    }
    Ok(())
}

pub(super) fn check_versions(
    catalog: &Catalog,
    tables: &Tables,
    used: &mut Used,
    report: &mut CheckReport,
) -> Result<()> {
    let frozen: BTreeSet<Frozen> = tables.snapshots.iter().map(|(_, s)| s.of).collect();
    let mut from = Some(VersionKey::default());
    let mut before: Option<Version> = None;
    let mut unindexed = 0;
    while let Some(at) = from {
        let mut keys = Vec::with_capacity(VERSIONS_PER_LOOK);
        from = catalog.visit_versions(at, VERSIONS_PER_LOOK, &mut |key, version| {
            let object = || version_object(key);
            report.versions += 1;
            keys.push(key);
            let version = match version {
                Ok(version) => version,
                Err(error) => {
                    report.find("version", object(), error.to_string());
                    return Ok(());
                }
            };
            let Some(branch) = tables.branches.get(&key.branch) else {
                report.find("version-branch", object(), "the branch does not exist");
                return Ok(());
            };
            if !frozen.contains(&Frozen { branch: key.branch, epoch: key.last }) {
                report.find("version-snapshot", object(), "no snapshot needs it");
            }
            if version.entry.born == Epoch::NONE || version.entry.born > key.last {
                let detail = format!("born in epoch {}, after the last that needs it", version.entry.born);
                report.find("born", object(), detail);
            }
            let overlaps = |b: &Version| {
                (b.key.branch, b.key.chunk) == (key.branch, key.chunk) && b.key.last >= version.entry.born
            };
            if before.as_ref().is_some_and(overlaps) {
                report.find("version-overlap", object(), "an older version covers the same snapshots");
            }
            used.see((key.branch, key.last), &version.entry, branch, tables, report, object);
            before = Some(version);
            Ok(())
        })?;
        for key in catalog.not_indexed(&keys)? {
            unindexed += 1;
            report.find("version-index", version_object(key), "it is missing in the index");
        }
    }
    // If each version is in the index, and the numbers agree, the index has nothing else.
    if catalog.index_count()? + unindexed != report.versions {
        catalog.visit_dangling(&mut |key| {
            report.find("version-index", version_object(key), "the index names it, but it does not exist");
        })?;
    }
    Ok(())
}

fn version_object(VersionKey { branch, chunk, last }: VersionKey) -> String {
    format!("branch {branch} chunk {chunk} version {last}")
}
