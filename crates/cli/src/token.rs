//! `hindcast access token`: access tokens for programs that use the admin API.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::session::Session;
use clap::Subcommand;
use hindcast_api::{AccessToken, CreateToken, CreatedToken, Role, TimeSpan};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast access token create grafana --role metrics
  hindcast access token create backup --role operator --volumes 'db*,log' --expires 90d
  hindcast access token create ci --role viewer > ci.token

The command shows the secret once; the server keeps only its hash. A client sends the secret as \
bearer token: hindcast --server https://HOST:8440 --token-file ci.token status.

Roles: viewer reads everything except secrets, tokens, users and the audit. operator also makes \
changes that lose nothing. admin also deletes, rolls back, and decides who is let in. metrics reads \
/metrics only.

A token with --volumes may only use requests about these volumes, and status and health. It gets no \
lists.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a token, and show its secret
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// Name of the token
        name: String,
        /// What its holder may do
        #[arg(long)]
        role: Role,
        /// Names of the volumes that its holder may use, or patterns with * [default: all]
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        volumes: Vec<String>,
        /// Let its holder create views of these volumes, also with the role viewer
        #[arg(long)]
        views: bool,
        /// Time after which the token expires [default: never]
        #[arg(long, value_name = "TIME")]
        expires: Option<TimeSpan>,
    },
    /// List the tokens: role, volumes, expiry and last use
    #[command(alias = "ls")]
    List(Listing),
    /// Revoke tokens; the server refuses them from now on
    #[command(alias = "rm")]
    Revoke {
        /// Names of the tokens
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Create { name, role, volumes, views, expires } => {
            let expires_seconds = expires.map(|span| span.0.as_secs());
            let made = client.create_token(&CreateToken { name, role, volumes, views, expires_seconds })?;
            output.show(&made, |made: &CreatedToken| made.secret.clone())
        }
        Command::List(listing) => listing.show(session, client.tokens()?, COLUMNS),
        Command::Revoke { names } => {
            names.iter().try_for_each(|name| client.revoke_token(name))?;
            output.done(format_args!("revoked {}", names.join(" ")))
        }
    }
}

fn volumes(token: &AccessToken) -> String {
    if token.volumes.is_empty() { "all".into() } else { token.volumes.join(",") }
}

fn role(token: &AccessToken) -> String {
    if token.views { format!("{}, views", token.role) } else { token.role.to_string() }
}

const COLUMNS: &[Column<AccessToken>] = &[
    Column { name: "name", usual: true, cell: |t| Cell::text(&t.name) },
    Column { name: "role", usual: true, cell: |t| Cell::text(role(t)) },
    Column { name: "volumes", usual: true, cell: |t| Cell::text(volumes(t)) },
    Column { name: "expires", usual: true, cell: |t| Cell::Time(t.expires) },
    Column { name: "last-use", usual: true, cell: |t| Cell::Time(t.last_used) },
    Column { name: "created", usual: false, cell: |t| Cell::Time(Some(t.created)) },
];
