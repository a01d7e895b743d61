//! What background work is under way, for the whole pool at once.

use super::Pool;
use super::flatten::filling;
use crate::branch::VolumeState;
use crate::ids::{BranchId, SnapshotId};
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
}
