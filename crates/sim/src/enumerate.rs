//! Enumeration: runs each script once for every point at which it can be cut: each disk operation,
//! each sync, each way to crash.

use crate::disk::{CrashPoint, Stake};
use crate::fate::PowerLoss;
use crate::run::{Outcome, Run, Summary, Trace};
use crate::scripts::Script;
use crate::workload::{Crash, Op, Plan};
use hindcast_engine::disk::SyncPurpose;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

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

fn plan_of(script: &Script) -> Plan {
    let mut plan = Plan::small(script.atomic_unit);
    if script.shared_segments {
        (plan.options.own_histories, plan.options.waiting_runs) = (0, 3);
    }
    plan
}

/// Runs a script with at most one cut, and, for the mutation tests, without the syncs of one
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
    // A script's last acknowledgements must hold, too.
    if let Some(cut) = cut {
        run.step(&Op::Crash(cut.how))?;
    }
    run.finish()?;
    Ok(run)
}

/// All cuts of a script, in order.
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

/// The ways to crash in the middle of one operation that can end differently: where little is at
/// stake, many are one.
fn cuts_at(stake: &Stake, syncs_next: bool) -> Vec<Cut> {
    let at_stake = stake.changes + u64::from(!stake.sync);
    let mut ways = vec![(Crash::Kill, 1), (Crash::Panic, 1)];
    // Between two syncs losing everything always leaves the same; the end is where most was
    // promised.
    if stake.sync || syncs_next {
        ways.push((Crash::Power(PowerLoss::LoseAll), 1));
    }
    // What is drawn by chance deserves more than one try.
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
