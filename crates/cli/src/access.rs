//! `hindcast access`: which NBD clients may use a volume, and who may use the admin API.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::session::Session;
use crate::{token, user};
use clap::{ArgGroup, Args, Subcommand};
use hindcast_api::{Access, AddNbdRule, NbdAccess, NbdRule, Unmatched};

const ALLOW_EXAMPLES: &str = "\
Examples:
  hindcast access allow db --nbd --address 10.0.0.0/24
  hindcast access allow db --nbd --address 10.0.0.0/24 --certificate 'CN=vm1'
  hindcast access allow db --nbd --certificate 'CN=backup' --read-only
  hindcast access allow --all --nbd --address 10.0.0.5 --address fd00::5
  hindcast access deny db --nbd --address 10.0.0.66 --at 1

The server checks the rules in order: first the rules of the volume, then the rules for all volumes \
(--all). The first rule that matches the address and the certificate of the client decides. A client \
that no rule matches is refused. There is one exception: while neither the volume nor --all has a \
rule, every client on a loopback address is allowed, and with serve --nbd-open every client. The \
rules of a volume hold for its snapshots and moments, too. They do not concern clients on a Unix \
socket, where the permissions of the file decide.

--certificate needs serve --nbd-tls-ca. It compares the common name (CN) in the subject of the \
client's certificate. A certificate with several common names matches no rule that allows.

Rules for iSCSI: hindcast target allow. To close a volume to all NBD clients: hindcast volume set \
VOLUME --nbd no.";

const LIST_EXAMPLES: &str = "\
Examples:
  hindcast access list                all rules
  hindcast access list db             the rules of db
  hindcast access list --all          the rules that the server checks for all volumes
  hindcast access list -o json | jq '.[] | select(.unmatched == \"open\")'";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add a rule that allows NBD clients, by address and certificate
    #[command(after_help = ALLOW_EXAMPLES, group = ArgGroup::new("which").required(true))]
    Allow {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        protocol: Protocol,
        #[command(flatten)]
        who: Who,
        /// Refuse writes of these clients
        #[arg(long)]
        read_only: bool,
    },
    /// Add a rule that refuses NBD clients, by address and certificate; their connections end
    #[command(after_help = ALLOW_EXAMPLES, group = ArgGroup::new("which").required(true))]
    Deny {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        protocol: Protocol,
        #[command(flatten)]
        who: Who,
    },
    /// Remove a rule by its number, as access list shows it; connections that no rule allows any
    /// more end
    #[command(alias = "rm", group = ArgGroup::new("which").required(true))]
    Remove {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        protocol: Protocol,
        /// Number of the rule, from 1
        #[arg(long, value_name = "N")]
        rule: usize,
    },
    /// Access tokens for programs that use the admin API: create, list, revoke
    #[command(subcommand)]
    Token(token::Command),
    /// Users, who log in with a password: add, list, remove, password, role
    #[command(subcommand)]
    User(user::Command),
    /// Sessions of browsers: list, end
    #[command(subcommand)]
    Session(user::OfSessions),
    /// List the rules of a volume, those for all volumes, or all
    #[command(alias = "ls", after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        listing: Listing,
    },
}

/// One volume, or all volumes.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the volume
    #[arg(group = "which")]
    volume: Option<String>,
    /// Use the rules that the server checks for all volumes, after their own
    #[arg(long, group = "which", conflicts_with = "volume")]
    all: bool,
}

impl Which {
    fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    fn text(&self) -> &str {
        self.volume().unwrap_or("all volumes")
    }
}

/// The protocol of a rule.
#[derive(Debug, Args)]
pub(crate) struct Protocol {
    /// The rule is for NBD; rules for iSCSI are made by target allow
    #[arg(long, required = true)]
    nbd: bool,
}

/// The clients that a rule matches.
#[derive(Debug, Args)]
pub(crate) struct Who {
    /// Address, or range such as 10.0.0.0/8 or fd00::/8; repeatable [default: any]
    #[arg(long = "address", value_name = "ADDRESS", value_delimiter = ',')]
    addresses: Vec<String>,
    /// Subject of the client's certificate, as CN=NAME [default: any, or none]
    #[arg(long, value_name = "SUBJECT")]
    certificate: Option<String>,
    /// Position in the order of rules, from 1 [default: the last]
    #[arg(long, value_name = "N")]
    at: Option<usize>,
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Allow { which, protocol: _, who, read_only } => {
            let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
            add(session, &which, who, access)
        }
        Command::Deny { which, protocol: _, who } => add(session, &which, who, Access::Denied),
        Command::Remove { which, protocol: _, rule } => {
            client.remove_nbd_rule(which.volume(), rule)?;
            output.done(format_args!("removed NBD rule {rule} of {}", which.text()))
        }
        Command::Token(command) => token::run(command, session),
        Command::User(command) => user::run(command, session),
        Command::Session(command) => user::of_sessions(command, session),
        Command::List { which, listing } => match which.volume() {
            Some(volume) => {
                let access = client.nbd_access(volume)?;
                if output.is_json() {
                    return output.json(&access);
                }
                listing.show(session, rows(&access), COLUMNS)?;
                access.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
                Ok(())
            }
            None => {
                let mut all = client.all_nbd_access()?;
                all.retain(|access| !which.all || access.volume.is_none());
                if output.is_json() {
                    return output.json(&all);
                }
                listing.show(session, all.iter().flat_map(rows).collect(), COLUMNS)
            }
        },
    }
}

fn add(session: &Session, which: &Which, who: Who, access: Access) -> Result<(), Failure> {
    let Who { addresses, certificate, at } = who;
    let rule = AddNbdRule { addresses, certificate, access, at };
    let told = session.client.add_nbd_rule(which.volume(), &rule)?;
    let AddNbdRule { addresses, certificate, .. } = rule;
    let rule = NbdRule { addresses, certificate, access };
    session.output.done(format_args!("{}: {rule}", which.text()))?;
    told.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(())
}

fn name(access: &NbdAccess) -> &str {
    access.volume.as_deref().unwrap_or("all volumes")
}

/// Describes what happens to a client that no rule matches.
fn unmatched(access: &NbdAccess) -> &'static str {
    match (access.unmatched, access.unmatched_on_loopback) {
        (Unmatched::Refused, Unmatched::Refused) => "refused",
        (Unmatched::Refused, Unmatched::Open) => "refused, and allowed on loopback addresses",
        (Unmatched::Open, _) => "allowed",
    }
}

/// A rule in a list, or what happens to the clients that no rule matches. In JSON a list has the
/// rules of each volume together.
#[derive(serde::Serialize)]
struct Row {
    volume: String,
    /// Position in the order of rules. `None`: the clients that no rule matches.
    rule: Option<usize>,
    address: String,
    certificate: String,
    access: &'static str,
}

/// Returns the rules, and then what happens to all others.
fn rows(access: &NbdAccess) -> Vec<Row> {
    let any = || "any".to_owned();
    let volume = || name(access).to_owned();
    let rules = access.rules.iter().enumerate().map(|(i, rule)| Row {
        volume: volume(),
        rule: Some(i + 1),
        address: if rule.addresses.is_empty() { any() } else { rule.addresses.join(" ") },
        certificate: rule.certificate.clone().unwrap_or_else(any),
        access: rule.access.name(),
    });
    let access = unmatched(access);
    let others = Row { volume: volume(), rule: None, address: any(), certificate: any(), access };
    rules.chain([others]).collect()
}

const COLUMNS: &[Column<Row>] = &[
    Column { name: "volume", usual: true, cell: |r| Cell::text(&r.volume) },
    Column {
        name: "rule",
        usual: true,
        cell: |r| r.rule.map_or_else(|| Cell::Ordered("others".into(), u64::MAX), |n| Cell::number(n as u64)),
    },
    Column { name: "address", usual: true, cell: |r| Cell::text(&r.address) },
    Column { name: "certificate", usual: true, cell: |r| Cell::text(&r.certificate) },
    Column { name: "access", usual: true, cell: |r| Cell::text(r.access) },
];
