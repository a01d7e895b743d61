//! Measures near-CDP. The snapshots of a week, one a minute, are created as fast as possible, with
//! writes between them. The speed of the writes must not depend on the number of snapshots.

use super::Rig;
use crate::database::Random;
use crate::figures::{Figures, Goal};
use crate::samples::median;
use anyhow::{Context, Result};
use hindcast_plot::{self as plot, Line};
use serde_json::json;
use std::time::Instant;

const SECTION: &str = "near";
const VOLUME: &str = "near";
const BLOCK: u64 = 4 << 10;
/// Number of random writes of [`BLOCK`] bytes between two snapshots.
const WRITES: u64 = 100;
const DEPTH: usize = 32;
/// Number of points in the picture.
const POINTS: u64 = 100;
/// Number of points that one figure is made of.
const TENTH: usize = 10;

/// Measures writes between the snapshots of a week.
pub(super) fn run(rig: &mut Rig<'_>, figures: &mut Figures) -> Result<()> {
    let size = rig.args.scope.size;
    rig.hindcast.create_volume(VOLUME, size, BLOCK)?;
    rig.fill(VOLUME, size)?;
    let mut minutes = Minutes { rig, random: Random(9), taken: 0, creations: Vec::new() };
    let total = rig.args.snapshots;
    let each = (total / POINTS).max(1);
    let plain = minutes.pass(rig.args.scope.journal * 2 / (BLOCK * WRITES), false)?;
    // This pass comes before the week begins. It writes more than destage leaves in the journal
    // between snapshots. The destage of snapshots costs more than the destage of writes alone.
    // While the journal has space for what destage leaves in it, the client does not wait for
    // destage.
    let before = rig.args.scope.journal * 3 / (BLOCK * WRITES);
    minutes.pass(before, true)?;
    eprintln!("  {plain:.0} writes a second without snapshots; begin with {before}");
    let used = rig.used()?;
    let mut points = Vec::new();
    while minutes.taken < before + total {
        let speed = minutes.pass(each, true)?;
        points.push(((minutes.taken - before) as f64, speed));
        if points.len() % TENTH == 0 {
            eprintln!("  {} snapshots, {speed:.0} writes a second", minutes.taken - before);
        }
    }
    rig.settle()?;
    let speeds: Vec<f64> = points.iter().map(|(_, speed)| *speed).collect();
    let mean = |speeds: &[f64]| speeds.len() as f64 / speeds.iter().map(|speed| 1.0 / speed).sum::<f64>();
    let count = speeds.len().min(TENTH);
    let (first, last) = (mean(&speeds[..count]), mean(&speeds[speeds.len() - count..]));
    let what = |what: &str| format!("random writes, {WRITES} between snapshots: {what}");
    figures.add(SECTION, what("without snapshots"), plain, "IOPS", Goal::None);
    figures.add(SECTION, what("first tenth of the week"), first, "IOPS", Goal::None);
    figures.add(SECTION, what("last tenth of the week"), last, "IOPS", Goal::None);
    figures.add(SECTION, "last tenth to first".into(), last / first, "×", Goal::AtLeast(0.95));
    figures.add(SECTION, "snapshots".into(), minutes.taken as f64, "", Goal::None);
    figures.add(SECTION, "median of creations".into(), median(minutes.creations), "ms", Goal::None);
    let kept = rig.used()?.saturating_sub(used) as f64 / f64::from(1 << 20);
    figures.add(SECTION, "kept by them".into(), kept, "MiB", Goal::None);
    let line = Line { name: "writes, snapshots included".into(), points: points.clone() };
    let svg = plot::lines("A snapshot a minute, for a week", "snapshots", "writes per second", &[line]);
    figures.picture(SECTION, "near", "Speed of writes as snapshots grow in number".into(), svg);
    let data = json!({ "snapshots_and_iops": points });
    figures.table(SECTION, table(&points), data);
    Ok(())
}

/// Returns a table of every tenth point.
fn table(points: &[(f64, f64)]) -> String {
    let mut text = String::from("| snapshots | writes per second |\n|--:|--:|\n");
    for (taken, speed) in points.iter().skip(TENTH - 1).step_by(TENTH) {
        text.push_str(&format!("| {taken} | {speed:.0} |\n"));
    }
    text
}

struct Minutes<'a> {
    rig: &'a Rig<'a>,
    random: Random,
    taken: u64,
    creations: Vec<f64>,
}

impl Minutes<'_> {
    /// Writes [`WRITES`] blocks for each of `minutes` minutes. With `snapshots`, creates a snapshot
    /// after the writes of each minute. Returns the writes per second over all minutes.
    fn pass(&mut self, minutes: u64, snapshots: bool) -> Result<f64> {
        let blocks = self.rig.args.scope.size / BLOCK;
        let mut client = self.rig.connect(VOLUME)?;
        let mut content = vec![0; BLOCK as usize];
        let start = Instant::now();
        for _ in 0..minutes {
            let mut left = WRITES;
            client
                .write(DEPTH, &mut Vec::new(), |out| {
                    if left == 0 {
                        return Ok(None);
                    }
                    left -= 1;
                    for part in content.chunks_exact_mut(8) {
                        part.copy_from_slice(&self.random.next().to_le_bytes());
                    }
                    out.extend_from_slice(&content);
                    Ok(Some(self.random.below(blocks) * BLOCK))
                })
                .context("write between snapshots")?;
            if snapshots {
                let took = self.rig.snapshot(VOLUME, &format!("m{:05}", self.taken))?;
                self.creations.push(took.as_secs_f64() * 1000.0);
                self.taken += 1;
            }
        }
        client.flush()?;
        Ok((minutes * WRITES) as f64 / start.elapsed().as_secs_f64())
    }
}
