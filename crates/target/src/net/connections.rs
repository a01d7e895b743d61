//! The connections of a server ([`Connections`]): they are counted, limited, found, and ended on
//! request of the daemon.

use super::admission::{Admission, Full, Limits, ROOM_WAIT, Source};
use super::repeated::Repeated;
use super::transport::Transport;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tracing::field::Value;

/// Time that a shutdown waits for aborted connections to end. An aborted connection ends when the
/// work that it waits for ends.
pub(crate) const ABORT_WAIT: Duration = Duration::from_secs(5);

/// The entry of a connection in [`Connections`]. The connection's thread and the workers own it.
/// When the last of them drops it, it calls [`Connections::leave`].
pub(crate) trait Entry {
    /// Returns the number of the connection.
    fn id(&self) -> u64;

    /// Returns the byte stream of the connection.
    fn transport(&self) -> &dyn Transport;
}

/// All connections of a server. `E` is the entry of a connection. `T` has the protocol's totals
/// over ended connections.
pub(crate) struct Connections<E, T> {
    /// Name of the protocol in log lines.
    protocol: &'static str,
    state: Mutex<State<E, T>>,
    ended: Condvar,
    refusals: Repeated,
}

struct State<E, T> {
    /// The entries by number. The references are weak, so only the connection owns its entry.
    entries: BTreeMap<u64, Weak<E>>,
    admission: Admission,
    next_id: u64,
    refused: u64,
    totals: T,
}

/// Numbers of connections: open, accepted so far, and refused so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) connections: usize,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

impl<E: Entry, T: Default> Connections<E, T> {
    pub(crate) fn new(protocol: &'static str, limits: Limits) -> Connections<E, T> {
        let state = State {
            entries: BTreeMap::new(),
            admission: Admission::new(limits),
            next_id: 0,
            refused: 0,
            totals: T::default(),
        };
        Connections { protocol, state: Mutex::new(state), ended: Condvar::new(), refusals: Repeated::new() }
    }

    /// Registers a new connection. `make` makes its entry with its number. Returns `None` if there
    /// are too many connections. Aborts another connection if that makes room. Waits at most
    /// [`ROOM_WAIT`] if many aborted connections have not ended yet.
    pub(crate) fn admit(
        &self,
        (peer, source): (impl Value, Source),
        make: impl FnOnce(u64) -> E,
    ) -> Option<Arc<E>> {
        let mut state = self.state.lock();
        let deadline = Instant::now() + ROOM_WAIT;
        let (id, goes) = loop {
            let id = state.next_id + 1;
            match state.admission.enter(id, source) {
                Ok(goes) => break (id, goes),
                Err(Full::Leaving) if !self.ended.wait_until(&mut state, deadline).timed_out() => {}
                Err(full) => {
                    self.refused(state, peer, full);
                    return None;
                }
            }
        };
        state.next_id = id;
        let entry = Arc::new(make(id));
        state.entries.insert(id, Arc::downgrade(&entry));
        let goes = goes.and_then(|id| state.entries.get(&id)).and_then(Weak::upgrade);
        drop(state);
        if let Some(goes) = goes {
            goes.transport().abort();
        }
        Some(entry)
    }

    fn refused(&self, mut state: MutexGuard<'_, State<E, T>>, peer: impl Value, full: Full) {
        state.refused += 1;
        let (refused, protocol) = (state.refused, self.protocol);
        drop(state);
        if let Some(turn) = self.refusals.turn() {
            let whose = match full {
                Full::All | Full::Leaving => "",
                Full::Own => " of one address",
            };
            let suppressed = turn.suppressed();
            tracing::warn!(peer = peer, refused, suppressed, "too many {protocol} connections{whose}");
        }
    }

    /// Counts a connection as settled, when its client has completed the negotiation or login.
    /// Returns false if there are too many settled connections.
    pub(crate) fn settle(&self, entry: &E, peer: impl Value) -> bool {
        let mut state = self.state.lock();
        match state.admission.settle(entry.id()) {
            Ok(()) => true,
            Err(full) => {
                self.refused(state, peer, full);
                false
            }
        }
    }

    /// Unregisters an ended connection. `add` adds its numbers to the totals.
    pub(crate) fn leave(&self, id: u64, add: impl FnOnce(&mut T)) {
        let mut state = self.state.lock();
        state.entries.remove(&id);
        state.admission.leave(id);
        add(&mut state.totals);
        drop(state);
        self.ended.notify_all();
    }

    /// Changes the totals with `add`.
    pub(crate) fn add(&self, add: impl FnOnce(&mut T)) {
        add(&mut self.state.lock().totals);
    }

    /// Calls `look` with the numbers of connections and the totals, all of one instant.
    pub(crate) fn count<N>(&self, look: impl FnOnce(Count, &T) -> N) -> N {
        let state = self.state.lock();
        let (connections, accepted) = (state.entries.len(), state.next_id);
        look(Count { connections, accepted, refused: state.refused }, &state.totals)
    }

    /// Returns the entries of the open connections. A caller must not drop them while it holds the
    /// lock, because the drop of the last reference takes the lock.
    pub(crate) fn entries(&self) -> Vec<Arc<E>> {
        self.state.lock().entries.values().filter_map(Weak::upgrade).collect()
    }

    /// Aborts connections, and waits at most `wait` for their end. Returns their number, and
    /// whether all have ended.
    pub(crate) fn end(&self, entries: Vec<Arc<E>>, wait: Duration) -> (usize, bool) {
        for entry in &entries {
            entry.transport().abort();
        }
        let ids: Vec<u64> = entries.iter().map(|entry| entry.id()).collect();
        drop(entries);
        let gone = self.wait_until(wait, |state| !ids.iter().any(|id| state.entries.contains_key(id)));
        (ids.len(), gone)
    }

    /// Waits at most `wait` until there are no connections. Returns whether there are none.
    pub(crate) fn wait_empty(&self, wait: Duration) -> bool {
        self.wait_until(wait, |state| state.entries.is_empty())
    }

    /// Stops receiving on all connections, and waits at most `grace` for their end. Then aborts the
    /// rest. Returns the number of aborted connections, and whether all connections have ended.
    pub(crate) fn shutdown(&self, grace: Duration) -> (usize, bool) {
        for entry in self.entries() {
            entry.transport().stop_receiving();
        }
        if self.wait_empty(grace) {
            return (0, true);
        }
        let (broken_off, _) = self.end(self.entries(), Duration::ZERO);
        (broken_off, self.wait_empty(ABORT_WAIT))
    }

    fn wait_until(&self, wait: Duration, done: impl Fn(&State<E, T>) -> bool) -> bool {
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
