//! Damage in the catalog: places on physical volumes whose content can't be read, and stretches of
//! histories that needed that content.
//!
//! The table is made with its first row. The catalog of a pool that never had damage does not have
//! the table.

pub(super) mod bad_slots;

use super::store::db;
use super::values::{Value, seal, unseal};
use super::{Bytes, Catalog, Txn, decode};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Lsn};
use redb::{ReadableTable, TableDefinition, TableError};

/// The key of a row: what is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum DamageKey {
    /// A physical volume, and the first byte on it that is lost.
    Place(u32, u64),
    /// A branch, a chunk of it, and the LSN of the first record that replaced content that could
    /// not be read.
    History(BranchId, Chunk, Lsn),
}

impl DamageKey {
    fn row(self) -> (u8, u64, u64, u64) {
        match self {
            DamageKey::Place(pv, start) => (0, pv.into(), start, 0),
            DamageKey::History(branch, chunk, first) => (1, branch.0, chunk.0, first.0),
        }
    }

    pub(super) fn of(row: (u8, u64, u64, u64)) -> Option<DamageKey> {
        match row {
            (0, pv, start, 0) => Some(DamageKey::Place(u32::try_from(pv).ok()?, start)),
            (1, branch, chunk, first) => Some(DamageKey::History(BranchId(branch), Chunk(chunk), Lsn(first))),
            _ => None,
        }
    }
}

pub(super) const DAMAGE: TableDefinition<'static, (u8, u64, u64, u64), Bytes> =
    TableDefinition::new("damage");

/// The value of a row: the byte behind a place, or the LSN of the last record that replaced
/// unreadable content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DamageRecord {
    pub(crate) end: u64,
}

impl Value for DamageRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.end);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = DamageRecord { end: r.u64()? };
        r.end(value)
    }
}

impl Catalog {
    /// Returns all rows, in the order of their keys.
    pub(crate) fn damage(&self) -> Result<Vec<(DamageKey, DamageRecord)>> {
        self.store.read("read the damage", |txn| {
            let table = match txn.open_table(DAMAGE) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                table => db!("read the damage", table),
            };
            let mut rows = Vec::new();
            for row in db!("read the damage", table.iter()) {
                let (key, value) = db!("read the damage", row);
                let Some(key) = DamageKey::of(key.value()) else {
                    return Err(crate::error::corrupt("decode a key of the damage: it is invalid"));
                };
                rows.push((key, decode("a row of the damage", value.value())?));
            }
            Ok(rows)
        })
    }
}

impl Txn<'_> {
    /// Writes the row of `key`, or removes it if `record` is `None`.
    pub(crate) fn put_damage(&mut self, key: DamageKey, record: Option<DamageRecord>) -> Result<()> {
        let mut table = db!("update the damage", self.txn.get()?.open_table(DAMAGE));
        match record {
            Some(record) => {
                drop(db!("update the damage", table.insert(key.row(), record.encode().as_slice())))
            }
            None => drop(db!("update the damage", table.remove(key.row()))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_these_bytes() {
        let record = DamageRecord { end: 0x0102_0304 };
        let bytes = record.encode();
        assert_eq!(bytes[..9], [1, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), 13, "a version, a number, and a sum");
        assert_eq!(DamageRecord::decode(&bytes), Some(record));
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            assert_eq!(DamageRecord::decode(&broken), None, "byte {at}");
        }
        for key in [DamageKey::Place(7, 1 << 20), DamageKey::History(BranchId(3), Chunk(9), Lsn(1000))] {
            assert_eq!(DamageKey::of(key.row()), Some(key));
        }
        assert_eq!(DamageKey::of((2, 0, 0, 0)), None);
    }
}
