//! The threads that do the engine's background work. One thread maintains, one writes back. The
//! engine only offers the work (I2).

use crate::realtime;
use hindcast_engine::pool::{Health, Pool, Progress};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread may take to notice that it should end, when there is no work.
const NAP: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REPEAT_LOG: Duration = Duration::from_secs(60);

/// The running threads.
#[derive(Debug)]
pub(crate) struct Maintenance {
    stop: Arc<AtomicBool>,
    threads: [JoinHandle<()>; 2],
}

impl Maintenance {
    /// Starts them.
    pub(crate) fn start(pool: Arc<Pool>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |name: &str, run: fn(&Pool, &AtomicBool)| {
            let (pool, stop, of) = (pool.clone(), stop.clone(), name.to_owned());
            let work = move || guarded(&of, &pool, || run(&pool, &stop));
            std::thread::Builder::new().name(name.into()).spawn(work)
        };
        let threads = [start("maintenance", maintain)?, start("write-back", write_back)?];
        Ok(Maintenance { stop, threads })
    }

    /// False when a thread has ended, which they do only when told or on a defect.
    pub(crate) fn is_alive(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends them after the step they are in.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!("the {name} thread panicked (the log has its message)");
            }
        }
    }
}

/// Runs a thread's work. A panic of it poisons the pool: without the thread the journal fills up
/// and clients hang.
fn guarded(name: &str, pool: &Pool, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        tracing::error!(thread = name, panic = text, "a thread that the pool depends on panicked");
        pool.poison(&format!("the {name} thread panicked: {text}"));
    }
}

/// A failed sync poisons the pool (I7), which is said elsewhere; nothing is left to do here then.
fn write_back(pool: &Pool, stop: &AtomicBool) {
    let _raised = realtime::raise();
    while !stop.load(Ordering::Acquire) {
        if pool.write_back(NAP).is_err() {
            sleep_unless(stop, LONGEST_PAUSE);
        }
    }
}

fn maintain(pool: &Pool, stop: &AtomicBool) {
    let mut pause = NAP;
    let mut last_logged: Option<(String, Instant)> = None;
    let mut errors = PvErrors::default();
    while !stop.load(Ordering::Acquire) {
        errors.log(pool);
        match pool.maintain() {
            Ok(Progress::Worked) => pause = NAP,
            Ok(Progress::Idle) => {
                pause = NAP;
                pool.wait_for_work(NAP);
            }
            Err(error) => {
                // A full or failing disk fails the same way again and again: say so once a minute,
                // and slow down. A poisoned pool (I7) has nothing left to do until it is reopened.
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

/// Logs what physical volumes failed with. Reads: when there are more, and not more often than once
/// a minute for each. A write: once.
#[derive(Default)]
struct PvErrors {
    /// By physical volume: how many reads were logged, and when.
    logged: BTreeMap<u32, (u64, Instant)>,
    /// Physical volumes that are not written to any more.
    failed: BTreeSet<u32>,
    looked: Option<Instant>,
}

impl PvErrors {
    fn log(&mut self, pool: &Pool) {
        if self.looked.is_some_and(|at| at.elapsed() < LONGEST_PAUSE) {
            return;
        }
        self.looked = Some(Instant::now());
        for pv in pool.pvs() {
            if let Some(failure) = pv.failure.filter(|_| self.failed.insert(pv.id)) {
                tracing::error!(
                    pv = pv.path,
                    failure,
                    "a physical volume has failed; the server writes no more data to it"
                );
            }
            if pv.read_errors == 0 {
                continue;
            }
            let known = self.logged.get(&pv.id);
            if known.is_none_or(|(count, at)| *count != pv.read_errors && at.elapsed() >= REPEAT_LOG) {
                tracing::error!(
                    pv = pv.path,
                    errors = pv.read_errors,
                    last = pv.last_read_error,
                    "reads of a physical volume fail"
                );
                self.logged.insert(pv.id, (pv.read_errors, Instant::now()));
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
