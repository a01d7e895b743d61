//! The connections of an NBD server ([`Registry`]): they are counted, limited, listed, and ended on
//! request of the daemon.

use super::client::Client;
use super::stats::{ConnectionInfo, Counters, NbdStats};
use crate::net::admission::{Limits, Source};
use crate::net::connections::{Connections, Entry};
use crate::net::listener::UNIX_PEER;
use crate::net::repeated::Repeated;
use crate::net::transport::{Socket, Transport};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The entry of a connection in the [`Registry`]. The connection's thread and the workers own it.
/// It unregisters itself when the last of them drops it.
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) peer: String,
    pub(super) socket: Arc<Socket>,
    /// The user of a client on a Unix socket, as the kernel knew it when the client connected.
    user: Option<u32>,
    /// The canonical name of the export that the client opened last.
    pub(super) export: Mutex<Option<String>>,
    /// Whether the device that the client opened last refuses writes. False before it is opened.
    pub(super) read_only: AtomicBool,
    /// The properties of the client that access rules examine. A TLS handshake replaces them.
    pub(super) client: Mutex<Arc<Client>>,
    pub(super) tls: AtomicBool,
    /// True when the client reached the transmission phase, or when the server closed the
    /// connection after ABORT or after a message that no error reply can answer.
    pub(super) negotiated: AtomicBool,
    pub(super) counters: Arc<Counters>,
    accepted: Instant,
    registry: Arc<Registry>,
}

/// An open connection that has an export, as the daemon examines it.
#[derive(Debug, Clone, Copy)]
pub struct Opened<'a> {
    /// The client.
    pub client: &'a Client,
    /// The canonical name of the export that the client opened last.
    pub export: &'a str,
    /// Whether the device behind the export refuses writes. False also while the connection opens
    /// the device.
    pub read_only: bool,
}

/// All connections of a server.
pub(super) struct Registry(Connections<Record, Totals>);

/// Sums over the ended connections.
#[derive(Default)]
struct Totals {
    failed: u64,
    past: Counters,
}

impl Entry for Record {
    fn id(&self) -> u64 {
        self.id
    }

    fn transport(&self) -> &dyn Transport {
        &*self.socket
    }
}

impl Registry {
    pub(super) fn new(limits: Limits) -> Registry {
        Registry(Connections::new("NBD", limits))
    }

    /// Registers a connection that has not negotiated yet. Returns `None` if there are too many.
    pub(super) fn admit(
        registry: &Arc<Registry>,
        socket: Socket,
        (peer, source): (String, Source),
        client: Client,
    ) -> Option<Arc<Record>> {
        registry.0.admit((&*peer.clone(), source), |id| Record {
            id,
            user: if peer == UNIX_PEER { socket.peer_user() } else { None },
            peer,
            socket: Arc::new(socket),
            export: Mutex::default(),
            read_only: AtomicBool::new(false),
            client: Mutex::new(Arc::new(client)),
            tls: AtomicBool::new(false),
            negotiated: AtomicBool::new(false),
            counters: Arc::default(),
            accepted: Instant::now(),
            registry: registry.clone(),
        })
    }

    /// Counts a connection that has negotiated as a served one. Returns false if there are too
    /// many, or if the connection was already displaced. The caller then closes the connection.
    pub(super) fn settle(&self, record: &Record) -> bool {
        self.0.settle(record, &*record.peer)
    }

    pub(super) fn stats(&self) -> NbdStats {
        let records = self.0.entries();
        let mut stats = self.0.count(|count, totals| NbdStats {
            connections: count.connections,
            accepted: count.accepted,
            refused: count.refused,
            failed_negotiations: totals.failed,
            traffic: totals.past.read(),
        });
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
            read_only: r.read_only.load(Ordering::SeqCst),
            tls: r.tls.load(Ordering::Relaxed),
            common_name: r.client.lock().common_names.first().cloned(),
            user: r.user,
            age: r.accepted.elapsed(),
            traffic: r.counters.read(),
        };
        self.0.entries().iter().map(info).collect()
    }

    /// Ends the connections with an export for which `which` returns true, and waits up to `wait`
    /// until they have ended.
    pub(super) fn disconnect(&self, which: &dyn Fn(&Opened<'_>) -> bool, wait: Duration) -> (usize, bool) {
        let mut records = self.0.entries();
        records.retain(|r| {
            let Some(export) = r.export.lock().clone() else { return false };
            let client = r.client.lock().clone();
            which(&Opened { client: &client, export: &export, read_only: r.read_only.load(Ordering::SeqCst) })
        });
        self.0.end(records, wait)
    }

    /// Replaces the names of exports that connections have opened, after a rename. `renamed`
    /// returns the new name of an export whose name changed.
    pub(super) fn rename(&self, renamed: &dyn Fn(&str) -> Option<String>) {
        for record in self.0.entries() {
            let mut export = record.export.lock();
            if let Some(new) = export.as_deref().and_then(renamed) {
                *export = Some(new);
            }
        }
    }

    /// Ends one connection, and waits up to `wait` until it has ended. Returns false if there is no
    /// such connection.
    pub(super) fn end(&self, id: u64, wait: Duration) -> bool {
        let mut records = self.0.entries();
        records.retain(|r| r.id == id);
        let found = !records.is_empty();
        self.0.end(records, wait);
        found
    }

    pub(super) fn shutdown(&self, grace: Duration) -> usize {
        let (broken_off, all_ended) = self.0.shutdown(grace);
        if !all_ended {
            tracing::warn!("some NBD connections wait for a device and did not end");
        }
        broken_off
    }
}

impl Record {
    /// Returns the span that marks log lines about the connection.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::debug_span!("nbd", id = self.id, peer = %self.peer)
    }

    /// Returns the source that the limits on memory count the connection to. Returns `None` for a
    /// Unix socket: the limit of one source does not apply to it.
    pub(super) fn source(&self) -> Option<Source> {
        self.peer.parse::<SocketAddr>().ok().map(|address| Source::of(address.ip()))
    }

    /// Logs the end of the connection. A client can break connections as often as it likes, so the
    /// number of such lines is limited.
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
                    tracing::info!(peer, export, error = %e, suppressed = turn.suppressed(), "the NBD connection was broken");
                }
            }
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.registry.0.leave(self.id, |totals| {
            totals.past.absorb(&self.counters);
            if !self.negotiated.load(Ordering::Relaxed) {
                totals.failed += 1;
            }
        });
    }
}
