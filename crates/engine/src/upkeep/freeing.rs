//! The pace of freeing: each batch that is destaged owes a part of a step, more when space is low.

use crate::destage::Destager;
use crate::destage::state::Maintenance;
use crate::error::Result;

impl Destager {
    /// Freeing keeps pace with destaging: each batch owes a part of a step, or several steps, the
    /// more the less space there is.
    pub(crate) fn owe_freeing(&self, m: &mut Maintenance) {
        let totals = self.core.space.totals();
        let percent = totals.available.saturating_mul(100) / totals.capacity.max(1);
        m.owed += match percent {
            50.. => 1,
            25.. => STEP / 4,
            10.. => STEP * 4,
            _ => STEP * 16,
        };
    }

    /// Takes a step of freeing, or with `moves` also of moving data off draining PVs, if one is
    /// owed. False when none is, or when there is nothing to free.
    pub(crate) fn pay_freeing(&self, m: &mut Maintenance, moves: bool) -> Result<bool> {
        if m.owed < STEP {
            return Ok(false);
        }
        m.owed -= STEP;
        let worked = if moves { self.free_or_move(m)? } else { self.free(m)? };
        if !worked {
            m.owed = 0;
        }
        Ok(worked)
    }

    pub(crate) fn free_or_move(&self, m: &mut Maintenance) -> Result<bool> {
        m.moves_next = !m.moves_next;
        if m.moves_next && self.evacuate(m)? {
            return Ok(true);
        }
        Ok(self.free(m)? || self.evacuate(m)?)
    }

    /// Takes a step of freeing what nothing needs any more. False when there is nothing that can be
    /// freed now.
    pub(crate) fn free(&self, m: &mut Maintenance) -> Result<bool> {
        Ok(self.forget_history(m)? || self.reclaim(m)?)
    }
}

/// Freeing is owed in parts of a step: so many make one.
pub(crate) const STEP: u32 = 16;
