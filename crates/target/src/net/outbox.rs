//! The outbox of a connection ([`Outbox`]): the connection's thread and the workers send replies
//! through it. Only the connection's own thread waits for a slow peer. Workers do not.

use super::budget::Ticket;
use super::buffers::ReplyBuf;
use super::transport::Transport;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of replies that one call sends.
const MAX_GATHER: usize = 16;
/// Minimum rate at which a client must receive replies, in bytes a second. A client that needs
/// [`GRACE`] longer than this rate allows is disconnected.
pub(crate) const MIN_RATE: u64 = 64 << 10;
/// Time that a client may need beyond the time that [`MIN_RATE`] allows.
const GRACE: Duration = Duration::from_secs(60);
/// Maximum number of reply buffers kept for the next workers.
const MAX_SPARE: usize = 4;
/// Maximum size of a kept reply buffer in bytes.
const MAX_SPARE_BYTES: usize = 1 << 20;

/// Completes replies just before they are sent, in the order of sending.
pub(crate) trait Stamp: Send + 'static {
    /// Completes `bytes`: whole replies, which are sent next.
    fn stamp(&mut self, bytes: &mut [u8]);
}

/// Leaves replies unchanged, for a protocol whose replies are already complete.
impl Stamp for () {
    fn stamp(&mut self, _: &mut [u8]) {}
}

/// The replies of one connection that are being sent or wait to be sent.
pub(crate) struct Outbox<T, S = ()> {
    pub(crate) transport: T,
    state: Mutex<State>,
    /// Completes replies. Only the thread that has set `sending` locks it.
    stamp: Mutex<S>,
    sender_gone: Condvar,
    spare: Mutex<Vec<ReplyBuf>>,
}

/// The rate at which the client receives replies. Without a minimum rate, a client that receives a
/// byte now and then would hold memory forever.
#[derive(Default)]
struct Pace {
    since: Option<Instant>,
    bytes: u64,
}

impl Pace {
    /// Counts `bytes` that the socket accepted while more are left. Fails if the client is too
    /// slow.
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
    /// The ticket of the reply. It is returned when the reply has been sent. So the limits on
    /// requests in flight also bound a client that does not receive its replies.
    _ticket: Option<Ticket>,
}

impl<T: Transport, S: Stamp> Outbox<T, S> {
    pub(crate) fn new(transport: T, stamp: S) -> Arc<Self> {
        let (state, sender_gone, spare) = Default::default();
        Arc::new(Outbox { transport, state, stamp: Mutex::new(stamp), sender_gone, spare })
    }

    /// Sends replies of the connection's thread, and then the replies that workers have queued.
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

    /// Queues a reply of a worker. This thread sends it now, unless another thread is sending. If
    /// the socket is full, a new thread sends the queue, because workers serve all connections and
    /// must not wait for a slow client.
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

    /// Sends the queue. The caller has set `sending`. Success clears `sending`, and an error leaves
    /// it set.
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

    /// Waits until the queue is empty or the stream is broken, but at most [`GRACE`].
    pub(crate) fn wait_sent(&self) {
        let mut state = self.state.lock();
        let goes_on = |state: &mut State| state.sending && !state.closed;
        let _ = self.sender_gone.wait_while_for(&mut state, goes_on, GRACE);
    }

    /// Returns the number of replies that wait behind those that are being sent.
    pub(crate) fn backlog(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Breaks the stream: drops the queue, sends nothing more, and ends the thread that receives.
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

    /// Returns an empty buffer to build a reply in.
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
