//! Measures histories of up to ten thousand snapshots: the speed of writes as a history grows,
//! reads of the oldest and the newest snapshot, and the deletion of a thousand snapshots while a
//! client writes.
//!
//! The independent order is measured too. In that order a write costs a copy for each snapshot.

use super::{KIB, Rig, random_writes};
use crate::figures::{Figures, Goal};
use crate::fio::{self, Amount, Job};
use crate::samples::median;
use anyhow::Result;
use hindcast_api::{Method, Order, PatchVolume};
use std::time::{Duration, Instant};

const SECTION: &str = "many";
const VOLUME: &str = "many";
/// Name of a volume that keeps one snapshot. It is written to in turns with [`VOLUME`].
const BESIDE: &str = "one";
/// Number of snapshots that one request deletes.
pub(super) const AT_ONCE: usize = 200;
/// Random writes per second while snapshots are created. They make the snapshots differ.
const TRICKLE: u64 = 4000;
/// Number of snapshots that are deleted while a client writes.
const DELETED: usize = 1000;

fn name(n: usize) -> String {
    format!("s{n:05}")
}

/// Measures writes, reads and deletions in histories of many snapshots.
pub(super) fn run(rig: &Rig<'_>, figures: &mut Figures) -> Result<()> {
    independent(rig, figures)?;
    let most = if rig.args.scope.quick { rig.args.most.min(100) } else { rig.args.most };
    for volume in [BESIDE, VOLUME] {
        rig.filled(volume, 4 * KIB, Method::Row)?;
        grow(rig, volume, 0, 1)?;
        // This run does not count, because it finds cold caches.
        rig.writes(volume, rig.args.burst(), 0)?;
        rig.settle()?;
    }
    let mut made = 1;
    while made * 10 <= most {
        let took = grow(rig, VOLUME, made, made * 10)?;
        made *= 10;
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for round in 0..rig.args.pairs() {
            let seed = (made * 100 + round) as u64;
            // The two volumes take turns in being the first of a round.
            for second in [round % 2 == 1, round % 2 == 0] {
                let (volume, speeds) = if second { (VOLUME, &mut many) } else { (BESIDE, &mut few) };
                rig.settle()?;
                speeds.push(rig.first_writes_once(volume, rig.args.burst(), seed)?.iops);
            }
        }
        rig.settle()?;
        let ratio = median(few.iter().zip(&many).map(|(few, many)| many / few).collect());
        let (few, many) = (median(few), median(many));
        figures.add(SECTION, format!("random writes, 1 snapshot, beside {made}"), few, "IOPS", Goal::None);
        figures.add(SECTION, format!("random writes, {made} snapshots"), many, "IOPS", Goal::None);
        figures.add(SECTION, format!("… to one snapshot, {made} snapshots"), ratio, "×", Goal::AtLeast(0.95));
        eprintln!("  grown to {made} in {took:.1?}");
    }
    rig.remove(BESIDE)?;
    read(rig, figures, made)?;
    delete(rig, figures, made)?;
    rig.remove(VOLUME)
}

/// Measures bursts after 1 and after 10 snapshots in the independent order. The snapshots share
/// nothing, and even the first one gets a copy of its own. So each burst makes as many copies as
/// there are snapshots.
fn independent(rig: &Rig<'_>, figures: &mut Figures) -> Result<()> {
    rig.filled(VOLUME, 4 * KIB, Method::Row)?;
    let alone = PatchVolume { order: Some(Order::Independent), ..PatchVolume::default() };
    rig.api().patch_volume(VOLUME, &alone)?;
    let mut first = None;
    for count in [1, 10] {
        let names: Vec<String> = (0..count).map(|n| format!("own{count}-{n}")).collect();
        for name in &names {
            rig.snapshot(VOLUME, name)?;
        }
        let start = Instant::now();
        rig.writes(VOLUME, rig.args.burst(), count)?;
        rig.settle()?;
        // The server makes the copies in the background. The measured time includes that work.
        let speed = (rig.args.burst() / (4 * KIB)) as f64 / start.elapsed().as_secs_f64();
        let ratio = speed / *first.get_or_insert(speed);
        figures.add(
            SECTION,
            format!("independent order, {count} snapshots, settled"),
            speed,
            "IOPS",
            Goal::None,
        );
        figures.add(SECTION, format!("… to one snapshot, {count} snapshots"), ratio, "×", Goal::None);
        rig.delete(VOLUME, &names)?;
        rig.settle()?;
    }
    rig.remove(VOLUME)
}

/// Creates the snapshots `made..target`, with a few writes between one and the next. Returns the
/// time of the creations.
fn grow(rig: &Rig<'_>, volume: &str, made: usize, target: usize) -> Result<Duration> {
    let trickle =
        Job { rate: Some(TRICKLE), amount: Amount::Seconds(3600), ..random_writes(0, target as u64) };
    let load = fio::spawn(&trickle, &rig.hindcast.export(volume), &rig.dir())?;
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    for n in made..target {
        rig.snapshot(volume, &name(n))?;
    }
    let took = start.elapsed();
    drop(load);
    rig.settle()?;
    Ok(took)
}

fn read(rig: &Rig<'_>, figures: &mut Figures, made: usize) -> Result<()> {
    let job = Job::reads(Amount::Bytes(rig.args.scope.size), true, 5);
    let mut speeds = Vec::new();
    for (what, n) in [("newest", made - 1), ("oldest", 0)] {
        let uri = rig.hindcast.export(&format!("{VOLUME}@{}", name(n)));
        let cold = fio::run(&job, &uri, &rig.dir())?.iops;
        let timed = Job {
            amount: Amount::Seconds(if rig.args.scope.quick { 1 } else { 5 }),
            once: false,
            ..job.clone()
        };
        let warm = fio::run(&timed, &uri, &rig.dir())?.iops;
        figures.add(SECTION, format!("first random read of the {what} of {made}"), cold, "IOPS", Goal::None);
        figures.add(SECTION, format!("random read of the {what} of {made}"), warm, "IOPS", Goal::None);
        speeds.push(warm);
    }
    let ratio = speeds[1] / speeds[0];
    figures.add(SECTION, "reading the oldest to the newest".into(), ratio, "×", Goal::AtLeast(0.7));
    Ok(())
}

fn delete(rig: &Rig<'_>, figures: &mut Figures, made: usize) -> Result<()> {
    let bytes = rig.args.scope.journal * if rig.args.scope.quick { 1 } else { 2 };
    let plain = rig.first_writes_once(VOLUME, bytes, 71)?.iops;
    rig.settle()?;
    let count = made.min(DELETED);
    let names: Vec<String> = (0..count).map(name).collect();
    let used = rig.used()?;
    for some in names.chunks(AT_ONCE) {
        rig.delete(VOLUME, some)?;
    }
    let start = Instant::now();
    let during = rig.first_writes_once(VOLUME, bytes, 72)?.iops;
    let during_load = start.elapsed();
    rig.settle()?;
    let freed = used.saturating_sub(rig.used()?);
    figures.add(SECTION, "client without a deletion".into(), plain, "IOPS", Goal::None);
    figures.add(SECTION, format!("client while {count} snapshots are deleted"), during, "IOPS", Goal::None);
    figures.add(SECTION, "… to without".into(), during / plain, "×", Goal::AtLeast(0.85));
    figures.add(SECTION, "time until all was freed".into(), start.elapsed().as_secs_f64(), "s", Goal::None);
    eprintln!("  {freed} bytes fewer in use; the load itself took {during_load:.1?}");
    Ok(())
}
