//! Histories of up to ten thousand snapshots: the speed of writes as they grow, reading the oldest
//! and the newest, and deleting a thousand while a client writes.
//!
//! The independent order is measured beside them: there a write costs a copy for each snapshot.

use super::{KIB, Rig, random_writes};
use crate::figures::{Figures, Goal};
use crate::fio::{self, Amount, Job};
use crate::samples::median;
use anyhow::Result;
use hindcast_api::{Method, Order, PatchVolume};
use std::time::{Duration, Instant};

const SECTION: &str = "many";
const VOLUME: &str = "many";
/// A volume that keeps one snapshot, and is written to in turns with the other.
const BESIDE: &str = "one";
/// Snapshots that one request deletes.
pub(super) const AT_ONCE: usize = 200;
/// Random writes per second while a history is made, so that its snapshots differ.
const TRICKLE: u64 = 4000;
/// Snapshots deleted while a client writes.
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
        // Thrown away: it finds cold caches.
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
            // Now this one first, now that.
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

/// Bursts after 1 and 10 snapshots that share nothing, the first of them included: each writes as
/// many copies.
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
        // Copies are made in the background: until it is done counts.
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

/// Snapshots `made..target`, with a few writes between one and the next.
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
