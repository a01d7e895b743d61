//! The rebuild of members: their content is copied to a disk that gets all writes meanwhile.

use super::member;
use super::mirror::{BLOCK, Mirror, Opened, Piece, REGION, REGIONS, Role, no_copy};
use super::record::Incoming;
use super::spans::CopyPlace;
use crate::disk::{Disk, SyncPurpose, is_unreadable};
use crate::units::SECTOR;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Mirror {
    /// Copies a range of whole blocks of the content to the disks that members are rebuilt onto.
    /// `is_right` tells for a byte of the mirror and a block whether the block may be its content:
    /// of several copies one is taken for which that is so. Returns the sectors that no member can
    /// read. The disks have zeros there.
    pub(crate) fn copy_to_incoming(
        &self,
        at: u64,
        len: u64,
        is_right: &dyn Fn(u64, &[u8]) -> bool,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut buffer = vec![0; REGION.min(len) as usize];
        let mut unreadable = Vec::new();
        let end = self.len.min(at + len);
        for at in (at..end).step_by(REGION as usize) {
            let part = (at + REGION).min(end) - at;
            let _alone = self.alone(at, part);
            for piece in self.pieces(at, part as usize)? {
                let buffer = &mut buffer[piece.range.clone()];
                self.copy_piece(&piece, buffer, is_right, &mut unreadable)?;
            }
        }
        Ok(unreadable)
    }

    fn copy_piece(
        &self,
        piece: &Piece<'_>,
        buffer: &mut [u8],
        is_right: &dyn Fn(u64, &[u8]) -> bool,
        unreadable: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let incoming = |place: &CopyPlace| Some((*place, self.members[place.member].incoming.load_full()?));
        let incoming: Vec<_> = piece.places.iter().filter_map(incoming).collect();
        if incoming.is_empty() {
            return Ok(());
        }
        self.read_right(piece, buffer, is_right, unreadable)?;
        for (place, new) in incoming {
            let at = place.offset + piece.within;
            let done = new.0.allocate(at, buffer.len() as u64).and_then(|()| new.0.write_at(buffer, at));
            if let Err(error) = done {
                // Clients do not wait for a disk that has no space for the content.
                self.lose(place.member, &new, &error)?;
            }
        }
        Ok(())
    }

    /// Reads a piece, block by block from a copy that is right.
    fn read_right(
        &self,
        piece: &Piece<'_>,
        buffer: &mut [u8],
        is_right: &dyn Fn(u64, &[u8]) -> bool,
        unreadable: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let copy = |place: &CopyPlace| Some((*place, self.members[place.member].disk.load_full()?));
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
                let Some(disk) = self.members[place.member].disk.load_full() else { continue };
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

    /// Returns how many rebuilds began, and up to where the content is on all disks that members
    /// are rebuilt onto. `None`: no member is rebuilt.
    pub(crate) fn rebuilt(&self) -> Option<(u64, u64)> {
        let record = self.record.lock();
        let rebuilt =
            record.members.iter().filter_map(|of| of.incoming.as_ref()).map(|new| new.rebuilt).min()?;
        Some((self.begun.load(Ordering::SeqCst), rebuilt))
    }

    /// Notes that the content before `to` was copied since so many rebuilds had begun. It is
    /// durable when this returns. With `to` at the end, the disks are members from then on. If
    /// another rebuild began meanwhile, this does nothing.
    pub(crate) fn note_rebuilt(&self, begun: u64, to: u64) -> io::Result<()> {
        for (number, role, disk) in self.active() {
            if role == Role::Incoming
                && let Err(error) = disk.0.sync(SyncPurpose::Layout)
            {
                self.lose(number, &disk, &error)?;
            }
        }
        // No write is between the old disk and the new one.
        let _alone = self.alone(0, REGION * REGIONS);
        let record = &mut *self.record.lock();
        if self.begun.load(Ordering::SeqCst) != begun {
            return Ok(());
        }
        let before = record.clone();
        for (of, member) in record.members.iter_mut().zip(&self.members) {
            let Some(new) = &mut of.incoming else { continue };
            new.rebuilt = new.rebuilt.max(to);
            if to < self.len {
                continue;
            }
            let (mirror, disk) = (&self.name, &new.path);
            tracing::info!(event = "mirror.rebuilt", mirror, disk, "a member of a mirror was rebuilt");
            (of.uuid, of.path) = (new.uuid, std::mem::take(&mut new.path));
            (of.is_in, of.reason, of.incoming) = (true, String::new(), None);
            member.read_errors.store(0, Ordering::Relaxed);
        }
        if let Err(error) = self.save(record) {
            *record = before;
            return Err(error);
        }
        // Reads find the new disks only now that the record has them.
        for (of, member) in record.members.iter().zip(&self.members).filter(|(of, _)| of.incoming.is_none()) {
            // A sync that looks at both slots, this one first, finds the disk in one of them.
            let Some(rebuilt) = member.incoming.load_full().filter(|_| of.is_in) else { continue };
            let replaced = member.disk.swap(Some(rebuilt));
            member.incoming.store(None);
            // The old disk must not be taken for a member later.
            let _ = replaced.map(|old| member::wipe(&*old.0));
        }
        Ok(())
    }

    /// Begins to rebuild a member onto a disk, whose header is written.
    pub(crate) fn begin_rebuild(&self, number: usize, new: Incoming, disk: Arc<dyn Disk>) -> io::Result<()> {
        // Writes that are under way do not reach the disk.
        let _alone = self.alone(0, REGION * REGIONS);
        let record = &mut *self.record.lock();
        record.members[number].incoming = Some(new);
        if let Err(error) = self.save(record) {
            record.members[number].incoming = None;
            return Err(error);
        }
        self.members[number].incoming.store(Some(Arc::new(Opened(disk))));
        self.begun.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}
