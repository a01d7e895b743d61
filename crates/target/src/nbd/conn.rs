//! A connection in the transmission phase ([`Conn`]): the state that its thread and the workers
//! share. The main parts are the outbox and the requests in flight.

use super::codec::Command;
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
use std::time::Instant;

/// The parts of a server that its connections share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) pool: Arc<WorkerPool>,
    /// Workers for commands that change the export, and for FLUSH and CACHE. The engine lets many
    /// of these wait for one another. Reads have their own pool so that they do not wait with them.
    pub(super) change_pool: Arc<WorkerPool>,
    /// Makes another thread receive while a connection's thread waits for a disk. Without a watch,
    /// as in tests, a connection receives nothing while its thread waits.
    pub(super) watch: Option<Arc<Watch>>,
    /// Limits the memory of WRITEs that are being received.
    pub(super) rx_budget: Arc<RxBudget>,
    /// Limits the memory of long replies, and of requests that are carried out away from their
    /// connection's thread. It is separate from `rx_budget` because a connection that waits here
    /// may hold a received WRITE. With one budget, two such connections could wait for each other.
    pub(super) reply_budget: Arc<Budget>,
    /// True once the server shuts down. Connections then accept no new requests.
    pub(super) stopping: Arc<AtomicBool>,
}

/// Requests with one command that one receive brought.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) command: Command,
    pub(super) count: u64,
    /// When all of the requests had been received.
    pub(super) arrived: Instant,
}

/// A connection in the transmission phase. Its thread and the workers own it together.
pub(super) struct Conn<T> {
    pub(super) outbox: Arc<Outbox<T>>,
    pub(super) exec: Executor,
    pub(super) rules: Rules,
    pub(super) shared: Shared,
    pub(super) flight: Arc<Flight>,
    /// Maximum number of requests in flight: carried out or waiting for memory, away from the
    /// connection's thread.
    pub(super) max_jobs: usize,
    /// Number of threads that wait for a disk after another thread took over the connection.
    pub(super) stuck: AtomicUsize,
    pub(super) counters: Arc<Counters>,
    /// The entry in the registry. It is the last field: the device is dropped before the registry
    /// counts the connection as ended.
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

    /// Submits `work` to a pool: to `change_pool` if `changes` is true. The worker sends the reply
    /// when the work is done, so replies may be out of order.
    pub(super) fn submit(
        self: &Arc<Self>,
        changes: bool,
        (requests, ticket): (Received, Ticket),
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
                conn.tell(requests);
                conn.outbox.post(out, Some(ticket));
                unanswered.answered = true;
            }),
        );
    }

    /// Tells the device how long requests took. The caller sends their replies next.
    pub(super) fn tell(&self, requests: Received) {
        if let Some(kind) = requests.command.request_kind() {
            self.exec.device.answered(kind, requests.arrived.elapsed(), requests.count);
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Waits until all requests in flight are answered and all replies are sent. Then closes the
    /// stream.
    pub(super) fn finish(&self) {
        self.flight.wait_idle();
        self.outbox.wait_sent();
        self.outbox.transport.close();
    }
}

/// Aborts the connection if the work for a request panics. Otherwise the client would wait for the
/// reply forever.
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
