//! The threads that do the engine's background work. One thread maintains, one writes back. The
//! engine only offers the work (I2).

use crate::periodic::{Waker, Worker, panic_text};
use crate::realtime;
use hindcast_engine::pool::{Health, Pool, Progress};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread may take to notice that it should end, when there is no work.
const NAP: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const REPEAT_LOG: Duration = Duration::from_secs(60);

/// The running threads.
#[derive(Debug)]
pub(crate) struct Maintenance([Worker; 2]);

impl Maintenance {
    /// Starts them.
    pub(crate) fn start(pool: Arc<Pool>) -> io::Result<Self> {
        let mut maintainer = Maintainer::default();
        let mut raised = false;
        Ok(Maintenance([
            start("maintenance", pool.clone(), move |pool| maintainer.step(pool))?,
            start("write-back", pool, move |pool| {
                if !std::mem::replace(&mut raised, true) {
                    realtime::keep_raised();
                }
                write_back(pool)
            })?,
        ]))
    }

    /// False when a thread has ended, which they do only when told or on a defect.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.iter().all(Worker::is_alive)
    }

    /// Ends them after the step they are in.
    pub(crate) fn stop(self) {
        self.0.iter().for_each(Worker::end);
        self.0.into_iter().for_each(Worker::stop);
    }
}

/// Starts a thread whose work tells how long it has nothing to do. A panic ends the thread and
/// poisons the pool: without the thread the journal fills up and clients hang.
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

/// A failed sync poisons the pool (I7), which is said elsewhere; nothing is left to do here then.
fn write_back(pool: &Pool) -> Duration {
    pool.write_back(NAP).map_or(LONGEST_PAUSE, |_| Duration::ZERO)
}

/// The state of the maintenance thread.
#[derive(Default)]
struct Maintainer {
    /// After the last failure; longer after each that follows.
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
