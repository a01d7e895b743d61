//! Health: whether the pool can be trusted, and what an operator should look at.
//!
//! A warning carries a code and a sentence. Codes never change their meaning, so alerts may rest on them; each has its
//! cause and its cure in docs/OPERATIONS.md, which a test compares with this list.

use super::Pool;
use super::shortage::Task;
use crate::error::ErrorKind;
use crate::journal::SegmentFile;
use std::sync::atomic::Ordering;

/// Codes of warnings that the engine raises.
pub mod code {
    /// Writes are refused until the server is restarted.
    pub const POISONED: &str = "poisoned";
    /// The catalog, a map page or a version does not verify.
    pub const CATALOG_DAMAGED: &str = "catalog-damaged";
    /// The pool was opened without a part of its journal, as the operator accepted.
    pub const JOURNAL_LOSS: &str = "journal-loss";
    /// Data can't be read any more: reads there fail until it is written again.
    pub const DATA_DAMAGED: &str = "data-damaged";
    /// The disk below a physical volume writes more as a whole than the pool's atomic unit.
    pub const BLOCKS_LARGE: &str = "blocks-large";
    /// Reads of a physical volume have failed.
    pub const PV_READ_ERRORS: &str = "pv-read-errors";
    /// A write to a physical volume has failed: what is on it is read, and written elsewhere.
    pub const PV_FAILED: &str = "pv-failed";
    /// A physical volume does not answer, and work that needs what it holds waits for it.
    pub const PV_AWAY: &str = "pv-away";
    /// The file system below writes what is overwritten elsewhere, and space for that is not
    /// reserved.
    pub const SPACE_NOT_RESERVED: &str = "space-not-reserved";
    /// Little space is left for new writes.
    pub const SPACE_LOW: &str = "space-low";
    /// The file system below the pool has little room left; the pool itself has more.
    pub const HOST_FULL: &str = "host-full";
    /// A volume has used more than half of the epochs of its branch.
    pub const EPOCHS_LOW: &str = "epochs-low";
    /// What was acknowledged is not carried out until a file system has room again.
    pub const HOST_FULL_WAITING: &str = "host-full-waiting";
    /// The catalog's space in reserve is used up, or in use.
    pub const BALLAST_USED: &str = "ballast-used";
    /// Little room is left for histories in the data directory's file system.
    pub const HISTORY_ROOM_LOW: &str = "history-room-low";
    /// Writes to volumes with a history are refused for want of room for it.
    pub const HISTORY_ROOM_REFUSING: &str = "history-room-refusing";
    /// Background work waits for descriptors, memory or threads.
    pub const RESOURCES_SHORT: &str = "resources-short";
    /// Snapshots of a volume take more than the reserve configured for them.
    pub const RESERVE_EXCEEDED: &str = "reserve-exceeded";
    /// Data can't be moved off a draining physical volume for want of space elsewhere.
    pub const DRAIN_STALLED: &str = "drain-stalled";
    /// A volume that is being made complete (recovered, flattened) does not get on.
    pub const COMPLETION_STALLED: &str = "completion-stalled";
    /// The wall clock was set, and nothing is forgotten by time until it agrees again or is
    /// confirmed.
    pub const CLOCK_JUMPED: &str = "clock-jumped";
    /// The newest time of a history or a snapshot lies ahead of the clock.
    pub const TIMES_AHEAD: &str = "times-ahead";
    /// A physical volume can't be stamped, or its stamp was damaged, so that its age can't be told.
    pub const PV_STAMP: &str = "pv-stamp";
}

/// What an operator should look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// One of [`code`], the same for every warning of one kind.
    pub code: &'static str,
    /// What is wrong, in one sentence, with the names and numbers that matter.
    pub text: String,
}

impl Warning {
    /// A warning with this code and text.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Warning { code, text: text.into() }
    }
}

/// Whether the pool can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Healthy,
    /// The pool works, but an operator should look at these.
    Warning(Vec<Warning>),
    /// The pool refuses writes until it is reopened (I7); the reason.
    Poisoned(String),
}

impl Health {
    /// Whether a warning with `code` is raised; [`code::POISONED`] counts as one.
    pub fn has(&self, code: &str) -> bool {
        match self {
            Health::Healthy => false,
            Health::Warning(warnings) => warnings.iter().any(|w| w.code == code),
            Health::Poisoned(_) => code == code::POISONED,
        }
    }
}

impl Pool {
    /// Whether the pool can be trusted, and what an operator should look at.
    pub fn health(&self) -> Health {
        if let Some(reason) = self.fault.reason() {
            return Health::Poisoned(reason);
        }
        let mut warnings = Vec::new();
        self.warn_of_damage(&mut warnings);
        self.warn_of_lost_data(&mut warnings);
        self.warn_of_space(&mut warnings);
        self.warn_of_stalled_work(&mut warnings);
        self.warn_of_clock(&mut warnings);
        let problems = self.stamping.problems().into_iter();
        warnings.extend(problems.map(|text| Warning::new(code::PV_STAMP, text)));
        self.warn_of_shortages(&mut warnings);
        self.warn_of_history_room(&mut warnings);
        self.warn_of_large_blocks(&mut warnings);
        self.warn_of_overwriting(&mut warnings);
        if warnings.is_empty() { Health::Healthy } else { Health::Warning(warnings) }
    }

    fn warn_of_damage(&self, warnings: &mut Vec<Warning>) {
        let damages = self.fault.damages();
        let blocks = self.catalog.damaged_blocks();
        if let Some(first) = blocks.first() {
            let text = format!(
                "blocks of the catalog that do not verify: {}, the first of them is block {first}; run `hindcast check`",
                blocks.len()
            );
            warnings.push(Warning::new(code::CATALOG_DAMAGED, text));
        }
        warnings.extend(damages.into_iter().map(|text| Warning::new(code::CATALOG_DAMAGED, text)));
        warnings.extend(self.journal_loss().map(|loss| Warning::new(code::JOURNAL_LOSS, loss.to_string())));
    }

    fn warn_of_lost_data(&self, warnings: &mut Vec<Warning>) {
        let (bytes, places) = self.damage.totals();
        if bytes > 0 {
            let text = format!(
                "{bytes} bytes in {places} places can't be read any more: `hindcast volume show` names those of a volume"
            );
            warnings.push(Warning::new(code::DATA_DAMAGED, text));
        }
        for pv in self.pvs().into_iter().filter(|pv| pv.read_errors > 0) {
            let text = format!(
                "{} reads of {} have failed since the start, the last {}",
                pv.read_errors, pv.path, pv.last_read_error
            );
            warnings.push(Warning::new(code::PV_READ_ERRORS, text));
        }
        for (path, failure) in self.pvs().into_iter().filter_map(|pv| Some((pv.path, pv.failure?))) {
            let text = format!(
                "physical volume {path} has failed and is not written to any more; what is on it is still read, and \
                 written elsewhere: {failure}"
            );
            warnings.push(Warning::new(code::PV_FAILED, text));
        }
    }

    fn warn_of_large_blocks(&self, warnings: &mut Vec<Warning>) {
        let ids: Vec<u32> = self.names.read().pvs.keys().copied().collect();
        let unit = self.config.atomic_unit;
        for pv in ids.into_iter().filter_map(|id| self.pvs.held(id)) {
            if let Some(whole) = pv.physical_block.filter(|whole| *whole > u64::from(unit)) {
                let text = format!(
                    "the disk of {} writes {whole} bytes as a whole, more than the pool's atomic unit of {unit}: a \
                     power cut could damage what lies beside a write",
                    pv.path
                );
                warnings.push(Warning::new(code::BLOCKS_LARGE, text));
            }
        }
    }

    fn warn_of_overwriting(&self, warnings: &mut Vec<Warning>) {
        let ids: Vec<u32> = self.names.read().pvs.keys().copied().collect();
        let pvs = ids.into_iter().filter_map(|id| self.pvs.held(id));
        let pvs = pvs.filter(|pv| pv.overwrites_elsewhere).map(|pv| pv.path.clone());
        let elsewhere = |file: &SegmentFile| file.disk.overwrites_elsewhere().unwrap_or(false);
        let journal = self.journal.file(0).filter(|file| elsewhere(file));
        for what in pvs.chain(journal.map(|_| "the journal".to_owned())) {
            let text = format!(
                "the file system of {what} writes what is overwritten elsewhere: no space is reserved for that"
            );
            warnings.push(Warning::new(code::SPACE_NOT_RESERVED, text));
        }
    }

    fn warn_of_history_room(&self, warnings: &mut Vec<Warning>) {
        let (kept, stored) = {
            let names = self.names.read();
            let kept = names.by_name.values().any(|volume| volume.line.branch.cdp.is_on());
            (kept, names.branches.values().map(|b| b.cdp.log.read().stored()).sum::<u64>())
        };
        let room = self.space.log_room();
        let share = u128::from(self.options.low_space_percent);
        let low = room == 0 || u128::from(room) * 100 < share * (u128::from(room) + u128::from(stored));
        if kept && low && self.positions.history_refused.load(Ordering::Relaxed) {
            let text = format!(
                "writes to volumes with a history are refused: the data directory's file system has {room} bytes left for \
                 histories, which take {stored}"
            );
            warnings.push(Warning::new(code::HISTORY_ROOM_REFUSING, text));
        } else if kept && low {
            let text = format!(
                "room for histories is low: {room} bytes in the data directory's file system, beside {stored} taken \
                 (less than {share} %)"
            );
            warnings.push(Warning::new(code::HISTORY_ROOM_LOW, text));
        }
    }

    fn warn_of_shortages(&self, warnings: &mut Vec<Warning>) {
        let (held, missing) = self.catalog.ballast();
        if missing > 0 {
            let text = format!(
                "the data directory's file system is full: of the {} bytes in reserve for the catalog {held} are left",
                held + missing
            );
            warnings.push(Warning::new(code::BALLAST_USED, text));
        }
        for (task, what) in [
            (Task::Destage, "what was acknowledged stays in the journal"),
            (Task::Upkeep, "space is not freed"),
            (Task::Sort, "histories stay in shared segments"),
        ] {
            let Some(cause) = self.shortages.cause(task) else { continue };
            let (code, until) = match cause.kind() {
                _ if cause.is_pv_away() => (code::PV_AWAY, "a physical volume answers"),
                ErrorKind::NoSpace => (code::HOST_FULL_WAITING, "a shortage ends"),
                _ => (code::RESOURCES_SHORT, "a shortage ends"),
            };
            warnings.push(Warning::new(code, format!("{what} until {until}: {cause}")));
        }
    }

    fn warn_of_space(&self, warnings: &mut Vec<Warning>) {
        let totals = self.space.totals();
        if self.lacks_own_space() {
            let text = format!(
                "space is low: {} of {} bytes are available (less than {} %)",
                totals.available, totals.capacity, self.options.low_space_percent
            );
            warnings.push(Warning::new(code::SPACE_LOW, text));
        }
        if self.is_low_on_space() && totals.available < totals.own {
            let text = format!(
                "the file system below the pool is full: the pool has {} bytes free, of which {} can be used",
                totals.own, totals.available
            );
            warnings.push(Warning::new(code::HOST_FULL, text));
        }
        for (volume, used) in self.low_on_epochs() {
            let text = format!(
                "{volume} has used {used} epochs; at {} it is given a new branch",
                self.options.renew_at_epoch
            );
            warnings.push(Warning::new(code::EPOCHS_LOW, text));
        }
        for (volume, taken, reserve) in self.over_reserve() {
            let text =
                format!("the snapshots of {volume} take {taken} bytes, more than the {reserve} reserved");
            warnings.push(Warning::new(code::RESERVE_EXCEEDED, text));
        }
    }

    fn warn_of_stalled_work(&self, warnings: &mut Vec<Warning>) {
        if self.positions.drain_stalled.load(Ordering::Relaxed) {
            let text = "draining a physical volume waits: the others have no space for its data, or it does not answer";
            warnings.push(Warning::new(code::DRAIN_STALLED, text));
        }
        if let Some(why) = self.positions.completion_stalled.lock().as_ref() {
            let text = format!("making a volume complete waits, and is tried again every second: {why}");
            warnings.push(Warning::new(code::COMPLETION_STALLED, text));
        }
    }
}
