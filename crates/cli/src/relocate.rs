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
  hindcast volume relocate db --status           how the chunks lie, and how far it is
  hindcast volume relocate db --stop

With redirect-on-write (--method row) chunks that snapshots need stay where they are, and what is written goes elsewhere:
reading the volume in order jumps. Relocation brings chunks back, in the background, while the volume is used. It can be
stopped at any time, and a restart of the server ends it; begun again it passes what is in order already.";

/// How often --wait looks.
const LOOK: Duration = Duration::from_millis(500);

/// Bring a volume's chunks back into order
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    name: String,
    /// Bytes a second at most [default: as fast as it goes]
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    /// Return when it has ended
    #[arg(long)]
    wait: bool,
    /// Only show how it is
    #[arg(long, conflicts_with_all = ["rate", "wait", "stop"])]
    status: bool,
    /// End it where it is
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    stop: bool,
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, session.output);
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
