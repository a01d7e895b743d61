//! Bad slots in the catalog: slots whose content a repair has moved away, because their medium had
//! it wrong. Bitmaps mark them as used, so they are not given out again.
//!
//! The table is made with its first row.

use crate::catalog::page::Slot;
use crate::catalog::store::db;
use crate::catalog::values::{Value, seal, unseal};
use crate::catalog::{Bytes, Catalog, Txn, decode};
use crate::error::Result;
use redb::{ReadableTable, TableDefinition, TableError};

/// Bad slots, by (PV, first byte).
pub(in crate::catalog) const BAD_SLOTS: TableDefinition<'static, (u32, u64), Bytes> =
    TableDefinition::new("bad_slots");

/// The value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BadSlotRecord {
    /// log2 of the slot's size in bytes.
    slot_log2: u8,
}

impl Value for BadSlotRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u8(self.slot_log2);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = BadSlotRecord { slot_log2: r.u8().filter(|log2| (9..=30).contains(log2))? };
        r.end(value)
    }
}

impl Catalog {
    /// Returns all bad slots, in the order of their places. A row that does not verify is left out:
    /// its slot stays marked as used.
    pub(crate) fn bad_slots(&self) -> Result<Vec<(Slot, u8)>> {
        self.store.read("read the bad slots", |txn| {
            let table = match txn.open_table(BAD_SLOTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                table => db!("read the bad slots", table),
            };
            let mut rows = Vec::new();
            for row in db!("read the bad slots", table.iter()) {
                let (key, value) = db!("read the bad slots", row);
                let (pv, offset) = key.value();
                match decode("a row of the bad slots", value.value()) {
                    Ok(BadSlotRecord { slot_log2 }) => rows.push((Slot::new(pv, offset), slot_log2)),
                    Err(error) => tracing::warn!(pv, offset, %error, "a bad slot is left out"),
                }
            }
            Ok(rows)
        })
    }
}

impl Txn<'_> {
    /// Writes the row of a bad slot of this size (log2), or removes the row.
    pub(crate) fn put_bad_slot(&mut self, slot: Slot, slot_log2: Option<u8>) -> Result<()> {
        let mut table = db!("update the bad slots", self.txn.get()?.open_table(BAD_SLOTS));
        let key = (slot.pv(), slot.offset());
        match slot_log2.map(|slot_log2| BadSlotRecord { slot_log2 }) {
            Some(record) => drop(db!("update the bad slots", table.insert(key, record.encode().as_slice()))),
            None => drop(db!("update the bad slots", table.remove(key))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_these_bytes() {
        let record = BadSlotRecord { slot_log2: 14 };
        let bytes = record.encode();
        assert_eq!(bytes[..2], [1, 14]);
        assert_eq!(bytes.len(), 6, "a version, the size, and a sum");
        assert_eq!(BadSlotRecord::decode(&bytes), Some(record));
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            assert_eq!(BadSlotRecord::decode(&broken), None, "byte {at}");
        }
        for slot_log2 in [0, 8, 31] {
            assert_eq!(BadSlotRecord::decode(&BadSlotRecord { slot_log2 }.encode()), None);
        }
    }
}
