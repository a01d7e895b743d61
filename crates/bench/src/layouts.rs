//! Measures mirrors and RAID-5 beside a plain physical volume. All members are files on one disk,
//! so each copy and each parity takes a part of that disk's speed. The report therefore has the
//! bytes that each server read from the disk and wrote to it, too.

use crate::args::Scope;
use crate::database::Database;
use crate::fio::{self, Amount, Flush, Job};
use crate::samples::{self, Row, Sample, Series, median};
use crate::scratch::Scratch;
use crate::server::{self, Hindcast, Server};
use crate::{Common, process, report, units};
use anyhow::{Context, Result, bail};
use hindcast_api::{
    AddLayout, AddPv, BeginTrace, Encoding, LayoutKind, MemberTarget, PatchCdp, PatchMember, PatchPv,
    PatchVolume, Placement,
};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Name of the volume and of its export.
const VOLUME: &str = "bench";
/// The server with which the others are compared.
const PLAIN: &str = "plain";
const TRACED: &str = "plain, traced";
const SNAP_AWARE: &str = "plain, snap-aware";
const MIRROR: &str = "mirror 2";
const RAID5: &str = "raid5 3+1";
const RAID5_HISTORY: &str = "raid5 3+1, parity";
/// Longest time that a measurement waits for the background work after a run.
const SETTLE_LIMIT: Duration = Duration::from_secs(300);
/// Longest time that a drain or a rebuild may take.
const TASK_LIMIT: Duration = Duration::from_secs(900);

const LAYOUT: report::Layout = report::Layout {
    subject: "pool",
    baseline: PLAIN,
    client_bound: "fio used more than 90 % of a core: the client is the limit.",
    note: "",
};

/// Compares pools on a plain physical volume, a mirror and a RAID-5 on one disk.
#[derive(clap::Args)]
#[command(mut_arg("size", |arg| arg.default_value("1G")), mut_arg("journal", |arg| arg.default_value("512M")))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// How much a workload does.
#[derive(Clone, Copy)]
enum Extent {
    /// For a fixed time.
    Time,
    /// Less than the journal holds.
    Burst,
    /// So many times the size of the journal.
    Sustained(u64),
}

/// The workloads: (name, fio's rw, request size, depth, extent). Writes end with a flush.
const WORKLOADS: [(&str, &str, u64, u32, Extent); 5] = [
    ("random read 4 KiB, depth 32", "randread", 4 << 10, 32, Extent::Time),
    ("random write 4 KiB, depth 32, final flush", "randwrite", 4 << 10, 32, Extent::Burst),
    ("sequential write 1 MiB, depth 8, final flush", "write", 1 << 20, 8, Extent::Burst),
    ("sustained sequential write 1 MiB, depth 8", "write", 1 << 20, 8, Extent::Sustained(4)),
    ("sustained random write 4 KiB, depth 32", "randwrite", 4 << 10, 32, Extent::Sustained(4)),
];

/// The workload of a database, and the size of its blocks in bytes.
const UPDATES: &str = "sustained updates of 8 KiB blocks, 3 % changed";
const UPDATED: u64 = 8 << 10;

/// A pool that takes part.
struct Pool {
    hindcast: Hindcast,
    server: Server,
    /// Paths of its members; empty for a plain physical volume.
    members: Vec<String>,
}

/// Bytes that a server read from the disk and wrote to it for each byte of its client.
#[derive(Clone, Copy)]
struct Traffic {
    read: f64,
    written: f64,
}

/// The traffic of a workload: (pool, its median over the rounds).
type RowTraffic = Vec<(&'static str, Traffic)>;

/// Runs the benchmark and writes the report.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    let scope = &args.scope;
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let mut pools = start_all(common, scope, &dir)?;
    for pool in &pools {
        server::fill(&pool.server, scope.size, &dir)?;
        process::settle(pool.server.pid(), SETTLE_LIMIT)?;
    }
    scratch.forget_cached()?;
    for pool in &pools {
        server::warm(&pool.server, scope.size, &dir)?;
        process::settle(pool.server.pid(), SETTLE_LIMIT)?;
    }
    let mut rows = Vec::new();
    let mut traffic: Vec<(&'static str, RowTraffic)> = Vec::new();
    for (name, rw, block, depth, extent) in WORKLOADS.into_iter().filter(|w| scope.wants(w.0)) {
        let job = job(rw, block, depth, extent, scope);
        let (row, moved) = measure(name, &job, &pools, scope.rounds, &scratch)?;
        eprint!("{}", report::progress(&LAYOUT, &row));
        rows.push(row);
        traffic.push((name, moved));
    }
    if scope.wants(UPDATES) {
        let (row, moved) = updates(&pools, scope, &scratch)?;
        eprint!("{}", report::progress(&LAYOUT, &row));
        rows.push(row);
        traffic.push((UPDATES, moved));
    }
    let mut text = traffic_table(&traffic);
    if scope.wants("cold writes") {
        text.push_str(&cold_writes(&pools, scope, &scratch)?);
    }
    if scope.wants("degraded random read 4 KiB, depth 32") {
        rows.push(degraded(&pools, scope, &scratch)?);
    }
    if scope.wants("rebuild") {
        text.push_str(&rebuild(&pools, scope, &scratch)?);
    }
    if scope.wants("opening") {
        text.push_str(&opening(&mut pools, scope, &dir)?);
    }
    let title = format!(
        "{} volumes, journal {}, members on one disk, rounds: {}",
        units::mib(scope.size),
        units::mib(scope.journal),
        scope.rounds
    );
    report::write(common.out.as_deref(), &LAYOUT, &title, &rows, &[])?;
    match &common.out {
        Some(path) => {
            let mut file = std::fs::File::options()
                .append(true)
                .open(path)
                .with_context(|| format!("open {}", path.display()))?;
            std::io::Write::write_all(&mut file, text.as_bytes()).context("write the report")
        }
        None => {
            std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).context("print the report")
        }
    }
}

fn job(rw: &'static str, block: u64, depth: u32, extent: Extent, scope: &Scope) -> Job {
    let amount = match extent {
        Extent::Time => Amount::Seconds(if scope.quick { 1 } else { 5 }),
        Extent::Burst => Amount::Bytes(scope.journal / 2),
        Extent::Sustained(times) => Amount::Bytes(scope.journal * if scope.quick { 1 } else { times }),
    };
    let flush = if rw == "randread" { Flush::Never } else { Flush::AtEnd };
    Job { rw, block, depth, amount, flush, seed: 0, once: false, rate: None }
}

fn start_all(common: &Common, scope: &Scope, dir: &Path) -> Result<Vec<Pool>> {
    let mut pools = Vec::new();
    for name in [PLAIN, TRACED, SNAP_AWARE] {
        let hindcast = Hindcast::named(common, name, dir, scope.size * 2, scope.journal)?;
        let server = hindcast.start_with_volume(scope.size)?;
        pools.push(Pool { hindcast, server, members: Vec::new() });
    }
    let traced = &pools[1].hindcast;
    let trace = BeginTrace { max_size: Some(1 << 30), ..BeginTrace::default() };
    traced.api().begin_trace(&trace).context("begin a trace")?;
    let placement = hindcast_api::PatchPool { placement: Some(Placement::SnapAware), ..Default::default() };
    pools[2].hindcast.api().patch_pool(&placement).context("set the placement")?;
    for (name, kind, disks) in [
        (MIRROR, LayoutKind::Mirror, 2),
        (RAID5, LayoutKind::Raid5, 4),
        (RAID5_HISTORY, LayoutKind::Raid5, 4),
    ] {
        pools.push(on_layout(common, scope, dir, (name, kind, disks))?);
    }
    let cdp = PatchCdp { encoding: Some(Encoding::Parity), ..PatchCdp::default() };
    let patch = PatchVolume { cdp: Some(cdp), ..PatchVolume::default() };
    pools.last().context("a pool")?.hindcast.api().patch_volume(VOLUME, &patch).context("turn CDP on")?;
    Ok(pools)
}

/// Starts a pool whose only physical volume is a layout.
fn on_layout(
    common: &Common,
    scope: &Scope,
    dir: &Path,
    (name, kind, disks): (&'static str, LayoutKind, usize),
) -> Result<Pool> {
    // Harder compression of old history reads and writes it once more, whatever the layout is.
    let hindcast = Hindcast::named(common, name, dir, 64 << 20, scope.journal)?
        .with("--cdp-recompress=false".to_owned());
    let mut server = hindcast.start(VOLUME)?;
    let api = hindcast.api();
    let columns = if kind == LayoutKind::Mirror { 1 } else { disks - 1 } as u64;
    let member = |n: usize| AddPv {
        path: format!("disk-{n}"),
        size: Some(scope.size * 2 / columns),
        force: false,
        dedicated: false,
    };
    let layout = AddLayout {
        reserve: None,
        dedicated: false,
        name: "bench".to_owned(),
        kind,
        copies: None,
        columns: None,
        unit: None,
        members: (0..disks).map(member).collect(),
    };
    api.add_layout(&layout).with_context(|| format!("make {name}"))?;
    let plain = api.pvs()?.into_iter().find(|pv| pv.layout.is_none()).context("a plain physical volume")?;
    let plain = plain.id.to_string();
    api.patch_pv(&plain, &PatchPv { draining: Some(true), ..PatchPv::default() })?;
    until("the drain", || Ok(api.remove_pv(&plain).is_ok()))?;
    hindcast.create_volume(VOLUME, scope.size, 16 << 10)?;
    server.wait_ready()?;
    Ok(Pool { hindcast, server, members: layout.members.into_iter().map(|member| member.path).collect() })
}

/// Waits until `done` says so.
fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > TASK_LIMIT {
            bail!("{what} takes more than {TASK_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn measure(
    workload: &'static str,
    job: &Job,
    pools: &[Pool],
    rounds: usize,
    scratch: &Scratch,
) -> Result<(Row, RowTraffic)> {
    let dir = scratch.join("");
    in_turns(workload, (pools, rounds, job.block), scratch, &mut |pool, round| {
        let job = Job { seed: round as u64 + 17, ..job.clone() };
        sample(&job, &pool.server, &dir)
    })
}

/// Measures updates as a database makes them. All pools go through the same contents.
fn updates(pools: &[Pool], scope: &Scope, scratch: &Scratch) -> Result<(Row, RowTraffic)> {
    let database = Database::new(scope.size, UPDATED as usize);
    let connect = |pool: &Pool| pool.hindcast.connect(VOLUME);
    for pool in pools {
        database.load(&mut connect(pool)?)?;
        process::settle(pool.server.pid(), SETTLE_LIMIT)?;
    }
    let count = scope.journal * if scope.quick { 1 } else { 4 } / UPDATED;
    // The content before the round, and after it.
    let (mut begun, mut before, mut after) = (0, database.clone(), database);
    in_turns(UPDATES, (pools, scope.rounds, UPDATED), scratch, &mut |pool, round| {
        if round > begun {
            (begun, before) = (round, after.clone());
        }
        after = before.clone();
        process::sample(pool.server.pid(), SETTLE_LIMIT, || {
            after.update(&mut connect(pool)?, count, round as u64 + 17)
        })
    })
}

/// Measures what `run` does, for each pool in each round. The pools take turns. A request has
/// `block` bytes.
fn in_turns(
    workload: &'static str,
    (pools, rounds, block): (&[Pool], usize, u64),
    scratch: &Scratch,
    run: &mut dyn FnMut(&Pool, usize) -> Result<Sample>,
) -> Result<(Row, RowTraffic)> {
    let mut series: Vec<Series> =
        pools.iter().map(|p| Series { server: p.server.name, samples: Vec::new() }).collect();
    let mut traffic: Vec<Vec<Traffic>> = vec![Vec::new(); pools.len()];
    for round in 0..rounds {
        for turn in samples::turns(pools.len(), round) {
            let before = scratch.disk_bytes()?;
            let sample = run(&pools[turn], round)?;
            let after = scratch.disk_bytes()?;
            let client = (sample.outcome.requests * block) as f64;
            traffic[turn].push(Traffic {
                read: (after.read - before.read) as f64 / client,
                written: (after.written - before.written) as f64 / client,
            });
            series[turn].samples.push(sample);
        }
    }
    let of = |all: &[Traffic], pick: fn(&Traffic) -> f64| median(all.iter().map(pick).collect());
    let medians = pools.iter().zip(&traffic).map(|(pool, all)| {
        (pool.server.name, Traffic { read: of(all, |t| t.read), written: of(all, |t| t.written) })
    });
    Ok((Row { workload, series }, medians.collect()))
}

fn sample(job: &Job, server: &Server, dir: &Path) -> Result<Sample> {
    process::sample(server.pid(), SETTLE_LIMIT, || fio::run(job, &server.uri, dir))
        .with_context(|| format!("{} of {} bytes on {}", job.rw, job.block, server.name))
}

fn traffic_table(rows: &[(&'static str, RowTraffic)]) -> String {
    let mut text = "\nBytes of the disk for each byte of the client, the journal's included. What is in the page \
                    cache is not read from the disk.\n\n| workload | pool | read | written |\n|---|---|--:|--:|\n"
        .to_owned();
    for (workload, pools) in rows {
        for (n, (pool, traffic)) in pools.iter().enumerate() {
            let name = if n == 0 { workload } else { "" };
            let _ = writeln!(text, "| {name} | {pool} | {:.2} | {:.2} |", traffic.read, traffic.written);
        }
    }
    text
}

/// Writes over content of which nothing is in the page cache, and counts what is read for that.
fn cold_writes(pools: &[Pool], scope: &Scope, scratch: &Scratch) -> Result<String> {
    let mut text = "\nWrites of 4 KiB at random places of which nothing is in the page cache: bytes of the disk for each byte \
                    of the client.\n\n| pool | read | written |\n|---|--:|--:|\n"
        .to_owned();
    let bytes = (scope.journal / 8).min(64 << 20);
    for pool in pools {
        scratch.forget_cached()?;
        let before = scratch.disk_bytes()?;
        let job = Job::writes("randwrite", 4 << 10, 32, bytes, 77);
        sample(&job, &pool.server, &scratch.join(""))?;
        let after = scratch.disk_bytes()?;
        let part = |before: u64, after: u64| (after - before) as f64 / bytes as f64;
        let (read, written) = (part(before.read, after.read), part(before.written, after.written));
        let _ = writeln!(text, "| {} | {read:.2} | {written:.2} |", pool.server.name);
    }
    Ok(text)
}

/// Reads with one member of each layout out. The members stay out.
fn degraded(pools: &[Pool], scope: &Scope, scratch: &Scratch) -> Result<Row> {
    for pool in pools {
        if let Some(member) = pool.members.first() {
            let out = PatchMember { state: MemberTarget::Out, onto: None, rate: None };
            pool.hindcast.api().patch_member(member, &out).context("put a member out")?;
        }
    }
    let name = "degraded random read 4 KiB, depth 32";
    let (row, _) =
        measure(name, &job("randread", 4 << 10, 32, Extent::Time, scope), pools, scope.rounds, scratch)?;
    eprint!("{}", report::progress(&LAYOUT, &row));
    Ok(row)
}

/// Puts a new disk in the place of a member of each layout, alone, and then another one beside a
/// client that writes.
fn rebuild(pools: &[Pool], scope: &Scope, scratch: &Scratch) -> Result<String> {
    let rate = if scope.quick { 20 << 20 } else { 100 << 20 };
    let mut text = format!(
        "\nA new disk in the place of a member, which reads and writes what is in use. Beside it, a client writes 4 KiB at \
         random, at depth 32.\n\n\
         | pool | in use | time alone | written to the disk | client's writes alone | beside a rebuild of {}/s | ratio |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
        units::mib(rate)
    );
    let dir = scratch.join("");
    for pool in pools.iter().filter(|pool| !pool.members.is_empty()) {
        let used = pool.hindcast.api().pvs()?.first().context("a physical volume")?.used;
        let (before, start) = (scratch.disk_bytes()?, Instant::now());
        begin_rebuild(pool, scope, &pool.members[0], "disk-new", None)?;
        until_rebuilt(pool)?;
        let time = start.elapsed();
        process::settle(pool.server.pid(), SETTLE_LIMIT)?;
        let written = scratch.disk_bytes()?.written - before.written;
        // The load lasts as long as the rebuild at its rate.
        let seconds = (used / rate).clamp(3, 20);
        let load = |seed: u64| {
            let amount = Amount::Seconds(seconds);
            let job = Job { seed, amount, ..job("randwrite", 4 << 10, 32, Extent::Time, scope) };
            let outcome = fio::run(&job, &pool.server.uri, &dir);
            process::settle(pool.server.pid(), SETTLE_LIMIT)?;
            Ok::<_, anyhow::Error>(outcome?.iops)
        };
        let mut speeds = (Vec::new(), Vec::new());
        let mut old = "disk-new".to_owned();
        for round in 0..scope.rounds as u64 {
            speeds.0.push(load(round + 300)?);
            let new = format!("disk-new-{round}");
            begin_rebuild(pool, scope, &old, &new, Some(rate))?;
            speeds.1.push(load(round + 300)?);
            until_rebuilt(pool)?;
            std::fs::remove_file(pool.hindcast.data().join(&old)).context("remove a disk")?;
            old = new;
        }
        let (alone, beside) = (median(speeds.0), median(speeds.1));
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} s | {} | {alone:.0} | {beside:.0} | {:.2} |",
            pool.server.name,
            units::mib(used),
            time.as_secs_f64(),
            units::mib(written),
            beside / alone
        );
    }
    Ok(text)
}

fn begin_rebuild(pool: &Pool, scope: &Scope, old: &str, new: &str, rate: Option<u64>) -> Result<()> {
    let disk = AddPv { path: new.to_owned(), size: Some(scope.size * 2), force: false, dedicated: false };
    let patch = PatchMember { state: MemberTarget::In, onto: Some(disk), rate };
    pool.hindcast.api().patch_member(old, &patch).context("replace a member")?;
    Ok(())
}

fn until_rebuilt(pool: &Pool) -> Result<()> {
    until("the rebuild", || {
        let pvs = pool.hindcast.api().pvs()?;
        let is_whole = |layout: &hindcast_api::PvLayout| layout.members.iter().all(|of| of.onto.is_none());
        Ok(pvs.iter().filter_map(|pv| pv.layout.as_ref()).all(is_whole))
    })
}

/// Kills each server under small writes, and measures how long it takes until NBD answers again.
fn opening(pools: &mut [Pool], scope: &Scope, dir: &Path) -> Result<String> {
    let mut text = "\nFrom a start after SIGKILL under small writes until NBD answers: medians.\n\n\
                    | pool | seconds |\n|---|--:|\n"
        .to_owned();
    for pool in pools {
        let mut times = Vec::new();
        for round in 0..scope.rounds {
            let job = Job {
                seed: round as u64 + 99,
                amount: Amount::Seconds(60),
                flush: Flush::Never,
                ..job("randwrite", 4 << 10, 32, Extent::Time, scope)
            };
            let load = fio::spawn(&job, &pool.server.uri, dir)?;
            std::thread::sleep(Duration::from_secs(4));
            pool.server.kill()?;
            drop(load);
            let start = Instant::now();
            pool.server = pool.hindcast.launch(VOLUME)?;
            pool.server.wait_for(&pool.hindcast, VOLUME)?;
            times.push(start.elapsed().as_secs_f64());
            process::settle(pool.server.pid(), SETTLE_LIMIT)?;
        }
        let _ = writeln!(text, "| {} | {:.2} |", pool.server.name, median(times));
    }
    Ok(text)
}
