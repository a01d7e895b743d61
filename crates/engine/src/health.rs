//! The health of a pool: its warnings and their codes.

/// The codes of warnings that the engine raises.
pub mod code {
    /// Writes are refused until the server is restarted.
    pub const POISONED: &str = "poisoned";
    /// The catalog, a map page or a version does not verify.
    pub const CATALOG_DAMAGED: &str = "catalog-damaged";
    /// The pool was opened without a part of its journal, as the operator accepted.
    pub const JOURNAL_LOSS: &str = "journal-loss";
    /// Data can't be read any more. Reads there fail until the data is written again.
    pub const DATA_DAMAGED: &str = "data-damaged";
    /// The disk below a physical volume writes larger units as a whole than the pool's atomic unit.
    pub const BLOCKS_LARGE: &str = "blocks-large";
    /// Reads of a physical volume have failed.
    pub const PV_READ_ERRORS: &str = "pv-read-errors";
    /// A write to a physical volume has failed. Its content is read, and written elsewhere.
    pub const PV_FAILED: &str = "pv-failed";
    /// A member of a mirror or of a RAID-5 is out.
    pub const LAYOUT_DEGRADED: &str = "layout-degraded";
    /// A spare disk is not there, or can't be opened.
    pub const SPARE_MISSING: &str = "spare-missing";
    /// A physical volume does not answer. Work that needs its content waits for it.
    pub const PV_AWAY: &str = "pv-away";
    /// The file system below writes overwritten data to a new place, and space for that is not
    /// reserved.
    pub const SPACE_NOT_RESERVED: &str = "space-not-reserved";
    /// Little space is left for new writes.
    pub const SPACE_LOW: &str = "space-low";
    /// The file system below the pool has little room left, while the pool itself has more.
    pub const HOST_FULL: &str = "host-full";
    /// A volume has used more than half of the epochs of its branch.
    pub const EPOCHS_LOW: &str = "epochs-low";
    /// Acknowledged writes are not carried out until a file system has room again.
    pub const HOST_FULL_WAITING: &str = "host-full-waiting";
    /// The catalog's ballast is used up, or in use.
    pub const BALLAST_USED: &str = "ballast-used";
    /// Little room is left for histories in the data directory's file system.
    pub const HISTORY_ROOM_LOW: &str = "history-room-low";
    /// Writes to volumes with a history are refused, because there is no room for the history.
    pub const HISTORY_ROOM_REFUSING: &str = "history-room-refusing";
    /// Background work waits for descriptors, memory or threads.
    pub const RESOURCES_SHORT: &str = "resources-short";
    /// Snapshots of a volume take more than the reserve configured for them.
    pub const RESERVE_EXCEEDED: &str = "reserve-exceeded";
    /// Data can't be moved off a draining physical volume, because there is no space elsewhere.
    pub const DRAIN_STALLED: &str = "drain-stalled";
    /// A volume that is being made complete (recovered, flattened) makes no progress.
    pub const COMPLETION_STALLED: &str = "completion-stalled";
    /// The wall clock was set. Nothing expires by time until the clock agrees again or the operator
    /// confirms it.
    pub const CLOCK_JUMPED: &str = "clock-jumped";
    /// The newest time of a history or a snapshot lies ahead of the clock.
    pub const TIMES_AHEAD: &str = "times-ahead";
    /// A physical volume can't be stamped, or its stamp was damaged, so that its age can't be
    /// determined.
    pub const PV_STAMP: &str = "pv-stamp";
}

/// A condition that the operator should check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// One of [`code`]. All warnings of one kind have the same code.
    pub code: &'static str,
    /// A description of the problem in one sentence, with the names and numbers that matter.
    pub text: String,
    /// What has the problem: the path of a physical volume or of a disk, or a volume. `None`: the
    /// pool as a whole.
    pub subject: Option<String>,
}

impl Warning {
    /// Makes a warning with this code and text.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Warning { code, text: text.into(), subject: None }
    }

    /// Names what has the problem.
    #[must_use]
    pub fn of(self, subject: impl Into<String>) -> Self {
        Warning { subject: Some(subject.into()), ..self }
    }
}

/// The state of a pool: whether it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The pool has no warning.
    Healthy,
    /// The pool works, but the operator should check these warnings.
    Warning(Vec<Warning>),
    /// The pool refuses writes until it is reopened (I7). The text is the reason.
    Poisoned(String),
}

impl Health {
    /// Returns whether a warning with `code` is raised. [`code::POISONED`] counts as one.
    pub fn has(&self, code: &str) -> bool {
        match self {
            Health::Healthy => false,
            Health::Warning(warnings) => warnings.iter().any(|w| w.code == code),
            Health::Poisoned(_) => code == code::POISONED,
        }
    }
}
