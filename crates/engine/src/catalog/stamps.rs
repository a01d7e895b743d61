//! The stamps of physical volumes in the catalog: the last one that was issued, and for each
//! physical volume the last one that is durable there. A catalog of an older build has neither the
//! row nor the table.

use super::values::{Value, seal, unseal};
use super::{Bytes, Catalog, META, Txn, decode};
use crate::catalog::store::db;
use crate::error::Result;
use redb::{ReadableTable, TableDefinition, TableError};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The last durable stamp of each physical volume, by PV number.
pub(super) const STAMPS: TableDefinition<'static, u32, Bytes> = TableDefinition::new("pv_stamps");
const ISSUED: &str = "stamp";

/// A stamp. It shows how far a pool had come by its place among all stamps of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StampRecord {
    /// The number of the stamp, from 1; 0: none was ever issued.
    pub(crate) sequence: u64,
    /// The incarnation of the pool that issued the stamp.
    pub(crate) incarnation: u64,
    /// A number drawn at random when the pool was opened. Two copies of a pool differ in it even if
    /// their sequence numbers agree.
    pub(crate) life: Uuid,
}

impl Value for StampRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.sequence).u64(self.incarnation).uuid(&self.life);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = StampRecord { sequence: r.u64()?, incarnation: r.u64()?, life: r.uuid()? };
        r.end(value)
    }
}

/// The stamps that the catalog knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownStamps {
    /// The last issued stamp. It is committed before any physical volume has it, so none has a
    /// later one.
    pub(crate) issued: StampRecord,
    /// The last durable stamps, by PV number. Each is committed after it is durable, so the
    /// physical volume has this stamp or a later one.
    pub(crate) durable: BTreeMap<u32, StampRecord>,
}

impl Catalog {
    pub(crate) fn stamps(&self) -> Result<KnownStamps> {
        self.store.read("read the catalog", |txn| {
            let meta = db!("read the catalog", txn.open_table(META));
            let mut known = KnownStamps::default();
            if let Some(issued) = db!("read the catalog", meta.get(ISSUED)) {
                known.issued = decode("the last stamp", issued.value())?;
            }
            let table = match txn.open_table(STAMPS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(known),
                table => db!("read the catalog", table),
            };
            for row in db!("read the catalog", table.iter()) {
                let (pv, stamp) = db!("read the catalog", row);
                let pv = pv.value();
                known.durable.insert(pv, decode(format_args!("the stamp of PV {pv}"), stamp.value())?);
            }
            Ok(known)
        })
    }
}

impl Txn<'_> {
    pub(crate) fn put_issued_stamp(&mut self, stamp: &StampRecord) -> Result<()> {
        self.put(META, ISSUED, &stamp.encode())
    }

    pub(crate) fn put_durable_stamp(&mut self, pv: u32, stamp: &StampRecord) -> Result<()> {
        self.put(STAMPS, pv, &stamp.encode())
    }

    pub(crate) fn remove_stamp(&mut self, pv: u32) -> Result<()> {
        self.remove(STAMPS, pv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let stamp = StampRecord { sequence: 3, incarnation: 2, life: Uuid::from_bytes([9; 16]) };
        let bytes = stamp.encode();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "0103000000000000000200000000000000090909090909090909090909090909090eba70ce");
        assert_eq!(StampRecord::decode(&bytes), Some(stamp));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(StampRecord::decode(&bad), None, "bit {bit}");
        }
    }
}
