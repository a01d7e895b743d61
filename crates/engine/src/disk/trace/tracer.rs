//! Whether disks are traced, and the disks that can be.

use super::access::{DiskAccess, RawAccess};
use super::buffer::{Buffer, MAX_BYTES};
use crate::disk::Disk;
use crate::world::Clock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Accesses that were traced, as bytes of a trace file.
#[derive(Debug, Default)]
pub struct TracePart {
    /// Accesses, in the order in which they ended. Only those of one thread have an order.
    pub(crate) pages: Vec<Vec<RawAccess>>,
    /// Number of accesses that were lost since the last part, because the trace had no room.
    pub lost: u64,
}

impl TracePart {
    /// Returns the number of accesses.
    pub fn len(&self) -> usize {
        self.pages.iter().map(Vec::len).sum()
    }

    /// Returns whether there are no accesses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A disk that can be traced. All handles of one name share it.
pub(super) struct Traced {
    /// Number of the disk in traces.
    pub(super) number: u16,
    /// Number of accesses that are under way. Accesses that began without a trace are left out.
    pub(super) depth: AtomicU32,
}

struct Known {
    traced: Arc<Traced>,
    /// The handle that was opened last.
    disk: Weak<dyn Disk>,
}

/// Traces accesses to disks while a trace is under way.
pub(crate) struct Tracer {
    /// The trace that is under way; 0: none.
    session: AtomicU64,
    /// Time of the monotonic clock at which the trace began.
    started: AtomicU64,
    pub(super) clock: Arc<dyn Clock>,
    buffer: Buffer,
    known: Mutex<BTreeMap<String, Known>>,
    /// Number of traces so far. It is held while one begins or ends.
    sessions: Mutex<u64>,
}

impl Tracer {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Tracer {
        Tracer::with_room(clock, MAX_BYTES)
    }

    /// Makes a tracer whose accesses take `bytes` at most until they are taken.
    pub(super) fn with_room(clock: Arc<dyn Clock>, bytes: usize) -> Tracer {
        Tracer {
            session: AtomicU64::new(0),
            started: AtomicU64::new(0),
            clock,
            buffer: Buffer::new(bytes),
            known: Mutex::default(),
            sessions: Mutex::new(0),
        }
    }

    /// Returns the trace that is under way; 0: none.
    #[inline]
    pub(super) fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }

    /// Begins a trace. False if one is under way.
    pub(crate) fn begin(&self) -> bool {
        let mut sessions = self.sessions.lock();
        if self.session() != 0 {
            return false;
        }
        *sessions += 1;
        self.buffer.begin(*sessions);
        self.started.store(self.clock.monotonic(), Ordering::Relaxed);
        self.session.store(*sessions, Ordering::Release);
        true
    }

    /// Takes the accesses that wait.
    pub(crate) fn take(&self) -> TracePart {
        let (pages, lost) = self.buffer.take();
        TracePart { pages, lost }
    }

    /// Ends the trace, if one is under way, and takes the accesses that wait. Accesses that have
    /// not ended are left out.
    pub(crate) fn end(&self) -> TracePart {
        let _sessions = self.sessions.lock();
        self.session.store(0, Ordering::Release);
        let (pages, lost) = self.buffer.begin(0);
        TracePart { pages, lost }
    }

    /// Returns how long the trace has been under way at a time of the monotonic clock, in
    /// nanoseconds.
    pub(super) fn since(&self, monotonic: u64) -> u64 {
        monotonic.saturating_sub(self.started.load(Ordering::Relaxed))
    }

    /// Notes an access of a trace.
    pub(super) fn note(&self, session: u64, access: &DiskAccess) {
        self.buffer.push(session, access.encode());
    }

    /// Returns the disk with this name, which `disk` is a handle of.
    pub(super) fn known(&self, name: &str, disk: &Arc<dyn Disk>) -> Arc<Traced> {
        let mut known = self.known.lock();
        // A pool with more names has used far more disks than there can be at a time.
        let number = u16::try_from(known.len()).unwrap_or(u16::MAX);
        let disk = Arc::downgrade(disk);
        match known.get_mut(name) {
            Some(known) => {
                known.disk = disk;
                known.traced.clone()
            }
            None => {
                let traced = Arc::new(Traced { number, depth: AtomicU32::new(0) });
                known.insert(name.to_owned(), Known { traced: traced.clone(), disk });
                traced
            }
        }
    }

    /// Returns number and length in bytes of the disk with this name, if it is open.
    pub(crate) fn find(&self, name: &str) -> Option<(u16, u64)> {
        let (number, disk) = {
            let known = self.known.lock();
            let found = known.get(name)?;
            (found.traced.number, found.disk.upgrade()?)
        };
        Some((number, disk.len().unwrap_or(0)))
    }
}
