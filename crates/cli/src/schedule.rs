//! `hindcast schedule`.

use crate::failure::Failure;
use crate::output::{list, properties};
use crate::select;
use crate::session::Session;
use clap::{ArgGroup, Args, Subcommand};
use hindcast_api::{CreateSchedule, PatchSchedule, Retention, Schedule};

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast schedule create hourly db --every 1h --keep-hourly 24 --keep-daily 7
  hindcast schedule create minutely db log --every 1m --keep-last 60
  hindcast schedule create safe db --every 1d --keep-daily 7 --keep-weekly 4 --keep-monthly 12

The name of a snapshot is the --prefix, or the name of the schedule, and the time:
db@hourly-20261122T040000Z. The snapshots of several volumes are of one instant. A schedule runs when \
the time (UTC) is a multiple of its interval: hourly schedules run on the hour, daily ones at \
midnight. If the server missed runs because it was stopped, it makes one run for all of them.

After each run the server deletes the schedule's own snapshots, except those that a --keep option \
keeps: the last N, and the newest of each of the last N hours, days, weeks and months that have one. \
Without a --keep option all snapshots are kept. Protected snapshots, and snapshots that are LUNs of \
targets, are never deleted. A renamed snapshot no longer belongs to the schedule.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take snapshots of volumes at intervals, and delete old ones
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// Name of the schedule
        name: String,
        /// Volumes of which it takes snapshots, at one instant
        #[arg(required = true)]
        volumes: Vec<String>,
        /// Interval, 10s to 31d, such as 30s, 15m, 1h or 1d
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        every: u64,
        /// Prefix of the snapshots' names; it can't be changed later [default: NAME]
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        keep: Keep,
    },
    /// List schedules
    #[command(alias = "ls")]
    List,
    /// Show one schedule
    #[command(alias = "info")]
    Show {
        /// Name of the schedule
        name: String,
    },
    /// Change the interval, or the snapshots that are kept; if one --keep option is given, the
    /// others become 0
    #[command(group = ArgGroup::new("property").required(true).multiple(true).args(
        ["every", "keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly"]))]
    Set {
        /// Name of the schedule
        name: String,
        /// Interval, 10s to 31d, such as 30s, 15m, 1h or 1d
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        every: Option<u64>,
        #[command(flatten)]
        keep: Keep,
    },
    /// Pause a schedule until schedule resume
    Pause {
        /// Name of the schedule
        name: String,
    },
    /// Resume a schedule; missed runs are not made up
    Resume {
        /// Name of the schedule
        name: String,
    },
    /// Delete a schedule; its snapshots stay
    #[command(alias = "rm")]
    Delete {
        /// Name of the schedule
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Keep {
    /// Keep the last N snapshots
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,
    /// Keep the newest snapshot of each of the last N hours that have one
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u32>,
    /// Keep the newest snapshot of each of the last N days that have one
    #[arg(long, value_name = "N")]
    keep_daily: Option<u32>,
    /// Keep the newest snapshot of each of the last N weeks that have one
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u32>,
    /// Keep the newest snapshot of each of the last N months that have one
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u32>,
}

impl Keep {
    /// Returns the retention, or `None` if no option is given.
    fn retention(&self) -> Option<Retention> {
        let all = [self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly, self.keep_monthly];
        let [last, hourly, daily, weekly, monthly] = all.map(Option::unwrap_or_default);
        all.iter().any(Option::is_some).then_some(Retention { last, hourly, daily, weekly, monthly })
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    match select::duration(text)?.as_secs() {
        seconds if (10..=31 * 24 * 3600).contains(&seconds) => Ok(seconds),
        _ => Err("an interval is 10s to 31d".into()),
    }
}

pub(crate) fn run(command: Command, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    let patch = |name: &str, patch: PatchSchedule| {
        let changed = client.patch_schedule(name, &patch)?;
        output.show(&changed, |s| format!("{}: {}", s.name, state(s)))
    };
    match command {
        Command::Create { name, volumes, every, prefix, keep } => {
            let volumes = crate::group::volumes(session, volumes)?;
            let keep = keep.retention().unwrap_or_default();
            let created = client.create_schedule(&CreateSchedule { name, prefix, volumes, every, keep })?;
            output.show(&created, |s| format!("created {}, {}", s.name, state(s)))
        }
        Command::List => output.show(&client.schedules()?, |all| table(all)),
        Command::Show { name } => output.show(&client.schedule(&name)?, details),
        Command::Set { name, every, keep } => {
            patch(&name, PatchSchedule { every, keep: keep.retention(), paused: None })
        }
        Command::Pause { name } => {
            patch(&name, PatchSchedule { paused: Some(true), ..PatchSchedule::default() })
        }
        Command::Resume { name } => {
            patch(&name, PatchSchedule { paused: Some(false), ..PatchSchedule::default() })
        }
        Command::Delete { name } => {
            client.delete_schedule(&name)?;
            output.done(format_args!("deleted {name}; its snapshots stay"))
        }
    }
}

/// Formats an interval in the largest unit of which it is a whole number.
fn interval(seconds: u64) -> String {
    let units = [(604_800, "w"), (86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit)).unwrap_or((1, "s"));
    format!("{}{name}", seconds / unit)
}

fn keeps(keep: &Retention) -> String {
    let kinds = [
        (keep.last, "last"),
        (keep.hourly, "hourly"),
        (keep.daily, "daily"),
        (keep.weekly, "weekly"),
        (keep.monthly, "monthly"),
    ];
    let kinds: Vec<String> =
        kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
    if kinds.is_empty() { "all".into() } else { kinds.join(", ") }
}

fn state(s: &Schedule) -> String {
    match (&s.error, &s.next) {
        (Some(error), _) => format!("failed: {error}"),
        (None, None) => "paused".into(),
        (None, Some(next)) => format!("next at {}", next.strftime("%Y-%m-%d %H:%M:%SZ")),
    }
}

fn table(all: &[Schedule]) -> String {
    let rows = all.iter().map(|s| {
        vec![
            s.name.clone(),
            s.volumes.join(" "),
            interval(s.every),
            keeps(&s.keep),
            s.snapshots.to_string(),
            state(s),
        ]
    });
    list(&["NAME", "VOLUMES", "EVERY", "KEEP", "SNAPSHOTS", "STATE"], &[4], rows)
}

fn details(s: &Schedule) -> String {
    properties([
        ("name", s.name.clone()),
        ("snapshots named", format!("{}-TIME", s.prefix)),
        ("volumes", s.volumes.join(" ")),
        ("every", interval(s.every)),
        ("keep", keeps(&s.keep)),
        ("state", state(s)),
        ("last run", s.last_run.map_or_else(|| "-".into(), |at| at.to_string())),
        ("snapshots", s.snapshots.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_told_in_their_unit() {
        for (seconds, text) in [(30, "30s"), (60, "1m"), (5400, "90m"), (86_400, "1d"), (1_209_600, "2w")] {
            assert_eq!(interval(seconds), text);
        }
        assert_eq!(keeps(&Retention { last: 1, weekly: 2, ..Retention::default() }), "1 last, 2 weekly");
    }
}
