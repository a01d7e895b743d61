//! Benchmarks of Hindcast and its peers.
//!
//! - `targets` compares NBD servers, and `iscsi` compares iSCSI targets. Their runs are interleaved
//!   on one machine, because an absolute figure from a shared machine says little.
//! - `snapshots` measures what snapshots cost Hindcast and its peers.
//! - `cdp` measures the costs and the benefits of a history of every write.
//! - `layouts` measures mirrors and RAID-5 beside a plain physical volume.
//! - `memory` and `recovery` measure Hindcast against its own bounds.
//! - `scale` measures how costs grow with the number of volumes.
//! - `disk-model` measures nothing. It prices a trace as a disk that turns would.
//!
//! A command exits with an error when a goal or a bound is missed, so that a script can rely on the
//! exit status. With `--quick`, a missed goal is no error. `targets`, `scale` and `disk-model` have
//! no goals.
#![forbid(unsafe_code)]

mod args;
mod browser;
mod cdp;
mod database;
mod disk_model;
mod figures;
mod fio;
mod iscsi;
mod layouts;
mod memory;
mod nbd;
mod probe;
mod process;
mod recovery;
mod report;
mod rig;
mod samples;
mod scale;
mod scratch;
mod server;
mod snapshots;
mod targets;
mod timeline;
mod units;

use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(name = "hindcast-bench", about = "Benchmarks of Hindcast beside its peers")]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Arguments that all benchmarks have.
#[derive(clap::Args)]
struct Common {
    /// Path of the server's binary; the default is `hindcast` in the directory of this program.
    #[arg(long, env = "HINDCAST", global = true)]
    hindcast: Option<PathBuf>,
    /// Directory on a disk (not tmpfs). The benchmark creates a directory for volumes and sockets
    /// in it, and removes that directory afterwards.
    #[arg(long, default_value = "/var/tmp", global = true)]
    dir: PathBuf,
    /// File for the Markdown report, instead of standard output. JSON and pictures go beside it,
    /// except for `memory` and `recovery`.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
    /// Argument that the benchmark passes to `hindcast serve`; repeatable.
    #[arg(long = "serve-arg", global = true, allow_hyphen_values = true)]
    serve_args: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Compare Hindcast, nbdkit and qemu-nbd; fio makes the load over Unix sockets.
    Targets(args::Contest),
    /// Compare Hindcast and tgt over iSCSI; iscsi-perf and qemu-img make the load.
    Iscsi(iscsi::Args),
    /// Measure what snapshots cost: Hindcast, qcow2 under qemu-nbd, and a reflink copy on XFS under
    /// nbdkit.
    Snapshots(snapshots::Args),
    /// Measure the costs and benefits of a history of every write: encodings, space, views of any
    /// moment, recovery, near-CDP.
    Cdp(cdp::Args),
    /// Measure mirrors and RAID-5 beside a plain physical volume, all on one disk: speed, bytes of
    /// the disk, reads without a member, rebuild, opening; and what traces and a placement cost.
    Layouts(layouts::Args),
    /// Measure the peak resident memory with a huge thin volume and scattered small writes.
    Memory(memory::Args),
    /// Measure the time from a start after SIGKILL until NBD answers, per GiB of journal in use.
    Recovery(recovery::Args),
    /// Measure what many volumes cost: creating, batches, snapshots, opening, memory, files, lists;
    /// and large empty pools.
    Scale(scale::Args),
    /// Measure timelines: how long one takes with many records, and what three open ones cost a
    /// client.
    Timeline(timeline::Args),
    /// Compute what the accesses of a trace (`hindcast pool trace`) take on a disk that turns.
    DiskModel(disk_model::Args),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if cli.command.scope().is_some_and(|scope| !scope.quick) {
        process::touch_memory()?;
    }
    match cli.command {
        Command::Targets(args) => targets::run(&cli.common, &args),
        Command::Iscsi(args) => iscsi::run(&cli.common, &args),
        Command::Snapshots(args) => snapshots::run(&cli.common, &args),
        Command::Cdp(args) => cdp::run(&cli.common, &args),
        Command::Layouts(args) => layouts::run(&cli.common, &args),
        Command::Memory(args) => memory::run(&cli.common, &args),
        Command::Recovery(args) => recovery::run(&cli.common, &args),
        Command::Scale(args) => scale::run(&cli.common, &args),
        Command::Timeline(args) => timeline::run(&cli.common, &args),
        Command::DiskModel(args) => disk_model::run(&cli.common, &args),
    }
}

impl Command {
    /// Returns how much runs of a benchmark that measures the speed of servers.
    fn scope(&self) -> Option<&args::Scope> {
        match self {
            Command::Targets(args) => Some(&args.scope),
            Command::Iscsi(args) => Some(&args.contest.scope),
            Command::Snapshots(args) => Some(&args.scope),
            Command::Cdp(args) => Some(&args.scope),
            Command::Layouts(args) => Some(&args.scope),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn command(words: &[&str]) -> Command {
        Cli::parse_from([&["hindcast-bench"], words].concat()).command
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Defaults depend on the benchmark and on `--quick`. An argument that is given replaces the
    /// default.
    #[test]
    fn a_quick_run_is_smaller() {
        let of = |words: &[&str]| {
            let command = command(words);
            let scope = command.scope().unwrap();
            (scope.rounds, scope.size >> 20, scope.journal >> 20)
        };
        for name in ["targets", "iscsi", "snapshots"] {
            assert_eq!(of(&[name]), (3, 2048, 1024), "{name}");
            assert_eq!(of(&[name, "--quick"]), (1, 2048, 1024), "{name}");
        }
        assert_eq!(of(&["cdp"]), (3, 1024, 1024));
        assert_eq!(of(&["cdp", "--quick"]), (1, 128, 64));
        assert_eq!(of(&["cdp", "--quick", "--rounds", "2", "--size", "7M"]), (2, 7, 64));
        assert!(Cli::try_parse_from(["hindcast-bench", "cdp", "--rounds", "0"]).is_err());
    }

    #[test]
    fn a_trace_is_priced_with_a_drive_and_disks() {
        let words =
            ["hindcast-bench", "disk-model", "a.trace", "--disk", "6y080m0", "--pv", "a", "-o", "json"];
        assert!(Cli::try_parse_from(words).is_ok());
        assert!(Cli::try_parse_from(["hindcast-bench", "disk-model"]).is_err());
    }

    #[test]
    fn parts_are_chosen_by_name() {
        let (all, only) = (command(&["cdp"]), command(&["cdp", "--only", "recov"]));
        let (all, only) = (all.scope().unwrap(), only.scope().unwrap());
        assert!(all.wants("near") && only.wants("recovery") && !only.wants("near"));
        assert!(Cli::try_parse_from(["hindcast-bench", "cdp", "--load", "updates"]).is_ok());
        assert!(Cli::try_parse_from(["hindcast-bench", "cdp", "--load", "nothing"]).is_err());
    }
}
