//! Shortages that pass. Background work that met a shortage waits and tries again, and nothing that
//! was acknowledged is lost. If a physical volume has failed, the work is done again elsewhere.
//!
//! Everything that the host lends can run short: space in a file system, descriptors, memory,
//! threads. Work that fails because of a shortage is taken back up to the last commit
//! ([`crate::destage::Destager::failed`]). It is done again later, at growing intervals. Meanwhile
//! the journal holds what was acknowledged. When the journal is full, writes are refused.

use crate::error::{Error, Result};
use parking_lot::Mutex;

/// Nanoseconds from a failure to the next attempt: after the first failure, and at most.
const FIRST_PAUSE: u64 = 20_000_000;
const LONGEST_PAUSE: u64 = 2_000_000_000;

/// A kind of background work that waits for the end of a shortage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Carrying out the records in the journal.
    Destage,
    /// Freeing slots, moving data, forgetting history.
    Upkeep,
    /// Moving runs of histories to segments of their own.
    Sort,
}

/// The tasks that wait, and the reasons.
#[derive(Default)]
pub(crate) struct Shortages(Mutex<[Option<Waiting>; 3]>);

#[derive(Clone)]
struct Waiting {
    cause: Error,
    /// The time before which the task is not tried again.
    not_before: u64,
    /// The time between the last failure and the next attempt, in nanoseconds.
    pause: u64,
}

impl Shortages {
    /// Notes that a task failed because of a shortage.
    pub(crate) fn met(&self, task: Task, cause: &Error, now: u64) {
        let waiting = &mut self.0.lock()[task as usize];
        if waiting.is_none() {
            tracing::warn!(?task, %cause, "background work waits for the end of a shortage");
        }
        let pause = waiting.as_ref().map_or(FIRST_PAUSE, |w| (w.pause * 2).min(LONGEST_PAUSE));
        *waiting = Some(Waiting { cause: cause.clone(), not_before: now.saturating_add(pause), pause });
    }

    /// Notes that a task succeeded.
    pub(crate) fn over(&self, task: Task) {
        if self.0.lock()[task as usize].take().is_some() {
            tracing::info!(?task, "background work goes on: the shortage is over");
        }
    }

    /// Returns whether the task has waited long enough since it failed last.
    pub(crate) fn may_try(&self, task: Task, now: u64) -> bool {
        let waiting = &self.0.lock()[task as usize];
        waiting.as_ref().is_none_or(|w| now >= w.not_before)
    }

    /// Returns the error that keeps the task from going on.
    pub(crate) fn cause(&self, task: Task) -> Option<Error> {
        self.0.lock()[task as usize].as_ref().map(|w| w.cause.clone())
    }
}

/// Returns the outcome of background work. Work that failed because of a shortage is tried again by
/// itself. The outcome is then `waits`.
pub(super) fn passing<T>(done: Result<T>, waits: T) -> Result<T> {
    match done {
        Err(error) if error.is_shortage() => Ok(waits),
        done => done,
    }
}

/// The state of deleting snapshots because space is short.
#[derive(Default)]
pub(crate) struct Deletions {
    pub(crate) last: Option<LastDeletion>,
    /// A deletion gave no space back. No more snapshots are deleted until
    /// [`crate::core::SharedPositions::returned`] exceeds this.
    pub(crate) futile: Option<u64>,
}

pub(crate) struct LastDeletion {
    /// The time of the deletion, by the monotonic clock, in nanoseconds.
    pub(crate) at: u64,
    /// The amount that had come back before the deletion.
    pub(crate) returned: u64,
    /// The amount that should come back.
    pub(crate) expected: u64,
}

impl LastDeletion {
    pub(crate) fn is_recent(&self, now: u64) -> bool {
        now.saturating_sub(self.at) < DELETION_INTERVAL
    }
}

/// Nanoseconds between two deletions for space that no request waits for.
pub(crate) const DELETION_INTERVAL: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::no_space;

    #[test]
    fn less_and_less_often_and_at_once_when_it_is_over() {
        let shortages = Shortages::default();
        assert!(shortages.may_try(Task::Destage, 0) && shortages.cause(Task::Destage).is_none());
        let mut now = 1_000;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            shortages.met(Task::Destage, &no_space("x"), now);
            assert!(!shortages.may_try(Task::Destage, now) && shortages.may_try(Task::Upkeep, now));
            let from = now;
            while !shortages.may_try(Task::Destage, now) {
                now += FIRST_PAUSE;
            }
            pauses.push(now - from);
        }
        assert!(pauses.is_sorted() && pauses[0] == FIRST_PAUSE && pauses[11] <= LONGEST_PAUSE, "{pauses:?}");
        shortages.over(Task::Destage);
        assert!(shortages.may_try(Task::Destage, now) && shortages.cause(Task::Destage).is_none());
    }
}
