//! Compares iSCSI targets: Hindcast, Debian's `tgt` on a file, and `tgt` on its null store. The
//! null store has no medium. It shows what the protocol handling of `tgt` alone costs.
//!
//! libiscsi's `iscsi-perf` and `qemu-img bench` make the load. Rounds are interleaved as in
//! [`crate::targets`].

use crate::args::Contest;
use crate::process;
use crate::report::{self, Layout, Verdict};
use crate::samples::{self, Outcome, Row, Sample, Series};
use crate::scratch::Scratch;
use crate::server::{self, BEFORE, HINDCAST, Hindcast, Server};
use crate::{Common, units};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SETTLE_LIMIT: Duration = Duration::from_secs(300);
const TGT: &str = "tgt";
const TGT_NULL: &str = "tgt null";
const LAYOUT: Layout = Layout {
    subject: "server",
    baseline: TGT,
    client_bound: "The client used more than 90 % of a core: it is the limit.",
    note: " The null store of tgt has no medium: it reads nothing and writes nowhere.",
};
/// Layout of the report with `--before`.
const LAYOUT_OF_TWO: Layout = Layout { baseline: BEFORE, note: "", ..LAYOUT };
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Distance between scattered requests, in blocks. `qemu-img bench` has no random offsets. Because
/// the number is prime, steps of this distance visit every block of a volume of 2^n blocks once. No
/// read-ahead follows that order.
const SCATTER: u64 = 196_613;

#[derive(clap::Args)]
#[command(mut_arg("size", |size| {
    size.help("Size of the volumes that are written to, filled before the first run; a power of two")
}))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) contest: Contest,
    /// Size of the volumes that are read from; a power of two. It must be small enough to stay
    /// cached. Some kernels reclaim pages that were not used for seconds, and a run would then
    /// measure the disk.
    #[arg(long, default_value = "512M", value_parser = units::parse_size)]
    hot_size: u64,
}

/// The client that makes the load, and its requests.
#[derive(Debug, Clone, Copy)]
enum Client {
    /// `iscsi-perf`: random reads of 4 KiB at any sector, for `seconds`.
    Perf { depth: u32, seconds: u64 },
    /// `qemu-img bench`: `count` requests of `block` bytes, one after another or scattered.
    Qemu { write: bool, block: u64, scattered: bool, depth: u32, count: u64 },
}

/// The ratios that Hindcast has to reach.
#[derive(Debug, Clone, Copy, Default)]
struct Goals {
    /// Least speed, as a multiple of the speed of tgt.
    speed: Option<f64>,
    /// Least speed, as a multiple of the speed of tgt's null store.
    speed_null: Option<f64>,
    /// Most CPU time per request, as a multiple of that of tgt.
    cpu: Option<f64>,
}

struct Workload {
    name: &'static str,
    client: Client,
    goals: Goals,
    /// Whether the null store takes no part, because it would only show the limit of the client.
    medium_only: bool,
}

impl Workload {
    fn writes(&self) -> bool {
        matches!(self.client, Client::Qemu { write: true, .. })
    }
}

fn workloads(args: &Args) -> Vec<Workload> {
    let scope = &args.contest.scope;
    let seconds = if scope.quick { 1 } else { 5 };
    let brief = |count: u64| if scope.quick { count / 8 } else { count };
    let perf = |depth| Client::Perf { depth, seconds };
    let qemu = |write, block, depth, bytes: u64| Client::Qemu {
        write,
        block,
        scattered: block < 64 * KIB,
        depth,
        count: brief(bytes / block).max(1),
    };
    let small_reads = Goals { speed: Some(1.5), speed_null: Some(1.0), cpu: Some(0.5) };
    let row = |name, client, goals, medium_only| Workload { name, client, goals, medium_only };
    let speed = |at_least| Goals { speed: Some(at_least), ..Goals::default() };
    let all = vec![
        // This workload has no goal for CPU. Even tgt's null store needs more than half of the CPU
        // time of tgt on a file. It spends nearly all of it to sleep and to be woken for every
        // single request.
        row("random read 4 KiB, depth 1, iscsi-perf", perf(1), speed(1.3), false),
        row("random read 4 KiB, depth 32, iscsi-perf", perf(32), small_reads, false),
        row(
            "scattered read 4 KiB, depth 32, qemu-img",
            qemu(false, 4 * KIB, 32, args.hot_size * 4),
            small_reads,
            false,
        ),
        // Bursts of writes are well below the size of the journal.
        row(
            "scattered write 4 KiB, depth 32, qemu-img",
            qemu(true, 4 * KIB, 32, scope.journal / 2),
            speed(1.5),
            false,
        ),
        row(
            "sequential read 256 KiB, depth 8, qemu-img",
            qemu(false, 256 * KIB, 8, args.hot_size * 16),
            speed(1.2),
            false,
        ),
        row(
            "sequential write 256 KiB, depth 8, qemu-img",
            qemu(true, 256 * KIB, 8, scope.journal / 2),
            speed(1.2),
            false,
        ),
        // This workload writes four times the size of the journal, as a load without end does.
        row(
            "sustained scattered write 4 KiB, depth 32, qemu-img",
            qemu(true, 4 * KIB, 32, scope.journal * 4),
            Goals::default(),
            true,
        ),
    ];
    all.into_iter().filter(|workload| scope.wants(workload.name)).collect()
}

/// Runs the benchmark and writes the report. Fails when a goal is missed, except with `--quick`.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let Contest { scope, before, .. } = &args.contest;
    for size in [scope.size, args.hot_size] {
        if !size.is_power_of_two() {
            bail!(
                "a volume of {size} bytes is no power of two: scattered requests would not reach every block"
            );
        }
    }
    let (writes, reads): (Vec<_>, Vec<_>) = workloads(args).into_iter().partition(Workload::writes);
    let layout = if before.is_some() { LAYOUT_OF_TWO } else { LAYOUT };
    let mut rows = Vec::new();
    let mut verdicts = Vec::new();
    for (group, size) in [(reads, args.hot_size), (writes, scope.size)] {
        if group.is_empty() {
            continue;
        }
        let scratch = Scratch::new(&common.dir)?;
        let dir = scratch.join("");
        let servers = start_all(common, &args.contest, &dir, size)?;
        fill(&servers, size, &dir)?;
        scratch.forget_cached()?;
        for workload in group {
            let row = measure(&workload, &servers, scope.rounds, size, &dir)?;
            eprint!("{}", report::progress(&layout, &row));
            verdicts.extend(judge(&workload, &row));
            rows.push(row);
        }
    }
    if rows.is_empty() {
        bail!("no workload's name contains {:?}", scope.only);
    }
    let title = format!(
        "{} volume for reads, {} for writes, journal {}, rounds: {}",
        units::mib(args.hot_size),
        units::mib(scope.size),
        units::mib(scope.journal),
        scope.rounds
    );
    report::write(common.out.as_deref(), &layout, &title, &rows, &verdicts)?;
    let missed = verdicts.iter().filter(|v| !v.met).count();
    if missed > 0 && !scope.quick {
        bail!("{missed} of {} goals are missed", verdicts.len());
    }
    Ok(())
}

fn start_all(common: &Common, args: &Contest, dir: &Path, size: u64) -> Result<Vec<Server>> {
    // The pool has twice the size of the volume, because some space is freed only after a commit.
    let hindcast = Hindcast::with_iscsi(common, dir, size * 2, args.scope.journal)?;
    let mut servers = match &args.before {
        Some(binary) => vec![hindcast.another(binary, &args.before_args)?.start_with_volume(size)?],
        None => vec![server::tgt(TGT, dir, Some(size))?, server::tgt(TGT_NULL, dir, None)?],
    };
    if !args.skip_hindcast {
        servers.push(hindcast.start_with_volume(size)?);
        hindcast.enable(&args.features)?;
    }
    Ok(servers)
}

/// Returns a client that passes over a whole volume in large requests, one after another.
fn pass(write: bool, size: u64) -> Client {
    Client::Qemu { write, block: MIB, scattered: false, depth: 8, count: size / MIB }
}

fn fill(servers: &[Server], size: u64, dir: &Path) -> Result<()> {
    for server in servers.iter().filter(|s| s.name != TGT_NULL) {
        ask(pass(true, size), server, dir).with_context(|| format!("fill the volume of {}", server.name))?;
        process::settle(server.pid(), SETTLE_LIMIT)?;
    }
    Ok(())
}

/// Runs one workload on each server in each round. Before a workload that reads, the whole volume
/// is read once. So every server finds it cached, even the server whose turn came last.
fn measure(workload: &Workload, servers: &[Server], rounds: usize, size: u64, dir: &Path) -> Result<Row> {
    let contestants: Vec<&Server> =
        servers.iter().filter(|s| !(workload.medium_only && s.name == TGT_NULL)).collect();
    let mut series: Vec<Series> =
        contestants.iter().map(|s| Series { server: s.name, samples: Vec::new() }).collect();
    for round in 0..rounds {
        for turn in samples::turns(contestants.len(), round) {
            let server = contestants[turn];
            if !workload.writes() && server.name != TGT_NULL {
                ask(pass(false, size), server, dir)
                    .with_context(|| format!("read the volume of {}", server.name))?;
            }
            let sample = process::sample(server.pid(), SETTLE_LIMIT, || ask(workload.client, server, dir))
                .with_context(|| format!("{} on {}", workload.name, server.name))?;
            series[turn].samples.push(sample);
        }
    }
    Ok(Row { workload: workload.name, series })
}

fn judge(workload: &Workload, row: &Row) -> Vec<Verdict> {
    let Some(own) = row.of(HINDCAST) else {
        return Vec::new();
    };
    let speed = |s: &Sample| s.outcome.iops;
    let against =
        |server: &str, metric: fn(&Sample) -> f64| row.of(server).map(|base| own.ratio(base, metric));
    let at_least = |goal: Option<f64>, measured: Option<f64>, what: &'static str| {
        let (goal, measured) = (goal?, measured?);
        Some(Verdict {
            workload: workload.name,
            what,
            goal: format!("≥ {goal:.2}"),
            measured,
            met: measured >= goal,
        })
    };
    let at_most = |goal: Option<f64>, measured: Option<f64>, what: &'static str| {
        let (goal, measured) = (goal?, measured?);
        Some(Verdict {
            workload: workload.name,
            what,
            goal: format!("≤ {goal:.2}"),
            measured,
            met: measured <= goal,
        })
    };
    let goals = &workload.goals;
    [
        at_least(goals.speed, against(TGT, speed), "speed ×tgt"),
        at_least(goals.speed_null, against(TGT_NULL, speed), "speed ×tgt null"),
        at_most(goals.cpu, against(TGT, |s| s.cpu_run), "CPU per request ×tgt"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn ask(client: Client, server: &Server, dir: &Path) -> Result<Outcome> {
    let mut command = match client {
        Client::Perf { depth, seconds } => {
            let mut command = Command::new("iscsi-perf");
            command.args(["-r", "-m", &depth.to_string(), "-t", &seconds.to_string()]);
            command
        }
        Client::Qemu { write, block, scattered, depth, count } => {
            let step = if scattered { block * SCATTER } else { block };
            let mut command = Command::new("qemu-img");
            command.args([
                "bench",
                "-f",
                "raw",
                "-t",
                "none",
                "-d",
                &depth.to_string(),
                "-s",
                &block.to_string(),
            ]);
            command.args(["-S", &step.to_string(), "-c", &count.to_string()]);
            if write {
                command.args(["-w", "--pattern=165"]);
            }
            command
        }
    };
    let (text, client_cpu) = run_to_end(command.arg(&server.uri), dir)?;
    let (requests, seconds, block) = match client {
        Client::Perf { seconds, .. } => {
            let average = number_after(&text, "iops average ").context("iscsi-perf tells no average")?;
            (average * seconds as f64, seconds as f64, 4 * KIB)
        }
        Client::Qemu { count, block, .. } => {
            let seconds = number_after(&text, "Run completed in ").context("qemu-img tells no time")?;
            (count as f64, seconds, block)
        }
    };
    if requests < 1.0 || seconds <= 0.0 {
        bail!("the client did nothing: {requests} requests in {seconds} s");
    }
    let iops = requests / seconds;
    Ok(Outcome {
        requests: requests as u64,
        iops,
        megabytes: iops * block as f64 / 1e6,
        p99_us: None,
        max_us: None,
        client_cpu,
    })
}

/// Returns the number after the last occurrence of `label`. Clients print their progress
/// repeatedly.
fn number_after(text: &str, label: &str) -> Option<f64> {
    let rest = text.rsplit_once(label)?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Runs a client to its end. Returns its standard output and its CPU use in per cent of a core.
fn run_to_end(command: &mut Command, dir: &Path) -> Result<(String, f64)> {
    let (output, errors) = (dir.join("client.out"), dir.join("client.err"));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&output).context("create the client's output")?)
        .stderr(File::create(&errors).context("create the client's output")?);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start {command:?}: is it installed?"))?;
    let mut spent = Duration::ZERO;
    let status = loop {
        // The figures of a process that has ended can be read until it is waited for.
        spent = process::cpu_time(child.id()).unwrap_or(spent);
        if let Some(status) = child.try_wait().context("wait for the client")? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let share = 100.0 * spent.as_secs_f64() / start.elapsed().as_secs_f64();
    let text =
        String::from_utf8_lossy(&std::fs::read(&output).context("read the client's output")?).into_owned();
    if !status.success() {
        let said = std::fs::read(&errors).context("read the client's output")?;
        bail!("{command:?} failed ({status}): {text}{}", String::from_utf8_lossy(&said));
    }
    Ok((text, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        let text = "\r00:00:01 - lba 7, iops current 9 (1 MB/s), iops average 41646 (162 MB/s)\riops average 38947 (152 MB/s)  \n";
        assert_eq!(number_after(text, "iops average "), Some(38947.0));
        assert_eq!(number_after("Run completed in 1.301 seconds.\n", "Run completed in "), Some(1.301));
        assert_eq!(number_after("nothing", "iops average "), None);
    }

    #[test]
    fn scattered_steps_visit_every_block() {
        let blocks = 1u64 << 12;
        let mut seen = vec![false; blocks as usize];
        for i in 0..blocks {
            seen[(i * SCATTER % blocks) as usize] = true;
        }
        assert!(seen.into_iter().all(|s| s));
        // `qemu-img bench` accepts no larger step.
        assert!(SCATTER * 4 * KIB <= i32::MAX as u64);
    }

    #[test]
    fn goals_are_judged_by_the_median_ratio() {
        let series = |server, iops: [f64; 3], cpu| Series {
            server,
            samples: iops
                .map(|iops| Sample {
                    outcome: Outcome {
                        requests: 1,
                        iops,
                        megabytes: 0.0,
                        p99_us: None,
                        max_us: None,
                        client_cpu: 0.0,
                    },
                    cpu_run: cpu,
                    cpu_settled: cpu,
                })
                .to_vec(),
        };
        let goals = Goals { speed: Some(1.5), speed_null: Some(1.0), cpu: Some(0.5) };
        let client = Client::Perf { depth: 1, seconds: 1 };
        let workload = Workload { name: "w", client, goals, medium_only: false };
        let row = Row {
            workload: "w",
            series: vec![
                series(TGT, [100.0, 200.0, 100.0], 10.0),
                series(TGT_NULL, [300.0; 3], 5.0),
                series(HINDCAST, [160.0, 160.0, 160.0], 5.0),
            ],
        };
        let met: Vec<bool> = judge(&workload, &row).iter().map(|v| v.met).collect();
        assert_eq!(met, [true, false, true]);
        assert!(judge(&workload, &Row { workload: "w", series: Vec::new() }).is_empty());
    }
}
