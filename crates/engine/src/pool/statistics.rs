//! Statistics that need more than reading counters.

use super::Pool;
use crate::branch::Branch;
use crate::catalog::VERSION_BYTES;
use crate::catalog::page::ENTRY_BYTES;
use crate::error::{Error, Result};
use crate::ids::BranchId;
use crate::info::{IndexSize, VolumeIndex, VolumeStatistics};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Returns all counters of one volume.
    pub fn volume_statistics(&self, name: &str) -> Result<VolumeStatistics> {
        let names = self.core.names.read();
        let state = names.volume(name)?;
        // Snapshots may be on branches that the volume left when it was rolled back.
        let lines = names.snapshots_of(state.id).into_iter().map(|s| &s.state.line.branch);
        let branches: BTreeMap<BranchId, &Arc<Branch>> =
            lines.chain([&state.line.branch]).map(|branch| (branch.id, branch)).collect();
        let mut index = VolumeIndex::default();
        for branch in branches.values() {
            let versions = branch.kept.load(Ordering::Relaxed);
            index.versions += versions;
            index.chunks += branch.slots.load(Ordering::Relaxed).saturating_sub(versions);
        }
        index.bytes = index.chunks * ENTRY_BYTES + index.versions * VERSION_BYTES;
        Ok(VolumeStatistics {
            requests: state.counters.stats(),
            preserved: state.line.branch.preserved.stats(),
            index,
            regions: state.counters.by_region(state.size.load(Ordering::Acquire)),
        })
    }

    /// Returns the size of the pool's metadata, computed from counts.
    pub fn index_size(&self) -> Result<IndexSize> {
        Ok(IndexSize {
            map_pages: self.core.catalog.page_count()?,
            versions: self.core.catalog.version_count()?,
            catalog_bytes: self.core.catalog.file_bytes().map_err(|e| Error::io("measure the catalog", e))?,
        })
    }
}
