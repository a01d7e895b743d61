//! Measures what snapshots cost: the time to create one, the speed of writes after it, with one
//! snapshot and with ten thousand, and reading, rollback and deletion. The first writes of the
//! peers after a snapshot are measured in the same run.
//!
//! A ratio compares runs on the same volume. In `many`, a second volume with one snapshot is
//! written to in turns with the first. Runs alternate, and each begins from a settled state. The
//! measured time includes the final flush.

mod browsers;
mod many;
mod peers;

use crate::args::Scope;
use crate::figures::{Figures, Goal};
use crate::fio::{self, Job};
use crate::samples::{Outcome, median};
use crate::scratch::Scratch;
use crate::server::{Hindcast, timed};
use crate::{Common, probe, process, rig, units};
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use hindcast_api::{Method, PatchVolume, RollBack};
use std::path::Path;
use std::time::Duration;

const KIB: u64 = 1 << 10;
/// Time between creations in the latency measurement.
const BETWEEN_CREATIONS: Duration = Duration::from_millis(5);
/// Chunk sizes that are measured: (chunk in bytes, goal). The goal is the least ratio of the speed
/// of a sustained load after a snapshot to the speed without a snapshot.
const CHUNKS: [(u64, f64); 3] = [(4 * KIB, 0.7), (16 * KIB, 0.5), (64 * KIB, 0.25)];

#[derive(clap::Args)]
#[command(mut_arg("only", |only| {
    only.help("Only sections whose name contains this: create, burst, sustained, many, rollback, peers")
}))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Number of snapshots in the largest history.
    #[arg(long, default_value_t = 10_000)]
    most: usize,
    /// Measure only creations, with and without this many browsers that show the console, and a
    /// client that logs in again and again. The server has streams for 28.
    #[arg(long, value_name = "NUMBER", num_args = 0..=1, default_missing_value = "20")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=28))]
    browsers: Option<usize>,
    /// In each round, also measure creations while the same browsers and log-ins use a second
    /// server, so that only the machine is shared.
    #[arg(long, requires = "browsers")]
    elsewhere: bool,
}

impl Args {
    /// Returns the bytes of a burst. A burst fits into the journal.
    fn burst(&self) -> u64 {
        self.scope.journal / if self.scope.quick { 8 } else { 2 }
    }

    /// Returns the number of pairs of bursts. There are many, because a burst takes about a second,
    /// and the speed of a shared machine's disk varies in such a time.
    fn pairs(&self) -> usize {
        if self.scope.quick { 1 } else { self.scope.rounds * 3 }
    }

    fn sustained(&self) -> u64 {
        self.scope.journal * if self.scope.quick { 1 } else { 4 }
    }
}

type Rig<'a> = rig::Rig<'a, Args>;

impl Rig<'_> {
    /// Creates a volume, and writes all of it. Then waits for the background work, and drops the
    /// cached pages.
    fn filled(&self, name: &str, chunk: u64, method: Method) -> Result<()> {
        self.hindcast.create_volume(name, self.args.scope.size, chunk)?;
        self.api().patch_volume(name, &PatchVolume { method: Some(method), ..PatchVolume::default() })?;
        self.fill(name, self.args.scope.size)
    }

    /// Writes `bytes` bytes in random blocks of 4 KiB with 32 in flight, and flushes.
    fn writes(&self, volume: &str, bytes: u64, seed: u64) -> Result<Outcome> {
        fio::run(&random_writes(bytes, seed), &self.hindcast.export(volume), &self.dir())
    }

    /// Makes random writes of 4 KiB right after one more snapshot, so that the old content of
    /// everything written is preserved first. Does not wait for the background work.
    fn first_writes_once(&self, volume: &str, bytes: u64, seed: u64) -> Result<Outcome> {
        let name = format!("probe{seed}");
        self.snapshot(volume, &name)?;
        let outcome = self.writes(volume, bytes, seed)?;
        self.delete(volume, &[name])?;
        Ok(outcome)
    }

    /// Measures the speed of a load without a snapshot and right after one, in each round.
    fn first_writes(&self, volume: &str, bytes: u64, rounds: usize) -> Result<FirstWrites> {
        let mut all = FirstWrites::default();
        // The first round does not count. It finds cold caches, and a journal whose files are still
        // being made.
        for round in 0..=rounds {
            let (mut plain, mut after) = (f64::NAN, f64::NAN);
            // The two loads take turns in being the first of a round.
            for preserves in [round % 2 == 1, round % 2 == 0] {
                let names = if preserves { vec![format!("round{round}")] } else { Vec::new() };
                names.iter().try_for_each(|name| self.snapshot(volume, name).map(drop))?;
                let seed = if preserves { 200 } else { 100 } + round as u64;
                let speed = if preserves { &mut after } else { &mut plain };
                *speed = self.writes(volume, bytes, seed)?.iops;
                self.settle()?;
                if preserves {
                    self.delete(volume, &names)?;
                    self.settle()?;
                }
            }
            if round > 0 {
                all.take(plain, after);
            }
        }
        Ok(all)
    }
}

/// Speeds without a snapshot and right after one, in writes per second, one of each for each round.
#[derive(Default)]
struct FirstWrites {
    plain: Vec<f64>,
    after: Vec<f64>,
}

impl FirstWrites {
    fn take(&mut self, plain: f64, after: f64) {
        self.plain.push(plain);
        self.after.push(after);
    }

    fn report(self, figures: &mut Figures, section: &'static str, what: &str, goal: Goal) {
        let ratio = median(self.plain.iter().zip(&self.after).map(|(p, a)| a / p).collect());
        figures.add(section, format!("{what}: without"), median(self.plain), "IOPS", Goal::None);
        figures.add(
            section,
            format!("{what}: right after a snapshot"),
            median(self.after),
            "IOPS",
            Goal::None,
        );
        figures.add(section, format!("{what}: ratio"), ratio, "×", goal);
    }
}

fn random_writes(bytes: u64, seed: u64) -> Job {
    Job::writes("randwrite", 4 * KIB, 32, bytes, seed)
}

/// Runs the benchmark and writes the report.
pub(crate) fn run(common: &Common, args: &Args) -> Result<()> {
    if let Some(browsers) = args.browsers {
        return browsers::run(common, args, browsers);
    }
    let scope = &args.scope;
    let scratch = Scratch::new(&common.dir)?;
    let dir = scratch.join("");
    let mut figures = Figures::default();
    // The pool has space for two volumes, for a second copy of every chunk, and for what is freed
    // only after a commit.
    let hindcast = Hindcast::new(common, &dir, scope.size * 6, scope.journal)?;
    let server = hindcast.start("")?;
    let rig = Rig { args, hindcast, server, scratch: &scratch };
    if scope.wants("create") {
        create(&rig, &mut figures)?;
    }
    for (chunk, least) in CHUNKS {
        if scope.quick && chunk != 16 * KIB {
            continue;
        }
        for method in [Method::Row, Method::Cow] {
            first_writes(&rig, &mut figures, chunk, method, least)?;
        }
    }
    if scope.wants("many") {
        many::run(&rig, &mut figures)?;
    }
    if scope.wants("rollback") {
        roll_back(&rig, &mut figures)?;
    }
    drop(rig);
    if scope.wants("peers") {
        peers::run(args, &scratch, &mut figures)?;
    }
    let title = format!(
        "{} volumes, journal {}, rounds: {}",
        units::mib(scope.size),
        units::mib(scope.journal),
        scope.rounds
    );
    figures.write(common.out.as_deref(), &title, !scope.quick)
}

/// An activity beside the writes of a round.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Creations,
    /// Writes of 4 KiB to a file of the same file system, each with a sync. A creation has to wait
    /// for at least such a sync.
    Syncs,
}

/// Measures creations of snapshots while 32 writes are in flight, and the longest write in that
/// time. Other rounds measure the writes without an activity beside them, and beside syncs of the
/// disk.
fn create(rig: &Rig<'_>, figures: &mut Figures) -> Result<()> {
    rig.filled("create", 16 * KIB, Method::Row)?;
    let probe = probe::Probe::new(&rig.dir())?;
    // fio ends a while after its last write. Creations in that time run while the burst is
    // destaged, and go to `afterwards`.
    let (mut times, mut afterwards, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    let mut longest = [0f64; 3];
    for round in 0..rig.args.scope.rounds * 3 {
        let mut names = Vec::new();
        let load = fio::spawn(
            &random_writes(rig.args.burst(), round as u64),
            &rig.hindcast.export("create"),
            &rig.dir(),
        )?;
        let beside = [Beside::Nothing, Beside::Creations, Beside::Syncs][round % 3];
        let outcome = load.wait(BETWEEN_CREATIONS, || {
            if beside == Beside::Nothing {
                return Ok(());
            }
            let writes = rig.writes_of("create")?;
            let name = format!("s{round}-{}", names.len());
            let time = process::first(|| match beside {
                Beside::Creations => rig.snapshot("create", &name),
                _ => probe.sync(),
            })?;
            let in_flight = rig.writes_of("create")? > writes;
            let of = match beside {
                Beside::Creations if in_flight => &mut times,
                Beside::Creations => &mut afterwards,
                _ => &mut syncs,
            };
            of.push(time.as_secs_f64() * 1000.0);
            if beside == Beside::Creations {
                names.push(name);
            }
            Ok(())
        })?;
        let longest = &mut longest[beside as usize];
        *longest = longest.max(outcome.max_us.unwrap_or(f64::NAN) / 1000.0);
        rig.settle()?;
        for some in names.chunks(many::AT_ONCE) {
            rig.delete("create", some)?;
        }
        rig.settle()?;
    }
    report_creations(figures, [&mut times, &mut afterwards, &mut syncs], longest);
    rig.remove("create")
}

/// Reports the creations. The goals follow what the disk allows. If the disk's own syncs take
/// longer beside the same writes, creations may take as long.
fn report_creations(
    figures: &mut Figures,
    [times, afterwards, syncs]: [&mut Vec<f64>; 3],
    [alone, with_creations, with_syncs]: [f64; 3],
) {
    const SECTION: &str = "create";
    let mut add = |times: &mut Vec<f64>, what: &str, most: Option<f64>| {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
        figures.add(SECTION, format!("median of {} {what}", times.len()), at(0.5), "ms", Goal::None);
        let goal = most.map_or(Goal::None, Goal::AtMost);
        figures.add(SECTION, format!("99th percentile of {what}"), at(0.99), "ms", goal);
        at(0.99)
    };
    let disk = add(syncs, "syncs of 4 KiB to the same file system, beside the same writes", None);
    add(times, "creations, 32 writes in flight", Some(disk.max(2.0)));
    add(afterwards, "creations, none in flight, the burst being destaged", None);
    figures.add(SECTION, "longest write without creations".into(), alone, "ms", Goal::None);
    figures.add(SECTION, "longest write beside the syncs".into(), with_syncs, "ms", Goal::None);
    let goal = Goal::AtMost(alone.max(with_syncs).max(5.0));
    figures.add(SECTION, "longest write with creations".into(), with_creations, "ms", goal);
}

fn first_writes(
    rig: &Rig<'_>,
    figures: &mut Figures,
    chunk: u64,
    method: Method,
    sustained: f64,
) -> Result<()> {
    let args = rig.args;
    if !args.scope.wants("burst") && !args.scope.wants("sustained") {
        return Ok(());
    }
    let name = method.name();
    let volume = format!("{name}-{}", chunk / KIB);
    let what = format!("{name}, {} KiB chunks", chunk / KIB);
    rig.filled(&volume, chunk, method)?;
    if args.scope.wants("burst") {
        let measured = rig.first_writes(&volume, args.burst(), args.pairs())?;
        measured.report(figures, "burst", &what, Goal::AtLeast(0.9));
    }
    if args.scope.wants("sustained") {
        let measured = rig.first_writes(&volume, args.sustained(), args.scope.rounds.min(2))?;
        measured.report(figures, "sustained", &what, Goal::AtLeast(sustained));
    }
    rig.remove(&volume)
}

/// Measures rollbacks of a fully written volume and of a huge thin volume. The time of a rollback
/// must not depend on the size of the volume.
fn roll_back(rig: &Rig<'_>, figures: &mut Figures) -> Result<()> {
    rig.filled("roll-written", 16 * KIB, Method::Row)?;
    rig.hindcast.create_volume("roll-huge", 16 << 40, 16 * KIB)?;
    for (volume, what) in [("roll-written", "fully written volume"), ("roll-huge", "thin volume of 16 TiB")] {
        rig.writes(volume, rig.args.burst() / 4, 1)?;
        rig.snapshot(volume, "before")?;
        rig.writes(volume, rig.args.burst() / 4, 2)?;
        let mut times = Vec::new();
        for n in 0..10 {
            let how = RollBack { undo: Some(format!("undo{n}")), undo_keep_seconds: None, force: true };
            let (_, took) = timed(|| rig.api().roll_back(volume, "before", &how))?;
            times.push(took.as_secs_f64() * 1000.0);
        }
        figures.add("rollback", what.into(), median(times), "ms", Goal::AtMost(10.0));
        rig.remove(volume)?;
    }
    Ok(())
}

/// Returns the directory in which fio leaves its files.
fn fio_dir(scratch: &Scratch) -> std::path::PathBuf {
    scratch.join("")
}

/// Makes random writes of 4 KiB on any NBD server. Returns the writes per second.
fn peer_writes(uri: &str, bytes: u64, seed: u64, dir: &Path) -> Result<f64> {
    Ok(fio::run(&random_writes(bytes, seed), uri, dir)?.iops)
}
