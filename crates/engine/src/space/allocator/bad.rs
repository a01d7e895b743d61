//! Bad slots: their medium had content wrong, and a repair moved the content away. They stay marked
//! as used, so nothing is placed there again. While their physical volume is drained they are freed
//! like other slots, because nothing is placed on it any more.

use super::{Allocator, FreedSlot};
use crate::catalog::Txn;
use crate::catalog::page::Slot;
use crate::error::{Result, corrupt};
use std::collections::BTreeMap;

/// The bad slots of a pool.
#[derive(Default)]
pub(super) struct BadSlots {
    /// The slots that the catalog has, and log2 of their sizes.
    known: BTreeMap<Slot, u8>,
    /// Bytes of these slots.
    bytes: u64,
    /// The changes since the last commit: slots that became bad, and slots that were freed.
    added: Vec<FreedSlot>,
    removed: Vec<Slot>,
}

impl BadSlots {
    pub(super) fn of(rows: Vec<FreedSlot>) -> BadSlots {
        let bytes = rows.iter().map(|(_, slot_log2)| 1 << slot_log2).sum();
        BadSlots { known: rows.into_iter().collect(), bytes, ..BadSlots::default() }
    }

    /// Writes the changes to `txn`.
    pub(super) fn persist(&self, txn: &mut Txn<'_>) -> Result<()> {
        for (slot, slot_log2) in &self.added {
            txn.put_bad_slot(*slot, Some(*slot_log2))?;
        }
        self.removed.iter().try_for_each(|slot| txn.put_bad_slot(*slot, None))
    }

    /// Notes that the changes are committed. Returns the slots that became bad.
    pub(super) fn committed(&mut self) -> Vec<FreedSlot> {
        for slot in self.removed.drain(..) {
            self.bytes -= self.known.remove(&slot).map_or(0, |slot_log2| 1 << slot_log2);
        }
        for (slot, slot_log2) in &self.added {
            self.known.insert(*slot, *slot_log2);
            self.bytes += 1 << slot_log2;
        }
        std::mem::take(&mut self.added)
    }

    /// Takes back the changes since the last commit.
    pub(super) fn roll_back(&mut self) {
        self.added.clear();
        self.removed.clear();
    }

    pub(super) fn is_clean(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl Allocator {
    /// Keeps a used slot from being given out again. The next commit stores that. Afterwards the
    /// slot belongs to nobody.
    pub(crate) fn abandon(&mut self, slot: Slot, slot_log2: u8) -> Result<()> {
        if self.is_draining(slot.pv()) {
            return self.free(slot, slot_log2);
        }
        if !self.is_used(slot.pv(), slot.offset())?.0 {
            let (at, pv) = (slot.offset(), slot.pv());
            return Err(corrupt(format!("abandon the slot at byte {at} of PV {pv}: it is not in use")));
        }
        self.bad.added.push((slot, slot_log2));
        Ok(())
    }

    /// Frees the bad slots of physical volumes that are drained. Returns whether there are any.
    pub(crate) fn free_bad(&mut self) -> Result<bool> {
        let drained =
            |(slot, _): &(&Slot, &u8)| self.is_draining(slot.pv()) && !self.bad.removed.contains(slot);
        let found: Vec<FreedSlot> =
            self.bad.known.iter().filter(drained).map(|(slot, log2)| (*slot, *log2)).collect();
        for (slot, slot_log2) in &found {
            self.free(*slot, *slot_log2)?;
            self.bad.removed.push(*slot);
        }
        Ok(!found.is_empty())
    }

    /// Returns whether a byte of a physical volume lies in a bad slot, as of the last commit.
    pub(crate) fn is_bad(&self, pv: u32, byte: u64) -> bool {
        let before = self.bad.known.range(..=Slot::new(pv, byte)).next_back();
        before.is_some_and(|(slot, log2)| slot.pv() == pv && byte < slot.offset() + (1 << log2))
    }

    /// Returns the number of bytes in bad slots of a physical volume, as of the last commit.
    pub(super) fn bad_bytes_of(&self, pv: u32) -> u64 {
        let of_pv = self.bad.known.iter().filter(|(slot, _)| slot.pv() == pv);
        of_pv.map(|(_, slot_log2)| 1 << slot_log2).sum()
    }

    /// Returns the number of bytes in bad slots, as of the last commit.
    pub(crate) fn bad_bytes(&self) -> u64 {
        self.bad.bytes
    }
}
