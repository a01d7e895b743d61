//! Background work, one step at a time (I2), and the destager's own state.

use super::Pool;
use crate::destage::commit::MAX_STAGED_RECORDS;
use crate::destage::state::{Ahead, BackgroundState};
use crate::error::{Error, Result};
use crate::info::Progress;
use crate::journal::Admission;
use crate::shortage::{Task, passing};
use std::sync::atomic::Ordering;

/// Nanoseconds that a flush point waits for a commit to take it along, before one is made for it.
const FLUSHES_WAIT: u64 = 1_000_000_000;
/// For each nanosecond of looking at what policies ask for so many go by until the next look.
const POLICIES_REST: u64 = 19;

impl Pool {
    /// Takes the most urgent background step. [`Progress::Idle`]: call again when
    /// [`Pool::wait_for_work`] returns.
    pub fn maintain(&self) -> Result<Progress> {
        let _alarm = self.core.fault.alarm("background work was under way");
        let progress = self.step()?;
        if progress == Progress::Idle && self.destager.compact_history()? {
            return Ok(Progress::Worked);
        }
        if progress == Progress::Idle {
            self.scrub_catalog()?;
        }
        Ok(progress)
    }

    fn step(&self) -> Result<Progress> {
        self.core.look_at_clock();
        if self.look_at_policies()? {
            return Ok(Progress::Worked);
        }
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        self.destager.write_stamps(state)?;
        self.destager.poll_retired(state)?;
        // What waits for the end of a shortage keeps nothing else from going on: that may be what
        // ends it.
        let may_tidy = self.core.shortages.may_try(Task::Upkeep, self.core.world.clock.monotonic());
        if may_tidy && passing(self.destager.pay_freeing(state, true), false)? {
            return Ok(Progress::Worked);
        }
        // Runs come with each batch, and are sorted as fast.
        let may_sort = self.core.shortages.may_try(Task::Sort, self.core.world.clock.monotonic());
        let turn = may_sort && !std::mem::take(&mut state.sorted);
        if turn && passing(self.destager.sort_runs(state, false), false)? {
            state.sorted = true;
            return Ok(Progress::Worked);
        }
        if self.wants_destage(state) && self.destager.retry_destage(state)? {
            self.destager.owe_freeing(state);
            return Ok(Progress::Worked);
        }
        if may_tidy && passing(self.upkeep(state), false)? {
            return Ok(Progress::Worked);
        }
        let idle = self.core.options.recompress_history;
        if may_sort && (idle || !turn) && passing(self.destager.sort_runs(state, idle), false)? {
            return Ok(Progress::Worked);
        }
        state.seen = (self.core.journal.written(), self.core.work.kicks.load(Ordering::Relaxed));
        // Segments are written in advance, when nothing else is to be done, so that appending never
        // allocates.
        if self.core.add_journal_file(true).unwrap_or(false) {
            return Ok(Progress::Worked);
        }
        Ok(Progress::Idle)
    }

    /// One control operation that a policy asks for. With very many volumes looking at all of them
    /// is not for each step: it takes a twentieth of the time.
    fn look_at_policies(&self) -> Result<bool> {
        let began = self.core.world.clock.monotonic();
        if began < self.core.work.policies_after.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let worked = passing(self.policies(), false)?;
        if !worked {
            let now = self.core.world.clock.monotonic();
            let rest = POLICIES_REST.saturating_mul(now.saturating_sub(began));
            self.core.work.policies_after.store(now.saturating_add(rest), Ordering::Relaxed);
        }
        Ok(worked)
    }

    /// One control operation that a policy asks for. False when none does.
    fn policies(&self) -> Result<bool> {
        Ok(self.destager.enforce_snapshot_policies()?
            || self.destager.renew_branch()?
            || self.destager.flatten_deepest()?
            || self.destager.flatten_over_expired()?
            || self.destager.anchor_by_time()?
            || self.destager.forget_mark()?
            || self.destager.expire_undo()?)
    }

    /// One step of what keeps the pool tidy. False when there is nothing to be done.
    fn upkeep(&self, state: &mut BackgroundState) -> Result<bool> {
        let done = self.tidy(state);
        let unsaved =
            self.flushes_wait(state) || self.core.clock.wants_commit() || self.core.damage.is_changed();
        // What waits for the end of a shortage keeps nothing from being recorded.
        let idle = done.as_ref().map_or_else(Error::is_shortage, |worked| !worked);
        let records = idle && (state.committed.destaged_lsn < state.destaged || unsaved);
        if records {
            self.destager.checkpoint(state)?;
        }
        let worked = done? || records;
        self.core.shortages.over(Task::Upkeep);
        Ok(worked)
    }

    /// One step of freeing, moving and completing. False when there is nothing to be done.
    fn tidy(&self, state: &mut BackgroundState) -> Result<bool> {
        Ok(self.destager.free_or_move(state)?
            || self.destager.relocate(state)?
            || self.destager.fill_branches(state)?)
    }

    /// Destage is lazy, so that writes coalesce: it begins when a share of the journal (or of the
    /// bound on staged records) is in use, or when nothing was written since the last idle step. A
    /// step that somebody called for says nothing about that: snapshots taken under load would
    /// start it.
    fn wants_destage(&self, state: &BackgroundState) -> bool {
        let written = self.core.journal.written();
        if written < state.cursor.lsn {
            return false;
        }
        // What is recorded ahead does not wait: it holds threads and buffers.
        let recorded = state.ahead.as_ref().is_some_and(Ahead::is_recorded);
        // What waits for the end of a shortage asks for it by itself.
        let waits = self.core.shortages.cause(Task::Destage).is_some() || state.is_half_done();
        waits
            || self.is_quiet(state)
            || recorded
            || self.core.is_pressed()
            || self.core.journal.turns() >= self.core.pace.turns(self.core.options.lazy_turns)
            || written - state.cursor.lsn > MAX_STAGED_RECORDS / 2
    }

    /// Have flush points waited long enough for a commit to take them along?
    fn flushes_wait(&self, state: &BackgroundState) -> bool {
        let wait = self.core.catalog.time_per_commit(FLUSHES_WAIT);
        let waited = |since| self.is_quiet(state) || self.core.clock.now().saturating_sub(since) >= wait;
        self.core.flushes.oldest_waiting().is_some_and(waited)
    }

    /// Was nothing written since the last idle step?
    fn is_quiet(&self, state: &BackgroundState) -> bool {
        state.seen == (self.core.journal.written(), self.core.work.kicks.load(Ordering::Relaxed))
    }

    /// One destage batch, if there is anything to destage.
    pub fn destage_step(&self) -> Result<Progress> {
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        self.destager.poll_retired(state)?;
        Ok(if self.destager.destage(state)? { Progress::Worked } else { Progress::Idle })
    }

    /// Carries out everything that is sequenced now, and records it.
    pub fn drain(&self) -> Result<()> {
        let last = self.core.journal.last().0;
        self.destager.destage_to(last)?;
        self.destager.checkpoint_now()
    }

    /// Would a control record have to help to carry out what waits?
    pub fn must_help(&self) -> bool {
        self.core.is_pressed() || self.core.too_many_turns(self.core.journal.turns())
    }

    /// Carries turns out until a snapshot need not wait for them, for somebody who must not be kept
    /// waiting while it is taken.
    pub fn make_way(&self) -> Result<()> {
        while self.core.too_many_turns(2 * self.core.journal.turns()) {
            self.destager.make_room(Admission::Turns)?;
        }
        Ok(())
    }
}
