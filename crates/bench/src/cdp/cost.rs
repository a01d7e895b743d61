//! Measures the run-time cost of each encoding. The same runs alternate between a volume without
//! history and volumes with history.

use super::{Rig, keep};
use crate::database::Database;
use crate::figures::{Figures, Goal};
use crate::fio::{self, Job};
use crate::process;
use crate::report::{self, Layout};
use crate::rig::SETTLE_LIMIT;
use crate::samples::{Row, Sample, Series};
use crate::units;
use anyhow::Result;
use hindcast_api::{Anchors, Compression, Encoding};

const SECTION: &str = "cost";
const WITHOUT: &str = "without";
const BLOCK: u64 = 8 << 10;
/// Largest limit of the log of a limited volume, in bytes. A small volume has a limit of twice its
/// size. Retention is part of the measured cost.
const RETAINED: u64 = 3 << 29;

/// A volume of the comparison.
struct Kept {
    /// Name in the report.
    name: &'static str,
    volume: &'static str,
    /// Encoding and compression of the history, or `None` for no history.
    how: Option<(Encoding, Compression)>,
    /// Whether the size of the log is limited. With `redo`, a limit requires anchors, and chunks
    /// are preserved after each anchor. That has a cost of its own.
    limited: bool,
    /// Whether the goals apply to this volume.
    strict: bool,
}

const fn kept(
    name: &'static str,
    volume: &'static str,
    how: (Encoding, Compression),
    limited: bool,
    strict: bool,
) -> Kept {
    Kept { name, volume, how: Some(how), limited, strict }
}

const KEPT: [Kept; 6] = [
    Kept { name: WITHOUT, volume: "without", how: None, limited: false, strict: false },
    kept("parity", "parity", (Encoding::Parity, Compression::ZeroRun), true, true),
    kept("undo", "undo", (Encoding::Undo, Compression::ZeroRun), true, true),
    kept("redo", "redo", (Encoding::Redo, Compression::ZeroRun), false, true),
    kept("redo, limited", "redo-limited", (Encoding::Redo, Compression::ZeroRun), true, false),
    kept("parity, zstd", "parity-zstd", (Encoding::Parity, Compression::Zstd), true, false),
];

const LAYOUT: Layout = Layout {
    subject: "history",
    baseline: WITHOUT,
    client_bound: "The client used most of a core: it is the limit.",
    note: " A final flush is inside the time.",
};

/// The load of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Load {
    /// Updates of blocks of 8 KiB, of which a few per cent change, as a database makes them.
    #[value(name = "updates")]
    Database,
    /// Writes of blocks of 4 KiB at random offsets.
    Random,
    /// Writes of 64 KiB, one after another.
    Sequential,
}

/// The loads: (load, name of its burst, name of its sustained run).
const LOADS: [(Load, &str, &str); 3] = [
    (
        Load::Database,
        "burst: updates of 8 KiB blocks, 3 % changed",
        "sustained: updates of 8 KiB blocks, 3 % changed",
    ),
    (Load::Random, "burst: random write 4 KiB", "sustained: random write 4 KiB"),
    (Load::Sequential, "burst: sequential write 64 KiB", "sustained: sequential write 64 KiB"),
];

/// Measures what each encoding costs at run time.
pub(super) fn run(rig: &mut Rig<'_>, figures: &mut Figures) -> Result<()> {
    let (mut rows, mut goals) = (Vec::new(), Vec::new());
    let (journal, rounds) = (rig.args.scope.journal, rig.args.scope.rounds);
    let wanted = |(load, ..): &(Load, &str, &str)| rig.args.load.is_none_or(|only| only == *load);
    for (load, burst, sustained) in LOADS.into_iter().filter(wanted) {
        let mut database = create(rig)?;
        // A burst lasts a fraction of a second. In such a short time the speed of a disk varies by
        // a third, so many bursts are needed. One more burst does not count. It finds cold caches,
        // and a journal whose files are still being made.
        rows.push(row(rig, burst, load, journal / 2, rounds * 2, 1, &mut database)?);
        rows.push(row(rig, sustained, load, journal * 4, (rounds / 2).max(1), 0, &mut database)?);
        goals.extend([0.85, 0.6]);
        let mut logs = Vec::new();
        for kept in &KEPT {
            if kept.how.is_some() {
                let log = rig.api().cdp(kept.volume)?;
                logs.push(format!(
                    "{} {} of log and {} anchors",
                    kept.name,
                    units::mib(log.stored),
                    log.anchors
                ));
            }
            rig.remove(kept.volume)?;
        }
        figures.remark(format!("After \u{201c}{sustained}\u{201d}: {}.", logs.join("; ")));
    }
    report(&rows, &goals, figures);
    Ok(())
}

/// Creates the volumes, writes all of them, and returns their content. Each load has new volumes,
/// because a log of `redo` can be shortened only at anchors, and the model sets few of them.
fn create(rig: &Rig<'_>) -> Result<Database> {
    let database = Database::new(rig.args.scope.size, BLOCK as usize);
    for kept in &KEPT {
        rig.create(kept.volume, rig.args.scope.size)?;
        if let Some((encoding, compression)) = kept.how {
            let mut how = keep(encoding, compression, Anchors::Model);
            if kept.limited {
                how.retain_bytes = Some(RETAINED.min(rig.args.scope.size * 2));
            }
            rig.keep(kept.volume, how)?;
        }
        database.load(&mut rig.connect(kept.volume)?)?;
        rig.rest()?;
    }
    Ok(database)
}

fn row(
    rig: &Rig<'_>,
    workload: &'static str,
    load: Load,
    bytes: u64,
    rounds: usize,
    spare: usize,
    database: &mut Database,
) -> Result<Row> {
    let empty = |kept: &Kept| Series { server: kept.name, samples: Vec::new() };
    let mut series: Vec<Series> = KEPT.iter().map(empty).collect();
    for round in 0..spare + rounds {
        let seed = 1000 + round as u64;
        let before = database.clone();
        for turn in 0..KEPT.len() {
            // Each round begins with another volume. The first volume of a round finds only the
            // cached pages that the runs of the others, or a pause, have left.
            let n = (round + turn) % KEPT.len();
            // All volumes go through the same contents.
            *database = before.clone();
            let sample = sample(rig, KEPT[n].volume, load, bytes, seed, database)?;
            if round >= spare {
                series[n].samples.push(sample);
            }
        }
    }
    let row = Row { workload, series };
    eprint!("{}", report::progress(&LAYOUT, &row));
    Ok(row)
}

fn sample(
    rig: &Rig<'_>,
    volume: &str,
    load: Load,
    bytes: u64,
    seed: u64,
    database: &mut Database,
) -> Result<Sample> {
    let fio = |rw, block, depth| {
        fio::run(&Job::writes(rw, block, depth, bytes, seed), &rig.hindcast.export(volume), &rig.dir())
    };
    process::sample(rig.server.pid(), SETTLE_LIMIT, || match load {
        Load::Database => database.update(&mut rig.connect(volume)?, bytes / BLOCK, seed),
        Load::Random => fio("randwrite", 4 << 10, 32),
        Load::Sequential => fio("write", 64 << 10, 8),
    })
}

fn report(rows: &[Row], goals: &[f64], figures: &mut Figures) {
    for (row, least) in rows.iter().zip(goals) {
        let Some(base) = row.of(WITHOUT) else { continue };
        for kept in &KEPT[1..] {
            let Some(series) = row.of(kept.name) else { continue };
            let goal = if kept.strict { Goal::AtLeast(*least) } else { Goal::None };
            let ratio = series.ratio(base, |sample| sample.outcome.iops);
            figures.add(SECTION, format!("{}: {} to {WITHOUT}", row.workload, kept.name), ratio, "×", goal);
        }
    }
    figures.table(SECTION, report::table(&LAYOUT, rows), report::rows_json(&LAYOUT, rows));
    let svg = report::plot_rows(&LAYOUT, "Keeping history", rows);
    figures.picture(SECTION, "cost", "Speed and CPU relative to no history".into(), svg);
}
