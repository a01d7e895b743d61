//! `hindcast view`: moments that stay for as long as somebody needs them.

use crate::failure::Failure;
use crate::group;
use crate::listing::{Cell, Column, Listing, span};
use crate::output::properties;
use crate::session::Session;
use crate::when::{Here, When};
use clap::Subcommand;
use hindcast_api::{CreateView, PatchView, Size, TimeSpan, View};
use jiff::Timestamp;

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast view create db@-10m                           its addresses, and commands that use them
  hindcast view create db@10:41 --lease 8h --name audit
  hindcast view create db@-10m --last-flush              what clients had on stable storage then
  hindcast view create shop@-10m                         of each volume of a group, at one moment

A view is a read-only device. Its moment does not expire, also not when the history behind it does, \
until the lease ends and no client uses it any more.";

const RENEW_EXAMPLES: &str = "\
Examples:
  hindcast view renew 6f1c2ab3d0 --lease 2h              two hours from now";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the views, and when their leases end
    #[command(alias = "ls")]
    List(Listing),
    /// Fix a moment of a volume, and say how clients reach it
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// Address of the moment: VOLUME@MOMENT, or GROUP@MOMENT for all volumes of a group
        address: String,
        /// How long the view stays, at most 30d
        #[arg(long, value_name = "TIME", default_value = "1h")]
        lease: TimeSpan,
        /// Name for people
        #[arg(long)]
        name: Option<String>,
        /// Show the last flush at or before the moment
        #[arg(long)]
        last_flush: bool,
    },
    /// Show a view: its addresses, and commands that use them
    Show {
        /// Identity of the view
        id: String,
    },
    /// Give a view a new lease
    #[command(after_help = RENEW_EXAMPLES)]
    Renew {
        /// Identity of the view
        id: String,
        /// How long the view stays from now on, at most 30d
        #[arg(long, value_name = "TIME", default_value = "1h")]
        lease: TimeSpan,
    },
    /// End views; their NBD clients are disconnected
    #[command(alias = "rm")]
    Delete {
        /// Identities of the views
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::List(listing) => listing.show(session, client.views()?, COLUMNS),
        Command::Create { address, lease, name, last_flush } => {
            let Some((volume, moment)) = address.split_once('@') else {
                let text = format!("{address:?} is no address of a moment: write VOLUME@MOMENT");
                return Err(Failure::usage(text));
            };
            let when = When::parse(moment).map_err(Failure::usage)?;
            let volumes = group::volumes(session, vec![volume.to_owned()])?;
            let moment = of_all(session, &volumes, &when)?;
            let new = CreateView { moment, lease_seconds: Some(lease.0.as_secs()), name, last_flush };
            let views = create_all(session, &volumes, &new)?;
            match views.as_slice() {
                [view] => output.show(view, |view| text(view, &session.here)),
                _ => output.show(&views, |views| {
                    let texts = views.iter().map(|view| text(view, &session.here));
                    texts.collect::<Vec<_>>().join("\n\n")
                }),
            }
        }
        Command::Show { id } => output.show(&client.view(&id)?, |view| text(view, &session.here)),
        Command::Renew { id, lease } => {
            let view = client.renew_view(&id, &PatchView { lease_seconds: Some(lease.0.as_secs()) })?;
            output.show(&view, |view| format!("view {id} stays until {}", session.here.stamp(view.expires)))
        }
        Command::Delete { ids } => {
            ids.iter().try_for_each(|id| client.delete_view(id))?;
            output.done(format_args!("ended {}", ids.join(" ")))
        }
    }
}

/// Makes a view of each volume, or none: if one can't be made, those before it are ended.
fn create_all(session: &Session, volumes: &[String], new: &CreateView) -> Result<Vec<View>, Failure> {
    let mut views: Vec<View> = Vec::new();
    for volume in volumes {
        match session.client.create_view(volume, new) {
            Ok(view) => views.push(view),
            Err(error) => {
                // One that stays ends with its lease.
                views.iter().for_each(|view| drop(session.client.delete_view(&view.id)));
                return Err(error.into());
            }
        }
    }
    Ok(views)
}

/// Returns the moment in a form that names one position for all `volumes`. The server resolves a
/// time such as `-10m` again for each request, so the position that the pool had then is used.
fn of_all(session: &Session, volumes: &[String], when: &When) -> Result<String, Failure> {
    let moment = session.moment(when)?;
    if volumes.len() == 1 || when.is_name() {
        return Ok(moment);
    }
    let mut newest = 0;
    for volume in volumes {
        newest = newest.max(session.client.moment(volume, &moment)?.lsn);
    }
    Ok(format!("lsn:{newest}"))
}

fn text(view: &View, here: &Here) -> String {
    let mut text = properties([
        ("view", view.id.clone()),
        ("name", view.name.clone().unwrap_or_else(|| "-".into())),
        ("address", view.address.clone()),
        ("moment", here.said(view.time)),
        ("size", Size(view.size).to_string()),
        ("lease", format!("until {}", here.stamp(view.expires))),
        ("clients", view.clients.to_string()),
    ]);
    for (kind, addresses) in [("nbd", &view.nbd), ("iscsi", &view.iscsi)] {
        addresses.iter().for_each(|address| text.push_str(&format!("\n{kind:<9}{address}")));
    }
    for command in &view.commands {
        text.push_str(&format!("\n\n{}:\n  {}", command.system, command.command));
    }
    text
}

const COLUMNS: &[Column<View>] = &[
    Column { name: "id", usual: true, cell: |v| Cell::text(&v.id) },
    Column { name: "address", usual: true, cell: |v| Cell::text(&v.address) },
    Column { name: "name", usual: true, cell: |v| Cell::text(v.name.as_deref().unwrap_or("-")) },
    Column { name: "moment", usual: true, cell: |v| Cell::Time(Some(v.time)) },
    Column { name: "lease", usual: true, cell: |v| Cell::Ordered(left(v), left_seconds(v)) },
    Column { name: "clients", usual: true, cell: |v| Cell::number(v.clients) },
    Column { name: "size", usual: false, cell: |v| Cell::Size(Some(v.size)) },
    Column { name: "created", usual: false, cell: |v| Cell::Time(Some(v.created)) },
    Column { name: "expires", usual: false, cell: |v| Cell::Time(Some(v.expires)) },
];

fn left_seconds(view: &View) -> u64 {
    u64::try_from(view.expires.duration_since(Timestamp::now()).as_secs()).unwrap_or(0)
}

fn left(view: &View) -> String {
    match left_seconds(view) {
        0 => "ended".into(),
        seconds => format!("{} left", span(seconds)),
    }
}
