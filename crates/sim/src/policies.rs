//! Labels, protection, and limits on the space of snapshots. A run sets them at random, and
//! compares with them what the pool deletes by itself.

use crate::oracle::{Effect, PolicyModel, SnapId, VolId};
use crate::perform::Answer;
use crate::run::{Outcome, Run};
use hindcast_engine::ErrorKind;
use hindcast_engine::pool::{DedicatedSpace, Pool, SnapshotPolicy, VolumeInfo};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of labels of a snapshot. `MAX_VALUE` is the maximum length of a value in bytes.
const MAX_LABELS: usize = 16;
const MAX_VALUE: usize = 255;

/// The snapshots that a step of background work may delete under the present policies.
pub(crate) struct Watch {
    /// The oldest snapshot that can be deleted, of each volume with automatic deletion.
    oldest: BTreeMap<VolId, SnapId>,
    /// Snapshots of those volumes that can't be deleted only because something rests on them. They
    /// can be deleted as soon as background work has removed what rests on them. A request without
    /// space waits for that.
    pinned: BTreeSet<(SnapId, VolId)>,
    /// Volumes whose snapshots take more than their limit.
    over: Vec<VolId>,
    /// Volumes for which space is low.
    low: BTreeSet<VolId>,
    deleted: u64,
}

/// Returns the space of each dedicated physical volume, and (`None`) of all others together.
pub(crate) fn spaces(pool: &Pool) -> Vec<(Option<u32>, DedicatedSpace)> {
    let info = pool.info();
    let (capacity, available, own_available) = (info.capacity, info.available, info.own_available);
    let mut common = DedicatedSpace { capacity, available, own_available };
    let mut spaces = Vec::new();
    for pv in pool.pvs() {
        let Some(space) = pv.dedicated else { continue };
        common.capacity -= space.capacity;
        common.available -= space.available;
        common.own_available -= space.own_available;
        spaces.push((Some(pv.id), space));
    }
    spaces.push((None, common));
    spaces
}

impl Run {
    pub(crate) fn label(&mut self, snap: SnapId, key: &str, value: Option<&str>) -> Outcome<()> {
        let (volume, name) = self.address(snap)?;
        let model = self.snapshot_model(snap)?;
        let mut labels = model.labels.clone();
        match value {
            Some(value) => drop(labels.insert(key.into(), value.into())),
            None => drop(labels.remove(key)),
        }
        let fits = labels.len() <= MAX_LABELS && value.is_none_or(|v| v.len() <= MAX_VALUE);
        let effect = Effect::Labels(snap, model.protected, labels);
        let refusals: &[ErrorKind] = if fits { &[] } else { &[ErrorKind::Invalid] };
        let change = [(key, value)];
        let answer =
            self.control(effect, refusals, |pool| pool.label_snapshot(&volume, &name, &change).map(drop))?;
        match answer {
            Answer::Done if !fits => Err("labels beyond their limits".into()),
            Answer::Done => self.check_notes(snap),
            _ => Ok(()),
        }
    }

    pub(crate) fn protect(&mut self, snap: SnapId, on: bool) -> Outcome<()> {
        let (volume, name) = self.address(snap)?;
        let effect = Effect::Labels(snap, on, self.snapshot_model(snap)?.labels.clone());
        let answer = self.control(effect, &[], |pool| pool.protect_snapshot(&volume, &name, on).map(drop))?;
        if let Answer::Done = answer { self.check_notes(snap) } else { Ok(()) }
    }

    fn check_notes(&self, snap: SnapId) -> Outcome<()> {
        let ((volume, name), model) = (self.address(snap)?, self.snapshot_model(snap)?);
        let info = self.pool()?.snapshot(&volume, &name).map_err(|e| format!("{e:?}"))?;
        if (info.protected, &info.labels) != (model.protected, &model.labels) {
            return Err(format!("{volume}@{name} is told as {info:?} instead of {model:?}"));
        }
        Ok(())
    }

    pub(crate) fn set_policy(&mut self, vol: VolId, percent: u8, auto_delete: bool) -> Outcome<()> {
        let name = self.volume_name(vol)?;
        let effect = Effect::Policy(vol, PolicyModel { percent, auto_delete });
        let policy = SnapshotPolicy { reserve_percent: percent, auto_delete };
        self.control(effect, &[], |pool| pool.set_snapshot_policy(&name, policy).map(drop)).map(drop)
    }

    /// Returns what the next step of background work may delete, or `None` if no policy allows a
    /// deletion or the state is uncertain.
    pub(crate) fn watch_policies(&self) -> Outcome<Option<Watch>> {
        let state = self.oracle.state();
        let willing: Vec<VolId> = state
            .volumes
            .iter()
            .filter(|(_, v)| v.policy.auto_delete && !v.trashed)
            .map(|(id, _)| *id)
            .collect();
        if willing.is_empty() || self.poisoned() || self.oracle.doubtful() {
            return Ok(None);
        }
        let pool = self.pool()?;
        let mut oldest = BTreeMap::new();
        let mut pinned = BTreeSet::new();
        for vol in willing {
            let infos = pool.snapshots(&self.volume_name(vol)?).map_err(|e| format!("{e:?}"))?;
            let kept = infos.iter().filter(|i| i.pinned && !i.protected && i.handles == 0);
            pinned.extend(kept.filter_map(|i| Some((*self.snapshot_ids.get(&i.uuid)?, vol))));
            let free = infos.iter().find(|i| !i.protected && !i.pinned && i.handles == 0);
            if let Some(id) = free.and_then(|info| self.snapshot_ids.get(&info.uuid)) {
                oldest.insert(vol, *id);
            }
        }
        let names: Vec<String> = pool.over_reserve().into_iter().map(|(name, ..)| name).collect();
        let over = state.volumes.iter().filter(|(_, v)| names.contains(&v.name)).map(|(id, _)| *id).collect();
        let low = self.low_on_space(&pool);
        Ok(Some(Watch { oldest, pinned, over, low, deleted: pool.stats().snapshots_auto_deleted }))
    }

    /// Returns the volumes for which space is low: on their dedicated physical volume, or on all
    /// that are not dedicated.
    fn low_on_space(&self, pool: &Pool) -> BTreeSet<VolId> {
        let share = u64::from(self.plan.options.low_space_percent);
        let low =
            spaces(pool).into_iter().filter(|(_, space)| space.own_available < space.capacity / 100 * share);
        let low: BTreeSet<Option<u32>> = low.map(|(pv, _)| pv).collect();
        let volumes = pool.volumes();
        let is_of = |of: &&VolumeInfo| low.contains(&of.dedicated_pv);
        volumes.iter().filter(is_of).filter_map(|of| self.ids.get(&of.uuid).copied()).collect()
    }

    /// Notes what a step has deleted. With `failed` it is unknown whether the step is done.
    pub(crate) fn note_deletion(&mut self, watch: &Watch, failed: bool) -> Outcome<()> {
        let pool = self.pool()?;
        let stats = pool.stats();
        if stats.snapshots_auto_deleted == watch.deleted && !failed {
            return Ok(());
        }
        let gone = self.gone_snapshots()?;
        let (snap, vol) = match (gone[..].first(), gone.len()) {
            (None, _) if failed => return Ok(()),
            (Some(one), 1) => *one,
            _ => return Err(format!("a policy has deleted {gone:?} at once")),
        };
        if watch.oldest.get(&vol) != Some(&snap) || !(watch.low.contains(&vol) || watch.over.contains(&vol)) {
            return Err(format!(
                "a policy has deleted snapshot {snap} of volume {vol}; it may delete {:?}, beyond their reserve are \
                 {:?}, space is low for {:?}",
                watch.oldest, watch.over, watch.low
            ));
        }
        self.say(|| format!("  snapshot {snap} deleted by policy"));
        self.summary.auto_deleted += 1;
        let effect = Effect::DeleteSnapshots(vec![snap]);
        self.oracle.attempt(std::slice::from_ref(&effect));
        if failed {
            return Ok(());
        }
        self.oracle.acknowledge(&[effect], stats.sequenced_lsn.0)?;
        self.oracle.all_durable();
        Ok(())
    }

    /// Returns the snapshots that the model has and the pool does not have.
    fn gone_snapshots(&self) -> Outcome<Vec<(SnapId, VolId)>> {
        let pool = self.pool()?;
        let mut gone = Vec::new();
        let in_trash = |vol: &VolId| self.oracle.state().volumes.get(vol).is_some_and(|v| v.trashed);
        for (id, snapshot) in &self.oracle.state().snapshots {
            // No policy deletes a snapshot of a volume in the trash, and no name leads to it.
            if !in_trash(&snapshot.volume)
                && pool.snapshot(&self.volume_name(snapshot.volume)?, &snapshot.name).is_err()
            {
                gone.push((*id, snapshot.volume));
            }
        }
        Ok(gone)
    }

    /// Returns whether something rests on a snapshot now. A request without space carries out
    /// everything that was sequenced, and only then is a snapshot an anchor of its volume's
    /// history.
    fn is_pinned(&self, snap: SnapId) -> Outcome<bool> {
        let (volume, name) = self.address(snap)?;
        Ok(self.pool()?.snapshot(&volume, &name).map_err(|e| format!("{e:?}"))?.pinned)
    }

    /// Returns the deletions that policies made for a request that found no space. They come before
    /// the records of the request. Of each volume the oldest snapshots are deleted first, except
    /// those that have to stay.
    pub(crate) fn deleted_for_space(&mut self, watch: Option<&Watch>) -> Outcome<Vec<Effect>> {
        let Some(watch) = watch else { return Ok(Vec::new()) };
        let gone = self.gone_snapshots()?;
        for (snap, vol) in &gone {
            let may_go = match watch.oldest.get(vol) {
                _ if watch.pinned.contains(&(*snap, *vol)) => true,
                // A younger snapshot is deleted only after the oldest one, or if the oldest one has
                // to stay.
                Some(oldest) => {
                    oldest == snap || gone.contains(&(*oldest, *vol)) || self.is_pinned(*oldest)?
                }
                None => false,
            };
            if !may_go || self.oracle.state().snapshots.get(snap).is_some_and(|s| s.protected) {
                return Err(format!(
                    "snapshot {snap} of volume {vol} was deleted for a write, and had to stay"
                ));
            }
        }
        self.say(|| format!("  deleted for space: {gone:?}"));
        self.summary.auto_deleted += gone.len() as u64;
        Ok(gone.into_iter().map(|(snap, _)| Effect::DeleteSnapshots(vec![snap])).collect())
    }

    /// Tells the oracle what a request did, and before it the deletions that made room for it. The
    /// deletions stay even if the request was refused, and they are durable.
    pub(crate) fn attempt_and_settle(
        &mut self,
        answer: &Answer,
        deleted: Vec<Effect>,
        effects: &[Effect],
        durable: bool,
    ) -> Outcome<()> {
        if deleted.is_empty() {
            self.oracle.attempt(effects);
            return self.settle_with_oracle(answer, effects, durable);
        }
        let mut all = deleted;
        if !matches!(answer, Answer::Refused(_)) {
            all.extend_from_slice(effects);
        }
        self.oracle.attempt(&all);
        let answer = if let Answer::Unknown = answer { Answer::Unknown } else { Answer::Done };
        self.settle_with_oracle(&answer, &all, durable)
    }

    /// Checks that every policy is kept when nothing is left to do, as far as there is a snapshot
    /// to delete.
    pub(crate) fn check_policies(&self) -> Outcome<()> {
        if self.faults || self.failing || self.dir.crashed() || self.poisoned() || !self.gone.is_empty() {
            return Ok(());
        }
        let Some(watch) = self.watch_policies()? else { return Ok(()) };
        match watch.over.iter().find_map(|vol| Some((vol, watch.oldest.get(vol)?))) {
            None => Ok(()),
            Some((vol, snap)) => Err(format!(
                "snapshots of volume {vol} take more than their reserve, and snapshot {snap} could be deleted"
            )),
        }
    }
}
