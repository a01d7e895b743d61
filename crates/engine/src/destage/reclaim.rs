//! Freeing much at once, in steps: long discards, the tails of shrunk volumes, and branches without a volume. Every step
//! is a commit of its own and can be repeated after a crash: what is freed already is not in the map any more.

use super::apply::{Fill, Placed};
use super::collect::DiscardRange;
use crate::disk::SyncPurpose;
use crate::error::Result;
use crate::map::page::{CHUNKS, MapPage, PageKey, Slot};
use crate::pool::namespace::Branch;
use crate::pool::{Maintenance, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Map pages freed by one commit.
const PAGES_PER_STEP: usize = 256;

impl Pool {
    /// Carries out a discard record that is too long for a batch. Until its position is committed staging answers for
    /// the range.
    pub(super) fn discard_long(&self, m: &mut Maintenance, lsn: u64, range: &DiscardRange) -> Result<()> {
        self.discard_in_steps(m, range)?;
        let txn = self.catalog.begin()?;
        self.commit(m, txn, lsn, lsn, &[])?;
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
            self.zero_part(branch, range.bytes.start, first * size)?;
            self.zero_part(branch, end * size, range.bytes.end)?;
            while self.free_step(m, branch, first, end)? {}
            Ok(())
        } else {
            self.zero_part(branch, range.bytes.start, range.bytes.end)
        }
    }

    /// Zeroes a part of one chunk, if the chunk has a slot.
    fn zero_part(&self, branch: &Branch, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let chunk = start >> branch.chunk_log2;
        let (number, at) = MapPage::locate(chunk);
        let page = self.map.read((branch.id, number))?;
        let Some(slot) = page.get(at).map(|e| e.slot).filter(|s| *s != Slot::HOLE) else {
            return Ok(());
        };
        let base = chunk << branch.chunk_log2;
        let placed = [Placed::new(slot, (start - base) as u32, (end - base) as u32, Fill::Zeros)];
        self.write_placed(&placed)?;
        self.sync_pvs(&placed, SyncPurpose::Apply)
    }

    /// Frees the chunks `first..end` in a few map pages, in one commit. False when none is left.
    fn free_step(&self, m: &mut Maintenance, branch: &Arc<Branch>, first: u64, end: u64) -> Result<bool> {
        if first >= end {
            return Ok(false);
        }
        let (first_page, last_page) = (first / CHUNKS, (end - 1) / CHUNKS);
        // Whole pages vanish; the two at the edges may stay, so they are taken together with what follows.
        let numbers = self.catalog.page_numbers(branch.id, first_page, last_page, PAGES_PER_STEP + 2)?;
        let mut pages: Vec<(PageKey, MapPage)> = Vec::new();
        let mut freed = 0i64;
        for number in numbers {
            let key = (branch.id, number);
            let mut page = (*self.map.read(key)?).clone();
            let inside = |at: usize| (first..end).contains(&(number * CHUNKS + at as u64));
            let doomed: Vec<usize> = page.iter().map(|(at, _)| at).filter(|at| inside(*at)).collect();
            if doomed.is_empty() {
                continue;
            }
            for at in doomed {
                if let Some(entry) = page.remove(at).filter(|e| e.slot != Slot::HOLE) {
                    m.allocator.free(entry.slot, branch.slot_log2)?;
                    freed += 1;
                }
            }
            pages.push((key, page));
        }
        if pages.is_empty() {
            return Ok(false);
        }
        let mut txn = self.catalog.begin()?;
        txn.put_pages(pages.iter().map(|(key, page)| (*key, page)))?;
        self.put_branch_slots(&mut txn, branch, -freed)?;
        let (preserved, destaged) = (m.committed.preserved_lsn.max(m.destaged), m.destaged);
        self.commit(m, txn, preserved, destaged, &[])?;
        branch.slots.fetch_sub((freed as u64).min(branch.slots.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.publish(pages);
        Ok(true)
    }

    /// Frees a part of a branch that no volume writes to. False when there is none.
    pub(crate) fn reclaim(&self, m: &mut Maintenance) -> Result<bool> {
        let Some(id) = m.dead.first().copied() else {
            return Ok(false);
        };
        self.reclaim_branch(m, id).map_err(|e| self.fault.poison(&e))?;
        Ok(true)
    }

    fn reclaim_branch(&self, m: &mut Maintenance, id: u64) -> Result<()> {
        let branch = self.names.read().branches.get(&id).cloned();
        if let Some(branch) = branch
            && self.free_step(m, &branch, 0, u64::MAX)?
        {
            return Ok(());
        }
        let mut txn = self.catalog.begin()?;
        txn.remove_branch(id)?;
        m.dead.remove(&id);
        let (preserved, destaged) = (m.committed.preserved_lsn.max(m.destaged), m.destaged);
        self.commit(m, txn, preserved, destaged, &[])?;
        self.names.write().branches.remove(&id);
        self.map.forget_branch(id);
        Ok(())
    }
}
