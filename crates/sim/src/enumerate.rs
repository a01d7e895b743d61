//! Small scripts, cut at every single point: each disk operation, each sync, each way to crash.

use crate::disk::CrashPoint;
use crate::fate::PowerLoss;
use crate::oracle::VolumeModel;
use crate::run::{Outcome, Run, Summary, Trace};
use crate::workload::{Crash, Op, Plan};
use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::pool::Placement;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A short history with a name.
pub struct Script {
    /// For `sim --enumerate NAME`.
    pub name: &'static str,
    /// 512 or 4096.
    pub atomic_unit: u32,
    /// The crash may also come while the pool is being created.
    pub from_creation: bool,
    /// What happens.
    pub ops: Vec<Op>,
}

const KIB: u64 = 1 << 10;

fn volume(name: &str, size: u64, chunk_size: u64, block_size: u32) -> Op {
    Op::Create(VolumeModel::new(name.into(), size, chunk_size, block_size, false))
}

fn write(offset: u64, len: u64, fua: bool) -> Op {
    Op::Write { vol: 1, parts: vec![(offset, len)], fua }
}

fn discard(offset: u64, len: u64) -> Op {
    Op::Discard { vol: 1, offset, len, fua: false }
}

/// All scripts. Volumes are numbered in the order of their creation, from 1.
pub fn scripts() -> Vec<Script> {
    let overwrite = |atomic_unit, chunk| {
        vec![
            volume("a", 256 * KIB, chunk, 512),
            write(0, 40 * KIB, false),
            write(1024, 512, true),
            Op::Drain,
            // In place now, in whole chunks and in parts, with neighbours that must not suffer.
            write(512, 1536, false),
            write(chunk, chunk, false),
            write(8 * KIB - 512, 1024, false),
            Op::Flush(1),
            Op::Maintain(2),
            write(512, 512, false),
            Op::Settle,
            write(3 * KIB, 9 * KIB, atomic_unit == 512),
            Op::Drain,
        ]
    };
    vec![
        Script {
            name: "create",
            atomic_unit: 4096,
            from_creation: true,
            ops: vec![volume("a", 64 * KIB, 4 * KIB, 512), write(0, 4 * KIB, true)],
        },
        Script { name: "overwrite", atomic_unit: 4096, from_creation: false, ops: overwrite(4096, 16 * KIB) },
        Script { name: "overwrite-512", atomic_unit: 512, from_creation: false, ops: overwrite(512, 1024) },
        Script { name: "small-chunks", atomic_unit: 4096, from_creation: false, ops: overwrite(4096, 512) },
        Script {
            name: "volumes",
            atomic_unit: 4096,
            from_creation: false,
            ops: vec![
                volume("a", 128 * KIB, 16 * KIB, 4096),
                write(0, 64 * KIB, false),
                volume("b", 64 * KIB, 4 * KIB, 512),
                Op::Write { vol: 2, parts: vec![(0, 512), (4096, 8192), (512, 1024)], fua: false },
                Op::Rename(1, "c".into()),
                Op::Resize { vol: 1, size: 20 * KIB, force: true },
                Op::Resize { vol: 1, size: 96 * KIB, force: false },
                Op::Maintain(1),
                Op::ReadOnly(2, true),
                write(16 * KIB, 8 * KIB, false),
                Op::Drain,
                Op::Delete { vol: 1, force: true },
                Op::Settle,
                volume("a", 64 * KIB, 4 * KIB, 512),
                Op::Write { vol: 3, parts: vec![(0, 48 * KIB)], fua: true },
                Op::Settle,
            ],
        },
        Script {
            name: "holes",
            atomic_unit: 4096,
            from_creation: false,
            ops: vec![
                volume("a", 512 * KIB, 16 * KIB, 512),
                write(0, 300 * KIB, false),
                Op::Drain,
                discard(10 * KIB, 100 * KIB),
                write(40 * KIB, 2 * KIB, false),
                Op::Zeroes { vol: 1, offset: 200 * KIB, len: 50 * KIB, unmap: false, fua: false },
                Op::Flush(1),
                Op::Maintain(1),
                discard(0, 512 * KIB),
                write(100 * KIB, KIB, false),
                Op::Drain,
                Op::Status { vol: 1, offset: 0, len: 512 * KIB, max_runs: 100 },
                // The slots that were freed are used again.
                write(128 * KIB, 256 * KIB, false),
                Op::Settle,
            ],
        },
        Script {
            name: "physical-volumes",
            atomic_unit: 512,
            from_creation: false,
            ops: vec![
                volume("a", 512 * KIB, 4 * KIB, 512),
                write(0, 200 * KIB, false),
                Op::Drain,
                Op::AddPv { size: (1 << 20) + 30 * 64 * KIB, device: false },
                Op::Placement(Placement::Anywhere),
                Op::DrainPv(0, true),
                write(100 * KIB, 200 * KIB, false),
                Op::Settle,
                Op::Drain,
                Op::Settle,
                Op::RemovePv(0),
                write(0, 100 * KIB, true),
                Op::Drain,
            ],
        },
        Script {
            name: "reopen",
            atomic_unit: 4096,
            from_creation: false,
            ops: vec![
                volume("a", 256 * KIB, 4 * KIB, 512),
                write(0, 20 * KIB, false),
                Op::Crash(Crash::Kill),
                // What the kill left in the page cache must have become durable, or must become so now.
                Op::Flush(1),
                write(4 * KIB, 512, false),
                Op::Crash(Crash::Power(PowerLoss::LoseAll)),
                write(16 * KIB, 8 * KIB, false),
                Op::Crash(Crash::Kill),
                Op::Drain,
            ],
        },
        Script {
            name: "segments",
            atomic_unit: 4096,
            from_creation: false,
            ops: vec![
                volume("a", 1 << 20, 64 * KIB, 4096),
                write(0, 200 * KIB, false),
                write(100 * KIB, 300 * KIB, false),
                Op::Flush(1),
                Op::Maintain(1),
                write(0, 600 * KIB, false),
                write(300 * KIB, 200 * KIB, true),
                Op::Reopen(None),
                write(0, 400 * KIB, false),
                Op::Reopen(Some(PowerLoss::LoseAll)),
                write(500 * KIB, 300 * KIB, false),
                Op::Drain,
            ],
        },
    ]
}

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
