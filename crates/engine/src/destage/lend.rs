//! Lending slots to writers, and taking them back (decision 63).

use super::state::BackgroundState;
use crate::area::{Area, SlotKind};
use crate::branch::Branch;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::Result;
use crate::journal::reference::{CHUNK_LOG2, SlotRun};
use crate::settings::Placement;
use crate::shortage::Task;
use crate::space::lent::{Demand, least_run};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The largest number of bytes that are lent of one slot size.
const MOST_LENT: u64 = 256 << 20;
/// Number of bytes that are lent first, when writers begin to want a slot size.
const FIRST_LENT: u64 = 16 << 20;
/// At most the available bytes divided by this number are lent of one slot size.
const LENT_PARTS: u64 = 16;
/// Time in nanoseconds after which the slots of a size that no writer wants are taken back. Empty
/// extents of that size are closed then. The time is long because large writes after that allocate
/// new extents, which is slow. A load with a burst every few minutes must not allocate new extents
/// for each burst.
const IDLE_NANOS: u64 = 600_000_000_000;

/// The bound of [`Core::most_referred`] in bytes, and the divisor of the available bytes. The
/// smaller result applies.
const MOST_REFERRED: u64 = 2 << 30;
const REFERRED_PARTS: u64 = 4;

/// The slot sizes that writers want, by log2 of the size.
#[derive(Default)]
pub(crate) struct Lending(BTreeMap<SlotKind, Wanted>);

struct Wanted {
    /// Number of bytes to lend.
    bytes: u64,
    /// Time of the monotonic clock at which a writer last wanted slots, in nanoseconds.
    last: u64,
}

/// Clients that make no large write for this time begin a new burst, in nanoseconds.
const PAUSE: u64 = 1_000_000_000;

impl Core {
    /// Returns whether the pool has the feature that writes by reference need.
    pub(crate) fn may_write_by_reference(&self) -> bool {
        self.has_feature(crate::catalog::features::REFERENCES)
    }

    /// Returns whether the place of a branch's slots depends on the chunks. Nothing is written by
    /// reference then.
    pub(crate) fn places_by_chunk(&self, branch: &Branch) -> bool {
        let of_pool = || self.positions.placed_by_chunk.load(Ordering::Relaxed);
        branch.placement().map_or_else(of_pool, Placement::is_by_chunk)
    }

    /// Returns whether a large write should go by reference: always, or once clients write so much
    /// that the journal fills. A burst that fits into the journal is faster there, and is written
    /// twice (decisions 67 and 88). Each call counts as a large write.
    pub(crate) fn is_streaming(&self) -> bool {
        let percent = u64::from(self.options.direct_start_percent);
        if percent == 0 {
            return true;
        }
        let now = self.world.clock.monotonic();
        let last = self.positions.streamed.load(Ordering::Relaxed);
        let is_filling = || {
            let (used, capacity) = self.journal.usage();
            used >= capacity / 100 * percent
        };
        let is = last > 0 && now.saturating_sub(last) < PAUSE || is_filling();
        if is {
            self.positions.streamed.store(now.max(1), Ordering::Relaxed);
        }
        is
    }

    /// Returns the number of bytes that references may name before they are in place. It bounds the
    /// memory of staging. It also bounds the space of the slots that references replace, because
    /// these slots become free only when the references are in place. Destage is due at half of
    /// this number.
    pub(crate) fn most_referred(&self) -> u64 {
        MOST_REFERRED.min(self.totals().available / REFERRED_PARTS)
    }
}

impl Destager {
    /// Lends slots of the sizes that writers want, and takes back slots that they do not want any
    /// more. Does nothing while the allocator has uncommitted changes. Where space is short, or
    /// when a physical volume fails, no slots are lent. Writers then use the journal.
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
        self.core.positions.may_be_referred.store(self.core.most_referred(), Ordering::Relaxed);
        let by_chunk = state.allocator.places_by_chunk();
        let was_by_chunk = self.core.positions.placed_by_chunk.load(Ordering::Relaxed);
        if by_chunk && !was_by_chunk {
            if !state.allocator.is_clean() {
                return Ok(());
            }
            // Only volumes with another placement of their own want slots from now on.
            self.core.lent.look().for_each(drop);
            self.recall_all(state)?;
        }
        self.core.positions.placed_by_chunk.store(by_chunk, Ordering::Relaxed);
        if !self.core.may_write_by_reference() || !state.allocator.is_clean() {
            return Ok(());
        }
        let areas = self.core.space.areas().into_iter();
        let short: Vec<Area> = areas.filter(|area| !self.core.space.is_ample(*area, 0)).collect();
        if !short.is_empty() {
            self.recall_where(state, &|area| short.contains(&area))?;
        }
        self.leave_failed(state);
        if state.allocator.pv_ids().into_iter().any(|pv| !state.allocator.gives(pv)) {
            // Writers may have given back slots on a physical volume that is drained or has failed.
            let takes = |pv| self.core.pvs.held(pv).is_some_and(|pv| pv.takes_references());
            self.recall(state, |_, pv| !takes(pv))?;
        }
        if state.is_half_done() || self.core.stamping.check().is_err() {
            return Ok(());
        }
        let now = self.core.world.clock.monotonic();
        let demands: Vec<Demand> = self.core.lent.look().collect();
        for demand in demands {
            let area = state.allocator.serving(demand.kind.area);
            if short.contains(&demand.kind.area) || !self.takes_references(state, area) {
                self.core.lent.note_exhausted(demand.kind);
            } else {
                self.lend_kind(state, demand, now)?;
            }
        }
        Ok(())
    }

    /// Returns whether references to a physical volume of the area may be sequenced.
    fn takes_references(&self, state: &BackgroundState, area: Area) -> bool {
        let mut pvs = state.allocator.pv_ids().into_iter().filter(|pv| state.allocator.area(*pv) == area);
        pvs.any(|pv| self.core.pvs.held(pv).is_some_and(|pv| pv.takes_references()))
    }

    fn lend_kind(&self, state: &mut BackgroundState, demand: Demand, now: u64) -> Result<()> {
        let Demand { kind, left, wanted, least: shortest } = demand;
        let slot_log2 = kind.log2;
        let left = left << slot_log2;
        if wanted == 0 {
            let idle = |known: &Wanted| now.saturating_sub(known.last) > IDLE_NANOS;
            if state.lending.0.get(&kind).is_some_and(idle) {
                self.keep_open(state, kind, 0)?;
                self.recall(state, |of, _| of == kind)?;
                state.lending.0.remove(&kind);
            }
            return Ok(());
        }
        let known = state.lending.0.entry(kind).or_insert(Wanted { bytes: FIRST_LENT / 2, last: now });
        // Less than a quarter of the planned bytes is left.
        if left < known.bytes / 4 {
            known.bytes = (known.bytes * 2).min(MOST_LENT);
        }
        known.last = now;
        let bytes = known.bytes;
        // References replace at most this number of extents before a batch frees the replaced
        // slots. The next references use these extents again.
        let extents = self.core.most_referred() / self.core.config.extent_size;
        self.keep_open(state, kind, extents as usize)?;
        let most = bytes.min(self.core.totals_of(kind.area).available / LENT_PARTS);
        if left >= most / 2 {
            return Ok(());
        }
        let mut runs = Vec::new();
        let found = self.find_runs(state, kind, (most - left) >> slot_log2, shortest, &mut runs);
        // Writers take the last run first. These slots are lent, also if there was an error after
        // them.
        runs.reverse();
        self.core.lent.add(kind, runs);
        if !found.map_err(|e| self.failed(state, Task::Upkeep, e))? {
            self.core.lent.note_exhausted(kind);
        }
        Ok(())
    }

    /// Lends up to `slots` slots of a kind to `runs`. Random writes of one slot each leave holes of
    /// one slot. So where there are no long runs, shorter ones are lent, down to `shortest` slots:
    /// as many as the smallest write wants at once. Returns whether there were as many slots, apart
    /// from a part of a run.
    fn find_runs(
        &self,
        state: &mut BackgroundState,
        kind: SlotKind,
        mut slots: u64,
        shortest: u32,
        runs: &mut Vec<SlotRun>,
    ) -> Result<bool> {
        let least = least_run(kind.log2);
        while slots >= u64::from(least) {
            let count = u32::try_from(slots).unwrap_or(u32::MAX);
            let Some(run) = state.allocator.lend(&self.core.space, kind, (least, count))? else { break };
            slots -= u64::from(run.count);
            runs.push(run);
        }
        if slots >= u64::from(least) && (1..least).contains(&shortest) {
            let short = state.allocator.lend_scattered(&self.core.space, kind, shortest, slots)?;
            slots -= short.iter().map(|run| u64::from(run.count)).sum::<u64>();
            runs.extend(short);
        }
        Ok(slots < u64::from(least))
    }

    /// Takes back lent slots that no writer has taken, for which `recalls` is true: (kind, number
    /// of the physical volume). Closes such empty extents, too. Returns whether there were such
    /// slots. The allocator must have no uncommitted changes.
    pub(crate) fn recall(
        &self,
        state: &mut BackgroundState,
        recalls: impl Fn(SlotKind, u32) -> bool,
    ) -> Result<bool> {
        let slots = self.core.lent.recall(&recalls);
        let any = !slots.is_empty();
        if any {
            let change = state.allocator.reuse(&slots).map_err(|e| self.core.fault.poison(&e))?;
            self.core.space.settle(&change, &[]);
        }
        let kinds: Vec<SlotKind> = state.lending.0.keys().copied().collect();
        kinds.into_iter().try_for_each(|kind| {
            let closed = state.allocator.close_kept(&self.core.space, kind, |pv| recalls(kind, pv));
            closed.map_err(|e| self.core.fault.poison(&e))
        })?;
        self.forget_emptied(state);
        Ok(any)
    }

    fn keep_open(&self, state: &mut BackgroundState, kind: SlotKind, most: usize) -> Result<()> {
        let kept = state.allocator.keep_open(&self.core.space, kind, most);
        kept.map_err(|e| self.core.fault.poison(&e))?;
        self.forget_emptied(state);
        Ok(())
    }

    /// Takes back all slots that are lent and not taken. Does nothing while the allocator has
    /// uncommitted changes. Returns whether there were such slots.
    pub(crate) fn recall_all(&self, state: &mut BackgroundState) -> Result<bool> {
        self.recall_where(state, &|_| true)
    }

    /// Does the same in one area.
    pub(crate) fn recall_of(&self, state: &mut BackgroundState, area: Area) -> Result<bool> {
        self.recall_where(state, &|of| of == area)
    }

    fn recall_where(&self, state: &mut BackgroundState, is_of: &dyn Fn(Area) -> bool) -> Result<bool> {
        if !state.allocator.is_clean() {
            return Ok(false);
        }
        // Extents that become empty from now on are closed, too, until slots are lent again.
        state.allocator.keep_none(is_of);
        self.recall(state, |kind, _| is_of(kind.area))
    }
}

// The first bytes that are lent are at least one chunk of the largest size.
const _: () = assert!(FIRST_LENT >= 1 << *CHUNK_LOG2.end());
