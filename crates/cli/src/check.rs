//! `hindcast check`: offline verification, without a server.

use crate::failure::Failure;
use crate::output::{Output, list, properties};
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::check::{CheckOptions, CheckReport};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_server::error_body;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

const AFTER_HELP: &str = "\
The server has to be stopped. Without --repair nothing is written. The exit code is 0 when nothing is wrong (any more)
and 1 when findings remain.

Examples:
  hindcast check --data /var/lib/hindcast
  hindcast check --data /var/lib/hindcast -o json | jq '.findings[] | select(.repairable | not)'
  hindcast check --data /var/lib/hindcast --repair";

/// Verify a pool offline: everything that its catalog claims, recomputed
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Data directory of the pool
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    data: PathBuf,

    /// Repair what can be repaired without losing data
    #[arg(long)]
    repair: bool,
}

/// The machine-readable report.
#[derive(Debug, Serialize)]
struct Report {
    /// Nothing is wrong, or everything that was has been repaired.
    clean: bool,
    pool: String,
    pvs: u64,
    volumes: u64,
    map_pages: u64,
    chunks: u64,
    extents: u64,
    slots: u64,
    journal_records: u64,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Finding {
    code: &'static str,
    object: String,
    detail: String,
    repairable: bool,
    repaired: bool,
}

impl From<CheckReport> for Report {
    fn from(report: CheckReport) -> Self {
        let findings: Vec<Finding> = report
            .findings
            .into_iter()
            .map(|f| Finding {
                code: f.code,
                object: f.object,
                detail: f.detail,
                repairable: f.repairable,
                repaired: f.repaired,
            })
            .collect();
        Report {
            clean: findings.iter().all(|f| f.repaired),
            pool: report.pool,
            pvs: report.pvs,
            volumes: report.volumes,
            map_pages: report.map_pages,
            chunks: report.chunks,
            extents: report.extents,
            slots: report.slots,
            journal_records: report.journal_records,
            findings,
        }
    }
}

pub(crate) fn run(args: &Args, output: Output) -> Result<(), Failure> {
    if !args.data.is_dir() {
        let message = format!("open data directory {}: there is none", args.data.display());
        return Err(ErrorBody { kind: ErrorKind::NotFound, message }.into());
    }
    let dir: Arc<dyn Dir> = Arc::new(FileDir::new(&args.data));
    // Draws on stderr, and only on a terminal.
    let bar = ProgressBar::new(0).with_message("checking");
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta}") {
        bar.set_style(style);
    }
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let result = hindcast_engine::check::check(dir, &CheckOptions { repair: args.repair }, &mut progress);
    bar.finish_and_clear();
    let report = Report::from(result.map_err(error_body)?);
    output.show(&report, table)?;
    match verdict(&report) {
        None => Ok(()),
        Some(text) => Err(Failure::Failed(text)),
    }
}

fn table(report: &Report) -> String {
    let counts = properties([
        ("pool", report.pool.clone()),
        ("physical volumes", report.pvs.to_string()),
        ("volumes", report.volumes.to_string()),
        ("map pages", report.map_pages.to_string()),
        ("chunks", report.chunks.to_string()),
        ("extents", report.extents.to_string()),
        ("slots", report.slots.to_string()),
        ("journal records", report.journal_records.to_string()),
    ]);
    if report.findings.is_empty() {
        return format!("{counts}\n\nnothing is wrong");
    }
    let rows = report.findings.iter().map(|f| {
        let repair = match (f.repaired, f.repairable) {
            (true, _) => "done",
            (false, true) => "possible",
            (false, false) => "no",
        };
        vec![f.code.to_owned(), f.object.clone(), repair.to_owned(), f.detail.clone()]
    });
    format!("{counts}\n\n{}", list(&["CODE", "OBJECT", "REPAIR", "DETAIL"], &[], rows))
}

/// What remains, if anything does.
fn verdict(report: &Report) -> Option<String> {
    let remaining = report.findings.iter().filter(|f| !f.repaired).count();
    let repairable = report.findings.iter().filter(|f| !f.repaired && f.repairable).count();
    match (remaining, repairable) {
        (0, _) => None,
        (n, 0) => Some(format!("{n} findings remain")),
        (n, r) => Some(format!("{n} findings remain, {r} of them can be repaired with --repair")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_engine::check::Finding as EngineFinding;

    fn report(flags: &[(bool, bool)]) -> Report {
        let findings = flags.iter().map(|&(repairable, repaired)| EngineFinding {
            code: "map-crc",
            object: "volume a".into(),
            detail: "CRC".into(),
            repairable,
            repaired,
        });
        CheckReport { findings: findings.collect(), ..CheckReport::default() }.into()
    }

    #[test]
    fn only_what_remains_counts() {
        assert!(verdict(&report(&[])).is_none());
        assert!(verdict(&report(&[(true, true)])).is_none());
        assert!(report(&[(true, true)]).clean);
        assert!(verdict(&report(&[(true, true), (false, false)])).unwrap().starts_with("1 findings"));
        assert!(verdict(&report(&[(true, false), (false, false)])).unwrap().contains("1 of them"));
        assert!(!report(&[(true, false)]).clean);
        assert!(table(&report(&[(true, false)])).contains("possible"));
    }
}
