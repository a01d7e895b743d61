//! Counts of slots by the epoch in which their contents were born and the last epoch that needs
//! them. From these counts follows what each snapshot holds alone, and what it shares, without
//! reading a single chunk.
//!
//! The transaction that changes pages and versions also updates the counts, so the counts can't
//! disagree with them.

use super::page::{Entry, MapPage, Slot};
use super::store::{db, guarded};
use super::{Catalog, PageKey, Txn, UsageKey, VersionKey};
use crate::error::{Result, corrupt};
use crate::ids::{BranchId, Epoch};
use redb::{ReadableTable, TableDefinition};
use std::collections::BTreeMap;

/// The value in place of a last epoch that stands for the current map.
pub(crate) const CURRENT: Epoch = Epoch::MAX;

/// The number of slots, by key.
pub(super) const USAGE: TableDefinition<'static, UsageKey, u64> = TableDefinition::new("usage");

/// The changes of counts that a transaction gathers.
#[derive(Default)]
pub(super) struct UsageChange(BTreeMap<UsageKey, i64>);

impl UsageChange {
    pub(super) fn add(&mut self, branch: BranchId, last: Epoch, entry: Entry, slots: i64) {
        if entry.slot != Slot::HOLE {
            *self.0.entry(UsageKey { branch, last, born: entry.born }).or_insert(0) += slots;
        }
    }

    /// Returns by how many slots the versions of each branch grow.
    fn kept(&self) -> BTreeMap<BranchId, i64> {
        let mut kept = BTreeMap::new();
        for (key, change) in self.0.iter().filter(|(key, _)| key.last != CURRENT) {
            *kept.entry(key.branch).or_insert(0) += change;
        }
        kept
    }

    /// Counts the replacement of a page by another one. Entries that both pages have in common are
    /// not looked up, because the entries of a page can be of as many epochs as there are entries.
    pub(super) fn replace_page(&mut self, branch: BranchId, old: &MapPage, new: &MapPage) {
        old.each_change(new, |old, new| {
            for (entry, slots) in [(old, -1), (new, 1)] {
                entry.into_iter().for_each(|entry| self.add(branch, CURRENT, entry, slots));
            }
        });
    }
}

impl Catalog {
    /// Returns the counts of a branch: (last epoch, epoch of birth, slots).
    pub(crate) fn usage(&self, branch: BranchId) -> Result<Vec<(Epoch, Epoch, u64)>> {
        let mut found = Vec::new();
        self.visit_usage(UsageKey::of(branch), &mut |key, slots| {
            found.push((key.last, key.born, slots));
        })?;
        Ok(found)
    }

    /// Visits the counts in order.
    pub(crate) fn visit_usage(
        &self,
        keys: std::ops::RangeInclusive<UsageKey>,
        visit: &mut dyn FnMut(UsageKey, u64),
    ) -> Result<()> {
        self.store.read("read the usage", |txn| {
            let table = db!("read the usage", txn.open_table(USAGE));
            for row in db!("read the usage", table.range(keys.clone())) {
                let (key, slots) = db!("read the usage", row);
                visit(key.value(), slots.value());
            }
            Ok(())
        })
    }

    /// Counts the slots of a catalog that has no counts yet.
    pub(super) fn count_usage(&self, txn: &mut Txn<'_>) -> Result<()> {
        let mut pages = Some(PageKey::default());
        while let Some(from) = pages {
            pages = self.visit_pages(from, 1024, &mut |key, page| {
                // An operation that needs a damaged page finds the damage.
                page.iter().for_each(|page| txn.usage.replace_page(key.branch, &MapPage::default(), page));
                Ok(())
            })?;
        }
        let mut versions = Some(VersionKey::default());
        while let Some(from) = versions {
            versions = self.visit_versions(from, 4096, &mut |key, version| {
                version.iter().for_each(|v| txn.usage.add(key.branch, key.last, v.entry, 1));
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Txn<'_> {
    /// Sets a count. A repair uses it.
    pub(crate) fn put_usage(&mut self, key: UsageKey, slots: u64) -> Result<()> {
        guarded("update the usage", || {
            let mut table = db!("update the usage", self.txn.get()?.open_table(USAGE));
            match slots {
                0 => drop(db!("update the usage", table.remove(key))),
                slots => drop(db!("update the usage", table.insert(key, slots))),
            }
            Ok(())
        })
    }

    /// Returns by how many slots the transaction makes the versions of each branch grow.
    pub(crate) fn kept_change(&self) -> BTreeMap<BranchId, i64> {
        self.usage.kept()
    }

    /// Stores the changes of the transaction.
    pub(super) fn flush_usage(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.usage.0);
        if changes.is_empty() {
            // Opening the table would make it, and it says that an upgrade is complete.
            return Ok(());
        }
        guarded("update the usage", || {
            let mut table = db!("update the usage", self.txn.get()?.open_table(USAGE));
            for (key, change) in changes.iter().filter(|(_, change)| **change != 0) {
                let slots = db!("update the usage", table.get(*key)).map_or(0, |slots| slots.value());
                let slots = slots.checked_add_signed(*change).ok_or_else(|| {
                    corrupt(format!("update the usage of {key:?}: {slots} {change:+} slots"))
                })?;
                match slots {
                    0 => drop(db!("update the usage", table.remove(*key))),
                    slots => drop(db!("update the usage", table.insert(*key, slots))),
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_between_pages_is_counted() {
        let page = |entries: &[(usize, u64, u32)]| {
            let mut page = MapPage::default();
            for (at, slot, born) in entries {
                page.set(*at, Entry { slot: Slot(*slot), born: Epoch(*born) });
            }
            page
        };
        let hole = Slot::HOLE.0;
        let mut change = UsageChange::default();
        let old = page(&[(0, 8, 1), (1, 9, 1), (2, hole, 1), (3, 10, 2), (4, 11, 2)]);
        // Chunk 0 stays as it was, 1 is moved, 2 is a hole that is filled, 3 is overwritten, 4 is
        // gone, and 9 is new.
        let new = page(&[(0, 8, 1), (1, 20, 1), (2, 21, 3), (3, 22, 3), (9, 23, 3)]);
        change.replace_page(BranchId(5), &old, &new);
        let key = |born| UsageKey { branch: BranchId(5), last: CURRENT, born };
        let counted = |change: &UsageChange| -> Vec<(UsageKey, i64)> {
            change.0.iter().filter(|(_, slots)| **slots != 0).map(|(key, slots)| (*key, *slots)).collect()
        };
        assert_eq!(counted(&change), [(key(Epoch(2)), -2), (key(Epoch(3)), 3)]);
        // Both pages have all chunks. One chunk is moved, and the rest stay as they were.
        let moved = page(&[(0, 8, 1), (1, 20, 1), (2, 21, 3), (3, 22, 3), (9, 24, 4)]);
        let mut of_moved = UsageChange::default();
        of_moved.replace_page(BranchId(5), &new, &moved);
        assert_eq!(counted(&of_moved), [(key(Epoch(3)), -1), (key(Epoch(4)), 1)]);
        change.replace_page(BranchId(5), &new, &MapPage::default());
        assert_eq!(counted(&change), [(key(Epoch(1)), -2), (key(Epoch(2)), -2)]);
        assert!(change.kept().is_empty());
    }
}
