//! Long holes: runs of whole map pages in which every chunk is a hole. A branch over a base has to
//! record its holes. A run is one row, so discarding a terabyte of a clone takes one row and not a
//! million pages.
//!
//! A page is stored, or lies in a hole, or neither, and never both. In a page that is neither, the
//! chunks have their content in the base. The code that stores a page takes it out of its hole.

use super::page::MapPage;
use super::store::{db, guarded};
use super::values::{seal, unseal};
use super::{Bytes, Catalog, MAP, PageKey, Txn, Value, decode};
use crate::error::Result;
use crate::ids::{BranchId, Epoch};
use redb::{ReadableTable, Table, TableDefinition};
use std::ops::Range;

/// Long holes, by their first pages.
pub(super) const HOLES: TableDefinition<'static, PageKey, Bytes> = TableDefinition::new("holes");

/// The value of a hole: its end and its birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoleRecord {
    /// The page behind the last page of the hole.
    pub(crate) end: u64,
    /// The epoch of the discard that made the hole.
    pub(crate) born: Epoch,
}

impl Value for HoleRecord {
    fn encode(&self) -> Vec<u8> {
        seal(1, |w| {
            w.u64(self.end).u32(self.born.0);
        })
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = unseal(bytes, 1)?;
        let value = HoleRecord { end: r.u64()?, born: Epoch(r.u32()?) };
        r.end(value)
    }
}

type Rows<'t> = Table<'t, PageKey, Bytes>;

/// Returns the hole with the greatest first page up to `page`: (first page, value).
fn at_or_before(
    table: &impl ReadableTable<PageKey, Bytes>,
    branch: BranchId,
    page: u64,
) -> Result<Option<(u64, HoleRecord)>> {
    let row =
        db!("read the holes", table.range(PageKey::new(branch, 0)..=PageKey::new(branch, page))).next_back();
    let Some(row) = row else { return Ok(None) };
    let (key, value) = db!("read the holes", row);
    let first = key.value().page;
    let record = decode(format_args!("the hole at page {first} of branch {branch}"), value.value())?;
    Ok(Some((first, record)))
}

/// Returns the pages (first, end) of the first hole that begins in `pages`.
fn first_in(
    table: &impl ReadableTable<PageKey, Bytes>,
    branch: BranchId,
    pages: Range<u64>,
) -> Result<Option<(u64, u64)>> {
    let row = db!(
        "read the holes",
        table.range(PageKey::new(branch, pages.start)..PageKey::new(branch, pages.end))
    )
    .next();
    let Some(row) = row else { return Ok(None) };
    let (key, value) = db!("read the holes", row);
    let hole: HoleRecord = decode("a hole", value.value())?;
    Ok(Some((key.value().page, hole.end)))
}

/// Returns the page, if it lies in a hole.
pub(super) fn page_in_hole(
    table: &impl ReadableTable<PageKey, Bytes>,
    PageKey { branch, page }: PageKey,
) -> Result<Option<MapPage>> {
    let hole = at_or_before(table, branch, page)?.filter(|(_, hole)| page < hole.end);
    Ok(hole.map(|(_, hole)| MapPage::hole(hole.born)))
}

/// Takes a page out of the hole that it lies in, if it lies in one.
pub(super) fn cut(table: &mut Rows<'_>, PageKey { branch, page }: PageKey) -> Result<()> {
    let Some((first, hole)) = at_or_before(&*table, branch, page)?.filter(|(_, hole)| page < hole.end) else {
        return Ok(());
    };
    put(table, branch, first..page, hole.born)?;
    put(table, branch, page + 1..hole.end, hole.born)?;
    if first == page {
        db!("update the holes", table.remove(PageKey::new(branch, first)));
    }
    Ok(())
}

fn put(table: &mut Rows<'_>, branch: BranchId, pages: Range<u64>, born: Epoch) -> Result<()> {
    if !pages.is_empty() {
        let bytes = HoleRecord { end: pages.end, born }.encode();
        db!("update the holes", table.insert(PageKey::new(branch, pages.start), bytes.as_slice()));
    }
    Ok(())
}

impl Catalog {
    /// Returns the first page of `branch` in `first..=last` for which the branch itself has a
    /// stored page or a hole.
    pub(crate) fn next_page(&self, branch: BranchId, first: u64, last: u64) -> Result<Option<u64>> {
        self.store.read("read the map", |txn| {
            let holes = db!("read the map", txn.open_table(HOLES));
            if at_or_before(&holes, branch, first)?.is_some_and(|(_, hole)| first < hole.end) {
                return Ok(Some(first));
            }
            let hole =
                db!("read the map", holes.range(PageKey::new(branch, first)..=PageKey::new(branch, last)))
                    .next();
            let hole = hole.map(|row| Ok(db!("read the map", row).0.value().page)).transpose()?;
            let pages = db!("read the map", txn.open_table(MAP));
            let page =
                db!("read the map", pages.range(PageKey::new(branch, first)..=PageKey::new(branch, last)))
                    .next();
            let page = page.map(|row| Ok(db!("read the map", row).0.value().page)).transpose()?;
            Ok(hole.into_iter().chain(page).min())
        })
    }

    /// Returns the first page of `branch` in `first..=last` that may have more than holes, as the
    /// branch is now.
    pub(crate) fn next_mapped(&self, branch: BranchId, first: u64, last: u64) -> Result<Option<u64>> {
        self.store.read("read the map", |txn| {
            let pages = db!("read the map", txn.open_table(MAP));
            let page =
                db!("read the map", pages.range(PageKey::new(branch, first)..=PageKey::new(branch, last)))
                    .next();
            page.map(|row| Ok(db!("read the map", row).0.value().page)).transpose()
        })
    }

    /// Returns the hole that a page lies in: its end and its birth.
    pub(crate) fn hole_at(&self, branch: BranchId, page: u64) -> Result<Option<HoleRecord>> {
        self.store.read("read the holes", |txn| {
            let table = db!("read the holes", txn.open_table(HOLES));
            let hole = at_or_before(&table, branch, page)?.map(|(_, hole)| hole);
            Ok(hole.filter(|hole| page < hole.end))
        })
    }

    /// Visits all holes in order, by their first pages.
    pub(crate) fn visit_holes(
        &self,
        visit: &mut dyn FnMut(PageKey, Result<HoleRecord>) -> Result<()>,
    ) -> Result<()> {
        self.store.read("read the holes", |txn| {
            let table = db!("read the holes", txn.open_table(HOLES));
            for row in db!("read the holes", table.iter()) {
                let (key, value) = db!("read the holes", row);
                let key = key.value();
                let what = format_args!("the hole at page {} of branch {}", key.page, key.branch);
                visit(key, decode(what, value.value()))?;
            }
            Ok(())
        })
    }
}

impl Txn<'_> {
    /// Makes one hole, born in `born`, of all pages that are in none yet. None of the pages may be
    /// stored.
    pub(crate) fn put_hole(&mut self, branch: BranchId, pages: Range<u64>, born: Epoch) -> Result<()> {
        guarded("update the holes", || {
            let mut table = db!("update the holes", self.txn.get()?.open_table(HOLES));
            let (mut from, mut look) = (pages.start, pages.start);
            if let Some((first, hole)) = at_or_before(&table, branch, from)? {
                if hole.end == from && hole.born == born {
                    // A hole that one step of a discard has begun grows with the next step.
                    from = first;
                } else {
                    from = from.max(hole.end);
                    look = from;
                }
            }
            while from < pages.end {
                let next = first_in(&table, branch, look..pages.end)?;
                let (end, after) = next.unwrap_or((pages.end, pages.end));
                put(&mut table, branch, from..end, born)?;
                (from, look) = (after, after);
            }
            Ok(())
        })
    }

    /// Forgets the holes of a branch.
    pub(super) fn remove_holes(&mut self, branch: BranchId) -> Result<()> {
        guarded("update the holes", || {
            let mut table = db!("update the holes", self.txn.get()?.open_table(HOLES));
            db!(
                "update the holes",
                table.retain_in(PageKey::new(branch, 0)..=PageKey::new(branch, u64::MAX), |_, _| false)
            );
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Superblock;
    use crate::disk::MemDir;
    use crate::settings::Placement;
    use crate::world::{Rng, SplitMix};
    use uuid::Uuid;

    fn catalog() -> Catalog {
        let dir = MemDir::new();
        let superblock = Superblock {
            pool: Uuid::from_bytes([1; 16]),
            extent_size: 1 << 20,
            journal_size: 1 << 20,
            segment_size: 1 << 18,
            atomic_unit: 512,
            placement: Placement::Anywhere,
            next_id: 1,
            next_pv: 0,
            features: crate::catalog::features::CATALOG_SUMS,
        };
        Catalog::create(&dir, &superblock, &[], &crate::catalog::StampRecord::default()).unwrap();
        Catalog::finish(&dir).unwrap();
        Catalog::open(&dir, 1 << 20).unwrap()
    }

    /// Compares the holes and stored pages of one branch with a plain array. The neighbouring
    /// branches stay untouched.
    #[test]
    fn agree_with_a_plain_array() {
        const PAGES: u64 = 40;
        const BRANCH: BranchId = BranchId(2);
        let catalog = catalog();
        let rng = SplitMix::new(3);
        // The state of each page of branch 2: nothing, a hole, or stored with this entry in its
        // first chunk.
        let mut plain: Vec<Option<MapPage>> = vec![None; PAGES as usize];
        let mut txn = catalog.begin().unwrap();
        txn.put_hole(BranchId(1), 0..PAGES, Epoch(7)).unwrap();
        txn.put_hole(BranchId(3), 0..PAGES, Epoch(7)).unwrap();
        txn.commit().unwrap();
        for born in (1..300).map(Epoch) {
            let mut txn = catalog.begin().unwrap();
            let start = rng.next() % PAGES;
            let end = start + 1 + rng.next() % (PAGES - start);
            if rng.next() % 2 == 0 {
                let stored: Vec<u64> = catalog.page_numbers(BRANCH, start, end - 1, usize::MAX).unwrap();
                let empty = MapPage::default();
                txn.put_pages(stored.iter().map(|n| (PageKey::new(BRANCH, *n), &empty))).unwrap();
                txn.put_hole(BRANCH, start..end, born).unwrap();
                for (page, n) in plain[start as usize..end as usize].iter_mut().zip(start..) {
                    if page.is_none() || stored.contains(&n) {
                        *page = Some(MapPage::hole(born));
                    }
                }
            } else {
                let page = MapPage::hole(Epoch(1000 + born.0));
                txn.put_pages([(PageKey::new(BRANCH, start), &page)].into_iter()).unwrap();
                plain[start as usize] = Some(page);
            }
            if rng.next() % 40 == 0 {
                txn.remove_holes(BRANCH).unwrap();
                let is_hole = |p: &MapPage| p.get(0).is_some_and(|e| e.born < Epoch(1000));
                plain.iter_mut().for_each(|p| drop(p.take_if(|p| is_hole(p))));
            }
            txn.commit().unwrap();
            for (n, expected) in plain.iter().enumerate() {
                assert_eq!(
                    &catalog.page(PageKey::new(BRANCH, n as u64)).unwrap(),
                    expected,
                    "page {n} after step {born}"
                );
                let next = (n as u64..PAGES).find(|n| plain[*n as usize].is_some());
                assert_eq!(catalog.next_page(BRANCH, n as u64, PAGES - 1).unwrap(), next);
            }
        }
        for branch in [BranchId(1), BranchId(3)] {
            assert_eq!(catalog.page(PageKey::new(branch, PAGES - 1)).unwrap(), Some(MapPage::hole(Epoch(7))));
            assert_eq!(catalog.page(PageKey::new(branch, PAGES)).unwrap(), None);
        }
    }

    #[test]
    fn steps_of_one_discard_make_one_hole() {
        let catalog = catalog();
        let mut txn = catalog.begin().unwrap();
        (0..10).for_each(|n| txn.put_hole(BranchId(1), n * 100..(n + 1) * 100, Epoch(4)).unwrap());
        txn.commit().unwrap();
        let mut found = Vec::new();
        catalog
            .visit_holes(&mut |key, hole| {
                found.push((key, hole?));
                Ok(())
            })
            .unwrap();
        assert_eq!(found, [(PageKey::new(BranchId(1), 0), HoleRecord { end: 1000, born: Epoch(4) })]);
    }
}
