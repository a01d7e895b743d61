//! `hindcast audit`: who changed what, and who was refused.

use crate::failure::Failure;
use crate::listing::{Cell, Column, Listing};
use crate::session::Session;
use crate::when::When;
use hindcast_api::{AuditEntry, AuditQuery, AuditVerification, Client, Moment};
use jiff::Timestamp;

/// Number of entries that the command shows by default.
const LIMIT: u64 = 1000;

const AFTER_HELP: &str = "\
Examples:
  hindcast audit                      the last 1000 entries
  hindcast audit --since -1d --who anna
  hindcast audit --verify             check that no entry was changed or removed
  hindcast audit -o json | jq '.[] | select(.status == 403)'

The server writes an entry for each request that changes something or is refused. Secrets are left \
out. Each entry has the hash of the entry before it.";

/// Show who changed what, and who was refused
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Show only entries from this time on
    #[arg(long, value_name = "TIME", value_parser = When::parse, allow_hyphen_values = true)]
    since: Option<When>,
    /// Show only entries of the caller with this name
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Show at most so many entries, the newest [default: 1000]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Verify the hashes of all entries instead
    #[arg(long, conflicts_with_all = ["since", "who", "limit"])]
    verify: bool,
    /// Accept that the oldest files were moved away
    #[arg(long, requires = "verify")]
    archived: bool,
    #[command(flatten)]
    listing: Listing,
}

pub(crate) fn run(args: &Args, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    if args.verify {
        let found = client.verify_audit()?;
        output.show(&found, verified)?;
        return whole(&found, args.archived);
    }
    let since = args.since.as_ref().map(|when| time(when, session)).transpose()?;
    let found = newest(client, since, args.who.as_deref(), args.limit.unwrap_or(LIMIT))?;
    args.listing.show(session, found, COLUMNS)
}

/// Fails if the audit is not whole. `archived`: the oldest files may be elsewhere.
fn whole(found: &AuditVerification, archived: bool) -> Result<(), Failure> {
    let places = found.problems.len() as u64 + found.unlisted;
    match found.problems.first() {
        Some(first) if places == 1 => Err(Failure::Failed(format!("the audit is not whole: {first}"))),
        Some(first) => {
            let text = format!("the audit is not whole at {places} places; the first: {first}");
            Err(Failure::Failed(text))
        }
        None if found.continued && !archived => {
            let text = "the oldest files of the audit are missing; if you moved them away, give --archived";
            Err(Failure::Failed(text.into()))
        }
        None => Ok(()),
    }
}

/// Reads the newest entries, page by page. Returns the oldest of them first.
fn newest(
    client: &Client,
    since: Option<Timestamp>,
    who: Option<&str>,
    limit: u64,
) -> Result<Vec<AuditEntry>, Failure> {
    let mut wanted = AuditQuery { since, who: who.map(str::to_owned), before: None, limit: Some(limit) };
    let mut pages = Vec::new();
    while let Some(left) = wanted.limit.filter(|left| *left > 0) {
        let page = client.audit(&wanted)?;
        let Some(first) = page.first() else { break };
        // A server that gives no places has only one page.
        let Some(at) = first.at.clone() else { return Ok(page) };
        wanted.before = Some(at);
        wanted.limit = Some(left.saturating_sub(page.len() as u64));
        pages.push(page);
    }
    Ok(pages.into_iter().rev().flatten().collect())
}

fn time(when: &When, session: &Session) -> Result<Timestamp, Failure> {
    let wrong = || Failure::usage("--since: give a time, or a time before now like -1d");
    match when.moment(&session.here)? {
        Moment::Time(time) => Ok(time),
        Moment::Ago(ago) => Timestamp::now().checked_sub(ago).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

fn verified(found: &AuditVerification) -> String {
    let mut text = format!("{} entries in {} files; last hash {}", found.entries, found.files, found.head);
    if found.continued {
        text.push_str("; older files are not there");
    }
    for problem in &found.problems {
        text.push_str(&format!("\n  {problem}"));
    }
    if found.unlisted > 0 {
        text.push_str(&format!("\n  and {} more", found.unlisted));
    }
    text
}

const COLUMNS: &[Column<AuditEntry>] = &[
    Column { name: "time", usual: true, cell: |e| Cell::Time(Some(e.time)) },
    Column { name: "who", usual: true, cell: |e| Cell::text(e.who.as_deref().unwrap_or("-")) },
    Column { name: "address", usual: true, cell: |e| Cell::text(&e.address) },
    Column { name: "status", usual: true, cell: |e| Cell::number(e.status.into()) },
    Column { name: "request", usual: true, cell: |e| Cell::text(format!("{} {}", e.method, e.subject)) },
    Column { name: "method", usual: false, cell: |e| Cell::text(&e.method) },
    Column { name: "route", usual: false, cell: |e| Cell::text(&e.route) },
    Column { name: "error", usual: false, cell: |e| Cell::text(e.error.as_deref().unwrap_or("-")) },
    Column { name: "micros", usual: false, cell: |e| Cell::number(e.micros) },
];
