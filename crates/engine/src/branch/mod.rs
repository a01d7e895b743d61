//! Lines of history for the data path: branches, and the views that read them at an epoch.

pub(crate) mod counters;
mod flush_pace;
pub(crate) mod image;
mod marks;
pub(crate) mod namespace;
pub(crate) mod pinned;
pub(crate) mod unsettled;

use crate::area::{Area, SlotKind};
use crate::catalog::{BranchRecord, Frozen, ImportRecord, Labels, VolumeRecord};
use crate::cdp::log::BranchCdp;
use crate::error::{Result, conflict, not_found};
use crate::generation::Generation;
use crate::ids::{BranchId, Chunk, Epoch, VolumeId};
use crate::info::VolumeInfo;
use crate::settings::{DirectMin, LONG_DISCARD, Method, Order, Placement, SnapshotPolicy};
use crate::staging::Staging;
use crate::throttle::Debt;
use counters::{PreserveCounters, VolumeCounters};
use flush_pace::FlushPace;
use image::ExternalImage;
use parking_lot::RwLock;
use pinned::PinnedMoment;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// The epoch at which a volume reads its branch. It sees everything.
pub(crate) const HEAD: Epoch = Epoch::MAX;

/// The number of whole chunks above which a discard is carried out alone, in steps.
const MAX_HOLES: u64 = 4096;

/// One line of history. All handles of the volume and of its snapshots share it.
pub(crate) struct Branch {
    pub(crate) id: BranchId,
    pub(crate) chunk_log2: u8,
    /// log2 of the slot size: the chunk size, but at least the atomic unit.
    pub(crate) slot_log2: u8,
    /// The physical volumes from which the branch takes its slots.
    pub(crate) area: Area,
    /// The content that chunks without an entry show. It is dropped when the branch is complete.
    base: RwLock<Option<Base>>,
    /// The branch has a base.
    based: AtomicBool,
    /// There was an image, or a moment of a history, below the branch when it was loaded. Content
    /// that destage will need is then materialized before it is overwritten.
    pub(crate) has_external_base: bool,
    /// The lock between materializing and writing. The code that copies content of an external base
    /// into the journal holds it exclusively. Writers hold it shared. So neither comes between the
    /// other's look-up and its record.
    pub(crate) materialize_lock: RwLock<()>,
    /// The number of levels under the branch when it began. Bases may have been dropped since.
    pub(crate) depth: u32,
    /// The branch is being made complete, so that it no longer needs its base.
    pub(crate) filling: AtomicBool,
    /// The epoch in which writes are born. It changes under the sequencing lock only.
    epoch: AtomicU32,
    /// The epochs of snapshots that exist, or that something rests on. What they see is preserved.
    pub(crate) frozen: RwLock<BTreeSet<Epoch>>,
    method: AtomicU8,
    independent: AtomicBool,
    /// The placement of the branch's slots; `None`: that of the pool.
    placement: RwLock<Option<Placement>>,
    /// Moves before a place that a snapshot may be read from is overwritten (copy-on-write).
    pub(crate) generation: Generation,
    pub(crate) staging: Arc<Staging>,
    /// The number of slots that the branch's map and versions point to, as of the last commit.
    pub(crate) slots: AtomicU64,
    /// The number of slots that only the branch's versions point to, as of the last commit.
    pub(crate) kept: AtomicU64,
    /// The history of the branch: what is kept of every write.
    pub(crate) cdp: BranchCdp,
    /// The cost of preserving for the volume that writes to the branch. It continues when the
    /// volume is rolled back.
    pub(crate) preserved: Arc<PreserveCounters>,
    /// The debt of the branch's writers for room in a journal that fills up.
    pub(crate) debt: Debt,
    /// How much is written between flushes.
    pub(crate) flush_pace: FlushPace,
}

/// The direct base of a branch.
#[derive(Clone)]
pub(crate) enum Base {
    View(View),
    Image(Arc<ExternalImage>),
}

/// Content below a branch that is in no slot of the pool.
#[derive(Clone)]
pub(crate) enum ExternalBase {
    Image(Arc<ExternalImage>),
    /// A moment of a history. Its content has to be reconstructed.
    Moment(Arc<PinnedMoment>),
}

impl ExternalBase {
    /// Returns whether both always have the same content.
    pub(crate) fn is(&self, other: &ExternalBase) -> bool {
        match (self, other) {
            (ExternalBase::Image(one), ExternalBase::Image(other)) => one.record == other.record,
            (ExternalBase::Moment(one), ExternalBase::Moment(other)) => one.place() == other.place(),
            _ => false,
        }
    }

    /// Returns the number of bytes, from the start, that may differ from zeros.
    pub(crate) fn shown(&self) -> u64 {
        match self {
            ExternalBase::Image(image) => image.record.shown,
            ExternalBase::Moment(at) => at.size(),
        }
    }
}

/// A branch as of an epoch, or as of a moment.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) branch: Arc<Branch>,
    pub(crate) epoch: Epoch,
    /// A moment between snapshots. The epoch has no meaning then.
    pub(crate) at: Option<Arc<PinnedMoment>>,
}

/// A range of a branch to discard, in bytes.
pub(crate) struct DiscardRange {
    pub(crate) branch: Arc<Branch>,
    pub(crate) epoch: Epoch,
    pub(crate) bytes: Range<u64>,
}

impl Branch {
    /// Returns whether a discard of `length` bytes from byte `offset` is carried out alone, in
    /// steps. With `recorded` this also holds for a discard that came right behind an anchor, so
    /// that nothing need be recorded.
    pub(crate) fn discards_alone(&self, offset: u64, length: u64, recorded: bool) -> bool {
        let whole = self.whole_chunks(&(offset..offset + length));
        whole.end.since(whole.start) > MAX_HOLES || recorded && length > LONG_DISCARD
    }

    pub(crate) fn new(
        id: BranchId,
        record: &BranchRecord,
        base: Option<Base>,
        atomic_unit: u32,
        preserved: Arc<PreserveCounters>,
    ) -> Self {
        let has_external_base = match &base {
            Some(Base::View(line)) => {
                line.at.is_some() || line.branch.has_external_base && line.branch.has_base()
            }
            Some(Base::Image(_)) => true,
            None => false,
        };
        let depth = match &base {
            Some(Base::View(line)) => line.branch.depth + 1,
            _ => 0,
        };
        let staging = Arc::new(Staging::new());
        let branch = Branch {
            id,
            chunk_log2: record.chunk_log2,
            slot_log2: record.chunk_log2.max(atomic_unit.trailing_zeros() as u8),
            area: record.area,
            based: AtomicBool::new(base.is_some()),
            base: RwLock::new(base),
            has_external_base,
            materialize_lock: RwLock::new(()),
            depth,
            filling: AtomicBool::new(record.fill.is_some()),
            epoch: AtomicU32::new(record.epoch.0),
            frozen: RwLock::new(BTreeSet::new()),
            method: AtomicU8::new(0),
            independent: AtomicBool::new(record.order == Order::Independent),
            placement: RwLock::new(record.placement),
            generation: Generation::new(),
            cdp: BranchCdp::new(staging.waiting.clone()),
            staging,
            slots: AtomicU64::new(record.slots),
            kept: AtomicU64::new(0),
            preserved,
            debt: Debt::default(),
            flush_pace: FlushPace::default(),
        };
        branch.set_method(record.method);
        branch
    }

    /// The slots that the branch takes.
    pub(crate) fn kind(&self) -> SlotKind {
        self.area.slots(self.slot_log2)
    }

    /// Returns the epoch in which writes are born.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        self.epoch.store(epoch.0, Ordering::Release);
    }

    /// Returns the chunk size in bytes.
    pub(crate) fn chunk_size(&self) -> u64 {
        1 << self.chunk_log2
    }

    pub(crate) fn has_base(&self) -> bool {
        self.based.load(Ordering::SeqCst)
    }

    pub(crate) fn base(&self) -> Option<Base> {
        if self.has_base() { self.base.read().clone() } else { None }
    }

    /// Drops the base, because the branch is complete. A reader that looked for content in the base
    /// meanwhile notices it, and looks again.
    pub(crate) fn drop_base(&self) -> Option<Base> {
        self.based.store(false, Ordering::SeqCst);
        self.base.write().take()
    }

    /// Returns the chunks that `offset..offset+len` touches.
    pub(crate) fn chunks(&self, offset: u64, len: u64) -> Range<Chunk> {
        Chunk::of(offset, self.chunk_log2)..Chunk((offset + len).div_ceil(1 << self.chunk_log2))
    }

    /// Returns the chunks that lie in `bytes` as a whole. The range may end before it starts.
    pub(crate) fn whole_chunks(&self, bytes: &Range<u64>) -> Range<Chunk> {
        Chunk(bytes.start.div_ceil(1 << self.chunk_log2))..Chunk::of(bytes.end, self.chunk_log2)
    }

    /// Returns the epoch of the newest snapshot that sees content born in `born` and not what is
    /// written in `epoch`.
    pub(crate) fn newest_snapshot_seeing(&self, born: Epoch, epoch: Epoch) -> Option<Epoch> {
        if born >= epoch {
            return None;
        }
        self.frozen.read().range(born..epoch).next_back().copied()
    }

    pub(crate) fn order(&self) -> Order {
        if self.independent.load(Ordering::Relaxed) { Order::Independent } else { Order::Dependent }
    }

    pub(crate) fn set_order(&self, order: Order) {
        self.independent.store(order == Order::Independent, Ordering::Relaxed);
    }

    /// Returns the placement of the branch's slots; `None`: that of the pool.
    pub(crate) fn placement(&self) -> Option<Placement> {
        *self.placement.read()
    }

    pub(crate) fn set_placement(&self, placement: Option<Placement>) {
        *self.placement.write() = placement;
    }

    pub(crate) fn method(&self) -> Method {
        if self.method.load(Ordering::Relaxed) == 0 { Method::Redirect } else { Method::Copy }
    }

    pub(crate) fn set_method(&self, method: Method) {
        self.method.store((method == Method::Copy) as u8, Ordering::Relaxed);
    }
}

impl View {
    /// Returns the view of everything that was written to a branch.
    pub(crate) fn head(branch: &Arc<Branch>) -> View {
        View { branch: branch.clone(), epoch: HEAD, at: None }
    }

    /// Returns the view, its base, the base of that, and so on, without an image or a moment at the
    /// bottom.
    pub(crate) fn levels(&self) -> impl Iterator<Item = View> {
        std::iter::successors(Some(self.clone()), |line| match line.branch.base() {
            Some(Base::View(base)) if line.at.is_none() && base.at.is_none() => Some(base),
            _ => None,
        })
    }

    /// Returns the levels as [`View::levels`] does, and continues through moments. Only an image
    /// can lie below the last level.
    pub(crate) fn all_levels(&self) -> impl Iterator<Item = View> {
        std::iter::successors(Some(self.clone()), |line| match line.branch.base() {
            Some(Base::View(base)) => Some(base),
            _ => None,
        })
    }

    /// Returns the image or the moment at the bottom.
    pub(crate) fn external_base(&self) -> Option<ExternalBase> {
        let last = self.levels().last()?;
        last.at.clone().map(ExternalBase::Moment).or_else(|| last.own_external_base())
    }

    /// Returns the image or the moment that the branch itself rests on.
    pub(crate) fn own_external_base(&self) -> Option<ExternalBase> {
        match self.branch.base()? {
            Base::View(base) => base.at.map(ExternalBase::Moment),
            Base::Image(image) => Some(ExternalBase::Image(image)),
        }
    }

    /// Returns the number of all levels, those of moments included.
    pub(crate) fn depth(&self) -> usize {
        let below = match self.external_base() {
            Some(ExternalBase::Moment(at)) => at.line().depth(),
            _ => 0,
        };
        self.levels().count() + below
    }

    /// Returns the branches of all levels that rest on something: see [`Based::of`].
    pub(crate) fn based(&self) -> Based {
        Based::of(self.all_levels())
    }

    pub(crate) fn frozen(&self) -> Frozen {
        Frozen { branch: self.branch.id, epoch: self.epoch }
    }
}

/// Branches that rested on something when a walk through levels began. The walk's result is right
/// if they still do at its end, because a base that nothing rests on any more is dissolved.
pub(crate) struct Based(Vec<Arc<Branch>>);

impl Based {
    /// Returns the branches that rest on something now. [`Based::hold`] later checks whether all of
    /// them still do.
    pub(crate) fn of(levels: impl Iterator<Item = View>) -> Based {
        Based(levels.map(|line| line.branch).filter(|branch| branch.has_base()).collect())
    }

    pub(crate) fn hold(&self) -> bool {
        self.0.iter().all(|branch| branch.has_base())
    }
}

/// The state of a volume or a snapshot that its handles share.
pub(crate) struct VolumeState {
    /// The volume. The state of a snapshot, or of a moment, has the volume that it is of.
    pub(crate) id: VolumeId,
    pub(crate) uuid: Uuid,
    pub(crate) block_size: u32,
    pub(crate) created: u64,
    /// The line that the volume or snapshot shows. A volume writes to it.
    pub(crate) line: View,
    pub(crate) name: RwLock<String>,
    /// The size in bytes. It changes under the sequencing lock only.
    pub(crate) size: AtomicU64,
    pub(crate) read_only: AtomicBool,
    /// The volume or snapshot was deleted, or the volume was rolled back. Handles of this state are
    /// refused.
    pub(crate) deleted: AtomicBool,
    /// The number of open handles. It continues when the volume is given a new branch.
    pub(crate) handles: Arc<AtomicU64>,
    /// The volume's state after it was given a new branch. Handles of this state continue with the
    /// new one.
    pub(crate) successor: OnceLock<Arc<VolumeState>>,
    pub(crate) policy: RwLock<SnapshotPolicy>,
    pub(crate) import: RwLock<Option<ImportRecord>>,
    /// The pool time at which the volume was moved to the trash; 0: it is in use.
    pub(crate) trashed: u64,
    pub(crate) labels: RwLock<Labels>,
    /// [`DirectMin::code`] of the least size of a write by reference.
    pub(super) direct_min: AtomicU64,
    /// The volume takes writes of an import only. It is a copy for the path of writes.
    pub(crate) importing: AtomicBool,
    /// The number of the import that may write, or 0 if none may: see
    /// [`crate::stream::lease::Lease`]. A new number is stored under the sequencing lock.
    pub(crate) lease: AtomicU64,
    pub(crate) counters: Arc<VolumeCounters>,
}

impl VolumeState {
    /// Makes the state of a read-only device: a snapshot, or a moment. `of` holds the identity, the
    /// block size and the creation time of the device that it is like.
    pub(crate) fn frozen(id: VolumeId, of: (Uuid, u32, u64), line: View, name: String, size: u64) -> Self {
        let (uuid, block_size, created) = of;
        VolumeState {
            id,
            uuid,
            block_size,
            created,
            line,
            name: RwLock::new(name),
            size: AtomicU64::new(size),
            read_only: AtomicBool::new(true),
            deleted: AtomicBool::new(false),
            handles: Arc::default(),
            successor: OnceLock::new(),
            policy: RwLock::default(),
            import: RwLock::default(),
            trashed: 0,
            labels: RwLock::default(),
            direct_min: AtomicU64::default(),
            importing: AtomicBool::new(false),
            lease: AtomicU64::new(0),
            counters: Arc::default(),
        }
    }

    /// Fails if the volume was deleted or rolled back.
    pub(crate) fn check_there(&self) -> Result<()> {
        if self.deleted.load(Ordering::Acquire) {
            return Err(not_found("use the volume: it was deleted or rolled back"));
        }
        Ok(())
    }

    /// Returns the record of a volume that is as this state.
    pub(crate) fn record(&self) -> VolumeRecord {
        VolumeRecord {
            uuid: self.uuid,
            name: self.name.read().clone(),
            size: self.size.load(Ordering::Acquire),
            block_size: self.block_size,
            read_only: self.read_only.load(Ordering::Acquire),
            created: self.created,
            branch: self.line.branch.id,
            policy: *self.policy.read(),
            import: *self.import.read(),
            trashed: self.trashed,
            labels: self.labels.read().clone(),
            direct_min: self.direct_min(),
        }
    }

    pub(crate) fn direct_min(&self) -> DirectMin {
        DirectMin::from_code(self.direct_min.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub(crate) fn set_direct_min(&self, direct_min: DirectMin) {
        self.direct_min.store(direct_min.code(), Ordering::Relaxed);
    }

    pub(crate) fn set_import(&self, import: Option<ImportRecord>) {
        let mut held = self.import.write();
        self.importing.store(import.is_some(), Ordering::Release);
        if import.is_none() {
            self.lease.store(0, Ordering::Release);
        }
        *held = import;
    }

    /// Fails for an import that does not fill the volume now.
    pub(crate) fn check_lease(&self, number: u64) -> Result<()> {
        match self.lease.load(Ordering::Acquire) {
            held if held == number => Ok(()),
            0 => Err(conflict(
                "continue the import: it was cancelled, or a newer import of the stream replaced it",
            )),
            _ => Err(conflict("continue the import: a newer import of the same stream replaced it")),
        }
    }

    pub(crate) fn info(&self) -> VolumeInfo {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        VolumeInfo {
            name: self.name.read().clone(),
            uuid: self.uuid,
            size: get(&self.size),
            chunk_size: 1 << self.line.branch.chunk_log2,
            block_size: self.block_size,
            read_only: self.read_only.load(Ordering::Relaxed),
            created: self.created,
            branch: self.line.branch.id,
            method: self.line.branch.method(),
            order: self.line.branch.order(),
            dedicated_pv: self.line.branch.area.dedicated(),
            placement: self.line.branch.placement(),
            direct_min: self.direct_min(),
            policy: *self.policy.read(),
            image: match self.line.external_base() {
                Some(ExternalBase::Image(image)) => Some(image.record.path.clone()),
                _ => None,
            },
            importing: self.importing.load(Ordering::Relaxed),
            labels: self.labels.read().clone(),
            cdp: self.line.branch.cdp.wanted(),
            allocated: get(&self.line.branch.slots) << self.line.branch.slot_log2,
            handles: get(&self.handles),
            stats: self.counters.stats(),
            preserved: self.line.branch.preserved.stats(),
        }
    }
}
