//! `hindcast clone`.

use crate::failure::Failure;
use crate::output::list;
use crate::session::Session;
use crate::snapshot::{Address, address};
use crate::volume::inherited;
use clap::Subcommand;
use hindcast_api::{CreateClone, Method, Size, Volume};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast clone create db@before-upgrade test
  hindcast snapshot create test@first            a clone is a volume: it has snapshots,
  hindcast clone create test@first test2         and clones of them

A clone is there at once and takes no space until it is written to. The snapshot can be deleted; what the clone needs of it
stays until the clone goes. Like any volume it is exported over NBD and iSCSI under its name; who may reach it begins as with the
volume: access rules, CHAP accounts, whether its target is on, and whether NBD serves it.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a writable volume of a snapshot
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[arg(value_name = "VOLUME@NAME", value_parser = address)]
        snapshot: Address,
        /// Name of the new volume
        name: String,
        /// How to preserve what its own snapshots need, row or cow [default: as the snapshot's
        /// volume does]
        #[arg(long)]
        method: Option<Method>,
    },
    /// List clones
    List {
        /// Only those of snapshots of this volume
        volume: Option<String>,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, session.output);
    match command {
        Command::Create { snapshot: at, name, method } => {
            let clone = client.create_clone(&at.volume, &at.name, &CreateClone { name, method })?;
            output.show(&clone, |v| {
                let access = inherited(&v.name, v.inherited.as_ref());
                format!("created {}, {}, of {}@{}{access}", v.name, Size(v.size), at.volume, at.name)
            })
        }
        Command::List { volume } => {
            if let Some(name) = &volume {
                client.volume(name)?;
            }
            let mut clones = client.volumes()?;
            clones.retain(|v| is_clone(v, volume.as_deref()));
            output.show(&clones, |clones| table(clones))
        }
    }
}

/// A volume that rests on a snapshot of its own was rolled back, and is no clone.
fn is_clone(volume: &Volume, of: Option<&str>) -> bool {
    let origin = volume.origin.as_deref().and_then(|o| o.split_once('@'));
    origin.is_some_and(|(origin, _)| origin != volume.name && of.is_none_or(|of| of == origin))
}

fn table(clones: &[Volume]) -> String {
    let rows = clones.iter().map(|v| {
        vec![
            v.name.clone(),
            v.origin.clone().unwrap_or_default(),
            Size(v.size).to_string(),
            Size(v.allocated).to_string(),
            v.created.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        ]
    });
    list(&["NAME", "ORIGIN", "SIZE", "OWN", "CREATED"], &[2, 3], rows)
}
