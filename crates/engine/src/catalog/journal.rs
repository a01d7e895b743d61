//! The catalog's row about the journal's files: how many were made, and where the scan begins.
//!
//! The row is not a part of [`Positions`](super::Positions). A pool that an older build wrote has
//! no row, and an older build that opens the pool leaves the row as it is. So the start counts only
//! while it agrees with the positions.

use super::store::{db, guarded};
use super::values::{seal, unseal};
use super::{Catalog, META, Positions, Superblock, Txn, Value, decode};
use crate::error::Result;
use crate::journal::Cursor;
use crate::journal::cursor::JournalRecord;
use crate::journal::scan::ScanStart;
use crate::journal::tail::Owner;
use redb::ReadableTable;

/// The key of the row in `meta`.
const JOURNAL: &str = "journal";

impl Value for JournalRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u32(self.files).u64(self.destaged_lsn);
            w.u64(self.start.seq).u64(self.start.at).u64(self.start.lsn);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = JournalRecord {
            files: r.u32()?,
            destaged_lsn: r.u64()?,
            start: Cursor { seq: r.u64()?, at: r.u64()?, lsn: r.u64()? },
        };
        r.end(value)
    }
}

impl Catalog {
    /// Returns what is known of the journal's files, or `None` in a pool that only older builds
    /// have written.
    pub(crate) fn journal(&self) -> Result<Option<JournalRecord>> {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", table.get(JOURNAL));
            value.map(|v| decode(JOURNAL, v.value())).transpose()
        })
    }
}

impl Txn<'_> {
    /// Replaces the row about the journal's files.
    pub(crate) fn put_journal(&mut self, value: &JournalRecord) -> Result<()> {
        self.put(META, JOURNAL, &value.encode())
    }

    /// Removes the row. The pool is then like one that an older build wrote.
    #[cfg(test)]
    pub(crate) fn forget_journal(&mut self) -> Result<()> {
        self.remove(META, JOURNAL)
    }

    /// Changes the row, if there is one. The transaction reads the row itself, so two writers never
    /// undo each other's change.
    pub(crate) fn change_journal(&mut self, change: impl FnOnce(&mut JournalRecord)) -> Result<()> {
        let old = guarded("read the catalog", || {
            let table = db!("read the catalog", self.txn.get()?.open_table(META));
            let value = db!("read the catalog", table.get(JOURNAL));
            value.map(|v| decode::<JournalRecord>(JOURNAL, v.value())).transpose()
        })?;
        let Some(mut row) = old else { return Ok(()) };
        change(&mut row);
        if Some(row) != old { self.put_journal(&row) } else { Ok(()) }
    }
}

impl ScanStart {
    /// Makes the state from the catalog's row.
    pub(crate) fn new(
        superblock: &Superblock,
        positions: &Positions,
        record: Option<JournalRecord>,
        accept_loss: bool,
    ) -> Self {
        ScanStart {
            owner: Owner { pool: superblock.pool, incarnation: positions.incarnation },
            seq: positions.journal_seq,
            incarnation: positions.journal_incarnation,
            destaged_lsn: positions.destaged_lsn,
            synced_lsn: positions.synced_lsn,
            record,
            segment_size: superblock.segment_size,
            references: superblock.features & super::features::REFERENCES != 0,
            accept_loss,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Lsn;

    #[test]
    fn golden_bytes_and_damage() {
        let row = JournalRecord {
            files: 3,
            destaged_lsn: Lsn(41),
            start: Cursor { seq: 5, at: 8192, lsn: Lsn(42) },
        };
        let bytes = row.encode();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "01030000002900000000000000050000000000000000200000000000002a00000000000000ad529aff");
        assert_eq!(JournalRecord::decode(&bytes), Some(row));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(JournalRecord::decode(&bad), None, "bit {bit}");
        }
    }
}
