//! A mirror: a disk whose content is on several members, each byte on as many as there are copies.
//!
//! The engine sees one disk. What makes that safe (decision 76):
//!
//! - **A write** goes to all copies, and to the disk that a member is rebuilt onto. A member whose
//!   write or sync fails is *out*. The record of the mirror says so durably before the write or the
//!   sync returns. From then on nothing reads that member, until it was rebuilt.
//! - **After a crash** copies can differ only where the engine wrote and had not synced. The engine
//!   never relies on such content: it writes it again, from the journal, or forgets it. So there is
//!   no resync.
//! - **A copy that is wrong**, by its sum or because it can't be read, is written again from one
//!   that is right, while no write to that place is under way.

mod copies;
mod disk;
mod rebuild;

use super::members::{Members, Opened, Role, is_gone, no_copy};
use super::places::{CurrentPlaces, Places};
use super::spans::{CopiedSpan, CopyPlace};
use crate::disk::Disk;
use crate::error::is_shortage;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that one of the locks below covers. No write to a disk is larger than two of them.
pub(super) const REGION: u64 = 1 << 20;
/// Number of locks. Each covers every such region.
pub(super) const REGIONS: u64 = 64;
/// Bytes that are mended at once: the unit of sums, and of what a medium loses.
pub(super) const BLOCK: u64 = 4096;
/// A part of a request that lies in one span.
pub(super) struct Piece<'m> {
    pub(super) places: &'m [CopyPlace],
    /// Where one of the places moves to, and the number of rebuilds and moves that had begun.
    pub(super) target: Option<(CopyPlace, u64)>,
    /// Byte of the span.
    pub(super) within: u64,
    /// Byte of the mirror.
    pub(super) at: u64,
    /// Bytes of the request.
    pub(super) range: Range<usize>,
}

/// Writes a part of a request: (disk, byte of it, bytes of the request).
pub(super) type WriteCopy<'a> = &'a dyn Fn(&dyn Disk, u64, Range<usize>) -> io::Result<()>;
/// Reads a part of a request: (disk, the part, byte of the disk).
pub(super) type ReadCopy<'a> = &'a dyn Fn(&dyn Disk, &mut [u8], u64) -> io::Result<()>;

/// A mirror as a disk.
pub struct Mirror {
    pub(crate) members: Members,
    pub(super) places: CurrentPlaces,
    /// Held shared by writes, and alone by what makes copies equal.
    regions: [RwLock<()>; REGIONS as usize],
}

impl Mirror {
    pub(super) fn new(members: Members) -> Mirror {
        let places = CurrentPlaces::new(Places::of(&members.record()));
        Mirror { members, places, regions: std::array::from_fn(|_| RwLock::new(())) }
    }

    /// Splits a request into parts of one span each.
    pub(super) fn pieces(
        places: &Places,
        at: u64,
        len: usize,
    ) -> io::Result<impl Iterator<Item = Piece<'_>>> {
        let end = at.checked_add(len as u64).filter(|end| *end <= places.len());
        let end =
            end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the mirror"))?;
        let inside = places.from(at).iter().take_while(move |span| span.start < end);
        Ok(inside.map(move |span| {
            let (from, to) = (at.max(span.start), end.min(span.end()));
            Piece {
                places: &span.places,
                target: places.target_of(span).zip(places.moving_since()),
                within: from - span.start,
                at: from,
                range: (from - at) as usize..(to - at) as usize,
            }
        }))
    }

    /// Splits a read into parts that lie in one span and in one region. So a byte is read from one
    /// copy, whatever the request is: no content is in the page cache twice, and what was verified
    /// once is what the next read finds.
    fn pieces_to_read(places: &Places, at: u64, len: usize) -> io::Result<impl Iterator<Item = Piece<'_>>> {
        Ok(Self::pieces(places, at, len)?.flat_map(|piece| {
            let end = piece.at + piece.range.len() as u64;
            (piece.at / REGION..end.div_ceil(REGION)).map(move |region| {
                let (from, to) = ((region * REGION).max(piece.at), ((region + 1) * REGION).min(end));
                let first = piece.range.start + (from - piece.at) as usize;
                Piece {
                    places: piece.places,
                    target: piece.target,
                    within: piece.within + from - piece.at,
                    at: from,
                    range: first..first + (to - from) as usize,
                }
            })
        }))
    }

    /// Returns the places of a piece in the order in which they are read.
    pub(super) fn in_order<'p>(&self, piece: &Piece<'p>) -> impl Iterator<Item = &'p CopyPlace> {
        let first = (piece.at / REGION) as usize % piece.places.len().max(1);
        piece.places.iter().cycle().skip(first).take(piece.places.len())
    }

    fn locks(at: u64, len: u64) -> Vec<usize> {
        let regions = at / REGION..at.saturating_add(len.max(1)).div_ceil(REGION);
        if regions.end - regions.start >= REGIONS {
            return (0..REGIONS as usize).collect();
        }
        let mut locks: Vec<usize> = regions.map(|region| (region % REGIONS) as usize).collect();
        locks.sort_unstable();
        locks
    }

    fn shared(&self, at: u64, len: u64) -> Vec<RwLockReadGuard<'_, ()>> {
        Self::locks(at, len).into_iter().map(|lock| self.regions[lock].read()).collect()
    }

    /// Does something while nothing is written.
    pub(super) fn while_alone<T>(&self, act: impl FnOnce() -> T) -> T {
        let _alone = self.alone(0, REGION * REGIONS);
        act()
    }

    pub(super) fn alone(&self, at: u64, len: u64) -> Vec<RwLockWriteGuard<'_, ()>> {
        Self::locks(at, len).into_iter().map(|lock| self.regions[lock].write()).collect()
    }

    /// Carries out a write on all copies. `write` gets a disk, a byte of it, and the bytes of the
    /// request that go there.
    pub(super) fn write_each(&self, at: u64, len: usize, write: WriteCopy<'_>) -> io::Result<()> {
        let _shared = self.shared(at, len as u64);
        let done = self.write_pieces(at, len, write);
        self.members.stale.note_written(at..at.saturating_add(len as u64));
        done
    }

    fn write_pieces(&self, at: u64, len: usize, write: WriteCopy<'_>) -> io::Result<()> {
        let places = self.places.load();
        for piece in Self::pieces(&places, at, len)? {
            let (mut is_written, mut failed) = (false, Vec::new());
            for place in piece.places {
                for (role, disk) in self.members.written(place.member) {
                    match write(&*disk.0, place.offset + piece.within, piece.range.clone()) {
                        Ok(()) => is_written |= role == Role::Member,
                        // The copies may differ now. The engine relies on none of them.
                        Err(error) if is_shortage(&error) && role == Role::Member => return Err(error),
                        Err(error) => failed.push((place.member, disk, error)),
                    }
                }
            }
            if let Some((to, disk)) = self.target_of(&piece)
                && let Err(error) = write(&*disk.0, to.offset + piece.within, piece.range.clone())
            {
                self.members.target_failed(to.member, &disk, &error);
            }
            if !is_written {
                return Err(failed.pop().map_or_else(no_copy, |(_, _, error)| error));
            }
            failed.iter().try_for_each(|(number, disk, error)| self.members.lose(*number, disk, error))?;
        }
        Ok(())
    }

    /// Changes the space of a range on all copies. A disk that can't do that has not failed. One
    /// that is not there has.
    pub(super) fn on_each(
        &self,
        at: u64,
        len: u64,
        change: &dyn Fn(&dyn Disk, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let _shared = self.shared(at, len);
        // A member that comes back gets the space, too.
        self.members.stale.note_written(at..at.saturating_add(len));
        let places = self.places.load();
        for piece in Self::pieces(&places, at, len as usize)? {
            let (mut is_done, mut failed) = (false, Vec::new());
            for place in piece.places {
                let (at, len) = (place.offset + piece.within, piece.range.len() as u64);
                if let Some(disk) = self.members.disk(place.member) {
                    match change(&*disk.0, at, len) {
                        Ok(()) => is_done = true,
                        Err(error) if is_gone(&error) => failed.push((place.member, disk, error)),
                        Err(error) => return Err(error),
                    }
                }
                if let Some(new) = self.members.incoming(place.member) {
                    // A write that fails there ends the rebuild.
                    let _ = change(&*new.0, at, len);
                }
            }
            if let Some((to, disk)) = self.target_of(&piece)
                && change(&*disk.0, to.offset + piece.within, piece.range.len() as u64).is_err()
            {
                // Space that is promised here must be there at the new place, too.
                self.members.spoil_move();
            }
            if !is_done {
                return Err(failed.pop().map_or_else(no_copy, |(_, _, error)| error));
            }
            failed.iter().try_for_each(|(number, disk, error)| self.members.lose(*number, disk, error))?;
        }
        Ok(())
    }

    /// Carries out a read on one copy of each piece, or on another one if that fails.
    pub(super) fn read_each(&self, buf: &mut [u8], at: u64, read: ReadCopy<'_>) -> io::Result<()> {
        let places = self.places.load();
        for piece in Self::pieces_to_read(&places, at, buf.len())? {
            let mut failed = Vec::new();
            let is_read = self.in_order(&piece).any(|place| {
                let Some(disk) = self.members.disk(place.member) else { return false };
                let done = read(&*disk.0, &mut buf[piece.range.clone()], place.offset + piece.within);
                done.map_err(|error| failed.push((*place, disk, error))).is_ok()
            });
            if !is_read {
                return Err(failed.into_iter().next().map_or_else(no_copy, |(_, _, error)| error));
            }
            for (place, disk, error) in failed {
                self.members.look_after(piece.at, piece.range.len() as u64, place.member, &disk, &error);
            }
        }
        Ok(())
    }

    /// Reads from the first copy without waiting. Any failure is left to a read that may wait.
    pub(super) fn try_read(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        let places = self.places.load();
        for piece in Self::pieces_to_read(&places, at, buf.len())? {
            let place = self.in_order(&piece).find(|place| self.members.disk(place.member).is_some());
            let Some(place) = place else { return Ok(false) };
            let Some(disk) = self.members.disk(place.member) else { return Ok(false) };
            let read = disk.0.try_read_at(&mut buf[piece.range.clone()], place.offset + piece.within);
            if !read.unwrap_or(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Calls `visit` for the first copy of each part of a range.
    pub(super) fn visit_first(&self, at: u64, len: u64, visit: &dyn Fn(&dyn Disk, u64, u64)) {
        let places = self.places.load();
        let len = len.min(places.len().saturating_sub(at)) as usize;
        for piece in Self::pieces_to_read(&places, at, len).into_iter().flatten() {
            let disk =
                self.in_order(&piece).find_map(|place| Some((place, self.members.disk(place.member)?)));
            if let Some((place, disk)) = disk {
                visit(&*disk.0, place.offset + piece.within, piece.range.len() as u64);
            }
        }
    }

    /// Calls `visit` for all copies of each part of a range.
    pub(super) fn visit_copies(&self, at: u64, len: u64, visit: &dyn Fn(&dyn Disk, u64, u64)) {
        let places = self.places.load();
        let len = len.min(places.len().saturating_sub(at)) as usize;
        for piece in Self::pieces(&places, at, len).into_iter().flatten() {
            for place in piece.places {
                if let Some(disk) = self.members.disk(place.member) {
                    visit(&*disk.0, place.offset + piece.within, piece.range.len() as u64);
                }
            }
        }
    }

    /// Returns where the hole or the data at a byte ends, and whether it is data.
    pub(super) fn run(&self, at: u64) -> io::Result<(u64, bool)> {
        let places = self.places.load();
        let is_inside = at < places.len();
        let piece = is_inside.then(|| Self::pieces(&places, at, 1)).transpose()?.and_then(|mut p| p.next());
        let Some(piece) = piece else { return Ok((at, true)) };
        let end = places.from(at).first().map_or(places.len(), CopiedSpan::end);
        for place in self.in_order(&piece) {
            let Some(disk) = self.members.disk(place.member) else { continue };
            let from = place.offset + piece.within;
            if let Ok((to, is_data)) = disk.0.run_at(from) {
                return Ok((end.min(at + to.saturating_sub(from).max(1)), is_data));
            }
        }
        Ok((end, true))
    }

    pub(super) fn content_len(&self) -> u64 {
        self.places.load().len()
    }

    /// Returns where one of a piece's places moves to, and the disk there.
    pub(super) fn target_of(&self, piece: &Piece<'_>) -> Option<(CopyPlace, Arc<Opened>)> {
        let (to, begun) = piece.target?;
        Some((to, self.members.target_disk(to.member, begun)?))
    }
}

#[cfg(test)]
mod tests;
