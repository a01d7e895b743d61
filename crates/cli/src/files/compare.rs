//! `hindcast files diff`: the files that differ between two moments.

use super::copy::{LONGEST_PATH, MOST_DIRECTORIES};
use super::place::Opened;
use crate::failure::Failure;
use crate::listing::{Cell, Column};
use hindcast_api::{FileEntry, FileKind};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::cmp::Ordering;

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Added,
    Removed,
    Changed,
}

/// A file that differs.
#[derive(Debug, Serialize)]
pub(crate) struct FileDifference {
    change: Change,
    /// Path below the directories that are compared.
    path: String,
    /// What differs, for a file that is on both sides.
    what: Vec<&'static str>,
    /// The file before. Absent if there was none.
    before: Option<FileEntry>,
    /// The file after. Absent if there is none.
    after: Option<FileEntry>,
}

pub(crate) const DIFFERENCES: &[Column<FileDifference>] = &[
    Column { name: "change", usual: true, cell: |d| Cell::text(word(d.change)) },
    Column { name: "file", usual: true, cell: |d| Cell::text(super::printable(&d.path)) },
    Column { name: "what", usual: true, cell: |d| Cell::text(what(d)) },
    Column { name: "size", usual: true, cell: |d| Cell::Size(size(d)) },
    Column { name: "modified", usual: true, cell: |d| Cell::Time(newest(d).and_then(|f| f.modified)) },
];

fn word(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Removed => "removed",
        Change::Changed => "changed",
    }
}

fn what(found: &FileDifference) -> String {
    if found.what.is_empty() { "-".into() } else { found.what.join(", ") }
}

fn newest(found: &FileDifference) -> Option<&FileEntry> {
    found.after.as_ref().or(found.before.as_ref())
}

fn size(found: &FileDifference) -> Option<u64> {
    newest(found).filter(|file| file.kind == FileKind::File).map(|file| file.size)
}

/// Compares two directories, or two files.
pub(crate) fn compare(
    (before, from): (&Opened<'_>, &str),
    (after, to): (&Opened<'_>, &str),
    content: bool,
) -> Result<Vec<FileDifference>, Failure> {
    let ((one, old), (other, new)) = (before.list(from)?, after.list(to)?);
    let sides = Sides { before, after, from, to, content };
    let mut found = Vec::new();
    if one.kind != FileKind::Directory || other.kind != FileKind::Directory {
        found.extend(sides.changed(String::new(), one, other)?);
        return Ok(found);
    }
    let mut waiting = vec![(String::new(), Some((old, new)))];
    let mut directories = 0_u64;
    while let Some((directory, entries)) = waiting.pop() {
        directories += 1;
        if directory.len() > LONGEST_PATH || directories > MOST_DIRECTORIES {
            return Err(Failure::Failed(format!("{directory}: the directories have no end")));
        }
        let (old, new) = match entries {
            Some(entries) => entries,
            None => (before.list(&below(from, &directory))?.1, after.list(&below(to, &directory))?.1),
        };
        sides.merge(&directory, (old, new), &mut found, &mut waiting)?;
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

type Waiting = Vec<(String, Option<(Vec<FileEntry>, Vec<FileEntry>)>)>;

fn below(root: &str, path: &str) -> String {
    format!("{}/{path}", root.trim_end_matches('/'))
}

/// The two sides of a comparison.
struct Sides<'a, 's> {
    before: &'a Opened<'s>,
    after: &'a Opened<'s>,
    from: &'a str,
    to: &'a str,
    content: bool,
}

impl Sides<'_, '_> {
    /// Compares the entries of a directory, which both sides have in the same order.
    fn merge(
        &self,
        directory: &str,
        (old, new): (Vec<FileEntry>, Vec<FileEntry>),
        found: &mut Vec<FileDifference>,
        waiting: &mut Waiting,
    ) -> Result<(), Failure> {
        let path = |entry: &FileEntry| match directory {
            "" => entry.name.clone(),
            directory => format!("{directory}/{}", entry.name),
        };
        let alone = |change, entry: FileEntry| {
            let path = path(&entry);
            let (before, after) =
                if change == Change::Removed { (Some(entry), None) } else { (None, Some(entry)) };
            FileDifference { change, path, what: Vec::new(), before, after }
        };
        let order = |one: &FileEntry, other: &FileEntry| {
            hindcast_api::name_bytes(&one.name).cmp(&hindcast_api::name_bytes(&other.name))
        };
        let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
        loop {
            let next = match (old.peek(), new.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(other)) => order(one, other),
            };
            match next {
                Ordering::Less => found.extend(old.next().map(|entry| alone(Change::Removed, entry))),
                Ordering::Greater => found.extend(new.next().map(|entry| alone(Change::Added, entry))),
                Ordering::Equal => {
                    let Some((one, other)) = old.next().zip(new.next()) else { return Ok(()) };
                    let path = path(&one);
                    if one.kind == FileKind::Directory && other.kind == FileKind::Directory {
                        waiting.push((path.clone(), None));
                    }
                    found.extend(self.changed(path, one, other)?);
                }
            }
        }
    }

    /// Returns the difference of a file that both sides have, if there is one. The time of a
    /// directory is that of its names, which are compared anyway.
    fn changed(
        &self,
        path: String,
        before: FileEntry,
        after: FileEntry,
    ) -> Result<Option<FileDifference>, Failure> {
        let is_directory = before.kind == FileKind::Directory;
        let mut what = Vec::new();
        let mut note = |differs: bool, name| {
            if differs {
                what.push(name);
            }
        };
        note(before.kind != after.kind, "kind");
        note(before.size != after.size && !is_directory, "size");
        note(before.modified != after.modified && !is_directory, "time");
        note(before.mode != after.mode, "mode");
        note((before.uid, before.gid) != (after.uid, after.gid), "owner");
        note(before.target != after.target, "target");
        let is_file = |file: &FileEntry| file.kind == FileKind::File;
        self.before.renew()?;
        self.after.renew()?;
        if self.content && is_file(&before) && is_file(&after) && before.size == after.size {
            let one = digest(self.before, &below(self.from, &path))?;
            note(one != digest(self.after, &below(self.to, &path))?, "content");
        }
        if what.is_empty() {
            return Ok(None);
        }
        let change = Change::Changed;
        Ok(Some(FileDifference { change, path, what, before: Some(before), after: Some(after) }))
    }
}

fn digest(of: &Opened<'_>, path: &str) -> Result<Vec<u8>, Failure> {
    let mut hasher = Hasher(Sha256::new());
    of.content(path.trim_end_matches('/'), &mut hasher)?;
    Ok(hasher.0.finalize().to_vec())
}

/// A hash that is written to.
struct Hasher(Sha256);

impl std::io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
