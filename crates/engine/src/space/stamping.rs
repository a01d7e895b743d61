//! Stamping physical volumes: when the pool is opened, and from time to time while it is in use
//! (see [`crate::space::stamp`]).
//!
//! Each opening issues a stamp in the commit that begins its incarnation. It writes the stamp to
//! all physical volumes before anything is given out or overwritten. Later stamps use commits that
//! are made anyway. The first commit after [`crate::settings::PoolOptions::stamp_interval`] issues
//! the next stamp, a maintenance step writes it, and the commit after that notes it. A pool without
//! commits changes nothing and needs no stamps.

use super::label::Label;
use super::pv::Pv;
use super::stamp::{self, Age, Bearer, Stamped};
use crate::catalog::{KnownStamps, StampRecord, Txn};
use crate::disk::Disk;
use crate::error::{Result, corrupt, no_space};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uuid::Uuid;

/// Number of physical volumes that are synced at a time.
const AT_A_TIME: usize = 16;

/// The stamps of an open pool. The lock is a leaf.
pub(crate) struct Stamping {
    pub(crate) state: Mutex<StampState>,
    /// The stamp of this opening waits for space on some physical volume. Until it is there,
    /// nothing is written to any.
    pub(crate) waits: AtomicBool,
}

pub(crate) struct StampState {
    /// The last stamp that is committed.
    pub(crate) issued: StampRecord,
    /// Whether the issued stamp has been written to the physical volumes.
    pub(crate) written: bool,
    /// Whether the next commit issues a stamp, however young the last one is.
    due: bool,
    /// The time at which the last stamp was issued, by the world's clock.
    issued_at: u64,
    /// For each physical volume, the last stamp of this life that is durable there.
    pub(crate) borne: BTreeMap<u32, StampRecord>,
    /// Durable stamps that the catalog does not know yet.
    pub(crate) unrecorded: BTreeMap<u32, StampRecord>,
    /// Warnings for the operator, by physical volume.
    pub(crate) problems: BTreeMap<u32, String>,
}

/// The stamps in a transaction, for [`Stamping::stored`] when it is committed.
pub(crate) struct Stored {
    recorded: BTreeMap<u32, StampRecord>,
    issued: Option<(StampRecord, u64)>,
}

/// Compares the stamps of a physical volume with those that the catalog knows.
pub(crate) fn age_of(pv: &Pv, pool: Uuid, known: &KnownStamps) -> Age {
    let stamped = Stamped::read(&*pv.disk, &Bearer { pool, pv_uuid: pv.uuid });
    stamped.age(&known.issued, known.durable.get(&pv.id))
}

impl Stamping {
    /// The stamps of a pool whose opening has issued a stamp and written it to `pvs`. With `waits`,
    /// other physical volumes have no space for it yet.
    pub(crate) fn new(
        issued: StampRecord,
        now: u64,
        (pvs, waits): (&[Arc<Pv>], bool),
        problems: BTreeMap<u32, String>,
    ) -> Self {
        let borne: BTreeMap<u32, StampRecord> = pvs.iter().map(|pv| (pv.id, issued)).collect();
        let unrecorded = borne.clone();
        let (written, due) = (!waits, false);
        let state = StampState { issued, written, due, issued_at: now, borne, unrecorded, problems };
        Stamping { state: Mutex::new(state), waits: AtomicBool::new(waits) }
    }

    /// Fails with [`ErrorKind::NoSpace`] while the stamp of this opening waits for space. Without
    /// that stamp, an older copy of the data directory could not be told from this one.
    ///
    /// [`ErrorKind::NoSpace`]: crate::ErrorKind::NoSpace
    pub(crate) fn check(&self) -> Result<()> {
        match self.waits.load(Ordering::Acquire) {
            true => Err(no_space("write to physical volumes: one has no space for the stamp of this start")),
            false => Ok(()),
        }
    }

    /// Adds to a transaction the stamps that have become durable since the last one, and the next
    /// stamp when it is due.
    pub(crate) fn store(&self, txn: &mut Txn<'_>, now: u64, interval: u64) -> Result<Stored> {
        let state = self.state.lock();
        for (pv, stamp) in &state.unrecorded {
            txn.put_durable_stamp(*pv, stamp)?;
        }
        // Clocks may go back.
        let due = state.written && (state.due || now.abs_diff(state.issued_at) >= interval);
        let next = StampRecord { sequence: state.issued.sequence + 1, ..state.issued };
        if due {
            txn.put_issued_stamp(&next)?;
        }
        Ok(Stored { recorded: state.unrecorded.clone(), issued: due.then_some((next, now)) })
    }

    /// Notes that the transaction of `stored` is committed.
    pub(crate) fn stored(&self, stored: Stored) {
        let state = &mut *self.state.lock();
        state.unrecorded.retain(|pv, stamp| stored.recorded.get(pv) != Some(stamp));
        if let Some((stamp, now)) = stored.issued {
            (state.issued, state.issued_at, state.written, state.due) = (stamp, now, false, false);
        }
    }

    /// Makes the next commit issue a stamp, however young the last one is.
    pub(crate) fn make_due(&self) {
        self.state.lock().due = true;
    }

    /// Forgets a physical volume that leaves the pool.
    pub(crate) fn forget(&self, pv: u32) {
        let state = &mut *self.state.lock();
        state.borne.remove(&pv);
        state.unrecorded.remove(&pv);
        state.problems.remove(&pv);
    }

    /// Returns warnings for the operator.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.state.lock().problems.values().cloned().collect()
    }

    /// Labels and stamps a disk that is about to become physical volume `label.pv`. Both are
    /// durable when this returns.
    pub(crate) fn first(&self, label: &Label, disk: &dyn Disk, path: &str) -> Result<()> {
        let stamp = self.state.lock().issued;
        label.write(disk, path, &stamp)?;
        let state = &mut *self.state.lock();
        state.borne.insert(label.pv, stamp);
        state.unrecorded.insert(label.pv, stamp);
        Ok(())
    }
}

/// Writes `stamp` to `pvs` and makes it durable, on several at a time if `beside`. Returns the
/// result for each. `durable` has the stamps that are known to be durable.
pub(crate) fn stamp_all(
    pvs: &[Arc<Pv>],
    pool: Uuid,
    stamp: &StampRecord,
    durable: &BTreeMap<u32, StampRecord>,
    beside: bool,
    check: &(dyn Fn(&Pv, &Stamped) -> Result<()> + Sync),
) -> Vec<Result<()>> {
    let one = &|pv: &Arc<Pv>| {
        let bearer = Bearer { pool, pv_uuid: pv.uuid };
        let stamped = Stamped::read(&*pv.disk, &bearer);
        check(pv, &stamped)?;
        let known = durable.get(&pv.id).map_or(0, |stamp| stamp.sequence);
        if stamped.latest().is_some_and(|found| found.sequence > known) {
            // After a kill, the later stamp may be in the page cache only. The other copy is the
            // only durable one until this sync.
            stamp::sync(&*pv.disk, &pv.path).inspect_err(|_| pv.note_lost())?;
        }
        stamped.replace(&*pv.disk, &pv.path, &bearer, stamp)?;
        stamp::sync(&*pv.disk, &pv.path).inspect_err(|_| pv.note_lost())
    };
    if !beside || pvs.len() == 1 {
        return pvs.iter().map(one).collect();
    }
    let mut outcomes = Vec::with_capacity(pvs.len());
    for some in pvs.chunks(AT_A_TIME) {
        std::thread::scope(|scope| {
            let start = |pv| std::thread::Builder::new().spawn_scoped(scope, move || one(pv));
            let running: Vec<_> = some.iter().map(|pv| (pv, start(pv))).collect();
            outcomes.extend(running.into_iter().map(|(pv, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(corrupt("stamp: a thread ended"))),
                // No more threads can be started.
                Err(_) => one(pv),
            }));
        });
    }
    outcomes
}
