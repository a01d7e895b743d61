//! Maps: where a branch's chunks are, read through one bounded cache for the whole pool.

pub(crate) mod cache;
pub(crate) mod page;

use crate::catalog::Catalog;
use crate::error::Result;
use crate::fault::Fault;
use cache::{Cache, CacheStats};
use page::{MapPage, PageKey};
use std::sync::Arc;

/// See the module.
pub(crate) struct Map {
    catalog: Arc<Catalog>,
    cache: Cache<PageKey, Arc<MapPage>>,
    fault: Arc<Fault>,
}

impl Map {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        policy: crate::pool::CachePolicy,
        bytes: usize,
        fault: Arc<Fault>,
    ) -> Self {
        Map { catalog, cache: Cache::new(policy, bytes), fault }
    }

    /// The page from the cache only.
    pub(crate) fn cached(&self, key: PageKey) -> Option<Arc<MapPage>> {
        self.cache.get(&key)
    }

    /// The page; one that was never stored is empty, and cached like the others.
    pub(crate) fn load(&self, key: PageKey) -> Result<Arc<MapPage>> {
        if let Some(page) = self.cache.get(&key) {
            return Ok(page);
        }
        loop {
            let generation = self.cache.generation(&key);
            let page = self.read(key)?;
            let weight = page.weight();
            // Refused when a destage published something meanwhile: what was read may be old.
            if self.cache.insert_if(key, page.clone(), weight, generation) {
                return Ok(page);
            }
        }
    }

    /// The page as stored, past the cache: for the destager, the only one that changes it.
    pub(crate) fn read(&self, key: PageKey) -> Result<Arc<MapPage>> {
        let page = self.catalog.page(key).inspect_err(|e| self.fault.damage(e))?;
        Ok(Arc::new(page.unwrap_or_default()))
    }

    /// Replaces pages after their commit.
    pub(crate) fn publish(&self, key: PageKey, page: MapPage) {
        let page = Arc::new(page);
        let weight = page.weight();
        self.cache.publish(key, page, weight);
    }

    /// Forgets the pages of a branch that is gone.
    pub(crate) fn forget_branch(&self, branch: u64) {
        self.cache.invalidate_where(|key| key.0 == branch);
    }

    pub(crate) fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
}
