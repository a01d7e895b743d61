//! Shortages that pass: background work that met one waits and tries again; nothing that was
//! acknowledged is lost. Where a physical volume has failed the work is done again elsewhere.
//!
//! What can run short is everything that the host lends: space in a file system, descriptors,
//! memory, threads. Work that fails for want of it is taken back up to the last commit
//! ([`crate::destage::Destager::failed`]) and done again later, less and less often. Meanwhile the
//! journal holds what was acknowledged. Once that is full, writes are refused.

use crate::error::{Error, Result};
use parking_lot::Mutex;

/// Nanoseconds from a failure to the next attempt: the first time, and at most.
const FIRST_PAUSE: u64 = 20_000_000;
const LONGEST_PAUSE: u64 = 2_000_000_000;

/// Work that waits for the end of a shortage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Carrying out what is in the journal.
    Destage,
    /// Freeing, moving, forgetting.
    Upkeep,
    /// Bringing runs of histories to segments of their own.
    Sort,
}

/// What waits, and why.
#[derive(Default)]
pub(crate) struct Shortages(Mutex<[Option<Waiting>; 3]>);

#[derive(Clone)]
struct Waiting {
    cause: Error,
    /// Not again before this time,
    not_before: u64,
    /// so long after the last failure.
    pause: u64,
}

impl Shortages {
    /// A task failed for want of something.
    pub(crate) fn met(&self, task: Task, cause: &Error, now: u64) {
        let waiting = &mut self.0.lock()[task as usize];
        if waiting.is_none() {
            tracing::warn!(?task, %cause, "background work waits for the end of a shortage");
        }
        let pause = waiting.as_ref().map_or(FIRST_PAUSE, |w| (w.pause * 2).min(LONGEST_PAUSE));
        *waiting = Some(Waiting { cause: cause.clone(), not_before: now.saturating_add(pause), pause });
    }

    /// A task went through.
    pub(crate) fn over(&self, task: Task) {
        if self.0.lock()[task as usize].take().is_some() {
            tracing::info!(?task, "background work goes on: the shortage is over");
        }
    }

    /// Has the task waited long enough since it failed last?
    pub(crate) fn may_try(&self, task: Task, now: u64) -> bool {
        let waiting = &self.0.lock()[task as usize];
        waiting.as_ref().is_none_or(|w| now >= w.not_before)
    }

    /// What keeps the task from going on.
    pub(crate) fn cause(&self, task: Task) -> Option<Error> {
        self.0.lock()[task as usize].as_ref().map(|w| w.cause.clone())
    }
}

/// The outcome of background work, where one that failed for a shortage is tried again by itself:
/// `waits` then.
pub(super) fn passing<T>(done: Result<T>, waits: T) -> Result<T> {
    match done {
        Err(error) if error.is_shortage() => Ok(waits),
        done => done,
    }
}

/// What deleting snapshots for want of space has come to.
#[derive(Default)]
pub(crate) struct Deletions {
    pub(crate) last: Option<LastDeletion>,
    /// A deletion gave nothing back: no more until something has come back beyond this, of
    /// [`crate::core::SharedPositions::returned`].
    pub(crate) futile: Option<u64>,
}

pub(crate) struct LastDeletion {
    /// When, by the monotonic clock, in nanoseconds.
    pub(crate) at: u64,
    /// What had come back before.
    pub(crate) returned: u64,
    /// What should come back.
    pub(crate) expected: u64,
}

impl LastDeletion {
    pub(crate) fn is_recent(&self, now: u64) -> bool {
        now.saturating_sub(self.at) < DELETION_INTERVAL
    }
}

/// Nanoseconds between two deletions for want of space that no request waits for.
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
