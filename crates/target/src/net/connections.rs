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

/// Broken-off connections end as soon as what they wait for does; a shutdown does not wait longer
/// than this for it.
pub(crate) const ABORT_WAIT: Duration = Duration::from_secs(5);

/// A connection as others see it. It belongs to its connection's thread and the workers; when they
/// have let go of it, it calls [`Connections::leave`].
pub(crate) trait Entry {
    /// The number that it was registered with.
    fn id(&self) -> u64;

    /// Its byte stream.
    fn transport(&self) -> &dyn Transport;
}

/// All connections of a server, each as an `E`. `T` is what the protocol counts of connections that
/// have ended.
pub(crate) struct Connections<E, T> {
    /// What log lines call the protocol.
    protocol: &'static str,
    state: Mutex<State<E, T>>,
    ended: Condvar,
    refusals: Repeated,
}

struct State<E, T> {
    /// Weak, so that an entry belongs to its connection alone.
    entries: BTreeMap<u64, Weak<E>>,
    admission: Admission,
    next_id: u64,
    refused: u64,
    totals: T,
}

/// How many connections there are and were.
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

    /// Registers a connection that has shown nothing yet, made by `make` with its number; `None` if
    /// there is no room for it. One that makes room by it is broken off, and waited for where many
    /// are leaving already.
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

    /// A connection has shown what it had to: it counts among those that are served. `false`: there
    /// is no room among them any more.
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

    /// A connection has ended; `add` counts it.
    pub(crate) fn leave(&self, id: u64, add: impl FnOnce(&mut T)) {
        let mut state = self.state.lock();
        state.entries.remove(&id);
        state.admission.leave(id);
        add(&mut state.totals);
        drop(state);
        self.ended.notify_all();
    }

    /// Counts something.
    pub(crate) fn add(&self, add: impl FnOnce(&mut T)) {
        add(&mut self.state.lock().totals);
    }

    /// Looks at the numbers, all of one instant.
    pub(crate) fn count<N>(&self, look: impl FnOnce(Count, &T) -> N) -> N {
        let state = self.state.lock();
        let (connections, accepted) = (state.entries.len(), state.next_id);
        look(Count { connections, accepted, refused: state.refused }, &state.totals)
    }

    /// The live entries. Not while the lock is held: the last reference to one takes the lock when
    /// it goes.
    pub(crate) fn entries(&self) -> Vec<Arc<E>> {
        self.state.lock().entries.values().filter_map(Weak::upgrade).collect()
    }

    /// Breaks connections off, and waits for their end. Tells how many there were, and whether they
    /// all ended.
    pub(crate) fn end(&self, entries: Vec<Arc<E>>, wait: Duration) -> (usize, bool) {
        for entry in &entries {
            entry.transport().abort();
        }
        let ids: Vec<u64> = entries.iter().map(|entry| entry.id()).collect();
        drop(entries);
        let gone = self.wait_until(wait, |state| !ids.iter().any(|id| state.entries.contains_key(id)));
        (ids.len(), gone)
    }

    /// Waits until there are no connections; false if there still are.
    pub(crate) fn wait_empty(&self, wait: Duration) -> bool {
        self.wait_until(wait, |state| state.entries.is_empty())
    }

    /// Reads nothing more from connections, and waits; then breaks the rest off. Tells how many
    /// those were, and whether they all ended.
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
