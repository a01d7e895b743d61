//! Reads chunks as they are in place: in their slots, in the slots of their base, or in an image.
//! Staged content is not part of them.

use crate::branch::{Base, Branch, HEAD, View};
use crate::catalog::page::{MapPage, Slot};
use crate::core::Core;
use crate::error::{Error, Result, corrupt};
use crate::ids::Chunk;
use crate::staging::SectorSource;
use crate::units::BLOCK;
use std::cell::Cell;
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
                Some(slot) => self.slot_content(line, chunk, slot, lost),
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

    fn slot_content(
        &self,
        line: &View,
        chunk: Chunk,
        slot: Slot,
        lost: Option<&Cell<bool>>,
    ) -> Result<Vec<u8>> {
        let mut content = vec![0; line.branch.chunk_size() as usize];
        let pv = self.pvs.get(slot.pv())?;
        if let Some(lost) = lost {
            lost.set(!self.read_verified_parts(&pv, &mut content, slot.offset())?.is_empty());
            return Ok(content);
        }
        let start = chunk.start(line.branch.chunk_log2);
        let judge = |place: u64| self.is_nobodys(line, (start + place - slot.offset()) / BLOCK);
        self.read_slots(&pv, &mut content, slot.offset(), true, &judge)?;
        Ok(content)
    }

    /// Returns the line that has a chunk in a slot of its own, and that slot, for a line that shows
    /// the chunk. `None` if the content of the chunk is in no slot.
    pub(crate) fn owner_of(&self, line: &View, chunk: Chunk) -> Result<Option<(View, Slot)>> {
        let (number, at) = MapPage::locate(chunk);
        let mut line = line.clone();
        loop {
            if line.at.is_some() {
                return Ok(None);
            }
            match self.map.load(&line, number)?.get(at).map(|entry| entry.slot) {
                Some(Slot::HOLE) => return Ok(None),
                Some(slot) => return Ok(Some((line, slot))),
                None => match line.branch.base() {
                    Some(Base::View(base)) => line = base,
                    _ => return Ok(None),
                },
            }
        }
    }

    /// Returns whether staged records of an earlier life of the process cover a block of a line.
    /// Its content in place is then nobody's: a crash may have left data and sum of it apart (S7).
    /// Once these records are in place, there is no such block.
    pub(crate) fn is_nobodys(&self, line: &View, block: u64) -> bool {
        if self.positions.destaged() >= self.positions.found() {
            return false;
        }
        let sources = line.branch.staging.resolve(block, line.epoch);
        sources.iter().all(|source| *source != SectorSource::Below)
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
