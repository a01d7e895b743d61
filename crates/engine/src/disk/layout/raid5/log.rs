//! The parity log. Before lines are written, their entry says what the blocks that are *not*
//! written have in common: their exclusive or, the *partial parity*. After a power loss the parity
//! of a line follows from it and from what reached the disks, also when a member is lost in the
//! same moment (Linux' md has the same in its partial parity log).
//!
//! The file `parity-NAME` of the data directory has two halves. Entries use them in turn. An entry
//! counts until the next one is written, and that happens after the lines of this one are durable.
//! So at most one entry is needed: the youngest that verifies. Lines whose parity is on a member
//! that is out are written without an entry. An empty entry comes before them, because they may be
//! lines of the entry that counts.
//!
//! | bytes of a half | field |
//! |---|---|
//! | 0..8 | magic `HCPARITY` |
//! | 8..12 | CRC32C of the bytes 12..64 |
//! | 12..16 | format version |
//! | 16..32 | UUID of the layout |
//! | 32..40 | sequence number: each entry has the next one |
//! | 40..44 | number of lines |
//! | 44..48 | bytes of the index |
//! | 48..52 | number of blocks behind the index |
//! | 52..56 | CRC-32/MEF of the index |
//! | 56..60 | CRC-32/MEF of the blocks |
//! | 60..64 | number of blocks that an entry can have; 0 in entries of earlier builds |
//! | 4096.. | the index: what follows, for each line |
//! | next multiple of 4096 | for each line its partial parity, if it has one, and its patched blocks |
//!
//! | bytes of a line in the index | field |
//! |---|---|
//! | 8 | number of the line |
//! | 2 | columns that are written, as bits |
//! | 2 | columns of which only a part is written (*patched*), as bits |
//! | 1 | 1 if the entry has a partial parity, 0 if all blocks of the line are written |
//! | 4 each | CRC32C of each block that is written |
//! | 4 | CRC32C of the parity |
//!
//! The entry has the new content of a patched block, because the other part of the block may be of
//! value.

use super::pending::{BlockContent, content_of};
use super::rows::BLOCK;
use crate::codec::{Reader, Writer, crc32c, outer_sum, outer_sum_of};
use crate::disk::{Dir, Disk, OpenMode, SyncPurpose};
use std::io;
use std::sync::Arc;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"HCPARITY";
const VERSION: u32 = 1;
/// Bytes of the head, before the index.
const HEAD: usize = 64;
/// Largest number of bytes of the index for each block that an entry writes: of a line with one.
const INDEX_OF_BLOCK: usize = 8 + 2 + 2 + 1 + 4 + 4;
/// Largest number of blocks of an entry.
pub(super) const MAX_ROOM: usize = 8192;
/// How the names of these files begin.
pub(crate) const FILE_PREFIX: &str = "parity-";

/// A line in an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedLine {
    pub(super) line: u64,
    /// The columns that are written, as bits.
    pub(super) written: u16,
    /// CRC32C of the blocks that are written, in the order of the columns.
    pub(super) sums: Vec<u32>,
    /// CRC32C of the parity.
    pub(super) parity_sum: u32,
    /// The partial parity, if there are blocks that are not written.
    pub(super) partial: Option<BlockContent>,
    /// Columns of which only a part is written, and their new blocks.
    pub(super) patched: Vec<(usize, BlockContent)>,
}

impl LoggedLine {
    /// Returns the columns that are written, and the CRC32C of their blocks.
    pub(super) fn columns(&self) -> impl Iterator<Item = (usize, u32)> {
        columns(self.written).zip(self.sums.iter().copied())
    }
}

/// Returns the columns of a set.
pub(super) fn columns(set: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |column| set & 1 << column != 0)
}

/// The log of a layout.
pub(super) struct ParityLog {
    disk: Arc<dyn Disk>,
    layout: Uuid,
    /// Sequence number of the youngest entry.
    sequence: u64,
    /// Whether the youngest entry has lines.
    has_lines: bool,
    /// Number of blocks that an entry can have, and that it can write.
    pub(super) room: usize,
}

fn file_name(name: &str) -> String {
    format!("{FILE_PREFIX}{name}")
}

/// Returns the bytes of the index of an entry that writes so many blocks, at most.
fn index_room(room: usize) -> usize {
    (room * INDEX_OF_BLOCK).next_multiple_of(BLOCK)
}

/// Returns the bytes of a half.
fn half(room: usize) -> u64 {
    (BLOCK + index_room(room) + room * BLOCK) as u64
}

/// Returns the number of blocks that an entry can have in a file of a size. A layout that grows
/// keeps its log. `None`: no log has this size.
fn room_of(len: u64) -> Option<usize> {
    let all: Vec<usize> = (1..=MAX_ROOM).collect();
    all.binary_search_by_key(&len, |room| 2 * half(*room)).ok().map(|n| all[n])
}

/// Makes the log of a new layout, durably. It has no entry.
pub(super) fn create(dir: &dyn Dir, name: &str, room: usize) -> io::Result<()> {
    let disk = dir.open(&file_name(name), OpenMode::Create)?;
    disk.set_len(0)?;
    disk.set_len(2 * half(room))?;
    disk.allocate(0, 2 * half(room))?;
    disk.sync(SyncPurpose::Layout)?;
    dir.sync(SyncPurpose::Layout)
}

/// Removes the log of a layout.
pub(super) fn remove(dir: &dyn Dir, name: &str) -> io::Result<()> {
    dir.remove(&file_name(name))
}

impl ParityLog {
    /// Opens the log of a layout. Returns the lines of the entry that counts, too.
    pub(super) fn open(
        dir: &dyn Dir,
        name: &str,
        layout: Uuid,
        mode: OpenMode,
    ) -> io::Result<(ParityLog, Vec<LoggedLine>)> {
        let file = file_name(name);
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("open {file}: {e}"));
        let disk = dir.open(&file, mode).map_err(failed)?;
        let room = room_of(disk.len()?).ok_or_else(|| {
            failed(io::Error::new(io::ErrorKind::InvalidData, "its size is not that of a parity log"))
        })?;
        let mut log = ParityLog { disk, layout, sequence: 0, has_lines: false, room };
        let mut lines = Vec::new();
        for number in 0..2 {
            if let Some((sequence, entry)) = log.read(number).map_err(failed)?
                && sequence > log.sequence
            {
                (log.sequence, lines) = (sequence, entry);
            }
        }
        log.has_lines = !lines.is_empty();
        Ok((log, lines))
    }

    /// Ends the entry that counts, durably. Its lines must be durable. This comes before lines are
    /// written without an entry.
    pub(super) fn end_entry(&mut self) -> io::Result<()> {
        if self.has_lines { self.append(&[]) } else { Ok(()) }
    }

    /// Reads the entry of a half. `None`: it has none that verifies.
    fn read(&self, number: u64) -> io::Result<Option<(u64, Vec<LoggedLine>)>> {
        let at = number * half(self.room);
        let mut head = [0; HEAD];
        self.disk.read_at(&mut head, at)?;
        let Some(head) = EntryHead::decode(&head).filter(|head| head.layout == self.layout) else {
            return Ok(None);
        };
        if head.room != 0 && head.room as usize != self.room {
            let text = "its size is not what it was, so an entry may be missing";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let (index, blocks) = (head.index as usize, head.blocks as usize);
        if index > index_room(self.room) || blocks > self.room {
            return Ok(None);
        }
        let mut content = vec![0; index.next_multiple_of(BLOCK) + blocks * BLOCK];
        self.disk.read_at(&mut content, at + BLOCK as u64)?;
        let (index, blocks) = (&content[..index], &content[index.next_multiple_of(BLOCK)..]);
        if outer_sum(index) != head.index_sum || outer_sum(blocks) != head.blocks_sum {
            return Ok(None);
        }
        Ok(decode_lines(index, blocks, head.lines).map(|lines| (head.sequence, lines)))
    }

    /// Writes an entry. When this returns, it survives a power loss, and the entry before it does
    /// not count any more.
    pub(super) fn append(&mut self, lines: &[LoggedLine]) -> io::Result<()> {
        let mut index = Writer::default();
        let mut blocks: Vec<&[u8]> = Vec::new();
        for line in lines {
            let patched = line.patched.iter().map(|(column, _)| 1u16 << column).sum();
            index.u64(line.line).u16(line.written).u16(patched).u8(line.partial.is_some().into());
            for sum in &line.sums {
                index.u32(*sum);
            }
            index.u32(line.parity_sum);
            let patched = line.patched.iter().map(|(_, content)| content);
            blocks.extend(line.partial.iter().chain(patched).map(|block| &block[..]));
        }
        let mut index = index.0;
        if index.len() > index_room(self.room) || blocks.len() > self.room {
            return Err(io::Error::other("an entry of the parity log is too long"));
        }
        let head = EntryHead {
            layout: self.layout,
            sequence: self.sequence + 1,
            lines: lines.len() as u32,
            index: index.len() as u32,
            blocks: blocks.len() as u32,
            index_sum: outer_sum(&index),
            blocks_sum: outer_sum_of(&blocks),
            room: self.room as u32,
        };
        index.resize(index.len().next_multiple_of(BLOCK), 0);
        let mut first = head.encode();
        first.resize(BLOCK, 0);
        let parts = [&first[..], &index].into_iter().chain(blocks);
        let mut slices: Vec<io::IoSlice<'_>> = parts.map(io::IoSlice::new).collect();
        self.disk.write_vectored_at(&mut slices, head.sequence % 2 * half(self.room))?;
        self.disk.sync(SyncPurpose::Parity)?;
        (self.sequence, self.has_lines) = (head.sequence, !lines.is_empty());
        Ok(())
    }
}

fn decode_lines(index: &[u8], blocks: &[u8], number: u32) -> Option<Vec<LoggedLine>> {
    let mut r = Reader::new(index);
    let mut blocks = Reader::new(blocks);
    let mut lines = Vec::new();
    for _ in 0..number {
        let (line, written, patched, has_block) = (r.u64()?, r.u16()?, r.u16()?, r.u8()?);
        let sums = columns(written).map(|_| r.u32()).collect::<Option<Vec<u32>>>()?;
        let parity_sum = r.u32()?;
        let partial = match has_block {
            0 => None,
            1 => Some(content_of(blocks.take(BLOCK)?)),
            _ => return None,
        };
        let mut block = |column| Some((column, content_of(blocks.take(BLOCK)?)));
        let patched = columns(patched).map(&mut block).collect::<Option<Vec<_>>>()?;
        lines.push(LoggedLine { line, written, sums, parity_sum, partial, patched });
    }
    blocks.end(())?;
    r.end(lines)
}

/// The head of an entry.
#[derive(Debug, PartialEq, Eq)]
struct EntryHead {
    layout: Uuid,
    sequence: u64,
    lines: u32,
    /// Bytes of the index.
    index: u32,
    blocks: u32,
    index_sum: u32,
    blocks_sum: u32,
    /// Number of blocks that an entry can have, which says where the second half is; 0 if unknown.
    room: u32,
}

impl EntryHead {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(MAGIC).u32(0).u32(VERSION).uuid(&self.layout).u64(self.sequence);
        w.u32(self.lines)
            .u32(self.index)
            .u32(self.blocks)
            .u32(self.index_sum)
            .u32(self.blocks_sum)
            .u32(self.room);
        let crc = crc32c(&w.0[12..]);
        w.0[8..12].copy_from_slice(&crc.to_le_bytes());
        w.0
    }

    fn decode(bytes: &[u8; HEAD]) -> Option<EntryHead> {
        let mut r = Reader::new(bytes);
        let is_magic = r.take(8)? == MAGIC;
        let (crc, version) = (r.u32()?, r.u32()?);
        (is_magic && crc == crc32c(&bytes[12..]) && version == VERSION).then_some(())?;
        Some(EntryHead {
            layout: r.uuid()?,
            sequence: r.u64()?,
            lines: r.u32()?,
            index: r.u32()?,
            blocks: r.u32()?,
            index_sum: r.u32()?,
            blocks_sum: r.u32()?,
            room: r.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemDir;

    const LAYOUT: Uuid = Uuid::from_u128(7);

    fn line(line: u64, written: u16, has_block: bool) -> LoggedLine {
        let sums = columns(written).map(|column| column as u32 + 10).collect();
        let partial = has_block.then(|| Box::new([line as u8; BLOCK]));
        let patched = if line == 5 { vec![(1, Box::new([9; BLOCK]))] } else { Vec::new() };
        LoggedLine { line, written, sums, parity_sum: 5, partial, patched }
    }

    fn open(dir: &MemDir) -> (ParityLog, Vec<LoggedLine>) {
        ParityLog::open(dir, "m", LAYOUT, OpenMode::Existing).unwrap()
    }

    #[test]
    fn the_youngest_entry_counts() {
        let dir = MemDir::new();
        create(&dir, "m", 4).unwrap();
        let (mut log, lines) = open(&dir);
        assert_eq!(lines, []);
        let first = [line(3, 0b101, true), line(9, 0b111, false)];
        log.append(&first).unwrap();
        assert_eq!(open(&dir).1, first);
        let second = [line(4, 1, true), line(5, 2, true), line(6, 4, true)];
        log.append(&second).unwrap();
        assert_eq!(open(&dir).1, second);
        let too_many = [1, 2, 3, 4, 6].map(|number| line(number, 1, true));
        assert!(log.append(&too_many).is_err(), "it has no room");
        // A third entry that was not written whole leaves the second one.
        let disk = dir.open("parity-m", OpenMode::Existing).unwrap();
        disk.write_at(&[1], half(4) + 70).unwrap();
        assert_eq!(open(&dir).1, second);
        // Nor does one whose blocks or index were not.
        for at in [BLOCK as u64 + 3, half(4) - 1] {
            let mut byte = [0];
            disk.read_at(&mut byte, at).unwrap();
            disk.write_at(&[byte[0] ^ 1], at).unwrap();
            assert_eq!(open(&dir).1, first, "byte {at}");
            disk.write_at(&byte, at).unwrap();
        }
        log.append(&[]).unwrap();
        assert_eq!(open(&dir).1, []);
        let other = ParityLog::open(&dir, "m", Uuid::nil(), OpenMode::Existing).unwrap();
        assert_eq!((other.0.sequence, other.1), (0, Vec::new()));
    }

    #[test]
    fn golden_bytes() {
        let head = EntryHead {
            layout: LAYOUT,
            sequence: 3,
            lines: 2,
            index: 38,
            blocks: 1,
            index_sum: 9,
            blocks_sum: 8,
            room: 0,
        };
        let hex: String = head.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        let bytes: [u8; HEAD] = head.encode().try_into().unwrap();
        assert_eq!(EntryHead::decode(&bytes), Some(head));
        for byte in 0..HEAD {
            let mut bad = bytes;
            bad[byte] ^= 1;
            assert_eq!(EntryHead::decode(&bad), None, "byte {byte}");
        }
    }

    const GOLDEN: &str = concat!(
        "484350415249545981a168330100000000000000000000000000000000000007030000000000000002000000",
        "2600000001000000090000000800000000000000",
    );

    #[test]
    fn a_log_that_was_cut_to_the_size_of_another_one_is_refused() {
        let dir = MemDir::new();
        create(&dir, "m", 4).unwrap();
        let mut log = open(&dir).0;
        log.append(&[line(3, 1, true)]).unwrap();
        log.append(&[line(4, 1, true)]).unwrap();
        dir.open("parity-m", OpenMode::Existing).unwrap().set_len(2 * half(3)).unwrap();
        let error = ParityLog::open(&dir, "m", LAYOUT, OpenMode::Existing).err().unwrap();
        assert!(error.to_string().contains("not what it was"), "{error}");
    }

    #[test]
    fn a_missing_log_or_one_of_another_size_is_an_error() {
        let dir = MemDir::new();
        let open = || ParityLog::open(&dir, "m", LAYOUT, OpenMode::Existing).err().unwrap().to_string();
        assert!(open().contains("parity-m"));
        dir.open("parity-m", OpenMode::CreateNew).unwrap();
        assert!(open().contains("size"));
        create(&dir, "m", 4).unwrap();
        let disk = dir.open("parity-m", OpenMode::Existing).unwrap();
        disk.set_len(2 * half(4) - 1).unwrap();
        assert!(open().contains("size"));
    }
}
