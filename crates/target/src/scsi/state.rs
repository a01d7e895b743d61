//! What a logical unit remembers for single commands: mode parameters, copies that have ended, and
//! where a sanitize operation stands.

use super::sense::{Asc, Sense, SenseKey};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// Mode parameters that can be changed. Everything else in the mode pages is constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Modes {
    /// WCE.
    pub(crate) write_cache: bool,
    /// SWP.
    pub(crate) protected: bool,
    /// D_SENSE.
    pub(crate) descriptor_sense: bool,
    /// The threshold of available space is armed.
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

/// How a copy ended, for RECEIVE COPY RESULTS.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) initiator: Arc<str>,
    pub(super) list_id: u8,
    pub(super) segments: u16,
    pub(super) bytes: u64,
    pub(super) sense: Option<Sense>,
}

/// The copies of one logical unit that have ended.
pub(crate) type Records = VecDeque<Record>;

/// Where a logical unit stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    Running,
    /// With AUSE of the command that failed: whether the initiator may give up.
    Failed {
        unrestricted: bool,
    },
}

/// A logical unit's sanitize operation.
#[derive(Debug, Default)]
pub(crate) struct Sanitize {
    pub(super) phase: Mutex<Phase>,
    pub(super) ended: Condvar,
    /// Of 65536.
    pub(super) progress: AtomicU16,
    /// The logical unit goes away: let go of the device.
    pub(super) retired: AtomicBool,
}

impl Sanitize {
    /// One was interrupted by the end of the server.
    pub(crate) fn interrupted() -> Sanitize {
        Sanitize { phase: Mutex::new(Phase::Failed { unrestricted: true }), ..Sanitize::default() }
    }

    /// Breaks off what runs, and waits until the device is let go of.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        let mut phase = self.phase.lock();
        while *phase == Phase::Running {
            self.ended.wait(&mut phase);
        }
    }

    /// What commands are answered with while it runs or has failed; `None` if there is nothing to
    /// say.
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

    /// Whether a command may pass although one has failed: another SANITIZE.
    pub(crate) fn may_try_again(&self) -> bool {
        matches!(*self.phase.lock(), Phase::Failed { .. })
    }
}
