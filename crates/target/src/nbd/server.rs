//! The NBD server ([`NbdServer`]): it binds the listeners, accepts connections, and gives each
//! connection a thread. The daemon owns it.

use super::client::Client;
use super::conn::{Conn, Shared};
use super::exec::{Executor, Rules};
use super::handshake::{Outcome, Patience, negotiate};
use super::options::{GREETING, Negotiated, Negotiator, Policy};
use super::registry::{Opened, Record, Registry};
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

/// Which connections must begin TLS before they send any other option.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsRequired {
    /// No connection must use TLS. The client decides.
    #[default]
    Never,
    /// Connections over TCP must use TLS. File permissions protect Unix sockets.
    Tcp,
    /// All connections must use TLS.
    Always,
}

/// The configuration of an NBD server.
#[derive(Debug, Clone)]
pub struct NbdConfig {
    /// The addresses to listen on.
    pub listen: Vec<Listen>,
    /// Permissions of the Unix sockets, as the bits of a file mode.
    pub unix_mode: u32,
    /// Maximum number of connections that are served at a time. The server closes connections
    /// beyond it. If the server listens on Unix sockets and on TCP, an eighth of these connections
    /// is reserved for each of the two. TCP connections that negotiate have a limit of their own.
    /// When that limit is reached, a new connection displaces the oldest one of the address that
    /// has most of them.
    pub max_connections: usize,
    /// Maximum number of connections that are served at a time for one IPv4 address, or for one /64
    /// of IPv6. It does not limit Unix sockets.
    pub max_connections_per_address: usize,
    /// Maximum time of each step of the negotiation. A step is an option with the receipt of its
    /// reply, or the TLS handshake.
    pub negotiation_timeout: Duration,
    /// Maximum length of a READ or WRITE in bytes. It is a multiple of 64 KiB, and at least 1 MiB.
    pub max_request: u32,
    /// Maximum number of bytes of requests in flight on one connection, beyond its fixed buffers. A
    /// request that exceeds it waits until replies to earlier requests have been sent.
    pub max_in_flight_per_connection: u64,
    /// Maximum number of bytes of requests in flight on all connections, beyond their fixed
    /// buffers. One half is for WRITEs that are being received. The other half is for replies, and
    /// for requests that are carried out away from the thread that receives. So neither half can
    /// wait for the other.
    pub max_in_flight: u64,
    /// Maximum number of requests of one connection that are in flight away from its thread. The
    /// server does not read from a connection that has so many.
    pub max_jobs_per_connection: usize,
    /// Number of threads of each of two pools for requests that may block: one pool for reads, and
    /// one for changes and flushes. Each pool gets more threads, up to eight times as many, while
    /// all its threads wait for disks.
    pub workers: usize,
    /// Time after which the server breaks a connection whose client stops in the middle of a
    /// request or does not receive replies.
    pub stall_timeout: Duration,
    /// Time without traffic after which TCP keepalive begins. `None` means no keepalive.
    pub keepalive: Option<Duration>,
    /// Certificate and key of the server. Without them the server refuses STARTTLS.
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

    /// Returns the minimum of each half of `max_in_flight`, in bytes. A single request, or the FUA
    /// writes of one receive, must not need more memory than there is.
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

/// Maximum number of threads of a pool, as a multiple of [`NbdConfig::workers`]. A pool has so many
/// only while its threads wait for disks.
const MAX_WORKERS_RATIO: usize = 8;

/// The state of a server that its connections share.
pub(super) struct Context {
    pub(super) config: NbdConfig,
    exports: Arc<dyn Exports>,
    lists: Lists,
    tls: Option<Arc<ServerConfig>>,
    shared: Shared,
    pub(super) registry: Arc<Registry>,
}

/// A running NBD server. A drop stops it without a grace time.
pub struct NbdServer {
    context: Arc<Context>,
    listeners: Vec<Arc<Listener>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

impl NbdServer {
    /// Binds every address, then begins to accept connections. If one address fails, the server
    /// releases the others and returns the error.
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
                    listener.accept_loop(&context.shared.stopping, |socket, peer| {
                        admit(&context, listener.address(), socket, peer);
                    })
                })
                .map_err(|e| Error::io("start an NBD listener", e))?;
            server.acceptors.lock().push(acceptor);
        }
        Ok(server)
    }

    /// Returns the addresses that the server listens on, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<Listen> {
        self.listeners.iter().map(|l| l.address().clone()).collect()
    }

    /// Returns the totals since the start.
    pub fn stats(&self) -> NbdStats {
        self.context.registry.stats()
    }

    /// Returns the open connections.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.context.registry.connections()
    }

    /// Aborts every connection to the export with the canonical name `export`. Waits at most `wait`
    /// until they have ended. A connection that has ended does not hold the device. Returns the
    /// number of these connections, and whether all have ended. To keep clients from connecting
    /// again, the caller first makes [`Exports::open`] fail.
    pub fn disconnect(&self, export: &str, wait: Duration) -> (usize, bool) {
        self.disconnect_all(&|name| name == export, wait)
    }

    /// Aborts every connection to an export for whose canonical name `export` returns true. Waits
    /// at most `wait` until they have ended. Returns the number of these connections, and whether
    /// all have ended. See [`NbdServer::disconnect`].
    pub fn disconnect_all(&self, export: &dyn Fn(&str) -> bool, wait: Duration) -> (usize, bool) {
        self.end_clients(&|opened| export(opened.export), wait)
    }

    /// Aborts every connection with an export for which `which` returns true. Waits at most `wait`
    /// until they have ended. Returns the number of these connections, and whether all have ended.
    /// To keep clients from opening the export again, the caller first makes [`Exports::open`]
    /// fail. Then no connection that opens an export meanwhile is missed.
    pub fn end_clients(&self, which: &dyn Fn(&Opened<'_>) -> bool, wait: Duration) -> (usize, bool) {
        self.context.registry.disconnect(which, wait)
    }

    /// Replaces the names of exports that connections have opened, after the daemon renamed
    /// exports. `renamed` returns the new name of an export whose name changed. The connections
    /// stay.
    pub fn rename(&self, renamed: &dyn Fn(&str) -> Option<String>) {
        self.context.registry.rename(renamed);
    }

    /// Aborts the connection with this number, and waits at most `wait` until it has ended. Returns
    /// false if there is no such connection. The client may connect again.
    pub fn end(&self, id: u64, wait: Duration) -> bool {
        self.context.registry.end(id, wait)
    }

    /// Stops accepting connections, answers the requests that have arrived, and closes. The server
    /// does not answer later requests, so a client that reconnects sends them again. After `grace`
    /// it aborts the remaining connections. Returns the number of aborted connections. A caller may
    /// call it again.
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

/// Registers the connection of an accepted socket and starts its thread.
fn admit(context: &Arc<Context>, listener: &Listen, socket: Socket, peer: String) {
    static NO_THREAD: Repeated = Repeated::new();
    let tcp = peer != crate::net::listener::UNIX_PEER;
    let address = match tcp {
        true => socket
            .tune_tcp(context.config.keepalive)
            .and_then(|()| Ok(Some(socket.addresses()?.0.ip().to_canonical()))),
        false => socket.tune_unix().map(|()| None),
    };
    let address = match address {
        Ok(address) => address,
        Err(e) => {
            tracing::debug!(%peer, error = %e, "a new connection was already closed");
            return;
        }
    };
    let source = address.map_or(Source::Local, Source::of);
    let client = Client { listener: listener.clone(), address, common_names: Vec::new() };
    let Some(record) = Registry::admit(&context.registry, socket, (peer, source), client) else { return };
    let context = context.clone();
    let spawned = thread::Builder::new().name("nbd-conn".into()).spawn(move || {
        let _entered = record.span().entered();
        if let Some(result) = run(&context, &record, tcp) {
            record.report(&result);
        }
    });
    // The failed spawn has dropped the closure and with it the record.
    if let Err(e) = spawned
        && let Some(turn) = NO_THREAD.turn()
    {
        tracing::warn!(error = %e, suppressed = turn.suppressed(), "the thread of an NBD connection could not be started");
    }
}

/// Serves one connection from the greeting to its end. Returns `None` if another thread has taken
/// over the connection.
fn run(context: &Context, record: &Arc<Record>, tcp: bool) -> Option<io::Result<()>> {
    agree(context, record, tcp).unwrap_or_else(|e| Some(Err(e)))
}

/// Negotiates, with TLS if the client requests it, and then serves the transmission phase.
fn agree(context: &Context, record: &Arc<Record>, tcp: bool) -> io::Result<Option<io::Result<()>>> {
    let mut patience = Patience::new(context.config.negotiation_timeout);
    let exports = Watched::new(context, record);
    let exports_over_tls;
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
    let client = Client { common_names: tls.common_names(), ..Client::clone(&record.client.lock()) };
    *record.client.lock() = Arc::new(client);
    exports_over_tls = Watched::new(context, record);
    negotiator.secured(&exports_over_tls);
    let outcome = negotiate(&tls, &mut negotiator, &[], &mut patience, stopping)?;
    transmit(context, record, tls, outcome)
}

/// Serves the transmission phase if the negotiation has led to it. Otherwise ends the connection.
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

/// Serves one connection over `transport` on this thread, without TLS. Tests and fuzzers use it.
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

/// The exports that the client of one connection sees. It records the name of an export in the
/// connection's entry before it opens the export. So a daemon that makes [`Exports::open`] fail and
/// then disconnects the export misses no connection.
struct Watched<'a> {
    exports: &'a dyn Exports,
    seen: Option<Box<dyn Exports>>,
    record: &'a Record,
    lists: &'a Lists,
}

impl<'a> Watched<'a> {
    fn new(context: &'a Context, record: &'a Record) -> Watched<'a> {
        let exports = &*context.exports;
        let seen = exports.seen_by(&record.client.lock().clone());
        Watched { exports, seen, record, lists: &context.lists }
    }

    fn exports(&self) -> &dyn Exports {
        self.seen.as_deref().unwrap_or(self.exports)
    }
}

/// The lists of exports that were reported and that clients still receive. Clients for which access
/// rules decide alike get equal lists.
#[derive(Default)]
struct Lists(Mutex<Vec<Weak<[crate::ExportEntry]>>>);

impl Lists {
    /// Returns the current list of exports. Returns the list in memory if it is equal. The lock
    /// allows one caller at a time, so equal lists are in memory only once.
    fn share(&self, exports: &dyn Exports) -> Arc<[crate::ExportEntry]> {
        let mut lists = self.0.lock();
        lists.retain(|list| list.strong_count() > 0);
        let list = exports.list();
        if let Some(same) = lists.iter().filter_map(Weak::upgrade).find(|known| **known == *list) {
            return same;
        }
        let shared = list.into();
        lists.push(Arc::downgrade(&shared));
        shared
    }
}

impl Exports for Watched<'_> {
    fn list(&self) -> Vec<crate::ExportEntry> {
        self.exports().list()
    }

    fn listed(&self) -> Arc<[crate::ExportEntry]> {
        self.lists.share(self.exports())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn hindcast_engine::device::BlockDevice>> {
        // Until the device is open, the connection counts as one that may write.
        self.record.read_only.store(false, Ordering::SeqCst);
        *self.record.export.lock() = Some(self.exports().canonical(name));
        let device = self.exports().open(name)?;
        self.record.read_only.store(device.info().read_only, Ordering::SeqCst);
        Ok(device)
    }

    fn canonical(&self, name: &str) -> String {
        self.exports().canonical(name)
    }

    fn describe(&self, name: &str) -> Option<String> {
        self.exports().describe(name)
    }

    fn snapshots(&self, name: &str, most: usize) -> Vec<String> {
        self.exports().snapshots(name, most)
    }

    fn changed_since(&self, name: &str, snapshot: &str) -> Result<Arc<dyn crate::Changes>> {
        self.exports().changed_since(name, snapshot)
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
