//! Progress of background tasks: rates, the time that is left, and the tasks that have ended.

use crate::task_kinds;
use hindcast_api::{Task, TaskState};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Time for which a task is listed after its end.
const KEPT: Duration = Duration::from_secs(3600);
/// Time from which on a task of the server itself is listed.
const LASTS: Duration = Duration::from_secs(3);
/// Number of tasks that are listed after their end.
const MAX_KEPT: usize = 256;

/// What was seen of the tasks before. Rates come from it, and the tasks that have ended.
#[derive(Default)]
pub(crate) struct SeenTasks(Mutex<State>);

#[derive(Default)]
struct State {
    going: BTreeMap<String, Seen>,
    /// Tasks that have ended, the newest first.
    ended: VecDeque<(Instant, Task)>,
    /// How tasks end that a request stops, or that fail. Others are done.
    ends: BTreeMap<String, End>,
}

/// How a task ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Stopped,
    Failed(String),
}

/// A task when it was first seen.
#[derive(Clone)]
struct Seen {
    at: Instant,
    done: u64,
    /// Bytes that were left then, for a task that only knows those.
    left: u64,
    /// The task as it was last seen.
    last: Task,
    is_own: bool,
}

/// What a part of the server knows of a task. Progress is in bytes.
#[derive(Clone)]
pub(crate) struct Known {
    kind: &'static str,
    subject: String,
    progress: Progress,
    waits: Option<String>,
    can_stop: bool,
    /// Whether the server does it on its own. See [`Known::own`].
    is_own: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Progress {
    Done { done: u64, total: Option<u64> },
    Left(u64),
    Unknown,
}

impl Known {
    /// Makes a task. A request can stop it if its kind has a way to do so. With `waits` it waits
    /// for something.
    pub(crate) fn new(kind: &'static str, subject: &str, progress: Progress, waits: Option<String>) -> Known {
        let can_stop = task_kinds::find(kind).is_some_and(|kind| kind.stop.is_some());
        Known { kind, subject: subject.to_owned(), progress, waits, can_stop, is_own: false }
    }

    /// Makes a task of the server itself. No request can stop it. It is listed only once it has
    /// lasted, and not after its end: such work comes again and again, and is mostly short.
    pub(crate) fn own(kind: &'static str, subject: &str, progress: Progress, waits: Option<String>) -> Known {
        Known { can_stop: false, is_own: true, ..Known::new(kind, subject, progress, waits) }
    }

    fn id(&self) -> String {
        format!("{}:{}", self.kind, self.subject)
    }
}

impl SeenTasks {
    /// Registers a task that begins now, or goes on, so that its end is seen, however soon it
    /// comes.
    pub(crate) fn begun(&self, kind: &'static str, subject: &str) {
        let known = Known::new(kind, subject, Progress::Done { done: 0, total: None }, None);
        let mut state = self.0.lock();
        state.ends.remove(&known.id());
        state.going.entry(known.id()).or_insert_with(|| Seen::first(&known));
    }

    /// Carries out the request that stops a task. If the request fails, the task ends as it would
    /// have without it.
    pub(crate) fn stopping<T, E>(&self, id: &str, stop: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        // The task can be gone before the request returns.
        self.ends(id, End::Stopped);
        stop().inspect_err(|_| drop(self.0.lock().ends.remove(id)))
    }

    /// Registers how a task that goes on is going to end.
    pub(crate) fn ends(&self, id: &str, end: End) {
        let mut state = self.0.lock();
        if state.going.contains_key(id) {
            state.ends.insert(id.to_owned(), end);
        }
    }

    /// Returns tasks as the API has them: those that go on, and then those that have ended, the
    /// newest first. `known` returns those that go on. `how_ended` tells how a task ended that no
    /// request stopped. `ended` gets the tasks that have ended since the last call.
    pub(crate) fn shown(
        &self,
        known: impl FnOnce() -> Vec<Known>,
        how_ended: impl Fn(&Task) -> End,
        mut ended: impl FnMut(&Task),
    ) -> Vec<Task> {
        // A task that is registered between the look and this lock would count as ended.
        let mut state = self.0.lock();
        let known = known();
        let State { going, ends, .. } = &mut *state;
        let mut next = BTreeMap::new();
        let mut tasks: Vec<Task> = Vec::with_capacity(known.len());
        for known in known {
            let id = known.id();
            let mut seen = going.remove(&id).unwrap_or_else(|| Seen::first(&known));
            seen.look(&known);
            if !seen.is_own || seen.at.elapsed() >= LASTS {
                tasks.push(seen.last.clone());
            }
            next.insert(id, seen);
        }
        let mut gone = std::mem::replace(going, next);
        gone.retain(|_, seen| !seen.is_own);
        let end = |(id, seen): (String, Seen)| {
            let end = ends.remove(&id).unwrap_or_else(|| how_ended(&seen.last));
            seen.ended(end)
        };
        let gone: Vec<Task> = gone.into_iter().map(end).collect();
        gone.iter().for_each(&mut ended);
        let now = Instant::now();
        for task in gone {
            state.ended.push_front((now, task));
        }
        state.ended.truncate(MAX_KEPT);
        state.ended.retain(|(at, _)| now.duration_since(*at) < KEPT);
        tasks.extend(state.ended.iter().map(|(_, task)| task.clone()));
        tasks
    }
}

impl Seen {
    fn first(known: &Known) -> Seen {
        let (done, left) = match known.progress {
            Progress::Done { done, .. } => (done, 0),
            Progress::Left(left) => (0, left),
            Progress::Unknown => (0, 0),
        };
        let last = Task {
            id: known.id(),
            kind: known.kind.to_owned(),
            subject: known.subject.clone(),
            begun: Timestamp::now(),
            ended: None,
            done: 0,
            total: None,
            rate: None,
            seconds_left: None,
            state: TaskState::Running,
            error: None,
            can_stop: known.can_stop,
        };
        Seen { at: Instant::now(), done, left, last, is_own: known.is_own }
    }

    /// Takes over what is known of the task now.
    fn look(&mut self, known: &Known) {
        let (done, total) = match known.progress {
            Progress::Done { done, total } => (done, total),
            Progress::Left(left) => {
                self.left = self.left.max(left);
                (self.left - left, Some(self.left))
            }
            Progress::Unknown => (0, None),
        };
        let (seconds, moved) = (self.at.elapsed().as_secs_f64(), done.saturating_sub(self.done));
        let moves = known.waits.is_none() && !matches!(known.progress, Progress::Unknown);
        let rate = (seconds >= 1.0 && moves).then(|| moved as f64 / seconds);
        let left = total.map(|total| total.saturating_sub(done) as f64);
        let seconds_left = rate.filter(|rate| *rate > 0.0).and_then(|rate| Some(left? / rate));
        let state = if known.waits.is_some() { TaskState::Waiting } else { TaskState::Running };
        self.last = Task {
            done,
            total,
            rate,
            seconds_left,
            state,
            error: known.waits.clone(),
            can_stop: known.can_stop,
            ..self.last.clone()
        };
    }

    /// Returns the task after its end.
    fn ended(self, end: End) -> Task {
        let (state, error) = match end {
            End::Done => (TaskState::Done, None),
            End::Stopped => (TaskState::Stopped, None),
            End::Failed(why) => (TaskState::Failed, Some(why)),
        };
        let last = self.last;
        let done = if state == TaskState::Done { last.total.unwrap_or(last.done) } else { last.done };
        let ended = Some(Timestamp::now());
        Task { done, state, error, ended, rate: None, seconds_left: None, can_stop: false, ..last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_what_was_seen_before() {
        let seen = SeenTasks::default();
        let shown = |known| seen.shown(|| known, |_| End::Done, |_| {});
        let at = |done| vec![Known::new("flatten", "db", Progress::Done { done, total: Some(1000) }, None)];
        let first = &shown(at(100))[0];
        assert_eq!((first.id.as_str(), first.rate, first.seconds_left), ("flatten:db", None, None));
        for seen in seen.0.lock().going.values_mut() {
            seen.at -= Duration::from_secs(10);
        }
        let later = &shown(at(300))[0];
        assert_eq!(later.begun, first.begun);
        assert!(later.rate.is_some_and(|rate| (19.0..=20.0).contains(&rate)), "{:?}", later.rate);
        assert!(later.seconds_left.is_some_and(|left| (35.0..=37.0).contains(&left)), "{later:?}");
        // A drain knows only what is left.
        let left = |left| vec![Known::new("drain", "pv-0", Progress::Left(left), Some("a disk".into()))];
        assert_eq!(shown(left(50))[0].total, Some(50));
        let drain = &shown(left(20))[0];
        assert_eq!((drain.done, drain.total, drain.state), (30, Some(50), TaskState::Waiting));
        assert_eq!(seen.0.lock().going.len(), 1, "the other one has ended");
    }

    #[test]
    fn work_of_the_server_is_listed_while_it_lasts() {
        let seen = SeenTasks::default();
        let look = |left| {
            let known = Known::own("free", "pool", Progress::Left(left), None);
            seen.shown(|| vec![known], |_| End::Done, |_| panic!("it has no event"))
        };
        assert_eq!(look(100), [], "it may end at once");
        for seen in seen.0.lock().going.values_mut() {
            seen.at -= LASTS;
        }
        let listed = &look(40)[0];
        assert_eq!((listed.done, listed.total, listed.can_stop), (60, Some(100), false));
        assert!(listed.rate.is_some_and(|rate| rate > 10.0), "{:?}", listed.rate);
        // More work came.
        assert_eq!((look(120)[0].done, look(120)[0].total), (0, Some(120)));
        assert_eq!(seen.shown(Vec::new, |_| End::Done, |_| panic!("it has no event")), []);
        assert_eq!(look(100), [], "it begins again");
    }

    #[test]
    fn a_task_is_listed_after_its_end() {
        let seen = SeenTasks::default();
        let mut told = Vec::new();
        let mut look = |known| {
            let how = |task: &Task| if task.subject == "gone" { End::Stopped } else { End::Done };
            seen.shown(|| known, how, |task| told.push((task.id.clone(), task.state)))
        };
        let known = |kind, done| Known::new(kind, "db", Progress::Done { done, total: Some(10) }, None);
        seen.begun("scrub", "pool");
        look(vec![
            known("flatten", 1),
            known("import", 2),
            known("drain", 3),
            Known::own("dissolve", "pool", Progress::Unknown, None),
        ]);
        seen.ends("import:db", End::Failed("no space".into()));
        seen.ends("drain:db", End::Stopped);
        seen.ends("other:db", End::Stopped);
        let all = look(Vec::new());
        let of = |id: &str| all.iter().find(|task| task.id == id);
        let end = |id: &str| of(id).map(|task| (task.state, task.done, task.error.as_deref()));
        assert_eq!(end("flatten:db"), Some((TaskState::Done, 10, None)));
        assert_eq!(end("import:db"), Some((TaskState::Failed, 2, Some("no space"))));
        assert_eq!(end("drain:db"), Some((TaskState::Stopped, 3, None)));
        assert_eq!(end("scrub:pool"), Some((TaskState::Done, 0, None)), "it ended before a look");
        assert!(
            of("dissolve:pool").is_none() && all.iter().all(|task| task.ended.is_some() && !task.can_stop)
        );
        look(vec![Known::new("flatten", "gone", Progress::Unknown, None)]);
        assert_eq!(look(Vec::new())[0].state, TaskState::Stopped, "its volume was deleted or renamed");
        // The same subject again.
        let again = look(vec![known("drain", 0)]);
        assert_eq!((again[0].state, again.len()), (TaskState::Running, 6));
        assert_eq!(look(Vec::new())[0].state, TaskState::Done, "the stop was of the earlier one");
        for n in 0..2 * MAX_KEPT {
            look(vec![Known::new("export", &n.to_string(), Progress::Unknown, None)]);
        }
        assert_eq!(look(Vec::new()).len(), MAX_KEPT);
        for (at, _) in &mut seen.0.lock().ended {
            *at -= KEPT;
        }
        assert_eq!(look(Vec::new()), []);
        assert_eq!(told.len(), 6 + 2 * MAX_KEPT);
    }
}
