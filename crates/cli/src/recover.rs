//! `hindcast recover`.

mod bisect;
mod interrupt;
mod mount;

use crate::failure::Failure;
use crate::group;
use crate::select::undo_keep;
use crate::session::Session;
use crate::volume::inherited;
use crate::when::{Here, When};
use clap::{Args, Subcommand};
use hindcast_api::{Recover, RecoverInPlace, RecoverVolume, Recovered, RolledBack, Size};
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  hindcast recover db --to 2026-11-22T03:14:15.5Z --as db-then
  hindcast recover db --to -90s --as db-then             a new volume: db as it was 90 seconds ago
  hindcast recover db --to 'yesterday 10:41' --as db-then
  hindcast recover db --to before-upgrade --in-place     db itself, to the mark before-upgrade
  hindcast recover db log --to -10m --as db-then --as log-then
  hindcast recover shop --to -10m --suffix -then         the volumes of a group
  hindcast recover db --to -10m --last-flush --as db-then
  hindcast recover bisect db --from -2h --to -1m --mount --check 'test -s $HINDCAST_MOUNT/important.txt'

With --as, the new volume exists at once, whatever its size. The server copies its content out of the \
history in the background:
  hindcast volume flatten db-then --status               the progress
The new volume has no history of its own until one begins:
  hindcast volume set db-then --cdp parity --retain 7d

With --in-place, the present content of the volume is kept as a snapshot, so the recovery can be \
undone.";

/// Recover volumes to a moment of their history: as new volumes, or in place
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Command {
    #[command(subcommand)]
    command: Option<Sub>,
    /// Volumes, or groups; several volumes are recovered to the same moment
    #[arg(value_name = "VOLUME", required = true)]
    volumes: Vec<String>,
    /// Moment to recover to: a time (10:41, "yesterday 10:41"), a time before now (-90s), lsn:N, or
    /// the name of a mark or snapshot
    #[arg(long, value_name = "MOMENT", value_parser = When::parse, required = true, allow_hyphen_values = true)]
    to: Option<When>,
    /// Name of the new volume; give it once for each volume, in the same order
    #[arg(
        long = "as",
        value_name = "NAME",
        required_unless_present_any = ["in_place", "suffix"],
        conflicts_with_all = ["in_place", "suffix"]
    )]
    names: Vec<String>,
    /// Names of the new volumes: those of the old ones, with this text at the end
    #[arg(long, value_name = "TEXT", conflicts_with = "in_place", allow_hyphen_values = true)]
    suffix: Option<String>,
    /// Return the volumes themselves to the moment
    #[arg(long)]
    in_place: bool,
    /// Recover to the last flush at or before the moment: the content that clients had on stable
    /// storage
    #[arg(long)]
    last_flush: bool,
    /// With --as: maximum bytes a second of the copy that makes the new volume independent of the
    /// history, in the background; 0 means no limit
    #[arg(long, value_name = "SIZE", default_value = "64M", conflicts_with_all = ["in_place", "no_complete"])]
    rate: Size,
    /// With --as: do not copy; the new volume depends on the history, which does not expire
    /// meanwhile
    #[arg(long, conflicts_with = "in_place")]
    no_complete: bool,
    /// With --in-place: name of the snapshots that keep the present content of the volumes
    /// [default: before-recovery-TIME]
    #[arg(long, value_name = "NAME", requires = "in_place")]
    undo_name: Option<String>,
    /// With --in-place: delete those snapshots after this time, such as 7d [default: keep them]
    #[arg(long, value_name = "TIME", requires = "in_place", value_parser = undo_keep)]
    undo_keep: Option<u64>,
    /// With --in-place: do it even if clients use the volumes; NBD clients are disconnected, and
    /// iSCSI initiators get a report
    #[arg(long, requires = "in_place")]
    force: bool,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Bisect(bisect::Bisect),
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    if let Some(Sub::Bisect(args)) = &command.command {
        return bisect::run(args, session);
    }
    let Command {
        volumes,
        to,
        names,
        suffix,
        in_place,
        last_flush,
        undo_name,
        undo_keep,
        force,
        rate,
        no_complete,
        ..
    } = command;
    let to = to.ok_or_else(|| Failure::usage("--to is missing: give the moment to recover to"))?;
    let to = session.moment(&to)?;
    let volumes = group::volumes(session, volumes)?;
    if in_place {
        let what =
            RecoverInPlace { volumes, to, last_flush, undo: undo_name, undo_keep_seconds: undo_keep, force };
        return take_back(&what, session);
    }
    let names = match suffix {
        Some(suffix) => volumes.iter().map(|volume| format!("{volume}{suffix}")).collect(),
        None => names,
    };
    if names.len() != volumes.len() {
        return Err(Failure::usage(
            "give --as once for each volume, in the same order, or --suffix for all of them",
        ));
    }
    let pairs = volumes.into_iter().zip(names);
    let volumes = pairs.map(|(volume, name)| RecoverVolume { volume, name }).collect();
    let complete = (!no_complete).then_some(rate.0);
    let what = Recover { volumes, to, last_flush, complete };
    if let Some(first) = what.volumes.first() {
        let kept = "the volumes stay as they are, and new ones begin there";
        announce(session, "recovering to", (&first.volume, &what.to), kept);
    }
    session.output.show(&session.client.recover(&what)?, |made| new_volumes(&what, made, &session.here))
}

fn new_volumes(what: &Recover, made: &[Recovered], here: &Here) -> String {
    let line = |(of, new): (&RecoverVolume, &Recovered)| {
        let at =
            new.moment.map_or_else(|| what.to.clone(), |m| format!("{} (lsn:{})", here.stamp(m.time), m.lsn));
        let name = &new.volume.name;
        let access = inherited(name, new.volume.inherited.as_ref());
        format!(
            "{name} has the content of {} at {at}\nto begin a history of it: hindcast volume set {name} --cdp parity{access}",
            of.volume
        )
    };
    what.volumes.iter().zip(made).map(line).collect::<Vec<_>>().join("\n")
}

/// Prints to stderr which moment the server understood, and what is kept, before the command
/// changes anything. `doing` ends with "to" or "from".
///
/// It prints nothing for a snapshot without a history. If stderr is closed, the text is lost, and
/// the command continues.
pub(crate) fn announce(session: &Session, doing: &str, (volume, moment): (&str, &str), kept: &str) {
    if let Ok(found) = session.client.moment(volume, moment) {
        let said = session.here.said(found.time);
        let _ = writeln!(std::io::stderr(), "{doing} {said}, lsn:{}; {kept}", found.lsn);
    }
}

/// Says what a rollback keeps. `undo` is the name of the snapshots of the content before it.
pub(crate) fn kept_by_rollback(undo: Option<&str>) -> String {
    let undo = undo.map_or_else(|| "as a snapshot".into(), |name| format!("as the snapshot {name}"));
    format!("the present content is kept {undo}, with newer snapshots and the newer history")
}

/// Rolls volumes back to a moment. First it says on stderr which moment was understood.
pub(crate) fn take_back(what: &RecoverInPlace, session: &Session) -> Result<(), Failure> {
    if let Some(first) = what.volumes.first() {
        announce(session, "going back to", (first, &what.to), &kept_by_rollback(what.undo.as_deref()));
    }
    session.output.show(&session.client.recover_in_place(what)?, |done| taken_back(done))
}

fn taken_back(done: &[RolledBack]) -> String {
    let line = |r: &RolledBack| {
        let (name, undo) = (&r.volume.name, r.undo.address());
        format!("{name} is rolled back; its content before is {undo}\nto undo: hindcast rollback {undo}")
    };
    done.iter().map(line).collect::<Vec<_>>().join("\n")
}
