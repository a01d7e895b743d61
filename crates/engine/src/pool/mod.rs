//! Pools: what volumes draw space from.
//!
//! [`Pool`] opens and recovers a pool, submits control operations, answers what users ask, and
//! decides which background step comes next. Its parts are in [`crate::core::Core`], the state of
//! background work in [`crate::destage::Destager`].

pub(crate) mod cdp;
mod clock;
pub(crate) mod control;
pub(crate) mod damage;
pub(crate) mod expiry;
pub(crate) mod flatten;
mod health;
pub(crate) mod history;
mod loss;
pub(crate) mod maintain;
pub(crate) mod moments;
pub(crate) mod open;
mod reidentify;
pub(crate) mod relocation;
pub(crate) mod salvage;
pub(crate) mod scrub;
pub(crate) mod snapshots;
mod statistics;
pub(crate) mod usage;

pub use crate::clock::{ClockChange, ClockInfo};
pub use crate::health::{Health, Warning, code};
pub use crate::info::{
    CatalogScrub, CatalogSource, FlattenInfo, IndexSize, JournalLoss, Layout, LostDevice, Origin, PoolInfo,
    PoolStats, PreserveStats, Progress, PvInfo, RegionCounts, RelocationInfo, Salvage, SalvageFinding,
    SnapshotInfo, SnapshotSpace, SpaceUsage, VolumeIndex, VolumeInfo, VolumeLoss, VolumeRegions,
    VolumeStatistics, VolumeStats,
};
pub use crate::journal::loss::JOURNAL_DAMAGED;
pub use crate::settings::{
    CachePolicy, DEFAULT_CHUNK_SIZE, MAX_VOLUME_SIZE, Method, NewVolume, Order, Placement, PoolConfig,
    PoolOptions, PvSpec, SnapshotPolicy,
};
pub use expiry::Undo;
pub use reidentify::{REIDENTIFYING, Reidentification};

use crate::core::Core;
use crate::destage::Destager;
use crate::disk::SyncPurpose;

use crate::error::Result;
use crate::volume::{Difference, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An open pool: a handle of its parts ([`crate::pool`] says which), which volumes share.
pub struct Pool {
    pub(crate) core: Arc<Core>,
    pub(crate) destager: Arc<Destager>,
}

impl Pool {
    /// The pool as it stands.
    pub fn info(&self) -> PoolInfo {
        let totals = self.core.space.totals();
        // Before the names are held, which it looks at by itself.
        let health = self.health();
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
            health,
        }
    }

    /// Counters and positions.
    pub fn stats(&self) -> PoolStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (journal_used, journal_capacity) = self.core.journal.usage();
        let map = self.core.map.stats();
        let shared = self.core.shared.counts();
        PoolStats {
            sequenced_lsn: self.core.journal.last().0,
            written_lsn: self.core.journal.written(),
            synced_lsn: self.core.journal.synced(),
            preserved_lsn: get(&self.core.positions.preserved),
            destaged_lsn: get(&self.core.positions.destaged),
            journal_turns: self.core.journal.turns() as u64,
            journal_used,
            journal_capacity,
            journal_groups: get(&self.core.journal.counters.groups),
            journal_records: get(&self.core.journal.counters.records),
            journal_bytes: get(&self.core.journal.counters.bytes),
            backpressure_waits: get(&self.core.journal.counters.waits),
            staged_pieces: self.staged_pieces(),
            destage_batches: get(&self.core.positions.batches),
            destage_bytes: get(&self.core.positions.bytes),
            allocated_bytes: get(&self.core.positions.allocated),
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

    /// All volumes, by name.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.core.names.read().by_name.values().map(|v| v.info()).collect()
    }

    /// One volume.
    pub fn volume(&self, name: &str) -> Result<VolumeInfo> {
        Ok(self.core.names.read().volume(name)?.info())
    }

    /// A read-only handle of a snapshot. While it is held the snapshot can be deleted from sight,
    /// and goes on to be read.
    pub fn open_snapshot(self: &Arc<Self>, volume: &str, name: &str) -> Result<Arc<Volume>> {
        let names = self.core.names.read();
        let state = names.snapshot(names.volume(volume)?, name)?.state.clone();
        Ok(Arc::new(Volume::new(self.destager.clone(), state, true, true)))
    }

    /// What differs between a snapshot and another one of the volume, or (without `to`) what the
    /// volume is now.
    pub fn difference(self: &Arc<Self>, volume: &str, from: &str, to: Option<&str>) -> Result<Difference> {
        let to = match to {
            Some(name) => self.open_snapshot(volume, name)?,
            None => self.open_weak(volume)?,
        };
        Difference::new(self.open_snapshot(volume, from)?, to)
    }

    /// A handle for a target. `read_only` makes the handle read-only, whatever the volume is.
    pub fn open_volume(self: &Arc<Self>, name: &str, read_only: bool) -> Result<Arc<Volume>> {
        // Counted as a user before the names are let go of: an unforced deletion sees it.
        let names = self.core.names.read();
        let state = names.volume(name)?.clone();
        Ok(Arc::new(Volume::new(self.destager.clone(), state, read_only, true)))
    }

    /// A handle that does not count as a user: for a target that keeps one as long as the volume
    /// exists, whether anybody uses it or not, and opens one with [`Pool::open_volume`] for each
    /// client.
    pub fn open_weak(self: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let state = self.core.names.read().volume(name)?.clone();
        Ok(Arc::new(Volume::new(self.destager.clone(), state, false, false)))
    }

    /// A read-only handle that counts neither as a user nor in statistics: to measure how fast the
    /// volume can be read.
    pub fn open_unmetered(self: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let state = self.core.names.read().volume(name)?.clone();
        Ok(Arc::new(Volume::quiet(self.destager.clone(), state)))
    }

    /// The largest data of one journal record: a longer write may survive a crash in part.
    pub fn max_record_bytes(&self) -> u64 {
        self.core.max_record_bytes()
    }

    /// Is so much of the journal in use that destage can't wait?
    pub fn is_pressed(&self) -> bool {
        self.core.is_pressed()
    }

    /// The pool was opened to be read, whatever its parts are: nothing of it is kept, and no backup
    /// is made of it.
    pub fn is_only_shown(&self) -> bool {
        self.core.is_only_shown()
    }

    /// Deletes one snapshot, if a volume's policy says so: the oldest that can go, where snapshots
    /// take more than their reserve or the pool's own space is low. The next follows only when its
    /// space has come back. False when nothing is to be done.
    ///
    /// A full file system below the pool is no reason: a deletion does not cure it. For want of
    /// space one snapshot is deleted at a time, at most one a second, and none more after one that
    /// should have given something back and did not.
    pub fn enforce_snapshot_policies(&self) -> Result<bool> {
        self.destager.enforce_snapshot_policies()
    }

    /// Blocks until there may be background work, or for `timeout`.
    pub fn wait_for_work(&self, timeout: Duration) {
        let mut wanted = self.core.work.wanted.lock();
        if !*wanted {
            self.core.work.signal.wait_for(&mut wanted, timeout);
        }
        *wanted = false;
    }

    /// Waits, for at most `timeout`, until much was written and not synced, and syncs it: so
    /// flushes and control operations find little left to wait for, and a power loss takes little.
    pub fn write_back(&self, timeout: Duration) -> Result<Progress> {
        if !self.core.journal.wait_for_write_back(timeout) {
            return Ok(Progress::Idle);
        }
        self.core.check_usable()?;
        self.core.journal.sync_all()?;
        Ok(Progress::Worked)
    }

    /// Poisons the pool: its owner has lost a thread that it depends on. `reason` says which, and
    /// why.
    pub fn poison(&self, reason: &str) {
        self.core.fault.give_up(reason);
    }

    /// Makes everything durable and records it; later requests fail. Staged data may stay in the
    /// journal.
    pub fn close(&self) -> Result<()> {
        if self.core.work.closed.swap(true, Ordering::AcqRel) || self.core.is_only_shown() {
            return Ok(());
        }
        self.core.fault.check()?;
        self.core.journal.sync_all()?;
        self.destager.stamp_last()?;
        self.core.work.done.store(true, Ordering::Release);
        tracing::info!(last_lsn = self.core.journal.last().0, "the pool is closed");
        Ok(())
    }
}
