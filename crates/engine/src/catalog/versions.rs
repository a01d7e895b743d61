//! Versions: contents that were overwritten. Each is valid for the snapshots from the epoch in
//! which it was born to the last epoch that needs it. An index by that last epoch lets the deletion
//! of a snapshot visit only what the snapshot owns.

use super::page::Entry;
use super::store::{db, guarded};
use super::{Catalog, Txn, Value, decode};
use crate::error::Result;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};

/// The key of a version: (branch, chunk, last epoch).
pub(crate) type VersionKey = (u64, u64, u32);

/// The content of chunk `key.1` for the snapshots of branch `key.0` in `entry.born..=key.2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) key: VersionKey,
    pub(crate) entry: Entry,
}

pub(super) const VERSIONS: TableDefinition<'static, VersionKey, &'static [u8]> =
    TableDefinition::new("versions");
/// The index of versions by their last epoch: (branch, last epoch, chunk).
pub(super) const BY_LAST: TableDefinition<'static, (u64, u32, u64), ()> =
    TableDefinition::new("versions_by_last");

fn version(key: VersionKey, bytes: &[u8]) -> Result<Version> {
    let entry = decode(format_args!("version {} of chunk {} of branch {}", key.2, key.1, key.0), bytes)?;
    Ok(Version { key, entry })
}

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
    pub(crate) fn versions_at(&self, branch: u64, epoch: u32, chunks: (u64, u64)) -> Result<Vec<Version>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            let mut found = Vec::new();
            let (mut chunk, last) = chunks;
            while chunk <= last {
                // One look per chunk that has versions at all: chunks in between are skipped.
                let next =
                    db!("read versions", table.range((branch, chunk, epoch)..=(branch, last, u32::MAX)))
                        .next();
                let Some(row) = next else { break };
                let (key, value) = db!("read versions", row);
                let key = key.value();
                if key.1 > chunk && key.2 < epoch {
                    chunk = key.1;
                    continue;
                }
                if key.2 >= epoch {
                    let version = version(key, value.value())?;
                    if version.entry.born <= epoch {
                        found.push(version);
                    }
                }
                chunk = key.1 + 1;
            }
            Ok(found)
        })
    }

    /// Returns all versions of one chunk of `branch`, oldest first.
    pub(crate) fn versions_of(&self, branch: u64, chunk: u64) -> Result<Vec<Version>> {
        self.versions_in(branch, chunk..chunk + 1)
    }

    /// Returns all versions of the chunks `chunks` of `branch`, in order.
    pub(crate) fn versions_in(&self, branch: u64, chunks: std::ops::Range<u64>) -> Result<Vec<Version>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            let range = (branch, chunks.start, 0)..(branch, chunks.end, 0);
            let rows = db!("read versions", table.range(range));
            rows.map(|row| {
                let (key, value) = db!("read versions", row);
                version(key.value(), value.value())
            })
            .collect()
        })
    }

    /// Returns the first chunk of `branch` at or after `chunk` that has any version.
    pub(crate) fn next_version(&self, branch: u64, chunk: u64) -> Result<Option<u64>> {
        self.store.read("read versions", |txn| {
            let table = db!("read versions", txn.open_table(VERSIONS));
            let next =
                db!("read versions", table.range((branch, chunk, 0)..=(branch, u64::MAX, u32::MAX))).next();
            next.map(|row| Ok(db!("read versions", row).0.value().1)).transpose()
        })
    }

    /// Returns up to `limit` versions of `branch` whose last epoch is `last`, in the order of
    /// chunks.
    pub(crate) fn versions_by_last(&self, branch: u64, last: u32, limit: usize) -> Result<Vec<Version>> {
        self.store.read("read versions", |txn| {
            let index = db!("read versions", txn.open_table(BY_LAST));
            let table = db!("read versions", txn.open_table(VERSIONS));
            let mut found = Vec::new();
            let rows = db!("read versions", index.range((branch, last, 0)..=(branch, last, u64::MAX)));
            for row in rows.take(limit) {
                let chunk = db!("read versions", row).0.value().2;
                let key = (branch, chunk, last);
                let value = db!("read versions", table.get(key));
                let value = value.ok_or_else(|| {
                    crate::error::corrupt(format!("find version {last} of chunk {chunk} of branch {branch}"))
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
                if db!("read versions", index.get((key.0, key.2, key.1))).is_none() {
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
                let (branch, last, chunk) = db!("read versions", row).0.value();
                if db!("read versions", table.get((branch, chunk, last))).is_none() {
                    visit((branch, chunk, last));
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
                    self.usage.add(key.0, key.2, version(*key, old.value())?.entry, -1);
                }
                self.usage.add(key.0, key.2, *entry, 1);
                db!("update versions", index.insert((key.0, key.2, key.1), ()));
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
                    self.usage.add(key.0, key.2, version(key, old.value())?.entry, -1);
                }
                db!("update versions", index.remove((key.0, key.2, key.1)));
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
        let entry = Entry { slot: Slot::new(1, 4096), born: 7 };
        let key = <VersionKey as redb::Value>::fixed_width().unwrap();
        let by_last = <(u64, u32, u64) as redb::Value>::fixed_width().unwrap();
        assert_eq!(VERSION_BYTES, (key + entry.encode().len() + by_last) as u64);
    }
}
