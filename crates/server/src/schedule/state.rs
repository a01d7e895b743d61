//! All schedules ([`Schedules`]): their plans, and the results of their runs since the server
//! started.

use super::plan::Plan;
use super::{stored, when};
use crate::atomic_file::DurableFile;
use crate::periodic::Waker;
use hindcast_engine::disk::Dir;
use hindcast_engine::{Error, ErrorKind, Result};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait between two rounds, 5 seconds. It is short because the wall clock can be set
/// meanwhile.
pub(crate) const LONGEST_NAP: Duration = Duration::from_secs(5);

/// The results of a schedule's runs since the server started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    /// The time of the next run, computed at the end of the run before. `None`: the scheduler has
    /// not computed it since the server started or the schedule was changed.
    pub(crate) slot: Option<Timestamp>,
    pub(crate) done: Option<Timestamp>,
    pub(crate) error: Option<String>,
    /// Why the schedule can't run at present: the database of time zones does not have its zone.
    pub(crate) no_zone: Option<String>,
}

impl Run {
    /// Returns the error that the operator should see.
    pub(crate) fn shown_error(&self) -> Option<&String> {
        self.no_zone.as_ref().or(self.error.as_ref())
    }
}

/// The plans, and the results of their runs.
#[derive(Default)]
pub(crate) struct State {
    plans: BTreeMap<String, Plan>,
    runs: BTreeMap<String, Run>,
    /// The error that occurred when the file of schedules was read. While it is set, no schedule
    /// runs, and the file stays unchanged.
    unreadable: Option<String>,
}

/// All schedules, and the file that stores them.
pub(crate) struct Schedules {
    file: DurableFile,
    pub(crate) state: Mutex<State>,
    /// Wakes the thread that runs schedules.
    pub(crate) waker: Waker,
}

impl Schedules {
    /// Reads the file of schedules in the data directory. The server also starts if the file can't
    /// be read. It then serves the volumes, runs no schedule, and reports the error in its health.
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
        Schedules { file, state: Mutex::new(state), waker: Waker::default() }
    }

    /// Returns the error that occurred when the file of schedules was read, if any.
    pub(crate) fn unreadable(&self) -> Option<String> {
        self.state.lock().unreadable.clone()
    }

    /// Fails if the file of schedules could not be read. The server then knows no schedule, and
    /// must not replace the file.
    pub(crate) fn check_readable(&self) -> Result<()> {
        self.unreadable().map_or(Ok(()), |why| {
            let text = format!(
                "use schedules: their file could not be read; repair it, then restart the server: {why}"
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    /// Changes the plans. When this returns, the change applies and survives a power loss. The
    /// computed time of the next run is dropped for each changed plan.
    pub(crate) fn update(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Plan>) -> Result<()>,
    ) -> Result<()> {
        self.check_readable()?;
        let mut state = self.state.lock();
        let mut next = state.plans.clone();
        change(&mut next)?;
        self.file.save(&stored::encode(&next)?)?;
        let State { plans, runs, .. } = &mut *state;
        let before = std::mem::replace(plans, next);
        runs.retain(|name, _| plans.contains_key(name));
        // The time that was computed for the old plan is wrong for the new one.
        for (_, run) in runs.iter_mut().filter(|(name, _)| before.get(*name) != plans.get(*name)) {
            (run.slot, run.no_zone) = (None, None);
        }
        drop(state);
        self.waker.wake();
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Result<(Plan, Run)> {
        self.check_readable()?;
        let state = self.state.lock();
        let plan = state.plans.get(name).cloned().ok_or_else(|| not_found(name))?;
        Ok((plan, state.runs.get(name).cloned().unwrap_or_default()))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state.lock().plans.keys().cloned().collect()
    }

    /// Returns a schedule that takes snapshots of a group.
    pub(crate) fn of_group(&self, group: &str) -> Option<String> {
        let state = self.state.lock();
        let found = state.plans.iter().find(|(_, plan)| plan.groups.iter().any(|of| of == group));
        found.map(|(name, _)| name.clone())
    }

    /// Returns the schedules that a round must check, and the time until another one is due.
    ///
    /// A schedule whose next run is known and not yet due needs no check. That includes a schedule
    /// whose next run follows from the time when it was created or resumed. There can be many
    /// schedules, and a check reads all snapshots of a schedule. A schedule whose time zone is not
    /// known does not run.
    pub(crate) fn to_look_at(&self, now: Timestamp) -> (Vec<(String, Plan)>, Duration) {
        let mut nap = LONGEST_NAP;
        let mut found = Vec::new();
        let State { plans, runs, .. } = &mut *self.state.lock();
        for (name, plan) in plans.iter().filter(|(_, plan)| !plan.paused) {
            let timing = match plan.timing() {
                Ok(timing) => timing,
                Err(error) => {
                    let run = runs.entry(name.clone()).or_default();
                    if run.no_zone.is_none() {
                        tracing::error!(schedule = name, %error, "a schedule does not run");
                    }
                    run.no_zone = Some(error.to_string());
                    continue;
                }
            };
            if let Some(run) = runs.get_mut(name) {
                run.no_zone = None;
            }
            let kept = runs.get(name).and_then(|run| run.slot);
            let slot = match kept {
                Some(_) => when::due(kept, std::iter::empty(), &timing, now),
                None => match when::first(plan.since, &timing, now) {
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

    /// Stores the time of a schedule's next run.
    pub(crate) fn set_slot(&self, name: String, slot: Timestamp) {
        self.state.lock().runs.entry(name).or_default().slot = Some(slot);
    }

    /// Stores the result of a run at `now`, and the time `next` of the next run.
    pub(crate) fn ended(&self, name: String, now: Timestamp, next: Timestamp, result: Result<()>) {
        let mut state = self.state.lock();
        let run = state.runs.entry(name).or_default();
        run.slot = Some(next);
        run.done = result.is_ok().then_some(now).or(run.done);
        run.error = result.err().map(|e| e.to_string());
    }

    /// Returns, for each schedule, the time of its last successful run since the server started,
    /// and whether its last run failed. The result is sorted by name.
    pub(crate) fn runs(&self) -> Vec<(String, Option<Timestamp>, bool)> {
        let state = self.state.lock();
        let run = |name: &String| {
            let run = state.runs.get(name);
            (name.clone(), run.and_then(|r| r.done), run.is_some_and(|r| r.shown_error().is_some()))
        };
        state.plans.keys().map(run).collect()
    }

    /// Returns the schedules whose last run since the server started failed, or that can't run,
    /// with the error.
    pub(crate) fn failing(&self) -> Vec<(String, String)> {
        let state = self.state.lock();
        let failing = |(name, run): (&String, &Run)| Some((name.clone(), run.shown_error()?.clone()));
        state.runs.iter().filter_map(failing).collect()
    }
}

pub(crate) fn until(slot: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(slot.duration_since(now)).unwrap_or(LONGEST_NAP)
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("find schedule {name}: it does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::Retention;
    use hindcast_engine::disk::FileDir;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn plan(prefix: &str, since: &str) -> Plan {
        let (prefix, since) = (prefix.to_owned(), at(since));
        Plan {
            prefix,
            volumes: vec![uuid::Uuid::from_bytes([1; 16])],
            groups: Vec::new(),
            every: 3600,
            wall: None,
            keep: Retention::default(),
            paused: false,
            since,
        }
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
        // The next run of `old` depends on the times of its snapshots.
        assert_eq!(looked_at("2026-11-22T09:30:00Z"), (vec!["due".into(), "old".into()], LONGEST_NAP));
        slot("due", "2026-11-22T10:00:00Z");
        slot("old", "2026-11-22T10:00:00Z");
        assert_eq!(looked_at("2026-11-22T09:59:58Z"), (vec![], Duration::from_secs(2)));
        let all = ["due", "later", "new", "old"].map(str::to_owned).to_vec();
        assert_eq!(looked_at("2026-11-22T10:00:00Z").0, all);
    }
    /// One schedule whose zone is gone does not keep the others from running.
    #[test]
    fn a_schedule_without_its_zone_does_not_run() {
        let place = tempfile::tempdir().unwrap();
        let schedules = Schedules::open(Arc::new(FileDir::new(place.path())));
        let lost = hindcast_api::WallClock {
            tz: Some("Mars/Olympus".into()),
            between: Some("08:00-18:00".parse().unwrap()),
            ..hindcast_api::WallClock::default()
        };
        schedules
            .update(|plans| {
                plans.insert("good".into(), plan("good", "2026-11-20T00:00:00Z"));
                let lost = Plan { wall: Some(lost), ..plan("lost", "2026-11-20T00:00:00Z") };
                plans.insert("lost".into(), lost);
                Ok(())
            })
            .unwrap();
        let (found, _) = schedules.to_look_at(at("2026-11-22T09:30:00Z"));
        assert_eq!(found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["good"]);
        let failing = schedules.failing();
        assert!(failing.len() == 1 && failing[0].0 == "lost" && failing[0].1.contains("Mars"), "{failing:?}");
        schedules
            .update(|plans| {
                plans.get_mut("lost").unwrap().wall = None;
                Ok(())
            })
            .unwrap();
        assert_eq!(schedules.to_look_at(at("2026-11-22T09:30:00Z")).0.len(), 2);
        assert_eq!(schedules.failing(), []);
    }
}
