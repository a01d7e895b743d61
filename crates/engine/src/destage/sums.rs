//! The sums of what a batch writes (invariants S1 to S4 of docs/DURABILITY.md).

use super::Destager;
use super::apply::READ_AHEAD;
use super::batch::{Batch, Content, Placed};
use super::plan::MixedUnit;
use super::state::BackgroundState;
use crate::branch::View;
use crate::catalog::PageKey;
use crate::catalog::page::{MapPage, Slot};
use crate::core::Core;
use crate::disk::{Cause, DiskLayout};
use crate::error::{Error, ErrorKind, Result};
use crate::space::pv::Pv;
use crate::sums::{UNKNOWN, sum_of, unit_at};
use crate::units::BLOCK;
use crate::verified::{copied_sum, is_lost_in_part};
use std::collections::BTreeMap;
use std::ops::Range;

/// The origin of the sum of a unit that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The content, once it is complete.
    Content,
    /// This sum: that of the unit that was copied as a whole, or an unknown one.
    Known(u32),
}

/// The sums of the units of a run, in order.
#[derive(Default)]
pub(super) struct RunSums(Vec<Origin>);

impl RunSums {
    /// Notes the part `part` of `item`, in bytes, which is the next part of the run that begins at
    /// `run`. `lost` are the parts of the run that could not be read.
    pub(super) fn note(
        &mut self,
        core: &Core,
        item: &Placed,
        part: Range<u32>,
        run: Slot,
        lost: &mut Vec<Range<usize>>,
    ) -> Result<()> {
        let (from, len) = (part.start, part.end - part.start);
        let at = item.address.offset() + u64::from(from);
        let end = at + u64::from(len);
        let first = run.offset() / BLOCK;
        let copied = match item.fill {
            Content::Slot(slot) if item.has_sums => {
                let source = slot.advanced(from.into());
                let mut sums = vec![UNKNOWN; (end.div_ceil(BLOCK) - at / BLOCK) as usize];
                core.sums.get(&*core.pvs.get(slot.pv())?, unit_at(source.offset()), &mut sums)?;
                Some(sums)
            }
            _ => None,
        };
        for unit in at / BLOCK..end.div_ceil(BLOCK) {
            let index = (unit - first) as usize;
            if self.0.len() <= index {
                self.0.resize(index + 1, Origin::Content);
            }
            let is_whole = at <= unit * BLOCK && (unit + 1) * BLOCK <= end;
            let origin = match &copied {
                _ if !item.has_sums => Origin::Known(UNKNOWN),
                None => continue,
                Some(sums) => match sums[(unit - at / BLOCK) as usize] {
                    // A part of the unit was never summed, so the whole unit is not (S6).
                    UNKNOWN => Origin::Known(UNKNOWN),
                    sum if is_whole => {
                        let at_run = (unit * BLOCK - run.offset()) as usize;
                        if let (true, Content::Slot(slot)) = (is_lost_in_part(lost, at_run), item.fill) {
                            let source = slot.advanced(u64::from(from) + unit * BLOCK - at);
                            if core.rest_is_damaged(&*core.pvs.get(source.pv())?, source.offset(), sum) {
                                lost.push(at_run..at_run + BLOCK as usize);
                                self.0[index] = Origin::Known(UNKNOWN);
                                continue;
                            }
                        }
                        Origin::Known(sum)
                    }
                    _ => continue,
                },
            };
            self.0[index] = origin;
        }
        Ok(())
    }

    /// Makes the sums of the units unknown of which a part is not written: these bytes of the run,
    /// which begins at byte `at` of its physical volume.
    pub(super) fn doubt(&mut self, part: &Range<usize>, at: u64) {
        let first = at / BLOCK;
        let units = (at + part.start as u64) / BLOCK - first..(at + part.end as u64).div_ceil(BLOCK) - first;
        for unit in units {
            if let Some(origin) = self.0.get_mut(unit as usize) {
                *origin = Origin::Known(UNKNOWN);
            }
        }
    }

    /// Makes the sums of a run unknown that is about to be written over slots in use.
    pub(super) fn forget(&self, core: &Core, pv: &Pv, at: u64) -> Result<()> {
        core.note_replaced(pv, at / BLOCK * BLOCK, self.0.len())?;
        core.sums.set(pv, unit_at(at), &vec![UNKNOWN; self.0.len()])
    }

    /// Sets the sums of a run that was written, and forgets it. `lost` are the parts of `bytes`
    /// that could not be read.
    pub(super) fn set(
        &mut self,
        core: &Core,
        pv: &Pv,
        (at, bytes): (u64, &[u8]),
        lost: &[Range<usize>],
    ) -> Result<()> {
        let first = at / BLOCK * BLOCK;
        let sum = |(origin, place): (Origin, u64)| match origin {
            Origin::Known(UNKNOWN) => UNKNOWN,
            // A unit at an end of the run may be there in part.
            _ if place < at || place + BLOCK > at + bytes.len() as u64 => UNKNOWN,
            Origin::Known(sum) => copied_sum(sum, bytes, (place - at) as usize, lost),
            Origin::Content => sum_of(&bytes[(place - at) as usize..][..BLOCK as usize]),
        };
        let sums: Vec<u32> = self.0.drain(..).zip((first..).step_by(BLOCK as usize)).map(sum).collect();
        core.sums.set(pv, unit_at(first), &sums)
    }
}

impl Core {
    /// Gives a RAID-5 the sums of `count` units from byte `at` on, before they become unknown and
    /// the units are overwritten. The RAID-5 may compute the new parity from the old content, and
    /// then verifies it.
    fn note_replaced(&self, pv: &Pv, at: u64, count: usize) -> Result<()> {
        if let Some(DiskLayout::Raid5(raid)) = pv.disk.as_layout()
            && raid.reads_old_content()
        {
            let mut sums = vec![UNKNOWN; count];
            self.sums.get(pv, unit_at(at), &mut sums)?;
            let units = (at..).step_by(BLOCK as usize).zip(sums);
            raid.note_sums(units.filter(|(_, sum)| *sum != UNKNOWN));
        }
        Ok(())
    }

    /// Makes the sums of units that are about to be written unknown, durably. Returns the units
    /// that had sums: the physical volume, and the byte on it.
    pub(super) fn doubt(&self, placed: &[Placed]) -> Result<Vec<Slot>> {
        let mut had = Vec::new();
        if !self.sums.is_on() {
            return Ok(had);
        }
        for placed in placed.iter().filter(|placed| placed.has_sums) {
            let pv = self.pvs.get(placed.address.pv())?;
            let (start, end) = (placed.address.offset(), placed.address.offset() + u64::from(placed.len));
            for at in (start / BLOCK * BLOCK..end).step_by(BLOCK as usize) {
                if self.sums.of(&pv, at)? != UNKNOWN {
                    self.note_replaced(&pv, at, 1)?;
                    self.sums.set(&pv, unit_at(at), &[UNKNOWN])?;
                    had.push(Slot::new(pv.id, at));
                }
            }
        }
        // The writes of these units come before the next commit, which flushes for itself.
        self.sums.flush()?;
        Ok(had)
    }

    /// Gives sums to units again that were written since [`Core::doubt`]. They were verified before
    /// that.
    pub(super) fn end_doubt(&self, units: &[Slot]) -> Result<()> {
        let _cause = Cause::Apply.begin();
        let mut content = [0; BLOCK as usize];
        for unit in units {
            let (pv, at) = (self.pvs.get(unit.pv())?, unit.offset());
            // What can't be read keeps no sum.
            if self.sums.of(&pv, at)? == UNKNOWN && pv.disk.read_at(&mut content, at).is_ok() {
                self.sums.set(&pv, unit_at(at), &[sum_of(&content)])?;
            }
        }
        Ok(())
    }

    /// Makes the sums of the slots unknown that a batch writes to. The batch is half applied, and
    /// can't be completed now.
    pub(super) fn doubt_batch(&self, batch: &Batch) -> Result<()> {
        if !self.sums.is_on() {
            return Ok(());
        }
        for item in &batch.items {
            let branch = &batch.branches[item.branch as usize];
            let (number, at) = MapPage::locate(item.chunk);
            let entry = self.map.read(PageKey::new(branch.id, number))?.get(at);
            let Some(slot) = entry.map(|entry| entry.slot).filter(|slot| *slot != Slot::HOLE) else {
                continue;
            };
            let first = unit_at(slot.offset() + u64::from(item.start));
            let end = unit_at(slot.offset() + u64::from(item.end) - 1) + 1;
            self.sums.set(&*self.pvs.get(slot.pv())?, first, &vec![UNKNOWN; (end - first) as usize])?;
        }
        Ok(())
    }

    /// Takes the sums of slots that references name. The slots become slots of chunks with the
    /// batch's commit.
    pub(super) fn take_sums(&self, batch: &Batch) -> Result<()> {
        if !self.sums.is_on() {
            return Ok(());
        }
        batch.slot_sums.iter().try_for_each(|(slot, sums)| {
            self.sums.set(&*self.pvs.get(slot.pv())?, unit_at(slot.offset()), sums)
        })
    }

    /// Tells layouts with a parity of which units a batch keeps a part. The units are written as a
    /// whole, and after a crash the batch needs the kept parts again.
    pub(super) fn announce_mixed(&self, mixed: &[MixedUnit]) {
        let mut by_pv: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for unit in mixed {
            by_pv.entry(unit.place.pv()).or_default().push(unit.place.offset());
        }
        for (pv, units) in by_pv {
            let held = self.pvs.held(pv);
            if let Some(DiskLayout::Raid5(raid)) = held.as_ref().and_then(|pv| pv.disk.as_layout()) {
                raid.keep_parts(units.into_iter());
            }
        }
    }

    /// Verifies the units of which a batch keeps a part. A unit that does not verify is damage from
    /// then on, and the commit makes that durable. What the batch writes there is whole again when
    /// it is written (S4).
    pub(super) fn verify_mixed(&self, batch: &Batch, mixed: &mut Vec<MixedUnit>) -> Result<()> {
        let _cause = Cause::Apply.begin();
        mixed.sort_unstable_by_key(|unit| unit.place);
        mixed.dedup_by_key(|unit| unit.place);
        let announce = |unit: &MixedUnit| -> Result<()> {
            self.pvs.get(unit.place.pv())?.disk.will_need(unit.place.offset(), BLOCK);
            Ok(())
        };
        mixed.iter().take(READ_AHEAD).try_for_each(announce)?;
        let mut buffer = [0; BLOCK as usize];
        for (index, unit) in mixed.iter().enumerate() {
            mixed.get(index + READ_AHEAD).map_or(Ok(()), announce)?;
            let pv = self.pvs.get(unit.place.pv())?;
            let at = unit.place.offset();
            // What can't be read is damage from now on, and the commit makes that durable, before
            // the unit is written.
            let lost = self.read_parts(&pv, &mut buffer, at)?;
            if self.sums.of(&pv, at)? == UNKNOWN || lost.iter().any(|part| part.len() as u64 == BLOCK) {
                continue;
            }
            let (branch, epoch) = (&batch.branches[unit.branch as usize], batch.epochs[unit.branch as usize]);
            let line = View { branch: branch.clone(), epoch, at: None };
            // The only content of a slot that a reference names is there.
            let judge = |_| !unit.referred && self.is_nobodys(&line, unit.block);
            self.unit_verifies(&pv, &mut buffer, at, &judge)?;
        }
        Ok(())
    }
}

impl Destager {
    /// Fails, once for each batch, if the batch meets damage that a repair may end. The batch is
    /// then taken back and comes again after the repair. Otherwise, a write to a part of a damaged
    /// unit would end the proof of what the rest of the unit was, and a history would get a gap.
    pub(super) fn let_repair_first(&self, state: &mut BackgroundState, batch: &Batch) -> Result<()> {
        let core = &self.core;
        let was_postponed = state.postponed == Some(state.destaged);
        if !core.damage.any() || !core.repairs.is_on() || was_postponed {
            return Ok(());
        }
        let now = core.world.clock.monotonic();
        let mut wanted = Vec::new();
        for items in batch.items.chunk_by(|a, b| (a.branch, a.chunk) == (b.branch, b.chunk)) {
            let (branch, chunk) = (&batch.branches[items[0].branch as usize], items[0].chunk);
            let Ok(Some((_, slot))) = core.owner_of(&View::head(branch), chunk) else { continue };
            let place = slot.offset()..slot.offset() + branch.chunk_size();
            if !core.damage.overlaps(slot.pv(), place).is_empty() && !core.repairs.is_hopeless(slot, now) {
                wanted.push((View::head(branch), chunk));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        state.postponed = Some(state.destaged);
        core.damage.retract_gaps((state.destaged.next(), batch.last.lsn));
        core.repairs.want(wanted);
        Err(Error::new(ErrorKind::Busy, "carry out a batch: damage is repaired first").taken_back())
    }
}
