//! Deleting snapshots: what only a deleted snapshot needs is freed, what an older one sees too is handed to it. Metadata
//! only, in steps that can be cut short and repeated.

use crate::catalog::{Frozen, Version};
use crate::error::Result;
use crate::map::page::Slot;
use crate::pool::line::Branch;
use crate::pool::{Maintenance, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Versions that one commit moves or frees.
const VERSIONS_PER_STEP: usize = 4096;

impl Pool {
    /// Takes note of every snapshot that the catalog calls deleted.
    pub(super) fn note_deleted(&self, m: &mut Maintenance) -> Result<()> {
        let snapshots = self.catalog.snapshots()?;
        let anchors = self.anchors();
        let gone = snapshots.into_iter().filter(|(id, s)| s.deleted && !anchors.contains(id));
        m.deleted.extend(gone.map(|(id, _)| id));
        Ok(())
    }

    /// Dissolves a part of a deleted snapshot that nothing rests on. False when there is none.
    pub(super) fn dissolve(&self, m: &mut Maintenance) -> Result<bool> {
        let free = |id: &u64| {
            let names = self.names.read();
            let snapshot = names.snapshots.get(id)?;
            let line = &snapshot.state.line;
            let used =
                snapshot.state.handles.load(Ordering::Acquire) > 0 || names.has_children(line.frozen());
            (!used).then(|| (*id, line.branch.clone(), line.frozen()))
        };
        let Some((id, branch, of)) = m.deleted.iter().find_map(free) else { return Ok(false) };
        // From here on nothing more is preserved for it, and nobody can open it any more.
        branch.frozen.write().remove(&of.epoch);
        self.map.end_view(of.branch, of.epoch);
        let most = self.catalog_room.versions(VERSIONS_PER_STEP);
        let versions = self.catalog.versions_by_last(of.branch, of.epoch, most)?;
        if versions.is_empty() {
            self.forget_snapshot(m, id, of)?;
        } else {
            self.hand_down(m, &branch, versions)?;
        }
        Ok(true)
    }

    /// Gives versions to the next older snapshot that sees them, or frees their slots.
    fn hand_down(&self, m: &mut Maintenance, branch: &Arc<Branch>, versions: Vec<Version>) -> Result<()> {
        let mut kept = Vec::new();
        let mut freed = 0i64;
        for version in &versions {
            let (branch_id, chunk, last) = version.key;
            match branch.keeper(version.entry.born, last) {
                Some(older) => kept.push(Version { key: (branch_id, chunk, older), entry: version.entry }),
                None if version.entry.slot != Slot::HOLE => {
                    m.allocator.free(version.entry.slot, branch.slot_log2)?;
                    freed += 1;
                }
                None => {}
            }
        }
        let mut txn = self.catalog.begin()?;
        txn.remove_versions(versions.iter().map(|v| v.key))?;
        txn.put_versions(kept.iter())?;
        self.put_branch_slots(&mut txn, branch, -freed)?;
        self.commit_aside(m, txn, &[])?;
        branch.slots.fetch_sub((freed as u64).min(branch.slots.load(Ordering::Relaxed)), Ordering::Relaxed);
        Ok(())
    }

    fn forget_snapshot(&self, m: &mut Maintenance, id: u64, of: Frozen) -> Result<()> {
        let mut txn = self.catalog.begin()?;
        txn.remove_snapshot(id)?;
        self.commit_aside(m, txn, &[])?;
        m.deleted.remove(&id);
        self.names.write().snapshots.remove(&id);
        // On a branch without a writer the current map was what its newest snapshot saw.
        if self.catalog.branch(of.branch)?.is_some_and(|b| b.dead) {
            m.dead.insert(of.branch, 0);
        }
        Ok(())
    }
}
