//! Segments of a CDP log: finding records by the index, reading them, and working without the index
//! where it is damaged.
//!
//! A segment is a head, then groups. A group is its records, zeros up to a multiple of 4 KiB, and
//! the group's index. What was synced shares no block with what comes later. When a segment is
//! full, an index of all its records closes it, unless the segment is one group.
//!
//! A *run* has the same form on a small scale: the records of one branch and one batch, and their
//! index, in a segment that all branches share ([`crate::cdp::write::runs`]).

use super::codec::{lost, unpack};
use super::record::{
    BLOCK_LEN, ENTRIES, HEADER_LEN, IndexEntry, Replaced, SEGMENT_HEAD, SegmentHead, Thing, decode_block,
    decode_record, packed_len, thing_at,
};
use crate::catalog::{GroupRecord, SegmentRecord};
use crate::disk::{Disk, NamedFile};
use crate::error::{Error, Result};
use crate::ids::{BranchId, Chunk, Epoch, Lsn};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A file of a log, which may be closed. It can be read for as long as a holder keeps this value:
/// its name stays until then.
#[derive(Clone)]
pub(crate) struct LogFile {
    pub(crate) head: SegmentHead,
    /// The branch whose run is read, or `None` if the whole file belongs to one branch.
    run_of: Option<BranchId>,
    file: Arc<NamedFile>,
}

/// A file of a log that is open.
#[derive(Clone)]
pub(crate) struct SegmentDisk {
    pub(crate) head: SegmentHead,
    pub(crate) salt: u32,
    /// Indexes are stored without the zeros at their ends.
    packed: bool,
    pub(crate) disk: Arc<dyn Disk>,
}

/// The number of a block of an index, and its entries.
type HeldBlock = (u64, Vec<IndexEntry>);

/// A segment to which no more records are appended, or a run.
pub(crate) struct Sealed {
    pub(crate) file: LogFile,
    pub(crate) record: SegmentRecord,
    /// The last keys of index blocks that were read. With them a search mostly reads one block.
    fences: Mutex<HashMap<u64, (Chunk, Lsn)>>,
    /// All entries, rebuilt from the records because the index is damaged, or `None` if the records
    /// don't suffice.
    rebuilt: OnceLock<Option<Vec<IndexEntry>>>,
    /// The run is damaged, so it is not sorted into another segment.
    stays: AtomicBool,
}

/// The segment that records are appended to.
pub(crate) struct Open {
    pub(crate) file: LogFile,
    pub(crate) record: SegmentRecord,
    pub(crate) groups: Vec<GroupRecord>,
    pub(crate) entries: BTreeMap<(Chunk, Lsn), IndexEntry>,
    /// An index and a record of one group are damaged, so it is not known what is missing.
    pub(crate) incomplete: bool,
}

impl LogFile {
    pub(crate) fn new(head: SegmentHead, file: Arc<NamedFile>) -> Self {
        LogFile { head, run_of: None, file }
    }

    /// Returns the shared segment for reading the run of a branch.
    pub(crate) fn of_run(&self, branch: BranchId) -> Self {
        LogFile { run_of: Some(branch), ..self.clone() }
    }

    /// Returns the salt of what is read in the file: the run's, or the segment's.
    pub(crate) fn salt(&self) -> u32 {
        self.run_of.map_or_else(|| self.head.salt(), |branch| self.head.run_salt(branch))
    }

    /// Opens the file, if it is not open. A file that can't be opened is as lost as one that does
    /// not verify, unless the error is a shortage that passes.
    pub(crate) fn open(&self) -> Result<SegmentDisk> {
        let opened = self.file.open().map_err(|e| {
            let error = Error::io(format!("open {}", self.head.file_name()), e);
            if error.is_shortage() { error } else { lost(error.to_string()) }
        });
        let disk = SegmentDisk::new(self.head, opened?);
        Ok(self.run_of.map_or(disk.clone(), |branch| disk.of_run(branch)))
    }

    /// Returns the payload of a record, uncompressed and verified.
    pub(crate) fn payload(&self, entry: &IndexEntry) -> Result<Vec<u8>> {
        self.open()?.record(entry).map(|(_, payload)| payload)
    }

    /// Marks the file for removal, because the log does not need it any more. Its name is removed
    /// when it has no holder.
    pub(crate) fn remove_unused(&self) {
        self.file.remove_unused();
    }
}

impl SegmentDisk {
    pub(crate) fn new(head: SegmentHead, disk: Arc<dyn Disk>) -> Self {
        SegmentDisk { head, salt: head.salt(), packed: false, disk }
    }

    /// Returns the file for reading the run of a branch.
    pub(crate) fn of_run(self, branch: BranchId) -> Self {
        SegmentDisk { salt: self.head.run_salt(branch), packed: true, ..self }
    }

    fn name(&self) -> String {
        self.head.file_name()
    }

    fn damaged(&self, entry: &IndexEntry) -> Error {
        lost(format!(
            "read the CDP record with LSN {} of chunk {} at byte {} of {}: it is damaged",
            entry.lsn,
            entry.chunk,
            entry.at,
            self.name()
        ))
    }

    /// Returns the epoch of a record, and its payload, uncompressed and verified.
    pub(crate) fn record(&self, entry: &IndexEntry) -> Result<(Epoch, Vec<u8>)> {
        let mut bytes = vec![0; HEADER_LEN + entry.stored as usize];
        // A record that can't be read is as lost as a record that does not verify.
        self.disk.read_at(&mut bytes, entry.at.into()).map_err(|_| self.damaged(entry))?;
        let (epoch, payload) = self.stored(&bytes, entry)?;
        let len = if entry.replaced == Replaced::Payload { entry.raw_len() } else { 0 };
        let payload = unpack(entry.compression, payload, len);
        Ok((epoch, payload.ok_or_else(|| self.damaged(entry))?))
    }

    /// Returns the epoch of the record at the start of `bytes`, and its payload as stored,
    /// verified.
    pub(crate) fn stored<'a>(&self, bytes: &'a [u8], entry: &IndexEntry) -> Result<(Epoch, &'a [u8])> {
        let decoded = decode_record(bytes, entry.at, self.salt).filter(|d| d.entry == *entry);
        decoded.map(|d| (d.epoch, d.payload)).ok_or_else(|| self.damaged(entry))
    }

    /// Returns the entries of an index, or `None` if it is damaged.
    pub(crate) fn index(&self, at: u64, records: u64) -> Option<Vec<IndexEntry>> {
        let mut entries = Vec::with_capacity(records as usize);
        for n in 0..records.div_ceil(ENTRIES as u64) {
            entries.extend(self.block(at, n, records)?);
        }
        (entries.len() as u64 == records).then_some(entries)
    }

    /// Returns a block of an index with this number of records, by the block's number.
    fn block(&self, index_at: u64, number: u64, records: u64) -> Option<Vec<IndexEntry>> {
        let mut block = vec![0; BLOCK_LEN];
        let left = records.saturating_sub(number * ENTRIES as u64) as usize;
        let stored = if self.packed { packed_len(left) } else { BLOCK_LEN };
        self.disk.read_at(&mut block[..stored], index_at + number * BLOCK_LEN as u64).ok()?;
        decode_block(&block, self.salt)
    }

    /// Returns the entries of all records in a part of the file, read from the records themselves.
    /// Damaged records are missing.
    pub(crate) fn scan(&self, part: std::ops::Range<u64>) -> Result<Vec<IndexEntry>> {
        let mut bytes = vec![0; (part.end - part.start) as usize];
        let failed = |e| Error::io(format!("read {}", self.name()), e);
        self.disk.read_at(&mut bytes, part.start).map_err(failed)?;
        let mut entries = Vec::new();
        let mut at = 0usize;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let place = part.start + at as u64;
            let len = match thing_at(rest) {
                Some(Thing::Block) => BLOCK_LEN as u64,
                Some(Thing::Record(len)) => match decode_record(rest, place as u32, self.salt) {
                    Some(decoded) => {
                        entries.push(decoded.entry);
                        len
                    }
                    // The length of the record may be damaged, so the next item is searched for.
                    None => crate::cdp::log::record::ALIGN,
                },
                None => crate::cdp::log::record::ALIGN,
            };
            at += len as usize;
        }
        entries.sort_unstable_by_key(|e| (e.chunk, e.lsn));
        Ok(entries)
    }
}

impl Sealed {
    pub(crate) fn new(file: LogFile, record: SegmentRecord) -> Self {
        Sealed {
            file,
            record,
            fences: Mutex::default(),
            rebuilt: OnceLock::new(),
            stays: AtomicBool::new(false),
        }
    }

    /// For a run: returns the number of the shared segment, and the byte at which the run begins
    /// there.
    pub(crate) fn run(&self) -> Option<(u64, u64)> {
        self.file.run_of.map(|_| (self.file.head.seq, self.record.start))
    }

    /// Notes that the run is damaged and stays where it is. Returns false when that was noted
    /// before.
    pub(crate) fn stay(&self) -> bool {
        !self.stays.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the run stays where it is, because it is damaged.
    pub(crate) fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    fn blocks(&self) -> u64 {
        self.record.records.div_ceil(ENTRIES as u64)
    }

    fn block(&self, file: &SegmentDisk, number: u64) -> Option<Vec<IndexEntry>> {
        let entries = file.block(self.record.index_at?, number, self.record.records);
        entries.filter(|entries| !entries.is_empty())
    }

    /// Returns the entries of a chunk with LSNs in a range, in order.
    pub(crate) fn find(&self, chunk: Chunk, lsns: RangeInclusive<Lsn>) -> Result<Vec<IndexEntry>> {
        match self.search(&self.file.open()?, chunk, &lsns) {
            Some(found) => Ok(found),
            None => {
                let wanted = |e: &&IndexEntry| e.chunk == chunk && lsns.contains(&e.lsn);
                Ok(self.all_entries()?.iter().filter(wanted).copied().collect())
            }
        }
    }

    /// Returns the first chunk at or after `chunk` of which there are records.
    pub(crate) fn next_chunk(&self, chunk: Chunk) -> Result<Option<Chunk>> {
        let first = |entries: &[IndexEntry]| entries.iter().map(|e| e.chunk).find(|c| *c >= chunk);
        match self.first_block(&self.file.open()?, (chunk, Lsn::ZERO)) {
            Some((_, held)) => Ok(held.and_then(|(_, block)| first(&block))),
            None => Ok(first(&self.all_entries()?)),
        }
    }

    /// Returns the first block of the index whose last entry is not below `key`, and its entries if
    /// there is such a block. Returns `None` when the index is damaged.
    fn first_block(&self, file: &SegmentDisk, key: (Chunk, Lsn)) -> Option<(u64, Option<HeldBlock>)> {
        let (mut low, mut high) = (0, self.blocks());
        let mut held = None;
        while low < high {
            let middle = (low + high) / 2;
            let known = self.fences.lock().get(&middle).copied();
            let (last, block) = match known {
                Some(last) => (last, None),
                None => {
                    let block = self.block(file, middle)?;
                    let last = block.last().map(|e| (e.chunk, e.lsn))?;
                    self.fences.lock().insert(middle, last);
                    (last, Some(block))
                }
            };
            if last < key {
                low = middle + 1;
            } else {
                high = middle;
                held = block.map(|block| (middle, block));
            }
        }
        if held.is_none() && low < self.blocks() {
            held = Some((low, self.block(file, low)?));
        }
        Some((low, held))
    }

    /// Searches by the index. Returns `None` when the index is damaged.
    fn search(
        &self,
        file: &SegmentDisk,
        chunk: Chunk,
        lsns: &RangeInclusive<Lsn>,
    ) -> Option<Vec<IndexEntry>> {
        let (low, mut held) = self.first_block(file, (chunk, *lsns.start()))?;
        let mut found = Vec::new();
        for number in low..self.blocks() {
            let block = match held.take() {
                Some((n, block)) if n == number => block,
                _ => self.block(file, number)?,
            };
            let wanted = |e: &&IndexEntry| e.chunk == chunk && lsns.contains(&e.lsn);
            found.extend(block.iter().filter(wanted));
            if block.last().is_some_and(|e| (e.chunk, e.lsn) >= (chunk, *lsns.end())) {
                break;
            }
        }
        Some(found)
    }

    /// Passes the entries from a chunk on to `take`, in order, until `take` breaks.
    pub(crate) fn visit(
        &self,
        chunk: Chunk,
        take: &mut dyn FnMut(&IndexEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let file = &self.file.open()?;
        let (first, mut held) = self.first_block(file, (chunk, Lsn::ZERO)).unwrap_or_default();
        let mut next = (chunk, Lsn::ZERO);
        let mut show = |entries: &[IndexEntry]| {
            let rest = &entries[entries.partition_point(|e| (e.chunk, e.lsn) < next)..];
            next = rest.last().map_or(next, |e| (e.chunk, e.lsn.next()));
            rest.iter().try_for_each(&mut *take)
        };
        for number in first..self.blocks() {
            let block = match held.take() {
                Some((n, block)) if n == number => Some(block),
                _ => self.block(file, number),
            };
            let Some(block) = block else {
                _ = show(&self.all_entries()?);
                break;
            };
            if show(&block).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns every entry, sorted by (chunk, LSN). If the index is damaged, the entries come from
    /// the records.
    pub(crate) fn all_entries(&self) -> Result<Vec<IndexEntry>> {
        let file = self.file.open()?;
        let index_at = self.record.index_at;
        if let Some(entries) = index_at.and_then(|at| file.index(at, self.record.records)) {
            return Ok(entries);
        }
        let rebuilt = self.rebuilt.get_or_init(|| {
            let part = match self.run() {
                Some((_, start)) => start..index_at.unwrap_or(start),
                None => SEGMENT_HEAD..self.record.end,
            };
            let entries = file.scan(part).ok()?;
            (entries.len() as u64 == self.record.records).then_some(entries)
        });
        rebuilt.clone().ok_or_else(|| {
            lost(format!(
                "read {}: its index and some of its records are damaged; history from LSN {} to {} is lost",
                self.file.head.file_name(),
                self.record.lsns.0,
                self.record.lsns.1
            ))
        })
    }
}

impl Open {
    /// Reads the entries of the groups into memory.
    pub(crate) fn load(
        file: LogFile,
        disk: &SegmentDisk,
        record: SegmentRecord,
        groups: Vec<GroupRecord>,
    ) -> Self {
        let mut open = Open { file, record, groups, entries: BTreeMap::new(), incomplete: false };
        for group in &open.groups {
            let entries = disk.index(group.index_at, group.records);
            let entries = entries.or_else(|| {
                let found = disk.scan(group.start..group.index_at).ok()?;
                (found.len() as u64 == group.records).then_some(found)
            });
            match entries {
                Some(entries) => open.entries.extend(entries.iter().map(|e| ((e.chunk, e.lsn), *e))),
                None => open.incomplete = true,
            }
        }
        open
    }

    /// Returns the entries of a chunk with LSNs in a range, in order.
    pub(crate) fn find(&self, chunk: Chunk, lsns: RangeInclusive<Lsn>) -> Result<Vec<IndexEntry>> {
        self.check()?;
        let keys = (chunk, *lsns.start())..=(chunk, *lsns.end());
        Ok(self.entries.range(keys).map(|(_, entry)| *entry).collect())
    }

    /// Passes the entries from a chunk on to `take`, in order, until `take` breaks.
    pub(crate) fn visit(
        &self,
        chunk: Chunk,
        take: &mut dyn FnMut(&IndexEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check()?;
        _ = self.entries.range((chunk, Lsn::ZERO)..).map(|(_, entry)| entry).try_for_each(take);
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.incomplete {
            return Ok(());
        }
        Err(lost(format!(
            "read {}: an index and some records are damaged; history from LSN {} to {} is lost",
            self.file.head.file_name(),
            self.record.lsns.0,
            self.record.lsns.1
        )))
    }
}
