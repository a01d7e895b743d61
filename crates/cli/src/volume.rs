//! `hindcast volume`.

use crate::cdp::keep::Keep;
use crate::failure::Failure;
use crate::output::{list, properties};
use crate::session::Session;
use clap::{ArgGroup, Subcommand};
use hindcast_api::{CreateVolume, DamagedRange, Inherited, Method, Order, PatchVolume, Size, Volume};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast volume create db --size 10G
  hindcast volume create archive --size 1.5T --chunk 256K --block 4096
  hindcast volume create db --size 10G --cdp parity --retain 7d    keep every write for a week
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
  hindcast volume set db --nbd no                serve it over iSCSI only, where access rules apply

--method row (redirect-on-write): a chunk that a snapshot needs stays where it is, and the new data \
is written to another place. Little data is copied.
--method cow (copy-on-write): the old chunk is copied to another place, and the new data overwrites \
it. The volume keeps its order on disk.
A change of the method applies to later writes only.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a thin volume
    #[command(after_help = CREATE_EXAMPLES, group = ArgGroup::new("property").multiple(true))]
    Create {
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
        #[command(flatten)]
        keep: Keep,
    },
    /// List volumes
    #[command(alias = "ls")]
    List,
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
    /// Change properties of a volume
    #[command(after_help = SET_EXAMPLES, group = ArgGroup::new("property").required(true).multiple(true))]
    Set {
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
    },
    Relocate(crate::relocate::Args),
    Flatten(crate::flatten::Args),
    /// Delete a volume; its space is freed in the background
    #[command(alias = "rm")]
    Delete {
        /// Name of the volume
        name: String,
        /// Delete it even if it has snapshots or a history, clients are connected to it, or a
        /// target has it as a LUN
        #[arg(long)]
        force: bool,
    },
    Stats(crate::stats::Args),
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
    let (client, output) = (&session.client, session.output);
    match command {
        Command::Create { name, size, origin, chunk, block, read_only, method, keep } => {
            let new = CreateVolume {
                name,
                size: size.map_or(0, |size| size.0),
                origin: origin.as_deref().map(absolute).transpose()?,
                chunk_size: chunk.map(|s| s.0),
                block_size: block,
                read_only,
                method,
                cdp: keep.begin()?,
            };
            output.show(&client.create_volume(&new)?, |v| format!("created {}, {}", v.name, Size(v.size)))
        }
        Command::List => output.show(&client.volumes()?, |volumes| table(volumes)),
        Command::Show { name } => output.show(&client.volume(&name)?, details),
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
        Command::Set {
            name,
            read_only,
            writable,
            method,
            order,
            snapshot_reserve,
            auto_delete,
            nbd,
            keep,
        } => {
            let read_only = (read_only || writable).then_some(read_only);
            let patch = PatchVolume {
                read_only,
                method,
                order,
                snapshot_reserve,
                auto_delete,
                nbd,
                cdp: keep.change()?,
                ..PatchVolume::default()
            };
            output.show(&client.patch_volume(&name, &patch)?, |v| {
                let order = if v.order == Order::Independent { ", independent" } else { "" };
                let nbd = if v.nbd { "" } else { ", not over NBD" };
                format!("{} is now {}, {}{order}, {}{nbd}", v.name, access(v), v.method.name(), history(v))
            })
        }
        Command::Relocate(args) => crate::relocate::run(&args, session),
        Command::Flatten(args) => crate::flatten::run(&args, session),
        Command::Delete { name, force } => {
            client.delete_volume(&name, force)?;
            output.done(format_args!("deleted {name}"))
        }
        Command::Stats(args) => crate::stats::run(&args, session),
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

fn access(volume: &Volume) -> &'static str {
    if volume.read_only { "read-only" } else { "writable" }
}

fn table(volumes: &[Volume]) -> String {
    let rows = volumes.iter().map(|v| {
        vec![
            v.name.clone(),
            Size(v.size).to_string(),
            Size(v.allocated).to_string(),
            Size(v.chunk_size).to_string(),
            v.block_size.to_string(),
            v.method.name().to_owned(),
            access(v).to_owned(),
            v.handles.to_string(),
        ]
    });
    list(
        &["NAME", "SIZE", "ALLOCATED", "CHUNK", "BLOCK", "METHOD", "ACCESS", "HANDLES"],
        &[1, 2, 3, 4, 7],
        rows,
    )
}

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

fn details(v: &Volume) -> String {
    properties([
        ("name", v.name.clone()),
        ("size", format!("{} ({} bytes)", Size(v.size), v.size)),
        ("allocated", Size(v.allocated).to_string()),
        ("chunk size", Size(v.chunk_size).to_string()),
        ("block size", v.block_size.to_string()),
        ("access", access(v).into()),
        ("nbd", if v.nbd { "yes" } else { "no" }.into()),
        ("method", v.method.name().into()),
        ("order", v.order.name().into()),
        (
            "snapshot reserve",
            format!("{} %{}", v.snapshot_reserve, if v.auto_delete { ", enforced by deletion" } else { "" }),
        ),
        ("history", v.cdp.as_ref().map_or("none", |cdp| cdp.encoding.name()).into()),
        ("origin", v.origin.clone().unwrap_or_else(|| "-".into())),
        ("handles", v.handles.to_string()),
        ("damaged", damaged(v)),
        ("created", v.created.to_string()),
        ("uuid", v.uuid.clone()),
    ])
}
