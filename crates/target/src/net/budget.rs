//! Limits on memory: how many bytes may be in flight for all connections together, for one client
//! address, and for one connection.
//!
//! No connection may take so much that the next one finds nothing (dynamic thresholds: Choudhury
//! and Hahne 1998). Three rules ensure that:
//!
//! - A connection that has a job gets memory only if its jobs then hold at most a quarter of what
//!   is left.
//! - A first job takes at most half of what is left.
//! - All connections of an address together hold at most sixteen times what is left.
//!
//! So ten connections that never return memory leave a tenth of a budget to others. Hundreds of
//! connections of one address leave a seventeenth.
//!
//! Large jobs may use three quarters of a budget. A large job that is overdue comes before other
//! large jobs. It does not keep jobs of middle size from the last quarter: the memory that it waits
//! for may be held by clients that receive their replies as slowly as the limits allow.

use super::admission::Source;
use super::watch::Looked;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Minimum ratio of the bytes left in a budget to the bytes that a connection with jobs holds.
const CONNECTION_RATIO: u64 = 4;
/// Maximum ratio of the bytes that an address holds to the bytes left in the budget.
const ADDRESS_RATIO: u64 = 16;
/// Maximum size in bytes of a small job. A small job does not wait for jobs that are overdue.
const SMALL: u64 = 1 << 20;
/// Size above which a job is large, as a divisor of the budget.
const LARGE: u64 = 32;
/// Part of a budget that large jobs do not get, as a divisor of the budget.
const APART: u64 = 4;
/// Time that a job waits until it is overdue. An overdue job comes before all other jobs of its
/// kind (large or not) that are not small.
const OVERDUE: Duration = Duration::from_secs(2);

/// A number of bytes that all connections of a server share.
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<BudgetState>,
    freed: Condvar,
}

#[derive(Default)]
struct BudgetState {
    used: u64,
    /// The bytes, of `used`, that large jobs hold.
    large: u64,
    /// The bytes that each source holds. A source that holds none has no entry.
    sources: HashMap<Source, u64>,
    /// The connections and threads that wait for room, in the order of their arrival.
    waiting: VecDeque<Waits>,
    /// Number of waits of threads for a grant so far. It gives each wait its number.
    blocked: u64,
}

/// A connection or a thread that asks for room in a budget.
#[derive(Clone)]
enum Who {
    /// A connection, for one of its jobs.
    Flight(Weak<Flight>),
    /// A thread that waits for a grant, by the number of the wait.
    Thread(u64),
    Nobody,
}

impl Who {
    fn is(&self, other: &Who) -> bool {
        match (self, other) {
            (Who::Flight(a), Who::Flight(b)) => Weak::ptr_eq(a, b),
            (Who::Thread(a), Who::Thread(b)) => a == b,
            _ => false,
        }
    }
}

struct Waits {
    who: Who,
    since: Instant,
    /// Whether the job is large.
    large: bool,
}

/// A request for room: the connection or thread, and what the connection holds already.
struct Asks {
    who: Who,
    source: Option<Source>,
    jobs: usize,
    held: u64,
}

impl BudgetState {
    fn take(&mut self, source: Option<Source>, bytes: u64, large: bool) {
        self.used += bytes;
        self.large += if large { bytes } else { 0 };
        if let Some(source) = source {
            *self.sources.entry(source).or_default() += bytes;
        }
    }

    fn give_back(&mut self, source: Option<Source>, bytes: u64, large: bool) {
        self.used -= bytes;
        self.large -= if large { bytes } else { 0 };
        if let Some(source) = source
            && let Some(held) = self.sources.get_mut(&source)
        {
            *held -= bytes;
            if *held == 0 {
                self.sources.remove(&source);
            }
        }
    }

    /// Returns the first overdue connection or thread, among the large jobs or among the others. A
    /// connection with jobs in flight is not overdue: its client may not be receiving replies, and
    /// its further requests get no precedence.
    fn overdue(&self, large: bool) -> Option<&Who> {
        let hungry = |who: &Who| match who {
            Who::Flight(flight) => flight.upgrade().is_some_and(|f| f.admitted.load(Ordering::Acquire) == 0),
            Who::Thread(_) => true,
            Who::Nobody => false,
        };
        let overdue = |w: &&Waits| w.large == large && w.since.elapsed() >= OVERDUE && hungry(&w.who);
        self.waiting.iter().find(overdue).map(|waits| &waits.who)
    }

    fn no_longer_waits(&mut self, who: &Who) {
        self.waiting.retain(|waits| !waits.who.is(who));
    }

    fn held_by(&self, source: Option<Source>) -> u64 {
        source.and_then(|source| self.sources.get(&source).copied()).unwrap_or(0)
    }
}

impl Budget {
    /// Makes a budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit, state: Mutex::default(), freed: Condvar::new() })
    }

    /// Returns whether `asks` may take `bytes`. A budget that is not in use has room for any job,
    /// because no budget is smaller than the largest request.
    fn has_room(&self, state: &BudgetState, asks: &Asks, bytes: u64) -> bool {
        if bytes == 0 || state.used == 0 {
            return true;
        }
        let left = self.limit.saturating_sub(state.used);
        let large = self.is_large(bytes);
        let next = state.overdue(large);
        let is_next = next.is_some_and(|next| next.is(&asks.who));
        let fair = match asks.jobs {
            0 if is_next => bytes <= left,
            0 => bytes <= left / 2,
            _ => (asks.held + bytes).saturating_mul(CONNECTION_RATIO) <= left,
        };
        let in_turn = bytes <= SMALL || next.is_none() || is_next;
        let apart = self.limit / APART;
        let in_part = match large {
            // A budget smaller than two of these jobs is not divided.
            true => state.large + bytes <= self.limit - apart || bytes > self.limit / 2,
            false => {
                bytes <= SMALL || state.used - state.large + bytes <= apart || state.overdue(true).is_none()
            }
        };
        fair && in_turn && in_part && state.held_by(asks.source) + bytes <= left.saturating_mul(ADDRESS_RATIO)
    }

    fn is_large(&self, bytes: u64) -> bool {
        bytes > (self.limit / LARGE).max(SMALL)
    }

    /// Returns whether a connection or a thread waits for room.
    pub(crate) fn contended(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    fn give_back(&self, source: Option<Source>, bytes: u64) {
        let mut state = self.state.lock();
        state.give_back(source, bytes, self.is_large(bytes));
        self.admit_waiting(state);
    }

    /// Gives room to the connections and threads that wait, as far as there is room. Usually none
    /// waits.
    fn admit_waiting(&self, state: MutexGuard<'_, BudgetState>) {
        let waiting: Vec<_> = state.waiting.iter().map(|waits| waits.who.clone()).collect();
        drop(state);
        if waiting.iter().any(|who| matches!(who, Who::Thread(_))) {
            self.freed.notify_all();
        }
        for who in waiting {
            if let Who::Flight(flight) = who
                && let Some(flight) = flight.upgrade()
            {
                flight.admit_waiting();
            }
        }
    }

    /// Takes `bytes` until the grant is dropped. Waits until other connections have returned
    /// enough. A thread that waits here must hold nothing of this budget.
    pub(crate) fn grant(self: &Arc<Self>, source: Option<Source>, bytes: u64) -> Grant {
        let mut state = self.state.lock();
        let mut asks = Asks { who: Who::Nobody, source, jobs: 0, held: 0 };
        while !self.has_room(&state, &asks, bytes) {
            if matches!(asks.who, Who::Nobody) {
                state.blocked += 1;
                asks.who = Who::Thread(state.blocked);
                let (who, large) = (asks.who.clone(), self.is_large(bytes));
                state.waiting.push_back(Waits { who, since: Instant::now(), large });
            }
            // An overdue thread needs less room. So it checks again without a notification.
            let _ = self.freed.wait_for(&mut state, OVERDUE);
        }
        state.no_longer_waits(&asks.who);
        state.take(source, bytes, self.is_large(bytes));
        Grant { budget: self.clone(), source, bytes }
    }
}

impl Looked for Budget {
    /// Checks the waiting connections and threads again: those that have become overdue need less
    /// room. Returns whether any of them waited.
    fn look(&self, _: u32) -> bool {
        let state = self.state.lock();
        let waits = !state.waiting.is_empty();
        self.admit_waiting(state);
        waits
    }
}

/// Bytes that were taken from a budget. A drop returns them.
pub(crate) struct Grant {
    budget: Arc<Budget>,
    source: Option<Source>,
    bytes: u64,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.give_back(self.source, self.bytes);
    }
}

/// A function that begins a job with its ticket when there is room. It must not wait for anything.
type Waiting = Box<dyn FnOnce(Ticket) + Send>;

/// The jobs in flight of one connection: its long replies, and its requests that are carried out
/// away from its thread.
pub(crate) struct Flight {
    own: Weak<Flight>,
    budget: Arc<Budget>,
    source: Option<Source>,
    max_jobs: usize,
    max_bytes: u64,
    state: Mutex<FlightState>,
    landed: Condvar,
    /// Copies of two numbers, to read without the lock: the jobs including those that wait for
    /// room, and the jobs that have room.
    jobs: AtomicUsize,
    admitted: AtomicUsize,
}

#[derive(Default)]
struct FlightState {
    jobs: usize,
    bytes: u64,
    /// The jobs that wait for room, with their sizes in bytes, in the order of their arrival.
    waiting: VecDeque<(u64, Waiting)>,
}

impl Flight {
    pub(crate) fn new(
        budget: Arc<Budget>,
        source: Option<Source>,
        max_jobs: usize,
        max_bytes: u64,
    ) -> Arc<Flight> {
        Arc::new_cyclic(|own| Flight {
            own: own.clone(),
            budget,
            source,
            max_jobs,
            max_bytes,
            state: Mutex::default(),
            landed: Condvar::new(),
            jobs: AtomicUsize::new(0),
            admitted: AtomicUsize::new(0),
        })
    }

    /// Returns the number of unanswered jobs, including those that wait for room.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(Ordering::Acquire)
    }

    /// Enters a job that needs `bytes` of memory. Returns `None` if there is no room now.
    pub(crate) fn try_enter(&self, bytes: u64) -> Option<Ticket> {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        self.take(&mut state, bytes)
    }

    /// Enters a job that has already begun. Ignores the limits.
    pub(crate) fn enter_anyway(&self, bytes: u64) -> Ticket {
        let mut state = self.state.lock();
        self.budget.state.lock().take(self.source, bytes, self.budget.is_large(bytes));
        self.count(&mut state, bytes)
    }

    /// Enters a job, at once or when there is room. Never waits. The thread that makes room enters
    /// the job and calls `begin`.
    pub(crate) fn enter_later(&self, bytes: u64, begin: impl FnOnce(Ticket) + Send + 'static) {
        if let Some(ticket) = self.try_enter(bytes) {
            return begin(ticket);
        }
        {
            let mut state = self.state.lock();
            state.waiting.push_back((bytes, Box::new(begin)));
            self.publish(&state);
            if state.waiting.len() == 1 {
                let waits = self.waits(bytes);
                self.budget.state.lock().waiting.push_back(waits);
            }
        }
        // Another thread may have returned memory before this job was in the queue.
        self.admit_waiting();
    }

    /// Enters a job. Waits until there is room.
    pub(crate) fn enter(&self, bytes: u64) -> Ticket {
        let (sender, entered) = std::sync::mpsc::channel();
        self.enter_later(bytes, move |ticket| drop(sender.send(ticket)));
        match entered.recv() {
            Ok(ticket) => ticket,
            Err(_) => unreachable!("what waits for room is kept until there is some"),
        }
    }

    /// Waits until there are fewer than `jobs` jobs, including those that wait for room.
    pub(crate) fn wait_below(&self, jobs: usize) {
        let mut state = self.state.lock();
        while state.jobs + state.waiting.len() >= jobs.max(1) {
            self.landed.wait(&mut state);
        }
    }

    fn take(&self, state: &mut FlightState, bytes: u64) -> Option<Ticket> {
        // The limits of a connection never exclude its only job, because no limit is below the
        // largest request.
        if state.jobs > 0 && (state.jobs >= self.max_jobs || state.bytes + bytes > self.max_bytes) {
            return None;
        }
        let mut budget = self.budget.state.lock();
        let who = Who::Flight(self.own.clone());
        let asks = Asks { who, source: self.source, jobs: state.jobs, held: state.bytes };
        if !self.budget.has_room(&budget, &asks, bytes) {
            return None;
        }
        budget.take(self.source, bytes, self.budget.is_large(bytes));
        drop(budget);
        Some(self.count(state, bytes))
    }

    fn count(&self, state: &mut FlightState, bytes: u64) -> Ticket {
        state.jobs += 1;
        state.bytes += bytes;
        self.publish(state);
        let Some(flight) = self.own.upgrade() else { unreachable!("whoever calls has a reference") };
        Ticket { flight, bytes }
    }

    /// Makes the entry for a job of `bytes` that begins to wait for room now.
    fn waits(&self, bytes: u64) -> Waits {
        let who = Who::Flight(self.own.clone());
        Waits { who, since: Instant::now(), large: self.budget.is_large(bytes) }
    }

    fn publish(&self, state: &FlightState) {
        self.jobs.store(state.jobs + state.waiting.len(), Ordering::Release);
        self.admitted.store(state.jobs, Ordering::Release);
    }

    /// Enters the jobs of this connection that wait, as far as there is room.
    fn admit_waiting(&self) {
        let mut admitted = Vec::new();
        {
            let mut state = self.state.lock();
            while let Some(&(bytes, _)) = state.waiting.front() {
                let Some(ticket) = self.take(&mut state, bytes) else {
                    break;
                };
                if let Some((_, begin)) = state.waiting.pop_front() {
                    admitted.push((ticket, begin));
                }
            }
            self.publish(&state);
            if !admitted.is_empty() {
                // The next job of this connection waits from now on, behind the other connections.
                let who = Who::Flight(self.own.clone());
                let mut budget = self.budget.state.lock();
                budget.no_longer_waits(&who);
                budget.waiting.extend(state.waiting.front().map(|(bytes, _)| self.waits(*bytes)));
            }
        }
        for (ticket, begin) in admitted {
            begin(ticket);
        }
    }

    /// Drops the jobs that wait for room, because the connection has ended.
    pub(crate) fn forget_waiting(&self) {
        let forgotten = {
            let mut state = self.state.lock();
            let forgotten = std::mem::take(&mut state.waiting);
            self.publish(&state);
            self.budget.state.lock().no_longer_waits(&Who::Flight(self.own.clone()));
            forgotten
        };
        drop(forgotten);
        self.landed.notify_all();
        self.budget.give_back(None, 0); // for the jobs that waited behind it
    }

    /// Waits until every job has been answered, including those that wait for room.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.lock();
        while state.jobs + state.waiting.len() > 0 {
            self.landed.wait(&mut state);
        }
    }

    /// Waits at most `wait` until every job has been answered. Returns whether all have been.
    pub(crate) fn wait_idle_for(&self, wait: Duration) -> bool {
        let mut state = self.state.lock();
        let busy = |state: &mut FlightState| state.jobs + state.waiting.len() > 0;
        let idle = !self.landed.wait_while_for(&mut state, busy, wait).timed_out();
        idle || state.jobs + state.waiting.len() == 0
    }
}

/// A job in flight. It is dropped when its reply has been sent or can't be sent.
pub(crate) struct Ticket {
    flight: Arc<Flight>,
    bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let flight = &self.flight;
        let waits = {
            let mut state = flight.state.lock();
            state.jobs -= 1;
            state.bytes -= self.bytes;
            flight.publish(&state);
            !state.waiting.is_empty()
        };
        flight.landed.notify_all();
        flight.budget.give_back(flight.source, self.bytes);
        if waits {
            flight.admit_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    fn flight(budget: &Arc<Budget>) -> Arc<Flight> {
        Flight::new(budget.clone(), None, usize::MAX, u64::MAX)
    }

    fn take_all(flight: &Arc<Flight>, bytes: u64, held: &mut Vec<Ticket>) {
        while let Some(ticket) = flight.try_enter(bytes) {
            held.push(ticket);
        }
    }

    fn used(budget: &Budget) -> u64 {
        budget.state.lock().used
    }

    #[test]
    fn a_large_grant_waits_and_small_ones_do_not() {
        let budget = Budget::new(64 << 20);
        let first = budget.grant(None, 40 << 20);
        let (sender, granted) = mpsc::channel();
        let theirs = budget.clone();
        let large = thread::spawn(move || {
            let _grant = theirs.grant(None, 60 << 20);
            sender.send(()).unwrap();
        });
        while !budget.contended() {
            thread::yield_now();
        }
        drop(budget.grant(None, 1 << 20));
        assert!(granted.try_recv().is_err());
        drop(first);
        large.join().unwrap();
        granted.recv().unwrap();
        assert_eq!(used(&budget), 0);
        assert!(!budget.contended());
    }

    #[test]
    fn who_has_waited_for_long_comes_before_others_of_its_size() {
        let budget = Budget::new(64 << 20);
        let held = budget.grant(None, 26 << 20);
        let theirs = budget.clone();
        // The size is more than half of what is left, and less than all of it. Only an overdue job
        // may take it.
        let large = thread::spawn(move || theirs.grant(None, 20 << 20));
        let _grant = large.join().unwrap();
        drop(held);
    }

    #[test]
    fn who_does_not_let_go_of_what_it_has_keeps_nobody_waiting() {
        let budget = Budget::new(128 << 20);
        let (idle, busy) = (flight(&budget), flight(&budget));
        let held = idle.try_enter(32 << 20).unwrap();
        idle.enter_later(64 << 20, drop);
        thread::sleep(OVERDUE);
        assert!(busy.try_enter(8 << 20).is_some());
        drop(held);
    }

    /// Four clients on different hosts read 32 MiB each, and receive their replies as slowly as the
    /// limits allow. The memory that the last one waits for must not block other clients.
    #[test]
    fn large_jobs_that_wait_leave_a_quarter_to_others() {
        let budget = Budget::new(128 << 20);
        let slow: Vec<_> = (0..4).map(|_| flight(&budget)).collect();
        let (sender, admitted) = mpsc::channel();
        for one in &slow {
            let sender = sender.clone();
            one.enter_later(32 << 20, move |ticket| sender.send(ticket).unwrap());
        }
        let held: Vec<Ticket> = admitted.try_iter().collect();
        assert_eq!(held.len(), 3);
        thread::sleep(OVERDUE);
        budget.look(0);
        assert!(admitted.try_recv().is_err(), "it would have all that is left");
        let others: Vec<_> = (0..20).map(|_| flight(&budget)).collect();
        let mut theirs: Vec<_> = others.iter().filter_map(|other| other.try_enter(4 << 20)).collect();
        assert!(theirs.len() >= 4, "{}", theirs.len());
        // The other jobs do not take the memory that the large job waits for. The large job is
        // next.
        drop(held);
        let large = admitted.try_recv().unwrap();
        theirs.extend(others.iter().filter_map(|other| other.try_enter(4 << 20)));
        drop((large, theirs));
        assert_eq!((used(&budget), budget.state.lock().large), (0, 0));
    }

    #[test]
    fn a_connection_is_bounded_by_jobs_and_bytes() {
        let flight = Flight::new(Budget::new(1000), None, 3, 100);
        let large = flight.try_enter(150).unwrap();
        assert!(flight.try_enter(1).is_none(), "over the bytes of a connection");
        drop(large);
        let tickets: Vec<_> = (0..3).map(|_| flight.try_enter(10).unwrap()).collect();
        assert!(flight.try_enter(10).is_none(), "over the jobs of a connection");
        assert_eq!(flight.jobs(), 3);
        let waiter = {
            let flight = flight.clone();
            thread::spawn(move || drop(flight.enter(10)))
        };
        while flight.jobs() < 4 {
            thread::yield_now();
        }
        drop(tickets);
        waiter.join().unwrap();
        flight.wait_idle();
        assert_eq!(flight.jobs(), 0);
        assert_eq!(used(&flight.budget), 0);
    }

    #[test]
    fn what_waits_for_room_begins_in_order_when_others_give_theirs_back() {
        let budget = Budget::new(100 << 20);
        let (one, two) = (flight(&budget), flight(&budget));
        let held = one.try_enter(90 << 20).unwrap();
        let (sender, order) = mpsc::channel();
        for n in 0..3 {
            let sender = sender.clone();
            two.enter_later(6 << 20, move |ticket| sender.send((n, ticket)).unwrap());
        }
        assert_eq!(two.jobs(), 3);
        assert!(order.try_recv().is_err());
        assert!(two.try_enter(1).is_none(), "not before what waits");
        drop(held);
        let begun: Vec<_> = order.try_iter().collect();
        assert_eq!(begun.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!budget.contended());
        drop(begun);
        two.wait_idle();
        assert_eq!(used(&budget), 0);
    }

    #[test]
    fn an_ended_connection_waits_for_no_room() {
        let budget = Budget::new(100);
        let (one, two) = (flight(&budget), flight(&budget));
        let held = one.try_enter(90).unwrap();
        two.enter_later(80, |_| panic!("it was forgotten"));
        two.forget_waiting();
        two.wait_idle();
        assert!(!budget.contended());
        drop(held);
    }

    #[test]
    fn ten_greedy_connections_leave_a_tenth() {
        let limit = 256 << 20;
        let budget = Budget::new(limit);
        let mut held = Vec::new();
        for _ in 0..10 {
            take_all(&flight(&budget), 64 << 10, &mut held);
        }
        let left = limit - used(&budget);
        assert!(left >= limit / 10, "{left} bytes are left");
        assert!(flight(&budget).try_enter(1 << 20).is_some());
        assert!(flight(&budget).try_enter(64 << 20).is_none(), "a first job is bounded too");
    }

    #[test]
    fn an_address_leaves_room_however_many_connections_it_has() {
        let limit = 256 << 20;
        let budget = Budget::new(limit);
        let of = |address: &str| Some(Source::of(address.parse().unwrap()));
        let connect = |address: &str| Flight::new(budget.clone(), of(address), usize::MAX, u64::MAX);
        let mut held = Vec::new();
        for n in 0..500 {
            take_all(&connect(&format!("2001:db8::{n:x}")), 64 << 10, &mut held);
        }
        let left = limit - used(&budget);
        assert!(left >= limit / 18, "{left} bytes are left");
        assert!(connect("2001:db8::ffff").try_enter(64 << 10).is_none());
        assert!(connect("2001:db8:0:1::1").try_enter(1 << 20).is_some());
        assert!(connect("192.0.2.1").try_enter(1 << 20).is_some());
        drop(held);
        assert!(budget.state.lock().sources.is_empty());
    }
}
