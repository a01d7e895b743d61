//! Reads what the records of a batch are made of, piece by piece: what its chunks hold before the
//! batch, and what the batch writes there.
//!
//! Where destage may borrow threads, one thread reads the next pieces while this one records.

use super::apply::{MIN_PER_THREAD, READ_AHEAD};
use super::batch::{Batch, BatchItem, PartSource, joined};
use crate::branch::{Branch, View};
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::cdp::log::record::Replaced;
use crate::core::Core;
use crate::disk::Cause;
use crate::error::{Result, both};
use crate::ids::{Chunk, Epoch, Lsn};
use crate::settings::{CdpSettings, Encoding};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::slice::Iter;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Least size of a piece in bytes. The items of one record may exceed it. It is small enough for
/// the processor's cache.
const PIECE: usize = 512 << 10;
/// Least size of a piece in bytes when no other thread reads ahead.
const PIECE_ALONE: usize = 16 << 10;
/// Most chunks of a piece. Chunks whose records have no payload take no bytes of it.
const PIECE_CHUNKS: usize = 4096;
/// Number of pieces in use at a time, when a thread reads ahead.
const PIECES: usize = 3;
/// Largest announcement to a disk, in bytes. Reads that follow one another are announced together
/// up to this size, since the disk cuts off the rest.
const MAX_ANNOUNCED: u64 = 128 << 10;

/// Most steps of retention that lie between an anchor and a record that needs it. Anchors come
/// after one step. A batch may exceed it, and the segment in which the anchor lies counts as a
/// whole.
const REACH: u64 = 3;

/// The contents of chunks before a batch, and what the batch writes there.
#[derive(Default)]
pub(super) struct RecordPart {
    pub(super) chunks: Vec<ChunkPart>,
    pub(super) old: ReadBuffer,
    pub(super) new: ReadBuffer,
}

/// A chunk, or a part of its items, that is recorded with one piece.
pub(super) struct ChunkPart {
    /// Range in the batch's items. What the items write lies one after another in
    /// [`RecordPart::new`].
    pub(super) items: Range<usize>,
    /// The content of the chunk before the batch. It is `None` when its items continue those of the
    /// last piece, or when the record has no payload.
    pub(super) before: Option<Before>,
    /// The record of the only item has no payload.
    pub(super) bare: Option<Replaced>,
    /// Some of what the items write can't be read. Zeros stand in its place.
    pub(super) is_new_lost: bool,
    /// The last of the chunk's items is in this piece.
    pub(super) ends: bool,
}

/// The content of a chunk before a batch.
pub(super) struct Before {
    /// The sum of the whole content; none when the whole content is in `old`.
    pub(super) sum: Option<u32>,
    /// The byte of the chunk that `old` begins with.
    pub(super) first: u32,
    /// Range in [`RecordPart::old`].
    pub(super) old: Range<usize>,
}

/// A buffer of bytes, filled with as few reads as possible. It is reused, so that its memory is not
/// allocated again.
#[derive(Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    used: usize,
    /// The read that is still to be done: the disk, the byte position there, the range in `bytes`.
    waiting: Option<(Disk, u64, Range<usize>)>,
    /// Ranges in `bytes` that are zeros because their content could not be read.
    lost: Vec<Range<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    /// A physical volume, by its number.
    Pv(u32),
    /// A journal file, by its number.
    Journal(u32),
}

impl ReadBuffer {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.used]
    }

    fn reset(&mut self) {
        self.used = 0;
        self.lost.clear();
    }

    /// Reserves `len` bytes whose content is undefined until the caller writes them.
    fn room(&mut self, len: usize) -> Range<usize> {
        let range = self.used..self.used + len;
        self.used = range.end;
        if self.bytes.len() < range.end {
            self.bytes.resize(range.end, 0);
        }
        range
    }

    fn put(&mut self, content: &[u8]) -> Range<usize> {
        let range = self.room(content.len());
        self.bytes[range.clone()].copy_from_slice(content);
        range
    }

    fn put_zeros(&mut self, len: usize) {
        let range = self.room(len);
        self.bytes[range].fill(0);
    }

    /// Reads `len` bytes at `at`. They are in the returned range after [`ReadBuffer::finish`].
    fn read(&mut self, core: &Core, disk: Disk, at: u64, len: usize) -> Result<Range<usize>> {
        let range = self.room(len);
        match &mut self.waiting {
            Some((of, from, to)) if (*of, *from + to.len() as u64, to.end) == (disk, at, range.start) => {
                to.end = range.end;
            }
            _ => {
                self.finish(core)?;
                self.waiting = Some((disk, at, range.clone()));
            }
        }
        Ok(range)
    }

    fn finish(&mut self, core: &Core) -> Result<()> {
        let Some((disk, at, range)) = self.waiting.take() else { return Ok(()) };
        let into = &mut self.bytes[range.clone()];
        match disk {
            Disk::Journal(file) => core.read_journal(file, at as u32, into),
            Disk::Pv(number) => {
                let lost = core.read_verified_parts(&*core.pvs.get(number)?, into, at)?;
                self.lost.extend(lost.into_iter().map(|p| range.start + p.start..range.start + p.end));
                Ok(())
            }
        }
    }
}

/// The place where the content of a chunk before its items is found.
enum Found {
    /// This part of it is read from this slot. The sum of the whole content is given if it is
    /// known.
    Slot(Slot, Range<u32>, Option<u32>),
    /// All of it is replaced, and only its sum is needed.
    Replaced(u32),
    /// The record needs no payload.
    Kept(Replaced),
    /// The content is in no slot of the branch.
    Elsewhere,
}

/// Returns the epoch of the newest snapshot of a branch before `epoch`, the epoch of a batch, if
/// records of the batch may need it: the history has it as an anchor, or will have it with the
/// batch. No history begins between an anchor and a record that needs it. So records need no anchor
/// that is far away, measured by what expires at once.
fn anchor_in_reach(batch: &Batch, branch: &Branch, epoch: Epoch) -> Option<Epoch> {
    let newest = branch.newest_snapshot_seeing(Epoch::NONE, epoch)?;
    let comes = batch.controls.iter().any(|(_, control)| control.takes_snapshot(branch.id, newest));
    let log = branch.cdp.log.read();
    let at = if comes { Lsn::MAX } else { log.anchor_of(newest)? };
    let settings = log.settings.filter(CdpSettings::keeps_slots)?;
    let in_reach = settings.retention.step_bytes().is_none_or(|step| {
        log.held_since(at).saturating_add(batch.bytes_of(branch.id)) <= REACH.saturating_mul(step)
    });
    in_reach.then_some(newest)
}

/// Reads what is to be recorded of one branch's part of a batch.
pub(super) struct Gather<'a> {
    core: &'a Core,
    batch: &'a Batch,
    head: View,
    encoding: Encoding,
    /// The epoch of the newest snapshot before the batch, if records may need it as their anchor.
    anchor: Option<Epoch>,
    /// Known sums of chunks, as before the batch.
    sums: &'a HashMap<Chunk, u32>,
    /// The items of each chunk.
    chunks: Iter<'a, Range<usize>>,
    /// Chunks whose place is still to be found. `found` has the places of chunks that were found
    /// and not read yet.
    ahead: Iter<'a, Range<usize>>,
    found: VecDeque<Found>,
    /// The map page that was read last, with its number.
    page: Option<(u64, Arc<MapPage>)>,
    announced: Option<(Slot, u64)>,
    /// Items that are left of a chunk whose first items are in an earlier piece.
    rest: Range<usize>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(
        core: &'a Core,
        batch: &'a Batch,
        branch: &Arc<Branch>,
        (epoch, encoding): (Epoch, Encoding),
        sums: &'a HashMap<Chunk, u32>,
        chunks: &'a [Range<usize>],
    ) -> Gather<'a> {
        Gather {
            anchor: core.options.keep_distance.and_then(|_| anchor_in_reach(batch, branch, epoch)),
            core,
            batch,
            head: View::head(branch),
            encoding,
            sums,
            chunks: chunks.iter(),
            ahead: chunks.iter(),
            found: VecDeque::with_capacity(READ_AHEAD),
            page: None,
            announced: None,
            rest: 0..0,
        }
    }

    /// Hands all pieces to `record`, in order.
    pub(super) fn for_each(mut self, mut record: impl FnMut(&mut RecordPart) -> Result<()>) -> Result<()> {
        // Several pieces with the largest chunks would take gigabytes.
        let small = self.head.branch.chunk_size() <= PIECE as u64;
        let beside = self.core.options.destage_threads > 1 && small && self.chunks.len() >= MIN_PER_THREAD;
        if beside && let Some(done) = self.beside(&mut record) {
            return done;
        }
        let mut piece = RecordPart::default();
        while self.fill(&mut piece, PIECE_ALONE)? {
            record(&mut piece)?;
        }
        Ok(())
    }

    /// Hands all pieces to `record` in order, while another thread reads. None, and nothing is
    /// done, if no thread can be started.
    fn beside(&mut self, record: &mut impl FnMut(&mut RecordPart) -> Result<()>) -> Option<Result<()>> {
        std::thread::scope(|scope| {
            let (fill, filled) = sync_channel(PIECES);
            let (empty, emptied) = sync_channel(PIECES);
            (0..PIECES).for_each(|_| _ = empty.send(RecordPart::default()));
            let read = move || {
                for mut piece in emptied {
                    // A recorder that is gone has failed, and reports why itself.
                    if !self.fill(&mut piece, PIECE)? || fill.send(piece).is_err() {
                        break;
                    }
                }
                Ok(())
            };
            let reader = std::thread::Builder::new().spawn_scoped(scope, read).ok()?;
            let recorded = filled.into_iter().try_for_each(|mut piece| {
                record(&mut piece)?;
                // The reader is gone when everything is read.
                let _ = empty.send(piece);
                Ok(())
            });
            drop(empty);
            Some(both(recorded, joined(reader)))
        })
    }

    /// Reads the next piece of about `bytes`; false when there is none.
    fn fill(&mut self, piece: &mut RecordPart, bytes: usize) -> Result<bool> {
        let _cause = Cause::History.begin();
        piece.chunks.clear();
        piece.old.reset();
        piece.new.reset();
        let is_full = |piece: &RecordPart| {
            piece.old.used + piece.new.used >= bytes || piece.chunks.len() >= PIECE_CHUNKS
        };
        while !is_full(piece) {
            let mut before = None;
            if self.rest.is_empty() {
                let Some(items) = self.chunks.next() else { break };
                let found = self.next_found()?;
                if let Found::Kept(replaced) = found {
                    let (items, bare) = (items.clone(), Some(replaced));
                    piece.chunks.push(ChunkPart {
                        items,
                        before: None,
                        bare,
                        is_new_lost: false,
                        ends: true,
                    });
                    continue;
                }
                self.rest = items.clone();
                before = Some(self.read_before(found, &mut piece.old)?);
            }
            let first = self.rest.start;
            while !self.rest.is_empty() && (self.rest.start == first || !is_full(piece)) {
                self.read_item(&mut piece.new)?;
            }
            let ends = self.rest.is_empty();
            let items = first..self.rest.start;
            piece.chunks.push(ChunkPart { items, before, bare: None, is_new_lost: false, ends });
        }
        piece.old.finish(self.core)?;
        piece.new.finish(self.core)?;
        if !piece.old.lost.is_empty() {
            self.note_lost(piece)?;
        }
        if !piece.new.lost.is_empty() {
            self.note_new_lost(piece);
        }
        Ok(!piece.chunks.is_empty())
    }

    /// Notes the chunks of a piece that could not be read as a whole. Their known sums are dropped:
    /// they are recorded with zeros in place of what is lost. So moments before them can't be
    /// reconstructed backward.
    fn note_lost(&self, piece: &mut RecordPart) -> Result<()> {
        let RecordPart { chunks, old, .. } = piece;
        for part in chunks {
            let Some(before) = &mut part.before else { continue };
            if !old.lost.iter().any(|lost| lost.start < before.old.end && before.old.start < lost.end) {
                continue;
            }
            self.note_gap(part.items.start);
            let (content, _) =
                self.core.placed_parts(&self.head.branch, self.batch.items[part.items.start].chunk)?;
            *before = Before { sum: None, first: 0, old: old.put(&content) };
        }
        Ok(())
    }

    /// Notes the chunks of a piece of whose new content a part can't be read in the slot that a
    /// reference names. No moment is reconstructed through their records of this batch.
    fn note_new_lost(&self, piece: &mut RecordPart) {
        let RecordPart { chunks, new, .. } = piece;
        let mut at = 0;
        for part in chunks.iter_mut().filter(|part| part.bare.is_none()) {
            let items = &self.batch.items[part.items.clone()];
            let end = at + items.iter().map(|item| (item.end - item.start) as usize).sum::<usize>();
            part.is_new_lost = new.lost.iter().any(|lost| lost.start < end && at < lost.end);
            if part.is_new_lost {
                self.note_gap(part.items.start);
            }
            at = end;
        }
    }

    /// Notes that no moment is reconstructed through the records of the chunk with the batch's item
    /// `first`, from that item on.
    fn note_gap(&self, first: usize) {
        let items = &self.batch.items[first..];
        let chunk = items[0].chunk;
        let of_chunk = items.iter().take_while(|item| (item.branch, item.chunk) == (items[0].branch, chunk));
        let lsns =
            of_chunk.filter_map(|item| self.batch.stamps.get(item.order as usize)).map(|stamp| stamp.lsn);
        let lsns = lsns.fold(None, |range: Option<(Lsn, Lsn)>, lsn| Some((range.map_or(lsn, |r| r.0), lsn)));
        if let Some(lsns) = lsns {
            self.core.damage.add_gap(self.head.branch.id, chunk, lsns);
        }
    }

    /// Reads what the next item writes.
    fn read_item(&mut self, into: &mut ReadBuffer) -> Result<()> {
        let item = &self.batch.items[self.rest.start];
        let len = (item.end - item.start) as usize;
        self.rest.start += 1;
        match item.source {
            PartSource::Journal(file, position) => {
                into.read(self.core, Disk::Journal(file), position.into(), len).map(drop)
            }
            PartSource::Slot(slot) => into.read(self.core, Disk::Pv(slot.pv()), slot.offset(), len).map(drop),
            PartSource::Zeros | PartSource::Hole => {
                into.put_zeros(len);
                Ok(())
            }
        }
    }

    /// Returns the place of what the next chunk holds before its items.
    fn next_found(&mut self) -> Result<Found> {
        while self.found.len() < READ_AHEAD
            && let Some(items) = self.ahead.next()
        {
            let found = self.find(items)?;
            self.found.push_back(found);
        }
        Ok(self.found.pop_front().unwrap_or(Found::Elsewhere))
    }

    /// Reads what the next chunk holds before its items.
    fn read_before(&mut self, found: Found, into: &mut ReadBuffer) -> Result<Before> {
        let (first, sum, old) = match found {
            Found::Slot(slot, part, sum) => {
                let at = slot.offset() + u64::from(part.start);
                let old = into.read(self.core, Disk::Pv(slot.pv()), at, part.len())?;
                (part.start, sum, old)
            }
            Found::Replaced(sum) => (0, Some(sum), into.room(self.head.branch.chunk_size() as usize)),
            Found::Kept(_) | Found::Elsewhere => {
                let items = &self.batch.items[self.rest.clone()];
                let (content, lost) = self.core.content_before(&self.head, items)?;
                if lost {
                    self.note_gap(self.rest.start);
                }
                (0, None, into.put(&content))
            }
        };
        Ok(Before { sum, first, old })
    }

    /// Finds the content of a chunk before its items, and announces the read to the disk.
    fn find(&mut self, items: &Range<usize>) -> Result<Found> {
        let items = &self.batch.items[items.clone()];
        let (first, chunk_size) = (&items[0], self.head.branch.chunk_size());
        let sum = self.sums.get(&first.chunk).copied();
        let replaced =
            self.encoding == Encoding::Redo && (first.start, u64::from(first.end)) == (0, chunk_size);
        if let Some(sum) = sum.filter(|_| replaced) {
            return Ok(Found::Replaced(sum));
        }
        let (number, at) = MapPage::locate(first.chunk);
        let page = match self.page.take().filter(|(known, _)| *known == number) {
            Some((_, page)) => page,
            None => self.core.map.load(&self.head, number)?,
        };
        let entry = page.get(at);
        self.page = Some((number, page));
        if let Some(replaced) = self.kept(items, entry) {
            return Ok(Found::Kept(replaced));
        }
        let slot = entry.map(|entry| entry.slot).filter(|slot| *slot != Slot::HOLE);
        let Some(slot) = slot else { return Ok(Found::Elsewhere) };
        let part = match sum {
            // The sum after the items follows from the sum before them and from what changes.
            Some(_) => {
                let start = items.iter().map(|item| item.start).min().unwrap_or(0);
                let end = items.iter().map(|item| item.end).max().unwrap_or(0);
                start..end
            }
            None => 0..chunk_size as u32,
        };
        self.announce(Slot::new(slot.pv(), slot.offset() + u64::from(part.start)), part.len() as u64)?;
        Ok(Found::Slot(slot, part, sum))
    }

    /// Returns where the content that the only item of a chunk replaces stays, if the record needs
    /// no payload: the item is a reference, and nothing was there, or the newest anchor shows what
    /// was there. If the anchor shows it, the batch's plan makes a version of it, so its slot stays
    /// for as long as the anchor does (decision 66).
    fn kept(&self, items: &[BatchItem], entry: Option<Entry>) -> Option<Replaced> {
        let [BatchItem { source: PartSource::Slot(_), .. }] = items else { return None };
        if self.encoding == Encoding::Redo || self.core.options.keep_distance.is_none() {
            return None;
        }
        match entry {
            None => (!self.head.branch.has_base()).then_some(Replaced::Zeros),
            Some(Entry { slot: Slot::HOLE, .. }) => Some(Replaced::Zeros),
            Some(Entry { born, .. }) => {
                self.anchor.is_some_and(|anchor| born <= anchor).then_some(Replaced::Anchor)
            }
        }
    }

    fn announce(&mut self, from: Slot, len: u64) -> Result<()> {
        if let Some((start, so_far)) = &mut self.announced
            && (start.pv(), start.offset() + *so_far) == (from.pv(), from.offset())
            && *so_far + len <= MAX_ANNOUNCED
        {
            *so_far += len;
            return Ok(());
        }
        match self.announced.replace((from, len)) {
            Some((start, len)) => {
                self.core.pvs.get(start.pv())?.disk.will_need(start.offset(), len);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
