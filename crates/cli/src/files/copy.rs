//! `hindcast files cp`: files of a moment, as files of this machine.
//!
//! A file system of a guest may be made to mislead. So a name never leaves its directory, no file
//! is written through a link, and links are made after everything else.

use super::place::Opened;
use crate::failure::Failure;
use hindcast_api::{FileEntry, FileKind, Size, name_bytes};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
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

/// How files are copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) recursive: bool,
    pub(crate) force: bool,
}

/// What was copied.
#[derive(Default)]
struct Copied {
    files: u64,
    bytes: u64,
    /// Entries that can't be copied: devices, pipes, sockets.
    left_out: Vec<String>,
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
    let progress = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut copied = Copied::default();
    match itself.kind {
        FileKind::Directory if !how.recursive => {
            return Err(Failure::usage(format!("{path} is a directory: --recursive copies it")));
        }
        FileKind::Directory => {
            copied.tree(from, (path.to_owned(), itself, entries), target, (how, &progress))?;
        }
        FileKind::File => copied.file(from, path, &itself, &target, (how, &progress))?,
        FileKind::Symlink => copied.links.push((target, target_of(&itself))),
        FileKind::Other => {
            return Err(Failure::usage(format!("{path}: only files, directories and links are copied")));
        }
    }
    copied.finish(how)?;
    progress.finish_and_clear();
    for path in &copied.left_out {
        eprintln!("hindcast: left out {}: no file, directory or link", super::printable(path));
    }
    let Copied { files, bytes, .. } = copied;
    from.done(format_args!("copied {files} files, {}", Size(bytes)))
}

impl Copied {
    /// Copies a directory and all below it.
    fn tree(
        &mut self,
        from: &Opened<'_>,
        root: (String, FileEntry, Vec<FileEntry>),
        target: PathBuf,
        (how, progress): (How, &ProgressBar),
    ) -> Result<(), Failure> {
        let (path, itself, entries) = root;
        make_directory(&target, how)?;
        self.directories.push((target.clone(), itself));
        let mut waiting = vec![(path, target, Some(entries))];
        while let Some((path, target, entries)) = waiting.pop() {
            let entries = match entries {
                Some(entries) => entries,
                None => from.list(&path)?.1,
            };
            for entry in entries {
                let (below, inside) = (
                    format!("{}/{}", path.trim_end_matches('/'), entry.name),
                    target.join(safe(&entry.name)?),
                );
                match entry.kind {
                    FileKind::Directory => {
                        make_directory(&inside, how)?;
                        self.directories.push((inside.clone(), entry));
                        waiting.push((below, inside, None));
                    }
                    FileKind::File => self.file(from, &below, &entry, &inside, (how, progress))?,
                    FileKind::Symlink => self.links.push((inside, target_of(&entry))),
                    FileKind::Other => self.left_out.push(below),
                }
            }
        }
        Ok(())
    }

    /// Copies one file. If that fails, nothing of it stays.
    fn file(
        &mut self,
        from: &Opened<'_>,
        path: &str,
        entry: &FileEntry,
        target: &Path,
        (how, progress): (How, &ProgressBar),
    ) -> Result<(), Failure> {
        if how.force {
            remove_file(target)?;
        }
        // It follows no link, and replaces nothing.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target);
        let file = made.map_err(|e| failed("create", target, &e))?;
        let mut out = progress.wrap_write(Sparse { file: &file, hole: 0 });
        let written = from.content(path, &mut out).and_then(|bytes| {
            // A hole at the end.
            let kept = file.set_len(bytes).and_then(|()| keep(&file, entry));
            kept.map(|()| bytes).map_err(|e| failed("complete", target, &e))
        });
        self.bytes += written.inspect_err(|_| drop(fs::remove_file(target)))?;
        self.files += 1;
        Ok(())
    }

    /// Makes the links, and gives the directories their bits and times, the deepest first.
    fn finish(&mut self, how: How) -> Result<(), Failure> {
        for (at, target) in std::mem::take(&mut self.links) {
            if how.force {
                remove_file(&at)?;
            }
            symlink(OsStr::from_bytes(&target), &at).map_err(|e| failed("create the link", &at, &e))?;
            self.files += 1;
        }
        for (at, entry) in std::mem::take(&mut self.directories).into_iter().rev() {
            let kept = File::open(&at).and_then(|directory| keep(&directory, &entry));
            kept.map_err(|e| failed("set the permissions of", &at, &e))?;
        }
        Ok(())
    }
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

fn target_of(entry: &FileEntry) -> Vec<u8> {
    name_bytes(entry.target.as_deref().unwrap_or_default())
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AlreadyExists => " (--force replaces files that exist)",
        _ => "",
    };
    Failure::Failed(format!("{what} {}: {error}{hint}", path.display()))
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

fn remove_file(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| failed("replace", path, &e)),
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
