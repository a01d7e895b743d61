//! `hindcast schedule`.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::output::properties;
use crate::select;
use crate::session::Session;
use crate::when::Here;
use clap::{ArgGroup, Args, Subcommand};
use hindcast_api::{
    CreateSchedule, PatchSchedule, Retention, Schedule, TimeOfDay, WallClock, Weekday, Window,
};
use serde::Serialize;
use std::str::FromStr;

const CREATE_EXAMPLES: &str = "\
Examples:
  hindcast schedule create hourly db --every 1h --keep-hourly 24 --keep-daily 7
  hindcast schedule create minutely db log --every 1m --keep-last 60
  hindcast schedule create safe db --every 1d --keep-daily 7 --keep-weekly 4 --keep-monthly 12
  hindcast schedule create night db --every 1d --at 02:30 --tz Europe/Berlin --keep-daily 14
  hindcast schedule create weekly db --every 7d --on sun --at 04:00 --keep-last 8
  hindcast schedule create work db --every 15m --on mon,tue,wed,thu,fri --between 08:00-18:00

The name of a snapshot is the --prefix, or the name of the schedule, and the time:
db@hourly-20261122T040000Z. The snapshots of several volumes are of one instant. Each run of a schedule \
with a group takes the volumes that are in the group then. A schedule runs when \
the time (UTC) is a multiple of its interval: hourly schedules run on the hour, daily ones at \
midnight. If the server missed runs because it was stopped, it makes one run for all of them.

With --at, --on or --between the schedule goes by the clock of the zone --tz, which is stored with it:
  An interval of less than a day is counted from midnight of each day. A missed run is made up within \
the window and the days only.
  1d runs at --at, or at midnight, on the days of --on. 7d, 14d, 21d and 28d need one day in --on. Other \
numbers of days are counted from 1970, without --on.
  --at needs an interval of days, --between one of less than a day.
  If clocks skip the time of --at, the run is at the end of the gap. If they show it twice, the run is at \
the first. An interval of less than a day goes on while clocks show an hour again.

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
        /// Volumes or groups of which it takes snapshots, at one instant
        #[arg(required = true)]
        volumes: Vec<String>,
        /// Interval, 10s to 31d, such as 30s, 15m, 1h or 1d
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        every: u64,
        /// Prefix of the snapshots' names; it can't be changed later [default: NAME]
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        wall: Wall,
        #[command(flatten)]
        keep: Keep,
    },
    /// List schedules
    #[command(alias = "ls")]
    List(Listing),
    /// Show one schedule
    #[command(alias = "info")]
    Show {
        /// Name of the schedule
        name: String,
    },
    /// Change the volumes, the interval, the times, or the snapshots that are kept; if one --keep
    /// option is given, the others become 0
    ///
    /// A volume that is removed keeps its snapshots, and no rule deletes them any more. The first
    /// run with a volume that is added is the next one that is due.
    ///
    /// With --at, --on or --between, --tz sets the zone, too. Without --tz the zone stays, and a
    /// schedule that has none gets this machine's zone. --at none, --on all and --between none
    /// remove a restriction; without any of them the schedule runs at multiples of its interval
    /// again (UTC).
    #[command(group = ArgGroup::new("property").required(true).multiple(true).args(
        ["every", "add", "remove", "at", "on", "between", "keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly"]))]
    Set {
        /// Name of the schedule
        name: String,
        /// Interval, 10s to 31d, such as 30s, 15m, 1h or 1d
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        every: Option<u64>,
        /// Add a volume or a group; may be given several times
        #[arg(long, value_name = "NAME")]
        add: Vec<String>,
        /// Remove a volume or a group; may be given several times
        #[arg(long, value_name = "NAME")]
        remove: Vec<String>,
        #[command(flatten)]
        wall: Wall,
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
pub(crate) struct Wall {
    /// Time of day, such as 02:30, or none; it needs an interval of days
    #[arg(long, value_name = "HH:MM", value_parser = or_nothing::<TimeOfDay>)]
    at: Option<Given<TimeOfDay>>,
    /// Days of the week, such as mon,wed, or all
    #[arg(long, value_name = "DAYS", value_parser = weekdays)]
    on: Option<Days>,
    /// Part of the day, such as 08:00-18:00 or 22:00-06:00, or none; its end does not belong to it,
    /// and its hours after midnight belong to the day before
    #[arg(long, value_name = "HH:MM-HH:MM", value_parser = or_nothing::<Window>)]
    between: Option<Given<Window>>,
}

/// The value of an option that can remove what a schedule has: a new value, or none.
#[derive(Debug, Clone, Copy)]
struct Given<T>(Option<T>);

/// Days of the week. No day means every day.
#[derive(Debug, Clone)]
struct Days(Vec<Weekday>);

fn or_nothing<T: FromStr<Err = String>>(text: &str) -> Result<Given<T>, String> {
    match text {
        "none" => Ok(Given(None)),
        text => text.parse().map(|value| Given(Some(value))),
    }
}

/// Parses `mon,wed` or `all`. Full names of days are understood, too.
fn weekdays(text: &str) -> Result<Days, String> {
    const FULL: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    if text == "all" {
        return Ok(Days(Vec::new()));
    }
    let day = |name: &str| {
        let name = name.trim().to_ascii_lowercase();
        let full = FULL.iter().find(|full| name.len() >= 3 && full.starts_with(&name));
        full.map_or(name.as_str(), |full| &full[..3]).parse::<Weekday>()
    };
    text.split(',').map(day).collect::<Result<_, _>>().map(Days)
}

impl Wall {
    fn is_given(&self) -> bool {
        self.at.is_some() || self.on.is_some() || self.between.is_some()
    }

    /// Returns the times of a schedule whose times were `before`. `zone` is this machine's zone, or
    /// the one that the operator names. It returns `None` if no option is given.
    fn changed(self, before: Option<&WallClock>, session: &Session) -> Result<Option<WallClock>, Failure> {
        if !self.is_given() {
            return Ok(None);
        }
        let mut wall = before.cloned().unwrap_or_default();
        if wall.tz.is_none() || session.here.is_named {
            wall.tz = Some(session.here.zone_name()?);
        }
        self.at.into_iter().for_each(|at| wall.at = at.0);
        self.on.into_iter().for_each(|on| wall.on = on.0);
        self.between.into_iter().for_each(|between| wall.between = between.0);
        Ok(Some(wall))
    }
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
        output.show(&changed, |s| format!("{}: {}", s.name, state(s, &session.here)))
    };
    match command {
        Command::Create { name, volumes, every, prefix, wall, keep } => {
            let (volumes, groups) = crate::group::parted(session, volumes)?;
            if session.here.is_named && !wall.is_given() {
                return Err(Failure::usage(
                    "--tz: a schedule without --at, --on and --between runs at multiples of its interval in UTC; \
                     for midnight in a zone give --at 00:00",
                ));
            }
            let (keep, wall) = (keep.retention().unwrap_or_default(), wall.changed(None, session)?);
            let created = client.create_schedule(&CreateSchedule {
                name,
                prefix,
                volumes,
                groups,
                every,
                wall,
                keep,
            })?;
            output.show(&created, |s| format!("created {}, {}", s.name, state(s, &session.here)))
        }
        Command::List(listing) => list(session, &listing),
        Command::Show { name } => output.show(&client.schedule(&name)?, |s| details(s, &session.here)),
        Command::Set { name, every, add, remove, wall, keep } => {
            let before = wall.is_given().then(|| client.schedule(&name)).transpose()?;
            let wall = wall.changed(before.as_ref().and_then(|s| s.wall.as_ref()), session)?;
            let (add, add_groups) = crate::group::parted(session, add)?;
            let (remove, remove_groups) = crate::group::parted(session, remove)?;
            let (keep, paused) = (keep.retention(), None);
            patch(&name, PatchSchedule { add, remove, add_groups, remove_groups, every, wall, keep, paused })
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

fn state(s: &Schedule, here: &Here) -> String {
    match (&s.error, &s.next) {
        (Some(error), _) => format!("failed: {error}"),
        (None, None) => "paused".into(),
        (None, Some(next)) => match &s.next_local {
            Some(local) => format!("next at {}", local.replacen('T', " ", 1)),
            None => format!("next at {}", here.stamp(*next)),
        },
    }
}

/// Describes when a schedule runs: `1d at 02:30 on mon,wed (Europe/Berlin)`.
fn times(s: &Schedule) -> String {
    let mut text = interval(s.every);
    let Some(wall) = &s.wall else { return text };
    if let Some(at) = wall.at {
        text.push_str(&format!(" at {at}"));
    }
    if !wall.on.is_empty() {
        let days: Vec<&str> = wall.on.iter().map(|day| day.name()).collect();
        text.push_str(&format!(" on {}", days.join(",")));
    }
    if let Some(between) = wall.between {
        text.push_str(&format!(" between {between}"));
    }
    format!("{text} ({})", wall.tz.as_deref().unwrap_or("UTC"))
}

/// A schedule in a list, with its state in words.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    schedule: Schedule,
    #[serde(skip)]
    state: String,
}

const COLUMNS: &[Column<Row>] = &[
    Column { name: "name", usual: true, cell: |r| Cell::text(&r.schedule.name) },
    Column { name: "volumes", usual: true, cell: |r| Cell::text(r.schedule.volumes.join(" ")) },
    Column { name: "every", usual: true, cell: |r| Cell::Ordered(times(&r.schedule), r.schedule.every) },
    Column { name: "keep", usual: true, cell: |r| Cell::text(keeps(&r.schedule.keep)) },
    Column { name: "snapshots", usual: true, cell: |r| Cell::number(r.schedule.snapshots) },
    Column { name: "state", usual: true, cell: |r| Cell::text(&r.state) },
    Column { name: "groups", usual: false, cell: |r| Cell::text(r.schedule.groups.join(" ")) },
    Column { name: "last-run", usual: false, cell: |r| Cell::Time(r.schedule.last_run) },
    Column { name: "next", usual: false, cell: |r| Cell::Time(r.schedule.next) },
    Column { name: "prefix", usual: false, cell: |r| Cell::text(&r.schedule.prefix) },
];

fn list(session: &Session, listing: &Listing) -> Result<(), Failure> {
    let row = |schedule: Schedule| Row { state: state(&schedule, &session.here), schedule };
    let all = session.client.schedules()?.into_iter().map(row).collect();
    listing.show(session, all, COLUMNS)
}

fn details(s: &Schedule, here: &Here) -> String {
    properties([
        ("name", s.name.clone()),
        ("snapshots named", format!("{}-TIME", s.prefix)),
        ("volumes", s.volumes.join(" ")),
        ("groups", if s.groups.is_empty() { "-".into() } else { s.groups.join(" ") }),
        ("every", times(s)),
        ("keep", keeps(&s.keep)),
        ("state", state(s, here)),
        ("last run", s.last_run.map_or_else(|| "-".into(), |at| here.stamp(at))),
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
        assert!(or_nothing::<TimeOfDay>("none").unwrap().0.is_none());
        assert_eq!(weekdays("Mon,wednesday").unwrap().0, [Weekday::Monday, Weekday::Wednesday]);
        assert!(weekdays("all").unwrap().0.is_empty());
        for bad in ["", "mo", "mon,", "someday", "mondays"] {
            assert!(weekdays(bad).is_err(), "{bad}");
        }
        assert_eq!(keeps(&Retention { last: 1, weekly: 2, ..Retention::default() }), "1 last, 2 weekly");
    }
}
