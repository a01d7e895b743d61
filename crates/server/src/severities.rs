//! The severity of each code of a problem. docs/OPERATIONS.md lists the codes for operators.

use hindcast_api::Severity::{self, Critical, Info, Warning};
use hindcast_engine::pool::code as engine;

/// Codes of warnings that the server raises, beside those of the engine
/// (`hindcast_engine::pool::code`).
pub(crate) mod code {
    /// A history is shorter than its retention.
    pub(crate) const HISTORY_SHORT: &str = "history-short";
    /// The file of schedules can't be read, so no schedule runs.
    pub(crate) const SCHEDULES_UNREADABLE: &str = "schedules-unreadable";
    /// The last run of a schedule failed, or the schedule can't run.
    pub(crate) const SCHEDULE_FAILING: &str = "schedule-failing";
    /// The readable data of a damaged pool is served, read-only.
    pub(crate) const SALVAGE: &str = "salvage";
    /// The audit can't be written, so changes over the admin API are refused.
    pub(crate) const AUDIT_UNWRITABLE: &str = "audit-unwritable";
    /// The default address of the admin API belongs to another program.
    pub(crate) const API_ADDRESS_TAKEN: &str = "api-address-taken";
    /// NBD clients of other machines use volumes without access rules.
    pub(crate) const NBD_OPEN: &str = "nbd-open";
    /// No access rule lets a client of another machine use a volume over NBD.
    pub(crate) const NBD_CLOSED: &str = "nbd-closed";
    /// The newest backup of the metadata is older than two days, or does not exist.
    pub(crate) const METADATA_BACKUP_OLD: &str = "metadata-backup-old";
}

/// All codes. Critical: data, writes, or the taking of snapshots are affected now. Info: the server
/// copes, or only a figure is exceeded.
const SEVERITIES: [(&str, Severity); 34] = [
    (engine::POISONED, Critical),
    (code::SALVAGE, Critical),
    (engine::CATALOG_DAMAGED, Critical),
    (engine::JOURNAL_LOSS, Critical),
    (engine::DATA_DAMAGED, Critical),
    (engine::PV_FAILED, Critical),
    (engine::PV_AWAY, Critical),
    (engine::HOST_FULL_WAITING, Critical),
    (engine::HISTORY_ROOM_REFUSING, Critical),
    (code::SCHEDULES_UNREADABLE, Critical),
    (code::AUDIT_UNWRITABLE, Critical),
    (code::METADATA_BACKUP_OLD, Warning),
    (code::API_ADDRESS_TAKEN, Warning),
    (engine::BLOCKS_LARGE, Warning),
    (engine::PV_READ_ERRORS, Warning),
    (engine::LAYOUT_DEGRADED, Warning),
    (engine::SPARE_MISSING, Warning),
    (engine::SPACE_NOT_RESERVED, Warning),
    (engine::SPACE_LOW, Warning),
    (engine::HOST_FULL, Warning),
    (engine::BALLAST_USED, Warning),
    (engine::HISTORY_ROOM_LOW, Warning),
    (code::HISTORY_SHORT, Warning),
    (engine::RESOURCES_SHORT, Warning),
    (engine::DRAIN_STALLED, Warning),
    (engine::COMPLETION_STALLED, Warning),
    (code::SCHEDULE_FAILING, Warning),
    (engine::CLOCK_JUMPED, Warning),
    (engine::TIMES_AHEAD, Warning),
    (engine::PV_STAMP, Warning),
    (engine::RESERVE_EXCEEDED, Info),
    (engine::EPOCHS_LOW, Info),
    (code::NBD_OPEN, Info),
    (code::NBD_CLOSED, Info),
];

/// Returns the severity of a code. A code that the table does not have counts as a warning.
pub(crate) fn severity(code: &str) -> Severity {
    SEVERITIES.iter().find(|(known, _)| *known == code).map_or(Warning, |(_, severity)| *severity)
}

/// Returns the page and the section that say what to do about a code.
pub(crate) fn help(code: &str) -> String {
    format!("docs/OPERATIONS.md#{code}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_has_a_severity_and_the_manual_knows_it() {
        let sources = [include_str!("../../engine/src/health.rs"), include_str!("severities.rs")];
        let lines = sources.into_iter().flat_map(str::lines).filter(|line| line.contains("const "));
        let codes: BTreeSet<&str> =
            lines.filter_map(|line| line.split("&str = \"").nth(1)?.split('"').next()).collect();
        let known: BTreeSet<&str> = SEVERITIES.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, known);
        assert_eq!(known.len(), SEVERITIES.len(), "a code is there twice");
        let manual = include_str!("../../../docs/OPERATIONS.md");
        for (code, severity) in SEVERITIES {
            let row = format!("| [`{code}`](#{code}) | {} |", severity.name());
            assert!(manual.contains(&row), "docs/OPERATIONS.md has no row {row}");
        }
    }

    #[test]
    fn every_code_has_a_section_that_helps() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (code, _) in SEVERITIES {
            let help = help(code);
            let (page, anchor) = help.split_once('#').unwrap();
            let text = std::fs::read_to_string(root.join(page)).unwrap();
            // A heading's anchor is its text without the marks of code.
            let is_there = text.lines().any(|line| {
                line.strip_prefix("### ").is_some_and(|heading| heading.trim_matches('`') == anchor)
            });
            assert!(is_there, "{page} has no section {anchor}");
        }
    }
}
