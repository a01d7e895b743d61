//! The pace of freeing: each batch that is destaged owes a part of a step, more when space is low.

use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::error::Result;

impl Destager {
    /// Freeing keeps pace with destaging: each batch owes a part of a step, or several steps, the
    /// more the less space there is.
    pub(crate) fn owe_freeing(&self, state: &mut BackgroundState) {
        let totals = self.core.space.totals();
        let percent = totals.available.saturating_mul(100) / totals.capacity.max(1);
        state.owed += match percent {
            50.. => 1,
            25.. => STEP / 4,
            10.. => STEP * 4,
            _ => STEP * 16,
        };
    }

    /// Takes a step of freeing, or with `moves` also of moving data off draining PVs, if one is
    /// owed. False when none is, or when there is nothing to free.
    pub(crate) fn pay_freeing(&self, state: &mut BackgroundState, moves: bool) -> Result<bool> {
        if state.owed < STEP {
            return Ok(false);
        }
        state.owed -= STEP;
        let worked = if moves { self.free_or_move(state)? } else { self.free(state)? };
        if !worked {
            state.owed = 0;
        }
        Ok(worked)
    }

    pub(crate) fn free_or_move(&self, state: &mut BackgroundState) -> Result<bool> {
        state.moves_next = !state.moves_next;
        if state.moves_next && self.evacuate(state)? {
            return Ok(true);
        }
        Ok(self.free(state)? || self.evacuate(state)?)
    }

    /// Takes a step of freeing what nothing needs any more. False when there is nothing that can be
    /// freed now.
    pub(crate) fn free(&self, state: &mut BackgroundState) -> Result<bool> {
        Ok(self.forget_history(state)? || self.reclaim(state)?)
    }
}

/// Freeing is owed in parts of a step: so many make one.
pub(crate) const STEP: u32 = 16;
