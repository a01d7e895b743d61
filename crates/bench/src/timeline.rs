//! Measures timelines: how long one takes with many records, and what three open ones cost a
//! client.

use crate::fio::{self, Amount, Flush, Job};
use crate::scratch::Scratch;
use crate::server::Hindcast;
use crate::{Common, units};
use anyhow::{Context, Result, bail};
use hindcast_api::{CdpStatus, Encoding, PatchCdp, PatchVolume, TimelineQuery};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Looks per second of one open timeline.
const LOOKS: u32 = 4;
/// Size of the writes that fill the history, in bytes. Small ones make many records in little
/// space.
const SMALL: u64 = 512;
/// Number of open timelines.
const WINDOWS: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of records of the history.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// Size of the volume.
    #[arg(long, default_value = "2G", value_parser = units::parse_size)]
    size: u64,
    /// Size of the journal.
    #[arg(long, default_value = "1G", value_parser = units::parse_size)]
    journal: u64,
    /// Number of looks that are timed.
    #[arg(long, default_value_t = 400)]
    looks: usize,
    /// Rounds of a client with and without open timelines.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each load of a client.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Allowed milliseconds of a look, at the 99th percentile.
    #[arg(long, default_value_t = 50.0)]
    limit: f64,
}

/// Runs the benchmark. Fails when looks take longer than the limit.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let hindcast = Hindcast::new(common, &dir, args.size * 2 + args.records * 1024, args.journal)?;
    let mut server = hindcast.start("bench")?;
    hindcast.create_volume("bench", args.size, 16 << 10)?;
    let cdp = PatchCdp { encoding: Some(Encoding::Parity), ..PatchCdp::default() };
    hindcast.api().patch_volume("bench", &PatchVolume { cdp: Some(cdp), ..PatchVolume::default() })?;
    server.wait_ready()?;
    let status = fill(&hindcast, &server.uri, args, &dir)?;
    let (cold, mut times) = look(&hindcast, args)?;
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)].as_secs_f64() * 1000.0;
    let mut report = format!(
        "| records | segments | first look until exact | looks | median | 99th percentile | longest |\n\
         |--:|--:|--:|--:|--:|--:|--:|\n| {} | {} | {:.2} s | {} | {:.1} ms | {:.1} ms | {:.1} ms |\n\n\
         | round | writes alone | with {WINDOWS} open timelines | ratio |\n|--:|--:|--:|--:|\n",
        status.records,
        status.segments,
        cold.as_secs_f64(),
        times.len(),
        at(50),
        at(99),
        at(100),
    );
    let worst = at(99);
    for round in 1..=args.rounds {
        // The order changes, so that neither is always the second.
        let beside = |open: bool| load(&hindcast, &server.uri, args, &dir, u64::from(round), open);
        let (alone, open) = match round % 2 {
            0 => (beside(false)?, beside(true)?),
            _ => {
                let open = beside(true)?;
                (beside(false)?, open)
            }
        };
        report.push_str(&format!("| {round} | {alone:.0} | {open:.0} | {:.3} |\n", open / alone));
    }
    match &common.out {
        Some(path) => std::fs::write(path, &report).with_context(|| format!("write {}", path.display()))?,
        None => std::io::stdout().write_all(report.as_bytes()).context("print the report")?,
    }
    if worst > args.limit {
        bail!("a look took {worst:.1} ms at the 99th percentile, more than {} ms", args.limit);
    }
    Ok(())
}

fn job(block: u64, amount: Amount, seed: u64) -> Job {
    Job { rw: "randwrite", block, depth: 32, amount, flush: Flush::Never, seed, once: false, rate: None }
}

/// Writes until the history has the wanted number of records.
fn fill(hindcast: &Hindcast, uri: &str, args: &Args, dir: &Path) -> Result<CdpStatus> {
    let mut seed = 1;
    loop {
        let status = hindcast.api().cdp("bench")?;
        if status.records >= args.records {
            return Ok(status);
        }
        let missing = (args.records - status.records).max(args.records / 50);
        fio::run(&job(SMALL, Amount::Bytes(missing.min(2_000_000) * SMALL), seed), uri, dir)?;
        seed += 1;
    }
}

/// Returns the time until the first whole picture was exact, and the times of looks at windows of
/// all lengths at all places.
fn look(hindcast: &Hindcast, args: &Args) -> Result<(Duration, Vec<Duration>)> {
    let api = hindcast.api();
    let all = TimelineQuery { buckets: Some(1000), regions: Some(32), ..TimelineQuery::default() };
    let begin = Instant::now();
    let mut whole = api.timeline("bench", &all)?;
    while whole.coarse {
        whole = api.timeline("bench", &all)?;
    }
    let cold = begin.elapsed();
    let length = whole.to.duration_since(whole.from).as_secs_f64();
    let mut times = Vec::new();
    for n in 0..args.looks {
        // Each length is half of the one before it, and its window moves on.
        let part = length / f64::from(1u32 << (n % 8));
        let start = (length - part) * ((n * 37 % 101) as f64 / 100.0);
        let at = |seconds: f64| {
            let span = jiff::SignedDuration::from_secs_f64(seconds);
            whole.from.checked_add(span).map(|time| time.to_string())
        };
        let query = TimelineQuery {
            from: Some(at(start)?),
            to: Some(at(start + part)?),
            buckets: Some(1000),
            regions: (n % 2 == 0).then_some(32),
        };
        let begin = Instant::now();
        api.timeline("bench", &query)?;
        times.push(begin.elapsed());
    }
    Ok((cold, times))
}

/// Returns the writes per second of a client, with or without open timelines.
fn load(hindcast: &Hindcast, uri: &str, args: &Args, dir: &Path, seed: u64, open: bool) -> Result<f64> {
    let ended = AtomicBool::new(false);
    let watch = || -> Result<()> {
        let query =
            TimelineQuery { from: Some("-5m".into()), buckets: Some(600), ..TimelineQuery::default() };
        while !ended.load(Ordering::Relaxed) {
            hindcast.api().timeline("bench", &query)?;
            std::thread::sleep(Duration::from_secs(1) / LOOKS);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..if open { WINDOWS } else { 0 }).map(|_| scope.spawn(watch)).collect();
        let outcome = fio::run(&job(4096, Amount::Seconds(args.seconds), 100 + seed), uri, dir);
        ended.store(true, Ordering::Relaxed);
        for watcher in watchers {
            watcher.join().map_err(|_| anyhow::anyhow!("a watcher panicked"))??;
        }
        Ok(outcome?.iops)
    })
}
