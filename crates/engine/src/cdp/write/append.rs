//! Appending to a branch's log: what a batch adds is written and synced before the commit that
//! makes it count.

use crate::branch::Branch;
use crate::catalog::{GroupRecord, RunRecord, SegmentRecord, Txn};
use crate::cdp::log::codec::{Packer, crc_after, crc_of_zeros};
use crate::cdp::log::record::{
    BLOCK_LEN, IndexEntry, Replaced, SegmentHead, put_index, put_packed_index, put_record,
};
use crate::cdp::log::segment::{LogFile, Open, Sealed, SegmentDisk};
use crate::cdp::log::shared::SharedLog;
use crate::cdp::log::stretch::index_room;
use crate::cdp::log::{Applying, LogState};
use crate::codec::crc32c;
use crate::disk::{Aligned, Dir, OpenFiles, SerialWriter, SyncPurpose};
use crate::error::{Error, Result};
use crate::ids::{BranchId, Chunk, Epoch, Lsn};
use crate::settings::{CdpSettings, Compression, Encoding};
use crate::units::SECTOR;
use std::sync::Arc;
use uuid::Uuid;

/// The number of bytes at which a segment is closed. If a journal segment is smaller, its size
/// applies instead.
pub(crate) const MAX_SEGMENT: u64 = 16 << 20;
/// The number of records at which a segment is closed, because the index of an open segment is in
/// memory.
pub(crate) const MAX_RECORDS: u64 = 64 << 10;
/// The smallest number that [`MAX_RECORDS`] shrinks to when very many branches are recorded.
pub(crate) const LEAST_RECORDS: u64 = 512;
/// The number of bytes that are gathered before they are written in one request. A disk does not
/// reach its full speed with many small requests.
const PIECE: usize = 2 << 20;
/// The number of pieces that may wait while another one is written.
pub(crate) const WAITING: usize = 1;
/// Room in a piece, in bytes, for the record that fills it, and in most cases for the index behind
/// it.
const PIECE_MARGIN: usize = 256 << 10;
/// The number of full segments that wait for their sync, each held open. They are synced one after
/// another at the end: what the first sync makes durable of the file system's own data is done for
/// the others too.
const MAX_UNSYNCED: usize = 8;
/// The byte at which the first group of a segment starts.
pub(crate) const FIRST_GROUP: u64 = BLOCK_LEN as u64;

/// Makes the segments of a branch.
#[derive(Clone)]
pub(crate) struct SegmentFactory {
    pub(crate) dir: Arc<dyn Dir>,
    pub(crate) files: OpenFiles,
    pub(crate) pool: Uuid,
    pub(crate) branch: BranchId,
    /// The number of bytes at which a segment is closed.
    pub(crate) limit: u64,
    /// The number of records at which a segment is closed.
    pub(crate) most: u64,
    /// The number of bytes at which a segment is closed, together with those that its records need
    /// in slots.
    pub(crate) most_held: u64,
}

impl SegmentFactory {
    /// Adapts the factory to a history with these settings. Retention forgets whole segments, so
    /// the segments of a history with a limit in bytes are small beside the limit.
    pub(crate) fn fit(mut self, settings: &CdpSettings) -> SegmentFactory {
        if let Some(bytes) = settings.retention.step_bytes() {
            self.most_held = bytes;
            self.limit = self.limit.min(self.most_held);
        }
        self
    }

    /// Makes a new file. A file of this name that an earlier life left, and never committed, is
    /// emptied.
    pub(crate) fn create(&self, seq: u64, edition: u32) -> Result<(LogFile, SegmentDisk)> {
        let head = SegmentHead { pool: self.pool, branch: self.branch, seq, edition };
        let failed = |e| Error::io(format!("create {}", head.file_name()), e);
        let (file, disk) = self.files.create(head.file_name()).map_err(failed)?;
        disk.set_len(0).map_err(failed)?;
        let mut block = head.encode();
        block.resize(FIRST_GROUP as usize, 0);
        disk.write_at(&block, 0).map_err(failed)?;
        Ok((LogFile::new(head, file), SegmentDisk::new(head, disk)))
    }
}

/// A writer of a segment. What it writes counts after a commit.
pub(crate) struct OpenSegmentWriter {
    pub(crate) file: LogFile,
    /// The open file, from the first write until everything is synced.
    disk: Option<SegmentDisk>,
    pub(crate) record: SegmentRecord,
    pub(crate) groups: Vec<GroupRecord>,
    /// The number of groups that the catalog knows.
    known_groups: usize,
    /// The entries that are not in memory yet.
    pub(crate) fresh: Vec<IndexEntry>,
    /// The entries of the group that is being gathered.
    entries: Vec<IndexEntry>,
    /// The byte up to which the file is written, or is about to be. The buffer's content comes
    /// there.
    written: u64,
    buffer: Aligned,
}

impl OpenSegmentWriter {
    /// Makes a writer of a new, empty segment.
    pub(crate) fn new((file, disk): (LogFile, SegmentDisk)) -> OpenSegmentWriter {
        let record = SegmentRecord::empty(file.head.edition, 0, FIRST_GROUP);
        OpenSegmentWriter::of((file, disk), record, Vec::new())
    }

    /// Makes a writer that continues where `record` ends.
    pub(crate) fn of(
        (file, disk): (LogFile, SegmentDisk),
        record: SegmentRecord,
        groups: Vec<GroupRecord>,
    ) -> OpenSegmentWriter {
        let known_groups = groups.len();
        let (fresh, entries, written, buffer) = (Vec::new(), Vec::new(), record.end, Aligned::default());
        let disk = Some(disk);
        OpenSegmentWriter { file, disk, record, groups, known_groups, fresh, entries, written, buffer }
    }

    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Begins the run of a branch in this shared segment.
    pub(crate) fn begin_run(&mut self, branch: BranchId) {
        self.file = self.file.of_run(branch);
        self.record = SegmentRecord { sealed: true, ..SegmentRecord::empty(0, self.len(), self.len()) };
    }

    /// Ends the run with its index. Returns `None` when the run is empty.
    pub(crate) fn end_run(&mut self, lane: &mut SerialWriter) -> Result<Option<SegmentRecord>> {
        if self.entries.is_empty() {
            return Ok(None);
        }
        self.record.index_at = Some(self.len());
        self.entries.sort_unstable_by_key(|e| (e.chunk, e.lsn));
        put_packed_index(&self.entries, self.salt(), self.buffer.append());
        self.entries.clear();
        self.record.end = self.len();
        if self.buffer.len() >= PIECE {
            self.write(lane)?;
        }
        Ok(Some(self.record))
    }

    /// Writes the rest of the runs up to the end of a block. No later run shares a block with them.
    pub(crate) fn end_runs(&mut self, lane: &mut SerialWriter) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.buffer.pad();
        self.write(lane)
    }

    /// Returns the salt of the records that come next.
    fn salt(&self) -> u32 {
        self.file.salt()
    }

    /// Adds a record. The writer finds its place. `payload` appends the record's payload and
    /// returns its compression.
    pub(crate) fn push(
        &mut self,
        lane: &mut SerialWriter,
        mut entry: IndexEntry,
        epoch: Epoch,
        payload: impl FnOnce(&mut Vec<u8>) -> Compression,
    ) -> Result<()> {
        if self.buffer.is_empty() {
            self.buffer = Aligned::with_capacity(PIECE + PIECE_MARGIN);
        }
        entry.at = self.len() as u32;
        let salt = self.salt();
        put_record(&mut entry, epoch, salt, self.buffer.append(), payload);
        let record = &mut self.record;
        record.records += 1;
        record.written += entry.raw_len() as u64;
        record.payload += u64::from(entry.stored);
        record.kept += entry.kept();
        widen(&mut record.lsns, entry.lsn);
        widen(&mut record.times, entry.time);
        widen(&mut record.chunks, entry.chunk);
        self.entries.push(entry);
        if self.buffer.len() >= PIECE { self.write(lane) } else { Ok(()) }
    }

    /// Writes the gathered group, with its index.
    pub(crate) fn end_group(&mut self, lane: &mut SerialWriter) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.buffer.pad();
        let (start, index_at, records) = (self.record.end, self.len(), self.entries.len() as u64);
        self.groups.push(GroupRecord { start, index_at, records });
        self.entries.sort_unstable_by_key(|e| (e.chunk, e.lsn));
        put_index(&self.entries, self.salt(), self.buffer.append());
        self.fresh.append(&mut self.entries);
        self.record.end = self.len();
        self.write(lane)
    }

    /// Passes the gathered whole blocks to the lane.
    fn write(&mut self, lane: &mut SerialWriter) -> Result<()> {
        let whole = self.buffer.len() / BLOCK_LEN * BLOCK_LEN;
        let mut rest = Aligned::default();
        if whole < self.buffer.len() {
            rest = Aligned::with_capacity(PIECE + PIECE_MARGIN);
            rest.append().extend_from_slice(&self.buffer[whole..]);
        }
        let mut blocks = std::mem::replace(&mut self.buffer, rest);
        blocks.truncate(whole);
        let (file, at) = (self.disk()?, self.written);
        self.written += whole as u64;
        lane.run(move || {
            let failed = |e| Error::io(format!("append to {}", file.head.file_name()), e);
            file.disk.write_direct(&blocks, at).map_err(failed)
        })
    }

    /// Closes the segment. `earlier` are the entries that the segment had before this writer began.
    pub(crate) fn seal(
        &mut self,
        lane: &mut SerialWriter,
        earlier: impl Iterator<Item = IndexEntry>,
    ) -> Result<()> {
        self.record.sealed = true;
        if let [only] = self.groups[..] {
            self.record.index_at = Some(only.index_at);
            return Ok(());
        }
        let mut all: Vec<IndexEntry> = earlier.chain(self.fresh.iter().copied()).collect();
        all.sort_unstable_by_key(|e| (e.chunk, e.lsn));
        put_index(&all, self.salt(), self.buffer.append());
        self.record.index_at = Some(self.record.end);
        self.record.end = self.len();
        self.write(lane)
    }

    fn disk(&self) -> Result<SegmentDisk> {
        self.disk.clone().map_or_else(|| self.file.open(), Ok)
    }

    /// Makes everything durable. Afterwards the file may be closed.
    pub(crate) fn sync(&mut self, lane: &mut SerialWriter, purpose: SyncPurpose) -> Result<()> {
        let Some(file) = self.disk.take() else { return Ok(()) };
        lane.run(move || {
            let failed = |e| Error::io(format!("sync {}", file.head.file_name()), e).lasting();
            file.disk.sync(purpose).map_err(failed)
        })
    }
}

/// The description of one record, before it is encoded.
pub(crate) struct RecordItem {
    pub(crate) lsn: Lsn,
    pub(crate) time: u64,
    pub(crate) chunk: Chunk,
    pub(crate) epoch: Epoch,
    /// The byte range inside the chunk: `start..end`.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A receiver of the records of one branch's part of a batch.
pub(crate) trait Records {
    fn encoding(&self) -> Encoding;

    /// Adds a record that replaces `old`, a part of a chunk whose sum is `sum`, by `new`.
    /// Afterwards `sum` is the chunk's sum after the record. For a whole chunk the encoding `redo`
    /// does not read `old`.
    fn push(&mut self, item: &RecordItem, old: &[u8], sum: &mut u32, new: &[u8]) -> Result<()>;

    /// Adds a record of a whole chunk without a payload.
    fn push_bare(&mut self, item: &RecordItem, replaced: Replaced) -> Result<()>;
}

impl RecordItem {
    /// Returns the entry of the record that replaces `old` by `new`, without its place and payload.
    pub(crate) fn entry(
        &self,
        (branch, encoding): (&Branch, Encoding),
        old: &[u8],
        sum: &mut u32,
        new: &[u8],
    ) -> IndexEntry {
        let behind = branch.chunk_size() - self.end as u64;
        let before = *sum;
        *sum = match (self.start, behind) {
            (0, 0) => crc32c(new),
            _ => crc_after(before, crc32c(old), crc32c(new), behind),
        };
        let known = self.entry_without_sums(encoding);
        IndexEntry { before, after: *sum, ..known }
    }

    fn entry_without_sums(&self, encoding: Encoding) -> IndexEntry {
        IndexEntry {
            chunk: self.chunk,
            lsn: self.lsn,
            time: self.time,
            at: 0,
            stored: 0,
            first_sector: (self.start as u64 / SECTOR) as u32,
            sectors: ((self.end - self.start) as u64 / SECTOR) as u32,
            before: 0,
            after: 0,
            encoding,
            compression: Compression::None,
            replaced: Replaced::Payload,
        }
    }

    /// Returns the entry of a record without a payload, about a whole chunk.
    pub(crate) fn entry_without_payload(&self, encoding: Encoding, replaced: Replaced) -> IndexEntry {
        let size = (self.end - self.start) as u64;
        let before = if replaced == Replaced::Zeros { crc_of_zeros(size) } else { 0 };
        IndexEntry { before, replaced, ..self.entry_without_sums(encoding) }
    }
}

/// Appends the payload of a record that replaces `old` by `new`, and returns its compression.
pub(crate) fn put_payload(
    (encoding, packer): (Encoding, &mut Packer),
    old: &[u8],
    new: &[u8],
    out: &mut Vec<u8>,
) -> Compression {
    let from = out.len();
    encoding.put_payload(old, new, out);
    packer.pack(out, from)
}

/// A writer that adds the records of a batch to the log of one branch, in segments of its own.
pub(crate) struct Appender {
    branch: Arc<Branch>,
    shelf: SegmentFactory,
    settings: CdpSettings,
    packer: Packer,
    lane: SerialWriter,
    next_seq: u64,
    /// The ends of the log when the appender was made.
    from: LogEnds,
    current: Option<OpenSegmentWriter>,
    /// The current segment is the log's open segment, and its entries are in memory.
    continued: bool,
    /// The open segment is closed before the next record.
    ends: bool,
    /// The number of the next segment, if it is taken over from a run.
    seq: Option<u64>,
    sealed: Vec<OpenSegmentWriter>,
    new_files: bool,
    /// The purpose of the appender's syncs.
    purpose: SyncPurpose,
}

/// Both ends of a log.
#[derive(PartialEq, Eq)]
struct LogEnds {
    /// The LSN before which moments are gone. Anchors expire only with the moments before them.
    floor: Lsn,
    /// The number of the next segment.
    next_seq: u64,
    /// Number, edition and length of the open segment.
    open: Option<(u64, u32, u64)>,
}

fn ends_of(log: &LogState) -> LogEnds {
    let open = log.open.as_ref().map(|o| (o.file.head.seq, o.file.head.edition, o.record.end));
    LogEnds { floor: log.floor(), next_seq: log.next_seq, open }
}

/// The additions of a batch to the log of one branch. They are on disk and durable, and count after
/// the commit.
pub(crate) struct StagedSegments {
    branch: Arc<Branch>,
    added: Added,
    next_seq: u64,
}

enum Added {
    /// Segments of the branch's own. With `continued`, `open` continues the log's open segment.
    Segments { sealed: Vec<OpenSegmentWriter>, open: Option<Box<OpenSegmentWriter>>, continued: bool },
    /// A run in a shared segment. Its number among the branch's segments is `next_seq` - 1.
    Run { file: LogFile, record: SegmentRecord },
}

impl Appender {
    /// Makes an appender. With `beside` it writes on a thread of its own.
    pub(crate) fn new(
        branch: &Arc<Branch>,
        shelf: SegmentFactory,
        settings: CdpSettings,
        beside: bool,
    ) -> Result<Appender> {
        let log = branch.cdp.log.read();
        let open = |o: &Open| {
            Ok::<_, Error>(OpenSegmentWriter::of(
                (o.file.clone(), o.file.open()?),
                o.record,
                o.groups.clone(),
            ))
        };
        let current = log.open.as_ref().map(open).transpose()?;
        // Numbers grow with LSNs, so nothing is appended before runs. Nothing is appended to a
        // damaged segment either: it would be lost with it.
        let ends = log.is_open_behind() || log.open.as_ref().is_some_and(|open| open.incomplete);
        Ok(Appender {
            branch: branch.clone(),
            shelf,
            settings,
            packer: Packer::new(settings.compression)?,
            lane: SerialWriter::new(beside, WAITING),
            next_seq: log.next_seq,
            from: ends_of(&log),
            continued: current.is_some(),
            current,
            ends,
            seq: None,
            sealed: Vec::new(),
            new_files: false,
            purpose: SyncPurpose::Cdp,
        })
    }

    /// Makes an appender for sorting runs. `seq` is the number of the new segment that the records
    /// go to. Without `seq` they go to the end of the open segment. Only [`Appender::seal`] closes
    /// that segment. A new segment behind the open one closes the open one first.
    pub(crate) fn for_runs(
        branch: &Arc<Branch>,
        shelf: SegmentFactory,
        seq: Option<u64>,
    ) -> Result<Appender> {
        let settings = CdpSettings { compression: Compression::None, ..CdpSettings::default() };
        let shelf = SegmentFactory { limit: u64::MAX, most: u64::MAX, most_held: u64::MAX, ..shelf };
        let mut appender = Appender::new(branch, shelf, settings, false)?;
        let open = appender.current.as_ref().map(|draft| draft.file.head.seq);
        (appender.seq, appender.purpose) = (seq, SyncPurpose::CdpSorted);
        appender.ends = seq.is_some_and(|seq| open.is_some_and(|open| open < seq));
        if seq.is_some() && !appender.ends {
            (appender.current, appender.continued) = (None, false);
        }
        Ok(appender)
    }

    /// Returns whether files were made since the last call. The caller makes their names durable.
    pub(crate) fn take_new_names(&mut self) -> bool {
        std::mem::take(&mut self.new_files)
    }

    /// Returns the bytes of the segment that is being written, the bytes that its records need in
    /// slots, and the number of its records.
    pub(crate) fn current(&self) -> (u64, u64, u64) {
        let of = |draft: &OpenSegmentWriter| (draft.len(), draft.record.kept, draft.record.records);
        self.current.as_ref().map_or((0, 0, 0), of)
    }

    /// Returns whether the log still begins and ends where it did when this appender was made, and
    /// its settings have not changed.
    pub(crate) fn continues_log(&self) -> bool {
        let log = self.branch.cdp.log.read();
        self.from == ends_of(&log) && log.settings == Some(self.settings)
    }

    /// Waits until everything that was passed to the lane is written. Returns the number of bytes
    /// written behind the end of the log.
    pub(crate) fn settle(&mut self) -> Result<u64> {
        self.lane.settle()?;
        let written = self.sealed.iter().chain(&self.current).map(|draft| draft.written).sum::<u64>();
        Ok(written - self.from.open.map_or(0, |(_, _, end)| end))
    }

    /// Adds a record. `payload` appends its payload and returns its compression.
    pub(crate) fn put(
        &mut self,
        entry: IndexEntry,
        epoch: Epoch,
        payload: impl FnOnce(&mut Packer, &mut Vec<u8>) -> Compression,
    ) -> Result<()> {
        if std::mem::take(&mut self.ends) {
            self.seal()?;
        }
        let draft = match &mut self.current {
            Some(draft) => draft,
            none => {
                let seq = self.seq.take().unwrap_or(self.next_seq);
                let created = self.shelf.create(seq, 0)?;
                (self.next_seq, self.new_files) = (self.next_seq.max(seq + 1), true);
                none.insert(OpenSegmentWriter::new(created))
            }
        };
        let packer = &mut self.packer;
        draft.push(&mut self.lane, entry, epoch, |out| payload(packer, out))?;
        let full = draft.len() >= self.shelf.limit
            || draft.len() + draft.record.kept >= self.shelf.most_held
            || draft.record.records >= self.shelf.most;
        if full { self.seal() } else { Ok(()) }
    }

    pub(crate) fn seal(&mut self) -> Result<()> {
        let Some(mut draft) = self.current.take() else { return Ok(()) };
        draft.end_group(&mut self.lane)?;
        let log = self.branch.cdp.log.read();
        let open = log.open.as_ref().filter(|_| std::mem::take(&mut self.continued));
        if open.is_some_and(|open| open.incomplete) {
            // An index of what is left would hide that something is missing.
            draft.record.index_at = Some(draft.record.end);
            draft.record.sealed = true;
        } else {
            let earlier = open.into_iter().flat_map(|open| open.entries.values().copied());
            draft.seal(&mut self.lane, earlier)?;
        }
        drop(log);
        self.sealed.push(draft);
        // Segments may be small, and a batch long.
        match self.sealed.len().checked_sub(MAX_UNSYNCED) {
            Some(oldest) => self.sealed[oldest].sync(&mut self.lane, self.purpose),
            None => Ok(()),
        }
    }

    /// Makes everything durable. Returns `None` when nothing was added.
    pub(crate) fn finish(mut self) -> Result<Option<StagedSegments>> {
        let open_grew = self.current.as_ref().is_some_and(|draft| !draft.entries.is_empty());
        if let Some(draft) = &mut self.current {
            draft.end_group(&mut self.lane)?;
        }
        if self.sealed.is_empty() && !open_grew {
            return Ok(None);
        }
        for draft in self.sealed.iter_mut().chain(&mut self.current) {
            draft.sync(&mut self.lane, self.purpose)?;
        }
        self.lane.join()?;
        if self.new_files {
            let failed = |e| Error::io("sync the data directory", e).lasting();
            self.shelf.dir.sync(SyncPurpose::Dir).map_err(failed)?;
        }
        // A new segment among the runs leaves the open one as it is.
        let (sealed, open, continued) = (self.sealed, self.current.map(Box::new), self.continued);
        let added = Added::Segments { sealed, open, continued };
        Ok(Some(StagedSegments { branch: self.branch, added, next_seq: self.next_seq }))
    }
}

impl Records for Appender {
    fn encoding(&self) -> Encoding {
        self.settings.encoding
    }

    fn push(&mut self, item: &RecordItem, old: &[u8], sum: &mut u32, new: &[u8]) -> Result<()> {
        let encoding = self.settings.encoding;
        let entry = item.entry((&self.branch, encoding), old, sum, new);
        self.put(entry, item.epoch, |packer, out| put_payload((encoding, packer), old, new, out))
    }

    fn push_bare(&mut self, item: &RecordItem, replaced: Replaced) -> Result<()> {
        let entry = item.entry_without_payload(self.settings.encoding, replaced);
        self.put(entry, item.epoch, |_, _| Compression::None)
    }
}

impl StagedSegments {
    /// Makes the result for a run, which takes the next number among the branch's segments.
    pub(crate) fn run(branch: Arc<Branch>, file: LogFile, record: SegmentRecord) -> StagedSegments {
        let next_seq = branch.cdp.log.read().next_seq + 1;
        StagedSegments { branch, added: Added::Run { file, record }, next_seq }
    }

    pub(crate) fn is_run(&self) -> bool {
        matches!(self.added, Added::Run { .. })
    }

    /// Returns the change of the room that is kept for closing the open segment, in bytes.
    pub(crate) fn closing_room(&self) -> i64 {
        let Added::Segments { open, continued, sealed } = &self.added else { return 0 };
        let log = self.branch.cdp.log.read();
        let replaced = *continued || sealed.iter().any(|draft| log.is_open(draft.file.head.seq));
        let before = if replaced { log.closing_room() } else { 0 };
        open.as_ref().map_or(0, |draft| index_room(draft.record.records)) as i64 - before as i64
    }

    /// Writes the additions to the catalog. They count with everything else of the transaction.
    pub(crate) fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        let branch = self.branch.id;
        let (sealed, open) = match &self.added {
            Added::Segments { sealed, open, .. } => (sealed, open),
            Added::Run { file, record } => {
                let run = RunRecord { branch, seq: self.next_seq - 1, record: *record };
                return txn.put_cdp_run((file.head.seq, record.start), &run);
            }
        };
        for draft in sealed {
            let seq = draft.file.head.seq;
            txn.put_cdp_segment(branch, seq, &draft.record)?;
            (0..draft.known_groups).try_for_each(|n| txn.remove_cdp_group(branch, seq, n as u64))?;
        }
        if let Some(draft) = open {
            let seq = draft.file.head.seq;
            txn.put_cdp_segment(branch, seq, &draft.record)?;
            for (n, group) in draft.groups.iter().enumerate().skip(draft.known_groups) {
                txn.put_cdp_group(branch, seq, n as u64, group)?;
            }
        }
        Ok(())
    }

    /// Makes the additions visible to readers, after the commit and before the map has anything of
    /// the batch. `applying` is what is about to be written over the content in place.
    pub(crate) fn publish(self, shared: &SharedLog, applying: Applying) {
        if let Added::Run { file, record } = &self.added {
            shared.added(file, record.end);
        }
        let branch = self.branch.clone();
        branch.cdp.change(|log| {
            self.show(log);
            log.applying = Some(Arc::new(applying));
        });
    }

    /// Adds the additions to the log in memory.
    pub(crate) fn show(self, log: &mut LogState) {
        log.next_seq = self.next_seq;
        let (sealed, open, continued) = match self.added {
            Added::Segments { sealed, open, continued } => (sealed, open, continued),
            Added::Run { file, record } => {
                return log.put_sealed(self.next_seq - 1, Arc::new(Sealed::new(file, record)));
            }
        };
        for draft in sealed {
            let seq = draft.file.head.seq;
            if log.is_open(seq) {
                log.open = None;
            }
            log.put_sealed(seq, Arc::new(Sealed::new(draft.file, draft.record)));
        }
        if let Some(draft) = open {
            let (mut entries, incomplete) = log
                .open
                .take()
                .filter(|_| continued)
                .map_or_else(Default::default, |o| (o.entries, o.incomplete));
            entries.extend(draft.fresh.iter().map(|e| ((e.chunk, e.lsn), *e)));
            let (file, record, groups) = (draft.file, draft.record, draft.groups);
            log.open = Some(Open { file, record, groups, entries, incomplete });
        }
    }

    pub(crate) fn branch(&self) -> &Arc<Branch> {
        &self.branch
    }
}

/// Makes a range (first, last) include `at`.
fn widen<T: Copy + Ord>((first, last): &mut (T, T), at: T) {
    *first = at.min(*first);
    *last = at.max(*last);
}
