//! Shortages that pass: background work that met one waits and tries again; nothing that was
//! acknowledged is lost. Where a physical volume has failed the work is done again elsewhere.
//!
//! What can run short is everything that the host lends: space in a file system, descriptors,
//! memory, threads. Work that fails for want of it is taken back up to the last commit
//! ([`Pool::failed`]) and done again later, less and less often. Meanwhile the journal holds what
//! was acknowledged. Once that is full, writes are refused.

use super::maintain::passing;
use super::{Maintenance, Pool};
use crate::error::{Error, ErrorKind, Result};
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
    fn met(&self, task: Task, cause: &Error, now: u64) {
        let waiting = &mut self.0.lock()[task as usize];
        let pause = waiting.as_ref().map_or(FIRST_PAUSE, |w| (w.pause * 2).min(LONGEST_PAUSE));
        *waiting = Some(Waiting { cause: cause.clone(), not_before: now.saturating_add(pause), pause });
    }

    /// A task went through.
    pub(crate) fn over(&self, task: Task) {
        self.0.lock()[task as usize] = None;
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

impl Pool {
    /// What becomes of an error of background work. A shortage, or the failure of a physical volume
    /// that is not the last one, takes back everything since the last commit, and the task can be
    /// tried again; anything else poisons the pool.
    pub(crate) fn failed(&self, m: &mut Maintenance, task: Task, error: Error) -> Error {
        if !(error.is_shortage() || error.is_pv_failure()) || self.fault.check().is_err() {
            return self.fault.poison(&error);
        }
        if let Err(broken) = self.take_back(m) {
            return self.fault.poison(&broken);
        }
        self.leave_failed(m);
        if !error.is_pv_failure() {
            self.shortages.met(task, &error, self.world.clock.monotonic());
            return error;
        }
        if !m.allocator.gives_any() {
            return self.fault.poison(&error);
        }
        error.taken_back()
    }

    /// Nothing is placed any more on physical volumes that have failed.
    pub(crate) fn leave_failed(&self, m: &mut Maintenance) {
        if m.allocator.leave_failed(&self.space) {
            self.measure_backing(m);
        }
    }

    /// Takes back what was allocated, freed and promised since the last commit.
    pub(crate) fn take_back(&self, m: &mut Maintenance) -> Result<()> {
        let closed = m.allocator.roll_back()?;
        let lent = std::mem::take(&mut m.lent);
        self.space.settle(&closed, &lent);
        // Slots that were given back may have been filled in part.
        let used = |pv, at| m.allocator.is_used(pv, at).unwrap_or((true, u64::MAX));
        self.damage.retain(used, |_| true);
        // They are the sums after the batch, where its records were made before something else ran
        // short.
        for branch in self.names.read().branches.values() {
            branch.cdp.log.write().sums.clear();
        }
        Ok(())
    }

    /// Promises slots to background work, until its commit.
    pub(crate) fn borrow(&self, m: &mut Maintenance, slot_log2: u8, slots: u64) -> bool {
        let lent = self.space.try_reserve(slot_log2, slots);
        if lent {
            m.lent.push((slot_log2, slots));
        }
        lent
    }

    /// Takes back the last promise to background work.
    pub(crate) fn return_last(&self, m: &mut Maintenance) {
        if let Some(lent) = m.lent.pop() {
            self.space.settle(&super::space::Change::default(), &[lent]);
        }
    }

    /// A part of the journal, unless that failed for a shortage just now. False when nothing was
    /// carried out.
    pub(super) fn retry_destage(&self, m: &mut Maintenance) -> Result<bool> {
        if !self.shortages.may_try(Task::Destage, self.world.clock.monotonic()) {
            return Ok(false);
        }
        passing(self.destage(m), false)
    }

    /// Waits for room in the journal while destage waits for the end of a shortage, or refuses the
    /// write after a while.
    pub(crate) fn wait_out_shortage(&self) -> Result<()> {
        let used = self.journal.usage().0;
        for _ in 0..self.options.shortage_waits {
            self.journal.wait_for_room();
            if let Some(mut m) = self.maintenance.try_lock() {
                self.retry_destage(&mut m)?;
            }
            // Readers of old segments may have gone meanwhile. What counts is that room came back:
            // how much the write needs is not known here, and it looks again.
            let has_come_back = self.journal.usage().0 < used;
            if has_come_back || self.shortages.cause(Task::Destage).is_none() {
                return Ok(());
            }
            self.check_usable()?;
        }
        self.shortages.cause(Task::Destage).map_or(Ok(()), |cause| {
            let text = "take the write: the journal is full, and is not carried out for want of resources";
            Err(Error::new(ErrorKind::NoSpace, format!("{text}: {cause}")))
        })
    }
}

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
