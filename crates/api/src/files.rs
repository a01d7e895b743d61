//! Requests and responses about the files in a view, and names of files as text.

use crate::client::{Client, ClientError, segment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io::Write;
use utoipa::ToSchema;

/// Largest number of entries in one page of a directory, and the default.
pub const MAX_FILES_PAGE: u64 = 1000;

/// First character that stands for a byte of a name that is not UTF-8. The character of byte `b`
/// is this plus `b`, so the range is U+EF80 to U+EFFF, in a private-use area.
const BYTE: u32 = 0xEF00;

/// Returns a name of a file as text.
///
/// File systems of Unix keep names as bytes. A byte that is not part of UTF-8 becomes the character
/// U+EF00 plus that byte. So do the bytes of those characters themselves, if a name has them. No
/// two names have one text, and [`name_bytes`] returns the name.
pub fn name_text(name: &[u8]) -> String {
    let byte = |b: &u8| char::from_u32(BYTE + u32::from(*b)).unwrap_or(char::REPLACEMENT_CHARACTER);
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if stands_for(c).is_some() {
                text.extend(c.encode_utf8(&mut [0; 4]).as_bytes().iter().map(byte));
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(byte));
    }
    text
}

/// Returns the name that a text of [`name_text`] means.
pub fn name_bytes(text: &str) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len());
    for c in text.chars() {
        match stands_for(c) {
            Some(byte) => name.push(byte),
            None => name.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    name
}

/// Returns the byte for which a character stands, if it stands for one.
fn stands_for(c: char) -> Option<u8> {
    u32::from(c).checked_sub(BYTE).and_then(|b| u8::try_from(b).ok()).filter(|b| *b >= 0x80)
}

/// A part of a disk that can have a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Partition {
    /// Number in the partition table. 0: the whole disk, which has no partition table.
    pub number: u32,
    /// Name in the partition table. Absent if it has none.
    pub name: Option<String>,
    /// Offset on the disk, in bytes.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// What it has: `ext4`, `fat32`, `ntfs`, `xfs`, `lvm` and others. Absent: nothing known.
    pub content: Option<String>,
    /// Label of the file system. Absent if it has none.
    pub label: Option<String>,
    /// Whether files can be listed and read.
    pub readable: bool,
    /// Why files can't be read. Absent if they can.
    pub problem: Option<String>,
}

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A file with content.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe, a socket, or a kind that this client does not know.
    #[serde(other)]
    Other,
}

/// A file, a directory or another entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Name in its directory. A byte `b` that is not UTF-8 is the character U+EF00 + `b`.
    pub name: String,
    /// Kind.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits of Unix. Absent for file systems without.
    pub mode: Option<u32>,
    /// Number of the user who owns it. Absent for file systems without.
    pub uid: Option<u32>,
    /// Number of the group that owns it. Absent for file systems without.
    pub gid: Option<u32>,
    /// Time of the last change of its content. FAT stores local times without their zone: they are
    /// taken as UTC.
    pub modified: Option<Timestamp>,
    /// Target of a symbolic link. Absent if it can't be read.
    pub target: Option<String>,
    /// Number of the file in its file system. Absent for file systems without. Entries with one
    /// number are one file.
    pub id: Option<u64>,
}

/// A directory, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// Number of the partition.
    pub partition: u32,
    /// The entry at the path. Links are followed.
    pub itself: FileEntry,
    /// Entries of the directory, by the bytes of their names. Empty if the path is no directory.
    pub entries: Vec<FileEntry>,
    /// Name after which the next page begins. Absent on the last page.
    pub next: Option<String>,
}

/// A place in a view: a partition, and a path in its file system.
#[derive(Debug, Clone, Copy)]
pub struct FilePlace<'a> {
    /// Identity of the view.
    pub view: &'a str,
    /// Number of the partition. `None`: the only one that can be read.
    pub partition: Option<u32>,
    /// Path from the root of the file system.
    pub path: &'a str,
}

impl FilePlace<'_> {
    /// Returns the query that names the place.
    fn query(&self) -> String {
        let partition = self.partition.map(|number| format!("&partition={number}")).unwrap_or_default();
        format!("?path={}{partition}", segment(self.path))
    }
}

impl Client {
    /// Returns the partitions in a view.
    pub fn partitions(&self, view: &str) -> Result<Vec<Partition>, ClientError> {
        self.get(&format!("/views/{}/partitions", segment(view)))
    }

    /// Returns the entry at a place, and the first page of its directory, or the page after a name.
    pub fn files(&self, place: &FilePlace<'_>, after: Option<&str>) -> Result<FileList, ClientError> {
        let after = after.map(|name| format!("&after={}", segment(name))).unwrap_or_default();
        self.get(&format!("/views/{}/files{}{after}", segment(place.view), place.query()))
    }

    /// Writes the content of a file to `out`, from an offset. Returns its number of bytes.
    pub fn file(&self, place: &FilePlace<'_>, offset: u64, out: &mut dyn Write) -> Result<u64, ClientError> {
        let path = format!("/views/{}/file{}&offset={offset}", segment(place.view), place.query());
        self.download(&path, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_text_and_comes_back() {
        let names: [&[u8]; 6] =
            [b"plain", "käse \u{1f9c0}".as_bytes(), b"caf\xe9", b"\xff\xfe\x80", "\u{ef80}".as_bytes(), b""];
        for name in names {
            assert_eq!(name_bytes(&name_text(name)), name, "{name:?}");
        }
        assert_eq!(name_text(b"caf\xe9"), "caf\u{efe9}");
        assert_ne!(name_text(b"\x80"), name_text("\u{ef80}".as_bytes()));
        // A text that no name has is a name all the same.
        assert_eq!(name_bytes("\u{ef41}"), "\u{ef41}".as_bytes());
    }
}
