//! The audit: a file a month with one line of JSON for each request that changed something or was
//! refused.
//!
//! Each line has the SHA-256 of the line before it. So a line that is changed or removed later
//! breaks the chain. The chain goes on from file to file.

use crate::identity::secret::Hash;
use hindcast_api::{AuditEntry, AuditVerification};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the directory of the files, in the data directory.
pub(crate) const DIRECTORY: &str = "audit";
const SUFFIX: &str = ".jsonl";
/// Maximum length of a line, in bytes. It limits what a look at the last line reads.
const MAX_LINE: usize = 64 << 10;
/// Maximum number of characters of a text in an entry.
const MAX_TEXT: usize = 256;
/// Maximum number of elements of a list in an entry.
const MAX_LIST: usize = 64;
/// Maximum depth of values in an entry.
const MAX_DEPTH: usize = 6;
/// Words in the names of keys whose values are secrets.
const SECRETS: [&str; 5] = ["secret", "password", "token", "link", "key"];

/// The audit of the admin API.
pub(crate) struct Audit {
    /// `None`: the pool is only shown, and nothing is written to the data directory.
    dir: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    /// The file of the current month, its name, and its length.
    current: Option<(File, String, u64)>,
    /// Hash of the last line.
    head: Hash,
    /// Why the last entry could not be written.
    problem: Option<String>,
    /// Whether entries were written since the last sync.
    unsynced: bool,
}

impl Audit {
    /// Opens the audit in the data directory. If it can't be read or written, the server starts,
    /// and changes are refused.
    pub(crate) fn open(data: Option<&Path>) -> Audit {
        let dir = data.map(|data| data.join(DIRECTORY));
        let head = dir.as_deref().map_or(Ok(Hash([0; 32])), |dir| {
            try_to_write(dir)?;
            last_hash(dir)
        });
        let problem = head.as_ref().err().map(ToString::to_string);
        if let Some(problem) = &problem {
            tracing::error!(problem, "the audit can't be used; changes are refused");
        }
        let head = head.unwrap_or(Hash([0; 32]));
        let state = State { current: None, head, problem, unsynced: false };
        Audit { dir, state: Mutex::new(state) }
    }

    /// Checks that entries can be written. After a failure it tries again.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut state = self.state.lock();
        if state.problem.is_none() {
            return Ok(());
        }
        let entry = note("the audit can be written again");
        let retried = try_to_write(dir).and_then(|()| last_hash(dir)).and_then(|head| {
            (state.current, state.head) = (None, head);
            state.append(dir, entry)
        });
        state.problem = retried.err().map(|e| e.to_string());
        state.problem.clone().map_or(Ok(()), Err)
    }

    /// Returns why entries can't be written.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// Writes an entry. The value of its `prev` is replaced.
    pub(crate) fn record(&self, entry: AuditEntry) -> io::Result<()> {
        tracing::info!(
            who = entry.who,
            address = entry.address,
            method = entry.method,
            subject = entry.subject,
            status = entry.status,
            error = entry.error,
            "audit"
        );
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut state = self.state.lock();
        let written = state.append(dir, entry);
        if let Err(error) = &written {
            tracing::error!(%error, "the audit can't be written; changes are refused");
            state.problem = Some(error.to_string());
        }
        written
    }

    /// Makes the entries durable.
    pub(crate) fn sync(&self) {
        let file = {
            let mut state = self.state.lock();
            let file = state.current.as_ref().filter(|_| state.unsynced).map(|(file, _, _)| file.try_clone());
            state.unsynced = false;
            file
        };
        if let Some(Err(error)) = file.map(|file| file.and_then(|file| file.sync_data())) {
            tracing::warn!(%error, "the audit could not be synced");
        }
    }

    /// Returns the newest entries, the oldest of them first. `since` is the time of the first, and
    /// `who` the name of the caller.
    pub(crate) fn list(
        &self,
        since: Option<Timestamp>,
        who: Option<&str>,
        limit: usize,
    ) -> io::Result<Vec<AuditEntry>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        let mut found = VecDeque::new();
        let first = since.map(file_name).unwrap_or_default();
        for name in names(dir)?.into_iter().filter(|name| *name >= first) {
            for line in BufReader::new(File::open(dir.join(name))?).split(b'\n') {
                // A verification reports lines that are no entries.
                let Ok(entry) = serde_json::from_slice::<AuditEntry>(&line?) else { continue };
                let wanted = since.is_none_or(|since| entry.time >= since)
                    && who.is_none_or(|who| entry.who.as_deref() == Some(who));
                if wanted {
                    found.push_back(entry);
                }
                if found.len() > limit {
                    found.pop_front();
                }
            }
        }
        Ok(found.into())
    }

    /// Verifies the chain of all files.
    pub(crate) fn verify(&self) -> io::Result<AuditVerification> {
        let zero = Hash([0; 32]);
        let mut result =
            AuditVerification { files: 0, entries: 0, continued: false, head: zero.text(), problem: None };
        let Some(dir) = &self.dir else { return Ok(result) };
        // Entries that are added meanwhile are not verified, and do not wait.
        let (files, head) = {
            let state = self.state.lock();
            (lengths(dir)?, state.problem.is_none().then_some(state.head))
        };
        let mut last = None;
        for (name, length) in files {
            result.files += 1;
            let file = BufReader::new(File::open(dir.join(&name))?.take(length));
            for (i, line) in file.split(b'\n').enumerate() {
                let line = line?;
                let place = format!("{name}, line {}", i + 1);
                let prev =
                    serde_json::from_slice::<AuditEntry>(&line).ok().and_then(|e| Hash::parse(&e.prev));
                let why = match (prev, last) {
                    (None, _) => Some(format!("{place}: this is no entry")),
                    (Some(prev), Some(last)) if prev != last => Some(format!(
                        "{place}: the line before it was changed or removed, or this line was added"
                    )),
                    _ => None,
                };
                if why.is_some() {
                    return Ok(AuditVerification { problem: why, ..result });
                }
                result.continued |= last.is_none() && prev != Some(zero);
                result.entries += 1;
                let hash = Hash::of(&line);
                (last, result.head) = (Some(hash), hash.text());
            }
        }
        if head.is_some_and(|head| last.unwrap_or(zero) != head) {
            result.problem = Some("the last lines were changed or removed since the server started".into());
        }
        Ok(result)
    }
}

impl State {
    fn append(&mut self, dir: &Path, mut entry: AuditEntry) -> io::Result<()> {
        let name = file_name(entry.time);
        entry.prev = self.head.text();
        let mut line = serde_json::to_vec(&entry)?;
        if line.len() > MAX_LINE {
            entry.asked = None;
            line = serde_json::to_vec(&entry)?;
        }
        let hash = Hash::of(&line);
        line.push(b'\n');
        // A clock that was set back does not lead to an older file, because the chain would be out
        // of order.
        let is_new = self.current.as_ref().is_none_or(|(_, current, _)| name > *current);
        if is_new {
            let newest = names(dir)?.pop().unwrap_or_default();
            let name = name.max(newest);
            let options = OpenOptions::new().append(true).create(true).mode(0o600).open(dir.join(&name));
            let file = options?;
            let length = file.metadata()?.len();
            if let Some((old, _, _)) = self.current.replace((file, name, length)) {
                old.sync_data()?;
            }
            File::open(dir)?.sync_all()?;
        }
        let (file, _, length) = self.current.as_mut().ok_or(io::ErrorKind::NotFound)?;
        if let Err(error) = file.write_all(&line) {
            // What was written of the line is no entry.
            file.set_len(*length)?;
            return Err(error);
        }
        *length += line.len() as u64;
        (self.head, self.unsynced) = (hash, true);
        Ok(())
    }
}

/// Returns an entry of the server itself.
fn note(text: &str) -> AuditEntry {
    AuditEntry {
        time: Timestamp::now(),
        who: None,
        kind: None,
        role: None,
        address: "server".into(),
        method: String::new(),
        route: String::new(),
        subject: text.into(),
        asked: None,
        status: 0,
        error: None,
        micros: 0,
        suppressed: None,
        prev: String::new(),
    }
}

/// Returns the name of the file for a time. Names sort by time.
fn file_name(time: Timestamp) -> String {
    format!("{}{SUFFIX}", time.to_zoned(TimeZone::UTC).strftime("%Y-%m"))
}

/// Returns the names of all files, the oldest first.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.len() == "2026-01".len() + SUFFIX.len() && name.ends_with(SUFFIX) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Makes the directory if it does not exist, and a file in it for a moment. So a directory that
/// refuses writes is noticed before the first change.
fn try_to_write(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let probe = dir.join("probe");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&probe)?;
    fs::remove_file(probe)
}

/// Returns the names and lengths of all files, the oldest first.
fn lengths(dir: &Path) -> io::Result<Vec<(String, u64)>> {
    let with_length = |name: String| Ok((name.clone(), fs::metadata(dir.join(name))?.len()));
    names(dir)?.into_iter().map(with_length).collect()
}

/// Returns the hash of the last line of all files. It cuts a line that a crash interrupted: the
/// response to its request was never sent.
fn last_hash(dir: &Path) -> io::Result<Hash> {
    for name in names(dir)?.into_iter().rev() {
        let mut file = OpenOptions::new().read(true).write(true).open(dir.join(&name))?;
        let length = file.metadata()?.len();
        let start = length.saturating_sub(2 * MAX_LINE as u64);
        file.seek(SeekFrom::Start(start))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        let end = tail.iter().rposition(|b| *b == b'\n');
        let whole = end.map_or(0, |end| end + 1);
        if whole < tail.len() {
            tracing::warn!(
                file = name,
                bytes = tail.len() - whole,
                "the audit ends with an incomplete line; it is cut"
            );
            file.set_len(start + whole as u64)?;
        }
        if let Some(end) = end {
            let begin = tail[..end].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            return Ok(Hash::of(&tail[begin..end]));
        }
    }
    Ok(Hash([0; 32]))
}

/// Returns a body for an entry: without secrets, and with long texts and lists cut.
pub(crate) fn without_secrets(value: &Value) -> Value {
    pruned(value, MAX_DEPTH)
}

fn pruned(value: &Value, depth: usize) -> Value {
    match value {
        Value::String(text) if text.chars().count() > MAX_TEXT => {
            Value::String(text.chars().take(MAX_TEXT).chain(['…']).collect())
        }
        Value::Array(_) | Value::Object(_) if depth == 0 => Value::String("…".into()),
        Value::Array(all) => Value::Array(all.iter().take(MAX_LIST).map(|v| pruned(v, depth - 1)).collect()),
        Value::Object(fields) => {
            let kept = fields.iter().take(MAX_LIST).map(|(key, value)| {
                let lower = key.to_ascii_lowercase();
                let secret = SECRETS.iter().any(|word| lower.contains(word)) && !value.is_null();
                let value = if secret { Value::String("left out".into()) } else { pruned(value, depth - 1) };
                (key.chars().take(MAX_TEXT).collect(), value)
            });
            Value::Object(kept.collect::<Map<String, Value>>())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(who: &str, time: &str) -> AuditEntry {
        AuditEntry { who: Some(who.into()), time: time.parse().unwrap(), ..note("/x") }
    }

    fn filled(dir: &Path) -> Audit {
        let audit = Audit::open(Some(dir));
        for (who, time) in [
            ("anna", "2026-10-31T23:59:59Z"),
            ("bob", "2026-11-01T00:00:00Z"),
            ("anna", "2026-11-02T00:00:00Z"),
        ] {
            audit.record(entry(who, time)).unwrap();
        }
        audit
    }

    #[test]
    fn entries_are_chained_over_months_and_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let audit = filled(dir.path());
        assert_eq!(names(&dir.path().join(DIRECTORY)).unwrap(), ["2026-10.jsonl", "2026-11.jsonl"]);
        drop(audit);
        let audit = Audit::open(Some(dir.path()));
        audit.record(entry("carl", "2026-12-01T00:00:00Z")).unwrap();
        // The clock was set back.
        audit.record(entry("dora", "2026-11-01T00:00:00Z")).unwrap();
        let found = audit.verify().unwrap();
        assert_eq!((found.files, found.entries, found.problem, found.continued), (3, 5, None, false));
        audit.sync();
        let since = Some("2026-11-01T12:00:00Z".parse().unwrap());
        let list = |since, who, limit| -> Vec<String> {
            audit.list(since, who, limit).unwrap().into_iter().filter_map(|e| e.who).collect()
        };
        assert_eq!(list(since, None, 10), ["anna", "carl"]);
        assert_eq!(list(None, Some("anna"), 10), ["anna", "anna"]);
        assert_eq!(list(None, None, 2), ["carl", "dora"]);
        fs::remove_file(dir.path().join(DIRECTORY).join("2026-10.jsonl")).unwrap();
        let found = audit.verify().unwrap();
        assert_eq!((found.entries, found.problem, found.continued), (4, None, true));
    }

    #[test]
    fn a_changed_a_removed_and_an_added_line_are_noticed() {
        let change: [fn(&str) -> String; 4] = [
            |text| text.replacen("bob", "eve", 1),
            |text| text.lines().skip(1).map(|line| format!("{line}\n")).collect(),
            |text| text.lines().take(1).map(|line| format!("{line}\n")).collect(),
            |text| format!("{text}{{}}\n"),
        ];
        for change in change {
            let dir = tempfile::tempdir().unwrap();
            let audit = filled(dir.path());
            let path = dir.path().join(DIRECTORY).join("2026-11.jsonl");
            let text = fs::read_to_string(&path).unwrap();
            let changed = change(&text);
            assert_ne!(changed, text);
            fs::write(&path, changed).unwrap();
            assert!(audit.verify().unwrap().problem.is_some());
        }
    }

    #[test]
    fn a_torn_line_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        drop(filled(dir.path()));
        let path = dir.path().join(DIRECTORY).join("2026-11.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\"time\":")).unwrap();
        let audit = Audit::open(Some(dir.path()));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        audit.record(entry("anna", "2026-11-03T00:00:00Z")).unwrap();
        assert_eq!(audit.verify().unwrap().problem, None);
    }

    #[test]
    fn an_audit_that_cannot_be_written_says_so_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join(DIRECTORY);
        fs::write(&place, "in the way").unwrap();
        let audit = Audit::open(Some(dir.path()));
        assert!(audit.problem().is_some() && audit.ready().is_err());
        fs::remove_file(&place).unwrap();
        audit.ready().unwrap();
        assert_eq!(audit.problem(), None);
        audit.record(entry("anna", "2026-11-03T00:00:00Z")).unwrap();
        assert_eq!(audit.verify().unwrap().problem, None);
        assert!(Audit::open(None).ready().is_ok());
    }

    #[test]
    fn secrets_are_left_out_wherever_they_are() {
        let body = json!({
            "name": "anna", "password": "p1", "mutual_secret": "p2", "Token": ["p3"], "no": null,
            "more": [{"link": "p4", "long": "x".repeat(1000)}], "deep": [[[[[[["p5"]]]]]]],
        });
        let text = without_secrets(&body).to_string();
        assert!(text.contains("anna") && text.len() < 700, "{text}");
        for secret in ["p1", "p2", "p3", "p4", "p5"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
