//! redb on the engine's own disk seam, so that the simulator crashes the catalog too.

use crate::disk::{Disk, SyncPurpose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The catalog's disk. After a panic in it nothing is done any more: redb may have lost the page that it was about to
/// write, and a commit without it would be durable.
pub(super) struct DiskBackend {
    disk: Arc<dyn Disk>,
    panicked: Arc<AtomicBool>,
}

/// Notes a panic of the operation that holds it.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl DiskBackend {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        disk.advise_random();
        DiskBackend { disk, panicked: Arc::default() }
    }

    /// Set once the disk has panicked.
    pub(super) fn panicked(&self) -> Arc<AtomicBool> {
        self.panicked.clone()
    }

    fn run<T>(&self, f: impl FnOnce(&dyn Disk) -> io::Result<T>) -> io::Result<T> {
        if self.panicked.load(Ordering::Acquire) {
            return Err(io::Error::other("the catalog's disk has panicked before"));
        }
        let _running = Running(&self.panicked);
        f(&*self.disk)
    }
}

impl std::fmt::Debug for DiskBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskBackend")
    }
}

impl redb::StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        self.run(|disk| disk.len())
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.run(|disk| disk.read_at(out, offset))
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(|disk| disk.set_len(len))
    }
    fn sync_data(&self) -> io::Result<()> {
        self.run(|disk| disk.sync(SyncPurpose::Catalog))
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.run(|disk| disk.write_at(data, offset))
    }
}

/// Reads a disk and keeps all writes in memory: the disk stays as it is.
pub(super) struct Overlay {
    disk: Arc<dyn Disk>,
    written: Mutex<Written>,
}

struct Written {
    len: u64,
    /// Pages that were written to.
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

const PAGE: usize = 4096;

impl Overlay {
    pub(super) fn new(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let written = Mutex::new(Written { len: disk.len()?, pages: BTreeMap::new() });
        Ok(Overlay { disk, written })
    }

    /// Page `number` of the disk, with zeros behind its end.
    fn page_below(&self, number: u64) -> io::Result<Box<[u8; PAGE]>> {
        let mut page = Box::new([0; PAGE]);
        let start = number * PAGE as u64;
        let len = self.disk.len()?.saturating_sub(start).min(PAGE as u64) as usize;
        self.disk.read_at(&mut page[..len], start)?;
        Ok(page)
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

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Overlay")
    }
}

impl redb::StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().len)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, inside, start, len) in in_pages(offset, out.len()) {
            let target = &mut out[start..start + len];
            match written.pages.get(&number) {
                Some(page) => target.copy_from_slice(&page[inside..inside + len]),
                None => target.copy_from_slice(&self.page_below(number)?[inside..inside + len]),
            }
        }
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.written.lock().len = len;
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.lock();
        for (number, inside, start, len) in in_pages(offset, data.len()) {
            let page = match written.pages.entry(number) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) => place.insert(self.page_below(number)?),
            };
            page[inside..inside + len].copy_from_slice(&data[start..start + len]);
        }
        written.len = written.len.max(offset + data.len() as u64);
        Ok(())
    }
}
