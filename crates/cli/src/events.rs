//! `hindcast events`.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::output::Format;
use crate::session::Session;
use crate::when::When;
use clap::Args;
use hindcast_api::{ClientError, ErrorKind, Event, EventsQuery, Followed, MAX_EVENTS, Moment};
use jiff::Timestamp;
use std::io::Write;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hindcast events                            what happened lately
  hindcast events --since -1h --of db        in the last hour, to db
  hindcast events --follow                   and what happens from now on
  hindcast events --follow -o json           a line of JSON for each event

The server keeps 16 MiB of events, also over restarts. --follow waits for a server that restarts, and \
says when events are left out.";

/// Pause before another attempt to reach a server that went away.
const RETRY: Duration = Duration::from_secs(1);

/// Number of events that are listed if nothing says how many.
const USUAL: usize = 50;

/// List what happened on the server: changes, problems, clients
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// List only events since this time [default: the newest 50]
    #[arg(long, value_name = "TIME", value_parser = When::parse, allow_hyphen_values = true)]
    since: Option<When>,
    /// List only events about this volume, group, schedule or target
    #[arg(long, value_name = "NAME")]
    of: Option<String>,
    /// List only events of this kind: snapshot, snapshot.created
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Go on: print events as they happen
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    listing: Listing,
}

pub(crate) fn run(args: &Events, session: &Session) -> Result<(), Failure> {
    let since = args.since.as_ref().map(|since| time(since, session)).transpose()?;
    if !args.follow {
        return args.listing.clone().show(session, past(args, since, session)?, COLUMNS);
    }
    // What happens between the two requests is in the second answer.
    let last = session.client.events(EventsQuery { before: None, limit: Some(1) })?;
    let found = past(args, since, session)?;
    if !found.iter().all(|event| print(event, session)) {
        return Ok(());
    }
    follow(args, session, last.iter().chain(&found).map(|event| event.id).max().unwrap_or(0))
}

/// Prints the events after the number `seen` until stdout is closed. If the connection ends, it
/// connects again.
fn follow(args: &Events, session: &Session, mut seen: u64) -> Result<(), Failure> {
    let mut broken = false;
    let mut is_away = false;
    loop {
        let after = seen;
        let mut take = |followed: Followed| {
            if std::mem::take(&mut is_away) {
                tell("the server is there again");
            }
            match followed {
                Followed::Gap => tell("some events are left out here; hindcast events --since lists them"),
                Followed::Event(event) => {
                    seen = event.id;
                    if args.wants(&event) {
                        broken |= !print(&event, session);
                    }
                }
            }
            !broken
        };
        let ended = session.client.follow_events(Some(after), &mut take);
        let why = match ended {
            _ if broken => return Ok(()),
            Ok(()) => "the server ended the stream".to_owned(),
            // A busy server takes the stream later.
            Err(ClientError::Api(body)) if !matches!(body.kind, ErrorKind::Busy | ErrorKind::Unavailable) => {
                return Err(body.into());
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut is_away, true) {
            tell(&format!("{why}; connecting again"));
        }
        std::thread::sleep(RETRY);
    }
}

/// Writes a line to stderr, beside the events. With stderr closed it is dropped.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "hindcast: {text}");
}

impl Events {
    fn wants(&self, event: &Event) -> bool {
        let kind = |kind: &String| {
            event.kind == *kind || event.kind.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'))
        };
        self.of.as_ref().is_none_or(|of| event.subject.as_ref() == Some(of))
            && self.kind.as_ref().is_none_or(kind)
    }
}

/// Returns the time that a moment names.
fn time(since: &When, session: &Session) -> Result<Timestamp, Failure> {
    match since.moment(&session.here)? {
        Moment::Time(time) => Ok(time),
        Moment::Ago(ago) => {
            session.here.now.checked_sub(ago).map_err(|_| Failure::usage("--since is too long ago"))
        }
        _ => Err(Failure::usage("--since takes a time, or a time before now like -1h")),
    }
}

/// Returns the events so far that the operator wants, oldest first.
fn past(args: &Events, since: Option<Timestamp>, session: &Session) -> Result<Vec<Event>, Failure> {
    let (mut found, mut before) = (Vec::new(), None);
    let most = if since.is_none() { USUAL } else { usize::MAX };
    loop {
        let page = session.client.events(EventsQuery { before, limit: Some(MAX_EVENTS) })?;
        let is_last = page.len() < MAX_EVENTS as usize;
        before = page.last().map(|event| event.id);
        let reached = since.is_some_and(|since| page.last().is_some_and(|event| event.time < since));
        found.extend(page.into_iter().filter(|e| args.wants(e) && since.is_none_or(|since| e.time >= since)));
        if is_last || reached || found.len() >= most {
            found.truncate(most);
            found.reverse();
            return Ok(found);
        }
    }
}

/// Prints one event on a line. Returns whether somebody still reads.
fn print(event: &Event, session: &Session) -> bool {
    let line = match session.output.0 {
        Format::Json => serde_json::to_string(event).unwrap_or_default(),
        _ => {
            let subject = event.subject.as_deref().unwrap_or("-");
            let time = session.here.clock(event.time);
            format!("{time}  {:<20} {subject:<16} {}", event.kind, event.message)
        }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

const COLUMNS: &[Column<Event>] = &[
    Column { name: "time", usual: true, cell: |e| Cell::Time(Some(e.time)) },
    Column { name: "kind", usual: true, cell: |e| Cell::text(&e.kind) },
    Column { name: "subject", usual: true, cell: |e| Cell::text(e.subject.as_deref().unwrap_or("-")) },
    Column { name: "message", usual: true, cell: |e| Cell::text(&e.message) },
    Column { name: "severity", usual: false, cell: |e| Cell::text(e.severity.name()) },
    Column { name: "id", usual: false, cell: |e| Cell::number(e.id) },
];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        events: Events,
    }

    #[test]
    fn a_kind_is_a_whole_word() {
        let event = |kind: &str| Event {
            id: 1,
            time: Timestamp::UNIX_EPOCH,
            kind: kind.into(),
            severity: hindcast_api::Severity::Info,
            subject: Some("db".into()),
            message: String::new(),
        };
        let wants = |args: &[&str], kind: &str| {
            let line = Line::parse_from([&["events"], args].concat());
            line.events.wants(&event(kind))
        };
        assert!(wants(&[], "pv.added") && wants(&["--of", "db"], "pv.added"));
        assert!(!wants(&["--of", "d"], "pv.added"));
        assert!(wants(&["--kind", "pv"], "pv.added") && wants(&["--kind", "pv.added"], "pv.added"));
        assert!(!wants(&["--kind", "p"], "pv.added") && !wants(&["--kind", "pv"], "pvs.added"));
    }
}
