//! `hindcast`: the server, and the command line that talks to it.
//!
//! There is one file per noun. `serve`, `check`, `restore-metadata`, `salvage`, `pool reidentify`
//! and `pool trace draw` work without a server. Every other command is a request to a running
//! server through the admin API.
#![forbid(unsafe_code)]

mod access;
mod audit;
mod by_uuid;
mod cdp;
mod check;
mod clients;
mod clone;
mod console;
mod context;
mod events;
mod extras;
mod failure;
mod features;
mod files;
mod flatten;
mod group;
mod history;
mod known_servers;
mod layouts;
mod listing;
mod output;
mod password;
mod placement;
mod pool;
mod rebalance;
mod recover;
mod reidentify;
mod relocate;
mod restore;
mod rollback;
mod salvage;
mod schedule;
mod scrub;
mod select;
mod serve;
mod session;
mod snapshot;
mod stats;
mod status;
mod target;
mod tasks;
#[cfg(test)]
mod tests;
mod token;
mod trace;
mod transfer;
mod trash;
mod unfinished;
mod user;
mod user_files;
mod view;
mod volume;
mod when;

use clap::error::ErrorKind as ClapKind;
use clap::{Parser, Subcommand};
use failure::Failure;
use output::harmless;
use session::Global;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use tikv_jemallocator::Jemalloc;

/// The allocator returns the memory of a flood of connections to the system, from its own threads:
/// decision 0057.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  failed
  2  usage: the command line, or a value in it, is invalid
  3  not found
  4  conflict: the name is taken, the object is in use, or --force is required
  5  no server answers at --socket
  6  out of space

How values are written:
  VOLUME  the name of a volume, or uuid:UUID, which stays the same when the volume is renamed
  SIZE    bytes, or a number with a unit: 512, 16K, 10G, 1.5T (K is 1024); 10GB is 10 times 1000 x
          1000 x 1000, rounded down to 4 KiB
  TIME    seconds, or a number with a unit: 90s, 30m, 12h, 7d, 4w
  MOMENT  a time (10:41, \"yesterday 10:41\", \"mon 10:41:30\", \"2026-11-22 10:41\",
          2026-11-22T03:14:15.5Z), a time before now (-90s, \"5m ago\"), now, a position in the
          journal (lsn:4711), or the name of a mark or snapshot. Times without an offset are of this
          machine's time zone, or of --tz

First steps:
  hindcast serve --data ./pool --create          create a pool and start a server; later starts
                                                 do not need --create
  export HINDCAST_SOCKET=./pool/hindcast.sock    in another terminal
  hindcast volume create db --size 10G           create a thin volume
  nbdinfo nbd://127.0.0.1/db                     reach it over NBD
  iscsi-ls -s iscsi://127.0.0.1                  reach it over iSCSI
  hindcast snapshot create db@first              take a snapshot
  hindcast rollback db@first                     return the volume to the snapshot
  hindcast volume set db --cdp parity            keep every write from now on
  hindcast recover db --to -90s --as db-then     a new volume: db as it was 90 seconds ago";

/// Block-storage server with snapshots and continuous data protection: thin volumes over iSCSI and
/// NBD, from one program
#[derive(Debug, Parser)]
#[command(name = "hindcast", version, after_help = AFTER_HELP, disable_help_subcommand = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    /// Show the health, space, limits and listeners of the server
    Status,
    /// The pool and its physical volumes: show, pvs, add, drain, remove, clock, backup-metadata,
    /// notify-test, features, upgrade, set, trace, reidentify
    #[command(subcommand)]
    Pool(pool::Command),
    /// Volumes: create, list, show, resize, rename, set, label, relocate, flatten, delete, stats
    #[command(subcommand, alias = "vol")]
    Volume(volume::Command),
    /// Deleted volumes that can be restored: list, restore, empty
    #[command(subcommand)]
    Trash(trash::Command),
    Events(events::Events),
    Tasks(tasks::Tasks),
    Top(tasks::Top),
    /// Look at moments of the past through read-only devices that stay for a while
    #[command(subcommand)]
    View(view::Command),
    /// Files in moments of a volume, without a mount: ls, cat, cp, diff, partitions
    #[command(subcommand)]
    Files(files::Command),
    /// Groups of volumes, for commands that take several: create, list, show, add, remove, delete
    #[command(subcommand)]
    Group(group::Command),
    /// Snapshots: create, list, show, rename, label, protect, unprotect, set, delete, rollback
    #[command(subcommand, alias = "snap")]
    Snapshot(snapshot::Command),
    /// Clones, which are writable volumes that begin as a snapshot: create, list
    #[command(subcommand)]
    Clone(clone::Command),
    /// Who may use volumes over NBD (allow, deny, remove, list), and the admin API (token, user,
    /// session)
    #[command(subcommand)]
    Access(access::Command),
    Clients(clients::Clients),
    History(history::Show),
    Mark(history::Mark),
    Rollback(rollback::Rollback),
    Recover(Box<recover::Command>),
    Diff(transfer::Diff),
    Export(transfer::Export),
    Import(transfer::Import),
    /// Schedules, which take snapshots at intervals and delete old ones: create, list, show, set,
    /// pause, resume, delete
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// iSCSI targets: create, list, show, set, delete, LUNs, access rules, reservations, CHAP
    #[command(subcommand)]
    Target(target::Command),
    /// Continuous data protection (CDP): plan
    #[command(subcommand)]
    Cdp(cdp::Command),
    Audit(audit::Args),
    Console(console::Args),
    Check(check::Args),
    RestoreMetadata(restore::Args),
    Salvage(salvage::Args),
    /// Read file systems for a server, through a socket that is standard input
    #[command(name = files::READER, hide = true)]
    FileReader,
    /// Names for servers, so that --server needs no address: add, list, use, remove
    #[command(subcommand, after_help = context::EXAMPLES)]
    Context(context::Command),
    Completions(extras::Completions),
    Man(extras::Man),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let result = match Cli::try_parse_from(&args) {
        Ok(cli) if cli.command.asks_a_server() && by_uuid::is_in(&args) => run_by_name(&cli.global, args),
        Ok(cli) => run(cli),
        Err(error) => match error.kind() {
            // Not failures: what was asked for goes to stdout.
            ClapKind::DisplayHelp | ClapKind::DisplayVersion => error.exit(),
            // A noun without its verb: its help teaches more than a sentence.
            ClapKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => Err(Failure::usage(one_line(&error.render().to_string()))),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The program that reads our output has seen enough.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // With stderr closed the message is lost; the exit code remains.
            let _ = writeln!(std::io::stderr(), "hindcast: {}", harmless(&one_line(&failure.to_string())));
            ExitCode::from(failure.code())
        }
    }
}

/// Runs a command whose arguments name volumes by UUID.
fn run_by_name(global: &Global, args: Vec<OsString>) -> Result<(), Failure> {
    let args = by_uuid::named(&global.session()?.client, args)?;
    let cli = Cli::try_parse_from(args).map_err(|e| Failure::usage(one_line(&e.render().to_string())))?;
    run(cli)
}

impl Command {
    /// Returns whether the command talks to a server that runs already.
    fn asks_a_server(&self) -> bool {
        use Command::{Check, Completions, Context, Man, RestoreMetadata, Salvage, Serve};
        !matches!(
            self,
            Serve(_) | Check(_) | RestoreMetadata(_) | Salvage(_) | Context(_) | Completions(_) | Man(_)
        )
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let global = cli.global;
    match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Status => status::run(&global.session()?),
        Command::Pool(command) => pool::run(command, &global),
        Command::Volume(command) => volume::run(command, &global.session()?),
        Command::Trash(command) => trash::run(command, &global.session()?),
        Command::Events(args) => events::run(&args, &global.session()?),
        Command::Tasks(args) => tasks::run(&args, &global.session()?),
        Command::Top(args) => tasks::top(&args, &global.session()?),
        Command::View(command) => view::run(command, &global.session()?),
        Command::Files(command) => files::run(command, &global.session()?),
        Command::Group(command) => group::run(command, &global.session()?),
        Command::Snapshot(command) => snapshot::run(command, &global.session()?),
        Command::Clone(command) => clone::run(command, &global.session()?),
        Command::Access(command) => access::run(command, &global.session()?),
        Command::Clients(args) => clients::run(args, &global.session()?),
        Command::History(args) => history::show(&args, &global.session()?),
        Command::Mark(args) => history::mark(&args, &global.session()?),
        Command::Rollback(args) => rollback::run(args, &global.session()?),
        Command::Recover(command) => recover::run(*command, &global.session()?),
        Command::Diff(args) => transfer::diff(&args, &global.session()?),
        Command::Export(args) => transfer::export(&args, &global.session()?),
        Command::Import(args) => transfer::import(&args, &global.session()?),
        Command::Schedule(command) => schedule::run(command, &global.session()?),
        Command::Target(command) => target::run(command, &global.session()?),
        Command::Cdp(command) => cdp::run(command, &global),
        Command::Audit(args) => audit::run(&args, &global.session()?),
        Command::Console(args) => console::run(&args, &global.session()?),
        Command::Check(args) => check::run(&args, &global.output()),
        Command::RestoreMetadata(args) => restore::run(&args, &global.output()),
        Command::Salvage(args) => salvage::run(&args, &global.output()),
        Command::FileReader => Ok(hindcast_files::run()?),
        Command::Context(command) => context::run(command, global.token_file(), &global.output()),
        Command::Completions(args) => extras::completions(&args),
        Command::Man(args) => extras::man(&args),
    }
}

/// Makes an error one line: the parser's text before its usage, and the lines of a message, joined.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let kept: Vec<&str> = lines.filter(|l| !l.is_empty() && !l.starts_with("For more information")).collect();
    let line = kept.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}
