//! `hindcast status`.

use crate::failure::Failure;
use crate::output::{percent, properties};
use crate::session::Session;
use hindcast_api::{Health, Limits, Size, Status};

pub(crate) fn run(session: &Session) -> Result<(), Failure> {
    session.output.show(&session.client.status()?, table)
}

/// Describes the state of the pool, and its problems.
pub(crate) fn health(health: &Health) -> String {
    let mut text = health.state.name().to_owned();
    for problem in &health.problems {
        text.push_str(if text == health.state.name() { ": " } else { "; " });
        if let Some(severity) = problem.severity {
            text.push_str(&format!("{}: ", severity.name()));
        }
        text.push_str(&format!("{} [{}]", problem.message, problem.code));
        if let Some(since) = problem.since {
            text.push_str(&format!(" since {}", since.strftime("%Y-%m-%d %H:%M:%SZ")));
        }
    }
    text
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

fn table(status: &Status) -> String {
    let join = |list: &[String]| {
        if list.is_empty() { "none".into() } else { list.join(" ") }
    };
    properties([
        ("health", health(&status.health)),
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
        ("started", status.started.to_string()),
        ("server", format!("hindcast {} (pid {})", status.version, status.pid)),
    ])
}
