//! Long discards, and the tails of shrunk volumes. Chunks are freed in steps, each with a commit of
//! its own. One more commit then makes the discard known.

use super::batch::{Batch, BatchItem, ControlRun, PartSource, RunStep};
use super::plan::{SlotChange, hole};
use super::state::BackgroundState;
use crate::branch::{Branch, DiscardRange};
use crate::catalog::PageKey;
use crate::catalog::VersionKey;
use crate::catalog::page::{CHUNKS, MapPage, Slot};
use crate::catalog::{Event, Version};
use crate::control::OperationChange;
use crate::core::Core;
use crate::destage::Destager;
use crate::error::Result;
use crate::ids::{Chunk, Epoch, Stamp};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Destager {
    /// Carries out a run. What its first discard frees is freed in steps. One commit then makes
    /// known what all its records change. Until that commit, reads find the discarded ranges in
    /// staging.
    pub(super) fn carry_out_run(&self, state: &mut BackgroundState, run: &ControlRun) -> Result<()> {
        if let Some((_, RunStep::Discard(range))) = run.steps.first() {
            self.discard_in_steps(state, range)?;
        }
        let mut changes = Vec::new();
        for (at, step) in &run.steps {
            match step {
                RunStep::Control(control) => changes.push(OperationChange::of(&self.core, *at, control)?),
                RunStep::Discard(range) => changes.extend(self.core.emptied(*at, range)),
            }
        }
        let flushed = self.core.sums.flush()?;
        let mut txn = self.core.catalog.begin()?;
        changes.iter().try_for_each(|change| change.store(&mut txn))?;
        self.commit(state, txn, flushed, (run.last.lsn, run.last.lsn), &run.reserved)?;
        self.changes_done(state, changes)?;
        state.landed.extend(run.unstage());
        Ok(())
    }

    /// Frees the whole chunks of a range and zeroes its edges in place.
    pub(super) fn discard_in_steps(&self, state: &mut BackgroundState, range: &DiscardRange) -> Result<()> {
        let branch = &range.branch;
        // The log has the event of the discard only after the last step. A reader that began before
        // the first one must not take the content in place for that of an older moment. A reader
        // that begins now starts from the anchor behind which the discard comes.
        if branch.cdp.log.read().settings.is_some() {
            branch.cdp.change(|_| ());
        }
        let Range { start: first, end } = branch.whole_chunks(&range.bytes);
        if first > end {
            return self.zero_part(state, range, range.bytes.start, range.bytes.end);
        }
        self.zero_part(state, range, range.bytes.start, first.start(branch.chunk_log2))?;
        self.zero_part(state, range, end.start(branch.chunk_log2), range.bytes.end)?;
        if !branch.has_base() {
            // Pages in the middle vanish. The two pages at the edges may stay, so each is handled
            // together with what follows it.
            let (first_page, last_page) = (first.page(), end.prev().page());
            loop {
                let most = self.core.catalog_room.pages(PAGES_PER_STEP) + 2;
                let numbers = self.core.catalog.page_numbers(branch.id, first_page, last_page, most)?;
                let step = self.empty_pages(state, range, first..end, numbers)?;
                if step.pages.is_empty() {
                    return Ok(());
                }
                self.commit_freed(state, branch, step, range.epoch)?;
            }
        }
        // Over a base, every discarded chunk needs an entry that makes it a hole. Whole pages are
        // recorded as one hole.
        let whole = first.0.div_ceil(CHUNKS)..end.page();
        if whole.is_empty() {
            return self.hole_edge(state, range, first..end);
        }
        self.hole_edge(state, range, first..Chunk::first_of(whole.start))?;
        self.hole_edge(state, range, Chunk::first_of(whole.end)..end)?;
        self.hole_pages(state, range, whole)
    }

    /// Makes holes of chunks in one page or two.
    fn hole_edge(
        &self,
        state: &mut BackgroundState,
        range: &DiscardRange,
        chunks: Range<Chunk>,
    ) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let numbers = (chunks.start.page()..=chunks.end.prev().page()).collect();
        let step = self.empty_pages(state, range, chunks, numbers)?;
        if step.pages.is_empty() {
            Ok(())
        } else {
            self.commit_freed(state, &range.branch, step, range.epoch)
        }
    }

    /// Makes holes of whole pages. A step takes a bounded number of stored pages, and all pages
    /// between them.
    fn hole_pages(&self, state: &mut BackgroundState, range: &DiscardRange, pages: Range<u64>) -> Result<()> {
        let branch = &range.branch;
        let mut from = pages.start;
        while from < pages.end {
            let most = self.core.catalog_room.pages(PAGES_PER_STEP);
            let numbers = self.core.catalog.page_numbers(branch.id, from, pages.end - 1, most)?;
            let short = numbers.len() < most;
            let next = numbers.last().filter(|_| !short).map_or(pages.end, |n| n + 1);
            let mut step = DiscardStep { hole: Some(from..next), ..DiscardStep::default() };
            for number in numbers {
                let key = PageKey::new(branch.id, number);
                for (at, entry) in self.core.map.read(key)?.iter() {
                    // The new hole is younger than the content or hole that a snapshot sees here.
                    match branch.newest_snapshot_seeing(entry.born, range.epoch) {
                        Some(last) => {
                            let key = VersionKey::new(branch.id, Chunk::in_page(number, at), last);
                            step.versions.push(Version { key, entry });
                        }
                        None if entry.slot != Slot::HOLE => {
                            state.allocator.free(entry.slot, branch.slot_log2)?;
                            step.freed += 1;
                        }
                        None => {}
                    }
                }
                step.pages.push((key, MapPage::default()));
            }
            self.commit_freed(state, branch, step, range.epoch)?;
            from = next;
        }
        Ok(())
    }

    /// Zeroes a part of one chunk, as a batch of its own.
    fn zero_part(
        &self,
        state: &mut BackgroundState,
        range: &DiscardRange,
        start: u64,
        end: u64,
    ) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let branch = &range.branch;
        let chunk = Chunk::of(start, branch.chunk_log2);
        let base = chunk.start(branch.chunk_log2);
        let item = BatchItem {
            branch: 0,
            order: 0,
            chunk,
            start: (start - base) as u32,
            end: (end - base) as u32,
            source: PartSource::Hole,
        };
        let batch = Batch::of_one(branch.clone(), range.epoch, item);
        let mut plan = self.plan(state, &batch, false)?;
        plan.unrepeated = true;
        // Until the operation's own position is committed, it is carried out again after a crash.
        // So this step needs no position and no look-ahead of its own.
        self.place(state, &batch, plan, BackgroundState::current_positions, None::<fn() -> Option<()>>, drop)
    }

    /// Discards those of `chunks` that lie in the pages `numbers`.
    fn empty_pages(
        &self,
        state: &mut BackgroundState,
        range: &DiscardRange,
        all: Range<Chunk>,
        numbers: Vec<u64>,
    ) -> Result<DiscardStep> {
        let branch = &range.branch;
        let mut step = DiscardStep::default();
        for number in numbers {
            let key = PageKey::new(branch.id, number);
            let mut page = (*self.core.map.read(key)?).clone();
            let mut touched = false;
            let of_page = Chunk::first_of(number)..Chunk::first_of(number + 1);
            for chunk in Chunk::each(all.start.max(of_page.start)..all.end.min(of_page.end)) {
                let (_, at) = MapPage::locate(chunk);
                let current = page.get(at);
                let kept_for = current.and_then(|e| branch.newest_snapshot_seeing(e.born, range.epoch));
                let (change, slot) = hole(branch, range.epoch, current, kept_for);
                match change {
                    SlotChange::None => continue,
                    SlotChange::Set(entry) => drop(page.set(at, entry)),
                    SlotChange::Removed => drop(page.remove(at)),
                }
                touched = true;
                if let (Some(entry), Some(last)) = (current, kept_for) {
                    step.versions.push(Version { key: VersionKey::new(branch.id, chunk, last), entry });
                }
                if let Some(slot) = slot {
                    state.allocator.free(slot, branch.slot_log2)?;
                    step.freed += 1;
                }
            }
            if touched {
                step.pages.push((key, page));
            }
        }
        Ok(step)
    }

    /// Commits a step that was planned in `epoch`.
    pub(crate) fn commit_freed(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        step: DiscardStep,
        epoch: Epoch,
    ) -> Result<()> {
        let mut txn = self.core.catalog.begin()?;
        txn.put_pages(step.pages.iter().map(|(key, page)| (*key, page)))?;
        if let Some(pages) = &step.hole {
            txn.put_hole(branch.id, pages.clone(), epoch)?;
        }
        txn.put_versions(step.versions.iter())?;
        txn.add_slots(branch.id, -(step.freed as i64))?;
        self.commit_aside(state, txn, &[])?;
        branch.slots.fetch_sub(step.freed.min(branch.slots.load(Ordering::Relaxed)), Ordering::Relaxed);
        match step.hole {
            Some(pages) => self.core.map.forget_pages(branch.id, pages),
            None => {
                self.core.forget_views(branch, epoch, &step.pages);
                self.core.publish(step.pages);
            }
        }
        Ok(())
    }
}

impl Core {
    /// The event that a long discard adds to a history; `None` without CDP.
    fn emptied<'a>(&self, Stamp { lsn, time }: Stamp, range: &DiscardRange) -> Option<OperationChange<'a>> {
        let recorded = range.branch.cdp.log.read().settings.is_some();
        let Range { start, end } = range.bytes;
        let event = Event::Emptied { start, end, time };
        recorded.then(|| OperationChange::of_event(lsn, range.branch.clone(), event))
    }
}

/// Number of map pages that one commit frees.
pub(crate) const PAGES_PER_STEP: usize = 256;

/// The changes that one commit makes.
#[derive(Default)]
pub(crate) struct DiscardStep {
    pub(crate) pages: Vec<(PageKey, MapPage)>,
    /// Numbers of pages that become a hole. Those of them that were stored are also in `pages`,
    /// empty.
    pub(crate) hole: Option<Range<u64>>,
    /// Versions that keep, for snapshots, what was there.
    pub(crate) versions: Vec<Version>,
    /// Number of slots that this step frees.
    pub(crate) freed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::CdpSettings;
    use crate::testing::Site;
    use std::sync::atomic::Ordering;

    /// Between the steps of a discard no reader takes the content in place for older content.
    #[test]
    fn the_steps_of_a_discard_stop_readers_of_older_moments() {
        let site = Site::new(63).having("v", 4 << 20, 4096);
        site.pool.set_cdp("v", Some(CdpSettings::default())).unwrap();
        site.put(0, 7, 8192);
        site.pool.drain().unwrap();
        let branch = site.pool.core.names.read().volume("v").unwrap().line.branch.clone();
        let version = branch.cdp.version.load(Ordering::SeqCst);
        let (epoch, bytes) = (branch.epoch(), 0..4 << 20);
        let range = DiscardRange { branch: branch.clone(), epoch, bytes };
        site.pool.destager.discard_in_steps(&mut site.pool.destager.state.lock(), &range).unwrap();
        assert!(!branch.cdp.holds(version));
    }
}
