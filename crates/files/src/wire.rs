//! Messages between the server and a reader, over a stream socket.
//!
//! A message is a kind (one byte), the length of its content (4 bytes, little endian), and the
//! content. The server sends a request and answers reads of the disk until the reader ends the
//! request. The server trusts no length that a reader sends.

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Largest content of a message, in bytes. The largest is a page of a directory.
pub(crate) const MAX_CONTENT: usize = 16 << 20;
/// Largest read of the disk, in bytes.
pub(crate) const MAX_READ: usize = 1 << 20;
/// Length of the head of a message, in bytes.
const HEAD: usize = 5;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the server: the size of the disk in bytes, as 8 bytes, little endian. It comes first.
    Disk,
    /// From the server: a [`Request`] as JSON.
    Request,
    /// From the server: the bytes that the reader asked for.
    Bytes,
    /// From the server: a read of the disk failed, and why.
    ReadFailed,
    /// From the reader: read the disk at an offset (8 bytes) for a length (4 bytes).
    Read,
    /// From the reader: a piece of a file's content.
    Piece,
    /// From the reader: the request is done. The content is its answer, as JSON.
    Answer,
    /// From the reader: the request failed. The content is the failure, as JSON.
    Failed,
}

const KINDS: [(Kind, u8); 8] = [
    (Kind::Disk, b'd'),
    (Kind::Request, b'q'),
    (Kind::Bytes, b'b'),
    (Kind::ReadFailed, b'x'),
    (Kind::Read, b'r'),
    (Kind::Piece, b'p'),
    (Kind::Answer, b'a'),
    (Kind::Failed, b'f'),
];

impl Kind {
    fn byte(self) -> u8 {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or(0, |(_, byte)| *byte)
    }

    fn of(byte: u8) -> Option<Kind> {
        KINDS.iter().find(|(_, b)| *b == byte).map(|(kind, _)| *kind)
    }
}

/// A path in the file system of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of the partition. `None`: the only one that can be read.
    pub partition: Option<u32>,
    /// Path, as `hindcast_api::name_text` writes names.
    pub path: String,
}

/// What a reader shall do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// List the partitions. The answer is a list of `hindcast_api::Partition`.
    Partitions,
    /// List a directory, or describe a file. The answer is a `hindcast_api::FileList`.
    List {
        /// The directory or file.
        place: Place,
        /// Name after which the page begins.
        after: Option<String>,
        /// Largest number of entries.
        limit: usize,
    },
    /// Describe a file whose content can be read. The answer is a `hindcast_api::FileEntry`.
    Describe {
        /// The file.
        place: Place,
    },
    /// Read a file. Its content comes in pieces. The answer is `null`.
    Read {
        /// The file.
        place: Place,
        /// Offset in the file at which the content begins, in bytes.
        offset: u64,
        /// Largest number of bytes.
        length: u64,
    },
}

/// Sends a message.
pub(crate) fn send(out: &mut impl Write, kind: Kind, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).ok().filter(|_| content.len() <= MAX_CONTENT);
    let length = length.ok_or_else(|| io::Error::other("the message is too long"))?;
    let mut head = [kind.byte(); HEAD];
    head[1..].copy_from_slice(&length.to_le_bytes());
    out.write_all(&head)?;
    out.write_all(content)
}

/// Receives a message. Returns `None` if the other side has ended the connection between two
/// messages.
pub(crate) fn receive(input: &mut impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut head = [0; HEAD];
    let mut have = 0;
    while have < HEAD {
        match input.read(&mut head[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let [kind, length @ ..] = head;
    let kind = Kind::of(kind).ok_or_else(|| io::Error::other("a message has an unknown kind"))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_CONTENT {
        return Err(io::Error::other("a message is too long"));
    }
    let mut content = vec![0; length];
    input.read_exact(&mut content)?;
    Ok(Some((kind, content)))
}

/// Returns the content of a [`Kind::Read`] message.
pub(crate) fn read_content(offset: u64, length: usize) -> [u8; 12] {
    let mut content = [0; 12];
    content[..8].copy_from_slice(&offset.to_le_bytes());
    content[8..].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    content
}

/// Returns the offset and length in the content of a [`Kind::Read`] message, or `None` if the
/// content is malformed or the length too large.
pub(crate) fn parse_read(content: &[u8]) -> Option<(u64, usize)> {
    let (offset, length) = content.split_first_chunk::<8>()?;
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    (length <= MAX_READ).then_some((u64::from_le_bytes(*offset), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_bad_ones_are_refused() {
        let mut bytes = Vec::new();
        for (kind, _) in KINDS {
            send(&mut bytes, kind, b"content").unwrap();
        }
        let mut input = bytes.as_slice();
        for (kind, _) in KINDS {
            assert_eq!(receive(&mut input).unwrap(), Some((kind, b"content".to_vec())));
        }
        assert_eq!(receive(&mut input).unwrap(), None);
        assert!(receive(&mut [b'd', 0].as_slice()).is_err(), "a cut head");
        assert!(receive(&mut [b'd', 4, 0, 0, 0, 1].as_slice()).is_err(), "a cut content");
        assert!(receive(&mut [b'?', 0, 0, 0, 0].as_slice()).is_err(), "an unknown kind");
        assert!(receive(&mut [b'd', 255, 255, 255, 255].as_slice()).is_err(), "too long");
    }

    #[test]
    fn reads_are_bounded() {
        assert_eq!(parse_read(&read_content(7, 512)), Some((7, 512)));
        assert_eq!(parse_read(&read_content(7, MAX_READ + 1)), None);
        assert_eq!(parse_read(&[0; 11]), None);
        assert_eq!(parse_read(&[0; 13]), None);
    }
}
