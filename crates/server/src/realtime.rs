//! Priorities of threads when the processors are busy.
//!
//! When threads serve clients at full speed, another thread that wakes up waits for a processor,
//! several milliseconds at times (measured as `run_delay` of the thread that syncs for a snapshot).
//! A few threads need the processor for microseconds only, and a client waits for each of them.
//! These threads run round robin at the lowest real-time priority (sched(7)).
//!
//! The server needs permission for that: it runs as root, or has CAP_SYS_NICE, or has a limit of
//! RLIMIT_RTPRIO. Without permission all threads keep their normal priority.

use preempt_rt::sched::{Pid, Scheduler, SchedulerParams, get_scheduler, set_scheduler};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// Priority of raised threads. It is lower than that of the kernel's and other programs' real-time
/// threads.
const PRIORITY: i32 = 1;

/// Whether this process has raised any thread. A real-time priority that an operator has set for
/// the whole process stays.
static RAISES: AtomicBool = AtomicBool::new(false);

/// Proof that the current thread is raised. A drop, on the same thread, lowers it.
#[must_use]
pub(crate) struct Raised {
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Raised {
    fn drop(&mut self) {
        lower();
    }
}

/// Raises the priority of the current thread, if that is allowed. Threads that it starts are raised
/// too, until they [`lower`] themselves.
pub(crate) fn raise() -> Option<Raised> {
    // Not `then_some`: one that is made and dropped at once would lower a thread that was raised
    // before.
    keep_raised().then(|| Raised { on_this_thread: PhantomData })
}

/// Raises the priority of the current thread until its end. Returns whether that succeeded.
pub(crate) fn keep_raised() -> bool {
    let raised = current() == Some(Scheduler::SCHED_NORMAL) && set(Scheduler::SCHED_RR, PRIORITY);
    if raised {
        RAISES.store(true, Ordering::Relaxed);
    }
    raised
}

/// Does work that may take long at normal priority, on a thread that may be raised otherwise.
pub(crate) fn lowered<T>(work: impl FnOnce() -> T) -> T {
    struct Again(bool);
    impl Drop for Again {
        fn drop(&mut self) {
            if self.0 {
                keep_raised();
            }
        }
    }
    let _again = Again(lower());
    work()
}

/// Gives the current thread the normal priority, whatever thread started it. Returns whether it was
/// raised.
pub(crate) fn lower() -> bool {
    RAISES.load(Ordering::Relaxed)
        && current() == Some(Scheduler::SCHED_RR)
        && set(Scheduler::SCHED_NORMAL, 0)
}

fn current() -> Option<Scheduler> {
    get_scheduler(Pid::current_thread()).ok()
}

fn set(scheduler: Scheduler, priority: i32) -> bool {
    set_scheduler(Pid::current_thread(), scheduler, SchedulerParams { priority }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_raised_for_a_while_and_alone() {
        // A thread of its own: what it becomes is nothing to other tests.
        let outcome = std::thread::spawn(|| {
            let before = current();
            let raised = raise();
            let expected = if raised.is_some() { Some(Scheduler::SCHED_RR) } else { before };
            assert_eq!(current(), expected);
            assert!(raise().is_none(), "raised twice");
            assert_eq!(current(), expected);
            let started = std::thread::spawn(|| {
                let inherited = current();
                let ordinary = lowered(current);
                (inherited, ordinary, current(), lower(), current(), lowered(current), current())
            });
            let was = raised.is_some();
            assert_eq!(started.join().unwrap(), (expected, before, expected, was, before, before, before));
            drop(raised);
            assert_eq!(current(), before);
            assert_eq!(keep_raised(), was);
            assert_eq!(current(), expected);
        });
        outcome.join().unwrap();
    }
}
