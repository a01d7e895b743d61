//! The repair of damaged data in place, from content that the pool still has elsewhere: in the
//! history of the volume, or in files of the journal that are not used again yet (decision 65).
//!
//! A repair replaces damaged parts of a chunk and puts the chunk into a new slot, like a move. The
//! old slot is bad from then on: nothing is placed there again. If there is no space for a new
//! slot, the damaged parts are written again where they are.
//!
//! No content is taken on trust:
//! - The content of a whole unit must match the sum of the unit.
//! - Content of the history is verified with the sums of the history's records. Where a unit has no
//!   sum that tells, the history must also agree with every byte of the chunk that can be read.

use super::evacuate::Moves;
use crate::branch::{Branch, HEAD, View};
use crate::catalog::page::{Entry, MapPage};
use crate::catalog::{Event, PageKey, Version};
use crate::control::Control;
use crate::core::Core;
use crate::damage::BLOCK;
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::disk::{Cause, SyncPurpose, is_unreadable};
use crate::error::{Error, Result};
use crate::ids::{BranchId, Chunk, Lsn, Slot};
use crate::journal::leftover::{Judgement, SoughtBlock};
use crate::repairs::ShownChunk;
use crate::shortage::Task;
use crate::space::placement::{Class, SlotRequest};
use crate::space::pv::{Pv, PvRef};
use crate::sums::{UNKNOWN, sum_of, unit_at};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest chunk that is repaired, in bytes. All of it is held in memory.
const MAX_CHUNK: u64 = 16 << 20;
/// Number of chunks that are repaired under one hold of the destager's lock.
const PER_STEP: usize = 16;

/// Content that was found in the journal, by what was looked for: (branch, byte of the volume,
/// sum).
type Found = BTreeMap<(BranchId, u64, u32), Vec<u8>>;

/// The row of the catalog that points to a slot.
enum Owner {
    Head(PageKey, usize),
    Version(Box<Version>),
}

/// A damaged part of a chunk.
struct Part {
    /// Bytes of the chunk.
    range: Range<usize>,
    /// The sum of the content, if the part is a whole unit whose sum is known.
    sum: Option<u32>,
    repaired: bool,
}

/// A chunk with damage.
struct Job {
    branch: Arc<Branch>,
    chunk: Chunk,
    entry: Entry,
    owner: Owner,
    pv: PvRef,
    /// The content in place, with zeros for what can't be read.
    content: Vec<u8>,
    parts: Vec<Part>,
}

/// What one hold of the destager's lock did.
#[derive(Default)]
struct Step {
    /// Bytes that were repaired.
    repaired: u64,
    /// What the journal may have.
    sought: Vec<SoughtBlock>,
}

impl Job {
    /// Returns the ranges of the chunk that are still lost.
    fn lost(&self) -> Vec<Range<usize>> {
        self.parts.iter().filter(|part| !part.repaired).map(|part| part.range.clone()).collect()
    }

    fn repaired(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.repaired)
    }

    /// Returns what is still lost and the journal may have. Everything up to `until` is in place.
    fn sought(&self, until: Lsn) -> Vec<SoughtBlock> {
        let (branch, start) = (self.branch.id, self.chunk.start(self.branch.chunk_log2));
        let left = self.parts.iter().filter(|part| !part.repaired);
        let last = match &self.owner {
            Owner::Head(..) => HEAD,
            Owner::Version(version) => version.key.last,
        };
        left.filter_map(|part| {
            let (at, sum) = (start + part.range.start as u64, part.sum?);
            Some(SoughtBlock { branch, at, sum, until, last })
        })
        .collect()
    }

    /// Takes what is right of `candidate`, the whole chunk as a history has it.
    fn take_from_history(&mut self, candidate: &[u8]) -> u64 {
        let lost: Vec<Range<usize>> = self.parts.iter().map(|part| part.range.clone()).collect();
        let agrees = candidate.len() == self.content.len() && agree(&self.content, candidate, &lost);
        let mut taken = 0;
        for part in self.parts.iter_mut().filter(|part| !part.repaired) {
            let Some(content) = candidate.get(part.range.clone()) else { continue };
            if part.sum.map_or(agrees, |sum| sum_of(content) == sum) {
                self.content[part.range.clone()].copy_from_slice(content);
                part.repaired = true;
                taken += part.range.len() as u64;
            }
        }
        taken
    }

    /// Takes what was found in the journal.
    fn take_from_journal(&mut self, found: &Found) -> u64 {
        let mut taken = 0;
        let start = self.chunk.start(self.branch.chunk_log2);
        for part in self.parts.iter_mut().filter(|part| !part.repaired) {
            let key = part.sum.map(|sum| (self.branch.id, start + part.range.start as u64, sum));
            let Some(content) = key.and_then(|key| found.get(&key)) else { continue };
            self.content[part.range.clone()].copy_from_slice(content);
            part.repaired = true;
            taken += part.range.len() as u64;
        }
        taken
    }
}

/// Returns whether a control operation may change the content of a block: a shrink ends in zeros.
/// `data` is that of its record.
fn changes_content(data: &[u8]) -> bool {
    Control::decode(data).is_none_or(|control| matches!(control, Control::ResizeVolume(_)))
}

/// Returns whether two contents are equal outside of `lost`, and have anything there.
fn agree(content: &[u8], candidate: &[u8], lost: &[Range<usize>]) -> bool {
    let starts = std::iter::once(0).chain(lost.iter().map(|part| part.end));
    let ends = lost.iter().map(|part| part.start).chain(std::iter::once(content.len()));
    let mut kept = starts.zip(ends).map(|(start, end)| start..end).filter(|kept| !kept.is_empty()).peekable();
    kept.peek().is_some() && kept.all(|kept| content[kept.clone()] == candidate[kept])
}

impl Destager {
    /// Repairs what is damaged in chunks, as far as the pool has the content elsewhere. Returns the
    /// number of bytes that were repaired. An error is logged, and leaves the damage as it is.
    pub(crate) fn repair(&self, wanted: &[ShownChunk]) -> u64 {
        let core = &self.core;
        if wanted.is_empty() || !core.repairs.is_on() || core.check_usable().is_err() {
            return 0;
        }
        let _cause = Cause::Repair.begin();
        let mut repaired = 0;
        for wanted in wanted.chunks(PER_STEP) {
            let done = self.repair_step(wanted, None).and_then(|first| {
                repaired += first.repaired;
                if first.sought.is_empty() {
                    return Ok(());
                }
                // The journal is searched without the lock, because that may take long.
                let found = self.search_journal(&first.sought);
                repaired += self.repair_step(wanted, Some(&found))?.repaired;
                Ok(())
            });
            if let Err(error) = done {
                tracing::warn!(%error, "damaged data could not be repaired");
                break;
            }
        }
        repaired
    }

    /// Repairs what background work wants to be repaired. Returns whether there was anything.
    pub(crate) fn repair_wanted(&self) -> bool {
        let wanted = self.core.repairs.take_wanted();
        self.repair(&wanted);
        !wanted.is_empty()
    }

    fn search_journal(&self, sought: &[SoughtBlock]) -> Found {
        let _alone = self.core.repairs.search.lock();
        let found = self.core.journal.leftover_content(sought, Judgement { sum_of, changes_content });
        let found = sought.iter().zip(found);
        found.filter_map(|(block, content)| Some(((block.branch, block.at, block.sum), content?))).collect()
    }

    /// Repairs chunks from their histories, and from what was `found` in the journal. Without
    /// `found` it leaves chunks alone of which the journal may have something, and returns what to
    /// look for.
    fn repair_step(&self, wanted: &[ShownChunk], found: Option<&Found>) -> Result<Step> {
        let state = &mut *self.state.lock();
        self.core.check_usable()?;
        // Slots of the journal's last batch may be half written.
        if state.is_half_done() {
            return Ok(Step::default());
        }
        match self.try_repair(state, wanted, found) {
            Err(away) if away.is_pv_away() => {
                self.take_back(state).map_err(|e| self.core.fault.poison(&e))?;
                Err(away)
            }
            done => done.map_err(|e| self.failed(state, Task::Upkeep, e)),
        }
    }

    fn try_repair(
        &self,
        state: &mut BackgroundState,
        wanted: &[ShownChunk],
        found: Option<&Found>,
    ) -> Result<Step> {
        let (mut moves, mut sought) = (Moves::new(u64::MAX), Vec::new());
        let mut pages: BTreeMap<PageKey, MapPage> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let (mut of_history, mut of_journal) = (0, 0);
        for (line, chunk) in wanted {
            // A part of the catalog that can't be read is reported elsewhere.
            let Ok(Some((line, slot))) = self.core.owner_of(line, *chunk) else { continue };
            if !seen.insert(slot) {
                continue;
            }
            let mut job = match self.job(state, &line, *chunk, slot) {
                Ok(Some(job)) => job,
                Err(error) if error.is_pv_away() => return Err(error),
                _ => continue,
            };
            let is_hopeless = self.core.repairs.is_hopeless(slot, self.core.world.clock.monotonic());
            let history = self
                .core
                .past_content(&job, state.destaged)
                .map_or(0, |content| job.take_from_history(&content));
            let journal = match found {
                Some(found) => job.take_from_journal(found),
                // The journal was searched for it not long ago.
                None if is_hopeless => 0,
                None => {
                    let blocks = job.sought(state.destaged);
                    sought.extend(&blocks);
                    if !blocks.is_empty() {
                        continue;
                    }
                    0
                }
            };
            if !job.lost().is_empty() {
                self.core.repairs.give_up(slot, self.core.world.clock.monotonic());
            }
            if history + journal > 0 && self.put_repaired(state, &job, &mut moves, &mut pages)? {
                (of_history, of_journal) = (of_history + history, of_journal + journal);
            }
        }
        moves.pages = pages.into_iter().collect();
        self.commit_moves(state, moves)?;
        self.core.repairs.from_history.fetch_add(of_history, Ordering::Relaxed);
        self.core.repairs.from_journal.fetch_add(of_journal, Ordering::Relaxed);
        Ok(Step { repaired: of_history + of_journal, sought })
    }

    /// Looks at a chunk. Returns `None` if nothing of it is damaged, or if it can't be repaired
    /// now.
    fn job(&self, state: &BackgroundState, line: &View, chunk: Chunk, slot: Slot) -> Result<Option<Job>> {
        let core = &self.core;
        let Some(branch) = self.movable(state, line.branch.id) else { return Ok(None) };
        let (size, pv) = (branch.chunk_size(), core.pvs.get(slot.pv())?);
        let Some((owner, entry)) = core.row_of(line, chunk, slot)? else { return Ok(None) };
        if size > MAX_CHUNK {
            return Ok(None);
        }
        let mut content = vec![0; size as usize];
        let first = chunk.start(branch.chunk_log2) / BLOCK;
        let judge = |unit: usize| core.is_nobodys(line, first + unit as u64);
        let parts = core.damaged_parts(&pv, &mut content, slot.offset(), &judge)?;
        let Some(parts) = parts else { return Ok(None) };
        Ok((!parts.is_empty()).then_some(Job { branch, chunk, entry, owner, pv, content, parts }))
    }

    /// Puts a repaired chunk into a new slot. Returns false if nothing could be written.
    fn put_repaired(
        &self,
        state: &mut BackgroundState,
        job: &Job,
        moves: &mut Moves,
        pages: &mut BTreeMap<PageKey, MapPage>,
    ) -> Result<bool> {
        let (core, branch, from) = (&self.core, &job.branch, job.entry.slot);
        let bytes: usize = job.repaired().map(|part| part.range.len()).sum();
        let (pv, at, chunk) = (&job.pv.path, from.offset(), job.chunk);
        // What was recorded of the chunk as it was damaged does not hold any more.
        branch.cdp.log.write().sums.remove(&chunk);
        if state.ahead.as_ref().is_some_and(|ahead| ahead.records(branch.id)) {
            state.ahead = None;
        }
        tracing::warn!(pv, at, %chunk, branch = %branch.id, bytes, "damaged data is repaired");
        if !self.borrow(state, branch.kind(), 1) {
            return core.write_repaired(job);
        }
        let class = match &job.owner {
            Owner::Head(..) => Class::Current,
            Owner::Version(_) => Class::Preserved,
        };
        let request = SlotRequest::new(class, branch, chunk).of_origin(Some(from));
        let to = state.allocator.allocate(&core.space, &request)?;
        let target = core.pvs.get(to.pv())?;
        core.write_copy(&target, &job.content, to.offset(), &job.lost())?;
        core.copy_sums((&job.pv, from.offset()), (&target, to.offset()), &job.content, &job.lost())?;
        core.set_repaired_sums(job, &target, to.offset())?;
        state.allocator.abandon(from, branch.slot_log2)?;
        moves.note(branch, to, 1);
        let entry = Entry { slot: to, ..job.entry };
        match &job.owner {
            Owner::Head(key, index) => {
                let known = pages.remove(key);
                let mut page = known.map_or_else(|| core.map.read(*key).map(|page| (*page).clone()), Ok)?;
                page.set(*index, entry);
                pages.insert(*key, page);
            }
            Owner::Version(version) => moves.versions.push(Version { entry, ..**version }),
        }
        Ok(true)
    }
}

impl Core {
    /// Returns the row that points to the slot of a chunk. `None` if the chunk has left the slot.
    fn row_of(&self, line: &View, chunk: Chunk, slot: Slot) -> Result<Option<(Owner, Entry)>> {
        let (number, index) = MapPage::locate(chunk);
        let key = PageKey::new(line.branch.id, number);
        if let Some(entry) = self.map.read(key)?.get(index).filter(|entry| entry.slot == slot) {
            return Ok(Some((Owner::Head(key, index), entry)));
        }
        if line.epoch == HEAD {
            return Ok(None);
        }
        let versions = self.catalog.versions_at(line.branch.id, line.epoch, (chunk, chunk))?;
        let version = versions.into_iter().find(|version| version.entry.slot == slot);
        Ok(version.map(|version| (Owner::Version(Box::new(version)), version.entry)))
    }

    /// Reads a slot and returns its damaged parts, in order. `None` if that can't be decided now.
    /// Nothing becomes damage by this. `is_nobodys` tells for a unit of the chunk whether a
    /// mismatch decides nothing (S7).
    fn damaged_parts(
        &self,
        pv: &Pv,
        content: &mut [u8],
        at: u64,
        is_nobodys: &dyn Fn(usize) -> bool,
    ) -> Result<Option<Vec<Part>>> {
        let mut unreadable = Vec::new();
        if let Err(error) = pv.disk.read_at(content, at) {
            if !is_unreadable(&error) {
                return Ok(None);
            }
            if let Err(away) = pv.disk.answers() {
                return Err(Error::io(format!("read from {}", pv.path), away).of_absent_pv());
            }
            unreadable = self.read_in_pieces(pv, content, at)?;
        }
        let known = self.damage.overlaps(pv.id, at..at + content.len() as u64);
        for lost in known.iter().chain(&unreadable) {
            content[(lost.start - at) as usize..(lost.end - at) as usize].fill(0);
        }
        let has_sums = self.sums.is_on() && (content.len() as u64).is_multiple_of(BLOCK);
        let mut parts = Vec::new();
        for start in (0..content.len()).step_by(BLOCK as usize) {
            let range = start..(start + BLOCK as usize).min(content.len());
            let place = at + range.start as u64..at + range.end as u64;
            let of_unit = |lost: &[Range<u64>]| -> Vec<Range<usize>> {
                let inside = lost.iter().map(|l| l.start.max(place.start)..l.end.min(place.end));
                let inside = inside.filter(|l| l.start < l.end);
                inside.map(|l| (l.start - at) as usize..(l.end - at) as usize).collect()
            };
            let (known, unreadable) = (of_unit(&known), of_unit(&unreadable));
            let sum = if has_sums { self.sums.of(pv, place.start)? } else { UNKNOWN };
            let is_whole = known.iter().all(|lost| *lost == range);
            if sum != UNKNOWN && is_whole {
                let unit = &mut content[range.clone()];
                if known.is_empty()
                    && unreadable.is_empty()
                    && (is_nobodys(start / BLOCK as usize) || self.matches(pv, unit, place.start, sum))
                {
                    continue;
                }
                parts.push(Part { range, sum: Some(sum), repaired: false });
                continue;
            }
            // The sum of a unit that is damaged in part may be that of what is in place now.
            let mut lost: Vec<Range<usize>> = known.into_iter().chain(unreadable).collect();
            lost.sort_unstable_by_key(|lost| lost.start);
            lost.dedup_by(|next, before| {
                let joins = next.start <= before.end;
                before.end = if joins { before.end.max(next.end) } else { before.end };
                joins
            });
            parts.extend(lost.into_iter().map(|range| Part { range, sum: None, repaired: false }));
        }
        Ok(Some(parts))
    }

    /// Returns whether a unit matches its sum, in memory or on the medium.
    fn matches(&self, pv: &Pv, unit: &mut [u8], at: u64, sum: u32) -> bool {
        if sum_of(unit) == sum {
            return true;
        }
        pv.disk.drop_cached(at, BLOCK);
        pv.disk.read_at(unit, at).is_ok() && sum_of(unit) == sum
    }

    /// Returns whether nothing of a chunk that a line shows is damaged: another reader may have
    /// repaired it.
    pub(crate) fn is_whole(&self, line: &View, at: u64) -> bool {
        let chunk = Chunk::of(at, line.branch.chunk_log2);
        let Ok(Some((_, slot))) = self.owner_of(line, chunk) else { return false };
        let size = line.branch.chunk_size();
        let Ok(pv) = self.pvs.get(slot.pv()) else { return false };
        let mut content = vec![0; size.min(MAX_CHUNK) as usize];
        let parts = self.damaged_parts(&pv, &mut content, slot.offset(), &|_| false);
        size <= MAX_CHUNK && parts.is_ok_and(|parts| parts.is_some_and(|parts| parts.is_empty()))
    }

    /// Returns the content of a chunk as the history of its branch has it, for a moment at which
    /// the content of the slot was current. Everything up to `destaged` is in place.
    fn past_content(&self, job: &Job, destaged: Lsn) -> Option<Vec<u8>> {
        let lsn = match &job.owner {
            Owner::Head(..) => destaged,
            Owner::Version(version) => {
                let shows = |(at, event): (&Lsn, &Event)| match event {
                    Event::Anchor { epoch, .. } => {
                        (version.entry.born <= *epoch && *epoch <= version.key.last).then_some(*at)
                    }
                    _ => None,
                };
                job.branch.cdp.log.read().events.iter().rev().find_map(shows)?
            }
        };
        self.chunk_at(&job.branch, job.chunk, lsn).ok()
    }

    /// Sets the sums of the units of `to` that are whole again, and had no sum that tells.
    fn set_repaired_sums(&self, job: &Job, pv: &Pv, to: u64) -> Result<()> {
        if !self.sums.is_on() || !(job.content.len() as u64).is_multiple_of(BLOCK) {
            return Ok(());
        }
        let lost = job.lost();
        for part in job.repaired().filter(|part| part.sum.is_none()) {
            let unit = part.range.start / BLOCK as usize * BLOCK as usize;
            let unit = unit..unit + BLOCK as usize;
            if lost.iter().all(|lost| lost.end <= unit.start || unit.end <= lost.start) {
                self.sums.set(pv, unit_at(to + unit.start as u64), &[sum_of(&job.content[unit])])?;
            }
        }
        Ok(())
    }

    /// Writes the repaired parts of a chunk where they are. Returns false if the disk refuses it.
    /// The disk has not failed then, because no client needs the write.
    fn write_repaired(&self, job: &Job) -> Result<bool> {
        let (pv, start) = (&job.pv, job.entry.slot.offset());
        if pv.failure().is_some() {
            return Ok(false);
        }
        self.stamping.check()?;
        let (mut written, mut writing) = (Vec::new(), Vec::new());
        for part in job.repaired() {
            let range = start + part.range.start as u64..start + part.range.end as u64;
            // Readers wait until the data has its sum (S5).
            writing.push(self.sums.writing(pv.id, range.clone()));
            match pv.disk.write_at(&job.content[part.range.clone()], range.start) {
                Ok(()) => written.push(range),
                Err(error) => {
                    tracing::warn!(pv = pv.path, at = range.start, %error, "damaged data can't be written again");
                    return Ok(false);
                }
            }
        }
        pv.sync(SyncPurpose::Apply)?;
        self.set_repaired_sums(job, pv, start)?;
        written.into_iter().for_each(|range| self.damage.written(pv.id, range, &[]));
        drop(writing);
        Ok(true)
    }
}

impl Destager {
    /// Repairs what kept a read of `bytes` of a line from success. The first byte is in the chunk
    /// that is damaged, or may be. Returns whether the read may succeed now.
    pub(crate) fn repair_read(&self, line: &View, bytes: Range<u64>) -> bool {
        let (core, log2) = (&self.core, line.branch.chunk_log2);
        let (first, last) = (Chunk::of(bytes.start, log2), Chunk::of(bytes.end.saturating_sub(1), log2));
        let place = |chunk| core.owner_of(line, chunk).ok().flatten().map(|(_, slot)| slot);
        let now = core.world.clock.monotonic();
        let answers = |slot: Slot| core.pvs.get(slot.pv()).is_ok_and(|pv| pv.disk.answers().is_ok());
        // The destager's lock is not held for a disk that does not answer.
        let Some(before) =
            place(first).filter(|slot| !core.repairs.is_hopeless(*slot, now) && answers(*slot))
        else {
            return false;
        };
        let wanted: Vec<ShownChunk> = std::iter::successors(Some(first), |chunk| Some(chunk.next()))
            .take_while(|chunk| *chunk <= last)
            .take(PER_STEP)
            .map(|chunk| (line.clone(), chunk))
            .collect();
        self.repair(&wanted) > 0 || place(first) != Some(before)
    }
}
