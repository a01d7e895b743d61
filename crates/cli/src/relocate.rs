//! `hindcast volume relocate`.

use crate::failure::Failure;
use crate::output::properties;
use crate::session::Session;
use hindcast_api::{Relocate, Relocation, Size};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hindcast volume relocate db --rate 50M
  hindcast volume relocate db --wait
  hindcast volume relocate db --status           how scattered the chunks are, and the progress
  hindcast volume relocate db --stop

With redirect-on-write (--method row), chunks that snapshots need stay where they are, and new data \
is written to other places. A sequential read of the volume then jumps on the disk. Relocation moves \
the chunks back into order, in the background, while the volume is in use. It can be stopped at any \
time. A restart of the server ends it: start it again, and it skips chunks that are in order.

With the placement snap-aware, each chunk has its place in the region of its slice. Relocation moves \
the chunks there, also those that were written under another placement.";

/// Interval of the checks of --wait.
const LOOK: Duration = Duration::from_millis(500);

/// Move the chunks of a volume back into order on disk (defragment)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the volume
    name: String,
    /// Maximum bytes a second [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    /// Return only when it has ended
    #[arg(long)]
    wait: bool,
    /// Only show the number of chunks and contiguous runs, and the progress
    #[arg(long, conflicts_with_all = ["rate", "wait", "stop"])]
    status: bool,
    /// Stop it; chunks that were moved stay where they are now
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    stop: bool,
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    if args.status {
        return output.show(&client.relocation(&args.name)?, details);
    }
    if args.stop {
        client.stop_relocation(&args.name)?;
        return output.done(format_args!("{}: stopped", args.name));
    }
    let how = Relocate { rate: args.rate.map_or(0, |rate| rate.0) };
    let mut state = client.relocate(&args.name, &how)?;
    while args.wait && state.running.is_some() {
        std::thread::sleep(LOOK);
        state = client.relocation(&args.name)?;
    }
    output.show(&state, details)
}

fn details(r: &Relocation) -> String {
    let running = r.running.map_or_else(
        || "no".into(),
        |r| format!("pass {}, at {}, {} moved", r.pass, Size(r.position), Size(r.moved)),
    );
    properties([("chunks", r.chunks.to_string()), ("runs", r.runs.to_string()), ("running", running)])
}
