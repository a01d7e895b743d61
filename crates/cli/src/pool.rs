//! `hindcast pool`: the pool and its physical volumes.

use crate::failure::Failure;
use crate::features;
use crate::layouts::{self, Addition, Members};
use crate::listing::{Cell, Column, Listing};
use crate::output::{list, percent, properties};
use crate::placement::{self, Sizes};
use crate::reidentify;
use crate::scrub;
use crate::session::{Global, Session};
use crate::status::health;
use crate::trace;
use crate::when::Here;
use clap::Subcommand;
use hindcast_api::{
    BackUp, Clock, ClockChange, ErrorBody, ErrorKind, HealthState, Journal, NoticeDelivery, PatchPlacement,
    PatchPool, PatchPv, Placement, Pool, Pv, Size,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::Duration;

/// Interval between checks of a physical volume that is being drained.
const POLL: Duration = Duration::from_millis(500);

const ADD_EXAMPLES: &str = "\
Examples:
  hindcast pool add pv-1.img --size 100G         a sparse file in the data directory
  hindcast pool add /mnt/fast/pv.img --size 1T   a file elsewhere
  hindcast pool add /dev/vdb                     a whole block device
  hindcast pool add --layout mirror --name m1 /dev/vdb /dev/vdc
                                                 two copies, one on each of the devices
  hindcast pool add --layout raid5 --name r1 /dev/vdb /dev/vdc /dev/vdd /dev/vde
  hindcast pool add --spare /dev/vdf             steps in when a disk of a mirror or RAID-5 fails

A sparse file takes space on its file system only as data is written to it.";

const DRAIN_EXAMPLES: &str = "\
Examples:
  hindcast pool drain /dev/vdb --wait && hindcast pool remove /dev/vdb
  hindcast pool drain 1 --cancel

A physical volume that is being drained takes no new data. The other physical volumes must have \
room for its data. Volumes stay in use meanwhile.";

const WEIGHT_EXAMPLES: &str = "\
Examples:
  hindcast pool weight /dev/vdb 50               a slow disk: half as much data as others of its size
  hindcast pool weight r1 100                    as much as its size says

Data that the placement share has placed moves accordingly, in the background: see hindcast pool \
rebalance --status. Other placements have no weights. A physical volume that is full takes no more \
data, whatever its weight.";

const CLOCK_EXAMPLES: &str = "\
Histories expire by the pool's own time, which does not jump when the machine's clock is set. Expiry \
by time stops when the clock is set by more than a minute, or when the machine was off for more than \
three days. It continues when the clock agrees with the pool's time again, or when --confirm \
declares the clock right. After a start that follows more than a minute without power, expiry waits \
ten minutes.

Examples:
  hindcast pool clock
  date; hindcast pool clock --confirm            the clock was wrong before, and is right now";

const BACKUP_EXAMPLES: &str = "\
A backup holds no data of volumes. The server writes one at each orderly stop and once a day (serve \
--metadata-interval). It keeps the last three (serve --metadata-keep) in DIR/metadata, where DIR is \
the data directory, and a copy in reserved space of every physical volume. See \
hindcast restore-metadata --help.

Examples:
  hindcast pool backup-metadata
  hindcast pool backup-metadata --to /mnt/backup/hindcast";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Served(Served),
    Reidentify(reidentify::Args),
    /// See where disks spend their time: trace their accesses, and draw pictures of a trace
    #[command(subcommand, after_help = trace::EXAMPLES)]
    Trace(trace::Command),
}

/// Commands that the server carries out.
#[derive(Debug, Subcommand)]
pub(crate) enum Served {
    /// Show the space, journal and map cache of the pool
    Show,
    /// List the physical volumes
    Pvs(Listing),
    /// Add a physical volume: a file, a block device, or a mirror or RAID-5 of several
    #[command(after_help = ADD_EXAMPLES)]
    Add(Addition),
    #[command(flatten)]
    Members(Members),
    /// Move the data of a physical volume to the others, in the background
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain {
        /// Path, UUID or number of the physical volume, as pool pvs lists it, or the name of a
        /// mirror or RAID-5
        pv: String,
        /// Return only when the physical volume is empty
        #[arg(long)]
        wait: bool,
        /// Stop draining; data that has moved stays where it is now
        #[arg(long, conflicts_with = "wait")]
        cancel: bool,
    },
    /// Remove a physical volume that is empty, or a spare disk
    Remove {
        /// Path, UUID or number of the physical volume, as pool pvs lists it, or the name of a
        /// mirror or RAID-5, or path of a spare
        pv: String,
    },
    /// Let the placement share give a physical volume more or less data than its size says
    #[command(after_help = WEIGHT_EXAMPLES)]
    Weight {
        /// Path, UUID or number of the physical volume, as pool pvs lists it, or the name of a
        /// mirror or RAID-5
        pv: String,
        /// Part of its size that counts, in per cent, from 1 to 1000; 100 is its size
        #[arg(value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
        percent: u32,
    },
    /// Show whether the server trusts its clock, and when the clock was set
    #[command(after_help = CLOCK_EXAMPLES)]
    Clock {
        /// Declare the clock right as it is now: expiry by time continues
        #[arg(long)]
        confirm: bool,
    },
    /// Write a backup of the metadata, which records where the data of all volumes is
    #[command(after_help = BACKUP_EXAMPLES)]
    BackupMetadata {
        /// Directory for the backup, on the server's machine [default: DIR/metadata in the data
        /// directory DIR]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
    /// Send a test notice to the command and the webhook that the server tells about problems
    /// (serve --notify-command, --notify-webhook), and show the results
    NotifyTest,
    /// Read all data in place and verify it, to find damage before the data is needed
    #[command(after_help = scrub::EXAMPLES)]
    Scrub(scrub::Args),
    /// Move data to the physical volumes on which the placement share places it now
    #[command(after_help = crate::rebalance::EXAMPLES)]
    Rebalance(crate::rebalance::Args),
    /// List the formats of the pool that not every build knows
    #[command(after_help = features::FEATURES_HELP)]
    Features,
    /// Let the pool use newer formats; there is no way back: older builds refuse the pool
    #[command(after_help = features::UPGRADE_HELP)]
    Upgrade(features::Args),
    /// Change the pool's policies
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
}

/// Arguments of `hindcast pool set`.
#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// Where the pool places new data
    #[arg(long, value_name = "POLICY")]
    placement: Placement,
    #[command(flatten)]
    sizes: Sizes,
}

const SET_EXAMPLES: &str = "\
Examples:
  hindcast pool set --placement share            spread new data over all physical volumes
  hindcast pool set --placement snap-aware --slice-size 64M --snapshots 4 --snapshot-percent 10

A change concerns data that is written from then on. hindcast pool rebalance moves the data that is \
there to the places of share.";

pub(crate) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Reidentify(args) => reidentify::run(&args, &global.output()),
        Command::Trace(command) => trace::run(command, global),
        Command::Served(command) => ask(command, &global.session()?),
    }
}

fn notify_test(session: &Session) -> Result<(), Failure> {
    let results = session.client.test_notices()?;
    session.output.show(&results, |all| {
        let line = |one: &NoticeDelivery| match &one.error {
            None => format!("{}: delivered", one.receiver),
            Some(error) => format!("{}: {error}", one.receiver),
        };
        all.iter().map(line).collect::<Vec<_>>().join("\n")
    })?;
    match results.iter().filter(|one| one.error.is_some()).count() {
        0 => Ok(()),
        failed => {
            Err(Failure::Failed(format!("{failed} of {} test notices were not delivered", results.len())))
        }
    }
}

fn ask(command: Served, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Served::Show => output.show(&client.pool()?, |pool| table(pool, &session.here)),
        Served::Pvs(listing) => listing.show(session, client.pvs()?, PVS),
        Served::Add(addition) => addition.run(session),
        Served::Members(command) => layouts::run(command, session),
        Served::Drain { pv, wait, cancel } => {
            let mut now = client.patch_pv(&pv, &PatchPv { draining: Some(!cancel), ..PatchPv::default() })?;
            if wait {
                now = wait_until_empty(session, now)?;
            }
            output.show(&now, |pv| match (pv.draining, pv.used) {
                (false, _) => format!("{} is no longer drained", pv.path),
                (true, 0) => format!("{} is empty", pv.path),
                (true, used) => format!("draining {}: {} to move", pv.path, Size(used)),
            })
        }
        Served::Remove { pv } => {
            // Older servers have no spares.
            match client.spares().unwrap_or_default().iter().any(|spare| spare.path == pv) {
                true => client.remove_spare(&pv)?,
                false => client.remove_pv(&pv)?,
            }
            output.done(format_args!("removed {pv}"))
        }
        Served::Weight { pv, percent } => {
            let patch = PatchPv { weight: Some(percent), ..PatchPv::default() };
            output.show(&client.patch_pv(&pv, &patch)?, |pv| {
                format!("{} counts as {}", pv.path, Size(counted(pv)))
            })
        }
        Served::Clock { confirm } => {
            let clock = if confirm { client.confirm_clock()? } else { client.clock()? };
            output.show(&clock, |clock| clock_table(clock, &session.here))
        }
        Served::BackupMetadata { to } => {
            let path = to.map(|path| std::path::absolute(&path).unwrap_or(path).display().to_string());
            let backup = client.back_up(&BackUp { path })?;
            output.show(&backup, |b| {
                let copies = match b.pvs {
                    0 => "no copy on the physical volumes".to_owned(),
                    n => format!("copies on {n} physical volumes"),
                };
                format!("wrote {}: {}, {copies}", b.path, Size(b.bytes))
            })
        }
        Served::NotifyTest => notify_test(session),
        Served::Scrub(args) => scrub::run(args, session),
        Served::Rebalance(args) => crate::rebalance::run(&args, session),
        Served::Features => features::show(session),
        Served::Upgrade(args) => features::upgrade(args, session),
        Served::Set(args) => {
            let PatchPlacement { policy, slice_size, snapshots, snapshot_percent } =
                args.sizes.with(Some(args.placement));
            let patch = PatchPool { placement: policy, slice_size, snapshots, snapshot_percent };
            output.show(&client.patch_pool(&patch)?, |pool| {
                format!("placement is {}", placement::of_pool(pool))
            })
        }
    }
}

fn clock_table(clock: &Clock, here: &Here) -> String {
    let state = match clock.jumped_seconds {
        None => "trusted".into(),
        Some(by) if by < 0.0 => format!("{:.0} s behind the expected time; if it is right: --confirm", -by),
        Some(by) => format!("{by:.0} s ahead of the expected time; if it is right: --confirm"),
    };
    let expiry = if clock.suspended { "suspended" } else { "active" };
    let ahead = match clock.ahead_seconds {
        ahead if ahead > 0.0 => format!("{ahead:.0} s ahead of the clock"),
        _ => "not ahead of the clock".into(),
    };
    let mut text = properties([
        ("now", here.stamp(clock.now)),
        ("clock", state),
        ("expiry by time", expiry.into()),
        ("newest time", ahead),
    ]);
    if !clock.changes.is_empty() {
        text.push_str(&format!("\n\n{}", clock_changes(&clock.changes, here)));
    }
    text
}

/// Makes a table of the changes of the clock.
pub(crate) fn clock_changes(changes: &[ClockChange], here: &Here) -> String {
    let row = |c: &ClockChange| vec![here.clock(c.before), here.clock(c.after), format!("lsn:{}", c.lsn)];
    let heading = format!("CLOCK SET AT ({})", here.offset());
    list(&[&heading, "TO", "AFTER"], &[], changes.iter().map(row))
}

fn wait_until_empty(session: &Session, start: Pv) -> Result<Pv, Failure> {
    // Draws on stderr, and only on a terminal.
    let bar = ProgressBar::new(start.used).with_message(start.path.clone());
    if let Ok(style) =
        ProgressStyle::with_template("draining {msg} {wide_bar} {bytes} of {total_bytes} {eta}")
    {
        bar.set_style(style);
    }
    let result = loop {
        let now = session.client.pvs()?.into_iter().find(|pv| pv.id == start.id);
        let Some(now) = now else {
            let message = format!("wait for {}: it was removed from the pool meanwhile", start.path);
            break Err(ErrorBody { kind: ErrorKind::NotFound, message }.into());
        };
        bar.set_position(start.used.saturating_sub(now.used));
        if now.used == 0 {
            break Ok(now);
        }
        if !now.draining {
            let message = format!("wait for {}: its draining was cancelled meanwhile", start.path);
            break Err(ErrorBody { kind: ErrorKind::Conflict, message }.into());
        }
        let state = session.client.health()?;
        if state.state == HealthState::Poisoned {
            let message = format!("the pool is {}", health(&state, &session.here));
            break Err(ErrorBody { kind: ErrorKind::Poisoned, message }.into());
        }
        std::thread::sleep(POLL);
    };
    bar.finish_and_clear();
    result
}

/// Tells when the pool will be full, if it goes on as in the last week.
fn filling(pool: &Pool, here: &Here) -> String {
    let Some(filling) = &pool.filling else { return "not known before a day has passed".into() };
    let Ok(rate) = u64::try_from(filling.bytes_per_day) else {
        return format!("no: {} a day become free", Size(filling.bytes_per_day.unsigned_abs()));
    };
    match filling.full_at {
        Some(at) => format!("{}, at {} a day", here.day(at), Size(rate)),
        None => format!("not within twenty years, at {} a day", Size(rate)),
    }
}

fn table(pool: &Pool, here: &Here) -> String {
    let (journal, cache, index, kept) = (&pool.journal, &pool.map_cache, &pool.index, &pool.preservation);
    let features = if pool.features.is_empty() { "-".into() } else { pool.features.join(", ") };
    let hits = cache.hit_rate.map_or_else(|| "-".into(), |rate| format!("{:.1} %", rate * 100.0));
    let mut text = properties([
        ("health", health(&pool.health, here)),
        ("capacity", Size(pool.capacity).to_string()),
        ("used", format!("{} ({})", Size(pool.used), percent(pool.used, pool.capacity))),
        ("reserved", Size(pool.reserved).to_string()),
        ("available", Size(pool.available).to_string()),
        ("full", filling(pool, here)),
        ("provisioned", format!("{} in {} volumes", Size(pool.provisioned), pool.volumes)),
        ("placement", placement::of_pool(pool)),
        ("features", features),
        ("extent size", Size(pool.extent_size).to_string()),
        ("atomic unit", Size(pool.atomic_unit.into()).to_string()),
        (
            "journal",
            format!(
                "{} of {} in use, {} turns wait",
                Size(journal.used),
                Size(journal.capacity),
                journal.turns
            ),
        ),
        (
            "map cache",
            format!(
                "{} of {} used, {}, {hits} hits",
                Size(cache.used),
                Size(cache.size),
                cache.policy.name()
            ),
        ),
        (
            "index",
            format!(
                "{} map pages, {} versions, catalog of {}",
                index.map_pages,
                index.versions,
                Size(index.catalog_bytes)
            ),
        ),
        (
            "preserved",
            format!(
                "{} pre-image copies, {} redirects, {} fill reads, space efficiency {}",
                kept.copies,
                kept.redirects,
                kept.fill_reads,
                crate::stats::efficiency(kept)
            ),
        ),
        ("uuid", pool.uuid.clone()),
    ]);
    if here.precise {
        let Journal { sequenced_lsn, written_lsn, synced_lsn, destaged_lsn, .. } = journal;
        let positions = format!(
            "sequenced {sequenced_lsn}, written {written_lsn}, synced {synced_lsn}, destaged {destaged_lsn}"
        );
        text.push_str(&format!("\n{}", properties([("positions", positions)])));
    }
    text
}

/// Returns whether a physical volume accepts new data.
fn state(pv: &Pv) -> &'static str {
    match (&pv.failure, pv.draining, pv.dedicated) {
        (Some(_), true, _) => "failed, draining",
        (Some(_), false, _) => "failed",
        (None, true, _) => "draining",
        (None, false, true) => "dedicated",
        (None, false, false) => "in use",
    }
}

/// Returns the bytes that count for the placement share.
fn counted(pv: &Pv) -> u64 {
    (u128::from(pv.size) * u128::from(pv.weight) / 100).try_into().unwrap_or(u64::MAX)
}

const PVS: &[Column<Pv>] = &[
    Column { name: "id", usual: true, cell: |pv| Cell::number(pv.id.into()) },
    Column { name: "path", usual: true, cell: |pv| Cell::text(&pv.path) },
    Column { name: "size", usual: true, cell: |pv| Cell::Size(Some(pv.size)) },
    Column { name: "used", usual: true, cell: |pv| Cell::Size(Some(pv.used)) },
    Column {
        name: "full",
        usual: true,
        cell: |pv| Cell::Ordered(percent(pv.used, pv.size), pv.used * 1000 / pv.size.max(1)),
    },
    Column { name: "state", usual: true, cell: |pv| Cell::text(state(pv)) },
    Column { name: "weight", usual: false, cell: |pv| Cell::number(pv.weight.into()) },
    Column { name: "uuid", usual: true, cell: |pv| Cell::text(&pv.uuid) },
];
