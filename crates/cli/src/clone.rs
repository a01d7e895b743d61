//! `hindcast clone`.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::recover::announce;
use crate::session::Session;
use crate::snapshot::Past;
use crate::volume::inherited;
use clap::Subcommand;
use hindcast_api::{CreateClone, Method, Size, Volume};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast clone create db@before-upgrade test
  hindcast snapshot create test@first            a clone is a volume: it has snapshots,
  hindcast clone create test@first test2         and clones of them
  hindcast clone create db@-10m then             db as it was ten minutes ago

A clone exists at once. A clone of a snapshot takes no space until it is written. A clone of another \
moment is copied out of the history in the background (hindcast volume flatten then --status). The snapshot can be deleted: the \
data that the clone needs stays until the clone is deleted or flattened (hindcast volume flatten). \
Like any volume, a clone is exported over NBD and iSCSI under its name. It inherits the access of \
the snapshot's volume: access rules, CHAP accounts, whether the target is enabled, and whether NBD \
serves it.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a writable volume that begins as a snapshot, or as another moment
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// What the clone begins as: VOLUME@ and the name of a snapshot or mark, a time (10:41,
        /// "yesterday 10:41"), a time before now (-10m), or lsn:N
        #[arg(value_name = "VOLUME@MOMENT", value_parser = Past::parse)]
        snapshot: Past,
        /// Name of the new volume
        name: String,
        /// How the clone preserves data that its own snapshots need [default: the method of the
        /// snapshot's volume]
        #[arg(long)]
        method: Option<Method>,
    },
    /// List clones
    #[command(alias = "ls")]
    List {
        /// List only clones of this volume's snapshots
        volume: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Create { snapshot, name, method } => {
            let at = snapshot.address(session)?;
            let kept = format!("{} stays as it is, and {name} begins there", at.volume);
            announce(session, "cloning from", (&at.volume, &at.name), &kept);
            let clone = client.create_clone(&at.volume, &at.name, &CreateClone { name, method })?;
            output.show(&clone, |v| {
                let access = inherited(&v.name, v.inherited.as_ref());
                format!("created {}, {}, of {}@{}{access}", v.name, Size(v.size), at.volume, at.name)
            })
        }
        Command::List { volume, listing } => {
            if let Some(name) = &volume {
                client.volume(name)?;
            }
            let mut clones = client.volumes()?;
            clones.retain(|v| is_clone(v, volume.as_deref()));
            listing.show(session, clones, COLUMNS)
        }
    }
}

/// Returns whether a volume is a clone. A volume that depends on its own snapshot was rolled back
/// and is no clone.
fn is_clone(volume: &Volume, of: Option<&str>) -> bool {
    let origin = volume.origin.as_deref().and_then(|o| o.split_once('@'));
    origin.is_some_and(|(origin, _)| origin != volume.name && of.is_none_or(|of| of == origin))
}

const COLUMNS: &[Column<Volume>] = &[
    Column { name: "name", usual: true, cell: |v| Cell::text(&v.name) },
    Column { name: "origin", usual: true, cell: |v| Cell::text(v.origin.as_deref().unwrap_or("-")) },
    Column { name: "size", usual: true, cell: |v| Cell::Size(Some(v.size)) },
    Column { name: "own", usual: true, cell: |v| Cell::Size(Some(v.allocated)) },
    Column { name: "created", usual: true, cell: |v| Cell::Time(Some(v.created)) },
    Column { name: "method", usual: false, cell: |v| Cell::text(v.method.name()) },
    Column { name: "uuid", usual: false, cell: |v| Cell::text(&v.uuid) },
];
