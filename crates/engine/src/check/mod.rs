//! Offline verification: recomputes from the outside everything that the catalog claims.
//!
//! Every slot that a map points to must be marked used, once, in an extent of its size, on a physical volume that is
//! there; every mark must belong to a map; counts must agree; the journal must read to its end. What can be repaired
//! without guessing about data (space nobody uses, wrong counts) is repaired on request only.

mod maps;
mod repair;
#[cfg(test)]
mod tests;
mod versions;

use crate::catalog::{
    BaseRecord, BranchRecord, Catalog, Positions, PvRecord, SnapshotRecord, Superblock, VolumeRecord,
};
use crate::disk::{Dir, OpenMode};
use crate::error::{Error, ErrorKind, Result};
use crate::journal::{Owner, ScanStart, scan};
use crate::pool::image::Image;
use crate::pool::namespace::check_name;
use crate::pool::pv::open_known;
use maps::SlotUse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Findings beyond this number are counted, not listed.
const MAX_FINDINGS: usize = 1000;
/// Page cache of the catalog during a check, in bytes.
const CACHE: usize = 64 << 20;

/// How to check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Repair what can be repaired safely.
    pub repair: bool,
}

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind, for programs: a fixed word like `leaked-slot`.
    pub code: &'static str,
    /// What it is about: `pv 0`, `branch 3 page 7`.
    pub object: String,
    /// What is wrong, for people.
    pub detail: String,
    /// `repair` can mend it without guessing.
    pub repairable: bool,
    /// It was mended.
    pub repaired: bool,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What was found; empty means that all is well. At most a thousand are listed.
    pub findings: Vec<Finding>,
    /// Findings that are not listed.
    pub unlisted: u64,
    /// The pool's UUID.
    pub pool: String,
    /// Physical volumes.
    pub pvs: u64,
    /// Volumes.
    pub volumes: u64,
    /// Snapshots in sight.
    pub snapshots: u64,
    /// Overwritten contents kept for snapshots.
    pub versions: u64,
    /// Map pages read.
    pub map_pages: u64,
    /// Map entries verified.
    pub chunks: u64,
    /// Extents in use.
    pub extents: u64,
    /// Slots in use.
    pub slots: u64,
    /// Journal records that wait for their destage.
    pub journal_records: u64,
}

impl CheckReport {
    /// Nothing is wrong (any more).
    pub fn is_clean(&self) -> bool {
        self.unlisted == 0 && self.findings.iter().all(|f| f.repaired)
    }

    fn find(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.push(code, object.into(), detail.into(), false);
    }

    fn find_repairable(&mut self, code: &'static str, object: impl Into<String>, detail: impl Into<String>) {
        self.push(code, object.into(), detail.into(), true);
    }

    fn push(&mut self, code: &'static str, object: String, detail: String, repairable: bool) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { code, object, detail, repairable, repaired: false });
        } else {
            self.unlisted += 1;
        }
    }
}

/// What the catalog's small tables say.
struct Tables {
    superblock: Superblock,
    positions: Positions,
    pvs: BTreeMap<u32, PvRecord>,
    volumes: Vec<(u64, VolumeRecord)>,
    branches: BTreeMap<u64, BranchRecord>,
    snapshots: Vec<(u64, SnapshotRecord)>,
}

/// Verifies the pool in `dir`, which must not be open ([`ErrorKind::Busy`]). `progress` gets (map pages done, all).
///
/// An `Err` means that the check could not be made; what it finds is in the report.
pub fn check(
    dir: Arc<dyn Dir>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport> {
    let _lock = crate::pool::lock(&*dir)?;
    let mut report = CheckReport::default();
    // A check that repairs nothing leaves every byte as it was.
    let open = if options.repair { Catalog::open } else { Catalog::open_untouched };
    let tables = match open(&*dir, CACHE).and_then(|c| Ok((read_tables(&c)?, c))) {
        Ok((tables, catalog)) => {
            report.pool = crate::world::uuid_text(&tables.superblock.pool);
            check_tables(&tables, &mut report);
            versions::check_snapshots(&tables, &mut report);
            check_pvs(&*dir, &tables, &mut report);
            check_images(&dir, &tables, &mut report);
            check_journal(&*dir, &tables, &mut report);
            let used = maps::check_maps(&catalog, &tables, &mut report, progress)?;
            if options.repair {
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

fn read_tables(catalog: &Catalog) -> Result<Tables> {
    Ok(Tables {
        superblock: catalog.superblock()?,
        positions: catalog.positions()?,
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
        if check_name(&volume.name).is_err() || !names.insert(&volume.name) {
            report.find("volume-name", &object, "the name is malformed or taken by another volume");
        }
        if *id >= tables.superblock.next_id || volume.branch >= tables.superblock.next_id {
            report.find("id", &object, "its ids were never given out");
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
            report.find("orphan-branch", &object, "no volume writes to it, and it is not being freed");
        }
        if branch.chunk_log2 < 9
            || 1u64.checked_shl(branch.chunk_log2.into()).is_none_or(|c| c > tables.superblock.extent_size)
        {
            report.find(
                "branch-chunk",
                &object,
                format!("its chunk size 2^{} makes no sense", branch.chunk_log2),
            );
        }
    }
}

fn check_pvs(dir: &dyn Dir, tables: &Tables, report: &mut CheckReport) {
    for (id, record) in &tables.pvs {
        let (pool, extent_size) = (tables.superblock.pool, tables.superblock.extent_size);
        if let Err(error) = open_known(dir, pool, extent_size, *id, record, OpenMode::ReadOnly) {
            report.find("pv", format!("pv {id} ({})", record.path), error.to_string());
        }
        if *id >= tables.superblock.next_pv {
            report.find("id", format!("pv {id}"), "its number was never given out");
        }
    }
}

/// Images are there, and are what they were: what a volume still shows of one can't be read otherwise.
fn check_images(dir: &Arc<dyn Dir>, tables: &Tables, report: &mut CheckReport) {
    for (id, branch) in &tables.branches {
        if let Some(BaseRecord::Image(record)) = &branch.base
            && let Err(error) = Image::new(record.clone(), dir.clone()).check()
        {
            report.find("image", format!("branch {id} ({})", record.path), error.to_string());
        }
    }
}

fn check_journal(dir: &dyn Dir, tables: &Tables, report: &mut CheckReport) {
    let start = ScanStart {
        owner: Owner { pool: tables.superblock.pool, incarnation: tables.positions.incarnation },
        seq: tables.positions.journal_seq,
        incarnation: tables.positions.journal_incarnation,
        destaged_lsn: tables.positions.destaged_lsn,
        synced_lsn: tables.positions.synced_lsn,
    };
    let mut records = 0;
    let mut undecoded: Option<Error> = None;
    let scanned = scan(dir, start, false, &mut |located, data| {
        records += 1;
        if located.header.kind == crate::journal::record::Kind::Control {
            undecoded = crate::pool::decode_control(located.header.lsn, data).err().or(undecoded.take());
        }
        Ok(())
    });
    report.journal_records = records;
    if let Some(error) = scanned.err().or(undecoded) {
        report.find("journal", "journal", error.to_string());
    }
}

/// Slots marked used in the catalog that no map was seen to point to (yet), and what is known of the extents.
type Marks = BTreeMap<(u32, u32), SlotUse>;
