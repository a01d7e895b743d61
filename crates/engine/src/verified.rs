//! Reads of slots. What has a sum is verified before anything uses it.
//!
//! A unit whose content does not match its sum is read again, because it may be written at this
//! moment (S5). If it still does not match, the unit is damaged: [`Damage`] gets it, and all reads
//! of it fail until it is written.
//!
//! [`Damage`]: crate::damage::Damage

use crate::core::Core;
use crate::damage::{BLOCK, SECTOR};
use crate::disk::{Dir, Settled, is_unreadable};
use crate::error::{Error, ErrorKind, Result};
use crate::space::label::DATA_START;
use crate::space::pv::{KnownSums, Pv};
use crate::sums::{UNKNOWN, file_name, file_owner, sum_of, unit_at};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Number of units that are read and verified together: 256 KiB. The data stays in the processor's
/// cache between the read and the verification.
const UNITS: usize = 64;
/// The largest read that goes through a buffer of whole units, in bytes.
const MAX_BUFFERED: u64 = 64 << 10;
/// Number of reads that find one content that does not match one sum, until the unit counts as
/// damaged.
const MISMATCHES: u32 = 3;

/// Tells for a byte of a physical volume whether the sum of the unit there decides nothing, because
/// the unit is nobody's content (S7).
pub(crate) type Judge<'a> = &'a dyn Fn(u64) -> bool;

/// The judge of slots that nobody overwrites: their sums always decide.
pub(crate) const STRICT: Judge<'static> = &|_| false;

impl Core {
    /// Fills `out` with the content at byte `at` of a physical volume, verified. With `may_block`
    /// false it returns `Ok(false)` if the read would have to wait for a disk. An error names the
    /// first byte that can't be read, if it is known.
    #[inline]
    pub(crate) fn read_slots(
        &self,
        pv: &Pv,
        out: &mut [u8],
        at: u64,
        may_block: bool,
        judge: Judge<'_>,
    ) -> Result<bool> {
        self.check_place(pv, at, out.len())?;
        if !self.sums.is_on() {
            return read_disk(pv, out, at, may_block);
        }
        let is_whole = at.is_multiple_of(BLOCK) && (out.len() as u64).is_multiple_of(BLOCK);
        let reader = VerifyingReader { core: self, pv, may_block, judge };
        let done = match is_whole {
            true => reader.read_units(out, at)?,
            false => reader.read_parts_of_units(out, at)?,
        };
        // Destage may have found damage meanwhile, and put zeros with a sum of their own there.
        self.check_place(pv, at, out.len())?;
        Ok(done)
    }
}

/// Reads a range of a physical volume that has sums. Its methods return `Ok(false)` if `may_block`
/// is false and they would have to wait for a disk.
struct VerifyingReader<'a> {
    core: &'a Core,
    pv: &'a Pv,
    may_block: bool,
    judge: Judge<'a>,
}

impl VerifyingReader<'_> {
    /// Reads a range that does not consist of whole units.
    #[inline(never)]
    fn read_parts_of_units(&self, out: &mut [u8], at: u64) -> Result<bool> {
        let end = at + out.len() as u64;
        let first_end = (at / BLOCK * BLOCK + MAX_BUFFERED).min(end);
        let (first, rest) = out.split_at_mut((first_end - at) as usize);
        if !self.read_buffered(first, at)? {
            return Ok(false);
        }
        let whole = (rest.len() as u64 / BLOCK * BLOCK) as usize;
        let (middle, last) = rest.split_at_mut(whole);
        Ok((middle.is_empty() || self.read_units(middle, first_end)?)
            && (last.is_empty() || self.read_buffered(last, first_end + whole as u64)?))
    }

    /// Reads a range through a buffer of the whole units around it. Range and rest of its first
    /// unit are [`MAX_BUFFERED`] at most.
    fn read_buffered(&self, out: &mut [u8], at: u64) -> Result<bool> {
        let start = at / BLOCK * BLOCK;
        let end = (at + out.len() as u64).next_multiple_of(BLOCK);
        let mut sums = [UNKNOWN; (MAX_BUFFERED / BLOCK) as usize];
        let sums = &mut sums[..((end - start) / BLOCK) as usize];
        if !self.sums_of(start, sums)? {
            return Ok(false);
        }
        if sums.iter().all(|sum| *sum == UNKNOWN) {
            return read_disk(self.pv, out, at, self.may_block);
        }
        let mut units = vec![0; (end - start) as usize];
        match self.read_units(&mut units, start) {
            Ok(true) => {
                out.copy_from_slice(&units[(at - start) as usize..][..out.len()]);
                Ok(true)
            }
            // Another sector of a unit can't be read, so the unit can't be verified. The disk
            // answers for the wanted sectors.
            Err(error) if error.byte().is_none() => read_disk(self.pv, out, at, self.may_block),
            read => read,
        }
    }

    /// Reads and verifies whole units.
    fn read_units(&self, out: &mut [u8], at: u64) -> Result<bool> {
        let mut sums = [UNKNOWN; UNITS];
        for (part, at) in out.chunks_mut(UNITS * BLOCK as usize).zip((at..).step_by(UNITS * BLOCK as usize)) {
            let sums = &mut sums[..part.len() / BLOCK as usize];
            if !self.sums_of(at, sums)? || !read_disk(self.pv, part, at, self.may_block)? {
                return Ok(false);
            }
            for ((unit, sum), place) in
                part.chunks_exact_mut(BLOCK as usize).zip(&*sums).zip((at..).step_by(BLOCK as usize))
            {
                if *sum != UNKNOWN && sum_of(unit) != *sum {
                    if !self.may_block {
                        return Ok(false);
                    }
                    self.core.read_again(self.pv, unit, place, self.judge)?;
                }
            }
        }
        Ok(true)
    }

    #[inline]
    fn sums_of(&self, at: u64, out: &mut [u32]) -> Result<bool> {
        let (sums, first) = (&self.core.sums, unit_at(at));
        if sums.cached(self.pv.id, first, out) {
            return Ok(true);
        }
        if self.may_block {
            sums.get(self.pv, first, out)?;
        }
        Ok(self.may_block)
    }
}

impl Core {
    /// Reads a unit that did not match its sum until it does, or until it is certain that it is
    /// damaged (S5).
    #[cold]
    fn read_again(&self, pv: &Pv, unit: &mut [u8], at: u64, judge: Judge<'_>) -> Result<()> {
        let range = at..at + BLOCK;
        let (mut last, mut mismatches) = (UNKNOWN, 0);
        loop {
            self.sums.wait_written(pv.id, &range);
            let sum = self.sums.of(pv, at)?;
            read_disk(pv, unit, at, true)?;
            if sum == UNKNOWN || sum_of(unit) == sum || judge(at) {
                return Ok(());
            }
            if self.settle_unit(pv, unit, at, sum) != Settled::NoneRight {
                return Ok(());
            }
            mismatches = if sum == last { mismatches + 1 } else { 1 };
            last = sum;
            // What the page cache has wrong may be right on the medium.
            pv.disk.drop_cached(at, BLOCK);
            let was_whole = self.damage.overlaps(pv.id, range.clone()).is_empty();
            let condemn = || self.damage.add(pv.id, range.clone(), "it does not match its sum");
            if mismatches >= MISMATCHES && self.sums.judge(pv, at, sum, condemn)? {
                if !was_whole {
                    // A part of the unit was lost before, and its sum is that of a filler. It must
                    // not prove later that the unit is whole.
                    self.sums.set(pv, unit_at(at), &[UNKNOWN])?;
                }
                // A write may have healed the unit since then.
                self.check_place(pv, at, unit.len())?;
                mismatches = 0;
            }
        }
    }

    /// Lets physical volumes with parities verify with the sums what they read.
    pub(crate) fn lend_sums(self: &Arc<Core>) {
        let core = Arc::downgrade(self);
        let known = move |pv, at| {
            let core = Weak::upgrade(&core).filter(|core| core.sums.is_on() && at >= DATA_START)?;
            let sum = core.sums.of(&*core.pvs.held(pv)?, at).unwrap_or(UNKNOWN);
            (sum != UNKNOWN).then_some(sum)
        };
        self.pvs.verify_with(KnownSums { known: Arc::new(known), sum_of });
    }

    /// Looks for a copy of a unit that matches its sum, and makes the other copies like it. Only a
    /// mirror has copies.
    pub(crate) fn settle_unit(&self, pv: &Pv, unit: &mut [u8], at: u64, sum: u32) -> Settled {
        let settled = pv.disk.settle(unit, at, &|copy| sum_of(copy) == sum).unwrap_or(Settled::NoneRight);
        if settled == Settled::Mended {
            self.repairs.from_copies.fetch_add(BLOCK, Ordering::Relaxed);
        }
        settled
    }

    /// Reads like [`Core::read_parts`], and verifies. A unit that does not match its sum counts as
    /// unreadable. No batch is half done, and no staged record covers the range.
    pub(crate) fn read_verified_parts(&self, pv: &Pv, out: &mut [u8], at: u64) -> Result<Vec<Range<usize>>> {
        let lost = self.read_parts(pv, out, at)?;
        if !self.sums.is_on() || !self.find_mismatches(pv, out, at, &lost)? {
            return Ok(lost);
        }
        self.read_parts(pv, out, at)
    }

    /// Returns whether a unit of a range is newly found to be damaged. `content` is the range as it
    /// was read.
    fn find_mismatches(&self, pv: &Pv, content: &[u8], at: u64, lost: &[Range<usize>]) -> Result<bool> {
        let end = at + content.len() as u64;
        let mut found = false;
        let mut buffer = [0; BLOCK as usize];
        for unit in (at / BLOCK * BLOCK..end).step_by(BLOCK as usize) {
            let sum = self.sums.of(pv, unit)?;
            let inside = (unit.max(at) - at) as usize..((unit + BLOCK).min(end) - at) as usize;
            let is_lost = lost.iter().any(|part| part.start < inside.end && inside.start < part.end);
            if sum == UNKNOWN || is_lost {
                continue;
            }
            if inside.len() as u64 == BLOCK && sum_of(&content[inside]) == sum {
                continue;
            }
            found |= !self.unit_verifies(pv, &mut buffer, unit, STRICT)?;
        }
        Ok(found)
    }

    /// Reads a unit and returns whether it verifies. If not, it is damage from then on. A unit of
    /// which a part can't be read can't be verified.
    pub(crate) fn unit_verifies(
        &self,
        pv: &Pv,
        buffer: &mut [u8],
        at: u64,
        judge: Judge<'_>,
    ) -> Result<bool> {
        match self.read_again(pv, buffer, at, judge) {
            Ok(()) => Ok(true),
            Err(error) if error.byte().is_some() => Ok(false),
            Err(error) if error.kind() == ErrorKind::Io => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Sets the sums of `bytes`, a copy of what is at `from` of `source`, at the place `to`. The
    /// copy gets the sums of its source: what was damaged before stays damaged (S1). `lost` are the
    /// parts that could not be read. A range that does not consist of whole units gets unknown
    /// sums.
    pub(crate) fn copy_sums(
        &self,
        (source, from): (&Pv, u64),
        (target, to): (&Pv, u64),
        bytes: &[u8],
        lost: &[Range<usize>],
    ) -> Result<()> {
        if !self.sums.is_on() {
            return Ok(());
        }
        let mut sums = vec![UNKNOWN; bytes.len().div_ceil(BLOCK as usize)];
        if (bytes.len() as u64).is_multiple_of(BLOCK) && from.is_multiple_of(BLOCK) {
            self.sums.get(source, unit_at(from), &mut sums)?;
        }
        for (index, sum) in sums.iter_mut().enumerate() {
            let at = index * BLOCK as usize;
            if is_lost_in_part(lost, at) && self.rest_is_damaged(source, from + at as u64, *sum) {
                let unit = to + at as u64..to + at as u64 + BLOCK;
                self.damage.add(target.id, unit, "the rest of what it is copied from is damaged");
                *sum = UNKNOWN;
            } else {
                *sum = copied_sum(*sum, bytes, at, lost);
            }
        }
        self.sums.set(target, unit_at(to), &sums)
    }

    /// Returns whether a unit does not match its sum, of which a part is known to be lost. Its sum
    /// is that of what is in place, lost parts included. A unit that can't be read decides nothing.
    pub(crate) fn rest_is_damaged(&self, pv: &Pv, at: u64, sum: u32) -> bool {
        let mut content = [0; BLOCK as usize];
        sum != UNKNOWN && pv.disk.read_at(&mut content, at).is_ok() && sum_of(&content) != sum
    }

    /// Makes all sums unknown, because records of the journal were given up. A batch with such
    /// records may have been half applied, and nothing tells which units it wrote.
    pub(crate) fn drop_sums(&self) -> Result<()> {
        let pvs: Vec<u32> = self.names.read().pvs.keys().copied().collect();
        if !self.sums.is_on() {
            return Ok(());
        }
        tracing::warn!(
            "records were lost: all data loses its sums, until it is written again or adopted by a scrub"
        );
        for pv in pvs.into_iter().filter_map(|pv| self.pvs.held(pv)) {
            self.sums.forget(pv.id)?;
            self.sums.create(&pv)?;
        }
        Ok(())
    }

    /// Removes the files with the sums of physical volumes that are not there any more, and reports
    /// files that are missing.
    pub(crate) fn tidy_sums(&self) -> Result<()> {
        if !self.sums.is_on() {
            return Ok(());
        }
        let names = self.dir.list().map_err(|e| Error::io("list the data directory", e))?;
        let found: BTreeSet<u32> = names.iter().filter_map(|name| file_owner(name)).collect();
        let (known, paths): (BTreeSet<u32>, BTreeSet<String>) = {
            let names = self.names.read();
            (names.pvs.keys().copied().collect(), names.pvs.values().map(|pv| pv.path.clone()).collect())
        };
        let is_left = |pv: &&u32| !paths.contains(&file_name(**pv));
        found.difference(&known).filter(is_left).for_each(|pv| _ = self.sums.forget(*pv));
        for pv in known.difference(&found).filter_map(|pv| self.pvs.held(*pv)) {
            // A physical volume that holds nothing yet has no file.
            if pv.used_extents.load(Ordering::Relaxed) > 0 {
                let (file, pv) = (file_name(pv.id), &pv.path);
                tracing::error!(
                    pv,
                    file,
                    "the sums of a physical volume are missing: what it holds can't be verified"
                );
            }
        }
        Ok(())
    }

    /// Sets the sums of what was written to new slots. A range that does not consist of whole units
    /// gets unknown sums.
    pub(crate) fn set_sums(&self, pv: &Pv, at: u64, bytes: &[u8]) -> Result<()> {
        if !self.sums.is_on() {
            return Ok(());
        }
        let sum = |unit: &[u8]| if unit.len() as u64 == BLOCK { sum_of(unit) } else { UNKNOWN };
        let sums: Vec<u32> = bytes.chunks(BLOCK as usize).map(sum).collect();
        self.sums.set(pv, unit_at(at), &sums)
    }
}

/// Returns the sum of a unit that is copied from a unit with the sum `source`, as the bytes of
/// `copied` from `at` on. A unit of which a part could not be read has zeros there, and [`Damage`]
/// has that part. A unit that could not be read at all keeps the sum of what was lost.
///
/// [`Damage`]: crate::damage::Damage
pub(crate) fn copied_sum(source: u32, copied: &[u8], at: usize, lost: &[Range<usize>]) -> u32 {
    match is_lost_in_part(lost, at) {
        true if source != UNKNOWN => sum_of(&copied[at..at + BLOCK as usize]),
        _ => source,
    }
}

/// Returns whether a part of the unit at `at` is lost, and not all of it.
pub(crate) fn is_lost_in_part(lost: &[Range<usize>], at: usize) -> bool {
    let end = at + BLOCK as usize;
    let is_whole = |part: &Range<usize>| part.start <= at && end <= part.end;
    let touches = |part: &Range<usize>| part.start < end && at < part.end;
    lost.iter().any(touches) && !lost.iter().any(is_whole)
}

/// Reads without verification. With `may_block` false it returns `Ok(false)` if the read would have
/// to wait for the disk.
fn read_disk(pv: &Pv, out: &mut [u8], at: u64, may_block: bool) -> Result<bool> {
    pv.note_read(at, out.len());
    let read = if may_block { pv.disk.read_at(out, at).map(|()| true) } else { pv.disk.try_read_at(out, at) };
    read.map_err(|error| {
        pv.count_read_error(at, &error);
        Error::io(format!("read from {} at byte {at}", pv.path), error)
    })
}

impl Core {
    /// Fails if a part of a range of a physical volume is damaged.
    #[inline]
    pub(crate) fn check_place(&self, pv: &Pv, at: u64, len: usize) -> Result<()> {
        if !self.damage.any() {
            return Ok(());
        }
        match self.damage.overlaps(pv.id, at..at + len as u64).first() {
            None => Ok(()),
            Some(part) => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "read from {} at byte {}: {} bytes there could not be read, or do not match their sum; they are lost until they are written again",
                    pv.path,
                    part.start,
                    part.end - part.start
                ),
            )
            .with_byte(part.start)),
        }
    }

    /// Reads the readable parts of a range of a physical volume, and fills the rest with zeros.
    /// Returns the unreadable parts, as ranges in `out`, which count as damage from then on. A
    /// physical volume that does not answer at all is not damaged but absent: that is an error, and
    /// its content is not given up.
    pub(crate) fn read_parts(&self, pv: &Pv, out: &mut [u8], at: u64) -> Result<Vec<Range<usize>>> {
        let range = at..at + out.len() as u64;
        pv.note_read(at, out.len());
        if let Err(error) = pv.disk.read_at(out, at) {
            let failed = |e| Error::io(format!("read from {} at byte {at}", pv.path), e);
            pv.count_read_error(at, &error);
            if !is_unreadable(&error) {
                return Err(failed(error));
            }
            let away = failed(error).of_absent_pv();
            let answers = || pv.disk.answers().map_err(|_| away.clone());
            answers()?;
            let unreadable = self.read_in_pieces(pv, out, at)?;
            // The physical volume may have become absent meanwhile.
            answers()?;
            let before: Vec<_> = unreadable
                .iter()
                .map(|place| {
                    let unit = place.start / BLOCK * BLOCK;
                    self.damage.overlaps(pv.id, unit..unit + BLOCK)
                })
                .collect();
            for (place, known) in unreadable.into_iter().zip(before) {
                let unit = place.start / BLOCK * BLOCK;
                if known.iter().any(|part| part.start <= place.start && place.end <= part.end) {
                    continue;
                }
                if !known.is_empty() && self.sums.is_on() {
                    // Another part of the unit was lost before, and its sum is that of a filler.
                    // Together they must not be found whole by that sum later.
                    self.sums.set(pv, unit_at(unit), &[UNKNOWN])?;
                }
                self.damage.add(pv.id, place, "it can't be read");
            }
        }
        let lost = self.damage.overlaps(pv.id, range);
        let lost: Vec<Range<usize>> =
            lost.into_iter().map(|part| (part.start - at) as usize..(part.end - at) as usize).collect();
        self.choose_copies(pv, out, at, &lost)?;
        lost.iter().for_each(|part| out[part.clone()].fill(0));
        Ok(lost)
    }

    /// Replaces what was read from a wrong copy of a mirror by the right one. `out` is the content
    /// at byte `at`. A unit of which no copy matches its sum stays as it is.
    pub(crate) fn choose_copies(
        &self,
        pv: &Pv,
        out: &mut [u8],
        at: u64,
        lost: &[Range<usize>],
    ) -> Result<()> {
        if pv.disk.as_layout().is_none() || !self.sums.is_on() {
            return Ok(());
        }
        let end = at + out.len() as u64;
        for place in (at / BLOCK * BLOCK..end).step_by(BLOCK as usize) {
            let sum = self.sums.of(pv, place)?;
            let inside = (place.max(at) - at) as usize..((place + BLOCK).min(end) - at) as usize;
            let is_lost = lost.iter().any(|part| part.start < inside.end && inside.start < part.end);
            if sum == UNKNOWN || is_lost {
                continue;
            }
            let mut unit = [0; BLOCK as usize];
            if inside.len() as u64 == BLOCK {
                unit.copy_from_slice(&out[inside.clone()]);
            } else if pv.disk.read_at(&mut unit, place).is_err() {
                continue;
            }
            if sum_of(&unit) == sum || self.settle_unit(pv, &mut unit, place, sum) != Settled::NoneRight {
                let first = (place.max(at) - place) as usize;
                out[inside.clone()].copy_from_slice(&unit[first..first + inside.len()]);
            }
        }
        Ok(())
    }

    /// Reads block by block, and failing blocks sector by sector. Returns the sectors that fail.
    pub(crate) fn read_in_pieces(&self, pv: &Pv, out: &mut [u8], at: u64) -> Result<Vec<Range<u64>>> {
        let mut unreadable = Vec::new();
        let end = at + out.len() as u64;
        let mut from = at;
        while from < end {
            let to = (from / BLOCK * BLOCK + BLOCK).min(end);
            let block = &mut out[(from - at) as usize..(to - at) as usize];
            match pv.disk.read_at(block, from) {
                Ok(()) => {}
                Err(error) if is_unreadable(&error) => {
                    for (sector, place) in
                        block.chunks_mut(SECTOR as usize).zip((from..).step_by(SECTOR as usize))
                    {
                        match pv.disk.read_at(sector, place) {
                            Ok(()) => {}
                            Err(error) if is_unreadable(&error) => {
                                unreadable.push(place..place + sector.len() as u64);
                            }
                            Err(error) => {
                                return Err(Error::io(
                                    format!("read from {} at byte {place}", pv.path),
                                    error,
                                ));
                            }
                        }
                    }
                }
                Err(error) => return Err(Error::io(format!("read from {} at byte {from}", pv.path), error)),
            }
            from = to;
        }
        Ok(unreadable)
    }
}
