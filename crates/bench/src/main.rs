//! Benchmarks of Hindcast beside its peers.
//!
//! - `targets` compares NBD servers, and `iscsi` compares iSCSI targets. All of them run in one run
//!   on one machine, interleaved, because an absolute figure from a shared machine says little.
//! - `snapshots` measures what snapshots cost Hindcast and its peers.
//! - `cdp` measures what it costs and gives to keep every write.
//! - `memory` and `recovery` measure Hindcast against its own bounds.
//! - `scale` measures how costs grow with the number of volumes.
//!
//! Every command exits with an error when a bound is missed, so that a script can rely on it.
#![forbid(unsafe_code)]

mod args;
mod cdp;
mod database;
mod figures;
mod fio;
mod iscsi;
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

/// Flags that every benchmark understands.
#[derive(clap::Args)]
struct Common {
    /// The server's binary; by default the one beside this program.
    #[arg(long, env = "HINDCAST", global = true)]
    hindcast: Option<PathBuf>,
    /// A directory on a disk (not tmpfs) for volumes and sockets; emptied afterwards.
    #[arg(long, default_value = "/var/tmp", global = true)]
    dir: PathBuf,
    /// Where to write the Markdown report; JSON and plot go beside it.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
    /// An argument handed on to `hindcast serve`; repeatable.
    #[arg(long = "serve-arg", global = true, allow_hyphen_values = true)]
    serve_args: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Hindcast, nbdkit and qemu-nbd side by side, driven by fio over Unix sockets.
    Targets(args::Contest),
    /// Hindcast and tgt side by side over iSCSI, driven by iscsi-perf and qemu-img.
    Iscsi(iscsi::Args),
    /// What snapshots cost: Hindcast, qcow2 under qemu-nbd, and a reflink copy on XFS under nbdkit.
    Snapshots(snapshots::Args),
    /// What keeping every write costs and gives: encodings, space, views of any moment, recovery,
    /// near-CDP.
    Cdp(cdp::Args),
    /// Peak resident memory with a huge thin volume and scattered small writes.
    Memory(memory::Args),
    /// Time from a start after SIGKILL until NBD answers, per GiB of journal in use.
    Recovery(recovery::Args),
    /// What many volumes cost: creating, batches, snapshots, opening, memory, files, lists; and
    /// large empty pools.
    Scale(scale::Args),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match cli.command {
        Command::Targets(args) => targets::run(&cli.common, &args),
        Command::Iscsi(args) => iscsi::run(&cli.common, &args),
        Command::Snapshots(args) => snapshots::run(&cli.common, &args),
        Command::Cdp(args) => cdp::run(&cli.common, &args),
        Command::Memory(args) => memory::run(&cli.common, &args),
        Command::Recovery(args) => recovery::run(&cli.common, &args),
        Command::Scale(args) => scale::run(&cli.common, &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn scope(words: &[&str]) -> args::Scope {
        let command = Cli::parse_from([&["hindcast-bench"], words].concat()).command;
        match command {
            Command::Targets(args) => args.scope,
            Command::Iscsi(args) => args.contest.scope,
            Command::Snapshots(args) => args.scope,
            Command::Cdp(args) => args.scope,
            _ => panic!("{words:?} has no scope"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Defaults depend on the benchmark, and on `--quick`. What is given counts.
    #[test]
    fn a_quick_run_is_smaller() {
        let of = |words: &[&str]| {
            let scope = scope(words);
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
    fn parts_are_chosen_by_name() {
        let all = scope(&["cdp"]);
        let only = scope(&["cdp", "--only", "recov"]);
        assert!(all.wants("near") && only.wants("recovery") && !only.wants("near"));
        assert!(Cli::try_parse_from(["hindcast-bench", "cdp", "--load", "updates"]).is_ok());
        assert!(Cli::try_parse_from(["hindcast-bench", "cdp", "--load", "nothing"]).is_err());
    }
}
