//! The connections there are: to count them, to bound them, and to end them from outside.

use super::stats::{ConnectionInfo, Counters, NbdStats};
use crate::net::budget::Holder;
use crate::net::transport::{Socket, Transport};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Broken-off connections end as soon as what they wait for does; a shutdown does not wait longer than this for it.
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
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Weak, so that a record belongs to its connection alone.
    entries: BTreeMap<u64, Weak<Record>>,
    next_id: u64,
    refused: u64,
    failed: u64,
    /// Sums of the connections that have ended.
    past: Counters,
}

impl Registry {
    /// Registers a connection; `None` if there are `max` already.
    pub(super) fn admit(
        registry: &Arc<Registry>,
        max: usize,
        socket: Socket,
        peer: String,
    ) -> Option<Arc<Record>> {
        let mut state = registry.state.lock();
        if state.entries.len() >= max {
            state.refused += 1;
            let refused = state.refused;
            drop(state);
            if refused.is_power_of_two() {
                tracing::warn!(%peer, max, refused, "too many NBD connections");
            }
            return None;
        }
        state.next_id += 1;
        let record = Arc::new(Record {
            id: state.next_id,
            peer,
            socket: Arc::new(socket),
            export: Mutex::default(),
            tls: AtomicBool::new(false),
            negotiated: AtomicBool::new(false),
            counters: Arc::default(),
            accepted: Instant::now(),
            registry: registry.clone(),
        });
        state.entries.insert(record.id, Arc::downgrade(&record));
        Some(record)
    }

    /// The live records. Not while the lock is held: the last reference to one takes the lock when it goes.
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
            tracing::warn!("some NBD connections are stuck in the device");
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
    pub(super) fn holder(&self) -> Option<Holder> {
        self.peer.parse::<SocketAddr>().ok().map(|address| Holder::of(address.ip()))
    }

    /// The connection has ended.
    pub(super) fn report(&self, result: &std::io::Result<()>) {
        match result {
            Ok(()) => tracing::debug!("closed"),
            // Whoever can connect can fail to negotiate, as often as they like.
            Err(e) if !self.negotiated.load(Ordering::Relaxed) => {
                tracing::debug!(error = %e, "no agreement");
            }
            Err(e) => tracing::info!(error = %e, "connection broken off"),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.entries.remove(&self.id);
        state.past.absorb(&self.counters);
        if !self.negotiated.load(Ordering::Relaxed) {
            state.failed += 1;
        }
        drop(state);
        self.registry.ended.notify_all();
    }
}
