//! `hindcast clients`.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing, span};
use crate::output::yes_no;
use crate::session::Session;
use clap::Subcommand;
use hindcast_api::ConnectedClient;

const LIST_EXAMPLES: &str = "\
Examples:
  hindcast clients list                          everybody
  hindcast clients list db                       who uses db, its snapshots and its moments
  hindcast clients list db -o json | jq -r '.[].addresses[]'

An NBD client is a connection, and an iSCSI client is a session, which may have several connections. \
An iSCSI initiator is listed for every volume that it sees at its target.";

const DISCONNECT_EXAMPLES: &str = "\
Examples:
  hindcast clients disconnect nbd-7
  hindcast clients disconnect iscsi-3 iscsi-4

Requests that were not answered yet fail at the client. A client may connect again at once. To keep \
initiators out, change the rules (hindcast target deny), or disable the target (hindcast target set). \
To keep NBD clients out: hindcast access deny. To close a volume to NBD: hindcast volume set VOLUME \
--nbd no.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the clients that are connected now
    #[command(alias = "ls", after_help = LIST_EXAMPLES)]
    List {
        /// List only clients of this volume, its snapshots and its moments
        volume: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// End connections or sessions of clients
    #[command(after_help = DISCONNECT_EXAMPLES)]
    Disconnect {
        /// Identities, as clients list shows them: nbd-7, iscsi-3
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::List { volume, listing } => {
            if let Some(name) = &volume {
                client.volume(name)?;
            }
            let mut clients = client.clients()?;
            clients.retain(|c| volume.as_deref().is_none_or(|volume| uses(c, volume)));
            listing.show(session, clients, COLUMNS)
        }
        Command::Disconnect { ids } => {
            ids.iter().try_for_each(|id| client.disconnect_client(id))?;
            output.done(format_args!("disconnected {}", ids.join(" ")))
        }
    }
}

/// Returns whether a client uses a volume, a snapshot of it, or a moment.
fn uses(client: &ConnectedClient, volume: &str) -> bool {
    client.exports.iter().any(|export| export.split_once('@').map_or(export.as_str(), |(of, _)| of) == volume)
}

fn dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

const COLUMNS: &[Column<ConnectedClient>] = &[
    Column { name: "id", usual: true, cell: |c| Cell::text(&c.id) },
    Column { name: "address", usual: true, cell: |c| Cell::text(c.addresses.join(" ")) },
    Column {
        name: "initiator",
        usual: true,
        cell: |c| Cell::text(dash(c.initiator.clone().or_else(|| c.user.clone()).unwrap_or_default())),
    },
    Column { name: "export", usual: true, cell: |c| Cell::text(dash(c.exports.join(" "))) },
    Column { name: "since", usual: true, cell: |c| Cell::Ordered(span(c.age), c.age) },
    Column { name: "requests", usual: true, cell: |c| Cell::number(c.requests) },
    Column { name: "read", usual: true, cell: |c| Cell::Size(Some(c.read_bytes)) },
    Column { name: "written", usual: true, cell: |c| Cell::Size(Some(c.write_bytes)) },
    Column {
        name: "in-flight",
        usual: true,
        cell: |c| c.in_flight.map_or_else(|| Cell::Ordered("-".into(), 0), Cell::number),
    },
    Column { name: "protocol", usual: false, cell: |c| Cell::text(c.protocol.name()) },
    Column { name: "tls", usual: false, cell: |c| Cell::text(yes_no(c.tls)) },
];
