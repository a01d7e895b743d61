//! The check of the journal, and of the slots that its references name.

use super::marks::SlotUse;
use super::{CheckReport, Marks, Tables};
use crate::catalog::features::REFERENCES;
use crate::catalog::page::Slot;
use crate::control::decode_control;
use crate::disk::{Dir, OverlayDir};
use crate::error::Error;
use crate::ids::Lsn;
use crate::journal::record::Kind;
use crate::journal::verify::{Believed, decode};
use crate::journal::{Located, ScanStart, scan};
use crate::space::label::DATA_START;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A slot that only the journal names: LSN of the record, the slot, and log2 of its size.
pub(super) struct ReferredSlot {
    lsn: Lsn,
    slot: Slot,
    slot_log2: u8,
}

/// Reads the journal and decodes its records. Returns the slots of references that the catalog does
/// not have yet.
pub(super) fn check(dir: &Arc<dyn Dir>, tables: &Tables, report: &mut CheckReport) -> Vec<ReferredSlot> {
    let start = |accept| ScanStart::new(&tables.superblock, &tables.positions, tables.journal, accept);
    let mut records = 0;
    let mut undecoded: Option<Error> = None;
    let mut referred = Vec::new();
    let mut visit = |located: &Located, data: &[u8]| {
        let header = &located.header;
        records += 1;
        match header.kind {
            Kind::Control => {
                undecoded = decode_control(header.lsn, data).err().or(undecoded.take());
            }
            Kind::Reference => match decode(header, data) {
                Ok(reference) if header.lsn > tables.positions.preserved_lsn => {
                    let slot_log2 = reference.slot_log2;
                    let named = |slot| ReferredSlot { lsn: header.lsn, slot, slot_log2 };
                    referred.extend(reference.slots().map(named));
                }
                Ok(_) => {}
                Err(error) => undecoded = Some(error),
            },
            _ => {}
        }
        Ok(())
    };
    let scanned = scan(&**dir, start(false), false, &Believed, &mut visit);
    if scanned.is_err() && tables.superblock.features & REFERENCES != 0 {
        // The scan visited no record. An opening that accepts the damage uses the references before
        // it, so a repair has to know their slots. Such a scan makes missing files, which stay in
        // memory here.
        let _ = scan(&OverlayDir::new(dir.clone()), start(true), false, &Believed, &mut visit);
    }
    report.journal_records = records;
    if let Some(error) = scanned.err().or(undecoded) {
        report.find("journal", "journal", error.to_string());
    }
    referred
}

/// Checks that the slots that references name are free in the catalog, and that no two references
/// name the same slot (D4 of docs/DURABILITY.md). Notes these slots, so that a repair leaves them
/// free. If the slot size of an extent is unknown, it gets that of the first reference in it.
pub(super) fn check_slots(
    referred: &[ReferredSlot],
    used: &mut Marks,
    tables: &Tables,
    report: &mut CheckReport,
) {
    let mut named = BTreeSet::new();
    for ReferredSlot { lsn, slot, slot_log2 } in referred {
        let object = format!("LSN {lsn}");
        let (pv, at) = (slot.pv(), slot.offset());
        if !named.insert(*slot) {
            report.find("reference", object, format!("an earlier reference names byte {at} of PV {pv}, too"));
            continue;
        }
        let extent_size = tables.superblock.extent_size;
        let Some(inside) = at.checked_sub(DATA_START) else {
            report.find("reference", object, format!("it names byte {at} of PV {pv}, before the data"));
            continue;
        };
        let extent = u32::try_from(inside / extent_size).unwrap_or(u32::MAX);
        if tables.pvs.get(&pv).is_none_or(|record| extent >= record.extents) {
            report.find("reference", object, format!("it names byte {at} of PV {pv}, which does not exist"));
            continue;
        }
        if extent_size.checked_shr((*slot_log2).into()).is_none_or(|slots| slots == 0)
            || inside % (1 << slot_log2) != 0
        {
            let detail = format!("it names byte {at} of PV {pv}, where no slot of its size begins");
            report.find("reference", object, detail);
            continue;
        }
        let of = used.entry((pv, extent)).or_insert_with(|| SlotUse::only_referred(*slot_log2, extent_size));
        of.shape(*slot_log2, extent_size >> slot_log2);
        let index = (inside % extent_size) >> slot_log2;
        if of.slot_log2 != *slot_log2 || of.has_owner(index) {
            report.find("reference", object, format!("it names byte {at} of PV {pv}, which is used"));
        } else {
            of.refer(index);
        }
    }
}
