//! Scripts, cut at every single point: each disk operation, each sync, each way to crash.

use crate::disk::CrashPoint;
use crate::fate::PowerLoss;
use crate::run::{Outcome, Run, Summary, Trace};
use crate::scripts::Script;
use crate::workload::{Crash, Op, Plan};
use hindcast_engine::disk::SyncPurpose;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const CRASHES: [Crash; 7] = [
    Crash::Kill,
    Crash::Power(PowerLoss::LoseAll),
    Crash::Power(PowerLoss::KeepAll),
    Crash::Power(PowerLoss::Subset),
    Crash::Power(PowerLoss::Tears),
    Crash::Power(PowerLoss::Suffix),
    Crash::Power(PowerLoss::ByDisk),
];

/// One cut of one script.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Where.
    pub point: CrashPoint,
    /// How.
    pub how: Crash,
    /// The chances of the machine.
    pub seed: u64,
}

/// Runs a script with at most one cut, and, for the mutation tests, without the syncs of one purpose.
pub fn run_script(
    script: &Script,
    cut: Option<Cut>,
    dropped: Option<SyncPurpose>,
    trace: Trace,
) -> Outcome<Run> {
    let mut run = Run::new(cut.map_or(0, |c| c.seed), Plan::small(script.atomic_unit), false, trace);
    if let Some(purpose) = dropped {
        run.dir().drop_syncs(purpose);
    }
    let plan = |run: &mut Run| cut.into_iter().for_each(|cut| run.plan_crash(cut.point, cut.how));
    if script.from_creation {
        plan(&mut run);
        run.create()?;
    } else {
        run.create()?;
        plan(&mut run);
    }
    for op in &script.ops {
        run.step_if_possible(op)?;
    }
    // A script's last acknowledgements must hold, too.
    if let Some(cut) = cut {
        run.step(&Op::Crash(cut.how))?;
    }
    run.finish()?;
    Ok(run)
}

/// All cuts of a script, in order.
pub fn cuts(script: &Script) -> Outcome<Vec<Cut>> {
    let mut begin = Run::new(0, Plan::small(script.atomic_unit), false, None);
    if !script.from_creation {
        begin.create()?;
    }
    let from = begin.dir().counts();
    for op in if script.from_creation { &[] } else { &script.ops[..] } {
        begin.step(op)?;
    }
    if script.from_creation {
        begin.create()?;
        for op in &script.ops {
            begin.step(op)?;
        }
    }
    let to = begin.dir().counts();
    let mut cuts = Vec::new();
    for how in CRASHES {
        // What is drawn by chance deserves more than one try.
        let seeds = if matches!(how, Crash::Power(PowerLoss::Subset | PowerLoss::Tears)) { 3 } else { 1 };
        for seed in 0..seeds {
            let ops = (from.ops + 1..=to.ops).map(CrashPoint::Op);
            let syncs = (from.syncs + 1..=to.syncs).map(CrashPoint::Sync);
            cuts.extend(ops.chain(syncs).map(|point| Cut { point, how, seed }));
        }
    }
    Ok(cuts)
}

/// What one script's enumeration came to.
#[derive(Default)]
pub struct Enumerated {
    /// Cuts that were survived.
    pub passed: u64,
    /// Cuts that were not, and why.
    pub failed: Vec<(Cut, String)>,
    /// What the runs did.
    pub summary: Summary,
}

/// Cuts a script everywhere, with so many threads. Stops after `limit` failures.
pub fn enumerate(
    script: &Script,
    dropped: Option<SyncPurpose>,
    limit: usize,
    jobs: usize,
) -> Outcome<Enumerated> {
    run_script(script, None, None, None)
        .map_err(|e| format!("script {} fails without a crash: {e}", script.name))?;
    let cuts = cuts(script)?;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Enumerated::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = crate::guard(|| run_script(script, Some(*cut), dropped, None));
                    let mut done = done.lock();
                    match result {
                        Ok(run) => {
                            done.passed += 1;
                            done.summary.add(&run.summary());
                        }
                        Err(why) => done.failed.push((*cut, why)),
                    }
                    if done.failed.len() >= limit {
                        break;
                    }
                }
            });
        }
    });
    Ok(done.into_inner())
}
