//! Work that may wait for a disk, done by the thread that received it.
//!
//! Most of it is done at once, and a worker would cost two wake-ups. What takes longer than some milliseconds is left to
//! the thread that is at it, and another one receives (see [`crate::net::watch`]): an initiator's pings, aborts, logout
//! and commands to other logical units are answered whatever a disk does.

use super::command::{Payload, Write};
use super::conn::Conn;
use super::manage;
use super::pdu::Bhs;
use super::reply::{Request, put_outcome};
use super::serve::Serving;
use super::session::{Active, Managing};
use super::stats::IscsiTraffic;
use super::work::{Work, is_success};
use crate::net::budget::Ticket;
use crate::net::buffers::ReplyBuf;
use crate::net::watch::{Desk, Receiver};
use crate::scsi::{self, WriteCommand};
use bytes::Bytes;
use hindcast_engine::device::WriteOp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a connection's thread does next, and what may wait.
pub(super) enum Inline {
    Writes(Batch),
    /// A command that is all that the initiator waits for; with room for its response, if that is long.
    Work(Request, Work, Option<Ticket>),
    /// Task management.
    Tasks(Bhs, Managing),
    /// A text request.
    Text(Bhs, Bytes),
}

/// Writes to one logical unit: one call of the device. The operations are in the order of the writes.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) fua: bool,
    pub(super) writes: Vec<Write>,
    pub(super) ops: Vec<WriteOp>,
}

impl Batch {
    /// Sorts writes by logical unit and durability. `lent` is the receive buffer that they point into.
    pub(super) fn sort(writes: &mut Vec<Write>, spare: &mut Batch, lent: &Bytes) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        for mut write in writes.drain(..) {
            let data = match std::mem::replace(&mut write.data, Payload::Taken) {
                Payload::Received(range) => lent.slice(range),
                Payload::Gathered(data) => data,
                Payload::Taken => continue,
            };
            let op = WriteOp::new(write.command.offset, data);
            let same = |batch: &&mut Batch| {
                let first = batch.writes.first();
                first.is_some_and(|w| Arc::ptr_eq(w.command.lu(), write.command.lu()))
                    && batch.fua == write.command.fua
            };
            let batch = match batches.iter_mut().find(same) {
                Some(batch) => batch,
                None => {
                    let mut batch = std::mem::take(spare);
                    batch.fua = write.command.fua;
                    batches.push(batch);
                    let Some(last) = batches.last_mut() else { continue };
                    last
                }
            };
            batch.writes.push(write);
            batch.ops.push(op);
        }
        batches
    }

    /// From here on an abort has to wait for these; those that were aborted before are left out.
    fn begin(&mut self) {
        if self.writes.iter().all(|w| w.active.is_none()) {
            return;
        }
        let mut ops = std::mem::take(&mut self.ops).into_iter();
        self.writes.retain(|w| {
            let op = ops.next();
            let begins = w.active.as_ref().is_none_or(|(active, _)| active.run(None, true));
            self.ops.extend(op.filter(|_| begins));
            begins
        });
    }

    fn carry_out(&mut self) {
        let Batch { fua, writes, ops } = self;
        if let Some(first) = writes.first() {
            let lu = first.command.lu().clone();
            WriteCommand::write_all(&lu, ops, *fua, |n| &writes[n].command);
        }
    }
}

/// What is under way on the connection's thread, as far as nobody else knows of it.
#[derive(Default)]
pub(super) struct Owed {
    requests: Vec<Request>,
    task: Option<Arc<scsi::Task>>,
    bytes: u64,
    changes: bool,
}

impl Owed {
    fn note(&mut self, inline: &Inline) {
        self.requests.clear();
        self.task = None;
        match inline {
            Inline::Writes(batch) => {
                self.requests.extend(batch.writes.iter().filter(|w| w.active.is_none()).map(|w| w.request));
                self.bytes = batch.ops.iter().map(|op| op.data.len() as u64).sum();
                self.changes = true;
            }
            Inline::Work(request, work, ticket) => {
                self.requests.push(*request);
                self.task = work.scsi_task();
                self.bytes = if ticket.is_some() { 0 } else { work.bytes(request) };
                self.changes = work.changes();
            }
            Inline::Tasks(..) | Inline::Text(..) => (self.bytes, self.changes) = (0, false),
        }
    }
}

/// What a thread owes that has handed its connection over: answers to what it is doing.
pub(super) struct Debt {
    conn: Arc<Conn>,
    /// For each request that was under way and that nobody knew of; none where its tag was in use.
    actives: std::vec::IntoIter<Option<Arc<Active>>>,
    settled: bool,
    /// Last, so that the connection is not over before everything is answered.
    _ticket: Ticket,
}

impl Debt {
    fn answer_writes(mut self, batch: Batch) {
        let Batch { writes, ops, .. } = batch;
        for (write, op) in writes.into_iter().zip(ops) {
            let outcome = write.command.outcome(&op.result);
            let mut out = self.conn.outbox.spare();
            let moved = u64::from(write.command.len);
            put_outcome(&mut out, self.conn.shape(), &write.request, &outcome, moved);
            let active = match &write.active {
                Some((active, _)) => Some(active.clone()),
                None => self.actives.next().flatten(),
            };
            self.answer(&write.request, active.as_ref(), out, is_success(outcome.status));
        }
        self.settled = true;
    }

    fn answer_work(mut self, request: &Request, out: ReplyBuf, ok: bool) {
        let active = self.actives.next().flatten();
        self.answer(request, active.as_ref(), out, ok);
        self.settled = true;
    }

    fn answer(&self, request: &Request, active: Option<&Arc<Active>>, out: ReplyBuf, ok: bool) {
        let conn = &self.conn;
        conn.count(&IscsiTraffic { errors: u64::from(!ok), ..IscsiTraffic::default() });
        match active {
            Some(active) => conn.session.finish(active, || conn.outbox.post(out, None)).run(),
            None => {
                let ready = conn.session.ended(1, u32::from(request.counted));
                conn.outbox.post(out, None);
                ready.run();
            }
        }
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.conn.stuck.fetch_sub(1, Ordering::AcqRel);
        if !self.settled {
            // The work panicked. Its initiator must not wait for ever.
            for active in self.actives.by_ref().flatten() {
                self.conn.session.finish(&active, || ()).run();
            }
            self.conn.abort();
        }
    }
}

impl Receiver for Serving {
    type Debt = Debt;
    const THREAD: &'static str = "iscsi-conn";

    /// What is under way becomes a task like those that workers do: it can be aborted, and is waited for.
    fn hand_over(&mut self) -> Debt {
        let conn = self.conn.clone();
        let owed = std::mem::take(&mut self.owed);
        let begin = |request: &Request| {
            let active = conn.session.begin(request.itt, request.lun, conn.cid, request.counted)?;
            active.run(owed.task.clone(), owed.changes);
            Some(active)
        };
        let actives: Vec<_> = owed.requests.iter().map(begin).collect();
        let ticket = conn.flight.enter_anyway(owed.bytes);
        conn.stuck.fetch_add(1, Ordering::AcqRel);
        self.desk = Desk::new(conn.shared.watch.as_ref());
        Debt { conn, actives: actives.into_iter(), settled: false, _ticket: ticket }
    }

    fn go_on(self: Box<Self>) {
        let record = self.conn.record.clone();
        let _entered = record.span().entered();
        if let Some(result) = self.run() {
            record.report(&result);
        }
    }
}

/// Does what may wait. `None` if another thread has the connection now; all that was to be done here is done.
pub(super) fn attend(mut serving: Box<Serving>, mut inline: Inline) -> Option<Box<Serving>> {
    if let Inline::Writes(batch) = &mut inline {
        batch.begin();
    }
    serving.owed.note(&inline);
    let (conn, desk) = (serving.conn.clone(), serving.desk.clone());
    match inline {
        Inline::Writes(mut batch) => {
            let ((), back) = desk.attend(serving, || batch.carry_out());
            match back {
                Ok(mut serving) => {
                    serving.answer_writes(batch);
                    return Some(serving);
                }
                Err(debt) => debt.answer_writes(batch),
            }
        }
        Inline::Work(request, work, ticket) => {
            let mut out = std::mem::take(&mut serving.aside);
            let (ok, back) = desk.attend(serving, || work.perform(&request, conn.shape(), &mut out));
            match back {
                Ok(mut serving) => {
                    serving.put_aside(out);
                    serving.tickets.extend(ticket);
                    serving.over(&request, ok);
                    return Some(serving);
                }
                Err(debt) => debt.answer_work(&request, out, ok),
            }
        }
        Inline::Tasks(bhs, managing) => {
            let ((), back) = desk.attend(serving, || manage::task_management(&conn, &bhs, managing));
            match back {
                Ok(serving) => return Some(serving),
                Err(mut debt) => debt.settled = true,
            }
        }
        Inline::Text(bhs, data) => {
            let mut out = std::mem::take(&mut serving.aside);
            let (_, back) = desk.attend(serving, || manage::serve(&conn, &bhs, &data, &mut out));
            match back {
                Ok(mut serving) => {
                    serving.put_aside(out);
                    return Some(serving);
                }
                Err(mut debt) => {
                    conn.outbox.post(out, None);
                    debt.settled = true;
                }
            }
        }
    }
    None
}
