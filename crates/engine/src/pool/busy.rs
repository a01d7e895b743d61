//! What background work is under way, for the whole pool at once.

use super::Pool;
use super::flatten::filling;
use crate::branch::Branch;
use crate::branch::VolumeState;
use crate::ids::{BranchId, SnapshotId};
use crate::info::recompression::RecompressInfo;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// Returns the names of the volumes that are being flattened, relocated, or filled by an
    /// import. The cost does not grow with the size of the volumes.
    pub fn busy_volumes(&self) -> Vec<String> {
        let relocated: BTreeSet<BranchId> = self.destager.state.lock().relocating.keys().copied().collect();
        let names = self.core.names.read();
        let any_fills = names.branches.values().any(|branch| branch.filling.load(Ordering::Acquire));
        let is_busy = |volume: &&Arc<VolumeState>| {
            volume.importing.load(Ordering::Acquire)
                || relocated.contains(&volume.line.branch.id)
                || (any_fills && !filling(&names, volume).is_empty())
        };
        names.by_name.values().filter(is_busy).map(|volume| volume.name.read().clone()).collect()
    }

    /// Returns whether a deleted snapshot is being dissolved. A deleted snapshot that another
    /// branch depends on, or that a client reads, waits and does not count.
    pub fn is_dissolving(&self) -> bool {
        let deleted: Vec<SnapshotId> = self.destager.state.lock().deleted.iter().copied().collect();
        let names = self.core.names.read();
        let is_free = |id: &SnapshotId| {
            names.snapshots.get(id).is_some_and(|snapshot| {
                let line = &snapshot.state.line;
                snapshot.state.handles.load(Ordering::Acquire) == 0 && !names.has_children(line.frozen())
            })
        };
        deleted.iter().any(is_free)
    }

    /// Returns the bytes that are left to free of volumes that were deleted for good, and of
    /// volumes as they were before a rollback: `None` if there is nothing to free. What only
    /// deleted snapshots need does not count. The history of which a client reads a moment waits,
    /// and does not count.
    pub fn freeing(&self) -> Option<u64> {
        let (orphans, volumes) = {
            let state = self.destager.state.lock();
            let orphans: Vec<BranchId> = state.orphan_branches.keys().copied().collect();
            (orphans, state.deleted_with_history.clone())
        };
        let is_free = |branch: &Branch| branch.cdp.oldest_pin().is_none();
        let histories = volumes.into_iter().flat_map(|volume| self.core.stretches(volume));
        let histories: Vec<u64> = histories
            .filter(|stretch| is_free(&stretch.branch))
            .map(|stretch| stretch.branch.cdp.log.read().held())
            .collect();
        let names = self.core.names.read();
        let data: Vec<u64> = orphans
            .iter()
            .filter_map(|id| names.branches.get(id))
            .filter(|branch| is_free(branch))
            .map(|branch| {
                // Versions belong to snapshots.
                let slots = branch.slots.load(Ordering::Relaxed);
                slots.saturating_sub(branch.kept.load(Ordering::Relaxed)) << branch.slot_log2
            })
            .collect();
        let is_idle = data.is_empty() && histories.is_empty();
        (!is_idle).then(|| data.iter().chain(&histories).sum())
    }

    /// Returns what is left of the recompression of history: `None` if there is nothing to
    /// compress. The cost grows with the number of segments that wait.
    pub fn recompressing(&self) -> Option<RecompressInfo> {
        self.destager.recompression()
    }
}
