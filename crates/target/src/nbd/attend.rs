//! Work that may wait for a disk, done by the thread that received the request.
//!
//! If the work takes longer than some milliseconds, its thread stays with it, and another thread
//! receives (see [`crate::net::watch`]).

use super::codec::{Command, Request};
use super::conn::{Conn, Received};
use super::exec::Wait;
use super::serving::{Inline, Session};
use crate::net::answered::Answered;
use crate::net::budget::Ticket;
use crate::net::buffers::ReplyBuf;
use crate::net::transport::Transport;
use crate::net::watch::{Desk, Receiver};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Carries out any command but WRITE, and appends the reply. Returns false if a READ would have to
/// wait and `wait` forbids it.
pub(super) fn carry_out<T: Transport>(
    conn: &Conn<T>,
    command: Command,
    req: &Request,
    wait: Wait,
    out: &mut ReplyBuf,
) -> bool {
    let ok = match command {
        Command::Read => conn.exec.read(req, wait, out),
        _ => Some(conn.exec.control(command, req, out)),
    };
    conn.counters.errors(u64::from(ok == Some(false)));
    ok.is_some()
}

/// The duty of a thread whose connection another thread took over: to reply to the requests that it
/// is carrying out.
pub(super) struct Debt<T: Transport> {
    conn: Arc<Conn<T>>,
    settled: bool,
    /// When the requests had been received.
    arrived: Instant,
    /// Earlier requests of the same receive, if their replies are in the buffer of the work.
    earlier: Answered,
    /// The tickets of these replies.
    tickets: Vec<Ticket>,
    /// The ticket of the reply. It is returned when the reply is sent, so the connection does not
    /// end before that.
    ticket: Option<Ticket>,
}

impl<T: Transport> Debt<T> {
    /// Sends the replies to `count` requests with one command, and to those before them in `out`.
    fn answer(mut self, command: Command, count: u64, out: ReplyBuf) {
        self.earlier.tell(&*self.conn.exec.device, self.arrived.elapsed());
        self.conn.tell(Received { command, count, arrived: self.arrived });
        self.conn.outbox.post(out, self.ticket.take());
        self.tickets.clear();
        self.settled = true;
    }
}

impl<T: Transport> Drop for Debt<T> {
    fn drop(&mut self) {
        self.conn.counters.job_ended();
        self.conn.stuck.fetch_sub(1, Ordering::AcqRel);
        if !self.settled {
            self.conn.outbox.transport.abort(); // the work panicked
        }
    }
}

impl<T: Transport> Receiver for Session<T> {
    type Debt = Debt<T>;
    const THREAD: &'static str = "nbd-conn";

    fn hand_over(&mut self) -> Debt<T> {
        let conn = self.conn.clone();
        let ticket = Some(conn.flight.enter_anyway(self.owed));
        conn.counters.job_started();
        conn.stuck.fetch_add(1, Ordering::AcqRel);
        self.desk = Desk::new(conn.shared.watch.as_ref());
        // Replies of this receive that are not in `out` are in the buffer of the work.
        let (earlier, tickets) = match self.out.len() {
            0 => (std::mem::take(&mut self.answered), std::mem::take(&mut self.tickets)),
            _ => Default::default(),
        };
        let arrived = self.arrival.before_wait();
        Debt { conn, settled: false, arrived, earlier, tickets, ticket }
    }

    fn go_on(self: Box<Self>) {
        let record = self.conn.record.clone();
        let _entered = record.as_ref().map(|record| record.span().entered());
        if let (Some(result), Some(record)) = (self.run(), record) {
            record.report(&result);
        }
    }
}

/// Carries out work that may wait. Returns `None` if another thread took over the session: the work
/// is then done and the replies are queued. The closure owns the work. So a panic drops the tickets
/// of the work before the session, which waits for all tickets when it is dropped.
pub(super) fn attend<T: Transport>(mut session: Box<Session<T>>, inline: Inline) -> Option<Box<Session<T>>> {
    session.arrival.before_wait();
    let (conn, desk) = (session.conn.clone(), session.desk.clone());
    // A READ builds its reply at the end of `out`, because a copy of a long reply is expensive. If
    // the READ may wait, earlier replies in `out` must not wait with it.
    let in_place = match &inline {
        Inline::Other(Command::Read, _, wait, _) => *wait == Wait::No || session.out.len() == 0,
        _ => false,
    };
    let built = if in_place { &mut session.out } else { &mut session.aside };
    let mut out = std::mem::take(built);
    match inline {
        Inline::Writes(mut batch) => {
            let count = batch.ops.len() as u64;
            session.owed = session.lent.as_ref().map_or(0, |lent| lent.len() as u64);
            let ((batch, out), back) = desk.attend(session, move || {
                batch.write(&conn, &mut out);
                (batch, out)
            });
            match back {
                Ok(mut session) => {
                    session.put_aside(out);
                    session.answered(Command::Write, count);
                    session.spare = batch;
                    return Some(session);
                }
                Err(debt) => debt.answer(Command::Write, count, out),
            }
        }
        Inline::Other(command, req, wait, ticket) => {
            let reads = command == Command::Read && ticket.is_none();
            session.owed = if reads { u64::from(req.length) } else { 0 };
            let ((done, mut out, ticket), back) = desk.attend(session, move || {
                let done = carry_out(&conn, command, &req, wait, &mut out);
                (done, out, ticket)
            });
            match back {
                Ok(mut session) => {
                    match in_place {
                        true => session.out = out,
                        false => session.put_aside(out),
                    }
                    if done {
                        session.answered(command, 1);
                        session.tickets.extend(ticket);
                    } else {
                        drop(ticket);
                        session.broken = session.submit(command, &req).err();
                    }
                    return Some(session);
                }
                Err(debt) => {
                    if !done {
                        carry_out(&debt.conn, command, &req, Wait::Yes, &mut out);
                    }
                    debt.answer(command, 1, out);
                }
            }
        }
    }
    None
}
