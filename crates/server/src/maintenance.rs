//! The thread that does the engine's background work (I2: the engine only offers it).

use hindcast_engine::pool::{Health, Pool, Progress};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread may take to notice that it should end, when there is no work.
const NAP: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REPEAT_LOG: Duration = Duration::from_secs(60);

/// The running thread.
#[derive(Debug)]
pub(crate) struct Maintenance {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Maintenance {
    /// Starts it.
    pub(crate) fn start(pool: Arc<Pool>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread =
            std::thread::Builder::new().name("maintenance".into()).spawn(move || run(&pool, &seen))?;
        Ok(Maintenance { stop, thread })
    }

    /// False when the thread has ended, which it does only when told or on a defect.
    pub(crate) fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Ends it after the step it is in.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        if self.thread.join().is_err() {
            tracing::error!("the maintenance thread had ended by a defect");
        }
    }
}

fn run(pool: &Pool, stop: &AtomicBool) {
    let mut pause = NAP;
    let mut last_logged: Option<(String, Instant)> = None;
    while !stop.load(Ordering::Acquire) {
        match pool.maintain() {
            Ok(Progress::Worked) => pause = NAP,
            Ok(Progress::Idle) => {
                pause = NAP;
                pool.wait_for_work(NAP);
            }
            Err(error) => {
                // A full or failing disk fails the same way again and again: say so once a minute, and slow down. A
                // poisoned pool (I7) has nothing left to do until it is reopened.
                let text = error.to_string();
                let repeated =
                    last_logged.as_ref().is_some_and(|(old, at)| *old == text && at.elapsed() < REPEAT_LOG);
                if !repeated {
                    tracing::error!(%error, "background work failed");
                    last_logged = Some((text, Instant::now()));
                }
                let poisoned = matches!(pool.health(), Health::Poisoned(_));
                pause = if poisoned { LONGEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                sleep_unless(stop, pause);
            }
        }
    }
}

fn sleep_unless(stop: &AtomicBool, pause: Duration) {
    let end = Instant::now() + pause;
    while !stop.load(Ordering::Acquire) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}
