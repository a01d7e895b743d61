//! Tasks under way ([`Active`]), and what waits for their end.

use crate::scsi;
use parking_lot::Mutex;
use std::sync::Arc;

/// Called when the last of those who wait for something is done.
pub(super) struct OnEnd(Option<Box<dyn FnOnce() + Send>>);

impl OnEnd {
    pub(super) fn new(f: impl FnOnce() + Send + 'static) -> Arc<Mutex<OnEnd>> {
        Arc::new(Mutex::new(OnEnd(Some(Box::new(f)))))
    }
}

impl OnEnd {
    /// It is not called after all.
    pub(super) fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for OnEnd {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

/// Kept by every task that has to end first.
pub(super) type Waiter = Arc<Mutex<OnEnd>>;

/// A task that outlives the receive that brought it: it waits for data, or a worker is at it.
pub(super) struct Active {
    pub(super) itt: u32,
    pub(super) lun: u64,
    pub(super) cid: u16,
    pub(super) counted: bool,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// A thread is at it, so that it ends when that thread says so.
    running: bool,
    /// It may change the medium until then.
    changes: bool,
    pub(super) aborted: bool,
    pub(super) over: bool,
    scsi: Option<Arc<scsi::Task>>,
    pub(super) waiters: Vec<Waiter>,
}

impl Active {
    /// A thread begins; false if the task was aborted meanwhile. `changes`: it may change the
    /// medium, or something that other initiators see.
    pub(super) fn run(&self, scsi: Option<Arc<scsi::Task>>, changes: bool) -> bool {
        let mut state = self.state.lock();
        state.running = !state.aborted;
        state.changes = changes;
        state.scsi = scsi;
        state.running
    }

    /// Aborts the task: it is not answered. `None` if it has ended already. Otherwise tells whether
    /// the caller has to wait for it, because a thread works on it and it might still change
    /// something. A flush may go on for as long as it likes, because its end is reported to no
    /// initiator. For the session it is over.
    pub(super) fn abort(&self, waiter: &Waiter) -> Option<bool> {
        let mut state = self.state.lock();
        if state.over {
            return None;
        }
        state.aborted = true;
        state.waiters.push(waiter.clone());
        if let Some(task) = &state.scsi {
            task.abort();
        }
        Some(state.running && state.changes)
    }
}
