//! The state of the thread that serves a connection ([`Serving`]).

use super::conn::Conn;
use super::inline::{Batch, Inline, Owed, Write};
use super::session::Ready;
use super::stats::IscsiTraffic;
use crate::net::answered::Answered;
use crate::net::budget::Ticket;
use crate::net::buffers::{ReplyBuf, RxBuffer};
use crate::net::watch::Desk;
use crate::scsi::LuNexus;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// A connection in service, with the received requests and the work that is left. One thread at a
/// time owns it.
pub(super) struct Serving {
    pub(super) conn: Arc<Conn>,
    /// The desk that holds this state while the thread does work that may wait for a disk.
    pub(super) desk: Arc<Desk<Serving>>,
    pub(super) rx: RxBuffer,
    pub(super) out: ReplyBuf,
    /// Number of unread bytes that the next step needs.
    pub(super) need: usize,
    /// Writes of this receive.
    pub(super) writes: Vec<Write>,
    /// Writes of this receive, sorted into calls of the device.
    pub(super) batches: Vec<Batch>,
    /// An empty batch, kept for its memory.
    pub(super) spare: Batch,
    /// The receive buffer, while batches point into it.
    pub(super) lent: Option<Bytes>,
    /// Whether a single write is the only request that the initiator waits for.
    pub(super) alone: bool,
    /// The next work, if it may wait for a disk.
    pub(super) inline: Option<Inline>,
    /// The work in progress on this thread.
    pub(super) owed: Owed,
    /// Buffer in which responses are built while this state is on the desk.
    pub(super) aside: ReplyBuf,
    /// Tickets of long responses in `out`.
    pub(super) tickets: Vec<Ticket>,
    /// Number of SCSI commands that ended and that the window does not know of yet: of all
    /// commands, and of those with a place in the window.
    pub(super) ended: (usize, u32),
    /// Requests that may begin when the responses have been sent.
    pub(super) ready: Ready,
    pub(super) tally: IscsiTraffic,
    /// The commands whose responses are in `out`, by logical unit.
    pub(super) answered: Vec<(Arc<LuNexus>, Answered)>,
    /// Number of requests of this receive that were served.
    pub(super) served: usize,
    /// Whether the requests of this receive are not all served yet.
    pub(super) amid: bool,
    /// Error in the received bytes. The connection ends when all earlier requests have been served.
    pub(super) broken: Option<io::Error>,
    pub(super) closing: bool,
    /// Time of the last receive. All requests that are served now had been received at that time.
    pub(super) heard: Instant,
    /// Time of the last check for transfers that stall.
    pub(super) watched: Instant,
    /// Time of the last NOP-In, if nothing was received since.
    pub(super) ping: Option<Instant>,
    /// Time at which an incomplete PDU began to arrive.
    pub(super) began: Option<Instant>,
    /// Whether the connection ended without a panic.
    pub(super) orderly: bool,
}

/// Leaves the session when the connection ends, also after a panic. Otherwise its tasks and its
/// nexus would stay.
impl Drop for Serving {
    fn drop(&mut self) {
        if !self.orderly {
            self.conn.abort();
            self.owed.give_up(&self.conn);
        }
        // The connection ends when all tickets have been released. These tickets are its own.
        self.tickets.clear();
        self.writes.clear();
        self.batches.clear();
        self.inline = None;
        self.answered.clear();
        self.conn.finish();
    }
}
