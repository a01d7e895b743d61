//! The path of a read: staging first, then the map.

use super::Volume;
use crate::branch::{Base, HEAD, View};
use crate::catalog::page::{Entry, MapPage, Slot};
use crate::codec::outer_sum;
use crate::disk::{Cause, Disk, Settled};
use crate::error::{Error, ErrorKind, Result, corrupt};
use crate::ids::Chunk;
use crate::space::pv::Pv;
use crate::staging::{SECTORS, SectorSource, StagedExtent, StagedPlace};
use crate::units::{BLOCK, SECTOR};
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes at which a read-ahead by [`Volume::load_range`] stops: it is a hint.
const MAX_CACHED: u64 = 16 << 20;

/// Number of repairs that one read waits for.
const MAX_REPAIRS: u32 = 64;

/// Number of pieces that are read together: 256 KiB.
const MAX_PIECES: usize = 64;

/// A range of the volume that one read of a disk may serve. Either all of it lies below staging, or
/// all of it is in `pieces`, which lie one after another in one journal file, or on one physical
/// volume.
struct Gathered {
    range: Range<u64>,
    pieces: [StagedExtent; MAX_PIECES],
    count: usize,
}

impl Gathered {
    fn new(start: u64) -> Self {
        Gathered { range: start..start, pieces: [StagedExtent::default(); MAX_PIECES], count: 0 }
    }

    fn restart(&mut self, start: u64) {
        self.range = start..start;
        self.count = 0;
    }

    /// Extends the range by the `len` bytes of `source` that follow it. False if they have to be
    /// read separately.
    fn add(&mut self, len: u64, source: SectorSource) -> bool {
        let fits = match source {
            SectorSource::Below => self.count == 0,
            // A part of a piece can't be verified.
            SectorSource::Staged(piece) if piece.len() as u64 != len => false,
            SectorSource::Staged(piece) => match self.pieces[..self.count].last() {
                None => self.range.is_empty(),
                Some(last) => {
                    self.count < MAX_PIECES && last.place().is_followed_by(last.len() as u64, piece.place())
                }
            },
            SectorSource::Zeros(_) => false,
        };
        if fits {
            if let SectorSource::Staged(piece) = source {
                self.pieces[self.count] = piece;
                self.count += 1;
            }
            self.range.end += len;
        }
        fits
    }
}

impl Volume {
    /// Fills `buf`. With `may_block` false it returns `Ok(false)` if the read would have to wait
    /// for a disk (or the catalog).
    ///
    /// The grace period keeps every slot and journal segment found here readable until the end. A
    /// write that is destaged meanwhile is found in staging or in the map, since it leaves staging
    /// only after it has entered the map.
    pub(super) fn read_into(&self, offset: u64, buf: &mut [u8], may_block: bool) -> Result<bool> {
        let _cause = Cause::Read.begin_default();
        let _reading = self.core.readers.enter();
        // The range is checked inside the grace period: what a deletion frees after this stays
        // readable until the end.
        self.check_range(offset, buf.len() as u64)?;
        self.read_line(&self.state.line, offset, buf, may_block)
    }

    /// Fills `buf`. What is damaged in place is repaired first, if that is possible.
    pub(super) fn read_or_repair(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (line, end) = (&self.state.line, offset.saturating_add(buf.len() as u64));
        let (mut tried, mut doubted) = (0, false);
        loop {
            let error = match self.read_into(offset, buf, true) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            tried += 1;
            if error.is_shortage()
                || error.is_pv_away()
                || error.kind() != ErrorKind::Io
                || tried > MAX_REPAIRS
            {
                return Err(error);
            }
            // Chunks are repaired a few at a time.
            let from = error.byte().filter(|at| (offset..end).contains(at)).unwrap_or(offset);
            if !self.destager.repair_read(line, from..end) {
                // The read may have failed just before another one repaired the same.
                if doubted || !self.core.is_whole(line, from) {
                    return Err(error);
                }
                doubted = true;
            }
        }
    }

    /// Reads a line, and what lies under it.
    ///
    /// A place that a snapshot is read from may be overwritten meanwhile, after its content was
    /// copied elsewhere (copy-on-write). The branch's generation moves before that happens, and
    /// content that was read under another generation is read again. Content is also read again if
    /// the branch became complete and lost its base during the read, since the base may be gone by
    /// then.
    fn read_line(&self, line: &View, offset: u64, buf: &mut [u8], may_block: bool) -> Result<bool> {
        if let Some(at) = &line.at {
            return at.read(&self.core, buf, offset, may_block);
        }
        loop {
            let based = line.branch.has_base();
            let mut read = || match line.branch.staging.is_empty() {
                true => self.read_below(line, offset, buf, may_block),
                false => self.read_merged(line, offset, buf, may_block),
            };
            let done = if line.epoch == HEAD { read() } else { line.branch.generation.read(read) };
            if !based || line.branch.has_base() {
                return done;
            }
        }
    }

    /// Reads the staged parts from staging, and the rest from below it.
    #[inline(never)] // its buffers would lie on the stack at every level of base
    fn read_merged(&self, line: &View, offset: u64, buf: &mut [u8], may_block: bool) -> Result<bool> {
        let end = offset + buf.len() as u64;
        let mut gathered = Gathered::new(offset);
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let sources = line.branch.staging.resolve(block, line.epoch);
            let mut sector = (offset.max(block * BLOCK) - block * BLOCK) / SECTOR;
            let last = (end.min((block + 1) * BLOCK) - block * BLOCK) / SECTOR;
            while sector < last {
                let source = sources[sector as usize];
                let at = block * BLOCK + sector * SECTOR;
                let len = run_length(&sources, sector as usize, last as usize) as u64 * SECTOR;
                if !gathered.add(len, source) {
                    if !self.read_gathered(line, &gathered, offset, buf, may_block)? {
                        return Ok(false);
                    }
                    gathered.restart(at);
                    if !gathered.add(len, source) {
                        let part = slice(buf, offset, at..at + len);
                        if !self.read_staged(source, sector, part, may_block)? {
                            return Ok(false);
                        }
                        gathered.restart(at + len);
                    }
                }
                sector += len / SECTOR;
            }
        }
        self.read_gathered(line, &gathered, offset, buf, may_block)
    }

    /// Reads a gathered range into its part of `buf`, which starts at volume byte `offset`.
    fn read_gathered(
        &self,
        line: &View,
        of: &Gathered,
        offset: u64,
        buf: &mut [u8],
        may_block: bool,
    ) -> Result<bool> {
        let out = slice(buf, offset, of.range.clone());
        let pieces = &of.pieces[..of.count];
        if pieces.is_empty() {
            return self.read_below(line, of.range.start, out, may_block);
        }
        if !self.read_pieces(pieces, out, may_block)? {
            return Ok(false);
        }
        self.count(&self.state.counters.staged_read_bytes, out.len() as u64);
        Ok(true)
    }

    /// Reads zeros, or a part of a piece. `sector` is where `out` starts inside the block.
    fn read_staged(
        &self,
        source: SectorSource,
        sector: u64,
        out: &mut [u8],
        may_block: bool,
    ) -> Result<bool> {
        let SectorSource::Staged(piece) = source else {
            out.fill(0);
            return Ok(true);
        };
        // The whole piece is read, for its checksum.
        let skip = (sector as usize - piece.first() as usize) * SECTOR as usize;
        let mut whole = [0u8; BLOCK as usize];
        let whole = &mut whole[..piece.len()];
        if !self.read_pieces(&[piece], whole, may_block)? {
            return Ok(false);
        }
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        self.count(&self.state.counters.staged_read_bytes, out.len() as u64);
        Ok(true)
    }

    /// Reads whole pieces that lie one after another, and verifies each.
    fn read_pieces(&self, pieces: &[StagedExtent], out: &mut [u8], may_block: bool) -> Result<bool> {
        let Some(first) = pieces.first() else { return Ok(true) };
        let done = match first.place() {
            StagedPlace::Journal { file: index, at } => {
                let Some(file) = self.core.journal.file(index.into()) else {
                    let text = format!("read LSN {}: journal file {index} is missing", first.lsn);
                    return Err(corrupt(text));
                };
                let name = || format!("read LSN {} from journal file {index}", first.lsn);
                read_disk(&file.disk, out, at.into(), may_block, name)?
            }
            StagedPlace::Slot(slot) => {
                let pv = self.core.pvs.get(slot.pv())?;
                let name = || format!("read LSN {} from {}", first.lsn, pv.path);
                let whole = self.core.check_place(&pv, slot.offset(), out.len());
                whole.map_err(|e| Error::with_source(e.kind(), name(), e))?;
                read_slot(&pv, out, slot.offset(), may_block).map_err(|e| Error::io(name(), e))?
            }
        };
        if !done {
            return Ok(false);
        }
        let mut rest = &mut *out;
        for piece in pieces {
            let (data, after) = rest.split_at_mut(piece.len());
            if outer_sum(data) != piece.crc && !self.has_right_copy(piece, data)? {
                let place = match piece.place() {
                    StagedPlace::Journal { file, .. } => format!("in journal file {file}"),
                    StagedPlace::Slot(slot) => format!("at byte {} of PV {}", slot.offset(), slot.pv()),
                };
                return Err(corrupt(format!("verify LSN {}: its data {place} is damaged", piece.lsn)));
            }
            rest = after;
        }
        Ok(true)
    }

    /// Returns whether `data`, which does not have the sum of a piece, is its content nevertheless,
    /// or becomes it: the right copy of a mirror is put there.
    #[cold]
    fn has_right_copy(&self, piece: &StagedExtent, data: &mut [u8]) -> Result<bool> {
        let StagedPlace::Slot(slot) = piece.place() else { return Ok(false) };
        let pv = self.core.pvs.get(slot.pv())?;
        if self.is_in_place(piece) {
            self.core.choose_copies(&pv, data, slot.offset(), &[])?;
            return Ok(true);
        }
        let settled = pv.disk.settle(data, slot.offset(), &|copy| outer_sum(copy) == piece.crc);
        Ok(settled.is_ok_and(|settled| settled != Settled::NoneRight))
    }

    /// Returns whether a piece is the content of a slot that the map points to. Later writes may
    /// have overwritten other sectors of its block. The sum of the piece then does not match any
    /// more. Such a write begins only after the commit that [`SharedPositions::preserved`] reports.
    /// So a reader that has seen the write also sees the commit.
    ///
    /// [`SharedPositions::preserved`]: crate::core::SharedPositions::preserved
    fn is_in_place(&self, piece: &StagedExtent) -> bool {
        matches!(piece.place(), StagedPlace::Slot(_)) && piece.lsn <= self.core.positions.preserved()
    }

    /// Reads what is in place. Chunks in neighbouring slots are read together, and so are chunks
    /// that the base has.
    fn read_below(&self, line: &View, offset: u64, buf: &mut [u8], may_block: bool) -> Result<bool> {
        let branch = &line.branch;
        let mut page: Option<(u64, Arc<MapPage>)> = None;
        let mut done = 0usize;
        // (where the run starts, start in the buffer)
        let mut run = (Place::Zeros, 0);
        while done < buf.len() {
            let at = offset + done as u64;
            let chunk = Chunk::of(at, branch.chunk_log2);
            let inside = at - chunk.start(branch.chunk_log2);
            let len = ((1u64 << branch.chunk_log2) - inside).min((buf.len() - done) as u64) as usize;
            let (number, index) = MapPage::locate(chunk);
            if page.as_ref().is_none_or(|(held, _)| *held != number) {
                page = match self.core.map.cached(line, number) {
                    Some(page) => Some((number, page)),
                    None if may_block => Some((number, self.core.map.load(line, number)?)),
                    None => return Ok(false),
                };
            }
            let here = match page.as_ref().and_then(|(_, p)| p.get(index)) {
                Some(Entry { slot: Slot::HOLE, .. }) => Place::Zeros,
                Some(Entry { slot, .. }) => Place::Slot(Slot::new(slot.pv(), slot.offset() + inside)),
                None if branch.has_base() => Place::Base,
                None => Place::Zeros,
            };
            if !run.0.goes_on((done - run.1) as u64, here) {
                if !self.read_run(line, offset, run, &mut buf[..done], may_block)? {
                    return Ok(false);
                }
                run = (here, done);
            }
            done += len;
        }
        self.read_run(line, offset, run, buf, may_block)
    }

    /// Reads a run into `buf`, from the run's start to the end. `offset` is the volume byte at the
    /// start of `buf`.
    fn read_run(
        &self,
        line: &View,
        offset: u64,
        (place, from): (Place, usize),
        buf: &mut [u8],
        may_block: bool,
    ) -> Result<bool> {
        let out = &mut buf[from..];
        match place {
            Place::Slot(slot) => {
                let pv = self.core.pvs.get(slot.pv())?;
                let (at, len) = (offset + from as u64, out.len());
                // A unit may begin before the run.
                let of_volume = |place: u64| (at + place).saturating_sub(slot.offset());
                let judge = |place: u64| self.core.is_nobodys(line, of_volume(place) / BLOCK);
                let done = self.core.read_slots(&pv, out, slot.offset(), may_block, &judge);
                done.map_err(|e| {
                    let name = format!("read {len} bytes at byte {at} of the volume, from {}", pv.path);
                    e.within(name).map_byte(|place| of_volume(place.max(slot.offset())))
                })
            }
            Place::Base if !out.is_empty() => match line.branch.base() {
                Some(Base::View(base)) => self.read_line(&base, offset + from as u64, out, may_block),
                Some(Base::Image(image)) => image.read(out, offset + from as u64, may_block),
                // The base has just gone: the caller reads again.
                None => Ok(true),
            },
            Place::Base | Place::Zeros => {
                out.fill(0);
                Ok(true)
            }
        }
    }

    /// Brings map pages and data into memory.
    pub(super) fn load_range(&self, offset: u64, len: u64) -> Result<()> {
        let _reading = self.core.readers.enter();
        let end = offset + len.min(MAX_CACHED);
        let mut buffer = vec![0u8; (1 << 20).min(end - offset) as usize];
        let mut at = offset;
        while at < end {
            let part = (end - at).min(buffer.len() as u64);
            self.read_below(&self.state.line, at, &mut buffer[..part as usize], true)?;
            at += part;
        }
        Ok(())
    }
}

/// The place of a chunk's content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Slot(Slot),
    Zeros,
    Base,
}

impl Place {
    /// Returns whether `next` follows `len` bytes of this place.
    fn goes_on(self, len: u64, next: Place) -> bool {
        match (self, next) {
            (Place::Slot(from), Place::Slot(to)) => to == Slot::new(from.pv(), from.offset() + len),
            _ => self == next,
        }
    }
}

fn read_slot(pv: &Pv, out: &mut [u8], at: u64, may_block: bool) -> std::io::Result<bool> {
    pv.note_read(at, out.len());
    let read = if may_block { pv.disk.read_at(out, at).map(|()| true) } else { pv.disk.try_read_at(out, at) };
    read.inspect_err(|error| pv.count_read_error(at, error))
}

fn read_disk(
    disk: &Arc<dyn Disk>,
    out: &mut [u8],
    at: u64,
    may_block: bool,
    what: impl Fn() -> String,
) -> Result<bool> {
    let failed = |e| Error::io(what(), e);
    if may_block {
        disk.read_at(out, at).map_err(failed)?;
        return Ok(true);
    }
    disk.try_read_at(out, at).map_err(failed)
}

/// Returns the part of `buf`, which starts at volume byte `offset`, that holds `range` of the
/// volume.
fn slice(buf: &mut [u8], offset: u64, range: Range<u64>) -> &mut [u8] {
    &mut buf[(range.start - offset) as usize..(range.end - offset) as usize]
}

/// Returns the number of sectors from `first` on that have the same source.
fn run_length(sources: &[SectorSource; SECTORS], first: usize, end: usize) -> usize {
    sources[first..end].iter().take_while(|s| **s == sources[first]).count()
}
