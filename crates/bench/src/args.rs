//! Arguments that several benchmarks have. Each benchmark flattens them into its own arguments. It
//! uses `mut_arg` to change a default or a help text that differs for it.

use crate::units;
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;

/// Arguments that set how much of a benchmark runs.
#[derive(clap::Args)]
pub(crate) struct Scope {
    /// Short runs and one round, to check that everything works. A missed goal is no error.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of rounds; figures worth keeping need at least 3.
    #[arg(long, default_value = "3", default_value_if("quick", "true", "1"))]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
    /// Size of the volumes. They are fully written before the first run.
    #[arg(long, default_value = "2G", value_parser = units::parse_size)]
    pub(crate) size: u64,
    /// Size of Hindcast's journal.
    #[arg(long, default_value = "1G", value_parser = units::parse_size)]
    pub(crate) journal: u64,
    /// Run only the workloads whose name contains this, or one of several texts with bars between
    /// them, such as "sustained|cold".
    #[arg(long)]
    pub(crate) only: Option<String>,
}

impl Scope {
    /// Returns whether the workload or part called `name` runs.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split('|').any(|part| name.contains(part)))
    }
}

/// Arguments of a benchmark that compares servers.
#[derive(clap::Args)]
pub(crate) struct Contest {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Run the peers, but not Hindcast.
    #[arg(long)]
    pub(crate) skip_hindcast: bool,
    /// Another build of the server's binary to compare with, instead of the peers.
    #[arg(long, value_name = "BINARY", conflicts_with = "skip_hindcast")]
    pub(crate) before: Option<PathBuf>,
    /// Argument of `hindcast serve` for the build before only; repeatable. For example, its pool
    /// has no sums with --pool-features=none.
    #[arg(long = "before-arg", value_name = "ARG", requires = "before", allow_hyphen_values = true)]
    pub(crate) before_args: Vec<String>,
    /// Enable this feature in the pool of Hindcast, and not in the pool of the build before: see
    /// hindcast pool features. May be repeated.
    #[arg(long = "feature", value_name = "NAME")]
    pub(crate) features: Vec<String>,
}
