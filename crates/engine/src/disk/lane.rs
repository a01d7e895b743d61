//! Work on disks that goes on beside the thread that prepares it.

use crate::error::{Error, ErrorKind, Result};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// Carries out jobs in their order, on a thread of its own or at once. After one that failed no other is begun.
pub(crate) struct Lane {
    worker: Option<(SyncSender<Job>, JoinHandle<Result<()>>)>,
}

impl Lane {
    /// With a thread of its own if `beside`; the simulator wants none. At most `waiting` jobs, with their buffers, wait while
    /// another one is carried out.
    pub(crate) fn new(beside: bool, waiting: usize) -> Lane {
        let start = || {
            let (jobs, taken) = sync_channel::<Job>(waiting);
            let work = move || taken.into_iter().try_for_each(|job| job());
            // There may be as many threads as there can be.
            std::thread::Builder::new().spawn(work).ok().map(|thread| (jobs, thread))
        };
        Lane { worker: beside.then(start).flatten() }
    }

    /// Waits until what was handed on is done. An error is told by the next call.
    pub(crate) fn settle(&mut self) {
        let (done, wait) = sync_channel(1);
        let told = self.run(move || {
            let _ = done.send(());
            Ok(())
        });
        // Where a job has failed nobody sends any more.
        if told.is_ok() {
            let _ = wait.recv();
        }
    }

    /// Carries out `job` after those before it. An error may be that of an earlier one.
    pub(crate) fn run(&mut self, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        match &self.worker {
            None => job(),
            Some((jobs, _)) => match jobs.send(Box::new(job)) {
                Ok(()) => Ok(()),
                Err(_) => self.join(),
            },
        }
    }

    /// Waits until all of them are done.
    pub(crate) fn join(&mut self) -> Result<()> {
        let Some((jobs, thread)) = self.worker.take() else { return Ok(()) };
        drop(jobs);
        let died = |_| Err(Error::new(ErrorKind::Io, "write: the thread that does it died"));
        thread.join().unwrap_or_else(died)
    }
}

/// Nothing is written any more by somebody who has given up.
impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn in_order_and_no_further_than_the_first_failure() {
        for beside in [false, true] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let mut lane = Lane::new(beside, 4);
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
}
