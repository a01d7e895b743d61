//! The handling of references of the journal when a pool is opened.

use crate::catalog::page::Slot;
use crate::codec::outer_sum;
use crate::damage::Damage;
use crate::error::{Error, Result};
use crate::ids::Lsn;
use crate::journal::record::{Header, Kind, PieceCrcs};
use crate::journal::reference::Reference;
use crate::journal::verify::{UnreadablePlace, decode};
use crate::journal::{Located, stage_located, stage_reference};
use crate::space::allocator::Allocator;
use crate::space::pv::PvTable;
use crate::space::reservations::Space;
use crate::staging::Staging;
use crate::units::BLOCK;
use std::collections::BTreeSet;

/// The references that an opening found.
#[derive(Default)]
pub(super) struct Referred {
    /// Number of bytes that references name and that are not in place.
    pub(super) bytes: u64,
    /// The references above `preserved_lsn`. Only the journal names their slots.
    taken: Vec<Reference>,
    /// Places of references that can't be read.
    pub(super) unreadable: Vec<UnreadablePlace>,
}

/// A reference that was found in the journal.
pub(super) struct FoundReference {
    reference: Reference,
    /// Slots that the reference names and does not own any more. The batch of the reference is
    /// preserved, and the map has other slots for these chunks.
    left: BTreeSet<Slot>,
}

impl Referred {
    /// Decodes a reference and marks its slots as lent. If the catalog has the batch of the
    /// reference already, the slots are not marked (D4). Returns `None` for a record that is no
    /// reference.
    pub(super) fn take(
        &mut self,
        header: &Header,
        data: &[u8],
        preserved: Lsn,
        (allocator, space): (&mut Allocator, &Space),
    ) -> Result<Option<FoundReference>> {
        if header.kind != Kind::Reference {
            return Ok(None);
        }
        let reference = decode(header, data)?;
        self.bytes += header.length;
        let mut left = BTreeSet::new();
        for slot in reference.slots() {
            if header.lsn <= preserved {
                if !allocator.is_live(slot, reference.slot_log2)? {
                    left.insert(slot);
                }
                continue;
            }
            let change = allocator.take_lent(slot, reference.slot_log2).map_err(|e| {
                Error::with_source(e.kind(), format!("open the pool: read LSN {}", header.lsn), e)
            })?;
            space.settle(&change, &[]);
        }
        if header.lsn > preserved {
            self.taken.push(reference.clone());
        }
        Ok(Some(FoundReference { reference, left }))
    }

    /// Removes damage from the catalog's list for slots that references have rewritten. That damage
    /// may belong to their earlier content. Damage stays if the block can't be read or does not
    /// verify. Adds the blocks of references that the scan could not read.
    pub(super) fn note_damage(&self, damage: &Damage, pvs: &PvTable) -> Result<()> {
        let mut block = [0; BLOCK as usize];
        for (place, sum) in self.taken.iter().filter(|_| damage.any()).flat_map(Reference::blocks) {
            let bytes = place.offset()..place.offset() + BLOCK;
            if damage.overlaps(place.pv(), bytes.clone()).is_empty() {
                continue;
            }
            let read = pvs.get(place.pv())?.disk.read_at(&mut block, place.offset());
            if read.is_ok() && outer_sum(&block) == sum {
                damage.written(place.pv(), bytes, &[]);
            }
        }
        self.unreadable.iter().for_each(|(pv, place)| damage.add(*pv, place.clone(), "it can't be read"));
        Ok(())
    }
}

/// Adds a record that was found in the journal to staging.
pub(super) fn stage_found(located: &Located, data: &[u8], found: Option<&FoundReference>, staging: &Staging) {
    match found {
        Some(FoundReference { reference, left }) => {
            stage_reference(located, reference, staging, |slot| !left.contains(&slot));
        }
        None => stage_located(located, &PieceCrcs::of(located.header.offset, data), staging),
    }
}
