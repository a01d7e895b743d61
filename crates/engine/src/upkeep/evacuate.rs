//! Moves data off physical volumes that are to be removed. Each step copies a few chunks, syncs and
//! commits.

use crate::area::SlotKind;
use crate::branch::Branch;
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::catalog::{PageKey, PassPosition, Version, VersionKey};
use crate::core::Core;
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::disk::{Cause, SyncPurpose};
use crate::error::Result;
use crate::ids::{BranchId, Chunk};
use crate::shortage::Task;
use crate::space::placement::{Class, SlotRequest};
use crate::space::pv::Pv;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of map pages that one step reads. `BYTES_PER_STEP` is the number of bytes that it moves
/// (at least one chunk).
const PAGES_PER_STEP: usize = 64;
const BYTES_PER_STEP: u64 = 4 << 20;
const VERSIONS_PER_STEP: usize = 4096;
/// Nanoseconds from a physical volume that did not answer to the next attempt.
const PATIENCE: u64 = 1_000_000_000;

impl Destager {
    /// Moves a few chunks away from draining physical volumes. False when nothing is to be moved,
    /// or nothing can be.
    pub(crate) fn evacuate(&self, state: &mut BackgroundState) -> Result<bool> {
        let draining = |state: &BackgroundState, pv: &u32| {
            state.allocator.is_draining(*pv) && state.allocator.used_extents(*pv) > 0
        };
        let any = self.core.names.read().pvs.keys().any(|pv| draining(state, pv));
        if !any {
            self.core.positions.drain_stalled.store(false, Ordering::Relaxed);
        }
        // Slots of the journal's last batch may still be half written. Nothing moves before they
        // are in place.
        let now = self.core.world.clock.monotonic();
        if !any || state.evacuated || now < state.evacuate_after || state.is_half_done() {
            return Ok(false);
        }
        match self.evacuate_step(state) {
            // Other work continues in the meantime.
            Err(away) if away.is_pv_away() => {
                self.take_back(state).map_err(|e| self.core.fault.poison(&e))?;
                if !self.core.positions.drain_stalled.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%away, "moving data off a physical volume waits: a physical volume does not answer");
                }
                state.evacuate_after = now.saturating_add(PATIENCE);
                Ok(false)
            }
            done => done.map_err(|e| self.failed(state, Task::Upkeep, e)),
        }
    }

    fn evacuate_step(&self, state: &mut BackgroundState) -> Result<bool> {
        let _cause = Cause::Move.begin();
        if state.allocator.free_bad()? {
            self.commit_alone(state)?;
        }
        let mut moves = Moves::new(BYTES_PER_STEP);
        let next = match state.evacuate_from {
            PassPosition::Map(from) => self.evacuate_maps(state, from, &mut moves)?,
            PassPosition::Versions(from) => self.evacuate_versions(state, from, &mut moves)?,
        };
        let short = moves.short;
        self.commit_moves(state, moves)?;
        state.evacuate_from = next.unwrap_or_default();
        state.evacuated = short || next.is_none();
        if short && !self.core.positions.drain_stalled.swap(short, Ordering::Relaxed) {
            tracing::warn!("moving data off a physical volume waits for space on the others");
        }
        self.core.positions.drain_stalled.store(short, Ordering::Relaxed);
        Ok(true)
    }

    /// Moves chunks of a few map pages. Returns the place at which the pass continues.
    fn evacuate_maps(
        &self,
        state: &mut BackgroundState,
        from: PageKey,
        moves: &mut Moves,
    ) -> Result<Option<PassPosition>> {
        let mut pages: Vec<(PageKey, MapPage)> = Vec::new();
        let most = self.core.catalog_room.pages(PAGES_PER_STEP);
        let next = self.core.catalog.visit_pages(from, most, &mut |key, page| {
            let page = page?;
            if page.iter().any(|(_, e)| leaves(state, e)) {
                pages.push((key, page));
            }
            Ok(())
        })?;
        for (key, mut page) in pages {
            let Some(branch) = self.movable(state, key.branch) else { continue };
            let mut touched = false;
            let leaving: Vec<(usize, Entry)> = page.iter().filter(|(_, e)| leaves(state, *e)).collect();
            for (at, entry) in leaving {
                let of = (Class::Current, Chunk::in_page(key.page, at));
                let Some(slot) = self.move_one(state, &branch, of, entry.slot, moves)? else {
                    moves.pages.extend(touched.then_some((key, page)));
                    return Ok(Some(PassPosition::Map(key)));
                };
                page.set(at, Entry { slot, ..entry });
                touched = true;
            }
            moves.pages.extend(touched.then_some((key, page)));
        }
        Ok(Some(next.map_or(PassPosition::VERSIONS, PassPosition::Map)))
    }

    /// Moves chunks of a few versions. Returns the place at which the pass continues.
    fn evacuate_versions(
        &self,
        state: &mut BackgroundState,
        from: VersionKey,
        moves: &mut Moves,
    ) -> Result<Option<PassPosition>> {
        let mut versions: Vec<Version> = Vec::new();
        let next = self.core.catalog.visit_versions(from, VERSIONS_PER_STEP, &mut |_, version| {
            versions.extend(Some(version?).filter(|v| leaves(state, v.entry)));
            Ok(())
        })?;
        for version in versions {
            let Some(branch) = self.movable(state, version.key.branch) else { continue };
            let of = (Class::Preserved, version.key.chunk);
            let Some(slot) = self.move_one(state, &branch, of, version.entry.slot, moves)? else {
                return Ok(Some(PassPosition::Versions(version.key)));
            };
            moves.versions.push(Version { entry: Entry { slot, ..version.entry }, ..version });
        }
        Ok(next.map(PassPosition::Versions))
    }

    /// Returns the branch, unless its slots are about to be freed anyway.
    pub(super) fn movable(&self, state: &BackgroundState, id: BranchId) -> Option<Arc<Branch>> {
        self.core
            .names
            .read()
            .branches
            .get(&id)
            .filter(|b| !state.orphan_branches.contains_key(&b.id))
            .cloned()
    }

    /// Moves content of a chunk. `None` when this step has done enough, or when there is no space:
    /// a move takes space like a write.
    pub(super) fn move_one(
        &self,
        state: &mut BackgroundState,
        branch: &Branch,
        (class, chunk): (Class, Chunk),
        from: Slot,
        moves: &mut Moves,
    ) -> Result<Option<Slot>> {
        if moves.budget == 0 {
            return Ok(None);
        }
        if !self.borrow(state, branch.kind(), 1) {
            moves.short = true;
            return Ok(None);
        }
        let request = SlotRequest::new(class, branch, chunk).of_origin(Some(from));
        let to = state.allocator.allocate(&self.core.space, &request)?;
        self.copy_chunk(state, branch, from, to)?;
        moves.note(branch, to, 1);
        Ok(Some(to))
    }

    /// Copies a chunk to a slot that was allocated for it, and frees the chunk's old slot.
    pub(super) fn copy_chunk(
        &self,
        state: &mut BackgroundState,
        branch: &Branch,
        from: Slot,
        to: Slot,
    ) -> Result<()> {
        let size = branch.chunk_size();
        self.core.copy_slot(from, to, size)?;
        state.allocator.free(from, branch.slot_log2)?;
        self.core.positions.bytes.fetch_add(size, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn commit_moves(&self, state: &mut BackgroundState, moves: Moves) -> Result<()> {
        if moves.written.is_empty() {
            return Ok(());
        }
        for id in moves.written {
            self.core.pvs.get(id)?.sync(SyncPurpose::Preserve)?;
        }
        // A shortage of space can be waited for here.
        self.core.sums.flush()?;
        let mut txn = self.core.catalog.begin()?;
        txn.put_pages(moves.pages.iter().map(|(key, page)| (*key, page)))?;
        txn.put_versions(moves.versions.iter())?;
        self.commit_aside(state, txn, &moves.released)?;
        let of_pages = moves.pages.iter().map(|(key, _)| key.branch);
        let branches: BTreeSet<BranchId> =
            of_pages.chain(moves.versions.iter().map(|v| v.key.branch)).collect();
        self.core.publish(moves.pages);
        branches.into_iter().for_each(|branch| self.core.map.forget_frozen(branch));
        Ok(())
    }
}

/// Number of bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

impl Core {
    /// Copies `size` bytes of a slot, and their sums, to a new slot. What can't be read, or is
    /// damaged, is damaged there too.
    pub(super) fn copy_slot(&self, from: Slot, to: Slot, size: u64) -> Result<()> {
        let (source, target) = (self.pvs.get(from.pv())?, self.pvs.get(to.pv())?);
        let mut buffer = vec![0; size.min(PIECE) as usize];
        for done in (0..size).step_by(buffer.len()) {
            let (from, to) = (from.offset() + done, to.offset() + done);
            let lost = self.read_parts(&source, &mut buffer, from)?;
            self.write_copy(&target, &buffer, to, &lost)?;
            self.copy_sums((&source, from), (&target, to), &buffer, &lost)?;
        }
        Ok(())
    }

    /// Writes the copied bytes to a new slot. The caller sets their sums. `lost` are the parts that
    /// could not be read.
    pub(super) fn write_copy(&self, target: &Pv, bytes: &[u8], at: u64, lost: &[Range<usize>]) -> Result<()> {
        self.stamping.check()?;
        let failed = |e| target.write_failed(format!("copy a chunk to {} at byte {at}", target.path), e);
        target.disk.write_at(bytes, at).map_err(failed)?;
        let place = |part: &Range<usize>| at + part.start as u64..at + part.end as u64;
        let lost: Vec<Range<u64>> = lost.iter().map(place).collect();
        self.damage.written(target.id, at..at + bytes.len() as u64, &lost);
        Ok(())
    }
}

/// The moves of one step.
#[derive(Default)]
pub(super) struct Moves {
    /// Bytes that may still be moved.
    budget: u64,
    /// Bytes that were moved.
    bytes: u64,
    /// There was no space for further moves.
    pub(super) short: bool,
    pub(super) pages: Vec<(PageKey, MapPage)>,
    pub(super) versions: Vec<Version>,
    released: Vec<(SlotKind, u64)>,
    /// Physical volumes that were written to.
    written: BTreeSet<u32>,
}

impl Moves {
    /// Starts with no moves, and `budget` bytes to move (at least one chunk).
    pub(super) fn new(budget: u64) -> Moves {
        Moves { budget, ..Moves::default() }
    }

    /// Notes that `chunks` chunks were copied to `to` and the slots behind it.
    pub(super) fn note(&mut self, branch: &Branch, to: Slot, chunks: u64) {
        self.released.push((branch.kind(), chunks));
        self.written.insert(to.pv());
        self.bytes += chunks << branch.chunk_log2;
        self.budget = self.budget.saturating_sub(chunks << branch.chunk_log2);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether this step has done enough.
    pub(super) fn is_spent(&self) -> bool {
        self.budget == 0
    }
}

fn leaves(state: &BackgroundState, entry: Entry) -> bool {
    entry.slot != Slot::HOLE && state.allocator.is_draining(entry.slot.pv())
}
