//! The catalog: everything the pool knows except data, in one transactional store behind a narrow
//! interface.
//!
//! The tables are few and their values small. No read transaction outlives a call, so none is held
//! across I/O of the data path. Every commit saves redb's allocator state (quick repair). With it
//! reopening after a kill takes milliseconds.

mod adopt;
mod backend;
mod ballast;
mod blocks;
mod cdp;
mod change;
mod clock;
mod damage;
pub(crate) mod features;
mod flushes;
mod holes;
mod identities;
mod journal;
mod keys;
mod pace;
pub(crate) mod page;
mod placement;
pub(crate) mod progress;
mod raw;
mod reading;
mod rebalance;
mod rows;
mod salvage;
pub(crate) mod scrub;
mod stamps;
mod store;
mod superblock;
#[cfg(test)]
mod tests;
mod usage;
mod values;
mod versions;

pub(crate) use ballast::Ballast;
pub(crate) use cdp::{
    Event, GroupRecord, LineRecord, RunRecord, SegmentRecord, decode_settings, encode_settings,
};
pub(crate) use damage::{DamageKey, DamageRecord};
pub(crate) use holes::HoleRecord;
pub(crate) use identities::Identities;
pub(crate) use rebalance::{PassPosition, RebalanceRecord};
pub(crate) use rows::Row;
pub(crate) use salvage::LeftIds;
pub(crate) use scrub::ScrubRecord;
pub(crate) use stamps::{KnownStamps, StampRecord};
pub(crate) use superblock::{Superblock, is_later};
pub(crate) use usage::CURRENT;
pub(crate) use values::{
    BaseRecord, BitmapPage, BranchRecord, ExtentRecord, FillRecord, Frozen, ImageRecord, ImportRecord,
    Labels, Positions, PvRecord, SnapshotRecord, Value, VolumeRecord, decode_import, decode_labels,
    decode_method, decode_order, encode_import, encode_labels, encode_method, encode_order, put_placement,
    take_placement, take_weight,
};
pub(crate) use versions::{VERSION_BYTES, Version};

use crate::disk::{Backing, Dir, Disk, OpenMode, SyncPurpose};
use crate::error::{Error, ErrorKind, Result, corrupt, no_space};
use crate::ids::{BranchId, Lsn, SnapshotId, VolumeId};
use crate::journal::{Cursor, FIRST_RECORD, JournalRecord};
use backend::BlockBackend;
pub(crate) use keys::{PageKey, UsageKey, VersionKey};
use page::MapPage;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::{Guarded, Store, db, guarded};
use uuid::Uuid;

/// The catalog's file in the data directory.
pub(crate) const FILE: &str = "catalog.redb";
/// Name of a complete new catalog, until the creation of its pool is finished.
const NEW_FILE: &str = "catalog.redb.new";
/// Name of a new catalog until it is complete.
const DRAFT_FILE: &str = "catalog.redb.draft";
/// The least space, in bytes, with which a commit is begun.
const LEAST_ROOM: u64 = 512 << 10;
/// Name of a catalog that is being restored.
const RESTORED_FILE: &str = "catalog.redb.restored";
/// Bytes of page cache while a pool is created.
const CREATION_CACHE: usize = 1 << 20;

type Bytes = &'static [u8];
const META: TableDefinition<'static, &str, Bytes> = TableDefinition::new("meta");
const PVS: TableDefinition<'static, u32, Bytes> = TableDefinition::new("pvs");
const VOLUMES: TableDefinition<'static, VolumeId, Bytes> = TableDefinition::new("volumes");
const BRANCHES: TableDefinition<'static, BranchId, Bytes> = TableDefinition::new("branches");
/// Extents in use, by (PV, extent).
const EXTENTS: TableDefinition<'static, (u32, u32), Bytes> = TableDefinition::new("extents");
/// Bitmaps of used slots, by (PV, extent, page).
const BITMAPS: TableDefinition<'static, (u32, u32, u32), Bytes> = TableDefinition::new("bitmaps");
/// Pages of current maps.
const MAP: TableDefinition<'static, PageKey, Bytes> = TableDefinition::new("map");
const SNAPSHOTS: TableDefinition<'static, SnapshotId, Bytes> = TableDefinition::new("snapshots");

const SUPERBLOCK: &str = "superblock";
const POSITIONS: &str = "positions";

/// The catalog of a pool. All threads share it.
pub(crate) struct Catalog {
    store: Store,
    pub(crate) commits: AtomicU64,
    /// Space for commits when the file system is full. Only an open pool has it.
    ballast: Option<Arc<Ballast>>,
    /// The pool has been opened, so commits without space are refused.
    in_use: AtomicBool,
}

/// A write transaction. Nothing of it is visible or durable before [`Txn::commit`].
pub(crate) struct Txn<'a> {
    catalog: &'a Catalog,
    txn: Guarded<redb::WriteTransaction>,
    usage: usage::UsageChange,
}

/// Returns the error for a catalog that can't be opened, or that another process has open.
/// `pool.lock` may have been removed.
fn in_use(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::new(ErrorKind::Busy, "lock the catalog: another process has it open")
        }
        _ => Error::io("open the catalog", error),
    }
}

fn decode<V: Value>(what: impl std::fmt::Display, bytes: &[u8]) -> Result<V> {
    V::decode(bytes).ok_or_else(|| corrupt(format!("decode {what} of the catalog")))
}

impl Catalog {
    /// Writes the catalog of a new pool under a temporary name. The pool exists only after
    /// [`Catalog::finish`]. A creation that was interrupted leaves no pool, and can be begun again.
    /// The catalog of the interrupted creation stays until the next one replaces it, because labels
    /// may have its UUID.
    pub(crate) fn create(
        dir: &dyn Dir,
        superblock: &Superblock,
        pvs: &[(u32, PvRecord)],
        stamp: &StampRecord,
    ) -> Result<()> {
        match dir.remove(DRAFT_FILE) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove a catalog that was never finished", e));
            }
            _ => {}
        }
        let disk =
            dir.open(DRAFT_FILE, OpenMode::CreateNew).map_err(|e| Error::io("create the catalog", e))?;
        let below = adopt::below(&disk)?;
        let catalog = Self::on(disk, below, CREATION_CACHE)?;
        let mut txn = catalog.begin()?;
        txn.create_tables()?;
        txn.put_superblock(superblock)?;
        txn.put_positions(&Positions { journal_seq: 1, ..Positions::default() })?;
        let start = Cursor { seq: 1, at: FIRST_RECORD, lsn: Lsn(1) };
        txn.put_journal(&JournalRecord { files: 0, destaged_lsn: Lsn::ZERO, start })?;
        for (pv, record) in pvs {
            txn.put_pv(*pv, record)?;
            // The stamp counts when the catalog has its name. All stamps are durable by then.
            txn.put_durable_stamp(*pv, stamp)?;
        }
        txn.put_issued_stamp(stamp)?;
        txn.commit()?;
        drop(catalog);
        dir.rename(DRAFT_FILE, NEW_FILE).map_err(|e| Error::io("name the new catalog", e))?;
        dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
    }

    /// Returns the UUID of the pool whose creation was interrupted here. Physical volumes may have
    /// its label.
    pub(crate) fn unfinished(dir: &dyn Dir) -> Result<Option<Uuid>> {
        let found = Self::untouched(dir, NEW_FILE, CREATION_CACHE).and_then(|catalog| catalog.superblock());
        match found {
            Ok(superblock) => Ok(Some(superblock.pool)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Renames a complete catalog to its final name.
    pub(crate) fn finish(dir: &dyn Dir) -> Result<()> {
        dir.rename(NEW_FILE, FILE).map_err(|e| Error::io("name the new catalog", e))?;
        dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
    }

    /// Makes an empty catalog under a temporary name, for rows to be restored. Only
    /// [`Catalog::replace`] makes it the pool's.
    pub(crate) fn draft(dir: &dyn Dir) -> Result<Catalog> {
        match dir.remove(RESTORED_FILE) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove a catalog that was never restored", e));
            }
            _ => {}
        }
        let disk = dir
            .open(RESTORED_FILE, OpenMode::CreateNew)
            .map_err(|e| Error::io("create the restored catalog", e))?;
        let below = adopt::below(&disk)?;
        Self::on(disk, below, CREATION_CACHE)
    }

    /// Puts a restored catalog, which is whole and closed, in the place of the pool's.
    pub(crate) fn replace(dir: &dyn Dir) -> Result<()> {
        dir.rename(RESTORED_FILE, FILE).map_err(|e| Error::io("name the restored catalog", e))?;
        dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
    }

    fn on(disk: Arc<dyn Disk>, below: BlockBackend, cache_bytes: usize) -> Result<Catalog> {
        let store = Store::open(disk, below, cache_bytes)?;
        Ok(Catalog { store, commits: AtomicU64::new(0), ballast: None, in_use: AtomicBool::new(false) })
    }

    /// Opens the catalog with a page cache of `cache_bytes`. A catalog of a build without sums gets
    /// sums.
    pub(crate) fn open(dir: &dyn Dir, cache_bytes: usize) -> Result<Catalog> {
        Self::open_with(dir, cache_bytes, None)
    }

    /// Opens the catalog of a pool that is about to be used, with a ballast of `ballast` bytes.
    pub(crate) fn open_for_use(dir: &dyn Dir, cache_bytes: usize, ballast: u64) -> Result<Catalog> {
        Self::open_with(dir, cache_bytes, Some(Ballast::open(dir, ballast)))
    }

    fn open_with(dir: &dyn Dir, cache_bytes: usize, ballast: Option<Arc<Ballast>>) -> Result<Catalog> {
        let (disk, below) = adopt::open(dir, ballast.as_ref())?;
        if let (Some(ballast), Ok(backing)) = (&ballast, disk.backing_available()) {
            // If the file system reports no sizes, the ballast is restored at openings only.
            ballast.restore(backing.map_or(u64::MAX, |backing| backing.available));
        }
        let mut catalog = Self::on(disk, below, cache_bytes)?;
        catalog.ballast = ballast;
        let superblock = catalog.superblock()?;
        let catalog = catalog.upgraded()?;
        let sums = matches!(catalog.store.below(), BlockBackend::Blocks(_));
        if sums && superblock.features & features::CATALOG_SUMS == 0 {
            let mut txn = catalog.begin()?;
            txn.change_superblock(|superblock| superblock.features |= features::CATALOG_SUMS)?;
            txn.commit()?;
        }
        Ok(catalog)
    }

    /// Opens the catalog without writing to its file, whatever recovery it needs. Changes stay in
    /// memory.
    pub(crate) fn open_untouched(dir: &dyn Dir, cache_bytes: usize) -> Result<Catalog> {
        Self::untouched(dir, FILE, cache_bytes)
    }

    fn untouched(dir: &dyn Dir, name: &str, cache_bytes: usize) -> Result<Catalog> {
        let disk = dir.open_locked(name, OpenMode::ReadOnly).map_err(in_use)?;
        let below = adopt::below(&disk)?;
        let store = Store::open_untouched(disk, below, cache_bytes)?;
        let catalog =
            Catalog { store, commits: AtomicU64::new(0), ballast: None, in_use: AtomicBool::new(false) };
        catalog.superblock()?;
        catalog.upgraded()
    }

    /// Adds the tables that a catalog of an older build does not have.
    fn upgraded(self) -> Result<Catalog> {
        let known = self.store.read("read the catalog", |txn| {
            let tables = db!("read the catalog", txn.list_tables());
            let names: Vec<String> = tables.map(|t| redb::TableHandle::name(&t).to_owned()).collect();
            let has = |name: &str| names.iter().any(|n| n == name);
            // A build that was interrupted here made the one without the other.
            let snapshots =
                has(redb::TableHandle::name(&usage::USAGE)) && has(redb::TableHandle::name(&SNAPSHOTS));
            Ok((snapshots, has(redb::TableHandle::name(&cdp::RUNS))))
        })?;
        if !known.1 {
            let mut txn = self.begin()?;
            guarded("upgrade the catalog", || txn.create_cdp_tables())?;
            txn.commit()?;
        }
        if !known.0 {
            let mut txn = self.begin()?;
            guarded("upgrade the catalog", || txn.create_snapshot_tables())?;
            txn.commit()?;
            let mut txn = self.begin()?;
            self.count_usage(&mut txn)?;
            guarded("upgrade the catalog", || txn.create_usage_table())?;
            txn.commit()?;
        }
        Ok(self)
    }

    /// Fails when the store has failed. The store then serves reads of its last durable state, and
    /// no commit succeeds.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.store.check_writable()
    }

    /// Returns the bytes that the ballast has, and the bytes that it lacks.
    pub(crate) fn ballast(&self) -> (u64, u64) {
        self.ballast.as_ref().map_or((0, 0), |ballast| (ballast.held(), ballast.missing()))
    }

    /// Makes the ballast whole again if there is room.
    pub(crate) fn restore_ballast(&self, available: u64) {
        if let Some(ballast) = &self.ballast {
            ballast.restore(available);
        }
    }

    /// Refuses a commit for which the file system and the ballast have no space. Otherwise the
    /// store would meet an error, and refuse everything after it.
    fn check_room(&self) -> Result<()> {
        let Some(ballast) = self.ballast.as_ref().filter(|_| self.in_use.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let available = self.backing_available().ok().flatten().map_or(u64::MAX, |backing| backing.available);
        if available.saturating_add(ballast.held()) >= LEAST_ROOM {
            return Ok(());
        }
        Err(no_space(
            "begin a catalog transaction: the data directory's file system is full, and the ballast is used up; free some space",
        ))
    }

    /// From here on, commits without space for them are refused. An opening tries them: the file
    /// may have room inside, and an operator can delete something only in an open pool.
    pub(crate) fn set_in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) -> Result<Txn<'_>> {
        self.check_room()?;
        let txn = Guarded::new(self.store.begin_write()?);
        Ok(Txn { catalog: self, txn, usage: usage::UsageChange::default() })
    }

    fn meta<V: Value>(&self, key: &str) -> Result<V> {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(META));
            let value = db!("read the catalog", table.get(key));
            let value = value.ok_or_else(|| corrupt(format!("find the {key} in the catalog")))?;
            decode(key, value.value())
        })
    }

    /// Returns the bytes that the file system under the catalog could still provide, or `None` if
    /// that has no meaning.
    pub(crate) fn backing_available(&self) -> std::io::Result<Option<Backing>> {
        self.store.backing_available()
    }

    pub(crate) fn superblock(&self) -> Result<Superblock> {
        let superblock: Superblock = self.meta(SUPERBLOCK)?;
        superblock.check_features()?;
        self.with_placement(superblock)
    }

    pub(crate) fn positions(&self) -> Result<Positions> {
        self.meta(POSITIONS)
    }

    pub(crate) fn pvs(&self) -> Result<Vec<(u32, PvRecord)>> {
        self.rows(PVS, "a physical volume")
    }

    pub(crate) fn volumes(&self) -> Result<Vec<(VolumeId, VolumeRecord)>> {
        self.rows(VOLUMES, "a volume")
    }

    pub(crate) fn branches(&self) -> Result<Vec<(BranchId, BranchRecord)>> {
        self.rows(BRANCHES, "a branch")
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<(SnapshotId, SnapshotRecord)>> {
        self.rows(SNAPSHOTS, "a snapshot")
    }

    pub(crate) fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRecord>> {
        self.row(SNAPSHOTS, id, "a snapshot")
    }

    pub(crate) fn volume(&self, id: VolumeId) -> Result<Option<VolumeRecord>> {
        self.row(VOLUMES, id, "a volume")
    }

    pub(crate) fn branch(&self, id: BranchId) -> Result<Option<BranchRecord>> {
        self.row(BRANCHES, id, "a branch")
    }

    pub(crate) fn pv(&self, id: u32) -> Result<Option<PvRecord>> {
        self.row(PVS, id, "a physical volume")
    }

    fn row<K, V>(&self, table: TableDefinition<'static, K, Bytes>, key: K, what: &str) -> Result<Option<V>>
    where
        K: redb::Key + for<'a> redb::Value<SelfType<'a> = K> + Copy + 'static,
        V: Value,
    {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(table));
            let value = db!("read the catalog", table.get(key));
            value.map(|v| decode(what, v.value())).transpose()
        })
    }

    fn rows<K, V>(&self, table: TableDefinition<'static, K, Bytes>, what: &str) -> Result<Vec<(K, V)>>
    where
        K: redb::Key + for<'a> redb::Value<SelfType<'a> = K> + 'static,
        V: Value,
    {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(table));
            let mut rows = Vec::new();
            for row in db!("read the catalog", table.iter()) {
                let (key, value) = db!("read the catalog", row);
                rows.push((key.value(), decode(what, value.value())?));
            }
            Ok(rows)
        })
    }

    /// Visits all extents in use, in order.
    pub(crate) fn extents(&self, visit: &mut dyn FnMut(u32, u32, ExtentRecord)) -> Result<()> {
        let mut damaged = None;
        self.visit_extents(&mut |(pv, extent), record| match record {
            Ok(record) => visit(pv, extent, record),
            Err(error) => drop(damaged.get_or_insert(error)),
        })?;
        damaged.map_or(Ok(()), Err)
    }

    /// Visits the rows of all extents in use, in order, including damaged rows.
    pub(crate) fn visit_extents(
        &self,
        visit: &mut dyn FnMut((u32, u32), Result<ExtentRecord>),
    ) -> Result<()> {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(EXTENTS));
            for row in db!("read the catalog", table.iter()) {
                let (key, value) = db!("read the catalog", row);
                let (pv, extent) = key.value();
                visit((pv, extent), decode(format_args!("extent {extent} of PV {pv}"), value.value()));
            }
            Ok(())
        })
    }

    /// Returns the words of an extent's bitmap. Missing pages are zero.
    pub(crate) fn bitmap(&self, pv: u32, extent: u32, words: usize) -> Result<Vec<u64>> {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(BITMAPS));
            let mut all = vec![0u64; words];
            for row in db!("read the catalog", table.range((pv, extent, 0)..=(pv, extent, u32::MAX))) {
                let (key, value) = db!("read the catalog", row);
                let page: BitmapPage =
                    decode(format_args!("the bitmap of extent {extent} of PV {pv}"), value.value())?;
                let start = key.value().2 as usize * BITMAP_WORDS;
                let target = all.get_mut(start..start + page.0.len()).ok_or_else(|| {
                    corrupt(format!(
                        "read the bitmap of extent {extent} of PV {pv}: it is longer than the extent"
                    ))
                })?;
                target.copy_from_slice(&page.0);
            }
            Ok(all)
        })
    }

    /// Returns the map page `key`: a stored page, or a part of a hole.
    pub(crate) fn page(&self, key: PageKey) -> Result<Option<MapPage>> {
        self.store.read("read a map page", |txn| {
            let table = db!("read a map page", txn.open_table(MAP));
            if let Some(stored) = db!("read a map page", table.get(key)) {
                return decode_page(key, stored.value()).map(Some);
            }
            holes::page_in_hole(&db!("read a map page", txn.open_table(holes::HOLES)), key)
        })
    }

    /// Returns the numbers of the stored map pages of `branch` in `first..=last`, at most `limit`.
    pub(crate) fn page_numbers(
        &self,
        branch: BranchId,
        first: u64,
        last: u64,
        limit: usize,
    ) -> Result<Vec<u64>> {
        self.store.read("read the map", |txn| {
            let table = db!("read the map", txn.open_table(MAP));
            let mut numbers = Vec::new();
            for row in
                db!("read the map", table.range(PageKey::new(branch, first)..=PageKey::new(branch, last)))
                    .take(limit)
            {
                numbers.push(db!("read the map", row).0.value().page);
            }
            Ok(numbers)
        })
    }

    /// Visits map pages in order from `from`, at most `limit`. Returns the key after the last one,
    /// if there are more.
    pub(crate) fn visit_pages(
        &self,
        from: PageKey,
        limit: usize,
        visit: &mut dyn FnMut(PageKey, Result<MapPage>) -> Result<()>,
    ) -> Result<Option<PageKey>> {
        self.store.read("read the map", |txn| {
            let table = db!("read the map", txn.open_table(MAP));
            for (n, row) in db!("read the map", table.range(from..)).enumerate() {
                let (key, value) = db!("read the map", row);
                let key = key.value();
                if n == limit {
                    return Ok(Some(key));
                }
                visit(key, decode_page(key, value.value()))?;
            }
            Ok(None)
        })
    }

    /// Returns the bytes of the catalog's file.
    pub(crate) fn file_bytes(&self) -> std::io::Result<u64> {
        self.store.file_bytes()
    }

    /// Returns the number of map pages.
    pub(crate) fn page_count(&self) -> Result<u64> {
        self.store.read("read the map", |txn| {
            let table = db!("read the map", txn.open_table(MAP));
            Ok(db!("read the map", table.len()))
        })
    }

    /// Visits every bitmap page by its key: (PV, extent, page).
    pub(crate) fn visit_bitmaps(
        &self,
        visit: &mut dyn FnMut((u32, u32, u32), Option<BitmapPage>),
    ) -> Result<()> {
        self.store.read("read the catalog", |txn| {
            let table = db!("read the catalog", txn.open_table(BITMAPS));
            for row in db!("read the catalog", table.iter()) {
                let (key, value) = db!("read the catalog", row);
                visit(key.value(), BitmapPage::decode(value.value()));
            }
            Ok(())
        })
    }
}

/// Returns the positions, if `row` is their row.
pub(crate) fn positions_in(row: &Row<'_>) -> Option<Positions> {
    let is_theirs = row.table == redb::TableHandle::name(&META) && row.key == POSITIONS.as_bytes();
    is_theirs.then(|| Positions::decode(row.value)).flatten()
}

/// The number of words of one stored bitmap page (3,968 bytes).
pub(crate) const BITMAP_WORDS: usize = 496;

fn decode_page(key: PageKey, bytes: &[u8]) -> Result<MapPage> {
    MapPage::decode(key, bytes).ok_or_else(|| {
        corrupt(format!("verify map page {} of branch {}: its checksum is wrong", key.page, key.branch))
    })
}

impl Txn<'_> {
    /// Makes the last table that an older build lacks. With it the catalog is of this build.
    fn create_usage_table(&mut self) -> Result<()> {
        db!("create the catalog", self.txn.get()?.open_table(usage::USAGE));
        Ok(())
    }

    fn put<K: redb::Key + 'static>(
        &mut self,
        table: TableDefinition<'static, K, Bytes>,
        key: K::SelfType<'_>,
        value: &[u8],
    ) -> Result<()> {
        guarded("update the catalog", || {
            let mut table = db!("update the catalog", self.txn.get()?.open_table(table));
            db!("update the catalog", table.insert(key, value));
            Ok(())
        })
    }

    fn remove<K: redb::Key + 'static>(
        &mut self,
        table: TableDefinition<'static, K, Bytes>,
        key: K::SelfType<'_>,
    ) -> Result<()> {
        guarded("update the catalog", || {
            let mut table = db!("update the catalog", self.txn.get()?.open_table(table));
            db!("update the catalog", table.remove(key));
            Ok(())
        })
    }

    pub(crate) fn put_positions(&mut self, value: &Positions) -> Result<()> {
        self.put(META, POSITIONS, &value.encode())
    }
    pub(crate) fn put_pv(&mut self, pv: u32, value: &PvRecord) -> Result<()> {
        self.put(PVS, pv, &value.encode())
    }
    pub(crate) fn remove_pv(&mut self, pv: u32) -> Result<()> {
        self.remove_stamp(pv)?;
        self.remove(PVS, pv)
    }
    pub(crate) fn put_volume(&mut self, id: VolumeId, value: &VolumeRecord) -> Result<()> {
        self.put(VOLUMES, id, &value.encode())
    }
    pub(crate) fn remove_volume(&mut self, id: VolumeId) -> Result<()> {
        self.remove(VOLUMES, id)
    }
    pub(crate) fn put_snapshot(&mut self, id: SnapshotId, value: &SnapshotRecord) -> Result<()> {
        self.put(SNAPSHOTS, id, &value.encode())
    }
    pub(crate) fn remove_snapshot(&mut self, id: SnapshotId) -> Result<()> {
        self.remove(SNAPSHOTS, id)
    }
    pub(crate) fn put_branch(&mut self, id: BranchId, value: &BranchRecord) -> Result<()> {
        self.put(BRANCHES, id, &value.encode())
    }
    pub(crate) fn remove_branch(&mut self, id: BranchId) -> Result<()> {
        self.remove_holes(id)?;
        self.remove(BRANCHES, id)
    }

    /// Stores an extent's record and bitmap, or removes both when no slot in it is used.
    pub(crate) fn put_extent(
        &mut self,
        pv: u32,
        extent: u32,
        record: &ExtentRecord,
        words: &[u64],
    ) -> Result<()> {
        let empty = record.used == 0;
        if empty {
            self.remove(EXTENTS, (pv, extent))?;
        } else {
            self.put(EXTENTS, (pv, extent), &record.encode())?;
        }
        for (page, words) in words.chunks(BITMAP_WORDS).enumerate() {
            let key = (pv, extent, page as u32);
            if empty {
                self.remove(BITMAPS, key)?;
            } else {
                self.put(BITMAPS, key, &BitmapPage(words.to_vec()).encode())?;
            }
        }
        Ok(())
    }

    /// Removes the bitmap pages of an extent from page `from` on.
    pub(crate) fn cut_bitmap(&mut self, pv: u32, extent: u32, from: u32) -> Result<()> {
        guarded("update the catalog", || {
            let mut table = db!("update the catalog", self.txn.get()?.open_table(BITMAPS));
            let keys = (pv, extent, from)..=(pv, extent, u32::MAX);
            db!("update the catalog", table.retain_in(keys, |_, _| false));
            Ok(())
        })
    }

    /// Stores map pages, and removes the empty ones. The pages lie in no hole any more.
    pub(crate) fn put_pages<'p>(
        &mut self,
        pages: impl Iterator<Item = (PageKey, &'p MapPage)>,
    ) -> Result<()> {
        guarded("update the map", || {
            let mut table = db!("update the map", self.txn.get()?.open_table(MAP));
            let mut holes = db!("update the map", self.txn.get()?.open_table(holes::HOLES));
            for (key, page) in pages {
                holes::cut(&mut holes, key)?;
                let old = if page.is_empty() {
                    db!("update the map", table.remove(key))
                } else {
                    db!("update the map", table.insert(key, page.encode(key).as_slice()))
                };
                let old = old.map(|old| decode_page(key, old.value())).transpose()?.unwrap_or_default();
                self.usage.replace_page(key.branch, &old, page);
            }
            Ok(())
        })
    }

    /// Makes the transaction durable.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.catalog.store.check_writable()?;
        self.flush_usage()?;
        guarded("commit to the catalog", || {
            db!("commit to the catalog", self.txn.take()?.commit());
            // A reader that fell back meanwhile may not see this commit.
            self.catalog.store.check_writable()
        })?;
        self.catalog.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
