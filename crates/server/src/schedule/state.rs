//! All schedules ([`Schedules`]): the plans in their file, and how each has fared since the server
//! was started.

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

/// The wall clock may be set meanwhile.
pub(crate) const LONGEST_NAP: Duration = Duration::from_secs(5);

/// What became of a schedule since the server was started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    /// The slot of the next run, computed when the one before was over. None: nothing was computed
    /// since the server was started or the schedule was changed.
    pub(crate) slot: Option<Timestamp>,
    pub(crate) done: Option<Timestamp>,
    pub(crate) error: Option<String>,
}

/// The plans, and how they fare.
#[derive(Default)]
pub(crate) struct State {
    plans: BTreeMap<String, Plan>,
    runs: BTreeMap<String, Run>,
    /// Why the file of schedules could not be read. Nothing runs then, and the file stays as it is.
    unreadable: Option<String>,
}

/// All schedules.
pub(crate) struct Schedules {
    file: DurableFile,
    pub(crate) state: Mutex<State>,
    /// Wakes the thread that runs schedules.
    pub(crate) waker: Waker,
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
        Schedules { file, state: Mutex::new(state), waker: Waker::default() }
    }

    /// Why the schedules could not be read, if that is so.
    pub(crate) fn unreadable(&self) -> Option<String> {
        self.state.lock().unreadable.clone()
    }

    /// Fails when the schedules could not be read: none of them is known, and the file must not be
    /// replaced.
    pub(crate) fn check_readable(&self) -> Result<()> {
        self.unreadable().map_or(Ok(()), |why| {
            let text = format!(
                "use schedules: their file could not be read; repair it, then restart the server: {why}"
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    /// Changes them. The change counts, and survives power loss, when this returns.
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
        // The slot that was computed for a plan means nothing to another one.
        for (_, run) in runs.iter_mut().filter(|(name, _)| before.get(*name) != plans.get(*name)) {
            run.slot = None;
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

    /// The schedules that a round has to look at closely, and how long until another one is due.
    ///
    /// A schedule that is not due by its slot needs no look, nor does one whose slot follows from
    /// when it was created or resumed: there can be many, and a look costs as much as its
    /// snapshots.
    pub(crate) fn to_look_at(&self, now: Timestamp) -> (Vec<(String, Plan)>, Duration) {
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

    /// Keeps the slot of a schedule's next run.
    pub(crate) fn set_slot(&self, name: String, slot: Timestamp) {
        self.state.lock().runs.entry(name).or_default().slot = Some(slot);
    }

    /// Keeps how a run at `now` ended, and when the next is due.
    pub(crate) fn ended(&self, name: String, now: Timestamp, next: Timestamp, result: Result<()>) {
        let mut state = self.state.lock();
        let run = state.runs.entry(name).or_default();
        run.slot = Some(next);
        run.done = result.is_ok().then_some(now).or(run.done);
        run.error = result.err().map(|e| e.to_string());
    }

    /// When each schedule ran last since the server was started, if it did, and whether the last
    /// run failed; by name.
    pub(crate) fn runs(&self) -> Vec<(String, Option<Timestamp>, bool)> {
        let state = self.state.lock();
        let run = |name: &String| {
            let run = state.runs.get(name);
            (name.clone(), run.and_then(|r| r.done), run.is_some_and(|r| r.error.is_some()))
        };
        state.plans.keys().map(run).collect()
    }

    /// The schedules whose last run failed since the server was started, and why.
    pub(crate) fn failing(&self) -> Vec<(String, String)> {
        let state = self.state.lock();
        let failing = state.runs.iter().filter_map(|(name, run)| Some((name.clone(), run.error.clone()?)));
        failing.collect()
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
            every: 3600,
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
        // When the old one is due is not known before its snapshots are examined.
        assert_eq!(looked_at("2026-11-22T09:30:00Z"), (vec!["due".into(), "old".into()], LONGEST_NAP));
        slot("due", "2026-11-22T10:00:00Z");
        slot("old", "2026-11-22T10:00:00Z");
        assert_eq!(looked_at("2026-11-22T09:59:58Z"), (vec![], Duration::from_secs(2)));
        let all = ["due", "later", "new", "old"].map(str::to_owned).to_vec();
        assert_eq!(looked_at("2026-11-22T10:00:00Z").0, all);
    }
}
