//! The registry of connections and sessions: it counts them, limits them, finds them, and ends them
//! on request of the daemon.

use super::pdu::{AsyncEvent, async_message};
use super::record::{Record, Records};
use super::session::{Key, Member, Session, SessionList};
use super::stats::{ConnectionInfo, IscsiStats, SessionClient, SessionInfo};
use crate::net::admission::{Limits, Source};
use crate::net::connections::{ABORT_WAIT, Connections};
use crate::net::repeated::Repeated;
use crate::net::transport::Transport;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::field::display;

/// Limits of sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionLimits {
    pub(super) all: usize,
    /// Maximum number of sessions of one address.
    pub(super) own: usize,
}

impl SessionLimits {
    /// Returns the maximum number of sessions under one initiator name. It is larger than the
    /// maximum of one address, unless that is configured higher. So a host that only claims a name
    /// cannot use up the sessions of the owner of the name.
    fn of_initiator(&self) -> usize {
        (self.all - self.all / 4).max(self.own)
    }

    /// Returns the maximum number of discovery sessions. Any initiator may open them.
    fn discovery(&self) -> usize {
        self.all.div_ceil(4)
    }
}

/// The reason why a session could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoSession {
    TooMany,
    NoPort,
    /// The session that it would replace belongs to another account.
    Foreign,
    /// The session that it replaces did not end in time.
    Stuck,
}

/// All connections and sessions of a server.
pub(super) struct Registry {
    connections: Arc<Records>,
    sessions: Mutex<Sessions>,
    session_ended: Condvar,
    session_limits: SessionLimits,
    reinstatements: Repeated,
}

/// A session, and the source that it counts for.
struct Entered {
    session: Arc<Session>,
    source: Source,
    /// Whether the session is a discovery session that makes room for a new one. It was aborted and
    /// has not ended yet.
    leaving: bool,
}

impl Entered {
    fn discovers(&self) -> bool {
        self.session.key.target.is_none()
    }
}

#[derive(Default)]
struct Sessions {
    all: BTreeMap<u16, Entered>,
    next_tsih: u16,
}

impl Sessions {
    /// Finds room for one more session of `source` under an initiator name. If the result is a
    /// session, it makes room, and the caller must abort it.
    fn room(
        &mut self,
        limits: SessionLimits,
        key: &Key,
        source: Source,
    ) -> Result<Option<Arc<Session>>, NoSession> {
        let staying = || self.all.values().filter(|s| !s.leaving);
        let own = staying().filter(|s| s.source == source).count();
        let named = staying().filter(|s| s.session.key.initiator == key.initiator).count();
        if staying().count() >= limits.all || own >= limits.own || named >= limits.of_initiator() {
            return Err(NoSession::TooMany);
        }
        if key.target.is_some() || staying().filter(|s| s.discovers()).count() < limits.discovery() {
            return Ok(None);
        }
        if self.all.values().filter(|s| s.leaving).count() >= limits.discovery() {
            return Err(NoSession::TooMany);
        }
        // Discovery takes a short time. The source with most discovery sessions loses its oldest
        // one.
        let mut sources: HashMap<Source, (usize, Instant, u16)> = HashMap::new();
        for (tsih, found) in self.all.iter().filter(|(_, s)| !s.leaving && s.discovers()) {
            let of = sources.entry(found.source).or_insert((0, found.session.began, *tsih));
            of.0 += 1;
            if found.session.began < of.1 {
                (of.1, of.2) = (found.session.began, *tsih);
            }
        }
        let most = sources.into_values().max_by_key(|(count, began, _)| (*count, std::cmp::Reverse(*began)));
        let goes = most.and_then(|(_, _, tsih)| self.all.get_mut(&tsih));
        Ok(goes.map(|entered| {
            entered.leaving = true;
            entered.session.clone()
        }))
    }
}

impl SessionList for Registry {
    fn forget(&self, session: &Session) {
        let gone = self.sessions.lock().all.remove(&session.tsih);
        drop(gone);
        self.session_ended.notify_all();
    }

    fn all(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().all.values().map(|s| s.session.clone()).collect()
    }
}

impl Registry {
    pub(super) fn new(limits: Limits, session_limits: SessionLimits) -> Registry {
        Registry {
            connections: Arc::new(Connections::new("iSCSI", limits)),
            sessions: Mutex::default(),
            session_ended: Condvar::new(),
            session_limits,
            reinstatements: Repeated::new(),
        }
    }

    /// Registers a connection that is not logged in yet. Returns `None` if there is no room for it.
    pub(super) fn admit(
        &self,
        transport: Arc<dyn Transport>,
        addresses: (SocketAddr, SocketAddr),
        portal_group: u16,
    ) -> Option<Arc<Record>> {
        Record::admit(&self.connections, transport, addresses, portal_group)
    }

    /// Counts a connection among the logged-in connections, before it belongs to a session. Returns
    /// false if there is no room.
    pub(super) fn settle(&self, record: &Record) -> bool {
        self.connections.settle(record, display(record.peer))
    }

    /// Counts a failed login.
    pub(super) fn login_failed(&self, authentication: bool) {
        self.connections.add(|totals| {
            totals.failed_logins += 1;
            totals.failed_authentications += u64::from(authentication);
        });
    }

    /// Makes a session of the account `user`: `make` makes it for its TSIH. A session with the same
    /// key ends first, because the new login reinstates it (6.3.5). If the old session has proven
    /// another account, the new login is refused, because any initiator can send any name and ISID.
    pub(super) fn make_session(
        &self,
        key: &Key,
        (user, peer): (Option<&str>, SocketAddr),
        make: impl FnOnce(u16) -> Option<Arc<Session>>,
    ) -> Result<Arc<Session>, NoSession> {
        let deadline = Instant::now() + ABORT_WAIT;
        let mut sessions = self.sessions.lock();
        while let Some(old) = sessions.all.values().find(|s| s.session.key == *key) {
            let old = old.session.clone();
            drop(sessions);
            if old.identity.user.is_some() && old.identity.user.as_deref() != user {
                old.log_foreign(user, peer);
                return Err(NoSession::Foreign);
            }
            self.tell_reinstatement(&old, peer);
            old.abort();
            sessions = self.sessions.lock();
            let there = |sessions: &Sessions| sessions.all.values().any(|s| Arc::ptr_eq(&s.session, &old));
            while there(&sessions) {
                if self.session_ended.wait_until(&mut sessions, deadline).timed_out() {
                    return Err(NoSession::Stuck);
                }
            }
        }
        let source = Source::of(peer.ip());
        let goes = sessions.room(self.session_limits, key, source)?;
        let tsih = loop {
            sessions.next_tsih = sessions.next_tsih.checked_add(1).unwrap_or(1);
            if !sessions.all.contains_key(&sessions.next_tsih) {
                break sessions.next_tsih;
            }
        };
        let made = make(tsih);
        if let Some(session) = &made {
            sessions.all.insert(tsih, Entered { session: session.clone(), source, leaving: false });
        }
        drop(sessions);
        if let Some(goes) = goes {
            goes.abort();
        }
        made.ok_or(NoSession::NoPort)
    }

    /// Logs that a new login replaces a session. If the login comes from another address, most
    /// likely two hosts have the same initiator name. Each of them ends the session of the other.
    fn tell_reinstatement(&self, old: &Session, peer: SocketAddr) {
        let Some(turn) = self.reinstatements.turn() else { return };
        let (tsih, suppressed) = (old.tsih, turn.suppressed());
        let (initiator, target) = (&old.key.initiator, old.key.target.as_deref().unwrap_or("(discovery)"));
        let before: Vec<SocketAddr> = old.conns().iter().map(|conn| conn.record().peer).collect();
        let elsewhere = !before.is_empty()
            && before.iter().all(|old| old.ip().to_canonical() != peer.ip().to_canonical());
        let old_peer = before.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
        match elsewhere {
            true => tracing::warn!(
                initiator,
                %peer,
                old_peer,
                target,
                tsih,
                suppressed,
                "a session was reinstated from another address; two hosts may have the same initiator name"
            ),
            false => {
                tracing::info!(initiator, %peer, old_peer, target, tsih, suppressed, "a session was reinstated")
            }
        }
    }

    /// Returns the session that a connection requests to join. Returns `None` if the key is not the
    /// key of the session with this TSIH.
    pub(super) fn find_session(&self, tsih: u16, key: &Key) -> Option<Arc<Session>> {
        let sessions = self.sessions.lock();
        sessions.all.get(&tsih).map(|s| &s.session).filter(|s| s.key == *key).cloned()
    }

    pub(super) fn stats(&self) -> IscsiStats {
        let records = self.connections.entries();
        let sessions = self.sessions.lock().all.len();
        let mut stats = self.connections.count(|count, totals| IscsiStats {
            connections: count.connections,
            sessions,
            accepted: count.accepted,
            refused: count.refused,
            failed_logins: totals.failed_logins,
            failed_authentications: totals.failed_authentications,
            traffic: totals.past,
        });
        for record in &records {
            stats.traffic.add(&record.counters.read());
        }
        stats
    }

    pub(super) fn sessions(&self) -> Vec<SessionInfo> {
        self.all().iter().map(|session| describe(session)).collect()
    }

    /// Returns who has a session with a target.
    pub(super) fn clients(&self) -> Vec<SessionClient> {
        let client = |session: &Arc<Session>| {
            Some(SessionClient {
                tsih: session.tsih,
                initiator: session.key.initiator.clone(),
                target: session.key.target.clone()?,
                peers: session.conns().iter().map(|conn| conn.record().peer).collect(),
            })
        };
        self.all().iter().filter_map(client).collect()
    }

    pub(super) fn disconnect(&self, target: &str, initiator: Option<&str>, wait: Duration) -> (usize, bool) {
        let mut records = self.connections.entries();
        records.retain(|r| {
            let by = initiator.is_none() || r.initiator.lock().as_deref() == initiator;
            by && r.target.lock().as_deref() == Some(target)
        });
        self.connections.end(records, wait)
    }

    /// Aborts the connections of sessions, and waits up to `wait` until they have ended. Returns
    /// their number, and whether all of them have ended.
    pub(super) fn end_sessions(&self, tsihs: &[u16], wait: Duration) -> (usize, bool) {
        let sessions: Vec<Arc<Session>> = {
            let sessions = self.sessions.lock();
            let entered = tsihs.iter().filter_map(|tsih| sessions.all.get(tsih));
            entered.map(|entered| entered.session.clone()).collect()
        };
        let conns = sessions.iter().flat_map(|session| session.conns());
        let records = conns.map(|conn| conn.record().clone()).collect();
        drop(sessions);
        self.connections.end(records, wait)
    }

    /// Asks every initiator to log out, and waits. Then it stops receiving, and waits again. At the
    /// end of `grace` it aborts the connections that are left, and returns their number.
    pub(super) fn shutdown(&self, grace: Duration) -> usize {
        let end = Instant::now() + grace;
        let seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX);
        for session in self.all() {
            for conn in session.conns() {
                // Parameter3 is the time until the connections end, in seconds (11.9.1).
                conn.post(async_message(AsyncEvent::RequestLogout, [0; 8], [0, 0, seconds]), &[]);
            }
        }
        if self.connections.wait_empty(grace / 2) {
            return 0;
        }
        let (broken_off, all_ended) =
            self.connections.shutdown(end.saturating_duration_since(Instant::now()));
        if !all_ended {
            tracing::warn!("some iSCSI connections wait for a device and did not end");
        }
        broken_off
    }
}

fn describe(session: &Session) -> SessionInfo {
    let connection = |conn: &Arc<dyn Member>| {
        let (record, digests) = (conn.record(), conn.digests());
        ConnectionInfo {
            cid: conn.cid(),
            peer: record.peer,
            portal: record.local,
            header_digest: digests.header,
            data_digest: digests.data,
            age: record.accepted.elapsed(),
            traffic: record.counters.read(),
        }
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
        in_flight: session.in_flight(),
        keys: session.params.describe(),
        connections: session.conns().iter().map(connection).collect(),
    }
}
