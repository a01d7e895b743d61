//! Freeing much at once, in steps: long discards, the tails of shrunk volumes, and branches without a volume. Every step
//! is a commit of its own and can be repeated after a crash: what is freed already is not in the map any more.

use super::collect::{Batch, DiscardRange, Item, Run, Source, Step as RunStep};
use super::control::Operation;
use super::plan::{Change, hole};
use crate::catalog::{Event, Version};
use crate::error::Result;
use crate::map::page::{CHUNKS, Entry, MapPage, PageKey, Slot};
use crate::pool::line::{Branch, HEAD};
use crate::pool::shortage::Task;
use crate::pool::{Maintenance, Pool};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Map pages freed by one commit.
const PAGES_PER_STEP: usize = 256;

/// What one commit changes.
#[derive(Default)]
struct Step {
    pages: Vec<(PageKey, MapPage)>,
    /// Pages that become a hole; those of them that were stored are among `pages`, empty.
    hole: Option<Range<u64>>,
    /// What snapshots need of what was there.
    versions: Vec<Version>,
    /// Slots that are free.
    freed: u64,
}

impl Pool {
    /// Carries out a run: what its first discard frees, in steps, and then all that its records
    /// make known, in one commit. Until that staging answers for what is discarded.
    pub(super) fn carry_out_run(&self, m: &mut Maintenance, run: &Run) -> Result<()> {
        if let Some((_, RunStep::Discard(range))) = run.steps.first() {
            self.discard_in_steps(m, range)?;
        }
        let mut operations = Vec::new();
        for (at, step) in &run.steps {
            match step {
                RunStep::Control(control) => operations.push(self.operation(*at, control)?),
                RunStep::Discard(range) => operations.extend(self.emptied(*at, range)),
            }
        }
        let mut txn = self.catalog.begin()?;
        self.write_operations(&mut txn, &operations)?;
        self.commit(m, txn, run.last_lsn, run.last_lsn, &run.reserved)?;
        self.operations_done(m, operations)?;
        run.unstage();
        Ok(())
    }

    /// What a long discard means for a history.
    fn emptied<'a>(&self, (lsn, time): (u64, u64), range: &DiscardRange) -> Option<Operation<'a>> {
        let recorded = range.branch.cdp.log.read().settings.is_some();
        let Range { start, end } = range.bytes;
        let event = Event::Emptied { start, end, time };
        recorded.then(|| Operation::of_event(lsn, range.branch.clone(), event))
    }

    /// Frees the whole chunks of a range and zeroes its edges in place.
    pub(super) fn discard_in_steps(&self, m: &mut Maintenance, range: &DiscardRange) -> Result<()> {
        let branch = &range.branch;
        let size = 1u64 << branch.chunk_log2;
        let first = range.bytes.start.div_ceil(size);
        let end = range.bytes.end / size;
        if first > end {
            return self.zero_part(m, range, range.bytes.start, range.bytes.end);
        }
        self.zero_part(m, range, range.bytes.start, first * size)?;
        self.zero_part(m, range, end * size, range.bytes.end)?;
        if !branch.has_base() {
            // Pages in the middle vanish; the two at the edges may stay, so they are taken together with what follows.
            let (first_page, last_page) = (first / CHUNKS, end.saturating_sub(1) / CHUNKS);
            loop {
                let most = self.catalog_room.pages(PAGES_PER_STEP) + 2;
                let numbers = self.catalog.page_numbers(branch.id, first_page, last_page, most)?;
                let step = self.empty_pages(m, range, first..end, numbers)?;
                if step.pages.is_empty() {
                    return Ok(());
                }
                self.commit_freed(m, branch, step, range.epoch)?;
            }
        }
        // Over a base it has to be said of every chunk that there is nothing: of whole pages as one hole.
        let whole = first.div_ceil(CHUNKS)..end / CHUNKS;
        if whole.is_empty() {
            return self.hole_edge(m, range, first..end);
        }
        self.hole_edge(m, range, first..whole.start * CHUNKS)?;
        self.hole_edge(m, range, whole.end * CHUNKS..end)?;
        self.hole_pages(m, range, whole)
    }

    /// Makes holes of chunks in one page or two.
    fn hole_edge(&self, m: &mut Maintenance, range: &DiscardRange, chunks: Range<u64>) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let numbers = (chunks.start / CHUNKS..=(chunks.end - 1) / CHUNKS).collect();
        let step = self.empty_pages(m, range, chunks, numbers)?;
        if step.pages.is_empty() { Ok(()) } else { self.commit_freed(m, &range.branch, step, range.epoch) }
    }

    /// Makes holes of whole pages: of those that are stored so many at a time, of those in between as they come.
    fn hole_pages(&self, m: &mut Maintenance, range: &DiscardRange, pages: Range<u64>) -> Result<()> {
        let branch = &range.branch;
        let mut from = pages.start;
        while from < pages.end {
            let most = self.catalog_room.pages(PAGES_PER_STEP);
            let numbers = self.catalog.page_numbers(branch.id, from, pages.end - 1, most)?;
            let short = numbers.len() < most;
            let next = numbers.last().filter(|_| !short).map_or(pages.end, |n| n + 1);
            let mut step = Step { hole: Some(from..next), ..Step::default() };
            for number in numbers {
                let key = (branch.id, number);
                for (at, entry) in self.map.read(key)?.iter() {
                    // The new hole is younger than one that a snapshot saw here.
                    match branch.keeper(entry.born, range.epoch) {
                        Some(last) => {
                            let key = (branch.id, number * CHUNKS + at as u64, last);
                            step.versions.push(Version { key, entry });
                        }
                        None if entry.slot != Slot::HOLE => {
                            m.allocator.free(entry.slot, branch.slot_log2)?;
                            step.freed += 1;
                        }
                        None => {}
                    }
                }
                step.pages.push((key, MapPage::default()));
            }
            self.commit_freed(m, branch, step, range.epoch)?;
            from = next;
        }
        Ok(())
    }

    /// Zeroes a part of one chunk, as a batch of its own.
    fn zero_part(&self, m: &mut Maintenance, range: &DiscardRange, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let branch = &range.branch;
        let chunk = start >> branch.chunk_log2;
        let base = chunk << branch.chunk_log2;
        let item = Item {
            branch: 0,
            order: 0,
            chunk,
            start: (start - base) as u32,
            end: (end - base) as u32,
            source: Source::Hole,
        };
        let batch = Batch::of_one(branch.clone(), range.epoch, item);
        let plan = self.plan(m, &batch, false)?;
        // Until the operation's own position is committed it is done again after a crash: nothing else follows from this.
        self.place(m, &batch, plan, Maintenance::aside, None::<fn() -> Option<()>>, drop)
    }

    /// Discards those of `chunks` that lie in the pages `numbers`.
    fn empty_pages(
        &self,
        m: &mut Maintenance,
        range: &DiscardRange,
        all: Range<u64>,
        numbers: Vec<u64>,
    ) -> Result<Step> {
        let branch = &range.branch;
        let mut step = Step::default();
        for number in numbers {
            let key = (branch.id, number);
            let mut page = (*self.map.read(key)?).clone();
            let mut touched = false;
            for chunk in all.start.max(number * CHUNKS)..all.end.min((number + 1) * CHUNKS) {
                let (_, at) = MapPage::locate(chunk);
                let current = page.get(at);
                let kept_for = current.and_then(|e| branch.keeper(e.born, range.epoch));
                let (change, slot) = hole(branch, range.epoch, current, kept_for);
                match change {
                    Change::None => continue,
                    Change::Set(entry) => drop(page.set(at, entry)),
                    Change::Removed => drop(page.remove(at)),
                }
                touched = true;
                if let (Some(entry), Some(last)) = (current, kept_for) {
                    step.versions.push(Version { key: (branch.id, chunk, last), entry });
                }
                if let Some(slot) = slot {
                    m.allocator.free(slot, branch.slot_log2)?;
                    step.freed += 1;
                }
            }
            if touched {
                step.pages.push((key, page));
            }
        }
        Ok(step)
    }

    /// Commits a step that was taken in `epoch`.
    fn commit_freed(&self, m: &mut Maintenance, branch: &Arc<Branch>, step: Step, epoch: u32) -> Result<()> {
        let mut txn = self.catalog.begin()?;
        txn.put_pages(step.pages.iter().map(|(key, page)| (*key, page)))?;
        if let Some(pages) = &step.hole {
            txn.put_hole(branch.id, pages.clone(), epoch)?;
        }
        txn.put_versions(step.versions.iter())?;
        self.put_branch_slots(&mut txn, branch, -(step.freed as i64))?;
        self.commit_aside(m, txn, &[])?;
        branch.slots.fetch_sub(step.freed.min(branch.slots.load(Ordering::Relaxed)), Ordering::Relaxed);
        match step.hole {
            Some(pages) => self.map.forget_pages(branch.id, pages),
            None => {
                self.forget_views(branch, epoch, &step.pages);
                self.publish(step.pages);
            }
        }
        Ok(())
    }

    /// Frees a part of what nobody needs: of branches that no volume writes to, and of deleted snapshots. False when there
    /// is nothing that can be freed now.
    pub(crate) fn reclaim(&self, m: &mut Maintenance) -> Result<bool> {
        let pinned = |id: &u64| {
            let names = self.names.read();
            names.branches.get(id).is_some_and(|branch| branch.cdp.oldest_pin().is_some())
        };
        let dead = m.dead.iter().find(|(id, _)| !pinned(id)).map(|(id, from)| (*id, *from));
        let worked = match dead {
            Some((id, from)) => self.trim_branch(m, id, from).map(|()| true),
            None => self.dissolve(m),
        };
        worked.map_err(|e| self.failed(m, Task::Upkeep, e))
    }

    /// Frees, from map page `from` on, what no snapshot of a branch without a writer sees: its current map counts as the
    /// version of its newest snapshot. A branch without snapshots goes as a whole.
    fn trim_branch(&self, m: &mut Maintenance, id: u64, from: u64) -> Result<()> {
        let branch = self.names.read().branches.get(&id).cloned();
        let Some(branch) = branch else {
            m.dead.remove(&id);
            return Ok(());
        };
        let newest = branch.frozen.read().last().copied();
        let most = self.catalog_room.pages(PAGES_PER_STEP);
        let numbers = self.catalog.page_numbers(id, from, u64::MAX, most)?;
        let next = numbers.last().map(|n| n + 1);
        let mut step = Step::default();
        for number in numbers {
            let mut page = (*self.map.read((id, number))?).clone();
            let unseen = |e: &Entry| newest.is_none_or(|newest| e.born > newest);
            let doomed: Vec<usize> = page.iter().filter(|(_, e)| unseen(e)).map(|(at, _)| at).collect();
            for at in &doomed {
                if let Some(entry) = page.remove(*at).filter(|e| e.slot != Slot::HOLE) {
                    m.allocator.free(entry.slot, branch.slot_log2)?;
                    step.freed += 1;
                }
            }
            if !doomed.is_empty() {
                step.pages.push(((id, number), page));
            }
        }
        if !step.pages.is_empty() {
            self.commit_freed(m, &branch, step, HEAD)?;
        }
        match next {
            Some(next) => drop(m.dead.insert(id, next)),
            None => {
                // A deleted snapshot whose dissolution has begun keeps nothing any more, but still names the branch: it
                // brings the branch here again when it is gone.
                let recorded = !branch.cdp.log.read().events.is_empty();
                if newest.is_none() && !recorded && !self.names.read().is_named(id) {
                    self.remove_branch(m, id)?;
                }
                m.dead.remove(&id);
            }
        }
        Ok(())
    }

    fn remove_branch(&self, m: &mut Maintenance, id: u64) -> Result<()> {
        let mut txn = self.catalog.begin()?;
        txn.remove_branch(id)?;
        self.commit_aside(m, txn, &[])?;
        self.names.write().forget_branch(id);
        self.map.forget_branch(id);
        Ok(())
    }
}
