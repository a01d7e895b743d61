//! Checks that physical volumes exist and bear their labels. An overwritten label can be written
//! again.
//!
//! The catalog knows everything that a label has. It can't know whether the disk under a path is
//! still the same one. If the rest of the old label proves that, a repair writes the label again by
//! itself. Otherwise, it does so only if the operator names the path.

use super::{CheckOptions, CheckReport, Tables};
use crate::catalog::{KnownStamps, PvRecord};
use crate::disk::{Dir, Disk, OpenMode};
use crate::error::{Error, Result};
use crate::space::label::{Label, LabelFound, extents_on};
use crate::space::pv::open_known;
use crate::space::stamp::{Age, Bearer, Stamped};
use crate::space::stamping::age_of;
use std::sync::Arc;

/// Returns the label that a physical volume must have.
fn label_of(tables: &Tables, id: u32, record: &PvRecord) -> Label {
    Label {
        pool: tables.superblock.pool,
        pv_uuid: record.uuid,
        pv: id,
        extents: record.extents,
        extent_size: tables.superblock.extent_size,
    }
}

/// Checks all physical volumes. False when one is of another time than the catalog.
pub(super) fn check_pvs(
    dir: &dyn Dir,
    stamps: &KnownStamps,
    tables: &Tables,
    options: &CheckOptions,
    report: &mut CheckReport,
) -> bool {
    let mut together = true;
    for (id, record) in &tables.pvs {
        let (pool, extent_size) = (tables.superblock.pool, tables.superblock.extent_size);
        let object = format!("pv {id} ({})", record.path);
        match open_known(dir, pool, extent_size, *id, record, OpenMode::ReadOnly) {
            Ok(pv) => {
                let age = age_of(&pv, pool, stamps);
                together &= matches!(age, Age::Same | Age::Unknown);
                if let Some(text) = age.describe(&record.path) {
                    report.find("pv-age", object, text);
                }
            }
            Err(error) => match missing_label(dir, &label_of(tables, *id, record), record) {
                Ok(Some(proof)) if proof || options.relabel.contains(&record.path) => {
                    report.find_repairable("label", object, error.to_string());
                }
                Ok(Some(_)) => {
                    let advice = "if it is the right disk, write its label again with --relabel PATH";
                    report.find("label", object, format!("{error}; {advice}"));
                }
                Ok(None) | Err(_) => report.find("pv", object, error.to_string()),
            },
        }
        if *id >= tables.superblock.next_pv {
            report.find("id", format!("pv {id}"), "its number was never assigned");
        }
    }
    together
}

/// Returns `None` if something other than the label is wrong. Otherwise returns whether the rest of
/// the label proves that the disk is this physical volume.
fn missing_label(dir: &dyn Dir, label: &Label, record: &PvRecord) -> Result<Option<bool>> {
    let path = &record.path;
    let disk = dir.open_locked(path, OpenMode::ReadOnly).map_err(|e| Error::io(format!("open {path}"), e))?;
    let size = disk.len().map_err(|e| Error::io(format!("measure {path}"), e))?;
    if extents_on(size, label.extent_size, path)? < label.extents {
        return Ok(None);
    }
    Ok(match Label::read(&*disk, path)? {
        // The label of another disk, of this pool or another one, is whole: its data belong to that
        // pool.
        LabelFound::Label(_) => None,
        LabelFound::None | LabelFound::Damaged => Some(label.remains_on(&*disk, path)?),
    })
}

/// Writes again the labels that were found missing and may be written. What overwrote a label
/// mostly overwrote its stamps too. If no stamp is left, the stamp that the catalog knows is
/// written, on the assumption that it is the right disk.
pub(super) fn repair(
    dir: &dyn Dir,
    stamps: &KnownStamps,
    tables: &Tables,
    report: &mut CheckReport,
) -> Result<()> {
    for finding in report.findings.iter_mut().filter(|f| f.code == "label" && f.repairable) {
        let object = |id: &u32, record: &PvRecord| format!("pv {id} ({})", record.path);
        let Some((id, record)) = tables.pvs.iter().find(|(id, pv)| object(id, pv) == finding.object) else {
            continue;
        };
        let disk: Arc<dyn Disk> = dir
            .open_locked(&record.path, OpenMode::Existing)
            .map_err(|e| Error::io(format!("open physical volume {}", record.path), e))?;
        let label = label_of(tables, *id, record);
        let stamped = Stamped::read(&*disk, &Bearer { pool: label.pool, pv_uuid: label.pv_uuid });
        match stamps.durable.get(id) {
            Some(stamp) if stamped.latest().is_none() => label.write(&*disk, &record.path, stamp)?,
            _ => label.write_alone(&*disk, &record.path)?,
        }
        finding.repaired = true;
    }
    Ok(())
}
