//! Hindcast's deterministic simulator.
//!
//! The real engine runs on [`SimDir`], on one thread and from one seed. A run performs random
//! requests and background steps. It crashes at any operation, and then any subset of the unsynced
//! writes is lost, torn or reordered. Other faults happen too. A plain model in memory checks every
//! read. After each crash the model checks that what is left is what I4 promises.
//!
//! - [`random_run`] runs one seed.
//! - [`enumerate`] cuts small scripts at every point.
//! - [`mutate`] disables the syncs of one purpose, or breaks a rule, and demands that a script or a
//!   seed fails.
#![forbid(unsafe_code)]

mod ages;
mod clock;
mod damage;
mod differences;
mod disk;
mod enumerate;
mod fate;
mod features;
mod generate;
mod harm;
mod heard;
mod history;
mod images;
mod layouts;
mod life;
mod mutate;
mod oracle;
mod perform;
mod policies;
mod pvs;
mod rand;
mod run;
mod salvage;
mod scripts;
mod snapshots;
mod streams;
mod summary;
mod trash;
mod workload;

pub use disk::{Counts, CrashPoint, Failing, SimDir};
pub use enumerate::{Cut, Enumerated, Part, cuts, enumerate, run_script};
pub use fate::{PowerLoss, TearModel};
pub use generate::{Generator, Theme};
pub use mutate::{Caught, Mutation, mutate};
pub use oracle::{SnapId, SnapshotModel, State, VolId, VolumeModel};
pub use rand::Rand;
pub use run::{Outcome, Run, Trace};
pub use scripts::{Script, scripts};
pub use summary::Summary;
pub use workload::{ClockMove, Crash, Op, Plan};

use hindcast_engine::disk::SyncPurpose;
use hindcast_engine::pool::Placement;
use hindcast_engine::{Error, ErrorKind};
pub use layouts::Shape;

/// Default number of operations of a random run.
pub const DEFAULT_OPS: u64 = 120;

/// One seed in this many is about a crowd of snapshots.
const CROWD: u64 = 100;
/// A seed about a crowd has this many times as many operations.
const CROWD_OPS: u64 = 8;

/// From this seed on, three pools of four have references from the start. Older seeds repeat their
/// runs.
pub const FIRST_WITH_REFERENCES: u64 = 10_000_000;
/// From this seed on, all pools have sums from the start.
pub const FIRST_WITH_SUMS: u64 = 20_000_000;

/// From this seed on, volumes get least sizes of writes by reference of their own, up to
/// [`FIRST_WITH_MIRRORS`].
pub const FIRST_WITH_OWN_DIRECT: u64 = 25_000_000;

/// From this seed on, all pools are on mirrors, up to [`FIRST_BY_CHUNK`].
pub const FIRST_WITH_MIRRORS: u64 = 30_000_000;
/// From this seed on, all pools are on RAID-5, up to [`FIRST_WITH_SPARES`].
pub const FIRST_WITH_RAID5: u64 = 40_000_000;
/// From this seed on, one pool of three is on a mirror, and two are on RAID-5. All have a spare
/// disk.
pub const FIRST_WITH_SPARES: u64 = 50_000_000;

/// From this seed on, layouts also grow by further disks. A half of them has a spare disk, and a
/// quarter a reserve.
pub const FIRST_WITH_GROWTH: u64 = 60_000_000;

/// From this seed on, half of the physical volumes that are added are dedicated, and so are the
/// volumes that are created on them. The pools are on no layout, and place slots by any placement.
pub const FIRST_DEDICATED: u64 = 70_000_000;

/// From this seed on, one pool of three places its slots by Share at first, one snap-aware, and all
/// may do so later. They are on no layout.
pub const FIRST_BY_CHUNK: u64 = 31_000_000;

/// In the upper half of each million of seeds with a layout, disks make zeros: a RAID-5 knows that
/// its lines are consistent, and gives unused space back.
const MILLION: u64 = 1_000_000;

/// (divisor, remainder): a seed with this remainder is about chunks that are longer than a journal
/// record, unless it is about a crowd.
const LARGE: (u64, u64) = (10, 8);

/// Runs one seed: a random plan, `ops` random operations (8 times as many for a crowd), and a
/// thorough end.
pub fn random_run(seed: u64, ops: u64, dropped: Option<SyncPurpose>, trace: Trace) -> Outcome<Summary> {
    if seed.is_multiple_of(CROWD) {
        return any_run(seed, ops * CROWD_OPS, Theme::Crowd, dropped, trace);
    }
    let theme = if seed % LARGE.0 == LARGE.1 { Theme::Large } else { Theme::Everything };
    any_run(seed, ops, theme, dropped, trace)
}

/// Runs one seed without snapshots, images and histories. Old seeds repeat their runs with it.
pub fn plain_run(seed: u64, ops: u64) -> Outcome<Summary> {
    any_run(seed, ops, Theme::Plain, None, None)
}

fn any_run(
    seed: u64,
    ops: u64,
    theme: Theme,
    dropped: Option<SyncPurpose>,
    trace: Trace,
) -> Outcome<Summary> {
    guard(|| {
        let mut rand = Rand::new(seed);
        let mut plan = Plan::random(&mut rand);
        plan.references = seed >= FIRST_WITH_REFERENCES && !seed.is_multiple_of(4);
        plan.sums = seed >= FIRST_WITH_SUMS;
        plan.own_direct = (FIRST_WITH_OWN_DIRECT..FIRST_WITH_MIRRORS).contains(&seed);
        plan.dedicates = seed >= FIRST_DEDICATED;
        plan.by_chunk = (FIRST_BY_CHUNK..FIRST_WITH_RAID5).contains(&seed) || plan.dedicates;
        if plan.by_chunk {
            plan.placement = match seed % 3 {
                0 => plan.placement,
                1 => Placement::Share,
                _ => Plan::snap_aware(&mut Rand::new(seed)),
            };
        }
        if seed >= FIRST_WITH_MIRRORS && !plan.by_chunk {
            plan.grows = seed >= FIRST_WITH_GROWTH;
            plan.spares = seed >= FIRST_WITH_SPARES && !(plan.grows && seed.is_multiple_of(2));
            plan.reserve = plan.grows && !plan.spares && seed.is_multiple_of(4);
            let has_rows = if seed >= FIRST_WITH_SPARES { seed % 3 != 0 } else { seed >= FIRST_WITH_RAID5 };
            let shape = if has_rows { Shape::raid5_of(seed) } else { Shape::Mirror };
            (plan.layout, plan.backing) = (Some(shape), None);
            plan.makes_zeros = seed % MILLION >= MILLION / 2;
        }
        if plan.sums && !plan.references {
            plan.options.direct_min = None;
            plan.options.keep_distance = None;
        }
        if theme == Theme::Large {
            plan.allow_large_chunks();
        }
        if let Some(trace) = trace {
            trace(&format!("{plan:?}"));
        }
        let mut run = Run::new(rand.bits(), plan, true, trace);
        if let Some(purpose) = dropped {
            run.dir().drop_syncs(purpose);
        }
        run.random(ops, theme)?;
        Ok(run.summary())
    })
}

/// Turns the planned panic of a disk into an error. The caller does not know the outcome of its
/// call to the engine. Other panics continue.
pub(crate) fn survive<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        if panic.downcast_ref::<String>().is_none_or(|text| text != disk::PANIC) {
            std::panic::resume_unwind(panic);
        }
        Err(Error::new(ErrorKind::Poisoned, disk::PANIC))
    })
}

/// Turns a panic of the engine into a failure of the run.
pub(crate) fn guard<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    heard::listen();
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            Err(format!("panic: {text}"))
        }
    }
}
