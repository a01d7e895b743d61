//! Offline verification: recomputes everything that the catalog claims.
//!
//! These facts are checked, among others:
//!
//! - Every slot that a map points to is marked used, once, in an extent of its size, on a physical
//!   volume that exists.
//! - Every mark belongs to a map.
//! - Counts agree.
//! - The journal can be read to its end.
//!
//! A repair happens on request only. The maps decide about the marks, as long as all of them could
//! be read: the marks then become what the maps show. While any finding leaves a doubt about the
//! maps ([`Doubt`]), a repair only adds marks. A slot that is wrongly marked used costs space; a
//! slot that is wrongly marked free costs data.

mod blocks;
mod history;
#[doc(hidden)]
pub mod inject;
mod journal;
mod labels;
mod maps;
mod marks;
mod repair;
#[cfg(test)]
mod tests;
mod versions;

use crate::branch::image::ExternalImage;
use crate::branch::namespace::check_name;
use crate::catalog::{
    BaseRecord, BranchRecord, Catalog, Positions, PvRecord, SnapshotRecord, Superblock, VolumeRecord,
};
use crate::disk::Dir;
use crate::disk::layout::{LayoutOptions, with_layouts};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BranchId, SnapshotId, VolumeId};
use crate::journal::cursor::JournalRecord;
use marks::SlotUse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of findings that are listed. Further findings are only counted.
const MAX_FINDINGS: usize = 1000;
/// Size of the catalog's page cache during a check, in bytes.
const CACHE: usize = 64 << 20;

/// The options of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Repair what can be repaired safely.
    pub repair: bool,
    /// Paths of physical volumes whose labels a repair may write again, although nothing on the
    /// disk proves that it is the right one.
    pub relabel: Vec<String>,
    /// Also repair a data directory that is not of the same time as its physical volumes.
    pub force_stale: bool,
}

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind, for programs: a fixed word like `leaked-slot`.
    pub code: &'static str,
    /// The object that the finding is about: `pv 0`, `branch 3 page 7`.
    pub object: String,
    /// The error, for people.
    pub detail: String,
    /// Whether `repair` can correct the error without guessing.
    pub repairable: bool,
    /// Whether the error was repaired.
    pub repaired: bool,
}

/// The reason for which a repair removes no mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The finding that leaves the doubt, for people.
    pub why: String,
    /// Whether rows of maps may be unknown. Then all space for which no bitmap accounts counts as
    /// used. If this is false, only bitmaps or rows of extents are damaged.
    pub maps: bool,
}

/// Codes of findings that leave no doubt about whether the maps are complete.
const NO_DOUBT: [&str; 13] = [
    "leaked-slot",
    "extent-count",
    "slot-free",
    "slot-count",
    "usage",
    "pv",
    "pv-age",
    "label",
    "image",
    "journal",
    "reference",
    "volume-name",
    "snapshot-name",
];
/// Codes of findings about the marks themselves.
const ABOUT_MARKS: [&str; 3] = ["bitmap", "extent", "slot-extent"];

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The findings, at most a thousand. The list is empty if nothing is wrong.
    pub findings: Vec<Finding>,
    /// Number of findings that are not listed.
    pub unlisted: u64,
    /// The pool's UUID.
    pub pool: String,
    /// Number of physical volumes.
    pub pvs: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Number of visible snapshots.
    pub snapshots: u64,
    /// Number of overwritten contents that are kept for snapshots.
    pub versions: u64,
    /// Number of map pages that were read.
    pub map_pages: u64,
    /// Number of map entries that were verified.
    pub chunks: u64,
    /// Number of used extents.
    pub extents: u64,
    /// Number of used slots.
    pub slots: u64,
    /// Number of journal records that wait for destage.
    pub journal_records: u64,
    /// The reason for which a repair removes no mark, or `None` if it may remove marks.
    pub doubt: Option<Doubt>,
    /// The reason for which the pool could not be locked, if there is one. The report is then right
    /// only if no other process had the pool open.
    pub unlocked: Option<String>,
}

impl CheckReport {
    /// Returns whether there was no error, or every error was repaired.
    pub fn is_clean(&self) -> bool {
        self.unlisted == 0 && self.findings.iter().all(|f| f.repaired)
    }

    /// Returns whether no finding leaves a doubt about the maps.
    fn maps_are_whole(&self) -> bool {
        self.doubt.as_ref().is_none_or(|doubt| !doubt.maps)
    }

    fn find(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.push(code, object.into(), detail.into(), false);
    }

    fn find_repairable(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.push(code, object.into(), detail.into(), true);
    }

    fn push(&mut self, code: &'static str, object: String, detail: String, repairable: bool) {
        let maps = !ABOUT_MARKS.contains(&code);
        let doubtful = !NO_DOUBT.contains(&code) && !code.starts_with("cdp-");
        if doubtful && self.doubt.as_ref().is_none_or(|d| maps && !d.maps) {
            self.doubt = Some(Doubt { why: format!("{code}, {object}: {detail}"), maps });
        }
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { code, object, detail, repairable, repaired: false });
        } else {
            self.unlisted += 1;
        }
    }
}

/// The rows of the catalog's small tables.
struct Tables {
    superblock: Superblock,
    positions: Positions,
    journal: Option<JournalRecord>,
    pvs: BTreeMap<u32, PvRecord>,
    volumes: Vec<(VolumeId, VolumeRecord)>,
    branches: BTreeMap<BranchId, BranchRecord>,
    snapshots: Vec<(SnapshotId, SnapshotRecord)>,
}

/// Verifies the pool in `dir`, which must not be open ([`ErrorKind::Busy`]). `progress` gets
/// (number of map pages done, number of all).
///
/// On a file system that can't be written to, the check takes the existing lock, or continues
/// without one ([`CheckReport::unlocked`]). A repair is refused there ([`ErrorKind::ReadOnly`]).
///
/// An `Err` means that the check could not be made. Findings are in the report.
pub fn check(
    dir: Arc<dyn Dir>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let dir = with_layouts(dir, LayoutOptions::default());
    let _lock = lock(&*dir, options.repair, &mut report)?;
    // A check that repairs nothing leaves every byte as it was.
    let open = if options.repair { Catalog::open } else { Catalog::open_untouched };
    let tables = match open(&*dir, CACHE).and_then(|c| Ok((read_tables(&c)?, c))) {
        Ok((tables, catalog)) => {
            report.pool = tables.superblock.pool.to_string();
            blocks::check_blocks(&catalog, options, &mut report)?;
            check_tables(&tables, &mut report);
            versions::check_snapshots(&tables, &mut report);
            unless_damaged(catalog.identities(), "identities", &mut report)?;
            let known = unless_damaged(catalog.stamps(), "stamps", &mut report)?;
            let is_known = known.is_some();
            let stamps = known.unwrap_or_default();
            let together = labels::check_pvs(&*dir, &stamps, &tables, options, &mut report) && is_known;
            check_images(&dir, &tables, &mut report);
            let histories = history::check_histories(&*dir, &catalog, &tables, &mut report);
            unless_damaged(histories, "histories", &mut report)?;
            let referred = journal::check(&dir, &tables, &mut report);
            let used = maps::check_maps(&catalog, &tables, &referred, &mut report, progress);
            let used = unless_damaged(used, "maps", &mut report)?;
            // A repair with a catalog of another time would spoil the pool for the right catalog.
            let repair = options.repair && (together || options.force_stale);
            if repair {
                labels::repair(&*dir, &stamps, &tables, &mut report)?;
            }
            // The marks are not repaired if only a part of the catalog could be read.
            if let Some(used) = used.filter(|_| repair) {
                repair::repair(&catalog, &tables, &used, &mut report)?;
            }
            return Ok(report);
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => error,
        Err(error) => return Err(error),
    };
    report.find("catalog", "catalog", tables.to_string());
    Ok(report)
}

/// Locks the pool, as far as that is possible without writing.
fn lock(dir: &dyn Dir, repair: bool, report: &mut CheckReport) -> Result<Option<Box<dyn Send + Sync>>> {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, WouldBlock};
    let name = crate::space::lock::LOCK_FILE;
    let denied = match dir.lock(name) {
        Err(e) if matches!(e.kind(), ReadOnlyFilesystem | PermissionDenied) => e,
        result => return crate::space::lock::locked(result).map(Some),
    };
    if repair {
        return Err(Error::with_source(ErrorKind::ReadOnly, "repair the pool: it is not writable", denied));
    }
    match dir.lock_existing(name) {
        Ok(lock) => Ok(Some(lock)),
        Err(e) if e.kind() == WouldBlock => crate::space::lock::locked(Err(e)).map(Some),
        Err(e) => {
            report.unlocked = Some(format!("lock the pool: {e}"));
            Ok(None)
        }
    }
}

/// Makes a finding of an error by which damage of the catalog cut a part of the check short.
fn unless_damaged<T>(result: Result<T>, what: &str, report: &mut CheckReport) -> Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.find("catalog", what, error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn read_tables(catalog: &Catalog) -> Result<Tables> {
    Ok(Tables {
        superblock: catalog.superblock()?,
        positions: catalog.positions()?,
        journal: catalog.journal()?,
        pvs: catalog.pvs()?.into_iter().collect(),
        volumes: catalog.volumes()?,
        branches: catalog.branches()?.into_iter().collect(),
        snapshots: catalog.snapshots()?,
    })
}

fn check_tables(tables: &Tables, report: &mut CheckReport) {
    let p = &tables.positions;
    if p.destaged_lsn > p.preserved_lsn || p.preserved_lsn > p.synced_lsn {
        report.find("positions", "positions", format!("they are out of order: {p:?}"));
    }
    report.pvs = tables.pvs.len() as u64;
    report.volumes = tables.volumes.len() as u64;
    let mut names = BTreeSet::new();
    let mut owned = BTreeSet::new();
    for (id, volume) in &tables.volumes {
        let object = format!("volume {}", volume.name);
        // The name of a volume in the trash is free.
        let is_taken = volume.trashed == 0 && !names.insert(&volume.name);
        if check_name(&volume.name).is_err() || is_taken {
            report.find("volume-name", &object, "the name is malformed or taken by another volume");
        }
        if id.0 >= tables.superblock.next_id || volume.branch.0 >= tables.superblock.next_id {
            report.find("id", &object, "its ids were never assigned");
        }
        match tables.branches.get(&volume.branch) {
            Some(branch) if !branch.dead && owned.insert(volume.branch) => {}
            Some(_) => report.find("volume-branch", &object, "its branch is dead or has another volume"),
            None => report.find("volume-branch", &object, "its branch does not exist"),
        }
    }
    for (id, branch) in &tables.branches {
        let object = format!("branch {id}");
        if !branch.dead && !owned.contains(id) {
            report.find("orphan-branch", &object, "no volume uses it, and it is not being freed");
        }
        if branch.chunk_log2 < 9
            || 1u64.checked_shl(branch.chunk_log2.into()).is_none_or(|c| c > tables.superblock.extent_size)
        {
            report.find(
                "branch-chunk",
                &object,
                format!("its chunk size 2^{} is invalid", branch.chunk_log2),
            );
        }
    }
}

/// Checks that images exist and are unchanged. Otherwise, what a volume still shows of an image
/// can't be read.
fn check_images(dir: &Arc<dyn Dir>, tables: &Tables, report: &mut CheckReport) {
    for (id, branch) in &tables.branches {
        if let Some(BaseRecord::Image(record)) = &branch.base
            && let Err(error) = ExternalImage::new(record.clone(), dir.clone()).check()
        {
            report.find("image", format!("branch {id} ({})", record.path), error.to_string());
        }
    }
}

/// The known slots of extents, by (physical volume, extent).
type Marks = BTreeMap<(u32, u32), SlotUse>;
