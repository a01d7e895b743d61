//! Measures views of any moment of a long history: the time to open one, and the time to read from
//! it.

use super::{Rig, keep, percentile};
use crate::database::{Database, Random, sum_of};
use crate::figures::{Figures, Goal};
use crate::fio::{self, Amount, Flush, Job};
use anyhow::{Result, ensure};
use hindcast_api::{Anchors, Compression, CreateMark, Encoding};
use std::time::{Duration, Instant};

const SECTION: &str = "views";
const VOLUME: &str = "views";
/// Size of a write in bytes. The smallest possible writes make the most records.
const BLOCK: usize = 512;
/// Number of views that are opened by each kind of address.
const OPENED: usize = 500;
/// Writes per second of the client that writes while the newest moments are opened.
const WRITES_A_SECOND: u64 = 5000;
/// Number of moments whose whole content is compared.
const PARTS: u64 = 4;

/// Measures views of moments of a long history.
pub(super) fn run(rig: &mut Rig<'_>, figures: &mut Figures) -> Result<()> {
    let history = history(rig, figures)?;
    rig.rest()?;
    // After the restart, nothing of the index is in memory.
    rig.server.stop()?;
    rig.scratch.forget_cached()?;
    let start = Instant::now();
    rig.server = rig.hindcast.start("")?;
    figures.add(SECTION, "start of the server".into(), start.elapsed().as_secs_f64(), "s", Goal::None);
    open(rig, history.ended, figures)?;
    for (name, sum) in history.marks {
        let found = sum_of(&mut rig.connect(&format!("{VOLUME}@{name}"))?)?;
        ensure!(found == sum, "{VOLUME}@{name} is not what was written");
    }
    read(rig, figures)?;
    open_newest(rig, figures)
}

struct History {
    /// Names of the marks in the history, and the checksums of the content there.
    marks: Vec<(String, u64)>,
    /// Time of the last write.
    ended: Instant,
}

fn history(rig: &Rig<'_>, figures: &mut Figures) -> Result<History> {
    let mut database = Database::new(rig.args.scope.size / 4, BLOCK);
    rig.create(VOLUME, rig.args.scope.size / 4)?;
    database.load(&mut rig.connect(VOLUME)?)?;
    rig.settle()?;
    let every = Anchors::Writes { count: rig.args.anchor };
    rig.keep(VOLUME, keep(Encoding::Parity, Compression::ZeroRun, every))?;
    let count = rig.args.records / PARTS;
    let mut marks = Vec::new();
    let start = Instant::now();
    for part in 0..PARTS {
        let outcome = database.update(&mut rig.connect(VOLUME)?, count, part + 1)?;
        let name = format!("part{part}");
        rig.api().create_mark(VOLUME, &CreateMark { name: name.clone() })?;
        marks.push((name, database.sum()));
        eprintln!("  {} records, {:.0} a second", (part + 1) * count, outcome.iops);
    }
    let ended = Instant::now();
    let log = rig.logged(VOLUME, count * PARTS * BLOCK as u64)?;
    let seconds = start.elapsed().as_secs_f64();
    let mut add = |what: &str, value: f64, unit| figures.add(SECTION, what.into(), value, unit, Goal::None);
    add("records of the history", log.records as f64, "");
    add(
        "writes per second while it was made, until all was in the log",
        log.records as f64 / seconds,
        "IOPS",
    );
    add("anchors", log.anchors as f64, "");
    add("size of the log", log.stored as f64 / f64::from(1 << 20), "MiB");
    add("… for each record", log.stored as f64 / log.records as f64, "B");
    Ok(History { marks, ended })
}

/// Opens views at random moments, and reads 4 KiB from each.
fn open(rig: &Rig<'_>, ended: Instant, figures: &mut Figures) -> Result<()> {
    let (from, to) = rig.window(VOLUME)?;
    // Seconds of the history in which a client wrote.
    let written = rig.api().cdp(VOLUME)?.window_seconds - ended.elapsed().as_secs_f64();
    let mut random = Random(3);
    let blocks = rig.args.scope.size / 4 / 4096;
    for by in ["LSN", "time"] {
        let (mut opening, mut reading) = (Vec::new(), Vec::new());
        for _ in 0..OPENED {
            let moment = match by {
                "LSN" => format!("lsn:{}", from + random.below(to - from + 1)),
                _ => format!("-{:.3}s", ended.elapsed().as_secs_f64() + written * random.share() * 0.99),
            };
            let start = Instant::now();
            let mut view = rig.connect(&format!("{VOLUME}@{moment}"))?;
            opening.push(start.elapsed().as_secs_f64() * 1000.0);
            let start = Instant::now();
            view.read(random.below(blocks) * 4096, 4096)?;
            reading.push(start.elapsed().as_secs_f64() * 1000.0);
        }
        for (what, times, goal) in [
            ("opening a view", &mut opening, Goal::AtMost(100.0)),
            ("its first read, 4 KiB", &mut reading, Goal::None),
        ] {
            let mut add = |name: &str, share, goal| {
                let value = percentile(times, share);
                figures.add(SECTION, format!("{what}, by {by}: {name}"), value, "ms", goal);
            };
            add("median", 0.5, Goal::None);
            add("99th percentile", 0.99, goal);
            add("longest", 1.0, Goal::None);
        }
    }
    Ok(())
}

/// Opens views of the last seconds while a client writes. The newest writes have to be recorded
/// before a view opens.
fn open_newest(rig: &Rig<'_>, figures: &mut Figures) -> Result<()> {
    let seconds = if rig.args.scope.quick { 4 } else { 30 };
    let (amount, rate) = (Amount::Seconds(seconds), Some(WRITES_A_SECOND));
    let job = Job { amount, rate, flush: Flush::Never, ..Job::writes("randwrite", 4 << 10, 32, 0, 9) };
    let client = fio::spawn(&job, &rig.hindcast.export(VOLUME), &rig.dir())?;
    let (start, mut random, mut opening) = (Instant::now(), Random(4), Vec::new());
    while start.elapsed() + Duration::from_secs(1) < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(100));
        let moment = format!("-{:.3}s", 5.0 * random.share());
        let now = Instant::now();
        drop(rig.connect(&format!("{VOLUME}@{moment}"))?);
        opening.push(now.elapsed().as_secs_f64() * 1000.0);
    }
    client.wait(Duration::from_millis(20), || Ok(()))?;
    for (name, share) in [("median", 0.5), ("99th percentile", 0.99), ("longest", 1.0)] {
        let what = format!("opening a view of the last 5 s beside {WRITES_A_SECOND} writes a second: {name}");
        figures.add(SECTION, what, percentile(&mut opening, share), "ms", Goal::None);
    }
    Ok(())
}

/// Measures random reads from views of three moments, and from the volume itself.
fn read(rig: &Rig<'_>, figures: &mut Figures) -> Result<()> {
    let (from, to) = rig.window(VOLUME)?;
    let seconds = if rig.args.scope.quick { 1 } else { 5 };
    let job = Job::reads(Amount::Seconds(seconds), false, 5);
    for (what, export) in [
        ("the volume itself", VOLUME.to_owned()),
        ("a view of the newest tenth", format!("{VOLUME}@lsn:{}", to - (to - from) / 17)),
        ("a view of the middle", format!("{VOLUME}@lsn:{}", from + (to - from) / 2)),
        ("a view of the oldest tenth", format!("{VOLUME}@lsn:{}", from + (to - from) / 17)),
    ] {
        let iops = fio::run(&job, &rig.hindcast.export(&export), &rig.dir())?.iops;
        figures.add(SECTION, format!("random read 4 KiB, depth 32: {what}"), iops, "IOPS", Goal::None);
    }
    Ok(())
}
