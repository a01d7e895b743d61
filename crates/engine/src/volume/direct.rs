//! Writes by reference. The data of a large write goes to lent slots before the write is sequenced
//! (decision 63).

use super::Volume;
use super::write::Request;
use crate::codec::align_up;
use crate::disk::Cause;
use crate::error::Result;
use crate::ids::Epoch;
use crate::journal::Record;
use crate::journal::record::{Kind, PieceCrcs};
use crate::journal::reference::{CHUNK_LOG2, Reference, SlotRun, sums_of};
use crate::settings::{DirectMin, Method};
use crate::space::lent::TakenRuns;
use crate::space::reservations::full;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Size in bytes of the largest single write to a slot. The kernel makes the folios of the page
/// cache as large as the write that first fills them. A later write to a part of a folio goes
/// through the whole folio.
const MAX_SLOT_WRITE: usize = 64 << 10;
/// A flush is near if clients write fewer than this number of bytes between flushes.
const FLUSH_IS_NEAR: u64 = 1 << 20;
/// Where a flush is near, a write needs this number of times the configured bytes to go by
/// reference. The flush behind a reference syncs two files instead of one.
const NEAR_FLUSH_FACTOR: u64 = 4;

/// Bytes of references that may be written and not yet synced, as `Journal::unsynced_referred`
/// counts them. An opening after a crash reads these bytes and writes them again.
const MOST_UNSYNCED: u64 = 256 << 20;

/// The conditions that decide whether a write goes by reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) chunk_log2: u8,
    /// The write must be durable when the server answers it.
    pub(super) fua: bool,
    /// The configured least number of bytes of a write by reference.
    pub(super) min: u64,
    /// Bytes that the volume's clients write between two flushes.
    pub(super) per_flush: u64,
    /// The largest number of bytes of one record. A request of at most this length is one record. A
    /// longer request is cut at multiples of this number. The cuts do not depend on which records
    /// are references.
    pub(super) max_record: u64,
}

impl Wish {
    /// Returns the bytes of the volume that go by reference: whole records of whole chunks. The
    /// rest of the request goes inline. Returns `None` if the whole request goes inline.
    pub(super) fn direct(&self) -> Option<Range<u64>> {
        let size = 1u64 << self.chunk_log2;
        if !CHUNK_LOG2.contains(&self.chunk_log2) || size > self.max_record {
            return None;
        }
        let near = self.fua || self.per_flush < FLUSH_IS_NEAR;
        let least = if near { self.min.saturating_mul(NEAR_FLUSH_FACTOR) } else { self.min };
        let end = self.offset + self.len;
        let whole = if self.len <= self.max_record {
            let is_whole = self.offset.is_multiple_of(size) && end.is_multiple_of(size);
            if is_whole { self.offset..end } else { end..end }
        } else {
            let start = if self.offset.is_multiple_of(size) { size } else { self.max_record };
            let last = if end.is_multiple_of(size) { size } else { self.max_record };
            align_up(self.offset, start)..end / last * last
        };
        (whole.start < whole.end && whole.end - whole.start >= least).then_some(whole)
    }
}

/// A part of a request whose data is written to its slots.
pub(super) struct Direct {
    /// Bytes of the volume.
    pub(super) bytes: Range<u64>,
    pub(super) taken: TakenRuns,
}

impl Volume {
    /// Writes the part of a request that goes by reference to lent slots. Returns `None` if the
    /// whole request goes inline: the write is too short or has no whole chunks, the volume does
    /// not use references, the journal takes a burst, there are no lent slots, too much is referred
    /// to and not in place, or a disk failed.
    pub(super) fn write_direct(&self, offset: u64, data: &Bytes, fua: bool) -> Option<Direct> {
        let (core, branch) = (&self.core, self.branch());
        let min = match self.state.direct_min() {
            DirectMin::OfPool => core.options.direct_min?,
            DirectMin::Never => return None,
            DirectMin::Bytes(bytes) => bytes,
        };
        let len = data.len() as u64;
        if len < min.max(1 << branch.chunk_log2)
            || !core.may_write_by_reference()
            || core.places_by_chunk(branch)
        {
            return None;
        }
        let suits = branch.chunk_log2 == branch.slot_log2
            && branch.method() == Method::Redirect
            && self.history_suits();
        let wish = Wish {
            offset,
            len,
            chunk_log2: branch.chunk_log2,
            fua,
            min,
            per_flush: branch.flush_pace.per_flush(),
            max_record: core.max_record_bytes(),
        };
        let bytes = wish.direct().filter(|_| suits && core.is_streaming())?;
        if core.positions.referred.load(Ordering::Relaxed)
            > core.positions.may_be_referred.load(Ordering::Relaxed)
        {
            // Destage comes first: the slots that the references replace become free only then.
            return None;
        }
        if core.journal.unsynced_referred() > MOST_UNSYNCED {
            core.journal.sync_all().ok()?;
        }
        let count = u32::try_from((bytes.end - bytes.start) >> branch.chunk_log2).ok()?;
        let refuses = |pv: u32| !core.pvs.held(pv).is_some_and(|pv| pv.takes_references());
        let taken = core.lent.take(branch.kind(), count, refuses);
        if core.lent.wants_more(branch.kind(), count) {
            core.wake();
        }
        let taken = taken?;
        let _alarm = core.fault.alarm("data was written to lent slots");
        let mut at = (bytes.start - offset) as usize;
        for run in taken.runs() {
            let len = (u64::from(run.count) << branch.slot_log2) as usize;
            self.fill_run(run, &data[at..at + len]).ok()?;
            at += len;
        }
        core.positions.written_direct.fetch_add(bytes.end - bytes.start, Ordering::Relaxed);
        Some(Direct { bytes, taken })
    }

    /// Writes `data` to a run of slots. After an error no record refers to the slots, so the data
    /// in them has no effect.
    fn fill_run(&self, run: &SlotRun, data: &[u8]) -> Result<()> {
        let _cause = Cause::Reference.begin();
        let pv = self.core.pvs.held(run.first.pv()).ok_or_else(full)?;
        let start = run.first.offset();
        for (index, piece) in data.chunks(MAX_SLOT_WRITE).enumerate() {
            let at = start + (index * MAX_SLOT_WRITE) as u64;
            let failed = |e| pv.write_failed(format!("write to {} at byte {at}", pv.path), e);
            pv.disk.write_at(piece, at).map_err(failed)?;
        }
        // Blocks of these slots that could not be read belonged to other data.
        self.core.damage.written(pv.id, start..start + data.len() as u64, &[]);
        self.core.journal.note_referred(pv, data.len() as u64);
        Ok(())
    }

    /// Adds the references to a request, for the data that [`Volume::write_direct`] wrote. `data`
    /// is that data.
    pub(super) fn add_references(&self, request: &mut Request, direct: Direct, data: &Bytes) {
        let branch = self.branch();
        let slot_log2 = branch.slot_log2;
        let most = self.core.max_record_bytes();
        let Direct { bytes, mut taken } = direct;
        let mut at = bytes.start;
        while at < bytes.end {
            // References are cut like inline records: a request that fits into one record is one
            // record.
            let next = if request.len <= most { bytes.end } else { ((at / most + 1) * most).min(bytes.end) };
            let part = &data[(at - bytes.start) as usize..(next - bytes.start) as usize];
            let runs = taken.split(((next - at) >> slot_log2) as u32);
            let reference = Reference { slot_log2, runs: runs.runs().to_vec(), sums: sums_of(part) };
            let encoded = reference.encode();
            request.records.push(Record {
                kind: Kind::Reference,
                branch: branch.id,
                // The epoch is set when the record is sequenced.
                epoch: Epoch::NONE,
                offset: at,
                length: next - at,
                slots: 0,
                crcs: PieceCrcs::of(0, &encoded),
                alone: false,
                data: encoded,
                reference: Some(Box::new(reference)),
                staging: Some(branch.staging.clone()),
            });
            request.taken.push_back(runs);
            at = next;
        }
    }

    /// Returns whether the volume has no history, or one that may keep what references replace.
    fn history_suits(&self) -> bool {
        !self.branch().cdp.is_on() || self.core.options.keep_distance.is_some()
    }

    /// Returns whether a reference to these slots may be sequenced now. The caller holds the
    /// sequencing lock, because histories begin under it. A physical volume refuses references
    /// before the operation that drains or removes it is sequenced.
    pub(super) fn may_refer(&self, taken: Option<&TakenRuns>) -> bool {
        let takes =
            |run: &SlotRun| self.core.pvs.held(run.first.pv()).is_some_and(|pv| pv.takes_references());
        self.history_suits() && taken.is_some_and(|taken| taken.runs().iter().all(takes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn wish(offset: u64, len: u64) -> Wish {
        let (chunk_log2, min, max_record) = (14, 64 * KIB, 128 * KIB);
        Wish { offset, len, chunk_log2, fua: false, min, per_flush: u64::MAX, max_record }
    }

    #[test]
    fn what_goes_by_reference() {
        let direct = |wish: Wish| wish.direct().map(|bytes| (bytes.start / KIB, bytes.end / KIB));
        for (offset, len, expected) in [
            (0, 64, Some((0, 64))),
            (0, 48, None),
            (16, 64, Some((16, 80))),
            // Inline this is one record, so it is not cut.
            (4, 64, None),
            (4, 128, None),
            (4, 132, None),
            (4, 252, Some((128, 256))),
            (16, 300, Some((16, 256))),
            (0, 130, Some((0, 128))),
            (0, 1024, Some((0, 1024))),
            (96, 1024, Some((96, 1120))),
            (8, 70, None),
        ] {
            assert_eq!(direct(wish(offset * KIB, len * KIB)), expected, "{offset} {len}");
        }
        let near = |of: Wish| Wish { per_flush: 512 * KIB, ..of };
        let fua = |of: Wish| Wish { fua: true, ..of };
        for (len, expected) in [(128, None), (255, None), (256, Some((0, 256)))] {
            assert_eq!(direct(near(wish(0, len * KIB))), expected, "a flush is near, {len}");
            assert_eq!(direct(fua(wish(0, len * KIB))), expected, "FUA, {len}");
        }
        let chunk = |chunk_log2, of: Wish| Wish { chunk_log2, ..of };
        for (chunk_log2, len, expected) in [
            (9, 64, None),
            (11, 64, None),
            (12, 64, Some((0, 64))),
            (17, 127, None),
            (17, 1024, Some((0, 1024))),
            // A chunk is longer than a record.
            (18, 1024, None),
        ] {
            assert_eq!(direct(chunk(chunk_log2, wish(0, len * KIB))), expected, "{chunk_log2} {len}");
        }
    }
}
