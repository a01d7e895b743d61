//! [`Core`]: all parts of an open pool, without the state of background work.
//!
//! Higher layers add methods that work on several parts. Nothing here runs by itself:
//! [`crate::destage`] and [`crate::upkeep`] do the work.

use crate::area::Area;
use crate::branch::namespace::Namespace;
use crate::catalog::progress::{DataScrub, Scrub};
use crate::catalog::{Catalog, LineRecord};
use crate::cdp::log::flushes::Flushes;
use crate::cdp::log::profile::Profiles;
use crate::cdp::log::shared::SharedLog;
use crate::clock::PoolClock;
use crate::damage::Damage;
use crate::disk::layout::spares::Spares;
use crate::disk::{CountingDir, OpenFiles};
use crate::error::{ErrorKind, Result};
use crate::fault::{AlarmedMutex, AlarmedRwLock, Fault};
use crate::grace::Readers;
use crate::ids::{Lsn, VolumeId};
use crate::info::{JournalLoss, Salvage};
use crate::journal::Journal;
use crate::map::Map;
use crate::pace::Pace;
use crate::repairs::Repairs;
use crate::settings::{PoolConfig, PoolOptions};
use crate::shortage::{Deletions, Shortages};
use crate::space::catalog_room::CatalogRoom;
use crate::space::lent::Lent;
use crate::space::pv::PvTable;
use crate::space::reservations::{Space, Totals};
use crate::space::stamping::Stamping;
use crate::sums::UnitSums;
use crate::throttle::Neighbours;
use crate::world::World;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// The parts of an open pool, without the state of background work.
///
/// Lock order: `pv_operations`, a branch's `materialize_lock`, the destager's state, `names`, the
/// journal's sequencing lock, then leaves.
pub(crate) struct Core {
    pub(crate) uuid: Uuid,
    pub(crate) config: PoolConfig,
    /// The feature word of the superblock, as of the last commit. See [`Core::has_feature`].
    pub(crate) features: AtomicU64,
    pub(crate) options: PoolOptions,
    pub(crate) dir: Arc<CountingDir>,
    /// The files of histories, which are opened when they are used.
    pub(crate) files: OpenFiles,
    /// The segments that histories share.
    pub(crate) shared: SharedLog,
    /// Profiles of segments, for timelines.
    pub(crate) profiles: Profiles,
    pub(crate) world: World,
    pub(crate) clock: Arc<PoolClock>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) journal: Journal,
    pub(crate) fault: Arc<Fault>,
    pub(crate) damage: Damage,
    pub(crate) repairs: Repairs,
    /// The sums of data in place.
    pub(crate) sums: UnitSums,
    pub(crate) shortages: Shortages,
    pub(crate) pace: Pace,
    pub(crate) neighbours: Neighbours,
    pub(crate) catalog_room: CatalogRoom,
    pub(crate) readers: Readers,
    pub(crate) space: Space,
    /// Slots that writers may fill before they are sequenced.
    pub(crate) lent: Arc<Lent>,
    pub(crate) map: Map,
    pub(crate) pvs: PvTable,
    pub(crate) names: AlarmedRwLock<Namespace>,
    pub(crate) positions: SharedPositions,
    pub(crate) deletions: Mutex<BTreeMap<Area, Deletions>>,
    /// The lines of volumes, and their marks: by volume, then by LSN.
    pub(crate) lines: RwLock<BTreeMap<VolumeId, BTreeMap<Lsn, LineRecord>>>,
    pub(crate) flushes: Flushes,
    pub(crate) scrub: Scrub,
    pub(crate) data_scrub: DataScrub,
    pub(crate) stamping: Stamping,
    /// Disks that wait for a member of a layout to fail.
    pub(crate) spares: Spares,
    /// Held while a physical volume is added, drained or removed: only one such operation runs at a
    /// time.
    pub(crate) pv_operations: AlarmedMutex<()>,
    pub(crate) work: Work,
    pub(crate) journal_loss: OnceLock<JournalLoss>,
    /// The result of an opening for salvage. Only such an opening sets it.
    pub(crate) salvage: OnceLock<Salvage>,
    /// The pool was opened only to be read, whatever the ages of its parts: nothing of it may be
    /// kept.
    pub(crate) only_shown: AtomicBool,
    pub(crate) _lock: Box<dyn Send + Sync>,
}

/// The part of the destager's state that other components read.
#[derive(Default)]
pub(crate) struct SharedPositions {
    preserved: AtomicU64,
    destaged: AtomicU64,
    /// The last LSN that the opening found in the journal.
    found: AtomicU64,
    /// Everything up to this LSN is in place and can be found, though the catalog may not have that
    /// yet. Every record with a pool time before `settled_time` is among it.
    pub(crate) settled: AtomicU64,
    pub(crate) settled_time: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) allocated: AtomicU64,
    /// The place of a slot depends on the chunk that it is for, in branches without a placement of
    /// their own. No slots are lent to them then, because a lent slot lies somewhere before its
    /// chunk is known.
    pub(crate) placed_by_chunk: AtomicBool,
    /// Bytes that references name which are not in place yet.
    pub(crate) referred: AtomicU64,
    /// [`Core::most_referred`] when slots were last lent. To compute it takes locks, and each large
    /// write needs it.
    pub(crate) may_be_referred: AtomicU64,
    /// Bytes that were written by reference since the pool was opened.
    pub(crate) written_direct: AtomicU64,
    /// Bytes of writes, since the pool was opened, that histories recorded without a copy.
    pub(crate) recorded_bare: AtomicU64,
    /// The last write that needed room for its history was refused.
    pub(crate) history_refused: AtomicBool,
    /// Number of times that a request carried out records itself, for a history.
    pub(crate) history_waits: AtomicU64,
    /// Open moments that were not settled when they were opened.
    pub(crate) unsettled: crate::branch::unsettled::UnsettledMoments,
    /// Time of the monotonic clock at which a large write last found that clients write more than a
    /// burst; 0 stands for never.
    pub(crate) streamed: AtomicU64,
    /// Number of snapshots that policies deleted.
    pub(crate) auto_deleted: AtomicU64,
    /// Bytes of slots that were freed and can be given out again, since the pool was opened.
    pub(crate) returned: AtomicU64,
    /// Bytes by which harder compression has reduced histories.
    pub(crate) compacted: AtomicU64,
    /// Number of runs that were sorted into segments of their own branches.
    pub(crate) sorted: AtomicU64,
    /// Cost of preserving.
    pub(crate) preserving: crate::branch::counters::PreserveCounters,
    /// A draining physical volume waits for space elsewhere.
    pub(crate) drain_stalled: AtomicBool,
    /// Why a branch that is being filled can't continue.
    pub(crate) completion_stalled: Mutex<Option<String>>,
}

/// Wakes the maintenance thread.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) wanted: Mutex<bool>,
    /// Number of calls so far.
    pub(crate) kicks: AtomicU64,
    /// Time of the monotonic clock at which policies are checked again.
    pub(crate) policies_after: AtomicU64,
    /// Time of the monotonic clock at which a task goes on that pauses because of its rate; 0:
    /// there is none.
    pub(crate) due: AtomicU64,
    pub(crate) signal: Condvar,
    pub(crate) closed: AtomicBool,
    /// The pool was closed without an error.
    pub(crate) done: AtomicBool,
}

impl SharedPositions {
    /// Notes the last LSN that the opening found in the journal.
    pub(crate) fn note_found(&self, last: Lsn) {
        self.found.store(last.0, Ordering::Relaxed);
    }

    /// Notes the positions of a commit.
    pub(crate) fn committed(&self, preserved: Lsn, destaged: Lsn) {
        self.preserved.store(preserved.0, Ordering::Release);
        self.destaged.store(destaged.0, Ordering::Relaxed);
    }

    /// Returns the last LSN up to which everything is preserved, as of the last commit.
    pub(crate) fn preserved(&self) -> Lsn {
        Lsn(self.preserved.load(Ordering::Acquire))
    }

    /// Returns the last LSN up to which everything is in place, as of the last commit.
    pub(crate) fn destaged(&self) -> Lsn {
        Lsn(self.destaged.load(Ordering::Relaxed))
    }

    /// Returns the last LSN that the opening found in the journal.
    pub(crate) fn found(&self) -> Lsn {
        Lsn(self.found.load(Ordering::Relaxed))
    }

    /// Returns the last LSN up to which everything is in place and can be found.
    pub(crate) fn settled(&self) -> Lsn {
        Lsn(self.settled.load(Ordering::Acquire))
    }
}

impl Core {
    /// Returns whether writers pay for room before the journal is full.
    pub(crate) fn is_throttled(&self) -> bool {
        !self.options.longest_delay.is_zero() && self.neighbours.are_there(|| self.world.clock.monotonic())
    }

    /// Number of bytes of data that one journal record has at most. A longer write may survive a
    /// crash in part.
    pub(crate) fn max_record_bytes(&self) -> u64 {
        crate::journal::record::MAX_DATA.min(self.config.segment_size / 4)
    }

    /// Returns whether the catalog has the bit of a feature, durably. Nothing of the feature may be
    /// written before (F1).
    pub(crate) fn has_feature(&self, bit: u64) -> bool {
        self.features.load(Ordering::Acquire) & bit != 0
    }

    /// Returns the pool's space. Slots that are lent and not taken count as available, because the
    /// destager takes them back when something else needs space. Every decision on whether space
    /// is low uses these numbers.
    pub(crate) fn totals(&self) -> Totals {
        self.space.totals().with_lent(self.lent.bytes())
    }

    /// Returns the space of an area, in the same way.
    pub(crate) fn totals_of(&self, area: Area) -> Totals {
        self.space.totals_of(area).with_lent(self.lent.bytes_of(area))
    }

    /// Returns the earliest pool time that the next record can have.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now().max(self.journal.last().time)
    }

    /// Wakes the maintenance thread because there is work.
    pub(crate) fn wake(&self) {
        self.work.kicks.fetch_add(1, Ordering::Relaxed);
        let mut wanted = self.work.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.work.signal.notify_all();
        }
    }

    /// Returns an error if the pool is closed or poisoned.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.work.closed.load(Ordering::Acquire) {
            return Err(crate::error::Error::new(ErrorKind::Poisoned, "use the pool: it is closed"));
        }
        self.fault.check()
    }

    /// Returns whether the pool was opened only to be read, whatever the ages of its parts. Nothing
    /// that is done to it is kept, and no backup is made of it.
    pub(crate) fn is_only_shown(&self) -> bool {
        self.only_shown.load(Ordering::Acquire)
    }

    /// Returns whether the pool was closed without an error: nothing is committed any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.work.done.load(Ordering::Acquire) && self.fault.check().is_ok()
    }
}
