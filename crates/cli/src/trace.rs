//! `hindcast pool trace`: where the disks of physical volumes spend their time.

mod file;
mod pictures;

use crate::failure::Failure;
use crate::output::properties;
use crate::session::{Global, Session};
use crate::when::Here;
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use file::{Chosen, Loaded, Report};
use hindcast_api::{BeginTrace, Size, TimeSpan, Trace};
use hindcast_engine::disk::{AccessOp, Cause};
use pictures::Look;
use std::path::{Path, PathBuf};

pub(crate) const EXAMPLES: &str = "\
A trace records every read, write and sync of the disks of physical volumes: when, where, how long \
it took, and why the server did it. It changes nothing. Tracing costs little, so it may run under load.

Examples:
  hindcast pool trace start --for 1m
  hindcast pool trace status                     where the file is
  hindcast pool trace draw FILE                  what took how long, as a table
  hindcast pool trace draw FILE --access access.svg --seek seek.svg --density density.svg";

const START_EXAMPLES: &str = "\
The trace ends with `pool trace stop`, after --for, when the file has --max-size, when the file \
system has less than 256 MiB left, or when the server stops. Each access takes 32 bytes.

Examples:
  hindcast pool trace start --for 10m
  hindcast pool trace start --out /mnt/scratch/slow.trace --max-size 1G";

const DRAW_EXAMPLES: &str = "\
The command reads only the file, and asks no server. It prints a table: what each disk was asked for, \
why, and how long that took. BUSY is the sum of the durations as a share of the time, so it exceeds \
100 % when accesses ran side by side. A file that was cut off shows what it has.

Causes of accesses:
  read       a client reads
  reference  a client writes much at once, past the journal
  apply      content from the journal goes over the old content
  new-slot   content from the journal goes to a new place
  preserve   old content is copied, for a snapshot or into a clone
  history    a history records what is overwritten
  fill       a volume gets the content of the image or snapshot that it rests on
  move       a physical volume is drained, or a volume is put in order
  rebuild    a member of a mirror gets its content
  scrub      a scrub verifies the data
  repair     damaged data is repaired
  open       labels and stamps of physical volumes
  other      none of these

Examples:
  hindcast pool trace draw FILE --access a.svg --seek s.svg
  hindcast pool trace draw FILE --access a.svg --from 30s --to 40s --op read
  hindcast pool trace draw FILE --density d.svg --cause preserve --op read --slice 32M
                                                 which parts of the disk are copied for snapshots";

/// Commands about traces.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Begin to write all accesses to the disks to a file
    #[command(after_help = START_EXAMPLES)]
    Start {
        /// New file on the server's machine [default: a file in DIR/traces, where DIR is the data
        /// directory]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// End the trace when the file has this size
        #[arg(long, value_name = "SIZE", default_value = "256M")]
        max_size: Size,
        /// End the trace after this time, such as 90s, 10m or 1h [default: no limit]
        #[arg(long = "for", value_name = "TIME")]
        time: Option<TimeSpan>,
    },
    /// End the trace that is under way
    Stop,
    /// Show the trace that is under way, or the last one
    Status,
    /// Show what a trace has, as a table and as pictures
    #[command(after_help = DRAW_EXAMPLES)]
    Draw(Draw),
}

/// Arguments of `hindcast pool trace draw`.
#[derive(Debug, clap::Args)]
pub(crate) struct Draw {
    /// File with the trace
    file: PathBuf,
    /// Draw the places of accesses over time to this file, with one colour for each cause
    #[arg(long, value_name = "SVG")]
    access: Option<PathBuf>,
    /// Draw how far accesses are from the access before, and how long they took, to this file
    #[arg(long, value_name = "SVG")]
    seek: Option<PathBuf>,
    /// Draw how much of each part of the disks was accessed to this file
    #[arg(long, value_name = "SVG")]
    density: Option<PathBuf>,
    /// Only this disk: its path or its number in the trace; may be repeated
    #[arg(long, value_name = "DISK")]
    disk: Vec<String>,
    /// Only accesses with this cause; may be repeated
    #[arg(long, value_parser = causes(), hide_possible_values = true)]
    cause: Vec<Cause>,
    /// Only accesses of this kind; may be repeated
    #[arg(long, value_parser = operations())]
    op: Vec<AccessOp>,
    /// Only accesses from this time since the beginning of the trace on, such as 30s
    #[arg(long, value_name = "TIME")]
    from: Option<TimeSpan>,
    /// Only accesses before this time since the beginning of the trace
    #[arg(long, value_name = "TIME")]
    to: Option<TimeSpan>,
    /// Size of the parts of --density [default: 1/512 of a disk, rounded up to a power of two]
    #[arg(long, value_name = "SIZE")]
    slice: Option<Size>,
}

fn causes() -> impl TypedValueParser<Value = Cause> {
    let find =
        |name: String| Cause::ALL.into_iter().find(|cause| cause.name() == name).unwrap_or(Cause::Other);
    PossibleValuesParser::new(Cause::ALL.map(Cause::name)).map(find)
}

fn operations() -> impl TypedValueParser<Value = AccessOp> {
    let find =
        |name: String| AccessOp::ALL.into_iter().find(|op| op.name() == name).unwrap_or(AccessOp::Read);
    PossibleValuesParser::new(AccessOp::ALL.map(AccessOp::name)).map(find)
}

pub(crate) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Draw(args) => {
            let report = draw(&args)?;
            global.output().show(&report, Report::text)
        }
        Command::Start { out, max_size, time } => {
            let path = out.map(|path| std::path::absolute(&path).unwrap_or(path).display().to_string());
            let seconds = time.map(|time| time.0.as_secs());
            let how = BeginTrace { path, max_size: Some(max_size.0), seconds };
            show(&global.session()?, |session| Ok(session.client.begin_trace(&how)?))
        }
        Command::Stop => show(&global.session()?, |session| Ok(session.client.end_trace()?)),
        Command::Status => show(&global.session()?, |session| Ok(session.client.trace()?)),
    }
}

fn show(session: &Session, ask: impl FnOnce(&Session) -> Result<Trace, Failure>) -> Result<(), Failure> {
    session.output.show(&ask(session)?, |trace| status(trace, &session.here))
}

fn status(trace: &Trace, here: &Here) -> String {
    let Some(path) = &trace.path else {
        return "there was no trace since the server started".to_owned();
    };
    let time = |time: Option<jiff::Timestamp>| time.map_or_else(|| "-".into(), |time| here.stamp(time));
    let state = match (trace.running, trace.reason, &trace.error) {
        (true, ..) => "running".to_owned(),
        (false, Some(reason), None) => format!("ended: {}", reason.name()),
        (false, reason, error) => {
            let reason = reason.map_or("", |reason| reason.name());
            format!("ended: {reason}: {}", error.as_deref().unwrap_or("for an unknown reason"))
        }
    };
    let limit = trace.seconds.map_or_else(String::new, |seconds| format!(", after {seconds} s"));
    properties([
        ("state", state),
        ("file", path.clone()),
        ("began", time(trace.started)),
        ("ended", time(trace.ended)),
        ("accesses", trace.accesses.to_string()),
        ("lost", trace.lost.to_string()),
        ("size", Size(trace.size).to_string()),
        ("ends", format!("at {}{limit}", Size(trace.max_size))),
    ])
}

fn draw(args: &Draw) -> Result<Report, Failure> {
    let seconds =
        |time: Option<TimeSpan>| time.map(|time| u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX));
    let chosen = Chosen {
        disks: &args.disk,
        causes: &args.cause,
        ops: &args.op,
        from: seconds(args.from).unwrap_or(0),
        to: seconds(args.to).unwrap_or(u64::MAX),
    };
    let loaded = Loaded::read(&args.file, &chosen)?;
    let look = Look { loaded: &loaded, chosen: &chosen };
    let mut pictures = Vec::new();
    let mut put = |path: &Path, picture: String| {
        let failed = |e| Failure::Failed(format!("write {}: {e}", path.display()));
        std::fs::write(path, picture).map_err(failed)?;
        pictures.push(path.display().to_string());
        Ok::<(), Failure>(())
    };
    if let Some(path) = &args.access {
        put(path, look.accesses())?;
    }
    if let Some(path) = &args.seek {
        put(path, look.seeks())?;
    }
    if let Some(path) = &args.density {
        put(path, look.densities(args.slice.map(|size| size.0))?)?;
    }
    Ok(Report::of(&args.file, &loaded, &chosen, pictures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::TraceReason;

    #[test]
    fn what_the_status_tells() {
        let here = Here::new(Some("UTC")).unwrap();
        assert!(status(&Trace::default(), &here).contains("no trace"));
        let mut trace = Trace {
            running: true,
            path: Some("/d/x.trace".into()),
            max_size: 1 << 20,
            seconds: Some(60),
            ..Trace::default()
        };
        let text = status(&trace, &here);
        assert!(text.contains("running") && text.contains("at 1 MiB, after 60 s"), "{text}");
        trace = Trace { running: false, reason: Some(TraceReason::Full), ..trace };
        assert!(status(&trace, &here).contains("ended: full\n"), "{}", status(&trace, &here));
        trace.error = Some("no space".into());
        assert!(status(&trace, &here).contains("ended: full: no space"));
    }
}
