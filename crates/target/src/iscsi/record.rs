//! The record of a connection: its addresses and its counters. The record does not depend on a
//! session.

use super::stats::{Counters, IscsiTraffic};
use crate::net::admission::Source;
use crate::net::connections::{Connections, Entry};
use crate::net::repeated::Repeated;
use crate::net::transport::Transport;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tracing::field::display;

/// The list of all connections of a server.
pub(super) type Records = Connections<Record, Totals>;

/// The public part of a connection. It unregisters itself when the thread of the connection and the
/// workers have dropped it.
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) portal_group: u16,
    pub(super) transport: Arc<dyn Transport>,
    /// The target that the initiator requested. It is stored before the target is opened. So a
    /// daemon that makes opening fail and then disconnects the target finds every connection.
    pub(super) target: Mutex<Option<String>>,
    /// Name of the initiator. It is stored together with the target.
    pub(super) initiator: Mutex<Option<String>>,
    /// Whether the connection belongs to a session.
    pub(super) logged_in: AtomicBool,
    pub(super) counters: Counters,
    pub(super) accepted: Instant,
    list: Arc<Records>,
}

/// Counters of connections that have ended, and of failed logins.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) failed_logins: u64,
    pub(super) failed_authentications: u64,
    pub(super) past: IscsiTraffic,
}

impl Entry for Record {
    fn id(&self) -> u64 {
        self.id
    }

    fn transport(&self) -> &dyn Transport {
        &*self.transport
    }
}

impl Record {
    /// Registers a connection that is not logged in yet. Returns `None` if there is no room for it.
    pub(super) fn admit(
        list: &Arc<Records>,
        transport: Arc<dyn Transport>,
        (peer, local): (SocketAddr, SocketAddr),
        portal_group: u16,
    ) -> Option<Arc<Record>> {
        list.admit((display(peer), Source::of(peer.ip())), |id| Record {
            id,
            peer,
            local,
            portal_group,
            transport,
            target: Mutex::default(),
            initiator: Mutex::default(),
            logged_in: AtomicBool::new(false),
            counters: Counters::default(),
            accepted: Instant::now(),
            list: list.clone(),
        })
    }

    /// Returns the span for log lines about the connection.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::debug_span!("iscsi", id = self.id, peer = %self.peer)
    }

    /// Returns the source that the memory of the connection counts for.
    pub(super) fn source(&self) -> Source {
        Source::of(self.peer.ip())
    }

    /// Logs that the connection ended with an error. A client can break off a connection before a
    /// login as often as it likes, so such a line has the debug level. The number of lines about
    /// later errors is limited.
    pub(super) fn report(&self, result: &std::io::Result<()>) {
        static BROKEN: Repeated = Repeated::new();
        let (Err(error), peer) = (result, self.peer) else {
            return;
        };
        if !self.logged_in.load(Ordering::Relaxed) {
            tracing::debug!(%peer, %error, "the connection ended before a login");
        } else if let Some(turn) = BROKEN.turn() {
            let (initiator, target) = (self.initiator.lock().clone(), self.target.lock().clone());
            let suppressed = turn.suppressed();
            tracing::info!(initiator, %peer, target, %error, suppressed, "the iSCSI connection was broken");
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.list.leave(self.id, |totals| totals.past.add(&self.counters.read()));
    }
}
