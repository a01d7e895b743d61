//! The threads that do the engine's background work. One thread maintains the pool, one writes
//! back, one scrubs. The engine only offers the work, so that one thread can call all of it (I2).

use crate::periodic::{Waker, Worker, panic_text};
use crate::realtime;
use hindcast_engine::pool::{Health, Pool, Progress};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time in which a thread without work notices that it should end.
const NAP: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REPEAT_LOG: Duration = Duration::from_secs(60);

/// The running threads.
#[derive(Debug)]
pub(crate) struct Maintenance([Worker; 3]);

impl Maintenance {
    /// Starts the threads.
    pub(crate) fn start(pool: Arc<Pool>) -> io::Result<Self> {
        let mut maintainer = Maintainer::default();
        let mut raised = false;
        Ok(Maintenance([
            start("maintenance", pool.clone(), move |pool| maintainer.step(pool))?,
            start("write-back", pool.clone(), move |pool| {
                if !std::mem::replace(&mut raised, true) {
                    realtime::keep_raised();
                }
                write_back(pool)
            })?,
            start("scrub", pool, scrub)?,
        ]))
    }

    /// Returns whether all threads run. A thread ends only on request or because of a defect.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.iter().all(Worker::is_alive)
    }

    /// Ends the threads after their current step.
    pub(crate) fn stop(self) {
        self.0.iter().for_each(Worker::end);
        self.0.into_iter().for_each(Worker::stop);
    }
}

/// Starts a thread whose work returns the time until it has work again. A panic ends the thread and
/// poisons the pool: without the thread the journal would fill up and clients would hang.
fn start(
    name: &'static str,
    pool: Arc<Pool>,
    mut work: impl FnMut(&Pool) -> Duration + Send + 'static,
) -> io::Result<Worker> {
    Worker::start_paced(name, LONGEST_PAUSE, Waker::default(), move || {
        match catch_unwind(AssertUnwindSafe(|| work(&pool))) {
            Ok(pause) => ControlFlow::Continue(pause),
            Err(panic) => {
                let text = panic_text(&*panic);
                tracing::error!(thread = name, panic = text, "a thread that the pool depends on panicked");
                pool.poison(&format!("the {name} thread panicked: {text}"));
                ControlFlow::Break(())
            }
        }
    })
}

/// Writes back once. A failed sync poisons the pool (I7). The engine reports that, and this thread
/// then has no more work.
fn write_back(pool: &Pool) -> Duration {
    pool.write_back(NAP).map_or(LONGEST_PAUSE, |_| Duration::ZERO)
}

/// Takes a step of the scrub. After an error, the next step comes after a pause.
fn scrub(pool: &Pool) -> Duration {
    pool.scrub_step().unwrap_or_else(|error| {
        if !matches!(pool.health(), Health::Poisoned(_)) {
            tracing::warn!(%error, "a step of the scrub failed");
        }
        REPEAT_LOG
    })
}

/// The state of the maintenance thread.
#[derive(Default)]
struct Maintainer {
    /// Pause after the last failure. It grows with each further failure.
    pause: Option<Duration>,
    /// The last failure that was logged, and when.
    last_logged: Option<(String, Instant)>,
    errors: PvErrors,
}

impl Maintainer {
    fn step(&mut self, pool: &Pool) -> Duration {
        self.errors.log(pool);
        match pool.maintain() {
            Ok(progress) => {
                self.pause = None;
                if progress == Progress::Idle {
                    pool.wait_for_work(NAP);
                }
                Duration::ZERO
            }
            Err(error) => {
                // A full or failing disk fails the same way again and again: say so once a minute,
                // and slow down. A poisoned pool (I7) has nothing left to do until it is reopened.
                let text = error.to_string();
                let logged = self.last_logged.as_ref();
                if !logged.is_some_and(|(old, at)| *old == text && at.elapsed() < REPEAT_LOG) {
                    tracing::error!(%error, "background work failed");
                    self.last_logged = Some((text, Instant::now()));
                }
                let poisoned = matches!(pool.health(), Health::Poisoned(_));
                let longer = (self.pause.unwrap_or(NAP) * 2).min(LONGEST_PAUSE);
                let pause = if poisoned { LONGEST_PAUSE } else { longer };
                self.pause = Some(pause);
                pause
            }
        }
    }
}

/// Logs errors of physical volumes. Read errors are logged when there are more, at most once a
/// minute for each physical volume. A write error is logged once.
#[derive(Default)]
struct PvErrors {
    /// For each physical volume: the number of read errors at the last log message, and the time of
    /// that message.
    logged: BTreeMap<u32, (u64, Instant)>,
    /// Physical volumes that have failed and are not written to any more.
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
