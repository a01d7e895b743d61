//! `hindcast volume`.

use crate::failure::Failure;
use crate::output::{line, list, properties};
use crate::session::Session;
use clap::{ArgGroup, Subcommand};
use hindcast_api::{CreateVolume, Method, Order, PatchVolume, Size, Volume, VolumeStats};
use serde::Serialize;
use std::time::{Duration, Instant};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast volume create db --size 10G
  hindcast volume create archive --size 1.5T --chunk 256K --block 4096

The volume is thin: it takes space when it is written. At once it is exported over NBD under
its name, and over iSCSI as LUN 0 of iqn.2026-11.io.hindcast:NAME.";

const RESIZE_EXAMPLES: &str = "\
Examples:
  hindcast volume resize db --size 20G
  hindcast volume resize db --size 5G --force    what lies past 5G is lost";

const SET_EXAMPLES: &str = "\
Examples:
  hindcast volume set db --read-only
  hindcast volume set db --method cow            for volumes that are read in long runs
  hindcast volume set db --snapshot-reserve 25 --auto-delete yes

With row a chunk that a snapshot needs stays where it is, and what is written goes elsewhere: little is moved. With cow
it is copied away and overwritten where it was: the volume keeps its order on disk. What was written before stays as it is.";

const STATS_EXAMPLES: &str = "\
Examples:
  hindcast volume stats                          totals since the server started
  hindcast volume stats db --watch 2             rates, every 2 seconds
  hindcast volume stats --watch 1 -o json | jq   one JSON line per interval";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a thin volume
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// 1 to 128 letters, digits, dots, dashes and underscores, beginning with a letter or digit
        name: String,
        /// Size, up to 64T
        #[arg(long)]
        size: Size,
        /// Chunk size, a power of two from 512 to the pool's extent size [default: the server's, 16K]
        #[arg(long, value_name = "SIZE")]
        chunk: Option<Size>,
        /// Logical block size, 512 or 4096 [default: 512]
        #[arg(long, value_name = "SIZE", value_parser = block_size)]
        block: Option<u32>,
        /// Refuse writes from the start
        #[arg(long)]
        read_only: bool,
        /// How to preserve what snapshots need: row (redirect-on-write) or cow (copy-on-write) [default: row]
        #[arg(long)]
        method: Option<Method>,
    },
    /// List volumes
    List,
    /// Show one volume
    Show {
        name: String,
    },
    /// Change the size of a volume
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        name: String,
        /// New size
        #[arg(long)]
        size: Size,
        /// Allow making it smaller, which loses what lies past the new end
        #[arg(long)]
        force: bool,
    },
    /// Rename a volume, and with it its export and its target
    Rename {
        name: String,
        new_name: String,
    },
    /// Change properties of a volume
    #[command(after_help = SET_EXAMPLES, group = ArgGroup::new("property").required(true).multiple(true))]
    Set {
        name: String,
        /// Refuse writes
        #[arg(long, group = "property", conflicts_with = "writable")]
        read_only: bool,
        /// Accept writes
        #[arg(long, group = "property")]
        writable: bool,
        /// How to preserve what snapshots need, from now on: row (redirect-on-write) or cow (copy-on-write)
        #[arg(long, group = "property")]
        method: Option<Method>,
        /// Whether snapshots share what is preserved: dependent, or (for comparison) independent
        #[arg(long, group = "property")]
        order: Option<Order>,
        /// What its snapshots are expected to take, in per cent of its size; taking more is a warning
        #[arg(long, group = "property", value_name = "PERCENT")]
        snapshot_reserve: Option<u8>,
        /// Delete the oldest unprotected snapshots while they take more than the reserve, or space is low
        #[arg(long, group = "property", value_name = "yes|no", value_parser = yes_no)]
        auto_delete: Option<bool>,
    },
    Relocate(crate::relocate::Args),
    /// Delete a volume; its space comes back in the background
    Delete {
        name: String,
        /// Also when it has snapshots, clients are connected to it, or a target has it as a LUN
        #[arg(long)]
        force: bool,
    },
    /// Requests and bytes of one volume, or of all
    #[command(after_help = STATS_EXAMPLES)]
    Stats {
        name: Option<String>,
        /// Show rates again and again, every so many seconds
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
        watch: Option<Duration>,
        /// End after so many intervals
        #[arg(long, value_name = "N", requires = "watch")]
        count: Option<u64>,
    },
}

pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    match text.parse::<Size>() {
        Ok(Size(512)) => Ok(512),
        Ok(Size(4096)) => Ok(4096),
        _ => Err("a block size is 512 or 4096".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=86400.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("an interval is 0.1 to 86400 seconds".into()),
    }
}

fn yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("say yes or no".into()),
    }
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, session.output);
    match command {
        Command::Create { name, size, chunk, block, read_only, method } => {
            let new = CreateVolume {
                name,
                size: size.0,
                chunk_size: chunk.map(|s| s.0),
                block_size: block,
                read_only,
                method,
            };
            output.show(&client.create_volume(&new)?, |v| format!("created {}, {}", v.name, Size(v.size)))
        }
        Command::List => output.show(&client.volumes()?, |volumes| table(volumes)),
        Command::Show { name } => output.show(&client.volume(&name)?, details),
        Command::Resize { name, size, force } => {
            let patch = PatchVolume { size: Some(size.0), force, ..PatchVolume::default() };
            output
                .show(&client.patch_volume(&name, &patch)?, |v| format!("{} is now {}", v.name, Size(v.size)))
        }
        Command::Rename { name, new_name } => {
            let patch = PatchVolume { name: Some(new_name), ..PatchVolume::default() };
            output.show(&client.patch_volume(&name, &patch)?, |v| format!("{name} is now {}", v.name))
        }
        Command::Set { name, read_only, writable, method, order, snapshot_reserve, auto_delete } => {
            let read_only = (read_only || writable).then_some(read_only);
            let patch = PatchVolume {
                read_only,
                method,
                order,
                snapshot_reserve,
                auto_delete,
                ..PatchVolume::default()
            };
            output.show(&client.patch_volume(&name, &patch)?, |v| {
                format!("{} is now {}, {}", v.name, access(v), v.method.name())
            })
        }
        Command::Relocate(args) => crate::relocate::run(&args, session),
        Command::Delete { name, force } => {
            client.delete_volume(&name, force)?;
            output.done(format_args!("deleted {name}"))
        }
        Command::Stats { name, watch: None, .. } => {
            output.show(&samples(session, name.as_deref())?, |samples| totals(samples))
        }
        Command::Stats { name, watch: Some(interval), count } => {
            watch(session, name.as_deref(), interval, count.unwrap_or(u64::MAX))
        }
    }
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

fn details(v: &Volume) -> String {
    properties([
        ("name", v.name.clone()),
        ("size", format!("{} ({} bytes)", Size(v.size), v.size)),
        ("allocated", Size(v.allocated).to_string()),
        ("chunk size", Size(v.chunk_size).to_string()),
        ("block size", v.block_size.to_string()),
        ("access", access(v).into()),
        ("method", v.method.name().into()),
        ("order", v.order.name().into()),
        (
            "snapshot reserve",
            format!("{} %{}", v.snapshot_reserve, if v.auto_delete { ", kept by deletion" } else { "" }),
        ),
        ("origin", v.origin.clone().unwrap_or_else(|| "-".into())),
        ("handles", v.handles.to_string()),
        ("created", v.created.to_string()),
        ("uuid", v.uuid.clone()),
    ])
}

/// Counters of one volume at one instant.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    name: String,
    #[serde(flatten)]
    stats: VolumeStats,
}

/// Per second, over one interval.
#[derive(Debug, Serialize, PartialEq)]
struct Rate {
    name: String,
    reads_per_second: f64,
    read_bytes_per_second: f64,
    writes_per_second: f64,
    write_bytes_per_second: f64,
    flushes_per_second: f64,
    discards_per_second: f64,
    errors_per_second: f64,
}

fn samples(session: &Session, name: Option<&str>) -> Result<Vec<Sample>, Failure> {
    let volumes = match name {
        Some(name) => vec![session.client.volume(name)?],
        None => session.client.volumes()?,
    };
    Ok(volumes.into_iter().map(|v| Sample { name: v.name, stats: v.stats }).collect())
}

fn totals(samples: &[Sample]) -> String {
    let rows = samples.iter().map(|Sample { name, stats: s }| {
        vec![
            name.clone(),
            s.reads.to_string(),
            Size(s.read_bytes).to_string(),
            Size(s.staged_read_bytes).to_string(),
            s.writes.to_string(),
            Size(s.write_bytes).to_string(),
            s.flushes.to_string(),
            s.discards.to_string(),
            Size(s.discard_bytes).to_string(),
            s.errors.to_string(),
        ]
    });
    let heading = [
        "NAME",
        "READS",
        "READ",
        "STAGED",
        "WRITES",
        "WRITTEN",
        "FLUSHES",
        "DISCARDS",
        "DISCARDED",
        "ERRORS",
    ];
    list(&heading, &[1, 2, 3, 4, 5, 6, 7, 8, 9], rows)
}

fn watch(session: &Session, name: Option<&str>, interval: Duration, count: u64) -> Result<(), Failure> {
    let mut last = samples(session, name)?;
    let mut at = Instant::now();
    for _ in 0..count {
        std::thread::sleep(interval.saturating_sub(at.elapsed()));
        let now = samples(session, name)?;
        let elapsed = at.elapsed();
        at = Instant::now();
        let rates = rates(&last, &now, elapsed.as_secs_f64());
        if session.output.is_json() {
            session.output.json_line(&rates)?;
        } else {
            line(&format_args!("{}\n", rate_table(&rates)))?;
        }
        last = now;
    }
    Ok(())
}

/// Volumes that came meanwhile begin at zero; those whose counters went back (a restart, a new volume of the same
/// name) as well.
fn rates(before: &[Sample], after: &[Sample], seconds: f64) -> Vec<Rate> {
    let rate = |sample: &Sample| {
        let old = before.iter().find(|s| s.name == sample.name).map(|s| s.stats).unwrap_or_default();
        let per_second = |value: fn(&VolumeStats) -> u64| {
            let (new, old) = (value(&sample.stats), value(&old));
            new.checked_sub(old).unwrap_or(new) as f64 / seconds.max(f64::EPSILON)
        };
        Rate {
            name: sample.name.clone(),
            reads_per_second: per_second(|s| s.reads),
            read_bytes_per_second: per_second(|s| s.read_bytes),
            writes_per_second: per_second(|s| s.writes),
            write_bytes_per_second: per_second(|s| s.write_bytes),
            flushes_per_second: per_second(|s| s.flushes),
            discards_per_second: per_second(|s| s.discards),
            errors_per_second: per_second(|s| s.errors),
        }
    };
    after.iter().map(rate).collect()
}

fn rate_table(rates: &[Rate]) -> String {
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let rows = rates.iter().map(|r| {
        vec![
            r.name.clone(),
            format!("{:.0}", r.reads_per_second),
            mib(r.read_bytes_per_second),
            format!("{:.0}", r.writes_per_second),
            mib(r.write_bytes_per_second),
            format!("{:.0}", r.flushes_per_second),
            format!("{:.0}", r.discards_per_second),
            format!("{:.0}", r.errors_per_second),
        ]
    });
    let heading = ["NAME", "READ/S", "MIB/S", "WRITE/S", "MIB/S", "FLUSH/S", "DISCARD/S", "ERROR/S"];
    list(&heading, &[1, 2, 3, 4, 5, 6, 7], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_survive_restarts_and_new_volumes() {
        let sample = |name: &str, reads| Sample {
            name: name.into(),
            stats: VolumeStats { reads, ..VolumeStats::default() },
        };
        let rates = rates(
            &[sample("a", 10), sample("b", 10)],
            &[sample("a", 30), sample("b", 4), sample("c", 2)],
            2.0,
        );
        let reads: Vec<f64> = rates.iter().map(|r| r.reads_per_second).collect();
        assert_eq!(reads, [10.0, 2.0, 1.0]);
    }
}
