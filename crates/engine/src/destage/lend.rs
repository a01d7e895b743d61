//! Lending slots to writers, and taking them back (decision 63).

use super::state::BackgroundState;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::Result;
use crate::journal::reference::CHUNK_LOG2;
use crate::shortage::Task;
use crate::space::lent::Demand;
use std::collections::BTreeMap;

/// Most bytes that are lent of one slot size.
const MOST: u64 = 256 << 20;
/// Bytes that are lent at first of a slot size that writers want.
const FIRST: u64 = 16 << 20;
/// Of the available bytes, one part in this number is lent at most.
const PARTS: u64 = 16;
/// Slots in a row are lent only from this number of bytes on, or one slot if that is larger.
const LEAST_RUN: u64 = 64 << 10;
/// Nanoseconds without a writer that wants them after which slots are taken back, and empty extents
/// are given back. The next large writes then pay for new ones: a burst every few minutes must not.
const IDLE: u64 = 600_000_000_000;

/// Bytes that references may name before they are in place: this number, and one part in
/// [`REFERRED_PARTS`] of what is available.
const MOST_REFERRED: u64 = 2 << 30;
const REFERRED_PARTS: u64 = 4;

/// What the destager knows of the slot sizes that writers want.
#[derive(Default)]
pub(crate) struct Lending(BTreeMap<u8, Wanted>);

struct Wanted {
    /// Number of bytes to lend.
    bytes: u64,
    /// Time of the monotonic clock at which a writer wanted slots last.
    last: u64,
}

impl Core {
    /// Returns whether large writes go to their slots at once.
    pub(crate) fn writes_by_reference(&self) -> bool {
        self.options.direct_min.is_some() && self.has_feature(crate::catalog::features::REFERENCES)
    }

    /// Returns the number of bytes that references may name before they are in place. It bounds the
    /// memory of staging, and the space of the slots that they replace, which become free only
    /// then. Destage is due at half of it.
    pub(crate) fn most_referred(&self) -> u64 {
        MOST_REFERRED.min(self.space.totals().available / REFERRED_PARTS)
    }
}

impl Destager {
    /// Lends slots of the sizes that writers want, and takes back what they want no more. There
    /// must be no change that no commit has. A shortage, or the failure of a physical volume, ends
    /// the lending: writers then use the journal.
    pub(crate) fn lend(&self, state: &mut BackgroundState) -> Result<()> {
        match self.try_lend(state) {
            Err(error) if self.core.fault.check().is_ok() => {
                tracing::debug!(%error, "no slots are lent for large writes now");
                Ok(())
            }
            lent => lent,
        }
    }

    fn try_lend(&self, state: &mut BackgroundState) -> Result<()> {
        if !self.core.writes_by_reference() || !state.allocator.is_clean() {
            return Ok(());
        }
        if !self.core.space.is_ample(0) {
            return self.recall_all(state).map(drop);
        }
        self.leave_failed(state);
        if state.allocator.pv_ids().into_iter().any(|pv| !state.allocator.gives(pv)) {
            // Writers may have given slots back there.
            let takes = |pv| self.core.pvs.held(pv).is_some_and(|pv| pv.takes_references());
            self.recall(state, |_, pv| !takes(pv))?;
        }
        if state.is_half_done() || self.core.stamping.check().is_err() {
            return Ok(());
        }
        let now = self.core.world.clock.monotonic();
        let demands: Vec<Demand> = self.core.lent.look().collect();
        for demand in demands {
            self.lend_size(state, demand, now)?;
        }
        Ok(())
    }

    fn lend_size(&self, state: &mut BackgroundState, demand: Demand, now: u64) -> Result<()> {
        let Demand { slot_log2, left, wanted } = demand;
        let left = left << slot_log2;
        if wanted == 0 {
            let idle = |known: &Wanted| now.saturating_sub(known.last) > IDLE;
            if state.lending.0.get(&slot_log2).is_some_and(idle) {
                self.keep_open(state, slot_log2, 0)?;
                self.recall(state, |of, _| of == slot_log2)?;
                state.lending.0.remove(&slot_log2);
            }
            return Ok(());
        }
        let known = state.lending.0.entry(slot_log2).or_insert(Wanted { bytes: FIRST / 2, last: now });
        // Writers were about to use up what was lent since the last look.
        if left < known.bytes / 4 {
            known.bytes = (known.bytes * 2).min(MOST);
        }
        known.last = now;
        let bytes = known.bytes;
        // As many as the references hold of which a batch frees the predecessors.
        let extents = self.core.most_referred() / self.core.config.extent_size;
        self.keep_open(state, slot_log2, extents as usize)?;
        let most = bytes.min(self.core.space.totals().available / PARTS);
        if left >= most / 2 {
            return Ok(());
        }
        let least = (LEAST_RUN >> slot_log2).max(1) as u32;
        let mut slots = (most - left) >> slot_log2;
        while slots >= u64::from(least) {
            let count = u32::try_from(slots).unwrap_or(u32::MAX);
            let lent = state.allocator.lend(&self.core.space, slot_log2, (least, count));
            let Some(run) = lent.map_err(|e| self.failed(state, Task::Upkeep, e))? else {
                self.core.lent.note_dry(slot_log2);
                break;
            };
            slots -= u64::from(run.count);
            self.core.lent.add(slot_log2, vec![run]);
        }
        Ok(())
    }

    /// Takes lent slots back that no writer has taken: those whose size (log2) and physical volume
    /// `recalls` accepts. Returns whether there were any. There must be no change that no commit
    /// has.
    pub(crate) fn recall(
        &self,
        state: &mut BackgroundState,
        recalls: impl Fn(u8, u32) -> bool,
    ) -> Result<bool> {
        let slots = self.core.lent.recall(&recalls);
        let any = !slots.is_empty();
        if any {
            let change = state.allocator.reuse(&slots).map_err(|e| self.core.fault.poison(&e))?;
            self.core.space.settle(&change, &[]);
        }
        let sizes: Vec<u8> = state.lending.0.keys().copied().collect();
        sizes.into_iter().try_for_each(|slot_log2| {
            let closed = state.allocator.close_kept(&self.core.space, slot_log2, |pv| recalls(slot_log2, pv));
            closed.map_err(|e| self.core.fault.poison(&e))
        })?;
        Ok(any)
    }

    fn keep_open(&self, state: &mut BackgroundState, slot_log2: u8, most: usize) -> Result<()> {
        let kept = state.allocator.keep_open(&self.core.space, slot_log2, most);
        kept.map_err(|e| self.core.fault.poison(&e))
    }

    /// Takes back everything that is lent and not taken, if nothing is uncommitted.
    pub(crate) fn recall_all(&self, state: &mut BackgroundState) -> Result<bool> {
        if !state.allocator.is_clean() {
            return Ok(false);
        }
        // What becomes empty from here on is closed, too, until slots are lent again.
        state.allocator.keep_none();
        self.recall(state, |_, _| true)
    }
}

// What is lent first gives a writer whole chunks of every size.
const _: () = assert!(FIRST >= 1 << *CHUNK_LOG2.end());
