//! `hindcast restore-metadata`: makes a catalog from a backup, without a server.

use crate::failure::Failure;
use crate::output::{Output, properties};
use hindcast_api::{ErrorBody, ErrorKind, Size};
use hindcast_engine::backup::{BackupInfo, Found, find, restore};
use hindcast_engine::disk::{Dir, FileDir};
use hindcast_server::{BACKUPS, error_body};
use jiff::Timestamp;
use serde::Serialize;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Use it when the catalog of a pool (catalog.redb in the data directory) is lost or damaged, and the \
physical volumes and the journal are undamaged. Stop the server first. Without --yes it writes \
nothing: it verifies the backup and shows it.

The server writes backups of the metadata at each orderly stop, once a day, and on request (hindcast \
pool backup-metadata). They are in DIR/metadata, where DIR is the data directory, and in reserved \
space of every physical volume. Only a backup of an orderly stop can be restored, because it equals \
the catalog. A backup of a running server lacks the later commits: space that it assigns to one \
volume may hold the data of another. The same is true if the server ran again after the backup. The \
command refuses a backup that the journal proves to be too old, so use the newest one.

The old catalog is kept as catalog.redb.old-N. Afterwards run hindcast check, then start the server.

Examples:
  hindcast restore-metadata --data /var/lib/hindcast                          show the newest backup in DIR/metadata
  hindcast restore-metadata --data /var/lib/hindcast --yes                    restore it
  hindcast restore-metadata --data /var/lib/hindcast --from /dev/vdb --yes    from the copy on a physical volume";

/// Restore the catalog of a pool from a backup of its metadata, offline
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Data directory of the pool
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    data: PathBuf,

    /// File of a backup, or a physical volume of the pool, which has a copy [default: the newest
    /// backup in DIR/metadata]
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,

    /// Restore it; without this option nothing is written
    #[arg(long)]
    yes: bool,
}

/// The machine-readable report.
#[derive(Debug, Serialize)]
struct Report {
    /// Path of the backup.
    from: String,
    pool: String,
    sequence: u64,
    made: Timestamp,
    /// Whether the backup was made at an orderly stop. Such a backup can be restored.
    closed: bool,
    rows: u64,
    bytes: u64,
    restored: bool,
    /// New path of the old catalog.
    kept: Option<String>,
    /// Mirrors and RAID-5 whose files in the data directory were made again.
    layouts: Vec<String>,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<(), Failure> {
    if !args.data.is_dir() {
        let message = format!("open the data directory {}: it does not exist", args.data.display());
        return Err(ErrorBody { kind: ErrorKind::NotFound, message }.into());
    }
    let (path, found) = choose(args)?;
    let mut report = report(&path, &found.info);
    if args.yes {
        let dir = FileDir::new(&args.data);
        let restored = restore(&dir, &found).map_err(error_body)?;
        report.restored = true;
        report.kept = restored.kept;
        report.layouts = restored.layouts;
    }
    output.show(&report, table)
}

fn report(path: &Path, info: &BackupInfo) -> Report {
    Report {
        from: path.display().to_string(),
        pool: info.pool.to_string(),
        sequence: info.sequence,
        made: Timestamp::from_nanosecond(info.time.into()).unwrap_or_default(),
        closed: info.closed,
        rows: info.rows,
        bytes: info.bytes,
        restored: false,
        kept: None,
        layouts: Vec::new(),
    }
}

/// Returns the named backup, or the newest valid one of the data directory.
fn choose(args: &Args) -> Result<(PathBuf, Found), Failure> {
    let at = |path: &Path| -> Result<Found, Failure> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let dir = FileDir::new(&args.data);
        Ok(find(&dir, &absolute.to_string_lossy()).map_err(error_body)?)
    };
    if let Some(path) = &args.from {
        return Ok((path.clone(), at(path)?));
    }
    let directory = args.data.join(BACKUPS);
    let names = FileDir::new(&directory).list().unwrap_or_default();
    let found = names.iter().filter_map(|name| {
        let path = directory.join(name);
        Some((path.clone(), at(&path).ok()?))
    });
    found.max_by_key(|(_, found)| found.info.sequence).ok_or_else(|| {
        let message = format!(
            "find a backup in {}: no file there verifies; name a physical volume with --from",
            directory.display()
        );
        ErrorBody { kind: ErrorKind::NotFound, message }.into()
    })
}

fn table(report: &Report) -> String {
    let facts = properties([
        ("backup", report.from.clone()),
        ("pool", report.pool.clone()),
        ("made", report.made.to_string()),
        ("at an orderly stop", if report.closed { "yes" } else { "no: it can't be restored" }.to_owned()),
        ("rows", report.rows.to_string()),
        ("size", Size(report.bytes).to_string()),
    ]);
    let end = match (report.restored, &report.kept) {
        (false, _) => "nothing was written; to restore it: --yes".to_owned(),
        (true, Some(kept)) => format!("restored; the old catalog is {kept}"),
        (true, None) => "restored".to_owned(),
    };
    let layouts = match &report.layouts[..] {
        [] => String::new(),
        names => format!(
            "\nthe records of these mirrors and RAID-5 were missing, and are there again: {}",
            names.join(", ")
        ),
    };
    format!("{facts}\n\n{end}{layouts}")
}
