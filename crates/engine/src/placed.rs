//! Reads chunks as they are in place: in their slots, in the slots of their base, or in an image.
//! Staged content is not part of them.

use crate::branch::{Base, Branch, HEAD, View};
use crate::catalog::page::{MapPage, Slot};
use crate::core::Core;
use crate::damage::{BLOCK, SECTOR};
use crate::disk::is_unreadable;
use crate::error::{Error, ErrorKind, Result, corrupt};
use crate::ids::Chunk;
use crate::space::pv::Pv;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

impl Core {
    /// Reads a chunk of a branch as it is in place, without staged content.
    pub(crate) fn placed_chunk(&self, branch: &Arc<Branch>, chunk: Chunk) -> Result<Vec<u8>> {
        self.frozen_chunk(&View::head(branch), chunk)
    }

    /// Reads a chunk of a branch as it is in place, with zeros for what can't be read. Also returns
    /// whether there is any of that.
    pub(crate) fn placed_parts(&self, branch: &Arc<Branch>, chunk: Chunk) -> Result<(Vec<u8>, bool)> {
        let lost = Cell::new(false);
        let line = View::head(branch);
        let content = self.chunk_of(&line, chunk, Some(&lost))?;
        Ok((content, lost.get()))
    }

    /// Reads a chunk as a line shows it. The line's content must be in place as a whole.
    pub(crate) fn frozen_chunk(&self, line: &View, chunk: Chunk) -> Result<Vec<u8>> {
        self.chunk_of(line, chunk, None)
    }

    /// Reads a chunk of a line. With `lost`, content that can't be read becomes zeros, and `lost`
    /// is set.
    fn chunk_of(&self, line: &View, chunk: Chunk, lost: Option<&Cell<bool>>) -> Result<Vec<u8>> {
        let _reading = self.readers.enter();
        let (number, at) = MapPage::locate(chunk);
        let branch = &line.branch;
        loop {
            let based = branch.has_base();
            let look_up_and_read = || match self.map.load(line, number)?.get(at).map(|entry| entry.slot) {
                Some(Slot::HOLE) => Ok(vec![0; branch.chunk_size() as usize]),
                Some(slot) => self.slot_content(slot, branch.chunk_size(), lost),
                None => self.base_chunk(branch, chunk, lost),
            };
            let content = match line.epoch {
                HEAD => look_up_and_read(),
                _ => branch.generation.read(look_up_and_read),
            };
            // A branch that has lost its base meanwhile has all content itself now.
            if !based || branch.has_base() {
                return content;
            }
        }
    }

    /// Reads a chunk of the base of a branch.
    fn base_chunk(&self, branch: &Arc<Branch>, chunk: Chunk, lost: Option<&Cell<bool>>) -> Result<Vec<u8>> {
        let mut content = vec![0; branch.chunk_size() as usize];
        match branch.base() {
            None => {}
            Some(Base::View(line)) => match &line.at {
                Some(at) => content.copy_from_slice(&at.chunk(self, chunk)?),
                None => return self.chunk_of(&line, chunk, lost),
            },
            Some(Base::Image(image)) => {
                image.read(&mut content, chunk.start(branch.chunk_log2), true)?;
            }
        }
        Ok(content)
    }

    fn slot_content(&self, slot: Slot, len: u64, lost: Option<&Cell<bool>>) -> Result<Vec<u8>> {
        let mut content = vec![0; len as usize];
        let pv = self.pvs.get(slot.pv())?;
        if let Some(lost) = lost {
            lost.set(!self.read_parts(&pv, &mut content, slot.offset())?.is_empty());
            return Ok(content);
        }
        self.check_place(&pv, slot.offset(), content.len())?;
        let failed = |e| {
            pv.count_read_error(slot.offset(), &e);
            Error::io(format!("read from {} at byte {}", pv.path, slot.offset()), e)
        };
        pv.disk.read_at(&mut content, slot.offset()).map_err(failed)?;
        Ok(content)
    }
}

impl Core {
    /// Fails if a part of a range of a physical volume is damaged.
    #[inline]
    pub(crate) fn check_place(&self, pv: &Pv, at: u64, len: usize) -> Result<()> {
        if !self.damage.any() {
            return Ok(());
        }
        match self.damage.overlaps(pv.id, at..at + len as u64).first() {
            None => Ok(()),
            Some(part) => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "read from {} at byte {}: {} bytes there could not be read and are lost until they are written again",
                    pv.path,
                    part.start,
                    part.end - part.start
                ),
            )),
        }
    }

    /// Reads the readable parts of a range of a physical volume, and fills the rest with zeros.
    /// Returns the unreadable parts, as ranges in `out`, which count as damage from then on. A
    /// physical volume that does not answer at all is not damaged but absent: that is an error, and
    /// its content is not given up.
    pub(crate) fn read_parts(&self, pv: &Pv, out: &mut [u8], at: u64) -> Result<Vec<Range<usize>>> {
        let range = at..at + out.len() as u64;
        if let Err(error) = pv.disk.read_at(out, at) {
            let failed = |e| Error::io(format!("read from {} at byte {at}", pv.path), e);
            pv.count_read_error(at, &error);
            if !is_unreadable(&error) {
                return Err(failed(error));
            }
            let away = failed(error).of_absent_pv();
            let answers = || pv.disk.answers().map_err(|_| away.clone());
            answers()?;
            let unreadable = self.read_in_pieces(pv, out, at)?;
            // The physical volume may have become absent meanwhile.
            answers()?;
            unreadable.into_iter().for_each(|place| self.damage.add(pv.id, place));
        }
        let lost = self.damage.overlaps(pv.id, range);
        let lost: Vec<Range<usize>> =
            lost.into_iter().map(|part| (part.start - at) as usize..(part.end - at) as usize).collect();
        lost.iter().for_each(|part| out[part.clone()].fill(0));
        Ok(lost)
    }

    /// Reads block by block, and failing blocks sector by sector. Returns the sectors that fail.
    fn read_in_pieces(&self, pv: &Pv, out: &mut [u8], at: u64) -> Result<Vec<Range<u64>>> {
        let mut unreadable = Vec::new();
        let end = at + out.len() as u64;
        let mut from = at;
        while from < end {
            let to = (from / BLOCK * BLOCK + BLOCK).min(end);
            let block = &mut out[(from - at) as usize..(to - at) as usize];
            match pv.disk.read_at(block, from) {
                Ok(()) => {}
                Err(error) if is_unreadable(&error) => {
                    for (sector, place) in
                        block.chunks_mut(SECTOR as usize).zip((from..).step_by(SECTOR as usize))
                    {
                        match pv.disk.read_at(sector, place) {
                            Ok(()) => {}
                            Err(error) if is_unreadable(&error) => {
                                unreadable.push(place..place + sector.len() as u64);
                            }
                            Err(error) => {
                                return Err(Error::io(
                                    format!("read from {} at byte {place}", pv.path),
                                    error,
                                ));
                            }
                        }
                    }
                }
                Err(error) => return Err(Error::io(format!("read from {} at byte {from}", pv.path), error)),
            }
            from = to;
        }
        Ok(unreadable)
    }
}

impl Core {
    /// Reads data of the journal for the destager. It was verified when the batch was collected.
    pub(crate) fn read_journal(&self, file: u32, position: u32, out: &mut [u8]) -> Result<()> {
        let Some(segment) = self.journal.file(file) else {
            return Err(corrupt(format!("read journal file {file}: it does not exist")));
        };
        let failed = |e| Error::io(format!("read journal file {file}"), e);
        segment.disk.read_at(out, position.into()).map_err(failed)
    }
}
