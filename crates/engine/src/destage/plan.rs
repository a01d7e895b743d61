//! Planning a batch: for every chunk touched, what its content will be and where it goes.

use super::apply::{Fill, Placed};
use super::collect::{Batch, Item, Source};
use crate::error::{Result, corrupt};
use crate::map::page::{Entry, MapPage, PageKey, Slot};
use crate::pool::namespace::Branch;
use crate::pool::{Maintenance, Pool};
use std::sync::atomic::Ordering;

/// What a batch does.
#[derive(Default)]
pub(super) struct Plan {
    /// Map pages that change.
    pub(super) pages: Vec<(PageKey, MapPage)>,
    /// Whole chunks in new slots: written before the commit.
    pub(super) fresh: Vec<Placed>,
    /// Parts of chunks that have a slot: written after the commit.
    pub(super) in_place: Vec<Placed>,
    /// Growth of each branch's count of slots.
    pub(super) slots: Vec<i64>,
}

/// The new content of one chunk: what the batch says of it, newest on top.
struct Overlay {
    /// Disjoint parts, in order.
    parts: Vec<(u32, u32, Source)>,
    /// A whole-chunk discard lies under the parts: the rest is zeros.
    emptied: bool,
}

impl Overlay {
    fn of(items: &[Item], chunk_size: u64) -> Overlay {
        let mut overlay = Overlay { parts: Vec::with_capacity(items.len()), emptied: false };
        for item in items {
            if item.source == Source::Hole && (item.end - item.start) as u64 == chunk_size {
                overlay.parts.clear();
                overlay.emptied = true;
            } else {
                overlay.put(item.start, item.end, item.source);
            }
        }
        overlay
    }

    /// Puts a part on top of the others.
    fn put(&mut self, start: u32, end: u32, source: Source) {
        let first = self.parts.partition_point(|p| p.1 <= start);
        let last = first + self.parts[first..].partition_point(|p| p.0 < end);
        let mut replacement = Vec::with_capacity(3);
        if let Some(&(s, _, src)) = self.parts[first..last].first().filter(|p| p.0 < start) {
            replacement.push((s, start, src));
        }
        replacement.push((start, end, source));
        if let Some(&(s, e, src)) = self.parts[first..last].last().filter(|p| p.1 > end) {
            replacement.push((end, e, src.advanced(end - s)));
        }
        self.parts.splice(first..last, replacement);
    }

    fn needs_slot(&self) -> bool {
        self.parts.iter().any(|p| p.2 != Source::Hole)
    }

    /// Writes for a slot at `slot`: the parts, and with `whole` zeros in between.
    fn place(&self, slot: Slot, chunk_size: u64, whole: bool, out: &mut Vec<Placed>) {
        let mut at = 0u32;
        for &(start, end, source) in &self.parts {
            if whole && at < start {
                out.push(Placed::new(slot, at, start, Fill::Zeros));
            }
            let fill = match source {
                Source::Journal(file, position) => Fill::Journal(file, position),
                Source::Zeros | Source::Hole => Fill::Zeros,
            };
            out.push(Placed::new(slot, start, end, fill));
            at = end;
        }
        if whole && (at as u64) < chunk_size {
            out.push(Placed::new(slot, at, chunk_size as u32, Fill::Zeros));
        }
    }
}

impl Source {
    fn advanced(self, by: u32) -> Source {
        match self {
            Source::Journal(file, position) => Source::Journal(file, position + by),
            zeros => zeros,
        }
    }
}

impl Pool {
    /// Plans `batch`. With `redo` its preserve phase is in the catalog already: everything that has a slot is written
    /// there again, and nothing is allocated or freed.
    pub(super) fn plan(&self, m: &mut Maintenance, batch: &Batch, redo: bool) -> Result<Plan> {
        let mut plan = Plan { slots: vec![0; batch.branches.len()], ..Plan::default() };
        let page_of = |i: &Item| (i.branch, MapPage::locate(i.chunk).0);
        for of_page in batch.items.chunk_by(|a, b| page_of(a) == page_of(b)) {
            let (index, number) = page_of(&of_page[0]);
            let branch = &batch.branches[index as usize];
            let key = (branch.id, number);
            let stored = self.map.cached(key).map_or_else(|| self.map.read(key), Ok)?;
            let mut page = None;
            for of_chunk in of_page.chunk_by(|a, b| a.chunk == b.chunk) {
                let current = page.as_ref().unwrap_or(&*stored);
                let change = self.plan_chunk(m, branch, current, of_chunk, redo, &mut plan)?;
                let (_, at) = MapPage::locate(of_chunk[0].chunk);
                match change {
                    Change::None => {}
                    Change::Allocated(entry) => {
                        plan.slots[index as usize] += 1;
                        page.get_or_insert_with(|| (*stored).clone()).set(at, entry);
                    }
                    Change::Freed => {
                        plan.slots[index as usize] -= 1;
                        page.get_or_insert_with(|| (*stored).clone()).remove(at);
                    }
                }
            }
            plan.pages.extend(page.map(|page| (key, page)));
        }
        plan.fresh.sort_unstable_by_key(|p| p.address);
        plan.in_place.sort_unstable_by_key(|p| p.address);
        Ok(plan)
    }

    fn plan_chunk(
        &self,
        m: &mut Maintenance,
        branch: &Branch,
        page: &MapPage,
        items: &[Item],
        redo: bool,
        plan: &mut Plan,
    ) -> Result<Change> {
        let chunk_size = 1u64 << branch.chunk_log2;
        let (_, at) = MapPage::locate(items[0].chunk);
        let overlay = Overlay::of(items, chunk_size);
        let slot = page.get(at).map(|e| e.slot).filter(|s| *s != Slot::HOLE);
        match (slot, overlay.needs_slot()) {
            (Some(slot), false) if overlay.emptied && !redo => {
                m.allocator.free(slot, branch.slot_log2)?;
                Ok(Change::Freed)
            }
            (Some(slot), _) => {
                overlay.place(slot, chunk_size, overlay.emptied, &mut plan.in_place);
                Ok(Change::None)
            }
            (None, false) => Ok(Change::None),
            (None, true) if redo => Err(corrupt(format!(
                "apply the journal again: chunk {} of branch {} has no slot, but was preserved",
                items[0].chunk, branch.id
            ))),
            (None, true) => {
                let neighbour = at.checked_sub(1).and_then(|i| page.get(i)).map(|e| e.slot);
                let slot = m.allocator.allocate(
                    &self.space,
                    branch.slot_log2,
                    neighbour.filter(|s| *s != Slot::HOLE),
                )?;
                overlay.place(slot, chunk_size, true, &mut plan.fresh);
                self.positions.allocated.fetch_add(1 << branch.slot_log2, Ordering::Relaxed);
                Ok(Change::Allocated(Entry { slot, born: branch.epoch }))
            }
        }
    }
}

enum Change {
    None,
    Allocated(Entry),
    Freed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{Rng, SplitMix};

    #[test]
    fn overlays_agree_with_a_plain_array() {
        for seed in 0..300 {
            let rng = SplitMix::new(seed);
            let mut plain = [None; 32];
            let mut items = Vec::new();
            for order in 0..1 + rng.next() as u32 % 12 {
                let start = rng.next() as u32 % 32;
                let end = start + 1 + rng.next() as u32 % (32 - start);
                let (start, end) = if rng.next() % 5 == 0 { (0, 32) } else { (start, end) };
                let source = match rng.next() % 4 {
                    0 => Source::Hole,
                    1 => Source::Zeros,
                    _ => Source::Journal(order, 1000 + start),
                };
                items.push(Item { branch: 0, order, chunk: 0, start, end, source });
                for (at, cell) in plain.iter_mut().enumerate() {
                    let at = at as u32;
                    if (start..end).contains(&at) {
                        *cell = Some(source.advanced(at - start));
                    }
                }
            }
            let overlay = Overlay::of(&items, 32);
            let mut got = [overlay.emptied.then_some(Source::Hole); 32];
            let mut last = 0;
            for &(start, end, source) in &overlay.parts {
                assert!(start >= last && start < end);
                last = end;
                for at in start..end {
                    got[at as usize] = Some(source.advanced(at - start));
                }
            }
            assert_eq!(got, plain, "seed {seed}");
        }
    }
}
