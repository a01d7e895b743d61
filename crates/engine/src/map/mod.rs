//! Maps: the places of a line's chunks, read through one bounded cache for the whole pool.
//!
//! A branch's current map is stored in pages. A snapshot's page consists of the entries of the
//! current page that were born by then, and of the versions that were overwritten since. It is
//! cached as a page of its own, so a chunk takes one look-up, however many snapshots there are.

pub(crate) mod cache;

use crate::branch::{HEAD, View};
use crate::catalog::Catalog;
use crate::catalog::PageKey;
use crate::catalog::page::{CHUNKS, MapPage};
use crate::error::Result;
use crate::fault::Fault;
use crate::ids::{BranchId, Chunk, Epoch};
use cache::{Cache, CacheStats};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The number of snapshots with pages in the cache above which a change removes the pages of all of
/// them at once.
const MOST_VIEWS: usize = 64;

/// The cached pages, by (branch, page number, epoch).
type PageCache = Cache<(BranchId, u64, Epoch), Arc<MapPage>>;

/// The maps of all branches of a pool, with the cache of their pages. All threads share it. The
/// destager alone changes the stored pages.
pub(crate) struct Map {
    catalog: Arc<Catalog>,
    cache: PageCache,
    /// The snapshots in use that may have pages in the cache, as (branch, epoch). Many of them have
    /// none.
    viewed: RwLock<BTreeSet<(BranchId, Epoch)>>,
    fault: Arc<Fault>,
}

/// The part of a map page that a line itself has, apart from its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// The line has nothing of the page: the content is that of its base.
    Nothing,
    /// The page lies in a long hole that was born in this epoch.
    Hole(Epoch),
    /// The line may have chunks in the page.
    Page,
}

impl Map {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        policy: crate::settings::CachePolicy,
        bytes: usize,
        fault: Arc<Fault>,
    ) -> Self {
        Map { catalog, cache: PageCache::new(policy, bytes), viewed: RwLock::default(), fault }
    }

    /// Returns the page as `line` sees it, from the cache only.
    pub(crate) fn cached(&self, line: &View, number: u64) -> Option<Arc<MapPage>> {
        self.cache.get(&(line.branch.id, number, line.epoch))
    }

    /// Returns the page as `line` sees it. A page that was never stored is empty, and is cached
    /// like the others.
    pub(crate) fn load(&self, line: &View, number: u64) -> Result<Arc<MapPage>> {
        let key = (line.branch.id, number, line.epoch);
        if let Some(page) = self.cache.get(&key) {
            return Ok(page);
        }
        let view = (line.branch.id, line.epoch);
        loop {
            let generation = self.cache.generation(&key);
            // This comes after the generation is taken, and before the catalog is read. A later
            // change of the catalog then finds the view here, or the cache refuses the page.
            if line.epoch != HEAD && !self.viewed.read().contains(&view) {
                self.viewed.write().insert(view);
            }
            let page = if line.epoch == HEAD {
                self.read(PageKey::new(key.0, number))?
            } else {
                self.frozen_page(line, number)?
            };
            let weight = page.weight() + PageCache::BOOKKEEPING;
            // Refused when a destage published something meanwhile: what was read may be old.
            if self.cache.insert_if(key, page.clone(), weight, generation) {
                return Ok(page);
            }
        }
    }

    /// Builds the page as a snapshot sees it. The current page is read first: an entry that leaves
    /// it afterwards is still at its place, and an entry that has left it before is among the
    /// versions.
    fn frozen_page(&self, line: &View, number: u64) -> Result<Arc<MapPage>> {
        let current = self.read(PageKey::new(line.branch.id, number))?;
        let chunks = (Chunk::first_of(number), Chunk::in_page(number, CHUNKS as usize - 1));
        let versions = self.catalog.versions_at(line.branch.id, line.epoch, chunks);
        let mut page = MapPage::default();
        for version in versions.inspect_err(|e| self.fault.damage(e))? {
            page.set(MapPage::locate(version.key.chunk).1, version.entry);
        }
        for (at, entry) in current.iter().filter(|(_, e)| e.born <= line.epoch) {
            page.set(at, entry);
        }
        Ok(Arc::new(page))
    }

    /// Returns the first page in `first..=last` in which `line` may have entries of its own.
    pub(crate) fn next_page(&self, line: &View, first: u64, last: u64) -> Result<Option<u64>> {
        let current = self.catalog.next_page(line.branch.id, first, last)?;
        if line.epoch == HEAD {
            return Ok(current);
        }
        let version = self.catalog.next_version(line.branch.id, Chunk::first_of(first))?;
        let version = version.map(Chunk::page).filter(|page| *page <= last);
        Ok(current.into_iter().chain(version).min())
    }

    /// Returns what `line` itself has of page `number`. Shortens the span `number..end` to the
    /// pages that are all alike.
    pub(crate) fn held(&self, line: &View, number: u64, end: &mut u64) -> Result<Held> {
        let hole = self.catalog.hole_at(line.branch.id, number)?;
        let next = match hole {
            Some(hole) => {
                *end = hole.end.min(*end);
                if hole.born <= line.epoch {
                    return Ok(Held::Hole(hole.born));
                }
                // It came later: the line sees what was there before.
                let version = self.catalog.next_version(line.branch.id, Chunk::first_of(number))?;
                version.map(Chunk::page)
            }
            None => self.next_page(line, number, *end - 1)?,
        };
        if next == Some(number) {
            return Ok(Held::Page);
        }
        *end = next.map_or(*end, |next| next.min(*end));
        Ok(Held::Nothing)
    }

    /// Returns the first page in `first..=last` in which `line` may have content of its own. Long
    /// holes, which may have more pages than can be searched, are passed. A hole that was passed
    /// may hide content of the levels below. A caller that also searches these levels then finds
    /// hidden content in vain.
    pub(crate) fn next_content(&self, line: &View, first: u64, last: u64) -> Result<Option<u64>> {
        let current = self.catalog.next_mapped(line.branch.id, first, last)?;
        if line.epoch == HEAD {
            return Ok(current);
        }
        let version = self.catalog.next_version(line.branch.id, Chunk::first_of(first))?;
        let version = version.map(Chunk::page).filter(|page| *page <= last);
        Ok(current.into_iter().chain(version).min())
    }

    /// Reads the page as stored, past the cache. It is for the destager, which alone changes the
    /// page.
    pub(crate) fn read(&self, key: PageKey) -> Result<Arc<MapPage>> {
        let page = self.catalog.page(key).inspect_err(|e| self.fault.damage(e))?;
        Ok(Arc::new(page.unwrap_or_default()))
    }

    /// Replaces the cached current page, after the commit of the new one.
    pub(crate) fn publish(&self, key: PageKey, page: MapPage) {
        let page = Arc::new(page);
        let weight = page.weight() + PageCache::BOOKKEEPING;
        self.cache.publish((key.branch, key.page, HEAD), page, weight);
    }

    /// Removes from the cache the given pages of a branch as its snapshots with epoch `epoch` or
    /// later see them.
    pub(crate) fn forget_views(
        &self,
        branch: BranchId,
        epoch: Epoch,
        numbers: impl Iterator<Item = u64> + Clone,
    ) {
        let views: Vec<Epoch> =
            self.viewed.read().range((branch, epoch)..(branch, HEAD)).map(|(_, view)| *view).collect();
        if views.len() > MOST_VIEWS {
            let later = |of: BranchId, view: Epoch| of == branch && (epoch..HEAD).contains(&view);
            self.viewed.write().retain(|(of, view)| !later(*of, *view));
            return self.cache.invalidate_where(|key| later(key.0, key.2));
        }
        for view in views {
            numbers.clone().for_each(|number| self.cache.invalidate(&(branch, number, view)));
        }
    }

    /// Notes that this snapshot's view is not used any more.
    pub(crate) fn end_view(&self, branch: BranchId, epoch: Epoch) {
        self.viewed.write().remove(&(branch, epoch));
    }

    /// Removes from the cache all pages of a branch as its snapshots see them, because places have
    /// changed.
    pub(crate) fn forget_frozen(&self, branch: BranchId) {
        self.cache.invalidate_where(|key| key.0 == branch && key.2 != HEAD);
    }

    /// Removes from the cache the given pages of a branch, as the volume and its snapshots see
    /// them.
    pub(crate) fn forget_pages(&self, branch: BranchId, pages: Range<u64>) {
        self.cache.invalidate_where(|key| key.0 == branch && pages.contains(&key.1));
    }

    /// Removes from the cache the pages of a branch that is gone.
    pub(crate) fn forget_branch(&self, branch: BranchId) {
        self.cache.invalidate_where(|key| key.0 == branch);
        self.viewed.write().retain(|view| view.0 != branch);
    }

    pub(crate) fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
}
