//! The journal's files: how a file is made, and how an opening checks that every file that was made
//! exists at its full length.
//!
//! A file is made under a temporary name, at its full length, with all of its space, and synced.
//! Then it gets its final name, the directory is synced, and the catalog counts it. The journal
//! uses a file only after the catalog has counted it. So a file that the catalog counts, and that
//! is missing or shorter, has lost what it held. A file that the catalog does not count never held
//! anything.
//!
//! An older build made files under their final names and counted none. It made them in the order of
//! their indexes and used them at their full length. So in a pool of an older build a gap in the
//! indexes is damage, and so is a short file with a header of this pool.

use super::scan::{ScanStart, Scanned};
use super::segment::{FIRST_RECORD, SegmentFile, SegmentHeader, file_index, file_name};
use super::tail::{CopyTarget, Patched, TailCopy, interrupted};
use crate::disk::{Dir, Disk, OpenMode, SyncPurpose};
use crate::error::{Error, Result};
use crate::units::BLOCK;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use uuid::Uuid;

/// Suffix of the name of a file that is being made.
const NEW: &str = ".new";
/// Bytes that one write puts into a file that is being made.
const PART: u64 = 1 << 20;

/// A journal file, before it is known whether it is a part of the log.
pub(super) struct Candidate {
    pub(super) file: Arc<SegmentFile>,
    pub(super) header: Option<SegmentHeader>,
    /// The block of the header can't be read.
    pub(super) unreadable: bool,
    /// The block of the header holds zeros: most likely the file was never used.
    pub(super) blank: bool,
    pub(super) len: u64,
    /// The file has all of its space.
    allocated: bool,
}

/// Makes the file `index`, durably. As long as `has_time` holds, the file is also written once, so
/// that later writes to it do not change the file system's own journal.
pub(super) fn make(
    dir: &dyn Dir,
    index: u32,
    size: u64,
    has_time: &dyn Fn() -> bool,
) -> Result<Arc<dyn Disk>> {
    let name = file_name(index);
    let new = format!("{name}{NEW}");
    let fail = |e| Error::io(format!("create {name}"), e);
    let disk = dir.open(&new, OpenMode::Create).map_err(fail)?;
    let made = fill(&*disk, size, has_time).and_then(|()| dir.rename(&new, &name));
    if let Err(e) = made {
        // Its space may be what the others lack.
        let _ = dir.remove(&new);
        return Err(fail(e));
    }
    Ok(disk)
}

fn fill(disk: &dyn Disk, size: u64, has_time: &dyn Fn() -> bool) -> std::io::Result<()> {
    disk.set_len(size)?;
    disk.allocate(0, size)?;
    let part = PART.min(size) as usize;
    let mut zeros = Vec::new();
    for at in (0..size).step_by(part).take_while(|_| has_time()) {
        zeros.resize(part, 0);
        disk.write_at(&zeros[..part.min((size - at) as usize)], at)?;
    }
    // The length is durable before the name: so an opening knows that a short file was cut.
    disk.sync(SyncPurpose::Journal)
}

/// Writes zeros over the header and the start of the first record of a file, if the header can't be
/// read.
pub(super) fn blank_unreadable(disk: &dyn Disk) {
    let mut block = vec![0; FIRST_RECORD as usize];
    if disk.read_at(&mut block, 0).is_err() {
        let zeros = vec![0; (FIRST_RECORD + BLOCK) as usize];
        let _ = disk.write_at(&zeros, 0).and_then(|()| disk.sync(SyncPurpose::Journal));
    }
}

/// Opens all journal files. An opening that writes removes files that were being made, completes
/// files that were never used, and gives free files the space that they may lack.
pub(super) fn open_all(
    dir: &dyn Dir,
    start: &ScanStart,
    writable: bool,
    scanned: &mut Scanned,
) -> Result<Vec<Candidate>> {
    let mut candidates = BTreeMap::new();
    let copy = interrupted(dir, &start.owner)?;
    // A copy of slots belongs to a physical volume.
    let copied_to = |copy: &TailCopy| match copy.target {
        CopyTarget::Segment(index) => Some(index),
        CopyTarget::Pv(_) => None,
    };
    let copied = copy.as_ref().and_then(copied_to).map_or(0, |index| index + 1);
    // An opening that writes has restored it already.
    let mut copy = copy.filter(|_| !writable);
    for name in dir.list().map_err(|e| Error::io("list the data directory", e))? {
        if writable && name.strip_suffix(NEW).and_then(file_index).is_some() {
            dir.remove(&name).map_err(|e| Error::io(format!("remove {name}"), e))?;
        }
        let Some(index) = file_index(&name) else { continue };
        let mode = if writable { OpenMode::Existing } else { OpenMode::ReadOnly };
        let mut disk = dir.open(&name, mode).map_err(|e| Error::io(format!("open {name}"), e))?;
        if let Some(copy) = copy.take_if(|copy| copied_to(copy) == Some(index)) {
            disk = Arc::new(Patched { inner: disk, copy });
        }
        candidates.insert(index, look_at(disk, index, start)?);
    }
    let counted = start.record.map_or(0, |r| r.files);
    let end = candidates.keys().next_back().map_or(0, |last| last + 1).max(copied);
    for index in 0..counted.max(end) {
        match candidates.get_mut(&index) {
            None => {
                scanned.damages.push(missing(index, counted));
                if start.accept_loss {
                    let disk = make(dir, index, start.segment_size, &|| false)?;
                    candidates.insert(index, look_at(disk, index, start)?);
                }
            }
            Some(candidate) if candidate.len < start.segment_size => {
                let lost = index < counted || candidate.header.is_some();
                if lost {
                    scanned.damages.push(short(candidate, start.segment_size));
                }
                if writable && (start.accept_loss || !lost) {
                    candidate.complete(start.segment_size, lost)?;
                }
            }
            Some(candidate) if writable => candidate.complete(start.segment_size, false)?,
            Some(_) => {}
        }
    }
    scanned.file_indexes = end.max(counted);
    scanned.files =
        (0..).take_while(|i| candidates.get(i).is_some_and(|c| c.len >= start.segment_size)).count() as u32;
    for candidate in
        candidates.values().filter(|c| writable && (counted..scanned.files).contains(&c.file.index))
    {
        // It is about to be counted, and a build that counts none may have left its length to
        // chance.
        let synced = candidate.file.disk.sync(SyncPurpose::JournalOpen);
        synced.map_err(|e| Error::io(format!("sync {}", file_name(candidate.file.index)), e))?;
    }
    Ok(candidates.into_values().collect())
}

fn missing(index: u32, counted: u32) -> String {
    let name = file_name(index);
    match counted {
        0 => format!("{name} is missing, and later files exist"),
        _ => format!("{name} is missing: {counted} files were created"),
    }
}

fn short(candidate: &Candidate, size: u64) -> String {
    let name = file_name(candidate.file.index);
    format!("{name} was truncated: it has {} bytes instead of {size}", candidate.len)
}

fn look_at(disk: Arc<dyn Disk>, index: u32, start: &ScanStart) -> Result<Candidate> {
    let len = disk.len().map_err(|e| Error::io(format!("open {}", file_name(index)), e))?;
    let mut block = vec![0u8; FIRST_RECORD as usize];
    let read = if len >= FIRST_RECORD { disk.read_at(&mut block, 0) } else { Ok(()) };
    let header = SegmentHeader::decode(&block).filter(|h| read.is_ok() && h.pool == start.owner.pool);
    let seq = AtomicU64::new(header.map_or(0, |h| h.seq));
    let file = Arc::new(SegmentFile { index, disk, seq });
    let blank = read.is_ok() && block.iter().all(|b| *b == 0);
    Ok(Candidate { file, header, unreadable: read.is_err(), blank, len, allocated: true })
}

impl Candidate {
    /// Gives the file its full length, and the space that it may lack. A file that can't be
    /// completed is unfit for use. With `must` the opening fails instead.
    fn complete(&mut self, size: u64, must: bool) -> Result<()> {
        let disk = &self.file.disk;
        let completed = disk.allocate(0, size).and_then(|()| match self.len < size {
            true => disk.set_len(size).and_then(|()| disk.sync(SyncPurpose::JournalOpen)),
            false => Ok(()),
        });
        match completed {
            Ok(()) => self.len = self.len.max(size),
            Err(e) if must => return Err(Error::io(format!("complete {}", file_name(self.file.index)), e)),
            Err(_) => self.allocated = false,
        }
        Ok(())
    }

    /// Returns whether new records may be written to the file.
    pub(super) fn is_fit(&self, size: u64) -> bool {
        self.allocated && self.len >= size
    }
}

/// Returns the latest incarnation that has a segment in the journal of `pool`, or 0 if none has.
pub(crate) fn newest_incarnation(dir: &dyn Dir, pool: Uuid) -> Result<u64> {
    let names = dir.list().map_err(|e| Error::io("list the data directory", e))?;
    let mut newest = 0;
    for name in names.iter().filter(|name| file_index(name).is_some()) {
        let mut block = vec![0u8; FIRST_RECORD as usize];
        let read = dir.open(name, OpenMode::ReadOnly).and_then(|disk| disk.read_at(&mut block, 0));
        // A file that can't be read says nothing.
        if read.is_ok()
            && let Some(header) = SegmentHeader::decode(&block).filter(|h| h.pool == pool)
        {
            newest = newest.max(header.incarnation);
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemDir;
    use std::cell::Cell;

    #[test]
    fn a_file_is_whole_however_much_of_it_is_written_in_advance() {
        let dir = MemDir::new();
        for (index, time_for, asked) in [(0, 0, 1), (1, 2, 3), (2, 9, 4)] {
            let calls = Cell::new(0);
            let has_time = || {
                calls.set(calls.get() + 1);
                calls.get() <= time_for
            };
            let disk = make(&dir, index, 4 * PART, &has_time).unwrap();
            assert_eq!((calls.get(), disk.len().unwrap()), (asked, 4 * PART));
            assert!(dir.list().unwrap().contains(&file_name(index)));
            let mut end = [1; 16];
            disk.read_at(&mut end, 4 * PART - 16).unwrap();
            assert_eq!(end, [0; 16]);
        }
    }
}
