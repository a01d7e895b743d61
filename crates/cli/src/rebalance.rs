//! `hindcast pool rebalance`.

use crate::failure::Failure;
use crate::output::{percent, properties};
use crate::session::Session;
use hindcast_api::{Rebalance, Rebalancing, Size};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  hindcast pool set --placement share            spread new data over all physical volumes
  hindcast pool rebalance --rate 100M            move the data that is there to its place
  hindcast pool rebalance --status
  hindcast pool rebalance --stop

With the placement share, each physical volume gets data in proportion to its size. When a physical \
volume is added, or a drain is cancelled, rebalancing begins by itself, and moves to it what belongs \
there now: its share, and nothing between the others. It runs in the background while the volumes \
are in use, and continues after a restart of the server.";

/// Interval of the checks of --wait.
const LOOK: Duration = Duration::from_millis(500);

/// Arguments of `hindcast pool rebalance`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Maximum bytes a second [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    /// Return only when it has ended
    #[arg(long)]
    wait: bool,
    /// Only show the progress
    #[arg(long, conflicts_with_all = ["rate", "wait", "stop"])]
    status: bool,
    /// Stop it; data that was moved stays at its new place
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    stop: bool,
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    if args.status {
        return output.show(&client.rebalancing()?, details);
    }
    if args.stop {
        client.stop_rebalance()?;
        return output.done("stopped");
    }
    let how = Rebalance { rate: args.rate.map_or(0, |rate| rate.0) };
    let mut state = client.rebalance(&how)?;
    while args.wait && state.running {
        std::thread::sleep(LOOK);
        state = client.rebalancing()?;
    }
    output.show(&state, details)
}

fn details(r: &Rebalancing) -> String {
    let running = match r.running {
        true => format!("round {}, {} checked", r.round, percent(r.checked.min(r.used), r.used)),
        false => "no".into(),
    };
    let rate = match r.rate {
        0 => "no limit".into(),
        rate => format!("{} a second", Size(rate)),
    };
    let left = match (r.running, r.passed_over) {
        (false, true) => "some data stays where it is: its place is full",
        _ => "none",
    };
    properties([
        ("running", running),
        ("moved", Size(r.moved).to_string()),
        ("rate", rate),
        ("left", left.into()),
    ])
}
