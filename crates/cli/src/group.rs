//! `hindcast group`, and the volumes that a name on the command line stands for.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::session::Session;
use clap::Subcommand;
use hindcast_api::{ClientError, CreateGroup, ErrorKind, Group, PatchGroup};

const EXAMPLES: &str = "\
Examples:
  hindcast group create shop db log wal
  hindcast snapshot create shop@before-upgrade   of all three, at one instant
  hindcast snapshot protect shop@before-upgrade
  hindcast snapshot delete shop@before-upgrade
  hindcast mark shop deployed
  hindcast rollback shop@-10m                    all three, to one moment
  hindcast recover shop --to -10m --suffix -then new volumes db-then, log-then, wal-then
  hindcast schedule create hourly shop --every 1h --keep-last 24

A group stands for its volumes. Each run of a schedule takes the volumes that the group has then.";

const COLUMNS: &[Column<Group>] = &[
    Column { name: "name", usual: true, cell: |g| Cell::text(&g.name) },
    Column { name: "volumes", usual: true, cell: |g| Cell::text(g.volumes.join(" ")) },
];

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Command {
    /// Create a group of volumes
    #[command(after_help = EXAMPLES)]
    Create {
        /// Name of the group; no volume may have it
        name: String,
        /// Volumes, in the order in which the group keeps them
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// List groups
    #[command(alias = "ls")]
    List(Listing),
    /// Show the volumes of a group
    #[command(alias = "info")]
    Show {
        /// Name of the group
        name: String,
    },
    /// Add volumes to a group, at its end
    Add {
        /// Name of the group
        name: String,
        /// Volumes
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Remove volumes from a group; the volumes stay
    Remove {
        /// Name of the group
        name: String,
        /// Volumes
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Delete a group; its volumes stay
    #[command(alias = "rm")]
    Delete {
        /// Name of the group
        name: String,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    let said = |group: &Group| format!("{}: {}", group.name, group.volumes.join(" "));
    match command {
        Command::Create { name, volumes } => {
            output.show(&client.create_group(&CreateGroup { name, volumes })?, said)
        }
        Command::List(listing) => listing.show(session, client.groups()?, COLUMNS),
        Command::Show { name } => output.show(&client.group(&name)?, said),
        Command::Add { name, volumes } => {
            let patch = PatchGroup { add: volumes, ..PatchGroup::default() };
            output.show(&client.patch_group(&name, &patch)?, said)
        }
        Command::Remove { name, volumes } => {
            let patch = PatchGroup { remove: volumes, ..PatchGroup::default() };
            output.show(&client.patch_group(&name, &patch)?, said)
        }
        Command::Delete { name } => {
            client.delete_group(&name)?;
            output.done(format_args!("deleted the group {name}; its volumes stay"))
        }
    }
}

/// Replaces each item that names a group by one item for each volume of the group. `name` returns
/// the name in an item, and `with` makes an item for a volume.
///
/// An item whose name is neither a volume nor a group stays as it is, so that the request names
/// what is missing.
pub(crate) fn expand<T>(
    session: &Session,
    items: Vec<T>,
    name: impl Fn(&T) -> &str,
    with: impl Fn(&T, String) -> T,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::with_capacity(items.len());
    for item in items {
        match session.client.group(name(&item)) {
            Ok(group) if group.volumes.is_empty() => {
                return Err(Failure::usage(format!("group {}: none of its volumes exists", group.name)));
            }
            Ok(group) => all.extend(group.volumes.into_iter().map(|volume| with(&item, volume))),
            Err(ClientError::Api(body)) if is_no_group(body.kind) => all.push(item),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

/// Tells names of groups from other names: (the others, those of groups).
pub(crate) fn parted(session: &Session, names: Vec<String>) -> Result<(Vec<String>, Vec<String>), Failure> {
    let (mut volumes, mut groups) = (Vec::new(), Vec::new());
    for name in names {
        match session.client.group(&name) {
            Ok(group) => groups.push(group.name),
            Err(ClientError::Api(body)) if is_no_group(body.kind) => volumes.push(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((volumes, groups))
}

/// Returns whether a request for a group failed because there is no such group. A server of before
/// has no groups.
fn is_no_group(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Unsupported)
}

/// Replaces names of groups by the names of their volumes.
pub(crate) fn volumes(session: &Session, names: Vec<String>) -> Result<Vec<String>, Failure> {
    expand(session, names, |name| name, |_, volume| volume)
}
