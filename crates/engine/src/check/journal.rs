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
use crate::journal::{ScanStart, scan};
use crate::space::label::DATA_START;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A slot that only the journal names: LSN of the record, the slot, and log2 of its size.
pub(super) struct ReferredSlot {
    lsn: Lsn,
    slot: Slot,
    slot_log2: u8,
}

/// The records of the journal, as far as a scan reads them.
#[derive(Default)]
struct Records {
    count: u64,
    /// The slots of references that the catalog does not have yet.
    referred: Vec<ReferredSlot>,
    /// The last error of a record that makes no sense.
    undecoded: Option<Error>,
}

/// Checks the journal. Returns the slots of references that the catalog does not have yet.
pub(super) fn check(dir: &Arc<dyn Dir>, tables: &Tables, report: &mut CheckReport) -> Vec<ReferredSlot> {
    let (mut records, damage) = read(&**dir, tables, false);
    if damage.is_some() && tables.superblock.features & REFERENCES != 0 {
        // The scan read no record. An opening that accepts the loss uses the references before the
        // damage, so a repair needs their slots. A scan that accepts a loss makes missing files:
        // the overlay keeps these in memory.
        (records, _) = read(&OverlayDir::new(dir.clone()), tables, true);
    }
    report.journal_records = records.count;
    if let Some(error) = damage.or(records.undecoded) {
        report.find("journal", "journal", error.to_string());
    }
    records.referred
}

/// Reads the journal and decodes its records. Returns the error that ended the scan, too.
fn read(dir: &dyn Dir, tables: &Tables, accept_loss: bool) -> (Records, Option<Error>) {
    let start = ScanStart::new(&tables.superblock, &tables.positions, tables.journal, accept_loss);
    let mut records = Records::default();
    let scanned = scan(dir, start, false, &Believed, &mut |located, data| {
        let header = &located.header;
        records.count += 1;
        match header.kind {
            Kind::Control => {
                let error = decode_control(header.lsn, data).err();
                records.undecoded = error.or(records.undecoded.take());
            }
            Kind::Reference => match decode(header, data) {
                Ok(reference) if header.lsn > tables.positions.preserved_lsn => {
                    let slot_log2 = reference.slot_log2;
                    let named = |slot| ReferredSlot { lsn: header.lsn, slot, slot_log2 };
                    records.referred.extend(reference.slots().map(named));
                }
                Ok(_) => {}
                Err(error) => records.undecoded = Some(error),
            },
            _ => {}
        }
        Ok(())
    });
    (records, scanned.err())
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
