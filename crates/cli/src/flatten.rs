//! `hindcast volume flatten`.

use crate::failure::Failure;
use crate::output::properties;
use crate::session::Session;
use crate::when::Here;
use hindcast_api::{Flatten, Flattening, Size, VolumeOrigin};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hindcast volume flatten db --rate 50M
  hindcast volume flatten db --wait
  hindcast volume flatten db --status            the origin, and the progress
  hindcast volume flatten db --stop              stop; the copied data stays

A clone, a recovered volume, and a volume over an image (volume create --origin) show the content of \
their origin where they have not been written. Flattening copies that content into the volume, and \
into its snapshots, in the background, while the volume is in use. Zeros take no space. When it has \
finished, the origin is shown as \"-\": the image can be removed, and a deleted snapshot that was \
kept for the clone is freed. Flattening continues after a restart of the server.";

/// Interval of the checks of --wait.
const LOOK: Duration = Duration::from_millis(500);

/// Make a volume independent of its origin: an image, a snapshot, or a moment of a history
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
    /// Only show the origin and the progress
    #[arg(long, conflicts_with_all = ["rate", "wait", "stop"])]
    status: bool,
    /// Stop it; the copied data stays
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    stop: bool,
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    if args.status {
        return output.show(&client.flattening(&args.name)?, |f| details(f, &session.here));
    }
    if args.stop {
        client.stop_flattening(&args.name)?;
        return output.done(format_args!("{}: stopped", args.name));
    }
    let how = Flatten { rate: args.rate.map_or(0, |rate| rate.0) };
    let mut state = client.flatten(&args.name, &how)?;
    while args.wait && state.running.is_some() {
        std::thread::sleep(LOOK);
        state = client.flattening(&args.name)?;
    }
    output.show(&state, |f| details(f, &session.here))
}

fn details(f: &Flattening, here: &Here) -> String {
    let origin = match &f.origin {
        None => "-".into(),
        Some(VolumeOrigin::Image { path, length, unavailable: None }) => format!("{path}, {}", Size(*length)),
        Some(VolumeOrigin::Image { unavailable: Some(why), .. }) => why.clone(),
        Some(VolumeOrigin::Snapshot { volume, snapshot }) => format!("{volume}@{snapshot}"),
        Some(VolumeOrigin::Moment { volume, lsn, time }) => {
            let time = time.map_or_else(|| "time unknown".into(), |time| here.stamp(time));
            match volume.is_empty() {
                true => format!("lsn:{lsn} of a volume that was deleted, {time}"),
                false => format!("{volume}@lsn:{lsn}, {time}"),
            }
        }
    };
    let running = f.running.as_ref().map_or_else(
        || "no".into(),
        |r| {
            let stalled = r.stalled.as_ref().map_or_else(String::new, |why| format!("; stalled: {why}"));
            format!("at {}, {} copied{stalled}", Size(r.position), Size(r.copied))
        },
    );
    properties([("origin", origin), ("running", running)])
}
