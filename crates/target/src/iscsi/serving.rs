//! What the thread that serves a connection has with it ([`Serving`]).

use super::conn::Conn;
use super::inline::{Batch, Inline, Owed, Write};
use super::session::Ready;
use super::stats::IscsiTraffic;
use crate::net::budget::Ticket;
use crate::net::buffers::{ReplyBuf, RxBuffer};
use crate::net::watch::Desk;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// A connection that is being served, with what came and what is still to be done. One thread at a
/// time has it.
pub(super) struct Serving {
    pub(super) conn: Arc<Conn>,
    /// Where this lies while the thread does what may wait.
    pub(super) desk: Arc<Desk<Serving>>,
    pub(super) rx: RxBuffer,
    pub(super) out: ReplyBuf,
    /// Unread bytes without which nothing can go on.
    pub(super) need: usize,
    /// The writes of this receive.
    pub(super) writes: Vec<Write>,
    /// The writes of this receive, sorted into calls of the device.
    pub(super) batches: Vec<Batch>,
    /// An empty one, for its memory.
    pub(super) spare: Batch,
    /// The receive buffer, while batches point into it.
    pub(super) lent: Option<Bytes>,
    /// A single write is all that this receive brought, and the initiator waits for nothing else.
    pub(super) alone: bool,
    /// What may wait, and is done next.
    pub(super) inline: Option<Inline>,
    /// What is under way on this thread.
    pub(super) owed: Owed,
    /// Where responses are built while this lies on the desk.
    pub(super) aside: ReplyBuf,
    /// For responses in `out` that are long.
    pub(super) tickets: Vec<Ticket>,
    /// SCSI commands that ended and that the window was not told of: all, and those that have a
    /// place in it.
    pub(super) ended: (usize, u32),
    /// Others whose turn has come, when the responses have been sent.
    pub(super) ready: Ready,
    pub(super) tally: IscsiTraffic,
    /// Requests of this receive.
    pub(super) served: usize,
    /// The requests of this receive are not all served.
    pub(super) amid: bool,
    /// What came is no iSCSI: the connection ends when all before it has been done.
    pub(super) broken: Option<io::Error>,
    pub(super) closing: bool,
    /// When something came last.
    pub(super) heard: Instant,
    /// When it was last looked for transfers that do not go on.
    pub(super) watched: Instant,
    /// When a NOP-In was sent that nothing has come after.
    pub(super) ping: Option<Instant>,
    /// When the PDU that is incomplete began to arrive.
    pub(super) began: Option<Instant>,
    /// The end has been told; without that it is a panic.
    pub(super) orderly: bool,
}

/// Leaves the session when the connection ends, also by a panic: otherwise its tasks and its nexus
/// would stay.
impl Drop for Serving {
    fn drop(&mut self) {
        if !self.orderly {
            self.conn.abort();
            self.owed.give_up(&self.conn);
        }
        // The connection is over when all tickets have been given back: these are its own.
        self.tickets.clear();
        self.writes.clear();
        self.batches.clear();
        self.inline = None;
        self.conn.finish();
    }
}
