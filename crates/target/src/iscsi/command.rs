//! SCSI commands and their data on the thread of a connection (RFC 7143, 11.3 and 11.7).

use super::active::Active;
use super::condition;
use super::conn::Conn;
use super::inline::{Batch, Inline, MAX_STUCK, Payload, Write};
use super::pdu::{self, Bhs, RejectReason, command_flag};
use super::reply::{self, Request, put_outcome};
use super::serving::Serving;
use super::session::Held;
use super::stats::IscsiTraffic;
use super::transfer::{Need, Taken, Terms, Transfer};
use super::window::{Admission, Attribute, Ticketed};
use super::work::{Wait, Work, is_success, read_into};
use crate::net::answered::Answered;
use crate::net::budget::Ticket;
use crate::net::buffers::{RX_BASE, ReplyBuf};
use crate::scsi::{Command, LuNexus, Nexus, Outcome, ReadCommand, Status};
use bytes::Bytes;
use hindcast_engine::device::RequestKind;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Maximum length in bytes of a read that the thread of the connection serves itself if the read
/// needs no disk.
const MAX_INLINE_READ: u32 = 1 << 20;

/// Minimum length in bytes of a read whose response counts as memory until it has been sent.
const COUNTED: u32 = 64 << 10;
/// The request of a SCSI Command. It has the CDB if that is longer than 16 bytes.
struct Asked {
    request: Request,
    long_cdb: Option<Vec<u8>>,
}

/// Reads the header of a command that was received at `arrived`. Fails if its additional header
/// segments are malformed.
fn asked(bhs: &Bhs, ahs: &[u8], arrived: Instant) -> Result<Asked, ()> {
    let flags = bhs.u8(1);
    let (reads, writes) = (flags & command_flag::READ != 0, flags & command_flag::WRITE != 0);
    let expected = bhs.u32(20);
    let mut asked = Asked {
        request: Request {
            itt: bhs.itt(),
            lun: u64::from_be_bytes(bhs.lun()),
            expects_in: if reads && !writes { expected } else { 0 },
            expects_out: if writes { expected } else { 0 },
            counted: !bhs.immediate(),
            r2ts: 0,
            arrived,
        },
        long_cdb: None,
    };
    for header in pdu::additional_headers(ahs) {
        match header? {
            // Extended CDB: a reserved byte, and the bytes after the first 16.
            (1, rest) => {
                let mut cdb = bhs.0[32..48].to_vec();
                cdb.extend_from_slice(rest.get(1..).unwrap_or(&[]));
                asked.long_cdb = Some(cdb);
            }
            // Expected bidirectional read data length: a reserved byte and the number.
            (2, rest) if reads && writes => {
                let length = rest.get(1..5).and_then(|b| b.try_into().ok()).ok_or(())?;
                asked.request.expects_in = u32::from_be_bytes(length);
            }
            _ => {}
        }
    }
    Ok(asked)
}

/// Checks the unsolicited data against the negotiated parameters (RFC 7143, 13.10 to 13.14). If
/// Data-Outs follow the immediate data, returns the limit of all unsolicited data.
fn unsolicited(conn: &Conn, bhs: &Bhs, request: &Request) -> Result<Option<u32>, Outcome> {
    let params = &conn.session.params;
    let limit = params.first_burst.min(request.expects_out);
    let more = !bhs.is_final() && request.expects_out > 0;
    let immediate = bhs.data_len();
    let too_much = immediate > limit as usize
        || (immediate > 0 && !params.immediate_data)
        || (more && params.initial_r2t);
    if too_much {
        return Err(Outcome::check(condition::UNEXPECTED_DATA));
    }
    Ok(more.then_some(limit))
}

fn start(nexus: &Arc<Nexus>, bhs: &Bhs, asked: &Asked) -> Command {
    nexus.start(
        asked.request.lun,
        asked.long_cdb.as_deref().unwrap_or(&bhs.0[32..48]),
        u64::from(asked.request.expects_out),
    )
}

fn terms(conn: &Conn) -> Terms {
    let params = &conn.session.params;
    Terms { max_burst: params.max_burst, max_outstanding: params.max_outstanding_r2t }
}

impl Serving {
    pub(super) fn scsi_command(
        &mut self,
        bhs: &Bhs,
        ahs: Range<usize>,
        data: Range<usize>,
    ) -> io::Result<()> {
        if bhs.immediate() && self.conn.session.is_flooded() {
            self.reject(bhs, RejectReason::TooManyImmediate);
            return Ok(());
        }
        let request = Ticketed {
            cmd_sn: (!bhs.immediate()).then(|| bhs.cmd_sn()),
            attribute: Some(Attribute::from_wire(bhs.u8(1))),
        };
        match self.admit(bhs, request, ahs.clone(), data.clone())? {
            Admission::Go => self.begin(bhs, ahs, data),
            Admission::Kept | Admission::Ignored => Ok(()),
        }
    }

    fn begin(&mut self, bhs: &Bhs, ahs: Range<usize>, data: Range<usize>) -> io::Result<()> {
        let conn = self.conn.clone();
        let Some(nexus) = &conn.session.nexus else {
            return Ok(());
        };
        let Ok(asked) = asked(bhs, self.rx.taken(&ahs), self.heard) else {
            self.ended.0 += 1;
            self.ended.1 += u32::from(!bhs.immediate());
            self.reject(bhs, RejectReason::InvalidPduField);
            return Ok(());
        };
        self.tally.commands += 1;
        self.tally.bytes_written += data.len() as u64;
        let request = asked.request;
        let more = match unsolicited(&conn, bhs, &request) {
            Ok(more) => more,
            Err(outcome) => {
                self.answer(&request, &outcome);
                return Ok(());
            }
        };
        let need = match start(nexus, bhs, &asked) {
            Command::Done(outcome) => {
                self.answer(&request, &outcome);
                return Ok(());
            }
            Command::Read(read) => return self.read(request, read),
            Command::Write(command) => {
                self.tally.writes += 1;
                let whole = more.is_none() && command.len == request.expects_out;
                if whole && data.len() == command.len as usize {
                    let data = Payload::Received(data);
                    self.writes.push(Write { request, command, data, active: None });
                    return Ok(());
                }
                Need::Write(command)
            }
            Command::Other(task) => Need::Other(Arc::new(task)),
        };
        self.with_data(request, need, data, more)
    }

    /// Serves any command except a read, and except a write whose data is complete in the receive
    /// buffer.
    fn with_data(
        &mut self,
        request: Request,
        need: Need,
        data: Range<usize>,
        more: Option<u32>,
    ) -> io::Result<()> {
        let conn = self.conn.clone();
        let want = need.bytes().min(u64::from(request.expects_out));
        if more.is_none() && data.len() as u64 >= want {
            let data = Bytes::copy_from_slice(&self.rx.taken(&data)[..want as usize]);
            return self.carry_out(request, need.with(data), None);
        }
        let Some(ticket) = conn.gathering.try_enter(want) else {
            self.answer(&request, &Outcome::status(Status::TaskSetFull));
            return Ok(());
        };
        let Some(active) = conn.session.begin(request.itt, request.lun, conn.cid, request.counted) else {
            return self.tag_in_use(&request);
        };
        let begin = (request, active, ticket);
        let transfer = Transfer::new(begin, need, terms(&conn), self.rx.taken(&data), more);
        let taken = conn.transfers.lock().begin(transfer);
        self.taken(taken)
    }

    /// Handles a Data-Out (11.7). `data` is `None` if the data digest was wrong.
    pub(super) fn data_out(&mut self, bhs: &Bhs, data: Option<Range<usize>>) -> io::Result<()> {
        let data = data.map(|range| self.rx.taken(&range));
        self.tally.bytes_written += data.map_or(0, <[u8]>::len) as u64;
        let taken = self.conn.transfers.lock().take(bhs, data);
        if matches!(taken, Taken::Misplaced) {
            self.reject(bhs, RejectReason::InvalidPduField);
        }
        self.taken(taken)
    }

    fn taken(&mut self, taken: Taken) -> io::Result<()> {
        match taken {
            Taken::Unknown | Taken::Misplaced => {}
            Taken::More(asked) => {
                for r2t in asked {
                    reply::put(&mut self.out, r2t, &[], self.conn.params.digests);
                }
            }
            Taken::Complete(transfer) => {
                let (mut request, active, ticket, work) = transfer.into_work();
                request.arrived = self.heard;
                self.carry_out(request, work, Some((active, ticket)))?;
            }
        }
        Ok(())
    }

    /// Carries out a command that has all its data, or gives it to the workers.
    fn carry_out(
        &mut self,
        request: Request,
        work: Work,
        active: Option<(Arc<Active>, Ticket)>,
    ) -> io::Result<()> {
        let quick = match &work {
            Work::Done(..) => true,
            Work::Other(task, _) => task.is_quick(),
            Work::Read(_) | Work::Write(..) => false,
        };
        match (work, active) {
            (Work::Write(command, data), active) if !data.is_empty() => {
                let data = Payload::Gathered(data);
                self.writes.push(Write { request, command, data, active });
                Ok(())
            }
            (work, None) if quick => {
                let ok = work.perform(&request, self.conn.shape(), &mut self.out);
                self.over(&request, ok);
                Ok(())
            }
            (work, Some((active, _ticket))) if quick => {
                let at = self.out.len();
                let ok = active.run(None, false) && work.perform(&request, self.conn.shape(), &mut self.out);
                self.finish(&active, at, ok);
                Ok(())
            }
            (work @ Work::Other(..), None) if !work.may_take_long() && self.is_alone() => {
                self.inline = Some(Inline::Work(request, work, None));
                Ok(())
            }
            (work, None) => self.submit(request, work),
            (work, Some((active, ticket))) => {
                self.conn.submit(request, work, active, ticket);
                Ok(())
            }
        }
    }

    /// Notes a command whose response is in `out`, for the statistics of its device.
    pub(super) fn answered(&mut self, path: &Arc<LuNexus>, kind: RequestKind) {
        let at = self.answered.iter().position(|(known, _)| Arc::ptr_eq(known, path)).unwrap_or_else(|| {
            self.answered.push((path.clone(), Answered::default()));
            self.answered.len() - 1
        });
        self.answered[at].1.add(kind, 1);
    }

    /// Ends a registered task on this thread. Its response begins at `at` in `out`. If the task was
    /// aborted, the response is removed. Returns whether it was answered.
    fn finish(&mut self, active: &Arc<Active>, at: usize, ok: bool) -> bool {
        let mut answered = false;
        self.ready.and(self.conn.session.finish(active, || answered = true));
        if !answered {
            self.out.truncate(at);
        }
        self.tally.errors += u64::from(!ok);
        answered
    }

    fn read(&mut self, request: Request, read: ReadCommand) -> io::Result<()> {
        self.tally.reads += 1;
        self.tally.bytes_read += u64::from(read.len.min(request.expects_in));
        if read.len > MAX_INLINE_READ {
            return self.submit(request, Work::Read(read));
        }
        let alone = self.is_alone();
        let counted = read.len >= COUNTED;
        let ticket = if counted { self.conn.flight.try_enter(u64::from(read.len)) } else { None };
        if counted && ticket.is_none() {
            return self.submit(request, Work::Read(read));
        }
        if let Some(ok) = read_into(&read, &request, self.conn.shape(), Wait::No, &mut self.out) {
            self.tickets.extend(ticket);
            self.answered(&read.path, RequestKind::Read);
            self.over(&request, ok);
            return Ok(());
        }
        if alone {
            self.inline = Some(Inline::Work(request, Work::Read(read), ticket));
            return Ok(());
        }
        drop(ticket);
        self.submit(request, Work::Read(read))
    }

    /// Gives work to the workers, now or as soon as there is room. Work with data would keep the
    /// data in memory until then. So such work is answered with TASK SET FULL, and the initiator
    /// must send the command again.
    fn submit(&mut self, request: Request, work: Work) -> io::Result<()> {
        let conn = self.conn.clone();
        let bytes = work.bytes(&request);
        let ticket = conn.flight.try_enter(bytes);
        if ticket.is_none() && (work.has_data() || conn.has_too_many_jobs()) {
            self.answer(&request, &Outcome::status(Status::TaskSetFull));
            return Ok(());
        }
        let Some(active) = conn.session.begin(request.itt, request.lun, conn.cid, request.counted) else {
            return self.tag_in_use(&request);
        };
        match ticket {
            Some(ticket) => conn.submit(request, work, active, ticket),
            None => conn.submit_later(request, work, active),
        }
        Ok(())
    }

    /// Rejects a command whose task tag is in use. That is an error of the initiator (11.17.1,
    /// "task in progress").
    fn tag_in_use(&mut self, request: &Request) -> io::Result<()> {
        let mut bhs = Bhs::new(pdu::opcode::SCSI_COMMAND, 0);
        bhs.put_u32(16, request.itt);
        self.ended.0 += 1;
        self.ended.1 += u32::from(request.counted);
        self.reject(&bhs, RejectReason::TaskInProgress);
        Ok(())
    }

    /// Answers a command that moved no data.
    fn answer(&mut self, request: &Request, outcome: &Outcome) {
        put_outcome(&mut self.out, self.conn.shape(), request, outcome, 0);
        self.over(request, is_success(outcome.status));
    }

    pub(super) fn over(&mut self, request: &Request, ok: bool) {
        self.ended.0 += 1;
        self.ended.1 += u32::from(request.counted);
        self.tally.errors += u64::from(!ok);
    }

    /// Returns the next batch of writes of this receive, for this thread to carry out. A batch is
    /// one call of the device. There is one batch for each logical unit, and another one for its
    /// writes that must be durable before they are acknowledged. If the result is `None`, the
    /// receive buffer is free.
    pub(super) fn settle_writes(&mut self) -> io::Result<Option<Inline>> {
        if !self.writes.is_empty() {
            self.alone = self.writes.len() == 1 && self.is_alone();
            let lent = self.rx.lend();
            Batch::sort(&mut self.writes, &mut self.spare, &lent, &mut self.batches);
            self.lent = Some(lent);
        }
        while let Some(batch) = self.batches.pop() {
            let apart = batch.fua && !self.alone;
            if !apart && self.conn.stuck.load(Ordering::Acquire) < MAX_STUCK {
                return Ok(Some(Inline::Writes(batch)));
            }
            self.submit_writes(batch)?;
        }
        if let Some(lent) = self.lent.take() {
            self.rx.give_back(lent);
        }
        Ok(None)
    }

    fn submit_writes(&mut self, batch: Batch) -> io::Result<()> {
        for (write, op) in batch.writes.into_iter().zip(batch.ops) {
            // A short write must not keep a long receive buffer in memory.
            let keeps = self.lent.as_ref().is_some_and(|lent| lent.len() > RX_BASE);
            let copies = keeps && write.active.is_none() && op.data.len() < RX_BASE;
            let data = if copies { Bytes::copy_from_slice(&op.data) } else { op.data };
            let work = Work::Write(write.command, data);
            match write.active {
                Some((active, ticket)) => self.conn.submit(write.request, work, active, ticket),
                None => self.submit(write.request, work)?,
            }
        }
        Ok(())
    }

    pub(super) fn answer_writes(&mut self, mut batch: Batch) {
        let shape = self.conn.shape();
        for (write, op) in batch.writes.drain(..).zip(batch.ops.drain(..)) {
            let outcome = write.command.outcome(&op.result);
            let ok = is_success(outcome.status);
            let at = self.out.len();
            put_outcome(&mut self.out, shape, &write.request, &outcome, u64::from(write.command.len));
            let answered = match &write.active {
                None => {
                    self.over(&write.request, ok);
                    true
                }
                Some((active, _ticket)) => self.finish(active, at, ok),
            };
            if answered {
                self.answered(&write.command.path, RequestKind::Write);
            }
        }
        self.spare = batch; // its memory
    }

    /// Appends a response that was built apart to the responses in `out`.
    pub(super) fn put_aside(&mut self, mut built: ReplyBuf) {
        self.out.append(&mut built);
        self.aside = built;
    }
}

/// Carries out a request that waited for its turn. A worker calls it.
pub(super) fn run_held(conn: &Arc<Conn>, held: Held) {
    if held.bhs.opcode() != pdu::opcode::SCSI_COMMAND || conn.session.nexus.is_none() {
        let mut out = conn.outbox.spare();
        let then = super::manage::serve(conn, &held.bhs, &held.data, &mut out);
        conn.outbox.post(out, held.ticket);
        if then == super::manage::Then::Close {
            // The thread of the connection closes it when every response has been sent.
            conn.outbox.transport.stop_receiving();
        }
        return;
    }
    if held.ticket.is_none() {
        // There was no memory for the request. The connection ends for that reason.
        return conn.session.ended(1, u32::from(!held.bhs.immediate())).run();
    }
    let Ok(asked) = asked(&held.bhs, &held.ahs, held.arrived) else {
        conn.session.ended(1, u32::from(!held.bhs.immediate())).run();
        conn.post(pdu::reject(RejectReason::InvalidPduField), &held.bhs.0);
        return;
    };
    let request = asked.request;
    conn.count(&IscsiTraffic { commands: 1, bytes_written: held.data.len() as u64, ..Default::default() });
    let Some(active) = conn.session.begin(request.itt, request.lun, conn.cid, request.counted) else {
        conn.session.ended(1, u32::from(request.counted)).run();
        conn.post(pdu::reject(RejectReason::TaskInProgress), &held.bhs.0);
        return;
    };
    let work = match (unsolicited(conn, &held.bhs, &request), &conn.session.nexus) {
        (Ok(more), Some(nexus)) => match start(nexus, &held.bhs, &asked) {
            Command::Done(outcome) => Work::Done(outcome, 0),
            Command::Read(read) => Work::Read(read),
            Command::Write(write) => {
                return gather_held(conn, (request, active), Need::Write(write), &held.data, more);
            }
            Command::Other(task) => {
                return gather_held(conn, (request, active), Need::Other(Arc::new(task)), &held.data, more);
            }
        },
        (Err(outcome), _) => Work::Done(outcome, 0),
        (_, None) => Work::Done(Outcome::status(Status::Busy), 0),
    };
    submit_held(conn, request, active, work);
}

fn gather_held(
    conn: &Arc<Conn>,
    (request, active): (Request, Arc<Active>),
    need: Need,
    data: &[u8],
    more: Option<u32>,
) {
    let want = need.bytes().min(u64::from(request.expects_out));
    if more.is_none() && data.len() as u64 >= want {
        let work = need.with(Bytes::copy_from_slice(&data[..want as usize]));
        return submit_held(conn, request, active, work);
    }
    let Some(ticket) = conn.gathering.try_enter(want) else {
        return submit_held(conn, request, active, Work::Done(Outcome::status(Status::TaskSetFull), 0));
    };
    let transfer = Transfer::new((request, active, ticket), need, terms(conn), data, more);
    let taken = conn.transfers.lock().begin(transfer);
    match taken {
        Taken::Unknown | Taken::Misplaced => {}
        Taken::More(asked) => asked.into_iter().for_each(|r2t| conn.post(r2t, &[])),
        Taken::Complete(transfer) => {
            let (request, active, ticket, work) = transfer.into_work();
            conn.submit(request, work, active, ticket);
        }
    }
}

/// Gives work to the workers, or answers TASK SET FULL, as [`Serving::submit`] does.
fn submit_held(conn: &Arc<Conn>, request: Request, active: Arc<Active>, work: Work) {
    if let Some(ticket) = conn.flight.try_enter(work.bytes(&request)) {
        return conn.submit(request, work, active, ticket);
    }
    if !work.has_data() && !conn.has_too_many_jobs() {
        return conn.submit_later(request, work, active);
    }
    let mut out = conn.outbox.spare();
    put_outcome(&mut out, conn.shape(), &request, &Outcome::status(Status::TaskSetFull), 0);
    conn.session.finish(&active, || conn.outbox.post(out, None)).run();
}
