//! Compares NBD servers. Every workload runs on the servers in turn, in several rounds, so that a
//! change of the machine's speed affects all of them. Figures are medians. Ratios are medians of
//! the ratios within a round.

use crate::args::{Contest, Scope};
use crate::fio::{self, Amount, Flush, Job};
use crate::process;
use crate::report;
use crate::samples::{self, Row, Sample, Series};
use crate::scratch::Scratch;
use crate::server::{self, BEFORE, HINDCAST, Hindcast, Server};
use crate::{Common, units};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::Duration;

/// Longest time that a measurement waits for the background work after a run.
const SETTLE_LIMIT: Duration = Duration::from_secs(300);
/// The server with which the others are compared.
const BASELINE: &str = "nbdkit file";

/// Returns the layout of a report in which servers are compared with `baseline`.
const fn layout(baseline: &'static str) -> report::Layout {
    report::Layout {
        subject: "server",
        baseline,
        client_bound: "fio used more than 90 % of a core: the client is the limit.",
        note: " Where every write has a flush, p99 is the flush's.",
    }
}

/// A workload of the comparison.
struct Workload {
    /// Name of the workload in reports.
    name: &'static str,
    job: Job,
    /// Whether only Hindcast and the server it is compared with take part.
    pair_only: bool,
}

/// How much a workload does, before `--quick` and the sizes are known.
#[derive(Clone, Copy)]
enum Extent {
    /// The workload runs for a fixed time.
    Time,
    /// The workload writes much less than the size of the journal, as a burst does.
    Burst,
    /// The workload reads or writes the whole volume once.
    Volume,
    /// The workload writes the whole volume once. With the default sizes that is twice the size of
    /// the journal.
    Twice,
    /// The workload writes four times the size of the journal, as a load without end does.
    Sustained,
}

/// The workloads: (name, fio's rw, request size, depth, extent, flush).
const WORKLOADS: [(&str, &str, u64, u32, Extent, Flush); 8] = [
    ("random read 4 KiB, depth 32", "randread", 4 << 10, 32, Extent::Time, Flush::Never),
    ("random write 4 KiB, depth 32, final flush", "randwrite", 4 << 10, 32, Extent::Burst, Flush::AtEnd),
    ("random read 4 KiB, depth 1", "randread", 4 << 10, 1, Extent::Time, Flush::Never),
    ("random write 4 KiB, depth 1, flush each", "randwrite", 4 << 10, 1, Extent::Time, Flush::Each),
    ("sequential write 1 MiB, depth 8, final flush", "write", 1 << 20, 8, Extent::Burst, Flush::AtEnd),
    ("sequential read 1 MiB, depth 8", "read", 1 << 20, 8, Extent::Volume, Flush::Never),
    ("sustained sequential write 1 MiB, depth 8", "write", 1 << 20, 8, Extent::Twice, Flush::AtEnd),
    ("sustained random write 4 KiB, depth 32", "randwrite", 4 << 10, 32, Extent::Sustained, Flush::AtEnd),
];

fn workloads(scope: &Scope) -> Vec<Workload> {
    let amount = |extent| match (extent, scope.quick) {
        (Extent::Time, quick) => Amount::Seconds(if quick { 1 } else { 5 }),
        (Extent::Burst, quick) => Amount::Bytes(if quick { 128 << 20 } else { 512 << 20 }),
        (Extent::Volume | Extent::Twice, _) => Amount::Bytes(scope.size),
        (Extent::Sustained, quick) => Amount::Bytes(scope.journal * if quick { 1 } else { 4 }),
    };
    WORKLOADS
        .into_iter()
        .filter(|(name, ..)| scope.wants(name))
        .map(|(name, rw, block, depth, extent, flush)| Workload {
            name,
            job: Job { rw, block, depth, amount: amount(extent), flush, seed: 0, once: false, rate: None },
            pair_only: matches!(extent, Extent::Sustained | Extent::Twice),
        })
        .collect()
}

/// Runs the benchmark and writes the report.
pub(crate) fn run(common: &Common, args: &Contest) -> Result<()> {
    let scope = &args.scope;
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let servers = start_all(common, args, &dir)?;
    prepare(&servers, scope.size, &scratch)?;
    let layout = layout(if args.before.is_some() { BEFORE } else { BASELINE });
    let mut rows = Vec::new();
    for workload in workloads(scope) {
        rows.push(measure(workload, &servers, scope.rounds, &dir)?);
        if let Some(row) = rows.last() {
            eprint!("{}", report::progress(&layout, row));
        }
    }
    if rows.is_empty() {
        bail!("no workload's name contains {:?}", scope.only);
    }
    let title = format!(
        "{} volume, journal {}, rounds: {}",
        units::mib(scope.size),
        units::mib(scope.journal),
        scope.rounds
    );
    report::write(common.out.as_deref(), &layout, &title, &rows, &[])
}

fn start_all(common: &Common, args: &Contest, dir: &Path) -> Result<Vec<Server>> {
    // The pool has twice the size of the volume, because some space is freed only after a commit.
    let size = args.scope.size;
    let hindcast = Hindcast::new(common, dir, size * 2, args.scope.journal)?;
    let mut servers = match &args.before {
        Some(binary) => vec![hindcast.another(binary, &args.before_args)?.start_with_volume(size)?],
        None => vec![
            server::nbdkit(dir, size)?,
            server::qemu_nbd(dir, size, "raw")?,
            server::qemu_nbd(dir, size, "qcow2")?,
        ],
    };
    if !args.skip_hindcast {
        servers.push(hindcast.start_with_volume(size)?);
        hindcast.enable(&args.features)?;
    }
    Ok(servers)
}

/// Fills all volumes, and brings all of them into the same state of caching. That state suits small
/// requests.
fn prepare(servers: &[Server], size: u64, scratch: &Scratch) -> Result<()> {
    let dir = scratch.join("");
    for server in servers {
        server::fill(server, size, &dir)?;
        process::settle(server.pid(), SETTLE_LIMIT)?;
    }
    scratch.forget_cached()?;
    for server in servers {
        server::warm(server, size, &dir)?;
        process::settle(server.pid(), SETTLE_LIMIT)?;
    }
    Ok(())
}

fn measure(workload: Workload, servers: &[Server], rounds: usize, dir: &Path) -> Result<Row> {
    let takes_part = |s: &&Server| !workload.pair_only || [BASELINE, BEFORE, HINDCAST].contains(&s.name);
    let contestants: Vec<&Server> = servers.iter().filter(takes_part).collect();
    let mut series: Vec<Series> =
        contestants.iter().map(|s| Series { server: s.name, samples: Vec::new() }).collect();
    for round in 0..rounds {
        let job = Job { seed: round as u64 + 17, ..workload.job.clone() };
        for turn in samples::turns(contestants.len(), round) {
            let server = contestants[turn];
            let sample = measure_one(&job, server, dir)
                .with_context(|| format!("{} on {}", workload.name, server.name))?;
            series[turn].samples.push(sample);
        }
    }
    Ok(Row { workload: workload.name, series })
}

fn measure_one(job: &Job, server: &Server, dir: &Path) -> Result<Sample> {
    process::sample(server.pid(), SETTLE_LIMIT, || fio::run(job, &server.uri, dir))
}
