//! Recovers the journal's records behind the catalog, as far as possible.

use crate::branch::namespace::Namespace;
use crate::catalog::Positions;
use crate::control::decode_control;
use crate::disk::Dir;
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::journal::record::{Kind, PieceCrcs};
use crate::journal::reference::Reference;
use crate::journal::verify::Slots;
use crate::journal::{Accepted, Beyond, Located, ScanStart, Scanned, scan, stage_located, stage_reference};

/// The journal's records behind the catalog.
pub(super) struct Recovered {
    pub(super) scanned: Scanned,
    /// The part of the journal that is given up, if any is.
    pub(super) loss: Option<Accepted>,
    /// The time of the first record that no history has, if there is one.
    pub(super) unrecorded: Option<u64>,
}

/// Scans the journal into staging and names. Nothing is put in place. Reads find in staging every
/// record that the catalog does not call in place, and also the records of an interrupted batch.
///
/// Damage is accepted. An operation that can't be carried out, because its object is lost, is
/// accepted too. It ends the journal, since later records depend on it. A reference that nothing
/// names as durable also ends the journal, if `slots` shows that its data is missing. An ordinary
/// opening ends the journal at the same reference.
pub(super) fn recover(
    dir: &dyn Dir,
    start: ScanStart,
    positions: &Positions,
    slots: &dyn Slots,
    names: &mut Namespace,
) -> Result<Recovered> {
    let mut unrecorded = None;
    let mut given_up: Option<Accepted> = None;
    let mut visit = |located: &Located, data: &[u8]| -> Result<()> {
        let header = &located.header;
        if header.lsn > positions.preserved_lsn {
            unrecorded.get_or_insert(header.time);
        }
        if let Some(given_up) = &mut given_up {
            given_up.beyond.add(header);
            given_up.last_lsn = header.lsn;
            return Ok(());
        }
        if header.kind == Kind::Control {
            if header.lsn <= positions.preserved_lsn {
                return Ok(());
            }
            let applied = decode_control(header.lsn, data)
                .and_then(|control| control.apply(names, header.lsn, header.time));
            if let Err(e) = applied {
                let mut beyond = Beyond::default();
                beyond.add(header);
                let text = format!("the operation with LSN {} can't be carried out: {e}", header.lsn);
                let (recovered_lsn, last_lsn) = (header.lsn.prev(), header.lsn);
                given_up = Some(Accepted {
                    damages: vec![text],
                    recovered_lsn,
                    last_lsn,
                    durable_lsn: Lsn::ZERO,
                    beyond,
                });
            }
        } else if let Some(branch) = names.branches.get(&header.branch) {
            match Reference::decode(header, data) {
                Some(reference) => stage_reference(located, &reference, &branch.staging, |_| true),
                None => stage_located(located, &PieceCrcs::of(header.offset, data), &branch.staging),
            }
        }
        Ok(())
    };
    let mut scanned = scan(dir, start, false, slots, &mut visit)?;
    let damaged = scanned.accepted.take();
    let loss = match (given_up, damaged) {
        (Some(mut early), Some(late)) => {
            early.damages.extend(late.damages);
            early.durable_lsn = late.durable_lsn;
            early.last_lsn = early.last_lsn.max(late.last_lsn);
            early.beyond.join(late.beyond);
            Some(early)
        }
        (Some(early), None) => Some(Accepted { durable_lsn: scanned.tail_lsn, ..early }),
        (None, damaged) => damaged,
    };
    Ok(Recovered { scanned, loss, unrecorded })
}

/// The result for a journal that can't be read at all: everything after what is in place is given
/// up.
pub(super) fn none(start: &ScanStart, why: &Error) -> Recovered {
    let scanned = Scanned::new(start);
    let accepted = Accepted {
        damages: vec![why.to_string()],
        recovered_lsn: start.destaged_lsn,
        last_lsn: scanned.max_lsn,
        durable_lsn: scanned.max_lsn,
        beyond: Beyond::default(),
    };
    Recovered { scanned, loss: Some(accepted), unrecorded: None }
}
