//! Room in the journal: a request that finds none helps to destage, or waits.

use crate::core::Core;
use crate::destage::Destager;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Admission;
use crate::shortage::{Task, passing};
use std::sync::atomic::Ordering;

impl Destager {
    /// Makes room for a record after [`Admission`] reported that there is none. It adds a journal
    /// file, or destages, or waits for the thread that does. The writer's own help is the
    /// backpressure.
    pub(crate) fn make_room(&self, room: Admission) -> Result<()> {
        self.core.check_usable()?;
        match room {
            Admission::Ready => Ok(()),
            Admission::NeedsFile => self.core.add_journal_file(false).map(|_| ()),
            Admission::Full if self.help_destage()? => Ok(()),
            Admission::Full if self.core.shortages.cause(Task::Destage).is_some() => self.wait_out_shortage(),
            Admission::Turns if self.help_destage()? => Ok(()),
            // The limit of turns does not apply then.
            Admission::Turns if self.core.shortages.cause(Task::Destage).is_some() => Ok(()),
            Admission::Full => {
                self.core.journal.wait_for_room();
                Ok(())
            }
            Admission::Turns => {
                self.core.journal.wait_for_turns(self.core.pace.turns(self.core.options.max_turns));
                Ok(())
            }
        }
    }

    /// Destages one batch, unless another thread is doing that. False when that brought nothing.
    fn help_destage(&self) -> Result<bool> {
        self.core.journal.counters.waits.fetch_add(1, Ordering::Relaxed);
        self.core.wake();
        let Some(mut state) = self.state.try_lock() else { return Ok(false) };
        let state = &mut *state;
        self.poll_retired(state)?;
        let progress = self.retry_destage(state)?;
        if progress {
            self.owe_freeing(state);
            let mut steps = 0;
            while steps < STEPS_OF_HELP && passing(self.pay_freeing(state, false), false)? {
                steps += 1;
            }
        } else {
            passing(self.checkpoint(state), ())?;
        }
        Ok(self.poll_retired(state)? || progress)
    }
}

impl Core {
    /// Whether so many turns wait that none may be added. That is never so while destage waits for
    /// the end of a shortage, since a deletion may end the shortage.
    pub(crate) fn too_many_turns(&self, waiting: usize) -> bool {
        waiting >= self.pace.turns(self.options.max_turns) && self.shortages.cause(Task::Destage).is_none()
    }
}

impl Destager {
    /// Waits for room in the journal while destage waits for the end of a shortage. Refuses the
    /// write after a while.
    pub(crate) fn wait_out_shortage(&self) -> Result<()> {
        let used = self.core.journal.usage().0;
        for _ in 0..self.core.options.shortage_waits {
            self.core.journal.wait_for_room();
            if let Some(mut state) = self.state.try_lock() {
                self.retry_destage(&mut state)?;
            }
            // Readers of old segments may have gone meanwhile. It is enough that room came back:
            // the caller knows how much the write needs, and checks again.
            let has_come_back = self.core.journal.usage().0 < used;
            if has_come_back || self.core.shortages.cause(Task::Destage).is_none() {
                return Ok(());
            }
            self.core.check_usable()?;
        }
        self.core.shortages.cause(Task::Destage).map_or(Ok(()), |cause| {
            let text = "take the write: the journal is full, and is not carried out for want of resources";
            Err(Error::new(ErrorKind::NoSpace, format!("{text}: {cause}")))
        })
    }
}

/// Number of steps of freeing that a writer which helps to destage takes at most with one batch.
pub(crate) const STEPS_OF_HELP: u32 = 16;
