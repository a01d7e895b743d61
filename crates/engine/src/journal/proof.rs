//! The search for records beyond the tail of the log. Their LSNs are used up. A record that names
//! more as durable than the log holds proves a loss.
//!
//! A block that can't be read here is no evidence. That is sound, because no record in such a block
//! is needed: the log would go on at the tail or at the start of the next segment, and the scan has
//! read both.

use super::files::Candidate;
use super::record::{HEADER_LEN, Header, RECORD_ALIGN};
use super::scan::{ScanStart, Scanned};
use super::segment::{FIRST_RECORD, SegmentHeader, SegmentReader, file_name};
use crate::disk::Disk;
use crate::ids::Lsn;
use crate::units::BLOCK;
use std::collections::BTreeSet;

/// Bytes that are searched at a time.
const STRIDE: u64 = 64 << 10;
/// The number of consecutive unreadable blocks that ends the search of a file. A disk may take
/// seconds for each.
const MAX_UNREADABLE: u32 = 64;

/// A record that proves that more had been durable than the log holds.
#[derive(Debug, Clone)]
pub(super) struct Witness {
    pub(super) durable: Lsn,
    pub(super) lsn: Lsn,
    pub(super) file: u32,
}

/// Visits the headers in `from..end` whose salt is one of `salts`, wherever they start, with their
/// positions, while `visit` returns true. The search passes over blocks that can't be read, and
/// returns their number.
pub(super) fn search(
    disk: &dyn Disk,
    (from, end): (u64, u64),
    salts: &BTreeSet<u32>,
    visit: &mut dyn FnMut(u64, &Header) -> bool,
) -> u32 {
    let mut unreadable = 0;
    let mut in_a_row = 0;
    let mut at = from;
    let mut bytes = Vec::new();
    while at + HEADER_LEN as u64 <= end && in_a_row < MAX_UNREADABLE {
        // Long strides at first; around what can't be read block by block, without what reaches
        // into the next one.
        let read = [(STRIDE, HEADER_LEN as u64), (BLOCK, HEADER_LEN as u64), (BLOCK, 0)].into_iter().find(
            |(step, more)| {
                let next = (at / BLOCK * BLOCK + step).min(end);
                bytes.resize(((next + more).min(end) - at) as usize, 0);
                disk.read_at(&mut bytes, at).is_ok()
            },
        );
        let next = (at / BLOCK * BLOCK + read.map_or(BLOCK, |(step, _)| step)).min(end);
        if read.is_some() {
            in_a_row = 0;
            if !search_bytes(&bytes, (next - at) as usize, salts, &mut |offset, header| {
                visit(at + offset, header)
            }) {
                break;
            }
        } else {
            unreadable += 1;
            in_a_row += 1;
        }
        at = next;
    }
    unreadable
}

/// Returns false when `visit` returned false.
fn search_bytes(
    bytes: &[u8],
    limit: usize,
    salts: &BTreeSet<u32>,
    visit: &mut dyn FnMut(u64, &Header) -> bool,
) -> bool {
    let mut offset = 0;
    while offset < limit && offset + HEADER_LEN <= bytes.len() {
        let salt = Header::salt(&bytes[offset..]).filter(|salt| salts.contains(salt));
        let header = salt.and_then(|salt| Header::decode(&bytes[offset..], salt));
        if header.is_some_and(|header| !visit(offset as u64, &header)) {
            return false;
        }
        offset += RECORD_ALIGN as usize;
    }
    true
}

/// Searches the rest of the last segment and all files that are no part of the log.
pub(super) fn gather(candidates: &[Candidate], start: &ScanStart, scanned: &mut Scanned) {
    if let Some(tail) = scanned.chain.last().cloned() {
        let end = tail.file.disk.len().unwrap_or(0);
        let salts = BTreeSet::from([tail.header.salt()]);
        look_through(
            (&*tail.file.disk, tail.file.index, start.incarnation),
            (tail.end, end),
            &salts,
            scanned,
        );
        scanned.max_incarnation = scanned.max_incarnation.max(tail.header.incarnation);
    }
    // A file without a header is searched for any segment that the log may have had from its start
    // on.
    let segments = start.seq..=scanned.next_seq.saturating_add(candidates.len() as u64);
    let any = segments.map(|seq| SegmentHeader::salt_of(&start.owner.pool, seq)).collect();
    for candidate in candidates {
        let (disk, index) = (&*candidate.file.disk, candidate.file.index);
        let salts = match candidate.header {
            Some(header) => {
                scanned.max_incarnation = scanned.max_incarnation.max(header.incarnation);
                if header.seq < start.seq {
                    continue;
                }
                &BTreeSet::from([header.salt()])
            }
            None => &any,
        };
        if candidate.unreadable && hides_a_record(candidate, start, scanned) {
            scanned.damages.push(format!(
                "neither the header of {} nor the start of its records can be read: it may hold the records after LSN {}",
                file_name(index),
                scanned.tail_lsn
            ));
        }
        // A file that was never used need not be read as a whole: if it was, its first record is
        // there.
        let end = if candidate.blank { candidate.len.min(FIRST_RECORD + BLOCK) } else { candidate.len };
        look_through((disk, index, start.incarnation), (FIRST_RECORD, end), salts, scanned);
    }
}

/// For a file whose header can't be read: returns true when it also can't be determined whether the
/// log continues in the file.
fn hides_a_record(candidate: &Candidate, start: &ScanStart, scanned: &Scanned) -> bool {
    let salt = SegmentHeader::salt_of(&start.owner.pool, scanned.next_seq);
    let disk = &*candidate.file.disk;
    let at = match start.position() {
        _ if !scanned.chain.is_empty() => FIRST_RECORD,
        Some(position) => position.at,
        None => {
            let range = (FIRST_RECORD, candidate.len);
            return search(disk, range, &BTreeSet::from([salt]), &mut |_, _| true) > 0;
        }
    };
    SegmentReader::new(disk, salt, candidate.len).next_record(at, |h| h.lsn > scanned.tail_lsn).is_err()
}

/// Searches a range of one file for records beyond the tail, and notes them in `scanned`. `least`
/// is the first incarnation that may have written what is needed. A record of an incarnation before
/// `least` proves nothing: what it names as durable is in place, or was given up when a loss was
/// accepted.
fn look_through(
    (disk, file, least): (&dyn Disk, u32, u64),
    range: (u64, u64),
    salts: &BTreeSet<u32>,
    scanned: &mut Scanned,
) {
    let tail = scanned.tail_lsn;
    search(disk, range, salts, &mut |_, record| {
        if record.lsn > tail {
            scanned.max_lsn = scanned.max_lsn.max(record.lsn);
            scanned.max_time = scanned.max_time.max(record.time);
            if record.incarnation < least {
                return true;
            }
            scanned.beyond.add(record);
            scanned.proved = scanned.proved.max(record.synced_lsn);
            if record.synced_lsn > scanned.witness.as_ref().map_or(tail, |w| w.durable) {
                scanned.witness = Some(Witness { durable: record.synced_lsn, lsn: record.lsn, file });
            }
        }
        true
    });
}
