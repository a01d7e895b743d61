//! The pool's write-ahead log: every write with its data, every control operation, in one order.
//!
//! - **Sequencing** ([`Journal::sequence`]) gives a record its LSN, its time and its place, under
//!   one short lock.
//! - **Group append** ([`Journal::write_out`]) writes records in groups. A thread that finds
//!   records in the queue and no other thread writing becomes the leader. The leader takes all
//!   queued records and writes them with one system call. The other threads wait.
//! - **Sync** ([`Journal::sync_to`]) works in the same way: one sync serves all threads that wait.
//!
//! Written and synced positions are ends of contiguous prefixes. A sync covers everything that is
//! sequenced when it begins. The next record starts at a fresh 4 KiB block, so no block that holds
//! synced bytes is ever written again.

mod append;
pub(crate) mod cursor;
mod files;
pub(crate) mod leftover;
pub(crate) mod loss;
pub(crate) mod place;
mod proof;
pub(crate) mod record;
pub(crate) mod reference;
mod reread;
pub(crate) mod scan;
mod segment;
pub(crate) mod tail;

#[cfg(test)]
mod tests;
mod turns;
pub(crate) mod verify;

pub(crate) use append::{stage_located, stage_reference};
pub(crate) use cursor::{Cursor, JournalRecord, Located};
pub(crate) use files::newest_incarnation;
pub(crate) use loss::{Accepted, Beyond};
pub(crate) use scan::{ScanStart, Scanned, make_durable, scan};
#[cfg(feature = "fuzzing")]
pub(crate) use segment::SegmentReader;
pub(crate) use segment::{FIRST_RECORD, SegmentFile};
pub(crate) use tail::{keep_room as keep_tail_room, restore as restore_tail};
pub(crate) use turns::Turns;

use crate::clock::PoolClock;
use crate::disk::{Dir, SyncPurpose};
use crate::error::{Error, Result};
use crate::fault::{Alarm, Fault};
use crate::ids::{BranchId, Epoch, Lsn, Stamp};
use crate::pace::Rate;
use crate::staging::Staging;
use crate::throttle::{Fill, Lag};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use place::JournalPosition;
use record::{Header, Kind, PieceCrcs};
use reference::Reference;
use segment::ChainSegment;
pub(crate) use segment::SegmentHeader;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uuid::Uuid;

/// The configuration of the journal. It is fixed while the pool is open.
pub(crate) struct JournalConfig {
    pub(crate) pool: Uuid,
    pub(crate) segment_size: u64,
    pub(crate) max_files: u32,
    pub(crate) incarnation: u64,
}

/// The journal of an open pool. It sequences records, writes and syncs them, and owns the journal's
/// files. All threads share it.
pub(crate) struct Journal {
    config: JournalConfig,
    dir: Arc<dyn Dir>,
    clock: Arc<PoolClock>,
    fault: Arc<Fault>,
    state: Mutex<State>,
    /// Signals that something a waiter waits for has changed: `written`, the leader, the syncer, or
    /// the room.
    changed: Condvar,
    /// Signals that much was written since the last sync began.
    write_back: Condvar,
    /// Signals that a segment can be used again, or that a sync has ended.
    eased: Condvar,
    /// The rate at which records become durable.
    sync_rate: Rate,
    /// Signals that fewer turns wait.
    turn_passed: Condvar,
    creating: Mutex<()>,
    /// The number of threads that can't go on without a new file.
    files_needed: AtomicU32,
    written: AtomicU64,
    synced: AtomicU64,
    /// The physical volumes, by number, that have data of references which no sync has covered yet.
    /// The lock is a leaf.
    referred: Mutex<BTreeMap<u32, Arc<dyn ReferredDisk>>>,
    /// Bytes of that data.
    referred_bytes: AtomicU64,
    files: Box<[OnceLock<Arc<SegmentFile>>]>,
    pub(crate) counters: Counters,
}

/// Counters since the journal was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) groups: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) waits: AtomicU64,
}

/// The number of bytes as which a shorter run of slots counts among what is unsynced. An opening
/// after a crash syncs each run twice, so the bound on unsynced bytes is a bound on these syncs.
const LEAST_REFERRED: u64 = 32 << 10;

/// A physical volume that has data of references.
pub(crate) trait ReferredDisk: Send + Sync {
    /// Returns the number of the physical volume.
    fn number(&self) -> u32;

    /// Makes the data durable. Returns an error also if an earlier sync, for whatever purpose, has
    /// failed: the system may have forgotten the data then.
    fn sync_referred(&self) -> Result<()>;
}

struct State {
    /// The last LSN given out to a record that exists.
    last_lsn: Lsn,
    /// The next LSN to give out. It is larger than every LSN ever seen, so after a torn tail it may
    /// be larger than `last_lsn.next()`.
    next_lsn: Lsn,
    last_time: u64,
    /// The LSN of the last record that may take space away from a chunk, or change a branch.
    last_unmapping: Lsn,
    /// The segments of the log, oldest first. If `open`, records are appended to the last segment.
    chain: VecDeque<ChainSegment>,
    open: bool,
    next_seq: u64,
    /// The next record starts at a fresh block, because a sync has begun.
    pad: bool,
    turns: Turns,
    free: Vec<Arc<SegmentFile>>,
    created: u32,
    queue: Vec<Pending>,
    leader: bool,
    syncing: bool,
    waiters: u32,
    /// Bytes written since the last sync began.
    unsynced: u64,
    awaits_write_back: bool,
    /// Bytes of the records sequenced since the journal was opened, and of those that are durable.
    /// What references name counts, too: a flush waits for it.
    sequenced_bytes: u64,
    durable_bytes: u64,
    dirty: Vec<Arc<SegmentFile>>,
}

/// A record to be sequenced.
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) branch: BranchId,
    pub(crate) epoch: Epoch,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) slots: u16,
    pub(crate) data: Bytes,
    pub(crate) crcs: PieceCrcs,
    /// What `data` encodes, if the record is a reference.
    pub(crate) reference: Option<Box<Reference>>,
    /// The record is carried out in a commit of its own.
    pub(crate) alone: bool,
    /// The staging index in which the record is found until it is in place. Control records have
    /// none.
    pub(crate) staging: Option<Arc<Staging>>,
}

/// A sequenced record that is not written yet.
struct Pending {
    header: Header,
    record: Record,
    file: Arc<SegmentFile>,
    at: u64,
    /// The segment header to write in front of the record. It is present for the first record of a
    /// segment.
    opens: Option<SegmentHeader>,
}

impl Pending {
    /// Returns the number of bytes that the record refers to.
    fn referred(&self) -> u64 {
        if self.header.kind == Kind::Reference { self.header.length } else { 0 }
    }
}

/// The answer to whether a record can be placed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The record can be placed.
    Ready,
    /// The record can be placed after a call of [`Journal::add_file`].
    NeedsFile,
    /// The record can be placed after destage has released a segment.
    Full,
    /// The record can be placed after some of the waiting turns are carried out.
    Turns,
}

/// The sequencing lock, held by one thread.
pub(crate) struct Sequencing<'a> {
    /// The alarm. It is the first field, so that it is dropped before the lock.
    _alarm: Alarm<'a>,
    journal: &'a Journal,
    state: MutexGuard<'a, State>,
}

impl Journal {
    /// Makes the journal that continues the log that a scan found.
    pub(crate) fn new(
        config: JournalConfig,
        dir: Arc<dyn Dir>,
        clock: Arc<PoolClock>,
        fault: Arc<Fault>,
        scanned: Scanned,
    ) -> Self {
        let files: Box<[OnceLock<Arc<SegmentFile>>]> =
            (0..config.max_files.max(scanned.file_indexes)).map(|_| OnceLock::new()).collect();
        for file in scanned.chain.iter().map(|s| &s.file).chain(&scanned.free) {
            let _ = files[file.index as usize].set(file.clone());
        }
        let created = files.iter().filter(|f| f.get().is_some()).count() as u32;
        let state = State {
            last_lsn: scanned.tail_lsn,
            next_lsn: scanned.max_lsn.next(),
            last_time: scanned.max_time,
            last_unmapping: scanned.tail_lsn,
            chain: scanned.chain.into(),
            open: false,
            next_seq: scanned.next_seq,
            pad: false,
            turns: scanned.turns,
            free: scanned.free,
            // Files that lack space were left out: not every index below the largest has one.
            created,
            queue: Vec::new(),
            leader: false,
            syncing: false,
            waiters: 0,
            unsynced: 0,
            awaits_write_back: false,
            sequenced_bytes: 0,
            durable_bytes: 0,
            dirty: Vec::new(),
        };
        Journal {
            dir,
            clock,
            fault,
            written: AtomicU64::new(scanned.tail_lsn.0),
            synced: AtomicU64::new(scanned.tail_lsn.0),
            referred: Mutex::default(),
            referred_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            write_back: Condvar::new(),
            eased: Condvar::new(),
            sync_rate: Rate::default(),
            turn_passed: Condvar::new(),
            creating: Mutex::new(()),
            files_needed: AtomicU32::new(0),
            files,
            counters: Counters::default(),
            config,
        }
    }

    /// Returns the end of the contiguous written prefix.
    pub(crate) fn written(&self) -> Lsn {
        Lsn(self.written.load(Ordering::Acquire))
    }

    /// Returns the end of the contiguous durable prefix.
    pub(crate) fn synced(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire))
    }

    /// Returns the last LSN and the last pool time given out.
    pub(crate) fn last(&self) -> Stamp {
        let state = self.state.lock();
        Stamp { lsn: state.last_lsn, time: state.last_time }
    }

    /// Returns the journal file `index`, for reading what staging points to.
    pub(crate) fn file(&self, index: u32) -> Option<&Arc<SegmentFile>> {
        self.files.get(index as usize)?.get()
    }

    /// Notes that `bytes` bytes were written to a physical volume for a reference that is about to
    /// be sequenced. The next sync covers them.
    pub(crate) fn note_referred(&self, pv: Arc<dyn ReferredDisk>, bytes: u64) {
        self.referred_bytes.fetch_add(bytes.max(LEAST_REFERRED), Ordering::Relaxed);
        self.referred.lock().insert(pv.number(), pv);
    }

    /// Returns the number of bytes that were written for references and that no sync has covered. A
    /// short run counts as [`LEAST_REFERRED`].
    pub(crate) fn unsynced_referred(&self) -> u64 {
        self.referred_bytes.load(Ordering::Relaxed)
    }

    /// Takes the sequencing lock.
    pub(crate) fn sequence(&self) -> Sequencing<'_> {
        let state = self.state.lock();
        Sequencing { _alarm: self.fault.alarm("a record was sequenced"), journal: self, state }
    }

    /// The number of turns that wait to be carried out.
    pub(crate) fn turns(&self) -> usize {
        self.state.lock().turns.len()
    }

    /// Notes that everything up to `lsn` is carried out.
    pub(crate) fn turns_passed(&self, lsn: Lsn) {
        let mut state = self.state.lock();
        state.turns.passed(lsn);
        self.turn_passed.notify_all();
    }

    /// The bytes in use, and the bytes of the whole journal.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let fill = self.fill(&self.state.lock());
        (fill.used, fill.capacity + self.config.segment_size)
    }

    fn fill(&self, state: &State) -> Fill {
        let total = self.config.max_files.max(state.created) as u64 * self.config.segment_size;
        // Retired segments wait for their readers: neither free nor in the chain, and in use.
        let idle = state.free.len() as u64 + (self.config.max_files.saturating_sub(state.created)) as u64;
        let tail = state.chain.back().filter(|_| state.open).map_or(0, |s| self.config.segment_size - s.end);
        let used = total - idle * self.config.segment_size - tail;
        // The last segment is kept for control records.
        Fill { used, capacity: total.saturating_sub(self.config.segment_size) }
    }

    /// Returns the bytes of files that may still be created.
    pub(crate) fn uncreated_bytes(&self) -> u64 {
        let created = self.state.lock().created;
        self.config.max_files.saturating_sub(created) as u64 * self.config.segment_size
    }

    fn lag(&self, state: &State) -> Lag {
        let bytes = state.sequenced_bytes - state.durable_bytes;
        Lag { bytes, time: self.sync_rate.time(bytes) }
    }

    /// Makes one more file if there may be one, outside the sequencing lock. Returns false when
    /// there are enough. A failure loses nothing: the writer that needed the file gets the error.
    ///
    /// `count` makes the number of files durable in the catalog, before the new file can be used.
    /// From then on the loss of the file is noticed.
    ///
    /// With `prewrite` the caller has time: the file is written once in full, as long as no other
    /// caller needs one now. Without, a file that another caller has made meanwhile is enough.
    pub(crate) fn add_file(&self, prewrite: bool, count: impl FnOnce(u32) -> Result<()>) -> Result<bool> {
        let needed = u32::from(!prewrite);
        self.files_needed.fetch_add(needed, Ordering::Relaxed);
        let _one_at_a_time = self.creating.lock();
        self.files_needed.fetch_sub(needed, Ordering::Relaxed);
        if !prewrite && !self.state.lock().free.is_empty() {
            return Ok(true);
        }
        let _alarm = self.fault.alarm("a journal file was made");
        let missing = self.files.iter().position(|f| f.get().is_none());
        let index = missing.map_or(self.config.max_files, |i| i as u32);
        if index >= self.config.max_files {
            return Ok(false);
        }
        let has_time = || prewrite && self.files_needed.load(Ordering::Relaxed) == 0;
        let disk = files::make(&*self.dir, index, self.config.segment_size, &has_time)?;
        // A file that only has a name in memory must not be counted.
        self.dir
            .sync(SyncPurpose::Dir)
            .map_err(|e| self.fault.poison(&Error::io("sync the data directory", e)))?;
        count(index + 1)?;
        let file = Arc::new(SegmentFile { index, disk, seq: AtomicU64::new(0) });
        let _ = self.files[index as usize].set(file.clone());
        let mut state = self.state.lock();
        state.created += 1;
        state.free.push(file);
        self.changed.notify_all();
        Ok(true)
    }

    /// Returns where a scan must start: the sequence number of the segment that holds, or will
    /// hold, the record after `lsn`, and the least incarnation of that segment.
    ///
    /// A segment with that number and an older incarnation is a leftover of an older life of the
    /// pool.
    pub(crate) fn start_after(&self, lsn: Lsn) -> (u64, u64) {
        let state = self.state.lock();
        let holds = state.chain.iter().rev().find(|s| s.header.first_lsn <= lsn.next());
        let seq = match holds {
            Some(s) if s.last_lsn > lsn || (state.open && s.header.seq + 1 == state.next_seq) => s.header.seq,
            Some(s) => s.header.seq + 1,
            None => state.chain.front().map_or(state.next_seq, |s| s.header.seq),
        };
        let segment = state.chain.iter().find(|s| s.header.seq == seq);
        (seq, segment.map_or(self.config.incarnation, |s| s.header.incarnation))
    }

    /// Takes the segments below `seq` out of the log. The caller may [recycle](Journal::recycle)
    /// them once they have no reader.
    pub(crate) fn release_below(&self, seq: u64) -> Vec<Arc<SegmentFile>> {
        let mut state = self.state.lock();
        let mut released = Vec::new();
        while state.chain.front().is_some_and(|s| s.header.seq < seq) {
            if let Some(segment) = state.chain.pop_front() {
                segment.file.seq.store(0, Ordering::Relaxed);
                released.push(segment.file);
            }
        }
        released
    }

    /// Writes blank headers to free files whose headers can't be read. On most disks the write
    /// repairs the block. Otherwise each opening would report again that the content of such a file
    /// is unknown. A file whose header can't be written is reported again.
    pub(crate) fn blank_unreadable(&self) {
        let free = self.state.lock().free.clone();
        for file in free {
            files::blank_unreadable(&*file.disk);
        }
    }

    /// Makes a released segment's file available again.
    pub(crate) fn recycle(&self, file: Arc<SegmentFile>) {
        let mut state = self.state.lock();
        state.free.push(file);
        self.changed.notify_all();
        self.eased.notify_all();
    }

    /// Waits until `enough` holds. False when the time that `left` returns is over before that.
    pub(crate) fn wait_until_eased(
        &self,
        enough: impl Fn(Fill, Lag) -> bool,
        left: impl Fn() -> Option<Duration>,
    ) -> bool {
        let mut state = self.state.lock();
        while !enough(self.fill(&state), self.lag(&state)) {
            let Some(left) = left() else { return false };
            if self.eased.wait_for(&mut state, left).timed_out() {
                return false;
            }
        }
        true
    }

    /// Waits until something may have changed for a writer without room, at most 5 ms.
    pub(crate) fn wait_for_room(&self) {
        let mut state = self.state.lock();
        state.waiters += 1;
        self.changed.wait_for(&mut state, Duration::from_millis(5));
        state.waiters -= 1;
    }

    /// Waits until fewer than `most` turns wait, at most 5 ms. Only a turn that has been carried
    /// out wakes the thread that waits here.
    pub(crate) fn wait_for_turns(&self, most: usize) {
        let mut state = self.state.lock();
        if state.turns.len() >= most {
            self.turn_passed.wait_for(&mut state, Duration::from_millis(5));
        }
    }

    fn next_seq(&self) -> u64 {
        self.state.lock().next_seq
    }

    fn segment(&self, seq: u64) -> Option<ChainSegment> {
        self.state.lock().chain.iter().find(|s| s.header.seq == seq).cloned()
    }
}

impl Sequencing<'_> {
    /// Returns whether a record with `data_len` bytes can be placed now. One segment is kept for
    /// control records, so that a full pool can still delete.
    pub(crate) fn room(&self, data_len: u64, control: bool) -> Admission {
        let state = &self.state;
        if state.open && self.fits(data_len).is_some() {
            return Admission::Ready;
        }
        let creatable = self.journal.config.max_files.saturating_sub(state.created) as usize;
        let keep = if control { 0 } else { 1 };
        match (state.free.len(), creatable) {
            (free, more) if free + more <= keep => Admission::Full,
            (0, _) => Admission::NeedsFile,
            _ => Admission::Ready,
        }
    }

    fn fits(&self, data_len: u64) -> Option<u64> {
        let end = self.state.chain.back()?.end;
        let at = if self.state.pad { crate::codec::align_up(end, record::BLOCK) } else { end };
        (at + record::space(data_len) <= self.journal.config.segment_size).then_some(at)
    }

    /// Returns where a record with `data_len` bytes would be placed.
    pub(crate) fn place(&self, data_len: u64) -> JournalPosition {
        let state = &*self.state;
        let here = state.open.then(|| Some((state.chain.back()?.header.seq, self.fits(data_len)?))).flatten();
        let (segment, at) = here.unwrap_or((state.next_seq, FIRST_RECORD));
        JournalPosition { segment, at, after: state.last_lsn, cut: state.last_unmapping }
    }

    /// The number of turns that wait to be carried out.
    pub(crate) fn turns(&self) -> usize {
        self.state.turns.len()
    }

    /// Returns the use of the journal.
    pub(crate) fn fill(&self) -> Fill {
        self.journal.fill(&self.state)
    }

    /// Returns the part of the journal that is sequenced and not durable.
    pub(crate) fn lag(&self) -> Lag {
        self.journal.lag(&self.state)
    }

    /// The last LSN given out.
    pub(crate) fn last_lsn(&self) -> Lsn {
        self.state.last_lsn
    }

    /// The pool time of the last LSN given out.
    pub(crate) fn last_time(&self) -> u64 {
        self.state.last_time
    }

    /// The LSN of the last record that may take space away from a chunk: a discard or a control
    /// operation.
    pub(crate) fn last_unmapping(&self) -> Lsn {
        self.state.last_unmapping
    }

    /// Gives `record` its LSN, time and place. The caller has checked with [`Sequencing::room`]
    /// that the record can be placed.
    pub(crate) fn push(&mut self, record: Record) -> Result<Lsn> {
        self.journal.fault.check()?;
        let lsn = self.state.next_lsn;
        let data_len = record.data.len() as u64;
        if let Some(staging) = &record.staging {
            staging.disturb(record.offset, record.offset + record.length);
        }
        let mut opens = None;
        let fitting = self.state.open.then(|| self.fits(data_len)).flatten();
        let at = match fitting {
            Some(at) => at,
            None => {
                opens = Some(self.open_segment(lsn)?);
                FIRST_RECORD
            }
        };
        let state = &mut *self.state;
        state.pad = false;
        state.last_time = self.journal.clock.next_time(Stamp { lsn: state.last_lsn, time: state.last_time });
        state.last_lsn = lsn;
        state.next_lsn = lsn.next();
        if matches!(record.kind, Kind::Discard | Kind::Control) {
            state.last_unmapping = lsn;
        }
        state.turns.note(lsn, record.alone, record.staging.as_deref(), record.epoch);
        let header = Header {
            incarnation: self.journal.config.incarnation,
            lsn,
            synced_lsn: Lsn::ZERO,
            time: state.last_time,
            branch: record.branch,
            offset: record.offset,
            length: record.length,
            epoch: record.epoch,
            data_len: record.data.len() as u32,
            data_crc: record.crcs.total(),
            kind: record.kind,
            slots: record.slots,
            version: record.kind.version(),
        };
        let Some(segment) = state.chain.back_mut() else {
            return Err(crate::error::corrupt("place a record without an open journal segment"));
        };
        segment.last_lsn = lsn;
        segment.end = at + header.space();
        let referred = if header.kind == Kind::Reference { header.length } else { 0 };
        state.sequenced_bytes += header.space() + referred;
        let file = segment.file.clone();
        state.queue.push(Pending { header, record, file, at, opens });
        Ok(lsn)
    }

    fn open_segment(&mut self, first_lsn: Lsn) -> Result<SegmentHeader> {
        let state = &mut *self.state;
        let Some(file) = state.free.pop() else {
            return Err(crate::error::corrupt("open a journal segment without a free file"));
        };
        // The scan verifies this link, so a segment that was lost can't be skipped.
        let prev_lsn = state.last_lsn;
        let header = SegmentHeader {
            pool: self.journal.config.pool,
            seq: state.next_seq,
            incarnation: self.journal.config.incarnation,
            first_lsn,
            prev_lsn,
        };
        file.seq.store(header.seq, Ordering::Relaxed);
        state.next_seq += 1;
        state.open = true;
        state.chain.push_back(ChainSegment { file, header, last_lsn: prev_lsn, end: FIRST_RECORD });
        Ok(header)
    }
}
