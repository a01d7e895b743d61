//! Measures the time of a full recovery against the recovery point. There are three histories: with
//! anchors (ST-CDP), without anchors (native TRAP), and without anchors after retention has cut off
//! the anchor at the beginning, as it does in time. The writes and the points are the same for all.

use super::{Rig, keep};
use crate::database::{Database, sum_of};
use crate::figures::{Figures, Goal};
use crate::server::timed;
use anyhow::{Context, Result, ensure};
use hindcast_api::{Anchors, CdpStatus, Compression, CreateMark, Encoding, Recover, RecoverVolume};
use hindcast_plot::{self as plot, Line};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SECTION: &str = "recovery";
const BLOCK: usize = 8 << 10;
/// Number of recovery points, which are evenly spread over the history.
const POINTS: u64 = 8;
/// Number of anchors of ST-CDP between two points.
const ANCHORS: u64 = 2;
/// Names of the histories in the report. The last one still has its beginning. Parities also lead
/// from there.
const NAMES: [&str; SERIES] = ["ST-CDP", "native TRAP", "native TRAP from its begin"];
const VOLUMES: [&str; SERIES] = ["st-cdp", "trap", "trap-begin"];
const SERIES: usize = 3;
/// Index of the history whose beginning retention cuts off.
const CUT: usize = 1;
/// Writes before the first point, as a multiple of the writes between two points. Retention cuts
/// off a part of them, in whole segments of the log.
const BEFORE: u64 = 2;
/// Size of a segment of the log in bytes.
const SEGMENT: u64 = 16 << 20;
/// Ratios that leave room for changes of the machine's speed. Recovery times whose ratio is at most
/// `FLAT` are flat. Recovery times whose ratio is at least `GROWING` grow.
const FLAT: f64 = 1.5;
const GROWING: f64 = 1.5;
/// Longest time that a recovery may take.
const LIMIT: Duration = Duration::from_secs(600);

/// The recoveries to one point, one for each history.
struct Point {
    /// Number of writes that were made after the point.
    past: u64,
    /// Seconds until the new volume is complete.
    seconds: [f64; SERIES],
    /// Seconds until the new volume can be used.
    there: [f64; SERIES],
}

/// Measures recovery to points of a history, with anchors and without anchors.
pub(super) fn run(rig: &mut Rig<'_>, figures: &mut Figures) -> Result<()> {
    let size = rig.args.scope.size / 8;
    let writes = rig.args.writes / POINTS;
    // The distance does not divide the writes between two points. Otherwise every point would have
    // an anchor, and its recovery would be a copy.
    let distance = writes * 2 / (ANCHORS * 2 + 1);
    let every = Anchors::Writes { count: distance };
    let mut sums = Vec::new();
    for (n, (volume, anchors)) in VOLUMES.into_iter().zip([every, Anchors::Never, Anchors::Never]).enumerate()
    {
        sums = history(rig, volume, anchors, size, writes)?;
        let mut log = rig.logged(volume, writes * (POINTS + BEFORE) * BLOCK as u64)?;
        if n == CUT && log.stored * BEFORE / (POINTS + BEFORE) < 2 * SEGMENT {
            figures.remark(format!(
                "The history of {volume} is too short to cut off its begin, and has it still."
            ));
        } else if n == CUT {
            log = cut(rig, volume, &log)?;
        }
        let what = |what: &str| format!("{volume}: {what}");
        figures.add(SECTION, what("records"), log.records as f64, "", Goal::None);
        figures.add(SECTION, what("anchors"), log.anchors as f64, "", Goal::None);
        let stored = log.stored as f64 / f64::from(1 << 20);
        figures.add(SECTION, what("size of the log"), stored, "MiB", Goal::None);
    }
    let mut points = Vec::new();
    for (point, sum) in sums.iter().enumerate().rev() {
        let mut measured =
            Point { past: writes * (POINTS - point as u64), seconds: [0.0; SERIES], there: [0.0; SERIES] };
        for (n, volume) in VOLUMES.into_iter().enumerate() {
            rig.rest()?;
            let (there, complete) = recover(rig, volume, point, *sum)?;
            measured.seconds[n] = complete.as_secs_f64();
            measured.there[n] = there.as_secs_f64();
        }
        eprintln!("  {} writes back: {:.2?} s", measured.past, measured.seconds);
        points.push(measured);
    }
    report(&points, distance, figures);
    Ok(())
}

/// Makes a history in parts, with a mark at the beginning of each part except the first. Returns
/// the checksums of the content at the marks.
fn history(rig: &Rig<'_>, volume: &str, anchors: Anchors, size: u64, writes: u64) -> Result<Vec<u64>> {
    let mut database = Database::new(size, BLOCK);
    rig.create(volume, size)?;
    database.load(&mut rig.connect(volume)?)?;
    rig.settle()?;
    rig.keep(volume, keep(Encoding::Parity, Compression::ZeroRun, anchors))?;
    database.update(&mut rig.connect(volume)?, writes * BEFORE, 0)?;
    let mut sums = Vec::new();
    for point in 0..POINTS {
        rig.api().create_mark(volume, &CreateMark { name: format!("point{point}") })?;
        sums.push(database.sum());
        let outcome = database.update(&mut rig.connect(volume)?, writes, point + 1)?;
        eprintln!("  {volume}: {} writes, {:.0} a second", (point + 1) * writes, outcome.iops);
    }
    Ok(sums)
}

/// Limits the size of a history, and waits until it has lost its beginning with the anchor there.
fn cut(rig: &Rig<'_>, volume: &str, whole: &CdpStatus) -> Result<CdpStatus> {
    let mut how = keep(Encoding::Parity, Compression::ZeroRun, Anchors::Never);
    how.retain_bytes = Some(whole.stored - whole.stored / (POINTS + BEFORE) / 4);
    rig.keep(volume, how)?;
    let start = Instant::now();
    loop {
        let log = rig.api().cdp(volume)?;
        if log.stored < whole.stored && log.anchors == 0 {
            return Ok(log);
        }
        ensure!(start.elapsed() < LIMIT, "{volume} keeps its first anchor: {log:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Recovers to a new volume. Returns the time until the volume can be used, and the time until it
/// no longer depends on the history.
fn recover(rig: &Rig<'_>, volume: &str, point: usize, sum: u64) -> Result<(Duration, Duration)> {
    const NEW: &str = "recovered";
    let what = Recover {
        volumes: vec![RecoverVolume { volume: volume.to_owned(), name: NEW.to_owned() }],
        to: format!("point{point}"),
        last_flush: false,
        complete: Some(0),
    };
    let start = Instant::now();
    let (_, there) = timed(|| rig.api().recover(&what))?;
    loop {
        let state = rig.api().flattening(NEW)?;
        let Some(running) = &state.running else {
            let complete = state.origin.is_none();
            ensure!(complete, "the recovery of {volume} ended before it was complete: {state:?}");
            break;
        };
        ensure!(running.stalled.is_none(), "the recovery of {volume} is stalled: {state:?}");
        ensure!(start.elapsed() < LIMIT, "the recovery of {volume} takes too long: {state:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let complete = start.elapsed();
    let found = sum_of(&mut rig.connect(NEW)?).context("read what was recovered")?;
    ensure!(found == sum, "{volume} recovered to point {point} is not what was written");
    rig.remove(NEW)?;
    Ok((there, complete))
}

fn report(points: &[Point], distance: u64, figures: &mut Figures) {
    let mut text = format!(
        "An anchor every {distance} writes, or none; seconds until the new volume is there, and until it is complete.\n\n"
    );
    let columns: String = NAMES.iter().map(|name| format!(" {name}: there | complete |")).collect();
    text.push_str(&format!("| writes back |{columns}\n|--:|{}\n", "--:|".repeat(2 * SERIES)));
    for p in points {
        let times: String =
            (0..SERIES).map(|n| format!(" {:.3} | {:.2} |", p.there[n], p.seconds[n])).collect();
        text.push_str(&format!("| {} |{times}\n", p.past));
    }
    let data: Vec<Value> = points
        .iter()
        .map(|p| json!({ "writes_back": p.past, "there_seconds": p.there, "complete_seconds": p.seconds }))
        .collect();
    figures.table(SECTION, text, json!({ "names": NAMES, "points": data }));
    let all = |n: usize| points.iter().map(move |p| p.seconds[n]);
    for (n, name) in NAMES.into_iter().enumerate() {
        let ratio = all(n).fold(0.0, f64::max) / all(n).fold(f64::INFINITY, f64::min);
        let goal = if n == 0 { Goal::AtMost(FLAT) } else { Goal::None };
        figures.add(SECTION, format!("{name}: longest to shortest recovery"), ratio, "×", goal);
    }
    // The first point is the nearest.
    if let [nearest, .., farthest] = points {
        let ratio = farthest.seconds[CUT] / nearest.seconds[CUT];
        let what = format!("{}: farthest to nearest", NAMES[CUT]);
        figures.add(SECTION, what, ratio, "×", Goal::AtLeast(GROWING));
    }
    let longest = all(CUT).fold(0.0, f64::max) / all(0).fold(0.0, f64::max);
    figures.add(
        SECTION,
        format!("longest recovery, {} to {}", NAMES[CUT], NAMES[0]),
        longest,
        "×",
        Goal::None,
    );
    let lines: Vec<Line> = NAMES
        .into_iter()
        .enumerate()
        .map(|(n, name)| Line {
            name: name.to_owned(),
            points: points.iter().map(|p| (p.past as f64, p.seconds[n])).collect(),
        })
        .collect();
    let svg = plot::lines("Recovery time against recovery point", "writes back", "seconds", &lines);
    figures.picture(SECTION, "recovery", "Recovery time against recovery point".into(), svg);
}
