//! The few threads that carry out what may block.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads and one queue, in order of arrival. The queue is bounded by those who submit: a connection
/// has a limited number of jobs in flight.
pub struct Pool {
    shared: Option<Arc<Shared>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    stopping: bool,
}

impl Pool {
    /// Starts `threads` threads, called `name` and a number.
    pub fn start(name: &str, threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared::default());
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

    pub(crate) fn submit(&self, job: Job) {
        match &self.shared {
            None => job(),
            Some(shared) => {
                shared.state.lock().jobs.push_back(job);
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
        let job = {
            let mut state = shared.state.lock();
            loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None if state.stopping => return,
                    None => shared.wake.wait(&mut state),
                }
            }
        };
        // A device that panics ends the connection it served (the job's guard sees to that), not this thread.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a request's worker panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn jobs_are_done_even_after_a_panic_and_at_the_end() {
        let pool = Pool::start("test", 2).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for n in 0..100 {
            let done = done.clone();
            pool.submit(Box::new(move || {
                assert!(n % 10 != 3, "a device's bug");
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 90);
    }
}
