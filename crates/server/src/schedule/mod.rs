//! Schedules: snapshots that are taken and deleted by time.
//!
//! The data directory keeps what each schedule has to do. The snapshots themselves show what it has
//! done, by their names: a prefix that no other schedule has, and the time. So a run writes nothing
//! else. After a crash the next run is due at the time at which it would have been due anyway.

mod names;
mod stored;
mod when;

/// Name, kind and version of the file of schedules.
pub(crate) const STORED: (&str, &str, u32) = (stored::FILE, stored::KIND, stored::VERSION);

/// The content of the file of schedules with other identities of volumes: the new ones, by the old
/// ones.
pub(crate) fn renew(content: &[u8], identities: &BTreeMap<Uuid, Uuid>) -> Result<Vec<u8>> {
    let mut plans = stored::decode(content)?;
    for id in plans.values_mut().flat_map(|plan| &mut plan.volumes) {
        *id = *identities.get(id).unwrap_or(id);
    }
    stored::encode(&plans)
}

/// The names of all schedules, as the file has them.
pub(crate) fn names(dir: &Arc<dyn Dir>) -> Result<Vec<String>> {
    let file = DurableFile::new(dir.clone(), stored::FILE, stored::KIND, stored::VERSION);
    let content = file.read()?;
    Ok(content.map_or_else(|| Ok(BTreeMap::new()), |bytes| stored::decode(&bytes))?.into_keys().collect())
}

/// Does the file of schedules mean something?
pub(crate) fn verify(content: &[u8]) -> Result<()> {
    stored::decode(content).map(drop)
}

use crate::app::App;
use crate::atomic_file::DurableFile;
use crate::snapshots::{MAX_AT_ONCE, taken, time_name};
use hindcast_api::{CreateSchedule, CreateSnapshots, NewSnapshot, PatchSchedule, Retention, Schedule};
use hindcast_engine::disk::Dir;
use hindcast_engine::pool::SnapshotInfo;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::{SignedDuration, Timestamp};
use names::Names;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Seconds between the snapshots of one schedule.
const EVERY: std::ops::RangeInclusive<u64> = 10..=31 * 24 * 3600;
/// A snapshot's name has to hold a prefix and a time.
const MAX_NAME: usize = 64;
const MAX_SCHEDULES: usize = 1000;
/// Volumes of one schedule: what one operation can take snapshots of.
const MAX_VOLUMES: usize = MAX_AT_ONCE;
/// Seconds after now that a snapshot may be named by, where the clock was put back.
const NAMES_TRIED: i64 = 1000;
/// The wall clock may be set meanwhile.
const LONGEST_NAP: Duration = Duration::from_secs(5);

type Uuid = [u8; 16];

/// A schedule, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// What the names of its snapshots begin with.
    prefix: String,
    volumes: Vec<Uuid>,
    every: u64,
    keep: Retention,
    paused: bool,
    /// Created or resumed: what would have been due before was not missed.
    since: Timestamp,
}

/// What became of a schedule since the server was started.
#[derive(Debug, Clone, Default)]
struct Run {
    /// The slot of the next run, computed when the one before was over. None: nothing was computed
    /// since the server was started or the schedule was changed.
    slot: Option<Timestamp>,
    done: Option<Timestamp>,
    error: Option<String>,
}

#[derive(Default)]
struct State {
    plans: BTreeMap<String, Plan>,
    runs: BTreeMap<String, Run>,
    /// Why the file of schedules could not be read. Nothing runs then, and the file stays as it is.
    unreadable: Option<String>,
    stopping: bool,
}

/// All schedules.
pub(crate) struct Schedules {
    file: DurableFile,
    state: Mutex<State>,
    /// A schedule was changed, or the thread is to end.
    changed: Condvar,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn check_name(name: &str) -> Result<()> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && name.len() <= MAX_NAME && name.bytes().all(ok) {
        return Ok(());
    }
    Err(invalid(format!(
        "use {name:?} for a schedule: a name or prefix must have 1 to {MAX_NAME} letters, digits, dots, underscores and hyphens, and start with a letter or digit"
    )))
}

fn check_every(every: u64) -> Result<()> {
    if EVERY.contains(&every) {
        return Ok(());
    }
    Err(invalid(format!("take snapshots every {every} seconds: the interval must be 10 seconds to 31 days")))
}

/// Whether the schedule with this prefix took a snapshot: its name is the prefix and a time. A
/// snapshot that was renamed belongs to no schedule.
fn is_of(prefix: &str, snapshot: &str) -> bool {
    let time = snapshot.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    time.is_some_and(|time| {
        let pattern = |(i, b): (usize, u8)| match i {
            8 => b == b'T',
            15 => b == b'Z',
            _ => b.is_ascii_digit(),
        };
        time.len() == 16 && time.bytes().enumerate().all(pattern)
    })
}

impl Schedules {
    /// Reads the file of schedules in the data directory. A file that can't be read does not keep
    /// the server from starting: the volumes are served, no schedule runs, and health says so.
    pub(crate) fn open(dir: Arc<dyn Dir>) -> Schedules {
        let file = DurableFile::new(dir, stored::FILE, stored::KIND, stored::VERSION);
        let read = || file.load()?.map_or_else(|| Ok(BTreeMap::new()), |bytes| stored::decode(&bytes));
        let state = match read() {
            Ok(plans) => State { plans, ..State::default() },
            Err(error) => {
                tracing::error!(%error, "no schedule runs");
                State { unreadable: Some(error.to_string()), ..State::default() }
            }
        };
        Schedules { file, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Why the schedules could not be read, if that is so.
    pub(crate) fn unreadable(&self) -> Option<String> {
        self.state.lock().unreadable.clone()
    }

    /// Fails when the schedules could not be read: none of them is known, and the file must not be
    /// replaced.
    fn check_readable(&self) -> Result<()> {
        self.unreadable().map_or(Ok(()), |why| {
            let text = format!(
                "use schedules: their file could not be read; repair it, then restart the server: {why}"
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    /// Changes them. The change counts, and survives power loss, when this returns.
    fn update(&self, change: impl FnOnce(&mut BTreeMap<String, Plan>) -> Result<()>) -> Result<()> {
        self.check_readable()?;
        let mut state = self.state.lock();
        let mut next = state.plans.clone();
        change(&mut next)?;
        self.file.save(&stored::encode(&next)?)?;
        let State { plans, runs, .. } = &mut *state;
        let before = std::mem::replace(plans, next);
        runs.retain(|name, _| plans.contains_key(name));
        // The slot that was computed for a plan means nothing to another one.
        for (_, run) in runs.iter_mut().filter(|(name, _)| before.get(*name) != plans.get(*name)) {
            run.slot = None;
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, name: &str) -> Result<(Plan, Run)> {
        self.check_readable()?;
        let state = self.state.lock();
        let plan = state.plans.get(name).cloned().ok_or_else(|| not_found(name))?;
        Ok((plan, state.runs.get(name).cloned().unwrap_or_default()))
    }

    fn names(&self) -> Vec<String> {
        self.state.lock().plans.keys().cloned().collect()
    }

    /// The schedules that a round has to look at closely, and how long until another one is due.
    ///
    /// A schedule that is not due by its slot needs no look, nor does one whose slot follows from
    /// when it was created or resumed: there can be many, and a look costs as much as its
    /// snapshots.
    fn to_look_at(&self, now: Timestamp) -> (Vec<(String, Plan)>, Duration) {
        let mut nap = LONGEST_NAP;
        let mut found = Vec::new();
        let State { plans, runs, .. } = &mut *self.state.lock();
        for (name, plan) in plans.iter().filter(|(_, plan)| !plan.paused) {
            let kept = runs.get(name).and_then(|run| run.slot);
            let slot = match kept {
                Some(_) => when::due(kept, std::iter::empty(), plan.every, now),
                None => match when::first(plan.since, plan.every, now) {
                    Some(slot) => slot,
                    None => {
                        found.push((name.clone(), plan.clone()));
                        continue;
                    }
                },
            };
            if slot <= now {
                found.push((name.clone(), plan.clone()));
                continue;
            }
            if kept != Some(slot) {
                runs.entry(name.clone()).or_default().slot = Some(slot);
            }
            nap = nap.min(until(slot, now));
        }
        (found, nap)
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }
}

fn until(slot: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(slot.duration_since(now)).unwrap_or(LONGEST_NAP)
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("find schedule {name}: it does not exist"))
}

impl App {
    /// All schedules, by name.
    pub(crate) fn list_schedules(&self) -> Result<Vec<Schedule>> {
        self.schedules.check_readable()?;
        let plans = self.schedules.names();
        let plans = plans.into_iter().filter_map(|name| Some((self.schedules.get(&name).ok()?, name)));
        let plans: Vec<((Plan, Run), String)> = plans.collect();
        // After the plans: a volume that is not found was deleted.
        let mut names = Names::new(|| self.pool.volumes());
        Ok(plans.into_iter().map(|(of, name)| self.shown_schedule(&name, of, &mut names)).collect())
    }

    /// When each schedule ran last since the server was started, if it did, and whether the last
    /// run failed; by name.
    pub(crate) fn schedule_runs(&self) -> Vec<(String, Option<Timestamp>, bool)> {
        let state = self.schedules.state.lock();
        let run = |name: &String| {
            let run = state.runs.get(name);
            (name.clone(), run.and_then(|r| r.done), run.is_some_and(|r| r.error.is_some()))
        };
        state.plans.keys().map(run).collect()
    }

    /// The schedules whose last run failed since the server was started, and why.
    pub(crate) fn failing_schedules(&self) -> Vec<(String, String)> {
        let state = self.schedules.state.lock();
        let failing = state.runs.iter().filter_map(|(name, run)| Some((name.clone(), run.error.clone()?)));
        failing.collect()
    }

    /// One schedule.
    pub(crate) fn schedule(&self, name: &str) -> Result<Schedule> {
        let of = self.schedules.get(name)?;
        Ok(self.shown_schedule(name, of, &mut Names::new(|| self.pool.volumes())))
    }

    fn shown_schedule(&self, name: &str, (plan, run): (Plan, Run), names: &mut Names<'_>) -> Schedule {
        let volumes = names.of(&self.pool, &plan.volumes);
        let snapshots = self.snapshots_of(&plan, &volumes);
        let next = when::due(run.slot, ran(&plan, &snapshots), plan.every, Timestamp::now());
        Schedule {
            name: name.to_owned(),
            prefix: plan.prefix,
            volumes,
            every: plan.every,
            keep: plan.keep,
            paused: plan.paused,
            since: plan.since,
            next: (!plan.paused).then_some(next),
            last_run: run.done,
            error: run.error,
            snapshots: snapshots.len() as u64,
        }
    }

    /// A schedule's snapshots of volumes.
    fn snapshots_of(&self, plan: &Plan, volumes: &[String]) -> Vec<SnapshotInfo> {
        let of = |v: &String| self.pool.snapshots(v).unwrap_or_default();
        volumes.iter().flat_map(of).filter(|s| is_of(&plan.prefix, &s.name)).collect()
    }

    /// Creates a schedule; it runs when it is due the first time.
    pub(crate) fn create_schedule(&self, new: &CreateSchedule) -> Result<Schedule> {
        let prefix = new.prefix.as_ref().unwrap_or(&new.name);
        check_name(&new.name)?;
        check_name(prefix)?;
        check_every(new.every)?;
        if new.volumes.is_empty() || new.volumes.len() > MAX_VOLUMES {
            return Err(invalid(format!(
                "create schedule {}: it needs 1 to {MAX_VOLUMES} volumes",
                new.name
            )));
        }
        let mut volumes: Vec<Uuid> = Vec::new();
        for name in &new.volumes {
            let id = self.pool.volume(name)?.uuid;
            if volumes.contains(&id) {
                return Err(invalid(format!("create schedule {}: {name} is named twice", new.name)));
            }
            volumes.push(id);
        }
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
            let plan = Plan { prefix, volumes, every, keep, paused: false, since };
            plans.insert(new.name.clone(), plan);
            Ok(())
        })?;
        let of = self.schedules.get(&new.name)?;
        Ok(self.shown_schedule(&new.name, of, &mut names))
    }

    /// Changes a schedule.
    pub(crate) fn patch_schedule(&self, name: &str, patch: &PatchSchedule) -> Result<Schedule> {
        patch.every.map_or(Ok(()), check_every)?;
        self.schedules.update(|plans| {
            let plan = plans.get_mut(name).ok_or_else(|| not_found(name))?;
            if plan.paused && patch.paused == Some(false) {
                plan.since = Timestamp::now();
            }
            plan.paused = patch.paused.unwrap_or(plan.paused);
            plan.every = patch.every.unwrap_or(plan.every);
            plan.keep = patch.keep.unwrap_or(plan.keep);
            Ok(())
        })?;
        self.schedule(name)
    }

    /// Deletes a schedule; its snapshots stay.
    pub(crate) fn delete_schedule(&self, name: &str) -> Result<()> {
        self.schedules.update(|plans| plans.remove(name).map(|_| ()).ok_or_else(|| not_found(name)))
    }

    /// Runs what is due. Tells how long until something else is.
    fn run_due(&self) -> Duration {
        let (plans, mut nap) = self.schedules.to_look_at(Timestamp::now());
        // After the plans: a volume that is not found was deleted.
        let mut names = Names::new(|| self.pool.volumes());
        for (name, plan) in plans {
            if self.schedules.is_stopping() {
                break;
            }
            let Ok((now_planned, run)) = self.schedules.get(&name) else { continue };
            if now_planned != plan {
                // It was changed since this round began: it is the next one's.
                nap = Duration::ZERO;
                continue;
            }
            let volumes = names.of(&self.pool, &plan.volumes);
            let now = Timestamp::now();
            let slot = match run.slot {
                Some(_) => when::due(run.slot, std::iter::empty(), plan.every, now),
                None => when::due(None, ran(&plan, &self.snapshots_of(&plan, &volumes)), plan.every, now),
            };
            if slot > now {
                self.schedules.state.lock().runs.entry(name).or_default().slot = Some(slot);
                nap = nap.min(until(slot, now));
                continue;
            }
            nap = Duration::ZERO;
            let result = self.run_schedule(&plan, &volumes, now);
            if let Err(error) = &result {
                tracing::warn!(schedule = name, %error, "a schedule failed");
            }
            let mut state = self.schedules.state.lock();
            let run = state.runs.entry(name).or_default();
            // A failure is not tried again before the next slot either.
            run.slot = Some(when::next(now, plan.every));
            run.done = result.is_ok().then_some(now).or(run.done);
            run.error = result.err().map(|e| e.to_string());
        }
        nap
    }

    fn run_schedule(&self, plan: &Plan, volumes: &[String], now: Timestamp) -> Result<()> {
        if volumes.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "take snapshots: its volumes were deleted"));
        }
        let snapshot = self.free_name(plan, volumes, now);
        let new = |v: &String| NewSnapshot { volume: v.clone(), name: Some(snapshot.clone()) };
        let snapshots = volumes.iter().map(new).collect();
        self.create_snapshots(&CreateSnapshots { snapshots, ..CreateSnapshots::default() })?;
        for volume in volumes {
            self.prune(plan, volume)?;
        }
        Ok(())
    }

    /// A name that is free in all volumes: the time now, or the next free second where the clock
    /// was put back and that time is used up.
    fn free_name(&self, plan: &Plan, volumes: &[String], now: Timestamp) -> String {
        let is_taken = |name: &str| volumes.iter().any(|v| self.pool.is_taken(v, name).unwrap_or(false));
        let later = |seconds| now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        let names = (0..NAMES_TRIED).map(|n| format!("{}-{}", plan.prefix, time_name(later(n))));
        let mut names = names.skip_while(|name| is_taken(name));
        names.next().unwrap_or_else(|| format!("{}-{}", plan.prefix, time_name(now)))
    }

    /// Deletes what is kept no more. What may not be deleted stays until it may; while the clock is
    /// in doubt, so does everything that goes by hours and days.
    fn prune(&self, plan: &Plan, volume: &str) -> Result<()> {
        if self.pool.is_forgetting_suspended() && when::goes_by_time(&plan.keep) {
            return Ok(());
        }
        let mut theirs = self.pool.snapshots(volume)?;
        theirs.retain(|s| is_of(&plan.prefix, &s.name));
        let times: Vec<Timestamp> = theirs.iter().map(taken).collect();
        let gone = when::expired(&times, &plan.keep);
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

/// When a schedule ran, as its snapshots tell, and when it was created or resumed.
fn ran(plan: &Plan, snapshots: &[SnapshotInfo]) -> impl Iterator<Item = Timestamp> {
    snapshots.iter().map(taken).chain([plan.since])
}

/// The thread that runs schedules.
pub(crate) struct Scheduler {
    app: Arc<App>,
    thread: JoinHandle<()>,
}

impl Scheduler {
    /// Starts it.
    pub(crate) fn start(app: Arc<App>) -> std::io::Result<Scheduler> {
        let theirs = app.clone();
        let thread = std::thread::Builder::new().name("schedules".into()).spawn(move || run(&theirs))?;
        Ok(Scheduler { app, thread })
    }

    /// Ends it after the run that it is in.
    pub(crate) fn stop(self) {
        self.app.schedules.state.lock().stopping = true;
        self.app.schedules.changed.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the schedule thread panicked (the log has its message)");
        }
    }
}

fn run(app: &App) {
    while !app.schedules.state.lock().stopping {
        let nap = app.run_due();
        let mut state = app.schedules.state.lock();
        if !state.stopping && !nap.is_zero() {
            app.schedules.changed.wait_for(&mut state, nap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::disk::FileDir;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn plan(prefix: &str, since: &str) -> Plan {
        let (prefix, since) = (prefix.to_owned(), at(since));
        Plan { prefix, volumes: vec![[1; 16]], every: 3600, keep: Retention::default(), paused: false, since }
    }

    #[test]
    fn a_round_looks_at_what_is_due_or_unknown_only() {
        let place = tempfile::tempdir().unwrap();
        let schedules = Schedules::open(Arc::new(FileDir::new(place.path())));
        let plans = [
            ("due", plan("due", "2026-11-20T00:00:00Z")),
            ("later", plan("later", "2026-11-20T00:00:00Z")),
            ("new", plan("new", "2026-11-22T09:10:00Z")),
            ("old", plan("old", "2026-11-20T00:00:00Z")),
            ("paused", Plan { paused: true, ..plan("paused", "2026-11-20T00:00:00Z") }),
        ];
        let all = plans.map(|(name, plan)| (name.to_owned(), plan));
        schedules
            .update(|plans| {
                plans.extend(all);
                Ok(())
            })
            .unwrap();
        let slot = |name: &str, slot: &str| {
            schedules.state.lock().runs.entry(name.into()).or_default().slot = Some(at(slot));
        };
        slot("due", "2026-11-22T09:00:00Z");
        slot("later", "2026-11-22T10:00:00Z");
        let looked_at = |now: &str| -> (Vec<String>, Duration) {
            let (found, nap) = schedules.to_look_at(at(now));
            (found.into_iter().map(|(name, _)| name).collect(), nap)
        };
        // When the old one is due is not known before its snapshots are examined.
        assert_eq!(looked_at("2026-11-22T09:30:00Z"), (vec!["due".into(), "old".into()], LONGEST_NAP));
        slot("due", "2026-11-22T10:00:00Z");
        slot("old", "2026-11-22T10:00:00Z");
        assert_eq!(looked_at("2026-11-22T09:59:58Z"), (vec![], Duration::from_secs(2)));
        let all = ["due", "later", "new", "old"].map(str::to_owned).to_vec();
        assert_eq!(looked_at("2026-11-22T10:00:00Z").0, all);
    }

    #[test]
    fn snapshots_are_told_by_their_names() {
        assert!(is_of("auto", "auto-20261122T031400Z"));
        assert!(is_of("a-b", "a-b-20261122T031400Z"));
        for other in [
            "auto-20261122T031400",
            "auto20261122T031400Z",
            "aut-20261122T031400Z",
            "auto-2026112xT031400Z",
            "auto-",
        ] {
            assert!(!is_of("auto", other), "{other}");
        }
        assert!(!is_of("a", "a-b-20261122T031400Z"), "of another schedule");
    }

    #[test]
    fn names_and_intervals_are_checked() {
        for name in ["a", "Hourly_1.x-y"] {
            check_name(name).unwrap();
        }
        for name in ["", "-a", "a b", "a@b", &"x".repeat(65)] {
            assert_eq!(check_name(name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        assert!(check_every(9).is_err() && check_every(10).is_ok() && check_every(u64::MAX).is_err());
    }
}
