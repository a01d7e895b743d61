//! Copies that are wrong, or that can't be read, are made like one that is right.

use super::Mirror;
use crate::disk::Settled;
use std::io;

impl Mirror {
    /// Returns whether every member can read a range.
    pub(crate) fn is_readable(&self, at: u64, len: usize) -> bool {
        let mut buffer = vec![0; len];
        let places = self.places.load();
        let Ok(pieces) = Self::pieces(&places, at, len) else { return true };
        pieces.into_iter().all(|piece| {
            piece.places.iter().all(|place| {
                let disk = self.members.disk(place.member);
                let part = &mut buffer[piece.range.clone()];
                disk.is_none_or(|disk| disk.0.read_at(part, place.offset + piece.within).is_ok())
            })
        })
    }

    /// Looks for a copy of a range for which `is_right` is true. Fills `buf` with it, and makes the
    /// other copies like it.
    pub(super) fn settle_copies(
        &self,
        buf: &mut [u8],
        at: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> io::Result<Settled> {
        let _alone = self.alone(at, buf.len() as u64);
        let places = self.places.load();
        let mut pieces = Self::pieces(&places, at, buf.len())?;
        let (Some(piece), None) = (pieces.next(), pieces.next()) else { return Ok(Settled::NoneRight) };
        let mut copies = Vec::new();
        for place in self.in_order(&piece) {
            let Some(disk) = self.members.disk(place.member) else { continue };
            let from = place.offset + piece.within;
            disk.0.drop_cached(from, buf.len() as u64);
            let mut content = vec![0; buf.len()];
            let is_read = disk.0.read_at(&mut content, from).is_ok();
            copies.push((place.member, disk, from, is_read.then_some(content)));
        }
        let right = copies.iter().find_map(|(_, _, _, content)| content.as_ref().filter(|c| is_right(c)));
        let Some(right) = right else { return Ok(Settled::NoneRight) };
        buf.copy_from_slice(right);
        let wrong: Vec<_> = copies.iter().filter(|(.., content)| content.as_deref() != Some(&*buf)).collect();
        for (number, disk, from, _) in wrong.iter().filter(|_| self.members.writable) {
            tracing::warn!(
                mirror = self.members.name,
                member = number,
                at,
                "a copy was wrong, and was written again"
            );
            if let Err(error) = disk.0.write_at(buf, *from) {
                let _ = self.members.lose(*number, disk, &error);
            }
        }
        // What was copied to a disk that a member is rebuilt onto may have come from a wrong copy.
        for place in piece.places.iter().filter(|_| self.members.writable && !wrong.is_empty()) {
            let Some(new) = self.members.incoming(place.member) else { continue };
            if let Err(error) = new.0.write_at(buf, place.offset + piece.within) {
                let _ = self.members.lose(place.member, &new, &error);
            }
        }
        if let Some((to, disk)) =
            self.target_of(&piece).filter(|_| self.members.writable && !wrong.is_empty())
            && let Err(error) = disk.0.write_at(buf, to.offset + piece.within)
        {
            self.members.target_failed(to.member, &disk, &error);
        }
        if !wrong.is_empty() {
            self.members.stale.note_written(at..at + buf.len() as u64);
        }
        Ok(if wrong.is_empty() { Settled::AllRight } else { Settled::Mended })
    }

    /// Returns whether all copies of a range are like `content`.
    pub(super) fn copies_are(&self, content: &[u8], at: u64) -> io::Result<bool> {
        let mut buffer = vec![0; content.len()];
        let places = self.places.load();
        for piece in Self::pieces(&places, at, content.len())? {
            for place in piece.places {
                let Some(disk) = self.members.disk(place.member) else { continue };
                let copy = &mut buffer[piece.range.clone()];
                disk.0.read_direct(copy, place.offset + piece.within)?;
                if *copy != content[piece.range.clone()] {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
