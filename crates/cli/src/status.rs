//! `hindcast status`.

use crate::failure::Failure;
use crate::listing::span;
use crate::output::{list, percent, properties};
use crate::session::Session;
use crate::when::Here;
use hindcast_api::{Health, Limits, Protection, Size, Status};

pub(crate) fn run(session: &Session) -> Result<(), Failure> {
    session.output.show(&session.client.status()?, |status| table(status, &session.here))
}

/// Describes the state of the pool, and its problems.
pub(crate) fn health(health: &Health, here: &Here) -> String {
    let mut text = health.state.name().to_owned();
    for problem in &health.problems {
        text.push_str(if text == health.state.name() { ": " } else { "; " });
        if let Some(severity) = problem.severity {
            text.push_str(&format!("{}: ", severity.name()));
        }
        text.push_str(&format!("{} [{}]", problem.message, problem.code));
        if let Some(since) = problem.since {
            text.push_str(&format!(" since {}", here.stamp(since)));
        }
    }
    text
}

/// Returns the sections of the documentation that say what to do about the problems.
fn help(health: &Health) -> String {
    let mut all: Vec<&str> = health.problems.iter().filter_map(|problem| problem.help.as_deref()).collect();
    all.dedup();
    if all.is_empty() { "none needed".into() } else { all.join(" ") }
}

fn limits(limits: &Limits) -> String {
    let Limits { open_files, reserved, nbd, iscsi, api } = limits;
    format!(
        "{nbd} NBD, {iscsi} iSCSI, {api} API connections; {open_files} open files, {reserved} for the pool"
    )
}

/// Describes the certificate of the admin API. Clients compare its fingerprint.
fn certificate(status: &Status) -> String {
    let Some(certificate) = &status.certificate else { return "none".into() };
    let signer = if certificate.self_signed { " (self-signed)" } else { "" };
    format!("SHA-256 {}{signer}", certificate.fingerprint)
}

fn table(status: &Status, here: &Here) -> String {
    let join = |list: &[String]| {
        if list.is_empty() { "none".into() } else { list.join(" ") }
    };
    properties([
        ("health", health(&status.health, here)),
        ("help", help(&status.health)),
        ("capacity", Size(status.capacity).to_string()),
        ("used", format!("{} ({})", Size(status.used), percent(status.used, status.capacity))),
        ("available", Size(status.available).to_string()),
        ("volumes", status.volumes.to_string()),
        ("clients", format!("{} NBD, {} iSCSI", status.nbd_connections, status.iscsi_sessions)),
        ("limits", limits(&status.limits)),
        ("nbd", join(&status.listeners.nbd)),
        ("iscsi", join(&status.listeners.iscsi)),
        ("api", join(&status.listeners.api)),
        ("api urls", join(&status.listeners.urls)),
        ("certificate", certificate(status)),
        ("data", status.data.clone()),
        ("started", here.stamp(status.started)),
        ("server", format!("hindcast {} (pid {})", status.version, status.pid)),
    ]) + &protection(&status.protection)
}

/// Describes how volumes are protected.
fn protection(all: &[Protection]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let rows = all.iter().map(|of| {
        let snapshot = of.last_snapshot_age.map_or_else(|| "none".into(), |age| format!("{} ago", span(age)));
        let failing = of.failing_schedules.join(" ");
        vec![of.volume.clone(), snapshot, window(of), if failing.is_empty() { "-".into() } else { failing }]
    });
    format!("\n\n{}", list(&["VOLUME", "LAST SNAPSHOT", "HISTORY", "FAILING SCHEDULES"], &[], rows))
}

/// Describes how far back a history reaches: `6 d 23 h of 7 d`.
fn window(of: &Protection) -> String {
    match (of.window_seconds, of.retain_seconds) {
        (None, _) => "none".into(),
        (Some(window), None) => span(window),
        (Some(window), Some(wanted)) => format!("{} of {}", span(window.min(wanted)), span(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_beside_its_target() {
        let of = |window_seconds, retain_seconds| {
            window(&Protection {
                volume: "db".into(),
                last_snapshot: None,
                last_snapshot_age: None,
                window_seconds,
                retain_seconds,
                failing_schedules: Vec::new(),
            })
        };
        assert_eq!(of(Some(7 * 86_400 - 3600), Some(7 * 86_400)), "6 d 23 h of 7 d");
        // Retention removes a bit more than it must, and later.
        assert_eq!(of(Some(8 * 86_400), Some(7 * 86_400)), "7 d of 7 d");
        assert_eq!((of(Some(90), None), of(None, None)), ("1 min 30 s".into(), "none".into()));
    }
}
