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
Use it for a pool that does not open any more: a physical volume is missing or truncated, the catalog \
or the journal is damaged, or files are missing. Stop the server first. A salvage writes nothing to \
the pool, which can be on a read-only file system. It repairs nothing: try hindcast check first, and \
attach missing disks again if you can.

Without --to it lists the losses: for each volume and snapshot the readable size, and the ranges that \
are lost. It reads no data for that. Sectors that the disk can't read are found only by a copy.

A copy is a raw image. It is sparse where the volume reads as zeros and where nothing can be read. \
FILE.map beside it is a map file of GNU ddrescue (+ rescued, - bad), which tells the two apart.

If the catalog does not open, the newest backup of it in DIR/metadata, or on a physical volume in \
DIR, replaces it. A backup of an orderly stop is exact if the pool was not opened since then. Any \
other backup is of an earlier time: a volume may show old data, or the data of another volume. The \
output reports this for every volume. Verify such data by other means before you use it.

The salvage needs memory for the journal's index, and for the whole catalog if a backup replaces it.

The exit code is 0 if nothing is lost, and 1 if something is lost or in doubt (the output lists it). \
The other codes are those of hindcast --help.

Examples:
  hindcast salvage --data /srv/pool                              list the losses
  hindcast salvage --data /srv/pool -o json                      list the losses, with every range
  hindcast salvage --data /srv/pool db --to /mnt/db.img          copy a volume
  hindcast salvage --data /srv/pool db@monday --to /mnt/m.img    copy a snapshot
  hindcast salvage --data /srv/pool --all --to /mnt/rescued      copy all volumes
  hindcast salvage --data /srv/pool --from /dev/vdb              use the backup on that disk
  hindcast salvage --data /srv/pool --moved /dev/vdb=/dev/vdc    /dev/vdb is now /dev/vdc

hindcast serve --salvage serves what can be read over NBD and iSCSI, read-only.";

/// Number of ranges of one device that a table shows.
const SHOWN: usize = 20;

/// List the losses of a damaged pool, and copy what can be read, offline
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Data directory of the pool
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    data: PathBuf,

    /// Volume or snapshot to copy
    #[arg(value_name = "VOLUME[@SNAPSHOT]", requires = "to", conflicts_with = "all", value_parser = device)]
    device: Option<Device>,

    /// Copy every volume, to VOLUME.img
    #[arg(long, requires = "to")]
    all: bool,

    /// File of the copy, which must not exist; with --all, directory of the copies
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,

    /// Use the backup of the catalog in this file, or on this physical volume, instead of the
    /// catalog
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,

    /// Path of a physical volume in the catalog, and its path now; repeatable
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
        return Err("the source of a copy is VOLUME or VOLUME@SNAPSHOT".into());
    }
    Ok(Device { volume: volume.into(), snapshot: snapshot.map(str::to_owned) })
}

/// A range that can't be read.
#[derive(Debug, Clone, Serialize)]
struct Range {
    offset: u64,
    length: u64,
    /// Kind of the loss, for programs.
    code: &'static str,
    /// Reason of the loss, for people.
    reason: String,
}

impl From<Loss> for Range {
    fn from(loss: Loss) -> Self {
        let (code, reason) = (loss.reason.code(), loss.reason.to_string());
        Range { offset: loss.offset, length: loss.length, code, reason }
    }
}

/// Makes a progress bar on stderr. It is drawn only on a terminal.
fn progress(message: &'static str, length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(message);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<(), Failure> {
    if !args.data.is_dir() {
        let message = format!("open the data directory {}: it does not exist", args.data.display());
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
