//! What an opening does with the youngest entry of the parity log: it makes its lines consistent.
//!
//! The entry's lines may be written in whole, in part, or not at all. Nobody relies on the blocks
//! that the entry writes, unless all of them arrived: a sync returns after that. So:
//!
//! - A line whose blocks and parity have their sums is complete. A column of it that is missing
//!   follows from the others.
//! - If one of them has not, it may follow from the others, too. Its sum tells.
//! - Else the parity becomes the exclusive or of the partial parity and of the written columns, as
//!   they are. So a column that is not written follows from the others, if it is the one that is
//!   missing. A written column that is missing becomes what the entry has of it, or zeros.
//!
//! When the lines are durable, an empty entry follows. What was found to be there after the
//! opening must not become something else in the next one.

use super::log::LoggedLine;
use super::pending::{BlockContent, zeros};
use super::rows::BLOCK;
use super::{Raid5, add};
use crate::codec::crc32c;
use crate::disk::{SyncPurpose, is_unreadable};
use std::io;

/// A block that makes a line consistent: (line, column, content).
type Fix = (u64, usize, BlockContent);

impl Raid5 {
    /// Makes the lines of an entry consistent.
    pub(super) fn replay(&mut self, lines: &[LoggedLine]) -> io::Result<()> {
        let mut fixes = Vec::new();
        for line in lines {
            let columns = self.rows.parity();
            if line.line >= self.number_of_lines() || line.written == 0 || line.written >> columns != 0 {
                let text = "the parity log names a line that is not there";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            fixes.extend(self.fix_of(line)?);
            // A member that is missing may have none of the entry, also if the others have all.
            self.note_written(line.line..line.line + 1);
        }
        if !self.members.writable {
            let fixes = fixes.into_iter().map(|(line, column, content)| ((column, line), content));
            *self.corrected.get_mut() = fixes.collect();
            return Ok(());
        }
        if !fixes.is_empty() {
            let (layout, number) = (&self.members.name, fixes.len());
            tracing::info!(layout, number, "lines that were half written were made consistent");
            for (line, column, content) in &fixes {
                self.write_block(*line, *column, &content[..])?;
            }
            // The lines agree only without the members that are missing now. So the record has to
            // say that they are out, which this sync sees to, before the entry counts no more.
            self.members.sync_all(SyncPurpose::Parity)?;
            self.log.get_mut().end_entry()?;
        } else if !lines.is_empty() {
            // Only the page cache may have them. They must be durable before the next entry takes
            // the place of this one.
            self.members.sync_active(SyncPurpose::Parity)?;
        }
        for line in lines {
            self.refresh_incoming(line.line)?;
        }
        Ok(())
    }

    /// Writes the blocks that an opening for reading has not written. New parities are computed
    /// from what is on the disks.
    pub(super) fn write_corrected(&self) -> io::Result<()> {
        if self.corrected.read().is_empty() {
            return Ok(());
        }
        let _alone = self.lines.write();
        let corrected = std::mem::take(&mut *self.corrected.write());
        corrected
            .iter()
            .try_for_each(|((column, line), content)| self.write_block(*line, *column, &content[..]))
    }

    /// Reads a block for a comparison. `None`: the member is out, or can't read it.
    fn read_if_there(&self, line: u64, column: usize) -> io::Result<Option<BlockContent>> {
        let (place, disk) = self.stored(line, column);
        let Some(disk) = disk else { return Ok(None) };
        let mut content = zeros();
        match disk.0.read_at(&mut content[..], place.offset) {
            Ok(()) => Ok(Some(content)),
            Err(error) if is_unreadable(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns what has to be written so that a line is consistent.
    fn fix_of(&self, line: &LoggedLine) -> io::Result<Option<Fix>> {
        let parity = self.rows.parity();
        let mut wrong = Vec::new();
        let mut sum = line.partial.clone().unwrap_or_else(zeros);
        for (column, known) in line.columns().chain([(parity, line.parity_sum)]) {
            let content = self.read_if_there(line.line, column)?;
            let patched = || line.patched.iter().find(|(of, _)| *of == column).map(|(_, content)| content);
            if let Some(content) = content.as_ref().or_else(patched).filter(|_| column != parity) {
                add(&mut sum[..], &content[..]);
            }
            if content.is_none_or(|content| crc32c(&content[..]) != known) {
                wrong.push((column, known));
            }
        }
        if wrong.is_empty() {
            return Ok(None);
        }
        let is_out = |column| self.stored(line.line, column).1.is_none();
        if let [(column, known)] = wrong[..] {
            let mut content = zeros();
            let read = |disk: &dyn crate::disk::Disk, buf: &mut [u8], at| disk.read_at(buf, at);
            let restored = self.restore(&mut content[..], line.line, column, 0, &read);
            if restored.is_ok() && crc32c(&content[..]) == known {
                return Ok((!is_out(column)).then_some((line.line, column, content)));
            }
        }
        Ok((!is_out(parity)).then_some((line.line, parity, sum)))
    }

    /// Writes a block to its member, to the disk that the member is rebuilt onto, and to where it
    /// moves.
    pub(super) fn write_block(&self, line: u64, column: usize, content: &[u8]) -> io::Result<()> {
        let place = self.place(line, column);
        let mut done = Ok(());
        for (_, disk) in self.members.written(place.member) {
            if let Err(error) = disk.0.write_at(content, place.offset) {
                done = done.and(self.members.lose(place.member, &disk, &error));
            }
        }
        self.note_written(line..line + 1);
        done?;
        if let Some((to, disk)) = self.target(line, column)
            && let Err(error) = disk.0.write_at(content, to.offset)
        {
            self.members.target_failed(to.member, &disk, &error);
        }
        Ok(())
    }

    /// Writes the blocks of a line again to disks that members are rebuilt onto: they may have
    /// other parts of an entry than the members.
    fn refresh_incoming(&self, line: u64) -> io::Result<()> {
        for column in 0..self.rows.width() {
            let place = self.place(line, column);
            let Some(new) = self.members.incoming(place.member) else { continue };
            let mut content = [0; BLOCK];
            self.read_block(line, column, &mut content)?;
            if let Err(error) = new.0.write_at(&content, place.offset) {
                self.members.lose(place.member, &new, &error)?;
            }
        }
        Ok(())
    }
}
