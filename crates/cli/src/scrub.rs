//! `hindcast pool scrub`.

use crate::failure::Failure;
use crate::output::{list, percent, properties};
use crate::session::Session;
use crate::when::Here;
use clap::Subcommand;
use hindcast_api::{BeginScrub, Damage, PatchScrub, Scrub, Size};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  hindcast pool scrub --rate 100M                in the background
  hindcast pool scrub --wait                     exit code 1 if data is damaged
  hindcast pool scrub status                     the progress, and what is damaged
  hindcast pool scrub pause
  hindcast pool scrub --adopt                    give sums to data that has none

A scrub reads all data in place, past the page cache, and verifies it with its sums. So a disk that \
returns wrong data is found before the data is needed. The server begins one by itself every 30 days \
(serve --scrub-every, --scrub-rate). A scrub continues after a restart of the server.

Damaged data is repaired if the pool has its content elsewhere: in the history of the volume, in the \
journal, or in the page cache. Other damaged data can't be read until it is written again, or until \
what uses it is deleted.

Only pools with the feature sums have sums: hindcast pool upgrade --enable sums. Data that was written before \
that has none until it is written again, or until a scrub with --adopt takes it for right as it is.";

/// Interval of the checks of --wait.
const LOOK: Duration = Duration::from_millis(500);
/// Number of damaged ranges that are listed.
const TOLD: usize = 50;

/// Arguments of `hindcast pool scrub`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Maximum bytes a second [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    /// Give sums to data that has none: it is taken for right as it is
    #[arg(long)]
    adopt: bool,
    /// Return only when the scrub has ended; exit code 1 if data is damaged
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the progress of the scrub, and which ranges are damaged
    Status,
    /// Pause the scrub
    Pause,
    /// Resume the scrub
    Resume,
    /// Stop the scrub where it is
    Stop,
}

pub(crate) fn run(args: Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    match args.command {
        Some(Command::Status) => {
            let (scrub, damage) = (client.scrub()?, client.damage()?);
            let both = serde_json::json!({ "scrub": scrub, "damage": damage });
            output.show(&both, |_| details(&scrub, &damage, &session.here))
        }
        Some(Command::Pause) => {
            client.patch_scrub(&PatchScrub { paused: true })?;
            output.done(format_args!("the scrub is paused"))
        }
        Some(Command::Resume) => {
            client.patch_scrub(&PatchScrub { paused: false })?;
            output.done(format_args!("the scrub continues"))
        }
        Some(Command::Stop) => {
            client.stop_scrub()?;
            output.done(format_args!("the scrub is stopped"))
        }
        None => {
            let how = BeginScrub { rate: args.rate.map_or(0, |rate| rate.0), adopt: args.adopt };
            let mut scrub = client.begin_scrub(&how)?;
            let passes = scrub.passes;
            if args.wait {
                scrub = wait(session, scrub)?;
            }
            output.show(&scrub, |scrub| properties(rows(scrub, &session.here)))?;
            if args.wait && scrub.passes == passes {
                return Err(Failure::Failed("the scrub was stopped before its end".into()));
            }
            match scrub.damaged + scrub.unreadable {
                0 => Ok(()),
                bytes if args.wait => Err(Failure::Failed(format!(
                    "{} of data are damaged: hindcast pool scrub status lists them",
                    Size(bytes)
                ))),
                _ => Ok(()),
            }
        }
    }
}

fn wait(session: &Session, mut scrub: Scrub) -> Result<Scrub, Failure> {
    // Draws on stderr, and only on a terminal.
    let bar = ProgressBar::new(scrub.total);
    if let Ok(style) = ProgressStyle::with_template("scrubbing {wide_bar} {bytes} of {total_bytes} {eta}") {
        bar.set_style(style);
    }
    while scrub.running {
        std::thread::sleep(LOOK);
        scrub = session.client.scrub()?;
        bar.set_position(done(&scrub).min(scrub.total));
    }
    bar.finish_and_clear();
    Ok(scrub)
}

/// Returns the number of bytes that the pass has looked at.
fn done(s: &Scrub) -> u64 {
    s.verified + s.unknown + s.adopted + s.damaged + s.unreadable + s.repaired
}

fn rows(s: &Scrub, here: &Here) -> [(&'static str, String); 11] {
    let state = match (s.running, s.paused) {
        (true, true) => "paused",
        (true, false) if s.adopts => "running, and gives sums to data that has none",
        (true, false) => "running",
        (false, _) => "not running",
    };
    let time = |time: Option<jiff::Timestamp>| time.map_or_else(|| "never".into(), |time| here.stamp(time));
    let rate = if s.rate == 0 { "no limit".into() } else { format!("{} a second", Size(s.rate)) };
    [
        ("state", state.into()),
        ("progress", format!("{} of {} ({})", Size(done(s)), Size(s.total), percent(done(s), s.total))),
        ("rate", rate),
        ("verified", Size(s.verified).to_string()),
        ("without a sum", Size(s.unknown).to_string()),
        ("got a sum", Size(s.adopted).to_string()),
        ("repaired", Size(s.repaired).to_string()),
        ("damaged", Size(s.damaged).to_string()),
        ("unreadable", Size(s.unreadable).to_string()),
        ("began", time(s.started)),
        ("last ended", time(s.finished)),
    ]
}

fn details(scrub: &Scrub, damage: &[Damage], here: &Here) -> String {
    let mut text = properties(rows(scrub, here));
    let ranges = damage.iter().flat_map(|d| d.ranges.iter().map(move |range| (d, range)));
    let row = |(d, range): (&Damage, &hindcast_api::DamagedRange)| {
        let owner = match &d.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", d.volume),
            None => d.volume.clone(),
        };
        vec![owner, range.offset.to_string(), range.length.to_string()]
    };
    let all: Vec<Vec<String>> = ranges.map(row).collect();
    if !all.is_empty() {
        let shown = list(&["DAMAGED", "OFFSET", "LENGTH"], &[1, 2], all.iter().take(TOLD).cloned());
        text.push_str(&format!("\n\n{shown}"));
        if all.len() > TOLD {
            text.push_str(&format!("\nand {} more ranges: -o json has all of them", all.len() - TOLD));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::DamagedRange;

    #[test]
    fn what_the_status_tells() {
        let scrub = Scrub {
            running: true,
            total: 200 << 10,
            verified: 96 << 10,
            damaged: 4 << 10,
            ..Scrub::default()
        };
        let ranges: Vec<DamagedRange> =
            (0..60).map(|n| DamagedRange { offset: n << 13, length: 4096 }).collect();
        let damage = [
            Damage { volume: "db".into(), snapshot: None, ranges: ranges[..1].to_vec() },
            Damage { volume: "db".into(), snapshot: Some("s".into()), ranges },
        ];
        let here = Here::new(Some("UTC")).unwrap();
        let text = details(&scrub, &damage, &here);
        assert!(text.contains("running") && text.contains("100 KiB of 200 KiB (50"), "{text}");
        assert!(
            text.contains("db@s") && text.ends_with("and 11 more ranges: -o json has all of them"),
            "{text}"
        );
        assert!(!details(&scrub, &[], &here).contains("OFFSET"));
    }
}
