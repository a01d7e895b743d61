//! The few threads that carry out what may block.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads. Clients take turns, one job each, so that a client with many jobs delays others by one at a
/// time; the jobs of one client begin in the order of arrival. What waits is bounded by those who submit: a connection has
/// a limited number of jobs in flight.
pub struct Pool {
    shared: Option<Arc<Shared>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Jobs of one client that may run at a time.
    share: usize,
}

#[derive(Default)]
struct State {
    /// Those that have jobs here.
    clients: HashMap<u64, Client>,
    /// Those with a job that may begin, in the order of their turns; each once.
    turns: VecDeque<u64>,
    stopping: bool,
}

#[derive(Default)]
struct Client {
    jobs: VecDeque<Job>,
    running: usize,
    has_turn: bool,
}

impl State {
    /// Gives a client its turn if it has a job that may begin, and forgets one that has none at all.
    fn settle(&mut self, id: u64, share: usize) -> bool {
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        if client.jobs.is_empty() && client.running == 0 {
            self.clients.remove(&id);
            return false;
        }
        let begins = !client.has_turn && !client.jobs.is_empty() && client.running < share;
        if begins {
            client.has_turn = true;
            self.turns.push_back(id);
        }
        begins
    }

    fn next(&mut self, share: usize) -> Option<(u64, Job)> {
        let id = self.turns.pop_front()?;
        let client = self.clients.get_mut(&id)?;
        client.has_turn = false;
        let job = client.jobs.pop_front()?;
        client.running += 1;
        self.settle(id, share);
        Some((id, job))
    }
}

impl Pool {
    /// Starts `threads` threads, called `name` and a number. One client has at most `share` of them at a time.
    pub fn start(name: &str, threads: usize, share: usize) -> std::io::Result<Pool> {
        let (state, wake) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, wake, share: share.max(1) });
        let pool = Pool { shared: Some(shared.clone()), threads: Mutex::default() };
        for n in 0..threads.max(1) {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(format!("{name}-{n}")).spawn(move || work(&shared))?;
            pool.threads.lock().push(thread);
        }
        Ok(pool)
    }

    /// A pool without threads: a job is done by who submits it. For tests that must be repeatable.
    pub fn inline() -> Pool {
        Pool { shared: None, threads: Mutex::default() }
    }

    pub(crate) fn submit(&self, client: u64, job: Job) {
        match &self.shared {
            None => job(),
            Some(shared) => {
                let mut state = shared.state.lock();
                state.clients.entry(client).or_default().jobs.push_back(job);
                state.settle(client, shared.share);
                drop(state);
                shared.wake.notify_one();
            }
        }
    }
}

impl Drop for Pool {
    /// Finishes what was submitted.
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.state.lock().stopping = true;
            shared.wake.notify_all();
        }
        let current = thread::current().id();
        for thread in self.threads.get_mut().drain(..).filter(|t| t.thread().id() != current) {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let (client, job) = {
            let mut state = shared.state.lock();
            loop {
                match state.next(shared.share) {
                    Some(next) => {
                        if !state.turns.is_empty() {
                            shared.wake.notify_one(); // a turn must never be left without a thread that looks for it
                        }
                        break next;
                    }
                    // What waits for its client's share is begun by the thread that has the share.
                    None if state.stopping => return,
                    None => shared.wake.wait(&mut state),
                }
            }
        };
        // A device that panics ends the connection it served (the job's guard sees to that), not this thread.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a request's worker panicked");
        }
        let mut state = shared.state.lock();
        if let Some(client) = state.clients.get_mut(&client) {
            client.running -= 1;
        }
        state.settle(client, shared.share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn jobs_are_done_even_after_a_panic_and_at_the_end() {
        let pool = Pool::start("test", 2, 2).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for n in 0..100 {
            let done = done.clone();
            pool.submit(
                n % 7,
                Box::new(move || {
                    assert!(n % 10 != 3, "a device's bug");
                    done.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 90);
    }
    #[test]
    fn clients_take_turns() {
        let pool = Pool::start("test", 1, 1).unwrap();
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let order: Arc<Mutex<Vec<u64>>> = Arc::default();
        pool.submit(0, Box::new(move || begun.recv().unwrap_or(())));
        for client in [1, 1, 1, 1, 2, 3, 3] {
            let order = order.clone();
            pool.submit(client, Box::new(move || order.lock().push(client)));
        }
        begin.send(()).unwrap();
        drop(pool);
        assert_eq!(*order.lock(), [1, 2, 3, 1, 3, 1, 1]);
    }

    #[test]
    fn a_client_has_its_share_and_no_more() {
        let pool = Pool::start("test", 4, 2).unwrap();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..20 {
            let (running, most, gate) = (running.clone(), most.clone(), gate.clone());
            pool.submit(
                1,
                Box::new(move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    gate.lock().recv().unwrap_or(());
                    running.fetch_sub(1, Ordering::SeqCst);
                }),
            );
        }
        // With all of client 1's share taken, another one is served at once.
        let (done, other) = std::sync::mpsc::channel();
        pool.submit(2, Box::new(move || done.send(()).unwrap()));
        other.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        for _ in 0..20 {
            open.send(()).unwrap();
        }
        drop(pool);
        assert!(most.load(Ordering::SeqCst) <= 2);
    }
}
