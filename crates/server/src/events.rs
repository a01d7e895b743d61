//! Events: what happened on this server, in its order.
//!
//! A line of the log with the field `event` is an event. The field has the event's kind, so the log
//! and the list of events can't differ. The newest events stay in memory. A thread appends them to
//! files in the data directory, so that they survive a restart. The files have a limited size, and
//! the oldest one goes first.

use hindcast_api::{Event, Severity, Size};
use hindcast_target::Repeated;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::{Layer, Registry};

/// The number of events in memory.
const RING: usize = 4096;
/// The size at which a file is followed by the next one, in bytes.
const FILE_SIZE: u64 = 4 << 20;
/// The number of files.
const FILES: u64 = 4;
/// The longest message of an event, in bytes. Clients choose names that appear in it.
const LONGEST: usize = 2000;
const DIRECTORY: &str = "events";
/// Name of the note that all events were saved.
const CLEAN: &str = "clean";
/// Name of the file with the number after which the events of the last process began.
const BEGIN: &str = "begin";

/// The events of a process. Copies share them.
#[derive(Clone)]
pub(crate) struct Events(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The newest events, oldest first. After a crash some numbers are left out.
    ring: VecDeque<Event>,
    /// The number of the newest event.
    last: u64,
    /// The number of the newest event that is in a file.
    saved: u64,
    files: Option<Files>,
    /// Directory of the files. `None`: events are in memory only.
    directory: Option<PathBuf>,
}

impl State {
    /// Returns the position in the ring of the first event after a number. The search halves the
    /// ring: threads that serve clients need the lock, and many streams look for events.
    fn behind(&self, number: u64) -> usize {
        self.ring.partition_point(|event| event.id <= number)
    }
}

/// What follows a number in the list of events.
pub(crate) struct Following {
    /// The events after the number, oldest first.
    pub(crate) events: Vec<Event>,
    /// Events between the number and these are gone.
    pub(crate) gap: bool,
    /// The number of the newest event.
    pub(crate) last: u64,
}

impl Events {
    pub(crate) fn new() -> Events {
        let newest = watch::Sender::new(0);
        Events(Arc::new(Shared { state: Mutex::default(), newest }))
    }

    /// Loads the events of earlier processes, and saves new ones beside them. Without a directory
    /// for the files, events are in memory only.
    pub(crate) fn open(&self, data: &Path) {
        let directory = data.join(DIRECTORY);
        let mut found = VecDeque::new();
        let files = match Files::open(&directory, &mut found) {
            Ok(files) => Some(files),
            Err(error) => {
                tracing::warn!(%error, "events are not saved");
                None
            }
        };
        let mut state = self.0.state.lock();
        // Events of this process so far follow those of the earlier ones.
        let saved = found.back().map_or(0, |event| event.id);
        let mut last = files.as_ref().map_or(saved, |files| files.begin_after(saved));
        for event in std::mem::take(&mut state.ring) {
            last += 1;
            found.push_back(Event { id: last, ..event });
        }
        while found.len() > RING {
            found.pop_front();
        }
        (state.saved, state.last) = (saved, last);
        state.directory = files.as_ref().map(|files| files.directory.clone());
        (state.ring, state.files) = (found, files);
        drop(state);
        self.0.newest.send_replace(last);
    }

    fn add(&self, kind: String, severity: Severity, subject: Option<String>, mut message: String) {
        if message.len() > LONGEST {
            message.truncate(message.floor_char_boundary(LONGEST));
            message.push('…');
        }
        let mut state = self.0.state.lock();
        let (id, time) = (state.last + 1, Timestamp::now());
        state.last = id;
        state.ring.push_back(Event { id, time, kind, severity, subject, message });
        if state.ring.len() > RING {
            state.ring.pop_front();
        }
        drop(state);
        self.0.newest.send_replace(id);
    }

    /// Returns at most `limit` events with numbers below `before`, newest first. It reads those
    /// that are not in memory any more from the files.
    pub(crate) fn newest(&self, before: Option<u64>, limit: usize) -> Vec<Event> {
        let state = self.0.state.lock();
        let end = before.map_or(state.ring.len(), |before| state.behind(before.saturating_sub(1)));
        let mut found: Vec<Event> = state.ring.range(..end).rev().take(limit).cloned().collect();
        let edge = state.ring.front().map(|event| event.id).into_iter().chain(before).min();
        let directory = state.directory.clone().filter(|_| found.len() < limit);
        drop(state);
        if let Some((directory, edge)) = directory.zip(edge) {
            // Files that can't be read are skipped.
            let more = older_in_files(&directory, edge, limit - found.len());
            found.extend(more.unwrap_or_default());
        }
        found
    }

    /// Returns the events after a number.
    pub(crate) fn after(&self, number: u64) -> Following {
        let state = self.0.state.lock();
        let at = state.behind(number);
        let events: Vec<Event> = state.ring.range(at..).cloned().collect();
        // Numbers that were left out after a crash are a gap in the ring.
        let next = events.first().map(|event| event.id);
        let known = at.checked_sub(1).and_then(|before| state.ring.get(before));
        let is_known = known.is_some_and(|event| event.id == number);
        let first = state.ring.front().map_or(state.last + 1, |event| event.id);
        let skipped = !is_known && next.is_some_and(|next| next - number > 1) && number >= first;
        // A number that was never given is one of another server's, or of lost files.
        let gap = skipped || number < first.saturating_sub(1) || number > state.last;
        Following { events, gap, last: state.last }
    }

    /// Returns the number of the newest event.
    pub(crate) fn last(&self) -> u64 {
        self.0.state.lock().last
    }

    /// Returns what reports that there are new events.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.newest.subscribe()
    }

    /// Saves the last events, and notes that all are saved. The server stops.
    pub(crate) fn close(&self) {
        self.save();
        let state = self.0.state.lock();
        if let Some(files) = state.files.as_ref().filter(|_| state.saved == state.last) {
            files.note_clean();
        }
    }

    /// Appends new events to the files. Those of a failed attempt are tried again.
    pub(crate) fn save(&self) {
        let (new, files) = {
            let mut state = self.0.state.lock();
            let new: Vec<Event> = state.ring.range(state.behind(state.saved)..).cloned().collect();
            match (new.last().map(|event| event.id), state.files.take()) {
                (Some(_), Some(files)) => (new, files),
                (_, files) => {
                    state.files = files;
                    return;
                }
            }
        };
        let mut files = files;
        let result = files.append(&new);
        let mut state = self.0.state.lock();
        state.files = Some(files);
        match result {
            Ok(()) => state.saved = new.last().map_or(state.saved, |event| event.id),
            Err(error) => {
                drop(state);
                static FAILED: Repeated = Repeated::new();
                if let Some(turn) = FAILED.turn() {
                    tracing::warn!(%error, suppressed = turn.suppressed(), "events can't be saved now");
                }
            }
        }
    }
}

/// The files of events: `events-N.jsonl`, with growing numbers.
struct Files {
    directory: PathBuf,
    number: u64,
    file: File,
    size: u64,
    /// No earlier process had files here.
    new: bool,
    /// The last attempt to append failed.
    broken: bool,
}

impl Files {
    /// Opens the newest file, and reads the newest events of all files into `found`. A line that
    /// can't be read is left out: a crash may have cut it off.
    fn open(directory: &Path, found: &mut VecDeque<Event>) -> io::Result<Files> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let numbers = numbers(directory)?;
        for number in &numbers {
            for line in BufReader::new(File::open(path(directory, *number))?).split(b'\n') {
                let Ok(event) = serde_json::from_slice::<Event>(&line?) else { continue };
                if found.back().is_none_or(|last| last.id < event.id) {
                    found.push_back(event);
                }
                if found.len() > RING {
                    found.pop_front();
                }
            }
        }
        let number = numbers.last().copied().unwrap_or(1);
        let mut file = append_to(&path(directory, number))?;
        let size = file.metadata()?.len();
        if size > 0 {
            // The last line may be cut off.
            file.write_all(b"\n")?;
        }
        let new = numbers.is_empty();
        Ok(Files { directory: directory.to_owned(), number, file, size, new, broken: false })
    }

    /// Notes that the files have all events.
    fn note_clean(&self) {
        // Without the note, the next start leaves numbers out.
        let _ = fs::write(self.directory.join(CLEAN), b"");
    }

    /// Returns whether the files have all events of the last process, and removes the note.
    fn take_clean(&self) -> bool {
        fs::remove_file(self.directory.join(CLEAN)).is_ok()
    }

    /// Returns the number after which the events of this process begin. `saved` is the number of
    /// the newest event in a file.
    ///
    /// After a crash some numbers were given that no file has, also by a process that saved none.
    /// They are not given again, so that a client that follows notices the gap.
    fn begin_after(&self, saved: u64) -> u64 {
        let note = self.directory.join(BEGIN);
        let noted = fs::read_to_string(&note).ok().and_then(|text| text.trim().parse().ok());
        let given = saved.max(noted.filter(|number| *number < u64::MAX / 2).unwrap_or(0));
        let complete = self.take_clean() || self.new;
        let begin = if complete { given } else { given.saturating_add(RING as u64) };
        // Without the note, a second crash without a saved event could repeat numbers.
        let _ = fs::write(note, begin.to_string());
        begin
    }

    fn append(&mut self, events: &[Event]) -> io::Result<()> {
        let mut text = Vec::new();
        // A failed attempt may have left a part of a line.
        if std::mem::replace(&mut self.broken, true) {
            text.push(b'\n');
        }
        for event in events {
            serde_json::to_writer(&mut text, event)?;
            text.push(b'\n');
        }
        if self.size + text.len() as u64 > FILE_SIZE && self.size > 0 {
            let next = self.number + 1;
            self.file = append_to(&path(&self.directory, next))?;
            (self.number, self.size) = (next, 0);
            for old in numbers(&self.directory)?.into_iter().filter(|number| number + FILES <= next) {
                // It is tried again with the next file.
                let _ = fs::remove_file(path(&self.directory, old));
            }
        }
        self.file.write_all(&text)?;
        self.size += text.len() as u64;
        self.broken = false;
        Ok(())
    }
}

/// Returns at most `limit` events of the files with numbers below `before`, newest first.
fn older_in_files(directory: &Path, before: u64, limit: usize) -> io::Result<Vec<Event>> {
    let mut found: Vec<Event> = Vec::new();
    for number in numbers(directory)?.into_iter().rev() {
        if found.len() >= limit {
            break;
        }
        // The oldest file may go at any time.
        let Ok(file) = File::open(path(directory, number)) else { continue };
        let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
        let mut of_file: VecDeque<Event> = VecDeque::new();
        for event in lines.filter_map(|line| serde_json::from_slice::<Event>(&line).ok()) {
            if event.id >= before {
                break;
            }
            of_file.push_back(event);
            if of_file.len() > limit - found.len() {
                of_file.pop_front();
            }
        }
        found.extend(of_file.into_iter().rev());
    }
    Ok(found)
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("events-{number}.jsonl"))
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Returns the numbers of the files in a directory, in order.
fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("events-")?.strip_suffix(".jsonl"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes events of the lines of the log that have the field `event`.
pub(crate) struct Collector(pub(crate) Events);

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let severity = fields.severity.unwrap_or(match *event.metadata().level() {
            Level::ERROR => Severity::Critical,
            Level::WARN => Severity::Warning,
            _ => Severity::Info,
        });
        let message = fields.message + &fields.rest;
        self.0.add(fields.kind, severity, fields.subject, message);
    }
}

/// Returns the filter that passes the lines with the field `event` on, and nothing else.
pub(crate) fn only() -> impl Filter<Registry> {
    filter_fn(|line| line.fields().field("event").is_some()).with_max_level_hint(LevelFilter::INFO)
}

/// The names of fields that say what an event is about, most important first.
const SUBJECTS: [&str; 9] =
    ["volume", "group", "schedule", "target", "pv", "path", "view", "client", "export"];

/// The fields of a line of the log.
#[derive(Default)]
struct Fields {
    kind: String,
    message: String,
    severity: Option<Severity>,
    subject: Option<String>,
    /// The other fields, each as `, name value`.
    rest: String,
}

impl Fields {
    fn put(&mut self, field: &Field, value: String) {
        match field.name() {
            "event" => self.kind = value,
            "message" => self.message = value,
            "severity" => self.severity = value.parse().ok(),
            name if self.subject.is_none() && SUBJECTS.contains(&name) => self.subject = Some(value),
            "size" => {
                let size = value.parse().map_or(value, |bytes| Size(bytes).to_string());
                _ = write!(self.rest, ", {size}");
            }
            // Writing to a string does not fail.
            name => _ = write!(self.rest, ", {} {value}", name.replace('_', " ")),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::prelude::*;

    fn kinds(events: &[Event]) -> Vec<(u64, &str)> {
        events.iter().map(|event| (event.id, event.kind.as_str())).collect()
    }

    #[test]
    fn a_line_of_the_log_is_an_event() {
        let events = Events::new();
        let collector = Collector(events.clone()).with_filter(only());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(collector), || {
            tracing::info!(event = "volume.created", volume = "db", size = 7, "volume created");
            tracing::info!(volume = "db", "no event");
            tracing::warn!(event = "pv.failed", severity = "critical", "a disk failed");
        });
        let found = events.newest(None, 10);
        assert_eq!(kinds(&found), [(2, "pv.failed"), (1, "volume.created")]);
        assert_eq!(
            (&found[1].subject, found[1].message.as_str()),
            (&Some("db".into()), "volume created, 7 B")
        );
        assert_eq!((found[1].severity, found[0].severity), (Severity::Info, Severity::Critical));
    }

    #[test]
    fn crashes_before_the_first_save_repeat_no_number() {
        let dir = tempfile::tempdir().unwrap();
        let mut given = Vec::new();
        for _ in 0..3 {
            let events = Events::new();
            events.open(dir.path());
            events.add("lost".into(), Severity::Info, None, String::new());
            assert!(given.iter().all(|earlier| events.after(*earlier).gap), "a client that saw {given:?}");
            given.push(events.last());
        }
        assert!(given.is_sorted_by(|one, next| one < next), "{given:?}");
    }

    #[test]
    fn events_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let add = |events: &Events, kind: &str| {
            events.add(kind.into(), Severity::Info, None, "x".repeat(3000));
        };
        let events = Events::new();
        add(&events, "early");
        events.open(dir.path());
        add(&events, "a");
        events.save();
        add(&events, "unsaved");
        // A crash may cut a line off.
        let newest = path(&dir.path().join(DIRECTORY), 1);
        append_to(&newest).unwrap().write_all(b"{\"id\":").unwrap();
        let events = Events::new();
        add(&events, "early");
        events.open(dir.path());
        // The number 3 was given, and its event is lost.
        let first = 3 + RING as u64;
        assert_eq!(kinds(&events.newest(None, 9)), [(first, "early"), (2, "a"), (1, "early")]);
        assert_eq!(kinds(&events.newest(Some(first), 1)), [(2, "a")]);
        assert!(events.after(3).gap, "what a client may have seen");
        events.close();
        let events = Events::new();
        events.open(dir.path());
        add(&events, "b");
        assert_eq!(kinds(&events.newest(None, 2)), [(first + 1, "b"), (first, "early")], "a clean stop");
        let after = events.after(first);
        assert!(kinds(&after.events) == [(first + 1, "b")] && !after.gap);
        assert!(events.after(u64::MAX).gap, "a number of the future");
        for _ in 0..3 * RING {
            add(&events, "many");
            events.save();
        }
        assert!(events.after(first).gap);
        assert_eq!(events.after(events.last() - 1).events.len(), 1);
        assert!(numbers(&dir.path().join(DIRECTORY)).unwrap().len() as u64 <= FILES);
        events.close();
        let again = Events::new();
        again.open(dir.path());
        assert_eq!((again.last(), again.newest(None, RING).len()), (events.last(), RING));
        // Older ones are in the files, page by page and all at once.
        let all = again.newest(None, usize::MAX);
        assert!(all.len() > RING && all.is_sorted_by(|one, next| one.id == next.id + 1), "{}", all.len());
        let (mut paged, mut before) = (Vec::new(), None);
        loop {
            let page = again.newest(before, 1000);
            before = page.last().map(|event| event.id);
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(kinds(&paged), kinds(&all));
    }
}
