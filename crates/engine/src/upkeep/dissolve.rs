//! Dissolves deleted snapshots. Content that only a deleted snapshot needs is freed. Content that
//! an older snapshot sees too is given to that snapshot. This changes metadata only, in steps that
//! can be cut short and repeated.

use crate::branch::Branch;
use crate::catalog::page::Slot;
use crate::catalog::{Frozen, Version, VersionKey};
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::error::Result;
use crate::ids::{BranchId, SnapshotId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of versions that one commit moves or frees. A large catalog allows more.
const VERSIONS_PER_STEP: usize = 4096;
/// Number of snapshots that one commit dissolves.
const SNAPSHOTS_PER_STEP: usize = 64;

/// A deleted snapshot that nothing rests on.
struct Deleted {
    id: SnapshotId,
    branch: Arc<Branch>,
    of: Frozen,
}

/// The changes of one commit.
#[derive(Default)]
struct Step {
    gone: Vec<VersionKey>,
    kept: Vec<Version>,
    /// The number of freed slots, by branch.
    freed: BTreeMap<BranchId, (Arc<Branch>, i64)>,
    /// Snapshots that are dissolved completely.
    forgotten: Vec<Deleted>,
}

impl Destager {
    /// Dissolves several deleted snapshots that nothing rests on, or a part of a large one. False
    /// when there is no such snapshot.
    pub(super) fn dissolve(&self, state: &mut BackgroundState) -> Result<bool> {
        let chosen = self.to_dissolve(state);
        if chosen.is_empty() {
            return Ok(false);
        }
        // From here on destage preserves nothing for these snapshots, and none of them can be
        // opened. No version of one is handed down to another.
        for Deleted { branch, of, .. } in &chosen {
            branch.frozen.write().remove(&of.epoch);
            self.core.map.end_view(of.branch, of.epoch);
        }
        let mut left = self.core.catalog_room.versions(self.core.catalog.rows_per_commit(VERSIONS_PER_STEP));
        let mut step = Step::default();
        for deleted in chosen {
            let versions = self.core.catalog.versions_by_last(deleted.of.branch, deleted.of.epoch, left)?;
            let whole = versions.len() < left;
            left -= versions.len();
            step.hand_down(state, &deleted.branch, versions)?;
            if !whole {
                break;
            }
            step.forgotten.push(deleted);
        }
        self.commit_dissolved(state, step)?;
        Ok(true)
    }

    /// Returns deleted snapshots that nothing rests on, in the order in which they were made.
    fn to_dissolve(&self, state: &BackgroundState) -> Vec<Deleted> {
        let names = self.core.names.read();
        let free = |id: &SnapshotId| {
            let snapshot = names.snapshots.get(id)?;
            let line = &snapshot.state.line;
            let used =
                snapshot.state.handles.load(Ordering::Acquire) > 0 || names.has_children(line.frozen());
            (!used).then(|| Deleted { id: *id, branch: line.branch.clone(), of: line.frozen() })
        };
        state.deleted.iter().filter_map(free).take(SNAPSHOTS_PER_STEP).collect()
    }

    fn commit_dissolved(&self, state: &mut BackgroundState, step: Step) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        txn.remove_versions(step.gone.iter().copied())?;
        txn.put_versions(step.kept.iter())?;
        for (branch, freed) in step.freed.values() {
            txn.add_slots(branch.id, -freed)?;
        }
        step.forgotten.iter().try_for_each(|deleted| txn.remove_snapshot(deleted.id))?;
        self.commit_aside(state, txn, &[])?;
        for (branch, freed) in step.freed.values() {
            let slots = branch.slots.load(Ordering::Relaxed);
            branch.slots.fetch_sub((*freed as u64).min(slots), Ordering::Relaxed);
        }
        for Deleted { id, of, .. } in &step.forgotten {
            state.deleted.remove(id);
            self.core.names.write().snapshots.remove(id);
            // On a branch without a writer, the current map was what its newest snapshot saw.
            if self.core.catalog.branch(of.branch)?.is_some_and(|b| b.dead) {
                state.orphan_branches.insert(of.branch, 0);
            }
        }
        Ok(())
    }
}

impl Step {
    /// Gives versions to the next older snapshot that sees them, or frees their slots.
    fn hand_down(
        &mut self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        versions: Vec<Version>,
    ) -> Result<()> {
        let (_, freed) = self.freed.entry(branch.id).or_insert_with(|| (branch.clone(), 0));
        for version in versions {
            let VersionKey { branch: branch_id, chunk, last } = version.key;
            self.gone.push(version.key);
            match branch.newest_snapshot_seeing(version.entry.born, last) {
                Some(older) => {
                    self.kept.push(Version {
                        key: VersionKey::new(branch_id, chunk, older),
                        entry: version.entry,
                    });
                }
                None if version.entry.slot != Slot::HOLE => {
                    state.allocator.free(version.entry.slot, branch.slot_log2)?;
                    *freed += 1;
                }
                None => {}
            }
        }
        Ok(())
    }
}
