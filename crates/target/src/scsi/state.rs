//! State of a logical unit for single commands: mode parameters, ended copies, and the state of a
//! sanitize operation.

use super::sense::{Asc, Sense, SenseKey};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// Mode parameters that an initiator can change. All other mode parameters are constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Modes {
    /// WCE: the write cache is on.
    pub(crate) write_cache: bool,
    /// SWP: software write protection is on.
    pub(crate) protected: bool,
    /// D_SENSE: sense data has the descriptor format.
    pub(crate) descriptor_sense: bool,
    /// Whether the threshold of available space is enabled.
    pub(crate) threshold_enabled: bool,
    /// THRESHOLD COUNT, in threshold sets.
    pub(crate) threshold: u32,
}

impl Default for Modes {
    fn default() -> Modes {
        Modes {
            write_cache: true,
            protected: false,
            descriptor_sense: false,
            threshold_enabled: false,
            threshold: 0,
        }
    }
}

/// The result of an ended copy, for RECEIVE COPY RESULTS.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) initiator: Arc<str>,
    pub(super) list_id: u8,
    pub(super) segments: u16,
    pub(super) bytes: u64,
    pub(super) sense: Option<Sense>,
}

/// The results of the ended copies of one logical unit, oldest first.
pub(crate) type Records = VecDeque<Record>;

/// The phase of a logical unit's sanitize operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    Running,
    /// The operation failed. `unrestricted` is AUSE of the failed command: whether EXIT FAILURE
    /// MODE is allowed.
    Failed {
        unrestricted: bool,
    },
}

/// A logical unit's sanitize operation.
#[derive(Debug, Default)]
pub(crate) struct Sanitize {
    pub(super) phase: Mutex<Phase>,
    pub(super) ended: Condvar,
    /// The progress of the operation, in units of 1/65536.
    pub(super) progress: AtomicU16,
    /// Whether the logical unit is going to be removed. The operation must then release the device.
    pub(super) retired: AtomicBool,
}

impl Sanitize {
    /// Returns the state of an operation that a stop of the server interrupted.
    pub(crate) fn interrupted() -> Sanitize {
        Sanitize { phase: Mutex::new(Phase::Failed { unrestricted: true }), ..Sanitize::default() }
    }

    /// Stops an OVERWRITE that runs, and waits until the operation has released the device.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        let mut phase = self.phase.lock();
        while *phase == Phase::Running {
            self.ended.wait(&mut phase);
        }
    }

    /// Returns the sense data for other commands if an operation runs or has failed. Returns `None`
    /// otherwise.
    pub(crate) fn sense(&self) -> Option<Sense> {
        match *self.phase.lock() {
            Phase::Idle => None,
            Phase::Running => Some(
                Sense::new(SenseKey::NotReady, Asc::SANITIZE_IN_PROGRESS)
                    .with_progress(self.progress.load(Ordering::Relaxed)),
            ),
            Phase::Failed { .. } => Some(Sense::new(SenseKey::MediumError, Asc::SANITIZE_FAILED)),
        }
    }

    /// Returns whether an operation has failed. Another SANITIZE is then allowed.
    pub(crate) fn may_try_again(&self) -> bool {
        matches!(*self.phase.lock(), Phase::Failed { .. })
    }
}
