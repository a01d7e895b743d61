//! `hindcast salvage`: reads what is left of a pool that does not open, without a server.

mod copy;
mod report;

use crate::failure::Failure;
use crate::output::Output;
use hindcast_api::{ErrorBody, ErrorKind};
use hindcast_engine::pool::{Pool, PoolOptions};
use hindcast_engine::salvage::Loss;
use hindcast_server::{Moved, Salvaging};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

const AFTER_HELP: &str = "\
For a pool that does not open any more: a physical volume is missing or was cut short, the catalog
or the journal is damaged, files are gone. Nothing is written to any part of it, whatever state it
is in, and it may lie on a read-only file system. The server has to be stopped.

Without a volume, the table says what is lost: of each volume and snapshot how much can be read,
and the ranges that can't. Data are not read for that: sectors that fail are found by the copy
only. Try hindcast check first, and bring missing disks back if you can: a salvage mends nothing.

A copy is a raw image, sparse where the volume reads as zeros and where nothing can be read.
FILE.map beside it is a map of GNU ddrescue (+ rescued, - bad), so that a file system check or
another copy can be told which is which.

Where the catalog does not open, the newest backup of it in DIR/metadata, or on a physical volume
in DIR, stands in. One of an orderly stop is exact if the pool was not opened since. Any other is
of an earlier time: everything may have changed since, and a volume may show another one's data.
The output says so for every volume; believe no byte of it without another check.

What needs memory: the journal's index, and where a backup stands in, the whole catalog.

Exit codes: 0 when nothing is lost, 1 when something is, or in doubt (the output says what), and
those of hindcast --help.

Examples:
  hindcast salvage --data /srv/pool                              what is lost
  hindcast salvage --data /srv/pool -o json                      ... with every range
  hindcast salvage --data /srv/pool db --to /mnt/db.img          copy what can be read
  hindcast salvage --data /srv/pool db@monday --to /mnt/m.img    ... of a snapshot
  hindcast salvage --data /srv/pool --all --to /mnt/rescued      ... of all volumes
  hindcast salvage --data /srv/pool --from /dev/vdb              with the backup on that disk
  hindcast salvage --data /srv/pool --moved /dev/vdb=/dev/vdc    a disk that is elsewhere now

hindcast serve --salvage serves the same over NBD and iSCSI, read-only.";

/// Ranges of one device that a table shows.
const SHOWN: usize = 20;

/// List what is lost of a damaged pool, and copy what can be read
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Data directory of the pool
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    data: PathBuf,

    /// What to copy
    #[arg(value_name = "VOLUME[@SNAPSHOT]", requires = "to", conflicts_with = "all", value_parser = device)]
    device: Option<Device>,

    /// Copy every volume, to VOLUME.img
    #[arg(long, requires = "to")]
    all: bool,

    /// The image, which must not exist; with --all the directory of the images
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,

    /// Make the catalog, in memory, out of the backup in this file, or on this physical volume
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,

    /// Where a physical volume is now; repeatable
    #[arg(long, value_name = "OLD=NEW")]
    moved: Vec<Moved>,
}

/// A volume, or one of its snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    volume: String,
    snapshot: Option<String>,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.volume)?;
        self.snapshot.as_ref().map_or(Ok(()), |name| write!(f, "@{name}"))
    }
}

fn device(text: &str) -> Result<Device, String> {
    let (volume, snapshot) = match text.split_once('@') {
        Some((volume, snapshot)) => (volume, Some(snapshot)),
        None => (text, None),
    };
    if volume.is_empty() || snapshot == Some("") {
        return Err("what is copied is VOLUME or VOLUME@SNAPSHOT".into());
    }
    Ok(Device { volume: volume.into(), snapshot: snapshot.map(str::to_owned) })
}

/// A range that can't be read.
#[derive(Debug, Clone, Serialize)]
struct Range {
    offset: u64,
    length: u64,
    /// A fixed word.
    code: &'static str,
    /// For people.
    reason: String,
}

impl From<Loss> for Range {
    fn from(loss: Loss) -> Self {
        let (code, reason) = (loss.reason.code(), loss.reason.to_string());
        Range { offset: loss.offset, length: loss.length, code, reason }
    }
}

/// A bar on stderr, drawn only on a terminal.
fn progress(message: &'static str, length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(message);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

pub(crate) fn run(args: &Args, output: Output) -> Result<(), Failure> {
    if !args.data.is_dir() {
        let message = format!("open data directory {}: there is none", args.data.display());
        return Err(ErrorBody { kind: ErrorKind::NotFound, message }.into());
    }
    let how = Salvaging { from: args.from.clone(), moved: args.moved.clone() };
    let pool: Arc<Pool> = hindcast_server::salvage(&args.data, &how, PoolOptions::default())?;
    match (&args.to, &args.device, args.all) {
        (Some(to), Some(device), _) => copy::one(&pool, device, to, output),
        (Some(to), None, true) => copy::all(&pool, to, output),
        (Some(_), None, false) => Err(Failure::usage("--to needs a volume, or --all")),
        _ => report::show(&pool, output),
    }
}
