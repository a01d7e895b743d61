//! Reading a batch from the journal: itself, not the live index, so that a batch is exactly a range of LSNs.

use super::recording::Recorder;
use crate::catalog::Control;
use crate::cdp;
use crate::error::{ErrorKind, Result};
use crate::journal::record::{BLOCK, Header, Kind};
use crate::journal::{Cursor, Located};
use crate::map::page::MapPage;
use crate::pool::line::Branch;
use crate::pool::{Maintenance, Pool};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A discard of more whole chunks than this is carried out alone, in steps.
const MAX_HOLES: u64 = 4096;
/// Chunk operations of one batch: bounds its memory (48 bytes each).
const MAX_ITEMS: usize = 256 << 10;
/// Map pages that one batch touches, if the catalog's file system has room for them: each is in
/// memory twice until the commit (4 KiB each time).
const MAX_PAGES: usize = 8 << 10;

/// What comes next in the journal.
pub(super) enum Collected {
    Nothing,
    Records(Batch),
    /// (LSN and time, what is to be done)
    Control((u64, u64), Control, Reserved),
    /// (LSN and time, what is discarded)
    LongDiscard((u64, u64), DiscardRange, Reserved),
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

/// A batch of data records.
#[derive(Default)]
pub(crate) struct Batch {
    pub(super) last_lsn: u64,
    pub(super) branches: Vec<Arc<Branch>>,
    /// The epoch of each branch's records: no batch crosses the marker of a snapshot.
    pub(super) epochs: Vec<u32>,
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
        let known = self.branches.iter().rposition(|b| b.id == branch.id);
        known.unwrap_or_else(|| {
            self.branches.push(branch.clone());
            self.epochs.push(epoch);
            self.branches.len() - 1
        }) as u32
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

/// Is a discard carried out alone? With CDP also when it came right behind an anchor, so that nothing need be recorded.
fn is_long(header: &Header, branch: &Branch) -> bool {
    whole_chunks(header, branch) > MAX_HOLES
        || header.length > cdp::LONG_DISCARD && branch.cdp.log.read().settings.is_some()
}

/// Whole chunks that a discard frees.
fn whole_chunks(header: &Header, branch: &Branch) -> u64 {
    let size = 1u64 << branch.chunk_log2;
    let first = header.offset.div_ceil(size);
    ((header.offset + header.length) / size).saturating_sub(first)
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
        let mut batch = Batch::default();
        let most_pages = self.catalog_room.pages(MAX_PAGES);
        let mut alone = None;
        // Copied, so that control operations need not wait for the journal to be read.
        let branches = self.names.read().branches.clone();
        self.journal.visit(cursor, last, &mut |located, data| {
            let header = &located.header;
            let begun = batch.records > 0;
            // What is repeated is one batch, however large, and mostly changes no page.
            let crowded = max_bytes < u64::MAX && batch.pages.len() >= most_pages;
            batch.full = batch.bytes >= max_bytes || batch.items.len() >= MAX_ITEMS || crowded;
            if alone.is_some() || batch.full {
                return Ok(false);
            }
            if header.kind == Kind::Control {
                if begun || batch.last_lsn > 0 {
                    return Ok(false);
                }
                let control = crate::pool::decode_control(header.lsn, data)?;
                let reserved = branches.get(&header.branch).map(|b| (b.slot_log2, header.slots.into()));
                alone = Some(Collected::Control(
                    (header.lsn, header.time),
                    control,
                    reserved.into_iter().collect(),
                ));
                return Ok(true);
            }
            if let Some(branch) = branches.get(&header.branch) {
                if header.kind == Kind::Discard && is_long(header, branch) {
                    if begun {
                        return Ok(false);
                    }
                    let bytes = header.offset..header.offset + header.length;
                    let range = DiscardRange { branch: branch.clone(), epoch: header.epoch, bytes };
                    let reserved = vec![(branch.slot_log2, header.slots.into())];
                    alone = Some(Collected::LongDiscard((header.lsn, header.time), range, reserved));
                    return Ok(true);
                }
                batch.add(located, branch);
            }
            // Also for a record of a branch that is gone: it is passed.
            batch.last_lsn = header.lsn;
            Ok(true)
        })?;
        if let Some(alone) = alone {
            return Ok(alone);
        }
        if batch.last_lsn == 0 {
            return Ok(Collected::Nothing);
        }
        batch.items.sort_unstable_by_key(|i| (i.branch, i.chunk, i.order));
        Ok(Collected::Records(batch))
    }
}
