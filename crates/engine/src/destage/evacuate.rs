//! Moving data off physical volumes that are to be removed: copy, sync, commit, a few chunks at a time.

use crate::disk::SyncPurpose;
use crate::error::{Error, Result};
use crate::map::page::{Entry, MapPage, PageKey, Slot};
use crate::pool::namespace::Branch;
use crate::pool::{Maintenance, Pool};
use std::sync::atomic::Ordering;

/// Map pages looked at, and bytes moved (at least one chunk), by one step.
const PAGES_PER_STEP: usize = 64;
const BYTES_PER_STEP: u64 = 4 << 20;

impl Pool {
    /// Moves a few chunks away from draining PVs. False when nothing is to be moved, or nothing can be.
    pub(crate) fn evacuate(&self, m: &mut Maintenance) -> Result<bool> {
        let draining =
            |m: &Maintenance, pv: &u32| m.allocator.is_draining(*pv) && m.allocator.used_extents(*pv) > 0;
        let any = self.names.read().pvs.keys().any(|pv| draining(m, pv));
        // Slots of the journal's last batch may still be on their way: nothing moves before they are in place.
        if !any || m.evacuated || m.committed.preserved_lsn > m.destaged {
            return Ok(false);
        }
        self.evacuate_step(m).map_err(|e| self.fault.poison(&e))
    }

    fn evacuate_step(&self, m: &mut Maintenance) -> Result<bool> {
        let mut pages: Vec<(PageKey, MapPage)> = Vec::new();
        let from = m.evacuate_from.unwrap_or((0, 0));
        let next = self.catalog.visit_pages(from, PAGES_PER_STEP, &mut |key, page| {
            let page = page?;
            if page.iter().any(|(_, e)| e.slot != Slot::HOLE && m.allocator.is_draining(e.slot.pv())) {
                pages.push((key, page));
            }
            Ok(())
        })?;
        let mut budget = BYTES_PER_STEP;
        let mut changed: Vec<(PageKey, MapPage)> = Vec::new();
        let mut released: Vec<(u8, u64)> = Vec::new();
        let mut written = Vec::new();
        let mut unfinished = None;
        'pages: for (key, mut page) in pages {
            let branch = self.names.read().branches.get(&key.0).cloned();
            let Some(branch) = branch.filter(|b| !m.dead.contains(&b.id)) else {
                continue;
            };
            let mut touched = false;
            let entries: Vec<(usize, Entry)> = page.iter().collect();
            for (at, entry) in entries {
                if entry.slot == Slot::HOLE || !m.allocator.is_draining(entry.slot.pv()) {
                    continue;
                }
                // A move takes space like a write, and waits when there is none.
                if budget == 0 || !self.space.try_reserve(branch.slot_log2, 1) {
                    unfinished = Some((key, budget == 0));
                    changed.extend(touched.then_some((key, page)));
                    break 'pages;
                }
                let slot = self.move_chunk(m, &branch, entry.slot)?;
                released.push((branch.slot_log2, 1));
                written.push(slot.pv());
                page.set(at, Entry { slot, ..entry });
                touched = true;
                budget = budget.saturating_sub(1 << branch.chunk_log2);
            }
            changed.extend(touched.then_some((key, page)));
        }
        self.commit_moves(m, changed, &released, written)?;
        match unfinished {
            Some((key, worked)) => {
                m.evacuate_from = Some(key);
                m.evacuated = !worked;
            }
            None => {
                m.evacuate_from = next;
                m.evacuated = next.is_none();
            }
        }
        Ok(true)
    }

    fn move_chunk(&self, m: &mut Maintenance, branch: &Branch, from: Slot) -> Result<Slot> {
        let to = m.allocator.allocate(&self.space, branch.slot_log2, None)?;
        let (source, target) = (self.pvs.get(from.pv())?, self.pvs.get(to.pv())?);
        let size = 1u64 << branch.chunk_log2;
        let mut buffer = vec![0u8; size.min(1 << 20) as usize];
        for at in (0..size).step_by(buffer.len()) {
            let failed = |e| Error::io(format!("move a chunk from {} to {}", source.path, target.path), e);
            source.disk.read_at(&mut buffer, from.offset() + at).map_err(failed)?;
            target.disk.write_at(&buffer, to.offset() + at).map_err(failed)?;
        }
        m.allocator.free(from, branch.slot_log2)?;
        self.positions.bytes.fetch_add(size, Ordering::Relaxed);
        Ok(to)
    }

    fn commit_moves(
        &self,
        m: &mut Maintenance,
        pages: Vec<(PageKey, MapPage)>,
        released: &[(u8, u64)],
        mut written: Vec<u32>,
    ) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        written.sort_unstable();
        written.dedup();
        for id in written {
            let pv = self.pvs.get(id)?;
            let failed = |e| Error::io(format!("sync {}", pv.path), e);
            pv.disk.sync(SyncPurpose::Preserve).map_err(failed)?;
        }
        let mut txn = self.catalog.begin()?;
        txn.put_pages(pages.iter().map(|(key, page)| (*key, page)))?;
        let (preserved, destaged) = (m.committed.preserved_lsn.max(m.destaged), m.destaged);
        self.commit(m, txn, preserved, destaged, released)?;
        self.publish(pages);
        Ok(())
    }
}
