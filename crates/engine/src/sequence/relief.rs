//! Brings space back for a request that finds none. The request helps to free what waits to be
//! freed, applies the deletion policies of snapshots, and waits for what is on its way. All of that
//! is bounded.

use crate::area::SlotKind;
use crate::destage::Destager;
use crate::error::Result;
use crate::shortage::passing;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// Number of rounds before a request is refused, as long as each brings something back.
const MAX_ROUNDS: u32 = 256;
/// Number of rounds that only carry out what is pending. Records mostly take less than was promised
/// to them.
const MAX_PENDING: u32 = 3;
/// Number of rounds that only wait for readers of what was freed. Each waits for the duration
/// `WAIT`.
const MAX_WAITS: u32 = 200;
const WAIT: Duration = Duration::from_millis(5);
/// Number of steps of freeing in one round.
const STEPS: u32 = 64;

/// A request that found no space, and the rounds that it has taken.
#[derive(Default)]
pub(crate) struct Relief {
    rounds: u32,
    pending: u32,
    waits: u32,
}

/// The result of one round.
struct Round {
    carried_out: bool,
    steps: u32,
    /// Whether slots were freed that readers may still hold.
    retired: bool,
}

impl Destager {
    /// Takes a round of bringing space back for a request that cannot be promised `slots` slots of
    /// a kind (`None`: it lacks something else). False when there is nothing more to bring back, or
    /// the request has waited long enough.
    pub(crate) fn relieve(&self, relief: &mut Relief, kind: Option<SlotKind>, slots: u64) -> Result<bool> {
        relief.rounds += 1;
        if relief.rounds > MAX_ROUNDS {
            return Ok(false);
        }
        let round = self.reclaim_round(kind)?;
        if round.steps > 0 {
            return Ok(true);
        }
        if round.carried_out && relief.pending < MAX_PENDING {
            relief.pending += 1;
            return Ok(true);
        }
        if round.retired && relief.waits < MAX_WAITS {
            relief.waits += 1;
            Condvar::new().wait_for(&mut Mutex::new(()).lock(), WAIT);
            return Ok(true);
        }
        // If the file systems below are full, a deletion gives nothing back.
        let Some(kind) = kind.filter(|_| slots > 0) else { return Ok(false) };
        Ok(!self.core.space.has_own_room(kind, slots) && self.delete_by_policy(Some(kind.area))?)
    }

    fn reclaim_round(&self, kind: Option<SlotKind>) -> Result<Round> {
        let last = self.core.journal.last().lsn;
        let mut carried_out = false;
        while passing(self.destage_once(last), false)? {
            carried_out = true;
        }
        let state = &mut *self.state.lock();
        self.core.check_usable()?;
        // What is lent and not taken is the cheapest to bring back.
        let lent = match kind {
            Some(kind) => self.recall_of(state, kind.area)?,
            None => self.recall_all(state)?,
        };
        let mut steps = u32::from(lent);
        while steps < STEPS && passing(self.free(state), false)? {
            steps += 1;
        }
        if carried_out || steps > 0 || self.is_returning(state) {
            passing(self.checkpoint(state), ())?;
            self.poll_retired(state)?;
            // The second poll is for what that commit released.
            self.poll_retired(state)?;
        }
        Ok(Round { carried_out, steps, retired: self.is_returning(state) })
    }
}
