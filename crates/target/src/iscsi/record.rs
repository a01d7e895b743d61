//! A connection apart from its session: where it comes from, and what it has done.

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

/// A connection as others see it. Unregisters itself when its thread and the workers let go of it.
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) portal_group: u16,
    pub(super) transport: Arc<dyn Transport>,
    /// The target that the initiator asked for. It is noted before the target is opened, so that a
    /// daemon that makes opening fail and then disconnects the target misses no connection.
    pub(super) target: Mutex<Option<String>>,
    /// The initiator, from the same moment on.
    pub(super) initiator: Mutex<Option<String>>,
    /// It is a connection of a session.
    pub(super) logged_in: AtomicBool,
    pub(super) counters: Counters,
    pub(super) accepted: Instant,
    list: Arc<Records>,
}

/// What is counted of connections that have ended, and of logins.
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
    /// Registers a connection that is not logged in yet; `None` if there is no room for it.
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

    /// What log lines about the connection are marked with.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::debug_span!("iscsi", id = self.id, peer = %self.peer)
    }

    /// Whom memory is counted to.
    pub(super) fn source(&self) -> Source {
        Source::of(self.peer.ip())
    }

    /// Logs that the connection has ended. A client that can connect can break off before a login
    /// as often as it likes, so the number of such lines is limited.
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
