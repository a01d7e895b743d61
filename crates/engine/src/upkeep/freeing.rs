//! The pace of freeing. Each destaged batch owes a part of a step, and more when space is low.

use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::error::Result;

impl Destager {
    /// Adds what a destaged batch owes: a part of a step, or several steps when there is little
    /// space.
    pub(crate) fn owe_freeing(&self, state: &mut BackgroundState) {
        let totals = self.core.totals();
        let percent = totals.available.saturating_mul(100) / totals.capacity.max(1);
        state.owed += match percent {
            50.. => 1,
            25.. => STEP / 4,
            10.. => STEP * 4,
            _ => STEP * 16,
        };
    }

    /// Takes a step of freeing if one is owed. With `moves`, it may instead move data off draining
    /// physical volumes. False when no step is owed, or there is nothing to free.
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

/// Number of owed parts that make one step of freeing.
pub(crate) const STEP: u32 = 16;
