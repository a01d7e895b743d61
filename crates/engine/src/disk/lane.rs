//! A writer that carries out disk work beside the thread that prepares it.

use crate::error::{Error, Result};
use crate::fault::died;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// A writer that carries out jobs in order, on a thread of its own or at once. After a job failed,
/// no other job begins, and every later call returns that job's error.
pub(crate) struct SerialWriter {
    worker: Option<(SyncSender<Job>, JoinHandle<Result<()>>)>,
    /// The error of the first job that failed.
    failed: Option<Error>,
}

impl SerialWriter {
    /// Makes a writer, with a thread of its own if `beside`. The simulator uses none. At most
    /// `waiting` jobs, with their buffers, wait while another one is carried out.
    pub(crate) fn new(beside: bool, waiting: usize) -> SerialWriter {
        let start = || {
            let (jobs, taken) = sync_channel::<Job>(waiting);
            let work = move || taken.into_iter().try_for_each(|job| job());
            // There may be as many threads as there can be.
            std::thread::Builder::new().spawn(work).ok().map(|thread| (jobs, thread))
        };
        SerialWriter { worker: beside.then(start).flatten(), failed: None }
    }

    /// Waits until all jobs so far are done.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let (done, wait) = sync_channel(1);
        self.run(move || {
            let _ = done.send(());
            Ok(())
        })?;
        // After a job has failed, nothing is sent any more.
        if wait.recv().is_err() { self.join() } else { Ok(()) }
    }

    /// Carries out `job` after the jobs before it. The error may be that of an earlier job.
    pub(crate) fn run(&mut self, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        match &self.worker {
            Some((jobs, _)) => match jobs.send(Box::new(job)) {
                Ok(()) => Ok(()),
                Err(_) => self.join(),
            },
            None => {
                self.told()?;
                let done = job();
                self.failed = done.clone().err();
                done
            }
        }
    }

    /// Waits until all jobs are done, and ends the thread.
    pub(crate) fn join(&mut self) -> Result<()> {
        if let Some((jobs, thread)) = self.worker.take() {
            drop(jobs);
            let done = thread.join().unwrap_or_else(|panic| Err(died("write", &*panic)));
            self.failed = done.err();
        }
        self.told()
    }

    fn told(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

/// Waits for the thread, so that no job writes after its owner has given up.
impl Drop for SerialWriter {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn in_order_and_no_further_than_the_first_failure() {
        for beside in [false, true] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let mut lane = SerialWriter::new(beside, 4);
            let job = |n: u32| {
                let seen = seen.clone();
                move || {
                    seen.lock().push(n);
                    if n == 20 { Err(Error::new(ErrorKind::Io, "job 20")) } else { Ok(()) }
                }
            };
            let ran = (0..40).try_for_each(|n| lane.run(job(n))).and_then(|()| lane.join());
            assert_eq!(ran.unwrap_err().to_string(), Error::new(ErrorKind::Io, "job 20").to_string());
            drop(lane);
            assert_eq!(*seen.lock(), (0..=20).collect::<Vec<u32>>(), "beside: {beside}");
        }
    }
    /// A failure is reported to a caller that waits for the job, to one that does not, and to every
    /// later caller: a log with a hole must not be taken for whole.
    #[test]
    fn a_failure_is_told_ever_after() {
        for beside in [false, true] {
            for waits in [false, true] {
                let mut lane = SerialWriter::new(beside, 1);
                let failed = lane.run(|| Err(Error::new(ErrorKind::Io, "the disk")));
                assert_eq!(failed.is_err(), !beside);
                if waits {
                    // The thread is gone before the next call.
                    while lane.worker.as_ref().is_some_and(|(_, thread)| !thread.is_finished()) {
                        std::thread::yield_now();
                    }
                }
                for told in [lane.settle(), lane.settle(), lane.run(|| Ok(())), lane.join(), lane.join()] {
                    assert_eq!(told.unwrap_err().to_string(), failed_by_disk(), "beside: {beside}, {waits}");
                }
            }
        }
    }

    fn failed_by_disk() -> String {
        Error::new(ErrorKind::Io, "the disk").to_string()
    }
}
