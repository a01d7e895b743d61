//! `hindcast tasks` and `hindcast top`: what goes on now.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing, span};
use crate::output::{Format, list};
use crate::session::Session;
use clap::{Args, Subcommand};
use hindcast_api::{Live, Rates, Size, Task};
use std::io::{IsTerminal, Write};
use std::time::Duration;

const TASKS_EXAMPLES: &str = "\
Examples:
  hindcast tasks
  hindcast tasks stop flatten:db                 what was copied stays copied
  hindcast tasks stop import:db                  db keeps what has arrived, and accepts writes again

A task that has ended is listed for an hour: done, stopped or failed, and why.";

const TOP_EXAMPLES: &str = "\
Examples:
  hindcast top                                   once a second, until Ctrl-C
  hindcast top --count 1 -o json                 the last second, for programs
  hindcast top --sort write-p99";

/// List what the server does in the background, and what has ended in the last hour
#[derive(Debug, Args)]
#[command(after_help = TASKS_EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Tasks {
    #[command(subcommand)]
    command: Option<TasksCommand>,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// Stop a task; what is done stays done
    Stop {
        /// Identity of the task, such as flatten:db
        id: String,
    },
}

/// Show which volumes clients use now, and how fast
#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES)]
pub(crate) struct Top {
    /// End after this number of seconds
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Order by this column
    #[arg(long, value_name = "COLUMN", value_enum, default_value = "write")]
    sort: Order,
}

/// A column of `top` by which volumes are ordered, largest first.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Order {
    Read,
    Write,
    Reads,
    Writes,
    ReadP99,
    WriteP99,
}

pub(crate) fn run(args: &Tasks, session: &Session) -> Result<(), Failure> {
    match &args.command {
        None => args.listing.clone().show(session, session.client.tasks()?, COLUMNS),
        Some(TasksCommand::Stop { id }) => {
            session.client.stop_task(id)?;
            session.output.done(format_args!("stopped {id}"))
        }
    }
}

const COLUMNS: &[Column<Task>] = &[
    Column { name: "task", usual: true, cell: |t| Cell::text(&t.id) },
    Column { name: "done", usual: true, cell: |t| Cell::Size(Some(t.done)) },
    Column { name: "total", usual: true, cell: |t| Cell::Size(t.total) },
    Column { name: "rate", usual: true, cell: |t| Cell::Size(t.rate.map(|rate| rate as u64)) },
    Column {
        name: "left",
        usual: true,
        cell: |t| match t.seconds_left {
            Some(left) => Cell::Ordered(span(left as u64), left as u64),
            None => Cell::Ordered("-".into(), u64::MAX),
        },
    },
    Column { name: "state", usual: true, cell: |t| Cell::text(t.state.name()) },
    Column { name: "why", usual: true, cell: |t| Cell::text(t.error.as_deref().unwrap_or("-")) },
    Column { name: "begun", usual: false, cell: |t| Cell::Time(Some(t.begun)) },
    Column { name: "ended", usual: false, cell: |t| Cell::Time(t.ended) },
    Column { name: "kind", usual: false, cell: |t| Cell::text(&t.kind) },
    Column { name: "subject", usual: false, cell: |t| Cell::text(&t.subject) },
];

pub(crate) fn top(args: &Top, session: &Session) -> Result<(), Failure> {
    let is_json = matches!(session.output.0, Format::Json);
    let clears = std::io::stdout().is_terminal() && args.count != Some(1) && !is_json;
    let mut shown = 0;
    loop {
        let live = session.client.live()?;
        let text = match is_json {
            true => serde_json::to_string(&live).unwrap_or_default(),
            false => table(&live, args.sort),
        };
        // The escape sequence clears the terminal.
        let clear = if clears { "\x1b[2J\x1b[H" } else { "" };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{clear}{text}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
        drop(out);
        shown += 1;
        if args.count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn table(live: &Live, order: Order) -> String {
    let mut volumes: Vec<(&String, &Rates)> = live.volumes.iter().collect();
    let key = |rates: &Rates| match order {
        Order::Read => rates.read_bytes,
        Order::Write => rates.write_bytes,
        Order::Reads => rates.reads,
        Order::Writes => rates.writes,
        Order::ReadP99 => rates.read_p99.unwrap_or(0.0),
        Order::WriteP99 => rates.write_p99.unwrap_or(0.0),
    };
    volumes.sort_by(|one, other| key(other.1).total_cmp(&key(one.1)));
    let all = "(all)".to_owned();
    let rows = std::iter::once((&all, &live.pool)).chain(volumes).map(|(name, rates)| {
        let time = |time: Option<f64>| time.map_or_else(|| "-".into(), millis);
        vec![
            name.clone(),
            format!("{:.0}", rates.reads),
            format!("{}/s", Size(rates.read_bytes as u64)),
            time(rates.read_p50),
            time(rates.read_p99),
            format!("{:.0}", rates.writes),
            format!("{}/s", Size(rates.write_bytes as u64)),
            time(rates.write_p50),
            time(rates.write_p99),
            format!("{:.0}", rates.flushes),
            rates.in_flight.to_string(),
        ]
    });
    let heads = [
        "VOLUME",
        "READS",
        "READ",
        "READ P50",
        "READ P99",
        "WRITES",
        "WRITTEN",
        "WRITE P50",
        "WRITE P99",
        "FLUSHES",
        "IN FLIGHT",
    ];
    list(&heads, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], rows)
}

/// Writes a time in milliseconds.
fn millis(seconds: f64) -> String {
    let millis = seconds * 1000.0;
    match millis {
        ..1.0 => format!("{millis:.3} ms"),
        ..100.0 => format!("{millis:.1} ms"),
        _ => format!("{millis:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_volume_comes_first() {
        let rates = |writes: f64, p99: f64| Rates {
            writes,
            write_bytes: writes * 4096.0,
            write_p99: Some(p99),
            ..Rates::default()
        };
        let volumes = [("a".to_owned(), rates(1.0, 0.25)), ("b".to_owned(), rates(2.0, 0.000_05))];
        let live = Live { volumes: volumes.into(), ..Live::default() };
        let names = |order| {
            let text = table(&live, order);
            let names = text.lines().skip(1).map(|line| line.split(' ').next().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(Order::Write), ["(all)", "b", "a"]);
        assert_eq!(names(Order::WriteP99), ["(all)", "a", "b"]);
        assert!(table(&live, Order::Write).contains("0.050 ms"), "{}", table(&live, Order::Write));
    }
}
