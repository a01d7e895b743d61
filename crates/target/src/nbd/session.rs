//! The transmission phase of one connection, on its own thread: receive, serve everything that came, answer at once.

use super::codec::{Command, REQUEST_LEN, Request, cmd_flag};
use super::conn::Conn;
use super::exec::{Refusal, Wait};
use super::stats::Tally;
use crate::net::buffers::{ReplyBuf, RxBuffer};
use crate::net::transport::Transport;
use hindcast_engine::device::{DeviceInfo, WriteOp};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// An idle connection wakes up this often, to give memory back and to notice a peer that stopped in mid-request.
pub(super) const TICK: Duration = Duration::from_secs(2);
/// Replies are sent when they reach this length, even if the receive brought more requests.
const SEND_AT: usize = 256 << 10;
/// Reads up to this length are served on the connection's thread if they need no disk.
const MAX_INLINE_READ: u32 = 1 << 20;
/// Discards and zeroes up to this length are one small journal record.
const MAX_INLINE_CONTROL: u32 = 1 << 20;
/// A refused WRITE's payload up to this length is dropped to keep the connection.
const MAX_DROPPED: u32 = 64 << 20;

/// Serves a connection until it ends. `received` came with the last option.
pub(super) fn serve<T: Transport>(conn: &Arc<Conn<T>>, received: &[u8], stall: Duration) -> io::Result<()> {
    let mut session = Session {
        conn,
        rx: RxBuffer::new(received),
        out: ReplyBuf::default(),
        need: REQUEST_LEN,
        dropping: None,
        writes: Vec::new(),
        batch: Batch::default(),
        tally: Tally::default(),
        served: 0,
        refusing: false,
        ended: false,
        patience: (stall.as_millis() / TICK.as_millis()).max(1),
        idle_ticks: 0,
    };
    let result = session.run();
    conn.counters.add(&mut session.tally);
    drop(session);
    conn.finish();
    result
}

struct Session<'a, T> {
    conn: &'a Arc<Conn<T>>,
    rx: RxBuffer,
    out: ReplyBuf,
    /// Unread bytes without which nothing can go on.
    need: usize,
    /// The payload of a refused WRITE.
    dropping: Option<Dropping>,
    /// The WRITEs of this receive.
    writes: Vec<Write>,
    /// Those without FUA, on their way to the device; empty otherwise.
    batch: Batch,
    tally: Tally,
    /// Requests of this receive.
    served: usize,
    /// The server shuts down and what was under way has been served.
    refusing: bool,
    ended: bool,
    /// Ticks without progress in mid-request after which the peer is given up.
    patience: u128,
    idle_ticks: u128,
}

struct Dropping {
    left: usize,
    cookie: u64,
    why: Refusal,
}

/// A WRITE whose payload has been received.
struct Write {
    cookie: u64,
    offset: u64,
    fua: bool,
    /// Where in the receive buffer its payload is.
    payload: Range<usize>,
}

/// WRITEs for one call of the device.
#[derive(Default)]
struct Batch {
    ops: Vec<WriteOp>,
    cookies: Vec<u64>,
}

impl Batch {
    /// Writes, answers, and lets go of the payloads.
    fn write<T: Transport>(&mut self, conn: &Conn<T>, fua: bool, out: &mut ReplyBuf) {
        if self.ops.is_empty() {
            return;
        }
        let failed = conn.exec.write(&mut self.ops, &self.cookies, fua, out);
        conn.counters.errors(failed);
        self.ops.clear();
        self.cookies.clear();
    }
}

const SHUTTING_DOWN: Refusal =
    Refusal { errno: super::codec::Errno::Shutdown, message: "the server is shutting down" };

impl<T: Transport> Session<'_, T> {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let stopping = self.conn.stopping();
            if self.rx.unread().len() >= self.need || self.dropping.is_some() {
                self.serve_received()?;
            }
            if self.ended || !self.receive()? {
                return Ok(());
            }
            // What was under way when the server began to stop is served, what comes later is refused.
            self.refusing = stopping;
        }
    }

    /// Receives until something can be done; false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            self.rx.make_room(self.need, &self.conn.shared.rx_budget);
            match self.conn.outbox.transport.receive(self.rx.space()) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.rx.received(n);
                    self.idle_ticks = 0;
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.tick()?
                }
                Err(e) => return Err(e),
            }
            if self.rx.unread().len() >= self.need
                || (self.dropping.is_some() && !self.rx.unread().is_empty())
            {
                return Ok(true);
            }
        }
    }

    /// Nothing came for a while.
    fn tick(&mut self) -> io::Result<()> {
        self.idle_ticks += 1;
        if self.rx.unread().is_empty() && self.dropping.is_none() {
            self.rx.shrink();
            self.out.shrink(SEND_AT);
        } else if self.idle_ticks >= self.patience {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client stopped in the middle of a request",
            ));
        }
        Ok(())
    }

    /// Serves every complete request that has been received, and answers.
    fn serve_received(&mut self) -> io::Result<()> {
        let info = self.conn.exec.device.info();
        self.served = 0;
        while !self.ended && self.drop_payload() {
            let Some(header) = self.rx.unread().first_chunk::<REQUEST_LEN>() else {
                self.need = REQUEST_LEN;
                break;
            };
            let Some(req) = Request::decode(header) else {
                self.write_batch()?;
                self.send()?;
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a request has the wrong magic number",
                ));
            };
            if !self.dispatch(&req, &info)? {
                break;
            }
            if self.out.len() >= SEND_AT {
                self.send()?;
            }
        }
        self.write_batch()?;
        self.conn.counters.add(&mut self.tally);
        self.send()
    }

    /// Drops what came of a refused WRITE's payload; true when there is none (any more).
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

    /// Serves the request whose header is next; false if its payload has not arrived.
    fn dispatch(&mut self, req: &Request, info: &DeviceInfo) -> io::Result<bool> {
        let is_write = req.kind == Command::Write as u16;
        let command = match self.conn.rules.check(req, info) {
            Ok(command) if self.refusing && command != Command::Disc => Err(SHUTTING_DOWN),
            checked => checked,
        };
        let command = match command {
            Ok(command) => command,
            Err(why) => {
                self.rx.take(REQUEST_LEN);
                self.served += 1;
                if !is_write {
                    self.refuse(req.cookie, why);
                } else if req.length <= MAX_DROPPED {
                    self.dropping = Some(Dropping { left: req.length as usize, cookie: req.cookie, why });
                } else {
                    self.write_batch()?;
                    self.send()?;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a WRITE is absurdly long"));
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

    /// Whether the request just taken is all that the client waits for, so that nothing else waits if this thread does.
    fn alone(&self) -> bool {
        self.served == 1 && self.rx.unread().is_empty() && self.conn.flight.jobs() == 0
    }

    fn read(&mut self, req: &Request) -> io::Result<()> {
        if req.length <= MAX_INLINE_READ {
            let mut result = self.conn.exec.read(req, Wait::No, &mut self.out);
            if result.is_none() && self.alone() {
                result = self.conn.exec.read(req, Wait::Yes, &mut self.out);
            }
            if let Some(ok) = result {
                if !ok {
                    self.conn.counters.errors(1);
                }
                return Ok(());
            }
        }
        let req = *req;
        self.submit(u64::from(req.length), move |conn, out| {
            if conn.exec.read(&req, Wait::Yes, out) != Some(true) {
                conn.counters.errors(1);
            }
        })
    }

    fn control(&mut self, command: Command, req: &Request) -> io::Result<()> {
        let may_take_long = match command {
            Command::Trim | Command::WriteZeroes => {
                req.flags & (cmd_flag::FUA | cmd_flag::NO_HOLE) != 0 || req.length > MAX_INLINE_CONTROL
            }
            _ => true,
        };
        if may_take_long && !self.alone() {
            let req = *req;
            return self.submit(0, move |conn, out| {
                if !conn.exec.control(command, &req, out) {
                    conn.counters.errors(1);
                }
            });
        }
        if !self.conn.exec.control(command, req, &mut self.out) {
            self.conn.counters.errors(1);
        }
        Ok(())
    }

    /// Hands work to the pool. If it has to wait to be let in, what is done so far is answered first.
    fn submit(
        &mut self,
        bytes: u64,
        work: impl FnOnce(&Conn<T>, &mut ReplyBuf) + Send + 'static,
    ) -> io::Result<()> {
        let ticket = match self.conn.flight.try_enter(bytes) {
            Some(ticket) => ticket,
            None => {
                self.write_batch()?;
                self.send()?;
                self.conn.flight.enter(bytes)
            }
        };
        self.conn.submit(ticket, work);
        Ok(())
    }

    /// Writes what this receive brought: at most one call of the device without FUA, and one with it.
    fn write_batch(&mut self) -> io::Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let alone = self.alone();
        let lent = self.rx.lend();
        let mut durable = Batch::default();
        for write in self.writes.drain(..) {
            let batch = if write.fua { &mut durable } else { &mut self.batch };
            batch.cookies.push(write.cookie);
            batch.ops.push(WriteOp::new(write.offset, lent.slice(write.payload)));
        }
        self.batch.write(self.conn, false, &mut self.out);
        if alone {
            durable.write(self.conn, true, &mut self.out);
        }
        self.rx.give_back(lent);
        if durable.ops.is_empty() {
            return Ok(());
        }
        let bytes = durable.ops.iter().map(|op| op.data.len() as u64).sum();
        self.submit(bytes, move |conn, out| durable.write(conn, true, out))
    }

    fn send(&mut self) -> io::Result<()> {
        if self.out.len() > 0 {
            self.conn.outbox.send(self.out.bytes_mut())?;
            self.out.truncate(0);
        }
        Ok(())
    }
}
