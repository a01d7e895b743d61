//! Threads that repeat a piece of work ([`Worker`]): how they sleep, wake up and stop.

use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Debug, Default)]
struct Signals {
    stopping: bool,
    /// Whether the worker was woken since its last sleep.
    woken: bool,
}

/// Wakes a worker. It can be made before the worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waker(Arc<(Mutex<Signals>, Condvar)>);

impl Waker {
    /// Ends the worker's sleep. If the worker is working, its next sleep ends at once.
    pub(crate) fn wake(&self) {
        self.0.0.lock().woken = true;
        self.0.1.notify_all();
    }

    /// Returns whether the worker has to end. Work that takes long checks this regularly.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.0.lock().stopping
    }

    fn stop(&self) {
        self.0.0.lock().stopping = true;
        self.0.1.notify_all();
    }

    fn sleep(&self, pause: Duration) {
        let mut signals = self.0.0.lock();
        self.0.1.wait_while_for(&mut signals, |s| !s.stopping && !s.woken, pause);
        signals.woken = false;
    }
}

/// A thread that works, sleeps, and works again. A stop or drop ends it after its current work.
///
/// A panic in the work is logged. The work is repeated after a sleep.
#[derive(Debug)]
pub(crate) struct Worker {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that does `work` at once, and again after each `interval`.
    pub(crate) fn start(
        name: &str,
        interval: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Worker> {
        Worker::start_paced(name, interval, Waker::default(), move || {
            work();
            ControlFlow::Continue(interval)
        })
    }

    /// Starts a thread that does `work` at once. It repeats the work after the time that the work
    /// returns, or when `waker` wakes it. `Break` ends the thread. After a panic it sleeps for
    /// `after_panic`.
    pub(crate) fn start_paced(
        name: &str,
        after_panic: Duration,
        waker: Waker,
        mut work: impl FnMut() -> ControlFlow<(), Duration> + Send + 'static,
    ) -> io::Result<Worker> {
        let (theirs, own_name) = (waker.clone(), name.to_owned());
        let run = move || {
            while !theirs.is_stopping() {
                let pause = match catch_unwind(AssertUnwindSafe(&mut work)) {
                    Ok(ControlFlow::Continue(pause)) => pause,
                    Ok(ControlFlow::Break(())) => return,
                    Err(panic) => {
                        let panic = panic_text(&*panic);
                        tracing::error!(thread = own_name, panic, "the work of a thread panicked");
                        after_panic
                    }
                };
                theirs.sleep(pause);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Worker { waker, thread: Some(thread) })
    }

    /// Returns whether the thread runs. It ends when the work ends it, or on request.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Asks the thread to end, and does not wait for it.
    pub(crate) fn end(&self) {
        self.waker.stop();
    }

    /// Ends the thread, and waits until it has ended.
    pub(crate) fn stop(self) {}
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
        let Some(thread) = self.thread.take() else { return };
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.join().is_err() {
            tracing::error!("the {name} thread panicked (the log has its message)");
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(3600);
    /// Time limit that is long enough for a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Makes a worker that sleeps for `pause` each time, and a channel with the numbers of its
    /// rounds.
    fn counting(pause: Duration) -> (Worker, Waker, Receiver<u32>) {
        let (tell, told) = channel();
        let (waker, mut round) = (Waker::default(), 0);
        let work = move || {
            round += 1;
            tell.send(round).unwrap();
            ControlFlow::Continue(pause)
        };
        let worker = Worker::start_paced("counting", LONG, waker.clone(), work).unwrap();
        (worker, waker, told)
    }

    #[test]
    fn a_sleep_ends_by_time_by_a_waker_and_by_a_stop() {
        let (worker, _, told) = counting(Duration::from_millis(1));
        assert!((1..=3).all(|round| told.recv_timeout(PATIENCE) == Ok(round)));
        worker.stop();

        let (worker, waker, told) = counting(LONG);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
        waker.wake();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
        let begun = Instant::now();
        worker.stop();
        assert!(begun.elapsed() < PATIENCE, "it slept on");
        assert!(told.recv().is_err(), "a stop is no round");
    }

    /// A change during a round is seen by the next round.
    #[test]
    fn a_worker_that_is_woken_at_work_does_not_sleep() {
        let (tell, told) = channel();
        let waker = Waker::default();
        let own = waker.clone();
        let mut round = 0;
        let work = move || {
            round += 1;
            if round == 1 {
                own.wake();
            }
            tell.send(round).unwrap();
            ControlFlow::Continue(LONG)
        };
        let worker = Worker::start_paced("woken", LONG, waker, work).unwrap();
        assert_eq!((told.recv_timeout(PATIENCE), told.recv_timeout(PATIENCE)), (Ok(1), Ok(2)));
        drop(worker);
        assert!(told.recv().is_err());
    }

    #[test]
    fn work_goes_on_after_a_panic() {
        let (tell, told) = channel();
        let mut round = 0;
        let work = move || {
            round += 1;
            tell.send(round).unwrap();
            assert!(round != 1, "the first round panics");
        };
        let worker = Worker::start("panics", Duration::from_millis(1), work).unwrap();
        assert_eq!((told.recv_timeout(PATIENCE), told.recv_timeout(PATIENCE)), (Ok(1), Ok(2)));
        assert!(worker.is_alive());
        worker.stop();
    }

    #[test]
    fn work_can_end_its_thread_and_sees_a_stop() {
        let worker = Worker::start_paced("ends", LONG, Waker::default(), || ControlFlow::Break(())).unwrap();
        let begun = Instant::now();
        while worker.is_alive() {
            assert!(begun.elapsed() < PATIENCE, "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }

        let waker = Waker::default();
        let seen = waker.clone();
        let work = move || {
            while !seen.is_stopping() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ControlFlow::Continue(LONG)
        };
        let worker = Worker::start_paced("long", LONG, waker, work).unwrap();
        worker.end();
        worker.stop();
    }

    #[test]
    fn a_panic_is_told_by_its_text() {
        for (panic, text) in [
            (catch_unwind(|| panic!("a text")), "a text"),
            (catch_unwind(|| panic!("number {}", 7)), "number 7"),
            (catch_unwind(|| std::panic::panic_any(7)), "without a message"),
        ] {
            let panic: Box<dyn Any + Send> = panic.unwrap_err();
            assert_eq!(panic_text(&*panic), text);
        }
    }
}
