//! Enumeration: runs each script once for every cut. There are cuts at each disk operation, of
//! which syncs are some, and for each way to crash there that can end differently. A way that is
//! drawn by chance is tried with several seeds.

use crate::disk::{CrashPoint, Stake};
use crate::fate::PowerLoss;
use crate::run::{Outcome, Run, Trace};
use crate::scripts::Script;
use crate::summary::Summary;
use crate::workload::{Crash, Op, Plan};
use hindcast_engine::disk::SyncPurpose;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One cut of one script.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// The point of the crash.
    pub point: CrashPoint,
    /// The kind of the crash.
    pub how: Crash,
    /// Seed of the random decisions of the run and its machine.
    pub seed: u64,
}

/// The number of disk operations within which the rebuild behind a cut is cut, too: about as
/// many as it takes.
const REBUILD_OPS: u64 = 150;

fn plan_of(script: &Script) -> Plan {
    let mut plan = Plan::small(script.atomic_unit);
    if script.shared_segments {
        (plan.options.own_histories, plan.options.waiting_runs) = (0, 3);
    }
    if script.references {
        (plan.references, plan.options.direct_min) = (true, Some(16 << 10));
        plan.options.keep_distance = Some(48 << 10);
    }
    plan.sums = script.sums;
    plan.layout = script.layout;
    plan.spares = script.spares;
    (plan.grows, plan.reserve) = (script.grows, script.reserve);
    plan.makes_zeros = script.makes_zeros;
    if script.grows {
        // All that moves is in use.
        plan.pvs = vec![((1 << 20) + 14 * plan.config.extent_size, false)];
    }
    plan
}

/// Runs a script with at most one cut. For the mutation tests it can disable the syncs of one
/// purpose.
pub fn run_script(
    script: &Script,
    cut: Option<Cut>,
    dropped: Option<SyncPurpose>,
    trace: Trace,
) -> Outcome<Run> {
    let mut run = Run::new(cut.map_or(0, |c| c.seed), plan_of(script), false, trace);
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
    // The last acknowledgements of a script must hold, too.
    if let Some(cut) = cut {
        run.step(&Op::Crash(cut.how))?;
        if script.layout.is_some() {
            cut_rebuild(&mut run, cut)?;
        }
    }
    run.finish()?;
    Ok(run)
}

/// Rebuilds the member that fails or is away, with a crash in the middle, and once more.
fn cut_rebuild(run: &mut Run, cut: Cut) -> Outcome<()> {
    // A planned panic is one of the first process only.
    let how = if cut.how == Crash::Panic { Crash::Kill } else { cut.how };
    let mend = Op::DrainPv(0, true);
    let soon = run.dir().counts().ops + 1 + run.rand.below(REBUILD_OPS);
    run.plan_crash(CrashPoint::Op(soon), how);
    run.step(&mend)?;
    run.step(&Op::Crash(how))?;
    run.step(&mend)
}

/// Returns all cuts of a script, in order.
pub fn cuts(script: &Script) -> Outcome<Vec<Cut>> {
    let mut begin = Run::new(0, plan_of(script), false, None);
    if script.from_creation {
        begin.dir().note_stakes();
    }
    begin.create()?;
    if !script.from_creation {
        begin.dir().note_stakes();
    }
    for op in &script.ops {
        begin.step(op)?;
    }
    let stakes = begin.dir().note_stakes();
    let syncs_next = |n: usize| stakes.get(n + 1).is_none_or(|next| next.sync);
    Ok(stakes.iter().enumerate().flat_map(|(n, stake)| cuts_at(stake, syncs_next(n))).collect())
}

/// Returns the ways to crash in the middle of one operation that can end differently. If few
/// changes are at stake, many ways end the same.
fn cuts_at(stake: &Stake, syncs_next: bool) -> Vec<Cut> {
    let at_stake = stake.changes + u64::from(!stake.sync);
    let mut ways = vec![(Crash::Kill, 1), (Crash::Panic, 1)];
    // Between two syncs, a loss of everything always leaves the same. So this way is used only at a
    // sync and just before one, where most was promised.
    if stake.sync || syncs_next {
        ways.push((Crash::Power(PowerLoss::LoseAll), 1));
    }
    // A way that is drawn by chance deserves more than one try.
    if at_stake > 0 {
        ways.push((Crash::Power(PowerLoss::Tears), 3));
    }
    if at_stake > 1 {
        ways.push((Crash::Power(PowerLoss::Subset), 3));
        ways.push((Crash::Power(PowerLoss::Suffix), 1));
    }
    if stake.disks > 1 {
        ways.push((Crash::Power(PowerLoss::ByDisk), 1));
    }
    let point = CrashPoint::Op(stake.op);
    ways.into_iter().flat_map(|(how, seeds)| (0..seeds).map(move |seed| Cut { point, how, seed })).collect()
}

/// The result of the enumeration of one script.
#[derive(Default)]
pub struct Enumerated {
    /// Number of cuts that passed.
    pub passed: u64,
    /// Cuts that failed, and the reasons.
    pub failed: Vec<(Cut, String)>,
    /// Counts of what the runs did.
    pub summary: Summary,
}

/// A part of the cuts of each script: each of `of` parts has every `of`-th cut, and `index` counts
/// from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The number of the part.
    pub index: usize,
    /// The number of parts.
    pub of: usize,
}

impl Part {
    /// All cuts.
    pub const ALL: Part = Part { index: 0, of: 1 };
}

/// Runs a part of the cuts of a script on `jobs` threads. Threads start no more cuts after `limit`
/// failures.
pub fn enumerate(
    script: &Script,
    part: Part,
    dropped: Option<SyncPurpose>,
    limit: usize,
    jobs: usize,
) -> Outcome<Enumerated> {
    run_script(script, None, None, None)
        .map_err(|e| format!("script {} fails without a crash: {e}", script.name))?;
    let cuts: Vec<Cut> = cuts(script)?.into_iter().skip(part.index).step_by(part.of).collect();
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
