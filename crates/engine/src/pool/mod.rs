//! Pools: what volumes draw space from. This module ties the parts together: it opens and recovers a pool, carries out
//! control operations, and decides which background step comes next.

mod allocator;
pub(crate) mod catalog_room;
mod clock;
mod control;
mod counters;
mod expiry;
mod fill;
mod health;
pub(crate) mod image;
mod info;
pub(crate) mod label;
pub(crate) mod line;
mod loss;
mod maintain;
pub(crate) mod namespace;
mod open;
mod placement;
pub(crate) mod pv;
mod reidentify;
mod relief;
pub(crate) mod salvage;
mod scrub;
pub(crate) mod shortage;
mod snapshots;
mod space;
pub(crate) mod stamp;
pub(crate) mod stamping;
mod statistics;
mod usage;

pub use crate::clock::{ClockChange, ClockInfo};
pub use expiry::Undo;
pub use health::{Health, Warning, code};
pub use info::*;
pub use loss::{JOURNAL_DAMAGED, JournalLoss, VolumeLoss};
pub use reidentify::{REIDENTIFYING, Reidentification};
pub use salvage::{CatalogSource, LostDevice, Salvage, SalvageFinding};

pub(crate) use snapshots::{check_depth, record as snapshot_record};

pub(crate) use allocator::{Allocator, FreedSlot};
pub(crate) use maintain::{EvacuateFrom, Maintenance};
pub(crate) use open::{LOCK_FILE, Lines, Parts, check_config, decode_control, journal_config, locked};
pub(crate) use relief::{Relief, full};
pub(crate) use space::Space;

use crate::catalog::{Catalog, LineRecord};
use crate::cdp::flushes::Flushes;
use crate::cdp::runs::SharedLog;
use crate::clock::PoolClock;
use crate::disk::{CountingDir, OpenFiles, SyncPurpose};

use crate::damage::Damage;
use crate::error::{ErrorKind, Result};
use crate::fault::{AlarmedMutex, AlarmedRwLock, Fault};
use crate::grace::Readers;
use crate::journal::Journal;
use crate::map::Map;
use crate::volume::{Difference, Volume};
use crate::world::World;
use catalog_room::CatalogRoom;
use namespace::Namespace;
use parking_lot::{Condvar, Mutex, RwLock};
use pv::PvTable;
use shortage::Shortages;
use stamping::Stamping;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An open pool. Lock order: a branch's `bringing`, `maintenance`, `names`, the journal's sequencing lock, then leaves.
pub struct Pool {
    pub(crate) uuid: [u8; 16],
    pub(crate) config: PoolConfig,
    pub(crate) options: PoolOptions,
    pub(crate) dir: Arc<CountingDir>,
    /// Files that are opened when they are used: those of histories.
    pub(crate) files: OpenFiles,
    /// Segments of histories that branches share.
    pub(crate) shared: SharedLog,
    pub(crate) world: World,
    pub(crate) clock: Arc<PoolClock>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) journal: Journal,
    pub(crate) fault: Arc<Fault>,
    pub(crate) damage: Damage,
    pub(crate) shortages: Shortages,
    pub(crate) catalog_room: CatalogRoom,
    pub(crate) readers: Readers,
    pub(crate) space: Space,
    pub(crate) map: Map,
    pub(crate) pvs: PvTable,
    pub(crate) names: AlarmedRwLock<Namespace>,
    pub(crate) maintenance: AlarmedMutex<Maintenance>,
    pub(crate) positions: SharedPositions,
    pub(crate) deletions: Mutex<usage::Deletions>,
    /// What happened to volumes: volume, LSN.
    pub(crate) lines: RwLock<BTreeMap<u64, BTreeMap<u64, LineRecord>>>,
    pub(crate) flushes: Flushes,
    scrub: scrub::Scrub,
    pub(crate) stamping: Stamping,
    /// Physical volumes are added, drained and removed one at a time.
    pub(crate) pv_operations: AlarmedMutex<()>,
    work: Work,
    journal_loss: OnceLock<JournalLoss>,
    /// What an opening for salvage found; set once, by that.
    pub(crate) salvage: OnceLock<Salvage>,
    /// It was opened to be read, whatever its parts are: nothing of it may be kept.
    pub(crate) only_shown: AtomicBool,
    _lock: Box<dyn Send + Sync>,
}

/// What others than the destager want to know of its state.
#[derive(Default)]
pub(crate) struct SharedPositions {
    pub(crate) preserved: AtomicU64,
    pub(crate) destaged: AtomicU64,
    /// Everything up to here is in place and to be found, though the catalog may not say so yet; and a time before which
    /// nothing is sequenced that is not.
    pub(crate) settled: AtomicU64,
    pub(crate) settled_time: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) allocated: AtomicU64,
    /// The last write that needed room for its history was refused.
    pub(crate) history_refused: AtomicBool,
    /// Snapshots deleted by policy.
    pub(crate) auto_deleted: AtomicU64,
    /// Bytes of slots that were freed and can be given out again, since the pool was opened.
    pub(crate) returned: AtomicU64,
    /// Bytes that histories have lost by being compressed harder.
    pub(crate) compacted: AtomicU64,
    /// Runs that were brought to segments of their branches' own.
    pub(crate) sorted: AtomicU64,
    /// What preserving has cost.
    pub(crate) preserving: counters::PreserveCounters,
    /// A draining physical volume waits for space elsewhere.
    pub(crate) drain_stalled: AtomicBool,
    /// Why a branch that is being made complete does not get on.
    pub(crate) completion_stalled: Mutex<Option<String>>,
}

/// Wakes the maintenance thread.
#[derive(Default)]
struct Work {
    wanted: Mutex<bool>,
    /// Calls so far.
    kicks: AtomicU64,
    /// When policies are looked at again, by the monotonic clock.
    policies_after: AtomicU64,
    signal: Condvar,
    closed: AtomicBool,
    /// Closing has ended, and went well.
    done: AtomicBool,
}

impl Pool {
    /// The pool as it stands.
    pub fn info(&self) -> PoolInfo {
        let totals = self.space.totals();
        // Before the names are held, which it looks at by itself.
        let health = self.health();
        let names = self.names.read();
        PoolInfo {
            uuid: self.uuid,
            config: self.config.clone(),
            placement: names.placement,
            capacity: totals.capacity,
            used: totals.used,
            available: totals.available,
            own_available: totals.own,
            reserved: totals.reserved,
            reserved_history: self.space.log(),
            data_available: self.catalog_room.available(),
            provisioned: names.by_name.values().map(|v| v.size.load(Ordering::Relaxed)).sum(),
            volumes: names.by_name.len() as u64,
            health,
        }
    }

    /// Counters and positions.
    pub fn stats(&self) -> PoolStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (journal_used, journal_capacity) = self.journal.usage();
        let map = self.map.stats();
        let shared = self.shared.counts();
        PoolStats {
            sequenced_lsn: self.journal.last().0,
            written_lsn: self.journal.written(),
            synced_lsn: self.journal.synced(),
            preserved_lsn: get(&self.positions.preserved),
            destaged_lsn: get(&self.positions.destaged),
            journal_turns: self.journal.turns() as u64,
            journal_used,
            journal_capacity,
            journal_groups: get(&self.journal.counters.groups),
            journal_records: get(&self.journal.counters.records),
            journal_bytes: get(&self.journal.counters.bytes),
            backpressure_waits: get(&self.journal.counters.waits),
            staged_pieces: self.staged_pieces(),
            destage_batches: get(&self.positions.batches),
            destage_bytes: get(&self.positions.bytes),
            allocated_bytes: get(&self.positions.allocated),
            map_cache_policy: self.options.map_cache_policy,
            map_cache_size: self.options.map_cache_bytes as u64,
            map_hits: map.hits,
            map_misses: map.misses,
            map_evictions: map.evictions,
            map_cache_used: map.bytes,
            preserving: self.positions.preserving.stats(),
            snapshots_auto_deleted: get(&self.positions.auto_deleted),
            history_compacted: get(&self.positions.compacted),
            shared_segments: shared.segments,
            shared_segment_bytes: shared.bytes,
            history_runs: shared.runs,
            history_runs_sorted: get(&self.positions.sorted),
            catalog_commits: get(&self.catalog.commits),
            catalog_scrub: self.scrub_progress(),
            syncs: SyncPurpose::ALL.map(|p| self.dir.syncs(p)),
        }
    }

    pub(crate) fn staged_pieces(&self) -> u64 {
        self.names.read().branches.values().map(|b| b.staging.len()).sum()
    }

    /// All volumes, by name.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.names.read().by_name.values().map(|v| v.info()).collect()
    }

    /// One volume.
    pub fn volume(&self, name: &str) -> Result<VolumeInfo> {
        Ok(self.names.read().volume(name)?.info())
    }

    /// A read-only handle of a snapshot. While it is held the snapshot can be deleted from sight, and goes on to be read.
    pub fn open_snapshot(self: &Arc<Self>, volume: &str, name: &str) -> Result<Arc<Volume>> {
        let names = self.names.read();
        let state = names.snapshot(names.volume(volume)?, name)?.state.clone();
        Ok(Arc::new(Volume::new(self.clone(), state, true, true)))
    }

    /// What differs between a snapshot and another one of the volume, or (without `to`) what the volume is now.
    pub fn difference(self: &Arc<Self>, volume: &str, from: &str, to: Option<&str>) -> Result<Difference> {
        let to = match to {
            Some(name) => self.open_snapshot(volume, name)?,
            None => self.watch_volume(volume)?,
        };
        Difference::new(self.open_snapshot(volume, from)?, to)
    }

    /// A handle for a target. `read_only` makes the handle read-only, whatever the volume is.
    pub fn open_volume(self: &Arc<Self>, name: &str, read_only: bool) -> Result<Arc<Volume>> {
        // Counted as a user before the names are let go of: an unforced deletion sees it.
        let names = self.names.read();
        let state = names.volume(name)?.clone();
        Ok(Arc::new(Volume::new(self.clone(), state, read_only, true)))
    }

    /// A handle that does not count as a user: for a target that keeps one as long as the volume exists, whether
    /// anybody uses it or not, and opens one with [`Pool::open_volume`] for each client.
    pub fn watch_volume(self: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let state = self.names.read().volume(name)?.clone();
        Ok(Arc::new(Volume::new(self.clone(), state, false, false)))
    }

    /// A read-only handle that counts neither as a user nor in statistics: to measure how fast the volume can be read.
    pub fn survey_volume(self: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let state = self.names.read().volume(name)?.clone();
        Ok(Arc::new(Volume::quiet(self.clone(), state)))
    }

    /// The largest data of one journal record: a longer write may survive a crash in part.
    pub fn max_record_bytes(&self) -> u64 {
        crate::journal::record::MAX_DATA.min(self.config.segment_size / 4)
    }

    /// Pool time, as the next record would have it at least.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now().max(self.journal.last().1)
    }

    /// Tells the maintenance thread that there is work.
    pub(crate) fn kick(&self) {
        self.work.kicks.fetch_add(1, Ordering::Relaxed);
        let mut wanted = self.work.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.work.signal.notify_all();
        }
    }

    /// Blocks until there may be background work, or for `timeout`.
    pub fn wait_for_work(&self, timeout: Duration) {
        let mut wanted = self.work.wanted.lock();
        if !*wanted {
            self.work.signal.wait_for(&mut wanted, timeout);
        }
        *wanted = false;
    }

    /// Waits, for at most `timeout`, until much was written and not synced, and syncs it: so flushes and control operations
    /// find little left to wait for, and a power loss takes little.
    pub fn write_back(&self, timeout: Duration) -> Result<Progress> {
        if !self.journal.wait_for_write_back(timeout) {
            return Ok(Progress::Idle);
        }
        self.check_usable()?;
        self.journal.sync_all()?;
        Ok(Progress::Worked)
    }

    /// Poisons the pool: its owner has lost a thread that it depends on. `reason` says which, and
    /// why.
    pub fn poison(&self, reason: &str) {
        self.fault.give_up(reason);
    }

    /// Refuses when the pool is closed or poisoned.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.work.closed.load(Ordering::Acquire) {
            return Err(crate::error::Error::new(ErrorKind::Poisoned, "use the pool: it is closed"));
        }
        self.fault.check()
    }

    /// Makes everything durable and records it; later requests fail. Staged data may stay in the journal.
    pub fn close(&self) -> Result<()> {
        if self.work.closed.swap(true, Ordering::AcqRel) || self.is_only_shown() {
            return Ok(());
        }
        self.fault.check()?;
        self.journal.sync_all()?;
        self.stamp_last()?;
        self.work.done.store(true, Ordering::Release);
        Ok(())
    }

    /// The pool was opened to be read, whatever its parts are: nothing of it is kept, and no backup
    /// is made of it.
    pub fn is_only_shown(&self) -> bool {
        self.only_shown.load(Ordering::Acquire)
    }

    /// The pool was closed, and that went well: nothing is committed any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.work.done.load(Ordering::Acquire) && self.fault.check().is_ok()
    }
}
