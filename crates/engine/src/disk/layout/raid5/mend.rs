//! Blocks that are wrong, or that can't be read, are written again as they follow from the others
//! of their line.

use super::pending::{BlockContent, zeros};
use super::rows::BLOCK;
use super::{MAX_SUSPECTS, Raid5, add};
use crate::disk::layout::IsRight;
use crate::disk::{Disk, Settled};
use std::io;

impl Raid5 {
    /// Returns whether the members can read a range.
    pub(crate) fn is_readable(&self, at: u64, len: usize) -> bool {
        let mut buffer = vec![0; len];
        self.units(at, len).all(|(line, column, within, range)| {
            let (place, disk) = self.stored(line, column);
            disk.is_none_or(|disk| disk.0.read_at(&mut buffer[range], place.offset + within).is_ok())
        })
    }

    /// Looks for the content of a block for which `is_right` is true: what its member has, or what
    /// follows from the others. Fills `buf` with it. The member has it then.
    pub(super) fn settle_block(
        &self,
        buf: &mut [u8],
        at: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> io::Result<Settled> {
        if buf.len() != BLOCK || !at.is_multiple_of(BLOCK as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "one block is settled at a time"));
        }
        self.check_end(at, buf.len())?;
        let _log = self.log.lock();
        let _alone = self.lines.write();
        if self.pending.read(buf, at).is_empty() {
            return Ok(if is_right(buf) { Settled::AllRight } else { Settled::NoneRight });
        }
        let (line, column) = self.rows.find(at / BLOCK as u64);
        let (place, disk) = self.stored(line, column);
        let mut own = zeros();
        let own = disk.as_ref().and_then(|disk| {
            disk.0.drop_cached(place.offset, BLOCK as u64);
            disk.0.read_at(&mut own[..], place.offset).ok().map(|()| own)
        });
        let read = |disk: &dyn Disk, buf: &mut [u8], at| disk.read_at(buf, at);
        let mut other = zeros();
        let other = self.restore(&mut other[..], line, column, 0, &read).is_ok().then_some(other);
        if let Some(own) = own.filter(|own| is_right(&own[..])) {
            buf.copy_from_slice(&own[..]);
            if disk.is_some() && other.is_some_and(|other| other != own) {
                self.suspect(line);
            }
            return Ok(Settled::AllRight);
        }
        let Some(other) = other.filter(|other| is_right(&other[..])) else { return Ok(Settled::NoneRight) };
        buf.copy_from_slice(&other[..]);
        if disk.is_none() {
            return Ok(Settled::AllRight);
        }
        if self.members.writable {
            let (layout, member) = (&self.members.name, place.member);
            tracing::warn!(layout, member, at, "a block was wrong, and was written again");
            self.write_block(line, column, &other[..])?;
        }
        Ok(Settled::Mended)
    }

    /// Returns whether the members have `content`, and all lines of the range are consistent.
    pub(super) fn is_content(&self, content: &[u8], at: u64) -> io::Result<bool> {
        self.check_end(at, content.len())?;
        let mut now = vec![0; content.len()];
        let read = |disk: &dyn Disk, buf: &mut [u8], at| disk.read_direct(buf, at);
        for (line, column, within, range) in self.units(at, content.len()) {
            let part = &mut now[range.clone()];
            let _lines = self.lines.read();
            if self.pending.read(part, at + range.start as u64).is_empty() {
                continue;
            }
            let (place, disk) = self.stored(line, column);
            let Some(disk) = disk else { continue };
            disk.0.read_direct(part, place.offset + within)?;
            if *part != content[range.clone()] {
                return Ok(false);
            }
            let is_whole = (0..self.rows.width()).all(|column| self.stored(line, column).1.is_some());
            if is_whole {
                self.restore(part, line, column, within, &read)?;
                if *part != content[range] {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Notes a line in which a block or the parity is wrong. The sums of all its blocks tell.
    pub(super) fn suspect(&self, line: u64) {
        let mut suspects = self.suspects.lock();
        if suspects.len() < MAX_SUSPECTS && !suspects.contains(&line) {
            suspects.push(line);
        }
    }

    /// Returns the lines in which something was found wrong since the last call.
    pub(crate) fn take_suspects(&self) -> Vec<u64> {
        std::mem::take(&mut self.suspects.lock())
    }

    /// Makes a line consistent. `is_right` tells for a byte of the content and a block whether the
    /// block may be its content. If one block is wrong and what follows from the others is right,
    /// that is written. If no block is wrong, the parity is. Returns whether something was written.
    pub(crate) fn mend_line(&self, line: u64, is_right: IsRight<'_>) -> io::Result<bool> {
        if line >= self.number_of_lines() || !self.members.writable {
            return Ok(false);
        }
        let _log = self.log.lock();
        let _alone = self.lines.write();
        let mut sum = zeros();
        let mut wrong: Vec<(usize, BlockContent)> = Vec::new();
        let mut parity = zeros();
        for column in 0..self.rows.width() {
            let (place, disk) = self.stored(line, column);
            let Some(disk) = disk else {
                // It has its turn again when all members are in.
                self.suspect(line);
                return Ok(false);
            };
            let mut content = zeros();
            disk.0.read_direct(&mut content[..], place.offset)?;
            add(&mut sum[..], &content[..]);
            if column == self.rows.parity() {
                parity = content;
            } else if !is_right(self.rows.block(line, column) * BLOCK as u64, &content[..]) {
                wrong.push((column, content));
            }
        }
        if sum == zeros() {
            return Ok(false);
        }
        let (column, mut content) = match wrong.pop() {
            None => (self.rows.parity(), parity),
            Some(one) => one,
        };
        // What the line lacks to be consistent is what the block lacks.
        add(&mut content[..], &sum[..]);
        let is_mended = column == self.rows.parity()
            || wrong.is_empty() && is_right(self.rows.block(line, column) * BLOCK as u64, &content[..]);
        if is_mended {
            let layout = &self.members.name;
            tracing::warn!(layout, line, column, "a line was not consistent, and was mended");
            self.write_block(line, column, &content[..])?;
        }
        Ok(is_mended)
    }
}
