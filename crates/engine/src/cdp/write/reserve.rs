//! Reservation of room for histories in the data directory's file system, before a write is
//! acknowledged (I6).
//!
//! The room that a journal record takes in the log is known only when it is destaged: it depends on
//! how well the record compresses, and on the batch that it is part of. So the largest possible
//! room is promised. The rest is given back with the commit that follows the batch. A log grows by
//!
//! - its header and its payload for each record, and an entry in the index of its group; the
//!   payload is no longer than the range that the record changes;
//! - the blocks that a group and its index do not fill, for each batch;
//! - the head and the closing index for each segment. A segment is closed long after its first
//!   records came. As long as it is open, the index of its records stays promised
//!   ([`crate::cdp::log::stretch::index_room`]).

use crate::branch::Branch;
use crate::cdp::log::record::{BLOCK_LEN, ENTRIES, HEADER_LEN};
use crate::cdp::log::stretch::STRETCH_ROOM;
use crate::core::Core;
use crate::error::{Error, Result, no_space};
use crate::ids::Lsn;
use crate::journal::place::JournalPosition;
use crate::journal::record::Kind;
use crate::journal::{Record, Sequencing};
use crate::settings::LONG_DISCARD;
use std::sync::atomic::Ordering;

/// The room of a record, in bytes, besides its payload: its header, its share of a block of its
/// group's index, and its share of a block of its segment's index.
const RECORD_ROOM: u64 = HEADER_LEN as u64 + 2 * (BLOCK_LEN as u64).div_ceil(ENTRIES as u64);
/// The part of the records' room that covers segments in the middle of the records, four blocks for
/// each segment. A segment is closed by at least 256 KiB, or by 512 records, for which as much was
/// promised.
const SEGMENT_PARTS: u64 = 8;

/// Returns the largest number of bytes that a record of the journal adds to the log of its branch,
/// without [`STRETCH_ROOM`].
fn record_room(branch: &Branch, kind: Kind, offset: u64, length: u64) -> u64 {
    if kind == Kind::Discard && length > LONG_DISCARD {
        return 0;
    }
    let chunks = branch.chunks(offset, length);
    let records = length + chunks.end.since(chunks.start) * RECORD_ROOM;
    records + records.div_ceil(SEGMENT_PARTS)
}

/// Returns, at open, what was promised to a record of the journal, or 0 if it will not be recorded.
pub(crate) fn promised(
    branch: &Branch,
    record: (Kind, u64, u64),
    place: &JournalPosition,
    batch: u64,
) -> u64 {
    let (kind, offset, length) = record;
    if !branch.cdp.is_on() {
        return 0;
    }
    let room = record_room(branch, kind, offset, length);
    if room == 0 { 0 } else { room + branch.cdp.stretch.lock().extend(place, batch) }
}

/// The room that was promised to the records of a request. It is dropped under the sequencing lock
/// after the last record is sequenced. The room that no record took is then given back.
pub(crate) struct LogReservation<'a> {
    core: &'a Core,
    /// The room that is promised and not yet taken, in bytes.
    left: u64,
    taken: u64,
    last: Lsn,
}

impl<'a> LogReservation<'a> {
    /// Promises what `records` of a branch may take. Returns `None` when there is no room.
    pub(crate) fn promise(core: &'a Core, branch: &Branch, records: &[Record]) -> Option<LogReservation<'a>> {
        let mut left = 0;
        if branch.cdp.is_on() {
            let room = |r: &Record| record_room(branch, r.kind, r.offset, r.length);
            let journaled: u64 = records.iter().map(|r| r.data.len() as u64).sum();
            // Records may be larger than stretches, and then each begins one.
            let stretch = core.options.batch_bytes.clamp(1, core.config.segment_size);
            let stretches = (2 + 2 * journaled / stretch).min(records.len() as u64);
            left = records.iter().map(room).sum::<u64>() + stretches * STRETCH_ROOM;
        }
        let promised = left == 0 || core.space.try_reserve_log(left);
        let refused = &core.positions.history_refused;
        if promised && left > 0 && refused.load(Ordering::Relaxed) {
            refused.store(false, Ordering::Relaxed);
        }
        // Only a reservation that was promised may give its space back when it is dropped.
        promised.then(|| LogReservation { core, left, taken: 0, last: Lsn::ZERO })
    }

    /// Takes the room of the next record, which is about to be sequenced. Only now it is known
    /// whether the record will be recorded.
    pub(crate) fn take(&mut self, branch: &Branch, record: &Record, next: &Sequencing<'_>) -> Result<()> {
        if !branch.cdp.is_on() {
            return Ok(());
        }
        let mut place = next.place(record.data.len() as u64);
        place.cut = place.cut.max(self.core.positions.preserved());
        let mut room = record_room(branch, record.kind, record.offset, record.length);
        room += branch.cdp.stretch.lock().extend(&place, self.core.options.batch_bytes);
        if room > self.left {
            if !self.core.space.try_reserve_log(room - self.left) {
                return Err(no_room());
            }
            self.left = room;
        }
        self.left -= room;
        self.taken += room;
        Ok(())
    }

    /// Notes the LSN of the record that took room and was sequenced.
    pub(crate) fn sequenced(&mut self, lsn: Lsn) {
        self.last = lsn;
    }
}

impl Drop for LogReservation<'_> {
    fn drop(&mut self) {
        if self.taken + self.left > 0 {
            self.core.space.assign_log(self.last, self.taken, self.left);
        }
    }
}

/// Returns the error for a write that can't be recorded.
pub(crate) fn no_room() -> Error {
    no_space(
        "reserve space for the write's history: the data directory's file system is full; free some space, keep less history, or switch CDP off",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::BranchRecord;
    use crate::cdp::log::Applying;
    use crate::cdp::log::record::SHARED;
    use crate::cdp::log::shared::SharedLog;
    use crate::cdp::log::stretch::{GROUP_ROOM, JournalSpan};
    use crate::cdp::write::append::{
        Appender, LEAST_RECORDS, MAX_RECORDS, MAX_SEGMENT, RecordItem, Records, SegmentFactory,
    };
    use crate::cdp::write::runs::Runs;
    use crate::disk::{Dir, MemDir, OpenFiles, OpenMode};
    use crate::ids::{BranchId, Chunk, Epoch};
    use crate::settings::{CdpSettings, Compression, Encoding, Method};
    use crate::units::SECTOR;
    use crate::world::{Rng, SplitMix};
    use std::sync::Arc;
    use uuid::Uuid;

    struct Log {
        dir: MemDir,
        shelf: SegmentFactory,
        branch: Arc<Branch>,
        settings: CdpSettings,
        lsn: Lsn,
    }

    impl Log {
        fn new(chunk_log2: u8, limit: u64, compression: Compression) -> Log {
            let dir = MemDir::new();
            let record = BranchRecord::new(chunk_log2, None, Method::Redirect);
            let branch = Arc::new(Branch::new(BranchId(7), &record, None, 512, Arc::default()));
            let files = OpenFiles::new(Arc::new(dir.clone()), 8);
            let shelf = SegmentFactory {
                dir: Arc::new(dir.clone()),
                files,
                pool: Uuid::from_bytes([1; 16]),
                branch: BranchId(7),
                limit,
                most: MAX_RECORDS,
                most_held: u64::MAX,
            };
            let settings = CdpSettings { encoding: Encoding::Undo, compression, ..CdpSettings::default() };
            Log { dir, shelf, branch, settings, lsn: Lsn(0) }
        }

        fn bytes(&self) -> u64 {
            let len = |name: &String| self.dir.open(name, OpenMode::Existing).unwrap().len().unwrap();
            self.dir.list().unwrap().iter().map(len).sum()
        }

        /// Appends a batch of records, given as (number of sectors, number of records). Returns by
        /// how much the log and the room for closing it grew, and how much of that was promised.
        fn append(&mut self, records: &[(u64, u64)], rng: &SplitMix) -> (i64, u64) {
            let (before, mut promised) = (self.bytes(), GROUP_ROOM);
            let mut appender = Appender::new(&self.branch, self.shelf.clone(), self.settings, false).unwrap();
            let chunk_log2 = self.branch.chunk_log2;
            for (at, sectors) in records {
                let (offset, end) = (at * SECTOR, (at + sectors) * SECTOR);
                self.lsn = self.lsn.next();
                promised += record_room(&self.branch, Kind::Write, offset, end - offset);
                for chunk in Chunk::each(self.branch.chunks(offset, end - offset)) {
                    let bytes = chunk.bytes(chunk_log2);
                    let base = bytes.start;
                    let start = (offset.max(base) - base) as usize;
                    let end = (end.min(bytes.end) - base) as usize;
                    let old: Vec<u8> = match self.settings.compression {
                        Compression::None => vec![rng.next() as u8 | 1; end - start],
                        _ => vec![0; end - start],
                    };
                    let new = old.clone();
                    let item =
                        RecordItem { lsn: self.lsn, time: self.lsn.0, chunk, epoch: Epoch(1), start, end };
                    appender.push(&item, &old, &mut 0, &new).unwrap();
                }
            }
            let appended = appender.finish().unwrap().unwrap();
            let closing = appended.closing_room();
            appended.publish(&SharedLog::default(), Applying { parts: Vec::new(), in_place: Lsn::MAX });
            ((self.bytes() - before) as i64 + closing, promised)
        }
    }

    #[test]
    fn no_batch_takes_more_than_was_promised() {
        let rng = SplitMix::new(3);
        let below = |n: u64| rng.next() % n;
        for round in 0..12u64 {
            let chunk_log2 = [9, 12, 14, 17][round as usize % 4];
            let mut log = Log::new(chunk_log2, 256 << 10, Compression::None);
            log.shelf.most = [MAX_RECORDS, LEAST_RECORDS][round as usize % 2];
            // The largest number of records in a batch. Nearly all bytes are then in single
            // records, in groups of a few, or in whole segments.
            let most = [1, 6, 60][round as usize / 4];
            for batch in 0..80 {
                let record = |_| (below(4096), 1 + below([1, 8, 256][below(3) as usize]));
                let records: Vec<(u64, u64)> = (0..1 + below(most)).map(record).collect();
                let (taken, promised) = log.append(&records, &rng);
                assert!(taken <= promised as i64, "round {round}, batch {batch}: {taken} of {promised}");
                assert!(taken > 0);
            }
        }
    }

    /// A run in a shared segment takes no more than a group. After it is sorted it takes no more
    /// than is promised for that.
    #[test]
    fn no_run_takes_more_than_was_promised() {
        let rng = SplitMix::new(4);
        let below = |n: u64| rng.next() % n;
        for round in 0..8u64 {
            let chunk_log2 = [9, 12, 14, 17][round as usize % 4];
            let log = Log::new(chunk_log2, 256 << 10, Compression::None);
            let (shared, mut lsn) = (SharedLog::default(), Lsn::ZERO);
            let shelf = SegmentFactory { branch: SHARED, ..log.shelf.clone() };
            for batch in 0..60 {
                let before = log.bytes();
                let mut runs = Runs::new(&shared, shelf.clone(), false).unwrap();
                let mut writer = runs.writer(&log.branch, log.settings).unwrap();
                let mut promised = GROUP_ROOM;
                for _ in 0..1 + below([1, 60][round as usize / 4]) {
                    let chunk_sectors = log.branch.chunk_size() / SECTOR;
                    let (chunk, sectors) = (Chunk(below(512)), 1 + below(chunk_sectors));
                    let length = sectors * SECTOR;
                    lsn = lsn.next();
                    promised +=
                        record_room(&log.branch, Kind::Write, chunk.start(log.branch.chunk_log2), length);
                    let old: Vec<u8> = (0..length).map(|_| rng.next() as u8 | 1).collect();
                    let item = RecordItem {
                        lsn,
                        time: lsn.0,
                        chunk,
                        epoch: Epoch(1),
                        start: 0,
                        end: length as usize,
                    };
                    writer.push(&item, &old, &mut 0, &old).unwrap();
                }
                let appended = writer.finish().unwrap().unwrap();
                runs.finish().unwrap();
                assert_eq!(appended.closing_room(), 0);
                appended.publish(&shared, Applying { parts: Vec::new(), in_place: Lsn::MAX });
                let taken = log.bytes() - before;
                assert!(taken <= promised, "round {round}, batch {batch}: {taken} of {promised}");
            }
            while !log.branch.cdp.log.read().runs.is_empty() {
                let before = log.bytes();
                let (room, closing) = crate::upkeep::sort::sort_one(&log.branch, &log.shelf, &shared);
                let taken = (log.bytes() - before) as i64 + closing;
                assert!(taken <= room as i64, "round {round}: {taken} of {room}");
            }
        }
    }

    #[test]
    fn nor_do_very_many_records_that_hardly_take_anything() {
        many_records(MAX_RECORDS);
        many_records(LEAST_RECORDS);
    }

    fn many_records(most: u64) {
        let rng = SplitMix::new(3);
        let mut log = Log::new(9, MAX_SEGMENT, Compression::ZeroRun);
        log.shelf.most = most;
        let records: Vec<(u64, u64)> = (0..9000).map(|n| (n * 8, 8)).collect();
        // The index that closes the segment is of all of them, and comes with the last.
        let mut closed = 0;
        for _ in 0..4 {
            let segments = log.dir.list().unwrap().len();
            let (taken, promised) = log.append(&records, &rng);
            assert!(taken <= promised as i64, "{taken} of {promised}");
            closed += log.dir.list().unwrap().len() - segments;
        }
        assert!(closed >= 4, "{closed} segments");
    }

    #[test]
    fn each_stretch_of_the_journal_is_promised_its_groups_once() {
        let mut stretch = JournalSpan::default();
        let place = |segment, at, after, cut| {
            let (after, cut) = (Lsn(after), Lsn(cut));
            JournalPosition { segment, at, after, cut }
        };
        let mut extend = |place| stretch.extend(&place, 1000) > 0;
        assert!(extend(place(4, 900, 10, 0)) && !extend(place(4, 950, 11, 0)));
        assert!(extend(place(4, 1000, 12, 0)), "so far on that another batch may begin");
        assert!(!extend(place(4, 1999, 20, 12)), "what was cut before");
        assert!(extend(place(4, 1999, 21, 21)), "and since");
        assert!(extend(place(5, 1999, 22, 21)), "the next segment");
    }
}
