//! Pools: the storage from which volumes take space.
//!
//! [`Pool`] opens and recovers a pool, submits control operations, answers queries, and decides
//! which background step comes next. The parts of a pool are in [`crate::core::Core`]. The state of
//! background work is in [`crate::destage::Destager`].

mod busy;
pub(crate) mod cdp;
mod clock;
pub(crate) mod control;
pub(crate) mod damage;
pub(crate) mod expiry;
mod feature;
pub(crate) mod flatten;
mod growth;
mod health;
pub(crate) mod history;
mod keep;
mod layouts;
mod loss;
pub(crate) mod maintain;
pub(crate) mod moments;
pub(crate) mod open;
#[cfg(test)]
mod placement_tests;
mod rebalance;
mod referred;
mod reidentify;
pub(crate) mod relocation;
pub(crate) mod salvage;
pub(crate) mod scrub;
pub(crate) mod snapshots;
mod spares;
mod statistics;
pub(crate) mod timeline;
mod trace;
pub(crate) mod trash;
mod usage;

pub use crate::clock::{ClockChange, ClockInfo};
pub use crate::health::{Health, Warning, code};
pub use crate::info::feature::{FeatureInfo, FeatureState};
pub use crate::info::layout::{Growth, IncomingInfo, LayoutInfo, MemberInfo, RebuildProgress, SpareInfo};
pub use crate::info::pv::{DedicatedSpace, PvInfo};
pub use crate::info::rebalance::RebalanceInfo;
pub use crate::info::recompression::RecompressInfo;
pub use crate::info::{
    CatalogScrub, CatalogSource, DamageInfo, DataScrubInfo, FlattenInfo, IndexSize, JournalLoss, Layout,
    LostDevice, Origin, PoolInfo, PoolStats, PreserveStats, Progress, RegionCounts, RelocationInfo, Salvage,
    SalvageFinding, SnapshotInfo, SnapshotSpace, SpaceUsage, TrashInfo, VolumeIndex, VolumeInfo, VolumeLoss,
    VolumeRegions, VolumeStatistics, VolumeStats,
};
pub use crate::journal::loss::JOURNAL_DAMAGED;
pub use crate::settings::{
    CachePolicy, DEFAULT_CHUNK_SIZE, DIRECT_SIZES, DirectMin, FULL_WEIGHT, GrowSpec, LayoutShape, LayoutSpec,
    MAX_VOLUME_SIZE, MAX_WEIGHT, Method, NewVolume, Order, Placement, PoolConfig, PoolOptions, PvSpec,
    SnapAware, SnapshotPolicy,
};
pub use expiry::Undo;
pub use reidentify::{REIDENTIFYING, Reidentification};
pub use scrub::DataReport;

use crate::core::Core;
use crate::destage::Destager;
use crate::disk::SyncPurpose;

use crate::error::Result;
use crate::volume::{Difference, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// An open pool: a handle of its parts, which volumes share. [`crate::pool`] names the parts.
pub struct Pool {
    pub(crate) core: Arc<Core>,
    pub(crate) destager: Arc<Destager>,
}

impl Pool {
    /// Returns the pool's state.
    pub fn info(&self) -> PoolInfo {
        let totals = self.core.totals();
        // This comes before the names are locked, because `health` locks them itself.
        let health = self.health();
        let enabled = |info: &FeatureInfo| info.state == FeatureState::Enabled;
        let features = self.features().iter().filter(|info| enabled(info)).map(|info| info.name).collect();
        let names = self.core.names.read();
        PoolInfo {
            uuid: self.core.uuid,
            config: self.core.config.clone(),
            placement: names.placement,
            capacity: totals.capacity,
            used: totals.used,
            available: totals.available,
            own_available: totals.own,
            reserved: totals.reserved,
            reserved_history: self.core.space.log(),
            data_available: self.core.catalog_room.available(),
            provisioned: names.by_name.values().map(|v| v.size.load(Ordering::Relaxed)).sum(),
            volumes: names.by_name.len() as u64,
            features,
            health,
        }
    }

    /// Returns the size of an extent in bytes.
    pub fn extent_size(&self) -> u64 {
        self.core.config.extent_size
    }

    /// Returns counters and positions.
    pub fn stats(&self) -> PoolStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (journal_used, journal_capacity) = self.core.journal.usage();
        let map = self.core.map.stats();
        let shared = self.core.shared.counts();
        PoolStats {
            sequenced_lsn: self.core.journal.last().lsn,
            written_lsn: self.core.journal.written(),
            synced_lsn: self.core.journal.synced(),
            preserved_lsn: self.core.positions.preserved(),
            destaged_lsn: self.core.positions.destaged(),
            journal_turns: self.core.journal.turns() as u64,
            journal_used,
            journal_capacity,
            journal_groups: get(&self.core.journal.counters.groups),
            journal_records: get(&self.core.journal.counters.records),
            journal_bytes: get(&self.core.journal.counters.bytes),
            backpressure_waits: get(&self.core.journal.counters.waits),
            staged_pieces: self.staged_pieces(),
            destage_batches: get(&self.core.positions.batches),
            settled_lsn: self.core.positions.settled(),
            history_waits: get(&self.core.positions.history_waits),
            destage_bytes: get(&self.core.positions.bytes),
            allocated_bytes: get(&self.core.positions.allocated),
            direct_bytes: get(&self.core.positions.written_direct),
            kept_bytes: get(&self.core.positions.recorded_bare),
            repaired: self.core.repairs.done(),
            bad_bytes: get(&self.core.repairs.bad_bytes),
            damaged_sum_blocks: self.core.sums.damaged_blocks(),
            referred_bytes: get(&self.core.positions.referred),
            lent_bytes: self.core.lent.bytes(),
            map_cache_policy: self.core.options.map_cache_policy,
            map_cache_size: self.core.options.map_cache_bytes as u64,
            map_hits: map.hits,
            map_misses: map.misses,
            map_evictions: map.evictions,
            map_cache_used: map.bytes,
            preserving: self.core.positions.preserving.stats(),
            snapshots_auto_deleted: get(&self.core.positions.auto_deleted),
            history_compacted: get(&self.core.positions.compacted),
            shared_segments: shared.segments,
            shared_segment_bytes: shared.bytes,
            history_runs: shared.runs,
            history_runs_sorted: get(&self.core.positions.sorted),
            catalog_commits: get(&self.core.catalog.commits),
            catalog_scrub: self.scrub_progress(),
            syncs: SyncPurpose::ALL.map(|p| self.core.dir.syncs(p)),
        }
    }

    pub(crate) fn staged_pieces(&self) -> u64 {
        self.core.names.read().branches.values().map(|b| b.staging.len()).sum()
    }

    /// Returns all volumes, by name.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.core.names.read().by_name.values().map(|v| v.info()).collect()
    }

    /// Returns the counters of all volumes.
    pub fn volume_counters(&self) -> Vec<(Uuid, VolumeStats)> {
        self.core.names.read().by_name.values().map(|v| (v.uuid, v.counters.stats())).collect()
    }

    /// Returns the name of the volume with this UUID, unless it is in the trash.
    pub fn name_of(&self, volume: Uuid) -> Option<String> {
        let names = self.core.names.read();
        let found = names.by_name.values().find(|state| state.uuid == volume)?;
        let name = found.name.read().clone();
        Some(name)
    }

    /// Returns one volume.
    pub fn volume(&self, name: &str) -> Result<VolumeInfo> {
        Ok(self.core.names.read().volume(name)?.info())
    }

    /// Opens a snapshot, read-only. While the handle is held, the snapshot can be deleted from
    /// sight, and remains readable through the handle.
    pub fn open_snapshot(self: &Arc<Self>, volume: &str, name: &str) -> Result<Arc<Volume>> {
        let names = self.core.names.read();
        let state = names.snapshot(names.volume(volume)?, name)?.state.clone();
        Ok(Arc::new(Volume::new(self.destager.clone(), state, true, true)))
    }

    /// Returns the difference between a snapshot and another one of the volume, or, without `to`,
    /// the volume as it is now.
    pub fn difference(self: &Arc<Self>, volume: &str, from: &str, to: Option<&str>) -> Result<Difference> {
        let to = match to {
            Some(name) => self.open_snapshot(volume, name)?,
            None => self.open_weak(volume)?,
        };
        Difference::new(self.open_snapshot(volume, from)?, to)
    }

    /// Opens a volume for a target. `read_only` makes the handle read-only, whatever the volume is.
    pub fn open_volume(self: &Arc<Self>, name: &str, read_only: bool) -> Result<Arc<Volume>> {
        // The handle is counted as a user before the names are unlocked, so an unforced deletion
        // sees it.
        let names = self.core.names.read();
        let state = names.volume(name)?.clone();
        Ok(Arc::new(Volume::new(self.destager.clone(), state, read_only, true)))
    }

    /// Opens a volume without counting as its user. A target keeps such a handle as long as the
    /// volume exists, whether it is used or not. For each client, the target opens one with
    /// [`Pool::open_volume`].
    pub fn open_weak(self: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let state = self.core.names.read().volume(name)?.clone();
        Ok(Arc::new(Volume::new(self.destager.clone(), state, false, false)))
    }

    /// Opens a volume, read-only, without counting as its user or in statistics: to measure how
    /// fast the volume can be read.
    pub fn open_unmetered(self: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let state = self.core.names.read().volume(name)?.clone();
        Ok(Arc::new(Volume::quiet(self.destager.clone(), state)))
    }

    /// Number of bytes of data that one journal record has at most. A longer write may survive a
    /// crash in part.
    pub fn max_record_bytes(&self) -> u64 {
        self.core.max_record_bytes()
    }

    /// Returns whether so much of the journal is in use that destage can't wait.
    pub fn is_pressed(&self) -> bool {
        self.core.is_pressed()
    }

    /// Returns whether the pool was opened only to be read, whatever the ages of its parts. Nothing
    /// that is done to it is kept, and no backup is made of it.
    pub fn is_only_shown(&self) -> bool {
        self.core.is_only_shown()
    }

    /// Deletes one snapshot, if a volume's policy requires it: the oldest that can be deleted,
    /// where snapshots take more than their reserve or the pool's own space is low. The next one
    /// follows only when the first one's space has come back. False when there is nothing to
    /// delete.
    ///
    /// A full file system below the pool is no reason, since a deletion does not help there. If
    /// space is low, one snapshot is deleted at a time, at most one a second. After a deletion that
    /// should have given something back and did not, no more are deleted.
    pub fn enforce_snapshot_policies(&self) -> Result<bool> {
        self.destager.enforce_snapshot_policies()
    }

    /// Blocks until there may be background work, or until `timeout` has passed.
    pub fn wait_for_work(&self, timeout: Duration) {
        let pause = match self.core.work.due.load(Ordering::Relaxed) {
            0 => Duration::MAX,
            due => Duration::from_nanos(due.saturating_sub(self.core.world.clock.monotonic())),
        };
        let timeout = timeout.min(pause);
        let mut wanted = self.core.work.wanted.lock();
        if !*wanted {
            self.core.work.signal.wait_for(&mut wanted, timeout);
        }
        *wanted = false;
    }

    /// Waits, for at most `timeout`, until much is written and not synced, and syncs it. So flushes
    /// and control operations have little left to wait for, and a power loss loses little.
    pub fn write_back(&self, timeout: Duration) -> Result<Progress> {
        if !self.core.journal.wait_for_write_back(timeout) {
            return Ok(Progress::Idle);
        }
        self.core.check_usable()?;
        self.core.journal.sync_all()?;
        Ok(Progress::Worked)
    }

    /// Poisons the pool, because its owner has lost a thread that it depends on. `reason` names the
    /// thread and the cause.
    pub fn poison(&self, reason: &str) {
        self.core.fault.give_up(reason);
    }

    /// Makes everything durable and commits that. Later requests fail. Staged data may stay in the
    /// journal.
    pub fn close(&self) -> Result<()> {
        if self.core.work.closed.swap(true, Ordering::AcqRel) || self.core.is_only_shown() {
            return Ok(());
        }
        self.core.fault.check()?;
        self.core.journal.sync_all()?;
        self.destager.recall_all(&mut self.destager.state.lock())?;
        self.destager.stamp_last()?;
        self.core.work.done.store(true, Ordering::Release);
        tracing::info!(last_lsn = self.core.journal.last().lsn.0, "the pool is closed");
        Ok(())
    }
}
