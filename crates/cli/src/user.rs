//! `hindcast access user` and `hindcast access session`: people who log in with a password.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::password;
use crate::session::Session;
use clap::{Args, Subcommand};
use hindcast_api::{ActiveSession, CreateUser, PatchUser, Role, User};
use std::path::PathBuf;

const ADD_EXAMPLES: &str = "\
Examples:
  hindcast access user add anna --role operator
  hindcast access user add bob --role viewer --password-file ./bob.password

A password has at least 12 characters. There are no other rules. The command asks for it twice, and \
does not show it.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add a user
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// Name of the user
        name: String,
        /// What the user may do: viewer, operator or admin
        #[arg(long)]
        role: Role,
        #[command(flatten)]
        password: NewPassword,
    },
    /// List the users
    #[command(alias = "ls")]
    List(Listing),
    /// Remove users; their sessions end
    #[command(alias = "rm")]
    Remove {
        /// Names of the users
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Set a new password of a user; the sessions of the user end
    Password {
        /// Name of the user
        name: String,
        #[command(flatten)]
        password: NewPassword,
    },
    /// Set the role of a user; the sessions of the user end
    Role {
        /// Name of the user
        name: String,
        /// What the user may do: viewer, operator or admin
        role: Role,
    },
}

/// Sessions of browsers.
#[derive(Debug, Subcommand)]
pub(crate) enum OfSessions {
    /// List the sessions: user, role, address and last use
    #[command(alias = "ls")]
    List(Listing),
    /// End sessions
    End {
        /// Identities, as session list shows them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// Where a password comes from.
#[derive(Debug, Args)]
pub(crate) struct NewPassword {
    /// File with the password; its last line end does not count [default: asked on the terminal]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl NewPassword {
    fn read(&self) -> Result<String, Failure> {
        match &self.password_file {
            Some(path) => password::from_file(path),
            None => password::ask_twice(),
        }
    }
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Add { name, role, password } => {
            let user = client.create_user(&CreateUser { name, role, password: password.read()? })?;
            output.done(format_args!("added {} with the role {}", user.name, user.role))
        }
        Command::List(listing) => listing.show(session, client.users()?, USERS),
        Command::Remove { names } => {
            names.iter().try_for_each(|name| client.remove_user(name))?;
            output.done(format_args!("removed {}", names.join(" ")))
        }
        Command::Password { name, password } => {
            let patch = PatchUser { password: Some(password.read()?), role: None };
            client.patch_user(&name, &patch)?;
            output.done(format_args!("{name} has a new password"))
        }
        Command::Role { name, role } => {
            client.patch_user(&name, &PatchUser { password: None, role: Some(role) })?;
            output.done(format_args!("{name} has the role {role}"))
        }
    }
}

pub(crate) fn of_sessions(command: OfSessions, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        OfSessions::List(listing) => listing.show(session, client.sessions()?, SESSIONS),
        OfSessions::End { ids } => {
            ids.iter().try_for_each(|id| client.end_session(id))?;
            output.done(format_args!("ended {}", ids.join(" ")))
        }
    }
}

const USERS: &[Column<User>] = &[
    Column { name: "name", usual: true, cell: |u| Cell::text(&u.name) },
    Column { name: "role", usual: true, cell: |u| Cell::text(u.role.to_string()) },
    Column { name: "created", usual: true, cell: |u| Cell::Time(Some(u.created)) },
];

const SESSIONS: &[Column<ActiveSession>] = &[
    Column { name: "id", usual: true, cell: |s| Cell::text(&s.id) },
    Column { name: "name", usual: true, cell: |s| Cell::text(&s.name) },
    Column { name: "role", usual: true, cell: |s| Cell::text(s.role.to_string()) },
    Column { name: "address", usual: true, cell: |s| Cell::text(&s.address) },
    Column { name: "since", usual: true, cell: |s| Cell::Time(Some(s.since)) },
    Column { name: "last-use", usual: true, cell: |s| Cell::Time(Some(s.last_used)) },
    Column { name: "expires", usual: false, cell: |s| Cell::Time(Some(s.expires)) },
];
