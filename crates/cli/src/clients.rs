//! `hindcast clients`.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing, span};
use crate::output::yes_no;
use crate::session::Session;
use clap::{Args, Subcommand};
use hindcast_api::ConnectedClient;

const EXAMPLES: &str = "\
Examples:
  hindcast clients                               everybody
  hindcast clients db                            who uses db, its snapshots and its moments
  hindcast clients db -o json | jq -r '.[].addresses[]'
  hindcast clients disconnect nbd-7

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

/// List the clients that use volumes now, over NBD and iSCSI
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Clients {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    wanted: Wanted,
}

#[derive(Debug, Args)]
struct Wanted {
    /// List only clients of this volume, its snapshots and its moments
    volume: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the clients that are connected now, also of a volume with the name of a subcommand
    #[command(alias = "ls")]
    List(Wanted),
    /// End connections or sessions of clients
    #[command(after_help = DISCONNECT_EXAMPLES)]
    Disconnect {
        /// Identities, as hindcast clients shows them: nbd-7, iscsi-3
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

pub(crate) fn run(args: Clients, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match args.command.unwrap_or(Command::List(args.wanted)) {
        Command::List(Wanted { volume, listing }) => {
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

/// Returns who the client is: an initiator, the subject of a certificate, or a local user.
fn who(client: &ConnectedClient) -> String {
    let names = [&client.initiator, &client.certificate, &client.unix_user, &client.user];
    dash(names.into_iter().find_map(Option::clone).unwrap_or_default())
}

fn access(client: &ConnectedClient) -> &'static str {
    match client.writable {
        None => "-",
        Some(true) => "read-write",
        Some(false) => "read-only",
    }
}

fn dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

const COLUMNS: &[Column<ConnectedClient>] = &[
    Column { name: "id", usual: true, cell: |c| Cell::text(&c.id) },
    Column { name: "address", usual: true, cell: |c| Cell::text(c.addresses.join(" ")) },
    Column { name: "who", usual: true, cell: |c| Cell::text(who(c)) },
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
    Column { name: "initiator", usual: false, cell: |c| Cell::text(c.initiator.as_deref().unwrap_or("-")) },
    Column { name: "tls", usual: false, cell: |c| Cell::text(yes_no(c.tls)) },
    Column { name: "access", usual: false, cell: |c| Cell::text(access(c)) },
    Column { name: "reads", usual: false, cell: |c| Cell::number(c.reads) },
    Column { name: "writes", usual: false, cell: |c| Cell::number(c.writes) },
];
