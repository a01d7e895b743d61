//! The rebuild of members of layouts: what is in use is copied, an extent at a time.
//!
//! Writes go to the new disk from the beginning. So an extent that is not in use now needs no copy:
//! everything that it will hold is written later.

use crate::damage::BLOCK;
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::disk::layout::NewMember;
use crate::disk::layout::spares::Spare;
use crate::disk::{Cause, Disk, DiskLayout};
use crate::error::{Error, Result, is_shortage};
use crate::space::label::DATA_START;
use crate::space::pv::Pv;
use crate::sums::{UNKNOWN, sum_of, unit_at};
use crate::world::uuid;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes after which the progress is stored. A rebuild continues there after a restart.
const STORED_AFTER: u64 = 1 << 30;
/// Number of extents that one step looks at, for one that has to be copied.
const EXTENTS_LOOKED_AT: u32 = 1 << 14;
const NANOSECOND: u64 = 1_000_000_000;
/// The longest pause between two steps, in nanoseconds.
const LONGEST_PAUSE: u64 = 60 * NANOSECOND;

impl Destager {
    /// Takes one step of a rebuild. False when there is nothing to rebuild, or when it can't go on
    /// now.
    pub(crate) fn rebuild_members(&self, state: &mut BackgroundState) -> Result<bool> {
        let _cause = Cause::Rebuild.begin();
        if state.rebuilds.is_hour_over(self.core.world.clock.monotonic()) {
            for pv in self.held_pvs() {
                if let Some(layout) = pv.disk.as_layout() {
                    layout.members().forget_read_errors();
                }
            }
        }
        for pv in self.least_redundant_first() {
            let Some(layout) = pv.disk.as_layout() else { continue };
            let unreadable = layout.members().take_unreadable();
            if !unreadable.is_empty() {
                self.mend(&pv, layout, unreadable)?;
                return Ok(true);
            }
            if self.mend_lines(&pv, layout) {
                return Ok(true);
            }
            let now = self.core.world.clock.monotonic();
            let Some(rebuild) = layout.members().rebuilt() else {
                let out = layout.members().out();
                let due = self.given_up(state, &pv, &out, now);
                if !state.rebuilds.waits(pv.id, now)
                    && (self.step_in(state, &pv, layout, (&out, &due), now)
                        || self.try_to_grow(state, &pv, layout, &due, now))
                {
                    return Ok(true);
                }
                continue;
            };
            state.rebuilds.note_out(pv.id, &[], now);
            if state.rebuilds.waits(pv.id, now) {
                continue;
            }
            match self.rebuild_step(state, &pv, rebuild) {
                Ok(()) => return Ok(true),
                Err(error) => {
                    tracing::warn!(pv = pv.path, %error, "the rebuild of a member waits");
                    state.rebuilds.wait(pv.id, now);
                }
            }
        }
        Ok(false)
    }

    /// Takes steps of a rebuild, of taking over or of growing, before other work that is urgent. A
    /// tenth of the time is for that. Returns whether it did something.
    pub(crate) fn rebuild_owed(&self, state: &mut BackgroundState) -> Result<bool> {
        let clock = &self.core.world.clock;
        let began = clock.monotonic();
        let owed = state.rebuilds.owed(began);
        if owed == 0 {
            return Ok(false);
        }
        let has_layouts = self.held_pvs().iter().any(|pv| pv.disk.as_layout().is_some());
        let mut worked = Ok(false);
        while has_layouts && clock.monotonic().saturating_sub(began) < owed {
            match self.rebuild_members(state) {
                Ok(true) => worked = Ok(true),
                Ok(false) => break,
                Err(error) => {
                    worked = Err(error);
                    break;
                }
            }
        }
        state.rebuilds.pay(clock.monotonic());
        worked
    }

    /// Returns which of the members that are out have been so for long enough, those first that are
    /// out for the longest time.
    fn given_up(&self, state: &mut BackgroundState, pv: &Pv, out: &[(usize, u64)], now: u64) -> Vec<usize> {
        let all_since = state.rebuilds.note_out(pv.id, out, now);
        let Some(after) = self.core.options.spare_after else { return Vec::new() };
        let is_due = |(_, since): &(usize, u64)| u128::from(now - since) >= after.as_nanos();
        all_since.into_iter().filter(is_due).map(|(number, _)| number).collect()
    }

    /// Begins to rebuild a member that is given up onto a spare disk. Returns whether it did.
    fn step_in(
        &self,
        state: &mut BackgroundState,
        pv: &Pv,
        layout: DiskLayout<'_>,
        (out, due): (&[(usize, u64)], &[usize]),
        now: u64,
    ) -> bool {
        let core = &self.core;
        // An operator may be about to do something else with a member.
        let Some(_one_at_a_time) = core.pv_operations.try_lock() else { return false };
        for number in due {
            let capacity = out.iter().find(|(member, _)| member == number).map_or(0, |(_, bytes)| *bytes);
            while let Some((spare, disk)) = core.spares.take(capacity) {
                match self.take_in(pv, layout, *number, (&spare, disk)) {
                    Ok(()) => return true,
                    Err(error) if is_shortage(&error) => {
                        core.spares.put_back(spare);
                        state.rebuilds.wait(pv.id, now);
                        return false;
                    }
                    Err(error) => core.spares.put_back_failed(spare, &error),
                }
            }
        }
        false
    }

    /// Begins to rebuild a member onto a spare disk that was taken out of the list.
    fn take_in(
        &self,
        pv: &Pv,
        layout: DiskLayout<'_>,
        number: usize,
        (spare, disk): (&Spare, Arc<dyn Disk>),
    ) -> std::io::Result<()> {
        let (path, layout_path) = (&spare.path, &pv.path);
        let new = NewMember { uuid: uuid(&*self.core.world.rng), path: path.clone(), disk };
        layout.rebuild_onto(number, new, None).inspect_err(|error| {
            tracing::error!(spare = path, layout = layout_path, %error, "a spare disk can't take the place of a member");
        })?;
        tracing::warn!(
            event = "spare.stepped-in",
            spare = path,
            layout = layout_path,
            "a spare disk takes the place of a member that is out"
        );
        // The next opening forgets it, because it is a member of a layout.
        if let Err(error) = self.core.spares.store(&*self.core.dir) {
            tracing::warn!(%error, "the list of spare disks could not be stored");
        }
        Ok(())
    }

    /// Makes members readable again where one could not be read. Where a sum tells, the right copy
    /// is taken. Without a sum, the one that can be read has always been shown.
    fn mend(&self, pv: &Pv, layout: DiskLayout<'_>, unreadable: Vec<Range<u64>>) -> Result<()> {
        let mut unit = [0; BLOCK as usize];
        for range in unreadable {
            for at in (range.start / BLOCK * BLOCK..range.end).step_by(BLOCK as usize) {
                if layout.is_readable(at, unit.len()) {
                    continue;
                }
                let sum = if self.core.sums.is_on() && at >= DATA_START {
                    self.core.sums.of(pv, at)?
                } else {
                    UNKNOWN
                };
                if sum != UNKNOWN {
                    self.core.settle_unit(pv, &mut unit, at, sum);
                } else {
                    // An error leaves the block as it is.
                    let _ = pv.disk.settle(&mut unit, at, &|_| true);
                }
            }
        }
        Ok(())
    }

    /// Makes all lines consistent in which a block or the parity was found to be wrong.
    pub(crate) fn mend_all_lines(&self) {
        for pv in self.held_pvs() {
            if let Some(layout) = pv.disk.as_layout() {
                self.mend_lines(&pv, layout);
            }
        }
    }

    /// Returns the physical volumes with layouts, those first that survive the fewest further
    /// failures.
    fn least_redundant_first(&self) -> Vec<Arc<Pv>> {
        let mut pvs = self.held_pvs();
        pvs.retain(|pv| pv.disk.as_layout().is_some());
        if pvs.len() > 1 {
            pvs.sort_by_cached_key(|pv| pv.disk.as_layout().map(|layout| layout.members().survives()));
        }
        pvs
    }

    pub(crate) fn held_pvs(&self) -> Vec<Arc<Pv>> {
        let names = self.core.names.read();
        names.pvs.keys().filter_map(|id| self.core.pvs.held(*id)).collect()
    }

    /// Makes lines of a RAID-5 consistent in which a block or the parity was found to be wrong.
    /// Returns whether there were some.
    fn mend_lines(&self, pv: &Pv, layout: DiskLayout<'_>) -> bool {
        let DiskLayout::Raid5(raid) = layout else { return false };
        if !layout.members().are_in() {
            return false;
        }
        let lines = raid.take_suspects();
        // A block without a sum has always been shown as it is.
        let is_right = |at: u64, block: &[u8]| {
            let sum = if at >= DATA_START { self.core.sums.of(pv, at).unwrap_or(UNKNOWN) } else { UNKNOWN };
            sum == UNKNOWN || sum_of(block) == sum
        };
        for line in &lines {
            match raid.mend_line(*line, &is_right) {
                Ok(true) => drop(self.core.repairs.from_copies.fetch_add(BLOCK, Ordering::Relaxed)),
                Ok(false) => {}
                // A later scrub finds the line again.
                Err(error) => tracing::warn!(pv = pv.path, line, %error, "a line could not be mended"),
            }
        }
        !lines.is_empty()
    }

    /// Copies the next extent that is in use. `stored` is how far the record of the layout says
    /// that the rebuild has come, and `begun` the number of rebuilds until now.
    fn rebuild_step(&self, state: &mut BackgroundState, pv: &Pv, (begun, stored): (u64, u64)) -> Result<()> {
        let Some(layout) = pv.disk.as_layout() else { return Ok(()) };
        let failed = |e| Error::io(format!("rebuild a member of {}", pv.path), e);
        let at = state.rebuilds.position(pv.id, begun, stored);
        if layout.members().progress().is_none() {
            let left = self.left_to_copy(state, pv, layout, at);
            layout.members().note_first_step(begun, left, self.core.world.clock.monotonic());
        }
        let Some(next) = self.next_to_copy(state, pv, layout, (begun, at)) else { return Ok(()) };
        if next.is_empty() {
            // The catalog knows what no member could read before the disk is a member.
            if self.core.damage.is_changed() {
                self.checkpoint(state)?;
            }
            layout.note_rebuilt(begun, u64::MAX).map_err(failed)?;
            state.rebuilds.forget(pv.id);
            return Ok(());
        }
        let (end, copied) = (next.end, next.end - next.start);
        self.copy_on_layout(state, pv, begun, next)?;
        layout.members().note_step(begun, copied, self.core.world.clock.monotonic());
        if end - stored >= STORED_AFTER {
            layout.note_rebuilt(begun, end).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns about how many bytes, from `at` on, are in use and have to be copied.
    fn left_to_copy(&self, state: &BackgroundState, pv: &Pv, layout: DiskLayout<'_>, at: u64) -> u64 {
        let extent_size = self.core.config.extent_size;
        let first = u32::try_from(at.saturating_sub(DATA_START) / extent_size).unwrap_or(u32::MAX);
        let in_use = state.allocator.held_extents(pv.id, first) * extent_size;
        layout.listed().map_or(in_use, |listed| in_use.min(listed))
    }

    /// Returns the first bytes of a physical volume, from `at` on, that are in use and have to be
    /// copied. The result is empty if there are none, and `None` if they may come in a later step.
    fn next_to_copy(
        &self,
        state: &mut BackgroundState,
        pv: &Pv,
        layout: DiskLayout<'_>,
        (begun, mut at): (u64, u64),
    ) -> Option<Range<u64>> {
        for _ in 0..EXTENTS_LOOKED_AT {
            let next = self.next_in_use(state, pv, at..u64::MAX);
            if next.is_empty() {
                return Some(next);
            }
            at = next.end;
            if let Some(part) = layout.first_to_copy(next) {
                return Some(part);
            }
        }
        state.rebuilds.set(pv.id, begun, at, 0);
        None
    }

    /// Copies a range that is in use, of the label or of one extent, to the disks that members are
    /// rebuilt onto, or to where a place moves. Then notes how far that is, and waits as long as
    /// the rate demands.
    pub(super) fn copy_on_layout(
        &self,
        state: &mut BackgroundState,
        pv: &Pv,
        begun: u64,
        range: Range<u64>,
    ) -> Result<()> {
        let Some(layout) = pv.disk.as_layout() else { return Ok(()) };
        let now = self.core.world.clock.monotonic();
        let failed = |e| Error::io(format!("copy on {}", pv.path), e);
        let (start, len) = (range.start, range.end - range.start);
        if start < DATA_START {
            // Labels and stamps have sums of their own. What can't be read there is absent.
            layout.copy_to_incoming(start, len, &|_, _| true).map_err(failed)?;
            state.rebuilds.set(pv.id, begun, range.end, 0);
            return Ok(());
        }
        let mut sums = vec![UNKNOWN; (len / BLOCK) as usize];
        if self.core.sums.is_on() {
            self.core.sums.get(pv, unit_at(start), &mut sums)?;
        }
        let is_right = |at: u64, block: &[u8]| {
            let sum = sums[((at - start) / BLOCK) as usize];
            sum == UNKNOWN || sum_of(block) == sum
        };
        for lost in layout.copy_to_incoming(start, len, &is_right).map_err(failed)? {
            self.core.damage.add(pv.id, lost, "no member could read it during a rebuild");
        }
        self.core.positions.bytes.fetch_add(len, Ordering::Relaxed);
        let rate = layout.members().rate().unwrap_or(self.core.options.rebuild_rate);
        let pause = len.saturating_mul(NANOSECOND).checked_div(rate).unwrap_or(0);
        state.rebuilds.set(pv.id, begun, range.end, now.saturating_add(pause.min(LONGEST_PAUSE)));
        Ok(())
    }

    /// Takes a step of growing, or of taking over. Returns whether it did something.
    fn try_to_grow(
        &self,
        state: &mut BackgroundState,
        pv: &Pv,
        layout: DiskLayout<'_>,
        due: &[usize],
        now: u64,
    ) -> bool {
        self.grow_step(state, pv, layout, due).unwrap_or_else(|error| {
            tracing::warn!(pv = pv.path, %error, "a mirror or RAID-5 can't grow now");
            state.rebuilds.wait(pv.id, now);
            true
        })
    }
}
