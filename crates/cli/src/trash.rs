//! `hindcast trash`: deleted volumes that can be restored.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing, span};
use crate::output::yes_no;
use crate::session::Session;
use clap::{ArgGroup, Subcommand};
use hindcast_api::{RestoreVolume, Size, TrashedVolume};
use jiff::Timestamp;

const RESTORE_EXAMPLES: &str = "\
Examples:
  hindcast trash restore db                      the volume that was deleted under this name
  hindcast trash restore db --name db-old        db is the name of another volume by now
  hindcast trash restore 6f1c2ab3                by the first digits of its UUID

A restored volume has its content, its snapshots, its history, its labels and its access rules. \
Clients have to connect again.";

const EMPTY_EXAMPLES: &str = "\
Examples:
  hindcast trash empty db                        db is gone for good, with its snapshots and history
  hindcast trash empty --all                     and so is everything else in the trash";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List deleted volumes that can be restored, and when the server purges them
    #[command(alias = "ls")]
    List(Listing),
    /// Restore a deleted volume
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore {
        /// Name, UUID, or first digits of the UUID
        id: String,
        /// Name for the volume [default: the name that it had]
        #[arg(long)]
        name: Option<String>,
    },
    /// Delete volumes in the trash for good; their space is freed in the background
    #[command(after_help = EMPTY_EXAMPLES, group = ArgGroup::new("which").required(true))]
    Empty {
        /// Names, UUIDs, or first digits of UUIDs
        #[arg(group = "which")]
        ids: Vec<String>,
        /// Delete all volumes in the trash
        #[arg(long, group = "which")]
        all: bool,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::List(listing) => listing.show(session, client.trash()?, COLUMNS),
        Command::Restore { id, name } => {
            let restored = client.restore_volume(&id, &RestoreVolume { name })?;
            output.show(&restored, |v| format!("restored {}, {}", v.name, Size(v.size)))
        }
        Command::Empty { ids, all } => {
            let ids = match all {
                true => client.trash()?.into_iter().map(|volume| volume.uuid).collect(),
                false => ids,
            };
            ids.iter().try_for_each(|id| client.purge_volume(id))?;
            output.done(match ids.len() {
                1 => "1 volume deleted for good".to_owned(),
                n => format!("{n} volumes deleted for good"),
            })
        }
    }
}

/// Returns what `volume delete` says of a volume that went to the trash.
pub(crate) fn moved(volume: &TrashedVolume, now: Timestamp) -> String {
    let until = match volume.purge_at {
        Some(at) => format!(" for {}", span(u64::try_from(at.duration_since(now).as_secs()).unwrap_or(0))),
        None => String::new(),
    };
    let name = &volume.name;
    format!("deleted {name}; it stays in the trash{until}: hindcast trash restore {name}")
}

const COLUMNS: &[Column<TrashedVolume>] = &[
    Column { name: "name", usual: true, cell: |v| Cell::text(&v.name) },
    Column { name: "size", usual: true, cell: |v| Cell::Size(Some(v.size)) },
    Column { name: "space", usual: true, cell: |v| Cell::Size(Some(v.space)) },
    Column { name: "snapshots", usual: true, cell: |v| Cell::number(v.snapshots) },
    Column { name: "history", usual: true, cell: |v| Cell::text(yes_no(v.history)) },
    Column { name: "deleted", usual: true, cell: |v| Cell::Time(Some(v.deleted)) },
    Column { name: "purged", usual: true, cell: |v| Cell::Time(v.purge_at) },
    Column { name: "uuid", usual: true, cell: |v| Cell::text(&v.uuid) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_names_the_way_back() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let trashed = TrashedVolume {
            uuid: "6f1c2ab3-0000-0000-0000-000000000000".into(),
            name: "db".into(),
            size: 1 << 30,
            space: 1 << 20,
            snapshots: 2,
            history: true,
            history_bytes: 0,
            labels: Default::default(),
            deleted: "2026-11-22T09:58:30Z".parse().unwrap(),
            purge_at: Some("2026-11-23T09:58:30Z".parse().unwrap()),
        };
        let said = "deleted db; it stays in the trash for 23 h 58 min: hindcast trash restore db";
        assert_eq!(moved(&trashed, now), said);
        let kept = TrashedVolume { purge_at: None, ..trashed };
        assert_eq!(moved(&kept, now), "deleted db; it stays in the trash: hindcast trash restore db");
    }
}
