//! Bounds on memory: how many bytes all connections together, and one connection alone, may have in flight.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes shared by all connections of a server. Handed out in the order asked for, so that a large request is not
/// starved by small ones.
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<BudgetState>,
    freed: Condvar,
}

#[derive(Default)]
struct BudgetState {
    used: u64,
    /// The next ticket to give to a waiter, and the one whose turn it is.
    next: u64,
    turn: u64,
}

impl Budget {
    /// At most `limit` bytes; nobody may ask for more at once.
    pub(crate) fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit, state: Mutex::default(), freed: Condvar::new() })
    }

    fn try_take(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let free = state.next == state.turn && state.used + bytes <= self.limit;
        if free {
            state.used += bytes;
        }
        free
    }

    /// Whether one who holds `held` bytes may ask for more: nobody may hold more than what is left for all others
    /// (dynamic thresholds: Choudhury and Hahne 1998). The next one that comes always finds half of what was left.
    fn is_fair(&self, held: u64, bytes: u64) -> bool {
        held + bytes <= self.limit.saturating_sub(self.state.lock().used)
    }

    /// Somebody waits.
    pub(crate) fn contended(&self) -> bool {
        let state = self.state.lock();
        state.next != state.turn
    }

    fn take(&self, bytes: u64) {
        debug_assert!(bytes <= self.limit);
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        while state.turn != ticket || state.used + bytes > self.limit {
            self.freed.wait(&mut state);
        }
        state.turn += 1;
        state.used += bytes;
        self.freed.notify_all();
    }

    fn give_back(&self, bytes: u64) {
        self.state.lock().used -= bytes;
        self.freed.notify_all();
    }

    /// Takes bytes until the grant is dropped, waiting for others to give theirs back.
    pub(crate) fn grant(self: &Arc<Self>, bytes: u64) -> Grant {
        self.take(bytes);
        Grant { budget: self.clone(), bytes }
    }
}

/// Bytes taken from a budget.
pub(crate) struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// One connection's requests that are being worked on elsewhere than on its own thread.
pub(crate) struct Flight {
    budget: Arc<Budget>,
    max_jobs: usize,
    max_bytes: u64,
    state: Mutex<FlightState>,
    landed: Condvar,
    /// A copy of the number of jobs, to look at without the lock.
    jobs: AtomicUsize,
}

#[derive(Default)]
struct FlightState {
    jobs: usize,
    bytes: u64,
}

impl Flight {
    pub(crate) fn new(budget: Arc<Budget>, max_jobs: usize, max_bytes: u64) -> Arc<Flight> {
        Arc::new(Flight {
            budget,
            max_jobs,
            max_bytes,
            state: Mutex::default(),
            landed: Condvar::new(),
            jobs: AtomicUsize::new(0),
        })
    }

    /// Jobs that have not been answered.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(Ordering::Acquire)
    }

    /// Enters a job that needs `bytes` of memory if that is possible at once.
    pub(crate) fn try_enter(self: &Arc<Self>, bytes: u64) -> Option<Ticket> {
        let mut state = self.state.lock();
        if !self.has_room(&state, bytes) || !self.budget.try_take(bytes) {
            return None;
        }
        Some(self.admit(&mut state, bytes))
    }

    /// Enters a job, waiting for others of this connection, then for other connections.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Ticket {
        let mut state = self.state.lock();
        while !self.has_room(&state, bytes) {
            self.landed.wait(&mut state);
        }
        // Only this connection's thread enters jobs, so that the room found stays while the lock is let go.
        drop(state);
        self.budget.take(bytes);
        self.admit(&mut self.state.lock(), bytes)
    }

    /// A single job always has room, whatever its size: limits are never below the largest request.
    fn has_room(&self, state: &FlightState, bytes: u64) -> bool {
        let own = state.jobs < self.max_jobs && state.bytes + bytes <= self.max_bytes;
        state.jobs == 0 || (own && self.budget.is_fair(state.bytes, bytes))
    }

    fn admit(self: &Arc<Self>, state: &mut FlightState, bytes: u64) -> Ticket {
        state.jobs += 1;
        state.bytes += bytes;
        self.jobs.store(state.jobs, Ordering::Release);
        Ticket { flight: self.clone(), bytes }
    }

    /// Waits until every job has been answered.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.lock();
        while state.jobs > 0 {
            self.landed.wait(&mut state);
        }
    }

    /// The same, but not for ever; whether it is so.
    pub(crate) fn wait_idle_for(&self, wait: Duration) -> bool {
        let mut state = self.state.lock();
        let idle = !self.landed.wait_while_for(&mut state, |state| state.jobs > 0, wait).timed_out();
        idle || state.jobs == 0
    }
}

/// A job in flight, until its reply has been sent or given up.
pub(crate) struct Ticket {
    flight: Arc<Flight>,
    bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.flight.state.lock();
        state.jobs -= 1;
        state.bytes -= self.bytes;
        self.flight.jobs.store(state.jobs, Ordering::Release);
        drop(state);
        self.flight.landed.notify_all();
        self.flight.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn a_large_grant_is_not_overtaken() {
        let budget = Budget::new(100);
        let first = budget.grant(60);
        let (sender, order) = mpsc::channel();
        let spawn = |bytes, name: &'static str, tickets| {
            let (theirs, sender) = (budget.clone(), sender.clone());
            let handle = thread::spawn(move || {
                let _grant = theirs.grant(bytes);
                sender.send(name).unwrap();
                thread::sleep(Duration::from_millis(20));
            });
            while budget.state.lock().next < tickets {
                thread::yield_now();
            }
            handle
        };
        let large = spawn(90, "large", 2);
        assert!(!budget.try_take(10), "there is a queue");
        let small = spawn(20, "small", 3);
        drop(first);
        large.join().unwrap();
        small.join().unwrap();
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["large", "small"]);
        assert_eq!(budget.state.lock().used, 0);
    }

    #[test]
    fn a_connection_is_bounded_by_jobs_and_bytes() {
        let flight = Flight::new(Budget::new(1000), 3, 100);
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
        drop(tickets);
        waiter.join().unwrap();
        flight.wait_idle();
        assert_eq!(flight.jobs(), 0);
        assert_eq!(flight.budget.state.lock().used, 0);
    }

    #[test]
    fn connections_share_one_budget() {
        let budget = Budget::new(100);
        let one = Flight::new(budget.clone(), 8, 100);
        let two = Flight::new(budget, 8, 100);
        let held = one.try_enter(80).unwrap();
        assert!(two.try_enter(30).is_none());
        drop(held);
        assert!(two.try_enter(30).is_some());
    }

    #[test]
    fn greedy_connections_leave_room_for_the_next() {
        let budget = Budget::new(1200);
        let mut held = Vec::new();
        for greedy in 1..=5 {
            let flight = Flight::new(budget.clone(), usize::MAX, 1000);
            while let Some(ticket) = flight.try_enter(1) {
                held.push(ticket);
            }
            let left = 1200 - budget.state.lock().used;
            assert!(left >= 1200 >> greedy, "{left} bytes are left after {greedy} greedy connections");
        }
        let modest = Flight::new(budget, usize::MAX, 1000);
        assert!(modest.try_enter(30).is_some());
    }
}
