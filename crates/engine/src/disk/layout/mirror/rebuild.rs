//! The rebuild of members: their content is copied to a disk that gets all writes meanwhile.

use super::{BLOCK, Mirror, Piece, REGION};
use crate::disk::layout::IsRight;
use crate::disk::layout::members::no_copy;
use crate::disk::layout::record::Incoming;
use crate::disk::layout::spans::CopyPlace;
use crate::disk::{Disk, is_unreadable};
use crate::units::SECTOR;
use std::io;
use std::ops::Range;
use std::sync::Arc;

impl Mirror {
    /// Copies a range of whole blocks of the content to the disks that members are rebuilt onto,
    /// and to where a place moves.
    /// `is_right` tells for a byte of the mirror and a block whether the block may be its content:
    /// of several copies one is taken for which that is so. Returns the sectors that no member can
    /// read. The disks have zeros there.
    pub(crate) fn copy_to_incoming(
        &self,
        at: u64,
        len: u64,
        is_right: IsRight<'_>,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut buffer = vec![0; REGION.min(len) as usize];
        let mut unreadable = Vec::new();
        let places = self.places.load();
        let end = places.len().min(at + len);
        for at in (at..end).step_by(REGION as usize) {
            let part = (at + REGION).min(end) - at;
            let _alone = self.alone(at, part);
            // Nothing but background work changes the places, and this is the only one of it.
            for piece in Self::pieces(&places, at, part as usize)? {
                let buffer = &mut buffer[piece.range.clone()];
                unreadable.extend(self.copy_piece(&piece, buffer, is_right)?);
            }
        }
        Ok(unreadable)
    }

    /// Copies a piece, by way of `buffer`. Returns the sectors that no member can read.
    fn copy_piece(
        &self,
        piece: &Piece<'_>,
        buffer: &mut [u8],
        is_right: IsRight<'_>,
    ) -> io::Result<Vec<Range<u64>>> {
        let incoming = |place: &CopyPlace| Some((*place, self.members.incoming(place.member)?));
        let incoming: Vec<_> = piece.places.iter().filter_map(incoming).collect();
        let target = self.target_of(piece);
        if incoming.is_empty() && target.is_none() {
            return Ok(Vec::new());
        }
        let mut unreadable = Vec::new();
        self.read_right(piece, buffer, is_right, &mut unreadable)?;
        for (place, new) in incoming {
            let at = place.offset + piece.within;
            let done = new.0.allocate(at, buffer.len() as u64).and_then(|()| new.0.write_at(buffer, at));
            if let Err(error) = done {
                // Clients do not wait for a disk that has no space for the content.
                self.members.lose(place.member, &new, &error)?;
            }
        }
        if let Some((to, disk)) = target {
            self.members.copy_to_target(&to, &disk, to.offset + piece.within, buffer)?;
        }
        Ok(unreadable)
    }

    /// Reads a piece, block by block from a copy that is right.
    fn read_right(
        &self,
        piece: &Piece<'_>,
        buffer: &mut [u8],
        is_right: IsRight<'_>,
        unreadable: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let copy = |place: &CopyPlace| Some((*place, self.members.disk(place.member)?));
        let copies: Vec<_> = self.in_order(piece).filter_map(copy).collect();
        let Some((first, disk)) = copies.first() else { return Err(no_copy()) };
        let is_read = disk.0.read_at(buffer, first.offset + piece.within).is_ok();
        for (n, block) in buffer.chunks_mut(BLOCK as usize).enumerate() {
            let within = n as u64 * BLOCK;
            if is_read && is_right(piece.at + within, block) {
                continue;
            }
            let mut other = vec![0; block.len()];
            let mut known = is_read;
            for (place, disk) in &copies {
                match disk.0.read_at(&mut other, place.offset + piece.within + within) {
                    Ok(()) => {}
                    Err(error) if is_unreadable(&error) => continue,
                    Err(error) => return Err(error),
                }
                let right = is_right(piece.at + within, &other);
                if right || !known {
                    block.copy_from_slice(&other);
                    known = true;
                }
                if right {
                    break;
                }
            }
            if !known {
                self.read_sectors(piece, within, block, unreadable)?;
            }
        }
        Ok(())
    }

    /// Reads a block of which no member can read all, sector by sector. `within` is its byte of the
    /// piece.
    fn read_sectors(
        &self,
        piece: &Piece<'_>,
        within: u64,
        block: &mut [u8],
        unreadable: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        for (sector, at) in block.chunks_mut(SECTOR as usize).zip((within..).step_by(SECTOR as usize)) {
            let mut is_read = false;
            for place in self.in_order(piece) {
                let Some(disk) = self.members.disk(place.member) else { continue };
                match disk.0.read_at(sector, place.offset + piece.within + at) {
                    Ok(()) => is_read = true,
                    Err(error) if is_unreadable(&error) => continue,
                    Err(error) => return Err(error),
                }
                break;
            }
            if !is_read {
                sector.fill(0);
                unreadable.push(piece.at + at..piece.at + at + SECTOR);
            }
        }
        Ok(())
    }

    /// Notes that the content before `to` was copied since so many rebuilds had begun. It is
    /// durable when this returns. With `to` at the end, the disks are members from then on. If
    /// another rebuild began meanwhile, this does nothing.
    pub(crate) fn note_rebuilt(&self, begun: u64, to: u64) -> io::Result<()> {
        self.members.sync_incoming()?;
        // No write is between the old disk and the new one.
        self.while_alone(|| self.members.note_rebuilt(begun, to)).map(drop)
    }

    /// Begins to rebuild a member onto a disk, whose header is written.
    pub(crate) fn begin_rebuild(&self, number: usize, new: Incoming, disk: Arc<dyn Disk>) -> io::Result<()> {
        self.while_alone(|| self.members.begin_rebuild(number, new, disk))
    }
}
