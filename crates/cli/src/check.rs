//! `hindcast check`: verifies a pool offline, without a server.

use crate::failure::Failure;
use crate::output::{Output, list, properties};
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::check::{CheckOptions, CheckReport};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_engine::pool::DataReport;
use hindcast_server::{DamagedFile, error_body};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

const AFTER_HELP: &str = "\
Stop the server first. Without --repair the check writes nothing, and the pool can be on a read-only \
file system. The exit code is 0 if nothing is wrong, or if everything was repaired. It is 1 if \
findings remain.

A repair corrects the marks of used space from the maps of the volumes, if all maps can be read. If \
anything is in doubt, it only adds marks: it never frees space that may be in use. It writes the \
label of a physical volume (the first 4 KiB) again if the rest of the label proves that it is the \
right disk, or if --relabel names the path.

A finding with the code server-file is about a file of the server itself, such as schedules.json. The \
storage does not need these files. Restore the file from a backup, or move it away and create its \
schedules or targets again.

Examples:
  hindcast check --data /var/lib/hindcast
  hindcast check --data /var/lib/hindcast -o json | jq '.findings[] | select(.repairable | not)'
  hindcast check --data /var/lib/hindcast --verify-data
  hindcast check --data /var/lib/hindcast --repair
  hindcast check --data /var/lib/hindcast --repair --relabel /dev/vdb";

/// Verify a pool offline, and repair it with --repair: recompute everything that the catalog
/// records
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Data directory of the pool
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    data: PathBuf,

    /// Repair the findings that can be repaired without losing data
    #[arg(long)]
    repair: bool,

    /// Write the label of this physical volume again; repeatable. PATH is its path in the catalog.
    /// Make sure that it is the right disk
    #[arg(long, value_name = "PATH", requires = "repair")]
    relabel: Vec<String>,

    /// Repair even if the data directory is older or newer than the physical volumes; its records
    /// about them are wrong then
    #[arg(long, requires = "repair")]
    force_stale: bool,

    /// Also read all data in place and verify it with its sums, in a pool with the feature "sums"
    #[arg(long)]
    verify_data: bool,
}

/// The machine-readable report.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether no finding is left without a repair.
    clean: bool,
    /// Whether no finding about the storage is left without a repair. Findings of code
    /// `server-file` are about other files.
    storage_clean: bool,
    pool: String,
    pvs: u64,
    volumes: u64,
    map_pages: u64,
    chunks: u64,
    extents: u64,
    slots: u64,
    journal_records: u64,
    /// Result of --verify-data. Absent if it was not asked for, or the pool has no sums.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data>,
    /// Number of findings beyond the first thousand.
    unlisted: u64,
    /// Why the repair frees no space that is marked as used. Absent if it may.
    doubt: Option<String>,
    /// Why the pool could not be locked. Absent if it was locked.
    unlocked: Option<String>,
    findings: Vec<Finding>,
}

/// Numbers of bytes of the data in place.
#[derive(Debug, Serialize)]
struct Data {
    verified: u64,
    unknown: u64,
    damaged: u64,
    unreadable: u64,
    /// What is wrong on one disk of a mirror or a RAID-5. The other disks have the right bytes.
    wrong_copies: u64,
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
        let storage_clean = report.unlisted == 0 && findings.iter().all(|f| f.repaired);
        Report {
            storage_clean,
            clean: storage_clean,
            pool: report.pool,
            pvs: report.pvs,
            volumes: report.volumes,
            map_pages: report.map_pages,
            chunks: report.chunks,
            extents: report.extents,
            slots: report.slots,
            journal_records: report.journal_records,
            data: None,
            unlisted: report.unlisted,
            doubt: report.doubt.map(|doubt| doubt.why),
            unlocked: report.unlocked,
            findings,
        }
    }
}

impl Report {
    /// Adds the result of --verify-data.
    fn add_data(&mut self, found: hindcast_engine::Result<Option<DataReport>>) {
        let mut find = |object: String, detail: String| {
            (self.clean, self.storage_clean) = (false, false);
            self.findings.push(Finding { code: "data", object, detail, repairable: false, repaired: false });
        };
        let DataReport { scrub, damage, wrong_copies } = match found {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => return find("data".into(), format!("it can't be verified: {error}")),
        };
        for of in damage {
            let object = match of.snapshot {
                Some(snapshot) => format!("snapshot {}@{snapshot}", of.volume),
                None => format!("volume {}", of.volume),
            };
            for (offset, length) in of.ranges {
                let last = offset + length - 1;
                find(object.clone(), format!("bytes {offset} to {last} are damaged"));
            }
        }
        if scrub.unreadable > 0 {
            find("data".into(), format!("{} bytes can't be read", scrub.unreadable));
        }
        if wrong_copies > 0 {
            let detail = format!(
                "{wrong_copies} bytes are wrong on one disk of a mirror or RAID-5; the other disks have the right \
                 ones, and hindcast pool scrub on a running server corrects them"
            );
            find("data".into(), detail);
        }
        self.data = Some(Data {
            verified: scrub.verified,
            unknown: scrub.unknown,
            damaged: scrub.damaged,
            unreadable: scrub.unreadable,
            wrong_copies,
        });
    }

    /// Adds the server's own files that can't be used. A repair can't restore their content.
    fn add_files(&mut self, damaged: Vec<DamagedFile>) {
        self.clean &= damaged.is_empty();
        self.findings.extend(damaged.into_iter().map(|file| Finding {
            code: "server-file",
            object: file.name,
            detail: file.why,
            repairable: false,
            repaired: false,
        }));
    }
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<(), Failure> {
    if !args.data.is_dir() {
        let message = format!("open the data directory {}: it does not exist", args.data.display());
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
    let options =
        CheckOptions { repair: args.repair, relabel: args.relabel.clone(), force_stale: args.force_stale };
    let result = hindcast_engine::check::check(dir.clone(), &options, &mut progress);
    bar.finish_and_clear();
    let mut report = Report::from(result.map_err(error_body)?);
    report.add_files(hindcast_server::check_files(&dir).map_err(error_body)?);
    if args.verify_data {
        let bar = bar.with_message("verifying data");
        report.add_data(hindcast_server::verify_data(dir, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        }));
        bar.finish_and_clear();
    }
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
    let data = report.data.iter().map(|data| {
        let Data { verified, unknown, damaged, unreadable, wrong_copies } = data;
        let size = |bytes: &u64| Size(*bytes).to_string();
        let rows = [
            ("data verified", size(verified)),
            ("without a sum", size(unknown)),
            ("damaged", size(damaged)),
            ("unreadable", size(unreadable)),
            ("wrong on one disk", size(wrong_copies)),
        ];
        format!("\n\n{}", properties(rows))
    });
    let counts = counts + &data.collect::<String>();
    let unlocked = report.unlocked.iter().map(|why| {
        format!("\n\nthe pool could not be locked ({why}): the result is right only if no server had the pool open")
    });
    let counts = counts + &unlocked.collect::<String>();
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
    let findings = list(&["CODE", "OBJECT", "REPAIR", "DETAIL"], &[], rows);
    let unlisted = match report.unlisted {
        0 => String::new(),
        n => format!("\n\n{n} more findings are not listed"),
    };
    let doubt = report
        .doubt
        .iter()
        .map(|why| format!("\n\nno mark of used space is removed, because of this finding: {why}"));
    format!("{counts}\n\n{findings}{unlisted}{}", doubt.collect::<String>())
}

/// Describes the findings that remain. `None` if there are none.
fn verdict(report: &Report) -> Option<String> {
    let listed = report.findings.iter().filter(|f| !f.repaired).count();
    let remaining = listed + report.unlisted as usize;
    let repairable = report.findings.iter().filter(|f| !f.repaired && f.repairable).count();
    match (remaining, repairable) {
        (0, _) => None,
        (1, 0) => Some("one finding remains".to_owned()),
        (n, 0) => Some(format!("{n} findings remain")),
        (n, r) => Some(format!("{n} findings remain; --repair can repair {r} of them")),
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
        assert!(verdict(&report(&[(true, true), (false, false)])).unwrap().starts_with("one finding "));
        assert!(verdict(&report(&[(true, false), (false, false)])).unwrap().contains("1 of them"));
        assert!(!report(&[(true, false)]).clean);
        assert!(table(&report(&[(true, false)])).contains("possible"));
        let mut beside = report(&[(true, true)]);
        beside.add_files(vec![DamagedFile { name: "targets.json".into(), why: "damaged".into() }]);
        assert!(
            beside.storage_clean && !beside.clean && verdict(&beside).unwrap().starts_with("one finding ")
        );
        let unlisted = Report { unlisted: 3, clean: false, ..report(&[(true, true)]) };
        assert!(verdict(&unlisted).unwrap().starts_with("3 findings"));
    }
}
