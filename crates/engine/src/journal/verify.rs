//! Recovery of references whose data may be lost (invariant D3 of docs/DURABILITY.md).
//!
//! A writer writes the data of a reference to slots, and then the reference to the journal. After a
//! power loss the journal may have the reference although the slots lack the data. If nothing names
//! a reference as durable, the opening believes it only if its slots verify. The first reference
//! that is not believed ends the log. The opening drops it and all records behind it. No flush that
//! covers one of them was acknowledged.
//!
//! A block that can't be read does not show whether the data was written. If all other blocks of
//! the reference verify, the opening believes the reference. It records the block as damage of its
//! place: the block can't be read until it is written again. A physical volume that does not answer
//! at all counts as damage of the journal. The opening then fails, unless the operator accepts the
//! loss.
//!
//! The header and the data of a dropped record still verify. A later life of the pool may write
//! records that name a larger LSN as durable. An opening after that would believe the dropped
//! record without reading its slots. So the opening that drops a record destroys its header before
//! it commits anything.

use super::cursor::Located;
use super::files::Candidate;
use super::record::Header;
use super::reference::{Reference, SlotRun};
use super::scan::{ScanStart, Scanned};
use super::segment::{FIRST_RECORD, FoundRecord, SegmentFile, SegmentReader, file_name};
use super::tail::write_slots_again;
use crate::codec::outer_sum;
use crate::disk::{Dir, Disk, Settled, is_unreadable};
use crate::error::{Error, Result, corrupt};
use crate::ids::Lsn;
use crate::rule::Rule;
use crate::units::BLOCK;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Access to the slots that references name.
pub(crate) trait Slots {
    /// Fills `buf` with the content of a run of slots. Returns false if this implementation does
    /// not judge slots. Then the caller believes the reference.
    fn read(&self, run: &SlotRun, buf: &mut [u8]) -> io::Result<bool>;

    /// Returns the path and the disk of a physical volume, if it is known. An opening that only
    /// reads the pool writes nothing to it.
    fn disk(&self, pv: u32) -> Option<(String, Arc<dyn Disk>)>;
}

/// An implementation of [`Slots`] that reads no slot, so that all references are believed. The
/// offline check uses it: it compares the slots that references name, and not their content.
pub(crate) struct Believed;

impl Slots for Believed {
    fn read(&self, _run: &SlotRun, _buf: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }

    fn disk(&self, _pv: u32) -> Option<(String, Arc<dyn Disk>)> {
        None
    }
}

/// The place of a record above `destaged_lsn`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordPlace {
    pub(super) lsn: Lsn,
    /// Index of its segment in the chain.
    pub(super) segment: u32,
    /// The record is a reference.
    pub(super) refers: bool,
    /// Position of its header in the segment, in bytes.
    pub(super) at: u32,
}

/// A place that can't be read: (number of the physical volume, bytes on it).
pub(crate) type UnreadablePlace = (u32, Range<u64>);

/// A reference that is believed because its slots verify. Nothing names it as durable.
pub(super) struct Verified {
    /// The index of the reference in [`Scanned::places`].
    index: usize,
    pub(super) reference: Reference,
    /// The blocks of the reference that can't be read.
    pub(super) unreadable: Vec<UnreadablePlace>,
}

/// The end of a log before a reference whose data is not in its slots. An opening that writes
/// destroys the header of that record.
pub(crate) struct Cut {
    pub(super) file: Arc<SegmentFile>,
    /// Position of the header in the file, in bytes.
    pub(super) at: u64,
    /// The LSN of the first dropped record.
    pub(crate) lsn: Lsn,
    /// Number of dropped records.
    pub(crate) dropped: u64,
}

/// The result of the comparison of slots with a reference.
enum SlotContent {
    /// All blocks that can be read match the reference. The list has the blocks that can't be read.
    /// It is empty, too, if the slots can't be judged.
    Data(Vec<UnreadablePlace>),
    Other,
    NoAnswer(io::Error),
}

/// Reads the slots of the references that nothing names as durable. Ends the log before the first
/// reference whose data is not in its slots.
pub(super) fn end_at_missing_data(
    start: &ScanStart,
    slots: &dyn Slots,
    candidates: &mut Vec<Candidate>,
    scanned: &mut Scanned,
) -> Result<()> {
    if !Rule::References.is_kept() {
        return Ok(());
    }
    let known = scanned.known_durable();
    let first = scanned.places.partition_point(|place| place.lsn <= known);
    for index in first..scanned.places.len() {
        let place = scanned.places[index];
        if !place.refers {
            continue;
        }
        let (found, data) = read_record(scanned, &place)?;
        let reference = decode(&found.header, &data)?;
        match read_content(&reference, slots) {
            SlotContent::Data(unreadable) => scanned.verified.push(Verified { index, reference, unreadable }),
            SlotContent::Other => {
                end_before(index, candidates, scanned)?;
                break;
            }
            SlotContent::NoAnswer(error) => {
                scanned.damages.push(format!(
                    "LSN {} refers to data on a physical volume that can't be read, so that it is unknown whether it is the last one: {error}",
                    place.lsn
                ));
                if start.accept_loss {
                    end_before(index, candidates, scanned)?;
                }
                break;
            }
        }
    }
    Ok(())
}

/// Writes the slots again of the references that are believed because they verify. After a failed
/// sync, a clean page of the page cache does not prove that its content is on the disk. A reference
/// whose slots can't be written counts as damage of the journal.
pub(super) fn write_again(
    dir: &dyn Dir,
    start: &ScanStart,
    slots: &dyn Slots,
    candidates: &mut Vec<Candidate>,
    scanned: &mut Scanned,
) -> Result<()> {
    while let Err((pv, error)) = write_slots_again(dir, &start.owner, &scanned.verified, slots)? {
        let on_it = |reference: &Reference| reference.runs.iter().any(|run| run.first.pv() == pv);
        let Some(at) = scanned.verified.iter().position(|verified| on_it(&verified.reference)) else {
            return Err(Error::io(format!("write the data of references on PV {pv} again"), error));
        };
        let index = scanned.verified[at].index;
        let path = slots.disk(pv).map_or_else(|| format!("PV {pv}"), |(path, _)| path);
        scanned.damages.push(format!(
            "LSN {} refers to data on {path}, which takes no writes, so that the data can't be made durable: {error}",
            scanned.places[index].lsn
        ));
        if !start.accept_loss {
            break;
        }
        scanned.verified.truncate(at);
        end_before(index, candidates, scanned)?;
    }
    Ok(())
}

/// Calls `visit` for every record in [`Scanned::places`], in order.
pub(super) fn visit_all(
    scanned: &mut Scanned,
    visit: &mut dyn FnMut(&Located, &[u8]) -> Result<()>,
) -> Result<()> {
    let places = std::mem::take(&mut scanned.places);
    for of_segment in places.chunk_by(|a, b| a.segment == b.segment) {
        let segment = &scanned.chain[of_segment[0].segment as usize];
        let end = segment.file.disk.len().map_err(|e| failed(segment.file.index, e))?;
        let mut reader = SegmentReader::new(&*segment.file.disk, segment.header.salt(), end);
        for place in of_segment {
            let found = record_at(&mut reader, segment.file.index, place)?;
            let len = found.header.data_len as usize;
            let data = reader.bytes(found.data_at, len).map_err(|e| failed(segment.file.index, e))?;
            let located = Located { header: found.header, file: segment.file.index, data_at: found.data_at };
            visit(&located, data)?;
        }
    }
    Ok(())
}

fn failed(file: u32, error: io::Error) -> Error {
    Error::io(format!("read {}", file_name(file)), error)
}

/// Decodes the data of a reference.
pub(crate) fn decode(header: &Header, data: &[u8]) -> Result<Reference> {
    Reference::decode(header, data)
        .ok_or_else(|| corrupt(format!("read LSN {}: the reference makes no sense", header.lsn)))
}

fn read_record(scanned: &Scanned, place: &RecordPlace) -> Result<(FoundRecord, Vec<u8>)> {
    let segment = &scanned.chain[place.segment as usize];
    let file = segment.file.index;
    let end = segment.file.disk.len().map_err(|e| failed(file, e))?;
    let mut reader = SegmentReader::new(&*segment.file.disk, segment.header.salt(), end);
    let found = record_at(&mut reader, file, place)?;
    let data = reader.bytes(found.data_at, found.header.data_len as usize);
    Ok((found, data.map_err(|e| failed(file, e))?.to_vec()))
}

fn record_at(reader: &mut SegmentReader<'_>, file: u32, place: &RecordPlace) -> Result<FoundRecord> {
    let found = reader.record(place.at.into()).map_err(|e| failed(file, e))?;
    found.filter(|found| found.header.lsn == place.lsn).ok_or_else(|| {
        let name = file_name(file);
        corrupt(format!("read LSN {} at byte {} of {name} again: it has changed", place.lsn, place.at))
    })
}

fn read_content(reference: &Reference, slots: &dyn Slots) -> SlotContent {
    let mut data = Vec::new();
    for run in &reference.runs {
        let from = data.len();
        data.resize(from + ((run.count as usize) << reference.slot_log2), 0);
        match slots.read(run, &mut data[from..]) {
            Ok(true) => {}
            Ok(false) => return SlotContent::Data(Vec::new()),
            Err(error) if is_unreadable(&error) => return read_blocks(reference, slots),
            Err(error) => return SlotContent::NoAnswer(error),
        }
    }
    match agrees(reference, &data, slots) || has_right_copies(reference, &mut data, slots) {
        true => SlotContent::Data(Vec::new()),
        false => SlotContent::Other,
    }
}

/// Returns whether `data`, which was read from the slots of a reference, verifies, and all copies
/// of a mirror are like it. Later reads may take another copy.
fn agrees(reference: &Reference, data: &[u8], slots: &dyn Slots) -> bool {
    let mut rest = data;
    reference.verifies(data)
        && reference.runs.iter().all(|run| {
            let (part, behind) = rest.split_at((run.count as usize) << reference.slot_log2);
            rest = behind;
            slots.disk(run.first.pv()).is_none_or(|(_, disk)| {
                disk.as_layout().is_none() || disk.agrees(part, run.first.offset()).unwrap_or(false)
            })
        })
}

/// Returns whether a mirror has a right copy of each block of a reference, and makes all copies
/// like it. `data` is what was read.
fn has_right_copies(reference: &Reference, data: &mut [u8], slots: &dyn Slots) -> bool {
    data.chunks_exact_mut(BLOCK as usize).zip(reference.blocks()).all(|(block, (place, sum))| {
        let is_right = |copy: &[u8]| outer_sum(copy) == sum;
        let is_plain = slots.disk(place.pv()).is_none_or(|(_, disk)| disk.as_layout().is_none());
        is_plain && is_right(block)
            || slots.disk(place.pv()).is_some_and(|(_, disk)| {
                disk.settle(block, place.offset(), &is_right).is_ok_and(|found| found != Settled::NoneRight)
            })
    })
}

/// Reads the slots of a reference block by block, because some of them can't be read.
fn read_blocks(reference: &Reference, slots: &dyn Slots) -> SlotContent {
    let mut unreadable = Vec::new();
    let mut block = [0; BLOCK as usize];
    for (place, sum) in reference.blocks() {
        let Some((_, disk)) = slots.disk(place.pv()) else { return SlotContent::Data(Vec::new()) };
        match disk.read_at(&mut block, place.offset()) {
            Ok(()) if outer_sum(&block) != sum => {
                let settled = disk.settle(&mut block, place.offset(), &|copy| outer_sum(copy) == sum);
                if settled.is_ok_and(|found| found != Settled::NoneRight) {
                    continue;
                }
                return SlotContent::Other;
            }
            Ok(()) => {}
            Err(error) if is_unreadable(&error) => match disk.answers() {
                Ok(()) => unreadable.push((place.pv(), place.offset()..place.offset() + BLOCK)),
                Err(error) => return SlotContent::NoAnswer(error),
            },
            Err(error) => return SlotContent::NoAnswer(error),
        }
    }
    SlotContent::Data(unreadable)
}

/// Ends the log before the record at `index`. Files behind the end are no part of the log any more.
/// If the journal is damaged, the dropped records may have been acknowledged as durable. Then
/// `scanned.beyond` lists them as lost.
fn end_before(index: usize, candidates: &mut Vec<Candidate>, scanned: &mut Scanned) -> Result<()> {
    let place = scanned.places[index];
    if !scanned.damages.is_empty() {
        for lost in index..scanned.places.len() {
            let (found, _) = read_record(scanned, &scanned.places[lost])?;
            scanned.beyond.add(&found.header);
        }
    }
    let dropped = (scanned.places.len() - index) as u64;
    tracing::info!(
        lsn = place.lsn.0,
        dropped,
        "the journal ends before a reference whose data was not written: nothing of it was promised"
    );
    let segment = place.segment as usize;
    let file = scanned.chain[segment].file.clone();
    scanned.cut = Some(Cut { file, at: place.at.into(), lsn: place.lsn, dropped });
    scanned.places.truncate(index);
    scanned.unsynced.retain(|cursor| cursor.lsn < place.lsn);
    let of_cut = &mut scanned.chain[segment];
    let stays = place.lsn > of_cut.header.first_lsn || u64::from(place.at) > FIRST_RECORD;
    (of_cut.last_lsn, of_cut.end) = (place.lsn.prev(), place.at.into());
    let left = segment + usize::from(stays);
    scanned.chain.truncate(left);
    for candidate in scanned.followed.drain(left..) {
        candidate.file.seq.store(0, Ordering::Relaxed);
        candidates.push(candidate);
    }
    scanned.tail_lsn = match scanned.chain.last() {
        Some(last) => last.last_lsn.max(scanned.cursor.lsn.prev()),
        None => scanned.cursor.lsn.prev(),
    };
    scanned.next_seq = match scanned.chain.last() {
        Some(last) => last.header.seq + 1,
        None => scanned.cursor.seq,
    };
    Ok(())
}
