//! The connections and sessions there are: to count them, to bound them, to find them, and to end them from outside.

use super::pdu::{AsyncEvent, async_message};
use super::session::{Key, Session};
use super::stats::{ConnectionInfo, Counters, IscsiStats, IscsiTraffic, SessionInfo};
use crate::net::budget::Holder;
use crate::net::transport::Transport;
use parking_lot::{Condvar, Mutex};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Broken-off connections end as soon as what they wait for does; a shutdown does not wait longer than this for it.
const ABORT_WAIT: Duration = Duration::from_secs(5);

/// A connection as others see it. Unregisters itself when its thread and the workers let go of it.
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) portal_group: u16,
    pub(super) transport: Arc<dyn Transport>,
    /// The target it asked for, noted before the target is opened: whoever makes opening fail and then disconnects the
    /// target misses no connection.
    pub(super) target: Mutex<Option<String>>,
    /// The initiator, from the same moment on.
    pub(super) initiator: Mutex<Option<String>>,
    pub(super) counters: Counters,
    pub(super) accepted: Instant,
    registry: Arc<Registry>,
}

/// Why a session could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoSession {
    TooMany,
    NoPort,
    /// The one it would take the place of belongs to another account.
    Foreign,
    /// The one it takes the place of does not end.
    Stuck,
}

/// All connections and sessions of a server.
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Weak, so that a record belongs to its connection alone.
    connections: BTreeMap<u64, Weak<Record>>,
    /// How many of them each address has; none is absent.
    by_address: HashMap<IpAddr, usize>,
    sessions: BTreeMap<u16, Arc<Session>>,
    next_id: u64,
    next_tsih: u16,
    refused: u64,
    failed_logins: u64,
    failed_authentications: u64,
    /// Sums of the connections that have ended.
    past: IscsiTraffic,
}

impl Registry {
    /// Registers a connection; `None` if there are `max` already, or `max_own` from its address.
    pub(super) fn admit(
        registry: &Arc<Registry>,
        (max, max_own): (usize, usize),
        transport: Arc<dyn Transport>,
        (peer, local): (SocketAddr, SocketAddr),
        portal_group: u16,
    ) -> Option<Arc<Record>> {
        let address = peer.ip().to_canonical();
        let mut state = registry.state.lock();
        let own = state.by_address.get(&address).copied().unwrap_or(0);
        if state.connections.len() >= max || own >= max_own {
            state.refused += 1;
            let refused = state.refused;
            drop(state);
            if refused.is_power_of_two() {
                tracing::warn!(%peer, max, own, max_own, refused, "too many iSCSI connections");
            }
            return None;
        }
        state.next_id += 1;
        let record = Arc::new(Record {
            id: state.next_id,
            peer,
            local,
            portal_group,
            transport,
            target: Mutex::default(),
            initiator: Mutex::default(),
            counters: Counters::default(),
            accepted: Instant::now(),
            registry: registry.clone(),
        });
        state.connections.insert(record.id, Arc::downgrade(&record));
        state.by_address.insert(address, own + 1);
        Some(record)
    }

    /// A login failed.
    pub(super) fn login_failed(&self, authentication: bool) {
        let mut state = self.state.lock();
        state.failed_logins += 1;
        state.failed_authentications += u64::from(authentication);
    }

    /// Makes a session of the account `user` by `make`, given its TSIH. One with the same key is ended first: it is
    /// reinstated (6.3.5). A name and an ISID are only said; what an account has proven to be its own stays so.
    pub(super) fn make_session(
        &self,
        key: &Key,
        (user, peer): (Option<&str>, SocketAddr),
        max: usize,
        make: impl FnOnce(u16) -> Option<Arc<Session>>,
    ) -> Result<Arc<Session>, NoSession> {
        let deadline = Instant::now() + ABORT_WAIT;
        let mut state = self.state.lock();
        while let Some(old) = state.sessions.values().find(|s| s.key == *key).cloned() {
            drop(state);
            if old.identity.user.is_some() && old.identity.user.as_deref() != user {
                old.log_foreign(user, peer);
                return Err(NoSession::Foreign);
            }
            tracing::info!(initiator = %key.initiator, tsih = old.tsih, "session reinstatement");
            old.abort();
            state = self.state.lock();
            let there = |state: &State| state.sessions.values().any(|s| Arc::ptr_eq(s, &old));
            while there(&state) {
                if self.ended.wait_until(&mut state, deadline).timed_out() {
                    return Err(NoSession::Stuck);
                }
            }
        }
        let discovering = || state.sessions.values().filter(|s| s.key.target.is_none()).count();
        if state.sessions.len() >= max || (key.target.is_none() && discovering() >= max.div_ceil(4)) {
            return Err(NoSession::TooMany);
        }
        let tsih = loop {
            state.next_tsih = state.next_tsih.checked_add(1).unwrap_or(1);
            if !state.sessions.contains_key(&state.next_tsih) {
                break state.next_tsih;
            }
        };
        let session = make(tsih).ok_or(NoSession::NoPort)?;
        state.sessions.insert(tsih, session.clone());
        Ok(session)
    }

    /// The session that a connection wants to join.
    pub(super) fn find_session(&self, tsih: u16, key: &Key) -> Option<Arc<Session>> {
        self.state.lock().sessions.get(&tsih).filter(|s| s.key == *key).cloned()
    }

    /// A session has ended.
    pub(super) fn forget(&self, session: &Session) {
        let gone = self.state.lock().sessions.remove(&session.tsih);
        drop(gone);
        self.ended.notify_all();
    }

    pub(super) fn sessions_of(&self, target: &str) -> Vec<Arc<Session>> {
        let state = self.state.lock();
        state.sessions.values().filter(|s| s.key.target.as_deref() == Some(target)).cloned().collect()
    }

    pub(super) fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.state.lock().sessions.values().cloned().collect()
    }

    /// The live records. Not while the lock is held: the last reference to one takes the lock when it goes.
    fn records(&self) -> Vec<Arc<Record>> {
        self.state.lock().connections.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn stats(&self) -> IscsiStats {
        let records = self.records();
        let mut stats = {
            let state = self.state.lock();
            IscsiStats {
                connections: state.connections.len(),
                sessions: state.sessions.len(),
                accepted: state.next_id,
                refused: state.refused,
                failed_logins: state.failed_logins,
                failed_authentications: state.failed_authentications,
                traffic: state.past,
            }
        };
        for record in &records {
            stats.traffic.add(&record.counters.read());
        }
        stats
    }

    pub(super) fn sessions(&self) -> Vec<SessionInfo> {
        self.all_sessions().iter().map(|session| describe(session)).collect()
    }

    pub(super) fn disconnect(&self, target: &str, initiator: Option<&str>, wait: Duration) -> (usize, bool) {
        let mut records = self.records();
        records.retain(|r| {
            let by = initiator.is_none() || r.initiator.lock().as_deref() == initiator;
            by && r.target.lock().as_deref() == Some(target)
        });
        self.end_records(records, wait)
    }

    /// Breaks off the connections of sessions.
    pub(super) fn end_sessions(&self, tsihs: &[u16], wait: Duration) -> (usize, bool) {
        let sessions: Vec<Arc<Session>> = {
            let state = self.state.lock();
            tsihs.iter().filter_map(|tsih| state.sessions.get(tsih).cloned()).collect()
        };
        let conns = sessions.iter().flat_map(|session| session.conns());
        let records = conns.map(|conn| conn.record.clone()).collect();
        drop(sessions);
        self.end_records(records, wait)
    }

    fn end_records(&self, records: Vec<Arc<Record>>, wait: Duration) -> (usize, bool) {
        for record in &records {
            record.transport.abort();
        }
        let ids: Vec<u64> = records.iter().map(|r| r.id).collect();
        drop(records);
        let gone = self.wait_until(wait, |state| !ids.iter().any(|id| state.connections.contains_key(id)));
        (ids.len(), gone)
    }

    /// Asks every initiator to log out, and waits; then reads nothing more; then breaks off.
    pub(super) fn shutdown(&self, grace: Duration) -> usize {
        let end = Instant::now() + grace;
        let seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX);
        for session in self.all_sessions() {
            for conn in session.conns() {
                // Parameter3 is the time that is left (11.9.1).
                conn.post(async_message(AsyncEvent::RequestLogout, [0; 8], [0, 0, seconds]), &[]);
            }
        }
        let empty = |state: &State| state.connections.is_empty();
        if self.wait_until(grace / 2, empty) {
            return 0;
        }
        for record in self.records() {
            record.transport.stop_receiving();
        }
        if self.wait_until(end.saturating_duration_since(Instant::now()), empty) {
            return 0;
        }
        let rest = self.records();
        for record in &rest {
            record.transport.abort();
        }
        let broken_off = rest.len();
        drop(rest);
        if !self.wait_until(ABORT_WAIT, empty) {
            tracing::warn!("some iSCSI connections are stuck in a device");
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
        tracing::debug_span!("iscsi", id = self.id, peer = %self.peer)
    }

    /// Whom memory is counted to.
    pub(super) fn holder(&self) -> Holder {
        Holder::of(self.peer.ip())
    }

    /// The connection has ended.
    pub(super) fn report(&self, result: &std::io::Result<()>) {
        if let Err(e) = result {
            tracing::info!(error = %e, "connection broken off");
        }
    }
}

fn describe(session: &Session) -> SessionInfo {
    let connection = |conn: &Arc<super::conn::Conn>| ConnectionInfo {
        cid: conn.cid,
        peer: conn.record.peer,
        portal: conn.record.local,
        header_digest: conn.params.digests.header,
        data_digest: conn.params.digests.data,
        age: conn.record.accepted.elapsed(),
        traffic: conn.record.counters.read(),
    };
    SessionInfo {
        tsih: session.tsih,
        initiator: session.key.initiator.clone(),
        initiator_alias: session.identity.alias.clone(),
        isid: session.key.isid,
        target: session.key.target.clone(),
        portal_group: session.key.portal_group,
        user: session.identity.user.clone(),
        nexus: session.nexus.as_ref().map(Arc::downgrade).unwrap_or_default(),
        age: session.began.elapsed(),
        keys: session.params.describe(),
        connections: session.conns().iter().map(connection).collect(),
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.connections.remove(&self.id);
        if let Entry::Occupied(mut own) = state.by_address.entry(self.peer.ip().to_canonical()) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        state.past.add(&self.counters.read());
        drop(state);
        self.registry.ended.notify_all();
    }
}
