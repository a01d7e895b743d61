//! Moments that destage has not come to yet. They are opened and read at once.
//!
//! Everything up to an LSN is settled, so the moment of that LSN can be reconstructed. A later
//! moment is that one, with the records between the two applied. Their data is in the journal.
//! While the moment is open, destage goes on. So each read begins with the moment that is settled
//! now, and needs only the records behind that one. When the moment itself is settled, no record is
//! needed any more.
//!
//! These things make a read right while destage is at work:
//!
//! - The reader enters a grace period, and then looks up what is settled. A segment of the journal
//!   that is released after that is not used again before the reader leaves. A segment that was
//!   released before has only records that are settled by then: destage polls for segments without
//!   readers only after it has published the LSN that is settled.
//! - What is settled can be reconstructed at any time, while anything is carried out: that is so
//!   for all moments. The moment that was settled at the opening is pinned, so none after it
//!   expires.
//! - The list of records is made once. It is complete from what is settled at the opening up to the
//!   moment. A record leaves the lists of staging only after its LSN was published as settled.
//!
//! The records do not state everything. Where the volume's size, its branch or the way in which it
//! is recorded changed behind what is settled, the moment is carried out first.

use super::By;
use crate::branch::Branch;
use crate::branch::pinned::PinnedMoment;
use crate::branch::unsettled::Unsettled;
use crate::catalog::LineRecord;
use crate::codec::outer_sum;
use crate::core::Core;
use crate::error::{Error, Result, corrupt};
use crate::ids::{Chunk, Lsn, Stamp, VolumeId};
use crate::journal::reference::Reference;
use crate::staging::{StagedKind, StagedRecord};
use crate::units::BLOCK;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Core {
    /// Returns the settled moment that a moment is made from, and the records that make it. Returns
    /// the moment itself, and no records, if it is settled. The caller has entered a grace period.
    pub(super) fn settled_before(&self, at: &PinnedMoment) -> (Lsn, Option<Arc<Unsettled>>) {
        let Some(unsettled) = at.unsettled() else { return (at.lsn, None) };
        let settled = self.positions.settled();
        if settled >= at.lsn {
            at.settle();
            return (at.lsn, None);
        }
        (settled, Some(unsettled))
    }

    /// Returns a chunk as it was at a moment.
    pub(super) fn chunk_of_moment(&self, at: &PinnedMoment, chunk: Chunk) -> Result<Vec<u8>> {
        let _reading = self.readers.enter();
        let (mut from, unsettled) = self.settled_before(at);
        let Some(unsettled) = unsettled else { return self.chunk_at(&at.branch, chunk, from) };
        self.check_histories()?;
        loop {
            if let Some(content) = self.unsettled_chunk(at, &unsettled, chunk, from)? {
                return Ok(content);
            }
            // Parts were written over a slot that a reference names. Destage does that after the
            // commit with which the history has the whole batch (D5).
            let known = self.positions.settled().max(self.positions.preserved()).min(at.lsn);
            if known <= from {
                return Err(corrupt(format!(
                    "read chunk {chunk} at LSN {}: data of a reference does not match its sums",
                    at.lsn
                )));
            }
            from = known;
        }
    }

    /// Returns a chunk as it was at a moment: as it was at `from`, with the unsettled records
    /// behind that. Returns `None` if a slot that one of them names has newer content by now.
    fn unsettled_chunk(
        &self,
        at: &PinnedMoment,
        unsettled: &Unsettled,
        chunk: Chunk,
        from: Lsn,
    ) -> Result<Option<Vec<u8>>> {
        let bytes = chunk.bytes(at.branch.chunk_log2);
        let mut content = vec![0; at.branch.chunk_size() as usize];
        // The parts that no newer record has.
        let mut left = vec![bytes.clone()];
        for record in unsettled.newest_first(bytes.clone(), from) {
            let (found, rest) = split(left, &(record.offset..record.offset + record.length));
            left = rest;
            if !found.is_empty() && record.kind.has_data() {
                let Some(data) = unsettled.data_of(record, || self.staged_data(record))? else {
                    return Ok(None);
                };
                for part in found {
                    let from = (part.start - record.offset) as usize;
                    let len = (part.end - part.start) as usize;
                    let to = (part.start - bytes.start) as usize;
                    content[to..to + len].copy_from_slice(&data[from..from + len]);
                }
            }
            if left.is_empty() {
                return Ok(Some(content));
            }
        }
        let before = self.chunk_at(&at.branch, chunk, from)?;
        for part in left {
            let part = (part.start - bytes.start) as usize..(part.end - bytes.start) as usize;
            content[part.clone()].copy_from_slice(&before[part]);
        }
        Ok(Some(content))
    }

    /// Returns the data of a record that waits for destage, or `None` if it is in slots that have
    /// other content by now.
    fn staged_data(&self, record: &StagedRecord) -> Result<Option<Arc<[u8]>>> {
        let data = self.journal.read_again(record)?;
        if record.kind != StagedKind::Reference {
            return Ok(Some(data));
        }
        let (lsn, offset, length) = (record.stamp.lsn, record.offset, record.length);
        let reference = Reference::of_range(offset, length, &data)
            .ok_or_else(|| corrupt(format!("read LSN {lsn}: the reference makes no sense")))?;
        let mut content = vec![0; length as usize];
        let mut rest = &mut content[..];
        for run in &reference.runs {
            let (part, behind) = rest.split_at_mut((u64::from(run.count) << reference.slot_log2) as usize);
            let pv = self.pvs.get(run.first.pv())?;
            let failed = |e| Error::io(format!("read LSN {lsn} from {}", pv.path), e);
            pv.disk.read_at(part, run.first.offset()).map_err(failed)?;
            rest = behind;
        }
        if !reference.verifies(&content) {
            self.settle_reference(&reference, &mut content)?;
        }
        Ok(reference.verifies(&content).then(|| content.into()))
    }

    /// Replaces the blocks of a reference that were read from a wrong copy of a mirror.
    fn settle_reference(&self, reference: &Reference, content: &mut [u8]) -> Result<()> {
        for (block, (place, sum)) in content.chunks_exact_mut(BLOCK as usize).zip(reference.blocks()) {
            if outer_sum(block) != sum {
                let pv = self.pvs.get(place.pv())?;
                // Without a right copy the block stays as it is.
                let _ = pv.disk.settle(block, place.offset(), &|copy| outer_sum(copy) == sum);
            }
        }
        Ok(())
    }

    /// Returns the last record or anchor of a volume that is not settled and that `by` reaches, if
    /// there is one. Returns the outer `None` if everything up to there is settled,
    /// or has to be, before the moment can be shown.
    pub(crate) fn last_unsettled(&self, volume: VolumeId, by: By) -> Result<Option<Option<Stamp>>> {
        let last = match by {
            By::Lsn(lsn) => lsn.min(self.journal.last().lsn),
            By::Time(_) => self.journal.last().lsn,
        };
        let settled = self.positions.settled();
        let is_settled = match by {
            By::Lsn(lsn) => lsn <= settled,
            By::Time(time) => last <= settled || time < self.positions.settled_time.load(Ordering::Acquire),
        };
        if is_settled {
            return Ok(None);
        }
        let Some(branch) = self.shown_by_journal(volume, settled) else { return Ok(None) };
        self.check_usable()?;
        self.journal.write_out(last)?;
        Ok(branch.cdp.waiting.last(|| self.positions.settled(), |at| by.reaches(at)))
    }

    /// Returns the branch that a volume has written to since `settled`, if the records of the
    /// journal state everything that has changed since then.
    fn shown_by_journal(&self, volume: VolumeId, settled: Lsn) -> Option<Arc<Branch>> {
        if self.salvage.get().is_some() {
            // In a salvage no record is carried out.
            return None;
        }
        let branch = self.names.read().volume_by_id(volume)?.line.branch.clone();
        let lines = self.lines.read();
        let of_volume = lines.get(&volume)?.values().rev();
        let mut branches = of_volume.filter_map(|line| match line {
            LineRecord::Branch { branch, .. } => Some(*branch),
            LineRecord::Mark { .. } => None,
        });
        let is_last = branches.next() == Some(branch.id);
        drop(lines);
        (is_last && is_recorded(&branch, settled)).then_some(branch)
    }

    /// Pins a moment and keeps the records that make it, if it is not settled. Returns `None` if it
    /// is settled, or has to be, before it can be shown. Everything up to it must be written.
    pub(crate) fn pin_unsettled(&self, branch: &Arc<Branch>, lsn: Lsn) -> Option<Arc<PinnedMoment>> {
        // The moment is pinned first, so that everything that is read after this stays.
        let from = PinnedMoment::new(branch, self.positions.settled());
        if !from.kept || lsn <= from.lsn || !is_recorded(branch, from.lsn) {
            return None;
        }
        let (waiting, mut room) = (&branch.cdp.waiting, self.positions.unsettled.room());
        let has_room = |count| room.grow(count * size_of::<StagedRecord>());
        let (settled, records) = waiting.unsettled(|| self.positions.settled(), lsn, has_room)?;
        if lsn <= settled {
            return None;
        }
        let at = PinnedMoment::not_settled(branch, lsn, Unsettled::new(branch, from, records, room)?);
        self.positions.unsettled.add(&at);
        if lsn <= self.positions.settled() {
            // Destage has not seen this one.
            at.settle();
        }
        Some(at)
    }
}

/// Returns whether a branch was recorded at a settled moment, and since then as it was.
fn is_recorded(branch: &Branch, settled: Lsn) -> bool {
    let log = branch.cdp.log.read();
    let was = log.settings.is_some() && log.floor() <= settled && log.recording_since(settled).is_some();
    was && !branch.cdp.waiting.turned_after(settled)
}

/// Returns the parts of ranges that lie in `with`, and those that do not.
fn split(ranges: Vec<Range<u64>>, with: &Range<u64>) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let (mut inside, mut outside) = (Vec::new(), Vec::with_capacity(ranges.len() + 1));
    for range in ranges {
        let part = range.start.max(with.start)..range.end.min(with.end);
        if part.is_empty() {
            outside.push(range);
            continue;
        }
        let rest = [range.start..part.start, part.end..range.end];
        outside.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
        inside.push(part);
    }
    (inside, outside)
}
