//! The registry of connections: it counts them, limits them, and ends them on request of the
//! daemon.

use super::stats::{ConnectionInfo, Counters, NbdStats};
use crate::net::admission::{Admission, Full, Limits, ROOM_WAIT, Source};
use crate::net::repeated::Repeated;
use crate::net::transport::{Socket, Transport};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Broken-off connections end as soon as what they wait for does; a shutdown does not wait longer
/// than this for it.
const ABORT_WAIT: Duration = Duration::from_secs(5);

/// A connection as others see it. Unregisters itself when its thread and the workers let
/// go of it.
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) peer: String,
    pub(super) socket: Arc<Socket>,
    /// The canonical name of the export it opened last.
    pub(super) export: Mutex<Option<String>>,
    pub(super) tls: AtomicBool,
    /// It reached the transmission phase, or gave up in order.
    pub(super) negotiated: AtomicBool,
    pub(super) counters: Arc<Counters>,
    accepted: Instant,
    registry: Arc<Registry>,
}

/// All connections of a server.
pub(super) struct Registry {
    state: Mutex<State>,
    ended: Condvar,
    refusals: Repeated,
}

struct State {
    /// Weak, so that a record belongs to its connection alone.
    entries: BTreeMap<u64, Weak<Record>>,
    admission: Admission,
    next_id: u64,
    refused: u64,
    failed: u64,
    /// Sums of the connections that have ended.
    past: Counters,
}

impl Registry {
    pub(super) fn new(limits: Limits) -> Registry {
        let state = State {
            entries: BTreeMap::new(),
            admission: Admission::new(limits),
            next_id: 0,
            refused: 0,
            failed: 0,
            past: Counters::default(),
        };
        Registry { state: Mutex::new(state), ended: Condvar::new(), refusals: Repeated::new() }
    }

    /// Registers a connection that has not negotiated yet; `None` if there is no room for it. One
    /// that makes room by it is broken off, and waited for where many are leaving already.
    pub(super) fn admit(
        registry: &Arc<Registry>,
        socket: Socket,
        (peer, source): (String, Source),
    ) -> Option<Arc<Record>> {
        let mut state = registry.state.lock();
        let deadline = Instant::now() + ROOM_WAIT;
        let (id, goes) = loop {
            let id = state.next_id + 1;
            match state.admission.enter(id, source) {
                Ok(goes) => break (id, goes),
                Err(Full::Leaving) if !registry.ended.wait_until(&mut state, deadline).timed_out() => {}
                Err(full) => {
                    drop(state);
                    registry.refused(&peer, full);
                    return None;
                }
            }
        };
        state.next_id = id;
        let record = Arc::new(Record {
            id,
            peer,
            socket: Arc::new(socket),
            export: Mutex::default(),
            tls: AtomicBool::new(false),
            negotiated: AtomicBool::new(false),
            counters: Arc::default(),
            accepted: Instant::now(),
            registry: registry.clone(),
        });
        state.entries.insert(id, Arc::downgrade(&record));
        let goes = goes.and_then(|id| state.entries.get(&id)).and_then(Weak::upgrade);
        drop(state);
        if let Some(goes) = goes {
            goes.socket.abort();
        }
        Some(record)
    }

    fn refused(&self, peer: &str, full: Full) {
        let refused = {
            let mut state = self.state.lock();
            state.refused += 1;
            state.refused
        };
        if let Some(turn) = self.refusals.turn() {
            let what = match full {
                Full::All | Full::Leaving => "too many NBD connections",
                Full::Own => "too many NBD connections of one address",
            };
            tracing::warn!(peer, refused, unsaid = turn.unsaid(), "{what}");
        }
    }

    /// A connection is to be served: it counts among those that are. `false`: there is no room
    /// among them any more.
    pub(super) fn settle(&self, record: &Record) -> bool {
        let settled = self.state.lock().admission.settle(record.id);
        if let Err(full) = settled {
            self.refused(&record.peer, full);
        }
        settled.is_ok()
    }

    /// The live records. Not while the lock is held: the last reference to one takes the lock when
    /// it goes.
    fn records(&self) -> Vec<Arc<Record>> {
        self.state.lock().entries.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn stats(&self) -> NbdStats {
        let records = self.records();
        let mut stats = {
            let state = self.state.lock();
            NbdStats {
                connections: state.entries.len(),
                accepted: state.next_id,
                refused: state.refused,
                failed_negotiations: state.failed,
                traffic: state.past.read(),
            }
        };
        for record in &records {
            stats.traffic.add(&record.counters.read());
        }
        stats
    }

    pub(super) fn connections(&self) -> Vec<ConnectionInfo> {
        let info = |r: &Arc<Record>| ConnectionInfo {
            id: r.id,
            peer: r.peer.clone(),
            export: r.export.lock().clone(),
            tls: r.tls.load(Ordering::Relaxed),
            age: r.accepted.elapsed(),
            traffic: r.counters.read(),
        };
        self.records().iter().map(info).collect()
    }

    pub(super) fn disconnect(&self, export: &dyn Fn(&str) -> bool, wait: Duration) -> (usize, bool) {
        let mut records = self.records();
        records.retain(|r| r.export.lock().as_deref().is_some_and(export));
        for record in &records {
            record.socket.abort();
        }
        let ids: Vec<u64> = records.iter().map(|r| r.id).collect();
        drop(records);
        let gone = self.wait_until(wait, |state| !ids.iter().any(|id| state.entries.contains_key(id)));
        (ids.len(), gone)
    }

    pub(super) fn shutdown(&self, grace: Duration) -> usize {
        for record in self.records() {
            record.socket.stop_receiving();
        }
        if self.wait_until(grace, |state| state.entries.is_empty()) {
            return 0;
        }
        let rest = self.records();
        for record in &rest {
            record.socket.abort();
        }
        let broken_off = rest.len();
        drop(rest);
        if !self.wait_until(ABORT_WAIT, |state| state.entries.is_empty()) {
            tracing::warn!("some NBD connections wait for a device and did not end");
        }
        broken_off
    }

    fn wait_until(&self, wait: Duration, done: impl Fn(&State) -> bool) -> bool {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        while !done(&state) {
            if self.ended.wait_until(&mut state, deadline).timed_out() {
                return done(&state);
            }
        }
        true
    }
}

impl Record {
    /// What log lines about the connection are marked with.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::debug_span!("nbd", id = self.id, peer = %self.peer)
    }

    /// Whom memory is counted to; each client on a Unix socket is one by itself.
    pub(super) fn source(&self) -> Option<Source> {
        self.peer.parse::<SocketAddr>().ok().map(|address| Source::of(address.ip()))
    }

    /// Logs that the connection has ended. A client that can connect can fail to negotiate as often
    /// as it likes, so the number of such lines is limited.
    pub(super) fn report(&self, result: &std::io::Result<()>) {
        static BROKEN: Repeated = Repeated::new();
        match result {
            Ok(()) => tracing::debug!("closed"),
            Err(e) if !self.negotiated.load(Ordering::Relaxed) => {
                tracing::debug!(error = %e, "negotiation ended without an export");
            }
            Err(e) => {
                if let Some(turn) = BROKEN.turn() {
                    let (peer, export) = (&self.peer, self.export.lock().clone());
                    tracing::info!(peer, export, error = %e, unsaid = turn.unsaid(), "the NBD connection was broken");
                }
            }
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.entries.remove(&self.id);
        state.admission.leave(self.id);
        state.past.absorb(&self.counters);
        if !self.negotiated.load(Ordering::Relaxed) {
            state.failed += 1;
        }
        drop(state);
        self.registry.ended.notify_all();
    }
}
