//! Relocation brings chunks home. Redirect-on-write scatters a volume's chunks; relocation puts
//! them in order again.
//!
//! A map page is handled in segments of a few MiB. In most segments, most chunks keep one distance
//! to their place in the volume. The other chunks are moved to where that distance puts them: their
//! home. A version of the same chunk may have to leave that slot first. A segment without such a
//! majority is written again, in one run of free slots. Under the snap-aware placement the home of
//! a chunk is its place in the region of its slice. Every step works like an evacuation (copy,
//! sync, commit), so it can be cut short anywhere. A repeated relocation skips what is already in
//! order.

use super::evacuate::Moves;
use crate::branch::Branch;
use crate::catalog::PageKey;
use crate::catalog::Version;
use crate::catalog::page::{CHUNKS, Entry, MapPage, Slot};
use crate::destage::Destager;
use crate::destage::state::{BackgroundState, Relocation};
use crate::disk::Cause;
use crate::error::Result;
use crate::ids::{BranchId, Chunk};
use crate::settings::SnapAware;
use crate::shortage::Task;
use crate::space::placement::Class;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of map pages that one step reads. `BYTES_PER_STEP` is the number of bytes that it moves
/// (at least one chunk).
pub(crate) const PAGES_PER_STEP: usize = 64;
const BYTES_PER_STEP: u64 = 4 << 20;
/// Number of bytes in a row that count as in order: a longer run reads no faster.
const RUN_BYTES: u64 = 256 << 10;
/// Number of passes. A home that a version leaves is free in the next pass. What is not in order
/// after the last pass stays as it is.
const MAX_PASSES: u32 = 6;
/// From this pass on, a segment with chunks that can't go home is written again as a whole.
const PATIENCE: u32 = 2;
/// Number of polls of the grace period after which a slot is free, if no reader holds it.
const POLLS: u32 = 3;
const NANOSECOND: u64 = 1_000_000_000;

impl Destager {
    /// Takes a step of one relocation. False when there is none, or none that may continue now.
    pub(crate) fn relocate(&self, state: &mut BackgroundState) -> Result<bool> {
        // Slots of the journal's last batch may still be half written. Nothing moves before they
        // are in place.
        if state.relocating.is_empty() || state.is_half_done() {
            return Ok(false);
        }
        let now = self.core.world.clock.monotonic();
        let ready = |job: &Relocation| now >= job.not_before;
        let Some(id) = state.relocating.iter().find(|(_, job)| ready(job)).map(|(id, _)| *id) else {
            return Ok(false);
        };
        let job = state.relocating.get(&id).cloned();
        self.relocate_step(state, id, now).map_err(|e| {
            // Other jobs come first then.
            let later = |job| Relocation { not_before: now.saturating_add(NANOSECOND), ..job };
            state.relocating.extend(job.map(|job| (id, later(job))));
            self.failed(state, Task::Upkeep, e)
        })?;
        Ok(true)
    }

    fn relocate_step(&self, state: &mut BackgroundState, id: BranchId, now: u64) -> Result<()> {
        let _cause = Cause::Move.begin();
        let Some(mut job) = state.relocating.remove(&id) else { return Ok(()) };
        let Some(branch) = self.movable(state, id) else { return Ok(()) };
        if job.page == 0 && job.pass > 0 {
            // Slots that the last pass retired become free when their readers are gone.
            for _ in 0..POLLS {
                self.poll_retired(state)?;
            }
        }
        let mut moves = Moves::new(BYTES_PER_STEP);
        let most = self.core.catalog_room.pages(PAGES_PER_STEP);
        let numbers = self.core.catalog.page_numbers(id, job.page, u64::MAX, most)?;
        let last = numbers.len() < most;
        for number in numbers {
            let mut page = (*self.core.map.read(PageKey::new(id, number))?).clone();
            let moved = moves.bytes();
            let whole = self.relocate_page(state, &branch, (number, &mut page), &mut job, &mut moves)?;
            if moves.bytes() > moved {
                moves.pages.push((PageKey::new(id, number), page));
            }
            job.page = number + u64::from(whole);
            if !whole {
                break;
            }
        }
        let (moved, short, spent) = (moves.bytes(), moves.short, moves.is_spent());
        self.commit_moves(state, moves)?;
        job.in_pass += moved;
        job.moved += moved;
        if let Some(pause) = (moved.saturating_mul(NANOSECOND)).checked_div(job.rate) {
            job.not_before = now.saturating_add(pause.min(NANOSECOND));
        }
        if short {
            return Ok(());
        }
        if last && !spent {
            let Relocation { in_pass, pass, .. } = job;
            if in_pass == 0 || pass + 1 == MAX_PASSES {
                return Ok(());
            }
            job = Relocation { page: 0, pass: pass + 1, in_pass: 0, ..job };
        }
        state.relocating.insert(id, job);
        Ok(())
    }

    /// Puts the chunks of a page in order. False when this step has done enough before the page's
    /// end.
    fn relocate_page(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        (number, page): (u64, &mut MapPage),
        job: &mut Relocation,
        moves: &mut Moves,
    ) -> Result<bool> {
        if let Some(of) = state.allocator.snap_aware(branch) {
            return self.bring_home(state, branch, (number, page), (job, of), moves);
        }
        let pass = job.pass;
        let per_extent = (self.core.config.extent_size >> branch.slot_log2).max(1);
        let size = (BYTES_PER_STEP >> branch.slot_log2).clamp(1, CHUNKS).min(per_extent) as usize;
        let least = ((RUN_BYTES >> branch.slot_log2) as usize).min(size / 4).max(2);
        let placed: Vec<(usize, Entry)> = page.iter().filter(|(_, e)| e.slot != Slot::HOLE).collect();
        for segment in placed.chunk_by(|a, b| a.0 / size == b.0 / size) {
            let misplaced = misplaced(segment, branch.slot_log2, least);
            if size == 1 || misplaced.is_empty() {
                continue;
            }
            if moves.is_spent() || moves.short {
                return Ok(false);
            }
            let home = majority(segment, branch.slot_log2);
            let anew = misplaced.len() * 4 >= segment.len();
            match home {
                Some(home) if pass < PATIENCE || !anew => {
                    for (at, entry) in misplaced {
                        self.move_to_target(state, branch, (number, at, entry), home, page, moves)?;
                    }
                }
                _ if anew => self.write_anew(state, branch, segment, least, page, moves)?,
                _ => {}
            }
        }
        Ok(true)
    }

    /// Moves one chunk to its home, if that is free. If a version of the same chunk is there, the
    /// version moves away.
    fn move_to_target(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        (number, at, entry): (u64, usize, Entry),
        home: Distance,
        page: &mut MapPage,
        moves: &mut Moves,
    ) -> Result<()> {
        let Some(wanted) = home.slot_of(at, branch.slot_log2) else { return Ok(()) };
        if wanted == entry.slot || moves.is_spent() || moves.short {
            return Ok(());
        }
        if !self.borrow(state, branch.kind(), 1) {
            moves.short = true;
            return Ok(());
        }
        if state.allocator.take_at(wanted, branch.kind())? {
            self.copy_chunk(state, branch, entry.slot, wanted)?;
            moves.note(branch, wanted, 1);
            page.set(at, Entry { slot: wanted, ..entry });
            return Ok(());
        }
        self.return_last(state);
        self.move_version_away(state, branch, Chunk::in_page(number, at), wanted, moves)
    }

    /// Moves a version of a chunk away from a slot, if it is there.
    fn move_version_away(
        &self,
        state: &mut BackgroundState,
        branch: &Branch,
        chunk: Chunk,
        wanted: Slot,
        moves: &mut Moves,
    ) -> Result<()> {
        let versions = self.core.catalog.versions_of(branch.id, chunk)?;
        if let Some(version) = versions.into_iter().find(|v| v.entry.slot == wanted)
            && let Some(slot) = self.move_one(state, branch, (Class::Preserved, chunk), wanted, moves)?
        {
            moves.versions.push(Version { entry: Entry { slot, ..version.entry }, ..version });
        }
        Ok(())
    }

    /// Moves the chunks of a page home, under the snap-aware placement: to their places in the
    /// regions of their slices. A version of the same chunk may have to leave the place first.
    /// False when this step has done enough before the page's end.
    fn bring_home(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        (number, page): (u64, &mut MapPage),
        (job, of): (&mut Relocation, SnapAware),
        moves: &mut Moves,
    ) -> Result<bool> {
        let per_slice = state.allocator.slice_chunks(of, branch);
        let placed: Vec<(Chunk, usize, Entry)> = page
            .iter()
            .filter(|(_, entry)| entry.slot != Slot::HOLE)
            .map(|(at, entry)| (Chunk::in_page(number, at), at, entry))
            .collect();
        for slice in placed.chunk_by(|a, b| a.0.0 / per_slice == b.0.0 / per_slice) {
            let Some((first, ..)) = slice.first() else { continue };
            let slice_number = first.0 / per_slice;
            if slice_number >= job.next_slice {
                state.allocator.begin_homing(of, branch, *first);
                job.next_slice = slice_number + 1;
            }
            for (chunk, at, entry) in slice {
                let home = state.allocator.home_of(of, branch, *chunk).filter(|home| *home != entry.slot);
                let Some(home) = home else { continue };
                if moves.is_spent() || moves.short {
                    return Ok(false);
                }
                if !self.borrow(state, branch.kind(), 1) {
                    moves.short = true;
                    return Ok(false);
                }
                if state.allocator.take_home(&self.core.space, home, branch.kind())? {
                    self.copy_chunk(state, branch, entry.slot, home)?;
                    moves.note(branch, home, 1);
                    page.set(*at, Entry { slot: home, ..*entry });
                } else {
                    self.return_last(state);
                    self.move_version_away(state, branch, *chunk, home, moves)?;
                }
            }
        }
        Ok(true)
    }

    /// Writes chunks one after another into free slots in a row. Where there is no such row,
    /// shorter rows of at least `least` slots are used.
    fn write_anew(
        &self,
        state: &mut BackgroundState,
        branch: &Arc<Branch>,
        segment: &[(usize, Entry)],
        least: usize,
        page: &mut MapPage,
        moves: &mut Moves,
    ) -> Result<()> {
        let count = segment.len() as u32;
        if !self.borrow(state, branch.kind(), count.into()) {
            moves.short = true;
            return Ok(());
        }
        // Share has placed the segment on one physical volume.
        let pv = segment.first().filter(|_| state.allocator.shares(branch)).map(|(_, entry)| entry.slot.pv());
        let Some(first) = state.allocator.take_run(&self.core.space, branch.kind(), count, pv)? else {
            self.return_last(state);
            let halves = segment.split_at(segment.len() / 2);
            if halves.0.len() >= least {
                self.write_anew(state, branch, halves.0, least, page, moves)?;
                self.write_anew(state, branch, halves.1, least, page, moves)?;
            }
            return Ok(());
        };
        for (n, (at, entry)) in segment.iter().enumerate() {
            let slot = Slot::new(first.pv(), first.offset() + ((n as u64) << branch.slot_log2));
            self.copy_chunk(state, branch, entry.slot, slot)?;
            moves.note(branch, slot, 1);
            page.set(*at, Entry { slot, ..*entry });
        }
        Ok(())
    }
}

/// The distance of a slot from where chunk 0 of the page would be. It is equal for chunks that lie
/// in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Distance {
    pv: u32,
    bytes: i64,
}

impl Distance {
    fn of(at: usize, slot: Slot, slot_log2: u8) -> Distance {
        Distance { pv: slot.pv(), bytes: slot.offset() as i64 - ((at as i64) << slot_log2) }
    }

    fn slot_of(self, at: usize, slot_log2: u8) -> Option<Slot> {
        let offset = u64::try_from(self.bytes + ((at as i64) << slot_log2)).ok()?;
        Some(Slot::new(self.pv, offset))
    }
}

/// Returns the distance that more than half of the chunks keep.
fn majority(segment: &[(usize, Entry)], slot_log2: u8) -> Option<Distance> {
    let mut votes: BTreeMap<Distance, usize> = BTreeMap::new();
    for (at, entry) in segment {
        *votes.entry(Distance::of(*at, entry.slot, slot_log2)).or_default() += 1;
    }
    votes.into_iter().find(|(_, count)| count * 2 > segment.len()).map(|(distance, _)| distance)
}

/// Returns whether the slot of a chunk lies in order behind the slot of the chunk that is `chunks`
/// earlier. In order means forward, and without a larger gap than the volume has between the
/// chunks. Space for chunks that were never written is allowed between the slots, but not required.
pub(crate) fn follows((from, to): (Slot, Slot), chunks: u64, slot_log2: u8) -> bool {
    let gap = chunks << slot_log2;
    from.pv() == to.pv() && from.offset() < to.offset() && to.offset() - from.offset() <= gap
}

/// Returns the chunks in runs shorter than `least`.
fn misplaced(segment: &[(usize, Entry)], slot_log2: u8, least: usize) -> Vec<(usize, Entry)> {
    let goes_on = |(at, earlier): &(usize, Entry), (next, later): &(usize, Entry)| {
        follows((earlier.slot, later.slot), (next - at) as u64, slot_log2)
    };
    let runs: Vec<&[(usize, Entry)]> = segment.chunk_by(goes_on).collect();
    if runs.len() <= 1 {
        return Vec::new();
    }
    runs.into_iter().filter(|run| run.len() < least).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    fn segment(slots: &[(usize, u64)]) -> Vec<(usize, Entry)> {
        slots
            .iter()
            .map(|(at, n)| (*at, Entry { slot: Slot::new(1, (1 << 20) + n * 4096), born: Epoch(1) }))
            .collect()
    }

    #[test]
    fn what_lies_in_order_is_no_stray() {
        let misplaced = |slots: &[(usize, u64)]| -> Vec<usize> {
            crate::upkeep::relocate::misplaced(&segment(slots), 12, 2).into_iter().map(|(at, _)| at).collect()
        };
        assert_eq!(misplaced(&[(0, 5), (1, 6), (2, 7)]), []);
        assert_eq!(misplaced(&[(0, 5), (4, 6), (9, 7)]), [], "packed");
        assert_eq!(misplaced(&[(0, 5), (4, 9), (9, 14)]), [], "with room kept");
        assert_eq!(misplaced(&[(0, 5), (1, 6), (2, 40), (3, 8), (4, 9)]), [2]);
        assert_eq!(misplaced(&[(0, 9), (1, 8), (2, 7)]), [0, 1, 2], "backwards");
    }

    #[test]
    fn the_majority_says_where_home_is() {
        let segment = segment(&[(0, 5), (1, 6), (2, 40), (3, 8)]);
        let home = majority(&segment, 12).unwrap();
        assert_eq!(home.slot_of(2, 12), Some(Slot::new(1, (1 << 20) + 7 * 4096)));
        assert_eq!(majority(&segment[1..3], 12), None);
    }
}
