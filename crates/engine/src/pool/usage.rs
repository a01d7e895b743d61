//! The space that snapshots take: how much each holds alone, how much a volume's snapshots take
//! together, and which volumes exceed their reserve.

use super::Pool;
use crate::branch::Branch;
use crate::branch::namespace::Snapshot;
use crate::error::Result;
use crate::ids::{BranchId, Epoch};
use crate::info::{SnapshotSpace, SpaceUsage};
use crate::sequence::deletion::{Tally, is_over, reserve, taken};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Pool {
    /// Returns the space of a volume and of each of its visible snapshots, oldest first, as of the
    /// last destage. It is computed from counts, whatever the volume's size.
    pub fn space_usage(&self, volume: &str) -> Result<SpaceUsage> {
        let (live, branches, snapshots, reserve) = {
            let names = self.core.names.read();
            let state = names.volume(volume)?;
            let snapshots: Vec<Arc<Snapshot>> = names.snapshots_of(state.id).into_iter().cloned().collect();
            let line = state.line.branch.clone();
            let mut branches: BTreeMap<BranchId, Arc<Branch>> = [(line.id, line.clone())].into();
            branches.extend(snapshots.iter().map(|s| (s.state.line.branch.id, s.state.line.branch.clone())));
            (line.id, branches, snapshots, reserve(state))
        };
        let mut usage = SpaceUsage { current: 0, snapshots: 0, reserve, of: Vec::new() };
        let mut tallies = BTreeMap::new();
        for (id, branch) in branches {
            let epochs: Vec<Epoch> = branch.frozen.read().iter().copied().collect();
            let tally = Tally::new(epochs, &self.core.catalog.usage(id)?, id == live);
            usage.current += tally.current << branch.slot_log2;
            usage.snapshots += tally.kept << branch.slot_log2;
            tallies.insert(id, tally);
        }
        usage.of = snapshots
            .iter()
            .filter_map(|snapshot| {
                let line = &snapshot.state.line;
                let tally = tallies.get(&line.branch.id)?;
                let at = tally.epochs.binary_search(&line.epoch).ok()?;
                let slot_log2 = line.branch.slot_log2;
                let name = snapshot.state.name.read().clone();
                let (unique, referenced) = (tally.unique[at] << slot_log2, tally.referenced[at] << slot_log2);
                Some(SnapshotSpace { name, unique, shared: referenced - unique })
            })
            .collect();
        Ok(usage)
    }

    /// Returns the volumes whose snapshots take more than their reserve: (volume, bytes, reserve).
    /// A volume with a history has no reserve, since the space of its snapshots can't be told from
    /// that of its anchors.
    pub fn over_reserve(&self) -> Vec<(String, u64, u64)> {
        let names = self.core.names.read();
        let over = names.by_name.iter().filter_map(|(name, state)| {
            let (taken, reserve) = (taken(&names, state), reserve(state));
            is_over(state, taken).then(|| (name.clone(), taken, reserve))
        });
        over.collect()
    }
}
