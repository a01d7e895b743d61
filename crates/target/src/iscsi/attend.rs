//! Work that may wait for a disk, done by the thread that received the request.
//!
//! Most of this work ends at once, and a worker would cost two wake-ups. If the work takes longer
//! than some milliseconds, its thread stays with it and another thread receives (see
//! [`crate::net::watch`]). So a slow disk does not delay the answers to an initiator's pings,
//! aborts, logout, and commands to other logical units.

use super::active::Active;
use super::conn::Conn;
use super::inline::{Batch, Inline};
use super::manage;
use super::reply::{Request, put_outcome};
use super::serving::Serving;
use super::stats::IscsiTraffic;
use super::work::{Counted, is_success};
use crate::net::budget::Ticket;
use crate::net::buffers::ReplyBuf;
use crate::net::watch::{Desk, Receiver};
use bytes::Bytes;
use hindcast_engine::device::RequestKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The responses that a thread still has to send after it has handed its connection over.
pub(super) struct Debt {
    conn: Arc<Conn>,
    /// Requests in order. A request without a task had a tag that was in use.
    requests: Vec<(Request, Option<Arc<Active>>)>,
    settled: bool,
    /// Ticket that is released with the last response. So the connection does not end before that
    /// response is sent.
    ticket: Option<Ticket>,
}

impl Debt {
    fn answer_writes(mut self, batch: Batch) {
        let requests = std::mem::take(&mut self.requests);
        let count = requests.len();
        for (n, ((request, active), (write, op))) in
            requests.into_iter().zip(batch.writes.into_iter().zip(batch.ops)).enumerate()
        {
            let outcome = write.command.outcome(&op.result);
            let mut out = self.conn.outbox.spare();
            put_outcome(&mut out, self.conn.shape(), &request, &outcome, u64::from(write.command.len));
            let ticket = if n + 1 == count { self.ticket.take() } else { None };
            let counted = Counted { path: write.command.path.clone(), kind: RequestKind::Write };
            self.answer(&request, Some(counted), active, (out, ticket), is_success(outcome.status));
        }
        self.settled = true;
    }

    fn answer_work(mut self, counted: Option<Counted>, out: ReplyBuf, ok: bool) {
        if let Some((request, active)) = self.requests.pop() {
            let ticket = self.ticket.take();
            self.answer(&request, counted, active, (out, ticket), ok);
        }
        self.settled = true;
    }

    fn answer_text(mut self, out: ReplyBuf) {
        self.conn.outbox.post(out, self.ticket.take());
        self.settled = true;
    }

    fn answer(
        &self,
        request: &Request,
        counted: Option<Counted>,
        active: Option<Arc<Active>>,
        (out, ticket): (ReplyBuf, Option<Ticket>),
        ok: bool,
    ) {
        let conn = &self.conn;
        conn.count(&IscsiTraffic { errors: u64::from(!ok), ..IscsiTraffic::default() });
        let answer = || {
            if let Some(counted) = &counted {
                counted.tell(request);
            }
            conn.outbox.post(out, ticket);
        };
        match active {
            Some(active) => conn.session.finish(&active, answer).run(),
            None => {
                let ready = conn.session.ended(1, u32::from(request.counted));
                answer();
                ready.run();
            }
        }
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.conn.stuck.fetch_sub(1, Ordering::AcqRel);
        if !self.settled {
            // The work panicked. The initiator must not wait for the response for ever.
            for (request, active) in self.requests.drain(..) {
                match active {
                    Some(active) => self.conn.session.finish(&active, || ()).run(),
                    None => self.conn.session.ended(1, u32::from(request.counted)).run(),
                }
            }
            self.conn.abort();
        }
    }
}

impl Receiver for Serving {
    type Debt = Debt;
    const THREAD: &'static str = "iscsi-conn";

    /// Registers the work in progress as tasks, like the tasks of workers. Then the initiator can
    /// abort it, and the end of the connection waits for it.
    fn hand_over(&mut self) -> Debt {
        let conn = self.conn.clone();
        let owed = std::mem::take(&mut self.owed);
        let begin = |(request, known): (Request, Option<Arc<Active>>)| {
            let active = known.or_else(|| {
                let active = conn.session.begin(request.itt, request.lun, conn.cid, request.counted)?;
                active.run(owed.task.clone(), owed.changes);
                Some(active)
            });
            (request, active)
        };
        let requests = owed.requests.into_iter().map(begin).collect();
        let ticket = Some(conn.flight.enter_anyway(owed.bytes));
        conn.stuck.fetch_add(1, Ordering::AcqRel);
        self.desk = Desk::new(conn.shared.watch.as_ref());
        Debt { conn, requests, settled: false, ticket }
    }

    fn go_on(self: Box<Self>) {
        let record = self.conn.record.clone();
        let _entered = record.span().entered();
        if let Some(result) = self.run() {
            record.report(&result);
        }
    }
}

/// Does work that may wait for a disk. Returns `None` if another thread has taken over the
/// connection meanwhile. In that case this thread has finished the work. The closure that does the
/// work owns its tickets. In a panic they are released before the connection, which waits for its
/// tickets.
pub(super) fn attend(mut serving: Box<Serving>, mut inline: Inline) -> Option<Box<Serving>> {
    if let Inline::Writes(batch) = &mut inline {
        batch.begin();
    }
    serving.owed.note(&inline, serving.lent.as_ref().map_or(0, Bytes::len));
    let (conn, desk) = (serving.conn.clone(), serving.desk.clone());
    match inline {
        Inline::Writes(mut batch) => {
            let (batch, back) = desk.attend(serving, move || {
                batch.carry_out();
                batch
            });
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
            let (shape, counted) = (conn.shape(), work.counted());
            let ((ok, out, ticket), back) = desk.attend(serving, move || {
                let ok = work.perform(&request, shape, &mut out);
                (ok, out, ticket)
            });
            match back {
                Ok(mut serving) => {
                    serving.put_aside(out);
                    serving.tickets.extend(ticket);
                    if let Some(Counted { path, kind }) = &counted {
                        serving.answered(path, *kind);
                    }
                    serving.over(&request, ok);
                    return Some(serving);
                }
                Err(debt) => debt.answer_work(counted, out, ok),
            }
        }
        Inline::Tasks(bhs, managing) => {
            let ((), back) = desk.attend(serving, move || manage::task_management(&conn, &bhs, managing));
            match back {
                Ok(serving) => return Some(serving),
                Err(mut debt) => debt.settled = true,
            }
        }
        Inline::Text(bhs, data) => {
            let mut out = std::mem::take(&mut serving.aside);
            let (out, back) = desk.attend(serving, move || {
                manage::serve(&conn, &bhs, &data, &mut out);
                out
            });
            match back {
                Ok(mut serving) => {
                    serving.put_aside(out);
                    return Some(serving);
                }
                Err(debt) => debt.answer_text(out),
            }
        }
    }
    None
}
