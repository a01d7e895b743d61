//! A stream's file before it is whole: `FILE.part`, so that nobody takes a part for the whole, and a later try goes on with it.

use crate::failure::Failure;
use hindcast_engine::ErrorKind;
use hindcast_engine::stream::{StreamFile, StreamPart};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// One process at a time has it.
pub(crate) struct Unfinished {
    whole: PathBuf,
    path: PathBuf,
    file: File,
    known: Option<StreamPart>,
}

impl Unfinished {
    /// What an earlier try has left of the file `whole`, or a new file.
    pub(crate) fn open(whole: &Path) -> Result<Unfinished, Failure> {
        if whole.exists() {
            return Err(Failure::Failed(format!("write {}: it exists", whole.display())));
        }
        let mut path = whole.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let failed = |why: &dyn std::fmt::Display| Failure::Failed(format!("open {}: {why}", path.display()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(|e| failed(&e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(failed(&"another export is writing it")),
            Err(TryLockError::Error(e)) => return Err(failed(&e)),
        }
        let known = StreamPart::read(&mut file).map_err(|e| useless(&path, &e))?;
        Ok(Unfinished { whole: whole.to_owned(), path, file, known })
    }

    /// Has `fetch` write a stream that starts at the byte of the volume that it gets: what is missing of the one that starts at
    /// `start`. Makes the file durable and gives it its name. Returns the bytes of the whole stream.
    pub(crate) fn complete(
        self,
        start: u64,
        fetch: impl FnOnce(u64, &mut dyn Write) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let Unfinished { whole, path, mut file, known } = self;
        let failed =
            |why: &dyn std::fmt::Display| Failure::Failed(format!("write {}: {why}", path.display()));
        if known.as_ref().is_some_and(|known| known.header().start != start) {
            return Err(useless(&path, &"it starts at another byte"));
        }
        let right = known.as_ref().map_or(0, StreamPart::bytes);
        let begin = known.as_ref().map_or(start, StreamPart::position);
        let cut = file.set_len(right).and_then(|()| file.seek(SeekFrom::Start(right)));
        cut.map_err(|e| failed(&e))?;
        let mut out = Watched::new(StreamFile::new(&file, known));
        let fetched = fetch(begin, &mut out);
        out.bar.finish_and_clear();
        let fetched = match out.refused {
            Some(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::Invalid) => {
                return Err(useless(&path, &e));
            }
            Some(e) => Err(failed(&e)),
            None => fetched,
        };
        let written = fetched.and_then(|()| out.file.finish().map_err(|e| failed(&e)));
        let (_, written) = written.map_err(|failure| left(failure, &path, &file))?;
        file.sync_all().map_err(|e| failed(&e))?;
        std::fs::rename(&path, &whole).map_err(|e| failed(&e))?;
        let folder = whole.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| failed(&e))?;
        Ok(written)
    }
}

fn useless(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("go on with {}: {why}; remove it, or name another file", path.display()))
}

/// The failure, and what can be done with what is there.
fn left(failure: Failure, path: &Path, file: &File) -> Failure {
    if file.metadata().is_ok_and(|m| m.len() == 0) {
        let _ = std::fs::remove_file(path);
        return failure;
    }
    let hint = |text| format!("{text}; the same command goes on with {}", path.display());
    match failure {
        Failure::Failed(text) => Failure::Failed(hint(text)),
        Failure::Unreachable(text) => Failure::Unreachable(hint(text)),
        other => other,
    }
}

/// Shows how far the stream has come, on a terminal, and keeps what was wrong with it.
struct Watched<'a> {
    file: StreamFile<&'a File>,
    refused: Option<hindcast_engine::Error>,
    bar: ProgressBar,
}

impl<'a> Watched<'a> {
    fn new(file: StreamFile<&'a File>) -> Watched<'a> {
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
