//! A mirror as a [`Disk`].

use super::Mirror;
use crate::disk::layout::DiskLayout;
use crate::disk::{Backing, Disk, Settled, SyncPurpose};
use std::cell::Cell;
use std::io::{self, IoSlice};

#[deny(clippy::missing_trait_methods)] // a default would act on no member
impl Disk for Mirror {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_each(buf, offset, &|disk, buf, at| disk.read_at(buf, at))
    }
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.try_read(buf, offset)
    }
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_each(buf, offset, &|disk, buf, at| disk.read_direct(buf, at))
    }
    fn drop_cached(&self, offset: u64, len: u64) {
        self.visit_copies(offset, len, &|disk, at, len| disk.drop_cached(at, len));
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_each(offset, buf.len(), &|disk, at, part| disk.write_at(&buf[part], at))
    }
    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.write_each(offset, len, &|disk, at, part| match part.len() == len {
            true => disk.write_vectored_at(&mut bufs.to_vec(), at),
            // The request crosses a boundary between members, which is rare.
            false => {
                let whole: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                disk.write_at(&whole[part], at)
            }
        })
    }
    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_each(offset, buf.len(), &|disk, at, part| disk.write_direct(&buf[part], at))
    }
    fn write_scattered(&self, pieces: &[(&[u8], u64)]) -> io::Result<()> {
        pieces.iter().try_for_each(|(bytes, offset)| self.write_at(bytes, *offset))
    }
    fn scatters(&self) -> bool {
        false
    }
    fn sync(&self, purpose: SyncPurpose) -> io::Result<()> {
        self.members.sync_all(purpose)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.content_len())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        match len == self.content_len() {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "the size of a mirror is that of its members"))
            }
        }
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.on_each(offset, len, &|disk, at, len| disk.allocate(at, len))
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.on_each(offset, len, &|disk, at, len| disk.punch(at, len))
    }
    fn zero(&self, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        let can = Cell::new(true);
        self.write_each(offset, len as usize, &|disk, at, part| {
            can.set(can.get() && disk.zero(at, part.len() as u64, unmap)?);
            Ok(())
        })?;
        Ok(can.get())
    }
    fn run_at(&self, offset: u64) -> io::Result<(u64, bool)> {
        self.run(offset)
    }
    fn modified(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Every copy needs space, so the member with the least has the say.
    fn backing_available(&self) -> io::Result<Option<Backing>> {
        self.members.least_backing()
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.visit_first(offset, len, &|disk, at, len| disk.will_need(at, len));
    }
    fn advise_random(&self) {
        self.members.advise_random();
    }
    fn overwrites_elsewhere(&self) -> io::Result<bool> {
        Ok(self.members.overwrites_elsewhere())
    }
    fn answers(&self) -> io::Result<()> {
        self.members.check_answers()
    }
    fn is_block_device(&self) -> bool {
        self.members.are_block_devices()
    }
    fn physical_block(&self) -> io::Result<Option<u64>> {
        self.members.physical_block()
    }
    fn settle(&self, buf: &mut [u8], offset: u64, is_right: &dyn Fn(&[u8]) -> bool) -> io::Result<Settled> {
        self.settle_copies(buf, offset, is_right)
    }
    fn agrees(&self, content: &[u8], offset: u64) -> io::Result<bool> {
        self.copies_are(content, offset)
    }
    fn as_layout(&self) -> Option<DiskLayout<'_>> {
        Some(DiskLayout::Mirror(self))
    }
}
