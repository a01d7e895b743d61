//! A connection in the full feature phase: the state that its thread and the workers share. This is
//! the outbox, the tasks in flight, and write data that is being gathered.

use super::active::{Active, OnEnd};
use super::config::{IscsiConfig, Portal};
use super::exchange::Exchange;
use super::params::Params;
use super::pdu::{Bhs, Digests, Numbers, stamp};
use super::record::Record;
use super::refusals::Refusals;
use super::reply::{self, Request, Shape};
use super::session::{Held, Member, Session};
use super::stats::IscsiTraffic;
use super::targets::Targets;
use super::transfer::Transfers;
use super::work::Work;
use crate::net::attempts::Attempts;
use crate::net::budget::{Budget, Flight, Ticket};
use crate::net::buffers::RxBudget;
use crate::net::outbox::{Outbox, Stamp};
use crate::net::pool::WorkerPool;
use crate::net::transport::Transport;
use crate::net::watch::Watch;
use crate::scsi::lun_from_wire;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// A connection that ends looks this often whether a worker left something to let go of.
const TEARDOWN_LOOK: Duration = Duration::from_millis(20);

/// What a connection needs of its server.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) config: Arc<IscsiConfig>,
    /// As they are bound.
    pub(super) portals: Arc<Vec<Portal>>,
    pub(super) targets: Arc<dyn Targets>,
    pub(super) pool: Arc<WorkerPool>,
    /// For commands that change something and for flushes, which wait for one another in the engine
    /// anyway: reads must not wait with them.
    pub(super) change_pool: Arc<WorkerPool>,
    /// For commands that may take minutes: they keep each other waiting, and no other commands.
    pub(super) slow_pool: Arc<WorkerPool>,
    /// Bounds PDUs that are being received. Three budgets, so that a connection that waits for one
    /// of them holds nothing that another could wait for.
    pub(super) rx_budget: Arc<RxBudget>,
    /// Bounds data that is being gathered.
    pub(super) gather_budget: Arc<Budget>,
    /// Bounds answers that are being built away from the connections' threads.
    pub(super) reply_budget: Arc<Budget>,
    /// Has others receive while a connection's thread waits; without it, in tests, such a thread
    /// waits.
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) refusals: Arc<Mutex<Refusals>>,
    /// Bounds how often CHAP secrets may be guessed.
    pub(super) attempts: Arc<Attempts>,
    pub(super) stopping: Arc<AtomicBool>,
    /// Carries out a request that had to wait for its turn.
    pub(super) run_held: fn(&Arc<Conn>, Held),
}

/// Numbers the responses of a connection.
pub(super) struct Numbering {
    session: Arc<Session>,
    stat_sn: u32,
    digests: Digests,
}

impl Stamp for Numbering {
    fn stamp(&mut self, bytes: &mut [u8]) {
        let (exp_cmd_sn, max_cmd_sn) = self.session.numbers();
        let mut numbers = Numbers { stat_sn: self.stat_sn, exp_cmd_sn, max_cmd_sn };
        stamp(bytes, &mut numbers, self.digests);
        self.stat_sn = numbers.stat_sn;
    }
}

/// A connection in the full feature phase.
pub(super) struct Conn {
    pub(super) cid: u16,
    pub(super) session: Arc<Session>,
    pub(super) params: Params,
    /// MaxRecvDataSegmentLength of the initiator, which it may change at any time.
    segment: AtomicU32,
    pub(super) shared: Shared,
    pub(super) outbox: Arc<Outbox<Arc<dyn Transport>, Numbering>>,
    pub(super) flight: Arc<Flight>,
    pub(super) gathering: Arc<Flight>,
    pub(super) transfers: Mutex<Transfers>,
    /// Threads that were left waiting for a disk.
    pub(super) stuck: AtomicUsize,
    /// It was logged out, by itself, by another connection, or by one that takes its place.
    logged_out: AtomicBool,
    /// The text exchange under way.
    pub(super) text: Mutex<Exchange>,
    /// Last, so that the device is let go of before the connection counts as gone.
    pub(super) record: Arc<Record>,
}

impl Conn {
    pub(super) fn new(
        cid: u16,
        session: Arc<Session>,
        params: Params,
        stat_sn: u32,
        shared: Shared,
        record: Arc<Record>,
    ) -> Arc<Conn> {
        let numbering = Numbering { session: session.clone(), stat_sn, digests: params.digests };
        let config = &shared.config;
        let (jobs, bytes) = (config.max_jobs_per_connection, config.max_in_flight_per_connection);
        // An initiator that asks to write and does not must not have more than a part of what there
        // is for all.
        let gathered = bytes.min(config.max_in_flight / 16);
        let source = Some(record.source());
        Arc::new(Conn {
            cid,
            session,
            segment: AtomicU32::new(params.max_send_data_segment),
            outbox: Outbox::new(record.transport.clone(), numbering),
            flight: Flight::new(shared.reply_budget.clone(), source, jobs, bytes),
            gathering: Flight::new(shared.gather_budget.clone(), source, usize::MAX, gathered),
            transfers: Mutex::default(),
            stuck: AtomicUsize::new(0),
            logged_out: AtomicBool::new(false),
            text: Mutex::default(),
            params,
            shared,
            record,
        })
    }

    /// What bounds Data-In PDUs now.
    pub(super) fn shape(&self) -> Shape {
        let segment = self.segment.load(Ordering::Relaxed);
        Shape { digests: self.params.digests, segment, burst: self.session.params.max_burst }
    }

    /// The initiator takes PDUs of another length from now on.
    pub(super) fn set_segment(&self, length: u32) {
        self.segment.store(length, Ordering::Relaxed);
    }

    /// Sends a PDU from any thread, without waiting.
    pub(super) fn post(&self, bhs: Bhs, data: &[u8]) {
        let mut out = self.outbox.spare();
        reply::put(&mut out, bhs, data, self.params.digests);
        self.outbox.post(out, None);
    }

    /// Hands a task to the workers; it is answered when it is done, in whatever order.
    pub(super) fn submit(
        self: &Arc<Self>,
        request: Request,
        work: Work,
        active: Arc<Active>,
        ticket: Ticket,
    ) {
        let conn = self.clone();
        let pool = match &work {
            work if work.may_take_long() => &self.shared.slow_pool,
            work if work.waits_with_writes() => &self.shared.change_pool,
            _ => &self.shared.pool,
        };
        // One logical unit's slow disk must not use up its session's share of the threads.
        let lun = lun_from_wire(active.lun).unwrap_or(0);
        let client = u64::from(self.session.tsih) << 16 | u64::from(lun);
        pool.submit(
            client,
            Box::new(move || {
                let mut unanswered = Unanswered { conn: &conn, active: &active, answered: false };
                let mut out = conn.outbox.spare();
                let begins = active.run(work.scsi_task(), work.changes());
                let ok = begins && work.perform(&request, conn.shape(), &mut out);
                conn.count(&IscsiTraffic { errors: u64::from(!ok), ..IscsiTraffic::default() });
                conn.session.finish(&active, || conn.outbox.post(out, Some(ticket))).run();
                unanswered.answered = true;
            }),
        );
    }

    /// Hands a task to the workers as soon as there is room for its response. Does not wait.
    pub(super) fn submit_later(self: &Arc<Self>, request: Request, work: Work, active: Arc<Active>) {
        let bytes = work.bytes(&request);
        let mut queued = Queued { conn: self.clone(), work: Some((request, work, active)) };
        self.flight.enter_later(bytes, move |ticket| {
            if let Some((request, work, active)) = queued.work.take() {
                queued.conn.submit(request, work, active, ticket);
            }
        });
    }

    /// Whether so many jobs wait that the next one is to come again. Aborts free places in the
    /// window, and not what the aborted jobs wait for.
    pub(super) fn has_too_many_jobs(&self) -> bool {
        self.flight.jobs() >= 2 * self.shared.config.max_jobs_per_connection
    }

    pub(super) fn count(&self, traffic: &IscsiTraffic) {
        self.record.counters.add(traffic);
    }

    /// Breaks the connection off.
    pub(super) fn abort(&self) {
        Member::abort(self);
    }

    /// The connection is logged out: its end is no failure.
    pub(super) fn log_out(&self) {
        self.logged_out.store(true, Ordering::Release);
    }

    /// The connection's end: waits for what workers still do, and leaves the session.
    pub(super) fn finish(self: &Arc<Self>) {
        self.session.forget_requests_of(self);
        self.flight.forget_waiting();
        // A worker may be about to begin another transfer. The session that takes this one's place
        // must find nothing of it still to be written. So the connection is not over before the
        // last data that is being gathered is dropped.
        loop {
            let lost = std::mem::take(&mut *self.transfers.lock());
            let tags = lost.tags();
            self.session.abort_tasks(|itt, _| tags.contains(&itt), &OnEnd::new(|| ()));
            drop(lost);
            if self.gathering.wait_idle_for(TEARDOWN_LOOK) {
                break;
            }
        }
        self.flight.wait_idle();
        self.outbox.wait_sent();
        self.outbox.transport.close();
        self.session.leave(self);
    }
}

impl Member for Conn {
    fn cid(&self) -> u16 {
        self.cid
    }

    fn record(&self) -> &Arc<Record> {
        &self.record
    }

    fn digests(&self) -> Digests {
        self.params.digests
    }

    fn post(&self, bhs: Bhs, data: &[u8]) {
        Conn::post(self, bhs, data);
    }

    fn run_held(self: Arc<Self>, held: Held) {
        let pool = self.shared.pool.clone();
        let client = u64::from(self.session.tsih) << 16;
        pool.submit(client, Box::new(move || (self.shared.run_held)(&self, held)));
    }

    fn forget_transfer(&self, itt: u32) {
        let forgotten = self.transfers.lock().remove(itt);
        drop(forgotten);
    }

    fn log_out(&self) {
        Conn::log_out(self);
    }

    fn is_logged_out(&self) -> bool {
        self.logged_out.load(Ordering::Acquire)
    }
}

/// A job that waits for room. When the connection ends before there is any its task ends too.
struct Queued {
    conn: Arc<Conn>,
    work: Option<(Request, Work, Arc<Active>)>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some((_, _, active)) = self.work.take() {
            self.conn.session.finish(&active, || ()).run();
        }
    }
}

/// Sees to it that a task whose worker panicked does not leave its initiator waiting for ever.
struct Unanswered<'a> {
    conn: &'a Arc<Conn>,
    active: &'a Arc<Active>,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.conn.session.finish(self.active, || ()).run();
            self.conn.abort();
        }
    }
}
