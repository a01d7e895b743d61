//! The files of the audit: their names, and the line at which the chain ends.

use super::entry::{gone, note};
use crate::identity::secret::Hash;
use hindcast_api::AuditEntry;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// What the first line has as the hash of the line before it.
pub(super) const NO_LINE: Hash = Hash([0; 32]);
const SUFFIX: &str = ".jsonl";
/// Maximum length of a line, in bytes. It limits what a look at the last line reads.
pub(super) const MAX_LINE: usize = 64 << 10;

/// The end of the chain at the last sync. The data directory has it in a file outside of the
/// directory of the audit, so that the loss of the audit's newest file is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    /// Name of the newest file.
    file: String,
    /// Length of that file in bytes.
    length: u64,
    /// Hash of its last line.
    hash: Hash,
}

/// The end of the chain, to which entries are appended.
pub(super) struct Chain {
    /// The file of the current month, its name, and its length.
    current: Option<(File, String, u64)>,
    /// Hash of the last line.
    pub(super) head: Hash,
    /// Whether entries were written since the last sync.
    unsynced: bool,
}

impl Chain {
    /// Makes a chain that has no lines.
    pub(super) fn empty() -> Chain {
        Chain { current: None, head: NO_LINE, unsynced: false }
    }

    /// Opens the chain in the files. If the line at `known`, the end at an earlier time, is gone,
    /// the first new line tells that.
    pub(super) fn open(dir: &Path, known: Option<&Head>) -> io::Result<Chain> {
        try_to_write(dir)?;
        let lost = known.map_or(Ok(None), |known| loss(dir, known))?;
        let mut chain = Chain { head: last_hash(dir)?, ..Chain::empty() };
        if let Some(why) = lost {
            tracing::error!(why, "lines of the audit are gone");
            chain.append(dir, gone(&why))?;
        }
        Ok(chain)
    }

    /// Opens the files again after a failure, and appends an entry that tells so. `known` is the
    /// end of the chain that is known.
    pub(super) fn reopen(&mut self, dir: &Path, known: Option<&Head>) -> io::Result<()> {
        let mut chain = Chain::open(dir, known)?;
        chain.append(dir, note("the audit can be written again"))?;
        *self = chain;
        Ok(())
    }

    /// Appends an entry. The value of its `prev` is replaced.
    pub(super) fn append(&mut self, dir: &Path, mut entry: AuditEntry) -> io::Result<()> {
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

    /// Returns the end of the chain. `None`: this process has written no line.
    pub(super) fn end(&self) -> Option<Head> {
        // A file whose first line could not be written is no end.
        let (_, file, length) = self.current.as_ref().filter(|(_, _, length)| *length > 0)?;
        Some(Head { file: file.clone(), length: *length, hash: self.head })
    }

    /// Returns the file with the lines that are not synced yet, and the end of the chain. They then
    /// count as synced.
    pub(super) fn take_unsynced(&mut self) -> Option<io::Result<(File, Head)>> {
        let end = self.end().filter(|_| self.unsynced)?;
        let (file, _, _) = self.current.as_ref()?;
        let file = file.try_clone();
        self.unsynced = false;
        Some(file.map(|file| (file, end)))
    }

    /// Makes the last lines count as not synced.
    pub(super) fn sync_failed(&mut self) {
        self.unsynced = true;
    }
}

/// Returns what is gone of the lines up to `known`. `None`: the line at the end is there.
fn loss(dir: &Path, known: &Head) -> io::Result<Option<String>> {
    let Head { file: name, length, hash } = known;
    if !is_name(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the end of the audit names no file of it"));
    }
    let mut file = match File::open(dir.join(name)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(format!("{name} is missing"))),
        Err(e) => return Err(e),
    };
    let now = file.metadata()?.len();
    if now < *length {
        return Ok(Some(format!("{name} has {now} bytes, and had {length}")));
    }
    let (tail, _) = tail(&mut file, *length)?;
    let last = tail.strip_suffix(b"\n").map(|lines| lines.rsplit(|b| *b == b'\n').next().unwrap_or(lines));
    match last.map(Hash::of) == Some(*hash) {
        true => Ok(None),
        false => Ok(Some(format!("the line that ends at byte {length} of {name} is another one"))),
    }
}

/// Returns the bytes of a file before `end` that hold its last line, and where they begin.
fn tail(file: &mut File, end: u64) -> io::Result<(Vec<u8>, u64)> {
    let start = end.saturating_sub(2 * MAX_LINE as u64);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(end - start).read_to_end(&mut tail)?;
    Ok((tail, start))
}

/// Returns the hash of the last line of all files. It cuts what follows that line: a crash
/// interrupted the line, and the response to its request was never sent.
fn last_hash(dir: &Path) -> io::Result<Hash> {
    for name in names(dir)?.into_iter().rev() {
        let mut file = OpenOptions::new().read(true).write(true).open(dir.join(&name))?;
        let length = file.metadata()?.len();
        let whole = end_of_lines(&mut file, length)?;
        if whole < length {
            let bytes = length - whole;
            tracing::warn!(file = name, bytes, "the audit ends with an incomplete line; it is cut");
            file.set_len(whole)?;
        }
        if whole > 0 {
            let (tail, _) = tail(&mut file, whole - 1)?;
            let last = tail.rsplit(|b| *b == b'\n').next().unwrap_or_default();
            return Ok(Hash::of(last));
        }
    }
    Ok(NO_LINE)
}

/// Returns the end of the last whole line of a file. What follows it may be longer than any line: a
/// file system can put zeros there after a power loss.
fn end_of_lines(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    while end > 0 {
        let (tail, start) = tail(file, end)?;
        if let Some(at) = tail.iter().rposition(|b| *b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Returns the name of the file for a time. Names sort by time.
pub(super) fn file_name(time: Timestamp) -> String {
    format!("{}{SUFFIX}", time.to_zoned(TimeZone::UTC).strftime("%Y-%m"))
}

/// Returns the month of a file, as places of entries have it.
pub(super) fn month(name: &str) -> &str {
    name.strip_suffix(SUFFIX).unwrap_or(name)
}

/// Returns the name of the file of a month. `None`: the text is no month.
pub(super) fn of_month(month: &str) -> Option<String> {
    let name = format!("{month}{SUFFIX}");
    is_name(&name).then_some(name)
}

/// Returns whether a file of the audit can have this name.
fn is_name(name: &str) -> bool {
    name.len() == "2026-01".len() + SUFFIX.len()
        && name.ends_with(SUFFIX)
        && !name.contains(['/', '\0'])
        && !name.starts_with('.')
}

/// Returns the names of all files, the oldest first.
pub(super) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_name(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the names and lengths of all files, the oldest first.
pub(super) fn lengths(dir: &Path) -> io::Result<Vec<(String, u64)>> {
    let with_length = |name: String| Ok((name.clone(), fs::metadata(dir.join(name))?.len()));
    names(dir)?.into_iter().map(with_length).collect()
}

/// Makes the directory if it does not exist, and a file in it for a moment. So a directory that
/// refuses writes is noticed before the first change.
fn try_to_write(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let probe = dir.join("probe");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&probe)?;
    fs::remove_file(probe)
}
