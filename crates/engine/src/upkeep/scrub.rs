//! The scrub of data in place: it reads everything that is in use, a little at a time, and verifies
//! it, so that rot is found while a repair may still be possible.
//!
//! A pass goes through the maps of all branches, and then through the versions. So each slot in use
//! is read once, and its owner is known: what staged records cover is nobody's content (S7), and is
//! passed over. A pass needs no lock. It reads like a client, under the grace period, and looks
//! again at what does not match (S5). Only adopting and repairing take the destager's lock.
//!
//! Reads go past the page cache: the medium itself must have the content. If only the page cache
//! has it, the scrub writes it again.
//!
//! The progress is in memory. Each commit stores it, and a running pass makes a commit at least
//! every minute. After a restart the pass continues from there. What a pass reads twice is counted
//! twice.

use crate::branch::{Branch, HEAD, View};
use crate::catalog::page::{MapPage, Slot};
use crate::catalog::scrub::data::{DataScrubRecord, ScrubCounts, ScrubPosition};
use crate::catalog::{PageKey, VersionKey};
use crate::core::Core;
use crate::destage::Destager;
use crate::disk::{Cause, Settled, SyncPurpose};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BranchId, Chunk};
use crate::repairs::ShownChunk;
use crate::space::pv::Pv;
use crate::sums::{UNKNOWN, sum_of, unit_at};
use crate::units::BLOCK;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of bytes that one step reads, at least a unit.
const STEP: u64 = 4 << 20;
/// Number of bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Number of places that one step reads: freed slots wait for it.
const MAX_PARTS: usize = 256;
/// Number of versions that one step looks at.
const VERSIONS_PER_STEP: usize = 256;
/// Nanoseconds after which a running pass commits its progress.
const COMMIT_AFTER: u64 = 60_000_000_000;
/// Per cent of the journal in use above which the scrub leaves the disks to destage.
const MOST_USED: u64 = 80;
/// The pause when there is nothing to do, and when the journal is that full.
const REST: Duration = Duration::from_secs(2);
const PRESSED: Duration = Duration::from_millis(250);

/// The outcome of one step.
struct Step {
    counts: ScrubCounts,
    /// Bytes that were read.
    read: u64,
    /// The place from which the next step continues; `None` at the end of the pass.
    next: Option<ScrubPosition>,
    /// The parts in which something was wrong, and what was counted for each.
    troubled: Vec<(Part, ScrubCounts)>,
}

impl Step {
    fn new() -> Step {
        Step { counts: ScrubCounts::default(), read: 0, next: None, troubled: Vec::new() }
    }
}

/// A part of a slot that is scrubbed.
struct Part {
    /// The branch that the slot belongs to, as of its last epoch with the content, and the chunk.
    shown: ShownChunk,
    slot: Slot,
    /// The first byte of the slot, and the number of bytes.
    from: u64,
    len: u64,
    /// The block of the branch that the first byte belongs to.
    block: u64,
}

impl Destager {
    /// Takes the next step of the scrub, unless destage needs the disks. Returns the time after
    /// which to take the next one.
    pub(crate) fn scrub_step(&self) -> Result<Duration> {
        self.next_scrub_step(true)
    }

    /// Takes the next step of the scrub. With `gives_way`, the step does nothing while more than
    /// [`MOST_USED`] of the journal is in use. So the caller must know that somebody destages.
    pub(crate) fn next_scrub_step(&self, gives_way: bool) -> Result<Duration> {
        let core = &self.core;
        if !core.sums.is_on() {
            return Ok(REST);
        }
        let (now, interval) = (core.world.clock.now(), core.options.data_scrub_interval);
        let position = core.data_scrub.change(|record| {
            if record.started == 0 {
                // The first pass is due an interval after the pool got its sums.
                record.started = now.max(1);
            }
            let since = now.saturating_sub(record.finished.max(record.started));
            if !record.running && !interval.is_zero() && u128::from(since) >= interval.as_nanos() {
                begin(record, now, core.options.data_scrub_rate, false);
            }
            (record.running && !record.paused).then_some(record.position)
        });
        let Some(position) = position else { return Ok(REST) };
        let left = core.data_scrub.0.lock().not_before.saturating_sub(core.world.clock.monotonic());
        if left > 0 {
            return Ok(Duration::from_nanos(left).min(REST));
        }
        let (used, capacity) = core.journal.usage();
        if gives_way && used > capacity / 100 * MOST_USED {
            return Ok(PRESSED);
        }
        core.check_usable()?;
        let _cause = Cause::Scrub.begin();
        let adopts = core.data_scrub.record().adopts;
        let mut step = match position {
            ScrubPosition::Heads(branch, at) => self.scrub_heads(branch, at, adopts),
            ScrubPosition::Versions(key, at) => self.scrub_versions(key, at, adopts),
        }?;
        self.repair_found(&mut step)?;
        let ended = core.data_scrub.change(|record| {
            // The pass may have been ended or begun anew meanwhile.
            if !record.running || record.position != position {
                return false;
            }
            add(&mut record.counts, &step.counts);
            record.position = step.next.unwrap_or(ScrubPosition::START);
            if step.next.is_none() {
                (record.running, record.finished) = (false, core.world.clock.now().max(1));
                record.passes += 1;
            }
            step.next.is_none()
        });
        let record = core.data_scrub.record();
        if ended {
            let ScrubCounts { verified, unknown, damaged, unreadable, repaired, .. } = record.counts;
            tracing::info!(verified, unknown, damaged, unreadable, repaired, "a scrub of the data ended");
        }
        self.store_scrub(ended)?;
        let pause = step.read.saturating_mul(1_000_000_000).checked_div(record.rate).unwrap_or(0);
        core.data_scrub.0.lock().not_before = core.world.clock.monotonic().saturating_add(pause);
        Ok(Duration::from_nanos(pause).min(REST))
    }

    /// Commits the progress, if the last commit for it was long ago.
    fn store_scrub(&self, ended: bool) -> Result<()> {
        let now = self.core.world.clock.monotonic();
        let due = {
            let mut state = self.core.data_scrub.0.lock();
            let due = ended || now.saturating_sub(state.committed) >= COMMIT_AFTER;
            state.committed = if due { now } else { state.committed };
            due && state.record != state.stored
        };
        if due {
            self.commit_alone(&mut self.state.lock())?;
        }
        Ok(())
    }

    /// Scrubs current content of a branch from a byte on, or else of the next branch.
    fn scrub_heads(&self, id: BranchId, at: u64, adopts: bool) -> Result<Step> {
        let mut step = Step::new();
        let next = self.core.names.read().branches.range(id..).next().map(|(_, branch)| branch.clone());
        let Some(branch) = next else {
            step.next = Some(ScrubPosition::VERSIONS);
            return Ok(step);
        };
        let at = if branch.id == id { at } else { 0 };
        let next_branch = ScrubPosition::Heads(BranchId(branch.id.0 + 1), 0);
        let _reading = self.core.readers.enter();
        let (number, _) = MapPage::locate(Chunk::of(at, branch.chunk_log2));
        let Some(number) = self.core.catalog.page_numbers(branch.id, number, u64::MAX, 1)?.first().copied()
        else {
            step.next = Some(next_branch);
            return Ok(step);
        };
        let behind = Chunk::first_of(number + 1).start(branch.chunk_log2);
        step.next = Some(ScrubPosition::Heads(branch.id, behind));
        let page = match self.core.map.read(PageKey::new(branch.id, number)) {
            // Reads of the page fail, and the check reports it.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(step),
            page => page?,
        };
        let line = View::head(&branch);
        let (mut parts, mut left) = (Vec::new(), STEP);
        for (index, entry) in page.iter().filter(|(_, entry)| entry.slot != Slot::HOLE) {
            if parts.len() == MAX_PARTS {
                left = 0;
            }
            let start = Chunk::in_page(number, index).start(branch.chunk_log2);
            let from = at.saturating_sub(start);
            if from >= branch.chunk_size() {
                continue;
            }
            if left == 0 {
                step.next = Some(ScrubPosition::Heads(branch.id, start));
                break;
            }
            let len = left.min(branch.chunk_size() - from);
            let shown = (line.clone(), Chunk::in_page(number, index));
            parts.push(Part { shown, slot: entry.slot, from, len, block: (start + from) / BLOCK });
            left -= len;
            if from + len < branch.chunk_size() {
                step.next = Some(ScrubPosition::Heads(branch.id, start + from + len));
                break;
            }
        }
        parts.sort_unstable_by_key(|part| part.slot);
        for part in parts {
            self.scrub_part(part, adopts, &mut step)?;
        }
        Ok(step)
    }

    /// Scrubs versions from one on, and the first one from a byte on.
    fn scrub_versions(&self, from: VersionKey, at: u64, adopts: bool) -> Result<Step> {
        let mut step = Step::new();
        let _reading = self.core.readers.enter();
        let mut versions = Vec::new();
        let behind = self.core.catalog.visit_versions(from, VERSIONS_PER_STEP, &mut |key, version| {
            versions.extend(version.ok().map(|version| (key, version.entry)));
            Ok(())
        })?;
        step.next = behind.map(|key| ScrubPosition::Versions(key, 0));
        for (key, entry) in versions.into_iter().filter(|(_, entry)| entry.slot != Slot::HOLE) {
            let branch = self.core.names.read().branches.get(&key.branch).cloned();
            let Some(branch) = branch else { continue };
            if step.read >= STEP {
                step.next = Some(ScrubPosition::Versions(key, 0));
                break;
            }
            let from = if key == from { at } else { 0 };
            let len = STEP.min(branch.chunk_size().saturating_sub(from));
            // Nothing is staged over a version, and nothing overwrites it.
            let size = branch.chunk_size();
            let shown = (View { branch, epoch: key.last, at: None }, key.chunk);
            self.scrub_part(Part { shown, slot: entry.slot, from, len, block: 0 }, adopts, &mut step)?;
            if from + len < size {
                step.next = Some(ScrubPosition::Versions(key, from + len));
                break;
            }
        }
        Ok(step)
    }

    /// Scrubs a part of a slot.
    fn scrub_part(&self, part: Part, adopts: bool, step: &mut Step) -> Result<()> {
        if part.len % BLOCK != 0 {
            // Chunks that are smaller than a unit have no sums.
            step.counts.unknown += part.len;
            return Ok(());
        }
        let counts = self.scrub_slot(&part, adopts)?;
        add(&mut step.counts, &counts);
        step.read += part.len;
        if counts.damaged + counts.unreadable > 0 {
            step.troubled.push((part, counts));
        }
        Ok(())
    }

    fn scrub_slot(&self, part: &Part, adopts: bool) -> Result<ScrubCounts> {
        let line = Some(&part.shown.0).filter(|line| line.epoch == HEAD);
        let pv = self.core.pvs.get(part.slot.pv())?;
        let mut counts = ScrubCounts::default();
        let mut buffer = vec![0; PIECE.min(part.len as usize)];
        let end = part.slot.offset() + part.from + part.len;
        let start = part.slot.offset() + part.from;
        for at in (start..end).step_by(PIECE) {
            let content = &mut buffer[..(end - at).min(PIECE as u64) as usize];
            let block = part.block + (at - start) / BLOCK;
            let settled = |place: u64| {
                let block = block + (place - at) / BLOCK;
                line.is_none_or(|line| !self.core.is_nobodys(line, block))
            };
            let unknown = counts.unknown;
            self.scrub_piece(&pv, content, at, &settled, &mut counts)?;
            if adopts && counts.unknown > unknown {
                self.adopt(&pv, at, content.len() as u64, &mut counts)?;
            }
        }
        Ok(counts)
    }

    /// Repairs what a step found, and counts it anew.
    fn repair_found(&self, step: &mut Step) -> Result<()> {
        let troubled = std::mem::take(&mut step.troubled);
        let wanted: Vec<ShownChunk> = troubled.iter().map(|(part, _)| part.shown.clone()).collect();
        let repaired = self.repair(&wanted);
        if repaired == 0 {
            return Ok(());
        }
        step.counts.repaired += repaired;
        for (part, before) in troubled {
            let _reading = self.core.readers.enter();
            // The chunk may have left its slot, and what it is now may be damaged in part.
            let owner = self.core.owner_of(&part.shown.0, part.shown.1)?;
            let after = match owner.filter(|(line, _)| line.branch.id == part.shown.0.branch.id) {
                Some((_, slot)) => self.scrub_slot(&Part { slot, ..part }, false)?,
                None => ScrubCounts::default(),
            };
            step.counts.verified = step.counts.verified + after.verified - before.verified;
            step.counts.unknown = step.counts.unknown + after.unknown - before.unknown;
            step.counts.damaged = step.counts.damaged + after.damaged - before.damaged;
            step.counts.unreadable = step.counts.unreadable + after.unreadable - before.unreadable;
        }
        // What was repaired verifies now, and counts once.
        step.counts.verified = step.counts.verified.saturating_sub(repaired);
        Ok(())
    }

    fn scrub_piece(
        &self,
        pv: &Pv,
        content: &mut [u8],
        at: u64,
        settled: &dyn Fn(u64) -> bool,
        counts: &mut ScrubCounts,
    ) -> Result<()> {
        let mut sums = vec![UNKNOWN; content.len() / BLOCK as usize];
        self.core.sums.get(pv, unit_at(at), &mut sums)?;
        let whole = pv.disk.read_direct(content, at);
        let agrees = whole.is_err() || pv.disk.agrees(content, at).unwrap_or(false);
        for ((unit, sum), place) in
            content.chunks_exact_mut(BLOCK as usize).zip(sums).zip((at..).step_by(BLOCK as usize))
        {
            if whole.is_err()
                && let Err(error) = pv.disk.read_direct(unit, place)
            {
                pv.count_read_error(place, &error);
                counts.unreadable += BLOCK;
                continue;
            }
            if sum == UNKNOWN {
                counts.unknown += BLOCK;
            } else if sum_of(unit) == sum {
                // A unit that is damaged in part has a sum of what is in place.
                let mended = !agrees && self.core.settle_unit(pv, unit, place, sum) == Settled::Mended;
                match self.core.clear_damage(pv, place, sum)? {
                    true if mended => counts.repaired += BLOCK,
                    true => counts.verified += BLOCK,
                    false => counts.damaged += BLOCK,
                }
            } else if settled(place) {
                self.scrub_again(pv, unit, place, settled, counts)?;
            }
        }
        Ok(())
    }

    /// Looks again at a unit that the medium has with another content than its sum says.
    fn scrub_again(
        &self,
        pv: &Pv,
        unit: &mut [u8],
        at: u64,
        settled: &dyn Fn(u64) -> bool,
        counts: &mut ScrubCounts,
    ) -> Result<()> {
        let sum = self.core.sums.of(pv, at)?;
        if sum != UNKNOWN && self.core.settle_unit(pv, unit, at, sum) == Settled::Mended {
            counts.repaired += BLOCK;
            return Ok(());
        }
        let known = self.core.damage.overlaps(pv.id, at..at + BLOCK);
        let is_known = known.iter().any(|part| part.end - part.start == BLOCK);
        if is_known || !self.core.unit_verifies(pv, unit, at, &|place| !settled(place))? {
            counts.damaged += BLOCK;
            return Ok(());
        }
        match self.write_from_cache(pv, unit, at) {
            Ok(true) => {
                self.core.repairs.from_cache.fetch_add(BLOCK, Ordering::Relaxed);
                counts.repaired += BLOCK;
            }
            Ok(false) => counts.verified += BLOCK,
            Err(error) if error.kind() == ErrorKind::Io => {
                tracing::warn!(pv = pv.path, at, %error, "data that is wrong on the medium can't be written again");
                counts.damaged += BLOCK;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes a unit again that only the page cache has right. Returns false if the medium has the
    /// right content by now.
    fn write_from_cache(&self, pv: &Pv, unit: &mut [u8], at: u64) -> Result<bool> {
        // Nothing writes to slots in use meanwhile.
        let _state = self.state.lock();
        self.core.check_usable()?;
        let sum = self.core.sums.of(pv, at)?;
        let failed = |e| Error::io(format!("scrub {} at byte {at}", pv.path), e);
        pv.disk.read_direct(unit, at).map_err(failed)?;
        if sum == UNKNOWN || sum_of(unit) == sum {
            return Ok(false);
        }
        pv.disk.read_at(unit, at).map_err(failed)?;
        if sum_of(unit) != sum {
            return Ok(false);
        }
        // No client needs this write: a disk that refuses it has not failed.
        pv.disk.write_at(unit, at).map_err(failed)?;
        pv.sync(SyncPurpose::Apply)?;
        tracing::warn!(
            pv = pv.path,
            at,
            "the medium had data wrong that the page cache has right: it was written again"
        );
        Ok(true)
    }

    /// Gives sums to the units of a range that have none.
    fn adopt(&self, pv: &Pv, at: u64, len: u64, counts: &mut ScrubCounts) -> Result<()> {
        // Nothing writes to slots in use meanwhile.
        let state = self.state.lock();
        self.core.check_usable()?;
        if state.is_half_done() {
            return Ok(());
        }
        let mut unit = [0; BLOCK as usize];
        for place in (at..at + len).step_by(BLOCK as usize) {
            let sum = self.core.sums.of(pv, place)?;
            let damaged = !self.core.damage.overlaps(pv.id, place..place + BLOCK).is_empty();
            if sum == UNKNOWN && !damaged && pv.disk.read_at(&mut unit, place).is_ok() {
                self.core.sums.set(pv, unit_at(place), &[sum_of(&unit)])?;
                counts.unknown -= BLOCK;
                counts.adopted += BLOCK;
            }
        }
        Ok(())
    }
}

impl Core {
    /// Forgets the damage of a whole unit that matches its sum: the disk returned another content
    /// for a while. Returns whether the unit has no damage then.
    fn clear_damage(&self, pv: &Pv, at: u64, sum: u32) -> Result<bool> {
        let damaged = self.damage.overlaps(pv.id, at..at + BLOCK);
        if damaged.iter().all(|part| part.end - part.start < BLOCK) {
            return Ok(damaged.is_empty());
        }
        let cleared = self.sums.judge(pv, at, sum, || self.damage.written(pv.id, at..at + BLOCK, &[]))?;
        if cleared {
            tracing::warn!(pv = pv.path, at, "data that was damaged matches its sum again");
        }
        Ok(cleared)
    }
}

/// Begins a pass.
pub(crate) fn begin(record: &mut DataScrubRecord, now: u64, rate: u64, adopts: bool) {
    *record = DataScrubRecord {
        running: true,
        adopts,
        started: now.max(1),
        finished: record.finished,
        passes: record.passes,
        rate,
        ..DataScrubRecord::default()
    };
}

fn add(to: &mut ScrubCounts, more: &ScrubCounts) {
    to.verified += more.verified;
    to.unknown += more.unknown;
    to.adopted += more.adopted;
    to.damaged += more.damaged;
    to.unreadable += more.unreadable;
    to.repaired += more.repaired;
}

/// Returns the bytes of the slots in use of branches.
pub(crate) fn bytes_in_use<'a>(branches: impl Iterator<Item = &'a Arc<Branch>>) -> u64 {
    let slots = |branch: &Arc<Branch>| branch.slots.load(Ordering::Relaxed);
    branches.map(|branch| slots(branch) << branch.chunk_log2).sum()
}
