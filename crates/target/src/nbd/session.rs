//! The transmission phase of one connection. A thread receives, carries out all complete requests,
//! and sends their replies together.
//!
//! One thread at a time serves a connection, but not always the same one. If the thread waits for a
//! disk for longer than some milliseconds, it keeps that work, and another thread takes over the
//! connection (see [`crate::net::watch`]).

use super::attend::{attend, carry_out};
use super::codec::{Command, REQUEST_LEN, Request, cmd_flag};
use super::conn::{Conn, Received};
use super::exec::{Refusal, Wait};
use super::serving::{Batch, Dropping, Inline, Session, Write};
use super::stats::Tally;
use crate::net::answered::{Answered, Arrival};
use crate::net::buffers::{RX_BASE, ReplyBuf, RxBuffer};
use crate::net::outbox::MIN_RATE;
use crate::net::transport::Transport;
use crate::net::watch::Desk;
use bytes::Bytes;
use hindcast_engine::device::{DeviceInfo, WriteOp};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Receive timeout of a connection. When it passes, the thread returns memory, and checks whether
/// the client has stopped in the middle of a request.
pub(super) const TICK: Duration = Duration::from_secs(2);
/// Length of replies, in bytes, from which they are sent at once, even if the receive brought more
/// requests.
const SEND_AT: usize = 256 << 10;
/// Maximum length in bytes of a READ that the thread of the connection may carry out. Longer ones
/// go to workers.
const MAX_INLINE_READ: u32 = 1 << 20;
/// Maximum length in bytes of a TRIM or WRITE_ZEROES that the thread of the connection carries out
/// while other requests wait. Such a request is one small journal record.
const MAX_INLINE_CONTROL: u32 = 1 << 20;
/// Maximum length in bytes of the payload of a refused WRITE. The session drops such a payload and
/// keeps the connection. A longer one ends the connection.
const MAX_DROPPED: u32 = 64 << 20;
/// Minimum length in bytes of a READ whose reply counts as memory in flight until it is sent.
const COUNTED: u32 = 64 << 10;
/// Number of threads of one connection that may wait for a disk. From this number on, workers carry
/// out all requests that may wait.
const MAX_STUCK: usize = 4;

/// Serves a connection until it ends, or until another thread takes over. `received` are the bytes
/// that followed the last option. Returns `None` if another thread took over: that thread then
/// reports the end.
pub(super) fn serve<T: Transport>(
    conn: &Arc<Conn<T>>,
    received: &[u8],
    stall: Duration,
) -> Option<io::Result<()>> {
    let session = Box::new(Session {
        desk: Desk::new(conn.shared.watch.as_ref()),
        conn: conn.clone(),
        rx: RxBuffer::new(conn.record.as_ref().and_then(|record| record.source()), received),
        out: ReplyBuf::default(),
        need: REQUEST_LEN,
        dropping: None,
        writes: Vec::new(),
        batches: Vec::new(),
        spare: Batch::default(),
        lent: None,
        alone: false,
        inline: None,
        aside: ReplyBuf::default(),
        tickets: Vec::new(),
        owed: 0,
        answered: Answered::default(),
        arrival: Arrival::now(),
        tally: Tally::default(),
        served: 0,
        amid: false,
        broken: None,
        stopping: false,
        ended: false,
        stall,
        idle_ticks: 0,
        began: None,
        orderly: false,
    });
    session.run()
}

impl<T: Transport> Session<T> {
    /// Receives and carries out requests. Returns the result when the connection ends. Returns
    /// `None` when another thread has taken over.
    pub(super) fn run(mut self: Box<Self>) -> Option<io::Result<()>> {
        loop {
            match self.step() {
                Ok(Some(inline)) => self = attend(self, inline)?,
                Ok(None) => return Some(self.end(Ok(()))),
                Err(e) => return Some(self.end(Err(e))),
            }
        }
    }

    fn end(mut self: Box<Self>, result: io::Result<()>) -> io::Result<()> {
        let conn = self.conn.clone();
        conn.counters.add(&mut self.tally);
        if result.is_err() {
            conn.flight.forget_waiting();
        }
        self.orderly = true;
        result
    }

    /// Continues until the next work that may wait, and returns that work. Returns `None` at the
    /// end of the connection.
    fn step(&mut self) -> io::Result<Option<Inline>> {
        loop {
            let stopping = self.conn.stopping();
            if (self.amid || self.rx.unread().len() >= self.need || self.dropping.is_some())
                && let Some(inline) = self.serve_received()?
            {
                return Ok(Some(inline));
            }
            if self.ended || self.stopping || !self.receive()? {
                return Ok(None);
            }
            self.stopping = stopping;
        }
    }

    /// Notes requests whose replies are in `out`.
    pub(super) fn answered(&mut self, command: Command, count: u64) {
        if let Some(kind) = command.request_kind() {
            self.answered.add(kind, count);
        }
    }

    /// Appends replies that were built apart from `out` to `out`. Keeps the empty buffer.
    pub(super) fn put_aside(&mut self, mut built: ReplyBuf) {
        self.out.append(&mut built);
        self.aside = built;
    }

    /// Receives until the session can continue. Returns false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            self.rx.make_room(self.need, &self.conn.shared.rx_budget);
            match self.conn.outbox.transport.receive(self.rx.space()) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.rx.received(n);
                    self.idle_ticks = 0;
                    self.watch_rate()?;
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.tick()?
                }
                Err(e) => return Err(e),
            }
            if self.rx.unread().len() >= self.need
                || (self.dropping.is_some() && !self.rx.unread().is_empty())
            {
                self.began = None;
                self.arrival.received();
                return Ok(true);
            }
        }
    }

    /// Handles a receive timeout: returns memory, or fails if the client has stopped in the middle
    /// of a request for too long.
    fn tick(&mut self) -> io::Result<()> {
        self.idle_ticks += 1;
        if self.rx.unread().is_empty() && self.dropping.is_none() {
            self.rx.shrink();
            self.out.shrink(SEND_AT);
        } else if self.idle_ticks >= (self.stall.as_millis() / TICK.as_millis()).max(1) {
            return Err(gave_up("the client stopped in the middle of a request"));
        }
        self.watch_rate()
    }

    /// Fails if a long request arrives more slowly than [`MIN_RATE`], after an allowance of the
    /// stall timeout. Such a request would otherwise keep its memory from other connections
    /// forever.
    fn watch_rate(&mut self) -> io::Result<()> {
        if self.rx.unread().len() >= self.need || self.need <= RX_BASE {
            return Ok(());
        }
        let limit = self.stall + Duration::from_secs(self.need as u64 / MIN_RATE);
        if self.began.get_or_insert_with(Instant::now).elapsed() >= limit {
            return Err(gave_up("the client sends the payload of a request too slowly"));
        }
        Ok(())
    }

    /// Carries out all complete requests that have been received, and sends the replies. If it
    /// returns work that may wait, the caller does that work and then calls again.
    fn serve_received(&mut self) -> io::Result<Option<Inline>> {
        if !self.amid {
            self.amid = true;
            self.served = 0;
        }
        if let Some(inline) = self.settle_writes()? {
            return Ok(Some(inline));
        }
        if self.out.len() >= SEND_AT {
            self.send()?;
        }
        let info = self.conn.exec.device.info();
        while !self.ended && self.broken.is_none() && self.drop_payload() {
            let Some(header) = self.rx.unread().first_chunk::<REQUEST_LEN>() else {
                self.need = REQUEST_LEN;
                break;
            };
            let Some(req) = Request::decode(header) else {
                self.broken = Some(invalid("a request has the wrong magic number"));
                break;
            };
            if !self.dispatch(&req, &info)? {
                break;
            }
            if let Some(inline) = self.inline.take() {
                return Ok(Some(inline));
            }
            if self.out.len() >= SEND_AT {
                self.send()?;
            }
        }
        if let Some(inline) = self.settle_writes()? {
            return Ok(Some(inline));
        }
        self.conn.counters.add(&mut self.tally);
        self.send()?;
        self.amid = false;
        match self.broken.take() {
            Some(e) => Err(e),
            None => Ok(None),
        }
    }

    /// Drops the received bytes of the payload of a refused WRITE. Returns true if no such payload
    /// is left.
    fn drop_payload(&mut self) -> bool {
        let Some(dropping) = &mut self.dropping else {
            return true;
        };
        let n = dropping.left.min(self.rx.unread().len());
        self.rx.take(n);
        dropping.left -= n;
        if dropping.left > 0 {
            self.need = 1;
            return false;
        }
        let Dropping { cookie, why, .. } = *dropping;
        self.dropping = None;
        self.refuse(cookie, why);
        true
    }

    fn refuse(&mut self, cookie: u64, why: Refusal) {
        self.conn.counters.errors(1);
        self.conn.exec.fail(cookie, why.errno, why.message, &mut self.out);
    }

    /// Begins the request whose header is next in the receive buffer. Returns false if its payload
    /// has not arrived completely.
    fn dispatch(&mut self, req: &Request, info: &DeviceInfo) -> io::Result<bool> {
        let is_write = req.kind == Command::Write as u16;
        let command = match self.conn.rules.check(req, info) {
            Ok(command) => command,
            Err(why) => {
                self.rx.take(REQUEST_LEN);
                self.served += 1;
                if !is_write {
                    self.refuse(req.cookie, why);
                } else if req.length <= MAX_DROPPED {
                    self.dropping = Some(Dropping { left: req.length as usize, cookie: req.cookie, why });
                } else {
                    self.broken = Some(invalid("a WRITE is longer than any valid request"));
                }
                return Ok(true);
            }
        };
        if is_write && self.rx.unread().len() < REQUEST_LEN + req.length as usize {
            self.need = REQUEST_LEN + req.length as usize;
            return Ok(false);
        }
        self.rx.take(REQUEST_LEN);
        self.served += 1;
        self.tally.request(command, req.length);
        match command {
            Command::Read => self.read(req)?,
            Command::Write => {
                let payload = self.rx.take(req.length as usize);
                let fua = req.flags & cmd_flag::FUA != 0;
                self.writes.push(Write { cookie: req.cookie, offset: req.offset, fua, payload });
            }
            Command::Disc => self.ended = true,
            _ => self.control(command, req)?,
        }
        Ok(true)
    }

    /// Returns whether the client waits for this request alone. A worker would then only add delay.
    fn is_alone(&self) -> bool {
        self.served == 1 && self.rx.unread().is_empty() && self.conn.flight.jobs() == 0
    }

    /// Returns whether so many threads of the connection wait for a disk that workers must carry
    /// out all requests that may wait.
    fn has_many_stuck(&self) -> bool {
        self.conn.stuck.load(Ordering::Acquire) >= MAX_STUCK
    }

    fn read(&mut self, req: &Request) -> io::Result<()> {
        let alone = self.is_alone();
        let counted = req.length >= COUNTED;
        let ticket = match req.length {
            length if length > MAX_INLINE_READ => return self.submit(Command::Read, req),
            length if counted => self.conn.flight.try_enter(u64::from(length)),
            _ => None,
        };
        if counted && ticket.is_none() {
            return self.submit(Command::Read, req);
        }
        if self.conn.exec.is_sparse(req) {
            if self.has_many_stuck() {
                drop(ticket);
                return self.submit(Command::Read, req);
            }
            let wait = if alone { Wait::Yes } else { Wait::No };
            self.inline = Some(Inline::Other(Command::Read, *req, wait, ticket));
            return Ok(());
        }
        if let Some(ok) = self.conn.exec.read(req, Wait::No, &mut self.out) {
            self.tickets.extend(ticket);
            self.answered(Command::Read, 1);
            self.conn.counters.errors(u64::from(!ok));
        } else if alone {
            self.inline = Some(Inline::Other(Command::Read, *req, Wait::Yes, ticket));
        } else {
            drop(ticket);
            self.submit(Command::Read, req)?;
        }
        Ok(())
    }

    fn control(&mut self, command: Command, req: &Request) -> io::Result<()> {
        let may_take_long = match command {
            Command::Trim | Command::WriteZeroes => {
                req.flags & (cmd_flag::FUA | cmd_flag::NO_HOLE) != 0 || req.length > MAX_INLINE_CONTROL
            }
            _ => true,
        };
        if may_take_long && !self.is_alone() || self.has_many_stuck() {
            return self.submit(command, req);
        }
        self.inline = Some(Inline::Other(command, *req, Wait::Yes, None));
        Ok(())
    }

    /// Submits a request without payload to a pool. The request begins when there is memory for its
    /// reply. A connection with too many requests in flight is not read from until some are
    /// answered.
    pub(super) fn submit(&mut self, command: Command, req: &Request) -> io::Result<()> {
        let arrived = self.arrival.before_wait();
        let max = self.conn.max_jobs;
        if self.conn.flight.jobs() >= max {
            self.send()?;
            self.conn.flight.wait_below(max);
        }
        let (conn, req) = (self.conn.clone(), *req);
        let bytes = if command == Command::Read { u64::from(req.length) } else { 0 };
        let changes = command != Command::Read && command != Command::BlockStatus;
        let received = Received { command, count: 1, arrived };
        self.conn.flight.enter_later(bytes, move |ticket| {
            conn.submit(changes, (received, ticket), move |conn, out| {
                carry_out(conn, command, &req, Wait::Yes, out);
            });
        });
        Ok(())
    }

    /// Returns the next batch of WRITEs for this thread: at most one without FUA and one with FUA
    /// for each receive. Submits batches for workers. Returns `None` when no batch is left. The
    /// receive buffer is then free.
    fn settle_writes(&mut self) -> io::Result<Option<Inline>> {
        if !self.writes.is_empty() {
            self.alone = self.is_alone();
            let lent = self.rx.lend();
            let mut durable = Batch { fua: true, ..Batch::default() };
            let mut plain = std::mem::take(&mut self.spare);
            plain.fua = false;
            for write in self.writes.drain(..) {
                let batch = if write.fua { &mut durable } else { &mut plain };
                batch.cookies.push(write.cookie);
                batch.ops.push(WriteOp::new(write.offset, lent.slice(write.payload)));
            }
            // The batch without FUA is last, because `pop` takes the last one first.
            self.batches.extend([durable, plain].into_iter().filter(|batch| !batch.ops.is_empty()));
            self.lent = Some(lent);
        }
        while let Some(mut batch) = self.batches.pop() {
            let apart = batch.fua && !self.alone;
            if !apart && !self.has_many_stuck() {
                return Ok(Some(Inline::Writes(batch)));
            }
            // A short payload must not keep a long receive buffer in memory. It is copied.
            if self.lent.as_ref().is_some_and(|lent| lent.len() > RX_BASE) {
                let short = batch.ops.iter_mut().filter(|op| op.data.len() < RX_BASE);
                short.for_each(|op| op.data = Bytes::copy_from_slice(&op.data));
            }
            let arrived = self.arrival.before_wait();
            self.send()?;
            let conn = self.conn.clone();
            conn.flight.wait_below(conn.max_jobs);
            let ticket = conn.flight.enter(batch.bytes());
            let count = batch.ops.len() as u64;
            let received = Received { command: Command::Write, count, arrived };
            conn.submit(true, (received, ticket), move |conn, out| batch.write(conn, out));
        }
        if let Some(lent) = self.lent.take() {
            self.rx.give_back(lent);
        }
        Ok(None)
    }

    fn send(&mut self) -> io::Result<()> {
        if self.out.len() > 0 {
            if !self.answered.is_empty() {
                self.answered.tell(&*self.conn.exec.device, self.arrival.took());
            }
            self.conn.outbox.send(self.out.bytes_mut())?;
            self.out.truncate(0);
            self.tickets.clear();
        }
        Ok(())
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn gave_up(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}
