//! What snapshots take: how much each holds alone, what a volume's take together, and what happens when that is too much.

use super::line::{Branch, VolumeState};
use super::namespace::{Namespace, Snapshot};
use super::{Pool, SnapshotSpace, SpaceUsage};
use crate::catalog::{CURRENT, Control};
use crate::error::{ErrorKind, Result, conflict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Nanoseconds between two deletions for want of space that no request waits for.
const DELETION_INTERVAL: u64 = 1_000_000_000;

impl Pool {
    /// The space of a volume and of each of its snapshots in sight, oldest first, as of the last destage: found by counts,
    /// whatever the volume's size.
    pub fn space_usage(&self, volume: &str) -> Result<SpaceUsage> {
        let (live, branches, snapshots, reserve) = {
            let names = self.names.read();
            let state = names.volume(volume)?;
            let snapshots: Vec<Arc<Snapshot>> = names.snapshots_of(state.id).into_iter().cloned().collect();
            let line = state.line.branch.clone();
            let mut branches: BTreeMap<u64, Arc<Branch>> = [(line.id, line.clone())].into();
            branches.extend(snapshots.iter().map(|s| (s.state.line.branch.id, s.state.line.branch.clone())));
            (line.id, branches, snapshots, reserve(state))
        };
        let mut usage = SpaceUsage { current: 0, snapshots: 0, reserve, of: Vec::new() };
        let mut tallies = BTreeMap::new();
        for (id, branch) in branches {
            let epochs: Vec<u32> = branch.frozen.read().iter().copied().collect();
            let tally = Tally::new(epochs, &self.catalog.usage(id)?, id == live);
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

    /// What the snapshots of some volumes take beyond their reserve: (volume, bytes, reserve). Of a volume with a history
    /// nobody can say how much is its snapshots' own and how much its anchors': it has no reserve.
    pub fn over_reserve(&self) -> Vec<(String, u64, u64)> {
        let names = self.names.read();
        let over = names.by_name.iter().filter_map(|(name, state)| {
            let (taken, reserve) = (taken(&names, state), reserve(state));
            is_over(state, taken).then(|| (name.clone(), taken, reserve))
        });
        over.collect()
    }

    /// Deletes one snapshot, if a volume's policy says so: the oldest that can go, where snapshots
    /// take more than their reserve or the pool's own space is low. The next follows only when its
    /// space has come back. False when nothing is to be done.
    ///
    /// A full file system below the pool is no reason: a deletion does not cure it. For want of
    /// space one snapshot is deleted at a time, at most one a second, and none more after one that
    /// should have given something back and did not.
    pub fn enforce_snapshot_policies(&self) -> Result<bool> {
        self.delete_by_policy(false)
    }

    /// The same; `short`: a request waits for space, so that space is low whatever the limit, and
    /// each deletion is needed at once.
    pub(crate) fn delete_by_policy(&self, short: bool) -> Result<bool> {
        if !self.names.read().by_name.values().any(|state| state.policy.read().auto_delete) {
            return Ok(false);
        }
        let low = self.deletion_helps(short);
        let Some(id) = self.snapshot_to_delete(&self.names.read(), low) else { return Ok(false) };
        let last = LastDeletion {
            at: self.world.clock.monotonic(),
            returned: self.positions.returned.load(Ordering::Relaxed),
            expected: self.unique_bytes(id)?,
        };
        let deleted = self.submit(|names| match self.snapshot_to_delete(names, low) {
            Some(again) if again == id => Ok(Control::DeleteSnapshots { ids: vec![id] }),
            _ => Err(conflict("delete a snapshot by policy: it is not needed any more")),
        });
        match deleted {
            Ok(_) => {
                self.positions.auto_deleted.fetch_add(1, Ordering::Relaxed);
                if low {
                    self.deletions.lock().last = Some(last);
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Is space so low that a snapshot should go, and did the last that went give something back?
    fn deletion_helps(&self, short: bool) -> bool {
        if !short && !self.lacks_own_space() {
            *self.deletions.lock() = Deletions::default();
            return false;
        }
        if self.is_returning(&self.maintenance.lock()) {
            return false;
        }
        let returned = self.positions.returned.load(Ordering::Relaxed);
        let deletions = &mut *self.deletions.lock();
        if let Some(last) =
            deletions.last.take_if(|last| short || !last.is_recent(self.world.clock.monotonic()))
        {
            // Of what it alone needed nothing has come back, so the next will hardly give more.
            deletions.futile = (last.expected > 0 && returned == last.returned).then_some(returned);
        }
        deletions.last.is_none() && deletions.futile != Some(returned)
    }

    /// Bytes that only this snapshot needs, as of the last destage.
    fn unique_bytes(&self, id: u64) -> Result<u64> {
        let (line, is_live) = {
            let names = self.names.read();
            let Some(snapshot) = names.snapshots.get(&id) else { return Ok(0) };
            let line = snapshot.state.line.clone();
            let live =
                names.volume_by_id(snapshot.volume).is_some_and(|v| v.line.branch.id == line.branch.id);
            (line, live)
        };
        let epochs: Vec<u32> = line.branch.frozen.read().iter().copied().collect();
        let tally = Tally::new(epochs, &self.catalog.usage(line.branch.id)?, is_live);
        let at = tally.epochs.binary_search(&line.epoch).ok();
        Ok(at.map_or(0, |at| tally.unique[at] << line.branch.slot_log2))
    }

    fn snapshot_to_delete(&self, names: &Namespace, low: bool) -> Option<u64> {
        let willing = |state: &&Arc<VolumeState>| state.policy.read().auto_delete;
        let volumes = names.by_name.values().filter(willing);
        let needy = volumes.filter(|state| {
            let taken = taken(names, state);
            taken > 0 && (low || is_over(state, taken))
        });
        let oldest = needy.filter_map(|state| {
            let mut snapshots = names.snapshots_of(state.id).into_iter();
            snapshots.find(|s| !s.protected.load(Ordering::Acquire) && !is_held(names, s))
        });
        let oldest = oldest.min_by_key(|s| s.state.id)?.state.id;
        // What was deleted before may still give back enough.
        let dissolving = names.snapshots.values().any(|s| !names.is_in_sight(s) && !is_held(names, s));
        (!dissolving).then_some(oldest)
    }

    pub(super) fn is_low_on_space(&self) -> bool {
        let totals = self.space.totals();
        totals.available < totals.capacity / 100 * self.options.low_space_percent as u64
    }

    /// Is the pool's own space low, whatever the file systems below have?
    pub(super) fn lacks_own_space(&self) -> bool {
        let totals = self.space.totals();
        totals.own < totals.capacity / 100 * self.options.low_space_percent as u64
    }
}

/// What deleting snapshots for want of space has come to.
#[derive(Default)]
pub(crate) struct Deletions {
    last: Option<LastDeletion>,
    /// A deletion gave nothing back: no more until something has come back beyond this, of
    /// [`super::SharedPositions::returned`].
    futile: Option<u64>,
}

struct LastDeletion {
    /// When, by the monotonic clock, in nanoseconds.
    at: u64,
    /// What had come back before.
    returned: u64,
    /// What should come back.
    expected: u64,
}

impl LastDeletion {
    fn is_recent(&self, now: u64) -> bool {
        now.saturating_sub(self.at) < DELETION_INTERVAL
    }
}

/// Is a snapshot in use? Its deletion would give nothing back.
fn is_held(names: &Namespace, snapshot: &Snapshot) -> bool {
    snapshot.state.handles.load(Ordering::Acquire) > 0 || names.is_pinned(&snapshot.state)
}

/// Bytes that a volume's snapshots are expected to take.
fn reserve(state: &VolumeState) -> u64 {
    let percent = state.policy.read().reserve_percent;
    (state.size.load(Ordering::Acquire) as u128 * percent as u128 / 100) as u64
}

fn is_over(state: &VolumeState, taken: u64) -> bool {
    taken > reserve(state) && state.line.branch.cdp.log.read().anchors().next().is_none()
}

/// Bytes that a volume's snapshots take, deleted ones too until they are dissolved.
fn taken(names: &Namespace, state: &VolumeState) -> u64 {
    let live = &state.line.branch;
    let kept = live.kept.load(Ordering::Relaxed) << live.slot_log2;
    let mut left: BTreeSet<u64> = [live.id].into();
    let of_lines_left = names.snapshots_of(state.id).into_iter().filter_map(|s| {
        let branch = &s.state.line.branch;
        left.insert(branch.id).then(|| branch.slots.load(Ordering::Relaxed) << branch.slot_log2)
    });
    kept + of_lines_left.sum::<u64>()
}

/// Slots of one branch, by who needs them.
struct Tally {
    /// Of the snapshots that are there, or that something rests on.
    epochs: Vec<u32>,
    /// Of the volume as it is now.
    current: u64,
    /// Of snapshots only.
    kept: u64,
    /// What each snapshot sees, by its index in `epochs`.
    referenced: Vec<u64>,
    /// What nobody else does.
    unique: Vec<u64>,
}

impl Tally {
    /// `usage` are (last epoch, epoch of birth, slots); on a branch without a volume the current map belongs to snapshots.
    fn new(epochs: Vec<u32>, usage: &[(u32, u32, u64)], is_live: bool) -> Tally {
        let (mut current, mut kept) = (0, 0);
        let mut unique = vec![0; epochs.len()];
        // Where the count of what is seen rises and falls.
        let mut steps = vec![(0u64, 0u64); epochs.len() + 1];
        for (last, born, slots) in usage {
            let first = epochs.partition_point(|epoch| epoch < born);
            let end = epochs.partition_point(|epoch| epoch <= last);
            if *last == CURRENT && is_live {
                current += slots;
            } else if first < end {
                kept += slots;
                if first + 1 == end {
                    unique[first] += slots;
                }
            }
            if first < end {
                steps[first].0 += slots;
                steps[end].1 += slots;
            }
        }
        let mut seen = 0;
        let referenced = steps.iter().take(epochs.len()).map(|(more, less)| {
            seen = seen + more - less;
            seen
        });
        let referenced = referenced.collect();
        Tally { epochs, current, kept, referenced, unique }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_belong_to_those_who_see_them() {
        let usage =
            [(2, 1, 1), (2, 2, 10), (5, 2, 100), (5, 3, 1000), (CURRENT, 1, 10_000), (CURRENT, 6, 100_000)];
        let live = Tally::new(vec![2, 5], &usage, true);
        assert_eq!((live.current, live.kept), (110_000, 1111));
        assert_eq!(live.unique, [11, 1000]);
        assert_eq!(live.referenced, [10_111, 11_100]);
        let left = Tally::new(vec![2, 5], &usage, false);
        assert_eq!((left.current, left.kept), (0, 11_111), "what was born later is nobody's");
        assert_eq!(left.unique, [11, 1000]);
        let one = Tally::new(vec![5], &usage, false);
        assert_eq!(
            (one.kept, &one.unique[..]),
            (11_100, &[11_100][..]),
            "being dissolved: 11 are on their way"
        );
    }
}
