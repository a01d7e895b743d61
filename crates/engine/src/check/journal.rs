//! The check of the journal, and of the slots that its references name.

use super::marks::SlotUse;
use super::{CheckReport, Marks, Tables};
use crate::catalog::page::Slot;
use crate::control::decode_control;
use crate::disk::Dir;
use crate::error::Error;
use crate::ids::Lsn;
use crate::journal::record::Kind;
use crate::journal::verify::{Believed, decode};
use crate::journal::{ScanStart, scan};
use crate::space::label::DATA_START;
use std::collections::BTreeSet;

/// A slot that only the journal names: LSN of the record, the slot, and log2 of its size.
pub(super) struct ReferredSlot {
    lsn: Lsn,
    slot: Slot,
    slot_log2: u8,
}

/// Reads the journal and decodes its records. Returns the slots of references that the catalog does
/// not have yet.
pub(super) fn check(dir: &dyn Dir, tables: &Tables, report: &mut CheckReport) -> Vec<ReferredSlot> {
    let start = ScanStart::new(&tables.superblock, &tables.positions, tables.journal, false);
    let mut records = 0;
    let mut undecoded: Option<Error> = None;
    let mut referred = Vec::new();
    let scanned = scan(dir, start, false, &Believed, &mut |located, data| {
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
    });
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
        let of = used.entry((pv, extent)).or_insert_with(|| SlotUse::only_referred(*slot_log2, extent_size));
        of.shape(*slot_log2, extent_size >> slot_log2);
        if has_other_owner(of, inside % extent_size, *slot_log2) {
            report.find("reference", object, format!("it names byte {at} of PV {pv}, which is used"));
        } else {
            of.refer((inside % extent_size) >> slot_log2);
        }
    }
}

/// Returns whether the catalog marks a slot as used, or has slots of another size in its extent.
fn has_other_owner(of: &SlotUse, inside: u64, slot_log2: u8) -> bool {
    if of.slot_log2 != slot_log2 {
        return true;
    }
    let bit = inside >> slot_log2;
    of.marked.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}
