//! Writes stamps to physical volumes, after the commit that issued them.

use super::state::BackgroundState;
use crate::destage::Destager;
use crate::error::{Error, Result, conflict};
use crate::space::pv::Pv;
use crate::space::stamp::Stamped;
use crate::space::stamping::stamp_all;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Destager {
    /// Writes a last stamp for a pool that is about to be closed. The stamp distinguishes the pool
    /// from a copy that was made within the last interval.
    pub(crate) fn stamp_last(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        self.write_stamps(state)?;
        self.core.stamping.make_due();
        self.commit_alone(state)?;
        self.write_stamps(state)?;
        // This commit makes it known that the stamps are durable.
        self.commit_alone(state)
    }

    /// Writes the last stamp that was issued, if that is still to be done. A physical volume that
    /// can't be stamped keeps its older stamp, which is still true. A stamp there that is not this
    /// pool's own poisons the pool.
    ///
    /// A sync that fails makes the system forget every dirty page of the file. The maintenance lock
    /// is held between batches: no data is dirty then, and none is lost.
    pub(crate) fn write_stamps(&self, _state: &BackgroundState) -> Result<()> {
        let (stamp, borne) = {
            let state = self.core.stamping.state.lock();
            if state.written {
                return Ok(());
            }
            (state.issued, state.borne.clone())
        };
        let ids: Vec<u32> = self.core.names.read().pvs.keys().copied().collect();
        let held = ids.into_iter().filter_map(|id| self.core.pvs.held(id));
        let pvs: Vec<Arc<Pv>> = held.filter(|pv| pv.failure().is_none()).collect();
        let foreign: Mutex<Option<Error>> = Mutex::new(None);
        let check = |pv: &Pv, stamped: &Stamped| match stamped.latest() {
            // An opening that found no space for its stamp has left the stamp before it.
            Some(found) if !borne.contains_key(&pv.id) && found.sequence < stamp.sequence => Ok(()),
            Some(found) if found.life != stamp.life => {
                let text = format!(
                    "stamp physical volume {}: another server has written to it meanwhile; stop all but one",
                    pv.path
                );
                Err(foreign.lock().insert(conflict(text)).clone())
            }
            _ => Ok(()),
        };
        let beside = self.core.options.destage_threads > 1;
        let outcomes = stamp_all(&pvs, self.core.uuid, &stamp, &borne, beside, &check);
        {
            let state = &mut *self.core.stamping.state.lock();
            let short = outcomes.iter().any(|outcome| matches!(outcome, Err(e) if e.is_shortage()));
            let waits = short && self.core.stamping.waits.load(Ordering::Acquire);
            for (pv, outcome) in pvs.iter().zip(outcomes) {
                match outcome {
                    Ok(()) => {
                        state.borne.insert(pv.id, stamp);
                        state.unrecorded.insert(pv.id, stamp);
                        state.problems.remove(&pv.id);
                    }
                    Err(e) => drop(state.problems.insert(pv.id, e.to_string())),
                }
            }
            state.written = !waits;
            self.core.stamping.waits.store(waits, Ordering::Release);
        }
        match foreign.into_inner() {
            Some(error) => Err(self.core.fault.poison(&error)),
            None => Ok(()),
        }
    }
}
