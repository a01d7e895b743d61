//! The file of a stream that is not whole yet: `FILE.part`. Because of its name no program takes a
//! part for the whole. A later run of the command continues it.

use crate::failure::Failure;
use hindcast_api::{ErrorBody, ErrorKind as Kind};
use hindcast_engine::stream::{StreamFile, StreamPart};
use hindcast_engine::{Error, ErrorKind};
use hindcast_server::error_body;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that receives a stream and is not complete. A lock keeps other processes from writing it.
pub(crate) struct Unfinished {
    whole: PathBuf,
    path: PathBuf,
    file: File,
    known: Option<StreamPart>,
}

impl Unfinished {
    /// Opens the part of the file `whole` that an earlier attempt has left, or creates a new one.
    pub(crate) fn open(whole: &Path) -> Result<Unfinished, Failure> {
        let mut path = whole.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let failed = |e| local("open", &path, e);
        loop {
            // A link that leads nowhere is a name, too.
            if whole.symlink_metadata().is_ok() {
                return Err(conflict(format!(
                    "write {}: the file exists; remove it, or name another file",
                    whole.display()
                )));
            }
            let mut options = OpenOptions::new();
            // A whole volume: its owner's alone, like the pool's files.
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(conflict(format!("open {}: another export is writing it", path.display())));
                }
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
            // The process that had the lock may have given the file its name meanwhile, or removed
            // it.
            if !is_at(&file, &path) {
                continue;
            }
            let known = StreamPart::read(&mut file).map_err(|e| match e.kind() {
                ErrorKind::Corrupt | ErrorKind::Unsupported => useless(&path, &e),
                _ => error_body(e).into(),
            })?;
            return Ok(Unfinished { whole: whole.to_owned(), path, file, known });
        }
    }

    /// Completes the stream that begins at byte `start` of the volume. `fetch` gets the byte at
    /// which the missing part begins, and writes that part. Makes the file durable and gives it its
    /// final name. Returns the number of bytes of the whole stream. If the new part does not fit,
    /// the existing one stays unchanged.
    pub(crate) fn complete(
        self,
        start: u64,
        fetch: impl FnOnce(u64, &mut dyn Write) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let Unfinished { whole, path, file, known } = self;
        if known.as_ref().is_some_and(|known| known.header().start != start) {
            return Err(useless(&path, &"its stream starts at another byte"));
        }
        let begin = known.as_ref().map_or(start, StreamPart::position);
        let behind = known.as_ref().map_or(0, StreamPart::bytes);
        let mut out = Watched::new(StreamFile::new(Tail { file: &file, cut_at: Some(behind) }, known));
        let fetched = fetch(begin, &mut out);
        out.bar.finish_and_clear();
        let fetched = match (out.refused, fetched) {
            (Some(e), _) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::Invalid) => {
                return Err(useless(&path, &e));
            }
            (Some(e), _) => Err(error_body(e).into()),
            (None, Err(Failure::Refused(body))) if begin != start && body.kind == Kind::Invalid => {
                return Err(useless(&path, &body));
            }
            (None, fetched) => fetched,
        };
        let written = fetched.and_then(|()| out.file.finish().map_err(|e| error_body(e).into()));
        let (_, written) = written.map_err(|failure| left(failure, &path, &file))?;
        if let Err(e) = file.sync_all() {
            // The cache may show what never reached the disk, and no later sync would tell.
            let _ = std::fs::remove_file(&path);
            return Err(local("sync", &path, e));
        }
        put_in_place(&path, &whole)?;
        Ok(written)
    }
}

/// Returns whether the open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |m: std::fs::Metadata| (m.dev(), m.ino());
    let (open, named) = (file.metadata().map(identity), path.metadata().map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Gives a file its final name, durably. Fails if a file of that name exists.
fn put_in_place(path: &Path, whole: &Path) -> Result<(), Failure> {
    match std::fs::hard_link(path, whole) {
        Ok(()) => std::fs::remove_file(path).map_err(|e| local("remove", path, e))?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists || whole.symlink_metadata().is_ok() => {
            let text = format!(
                "write {}: the file was created meanwhile; the stream is in {}",
                whole.display(),
                path.display()
            );
            return Err(conflict(text));
        }
        // Not every file system has links.
        Err(_) => std::fs::rename(path, whole).map_err(|e| local("rename", path, e))?,
    }
    let folder = whole.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| local("sync", folder, e))
}

fn conflict(message: String) -> Failure {
    ErrorBody { kind: Kind::Conflict, message }.into()
}

/// Makes a failure of this machine's file system.
fn local(verb: &str, path: &Path, error: io::Error) -> Failure {
    error_body(Error::io(format!("{verb} {}", path.display()), error)).into()
}

fn useless(path: &Path, why: &dyn Display) -> Failure {
    conflict(format!("continue {}: {why}; remove it, or name another file", path.display()))
}

/// Adds to a failure how the user can continue the incomplete file. Removes the file if it is
/// empty.
fn left(failure: Failure, path: &Path, file: &File) -> Failure {
    if file.metadata().is_ok_and(|m| m.len() == 0) {
        let _ = std::fs::remove_file(path);
        return failure;
    }
    let hint = |text| format!("{text}; the same command continues {}", path.display());
    match failure {
        Failure::Failed(text) => Failure::Failed(hint(text)),
        Failure::Unreachable(text) => Failure::Unreachable(hint(text)),
        Failure::Refused(body) => ErrorBody { message: hint(body.message), ..body }.into(),
        other => other,
    }
}

/// Writes at the end of a file. The first write removes everything after that end.
struct Tail<'a> {
    file: &'a File,
    cut_at: Option<u64>,
}

impl Write for Tail<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(at) = self.cut_at.take() {
            self.file.set_len(at)?;
            self.file.seek(SeekFrom::Start(at))?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Shows the progress of a stream on a terminal, and keeps the error of the file that receives it.
struct Watched<'a> {
    file: StreamFile<Tail<'a>>,
    refused: Option<Error>,
    bar: ProgressBar,
}

impl<'a> Watched<'a> {
    fn new(file: StreamFile<Tail<'a>>) -> Watched<'a> {
        // Draws on stderr, and only on a terminal.
        let bar = ProgressBar::new(0).with_message("exporting");
        if let Ok(style) =
            ProgressStyle::with_template("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}")
        {
            bar.set_style(style);
        }
        Watched { file, refused: None, bar }
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.file.push(bytes) {
            let text = error.to_string();
            self.refused = Some(error);
            return Err(io::Error::other(text));
        }
        if let Some(part) = self.file.part() {
            self.bar.set_length(part.header().size);
            self.bar.set_position(part.position());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
