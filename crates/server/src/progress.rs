//! Progress of background tasks: rates, and the time that is left.

use hindcast_api::{Task, TaskState};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Instant;

/// What was seen of the tasks before. Rates come from it.
#[derive(Default)]
pub(crate) struct SeenTasks(Mutex<BTreeMap<String, Seen>>);

/// A task when it was first seen.
#[derive(Clone, Copy)]
struct Seen {
    begun: Timestamp,
    at: Instant,
    done: u64,
    /// Bytes that were left then, for a task that only knows those.
    left: u64,
}

/// What a part of the server knows of a task. Progress is in bytes.
pub(crate) struct Known {
    kind: &'static str,
    subject: String,
    progress: Progress,
    waits: Option<String>,
    can_stop: bool,
}

pub(crate) enum Progress {
    Done { done: u64, total: Option<u64> },
    Left(u64),
}

impl Known {
    /// Makes a task that a request can stop. With `waits` it waits for something.
    pub(crate) fn new(kind: &'static str, subject: &str, progress: Progress, waits: Option<String>) -> Known {
        Known { kind, subject: subject.to_owned(), progress, waits, can_stop: true }
    }

    /// Makes it a task that no request can stop.
    pub(crate) fn without_stop(self) -> Known {
        Known { can_stop: false, ..self }
    }
}

impl SeenTasks {
    /// Returns tasks as the API has them. Forgets those that have ended.
    pub(crate) fn shown(&self, known: Vec<Known>) -> Vec<Task> {
        let mut seen = self.0.lock();
        let mut next = BTreeMap::new();
        let (now, time) = (Instant::now(), Timestamp::now());
        let shown = |known: Known| {
            let id = format!("{}:{}", known.kind, known.subject);
            let (done, left) = match known.progress {
                Progress::Done { done, .. } => (done, 0),
                Progress::Left(left) => (0, left),
            };
            let first = *seen.get(&id).unwrap_or(&Seen { begun: time, at: now, done, left });
            next.insert(id.clone(), first);
            let (done, total) = match known.progress {
                Progress::Done { done, total } => (done, total),
                Progress::Left(left) => (first.left.saturating_sub(left), Some(first.left.max(left))),
            };
            let (seconds, moved) =
                (now.duration_since(first.at).as_secs_f64(), done.saturating_sub(first.done));
            let rate = (seconds >= 1.0 && known.waits.is_none()).then(|| moved as f64 / seconds);
            let left = total.map(|total| total.saturating_sub(done) as f64);
            let seconds_left = rate.filter(|rate| *rate > 0.0).and_then(|rate| Some(left? / rate));
            let state = if known.waits.is_some() { TaskState::Waiting } else { TaskState::Running };
            Task {
                id,
                kind: known.kind.to_owned(),
                subject: known.subject,
                begun: first.begun,
                done,
                total,
                rate,
                seconds_left,
                state,
                error: known.waits,
                can_stop: known.can_stop,
            }
        };
        let tasks = known.into_iter().map(shown).collect();
        *seen = next;
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rates_come_from_what_was_seen_before() {
        let seen = SeenTasks::default();
        let at = |done| vec![Known::new("flatten", "db", Progress::Done { done, total: Some(1000) }, None)];
        let first = &seen.shown(at(100))[0];
        assert_eq!((first.id.as_str(), first.rate, first.seconds_left), ("flatten:db", None, None));
        for seen in seen.0.lock().values_mut() {
            seen.at -= Duration::from_secs(10);
        }
        let later = &seen.shown(at(300))[0];
        assert_eq!(later.begun, first.begun);
        assert!(later.rate.is_some_and(|rate| (19.0..=20.0).contains(&rate)), "{:?}", later.rate);
        assert!(later.seconds_left.is_some_and(|left| (35.0..=37.0).contains(&left)), "{later:?}");
        // A drain knows only what is left.
        let left = |left| vec![Known::new("drain", "pv-0", Progress::Left(left), Some("a disk".into()))];
        assert_eq!(seen.shown(left(50))[0].total, Some(50));
        let drain = &seen.shown(left(20))[0];
        assert_eq!((drain.done, drain.total, drain.state), (30, Some(50), TaskState::Waiting));
        assert_eq!(seen.0.lock().len(), 1, "the other one has ended");
    }
}
