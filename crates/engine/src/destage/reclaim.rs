//! Freeing much at once, in steps: long discards, the tails of shrunk volumes, and branches without a volume. Every step
//! is a commit of its own and can be repeated after a crash: what is freed already is not in the map any more.

use super::collect::{Batch, DiscardRange, Item, Source};
use super::plan::{Change, hole};
use crate::catalog::Version;
use crate::disk::SyncPurpose;
use crate::error::Result;
use crate::map::page::{CHUNKS, Entry, MapPage, PageKey, Slot};
use crate::pool::line::{Branch, HEAD};
use crate::pool::{Maintenance, Pool};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Map pages freed by one commit.
const PAGES_PER_STEP: usize = 256;

impl Pool {
    /// Carries out a discard record that is too long for a batch. Until its position is committed staging answers for
    /// the range.
    pub(super) fn discard_long(
        &self,
        m: &mut Maintenance,
        lsn: u64,
        range: &DiscardRange,
        reserved: &[(u8, u64)],
    ) -> Result<()> {
        self.discard_in_steps(m, range)?;
        let txn = self.catalog.begin()?;
        self.commit(m, txn, lsn, lsn, reserved)?;
        range.branch.staging.remove(std::iter::empty(), lsn);
        Ok(())
    }

    /// Frees the whole chunks of a range and zeroes its edges in place.
    pub(super) fn discard_in_steps(&self, m: &mut Maintenance, range: &DiscardRange) -> Result<()> {
        let branch = &range.branch;
        let size = 1u64 << branch.chunk_log2;
        let first = range.bytes.start.div_ceil(size);
        let end = range.bytes.end / size;
        if first <= end {
            self.zero_part(m, range, range.bytes.start, first * size)?;
            self.zero_part(m, range, end * size, range.bytes.end)?;
            while self.hole_step(m, range, first, end)? {}
            Ok(())
        } else {
            self.zero_part(m, range, range.bytes.start, range.bytes.end)
        }
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
        let in_place =
            self.preserve(m, &batch, plan, |m| (m.committed.preserved_lsn.max(m.destaged), m.destaged))?;
        // Until the operation's own position is committed it is done again after a crash: nothing else follows from this.
        self.write_placed(&in_place)?;
        self.sync_pvs(&in_place, SyncPurpose::Apply)
    }

    /// Discards the chunks `first..end` of a few map pages, in one commit. False when none is left.
    fn hole_step(&self, m: &mut Maintenance, range: &DiscardRange, first: u64, end: u64) -> Result<bool> {
        if first >= end {
            return Ok(false);
        }
        let branch = &range.branch;
        let (first_page, last_page) = (first / CHUNKS, (end - 1) / CHUNKS);
        // Whole pages vanish; the two at the edges may stay, so they are taken together with what follows.
        let numbers = match branch.base {
            None => self.catalog.page_numbers(branch.id, first_page, last_page, PAGES_PER_STEP + 2)?,
            // Over a base every page has to say that there is nothing.
            Some(_) => self.pages_with_content(range, first..end)?,
        };
        let mut pages: Vec<(PageKey, MapPage)> = Vec::new();
        let mut versions = Vec::new();
        let mut freed = 0i64;
        for number in numbers {
            let key = (branch.id, number);
            let mut page = (*self.map.read(key)?).clone();
            let mut touched = false;
            let chunks = first.max(number * CHUNKS)..end.min((number + 1) * CHUNKS);
            for chunk in chunks {
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
                    versions.push(Version { key: (branch.id, chunk, last), entry });
                }
                if let Some(slot) = slot {
                    m.allocator.free(slot, branch.slot_log2)?;
                    freed += 1;
                }
            }
            if touched {
                pages.push((key, page));
            }
        }
        if pages.is_empty() {
            return Ok(false);
        }
        self.commit_freed(m, branch, pages, &versions, freed, range.epoch)?;
        Ok(true)
    }

    /// A few pages in which a chunk of `chunks` is not yet a hole of its own.
    fn pages_with_content(&self, range: &DiscardRange, chunks: Range<u64>) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        for number in chunks.start / CHUNKS..=(chunks.end - 1) / CHUNKS {
            let page = self.map.read((range.branch.id, number))?;
            let mut inside = chunks.start.max(number * CHUNKS)..chunks.end.min((number + 1) * CHUNKS);
            let hole = |chunk| page.get(MapPage::locate(chunk).1).is_some_and(|e| e.slot == Slot::HOLE);
            if !inside.all(hole) {
                found.push(number);
            }
            if found.len() == PAGES_PER_STEP {
                break;
            }
        }
        Ok(found)
    }

    fn commit_freed(
        &self,
        m: &mut Maintenance,
        branch: &Arc<Branch>,
        pages: Vec<(PageKey, MapPage)>,
        versions: &[Version],
        freed: i64,
        epoch: u32,
    ) -> Result<()> {
        let mut txn = self.catalog.begin()?;
        txn.put_pages(pages.iter().map(|(key, page)| (*key, page)))?;
        txn.put_versions(versions.iter())?;
        self.put_branch_slots(&mut txn, branch, -freed)?;
        let (preserved, destaged) = (m.committed.preserved_lsn.max(m.destaged), m.destaged);
        self.commit(m, txn, preserved, destaged, &[])?;
        branch.slots.fetch_sub((freed as u64).min(branch.slots.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.forget_views(branch, epoch, &pages);
        self.publish(pages);
        Ok(())
    }

    /// Frees a part of what nobody needs: of branches that no volume writes to, and of deleted snapshots. False when there
    /// is nothing that can be freed now.
    pub(crate) fn reclaim(&self, m: &mut Maintenance) -> Result<bool> {
        let worked = match m.dead.first_key_value() {
            Some((id, from)) => {
                let (id, from) = (*id, *from);
                self.trim_branch(m, id, from).map(|()| true)
            }
            None => self.dissolve(m),
        };
        worked.map_err(|e| self.fault.poison(&e))
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
        let numbers = self.catalog.page_numbers(id, from, u64::MAX, PAGES_PER_STEP)?;
        let next = numbers.last().map(|n| n + 1);
        let mut pages: Vec<(PageKey, MapPage)> = Vec::new();
        let mut freed = 0i64;
        for number in numbers {
            let mut page = (*self.map.read((id, number))?).clone();
            let unseen = |e: &Entry| newest.is_none_or(|newest| e.born > newest);
            let doomed: Vec<usize> = page.iter().filter(|(_, e)| unseen(e)).map(|(at, _)| at).collect();
            for at in &doomed {
                if let Some(entry) = page.remove(*at).filter(|e| e.slot != Slot::HOLE) {
                    m.allocator.free(entry.slot, branch.slot_log2)?;
                    freed += 1;
                }
            }
            if !doomed.is_empty() {
                pages.push(((id, number), page));
            }
        }
        if !pages.is_empty() {
            self.commit_freed(m, &branch, pages, &[], freed, HEAD)?;
        }
        match next {
            Some(next) => drop(m.dead.insert(id, next)),
            None => {
                m.dead.remove(&id);
                // A deleted snapshot whose dissolution has begun keeps nothing any more, but still names the branch: it
                // brings the branch here again when it is gone.
                if newest.is_none() && !self.names.read().is_named(id) {
                    self.remove_branch(m, id)?;
                }
            }
        }
        Ok(())
    }

    fn remove_branch(&self, m: &mut Maintenance, id: u64) -> Result<()> {
        let mut txn = self.catalog.begin()?;
        txn.remove_branch(id)?;
        let (preserved, destaged) = (m.committed.preserved_lsn.max(m.destaged), m.destaged);
        self.commit(m, txn, preserved, destaged, &[])?;
        self.names.write().forget_branch(id);
        self.map.forget_branch(id);
        Ok(())
    }
}
