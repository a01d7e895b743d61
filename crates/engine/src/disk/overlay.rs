//! A directory over another one, which stays unchanged. What is written is kept in memory, and lost
//! with the overlay.

use super::{Backing, Dir, Disk, OpenMode, SyncPurpose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, IoSlice};
use std::sync::Arc;

const PAGE: usize = 4096;
/// The unit, in bytes, that a disk may fail to read by itself.
const SECTOR: usize = 512;

/// A directory that opens everything of `inner` for reading only and keeps changes in memory.
/// Recovery runs on it as on any directory. All handles of a name share its changes. Each handle
/// can make changes, whatever mode it was opened in.
pub struct OverlayDir {
    inner: Arc<dyn Dir>,
    /// The names that were opened, created, or (`None`) removed here.
    names: Mutex<BTreeMap<String, Option<Arc<Overlay>>>>,
}

impl OverlayDir {
    /// Makes an overlay without any change.
    pub fn new(inner: Arc<dyn Dir>) -> Self {
        OverlayDir { inner, names: Mutex::default() }
    }

    fn open_with(
        &self,
        name: &str,
        mode: OpenMode,
        open: impl FnOnce() -> io::Result<Arc<dyn Disk>>,
    ) -> io::Result<Arc<dyn Disk>> {
        let mut names = self.names.lock();
        let known = match names.get(name) {
            Some(known) => known.clone(),
            None => match open() {
                Ok(disk) => Some(Arc::new(Overlay::over(disk)?)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(e),
            },
        };
        let overlay = match (known, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(overlay), _) => overlay,
            (None, OpenMode::Existing | OpenMode::ReadOnly) => return Err(io::ErrorKind::NotFound.into()),
            (None, _) => Arc::new(Overlay::empty()),
        };
        names.insert(name.to_owned(), Some(overlay.clone()));
        Ok(overlay)
    }
}

impl Dir for OverlayDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_with(name, mode, || self.inner.open(name, OpenMode::ReadOnly))
    }

    fn open_locked(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
        self.open_with(name, mode, || self.inner.open_locked(name, OpenMode::ReadOnly))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.open(name, OpenMode::Existing)?;
        self.names.lock().insert(name.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.open(from, OpenMode::Existing)?;
        let mut names = self.names.lock();
        let moved = names.insert(from.to_owned(), None).flatten();
        names.insert(to.to_owned(), moved);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let changed = self.names.lock();
        let mut names = self.inner.list()?;
        names.retain(|name| !changed.contains_key(name));
        let there = changed.iter().filter(|(name, overlay)| overlay.is_some() && !name.contains('/'));
        names.extend(there.map(|(name, _)| name.clone()));
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that keeps all writes in memory. The disk below stays unchanged.
pub(crate) struct Overlay {
    below: Option<Arc<dyn Disk>>,
    written: Mutex<Written>,
}

struct Written {
    len: u64,
    /// The length, in bytes, up to which the disk below counts. What lay behind was cut off.
    below_len: u64,
    /// The pages that were written to.
    pages: BTreeMap<u64, Box<Page>>,
}

struct Page {
    bytes: [u8; PAGE],
    /// A bit for each sector that was not written and that the disk below could not read.
    missing: u8,
}

impl Overlay {
    /// Makes an overlay over the disk as it is now.
    pub(crate) fn over(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let len = disk.len()?;
        let written = Written { len, below_len: len, pages: BTreeMap::new() };
        Ok(Overlay { below: Some(disk), written: Mutex::new(written) })
    }

    fn empty() -> Self {
        let written = Written { len: 0, below_len: 0, pages: BTreeMap::new() };
        Overlay { below: None, written: Mutex::new(written) }
    }

    /// Fills `buf` from the disk below. Bytes behind its end become zeros.
    fn read_below(&self, buf: &mut [u8], start: u64, below_len: u64) -> io::Result<()> {
        let len = below_len.saturating_sub(start).min(buf.len() as u64) as usize;
        buf[len..].fill(0);
        match &self.below {
            Some(below) if len > 0 => below.read_at(&mut buf[..len], start),
            _ => Ok(()),
        }
    }

    /// Returns page `number`, of which a part is to be written. A part of the page that can't be
    /// read can still be written, as on a disk.
    fn page_below(&self, number: u64, below_len: u64) -> Box<Page> {
        let mut page = Box::new(Page { bytes: [0; PAGE], missing: 0 });
        let start = number * PAGE as u64;
        if self.read_below(&mut page.bytes, start, below_len).is_err() {
            for (index, sector) in page.bytes.chunks_mut(SECTOR).enumerate() {
                let read = self.read_below(sector, start + (index * SECTOR) as u64, below_len);
                page.missing |= u8::from(read.is_err()) << index;
            }
        }
        page
    }

    /// Reads those of `sectors` of page `number` again that are missing. Returns an error if they
    /// can't be read.
    fn complete(
        &self,
        page: &mut Page,
        number: u64,
        below_len: u64,
        sectors: impl Iterator<Item = usize>,
    ) -> io::Result<()> {
        for index in sectors {
            if page.missing & 1 << index != 0 {
                let (at, start) = (index * SECTOR, number * PAGE as u64);
                self.read_below(&mut page.bytes[at..at + SECTOR], start + at as u64, below_len)?;
                page.missing &= !(1 << index);
            }
        }
        Ok(())
    }

    fn write(&self, written: &mut Written, data: &[u8], offset: u64) -> io::Result<()> {
        for (number, inside, start, len) in in_pages(offset, data.len()) {
            let below_len = written.below_len;
            let page = match written.pages.entry(number) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) => place.insert(self.page_below(number, below_len)),
            };
            let end = inside + len;
            // Of a sector that is written in part the rest is needed.
            let whole = inside.div_ceil(SECTOR)..end / SECTOR;
            let in_part = (inside / SECTOR..end.div_ceil(SECTOR)).filter(|index| !whole.contains(index));
            self.complete(page, number, below_len, in_part)?;
            whole.for_each(|index| page.missing &= !(1 << index));
            page.bytes[inside..end].copy_from_slice(&data[start..start + len]);
        }
        written.len = written.len.max(offset + data.len() as u64);
        Ok(())
    }
}

/// Cuts `len` bytes at `offset` into pages: (page, start in the page, start in the range, length).
fn in_pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let inside = (at % PAGE as u64) as usize;
        let part = (PAGE - inside).min(len - done);
        let start = done;
        done += part;
        (part > 0).then_some((at / PAGE as u64, inside, start, part))
    })
}

/// Returns the end of a range to be written. Files of the operating system end at `i64::MAX`, so
/// these files do too.
fn end(offset: u64, len: u64) -> io::Result<u64> {
    let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
    end.ok_or(io::ErrorKind::FileTooLarge.into())
}

impl Disk for Overlay {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut written = self.written.lock();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > written.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = offset + buf.len() as u64;
        if let Some(below) = &self.below
            && end <= written.below_len
            && written.pages.range(offset / PAGE as u64..end.div_ceil(PAGE as u64)).next().is_none()
        {
            drop(written);
            return below.read_at(buf, offset);
        }
        let below_len = written.below_len;
        for (number, inside, start, len) in in_pages(offset, buf.len()) {
            let target = &mut buf[start..start + len];
            match written.pages.get_mut(&number) {
                Some(page) => {
                    let sectors = inside / SECTOR..(inside + len).div_ceil(SECTOR);
                    self.complete(page, number, below_len, sectors)?;
                    target.copy_from_slice(&page.bytes[inside..inside + len]);
                }
                None => self.read_below(target, offset + start as u64, below_len)?,
            }
        }
        Ok(())
    }

    fn try_read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        end(offset, buf.len() as u64)?;
        self.write(&mut self.written.lock(), buf, offset)
    }

    fn write_vectored_at(&self, bufs: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let written = &mut *self.written.lock();
        let mut at = offset;
        for buf in bufs.iter() {
            let next = end(at, buf.len() as u64)?;
            self.write(written, buf, at)?;
            at = next;
        }
        Ok(())
    }

    fn sync(&self, _purpose: SyncPurpose) -> io::Result<()> {
        Ok(())
    }

    /// Returns the modification time of the disk below, or `None` once a page was written. A volume
    /// that rests on an image recognises the image by this time.
    fn modified(&self) -> io::Result<Option<u64>> {
        match &self.below {
            Some(below) if self.written.lock().pages.is_empty() => below.modified(),
            _ => Ok(None),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        end(len, 0)?;
        let written = &mut *self.written.lock();
        if len < written.len {
            written.below_len = written.below_len.min(len);
            written.pages.split_off(&len.div_ceil(PAGE as u64));
            let inside = (len % PAGE as u64) as usize;
            if let Some(page) = written.pages.get_mut(&(len / PAGE as u64)) {
                page.bytes[inside..].fill(0);
            }
        }
        written.len = len;
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let written = &mut *self.written.lock();
        written.len = written.len.max(end(offset, len)?);
        Ok(())
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn backing_available(&self) -> io::Result<Option<Backing>> {
        Ok(None)
    }

    fn advise_random(&self) {}

    fn is_block_device(&self) -> bool {
        self.below.as_ref().is_some_and(|below| below.is_block_device())
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemDir;
    use super::*;
    use crate::testing::{Act, FaultyDisk, Op};

    fn overlay(inner: &MemDir) -> OverlayDir {
        OverlayDir::new(Arc::new(inner.clone()))
    }

    #[test]
    fn locks() {
        super::super::tests::locks(&overlay(&MemDir::new()));
    }

    /// A disk of 7s whose second and third sector can't be read. It takes no writes.
    fn bad() -> Arc<dyn Disk> {
        let disk = MemDir::new().open("a", OpenMode::CreateNew).unwrap();
        disk.write_at(&[7; 2 * PAGE], 0).unwrap();
        let sector = SECTOR as u64;
        FaultyDisk::new(disk, move |op: &Op<'_>| match &op.act {
            Act::Read(range) if range.start < 3 * sector && range.end > sector => {
                Some(io::Error::from_raw_os_error(5))
            }
            Act::Read(_) => None,
            _ => Some(io::ErrorKind::PermissionDenied.into()),
        })
    }

    /// A sector that can't be read can still be written, and so can its neighbours, as on a disk.
    #[test]
    fn what_can_not_be_read_can_be_written() {
        let sector = SECTOR as u64;
        let disk = Overlay::over(bad()).unwrap();
        let fails = |offset: u64, len: usize| disk.read_at(&mut vec![0; len], offset).is_err();
        disk.write_at(&[8; SECTOR], 4 * sector).unwrap();
        assert!(fails(0, PAGE) && fails(sector, 1) && fails(3 * sector - 1, 1));
        assert!(!fails(0, SECTOR) && !fails(3 * sector, PAGE));
        // A write of a part would leave a sector with unknown content.
        assert!(disk.write_at(&[8; 10], 2 * sector).is_err() && fails(2 * sector, 10));
        disk.write_at(&[9; SECTOR + 10], 2 * sector).unwrap();
        assert!(fails(sector, 1));
        disk.write_at(&[9; SECTOR], sector).unwrap();
        let mut page = vec![0; PAGE];
        disk.read_at(&mut page, 0).unwrap();
        let all = [
            (0, 7),
            (SECTOR, 9),
            (3 * SECTOR + 9, 9),
            (3 * SECTOR + 10, 7),
            (4 * SECTOR, 8),
            (5 * SECTOR, 7),
        ];
        assert!(all.iter().all(|(at, byte)| page[*at] == *byte), "{page:?}");
        let cut = Overlay::over(bad()).unwrap();
        cut.write_at(&[8; SECTOR], 0).unwrap();
        cut.set_len(sector).unwrap();
        cut.set_len(PAGE as u64).unwrap();
        cut.read_at(&mut page, 0).unwrap();
        assert!(page[..SECTOR].iter().all(|b| *b == 8) && page[SECTOR..].iter().all(|b| *b == 0));
    }

    #[test]
    fn nothing_reaches_what_is_below() {
        let inner = MemDir::new();
        let below = inner.open("a", OpenMode::CreateNew).unwrap();
        below.write_at(&[7; 10_000], 0).unwrap();
        let dir = overlay(&inner);
        let disk = dir.open("a", OpenMode::Existing).unwrap();
        disk.write_at(&[8; 100], 5000).unwrap();
        let mut buf = vec![0; 10_000];
        dir.open("a", OpenMode::Existing).unwrap().read_at(&mut buf, 0).unwrap();
        assert!(buf[..5000].iter().all(|b| *b == 7) && buf[5000..5100].iter().all(|b| *b == 8));
        disk.set_len(6000).unwrap();
        disk.allocate(0, 12_000).unwrap();
        disk.read_at(&mut buf, 0).unwrap();
        assert!(buf[5100..6000].iter().all(|b| *b == 7) && buf[6000..].iter().all(|b| *b == 0));
        dir.rename("a", "b").unwrap();
        dir.open("c", OpenMode::CreateNew).unwrap();
        assert_eq!(dir.list().unwrap(), ["b", "c"]);
        dir.remove("b").unwrap();
        assert_eq!(dir.open("a", OpenMode::Existing).err().unwrap().kind(), io::ErrorKind::NotFound);

        assert_eq!(inner.list().unwrap(), ["a"]);
        below.read_at(&mut buf, 0).unwrap();
        assert!(buf.iter().all(|b| *b == 7));
        assert_eq!(below.len().unwrap(), 10_000);
    }
}
