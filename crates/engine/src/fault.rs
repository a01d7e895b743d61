//! Whether the pool may still trust itself (I7).

use crate::error::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// At most this many different damages are remembered by name.
const MAX_DAMAGES: usize = 64;

/// Set once, for the life of an open pool: after a failed write or sync of the journal, a failed commit, or damage met
/// by the destager, nothing new is accepted.
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

    /// Poisons the pool because of `cause` (the first cause stays) and returns what waiting requests are told.
    pub(crate) fn poison(&self, cause: &Error) -> Error {
        self.reason.lock().get_or_insert_with(|| cause.to_string());
        self.poisoned.store(true, Ordering::Release);
        self.error()
    }

    /// The first cause, if the pool is poisoned.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    fn error(&self) -> Error {
        let reason = self.reason().unwrap_or_default();
        Error::new(ErrorKind::Poisoned, format!("refuse until the pool is reopened, because of: {reason}"))
    }

    /// Remembers damage met while reading; the pool goes on without what is damaged.
    pub(crate) fn damage(&self, error: &Error) {
        if error.kind() == ErrorKind::Corrupt {
            let mut damages = self.damages.lock();
            if damages.len() < MAX_DAMAGES {
                damages.insert(error.to_string());
            }
        }
    }

    /// Damages met so far.
    pub(crate) fn damages(&self) -> Vec<String> {
        self.damages.lock().iter().cloned().collect()
    }
}
