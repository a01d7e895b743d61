//! What every file system of a reader can do.

use crate::failure::Result;
use hindcast_api::{FileEntry, FileKind, name_text};

/// One page of a directory: its entries, and whether it has more after them.
pub(crate) type Entries = (Vec<FileEntry>, bool);

/// A function that takes content, piece by piece.
pub(crate) type Take<'t> = &'t mut dyn FnMut(&[u8]) -> Result<()>;

/// A part of a file, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The bounds of a page of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// Name after which the page begins.
    pub(crate) after: Option<Vec<u8>>,
    /// Largest number of entries.
    pub(crate) limit: usize,
}

/// A file system, read-only. Paths are the bytes of names between slashes, from the root.
pub(crate) trait FileSystem {
    /// Name of the format, as in `hindcast_api::Partition::content`.
    fn name(&self) -> &'static str;

    /// Label, if it has one.
    fn label(&self) -> Option<String>;

    /// Returns the entry at a path. Links are followed, as long as they lead somewhere.
    fn entry(&self, path: &[u8]) -> Result<FileEntry>;

    /// Returns a page of the directory at a path. Links in the directory are not followed.
    fn list(&self, path: &[u8], bounds: &Bounds) -> Result<Entries>;

    /// Passes the content of a file in a range to `take`, in pieces.
    fn read(&self, path: &[u8], part: Part, take: Take<'_>) -> Result<()>;
}

/// Returns the entry of a name whose file can't be described.
pub(crate) fn unknown(name: &[u8]) -> FileEntry {
    FileEntry {
        name: name_text(name),
        kind: FileKind::Other,
        size: 0,
        mode: None,
        uid: None,
        gid: None,
        modified: None,
        target: None,
        id: None,
    }
}

/// Size of a buffer for content, in bytes.
pub(crate) const PIECE: usize = 256 << 10;

/// Returns the last name of a path.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    parts(path).last().unwrap_or(b"/")
}

/// Returns the names of a path. Empty ones and `.` are left out.
pub(crate) fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// Reads a range of a file through a function that reads at its position, and passes it on.
pub(crate) fn pass_on(
    length: u64,
    mut next: impl FnMut(&mut [u8]) -> Result<usize>,
    take: Take<'_>,
) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut left = length;
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut filled = 0;
        while filled < wanted {
            match next(&mut buffer[filled..wanted])? {
                0 => break,
                read => filled += read,
            }
        }
        take(&buffer[..filled])?;
        if filled < wanted {
            break;
        }
        left -= filled as u64;
    }
    Ok(())
}
