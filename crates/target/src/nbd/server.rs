//! The NBD server: it binds the listeners and accepts connections. The daemon holds it as an
//! [`NbdServer`].

use super::conn::{Conn, Shared};
use super::exec::{Executor, Rules};
use super::handshake::{Outcome, Patience, negotiate};
use super::options::{GREETING, Negotiated, Negotiator, Policy};
use super::registry::{Record, Registry};
use super::session::{self, TICK};
use super::stats::{ConnectionInfo, NbdStats};
use super::tls::{TlsConfig, TlsTransport};
use crate::Exports;
use crate::net::admission::{Limits, Source};
use crate::net::budget::{Budget, Flight};
use crate::net::buffers::{RX_BASE, RxBudget, rx_budget_floor};
use crate::net::listener::{Listen, Listener};
use crate::net::pool::WorkerPool;
use crate::net::repeated::Repeated;
use crate::net::transport::{Socket, Transport};
use crate::net::watch::Watch;
use hindcast_engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustls::ServerConfig;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Which connections must use TLS before anything else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsRequired {
    /// None; it is the client's choice.
    #[default]
    Never,
    /// Those over TCP. Unix sockets are guarded by file permissions.
    Tcp,
    /// All.
    Always,
}

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct NbdConfig {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Permissions of Unix sockets.
    pub unix_mode: u32,
    /// Connections that are served at a time; more are closed at once. Where there are Unix sockets
    /// and TCP, each has an eighth of them for itself. Those that have not negotiated yet are
    /// beside these, and the oldest gives way to a new one.
    pub max_connections: usize,
    /// Of them, those from one address, or one /64 of IPv6. Unix sockets are not counted so.
    pub max_connections_per_address: usize,
    /// Time for each step of the negotiation: an option and the taking of its answer, or the TLS
    /// handshake.
    pub negotiation_timeout: Duration,
    /// The longest READ or WRITE in bytes, a multiple of 64 KiB.
    pub max_request: u32,
    /// Bytes of requests in flight on one connection, beyond its fixed buffers; a connection over
    /// it is not read from.
    pub max_in_flight_per_connection: u64,
    /// Bytes of requests in flight on all connections, beyond their fixed buffers. One half is for
    /// writes that are being received, the other for replies that are being built, so that neither
    /// can wait for the other.
    pub max_in_flight: u64,
    /// Requests of one connection that are worked on away from its thread.
    pub max_jobs_per_connection: usize,
    /// Threads for requests that may block.
    pub workers: usize,
    /// A client that stops in mid-request, or does not take its replies, is given up after this
    /// long.
    pub stall_timeout: Duration,
    /// TCP keepalive after this long without traffic.
    pub keepalive: Option<Duration>,
    /// The server's identity; without it STARTTLS is refused.
    pub tls: Option<TlsConfig>,
    /// Which connections must use TLS.
    pub tls_required: TlsRequired,
}

impl Default for NbdConfig {
    fn default() -> NbdConfig {
        NbdConfig {
            listen: Vec::new(),
            unix_mode: 0o600,
            max_connections: 1024,
            max_connections_per_address: 512,
            negotiation_timeout: Duration::from_secs(30),
            max_request: 32 << 20,
            max_in_flight_per_connection: 64 << 20,
            max_in_flight: 256 << 20,
            max_jobs_per_connection: 64,
            workers: 16,
            stall_timeout: Duration::from_secs(60),
            keepalive: Some(Duration::from_secs(60)),
            tls: None,
            tls_required: TlsRequired::Never,
        }
    }
}

impl NbdConfig {
    fn validate(&self) -> Result<()> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, format!("configure NBD: {what}")));
        if self.max_request < 1 << 20 || !self.max_request.is_multiple_of(64 << 10) {
            return invalid("max_request is not a multiple of 64 KiB of at least 1 MiB");
        }
        if self.max_in_flight / 2 < self.half_floor() {
            return invalid("max_in_flight is less than five times the largest request");
        }
        let limits = [
            self.max_connections,
            self.max_connections_per_address,
            self.max_jobs_per_connection,
            self.workers,
        ];
        if limits.contains(&0) {
            return invalid("a limit is zero");
        }
        if self.tls_required != TlsRequired::Never && self.tls.is_none() {
            return invalid("TLS is required but has no certificate");
        }
        Ok(())
    }

    /// No single request, nor the FUA writes of one receive, may need more than all there is.
    fn half_floor(&self) -> u64 {
        rx_budget_floor(self.max_request) + RX_BASE as u64
    }

    fn limits(&self) -> Limits {
        let unix = self.listen.iter().filter(|listen| matches!(listen, Listen::Unix(_))).count();
        let both = unix > 0 && unix < self.listen.len();
        let reserve = if both { self.max_connections.div_ceil(8) } else { 0 };
        Limits::new(self.max_connections, self.max_connections_per_address, reserve)
    }

    fn shared(&self, watch: Option<Arc<Watch>>, [pool, change_pool]: [Arc<WorkerPool>; 2]) -> Shared {
        let reply_budget = Budget::new(self.max_in_flight / 2);
        if let Some(watch) = &watch {
            watch.look_after(&reply_budget);
        }
        Shared {
            pool,
            change_pool,
            watch,
            rx_budget: Arc::new(RxBudget::new(self.max_in_flight / 2)),
            reply_budget,
            stopping: Arc::default(),
        }
    }
}

/// Threads of a pool when all of its workers wait for disks, for each worker that is configured.
const MAX_WORKERS_RATIO: usize = 8;

/// What every connection's thread needs.
pub(super) struct Context {
    pub(super) config: NbdConfig,
    exports: Arc<dyn Exports>,
    lists: Lists,
    tls: Option<Arc<ServerConfig>>,
    shared: Shared,
    pub(super) registry: Arc<Registry>,
}

/// A running NBD server. Dropping it stops it at once.
pub struct NbdServer {
    context: Arc<Context>,
    listeners: Vec<Arc<Listener>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

impl NbdServer {
    /// Binds every address, then begins to accept. Nothing is left behind if one of them fails.
    pub fn start(config: NbdConfig, exports: Arc<dyn Exports>) -> Result<NbdServer> {
        config.validate()?;
        let tls = config.tls.as_ref().map(TlsConfig::load).transpose()?;
        let listeners = config.listen.iter().map(|l| Listener::bind(l, config.unix_mode).map(Arc::new));
        let listeners = listeners.collect::<Result<Vec<_>>>()?;
        let fail = |e| Error::io("start NBD workers", e);
        let watch = Watch::start("nbd-watch").map_err(fail)?;
        let start = |name| {
            let pool = WorkerPool::start(name, config.workers, config.workers).map_err(fail)?;
            Ok(Arc::new(pool.watched(&watch, MAX_WORKERS_RATIO * config.workers)))
        };
        let pools = [start("nbd-work")?, start("nbd-change")?];
        let shared = config.shared(Some(watch), pools);
        let registry = Arc::new(Registry::new(config.limits()));
        let context = Arc::new(Context { config, exports, lists: Lists::default(), tls, shared, registry });
        let server = NbdServer { context, listeners, acceptors: Mutex::default() };
        for listener in &server.listeners {
            let (listener, context) = (listener.clone(), server.context.clone());
            let acceptor = thread::Builder::new()
                .name("nbd-accept".into())
                .spawn(move || {
                    listener
                        .accept_loop(&context.shared.stopping, |socket, peer| admit(&context, socket, peer))
                })
                .map_err(|e| Error::io("start an NBD listener", e))?;
            server.acceptors.lock().push(acceptor);
        }
        Ok(server)
    }

    /// Where it listens, with the ports that were chosen.
    pub fn addresses(&self) -> Vec<Listen> {
        self.listeners.iter().map(|l| l.address().clone()).collect()
    }

    /// Totals since the start.
    pub fn stats(&self) -> NbdStats {
        self.context.registry.stats()
    }

    /// The open connections.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.context.registry.connections()
    }

    /// Breaks off every connection to an export (a canonical name), and waits up to `wait` for them
    /// to be gone: after that none of them holds the device. Tells how many there were and whether
    /// all are gone. To keep them from coming back, make [`Exports::open`] fail first.
    pub fn disconnect(&self, export: &str, wait: Duration) -> (usize, bool) {
        self.disconnect_all(&|name| name == export, wait)
    }

    /// Breaks off every connection to the exports whose canonical names `export` chooses, and waits
    /// up to `wait` for them to be gone. Tells how many there were and whether all are gone. See
    /// [`NbdServer::disconnect`].
    pub fn disconnect_all(&self, export: &dyn Fn(&str) -> bool, wait: Duration) -> (usize, bool) {
        self.context.registry.disconnect(export, wait)
    }

    /// Stops accepting, finishes the requests that have arrived, and closes; those that come later
    /// are not answered, so that a client that reconnects asks again. Breaks off what is left after
    /// `grace`. Tells how many connections had to be broken off. May be called again.
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

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// Takes in an accepted socket: registers it and gives it a thread.
fn admit(context: &Arc<Context>, socket: Socket, peer: String) {
    static NO_THREAD: Repeated = Repeated::new();
    let tcp = peer != crate::net::listener::UNIX_PEER;
    let source = match tcp {
        true => socket
            .tune_tcp(context.config.keepalive)
            .and_then(|()| Ok(Source::of(socket.addresses()?.0.ip()))),
        false => Ok(Source::Local),
    };
    let source = match source {
        Ok(source) => source,
        Err(e) => {
            tracing::debug!(%peer, error = %e, "a new connection was already closed");
            return;
        }
    };
    let Some(record) = Registry::admit(&context.registry, socket, (peer, source)) else { return };
    let context = context.clone();
    let spawned = thread::Builder::new().name("nbd-conn".into()).spawn(move || {
        let _entered = record.span().entered();
        if let Some(result) = run(&context, &record, tcp) {
            record.report(&result);
        }
    });
    // The record went with the closure.
    if let Err(e) = spawned
        && let Some(turn) = NO_THREAD.turn()
    {
        tracing::warn!(error = %e, suppressed = turn.suppressed(), "the thread of an NBD connection could not be started");
    }
}

/// One connection, from greeting to end; `None` if another thread has taken over.
fn run(context: &Context, record: &Arc<Record>, tcp: bool) -> Option<io::Result<()>> {
    agree(context, record, tcp).unwrap_or_else(|e| Some(Err(e)))
}

/// The negotiation, and what follows it.
fn agree(context: &Context, record: &Arc<Record>, tcp: bool) -> io::Result<Option<io::Result<()>>> {
    let mut patience = Patience::new(context.config.negotiation_timeout);
    let exports = Watched { exports: &*context.exports, record, lists: &context.lists };
    let policy = Policy {
        tls_available: context.tls.is_some(),
        tls_required: match context.config.tls_required {
            TlsRequired::Never => false,
            TlsRequired::Tcp => tcp,
            TlsRequired::Always => true,
        },
        max_request: context.config.max_request,
    };
    let mut negotiator = Negotiator::new(&exports, policy);
    let stopping = &context.shared.stopping;
    let plain = record.socket.clone();
    let outcome = negotiate(&plain, &mut negotiator, &GREETING, &mut patience, stopping)?;
    let Some(config) = context.tls.clone().filter(|_| matches!(outcome, Outcome::StartTls)) else {
        return transmit(context, record, plain, outcome);
    };
    patience.renew();
    let tls = TlsTransport::accept(record.socket.clone(), config, patience.deadline())?;
    patience.renew();
    record.tls.store(true, Ordering::Relaxed);
    negotiator.secured();
    let outcome = negotiate(&tls, &mut negotiator, &[], &mut patience, stopping)?;
    transmit(context, record, tls, outcome)
}

/// What follows the negotiation.
fn transmit(
    context: &Context,
    record: &Arc<Record>,
    transport: impl Transport,
    outcome: Outcome,
) -> io::Result<Option<io::Result<()>>> {
    let (negotiated, received) = match outcome {
        Outcome::Transmit(negotiated, received) => (negotiated, received),
        Outcome::Closed => {
            record.negotiated.store(true, Ordering::Relaxed);
            transport.close();
            return Ok(Some(Ok(())));
        }
        Outcome::Failed(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
        Outcome::StartTls => return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS twice")),
    };
    record.negotiated.store(true, Ordering::Relaxed);
    if !context.registry.settle(record) {
        transport.close();
        return Ok(Some(Ok(())));
    }
    serve(&context.config, &context.shared, Some(record.clone()), transport, negotiated, &received)
}

fn serve(
    config: &NbdConfig,
    shared: &Shared,
    record: Option<Arc<Record>>,
    transport: impl Transport,
    negotiated: Negotiated,
    received: &[u8],
) -> io::Result<Option<io::Result<()>>> {
    transport.set_timeouts(TICK, config.stall_timeout)?;
    let Negotiated { export, device, structured, contexts } = negotiated;
    tracing::debug!(export, structured, contexts = contexts.len(), "serving");
    let rules = Rules { structured, contexts: !contexts.is_empty(), max_request: config.max_request };
    let source = record.as_ref().and_then(|record| record.source());
    let (jobs, bytes) = (config.max_jobs_per_connection, config.max_in_flight_per_connection);
    let flight = Flight::new(shared.reply_budget.clone(), source, jobs, bytes);
    let conn = Conn::new(
        transport,
        Executor { device, structured, contexts },
        rules,
        shared.clone(),
        (flight, jobs),
        record,
    );
    Ok(session::serve(&conn, received, config.stall_timeout))
}

/// Serves one connection over any transport, on this thread, without TLS: for tests and fuzzing.
pub fn serve_transport(
    config: &NbdConfig,
    exports: &dyn Exports,
    pool: WorkerPool,
    transport: impl Transport,
) -> io::Result<()> {
    config.validate().map_err(io::Error::other)?;
    let pool = Arc::new(pool);
    let shared = config.shared(None, [pool.clone(), pool]);
    let policy = Policy { tls_available: false, tls_required: false, max_request: config.max_request };
    let mut negotiator = Negotiator::new(exports, policy);
    let mut patience = Patience::new(config.negotiation_timeout);
    match negotiate(&transport, &mut negotiator, &GREETING, &mut patience, &shared.stopping)? {
        Outcome::Transmit(negotiated, received) => {
            serve(config, &shared, None, transport, negotiated, &received)?.unwrap_or(Ok(()))
        }
        _ => Ok(()),
    }
}

/// Notes an export's name on the connection before the export is opened. So a daemon that makes
/// opening fail and then disconnects the export misses no connection.
struct Watched<'a> {
    exports: &'a dyn Exports,
    record: &'a Record,
    lists: &'a Lists,
}

/// The list of exports that was reported last, as long as a client still receives it.
#[derive(Default)]
struct Lists(Mutex<Option<Weak<[crate::ExportEntry]>>>);

impl Lists {
    /// The list as it is now: the one in memory, where that says the same. One is made at a time,
    /// so that no more are in memory than there are different ones.
    fn share(&self, exports: &dyn Exports) -> Arc<[crate::ExportEntry]> {
        let mut last = self.0.lock();
        let list = exports.list();
        let same = last.as_ref().and_then(Weak::upgrade).filter(|last| **last == *list);
        let shared = same.unwrap_or_else(|| list.into());
        *last = Some(Arc::downgrade(&shared));
        shared
    }
}

impl Exports for Watched<'_> {
    fn list(&self) -> Vec<crate::ExportEntry> {
        self.exports.list()
    }

    fn listed(&self) -> Arc<[crate::ExportEntry]> {
        self.lists.share(self.exports)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn hindcast_engine::device::BlockDevice>> {
        *self.record.export.lock() = Some(self.exports.canonical(name));
        self.exports.open(name)
    }

    fn canonical(&self, name: &str) -> String {
        self.exports.canonical(name)
    }

    fn describe(&self, name: &str) -> Option<String> {
        self.exports.describe(name)
    }

    fn snapshots(&self, name: &str, most: usize) -> Vec<String> {
        self.exports.snapshots(name, most)
    }

    fn changed_since(&self, name: &str, snapshot: &str) -> Result<Arc<dyn crate::Changes>> {
        self.exports.changed_since(name, snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExportEntry;

    struct Named(Mutex<Vec<String>>);

    impl Exports for Named {
        fn list(&self) -> Vec<ExportEntry> {
            let entry = |name: &String| ExportEntry { name: name.clone(), description: String::new() };
            self.0.lock().iter().map(entry).collect()
        }

        fn open(&self, name: &str) -> Result<Arc<dyn hindcast_engine::device::BlockDevice>> {
            Err(Error::new(hindcast_engine::ErrorKind::NotFound, name))
        }
    }

    #[test]
    fn many_clients_share_a_list_until_there_is_another() {
        let exports = Named(Mutex::new(vec!["a".into()]));
        let lists = Lists::default();
        let told: Vec<_> = (0..100).map(|_| lists.share(&exports)).collect();
        assert!(told.iter().all(|list| Arc::ptr_eq(list, &told[0])));
        exports.0.lock().push("b".into());
        assert_eq!(lists.share(&exports).len(), 2);
        assert_eq!(told[0].len(), 1);
    }
}
