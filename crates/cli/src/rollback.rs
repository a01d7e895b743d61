//! `hindcast rollback`.

use crate::failure::Failure;
use crate::group;
use crate::recover::take_back;
use crate::select::undo_keep;
use crate::session::Session;
use crate::snapshot::{Address, Past};
use clap::Args;
use hindcast_api::RecoverInPlace;

const EXAMPLES: &str = "\
Examples:
  hindcast rollback db@before-upgrade            to a snapshot or a mark
  hindcast rollback db@-10m                      to the content of ten minutes ago
  hindcast rollback 'db@yesterday 10:41'         by the wall clock of this machine, or of --tz
  hindcast rollback db@10:41 log@10:41           both to one moment
  hindcast rollback db@broken                    undo: the answer of a rollback names this

A rollback is immediate, whatever the size of the volume. Newer snapshots and the newer history stay. \
The content of the volume before the rollback is kept as another snapshot, so a rollback can be undone. \
With --undo-keep the server deletes that snapshot after the given time.

The server refuses a rollback while clients use the volume: unmount its file systems first. With \
--force it disconnects NBD clients, and reports to iSCSI initiators that the unit was reset. A file \
system that is still mounted then becomes inconsistent.";

/// Return volumes to an earlier moment: a snapshot, a mark or a time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rollback {
    /// The moment to return to: VOLUME@ and the name of a snapshot or mark, a time (10:41,
    /// "yesterday 10:41"), a time before now (-10m), or lsn:N. Several volumes, or a group, return
    /// to one moment
    #[arg(value_name = "VOLUME@MOMENT", value_parser = Past::parse, required = true)]
    to: Vec<Past>,
    /// Return to the last flush at or before the moment: the content that clients had on stable
    /// storage
    #[arg(long)]
    last_flush: bool,
    #[command(flatten)]
    how: How,
}

/// How volumes are rolled back.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Do it even if clients use the volumes; NBD clients are disconnected, and iSCSI initiators
    /// get a report
    #[arg(long)]
    pub(crate) force: bool,
    /// Name of the snapshots that keep the present content of the volumes [default:
    /// before-recovery- or before-rollback-, and the time]
    #[arg(long, value_name = "NAME")]
    pub(crate) undo_name: Option<String>,
    /// Delete those snapshots after this time, such as 7d, unless they are protected [default: keep
    /// them]
    #[arg(long, value_name = "TIME", value_parser = undo_keep)]
    pub(crate) undo_keep: Option<u64>,
}

pub(crate) fn run(args: Rollback, session: &Session) -> Result<(), Failure> {
    let Rollback { to, last_flush, how: How { force, undo_name, undo_keep } } = args;
    let places = to.iter().map(|past| past.address(session)).collect::<Result<Vec<Address>, _>>()?;
    let Some(first) = places.first() else { return Err(Failure::usage("name at least one volume")) };
    if let Some(other) = places.iter().find(|place| place.name != first.name) {
        return Err(Failure::usage(format!(
            "{}@{} and {}@{} are two moments: several volumes return to one",
            first.volume, first.name, other.volume, other.name
        )));
    }
    let to = first.name.clone();
    let volumes = group::volumes(session, places.into_iter().map(|place| place.volume).collect())?;
    let what =
        RecoverInPlace { volumes, to, last_flush, undo: undo_name, undo_keep_seconds: undo_keep, force };
    take_back(&what, session)
}
