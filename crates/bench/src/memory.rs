//! Measures resident memory. Its bound must follow from the configuration, and never from the size
//! of a volume. The benchmark scatters small writes over a huge thin volume of small chunks, and
//! reads the peak that the kernel recorded.

use crate::fio::{self, Amount, Flush, Job};
use crate::process;
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, units};
use anyhow::{Context, Result, bail};
use std::io::Write as _;
use std::time::Duration;

/// Bytes that the process may use in addition to its configured caches.
const ALLOWANCE: u64 = 128 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Size of the thin volume.
    #[arg(long, default_value = "16T", value_parser = units::parse_size)]
    size: u64,
    /// Bytes to write, in random 4 KiB blocks.
    #[arg(long, default_value = "8G", value_parser = units::parse_size)]
    written: u64,
    /// Size of the cache of map pages.
    #[arg(long, default_value = "64M", value_parser = units::parse_size)]
    map_cache: u64,
    /// Size of the cache of catalog pages.
    #[arg(long, default_value = "64M", value_parser = units::parse_size)]
    catalog_cache: u64,
    /// Size of the pool; the default is twice `--written`.
    #[arg(long, value_parser = units::parse_size)]
    pool: Option<u64>,
    /// Size of the journal.
    #[arg(long, default_value = "1G", value_parser = units::parse_size)]
    journal: u64,
}

/// Runs the benchmark. Fails when the peak exceeds the bound.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let hindcast = Hindcast::new(common, &dir, args.pool.unwrap_or(args.written * 2), args.journal)?
        .with(format!("--map-cache={}", args.map_cache))
        .with(format!("--catalog-cache={}", args.catalog_cache));
    let mut server = hindcast.start("huge")?;
    hindcast.create_volume("huge", args.size, 4096)?;
    server.wait_ready()?;
    let idle = process::memory(server.pid())?;
    let amount = Amount::Bytes(args.written);
    let job = Job {
        rw: "randwrite",
        block: 4096,
        depth: 32,
        amount,
        flush: Flush::AtEnd,
        seed: 4,
        once: false,
        rate: None,
    };
    let mut anonymous = idle.anonymous;
    let outcome = fio::spawn(&job, &server.uri, &dir)?
        .wait(Duration::from_millis(200), || {
            anonymous = anonymous.max(process::memory(server.pid())?.anonymous);
            Ok(())
        })
        .context("write to the huge volume")?;
    process::settle(server.pid(), Duration::from_secs(900))?;
    let end = process::memory(server.pid())?;
    let caches = args.map_cache + args.catalog_cache;
    let bound = caches + ALLOWANCE;
    let report = format!(
        "| volume | written | IOPS | idle peak | peak resident (VmHWM) | largest sampled anonymous | bound: caches {} + {} |\n\
         |---|---|--:|--:|--:|--:|--:|\n| {} | {} | {:.0} | {} | {} | {} | {} |\n",
        units::mib(caches),
        units::mib(ALLOWANCE),
        units::mib(args.size),
        units::mib(args.written),
        outcome.iops,
        units::mib(idle.peak),
        units::mib(end.peak),
        units::mib(anonymous.max(end.anonymous)),
        units::mib(bound)
    );
    match &common.out {
        Some(path) => std::fs::write(path, &report).with_context(|| format!("write {}", path.display()))?,
        None => std::io::stdout().write_all(report.as_bytes()).context("print the report")?,
    }
    if end.peak > bound {
        bail!("peak resident memory {} exceeds its bound {}", units::mib(end.peak), units::mib(bound));
    }
    Ok(())
}
