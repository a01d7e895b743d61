//! The state of background work, which one thread at a time may touch: the allocator, the position
//! in the journal, and the lists of jobs.

use super::batch::Batch;
use super::record::Recorder;
use crate::catalog::page::PageKey;
use crate::catalog::{FillRecord, Positions, VersionKey};
use crate::grace::Retired;
use crate::journal::{Cursor, SegmentFile};
use crate::space::allocator::{Allocator, FreedSlot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A place in a pass over everything that has slots: first the current maps, then the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvacuateFrom {
    Map(PageKey),
    Versions(VersionKey),
}

impl Default for EvacuateFrom {
    fn default() -> Self {
        EvacuateFrom::Map((0, 0))
    }
}

/// What only one thread at a time may touch: the allocator and how far the log has been carried
/// out.
pub(crate) struct BackgroundState {
    pub(crate) allocator: Allocator,
    /// The next record to destage.
    pub(crate) cursor: Cursor,
    /// Where the part of the journal ends that is being carried out.
    pub(crate) ends: Option<Cursor>,
    /// What was collected from there in advance.
    pub(crate) ahead: Option<Ahead>,
    /// Slots promised to background work since the last commit: (log2 of the slot size, slots).
    pub(crate) lent: Vec<(u8, u64)>,
    /// As of the last commit.
    pub(crate) committed: Positions,
    /// Everything up to here is in place, durably, though the catalog may not say so yet.
    pub(crate) destaged: u64,
    /// Branches without a writer, of which something may be left to free, and the map page where
    /// that goes on.
    pub(crate) orphan_branches: BTreeMap<u64, u64>,
    /// Snapshots that were deleted and wait for what rests on them, or are being dissolved.
    pub(crate) deleted: BTreeSet<u64>,
    /// Deleted volumes that have a history, which goes when nothing rests on it.
    pub(crate) deleted_with_history: BTreeSet<u64>,
    /// By their LSNs: branches with an anchor behind which recording is to begin.
    pub(crate) unconfirmed_anchors: BTreeMap<u64, u64>,
    /// Branches whose history has expired, and that something rests on.
    pub(crate) pinned_expired: BTreeSet<u64>,
    /// Marks may have expired.
    pub(crate) marks_expire: bool,
    /// Parts of steps of freeing that are owed for batches that were destaged: see
    /// [`crate::destage::Destager::owe_freeing`].
    pub(crate) owed: u32,
    /// Moving data off draining PVs and freeing take turns.
    pub(crate) moves_next: bool,
    /// Where moving data off draining PVs goes on.
    pub(crate) evacuate_from: EvacuateFrom,
    /// A pass over all maps found nothing (more) that could be moved.
    pub(crate) evacuated: bool,
    /// Moving goes on after this time, by the monotonic clock: a physical volume did not answer.
    pub(crate) evacuate_after: u64,
    /// Branches whose chunks are being brought home.
    pub(crate) relocating: BTreeMap<u64, Relocation>,
    /// Branches that are being made complete.
    pub(crate) filling: BTreeMap<u64, FlattenJob>,
    /// By branch, the last segment of its history that was to be compressed harder.
    pub(crate) compacted: BTreeMap<u64, u64>,
    /// When that may go on, by the monotonic clock.
    pub(crate) compact_from: u64,
    /// The last step sorted runs: something else has its turn.
    pub(crate) sorted: bool,
    /// The last volume whose retention was enforced.
    pub(crate) forgot_of: u64,
    pub(crate) retired_slots: Retired<FreedSlot>,
    pub(crate) retired_files: Retired<Arc<SegmentFile>>,
    /// What was written, and how often work was called for, at the last idle step.
    pub(crate) seen: (u64, u64),
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
            committed,
            orphan_branches: BTreeMap::new(),
            deleted: BTreeSet::new(),
            deleted_with_history: BTreeSet::new(),
            unconfirmed_anchors: BTreeMap::new(),
            pinned_expired: BTreeSet::new(),
            marks_expire: true,
            owed: 0,
            moves_next: false,
            evacuate_from: EvacuateFrom::default(),
            evacuated: false,
            evacuate_after: 0,
            relocating: BTreeMap::new(),
            filling: BTreeMap::new(),
            compacted: BTreeMap::new(),
            compact_from: 0,
            sorted: false,
            forgot_of: 0,
            retired_slots: Retired::default(),
            retired_files: Retired::default(),
            seen: (0, 0),
        }
    }

    /// Is a batch preserved that is not in place?
    pub(crate) fn is_half_done(&self) -> bool {
        self.committed.preserved_lsn > self.destaged
    }

    /// (preserved, destaged) of a commit that carries out no record.
    pub(crate) fn current_positions(&self) -> (u64, u64) {
        (self.committed.preserved_lsn.max(self.destaged), self.destaged)
    }
}

/// The batch after the one that is being carried out, collected meanwhile.
pub(crate) struct Ahead {
    pub(crate) from: Cursor,
    pub(crate) to: Cursor,
    pub(crate) batch: Batch,
}

impl Ahead {
    /// Do logs hold what no commit knows of?
    pub(crate) fn is_recorded(&self) -> bool {
        !self.batch.recorded.is_empty()
    }

    /// Does the log of this branch?
    pub(crate) fn records(&self, branch: u64) -> bool {
        self.batch.recorded.iter().any(|recorder| recorder.branch_id() == branch)
    }

    /// Bytes of logs that no commit knows of.
    pub(crate) fn recorded_bytes(&self) -> u64 {
        self.batch.recorded.iter().map(Recorder::bytes).sum()
    }
}

/// A branch on its way to being complete.
#[derive(Debug, Clone)]
pub(crate) struct FlattenJob {
    pub(crate) record: FillRecord,
    /// Nothing more before this time.
    pub(crate) not_before: u64,
    /// Why it does not go on.
    pub(crate) stalled: Option<String>,
}

impl FlattenJob {
    /// As the catalog has it.
    pub(crate) fn of(record: FillRecord) -> FlattenJob {
        FlattenJob { record, not_before: 0, stalled: None }
    }
}

/// A volume's chunks on their way home.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relocation {
    /// Bytes to move per second at most; 0: as fast as it goes.
    pub(crate) rate: u64,
    /// Nothing more before this time.
    pub(crate) not_before: u64,
    /// The next map page.
    pub(crate) page: u64,
    pub(crate) pass: u32,
    /// Bytes moved: in this pass, and in all.
    pub(crate) in_pass: u64,
    pub(crate) moved: u64,
}
