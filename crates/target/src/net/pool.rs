//! Pools of worker threads ([`WorkerPool`]), which carry out requests that may block.

use super::watch::{Looked, Watch};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// Time without work after which a thread beyond the usual number ends.
const LINGER: Duration = Duration::from_secs(10);

/// A pool of worker threads, which carry out jobs that may block. Clients take turns, one job each,
/// so a client with many jobs delays others by one job at a time. The jobs of one client begin in
/// the order of their arrival. The queue has no limit of its own: the code that submits jobs limits
/// how many each connection has in flight. A pool that is [watched](WorkerPool::watched) gets more
/// threads while all its threads wait for a disk.
pub struct WorkerPool {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    own: Weak<Shared>,
    name: String,
    state: Mutex<State>,
    wake: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Maximum number of jobs of one client that run at a time.
    share: usize,
    /// Number of threads that the pool always has. `limit` is the maximum number of a watched pool.
    base: usize,
    limit: OnceLock<usize>,
    watch: OnceLock<Weak<Watch>>,
}

#[derive(Default)]
struct State {
    /// Number of threads. `idle` is the number of those that wait for a job.
    threads: usize,
    idle: usize,
    /// Number of jobs begun so far. `seen` is that number at the last look of the watch.
    begun: u64,
    seen: u64,
    /// The clients that have jobs in the pool, by number.
    clients: HashMap<u64, Client>,
    /// The numbers of the clients with a job that may begin, in the order of their turns. Each
    /// client is in it at most once.
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
    /// Gives the client `id` a turn if it has a job that may begin and no turn. Removes the client
    /// if it has no jobs. Returns whether it got a turn.
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
        self.begun += 1;
        self.settle(id, share);
        Some((id, job))
    }
}

impl WorkerPool {
    /// Starts `threads` threads. Their names are `name` and a number. Jobs of one client use at
    /// most `share` threads at a time.
    pub fn start(name: &str, threads: usize, share: usize) -> std::io::Result<WorkerPool> {
        let base = threads.max(1);
        let shared = Arc::new_cyclic(|own| Shared {
            own: own.clone(),
            name: name.to_owned(),
            state: Mutex::default(),
            wake: Condvar::new(),
            threads: Mutex::default(),
            share: share.max(1),
            base,
            limit: OnceLock::new(),
            watch: OnceLock::new(),
        });
        let pool = WorkerPool { shared: Some(shared.clone()) };
        for _ in 0..base {
            shared.add_thread()?;
        }
        Ok(pool)
    }

    /// Makes `watch` add threads, up to `limit`, while jobs wait and all threads of the pool are
    /// busy with jobs that do not end.
    pub(crate) fn watched(self, watch: &Arc<Watch>, limit: usize) -> WorkerPool {
        if let Some(shared) = &self.shared {
            let _ = shared.limit.set(limit.max(shared.base));
            let _ = shared.watch.set(Arc::downgrade(watch));
            watch.look_after(shared);
        }
        self
    }

    /// Makes a pool without threads, for tests that must be repeatable. The thread that submits a
    /// job carries it out.
    pub fn inline() -> WorkerPool {
        WorkerPool { shared: None }
    }

    pub(crate) fn submit(&self, client: u64, job: Job) {
        match &self.shared {
            None => job(),
            Some(shared) => {
                let mut state = shared.state.lock();
                state.clients.entry(client).or_default().jobs.push_back(job);
                state.settle(client, shared.share);
                let all_busy = state.idle < state.turns.len();
                drop(state);
                shared.wake.notify_one();
                if all_busy && let Some(watch) = shared.watch.get().and_then(Weak::upgrade) {
                    watch.wake();
                }
            }
        }
    }
}

impl Shared {
    fn add_thread(self: &Arc<Self>) -> std::io::Result<()> {
        let number = {
            let mut state = self.state.lock();
            state.threads += 1;
            state.threads - 1
        };
        let shared = self.clone();
        let spawned =
            thread::Builder::new().name(format!("{}-{number}", self.name)).spawn(move || work(&shared));
        let thread = spawned.inspect_err(|_| self.state.lock().threads -= 1)?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

impl Looked for Shared {
    /// Adds a thread if a job waits and no job has begun since the last look. Every thread then
    /// waits for something. Returns whether a job waits.
    fn look(&self, _: u32) -> bool {
        let (waits, grow) = {
            let mut state = self.state.lock();
            let waits = !state.turns.is_empty();
            let stuck = waits && state.idle == 0 && state.seen == state.begun;
            state.seen = state.begun;
            (waits, stuck && !state.stopping && state.threads < self.limit.get().copied().unwrap_or(0))
        };
        if grow
            && let Some(shared) = self.own.upgrade()
            && let Err(e) = shared.add_thread()
        {
            tracing::debug!(error = %e, "no more threads could be started for waiting requests");
        }
        waits
    }
}

impl Drop for WorkerPool {
    /// Waits until all submitted jobs are done and the threads have ended.
    fn drop(&mut self) {
        let Some(shared) = &self.shared else {
            return;
        };
        shared.state.lock().stopping = true;
        shared.wake.notify_all();
        let current = thread::current().id();
        let threads = std::mem::take(&mut *shared.threads.lock());
        for thread in threads.into_iter().filter(|t| t.thread().id() != current) {
            let _ = thread.join();
        }
    }
}

/// Waits for the next job. Returns it with the number of its client. Returns `None` if the calling
/// thread must end.
fn next(shared: &Shared) -> Option<(u64, Job)> {
    let mut state = shared.state.lock();
    loop {
        if let Some(next) = state.next(shared.share) {
            if !state.turns.is_empty() {
                shared.wake.notify_one(); // a turn must never be left without a thread that looks for it
            }
            return Some(next);
        }
        // A job that has no turn waits for its client's share. The thread that runs a job of that
        // client begins it.
        if state.stopping {
            break;
        }
        state.idle += 1;
        let extra = state.threads > shared.base;
        let idle_for_long = match extra {
            true => shared.wake.wait_for(&mut state, LINGER).timed_out(),
            false => {
                shared.wake.wait(&mut state);
                false
            }
        };
        state.idle -= 1;
        if idle_for_long && state.turns.is_empty() && state.threads > shared.base {
            break;
        }
    }
    state.threads -= 1;
    None
}

fn work(shared: &Shared) {
    while let Some((client, job)) = next(shared) {
        // If a device panics, the guard of the job ends the connection. This thread continues.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("the worker of a request panicked");
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
        let pool = WorkerPool::start("test", 2, 2).unwrap();
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
        let pool = WorkerPool::start("test", 1, 1).unwrap();
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
    fn threads_that_all_wait_are_joined_by_others() {
        let watch = Watch::start("watch").unwrap();
        let pool = WorkerPool::start("test", 2, 8).unwrap().watched(&watch, 4);
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for client in 0..3 {
            let gate = gate.clone();
            pool.submit(client, Box::new(move || gate.lock().recv().unwrap_or(())));
        }
        let (done, other) = std::sync::mpsc::channel();
        pool.submit(9, Box::new(move || done.send(()).unwrap()));
        other.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(pool.shared.as_ref().unwrap().state.lock().threads <= 4);
        drop(open);
        drop(pool);
    }

    #[test]
    fn a_client_has_its_share_and_no_more() {
        let pool = WorkerPool::start("test", 4, 2).unwrap();
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
        // Client 1 uses its whole share. Another client is served at once.
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
