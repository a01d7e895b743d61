//! A session (RFC 7143, 4.2): the state that its connections share. This is the command window, the
//! tasks in progress, and the I_T nexus.

use super::active::{Active, OnEnd, Waiter};
use super::login::Identity;
use super::news::News;
use super::params::Params;
use super::pdu::{AsyncEvent, Bhs, Digests, async_message, opcode};
use super::record::Record;
use super::window::{Admission, Ticketed, Window};
use crate::net::budget::Ticket;
use crate::scsi::{self, Access, Asc, Event, Nexus, NexusEvents, Target, lun_to_wire};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// Maximum number of task management functions of one session that are in progress.
const MAX_MANAGING: usize = 16;

/// A connection, as its session uses it.
pub(super) trait Member: Send + Sync {
    /// Returns the identifier that the initiator chose for the connection, the CID.
    fn cid(&self) -> u16;

    /// Returns the public record of the connection.
    fn record(&self) -> &Arc<Record>;

    /// Returns the digests that the connection uses.
    fn digests(&self) -> Digests;

    /// Sends a PDU from any thread, without waiting.
    fn post(&self, bhs: Bhs, data: &[u8]);

    /// Carries out a request that waited for its turn. The threads of other connections call it, so
    /// it does not block.
    fn run_held(self: Arc<Self>, held: Held);

    /// Discards the data gathered for a command. `itt` is the task tag of the command.
    fn forget_transfer(&self, itt: u32);

    /// Marks the connection as logged out. The end of such a connection is no failure.
    fn log_out(&self);

    /// Returns whether the connection is logged out.
    fn is_logged_out(&self) -> bool;

    /// Aborts the connection.
    fn abort(&self) {
        self.record().transport.abort();
    }
}

/// Returns whether two members are the same connection. The CID is not enough, because a connection
/// that replaces another one has the same CID.
pub(super) fn is_same<A: ?Sized, B: ?Sized>(one: &Arc<A>, other: &Arc<B>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// The list of the sessions of a server, as a session uses it.
pub(super) trait SessionList: Send + Sync {
    /// Removes a session that has ended from the list.
    fn forget(&self, session: &Session);

    /// Returns all sessions.
    fn all(&self) -> Vec<Arc<Session>>;
}

/// A request that waits for its turn.
pub(super) struct Held {
    pub(super) conn: Arc<dyn Member>,
    /// When the request was received.
    pub(super) arrived: Instant,
    pub(super) bhs: Bhs,
    pub(super) ahs: Vec<u8>,
    pub(super) data: Bytes,
    /// Ticket for the memory of the request. `None` if there is not enough memory. In that case the
    /// connection ends.
    pub(super) ticket: Option<Ticket>,
}

/// Requests that may begin now.
#[derive(Default)]
pub(super) struct Ready(Vec<Held>);

impl Ready {
    pub(super) fn and(&mut self, others: Ready) {
        self.0.extend(others.0);
    }

    /// Carries out the requests on workers.
    pub(super) fn run(self) {
        for held in self.0 {
            held.conn.clone().run_held(held);
        }
    }
}

/// The identity of a session for reinstatement (6.3.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) initiator: String,
    pub(super) isid: [u8; 6],
    pub(super) target: Option<String>,
    pub(super) portal_group: u16,
}

/// The state that all connections of one session share.
pub(super) struct Session {
    pub(super) tsih: u16,
    pub(super) key: Key,
    pub(super) identity: Identity,
    pub(super) params: Params,
    /// `None` in a discovery session.
    pub(super) nexus: Option<Arc<Nexus>>,
    pub(super) began: Instant,
    depth: u32,
    window: Mutex<Window<Held>>,
    exp_cmd_sn: AtomicU32,
    max_cmd_sn: AtomicU32,
    tasks: Mutex<HashMap<u32, Arc<Active>>>,
    conns: Mutex<BTreeMap<u16, Arc<dyn Member>>>,
    /// Number of task management functions that are not answered yet.
    managing: AtomicUsize,
    news: Mutex<News>,
    list: Weak<dyn SessionList>,
}

/// A task management function in progress. The function ends when this value is dropped.
pub(super) struct Managing(Arc<Session>);

impl Managing {
    /// Begins a task management function. Returns `None` if too many are in progress. The number is
    /// limited because every task that a function waits for keeps a reference to it.
    pub(super) fn begin(session: &Arc<Session>) -> Option<Managing> {
        let before = session.managing.fetch_add(1, Ordering::AcqRel);
        let managing = Managing(session.clone());
        (before < MAX_MANAGING).then_some(managing)
    }
}

impl Drop for Managing {
    fn drop(&mut self) {
        self.0.managing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Forwards the events of the device server to the session.
struct Events(OnceLock<Weak<Session>>);

impl NexusEvents for Events {
    fn others(&self) -> Vec<Arc<Nexus>> {
        let session = self.0.get().and_then(Weak::upgrade);
        session.map_or_else(Vec::new, |session| session.others_of_initiator())
    }
}

impl scsi::Events for Events {
    fn event(&self, event: Event) -> usize {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else {
            return 0;
        };
        match event {
            Event::AbortTasks { lun } => {
                let lun = lun_to_wire(lun);
                session.abort_tasks(|_, l| l == lun, &OnEnd::new(|| ()))
            }
            Event::UnitAttention { lun, sense } => {
                session.attention(lun, sense);
                0
            }
        }
    }
}

impl Session {
    /// Makes a session and attaches it to the target. Returns `None` if the target has no port in
    /// the portal group.
    pub(super) fn new(
        tsih: u16,
        (identity, entered, params): (Identity, Option<(Arc<Target>, Access)>, Params),
        portal_group: u16,
        depth: u32,
        list: Weak<dyn SessionList>,
    ) -> Option<Arc<Session>> {
        let events = Arc::new(Events(OnceLock::new()));
        let nexus = match entered {
            None => None,
            Some((target, access)) => {
                let isid: String = identity.isid.iter().map(|b| format!("{b:02x}")).collect();
                let port = format!("{},i,0x{isid}", identity.initiator);
                Some(target.attach(&port, portal_group, access, events.clone())?)
            }
        };
        let key = Key {
            initiator: identity.initiator.clone(),
            isid: identity.isid,
            target: identity.target.clone(),
            portal_group,
        };
        let window = Window::new(identity.cmd_sn, depth);
        let (exp, max) = window.numbers();
        let session = Arc::new(Session {
            tsih,
            key,
            identity,
            params,
            nexus,
            began: Instant::now(),
            depth,
            window: Mutex::new(window),
            exp_cmd_sn: AtomicU32::new(exp),
            max_cmd_sn: AtomicU32::new(max),
            tasks: Mutex::default(),
            conns: Mutex::default(),
            managing: AtomicUsize::new(0),
            news: Mutex::default(),
            list,
        });
        let _ = events.0.set(Arc::downgrade(&session));
        Some(session)
    }

    /// Logs that an initiator with another account tried to join or to replace this session.
    pub(super) fn log_foreign(&self, user: Option<&str>, peer: std::net::SocketAddr) {
        tracing::warn!(
            initiator = %self.key.initiator,
            target = self.key.target.as_deref().unwrap_or("(discovery)"),
            tsih = self.tsih,
            account = self.identity.user.as_deref().unwrap_or("(none)"),
            refused = user.unwrap_or("(none)"),
            %peer,
            "refused: the session belongs to another account"
        );
    }

    /// Returns the current ExpCmdSN and MaxCmdSN.
    pub(super) fn numbers(&self) -> (u32, u32) {
        (self.exp_cmd_sn.load(Ordering::Acquire), self.max_cmd_sn.load(Ordering::Acquire))
    }

    /// Calls a function with the window, and then publishes the numbers of the window.
    fn with_window<T>(&self, f: impl FnOnce(&mut Window<Held>) -> T) -> T {
        let mut window = self.window.lock();
        let result = f(&mut window);
        let (exp, max) = window.numbers();
        self.exp_cmd_sn.store(exp, Ordering::Release);
        self.max_cmd_sn.store(max, Ordering::Release);
        result
    }

    /// Admits a request that was received. If the second value is true, held requests of other
    /// connections may begin now: the caller must call [`Session::run_next`].
    pub(super) fn admit(&self, request: Ticketed, keep: impl FnOnce() -> Held) -> (Admission, bool) {
        self.with_window(|window| {
            let admission = window.admit(request, keep);
            (admission, window.has_next())
        })
    }

    /// Begins the held requests that waited until a gap was filled.
    pub(super) fn run_next(&self) {
        while let Some(held) = self.with_window(Window::next) {
            held.conn.clone().run_held(held);
        }
    }

    /// Registers that SCSI commands have ended; `counted` of them had a place in the window.
    /// Returns the requests that may begin now. The caller must run them after it has sent the
    /// responses of the ended commands.
    #[must_use]
    pub(super) fn ended(&self, commands: usize, counted: u32) -> Ready {
        Ready(self.with_window(|window| window.ended(commands, counted)))
    }

    /// Returns whether the immediate commands exceed the window by too much.
    pub(super) fn is_flooded(&self) -> bool {
        // Commands that wait for an ordered task are not in `tasks` yet.
        let waiting = self.window.lock().waiting();
        self.tasks.lock().len() + waiting > 2 * self.depth as usize
    }

    /// Registers a task. Returns `None` if another task uses its tag.
    pub(super) fn begin(&self, itt: u32, lun: u64, cid: u16, counted: bool) -> Option<Arc<Active>> {
        let active = Arc::new(Active { itt, lun, cid, counted, state: Mutex::default() });
        match self.tasks.lock().entry(itt) {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(slot) => Some(slot.insert(active).clone()),
        }
    }

    /// Ends a task. Its place in the window becomes free. `answer` is called unless the task was
    /// aborted.
    #[must_use]
    pub(super) fn finish(&self, active: &Arc<Active>, answer: impl FnOnce()) -> Ready {
        let mut state = active.state.lock();
        if std::mem::replace(&mut state.over, true) {
            return Ready::default();
        }
        self.tasks.lock().remove(&active.itt);
        let ready = self.ended(1, u32::from(active.counted));
        if !state.aborted {
            answer();
        }
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        drop(waiters);
        ready
    }

    /// Returns the number of commands that are being carried out.
    pub(super) fn in_flight(&self) -> usize {
        self.tasks.lock().len()
    }

    /// Aborts the tasks that `which` chooses by tag and logical unit, including tasks that wait for
    /// their turn. Every aborted task keeps a clone of `waiter` until it has ended. Returns the
    /// number of tasks.
    pub(super) fn abort_tasks(&self, which: impl Fn(u32, u64) -> bool, waiter: &Waiter) -> usize {
        let chosen: Vec<_> = self.tasks.lock().values().filter(|t| which(t.itt, t.lun)).cloned().collect();
        let mut count = 0;
        for task in chosen {
            match task.abort(waiter) {
                None => continue,
                Some(true) => {}
                Some(false) => {
                    // The task waits for data that it does not need any more.
                    if let Some(conn) = self.conn(task.cid) {
                        conn.forget_transfer(task.itt);
                    }
                    self.finish(&task, || ()).run();
                }
            }
            count += 1;
        }
        count + self.drop_waiting(|h| h.bhs.opcode() == opcode::SCSI_COMMAND && which(h.bhs.itt(), h.lun()))
    }

    /// Discards requests that wait for their turn. Returns their number.
    fn drop_waiting(&self, which: impl Fn(&Held) -> bool) -> usize {
        let (held, fenced) = self.with_window(|window| window.drop_where(which));
        if !fenced.is_empty() {
            let counted = fenced.iter().filter(|h| !h.bhs.immediate()).count();
            self.ended(0, u32::try_from(counted).unwrap_or(0)).run();
        }
        held.len() + fenced.len()
    }

    /// Discards the waiting requests of a connection that has ended, because no initiator can
    /// receive their responses. If the window kept them, they would keep the connection and the
    /// session for ever.
    pub(super) fn forget_requests_of(&self, conn: &Arc<impl Member>) {
        self.drop_waiting(|held| is_same(&held.conn, conn));
    }

    /// Counts the number of a command that has not been received yet as received. ABORT TASK uses
    /// it (11.5.1). Returns whether the window expected the number.
    pub(super) fn plug(&self, cmd_sn: u32) -> bool {
        let plugged = self.with_window(|window| {
            let awaits = window.awaits(cmd_sn);
            if awaits {
                window.plug(cmd_sn);
            }
            awaits
        });
        self.run_next();
        plugged
    }

    pub(super) fn conn(&self, cid: u16) -> Option<Arc<dyn Member>> {
        self.conns.lock().get(&cid).cloned()
    }

    pub(super) fn conns(&self) -> Vec<Arc<dyn Member>> {
        self.conns.lock().values().cloned().collect()
    }

    /// Adds a connection. A connection with the same CID is reinstated (6.3.4): the result is the
    /// old connection, and the caller must abort it. Fails if the session has the negotiated
    /// maximum of connections, or if it has just ended.
    pub(super) fn join(&self, conn: Arc<dyn Member>, first: bool) -> Result<Option<Arc<dyn Member>>, ()> {
        let mut conns = self.conns.lock();
        let full =
            conns.len() >= usize::from(self.params.max_connections) && !conns.contains_key(&conn.cid());
        if full || (conns.is_empty() && !first) {
            return Err(());
        }
        Ok(conns.insert(conn.cid(), conn))
    }

    /// Removes a connection that has ended. The session ends with its last connection. Unless the
    /// connection was logged out, the other connections end too, because error recovery level 0
    /// recovers whole sessions only (7.1.5).
    pub(super) fn leave(&self, conn: &Arc<impl Member>) {
        let last = {
            let mut conns = self.conns.lock();
            match conns.get(&conn.cid()) {
                Some(present) if is_same(present, conn) => {
                    conns.remove(&conn.cid());
                    conns.is_empty()
                }
                _ => false,
            }
        };
        let nobody = OnEnd::new(|| ());
        if last {
            self.abort_tasks(|_, _| true, &nobody);
            // A waiting request refers to its connection, and the connection refers to the session.
            drop(self.with_window(Window::clear));
            self.end();
        } else if !conn.is_logged_out() {
            self.abort();
        }
    }

    /// Ends a session without connections: detaches the nexus and removes the session from the
    /// list.
    pub(super) fn end(&self) {
        // A session that replaces this one must not find reservations of this nexus. So the nexus
        // is detached before the session leaves the list.
        if let Some(nexus) = &self.nexus {
            nexus.detach();
        }
        if let Some(list) = self.list.upgrade() {
            list.forget(self);
        }
    }

    /// Returns all sessions of the server, or none if the server was dropped.
    fn listed(&self) -> Vec<Arc<Session>> {
        self.list.upgrade().map_or_else(Vec::new, |list| list.all())
    }

    /// Returns all sessions of the target of this session.
    pub(super) fn all_of_target(&self) -> Vec<Arc<Session>> {
        let mut sessions = self.listed();
        sessions.retain(|session| self.key.target.is_some() && session.key.target == self.key.target);
        sessions
    }

    /// Handles a new unit attention. An Asynchronous Message reports it now or later, or only the
    /// unit attention itself reports it.
    fn attention(&self, lun: u16, sense: scsi::Sense) {
        let worth_telling =
            [Asc::CAPACITY_DATA_CHANGED, Asc::REPORTED_LUNS_DATA_CHANGED, Asc::INQUIRY_DATA_CHANGED];
        let Some(nexus) = self.nexus.as_ref().filter(|_| worth_telling.contains(&sense.asc)) else {
            return;
        };
        // An initiator that is about to get a report of changed LUNs will then examine all logical
        // units.
        let luns = Asc::REPORTED_LUNS_DATA_CHANGED;
        if sense.asc != luns && nexus.is_unreported(lun, luns) {
            return;
        }
        let now = self.news.lock().comes(Instant::now(), lun, sense);
        if let Some((lun, sense)) = now {
            self.tell(lun, &sense);
        }
    }

    /// Sends a message that was too early before, unless the initiator already knows of the unit
    /// attention. A caller calls it every few seconds.
    pub(super) fn tell_what_is_owed(&self) {
        let due = self.news.lock().due(Instant::now());
        if let (Some((lun, sense)), Some(nexus)) = (due, &self.nexus)
            && nexus.is_unreported(lun, sense.asc)
        {
            self.news.lock().told(Instant::now());
            self.tell(lun, &sense);
        }
    }

    /// Sends an Asynchronous Message about a unit attention (11.9.1, event 0).
    fn tell(&self, lun: u16, sense: &scsi::Sense) {
        let Some(conn) = self.conns.lock().values().next().cloned() else {
            return;
        };
        let bytes = sense.to_bytes();
        let mut data = u16::try_from(bytes.len()).unwrap_or(0).to_be_bytes().to_vec();
        data.extend(bytes);
        conn.post(async_message(AsyncEvent::Scsi, lun_to_wire(lun).to_be_bytes(), [0; 3]), &data);
    }

    /// Returns the nexuses of other sessions of the same initiator. The initiator of a session is
    /// the same if it has the same name, has proven the same account, and has a connection from an
    /// address of this session. The name alone is not enough, because any initiator can send any
    /// name.
    fn others_of_initiator(&self) -> Vec<Arc<Nexus>> {
        let sessions = self.listed();
        let own = self.peers();
        let is_of_same = |other: &&Arc<Session>| {
            !std::ptr::eq(self, &***other)
                && other.key.initiator == self.key.initiator
                && other.identity.proof == self.identity.proof
                && other.peers().iter().any(|peer| own.contains(peer))
        };
        sessions.iter().filter(is_of_same).filter_map(|other| other.nexus.clone()).collect()
    }

    /// Returns the addresses that the connections come from.
    fn peers(&self) -> Vec<IpAddr> {
        self.conns.lock().values().map(|conn| conn.record().peer.ip().to_canonical()).collect()
    }

    /// Aborts every connection.
    pub(super) fn abort(&self) {
        for conn in self.conns() {
            conn.abort();
        }
    }
}

impl Held {
    pub(super) fn lun(&self) -> u64 {
        u64::from_be_bytes(self.bhs.lun())
    }
}
