//! A connection in the full feature phase: the state that its thread and the workers share. This is
//! the outbox, the tasks in progress, and the write data that the connection gathers.

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

/// Interval at which a connection that ends checks for transfers that a worker has begun meanwhile.
const TEARDOWN_LOOK: Duration = Duration::from_millis(20);

/// The parts of the server that its connections use.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) config: Arc<IscsiConfig>,
    /// Portals with the ports that the system chose.
    pub(super) portals: Arc<Vec<Portal>>,
    pub(super) targets: Arc<dyn Targets>,
    pub(super) pool: Arc<WorkerPool>,
    /// Workers for flushes and for commands that change something. These commands wait for one
    /// another in the engine anyway. Reads have other workers, so they do not wait for them.
    pub(super) change_pool: Arc<WorkerPool>,
    /// Workers for commands that may take minutes. Such a command delays other such commands only.
    pub(super) slow_pool: Arc<WorkerPool>,
    /// Budget for PDUs that a connection receives. There are three budgets, so a connection that
    /// waits for one of them holds no memory that another connection could wait for.
    pub(super) rx_budget: Arc<RxBudget>,
    /// Budget for data that a connection gathers for commands.
    pub(super) gather_budget: Arc<Budget>,
    /// Budget for responses that workers build.
    pub(super) reply_budget: Arc<Budget>,
    /// Starts another thread that receives when the thread of a connection waits for a disk. Tests
    /// may have none: in that case nothing is received until the wait is over.
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) refusals: Arc<Mutex<Refusals>>,
    /// Limits how often a client may try CHAP secrets.
    pub(super) attempts: Arc<Attempts>,
    pub(super) stopping: Arc<AtomicBool>,
    /// Carries out a request that waited for its turn.
    pub(super) run_held: fn(&Arc<Conn>, Held),
}

/// Fills in the sequence numbers of the responses of a connection.
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
    /// MaxRecvDataSegmentLength of the initiator. The initiator may change it at any time.
    segment: AtomicU32,
    pub(super) shared: Shared,
    pub(super) outbox: Arc<Outbox<Arc<dyn Transport>, Numbering>>,
    pub(super) flight: Arc<Flight>,
    pub(super) gathering: Arc<Flight>,
    pub(super) transfers: Mutex<Transfers>,
    /// Number of threads that still wait for a disk after another thread has taken over the
    /// connection.
    pub(super) stuck: AtomicUsize,
    /// Whether the connection is logged out: by a request on this connection, by a request on
    /// another connection, or because a new connection replaced it.
    logged_out: AtomicBool,
    /// The text exchange in progress.
    pub(super) text: Mutex<Exchange>,
    /// The last field, so that the device is released before the connection counts as ended.
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
        // An initiator that announces writes and sends no data must not use more than a part of the
        // memory for all connections.
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

    /// Returns the current limits of Data-In PDUs.
    pub(super) fn shape(&self) -> Shape {
        let segment = self.segment.load(Ordering::Relaxed);
        Shape { digests: self.params.digests, segment, burst: self.session.params.max_burst }
    }

    /// Changes the maximum length of a data segment that the initiator receives.
    pub(super) fn set_segment(&self, length: u32) {
        self.segment.store(length, Ordering::Relaxed);
    }

    /// Sends a PDU from any thread, without waiting.
    pub(super) fn post(&self, bhs: Bhs, data: &[u8]) {
        let mut out = self.outbox.spare();
        reply::put(&mut out, bhs, data, self.params.digests);
        self.outbox.post(out, None);
    }

    /// Gives a task to the workers. The response is sent when the task has ended, so the order of
    /// the responses may differ from that of the requests.
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
        // The slow disk of one logical unit must not use all threads that the session may use.
        let lun = lun_from_wire(active.lun).unwrap_or(0);
        let client = u64::from(self.session.tsih) << 16 | u64::from(lun);
        pool.submit(
            client,
            Box::new(move || {
                let mut unanswered = Unanswered { conn: &conn, active: &active, answered: false };
                let mut out = conn.outbox.spare();
                let counted = work.counted();
                let begins = active.run(work.scsi_task(), work.changes());
                let ok = begins && work.perform(&request, conn.shape(), &mut out);
                conn.count(&IscsiTraffic { errors: u64::from(!ok), ..IscsiTraffic::default() });
                let answer = || {
                    if let Some(counted) = &counted {
                        counted.tell(&request);
                    }
                    conn.outbox.post(out, Some(ticket));
                };
                conn.session.finish(&active, answer).run();
                unanswered.answered = true;
            }),
        );
    }

    /// Gives a task to the workers as soon as there is room for its response. It does not block.
    pub(super) fn submit_later(self: &Arc<Self>, request: Request, work: Work, active: Arc<Active>) {
        let bytes = work.bytes(&request);
        let mut queued = Queued { conn: self.clone(), work: Some((request, work, active)) };
        self.flight.enter_later(bytes, move |ticket| {
            if let Some((request, work, active)) = queued.work.take() {
                queued.conn.submit(request, work, active, ticket);
            }
        });
    }

    /// Returns whether so many jobs are in progress that the initiator must send the next command
    /// again. An abort frees a place in the command window, but not what the aborted job waits for.
    pub(super) fn has_too_many_jobs(&self) -> bool {
        self.flight.jobs() >= 2 * self.shared.config.max_jobs_per_connection
    }

    pub(super) fn count(&self, traffic: &IscsiTraffic) {
        self.record.counters.add(traffic);
    }

    /// Aborts the connection.
    pub(super) fn abort(&self) {
        Member::abort(self);
    }

    /// Marks the connection as logged out. The end of such a connection is no failure.
    pub(super) fn log_out(&self) {
        self.logged_out.store(true, Ordering::Release);
    }

    /// Ends the connection: waits for its jobs on workers, and leaves the session.
    pub(super) fn finish(self: &Arc<Self>) {
        self.session.forget_requests_of(self);
        self.flight.forget_waiting();
        // A worker may be about to begin another transfer. A session that replaces this one must
        // find no unfinished write of it. So the connection ends only after it has dropped the last
        // gathered data.
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

/// A job that waits for room. If the connection ends before there is room, the task of the job ends
/// too.
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

/// Ends the task and aborts the connection if a worker panicked. Otherwise the initiator would wait
/// for the response for ever.
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
