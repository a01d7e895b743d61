//! Plans a batch: for every chunk that it touches, the new content and the place of that content.

use super::batch::{Batch, BatchItem, Below, Content, Placed};
use super::overlay::{ChunkOverlay, UNIT, Under};
use super::record::Recorder;
use super::state::BackgroundState;
use crate::area::SlotKind;
use crate::branch::{Base, Branch, ExternalBase, View};
use crate::catalog::PageKey;
use crate::catalog::Version;
use crate::catalog::VersionKey;
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::core::Core;
use crate::destage::Destager;
use crate::error::{Result, corrupt, no_space};
use crate::ids::{BranchId, Chunk, Epoch};
use crate::info::PreserveStats;
use crate::settings::{Method, Order};
use crate::space::placement::{Class, SlotRequest};
use crate::units::BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The changes that a batch makes.
#[derive(Default)]
pub(super) struct Plan {
    /// Map pages that change.
    pub(super) pages: Vec<(PageKey, MapPage)>,
    /// Versions that keep, for snapshots, the content that was there.
    pub(super) versions: Vec<Version>,
    /// Branches whose old contents were copied elsewhere, and whose slots are overwritten in place.
    pub(super) copied: BTreeSet<BranchId>,
    /// Whole chunks in new slots: written before the commit.
    pub(super) fresh: Vec<Placed>,
    /// Parts of chunks whose slot holds nothing that anything else needs. They are written at any
    /// time.
    pub(super) at_once: Vec<Placed>,
    /// Parts of chunks whose slot holds content that the commit makes known elsewhere, as a copy or
    /// in a history. They are written after the commit.
    pub(super) after: Vec<Placed>,
    /// No record of the journal repeats the writes over slots in use after a crash. So the sums of
    /// their units are unknown, durably, while they are written.
    pub(super) unrepeated: bool,
    /// The records of histories that were made of this batch in advance.
    pub(super) recorded: Vec<Recorder>,
    /// Promises without a journal record, for copies and for chunks that leave a failed physical
    /// volume: (log2 of the slot size, slots).
    pub(super) reserved: Vec<(SlotKind, u64)>,
    /// Slots that were taken from the promises of the batch's records.
    taken: Taken,
    /// Units of which the batch writes a part. The rest is kept, so it is verified before the
    /// commit (S3).
    pub(super) mixed: Vec<MixedUnit>,
    /// Change of each branch's number of slots.
    pub(super) slots: Vec<i64>,
    /// Cost of preserving, for each branch.
    pub(super) done: Vec<PreserveStats>,
}

/// By log2 of the slot size: the number of slots taken, and how many of these are for chunks that
/// leave a failed physical volume. A write over a chunk that has a slot may hold no promise.
type Taken = BTreeMap<SlotKind, (u64, u64)>;

impl Plan {
    /// The parts that the decisions about the chunks of a branch of the batch fill.
    fn outcome(&mut self, branch: u32) -> Outcome<'_> {
        Outcome {
            versions: &mut self.versions,
            fresh: &mut self.fresh,
            at_once: &mut self.at_once,
            after: &mut self.after,
            mixed: &mut self.mixed,
            copied: &mut self.copied,
            reserved: &mut self.reserved,
            taken: &mut self.taken,
            done: &mut self.done[branch as usize],
        }
    }

    /// Delays all overwrites until after the commit.
    pub(super) fn wait(&mut self) {
        self.after.append(&mut self.at_once);
        self.after.sort_by_key(|p| p.address);
    }
}

/// A unit of which a batch writes a part.
pub(super) struct MixedUnit {
    /// The place of its old content.
    pub(super) place: Slot,
    /// Index of the branch in the batch.
    pub(super) branch: u32,
    pub(super) block: u64,
    /// A reference of the batch named the slot.
    pub(super) referred: bool,
}

/// One chunk that a batch writes to.
pub(super) struct Target<'a> {
    pub(super) branch: &'a Arc<Branch>,
    pub(super) epoch: Epoch,
    /// What is in place is read before the commit, so it is overwritten after it. A history records
    /// it, or units of it are kept in part.
    pub(super) after_commit: bool,
    /// Index of the branch in the batch.
    pub(super) index: u32,
    pub(super) chunk: Chunk,
    pub(super) current: Option<Entry>,
    /// The entry of the chunk before this one.
    pub(super) neighbour: Option<Entry>,
}

impl Target<'_> {
    /// A request for a slot for content of the chunk.
    pub(super) fn slot_request(&self, class: Class) -> SlotRequest {
        SlotRequest::new(class, self.branch, self.chunk)
    }

    /// Returns the slot behind which the new slot is placed. Preserved or redirected content leaves
    /// the order: packed densely, it is written in few runs. Only behind a neighbour that was
    /// redirected before it, the chunk keeps the order.
    fn place_before(&self, kept_for: Option<Epoch>) -> Option<Slot> {
        let redirected = |e: &Entry| e.born == self.epoch && self.branch.method() == Method::Redirect;
        self.neighbour.filter(|e| kept_for.is_none() || redirected(e)).map(|e| e.slot)
    }
}

impl Destager {
    /// Plans `batch`. With `redo`, the catalog already has its preserve phase. Everything that has
    /// a slot is then written there again, at once. Nothing is allocated or freed, except for
    /// chunks whose physical volume has failed.
    pub(super) fn plan(&self, state: &mut BackgroundState, batch: &Batch, redo: bool) -> Result<Plan> {
        let branches = batch.branches.len();
        let mut plan = Plan {
            slots: vec![0; branches],
            done: vec![PreserveStats::default(); branches],
            ..Plan::default()
        };
        self.free_unowned(state, batch, redo)?;
        if !redo {
            self.core.take_sums(batch)?;
        }
        let page_of = |i: &BatchItem| (i.branch, MapPage::locate(i.chunk).0);
        for of_page in batch.items.chunk_by(|a, b| page_of(a) == page_of(b)) {
            let (index, number) = page_of(&of_page[0]);
            let branch = &batch.branches[index as usize];
            let key = PageKey::new(branch.id, number);
            let head = View::head(branch);
            let stored = self.core.map.cached(&head, number).map_or_else(|| self.core.map.read(key), Ok)?;
            let recorded = branch.cdp.log.read().settings.is_some();
            let mut page = None;
            for of_chunk in of_page.chunk_by(|a, b| a.chunk == b.chunk) {
                let before = page.as_ref().unwrap_or(&*stored);
                let chunk = of_chunk[0].chunk;
                let (_, at) = MapPage::locate(chunk);
                let neighbour = at.checked_sub(1).and_then(|i| before.get(i));
                let overlay = ChunkOverlay::of(of_chunk, 1 << branch.chunk_log2, self.core.sums.is_on());
                let target = Target {
                    branch,
                    epoch: batch.epochs[index as usize],
                    after_commit: !redo && (recorded || overlay.is_mixed()),
                    index,
                    chunk,
                    current: before.get(at),
                    neighbour: neighbour.filter(|e| e.slot != Slot::HOLE),
                };
                self.free_overtaken(state, &overlay, branch.slot_log2, redo)?;
                let mut outcome = plan.outcome(index);
                let (change, grown) = if redo {
                    (self.redo_chunk(state, &target, &overlay, &mut outcome)?, 0)
                } else {
                    self.plan_chunk(state, &target, &overlay, &mut outcome)?
                };
                plan.slots[index as usize] += grown;
                match change {
                    SlotChange::None => {}
                    SlotChange::Set(entry) => {
                        page.get_or_insert_with(|| (*stored).clone()).set(at, entry);
                    }
                    SlotChange::Removed => {
                        page.get_or_insert_with(|| (*stored).clone()).remove(at);
                    }
                }
            }
            plan.pages.extend(page.map(|page| (key, page)));
        }
        for placed in [&mut plan.fresh, &mut plan.at_once, &mut plan.after] {
            placed.sort_unstable_by_key(|p| p.address);
        }
        self.promise_moves(state, batch, redo, &mut plan)?;
        self.core.announce_mixed(&plan.mixed);
        if !redo {
            // A batch that is applied again was verified before its commit.
            self.core.verify_mixed(batch, &mut plan.mixed)?;
        }
        Ok(plan)
    }

    /// Promises the slots that chunks on a failed physical volume take beyond the promises of the
    /// batch's records.
    fn promise_moves(
        &self,
        state: &mut BackgroundState,
        batch: &Batch,
        redo: bool,
        plan: &mut Plan,
    ) -> Result<()> {
        // A batch that is applied again has used its promises up.
        let held: BTreeMap<SlotKind, u64> =
            if redo { BTreeMap::new() } else { batch.released().into_iter().collect() };
        for (kind, (taken, moved)) in &plan.taken {
            let held = held.get(kind).copied().unwrap_or(0);
            let missing = taken.saturating_sub(held).min(*moved);
            if missing > 0 && !self.borrow(state, *kind, missing) {
                return Err(no_space(
                    "write data of a failed physical volume to the others: they have no space",
                ));
            }
            plan.reserved.extend((missing > 0).then_some((*kind, missing)));
        }
        Ok(())
    }

    /// Plans one chunk. Returns the change of its entry, and by how much the branch's number of
    /// slots grows.
    ///
    /// The rule of preservation: a snapshot may see the old content (which was born by then) and
    /// not this write. Then the old content becomes a version that is valid up to the newest such
    /// snapshot, and the chunk is born again.
    fn plan_chunk(
        &self,
        state: &mut BackgroundState,
        target: &Target<'_>,
        overlay: &ChunkOverlay,
        out: &mut Outcome<'_>,
    ) -> Result<(SlotChange, i64)> {
        let (branch, epoch) = (target.branch, target.epoch);
        let size = 1u64 << branch.chunk_log2;
        let kept_for = target.current.and_then(|e| branch.newest_snapshot_seeing(e.born, epoch));
        let old = target.current.map(|e| e.slot).filter(|s| *s != Slot::HOLE);
        if let Some(slot) = overlay.referred {
            return self.take_over(state, target, overlay, (slot, kept_for), out);
        }
        if overlay.emptied && !overlay.needs_slot() {
            return self.plan_hole(state, target, kept_for, out);
        }
        let under = match (target.current, overlay.emptied) {
            (_, true) => Under::Zeros,
            (Some(_), false) => old.map_or(Under::Zeros, Under::Slot),
            (None, false) => self.core.under_new(target, overlay)?,
        };
        if matches!(under, Under::Covered) && !overlay.needs_slot() {
            return self.plan_hole(state, target, kept_for, out);
        }
        let on_failed = old.is_some_and(|slot| state.allocator.has_failed(slot.pv()));
        if let (Some(entry), Some(_), None) = (target.current, old, kept_for) {
            return self.overwrite(state, target, overlay, entry, out).map(|change| (change, 0));
        }
        if matches!(under, Under::Zeros) && !overlay.needs_slot() {
            return Ok((SlotChange::None, 0));
        }
        let (current, copies) = match (target.current, kept_for, branch.order()) {
            (Some(entry), Some(last), Order::Independent) => {
                let (born, copies) = self.copy_for_each(state, target, entry, last, out)?;
                (Some(Entry { born, ..entry }), copies)
            }
            (current, ..) => (current, 0),
        };
        let copied = old.filter(|_| kept_for.is_some() && branch.method() == Method::Copy && !on_failed);
        let class = if copied.is_some() { Class::Preserved } else { Class::Current };
        let request = target.slot_request(class).of_origin(old).behind(target.place_before(kept_for));
        let slot = state.allocator.allocate(&self.core.space, &request)?;
        out.take(branch.kind(), false);
        self.core.positions.allocated.fetch_add(1 << branch.slot_log2, Ordering::Relaxed);
        if let (Some(old), Some(last)) = (copied, kept_for) {
            let born = current.map_or(epoch, |e| e.born);
            out.copied_chunk(size);
            out.done.host_bytes += overlay.written();
            out.version(target, last, Entry { slot, born });
            out.fresh.push(Placed::copy(slot, size, old));
            let under = if overlay.emptied { Under::Zeros } else { Under::Kept };
            let mixed = overlay.place(old, size, under, out.after);
            out.note_mixed(target, mixed);
            out.copied.insert(branch.id);
            return Ok((SlotChange::Set(Entry { slot: old, born: epoch }), 1 + copies));
        }
        if let (Some(entry), Some(last)) = (current, kept_for) {
            out.version(target, last, entry);
        }
        if old.is_some() {
            out.redirected_chunk(size, overlay.written());
        }
        let filled_from = out.fresh.len();
        let mixed = overlay.place(slot, size, under, out.fresh);
        out.note_mixed(target, mixed);
        out.count_fills(filled_from);
        Ok((SlotChange::Set(Entry { slot, born: epoch }), 1 + copies))
    }

    /// Writes to a chunk whose slot nothing else needs. The write goes to that slot, unless its
    /// physical volume takes no more writes. Then it goes to a new slot elsewhere, together with
    /// the part of the old content that the batch leaves.
    fn overwrite(
        &self,
        state: &mut BackgroundState,
        target: &Target<'_>,
        overlay: &ChunkOverlay,
        entry: Entry,
        out: &mut Outcome<'_>,
    ) -> Result<SlotChange> {
        let branch = target.branch;
        if !state.allocator.has_failed(entry.slot.pv()) {
            let under = if overlay.emptied { Under::Zeros } else { Under::Kept };
            let mixed = overlay.place(entry.slot, 1 << branch.chunk_log2, under, out.overwriting(target));
            out.note_mixed(target, mixed);
            return Ok(SlotChange::None);
        }
        let request = target.slot_request(Class::Current).of_origin(Some(entry.slot));
        let slot = state.allocator.allocate(&self.core.space, &request)?;
        out.take(branch.kind(), true);
        self.core.positions.allocated.fetch_add(1 << branch.slot_log2, Ordering::Relaxed);
        let under = if overlay.emptied { Under::Zeros } else { Under::Slot(entry.slot) };
        let mixed = overlay.place(slot, 1 << branch.chunk_log2, under, out.fresh);
        out.note_mixed(target, mixed);
        state.allocator.free(entry.slot, branch.slot_log2)?;
        Ok(SlotChange::Set(Entry { slot, ..entry }))
    }

    /// Applies again to a chunk whose preserve phase is in the catalog already.
    fn redo_chunk(
        &self,
        state: &mut BackgroundState,
        target: &Target<'_>,
        overlay: &ChunkOverlay,
        out: &mut Outcome<'_>,
    ) -> Result<SlotChange> {
        match target.current.filter(|entry| entry.slot != Slot::HOLE) {
            Some(entry) => self.overwrite(state, target, overlay, entry, out),
            None if overlay.needs_slot() || overlay.referred.is_some() => Err(corrupt(format!(
                "apply the journal again: chunk {} of branch {} has no slot, but was preserved",
                target.chunk, target.branch.id
            ))),
            None => Ok(SlotChange::None),
        }
    }

    /// Copies in the independent order. The newest snapshot that sees the old content gets its
    /// slot. Every older one gets a copy of its own. These copies are optional: where there is no
    /// space, the remaining snapshots share the old slot. Returns the first epoch that the old slot
    /// serves, and the number of copies.
    pub(super) fn copy_for_each(
        &self,
        state: &mut BackgroundState,
        target: &Target<'_>,
        current: Entry,
        newest: Epoch,
        out: &mut Outcome<'_>,
    ) -> Result<(Epoch, i64)> {
        let branch = target.branch;
        let older: Vec<Epoch> = branch.frozen.read().range(current.born..newest).copied().collect();
        let mut born = current.born;
        let mut copies = 0;
        for last in older {
            let slot = if current.slot == Slot::HOLE {
                Slot::HOLE
            } else if self.borrow(state, branch.kind(), 1) {
                out.reserved.push((branch.kind(), 1));
                let request = target.slot_request(Class::Preserved).of_origin(Some(current.slot));
                let slot = state.allocator.allocate(&self.core.space, &request)?;
                self.core.positions.allocated.fetch_add(1 << branch.slot_log2, Ordering::Relaxed);
                out.fresh.push(Placed::copy(slot, 1 << branch.chunk_log2, current.slot));
                copies += 1;
                out.copied_chunk(1 << branch.chunk_log2);
                slot
            } else {
                break;
            };
            out.version(target, last, Entry { slot, born: last });
            born = last.next();
            // Readers that found the old slot, which now belongs to another snapshot alone, read
            // again.
            out.copied.insert(branch.id);
        }
        Ok((born, copies))
    }

    /// Plans a chunk that becomes a hole as a whole.
    fn plan_hole(
        &self,
        state: &mut BackgroundState,
        target: &Target<'_>,
        kept_for: Option<Epoch>,
        out: &mut Outcome<'_>,
    ) -> Result<(SlotChange, i64)> {
        let (change, freed) = hole(target.branch, target.epoch, target.current, kept_for);
        if let (Some(entry), Some(last)) = (target.current, kept_for)
            && !matches!(change, SlotChange::None)
        {
            out.version(target, last, entry);
        }
        if let Some(slot) = freed {
            state.allocator.free(slot, target.branch.slot_log2)?;
        }
        Ok((change, -(freed.is_some() as i64)))
    }
}

impl Core {
    /// Finds what lies under a chunk for which the branch has no entry. What its bases had staged
    /// is in place: their records come before the branch's own.
    fn under_new(&self, target: &Target<'_>, overlay: &ChunkOverlay) -> Result<Under> {
        let head = View::head(target.branch);
        match self.find_below(&head, target.chunk)? {
            Below::Slot(slot) => Ok(Under::Slot(slot)),
            Below::Zeros => Ok(Under::Zeros),
            // The content of an image or a moment was materialized before the first write to a part
            // of the chunk.
            Below::External(external) => {
                let start = target.chunk.start(target.branch.chunk_log2);
                let shown = external.shown().saturating_sub(start);
                if overlay.covers(shown.min(1 << target.branch.chunk_log2)) {
                    return Ok(Under::Covered);
                }
                Err(corrupt(format!(
                    "write a part of chunk {} of branch {}: the rest was never materialized",
                    target.chunk, target.branch.id
                )))
            }
        }
    }

    /// Finds the content of a chunk for which a line has no entry.
    pub(crate) fn find_below(&self, line: &View, chunk: Chunk) -> Result<Below> {
        let (number, at) = MapPage::locate(chunk);
        let mut base = line.branch.base();
        loop {
            match base {
                None => return Ok(Below::Zeros),
                Some(Base::Image(image)) => return Ok(Below::External(ExternalBase::Image(image))),
                Some(Base::View(line)) => {
                    if let Some(at) = line.at {
                        return Ok(Below::External(ExternalBase::Moment(at)));
                    }
                    if let Some(entry) = self.map.load(&line, number)?.get(at) {
                        let hole = entry.slot == Slot::HOLE;
                        return Ok(if hole { Below::Zeros } else { Below::Slot(entry.slot) });
                    }
                    base = line.branch.base();
                }
            }
        }
    }
}

/// The parts of a [`Plan`] that the decisions about one branch's chunks fill.
pub(super) struct Outcome<'a> {
    pub(super) versions: &'a mut Vec<Version>,
    pub(super) fresh: &'a mut Vec<Placed>,
    pub(super) at_once: &'a mut Vec<Placed>,
    pub(super) after: &'a mut Vec<Placed>,
    pub(super) mixed: &'a mut Vec<MixedUnit>,
    pub(super) copied: &'a mut BTreeSet<BranchId>,
    pub(super) reserved: &'a mut Vec<(SlotKind, u64)>,
    pub(super) taken: &'a mut Taken,
    pub(super) done: &'a mut PreserveStats,
}

impl Outcome<'_> {
    /// The list for writes over a slot that no snapshot sees. Old content that is read from the
    /// slot before the commit is read again after a crash before the commit. Such writes therefore
    /// wait for the commit.
    fn overwriting(&mut self, target: &Target<'_>) -> &mut Vec<Placed> {
        if target.after_commit { self.after } else { self.at_once }
    }

    /// Notes units of a chunk whose old content is kept in part: its place, and the byte of the
    /// chunk.
    pub(super) fn note_mixed(&mut self, target: &Target<'_>, units: Vec<(Slot, u32)>) {
        self.note_mixed_of(target, units, false);
    }

    /// Notes such units of a chunk. `referred` tells whether a reference of the batch named their
    /// slot.
    pub(super) fn note_mixed_of(&mut self, target: &Target<'_>, units: Vec<(Slot, u32)>, referred: bool) {
        let first = target.chunk.start(target.branch.chunk_log2) / BLOCK;
        let unit = |(place, at): (Slot, u32)| MixedUnit {
            place,
            branch: target.index,
            block: first + u64::from(at / UNIT),
            referred,
        };
        self.mixed.extend(units.into_iter().map(unit));
    }

    /// Counts a slot that was taken without a promise of its own.
    pub(super) fn take(&mut self, kind: SlotKind, moved: bool) {
        let (taken, moves) = self.taken.entry(kind).or_default();
        (*taken, *moves) = (*taken + 1, *moves + u64::from(moved));
    }

    /// Counts what is read for the new slots from this one on.
    fn count_fills(&mut self, from: usize) {
        for read in self.fresh[from..].iter().filter(|p| matches!(p.fill, Content::Slot(_))) {
            self.done.fill_reads += 1;
            self.done.fill_bytes += u64::from(read.len);
        }
    }

    /// Counts a chunk whose new content goes to another place, because snapshots see the old
    /// content.
    pub(super) fn redirected_chunk(&mut self, size: u64, written: u64) {
        self.done.redirects += 1;
        self.done.redirected_bytes += size;
        self.done.host_bytes += written;
    }

    fn copied_chunk(&mut self, size: u64) {
        self.done.copies += 1;
        self.done.copied_bytes += size;
    }

    pub(super) fn version(&mut self, target: &Target<'_>, last: Epoch, entry: Entry) {
        self.versions.push(Version { key: VersionKey::new(target.branch.id, target.chunk, last), entry });
    }
}

/// Returns the change of a chunk's entry, and the slot that becomes free, when the chunk is
/// discarded in `epoch`. Over a base a hole needs an entry; elsewhere a missing entry has the same
/// meaning. An entry that already is a hole stays as it is, whichever snapshots see it.
pub(crate) fn hole(
    branch: &Branch,
    epoch: Epoch,
    current: Option<Entry>,
    kept_for: Option<Epoch>,
) -> (SlotChange, Option<Slot>) {
    let slot = current.map(|e| e.slot).filter(|s| *s != Slot::HOLE);
    let freed = slot.filter(|_| kept_for.is_none());
    let already = current.is_some_and(|e| e.slot == Slot::HOLE);
    let change = match (current, branch.has_base()) {
        (Some(_), true) if already => SlotChange::None,
        (_, true) => SlotChange::Set(Entry { slot: Slot::HOLE, born: epoch }),
        (Some(_), false) => SlotChange::Removed,
        (None, false) => SlotChange::None,
    };
    (change, freed)
}

pub(crate) enum SlotChange {
    None,
    Set(Entry),
    Removed,
}
