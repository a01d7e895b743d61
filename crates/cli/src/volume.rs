//! `hindcast volume`.

use crate::cdp::keep::Keep;
use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing, span};
use crate::output::properties;
use crate::placement::{self, DirectSize, VolumePolicy, VolumeSizes};
use crate::session::Session;
use crate::snapshot::label;
use clap::{ArgGroup, Subcommand};
use hindcast_api::{
    CreateVolume, DamagedRange, DeleteVolume, Inherited, Method, Order, PatchDirect, PatchVolume, Placement,
    Size, Volume,
};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast volume create db --size 10G
  hindcast volume create archive --size 1.5T --chunk 256K --block 4096
  hindcast volume create db --size 10G --cdp parity --retain 7d    keep every write for a week
  hindcast volume create db --size 10G --chunk 4K --direct 4K    for many small random writes
  hindcast volume create vm --origin /srv/images/debian.raw    shows the image at once

The volume is thin: it takes space only where it is written. It is exported at once: over NBD under \
its name, and over iSCSI as LUN 0 of the target iqn.2026-11.io.hindcast:NAME. A volume with an \
--origin depends on the image until hindcast volume flatten has copied the image into it.";

const RESIZE_EXAMPLES: &str = "\
Examples:
  hindcast volume resize db --size 20G
  hindcast volume resize db --size +10G          larger by 10 GiB
  hindcast volume resize db --size 5G --force    the data past 5G is lost";

const SET_EXAMPLES: &str = "\
Examples:
  hindcast volume set db --read-only
  hindcast volume set db --method cow            for volumes that are read in long runs
  hindcast volume set db --snapshot-reserve 25 --auto-delete yes
  hindcast volume set db --cdp parity --retain 7d --retain-size 50G
  hindcast volume set db --anchor 10m            history: an anchor every ten minutes
  hindcast volume set db --direct 4K             random writes of whole 4K chunks, written once
  hindcast volume set db --nbd no                serve it over iSCSI only, where access rules apply

--method row (redirect-on-write): a chunk that a snapshot needs stays where it is, and the new data \
is written to another place. Little data is copied.
--method cow (copy-on-write): the old chunk is copied to another place, and the new data overwrites \
it. The volume keeps its order on disk.
A change of the method applies to later writes only.
--direct SIZE: a write of at least SIZE bytes of whole chunks goes to its place at once, and is \
written once. A smaller write goes through the journal, and is written twice. With --direct 4K and \
chunks of 4K, random writes are faster, but the volume loses its order on disk. hindcast volume \
relocate restores the order. A volume with the method cow, and a pool on RAID-5, has no direct \
writes.";

const LIST_EXAMPLES: &str = "\
Examples:
  hindcast volume list --sort -used
  hindcast volume list -o name,written,labels --sort -written
  hindcast volume list -l app=shop -q            only the names
  hindcast volume list -H -o name,used           for scripts: tabs, sizes in bytes

Columns: name, size, used, history, snapshots, clients, state, chunk, block, method, on, placement, \
direct, nbd, labels, reads, read, writes, written, last-change, created, uuid. HISTORY is the span \
that can be gone back to, of the span that --retain asks for.";

const LABEL_EXAMPLES: &str = "\
Examples:
  hindcast volume label db app=shop tier=1
  hindcast volume label db tier=                 remove the label
  hindcast volume list -l app=shop               the volumes with this label";

const DELETE_EXAMPLES: &str = "\
Examples:
  hindcast volume delete db                      to the trash
  hindcast trash restore db                      and back
  hindcast volume delete db --now --force        for good, with its snapshots and its history

A deleted volume keeps its content, snapshots, history, labels and access rules in the trash. The \
server purges it after serve --trash (a day), and earlier if the pool is low on space.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(Box<Create>),
    /// List volumes
    #[command(alias = "ls", after_help = LIST_EXAMPLES)]
    List {
        /// List only volumes with this label; repeatable
        #[arg(long = "label", short = 'l', value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show one volume
    #[command(alias = "info")]
    Show {
        /// Name of the volume
        name: String,
    },
    /// Change the size of a volume
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// Name of the volume
        name: String,
        /// New size, up to 64T; +SIZE makes the volume larger by that much
        #[arg(long, value_parser = NewSize::parse)]
        size: NewSize,
        /// Allow a smaller size; the data past the new end is lost
        #[arg(long)]
        force: bool,
    },
    /// Rename a volume; its NBD export and its iSCSI target get the new name
    Rename {
        /// Name of the volume
        name: String,
        /// New name
        new_name: String,
    },
    Set(Box<Set>),
    Relocate(crate::relocate::Args),
    Flatten(crate::flatten::Args),
    /// Set or remove labels of a volume
    #[command(after_help = LABEL_EXAMPLES)]
    Label {
        /// Name of the volume
        name: String,
        /// Labels to set; KEY= without a value removes the label
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// Delete a volume; it can be restored from the trash for a day
    #[command(alias = "rm", after_help = DELETE_EXAMPLES)]
    Delete {
        /// Name of the volume
        name: String,
        /// Delete it even if clients are connected to it, or a target has it as a LUN; with --now,
        /// even if it has snapshots or a history
        #[arg(long)]
        force: bool,
        /// Delete it for good, with its snapshots and its history; it does not go to the trash
        #[arg(long)]
        now: bool,
    },
    Stats(crate::stats::Args),
}

/// Create a thin volume
#[derive(Debug, clap::Args)]
#[command(after_help = CREATE_EXAMPLES, group = ArgGroup::new("property").multiple(true))]
pub(crate) struct Create {
    /// Name: 1 to 128 letters, digits, dots, dashes and underscores; the first is a letter or
    /// digit
    name: String,
    /// Size, up to 64T [default with --origin: the size of the image]
    #[arg(long, required_unless_present = "origin")]
    size: Option<Size>,
    /// Raw image file or block device on the server's machine; the volume shows its content
    /// where the volume has not been written. The image must not change any more
    #[arg(long, value_name = "PATH")]
    origin: Option<std::path::PathBuf>,
    /// Chunk size, a power of two from 512 to the pool's extent size [default: serve --chunk,
    /// which is 16K]
    #[arg(long, value_name = "SIZE")]
    chunk: Option<Size>,
    /// Logical block size, 512 or 4096 [default: 512]
    #[arg(long, value_name = "SIZE", value_parser = block_size)]
    block: Option<u32>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// How the volume preserves data that snapshots need [default: row]
    #[arg(long)]
    method: Option<Method>,
    /// Dedicated physical volume that holds the volume: its path, or the name of a mirror or RAID-5
    /// (pool add --dedicated) [default: all physical volumes that are not dedicated]
    #[arg(long, value_name = "PV", visible_alias = "layout")]
    on: Option<String>,
    /// Where the volume's data is placed: anywhere, contiguous, share or snap-aware [default: as
    /// the pool]
    #[arg(long, value_name = "POLICY")]
    placement: Option<Placement>,
    #[command(flatten)]
    sizes: VolumeSizes,
    /// Least size of a write that goes to its place at once, without a copy in the journal: 4K to
    /// 16M, or off [default: as the pool, serve --direct-min]
    #[arg(long, value_name = "SIZE", value_parser = DirectSize::parse)]
    direct: Option<DirectSize>,
    #[command(flatten)]
    keep: Keep,
}

/// Change properties of a volume
#[derive(Debug, clap::Args)]
#[command(after_help = SET_EXAMPLES, group = ArgGroup::new("property").required(true).multiple(true))]
pub(crate) struct Set {
    /// Name of the volume
    name: String,
    /// Refuse writes
    #[arg(long, group = "property", conflicts_with = "writable")]
    read_only: bool,
    /// Accept writes
    #[arg(long, group = "property")]
    writable: bool,
    /// How the volume preserves data that snapshots need, from now on: row (redirect-on-write)
    /// or cow (copy-on-write)
    #[arg(long, group = "property")]
    method: Option<Method>,
    /// Whether snapshots share preserved data: dependent (they share it), or independent (each
    /// has its own copy; for comparison only)
    #[arg(long, group = "property")]
    order: Option<Order>,
    /// Where new data of the volume is placed, from now on: anywhere, contiguous, share,
    /// snap-aware, or pool (as the pool)
    #[arg(long, group = "property", value_name = "POLICY", value_parser = VolumePolicy::parse)]
    placement: Option<VolumePolicy>,
    #[command(flatten)]
    sizes: VolumeSizes,
    /// Least size of a write that goes to its place at once, without a copy in the journal: 4K to
    /// 16M, off, or pool (as the pool, serve --direct-min). Small sizes suit random writes to a
    /// volume with chunks of that size
    #[arg(long, group = "property", value_name = "SIZE", value_parser = DirectSize::parse)]
    direct: Option<DirectSize>,
    /// Space that its snapshots may take, in per cent of its size; the server warns when they
    /// take more
    #[arg(long, group = "property", value_name = "PERCENT")]
    snapshot_reserve: Option<u8>,
    /// Delete the oldest unprotected snapshots while snapshots take more than the reserve, or
    /// while space is low
    #[arg(long, group = "property", value_name = "yes|no", value_parser = yes_no)]
    auto_delete: Option<bool>,
    /// Whether NBD serves the volume, its snapshots and its moments; "no" ends existing
    /// connections
    #[arg(long, group = "property", value_name = "yes|no", value_parser = yes_no)]
    nbd: Option<bool>,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    match text.parse::<Size>() {
        Ok(Size(512)) => Ok(512),
        Ok(Size(4096)) => Ok(4096),
        _ => Err("a block size is 512 or 4096".into()),
    }
}

fn yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("the value is yes or no".into()),
    }
}

/// The size of `volume resize`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewSize {
    To(u64),
    By(u64),
}

impl NewSize {
    fn parse(text: &str) -> Result<NewSize, String> {
        let size = |text: &str| text.parse::<Size>().map(|size| size.0).map_err(|e| e.to_string());
        match text.trim().strip_prefix('+') {
            Some(more) => size(more).map(NewSize::By),
            None => size(text).map(NewSize::To),
        }
    }
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match command {
        Command::Create(create) => create.run(session),
        Command::List { labels, listing } => {
            let mut volumes = client.volumes()?;
            volumes.retain(|v| labels.iter().all(|(key, value)| v.labels.get(key) == Some(value)));
            listing.show(session, volumes, COLUMNS)
        }
        Command::Show { name } => output.show(&client.volume(&name)?, |v| details(v, session)),
        Command::Resize { name, size, force } => {
            let size = match size {
                NewSize::To(size) => size,
                NewSize::By(more) => client.volume(&name)?.size.saturating_add(more),
            };
            let patch = PatchVolume { size: Some(size), force, ..PatchVolume::default() };
            output
                .show(&client.patch_volume(&name, &patch)?, |v| format!("{} is now {}", v.name, Size(v.size)))
        }
        Command::Rename { name, new_name } => {
            let patch = PatchVolume { name: Some(new_name), ..PatchVolume::default() };
            output.show(&client.patch_volume(&name, &patch)?, |v| format!("{name} is now {}", v.name))
        }
        Command::Set(set) => set.run(session),
        Command::Relocate(args) => crate::relocate::run(&args, session),
        Command::Flatten(args) => crate::flatten::run(&args, session),
        Command::Label { name, labels } => {
            let set = |(key, value): (String, String)| (key, Some(value).filter(|value| !value.is_empty()));
            let labels = labels.into_iter().map(set).collect();
            let patch = PatchVolume { labels, ..PatchVolume::default() };
            output.show(&client.patch_volume(&name, &patch)?, |v| format!("{}: {}", v.name, labels_of(v)))
        }
        Command::Delete { name, force, now } => {
            let deleted = client.delete_volume(&name, DeleteVolume { force, now })?;
            output.show(&deleted, |deleted| match &deleted.trash {
                Some(trashed) => crate::trash::moved(trashed, jiff::Timestamp::now()),
                None => format!("deleted {name} for good"),
            })
        }
        Command::Stats(args) => crate::stats::run(&args, session),
    }
}

impl Create {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let size = self.size.map_or(0, |size| size.0);
        let of_size = || match size {
            0 => Err(Failure::usage("--slices needs --size")),
            size => Ok(size),
        };
        let placement = self.placement.map(|policy| self.sizes.with(Some(policy), of_size)).transpose()?;
        let new = CreateVolume {
            name: self.name,
            size,
            origin: self.origin.as_deref().map(absolute).transpose()?,
            chunk_size: self.chunk.map(|s| s.0),
            block_size: self.block,
            read_only: self.read_only,
            method: self.method,
            cdp: self.keep.begin()?,
            on: self.on,
            placement,
            direct_min: self.direct.and_then(DirectSize::min),
        };
        let created = session.client.create_volume(&new)?;
        session.output.show(&created, |v| format!("created {}, {}", v.name, Size(v.size)))
    }
}

impl Set {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let size = || Ok(session.client.volume(&self.name)?.size);
        let placement = self.placement.map(|policy| self.sizes.with(policy.own(), size)).transpose()?;
        let patch = PatchVolume {
            read_only: (self.read_only || self.writable).then_some(self.read_only),
            method: self.method,
            order: self.order,
            placement,
            direct: self.direct.map(|size| PatchDirect { min: size.min() }),
            snapshot_reserve: self.snapshot_reserve,
            auto_delete: self.auto_delete,
            nbd: self.nbd,
            cdp: self.keep.change()?,
            ..PatchVolume::default()
        };
        session.output.show(&session.client.patch_volume(&self.name, &patch)?, |v| {
            let order = if v.order == Order::Independent { ", independent" } else { "" };
            let nbd = if v.nbd { "" } else { ", not over NBD" };
            let placed = match v.placement {
                Some(_) => format!(", placed {}", placement::of_volume(v)),
                None => String::new(),
            };
            let direct = v.direct_min.map_or_else(String::new, |min| match min {
                0 => ", no direct writes".into(),
                min => format!(", direct from {}", Size(min)),
            });
            format!(
                "{} is now {}, {}{order}, {}{nbd}{placed}{direct}",
                v.name,
                access(v),
                v.method.name(),
                history(v)
            )
        })
    }
}

fn history(volume: &Volume) -> String {
    volume
        .cdp
        .as_ref()
        .map_or_else(|| "no history".into(), |cdp| format!("history as {}", cdp.encoding.name()))
}

/// Makes a path absolute, because the server does not know the directory of this command.
fn absolute(path: &std::path::Path) -> Result<String, Failure> {
    let path = std::path::absolute(path).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::Usage(format!("{}: a path must be UTF-8", path.display())))
}

/// Describes the access settings that a new volume copied from the volume from which it was
/// created, on lines of their own. Empty if nothing was copied.
pub(crate) fn inherited(name: &str, inherited: Option<&Inherited>) -> String {
    let Some(taken) = inherited else { return String::new() };
    let mut what = Vec::new();
    match taken.rules {
        0 => {}
        1 => what.push("1 access rule".to_owned()),
        n => what.push(format!("{n} access rules")),
    }
    match taken.nbd_rules {
        0 => {}
        1 => what.push("1 NBD rule".to_owned()),
        n => what.push(format!("{n} NBD rules")),
    }
    if !taken.chap_users.is_empty() {
        what.push(format!("CHAP as {}", taken.chap_users.join(" or ")));
    }
    if !taken.enabled {
        what.push("its target is off".into());
    }
    if !taken.nbd {
        what.push("not over NBD".into());
    }
    format!(
        "\n{name} inherits its access from {}: {}\nto see or change it: hindcast target show {name}",
        taken.volume,
        what.join(", ")
    )
}

fn labels_of(volume: &Volume) -> String {
    let labels: Vec<String> = volume.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if labels.is_empty() { "-".into() } else { labels.join(" ") }
}

fn access(volume: &Volume) -> &'static str {
    if volume.read_only { "read-only" } else { "writable" }
}

/// Returns the span of the history that is kept, of the span that is wanted.
fn window(v: &Volume) -> Cell {
    let Some(history) = &v.history else {
        return Cell::Ordered(if v.cdp.is_some() { "begins" } else { "-" }.into(), 0);
    };
    let held = span(history.held_seconds);
    let text = match history.wanted_seconds {
        Some(wanted) if history.held_seconds < wanted => format!("{held} of {}", span(wanted)),
        _ => held,
    };
    Cell::Ordered(text, history.held_seconds)
}

fn state(v: &Volume) -> &'static str {
    match (v.importing, v.read_only) {
        (true, _) => "importing",
        (false, true) => "read-only",
        (false, false) => "writable",
    }
}

/// Returns the placement that the volume has of its own.
fn placed(v: &Volume) -> &'static str {
    v.placement.map_or("-", |own| own.policy.name())
}

const COLUMNS: &[Column<Volume>] = &[
    Column { name: "name", usual: true, cell: |v| Cell::text(&v.name) },
    Column { name: "size", usual: true, cell: |v| Cell::Size(Some(v.size)) },
    Column { name: "used", usual: true, cell: |v| Cell::Size(Some(v.allocated)) },
    Column { name: "history", usual: true, cell: window },
    Column { name: "snapshots", usual: true, cell: |v| Cell::number(v.snapshots.unwrap_or(0)) },
    Column { name: "clients", usual: true, cell: |v| Cell::number(v.clients.unwrap_or(0)) },
    Column { name: "state", usual: true, cell: |v| Cell::text(state(v)) },
    Column { name: "chunk", usual: false, cell: |v| Cell::Size(Some(v.chunk_size)) },
    Column { name: "block", usual: false, cell: |v| Cell::number(v.block_size.into()) },
    Column { name: "method", usual: false, cell: |v| Cell::text(v.method.name()) },
    Column { name: "on", usual: false, cell: |v| Cell::text(v.on.as_deref().unwrap_or("-")) },
    Column { name: "placement", usual: false, cell: |v| Cell::text(placed(v)) },
    Column { name: "direct", usual: false, cell: |v| Cell::text(placement::direct(v, "-")) },
    Column { name: "nbd", usual: false, cell: |v| Cell::text(if v.nbd { "yes" } else { "no" }) },
    Column { name: "labels", usual: false, cell: |v| Cell::text(labels_of(v)) },
    Column { name: "reads", usual: false, cell: |v| Cell::number(v.stats.reads) },
    Column { name: "read", usual: false, cell: |v| Cell::Size(Some(v.stats.read_bytes)) },
    Column { name: "writes", usual: false, cell: |v| Cell::number(v.stats.writes) },
    Column { name: "written", usual: false, cell: |v| Cell::Size(Some(v.stats.write_bytes)) },
    Column { name: "last-change", usual: false, cell: |v| Cell::Time(v.last_change) },
    Column { name: "created", usual: false, cell: |v| Cell::Time(Some(v.created)) },
    Column { name: "uuid", usual: false, cell: |v| Cell::text(&v.uuid) },
];

/// Lists the first ranges that can't be read. `-o json` has all of them.
fn damaged(v: &Volume) -> String {
    const TOLD: usize = 10;
    let range = |r: &DamagedRange| format!("bytes {} to {}", r.offset, r.offset + r.length - 1);
    let told: Vec<String> = v.damaged.iter().take(TOLD).map(range).collect();
    match v.damaged.len() {
        0 => "nothing".into(),
        count if count > TOLD => format!("{} and {} more ranges", told.join(", "), count - TOLD),
        _ => told.join(", "),
    }
}

fn details(v: &Volume, session: &Session) -> String {
    properties([
        ("name", v.name.clone()),
        ("size", format!("{} ({} bytes)", Size(v.size), v.size)),
        ("allocated", Size(v.allocated).to_string()),
        ("chunk size", Size(v.chunk_size).to_string()),
        ("block size", v.block_size.to_string()),
        ("access", access(v).into()),
        ("nbd", if v.nbd { "yes" } else { "no" }.into()),
        ("on", v.on.clone().unwrap_or_else(|| "all that are not dedicated".into())),
        ("placement", placement::of_volume(v)),
        ("direct writes", placement::direct(v, "as the pool")),
        ("method", v.method.name().into()),
        ("order", v.order.name().into()),
        (
            "snapshot reserve",
            format!("{} %{}", v.snapshot_reserve, if v.auto_delete { ", enforced by deletion" } else { "" }),
        ),
        ("history", v.cdp.as_ref().map_or("none", |cdp| cdp.encoding.name()).into()),
        ("origin", v.origin.clone().unwrap_or_else(|| "-".into())),
        ("handles", v.handles.to_string()),
        ("labels", labels_of(v)),
        ("damaged", damaged(v)),
        ("created", session.here.stamp(v.created)),
        ("uuid", v.uuid.clone()),
    ])
}
