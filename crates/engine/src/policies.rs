//! Control operations that policies require: limits of snapshots, ages, depth, epochs that run out.
//!
//! Each function submits at most one operation, and returns false when there is nothing to do.

use crate::branch::namespace::{Namespace, RENEWED, Snapshot, check_deletable, check_depth, frozen_now};
use crate::branch::{Base, Branch, VolumeState};
use crate::catalog::SnapshotRecord;
use crate::control::{DeleteSnapshots, RemoveMark, RollBack, SetFill};
use crate::core::Core;
use crate::destage::Destager;
use crate::error::{ErrorKind, Result, conflict};
use crate::ids::{BranchId, Lsn, SnapshotId, Stamp, VolumeId};
use crate::settings::AnchorPolicy;
use crate::world::uuid;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Destager {
    /// Removes one mark whose moment has expired, so that its name is free again. False when there
    /// is none.
    pub(crate) fn forget_mark(&self) -> Result<bool> {
        if !std::mem::take(&mut self.state.lock().marks_expire) {
            return Ok(false);
        }
        let Some((volume, lsn)) = self.core.expired_mark() else { return Ok(false) };
        // There may be more expired marks.
        self.state.lock().marks_expire = true;
        self.submit(|_| Ok(RemoveMark { volume, lsn }.into()))?;
        Ok(true)
    }
}

impl Core {
    /// Returns a mark before the recorded history of its volume: (volume, LSN).
    fn expired_mark(&self) -> Option<(VolumeId, Lsn)> {
        let oldest: Vec<(VolumeId, Lsn)> = self.names.read().marks.oldest().collect();
        // A later mark may lie in a history of which nothing is carried out yet.
        let settled = self.positions.settled();
        oldest.into_iter().filter(|(_, lsn)| *lsn <= settled).find(|(volume, lsn)| {
            let stretch = self.stretches(*volume).into_iter().next();
            let begins = stretch.and_then(|stretch| stretch.branch.cdp.log.read().begins());
            begins.is_none_or(|begins: Stamp| *lsn < begins.lsn)
        })
    }
}

impl Destager {
    /// Deletes one snapshot, if a volume's policy requires it: see [`Destager::delete_by_policy`].
    pub(crate) fn enforce_snapshot_policies(&self) -> Result<bool> {
        self.delete_by_policy(None)
    }
}

impl Destager {
    /// Gives one volume whose epochs run out a new branch, which rests on the volume's present
    /// state. That is a rollback to the present, with its place in the histories, except that
    /// handles stay valid. The new branch rests on a snapshot that is never visible. That snapshot
    /// is deleted when the new branch has a copy of everything. False when no volume needs it.
    pub(crate) fn renew_branch(&self) -> Result<bool> {
        let limit = self.core.options.renew_at_epoch;
        let needy = |state: &&Arc<VolumeState>| {
            state.trashed == 0
                && state.line.branch.epoch() >= limit
                && !state.importing.load(Ordering::Acquire)
                && check_depth(&state.line).is_ok()
        };
        let Some(id) = self.core.names.read().by_name.values().find(needy).map(|state| state.id) else {
            return Ok(false);
        };
        let low = |area| self.core.is_low_on_space(area);
        let renewed = self.submit_with(|names| {
            let Some(state) = names.volume_by_id(id).filter(needy) else {
                return Err(conflict("give the volume a new branch: it no longer needs one"));
            };
            let undo = SnapshotRecord {
                deleted: true,
                ..frozen_now(state, RENEWED, uuid(&*self.core.world.rng), 0)?
            };
            let branch = BranchId(names.next_id + 1);
            let size = state.size.load(Ordering::Acquire);
            let renewal = RollBack {
                id,
                branch,
                base: undo.of,
                at: None,
                size,
                undo_id: SnapshotId(names.next_id),
                undo,
                area: state.line.branch.area,
            };
            let anchor = names.anchor_after(&renewal, &*self.core.world.rng);
            // The snapshot below keeps the space of what is overwritten.
            let fill = (!low(state.line.branch.area))
                .then(|| SetFill { branches: vec![branch], rate: Some(QUIET_RATE) }.into());
            Ok(([renewal.into()].into_iter().chain(anchor).chain(fill).collect(), None))
        });
        match renewed {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            renewed => {
                let lsn = renewed?;
                tracing::info!(
                    volume = id.0,
                    lsn = lsn.0,
                    "a volume continues on a new branch, because its epochs were used up"
                );
                Ok(true)
            }
        }
    }
}

impl Destager {
    /// Begins to flatten the volume that rests on the most levels, if those are too many: a read
    /// walks all of them. Only one volume is flattened so at a time, and none while space is low.
    /// False when there is nothing to do.
    pub(crate) fn flatten_deepest(&self) -> Result<bool> {
        let limit = self.core.options.flatten_depth;
        let deepest = {
            let names = self.core.names.read();
            let deep = names.by_name.values().map(|v| &v.line).filter(|line| line.branch.depth > limit);
            let mut deep = deep.map(|line| (line.depth() as u32 - 1, line.branch.clone())).peekable();
            if limit == 0 || deep.peek().is_none() {
                return Ok(false);
            }
            let deep: Vec<(u32, Arc<Branch>)> = deep.filter(|(depth, _)| *depth > limit).collect();
            if deep.iter().any(|(_, branch)| branch.filling.load(Ordering::Acquire)) {
                return Ok(false);
            }
            deep.into_iter().max_by_key(|(depth, _)| *depth)
        };
        let Some((_, branch)) = deepest.filter(|(_, branch)| !self.core.is_low_on_space(branch.area)) else {
            return Ok(false);
        };
        self.submit(|_| Ok(SetFill { branches: vec![branch.id], rate: Some(QUIET_RATE) }.into()))?;
        Ok(true)
    }

    /// Begins to flatten a volume, or a visible snapshot, that rests on moments of its own past
    /// that have expired. A snapshot that is not visible is removed with its part of that past
    /// instead. Only one branch is flattened so at a time, and none while space is low. False when
    /// there is nothing to do.
    pub(crate) fn flatten_over_expired(&self) -> Result<bool> {
        let held_up = std::mem::take(&mut self.state.lock().pinned_expired);
        if held_up.is_empty() || self.core.options.flatten_depth == 0 {
            return Ok(false);
        }
        let found = {
            let names = self.core.names.read();
            let seen = names.snapshots.values().filter(|s| names.is_in_sight(s)).map(|s| &s.state);
            let volumes = names.by_name.values().chain(names.trashed());
            let mut seen = volumes.chain(seen).map(|state| &state.line.branch);
            let holds = |branch: &&Arc<Branch>| {
                branch.base().is_some_and(|base| is_moment(&base, |of| held_up.contains(&of)))
                    && !branch.filling.load(Ordering::Acquire)
                    && !self.core.is_low_on_space(branch.area)
            };
            seen.find(holds).map(|branch| branch.id)
        };
        let Some(branch) = found else { return Ok(false) };
        self.submit(|_| Ok(SetFill { branches: vec![branch], rate: Some(QUIET_RATE) }.into()))?;
        Ok(true)
    }
}

impl Destager {
    /// Sequences one anchor that an interval, or a limit in bytes, requires. False when none is
    /// due.
    pub(crate) fn anchor_by_time(&self) -> Result<bool> {
        let now = self.core.clock.now();
        let is_due = |state: &&Arc<VolumeState>| {
            let cdp = &state.line.branch.cdp;
            let Some(settings) = cdp.wanted() else { return false };
            let since = now.saturating_sub(cdp.anchored.load(Ordering::Relaxed));
            let by_time = matches!(settings.anchors, AnchorPolicy::Interval(ns) if since >= ns);
            by_time && cdp.writes.load(Ordering::Relaxed) > 0 || cdp.needs_anchor_to_forget(now)
        };
        let due = self.core.names.read().by_name.values().find(is_due).cloned();
        let Some(due) = due else { return Ok(false) };
        self.submit_with(|names| match names.volume_by_id(due.id) {
            Some(state) if is_due(&state) => Ok((vec![names.anchor(state, &*self.core.world.rng)?], None)),
            _ => Err(conflict("take an anchor: it is not due any more")),
        })
        .map(|_| true)
        .or_else(|e| if e.kind() == ErrorKind::Conflict { Ok(false) } else { Err(e) })
    }
}

impl Destager {
    /// Deletes one snapshot that has expired. None is deleted while the clock is in doubt. False
    /// when none is due.
    pub(crate) fn expire_undo(&self) -> Result<bool> {
        if self.core.clock.is_suspended() {
            return Ok(false);
        }
        let now = self.core.clock.now();
        let Some(id) = due(&self.core.names.read(), now).map(|s| s.id) else { return Ok(false) };
        let deleted = self.submit(|names| match due(names, now) {
            Some(snapshot) if snapshot.id == id => Ok(DeleteSnapshots { ids: vec![id] }.into()),
            _ => Err(conflict("delete an expired snapshot: it must be kept now")),
        });
        match deleted {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            deleted => deleted.map(|_| true),
        }
    }
}

/// Returns a snapshot that has expired, and that nothing keeps.
pub(crate) fn due(names: &Namespace, now: u64) -> Option<&Arc<Snapshot>> {
    let come = names.expiring.iter().filter(|(_, until)| **until <= now);
    let mut found = come.filter_map(|(id, _)| names.snapshots.get(id));
    // Nothing of a volume in the trash expires.
    let is_in_use = |s: &Snapshot| names.volume_by_id(s.volume).is_none_or(|volume| volume.trashed == 0);
    found.find(|s| is_in_use(s) && check_deletable(s).is_ok() && s.state.handles.load(Ordering::Acquire) == 0)
}

/// Number of bytes per second that flattening by policy copies.
pub(crate) const QUIET_RATE: u64 = 64 << 20;

/// Returns whether the base is a moment of a branch for which `of` is true.
pub(crate) fn is_moment(base: &Base, of: impl Fn(BranchId) -> bool) -> bool {
    matches!(base, Base::View(line) if line.at.is_some() && of(line.branch.id))
}
