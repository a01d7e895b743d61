//! All rows of the catalog as bytes, in both directions. A backup of the metadata holds them.
//!
//! A row is its table's name, its key and its value, as the store keeps them. [`every_table`] lists
//! every table. A test (`crates/tidy/tests/seams.rs`) compares the list with the tables that are
//! defined.

use super::store::{db, guarded};
use super::{BITMAPS, BRANCHES, Catalog, EXTENTS, MAP, META, PVS, SNAPSHOTS, Txn, VOLUMES};
use crate::error::{Result, corrupt};
use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, TableError, Value};

/// One row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(crate) table: &'a str,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Calls `$each!(TABLE)` for every table of the catalog.
macro_rules! every_table {
    ($each:ident) => {
        $each!($crate::catalog::META);
        $each!($crate::catalog::PVS);
        $each!($crate::catalog::VOLUMES);
        $each!($crate::catalog::BRANCHES);
        $each!($crate::catalog::EXTENTS);
        $each!($crate::catalog::BITMAPS);
        $each!($crate::catalog::MAP);
        $each!($crate::catalog::SNAPSHOTS);
        $each!($crate::catalog::versions::VERSIONS);
        $each!($crate::catalog::versions::BY_LAST);
        $each!($crate::catalog::holes::HOLES);
        $each!($crate::catalog::usage::USAGE);
        $each!($crate::catalog::flushes::FLUSHES);
        $each!($crate::catalog::cdp::SEGMENTS);
        $each!($crate::catalog::cdp::GROUPS);
        $each!($crate::catalog::cdp::RUNS);
        $each!($crate::catalog::cdp::LINES);
        $each!($crate::catalog::cdp::EVENTS);
        $each!($crate::catalog::stamps::STAMPS);
        $each!($crate::catalog::damage::DAMAGE);
        $each!($crate::catalog::damage::bad_slots::BAD_SLOTS);
    };
}

/// Returns whether the bytes can be a key or a value of this type. The store does not check it.
fn fits<V: Value>(bytes: &[u8]) -> bool {
    match V::fixed_width() {
        Some(width) => bytes.len() == width,
        // Of the types that vary in length, only the names in `meta` are keys. They are text.
        None => V::type_name() != <&str as Value>::type_name() || std::str::from_utf8(bytes).is_ok(),
    }
}

fn visit_table<K: Key + 'static, V: Value + 'static>(
    txn: &ReadTransaction,
    definition: TableDefinition<'static, K, V>,
    visit: &mut dyn FnMut(Row<'_>) -> Result<()>,
) -> Result<()> {
    let table = match txn.open_table(definition) {
        // Some are made with their first row.
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        table => db!("read the catalog", table),
    };
    for row in db!("read the catalog", table.iter()) {
        let (key, value) = db!("read the catalog", row);
        let (key, value) = (key.value(), value.value());
        let (key, value) = (K::as_bytes(&key), V::as_bytes(&value));
        let table = redb::TableHandle::name(&definition);
        visit(Row { table, key: key.as_ref(), value: value.as_ref() })?;
    }
    Ok(())
}

fn put_row<K: Key + 'static, V: Value + 'static>(
    txn: &Txn<'_>,
    definition: TableDefinition<'static, K, V>,
    row: &Row<'_>,
) -> Result<()> {
    if !fits::<K>(row.key) || !fits::<V>(row.value) {
        return Err(corrupt(format!("restore a row of {}: its length is wrong", row.table)));
    }
    let mut table = db!("restore the catalog", txn.txn.get()?.open_table(definition));
    db!("restore the catalog", table.insert(K::from_bytes(row.key), V::from_bytes(row.value)));
    Ok(())
}

impl Catalog {
    /// Visits all rows of all tables, as they are at one instant. Commits go on meanwhile. The
    /// space of what they replace is given back after the visit.
    pub(crate) fn visit_rows(&self, visit: &mut dyn FnMut(Row<'_>) -> Result<()>) -> Result<()> {
        self.store.read("read the catalog", |txn| {
            macro_rules! each {
                ($table:expr) => {
                    visit_table(txn, $table, visit)?;
                };
            }
            every_table!(each);
            Ok(())
        })
    }
}

impl Txn<'_> {
    /// Stores a row as it was read. Fails with [`crate::ErrorKind::Corrupt`] when this build has no
    /// such table.
    pub(crate) fn put_row(&mut self, row: &Row<'_>) -> Result<()> {
        guarded("restore the catalog", || {
            macro_rules! each {
                ($table:expr) => {
                    if redb::TableHandle::name(&$table) == row.table {
                        return put_row(self, $table, row);
                    }
                };
            }
            every_table!(each);
            Err(corrupt(format!("restore a row of {}: this build has no such table", row.table)))
        })
    }
}

impl Txn<'_> {
    pub(crate) fn create_tables(&mut self) -> Result<()> {
        db!("create the catalog", self.txn.get()?.open_table(META));
        db!("create the catalog", self.txn.get()?.open_table(PVS));
        db!("create the catalog", self.txn.get()?.open_table(VOLUMES));
        db!("create the catalog", self.txn.get()?.open_table(BRANCHES));
        db!("create the catalog", self.txn.get()?.open_table(EXTENTS));
        db!("create the catalog", self.txn.get()?.open_table(BITMAPS));
        db!("create the catalog", self.txn.get()?.open_table(MAP));
        self.create_snapshot_tables()?;
        self.create_cdp_tables()?;
        self.create_usage_table()
    }

    /// Makes the tables of snapshots, also in a catalog that an older build made.
    pub(crate) fn create_snapshot_tables(&mut self) -> Result<()> {
        db!("create the catalog", self.txn.get()?.open_table(SNAPSHOTS));
        db!("create the catalog", self.txn.get()?.open_table(super::versions::VERSIONS));
        db!("create the catalog", self.txn.get()?.open_table(super::versions::BY_LAST));
        db!("create the catalog", self.txn.get()?.open_table(super::holes::HOLES));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::adopt;
    use crate::disk::MemDir;

    #[test]
    fn rows_that_make_no_sense_are_refused() {
        let dir = MemDir::new();
        let disk = crate::disk::Dir::open(&dir, "c", crate::disk::OpenMode::CreateNew).unwrap();
        let below = adopt::below(&disk).unwrap();
        let catalog = Catalog::on(disk, below, 1 << 20).unwrap();
        let mut txn = catalog.begin().unwrap();
        for (table, key, value) in [
            ("nothing", &[0; 8][..], &[0; 8][..]),
            ("volumes", &[0; 7], &[0; 8]),
            ("meta", &[0xFF], &[0; 8]),
            ("usage", &[0; 16], &[0; 9]),
        ] {
            let error = txn.put_row(&Row { table, key, value }).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Corrupt, "{table}");
        }
        txn.put_row(&Row { table: "volumes", key: &[0; 8], value: b"anything" }).unwrap();
    }
}
