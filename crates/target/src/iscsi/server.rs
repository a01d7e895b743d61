//! The iSCSI server: it binds the portals and accepts connections. The daemon holds it as an
//! [`IscsiServer`].

use super::command;
use super::config::{IscsiConfig, Portal};
use super::conn::{Conn, Shared};
use super::login::{self, Identity, Login, Step, denied};
use super::params::{Params, Wishes};
use super::pdu::{BHS_LEN, Bhs, Digests};
use super::record::Record;
use super::refusal::{Refusal, Status};
use super::refusals::Line;
use super::registry::{NoSession, Registry, SessionLimits};
use super::serve;
use super::session::{Key, Session, SessionList};
use super::stats::{IscsiStats, SessionClient, SessionInfo};
use super::targets::{AuthPolicy, Grant, Initiator, Proof, Targets};
use crate::net::admission::Limits;
use crate::net::budget::Budget;
use crate::net::buffers::RxBudget;
use crate::net::listener::{Listen, Listener};
use crate::net::pool::WorkerPool;
use crate::net::repeated::Repeated;
use crate::net::transport::{Socket, Transport, send_all};
use crate::net::watch::Watch;
use hindcast_engine::{Error, Result};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A running iSCSI server. It stops at once when it is dropped.
pub struct IscsiServer {
    context: Arc<Context>,
    listeners: Vec<Arc<Listener>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

/// Maximum number of threads of a worker pool for each configured worker. A pool has that many
/// threads when all of its workers wait for disks.
const MAX_WORKERS_RATIO: usize = 8;

/// State that the thread of every connection uses.
struct Context {
    shared: Shared,
    registry: Arc<Registry>,
}

fn shared(
    config: IscsiConfig,
    portals: Vec<Portal>,
    targets: Arc<dyn Targets>,
    watch: Option<Arc<Watch>>,
    [pool, change_pool, slow_pool]: [Arc<WorkerPool>; 3],
) -> Shared {
    let quarter = config.max_in_flight / 4;
    let (gather_budget, reply_budget) =
        (Budget::new(quarter), Budget::new(config.max_in_flight - 2 * quarter));
    if let Some(watch) = &watch {
        watch.look_after(&gather_budget);
        watch.look_after(&reply_budget);
    }
    Shared {
        portals: Arc::new(portals),
        targets,
        pool,
        change_pool,
        slow_pool,
        watch,
        rx_budget: Arc::new(RxBudget::new(quarter)),
        gather_budget,
        reply_budget,
        refusals: Arc::default(),
        attempts: Arc::default(),
        stopping: Arc::new(AtomicBool::new(false)),
        run_held: command::run_held,
        config: Arc::new(config),
    }
}

fn registry(config: &IscsiConfig) -> Arc<Registry> {
    let connections = Limits::new(config.max_connections, config.max_connections_per_address, 0);
    let sessions = SessionLimits { all: config.max_sessions, own: config.max_sessions_per_address };
    Arc::new(Registry::new(connections, sessions))
}

impl IscsiServer {
    /// Binds every portal and starts to accept connections. If a portal cannot be bound, no other
    /// portal stays bound.
    pub fn start(config: IscsiConfig, targets: Arc<dyn Targets>) -> Result<IscsiServer> {
        config.validate()?;
        let mut portals = config.portals.clone();
        let mut listeners = Vec::new();
        for portal in &mut portals {
            let listener = Listener::bind(&Listen::Tcp(portal.listen), 0)?;
            if let Listen::Tcp(address) = listener.address() {
                portal.listen = *address;
            }
            listeners.push(Arc::new(listener));
        }
        let fail = |e| Error::io("start iSCSI workers", e);
        let watch = Watch::start("iscsi-watch").map_err(fail)?;
        let start = |name, share| {
            let pool = WorkerPool::start(name, config.workers, share).map_err(fail)?;
            Ok(Arc::new(pool.watched(&watch, MAX_WORKERS_RATIO * config.workers)))
        };
        // The long commands of one initiator must not delay the commands of other initiators.
        let (all, quarter) = (config.workers, config.workers.div_ceil(4));
        let pools = [start("iscsi-work", all)?, start("iscsi-change", all)?, start("iscsi-slow", quarter)?];
        let registry = registry(&config);
        let shared = shared(config, portals, targets, Some(watch), pools);
        let context = Arc::new(Context { shared, registry });
        let server = IscsiServer { context, listeners, acceptors: Mutex::default() };
        for (n, listener) in server.listeners.iter().enumerate() {
            let (listener, context) = (listener.clone(), server.context.clone());
            let accept = move || {
                let group = context.shared.portals.get(n).map_or(1, |p| p.group);
                listener.accept_loop(&context.shared.stopping, |socket, _| admit(&context, socket, group));
            };
            let acceptor = thread::Builder::new()
                .name("iscsi-accept".into())
                .spawn(accept)
                .map_err(|e| Error::io("start an iSCSI listener", e))?;
            server.acceptors.lock().push(acceptor);
        }
        Ok(server)
    }

    /// Returns the portals that the server listens on, with the ports that the system chose.
    pub fn portals(&self) -> Vec<Portal> {
        self.context.shared.portals.to_vec()
    }

    /// Returns the totals since the server started.
    pub fn stats(&self) -> IscsiStats {
        self.context.registry.stats()
    }

    /// Ends sessions at once, and waits up to `wait` until their connections have ended. Returns
    /// the number of these connections, and whether all of them have ended. An initiator can log in
    /// again at once, unless the caller first makes [`Targets::login`] fail.
    pub fn end_sessions(&self, tsihs: &[u16], wait: Duration) -> (usize, bool) {
        self.context.registry.end_sessions(tsihs, wait)
    }

    /// Returns the current sessions, including discovery sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.context.registry.sessions()
    }

    /// Returns who has a session with a target.
    pub fn clients(&self) -> Vec<SessionClient> {
        self.context.registry.clients()
    }

    /// Ends the sessions with a target, and waits up to `wait` until their connections have ended.
    /// With `initiator` it ends only the sessions of that initiator. An ended session no longer
    /// holds the devices of the target. Returns the number of connections, and whether all of them
    /// have ended. An initiator can log in again at once, unless the caller first makes
    /// [`Targets::login`] fail.
    pub fn disconnect(&self, target: &str, initiator: Option<&str>, wait: Duration) -> (usize, bool) {
        self.context.registry.disconnect(target, initiator, wait)
    }

    /// Stops accepting connections, asks the initiators to log out, finishes the requests in
    /// progress, and closes the connections. After `grace` it aborts the connections that are left.
    /// Returns the number of aborted connections. A caller may call it again.
    pub fn shutdown(&self, grace: Duration) -> usize {
        self.context.shared.stopping.store(true, Ordering::SeqCst);
        for listener in &self.listeners {
            listener.stop();
        }
        for acceptor in self.acceptors.lock().drain(..) {
            let _ = acceptor.join();
        }
        self.context.registry.shutdown(grace)
    }
}

impl Drop for IscsiServer {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// Registers an accepted socket and starts a thread for it.
fn admit(context: &Arc<Context>, socket: Socket, group: u16) {
    static NO_THREAD: Repeated = Repeated::new();
    let config = &context.shared.config;
    let addresses = socket.tune_tcp(config.keepalive).and_then(|()| socket.addresses());
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(e) => {
            tracing::debug!(error = %e, "a new connection was already closed");
            return;
        }
    };
    let Some(record) = context.registry.admit(Arc::new(socket), addresses, group) else {
        return;
    };
    let context = context.clone();
    let spawned = thread::Builder::new().name("iscsi-conn".into()).spawn(move || {
        let _entered = record.span().entered();
        if let Some(result) = run(&context.shared, &context.registry, record.clone()) {
            record.report(&result);
        }
    });
    // The closure owned the record, so the connection is not registered any more.
    if let Err(e) = spawned
        && let Some(turn) = NO_THREAD.turn()
    {
        tracing::warn!(error = %e, suppressed = turn.suppressed(), "the thread of an iSCSI connection could not be started");
    }
}

/// Serves one connection over any transport, on the calling thread. It is for tests and fuzzing.
pub fn serve_transport(
    config: &IscsiConfig,
    targets: Arc<dyn Targets>,
    pool: WorkerPool,
    transport: Arc<dyn Transport>,
    addresses: (SocketAddr, SocketAddr),
) -> io::Result<()> {
    config.validate().map_err(io::Error::other)?;
    let pool = Arc::new(pool);
    let pools = [pool.clone(), pool.clone(), pool];
    let shared = shared(config.clone(), config.portals.clone(), targets, None, pools);
    let registry = registry(config);
    match registry.admit(transport, addresses, 1) {
        Some(record) => run(&shared, &registry, record).unwrap_or(Ok(())),
        None => Ok(()),
    }
}

/// Serves one connection from the first login request to its end. Returns `None` if another thread
/// has taken over the connection.
fn run(shared: &Shared, registry: &Arc<Registry>, record: Arc<Record>) -> Option<io::Result<()>> {
    let watch = |initiator: &str, target: Option<&str>| {
        *record.initiator.lock() = Some(initiator.to_owned());
        *record.target.lock() = target.map(str::to_owned);
    };
    let addresses = (record.peer, record.local);
    let wishes = Wishes::new(&shared.config);
    let login = Login::new(&*shared.targets, wishes, addresses, record.portal_group, &watch);
    let login = login.with_attempts(&shared.attempts);
    let (conn, received) = match negotiate(shared, registry, &record, login) {
        Ok(Some(agreed)) => agreed,
        Ok(None) => {
            record.transport.close();
            return Some(Ok(()));
        }
        Err(e) => return Some(Err(e)),
    };
    drop(record);
    serve::serve(&conn, &received)
}

/// Carries out the login phase. One deadline holds for the whole phase, however slow the initiator
/// is. Returns `None` if no session was made or joined.
fn negotiate(
    shared: &Shared,
    registry: &Arc<Registry>,
    record: &Arc<Record>,
    mut login: Login<'_>,
) -> io::Result<Option<(Arc<Conn>, Vec<u8>)>> {
    let deadline = Instant::now() + shared.config.login_timeout;
    let mut received = Vec::new();
    loop {
        let Some((bhs, data)) = next_request(shared, record, &mut received, deadline)? else {
            registry.login_failed(false);
            return Ok(None);
        };
        let refused = match login.step(&bhs, &data) {
            Step::Reply(pdu) => {
                send_all(&record.transport, &pdu)?;
                continue;
            }
            Step::Refused(pdu, refusal) => (pdu, refusal),
            Step::Agreed => match establish(shared, registry, record, &mut login) {
                Ok(conn) => return Ok(Some((conn, received))),
                Err(Some(refusal)) => (login.reject(refusal), refusal),
                Err(None) => return Ok(None),
            },
        };
        let (pdu, refusal) = refused;
        tell_of_refusal(shared, record, &login, refusal);
        registry.login_failed(refusal.0 == Status::AuthenticationFailure);
        send_all(&record.transport, &pdu)?;
        return Ok(None);
    }
}

/// Logs a refused login. The log has one line for each initiator and reason. A refusal of an
/// initiator that did not send its name is logged at the debug level only.
fn tell_of_refusal(shared: &Shared, record: &Record, login: &Login<'_>, refusal: Refusal) {
    let (Refusal(status, why), peer) = (refusal, record.peer);
    let status = format_args!("{:04x}", status as u16);
    let Some(initiator) = login.claimed() else {
        tracing::debug!(%peer, status, why, "login refused");
        return;
    };
    /// A client can make up names without end. Each has a line of the log, and few are events.
    static EVENTS: Repeated = Repeated::events();
    let line = shared.refusals.lock().refused(Instant::now(), initiator, peer.ip().to_canonical(), why);
    match line {
        Some(Line { times, unwritten }) => {
            tracing::warn!(
                event = EVENTS.turn().map(|_| "client.refused"),
                initiator = ?initiator,
                %peer,
                status,
                why,
                times,
                unwritten,
                "login refused"
            )
        }
        None => tracing::debug!(initiator = ?initiator, %peer, status, why, "login refused"),
    }
}

/// Receives one PDU of the login phase. Returns `None` at the end of the stream, at the deadline,
/// when the server stops, or if the data segment is too long.
fn next_request(
    shared: &Shared,
    record: &Record,
    received: &mut Vec<u8>,
    deadline: Instant,
) -> io::Result<Option<(Bhs, Vec<u8>)>> {
    loop {
        if let Some(bhs) = Bhs::parse(received) {
            let layout = bhs.layout(Digests::default());
            if layout.data_len > login::MAX_DATA {
                return Ok(None);
            }
            if received.len() >= layout.total {
                let data = received[layout.data_at..layout.data_at + layout.data_len].to_vec();
                received.drain(..layout.total);
                return Ok(Some((bhs, data)));
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || shared.stopping.load(Ordering::Relaxed) {
            return Ok(None);
        }
        record.transport.set_timeouts(left, left)?;
        let filled = received.len();
        received.resize(filled + BHS_LEN + login::MAX_DATA, 0);
        let n = match record.transport.receive(&mut received[filled..]) {
            Ok(0) => return Ok(None),
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => 0,
            Err(e) => return Err(e),
        };
        received.truncate(filled + n);
    }
}

/// Returns whether the rules still permit the login. Rules may change during a login. The rules for
/// the address of a connection that joins a session may also differ from those for the first
/// connection of the session. The caller repeats the check when the session is registered. A later
/// change of the rules finds the session.
fn is_still_granted(shared: &Shared, record: &Record, session: &Session) -> bool {
    let (Some(target), Some(nexus)) = (&session.key.target, &session.nexus) else {
        return true;
    };
    let (peer, local, portal_group) = (record.peer, record.local, record.portal_group);
    let proof = Proof::Given(session.identity.user.as_deref());
    let who = Initiator { name: &session.key.initiator, peer, local, portal_group, proof };
    let is_same = |grant: &Grant| {
        let target = shared.targets.open(grant);
        let proven = grant.auth == AuthPolicy::None || session.identity.user.is_some();
        proven
            && grant.access == nexus.access()
            && target.is_ok_and(|target| Arc::ptr_eq(&target, nexus.target()))
    };
    shared.targets.login(target, &who).is_ok_and(|grant| is_same(&grant))
}

impl From<NoSession> for Refusal {
    fn from(why: NoSession) -> Refusal {
        match why {
            NoSession::TooMany => Refusal(Status::OutOfResources, "too many sessions"),
            NoSession::NoPort => Refusal(Status::NotFound, "the target has no port in this portal group"),
            NoSession::Foreign => {
                Refusal(Status::AuthorizationFailure, "the session belongs to another account")
            }
            NoSession::Stuck => Refusal(Status::TargetError, "the old session did not end in time"),
        }
    }
}

/// Makes the session that a login requests.
fn begin_session(
    shared: &Shared,
    registry: &Arc<Registry>,
    record: &Record,
    key: &Key,
    (identity, grant, params): (Identity, Option<Grant>, Params),
) -> std::result::Result<Arc<Session>, Refusal> {
    // An initiator without permission to log in must not make the server open a target. So the
    // target is opened only here.
    let entered = match grant {
        Some(grant) => Some((shared.targets.open(&grant).map_err(denied)?, grant.access)),
        None => None,
    };
    let user = identity.user.clone();
    let make = |tsih| {
        let agreed = (identity, entered, params);
        let list: Arc<dyn SessionList> = registry.clone();
        Session::new(tsih, agreed, record.portal_group, shared.config.queue_depth, Arc::downgrade(&list))
    };
    let who = (user.as_deref(), record.peer);
    Ok(registry.make_session(key, who, make)?)
}

/// Returns the session that a login requests to join.
fn find_session(
    registry: &Registry,
    record: &Record,
    key: &Key,
    identity: &Identity,
) -> std::result::Result<Arc<Session>, Refusal> {
    match registry.find_session(identity.tsih, key) {
        Some(session) if session.identity.user == identity.user => Ok(session),
        Some(session) => {
            session.log_foreign(identity.user.as_deref(), record.peer);
            Err(NoSession::Foreign.into())
        }
        None => Err(Refusal(Status::SessionDoesNotExist, "there is no such session")),
    }
}

/// Makes or joins the session, and sends the last login response. Returns `Err(None)` if the
/// initiator has disconnected meanwhile, or if the server stops.
fn establish(
    shared: &Shared,
    registry: &Arc<Registry>,
    record: &Arc<Record>,
    login: &mut Login<'_>,
) -> std::result::Result<Arc<Conn>, Option<Refusal>> {
    let refuse = |status, why| Err(Some(Refusal(status, why)));
    let (identity, grant, params) = login.agreement().map_err(Some)?;
    let key = Key {
        initiator: identity.initiator.clone(),
        isid: identity.isid,
        target: identity.target.clone(),
        portal_group: record.portal_group,
    };
    let (cid, first) = (identity.cid, identity.tsih == 0);
    if !registry.settle(record) {
        return refuse(Status::OutOfResources, "too many connections");
    }
    let session = match first {
        true => begin_session(shared, registry, record, &key, (identity, grant, params.clone()))?,
        false => find_session(registry, record, &key, &identity)?,
    };
    if !is_still_granted(shared, record, &session) {
        if first {
            session.end();
        }
        return refuse(Status::AuthorizationFailure, "the connection has fewer rights than its session");
    }
    let conn = Conn::new(cid, session.clone(), params, login.next_stat_sn(), shared.clone(), record.clone());
    match session.join(conn.clone(), first) {
        Ok(None) => {}
        Ok(Some(old)) => {
            old.log_out(); // connection reinstatement (6.3.4)
            old.abort();
        }
        Err(()) => {
            return refuse(Status::TooManyConnections, "the session has the maximum number of connections");
        }
    }
    // A later change of the rules finds the session with this connection. This check sees every
    // earlier change.
    if !is_still_granted(shared, record, &session) {
        conn.log_out();
        session.leave(&conn);
        return refuse(Status::AuthorizationFailure, "the connection has fewer rights than its session");
    }
    let (exp, max) = session.numbers();
    let pdu = login.accept(session.tsih, exp, max);
    if send_all(&record.transport, &pdu).is_err() || shared.stopping.load(Ordering::Relaxed) {
        conn.finish();
        return Err(None);
    }
    tell_login(record, &session, cid);
    Ok(conn)
}

fn tell_login(record: &Record, session: &Session, cid: u16) {
    static LOGINS: Repeated = Repeated::new();
    record.logged_in.store(true, Ordering::Relaxed);
    if let Some(turn) = LOGINS.turn() {
        let Key { initiator, target, .. } = &session.key;
        let target = target.as_deref().unwrap_or("(discovery)");
        let (peer, tsih, suppressed) = (record.peer, session.tsih, turn.suppressed());
        tracing::info!(initiator, %peer, target, tsih, cid, suppressed, "logged in");
    }
}
