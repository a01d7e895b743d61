//! The full feature phase of one connection: a thread receives, serves everything that came, and
//! answers at once. One thread at a time serves a connection, but not always the same one: see
//! [`attend`](super::attend).

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

/// An idle connection wakes up this often, to give memory back and to look after its peer.
const TICK: Duration = Duration::from_secs(2);
/// Responses are sent when they reach this length, even if the receive brought more requests.
const SEND_AT: usize = 256 << 10;
/// Answers of workers and of task management that may wait to be sent before nothing more is
/// received.
const MAX_BACKLOG: usize = 256;

/// Serves a connection until it ends, or until another thread takes over. `received` came with the
/// last login request. `None` if the end will be reported by that other thread.
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

/// Reads, writes and their data, which one receive may bring many of.
fn is_plain(bhs: &Bhs) -> bool {
    match bhs.opcode() {
        opcode::SCSI_COMMAND => Attribute::from_wire(bhs.u8(1)) == Attribute::Simple,
        other => other == opcode::DATA_OUT,
    }
}

impl Serving {
    /// Receives and serves until the connection ends, which is the result, or until another thread
    /// has taken over.
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

    /// Goes on until there is something to do that may wait; `None` at the end of the connection.
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

    /// Receives until something can be done; false at the end of the stream.
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

    /// A PDU that does not end, or data that does not come, ends the connection.
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

    /// Nothing came for a while: asks whether the initiator is still there (11.19).
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

    /// Serves every complete PDU that has been received, and answers. Ends early with what may
    /// wait; when that is done it is to be called again.
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

    /// The PDU that is next, if it is complete.
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
            // The length must not be trusted before the digest is checked.
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

    /// A data digest is wrong (7.8): the PDU is as if it had not come, but Data-Outs count towards
    /// their sequence.
    fn data_is_damaged(&mut self, bhs: &Bhs) -> io::Result<()> {
        self.tally.digest_errors += 1;
        self.reject(bhs, RejectReason::DataDigestError);
        if bhs.opcode() == opcode::DATA_OUT {
            self.data_out(bhs, None)?;
        }
        Ok(())
    }

    /// A request that is no SCSI command but takes its turn among them.
    fn manage(&mut self, bhs: &Bhs, data: Range<usize>) -> io::Result<()> {
        let cmd_sn = (!bhs.immediate()).then(|| bhs.cmd_sn());
        match self.admit(bhs, Ticketed { cmd_sn, attribute: None }, 0..0, data.clone())? {
            Admission::Go => {}
            Admission::Kept | Admission::Ignored => return Ok(()),
        }
        let data = self.rx.taken(&data);
        match bhs.opcode() {
            // It waits for writes that are under way.
            opcode::TASK_MANAGEMENT if self.conn.session.nexus.is_some() => {
                self.inline = manage::begin(&self.conn, bhs).map(|managing| Inline::Tasks(*bhs, managing));
            }
            // It asks the daemon what targets there are.
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

    /// Asks the window; what has to wait is kept there.
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

    /// Whether the request just taken is all that the initiator waits for: handing it to a worker
    /// would only cost time.
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

    /// What is left to do that may wait; if there is nothing, sends what there is.
    pub(super) fn settle(&mut self) -> io::Result<Option<Inline>> {
        if let Some(inline) = self.settle_writes()? {
            return Ok(Some(inline));
        }
        self.send()?;
        Ok(None)
    }

    /// Sends what there is.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let ready = self.tell_window();
        self.conn.count(&std::mem::take(&mut self.tally));
        // Answers that were left to other threads to send pile up if the initiator doesn't take
        // them. Then this thread waits too.
        if self.out.len() > 0 || self.conn.outbox.backlog() > MAX_BACKLOG {
            self.conn.outbox.send(self.out.bytes_mut())?;
            self.out.truncate(0);
            self.tickets.clear();
        }
        ready.run();
        Ok(())
    }
}
