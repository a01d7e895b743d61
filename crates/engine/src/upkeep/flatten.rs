//! Makes branches complete. What an epoch of a branch still reads through the base is copied into
//! the branch, until the branch needs its base no more and drops it. That is how a volume over an
//! image becomes independent of the image. It is also how a clone, or a volume that was rolled
//! back, becomes independent of what it rests on.
//!
//! For each chunk, the epochs older than everything that the branch itself has of it read through
//! the base. They all see the same content, so one copy, born in the branch's first epoch, serves
//! them. If the branch has nothing of the chunk, the copy becomes the current content. Otherwise it
//! becomes a version for the newest snapshot among those epochs. A chunk that is zeros below needs
//! no copy: a branch without a base reads zeros where it has nothing.
//!
//! A chunk that is too long for a journal record is copied into the branch in the same way. The
//! write that is about to change a part of it over an image or a moment does that
//! ([`crate::destage::Destager::fill_chunk`]).
//!
//! Every step works like an evacuation (copy, sync, commit) and commits its progress, so it can be
//! cut short anywhere. The last step removes the base in one commit. A reader that is reading
//! through the base notices that, and reads again.

use crate::branch::{Branch, ExternalBase, View, VolumeState};
use crate::catalog::PageKey;
use crate::catalog::VersionKey;
use crate::catalog::page::{CHUNKS, Entry, MapPage, Slot};
use crate::catalog::{BranchRecord, FillRecord, Version};
use crate::core::Core;
use crate::destage::Destager;
use crate::destage::batch::Below;
use crate::destage::state::{BackgroundState, FlattenJob};
use crate::disk::{Cause, SyncPurpose};
use crate::error::{Error, Result, no_space, not_found};
use crate::ids::{BranchId, Chunk, Epoch};
use crate::shortage::Task;
use crate::space::placement::{Class, SlotRequest};
use crate::space::reservations::full;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of map pages that one step reads. `BYTES_PER_STEP` is the number of bytes that it copies
/// (at least one chunk).
const PAGES_PER_STEP: usize = 64;
const BYTES_PER_STEP: u64 = 4 << 20;
/// Nanoseconds until an obstacle is checked again.
const PATIENCE: u64 = 1_000_000_000;
/// Longest time that the last step waits for writers of the branch.
const WRITERS: Duration = Duration::from_millis(20);

/// The copies of one step.
struct Step {
    /// Bytes that may still be copied.
    budget: u64,
    copied: u64,
    slots: u64,
    pages: Vec<(PageKey, MapPage)>,
    versions: Vec<Version>,
    /// Physical volumes that were written to.
    written: BTreeSet<u32>,
    /// The last slot that was allocated.
    last: Option<Slot>,
    /// The reason for which the step can't continue, if there is one.
    stalled: Option<Error>,
}

impl Step {
    fn new(budget: u64) -> Step {
        Step {
            budget,
            copied: 0,
            slots: 0,
            pages: Vec::new(),
            versions: Vec::new(),
            written: BTreeSet::new(),
            last: None,
            stalled: None,
        }
    }
}

/// The content that is copied into a slot.
enum Content<'a> {
    Bytes(&'a [u8]),
    Slot(Slot),
}

/// The result of a step for one page.
enum Looked {
    /// The page is complete.
    Whole,
    /// The step ended before the end of the page: it has done enough, or can't continue.
    Part,
}

impl Destager {
    /// Takes a step towards making one branch complete. False when there is no such branch, or none
    /// that may continue now.
    pub(crate) fn fill_branches(&self, state: &mut BackgroundState) -> Result<bool> {
        // Slots of the journal's last batch may still be half written. Nothing is copied before
        // they are in place.
        if state.filling.is_empty() || state.is_half_done() {
            return Ok(false);
        }
        let now = self.core.world.clock.monotonic();
        let ready = |job: &FlattenJob| now >= job.not_before;
        let found = state.filling.iter().find(|(_, job)| ready(job)).map(|(id, _)| *id);
        if let Some(id) = found {
            let job = state.filling.get(&id).cloned();
            self.fill_step(state, id, now).map_err(|e| {
                // Other jobs come first then.
                let later = |job| FlattenJob { not_before: now.saturating_add(PATIENCE), ..job };
                state.filling.extend(job.map(|job| (id, later(job))));
                self.failed(state, Task::Upkeep, e)
            })?;
        }
        let stalled = state.filling.values().find_map(|job| job.stalled.clone());
        let mut known = self.core.positions.completion_stalled.lock();
        if let Some(why) = stalled.as_ref().filter(|_| known.is_none()) {
            tracing::warn!(why, "flattening a branch waits");
        }
        *known = stalled;
        Ok(found.is_some())
    }

    fn fill_step(&self, state: &mut BackgroundState, id: BranchId, now: u64) -> Result<()> {
        let _cause = Cause::Fill.begin();
        let Some(mut job) = state.filling.remove(&id) else { return Ok(()) };
        let branch = self.core.names.read().branches.get(&id).cloned();
        let Some(branch) = branch.filter(|b| b.has_base()) else { return Ok(()) };
        let rate = job.record.rate;
        let budget = if rate == 0 { BYTES_PER_STEP } else { BYTES_PER_STEP.min(rate) };
        let mut step = Step::new(budget);
        let end = self.core.end_page(&branch);
        let page = self.fill_pages(state, &branch, job.record.page..end, &mut step)?;
        let (copied, stalled) = (step.copied, step.stalled.take());
        job.record = FillRecord { page, copied: job.record.copied + copied, ..job.record };
        self.commit_fill(state, &branch, step, Some(job.record))?;
        if page >= end && stalled.is_none() {
            if self.let_go_of_base(state, &branch)? {
                return Ok(());
            }
        } else if stalled.is_some() {
            job.not_before = now.saturating_add(PATIENCE);
        } else if let Some(pause) = copied.saturating_mul(PATIENCE).checked_div(rate) {
            job.not_before = now.saturating_add(pause.min(PATIENCE));
        }
        job.stalled = stalled.map(|why| why.to_string());
        state.filling.insert(id, job);
        Ok(())
    }

    /// Copies one chunk of a volume into its branch, as a step of flattening would, before a part
    /// of it is written. `content` is what the chunk shows (none: zeros). Destage must not read it
    /// from the base, and it is too long for one journal record. The caller holds off writers of
    /// the volume meanwhile. [`crate::ErrorKind::NoSpace`] leaves everything as it was.
    pub(crate) fn fill_chunk(
        &self,
        volume: &VolumeState,
        chunk: Chunk,
        content: Option<&[u8]>,
    ) -> Result<()> {
        let _cause = Cause::Fill.begin();
        let branch = &volume.line.branch;
        for carried_out in [false, true] {
            {
                let state = &mut *self.state.lock();
                self.core.check_usable()?;
                // Trimming after a deletion starts at the first page, so it also finds this chunk
                // then.
                volume.check_there()?;
                if self.core.catalog.branch(branch.id)?.is_some() {
                    loop {
                        match self.fill_alone(state, branch, chunk, content) {
                            Err(error) if error.is_taken_back() => {}
                            done => return done,
                        }
                    }
                }
            }
            if !carried_out {
                // The operation that made the branch may so far be in the journal only.
                self.record_until(self.core.journal.last().lsn)?;
            }
        }
        Err(not_found(format!(
            "write to a part of chunk {chunk} of branch {}: the branch no longer exists",
            branch.id
        )))
    }

    fn fill_alone(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        chunk: Chunk,
        content: Option<&[u8]>,
    ) -> Result<()> {
        let (number, at) = MapPage::locate(chunk);
        let key = PageKey::new(branch.id, number);
        let mut page = (*self.core.map.read(key)?).clone();
        if page.get(at).is_some() {
            // A step of flattening, or a smaller size, came first.
            return Ok(());
        }
        let mut step = Step::new(branch.chunk_size());
        let mut slot = Slot::HOLE;
        // Zeros need an entry, too: without an entry, the chunk would be read from below.
        if let Some(content) = content {
            let of = (Class::Current, chunk);
            let placed = self.place_copy(state, branch, of, Content::Bytes(content), &mut step);
            match placed.map_err(|e| self.failed(state, Task::Upkeep, e))? {
                Some(taken) => slot = taken,
                None => return Err(step.stalled.unwrap_or_else(full)),
            }
        }
        page.set(at, Entry { slot, born: Epoch::FIRST });
        step.pages.push((key, page));
        self.commit_fill(state, branch, step, None).map_err(|e| self.failed(state, Task::Upkeep, e))
    }

    /// Copies the missing chunks of some of `pages`. Returns the page at which that continues.
    fn fill_pages(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        pages: std::ops::Range<u64>,
        step: &mut Step,
    ) -> Result<u64> {
        let mut at = pages.start;
        for _ in 0..self.core.catalog_room.pages(PAGES_PER_STEP) {
            if at >= pages.end || step.budget == 0 {
                break;
            }
            at = match self.core.next_below(branch, at..pages.end) {
                Ok(next) => next,
                Err(error) if blames_external(branch) => {
                    step.stalled = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            if at < pages.end {
                match self.fill_page(state, branch, at, step)? {
                    Looked::Whole => at += 1,
                    Looked::Part => break,
                }
            }
        }
        Ok(at)
    }

    /// Copies the missing chunks of a page.
    fn fill_page(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        number: u64,
        step: &mut Step,
    ) -> Result<Looked> {
        let key = PageKey::new(branch.id, number);
        let mut page = (*self.core.map.read(key)?).clone();
        let oldest = self.core.oldest_births(branch, number, &page)?;
        let (before, mut looked) = (step.slots, Looked::Whole);
        for (at, oldest) in oldest.into_iter().enumerate() {
            // Epochs as old as the oldest content, or younger, see that content.
            let last = oldest.map(|born| branch.newest_snapshot_seeing(Epoch::FIRST, born));
            if last == Some(None) {
                continue;
            }
            let chunk = Chunk::in_page(number, at);
            if step.budget == 0 {
                looked = Looked::Part;
                break;
            }
            let class = if last.flatten().is_some() { Class::Preserved } else { Class::Current };
            let Some(slot) = self.copy_below(state, branch, (class, chunk), step)? else {
                if step.stalled.is_some() {
                    looked = Looked::Part;
                    break;
                }
                continue;
            };
            let entry = Entry { slot, born: Epoch::FIRST };
            match last.flatten() {
                Some(last) => {
                    step.versions.push(Version { key: VersionKey::new(branch.id, chunk, last), entry })
                }
                None => drop(page.set(at, entry)),
            }
        }
        if step.slots > before {
            step.pages.push((key, page));
        }
        Ok(looked)
    }

    /// Copies what a chunk shows from below into a slot of the branch. `None` if it is zeros, or if
    /// it can't be copied now.
    fn copy_below(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        (class, chunk): (Class, Chunk),
        step: &mut Step,
    ) -> Result<Option<Slot>> {
        let below = self.core.find_below(&View::head(branch), chunk)?;
        let mut bytes = Vec::new();
        let content = match below {
            // Holes can be very many: they must be skipped quickly.
            Below::Zeros => return Ok(None),
            Below::Slot(from) => Content::Slot(from),
            Below::External(external) => {
                // The whole content is read before a slot is taken: content that can't be read
                // leaves nothing behind.
                bytes.resize(branch.chunk_size() as usize, 0);
                if let Err(error) = external.read(&self.core, &mut bytes, chunk.start(branch.chunk_log2)) {
                    step.stalled = Some(error);
                    return Ok(None);
                }
                if bytes.iter().all(|b| *b == 0) {
                    return Ok(None);
                }
                Content::Bytes(&bytes)
            }
        };
        self.place_copy(state, branch, (class, chunk), content, step)
    }

    /// Puts the content of a chunk into a slot of the branch. `None`, with `stalled` set, if there
    /// is no room.
    fn place_copy(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        (class, chunk): (Class, Chunk),
        content: Content<'_>,
        step: &mut Step,
    ) -> Result<Option<Slot>> {
        if !self.borrow(state, branch.kind(), 1) {
            step.stalled = Some(no_space("copy a chunk of the origin: the pool is full"));
            return Ok(None);
        }
        let size = branch.chunk_size();
        let request = SlotRequest::new(class, branch, chunk).behind(step.last);
        let slot = state.allocator.allocate(&self.core.space, &request)?;
        match content {
            Content::Bytes(bytes) => {
                let target = self.core.pvs.get(slot.pv())?;
                self.core.write_copy(&target, bytes, slot.offset(), &[])?;
                self.core.set_sums(&target, slot.offset(), bytes)?;
            }
            Content::Slot(from) => self.core.copy_slot(from, slot, size)?,
        }
        self.core.positions.bytes.fetch_add(size, Ordering::Relaxed);
        self.core.positions.allocated.fetch_add(size, Ordering::Relaxed);
        step.copied += size;
        step.budget = step.budget.saturating_sub(size);
        step.slots += 1;
        step.written.insert(slot.pv());
        step.last = Some(slot);
        Ok(Some(slot))
    }

    /// Commits a step's copies as the branch's own. `record` is the progress of a job.
    fn commit_fill(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        step: Step,
        record: Option<FillRecord>,
    ) -> Result<()> {
        if step.pages.is_empty() {
            return Ok(());
        }
        for id in step.written {
            self.core.pvs.get(id)?.sync(SyncPurpose::Preserve)?;
        }
        // A shortage of space can be waited for here.
        self.core.sums.flush()?;
        let mut txn = self.core.catalog.begin()?;
        txn.put_pages(step.pages.iter().map(|(key, page)| (*key, page)))?;
        txn.put_versions(step.versions.iter())?;
        txn.change_branch(branch.id, |b| {
            b.slots += step.slots;
            b.fill = record.or(b.fill);
        })?;
        self.commit_aside(state, txn, &[(branch.kind(), step.slots)])?;
        branch.slots.fetch_add(step.slots, Ordering::Relaxed);
        let numbers: Vec<u64> = step.pages.iter().map(|(key, _)| key.page).collect();
        self.core.publish(step.pages);
        self.core.map.forget_views(branch.id, Epoch::FIRST, numbers.into_iter());
        Ok(())
    }

    /// Removes the base of a complete branch. False while a writer still relies on the base.
    fn let_go_of_base(&self, state: &mut BackgroundState, branch: &Arc<Branch>) -> Result<bool> {
        let Some(_alone) = branch.materialize_lock.try_write_for(WRITERS) else { return Ok(false) };
        let mut txn = self.core.catalog.begin()?;
        let complete = |b: &mut BranchRecord| (b.base, b.fill) = (None, None);
        txn.change_branch(branch.id, complete)?;
        self.commit_aside(state, txn, &[])?;
        // The order matters: a branch that is not being filled, and has a base, was not completed.
        self.core.names.write().drop_base(branch);
        branch.filling.store(false, Ordering::Release);
        tracing::info!(branch = branch.id.0, "a branch was flattened: it has no origin any more");
        Ok(true)
    }
}

impl Core {
    /// Returns the number of the map page behind the last one that a volume or snapshot of the
    /// branch can read.
    fn end_page(&self, branch: &Branch) -> u64 {
        let names = self.names.read();
        let of_branch = names.states().filter(|state| state.line.branch.id == branch.id);
        let size = of_branch.map(|state| state.size.load(Ordering::Acquire)).max().unwrap_or(0);
        size.div_ceil(CHUNKS << branch.chunk_log2)
    }

    /// Returns the first of `pages` for which something below a branch has content, or their end.
    fn next_below(&self, branch: &Arc<Branch>, pages: std::ops::Range<u64>) -> Result<u64> {
        let mut next = pages.end;
        let mut line = View::head(branch);
        let image = loop {
            for line in line.levels().skip(1) {
                let found = self.map.next_content(&line, pages.start, pages.end - 1)?;
                next = next.min(found.unwrap_or(next));
            }
            match line.external_base() {
                None => return Ok(next),
                Some(ExternalBase::Image(image)) => break image,
                Some(ExternalBase::Moment(at)) => {
                    let found = self.next_page_at(&at, pages.start, pages.end - 1)?;
                    next = next.min(found.unwrap_or(next));
                    // The branch of a moment can have a base, too.
                    line = at.line();
                }
            }
        };
        let bytes = CHUNKS << branch.chunk_log2;
        let mut at = pages.start * bytes;
        // In a file, data and holes alternate: two queries are enough.
        for _ in 0..2 {
            if at >= image.record.shown {
                return Ok(next);
            }
            let (end, data) = image.run_at(at)?;
            if data {
                return Ok(next.min(at / bytes));
            }
            at = end;
        }
        Ok(next.min(at / bytes))
    }

    /// For each chunk of a page, returns the epoch in which the oldest content that the branch
    /// itself has was born.
    fn oldest_births(&self, branch: &Branch, number: u64, page: &MapPage) -> Result<Vec<Option<Epoch>>> {
        let mut oldest = vec![None; CHUNKS as usize];
        for (at, entry) in page.iter() {
            oldest[at] = Some(entry.born);
        }
        let chunks = Chunk::first_of(number)..Chunk::first_of(number + 1);
        for version in self.catalog.versions_in(branch.id, chunks)? {
            let born = &mut oldest[MapPage::locate(version.key.chunk).1];
            *born = Some(born.unwrap_or(Epoch::MAX).min(version.entry.born));
        }
        Ok(oldest)
    }
}

/// Returns whether an error of reading below a branch can come from an image or a history.
/// Otherwise it is an error of the pool itself.
fn blames_external(branch: &Arc<Branch>) -> bool {
    let head = View::head(branch);
    head.external_base().is_some()
}
