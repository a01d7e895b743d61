//! A model of a disk that turns: it prices the accesses of a trace that `hindcast pool trace` wrote
//! on a machine without such a disk.
//!
//! - [`drives`]: what the model knows of a drive
//! - [`geometry`]: where sectors are
//! - [`seek`]: what the arm takes for a distance
//! - [`cache`]: the segments of the drive's cache
//! - [`mechanics`]: what one access takes
//! - [`trace`]: the accesses of a trace file
//! - [`price`]: which accesses reach a disk, and when
//! - [`table`]: the report
//!
//! The model is pure and deterministic: the same trace and drive give the same prices.
//!
//! # What is assumed
//!
//! - Each disk of the trace is one drive, with a head and a cache of its own. A byte of the disk is
//!   the same byte of the drive. The model refuses a trace that goes beyond the end of the drive.
//! - An access begins when the trace has it, or when the disk has done the accesses before it,
//!   first come first served. Waiting for other accesses is no part of a price. The times of the
//!   trace are those of a fast disk. On a slow disk, callers would wait longer, and ask later.
//! - A read that the trace marks as answered by the page cache does not reach the disk, and neither
//!   does one that was shorter than `--cached-below`. Each other read does. Of those, the page
//!   cache may have answered some too, so the model gives an upper bound for reads.
//! - A buffered write reaches the disk at the next sync of the same disk that begins after the
//!   write. All writes between two syncs are issued together, in C-LOOK order, and those that touch
//!   are one request. The page cache writes back nothing earlier. Writes after the last sync are
//!   issued together at the end of the trace.
//! - A direct write reaches the medium at once. A sync waits for the writes only: the model has no
//!   journal of a file system. The price of a write counts for the cause of the write, and the sync
//!   itself takes no time.
//! - The write cache of the drive is off, since a sync must wait for the medium in any case.
//! - Ranges that are given back take no time, and neither do accesses that failed.
//! - All tracks of the drive are good. There are no retries and no thermal recalibration.
//! - A seek takes the same time in both directions. A seek that also changes the surface takes the
//!   longer one of both times. Only writes that move the arm settle.
//! - The read-ahead continues until the next access that needs the head. The host takes sectors at
//!   the rate of the interface while the head reads others.

mod cache;
mod drives;
mod geometry;
mod mechanics;
mod price;
mod seek;
mod table;
mod trace;

#[cfg(test)]
mod tests;

use crate::Common;
use anyhow::{Context, Result};
use drives::Drive;
use std::io::Write as _;
use std::path::PathBuf;
use table::PricedTrace;
use trace::LoadedTrace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File that `hindcast pool trace start` wrote.
    file: PathBuf,
    /// Drive: wd400bb, 6y080m0, or a file that describes one in TOML.
    #[arg(long, default_value = "wd400bb", value_name = "DRIVE")]
    disk: String,
    /// Only this physical volume: its path, the path of a disk of it, or the number of a disk in
    /// the trace; repeatable.
    #[arg(long, value_name = "NAME")]
    pv: Vec<String>,
    /// Take reads for answered by the page cache that took less than this number of microseconds.
    /// The trace itself marks only some of these.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    cached_below: u32,
    /// Form of the report.
    #[arg(short = 'o', long = "format", value_enum, default_value_t = OutputForm::Table)]
    format: OutputForm,
}

/// The form of the report of the disk model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OutputForm {
    Table,
    Json,
}

/// Prices a trace and writes the report.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let drive = Drive::find(&args.disk)?;
    let mut trace = LoadedTrace::load(&args.file, &args.pv)?;
    trace.take_for_cached(args.cached_below);
    let priced = PricedTrace::new(&trace, &drive).with_context(|| args.file.display().to_string())?;
    let report = match args.format {
        OutputForm::Table => priced.markdown(),
        OutputForm::Json => format!("{:#}\n", priced.json()),
    };
    match &common.out {
        Some(path) => std::fs::write(path, &report).with_context(|| format!("write {}", path.display())),
        None => std::io::stdout().write_all(report.as_bytes()).context("print the report"),
    }
}
