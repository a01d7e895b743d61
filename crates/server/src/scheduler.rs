//! The execution of schedules: snapshots that are taken and deleted by time.

use crate::app::App;
use crate::periodic::Worker;
use crate::schedule::names::Names;
use crate::schedule::plan::{
    MAX_AT_ONCE, MAX_SCHEDULES, MAX_VOLUMES, Plan, check_name, invalid, is_of, settle,
};
use crate::schedule::state::{LONGEST_NAP, Run, not_found, until};
use crate::schedule::{retention, when};
use crate::snapshots::{taken, time_name};
use hindcast_api::{CreateSchedule, CreateSnapshots, NewSnapshot, PatchSchedule, Schedule};
use hindcast_engine::pool::SnapshotInfo;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Number of seconds after now that are tried for the name of a snapshot, if the clock was set
/// back.
const NAMES_TRIED: i64 = 1000;

impl App {
    /// Returns all schedules, sorted by name.
    pub(crate) fn list_schedules(&self) -> Result<Vec<Schedule>> {
        self.schedules.check_readable()?;
        let plans = self.schedules.names();
        let plans = plans.into_iter().filter_map(|name| Some((self.schedules.get(&name).ok()?, name)));
        let plans: Vec<((Plan, Run), String)> = plans.collect();
        // After the plans: a volume that is not found was deleted.
        let mut names = Names::new(|| self.pool.volumes());
        Ok(plans.into_iter().map(|(of, name)| self.shown_schedule(&name, of, &mut names)).collect())
    }

    /// Returns one schedule.
    pub(crate) fn schedule(&self, name: &str) -> Result<Schedule> {
        let of = self.schedules.get(name)?;
        Ok(self.shown_schedule(name, of, &mut Names::new(|| self.pool.volumes())))
    }

    fn shown_schedule(&self, name: &str, (plan, run): (Plan, Run), names: &mut Names<'_>) -> Schedule {
        // A group that can't be read is an error of the next run.
        let members = self.members(&plan).unwrap_or_else(|_| plan.volumes.clone());
        let volumes = names.of(&self.pool, &members);
        let own_volumes =
            if plan.groups.is_empty() { volumes.clone() } else { names.of(&self.pool, &plan.volumes) };
        let snapshots = self.snapshots_of(&plan, &volumes);
        let timing = plan.timing().ok().filter(|_| !plan.paused);
        let next = timing.as_ref().map(|t| when::due(run.slot, ran(&plan, &snapshots), t, Timestamp::now()));
        let zone = timing.as_ref().filter(|_| plan.wall.is_some()).map(when::Timing::zone);
        let next_local = next.zip(zone).map(|(at, zone)| local_name(at, zone));
        Schedule {
            name: name.to_owned(),
            prefix: plan.prefix,
            volumes,
            own_volumes,
            groups: plan.groups,
            every: plan.every,
            wall: plan.wall,
            keep: plan.keep,
            paused: plan.paused,
            since: plan.since,
            next,
            next_local,
            last_run: run.done,
            error: run.shown_error().cloned(),
            snapshots: snapshots.len() as u64,
        }
    }

    /// Returns the volumes of a schedule, those of its groups included. None is there twice.
    fn members(&self, plan: &Plan) -> Result<Vec<Uuid>> {
        let mut all = plan.volumes.clone();
        for group in &plan.groups {
            let of_group = self.groups.get(group)?;
            all.extend(of_group);
        }
        let mut seen = BTreeSet::new();
        all.retain(|id| seen.insert(*id));
        Ok(all)
    }

    /// Returns the snapshots of `volumes` that belong to a schedule.
    fn snapshots_of(&self, plan: &Plan, volumes: &[String]) -> Vec<SnapshotInfo> {
        let of = |v: &String| self.pool.snapshots(v).unwrap_or_default();
        volumes.iter().flat_map(of).filter(|s| is_of(&plan.prefix, &s.name)).collect()
    }

    /// Returns the schedules whose last run failed, with the names of their volumes.
    pub(crate) fn failing_schedules(&self) -> Vec<(String, Vec<String>)> {
        let failing = self.schedules.failing();
        let mut names = Names::new(|| self.pool.volumes());
        let volumes = |name: &str| {
            let (plan, _) = self.schedules.get(name).ok()?;
            let members = self.members(&plan).unwrap_or_else(|_| plan.volumes.clone());
            Some(names.of(&self.pool, &members))
        };
        let names: Vec<String> = failing.into_iter().map(|(name, _)| name).collect();
        let volumes: Vec<_> = names.iter().map(|name| name.as_str()).map(volumes).collect();
        names.into_iter().zip(volumes).filter_map(|(name, volumes)| Some((name, volumes?))).collect()
    }

    /// Creates a schedule. Its first run is at the next time when it is due.
    pub(crate) fn create_schedule(&self, new: &CreateSchedule) -> Result<Schedule> {
        let prefix = new.prefix.as_ref().unwrap_or(&new.name);
        check_name(&new.name)?;
        check_name(prefix)?;
        let wall = settle(new.every, new.wall.as_ref())?;
        let (mut volumes, mut groups) = (Vec::new(), Vec::new());
        exchange(&new.name, &mut volumes, &[], &self.scheduled_volumes(&new.volumes)?)?;
        exchange(&new.name, &mut groups, &[], &named(&new.groups))?;
        self.check_scheduled(&new.name, &volumes, &groups)?;
        let mut names = Names::new(|| self.pool.volumes());
        names.learn(volumes.iter().copied().zip(new.volumes.iter().cloned()));
        self.schedules.update(|plans| {
            if plans.contains_key(&new.name) {
                let text = format!("create schedule {}: the name is taken", new.name);
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            if let Some((other, _)) = plans.iter().find(|(_, plan)| plan.prefix == *prefix) {
                let text = format!(
                    "create schedule {}: snapshots of {other} are named {prefix}-TIME; choose another prefix",
                    new.name
                );
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            if plans.len() >= MAX_SCHEDULES {
                return Err(invalid(format!(
                    "create a schedule: the limit of {MAX_SCHEDULES} schedules is reached"
                )));
            }
            let since = Timestamp::now();
            let (prefix, every, keep) = (prefix.clone(), new.every, new.keep);
            let plan = Plan { prefix, volumes, groups, every, wall, keep, paused: false, since };
            plans.insert(new.name.clone(), plan);
            Ok(())
        })?;
        let of = self.schedules.get(&new.name)?;
        Ok(self.shown_schedule(&new.name, of, &mut names))
    }

    /// Finds the volumes that a request about a schedule names, beside those of groups.
    fn scheduled_volumes<'a>(&self, names: &'a [String]) -> Result<Vec<(Uuid, &'a String)>> {
        names.iter().map(|name| Ok((self.pool.volume(name)?.uuid, name))).collect()
    }

    /// Checks the number of volumes of a schedule, those of its groups included.
    fn check_scheduled(&self, name: &str, volumes: &[Uuid], groups: &[String]) -> Result<()> {
        let mut all: BTreeSet<Uuid> = volumes.iter().copied().collect();
        for group in groups {
            all.extend(self.groups.get(group)?);
        }
        // A group may be empty for now.
        let is_empty = volumes.is_empty() && groups.is_empty();
        if is_empty || all.len() > MAX_VOLUMES || groups.len() > MAX_VOLUMES {
            return Err(invalid(format!("schedule {name}: it needs 1 to {MAX_VOLUMES} volumes")));
        }
        Ok(())
    }

    /// Changes the volumes and groups of a schedule.
    fn change_members(&self, name: &str, plan: &mut Plan, patch: &PatchSchedule) -> Result<()> {
        if [&patch.add, &patch.remove, &patch.add_groups, &patch.remove_groups].iter().all(|l| l.is_empty()) {
            return Ok(());
        }
        // Volumes that were deleted for good leave the schedule with its next change.
        let known = self.known_volumes();
        plan.volumes.retain(|id| known.contains(id));
        let (removed, added) = (self.scheduled_volumes(&patch.remove)?, self.scheduled_volumes(&patch.add)?);
        exchange(name, &mut plan.volumes, &removed, &added)?;
        exchange(name, &mut plan.groups, &named(&patch.remove_groups), &named(&patch.add_groups))?;
        self.check_scheduled(name, &plan.volumes, &plan.groups)?;
        if !patch.add.is_empty() || !patch.add_groups.is_empty() {
            // Runs before now were not missed for the new volumes.
            plan.since = Timestamp::now();
        }
        Ok(())
    }

    /// Changes a schedule.
    pub(crate) fn patch_schedule(&self, name: &str, patch: &PatchSchedule) -> Result<Schedule> {
        self.schedules.update(|plans| {
            let plan = plans.get_mut(name).ok_or_else(|| not_found(name))?;
            if plan.paused && patch.paused == Some(false) {
                plan.since = Timestamp::now();
            }
            plan.paused = patch.paused.unwrap_or(plan.paused);
            let every = patch.every.unwrap_or(plan.every);
            if patch.every.is_some() || patch.wall.is_some() {
                let wall = settle(every, patch.wall.as_ref().or(plan.wall.as_ref()))?;
                if wall != plan.wall {
                    // The new times of days before now were not missed.
                    plan.since = Timestamp::now();
                }
                (plan.every, plan.wall) = (every, wall);
            }
            plan.keep = patch.keep.unwrap_or(plan.keep);
            self.change_members(name, plan, patch)
        })?;
        self.schedule(name)
    }

    /// Deletes a schedule. Its snapshots stay.
    pub(crate) fn delete_schedule(&self, name: &str) -> Result<()> {
        self.schedules.update(|plans| plans.remove(name).map(|_| ()).ok_or_else(|| not_found(name)))
    }

    /// Runs the schedules that are due. Returns the time until the next one is due.
    fn run_due(&self) -> Duration {
        let (plans, mut nap) = self.schedules.to_look_at(Timestamp::now());
        // After the plans: a volume that is not found was deleted.
        let mut names = Names::new(|| self.pool.volumes());
        for (name, plan) in plans {
            if self.schedules.waker.is_stopping() {
                break;
            }
            let Ok((now_planned, run)) = self.schedules.get(&name) else { continue };
            if now_planned != plan {
                // It was changed since this round began: it is the next one's.
                nap = Duration::ZERO;
                continue;
            }
            let Ok(timing) = plan.timing() else { continue };
            let members = self.members(&plan);
            let volumes = names.of(&self.pool, members.as_ref().unwrap_or(&plan.volumes));
            let now = Timestamp::now();
            let slot = match run.slot {
                Some(_) => when::due(run.slot, std::iter::empty(), &timing, now),
                None => when::due(None, ran(&plan, &self.snapshots_of(&plan, &volumes)), &timing, now),
            };
            if slot > now {
                self.schedules.set_slot(name, slot);
                nap = nap.min(until(slot, now));
                continue;
            }
            nap = Duration::ZERO;
            let result = members.and_then(|_| self.run_schedule(&plan, &volumes, now, &timing.zone()));
            match &result {
                Ok(snapshot) => tracing::info!(
                    event = "schedule.ran",
                    schedule = name,
                    snapshot,
                    count = volumes.len(),
                    "a schedule took snapshots"
                ),
                Err(error) => {
                    tracing::warn!(event = "schedule.failed", schedule = name, %error, "a schedule failed");
                }
            }
            // A failure is not tried again before the next slot either.
            self.schedules.ended(name, now, timing.next(now), result.map(drop));
        }
        nap
    }

    /// Takes the snapshots of a schedule, and deletes those that it does not keep. Returns the name
    /// that the snapshots have in all volumes.
    fn run_schedule(
        &self,
        plan: &Plan,
        volumes: &[String],
        now: Timestamp,
        zone: &TimeZone,
    ) -> Result<String> {
        if volumes.is_empty() {
            let text = match plan.groups.is_empty() {
                true => "take snapshots: its volumes were deleted",
                false => "take snapshots: its groups have no volumes",
            };
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        if volumes.len() > MAX_VOLUMES {
            let count = volumes.len();
            let text =
                format!("take snapshots: its groups have {count} volumes, and {MAX_VOLUMES} are the most");
            return Err(invalid(text));
        }
        let snapshot = self.free_name(plan, volumes, now);
        let new = |v: &String| NewSnapshot { volume: v.clone(), name: Some(snapshot.clone()) };
        let snapshots = volumes.iter().map(new).collect();
        self.create_snapshots(&CreateSnapshots { snapshots, ..CreateSnapshots::default() })?;
        for volume in volumes {
            self.prune(plan, volume, zone)?;
        }
        Ok(snapshot)
    }

    /// Returns a name that is free in all volumes. It has the time now, or the next free second if
    /// the clock was set back and that name is used.
    fn free_name(&self, plan: &Plan, volumes: &[String], now: Timestamp) -> String {
        let is_taken = |name: &str| volumes.iter().any(|v| self.pool.is_taken(v, name).unwrap_or(false));
        let later = |seconds| now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        let names = (0..NAMES_TRIED).map(|n| format!("{}-{}", plan.prefix, time_name(later(n))));
        let mut names = names.skip_while(|name| is_taken(name));
        names.next().unwrap_or_else(|| format!("{}-{}", plan.prefix, time_name(now)))
    }

    /// Deletes the snapshots that the retention does not keep. A snapshot that may not be deleted
    /// now stays until a later run. While expiry by time is suspended, a retention by hours, days
    /// or longer deletes nothing.
    fn prune(&self, plan: &Plan, volume: &str, zone: &TimeZone) -> Result<()> {
        if self.pool.is_forgetting_suspended() && retention::goes_by_time(&plan.keep) {
            return Ok(());
        }
        let mut theirs = self.pool.snapshots(volume)?;
        theirs.retain(|s| is_of(&plan.prefix, &s.name));
        let times: Vec<Timestamp> = theirs.iter().map(taken).collect();
        let gone = retention::expired(&times, &plan.keep, zone);
        let names: Vec<&str> = gone.iter().map(|i| theirs[*i].name.as_str()).collect();
        for batch in names.chunks(MAX_AT_ONCE) {
            match self.delete_snapshots(volume, batch, false) {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    for name in batch {
                        if let Err(error) = self.delete_snapshots(volume, &[name], false) {
                            tracing::debug!(volume, name, %error, "a snapshot could not be deleted as scheduled");
                        }
                    }
                }
                other => other?,
            }
        }
        Ok(())
    }
}

/// Pairs each group with its name, which is the same.
fn named(groups: &[String]) -> Vec<(String, &String)> {
    groups.iter().map(|name| (name.clone(), name)).collect()
}

/// Removes items from the volumes or groups of a schedule, and adds others at the end. Each item
/// comes with the name by which a request calls it.
fn exchange<T: PartialEq + Clone>(
    schedule: &str,
    of: &mut Vec<T>,
    removed: &[(T, &String)],
    added: &[(T, &String)],
) -> Result<()> {
    if let Some((_, name)) = removed.iter().find(|(item, _)| !of.contains(item)) {
        let text = format!(
            "remove {name} from schedule {schedule}: the schedule does not name it; see `hindcast schedule show {schedule}`"
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    of.retain(|item| !removed.iter().any(|(gone, _)| gone == item));
    for (item, name) in added {
        if of.contains(item) {
            return Err(invalid(format!("schedule {schedule}: {name} is named twice")));
        }
        of.push(item.clone());
    }
    Ok(())
}

/// Returns a time by the clock on the wall of a zone, with its offset from UTC.
fn local_name(at: Timestamp, zone: TimeZone) -> String {
    at.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Returns the times of a schedule's runs, from its snapshots, and the time when it was created or
/// resumed.
fn ran(plan: &Plan, snapshots: &[SnapshotInfo]) -> impl Iterator<Item = Timestamp> {
    snapshots.iter().map(taken).chain([plan.since])
}

/// Starts the thread that runs schedules. A change of schedules wakes it.
pub(crate) fn start(app: Arc<App>) -> io::Result<Worker> {
    let waker = app.schedules.waker.clone();
    Worker::start_paced("schedules", LONGEST_NAP, waker, move || ControlFlow::Continue(app.run_due()))
}
