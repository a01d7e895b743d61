//! A connection in the transmission phase: the state that its thread and the workers share. This is
//! the outbox and the requests in flight.

use super::exec::{Executor, Rules};
use super::registry::Record;
use super::stats::Counters;
use crate::net::budget::{Budget, Flight, Ticket};
use crate::net::buffers::{ReplyBuf, RxBudget};
use crate::net::outbox::Outbox;
use crate::net::pool::WorkerPool;
use crate::net::transport::Transport;
use crate::net::watch::Watch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a session needs of its server.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) pool: Arc<WorkerPool>,
    /// For commands that change something and for flushes, which wait for one another in the engine
    /// anyway: reads must not wait with them.
    pub(super) change_pool: Arc<WorkerPool>,
    /// Has others receive while a connection's thread waits; without it, in tests, such a thread
    /// waits.
    pub(super) watch: Option<Arc<Watch>>,
    /// Bounds writes that are being received.
    pub(super) rx_budget: Arc<RxBudget>,
    /// Bounds replies that are being built away from the connections' threads. Apart from the other
    /// so that a connection which waits here while it holds a received write can't be waited for.
    pub(super) reply_budget: Arc<Budget>,
    /// Set once: no new requests, please.
    pub(super) stopping: Arc<AtomicBool>,
}

/// A connection in its transmission phase.
pub(super) struct Conn<T> {
    pub(super) outbox: Arc<Outbox<T>>,
    pub(super) exec: Executor,
    pub(super) rules: Rules,
    pub(super) shared: Shared,
    pub(super) flight: Arc<Flight>,
    /// Requests that may be worked on away from the connection's thread.
    pub(super) max_jobs: usize,
    /// Threads that were left waiting for a disk.
    pub(super) stuck: AtomicUsize,
    pub(super) counters: Arc<Counters>,
    /// Last, so that the device is let go of before the connection counts as gone.
    pub(super) record: Option<Arc<Record>>,
}

impl<T: Transport> Conn<T> {
    pub(super) fn new(
        transport: T,
        exec: Executor,
        rules: Rules,
        shared: Shared,
        (flight, max_jobs): (Arc<Flight>, usize),
        record: Option<Arc<Record>>,
    ) -> Arc<Conn<T>> {
        let counters = record.as_ref().map(|r| r.counters.clone()).unwrap_or_default();
        let outbox = Outbox::new(transport, ());
        let stuck = AtomicUsize::new(0);
        Arc::new(Conn { outbox, exec, rules, shared, flight, max_jobs, stuck, counters, record })
    }

    /// Hands work to the pool; its reply is sent when it is done, in whatever order.
    pub(super) fn submit(
        self: &Arc<Self>,
        changes: bool,
        ticket: Ticket,
        work: impl FnOnce(&Conn<T>, &mut ReplyBuf) + Send + 'static,
    ) {
        let conn = self.clone();
        conn.counters.job_started();
        let client = self.record.as_ref().map_or(0, |r| r.id);
        let pool = if changes { &self.shared.change_pool } else { &self.shared.pool };
        pool.submit(
            client,
            Box::new(move || {
                let mut unanswered = Unanswered { conn: &conn, answered: false };
                let mut out = conn.outbox.spare();
                work(&conn, &mut out);
                conn.outbox.post(out, Some(ticket));
                unanswered.answered = true;
            }),
        );
    }

    pub(super) fn stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Answers what is in flight, then ends the stream.
    pub(super) fn finish(&self) {
        self.flight.wait_idle();
        self.outbox.wait_sent();
        self.outbox.transport.close();
    }
}

/// Sees to it that a request whose work panicked does not leave its client waiting for ever.
struct Unanswered<'a, T: Transport> {
    conn: &'a Conn<T>,
    answered: bool,
}

impl<T: Transport> Drop for Unanswered<'_, T> {
    fn drop(&mut self) {
        self.conn.counters.job_ended();
        if !self.answered {
            self.conn.outbox.transport.abort();
        }
    }
}
