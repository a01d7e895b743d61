//! The disk as a reader sees it: a cache over reads that the server answers, and sections of it.

use crate::failure::{Failure, FailureKind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::rc::Rc;

/// Unit of the cache, in bytes. Offsets of reads are multiples of it.
const UNIT: u64 = 64 << 10;
/// Number of units that the cache keeps: 16 MiB.
const UNITS: usize = 256;
/// Number of units that a sequential reader gets at once.
const AHEAD: u64 = 4;

/// Whatever answers reads of the disk.
pub(crate) trait Source {
    /// Reads a range. The range is within the disk.
    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Failure>;
}

/// A cache of a disk.
pub(crate) struct Cache {
    source: Box<dyn Source>,
    size: u64,
    units: HashMap<u64, Unit>,
    /// Counts uses. It tells which unit was used last.
    clock: u64,
    last_miss: u64,
}

struct Unit {
    bytes: Vec<u8>,
    used: u64,
}

impl Cache {
    fn new(source: Box<dyn Source>, size: u64) -> Self {
        Cache { source, size, units: HashMap::new(), clock: 0, last_miss: u64::MAX }
    }

    /// Copies bytes from a unit. Returns how many it copied, at least one.
    fn copy(&mut self, offset: u64, out: &mut [u8]) -> Result<usize, Failure> {
        let number = offset / UNIT;
        if !self.units.contains_key(&number) {
            self.fetch(number)?;
        }
        self.clock += 1;
        let short = || Failure::new(FailureKind::Disk, "read the disk: the answer is too short");
        let unit = self.units.get_mut(&number).ok_or_else(short)?;
        unit.used = self.clock;
        let from = usize::try_from(offset % UNIT).unwrap_or(usize::MAX);
        let bytes = unit.bytes.get(from..).filter(|bytes| !bytes.is_empty()).ok_or_else(short)?;
        let count = bytes.len().min(out.len());
        out[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Reads a unit, and more of them if the one before was read last.
    fn fetch(&mut self, number: u64) -> Result<(), Failure> {
        let is_sequential = number.checked_sub(1) == Some(self.last_miss);
        let wanted = if is_sequential { AHEAD } else { 1 };
        let start = number * UNIT;
        let length = (wanted * UNIT).min(self.size.saturating_sub(start));
        let bytes = self.source.read(start, usize::try_from(length).unwrap_or(0))?;
        for (number, bytes) in (number..).zip(bytes.chunks(UNIT as usize)) {
            self.last_miss = number;
            self.clock += 1;
            self.units.insert(number, Unit { bytes: bytes.to_vec(), used: self.clock });
        }
        while self.units.len() > UNITS {
            let oldest = self.units.iter().min_by_key(|(_, unit)| unit.used).map(|(number, _)| *number);
            oldest.map(|number| self.units.remove(&number));
        }
        Ok(())
    }
}

/// Blocks of a section that are shown with the content of other places.
pub(crate) struct Overlay {
    block_size: u64,
    blocks: HashMap<u64, Shown>,
}

/// What is shown in place of a block.
struct Shown {
    /// Offset of the content in the section, in bytes.
    at: u64,
    /// First bytes, if they are not those of the content.
    first: Option<[u8; 4]>,
}

impl Overlay {
    pub(crate) fn new(block_size: usize) -> Self {
        Overlay { block_size: block_size as u64, blocks: HashMap::new() }
    }

    /// Shows the content at an offset of the section in place of a block. The last replacement of a
    /// block counts.
    pub(crate) fn replace(&mut self, block: u64, at: u64, first: Option<[u8; 4]>) {
        self.blocks.insert(block, Shown { at, first });
    }
}

/// A section of a disk: all of it, or a partition. Clones share the cache, and each has its own
/// position.
#[derive(Clone)]
pub(crate) struct Section {
    cache: Rc<RefCell<Cache>>,
    overlay: Option<Rc<Overlay>>,
    start: u64,
    size: u64,
    position: u64,
}

impl Section {
    /// Returns the section that is a whole disk.
    pub(crate) fn whole(source: Box<dyn Source>, size: u64) -> Self {
        let cache = Rc::new(RefCell::new(Cache::new(source, size)));
        Section { cache, overlay: None, start: 0, size, position: 0 }
    }

    /// Returns the section as an overlay shows it.
    pub(crate) fn under(&self, overlay: Overlay) -> Self {
        Section { overlay: Some(Rc::new(overlay)), ..self.clone() }
    }

    /// Returns a part of the section, cut at its end. It has no overlay.
    pub(crate) fn part(&self, start: u64, size: u64) -> Self {
        let start = start.min(self.size);
        let size = size.min(self.size - start);
        let (cache, start) = (self.cache.clone(), self.start + start);
        Section { cache, overlay: None, start, size, position: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads bytes. Fails if the section ends before them.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        match &self.overlay {
            None => self.read_below(offset, out),
            Some(overlay) => self.read_over(overlay, offset, out),
        }
    }

    /// Reads bytes as the overlay shows them.
    fn read_over(&self, overlay: &Overlay, mut offset: u64, mut out: &mut [u8]) -> Result<(), Failure> {
        while !out.is_empty() {
            let within = offset % overlay.block_size;
            let length = (overlay.block_size - within).min(out.len() as u64) as usize;
            let (piece, rest) = out.split_at_mut(length);
            let shown = overlay.blocks.get(&(offset / overlay.block_size));
            self.read_below(shown.map_or(offset, |shown| shown.at + within), piece)?;
            if let Some(first) = shown.and_then(|shown| shown.first) {
                for (byte, n) in piece.iter_mut().zip(within..first.len() as u64) {
                    *byte = first[n as usize];
                }
            }
            (offset, out) = (offset + length as u64, rest);
        }
        Ok(())
    }

    /// Reads bytes of the disk, without the overlay.
    fn read_below(&self, mut offset: u64, mut out: &mut [u8]) -> Result<(), Failure> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.size);
        if end.is_none() {
            let what = "the file system reaches past the end of its partition";
            return Err(Failure::unsupported(what));
        }
        let mut cache =
            self.cache.try_borrow_mut().map_err(|_| Failure::new(FailureKind::Reader, "a nested read"))?;
        while !out.is_empty() {
            let count = cache.copy(self.start + offset, out)?;
            offset += count as u64;
            out = &mut out[count..];
        }
        Ok(())
    }

    /// Returns the bytes at an offset, or `None` if the section ends before them.
    pub(crate) fn bytes_at<const N: usize>(&self, offset: u64) -> Result<Option<[u8; N]>, Failure> {
        if offset.checked_add(N as u64).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        let mut bytes = [0; N];
        self.read_at(offset, &mut bytes)?;
        Ok(Some(bytes))
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "section of {} bytes at {}", self.size, self.start)
    }
}

impl Read for Section {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(self.position);
        let count = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.read_at(self.position, &mut out[..count])?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Some parsers can write, and so want a disk that could. This one refuses.
impl Write for Section {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A disk in memory that counts reads.
    pub(crate) struct InMemory(pub(crate) Vec<u8>, pub(crate) Rc<RefCell<Vec<(u64, usize)>>>);

    impl Source for InMemory {
        fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Failure> {
            self.1.borrow_mut().push((offset, length));
            let offset = usize::try_from(offset).unwrap();
            Ok(self.0[offset..offset + length].to_vec())
        }
    }

    /// Returns a disk in memory.
    pub(crate) fn disk(bytes: Vec<u8>) -> Section {
        let size = bytes.len() as u64;
        Section::whole(Box::new(InMemory(bytes, Rc::default())), size)
    }

    #[test]
    fn reads_are_cached_and_sequential_ones_read_ahead() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
        let reads = Rc::new(RefCell::new(Vec::new()));
        let mut disk = Section::whole(Box::new(InMemory(bytes.clone(), reads.clone())), bytes.len() as u64);
        let mut all = Vec::new();
        disk.read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes);
        assert!(reads.borrow().len() <= 3_000_000 / UNIT as usize / 3, "{} reads", reads.borrow().len());
        reads.borrow_mut().clear();
        assert_eq!(disk.bytes_at::<4>(2_999_996).unwrap().unwrap(), bytes[2_999_996..]);
        assert_eq!(disk.bytes_at::<4>(2_999_997).unwrap(), None);
        assert!(reads.borrow().is_empty(), "it was in the cache");
    }

    #[test]
    fn a_part_ends_where_it_ends() {
        let mut part = disk((0..=255).collect()).part(16, 32);
        let mut all = Vec::new();
        part.read_to_end(&mut all).unwrap();
        assert_eq!(all, (16..48).collect::<Vec<u8>>());
        assert!(part.read_at(31, &mut [0; 2]).is_err());
        assert!(part.read_at(u64::MAX, &mut [0; 2]).is_err());
        assert_eq!(part.part(30, 10).size(), 2);
        assert_eq!(part.part(90, 10).size(), 0);
        assert_eq!(part.seek(SeekFrom::End(-2)).unwrap(), 30);
        assert!(part.seek(SeekFrom::Current(-31)).is_err());
        assert!(part.write(b"x").is_err());
    }
}
