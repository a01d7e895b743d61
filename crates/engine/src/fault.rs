//! The state that makes a pool refuse new work after a fault (I7).

use crate::error::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest number of different damages that are remembered by name.
const MAX_DAMAGES: usize = 64;

/// The fault of an open pool. It is set once, for the life of the pool: after a failed write or
/// sync of the journal, a failed commit, a panic of a thread that was changing state, or damage
/// found by the destager. From then on the pool accepts nothing new.
#[derive(Default)]
pub(crate) struct Fault {
    poisoned: AtomicBool,
    reason: Mutex<Option<String>>,
    damages: Mutex<BTreeSet<String>>,
}

impl Fault {
    /// Fails when the pool is poisoned.
    pub(crate) fn check(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) { Err(self.error()) } else { Ok(()) }
    }

    /// Poisons the pool because of `cause`. The first cause stays. Returns the error for waiting
    /// requests.
    pub(crate) fn poison(&self, cause: &Error) -> Error {
        let told = || match cause.kind() {
            ErrorKind::ReadOnly => cause.to_string(),
            _ => format!("{cause}; remove the cause, then restart the server: it recovers from the journal"),
        };
        let reason = self.reason.lock().get_or_insert_with(told).clone();
        if !self.poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!(%reason, "the pool is poisoned: it refuses writes until it is reopened");
        }
        self.error()
    }

    /// Poisons the pool if the thread panics before the alarm is dropped. `work` completes "a panic
    /// while …".
    pub(crate) fn alarm(&self, work: &'static str) -> Alarm<'_> {
        Alarm { fault: self, work, unwinding: std::thread::panicking() }
    }

    /// Poisons the pool because of a panic: see [`Fault::alarm`].
    pub(crate) fn panicked(&self, work: &str) {
        let cause = format!("a panic while {work} (the log has its message)");
        let _ = self.poison(&Error::new(ErrorKind::Poisoned, cause));
    }

    /// Poisons the pool. `reason` is reported beside an earlier cause.
    pub(crate) fn give_up(&self, reason: &str) {
        let mut told = self.reason.lock();
        match &mut *told {
            Some(first) => first.extend(["; ", reason]),
            none => *none = Some(reason.to_owned()),
        }
        self.poisoned.store(true, Ordering::Release);
        tracing::error!(%reason, "the pool is poisoned: it refuses writes until it is reopened");
    }

    /// Poisons the pool, which can then only be read. `reason` is reported to every caller, in
    /// place of any earlier cause.
    pub(crate) fn withdraw(&self, reason: String) {
        *self.reason.lock() = Some(reason);
        self.poisoned.store(true, Ordering::Release);
    }

    /// Returns the first cause, if the pool is poisoned.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    fn error(&self) -> Error {
        let reason = self.reason().unwrap_or_default();
        Error::new(
            ErrorKind::Poisoned,
            format!("the pool refuses writes until it is reopened, because of: {reason}"),
        )
    }

    /// Remembers damage found while reading. The pool continues without what is damaged.
    pub(crate) fn damage(&self, error: &Error) {
        if error.kind() == ErrorKind::Corrupt {
            let mut damages = self.damages.lock();
            if damages.len() < MAX_DAMAGES && damages.insert(error.to_string()) {
                tracing::error!(%error, "metadata is damaged: operations that need it fail");
            }
        }
    }

    /// Returns the damages found so far.
    pub(crate) fn damages(&self) -> Vec<String> {
        self.damages.lock().iter().cloned().collect()
    }
}

/// A guard that poisons the pool when a panic drops it. What the holder was changing may be half
/// changed, and the next commit would make that durable.
pub(crate) struct Alarm<'a> {
    fault: &'a Fault,
    work: &'static str,
    /// The thread was unwinding before the alarm was made. That panic is not the holder's.
    unwinding: bool,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.fault.panicked(self.work);
        }
    }
}

/// A lock together with an alarm. The alarm is dropped first, so that the next holder of the lock
/// finds the pool poisoned.
pub(crate) struct AlarmedGuard<'a, G> {
    _alarm: Alarm<'a>,
    guard: G,
}

impl<G: Deref> Deref for AlarmedGuard<'_, G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for AlarmedGuard<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A mutex that poisons the pool when its holder panics.
pub(crate) struct AlarmedMutex<T> {
    fault: Arc<Fault>,
    work: &'static str,
    inner: Mutex<T>,
}

impl<T> AlarmedMutex<T> {
    /// `work` describes what holders do, for the message: see [`Fault::alarm`].
    pub(crate) fn new(fault: Arc<Fault>, work: &'static str, inner: T) -> Self {
        AlarmedMutex { fault, work, inner: Mutex::new(inner) }
    }

    pub(crate) fn lock(&self) -> AlarmedGuard<'_, MutexGuard<'_, T>> {
        let guard = self.inner.lock();
        AlarmedGuard { _alarm: self.fault.alarm(self.work), guard }
    }

    pub(crate) fn try_lock(&self) -> Option<AlarmedGuard<'_, MutexGuard<'_, T>>> {
        let guard = self.inner.try_lock()?;
        Some(AlarmedGuard { _alarm: self.fault.alarm(self.work), guard })
    }
}

/// A reader-writer lock that poisons the pool when its writer panics.
pub(crate) struct AlarmedRwLock<T> {
    fault: Arc<Fault>,
    work: &'static str,
    inner: RwLock<T>,
}

impl<T> AlarmedRwLock<T> {
    /// `work` describes what writers do, for the message: see [`Fault::alarm`].
    pub(crate) fn new(fault: Arc<Fault>, work: &'static str, inner: T) -> Self {
        AlarmedRwLock { fault, work, inner: RwLock::new(inner) }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.inner.read()
    }

    pub(crate) fn write(&self) -> AlarmedGuard<'_, RwLockWriteGuard<'_, T>> {
        let guard = self.inner.write();
        AlarmedGuard { _alarm: self.fault.alarm(self.work), guard }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// Returns the error for a borrowed thread that panicked. The error poisons the pool wherever it
/// arrives.
pub(crate) fn died(work: &str, payload: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Poisoned, format!("{work}: its thread panicked: {}", panic_text(payload)))
}
