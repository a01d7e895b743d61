//! The state of the thread that serves a connection ([`Session`]).

use super::codec::{Command, Request};
use super::conn::Conn;
use super::exec::{Refusal, Wait};
use super::stats::Tally;
use crate::net::answered::{Answered, Arrival};
use crate::net::budget::Ticket;
use crate::net::buffers::{ReplyBuf, RxBuffer};
use crate::net::transport::Transport;
use crate::net::watch::Desk;
use bytes::Bytes;
use hindcast_engine::device::WriteOp;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection in service, with the received requests and the work that is left. One thread at a
/// time owns it.
pub(super) struct Session<T: Transport> {
    pub(super) conn: Arc<Conn<T>>,
    /// The place of the session while its thread carries out work that may wait.
    pub(super) desk: Arc<Desk<Session<T>>>,
    pub(super) rx: RxBuffer,
    pub(super) out: ReplyBuf,
    /// Number of unread bytes that the session needs before it can continue.
    pub(super) need: usize,
    /// The refused WRITE whose payload the session is dropping.
    pub(super) dropping: Option<Dropping>,
    /// The WRITEs of this receive that are not yet in `batches`.
    pub(super) writes: Vec<Write>,
    /// The WRITEs of this receive, grouped by calls of the device.
    pub(super) batches: Vec<Batch>,
    /// An empty batch, kept to reuse its memory.
    pub(super) spare: Batch,
    /// The memory of the receive buffer, while batches point into it.
    pub(super) lent: Option<Bytes>,
    /// Whether a WRITE is the only request of this receive, and no other request is in flight.
    pub(super) alone: bool,
    /// The work that the thread carries out next and that may wait.
    pub(super) inline: Option<Inline>,
    /// The buffer for replies that are built while the session is on the desk.
    pub(super) aside: ReplyBuf,
    /// The tickets of the long replies in `out`.
    pub(super) tickets: Vec<Ticket>,
    /// Number of bytes of memory that the work on this thread needs and that no ticket counts.
    pub(super) owed: u64,
    /// The requests whose replies are in `out`.
    pub(super) answered: Answered,
    /// The time of the last receive. All requests that the session serves had been received then.
    pub(super) arrival: Arrival,
    pub(super) tally: Tally,
    /// Number of requests of this receive that the session has begun.
    pub(super) served: usize,
    /// Whether requests of this receive are left.
    pub(super) amid: bool,
    /// The error that ends the connection after the requests before it have been carried out.
    pub(super) broken: Option<io::Error>,
    /// Whether the server shuts down. The session carries out the requests that have arrived, and
    /// then ends the connection. It does not answer later requests, so clients send them again on
    /// their next connection.
    pub(super) stopping: bool,
    pub(super) ended: bool,
    /// Maximum time without received bytes in the middle of a request.
    pub(super) stall: Duration,
    pub(super) idle_ticks: u128,
    /// Time at which the incomplete request began to arrive.
    pub(super) began: Option<Instant>,
    /// Whether [`Session::end`] has returned the result of the connection. If not, a drop means
    /// that the thread panicked.
    pub(super) orderly: bool,
}

/// Ends the connection. Aborts it first if the thread panicked.
impl<T: Transport> Drop for Session<T> {
    fn drop(&mut self) {
        if !self.orderly {
            self.conn.outbox.transport.abort();
        }
        // The connection ends when all tickets are returned. The session returns its own first.
        self.tickets.clear();
        self.inline = None;
        self.conn.finish();
    }
}

pub(super) struct Dropping {
    pub(super) left: usize,
    pub(super) cookie: u64,
    pub(super) why: Refusal,
}

/// A WRITE whose payload has been received.
pub(super) struct Write {
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) fua: bool,
    /// The place of the payload in the receive buffer.
    pub(super) payload: Range<usize>,
}

/// Work that the thread of a connection carries out next and that may wait.
pub(super) enum Inline {
    Writes(Batch),
    /// Any other command, with the ticket of its reply if that is long. With [`Wait::No`] a READ
    /// that would have to wait goes to a worker. It is still work that may wait, because the search
    /// for holes may need a disk.
    Other(Command, Request, Wait, Option<Ticket>),
}

/// The WRITEs of one call of the device.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) fua: bool,
    pub(super) ops: Vec<WriteOp>,
    pub(super) cookies: Vec<u64>,
}

impl Batch {
    pub(super) fn bytes(&self) -> u64 {
        self.ops.iter().map(|op| op.data.len() as u64).sum()
    }

    /// Writes the batch with one call of the device, appends the replies, and drops the payloads.
    pub(super) fn write<T: Transport>(&mut self, conn: &Conn<T>, out: &mut ReplyBuf) {
        if self.ops.is_empty() {
            return;
        }
        let failed = conn.exec.write(&mut self.ops, &self.cookies, self.fua, out);
        conn.counters.errors(failed);
        self.ops.clear();
        self.cookies.clear();
    }
}
