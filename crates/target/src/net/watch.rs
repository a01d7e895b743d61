//! Lets a connection go on receiving while its thread waits for a disk.
//!
//! A connection's thread begins work that mostly ends at once, but sometimes waits for a disk: a
//! flush, or a write that finds the journal full. A worker for each such request would cost two
//! wake-ups. If the receiving thread simply waited, then pings, aborts and all other requests would
//! stay unanswered as long as the disk does.
//!
//! So the thread lays the state of the connection on its [`Desk`] and does the work. If that takes
//! more than a few milliseconds, the [`Watch`] gives the state to another thread, which goes on
//! receiving. The thread that waits keeps the work and nothing else.

use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread::{self, Thread};
use std::time::Duration;

/// The watch looks this often while something is under way.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// Work that is under way at so many looks has taken at least one whole tick: it waits.
const PATIENCE: u32 = 2;
/// Looks that find nothing under way before the watch sleeps until it is woken.
const IDLE_LOOKS: u32 = 200;

/// The state of a connection that one thread after another receives with.
pub(crate) trait Receiver: Send + Sized + 'static {
    /// What the thread that waits has to settle when it is done, since it has the connection no
    /// more.
    type Debt: Send;

    /// What threads that take over are called.
    const THREAD: &'static str;

    /// Another thread is about to take over. Makes the work that is under way known to the code
    /// that aborts or counts requests.
    fn hand_over(&mut self) -> Self::Debt;

    /// Receives until the connection ends, or until it is handed over again.
    fn go_on(self: Box<Self>);
}

/// What the watch looks at.
pub(crate) trait Looked: Send + Sync {
    /// Sees to what takes too long. Tells whether anything is under way.
    fn look(&self, now: u32) -> bool;
}

/// A thread that looks after desks and pools. It ends when the last reference to the watch goes.
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    /// Looks so far; never 0.
    now: AtomicU32,
    asleep: AtomicBool,
    stopping: AtomicBool,
    looked: Mutex<Vec<Weak<dyn Looked>>>,
    thread: OnceLock<Thread>,
}

impl Watch {
    /// Starts the thread.
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

    /// Looks after this from now on, for as long as it is there.
    pub(crate) fn look_after<L: Looked + 'static>(&self, looked: &Arc<L>) {
        let weak: Weak<L> = Arc::downgrade(looked);
        self.shared.looked.lock().push(weak);
    }

    /// Something is under way that may need to be looked after.
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
            // Who begins something says so first and looks whether the watch sleeps after; here it
            // is the other way round, so that one of the two sees the other.
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

/// Where a connection's thread lays the connection's state while it does work that may wait.
pub(crate) struct Desk<R: Receiver> {
    /// Without a watch no other thread ever takes over.
    watch: Option<Arc<Watch>>,
    /// The look at which the work began; 0 if there is none.
    since: AtomicU32,
    laid: Mutex<Laid<R>>,
}

struct Laid<R: Receiver> {
    receiver: Option<Box<R>>,
    debt: Option<R::Debt>,
}

impl<R: Receiver> Desk<R> {
    /// A desk that `watch` looks after.
    pub(crate) fn new(watch: Option<&Arc<Watch>>) -> Arc<Desk<R>> {
        let laid = Mutex::new(Laid { receiver: None, debt: None });
        let desk = Arc::new(Desk { watch: watch.cloned(), since: AtomicU32::new(0), laid });
        if let Some(watch) = watch {
            watch.look_after(&desk);
        }
        desk
    }

    /// Does `work`, which may wait. The receiver comes back, or what is owed where another thread
    /// has it now: then this desk is of no more use, and the receiver has got another one.
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

    /// Lets another thread have the receiver, if there is one to have.
    fn pass_on(&self, laid: &mut Laid<R>) {
        let (sender, receiver) = mpsc::channel::<Box<R>>();
        let taking = move || {
            if let Ok(receiver) = receiver.recv() {
                receiver.go_on();
            }
        };
        // Without a thread it stays where it is, and is tried again at the next look.
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
        // Again, since other work may have begun meanwhile.
        let since = self.since.load(Ordering::SeqCst);
        if since != 0 && now.wrapping_sub(since) >= PATIENCE && laid.receiver.is_some() {
            self.pass_on(&mut laid);
        }
        true
    }
}

/// The work panicked: the connection ends, and what is owed is settled by letting go of it.
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
        // On a busy machine another thread has gone on before the panic was over.
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
