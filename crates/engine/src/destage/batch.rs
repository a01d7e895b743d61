//! The unit that destage carries out at once: a batch of records, or a run of control records.

use super::record::Recorder;
use crate::area::SlotKind;
use crate::branch::{Branch, DiscardRange, ExternalBase};
use crate::catalog::page::Slot;
use crate::control::Control;
use crate::error::{Result, corrupt};
use crate::fault::died;
use crate::ids::{BranchId, Chunk, Epoch, Lsn, Stamp};
use crate::journal::Located;
use crate::journal::record::{Header, Kind};
use crate::journal::reference::Reference;
use crate::space::allocator::FreedSlot;
use crate::sums::stored;
use crate::units::BLOCK;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

/// The next part of the journal.
pub(super) enum Collected {
    Nothing,
    Records(Batch),
    /// A control record that is carried out alone: its stamp, the operation, the reservations that
    /// end with it.
    Control(Stamp, Control, Reserved),
    Run(ControlRun),
}

/// Long discards and control records that share a commit, without data between them. At most the
/// first of the discards has anything to free.
#[derive(Default)]
pub(crate) struct ControlRun {
    /// The stamp of the last record.
    pub(super) last: Stamp,
    /// The records in their order, and what is to be done.
    pub(super) steps: Vec<(Stamp, RunStep)>,
    /// Number of rows of the catalog that the records of this run change.
    pub(crate) rows: usize,
    pub(super) reserved: Reserved,
}

/// One record of a [`ControlRun`].
pub(crate) enum RunStep {
    Control(Box<Control>),
    Discard(DiscardRange),
}

impl ControlRun {
    pub(crate) fn push(&mut self, header: &Header, step: RunStep) {
        self.steps.push((header.stamp(), step));
        self.passed(header);
    }

    /// Removes from staging what the run discards. Returns the branches of the discarded ranges.
    pub(super) fn unstage(&self) -> Vec<Arc<Branch>> {
        let mut branches = Vec::new();
        for (stamp, step) in &self.steps {
            if let RunStep::Discard(range) = step {
                range.branch.staging.remove(std::iter::empty(), stamp.lsn);
                branches.push(range.branch.clone());
            }
        }
        branches
    }

    pub(crate) fn passed(&mut self, header: &Header) {
        self.last = header.stamp();
    }

    /// Returns whether the run covers no record: records have LSNs from 1 on.
    pub(super) fn is_empty(&self) -> bool {
        self.last.lsn == Lsn::ZERO
    }
}

/// Reservations that end with a record: (log2 of the slot size, slots).
pub(super) type Reserved = Vec<(SlotKind, u64)>;

/// The source of the new content of a part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartSource {
    /// (journal file, byte position)
    Journal(u32, u32),
    /// A slot that a reference names, and that becomes the chunk's own. The part is the whole
    /// chunk.
    Slot(Slot),
    /// Zeros that keep or get a slot.
    Zeros,
    /// Zeros that need no slot; over a whole chunk they free it.
    Hole,
}

/// One record's part in one chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchItem {
    /// Index into [`Batch::branches`].
    pub(super) branch: u32,
    /// The record's position in the order of the batch's records.
    pub(super) order: u32,
    pub(super) chunk: Chunk,
    /// Byte range inside the chunk.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) source: PartSource,
}

/// Blocks that a batch takes out of staging.
#[derive(Debug, Clone, Copy)]
pub(super) struct StagedBlocks {
    pub(super) branch: u32,
    pub(super) first: u64,
    pub(super) end: u64,
}

/// A batch of records.
#[derive(Default)]
pub(crate) struct Batch {
    /// The stamp of the last record.
    pub(super) last: Stamp,
    pub(super) branches: Vec<Arc<Branch>>,
    /// The epoch of each branch's records. A batch never has data of one branch from both sides of
    /// a snapshot.
    pub(super) epochs: Vec<Epoch>,
    /// Indexes into `branches`, by the branches' ids.
    indexes: HashMap<BranchId, u32>,
    /// Control records between the data, in order.
    pub(super) controls: Vec<(Stamp, Control)>,
    /// Number of rows of the catalog that the control records of this batch change.
    pub(crate) rows: usize,
    /// The stamp of each record, by [`BatchItem::order`]. The list is empty for a batch without
    /// records.
    pub(super) stamps: Vec<Stamp>,
    /// The parts of chunks, sorted by (branch, chunk, order) once the batch is collected.
    pub(super) items: Vec<BatchItem>,
    pub(super) blocks: Vec<StagedBlocks>,
    pub(crate) records: u32,
    /// Number of bytes that the batch takes in the journal.
    pub(crate) bytes: u64,
    reserved: BTreeMap<SlotKind, u64>,
    /// Number of bytes that the batch's references name.
    pub(crate) referred: u64,
    /// The sums of the slots that references name.
    pub(super) slot_sums: HashMap<Slot, Vec<u32>>,
    /// Slots of references whose branches are gone.
    pub(super) unowned: Vec<FreedSlot>,
    /// Map pages that the batch touches: (the branch's index as in an item, number of the page).
    pub(crate) pages: HashSet<(u32, u64)>,
    /// The batch ended at a bound, and more records would have followed.
    pub(crate) full: bool,
    /// The records of histories that were made of this batch in advance.
    pub(super) recorded: Vec<Recorder>,
}

impl Batch {
    /// Returns whether the batch covers no record: records have LSNs from 1 on.
    pub(super) fn is_empty(&self) -> bool {
        self.last.lsn == Lsn::ZERO
    }

    /// The reservations that end with this batch.
    pub(super) fn released(&self) -> Vec<(SlotKind, u64)> {
        self.reserved.iter().map(|(kind, slots)| (*kind, *slots)).collect()
    }

    /// Returns the range of a branch's items. `index` is the branch's index in the batch.
    pub(super) fn items_of(&self, index: u32) -> Range<usize> {
        let start = self.items.partition_point(|item| item.branch < index);
        start..self.items.partition_point(|item| item.branch <= index)
    }

    /// Returns the number of bytes that the batch writes to a branch.
    pub(super) fn bytes_of(&self, branch: BranchId) -> u64 {
        let items = self.indexes.get(&branch).map_or(0..0, |index| self.items_of(*index));
        self.items[items].iter().map(|item| u64::from(item.end - item.start)).sum()
    }

    /// Makes a batch of one item without a journal record.
    pub(super) fn of_one(branch: Arc<Branch>, epoch: Epoch, item: BatchItem) -> Batch {
        Batch { branches: vec![branch], epochs: vec![epoch], items: vec![item], ..Batch::default() }
    }

    fn branch_index(&mut self, branch: &Arc<Branch>, epoch: Epoch) -> u32 {
        *self.indexes.entry(branch.id).or_insert_with(|| {
            self.branches.push(branch.clone());
            self.epochs.push(epoch);
            self.branches.len() as u32 - 1
        })
    }

    /// Returns whether a snapshot parts the record of `header` from this batch: the batch has data
    /// of the record's branch in another epoch.
    pub(crate) fn is_parted(&self, header: &Header) -> bool {
        let index = self.indexes.get(&header.branch);
        index.is_some_and(|index| self.epochs[*index as usize] != header.epoch)
    }

    /// Adds a reference of a branch that is gone. The batch's commit frees its slots.
    pub(crate) fn add_unowned(&mut self, header: &Header, data: &[u8]) -> Result<()> {
        let reference = decode_reference(header, data)?;
        self.referred += header.length;
        self.unowned.extend(reference.slots().map(|slot| (slot, reference.slot_log2)));
        Ok(())
    }

    /// Adds a reference: each chunk with its slot.
    pub(crate) fn add_reference(
        &mut self,
        located: &Located,
        data: &[u8],
        branch: &Arc<Branch>,
        takes_sums: bool,
    ) -> Result<()> {
        let header = &located.header;
        let reference = decode_reference(header, data)?;
        if (branch.chunk_log2, branch.slot_log2) != (reference.slot_log2, reference.slot_log2) {
            return Err(corrupt(format!("read LSN {}: its slots have another size than chunks", header.lsn)));
        }
        let index = self.branch_index(branch, header.epoch);
        let end = branch.chunk_size() as u32;
        let chunks = Chunk::each(branch.chunks(header.offset, header.length));
        let sums = reference.sums.chunks((branch.chunk_size() / BLOCK).max(1) as usize);
        for ((chunk, slot), sums) in chunks.zip(reference.slots()).zip(sums) {
            if takes_sums {
                self.slot_sums.insert(slot, sums.iter().copied().map(stored).collect());
            }
            self.pages.insert((index, chunk.page()));
            let (order, source) = (self.records, PartSource::Slot(slot));
            self.items.push(BatchItem { branch: index, order, chunk, start: 0, end, source });
        }
        self.add_blocks(index, header);
        self.referred += header.length;
        self.count(header);
        Ok(())
    }

    /// Adds a record that is no reference.
    pub(crate) fn add(&mut self, located: &Located, branch: &Arc<Branch>) {
        let header = &located.header;
        let index = self.branch_index(branch, header.epoch);
        let end = header.offset + header.length;
        for chunk in Chunk::each(branch.chunks(header.offset, header.length)) {
            self.pages.insert((index, chunk.page()));
            let bytes = chunk.bytes(branch.chunk_log2);
            let from = header.offset.max(bytes.start);
            let to = end.min(bytes.end);
            let source = match header.kind {
                Kind::Write => {
                    PartSource::Journal(located.file, (located.data_at + from - header.offset) as u32)
                }
                Kind::Zero => PartSource::Zeros,
                _ => PartSource::Hole,
            };
            self.items.push(BatchItem {
                branch: index,
                order: self.records,
                chunk,
                start: (from - bytes.start) as u32,
                end: (to - bytes.start) as u32,
                source,
            });
        }
        if header.kind == Kind::Write {
            self.add_blocks(index, header);
        }
        *self.reserved.entry(branch.kind()).or_default() += header.slots as u64;
        self.count(header);
    }

    /// Adds the blocks of a record with data to those that leave staging.
    fn add_blocks(&mut self, branch: u32, header: &Header) {
        let (first, end) = (header.offset / BLOCK, (header.offset + header.length).div_ceil(BLOCK));
        match self.blocks.last_mut() {
            Some(last) if last.branch == branch && last.end == first => last.end = end,
            _ => self.blocks.push(StagedBlocks { branch, first, end }),
        }
    }

    fn count(&mut self, header: &Header) {
        self.stamps.push(header.stamp());
        self.records += 1;
        self.bytes += header.space();
    }
}

fn decode_reference(header: &Header, data: &[u8]) -> Result<Reference> {
    Reference::decode(header, data)
        .ok_or_else(|| corrupt(format!("read LSN {}: the reference makes no sense", header.lsn)))
}

/// Content for a range of a PV.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    /// Physical volume and byte offset, as a slot address.
    pub(super) address: Slot,
    pub(super) len: u32,
    pub(super) fill: Content,
    /// The slot consists of whole units, so it has sums.
    pub(super) has_sums: bool,
}

/// The source of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Zeros,
    /// (journal file, byte position)
    Journal(u32, u32),
    /// The content that this slot holds now.
    Slot(Slot),
}

impl Placed {
    /// Content for the bytes `start..end` of the slot of a chunk.
    pub(super) fn new(slot: Slot, chunk_size: u64, (start, end): (u32, u32), fill: Content) -> Placed {
        let address = slot.advanced(start.into());
        Placed { address, len: end - start, fill, has_sums: chunk_size >= BLOCK }
    }

    /// The content of a whole chunk that is copied from another slot.
    pub(super) fn copy(slot: Slot, chunk_size: u64, from: Slot) -> Placed {
        Placed::new(slot, chunk_size, (0, chunk_size as u32), Content::Slot(from))
    }
}

/// Waits for a borrowed thread and returns its result.
pub(crate) fn joined(worker: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    worker.join().unwrap_or_else(|panic| Err(died("write a batch", &*panic)))
}

/// The place of the content of a chunk for which a branch has no entry.
pub(crate) enum Below {
    Zeros,
    Slot(Slot),
    External(ExternalBase),
}
