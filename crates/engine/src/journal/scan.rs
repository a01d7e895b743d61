//! Finding the end of the log at open.
//!
//! The log is the chain of segments from the one that the catalog names: consecutive `seq`, each linked to the last LSN
//! of the one before, incarnations never going back, LSNs without a gap inside a segment. Where that breaks is the tail.
//! Unsynced writes may be lost or torn, so a broken tail is normal, unless something proves that what is missing had
//! been durable: the catalog's word, or a later record's `synced_lsn`. Then the scan refuses to guess (I5).

use super::ChainSegment;
use super::cursor::{Cursor, Located};
use super::record::{HEADER_LEN, Header, RECORD_ALIGN};
use super::segment::{FIRST_RECORD, Found, SegmentFile, SegmentHeader, SegmentReader, file_index};
use super::tail::{Owner, Patched, interrupted, write_again};
use crate::disk::{Dir, OpenMode, SyncPurpose};
use crate::error::{Error, Result, corrupt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Where to start and what the catalog knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanStart {
    pub(crate) owner: Owner,
    /// The segment that holds the record after `destaged_lsn`.
    pub(crate) seq: u64,
    /// The least incarnation of that segment.
    pub(crate) incarnation: u64,
    /// Everything up to here is in place.
    pub(crate) destaged_lsn: u64,
    /// Everything up to here was durable once: if it is not there, that is damage.
    pub(crate) synced_lsn: u64,
}

/// What a scan found.
pub(crate) struct Scanned {
    /// Segments of the log, oldest first.
    pub(crate) chain: Vec<ChainSegment>,
    /// Files that hold nothing that counts.
    pub(crate) free: Vec<Arc<SegmentFile>>,
    /// One more than the largest file index.
    pub(crate) file_indexes: u32,
    /// Last LSN of the log.
    pub(crate) tail_lsn: u64,
    /// Largest LSN seen anywhere, leftovers included: the next one exceeds it.
    pub(crate) max_lsn: u64,
    pub(crate) max_time: u64,
    pub(crate) max_incarnation: u64,
    pub(crate) next_seq: u64,
    /// The record after `destaged_lsn`.
    pub(crate) cursor: Cursor,
    /// Everything up to here was durable once: the catalog says so, or a record.
    synced_lsn: u64,
    /// The records after that.
    unsynced: VecDeque<Cursor>,
}

impl Scanned {
    /// Takes note of the record at `cursor`, and of what it says to have been durable when it was written.
    fn note_unsynced(&mut self, header: &Header, cursor: Cursor) {
        self.unsynced.push_back(cursor);
        self.synced_lsn = self.synced_lsn.max(header.synced_lsn);
        while self.unsynced.front().is_some_and(|c| c.lsn <= self.synced_lsn) {
            self.unsynced.pop_front();
        }
    }
}

/// Scans the journal; `visit` sees every record above `destaged_lsn`, in order, with its data.
pub(crate) fn scan(
    dir: &dyn Dir,
    start: ScanStart,
    writable: bool,
    visit: &mut dyn FnMut(&Located, &[u8]) -> Result<()>,
) -> Result<Scanned> {
    let mut candidates = open_segments(dir, &start, writable)?;
    let mut scanned = Scanned {
        chain: Vec::new(),
        free: Vec::new(),
        file_indexes: candidates.iter().map(|c| c.file.index + 1).max().unwrap_or(0),
        tail_lsn: start.destaged_lsn,
        max_lsn: start.synced_lsn.max(start.destaged_lsn),
        max_time: 0,
        max_incarnation: 0,
        next_seq: start.seq,
        cursor: Cursor { seq: start.seq, at: FIRST_RECORD, lsn: start.destaged_lsn + 1 },
        synced_lsn: start.synced_lsn,
        unsynced: VecDeque::new(),
    };
    while let Some(index) = next_in_chain(&candidates, &scanned, start.incarnation) {
        let candidate = candidates.swap_remove(index);
        if !follow(&candidate, &start, &mut scanned, visit)? {
            // Opened, but its first record is not there: the tail lies before it.
            candidates.push(candidate);
            break;
        }
    }
    if scanned.tail_lsn < start.synced_lsn {
        return Err(corrupt(format!(
            "recover the journal: it ends at LSN {}, but everything up to {} was durable",
            scanned.tail_lsn, start.synced_lsn
        )));
    }
    if let Some(tail) = scanned.chain.last().cloned() {
        look_for_proof_of_loss(&tail.file, &tail.header, tail.end, &start, &mut scanned)?;
    }
    for candidate in candidates {
        if let Some(header) = candidate.header {
            look_for_proof_of_loss(&candidate.file, &header, FIRST_RECORD, &start, &mut scanned)?;
        }
        scanned.free.push(candidate.file);
    }
    scanned.free.sort_by_key(|f| std::cmp::Reverse(f.index));
    Ok(scanned)
}

/// Makes what a scan found durable, before anything acts on it: what is not known to have been durable is written again
/// (see [`super::tail`]).
pub(crate) fn make_durable(dir: &dyn Dir, owner: &Owner, scanned: &Scanned) -> Result<()> {
    let first = scanned.unsynced.front();
    for segment in &scanned.chain {
        if let Some(first) = first.filter(|first| first.seq <= segment.header.seq) {
            // The segment's own header was written with its first record.
            let inside = first.seq == segment.header.seq && first.at > FIRST_RECORD;
            write_again(dir, owner, &segment.file, if inside { first.at } else { 0 }, segment.end)?;
        } else {
            let synced = segment.file.disk.sync(SyncPurpose::JournalOpen);
            synced.map_err(|e| {
                Error::io(format!("sync {}", super::segment::file_name(segment.file.index)), e)
            })?;
        }
    }
    dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
}

struct Candidate {
    file: Arc<SegmentFile>,
    header: Option<SegmentHeader>,
}

fn open_segments(dir: &dyn Dir, start: &ScanStart, writable: bool) -> Result<Vec<Candidate>> {
    let names = dir.list().map_err(|e| Error::io("list the data directory", e))?;
    let mut candidates = Vec::new();
    // An opening that writes has restored it already.
    let mut copy = if writable { None } else { interrupted(dir, &start.owner)? };
    for name in names {
        let Some(index) = file_index(&name) else { continue };
        let mode = if writable { OpenMode::Existing } else { OpenMode::ReadOnly };
        let fail = |e| Error::io(format!("open {name}"), e);
        let mut disk = dir.open(&name, mode).map_err(fail)?;
        if let Some(copy) = copy.take_if(|copy| copy.file == index) {
            disk = Arc::new(Patched { inner: disk, copy });
        }
        let mut block = vec![0u8; FIRST_RECORD as usize];
        let header = if disk.len().map_err(fail)? >= FIRST_RECORD {
            disk.read_at(&mut block, 0).map_err(fail)?;
            SegmentHeader::decode(&block).filter(|h| h.pool == start.owner.pool)
        } else {
            None
        };
        let seq = AtomicU64::new(header.map_or(0, |h| h.seq));
        candidates.push(Candidate { file: Arc::new(SegmentFile { index, disk, seq }), header });
    }
    Ok(candidates)
}

/// The candidate that continues the chain: of two with the same `seq`, the younger incarnation.
fn next_in_chain(candidates: &[Candidate], scanned: &Scanned, least: u64) -> Option<usize> {
    let last = scanned.chain.last();
    let fits = |h: &SegmentHeader| {
        h.seq == scanned.next_seq
            && match last {
                None => h.incarnation >= least && h.prev_lsn < scanned.cursor.lsn,
                Some(s) => h.prev_lsn == s.last_lsn && h.incarnation >= s.header.incarnation,
            }
    };
    let headers = candidates.iter().enumerate().filter_map(|(i, c)| Some((i, c.header?)));
    headers.filter(|(_, h)| fits(h)).max_by_key(|(_, h)| h.incarnation).map(|(i, _)| i)
}

/// Reads the records of one segment. False when nothing can follow it.
fn follow(
    candidate: &Candidate,
    start: &ScanStart,
    scanned: &mut Scanned,
    visit: &mut dyn FnMut(&Located, &[u8]) -> Result<()>,
) -> Result<bool> {
    let Some(header) = candidate.header else {
        return Ok(false);
    };
    let fail = |e| Error::io(format!("read {}", super::segment::file_name(candidate.file.index)), e);
    let len = candidate.file.disk.len().map_err(fail)?;
    let mut reader = SegmentReader::new(&*candidate.file.disk, header.salt(), len);
    let mut at = FIRST_RECORD;
    let mut lsn = header.first_lsn;
    while let Some(found) =
        reader.next_record(at, |h| h.lsn == lsn && h.incarnation == header.incarnation).map_err(fail)?
    {
        scanned.note_unsynced(&found.header, Cursor { seq: header.seq, at, lsn });
        at = found.next;
        lsn += 1;
        scanned.max_time = scanned.max_time.max(found.header.time);
        if found.header.lsn <= start.destaged_lsn {
            scanned.cursor = Cursor { seq: header.seq, at, lsn };
            continue;
        }
        let data = reader.bytes(found.data_at, found.header.data_len as usize).map_err(fail)?;
        let located = Located { header: found.header, file: candidate.file.index, data_at: found.data_at };
        visit(&located, data)?;
    }
    if lsn == header.first_lsn {
        return Ok(false);
    }
    let last_lsn = lsn - 1;
    scanned.tail_lsn = scanned.tail_lsn.max(last_lsn);
    scanned.max_lsn = scanned.max_lsn.max(last_lsn);
    scanned.max_incarnation = scanned.max_incarnation.max(header.incarnation);
    scanned.next_seq = header.seq + 1;
    scanned.chain.push(ChainSegment { file: candidate.file.clone(), header, last_lsn, end: at });
    Ok(true)
}

/// Looks at what lies beyond the tail: its LSNs are used up, and a record that knew more to be durable is an alarm.
fn look_for_proof_of_loss(
    file: &SegmentFile,
    header: &SegmentHeader,
    from: u64,
    start: &ScanStart,
    scanned: &mut Scanned,
) -> Result<()> {
    scanned.max_incarnation = scanned.max_incarnation.max(header.incarnation);
    if header.seq < start.seq {
        return Ok(());
    }
    let fail = |e| Error::io(format!("read {}", super::segment::file_name(file.index)), e);
    let len = file.disk.len().map_err(fail)?;
    let mut reader = SegmentReader::new(&*file.disk, header.salt(), len);
    let mut at = from;
    while at + HEADER_LEN as u64 <= len {
        let Some(found) = find_header(&mut reader, at, len).map_err(fail)? else {
            break;
        };
        at = found.next;
        let record = found.header;
        if record.lsn <= scanned.tail_lsn {
            continue;
        }
        scanned.max_lsn = scanned.max_lsn.max(record.lsn);
        scanned.max_time = scanned.max_time.max(record.time);
        if record.synced_lsn > scanned.tail_lsn {
            return Err(corrupt(format!(
                "recover the journal: it breaks after LSN {}, but the record with LSN {} in {} says that everything up to {} was durable",
                scanned.tail_lsn,
                record.lsn,
                super::segment::file_name(file.index),
                record.synced_lsn
            )));
        }
    }
    Ok(())
}

/// The first record header at or after `at` that verifies, wherever it starts.
fn find_header(reader: &mut SegmentReader<'_>, mut at: u64, len: u64) -> std::io::Result<Option<Found>> {
    const STRIDE: usize = 64 << 10;
    while at + HEADER_LEN as u64 <= len {
        let salt = reader.salt();
        let bytes = reader.bytes(at, STRIDE + HEADER_LEN)?;
        let mut offset = 0;
        while offset + HEADER_LEN <= bytes.len() && offset < STRIDE {
            if let Some(header) = Header::decode(&bytes[offset..], salt) {
                let position = at + offset as u64;
                let next = position + HEADER_LEN as u64;
                return Ok(Some(Found { header, data_at: next, next }));
            }
            offset += RECORD_ALIGN as usize;
        }
        at += STRIDE as u64;
    }
    Ok(None)
}
