//! What a connection's thread and the workers share: the way out, and what is in flight.

use super::exec::{Executor, Rules};
use super::registry::Record;
use super::stats::Counters;
use crate::net::budget::{Budget, Flight, Ticket};
use crate::net::buffers::ReplyBuf;
use crate::net::pool::Pool;
use crate::net::transport::{Transport, send_all};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Replies sent by one call.
const MAX_GATHER: usize = 16;
/// Reply buffers kept for the next workers, and the largest worth keeping.
const MAX_SPARE: usize = 4;
const MAX_SPARE_BYTES: usize = 1 << 20;

/// What a session needs of its server.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) pool: Arc<Pool>,
    /// Bounds writes that are being received.
    pub(super) rx_budget: Arc<Budget>,
    /// Bounds replies that are being built away from the connections' threads. Apart from the other so that a
    /// connection which waits here while it holds a received write can't be waited for.
    pub(super) reply_budget: Arc<Budget>,
    /// Set once: no new requests, please.
    pub(super) stopping: Arc<AtomicBool>,
}

/// A connection in its transmission phase.
pub(super) struct Conn<T> {
    pub(super) transport: T,
    pub(super) exec: Executor,
    pub(super) rules: Rules,
    pub(super) shared: Shared,
    pub(super) flight: Arc<Flight>,
    pub(super) counters: Arc<Counters>,
    outbox: Mutex<Outbox>,
    sender_gone: Condvar,
    spare: Mutex<Vec<ReplyBuf>>,
    /// Last, so that the device is let go of before the connection counts as gone.
    _record: Option<Arc<Record>>,
}

/// Replies on their way out. Whoever sets `sending` sends, until the queue is empty.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<Reply>,
    sending: bool,
    closed: bool,
}

struct Reply {
    buf: ReplyBuf,
    sent: usize,
    /// Given back when the reply has been sent, so that a client that does not read its replies is bounded by what
    /// it may have in flight.
    _ticket: Ticket,
}

impl<T: Transport> Conn<T> {
    pub(super) fn new(
        transport: T,
        exec: Executor,
        rules: Rules,
        shared: Shared,
        flight: Arc<Flight>,
        record: Option<Arc<Record>>,
    ) -> Arc<Conn<T>> {
        let counters = record.as_ref().map(|r| r.counters.clone()).unwrap_or_default();
        Arc::new(Conn {
            transport,
            exec,
            rules,
            shared,
            flight,
            counters,
            outbox: Mutex::default(),
            sender_gone: Condvar::new(),
            spare: Mutex::default(),
            _record: record,
        })
    }

    /// Sends the connection thread's own replies, and after them what workers left meanwhile.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        {
            let mut outbox = self.outbox.lock();
            while outbox.sending {
                self.sender_gone.wait(&mut outbox);
            }
            if outbox.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            outbox.sending = true;
        }
        let sent = send_all(&self.transport, bytes).and_then(|()| self.drain(true));
        sent.inspect_err(|_| self.fail())
    }

    /// Leaves a worker's reply to be sent: now, by this thread, unless another is at it or the socket is full. A full
    /// socket gets a thread of its own, because its client may be slow or gone and workers serve everybody.
    fn post(self: &Arc<Self>, buf: ReplyBuf, ticket: Ticket) {
        {
            let mut outbox = self.outbox.lock();
            if outbox.closed {
                return;
            }
            outbox.queue.push_back(Reply { buf, sent: 0, _ticket: ticket });
            if outbox.sending {
                return;
            }
            outbox.sending = true;
        }
        match self.drain(false) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let conn = self.clone();
                let patient = move || {
                    if conn.drain(true).is_err() {
                        conn.fail();
                    }
                };
                if thread::Builder::new().name("nbd-send".into()).spawn(patient).is_err() {
                    self.fail();
                }
            }
            Err(_) => self.fail(),
        }
    }

    /// Sends what is queued. The caller has set `sending`; success clears it, an error leaves it set.
    fn drain(&self, wait: bool) -> io::Result<()> {
        let mut batch = VecDeque::new();
        loop {
            while !batch.is_empty() {
                if let Err(e) = self.send_some(&mut batch, wait) {
                    let mut outbox = self.outbox.lock();
                    batch.append(&mut outbox.queue);
                    outbox.queue = batch;
                    return Err(e);
                }
            }
            self.transport.flush(wait)?;
            let mut outbox = self.outbox.lock();
            if outbox.queue.is_empty() || outbox.closed {
                outbox.sending = false;
                drop(outbox);
                self.sender_gone.notify_all();
                return Ok(());
            }
            std::mem::swap(&mut batch, &mut outbox.queue);
        }
    }

    fn send_some(&self, batch: &mut VecDeque<Reply>, wait: bool) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); MAX_GATHER];
        let mut count = 0;
        for (slice, reply) in slices.iter_mut().zip(batch.iter()) {
            *slice = IoSlice::new(&reply.buf.bytes()[reply.sent..]);
            count += 1;
        }
        let mut sent = self.transport.send(&slices[..count], wait)?;
        while let Some(first) = batch.front_mut() {
            let left = first.buf.len() - first.sent;
            if sent < left {
                first.sent += sent;
                break;
            }
            sent -= left;
            if let Some(done) = batch.pop_front() {
                self.keep_spare(done.buf);
            }
        }
        Ok(())
    }

    /// The stream is broken: nothing more goes out, what waits is given up, and the receiving thread ends.
    fn fail(&self) {
        let given_up = {
            let mut outbox = self.outbox.lock();
            outbox.closed = true;
            outbox.sending = false;
            std::mem::take(&mut outbox.queue)
        };
        drop(given_up);
        self.sender_gone.notify_all();
        self.transport.abort();
    }

    /// Hands work to the pool; its reply is sent when it is done, in whatever order.
    pub(super) fn submit(
        self: &Arc<Self>,
        ticket: Ticket,
        work: impl FnOnce(&Conn<T>, &mut ReplyBuf) + Send + 'static,
    ) {
        let conn = self.clone();
        conn.counters.job_started();
        self.shared.pool.submit(Box::new(move || {
            let mut unanswered = Unanswered { conn: &conn, answered: false };
            let mut out = conn.spare.lock().pop().unwrap_or_default();
            work(&conn, &mut out);
            conn.post(out, ticket);
            unanswered.answered = true;
        }));
    }

    fn keep_spare(&self, mut buf: ReplyBuf) {
        buf.truncate(0);
        let mut spare = self.spare.lock();
        if spare.len() < MAX_SPARE && buf.capacity() <= MAX_SPARE_BYTES {
            spare.push(buf);
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Answers what is in flight, then ends the stream.
    pub(super) fn finish(&self) {
        self.flight.wait_idle();
        self.transport.close();
    }
}

/// Sees to it that a request whose work panicked does not leave its client waiting for ever.
struct Unanswered<'a, T: Transport> {
    conn: &'a Conn<T>,
    answered: bool,
}

impl<T: Transport> Drop for Unanswered<'_, T> {
    fn drop(&mut self) {
        self.conn.counters.job_ended();
        if !self.answered {
            self.conn.transport.abort();
        }
    }
}
