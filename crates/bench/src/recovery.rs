//! Measures the start-up time after the process was killed with a journal full of small writes.

use crate::fio::{self, Amount, Flush, Job, Running};
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, units};
use anyhow::{Context, Result, bail};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Size of the journal.
    #[arg(long, default_value = "1G", value_parser = units::parse_size)]
    journal: u64,
    /// Size of the volume.
    #[arg(long, default_value = "4G", value_parser = units::parse_size)]
    size: u64,
    /// Number of kills.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Kill when this share of the journal is in use, in per cent.
    #[arg(long, default_value_t = 80)]
    fill: u64,
    /// Kill after this many seconds of load at the latest. Destage begins late, but it may keep up
    /// with the load.
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Allowed seconds per GiB of journal in use.
    #[arg(long, default_value_t = 5.0)]
    limit: f64,
}

/// Runs the benchmark. Fails when a start takes longer than the limit.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let hindcast =
        Hindcast::new(common, &dir, args.size * 2, args.journal)?.with("--destage-start=100".to_owned());
    let mut server = hindcast.start("bench")?;
    hindcast.create_volume("bench", args.size, 16 << 10)?;
    server.wait_ready()?;
    let mut report = String::from(
        "| kill | journal in use | start until NBD answers | seconds per GiB |\n|--:|--:|--:|--:|\n",
    );
    let mut worst = 0f64;
    for round in 1..=args.rounds {
        let (used, load) = fill_journal(&hindcast, &server.uri, args, &dir, u64::from(round))?;
        server.kill()?;
        drop(load);
        let start = Instant::now();
        server = hindcast.launch("bench")?;
        server.wait_ready()?;
        let seconds = start.elapsed().as_secs_f64();
        let per_gib = seconds / (used as f64 / f64::from(1 << 30));
        worst = worst.max(per_gib);
        report.push_str(&format!("| {round} | {} | {seconds:.2} s | {per_gib:.2} |\n", units::mib(used)));
    }
    match &common.out {
        Some(path) => std::fs::write(path, &report).with_context(|| format!("write {}", path.display()))?,
        None => std::io::stdout().write_all(report.as_bytes()).context("print the report")?,
    }
    if worst > args.limit {
        bail!("recovery took {worst:.2} s per GiB of journal in use, more than {} s", args.limit);
    }
    Ok(())
}

/// Writes small blocks until the configured share of the journal is in use, or until `--patience`
/// is over. Returns the bytes in use and the load, which is still running. So the kill meets a
/// server at work.
fn fill_journal(
    hindcast: &Hindcast,
    uri: &str,
    args: &Args,
    dir: &Path,
    seed: u64,
) -> Result<(u64, Running)> {
    let amount = Amount::Seconds(args.patience + 60);
    let job = Job {
        rw: "randwrite",
        block: 4096,
        depth: 32,
        amount,
        flush: Flush::Never,
        seed,
        once: false,
        rate: None,
    };
    let mut load = fio::spawn(&job, uri, dir)?;
    let start = Instant::now();
    let patience = Duration::from_secs(args.patience);
    loop {
        let journal = hindcast.api().pool()?.journal;
        let full = journal.used >= journal.capacity / 100 * args.fill;
        if full || start.elapsed() > patience {
            return Ok((journal.used, load));
        }
        if load.ended()? {
            bail!("fio ended before the journal was full");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
