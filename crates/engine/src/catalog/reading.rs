//! Reads inside a write transaction: the catalog as the transaction has left it so far.

use super::store::{db, guarded};
use super::{
    BRANCHES, BranchRecord, Bytes, META, SNAPSHOTS, SUPERBLOCK, SnapshotRecord, Superblock, Txn, VOLUMES,
    Value, VolumeRecord, decode,
};
use crate::error::{Result, corrupt};
use crate::ids::{BranchId, SnapshotId, VolumeId};
use redb::{ReadableTable, TableDefinition};

impl Txn<'_> {
    /// Returns a row as this transaction has left it.
    fn row<K, V>(&self, table: TableDefinition<'static, K, Bytes>, key: K, what: &str) -> Result<Option<V>>
    where
        K: redb::Key + for<'a> redb::Value<SelfType<'a> = K> + Copy + 'static,
        V: Value,
    {
        guarded("read the catalog", || {
            let table = db!("read the catalog", self.txn.get()?.open_table(table));
            let value = db!("read the catalog", table.get(key));
            value.map(|v| decode(what, v.value())).transpose()
        })
    }

    pub(crate) fn superblock(&self) -> Result<Superblock> {
        let superblock = guarded("read the catalog", || {
            let table = db!("read the catalog", self.txn.get()?.open_table(META));
            let value = db!("read the catalog", table.get(SUPERBLOCK));
            let value = value.map(|v| decode("the superblock", v.value())).transpose()?;
            value.ok_or_else(|| corrupt("read the catalog: it has no superblock"))
        })?;
        self.with_placement(superblock)
    }

    pub(crate) fn volume(&self, id: VolumeId) -> Result<Option<VolumeRecord>> {
        self.row(VOLUMES, id, "a volume")
    }

    pub(crate) fn branch(&self, id: BranchId) -> Result<Option<BranchRecord>> {
        self.row(BRANCHES, id, "a branch")
    }

    pub(crate) fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRecord>> {
        self.row(SNAPSHOTS, id, "a snapshot")
    }
}
