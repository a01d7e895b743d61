//! Lets a connection continue to receive while its thread waits for a disk.
//!
//! A connection's thread begins work that usually ends at once, but sometimes waits for a disk: a
//! flush, or a write that finds the journal full. A worker for each such request would cost two
//! wake-ups. If the receiving thread waited instead, pings, aborts and all other requests would be
//! unanswered for as long as the disk takes.
//!
//! So the thread puts the state of the connection on its [`Desk`] and does the work. If the work
//! takes more than a few milliseconds, the [`Watch`] gives the state to another thread, which
//! continues to receive. The thread that waits keeps only the work.

use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread::{self, Thread};
use std::time::Duration;

/// Time between two looks of the watch while work is in progress.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// Number of looks after which work in progress counts as waiting. It has then taken at least one
/// whole [`TICK`].
const PATIENCE: u32 = 2;
/// Number of looks without work in progress after which the watch sleeps until it is woken.
const IDLE_LOOKS: u32 = 200;

/// The state of a connection. One thread after another uses it to receive.
pub(crate) trait Receiver: Send + Sized + 'static {
    /// The duties of a thread that no longer has the connection. It settles them when its work is
    /// done.
    type Debt: Send;

    /// Name of the threads that take over.
    const THREAD: &'static str;

    /// Prepares for another thread to take over. Makes the work in progress known to the code that
    /// aborts or counts requests. Returns the duties of the thread that does the work.
    fn hand_over(&mut self) -> Self::Debt;

    /// Receives until the connection ends, or until yet another thread takes over.
    fn go_on(self: Box<Self>);
}

/// An object that the watch checks at intervals: a desk, a pool, or a budget.
pub(crate) trait Looked: Send + Sync {
    /// Checks for work that takes too long, and acts on it. `now` is the number of the look.
    /// Returns whether work is in progress.
    fn look(&self, now: u32) -> bool;
}

/// The owner of a thread that checks desks, pools and budgets at intervals. The thread ends when
/// the last reference to the watch is dropped.
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    /// Number of the current look. It is never 0.
    now: AtomicU32,
    asleep: AtomicBool,
    stopping: AtomicBool,
    looked: Mutex<Vec<Weak<dyn Looked>>>,
    thread: OnceLock<Thread>,
}

impl Watch {
    /// Starts the thread of a watch. Its name is `name`.
    pub(crate) fn start(name: &str) -> std::io::Result<Arc<Watch>> {
        let shared = Arc::new(Shared {
            now: AtomicU32::new(1),
            asleep: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            looked: Mutex::default(),
            thread: OnceLock::new(),
        });
        let theirs = shared.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || theirs.run())?;
        let _ = shared.thread.set(thread.thread().clone());
        Ok(Arc::new(Watch { shared }))
    }

    /// Adds `looked` to the objects that the watch checks. The watch does not keep it alive.
    pub(crate) fn look_after<L: Looked + 'static>(&self, looked: &Arc<L>) {
        let weak: Weak<L> = Arc::downgrade(looked);
        self.shared.looked.lock().push(weak);
    }

    /// Wakes the watch if it sleeps. A caller that begins work calls it after it has made the work
    /// visible.
    pub(crate) fn wake(&self) {
        if self.shared.asleep.load(Ordering::SeqCst)
            && let Some(thread) = self.shared.thread.get()
        {
            thread.unpark();
        }
    }

    fn now(&self) -> u32 {
        self.shared.now.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        if let Some(thread) = self.shared.thread.get() {
            thread.unpark();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut idle = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            let now = self.now.load(Ordering::Relaxed).wrapping_add(1).max(1);
            self.now.store(now, Ordering::Relaxed);
            idle = if self.look(now) { 0 } else { idle + 1 };
            if idle < IDLE_LOOKS {
                thread::park_timeout(TICK);
                continue;
            }
            // A thread that begins work first makes the work visible, and then checks whether the
            // watch sleeps. The watch does the same in the other order. So at least one of the two
            // notices the other.
            self.asleep.store(true, Ordering::SeqCst);
            if !self.look(now) && !self.stopping.load(Ordering::SeqCst) {
                thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }

    fn look(&self, now: u32) -> bool {
        let mut looked = Vec::new();
        self.looked.lock().retain(|weak| match weak.upgrade() {
            Some(there) => {
                looked.push(there);
                true
            }
            None => false,
        });
        let mut under_way = false;
        for looked in looked {
            match catch_unwind(AssertUnwindSafe(|| looked.look(now))) {
                Ok(busy) => under_way |= busy,
                Err(_) => tracing::error!("the watcher of a connection panicked"),
            }
        }
        under_way
    }
}

/// The place of a connection's state while the connection's thread does work that may wait.
pub(crate) struct Desk<R: Receiver> {
    /// The watch that checks the desk. Without it no other thread takes over.
    watch: Option<Arc<Watch>>,
    /// Number of the look at which the work began. 0 means that no work is in progress.
    since: AtomicU32,
    laid: Mutex<Laid<R>>,
}

struct Laid<R: Receiver> {
    receiver: Option<Box<R>>,
    debt: Option<R::Debt>,
}

impl<R: Receiver> Desk<R> {
    /// Makes a desk that `watch` checks.
    pub(crate) fn new(watch: Option<&Arc<Watch>>) -> Arc<Desk<R>> {
        let laid = Mutex::new(Laid { receiver: None, debt: None });
        let desk = Arc::new(Desk { watch: watch.cloned(), since: AtomicU32::new(0), laid });
        if let Some(watch) = watch {
            watch.look_after(&desk);
        }
        desk
    }

    /// Does `work`, which may wait. Returns its result and the receiver. If another thread took
    /// over, it returns the duties of this thread in place of the receiver. The desk is then of no
    /// more use, because the receiver has a new one.
    pub(crate) fn attend<T>(
        &self,
        receiver: Box<R>,
        work: impl FnOnce() -> T,
    ) -> (T, Result<Box<R>, R::Debt>) {
        let Some(watch) = &self.watch else {
            return (work(), Ok(receiver));
        };
        self.laid.lock().receiver = Some(receiver);
        self.since.store(watch.now(), Ordering::SeqCst);
        watch.wake();
        let mut unwinding = Unwinding(Some(self));
        let result = work();
        unwinding.0 = None;
        (result, self.take())
    }

    fn take(&self) -> Result<Box<R>, R::Debt> {
        self.since.store(0, Ordering::SeqCst);
        let mut laid = self.laid.lock();
        match (laid.receiver.take(), laid.debt.take()) {
            (Some(receiver), _) => Ok(receiver),
            (None, Some(debt)) => Err(debt),
            (None, None) => unreachable!("whoever takes the receiver leaves a debt, under one lock"),
        }
    }

    /// Starts a thread and gives it the receiver.
    fn pass_on(&self, laid: &mut Laid<R>) {
        let (sender, receiver) = mpsc::channel::<Box<R>>();
        let taking = move || {
            if let Ok(receiver) = receiver.recv() {
                receiver.go_on();
            }
        };
        // If no thread can be started, the receiver stays here. The next look tries again.
        if thread::Builder::new().name(R::THREAD.to_owned()).spawn(taking).is_err() {
            return;
        }
        if let Some(mut receiver) = laid.receiver.take() {
            laid.debt = Some(receiver.hand_over());
            self.since.store(0, Ordering::SeqCst);
            let _ = sender.send(receiver);
        }
    }
}

impl<R: Receiver> Looked for Desk<R> {
    fn look(&self, now: u32) -> bool {
        if self.since.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut laid = self.laid.lock();
        // Other work may have begun before the lock was taken, so `since` is read again.
        let since = self.since.load(Ordering::SeqCst);
        if since != 0 && now.wrapping_sub(since) >= PATIENCE && laid.receiver.is_some() {
            self.pass_on(&mut laid);
        }
        true
    }
}

/// Takes the receiver or the duties from a desk when the work panics, and drops them. The drop ends
/// the connection.
struct Unwinding<'a, R: Receiver>(Option<&'a Desk<R>>);

impl<R: Receiver> Drop for Unwinding<'_, R> {
    fn drop(&mut self) {
        drop(self.0.map(Desk::take));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    struct Counting {
        went_on: mpsc::Sender<u32>,
        number: u32,
    }

    impl Receiver for Counting {
        type Debt = u32;
        const THREAD: &'static str = "test";

        fn hand_over(&mut self) -> u32 {
            self.number += 1;
            self.number
        }

        fn go_on(self: Box<Self>) {
            self.went_on.send(self.number).unwrap();
        }
    }

    fn counting() -> (Box<Counting>, mpsc::Receiver<u32>) {
        let (went_on, heard) = mpsc::channel();
        (Box::new(Counting { went_on, number: 0 }), heard)
    }

    #[test]
    fn work_that_is_done_at_once_keeps_its_receiver() {
        let watch = Watch::start("watch").unwrap();
        let (mut receiver, heard) = counting();
        let desk = Desk::new(Some(&watch));
        for n in 0..1000 {
            let (result, back) = desk.attend(receiver, || n * 2);
            assert_eq!(result, n * 2);
            receiver = back.unwrap_or_else(|_| panic!("handed over for nothing"));
        }
        assert!(heard.try_recv().is_err());
    }

    #[test]
    fn another_thread_goes_on_while_work_waits() {
        let watch = Watch::start("watch").unwrap();
        let (receiver, heard) = counting();
        let desk = Desk::new(Some(&watch));
        let (waited, back) = desk.attend(receiver, || {
            let began = Instant::now();
            assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(1));
            began.elapsed()
        });
        assert!(waited >= TICK / 2, "{waited:?}");
        assert_eq!(back.err(), Some(1));
    }

    #[test]
    fn a_watch_that_sleeps_is_woken() {
        let watch = Watch::start("watch").unwrap();
        while !watch.shared.asleep.load(Ordering::SeqCst) {
            thread::sleep(TICK);
        }
        another_thread_goes_on_while_work_waits();
        let (receiver, heard) = counting();
        let desk = Desk::new(Some(&watch));
        let ((), back) = desk.attend(receiver, || {
            assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(1));
        });
        assert!(back.is_err());
    }

    #[test]
    fn a_panic_lets_go_of_the_receiver() {
        let watch = Watch::start("watch").unwrap();
        let (receiver, heard) = counting();
        let desk = Desk::new(Some(&watch));
        let panicking = || desk.attend(receiver, || panic!("a device's bug"));
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        // On a busy machine another thread may have taken over before the panic.
        let left = heard.iter().count();
        assert!(left <= 1, "nobody has it any more");
    }

    #[test]
    fn without_a_watch_the_receiver_always_comes_back() {
        let (receiver, _heard) = counting();
        let desk = Desk::new(None);
        let ((), back) = desk.attend(receiver, || thread::sleep(4 * TICK));
        assert!(back.is_ok());
    }
}
