//! Finding the end of the log at open.
//!
//! The log is the chain of segments from the one that the catalog names. The segments have
//! consecutive `seq`, and each is linked to the last LSN of the one before. Incarnations never go
//! back, and LSNs have no gap inside a segment. The scan reads the log from the place that the
//! catalog names. What lies before that place is already in place on the physical volumes, so the
//! scan neither reads nor needs it.
//!
//! The tail is where the chain breaks. Unsynced writes may be lost or torn, so a broken tail is
//! normal, unless something proves that what is missing had been durable:
//!
//! - the positions in the catalog,
//! - a later record's `synced_lsn`,
//! - a file that is missing or was cut short,
//! - a needed block that can't be read.
//!
//! With such a proof the scan refuses to guess (I5), unless the operator accepts the loss.

use super::cursor::{Cursor, JournalRecord, Located};
use super::files::{Candidate, open_all};
use super::loss::{Accepted, Beyond, JOURNAL_DAMAGED};
use super::proof::{Witness, gather, search};
use super::record::{HEADER_LEN, Header, Kind};
use super::segment::{
    ChainSegment, FIRST_RECORD, FoundRecord, SegmentFile, SegmentHeader, SegmentReader, file_name,
};
use super::tail::{Owner, erase, write_again};
use super::turns::Turns;
use super::verify::{self, Cut, RecordPlace, Slots, UnreadablePlace, Verified};
use crate::codec::align_up;
use crate::disk::{Dir, SyncPurpose};
use crate::error::{Error, Result, corrupt};
use crate::ids::Lsn;
use crate::units::BLOCK;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The start of a scan, and what the catalog knows of the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanStart {
    pub(crate) owner: Owner,
    /// The segment that holds the record after `destaged_lsn`.
    pub(crate) seq: u64,
    /// The least incarnation of that segment.
    pub(crate) incarnation: u64,
    /// The last LSN that is in place. Everything up to it is in place.
    pub(crate) destaged_lsn: Lsn,
    /// The last LSN that the catalog knows to have been durable. A missing record up to it is
    /// damage.
    pub(crate) synced_lsn: Lsn,
    /// The catalog's record of the files. It is `None` in a pool that only older builds have
    /// written.
    pub(crate) record: Option<JournalRecord>,
    pub(crate) segment_size: u64,
    /// The journal may have references.
    pub(crate) references: bool,
    /// Damage does not keep the pool from opening. The opening reports what was lost.
    pub(crate) accept_loss: bool,
}

impl ScanStart {
    /// The place of the first record that may be needed, or `None` if the place is not known: an
    /// older build moves the positions without the place.
    pub(super) fn position(&self) -> Option<Cursor> {
        let row = self.record.filter(|r| r.destaged_lsn == self.destaged_lsn && r.start.seq == self.seq)?;
        (row.start.at >= FIRST_RECORD && row.start.lsn <= self.destaged_lsn.next()).then_some(row.start)
    }
}

/// The result of a scan.
pub(crate) struct Scanned {
    /// Segments of the log, oldest first.
    pub(crate) chain: Vec<ChainSegment>,
    /// Files that hold no part of the log, and have all of their space.
    pub(crate) free: Vec<Arc<SegmentFile>>,
    /// One more than the largest file index.
    pub(crate) file_indexes: u32,
    /// The number of files, counted from the first, that exist at their full length. The catalog is
    /// to count that many.
    pub(crate) files: u32,
    /// The last LSN of the log.
    pub(crate) tail_lsn: Lsn,
    /// The largest LSN seen anywhere, leftovers included. The next LSN exceeds it.
    pub(crate) max_lsn: Lsn,
    pub(crate) max_time: u64,
    pub(crate) max_incarnation: u64,
    pub(crate) next_seq: u64,
    /// The place of the record after `destaged_lsn`.
    pub(crate) cursor: Cursor,
    /// The turns of the records that are still to be carried out. The code that visits these
    /// records fills them in.
    pub(crate) turns: Turns,
    /// The damage, if the opening was to accept it.
    pub(crate) accepted: Option<Accepted>,
    /// The last LSN that is known to have been durable, by the catalog or by a record.
    synced_lsn: Lsn,
    /// The places of the records after `synced_lsn`.
    pub(super) unsynced: VecDeque<Cursor>,
    /// Descriptions of the damages found.
    pub(super) damages: Vec<String>,
    /// The record beyond the tail that names the largest LSN as durable.
    pub(super) witness: Option<Witness>,
    /// The largest LSN that a record beyond the tail names as durable.
    pub(super) proved: Lsn,
    pub(super) beyond: Beyond,
    /// The places of the records above `destaged_lsn`. It is empty unless the journal may have
    /// references.
    pub(super) places: Vec<RecordPlace>,
    /// The files of `chain`, as they were found.
    pub(super) followed: Vec<Candidate>,
    /// The first dropped record, if a reference without its data ended the log.
    pub(crate) cut: Option<Cut>,
    /// References that are believed because their slots verify. Nothing names them as durable.
    pub(super) verified: Vec<Verified>,
}

impl Scanned {
    /// The state of a scan that has found nothing yet.
    pub(crate) fn new(start: &ScanStart) -> Scanned {
        Scanned {
            chain: Vec::new(),
            free: Vec::new(),
            file_indexes: 0,
            files: 0,
            tail_lsn: start.destaged_lsn,
            max_lsn: start.synced_lsn.max(start.destaged_lsn),
            max_time: 0,
            max_incarnation: 0,
            next_seq: start.seq,
            cursor: Cursor { seq: start.seq, at: FIRST_RECORD, lsn: start.destaged_lsn.next() },
            turns: Turns::default(),
            accepted: None,
            synced_lsn: start.synced_lsn,
            unsynced: VecDeque::new(),
            damages: Vec::new(),
            witness: None,
            proved: Lsn::ZERO,
            beyond: Beyond::default(),
            places: Vec::new(),
            followed: Vec::new(),
            cut: None,
            verified: Vec::new(),
        }
    }

    /// Returns the blocks of believed references that can't be read.
    pub(crate) fn unreadable(&self) -> Vec<UnreadablePlace> {
        self.verified.iter().flat_map(|verified| verified.unreadable.iter().cloned()).collect()
    }

    /// Returns the largest LSN that anything names as durable.
    pub(super) fn known_durable(&self) -> Lsn {
        self.synced_lsn.max(self.proved)
    }

    /// Notes the record at `cursor`, and the LSN that the record names as durable when it was
    /// written.
    fn note_unsynced(&mut self, header: &Header, cursor: Cursor) {
        self.unsynced.push_back(cursor);
        self.synced_lsn = self.synced_lsn.max(header.synced_lsn);
        while self.unsynced.front().is_some_and(|c| c.lsn <= self.synced_lsn) {
            self.unsynced.pop_front();
        }
    }

    /// The place where the log breaks, as text for an error message.
    fn end(&self) -> String {
        let at = self.chain.last().map(|s| format!(" at byte {} of {}", s.end, file_name(s.file.index)));
        format!("after LSN {}{}", self.tail_lsn, at.unwrap_or_default())
    }

    /// Refuses what is damaged. If the damage is accepted, records it in `accepted`.
    fn conclude(&mut self, start: &ScanStart) -> Result<()> {
        if let Some(Witness { durable, lsn, file }) = &self.witness {
            self.damages.push(format!(
                "it breaks {}, but the record with LSN {lsn} in {} proves that everything up to {durable} was durable",
                self.end(),
                file_name(*file)
            ));
        }
        if self.tail_lsn < start.synced_lsn {
            self.damages.push(format!(
                "it ends {}, but everything up to {} was durable",
                self.end(),
                start.synced_lsn
            ));
        }
        if self.damages.is_empty() {
            return Ok(());
        }
        let durable =
            self.witness.as_ref().map_or(Lsn::ZERO, |w| w.durable).max(start.synced_lsn).max(self.tail_lsn);
        let lost = match durable.since(self.tail_lsn) {
            0 => format!("writes acknowledged after LSN {} may be lost", self.tail_lsn),
            _ => format!(
                "LSN {} to {durable} are lost, and writes acknowledged later may be lost",
                self.tail_lsn.next()
            ),
        };
        if !start.accept_loss {
            let behind = match self.beyond.records() {
                0 => String::new(),
                n => format!("; {n} later records still exist, up to LSN {}", self.max_lsn),
            };
            return Err(corrupt(format!("{JOURNAL_DAMAGED}: {}: {lost}{behind}", self.damages.join("; "))));
        }
        self.accepted = Some(Accepted {
            damages: std::mem::take(&mut self.damages),
            recovered_lsn: self.tail_lsn,
            last_lsn: self.max_lsn,
            durable_lsn: durable,
            beyond: std::mem::take(&mut self.beyond),
        });
        Ok(())
    }
}

/// Scans the journal. `visit` gets every record above `destaged_lsn`, in order, with its data.
///
/// If the journal may have references, the scan reads it twice. The first reading finds all records
/// that name an LSN as durable. Only then the scan knows which references are durable, and where
/// the log ends: see [`super::verify`]. `slots` gives access to the slots of the other references.
pub(crate) fn scan(
    dir: &dyn Dir,
    start: ScanStart,
    writable: bool,
    slots: &dyn Slots,
    visit: &mut dyn FnMut(&Located, &[u8]) -> Result<()>,
) -> Result<Scanned> {
    let mut scanned = Scanned::new(&start);
    let mut candidates = open_all(dir, &start, writable, &mut scanned)?;
    while let Some((index, header)) = next_in_chain(&candidates, &start, &scanned) {
        let candidate = candidates.swap_remove(index);
        if !follow(&candidate, header, &start, &mut scanned, visit)? {
            // Opened, but its first record is not there: the tail lies before it.
            candidates.push(candidate);
            break;
        }
        scanned.followed.push(candidate);
    }
    gather(&candidates, &start, &mut scanned);
    if start.references {
        verify::end_at_missing_data(&start, slots, &mut candidates, &mut scanned)?;
        if writable {
            verify::write_again(dir, &start, slots, &mut candidates, &mut scanned)?;
        }
    }
    scanned.conclude(&start)?;
    if start.references {
        verify::visit_all(&mut scanned, visit)?;
    }
    scanned.followed = Vec::new();
    let fit = candidates.into_iter().filter(|c| c.is_fit(start.segment_size));
    scanned.free.extend(fit.map(|c| c.file));
    scanned.free.sort_by_key(|f| std::cmp::Reverse(f.index));
    Ok(scanned)
}

/// Makes what a scan found durable, before anything acts on it. What is not known to have been
/// durable is written again: see [`super::tail`]. The scan itself has already written the slots of
/// such references again.
pub(crate) fn make_durable(dir: &dyn Dir, owner: &Owner, scanned: &Scanned) -> Result<()> {
    let first = scanned.unsynced.front();
    tracing::info!(
        segments = scanned.chain.len(),
        tail_lsn = scanned.tail_lsn.0,
        unsynced = scanned.unsynced.len(),
        damages = scanned.damages.len(),
        "the journal was scanned; records that are not known to be durable are written again"
    );
    if let Some(cut) = &scanned.cut {
        erase(dir, owner, &cut.file, cut.at)?;
    }
    for segment in &scanned.chain {
        if let Some(first) = first.filter(|first| first.seq <= segment.header.seq) {
            // The segment's own header was written with its first record.
            let inside = first.seq == segment.header.seq && first.at > FIRST_RECORD;
            write_again(dir, owner, &segment.file, if inside { first.at } else { 0 }, segment.end)?;
        } else {
            let synced = segment.file.disk.sync(SyncPurpose::JournalOpen);
            synced.map_err(|e| Error::io(format!("sync {}", file_name(segment.file.index)), e))?;
        }
    }
    dir.sync(SyncPurpose::Dir).map_err(|e| Error::io("sync the data directory", e))
}

/// Returns the candidate that continues the chain, and its header.
///
/// The function looks for a verified header first. Of two segments with the same `seq` the younger
/// incarnation counts. A header that does not verify, or can't be read, is worked out from the
/// records behind it. At the start of the log the named segment may be damaged while all of it is
/// in place. Then the next segment continues right behind `destaged_lsn`.
fn next_in_chain(
    candidates: &[Candidate],
    start: &ScanStart,
    scanned: &Scanned,
) -> Option<(usize, SegmentHeader)> {
    let last = scanned.chain.last();
    let fits = |h: &SegmentHeader| {
        h.seq == scanned.next_seq
            && match last {
                None => h.incarnation >= start.incarnation && h.prev_lsn < scanned.cursor.lsn,
                Some(s) => h.prev_lsn == s.last_lsn && h.incarnation >= s.header.incarnation,
            }
    };
    let skips = |h: &SegmentHeader| {
        last.is_none()
            && h.seq > start.seq
            && h.prev_lsn == start.destaged_lsn
            && h.incarnation >= start.incarnation
    };
    let headers = || candidates.iter().enumerate().filter_map(|(i, c)| Some((i, c.header?)));
    let fitting = headers().filter(|(_, h)| fits(h)).max_by_key(|(_, h)| h.incarnation);
    let nameless = || candidates.iter().enumerate().filter(|(_, c)| c.header.is_none());
    fitting
        .or_else(|| nameless().find_map(|(i, c)| Some((i, work_out_header(c, start, scanned)?))))
        .or_else(|| headers().filter(|(_, h)| skips(h)).max_by_key(|(_, h)| h.incarnation))
}

/// Works out the header of the segment that continues the chain, if this file holds that segment's
/// records behind a damaged header.
fn work_out_header(candidate: &Candidate, start: &ScanStart, scanned: &Scanned) -> Option<SegmentHeader> {
    let (pool, seq) = (start.owner.pool, scanned.next_seq);
    let disk = &*candidate.file.disk;
    let mut reader = SegmentReader::new(disk, SegmentHeader::salt_of(&pool, seq), candidate.len);
    let header = |h: Header, prev_lsn| SegmentHeader {
        pool,
        seq,
        incarnation: h.incarnation,
        first_lsn: h.lsn,
        prev_lsn,
    };
    let wanted = scanned.tail_lsn.next();
    let (least, newer) = match scanned.chain.last() {
        Some(last) => (last.header.incarnation, last.header.incarnation + 1),
        None => (start.incarnation, start.incarnation),
    };
    let continues = |h: &Header| h.lsn == wanted && h.incarnation >= least;
    let position = start.position().filter(|_| scanned.chain.is_empty());
    if scanned.chain.is_empty() && position.is_none_or(|c| c.at > FIRST_RECORD) {
        let found = match position {
            Some(c) => reader.next_record(c.at, |h| h.lsn == c.lsn && h.incarnation >= least).ok()?,
            None if candidate.blank => None,
            None => find_record(&mut reader, disk, FIRST_RECORD, continues),
        };
        // As if the record before it, which is in place, were its first one: where the known place
        // is not, it is sought again.
        return found.map(|FoundRecord { header: h, .. }| {
            let first_lsn = if position.is_some() { h.lsn } else { h.lsn.prev() };
            SegmentHeader { first_lsn, ..header(h, first_lsn.prev()) }
        });
    }
    let mut head = [0; HEADER_LEN];
    disk.read_at(&mut head, FIRST_RECORD).ok()?;
    Header::decode(&head, reader.salt())?;
    let first = reader.record(FIRST_RECORD).ok()??.header;
    // Inside of one incarnation LSNs have no gap. Another one begins behind what the catalog then
    // knew to be durable.
    let begins = first.lsn > wanted && first.incarnation >= newer && scanned.tail_lsn >= start.synced_lsn;
    (continues(&first) || begins).then(|| header(first, scanned.tail_lsn))
}

/// Returns the first record at or after `from` that `accept` takes and that verifies, wherever it
/// starts.
fn find_record(
    reader: &mut SegmentReader<'_>,
    disk: &dyn crate::disk::Disk,
    from: u64,
    accept: impl Fn(&Header) -> bool,
) -> Option<FoundRecord> {
    let mut found = None;
    search(disk, (from, reader.end()), &BTreeSet::from([reader.salt()]), &mut |at, header| {
        if accept(header) {
            found = reader.record(at).ok().flatten();
        }
        found.is_none()
    });
    found
}

/// Reads the records of one segment. Returns false when no segment can follow it.
fn follow(
    candidate: &Candidate,
    header: SegmentHeader,
    start: &ScanStart,
    scanned: &mut Scanned,
    visit: &mut dyn FnMut(&Located, &[u8]) -> Result<()>,
) -> Result<bool> {
    let disk = &*candidate.file.disk;
    let mut reader = SegmentReader::new(disk, header.salt(), candidate.len);
    let (mut at, mut lsn) = (FIRST_RECORD, header.first_lsn);
    if scanned.chain.is_empty() {
        if let Some(c) = start.position().filter(|c| c.seq == header.seq && c.lsn >= header.first_lsn) {
            (at, lsn) = (c.at, if c.at == FIRST_RECORD { header.first_lsn } else { c.lsn });
        }
        scanned.cursor = Cursor { seq: header.seq, at, lsn: lsn.min(start.destaged_lsn.next()) };
    }
    let begin = at;
    while let Some(found) = read_next(&mut reader, candidate, &header, (&mut at, &mut lsn), start, scanned) {
        scanned.note_unsynced(&found.header, Cursor { seq: header.seq, at, lsn });
        at = found.next;
        lsn = lsn.next();
        scanned.max_time = scanned.max_time.max(found.header.time);
        if found.header.lsn <= start.destaged_lsn {
            scanned.cursor = Cursor { seq: header.seq, at, lsn };
            continue;
        }
        let fail = |e| Error::io(format!("read {}", file_name(candidate.file.index)), e);
        if start.references {
            let at = found.data_at - HEADER_LEN as u64;
            let segment = scanned.chain.len() as u32;
            let refers = found.header.kind == Kind::Reference;
            scanned.places.push(RecordPlace { lsn: found.header.lsn, segment, refers, at: at as u32 });
            continue;
        }
        let data = reader.bytes(found.data_at, found.header.data_len as usize).map_err(fail)?;
        let located = Located { header: found.header, file: candidate.file.index, data_at: found.data_at };
        visit(&located, data)?;
    }
    if lsn == header.first_lsn && begin == FIRST_RECORD {
        return Ok(false);
    }
    let last_lsn = lsn.prev();
    candidate.file.seq.store(header.seq, std::sync::atomic::Ordering::Relaxed);
    scanned.tail_lsn = scanned.tail_lsn.max(last_lsn);
    scanned.max_lsn = scanned.max_lsn.max(last_lsn);
    scanned.max_incarnation = scanned.max_incarnation.max(header.incarnation);
    scanned.next_seq = header.seq + 1;
    scanned.chain.push(ChainSegment { file: candidate.file.clone(), header, last_lsn, end: at });
    Ok(true)
}

/// Reads the record with `lsn` at `at`. Damage does not matter where the records are in place
/// already. The place then moves to the first record that is needed.
fn read_next(
    reader: &mut SegmentReader<'_>,
    candidate: &Candidate,
    header: &SegmentHeader,
    (at, lsn): (&mut u64, &mut Lsn),
    start: &ScanStart,
    scanned: &mut Scanned,
) -> Option<FoundRecord> {
    let accept = |wanted: Lsn| move |h: &Header| h.lsn == wanted && h.incarnation == header.incarnation;
    let mut found = reader.next_record(*at, accept(*lsn));
    if !matches!(found, Ok(Some(_))) && *lsn <= start.destaged_lsn {
        *lsn = start.destaged_lsn.next();
        let needed = find_record(reader, &*candidate.file.disk, *at, accept(*lsn));
        if let Some(found) = needed {
            *at = found.data_at - HEADER_LEN as u64;
        }
        scanned.cursor = Cursor { seq: header.seq, at: *at, lsn: *lsn };
        return needed;
    }
    let fresh = align_up(*at, BLOCK);
    if found.is_err() && *lsn == start.synced_lsn.next() && *at != fresh {
        // The sync that the catalog knows of ended with the record before: the next one began a
        // block.
        found = reader.next_record(fresh, accept(*lsn));
    }
    found.unwrap_or_else(|e| {
        let name = file_name(candidate.file.index);
        scanned.damages.push(format!(
            "LSN {lsn}, if it was written, is at byte {at} of {name}, which can't be read: {e}"
        ));
        None
    })
}
