//! Health and status of the server. The health combines the pool's health with problems that only
//! the server knows, for example of histories or schedules.

use crate::app::App;
use crate::convert;
use hindcast_api::{Health, HealthState, Problem, Status};
use jiff::Timestamp;

/// Codes of warnings that the server raises, beside those of the engine
/// (`hindcast_engine::pool::code`).
pub(crate) mod code {
    /// A history is shorter than its retention.
    pub(crate) const HISTORY_SHORT: &str = "history-short";
    /// The file of schedules can't be read, so no schedule runs.
    pub(crate) const SCHEDULES_UNREADABLE: &str = "schedules-unreadable";
    /// The last run of a schedule failed.
    pub(crate) const SCHEDULE_FAILING: &str = "schedule-failing";
    /// The readable data of a damaged pool is served, read-only.
    pub(crate) const SALVAGE: &str = "salvage";
    /// The newest backup of the metadata is older than two days, or does not exist.
    pub(crate) const METADATA_BACKUP_OLD: &str = "metadata-backup-old";
}

impl App {
    /// Returns the health of the pool and of the server's own work.
    pub(crate) fn health(&self) -> Health {
        let mut health = convert::health(&self.pool.health());
        self.warn_of_short_histories(&mut health);
        self.warn_of_schedules(&mut health);
        if let Some(found) = self.pool.salvage() {
            let doubt = match found.doubts.len() {
                0 => "",
                _ => "; DATA THAT CLIENTS READ MAY BE WRONG",
            };
            let message = format!(
                "the server serves the readable data of a damaged pool, read-only: {} objects are lost or damaged{doubt}",
                found.findings.len() + found.lost.len()
            );
            warn(&mut health, code::SALVAGE, message);
            return health;
        }
        if let Some(message) = self.backups.problem(Timestamp::now()) {
            warn(&mut health, code::METADATA_BACKUP_OLD, message);
        }
        health
    }

    /// Returns the status of the server, with its health.
    pub(crate) fn status(&self) -> Status {
        let info = self.pool.info();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started: self.started,
            data: self.data.clone(),
            listeners: self.listeners.clone(),
            health: self.health(),
            capacity: info.capacity,
            used: info.used,
            available: info.available,
            volumes: info.volumes,
            nbd_connections: self.nbd.stats().connections as u64,
            iscsi_sessions: self.iscsi.stats().sessions as u64,
            limits: self.limits,
        }
    }

    fn warn_of_schedules(&self, health: &mut Health) {
        if let Some(why) = self.schedules.unreadable() {
            warn(health, code::SCHEDULES_UNREADABLE, format!("no schedule runs: {why}"));
        }
        for (name, why) in self.schedules.failing() {
            let message = format!("the last run of schedule {name} failed: {why}");
            warn(health, code::SCHEDULE_FAILING, message);
        }
    }

    fn warn_of_short_histories(&self, health: &mut Health) {
        for volume in self.pool.volumes() {
            let Ok(info) = self.pool.cdp(&volume.name) else { continue };
            let Some(wanted) = info.settings.filter(|_| info.short).and_then(|s| s.retention.time) else {
                continue;
            };
            let (window, wanted) = (info.window / 1_000_000_000, wanted / 1_000_000_000);
            let message = format!(
                "the history of volume {} reaches back {window} s, less than the configured {wanted} s: \
                 its limit in bytes is too low",
                volume.name
            );
            warn(health, code::HISTORY_SHORT, message);
        }
    }
}

/// Adds a problem. The state of a healthy pool becomes a warning.
fn warn(health: &mut Health, code: &str, message: String) {
    health.problems.push(Problem { code: code.into(), message });
    if health.state == HealthState::Healthy {
        health.state = HealthState::Warning;
    }
}
