//! Arguments that several benchmarks have. A benchmark flattens them into its own, and changes the
//! defaults and the help that differ there with `mut_arg`.

use crate::units;
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;

/// How much of a benchmark runs.
#[derive(clap::Args)]
pub(crate) struct Scope {
    /// Short runs, one round, no goals: to see that everything works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds; at least 3 for figures worth keeping.
    #[arg(long, default_value = "3", default_value_if("quick", "true", "1"))]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
    /// Size of the volumes, fully written before the first run.
    #[arg(long, default_value = "2G", value_parser = units::parse_size)]
    pub(crate) size: u64,
    /// Journal of Hindcast.
    #[arg(long, default_value = "1G", value_parser = units::parse_size)]
    pub(crate) journal: u64,
    /// Only workloads whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
}

impl Scope {
    /// Whether the workload, or part, of this name runs.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// A comparison of servers, side by side.
#[derive(clap::Args)]
pub(crate) struct Contest {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Only the peers.
    #[arg(long)]
    pub(crate) skip_hindcast: bool,
    /// Another build of the server's binary to compare with, instead of the peers.
    #[arg(long, value_name = "BINARY", conflicts_with = "skip_hindcast")]
    pub(crate) before: Option<PathBuf>,
}
