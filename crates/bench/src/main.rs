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
    Targets(targets::Args),
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
