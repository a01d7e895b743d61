//! Background work, one step at a time (I2): the order in which the pool takes the steps of
//! [`Destager`](crate::destage::Destager).

use super::Pool;
use crate::destage::commit::MAX_STAGED_RECORDS;
use crate::destage::state::{Ahead, BackgroundState};
use crate::error::{Error, Result};
use crate::info::Progress;
use crate::journal::Admission;
use crate::shortage::{Task, passing};
use std::sync::atomic::Ordering;

/// Nanoseconds that a flush point waits for another commit, before a commit is made for it.
const FLUSHES_WAIT: u64 = 1_000_000_000;
/// Nanoseconds of rest for each nanosecond that checking the policies takes.
const POLICIES_REST: u64 = 19;
/// Nanoseconds without a write after which clients are quiet, while a task with a rate goes on.
const QUIET: u64 = 250_000_000;

impl Pool {
    /// Takes the most urgent background step. After [`Progress::Idle`], call again when
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
        let now = self.core.world.clock.monotonic();
        self.core.look_at_clock();
        if self.look_at_policies()? {
            return Ok(Progress::Worked);
        }
        if self.destager.repair_wanted() {
            return Ok(Progress::Worked);
        }
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        self.destager.write_stamps(state)?;
        self.destager.poll_retired(state)?;
        self.destager.lend(state)?;
        // A task that waits for the end of a shortage stops no other work: that work may end the
        // shortage.
        let may_tidy = self.core.shortages.may_try(Task::Upkeep, now);
        if may_tidy && passing(self.destager.pay_freeing(state, true), false)? {
            return Ok(Progress::Worked);
        }
        // Runs come with each batch, and are sorted at the same pace.
        let may_sort = self.core.shortages.may_try(Task::Sort, now);
        let turn = may_sort && !std::mem::take(&mut state.sorted);
        if turn && passing(self.destager.sort_runs(state, false), false)? {
            state.sorted = true;
            return Ok(Progress::Worked);
        }
        if may_tidy && passing(self.destager.rebuild_owed(state), false)? {
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
        // A pause that has ended since the beginning of the step counts, so the next step comes at
        // once.
        let due = state.next_due(now);
        self.core.work.due.store(due.unwrap_or(0), Ordering::Relaxed);
        // Steps of a task with a rate come often, and say nothing about what clients do.
        if due.is_none() || now.saturating_sub(state.seen_at) >= QUIET {
            state.seen = (self.core.journal.written(), self.core.work.kicks.load(Ordering::Relaxed));
            state.seen_at = now;
        }
        // Journal segments are written in advance, when there is nothing else to do, so that
        // appending never allocates.
        if self.core.add_journal_file(true).unwrap_or(false) {
            return Ok(Progress::Worked);
        }
        Ok(Progress::Idle)
    }

    /// Sequences one control operation that a policy requires. With very many volumes, checking all
    /// of them in each step would take too long. The checks are limited to a twentieth of the time.
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

    /// Sequences one control operation that a policy requires. False when no policy requires one.
    fn policies(&self) -> Result<bool> {
        Ok(self.destager.enforce_snapshot_policies()?
            || self.destager.renew_branch()?
            || self.destager.flatten_deepest()?
            || self.destager.flatten_over_expired()?
            || self.destager.anchor_by_time()?
            || self.destager.forget_mark()?
            || self.destager.expire_undo()?)
    }

    /// Takes one step of upkeep. False when there is nothing to do.
    fn upkeep(&self, state: &mut BackgroundState) -> Result<bool> {
        let done = self.tidy(state);
        let unsaved =
            self.flushes_wait(state) || self.core.clock.wants_commit() || self.core.damage.is_changed();
        // A task that waits for the end of a shortage does not delay this commit.
        let idle = done.as_ref().map_or_else(Error::is_shortage, |worked| !worked);
        let records = idle && (state.committed.destaged_lsn < state.destaged || unsaved);
        if records {
            self.destager.checkpoint(state)?;
        }
        let worked = done? || records;
        self.core.shortages.over(Task::Upkeep);
        Ok(worked)
    }

    /// Takes one step of freeing, moving or filling. False when there is nothing to do.
    fn tidy(&self, state: &mut BackgroundState) -> Result<bool> {
        let turn = state.rebuilds.turn();
        Ok(turn && self.destager.rebuild_members(state)?
            || self.destager.free_or_move(state)?
            || self.destager.relocate(state)?
            || self.destager.rebalance(state)?
            || self.destager.fill_branches(state)?
            || !turn && self.destager.rebuild_members(state)?)
    }

    /// Returns whether destage is due. Destage is lazy, so that writes coalesce. It begins when a
    /// share of the journal (or of the bound on staged records) is in use, or when nothing was
    /// written since the last idle step. A step that another thread has requested does not count as
    /// idle: otherwise, snapshots taken under load would start destage.
    fn wants_destage(&self, state: &BackgroundState) -> bool {
        let written = self.core.journal.written();
        if written < state.cursor.lsn {
            return false;
        }
        // A batch that is recorded ahead does not wait, since it holds threads and buffers.
        let recorded = state.ahead.as_ref().is_some_and(Ahead::is_recorded);
        // A batch that waits for the end of a shortage is due by itself.
        let waits = self.core.shortages.cause(Task::Destage).is_some() || state.is_half_done();
        waits
            || self.is_quiet(state)
            || recorded
            || self.core.is_pressed()
            || self.core.journal.turns() >= self.core.pace.turns(self.core.options.lazy_turns)
            || self.has_old_turns()
            || self.core.positions.referred.load(Ordering::Relaxed) > self.core.most_referred() / 2
            || written.since(state.cursor.lsn) > MAX_STAGED_RECORDS / 2
    }

    /// Returns whether turns wait to which no write can be added any more, while several volumes
    /// write and the journal fills. Nothing is gained by waiting: later writes coalesce in the last
    /// turn only. And each turn delays the data behind it, once the journal is nearly full.
    fn has_old_turns(&self) -> bool {
        self.core.journal.turns() > 1 && self.core.is_throttled() && self.core.is_filling()
    }

    /// Returns whether flush points have waited long enough for a commit of another kind.
    fn flushes_wait(&self, state: &BackgroundState) -> bool {
        let wait = self.core.catalog.time_per_commit(FLUSHES_WAIT);
        let waited = |since| self.is_quiet(state) || self.core.clock.now().saturating_sub(since) >= wait;
        self.core.flushes.oldest_waiting().is_some_and(waited)
    }

    /// Returns whether nothing was written since the last idle step.
    fn is_quiet(&self, state: &BackgroundState) -> bool {
        state.seen == (self.core.journal.written(), self.core.work.kicks.load(Ordering::Relaxed))
    }

    /// Destages one batch, if there is anything to destage.
    pub fn destage_step(&self) -> Result<Progress> {
        let state = &mut *self.destager.state.lock();
        self.core.check_usable()?;
        self.destager.poll_retired(state)?;
        Ok(if self.destager.destage(state)? { Progress::Worked } else { Progress::Idle })
    }

    /// Carries out everything that is sequenced now, and commits how far that is.
    pub fn drain(&self) -> Result<()> {
        let last = self.core.journal.last().lsn;
        self.destager.destage_to(last)?;
        self.destager.checkpoint_now()
    }

    /// Returns whether a control record would have to help destage before it gets its place.
    pub fn must_help(&self) -> bool {
        self.core.is_pressed() || self.core.too_many_turns(self.core.journal.turns())
    }

    /// Carries out turns until a snapshot need not wait for them. A caller uses this before it
    /// takes a snapshot during which clients must not wait.
    pub fn make_way(&self) -> Result<()> {
        while self.core.too_many_turns(2 * self.core.journal.turns()) {
            self.destager.make_room(Admission::Turns)?;
        }
        Ok(())
    }
}
