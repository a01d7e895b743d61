//! `hindcast target`: what iSCSI initiators see, and which initiators may see it.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::output::{list, properties};
use crate::session::Session;
use clap::{ArgGroup, Args, Subcommand};
use hindcast_api::{
    Access, AccessRule, AddLun, AddRule, Chap, CreateTarget, Lun, PatchTarget, SetChap, Size, Target,
    TargetDefaults, TargetReservation, TargetSession, Unmatched,
};
use std::io::Read;
use std::path::{Path, PathBuf};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast target create cluster                 becomes iqn.2026-11.io.hindcast:cluster
  hindcast target add-lun cluster --volume db    its LUN 0
  hindcast target add-lun cluster --volume log   its LUN 1

Every volume already has a target of its own, iqn.2026-11.io.hindcast:VOLUME, and is LUN 0 there. \
Create a target to export several LUNs together.";

const ADD_LUN_EXAMPLES: &str = "\
Examples:
  hindcast target add-lun cluster --volume db
  hindcast target add-lun cluster db@before      a snapshot, read-only
  hindcast target add-lun cluster --lun 7 --file /srv/images/cd.iso --read-only
  hindcast target add-lun cluster --device /dev/vdb --block 4096
  hindcast target add-lun cluster --file /srv/images/win.raw --serial win-2026

A volume or snapshot keeps its LUN when it is renamed. Its deletion needs --force while it is a LUN. \
A file or block device is exported as it is; no other program may use it. Give it a --serial if \
initiators must recognize it after it is mapped again, here or by another server. A file whose \
length is not a multiple of the block size is read-only, and zeros fill its last block.";

const ALLOW_EXAMPLES: &str = "\
Examples:
  hindcast target allow db --initiator iqn.1993-08.org.debian:01:5f3a
  hindcast target allow db --initiator 'iqn.1991-05.com.microsoft:*' --address 10.0.0.0/8 --read-only
  hindcast target allow cluster --initiator iqn.2004-10.com.ubuntu:host-1 --lun 0 --lun 2
  hindcast target allow --all --address 10.1.0.0/16
  hindcast target allow db --user alice          initiators with the CHAP account alice
  hindcast target deny db --address 10.1.0.66 --at 1

The server checks the rules in order: first the rules of the target, then the rules for all targets \
(--all). The first rule that matches the name, the address and the CHAP account of the initiator \
decides. An initiator that no rule matches is refused. There is one exception: while no rule exists \
at all, and the server listens on loopback addresses only, every initiator is allowed.

Rules for NBD clients: hindcast access allow.";

const CHAP_EXAMPLES: &str = "\
Examples:
  openssl rand -hex 8 >secret && hindcast target chap db --user alice --secret-file secret
  hindcast target chap db --user alice --secret-file s1 --mutual-user server --mutual-secret-file s2
  hindcast target chap db --user bob --secret-file s3         add a second account
  hindcast target chap db --list
  hindcast target chap db --remove bob
  hindcast target chap --all --user alice --secret-file -
  hindcast target chap db --off

Give each host an account of its own: access rules can name it (target allow db --user alice), and \
only the account that began a session can take the session over. Accounts set with --all apply to \
discovery, and to targets without accounts of their own. A secret has 12 to 255 bytes; every \
initiator accepts 12 to 16. The server stores secrets in the data directory, in a file that only its \
owner can read, and never shows them.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a target that can have several LUNs
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// iSCSI name, or a short name that follows iqn.2026-11.io.hindcast: (letters, digits, '-',
        /// '.' and ':')
        name: String,
        /// Description that initiators show
        #[arg(long, value_name = "TEXT")]
        alias: Option<String>,
    },
    /// List all targets, including the targets of volumes
    #[command(alias = "ls")]
    List(Listing),
    /// Show one target with its LUNs, rules and sessions
    #[command(group = ArgGroup::new("which").required(true))]
    #[command(alias = "info")]
    Show {
        #[command(flatten)]
        which: Which,
    },
    /// Delete a target that target create made; its volumes and files stay
    #[command(alias = "rm")]
    Delete {
        /// iSCSI name, or short name
        name: String,
        /// Delete it even if initiators are logged in to it; their sessions end
        #[arg(long)]
        force: bool,
    },
    /// Enable or disable a target, or change its alias
    #[command(group = ArgGroup::new("property").required(true).multiple(true))]
    Set {
        /// iSCSI name, short name, or volume
        name: String,
        /// Allow initiators to log in
        #[arg(long, group = "property", conflicts_with = "disabled")]
        enabled: bool,
        /// Refuse initiators, and end their sessions
        #[arg(long, group = "property")]
        disabled: bool,
        /// Description that initiators show; an empty text removes it
        #[arg(long, value_name = "TEXT", group = "property")]
        alias: Option<String>,
    },
    /// Add a LUN: a volume, a snapshot, a file, or a block device
    #[command(after_help = ADD_LUN_EXAMPLES, group = ArgGroup::new("backing").required(true))]
    AddLun {
        /// iSCSI name, short name, or volume
        name: String,
        /// LUN, 0 to 16383 [default: the lowest that is free]
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
        /// Volume, or snapshot as VOLUME@NAME
        #[arg(value_name = "ADDRESS", group = "backing")]
        address: Option<String>,
        /// Volume, or snapshot as VOLUME@NAME
        #[arg(long, value_name = "NAME", group = "backing")]
        volume: Option<String>,
        /// Regular file on the server's machine
        #[arg(long, value_name = "PATH", group = "backing")]
        file: Option<String>,
        /// Block device of the server's machine
        #[arg(long, value_name = "PATH", group = "backing")]
        device: Option<String>,
        /// Refuse writes to the file or device
        #[arg(long, conflicts_with_all = ["volume", "address"])]
        read_only: bool,
        /// Logical block size of the file or device, 512 or 4096 [default: 512]
        #[arg(long, value_name = "SIZE", value_parser = crate::volume::block_size,
            conflicts_with_all = ["volume", "address"])]
        block: Option<u32>,
        /// Serial number of the file or device, by which initiators recognize it [default: a random
        /// one]
        #[arg(long, value_name = "TEXT", conflicts_with_all = ["volume", "address"])]
        serial: Option<String>,
    },
    /// Remove a LUN; the volume or file stays
    RemoveLun {
        /// iSCSI name, short name, or volume
        name: String,
        /// Number of the LUN
        lun: u16,
        /// Remove it even if initiators are logged in to the target
        #[arg(long)]
        force: bool,
    },
    /// Add an access rule that allows initiators, by name, address and CHAP account
    #[command(after_help = ALLOW_EXAMPLES, group = ArgGroup::new("which").required(true))]
    Allow {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        who: Who,
        /// Refuse writes of these initiators
        #[arg(long)]
        read_only: bool,
        /// Allow only this LUN; repeatable [default: all LUNs]
        #[arg(long = "lun", value_name = "N", value_delimiter = ',')]
        luns: Vec<u16>,
    },
    /// Remove the reservations of a target's LUNs, and its persistent reservations and
    /// registrations; the server reports it to the initiators that made them
    ClearReservations {
        /// iSCSI name, short name, or volume
        name: String,
        /// Remove only those of this LUN
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
    },
    /// Add an access rule that refuses initiators, by name, address and CHAP account
    #[command(group = ArgGroup::new("which").required(true))]
    Deny {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        who: Who,
    },
    /// Remove an access rule by its number, as target show lists it
    #[command(group = ArgGroup::new("which").required(true))]
    Disallow {
        #[command(flatten)]
        which: Which,
        /// Number of the rule, from 1
        #[arg(long, value_name = "N")]
        rule: usize,
    },
    Chap(ChapArgs),
}

/// Require initiators to authenticate by CHAP: add, replace, list or remove accounts
#[derive(Debug, Args)]
#[command(after_help = CHAP_EXAMPLES, group = ArgGroup::new("which").required(true),
    group = ArgGroup::new("switch").required(true))]
pub(crate) struct ChapArgs {
    #[command(flatten)]
    which: Which,
    /// Account to add, or to replace: the name with which initiators authenticate
    #[arg(long, group = "switch", requires = "secret_file")]
    user: Option<String>,
    /// File with the secret of the account, or - for standard input
    #[arg(long, value_name = "FILE", requires = "user")]
    secret_file: Option<PathBuf>,
    /// Name with which the target authenticates to initiators that require it (mutual CHAP)
    #[arg(long, value_name = "USER", requires_all = ["mutual_secret_file", "user"])]
    mutual_user: Option<String>,
    /// File with the secret of the target, or - for standard input
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    mutual_secret_file: Option<PathBuf>,
    /// End mutual CHAP: the target no longer authenticates
    #[arg(long, requires = "user", conflicts_with = "mutual_user")]
    no_mutual: bool,
    /// List the accounts
    #[arg(long, group = "switch")]
    list: bool,
    /// Remove one of several accounts; its sessions end
    #[arg(long, value_name = "USER", group = "switch")]
    remove: Option<String>,
    /// Remove all accounts; a target without accounts uses those for all targets, if there are any
    #[arg(long, group = "switch")]
    off: bool,
}

/// One target, or the defaults for all targets.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// iSCSI name, short name, or volume
    #[arg(group = "which")]
    name: Option<String>,
    /// Use the settings that apply to all targets
    #[arg(long, group = "which")]
    all: bool,
}

impl Which {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn text(&self) -> &str {
        self.name().unwrap_or("all targets")
    }
}

/// The initiators that a rule matches.
#[derive(Debug, Args)]
pub(crate) struct Who {
    /// Initiator name; * matches any text, ? matches one character
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    initiator: String,
    /// Address, or range such as 10.0.0.0/8 or fd00::/8 [default: any]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// CHAP account with which the initiator authenticated [default: any, or none]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Position in the order of rules, from 1 [default: the last]
    #[arg(long, value_name = "N")]
    at: Option<usize>,
}

impl Who {
    fn rule(self, access: Access, luns: Vec<u16>) -> AddRule {
        let luns = (!luns.is_empty()).then_some(luns);
        let Who { initiator, address, user, at } = self;
        AddRule { initiator, address, user, access, luns, at }
    }
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Create { name, alias } => output
            .show(&client.create_target(&CreateTarget { name, alias })?, |t| format!("created {}", t.name)),
        Command::List(listing) => listing.show(session, client.targets()?, COLUMNS),
        Command::Show { which } => match which.name() {
            Some(name) => {
                let target = client.target(name)?;
                output.show(&target, details)?;
                warn(&target);
                Ok(())
            }
            None => output.show(&client.target_defaults()?, defaults),
        },
        Command::Delete { name, force } => {
            client.delete_target(&name, force)?;
            output.done(format_args!("deleted {name}"))
        }
        Command::Set { name, enabled, disabled, alias } => {
            let patch = PatchTarget { enabled: (enabled || disabled).then_some(enabled), alias };
            output.show(&client.patch_target(&name, &patch)?, |t| format!("{} is {}", t.name, state(t)))
        }
        Command::AddLun { name, lun, address, volume, file, device, read_only, block, serial } => {
            let volume = volume.or(address);
            let source = volume.clone().or_else(|| file.clone()).or_else(|| device.clone());
            let new = AddLun { lun, volume, file, device, read_only, block_size: block, serial };
            let before = lun;
            let target = client.add_lun(&name, &new)?;
            output.show(&target, |t| added(t, before, source.as_deref()))?;
            warn(&target);
            Ok(())
        }
        Command::RemoveLun { name, lun, force } => {
            client.remove_lun(&name, lun, force)?;
            output.done(format_args!("removed LUN {lun} of {name}"))
        }
        Command::Allow { which, who, read_only, luns } => {
            let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
            add_rule(session, &which, &who.rule(access, luns))
        }
        Command::Deny { which, who } => add_rule(session, &which, &who.rule(Access::Denied, Vec::new())),
        Command::Disallow { which, rule } => {
            client.remove_rule(which.name(), rule)?;
            output.done(format_args!("removed rule {rule} of {}", which.text()))
        }
        Command::ClearReservations { name, lun } => {
            client.clear_reservations(&name, lun)?;
            let lun = lun.map_or_else(String::new, |lun| format!("LUN {lun} of "));
            output.done(format_args!("cleared the reservations of {lun}{name}"))
        }
        Command::Chap(args) => run_chap(args, session),
    }
}

/// Runs `hindcast target chap`.
fn run_chap(args: ChapArgs, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    let ChapArgs {
        which,
        user,
        secret_file,
        mutual_user,
        mutual_secret_file,
        no_mutual,
        list: listed,
        remove,
        off,
    } = args;
    if listed {
        return output.show(&accounts(session, &which)?, |all| {
            let rows = all.iter().map(|a| vec![a.user.clone(), a.proves.to_owned()]);
            list(&["USER", "AUTHENTICATES"], &[], rows)
        });
    }
    if let Some(user) = remove {
        client.remove_account(which.name(), &user)?;
        return output.done(format_args!("{}: removed CHAP account {user}", which.text()));
    }
    if off {
        client.remove_chap(which.name())?;
        return output.done(format_args!("{}: CHAP is off", which.text()));
    }
    let chap = SetChap {
        user: user.unwrap_or_default(),
        secret: secret_file.as_deref().map(read_secret).transpose()?.unwrap_or_default(),
        mutual_user,
        mutual_secret: mutual_secret_file.as_deref().map(read_secret).transpose()?,
        no_mutual,
    };
    client.set_chap(which.name(), &chap)?;
    output.done(format_args!("{}: CHAP as {}", which.text(), chap.user))?;
    warn_of(session, &which)
}

fn add_rule(session: &Session, which: &Which, rule: &AddRule) -> Result<(), Failure> {
    session.client.add_rule(which.name(), rule)?;
    session.output.done(format_args!("{}: {} for {}", which.text(), rule.access.name(), whom(rule)))?;
    warn_of(session, which)
}

/// Describes the initiators that a rule matches, and its LUNs.
fn whom(rule: &AddRule) -> String {
    let mut text = rule.initiator.clone();
    let mut add = |what: &str, value: &str| text.extend([", ", what, " ", value]);
    if let Some(user) = &rule.user {
        add("CHAP account", user);
    }
    if let Some(address) = &rule.address {
        add("address", address);
    }
    if let Some(luns) = &rule.luns {
        let luns: Vec<String> = luns.iter().map(u16::to_string).collect();
        add(if luns.len() == 1 { "LUN" } else { "LUNs" }, &luns.join(" "));
    }
    text
}

/// Prints the warnings of a target to stderr: other targets serve the same data under different
/// access settings.
fn warn(target: &Target) {
    target.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
}

fn warn_of(session: &Session, which: &Which) -> Result<(), Failure> {
    if let Some(name) = which.name() {
        warn(&session.client.target(name)?);
    }
    Ok(())
}

/// A CHAP account in a list.
#[derive(serde::Serialize)]
struct AccountRow {
    user: String,
    proves: &'static str,
}

fn accounts(session: &Session, which: &Which) -> Result<Vec<AccountRow>, Failure> {
    let chap = match which.name() {
        Some(name) => session.client.target(name)?.chap,
        None => session.client.target_defaults()?.chap,
    };
    let Some(chap) = chap else { return Ok(Vec::new()) };
    let mut all: Vec<AccountRow> =
        chap.users().map(|user| AccountRow { user: user.to_owned(), proves: "an initiator" }).collect();
    all.extend(chap.mutual_user.iter().map(|user| AccountRow { user: user.clone(), proves: "the target" }));
    Ok(all)
}

/// Reads a secret without the line end that editors and `openssl rand` write.
fn read_secret(path: &Path) -> Result<String, Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::usage(format!("secret file {}: {e}", path.display()));
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().take(4096).read_to_string(&mut text).map_err(|e| fail(&e))?;
    } else {
        text = std::fs::read_to_string(path).map_err(|e| fail(&e))?;
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn added(target: &Target, number: Option<u16>, source: Option<&str>) -> String {
    let by_number = |l: &&Lun| Some(l.lun) == number;
    let found = target.luns.iter().find(by_number);
    let found = found.or_else(|| target.luns.iter().find(|l| Some(l.source.as_str()) == source));
    match found {
        Some(lun) => format!("{} is LUN {} of {}", lun.source, lun.lun, target.name),
        None => format!("{} has {} LUNs", target.name, target.luns.len()),
    }
}

fn state(target: &Target) -> &'static str {
    if target.enabled { "enabled" } else { "disabled" }
}

/// Describes in a few words which initiators a target accepts.
fn access(target: &Target) -> String {
    match (target.rules.len(), target.unmatched) {
        (0, Unmatched::Open) => "open".into(),
        (0, Unmatched::Refused) => "as for all".into(),
        (1, _) => "1 rule".into(),
        (n, _) => format!("{n} rules"),
    }
}

fn chap(chap: Option<&Chap>, without: &str) -> String {
    match chap {
        None => without.into(),
        Some(chap) => {
            let users = chap.users().collect::<Vec<_>>().join(" or ");
            let mutual = chap.mutual_user.as_ref().map(|mutual| format!(", mutual as {mutual}"));
            format!("as {users}{}", mutual.unwrap_or_default())
        }
    }
}

const COLUMNS: &[Column<Target>] = &[
    Column { name: "target", usual: true, cell: |t| Cell::text(&t.name) },
    Column { name: "luns", usual: true, cell: |t| Cell::number(t.luns.len() as u64) },
    Column { name: "access", usual: true, cell: |t| Cell::text(access(t)) },
    Column { name: "chap", usual: true, cell: |t| Cell::text(chap(t.chap.as_ref(), "-")) },
    Column { name: "sessions", usual: true, cell: |t| Cell::number(t.sessions.len() as u64) },
    Column { name: "state", usual: true, cell: |t| Cell::text(state(t)) },
    Column { name: "volume", usual: false, cell: |t| Cell::text(t.volume.as_deref().unwrap_or("-")) },
    Column { name: "alias", usual: false, cell: |t| Cell::text(t.alias.as_deref().unwrap_or("-")) },
];

fn details(t: &Target) -> String {
    let mut text = properties([
        ("target", t.name.clone()),
        ("volume", t.volume.clone().unwrap_or_else(|| "-".into())),
        ("alias", t.alias.clone().unwrap_or_else(|| "-".into())),
        ("state", state(t).into()),
        ("chap", chap(t.chap.as_ref(), "as for all targets")),
        ("without a rule", unmatched(t.unmatched).into()),
    ]);
    section(&mut text, luns(&t.luns));
    section(&mut text, rules(&t.rules));
    section(&mut text, sessions(&t.sessions));
    section(&mut text, reservations(&t.reservations));
    text
}

fn defaults(d: &TargetDefaults) -> String {
    let mut text = properties([
        ("chap", chap(d.chap.as_ref(), "off")),
        ("without a rule", unmatched(d.unmatched).into()),
    ]);
    section(&mut text, rules(&d.rules));
    text
}

fn unmatched(unmatched: Unmatched) -> &'static str {
    match unmatched {
        Unmatched::Open => "allowed: the server listens on loopback addresses only",
        Unmatched::Refused => "refused",
    }
}

fn section(text: &mut String, table: Option<String>) {
    if let Some(table) = table {
        text.push_str("\n\n");
        text.push_str(&table);
    }
}

fn luns(luns: &[Lun]) -> Option<String> {
    let rows = luns.iter().map(|l| {
        let state = match (&l.error, l.read_only) {
            (Some(error), _) => error.clone(),
            (None, true) => "read-only".into(),
            (None, false) => "writable".into(),
        };
        let size = l.size.map_or_else(|| "-".into(), |size| Size(size).to_string());
        let block = l.block_size.map_or_else(|| "-".into(), |b| b.to_string());
        vec![l.lun.to_string(), l.backing.name().to_owned(), l.source.clone(), size, block, state]
    });
    (!luns.is_empty()).then(|| list(&["LUN", "KIND", "SOURCE", "SIZE", "BLOCK", "ACCESS"], &[0, 3, 4], rows))
}

fn rules(rules: &[AccessRule]) -> Option<String> {
    let rows = rules.iter().enumerate().map(|(i, r)| {
        let luns = r.luns.as_ref().map_or_else(
            || "all".into(),
            |luns| luns.iter().map(u16::to_string).collect::<Vec<_>>().join(","),
        );
        let address = r.address.clone().unwrap_or_else(|| "any".into());
        let user = r.user.clone().unwrap_or_else(|| "any".into());
        vec![(i + 1).to_string(), r.initiator.clone(), address, user, r.access.name().to_owned(), luns]
    });
    (!rules.is_empty()).then(|| list(&["RULE", "INITIATOR", "ADDRESS", "USER", "ACCESS", "LUNS"], &[0], rows))
}

fn sessions(sessions: &[TargetSession]) -> Option<String> {
    let rows = sessions.iter().map(|s| {
        vec![
            s.initiator.clone(),
            s.isid.clone(),
            s.addresses.join(" "),
            s.portal_group.to_string(),
            s.user.clone().unwrap_or_else(|| "-".into()),
            if s.read_only { "read-only" } else { "read-write" }.to_owned(),
            s.commands.to_string(),
            Size(s.read_bytes).to_string(),
            Size(s.write_bytes).to_string(),
        ]
    });
    let heading = ["SESSION", "ISID", "FROM", "GROUP", "USER", "ACCESS", "COMMANDS", "READ", "WRITTEN"];
    (!sessions.is_empty()).then(|| list(&heading, &[3, 6, 7, 8], rows))
}

fn reservations(registered: &[TargetReservation]) -> Option<String> {
    let rows = registered.iter().map(|r| {
        let holds = r.holds.clone().unwrap_or_else(|| "-".into());
        vec![r.lun.to_string(), r.initiator.clone(), r.port.clone(), r.key.clone(), holds]
    });
    let heading = ["LUN", "REGISTERED", "BY PORT", "KEY", "HOLDS"];
    (!registered.is_empty()).then(|| list(&heading, &[0], rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_lose_their_line_end_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s");
        for (content, secret) in [("abc\n", "abc"), ("abc\r\n", "abc"), (" a b \n\n", " a b "), ("", "")] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(read_secret(&file).unwrap(), secret);
        }
        assert!(read_secret(&dir.path().join("none")).is_err());
    }
}
