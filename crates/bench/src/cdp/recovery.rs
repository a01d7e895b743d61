//! Full recovery time against the recovery point: with anchors (ST-CDP), and without (native TRAP). The same writes, the same
//! points.

use super::{Rig, keep};
use crate::database::{Database, sum_of};
use crate::figures::{Figures, Goal};
use crate::plot::{self, Line};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SECTION: &str = "recovery";
const BLOCK: usize = 8 << 10;
/// Points in the past, evenly spread over the history.
const POINTS: u64 = 8;
/// Anchors of ST-CDP between two points.
const ANCHORS: u64 = 2;
const NAMES: [&str; 2] = ["ST-CDP", "native TRAP"];
const VOLUMES: [&str; 2] = ["st-cdp", "trap"];
/// A recovery may take so long.
const LIMIT: Duration = Duration::from_secs(600);

/// A recovery to one point, on either volume.
struct Point {
    /// Writes that were made after it.
    past: u64,
    /// Seconds until the new volume is complete.
    seconds: [f64; 2],
    /// Seconds until it can be used.
    there: [f64; 2],
}

/// See the module.
pub(super) fn run(rig: &mut Rig<'_>, figures: &mut Figures) -> Result<()> {
    let size = rig.args.size() / 8;
    let writes = rig.args.writes() / POINTS;
    // One more than needed would be one at each point, whose recovery is a copy.
    let distance = writes * 2 / (ANCHORS * 2 + 1);
    let every = json!({ "policy": "writes", "count": distance });
    let mut sums = Vec::new();
    for (volume, anchors) in VOLUMES.into_iter().zip([every, json!({ "policy": "never" })]) {
        sums = history(rig, volume, &anchors, size, writes)?;
        let log = rig.logged(volume, writes * POINTS * BLOCK as u64)?;
        let what = |what: &str| format!("{volume}: {what}");
        figures.add(SECTION, what("records"), log.records as f64, "", Goal::None);
        figures.add(SECTION, what("anchors"), log.anchors as f64, "", Goal::None);
        let stored = log.stored as f64 / f64::from(1 << 20);
        figures.add(SECTION, what("size of the log"), stored, "MiB", Goal::None);
    }
    let mut points = Vec::new();
    for (point, sum) in sums.iter().enumerate().rev() {
        let mut measured =
            Point { past: writes * (POINTS - point as u64), seconds: [0.0; 2], there: [0.0; 2] };
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

/// Makes a history with a mark at the begin of each of its parts; the sums of the content there.
fn history(rig: &Rig<'_>, volume: &str, anchors: &Value, size: u64, writes: u64) -> Result<Vec<u64>> {
    let mut database = Database::new(size, BLOCK);
    rig.create(volume, size)?;
    database.load(&mut rig.connect(volume)?)?;
    rig.settle()?;
    rig.keep(volume, &keep("parity", "zero-run", anchors))?;
    let mut sums = Vec::new();
    for point in 0..POINTS {
        let mark = json!({ "name": format!("point{point}") });
        rig.hindcast.api("POST", &format!("/volumes/{volume}/marks"), &mark)?;
        sums.push(database.sum());
        let outcome = database.update(&mut rig.connect(volume)?, writes, point + 1)?;
        eprintln!("  {volume}: {} writes, {:.0} a second", (point + 1) * writes, outcome.iops);
    }
    Ok(sums)
}

/// Recovers to a new volume: time until it can be used, and until it depends on the history no more.
fn recover(rig: &Rig<'_>, volume: &str, point: usize, sum: u64) -> Result<(Duration, Duration)> {
    const NEW: &str = "recovered";
    let what = json!({
        "volumes": [{ "volume": volume, "name": NEW }], "to": format!("point{point}"), "complete": 0,
    });
    let start = Instant::now();
    let (_, there) = rig.hindcast.api("POST", "/recoveries", &what)?;
    loop {
        let (state, _) = rig.hindcast.api("GET", &format!("/volumes/{NEW}/flatten"), &Value::Null)?;
        if state["running"].is_null() {
            ensure!(
                state["origin"].is_null(),
                "the recovery of {volume} ended before it was complete: {state}"
            );
            break;
        }
        ensure!(state["running"]["stalled"].is_null(), "the recovery of {volume} is stalled: {state}");
        ensure!(start.elapsed() < LIMIT, "the recovery of {volume} takes too long: {state}");
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
        "An anchor every {distance} writes, or none; seconds until the new volume is there, and until it is complete.\n\n\
         | writes back | {0}: there | complete | {1}: there | complete |\n|--:|--:|--:|--:|--:|\n",
        NAMES[0], NAMES[1]
    );
    for p in points {
        text.push_str(&format!(
            "| {} | {:.3} | {:.2} | {:.3} | {:.2} |\n",
            p.past, p.there[0], p.seconds[0], p.there[1], p.seconds[1]
        ));
    }
    let data: Vec<Value> = points
        .iter()
        .map(|p| json!({ "writes_back": p.past, "there_seconds": p.there, "complete_seconds": p.seconds }))
        .collect();
    figures.table(SECTION, text, json!({ "names": NAMES, "points": data }));
    let all = |n: usize| points.iter().map(move |p| p.seconds[n]);
    for (n, name) in NAMES.into_iter().enumerate() {
        let ratio = all(n).fold(0.0, f64::max) / all(n).fold(f64::INFINITY, f64::min);
        figures.add(SECTION, format!("{name}: longest to shortest recovery"), ratio, "×", Goal::None);
    }
    let longest = all(1).fold(0.0, f64::max) / all(0).fold(0.0, f64::max);
    figures.add(SECTION, "longest recovery, native TRAP to ST-CDP".into(), longest, "×", Goal::None);
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
