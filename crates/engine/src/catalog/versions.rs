//! Versions: contents that were overwritten. Each is valid for the snapshots from the epoch in
//! which it was born to the last epoch that needs it. An index by that last epoch lets the deletion
//! of a snapshot visit only what the snapshot owns.

use super::keys::ByLast;
use super::page::Entry;
use super::store::{db, guarded};
use super::{Catalog, Txn, Value, VersionKey, decode};
use crate::error::Result;
use crate::ids::{BranchId, Chunk, Epoch};
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};

/// The content of a chunk for the snapshots of a branch in the epochs `entry.born..=key.last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) key: VersionKey,
    pub(crate) entry: Entry,
}

pub(super) const VERSIONS: TableDefinition<'static, VersionKey, &'static [u8]> =
    TableDefinition::new("versions");
/// The index of versions by their last epoch.
pub(super) const BY_LAST: TableDefinition<'static, ByLast, ()> = TableDefinition::new("versions_by_last");

fn version(key: VersionKey, bytes: &[u8]) -> Result<Version> {
    let entry =
        decode(format_args!("version {} of chunk {} of branch {}", key.last, key.chunk, key.branch), bytes)?;
    Ok(Version { key, entry })
}

/// Number of rows that a query of versions passes over, one after another, before it seeks the next
/// row that it needs.
const MAX_PASSED: u32 = 8;

/// The bytes that a version takes: its key, its sealed entry, and its key in the index.
pub(crate) const VERSION_BYTES: u64 = 20 + 17 + 20;

impl Catalog {
    /// Returns the number of versions.
    pub(crate) fn version_count(&self) -> Result<u64> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            Ok(db!("read versions", table.len()))
        })
    }

    /// Returns the versions that a snapshot of `branch` at `epoch` sees of the chunks in `chunks`
    /// (first, last). Of each chunk that is the version with the smallest last epoch that is not
    /// below `epoch`, if it was born by then.
    pub(crate) fn versions_at(
        &self,
        branch: BranchId,
        epoch: Epoch,
        chunks: (Chunk, Chunk),
    ) -> Result<Vec<Version>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            let mut found = Vec::new();
            let (mut from, last) = (VersionKey::new(branch, chunks.0, epoch), chunks.1);
            // The last chunk whose version is known. The query passes over its other rows.
            let mut known = None;
            'seek: while from.chunk <= last {
                let rows = table.range(from..=VersionKey::new(branch, last, Epoch::MAX));
                let mut passed = 0;
                for row in db!("read versions", rows) {
                    let (key, value) = db!("read versions", row);
                    let key = key.value();
                    let is_known = known == Some(key.chunk);
                    if !is_known && key.last >= epoch {
                        known = Some(key.chunk);
                        passed = 0;
                        let version = version(key, value.value())?;
                        if version.entry.born <= epoch {
                            found.push(version);
                        }
                        continue;
                    }
                    passed += 1;
                    if passed == MAX_PASSED {
                        let chunk = if is_known { key.chunk.next() } else { key.chunk };
                        from = VersionKey::new(branch, chunk, epoch);
                        continue 'seek;
                    }
                }
                break;
            }
            Ok(found)
        })
    }

    /// Returns all versions of one chunk of `branch`, oldest first.
    pub(crate) fn versions_of(&self, branch: BranchId, chunk: Chunk) -> Result<Vec<Version>> {
        self.versions_in(branch, chunk..chunk.next())
    }

    /// Returns all versions of the chunks `chunks` of `branch`, in order.
    pub(crate) fn versions_in(
        &self,
        branch: BranchId,
        chunks: std::ops::Range<Chunk>,
    ) -> Result<Vec<Version>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            let range = VersionKey::new(branch, chunks.start, Epoch::NONE)
                ..VersionKey::new(branch, chunks.end, Epoch::NONE);
            let rows = db!("read versions", table.range(range));
            rows.map(|row| {
                let (key, value) = db!("read versions", row);
                version(key.value(), value.value())
            })
            .collect()
        })
    }

    /// Returns the first chunk of `branch` at or after `chunk` that has any version.
    pub(crate) fn next_version(&self, branch: BranchId, chunk: Chunk) -> Result<Option<Chunk>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            let next = db!(
                "read versions",
                table.range(
                    VersionKey::new(branch, chunk, Epoch::NONE)
                        ..=VersionKey::new(branch, Chunk::MAX, Epoch::MAX)
                )
            )
            .next();
            next.map(|row| Ok(db!("read versions", row).0.value().chunk)).transpose()
        })
    }

    /// Returns up to `limit` versions of `branch` whose last epoch is `last`, in the order of
    /// chunks.
    pub(crate) fn versions_by_last(
        &self,
        branch: BranchId,
        last: Epoch,
        limit: usize,
    ) -> Result<Vec<Version>> {
        self.store.read("read versions", |txn| {
            let index = db!("read versions", txn.open_table(BY_LAST));
            let table = db!("read versions", txn.open_table(VERSIONS));
            let mut found = Vec::new();
            let rows = db!(
                "read versions",
                index.range(
                    ByLast { branch, last, chunk: Chunk::FIRST }..=ByLast { branch, last, chunk: Chunk::MAX }
                )
            );
            for row in rows.take(limit) {
                let key = db!("read versions", row).0.value().version();
                let value = db!("read versions", table.get(key));
                let value = value.ok_or_else(|| {
                    crate::error::corrupt(format!(
                        "find version {last} of chunk {} of branch {branch}",
                        key.chunk
                    ))
                })?;
                found.push(version(key, value.value())?);
            }
            Ok(found)
        })
    }

    /// Visits all versions in order from `from`, at most `limit`. Returns the key after the last
    /// one, if there are more.
    pub(crate) fn visit_versions(
        &self,
        from: VersionKey,
        limit: usize,
        visit: &mut dyn FnMut(VersionKey, Result<Version>) -> Result<()>,
    ) -> Result<Option<VersionKey>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            for (n, row) in db!("read versions", table.range(from..)).enumerate() {
                let (key, value) = db!("read versions", row);
                let key = key.value();
                if n == limit {
                    return Ok(Some(key));
                }
                visit(key, version(key, value.value()))?;
            }
            Ok(None)
        })
    }

    /// Returns the keys of `keys` that the index by last epoch lacks.
    pub(crate) fn not_indexed(&self, keys: &[VersionKey]) -> Result<Vec<VersionKey>> {
        self.store.read("read versions", |txn| {
            let index = db!("read versions", txn.open_table(BY_LAST));
            let mut missing = Vec::new();
            for key in keys {
                if db!("read versions", index.get(key.by_last())).is_none() {
                    missing.push(*key);
                }
            }
            Ok(missing)
        })
    }

    /// Returns the number of entries of the index by last epoch.
    pub(crate) fn index_count(&self) -> Result<u64> {
        self.store.read("read versions", |txn| {
            let index = db!("read versions", txn.open_table(BY_LAST));
            Ok(db!("read versions", index.len()))
        })
    }

    /// Visits entries of the index by last epoch for which there is no version.
    pub(crate) fn visit_dangling(&self, visit: &mut dyn FnMut(VersionKey)) -> Result<()> {
        self.store.read("read versions", |txn| {
            let index = db!("read versions", txn.open_table(BY_LAST));
            let table = db!("read versions", txn.open_table(VERSIONS));
            for row in db!("read versions", index.iter()) {
                let key = db!("read versions", row).0.value().version();
                if db!("read versions", table.get(key)).is_none() {
                    visit(key);
                }
            }
            Ok(())
        })
    }
}

impl Txn<'_> {
    pub(crate) fn put_versions<'v>(&mut self, versions: impl Iterator<Item = &'v Version>) -> Result<()> {
        guarded("update versions", || {
            let mut table = db!("update versions", self.txn.get()?.open_table(VERSIONS));
            let mut index = db!("update versions", self.txn.get()?.open_table(BY_LAST));
            for Version { key, entry } in versions {
                let old = db!("update versions", table.insert(*key, entry.encode().as_slice()));
                if let Some(old) = old {
                    self.usage.add(key.branch, key.last, version(*key, old.value())?.entry, -1);
                }
                self.usage.add(key.branch, key.last, *entry, 1);
                db!("update versions", index.insert(key.by_last(), ()));
            }
            Ok(())
        })
    }

    pub(crate) fn remove_versions(&mut self, keys: impl Iterator<Item = VersionKey>) -> Result<()> {
        guarded("update versions", || {
            let mut table = db!("update versions", self.txn.get()?.open_table(VERSIONS));
            let mut index = db!("update versions", self.txn.get()?.open_table(BY_LAST));
            for key in keys {
                if let Some(old) = db!("update versions", table.remove(key)) {
                    self.usage.add(key.branch, key.last, version(key, old.value())?.entry, -1);
                }
                db!("update versions", index.remove(key.by_last()));
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::page::Slot;

    #[test]
    fn a_version_takes_what_is_said() {
        let entry = Entry { slot: Slot::new(1, 4096), born: Epoch(7) };
        let key = <VersionKey as redb::Value>::fixed_width().unwrap();
        let by_last = <ByLast as redb::Value>::fixed_width().unwrap();
        assert_eq!(VERSION_BYTES, (key + entry.encode().len() + by_last) as u64);
    }
}
