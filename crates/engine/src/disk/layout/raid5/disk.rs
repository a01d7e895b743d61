//! A RAID-5 as a [`Disk`].

use super::Raid5;
use crate::disk::layout::DiskLayout;
use crate::disk::layout::members::is_gone;
use crate::disk::{Backing, Disk, Settled, SyncPurpose};
use std::io::{self, IoSlice};

#[deny(clippy::missing_trait_methods)] // a default would act on no member
impl Disk for Raid5 {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.rows.rest_of_unit(offset) < buf.len() as u64 {
            self.will_need(offset, buf.len() as u64);
        }
        self.read(buf, offset, &|disk, buf, at| disk.read_at(buf, at))
    }
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.try_read(buf, offset)
    }
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read(buf, offset, &|disk, buf, at| disk.read_direct(buf, at))
    }
    fn drop_cached(&self, offset: u64, len: u64) {
        self.visit(offset, len, &|disk, at, len| disk.drop_cached(at, len));
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(std::iter::once(buf), offset)
    }
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs.iter().map(|buf| &**buf), offset)
    }
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(std::iter::once(buf), offset)
    }
    fn write_scattered(&self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        pieces.iter().try_for_each(|(bytes, offset)| self.write_at(bytes, *offset))
    }
    fn scatters(&self) -> bool {
        false
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.flush(purpose)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.content_len())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        match len == self.content_len() {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "the size of a RAID-5 is that of its members"))
            }
        }
    }
    /// Reserves the space of all blocks of the rows that have a part of the range.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_end(offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.punches.forget(&self.rows.range_of_rows(offset..offset + len));
        let lines = self.rows.lines_of(offset..offset + len);
        // A member that comes back gets the space, too.
        self.note_written(lines.clone());
        let mut from = lines.start;
        while from < lines.end {
            let to = lines.end.min(self.rows.end_of_row(from));
            for column in 0..self.rows.width() {
                let place = self.place(from, column);
                let len = (to - from) * super::BLOCK as u64;
                if let Some(disk) = self.members.disk(place.member) {
                    match disk.0.allocate(place.offset, len) {
                        Ok(()) => {}
                        Err(error) if is_gone(&error) => self.members.lose(place.member, &disk, &error)?,
                        Err(error) => return Err(error),
                    }
                }
                if let Some(new) = self.members.incoming(place.member) {
                    // A write that fails there ends the rebuild.
                    let _ = new.0.allocate(place.offset, len);
                }
                if let Some((to, disk)) = self.target(from, column)
                    && disk.0.allocate(to.offset, len).is_err()
                {
                    // Space that is promised here must be there at the new place, too.
                    self.members.spoil_move();
                }
            }
            from = to;
        }
        Ok(())
    }
    /// Gives whole rows back, together with others: see `punch.rs`.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.note_unused(offset..self.content_len().min(offset.saturating_add(len)))
    }
    fn zero(&self, _offset: u64, _len: u64, _unmap: bool) -> io::Result<bool> {
        Ok(false)
    }
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        Ok((self.content_len().max(offset), true))
    }
    fn modified(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// The member with the least space has the say: it has a part of each row.
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        let columns = self.rows.parity() as u64;
        let of = |least: Backing| Backing { available: least.available.saturating_mul(columns), ..least };
        Ok(self.members.least_backing()?.map(of))
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.visit(offset, len, &|disk, at, len| disk.will_need(at, len));
    }
    fn advise_random(&self) {
        self.members.advise_random();
    }
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        Ok(self.members.overwrites_elsewhere())
    }
    fn answers(&self) -> io::Result<()> {
        self.check_broken()?;
        self.members.check_answers()
    }
    fn is_block_device(&self) -> bool {
        self.members.are_block_devices()
    }
    fn physical_block(&self) -> io::Result<Option<u64>> {
        self.members.physical_block()
    }
    fn settle(&self, buf: &mut [u8], offset: u64, is_right: &dyn Fn(&[u8]) -> bool) -> io::Result<Settled> {
        self.settle_block(buf, offset, is_right)
    }
    fn agrees(&self, content: &[u8], offset: u64) -> io::Result<bool> {
        self.is_content(content, offset)
    }
    fn as_layout(&self) -> Option<DiskLayout<'_>> {
        Some(DiskLayout::Raid5(self))
    }
}
