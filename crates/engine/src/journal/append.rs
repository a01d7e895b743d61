//! Group append and sync: leaders and followers.

use super::cursor::Located;
use super::record::{HEADER_LEN, Kind, PieceCrcs, cuts};
use super::reference::Reference;
use super::segment::SegmentFile;
use super::{Journal, Pending, State};
use crate::codec::align_up;
use crate::disk::SyncPurpose;
use crate::error::{Error, Result};
use crate::ids::{Lsn, Slot};
use crate::staging::{Range, StagedExtent, StagedKind, StagedPlace, StagedRecord, Staging};
use crate::units::{BLOCK, SECTOR};
use parking_lot::MutexGuard;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The number of bytes written and not yet synced at which a sync begins in the background. The
/// number bounds how long a flush, or a snapshot, waits for what others have written.
const WRITE_BACK: u64 = 512 << 10;

/// The number of bytes written to slots by reference that count as one byte of the journal for
/// [`WRITE_BACK`]: a sync begins after 8 MiB of them. The number also bounds what an opening writes
/// again.
const REFERRED_PER_BYTE: u64 = 16;

/// The least number of bytes of which the time of a sync says something about the disk's speed.
const MEASURED: u64 = 1 << 20;

const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

impl Journal {
    /// Returns when every record up to `lsn` is written and staged. The calling thread leads the
    /// group or follows its leader.
    pub(crate) fn write_out(&self, lsn: Lsn) -> Result<()> {
        if self.written() >= lsn {
            return Ok(());
        }
        let mut state = self.state.lock();
        while self.written() < lsn {
            self.fault.check()?;
            if state.leader {
                self.wait(&mut state);
            } else {
                state = self.lead(state)?;
            }
        }
        Ok(())
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        state.waiters += 1;
        self.changed.wait(state);
        state.waiters -= 1;
    }

    /// Writes all queued records as one group.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        state.leader = true;
        let leading = Part::new(self, |state| &mut state.leader, "a group was written to the journal");
        let mut group = std::mem::take(&mut state.queue);
        drop(state);
        let outcome = self.write_group(&mut group);
        let last = group.last().map(|p| p.header.lsn);
        let referred: u64 = group.iter().map(Pending::referred).sum();
        let mut files: Vec<Arc<SegmentFile>> = Vec::new();
        for pending in group.drain(..) {
            if files.last().is_none_or(|f| f.index != pending.file.index) {
                files.push(pending.file);
            }
        }
        let mut state = leading.end();
        if state.queue.capacity() == 0 {
            state.queue = group;
        }
        let outcome = outcome.map_err(|error| self.fault.poison(&error));
        if let Ok(bytes) = &outcome {
            state.unsynced += bytes + referred / REFERRED_PER_BYTE;
            if state.unsynced >= WRITE_BACK && state.awaits_write_back {
                state.awaits_write_back = false;
                self.write_back.notify_one();
            }
            for file in files {
                if !state.dirty.iter().any(|f| f.index == file.index) {
                    state.dirty.push(file);
                }
            }
            if let Some(last) = last {
                self.written.store(last.0, Ordering::Release);
            }
        }
        if state.waiters > 0 {
            self.changed.notify_all();
        }
        outcome.map(|_| state)
    }

    /// Writes one group and returns the number of bytes written.
    fn write_group(&self, group: &mut [Pending]) -> Result<u64> {
        let synced = self.synced();
        let mut headers = Vec::with_capacity(group.len() * HEADER_LEN);
        let mut first = 0;
        let mut bytes = 0;
        while first < group.len() {
            let run = contiguous_run(&group[first..]);
            let slice = &mut group[first..first + run];
            headers.clear();
            let salt = self.salt_of(&slice[0]);
            for pending in slice.iter_mut() {
                pending.header.synced_lsn = synced;
                pending.header.encode(salt, &mut headers);
            }
            bytes += write_run(slice, &headers)?;
            first += run;
        }
        for pending in group.iter() {
            stage(pending);
        }
        self.counters.groups.fetch_add(1, Ordering::Relaxed);
        self.counters.records.fetch_add(group.len() as u64, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    fn salt_of(&self, pending: &Pending) -> u32 {
        // The file's `seq` can't change while a record of it waits to be written.
        let seq = pending.file.seq.load(Ordering::Relaxed);
        super::segment::SegmentHeader {
            pool: self.config.pool,
            seq,
            incarnation: 0,
            first_lsn: Lsn::ZERO,
            prev_lsn: Lsn::ZERO,
        }
        .salt()
    }

    /// Returns when every record up to `lsn` is durable. After a failure the pool is poisoned (I7).
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        loop {
            if self.synced() >= lsn {
                return Ok(());
            }
            let mut state = self.state.lock();
            self.fault.check()?;
            if self.synced() >= lsn {
                return Ok(());
            }
            if state.syncing {
                self.wait(&mut state);
                continue;
            }
            state.syncing = true;
            let syncing = Part::new(self, |state| &mut state.syncing, "the journal was synced");
            // Everything sequenced so far; what is sequenced from now on starts at a fresh block.
            let target = state.last_lsn;
            let bytes = state.sequenced_bytes;
            state.pad = true;
            state.unsynced = 0;
            drop(state);
            let began = self.clock.now();
            let outcome = self.sync_prefix(target);
            let time = self.clock.now().saturating_sub(began);
            let mut state = syncing.end();
            if outcome.is_ok() {
                self.synced.fetch_max(target.0, Ordering::AcqRel);
                let newly = bytes.saturating_sub(state.durable_bytes);
                if newly >= MEASURED {
                    self.sync_rate.took(newly, time);
                }
                state.durable_bytes = state.durable_bytes.max(bytes);
                self.eased.notify_all();
                if state.last_lsn == target {
                    // What was sequenced before and written meanwhile was counted, and is synced.
                    state.unsynced = 0;
                }
            }
            self.changed.notify_all();
            drop(state);
            outcome?;
        }
    }

    /// Makes everything up to `target` durable: the data that references name, and the segments.
    /// The data of a reference up to `target` was noted before the reference was sequenced, so it
    /// is in the list, or an earlier sync has taken it from there.
    fn sync_prefix(&self, target: Lsn) -> Result<()> {
        self.write_out(target)?;
        let written = std::mem::take(&mut *self.referred.lock());
        let bytes = self.referred_bytes.load(Ordering::Relaxed);
        // The list is gone: what a failed sync leaves undone can't be made up for.
        written.values().try_for_each(|pv| pv.sync_referred()).map_err(|e| self.fault.poison(&e))?;
        self.referred_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let dirty = std::mem::take(&mut self.state.lock().dirty);
        for file in &dirty {
            file.disk.sync(SyncPurpose::Journal).map_err(|e| {
                let error = Error::io(format!("sync {}", super::segment::file_name(file.index)), e);
                self.fault.poison(&error)
            })?;
        }
        Ok(())
    }

    /// Waits until so much is unsynced that a sync should begin. Returns false when that is not so
    /// within `timeout`.
    pub(crate) fn wait_for_write_back(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        if state.unsynced < WRITE_BACK {
            state.awaits_write_back = true;
            self.write_back.wait_for(&mut state, timeout);
            state.awaits_write_back = false;
        }
        state.unsynced >= WRITE_BACK
    }

    /// Makes everything sequenced so far durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_to(self.last().lsn)
    }
}

/// The part of the leader, or of the syncer. One thread at a time has it. A panic poisons the pool
/// and gives the part back: the threads that wait for the part wake up and fail.
struct Part<'a> {
    journal: &'a Journal,
    taken: fn(&mut State) -> &mut bool,
    work: &'static str,
    ended: bool,
}

impl<'a> Part<'a> {
    fn new(journal: &'a Journal, taken: fn(&mut State) -> &mut bool, work: &'static str) -> Part<'a> {
        Part { journal, taken, work, ended: false }
    }

    /// Gives the part back. Returns the lock under which the part was given back.
    fn end(mut self) -> MutexGuard<'a, State> {
        let mut state = self.journal.state.lock();
        *(self.taken)(&mut state) = false;
        self.ended = true;
        state
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.journal.fault.panicked(self.work);
            *(self.taken)(&mut self.journal.state.lock()) = false;
            self.journal.changed.notify_all();
        }
    }
}

/// The number of records from the start of `group` that lie one after another in one file.
fn contiguous_run(group: &[Pending]) -> usize {
    let adjacent = |w: &[Pending]| {
        w[0].file.index == w[1].file.index && w[0].at + w[0].header.space() == w[1].at && w[1].opens.is_none()
    };
    1 + group.windows(2).take_while(|w| adjacent(w)).count()
}

fn write_run(run: &[Pending], headers: &[u8]) -> Result<u64> {
    let opens = run[0].opens.map(|header| header.encode());
    let mut slices = Vec::with_capacity(run.len() * 2 + 1);
    let mut at = run[0].at;
    if let Some(block) = &opens {
        slices.push(IoSlice::new(block));
        at = 0;
    }
    for (pending, header) in run.iter().zip(headers.chunks_exact(HEADER_LEN)) {
        slices.push(IoSlice::new(header));
        if !pending.record.data.is_empty() {
            slices.push(IoSlice::new(&pending.record.data));
        }
    }
    let bytes: u64 = slices.iter().map(|s| s.len() as u64).sum();
    // To the end of its block: a block of a recycled segment that is written only in part would
    // first be read from the disk. Whatever follows there is written later.
    let end = at + bytes;
    slices.push(IoSlice::new(&ZEROS[..(align_up(end, BLOCK) - end) as usize]));
    let file = &run[0].file;
    file.disk
        .write_vectored_at(&mut slices, at)
        .map_err(|e| Error::io(format!("append to {}", super::segment::file_name(file.index)), e))?;
    Ok(bytes)
}

/// Adds a written record to its branch's staging.
fn stage(pending: &Pending) {
    if let Some(staging) = &pending.record.staging {
        let data_at = pending.at + HEADER_LEN as u64;
        let located = Located { header: pending.header, file: pending.file.index, data_at };
        match &pending.record.reference {
            Some(reference) => stage_reference(&located, reference, staging, |_| true),
            None => stage_located(&located, &pending.record.crcs, staging),
        }
    }
}

/// Adds a reference to `staging`, from wherever it was found. Chunks whose slots `stages` does not
/// accept are left out.
pub(crate) fn stage_reference(
    located: &Located,
    reference: &Reference,
    staging: &Staging,
    stages: impl Fn(Slot) -> bool,
) {
    let header = &located.header;
    if reference.slots().all(&stages) {
        staging.waiting.push(staged_record(located, StagedKind::Reference));
    } else {
        // A moment is not read from slots that may have been given to other data.
        staging.waiting.leave_out(header.lsn);
    }
    let first = header.offset / BLOCK;
    let blocks = (first..).zip(reference.blocks());
    let size = 1u64 << reference.slot_log2;
    let slot_of = |place: Slot, block: u64| place.before(block * BLOCK % size);
    let staged = blocks.filter(|(block, (place, _))| stages(slot_of(*place, *block)));
    staging.insert(staged.map(|(block, (slot, sum))| {
        let whole = (0, (BLOCK / SECTOR) as u8);
        let of = (header.lsn, header.epoch);
        (block, StagedExtent::new(of, StagedPlace::Slot(slot), whole, sum))
    }));
}

fn staged_record(located: &Located, kind: StagedKind) -> StagedRecord {
    let header = &located.header;
    StagedRecord {
        stamp: header.stamp(),
        offset: header.offset,
        length: header.length,
        at: located.data_at as u32,
        data_len: header.data_len,
        sum: header.data_crc,
        version: header.version,
        file: located.file as u16,
        kind,
    }
}

/// Adds a record that is no reference to `staging`, from wherever it was found.
pub(crate) fn stage_located(located: &Located, crcs: &PieceCrcs, staging: &Staging) {
    let header = &located.header;
    if header.kind != Kind::Control {
        let kind = match header.kind {
            Kind::Write => StagedKind::Data,
            Kind::Discard => StagedKind::Discarded,
            _ => StagedKind::Zeros,
        };
        staging.waiting.push(staged_record(located, kind));
    }
    match header.kind {
        Kind::Write => {
            let cuts = cuts(header.offset, header.length);
            staging.insert(cuts.zip(crcs.as_slice()).map(|((start, len), crc)| {
                let offset = header.offset + start;
                // At most 65,536 segments.
                let file = located.file as u16;
                let place = StagedPlace::Journal { file, at: (located.data_at + start) as u32 };
                let sectors = ((offset % BLOCK / SECTOR) as u8, (len / SECTOR) as u8);
                (offset / BLOCK, StagedExtent::new((header.lsn, header.epoch), place, sectors, *crc))
            }));
        }
        Kind::Discard | Kind::Zero => {
            let keeps_space = header.kind == Kind::Zero;
            let (start, end) = (header.offset, header.offset + header.length);
            staging.insert_range(header.epoch, Range { start, end, lsn: header.lsn, keeps_space });
        }
        Kind::Control | Kind::Reference => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BranchId, Epoch};
    use crate::journal::record::space;
    use crate::journal::{Admission, Record};
    use crate::testing::Site;
    use bytes::Bytes;

    /// A background sync must not leave the write-back thread with a reason for another sync.
    /// Otherwise the thread would sync again and again until the next write.
    #[test]
    fn what_a_sync_covers_does_not_call_for_another_one() {
        let site = Site::builder(63).journal(8 << 20, 1 << 20).build().having("v", 1 << 20, 4096);
        let journal = &site.pool.core.journal;
        let mut last = Lsn::ZERO;
        // Sequenced before the sync begins, and written by it.
        for _ in 0..=WRITE_BACK / (128 << 10) {
            let data = Bytes::from(vec![0; 128 << 10]);
            let mut sequencing = journal.sequence();
            assert!(matches!(
                sequencing.room(space(data.len() as u64), true),
                Admission::Ready | Admission::NeedsFile
            ));
            let record = Record {
                kind: Kind::Control,
                branch: BranchId(0),
                epoch: Epoch::NONE,
                offset: 0,
                length: data.len() as u64,
                slots: 0,
                alone: false,
                crcs: PieceCrcs::of(0, &data),
                data,
                reference: None,
                staging: None,
            };
            last = sequencing.push(record).unwrap();
        }
        journal.sync_to(last).unwrap();
        assert_eq!((journal.synced(), journal.state.lock().unsynced), (last, 0));
        assert!(!journal.wait_for_write_back(Duration::ZERO));
    }
}
