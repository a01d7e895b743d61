//! The outbox of a connection: its thread and the workers send replies through it. Only the
//! connection's own thread waits for a slow peer; workers never do.

use super::budget::Ticket;
use super::buffers::ReplyBuf;
use super::transport::Transport;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Replies sent by one call.
const MAX_GATHER: usize = 16;
/// A client has to take its replies at this rate, in bytes a second, beyond the time that a socket
/// may be full.
pub(crate) const MIN_RATE: u64 = 64 << 10;
/// How long a client may be slower than that.
const GRACE: Duration = Duration::from_secs(60);
/// Reply buffers kept for the next workers, and the largest worth keeping.
const MAX_SPARE: usize = 4;
const MAX_SPARE_BYTES: usize = 1 << 20;

/// Puts the last hand to replies, in the order in which they are sent.
pub(crate) trait Stamp: Send + 'static {
    /// `bytes` are whole replies that are sent next.
    fn stamp(&mut self, bytes: &mut [u8]);
}

/// Nothing is left to do.
impl Stamp for () {
    fn stamp(&mut self, _: &mut [u8]) {}
}

/// Replies on their way out of one connection.
pub(crate) struct Outbox<T, S = ()> {
    pub(crate) transport: T,
    state: Mutex<State>,
    /// Only the thread that has set `sending` locks it.
    stamp: Mutex<S>,
    sender_gone: Condvar,
    spare: Mutex<Vec<ReplyBuf>>,
}

/// How fast replies are taken. A client that takes a byte now and then would hold its memory for
/// ever.
#[derive(Default)]
struct Pace {
    since: Option<Instant>,
    bytes: u64,
}

impl Pace {
    /// So many bytes were taken, and there are more.
    fn sent(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes as u64;
        let took = self.since.get_or_insert_with(Instant::now).elapsed();
        if took >= GRACE + Duration::from_secs(self.bytes / MIN_RATE) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads its replies too slowly"));
        }
        Ok(())
    }
}

/// The queue of replies. The thread that sets `sending` sends until the queue is empty.
#[derive(Default)]
struct State {
    queue: VecDeque<Reply>,
    sending: bool,
    closed: bool,
}

struct Reply {
    buf: ReplyBuf,
    stamped: bool,
    sent: usize,
    /// Given back when the reply has been sent, so that a client that does not read its replies is
    /// bounded by what it may have in flight.
    _ticket: Option<Ticket>,
}

impl<T: Transport, S: Stamp> Outbox<T, S> {
    pub(crate) fn new(transport: T, stamp: S) -> Arc<Self> {
        let (state, sender_gone, spare) = Default::default();
        Arc::new(Outbox { transport, state, stamp: Mutex::new(stamp), sender_gone, spare })
    }

    /// Sends the connection thread's own replies, and after them what workers left meanwhile.
    pub(crate) fn send(&self, bytes: &mut [u8]) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            while state.sending {
                self.sender_gone.wait(&mut state);
            }
            if state.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.sending = true;
        }
        self.stamp.lock().stamp(bytes);
        let sent = self.send_own(bytes).and_then(|()| self.drain(true));
        sent.inspect_err(|_| self.fail())
    }

    fn send_own(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut pace = Pace::default();
        while !bytes.is_empty() {
            let sent = self.transport.send(&[IoSlice::new(bytes)], true)?;
            bytes = &bytes[sent..];
            if !bytes.is_empty() {
                pace.sent(sent)?;
            }
        }
        self.transport.flush(true)
    }

    /// Queues a worker's reply. This thread sends it now, unless another thread is sending or the
    /// socket is full. A full socket gets a thread of its own, because its client may be slow or
    /// gone, and workers serve all connections.
    pub(crate) fn post(self: &Arc<Self>, buf: ReplyBuf, ticket: Option<Ticket>) {
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.queue.push_back(Reply { buf, stamped: false, sent: 0, _ticket: ticket });
            if state.sending {
                return;
            }
            state.sending = true;
        }
        match self.drain(false) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let outbox = self.clone();
                let patient = move || {
                    if outbox.drain(true).is_err() {
                        outbox.fail();
                    }
                };
                if thread::Builder::new().name("send".into()).spawn(patient).is_err() {
                    self.fail();
                }
            }
            Err(_) => self.fail(),
        }
    }

    /// Sends what is queued. The caller has set `sending`; success clears it, an error leaves it
    /// set.
    fn drain(&self, wait: bool) -> io::Result<()> {
        let mut batch = VecDeque::new();
        let mut pace = Pace::default();
        loop {
            while !batch.is_empty() {
                let sent = self.send_some(&mut batch, wait).and_then(|n| pace.sent(n));
                if let Err(e) = sent {
                    let mut state = self.state.lock();
                    batch.append(&mut state.queue);
                    state.queue = batch;
                    return Err(e);
                }
            }
            self.transport.flush(wait)?;
            {
                let mut state = self.state.lock();
                if state.queue.is_empty() || state.closed {
                    state.sending = false;
                    drop(state);
                    self.sender_gone.notify_all();
                    return Ok(());
                }
                std::mem::swap(&mut batch, &mut state.queue);
            }
            let mut stamp = self.stamp.lock();
            for reply in batch.iter_mut().filter(|reply| !reply.stamped) {
                stamp.stamp(reply.buf.bytes_mut());
                reply.stamped = true;
            }
        }
    }

    fn send_some(&self, batch: &mut VecDeque<Reply>, wait: bool) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); MAX_GATHER];
        let mut count = 0;
        for (slice, reply) in slices.iter_mut().zip(batch.iter()) {
            *slice = IoSlice::new(&reply.buf.bytes()[reply.sent..]);
            count += 1;
        }
        let taken = self.transport.send(&slices[..count], wait)?;
        let mut sent = taken;
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
        Ok(taken)
    }

    /// Waits until nothing is left to be sent, or nothing can be.
    pub(crate) fn wait_sent(&self) {
        let mut state = self.state.lock();
        let goes_on = |state: &mut State| state.sending && !state.closed;
        let _ = self.sender_gone.wait_while_for(&mut state, goes_on, GRACE);
    }

    /// Replies that wait behind the one that is being sent.
    pub(crate) fn backlog(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// The stream is broken: nothing more goes out, what waits is given up, and the receiving
    /// thread ends.
    pub(crate) fn fail(&self) {
        let given_up = {
            let mut state = self.state.lock();
            state.closed = true;
            state.sending = false;
            std::mem::take(&mut state.queue)
        };
        drop(given_up);
        self.sender_gone.notify_all();
        self.transport.abort();
    }

    /// A buffer to build a reply in.
    pub(crate) fn spare(&self) -> ReplyBuf {
        self.spare.lock().pop().unwrap_or_default()
    }

    fn keep_spare(&self, mut buf: ReplyBuf) {
        buf.truncate(0);
        let mut spare = self.spare.lock();
        if spare.len() < MAX_SPARE && buf.capacity() <= MAX_SPARE_BYTES {
            spare.push(buf);
        }
    }
}
