//! `hindcast diff`, `hindcast export` and `hindcast import`.

use crate::failure::Failure;
use crate::history::moment;
use crate::output::list;
use crate::session::Session;
use crate::snapshot::{Address, address};
use crate::unfinished::Unfinished;
use hindcast_api::{ByteRange, Size};
use serde::Serialize;
use std::fs::File;
use std::io::IsTerminal;
use std::path::PathBuf;

const DIFF_EXAMPLES: &str = "\
Examples:
  hindcast diff db@monday                        between the snapshot and now
  hindcast diff db@monday db@tuesday
  hindcast diff db@-90s                          the last 90 seconds
  hindcast diff db@before-migration db@2026-11-21T10:00:00Z
  hindcast diff db@monday -o json | jq '[.ranges[].length] | add'

Both can be snapshots, marks and moments; between moments, and a moment and a snapshot, the volume must have kept its
history (volume set VOLUME --cdp). It is found by metadata, without reading data: quick, and sometimes too much (whole
chunks, and what was written again as it was), but never too little. NBD clients get the same as block status, by the meta
context hindcast:changed-since:MOMENT.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  hindcast export db@monday --file monday.hcs
  hindcast export db@tuesday --from db@monday --file tuesday.hcs      only what differs
  hindcast export db@monday | zstd > monday.hcs.zst
  hindcast export db@monday | ssh backup hindcast import

A stream carries checksums of each record and of the whole. What reads as zeros is left out. Until it is whole, and on disk,
the file is named FILE.part; the same command goes on with one that an earlier try left behind.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  hindcast import --file monday.hcs              a new volume, with the snapshot
  hindcast import copy --file monday.hcs         under another name
  hindcast import --file tuesday.hcs             the difference, on top of it
  hindcast import db --status                    how far one came that was cut short
  hindcast export db@monday --start 1073741824 | hindcast import
  hindcast import db --cancel

A whole stream needs a volume that is not there yet, or empty; a difference needs a volume that is exactly what its
snapshot is: roll it back first if somebody wrote to it. While an import goes on, and after one that was cut short, the
volume takes no other writes. The same stream again, or one that starts at the position that --status tells, goes on.

One import at a time fills a volume. A newer one of the same stream takes over: the older one ends with exit code 4
(conflict) and changes nothing more, however late its bytes arrive. --status tells whether one is running.";

/// Show what differs between a snapshot or moment and a later one, or now
#[derive(Debug, clap::Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct Diff {
    /// VOLUME@MOMENT: the name of a snapshot or mark, a time, how long ago (-90s), or lsn:N
    #[arg(value_name = "FROM", value_parser = past)]
    from: Address,
    /// VOLUME@MOMENT of the same volume [default: the volume as it is now]
    #[arg(value_name = "TO", value_parser = past)]
    to: Option<Address>,
}

/// Write a snapshot as a stream, whole or what differs from an older one
#[derive(Debug, clap::Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct Export {
    #[arg(value_name = "VOLUME@NAME", value_parser = address)]
    snapshot: Address,
    /// Only what differs from this snapshot of the same volume
    #[arg(long, value_name = "VOLUME@NAME", value_parser = address)]
    from: Option<Address>,
    /// Byte of the volume to start from: go on with an import that was cut short
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    start: u64,
    /// File to write, which must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Take a stream in
#[derive(Debug, clap::Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub(crate) struct Import {
    /// Volume [default: the name in the stream]
    #[arg(required_if_eq_any = [("status", "true"), ("cancel", "true")])]
    volume: Option<String>,
    /// File to read [default: standard input]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Tell how far an import came that did not end
    #[arg(long, conflicts_with_all = ["file", "cancel"])]
    status: bool,
    /// Give up an import that did not end
    #[arg(long, conflicts_with = "file")]
    cancel: bool,
}

/// All that differs.
#[derive(Debug, Serialize)]
struct Changes {
    from: String,
    to: Option<String>,
    size: u64,
    ranges: Vec<ByteRange>,
}

/// `VOLUME@MOMENT`.
fn past(text: &str) -> Result<Address, String> {
    let Some((volume, at)) = text.split_once('@').filter(|(volume, at)| !volume.is_empty() && !at.is_empty())
    else {
        return Err("a state of the past is VOLUME@MOMENT".into());
    };
    Ok(Address { volume: volume.into(), name: moment(at)? })
}

fn same_volume(one: &Address, other: &Address) -> Result<(), Failure> {
    if one.volume == other.volume {
        return Ok(());
    }
    Err(Failure::usage(format!("{} and {} are different volumes", one.volume, other.volume)))
}

pub(crate) fn diff(args: &Diff, session: &Session) -> Result<(), Failure> {
    let from = &args.from;
    args.to.iter().try_for_each(|to| same_volume(from, to))?;
    let to = args.to.as_ref().map(|to| to.name.as_str());
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

pub(crate) fn export(args: &Export, session: &Session) -> Result<(), Failure> {
    let at = &args.snapshot;
    args.from.iter().try_for_each(|from| same_volume(at, from))?;
    let from = args.from.as_ref().map(|from| from.name.as_str());
    let Some(path) = &args.file else {
        let stdout = std::io::stdout();
        if stdout.is_terminal() {
            return Err(Failure::usage("a stream is not for a terminal: --file, or a pipe"));
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
    let (client, output) = (&session.client, session.output);
    let volume = args.volume.as_deref();
    if args.status {
        let unfinished = client.unfinished_import(volume.unwrap_or_default())?;
        return output.show(&unfinished, |unfinished| match unfinished {
            Some(i) if i.running => format!(
                "{} is being filled now, up to byte {} durably; a new import of the same stream would take over",
                i.volume, i.position
            ),
            Some(i) => format!("{} has arrived up to byte {1}; go on with --start {1}", i.volume, i.position),
            None => "there is no unfinished import".into(),
        });
    }
    if args.cancel {
        client.cancel_import(volume.unwrap_or_default())?;
        return output.done("cancelled");
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
