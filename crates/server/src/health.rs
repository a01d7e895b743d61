//! Health and status of the server. The health combines the pool's health with problems that only
//! the server knows, for example of histories or schedules.

use crate::app::{App, ProblemTimes};
use crate::convert;
use crate::severities::code;
use hindcast_api::{Health, HealthState, Problem, Protection, Status};
use hindcast_engine::pool::VolumeInfo;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

impl App {
    /// Returns the health of the pool and of the server's own work. Each problem has its severity,
    /// and the time since which its subject has it.
    pub(crate) fn health(&self) -> Health {
        let mut health = self.found_health();
        date(&mut health, &mut self.problems_since.lock(), Timestamp::now());
        health
    }

    fn found_health(&self) -> Health {
        let mut health = convert::health(&self.pool.health());
        self.warn_of_short_histories(&mut health);
        self.warn_of_schedules(&mut health);
        if let Some(why) = self.audit.problem() {
            let message =
                format!("the audit can't be written, so changes over the admin API are refused: {why}");
            warn(&mut health, code::AUDIT_UNWRITABLE, message);
        }
        if let Some(why) = &self.web.unbound {
            let message = format!(
                "another program may answer at the default address of the admin API, and get the passwords of the console's users: {why}"
            );
            warn(&mut health, code::API_ADDRESS_TAKEN, message);
        }
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
        self.note_nbd(&mut health);
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
            certificate: self.web.certificate(),
            protection: Vec::new(),
        }
    }

    /// Returns how those volumes are protected that `shows` accepts, by name.
    pub(crate) fn protection(&self, shows: impl Fn(&str) -> bool) -> Vec<Protection> {
        let newest = self.pool.newest_snapshot_times();
        let mut failing: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (schedule, volumes) in self.failing_schedules() {
            for volume in volumes {
                failing.entry(volume).or_default().push(schedule.clone());
            }
        }
        let mut volumes = self.pool.volumes();
        volumes.retain(|volume| shows(&volume.name));
        let now = Timestamp::now();
        let shown = |volume: VolumeInfo| {
            let last_snapshot = newest.get(&volume.uuid).map(|created| convert::time(*created));
            let age = last_snapshot.map(|at| now.duration_since(at).as_secs().max(0).unsigned_abs());
            let recorded = volume.cdp.and_then(|_| self.pool.cdp(&volume.name).ok());
            let target = recorded.as_ref().and_then(|info| info.settings?.retention.time);
            Protection {
                failing_schedules: failing.remove(&volume.name).unwrap_or_default(),
                last_snapshot,
                last_snapshot_age: age,
                window_seconds: recorded.map(|info| info.window / SECOND),
                retain_seconds: target.map(|time| time / SECOND),
                volume: volume.name,
            }
        };
        volumes.into_iter().map(shown).collect()
    }

    /// Notes what the access rules mean for the NBD listeners that other machines reach. The
    /// operator chose it, so the state stays as it is.
    fn note_nbd(&self, health: &mut Health) {
        let addresses = self.nbd.reachable().join(", ");
        if addresses.is_empty() {
            return;
        }
        let (code, message) = match self.nbd.is_open() {
            true => {
                let who =
                    "every NBD client that reaches it uses all volumes without access rules (--nbd-open)";
                (code::NBD_OPEN, format!("{addresses}: {who}"))
            }
            false if self.iscsi.nbd_rules().let_any_in() => return,
            false => {
                let who = "no access rule lets an NBD client in; see hindcast access allow";
                (code::NBD_CLOSED, format!("{addresses}: {who}"))
            }
        };
        health.problems.push(convert::problem(code, message));
    }

    fn warn_of_schedules(&self, health: &mut Health) {
        if let Some(why) = self.schedules.unreadable() {
            warn(health, code::SCHEDULES_UNREADABLE, format!("no schedule runs: {why}"));
        }
        for (name, why) in self.schedules.failing() {
            let message = format!("the last run of schedule {name} failed: {why}");
            warn_of(health, code::SCHEDULE_FAILING, name, message);
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
            warn_of(health, code::HISTORY_SHORT, volume.name, message);
        }
    }
}

/// Adds a problem. The state of a healthy pool becomes a warning.
fn warn(health: &mut Health, code: &str, message: String) {
    add(health, convert::problem(code, message));
}

/// Adds a problem that a volume or a schedule has.
fn warn_of(health: &mut Health, code: &str, subject: String, message: String) {
    add(health, Problem { subject: Some(subject), ..convert::problem(code, message) });
}

fn add(health: &mut Health, problem: Problem) {
    health.problems.push(problem);
    if health.state == HealthState::Healthy {
        health.state = HealthState::Warning;
    }
}

/// Sets the time since which each subject has its problem. `since` holds the times of the last
/// call.
fn date(health: &mut Health, since: &mut ProblemTimes, now: Timestamp) {
    let key = |problem: &Problem| (problem.code.clone(), problem.subject.clone());
    let there: BTreeSet<_> = health.problems.iter().map(key).collect();
    since.retain(|known, _| there.contains(known));
    for problem in &mut health.problems {
        problem.since = Some(*since.entry(key(problem)).or_insert(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_time_of_its_beginning() {
        let mut since = BTreeMap::new();
        let time = |second| Timestamp::from_second(second).unwrap();
        let mut dated = |problems: &[(&str, &str)], now| {
            let of = |(code, subject): &(&str, &str)| Problem {
                subject: Some(subject.to_string()).filter(|subject| !subject.is_empty()),
                ..convert::problem(code, String::new())
            };
            let problems = problems.iter().map(of).collect();
            let mut health = Health { state: HealthState::Warning, problems };
            date(&mut health, &mut since, time(now));
            health.problems.into_iter().map(|p| p.since.unwrap().as_second()).collect::<Vec<_>>()
        };
        let (low, away, other) = (("space-low", ""), ("pv-away", "a"), ("pv-away", "b"));
        assert_eq!(dated(&[low], 10), [10]);
        assert_eq!(dated(&[low, away], 20), [10, 20]);
        assert_eq!(dated(&[away], 30), [20]);
        assert_eq!(dated(&[low, away, other], 40), [40, 20, 40]);
        assert_eq!(dated(&[other], 50), [40]);
    }
}
