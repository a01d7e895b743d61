//! Deletes snapshots by policy, where they take more than their reserve or space is low.

use crate::area::Area;
use crate::branch::VolumeState;
use crate::branch::namespace::{Namespace, Snapshot};
use crate::catalog::CURRENT;
use crate::control::DeleteSnapshots;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::{ErrorKind, Result, conflict};
use crate::ids::{BranchId, Epoch, SnapshotId};
use crate::shortage::LastDeletion;
use crate::space::reservations::Totals;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Destager {
    /// Deletes a snapshot if a policy asks for it. False when none is to be deleted. With `short`,
    /// a request waits for space in that area: space then counts as low there whatever the limit,
    /// and each deletion is needed at once.
    pub(crate) fn delete_by_policy(&self, short: Option<Area>) -> Result<bool> {
        if !self.core.names.read().by_name.values().any(|state| state.policy.read().auto_delete) {
            return Ok(false);
        }
        let low = self.deletion_helps(short);
        let Some(id) = self.core.snapshot_to_delete(&self.core.names.read(), &low) else { return Ok(false) };
        let area = self.core.names.read().snapshots.get(&id).map(|s| s.state.line.branch.area);
        let last = LastDeletion {
            at: self.core.world.clock.monotonic(),
            returned: self.core.positions.returned.load(Ordering::Relaxed),
            expected: self.core.unique_bytes(id)?,
        };
        let deleted = self.submit(|names| match self.core.snapshot_to_delete(names, &low) {
            Some(again) if again == id => Ok(DeleteSnapshots { ids: vec![id] }.into()),
            _ => Err(conflict("delete a snapshot by policy: the deletion is no longer necessary")),
        });
        match deleted {
            Ok(_) => {
                tracing::info!(low = !low.is_empty(), "a snapshot was deleted by policy");
                self.core.positions.auto_deleted.fetch_add(1, Ordering::Relaxed);
                if let Some(area) = area.filter(|area| low.contains(area)) {
                    self.core.deletions.lock().entry(area).or_default().last = Some(last);
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the areas in which space is so low that a snapshot should be deleted. None, if the
    /// last deletion gave nothing back.
    fn deletion_helps(&self, short: Option<Area>) -> Vec<Area> {
        // The destager takes lent slots back under this lock. Half-way, neither the space nor the
        // lent slots include them.
        let state = &*self.state.lock();
        let low = short.map_or_else(|| self.core.areas_without_space(), |area| vec![area]);
        let deletions = &mut *self.core.deletions.lock();
        if short.is_none() {
            deletions.retain(|area, _| low.contains(area));
        }
        if low.is_empty() || self.is_returning(state) {
            return Vec::new();
        }
        let returned = self.core.positions.returned.load(Ordering::Relaxed);
        let now = self.core.world.clock.monotonic();
        let helps = |area: &Area| {
            let of_area = deletions.entry(*area).or_default();
            if let Some(last) = of_area.last.take_if(|last| short.is_some() || !last.is_recent(now)) {
                // Nothing of what the last snapshot alone needed has come back, so the next
                // deletion will hardly give more.
                of_area.futile = (last.expected > 0 && returned == last.returned).then_some(returned);
            }
            of_area.last.is_none() && of_area.futile != Some(returned)
        };
        low.into_iter().filter(helps).collect()
    }
}

impl Core {
    /// Number of bytes that only this snapshot needs, as of the last destage.
    fn unique_bytes(&self, id: SnapshotId) -> Result<u64> {
        let (line, is_live) = {
            let names = self.names.read();
            let Some(snapshot) = names.snapshots.get(&id) else { return Ok(0) };
            let line = snapshot.state.line.clone();
            let live =
                names.volume_by_id(snapshot.volume).is_some_and(|v| v.line.branch.id == line.branch.id);
            (line, live)
        };
        let epochs: Vec<Epoch> = line.branch.frozen.read().iter().copied().collect();
        let tally = Tally::new(epochs, &self.catalog.usage(line.branch.id)?, is_live);
        let at = tally.epochs.binary_search(&line.epoch).ok();
        Ok(at.map_or(0, |at| tally.unique[at] << line.branch.slot_log2))
    }

    /// Returns the oldest snapshot that a policy gives up: of a volume whose snapshots take more
    /// than their reserve, or in an area in which space is `low`.
    fn snapshot_to_delete(&self, names: &Namespace, low: &[Area]) -> Option<SnapshotId> {
        let willing = |state: &&Arc<VolumeState>| state.policy.read().auto_delete;
        let oldest = names.by_name.values().filter(willing).filter_map(|state| {
            let taken = taken(names, state);
            let is_over = is_over(state, taken);
            let mut snapshots = names.snapshots_of(state.id).into_iter().filter(|_| taken > 0);
            snapshots.find(|s| {
                let gives_up = is_over || low.contains(&s.state.line.branch.area);
                gives_up && !s.protected.load(Ordering::Acquire) && !is_held(names, s)
            })
        });
        let oldest = oldest.min_by_key(|s| s.id)?.id;
        // Snapshots that were deleted before may still give back enough.
        let dissolving = names.snapshots.values().any(|s| !names.is_in_sight(s) && !is_held(names, s));
        (!dissolving).then_some(oldest)
    }

    /// Returns whether space is low in an area.
    pub(crate) fn is_low_on_space(&self, area: Area) -> bool {
        let totals = self.totals_of(area);
        totals.available < self.low_mark(&totals)
    }

    /// Returns the areas whose own space is low, whatever the file systems below have.
    pub(crate) fn areas_without_space(&self) -> Vec<Area> {
        let lacks = |area: &Area| {
            let totals = self.totals_of(*area);
            totals.own < self.low_mark(&totals)
        };
        self.space.areas().into_iter().filter(lacks).collect()
    }

    fn low_mark(&self, totals: &Totals) -> u64 {
        totals.capacity / 100 * self.options.low_space_percent as u64
    }
}

/// Returns whether a snapshot is in use. Its deletion would give nothing back.
pub(crate) fn is_held(names: &Namespace, snapshot: &Snapshot) -> bool {
    snapshot.state.handles.load(Ordering::Acquire) > 0 || names.is_pinned(snapshot)
}

/// Number of bytes that a volume's snapshots are expected to take.
pub(crate) fn reserve(state: &VolumeState) -> u64 {
    let percent = state.policy.read().reserve_percent;
    (state.size.load(Ordering::Acquire) as u128 * percent as u128 / 100) as u64
}

pub(crate) fn is_over(state: &VolumeState, taken: u64) -> bool {
    taken > reserve(state) && state.line.branch.cdp.log.read().anchors().next().is_none()
}

/// Number of bytes that a volume's snapshots take. A deleted snapshot counts until it is dissolved.
pub(crate) fn taken(names: &Namespace, state: &VolumeState) -> u64 {
    let live = &state.line.branch;
    let kept = live.kept.load(Ordering::Relaxed) << live.slot_log2;
    let mut left: BTreeSet<BranchId> = [live.id].into();
    let of_lines_left = names.snapshots_of(state.id).into_iter().filter_map(|s| {
        let branch = &s.state.line.branch;
        left.insert(branch.id).then(|| branch.slots.load(Ordering::Relaxed) << branch.slot_log2)
    });
    kept + of_lines_left.sum::<u64>()
}

/// Numbers of slots of one branch, by what needs them.
pub(crate) struct Tally {
    /// The epochs of the snapshots that exist, or that something rests on.
    pub(crate) epochs: Vec<Epoch>,
    /// Number of slots of the volume as it is now.
    pub(crate) current: u64,
    /// Number of slots that only snapshots need.
    pub(crate) kept: u64,
    /// Number of slots that each snapshot sees, by its index in `epochs`.
    pub(crate) referenced: Vec<u64>,
    /// Number of slots that each snapshot alone needs, by its index in `epochs`.
    pub(crate) unique: Vec<u64>,
}

impl Tally {
    /// Counts the slots in `usage`, which has (last epoch, epoch of birth, slots). On a branch
    /// without a volume, the current map belongs to snapshots.
    pub(crate) fn new(epochs: Vec<Epoch>, usage: &[(Epoch, Epoch, u64)], is_live: bool) -> Tally {
        let (mut current, mut kept) = (0, 0);
        let mut unique = vec![0; epochs.len()];
        // For each snapshot, by how much the count of seen slots rises and falls.
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
        let current = CURRENT.0;
        let usage =
            [(2, 1, 1), (2, 2, 10), (5, 2, 100), (5, 3, 1000), (current, 1, 10_000), (current, 6, 100_000)];
        let usage = usage.map(|(last, born, slots)| (Epoch(last), Epoch(born), slots));
        let live = Tally::new(vec![Epoch(2), Epoch(5)], &usage, true);
        assert_eq!((live.current, live.kept), (110_000, 1111));
        assert_eq!(live.unique, [11, 1000]);
        assert_eq!(live.referenced, [10_111, 11_100]);
        let left = Tally::new(vec![Epoch(2), Epoch(5)], &usage, false);
        assert_eq!((left.current, left.kept), (0, 11_111), "what was born later is nobody's");
        assert_eq!(left.unique, [11, 1000]);
        let one = Tally::new(vec![Epoch(5)], &usage, false);
        assert_eq!(
            (one.kept, &one.unique[..]),
            (11_100, &[11_100][..]),
            "being dissolved: 11 are on their way"
        );
    }
}
