//! `hindcast snapshot`.

use crate::failure::Failure;
use crate::group;
use crate::listing::{Cell, Column, Listing};
use crate::output::{list, properties, yes_no};
use crate::recover::{announce, kept_by_rollback};
use crate::rollback::How;
use crate::select::{self, Pattern};
use crate::session::Session;
use crate::volume::inherited;
use crate::when::When;
use clap::{ArgGroup, Args, Subcommand};
use hindcast_api::{
    Backing, ClientError, CreateSnapshots, DeleteSnapshots, ErrorBody, ErrorKind, NewSnapshot, PatchSnapshot,
    RollBack, Size, Snapshot, Volume, split_address,
};
use hindcast_server::freeze::{DEFAULT_TIMEOUT, FreezeError, Hooks, frozen};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of snapshots that the server deletes in one request.
const DELETE_AT_ONCE: usize = 200;

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast snapshot create db                        named by the time (UTC): db@20261122T031415Z
  hindcast snapshot create db@before-upgrade
  hindcast snapshot create db@v1 log@v1 wal@v1       all three at one instant
  hindcast snapshot create db --label why=upgrade
  hindcast snapshot create db@before --at -10m     keep what db was ten minutes ago
  hindcast snapshot create db@clean --before 'fsfreeze -f /mnt/db' --after 'fsfreeze -u /mnt/db'

A snapshot is taken between two writes, and clients do not wait for it. It is durable when the \
command returns. Without hooks its content is what a power failure would leave (crash-consistent):
journaling file systems and databases recover from that.

With hooks a snapshot can be application-consistent. --before runs first; if it fails, no snapshot \
is taken. --after runs last and always, even if this command is killed, and no later than \
--freeze-timeout after --before started. A snapshot that was not taken by then is deleted. Both \
commands run on this machine, by sh -c: run hindcast where the file system is mounted. The server's \
configuration file can also have hooks for a volume, which run on the server.";

const LIST_EXAMPLES: &str = "\
Examples:
  hindcast snapshot list
  hindcast snapshot list db
  hindcast snapshot list db -o json | jq -r '.[].name'

Each snapshot is listed below the one that it follows. The snapshots of a volume have one depth, and \
the volume itself is last. A clone, and a branch that a rollback left behind, is one level deeper. \
UNIQUE is the space that only this snapshot needs, and that its deletion would free. SHARED is the \
space that it shares with other snapshots or with the volume.";

const DELETE_EXAMPLES: &str = "\
Examples:
  hindcast snapshot delete db@old
  hindcast snapshot delete db@a db@b log@a
  hindcast snapshot delete shop@v1                   that of each volume of the group shop
  hindcast snapshot delete 'db@auto-*' --older-than 30d
  hindcast snapshot delete 'test-*@*' --dry-run

In a pattern, * matches any text and ? matches one character. Quote a pattern for the shell. A \
pattern skips protected snapshots; naming a protected snapshot is an error. Deleted snapshots \
disappear from lists at once. Their space is freed in the background, when no client reads them and \
no clone depends on them any more.";

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  hindcast snapshot rollback db@before-upgrade
  hindcast snapshot rollback db@before-upgrade --undo-name broken
  hindcast snapshot rollback db@broken               undo the rollback above
  hindcast snapshot rollback test@clean --undo-keep 7d

A rollback is immediate, whatever the size of the volume. Newer snapshots stay. The content \
of the volume before the rollback is kept as another snapshot, so a rollback can be undone. With \
--undo-keep the server deletes that snapshot after the given time.

The server refuses a rollback while clients use the volume: unmount its file systems first. With \
--force it disconnects NBD clients, and reports to iSCSI initiators that the unit was reset. A file \
system that is still mounted then becomes inconsistent.";

const SET_EXAMPLES: &str = "\
Examples:
  hindcast snapshot set db@v1 --writable                  clients of db@v1 reach a clone, db.v1
  hindcast snapshot set db@v1 --writable --clone trial
  hindcast snapshot set db@v1 --read-only                 clients of db@v1 reach the snapshot again
  hindcast volume delete db.v1                            discard what was written to the clone

With --writable, clients that open VOLUME@NAME over NBD or iSCSI reach a clone of the snapshot. The \
snapshot itself does not change: rollback, diff, export and clone create use its content. The clone \
is a volume like any other, with a name of its own. After --read-only the clone keeps what was \
written to it, and --writable --clone NAME shows it at the snapshot's address again.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take snapshots of volumes, all at one instant
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List snapshots, as a tree
    #[command(after_help = LIST_EXAMPLES)]
    #[command(alias = "ls")]
    List {
        /// List only snapshots of this volume
        volume: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show one snapshot
    #[command(alias = "info")]
    Show {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME", value_parser = address)]
        snapshot: Address,
    },
    /// Rename a snapshot; its exports get the new name
    Rename {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME", value_parser = address)]
        snapshot: Address,
        /// New name, without VOLUME@
        new_name: String,
    },
    /// Set or remove labels of a snapshot
    #[command(
        after_help = "Examples:\n  hindcast snapshot label db@v1 ticket=4711 why='before the upgrade'\n  hindcast snapshot label db@v1 ticket=          remove the label"
    )]
    Label {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME", value_parser = address)]
        snapshot: Address,
        /// Labels to set; KEY= without a value removes the label
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// Protect snapshots: no command, schedule or automatic deletion deletes them
    Protect {
        /// The snapshots; a group stands for its volumes
        #[arg(required = true, value_name = "VOLUME@NAME", value_parser = address)]
        snapshots: Vec<Address>,
    },
    /// Allow the deletion of snapshots again
    Unprotect {
        /// The snapshots; a group stands for its volumes
        #[arg(required = true, value_name = "VOLUME@NAME", value_parser = address)]
        snapshots: Vec<Address>,
    },
    /// Export a writable clone at a snapshot's address, or export the snapshot itself again
    #[command(after_help = SET_EXAMPLES, group = ArgGroup::new("access").required(true))]
    Set {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME", value_parser = address)]
        snapshot: Address,
        /// Export a writable clone of the snapshot at its address
        #[arg(long, group = "access")]
        writable: bool,
        /// Export the snapshot itself, read-only
        #[arg(long, group = "access")]
        read_only: bool,
        /// Name of the clone; it is created if it does not exist [default: VOLUME.NAME, a new
        /// clone]
        #[arg(long, value_name = "NAME", requires = "writable")]
        clone: Option<String>,
        /// Do it even if NBD clients use the export; they are disconnected
        #[arg(long)]
        force: bool,
    },
    /// Delete snapshots
    #[command(after_help = DELETE_EXAMPLES)]
    #[command(alias = "rm")]
    Delete {
        /// The snapshots; both parts can be patterns with * and ?. A group stands for its volumes
        #[arg(required = true, value_name = "VOLUME@NAME", value_parser = Pattern::parse)]
        snapshots: Vec<Pattern>,
        /// Delete only snapshots that are older: 90s, 30m, 12h, 7d, 4w. The age is measured by the
        /// server's clock and by the order in which the snapshots were taken; the command fails
        /// while the server does not trust its clock
        #[arg(long, value_name = "TIME", value_parser = select::duration)]
        older_than: Option<Duration>,
        /// Delete snapshots even if they are LUNs of targets
        #[arg(long)]
        force: bool,
        /// Only list the snapshots that would be deleted
        #[arg(long)]
        dry_run: bool,
    },
    /// Return a volume to the content of a snapshot
    #[command(after_help = ROLLBACK_EXAMPLES)]
    Rollback {
        /// The snapshot, or another moment, to return to
        #[arg(value_name = "VOLUME@MOMENT", value_parser = Past::parse)]
        snapshot: Past,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("hook").multiple(true))]
pub(crate) struct Create {
    /// Volumes, or groups; all snapshots are of one instant [default name: the time in UTC]
    #[arg(required = true, value_name = "VOLUME[@NAME]", value_parser = new_snapshot)]
    snapshots: Vec<NewSnapshot>,
    /// Keep this past moment instead of the present one: a time (10:41, "yesterday 10:41"), a time
    /// before now (-10m), lsn:N, or the name of a mark. The volumes need a history of it
    #[arg(long, value_name = "MOMENT", value_parser = When::parse, allow_hyphen_values = true, conflicts_with_all = ["before", "after"])]
    at: Option<When>,
    /// Label of the snapshots; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Command to run before the snapshot is taken, by sh -c on this machine
    #[arg(long, value_name = "COMMAND", group = "hook", requires = "after")]
    before: Option<String>,
    /// Command to run afterwards, by sh -c on this machine, whether or not the snapshot was taken
    #[arg(long, value_name = "COMMAND", group = "hook")]
    after: Option<String>,
    /// Time after the start of --before at which --after runs at the latest: 1s to 5m [default:
    /// 10s]
    #[arg(long, value_name = "TIME", value_parser = freeze_timeout, requires = "hook")]
    freeze_timeout: Option<Duration>,
    /// Do not run the hooks that the server's configuration has for these volumes
    #[arg(long)]
    no_hooks: bool,
}

/// A snapshot on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) volume: String,
    pub(crate) name: String,
}

/// Parses `VOLUME@NAME`.
pub(crate) fn address(text: &str) -> Result<Address, String> {
    match split_address(text) {
        Some((volume, name)) => Ok(Address { volume: volume.into(), name: name.into() }),
        None => Err("a snapshot is VOLUME@NAME, such as db@monday".into()),
    }
}

/// `VOLUME@MOMENT`: what a volume had at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) volume: String,
    pub(crate) when: When,
}

impl Past {
    pub(crate) fn parse(text: &str) -> Result<Past, String> {
        let parts = text.split_once('@').filter(|(volume, at)| !volume.is_empty() && !at.is_empty());
        match parts {
            Some((volume, at)) => Ok(Past { volume: volume.into(), when: When::parse(at)? }),
            None => Err("past content is VOLUME@MOMENT, such as db@monday, db@-90s or db@10:41".into()),
        }
    }

    /// Returns the address in a form that the server understands.
    pub(crate) fn address(&self, session: &Session) -> Result<Address, Failure> {
        Ok(Address { volume: self.volume.clone(), name: session.moment(&self.when)? })
    }
}

fn new_snapshot(text: &str) -> Result<NewSnapshot, String> {
    match text.split_once('@') {
        None if !text.is_empty() => Ok(NewSnapshot { volume: text.into(), name: None }),
        _ => address(text).map(|a| NewSnapshot { volume: a.volume, name: Some(a.name) }),
    }
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("a label is KEY=VALUE".into()),
    }
}

fn freeze_timeout(text: &str) -> Result<Duration, String> {
    match select::duration(text)? {
        time if (1..=300).contains(&time.as_secs()) => Ok(time),
        _ => Err("a freeze timeout is 1s to 5m".into()),
    }
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Create(create) => run_create(create, session),
        Command::List { volume, listing } => {
            let snapshots = client.snapshots(volume.as_deref())?;
            if !listing.is_usual(output) {
                return listing.show(session, snapshots, COLUMNS);
            }
            let volumes = match &volume {
                Some(name) => vec![client.volume(name)?],
                None => client.volumes()?,
            };
            output.show(&snapshots, |s| tree(s, &volumes, session))
        }
        Command::Show { snapshot: at } => {
            output.show(&client.snapshot(&at.volume, &at.name)?, |s| details(s, session))
        }
        Command::Rename { snapshot: at, new_name } => {
            let patch = PatchSnapshot { name: Some(new_name), ..PatchSnapshot::default() };
            let renamed = client.patch_snapshot(&at.volume, &at.name, &patch)?;
            output.show(&renamed, |s| format!("{}@{} is now {}", at.volume, at.name, s.address()))
        }
        Command::Label { snapshot: at, labels } => {
            let set = |(key, value): (String, String)| (key, (!value.is_empty()).then_some(value));
            let patch =
                PatchSnapshot { labels: labels.into_iter().map(set).collect(), ..PatchSnapshot::default() };
            let labelled = client.patch_snapshot(&at.volume, &at.name, &patch)?;
            output.show(&labelled, |s| format!("{}: {}", s.address(), labels_of(s)))
        }
        Command::Protect { snapshots } => protect(session, &snapshots, true),
        Command::Unprotect { snapshots } => protect(session, &snapshots, false),
        Command::Set { snapshot: at, writable, read_only: _, clone, force } => {
            let patch = PatchSnapshot { writable: Some(writable), clone, force, ..PatchSnapshot::default() };
            let set = client.patch_snapshot(&at.volume, &at.name, &patch)?;
            output.show(&set, |s| match &s.writable {
                Some(clone) => {
                    let access = inherited(clone, s.inherited.as_ref());
                    format!("{} is writable: its clients reach the clone {clone}{access}", s.address())
                }
                None => format!("{} is read-only", s.address()),
            })
        }
        Command::Delete { snapshots, older_than, force, dry_run } => {
            delete(session, &snapshots, older_than, (force, dry_run))
        }
        Command::Rollback { snapshot, how: How { force, undo_name, undo_keep } } => {
            let at = snapshot.address(session)?;
            let kept = kept_by_rollback(undo_name.as_deref());
            announce(session, "going back to", (&at.volume, &at.name), &kept);
            let how = RollBack { undo: undo_name, undo_keep_seconds: undo_keep, force };
            let rolled = client.roll_back(&at.volume, &at.name, &how)?;
            output.show(&rolled, |r| {
                let undo = r.undo.address();
                format!(
                    "{0} has the content of {0}@{1}; its content before is {undo}\nto undo: hindcast rollback {undo}",
                    at.volume, at.name
                )
            })
        }
    }
}

fn run_create(create: Create, session: &Session) -> Result<(), Failure> {
    let of = |snapshot: &NewSnapshot, volume| NewSnapshot { volume, ..snapshot.clone() };
    let snapshots = group::expand(session, create.snapshots, |s| &s.volume, of)?;
    let new = CreateSnapshots {
        snapshots,
        at: create.at.as_ref().map(|at| session.moment(at)).transpose()?,
        labels: create.labels.into_iter().collect(),
        no_hooks: create.no_hooks,
    };
    let take = || session.client.create_snapshots(&new);
    let created = if create.before.is_none() && create.after.is_none() {
        take()?
    } else {
        let timeout = create.freeze_timeout.unwrap_or(DEFAULT_TIMEOUT);
        match frozen(&Hooks { before: create.before, after: create.after, timeout }, take) {
            Ok(created) => created,
            Err(FreezeError::Work(error)) => return Err(error.into()),
            Err(FreezeError::Before(why)) => {
                return Err(Failure::Failed(format!("{why}; no snapshot was taken")));
            }
            Err(FreezeError::Late(created)) => {
                for s in &created {
                    let one = DeleteSnapshots { names: vec![s.name.clone()], force: false };
                    session.client.delete_snapshots(&s.volume, &one)?;
                }
                let why =
                    "take snapshots: the freeze timeout ended before they were taken; they were deleted";
                return Err(Failure::Failed(why.into()));
            }
            Err(FreezeError::After(created, why)) => {
                return Err(Failure::Failed(format!("{why}; {} was taken", addresses(&created))));
            }
        }
    };
    session.output.show(&created, |created| format!("created {}", addresses(created)))
}

fn addresses(snapshots: &[Snapshot]) -> String {
    snapshots.iter().map(Snapshot::address).collect::<Vec<_>>().join(" ")
}

/// Protects snapshots, or ends that. A group stands for the snapshots of its volumes.
fn protect(session: &Session, snapshots: &[Address], protected: bool) -> Result<(), Failure> {
    let client = &session.client;
    let with = |at: &Address, volume| Address { volume, name: at.name.clone() };
    let all = group::expand(session, snapshots.to_vec(), |at| &at.volume, with)?;
    if all.len() > 1 {
        // All of them are looked at before the first one changes.
        for at in &all {
            client.snapshot(&at.volume, &at.name).map_err(|e| with_note(e, "nothing was changed"))?;
        }
    }
    let patch = PatchSnapshot { protected: Some(protected), ..PatchSnapshot::default() };
    let changed = all.iter().map(|at| client.patch_snapshot(&at.volume, &at.name, &patch));
    let changed = changed.collect::<Result<Vec<Snapshot>, _>>()?;
    let verb = if protected { "protected" } else { "no longer protected:" };
    session.output.show(&changed, |changed| format!("{verb} {}", addresses(changed)))
}

/// Adds to what the server says why it refuses a request.
fn with_note(error: ClientError, note: &str) -> Failure {
    match error {
        ClientError::Api(body) => {
            let message = format!("{}; {note}", body.message);
            ErrorBody { message, ..body }.into()
        }
        error => error.into(),
    }
}

/// Returns the time of the server's clock, and fails while that clock is in doubt. By a clock that
/// is a year ahead, all snapshots are old.
fn trusted_now(session: &Session) -> Result<Timestamp, Failure> {
    let clock = session.client.clock()?;
    let Some(by) = clock.jumped_seconds else { return Ok(clock.now) };
    let message = format!(
        "delete snapshots by age: the server's clock differs by {by:.0} s from the expected time; see hindcast pool clock"
    );
    Err(ErrorBody { kind: ErrorKind::Conflict, message }.into())
}

/// Replaces each pattern whose volume is the name of a group by one for each volume of the group.
fn of_volumes(session: &Session, all: &[Snapshot], patterns: &[Pattern]) -> Result<Vec<Pattern>, Failure> {
    let mut found = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        // What has a snapshot is a volume. This saves most requests for groups.
        let is_volume = !pattern.is_of_one() || all.iter().any(|s| s.volume == pattern.volume);
        let one = vec![pattern.clone()];
        let with = |pattern: &Pattern, volume| Pattern { volume, ..pattern.clone() };
        found.extend(if is_volume { one } else { group::expand(session, one, |p| &p.volume, with)? });
    }
    Ok(found)
}

/// Returns the error for a snapshot that is to be deleted and does not exist. The server knows what
/// else has the name, or which names are like it.
fn not_there(session: &Session, (volume, name): (&str, &str), wanted: usize) -> Failure {
    match session.client.snapshot(volume, name) {
        Err(error) if wanted > 1 => with_note(error, "nothing was deleted"),
        Err(error) => error.into(),
        Ok(_) => {
            let message = format!("delete snapshot {volume}@{name}: it was just created; try again");
            ErrorBody { kind: ErrorKind::Conflict, message }.into()
        }
    }
}

/// Checks what the server would refuse. It deletes the snapshots of one volume after those of
/// another, so a refusal in between would leave a part of them.
fn check_deletable(session: &Session, chosen: &[&Snapshot], force: bool) -> Result<(), Failure> {
    let refused = |s: &Snapshot, why: &str| {
        let message = format!("delete snapshot {}: {why}; nothing was deleted", s.address());
        Err(ErrorBody { kind: ErrorKind::Conflict, message }.into())
    };
    if let Some(s) = chosen.iter().find(|s| s.protected) {
        return refused(s, "it is protected; unprotect it first");
    }
    if force {
        return Ok(());
    }
    // The server checks this again. So without the list nothing is lost but the early check.
    for target in session.client.targets().unwrap_or_default() {
        for lun in target.luns.iter().filter(|lun| lun.backing == Backing::Snapshot) {
            if let Some(s) = chosen.iter().find(|s| s.address() == lun.source) {
                let (number, name) = (lun.lun, &target.name);
                let why = format!(
                    "it is LUN {number} of {name}; remove the LUN first, or delete both with --force"
                );
                return refused(s, &why);
            }
        }
    }
    Ok(())
}

fn delete(
    session: &Session,
    patterns: &[Pattern],
    older_than: Option<Duration>,
    (force, dry_run): (bool, bool),
) -> Result<(), Failure> {
    let now = older_than.map(|_| trusted_now(session)).transpose()?;
    let all = session.client.snapshots(None)?;
    let patterns = of_volumes(session, &all, patterns)?;
    let chosen = select::choose(&all, &patterns, older_than.zip(now))
        .map_err(|(volume, name)| not_there(session, (&volume, &name), patterns.len()))?;
    if !dry_run {
        let mut by_volume: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for s in &chosen {
            by_volume.entry(&s.volume).or_default().push(s.name.clone());
        }
        if by_volume.len() > 1 {
            check_deletable(session, &chosen, force)?;
        }
        let mut done = 0;
        for (volume, names) in by_volume {
            for batch in names.chunks(DELETE_AT_ONCE) {
                let which = DeleteSnapshots { names: batch.to_vec(), force };
                session.client.delete_snapshots(volume, &which).map_err(|error| match done {
                    0 => error.into(),
                    _ => with_note(error, &format!("before that, {done} snapshots were deleted")),
                })?;
                done += batch.len();
            }
        }
    }
    let verb = if dry_run { "would delete" } else { "deleted" };
    session.output.show(&chosen, |chosen| match chosen.as_slice() {
        [] => "no snapshot matches".to_owned(),
        chosen if chosen.len() <= 10 => {
            let names: Vec<String> = chosen.iter().map(|s| s.address()).collect();
            format!("{verb} {}", names.join(" "))
        }
        chosen => format!("{verb} {} snapshots", chosen.len()),
    })
}

fn labels_of(s: &Snapshot) -> String {
    let labels: Vec<String> = s.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if labels.is_empty() { "-".into() } else { labels.join(" ") }
}

fn details(s: &Snapshot, session: &Session) -> String {
    properties([
        ("snapshot", s.address()),
        ("created", session.here.stamp(s.created)),
        ("size", format!("{} ({} bytes)", Size(s.size), s.size)),
        ("after", s.parent.clone().unwrap_or_else(|| "-".into())),
        ("clones", if s.clones.is_empty() { "-".into() } else { s.clones.join(" ") }),
        ("writable", s.writable.clone().unwrap_or_else(|| "-".into())),
        ("expires", s.expires.map_or_else(|| "-".into(), |at| session.here.stamp(at))),
        ("protected", yes_no(s.protected)),
        ("labels", labels_of(s)),
        ("unique", bytes(s.unique)),
        ("shared", bytes(s.shared)),
        ("handles", s.handles.to_string()),
        ("uuid", s.uuid.clone()),
    ])
}

fn bytes(size: Option<u64>) -> String {
    size.map_or_else(|| "-".into(), |size| Size(size).to_string())
}

const COLUMNS: &[Column<Snapshot>] = &[
    Column { name: "snapshot", usual: true, cell: |s| Cell::text(s.address()) },
    Column { name: "created", usual: true, cell: |s| Cell::Time(Some(s.created)) },
    Column { name: "size", usual: true, cell: |s| Cell::Size(Some(s.size)) },
    Column { name: "unique", usual: true, cell: |s| Cell::Size(s.unique) },
    Column { name: "shared", usual: true, cell: |s| Cell::Size(s.shared) },
    Column { name: "volume", usual: false, cell: |s| Cell::text(&s.volume) },
    Column { name: "name", usual: false, cell: |s| Cell::text(&s.name) },
    Column { name: "after", usual: false, cell: |s| Cell::text(s.parent.as_deref().unwrap_or("-")) },
    Column { name: "expires", usual: false, cell: |s| Cell::Time(s.expires) },
    Column { name: "protected", usual: false, cell: |s| Cell::text(yes_no(s.protected)) },
    Column { name: "labels", usual: false, cell: |s| Cell::text(labels_of(s)) },
    Column { name: "uuid", usual: false, cell: |s| Cell::text(&s.uuid) },
];

/// Makes a table with each snapshot below its parent.
fn tree(snapshots: &[Snapshot], volumes: &[Volume], session: &Session) -> String {
    let rows = select::tree(snapshots, volumes).into_iter().map(|branch| {
        let name = format!("{}{}", "  ".repeat(branch.depth), branch.label);
        match branch.snapshot {
            None => {
                let note = if branch.label.contains('@') { "moment" } else { "now" };
                vec![name, String::new(), String::new(), String::new(), String::new(), note.into()]
            }
            Some(s) => {
                let mut notes = Vec::new();
                if s.protected {
                    notes.push("protected".to_owned());
                }
                notes.extend(s.writable.iter().map(|clone| format!("writable: {clone}")));
                if s.handles > 0 {
                    notes.push(format!("{} handles", s.handles));
                }
                notes.extend(s.labels.iter().map(|(key, value)| format!("{key}={value}")));
                vec![
                    name,
                    session.here.clock(s.created),
                    Size(s.size).to_string(),
                    bytes(s.unique),
                    bytes(s.shared),
                    notes.join(", "),
                ]
            }
        }
    });
    let created = format!("CREATED ({})", session.here.offset());
    list(&["SNAPSHOT", &created, "SIZE", "UNIQUE", "SHARED", "NOTES"], &[2, 3, 4], rows)
}
