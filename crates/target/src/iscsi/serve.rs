//! The full feature phase of one connection. A thread receives, serves every request that was
//! received, and answers at once. One thread at a time serves a connection, but not always the same
//! one: see [`attend`](super::attend).

use super::conn::Conn;
use super::inline::{Batch, Inline, MAX_STUCK, Owed};
use super::manage::{self, Then};
use super::pdu::{Bhs, Layout, NO_TAG, RejectReason, nop_in, opcode, reject};
use super::reply;
use super::serving::Serving;
use super::session::{Held, Ready};
use super::stats::IscsiTraffic;
use super::window::{Admission, Attribute, Ticketed};
use crate::net::buffers::{ReplyBuf, RxBuffer};
use crate::net::transport::Transport;
use crate::net::watch::Desk;
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval at which an idle connection wakes up, to free memory and to check its initiator.
const TICK: Duration = Duration::from_secs(2);
/// Length in bytes from which responses are sent, even if more requests were received.
const SEND_AT: usize = 256 << 10;
/// Maximum number of unsent responses of workers and of task management. If there are more, the
/// thread of the connection sends them before it receives more.
const MAX_BACKLOG: usize = 256;

/// Serves a connection until it ends, or until another thread takes over. `received` are the bytes
/// that came with the last login request. Returns `None` if the other thread reports the end.
pub(super) fn serve(conn: &Arc<Conn>, received: &[u8]) -> Option<io::Result<()>> {
    let config = &conn.shared.config;
    let tick = TICK.min(config.nop_interval / 2).min(config.stall_timeout / 2);
    let prepared = conn.outbox.transport.set_timeouts(tick, config.stall_timeout);
    let serving = Box::new(Serving {
        desk: Desk::new(conn.shared.watch.as_ref()),
        conn: conn.clone(),
        rx: RxBuffer::new(Some(conn.record.source()), received),
        out: ReplyBuf::default(),
        need: super::pdu::BHS_LEN,
        writes: Vec::new(),
        batches: Vec::new(),
        spare: Batch::default(),
        lent: None,
        alone: false,
        inline: None,
        aside: ReplyBuf::default(),
        tickets: Vec::new(),
        owed: Owed::default(),
        ended: (0, 0),
        ready: Ready::default(),
        tally: IscsiTraffic::default(),
        answered: Vec::new(),
        served: 0,
        amid: false,
        broken: None,
        closing: false,
        heard: Instant::now(),
        watched: Instant::now(),
        ping: None,
        began: None,
        orderly: false,
    });
    match prepared {
        Ok(()) => serving.run(),
        Err(e) => Some(serving.end(Err(e))),
    }
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn gave_up(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Returns whether the PDU is a read, a write or write data. One receive may bring many of them.
fn is_plain(bhs: &Bhs) -> bool {
    match bhs.opcode() {
        opcode::SCSI_COMMAND => Attribute::from_wire(bhs.u8(1)) == Attribute::Simple,
        other => other == opcode::DATA_OUT,
    }
}

impl Serving {
    /// Receives and serves until the connection ends, and returns its result. Returns `None` if
    /// another thread has taken over.
    pub(super) fn run(mut self: Box<Self>) -> Option<io::Result<()>> {
        loop {
            match self.step() {
                Ok(Some(inline)) => self = super::attend::attend(self, inline)?,
                Ok(None) => return Some(self.end(Ok(()))),
                Err(e) => return Some(self.end(Err(e))),
            }
        }
    }

    fn end(mut self: Box<Self>, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            self.conn.abort(); // no thread waits for a peer that is given up
        }
        self.tell_window().run();
        self.conn.count(&self.tally);
        self.orderly = true;
        result
    }

    /// Serves the connection until there is work that may wait for a disk, and returns this work.
    /// Returns `None` at the end of the connection.
    fn step(&mut self) -> io::Result<Option<Inline>> {
        loop {
            if (self.amid || self.rx.unread().len() >= self.need)
                && let Some(inline) = self.serve_received()?
            {
                return Ok(Some(inline));
            }
            if self.closing || !self.receive()? {
                return Ok(None);
            }
        }
    }

    /// Receives until a PDU or its header can be served. Returns false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            self.rx.make_room(self.need, &self.conn.shared.rx_budget);
            match self.conn.outbox.transport.receive(self.rx.space()) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.rx.received(n);
                    let now = Instant::now();
                    if now.duration_since(self.watched) >= TICK {
                        self.watched = now;
                        self.watch_transfers()?;
                    }
                    self.heard = now;
                    self.ping = None;
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.look_after_peer()?;
                }
                Err(e) => return Err(e),
            }
            if self.rx.unread().len() >= self.need {
                self.began = None;
                return Ok(true);
            }
            self.watch_stall()?;
        }
    }

    /// Fails if a PDU is incomplete for too long. The connection then ends.
    fn watch_stall(&mut self) -> io::Result<()> {
        let limit = self.conn.shared.config.stall_timeout;
        if !self.rx.unread().is_empty() && self.began.get_or_insert_with(Instant::now).elapsed() >= limit {
            return Err(gave_up("the initiator stopped in the middle of a PDU"));
        }
        Ok(())
    }

    fn watch_transfers(&self) -> io::Result<()> {
        self.conn.session.tell_what_is_owed();
        let patience = self.conn.shared.config.stall_timeout;
        if self.conn.transfers.lock().any_stalls(patience) {
            return Err(gave_up("the initiator does not send the requested data"));
        }
        Ok(())
    }

    /// Frees memory when nothing was received for a while. Checks with a NOP-In whether the
    /// initiator still answers (11.19).
    fn look_after_peer(&mut self) -> io::Result<()> {
        if self.rx.unread().is_empty() {
            self.rx.shrink();
            self.out.shrink(SEND_AT);
        }
        self.watch_transfers()?;
        let interval = self.conn.shared.config.nop_interval;
        match self.ping {
            Some(sent) if sent.elapsed() >= interval => Err(gave_up("the initiator does not answer")),
            None if self.heard.elapsed() >= interval => {
                self.ping = Some(Instant::now());
                self.conn.post(nop_in([0; 8], NO_TAG, 1), &[]);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Serves every complete PDU that was received, and answers. If there is work that may wait for
    /// a disk, returns this work early. The caller calls the function again when the work is done.
    fn serve_received(&mut self) -> io::Result<Option<Inline>> {
        if !self.amid {
            self.amid = true;
            self.served = 0;
        }
        if let Some(inline) = self.settle_writes()? {
            return Ok(Some(inline));
        }
        while !self.closing {
            let Some((bhs, layout)) = self.next_pdu() else {
                break;
            };
            if !is_plain(&bhs)
                && let Some(inline) = self.settle()?
            {
                return Ok(Some(inline)); // what came before is done and answered before
            }
            let pdu = self.rx.take(layout.total);
            let data = pdu.start + layout.data_at..pdu.start + layout.data_at + layout.data_len;
            let ahs = pdu.start + super::pdu::BHS_LEN..pdu.start + layout.header;
            self.served += 1;
            if layout.data_ok(self.rx.taken(&pdu), self.conn.params.digests) {
                self.dispatch(&bhs, ahs, data)?;
            } else {
                self.data_is_damaged(&bhs)?;
            }
            if let Some(inline) = self.inline.take() {
                return Ok(Some(inline));
            }
            if self.out.len() >= SEND_AT
                && let Some(inline) = self.settle()?
            {
                return Ok(Some(inline));
            }
        }
        if let Some(inline) = self.settle()? {
            return Ok(Some(inline));
        }
        self.amid = false;
        match self.broken.take() {
            Some(e) => Err(e),
            None => Ok(None),
        }
    }

    /// Returns the next PDU, if it is complete.
    fn next_pdu(&mut self) -> Option<(Bhs, Layout)> {
        let digests = self.conn.params.digests;
        let unread = self.rx.unread();
        if self.broken.is_some() {
            return None;
        }
        let Some(bhs) = Bhs::parse(unread) else {
            self.need = super::pdu::BHS_LEN;
            return None;
        };
        let layout = bhs.layout(digests);
        if digests.header {
            // The length may be used only after the digest was checked.
            if unread.len() < layout.header + 4 {
                self.need = layout.header + 4;
                return None;
            }
            if !layout.header_ok(unread, digests) {
                self.tally.digest_errors += 1;
                self.broken = Some(broken("a header digest is wrong"));
                return None;
            }
        }
        if layout.data_len > self.conn.params.max_recv_data_segment as usize {
            self.broken = Some(broken("a data segment is longer than negotiated"));
            return None;
        }
        if unread.len() < layout.total {
            self.need = layout.total;
            return None;
        }
        Some((bhs, layout))
    }

    fn dispatch(&mut self, bhs: &Bhs, ahs: Range<usize>, data: Range<usize>) -> io::Result<()> {
        let discovery = self.conn.session.nexus.is_none();
        match bhs.opcode() {
            opcode::SCSI_COMMAND if !discovery => self.scsi_command(bhs, ahs, data),
            opcode::DATA_OUT if !discovery => self.data_out(bhs, Some(data)),
            opcode::NOP_OUT if bhs.itt() == NO_TAG => Ok(()), // the answer to a ping: that it came is enough
            opcode::NOP_OUT | opcode::TEXT | opcode::LOGOUT => self.manage(bhs, data),
            opcode::TASK_MANAGEMENT | opcode::SCSI_COMMAND => self.manage(bhs, data),
            opcode::SNACK => {
                self.reject(bhs, RejectReason::SnackReject); // nothing to recover at level 0
                Ok(())
            }
            opcode::LOGIN | opcode::DATA_OUT => {
                self.reject(bhs, RejectReason::ProtocolError);
                Ok(())
            }
            _ => {
                self.reject(bhs, RejectReason::CommandNotSupported);
                Ok(())
            }
        }
    }

    /// Handles a wrong data digest (7.8). The PDU counts as not received, but a Data-Out counts in
    /// its sequence.
    fn data_is_damaged(&mut self, bhs: &Bhs) -> io::Result<()> {
        self.tally.digest_errors += 1;
        self.reject(bhs, RejectReason::DataDigestError);
        if bhs.opcode() == opcode::DATA_OUT {
            self.data_out(bhs, None)?;
        }
        Ok(())
    }

    /// Serves a request that is no SCSI command but has a place in the order of CmdSN.
    fn manage(&mut self, bhs: &Bhs, data: Range<usize>) -> io::Result<()> {
        let cmd_sn = (!bhs.immediate()).then(|| bhs.cmd_sn());
        match self.admit(bhs, Ticketed { cmd_sn, attribute: None }, 0..0, data.clone())? {
            Admission::Go => {}
            Admission::Kept | Admission::Ignored => return Ok(()),
        }
        let data = self.rx.taken(&data);
        match bhs.opcode() {
            // Task management waits for writes in progress.
            opcode::TASK_MANAGEMENT if self.conn.session.nexus.is_some() => {
                self.inline = manage::begin(&self.conn, bhs).map(|managing| Inline::Tasks(*bhs, managing));
            }
            // A text request asks the daemon for its targets.
            opcode::TEXT if self.conn.stuck.load(Ordering::Acquire) < MAX_STUCK => {
                self.inline = Some(Inline::Text(*bhs, Bytes::copy_from_slice(data)));
            }
            opcode::TEXT => self.reject(bhs, RejectReason::OutOfResources),
            _ => {
                if manage::serve(&self.conn, bhs, data, &mut self.out) == Then::Close {
                    self.closing = true;
                }
            }
        }
        Ok(())
    }

    /// Passes a request to the command window. The window keeps a request that must wait.
    pub(super) fn admit(
        &mut self,
        bhs: &Bhs,
        request: Ticketed,
        ahs: Range<usize>,
        data: Range<usize>,
    ) -> io::Result<Admission> {
        let conn = self.conn.clone();
        let mut too_much = false;
        let (admission, others) = conn.session.admit(request, || {
            let ticket = conn.gathering.try_enter(data.len() as u64);
            too_much = ticket.is_none();
            Held {
                conn: conn.clone(),
                arrived: self.heard,
                bhs: *bhs,
                ahs: self.rx.taken(&ahs).to_vec(),
                data: bytes::Bytes::copy_from_slice(self.rx.taken(&data)),
                ticket,
            }
        });
        if others {
            conn.session.run_next();
        }
        if too_much {
            return Err(broken("too many commands wait for a missing CmdSN"));
        }
        Ok(admission)
    }

    /// Answers with a Reject (11.17).
    pub(super) fn reject(&mut self, bhs: &Bhs, reason: RejectReason) {
        self.tally.rejects += 1;
        reply::put(&mut self.out, reject(reason), &bhs.0, self.conn.params.digests);
    }

    /// Returns whether the current request is the only one that the initiator waits for. A worker
    /// would only cost time in this case.
    pub(super) fn is_alone(&self) -> bool {
        self.served == 1
            && self.rx.unread().is_empty()
            && self.conn.flight.jobs() == 0
            && self.conn.transfers.lock().is_empty()
    }

    fn tell_window(&mut self) -> Ready {
        let mut ready = std::mem::take(&mut self.ready);
        let (commands, counted) = std::mem::take(&mut self.ended);
        if commands > 0 {
            ready.and(self.conn.session.ended(commands, counted));
        }
        ready
    }

    /// Returns remaining work that may wait for a disk. If there is none, sends the responses.
    pub(super) fn settle(&mut self) -> io::Result<Option<Inline>> {
        if let Some(inline) = self.settle_writes()? {
            return Ok(Some(inline));
        }
        self.send()?;
        Ok(None)
    }

    /// Sends the responses, and updates the command window and the counters.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let ready = self.tell_window();
        self.conn.count(&std::mem::take(&mut self.tally));
        if !self.answered.is_empty() {
            let took = self.heard.elapsed();
            self.answered.drain(..).for_each(|(path, mut commands)| commands.tell(&**path.lu.device(), took));
        }
        // Responses that other threads must send collect if the initiator does not receive them. In
        // that case this thread waits too.
        if self.out.len() > 0 || self.conn.outbox.backlog() > MAX_BACKLOG {
            self.conn.outbox.send(self.out.bytes_mut())?;
            self.out.truncate(0);
            self.tickets.clear();
        }
        ready.run();
        Ok(())
    }
}
