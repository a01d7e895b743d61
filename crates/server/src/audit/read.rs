//! Reading the audit: pages of entries, the newest first, and the verification of the chain.
//!
//! Both read the files in pieces, so that their memory does not grow with the audit.

use super::chain::{MAX_LINE, NO_LINE, file_name, month, names, of_month};
use super::entry::is_gone;
use crate::identity::secret::Hash;
use hindcast_api::{AuditEntry, AuditVerification};
use jiff::Timestamp;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Number of bytes that are read at a time. Two lines fit in.
const PIECE: u64 = 2 * MAX_LINE as u64;
/// Maximum number of bytes of the lines of a page.
const MAX_PAGE: usize = 4 << 20;
/// Maximum number of problems that a verification lists.
const MAX_PROBLEMS: usize = 100;

/// The place of an entry: the name of a file, and the number of bytes before the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryPlace {
    file: String,
    offset: u64,
}

impl EntryPlace {
    /// Parses a place as entries have it, `2026-11:1234`.
    pub(crate) fn parse(text: &str) -> Option<EntryPlace> {
        let (month, offset) = text.split_once(':')?;
        Some(EntryPlace { file: of_month(month)?, offset: offset.parse().ok()? })
    }
}

/// Which entries a page has.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Time of the first entry.
    pub(crate) since: Option<Timestamp>,
    /// Name of the caller.
    pub(crate) who: Option<String>,
    /// Only entries before this place.
    pub(crate) before: Option<EntryPlace>,
    /// Maximum number of entries.
    pub(crate) limit: usize,
}

impl Wanted {
    fn has(&self, entry: &AuditEntry) -> bool {
        self.since.is_none_or(|since| entry.time >= since)
            && self.who.as_deref().is_none_or(|who| entry.who.as_deref() == Some(who))
    }
}

/// Returns the newest entries that are wanted, the oldest of them first. A page with fewer entries
/// than the limit may have others before it.
pub(super) fn page(dir: &Path, wanted: &Wanted) -> io::Result<Vec<AuditEntry>> {
    let first = wanted.since.map(file_name).unwrap_or_default();
    let last = wanted.before.as_ref();
    let (mut found, mut bytes) = (Vec::new(), 0);
    for name in names(dir)?.into_iter().rev() {
        if name < first || last.is_some_and(|last| name > last.file) {
            continue;
        }
        let mut file = File::open(dir.join(&name))?;
        let length = file.metadata()?.len();
        let mut end = last.filter(|last| last.file == name).map_or(length, |last| last.offset.min(length));
        while end > 0 {
            let (start, piece) = piece_before(&mut file, end)?;
            end = start;
            let mut after = start + piece.len() as u64;
            for line in piece.split_inclusive(|b| *b == b'\n').rev() {
                after -= line.len() as u64;
                // A verification reports lines that are no entries.
                let Ok(entry) = serde_json::from_slice::<AuditEntry>(line) else { continue };
                if !wanted.has(&entry) {
                    continue;
                }
                bytes += line.len();
                if found.len() >= wanted.limit || (bytes > MAX_PAGE && !found.is_empty()) {
                    found.reverse();
                    return Ok(found);
                }
                found.push(AuditEntry { at: Some(format!("{}:{after}", month(&name))), ..entry });
            }
        }
    }
    found.reverse();
    Ok(found)
}

/// Returns whole lines before `end`, and where they begin. Of a line that is too long it returns a
/// part, which is no entry.
fn piece_before(file: &mut File, end: u64) -> io::Result<(u64, Vec<u8>)> {
    let start = end.saturating_sub(PIECE);
    file.seek(SeekFrom::Start(start))?;
    let mut piece = Vec::new();
    file.take(end - start).read_to_end(&mut piece)?;
    if start == 0 {
        return Ok((0, piece));
    }
    let last = piece.len().saturating_sub(1);
    match piece[..last].iter().position(|b| *b == b'\n') {
        Some(at) => Ok((start + at as u64 + 1, piece.split_off(at + 1))),
        None => Ok((start, piece)),
    }
}

/// Verifies the chain of these files, up to these lengths. `head` is the hash of the last line, if
/// it is known.
pub(super) fn verify(
    dir: &Path,
    files: Vec<(String, u64)>,
    head: Option<Hash>,
) -> io::Result<AuditVerification> {
    let mut verifier = Verifier { result: nothing(), last: Ending::None, before: None };
    for (name, length) in files {
        verifier.result.files += 1;
        let mut file = BufReader::new(File::open(dir.join(&name))?.take(length));
        let mut number = 0;
        while let Some(line) = next_line(&mut file)? {
            number += 1;
            verifier.see(&name, number, line.as_deref());
        }
        verifier.before = Some(name);
    }
    let Verifier { mut result, last, .. } = verifier;
    let last = match last {
        Ending::Line(hash) => Some(hash),
        Ending::None => Some(NO_LINE),
        Ending::Unknown => None,
    };
    if head.is_some_and(|head| last != Some(head)) {
        add(&mut result, "the last lines were changed or removed since the server started".into());
    }
    Ok(result)
}

/// Returns the result for an audit without entries.
pub(super) fn nothing() -> AuditVerification {
    let head = NO_LINE.text();
    AuditVerification { files: 0, entries: 0, continued: false, head, problems: Vec::new(), unlisted: 0 }
}

fn add(result: &mut AuditVerification, problem: String) {
    match result.problems.len() < MAX_PROBLEMS {
        true => result.problems.push(problem),
        false => result.unlisted += 1,
    }
}

/// Reads the next line. Of a line that is too long it returns `Some(None)`.
fn next_line(file: &mut impl BufRead) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut line = Vec::new();
    let mut is_long = false;
    loop {
        let read = file.by_ref().take(PIECE).read_until(b'\n', &mut line)?;
        let ended = line.last() == Some(&b'\n');
        if read == 0 && line.is_empty() && !is_long {
            return Ok(None);
        }
        if read == 0 || ended {
            line.pop_if(|byte| *byte == b'\n');
            return Ok(Some((!is_long).then_some(line)));
        }
        if read as u64 == PIECE {
            is_long = true;
            line.clear();
        }
    }
}

/// How the lines so far end.
#[derive(Clone, Copy)]
enum Ending {
    /// There is no line.
    None,
    Line(Hash),
    /// The last line is no entry, so its content before a change is unknown.
    Unknown,
}

struct Verifier {
    result: AuditVerification,
    last: Ending,
    /// The file before the current one.
    before: Option<String>,
}

impl Verifier {
    /// Verifies a line. `None`: it is too long for an entry.
    fn see(&mut self, name: &str, number: u64, line: Option<&[u8]>) {
        let place = format!("{name}, line {number}");
        let entry = line.and_then(|line| serde_json::from_slice::<AuditEntry>(line).ok());
        let known = entry.and_then(|entry| Some((Hash::parse(&entry.prev)?, entry))).zip(line);
        let Some(((prev, entry), line)) = known else {
            add(&mut self.result, format!("{place}: this is no entry"));
            self.last = Ending::Unknown;
            return;
        };
        match (self.last, &self.before) {
            (Ending::Line(last), Some(before)) if number == 1 && prev != last => add(
                &mut self.result,
                format!(
                    "{name} does not continue {before}: lines or files between them are missing or changed"
                ),
            ),
            (Ending::Line(last), _) if prev != last => add(
                &mut self.result,
                format!("{place}: the line before it was changed or removed, or this line was added"),
            ),
            (Ending::None, _) => self.result.continued = prev != NO_LINE,
            _ => {}
        }
        if is_gone(&entry) {
            add(&mut self.result, format!("{place}: the server noticed that {}", entry.subject));
        }
        self.result.entries += 1;
        let hash = Hash::of(line);
        (self.last, self.result.head) = (Ending::Line(hash), hash.text());
    }
}
