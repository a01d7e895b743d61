//! `hindcast diff`, `hindcast export` and `hindcast import`.

use crate::failure::Failure;
use crate::output::list;
use crate::session::Session;
use crate::snapshot::{Address, Past};
use crate::unfinished::Unfinished;
use hindcast_api::{ByteRange, Size};
use serde::Serialize;
use std::fs::File;
use std::io::IsTerminal;
use std::path::PathBuf;

const DIFF_EXAMPLES: &str = "\
Examples:
  hindcast diff db@monday                        between the snapshot and the volume now
  hindcast diff db@monday db@tuesday
  hindcast diff db@-90s                          the last 90 seconds
  hindcast diff db@before-migration db@2026-11-21T10:00:00Z
  hindcast diff db@monday -o json | jq '[.ranges[].length] | add'

FROM and TO can be snapshots, marks and moments. If one of them is a moment, the volume must have a \
history for the whole time between them (volume set VOLUME --cdp). The difference is computed from \
metadata: no data is read. It can list too much (whole chunks, and bytes that were written again with \
the same content), but never too little. NBD clients get the same answer as block status, by the meta \
context hindcast:changed-since:MOMENT.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  hindcast export db@monday --file monday.hcs
  hindcast export db@tuesday --from db@monday --file tuesday.hcs      only the difference
  hindcast export db@-10m --file before.hcs      as it was ten minutes ago, if it has a history
  hindcast export db@monday | zstd > monday.hcs.zst
  hindcast export db@monday | ssh backup hindcast import

A stream has a checksum for each record and for the whole. It leaves out zeros. The file is named \
FILE.part until it is complete and on disk. If an export was interrupted, the same command continues \
FILE.part.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  hindcast import --file monday.hcs              create the volume and its snapshot
  hindcast import copy --file monday.hcs         the same, with another name for the volume
  hindcast import --file tuesday.hcs             add the difference to that volume
  hindcast import db --status                    the progress of an unfinished import
  hindcast export db@monday --start 1073741824 | hindcast import
  hindcast import db --cancel

A whole stream needs a volume that does not exist or is empty. A difference needs a volume whose \
content is exactly the snapshot that the difference begins with: if the volume was written, roll it \
back first. During an import, and after an interrupted one, the volume refuses other writes. To \
continue an interrupted import, send the same stream again, or a stream that starts at the position \
that --status reports.

One import at a time fills a volume. A newer import of the same stream replaces a running one: the \
older import ends with exit code 4 (conflict) and changes nothing more, even if its bytes arrive \
later. --status reports whether an import is running.";

/// List the byte ranges that differ between a snapshot or moment and a later one, or the volume now
#[derive(Debug, clap::Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct Diff {
    /// VOLUME@MOMENT, where MOMENT is the name of a snapshot or mark, a time, a time before now
    /// (-90s), or lsn:N
    #[arg(value_name = "FROM", value_parser = Past::parse)]
    from: Past,
    /// VOLUME@MOMENT of the same volume [default: the volume as it is now]
    #[arg(value_name = "TO", value_parser = Past::parse)]
    to: Option<Past>,
}

/// Write a snapshot or a moment as a stream: its whole content, or its difference from an older
/// one
#[derive(Debug, clap::Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct Export {
    /// VOLUME@MOMENT, where MOMENT is the name of a snapshot or mark, a time, a time before now
    /// (-10m), or lsn:N
    #[arg(value_name = "VOLUME@MOMENT", value_parser = Past::parse)]
    to: Past,
    /// Export only the difference from this older snapshot or moment of the same volume
    #[arg(long, value_name = "VOLUME@MOMENT", value_parser = Past::parse)]
    from: Option<Past>,
    /// Byte of the volume to start at, to continue an interrupted import
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    start: u64,
    /// File to write, which must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Import a stream that hindcast export wrote, into a volume
#[derive(Debug, clap::Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub(crate) struct Import {
    /// Name of the volume [default: the name in the stream]
    #[arg(required_if_eq_any = [("status", "true"), ("cancel", "true")])]
    volume: Option<String>,
    /// File to read [default: standard input]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Show the progress of an unfinished import
    #[arg(long, conflicts_with_all = ["file", "cancel"])]
    status: bool,
    /// Cancel an unfinished import
    #[arg(long, conflicts_with = "file")]
    cancel: bool,
}

/// The whole difference.
#[derive(Debug, Serialize)]
struct Changes {
    from: String,
    to: Option<String>,
    size: u64,
    ranges: Vec<ByteRange>,
}

fn same_volume(one: &Address, other: &Address) -> Result<(), Failure> {
    if one.volume == other.volume {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} and {} are different volumes: both must be of one volume",
        one.volume, other.volume
    )))
}

pub(crate) fn diff(args: &Diff, session: &Session) -> Result<(), Failure> {
    let from = &args.from.address(session)?;
    let to = args.to.as_ref().map(|to| to.address(session)).transpose()?;
    to.iter().try_for_each(|to| same_volume(from, to))?;
    let to = to.as_ref().map(|to| to.name.as_str());
    let mut part = session.client.difference(&from.volume, &from.name, to)?;
    let (size, ranges) = (part.size, Vec::new());
    let mut changes = Changes { from: part.from.clone(), to: part.to.clone(), size, ranges };
    loop {
        for range in std::mem::take(&mut part.ranges) {
            match changes.ranges.last_mut() {
                Some(last) if last.offset + last.length == range.offset => last.length += range.length,
                _ => changes.ranges.push(range),
            }
        }
        match session.client.difference_after(&from.volume, &part)? {
            Some(next) => part = next,
            None => break,
        }
    }
    session.output.show(&changes, |c| {
        let rows = c.ranges.iter().map(|r| vec![r.offset.to_string(), r.length.to_string()]);
        let total: u64 = c.ranges.iter().map(|r| r.length).sum();
        let table = list(&["OFFSET", "LENGTH"], &[0, 1], rows);
        format!("{table}\n\n{} of {} may differ", Size(total), Size(c.size))
    })
}

/// Returns an address that means the same state as long as the export takes. A time before now
/// does not, so it becomes a position in the journal.
fn fixed(past: &Past, session: &Session) -> Result<Address, Failure> {
    let at = past.address(session)?;
    if past.when.is_name() {
        return Ok(at);
    }
    let found = session.client.moment(&at.volume, &at.name)?;
    Ok(Address { name: format!("lsn:{}", found.lsn), ..at })
}

pub(crate) fn export(args: &Export, session: &Session) -> Result<(), Failure> {
    let at = &fixed(&args.to, session)?;
    let from = args.from.as_ref().map(|from| fixed(from, session)).transpose()?;
    from.iter().try_for_each(|from| same_volume(at, from))?;
    let from = from.as_ref().map(|from| from.name.as_str());
    let Some(path) = &args.file else {
        let stdout = std::io::stdout();
        if stdout.is_terminal() {
            return Err(Failure::usage(
                "standard output is a terminal: write the stream to --file FILE, or to a pipe",
            ));
        }
        session.client.export((&at.volume, &at.name), from, args.start, &mut stdout.lock())?;
        return Ok(());
    };
    let written = Unfinished::open(path)?.complete(args.start, |start, out| {
        session.client.export((&at.volume, &at.name), from, start, out).map(drop).map_err(Failure::from)
    })?;
    session.output.done(format_args!("{}@{}: {} in {}", at.volume, at.name, Size(written), path.display()))
}

pub(crate) fn import(args: &Import, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    let volume = args.volume.as_deref();
    if args.status {
        let unfinished = client.unfinished_import(volume.unwrap_or_default())?;
        return output.show(&unfinished, |unfinished| match unfinished {
            Some(i) if i.running => format!(
                "an import into {} is running; the bytes before {} are durable; a new import of the same stream would replace it",
                i.volume, i.position
            ),
            Some(i) => format!(
                "the import into {} is unfinished; it has the bytes before {1}; continue with --start {1}",
                i.volume, i.position
            ),
            None => "there is no unfinished import".into(),
        });
    }
    if args.cancel {
        client.cancel_import(volume.unwrap_or_default())?;
        return output.done(format_args!("cancelled the import into {}", volume.unwrap_or_default()));
    }
    let snapshot = match &args.file {
        Some(path) => {
            let file = File::open(path);
            let file = file.map_err(|e| Failure::usage(format!("read {}: {e}", path.display())))?;
            client.import(volume, file)?
        }
        None => client.import(volume, std::io::stdin())?,
    };
    output.show(&snapshot, |s| format!("imported {}", s.address()))
}
