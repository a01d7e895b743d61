//! Tasks in progress ([`Active`]), and waiters for their end.

use crate::scsi;
use parking_lot::Mutex;
use std::sync::Arc;

/// A function that is called when its last owner drops it.
pub(super) struct OnEnd(Option<Box<dyn FnOnce() + Send>>);

impl OnEnd {
    pub(super) fn new(f: impl FnOnce() + Send + 'static) -> Arc<Mutex<OnEnd>> {
        Arc::new(Mutex::new(OnEnd(Some(Box::new(f)))))
    }
}

impl OnEnd {
    /// Cancels the call.
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

/// A reference to an [`OnEnd`]. Every task that must end first keeps one.
pub(super) type Waiter = Arc<Mutex<OnEnd>>;

/// A task that is in progress longer than the receive that brought it: it waits for data, or a
/// worker carries it out.
pub(super) struct Active {
    pub(super) itt: u32,
    pub(super) lun: u64,
    pub(super) cid: u16,
    pub(super) counted: bool,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether a thread carries out the task. In that case that thread ends the task.
    running: bool,
    /// Whether the task may change the medium, or something that other initiators see, while a
    /// thread carries it out.
    changes: bool,
    pub(super) aborted: bool,
    pub(super) over: bool,
    scsi: Option<Arc<scsi::Task>>,
    pub(super) waiters: Vec<Waiter>,
}

impl Active {
    /// Registers that a thread carries out the task. Returns false if the task was aborted before.
    /// `changes` states whether the task may change the medium, or something that other initiators
    /// see.
    pub(super) fn run(&self, scsi: Option<Arc<scsi::Task>>, changes: bool) -> bool {
        let mut state = self.state.lock();
        state.running = !state.aborted;
        state.changes = changes;
        state.scsi = scsi;
        state.running
    }

    /// Aborts the task, so that it is not answered. Returns `None` if the task has ended already.
    /// Returns `Some(true)` if the caller must wait for the task, because a thread carries it out
    /// and may still change something. Returns `Some(false)` otherwise. In that case the caller
    /// ends the task. A flush changes nothing, so it may go on after that.
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
