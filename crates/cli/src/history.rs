//! `hindcast history` and `hindcast mark`.

use crate::failure::Failure;
use crate::group;
use crate::output::{list, properties};
use crate::pool::clock_changes;
use crate::session::Session;
use crate::when::{Here, When};
use clap::Args;
use hindcast_api::{
    Anchors, Cdp, CdpStatus, Change, ChangesQuery, Client, CreateMark, CreateMarks, History, MAX_CHANGES,
    MAX_TIMELINE_BUCKETS, Position, Size, Timeline, TimelineQuery,
};
use hindcast_plot::grouped;
use jiff::Timestamp;
use serde::Serialize;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  hindcast history db
  hindcast history db --from -1h                        the last hour, in short steps
  hindcast history db --from 10:30 --to 10:45
  hindcast history db --range 1M+64K                    when these 64 KiB changed
  hindcast history db --range 0+4K --from -1h
  hindcast history db --all                             every known anchor, mark and flush
  hindcast history db --buckets 600 -o json             data for a chart

Each moment of a history has an address: db@2026-11-22T03:14:15.5Z, db@-90s, db@lsn:4711, db@MARK. \
NBD and iSCSI clients can open such an address, read-only. hindcast volume set VOLUME --cdp parity \
begins a history.";

/// Number of times that the server is asked for a better picture.
const LOOKS: usize = 200;

/// Number of anchors, marks and flushes that a table shows.
const NEWEST: usize = 10;

const MARK_EXAMPLES: &str = "\
Examples:
  hindcast mark db before-upgrade
  hindcast recover db --to before-upgrade --as db-old
  hindcast mark db before-upgrade --delete";

/// Show the history of a volume: the moments that it can return to, or the writes to a range of it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// Name of the volume
    volume: String,
    /// List the writes to this range of bytes, such as 1M+64K
    #[arg(long, value_name = "OFFSET+LENGTH", value_parser = range)]
    range: Option<(u64, u64)>,
    /// Show the amounts from this time on [default: the beginning of the history]. With --range:
    /// list only writes from this moment on
    #[arg(long, value_name = "MOMENT", value_parser = When::parse, allow_hyphen_values = true)]
    from: Option<When>,
    /// Show the amounts until this time [default: now]. With --range: list only writes until this
    /// moment
    #[arg(long, value_name = "MOMENT", value_parser = When::parse, allow_hyphen_values = true)]
    to: Option<When>,
    /// With --range: list at most the oldest N writes, up to 99999
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "range", value_parser = clap::value_parser!(u64).range(1..MAX_CHANGES))]
    limit: u64,
    /// List all anchors, marks and flushes, not only the newest ten of each
    #[arg(long, conflicts_with = "range")]
    all: bool,
    /// Largest number of parts, 1 to 2000, into which the time is divided to show the bytes written
    /// in each. The length of a part is round: 1 s, 2 s, 5 s and so on
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=MAX_TIMELINE_BUCKETS as i64))]
    buckets: u32,
}

/// Set a mark: a name for the present moment of a volume's history
#[derive(Debug, Args)]
#[command(after_help = MARK_EXAMPLES)]
pub(crate) struct Mark {
    /// Name of the volume, or of a group: its volumes are marked at one instant
    volume: String,
    /// Name of the mark: 1 to 128 letters, digits, dots, dashes and underscores; the first is a
    /// letter or digit
    name: String,
    /// Delete the mark; the moment stays in the history
    #[arg(long)]
    delete: bool,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (offset, length) = text.split_once('+').ok_or("a range is OFFSET+LENGTH, such as 1M+64K")?;
    let size = |text: &str| text.parse::<Size>().map(|s| s.0).map_err(|e| e.to_string());
    match (size(offset)?, size(length)?) {
        (_, 0) => Err("the length of a range must be more than 0".into()),
        range => Ok(range),
    }
}

#[derive(Serialize)]
struct Whole {
    status: CdpStatus,
    #[serde(flatten)]
    history: History,
    timeline: Timeline,
}

pub(crate) fn show(args: &Show, session: &Session) -> Result<(), Failure> {
    let (client, output) = (&session.client, &session.output);
    if let Some((offset, length)) = args.range {
        let moment = |when: &Option<When>| when.as_ref().map(|when| session.moment(when)).transpose();
        let (from, to, limit) = (moment(&args.from)?, moment(&args.to)?, args.limit);
        // One more than wanted tells whether there are more.
        let query = ChangesQuery { offset, length, from, to, limit: limit + 1 };
        let mut changes = client.changes(&args.volume, &query)?;
        let shown = limit as usize;
        let more = changes.len() > shown;
        changes.truncate(shown);
        output.show(&changes, |changes| table(changes, &session.here))?;
        if let Some(last) = changes.last().filter(|_| more) {
            // On stderr, so that it is not part of the result. With stderr closed the hint is
            // dropped.
            let hint = format!(
                "only the oldest {shown} are listed; for more: --from lsn:{}, or a greater --limit",
                last.lsn
            );
            let _ = writeln!(std::io::stderr(), "{hint}");
        }
        return Ok(());
    }
    let moment = |when: &Option<When>| when.as_ref().map(|when| session.moment(when)).transpose();
    let query = TimelineQuery {
        from: moment(&args.from)?,
        to: moment(&args.to)?,
        buckets: Some(args.buckets),
        regions: None,
    };
    let history = client.history(&args.volume, args.buckets)?;
    let status = client.cdp(&args.volume)?;
    let whole = Whole { status, history, timeline: exact(client, &args.volume, &query)? };
    output.show(&whole, |whole| whole.text(args.all, &session.here))
}

/// Returns the timeline when the server has looked at all that it needs.
fn exact(client: &Client, volume: &str, query: &TimelineQuery) -> Result<Timeline, Failure> {
    let mut found = client.timeline(volume, query)?;
    for _ in 0..LOOKS {
        if !found.coarse {
            break;
        }
        found = client.timeline(volume, query)?;
    }
    Ok(found)
}

pub(crate) fn mark(args: &Mark, session: &Session) -> Result<(), Failure> {
    let name = &args.name;
    let volumes = group::volumes(session, vec![args.volume.clone()])?;
    let marked = volumes.iter().map(|volume| format!("{volume}@{name}")).collect::<Vec<_>>().join(" ");
    if args.delete {
        volumes.iter().try_for_each(|volume| session.client.delete_mark(volume, name))?;
        return session.output.done(format_args!("deleted the mark {marked}"));
    }
    let mark = match volumes.as_slice() {
        [volume] => session.client.create_mark(volume, &CreateMark { name: name.clone() })?,
        _ => session.client.create_marks(&CreateMarks { name: name.clone(), volumes })?,
    };
    session.output.show(&mark, |m| format!("{marked} is {} (lsn:{})", session.here.stamp(m.time), m.lsn))
}

/// Merges the changes of one write in adjacent chunks into one row.
fn merged(changes: &[Change]) -> Vec<Change> {
    let mut rows: Vec<Change> = Vec::new();
    for change in changes {
        match rows.last_mut() {
            Some(last) if last.lsn == change.lsn && last.offset + last.length == change.offset => {
                last.length += change.length;
            }
            _ => rows.push(*change),
        }
    }
    rows
}

fn table(changes: &[Change], here: &Here) -> String {
    let rows = merged(changes).into_iter().map(|c| {
        vec![here.clock(c.time), format!("lsn:{}", c.lsn), c.offset.to_string(), c.length.to_string()]
    });
    list(&[&format!("TIME {}", here.offset()), "MOMENT", "OFFSET", "LENGTH"], &[2, 3], rows)
}

/// Makes a table of positions in a history, oldest first. It has the newest ones, or all on
/// request.
fn places(heading: &str, rows: Vec<(String, Timestamp, u64)>, all: bool, here: &Here) -> String {
    let left_out = if all { 0 } else { rows.len().saturating_sub(NEWEST) };
    let rows = rows.into_iter().skip(left_out);
    let rows = rows.map(|(name, time, lsn)| vec![name, here.clock(time), format!("lsn:{lsn}")]);
    let more = if left_out > 0 { format!("\n… and {left_out} older: --all") } else { String::new() };
    format!("\n\n{}{more}", list(&[heading, &format!("TIME {}", here.offset()), "MOMENT"], &[], rows))
}

impl Whole {
    fn text(&self, all: bool, here: &Here) -> String {
        let (s, h) = (&self.status, &self.history);
        let position = |p: &Position| format!("{} (lsn:{})", here.stamp(p.time), p.lsn);
        let flush = h.flushes.last().map_or_else(|| "-".into(), position);
        let short = if s.short { ", less than --retain: --retain-size is too small" } else { "" };
        let mut text = properties([
            ("volume", h.volume.clone()),
            ("keeps", s.settings.as_ref().map_or_else(|| "nothing new".into(), settings)),
            ("from", s.from.as_ref().map_or_else(|| "-".into(), position)),
            ("window", format!("{}{short}", time(s.window_seconds))),
            ("log", {
                let kept =
                    if s.kept > 0 { format!(", and {} kept in place", Size(s.kept)) } else { String::new() };
                let (stored, records) = (Size(s.stored), grouped(s.records as f64));
                format!("{stored} in {records} records{kept}, for {} written", Size(s.written))
            }),
            ("anchors", {
                let distance = s.distance.map(|d| format!(", one every {} writes", grouped(d as f64)));
                format!("{}{}", s.anchors, distance.unwrap_or_default())
            }),
            ("last flush", flush),
        ]);
        for span in &h.spans {
            let to = span.to.as_ref().map_or_else(|| "now".into(), position);
            text.push_str(&format!("\n\n{} to {to}", position(&span.from)));
        }
        if let Some(line) = sparkline(&self.timeline, here) {
            text.push_str(&format!("\n\n{line}"));
        }
        let address = |name: &String| format!("{}@{name}", h.volume);
        let anchors = h
            .anchors
            .iter()
            .map(|a| (a.snapshot.as_ref().map_or_else(|| "-".into(), address), a.time, a.lsn));
        let marks = h.marks.iter().map(|m| (address(&m.name), m.time, m.lsn));
        let flushes = h.flushes.iter().map(|f| ("-".into(), f.time, f.lsn));
        for (heading, rows) in
            [("ANCHOR", anchors.collect::<Vec<_>>()), ("FLUSH", flushes.collect()), ("MARK", marks.collect())]
        {
            if !rows.is_empty() {
                text.push_str(&places(heading, rows, all, here));
            }
        }
        if !h.clock.is_empty() {
            text.push_str(&format!("\n\n{}", clock_changes(&h.clock, here)));
        }
        text
    }
}

fn settings(cdp: &Cdp) -> String {
    let anchors = match cdp.anchors {
        Anchors::Model => "by the model".into(),
        Anchors::Never => "never".into(),
        Anchors::Writes { count } => format!("every {} writes", grouped(count as f64)),
        Anchors::Time { seconds } => format!("every {}", time(seconds as f64)),
    };
    let kept = match (cdp.retain_seconds, cdp.retain_bytes) {
        (None, None) => "for ever".into(),
        (Some(seconds), None) => time(seconds as f64),
        (None, Some(bytes)) => format!("{} of it", Size(bytes)),
        (Some(seconds), Some(bytes)) => format!("{}, at most {} of it", time(seconds as f64), Size(bytes)),
    };
    format!("{}, {}; anchors {anchors}; kept {kept}", cdp.encoding.name(), cdp.compression.name())
}

/// Draws the amount of writes in each part of the time, with the length of a part.
fn sparkline(timeline: &Timeline, here: &Here) -> Option<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = *timeline.written.iter().max().filter(|most| **most > 0)?;
    let level = |written: &u64| match *written {
        0 => ' ',
        written => LEVELS[((u128::from(written) * 8).div_ceil(u128::from(most)) as usize).clamp(1, 8) - 1],
    };
    let line: String = timeline.written.iter().map(level).collect();
    let (from, to) = (here.stamp(timeline.from), here.stamp(timeline.to));
    let part = time(timeline.bucket_seconds);
    Some(format!("{from} to {to}, each {part}, at most {} written\n{}", Size(most), line.trim_end()))
}

/// Formats a time for people, with at most two units.
pub(crate) fn time(seconds: f64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    if seconds < 60.0 {
        return format!("{seconds:.3} s").replace(".000", "");
    }
    let whole = seconds as u64;
    let at = UNITS.iter().position(|(unit, _)| whole >= *unit).unwrap_or(3);
    let mut left = whole;
    let mut parts = Vec::new();
    for (unit, name) in UNITS.iter().skip(at).take(2) {
        if left / unit > 0 {
            parts.push(format!("{} {name}", left / unit));
        }
        left %= unit;
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Here {
        Here::new(Some("UTC")).unwrap()
    }

    #[test]
    fn the_sparkline_shows_the_least_write_and_the_lull() {
        let mut timeline: Timeline = serde_json::from_str(include_str!("history/timeline.json")).unwrap();
        let text = sparkline(&timeline, &here()).unwrap();
        assert!(text.ends_with("\n▁ ▄█"), "{text}");
        assert!(
            text.starts_with(
                "2026-11-22 10:00:00 UTC to 2026-11-22 10:05:00 UTC, each 1 min, at most 1000 B"
            ),
            "{text}"
        );
        timeline.written = vec![0; 5];
        assert_eq!(sparkline(&timeline, &here()), None);
    }

    #[test]
    fn times_outside_of_tables_have_their_offset() {
        let timeline: Timeline = serde_json::from_str(include_str!("history/timeline.json")).unwrap();
        let text = sparkline(&timeline, &Here::new(Some("Etc/GMT-1")).unwrap()).unwrap();
        assert!(text.starts_with("2026-11-22 11:00:00 +01:00 to 2026-11-22 11:05:00 +01:00, "), "{text}");
    }

    #[test]
    fn the_newest_places_are_listed() {
        let rows: Vec<_> = (0..12).map(|n| (format!("db@{n}"), Timestamp::UNIX_EPOCH, n)).collect();
        let text = places("MARK", rows.clone(), false, &here());
        assert!(text.contains("lsn:11") && text.contains("lsn:2\n") && !text.contains("lsn:1\n"), "{text}");
        assert!(text.ends_with("\n… and 2 older: --all"), "{text}");
        let text = places("MARK", rows, true, &here());
        assert!(text.contains("lsn:0\n") && !text.contains("older"), "{text}");
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (1.5, "1.500 s"),
            (60.0, "1 min"),
            (3725.0, "1 h 2 min"),
            (604_800.0, "7 d"),
            (90_000.0, "1 d 1 h"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn a_write_to_several_chunks_is_one_row() {
        let change = |lsn, offset, length| Change { lsn, time: Timestamp::UNIX_EPOCH, offset, length };
        let parts = [change(7, 100, 28), change(7, 128, 128), change(7, 512, 8), change(8, 520, 8)];
        assert_eq!(merged(&parts), [change(7, 100, 156), change(7, 512, 8), change(8, 520, 8)]);
        assert_eq!(table(&parts, &here()).lines().count(), 4);
    }

    #[test]
    fn ranges_have_an_offset_and_a_length() {
        assert_eq!(range("1M+64K"), Ok((1 << 20, 64 << 10)));
        for bad in ["", "1M", "+", "1M+", "+1M", "1M+0", "1M-2M"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
