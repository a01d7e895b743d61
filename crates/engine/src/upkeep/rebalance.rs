//! Moves data to the physical volumes on which Share places it now. It follows a change of the
//! physical volumes, and an operator may begin it.
//!
//! Each step works like a step of an evacuation: it copies a few chunks, syncs and commits. What is
//! in place already is skipped, so a step that is repeated after a crash does no harm. A chunk
//! whose place is full stays where it is until the next round.

use super::evacuate::Moves;
use crate::branch::Branch;
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::catalog::{PageKey, PassPosition, RebalanceRecord, Version, VersionKey};
use crate::destage::Destager;
use crate::destage::state::BackgroundState;
use crate::error::Result;
use crate::ids::Chunk;
use crate::shortage::Task;

/// Number of map pages that one step reads.
const PAGES_PER_STEP: usize = 64;
/// Number of versions that one step reads.
const VERSIONS_PER_STEP: usize = 4096;
/// Number of bytes that a step moves (at least one chunk).
const BYTES_PER_STEP: u64 = 4 << 20;
/// The largest number of rounds. What is passed over in the last round stays where it is.
const MAX_ROUNDS: u32 = 6;
/// Number of polls of the grace period after which a slot is free, if no reader holds it.
const POLLS: u32 = 3;
const NANOSECOND: u64 = 1_000_000_000;
/// The longest pause between two steps, in nanoseconds.
const LONGEST_PAUSE: u64 = 60 * NANOSECOND;

impl Destager {
    /// Takes a step of the pass. False when there is none, or when it may not continue now.
    pub(crate) fn rebalance(&self, state: &mut BackgroundState) -> Result<bool> {
        if !state.rebalancing.record.running || state.is_half_done() {
            // Slots of the journal's last batch may still be half written. Nothing moves before
            // they are in place.
            return Ok(false);
        }
        if !self.core.names.read().shares() {
            state.rebalancing.record.running = false;
            return Ok(false);
        }
        let now = self.core.world.clock.monotonic();
        if now < state.rebalancing.not_before {
            return Ok(false);
        }
        match self.rebalance_step(state, now) {
            Ok(()) => Ok(true),
            Err(error) => {
                // Other work comes first then.
                state.rebalancing.not_before = now.saturating_add(NANOSECOND);
                if error.is_pv_away() {
                    self.take_back(state).map_err(|e| self.core.fault.poison(&e))?;
                    return Ok(false);
                }
                Err(self.failed(state, Task::Upkeep, error))
            }
        }
    }

    fn rebalance_step(&self, state: &mut BackgroundState, now: u64) -> Result<()> {
        let mut record = state.rebalancing.record;
        if record.round > 0 && record.position == PassPosition::default() {
            // Slots that the last round retired become free when their readers are gone.
            for _ in 0..POLLS {
                self.poll_retired(state)?;
            }
        }
        let mut moves = Moves::new(BYTES_PER_STEP);
        let next = match record.position {
            PassPosition::Map(from) => self.rebalance_maps(state, from, &mut record, &mut moves)?,
            PassPosition::Versions(from) => self.rebalance_versions(state, from, &mut record, &mut moves)?,
        };
        let moved = moves.bytes();
        record.in_round += moved;
        record.moved += moved;
        let ended = next.is_none();
        match next {
            Some(position) => record.position = position,
            None if record.passed_over && record.in_round > 0 && record.round + 1 < MAX_ROUNDS => {
                let RebalanceRecord { rate, round, moved, .. } = record;
                record = RebalanceRecord {
                    running: true,
                    rate,
                    round: round + 1,
                    moved,
                    ..RebalanceRecord::default()
                };
            }
            None => record.running = false,
        }
        // The commit of the moves has the progress, too. After an error it is what it was.
        let before = std::mem::replace(&mut state.rebalancing.record, record);
        let committed = self.commit_moves(state, moves);
        if let Err(error) = committed {
            state.rebalancing.record = before;
            return Err(error);
        }
        if ended && moved == 0 {
            self.commit_alone(state)?;
        }
        let pause = moved.saturating_mul(NANOSECOND).checked_div(record.rate).unwrap_or(0);
        state.rebalancing.not_before = now.saturating_add(pause.min(LONGEST_PAUSE));
        if ended && !record.running {
            tracing::info!(moved = record.moved, "rebalancing has ended");
        }
        Ok(())
    }

    /// Moves chunks of a few map pages. Returns the place at which the pass continues.
    fn rebalance_maps(
        &self,
        state: &mut BackgroundState,
        from: PageKey,
        record: &mut RebalanceRecord,
        moves: &mut Moves,
    ) -> Result<Option<PassPosition>> {
        let mut pages: Vec<(PageKey, MapPage)> = Vec::new();
        let most = self.core.catalog_room.pages(PAGES_PER_STEP);
        let next = self.core.catalog.visit_pages(from, most, &mut |key, page| {
            pages.push((key, page?));
            Ok(())
        })?;
        for (key, mut page) in pages {
            let Some(branch) = self.movable(state, key.branch) else { continue };
            let mut touched = false;
            let entries: Vec<(usize, Entry)> = page.iter().filter(|(_, e)| e.slot != Slot::HOLE).collect();
            for (at, entry) in &entries {
                if moves.is_spent() {
                    moves.pages.extend(touched.then_some((key, page)));
                    return Ok(Some(PassPosition::Map(key)));
                }
                let chunk = Chunk::in_page(key.page, *at);
                if let Some(slot) = self.move_to_place(state, &branch, (chunk, entry.slot), record, moves)? {
                    page.set(*at, Entry { slot, ..*entry });
                    touched = true;
                }
            }
            record.seen += (entries.len() as u64) << branch.chunk_log2;
            moves.pages.extend(touched.then_some((key, page)));
        }
        Ok(Some(next.map_or(PassPosition::VERSIONS, PassPosition::Map)))
    }

    /// Moves chunks of a few versions. Returns the place at which the pass continues.
    fn rebalance_versions(
        &self,
        state: &mut BackgroundState,
        from: VersionKey,
        record: &mut RebalanceRecord,
        moves: &mut Moves,
    ) -> Result<Option<PassPosition>> {
        let mut versions: Vec<Version> = Vec::new();
        let next = self.core.catalog.visit_versions(from, VERSIONS_PER_STEP, &mut |_, version| {
            versions.extend(Some(version?).filter(|v| v.entry.slot != Slot::HOLE));
            Ok(())
        })?;
        for version in versions {
            let Some(branch) = self.movable(state, version.key.branch) else { continue };
            if moves.is_spent() {
                return Ok(Some(PassPosition::Versions(version.key)));
            }
            let of = (version.key.chunk, version.entry.slot);
            if let Some(slot) = self.move_to_place(state, &branch, of, record, moves)? {
                moves.versions.push(Version { entry: Entry { slot, ..version.entry }, ..version });
            }
            record.seen += branch.chunk_size();
        }
        Ok(next.map(PassPosition::Versions))
    }

    /// Moves the content of a chunk in the slot `from` to the physical volume on which Share places
    /// the chunk. `None` if it is there, if there is no room, or if the branch has another
    /// placement.
    fn move_to_place(
        &self,
        state: &mut BackgroundState,
        branch: &Branch,
        (chunk, from): (Chunk, Slot),
        record: &mut RebalanceRecord,
        moves: &mut Moves,
    ) -> Result<Option<Slot>> {
        let kind = branch.kind();
        let place = state.allocator.share_of(branch, chunk);
        // What leaves a drained physical volume is moved elsewhere, and a failed one is not read.
        let Some(pv) = place.filter(|pv| *pv != from.pv() && state.allocator.gives(from.pv())) else {
            return Ok(None);
        };
        if !self.borrow(state, kind, 1) {
            record.passed_over = true;
            return Ok(None);
        }
        let Some(to) = state.allocator.take_run(&self.core.space, kind, 1, Some(pv))? else {
            self.return_last(state);
            record.passed_over = true;
            return Ok(None);
        };
        self.copy_chunk(state, branch, from, to)?;
        moves.note(branch, to, 1);
        Ok(Some(to))
    }
}
