//! Reading a batch from the journal: itself, not the live index, so that a batch is exactly a range of LSNs.

use super::recording::Recorder;
use crate::catalog::Control;
use crate::error::{ErrorKind, Result};
use crate::journal::record::{BLOCK, Header, Kind};
use crate::journal::{Cursor, Located};
use crate::map::page::MapPage;
use crate::pool::line::Branch;
use crate::pool::{Maintenance, Pool};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Chunk operations of one batch: bounds its memory (48 bytes each).
const MAX_ITEMS: usize = 256 << 10;
/// Map pages that one batch touches, if the catalog's file system has room for them: each is in
/// memory twice until the commit (4 KiB each time).
const MAX_PAGES: usize = 8 << 10;
/// Rows that the control records and long discards of one commit change, if the catalog's file
/// system has room for them.
const MAX_ROWS: usize = 4096;

/// What comes next in the journal.
pub(super) enum Collected {
    Nothing,
    Records(Batch),
    /// A control record that is carried out alone: (LSN and time, what is to be done).
    Control((u64, u64), Control, Reserved),
    Run(Run),
}

/// Long discards and control records that share a commit, without data between them. At most the
/// first of the discards has anything to free.
#[derive(Default)]
pub(super) struct Run {
    pub(super) last_lsn: u64,
    pub(super) last_time: u64,
    /// In order: (LSN and time, what is to be done).
    pub(super) steps: Vec<((u64, u64), Step)>,
    /// Rows of the catalog that these change.
    rows: usize,
    pub(super) reserved: Reserved,
}

/// One record of a [`Run`].
pub(super) enum Step {
    Control(Control),
    Discard(DiscardRange),
}

impl Run {
    fn push(&mut self, header: &Header, step: Step) {
        self.steps.push(((header.lsn, header.time), step));
        self.passed(header);
    }

    /// Takes what the run discards out of staging.
    pub(super) fn unstage(&self) {
        for ((lsn, _), step) in &self.steps {
            if let Step::Discard(range) = step {
                range.branch.staging.remove(std::iter::empty(), *lsn);
            }
        }
    }

    fn passed(&mut self, header: &Header) {
        (self.last_lsn, self.last_time) = (header.lsn, header.time);
    }
}

/// Reservations that end with a record: (log2 of the slot size, slots).
pub(super) type Reserved = Vec<(u8, u64)>;

/// A range of a branch to discard, in bytes.
pub(super) struct DiscardRange {
    pub(super) branch: Arc<Branch>,
    pub(super) epoch: u32,
    pub(super) bytes: Range<u64>,
}

/// Where the new content of a part of a chunk comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// (journal file, byte position)
    Journal(u32, u32),
    /// Zeros that keep or get a slot.
    Zeros,
    /// Zeros that need no slot; over a whole chunk they free it.
    Hole,
}

/// One record's part in one chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// Index into [`Batch::branches`].
    pub(super) branch: u32,
    /// Position in the order of records.
    pub(super) order: u32,
    pub(super) chunk: u64,
    /// Byte range inside the chunk.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) source: Source,
}

/// Blocks that a batch takes out of staging.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) branch: u32,
    pub(super) first: u64,
    pub(super) end: u64,
}

/// A batch of records.
#[derive(Default)]
pub(crate) struct Batch {
    pub(super) last_lsn: u64,
    /// The time of the record with that LSN.
    pub(super) last_time: u64,
    pub(super) branches: Vec<Arc<Branch>>,
    /// The epoch of each branch's records: no batch has data of a branch from both sides of a
    /// snapshot.
    pub(super) epochs: Vec<u32>,
    /// Indexes of branches, by their ids.
    indexes: HashMap<u64, u32>,
    /// Control records between the data, in order: (LSN and time, what is to be done).
    pub(super) controls: Vec<((u64, u64), Control)>,
    /// Rows of the catalog that these change.
    rows: usize,
    /// LSN and time of each record, by [`Item::order`]; empty where no record stands behind the batch.
    pub(super) stamps: Vec<(u64, u64)>,
    /// By (branch, chunk, order) once collected.
    pub(super) items: Vec<Item>,
    pub(super) blocks: Vec<Blocks>,
    records: u32,
    bytes: u64,
    reserved: BTreeMap<u8, u64>,
    /// Map pages touched: (branch, as in an item; page).
    pages: HashSet<(u32, u64)>,
    /// More would have come, but for the bounds of a batch.
    full: bool,
    /// What histories keep of it, as far as that is recorded in advance.
    pub(super) recorded: Vec<Recorder>,
}

/// The batch after the one that is being carried out, collected meanwhile.
pub(crate) struct Ahead {
    from: Cursor,
    to: Cursor,
    batch: Batch,
}

impl Ahead {
    /// Do logs hold what no commit knows of?
    pub(crate) fn is_recorded(&self) -> bool {
        !self.batch.recorded.is_empty()
    }

    /// Does the log of this branch?
    pub(crate) fn records(&self, branch: u64) -> bool {
        self.batch.recorded.iter().any(|recorder| recorder.branch_id() == branch)
    }

    /// Bytes of logs that no commit knows of.
    pub(crate) fn recorded_bytes(&self) -> u64 {
        self.batch.recorded.iter().map(Recorder::bytes).sum()
    }
}

impl Batch {
    /// The reservations that end with this batch.
    pub(super) fn released(&self) -> Vec<(u8, u64)> {
        self.reserved.iter().map(|(slot_log2, slots)| (*slot_log2, *slots)).collect()
    }

    /// A batch of one item that no record stands for.
    pub(super) fn of_one(branch: Arc<Branch>, epoch: u32, item: Item) -> Batch {
        Batch { branches: vec![branch], epochs: vec![epoch], items: vec![item], ..Batch::default() }
    }

    fn branch_index(&mut self, branch: &Arc<Branch>, epoch: u32) -> u32 {
        *self.indexes.entry(branch.id).or_insert_with(|| {
            self.branches.push(branch.clone());
            self.epochs.push(epoch);
            self.branches.len() as u32 - 1
        })
    }

    /// Does the batch have data of this branch from before a snapshot that `header`'s data come
    /// after?
    fn is_parted(&self, header: &Header) -> bool {
        let index = self.indexes.get(&header.branch);
        index.is_some_and(|index| self.epochs[*index as usize] != header.epoch)
    }

    fn add(&mut self, located: &Located, branch: &Arc<Branch>) {
        let header = &located.header;
        let index = self.branch_index(branch, header.epoch);
        let end = header.offset + header.length;
        for chunk in branch.chunks(header.offset, header.length) {
            self.pages.insert((index, MapPage::locate(chunk).0));
            let chunk_start = chunk << branch.chunk_log2;
            let from = header.offset.max(chunk_start);
            let to = end.min(chunk_start + (1 << branch.chunk_log2));
            let source = match header.kind {
                Kind::Write => Source::Journal(located.file, (located.data_at + from - header.offset) as u32),
                Kind::Zero => Source::Zeros,
                _ => Source::Hole,
            };
            self.items.push(Item {
                branch: index,
                order: self.records,
                chunk,
                start: (from - chunk_start) as u32,
                end: (to - chunk_start) as u32,
                source,
            });
        }
        if header.kind == Kind::Write {
            let (first, end) = (header.offset / BLOCK, end.div_ceil(BLOCK));
            match self.blocks.last_mut() {
                Some(last) if last.branch == index && last.end == first => last.end = end,
                _ => self.blocks.push(Blocks { branch: index, first, end }),
            }
        }
        *self.reserved.entry(branch.slot_log2).or_default() += header.slots as u64;
        self.stamps.push((header.lsn, header.time));
        self.records += 1;
        self.bytes += header.space();
    }
}

/// Is a discard carried out alone?
fn is_long(header: &Header, branch: &Branch) -> bool {
    let recorded = branch.cdp.log.read().settings.is_some();
    branch.discards_alone(header.offset, header.length, recorded)
}

impl Pool {
    /// What comes next; moves `cursor` behind it.
    pub(super) fn next_collected(&self, m: &mut Maintenance, cursor: &mut Cursor) -> Result<Collected> {
        if let Some(ahead) = m.ahead.take().filter(|ahead| ahead.from == *cursor) {
            *cursor = ahead.to;
            return Ok(Collected::Records(ahead.batch));
        }
        if self.journal.synced() < self.journal.written() {
            self.journal.sync_all()?;
        }
        self.collect(cursor, self.journal.synced(), self.options.batch_bytes)
    }

    /// The batch at `from`, and where it ends, if all of it is there and destage is pressed. What fails here fails again when
    /// its turn has come.
    pub(super) fn collect_whole(&self, from: Cursor) -> Option<(Cursor, Batch)> {
        if !self.is_pressed() {
            return None;
        }
        let mut to = from;
        let collected = self.collect(&mut to, self.journal.synced(), self.options.batch_bytes).ok()?;
        let Collected::Records(batch) = collected else { return None };
        batch.full.then_some((to, batch))
    }

    /// Records what it can of the batch at `from`, which may be `known`, while `before` is brought to its place.
    pub(super) fn look_ahead(
        &self,
        from: Cursor,
        known: Option<(Cursor, Batch)>,
        before: &Batch,
    ) -> Option<Ahead> {
        let (to, mut batch) = known.or_else(|| self.collect_whole(from))?;
        let recorded = self.record_ahead(&batch, before);
        if let Err(error) = &recorded
            && error.kind() == ErrorKind::Poisoned
        {
            // A thread that records has panicked: what it had in hand is lost.
            let _ = self.fault.poison(error);
        }
        batch.recorded = recorded.ok()?;
        Some(Ahead { from, to, batch })
    }

    /// Collects from `cursor` up to LSN `last`, about `max_bytes` of journal, and moves the cursor behind it.
    pub(super) fn collect(&self, cursor: &mut Cursor, last: u64, max_bytes: u64) -> Result<Collected> {
        let mut collector = Collector {
            pool: self,
            // Copied, so that control operations need not wait for the journal to be read.
            branches: self.names.read().branches.clone(),
            max_bytes,
            most_pages: self.catalog_room.pages(MAX_PAGES),
            most_rows: self.catalog_room.versions(MAX_ROWS),
            batch: Batch::default(),
            run: None,
            alone: None,
        };
        self.journal.visit(cursor, last, &mut |located, data| collector.add(located, data))?;
        Ok(collector.finish())
    }

    /// Has a long discard anything to do but to be known?
    fn frees(&self, range: &DiscardRange) -> Result<bool> {
        let branch = &range.branch;
        let size = 1u64 << branch.chunk_log2;
        let whole = range.bytes.start.is_multiple_of(size) && range.bytes.end.is_multiple_of(size);
        if !whole || branch.has_base() || range.bytes.is_empty() {
            return Ok(true);
        }
        let chunks = range.bytes.start / size..range.bytes.end / size;
        let (first, last) = (MapPage::locate(chunks.start).0, MapPage::locate(chunks.end - 1).0);
        Ok(!self.catalog.page_numbers(branch.id, first, last, 1)?.is_empty())
    }
}

/// What a visit of the journal has found so far.
struct Collector<'a> {
    pool: &'a Pool,
    branches: HashMap<u64, Arc<Branch>>,
    /// About so much of the journal, so many map pages, and so many rows of control records, make a
    /// batch.
    max_bytes: u64,
    most_pages: usize,
    most_rows: usize,
    batch: Batch,
    run: Option<Run>,
    alone: Option<Collected>,
}

impl Collector<'_> {
    /// Takes the next record in, or says that it has to wait.
    fn add(&mut self, located: &Located, data: &[u8]) -> Result<bool> {
        let header = &located.header;
        let batch = &mut self.batch;
        // What is repeated is one batch, however large, and mostly changes no page.
        let crowded = self.max_bytes < u64::MAX && batch.pages.len() >= self.most_pages;
        batch.full = batch.bytes >= self.max_bytes || batch.items.len() >= MAX_ITEMS || crowded;
        if self.alone.is_some() || batch.full {
            return Ok(false);
        }
        if header.kind == Kind::Control {
            return self.add_control(header, data);
        }
        let branch = self.branches.get(&header.branch).cloned();
        if let Some(branch) = &branch {
            if header.kind == Kind::Discard && is_long(header, branch) {
                return self.add_long_discard(header, branch.clone());
            }
            if self.run.is_some() || self.batch.is_parted(header) {
                return Ok(false);
            }
            self.batch.add(located, branch);
        }
        // Also for a record of a branch that is gone: it is passed.
        match &mut self.run {
            Some(run) => run.passed(header),
            None => (self.batch.last_lsn, self.batch.last_time) = (header.lsn, header.time),
        }
        Ok(true)
    }

    fn add_control(&mut self, header: &Header, data: &[u8]) -> Result<bool> {
        let control = crate::pool::decode_control(header.lsn, data)?;
        if !control.shares_commit() || header.slots > 0 {
            if self.run.is_some() || self.batch.last_lsn > 0 {
                return Ok(false);
            }
            let reserved = self.branches.get(&header.branch).map(|b| (b.slot_log2, header.slots.into()));
            let at = (header.lsn, header.time);
            self.alone = Some(Collected::Control(at, control, reserved.into_iter().collect()));
            return Ok(true);
        }
        let before = self.run.as_ref().map_or(self.batch.rows, |run| run.rows);
        // One that alone is too large has to be carried out all the same.
        let rows = before + control.rows();
        let fits = before == 0 || rows <= self.most_rows || self.max_bytes == u64::MAX;
        if let Some(run) = &mut self.run {
            if fits {
                run.rows = rows;
                run.push(header, Step::Control(control));
            }
            return Ok(fits);
        }
        let batch = &mut self.batch;
        if fits {
            batch.rows = rows;
            batch.controls.push(((header.lsn, header.time), control));
            (batch.last_lsn, batch.last_time) = (header.lsn, header.time);
        }
        Ok(fits)
    }

    /// A long discard, behind nothing or behind what can be carried out with it.
    fn add_long_discard(&mut self, header: &Header, branch: Arc<Branch>) -> Result<bool> {
        if self.batch.records > 0 {
            return Ok(false);
        }
        let mut run = self.run.take().unwrap_or_else(|| {
            let batch = std::mem::take(&mut self.batch);
            let steps = batch.controls.into_iter().map(|(at, control)| (at, Step::Control(control)));
            Run {
                last_lsn: batch.last_lsn,
                last_time: batch.last_time,
                steps: steps.collect(),
                rows: batch.rows,
                reserved: Reserved::new(),
            }
        });
        let bytes = header.offset..header.offset + header.length;
        let range = DiscardRange { branch: branch.clone(), epoch: header.epoch, bytes };
        let fits = run.steps.is_empty() || run.rows < self.most_rows && !self.pool.frees(&range)?;
        if fits {
            run.rows += 1;
            run.reserved.push((branch.slot_log2, header.slots.into()));
            run.push(header, Step::Discard(range));
        }
        self.run = Some(run);
        Ok(fits)
    }

    fn finish(mut self) -> Collected {
        if let Some(alone) = self.alone {
            return alone;
        }
        if let Some(run) = self.run.filter(|run| run.last_lsn > 0) {
            return Collected::Run(run);
        }
        if self.batch.last_lsn == 0 {
            return Collected::Nothing;
        }
        self.batch.items.sort_unstable_by_key(|i| (i.branch, i.chunk, i.order));
        Collected::Records(self.batch)
    }
}
