//! `hindcast files cp`: files of a moment, as files of this machine.
//!
//! A file system of a guest may be made to mislead. So a name never leaves its directory, no file
//! is written through a link, and links are made after everything else.

use super::place::Opened;
use crate::failure::Failure;
use crate::output::harmless;
use hindcast_api::{FileEntry, FileKind, Size, name_bytes};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Permission bits that a copy keeps. It does not run as another user.
const KEPT: u32 = 0o1777;

/// Zeros of this length are a hole, in bytes.
const BLOCK: usize = 64 << 10;

/// Longest path that is walked, in bytes, as the kernel has it (PATH_MAX).
pub(super) const LONGEST_PATH: usize = 4096;

/// Largest number of directories that are walked. A damaged file system may have a circle.
pub(super) const MOST_DIRECTORIES: u64 = 10_000_000;

/// How files are copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) recursive: bool,
    pub(crate) force: bool,
}

/// A directory that is to be copied.
struct Waiting {
    path: String,
    target: PathBuf,
    /// The directories above it, by their numbers, and its own.
    line: Vec<u64>,
    /// Its entries, if they are known.
    entries: Option<Vec<FileEntry>>,
}

/// A copy under way, and what came of it.
struct Copy<'c, 's> {
    from: &'c Opened<'s>,
    how: How,
    progress: ProgressBar,
    files: u64,
    bytes: u64,
    /// What was not copied, and why.
    failed: Vec<String>,
    /// Links to make: where, and their target.
    links: Vec<(PathBuf, Vec<u8>)>,
    /// Directories that get their bits and times when all is in them.
    directories: Vec<(PathBuf, FileEntry)>,
}

/// Copies a file, or a directory with all that is in it.
pub(crate) fn copy(from: &Opened<'_>, path: &str, to: &Path, how: How) -> Result<(), Failure> {
    let (itself, entries) = from.list(path)?;
    let target = match fs::metadata(to) {
        Ok(found) if found.is_dir() && itself.name != "/" => to.join(safe(&itself.name)?),
        _ => to.to_owned(),
    };
    let style = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec}");
    let progress =
        ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (failed, links, directories) = (Vec::new(), Vec::new(), Vec::new());
    let mut copy = Copy { from, how, progress, files: 0, bytes: 0, failed, links, directories };
    match itself.kind {
        FileKind::Directory if !how.recursive => {
            return Err(Failure::usage(format!("{path} is a directory: --recursive copies it")));
        }
        FileKind::Directory => {
            make_directory(&target, how)?;
            let line = itself.id.into_iter().collect();
            copy.directories.push((target.clone(), itself));
            copy.tree(Waiting { path: path.to_owned(), target, line, entries: Some(entries) });
        }
        FileKind::File => copy.file(path, &itself, &target)?,
        FileKind::Symlink => copy.links.push((target, target_of(&itself)?)),
        FileKind::Other => {
            return Err(Failure::usage(format!("{path}: only files, directories and links are copied")));
        }
    }
    copy.finish();
    copy.progress.finish_and_clear();
    let Copy { files, bytes, failed, .. } = copy;
    for failure in &failed {
        // With stderr closed the message is lost; the exit code remains.
        let _ = writeln!(io::stderr(), "hindcast: {}", harmless(failure));
    }
    let done = format!("copied {files} files, {}", Size(bytes));
    match failed.len() {
        0 => from.done(done),
        count => Err(Failure::Failed(format!("{done}; {count} could not be copied"))),
    }
}

impl Copy<'_, '_> {
    /// Copies a directory and all below it. What fails is noted, and the rest is copied.
    fn tree(&mut self, root: Waiting) {
        let mut waiting = vec![root];
        let mut directories = 0_u64;
        while let Some(Waiting { path, target, line, entries }) = waiting.pop() {
            directories += 1;
            if directories > MOST_DIRECTORIES {
                self.failed.push(format!("{path}: the directories have no end"));
                return;
            }
            let entries = match entries.map_or_else(|| self.from.list(&path).map(|(_, found)| found), Ok) {
                Ok(entries) => entries,
                Err(failure) => {
                    self.failed.push(format!("{path}: {failure}"));
                    continue;
                }
            };
            for entry in entries {
                let below = format!("{}/{}", path.trim_end_matches('/'), entry.name);
                let copied = safe(&entry.name).and_then(|name| {
                    self.entry(entry, &below, target.join(name), &line).map(|next| waiting.extend(next))
                });
                if let Err(failure) = copied {
                    self.failed.push(format!("{below}: {failure}"));
                }
            }
        }
    }

    /// Copies an entry of a directory. Returns what is to be copied below it.
    fn entry(
        &mut self,
        entry: FileEntry,
        path: &str,
        target: PathBuf,
        line: &[u64],
    ) -> Result<Option<Waiting>, Failure> {
        match entry.kind {
            FileKind::Directory => {
                let is_circle = entry.id.is_some_and(|id| line.contains(&id)) || path.len() > LONGEST_PATH;
                if is_circle {
                    return Err(Failure::Failed("the directories form a circle".into()));
                }
                make_directory(&target, self.how)?;
                let line = line.iter().copied().chain(entry.id).collect();
                self.directories.push((target.clone(), entry));
                return Ok(Some(Waiting { path: path.to_owned(), target, line, entries: None }));
            }
            FileKind::File => self.file(path, &entry, &target)?,
            FileKind::Symlink => self.links.push((target, target_of(&entry)?)),
            FileKind::Other => return Err(Failure::Failed("it is no file, directory or link".into())),
        }
        Ok(None)
    }

    /// Copies one file. It appears under its name when it is complete.
    fn file(&mut self, path: &str, entry: &FileEntry, target: &Path) -> Result<(), Failure> {
        if !self.how.force && target.symlink_metadata().is_ok() {
            return Err(exists(target));
        }
        let (file, part) = part_of(target)?;
        let mut out = self.progress.wrap_write(Sparse { file: &file, hole: 0 });
        let written = self.from.content(path, &mut out).and_then(|bytes| {
            // A hole at the end.
            let kept = file.set_len(bytes).and_then(|()| keep(&file, entry));
            kept.and_then(|()| self.publish(&part, target))
                .map(|()| bytes)
                .map_err(|e| failed("complete", target, &e))
        });
        self.bytes += written.inspect_err(|_| drop(fs::remove_file(&part)))?;
        self.files += 1;
        Ok(())
    }

    /// Gives a complete file its name. It replaces another one with --force only, and nothing
    /// through a link.
    fn publish(&self, part: &Path, target: &Path) -> io::Result<()> {
        let flags = if self.how.force { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match renameat_with(CWD, part, CWD, target, flags) {
            // A file system without that operation.
            Err(Errno::INVAL) if !self.how.force => {
                fs::hard_link(part, target)?;
                fs::remove_file(part)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Makes the links, and gives the directories their bits and times, the deepest first.
    fn finish(&mut self) {
        for (at, target) in std::mem::take(&mut self.links) {
            if self.how.force && at.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
                let _ = fs::remove_file(&at);
            }
            match symlink(OsStr::from_bytes(&target), &at) {
                Ok(()) => self.files += 1,
                Err(error) => self.failed.push(failed("create the link", &at, &error).to_string()),
            }
        }
        for (at, entry) in std::mem::take(&mut self.directories).into_iter().rev() {
            let kept = File::open(&at).and_then(|directory| keep(&directory, &entry));
            if let Err(error) = kept {
                self.failed.push(failed("set the permissions of", &at, &error).to_string());
            }
        }
    }
}

/// Creates a file beside a target, under a name that nobody has.
fn part_of(target: &Path) -> Result<(File, PathBuf), Failure> {
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    for attempt in 0..100 {
        let part = directory.join(format!(".hindcast-{}-{attempt}.part", std::process::id()));
        // It follows no link, and replaces nothing.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made.map_err(|e| failed("create a file for", target, &e))?, part)),
        }
    }
    Err(exists(directory))
}

/// A file that gets holes where zeros are written.
struct Sparse<'f> {
    file: &'f File,
    /// Number of zeros that were not written yet.
    hole: u64,
}

impl Write for Sparse<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(BLOCK)];
        if piece.iter().all(|b| *b == 0) {
            self.hole += piece.len() as u64;
            return Ok(piece.len());
        }
        if self.hole > 0 {
            self.file.seek(SeekFrom::Current(i64::try_from(self.hole).map_err(io::Error::other)?))?;
            self.hole = 0;
        }
        self.file.write(piece)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a name as one component of a path.
fn safe(name: &str) -> Result<PathBuf, Failure> {
    let bytes = name_bytes(name);
    let is_bad =
        matches!(bytes.as_slice(), b"" | b"." | b"..") || bytes.iter().any(|b| matches!(b, b'/' | 0));
    if is_bad {
        return Err(Failure::Failed(format!("a file has the impossible name {name:?}")));
    }
    Ok(PathBuf::from(OsStr::from_bytes(&bytes)))
}

fn target_of(entry: &FileEntry) -> Result<Vec<u8>, Failure> {
    let target = entry.target.as_deref().filter(|target| !target.is_empty());
    target.map(name_bytes).ok_or_else(|| Failure::Failed("the target of the link can't be read".into()))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::Failed(format!("{what} {}: {error}", path.display())),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::Failed(format!("{} exists: --force replaces files that exist", path.display()))
}

/// Makes a directory. One that exists is used with --force only, and never through a link.
fn make_directory(path: &Path, how: How) -> Result<(), Failure> {
    let made = DirBuilder::new().mode(0o700).create(path);
    let is_there = || how.force && fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_there() => Ok(()),
        made => made.map_err(|e| failed("create the directory", path, &e)),
    }
}

/// Gives a file the permission bits and the time that it had.
fn keep(file: &File, entry: &FileEntry) -> io::Result<()> {
    if let Some(mode) = entry.mode {
        file.set_permissions(Permissions::from_mode(mode & KEPT))?;
    }
    match entry.modified.and_then(system_time) {
        Some(time) => file.set_modified(time),
        None => Ok(()),
    }
}

fn system_time(time: Timestamp) -> Option<SystemTime> {
    let nanoseconds = time.as_nanosecond();
    let by = Duration::from_nanos_u128(nanoseconds.unsigned_abs());
    if nanoseconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(by)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        for bad in ["", ".", "..", "a/b", "/", "a\0"] {
            assert!(safe(bad).is_err(), "{bad:?}");
        }
        assert_eq!(safe("caf\u{efe9}").unwrap().as_os_str().as_bytes(), b"caf\xe9");
    }
}
