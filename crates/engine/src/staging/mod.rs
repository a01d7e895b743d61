//! Staging: what is in the journal but not yet in place, per branch.
//!
//! A snapshot sees what was staged in its epoch and before. So a piece that a later epoch
//! overwrites stays in staging until it is in place.
//!
//! Staging has two indexes, each suited to what it holds:
//!
//! - Writes are cut at 4 KiB blocks of the volume. A sharded hash finds a block's pieces. A whole
//!   block is the common case and needs no allocation.
//! - Discards and zeroed ranges can be huge. A map of disjoint ranges holds them.
//!
//! Where both indexes cover a sector, the larger LSN wins, whatever the order of insertion. Data is
//! not held: a piece names its place, in the journal or (for a reference) in a slot, and the sum to
//! verify it with.

mod outline;
mod ranges;
mod waiting;
mod watch;

use crate::hash::MixRuns;
use crate::ids::{Epoch, Lsn, Slot};
use crate::units::{BLOCK, SECTOR};
use parking_lot::{Mutex, RwLock};
use ranges::RangeMap;
pub(crate) use ranges::union;
use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::ops::{RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

pub(crate) use outline::Stretch;
pub(crate) use ranges::Range;
pub(crate) use waiting::{StagedKind, StagedRecord, Waiting};
pub(crate) use watch::Watch;

/// The number of sectors of a block.
pub(crate) const SECTORS: usize = (BLOCK / SECTOR) as usize;
const SHARDS: usize = 16;
/// The number of consecutive blocks that share a shard, so that a megabyte takes one lock.
const BLOCKS_PER_STRIPE: u64 = 256;

/// A staged part of one block. There may be very many, so that their fields are packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StagedExtent {
    pub(crate) lsn: Lsn,
    /// In the journal: position of its data in its journal file, in bytes. In a slot: the lower 32
    /// bits of the number of its block on the physical volume.
    at: u32,
    /// The sum of its data, by which its record's format version sums.
    pub(crate) crc: u32,
    pub(crate) epoch: Epoch,
    /// In the journal: the number of its file. In a slot: the number of the physical volume, and
    /// the upper bits of the number of its block from bit [`PV_BITS`] on.
    file: u16,
    /// First sector of the block that the piece covers. [`IN_SLOT`] is set if its data is in a
    /// slot.
    start: u8,
    /// Number of sectors that the piece covers.
    pub(crate) count: u8,
}

/// The bit of `StagedExtent::start` that tells where the data is.
const IN_SLOT: u8 = 0x80;
/// Number of bits of `StagedExtent::file` that hold the number of a physical volume.
const PV_BITS: u32 = 12;
/// Slots from this byte of a physical volume on have no place in a piece. No reference names them.
pub(crate) const SLOTS_END: u64 = BLOCK << (32 + 16 - PV_BITS);

/// Where the data of a staged part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StagedPlace {
    /// In a journal file, at a position in bytes.
    Journal { file: u16, at: u32 },
    /// On a physical volume, where a reference has it.
    Slot(Slot),
}

impl StagedPlace {
    /// Returns whether data at `next` follows `len` bytes of data at this place.
    pub(crate) fn is_followed_by(self, len: u64, next: StagedPlace) -> bool {
        match (self, next) {
            (StagedPlace::Journal { file, at }, StagedPlace::Journal { file: other, at: next }) => {
                file == other && u64::from(at) + len == u64::from(next)
            }
            (StagedPlace::Slot(slot), StagedPlace::Slot(next)) => slot.advanced(len) == next,
            _ => false,
        }
    }
}

impl StagedExtent {
    /// Makes a piece of `count` sectors, from sector `start` of its block on. A place in a slot
    /// must lie below [`SLOTS_END`], and be a multiple of 4 KiB.
    pub(crate) fn new(
        (lsn, epoch): (Lsn, Epoch),
        place: StagedPlace,
        (start, count): (u8, u8),
        crc: u32,
    ) -> StagedExtent {
        let (at, file, bit) = match place {
            StagedPlace::Journal { file, at } => (at, file, 0),
            StagedPlace::Slot(slot) => {
                debug_assert!(slot.offset() < SLOTS_END && slot.offset().is_multiple_of(BLOCK));
                let block = slot.offset() / BLOCK;
                (block as u32, slot.pv() as u16 | ((block >> 32) as u16) << PV_BITS, IN_SLOT)
            }
        };
        StagedExtent { lsn, at, crc, epoch, file, start: start | bit, count }
    }

    /// Returns where the data is.
    pub(crate) fn place(&self) -> StagedPlace {
        if self.start & IN_SLOT == 0 {
            return StagedPlace::Journal { file: self.file, at: self.at };
        }
        let block = u64::from(self.file >> PV_BITS) << 32 | u64::from(self.at);
        StagedPlace::Slot(Slot::new(u32::from(self.file) & ((1 << PV_BITS) - 1), block * BLOCK))
    }

    /// Returns the first sector of the block that the piece covers.
    pub(crate) fn first(&self) -> u8 {
        self.start & !IN_SLOT
    }

    /// Returns the sectors that the piece covers, one bit each.
    fn mask(&self) -> u8 {
        ((1u16 << self.count) - 1 << self.first()) as u8
    }
    /// Returns the number of bytes of data.
    pub(crate) fn len(&self) -> usize {
        self.count as usize * SECTOR as usize
    }
}

/// The place of the newest content of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SectorSource {
    /// The sector is not staged: the map has its place.
    Below,
    /// The sector reads as zeros, by a staged discard (`false`) or by zeroing that keeps space
    /// (`true`).
    Zeros(bool),
    /// The sector's content is in the journal, or where a record of the journal refers to.
    Staged(StagedExtent),
}

enum Entry {
    Whole(StagedExtent),
    /// Several pieces, ordered by LSN. There are at most eight of an epoch. Each shows at least one
    /// sector to its epoch.
    Parts(Vec<StagedExtent>),
}

impl Entry {
    fn pieces(&self) -> &[StagedExtent] {
        match self {
            Entry::Whole(piece) => std::slice::from_ref(piece),
            Entry::Parts(pieces) => pieces,
        }
    }
}

type Shard = HashMap<u64, Entry, BuildHasherDefault<MixRuns>>;

/// The staging index of one branch. All threads share it.
pub(crate) struct Staging {
    shards: [Mutex<Shard>; SHARDS],
    /// The discarded and zeroed ranges, by epoch.
    ranges: RwLock<BTreeMap<Epoch, RangeMap>>,
    range_count: AtomicUsize,
    pieces: AtomicU64,
    /// The last turn of the journal with a record of the branch in the upper half, and that
    /// record's epoch in the lower half. It changes under the sequencing lock. See
    /// [`crate::journal::Turns`].
    turn: AtomicU64,
    /// The records in their order, if the branch keeps a history.
    pub(crate) waiting: Arc<Waiting>,
    /// The ranges that are compared now. `watched` states whether there are any, so that a write
    /// need not take this lock.
    watches: Mutex<Vec<Arc<watch::Spot>>>,
    watched: AtomicBool,
}

impl Staging {
    pub(crate) fn new() -> Self {
        Staging {
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            ranges: RwLock::new(BTreeMap::new()),
            range_count: AtomicUsize::new(0),
            pieces: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            waiting: Arc::default(),
            watches: Mutex::default(),
            watched: AtomicBool::new(false),
        }
    }

    fn shard(&self, block: u64) -> &Mutex<Shard> {
        let stripe = block / BLOCKS_PER_STRIPE;
        &self.shards[(stripe.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) as usize]
    }

    /// Returns whether nothing is staged. A write acknowledged before the call is staged or
    /// published in the map.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.load(Ordering::Acquire) == 0 && self.range_count.load(Ordering::Acquire) == 0
    }

    /// Returns the last turn with a record of the branch, and that record's epoch, if there was
    /// one.
    pub(crate) fn turn(&self) -> Option<(u32, Epoch)> {
        let turn = self.turn.load(Ordering::Relaxed);
        (turn > 0).then_some(((turn >> 32) as u32, Epoch(turn as u32)))
    }

    pub(crate) fn set_turn(&self, number: u32, epoch: Epoch) {
        self.turn.store(u64::from(number) << 32 | u64::from(epoch.0), Ordering::Relaxed);
    }

    /// Returns the number of staged pieces and ranges.
    pub(crate) fn len(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed) + self.range_count.load(Ordering::Relaxed) as u64
    }

    /// Adds the pieces of one record as (block, piece), in the order of blocks.
    pub(crate) fn insert(&self, pieces: impl Iterator<Item = (u64, StagedExtent)>) {
        let mut locked: Option<(u64, parking_lot::MutexGuard<'_, Shard>)> = None;
        for (block, piece) in pieces {
            let stripe = block / BLOCKS_PER_STRIPE;
            if locked.as_ref().is_none_or(|(held, _)| *held != stripe) {
                drop(locked.take());
                locked = Some((stripe, self.shard(block).lock()));
            }
            if let Some((_, shard)) = &mut locked {
                let added = insert_piece(shard, block, piece);
                self.pieces.fetch_add(added as u64, Ordering::Release);
            }
        }
    }

    /// Adds a range of bytes that was discarded or zeroed in `epoch`.
    pub(crate) fn insert_range(&self, epoch: Epoch, range: Range) {
        let mut ranges = self.ranges.write();
        let of_epoch = ranges.entry(epoch).or_default();
        let before = of_epoch.len();
        of_epoch.insert(range);
        self.count_ranges(before, of_epoch.len());
    }

    /// Returns the sources of the sectors of `block` as `epoch` sees them.
    pub(crate) fn resolve(&self, block: u64, epoch: Epoch) -> [SectorSource; SECTORS] {
        let mut sources = [SectorSource::Below; SECTORS];
        let mut lsns = [Lsn::ZERO; SECTORS];
        // Held until the pieces are read too: a removal takes both away as one (see `remove`). A
        // reader that finds no range needs no lock: ranges go after the pieces that they hide.
        let ranges = (self.range_count.load(Ordering::Acquire) > 0).then(|| self.ranges.read());
        if let Some(ranges) = &ranges {
            let start = block * BLOCK;
            // A later epoch's ranges are newer.
            for range in overlapping(ranges, ..=epoch, start..start + BLOCK) {
                let first = (range.start.max(start) - start) / SECTOR;
                let last = (range.end.min(start + BLOCK) - start) / SECTOR;
                for sector in first as usize..last as usize {
                    sources[sector] = SectorSource::Zeros(range.keeps_space);
                    lsns[sector] = range.lsn;
                }
            }
        }
        if let Some(entry) = self.shard(block).lock().get(&block) {
            for piece in entry.pieces().iter().filter(|p| p.epoch <= epoch) {
                for sector in piece.first() as usize..(piece.first() + piece.count) as usize {
                    if piece.lsn > lsns[sector] {
                        sources[sector] = SectorSource::Staged(*piece);
                        lsns[sector] = piece.lsn;
                    }
                }
            }
        }
        sources
    }

    /// Removes the pieces of `blocks`, and all ranges, up to `lsn`. They are in place and published
    /// in the map.
    ///
    /// A range and a newer piece above it must vanish together. Otherwise a reader in between would
    /// see the range alone.
    pub(crate) fn remove(&self, blocks: impl Iterator<Item = u64>, lsn: Lsn) {
        let mut ranges = (self.range_count.load(Ordering::Acquire) > 0).then(|| self.ranges.write());
        for block in blocks {
            self.remove_block(block, lsn);
        }
        while let Some(mut oldest) = ranges.as_mut().and_then(|ranges| ranges.first_entry()) {
            let before = oldest.get().len();
            oldest.get_mut().remove_up_to(lsn);
            let left = oldest.get().len();
            self.count_ranges(before, left);
            if left > 0 {
                // All later epochs are newer.
                break;
            }
            oldest.remove();
        }
    }

    /// Counts the ranges of an epoch: there were `before`, and there are `after`. The caller holds
    /// their lock.
    fn count_ranges(&self, before: usize, after: usize) {
        let count = self.range_count.load(Ordering::Relaxed) + after - before;
        self.range_count.store(count, Ordering::Release);
    }

    fn remove_block(&self, block: u64, lsn: Lsn) {
        let mut shard = self.shard(block).lock();
        let MapEntry::Occupied(mut slot) = shard.entry(block) else {
            return;
        };
        let before = slot.get().pieces().len();
        if let Entry::Parts(pieces) = slot.get_mut() {
            pieces.retain(|piece| piece.lsn > lsn);
        }
        let gone = match slot.get() {
            Entry::Whole(piece) => piece.lsn <= lsn,
            Entry::Parts(pieces) => pieces.is_empty(),
        };
        let after = if gone { 0 } else { slot.get().pieces().len() };
        if gone {
            slot.remove();
        }
        self.pieces.fetch_sub((before - after) as u64, Ordering::Release);
    }

    /// Gives back memory that a burst of writes left behind, once the index is nearly empty.
    pub(crate) fn shrink(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.capacity() > 1024 && shard.len() * 8 < shard.capacity() {
                let keep = shard.len() * 2;
                shard.shrink_to(keep);
            }
        }
    }

    /// Returns whether a staged range that may free space touches `start..end`. If so, the exact
    /// need of a write is not known.
    pub(crate) fn has_range(&self, start: u64, end: u64) -> bool {
        self.range_count.load(Ordering::Acquire) > 0
            && overlapping(&self.ranges.read(), .., start..end).any(|range| !range.keeps_space)
    }

    /// Returns the parts of `bytes` that were written to in `epochs` and are staged, and the byte
    /// at which the answer ends. The parts are whole sectors, in any order, and a part may occur
    /// more than once. About `limit` parts are reported.
    pub(crate) fn touched(
        &self,
        bytes: std::ops::Range<u64>,
        epochs: RangeInclusive<Epoch>,
        limit: usize,
    ) -> (Vec<std::ops::Range<u64>>, u64) {
        let mut found = Touched { bytes: bytes.clone(), found: Vec::new(), limit: limit.max(1) };
        // Taken first and held, as by `resolve`: a removal takes pieces and ranges away as one.
        let ranges = self.ranges.read();
        for range in overlapping(&ranges, epochs.clone(), bytes.clone()) {
            found.add(range.start..range.end);
        }
        self.visit_blocks(bytes.start / BLOCK..bytes.end.div_ceil(BLOCK), |block, pieces| {
            for piece in pieces.iter().filter(|p| epochs.contains(&p.epoch)) {
                let start = block * BLOCK + piece.first() as u64 * SECTOR;
                found.add(start..start + piece.len() as u64);
            }
        });
        (found.found, found.bytes.end)
    }

    /// Visits, in any order, the pieces of the blocks in `blocks` that have pieces.
    fn visit_blocks(&self, blocks: std::ops::Range<u64>, mut visit: impl FnMut(u64, &[StagedExtent])) {
        if blocks.end - blocks.start < self.pieces.load(Ordering::Acquire) {
            for block in blocks {
                if let Some(entry) = self.shard(block).lock().get(&block) {
                    visit(block, entry.pieces());
                }
            }
            return;
        }
        for shard in &self.shards {
            let shard = shard.lock();
            let wanted = shard.iter().filter(|(block, _)| blocks.contains(block));
            wanted.for_each(|(block, entry)| visit(*block, entry.pieces()));
        }
    }

    /// Returns whether any part of `start..end` was written to in `epoch`, and is staged.
    pub(crate) fn touches(&self, start: u64, end: u64, epoch: Epoch) -> bool {
        if self.is_empty() {
            return false;
        }
        (start / BLOCK..end.div_ceil(BLOCK)).any(|block| {
            // A chunk can be smaller than a block: its neighbours' sectors do not count.
            let first = start.max(block * BLOCK);
            let last = end.min((block + 1) * BLOCK);
            let sectors = first % BLOCK / SECTOR..(last - block * BLOCK) / SECTOR;
            let wanted = sectors.fold(0u8, |mask, sector| mask | 1 << sector);
            let hit = |p: &StagedExtent| p.epoch == epoch && p.mask() & wanted != 0;
            let written = self.shard(block).lock().get(&block).is_some_and(|e| e.pieces().iter().any(hit));
            written
                || self.ranges.read().get(&epoch).is_some_and(|r| r.overlapping(first, last).next().is_some())
        })
    }
}

/// Returns the ranges of some epochs that overlap `bytes`, in the order of epochs.
fn overlapping(
    ranges: &BTreeMap<Epoch, RangeMap>,
    epochs: impl RangeBounds<Epoch>,
    bytes: std::ops::Range<u64>,
) -> impl Iterator<Item = &Range> {
    let (start, end) = (bytes.start, bytes.end);
    let maps = ranges.range(epochs).filter(move |(_, of_epoch)| of_epoch.reaches(start, end));
    maps.flat_map(move |(_, of_epoch)| of_epoch.overlapping(start, end))
}

/// A collector of the lowest of many ranges.
struct Touched {
    bytes: std::ops::Range<u64>,
    found: Vec<std::ops::Range<u64>>,
    limit: usize,
}

impl Touched {
    /// Adds the part of a range that is wanted. When twice the limit is collected, the ranges above
    /// the limit are dropped, and are no longer wanted.
    fn add(&mut self, range: std::ops::Range<u64>) {
        let range = range.start.max(self.bytes.start)..range.end.min(self.bytes.end);
        if range.is_empty() {
            return;
        }
        self.found.push(range);
        if self.found.len() >= 2 * self.limit {
            self.found = union(std::mem::take(&mut self.found));
            if let Some(cut) = self.found.get(self.limit) {
                self.bytes.end = cut.start;
                self.found.truncate(self.limit);
            }
        }
    }
}

/// Adds a piece, and returns by how many the number of pieces grew. The number is 0 or less when
/// the piece covered others.
fn insert_piece(shard: &mut Shard, block: u64, piece: StagedExtent) -> i64 {
    use MapEntry as Slot;
    match shard.entry(block) {
        Slot::Vacant(slot) => {
            let whole = piece.count as usize == SECTORS;
            slot.insert(if whole { Entry::Whole(piece) } else { Entry::Parts(vec![piece]) });
            1
        }
        Slot::Occupied(mut slot) => {
            // The common case needs no list: a whole block that hides the only piece before it.
            if let Entry::Whole(old) = slot.get_mut()
                && piece.count as usize == SECTORS
                && (old.epoch == piece.epoch && old.lsn < piece.lsn)
            {
                *old = piece;
                return 0;
            }
            let before = slot.get().pieces().len() as i64;
            let mut pieces = slot.get().pieces().to_vec();
            // An insert never hides a larger LSN: place it by LSN, then drop what no longer shows.
            let position = pieces.partition_point(|p| p.lsn < piece.lsn);
            pieces.insert(position, piece);
            drop_hidden(&mut pieces);
            let after = pieces.len() as i64;
            let whole = pieces.len() == 1 && pieces[0].count as usize == SECTORS;
            slot.insert(if whole { Entry::Whole(pieces[0]) } else { Entry::Parts(pieces) });
            after - before
        }
    }
}

/// Keeps the pieces that show at least one sector to their own epoch. The pieces are sorted by LSN.
fn drop_hidden(pieces: &mut Vec<StagedExtent>) {
    let (mut epoch, mut covered) = (Epoch::NONE, 0u8);
    // From the newest to the oldest: LSNs and epochs grow together.
    pieces.reverse();
    pieces.retain(|piece| {
        if piece.epoch != epoch {
            (epoch, covered) = (piece.epoch, 0);
        }
        let shows = piece.mask() & !covered != 0;
        covered |= piece.mask();
        shows
    });
    pieces.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(lsn: u64, start: u8, count: u8) -> StagedExtent {
        let place = StagedPlace::Journal { file: 0, at: lsn as u32 * 8192 };
        StagedExtent::new((Lsn(lsn), Epoch(1)), place, (start, count), 0)
    }

    fn lsns(staging: &Staging, block: u64) -> [u64; SECTORS] {
        staging.resolve(block, Epoch(1)).map(|s| match s {
            SectorSource::Below => 0,
            SectorSource::Zeros(_) => u64::MAX,
            SectorSource::Staged(p) => p.lsn.0,
        })
    }

    #[test]
    fn a_piece_keeps_its_place_in_24_bytes() {
        assert_eq!(size_of::<StagedExtent>(), 24);
        for place in [
            StagedPlace::Journal { file: u16::MAX, at: u32::MAX },
            StagedPlace::Slot(Slot::new(4095, SLOTS_END - BLOCK)),
            StagedPlace::Slot(Slot::new(0, 1 << 20)),
            StagedPlace::Slot(Slot::new(17, (1 << 44) + 8192)),
        ] {
            let piece = StagedExtent::new((Lsn(1), Epoch(1)), place, (3, 5), 9);
            assert_eq!((piece.place(), piece.first(), piece.mask()), (place, 3, 0xF8));
        }
        let slot = |at| StagedPlace::Slot(Slot::new(1, at));
        assert!(slot(4096).is_followed_by(4096, slot(8192)) && !slot(4096).is_followed_by(4096, slot(4096)));
        assert!(!slot(4096).is_followed_by(4096, StagedPlace::Journal { file: 1, at: 8192 }));
    }

    #[test]
    fn newest_wins_whatever_the_order() {
        let s = Staging::new();
        s.insert([(3, piece(9, 0, 4))].into_iter());
        s.insert([(3, piece(7, 0, 8))].into_iter());
        s.insert([(3, piece(8, 6, 2))].into_iter());
        assert_eq!(lsns(&s, 3), [9, 9, 9, 9, 7, 7, 8, 8]);
        assert_eq!(s.len(), 3);
        s.insert([(3, piece(5, 0, 8))].into_iter());
        assert_eq!(s.len(), 3, "a fully hidden piece is not kept");
        s.insert([(3, piece(10, 0, 8))].into_iter());
        assert_eq!((lsns(&s, 3), s.len()), ([10; 8], 1));
    }

    #[test]
    fn removal_keeps_what_is_newer() {
        let s = Staging::new();
        s.insert([(1, piece(1, 0, 8)), (2, piece(1, 0, 8)), (300, piece(1, 0, 2))].into_iter());
        s.insert([(2, piece(4, 2, 2))].into_iter());
        s.remove([1, 2, 77].into_iter(), Lsn(3));
        assert_eq!(lsns(&s, 1), [0; 8]);
        assert_eq!(lsns(&s, 2), [0, 0, 4, 4, 0, 0, 0, 0]);
        s.remove([2, 300].into_iter(), Lsn(4));
        assert!(s.is_empty());
    }

    #[test]
    fn epochs_see_what_was_written_by_then() {
        let s = Staging::new();
        let at = |lsn, epoch, start, count| StagedExtent { epoch: Epoch(epoch), ..piece(lsn, start, count) };
        s.insert([(0, at(1, 1, 0, 8))].into_iter());
        s.insert([(0, at(2, 1, 0, 4))].into_iter());
        s.insert([(0, at(4, 2, 0, 8))].into_iter());
        s.insert_range(Epoch(3), Range { start: 0, end: 1024, lsn: Lsn(6), keeps_space: false });
        s.insert([(0, at(8, 4, 7, 1))].into_iter());
        let seen = |epoch| {
            s.resolve(0, Epoch(epoch)).map(|s| match s {
                SectorSource::Below => 0,
                SectorSource::Zeros(_) => 99,
                SectorSource::Staged(p) => p.lsn.0,
            })
        };
        assert_eq!(seen(0), [0; 8]);
        assert_eq!(seen(1), [2, 2, 2, 2, 1, 1, 1, 1]);
        assert_eq!(seen(2), [4; 8]);
        assert_eq!(seen(3), [99, 99, 4, 4, 4, 4, 4, 4]);
        assert_eq!(seen(u32::MAX), [99, 99, 4, 4, 4, 4, 4, 8]);
        assert!(
            s.touches(3584, 4096, Epoch(4)) && !s.touches(0, 3584, Epoch(4)) && s.touches(0, 512, Epoch(3))
        );
        s.remove([0].into_iter(), Lsn(4));
        assert_eq!(seen(2), [0; 8]);
        assert_eq!(seen(4), [99, 99, 0, 0, 0, 0, 0, 8]);
    }

    #[test]
    fn ranges_and_pieces_by_lsn() {
        let s = Staging::new();
        s.insert([(0, piece(1, 0, 8)), (1, piece(1, 0, 8))].into_iter());
        s.insert_range(Epoch(1), Range { start: 1024, end: 8192, lsn: Lsn(2), keeps_space: false });
        s.insert([(1, piece(3, 0, 1))].into_iter());
        let max = u64::MAX;
        assert_eq!(lsns(&s, 0), [1, 1, max, max, max, max, max, max]);
        assert_eq!(lsns(&s, 1), [3, max, max, max, max, max, max, max]);
        assert!(s.has_range(0, 4096) && !s.has_range(8192, 9000));
        s.remove([1].into_iter(), Lsn(2));
        assert_eq!(lsns(&s, 0), [1; 8]);
        assert_eq!(lsns(&s, 1), [3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
