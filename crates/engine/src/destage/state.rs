//! The state of background work, which one thread at a time may use: the allocator, the position in
//! the journal, and the lists of jobs.

use super::batch::Batch;
use super::lend::Lending;
use super::rebuilds::Rebuilds;
use super::record::Recorder;
use crate::area::SlotKind;
use crate::branch::Branch;
use crate::catalog::{FillRecord, PassPosition, Positions, RebalanceRecord, Txn};
use crate::error::Result;
use crate::grace::Retired;
use crate::ids::{BranchId, Lsn, SnapshotId, VolumeId};
use crate::journal::{Cursor, SegmentFile};
use crate::space::allocator::{Allocator, FreedSlot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state that one thread at a time may use: the allocator, how far the journal is carried out,
/// and jobs.
pub(crate) struct BackgroundState {
    pub(crate) allocator: Allocator,
    /// The next record to destage.
    pub(crate) cursor: Cursor,
    /// The end of the part of the journal that destage is carrying out.
    pub(crate) ends: Option<Cursor>,
    /// The batch behind `ends`, if it was collected in advance.
    pub(crate) ahead: Option<Ahead>,
    /// Slots promised to background work since the last commit: (log2 of the slot size, slots).
    pub(crate) lent: Vec<(SlotKind, u64)>,
    /// The positions as of the last commit.
    pub(crate) committed: Positions,
    /// Everything up to this LSN is in place, durably. The catalog may not have that yet.
    pub(crate) destaged: Lsn,
    /// The batch behind this LSN was taken back once, so that damage could be repaired first.
    pub(crate) postponed: Option<Lsn>,
    /// Branches whose last records are in place, and not yet published as settled.
    pub(crate) landed: Vec<Arc<Branch>>,
    /// What writers want to be lent.
    pub(crate) lending: Lending,
    /// Branches without a writer that may still have something to free: (branch, map page at which
    /// that continues).
    pub(crate) orphan_branches: BTreeMap<BranchId, u64>,
    /// Snapshots that were deleted. They wait for what rests on them, or are being dissolved.
    pub(crate) deleted: BTreeSet<SnapshotId>,
    /// Deleted volumes that have a history. The history is dropped when nothing rests on it.
    pub(crate) deleted_with_history: BTreeSet<VolumeId>,
    /// Branches with an anchor behind which recording is to begin, by the anchor's LSN.
    pub(crate) unconfirmed_anchors: BTreeMap<Lsn, BranchId>,
    /// Branches whose history has expired, and on which something rests.
    pub(crate) pinned_expired: BTreeSet<BranchId>,
    /// Whether marks may have expired.
    pub(crate) marks_expire: bool,
    /// Steps of freeing that are owed for destaged batches, counted in parts of a step: see
    /// [`crate::destage::Destager::owe_freeing`].
    pub(crate) owed: u32,
    /// Whether moving data off draining physical volumes is next. It takes turns with freeing.
    pub(crate) moves_next: bool,
    /// The place at which moving data off draining physical volumes continues.
    pub(crate) evacuate_from: PassPosition,
    /// A pass over all maps found nothing (more) that could be moved.
    pub(crate) evacuated: bool,
    /// Time of the monotonic clock after which moving continues. It is set when a physical volume
    /// did not answer.
    pub(crate) evacuate_after: u64,
    /// The pass that moves data to the places that Share gives it.
    pub(crate) rebalancing: Rebalancing,
    /// How far rebuilds of members of mirrors have come.
    pub(crate) rebuilds: Rebuilds,
    /// Relocations in progress, by branch.
    pub(crate) relocating: BTreeMap<BranchId, Relocation>,
    /// Branches that are being filled or flattened.
    pub(crate) filling: BTreeMap<BranchId, FlattenJob>,
    /// For each branch, the last segment of its history for which harder compression was tried.
    pub(crate) compacted: BTreeMap<BranchId, u64>,
    /// Time of the monotonic clock from which harder compression may continue.
    pub(crate) compact_from: u64,
    /// What the harder compression does now.
    pub(crate) compacting: Compacting,
    /// The last step sorted runs, so other work has its turn.
    pub(crate) sorted: bool,
    /// The volume whose retention was enforced last.
    pub(crate) forgot_of: VolumeId,
    pub(crate) retired_slots: Retired<FreedSlot>,
    /// Slots that became bad, and that readers may still hold.
    pub(crate) retired_bad: Retired<FreedSlot>,
    pub(crate) retired_files: Retired<Arc<SegmentFile>>,
    /// The number of bytes written, and of calls for work, at the last idle step.
    pub(crate) seen: (Lsn, u64),
    /// Time of the monotonic clock at that step.
    pub(crate) seen_at: u64,
}

impl BackgroundState {
    pub(crate) fn new(allocator: Allocator, cursor: Cursor, committed: Positions) -> Self {
        BackgroundState {
            allocator,
            cursor,
            ends: None,
            ahead: None,
            lent: Vec::new(),
            destaged: committed.destaged_lsn,
            postponed: None,
            landed: Vec::new(),
            committed,
            lending: Lending::default(),
            orphan_branches: BTreeMap::new(),
            rebalancing: Rebalancing::default(),
            rebuilds: Rebuilds::default(),
            deleted: BTreeSet::new(),
            deleted_with_history: BTreeSet::new(),
            unconfirmed_anchors: BTreeMap::new(),
            pinned_expired: BTreeSet::new(),
            marks_expire: true,
            owed: 0,
            moves_next: false,
            evacuate_from: PassPosition::default(),
            evacuated: false,
            evacuate_after: 0,
            relocating: BTreeMap::new(),
            filling: BTreeMap::new(),
            compacted: BTreeMap::new(),
            compact_from: 0,
            compacting: Compacting::Nothing,
            sorted: false,
            forgot_of: VolumeId(0),
            retired_slots: Retired::default(),
            retired_bad: Retired::default(),
            retired_files: Retired::default(),
            seen: (Lsn::ZERO, 0),
            seen_at: 0,
        }
    }

    /// Returns whether a batch is preserved that is not in place.
    pub(crate) fn is_half_done(&self) -> bool {
        self.committed.preserved_lsn > self.destaged
    }

    /// (preserved, destaged) of a commit that carries out no record.
    pub(crate) fn current_positions(&self) -> (Lsn, Lsn) {
        (self.committed.preserved_lsn.max(self.destaged), self.destaged)
    }
}

/// The next batch, collected while the one before it is carried out.
pub(crate) struct Ahead {
    pub(crate) from: Cursor,
    pub(crate) to: Cursor,
    pub(crate) batch: Batch,
}

impl Ahead {
    /// Returns whether logs hold records of this batch that no commit knows of.
    pub(crate) fn is_recorded(&self) -> bool {
        !self.batch.recorded.is_empty()
    }

    /// Returns whether the log of this branch holds records of this batch that no commit knows of.
    pub(crate) fn records(&self, branch: BranchId) -> bool {
        self.batch.recorded.iter().any(|recorder| recorder.branch_id() == branch)
    }

    /// Number of bytes in logs that no commit knows of.
    pub(crate) fn recorded_bytes(&self) -> u64 {
        self.batch.recorded.iter().map(Recorder::bytes).sum()
    }
}

/// What the harder compression of history does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compacting {
    Nothing,
    /// It compresses a segment of this many bytes.
    Segment(u64),
    /// There was no room for a second edition of the last segment that it tried.
    LacksRoom,
}

impl BackgroundState {
    /// Returns the first time after `now` at which a task goes on that pauses because of its rate.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        let rebalancing = self.rebalancing.record.running.then_some(self.rebalancing.not_before);
        let moves = self.relocating.values().map(|job| job.not_before);
        let fills = self.filling.values().map(|job| job.not_before);
        self.rebuilds.pauses().chain(rebalancing).chain(moves).chain(fills).filter(|due| *due > now).min()
    }
}

/// A branch that is being filled, until it needs its base no more.
#[derive(Debug, Clone)]
pub(crate) struct FlattenJob {
    pub(crate) record: FillRecord,
    /// Time of the monotonic clock before which no further step is taken.
    pub(crate) not_before: u64,
    /// Why the job can't continue.
    pub(crate) stalled: Option<String>,
}

impl FlattenJob {
    /// A job that begins where the catalog's record is.
    pub(crate) fn of(record: FillRecord) -> FlattenJob {
        FlattenJob { record, not_before: 0, stalled: None }
    }
}

/// The relocation of a volume's chunks to their home.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relocation {
    /// Most bytes to move per second; 0 means no limit.
    pub(crate) rate: u64,
    /// Time of the monotonic clock before which no further step is taken.
    pub(crate) not_before: u64,
    /// The map page with which the relocation continues.
    pub(crate) page: u64,
    /// Under the snap-aware placement: the slices before this one have the regions to which their
    /// chunks move.
    pub(crate) next_slice: u64,
    pub(crate) pass: u32,
    /// Bytes moved in this pass; `moved` counts the bytes of all passes.
    pub(crate) in_pass: u64,
    pub(crate) moved: u64,
}

/// The pass that moves data to the places that Share gives it.
#[derive(Debug, Default)]
pub(crate) struct Rebalancing {
    pub(crate) record: RebalanceRecord,
    /// The record as the catalog has it.
    stored: RebalanceRecord,
    /// Time of the monotonic clock before which no further step is taken.
    pub(crate) not_before: u64,
}

impl Rebalancing {
    /// The pass as the catalog has it.
    pub(crate) fn of(record: RebalanceRecord) -> Rebalancing {
        Rebalancing { record, stored: record, not_before: 0 }
    }

    /// Begins a pass, anew if one is under way. `rate` is the largest number of bytes a second; 0
    /// means no limit, and `None` the rate of the last pass.
    pub(crate) fn begin(&mut self, rate: Option<u64>) {
        let rate = rate.unwrap_or(self.record.rate);
        self.record = RebalanceRecord { running: true, rate, ..RebalanceRecord::default() };
        self.not_before = 0;
    }

    /// Stores the record, if the catalog does not have it.
    pub(crate) fn store(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        if self.record == self.stored {
            return Ok(());
        }
        self.stored = self.record;
        txn.put_rebalance(&self.record)
    }
}
