//! The backend that runs redb on the engine's own disk seam, so that the simulator crashes the
//! catalog too.

use super::blocks::{BLOCK, SummedBlocks, met};
use crate::disk::{Disk, SyncPurpose};
use crate::fault::panic_text;
use parking_lot::Mutex;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The storage below the store.
#[derive(Clone)]
pub(super) enum BlockBackend {
    /// Blocks with sums. Each block is verified when it is read.
    Blocks(Arc<SummedBlocks>),
    /// The store's pages without sums, of a catalog that an older build wrote.
    Plain(Arc<dyn Disk>),
}

impl BlockBackend {
    pub(super) fn bytes(&self) -> io::Result<u64> {
        match self {
            BlockBackend::Blocks(blocks) => Ok(blocks.len() * BLOCK as u64),
            BlockBackend::Plain(disk) => disk.len(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            BlockBackend::Blocks(blocks) => blocks.read(offset, out),
            BlockBackend::Plain(disk) => disk.read_at(out, offset),
        }
    }
}

impl std::fmt::Debug for BlockBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Below")
    }
}

impl StorageBackend for BlockBackend {
    fn len(&self) -> io::Result<u64> {
        self.bytes()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        BlockBackend::read(self, offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        match self {
            BlockBackend::Blocks(blocks) => blocks.set_len(len),
            BlockBackend::Plain(disk) => disk.set_len(len),
        }
    }
    fn sync_data(&self) -> io::Result<()> {
        match self {
            BlockBackend::Blocks(blocks) => blocks.sync(),
            BlockBackend::Plain(disk) => disk.sync(SyncPurpose::Catalog),
        }
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self {
            BlockBackend::Blocks(blocks) => blocks.write(offset, data),
            BlockBackend::Plain(disk) => disk.write_at(data, offset),
        }
    }
    fn close(&self) -> io::Result<()> {
        match self {
            // Pages of a transaction that was given up may have been written since the last sync.
            BlockBackend::Blocks(blocks) => blocks.flush(),
            BlockBackend::Plain(_) => Ok(()),
        }
    }
}

/// Runs an operation of the storage below the store. A panic becomes an error. It must not pass
/// through the store, which holds locks of its own: a store with locks that a panic has poisoned
/// may panic twice when it is closed, and that aborts the process.
fn caught<T>(operation: impl FnOnce() -> io::Result<T>, on_panic: impl FnOnce()) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|panic| {
        on_panic();
        Err(io::Error::other(format!("the catalog's disk has panicked: {}", panic_text(&*panic))))
    })
}

/// The backend of a catalog that is in use. After a panic of the storage below it refuses
/// everything: nobody knows what the operation that panicked has done.
pub(super) struct Latched {
    below: BlockBackend,
    panicked: Arc<AtomicBool>,
}

impl Latched {
    pub(super) fn new(below: BlockBackend) -> Self {
        Latched { below, panicked: Arc::default() }
    }

    /// Returns the flag that is set after the storage below has panicked.
    pub(super) fn panicked(&self) -> Arc<AtomicBool> {
        self.panicked.clone()
    }

    fn run<T>(&self, f: impl FnOnce(&BlockBackend) -> io::Result<T>) -> io::Result<T> {
        if self.panicked.load(Ordering::Acquire) {
            return Err(io::Error::other("the catalog's disk has panicked before"));
        }
        caught(|| f(&self.below), || self.panicked.store(true, Ordering::Release))
    }
}

impl std::fmt::Debug for Latched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Latched")
    }
}

impl StorageBackend for Latched {
    fn len(&self) -> io::Result<u64> {
        self.run(|below| below.bytes())
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.run(|below| below.read(offset, out))
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.run(|below| below.set_len(len))
    }
    fn sync_data(&self) -> io::Result<()> {
        self.run(|below| below.sync_data())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.run(|below| below.write(offset, data))
    }
    fn close(&self) -> io::Result<()> {
        self.run(|below| below.close())
    }
}

/// A backend that reads the storage below and keeps all writes in memory. The file stays unchanged.
pub(super) struct MemoryBackend {
    below: BlockBackend,
    written: Mutex<Written>,
}

struct Written {
    len: u64,
    /// The pages that were written to.
    pages: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl MemoryBackend {
    pub(super) fn new(below: BlockBackend) -> io::Result<Self> {
        let written = Mutex::new(Written { len: below.bytes()?, pages: BTreeMap::new() });
        Ok(MemoryBackend { below, written })
    }

    /// Returns page `number` of the storage below, with zeros behind its end.
    fn page_below(&self, number: u64) -> io::Result<Box<[u8; BLOCK]>> {
        let mut page = Box::new([0; BLOCK]);
        let start = number * BLOCK as u64;
        let len = self.bytes_below()?.saturating_sub(start).min(BLOCK as u64) as usize;
        if len > 0 {
            self.read_below(start, &mut page[..len])?;
        }
        Ok(page)
    }

    fn bytes_below(&self) -> io::Result<u64> {
        caught(|| self.below.bytes(), || ())
    }

    fn read_below(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        caught(|| self.below.read(offset, out), || ())
    }
}

/// Cuts `len` bytes at `offset` into pages: (page, start in the page, start in the range, length).
fn in_pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let inside = (at % BLOCK as u64) as usize;
        let part = (BLOCK - inside).min(len - done);
        let start = done;
        done += part;
        (part > 0).then_some((at / BLOCK as u64, inside, start, part))
    })
}

impl std::fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Overlay")
    }
}

impl StorageBackend for MemoryBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().len)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= written.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let rewritten = in_pages(offset, out.len()).any(|page| written.pages.contains_key(&page.0));
        if !rewritten && end <= self.bytes_below()? {
            // A damaged page has to be given to the store whole.
            return self.read_below(offset, out);
        }
        for (number, inside, start, len) in in_pages(offset, out.len()) {
            let page = match written.pages.get(&number) {
                Some(page) => page.clone(),
                None => {
                    let before = met();
                    let page = self.page_below(number)?;
                    if met() != before {
                        return self.read_below(offset, out);
                    }
                    page
                }
            };
            out[start..start + len].copy_from_slice(&page[inside..inside + len]);
        }
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written.lock();
        written.len = len;
        written.pages.retain(|page, _| page * (BLOCK as u64) < len);
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
                Entry::Vacant(place) if len == BLOCK => place.insert(Box::new([0; BLOCK])),
                Entry::Vacant(place) => place.insert(self.page_below(number)?),
            };
            page[inside..inside + len].copy_from_slice(&data[start..start + len]);
        }
        written.len = written.len.max(offset + data.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Dir, MemDir, OpenMode};

    #[test]
    fn after_a_panic_nothing_is_done() {
        let disk = MemDir::new().open("catalog", OpenMode::Create).unwrap();
        let latched = Latched::new(BlockBackend::Plain(disk.clone()));
        latched.write(0, &[1; 4]).unwrap();
        let below = |_: &BlockBackend| -> io::Result<()> { panic!("below the store") };
        let error = latched.run(below).unwrap_err();
        assert!(error.to_string().contains("below the store"), "{error}");
        assert!(latched.panicked().load(Ordering::Acquire));
        assert!(latched.write(0, &[2; 4]).is_err() && latched.set_len(9).is_err());
        assert!(latched.sync_data().is_err() && latched.read(0, &mut [0; 4]).is_err());
        let mut content = [0; 4];
        disk.read_at(&mut content, 0).unwrap();
        assert_eq!((content, disk.len().unwrap()), ([1; 4], 4));
    }
}
